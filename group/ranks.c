// SPDX-License-Identifier: Apache-2.0
// A member that is a rank: the others are jobs of other servers, and what crosses goes through the
// client of each. There is one kind of step for a client: sum this over all ranks, in place, or
// make it what it is on one rank. Everything else follows from such sums, so that all ranks decide
// alike:
//
//   join (who are you) -> [the lead's state] -> plan (its shards) -> buckets, end -> plan
//
// A vector in which each rank has a row of its own, the others' being 0, is after the sum what all
// ranks have said.
#include "group/group_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/ipc/memfd.h"
#include "base/ipc/sum_link.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANKS_BREAK_NS 10000000000u // for which a round that may be certain is waited for

typedef enum ranks_phase {
    RANKS_JOINS,
    RANKS_STATE, // the lead's state goes to the others
    RANKS_GATHERS,
    RANKS_WORKS, // a round
    RANKS_OVER,
} ranks_phase;

// Rows of the vectors that are summed; all doubles, which hold integers below 2^53.
typedef struct join_row {
    double here, fingerprint_high, fingerprint_low, batch, steps, floats, state_bytes, at;
} join_row;

typedef struct end_row {
    double weight, loss, sample_us, most, broken; // loss: weighted; most: 0, no limit is known
} end_row;

// What the lead says, and the others are sent.
typedef struct ranks_plan {
    int64_t step, stops; // stops: no round follows
    int64_t shards[HTH_GROUP_MEMBERS];
} ranks_plan;

// The memory that the client sees: this, then a state, then what is summed.
typedef struct ranks_memory {
    join_row join[HTH_GROUP_MEMBERS];
    end_row end[HTH_GROUP_MEMBERS];
    ranks_plan plan;
} ranks_memory;

typedef struct ranks {
    hth_group group; // first
    int link, n;
    ranks_memory *memory;
    ranks_phase phase;
    int64_t step;         // whole steps
    uint64_t next, ask;   // next message's number; that of the phase's question
    bool asked, answered; // .. there is one, and its answer
    bool given;           // RANKS_STATE: the lead has written it
    bool stopped;         // by the lead's plan
    int64_t shards[HTH_GROUP_MEMBERS];
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    // a round: its parts are the buckets, and the end
    size_t n_parts, posted, n_done;
    uint64_t first, began_ns; // number of the first part's message
    bool *done;
    bool passed, broken;
    hth_err err; // why nothing more is exchanged
    char why[EXCHANGE_WHY];
} ranks;

static ranks *ranks_of(hth_group *group)
{
    return (ranks *)(void *)group;
}

static int rank(const ranks *group)
{
    return group->group.spec.member;
}

// ---- what goes to the client

// ranks_lost notes the first reason why nothing can be exchanged any more.
static void ranks_lost(ranks *group, hth_err err)
{
    if (group->err == HTH_OK) {
        group->err = err;
        snprintf(group->why, sizeof group->why, "%s", hth_err_detail());
        group->phase = RANKS_OVER;
    }
}

static hth_err ranks_send(ranks *group, hth_sum_what what, const void *at, size_t count)
{
    hth_sum_message m = {.what = what,
                         .root = HTH_GROUP_LEAD,
                         .id = group->next,
                         .offset = (uint64_t)((const char *)at - (const char *)group->memory),
                         .count = count};
    hth_err err = hth_sum_link_send(group->link, &m, -1);
    group->next += err == HTH_OK;
    return err;
}

// ranks_ask asks for what the phase needs; where the client is slow to read it is asked again.
static void ranks_ask(ranks *group, hth_sum_what what, const void *at, size_t count)
{
    uint64_t id = group->next;
    hth_err err = ranks_send(group, what, at, count);
    if (err == HTH_OK) {
        group->asked = true;
        group->answered = false;
        group->ask = id;
    } else if (err != HTH_EBUSY && err != HTH_ECANCELED) { // why it has gone it has said, perhaps
        ranks_lost(group, err);
    }
}

// ranks_post sends the parts of a round that are ready, in the order in which passes write them, so
// that one that waits has none after it that could go.
static void ranks_post(ranks *group)
{
    hth_group *g = &group->group;
    hth_err err = HTH_OK;
    while (group->posted + 1 < group->n_parts && err == HTH_OK) {
        size_t bucket = group->posted, end = g->at[g->spec.n_slots];
        size_t from = bucket * EXCHANGE_BUCKET;
        size_t floats = end - from < EXCHANGE_BUCKET ? end - from : EXCHANGE_BUCKET;
        if (g->left[bucket] > 0) {
            break;
        }
        err = ranks_send(group, HTH_SUM_F32, g->area + from, floats);
        group->posted += err == HTH_OK;
    }
    if (group->posted + 1 == group->n_parts && group->passed && err == HTH_OK) {
        err = ranks_send(group, HTH_SUM_F64, group->memory->end,
                         (size_t)group->n * sizeof(end_row) / sizeof(double));
        group->posted += err == HTH_OK;
    }
    if (err != HTH_OK && err != HTH_EBUSY && err != HTH_ECANCELED) {
        ranks_lost(group, err);
    }
}

// ---- what comes from it

static bool ranks_done(ranks *group, uint64_t id)
{
    if (group->asked && !group->answered && id == group->ask) {
        group->answered = true;
        return true;
    }
    uint64_t part = id - group->first;
    if (group->phase != RANKS_WORKS || part >= group->posted || group->done[part]) {
        return false;
    }
    group->done[part] = true;
    group->n_done++;
    return true;
}

static void ranks_hear(ranks *group)
{
    hth_sum_message m;
    hth_err err = HTH_OK;
    while (group->err == HTH_OK && err == HTH_OK) {
        err = hth_sum_link_receive(group->link, 0, &m, NULL);
        if (err == HTH_ETIMEDOUT) {
            return;
        }
        if (err == HTH_OK && m.what == HTH_SUM_FAILED) {
            m.text[sizeof m.text - 1] = 0;
            err = hth_fail(HTH_EIO, "rank %d of %d: %s", rank(group), group->n, m.text);
        } else if (err == HTH_OK && (m.what != HTH_SUM_DONE || !ranks_done(group, m.id))) {
            err = hth_fail(HTH_ECORRUPT, "the client of rank %d answered what it was not asked",
                           rank(group));
        } else if (err == HTH_ECANCELED) {
            err = hth_fail(HTH_EIO,
                           "rank %d of %d has lost the client that sums for it: with --resume the "
                           "job goes on from its checkpoint",
                           rank(group), group->n);
        }
    }
    if (err != HTH_OK) {
        ranks_lost(group, err);
    }
}

// ---- before a round

static void ranks_join(ranks *group)
{
    const hth_group_spec *s = &group->group.spec;
    memset(group->memory->join, 0, sizeof group->memory->join);
    group->memory->join[s->member] =
        (join_row){.here = 1,
                   .fingerprint_high = (double)(s->fingerprint >> 32),
                   .fingerprint_low = (double)(s->fingerprint & UINT32_MAX),
                   .batch = (double)s->batch,
                   .steps = (double)s->steps,
                   .floats = (double)group->group.at[s->n_slots],
                   .state_bytes = (double)s->state_bytes,
                   .at = (double)s->at};
    ranks_ask(group, HTH_SUM_F64, group->memory->join,
              (size_t)group->n * sizeof(join_row) / sizeof(double));
}

static bool rows_agree(const join_row *a, const join_row *b)
{
    return a->fingerprint_high == b->fingerprint_high && a->fingerprint_low == b->fingerprint_low &&
           a->batch == b->batch && a->steps == b->steps && a->floats == b->floats &&
           a->state_bytes == b->state_bytes;
}

// ranks_agree compares what all ranks have brought. Where they do not stand at the same step the
// lead's state counts.
static hth_err ranks_agree(ranks *group)
{
    const join_row *lead = &group->memory->join[HTH_GROUP_LEAD];
    bool same = true;
    for (int i = 0; i < group->n; i++) {
        const join_row *row = &group->memory->join[i];
        if (row->here != 1) {
            return hth_fail(HTH_EINVAL, "rank %d of %d is there %g times", i, group->n, row->here);
        }
        if (!rows_agree(row, lead)) {
            return hth_fail(HTH_EINVAL,
                            "rank %d has another model, data or options than rank 0: batches of "
                            "%.0f and %.0f samples, %.0f and %.0f steps, %.0f and %.0f gradients",
                            i, row->batch, lead->batch, row->steps, lead->steps, row->floats,
                            lead->floats);
        }
        same = same && row->at == lead->at;
    }
    bool good = lead->at >= 0 && lead->at <= (double)group->group.spec.steps;
    group->step = good ? (int64_t)lead->at : 0;
    group->phase = same ? RANKS_GATHERS : RANKS_STATE;
    return good ? HTH_OK : hth_fail(HTH_EINVAL, "rank 0 begins at step %g", lead->at);
}

static void ranks_next(ranks *group, ranks_phase phase)
{
    group->phase = phase;
    group->asked = group->answered = false;
}

static hth_group_turn ranks_state(ranks *group, hth_group_round *round)
{
    bool lead = rank(group) == HTH_GROUP_LEAD;
    round->step = group->step;
    if (lead && !group->given) {
        return HTH_GROUP_GIVES;
    }
    if (!group->asked) {
        ranks_ask(group, HTH_SUM_BROADCAST, group->group.state, group->group.spec.state_bytes);
    }
    if (!group->answered) {
        return HTH_GROUP_WAITS;
    }
    if (!lead) {
        return HTH_GROUP_TAKES;
    }
    ranks_next(group, RANKS_GATHERS);
    return HTH_GROUP_WAITS;
}

static bool plan_good(const ranks *group, const ranks_plan *plan)
{
    int64_t left = group->group.spec.batch;
    for (int i = 0; i < group->n; i++) {
        if (plan->shards[i] < 0 || plan->shards[i] > left) {
            return false;
        }
        left -= plan->shards[i];
    }
    return plan->step == group->step && plan->step < group->group.spec.steps;
}

// ranks_round begins the round that the lead has planned.
static hth_group_turn ranks_round(ranks *group, hth_group_round *round)
{
    hth_group *g = &group->group;
    const ranks_plan plan = group->memory->plan;
    if (plan.stops) {
        group->stopped = true;
        ranks_next(group, RANKS_OVER);
        return HTH_GROUP_OVER;
    }
    if (!plan_good(group, &plan)) {
        ranks_lost(group, hth_fail(HTH_ECORRUPT, "the shards that rank %d got make no sense",
                                   rank(group)));
        return HTH_GROUP_OVER;
    }
    *round = (hth_group_round){.step = plan.step};
    memcpy(round->shards, plan.shards, sizeof round->shards);
    memcpy(group->shards, plan.shards, sizeof group->shards);
    for (int i = 0; i < rank(group); i++) {
        round->from += plan.shards[i];
    }
    round->n = plan.shards[rank(group)];
    ranks_next(group, RANKS_WORKS);
    group_sum_begin(g);
    group->n_parts = (group->n > 1 ? g->n_buckets : 0) + 1;
    group->posted = group->n_done = 0;
    group->first = group->next;
    group->passed = group->broken = false;
    group->began_ns = hth_now_ns();
    memset(group->done, 0, group->n_parts * sizeof *group->done);
    memset(group->memory->end, 0, sizeof group->memory->end);
    return HTH_GROUP_ROUND;
}

static hth_group_turn ranks_gather(ranks *group, hth_group_round *round)
{
    round->step = group->step;
    if (!group->asked && rank(group) == HTH_GROUP_LEAD) {
        return HTH_GROUP_LEADS;
    }
    if (!group->asked) {
        ranks_ask(group, HTH_SUM_BROADCAST, &group->memory->plan, sizeof(ranks_plan));
    }
    return group->answered ? ranks_round(group, round) : HTH_GROUP_WAITS;
}

static hth_group_result ranks_look(hth_group *base);

static hth_group_turn ranks_begin(hth_group *base, hth_group_round *round)
{
    ranks *group = ranks_of(base);
    ranks_hear(group);
    if (group->phase == RANKS_JOINS && !group->asked) {
        ranks_join(group);
    }
    if (group->phase == RANKS_JOINS && group->answered) {
        hth_err err = ranks_agree(group);
        group->asked = group->answered = false;
        if (err != HTH_OK) {
            ranks_lost(group, err);
        }
    }
    switch (group->phase) {
    case RANKS_STATE:
        return ranks_state(group, round);
    case RANKS_GATHERS:
        return ranks_gather(group, round);
    case RANKS_WORKS: // this rank takes no part any more; the others learn it in the end
        (void)ranks_look(base);
        return HTH_GROUP_WAITS;
    case RANKS_OVER:
        return HTH_GROUP_OVER;
    default:
        return HTH_GROUP_WAITS;
    }
}

static void *ranks_get_state(hth_group *base)
{
    return base->state;
}

static void ranks_gave(hth_group *base)
{
    ranks_of(base)->given = true;
}

static void ranks_took(hth_group *base)
{
    ranks_next(ranks_of(base), RANKS_GATHERS);
}

static hth_err ranks_over(hth_group *base)
{
    const ranks *group = ranks_of(base);
    if (group->err != HTH_OK) {
        return hth_fail(group->err, "%s", group->why);
    }
    return group->step >= base->spec.steps
               ? HTH_OK
               : hth_fail(HTH_ECANCELED, "rank 0 has ended the job after step %lld",
                          (long long)group->step);
}

static int ranks_seats(hth_group *base, hth_group_seat seat[HTH_GROUP_MEMBERS])
{
    const ranks *group = ranks_of(base);
    memcpy(seat, group->seat, sizeof group->seat);
    return group->n;
}

static bool ranks_start(hth_group *base, const int64_t shards[HTH_GROUP_MEMBERS])
{
    ranks *group = ranks_of(base);
    if (group->phase != RANKS_GATHERS || group->asked) {
        return false;
    }
    group->memory->plan = (ranks_plan){.step = group->step};
    memcpy(group->memory->plan.shards, shards, sizeof group->memory->plan.shards);
    ranks_ask(group, HTH_SUM_BROADCAST, &group->memory->plan, sizeof(ranks_plan));
    return group->asked;
}

// ---- a round

static bool ranks_alone(hth_group *base)
{
    return ranks_of(base)->n == 1;
}

static void ranks_weigh(hth_group *base, double weight)
{
    ranks *group = ranks_of(base);
    group->memory->end[rank(group)].weight = weight;
}

// A slot is handed in times what it weighs; what all weigh is known in the end.
static void ranks_ready(hth_group *base, int slot, const float *content)
{
    ranks *group = ranks_of(base);
    size_t at = base->at[slot], n = base->spec.floats[slot], end = at + n;
    float factor = (float)(base->spec.by_count[slot] ? (double)group->shards[rank(group)]
                                                     : group->memory->end[rank(group)].weight);
    for (size_t i = 0; i < n; i++) {
        base->area[at + i] = factor * content[i];
    }
    for (size_t to; at < end; at = to) {
        size_t bucket = at / EXCHANGE_BUCKET;
        to = (bucket + 1) * EXCHANGE_BUCKET < end ? (bucket + 1) * EXCHANGE_BUCKET : end;
        base->left[bucket] -= to - at;
    }
    ranks_post(group);
}

// ranks_nothing hands in zeros: the others' sums are theirs.
static void ranks_nothing(ranks *group)
{
    hth_group *g = &group->group;
    memset(g->area, 0, g->at[g->spec.n_slots] * sizeof *g->area);
    memset(g->left, 0, g->n_buckets * sizeof *g->left);
}

static void ranks_passed(hth_group *base, double loss, double sample_us)
{
    ranks *group = ranks_of(base);
    end_row *row = &group->memory->end[rank(group)];
    hth_group_seat *seat = &group->seat[rank(group)];
    if (group->shards[rank(group)] == 0) {
        ranks_nothing(group);
    }
    row->loss = row->weight > 0 ? row->weight * loss : 0;
    row->sample_us = sample_us > 0 ? sample_us : seat->sample_us;
    row->most = seat->most < INT64_MAX ? (double)seat->most : 0;
    group->passed = true;
    ranks_post(group);
}

static void ranks_most(hth_group *base, int64_t most)
{
    ranks *group = ranks_of(base);
    group->seat[rank(group)].most = most;
    ranks_nothing(group);
    group->memory->end[rank(group)] = (end_row){
        .broken = 1, .most = (double)most, .sample_us = group->seat[rank(group)].sample_us};
    group->passed = true;
    ranks_post(group);
}

// Sums become means, by what all ranks weigh.
static void ranks_scale(ranks *group, double weight)
{
    hth_group *g = &group->group;
    double count = 0;
    for (int i = 0; i < group->n; i++) {
        count += (double)group->shards[i];
    }
    for (int i = 0; i < g->spec.n_slots && group->n > 1; i++) {
        double by = g->spec.by_count[i] ? count : weight;
        float factor = by > 0 ? (float)(1 / by) : 0;
        float *sum = g->area + g->at[i];
        for (size_t k = 0; k < g->spec.floats[i]; k++) {
            sum[k] *= factor;
        }
    }
}

// ranks_end reads what all ranks have said in the end; false: one of them could not take its shard.
static bool ranks_end(ranks *group)
{
    double weight = 0, loss = 0;
    bool whole = true;
    for (int i = 0; i < group->n; i++) {
        const end_row *row = &group->memory->end[i];
        hth_group_seat *seat = &group->seat[i];
        seat->sample_us = row->sample_us > 0 ? row->sample_us : seat->sample_us;
        seat->most = row->most >= 1 && row->most < 1e15 ? (int64_t)row->most : seat->most;
        whole = whole && row->broken == 0;
        weight += row->weight;
        loss += row->loss;
    }
    if (whole) {
        ranks_scale(group, weight);
        group->group.losses[group->step] = (group_loss){
            weight > 0 ? loss / weight : 0, (double)(hth_now_ns() - group->began_ns) / 1e6};
        group->step++;
    }
    return whole;
}

static hth_group_result ranks_look(hth_group *base)
{
    ranks *group = ranks_of(base);
    ranks_hear(group);
    if (group->phase != RANKS_WORKS || group->broken) {
        return HTH_GROUP_BROKEN;
    }
    ranks_post(group);
    if (group->n_done < group->n_parts) {
        return group->phase == RANKS_WORKS ? HTH_GROUP_SUMMING : HTH_GROUP_BROKEN;
    }
    ranks_next(group, RANKS_GATHERS);
    return ranks_end(group) ? HTH_GROUP_SUMMED : HTH_GROUP_BROKEN;
}

static void ranks_advance(hth_group *base)
{
    ranks *group = ranks_of(base);
    ranks_hear(group);
    if (group->phase == RANKS_WORKS) {
        ranks_post(group);
    }
}

static const float *ranks_summed(const hth_group *base, int slot)
{
    return base->area + base->at[slot];
}

static double ranks_loss(const hth_group *base, int64_t step, double *ms)
{
    *ms = base->losses[step].ms;
    return base->losses[step].loss;
}

static void ranks_wait(hth_group *base, uint64_t ns);

// A rank breaks a round only to leave. If the others may have all that they need, the step may be
// certain: that is waited for. Otherwise they have not, and go no further.
static void ranks_break(hth_group *base)
{
    ranks *group = ranks_of(base);
    uint64_t until_ns = hth_now_ns() + RANKS_BREAK_NS;
    while (group->phase == RANKS_WORKS && group->posted == group->n_parts &&
           group->n_done < group->n_parts && hth_now_ns() < until_ns) {
        ranks_wait(base, 1000000);
        ranks_hear(group);
    }
    group->broken = group->phase == RANKS_WORKS && group->n_done < group->n_parts;
}

static void ranks_wait(hth_group *base, uint64_t ns)
{
    ranks *group = ranks_of(base);
    if (group->err == HTH_OK) {
        hth_sum_link_wait(group->link, ns);
    }
}

// ---- lifetime

// ranks_bye tells the client that its part is over, and where this is the lead, that of all: the
// others find so in the plan that they wait for.
static void ranks_bye(ranks *group)
{
    bool lead = rank(group) == HTH_GROUP_LEAD;
    if (lead && group->phase == RANKS_GATHERS && !group->asked) {
        group->memory->plan = (ranks_plan){.step = group->step, .stops = 1};
        ranks_ask(group, HTH_SUM_BROADCAST, &group->memory->plan, sizeof(ranks_plan));
        group->stopped = group->asked;
    }
    hth_sum_message m = {.what = HTH_SUM_BYE, .count = group->stopped};
    (void)hth_sum_link_send(group->link, &m, -1);
}

static void ranks_leave(hth_group *base)
{
    ranks *group = ranks_of(base);
    if (group->memory != NULL && group->err == HTH_OK) {
        ranks_bye(group);
    }
    hth_memfd_drop(group->link, group->memory, base->mapped_bytes);
    hth_free(base->losses);
    hth_free(group->done);
    group_arrays_free(base);
    hth_free(group);
}

static hth_err ranks_memory_make(ranks *group)
{
    hth_group *g = &group->group;
    size_t floats = g->at[g->spec.n_slots], state = group_pages(sizeof(ranks_memory));
    size_t area = state + group_pages(g->spec.state_bytes);
    void *memory;
    int fd;
    g->mapped_bytes = area + group_pages(floats * sizeof(float));
    HTH_TRY(hth_memfd_make("hearth-rank", g->mapped_bytes, &fd, &memory));
    group->memory = memory;
    g->state = (char *)memory + state;
    g->area = (float *)(void *)((char *)memory + area);
    hth_sum_message m = {.what = HTH_SUM_HELLO, .count = g->mapped_bytes};
    hth_err err = hth_sum_link_send(group->link, &m, fd);
    close(fd);
    return err == HTH_EBUSY ? hth_fail(HTH_EBUSY, "a rank's exchange is full") : err;
}

static hth_err ranks_open(ranks *group, const hth_group_spec *spec)
{
    hth_group *g = &group->group;
    HTH_TRY(group_arrays(g, spec));
    g->losses = hth_calloc((size_t)spec->steps + 1, sizeof *g->losses);
    group->done = hth_calloc(g->n_buckets + 1, sizeof *group->done);
    if (g->losses == NULL || group->done == NULL) {
        return hth_no_memory("a group's exchange");
    }
    for (int i = 0; i < group->n; i++) {
        group->seat[i] = (hth_group_seat){.joined = true, .most = INT64_MAX};
    }
    return ranks_memory_make(group);
}

hth_err hth_group_join_ranks(int link, int n, const hth_group_spec *spec, hth_group **out)
{
    *out = NULL;
    ranks *group = hth_calloc(1, sizeof *group);
    if (group == NULL) {
        return hth_no_memory("a group's exchange");
    }
    group->group.ops = &group_ranks_ops;
    group->link = link;
    group->n = n;
    bool good = n >= 1 && n <= HTH_GROUP_MEMBERS && spec->member >= 0 && spec->member < n &&
                spec->steps >= 0 && spec->steps < INT32_MAX;
    hth_err err = good ? ranks_open(group, spec)
                       : hth_fail(HTH_EINVAL, "there is no rank %d of %d; a group has at most %d",
                                  spec->member, n, HTH_GROUP_MEMBERS);
    if (err != HTH_OK) {
        group->link = -1; // stays the caller's
        group->err = err;
        ranks_leave(&group->group);
        return err;
    }
    *out = &group->group;
    return HTH_OK;
}

const group_ops group_ranks_ops = {
    .leave = ranks_leave,
    .begin = ranks_begin,
    .state = ranks_get_state,
    .gave = ranks_gave,
    .took = ranks_took,
    .over = ranks_over,
    .seats = ranks_seats,
    .start = ranks_start,
    .most = ranks_most,
    .alone = ranks_alone,
    .weigh = ranks_weigh,
    .ready = ranks_ready,
    .advance = ranks_advance,
    .passed = ranks_passed,
    .look = ranks_look,
    .summed = ranks_summed,
    .loss = ranks_loss,
    .break_round = ranks_break,
    .wait = ranks_wait,
};
