// SPDX-License-Identifier: Apache-2.0
// More or less memory for a training job that runs (trainer_resize.c).
#include "engine/train/train_job_impl.h"

#include <stdio.h>

static double memory_number(const hth_train_job *job, const char *key)
{
    return json_number_value(json_object_get(job->memory, key));
}

// memory_may_change: a budget that was asked for is what the job has. Evaluations compute in the
// memory that steps have now.
static hth_err memory_may_change(const hth_train_job *job, bool less)
{
    bool fixed = job->spec.budget != NULL || job->group != NULL || (less && job->n_evaluators > 0);
    return fixed ? hth_fail(HTH_ENOTSUP, "the job keeps the memory that it has") : HTH_OK;
}

hth_err hth_train_job_more(hth_train_job *job)
{
    HTH_TRY(memory_may_change(job, false));
    return hth_trainer_more(job->trainer, job->steps - job->step);
}

hth_err hth_train_job_less(hth_train_job *job, uint64_t bytes)
{
    HTH_TRY(memory_may_change(job, true));
    return hth_trainer_less(job->trainer, bytes);
}

bool hth_train_job_resized(hth_train_job *job, hth_err *err)
{
    char text[160];
    double before = memory_number(job, "peak_bytes");
    if (!hth_trainer_resized(job->trainer, err)) {
        return false;
    }
    json_t *memory = *err == HTH_OK ? hth_trainer_memory(job->trainer) : NULL;
    if (memory != NULL) {
        json_decref(job->memory);
        job->memory = memory;
        snprintf(text, sizeof text,
                 "planned again: %.1f MiB in place of %.1f MiB, %.3g ms a step predicted",
                 memory_number(job, "peak_bytes") / 1048576, before / 1048576,
                 memory_number(job, "predicted_ms"));
        if (job->events.log != NULL) {
            job->events.log(job->events.ctx, "info", text);
        }
    }
    return true;
}

void hth_train_job_keep_size(hth_train_job *job)
{
    hth_trainer_keep_size(job->trainer);
}
