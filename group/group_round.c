// SPDX-License-Identifier: Apache-2.0
// Rounds of a group.
//
//   gather --start--> at work --last segment summed--> committed --> gather
//                        |
//                        +--a member leaves or dies--> broken --> gather
#include "group/group_impl.h"

#include "base/clock.h"

#include <string.h>

static bool present(const group_region *region, int member)
{
    return region->seat[member].joined != 0;
}

// The first who has the group's state; -1: nobody there has it.
static int holder(const group_region *region)
{
    for (int i = 0; i < group_members(region); i++) {
        if (present(region, i) && region->seat[i].holds) {
            return i;
        }
    }
    return -1;
}

static bool somebody_lacks(const group_region *region)
{
    for (int i = 0; i < group_members(region); i++) {
        if (present(region, i) && !region->seat[i].holds) {
            return true;
        }
    }
    return false;
}

// At first all that the group was made for are waited for; later the lead, and who comes again.
bool group_lacks(const group_region *region)
{
    bool lacks = !present(region, HTH_GROUP_LEAD);
    for (int i = 0; i < group_members(region); i++) {
        const group_seat *seat = &region->seat[i];
        bool waited = region->committed == 0 || seat->away || seat->awaited;
        lacks = lacks || (waited && !present(region, i));
    }
    return lacks;
}

// all_there: who is waited for is there, and all who are have arrived.
static bool all_there(const group_region *region)
{
    bool all = !group_lacks(region);
    for (int i = 0; i < group_members(region); i++) {
        const group_seat *seat = &region->seat[i];
        bool arrived = seat->holds && seat->arrived == region->round + 1;
        all = all && (arrived || !present(region, i));
    }
    return all;
}

// all_come tells whether all who are there take part in a round that begins now. A member that has
// not arrived may still be making the update of the round that was just committed. Nobody writes
// over the sums that it reads until it has handed in a bucket of the new round, so it has to have
// samples there.
static bool all_come(const group_region *region, const int64_t *shards)
{
    bool all = !group_lacks(region);
    bool updating = region->round > 0 && region->round == region->committed;
    for (int i = 0; i < group_members(region); i++) {
        const group_seat *seat = &region->seat[i];
        bool arrived = seat->arrived == region->round + 1;
        bool updates = updating && seat->summed == region->round && shards[i] > 0;
        all = all && ((seat->holds && (arrived || updates)) || !present(region, i));
    }
    return all;
}

// settle gives those that came with the right state their due: all begin with the same one. Where
// nobody is left who has it, nor left it there, the lead's counts, wherever that stands.
static void settle(group_region *region, group_seat *seat)
{
    group_seat *lead = &region->seat[HTH_GROUP_LEAD];
    bool parked = region->given == region->round + 1 && !region->server;
    if (seat == lead && holder(region) < 0 && !parked) {
        uint64_t next = region->round + 1;
        *group_before(region, next) = seat->at;
        group_write(&region->broken, next);
        group_write(&region->round, next);
        seat->holds = 1;
    }
    for (int i = 0; i < group_members(region) && region->committed == 0; i++) {
        bool begins = present(region, i) && lead->joined && lead->holds;
        region->seat[i].holds |= begins && region->seat[i].at == group_step(region);
    }
}

// state_of: a member's state is to be written or read.
static void state_of(hth_group *group, uint32_t member)
{
    group->giver = member < group->states ? member : 0;
}

static hth_group_turn gather(hth_group *group, hth_group_round *round)
{
    group_region *r = group->region;
    group_seat *seat = group->seat;
    settle(r, seat);
    seat->arrived = r->round + 1;
    round->step = group_step(r);
    if (round->step < 0 || round->step > group->spec.steps) {
        return HTH_GROUP_OVER;
    }
    if (!seat->holds) {
        group->takes = r->given;
        state_of(group, r->giver);
        return r->given == r->round + 1 ? HTH_GROUP_TAKES : HTH_GROUP_WAITS;
    }
    if (somebody_lacks(r)) {
        bool gives = holder(r) == group->spec.member && r->given != r->round + 1;
        group->gives = r->round + 1;
        state_of(group, (uint32_t)group->spec.member);
        return gives ? HTH_GROUP_GIVES : HTH_GROUP_WAITS;
    }
    return seat == &r->seat[HTH_GROUP_LEAD] && all_there(r) ? HTH_GROUP_LEADS : HTH_GROUP_WAITS;
}

// join_in takes part in the round at work; false: its step or its shards make no sense.
static bool join_in(hth_group *group, hth_group_round *round)
{
    group_region *r = group->region;
    int64_t left = group->spec.batch;
    *round = (hth_group_round){.step = group_step(r)};
    if (round->step < 0 || round->step >= group->spec.steps) {
        return false;
    }
    for (int i = 0; i < group->members; i++) {
        int64_t n = r->shards[i];
        if (n < 0 || n > left) {
            return false;
        }
        round->from += i < group->spec.member ? n : 0;
        round->shards[i] = n;
        left -= n;
    }
    round->n = round->shards[group->spec.member];
    group->round = r->round;
    group->step = round->step;
    group_sum_begin(group);
    group->alone = r->taking == (uint32_t)1 << group->spec.member;
    return true;
}

hth_group_turn region_begin(hth_group *group, hth_group_round *round)
{
    group_region *r = group->region;
    hth_group_turn turn = HTH_GROUP_WAITS;
    group->seen = atomic_load(&r->event);
    group_lock(group);
    group_seat before = *group->seat;
    if (r->closed) {
        turn = HTH_GROUP_OVER;
    } else if (!group_at_work(r)) {
        turn = gather(group, round);
    } else if ((r->taking >> group->spec.member & 1) != 0 && group->round != r->round) {
        turn = join_in(group, round) ? HTH_GROUP_ROUND : HTH_GROUP_OVER;
    }
    bool changed = before.arrived != group->seat->arrived || before.holds != group->seat->holds;
    group_unlock(group, changed);
    return turn;
}

void *region_state(hth_group *group)
{
    return (char *)group->state + group->giver * group_pages(group->spec.state_bytes);
}

// A server that has come meanwhile is where the group's state is now (settle).
void region_gave(hth_group *group)
{
    group_region *r = group->region;
    group_lock(group);
    bool counts = group->seat->holds && group->gives == r->round + 1;
    if (counts) {
        r->giver = (uint32_t)group->spec.member;
        r->given = r->round + 1;
    }
    group_unlock(group, counts);
}

// What was read is the group's state if no round began meanwhile: none does while a member lacks
// it, but the one who gave it and all others may have gone, and another one may have been given.
void region_took(hth_group *group)
{
    group_region *r = group->region;
    group_lock(group);
    group->seat->holds = r->given == r->round + 1 && r->given == group->takes;
    group->seat->at = group_step(r);
    group_unlock(group, true);
}

bool region_parks(hth_group *group)
{
    const group_region *r = group->region;
    group_lock(group);
    bool parks = r->committed > 0 && !r->closed && !r->server && !group_at_work(r) &&
                 group->seat->holds && r->given != r->round + 1;
    for (int i = 0; i < group->members; i++) {
        bool other = i != group->spec.member && present(r, i) && r->seat[i].holds;
        parks = parks && !other;
    }
    group->gives = r->round + 1;
    group_unlock(group, false);
    return parks;
}

int region_seats(hth_group *group, hth_group_seat seat[HTH_GROUP_MEMBERS])
{
    group_lock(group);
    for (int i = 0; i < group->members; i++) {
        const group_seat *s = &group->region->seat[i];
        seat[i] = (hth_group_seat){.joined = s->joined != 0,
                                   .sample_us = s->sample_us,
                                   .fixed_us = s->fixed_us,
                                   .most = s->most};
    }
    group_unlock(group, false);
    return group->members;
}

bool region_start(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS])
{
    group_region *r = group->region;
    group_lock(group);
    bool starts = !r->closed && !group_at_work(r) && !somebody_lacks(r) && all_come(r, shards);
    for (int i = 0; starts && i < group->members; i++) {
        starts = present(r, i) || shards[i] == 0;
    }
    if (starts) {
        *group_before(r, r->round + 1) = group_step(r);
        r->taking = 0;
        r->began_ns = hth_now_ns();
        for (int i = 0; i < group->members; i++) {
            r->taking |= (uint32_t)present(r, i) << i;
            r->shards[i] = shards[i];
        }
        group_write(&r->round, r->round + 1);
    }
    group_unlock(group, starts);
    return starts;
}

bool region_alone(hth_group *group)
{
    group->n_left = group->alone ? 0 : group->n_left;
    return group->alone;
}

void region_break(hth_group *group)
{
    group_region *r = group->region;
    group_lock(group);
    bool breaks = group_at_work(r) && r->round == group->round;
    if (breaks) {
        group_write(&r->broken, r->round);
    }
    group_unlock(group, breaks);
}

void region_most(hth_group *group, int64_t most)
{
    group_region *r = group->region;
    group_lock(group);
    bool more = most > group->seat->most;
    for (int i = 0; i < group->members && more; i++) {
        r->seat[i].awaited = false; // it may fit without them
    }
    group->seat->most = most;
    group_unlock(group, more);
    if (!more) {
        region_break(group);
    }
}

bool region_awaits(hth_group *group)
{
    group_region *r = group->region;
    bool any = false;
    group_lock(group);
    for (int i = 0; i < group->members; i++) {
        bool comes = !present(r, i) && !r->seat[i].gone;
        r->seat[i].awaited = comes;
        any = any || comes;
    }
    group_unlock(group, any);
    return any;
}

void region_passed(hth_group *group, double loss, double sample_us, double fixed_us)
{
    group->passed = true;
    group_lock(group);
    group->seat->loss = loss;
    group->seat->fixed_us = sample_us > 0 ? fixed_us : group->seat->fixed_us;
    group->seat->sample_us = sample_us > 0 ? sample_us : group->seat->sample_us;
    group_unlock(group, true);
}

// The loss of the whole batch: the members' sums, by what all weigh; 0 where nothing does.
static double round_loss(const group_region *region)
{
    double sum = 0, weight = 0;
    for (int i = 0; i < group_members(region); i++) {
        if (region->shards[i] > 0) {
            sum += region->seat[i].divisor * region->seat[i].loss;
            weight += region->seat[i].weight;
        }
    }
    return weight > 0 ? sum / weight : 0;
}

// commit makes the round certain if all segments are summed. Where the lead is a server the others
// lack from then on what that makes of the sums.
static bool commit(hth_group *group)
{
    group_region *r = group->region;
    for (int i = 0; i < group->members; i++) {
        if ((r->taking >> i & 1) != 0 && r->seat[i].summed != r->round) {
            return false;
        }
    }
    group->losses[group->step] =
        (group_loss){round_loss(r), (double)(hth_now_ns() - r->began_ns) / 1e6};
    for (int i = 0; i < group->members && r->server; i++) {
        r->seat[i].holds &= i == HTH_GROUP_LEAD;
    }
    group_write(&r->committed, r->round);
    return true;
}

hth_group_result region_look(hth_group *group)
{
    group_region *r = group->region;
    bool changed = false;
    group->seen = atomic_load(&r->event); // before what is summed: a bucket may come meanwhile
    group_sum(group, SIZE_MAX);
    group_lock(group);
    bool mine = r->round == group->round;
    if (mine && group_at_work(r) && group->passed && group->n_left == 0) {
        changed = group->seat->summed != r->round;
        group->seat->summed = r->round;
        changed |= commit(group);
    }
    hth_group_result result = HTH_GROUP_BROKEN;
    if (r->committed == group->round) { // the next one may have begun
        result = HTH_GROUP_SUMMED;
    } else if (mine && r->broken != r->round) {
        result = HTH_GROUP_SUMMING;
    }
    group_unlock(group, changed);
    return result;
}

double region_loss(const hth_group *group, int64_t step, double *ms)
{
    *ms = group->losses[step].ms;
    return group->losses[step].loss;
}
