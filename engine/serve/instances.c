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
#include "runtime/compile/compile.h"

#include <assert.h>
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

static hth_instances_split instances_split(const hth_site *site, const hth_program *program)
{
    int most = (int)hth_setting_int(HTH_SET_COMPUTE_INSTANCES);
    hth_pool_ledger l;
    hth_pool_ledger_get(site->pool, &l);
    return hth_instances_split_of(site->device->props.n_threads,
                                  most < HTH_INSTANCES ? most : HTH_INSTANCES,
                                  program->plan->arena_bytes, l.free_bytes);
}

// instances_ns is what a run takes, per run, when all are at work; 0: not known.
static uint64_t instances_ns(const hth_program *program)
{
    uint64_t sum = 0;
    for (int i = 0; i < program->n_instances; i++) {
        if (program->instance[i]->run_ns == 0) {
            return 0;
        }
        sum += program->instance[i]->run_ns;
    }
    return sum / (uint64_t)program->n_instances / (uint64_t)program->n_instances;
}

void hth_instances_demand(hth_instances *instances, const hth_infer_request *request, bool narrow)
{
    size_t n = (size_t)request->model->source.graph->n_inputs;
    if (instances->demanded != NULL ||
        (instances->key = hth_memdup(request->inputs, n * sizeof *instances->key)) == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        instances->key[i].data = NULL;
    }
    instances->demanded = request->model;
    instances->narrow = narrow;
    hth_model_hold(request->model);
}

// instances_program is the program of the one request in *pick if it is to run concurrently.
static hth_program *instances_program(hth_serve *serve, hth_pick *pick)
{
    hth_infer_request *w = pick->work[0];
    hth_model *m = w->model;
    hth_site *site = serve->ms->site;
    bool early = w->item.arrived_ns < m->ended_ns;
    m->overlapped = early ? m->overlapped + 1 : 0;
    if (!site->device->props.inline_compute || site->shares != NULL || serve->memory_wait.n > 0 ||
        w->r->canceled || (m->queue.n == 0 && m->overlapped < INSTANCES_OVERLAP)) {
        return NULL;
    }
    hth_program *p = hth_infer_ready(serve->ms, &m->source, w->inputs);
    if (p == NULL || !p->active || p->stale || p->no_instances || p->n_timed < INSTANCES_RUNS ||
        p->run_ns < INSTANCES_LEAST_NS) {
        return NULL;
    }
    hth_instances_split split = instances_split(site, p);
    if (split.runs == 0) {
        return NULL;
    }
    if (p->n_instances != split.runs || p->instance[0]->threads != split.threads) {
        hth_instances_demand(&serve->instances, w, false);
        return NULL;
    }
    uint64_t ns = instances_ns(p);
    bool better = ns == 0 || (double)ns < (double)p->run_ns * INSTANCES_GAIN;
    serve->instances.round_ns = ns > 0 && better ? INSTANCES_ROUND_NS : INSTANCES_TRIAL * p->run_ns;
    return better != (ns > 0 && ++p->chances % INSTANCES_OTHER == 0) ? p : NULL;
}

// instances_make makes the next program for a concurrent run, or the one for a caller alone.
static hth_err instances_make(hth_site *site, hth_program *program, bool narrow)
{
    if (narrow) {
        return program->narrow == NULL
                   ? hth_program_compile_instance(site, program, 1, &program->narrow)
                   : HTH_OK;
    }
    hth_instances_split split = instances_split(site, program);
    while (split.runs > 0 && program->n_instances > 0 &&
           (program->n_instances > split.runs || program->instance[0]->threads != split.threads)) {
        hth_program_free(site, program->instance[--program->n_instances]);
    }
    if (program->n_instances >= split.runs) {
        return HTH_OK;
    }
    HTH_TRY(hth_program_compile_instance(site, program, split.threads,
                                         &program->instance[program->n_instances]));
    program->n_instances++;
    return HTH_OK;
}

bool hth_instances_compile(hth_serve *serve)
{
    hth_instances *x = &serve->instances;
    hth_model *m = x->demanded;
    if (m == NULL) {
        return false;
    }
    hth_program *p = m->gone ? NULL : hth_infer_ready(serve->ms, &m->source, x->key);
    if (p != NULL && instances_make(serve->ms->site, p, x->narrow) != HTH_OK) {
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

static void instances_leave(hth_site *site, hth_program *program, int n)
{
    for (int i = 0; i < n; i++) {
        hth_program *q = program->instance[i];
        q->running = false;
        if (q->arena != NULL) {
            hth_pool_free(site->pool, q->arena);
            q->arena = NULL;
        }
        if (q->active) {
            hth_program_deactivate(site, q);
        }
    }
    assert(program->held > 0);
    program->held--;
    site->freed++;
}

// instances_enter gives each program its weights and an arena, where its plan needs memory.
static hth_err instances_enter(hth_site *site, hth_program *program)
{
    hth_err err = HTH_OK;
    program->held++;
    for (int i = 0; i < program->n_instances && err == HTH_OK; i++) {
        err = hth_program_activate(site, program->instance[i]);
        program->instance[i]->running = err == HTH_OK; // stays
    }
    for (int i = 1; i < program->n_instances && err == HTH_OK; i++) {
        hth_program *q = program->instance[i];
        size_t bytes = q->plan->arena_bytes;
        err = bytes > 0 ? hth_pool_alloc(site->pool, bytes, HTH_POOL_ARENA, &q->arena) : HTH_OK;
        if (err == HTH_OK && site->arena_cleared && bytes > 0) {
            memset(q->arena, 0, bytes);
        }
    }
    if (err != HTH_OK) {
        instances_leave(site, program, program->n_instances);
    }
    return err;
}

// ---- runs

static hth_err run_execute(void *arg)
{
    const hth_instance_run *x = arg;
    return hth_run_execute(x->p->run, &x->work->r->canceled);
}

// run_prepare binds the run of `request`; the outputs are placed by who asked.
static hth_err run_prepare(hth_serve *serve, hth_instance_run *run, hth_infer_request *request)
{
    run->out = hth_calloc((size_t)run->p->graph->n_outputs, sizeof *run->out);
    if (run->out == NULL) {
        return hth_no_memory("a request");
    }
    HTH_TRY(hth_infer_request_outputs(request));
    HTH_TRY(hth_infer_request_place(serve->ms, request, run->p, NULL, -1));
    for (int i = 0; i < run->p->n_final; i++) {
        run->out[i] = request->r->outputs[run->p->final_index[i]].t;
    }
    run->t.input_ns = hth_now_ns();
    return hth_program_begin(serve->ms->site, run->p, request->inputs, run->out);
}

// run_answer ends the request of `run`, which keeps nothing of it.
static void run_answer(hth_serve *serve, hth_instance_run *run, hth_infer_request *request,
                       hth_err err, int n)
{
    hth_model *m = request->model;
    run->t.output_ns = run->t.infer_ns = hth_now_ns();
    hth_infer_request_result(request, err);
    if (err == HTH_OK) {
        hth_program *p = run->p;
        uint64_t ns = run->t.infer_ns - run->t.input_ns;
        bool crowded = true; // only the time while all instances are at work counts
        for (int i = 0; i < n; i++) {
            crowded = crowded && serve->instances.run[i].work != NULL;
        }
        if (crowded && p->n_timed++ > 0) { // the first one touches memory
            hth_batcher_note_stall(&serve->batcher, p->run_ns, ns, run->t.infer_ns);
            p->run_ns = p->run_ns == 0
                            ? ns
                            : p->run_ns - p->run_ns / INSTANCES_WEIGHT + ns / INSTANCES_WEIGHT;
        }
        m->concurrent_runs++;
        hth_infer_request_ran(m, request->item.samples, &run->t);
    }
    if (err != HTH_ENODEVMEM) { // else it is run again, or given up, and counts then
        hth_infer_request_count(serve->ms, m, request->r, &run->t, err);
    }
    uint64_t took_ns = (run->t.output_ns - run->t.start_ns) / (uint64_t)n;
    hth_batcher_end(&serve->batcher, &m->queue, request->item.samples, err == HTH_OK ? took_ns : 0);
    hth_serve_settle(serve, &run->bill, took_ns, run->t.output_ns);
    hth_free(run->out);
    run->out = NULL;
    run->work = NULL;
    hth_serve_ran(serve, request);
}

static void run_begin(hth_serve *serve, hth_instance_run *run, const hth_pick *pick, int n)
{
    hth_infer_request *w = pick->work[0];
    run->bill = pick->bill;
    run->t = (hth_infer_request_times){.start_ns = w->r->started_ns, .input_ns = w->r->started_ns};
    hth_batcher_begin(&serve->batcher, &w->model->queue, w->item.samples, w->r->started_ns);
    hth_err err = w->r->canceled ? hth_fail(HTH_ECANCELED, "canceled") : run_prepare(serve, run, w);
    if (err != HTH_OK) {
        run_answer(serve, run, w, err, n);
        return;
    }
    run->work = w;
    hth_instance_start(run->instance, run_execute, run);
}

// instances_collect answers what has ended; returns how many still run. all: waits for them.
static int instances_collect(hth_serve *serve, int n, bool all)
{
    int busy = 0;
    for (int i = 0; i < n; i++) {
        hth_instance_run *x = &serve->instances.run[i];
        if (x->work != NULL && !all && hth_instance_busy(x->instance)) {
            busy++;
        } else if (x->work != NULL) {
            hth_err err = hth_instance_wait(x->instance);
            if (err == HTH_OK) {
                err = hth_program_end(serve->ms->site, x->p, x->work->inputs, x->out);
            }
            run_answer(serve, x, x->work, err, n);
        }
    }
    return busy;
}

static hth_instance_run *instances_idle(hth_instances *instances, int n)
{
    int i = 0;
    while (i < n && instances->run[i].work != NULL) {
        i++;
    }
    return i < n ? &instances->run[i] : NULL;
}

// instances_fits says that what was picked is another run of program.
static bool instances_fits(const hth_model *model, hth_program *program, const hth_pick *pick)
{
    return pick->bucket == 0 && pick->work[0]->model == model &&
           hth_source_match(program->source, pick->work[0]->inputs) == program;
}

static bool instances_open(hth_serve *serve, const hth_program *program)
{
    for (int i = 0; i < program->n_instances; i++) {
        hth_instance_run *x = &serve->instances.run[i];
        const hth_instance_config c = {.name = "instance",
                                       .threads = program->instance[i]->threads,
                                       .done = serve->wake,
                                       .ctx = serve->ctx};
        if (x->threads != c.threads) {
            hth_instance_close(x->instance);
            x->instance = NULL;
            x->threads = c.threads;
        }
        if (x->instance == NULL && hth_instance_open(&c, &x->instance) != HTH_OK) {
            return false;
        }
        x->p = program->instance[i];
    }
    return true;
}

// instances_round hands runs out and gets them back until nothing more fits in.
static void instances_round(hth_serve *serve, hth_program *program, hth_pick *pick)
{
    hth_model *m = pick->work[0]->model;
    int n = program->n_instances;
    bool more = true;
    uint64_t until_ns = hth_now_ns() + serve->instances.round_ns, wake_ns;
    run_begin(serve, &serve->instances.run[0], pick, n);
    pick->n = 0;
    for (;;) {
        hth_serve_poll(serve);
        int busy = instances_collect(serve, n, !more);
        hth_instance_run *idle = instances_idle(&serve->instances, n);
        bool hand =
            pick->n == 0 && serve->first == NULL && idle != NULL && more && hth_now_ns() < until_ns;
        if (hand && hth_serve_pick(serve, (hth_batch_filter){.hurry = true}, pick, &wake_ns)) {
            if (instances_fits(m, program, pick)) {
                run_begin(serve, idle, pick, n);
                pick->n = 0;
            }
        } else if (busy == 0) {
            return;
        } else {
            more = serve->wait(serve->ctx, INSTANCES_POLL_NS);
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
