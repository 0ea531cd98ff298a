// SPDX-License-Identifier: Apache-2.0
// K-means jobs through an engine: what they find, that their result serves, pauses, checkpoints,
// windows of points, and what is refused before the first iteration.
#include "engine/train/kmeans/kmeans_job_impl.h"
#include "tests/rig/kmeans_rig.h"

#include "base/clock.h"
#include "base/settings.h"
#include "kernels/kmeans.h"
#include "modelstore/file.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/dataset_index.h"

#include <errno.h>
#include <stdatomic.h>

static void rig_open(rig *r)
{
    fixture_open(&r->f, "cpu:mem=256MiB,threads=2");
    rig_points(r);
    r->starts = true;
}

// What kernels/kmeans.h finds, in one call.
static double inertia_of(const rig *r, uint32_t *labels)
{
    hth_device cpu = {.props = {.name = "cpu:0", .n_threads = 2}};
    hth_kmeans what = {.k = K, .iterations = ITERATIONS, .init = HTH_KMEANS_GIVEN, .start = r->x};
    double centroids[K * COLUMNS];
    hth_kmeans_result result = {.centroids = centroids};
    hth_kmeans_shard *shard;
    assert_ok(hth_kmeans_open(&cpu, r->x, POINTS, COLUMNS, K, labels, &shard));
    assert_ok(hth_kmeans_fit(&what, &shard, 1, &result));
    hth_kmeans_close(shard);
    return result.inertia;
}

static void a_job_finds_what_a_call_finds(void **state)
{
    rig r;
    uint32_t *labels = calloc(POINTS, sizeof *labels);
    rig_open(&r);
    double inertia = inertia_of(&r, labels);
    json_t *doc = cluster(&r, "found", "{}");
    assert_true(number(doc, "inertia") == inertia);
    assert_int_equal(number(doc, "iterations"), 8);
    assert_true(number(doc, "ms") > 0 && number(doc, "seconds") > 0);
    assert_int_equal(json_array_size(json_object_get(doc, "history")), 8);
    assert_true(logged(&r.f, "found", "clusters"));
    assert_true(logged(&r.f, "found", "iteration 8 of 8: inertia"));
    json_decref(doc);
    // the result serves
    int64_t *served = labels_of(&r, "found");
    size_t others = 0;
    for (size_t i = 0; i < POINTS; i++) {
        others += served[i] != labels[i];
    }
    assert_true(others <= POINTS / 10000);
    free(served);
    free(labels);
    rig_close(&r);
}

// A file, a window of it, a stored dataset, and windows of that: the same bits.
static void windows_change_nothing(void **state)
{
    rig r;
    rig_open(&r);
    json_decref(cluster(&r, "whole", "{}"));
    json_t *doc = cluster(&r, "window", "{\"budget\": \"80%\"}");
    assert_true(number(doc, "peak_bytes") <= 0.8 * number(doc, "unconstrained_bytes"));
    json_decref(doc);
    same_tensors(&r.f, "whole", "window");
    hth_put_result put;
    uint64_t bytes;
    FILE *file = fopen(r.data, "r");
    hth_dataset_put as = {.name = "points", .tenant = HTH_TENANT_OWN};
    as.store_bytes = HTH_TENANT_NEVER;
    assert_ok(hth_dataset_file(r.f.store, &as, fileno(file), r.data, NULL, NULL, &put, &bytes));
    fclose(file);
    json_decref(cluster(&r, "stored", "{\"data\": {\"dataset\": \"points\"}}"));
    same_tensors(&r.f, "whole", "stored");
    json_decref(cluster(&r, "piece", "{\"data\": {\"dataset\": \"points\"}, \"budget\": \"80%\"}"));
    same_tensors(&r.f, "whole", "piece");
    rig_close(&r);
}

static void a_canceled_job_goes_on(void **state)
{
    rig r;
    hth_err err;
    rig_open(&r);
    for (int seeds = 0; seeds < 2; seeds++) {
        const char *more = seeds ? "{\"start\": null, \"seed\": 3}" : "{}";
        json_t *whole = cluster(&r, "whole", more);
        train_and_leave(&r.f, asks(&r, "left", more), 3);
        assert_true(logged(&r.f, "left", "checkpoint of iteration 3 written"));
        json_t *q = json_pack("{s:s, s:b}", "job", "left", "resume", 1);
        json_t *left = train(&r.f, q, &err);
        assert_ok(err);
        same_tensors(&r.f, "whole", "left");
        same_losses(whole, left, 8);
        assert_true(number(whole, "inertia") == number(left, "inertia"));
        assert_int_equal(number(left, "iterations"), 8);
        json_decref(whole);
        json_decref(left);
    }
    rig_close(&r);
}

// The clock of this process, which is put forward.
static atomic_ullong forward_ns;

static uint64_t clock_forward(void *ctx)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + forward_ns;
}

// A second attempt does not go on from what an older job of the same name has left.
static void another_attempt_is_of_the_same_job(void **state)
{
    rig r;
    char away[220];
    rig_open(&r);
    hth_clock_inject(clock_forward, NULL);
    train_and_leave(&r.f, asks(&r, "again", "{\"start\": null, \"seed\": 3}"), 3);
    const char *more = "{\"start\": null, \"seed\": 5, \"retries\": 1}";
    json_decref(cluster(&r, "whole", more));
    snprintf(away, sizeof away, "%s.away", r.data);
    assert_int_equal(rename(r.data, away), 0);
    assert_int_equal(symlink(r.data, r.data), 0); // what cannot be opened now is tried again
    char *text = asks_text(&r, "again", more);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(r.f.engine, &c);
    while (!c.finished && !logged(&r.f, "again", "attempt 1 failed")) {
    }
    assert_int_equal(rename(away, r.data), 0);
    forward_ns += UINT64_C(2000000000);
    if (call_wait(&c) != HTH_OK) {
        fail_msg("%s", c.r.detail);
    }
    hth_free(c.r.json);
    same_tensors(&r.f, "whole", "again");
    free(text);
    hth_clock_inject(NULL, NULL);
    rig_close(&r);
}

static void an_hour_passes(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    forward_ns += done == 2 && what[0] == '{' ? UINT64_C(3600000000000) : 0;
}

// One that is resumed has its time again, also where its last checkpoint is of the same iteration.
static void a_time_limit_ends_a_job(void **state)
{
    rig r;
    hth_err err;
    rig_open(&r);
    hth_clock_inject(clock_forward, NULL);
    char *text = asks_text(&r, "limited", "{\"time-limit\": 600, \"checkpoint-every\": 1}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = an_hour_passes}};
    assert_err(call_run(r.f.engine, &c), HTH_ETIMEDOUT,
               "time limit: 600 s are over after iteration 2 of 8; the checkpoint of iteration 2");
    free(text);
    json_t *q = json_pack("{s:s, s:b}", "job", "limited", "resume", 1);
    json_t *doc = train(&r.f, q, &err);
    assert_ok(err);
    assert_int_equal(number(doc, "iterations"), 8);
    json_decref(doc);
    rig_close(&r);
    hth_clock_inject(NULL, NULL);
}

static void a_paused_job_goes_on(void **state)
{
    rig r;
    witness w;
    hth_err err;
    rig_open(&r);
    json_t *whole = cluster(&r, "whole", "{}");
    char *text = asks_text(&r, "paused", "{}");
    train_three_steps(&r.f, &w, text);
    json_t *row = ask(&r.f, "pause", "{\"job\": \"paused\"}", &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "paused");
    assert_true(number(row, "step") >= 3);
    json_decref(row);
    witness_let_go();
    row = ask(&r.f, "resume", "{\"job\": \"paused\"}", &err);
    assert_ok(err);
    json_decref(row);
    assert_ok(call_wait(&w.c));
    json_t *doc = json_loads(w.c.r.json, 0, NULL);
    same_losses(whole, doc, 8);
    same_tensors(&r.f, "whole", "paused");
    hth_free(w.c.r.json);
    json_decref(doc);
    json_decref(whole);
    free(text);
    row = ask(&r.f, "job", "{\"job\": \"paused\"}", &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "finished");
    assert_int_equal(number(row, "iterations"), 8);
    json_decref(row);
    rig_close(&r);
}

// Of a job whose centroids k-means++ chooses: counts what is told, and cancels or pauses it.
typedef struct seeds {
    call c, pause;
    hth_engine *engine;
    int told, cancel_at, pause_at;
    double last;
} seeds;

static void seeds_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    seeds *s = request->ctx;
    json_t *doc = json_loads(what, 0, NULL);
    if (json_object_get(doc, "seeded") != NULL) {
        assert_int_equal(done, 0);
        assert_int_equal(number(doc, "centroids"), K);
        assert_true(number(doc, "seeded") == s->last + 1 || s->told == s->pause_at);
        s->last = number(doc, "seeded");
        s->told++;
        request->canceled = s->told == s->cancel_at ? 1 : request->canceled;
        if (s->told == s->pause_at) {
            assert_ok(hth_engine_submit(s->engine, &s->pause.r));
        }
    }
    json_decref(doc);
}

static void the_choice_of_centroids_is_told_of(void **state)
{
    rig r;
    rig_open(&r);
    char *text = asks_text(&r, "seeds", "{\"start\": null, \"seed\": 3}");
    for (int cancel_at = 4; cancel_at >= 0; cancel_at -= 4) {
        seeds s = {
            .cancel_at = cancel_at,
            .c.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = seeds_progress}};
        hth_err err = call_run(r.f.engine, &s.c);
        if (cancel_at > 0) {
            assert_err(err, HTH_ECANCELED, "canceled after iteration 0: nothing is saved");
            assert_int_equal(s.told, cancel_at);
        } else {
            assert_ok(err);
            assert_true(s.told >= K - 1);
            hth_free(s.c.r.json);
        }
    }
    assert_true(logged(&r.f, "seeds", "k-means++ has chosen 1 of 12 centroids"));
    free(text);
    rig_close(&r);
}

// seeds_paused waits until the job is paused, and returns how many centroids its checkpoint has.
static double seeds_paused(const rig *r, seeds *s)
{
    hth_manifest m;
    assert_ok(call_wait(&s->pause));
    json_t *row = json_loads(s->pause.r.json, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "paused");
    assert_int_equal(number(row, "step"), 0);
    json_decref(row);
    hth_free(s->pause.r.json);
    assert_false(call_finished(&s->c));
    assert_ok(hth_store_get(r->f.store, "seeds" HTH_CHECKPOINT_TAIL, 0, &m));
    assert_int_equal(m.n_tensors, 1);
    json_t *doc = json_loads(m.meta, 0, NULL);
    double seeded = number(doc, "seeded");
    json_decref(doc);
    hth_manifest_fini(&m);
    return seeded;
}

// Paused again before it has followed what was chosen, it has all of that.
static void the_choice_of_centroids_is_paused(void **state)
{
    rig r;
    hth_err err;
    const char *more = "{\"start\": null, \"seed\": 3}";
    rig_open(&r);
    json_decref(cluster(&r, "whole", more));
    char *text = asks_text(&r, "seeds", more);
    seeds s = {
        .engine = r.f.engine,
        .pause_at = 3,
        .pause.r = {.command = HTH_COMMAND_PAUSE, .arguments = "{\"job\": \"seeds\"}"},
        .c.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = seeds_progress}};
    call_init(&s.pause);
    call_start(r.f.engine, &s.c);
    double chosen = seeds_paused(&r, &s);
    assert_true(chosen >= 3);
    s.pause_at = s.told + 1;
    s.last = chosen - 1; // the first that is told of
    s.pause.r.json = NULL;
    call_init(&s.pause);
    json_decref(ask(&r.f, "resume", "{\"job\": \"seeds\"}", &err));
    assert_ok(err);
    assert_true(seeds_paused(&r, &s) >= chosen);
    json_decref(ask(&r.f, "resume", "{\"job\": \"seeds\"}", &err));
    assert_ok(err);
    assert_ok(call_wait(&s.c));
    hth_free(s.c.r.json);
    same_tensors(&r.f, "whole", "seeds");
    free(text);
    rig_close(&r);
}

static atomic_ullong cancel_after; // so many iterations

static void cancel_at_convergence(hth_request *request, const char *what, uint64_t done,
                                  uint64_t total)
{
    request->canceled = what[0] == '{' && done == cancel_after ? 1 : request->canceled;
}

// Iterations that have converged are not gone on with after a pause before the last pass.
static void what_has_converged_stays(void **state)
{
    rig r;
    hth_err err;
    rig_open(&r);
    const char *more = "{\"tolerance\": 0.01, \"iterations\": 50, \"checkpoint-every\": 1}";
    json_t *whole = cluster(&r, "whole", more);
    cancel_after = (uint64_t)number(whole, "iterations");
    assert_true(cancel_after < 50);
    char *text = asks_text(&r, "left", more);
    call c = {
        .r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = cancel_at_convergence}};
    assert_int_equal(call_run(r.f.engine, &c), HTH_ECANCELED);
    json_t *left = train(&r.f, json_pack("{s:s, s:b}", "job", "left", "resume", 1), &err);
    assert_ok(err);
    assert_int_equal(number(left, "iterations"), cancel_after);
    assert_true(number(whole, "inertia") == number(left, "inertia"));
    same_tensors(&r.f, "whole", "left");
    json_decref(whole);
    json_decref(left);
    free(text);
    rig_close(&r);
}

static atomic_int warned; // times that who waits was told of it

static void disk_fills_up(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    warned +=
        strstr(what, "{\"warning\":\"job 'stuck': its result could not be saved, nor") == what;
    hth_store_file_full(what[0] == '{' && done == 8);
}

// A result that cannot be stored, nor a checkpoint of it, waits in memory until there is room. Who
// waits for the job learns so.
static void a_full_disk_costs_no_result(void **state)
{
    rig r;
    hth_err err;
    assert_ok(hth_setting_set("store.inline_bytes", "0")); // every tensor is a file
    rig_open(&r);
    json_decref(cluster(&r, "whole", "{}"));
    char *text = asks_text(&r, "stuck", "{}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = disk_fills_up}};
    call_start(r.f.engine, &c);
    for (bool paused = false; !paused && !call_finished(&c);) {
        json_t *row = ask(&r.f, "job", "{\"job\": \"stuck\"}", &err);
        const char *why = json_string_value(json_object_get(row, "why"));
        paused = err == HTH_OK &&
                 strcmp(json_string_value(json_object_get(row, "state")), "paused") == 0;
        assert_true(!paused || strstr(why, "could not be saved, nor a checkpoint: ") != NULL);
        json_decref(row);
    }
    hth_store_file_full(false);
    assert_int_equal(warned, 1);
    json_decref(ask(&r.f, "resume", "{\"job\": \"stuck\"}", &err));
    assert_ok(err);
    assert_ok(call_wait(&c));
    hth_free(c.r.json);
    same_tensors(&r.f, "whole", "stuck");
    free(text);
    hth_setting_reset();
    rig_close(&r);
}

static uint64_t fault_at; // of the file operations after the last iteration

static void fail_later(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    if (strstr(what, "\"inertia\"") != NULL && done == ITERATIONS) {
        hth_store_file_fault(fault_at, EIO);
    }
}

// A job whose result is published has finished, also if its checkpoint cannot be removed.
static void what_is_published_has_finished(void **state)
{
    rig r;
    bool there;
    int published = 0;
    rig_open(&r);
    char *text = asks_text(&r, "found", "{\"checkpoint-every\": 3}");
    for (fault_at = 8; fault_at <= 30; fault_at++) {
        call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = fail_later}};
        hth_err err = call_run(r.f.engine, &c);
        hth_store_file_fault(0, 0);
        assert_ok(hth_store_has(r.f.store, "found", 0, &there));
        if (there != (err == HTH_OK)) {
            fail_msg("%d: published %d: %s", (int)fault_at, there, c.r.detail);
        }
        published += there;
        (void)hth_store_rm(r.f.store, "found", 0);
        assert_ok(hth_checkpoint_rm(r.f.store, "found"));
        hth_free(c.r.json);
    }
    assert_in_range(published, 10, 22);
    free(text);
    rig_close(&r);
}

// A job that is resumed with fewer iterations than it has made has its last labels to find.
static void no_iterations_are_left(void **state)
{
    kmeans_job job = {.spec.what.iterations = 2, .at.iterations = 3, .kept = 3};
    job.predicted_ns = 1e9;
    assert_true(kmeans_seconds_left(&job.job) == 1);
    job.spec.what.iterations = 5;
    assert_true(kmeans_seconds_left(&job.job) == 3);
}

// What is read while a job works may be cut by its owner.
static void a_file_that_changes_ends_the_job(void **state)
{
    rig r;
    witness w;
    rig_open(&r);
    char *text = asks_text(&r, "cut", "{\"budget\": \"80%\"}");
    train_three_steps(&r.f, &w, text);
    assert_int_equal(truncate(r.data, POINTS * COLUMNS * sizeof(float) / 2), 0);
    witness_let_go();
    assert_err(call_wait(&w.c), HTH_EIO, "changed while it was being read");
    free(text);
    rig_close(&r);
}

// write_bad writes a dataset of another kind and says so as {"data": ..}.
static const char *write_bad(const rig *r, const char *tensor, const char *dtype,
                             const int64_t *dim, int rank, size_t bytes)
{
    static char text[300];
    writer w = {NULL, NULL, 0};
    void *zeros = calloc(1, bytes);
    writer_add(&w, tensor, dtype, dim, rank, zeros, bytes);
    free(zeros);
    snprintf(text, sizeof text, "%s/bad.safetensors", r->f.dir);
    writer_close(&w, text);
    snprintf(text, sizeof text, "{\"data\": \"%s/bad.safetensors\"}", r->f.dir);
    return text;
}

static void bad_input_gets_a_sentence(void **state)
{
    rig r;
    char more[300], path[200];
    rig_open(&r);
    refused(&r, "{\"k\": 0}", "k is a whole number from 1 to 4294967295, not 0");
    refused(&r, "{\"k\": 2.5}", "not 2.5");
    refused(&r, "{\"k\": null}", "k is a whole number");
    refused(&r, "{\"iterations\": 0}", "iterations is a whole number from 1 to");
    refused(&r, "{\"tolerance\": -1}", "tolerance is a number from 0 to");
    refused(&r, "{\"k\": 20001, \"start\": null}",
            "k is 20001, and there are 20000 points: there must be as many");
    refused(&r, "{\"k\": 13}", "holds 12 centroids of 8 columns, and k is 13 with points of 8");
    refused(&r, "{\"init\": \"random\"}", "by 'init' or by 'start', not by both");
    refused(&r, "{\"init\": \"randm\", \"start\": null}", "did you mean 'random'?");
    refused(&r, "{\"data\": \"/nowhere\"}", "/nowhere");
    refused(&r, "{\"data\": {\"dataset\": \"none\"}}", "none");
    refused(&r, "{\"kind\": \"kmeens\"}", "there is no kind of job 'kmeens'");
    refused(&r, "{\"budget\": \"64KiB\"}", "needs at least");
    refused(&r, "{\"budget\": \"much\"}", "much");
    refused(&r, write_bad(&r, "x", "F64", (int64_t[]){40, 6}, 2, 1920),
            "tensor 'x' is FP64: K-means reads FP32");
    refused(&r, write_bad(&r, "x", "F32", (int64_t[]){40, 6, 2}, 3, 1920),
            "tensor 'x' has 3 dimensions");
    refused(&r, write_bad(&r, "x", "F32", (int64_t[]){40}, 1, 160), "tensor 'x' has 1 dimensions");
    r.x[7 * COLUMNS + 2] = NAN;
    write_points(&r, "start", K, path);
    refused(&r, "{}", "start centroid 7, column 2 is nan");
    r.x[7 * COLUMNS + 2] = 0;
    write_points(&r, "start", K, path);
    r.x[19000 * COLUMNS + 1] = -INFINITY;
    write_points(&r, "infinite", POINTS, path);
    snprintf(more, sizeof more, "{\"data\": \"%s\"}", path);
    refused(&r, more, "point 19000, column 1 is -inf: K-means needs finite numbers");
    rig_close(&r);
}

// A result that its owner's store has no room for is refused before the first iteration.
static void results_have_room(void **state)
{
    rig r;
    char path[100];
    rig_open(&r);
    snprintf(path, sizeof path, "%s/tenants", r.f.dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "alice store=2000\n");
    fclose(file);
    assert_ok(hth_setting_set("tenant.file", path));
    hth_engine_close(r.f.engine);
    hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2"};
    assert_ok(hth_engine_open(&config, r.f.store, &r.f.engine));
    as_tenant = "alice";
    refused(&r, "{}", "the result of job 'bad' does not fit: tenant 'alice'");
    as_tenant = NULL;
    hth_setting_reset();
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_finds_what_a_call_finds),
        cmocka_unit_test(windows_change_nothing),
        cmocka_unit_test(a_canceled_job_goes_on),
        cmocka_unit_test(a_paused_job_goes_on),
        cmocka_unit_test(the_choice_of_centroids_is_told_of),
        cmocka_unit_test(the_choice_of_centroids_is_paused),
        cmocka_unit_test(another_attempt_is_of_the_same_job),
        cmocka_unit_test(a_time_limit_ends_a_job),
        cmocka_unit_test(a_file_that_changes_ends_the_job),
        cmocka_unit_test(bad_input_gets_a_sentence),
        cmocka_unit_test(results_have_room),
        cmocka_unit_test(what_has_converged_stays),
        cmocka_unit_test(a_full_disk_costs_no_result),
        cmocka_unit_test(what_is_published_has_finished),
        cmocka_unit_test(no_iterations_are_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
