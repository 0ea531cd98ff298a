// SPDX-License-Identifier: Apache-2.0
// Who computes which points. Before each iteration shards are cut so that all members would take as
// long as they did, by the time that a point took them last (group/shards.h), in grains: a thousand
// of them is as exact as times are.
#include "engine/train/kmeans/kmeans_group.h"

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

// A list of rows, or the summary of the job that had them. NULL: none are given.
static const json_t *shards_given(const kmeans_job *job)
{
    const json_t *given = json_object_get(job->args, "shards");
    return json_is_object(given) ? json_object_get(given, "shards") : given;
}

// A row is an iteration and each member's points.
static bool shards_row(const json_t *row, int members, int64_t n)
{
    bool good = json_array_size(row) == (size_t)members + 1;
    for (int i = 0; i <= members && good; i++) {
        const json_t *number = json_array_get(row, (size_t)i);
        json_int_t value = json_integer_value(number);
        good = json_is_integer(number) && value >= 0 && (i == 0 || value <= n);
        n -= i > 0 ? value : 0;
    }
    return good && n == 0;
}

hth_err kmeans_shards_check(const kmeans_job *job)
{
    const json_t *given = shards_given(job);
    int members = kmeans_group_members(job);
    if (json_object_get(job->args, "shards") == NULL || job->spec.resume) {
        return HTH_OK; // a job that goes on may have other devices by now
    }
    bool good = json_array_size(given) > 0;
    for (size_t i = 0; i < json_array_size(given) && good; i++) {
        good = shards_row(json_array_get(given, i), members, (int64_t)job->source.n);
    }
    return good ? HTH_OK
                : hth_fail(HTH_EINVAL,
                           "shards are rows of an iteration and the points of each of %d devices, "
                           "in all %zu: [[0, ..], ..]",
                           members, job->source.n);
}

// The shards that were given for an iteration; false: there are none that who is there can have.
static bool shards_replayed(const kmeans_job *job, const hth_shard_member *member,
                            int64_t n[HTH_GROUP_MEMBERS])
{
    size_t i;
    json_t *row;
    const json_t *given = shards_given(job), *last = NULL;
    json_array_foreach(given, i, row)
    {
        bool begun = json_integer_value(json_array_get(row, 0)) <= (json_int_t)job->at.iterations;
        last = begun ? row : last;
    }
    for (int k = 0; k < job->group->members; k++) {
        n[k] = json_integer_value(json_array_get(last, (size_t)k + 1));
    }
    return last != NULL && hth_shards_fit(member, job->group->members, (int64_t)job->source.n, n);
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

// Shards of equal times; what is left of the last grain is the last member's.
static void shards_cut(const kmeans_job *job, const hth_shard_member *member,
                       int64_t n[HTH_GROUP_MEMBERS])
{
    hth_shard_member coarse[HTH_GROUP_MEMBERS] = {{.least = 0}};
    int members = job->group->members, last = 0;
    int64_t all = (int64_t)job->source.n, grain = shards_grain(all);
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
    shards_cut(job, even, n);
}

// shards_note has the job's summary, and if `told` its log, show shards that are others than
// before.
static void shards_note(kmeans_job *job, bool told)
{
    kmeans_group *group = job->group;
    char text[80 + 24 * HTH_GROUP_MEMBERS];
    json_t *row = json_array();
    json_array_append_new(row, json_integer((json_int_t)job->at.iterations));
    int n = snprintf(text, sizeof text,
                     "points of each device from iteration %zu on:", job->at.iterations + 1);
    for (int i = 0; i < group->members; i++) {
        json_array_append_new(row, json_integer(group->shards[i]));
        n += snprintf(text + n, sizeof text - (size_t)n, " %lld", (long long)group->shards[i]);
    }
    json_array_append_new(group->sequence, row);
    if (told) {
        kmeans_log(job, "info", text);
    }
}

static void shards_decide(kmeans_job *job, const hth_shard_member *member)
{
    kmeans_group *group = job->group;
    int64_t n[HTH_GROUP_MEMBERS] = {0}, all = (int64_t)job->source.n;
    bool fits = hth_shards_fit(member, group->members, all, group->shards), told = true;
    if (!shards_replayed(job, member, n)) {
        shards_cut(job, member, n);
        double now = hth_shards_step_us(member, group->members, group->shards);
        double then = hth_shards_step_us(member, group->members, n);
        if (fits && then > (1 - SHARDS_GAIN) * now) {
            return;
        }
        told = !fits || then <= (1 - SHARDS_TOLD) * now;
    }
    if (memcmp(n, group->shards, sizeof n) != 0) {
        memcpy(group->shards, n, sizeof n);
        shards_note(job, told);
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
        n[HTH_GROUP_LEAD] = all;
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
