// SPDX-License-Identifier: Apache-2.0
// The arenas of runs beside each other are taken when they begin and given back when they end: the
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
#define SPACES_LEAST_NS 1000000u
// Runs with all threads before others are thought of, and requests in a row that had to wait.
#define SPACES_RUNS    4
#define SPACES_OVERLAP 4
// Runs beside each other must be this much faster; every so many chances the slower way is taken,
// so that what was measured stays fresh.
#define SPACES_GAIN  0.97
#define SPACES_OTHER 256
// After so long other duties have their turn.
#define SPACES_TURN_NS 2000000000u
// To measure, so many runs' time will do.
#define SPACES_TRIAL   8
#define SPACES_LOOK_NS 1000000u
#define SPACES_WEIGHT  8 // of a new measurement in the average

hth_instances_split hth_instances_split_of(int threads, int most, uint64_t arena_bytes,
                                           uint64_t free_bytes)
{
    int n = most > threads ? threads : most;
    while (n > 1 && (uint64_t)(n - 1) * arena_bytes > free_bytes) {
        n -= n / 2;
    }
    return n > 1 ? (hth_instances_split){n, threads / n} : (hth_instances_split){0, 0};
}

static hth_instances_split spaces_split(const hth_site *site, const hth_program *p)
{
    int most = (int)hth_setting_int(HTH_SET_COMPUTE_SPACES);
    hth_pool_ledger l;
    hth_pool_ledger_get(site->pool, &l);
    return hth_instances_split_of(site->device->props.n_threads,
                                  most < HTH_SPACES ? most : HTH_SPACES, p->plan->arena_bytes,
                                  l.free_bytes);
}

// spaces_ns is what a run takes, per run, when all are at work; 0: not known.
static uint64_t spaces_ns(const hth_program *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->n_beside; i++) {
        if (p->beside[i]->run_ns == 0) {
            return 0;
        }
        sum += p->beside[i]->run_ns;
    }
    return sum / (uint64_t)p->n_beside / (uint64_t)p->n_beside;
}

static void spaces_wish(hth_instances *x, hth_infer_request *w)
{
    size_t n = (size_t)w->model->source.graph->n_inputs;
    if (x->wished != NULL || (x->key = hth_memdup(w->inputs, n * sizeof *x->key)) == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        x->key[i].data = NULL;
    }
    x->wished = w->model;
    hth_model_hold(w->model);
}

// spaces_program is the program of the one request in *pick if it is to be run beside others.
static hth_program *spaces_program(hth_serve *s, hth_pick *pick)
{
    hth_infer_request *w = pick->work[0];
    hth_model *m = w->model;
    hth_site *site = s->ms->site;
    bool early = w->item.arrived_ns < m->ended_ns;
    m->overlapped = early ? m->overlapped + 1 : 0;
    if (!site->device->props.inline_compute || site->shares != NULL || s->await.n > 0 ||
        w->r->canceled || (m->queue.n == 0 && m->overlapped < SPACES_OVERLAP)) {
        return NULL;
    }
    hth_program *p = hth_infer_ready(s->ms, &m->source, w->inputs);
    if (p == NULL || !p->active || p->stale || p->none_beside || p->n_timed < SPACES_RUNS ||
        p->run_ns < SPACES_LEAST_NS) {
        return NULL;
    }
    hth_instances_split split = spaces_split(site, p);
    if (split.runs == 0) {
        return NULL;
    }
    if (p->n_beside != split.runs || p->beside[0]->threads != split.threads) {
        spaces_wish(&s->spaces, w);
        return NULL;
    }
    uint64_t ns = spaces_ns(p);
    bool better = ns == 0 || (double)ns < (double)p->run_ns * SPACES_GAIN;
    s->spaces.turn_ns = ns > 0 && better ? SPACES_TURN_NS : SPACES_TRIAL * p->run_ns;
    return better != (ns > 0 && ++p->chances % SPACES_OTHER == 0) ? p : NULL;
}

bool hth_instances_make(hth_serve *s)
{
    hth_instances *x = &s->spaces;
    hth_site *site = s->ms->site;
    hth_model *m = x->wished;
    if (m == NULL) {
        return false;
    }
    hth_program *p = m->gone ? NULL : hth_infer_ready(s->ms, &m->source, x->key);
    hth_instances_split split = p != NULL ? spaces_split(site, p) : (hth_instances_split){0, 0};
    while (split.runs > 0 && p->n_beside > 0 &&
           (p->n_beside > split.runs || p->beside[0]->threads != split.threads)) {
        hth_program_free(site, p->beside[--p->n_beside]);
    }
    if (p != NULL && p->n_beside < split.runs &&
        hth_program_compile_beside(site, p, split.threads) != HTH_OK) {
        hth_log(DEBUG, SERVER, "spaces", "model=%s %s", m->name, hth_err_detail());
        p->none_beside = true;
    }
    x->wished = NULL;
    hth_free(x->key);
    x->key = NULL;
    hth_model_rele(s->ms, m);
    return true;
}

// ---- memory

static void spaces_leave(hth_site *site, hth_program *p, int n)
{
    for (int i = 0; i < n; i++) {
        hth_program *q = p->beside[i];
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

// spaces_enter gives each program its weights and an arena.
static hth_err spaces_enter(hth_site *site, hth_program *p)
{
    hth_err err = HTH_OK;
    p->held++;
    for (int i = 0; i < p->n_beside && err == HTH_OK; i++) {
        err = hth_program_activate(site, p->beside[i]);
        p->beside[i]->running = err == HTH_OK; // stays
    }
    for (int i = 1; i < p->n_beside && err == HTH_OK; i++) {
        hth_program *q = p->beside[i];
        size_t bytes = q->plan->arena_bytes;
        err = hth_pool_alloc(site->pool, bytes, HTH_POOL_ARENA, &q->arena);
        if (err == HTH_OK && site->arena_cleared && bytes > 0) {
            memset(q->arena, 0, bytes);
        }
    }
    if (err != HTH_OK) {
        spaces_leave(site, p, p->n_beside);
    }
    return err;
}

// ---- runs

static hth_err space_execute(void *arg)
{
    const hth_instance_run *x = arg;
    return hth_run_execute(x->p->run, &x->work->r->canceled);
}

// space_prepare binds the run of `w`; the outputs are placed by who asked.
static hth_err space_prepare(hth_serve *s, hth_instance_run *x, hth_infer_request *w)
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

// space_answer ends the request of `x`, which keeps nothing of it.
static void space_answer(hth_serve *s, hth_instance_run *x, hth_infer_request *w, hth_err err,
                         int n)
{
    hth_model *m = w->model;
    x->t.output_ns = x->t.infer_ns = hth_now_ns();
    hth_infer_request_result(w, err);
    if (err == HTH_OK) {
        hth_program *p = x->p;
        uint64_t ns = x->t.infer_ns - x->t.input_ns;
        bool crowded = true; // what it takes beside others is what counts
        for (int i = 0; i < n; i++) {
            crowded = crowded && s->spaces.run[i].work != NULL;
        }
        if (crowded && p->n_timed++ > 0) { // the first one touches memory
            hth_batcher_held(&s->batcher, p->run_ns, ns, x->t.infer_ns);
            p->run_ns =
                p->run_ns == 0 ? ns : p->run_ns - p->run_ns / SPACES_WEIGHT + ns / SPACES_WEIGHT;
        }
        m->beside++;
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

static void space_begin(hth_serve *s, hth_instance_run *x, const hth_pick *pick, int n)
{
    hth_infer_request *w = pick->work[0];
    x->bill = pick->bill;
    x->t = (hth_infer_request_times){.start_ns = w->r->started_ns, .input_ns = w->r->started_ns};
    hth_batcher_begin(&s->batcher, &w->model->queue, w->item.samples, w->r->started_ns);
    hth_err err = w->r->canceled ? hth_fail(HTH_ECANCELED, "canceled") : space_prepare(s, x, w);
    if (err != HTH_OK) {
        space_answer(s, x, w, err, n);
        return;
    }
    x->work = w;
    hth_instance_start(x->space, space_execute, x);
}

// spaces_collect answers what has ended; returns how many still run. all: waits for them.
static int spaces_collect(hth_serve *s, int n, bool all)
{
    int busy = 0;
    for (int i = 0; i < n; i++) {
        hth_instance_run *x = &s->spaces.run[i];
        if (x->work != NULL && !all && hth_instance_busy(x->space)) {
            busy++;
        } else if (x->work != NULL) {
            hth_err err = hth_instance_wait(x->space);
            err = err == HTH_OK ? hth_program_end(s->ms->site, x->p, x->work->inputs, x->out) : err;
            space_answer(s, x, x->work, err, n);
        }
    }
    return busy;
}

static hth_instance_run *spaces_idle(hth_instances *x, int n)
{
    int i = 0;
    while (i < n && x->run[i].work != NULL) {
        i++;
    }
    return i < n ? &x->run[i] : NULL;
}

// spaces_fits says that what was picked is another run of p.
static bool spaces_fits(const hth_model *m, hth_program *p, const hth_pick *pick)
{
    return pick->bucket == 0 && pick->work[0]->model == m &&
           hth_source_match(p->source, pick->work[0]->inputs) == p;
}

static bool spaces_open(hth_serve *s, const hth_program *p)
{
    for (int i = 0; i < p->n_beside; i++) {
        hth_instance_run *x = &s->spaces.run[i];
        const hth_instance_config c = {
            .name = "space", .threads = p->beside[i]->threads, .done = s->wake, .ctx = s->ctx};
        if (x->threads != c.threads) {
            hth_instance_close(x->space);
            x->space = NULL;
            x->threads = c.threads;
        }
        if (x->space == NULL && hth_instance_open(&c, &x->space) != HTH_OK) {
            return false;
        }
        x->p = p->beside[i];
    }
    return true;
}

// spaces_turn hands runs out and gets them back until nothing more fits in.
static void spaces_turn(hth_serve *s, hth_program *p, hth_pick *pick)
{
    hth_model *m = pick->work[0]->model;
    int n = p->n_beside;
    bool more = true;
    uint64_t until_ns = hth_now_ns() + s->spaces.turn_ns, wake_ns;
    space_begin(s, &s->spaces.run[0], pick, n);
    pick->n = 0;
    for (;;) {
        hth_serve_look(s);
        int busy = spaces_collect(s, n, !more);
        hth_instance_run *idle = spaces_idle(&s->spaces, n);
        bool hand =
            pick->n == 0 && s->first == NULL && idle != NULL && more && hth_now_ns() < until_ns;
        if (hand && hth_serve_pick(s, (hth_batch_ask){.hurry = true}, pick, &wake_ns)) {
            if (spaces_fits(m, p, pick)) {
                space_begin(s, idle, pick, n);
                pick->n = 0;
            }
        } else if (busy == 0) {
            return;
        } else {
            more = s->wait(s->ctx, SPACES_LOOK_NS);
        }
    }
}

void hth_instances_run(hth_serve *s, hth_pick *pick)
{
    hth_site *site = s->ms->site;
    hth_program *p = spaces_program(s, pick);
    if (p == NULL || !spaces_open(s, p) || spaces_enter(site, p) != HTH_OK) {
        return;
    }
    hth_model *m = pick->work[0]->model;
    hth_model_hold(m);
    spaces_turn(s, p, pick);
    spaces_leave(site, p, p->n_beside);
    hth_model_rele(s->ms, m);
}

void hth_instances_fini(hth_instances *x)
{
    for (int i = 0; i < HTH_SPACES; i++) {
        hth_instance_close(x->run[i].space);
        x->run[i].space = NULL;
    }
    hth_free(x->key);
    x->key = NULL;
}
