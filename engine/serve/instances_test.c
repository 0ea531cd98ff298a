// SPDX-License-Identifier: Apache-2.0
// Several runs of one model at a time: every caller's own answer, one copy of the weights, the
// ledger, cancellation and failures in the middle of others, and memory for one run only.
//
// Whether concurrent runs pay depends on the machine; that they are tried when several
// requests wait does not.
#include "engine/serve/serve.h"
#include "tests/rig/engine_call.h"
#include "tests/rig/npy_data.h"

#include <math.h>

#define CALLERS 12
#define ROUNDS  40
#define TRIES   30  // until no algorithms are left to measure
#define SAMPLES 768 // of a request: more than are joined, and more than a millisecond

typedef struct caller {
    call c;
    hth_request_tensor in;
    hth_tensor want; // the answer alone; data NULL: not known yet
    bool refuse_place, cancel;
    bool wait; // there is no memory for its outputs the first time
} caller;

typedef struct rig {
    fixture f;
    hth_tensor images;
    char *data[CALLERS];
    caller w[CALLERS];
} rig;

static hth_err caller_place(hth_request *request, hth_request_tensor *out, int n)
{
    caller *w = request->ctx;
    if (w->refuse_place) {
        return hth_fail(HTH_ENOMEM, "nowhere to put it");
    }
    if (w->wait) {
        w->wait = false;
        return hth_fail(HTH_ENODEVMEM, "nowhere to put it yet");
    }
    hth_err err = call_place(request, out, n);
    request->canceled = w->cancel;
    return err;
}

static void caller_init(caller *w)
{
    w->c = (call){.r = {.model = "digits", .inputs = &w->in, .n_inputs = 1, .place = caller_place}};
    call_init(&w->c);
}

typedef struct facts {
    json_int_t concurrent, private_bytes, arena_bytes, requests, programs, measured;
} facts;

// rig_facts also asserts that every byte of the device is accounted for.
static facts rig_facts(rig *r)
{
    json_t *doc = told(&r->f, "stats", "{\"model\":\"digits\"}");
    json_t *m = json_array_get(json_object_get(doc, "models"), 0);
    json_t *ledger = json_object_get(doc, "ledger");
    assert_non_null(ledger);
    assert_int_equal(json_integer_value(json_object_get(ledger, "difference_bytes")), 0);
    assert_int_equal(json_integer_value(json_object_get(ledger, "unclaimed_bytes")), 0);
    assert_true(json_equal(json_object_get(m, "beside"), json_object_get(m, "concurrent_runs")));
    facts x = {json_integer_value(json_object_get(m, "concurrent_runs")),
               json_integer_value(json_object_get(m, "resident_private_bytes")),
               json_integer_value(json_object_get(ledger, "compute_arena_bytes")),
               json_integer_value(json_object_get(m, "requests")),
               json_integer_value(json_object_get(m, "programs")),
               json_integer_value(json_object_get(m, "measured"))};
    json_decref(doc);
    return x;
}

// rig_alone asks for each caller's answer, one after the other.
static void rig_alone(rig *r)
{
    for (int i = 0; i < CALLERS; i++) {
        caller *w = &r->w[i];
        free(w->want.data);
        caller_init(w);
        assert_ok(hth_engine_submit(r->f.engine, &w->c.r));
        call_wait(&w->c);
        assert_int_equal(w->c.r.err, HTH_OK);
        w->want = w->c.out[0];
    }
}

static void rig_open(rig *r, const char *device)
{
    memset(r, 0, sizeof *r);
    fixture_open(&r->f, device);
    put(r->f.store, "digits", "tests/data/digits/digits.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &r->images));
    size_t row = r->images.bytes / (size_t)r->images.shape.dim[0];
    int64_t have = r->images.shape.dim[0];
    for (int i = 0; i < CALLERS; i++) {
        caller *w = &r->w[i];
        r->data[i] = malloc(row * SAMPLES);
        for (int64_t k = 0; k < SAMPLES; k++) { // each caller's are in another order
            memcpy(r->data[i] + (size_t)k * row,
                   (char *)r->images.data + (size_t)((k * 7 + i * 13) % have) * row, row);
        }
        w->in.t = r->images;
        w->in.t.shape.dim[0] = SAMPLES;
        w->in.t.bytes = row * SAMPLES;
        w->in.t.data = r->data[i];
    }
    rig_alone(r);
}

// rig_again opens another engine on the same store, which knows what was measured.
static void rig_again(rig *r, const char *device)
{
    hth_engine_config config = {.device = device, .event = events_event};
    hth_engine_close(r->f.engine);
    assert_ok(hth_engine_open(&config, r->f.store, &r->f.engine));
    rig_alone(r);
}

static void rig_close(rig *r)
{
    for (int i = 0; i < CALLERS; i++) {
        free(r->w[i].want.data);
        free(r->data[i]);
    }
    hth_free(r->images.data);
    fixture_close(&r->f);
}

static void expect_answer(caller *w)
{
    const float *a = w->c.out[0].data, *b = w->want.data;
    if (w->c.r.err != HTH_OK) {
        fail_msg("%s", w->c.r.detail);
    }
    assert_true(hth_shape_equal(&w->c.out[0].shape, &w->want.shape));
    for (size_t i = 0; i < w->want.bytes / sizeof *b; i++) {
        if (!(fabsf(a[i] - b[i]) <= 1e-4f * fmaxf(1, fabsf(b[i])))) {
            fail_msg("%g instead of %g", (double)a[i], (double)b[i]);
        }
    }
}

static void rig_round(rig *r)
{
    for (int i = 0; i < CALLERS; i++) {
        caller_init(&r->w[i]);
        assert_ok(hth_engine_submit(r->f.engine, &r->w[i].c.r));
    }
    for (int i = 0; i < CALLERS; i++) {
        call_wait(&r->w[i].c);
    }
}

// rig_until asks until so many more concurrent runs were done.
static facts rig_until(rig *r, int runs)
{
    facts x = rig_facts(r);
    json_int_t want = x.concurrent + runs;
    for (int i = 0; i < ROUNDS && x.concurrent < want; i++) {
        rig_round(r);
        for (int k = 0; k < CALLERS; k++) {
            expect_answer(&r->w[k]);
            free(r->w[k].c.out[0].data);
        }
        x = rig_facts(r);
    }
    return x;
}

// An engine that nobody asks for a moment, as on a machine with other work, measures algorithms:
// its programs are others then, with weights in other forms, and what they take says nothing about
// concurrent runs. That is tried anew, with what was measured.
static void test_own_answers(void **state)
{
    rig r;
    facts alone, concurrent;
    bool same = false;
    rig_open(&r, "cpu:mem=256MiB,threads=2");
    for (int i = 0; i < TRIES && !same; i++) {
        if (i > 0) {
            rig_again(&r, "cpu:mem=256MiB,threads=2");
        }
        alone = rig_facts(&r);
        concurrent = rig_until(&r, 4);
        assert_true(concurrent.concurrent >= alone.concurrent + 4);
        same = concurrent.programs == alone.programs && concurrent.measured == alone.measured;
    }
    assert_true(same);
    assert_true(alone.private_bytes > 0);
    assert_int_equal(concurrent.private_bytes, alone.private_bytes); // weights 1.00x
    print_message("# %lld concurrent runs, of %lld requests\n", (long long)concurrent.concurrent,
                  (long long)concurrent.requests);
    json_decref(told(&r.f, "unload", "{\"model\":\"digits\"}"));
    facts gone = rig_facts(&r);
    assert_int_equal(gone.private_bytes, 0);
    assert_int_equal(gone.arena_bytes, 0);
    rig_close(&r);
}

// Some are canceled as soon as they begin, some cannot place their outputs: the others' answers are
// theirs.
static void test_failures(void **state)
{
    rig r;
    rig_open(&r, "cpu:mem=256MiB,threads=2");
    facts x = rig_until(&r, 4);
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < CALLERS; i++) {
            r.w[i].cancel = i % 4 == 1;
            r.w[i].refuse_place = i % 4 == 3;
        }
        rig_round(&r);
        for (int i = 0; i < CALLERS; i++) {
            caller *w = &r.w[i];
            if (w->cancel) {
                assert_int_equal(w->c.r.err, HTH_ECANCELED);
            } else if (w->refuse_place) {
                assert_int_equal(w->c.r.err, HTH_ENOMEM);
                assert_string_equal(w->c.r.detail, "nowhere to put it");
            } else {
                expect_answer(w);
            }
            free(w->c.out[0].data);
            w->cancel = w->refuse_place = false;
        }
        x = rig_facts(&r);
    }
    assert_true(x.requests >= 8 * CALLERS);
    rig_close(&r);
}

// One that has to wait for memory is run again, and counts once.
static void test_memory_waits(void **state)
{
    rig r;
    rig_open(&r, "cpu:mem=256MiB,threads=2");
    facts x = rig_until(&r, 4);
    for (int round = 0; round < 4; round++) {
        json_int_t before = x.requests;
        for (int i = 0; i < CALLERS; i++) {
            r.w[i].wait = i % 3 == 1;
        }
        rig_round(&r);
        for (int i = 0; i < CALLERS; i++) {
            expect_answer(&r.w[i]);
            free(r.w[i].c.out[0].data);
        }
        x = rig_facts(&r);
        assert_int_equal(x.requests, before + CALLERS);
    }
    rig_close(&r);
}

// Where a second arena does not fit, runs are done one after the other.
static void test_little_memory(void **state)
{
    rig r;
    char device[64];
    rig_open(&r, "cpu:mem=256MiB,threads=2");
    facts x = rig_facts(&r);
    rig_close(&r);
    snprintf(device, sizeof device, "cpu:mem=%lld,threads=2",
             (long long)(x.private_bytes + x.arena_bytes + x.arena_bytes / 2));
    rig_open(&r, device);
    for (int i = 0; i < 4; i++) {
        rig_round(&r);
        for (int k = 0; k < CALLERS; k++) {
            expect_answer(&r.w[k]);
            free(r.w[k].c.out[0].data);
        }
    }
    assert_int_equal(rig_facts(&r).concurrent, 0);
    rig_close(&r);
}

// A lone client has all threads, whatever others did before.
static void test_lone(void **state)
{
    rig r;
    rig_open(&r, "cpu:mem=256MiB,threads=2");
    facts before = rig_until(&r, 4);
    for (int i = 0; i < CALLERS; i++) {
        caller *w = &r.w[i];
        caller_init(w);
        assert_ok(hth_engine_submit(r.f.engine, &w->c.r));
        call_wait(&w->c);
        expect_answer(w);
        free(w->c.out[0].data);
    }
    assert_int_equal(rig_facts(&r).concurrent, before.concurrent);
    rig_close(&r);
}

static void expect_split(int threads, int most, uint64_t free_bytes, int runs, int each)
{
    hth_instances_split x = hth_instances_split_of(threads, most, 100, free_bytes);
    assert_int_equal(x.runs, runs);
    assert_int_equal(x.threads, each);
}

// There are never more runs than are allowed, and than memory was found for, whether or not threads
// can be shared evenly.
static void test_split(void **state)
{
    for (int threads = 1; threads <= 64; threads++) {
        for (int most = 1; most <= HTH_INSTANCES; most++) {
            for (uint64_t room = 0; room <= 400; room += 50) {
                hth_instances_split x = hth_instances_split_of(threads, most, 100, room);
                assert_int_not_equal(x.runs, 1);
                assert_true(x.runs <= most);
                assert_true(x.runs * x.threads <= threads);
                assert_true(x.runs == 0 || x.threads > 0);
                assert_true(x.runs == 0 || (uint64_t)(x.runs - 1) * 100 <= room);
                assert_int_equal(x.runs > 0, threads > 1 && most > 1 && room >= 100);
            }
        }
    }
    expect_split(8, 4, 300, 4, 2);
    expect_split(8, 3, 300, 3, 2);
    expect_split(8, 4, 299, 2, 4);
    expect_split(6, 4, 300, 4, 1);
    expect_split(15, 4, 300, 4, 3);
    expect_split(3, 4, 300, 3, 1);
    expect_split(2, 4, 99, 0, 0);
    expect_split(2, 1, 300, 0, 0);
}

// Threads that four cannot share evenly.
static void test_uneven(void **state)
{
    rig r;
    rig_open(&r, "cpu:mem=256MiB,threads=6");
    facts alone = rig_facts(&r), concurrent = rig_until(&r, 4);
    assert_true(concurrent.concurrent >= alone.concurrent + 4);
    rig_close(&r);
}

// A model whose plan needs no memory runs concurrently, too.
static void test_no_arena(void **state)
{
    enum { N = 6, ROWS = 1 << 20, ROW = 3 * sizeof(float) };
    fixture f;
    call c[N];
    float *data = calloc(ROWS, ROW);
    hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                   .shape = {2, {ROWS, 3}},
                                   .data = data,
                                   .bytes = (size_t)ROWS * ROW}};
    json_int_t concurrent = 0;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "ident", "tests/data/http/batch.onnx");
    for (int round = 0; round < ROUNDS && concurrent == 0; round++) {
        for (int i = 0; i < N; i++) {
            c[i] = (call){.r = {.model = "ident", .inputs = &in, .n_inputs = 1}};
            call_start(f.engine, &c[i]);
        }
        for (int i = 0; i < N; i++) {
            assert_ok(call_wait(&c[i]));
            assert_memory_equal(c[i].out[0].data, data, in.t.bytes);
            free(c[i].out[0].data);
        }
        json_t *doc = told(&f, "stats", "{\"model\":\"ident\"}");
        json_t *m = json_array_get(json_object_get(doc, "models"), 0);
        concurrent = json_integer_value(json_object_get(m, "concurrent_runs"));
        json_decref(doc);
    }
    assert_true(concurrent > 0);
    free(data);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),        cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_own_answers),  cmocka_unit_test(test_failures),
        cmocka_unit_test(test_memory_waits), cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_lone),         cmocka_unit_test(test_no_arena)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
