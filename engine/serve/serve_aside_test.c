// SPDX-License-Identifier: Apache-2.0
// Algorithms are measured while nobody asks; a request that comes in the middle of that is answered
// there.
#include "engine/serve/serve.h"
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
    return r->s.site.in_measure(r->s.site.in_ctx);
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

static void rig_answer(hth_request *q, hth_err err)
{
    assert_ok(err);
    call *c = (call *)((char *)q - offsetof(call, r));
    c->finished = true;
    free(c->out[0].data);
    hth_free(q->outputs);
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
        hth_serve_look(&r->serve);
        hth_serve_turn(&r->serve, true, &wake_ns);
        assert_true(r->c.finished);
    }
}

static void test_idle(void **state)
{
    rig r;
    rig_open(&r);
    rig_use(&r);
    rig_ask(&r);
    for (int before = -1; !r.c.finished;) {
        assert_true(r.measured > before); // a node a step; short ones are over before anybody looks
        before = r.measured;
        bool more = hth_serve_idle(&r.serve);
        assert_true(more != r.c.finished); // no longer idle
        assert_true(!r.c.finished || r.looked == before);
    }
    assert_int_equal(r.serve.batcher.n, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_idle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
