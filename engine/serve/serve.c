// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/serve_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/serve/infer.h"
#include "runtime/tenants/quota.h"
#include "runtime/tenants/tenant.h"

#include <inttypes.h>
#include <string.h>

// How often it is looked at during work who of those that wait is canceled or expired.
#define SERVE_LOOK_NS 1000000u

static hth_infer_request *work_of(hth_batch_item *i)
{
    return (hth_infer_request *)i; // its first member
}

// ---- ways out

static void serve_refuse(hth_serve *s, hth_request *r, hth_err err)
{
    atomic_fetch_sub(&s->waiting, 1);
    s->answer(r, err);
}

static hth_err fail_canceled(void)
{
    return hth_fail(HTH_ECANCELED, "canceled while it was queued");
}

// serve_drop answers a request that leaves the queue without a run.
static void serve_drop(hth_serve *s, hth_infer_request *w)
{
    hth_err err =
        w->r->canceled ? fail_canceled() : hth_fail(HTH_ETIMEDOUT, "Request timeout expired");
    hth_infer_request_count(s->ms, w->model, w->r, &(hth_infer_request_times){0}, err);
    serve_refuse(s, w->r, err);
    hth_infer_request_close(s->ms, w);
}

// serve_finish answers a request whose result stands in it.
static void serve_finish(hth_serve *s, hth_infer_request *w)
{
    hth_request *r = w->r;
    s->answer(r, r->err == HTH_OK ? HTH_OK : hth_fail(r->err, "%s", r->detail));
    hth_infer_request_close(s->ms, w);
}

// serve_give_up answers one that waited for memory, and waits no longer.
static void serve_give_up(hth_serve *s, hth_infer_request *w)
{
    hth_infer_request_count(s->ms, w->model, w->r, &(hth_infer_request_times){0}, w->r->err);
    atomic_fetch_sub(&s->waiting, 1);
    serve_finish(s, w);
}

static void serve_sweep(hth_serve *s, uint64_t now_ns)
{
    hth_batch_item *next, *i = hth_batcher_sweep(&s->batcher, now_ns);
    for (; i != NULL; i = next) {
        next = i->next;
        serve_drop(s, work_of(i));
    }
    for (hth_infer_request *w; (w = hth_memory_wait_ended(&s->await, now_ns)) != NULL;) {
        serve_give_up(s, w);
    }
    for (hth_request **at = &s->first; *at != NULL;) {
        hth_request *r = *at;
        bool expired = r->query == NULL && r->timeout_us > 0 &&
                       (now_ns - r->submitted_ns) / 1000u >= r->timeout_us;
        if (!expired && !r->canceled) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        s->last = *at == NULL ? at : s->last;
        serve_refuse(s, r,
                     r->canceled ? fail_canceled()
                                 : hth_fail(HTH_ETIMEDOUT, "Request timeout expired"));
    }
}

// ---- ways in

static void serve_accept(hth_serve *s, hth_request *r, hth_model *m)
{
    hth_infer_request *w;
    hth_err err = hth_infer_request_open(s->ms, m, r, &w);
    if (err == HTH_OK) {
        m->queue.policy = hth_model_batch_policy(m);
        w->item.arrived_ns = r->submitted_ns;
        hth_tenant *tenant = hth_tenant_of(s->ms->site->tenants, r->tenant);
        w->item.flow = tenant != NULL ? &tenant->flow : NULL;
        bool timed = w->item.timeout_ns > 0 || m->queue.policy.timeout_ns > 0;
        err = hth_tenant_waits(tenant);
        err = err != HTH_OK ? err
                            : hth_batcher_add(&s->batcher, &m->queue, &w->item,
                                              timed ? hth_now_ns() : r->submitted_ns);
        if (err == HTH_OK) {
            return;
        }
        hth_infer_request_count(s->ms, m, r, &(hth_infer_request_times){0}, err);
        hth_infer_request_close(s->ms, w);
    }
    serve_refuse(s, r, err);
}

void hth_serve_take(hth_serve *s, hth_request *r)
{
    hth_model *m = r->query == NULL ? hth_model_current(s->ms, r->model) : NULL;
    if (m != NULL) {
        serve_accept(s, r, m);
        return;
    }
    r->next = NULL;
    *s->last = r;
    s->last = &r->next;
}

// serve_look takes what has arrived and, now and then, drops what waits no longer. Where nothing
// waits it costs nothing.
void hth_serve_look(hth_serve *s)
{
    hth_request *r;
    while ((r = s->mail(s->ctx)) != NULL) {
        hth_serve_take(s, r);
    }
    uint64_t now_ns = hth_serve_empty(s) && s->await.n == 0 ? 0 : hth_now_ns();
    if (now_ns > s->looked_ns + SERVE_LOOK_NS) {
        s->looked_ns = now_ns;
        serve_sweep(s, now_ns);
    }
}

// ---- runs

// serve_ran answers a request that was run, or has it wait for memory.
void hth_serve_ran(hth_serve *s, hth_infer_request *w)
{
    if (w->r->err != HTH_ENODEVMEM) {
        w->model->ended_ns = hth_now_ns(); // who asks again on this answer comes later
        serve_finish(s, w);
        return;
    }
    atomic_fetch_add(&s->waiting, 1);
    if (!hth_memory_wait_add(&s->await, w, s->queue / 2)) {
        serve_give_up(s, w);
    }
}

static void serve_alone(hth_serve *s, hth_infer_request *w)
{
    const hth_program *p = hth_source_match(&w->model->source, w->inputs);
    if (p == NULL || !p->active) {
        hth_quota_owner(s->ms->site, &w->model->account, w->r->tenant);
    }
    s->ms->site->refused_over = s->ms->site->refused_bytes = 0;
    if (!hth_memory_wait_joins(&s->await, w)) {
        hth_infer_request_result(w, hth_infer(s->ms, w));
    }
    hth_serve_ran(s, w);
}

static void serve_joined(hth_serve *s, hth_infer_request **work, int n, int64_t bucket)
{
    if (hth_batch_run_run(&s->join, s->ms, work, n, bucket) != HTH_OK) {
        for (int k = 0; k < n; k++) {
            serve_alone(s, work[k]);
        }
        return;
    }
    for (int k = 0; k < n; k++) {
        if (work[k] != NULL) {
            hth_serve_ran(s, work[k]);
        }
    }
}

bool hth_serve_pick(hth_serve *s, hth_batch_ask ask, hth_pick *out, uint64_t *wake_ns)
{
    out->n = 0;
    out->bucket = out->samples = 0;
    out->start_ns = hth_now_ns();
    hth_batch_item *items =
        hth_batcher_next(&s->batcher, out->start_ns, ask, &out->bucket, wake_ns);
    hth_batch_bill_open(&out->bill, items);
    for (hth_batch_item *i = items; i != NULL; i = i->next) {
        out->work[out->n] = work_of(i);
        out->work[out->n++]->r->started_ns = out->start_ns;
        out->samples += i->samples;
    }
    atomic_fetch_sub(&s->waiting, out->n);
    return out->n > 0;
}

// serve_expects is what such a run takes; 0: not known, as where its program has to be compiled.
static uint64_t serve_expects(hth_serve *s, const hth_pick *x)
{
    const hth_batch_item *i = &x->work[0]->item;
    uint64_t ns = s->batcher.oracle.time_ns(s, i, x->bucket > 0 ? x->bucket : i->samples);
    return ns != HTH_BATCH_NONE ? ns : 0;
}

static void serve_run(hth_serve *s, hth_pick *x)
{
    hth_model *m = x->work[0]->model;
    hth_model_hold(m);
    uint64_t expected_ns = serve_expects(s, x);
    x->start_ns = hth_now_ns();
    hth_batcher_begin(&s->batcher, &m->queue, x->samples, x->start_ns);
    if (x->bucket == 0) {
        serve_alone(s, x->work[0]);
    } else {
        serve_joined(s, x->work, x->n, x->bucket);
    }
    uint64_t now_ns = hth_now_ns(), took_ns = now_ns - x->start_ns;
    hth_batcher_end(&s->batcher, &m->queue, x->samples, took_ns);
    hth_batcher_held(&s->batcher, expected_ns, took_ns, now_ns);
    hth_batch_bill_settle(&x->bill, took_ns);
    hth_model_rele(s->ms, m);
}

bool hth_serve_batch(hth_serve *s, hth_batch_ask ask, uint64_t *wake_ns, uint32_t *priority)
{
    hth_pick x;
    if (!hth_serve_pick(s, ask, &x, wake_ns)) {
        return false;
    }
    *priority = x.work[0]->item.priority;
    if (!ask.ready && ask.priority == 0 && x.bucket == 0) { // nothing else is at work
        hth_instances_run(s, &x);
    }
    if (x.n > 0) {
        serve_run(s, &x);
    }
    return true;
}

// ---- turns

// serve_before does the runs that something else has to wait for: as many as there are requests
// now.
static void serve_before(hth_serve *s)
{
    uint64_t wake_ns;
    uint32_t priority;
    for (int n = s->batcher.n; n > 0; n--) {
        hth_serve_batch(s, (hth_batch_ask){.hurry = true}, &wake_ns, &priority);
    }
}

// serve_again queues what waited for memory, where there may be some now; true: something was.
static bool serve_again(hth_serve *s)
{
    bool any = false;
    for (hth_infer_request *w; (w = hth_memory_wait_ready(&s->await)) != NULL; any = true) {
        hth_batcher_again(&s->batcher, &w->model->queue, &w->item);
    }
    return any;
}

// serve_find accepts a request whose model may have to be loaded.
static void serve_find(hth_serve *s, hth_request *r)
{
    hth_model *m = NULL;
    const char *before = s->ms->tenant;
    const hth_request *asked = s->ms->asks;
    s->ms->tenant = r->tenant;
    s->ms->asks = r;
    hth_err err = r->canceled ? fail_canceled() : hth_model_find(s->ms, r->model, &m);
    s->ms->tenant = before;
    s->ms->asks = asked;
    if (err == HTH_OK) {
        serve_accept(s, r, m);
    } else {
        serve_refuse(s, r, err);
    }
}

static void serve_arrived(hth_serve *s, hth_request *r)
{
    if (r->query == NULL) {
        serve_find(s, r);
        return;
    }
    if (strcmp(r->query, "unload") == 0) {
        serve_before(s);
    }
    atomic_fetch_sub(&s->waiting, 1);
    s->query(s->ctx, r);
}

// serve_make makes the programs that are wished for.
static bool serve_make(hth_serve *s)
{
    if (s->wished != NULL) {
        hth_model *m = s->wished;
        s->wished = NULL;
        if (!m->gone && m->wish.key != NULL) {
            hth_serve_grant(s, m);
        }
        hth_model_rele(s->ms, m);
    }
    bool made = hth_instances_make(s);
    hth_serve_ends(s);
    return made;
}

bool hth_serve_turn(hth_serve *s, bool hurry, uint64_t *wake_ns)
{
    bool worked = s->first != NULL;
    uint32_t priority;
    while (s->first != NULL) {
        hth_request *r = s->first;
        s->first = r->next;
        s->last = s->first == NULL ? &s->first : s->last;
        serve_arrived(s, r);
    }
    hth_serve_look(s);
    if (serve_again(s)) { // before a job is given that memory
        serve_before(s);
        worked = true;
    }
    worked = hth_serve_batch(s, (hth_batch_ask){.hurry = hurry}, wake_ns, &priority) || worked;
    uint64_t over_ns = hth_memory_wait_wake_ns(&s->await);
    *wake_ns = over_ns < *wake_ns ? over_ns : *wake_ns;
    bool wished = s->wished != NULL || s->spaces.wished != NULL;
    return (wished && hth_serve_begins(s) && serve_make(s)) || worked;
}

bool hth_serve_between(hth_serve *s, uint32_t most, uint32_t *priority)
{
    uint64_t wake_ns;
    hth_request *r;
    hth_serve_look(s);
    for (hth_request **at = &s->first; *at != NULL;) {
        r = *at;
        if (r->query != NULL) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        s->last = *at == NULL ? at : s->last;
        serve_find(s, r);
    }
    (void)serve_again(s);
    return hth_serve_batch(s, (hth_batch_ask){.hurry = true, .priority = most}, &wake_ns, priority);
}

bool hth_serve_empty(const hth_serve *s)
{
    return s->first == NULL && s->batcher.n == 0;
}

bool hth_serve_idle(hth_serve *s)
{
    hth_batch_run_fini(&s->join);
    for (hth_model *m = s->ms->list; m != NULL; m = m->next) {
        if (m->wish.key != NULL && hth_serve_begins(s)) {
            hth_serve_grant(s, m);
            hth_serve_ends(s);
            return true;
        }
    }
    return hth_serve_measure(s);
}

// ---- during work

// serve_leave answers those of a joined run that were canceled; with nobody left, the run ends.
static void serve_leave(hth_serve *s)
{
    bool left = false;
    for (int k = 0; k < s->join.n; k++) {
        hth_infer_request *w = s->join.work[k];
        if (w != NULL && !w->done && w->r->canceled) {
            s->join.work[k] = NULL;
            hth_err err = hth_fail(HTH_ECANCELED, "canceled");
            hth_infer_request_count(s->ms, w->model, w->r, &(hth_infer_request_times){0}, err);
            s->answer(w->r, err);
            hth_infer_request_close(s->ms, w);
        } else {
            left = left || w != NULL;
        }
    }
    s->join.stop = s->join.n > 0 && !left;
}

static void serve_in_run(void *ctx)
{
    hth_serve *s = ctx;
    hth_serve_look(s);
    if (s->join.n > 0) {
        serve_leave(s);
    }
}

void hth_serve_stop(hth_serve *s)
{
    for (hth_infer_request *w; (w = hth_memory_wait_last(&s->await)) != NULL;) {
        hth_infer_request_result(w, hth_fail(HTH_ECANCELED, "the server stops"));
        serve_give_up(s, w);
    }
}

void hth_serve_init(hth_serve *s)
{
    s->await.ms = s->ms;
    hth_serve_oracle(s);
    s->last = &s->first;
    s->ms->site->in_run = serve_in_run;
    s->ms->site->in_compile = hth_serve_in_compile;
    s->ms->site->in_measure = hth_serve_in_measure;
    s->ms->site->in_ctx = s;
}

void hth_serve_fini(hth_serve *s)
{
    hth_instances_fini(&s->spaces);
    if (s->spaces.wished != NULL) {
        hth_model_rele(s->ms, s->spaces.wished);
        s->spaces.wished = NULL;
    }
    hth_batch_run_fini(&s->join);
    if (s->wished != NULL) {
        hth_model_rele(s->ms, s->wished);
        s->wished = NULL;
    }
}
