// SPDX-License-Identifier: Apache-2.0
// Programs compiled on demand. A model demands one program at a time, for the bucket that was
// requested last; requests for any bucket count, and each bucket's program is compiled in the end.
#include "engine/serve/serve_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/serve/infer.h"
#include "runtime/compile/compile.h"

// A larger program is made after so many runs that would have used it, or when the engine is idle.
#define DEMAND_TIMES 8
// For how long a program that could not be compiled is not demanded again.
#define DEMAND_RETRY_NS 60000000000u

// demand_fits: program fits, if need be once programs that are compiled again anyway were evicted.
static bool demand_fits(hth_site *site, const hth_program *program)
{
    return hth_program_room(site, program) ||
           (hth_program_evict_stale(site, program) && hth_program_room(site, program));
}

// Can requests share a run of `program`, of inputs like `key`?
static bool demand_joins(const hth_model *model, const hth_program *program, const hth_tensor *key,
                         int64_t samples)
{
    return hth_independence_covers(key, model->source.graph->n_inputs, samples) &&
           hth_batch_run_fits(program);
}

static uint64_t demand_time_ns(void *ctx, const hth_batch_item *like, int64_t samples)
{
    hth_serve *s = ctx;
    const hth_infer_request *w = (const hth_infer_request *)like;
    const hth_tensor *key = hth_infer_request_key(w, samples);
    const hth_program *p = hth_infer_ready(s->ms, &w->model->source, key);
    if (p == NULL || (samples != like->samples && !demand_joins(w->model, p, key, samples)) ||
        (hth_serve_tuning(s) && !p->active &&
         !hth_program_room(s->ms->site, p))) { // what is measured has its room
        return HTH_BATCH_NONE;
    }
    return p->run_ns;
}

static bool demand_alike(void *ctx, const hth_batch_item *a, const hth_batch_item *b)
{
    return hth_infer_request_alike((const hth_infer_request *)a, (const hth_infer_request *)b);
}

static bool demand_note(void *ctx, const hth_batch_item *like, int64_t samples)
{
    hth_serve *s = ctx;
    const hth_infer_request *w = (const hth_infer_request *)like;
    hth_model *m = w->model;
    hth_batch_demand *demand = &m->demand;
    const hth_tensor *key = hth_infer_request_key(w, samples);
    size_t n = (size_t)m->source.graph->n_inputs;
    if (!hth_independence_covers(key, (int)n, samples)) {
        return false;
    }
    if (m->too_many > 0 && samples >= m->too_many && hth_now_ns() < m->too_many_until_ns) {
        return false;
    }
    bool same = demand->key != NULL;
    for (size_t i = 0; i < n && same; i++) {
        same = hth_shape_equal(&demand->key[i].shape, &key[i].shape);
    }
    if (!same) {
        hth_free(demand->key);
        demand->key = hth_memdup(key, n * sizeof *key);
        demand->samples = samples;
    }
    if (++demand->times >= DEMAND_TIMES && s->demanded == NULL && demand->key != NULL) {
        s->demanded = m;
        hth_model_hold(m);
    }
    return true;
}

void hth_serve_compile(hth_serve *serve, hth_model *model)
{
    hth_batch_demand demand = model->demand;
    hth_program *p = NULL;
    model->demand = (hth_batch_demand){.key = NULL};
    if (hth_infer_ready(serve->ms, &model->source, demand.key) != NULL) {
        hth_free(demand.key); // a request of that size came first: it is not this one's to free
        return;
    }
    hth_model_hold(model);
    hth_err err = hth_infer_program(serve->ms, &model->source, demand.key, false, NULL, &p);
    bool serves = err == HTH_OK && hth_batch_run_fits(p) && demand_fits(serve->ms->site, p);
    if (!serves) {
        if (err == HTH_OK) {
            hth_program_free(serve->ms->site, p);
        }
        model->too_many = demand.samples;
        model->too_many_until_ns = hth_now_ns() + DEMAND_RETRY_NS;
    }
    hth_log(DEBUG, SERVER, "batch", "model=%s samples=%lld program=%s", model->name,
            (long long)demand.samples, serves ? "made" : "none");
    hth_free(demand.key);
    hth_model_rele(serve->ms, model);
}

void hth_serve_oracle(hth_serve *serve)
{
    hth_batch_oracle oracle = {
        .time_ns = demand_time_ns, .alike = demand_alike, .want = demand_note, .ctx = serve};
    hth_batcher_init(&serve->batcher, &oracle);
}
