// SPDX-License-Identifier: Apache-2.0
// Who computes which points. Before each iteration shards are cut so that all members would take as
// long as they did, by the time that a point took them last (group/shards.h), in grains: a thousand
// of them is as exact as times are. Passes of k-means++ are cut so, too, in whole chunks.
#include "engine/train/kmeans/kmeans_group.h"

#include "group/sequence.h"

#include <stdio.h>
#include <string.h>

#define SHARDS_GRAINS 512  // of all points, at least
#define SHARDS_GAIN   0.01 // of an iteration's time, for which shards change
#define SHARDS_TOLD   0.05 // .. and for which the job's log tells so

static int64_t shards_grain(int64_t n)
{
    int64_t grain = 1;
    while (n / (2 * grain) >= SHARDS_GRAINS) {
        grain *= 2;
    }
    return grain;
}

// ---- shards that are given

hth_err kmeans_shards_check(const kmeans_job *job)
{
    bool any = json_object_get(job->args, "shards") != NULL;
    return any && !job->spec.resume // one that goes on may have other devices by now
               ? hth_sequence_check(hth_sequence_given(job->args), kmeans_group_members(job),
                                    (int64_t)job->source.n)
               : HTH_OK;
}

// The shards that were given for an iteration; false: there are none that who is there can have.
static bool shards_replayed(const kmeans_job *job, const hth_shard_member *member,
                            int64_t n[HTH_GROUP_MEMBERS])
{
    int members = job->group->members;
    return hth_sequence_at(hth_sequence_given(job->args), members, (int64_t)job->at.iterations,
                           n) &&
           hth_shards_fit(member, members, (int64_t)job->source.n, n);
}

// ---- shards by times

// What each member can have; one whose time is not known is taken to be like the others.
static void shards_members(const kmeans_job *job, hth_shard_member member[HTH_GROUP_MEMBERS])
{
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    int members = hth_group_seats(job->group->exchange, seat), known = 0;
    double sum_us = 0;
    for (int i = 0; i < members; i++) {
        bool counts = seat[i].joined && seat[i].sample_us > 0;
        sum_us += counts ? seat[i].sample_us : 0;
        known += counts;
    }
    for (int i = 0; i < members; i++) {
        double us = known > 0 ? sum_us / known : 1;
        member[i] = (hth_shard_member){.sample_us = seat[i].sample_us > 0 ? seat[i].sample_us : us,
                                       .most = seat[i].joined ? (int64_t)job->source.n : 0};
    }
}

// Shards of equal times, of whole grains; what is left of the last one is the last member's.
static void shards_cut(const kmeans_job *job, const hth_shard_member *member, int64_t grain,
                       int64_t n[HTH_GROUP_MEMBERS])
{
    hth_shard_member coarse[HTH_GROUP_MEMBERS] = {{.least = 0}};
    int members = job->group->members, last = 0;
    int64_t all = (int64_t)job->source.n;
    for (int i = 0; i < members; i++) {
        bool there = member[i].most > 0;
        coarse[i] = (hth_shard_member){.sample_us = member[i].sample_us * (double)grain,
                                       .least = there && all / grain >= members,
                                       .most = there ? all / grain : 0};
        last = there ? i : last;
    }
    (void)hth_shards_solve(coarse, members, all / grain, n); // the lead can have them all
    for (int i = 0; i < members; i++) {
        n[i] *= grain;
    }
    n[last] += all % grain;
}

static void shards_even(const kmeans_job *job, const hth_shard_member *member,
                        int64_t n[HTH_GROUP_MEMBERS])
{
    hth_shard_member even[HTH_GROUP_MEMBERS] = {{.least = 0}};
    for (int i = 0; i < job->group->members; i++) {
        even[i] = member[i];
        even[i].sample_us = 1;
    }
    shards_cut(job, even, shards_grain((int64_t)job->source.n), n);
}

static void shards_tell(kmeans_job *job)
{
    char text[80 + 24 * HTH_GROUP_MEMBERS];
    int n = snprintf(text, sizeof text,
                     "points of each device from iteration %zu on:", job->at.iterations + 1);
    for (int i = 0; i < job->group->members; i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, " %lld", (long long)job->group->shards[i]);
    }
    kmeans_log(job, "info", text);
}

static void shards_decide(kmeans_job *job, const hth_shard_member *member)
{
    kmeans_group *group = job->group;
    int64_t n[HTH_GROUP_MEMBERS] = {0}, all = (int64_t)job->source.n;
    bool fits = hth_shards_fit(member, group->members, all, group->shards), told = true;
    if (!shards_replayed(job, member, n)) {
        shards_cut(job, member, shards_grain(all), n);
        double now = hth_shards_step_us(member, group->members, group->shards);
        double then = hth_shards_step_us(member, group->members, n);
        if (fits && then > (1 - SHARDS_GAIN) * now) {
            return;
        }
        told = !fits || then <= (1 - SHARDS_TOLD) * now;
    }
    if (memcmp(n, group->shards, sizeof n) != 0) {
        memcpy(group->shards, n, sizeof n);
        if (told) {
            shards_tell(job);
        }
    }
}

hth_err kmeans_shards_start(kmeans_job *job)
{
    kmeans_group *group = job->group;
    hth_shard_member member[HTH_GROUP_MEMBERS] = {{.least = 0}};
    int64_t n[HTH_GROUP_MEMBERS] = {0}, all = (int64_t)job->source.n;
    shards_members(job, member);
    if (job->at.phase == HTH_KMEANS_LOOKS) {
        shards_even(job, member, n);
    } else if (job->at.phase == HTH_KMEANS_SEEDS) {
        int64_t grain = shards_grain(all), chunk = HTH_KMEANS_CHUNK;
        shards_cut(job, member, grain > chunk ? grain : chunk, n);
    } else {
        bool fits = hth_shards_fit(member, group->members, all, group->shards);
        if (!fits || job->at.phase == HTH_KMEANS_ITERATES) {
            shards_decide(job, member);
        }
        memcpy(n, group->shards, sizeof n);
    }
    (void)hth_group_start(group->exchange, n);
    return HTH_OK;
}
