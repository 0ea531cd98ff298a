// SPDX-License-Identifier: Apache-2.0
// A rank's part of a round: buckets go to its client as they are ready, in one order on all ranks,
// and in the end what its samples weigh.
#include "group/ranks_impl.h"

#include "base/clock.h"

#include <string.h>

#define RANKS_BREAK_NS 5000000u // for which a round that may be certain is waited for

// ---- what goes to the client

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

void ranks_round_begin(ranks *group)
{
    hth_group *g = &group->group;
    ranks_next(group, RANKS_WORKS);
    group_sum_begin(g);
    group->n_parts = (group->n > 1 ? g->n_buckets : 0) + 1;
    group->posted = group->n_done = 0;
    group->first = group->next;
    group->passed = group->broken = false;
    group->divisor = 0;
    group->began_ns = hth_now_ns();
    memset(group->done, 0, group->n_parts * sizeof *group->done);
    memset(group->memory->end, 0, sizeof group->memory->end);
}

// ---- a round

bool ranks_alone(hth_group *base)
{
    return ranks_of(base)->n == 1;
}

void ranks_weigh(hth_group *base, double weight, double divisor)
{
    ranks *group = ranks_of(base);
    group->memory->end[ranks_self(group)].weight = weight;
    group->divisor = divisor;
}

// The lead's samples, which all ranks know: where nothing but samples weighs, and even shards, each
// rank's gradients are handed in as they are.
static double ranks_unit(const ranks *group)
{
    return group->shards[HTH_GROUP_LEAD] > 0 ? (double)group->shards[HTH_GROUP_LEAD] : 1;
}

float *ranks_place(hth_group *base, int slot)
{
    return base->area + base->at[slot];
}

// A slot is handed in times what it was divided by; what all weigh is known in the end.
void ranks_ready(hth_group *base, int slot, const float *content)
{
    ranks *group = ranks_of(base);
    float *place = ranks_place(base, slot);
    size_t at = base->at[slot], n = base->spec.floats[slot], end = at + n;
    double weight =
        base->spec.by_count[slot] ? (double)group->shards[ranks_self(group)] : group->divisor;
    float factor = (float)(weight / ranks_unit(group));
    bool there = content == place && factor == 1;
    for (size_t i = 0; i < n && !there; i++) {
        place[i] = factor * content[i];
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

void ranks_passed(hth_group *base, double loss, double sample_us, double fixed_us)
{
    ranks *group = ranks_of(base);
    end_row *row = &group->memory->end[ranks_self(group)];
    hth_group_seat *seat = &group->seat[ranks_self(group)];
    if (group->shards[ranks_self(group)] == 0) {
        ranks_nothing(group);
    }
    row->loss = group->divisor > 0 ? group->divisor * loss : 0;
    row->sample_us = sample_us > 0 ? sample_us : seat->sample_us;
    row->fixed_us = sample_us > 0 ? fixed_us : seat->fixed_us;
    row->most = seat->most < INT64_MAX ? (double)seat->most : 0;
    group->passed = true;
    ranks_post(group);
}

void ranks_most(hth_group *base, int64_t most)
{
    ranks *group = ranks_of(base);
    hth_group_seat *seat = &group->seat[ranks_self(group)];
    seat->most = most;
    ranks_nothing(group);
    group->memory->end[ranks_self(group)] = (end_row){.broken = 1,
                                                      .most = (double)most,
                                                      .sample_us = seat->sample_us,
                                                      .fixed_us = seat->fixed_us};
    group->passed = true;
    ranks_post(group);
}

// Sums of slots that are by_count become means here; gradients do when the update reads them.
static void ranks_scale(ranks *group, double weight)
{
    hth_group *g = &group->group;
    double count = 0;
    for (int i = 0; i < group->n; i++) {
        count += (double)group->shards[i];
    }
    float factor = (float)(ranks_unit(group) / count);
    for (int i = 0; i < g->spec.n_slots && group->n > 1; i++) {
        float *sum = g->area + g->at[i];
        size_t floats = g->spec.by_count[i] ? g->spec.floats[i] : 0;
        for (size_t k = 0; k < floats; k++) {
            sum[k] *= factor;
        }
    }
    group->factor = weight > 0 ? ranks_unit(group) / weight : 0;
}

// ranks_end reads what all ranks have said in the end; false: one of them could not take its shard.
static bool ranks_end(ranks *group)
{
    double weight = 0, loss = 0;
    bool whole = true;
    for (int i = 0; i < group->n; i++) {
        const end_row *row = &group->memory->end[i];
        hth_group_seat *seat = &group->seat[i];
        seat->fixed_us = row->sample_us > 0 ? row->fixed_us : seat->fixed_us;
        seat->sample_us = row->sample_us > 0 ? row->sample_us : seat->sample_us;
        seat->most = row->most >= 1 && row->most < 1e15 ? (int64_t)row->most : seat->most;
        whole = whole && row->broken == 0;
        weight += row->weight;
        loss += row->loss;
    }
    if (whole) {
        ranks_scale(group, weight);
        group->group.losses[group->step] =
            (group_loss){weight > 0 ? loss / weight : 0, // nothing weighs: no loss
                         (double)(hth_now_ns() - group->began_ns) / 1e6};
        group->step++;
        group->lacks = group->group.spec.server && group->n > 1;
        group->given = false;
    }
    return whole;
}

hth_group_result ranks_look(hth_group *base)
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

void ranks_advance(hth_group *base)
{
    ranks *group = ranks_of(base);
    ranks_hear(group);
    if (group->phase == RANKS_WORKS) {
        ranks_post(group);
    }
}

const float *ranks_summed(const hth_group *base, int slot)
{
    return base->area + base->at[slot];
}

double ranks_factor(const hth_group *base)
{
    return ((const ranks *)(const void *)base)->factor;
}

double ranks_loss(const hth_group *base, int64_t step, double *ms)
{
    *ms = base->losses[step].ms;
    return base->losses[step].loss;
}

// A rank breaks a round to leave. If the others may have all that they need, the step may be
// certain: that is waited for, but not for long, for this is its device's engine, and a client need
// not answer. They are one step ahead then, and begin again from where the lead's checkpoint is. If
// the rank does not leave after all, it has ended: the others' sums have, or lack, its part.
void ranks_break(hth_group *base)
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

void ranks_wait(hth_group *base, uint64_t ns)
{
    ranks *group = ranks_of(base);
    if (group->err == HTH_OK) {
        hth_sum_link_wait(group->link, ns);
    }
}
