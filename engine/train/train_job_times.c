// SPDX-License-Identifier: Apache-2.0
// What a training job's steps take, as planned and as measured; and what better plans change of
// that.
#include "engine/train/train_job_impl.h"

#include "base/clock.h"

#include <stdio.h>

// By the slices since it goes on here: with evaluations and checkpoints, without other jobs' turns.
double hth_train_job_seconds_left(const hth_train_job *job)
{
    double left = (double)(job->steps - job->step);
    int64_t steps = job->step - job->first;
    if (job->first_ns == 0 || steps == 0) {
        return hth_trainer_predicted_us(job->trainer) / 1e6 * left;
    }
    return (double)job->slices_ns / 1e9 / (double)steps * left;
}

uint64_t hth_train_job_device_bytes(const hth_train_job *job)
{
    return hth_trainer_memory_bytes(job->trainer);
}

uint64_t hth_train_job_predicted_ns(const hth_train_job *job)
{
    return hth_ns_of(hth_trainer_predicted_us(job->trainer) * 1e3);
}

uint64_t hth_train_job_left_ns(const hth_train_job *job)
{
    double step_ms = json_number_value(json_object_get(job->memory, "predicted_ms"));
    return hth_ns_of(step_ms * 1e6 * (double)(job->steps - job->step));
}

double hth_train_job_link(const hth_train_job *job)
{
    double in, out;
    hth_trainer_link(job->trainer, &in, &out);
    return in > out ? in : out;
}

static json_t *times_swap(const hth_train_job *job)
{
    hth_train_swap swap = hth_trainer_swap(job->trainer);
    return json_pack("{s:I, s:f, s:f}", "step", (json_int_t)swap.step, "from_ms",
                     swap.from_us / 1e3, "to_ms", swap.to_us / 1e3);
}

json_t *hth_train_job_times(const hth_train_job *job)
{
    double in, out, measured = hth_trainer_measured_us(job->trainer);
    hth_trainer_link(job->trainer, &in, &out);
    json_t *members = hth_train_group_row(job);
    json_t *times = json_pack(
        "{s:f, s:o, s:i, s:b, s:f, s:f, s:I, s:f, s:f}", "predicted_ms",
        hth_trainer_predicted_us(job->trainer) / 1e3, "measured_ms",
        measured > 0 ? json_real(measured / 1e3) : json_null(), "replans",
        hth_trainer_swaps(job->trainer), "planning", hth_trainer_plans(job->trainer), "step_ms",
        job->step_ms, "stall_ms", hth_trainer_stall_ms(job->trainer), "memory_bytes",
        (json_int_t)hth_trainer_memory_bytes(job->trainer), "link_in", in, "link_out", out);
    if (members != NULL) {
        json_object_set_new(times, "members", members);
    }
    if (job->replanned > 0) {
        json_object_set_new(times, "replanned", times_swap(job));
    }
    return times;
}

void hth_train_job_replanned(hth_train_job *job)
{
    char text[160];
    hth_train_swap swap = hth_trainer_swap(job->trainer);
    if (swap.step == job->replanned) {
        return;
    }
    job->replanned = swap.step;
    json_t *memory = hth_trainer_memory(job->trainer);
    if (memory != NULL) {
        json_decref(job->memory);
        job->memory = memory;
    }
    if (job->events.log != NULL) {
        snprintf(text, sizeof text,
                 "a better plan after step %lld: %.4g ms a step predicted in place of %.4g ms",
                 (long long)swap.step, swap.to_us / 1e3, swap.from_us / 1e3);
        job->events.log(job->events.ctx, "info", text);
    }
    snprintf(text, sizeof text, "{\"replanned\":{\"step\":%lld,\"from_ms\":%.9g,\"to_ms\":%.9g}}",
             (long long)swap.step, swap.from_us / 1e3, swap.to_us / 1e3);
    if (job->r->progress != NULL) {
        job->r->progress(job->r, text, (uint64_t)job->step, (uint64_t)job->steps);
    }
    if (job->events.fn != NULL) {
        job->events.fn(job->events.ctx, text, 1, 1); // however soon after a step
    }
}
