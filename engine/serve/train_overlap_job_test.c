// SPDX-License-Identifier: Apache-2.0
// A training job, or a search for its plan, and clients in one engine: every answer is what an idle
// engine says, and the job's losses and parameters are the bits that they are alone. A benchmark of
// a training step, too, goes on beside them.
#include "base/clock.h"
#include "base/spin.h"
#include "tests/rig/npy_data.h"
#include "tests/rig/train_job.h"

#include <stdatomic.h>

#define CLIENTS        3
#define CLASSES        10
#define SEARCH_MS      1000 // work
#define SEARCH_ANSWERS 200
#define SEARCH_WARM    300
#define SEARCH_ROWS    8
#define JOB            "{\"epochs\": 10, \"checkpoint-every\": 20, \"save-as\": \"%s\"}"

typedef struct load load;

// Asks one thing after the other. Its images begin elsewhere than the others', and are another
// number each time, so that requests are joined and cut in all ways.
typedef struct client {
    load *l;
    pthread_t thread;
    int index, asked, wrong;
    atomic_int failed;
    char detail[512];
} client;

struct load {
    fixture f;
    hth_tensor images;
    float *want;  // of all images, from an idle engine
    int64_t rows; // of a request; 0: another number each time
    atomic_bool training, stop;
    atomic_int during; // answers to what was asked while the job was there
    atomic_int begun;  // clients that had an answer
    client client[CLIENTS];
};

static hth_err ask_rows(load *l, int64_t first, int64_t rows, call *c)
{
    hth_request_tensor in = {.t = l->images};
    size_t row = l->images.bytes / (size_t)l->images.shape.dim[0];
    in.t.shape.dim[0] = rows;
    in.t.bytes = row * (size_t)rows;
    in.t.data = (char *)l->images.data + row * (size_t)first;
    *c = (call){.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    call_init(c);
    HTH_TRY(hth_engine_submit(l->f.engine, &c->r));
    return call_wait(c);
}

static bool same_answer(const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(fabsf(got[i] - want[i]) <= 1e-4f * fmaxf(1, fabsf(want[i])))) {
            return false;
        }
    }
    return true;
}

static void *client_main(void *arg)
{
    client *x = arg;
    load *l = x->l;
    int64_t have = l->images.shape.dim[0];
    while (!l->stop && x->failed == 0) {
        call c;
        int64_t rows = l->rows > 0 ? l->rows : 1 + x->asked * 5 % 23;
        int64_t first = (x->index * 101 + x->asked * 7) % (have - rows);
        bool during = l->training;
        if (ask_rows(l, first, rows, &c) != HTH_OK) {
            x->failed++;
            snprintf(x->detail, sizeof x->detail, "%s", hth_err_detail());
        } else if (c.out[0].bytes != (size_t)rows * CLASSES * sizeof(float) ||
                   !same_answer(c.out[0].data, l->want + first * CLASSES, rows * CLASSES)) {
            x->wrong++;
        }
        free(c.out[0].data);
        l->during += during && l->training;
        l->begun += x->asked++ == 0;
    }
    l->begun += x->asked == 0;
    return NULL;
}

static void load_open(load *l)
{
    call c;
    memset(l, 0, sizeof *l);
    fixture_open(&l->f, "cpu:mem=256MiB,threads=2");
    put(l->f.store, "digits", "tests/data/digits/digits.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &l->images));
    assert_ok(ask_rows(l, 0, l->images.shape.dim[0], &c));
    assert_int_equal(c.out[0].bytes, (size_t)l->images.shape.dim[0] * CLASSES * sizeof(float));
    l->want = c.out[0].data;
}

static void load_start(load *l)
{
    for (int i = 0; i < CLIENTS; i++) {
        l->client[i] = (client){.l = l, .index = i};
        assert_int_equal(pthread_create(&l->client[i].thread, NULL, client_main, &l->client[i]), 0);
    }
    while (l->begun < CLIENTS) {
        usleep(1000);
    }
}

static void load_end(load *l)
{
    l->stop = true;
    for (int i = 0; i < CLIENTS; i++) {
        client *x = &l->client[i];
        pthread_join(x->thread, NULL);
        if (x->failed > 0) {
            fail_msg("client %d: %s", i, x->detail);
        }
        assert_int_equal(x->wrong, 0);
        assert_true(x->asked > 1);
    }
    l->stop = false;
    l->begun = 0;
}

static json_t *job(load *l, const training *t, const char *data, const char *name)
{
    char more[200];
    double want[STEPS];
    hth_err err;
    snprintf(more, sizeof more, JOB, name);
    l->training = true;
    json_t *doc = train(&l->f, arguments_of(t, data, more, want), &err);
    l->training = false;
    if (doc == NULL) {
        fail_msg("%s %s: %s", t->model, more, hth_err_detail());
    }
    return doc;
}

static void test_both_at_once(void **state)
{
    static const training *const models[] = {&mobile, &encoder};
    load l;
    load_open(&l);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        const training *t = models[i];
        char data[200], alone[40], beside[40];
        snprintf(alone, sizeof alone, "alone%zu", i);
        snprintf(beside, sizeof beside, "beside%zu", i);
        prepare(&l.f, t, data);
        json_t *x = job(&l, t, data, alone);
        assert_int_equal(l.during, 0);
        load_start(&l);
        json_t *y = job(&l, t, data, beside);
        load_end(&l);
        same_losses(x, y, 10 * STEPS);
        same_tensors(&l.f, alone, beside);
        assert_true(l.during > 0);
        print_message("# %s: %d answers during %d steps\n", t->model, (int)l.during, 10 * STEPS);
        l.during = 0;
        json_decref(x);
        json_decref(y);
    }
    hth_free(l.images.data);
    free(l.want);
    fixture_close(&l.f);
}

// While a plan is searched for, requests are answered. The search is long, so few are answered
// before and after it.
static void a_search_delays_nobody(void **state)
{
    static load l;
    char data[200];
    hth_err err;
    static const char *const plan = "{\"model\": \"unet_adam\", \"train\": true, \"batch\": 24, "
                                    "\"budget\": \"%s\", \"plan-ms\": %d}";
    char text[200];
    load_open(&l);
    prepare(&l.f, &unet, data);
    snprintf(text, sizeof text, plan, "90%", 1);
    json_decref(ask(&l.f, "plan", text, &err)); // what its nodes cost is known
    assert_ok(err);
    l.rows = SEARCH_ROWS;
    load_start(&l);
    snprintf(text, sizeof text, plan, "70%", SEARCH_MS);
    l.training = true;
    while (l.during < SEARCH_WARM) { // there are programs for joined requests, too
        for (int i = 0; i < CLIENTS; i++) {
            assert_int_equal(l.client[i].failed, 0);
        }
        usleep(1000);
    }
    l.during = 0;
    json_t *doc = ask(&l.f, "plan", text, &err);
    l.training = false;
    assert_ok(err);
    load_end(&l);
    print_message("# %d answers in %.0f ms\n", (int)l.during,
                  json_number_value(json_object_get(doc, "plan_ms")));
    assert_true(l.during >= SEARCH_ANSWERS);
    json_decref(doc);
    free(l.want);
    hth_free(l.images.data);
    fixture_close(&l.f);
}

// The real clock, put forward, and whether a benchmark measures.
static _Atomic uint64_t ahead_ns;
static atomic_bool measures;

static uint64_t ahead(void *ctx)
{
    return hth_real_ns() + atomic_load((_Atomic uint64_t *)ctx);
}

static void measuring(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    measures = measures || strcmp(what, "measuring") == 0;
}

// A training benchmark goes on while its model is removed and somebody asks for another one.
static void test_bench_of_a_removed_model(void **state)
{
    static load l;
    char data[200];
    call one, bench = {.r = {.command = HTH_COMMAND_BENCH,
                             .arguments = "{\"model\": \"unet_adam\", \"train\": true, "
                                          "\"batch\": 24, \"seconds\": 600, \"plan-ms\": 1}",
                             .progress = measuring}};
    load_open(&l);
    prepare(&l.f, &unet, data);
    hth_clock_inject(ahead, &ahead_ns);
    call_start(l.f.engine, &bench);
    while (!measures) {
        assert_false(call_finished(&bench));
        usleep(1000);
    }
    assert_ok(hth_store_rm(l.f.store, "unet_adam", 0));
    assert_ok(ask_rows(&l, 0, 1, &one));
    free(one.out[0].data);
    assert_false(call_finished(&bench));
    atomic_fetch_add(&ahead_ns, 600000000000u);
    assert_ok(call_wait(&bench));
    assert_non_null(strstr(bench.r.json, "\"model\":\"unet_adam\""));
    hth_free(bench.r.json);
    free(l.want);
    hth_free(l.images.data);
    fixture_close(&l.f);
    hth_clock_inject(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_at_once),
                                       cmocka_unit_test(a_search_delays_nobody),
                                       cmocka_unit_test(test_bench_of_a_removed_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
