// SPDX-License-Identifier: Apache-2.0
// An inference request: bind its tensors to the model's inputs, find the program for their shapes
// (or compile one), ask the submitter where the outputs go, run. Models in stages (specialize.h)
// run stage after stage; what a stage hands to the next lives in host buffers of the request.
#include "engine/serve/infer.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/serve/capacity_error.h"
#include "runtime/compile/compile.h"
#include "runtime/host.h"
#include "runtime/tenants/quota.h"
#include "engine/serve/microbatch.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

// Whether a program suits what jobs leave of the device, and its model's others: it fits, was not
// squeezed into less, and has the forms of weights that they have, or has its own there still.
static bool infer_suits(const hth_program *program, uint64_t budget)
{
    uint64_t weights, arena;
    if (program->pinned || (program->stale && !program->active)) {
        return program->pinned;
    }
    hth_program_ledger(program, &weights, &arena);
    return weights + arena <= budget &&
           (!hth_program_squeezed(program) || program->budget >= budget);
}

hth_program *hth_infer_ready(hth_models *ms, hth_source *source, const hth_tensor *inputs)
{
    hth_program *p = hth_source_match(source, inputs);
    return p != NULL && infer_suits(p, hth_quota_models(ms->site, source->account)) ? p : NULL;
}

// Of a new measurement in the average, and how many times the average counts as stalled by others.
#define TIMED_WEIGHT  8
#define TIMED_OUTLIER 4

hth_err hth_infer_timed(hth_models *ms, hth_program *program, const hth_tensor *inputs,
                        const hth_tensor *out, const atomic_int *canceled,
                        hth_infer_request_times *times)
{
    hth_program *p = ms->site->later != NULL && program->narrow != NULL ? program->narrow : program;
    program->used_at = ++ms->site->clock;
    HTH_TRY(hth_microbatch_run(ms, p, inputs, out, canceled));
    times->infer_ns = hth_now_ns();
    uint64_t ns = times->infer_ns - times->input_ns, most = p->run_ns * TIMED_OUTLIER;
    if (p->n_timed++ == 0) {
        return HTH_OK; // the first run fetches weights and memory
    }
    ns = p->run_ns > 0 && ns > most ? most : ns;
    p->run_ns = p->run_ns == 0 ? ns : p->run_ns - p->run_ns / TIMED_WEIGHT + ns / TIMED_WEIGHT;
    p->run_ns += p->run_ns == 0;
    return HTH_OK;
}

// infer_make_place has a source's programs be fewer than there may be. Those that are pinned stay,
// and those that a call goes on with.
static void infer_make_place(hth_site *site, hth_source *source)
{
    while (source->n_programs >= HTH_PROGRAMS) {
        hth_program *last = NULL;
        for (hth_program *p = source->programs; p != NULL; p = p->next) {
            last = p->held == 0 && !p->pinned ? p : last;
        }
        if (last == NULL) {
            return;
        }
        hth_program_free(site, last);
    }
}

// infer_repin has `made` take the place of `pinned`, its pin, too, and frees that one; or `made`,
// where there is no room for it now. Returns the one that is pinned.
static hth_program *infer_repin(hth_site *site, hth_program *pinned, hth_program *made)
{
    bool moved = hth_program_pin_move(site, pinned, made) == HTH_OK;
    hth_program *goes = moved ? pinned : made;
    if (goes->held == 0) {
        hth_program_free(site, goes);
    }
    return moved ? made : pinned;
}

hth_err hth_infer_program(hth_models *ms, hth_source *source, const hth_tensor *inputs, bool tune,
                          hth_request *progress, hth_program **out)
{
    hth_site *site = ms->site;
    hth_program *p = hth_source_match(source, inputs), *pinned = NULL;
    uint64_t budget = hth_quota_models(site, source->account);
    if (p != NULL && ((p->tuned && !p->stale) || !tune) && infer_suits(p, budget)) {
        *out = p;
        return HTH_OK;
    }
    bool again = p != NULL && p->stale, tuned = again && p->tuned;
    uint64_t runs = again ? p->runs : 0;
    if (p != NULL && p->pinned) { // its own memory is not in `budget`
        pinned = p;
        budget = hth_program_instead(site, p);
    } else if (p == NULL || p->held == 0) {
        hth_program_free(site, p);
    }
    infer_make_place(site, source);
    hth_err err = hth_program_compile(site, source, inputs, budget, tune, progress, out);
    if (err == HTH_OK) {
        (*out)->tuned |= tuned;
        (*out)->runs = runs;
        *out = pinned != NULL ? infer_repin(site, pinned, *out) : *out;
    }
    return err == HTH_ETOOBIG && !site->host_refused
               ? hth_capacity_error_refuse(site, source, inputs)
               : err;
}

typedef struct infer_state {
    hth_models *ms;
    hth_infer_request *w;
    hth_request *r;
    int depth;
    hth_infer_request_times t;
} infer_state;

static hth_err infer_stage(infer_state *st, hth_source *source, const hth_tensor *inputs,
                           const int *output_map);

static hth_err infer_last_stage(infer_state *st, hth_program *program, const hth_tensor *inputs,
                                const int *output_map)
{
    int n = program->graph->n_outputs;
    hth_tensor *out = hth_calloc((size_t)n, sizeof *out);
    if (out == NULL) {
        return hth_no_memory("a request");
    }
    hth_err err = hth_infer_request_place(st->ms, st->w, program, output_map, -1);
    st->t.input_ns = hth_now_ns();
    for (int i = 0; i < n; i++) {
        out[i] = st->r->outputs[output_map[program->final_index[i]]].t;
    }
    if (err == HTH_OK) {
        err = hth_infer_timed(st->ms, program, inputs, out, &st->r->canceled, &st->t);
    }
    hth_free(out);
    return err;
}

// infer_stage_alloc makes the buffers of a stage that feeds another; *bytes of the host's memory
// are counted for them.
static hth_err infer_stage_alloc(infer_state *st, const hth_program *program, hth_tensor *out,
                                 uint64_t *bytes)
{
    int n = program->graph->n_outputs;
    uint64_t all = 0;
    for (int i = 0; i < n; i++) {
        out[i] = hth_program_output(program, i);
        all += out[i].bytes; // each is below 2^63: two that are so large are refused as one is
        if (out[i].bytes > UINT64_MAX / 4 || all > UINT64_MAX / 4) {
            return hth_fail(HTH_ETOOBIG, "a stage's results take more memory than there is");
        }
    }
    HTH_TRY(hth_host_take(st->ms->site, HTH_HOST_STAGES, all,
                          "the output of stage %d of model '%.60s'", st->depth,
                          st->w->model->name));
    *bytes = all;
    for (int i = 0; i < n; i++) {
        out[i].data = hth_alloc_aligned(out[i].bytes, HTH_DEVICE_ALIGN);
        if (out[i].data == NULL) {
            return hth_no_memory("a result of %zu bytes", out[i].bytes);
        }
    }
    return HTH_OK;
}

// infer_middle_stage runs a stage whose results feed another. Final outputs that it already gives
// stay in its own buffers until the last stage knows all sizes, and are copied to their places
// then: nobody else is ever shown these buffers.
static hth_err infer_middle_stage(infer_state *st, hth_program *program, const hth_tensor *inputs,
                                  const int *output_map)
{
    const hth_graph *g = program->graph, *rest = program->rest.graph;
    int n = g->n_outputs, n_passed = g->n_inputs;
    hth_err err = HTH_OK;
    uint64_t bytes = 0;
    hth_tensor *out = hth_calloc((size_t)n, sizeof *out);
    hth_tensor *next = hth_calloc((size_t)rest->n_inputs, sizeof *next);
    int *map = hth_calloc((size_t)rest->n_outputs, sizeof *map);
    if (out == NULL || next == NULL || map == NULL) {
        err = hth_no_memory("a request");
        goto out;
    }
    HTH_GOTO(infer_stage_alloc(st, program, out, &bytes), out);
    HTH_GOTO(hth_program_run(st->ms->site, program, inputs, out, &st->r->canceled), out);
    memcpy(next, inputs, (size_t)n_passed * sizeof *next);
    memcpy(next + n_passed, out + program->n_final, (size_t)(n - program->n_final) * sizeof *next);
    for (int i = 0; i < program->n_final; i++) {
        HTH_GOTO(hth_infer_request_describe(st->w, output_map[program->final_index[i]], &out[i]),
                 out);
    }
    // The rest's outputs are the model's outputs that this stage did not give, in order.
    for (int i = 0, k = 0; i < program->source->graph->n_outputs; i++) {
        bool given = false;
        for (int f = 0; f < program->n_final; f++) {
            given |= program->final_index[f] == i;
        }
        if (!given && k < rest->n_outputs) {
            map[k++] = output_map[i];
        }
    }
    HTH_GOTO(infer_stage(st, &program->rest, next, map), out);
    for (int i = 0; i < program->n_final; i++) { // placed by now
        memcpy(st->r->outputs[output_map[program->final_index[i]]].t.data, out[i].data,
               out[i].bytes);
    }
out:
    for (int i = 0; out != NULL && i < n; i++) {
        hth_free(out[i].data);
    }
    hth_host_give(st->ms->site, HTH_HOST_STAGES, bytes);
    hth_free(out);
    hth_free(next);
    hth_free(map);
    return err;
}

static hth_err infer_stage(infer_state *st, hth_source *source, const hth_tensor *inputs,
                           const int *output_map)
{
    hth_program *p;
    if (++st->depth > 64) {
        return hth_fail(HTH_ENOTSUP, "the model needs more than 64 stages");
    }
    HTH_TRY(hth_infer_program(st->ms, source, inputs, false, st->r, &p));
    st->w->model->alone |= p->rest.graph != NULL || p->value_inputs != 0;
    p->held++;
    hth_err err = p->rest.graph == NULL ? infer_last_stage(st, p, inputs, output_map)
                                        : infer_middle_stage(st, p, inputs, output_map);
    assert(p->held > 0);
    p->held--;
    return err;
}

hth_err hth_infer(hth_models *ms, hth_infer_request *infer)
{
    hth_model *m = infer->model;
    infer_state st = {.ms = ms, .w = infer, .r = infer->r, .t = {.start_ns = infer->r->started_ns}};
    int n = m->source.graph->n_outputs;
    int *map = hth_calloc((size_t)n, sizeof *map);
    hth_err err = map == NULL ? hth_no_memory("a request") : hth_infer_request_outputs(infer);
    if (err == HTH_OK) {
        for (int i = 0; i < n; i++) {
            map[i] = i;
        }
        err = infer_stage(&st, &m->source, infer->inputs, map);
    }
    st.t.output_ns = st.t.infer_ns;
    if (err == HTH_OK) {
        hth_infer_request_ran(m, infer->item.samples, &st.t);
    }
    if (err != HTH_ENODEVMEM) {
        hth_infer_request_count(ms, m, infer->r, &st.t, err);
    }
    hth_free(map);
    return err;
}
