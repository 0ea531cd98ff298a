// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/microbatch.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/host.h"
#include "engine/serve/infer.h"

#include <assert.h>
#include <string.h>

// A slice must be this much faster than the whole: what is within the noise stays whole.
#define SLICE_GAIN 0.97
// Runs of each way that are timed, after one that is not, as each is that others' came before; the
// least counts.
#define SLICE_RUNS 2

// slice_tensor describes slice `i` of `tensor` with `samples` of `batch` samples.
static hth_tensor slice_tensor(const hth_tensor *tensor, int64_t batch, int64_t samples, int64_t i)
{
    hth_tensor s = *tensor;
    s.shape.dim[0] = samples;
    s.bytes = tensor->bytes / (size_t)batch * (size_t)samples;
    s.data = tensor->data == NULL ? NULL : (char *)tensor->data + (size_t)i * s.bytes;
    return s;
}

// slice_find finds or makes the program for slices of `samples` of what `program` computes.
static hth_err slice_find(hth_models *ms, hth_program *program, int64_t samples, bool tune,
                          hth_request *progress, hth_program **out)
{
    int n = program->graph->n_inputs;
    hth_tensor *key = hth_calloc((size_t)n, sizeof *key);
    if (key == NULL) {
        return hth_no_memory("a request");
    }
    for (int k = 0; k < n; k++) {
        key[k] = slice_tensor(&program->key[k], program->key[k].shape.dim[0], samples, 0);
    }
    hth_err err = hth_infer_program(ms, program->source, key, tune, progress, out);
    hth_free(key);
    return err;
}

static hth_err slice_run_as(hth_models *ms, hth_program *program, int64_t samples,
                            const hth_tensor *inputs, const hth_tensor *out,
                            const atomic_int *canceled)
{
    hth_program *q;
    int n_in = program->graph->n_inputs, n_out = program->graph->n_outputs;
    int64_t batch = program->key[0].shape.dim[0];
    HTH_TRY(slice_find(ms, program, samples, false, NULL, &q));
    hth_tensor *part = hth_calloc((size_t)(n_in + n_out), sizeof *part);
    hth_err err = part == NULL ? hth_no_memory("a request") : HTH_OK;
    for (int64_t i = 0; i < batch / samples && err == HTH_OK; i++) {
        for (int k = 0; k < n_in; k++) {
            part[k] = slice_tensor(&inputs[k], batch, samples, i);
        }
        for (int k = 0; k < n_out; k++) {
            part[n_in + k] = slice_tensor(&out[k], batch, samples, i);
        }
        err = hth_program_run(ms->site, q, part, part + n_in, canceled);
    }
    hth_free(part);
    return err;
}

hth_err hth_microbatch_run(hth_models *ms, hth_program *program, const hth_tensor *inputs,
                           const hth_tensor *out, const atomic_int *canceled)
{
    program->used_at = ++ms->site->clock; // also where only its slices' program is activated
    return program->slice > 0 ? slice_run_as(ms, program, program->slice, inputs, out, canceled)
                              : hth_program_run(ms->site, program, inputs, out, canceled);
}

hth_program *hth_microbatch_program(hth_models *ms, hth_program *program)
{
    hth_program *q;
    return program->slice > 0 && slice_find(ms, program, program->slice, false, NULL, &q) == HTH_OK
               ? q
               : program;
}

// slice_fits says that q computes p's outputs for `samples` samples, one after the other.
static bool slice_fits(const hth_program *p, const hth_program *q, int64_t samples)
{
    if (q->rest.graph != NULL || q->graph->n_outputs != p->graph->n_outputs) {
        return false;
    }
    for (int i = 0; i < p->graph->n_outputs; i++) {
        hth_tensor whole = hth_program_output(p, i), part = hth_program_output(q, i);
        if (whole.shape.rank < 1 || whole.shape.dim[0] != p->key[0].shape.dim[0]) {
            return false;
        }
        whole.shape.dim[0] = samples;
        if (!hth_shape_equal(&whole.shape, &part.shape)) {
            return false;
        }
    }
    return true;
}

// slice_within says that q takes no more of the device than p may: a slice's program is made for
// all of it, p perhaps for less (`bench --budget`).
static bool slice_within(const hth_program *p, const hth_program *q)
{
    uint64_t weights, arena;
    hth_program_ledger(q, &weights, &arena);
    return weights + arena <= p->budget;
}

// slice_time stores the least time of a run as slices of `samples` (0: whole), in nanoseconds.
static hth_err slice_time(hth_models *ms, hth_program *program, int64_t samples,
                          const hth_tensor *inputs, const hth_tensor *out,
                          const atomic_int *canceled, uint64_t *best)
{
    bool cold = true;
    *best = UINT64_MAX;
    for (int i = 0; i < SLICE_RUNS; i++) {
        for (int k = cold ? 0 : 1; k < 2; k++) {
            uint64_t start = hth_now_ns();
            HTH_TRY(samples > 0 ? slice_run_as(ms, program, samples, inputs, out, canceled)
                                : hth_program_run(ms->site, program, inputs, out, canceled));
            uint64_t ns = hth_now_ns() - start;
            *best = k > 0 && ns < *best ? ns : *best;
        }
        cold = hth_work_point(ms->site->queue);
    }
    return HTH_OK;
}

static hth_err slice_compare(hth_models *ms, hth_program *program, const hth_tensor *inputs,
                             const hth_tensor *out, hth_request *progress)
{
    static const int64_t sizes[] = {4, 1};
    const atomic_int *canceled = progress != NULL ? hth_request_canceled(progress) : NULL;
    int64_t batch = program->key[0].shape.dim[0];
    uint64_t best, ns;
    HTH_TRY(slice_time(ms, program, 0, inputs, out, canceled, &best));
    best = (uint64_t)((double)best * SLICE_GAIN);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        hth_program *q;
        if (batch <= sizes[i] || batch % sizes[i] != 0) {
            continue;
        }
        hth_err err = slice_find(ms, program, sizes[i], true, progress, &q);
        if (err == HTH_OK && slice_fits(program, q, sizes[i]) && slice_within(program, q)) {
            err = slice_time(ms, program, sizes[i], inputs, out, canceled, &ns);
            if (err == HTH_OK && ns < best) {
                best = ns;
                program->slice = sizes[i];
            }
        }
        if (err == HTH_ECANCELED || err == HTH_ENOMEM) {
            return err;
        }
    }
    return HTH_OK;
}

// slice_alloc makes inputs and outputs of program to compare with; *bytes are counted for them.
static hth_err slice_alloc(hth_site *site, const hth_program *program, hth_tensor *tensor,
                           uint64_t *bytes)
{
    int n_in = program->graph->n_inputs, n = n_in + program->graph->n_outputs;
    uint64_t all = 0;
    for (int i = 0; i < n; i++) {
        tensor[i] = i < n_in ? program->key[i] : hth_program_output(program, i - n_in);
        tensor[i].data = NULL;
        all = __builtin_add_overflow(all, tensor[i].bytes, &all) ? UINT64_MAX : all;
    }
    HTH_TRY(hth_host_take(site, HTH_HOST_BATCHES, all, "a comparison of slices"));
    *bytes = all;
    for (int i = 0; i < n; i++) {
        tensor[i].data = hth_alloc_aligned(tensor[i].bytes, HTH_DEVICE_ALIGN);
        if (tensor[i].data == NULL) {
            return hth_no_memory("measuring slices");
        }
        memset(tensor[i].data, 0,
               tensor[i].bytes); // a value that every model takes, indices included
    }
    return HTH_OK;
}

hth_err hth_microbatch_choose(hth_models *ms, hth_program *program, hth_request *progress)
{
    int n_in = program->graph->n_inputs, n = n_in + program->graph->n_outputs;
    program->slice = 0;
    program->sliced = true;
    if (!program->source->batched || program->value_inputs != 0 || program->rest.graph != NULL ||
        n_in == 0 || program->key[0].shape.dim[0] < 2 ||
        !hth_independence_covers(program->key, n_in, program->key[0].shape.dim[0])) {
        return HTH_OK;
    }
    hth_tensor *t = hth_calloc((size_t)n, sizeof *t);
    hth_err err = t == NULL ? hth_no_memory("measuring slices") : HTH_OK;
    uint64_t bytes = 0;
    program->held++;
    if (err == HTH_OK) {
        err = slice_alloc(ms->site, program, t, &bytes);
    }
    if (err == HTH_OK) {
        err = slice_compare(ms, program, t, t + n_in, progress);
    }
    assert(program->held > 0);
    program->held--;
    hth_host_give(ms->site, HTH_HOST_BATCHES, bytes);
    for (int i = 0; t != NULL && i < n; i++) {
        hth_free(t[i].data);
    }
    hth_free(t);
    return err == HTH_ECANCELED || err == HTH_ENOMEM ? err : HTH_OK;
}
