// SPDX-License-Identifier: Apache-2.0
// Requests that wait for one engine: joined, and answered as if they were alone; by priority; with
// timeouts, by what is predicted; canceled; of a model that is removed meanwhile.
//
// The engine's thread is held in the `place` of a first request until all others are submitted, so
// that what waits together does not depend on time.
#include "base/clock.h"
#include "base/spin.h"
#include "tests/rig/engine_call.h"
#include "tests/rig/npy_data.h"

#include <math.h>
#include <time.h>

#define CALLERS 16

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool inside, open;
} gate;

static gate the_gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
static atomic_int turns; // counts answers

typedef struct waiting {
    call c;
    hth_request_tensor in;
    hth_tensor want; // the answer alone
    int turn;
    bool refuse_place;
} waiting;

static hth_err held_place(hth_request *request, hth_request_tensor *out, int n)
{
    pthread_mutex_lock(&the_gate.lock);
    the_gate.inside = true;
    pthread_cond_broadcast(&the_gate.changed);
    while (!the_gate.open) {
        pthread_cond_wait(&the_gate.changed, &the_gate.lock);
    }
    pthread_mutex_unlock(&the_gate.lock);
    return call_place(request, out, n);
}

static hth_err waiting_place(hth_request *request, hth_request_tensor *out, int n)
{
    const waiting *w = request->ctx;
    return w->refuse_place ? hth_fail(HTH_ENOMEM, "nowhere to put it")
                           : call_place(request, out, n);
}

static void waiting_done(hth_request *request)
{
    waiting *w = request->ctx;
    w->turn = atomic_fetch_add(&turns, 1);
    call_done(request);
}

static void waiting_init(waiting *w, const char *model, const hth_tensor *tensor)
{
    *w = (waiting){.in = {.t = *tensor}};
    w->c.r = (hth_request){.model = model,
                           .inputs = &w->in,
                           .n_inputs = 1,
                           .place = waiting_place,
                           .done = waiting_done};
    call_init(&w->c);
}

// hold has the engine's thread stay in `first` until release.
static void hold(fixture *f, waiting *first)
{
    the_gate.inside = the_gate.open = false;
    first->c.r.place = held_place;
    assert_ok(hth_engine_submit(f->engine, &first->c.r));
    pthread_mutex_lock(&the_gate.lock);
    while (!the_gate.inside) {
        pthread_cond_wait(&the_gate.changed, &the_gate.lock);
    }
    pthread_mutex_unlock(&the_gate.lock);
}

static void release(void)
{
    pthread_mutex_lock(&the_gate.lock);
    the_gate.open = true;
    pthread_cond_broadcast(&the_gate.changed);
    pthread_mutex_unlock(&the_gate.lock);
}

static json_int_t model_stat(fixture *f, const char *key)
{
    json_t *doc = told(f, "stats", "{\"model\":\"digits\"}");
    json_t *m = json_array_get(json_object_get(doc, "models"), 0);
    json_t *v = json_object_get(m, key);
    v = v != NULL ? v : json_object_get(json_object_get(m, "times"), key);
    json_int_t n = json_integer_value(v);
    json_decref(doc);
    return n;
}

static hth_tensor images;

// part is `n` of the images, from the i-th on.
static hth_tensor part(int i, int n)
{
    hth_tensor t = images;
    size_t row = images.bytes / (size_t)images.shape.dim[0];
    t.shape.dim[0] = n;
    t.bytes = row * (size_t)n;
    t.data = (char *)images.data + row * (size_t)i;
    return t;
}

static void digits_open(fixture *f)
{
    fixture_open(f, "cpu:mem=256MiB,threads=2");
    put(f->store, "digits", "tests/data/digits/digits.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &images));
    assert_true(images.shape.dim[0] >= 64);
    hth_tensor x = part(0, 1);
    waiting w;
    waiting_init(&w, "digits", &x);
    assert_ok(hth_engine_submit(f->engine, &w.c.r));
    call_wait(&w.c);
    free(w.c.out[0].data);
}

static void digits_close(fixture *f)
{
    hth_free(images.data);
    fixture_close(f);
}

// alone is the answer to `w` when nothing else waits.
static void answer_alone(fixture *f, waiting *w, const char *model, const hth_tensor *tensor)
{
    waiting_init(w, model, tensor);
    assert_ok(hth_engine_submit(f->engine, &w->c.r));
    call_wait(&w->c);
    assert_int_equal(w->c.r.err, HTH_OK);
    hth_tensor want = w->c.out[0];
    waiting_init(w, model, tensor);
    w->want = want;
}

static void expect_answer(waiting *w)
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
    free(w->c.out[0].data);
}

// again has a request whose answer is known ready to be submitted once more.
static void again(waiting *w)
{
    hth_tensor want = w->want, x = w->in.t;
    waiting_init(w, "digits", &x);
    w->want = want;
}

// callers_open has sixteen requests of one to three samples ready, with their answers alone.
static void callers_open(fixture *f, waiting *w)
{
    digits_open(f);
    for (int i = 0; i < CALLERS; i++) {
        hth_tensor x = part(i * 3, 1 + i % 3);
        answer_alone(f, &w[i], "digits", &x);
    }
}

static void callers_close(fixture *f, waiting *w)
{
    assert_int_equal(model_stat(f, "queued"), 0);
    for (int i = 0; i < CALLERS; i++) {
        free(w[i].want.data);
    }
    digits_close(f);
}

// together submits all callers' requests while the engine is held, and waits for their answers.
static void together(fixture *f, waiting *w, void (*change)(waiting *w))
{
    waiting first;
    hth_tensor x = part(0, 1);
    waiting_init(&first, "digits", &x);
    hold(f, &first);
    for (int i = 0; i < CALLERS; i++) {
        again(&w[i]);
    }
    if (change != NULL) {
        change(w);
    }
    for (int i = 0; i < CALLERS; i++) {
        assert_ok(hth_engine_submit(f->engine, &w[i].c.r));
    }
    release();
    call_wait(&first.c);
    free(first.c.out[0].data);
    for (int i = 0; i < CALLERS; i++) {
        call_wait(&w[i].c);
    }
}

// until_joined asks again and again, until runs were shared `n` times.
static void until_joined(fixture *f, waiting *w, int n)
{
    int joined = 0;
    for (int round = 0; round < 400 && joined < n; round++) {
        json_int_t before = model_stat(f, "executions"), samples = model_stat(f, "samples");
        together(f, w, NULL);
        for (int i = 0; i < CALLERS; i++) {
            expect_answer(&w[i]);
        }
        assert_int_equal(model_stat(f, "samples") - samples, 1 + CALLERS / 3 * 6 + 1);
        joined += model_stat(f, "executions") - before < CALLERS + 1;
    }
    assert_true(joined >= n);
}

static void test_joined(void **state)
{
    fixture f;
    waiting w[CALLERS];
    callers_open(&f, w);
    until_joined(&f, w, 3);
    assert_int_equal(model_stat(&f, "failures"), 0);
    callers_close(&f, w);
}

static waiting *leaving; // those whose clients leave when the run begins
static int every;        // n-th of them

static hth_err leaving_place(hth_request *request, hth_request_tensor *out, int n)
{
    for (int i = 0; i < CALLERS; i += every) {
        leaving[i].c.r.canceled = 1;
    }
    return call_place(request, out, n);
}

static void leave(waiting *w)
{
    leaving = w;
    for (int i = 0; i < CALLERS; i++) {
        w[i].c.r.place = leaving_place;
    }
}

// Clients that leave when their outputs have a place: a joined run goes on without them, and ends
// when nobody is left.
static void test_leave(void **state)
{
    fixture f;
    waiting w[CALLERS];
    callers_open(&f, w);
    until_joined(&f, w, 2);
    for (int round = 0; round < 20; round++) {
        every = round % 2 == 0 ? 1 : 3;
        together(&f, w, leave);
        for (int i = 0; i < CALLERS; i++) {
            if (i % every != 0) {
                expect_answer(&w[i]);
            } else {
                assert_int_equal(w[i].c.r.err, HTH_ECANCELED);
                free(w[i].c.out[0].data);
            }
        }
    }
    assert_int_equal(model_stat(&f, "failures"), 10 * 16 + 10 * 6);
    callers_close(&f, w);
}

// What is wrong with one of them is its own: a shape, a place that cannot be had, a cancellation.
static void spoil(waiting *w)
{
    w[3].in.t.shape.dim[3]--;
    w[5].refuse_place = true;
    w[7].c.r.canceled = 1;
}

static void test_errors(void **state)
{
    fixture f;
    waiting w[CALLERS];
    callers_open(&f, w);
    until_joined(&f, w, 1);
    for (int round = 0; round < 20; round++) {
        together(&f, w, spoil);
        w[3].in.t.shape.dim[3]++;
        for (int i = 0; i < CALLERS; i++) {
            static const hth_err spoiled[CALLERS] = {
                [3] = HTH_EINVAL, [5] = HTH_ENOMEM, [7] = HTH_ECANCELED};
            if (spoiled[i] != HTH_OK) {
                assert_int_equal(w[i].c.r.err, spoiled[i]);
            } else {
                expect_answer(&w[i]);
            }
        }
    }
    assert_int_equal(model_stat(&f, "failures"), 60);
    callers_close(&f, w);
}

// Callers that come and go at any time: each gets an answer or ECANCELED.
typedef struct churn {
    pthread_t thread;
    fixture *f;
    int seed, answered, canceled;
} churn;

static void *churn_main(void *arg)
{
    churn *c = arg;
    unsigned r = (unsigned)c->seed * 2654435761u + 1;
    for (int i = 0; i < 60; i++) {
        waiting w;
        r = r * 1664525u + 1013904223u;
        hth_tensor x = part((int)(r >> 8) % 40, 1 + (int)(r >> 16) % 4);
        waiting_init(&w, "digits", &x);
        w.c.r.priority = r >> 20 & 3;
        assert_ok(hth_engine_submit(c->f->engine, &w.c.r));
        if ((r >> 24 & 3) == 0) {
            w.c.r.canceled = 1;
        }
        call_wait(&w.c);
        c->answered += w.c.r.err == HTH_OK;
        c->canceled += w.c.r.err == HTH_ECANCELED;
        free(w.c.out[0].data);
    }
    return NULL;
}

static void test_churn(void **state)
{
    fixture f;
    churn c[CALLERS];
    int answered = 0, canceled = 0;
    digits_open(&f);
    for (int i = 0; i < CALLERS; i++) {
        c[i] = (churn){.f = &f, .seed = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, churn_main, &c[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(c[i].thread, NULL);
        answered += c[i].answered;
        canceled += c[i].canceled;
    }
    assert_int_equal(answered + canceled, 60 * CALLERS);
    assert_true(answered > 60 * CALLERS / 2);
    assert_int_equal(model_stat(&f, "queued"), 0);
    digits_close(&f);
}

static void test_priority(void **state)
{
    static const uint32_t priority[] = {0, 500, 1, 20, 0, 1};
    static const int want[] = {3, 5, 0, 2, 4, 1}; // the turn of each
    fixture f;
    waiting w[6], first;
    digits_open(&f);
    json_decref(told(&f, "batching", "{\"model\":\"digits\",\"max\":1}"));
    hth_tensor x = part(0, 1);
    waiting_init(&first, "digits", &x);
    hold(&f, &first);
    for (int i = 0; i < 6; i++) {
        waiting_init(&w[i], "digits", &x);
        w[i].c.r.priority = priority[i];
        assert_ok(hth_engine_submit(f.engine, &w[i].c.r));
    }
    atomic_store(&turns, -1); // of the first
    release();
    call_wait(&first.c);
    free(first.c.out[0].data);
    for (int i = 0; i < 6; i++) {
        call_wait(&w[i].c);
        assert_int_equal(w[i].turn, want[i]);
        free(w[i].c.out[0].data);
    }
    digits_close(&f);
}

static void test_timeout(void **state)
{
    static const uint64_t timeout_us[3] = {1000, 3600000000u, 0};
    fixture f;
    waiting w[3], first;
    digits_open(&f);
    hth_tensor x = part(0, 1);
    waiting_init(&first, "digits", &x);
    hold(&f, &first);
    for (int i = 0; i < 3; i++) {
        waiting_init(&w[i], "digits", &x);
        w[i].c.r.timeout_us = timeout_us[i];
        assert_ok(hth_engine_submit(f.engine, &w[i].c.r));
    }
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    release();
    call_wait(&first.c);
    free(first.c.out[0].data);
    for (int i = 0; i < 3; i++) {
        call_wait(&w[i].c);
        assert_int_equal(w[i].c.r.err, i == 0 ? HTH_ETIMEDOUT : HTH_OK);
        free(w[i].c.out[0].data);
    }
    assert_non_null(strstr(w[0].c.r.detail, "Request timeout expired"));
    digits_close(&f);
}

// The real clock, put forward.
static _Atomic uint64_t ahead_ns;

static uint64_t ahead(void *ctx)
{
    return hth_real_ns() + atomic_load((_Atomic uint64_t *)ctx);
}

// An hour later there is no place for its outputs.
static hth_err late_place(hth_request *request, hth_request_tensor *out, int n)
{
    atomic_fetch_add(&ahead_ns, 3600000000000u);
    return hth_fail(HTH_ENOMEM, "nowhere to put it");
}

// after has a request with a timeout of a minute wait after `before`, and expects its answer.
static void after(fixture *f, waiting *before, const char *model, const hth_tensor *tensor)
{
    waiting first, w;
    hth_tensor x = part(0, 1);
    waiting_init(&first, "digits", &x);
    hold(f, &first);
    waiting_init(&w, model, tensor);
    w.c.r.timeout_us = 60000000;
    assert_ok(hth_engine_submit(f->engine, &before->c.r));
    assert_ok(hth_engine_submit(f->engine, &w.c.r));
    release();
    assert_ok(call_wait(&first.c));
    assert_ok(call_wait(&before->c));
    assert_ok(call_wait(&w.c));
    free(first.c.out[0].data);
    free(before->c.out[0].data);
    free(w.c.out[0].data);
}

// How long requests wait is predicted from what was computed: neither from a run that failed, nor
// from samples that a shape without a byte claims.
static void test_predicted(void **state)
{
    static float values[12];
    fixture f;
    waiting w;
    hth_clock_inject(ahead, &ahead_ns);
    digits_open(&f);
    hth_tensor x = part(0, 1);
    put(f.store, "other", "tests/data/digits/digits.onnx");
    waiting_init(&w, "other", &x);
    w.c.r.place = late_place;
    assert_ok(hth_engine_submit(f.engine, &w.c.r));
    assert_err(call_wait(&w.c), HTH_ENOMEM, "nowhere to put it");
    waiting_init(&w, "other", &x);
    after(&f, &w, "other", &x);

    hth_tensor some = {.dtype = HTH_DT_F32,
                       .shape = {4, {1, 3, 2, 2}},
                       .data = values,
                       .bytes = sizeof values},
               empty = {
                   .dtype = HTH_DT_F32, .shape = {4, {1000000000000, 3, 0, 0}}, .data = values};
    put(f.store, "open", "tests/data/onnx/unsorted.onnx");
    waiting_init(&w, "open", &some);
    assert_ok(hth_engine_submit(f.engine, &w.c.r));
    assert_ok(call_wait(&w.c));
    free(w.c.out[0].data);
    waiting_init(&w, "open", &empty);
    after(&f, &w, "digits", &x);
    json_t *doc = told(&f, "stats", "{\"model\":\"open\"}");
    json_t *m = json_array_get(json_object_get(doc, "models"), 0), *times;
    times = json_object_get(m, "times");
    assert_int_equal(json_integer_value(json_object_get(times, "samples")), 2);
    json_decref(doc);
    digits_close(&f);
    hth_clock_inject(NULL, NULL);
}

// The queue's length, and what is set for a model by name.
static void test_policy(void **state)
{
    fixture f;
    waiting w[4], first;
    digits_open(&f);
    call c = {
        .r = {.command = HTH_COMMAND_BATCHING, .arguments = "{\"model\":\"digits\",\"max\":0}"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "max is a whole number from 1 to 65536");
    c = (call){.r = {.command = HTH_COMMAND_BATCHING,
                     .arguments = "{\"model\":\"digits\",\"preferred\":[0]}"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "preferred batch size");
    json_t *j = told(&f, "batching",
                     "{\"model\":\"digits\",\"queue\":2,\"preferred\":[3,6],\"delay_us\":50}");
    assert_int_equal(json_integer_value(json_object_get(j, "queue")), 2);
    assert_int_equal(json_integer_value(json_object_get(j, "delay_us")), 50);
    assert_int_equal(json_array_size(json_object_get(j, "preferred")), 2);
    json_decref(j);
    hth_tensor x = part(0, 1);
    waiting_init(&first, "digits", &x);
    hold(&f, &first);
    for (int i = 0; i < 4; i++) {
        waiting_init(&w[i], "digits", &x);
        assert_ok(hth_engine_submit(f.engine, &w[i].c.r));
    }
    release();
    call_wait(&first.c);
    free(first.c.out[0].data);
    int refused = 0;
    for (int i = 0; i < 4; i++) {
        call_wait(&w[i].c);
        refused += w[i].c.r.err == HTH_EBUSY;
        free(w[i].c.out[0].data);
    }
    assert_int_equal(refused, 2);
    // Kept by the store, for an engine to come.
    hth_engine_config config = {.device = "cpu:mem=64MiB,threads=1"};
    hth_engine_close(f.engine);
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    j = told(&f, "batching", "{\"model\":\"digits\",\"queue\":null,\"preferred\":null}");
    assert_int_equal(json_integer_value(json_object_get(j, "queue")), 0);
    assert_int_equal(json_integer_value(json_object_get(j, "delay_us")), 50);
    assert_int_equal(json_array_size(json_object_get(j, "preferred")), 0);
    json_decref(j);
    digits_close(&f);
}

// A model that is removed, or unloaded, while requests wait for it.
static void test_removed(void **state)
{
    fixture f;
    waiting w[CALLERS], first;
    digits_open(&f);
    hth_tensor x = part(0, 1);
    call unload = {.r = {.command = HTH_COMMAND_UNLOAD, .arguments = "{\"model\":\"digits\"}"}};
    for (int round = 0; round < 4; round++) {
        waiting_init(&first, "digits", &x);
        hold(&f, &first);
        for (int i = 0; i < CALLERS; i++) {
            waiting_init(&w[i], "digits", &x);
            assert_ok(hth_engine_submit(f.engine, &w[i].c.r));
        }
        if (round % 2 == 0) {
            call_start(f.engine, &unload);
        } else {
            assert_ok(hth_store_rm(f.store, "digits", 0));
        }
        release();
        call_wait(&first.c);
        free(first.c.out[0].data);
        for (int i = 0; i < CALLERS; i++) {
            call_wait(&w[i].c);
            assert_true(w[i].c.r.err == HTH_OK || (round % 2 == 1 && w[i].c.r.err == HTH_ENOENT));
            free(w[i].c.out[0].data);
        }
        if (round % 2 == 0) {
            call_wait(&unload);
            hth_free(unload.r.json);
            unload.r.json = NULL;
        } else {
            put(f.store, "digits", "tests/data/digits/digits.onnx");
        }
    }
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    json_t *j = told(&f, "stats", "{}");
    json_t *l = json_object_get(j, "ledger");
    assert_int_equal(json_integer_value(json_object_get(l, "free_bytes")),
                     json_integer_value(json_object_get(l, "budget_bytes")));
    json_decref(j);
    digits_close(&f);
}

typedef struct asker {
    fixture *f;
    waiting w;
    long answers;
    pthread_t thread;
} asker;

static atomic_bool asked_enough;

static void *asks_on(void *arg)
{
    asker *a = arg;
    while (!asked_enough) {
        again(&a->w);
        assert_ok(hth_engine_submit(a->f->engine, &a->w.c.r));
        call_wait(&a->w.c);
        expect_answer(&a->w);
        a->answers++;
    }
    return NULL;
}

// A model that is never idle gets its measured algorithms while it answers.
static void test_measured_under_load(void **state)
{
    (void)state;
    fixture f;
    asker a[2];
    digits_open(&f);
    asked_enough = false;
    for (int i = 0; i < 2; i++) {
        hth_tensor x = part(i, 1);
        a[i] = (asker){.f = &f};
        answer_alone(&f, &a[i].w, "digits", &x);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&a[i].thread, NULL, asks_on, &a[i]), 0);
    }
    json_int_t measured = 0;
    for (int i = 0; i < 300 && measured == 0; i++) {
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        measured = model_stat(&f, "measured");
    }
    asked_enough = true;
    for (int i = 0; i < 2; i++) {
        pthread_join(a[i].thread, NULL);
        free(a[i].w.want.data);
        assert_true(a[i].answers > 0);
    }
    assert_true(measured > 0);
    digits_close(&f);
}

// What is compiled while long runs wait is not held up by one of them for each of its kernels.
static void test_compiled_under_load(void **state)
{
    (void)state;
    enum { LONG = 12, IMAGES = 2048 };
    fixture f;
    waiting first, other, w[LONG];
    digits_open(&f);
    put(f.store, "other", "tests/data/digits/digits.onnx");
    hth_tensor one = part(0, 1), many = one;
    many.shape.dim[0] = IMAGES;
    many.bytes = one.bytes * IMAGES;
    many.data = calloc(IMAGES, one.bytes);
    assert_non_null(many.data);
    answer_alone(&f, &first, "digits", &many); // its program is there
    free(first.want.data);
    waiting_init(&first, "digits", &one);
    hold(&f, &first);
    waiting_init(&other, "other", &one);
    assert_ok(hth_engine_submit(f.engine, &other.c.r));
    for (int i = 0; i < LONG; i++) {
        waiting_init(&w[i], "digits", &many);
        assert_ok(hth_engine_submit(f.engine, &w[i].c.r));
    }
    turns = 0;
    release();
    for (int i = 0; i < LONG; i++) {
        call_wait(&w[i].c);
        assert_int_equal(w[i].c.r.err, HTH_OK);
        free(w[i].c.out[0].data);
    }
    call_wait(&other.c);
    call_wait(&first.c);
    assert_int_equal(other.c.r.err, HTH_OK);
    assert_true(other.turn < LONG / 2);
    free(other.c.out[0].data);
    free(first.c.out[0].data);
    free(many.data);
    digits_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_joined),
                                       cmocka_unit_test(test_leave),
                                       cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_churn),
                                       cmocka_unit_test(test_priority),
                                       cmocka_unit_test(test_timeout),
                                       cmocka_unit_test(test_predicted),
                                       cmocka_unit_test(test_policy),
                                       cmocka_unit_test(test_removed),
                                       cmocka_unit_test(test_compiled_under_load),
                                       cmocka_unit_test(test_measured_under_load)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
