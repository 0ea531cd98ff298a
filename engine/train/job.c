// SPDX-License-Identifier: Apache-2.0
#include "engine/train/job.h"

#include "base/log.h"
#include "engine/train/train.h"
#include "runtime/redact.h"

#include <stdio.h>
#include <stdlib.h>

void hth_job_free(hth_job *job)
{
    if (job != NULL) {
        job->ops->free(job);
    }
}

hth_err hth_job_slice(hth_job *job, bool *done)
{
    return job->ops->slice(job, done);
}

const json_t *hth_job_args(const hth_job *job)
{
    return job->ops->arguments(job);
}

const json_t *hth_job_planned(const hth_job *job)
{
    return job->ops->planned(job);
}

json_t *hth_job_state(const hth_job *job)
{
    return job->ops->state(job);
}

json_t *hth_job_times(const hth_job *job)
{
    return job->ops->times(job);
}

uint64_t hth_job_device_bytes(const hth_job *job)
{
    return job->ops->device_bytes(job);
}

uint64_t hth_job_predicted_ns(const hth_job *job)
{
    return job->ops->predicted_ns(job);
}

uint64_t hth_job_left_ns(const hth_job *job)
{
    return job->ops->left_ns(job);
}

double hth_job_seconds_left(const hth_job *job)
{
    return job->ops->seconds_left(job);
}

void hth_job_number(hth_job *job, uint64_t id)
{
    job->ops->number(job, id);
}

hth_err hth_job_save(hth_job *job)
{
    return job->ops->save(job);
}

int64_t hth_job_saved(const hth_job *job)
{
    return job->ops->saved(job);
}

hth_err hth_job_leave(hth_job *job)
{
    return job->ops->leave(job);
}

bool hth_job_left(hth_job *job, hth_err *err)
{
    return job->ops->left(job, err);
}

const char *hth_job_trouble(const hth_job *job)
{
    return job->ops->trouble(job);
}

double hth_job_link(const hth_job *job)
{
    return job->ops->link != NULL ? job->ops->link(job) : 0;
}

bool hth_job_stuck(const hth_job *job)
{
    return job->ops->stuck != NULL && job->ops->stuck(job);
}

void hth_job_serve(hth_job *job, hth_request *request)
{
    if (job->ops->serve != NULL) {
        job->ops->serve(job, request);
    }
}

hth_err hth_job_budget(hth_job *job, const char *budget)
{
    return job->ops->budget != NULL
               ? job->ops->budget(job, budget)
               : hth_fail(HTH_ENOTSUP, "the job keeps its budget while it runs; pause it, and "
                                       "resume it with another");
}

static hth_err job_keeps(void)
{
    return hth_fail(HTH_ENOTSUP, "the job keeps the memory that it has");
}

hth_err hth_job_more(hth_job *job)
{
    return job->ops->more != NULL ? job->ops->more(job) : job_keeps();
}

hth_err hth_job_less(hth_job *job, uint64_t bytes)
{
    return job->ops->less != NULL ? job->ops->less(job, bytes) : job_keeps();
}

bool hth_job_resized(hth_job *job, hth_err *err)
{
    *err = HTH_ENOTSUP;
    return job->ops->resized == NULL || job->ops->resized(job, err);
}

void hth_job_keep_size(hth_job *job)
{
    if (job->ops->keep_size != NULL) {
        job->ops->keep_size(job);
    }
}

// ---- jobs that cannot store what they have

// job_warn leaves paths out, for some of who is told are elsewhere.
static void job_warn(const hth_job_told *told, const char *trouble)
{
    char text[HTH_CHECKPOINT_NOTE + HTH_CHECKPOINT_JOB + 16], cleared[sizeof text];
    snprintf(text, sizeof text, "job '%s': %s", told->job, trouble);
    hth_redact(text, cleared, sizeof cleared);
    json_t *doc = json_pack("{s:s}", "warning", cleared);
    char *line = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    hth_log(WARN, SERVER, "train", "%s", text);
    if (told->events->log != NULL) {
        told->events->log(told->events->ctx, "warning", cleared);
    }
    if (line != NULL && told->r->progress != NULL) {
        told->r->progress(told->r, line, told->done, told->total);
    }
    if (line != NULL && told->events->fn != NULL) {
        told->events->fn(told->events->ctx, line, 1, 1); // however soon after another one
    }
    free(line);
}

void hth_job_unwritten(const hth_job_told *told, char trouble[HTH_CHECKPOINT_NOTE])
{
    bool reported = trouble[0] != 0;
    snprintf(trouble, HTH_CHECKPOINT_NOTE,
             "its last checkpoint could not be written; the next one is due at its usual time: "
             "%.400s",
             hth_err_detail());
    if (!reported) {
        job_warn(told, trouble);
    }
}

void hth_job_unstored(const hth_job_told *told, const char *why, char trouble[HTH_CHECKPOINT_NOTE])
{
    snprintf(trouble, HTH_CHECKPOINT_NOTE,
             "its result could not be saved, nor a checkpoint: %s; `hearth resume %s` tries again",
             why, told->job);
    job_warn(told, trouble);
}

void hth_job_unremoved(hth_store *store, const char *job)
{
    char note[HTH_CHECKPOINT_NOTE];
    snprintf(note, sizeof note, "finished, but its last checkpoint could not be removed: %.400s",
             hth_err_detail());
    hth_log(WARN, SERVER, "train", "job '%s': %s", job, note);
    hth_checkpoint_note_set(store, job, note);
}
