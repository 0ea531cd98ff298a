// SPDX-License-Identifier: Apache-2.0
// The arenas of concurrent runs are taken when they begin and given back when they end: the
// first is the site's, which nobody else uses meanwhile. All programs are active before any runs,
// and nothing else is made active until the last has ended, so nothing moves under a run.
#include "engine/serve/instances.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "engine/serve/infer.h"
#include "engine/serve/serve.h"

#include <string.h>

// Runs shorter than this are handed over for more than they gain.
#define INSTANCES_LEAST_NS 1000000u
// Runs with all threads before others are thought of, and requests in a row that had to wait.
#define INSTANCES_RUNS    4
#define INSTANCES_OVERLAP 4
// Concurrent runs must be this much faster; every so many chances the slower way is taken, so that
// what was measured stays recent.
#define INSTANCES_GAIN  0.97
#define INSTANCES_OTHER 256
// After so long other duties are next.
#define INSTANCES_ROUND_NS 2000000000u
// To measure, so many runs' time will do.
#define INSTANCES_TRIAL   8
#define INSTANCES_POLL_NS 1000000u
#define INSTANCES_WEIGHT  8 // of a new measurement in the average

hth_instances_split hth_instances_split_of(int threads, int most, uint64_t arena_bytes,
                                           uint64_t free_bytes)
{
    int n = most > threads ? threads : most;
    while (n > 1 && (uint64_t)(n - 1) * arena_bytes > free_bytes) {
        n -= n / 2;
    }
    return n > 1 ? (hth_instances_split){n, threads / n} : (hth_instances_split){0, 0};
}

static hth_instances_split instances_split(const hth_site *site, const hth_program *p)
{
    int most = (int)hth_setting_int(HTH_SET_COMPUTE_INSTANCES);
    hth_pool_ledger l;
    hth_pool_ledger_get(site->pool, &l);
    return hth_instances_split_of(site->device->props.n_threads,
                                  most < HTH_INSTANCES ? most : HTH_INSTANCES, p->plan->arena_bytes,
                                  l.free_bytes);
}

// instances_ns is what a run takes, per run, when all are at work; 0: not known.
static uint64_t instances_ns(const hth_program *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->n_instances; i++) {
        if (p->instance[i]->run_ns == 0) {
            return 0;
        }
        sum += p->instance[i]->run_ns;
    }
    return sum / (uint64_t)p->n_instances / (uint64_t)p->n_instances;
}

static void instances_demand(hth_instances *x, hth_infer_request *w)
{
    size_t n = (size_t)w->model->source.graph->n_inputs;
    if (x->demanded != NULL || (x->key = hth_memdup(w->inputs, n * sizeof *x->key)) == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        x->key[i].data = NULL;
    }
    x->demanded = w->model;
    hth_model_hold(w->model);
}

// instances_program is the program of the one request in *pick if it is to run concurrently.
static hth_program *instances_program(hth_serve *s, hth_pick *pick)
{
    hth_infer_request *w = pick->work[0];
    hth_model *m = w->model;
    hth_site *site = s->ms->site;
    bool early = w->item.arrived_ns < m->ended_ns;
    m->overlapped = early ? m->overlapped + 1 : 0;
    if (!site->device->props.inline_compute || site->shares != NULL || s->memory_wait.n > 0 ||
        w->r->canceled || (m->queue.n == 0 && m->overlapped < INSTANCES_OVERLAP)) {
        return NULL;
    }
    hth_program *p = hth_infer_ready(s->ms, &m->source, w->inputs);
    if (p == NULL || !p->active || p->stale || p->no_instances || p->n_timed < INSTANCES_RUNS ||
        p->run_ns < INSTANCES_LEAST_NS) {
        return NULL;
    }
    hth_instances_split split = instances_split(site, p);
    if (split.runs == 0) {
        return NULL;
    }
    if (p->n_instances != split.runs || p->instance[0]->threads != split.threads) {
        instances_demand(&s->instances, w);
        return NULL;
    }
    uint64_t ns = instances_ns(p);
    bool better = ns == 0 || (double)ns < (double)p->run_ns * INSTANCES_GAIN;
    s->instances.round_ns = ns > 0 && better ? INSTANCES_ROUND_NS : INSTANCES_TRIAL * p->run_ns;
    return better != (ns > 0 && ++p->chances % INSTANCES_OTHER == 0) ? p : NULL;
}

bool hth_instances_compile(hth_serve *serve)
{
    hth_instances *x = &serve->instances;
    hth_site *site = serve->ms->site;
    hth_model *m = x->demanded;
    if (m == NULL) {
        return false;
    }
    hth_program *p = m->gone ? NULL : hth_infer_ready(serve->ms, &m->source, x->key);
    hth_instances_split split = p != NULL ? instances_split(site, p) : (hth_instances_split){0, 0};
    while (split.runs > 0 && p->n_instances > 0 &&
           (p->n_instances > split.runs || p->instance[0]->threads != split.threads)) {
        hth_program_free(site, p->instance[--p->n_instances]);
    }
    if (p != NULL && p->n_instances < split.runs &&
        hth_program_compile_instance(site, p, split.threads) != HTH_OK) {
        hth_log(DEBUG, SERVER, "instances", "model=%s %s", m->name, hth_err_detail());
        p->no_instances = true;
    }
    x->demanded = NULL;
    hth_free(x->key);
    x->key = NULL;
    hth_model_rele(serve->ms, m);
    return true;
}

// ---- memory

static void instances_leave(hth_site *site, hth_program *p, int n)
{
    for (int i = 0; i < n; i++) {
        hth_program *q = p->instance[i];
        q->running = false;
        if (q->arena != NULL) {
            hth_pool_free(site->pool, q->arena);
            q->arena = NULL;
        }
        if (q->active) {
            hth_program_deactivate(site, q);
        }
    }
    p->held--;
    site->freed++;
}

// instances_enter gives each program its weights and an arena.
static hth_err instances_enter(hth_site *site, hth_program *p)
{
    hth_err err = HTH_OK;
    p->held++;
    for (int i = 0; i < p->n_instances && err == HTH_OK; i++) {
        err = hth_program_activate(site, p->instance[i]);
        p->instance[i]->running = err == HTH_OK; // stays
    }
    for (int i = 1; i < p->n_instances && err == HTH_OK; i++) {
        hth_program *q = p->instance[i];
        size_t bytes = q->plan->arena_bytes;
        err = hth_pool_alloc(site->pool, bytes, HTH_POOL_ARENA, &q->arena);
        if (err == HTH_OK && site->arena_cleared && bytes > 0) {
            memset(q->arena, 0, bytes);
        }
    }
    if (err != HTH_OK) {
        instances_leave(site, p, p->n_instances);
    }
    return err;
}

// ---- runs

static hth_err run_execute(void *arg)
{
    const hth_instance_run *x = arg;
    return hth_run_execute(x->p->run, &x->work->r->canceled);
}

// run_prepare binds the run of `w`; the outputs are placed by who asked.
static hth_err run_prepare(hth_serve *s, hth_instance_run *x, hth_infer_request *w)
{
    x->out = hth_calloc((size_t)x->p->graph->n_outputs, sizeof *x->out);
    if (x->out == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a request");
    }
    HTH_TRY(hth_infer_request_outputs(w));
    HTH_TRY(hth_infer_request_place(s->ms, w, x->p, NULL, -1));
    for (int i = 0; i < x->p->n_final; i++) {
        x->out[i] = w->r->outputs[x->p->final_index[i]].t;
    }
    x->t.input_ns = hth_now_ns();
    return hth_program_begin(s->ms->site, x->p, w->inputs, x->out);
}

// run_answer ends the request of `x`, which keeps nothing of it.
static void run_answer(hth_serve *s, hth_instance_run *x, hth_infer_request *w, hth_err err, int n)
{
    hth_model *m = w->model;
    x->t.output_ns = x->t.infer_ns = hth_now_ns();
    hth_infer_request_result(w, err);
    if (err == HTH_OK) {
        hth_program *p = x->p;
        uint64_t ns = x->t.infer_ns - x->t.input_ns;
        bool crowded = true; // only the time while all instances are at work counts
        for (int i = 0; i < n; i++) {
            crowded = crowded && s->instances.run[i].work != NULL;
        }
        if (crowded && p->n_timed++ > 0) { // the first one touches memory
            hth_batcher_note_stall(&s->batcher, p->run_ns, ns, x->t.infer_ns);
            p->run_ns = p->run_ns == 0
                            ? ns
                            : p->run_ns - p->run_ns / INSTANCES_WEIGHT + ns / INSTANCES_WEIGHT;
        }
        m->concurrent_runs++;
        hth_infer_request_ran(m, w->item.samples, &x->t);
    }
    hth_infer_request_count(s->ms, m, w->r, &x->t, err);
    uint64_t took_ns = (x->t.output_ns - x->t.start_ns) / (uint64_t)n;
    hth_batcher_end(&s->batcher, &m->queue, w->item.samples, took_ns);
    hth_batch_bill_settle(&x->bill, took_ns);
    hth_free(x->out);
    x->out = NULL;
    x->work = NULL;
    hth_serve_ran(s, w);
}

static void run_begin(hth_serve *s, hth_instance_run *x, const hth_pick *pick, int n)
{
    hth_infer_request *w = pick->work[0];
    x->bill = pick->bill;
    x->t = (hth_infer_request_times){.start_ns = w->r->started_ns, .input_ns = w->r->started_ns};
    hth_batcher_begin(&s->batcher, &w->model->queue, w->item.samples, w->r->started_ns);
    hth_err err = w->r->canceled ? hth_fail(HTH_ECANCELED, "canceled") : run_prepare(s, x, w);
    if (err != HTH_OK) {
        run_answer(s, x, w, err, n);
        return;
    }
    x->work = w;
    hth_instance_start(x->instance, run_execute, x);
}

// instances_collect answers what has ended; returns how many still run. all: waits for them.
static int instances_collect(hth_serve *s, int n, bool all)
{
    int busy = 0;
    for (int i = 0; i < n; i++) {
        hth_instance_run *x = &s->instances.run[i];
        if (x->work != NULL && !all && hth_instance_busy(x->instance)) {
            busy++;
        } else if (x->work != NULL) {
            hth_err err = hth_instance_wait(x->instance);
            err = err == HTH_OK ? hth_program_end(s->ms->site, x->p, x->work->inputs, x->out) : err;
            run_answer(s, x, x->work, err, n);
        }
    }
    return busy;
}

static hth_instance_run *instances_idle(hth_instances *x, int n)
{
    int i = 0;
    while (i < n && x->run[i].work != NULL) {
        i++;
    }
    return i < n ? &x->run[i] : NULL;
}

// instances_fits says that what was picked is another run of p.
static bool instances_fits(const hth_model *m, hth_program *p, const hth_pick *pick)
{
    return pick->bucket == 0 && pick->work[0]->model == m &&
           hth_source_match(p->source, pick->work[0]->inputs) == p;
}

static bool instances_open(hth_serve *s, const hth_program *p)
{
    for (int i = 0; i < p->n_instances; i++) {
        hth_instance_run *x = &s->instances.run[i];
        const hth_instance_config c = {
            .name = "instance", .threads = p->instance[i]->threads, .done = s->wake, .ctx = s->ctx};
        if (x->threads != c.threads) {
            hth_instance_close(x->instance);
            x->instance = NULL;
            x->threads = c.threads;
        }
        if (x->instance == NULL && hth_instance_open(&c, &x->instance) != HTH_OK) {
            return false;
        }
        x->p = p->instance[i];
    }
    return true;
}

// instances_round hands runs out and gets them back until nothing more fits in.
static void instances_round(hth_serve *s, hth_program *p, hth_pick *pick)
{
    hth_model *m = pick->work[0]->model;
    int n = p->n_instances;
    bool more = true;
    uint64_t until_ns = hth_now_ns() + s->instances.round_ns, wake_ns;
    run_begin(s, &s->instances.run[0], pick, n);
    pick->n = 0;
    for (;;) {
        hth_serve_poll(s);
        int busy = instances_collect(s, n, !more);
        hth_instance_run *idle = instances_idle(&s->instances, n);
        bool hand =
            pick->n == 0 && s->first == NULL && idle != NULL && more && hth_now_ns() < until_ns;
        if (hand && hth_serve_pick(s, (hth_batch_filter){.hurry = true}, pick, &wake_ns)) {
            if (instances_fits(m, p, pick)) {
                run_begin(s, idle, pick, n);
                pick->n = 0;
            }
        } else if (busy == 0) {
            return;
        } else {
            more = s->wait(s->ctx, INSTANCES_POLL_NS);
        }
    }
}

void hth_instances_run(hth_serve *serve, hth_pick *pick)
{
    hth_site *site = serve->ms->site;
    hth_program *p = instances_program(serve, pick);
    if (p == NULL || !instances_open(serve, p) || instances_enter(site, p) != HTH_OK) {
        return;
    }
    hth_model *m = pick->work[0]->model;
    hth_model_hold(m);
    instances_round(serve, p, pick);
    instances_leave(site, p, p->n_instances);
    hth_model_rele(serve->ms, m);
}

void hth_instances_fini(hth_instances *instances)
{
    for (int i = 0; i < HTH_INSTANCES; i++) {
        hth_instance_close(instances->run[i].instance);
        instances->run[i].instance = NULL;
    }
    hth_free(instances->key);
    instances->key = NULL;
}
