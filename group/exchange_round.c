// SPDX-License-Identifier: Apache-2.0
// Rounds of a group.
//
//   gather --start--> at work --last segment summed--> committed --> gather
//                        |
//                        +--a member leaves or dies--> broken --> gather
#include "group/exchange_impl.h"

#include "base/clock.h"

#include <string.h>

static bool present(const exchange_region *region, int member)
{
    return region->seat[member].joined != 0;
}

// The first who has the group's state; -1: nobody there has it.
static int holder(const exchange_region *region)
{
    for (int i = 0; i < (int)region->members; i++) {
        if (present(region, i) && region->seat[i].holds) {
            return i;
        }
    }
    return -1;
}

static bool somebody_lacks(const exchange_region *region)
{
    for (int i = 0; i < (int)region->members; i++) {
        if (present(region, i) && !region->seat[i].holds) {
            return true;
        }
    }
    return false;
}

// all_there: at first all that the group was made for; later those that are left, and the lead.
static bool all_there(const exchange_region *region)
{
    bool all = present(region, HTH_EXCHANGE_LEAD);
    for (int i = 0; i < (int)region->members; i++) {
        const exchange_seat *seat = &region->seat[i];
        all = all && (present(region, i) ? seat->holds && seat->arrived == region->round + 1
                                         : region->committed > 0);
    }
    return all;
}

// settle gives those that came with the right state their due: all begin with the same one. Where
// nobody is left who has it the lead's counts, wherever that stands.
static void settle(exchange_region *region, exchange_seat *seat)
{
    exchange_seat *lead = &region->seat[HTH_EXCHANGE_LEAD];
    if (seat == lead && holder(region) < 0) {
        uint64_t next = region->round + 1;
        region->broken = next;
        region->step = seat->at;
        region->round = next;
        seat->holds = 1;
    }
    for (int i = 0; i < (int)region->members && region->committed == 0; i++) {
        bool begins = present(region, i) && lead->joined && lead->holds;
        region->seat[i].holds |= begins && region->seat[i].at == region->step;
    }
}

static hth_exchange_turn gather(hth_exchange *exchange, hth_exchange_round *round)
{
    exchange_region *r = exchange->region;
    exchange_seat *seat = exchange->seat;
    settle(r, seat);
    seat->arrived = r->round + 1;
    round->step = exchange_step(r);
    if (!seat->holds) {
        return r->given == r->round + 1 ? HTH_EXCHANGE_TAKES : HTH_EXCHANGE_WAITS;
    }
    if (somebody_lacks(r)) {
        bool gives = holder(r) == exchange->spec.member && r->given != r->round + 1;
        return gives ? HTH_EXCHANGE_GIVES : HTH_EXCHANGE_WAITS;
    }
    return seat == &r->seat[HTH_EXCHANGE_LEAD] && all_there(r) ? HTH_EXCHANGE_LEADS
                                                               : HTH_EXCHANGE_WAITS;
}

// join_in takes part in the round at work; false: its shards make no sense.
static bool join_in(hth_exchange *exchange, hth_exchange_round *round)
{
    const exchange_region *r = exchange->region;
    int64_t left = exchange->spec.batch;
    *round = (hth_exchange_round){.step = r->step};
    for (int i = 0; i < (int)r->members; i++) {
        int64_t n = r->shards[i];
        if (n < 0 || n > left) {
            return false;
        }
        round->from += i < exchange->spec.member ? n : 0;
        round->shards[i] = n;
        left -= n;
    }
    round->n = round->shards[exchange->spec.member];
    exchange->round = r->round;
    exchange_sum_begin(exchange);
    return round->step >= 0 && round->step < exchange->spec.steps;
}

hth_exchange_turn hth_exchange_begin(hth_exchange *exchange, hth_exchange_round *round)
{
    exchange_region *r = exchange->region;
    hth_exchange_turn turn = HTH_EXCHANGE_WAITS;
    exchange_lock(exchange);
    exchange_seat before = *exchange->seat;
    if (r->closed) {
        turn = HTH_EXCHANGE_OVER;
    } else if (!exchange_at_work(r)) {
        turn = gather(exchange, round);
    } else if ((r->taking >> exchange->spec.member & 1) != 0 && exchange->round != r->round) {
        turn = join_in(exchange, round) ? HTH_EXCHANGE_ROUND : HTH_EXCHANGE_OVER;
    }
    bool changed =
        before.arrived != exchange->seat->arrived || before.holds != exchange->seat->holds;
    exchange_unlock(exchange, changed);
    return turn;
}

void *hth_exchange_state(hth_exchange *exchange)
{
    return exchange->state;
}

void hth_exchange_gave(hth_exchange *exchange)
{
    exchange_lock(exchange);
    exchange->region->given = exchange->region->round + 1;
    exchange_unlock(exchange, true);
}

// What was read is the group's state if no round began meanwhile: none does while a member lacks
// it, but the one who gave it and all others may have gone.
void hth_exchange_took(hth_exchange *exchange)
{
    exchange_region *r = exchange->region;
    exchange_lock(exchange);
    exchange->seat->holds = r->given == r->round + 1;
    exchange->seat->at = exchange_step(r);
    exchange_unlock(exchange, true);
}

int hth_exchange_seats(hth_exchange *exchange, hth_exchange_seat seat[HTH_GROUP_MEMBERS])
{
    exchange_lock(exchange);
    int members = (int)exchange->region->members;
    for (int i = 0; i < members; i++) {
        const exchange_seat *s = &exchange->region->seat[i];
        seat[i] = (hth_exchange_seat){
            .joined = s->joined != 0, .sample_us = s->sample_us, .most = s->most};
    }
    exchange_unlock(exchange, false);
    return members;
}

bool hth_exchange_start(hth_exchange *exchange, const int64_t shards[HTH_GROUP_MEMBERS])
{
    exchange_region *r = exchange->region;
    exchange_lock(exchange);
    bool starts = !r->closed && !exchange_at_work(r) && !somebody_lacks(r) && all_there(r);
    for (int i = 0; starts && i < (int)r->members; i++) {
        starts = present(r, i) || shards[i] == 0;
    }
    if (starts) {
        r->step = exchange_step(r);
        r->taking = 0;
        r->began_ns = hth_now_ns();
        for (int i = 0; i < (int)r->members; i++) {
            r->taking |= (uint32_t)present(r, i) << i;
            r->shards[i] = shards[i];
        }
        r->round++;
    }
    exchange_unlock(exchange, starts);
    return starts;
}

void hth_exchange_break(hth_exchange *exchange)
{
    exchange_region *r = exchange->region;
    exchange_lock(exchange);
    bool breaks = exchange_at_work(r) && r->round == exchange->round;
    if (breaks) {
        r->broken = r->round;
    }
    exchange_unlock(exchange, breaks);
}

void hth_exchange_most(hth_exchange *exchange, int64_t most)
{
    exchange_lock(exchange);
    exchange->seat->most = most;
    exchange_unlock(exchange, false);
    hth_exchange_break(exchange);
}

void hth_exchange_passed(hth_exchange *exchange, double loss, double sample_us)
{
    exchange_lock(exchange);
    exchange->seat->loss = loss;
    exchange->seat->sample_us = sample_us > 0 ? sample_us : exchange->seat->sample_us;
    exchange_unlock(exchange, true);
}

// The loss of the whole batch: the members' means, by what they weigh.
static double round_loss(const exchange_region *region)
{
    double sum = 0, weight = 0;
    for (int i = 0; i < (int)region->members; i++) {
        if (region->shards[i] > 0 && region->seat[i].weight > 0) {
            sum += region->seat[i].weight * region->seat[i].loss;
            weight += region->seat[i].weight;
        }
    }
    return sum / weight;
}

// commit makes the round certain if all segments are summed.
static bool commit(hth_exchange *exchange)
{
    exchange_region *r = exchange->region;
    for (int i = 0; i < (int)r->members; i++) {
        if ((r->taking >> i & 1) != 0 && r->seat[i].summed != r->round) {
            return false;
        }
    }
    exchange->losses[r->step] =
        (exchange_loss){round_loss(r), (double)(hth_now_ns() - r->began_ns) / 1e6};
    r->committed = r->round;
    return true;
}

hth_exchange_result hth_exchange_look(hth_exchange *exchange)
{
    exchange_region *r = exchange->region;
    bool changed = false;
    exchange->seen = atomic_load(&r->event);
    uint32_t seen = exchange->seen; // before what is summed: a bucket may come meanwhile
    exchange_sum(exchange);
    exchange_lock(exchange);
    exchange->seen = seen;
    bool mine = r->round == exchange->round;
    if (mine && exchange_at_work(r) && exchange->n_left == 0) {
        changed = exchange->seat->summed != r->round;
        exchange->seat->summed = r->round;
        changed |= commit(exchange);
    }
    hth_exchange_result result = HTH_EXCHANGE_BROKEN;
    if (mine && r->committed == r->round) {
        result = HTH_EXCHANGE_SUMMED;
    } else if (mine && r->broken != r->round) {
        result = HTH_EXCHANGE_SUMMING;
    }
    exchange_unlock(exchange, changed);
    return result;
}

double hth_exchange_loss(const hth_exchange *exchange, int64_t step, double *ms)
{
    *ms = exchange->losses[step].ms;
    return exchange->losses[step].loss;
}
