// SPDX-License-Identifier: Apache-2.0
// What a lead leaves in the region for others, and for the lead that comes after it: which shards
// steps had, and the budget that all plan for.
#include "group/group_impl.h"

#include <stdio.h>
#include <string.h>

// notes_read returns how many notes there are: never more than there is place for, even if another
// process has overwritten the number. It is read once, and counts as it was read.
static size_t notes_read(const hth_group *group)
{
    uint64_t n = *(const volatile uint64_t *)&group->region->n_notes;
    size_t most = group_most_notes(group->spec.steps);
    return n < most ? (size_t)n : most;
}

// notes_cut returns how many notes are left. Rows of steps that come again are of no use any more.
static size_t notes_cut(hth_group *group, int64_t step)
{
    size_t n = notes_read(group);
    while (n > 0 && group->notes[n - 1].step >= step) {
        n--;
    }
    group_write(&group->region->n_notes, n);
    return n;
}

void region_note(hth_group *group, int64_t step, const int64_t shards[HTH_GROUP_MEMBERS])
{
    size_t n = notes_cut(group, step);
    if (n < group_most_notes(group->spec.steps)) {
        hth_group_note *to = &group->notes[n];
        to->step = step;
        memcpy(to->shards, shards, sizeof to->shards);
        group_write(&group->region->n_notes, n + 1);
    }
}

size_t region_notes(hth_group *group, int64_t step, const hth_group_note **notes)
{
    *notes = group->notes;
    return notes_cut(group, step);
}

void region_plan_for(hth_group *group, const char *budget)
{
    group_region *r = group->region;
    group_lock(group);
    bool changes = strncmp(r->budget, budget, sizeof r->budget) != 0;
    snprintf(r->budget, sizeof r->budget, "%s", budget);
    r->budgets += changes;
    group->budgets = r->budgets;
    group_unlock(group, changes);
}

bool region_planned_for(hth_group *group, char budget[HTH_GROUP_BUDGET])
{
    group_region *r = group->region;
    group_lock(group);
    bool changed = group->budgets != r->budgets;
    group->budgets = r->budgets;
    memcpy(budget, r->budget, HTH_GROUP_BUDGET);
    budget[HTH_GROUP_BUDGET - 1] = 0;
    group_unlock(group, false);
    return changed;
}
