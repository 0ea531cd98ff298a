// SPDX-License-Identifier: Apache-2.0
// Who computes next: a request that comes in the middle of a measurement or of a compilation is
// answered there, and what was interrupted goes on; measuring leaves a server that is asked alone.
#include "engine/serve/serve_impl.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "tests/rig/site_rig.h"

#define USES 3

typedef struct rig {
    site_rig s;
    hth_serve serve;
    hth_timing_cache cache;
    call c;
    hth_request_tensor in;
    hth_request *arrives; // at the next look
    int measured, looked; // nodes: that are, and that were when it was taken
    int jobs;             // turns of jobs
    hth_model *job;       // a job: compiles for that; NULL: there is none
    bool unloaded, alone; // it was asked for; .. on the loop's own stack
} rig;

static hth_err rig_get(void *ctx, const char *key, char *value, size_t cap)
{
    return hth_store_text_get(((rig *)ctx)->s.store, key, value, cap);
}

static hth_err rig_put(void *ctx, const char *key, const char *value)
{
    rig *r = ctx;
    r->measured++;
    return hth_store_text_put(r->s.store, key, value);
}

static bool rig_between(void *ctx)
{
    rig *r = ctx;
    return hth_serve_tuning(&r->serve) && hth_work_point(r->s.site.queue);
}

static hth_request *rig_mail(void *ctx)
{
    rig *r = ctx;
    hth_request *one = r->arrives;
    r->arrives = NULL;
    r->looked = one != NULL ? r->measured : r->looked;
    return one;
}

static bool rig_wait(void *ctx, uint64_t ns)
{
    return true;
}

static bool rig_due(void *ctx)
{
    return ((rig *)ctx)->job != NULL;
}

static void rig_compile(rig *r, hth_model *model)
{
    hth_tensor in[1];
    hth_program *p;
    assert_ok(hth_model_synthetic(model, 7, false, in));
    assert_ok(hth_infer_program(&r->s.models, &model->source, in, false, NULL, &p));
    assert_int_equal(p->key[0].shape.dim[0], 7);
    hth_free(in[0].data);
}

// A job that compiles: a request arrives after it has begun.
static bool rig_job(void *ctx)
{
    rig *r = ctx;
    hth_model *m = r->job;
    r->job = NULL;
    r->jobs++;
    r->arrives = &r->c.r;
    rig_compile(r, m);
    assert_true(r->c.finished); // it was answered before that was done
    return true;
}

// A query that compiles, and one that computes nothing.
static void rig_query(void *ctx, hth_request *request)
{
    rig *r = ctx;
    assert_int_equal(request->command, HTH_COMMAND_PLAN);
    rig_compile(r, hth_model_current(&r->s.models, "digits"));
    assert_true(r->c.finished);
}

static bool rig_at_once(void *ctx, hth_request *request)
{
    rig *r = ctx;
    assert_ptr_equal(request, &r->c.r);
    r->c.finished = true;
    return true;
}

static void rig_answer(hth_request *request, hth_err err)
{
    assert_ok(err);
    call *c = (call *)((char *)request - offsetof(call, r));
    c->finished = true;
    free(c->out[0].data);
    hth_free(request->outputs);
}

static void rig_ask(rig *r)
{
    static float pixels[64];
    r->in = (hth_request_tensor){.t = {.dtype = HTH_DT_F32,
                                       .shape = {4, {1, 1, 8, 8}},
                                       .data = pixels,
                                       .bytes = sizeof pixels}};
    r->c = (call){.r = {.model = "digits", .inputs = &r->in, .n_inputs = 1}};
    call_init(&r->c);
    r->arrives = &r->c.r;
}

static void rig_open(rig *r)
{
    memset(r, 0, sizeof *r);
    r->cache = (hth_timing_cache){
        .get = rig_get, .put = rig_put, .ctx = r, .between = rig_between, .owner = r};
    site_rig_open(&r->s, &r->cache);
    put(r->s.store, "digits", "tests/data/digits/digits.onnx");
    r->serve = (hth_serve){.ms = &r->s.models,
                           .mail = rig_mail,
                           .wait = rig_wait,
                           .answer = rig_answer,
                           .query = rig_query,
                           .at_once = rig_at_once,
                           .due = rig_due,
                           .job = rig_job,
                           .ctx = r,
                           .queue = 16};
    hth_serve_init(&r->serve);
}

static void rig_close(rig *r)
{
    hth_serve_stop(&r->serve);
    hth_serve_fini(&r->serve);
    site_rig_close(&r->s);
}

// Requests until measuring is worth it.
static void rig_use(rig *r)
{
    uint64_t wake_ns;
    for (int i = 0; i < USES; i++) {
        rig_ask(r);
        while (!r->c.finished) {
            (void)hth_serve_iterate(&r->serve, false, &wake_ns);
        }
    }
}

// rig_rest has turns until what is in progress is over.
static void rig_rest(rig *r)
{
    uint64_t wake_ns;
    while (!hth_serve_over(&r->serve)) {
        (void)hth_serve_iterate(&r->serve, true, &wake_ns);
    }
}

static void test_idle(void **state)
{
    rig r;
    uint64_t wake_ns;
    rig_open(&r);
    rig_use(&r);
    rig_rest(&r);
    r.serve.requested_ns = 1; // long ago
    while (r.measured < 2) {
        int before = r.measured;
        assert_true(hth_serve_iterate(&r.serve, false, &wake_ns)); // at full pace
        assert_true(r.measured > before);                          // a node a step
    }
    rig_ask(&r);
    for (int i = 0; !r.c.finished; i++) { // taken in the middle of a step, and answered there
        int before = r.measured;
        (void)hth_serve_iterate(&r.serve, false, &wake_ns);
        assert_true(r.arrives != NULL || r.measured == before);
        assert_true(i < 3);
    }
    assert_int_equal(r.serve.batcher.n, 0);
    rig_rest(&r);
    rig_close(&r);
}

// Once somebody has asked, measuring leaves the device alone for most of the time.
static void test_rests(void **state)
{
    rig r;
    uint64_t wake_ns, from_ns = hth_now_ns();
    rig_open(&r);
    rig_use(&r);
    bool rests = false;
    r.serve.measured_ns = 0; // now
    for (int before = r.measured; !rests && r.measured < before + 8;) {
        r.serve.requested_ns = hth_now_ns();
        rests = !hth_serve_iterate(&r.serve, false, &wake_ns) && wake_ns > hth_now_ns();
    }
    assert_true(rests && wake_ns > from_ns && wake_ns != UINT64_MAX);
    rig_rest(&r); // but where the engine stops
    rig_close(&r);
}

// A job that compiles is left in the middle for a request, and gone on with.
static void test_compile(void **state)
{
    rig r;
    uint64_t wake_ns;
    rig_open(&r);
    rig_use(&r);
    rig_rest(&r);
    rig_ask(&r);
    r.arrives = NULL;
    r.job = hth_model_current(&r.s.models, "digits");
    assert_non_null(r.job);
    while (r.jobs == 0 || hth_work_busy(&r.serve.work[HTH_SERVE_JOBS].work)) {
        (void)hth_serve_iterate(&r.serve, false, &wake_ns);
    }
    assert_true(r.c.finished);
    rig_rest(&r);
    rig_close(&r);
}

// A query that computes nothing does not wait for a long one that came in the same moment, even if
// nothing else arrives.
static void test_together(void **state)
{
    rig r;
    uint64_t wake_ns;
    hth_request plan = {.command = HTH_COMMAND_PLAN};
    rig_open(&r);
    rig_use(&r);
    rig_rest(&r);
    r.c = (call){.r = {.command = HTH_COMMAND_MODELS}};
    hth_serve_take(&r.serve, &plan);
    hth_serve_take(&r.serve, &r.c.r);
    while (!r.c.finished || hth_work_busy(&r.serve.work[HTH_SERVE_REQUESTED].work)) {
        (void)hth_serve_iterate(&r.serve, false, &wake_ns);
    }
    rig_rest(&r);
    rig_close(&r);
}

// One for a batch whose program is not there is compiled on a stack of its own, and one that comes
// meanwhile, whose program is there, is answered first.
static void test_not_there(void **state)
{
    rig r;
    uint64_t wake_ns;
    static float pixels[64 * 3];
    rig_open(&r);
    rig_use(&r);
    rig_rest(&r);
    hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                   .shape = {4, {3, 1, 8, 8}},
                                   .data = pixels,
                                   .bytes = sizeof pixels}};
    call big = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    call_init(&big);
    hth_serve_take(&r.serve, &big.r);
    rig_ask(&r);
    while (!r.c.finished) {
        assert_false(big.finished);
        (void)hth_serve_iterate(&r.serve, false, &wake_ns);
    }
    assert_true(hth_work_busy(&r.serve.work[HTH_SERVE_REQUESTED].work));
    rig_rest(&r);
    assert_true(big.finished);
    rig_close(&r);
}

// A larger program is demanded, and before it is made in the background a request of that size has
// it made, and it is pinned: it stays, though the device is full by then.
static void test_demanded_is_there(void **state)
{
    rig r;
    hth_model *m;
    hth_program *p;
    hth_tensor in[1];
    void *rest;
    hth_pool_ledger l;
    rig_open(&r);
    hth_site *site = &r.s.site;
    assert_ok(hth_model_find(&r.s.models, "digits", &m));
    assert_ok(hth_model_synthetic(m, 8, false, in));
    assert_ok(hth_infer_program(&r.s.models, &m->source, in, false, NULL, &p));
    assert_ok(hth_program_activate(site, p));
    hth_program_pin(site, p, true);
    m->demand = (hth_batch_demand){.key = hth_memdup(in, sizeof in), .samples = 8};
    hth_site_drop_arena(site);
    hth_pool_ledger_get(site->pool, &l);
    assert_ok(hth_pool_alloc(site->pool, l.largest_free_bytes, HTH_POOL_WORKSPACE, &rest));
    hth_serve_compile(&r.serve, m);
    assert_ptr_equal(hth_source_match(&m->source, in), p);
    assert_true(p->pinned && p->active);
    assert_null(m->demand.key);
    assert_int_equal(m->too_many, 0);
    hth_pool_free(site->pool, rest);
    hth_free(in[0].data);
    rig_close(&r);
}

static void unload_query(void *ctx, hth_request *request)
{
    rig *r = ctx;
    assert_int_equal(request->command, HTH_COMMAND_UNLOAD);
    r->unloaded = true;
    r->alone = r->serve.works.now == NULL;
}

static bool unload_at_once(void *ctx, hth_request *request)
{
    return false;
}

// Some may be refused for want of memory.
static void unload_answer(hth_request *request, hth_err err)
{
    call *c = (call *)((char *)request - offsetof(call, r));
    assert_true(err == HTH_OK || err == HTH_ENOMEM);
    assert_false(c->finished);
    c->finished = true;
    free(c->out[0].data);
    hth_free(request->outputs);
}

// Requests for two models whose programs are not there, before an unload. There is no memory for
// the n-th thing that is made, a stack among them: each request is answered all the same.
static void test_no_stack(void **state)
{
    static const char *const model[] = {"digits", "twin"};
    static float pixels[64 * 60];
    rig r;
    hth_model *found;
    uint64_t wake_ns;
    rig_open(&r);
    put(r.s.store, "twin", "tests/data/digits/digits.onnx");
    r.serve.query = unload_query;
    r.serve.at_once = unload_at_once;
    r.serve.answer = unload_answer;
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_model_find(&r.s.models, model[i], &found));
    }
    for (int nth = 1; !r.alone; nth++) {
        call c[2];
        assert_true(nth < 60);
        hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                       .shape = {4, {nth, 1, 8, 8}},
                                       .data = pixels,
                                       .bytes = (size_t)nth * 256}};
        hth_request unload = {.command = HTH_COMMAND_UNLOAD};
        for (int i = 0; i < 2; i++) {
            c[i] = (call){.r = {.model = model[i], .inputs = &in, .n_inputs = 1}};
            call_init(&c[i]);
            hth_serve_take(&r.serve, &c[i].r);
        }
        hth_serve_take(&r.serve, &unload);
        assert_int_equal(r.serve.batcher.n, 2);
        // the unload is first
        hth_run_queue_ran(&r.serve.works.runs, &r.serve.runs, 1000000000u, hth_now_ns());
        r.unloaded = false;
        hth_fault_alloc((uint64_t)nth);
        while (!r.unloaded) {
            (void)hth_serve_iterate(&r.serve, false, &wake_ns);
        }
        hth_fault_alloc(0);
        for (int i = 0; i < 1000 && !(c[0].finished && c[1].finished); i++) {
            (void)hth_serve_iterate(&r.serve, true, &wake_ns);
        }
        assert_true(c[0].finished && c[1].finished);
        rig_rest(&r);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_idle),
                                       cmocka_unit_test(test_rests),
                                       cmocka_unit_test(test_compile),
                                       cmocka_unit_test(test_together),
                                       cmocka_unit_test(test_not_there),
                                       cmocka_unit_test(test_no_stack),
                                       cmocka_unit_test(test_demanded_is_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
