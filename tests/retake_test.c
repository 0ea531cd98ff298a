// SPDX-License-Identifier: Apache-2.0
// Timings that others' work disturbed: an engine marks them, takes them again by itself when nobody
// asks, and at once where that is asked for. What others do is made up: the time for which this
// process's threads wait for a processor.
#include "base/settings.h"
#include "base/thread.h"
#include "convsel/convsel.h"
#include "tests/rig/engine_call.h"

#include <time.h>

#define CONVS 3 // of the model, all different

// A look at the threads' waiting comes before and behind each measurement of a node.
static struct {
    pthread_mutex_t lock;
    pthread_cond_t looked;
    uint64_t delay_ns;
    int looks;
    bool busy;
} others = {.lock = PTHREAD_MUTEX_INITIALIZER, .looked = PTHREAD_COND_INITIALIZER};

static uint64_t others_delay(void *ctx)
{
    pthread_mutex_lock(&others.lock);
    others.looks++;
    others.delay_ns += others.busy ? 1000000000000u : 0;
    uint64_t ns = others.delay_ns;
    pthread_cond_signal(&others.looked);
    pthread_mutex_unlock(&others.lock);
    return ns;
}

static int others_looks(void)
{
    pthread_mutex_lock(&others.lock);
    int n = others.looks;
    pthread_mutex_unlock(&others.lock);
    return n;
}

// Waits for so many looks in all.
static void others_wait(int n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    pthread_mutex_lock(&others.lock);
    while (others.looks < n) {
        if (pthread_cond_timedwait(&others.looked, &others.lock, &until) != 0) {
            fail_msg("%d looks instead of %d", others.looks, n);
        }
    }
    pthread_mutex_unlock(&others.lock);
}

static void others_are(bool busy)
{
    pthread_mutex_lock(&others.lock);
    others.busy = busy;
    pthread_mutex_unlock(&others.lock);
}

// How many of the nodes that are listed were disturbed. The rows of a node follow one another.
static int disturbed(const fixture *f, const char *arguments, int *nodes)
{
    json_t *doc = told(f, "convsel", arguments);
    const char *before = "";
    int n = 0;
    *nodes = 0;
    for (int i = 0; i < (int)json_array_size(doc); i++) {
        const json_t *row = json_array_get(doc, (size_t)i);
        const char *node = json_string_value(json_object_get(row, "node"));
        bool next = strcmp(node, before) != 0;
        *nodes += next;
        n += next && json_is_true(json_object_get(row, "disturbed"));
        before = node;
    }
    json_decref(doc);
    return n;
}

static void all_disturbed(const fixture *f, const char *arguments)
{
    int nodes, n = disturbed(f, arguments, &nodes);
    assert_int_equal(nodes, CONVS);
    assert_int_equal(n, CONVS);
}

// Requests for a batch of one, as often as it takes until algorithms are measured for it.
static void run_digits(const fixture *f)
{
    float x[64] = {1};
    const hth_shape shape = {4, {1, 1, 8, 8}};
    for (int i = 0; i < 4; i++) {
        hth_tensor t = {.dtype = HTH_DT_F32, .shape = shape, .data = x, .bytes = sizeof x};
        hth_request_tensor in = {.name = NULL, .t = t};
        call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
        assert_ok(call_run(f->engine, &c));
        for (int k = 0; k < 4; k++) {
            free(c.out[k].data);
        }
    }
}

// Looks and answers until nothing that is listed is disturbed.
static void expect_quiet(const fixture *f, const char *arguments, int looks)
{
    int nodes = 0, left = CONVS;
    for (int i = 0; i < HTH_CONVSEL_TRIES && left > 0; i++) { // a real disturbance is possible, too
        others_wait(looks += 2 * left); // only what is still marked is taken again
        left = disturbed(f, arguments, &nodes);
    }
    assert_int_equal(nodes, CONVS);
    assert_int_equal(left, 0);
}

static void disturbed_timings_are_taken_again(void **state)
{
    static const char one[] = "{\"model\":\"digits\",\"batch\":1}";
    static const char anew[] = "{\"model\":\"digits\",\"batch\":1,\"again\":true}";
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    assert_ok(hth_setting_set("convsel.remeasure_seconds", "86400"));
    assert_ok(hth_setting_set("convsel.quiet_share", "1")); // whatever runs beside this test
    hth_thread_delay_inject(others_delay, NULL);
    others_are(true);
    run_digits(&f);
    all_disturbed(&f, one); // measured for the question, at the latest
    others_are(false);
    int looks = others_looks();
    all_disturbed(&f, one); // what is asked takes nothing again
    assert_int_equal(others_looks(), looks);
    // The engine takes them again while nobody asks, and the program follows.
    assert_ok(hth_setting_set("convsel.remeasure_seconds", "0"));
    run_digits(&f);
    expect_quiet(&f, one, looks);
    // At once, because somebody asks for it, each node once.
    assert_ok(hth_setting_set("convsel.remeasure_seconds", "86400"));
    looks = others_looks();
    others_are(true);
    all_disturbed(&f, anew);
    assert_int_equal(others_looks(), looks + 2 * CONVS);
    others_are(false);
    assert_ok(hth_setting_set("convsel.remeasure_seconds", "0"));
    run_digits(&f); // the program is made again for that first
    expect_quiet(&f, one, looks + 2 * CONVS);
    hth_thread_delay_inject(NULL, NULL);
    fixture_close(&f);
}

// Cancels what reports that so much of it is done.
typedef struct canceler {
    call c;
    uint64_t at;
    int heard;
} canceler;

static void cancel_at(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    canceler *x = request->ctx;
    assert_string_equal(what, "measuring algorithms");
    assert_true(done < total);
    x->heard++;
    if (done == x->at) {
        request->canceled = 1;
    }
}

static void measuring_again_can_be_canceled(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    hth_thread_delay_inject(others_delay, NULL);
    json_decref(told(&f, "convsel", "{\"model\":\"digits\",\"batch\":1}"));
    int looks = others_looks();
    canceler x = {.c = {.r = {.command = HTH_COMMAND_CONVSEL,
                              .arguments = "{\"model\":\"digits\",\"batch\":1,\"again\":true}",
                              .progress = cancel_at}},
                  .at = 4};
    assert_int_equal(call_run(f.engine, &x.c), HTH_ECANCELED);
    assert_int_equal(x.heard, 5);
    assert_true(others_looks() <= looks + 2 * CONVS);
    hth_thread_delay_inject(NULL, NULL);
    fixture_close(&f);
}

static uint64_t cancel_delay(void *ctx)
{
    hth_request *request = ctx;
    request->canceled = 1;
    return 0;
}

// The threads' waiting is looked at when the pairs are all set up.
static void pairs_can_be_canceled(void **state)
{
    static const char pairs[] = "{\"model\":\"digits\",\"batch\":1,\"pairs\":true}";
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    json_decref(told(&f, "plan", "{\"model\":\"digits\",\"batch\":1}"));
    json_decref(told(&f, "convsel", "{\"model\":\"digits\",\"batch\":1}"));
    call c = {.r = {.command = HTH_COMMAND_CONVSEL, .arguments = pairs}};
    hth_thread_delay_inject(cancel_delay, &c.r);
    assert_int_equal(call_run(f.engine, &c), HTH_ECANCELED);
    hth_thread_delay_inject(NULL, NULL);
    json_decref(told(&f, "convsel", pairs));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(disturbed_timings_are_taken_again),
                                       cmocka_unit_test(measuring_again_can_be_canceled),
                                       cmocka_unit_test(pairs_can_be_canceled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
