// SPDX-License-Identifier: Apache-2.0
// A training job as the queue has it (job.h).
#include "engine/train/train_job_impl.h"

hth_job *hth_train_job_base(hth_train_job *job)
{
    return &job->job;
}

static hth_train_job *ops_job(const hth_job *job)
{
    return (hth_train_job *)job;
}

static void ops_free(hth_job *job)
{
    hth_train_job_free(ops_job(job));
}

static hth_err ops_slice(hth_job *job, bool *done)
{
    return hth_train_job_slice(ops_job(job), done);
}

static const json_t *ops_arguments(const hth_job *job)
{
    return hth_train_job_arguments(ops_job(job));
}

static const json_t *ops_planned(const hth_job *job)
{
    return hth_train_job_memory(ops_job(job));
}

static json_t *ops_state(const hth_job *job)
{
    return hth_train_job_state(ops_job(job));
}

static json_t *ops_times(const hth_job *job)
{
    return hth_train_job_times(ops_job(job));
}

static uint64_t ops_device_bytes(const hth_job *job)
{
    return hth_train_job_device_bytes(ops_job(job));
}

static uint64_t ops_predicted_ns(const hth_job *job)
{
    return hth_train_job_predicted_ns(ops_job(job));
}

static uint64_t ops_left_ns(const hth_job *job)
{
    return hth_train_job_left_ns(ops_job(job));
}

static double ops_seconds_left(const hth_job *job)
{
    return hth_train_job_seconds_left(ops_job(job));
}

static void ops_number(hth_job *job, uint64_t id)
{
    hth_train_job_number(ops_job(job), id);
}

static hth_err ops_save(hth_job *job)
{
    return hth_train_job_save(ops_job(job));
}

static int64_t ops_saved(const hth_job *job)
{
    return hth_train_job_saved(ops_job(job));
}

static hth_err ops_leave(hth_job *job)
{
    return hth_train_job_leave(ops_job(job));
}

static bool ops_left(hth_job *job, hth_err *err)
{
    return hth_train_job_left(ops_job(job), err);
}

static const char *ops_trouble(const hth_job *job)
{
    return hth_train_job_trouble(ops_job(job));
}

static double ops_link(const hth_job *job)
{
    return hth_train_job_link(ops_job(job));
}

static bool ops_stuck(const hth_job *job)
{
    return hth_train_job_stuck(ops_job(job));
}

static void ops_serve(hth_job *job, hth_request *request)
{
    hth_train_job_for(ops_job(job), request);
}

static hth_err ops_budget(hth_job *job, const char *budget)
{
    return hth_train_job_budget(ops_job(job), budget);
}

static hth_err ops_more(hth_job *job)
{
    return hth_train_job_more(ops_job(job));
}

static hth_err ops_less(hth_job *job, uint64_t bytes)
{
    return hth_train_job_less(ops_job(job), bytes);
}

static bool ops_resized(hth_job *job, hth_err *err)
{
    return hth_train_job_resized(ops_job(job), err);
}

static void ops_keep_size(hth_job *job)
{
    hth_train_job_keep_size(ops_job(job));
}

const hth_job_ops hth_train_job_ops = {.free = ops_free,
                                       .slice = ops_slice,
                                       .arguments = ops_arguments,
                                       .planned = ops_planned,
                                       .state = ops_state,
                                       .times = ops_times,
                                       .device_bytes = ops_device_bytes,
                                       .predicted_ns = ops_predicted_ns,
                                       .left_ns = ops_left_ns,
                                       .seconds_left = ops_seconds_left,
                                       .number = ops_number,
                                       .save = ops_save,
                                       .saved = ops_saved,
                                       .leave = ops_leave,
                                       .left = ops_left,
                                       .trouble = ops_trouble,
                                       .link = ops_link,
                                       .stuck = ops_stuck,
                                       .serve = ops_serve,
                                       .budget = ops_budget,
                                       .more = ops_more,
                                       .less = ops_less,
                                       .resized = ops_resized,
                                       .keep_size = ops_keep_size};
