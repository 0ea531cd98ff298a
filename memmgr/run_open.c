// SPDX-License-Identifier: Apache-2.0
// Opening a run: the plan becomes steps: which stream, which events to wait for, which pointers to
// fill in. A wait becomes an event only where it crosses streams and is not implied by an earlier
// wait of the same stream.
#include "memmgr/run_impl.h"

#include "base/alloc.h"
#include "base/pace.h"

#include <string.h>

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

static void **run_add_slot(hth_run *run, int tensor, uint64_t offset)
{
    run->slots[run->n_slots] = (run_slot){tensor, offset};
    return &run->pointers[run->n_slots++];
}

static void run_note_place(hth_run *run, int tensor, uint64_t offset)
{
    run->first[tensor] = run->first[tensor] == RUN_NOWHERE ? offset : run->first[tensor];
    run->last[tensor] = offset;
}

static void run_build_compute(run_builder *builder, run_step *step)
{
    hth_run *r = builder->r;
    const hth_instr *in = step->instr;
    const hth_run_spec *spec = &r->spec;
    step->kernel = spec->kernels[in->node];
    step->args.in = &r->pointers[r->n_slots];
    for (int j = 0; j < spec->n_in[in->node]; j++) {
        int t = spec->node_in[in->node][j];
        run_add_slot(r, t, t < 0 ? RUN_NOWHERE : builder->place[t]);
    }
    step->args.out = &r->pointers[r->n_slots];
    uint64_t workspace = hth_plan_workspace(&spec->problem->nodes[in->node], in->alt);
    uint64_t spare =
        in->offset + hth_plan_round(workspace); // a recompute's outputs that nobody needs
    for (int j = 0; j < spec->n_out[in->node]; j++) {
        int t = spec->node_out[in->node][j];
        if (t >= 0 && in->recompute && builder->filled[t]) {
            run_add_slot(r, -1, spare);
            spare += hth_plan_round(spec->problem->tensors[t].bytes);
            continue;
        }
        if (t < 0) {
            run_add_slot(r, t, RUN_NOWHERE);
        } else {
            int old = spec->problem->tensors[t].replaces - 1; // where an update goes
            run_add_slot(r, t, builder->place[old >= 0 ? old : t]);
            builder->filled[t] = true;
        }
    }
    bool scratch = workspace > 0;
    step->scratch = run_add_slot(r, -1, scratch ? in->offset : RUN_NOWHERE);
}

// In the file every tensor has a range of its own: a disk has room, and positions are aligned.
static uint64_t run_spill_place(run_builder *builder, int t)
{
    if (builder->spill[t] == RUN_NOWHERE) {
        builder->spill[t] = builder->spill_bytes;
        builder->spill_bytes += (builder->r->spec.problem->tensors[t].bytes + HTH_SPILL_ALIGN - 1) /
                                HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
    }
    return builder->spill[t];
}

static hth_err run_build_copy(run_builder *builder, run_step *step)
{
    hth_run *r = builder->r;
    int t = step->instr->tensor;
    const hth_plan_tensor *x = &r->spec.problem->tensors[t];
    if (step->instr->kind == HTH_INSTR_OFFLOAD) {
        bool slab = hth_plan_home(x) != HTH_HOME_RESIDENT; // else back to where it came from
        builder->host[t] = slab ? step->instr->offset : RUN_NOWHERE;
    } else {
        builder->place[t] = step->instr->offset;
        builder->filled[t] = true;
        run_note_place(r, t, builder->place[t]);
    }
    step->bytes = x->bytes;
    step->device = run_add_slot(r, -1, builder->place[t]);
    if (builder->host[t] != RUN_NOWHERE && r->spec.spill_dir != NULL) {
        step->at = run_spill_place(builder, t);
        return HTH_OK;
    }
    if (builder->host[t] != RUN_NOWHERE) {
        step->host = (char *)r->host_slab + builder->host[t];
        return HTH_OK;
    }
    step->far = r->spec.far[t];
    if (step->far == NULL) {
        return hth_fail(HTH_EINVAL, "weight '%s' is streamed, but has no copy in host memory",
                        x->name ? x->name : "?");
    }
    return HTH_OK;
}

// Keeps the waits of instruction i that another stream must be waited for; marks who must record an
// event.
static hth_err run_build_waits(run_builder *builder, run_step *step)
{
    hth_run *r = builder->r;
    step->first_wait = r->n_waits;
    for (int j = 0; j < step->instr->n_waits; j++) {
        int w = step->instr->waits[j];
        run_step *other = builder->step_of[w] >= 0 ? &r->steps[builder->step_of[w]] : NULL;
        if (other == NULL || r->inline_copies || other->lane == step->lane ||
            builder->seen[step->lane][other->lane] >= w) {
            continue;
        }
        builder->seen[step->lane][other->lane] = w;
        if (other->done == NULL) {
            HTH_TRY(hth_event_open(r->spec.device, &other->done));
        }
        r->waits[r->n_waits++] = other->done;
        step->n_waits++;
    }
    return HTH_OK;
}

static hth_err run_build_step(run_builder *builder, int i)
{
    hth_run *r = builder->r;
    const hth_instr *in = &r->spec.plan->instrs[i];
    run_step *s = &r->steps[r->n_steps];
    builder->step_of[i] = -1;
    if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE) {
        builder->place[in->tensor] = in->kind == HTH_INSTR_ALLOC ? in->offset : RUN_NOWHERE;
        run_note_place(r, in->tensor, builder->place[in->tensor]);
        builder->filled[in->tensor] = in->kind == HTH_INSTR_FREE;
        if (in->n_waits == 0) {
            return HTH_OK;
        }
    }
    *s = (run_step){.run = r, .instr = in, .lane = hth_instr_lane(in)};
    builder->step_of[i] = r->n_steps++;
    if (in->kind == HTH_INSTR_COMPUTE) {
        run_build_compute(builder, s);
    } else if (s->lane != HTH_LANE_COMPUTE) {
        HTH_TRY(run_build_copy(builder, s));
    }
    return run_build_waits(builder, s);
}

static hth_err run_open_streams(hth_run *run)
{
    static const hth_stream_kind kind[] = {HTH_STREAM_COMPUTE, HTH_STREAM_H2D, HTH_STREAM_D2H};
    bool needed[HTH_N_LANES] = {!run->inline_compute};
    for (int i = 0; i < run->spec.plan->n_instrs; i++) {
        hth_lane l = hth_instr_lane(&run->spec.plan->instrs[i]);
        needed[l] = needed[l] || l != HTH_LANE_COMPUTE;
    }
    needed[HTH_LANE_COMPUTE] =
        needed[HTH_LANE_COMPUTE] || needed[HTH_LANE_H2D] || needed[HTH_LANE_D2H];
    for (int l = 0; l < HTH_N_LANES; l++) {
        if (needed[l]) {
            hth_stream_kind k = run->inline_copies ? HTH_STREAM_COMPUTE : kind[l];
            HTH_TRY(hth_stream_open(run->spec.device, k, &run->stream[l]));
        }
    }
    return HTH_OK;
}

static hth_err run_alloc(hth_run *run)
{
    const hth_run_spec *spec = &run->spec;
    size_t slots = 0, waits = 0, n = (size_t)spec->plan->n_instrs;
    for (size_t i = 0; i < n; i++) {
        const hth_instr *in = &spec->plan->instrs[i];
        waits += (size_t)in->n_waits;
        slots += in->kind == HTH_INSTR_COMPUTE
                     ? (size_t)(spec->n_in[in->node] + spec->n_out[in->node]) + 1
                     : 1;
    }
    run->steps = hth_calloc(n, sizeof *run->steps);
    run->slots = hth_calloc(slots, sizeof *run->slots);
    run->pointers = hth_calloc(slots, sizeof *run->pointers);
    run->waits = hth_calloc(waits, sizeof *run->waits);
    size_t tensors = (size_t)spec->problem->n_tensors;
    run->bound = hth_calloc(tensors, sizeof *run->bound);
    run->first = hth_calloc(tensors, sizeof *run->first);
    run->last = hth_calloc(tensors, sizeof *run->last);
    if (run->first != NULL && run->last != NULL) {
        memset(run->first, 0xFF, tensors * sizeof *run->first);
        memset(run->last, 0xFF, tensors * sizeof *run->last);
    }
    if (spec->plan->host_bytes > 0 && spec->spill_dir == NULL) {
        HTH_TRY(hth_device_reserve_host(spec->device, spec->plan->host_bytes, &run->host_slab));
        run->host_bytes = spec->plan->host_bytes;
        HTH_TRY(hth_pace_fill(run->host_slab, NULL, run->host_bytes)); // no page is new in a step
    }
    bool complete = run->steps && run->slots && run->pointers && run->waits && run->bound &&
                    run->first && run->last;
    return complete ? HTH_OK : hth_no_memory("running a plan of %zu instructions", n);
}

static hth_err run_build(hth_run *run)
{
    size_t n_tensors = (size_t)run->spec.problem->n_tensors;
    run_builder b = {.r = run,
                     .place = hth_alloc(n_tensors * sizeof *b.place),
                     .host = hth_alloc(n_tensors * sizeof *b.host),
                     .spill = hth_alloc(n_tensors * sizeof *b.spill),
                     .filled = hth_alloc(n_tensors * sizeof *b.filled),
                     .step_of = hth_alloc((size_t)run->spec.plan->n_instrs * sizeof *b.step_of)};
    memset(b.seen, -1, sizeof b.seen);
    hth_err err = b.place && b.host && b.spill && b.filled && b.step_of
                      ? HTH_OK
                      : hth_no_memory("running a plan");
    if (err == HTH_OK) {
        memset(b.place, 0xFF, n_tensors * sizeof *b.place);
        memset(b.host, 0xFF, n_tensors * sizeof *b.host);
        memset(b.spill, 0xFF, n_tensors * sizeof *b.spill);
        memset(b.filled, true, n_tensors * sizeof *b.filled);
    }
    for (int i = 0; err == HTH_OK && i < run->spec.plan->n_instrs; i++) {
        err = run_build_step(&b, i);
    }
    if (err == HTH_OK && b.spill_bytes > 0) {
        err = hth_spill_open(run->spec.spill_dir, b.spill_bytes, &run->spill);
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
        return hth_no_memory("running a plan");
    }
    r->spec = *spec;
    r->inline_compute = spec->device->props.inline_compute;
    r->inline_copies = spec->device->props.inline_copies && spec->spill_dir == NULL;
    r->capture.after = 1;
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

void hth_run_close(hth_run *run)
{
    if (run == NULL) {
        return;
    }
    for (int l = 0; l < HTH_N_LANES; l++) {
        hth_stream_close(run->stream[l]);
    }
    run_capture_close(run);
    for (int i = 0; i < run->n_steps; i++) {
        hth_event_close(run->steps[i].done);
        hth_event_close(run->steps[i].from);
        hth_event_close(run->steps[i].to);
    }
    hth_free(run->steps);
    hth_free(run->slots);
    hth_free(run->pointers);
    hth_free(run->waits);
    hth_free(run->bound);
    hth_free(run->first);
    hth_free(run->last);
    hth_spill_close(run->spill);
    hth_device_release_host(run->spec.device, run->host_slab, run->host_bytes);
    hth_free(run->times);
    hth_free(run->wanted);
    hth_free(run->watched);
    hth_free(run);
}
