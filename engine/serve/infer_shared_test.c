// SPDX-License-Identifier: Apache-2.0
// Inputs in memory into which their client writes while his request is worked on: he spoils his own
// result at most. The write comes at each allocation of the request in turn.
#include "tests/rig/site_rig.h"

#define ELEMENTS 5

static hth_err none_get(void *ctx, const char *key, char *value, size_t cap)
{
    return HTH_ENOENT;
}

static hth_err none_put(void *ctx, const char *key, const char *value)
{
    return HTH_OK;
}

static const hth_timing_cache no_timings = {.get = none_get, .put = none_put};

// One request for a model with an input x and outputs of at most ELEMENTS elements.
typedef struct asked {
    hth_request r;
    hth_request_tensor in;
    hth_infer_request *w;
    int64_t y[ELEMENTS];
    float r_out[ELEMENTS];
    int64_t count; // of y
} asked;

static hth_err asked_place(hth_request *request, hth_request_tensor *out, int n)
{
    asked *a = request->ctx;
    for (int i = 0; i < n; i++) {
        bool y = out[i].name[0] == 'y';
        assert_true(out[i].t.bytes <= (y ? sizeof a->y : sizeof a->r_out));
        out[i].t.data = y ? (void *)a->y : (void *)a->r_out;
        a->count = y ? out[i].t.shape.dim[1] : a->count;
    }
    return HTH_OK;
}

static void asked_open(site_rig *rig, asked *a, const char *model, float *x)
{
    hth_model *m;
    memset(a, 0, sizeof *a);
    a->in = (hth_request_tensor){.t = {.dtype = HTH_DT_F32,
                                       .shape = {.rank = 1, .dim = {ELEMENTS}},
                                       .data = x,
                                       .bytes = ELEMENTS * sizeof *x}};
    a->r = (hth_request){
        .model = model, .inputs = &a->in, .n_inputs = 1, .place = asked_place, .ctx = a};
    assert_ok(hth_model_find(&rig->models, model, &m));
    assert_ok(hth_infer_request_open(&rig->models, m, &a->r, &a->w));
}

static void asked_close(site_rig *rig, asked *a)
{
    hth_infer_request_close(&rig->models, a->w);
    hth_free(a->r.outputs);
}

static void expect(site_rig *rig, const char *model, float value, int64_t count)
{
    asked a;
    float x[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        x[i] = value;
    }
    asked_open(rig, &a, model, x);
    assert_ok(hth_infer(&rig->models, a.w));
    assert_int_equal(a.count, count);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(a.y[i], i);
    }
    asked_close(rig, &a);
}

typedef struct writer {
    float *x;
    bool wrote;
} writer;

static void writer_turns(void *ctx)
{
    writer *w = ctx;
    for (int i = 0; i < ELEMENTS; i++) {
        w->x[i] = w->x[i] == 0 ? 1 : 0;
    }
    w->wrote = true;
}

// Whenever the client writes, what is kept of his request is right for who asks next.
static void test_written(void **state)
{
    static const char *const models[] = {"nonzero", "nonzero_staged"};
    site_rig rig;
    char path[64];
    site_rig_open(&rig, &no_timings);
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "tests/data/engine/%s.onnx", models[k]);
        put(rig.store, models[k], path);
        writer w = {.wrote = true};
        for (uint64_t nth = 1; w.wrote; nth++) {
            asked a;
            float x[ELEMENTS] = {0};
            w = (writer){.x = x};
            asked_open(&rig, &a, models[k], x);
            hth_fault_call(nth, writer_turns, &w);
            hth_err err = hth_infer(&rig.models, a.w);
            hth_fault_call(0, NULL, NULL);
            assert_true(err == HTH_OK || err == HTH_EINVAL);
            asked_close(&rig, &a);
            expect(&rig, models[k], 0, 0);
            expect(&rig, models[k], 1, ELEMENTS);
            hth_models_unload(&rig.models, models[k], 0);
            assert_true(nth < 100000);
        }
    }
    site_rig_close(&rig);
}

// A request that has to wait for memory is run again: with other values its outputs may have other
// sizes than the places that they were given.
static void test_again(void **state)
{
    static const char *const models[] = {"nonzero", "nonzero_staged"};
    site_rig rig;
    char path[64];
    site_rig_open(&rig, &no_timings);
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "tests/data/engine/%s.onnx", models[k]);
        put(rig.store, models[k], path);
        asked a;
        float x[ELEMENTS] = {0, 1, 0, 0, 0};
        asked_open(&rig, &a, models[k], x);
        assert_ok(hth_infer(&rig.models, a.w));
        assert_int_equal(a.count, 1);
        memset(a.y, 0, sizeof a.y);
        assert_ok(hth_infer(&rig.models, a.w)); // the places stay
        assert_int_equal(a.y[0], 1);
        x[3] = 1;
        memset(a.y, 0xff, sizeof a.y);
        assert_err(hth_infer(&rig.models, a.w), HTH_EINVAL, "output 'y' took 8 bytes, and 16");
        for (int i = 1; i < ELEMENTS; i++) {
            assert_int_equal(a.y[i], -1);
        }
        asked_close(&rig, &a);
    }
    site_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_written),
                                       cmocka_unit_test(test_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
