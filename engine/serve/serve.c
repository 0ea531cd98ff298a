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
#define SERVE_POLL_NS 1000000u

static hth_infer_request *work_of(hth_batch_item *item)
{
    return (hth_infer_request *)item; // its first member
}

// ---- ways out

static void serve_refuse(hth_serve *serve, hth_request *request, hth_err err)
{
    atomic_fetch_sub(&serve->waiting, 1);
    serve->answer(request, err);
}

static hth_err fail_canceled(void)
{
    return hth_fail(HTH_ECANCELED, "canceled while it was queued");
}

// serve_drop answers a request that leaves the queue without a run.
static void serve_drop(hth_serve *serve, hth_infer_request *request)
{
    hth_err err =
        request->r->canceled ? fail_canceled() : hth_fail(HTH_ETIMEDOUT, "Request timeout expired");
    hth_infer_request_count(serve->ms, request->model, request->r, &(hth_infer_request_times){0},
                            err);
    serve_refuse(serve, request->r, err);
    hth_infer_request_close(serve->ms, request);
}

// serve_finish answers a request whose result stands in it.
static void serve_finish(hth_serve *serve, hth_infer_request *request)
{
    hth_request *r = request->r;
    serve->answer(r, hth_err_restore(r->err, r->detail));
    hth_infer_request_close(serve->ms, request);
}

// serve_give_up answers one that waited for memory, and waits no longer.
static void serve_give_up(hth_serve *serve, hth_infer_request *request)
{
    hth_infer_request_count(serve->ms, request->model, request->r, &(hth_infer_request_times){0},
                            request->r->err);
    atomic_fetch_sub(&serve->waiting, 1);
    serve_finish(serve, request);
}

static void serve_sweep(hth_serve *serve, uint64_t now_ns)
{
    hth_batch_item *next, *i = hth_batcher_sweep(&serve->batcher, now_ns);
    for (; i != NULL; i = next) {
        next = i->next;
        serve_drop(serve, work_of(i));
    }
    for (hth_infer_request *w; (w = hth_memory_wait_ended(&serve->memory_wait, now_ns)) != NULL;) {
        serve_give_up(serve, w);
    }
    for (hth_request **at = &serve->first; *at != NULL;) {
        hth_request *r = *at;
        bool expired = r->command == HTH_COMMAND_NONE && r->timeout_us > 0 &&
                       (now_ns - r->submitted_ns) / 1000u >= r->timeout_us;
        if (!expired && !r->canceled) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        serve->last = *at == NULL ? at : serve->last;
        serve_refuse(serve, r,
                     r->canceled ? fail_canceled()
                                 : hth_fail(HTH_ETIMEDOUT, "Request timeout expired"));
    }
}

// ---- ways in

// serve_add queues a request that is `w`.
static hth_err serve_add(hth_serve *serve, const hth_request *request, hth_model *model,
                         hth_infer_request *w)
{
    model->queue.policy = hth_model_batch_policy(model);
    w->item.arrived_ns = request->submitted_ns;
    hth_tenant *tenant = hth_tenant_of(serve->ms->site->tenants, request->tenant);
    w->item.flow = tenant != NULL ? &tenant->flow : NULL;
    bool timed = w->item.timeout_ns > 0 || model->queue.policy.timeout_ns > 0;
    uint64_t now_ns = timed ? hth_now_ns() : request->submitted_ns;
    HTH_TRY(hth_tenant_waits(tenant));
    return hth_batcher_add(&serve->batcher, &model->queue, &w->item, now_ns);
}

hth_infer_request *hth_serve_admit(hth_serve *serve, hth_request *request, hth_model *model)
{
    hth_infer_request *w;
    hth_err err = hth_infer_request_open(serve->ms, model, request, &w);
    if (err == HTH_OK) {
        err = serve_add(serve, request, model, w);
        if (err == HTH_OK) {
            return w;
        }
        hth_infer_request_count(serve->ms, model, request, &(hth_infer_request_times){0}, err);
        hth_infer_request_close(serve->ms, w);
    }
    serve_refuse(serve, request, err);
    return NULL;
}

void hth_serve_take(hth_serve *serve, hth_request *request)
{
    hth_model *m =
        request->command == HTH_COMMAND_NONE ? hth_model_current(serve->ms, request->model) : NULL;
    serve->requested_ns = request->submitted_ns;
    if (m != NULL) {
        (void)hth_serve_admit(serve, request, m);
        return;
    }
    request->next = NULL;
    *serve->last = request;
    serve->last = &request->next;
    serve->arrived = true;
}

// serve_leave answers those of a joined run that were canceled; with nobody left, the run ends.
static void serve_leave(hth_serve *serve)
{
    bool left = false;
    for (int k = 0; k < serve->batch_run.n; k++) {
        hth_infer_request *w = serve->batch_run.work[k];
        if (w != NULL && !w->done && w->r->canceled) {
            serve->batch_run.work[k] = NULL;
            hth_err err = hth_fail(HTH_ECANCELED, "canceled");
            hth_infer_request_count(serve->ms, w->model, w->r, &(hth_infer_request_times){0}, err);
            serve->answer(w->r, err);
            hth_infer_request_close(serve->ms, w);
        } else {
            left = left || w != NULL;
        }
    }
    serve->batch_run.stop = serve->batch_run.n > 0 && !left;
}

// hth_serve_poll takes what has arrived and, now and then, drops what waits no longer. Where
// nothing waits it costs nothing.
void hth_serve_poll(hth_serve *serve)
{
    if (serve->batch_run.n > 0) {
        serve_leave(serve);
    }
    hth_request *r;
    while ((r = serve->mail(serve->ctx)) != NULL) {
        hth_serve_take(serve, r);
    }
    uint64_t now_ns = hth_serve_empty(serve) && serve->memory_wait.n == 0 ? 0 : hth_now_ns();
    if (now_ns > serve->polled_ns + SERVE_POLL_NS) {
        serve->polled_ns = now_ns;
        serve_sweep(serve, now_ns);
    }
}

// ---- runs

// serve_ran answers a request that was run, or has it wait for memory.
void hth_serve_ran(hth_serve *serve, hth_infer_request *infer)
{
    if (infer->r->err != HTH_ENODEVMEM) {
        infer->model->ended_ns = hth_now_ns(); // who asks again on this answer comes later
        serve_finish(serve, infer);
        return;
    }
    atomic_fetch_add(&serve->waiting, 1);
    if (!hth_memory_wait_add(&serve->memory_wait, infer, serve->queue / 2)) {
        serve_give_up(serve, infer);
    }
}

// serve_alone returns whether it computed an answer.
static bool serve_alone(hth_serve *serve, hth_infer_request *request)
{
    const hth_program *p = hth_source_match(&request->model->source, request->inputs);
    if (p == NULL || !p->active) {
        hth_quota_owner(serve->ms->site, &request->model->account, request->r->tenant);
    }
    serve->ms->site->refused_over = serve->ms->site->refused_bytes = 0;
    bool pinned = p != NULL && p->pinned; // it needs nothing more
    if (pinned || !hth_memory_wait_joins(&serve->memory_wait, request)) {
        hth_infer_request_result(request, hth_infer(serve->ms, request));
    }
    bool computed = request->r->err == HTH_OK;
    hth_serve_ran(serve, request);
    return computed;
}

// serve_joined returns whether it computed any answer.
static bool serve_joined(hth_serve *serve, hth_infer_request **work, int n, int64_t bucket)
{
    hth_work_hold(&serve->works); // there is one join
    hth_err err = hth_batch_run_run(&serve->batch_run, serve->ms, work, n, bucket);
    hth_work_let(&serve->works);
    bool computed = false;
    for (int k = 0; k < n; k++) {
        if (err != HTH_OK) {
            computed |= serve_alone(serve, work[k]);
        } else if (work[k] != NULL) {
            computed |= work[k]->r->err == HTH_OK;
            hth_serve_ran(serve, work[k]);
        }
    }
    return computed;
}

void hth_serve_settle(hth_serve *serve, const hth_batch_bill *bill, uint64_t took_ns,
                      uint64_t now_ns)
{
    hth_batch_bill_settle(bill, took_ns);
    for (int i = 0; i < bill->n; i++) {
        hth_batch_flow *flow = bill->part[i].flow;
        double part = (double)bill->part[i].samples / (double)bill->samples;
        uint64_t ns = (uint64_t)((double)took_ns * part);
        if (flow != &serve->batcher.nobodys) {
            hth_tenant *tenant = hth_tenant_of_flow(flow);
            if (serve->turns != NULL) {
                hth_turns_charge(serve->turns, &tenant->turns, ns);
            }
            hth_tenant_ran(tenant, ns, 0, now_ns);
        }
    }
}

bool hth_serve_pick(hth_serve *serve, hth_batch_filter filter, hth_pick *out, uint64_t *wake_ns)
{
    out->n = 0;
    out->bucket = out->samples = 0;
    out->start_ns = hth_now_ns();
    hth_batch_item *items =
        hth_batcher_next(&serve->batcher, out->start_ns, filter, &out->bucket, wake_ns);
    hth_batch_bill_open(&out->bill, items);
    for (hth_batch_item *i = items; i != NULL; i = i->next) {
        out->work[out->n] = work_of(i);
        out->work[out->n++]->r->started_ns = out->start_ns;
        out->samples += i->samples;
    }
    atomic_fetch_sub(&serve->waiting, out->n);
    return out->n > 0;
}

// serve_expects is what such a run takes; 0: not known, as where its program has to be compiled.
static uint64_t serve_expects(hth_serve *serve, const hth_pick *pick)
{
    const hth_batch_item *i = &pick->work[0]->item;
    uint64_t ns =
        serve->batcher.oracle.time_ns(serve, i, pick->bucket > 0 ? pick->bucket : i->samples);
    return ns != HTH_BATCH_NONE ? ns : 0;
}

static void serve_run(hth_serve *serve, hth_pick *pick)
{
    hth_model *m = pick->work[0]->model;
    hth_model_hold(m);
    uint64_t expected_ns = serve_expects(serve, pick);
    pick->start_ns = hth_now_ns();
    hth_batcher_begin(&serve->batcher, &m->queue, pick->samples, pick->start_ns);
    bool computed = pick->bucket == 0 ? serve_alone(serve, pick->work[0])
                                      : serve_joined(serve, pick->work, pick->n, pick->bucket);
    uint64_t now_ns = hth_now_ns(), took_ns = now_ns - pick->start_ns;
    hth_batcher_end(&serve->batcher, &m->queue, pick->samples, computed ? took_ns : 0);
    hth_batcher_note_stall(&serve->batcher, expected_ns, took_ns, now_ns);
    hth_serve_settle(serve, &pick->bill, took_ns, now_ns);
    hth_model_rele(serve->ms, m);
}

// serve_quick says that the run begins at once: nothing has to be compiled for it, or for a later
// stage of it.
static bool serve_quick(hth_serve *serve, const hth_pick *pick)
{
    hth_infer_request *w = pick->work[0];
    hth_source *source = &w->model->source;
    const hth_tensor *key = pick->bucket > 0 ? hth_infer_request_key(w, pick->bucket) : w->inputs;
    hth_program *p = hth_infer_ready(serve->ms, source, key);
    return p != NULL && p->rest.graph == NULL && p->slice == 0;
}

bool hth_serve_batch(hth_serve *serve, hth_batch_filter filter, uint64_t *wake_ns,
                     uint32_t *priority)
{
    hth_pick x;
    if (!hth_serve_pick(serve, filter, &x, wake_ns)) {
        return false;
    }
    *priority = x.work[0]->item.priority;
    if (!filter.ready && filter.priority == 0 && x.bucket == 0) { // nothing else is at work
        hth_instances_run(serve, &x);
    }
    if (x.n > 0 && !filter.ready && serve->works.now == NULL && !serve_quick(serve, &x)) {
        serve->pick = x;
    } else if (x.n > 0) {
        serve_run(serve, &x);
    }
    return true;
}

void hth_serve_picked(hth_serve *serve)
{
    hth_pick x = serve->pick;
    serve->pick.n = 0;
    serve_run(serve, &x);
}

// ---- what was asked

void hth_serve_before(hth_serve *serve)
{
    uint64_t wake_ns;
    uint32_t priority;
    for (int n = serve->batcher.n; n > 0; n--) {
        hth_serve_batch(serve, (hth_batch_filter){.hurry = true}, &wake_ns, &priority);
        if (serve->pick.n > 0) { // there is no memory for a stack: this is the loop's own
            hth_serve_picked(serve);
        }
    }
}

bool hth_serve_requeue(hth_serve *serve)
{
    bool any = false;
    for (hth_infer_request *w; (w = hth_memory_wait_ready(&serve->memory_wait)) != NULL;
         any = true) {
        hth_batcher_requeue(&serve->batcher, &w->model->queue, &w->item);
    }
    return any;
}

// serve_find accepts a request whose model may have to be loaded.
static void serve_find(hth_serve *serve, hth_request *request)
{
    hth_model *m = NULL;
    const char *before = serve->ms->tenant;
    const hth_request *asked = serve->ms->asks;
    serve->ms->tenant = request->tenant;
    serve->ms->asks = request;
    request->started_ns =
        hth_now_ns(); // a process that ends by loading its model is not the queue's
    hth_err err =
        request->canceled ? fail_canceled() : hth_model_find(serve->ms, request->model, &m);
    serve->ms->tenant = before;
    serve->ms->asks = asked;
    if (err == HTH_OK) {
        (void)hth_serve_admit(serve, request, m);
    } else {
        serve_refuse(serve, request, err);
    }
}

static void serve_arrived(hth_serve *serve, hth_request *request)
{
    if (request->command == HTH_COMMAND_NONE) {
        serve_find(serve, request);
        return;
    }
    if (request->command == HTH_COMMAND_UNLOAD) {
        hth_serve_before(serve);
    }
    atomic_fetch_sub(&serve->waiting, 1);
    serve->query(serve->ctx, request);
}

bool hth_serve_accept(hth_serve *serve, bool queries)
{
    hth_request **at = &serve->first, *r;
    while (*at != NULL && !queries && (*at)->command != HTH_COMMAND_NONE) {
        at = &(*at)->next;
    }
    r = *at;
    if (r == NULL) {
        return false;
    }
    *at = r->next;
    serve->last = *at == NULL ? at : serve->last;
    serve_arrived(serve, r);
    return true;
}

bool hth_serve_empty(const hth_serve *serve)
{
    return serve->first == NULL && serve->batcher.n == 0;
}

void hth_serve_stop(hth_serve *serve)
{
    for (hth_infer_request *w; (w = hth_memory_wait_last(&serve->memory_wait)) != NULL;) {
        hth_infer_request_result(w, hth_fail(HTH_ECANCELED, "the server is stopping"));
        serve_give_up(serve, w);
    }
}

void hth_serve_init(hth_serve *serve)
{
    serve->memory_wait.ms = serve->ms;
    hth_serve_oracle(serve);
    serve->last = &serve->first;
    hth_serve_loop_init(serve);
}

void hth_serve_fini(hth_serve *serve)
{
    hth_work_fini(&serve->works);
    hth_train_overlap_fini(&serve->overlap);
    hth_instances_fini(&serve->instances);
    if (serve->instances.demanded != NULL) {
        hth_model_rele(serve->ms, serve->instances.demanded);
        serve->instances.demanded = NULL;
    }
    hth_batch_run_fini(&serve->batch_run);
    if (serve->demanded != NULL) {
        hth_model_rele(serve->ms, serve->demanded);
        serve->demanded = NULL;
    }
}
