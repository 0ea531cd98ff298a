// SPDX-License-Identifier: Apache-2.0
// A member that is a rank: the others are jobs of other servers, and what crosses goes through the
// client of each. There is one kind of step for a client: sum this over all ranks, in place, or
// make it what it is on one rank. Everything else follows from such sums, so that all ranks decide
// alike:
//
//   join (who are you) -> [the lead's state] -> plan (its shards) -> buckets, end -> plan
//
// A parameter server's state goes to the others after the plan of the next round: who leaves
// between two rounds says so there, and nobody waits for its state.
//
// A vector in which each rank has a row of its own, the others' being 0, is after the sum what all
// ranks have said.
#include "group/ranks_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/ipc/memfd.h"
#include "base/ipc/sum_link.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// ---- what goes to the client

// ranks_lost notes the first reason why nothing can be exchanged any more.
void ranks_lost(ranks *group, hth_err err)
{
    if (group->err == HTH_OK) {
        group->err = err;
        snprintf(group->why, sizeof group->why, "%s", hth_err_detail());
        group->phase = RANKS_OVER;
    }
}

hth_err ranks_send(ranks *group, hth_sum_what what, const void *at, size_t count)
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

void ranks_hear(ranks *group)
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
            err = hth_fail(HTH_EIO, "rank %d of %d: %s", ranks_self(group), group->n, m.text);
        } else if (err == HTH_OK && (m.what != HTH_SUM_DONE || !ranks_done(group, m.id))) {
            err = hth_fail(HTH_ECORRUPT, "the client of rank %d answered what it was not asked",
                           ranks_self(group));
        } else if (err == HTH_ECANCELED) {
            err = hth_fail(HTH_EIO,
                           "rank %d of %d has lost the client that sums for it: with --resume the "
                           "job goes on from its checkpoint",
                           ranks_self(group), group->n);
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
    join_row join[HTH_GROUP_MEMBERS]; // the client can change its own at any time
    memcpy(join, group->memory->join, sizeof join);
    const join_row *lead = &join[HTH_GROUP_LEAD];
    bool same = true;
    for (int i = 0; i < group->n; i++) {
        const join_row *row = &join[i];
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

void ranks_next(ranks *group, ranks_phase phase)
{
    group->phase = phase;
    group->asked = group->answered = false;
}

// ranks_stated: all have the lead's state. If its plan came before, that is what is next.
static void ranks_stated(ranks *group)
{
    ranks_next(group, RANKS_GATHERS);
    group->asked = group->answered = group->lacks;
    group->lacks = false;
}

static hth_group_turn ranks_state(ranks *group, hth_group_round *round)
{
    bool lead = ranks_self(group) == HTH_GROUP_LEAD;
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
    ranks_stated(group);
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
    const ranks_plan plan = group->memory->plan;
    if (plan.stops) {
        group->stopped = true;
        ranks_next(group, RANKS_OVER);
        return HTH_GROUP_OVER;
    }
    if (!plan_good(group, &plan)) {
        ranks_lost(group, hth_fail(HTH_ECORRUPT, "the shards that rank %d got make no sense",
                                   ranks_self(group)));
        return HTH_GROUP_OVER;
    }
    if (group->lacks) {
        ranks_next(group, RANKS_STATE);
        return ranks_state(group, round);
    }
    *round = (hth_group_round){.step = plan.step};
    memcpy(round->shards, plan.shards, sizeof round->shards);
    memcpy(group->shards, plan.shards, sizeof group->shards);
    for (int i = 0; i < ranks_self(group); i++) {
        round->from += plan.shards[i];
    }
    round->n = plan.shards[ranks_self(group)];
    ranks_round_begin(group);
    return HTH_GROUP_ROUND;
}

static hth_group_turn ranks_gather(ranks *group, hth_group_round *round)
{
    round->step = group->step;
    if (!group->asked && ranks_self(group) == HTH_GROUP_LEAD) {
        return HTH_GROUP_LEADS;
    }
    if (!group->asked) {
        ranks_ask(group, HTH_SUM_BROADCAST, &group->memory->plan, sizeof(ranks_plan));
    }
    return group->answered ? ranks_round(group, round) : HTH_GROUP_WAITS;
}

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
        if (group->broken) {
            ranks_lost(group, hth_fail(HTH_EIO,
                                       "rank %d of %d has left a step that the others make: with "
                                       "--resume the job goes on from its checkpoint",
                                       ranks_self(group), group->n));
            return HTH_GROUP_OVER;
        }
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
    ranks_stated(ranks_of(base));
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

// ---- lifetime

// ranks_bye tells the client that its part is over, and where this is the lead, that of all: the
// others find so in the plan that they wait for.
static void ranks_bye(ranks *group)
{
    bool lead = ranks_self(group) == HTH_GROUP_LEAD;
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
    HTH_TRY(group_steps_check(spec));
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
    bool good = n >= 1 && n <= HTH_GROUP_MEMBERS && spec->member >= 0 && spec->member < n;
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
    .place = ranks_place,
    .ready = ranks_ready,
    .advance = ranks_advance,
    .passed = ranks_passed,
    .look = ranks_look,
    .summed = ranks_summed,
    .factor = ranks_factor,
    .loss = ranks_loss,
    .break_round = ranks_break,
    .wait = ranks_wait,
};
