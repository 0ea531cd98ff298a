// SPDX-License-Identifier: Apache-2.0
#include "engine/train/job.h"

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
