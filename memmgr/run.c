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
static void *run_at(const hth_run *r, uint64_t offset)
{
    return offset == RUN_NOWHERE || r->arena == NULL ? NULL : r->arena + offset;
}

static hth_err run_resolve(hth_run *r, void *const *fixed)
{
    for (int i = 0; i < r->n_slots; i++) {
        const run_slot *s = &r->slots[i];
        if (s->tensor >= 0 && fixed[s->tensor] != NULL) {
            r->pointers[i] = fixed[s->tensor];
        } else if (s->offset != RUN_NOWHERE) {
            r->pointers[i] = run_at(r, s->offset);
        } else {
            r->pointers[i] = NULL;
            if (s->tensor >= 0 && r->spec.problem->tensors[s->tensor].bytes > 0) {
                const char *name = r->spec.problem->tensors[s->tensor].name;
                return hth_fail(HTH_EINVAL, "tensor '%s' is not bound to memory",
                                name ? name : "?");
            }
        }
    }
    return HTH_OK;
}

hth_err hth_run_bind(hth_run *r, void *arena, void *const *fixed)
{
    size_t bytes = (size_t)r->spec.problem->n_tensors * sizeof *fixed;
    if (r->is_bound && r->arena == arena && memcmp(r->bound, fixed, bytes) == 0) {
        return HTH_OK;
    }
    r->is_bound = false;
    run_capture_moved(r);
    r->arena = arena;
    memcpy(r->bound, fixed, bytes);
    HTH_TRY(run_resolve(r, fixed));
    for (int i = 0; i < r->n_steps; i++) {
        r->steps[i].args.workspace = r->steps[i].scratch ? *r->steps[i].scratch : NULL;
    }
    r->is_bound = true;
    return HTH_OK;
}

void *hth_run_filled(const hth_run *r, int tensor)
{
    return run_at(r, r->first[tensor]);
}

void *hth_run_left(const hth_run *r, int tensor)
{
    return run_at(r, r->last[tensor]);
}

// Running.

bool run_canceled(const hth_run *r)
{
    return r->canceled != NULL && *r->canceled != 0;
}

static hth_err run_kernel(const run_step *s)
{
    if (run_canceled(s->run)) {
        return hth_fail(HTH_ECANCELED, "canceled");
    }
    return s->kernel ? s->kernel->run(s->kernel, &s->args) : HTH_OK;
}

static void run_pause(hth_run *r)
{
    if (r->between != NULL) {
        r->between(r->between_ctx);
    }
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

static void run_note(hth_run *r, const run_step *s, uint64_t origin_ns, uint64_t from_ns,
                     uint64_t to_ns)
{
    double *t = r->times[s->instr - r->spec.plan->instrs];
    t[0] = (double)(int64_t)(from_ns - origin_ns) / 1e3;
    t[1] = (double)(int64_t)(to_ns - origin_ns) / 1e3;
}

static hth_err run_inline(hth_run *r, const run_step *s, uint64_t origin_ns)
{
    if (!r->measuring) {
        return run_kernel(s);
    }
    uint64_t from_ns = hth_now_ns();
    hth_err err = run_kernel(s);
    run_note(r, s, origin_ns, from_ns, hth_now_ns());
    return err;
}

static hth_err run_copy(run_step *s, hth_stream *stream)
{
    void *host = s->far != NULL ? s->far->memory : s->host;
    if (host == NULL) {
        return hth_stream_launch(stream, run_spilled, s);
    }
    return s->instr->kind == HTH_INSTR_PREFETCH
               ? hth_stream_copy(stream, *s->device, host, s->bytes)
               : hth_stream_copy(stream, host, *s->device, s->bytes);
}

static hth_err run_issue(hth_run *r, run_step *s, uint64_t origin_ns)
{
    hth_stream *stream = r->stream[s->lane];
    bool copies = r->inline_copies && s->lane != HTH_LANE_COMPUTE;
    bool stalls = r->inline_compute && (copies || (s->lane == HTH_LANE_COMPUTE && s->n_waits > 0));
    if (r->inline_compute && s->instr->kind == HTH_INSTR_COMPUTE) {
        run_pause(r);
    }
    uint64_t from_ns = stalls ? hth_now_ns() : 0;
    for (int j = 0; j < s->n_waits; j++) {
        HTH_TRY(hth_stream_wait(stream, r->waits[s->first_wait + j]));
    }
    r->stall_ns += stalls && !copies ? hth_now_ns() - from_ns : 0;
    bool timed = r->measuring && s->from != NULL;
    if (timed) {
        HTH_TRY(hth_stream_record(stream, s->from));
    }
    if (s->instr->kind == HTH_INSTR_COMPUTE) {
        HTH_TRY(r->inline_compute ? run_inline(r, s, origin_ns)
                                  : hth_stream_launch(stream, run_launched, s));
    } else if (s->lane != HTH_LANE_COMPUTE) {
        HTH_TRY(run_copy(s, stream));
        r->stall_ns += copies ? hth_now_ns() - from_ns : 0;
    }
    if (timed) {
        HTH_TRY(hth_stream_record(stream, s->to));
    }
    return s->done != NULL ? hth_stream_record(stream, s->done) : HTH_OK;
}

hth_err run_issue_all(hth_run *r, uint64_t origin_ns)
{
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < r->n_steps; i++) {
        err = run_canceled(r) ? hth_fail(HTH_ECANCELED, "canceled")
                              : run_issue(r, &r->steps[i], origin_ns);
    }
    return err;
}

hth_err run_drain(hth_run *r, hth_err err)
{
    char detail[512];
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    for (int l = 0; l < HTH_N_LANES; l++) {
        hth_err e = r->stream[l] ? hth_stream_sync(r->stream[l]) : HTH_OK;
        if (err == HTH_OK && e != HTH_OK) {
            err = e;
            snprintf(detail, sizeof detail, "%s", hth_err_detail());
        }
    }
    return err == HTH_OK ? HTH_OK : hth_fail(err, "%s", detail);
}

// What measuring needs, made before the first measured execution.
static hth_err run_prepare_times(hth_run *r)
{
    if (r->times != NULL) {
        return HTH_OK;
    }
    for (int i = 0; i < r->n_steps; i++) {
        run_step *s = &r->steps[i];
        bool timed = s->lane != HTH_LANE_COMPUTE ||
                     (s->instr->kind == HTH_INSTR_COMPUTE && !r->inline_compute);
        if (timed && s->from == NULL) {
            HTH_TRY(hth_event_open(r->spec.device, &s->from));
        }
        if (timed && s->to == NULL) {
            HTH_TRY(hth_event_open(r->spec.device, &s->to));
        }
    }
    r->times = hth_calloc((size_t)r->spec.plan->n_instrs, sizeof *r->times);
    return r->times ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for the times of a plan");
}

static void run_collect_times(hth_run *r, uint64_t origin_ns)
{
    for (int i = 0; i < r->n_steps; i++) { // a device may set its clock by what is read (event.c)
        if (r->steps[i].from != NULL) {
            (void)hth_event_time_ns(r->steps[i].to);
        }
    }
    for (int i = 0; i < r->n_steps; i++) {
        const run_step *s = &r->steps[i];
        if (s->from != NULL) {
            run_note(r, s, origin_ns, hth_event_time_ns(s->from), hth_event_time_ns(s->to));
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

static hth_err run_execute(hth_run *r)
{
    hth_err err = HTH_OK;
    if (r->measuring) {
        HTH_TRY(run_prepare_times(r));
    } else if (r->stream[HTH_LANE_COMPUTE] == NULL) { // nothing moves, kernels run here
        for (int i = 0; err == HTH_OK && i < r->n_steps; i++) {
            run_pause(r);
            err = run_kernel(&r->steps[i]);
        }
        return err;
    } else if (run_capture_possible(r) && run_capture_execute(r, &err)) {
        return err;
    }
    uint64_t origin_ns = hth_now_ns();
    err = run_issue_all(r, origin_ns);
    uint64_t last_ns = hth_now_ns();
    err = run_drain(r, err);
    r->stall_ns += r->inline_compute ? hth_now_ns() - last_ns : 0;
    if (r->measuring) {
        run_collect_times(r, origin_ns);
    }
    return err;
}

hth_err hth_run_execute(hth_run *r, const atomic_int *canceled)
{
    if (!r->is_bound) {
        return hth_fail(HTH_EINVAL, "a plan is run before its tensors were bound");
    }
    uint64_t scratch = (uint64_t)r->spec.device->props.budget_bytes * RUN_SCRATCH;
    hth_pace pace = {.most_work = UINT64_MAX,
                     .most_bytes = scratch > RUN_SCRATCH_MIN ? scratch : RUN_SCRATCH_MIN,
                     .turn = run_turn,
                     .ctx = r};
    r->canceled = canceled;
    r->stall_ns = 0;
    hth_pace *before = hth_pace_enter(&pace);
    hth_err err = run_execute(r);
    hth_pace_leave(before);
    return err;
}

uint64_t hth_run_stall_ns(const hth_run *r)
{
    return r->stall_ns;
}

void hth_run_between(hth_run *r, hth_run_between_fn fn, void *ctx)
{
    r->between = fn;
    r->between_ctx = ctx;
}

void hth_run_measure(hth_run *r, bool on)
{
    r->measuring = on;
}

const double (*hth_run_times(const hth_run *r))[2]
{
    return (const double(*)[2])r->times;
}
