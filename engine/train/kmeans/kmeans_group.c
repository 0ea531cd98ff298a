// SPDX-License-Identifier: Apache-2.0
// A member of a K-means job on several devices: in each round of the group (group/group.h) it
// computes its shard of a pass, hands its part in, and goes on with all parts.
//
// Design notes
// A round is a pass: the first look, each centroid of k-means++, an iteration, empty clusters,
// the last labels. What crosses lies in the group's shared memory after what a new member takes:
//
//   state of a run | each iteration: inertia, ms, shards | labels of all points | a part per member
//
// A part is written before it is handed in, and read until the next round begins, for which all
// must have arrived. Labels are shared because shards change from one iteration to the next: who
// gets a point knows its label. After a round that broke, labels are partly those of the next
// iteration; that no label changes then is no sign of the end.
#include "engine/train/kmeans/kmeans_group.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/id.h"
#include "engine/train/train.h"
#include "group/members.h"
#include "group/sequence.h"

#include <math.h>
#include <string.h>

#define GROUP_PAGE ((size_t)4096)

#define TRIAL_MACS  2e8 // of a trial, with so many points at least and at most
#define TRIAL_LEAST 256
#define TRIAL_MOST  4096

// ---- the shared memory

static size_t pages(size_t bytes)
{
    return (bytes + GROUP_PAGE - 1) / GROUP_PAGE * GROUP_PAGE;
}

static size_t group_state_bytes(const kmeans_job *job)
{
    return pages(hth_kmeans_state_bytes(&job->spec.what, job->source.n, job->source.d));
}

static size_t group_past_bytes(const kmeans_job *job)
{
    return pages(job->spec.what.iterations * sizeof(kmeans_past));
}

static size_t group_label_bytes(const kmeans_job *job)
{
    return pages(job->source.n * sizeof(uint32_t));
}

static size_t group_part_bytes(const kmeans_job *job)
{
    return pages(hth_kmeans_part_bytes(&job->spec.what, job->source.n, job->source.d));
}

int kmeans_group_members(const kmeans_job *job)
{
    return (int)json_integer_value(json_object_get(job->args, HTH_TRAIN_MEMBERS));
}

uint64_t kmeans_group_bytes(const kmeans_job *job)
{
    return job->r->member > 0 ? group_state_bytes(job) + group_part_bytes(job) : 0;
}

static void group_place(kmeans_job *job, kmeans_group *group)
{
    char *at = group->state = hth_group_state(group->exchange);
    at += group_state_bytes(job);
    group->past = (kmeans_past *)(void *)at;
    at += group_past_bytes(job);
    job->labels = (uint32_t *)(void *)at;
    at += group_label_bytes(job);
    for (int i = 0; i < group->members; i++, at += group_part_bytes(job)) {
        group->part[i] = at;
    }
}

// ---- open and close

hth_err kmeans_group_check(const kmeans_job *job)
{
    int members = kmeans_group_members(job);
    if (job->r->member == 0) {
        return HTH_OK;
    }
    if (members < 1 || members > HTH_GROUP_MEMBERS || job->r->member > members) {
        return hth_fail(HTH_EINVAL, "a group has 1 to %d members, not %d", HTH_GROUP_MEMBERS,
                        members);
    }
    if (job->source.n < (size_t)members) {
        return hth_fail(HTH_EINVAL, "%zu points are too few for %d devices", job->source.n,
                        members);
    }
    return kmeans_shards_check(job);
}

// What members must agree on: their points, by the first one, and all that centroids depend on.
static uint64_t group_fingerprint(const kmeans_job *job, const float *first)
{
    const hth_kmeans *what = &job->spec.what;
    const uint64_t numbers[] = {job->source.n,    job->source.d,        what->k,
                                what->iterations, (uint64_t)what->init, what->seed};
    const hth_chunk chunks[] = {
        {numbers, sizeof numbers},
        {&what->tolerance, sizeof what->tolerance},
        {first, job->source.d * sizeof *first},
        {what->start, what->start != NULL ? what->k * job->source.d * sizeof *what->start : 0}};
    hth_id id = hth_id_of(chunks, sizeof chunks / sizeof *chunks);
    uint64_t out;
    memcpy(&out, &id, sizeof out);
    return out;
}

static hth_err group_join(kmeans_job *job, kmeans_group *group, size_t iterations)
{
    static const size_t floats[2] = {1};
    static const bool by_count[2] = {true};
    hth_kmeans_points points = hth_kmeans_source_points(&job->source);
    const float *first = hth_kmeans_source_all(&job->source);
    HTH_TRY(first != NULL ? HTH_OK : points.rows(points.ctx, 0, 1, &first));
    size_t parts = (size_t)group->members * group_part_bytes(job);
    const hth_kmeans *what = &job->spec.what;
    int64_t at = 2 * (int64_t)iterations;
    int64_t seeds = what->init == HTH_KMEANS_PLUS_PLUS ? (int64_t)what->k : 0;
    hth_group_spec spec = {.member = group->member,
                           .batch = (int64_t)job->source.n,
                           .steps = 2 * (int64_t)what->iterations + seeds + 4,
                           .at = kmeans_leads(job) || !job->spec.resume ? at : -1,
                           .n_slots = 1, // whose sum is nothing; it is ready when the part is
                           .floats = floats,
                           .by_count = by_count,
                           .state_bytes = group_state_bytes(job) + group_past_bytes(job) +
                                          group_label_bytes(job) + parts,
                           .fingerprint = group_fingerprint(job, first)};
    return hth_group_join(job->r->files[job->r->n_files - 1], &spec, &group->exchange);
}

hth_err kmeans_group_open(kmeans_job *job, size_t iterations)
{
    kmeans_group *group = job->group = hth_calloc(1, sizeof *group);
    if (group == NULL) {
        return hth_no_memory("a K-means job");
    }
    *group = (kmeans_group){.member = job->r->member - 1,
                            .members = kmeans_group_members(job),
                            .since_ns = hth_now_ns()};
    HTH_TRY(group_join(job, group, iterations));
    group_place(job, group);
    return HTH_OK;
}

void kmeans_group_close(kmeans_job *job)
{
    kmeans_group *group = job->group;
    if (group != NULL) {
        job->labels = NULL; // the group's
        hth_group_leave(group->exchange);
        hth_free(group);
        job->group = NULL;
    }
}

// ---- a round

static double median(double a, double b, double c)
{
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}

// group_time notes what a point of this pass took, and returns the median of the last three.
static double group_time(kmeans_job *job)
{
    kmeans_group *group = job->group;
    double us = (double)job->pass_ns / 1e3 / (double)group->round.n;
    double last = group->us[0], before = group->us[1];
    if (job->at.phase != HTH_KMEANS_ITERATES) { // its points cost something else
        return job->at.phase == HTH_KMEANS_LOOKS ? group->trial_us : 0;
    }
    group->us[1] = last;
    group->us[0] = us;
    return before > 0 ? median(us, last, before) : us;
}

// group_trial finds out, before the first iteration, what a point will take in it: twice, for at
// first there is much to be fetched.
static hth_err group_trial(kmeans_job *job)
{
    double macs = (double)job->spec.what.k * (double)job->source.d, points = TRIAL_MACS / macs;
    size_t n = points < TRIAL_LEAST ? TRIAL_LEAST : TRIAL_MOST;
    n = points >= TRIAL_LEAST && points < TRIAL_MOST ? (size_t)points : n;
    n = n < (size_t)job->group->round.n ? n : (size_t)job->group->round.n;
    for (int i = 0; i < 2; i++) {
        uint64_t start_ns = hth_now_ns();
        HTH_TRY(hth_kmeans_trial(job->run, &n));
        job->group->trial_us = (double)(hth_now_ns() - start_ns) / 1e3 / (double)n;
    }
    job->group->trial_us *= 100.0 / hth_device_quota_percent(job->ms->site->device);
    return HTH_OK;
}

typedef struct group_part {
    kmeans_job *job;
    bool ranges; // the range begins
} group_part;

// Computes until the slice is over, or the part is written. On the device's other threads.
static hth_err group_compute(void *arg)
{
    const group_part *part = arg;
    kmeans_job *job = part->job;
    kmeans_group *group = job->group;
    if (part->ranges) {
        HTH_TRY(hth_kmeans_range(job->run, (size_t)group->round.from, (size_t)group->round.n,
                                 group->again));
    }
    HTH_TRY(kmeans_part(job));
    if (!hth_kmeans_ranged(job->run) || group->round.n == 0) {
        return HTH_OK;
    }
    if (job->at.phase == HTH_KMEANS_LOOKS) {
        HTH_TRY(group_trial(job));
    }
    return hth_kmeans_part(job->run, group->part[group->member]);
}

static hth_err group_go(kmeans_job *job)
{
    static const float nothing = 0;
    kmeans_group *group = job->group;
    group_part part = {job, !group->ranges};
    group->ranges = true;
    HTH_TRY(hth_work_elsewhere(job->ms->site->queue, group_compute, &part));
    if (hth_kmeans_ranged(job->run)) {
        group->handed = true;
        hth_group_weigh(group->exchange, (double)group->round.n, (double)group->round.n);
        if (group->round.n > 0) {
            hth_group_ready(group->exchange, 0, &nothing);
        }
        hth_group_passed(group->exchange, 0, group->round.n > 0 ? group_time(job) : 0, 0);
    }
    return HTH_OK;
}

static uint32_t group_taking(const kmeans_group *group)
{
    uint32_t taking = 0;
    for (int i = 0; i < group->members; i++) {
        taking |= (uint32_t)(group->round.shards[i] > 0) << i;
    }
    return taking;
}

static void group_begin(kmeans_job *job)
{
    kmeans_group *group = job->group;
    kmeans_first(job); // not while members are waited for
    group->at_work = true;
    group->handed = group->ranges = false;
    group->again = group->broke || group->took != group_taking(group);
    job->pass_ns = 0;
}

// group_shards notes the shards of an iteration where they are others than before.
static hth_err group_shards(kmeans_job *job, size_t iteration,
                            const int64_t shards[HTH_GROUP_MEMBERS])
{
    int64_t before[HTH_GROUP_MEMBERS] = {0};
    int members = job->group->members;
    bool any = hth_sequence_at(job->shards, members, (int64_t)iteration, before);
    return any && memcmp(before, shards, (size_t)members * sizeof *before) == 0
               ? HTH_OK
               : hth_sequence_add(job->shards, members, (int64_t)iteration, shards);
}

// group_parts ends a pass with all parts. On the device's other threads: k-means++ looks at points.
static hth_err group_parts(void *arg)
{
    kmeans_job *job = arg;
    const kmeans_group *group = job->group;
    const void *parts[HTH_GROUP_MEMBERS];
    size_t n = 0;
    for (int i = 0; i < group->members; i++) {
        if (group->round.shards[i] > 0) {
            parts[n++] = group->part[i];
        }
    }
    return hth_kmeans_join(job->run, parts, n);
}

// All parts are there: the pass ends.
static hth_err group_joined(kmeans_job *job)
{
    kmeans_group *group = job->group;
    double ms;
    group->at_work = false;
    if (job->at.phase == HTH_KMEANS_ITERATES) {
        group->took = group_taking(group);
        group->broke = false;
        HTH_TRY(group_shards(job, job->at.iterations, group->round.shards));
    }
    (void)hth_group_loss(group->exchange, group->round.step, &ms);
    job->part_ns += (uint64_t)(ms * 1e6);
    HTH_TRY(hth_work_elsewhere(job->ms->site->queue, group_parts, job));
    job->at = hth_kmeans_where(job->run);
    return HTH_OK;
}

static hth_err group_look(kmeans_job *job)
{
    kmeans_group *group = job->group;
    hth_group_result result = hth_group_look(group->exchange);
    if (result == HTH_GROUP_SUMMED) {
        return group_joined(job);
    }
    if (result == HTH_GROUP_BROKEN) {
        group->at_work = false;
        group->broke = true;
    } else if (group->handed) {
        hth_group_idle(group->exchange, group->since_ns);
    } else {
        return group_go(job);
    }
    return HTH_OK;
}

// ---- states

static void group_gives(const kmeans_job *job)
{
    kmeans_group *group = job->group;
    size_t i;
    json_t *row;
    hth_kmeans_state_write(job->run, group->state);
    json_array_foreach(job->history, i, row)
    {
        kmeans_past *past = &group->past[i];
        past->inertia = json_number_value(json_array_get(row, 0));
        past->ms = json_number_value(json_array_get(row, 1));
        memset(past->shards, 0, sizeof past->shards);
        (void)hth_sequence_at(job->shards, group->members, (int64_t)i, past->shards);
    }
    hth_group_gave(group->exchange);
}

static hth_err group_takes(kmeans_job *job)
{
    kmeans_group *group = job->group;
    HTH_TRY(hth_kmeans_state_read(job->run, group->state));
    job->at = hth_kmeans_where(job->run);
    json_array_clear(job->history);
    json_array_clear(job->shards);
    for (size_t i = 0; i < job->at.iterations; i++) {
        const kmeans_past *past = &group->past[i];
        if (json_array_append_new(job->history,
                                  json_pack("[f, f, i]", past->inertia, past->ms, 0)) != 0) {
            return hth_no_memory("a K-means job");
        }
        HTH_TRY(group_shards(job, i, past->shards));
    }
    job->kept = job->at.iterations;
    job->total_ms = 0;
    job->part_ns = 0;
    group->took = 0;
    hth_group_took(group->exchange);
    return HTH_OK;
}

void kmeans_group_park(const kmeans_job *job)
{
    if (job->group != NULL && hth_group_parks(job->group->exchange)) {
        group_gives(job);
    }
}

hth_err kmeans_group_slice(kmeans_job *job, bool *over)
{
    kmeans_group *group = job->group;
    *over = false;
    if (group->at_work) {
        return group_look(job);
    }
    hth_group_turn turn = hth_group_begin(group->exchange, &group->round);
    group->since_ns = turn == HTH_GROUP_WAITS ? group->since_ns : hth_now_ns();
    switch (turn) {
    case HTH_GROUP_LEADS:
        return kmeans_shards_start(job);
    case HTH_GROUP_ROUND:
        group_begin(job);
        return group_go(job);
    case HTH_GROUP_GIVES:
        group_gives(job);
        return HTH_OK;
    case HTH_GROUP_TAKES:
        return group_takes(job);
    case HTH_GROUP_OVER:
        *over = true;
        return hth_group_over(group->exchange);
    default:
        hth_group_idle(group->exchange, group->since_ns);
        return HTH_OK;
    }
}

json_t *kmeans_group_row(const kmeans_job *job)
{
    return hth_group_members(job->group->exchange, job->group->shards);
}
