// SPDX-License-Identifier: Apache-2.0
// What a lead leaves in the region for others, and for the lead that comes after it: which shards
// steps had, and the budget that all plan for.
#include "group/group_impl.h"

#include <stdio.h>
#include <string.h>

// Rows of steps that come again are of no use any more.
static void notes_cut(group_region *region, const hth_group_note *notes, int64_t step)
{
    uint64_t n = region->n_notes;
    while (n > 0 && notes[n - 1].step >= step) {
        n--;
    }
    group_write(&region->n_notes, n);
}

void region_note(hth_group *group, int64_t step, const int64_t shards[HTH_GROUP_MEMBERS])
{
    group_region *r = group->region;
    notes_cut(r, group->notes, step);
    if (r->n_notes < group_most_notes(group->spec.steps)) {
        hth_group_note *to = &group->notes[r->n_notes];
        to->step = step;
        memcpy(to->shards, shards, sizeof to->shards);
        group_write(&r->n_notes, r->n_notes + 1);
    }
}

size_t region_notes(hth_group *group, int64_t step, const hth_group_note **notes)
{
    group_region *r = group->region;
    size_t most = group_most_notes(group->spec.steps);
    *notes = group->notes;
    r->n_notes = r->n_notes < most ? r->n_notes : most;
    notes_cut(r, group->notes, step);
    return r->n_notes;
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
