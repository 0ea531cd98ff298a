// SPDX-License-Identifier: Apache-2.0
// A K-means job's way through its iterations, a slice at a time.
#include "engine/train/kmeans/kmeans_job_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "engine/serve/version_swap.h"

#include <stdio.h>

#define JOB_SLICE_NS 40000000u // after so long a slice ends
#define JOB_LOOK_NS  10000000u // from one look at the clock to the next
#define JOB_POINTS   1024      // that are looked at between two, at least

// ---- a slice

// part_points adapts how many points come between two looks at the clock.
static void part_points(kmeans_job *job, size_t points, uint64_t took_ns)
{
    double ns = took_ns > 0 ? (double)took_ns : 1, want = (double)points * JOB_LOOK_NS / ns;
    double most = 8 * (double)points; // what was measured may have been a pass's last few
    want = want < most ? want : most;
    job->points = want > JOB_POINTS ? (size_t)want : JOB_POINTS;
}

// job_passed: the pass is over, or a member's range of it.
static bool job_passed(const kmeans_job *job)
{
    return job->at.pass == 0 || (job->group != NULL && hth_kmeans_ranged(job->run));
}

hth_err kmeans_part(kmeans_job *job)
{
    uint64_t start_ns = hth_now_ns(), now_ns;
    size_t before;
    do {
        while (hth_device_pause(job->ms->site->device)) {
        }
        uint64_t then_ns = hth_now_ns();
        size_t points = job->points;
        before = job->at.pass;
        HTH_TRY(hth_kmeans_go(job->run, points));
        job->at = hth_kmeans_where(job->run);
        now_ns = hth_now_ns();
        if (job->at.pass == before + points) { // else fewer were left
            part_points(job, points, now_ns - then_ns);
        }
    } while (!job_passed(job) && now_ns - start_ns < JOB_SLICE_NS);
    job->pass_ns += now_ns - start_ns;
    return HTH_OK;
}

static hth_err job_part(void *arg)
{
    kmeans_job *job = arg;
    job->pass_ns = 0;
    HTH_TRY(kmeans_part(job));
    job->part_ns += job->pass_ns;
    return HTH_OK;
}

// What is left of a job that ends early.
static const char *job_kept(const kmeans_job *job, char text[80])
{
    if (job->saved < 1) {
        return "nothing is saved";
    }
    snprintf(text, 80, "the checkpoint of iteration %lld is kept", (long long)job->saved);
    return text;
}

static hth_job_told job_told(const kmeans_job *job)
{
    return (hth_job_told){.r = job->r,
                          .events = &job->events,
                          .job = job->name,
                          .done = job->at.iterations,
                          .total = job->spec.what.iterations};
}

// job_save makes a checkpoint of a job that ends, or goes on all the same where that fails.
static void job_save(kmeans_job *job)
{
    uint64_t seconds = (uint64_t)hth_setting_int(HTH_SET_TRAIN_CHECKPOINT_SECONDS);
    if (kmeans_leads(job) && kmeans_save(job) != HTH_OK) {
        const hth_job_told told = job_told(job);
        hth_job_unwritten(&told, job->trouble);
    }
    job->due_ns = hth_now_ns() + seconds * 1000000000u;
}

static hth_err job_canceled(kmeans_job *job)
{
    char kept[80];
    if (job->at.iterations > 0) {
        job_save(job);
    }
    return hth_fail(HTH_ECANCELED, "canceled after iteration %zu: %s", job->at.iterations,
                    job_kept(job, kept));
}

static hth_err job_limited(kmeans_job *job)
{
    char kept[80];
    job->ran_ms = 0; // one that is resumed has all of its time again
    job->first_ns = 0;
    if (job->at.iterations > 0) {
        job_save(job);
    }
    return hth_fail(HTH_ETIMEDOUT, "time limit: %g s are over after iteration %zu of %zu; %s",
                    job->spec.time_limit, job->at.iterations, job->spec.what.iterations,
                    job_kept(job, kept));
}

// job_checkpoint makes a checkpoint where one is due: by the number of iterations, or by time.
static void job_checkpoint(kmeans_job *job)
{
    bool timed = hth_setting_int(HTH_SET_TRAIN_CHECKPOINT_SECONDS) > 0 && kmeans_leads(job);
    size_t every = job->spec.checkpoint, iterations = job->at.iterations;
    bool counted = every > 0 && iterations > 0 && iterations % every == 0;
    if (counted || (timed && hth_now_ns() >= job->due_ns)) {
        job_save(job);
    }
}

// job_iterated notes that an iteration is done.
static hth_err job_iterated(kmeans_job *job)
{
    job->step_ms = (double)job->part_ns / 1e6;
    job->total_ms += job->step_ms;
    job->part_ns = 0;
    if (json_array_append_new(job->history,
                              json_pack("[f, f, i]", job->at.inertia, job->step_ms, 0)) != 0) {
        return hth_no_memory("a K-means job");
    }
    kmeans_event(job);
    job_checkpoint(job);
    return HTH_OK;
}

// job_begins tells what comes before the first iteration, which may take long.
static void job_begins(const kmeans_job *job, hth_kmeans_phase before)
{
    char text[120];
    if (before == HTH_KMEANS_LOOKS && job->at.phase == HTH_KMEANS_SEEDS) {
        snprintf(text, sizeof text, "%zu points of %zu columns: k-means++ chooses %zu of them",
                 job->source.n, job->source.d, job->spec.what.k);
        kmeans_log(job, "info", text);
    } else if (before == HTH_KMEANS_SEEDS && job->at.phase == HTH_KMEANS_ITERATES) {
        snprintf(text, sizeof text, "k-means++ took %.3g s", (double)job->part_ns / 1e9);
        kmeans_log(job, "info", text);
    }
}

static hth_err job_publish(void *arg)
{
    return kmeans_publish(arg);
}

// job_unpublished: the result could not be stored. It becomes a checkpoint, or where not even that
// can be written stays where it is (job->stuck) until somebody has made room.
static hth_err job_unpublished(kmeans_job *job, hth_err err)
{
    char why[300];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (kmeans_save(job) == HTH_OK) {
        return hth_fail(err,
                        "the result of job '%s' could not be saved: %s; `hearth kmeans "
                        "--resume %s` saves it",
                        job->name, why, job->name);
    }
    job->stuck = true;
    const hth_job_told told = job_told(job);
    hth_job_unstored(&told, why, job->trouble);
    return HTH_OK;
}

// job_end stores the result.
static hth_err job_end(kmeans_job *job, bool *done)
{
    job->stuck = false;
    hth_err err = hth_work_elsewhere(job->ms->site->queue, job_publish, job);
    if (err != HTH_OK) {
        return job_unpublished(job, err);
    }
    hth_version_swap_settle(job->ms, job->name); // who waits for the job finds its result served
    *done = true;
    if (hth_checkpoint_rm(job->ms->store, job->name) != HTH_OK) {
        hth_job_unremoved(job->ms->store, job->name);
    }
    return kmeans_summary(job);
}

// job_over ends a member whose lead has ended the group, or a lead that somebody refused.
static hth_err job_over(kmeans_job *job, bool *done)
{
    if (kmeans_leads(job)) {
        return hth_fail(HTH_ECANCELED, "the group was ended");
    }
    *done = true;
    job->r->json = hth_strdup("{}");
    return job->r->json != NULL ? HTH_OK : hth_no_memory("a K-means job");
}

void kmeans_first(kmeans_job *job)
{
    if (job->first_ns == 0) {
        job->first_ns = hth_now_ns();
        job->due_ns = job->first_ns +
                      (uint64_t)hth_setting_int(HTH_SET_TRAIN_CHECKPOINT_SECONDS) * 1000000000u;
    }
}

// job_computes takes the next part of a pass; *over: the job's group has ended.
static hth_err job_computes(kmeans_job *job, bool *over)
{
    *over = false;
    if (job->group == NULL) {
        kmeans_first(job);
        return hth_work_elsewhere(job->ms->site->queue, job_part, job);
    }
    return kmeans_group_slice(job, over);
}

static hth_err kmeans_slice(hth_job *base, bool *done)
{
    kmeans_job *job = kmeans_job_of(base);
    hth_kmeans_phase before = job->at.phase;
    bool over;
    *done = false;
    if (job->r->canceled) {
        return job_canceled(job);
    }
    if (job->stuck) {
        return job_end(job, done);
    }
    if (job->spec.time_limit > 0 && (double)kmeans_ran_ms(job) >= 1e3 * job->spec.time_limit) {
        return job_limited(job);
    }
    HTH_TRY(job_computes(job, &over));
    if (over) {
        return job_over(job, done);
    }
    if (job->at.phase == HTH_KMEANS_SEEDS && job->at.seeded != job->seeded) {
        job->seeded = job->at.seeded;
        kmeans_event_seeded(job);
        job_checkpoint(job);
    }
    bool iterated = json_array_size(job->history) < job->at.iterations;
    if (job->at.phase != before) {
        job_begins(job, before);
        bool within = iterated || job->at.phase == HTH_KMEANS_REFILLS; // an iteration goes on
        job->part_ns = within ? job->part_ns : 0;
    }
    if (iterated) {
        HTH_TRY(job_iterated(job));
    }
    return job->at.phase == HTH_KMEANS_DONE && kmeans_leads(job) ? job_end(job, done) : HTH_OK;
}

// ---- what the queue asks

static const json_t *kmeans_arguments(const hth_job *job)
{
    return kmeans_job_of(job)->args;
}

static const json_t *kmeans_planned(const hth_job *job)
{
    return kmeans_job_of(job)->planned;
}

static uint64_t kmeans_device_bytes(const hth_job *job)
{
    return kmeans_job_of(job)->bytes;
}

static uint64_t kmeans_predicted_ns(const hth_job *job)
{
    return JOB_SLICE_NS;
}

static uint64_t kmeans_left_ns(const hth_job *job)
{
    return hth_ns_of(kmeans_seconds_left(job) * 1e9);
}

static void kmeans_number(hth_job *job, uint64_t id)
{
    json_object_set_new(kmeans_job_of(job)->args, "id", json_integer((json_int_t)id));
}

static hth_err kmeans_save_now(hth_job *job)
{
    if (!kmeans_leads(kmeans_job_of(job))) {
        kmeans_group_park(kmeans_job_of(job));
        return HTH_OK;
    }
    return kmeans_save(kmeans_job_of(job));
}

static int64_t kmeans_saved(const hth_job *job)
{
    return kmeans_job_of(job)->saved;
}

// A checkpoint is small, and written at once.
static hth_err kmeans_leave(hth_job *base)
{
    kmeans_job *job = kmeans_job_of(base);
    if (job->group != NULL) {
        return hth_fail(HTH_EBUSY, "it is a group's job");
    }
    double step_us = kmeans_iteration_ms(job) * 1e3;
    json_t *had =
        json_pack("{s:I, s:i, s:I, s:f}", "need_bytes", (json_int_t)job->bytes, "host_bytes", 0,
                  "budget_bytes", (json_int_t)job->bytes, "step_us", step_us);
    if (json_object_set_new(job->args, HTH_TRAIN_HAD, had) != 0) {
        return hth_no_memory("a K-means job");
    }
    return kmeans_save(job);
}

static bool kmeans_left(hth_job *job, hth_err *err)
{
    *err = HTH_OK;
    return true;
}

static const char *kmeans_trouble(const hth_job *job)
{
    return kmeans_job_of(job)->trouble;
}

static bool kmeans_stuck(const hth_job *job)
{
    return kmeans_job_of(job)->stuck;
}

static void kmeans_serve(hth_job *job, hth_request *request)
{
    kmeans_job_of(job)->r = request;
}

const hth_job_ops kmeans_job_ops = {.free = kmeans_free,
                                    .slice = kmeans_slice,
                                    .arguments = kmeans_arguments,
                                    .planned = kmeans_planned,
                                    .state = kmeans_state,
                                    .times = kmeans_times,
                                    .device_bytes = kmeans_device_bytes,
                                    .predicted_ns = kmeans_predicted_ns,
                                    .left_ns = kmeans_left_ns,
                                    .seconds_left = kmeans_seconds_left,
                                    .number = kmeans_number,
                                    .save = kmeans_save_now,
                                    .saved = kmeans_saved,
                                    .leave = kmeans_leave,
                                    .left = kmeans_left,
                                    .trouble = kmeans_trouble,
                                    .stuck = kmeans_stuck,
                                    .serve = kmeans_serve};
