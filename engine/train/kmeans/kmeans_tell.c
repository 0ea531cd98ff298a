// SPDX-License-Identifier: Apache-2.0
// What is told of a K-means job: after each iteration, to who asks, and in the end.
#include "engine/train/kmeans/kmeans_job_impl.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

void kmeans_log(const kmeans_job *job, const char *level, const char *text)
{
    if (job->events.log != NULL) {
        job->events.log(job->events.ctx, level, text);
    }
}

static double tell_planned(const kmeans_job *job, const char *key)
{
    return json_number_value(json_object_get(job->planned, key));
}

static void tell_event(const kmeans_job *job, const char *text, uint64_t step)
{
    uint64_t steps = job->spec.what.iterations;
    if (job->r->progress != NULL) {
        job->r->progress(job->r, text, step, steps);
    }
    if (job->events.fn != NULL) {
        job->events.fn(job->events.ctx, text, step, steps);
    }
}

void kmeans_event_seeded(const kmeans_job *job)
{
    char text[80];
    snprintf(text, sizeof text, "{\"seeded\":%zu,\"centroids\":%zu}", job->at.seeded,
             job->spec.what.k);
    tell_event(job, text, 0);
}

void kmeans_event(const kmeans_job *job)
{
    char text[300];
    uint64_t step = job->at.iterations;
    snprintf(text, sizeof text,
             "{\"step\":%llu,\"loss\":%.9g,\"inertia\":%.9g,\"ms\":%.3f,\"peak_bytes\":%.0f,"
             "\"budget_bytes\":%.0f}",
             (unsigned long long)step, job->at.inertia, job->at.inertia, job->step_ms,
             tell_planned(job, "peak_bytes"), tell_planned(job, "budget_bytes"));
    tell_event(job, text, step);
}

uint64_t kmeans_ran_ms(const kmeans_job *job)
{
    return job->ran_ms + (job->first_ns > 0 ? (hth_now_ns() - job->first_ns) / 1000000u : 0);
}

double kmeans_iteration_ms(const kmeans_job *job)
{
    size_t made = job->at.iterations - job->kept;
    return made > 0 ? job->total_ms / (double)made : job->predicted_ns / 1e6;
}

double kmeans_seconds_left(const hth_job *base)
{
    const kmeans_job *job = kmeans_job_of(base);
    size_t all = job->spec.what.iterations, made = job->at.iterations;
    size_t left = made < all ? all - made : 0; // a job may go on with fewer than it has made
    return kmeans_iteration_ms(job) / 1e3 * (double)(left + 1); // and the last labels
}

json_t *kmeans_times(const hth_job *base)
{
    const kmeans_job *job = kmeans_job_of(base);
    json_t *doc =
        json_pack("{s:f, s:n, s:i, s:b, s:f, s:f, s:I}", "predicted_ms", job->predicted_ns / 1e6,
                  "measured_ms", "replans", 0, "planning", 0, "step_ms", job->step_ms, "stall_ms",
                  0.0, "memory_bytes", (json_int_t)job->bytes);
    if (job->group != NULL) {
        json_object_set_new(doc, "members", kmeans_group_row(job));
    }
    if (job->at.phase == HTH_KMEANS_SEEDS) {
        json_object_set_new(doc, "seeded", json_integer((json_int_t)job->at.seeded));
    }
    if (job->at.iterations > job->kept) {
        json_object_set_new(doc, "measured_ms", json_real(kmeans_iteration_ms(job)));
    }
    return doc;
}

// tell_result adds what a job that is done has found. Its time is that of all its iterations.
static void tell_result(const kmeans_job *job, json_t *doc)
{
    double ms = 0;
    size_t i;
    json_t *row;
    json_array_foreach(job->history, i, row)
    {
        ms += json_number_value(json_array_get(row, 1));
    }
    double mean_ms = job->at.iterations > 0 ? ms / (double)job->at.iterations : 0;
    json_object_update_new(doc,
                           json_pack("{s:f, s:I, s:f, s:f, s:b, s:i}", "inertia", job->at.inertia,
                                     "iterations", (json_int_t)job->at.iterations, "ms", mean_ms,
                                     "seconds", (double)kmeans_ran_ms(job) / 1e3, "converged",
                                     job->at.converged, "version", job->version));
}

json_t *kmeans_state(const hth_job *base)
{
    const kmeans_job *job = kmeans_job_of(base);
    json_t *held = json_array();
    json_t *doc = hth_checkpoint_doc(&(hth_checkpoint){
        job->args, (int64_t)job->at.iterations, (int64_t)job->spec.what.iterations, job->history,
        held, 0, kmeans_shards_of(job)});
    json_decref(held);
    if (job->version > 0) {
        tell_result(job, doc);
    }
    return doc;
}

hth_err kmeans_summary(kmeans_job *job)
{
    json_t *doc = json_copy(job->planned);
    tell_result(job, doc);
    json_object_update_new(doc, json_pack("{s:s, s:I, s:O, s:[]}", "saved_as", job->name, "steps",
                                          (json_int_t)job->at.iterations, "history", job->history,
                                          "held_out"));
    if (kmeans_shards_of(job) != NULL) {
        json_object_set(doc, "shards", job->shards);
    }
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    job->r->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return job->r->json != NULL ? HTH_OK : hth_no_memory("a K-means job");
}
