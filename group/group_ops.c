// SPDX-License-Identifier: Apache-2.0
// The calls of group.h, by how the members of a group exchange.
#include "group/group_impl.h"

#include "base/clock.h"

#define IDLE_NS         1000000u
#define IDLE_LONG_NS    200000000u // without news
#define IDLE_RELAXED_NS 10000000u

void hth_group_leave(hth_group *group)
{
    if (group != NULL) {
        group->ops->leave(group);
    }
}

hth_group_turn hth_group_begin(hth_group *group, hth_group_round *round)
{
    return group->ops->begin(group, round);
}

void *hth_group_state(hth_group *group)
{
    return group->ops->state(group);
}

void hth_group_gave(hth_group *group)
{
    group->ops->gave(group);
}

void hth_group_took(hth_group *group)
{
    group->ops->took(group);
}

bool hth_group_parks(hth_group *group)
{
    return group->ops->parks != NULL && group->ops->parks(group);
}

hth_err hth_group_over(hth_group *group)
{
    return group->ops->over(group);
}

int hth_group_seats(hth_group *group, hth_group_seat seat[HTH_GROUP_MEMBERS])
{
    return group->ops->seats(group, seat);
}

bool hth_group_start(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS])
{
    return group->ops->start(group, shards);
}

void hth_group_most(hth_group *group, int64_t most)
{
    group->ops->most(group, most);
}

bool hth_group_awaits(hth_group *group)
{
    return group->ops->awaits != NULL && group->ops->awaits(group);
}

void hth_group_noted(hth_group *group, int64_t step, const int64_t shards[HTH_GROUP_MEMBERS])
{
    if (group->ops->note != NULL) {
        group->ops->note(group, step, shards);
    }
}

size_t hth_group_notes(hth_group *group, int64_t step, const hth_group_note **notes)
{
    return group->ops->notes != NULL ? group->ops->notes(group, step, notes) : 0;
}

void hth_group_plan_for(hth_group *group, const char *budget)
{
    if (group->ops->plan_for != NULL) {
        group->ops->plan_for(group, budget);
    }
}

bool hth_group_planned_for(hth_group *group, char budget[HTH_GROUP_BUDGET])
{
    return group->ops->planned_for != NULL && group->ops->planned_for(group, budget);
}

bool hth_group_alone(hth_group *group)
{
    return group->ops->alone(group);
}

void hth_group_weigh(hth_group *group, double weight, double divisor)
{
    group->ops->weigh(group, weight, divisor);
}

float *hth_group_place(hth_group *group, int slot)
{
    return group->ops->place != NULL ? group->ops->place(group, slot) : NULL;
}

void hth_group_ready(hth_group *group, int slot, const float *content)
{
    group->ops->ready(group, slot, content);
}

void hth_group_advance(hth_group *group)
{
    if (group->ops->advance != NULL) {
        group->ops->advance(group);
    }
}

void hth_group_share(hth_group *group, int share, const double *values)
{
    group->ops->share(group, share, values);
}

hth_group_result hth_group_shared(hth_group *group, int share, double *sum)
{
    return group->ops->shared(group, share, sum);
}

void hth_group_passed(hth_group *group, double loss, double sample_us, double fixed_us)
{
    group->ops->passed(group, loss, sample_us, fixed_us);
}

hth_group_result hth_group_look(hth_group *group)
{
    return group->ops->look(group);
}

const float *hth_group_summed(const hth_group *group, int slot)
{
    return group->ops->summed(group, slot);
}

double hth_group_factor(const hth_group *group)
{
    return group->ops->factor != NULL ? group->ops->factor(group) : 1;
}

double hth_group_loss(const hth_group *group, int64_t step, double *ms)
{
    return group->ops->loss(group, step, ms);
}

void hth_group_break(hth_group *group)
{
    group->ops->break_round(group);
}

void hth_group_wait(hth_group *group, uint64_t ns)
{
    group->ops->wait(group, ns);
}

void hth_group_idle(hth_group *group, uint64_t since_ns)
{
    bool relaxed = hth_now_ns() - since_ns > IDLE_LONG_NS;
    hth_group_wait(group, relaxed ? IDLE_RELAXED_NS : IDLE_NS);
}
