// SPDX-License-Identifier: Apache-2.0
// Small requests on the calling thread: who computes them, that answers stay the same, and that
// other clients are served meanwhile. Time is counted in looks at the clock, so that a slow machine
// makes no model a large one.
#include "tests/rig/engine_call.h"
#include "tests/rig/npy_data.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdatomic.h>

#define FEW      8      // requests until a program was timed often enough
#define MANY     200    // requests of each of several clients
#define MOST     100000 // until background work has had its turn: it takes a few
#define ONE_LOOK 10000u // ns

typedef struct own_call {
    call c; // first
    pthread_t done;
} own_call;

static atomic_uint_fast64_t looks = (uint64_t)1 << 62; // after what the real clock said

static uint64_t look(void *ctx)
{
    return atomic_fetch_add((atomic_uint_fast64_t *)ctx, ONE_LOOK);
}

static int setup(void **state)
{
    fixture *f = malloc(sizeof *f);
    *state = f;
    return f == NULL;
}

static int teardown(void **state)
{
    hth_clock_inject(NULL, NULL);
    free(*state);
    return 0;
}

static void open_digits(fixture *f, const char *device)
{
    fixture_open(f, device);
    put(f->store, "digits", "tests/data/digits/digits.onnx");
}

static void own_done(hth_request *request)
{
    own_call *o = request->ctx;
    o->done = pthread_self();
    call_done(request);
}

// ask asks for the digits of an image, and leaves what it took in *o; true: on this thread.
static bool ask(fixture *f, const hth_request_tensor *in, own_call *o)
{
    *o = (own_call){.c = {.r = {.model = "digits", .inputs = in, .n_inputs = 1, .done = own_done}}};
    call_init(&o->c);
    assert_ok(hth_engine_here(f->engine, &o->c.r));
    bool here = call_finished(&o->c) && pthread_equal(o->done, pthread_self());
    (void)call_wait(&o->c);
    return here;
}

static void answered(own_call *o, float *out)
{
    assert_ok(o->c.r.err);
    assert_int_equal(o->c.out[0].bytes, 40);
    memcpy(out, o->c.out[0].data, 40);
    free(o->c.out[0].data);
}

static hth_request_tensor image_of(float *x)
{
    for (int i = 0; i < 64; i++) {
        x[i] = (float)(i * 7 % 16) / 16.0f;
    }
    return (hth_request_tensor){.t = {.dtype = HTH_DT_F32,
                                      .shape = {.rank = 4, .dim = {1, 1, 8, 8}},
                                      .data = x,
                                      .bytes = 256}};
}

// comes_here asks until the calling thread computes, and checks that all answers are `want`.
static void comes_here(fixture *f, const hth_request_tensor *in, float *first)
{
    own_call o;
    float y[10];
    bool here = false;
    for (int i = 0; i < MOST && !here; i++) {
        here = ask(f, in, &o);
        answered(&o, y);
        if (i == 0) {
            assert_false(here); // its model had to be loaded
            memcpy(first, y, sizeof y);
            hth_clock_inject(look, &looks); // what was measured until now took as long as it did
        }
        for (int k = 0; k < 10; k++) {
            assert_true(fabsf(y[k] - first[k]) <= 1e-5f * (1 + fabsf(first[k])));
        }
    }
    assert_true(here);
}

static void test_one_thread(void **state)
{
    fixture *f = *state;
    float x[64], y[10], first[10];
    hth_request_tensor in = image_of(x);
    own_call o;
    open_digits(f, "cpu:mem=64MiB,threads=1");
    comes_here(f, &in, first);
    for (int i = 0; i < FEW; i++) { // and so it stays
        assert_true(ask(f, &in, &o));
        answered(&o, y);
        assert_memory_equal(y, first, sizeof y);
    }
    json_t *stats = told(f, "stats", NULL);
    json_t *model = json_array_get(json_object_get(stats, "models"), 0);
    assert_true(json_integer_value(json_object_get(model, "requests")) > FEW);
    json_decref(stats);
    fixture_close(f);
}

// All threads of a device are not needed for a small model: there is a program for one.
static void test_two_threads(void **state)
{
    fixture *f = *state;
    float x[64], first[10];
    hth_request_tensor in = image_of(x);
    open_digits(f, "cpu:mem=64MiB,threads=2");
    comes_here(f, &in, first);
    own_call o;
    float y[10];
    int here = 0;
    for (int i = 0; i < 2 * 256; i++) { // the other way now and then
        here += ask(f, &in, &o);
        answered(&o, y);
    }
    assert_true(here > 256 && here < 2 * 256);
    fixture_close(f);
}

static void test_bad_requests(void **state)
{
    fixture *f = *state;
    float x[64], first[10];
    hth_request_tensor in = image_of(x), bad = in;
    own_call o;
    open_digits(f, "cpu:mem=64MiB,threads=1");
    comes_here(f, &in, first);
    bad.name = "nobody";
    assert_true(ask(f, &bad, &o)); // refused at once, by who asked
    assert_int_equal(o.c.r.err, HTH_EINVAL);
    assert_non_null(strstr(o.c.r.detail, "nobody"));
    assert_true(ask(f, &in, &o)); // nothing is left of it
    free(o.c.out[0].data);

    o = (own_call){.c = {.r = {.model = "none", .inputs = &in, .n_inputs = 1, .done = own_done}}};
    call_init(&o.c);
    assert_ok(hth_engine_here(f->engine, &o.c.r));
    assert_int_equal(call_wait(&o.c), HTH_ENOENT);

    o = (own_call){
        .c = {
            .r = {
                .model = "digits", .inputs = &in, .n_inputs = 1, .done = own_done, .canceled = 1}}};
    call_init(&o.c);
    assert_ok(hth_engine_here(f->engine, &o.c.r));
    assert_int_equal(call_wait(&o.c), HTH_ECANCELED);
    fixture_close(f);
}

static void test_stopped(void **state)
{
    fixture *f = *state;
    float x[64], first[10];
    hth_request_tensor in = image_of(x);
    own_call o = {.c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}}};
    open_digits(f, "cpu:mem=64MiB,threads=1");
    comes_here(f, &in, first);
    hth_engine_stop(f->engine);
    call_init(&o.c);
    assert_int_equal(hth_engine_here(f->engine, &o.c.r), HTH_ECANCELED);
    fixture_close(f);
}

// ---- beside others

typedef struct client {
    fixture *f;
    pthread_t thread;
    int asked, here;
    bool submits; // as a server's clients do
} client;

static void *client_main(void *arg)
{
    client *k = arg;
    float x[64], y[10], first[10];
    hth_request_tensor in = image_of(x);
    for (k->asked = 0; k->asked < MANY; k->asked++) {
        own_call o;
        if (k->submits) {
            o = (own_call){.c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}}};
            (void)call_run(k->f->engine, &o.c);
        } else {
            k->here += ask(k->f, &in, &o);
        }
        answered(&o, y);
        if (k->asked == 0) {
            memcpy(first, y, sizeof y);
        }
        for (int i = 0; i < 10; i++) {
            assert_true(fabsf(y[i] - first[i]) <= 1e-5f * (1 + fabsf(first[i])));
        }
    }
    return NULL;
}

static void test_beside_others(void **state)
{
    fixture *f = *state;
    client k[4] = {{.f = f}, {.f = f}, {.f = f, .submits = true}, {.f = f, .submits = true}};
    float x[64], first[10];
    hth_request_tensor in = image_of(x);
    open_digits(f, "cpu:mem=64MiB,threads=2");
    comes_here(f, &in, first);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&k[i].thread, NULL, client_main, &k[i]), 0);
    }
    for (int i = 0; i < FEW; i++) { // the model goes, and comes again
        json_decref(told(f, "unload", "{\"model\": \"digits\"}"));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(k[i].thread, NULL);
        assert_int_equal(k[i].asked, MANY);
    }
    fixture_close(f);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_one_thread), T(test_two_threads),   T(test_bad_requests),
        T(test_stopped),    T(test_beside_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
