// SPDX-License-Identifier: Apache-2.0
// The executor. A device whose launches run on the caller (device.h: inline_compute) gets its
// kernels called directly; if the plan moves nothing either, a run is a loop over kernel calls,
// without streams or events. A device whose copies do (inline_copies), too, makes each where the
// plan issues it: that order keeps all waits. Where offloads go to a file, the copies' streams
// launch its reads and writes instead. Where a device captures work, a run that repeats is captured
// (run_capture.c).
#include "memmgr/run_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pace.h"

#include <stdio.h>
#include <string.h>

// Binding.

// Where a plan needs no memory, the arena is NULL, and so is what has no bytes in it.
static void *run_at(const hth_run *run, uint64_t offset)
{
    return offset == RUN_NOWHERE || run->arena == NULL ? NULL : run->arena + offset;
}

static hth_err run_resolve(hth_run *run, void *const *fixed)
{
    for (int i = 0; i < run->n_slots; i++) {
        const run_slot *s = &run->slots[i];
        if (s->tensor >= 0 && fixed[s->tensor] != NULL) {
            run->pointers[i] = fixed[s->tensor];
        } else if (s->offset != RUN_NOWHERE) {
            run->pointers[i] = run_at(run, s->offset);
        } else {
            run->pointers[i] = NULL;
            if (s->tensor >= 0 && run->spec.problem->tensors[s->tensor].bytes > 0) {
                const char *name = run->spec.problem->tensors[s->tensor].name;
                return hth_fail(HTH_EINVAL, "tensor '%s' is not bound to memory",
                                name ? name : "?");
            }
        }
    }
    return HTH_OK;
}

hth_err hth_run_bind(hth_run *run, void *arena, void *const *fixed)
{
    size_t bytes = (size_t)run->spec.problem->n_tensors * sizeof *fixed;
    if (run->is_bound && run->arena == arena && memcmp(run->bound, fixed, bytes) == 0) {
        return HTH_OK;
    }
    run->is_bound = false;
    run_capture_moved(run);
    run->arena = arena;
    memcpy(run->bound, fixed, bytes);
    HTH_TRY(run_resolve(run, fixed));
    for (int i = 0; i < run->n_steps; i++) {
        run->steps[i].args.workspace = run->steps[i].scratch ? *run->steps[i].scratch : NULL;
    }
    run->is_bound = true;
    return HTH_OK;
}

void *hth_run_filled(const hth_run *run, int tensor)
{
    return run_at(run, run->first[tensor]);
}

void *hth_run_left(const hth_run *run, int tensor)
{
    return run_at(run, run->last[tensor]);
}

// Running.

bool run_canceled(const hth_run *run)
{
    return run->canceled != NULL && *run->canceled != 0;
}

static hth_err run_kernel(const run_step *step)
{
    if (run_canceled(step->run)) {
        return hth_fail(HTH_ECANCELED, "canceled");
    }
    return step->kernel ? step->kernel->run(step->kernel, &step->args) : HTH_OK;
}

static void run_pause(hth_run *run)
{
    do {
        if (run->between != NULL) {
            run->between(run->between_ctx);
        }
    } while (hth_device_pause(run->spec.device) && !run_canceled(run));
}

static hth_err run_launched(void *arg)
{
    return run_kernel(arg);
}

// On the thread of its stream.
static hth_err run_spilled(void *arg)
{
    const run_step *s = arg;
    hth_spill *file = s->far != NULL ? s->far->file : s->run->spill;
    uint64_t at = s->far != NULL ? s->far->at : s->at;
    return s->instr->kind == HTH_INSTR_OFFLOAD ? hth_spill_write(file, at, *s->device, s->bytes)
                                               : hth_spill_read(file, at, *s->device, s->bytes);
}

static void run_note(hth_run *run, const run_step *step, uint64_t origin_ns, uint64_t from_ns,
                     uint64_t to_ns)
{
    double *t = run->times[step->instr - run->spec.plan->instrs];
    t[0] = (double)(int64_t)(from_ns - origin_ns) / 1e3;
    t[1] = (double)(int64_t)(to_ns - origin_ns) / 1e3;
}

static hth_err run_inline(hth_run *run, const run_step *step, uint64_t origin_ns)
{
    uint64_t from_ns = run->measuring ? hth_now_ns() : 0;
    HTH_TRY(run_kernel(step));
    if (run->measuring) {
        run_note(run, step, origin_ns, from_ns, hth_now_ns());
    }
    run_written(run, step);
    return HTH_OK;
}

static hth_err run_copy(run_step *step, hth_stream *stream)
{
    void *host = step->far != NULL ? step->far->memory : step->host;
    if (host == NULL) {
        return hth_stream_launch(stream, run_spilled, step);
    }
    return step->instr->kind == HTH_INSTR_PREFETCH
               ? hth_stream_copy(stream, *step->device, host, step->bytes)
               : hth_stream_copy(stream, host, *step->device, step->bytes);
}

static hth_err run_issue(hth_run *run, run_step *step, uint64_t origin_ns)
{
    hth_stream *stream = run->stream[step->lane];
    bool copies = run->inline_copies && step->lane != HTH_LANE_COMPUTE;
    bool stalls =
        run->inline_compute && (copies || (step->lane == HTH_LANE_COMPUTE && step->n_waits > 0));
    if (run->inline_compute && step->instr->kind == HTH_INSTR_COMPUTE) {
        run_pause(run);
    }
    uint64_t from_ns = stalls ? hth_now_ns() : 0;
    for (int j = 0; j < step->n_waits; j++) {
        HTH_TRY(hth_stream_wait(stream, run->waits[step->first_wait + j]));
    }
    run->stall_ns += stalls && !copies ? hth_now_ns() - from_ns : 0;
    bool timed = run->measuring && step->from != NULL;
    if (timed) {
        HTH_TRY(hth_stream_record(stream, step->from));
    }
    if (step->instr->kind == HTH_INSTR_COMPUTE) {
        HTH_TRY(run->inline_compute ? run_inline(run, step, origin_ns)
                                    : hth_stream_launch(stream, run_launched, step));
    } else if (step->lane != HTH_LANE_COMPUTE) {
        HTH_TRY(run_copy(step, stream));
        run->stall_ns += copies ? hth_now_ns() - from_ns : 0;
    }
    if (timed) {
        HTH_TRY(hth_stream_record(stream, step->to));
    }
    return step->done != NULL ? hth_stream_record(stream, step->done) : HTH_OK;
}

hth_err run_issue_all(hth_run *run, uint64_t origin_ns)
{
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < run->n_steps; i++) {
        err = run_canceled(run) ? hth_fail(HTH_ECANCELED, "canceled")
                                : run_issue(run, &run->steps[i], origin_ns);
    }
    return err;
}

hth_err run_drain(hth_run *run, hth_err err)
{
    char detail[512];
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    for (int l = 0; l < HTH_N_LANES; l++) {
        hth_err e = run->stream[l] ? hth_stream_sync(run->stream[l]) : HTH_OK;
        if (err == HTH_OK && e != HTH_OK) {
            err = e;
            snprintf(detail, sizeof detail, "%s", hth_err_detail());
        }
    }
    return hth_err_restore(err, detail);
}

// What measuring needs, made before the first measured execution.
static hth_err run_prepare_times(hth_run *run)
{
    if (run->times != NULL) {
        return HTH_OK;
    }
    for (int i = 0; i < run->n_steps; i++) {
        run_step *s = &run->steps[i];
        bool timed = s->lane != HTH_LANE_COMPUTE ||
                     (s->instr->kind == HTH_INSTR_COMPUTE && !run->inline_compute);
        if (timed && s->from == NULL) {
            HTH_TRY(hth_event_open(run->spec.device, &s->from));
        }
        if (timed && s->to == NULL) {
            HTH_TRY(hth_event_open(run->spec.device, &s->to));
        }
    }
    run->times = hth_calloc((size_t)run->spec.plan->n_instrs, sizeof *run->times);
    return run->times ? HTH_OK : hth_no_memory("the times of a plan");
}

static void run_collect_times(hth_run *run, uint64_t origin_ns)
{
    for (int i = 0; i < run->n_steps; i++) { // a device may set its clock by what is read (event.c)
        if (run->steps[i].from != NULL) {
            (void)hth_event_time_ns(run->steps[i].to);
        }
    }
    for (int i = 0; i < run->n_steps; i++) {
        const run_step *s = &run->steps[i];
        if (s->from != NULL) {
            run_note(run, s, origin_ns, hth_event_time_ns(s->from), hth_event_time_ns(s->to));
        }
    }
}

// Kernels of rare operators count their work (base/pace.h), and may take memory to work in.
#define RUN_SCRATCH     4 // times the device's memory ..
#define RUN_SCRATCH_MIN ((uint64_t)1 << 30)

static hth_err run_turn(void *ctx)
{
    hth_run *r = ctx;
    run_pause(r);
    return run_canceled(r) ? hth_fail(HTH_ECANCELED, "canceled") : HTH_OK;
}

static hth_err run_execute(hth_run *run)
{
    hth_err err = HTH_OK;
    if (run->measuring) {
        HTH_TRY(run_prepare_times(run));
    } else if (run->stream[HTH_LANE_COMPUTE] == NULL) { // nothing moves, kernels run here
        for (int i = 0; err == HTH_OK && i < run->n_steps; i++) {
            run_pause(run);
            err = run_inline(run, &run->steps[i], 0);
        }
        return err;
    } else if (run_capture_possible(run) && run_capture_execute(run, &err)) {
        return err;
    }
    uint64_t origin_ns = hth_now_ns();
    err = run_issue_all(run, origin_ns);
    uint64_t last_ns = hth_now_ns();
    err = run_drain(run, err);
    run->stall_ns += run->inline_compute ? hth_now_ns() - last_ns : 0;
    if (run->measuring) {
        run_collect_times(run, origin_ns);
    }
    return err;
}

hth_err hth_run_execute(hth_run *run, const atomic_int *canceled)
{
    if (!run->is_bound) {
        return hth_fail(HTH_EINVAL, "a plan is run before its tensors were bound");
    }
    uint64_t scratch = (uint64_t)run->spec.device->props.budget_bytes * RUN_SCRATCH;
    hth_pace pace = {.most_work = UINT64_MAX,
                     .most_bytes = scratch > RUN_SCRATCH_MIN ? scratch : RUN_SCRATCH_MIN,
                     .turn = run_turn,
                     .ctx = run};
    run->canceled = canceled;
    run->stall_ns = 0;
    run->reported = 0;
    hth_pace *before = hth_pace_enter(&pace);
    hth_err err = run_execute(run);
    hth_pace_leave(before);
    return err;
}

uint64_t hth_run_stall_ns(const hth_run *run)
{
    return run->stall_ns;
}

void hth_run_between(hth_run *run, hth_run_between_fn fn, void *ctx)
{
    run->between = fn;
    run->between_ctx = ctx;
}

void hth_run_group(hth_run *run, const hth_kernel_group *group)
{
    for (int i = 0; i < run->n_steps; i++) {
        run->steps[i].args.group = group;
    }
}

void hth_run_measure(hth_run *run, bool on)
{
    run->measuring = on;
}

const double (*hth_run_times(const hth_run *run))[2]
{
    return (const double(*)[2])run->times;
}
