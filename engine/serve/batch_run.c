// SPDX-License-Identifier: Apache-2.0
// A joined run computes in memory of its own: inputs are copied in, outputs out. That costs two
// passes over the tensors, a hundredth of what a network does with them, and means that a request
// that is canceled or fails can be dropped while the others go on. What pads the batch to its
// bucket is zero: no request ever sees another's values.
#include "engine/serve/batch_run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/host.h"
#include "engine/serve/infer.h"

#include <assert.h>
#include <string.h>

bool hth_batch_run_fits(const hth_program *program)
{
    bool fits =
        program->rest.graph == NULL && program->value_inputs == 0 && program->graph->n_inputs > 0;
    for (int i = 0; fits && i < program->graph->n_outputs; i++) {
        hth_tensor t = hth_program_output(program, i);
        fits = t.shape.rank > 0 && t.shape.dim[0] == program->key[0].shape.dim[0];
    }
    return fits;
}

static size_t aligned(size_t bytes)
{
    return (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
}

// join_spare gives the memory back where no run uses it.
static bool join_spare(void *ctx)
{
    hth_batch_run *run = ctx;
    bool idle = run->memory != NULL && run->n == 0;
    if (idle) {
        hth_batch_run_fini(run);
    }
    return idle;
}

// join_tensors describes the joined inputs and outputs of program, in run's memory.
static hth_err join_tensors(hth_batch_run *run, hth_site *site, const hth_program *program,
                            hth_tensor *tensor)
{
    int n_in = program->graph->n_inputs, n = n_in + program->graph->n_outputs;
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        tensor[i] = i < n_in ? program->key[i] : hth_program_output(program, i - n_in);
        bytes += aligned(tensor[i].bytes);
    }
    if (bytes > run->bytes) {
        hth_batch_run_fini(run);
        HTH_TRY(hth_host_take(site, HTH_HOST_BATCHES, bytes, "a joined run"));
        run->memory = hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
        if (run->memory == NULL) {
            hth_host_give(site, HTH_HOST_BATCHES, bytes);
            return hth_no_memory("a joined run of %zu bytes", bytes);
        }
        run->bytes = bytes;
        run->site = site;
        site->host_spare = join_spare;
        site->host_spare_ctx = run;
    }
    char *at = run->memory;
    for (int i = 0; i < n; i++) {
        tensor[i].data = at;
        at += aligned(tensor[i].bytes);
    }
    return HTH_OK;
}

static void join_gather(hth_infer_request **work, int n, hth_tensor *in, int n_in)
{
    for (int i = 0; i < n_in; i++) {
        char *at = in[i].data, *end = at + in[i].bytes;
        for (int k = 0; k < n; k++) {
            size_t bytes = work[k]->inputs[i].bytes;
            if (work[k]->placed) {
                memcpy(at, work[k]->inputs[i].data, bytes);
            } else {
                memset(at, 0, bytes);
            }
            at += bytes;
        }
        memset(at, 0, (size_t)(end - at));
    }
}

// join_scatter copies each request's rows of the outputs out. samples: of all, as they were joined.
static void join_scatter(hth_infer_request **work, int n, const int64_t *samples,
                         const hth_program *program, const hth_tensor *out)
{
    for (int i = 0; i < program->graph->n_outputs; i++) {
        const char *at = out[i].data;
        size_t row = out[i].bytes / (size_t)out[i].shape.dim[0];
        for (int k = 0; k < n; k++) {
            size_t bytes = row * (size_t)samples[k];
            if (work[k] != NULL && work[k]->placed) {
                memcpy(work[k]->r->outputs[program->final_index[i]].t.data, at, bytes);
            }
            at += bytes;
        }
    }
}

// join_alone runs one of the requests, whose outputs have their place, by itself.
static hth_err join_alone(hth_models *ms, hth_infer_request *request,
                          hth_infer_request_times *times)
{
    hth_program *p;
    times->start_ns = times->input_ns = hth_now_ns();
    HTH_TRY(hth_infer_program(ms, &request->model->source, request->inputs, false, request->r, &p));
    hth_tensor *out = hth_calloc((size_t)p->graph->n_outputs, sizeof *out);
    if (out == NULL) {
        return hth_no_memory("a request");
    }
    for (int i = 0; i < p->n_final; i++) {
        out[i] = request->r->outputs[p->final_index[i]].t;
    }
    p->held++; // its slices' program may have to be made
    hth_err err = hth_infer_timed(ms, p, request->inputs, out, &request->r->canceled, times);
    assert(p->held > 0);
    p->held--;
    times->output_ns = times->infer_ns;
    hth_free(out);
    return err;
}

typedef struct joined {
    hth_program *p;
    hth_tensor *t; // inputs, then outputs
    int64_t *samples;
    int64_t total;
} joined;

static hth_err join_place(hth_models *ms, hth_infer_request **work, int n, joined *x)
{
    bool any = false;
    for (int k = 0; k < n; k++) {
        x->samples[k] = work[k]->item.samples;
        x->total += x->samples[k];
        hth_err err = hth_infer_request_outputs(work[k]);
        if (err == HTH_OK) {
            err = hth_infer_request_place(ms, work[k], x->p, NULL, x->samples[k]);
        }
        hth_infer_request_result(work[k], err);
        any = any || work[k]->r->err == HTH_OK;
    }
    return any ? HTH_OK : HTH_ECANCELED;
}

// join_end gives each request that is still there its result.
static void join_end(hth_models *ms, const hth_batch_run *run, const hth_infer_request_times *times,
                     hth_err ran)
{
    for (int k = 0; k < run->n; k++) {
        hth_infer_request *w = run->work[k];
        hth_infer_request_times own = *times;
        if (w == NULL) {
            continue;
        }
        w->done = true; // from here on it answers to its own `canceled`
        if (w->r->err == HTH_OK && ran != HTH_OK) {
            hth_infer_request_result(w, join_alone(ms, w, &own));
            if (w->r->err == HTH_OK) {
                hth_infer_request_ran(w->model, w->item.samples, &own);
            }
        }
        if (w->r->err != HTH_ENODEVMEM) {
            hth_infer_request_count(ms, w->model, w->r, &own, w->r->err);
        }
    }
}

static void join_compute(hth_batch_run *run, hth_models *ms, hth_model *model, joined *x)
{
    int n_in = x->p->graph->n_inputs;
    hth_infer_request_times t = {.start_ns = run->work[0]->r->started_ns};
    hth_err ran = join_place(ms, run->work, run->n, x);
    if (ran == HTH_OK) {
        join_gather(run->work, run->n, x->t, n_in);
        t.input_ns = hth_now_ns();
        ran = hth_infer_timed(ms, x->p, x->t, x->t + n_in, &run->stop, &t);
    }
    if (ran == HTH_OK) {
        join_scatter(run->work, run->n, x->samples, x->p, x->t + n_in);
        t.output_ns = hth_now_ns();
        hth_infer_request_ran(model, x->total, &t);
    }
    join_end(ms, run, &t, ran);
}

hth_err hth_batch_run_run(hth_batch_run *run, hth_models *ms, hth_infer_request **work, int count,
                          int64_t bucket)
{
    joined x = {.p = NULL};
    hth_model *m = work[0]->model;
    assert(m->source.batched); // no request ever shares a run unless that is proven harmless
    ms->site->refused_over = ms->site->refused_bytes = 0;
    HTH_TRY(hth_infer_program(ms, &m->source, hth_infer_request_key(work[0], bucket), false, NULL,
                              &x.p));
    if (!hth_batch_run_fits(x.p)) {
        m->alone = true;
        return hth_fail(HTH_ENOTSUP, "the model's outputs are not per sample");
    }
    x.p->held++; // others' programs may be let go of for the run's memory
    x.t = hth_calloc((size_t)(x.p->graph->n_inputs + x.p->graph->n_outputs), sizeof *x.t);
    x.samples = hth_calloc((size_t)count, sizeof *x.samples);
    hth_err made = x.t == NULL || x.samples == NULL ? hth_no_memory("a joined run")
                                                    : join_tensors(run, ms->site, x.p, x.t);
    if (made == HTH_OK) {
        run->work = work;
        run->n = count;
        run->stop = 0;
        join_compute(run, ms, m, &x);
        run->work = NULL;
        run->n = 0;
    }
    assert(x.p->held > 0);
    x.p->held--;
    hth_free(x.t);
    hth_free(x.samples);
    return made;
}

void hth_batch_run_fini(hth_batch_run *run)
{
    if (run->memory != NULL) {
        hth_host_give(run->site, HTH_HOST_BATCHES, run->bytes);
        run->site->host_spare = NULL;
    }
    hth_free(run->memory);
    run->memory = NULL;
    run->bytes = 0;
}
