// SPDX-License-Identifier: Apache-2.0
// Small vectors that are summed in the middle of a pass. Every member sums all of them itself:
// dividing the work would have each wait twice. Nobody overwrites what another one may still read:
// a vector is handed in once in a round, and no round with shares begins before all have arrived
// for it (round_overlaps in engine/train/train_round.c).
#include "group/group_impl.h"

#include <string.h>

static size_t share_doubles(const hth_group *group, int share)
{
    return group->begins[share + 1] - group->begins[share];
}

static double *share_of(const hth_group *group, int member, int share)
{
    size_t all = group->begins[group->spec.n_shares];
    return group->shares + (size_t)member * all + group->begins[share];
}

static _Atomic uint32_t *share_given(const hth_group *group, int member, int share)
{
    return group->given + (size_t)member * (size_t)group->spec.n_shares + share;
}

void region_share(hth_group *group, int share, const double *values)
{
    int member = group->spec.member;
    if (atomic_load(share_given(group, member, share)) == (uint32_t)group->round) {
        return; // others may be reading it
    }
    memcpy(share_of(group, member, share), values, share_doubles(group, share) * sizeof *values);
    atomic_store_explicit(share_given(group, member, share), (uint32_t)group->round,
                          memory_order_release);
    group_wake(group->region);
}

static bool share_complete(const hth_group *group, int share)
{
    const group_region *r = group->region;
    for (int i = 0; i < group->members; i++) {
        if (group_counts(r, i) &&
            atomic_load_explicit(share_given(group, i, share), memory_order_acquire) !=
                (uint32_t)group->round) {
            return false;
        }
    }
    return true;
}

static void share_sum(const hth_group *group, int share, double *sum)
{
    const group_region *r = group->region;
    size_t n = share_doubles(group, share);
    memset(sum, 0, n * sizeof *sum);
    for (int i = 0; i < group->members; i++) {
        const double *from = share_of(group, i, share);
        for (size_t k = 0; group_counts(r, i) && k < n; k++) {
            sum[k] += from[k];
        }
    }
}

hth_group_result region_shared(hth_group *group, int share, double *sum)
{
    const group_region *r = group->region;
    group->seen = atomic_load(&r->event); // before what is looked at: it may change meanwhile
    if (share_complete(group, share)) {
        share_sum(group, share, sum);
        return HTH_GROUP_SUMMED;
    }
    group_lock(group);
    bool broken = r->round != group->round || r->broken == r->round;
    group_unlock(group, false);
    return broken ? HTH_GROUP_BROKEN : HTH_GROUP_SUMMING;
}
