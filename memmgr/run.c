// SPDX-License-Identifier: Apache-2.0
// The executor. Opening turns the plan into steps: which stream, which events to wait for, which
// pointers to fill in. A wait becomes an event only where it crosses streams and is not implied by
// an earlier wait of the same stream.
//
// A device whose launches run on the caller (device.h: inline_compute) gets its kernels called
// directly; if the plan moves nothing either, a run is a loop over kernel calls, without streams or
// events. Where offloads go to a file, the copies' streams launch its reads and writes instead.
#include "memmgr/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "memmgr/plan_parts.h"

#include <stdio.h>
#include <string.h>

#define RUN_NOWHERE   UINT64_MAX
#define RUN_HOST_PAGE 4096

// Where one pointer of one step comes from.
typedef struct run_slot {
    int tensor; // -1: a place in the arena
    uint64_t offset;
} run_slot;

typedef struct run_step {
    struct hth_run *run;
    const hth_instr *instr;
    hth_lane lane;
    const hth_kernel *kernel; // compute
    hth_kernel_args args;
    void **scratch; // .. and the pointer to its workspace
    void **device;  // copies: the pointer on the device's side
    // copies: the other side, which is the tensor's own far place, a place in the host slab, or
    // (both NULL) `at` of the spill file
    const hth_run_far *far;
    void *host;
    uint64_t at;
    size_t bytes;
    int first_wait, n_waits;
    hth_event *done;      // NULL: nobody on another stream waits for it
    hth_event *from, *to; // measuring, when it does not run on the caller
} run_step;

struct hth_run {
    hth_run_spec spec;
    bool inline_compute;
    hth_stream *stream[HTH_N_LANES]; // NULL: nothing runs there
    int n_steps, n_slots, n_waits;
    run_step *steps;
    run_slot *slots;
    void **pointers;   // [n_slots], what the slots resolve to
    hth_event **waits; // events, in slices of the steps
    void *host_slab;
    hth_spill *spill; // in its place
    void **bound;     // [n_tensors], as bound last
    char *arena;
    bool is_bound, measuring;
    double (*times)[2]; // [n_instrs]
    const atomic_int *canceled;
    uint64_t stall_ns; // of the last execution
};

// Opening.

typedef struct run_builder {
    hth_run *r;
    uint64_t *place; // per tensor: offset in the arena, RUN_NOWHERE: not there
    uint64_t *host;  // per tensor: offset in the host slab, RUN_NOWHERE: never offloaded
    uint64_t *spill; // per tensor: position in the spill file, RUN_NOWHERE: none yet
    uint64_t spill_bytes;
    bool *filled; // per tensor: has content, or no place
    int *step_of; // per instruction, -1: none
    int seen[HTH_N_LANES]
            [HTH_N_LANES]; // newest instruction of a stream that a stream has waited for
} run_builder;

static void **run_add_slot(hth_run *r, int tensor, uint64_t offset)
{
    r->slots[r->n_slots] = (run_slot){tensor, offset};
    return &r->pointers[r->n_slots++];
}

static void run_build_compute(run_builder *b, run_step *s)
{
    hth_run *r = b->r;
    const hth_instr *in = s->instr;
    const hth_run_spec *spec = &r->spec;
    s->kernel = spec->kernels[in->node];
    s->args.in = &r->pointers[r->n_slots];
    for (int j = 0; j < spec->n_in[in->node]; j++) {
        int t = spec->node_in[in->node][j];
        run_add_slot(r, t, t < 0 ? RUN_NOWHERE : b->place[t]);
    }
    s->args.out = &r->pointers[r->n_slots];
    uint64_t workspace = hth_plan_workspace(&spec->problem->nodes[in->node], in->alt);
    uint64_t spare =
        in->offset + hth_plan_round(workspace); // a recompute's outputs that nobody needs
    for (int j = 0; j < spec->n_out[in->node]; j++) {
        int t = spec->node_out[in->node][j];
        if (t >= 0 && in->recompute && b->filled[t]) {
            run_add_slot(r, -1, spare);
            spare += hth_plan_round(spec->problem->tensors[t].bytes);
            continue;
        }
        int old = t >= 0 ? spec->problem->tensors[t].replaces - 1 : -1; // where an update goes
        run_add_slot(r, t, t < 0 ? RUN_NOWHERE : b->place[old >= 0 ? old : t]);
        if (t >= 0) {
            b->filled[t] = true;
        }
    }
    bool scratch = workspace > 0;
    s->scratch = run_add_slot(r, -1, scratch ? in->offset : RUN_NOWHERE);
}

// In the file every tensor has a range of its own: a disk has room, and positions are aligned.
static uint64_t run_spill_place(run_builder *b, int t)
{
    if (b->spill[t] == RUN_NOWHERE) {
        b->spill[t] = b->spill_bytes;
        b->spill_bytes += (b->r->spec.problem->tensors[t].bytes + HTH_SPILL_ALIGN - 1) /
                          HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
    }
    return b->spill[t];
}

static hth_err run_build_copy(run_builder *b, run_step *s)
{
    hth_run *r = b->r;
    int t = s->instr->tensor;
    const hth_plan_tensor *x = &r->spec.problem->tensors[t];
    if (s->instr->kind == HTH_INSTR_OFFLOAD) {
        bool slab = hth_plan_home(x) != HTH_HOME_RESIDENT; // else back to where it came from
        b->host[t] = slab ? s->instr->offset : RUN_NOWHERE;
    } else {
        b->place[t] = s->instr->offset;
        b->filled[t] = true;
    }
    s->bytes = x->bytes;
    s->device = run_add_slot(r, -1, b->place[t]);
    if (b->host[t] != RUN_NOWHERE && r->spec.spill_dir != NULL) {
        s->at = run_spill_place(b, t);
        return HTH_OK;
    }
    if (b->host[t] != RUN_NOWHERE) {
        s->host = (char *)r->host_slab + b->host[t];
        return HTH_OK;
    }
    s->far = r->spec.far[t];
    return s->far != NULL ? HTH_OK
                          : hth_fail(HTH_EINVAL, "weight '%s' is streamed, but has no far place",
                                     x->name ? x->name : "?");
}

// Keeps the waits of instruction i that another stream must be waited for; marks who must record an
// event.
static hth_err run_build_waits(run_builder *b, run_step *s)
{
    hth_run *r = b->r;
    s->first_wait = r->n_waits;
    for (int j = 0; j < s->instr->n_waits; j++) {
        int w = s->instr->waits[j];
        run_step *other = b->step_of[w] >= 0 ? &r->steps[b->step_of[w]] : NULL;
        if (other == NULL || other->lane == s->lane || b->seen[s->lane][other->lane] >= w) {
            continue;
        }
        b->seen[s->lane][other->lane] = w;
        if (other->done == NULL) {
            HTH_TRY(hth_event_open(r->spec.device, &other->done));
        }
        r->waits[r->n_waits++] = other->done;
        s->n_waits++;
    }
    return HTH_OK;
}

static hth_err run_build_step(run_builder *b, int i)
{
    hth_run *r = b->r;
    const hth_instr *in = &r->spec.plan->instrs[i];
    run_step *s = &r->steps[r->n_steps];
    b->step_of[i] = -1;
    if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE) {
        b->place[in->tensor] = in->kind == HTH_INSTR_ALLOC ? in->offset : RUN_NOWHERE;
        b->filled[in->tensor] = in->kind == HTH_INSTR_FREE;
        if (in->n_waits == 0) {
            return HTH_OK;
        }
    }
    *s = (run_step){.run = r, .instr = in, .lane = hth_instr_lane(in)};
    b->step_of[i] = r->n_steps++;
    if (in->kind == HTH_INSTR_COMPUTE) {
        run_build_compute(b, s);
    } else if (s->lane != HTH_LANE_COMPUTE) {
        HTH_TRY(run_build_copy(b, s));
    }
    return run_build_waits(b, s);
}

static hth_err run_open_streams(hth_run *r)
{
    static const hth_stream_kind kind[] = {HTH_STREAM_COMPUTE, HTH_STREAM_H2D, HTH_STREAM_D2H};
    bool needed[HTH_N_LANES] = {!r->inline_compute};
    for (int i = 0; i < r->spec.plan->n_instrs; i++) {
        hth_lane l = hth_instr_lane(&r->spec.plan->instrs[i]);
        needed[l] = needed[l] || l != HTH_LANE_COMPUTE;
    }
    needed[HTH_LANE_COMPUTE] =
        needed[HTH_LANE_COMPUTE] || needed[HTH_LANE_H2D] || needed[HTH_LANE_D2H];
    for (int l = 0; l < HTH_N_LANES; l++) {
        if (needed[l]) {
            HTH_TRY(hth_stream_open(r->spec.device, kind[l], &r->stream[l]));
        }
    }
    return HTH_OK;
}

static hth_err run_alloc(hth_run *r)
{
    const hth_run_spec *spec = &r->spec;
    size_t slots = 0, waits = 0, n = (size_t)spec->plan->n_instrs;
    for (size_t i = 0; i < n; i++) {
        const hth_instr *in = &spec->plan->instrs[i];
        waits += (size_t)in->n_waits;
        slots += in->kind == HTH_INSTR_COMPUTE
                     ? (size_t)(spec->n_in[in->node] + spec->n_out[in->node]) + 1
                     : 1;
    }
    r->steps = hth_calloc(n, sizeof *r->steps);
    r->slots = hth_calloc(slots, sizeof *r->slots);
    r->pointers = hth_calloc(slots, sizeof *r->pointers);
    r->waits = hth_calloc(waits, sizeof *r->waits);
    r->bound = hth_calloc((size_t)spec->problem->n_tensors, sizeof *r->bound);
    bool slab = spec->plan->host_bytes > 0 && spec->spill_dir == NULL;
    if (slab) {
        r->host_slab = hth_alloc_aligned(spec->plan->host_bytes, RUN_HOST_PAGE);
    }
    if (r->host_slab != NULL) { // no page is new in the first step
        memset(r->host_slab, 0, spec->plan->host_bytes);
    }
    bool complete = r->steps && r->slots && r->pointers && r->waits && r->bound;
    return complete && (r->host_slab || !slab)
               ? HTH_OK
               : hth_fail(HTH_ENOMEM, "no memory to run a plan of %zu instructions", n);
}

static hth_err run_build(hth_run *r)
{
    size_t n_tensors = (size_t)r->spec.problem->n_tensors;
    run_builder b = {.r = r,
                     .place = hth_alloc(n_tensors * sizeof *b.place),
                     .host = hth_alloc(n_tensors * sizeof *b.host),
                     .spill = hth_alloc(n_tensors * sizeof *b.spill),
                     .filled = hth_alloc(n_tensors * sizeof *b.filled),
                     .step_of = hth_alloc((size_t)r->spec.plan->n_instrs * sizeof *b.step_of)};
    memset(b.seen, -1, sizeof b.seen);
    hth_err err = b.place && b.host && b.spill && b.filled && b.step_of
                      ? HTH_OK
                      : hth_fail(HTH_ENOMEM, "no memory to run a plan");
    if (err == HTH_OK) {
        memset(b.place, 0xFF, n_tensors * sizeof *b.place);
        memset(b.host, 0xFF, n_tensors * sizeof *b.host);
        memset(b.spill, 0xFF, n_tensors * sizeof *b.spill);
        memset(b.filled, true, n_tensors * sizeof *b.filled);
    }
    for (int i = 0; err == HTH_OK && i < r->spec.plan->n_instrs; i++) {
        err = run_build_step(&b, i);
    }
    if (err == HTH_OK && b.spill_bytes > 0) {
        err = hth_spill_open(r->spec.spill_dir, b.spill_bytes, &r->spill);
    }
    hth_free(b.place);
    hth_free(b.host);
    hth_free(b.spill);
    hth_free(b.filled);
    hth_free(b.step_of);
    return err;
}

hth_err hth_run_open(const hth_run_spec *spec, hth_run **out)
{
    *out = NULL;
    hth_run *r = hth_calloc(1, sizeof *r);
    if (r == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to run a plan");
    }
    r->spec = *spec;
    r->inline_compute = spec->device->props.inline_compute;
    hth_err err;
    if (spec->spill_dir != NULL && !spec->device->props.host_visible) {
        err = hth_fail(HTH_ENOTSUP, "device %s: its memory cannot be spilled to a file",
                       spec->device->props.name);
        goto fail;
    }
    HTH_GOTO(run_open_streams(r), fail);
    HTH_GOTO(run_alloc(r), fail);
    HTH_GOTO(run_build(r), fail);
    *out = r;
    return HTH_OK;
fail:
    hth_run_close(r);
    return err;
}

void hth_run_close(hth_run *r)
{
    if (r == NULL) {
        return;
    }
    for (int l = 0; l < HTH_N_LANES; l++) {
        hth_stream_close(r->stream[l]);
    }
    for (int i = 0; i < r->n_steps; i++) {
        hth_event_close(r->steps[i].done);
        hth_event_close(r->steps[i].from);
        hth_event_close(r->steps[i].to);
    }
    hth_free(r->steps);
    hth_free(r->slots);
    hth_free(r->pointers);
    hth_free(r->waits);
    hth_free(r->bound);
    hth_spill_close(r->spill);
    hth_free(r->host_slab);
    hth_free(r->times);
    hth_free(r);
}

// Binding.

static hth_err run_resolve(hth_run *r, void *const *fixed)
{
    for (int i = 0; i < r->n_slots; i++) {
        const run_slot *s = &r->slots[i];
        if (s->tensor >= 0 && fixed[s->tensor] != NULL) {
            r->pointers[i] = fixed[s->tensor];
        } else if (s->offset != RUN_NOWHERE) {
            r->pointers[i] = r->arena + s->offset;
        } else {
            r->pointers[i] = NULL;
            if (s->tensor >= 0 && r->spec.problem->tensors[s->tensor].bytes > 0) {
                const char *name = r->spec.problem->tensors[s->tensor].name;
                return hth_fail(HTH_EINVAL, "tensor '%s' was bound to no memory",
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
    r->arena = arena;
    memcpy(r->bound, fixed, bytes);
    HTH_TRY(run_resolve(r, fixed));
    for (int i = 0; i < r->n_steps; i++) {
        r->steps[i].args.workspace = r->steps[i].scratch ? *r->steps[i].scratch : NULL;
    }
    r->is_bound = true;
    return HTH_OK;
}

// Running.

static bool run_canceled(const hth_run *r)
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
    bool stalls = r->inline_compute && s->lane == HTH_LANE_COMPUTE && s->n_waits > 0;
    uint64_t from_ns = stalls ? hth_now_ns() : 0;
    for (int j = 0; j < s->n_waits; j++) {
        HTH_TRY(hth_stream_wait(stream, r->waits[s->first_wait + j]));
    }
    r->stall_ns += stalls ? hth_now_ns() - from_ns : 0;
    bool timed = r->measuring && s->from != NULL;
    if (timed) {
        HTH_TRY(hth_stream_record(stream, s->from));
    }
    if (s->instr->kind == HTH_INSTR_COMPUTE) {
        HTH_TRY(r->inline_compute ? run_inline(r, s, origin_ns)
                                  : hth_stream_launch(stream, run_launched, s));
    } else if (s->lane != HTH_LANE_COMPUTE) {
        HTH_TRY(run_copy(s, stream));
    }
    if (timed) {
        HTH_TRY(hth_stream_record(stream, s->to));
    }
    return s->done != NULL ? hth_stream_record(stream, s->done) : HTH_OK;
}

// Waits for all streams; the first failure, `err` before any, is what is returned, with its
// sentence.
static hth_err run_drain(hth_run *r, hth_err err)
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
    for (int i = 0; i < r->n_steps; i++) {
        const run_step *s = &r->steps[i];
        if (s->from != NULL) {
            run_note(r, s, origin_ns, hth_event_time_ns(s->from), hth_event_time_ns(s->to));
        }
    }
}

hth_err hth_run_execute(hth_run *r, const atomic_int *canceled)
{
    hth_err err = HTH_OK;
    if (!r->is_bound) {
        return hth_fail(HTH_EINVAL, "a plan is run before its tensors were bound");
    }
    r->canceled = canceled;
    r->stall_ns = 0;
    if (r->measuring) {
        HTH_TRY(run_prepare_times(r));
    } else if (r->stream[HTH_LANE_COMPUTE] == NULL) { // nothing moves, kernels run here
        for (int i = 0; err == HTH_OK && i < r->n_steps; i++) {
            err = run_kernel(&r->steps[i]);
        }
        return err;
    }
    uint64_t origin_ns = hth_now_ns();
    for (int i = 0; err == HTH_OK && i < r->n_steps; i++) {
        err = run_canceled(r) ? hth_fail(HTH_ECANCELED, "canceled")
                              : run_issue(r, &r->steps[i], origin_ns);
    }
    uint64_t last_ns = hth_now_ns();
    err = run_drain(r, err);
    r->stall_ns += r->inline_compute ? hth_now_ns() - last_ns : 0;
    if (r->measuring) {
        run_collect_times(r, origin_ns);
    }
    return err;
}

uint64_t hth_run_stall_ns(const hth_run *r)
{
    return r->stall_ns;
}

void hth_run_measure(hth_run *r, bool on)
{
    r->measuring = on;
}

const double (*hth_run_times(const hth_run *r))[2]
{
    return (const double(*)[2])r->times;
}
