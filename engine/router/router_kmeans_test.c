// SPDX-License-Identifier: Apache-2.0
// One K-means job on several CPU devices: the clusters of one device, whatever the shards; the same
// bits of the same shards; what is refused; pauses, and members, the lead too, whose processes are
// killed. Engines are threads, or processes of this program.
#include "engine/process/child.h"
#include "engine/router/router.h"
#include "tests/rig/children.h"
#include "tests/rig/group_job.h"
#include "tests/rig/kmeans_rig.h"

#include <signal.h>

#define TWO   "cpu:0,mem=128MiB,threads=1 cpu:1,mem=128MiB,threads=1"
#define THREE TWO " cpu:2,mem=128MiB,threads=2"
#define PROCESSES                                                                                  \
    "cpu:0,mem=128MiB,threads=1 cpu:1,mem=128MiB,threads=1,isa=avx2 cpu:2,mem=128MiB,threads=2"

static void rig_open(rig *r, const char *devices, bool child)
{
    devices_open(&r->f, devices, child);
    rig_points(r);
    r->starts = false;
}

// The labels that the result of a job gives.
static int64_t *result_labels(rig *r, const json_t *job)
{
    char model[100];
    snprintf(model, sizeof model, "%s:%.0f", json_string_value(json_object_get(job, "saved_as")),
             number(job, "version"));
    return labels_of(r, model);
}

// The inertia of each iteration, and the labels of all points but 1 in 10,000.
static void same_clusters(rig *r, const json_t *alone, const json_t *several, const char *more)
{
    const json_t *a = json_object_get(alone, "history"), *b = json_object_get(several, "history");
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++) {
        double x = json_number_value(json_array_get(json_array_get(a, i), 0));
        double y = json_number_value(json_array_get(json_array_get(b, i), 0));
        if (!(fabs(x - y) <= 1e-9 * x)) {
            fail_msg("%s: inertia %zu is %.12g, one device's is %.12g", more, i, y, x);
        }
    }
    assert_true(fabs(number(alone, "inertia") - number(several, "inertia")) <=
                1e-9 * number(alone, "inertia"));
    int64_t *x = result_labels(r, alone);
    int64_t *y = result_labels(r, several);
    size_t others = 0;
    for (size_t i = 0; i < POINTS; i++) {
        others += x[i] != y[i] ? 1 : 0;
    }
    assert_true(others <= POINTS / 10000);
    free(x);
    free(y);
}

static void as_one_device(void **state)
{
    static const char *const on[] = {"\"cpu:1,cpu:0\"", "\"all\"",
                                     "\"cpu:0,cpu:2\", \"budget\": \"90%\"",
                                     "\"all\", \"shards\": [[0, 1, 19998, 1], [3, 7000, 0, 13000], "
                                     "[5, 20000, 0, 0]]"};
    rig r;
    char one[300], more[600];
    rig_open(&r, THREE, false);
    for (int init = 0; init < 3; init++) {
        snprintf(one, sizeof one, "\"seed\": 3, \"init\": \"%s\"",
                 init == 0 ? "k-means++" : "random");
        if (init == 2) {
            snprintf(one, sizeof one, "\"start\": \"%s\"", r.start);
        }
        snprintf(more, sizeof more, "{%s, \"on\": \"cpu:0\"}", one);
        json_t *alone = cluster(&r, "one", more);
        for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
            snprintf(more, sizeof more, "{%s, \"on\": %s}", one, on[i]);
            json_t *several = cluster(&r, "several", more);
            same_clusters(&r, alone, several, more);
            assert_true(json_array_size(json_object_get(several, "shards")) >= 1);
            json_decref(several);
        }
        json_decref(alone);
    }
    rig_close(&r);
}

// Centroids that begin where nobody is, over and over: each is given the farthest point.
static void empty_clusters(void **state)
{
    rig r;
    char path[200], more[400];
    rig_open(&r, THREE, false);
    for (size_t i = 0; i < 5 * COLUMNS; i++) {
        r.x[i] += 1000;
    }
    write_points(&r, "far", K, path);
    snprintf(more, sizeof more, "{\"start\": \"%s\", \"on\": \"cpu:0\"}", path);
    json_t *alone = cluster(&r, "one", more);
    snprintf(more, sizeof more, "{\"start\": \"%s\", \"on\": \"all\"}", path);
    json_t *several = cluster(&r, "several", more);
    same_clusters(&r, alone, several, more);
    json_decref(alone);
    json_decref(several);
    rig_close(&r);
}

static void the_same_shards_have_the_same_bits(void **state)
{
    rig r;
    char more[400];
    hth_err err;
    rig_open(&r, THREE, false);
    json_t *a = cluster(&r, "a", "{\"on\": \"all\", \"seed\": 5}");
    char *shards = json_dumps(json_object_get(a, "shards"), JSON_COMPACT);
    snprintf(more, sizeof more, "{\"on\": \"all\", \"seed\": 5, \"shards\": {\"shards\": %s}}",
             shards);
    json_t *b = cluster(&r, "b", more);
    same_losses(a, b, ITERATIONS);
    same_tensors(&r.f, "a", "b");
    assert_true(number(a, "inertia") == number(b, "inertia"));
    assert_true(json_equal(json_object_get(a, "shards"), json_object_get(b, "shards")));
    json_t *row = ask(&r.f, "job", "{\"job\":\"b\"}", &err);
    assert_ok(err);
    assert_true(json_equal(json_object_get(row, "shards"), json_object_get(b, "shards")));
    json_decref(row);
    free(shards);
    json_decref(a);
    json_decref(b);
    rig_close(&r);
}

static void bad_input_gets_a_sentence(void **state)
{
    static const char *const shards[] = {
        "3", "[]", "[[0, 20000]]", "[[0, 1, 19998]]", "[[0, -1, 20001]]", "[[0, 0.5, 19999.5]]"};
    rig r;
    char more[400], path[200];
    rig_open(&r, "cpu:0,mem=128MiB,threads=1 cpu:1,mem=64KiB,threads=1 cpu:2,mem=128MiB,threads=1",
             false);
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        snprintf(more, sizeof more, "{\"on\": \"cpu:0,cpu:2\", \"shards\": %s}", shards[i]);
        refused(&r, more, "the samples of each of 2 devices, at first 1 at least, in all 20000");
    }
    write_points(&r, "two", 2, path);
    snprintf(more, sizeof more, "{\"on\": \"all\", \"data\": \"%s\", \"k\": 1}", path);
    refused(&r, more, "2 points are too few for 3 devices");
    refused(&r, "{\"on\": \"cpu:0,cpu:1\"}", "device cpu:1: K-means needs");
    r.x[19000 * COLUMNS + 1] = -INFINITY; // the second member's, who finds it out
    write_points(&r, "infinite", POINTS, path);
    snprintf(more, sizeof more, "{\"on\": \"cpu:0,cpu:2\", \"data\": \"%s\"}", path);
    refused(&r, more, "device cpu:2: point 19000, column 1 is -inf: K-means needs finite numbers");
    rig_close(&r);
}

// ---- jobs that take long

static char *job_text(rig *r, const char *name, const char *more)
{
    char *text = asks_text(r, name, more);
    paths_named(r->f.store, text);
    return text;
}

static void paused_and_canceled(void **state)
{
    rig r;
    witness w;
    hth_err err;
    rig_open(&r, TWO, false);
    json_t *alone = cluster(&r, "one", "{\"on\": \"cpu:0\", \"seed\": 2}");
    char *text = job_text(&r, "several", "{\"on\": \"all\", \"seed\": 2}");
    train_three_steps(&r.f, &w, text);
    json_t *row = ask(&r.f, "pause", "{\"job\": \"several\"}", &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "paused");
    json_decref(row);
    witness_let_go();
    row = ask(&r.f, "jobs", "{}", &err);
    assert_int_equal(json_array_size(row), 2); // no rows for members
    json_decref(row);
    json_decref(ask(&r.f, "resume", "{\"job\": \"several\"}", &err));
    assert_ok(err);
    json_t *doc = finished(&w.c);
    same_clusters(&r, alone, doc, "paused");
    json_decref(doc);
    free(text);
    // canceled, and gone on with
    train_and_leave(&r.f, asks(&r, "left", "{\"on\": \"all\", \"seed\": 2}"), 4);
    assert_true(logged(&r.f, "left", "checkpoint of iteration 4 written"));
    doc = train(&r.f, json_pack("{s:s, s:b, s:i}", "job", "left", "resume", 1, "iterations", 3),
                &err);
    assert_null(doc);
    assert_non_null(strstr(hth_err_detail(), "has made 4 iterations, and 'iterations' is 3 now"));
    doc = train(&r.f, json_pack("{s:s, s:b}", "job", "left", "resume", 1), &err);
    assert_ok(err);
    same_clusters(&r, alone, doc, "resumed");
    row = json_array_get(json_array_get(json_object_get(doc, "shards"), 0), 0);
    assert_true(json_is_integer(row) && json_integer_value(row) == 0); // of all iterations
    json_decref(doc);
    json_decref(alone);
    rig_close(&r);
}

#define LONG "\"k\": 200, \"init\": \"random\", \"iterations\": 100"

// Repeats a job whose members came and went: with its shards it comes to the same bits.
static void repeat(rig *r, const char *name, const json_t *doc)
{
    char more[200] = "{\"on\": \"all\", " LONG "}";
    json_t *q = asks(r, "again", more);
    hth_err err;
    const json_t *first = json_array_get(json_object_get(doc, "shards"), 0);
    assert_int_equal(json_integer_value(json_array_get(first, 0)), 0); // of all iterations
    json_object_set(q, "shards", json_object_get(doc, "shards"));
    char *text = json_dumps(q, JSON_COMPACT);
    paths_named(r->f.store, text);
    json_t *again = train(&r->f, q, &err);
    assert_ok(err);
    assert_true(json_equal(json_object_get(doc, "shards"), json_object_get(again, "shards")));
    same_tensors(&r->f, name, "again");
    free(text);
    json_decref(again);
}

// Kills the process of device `device` while three compute.
static void kill_one(rig *r, int device, const json_t *alone)
{
    pid_t pid[8];
    char name[20];
    snprintf(name, sizeof name, "killed%d", device);
    char *text = job_text(r, name, "{\"on\": \"all\", " LONG "}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(r->f.engine, &c);
    until_step(&r->f, name, 5);
    assert_int_equal(children_of(getpid(), pid, 8), 3);
    qsort(pid, 3, sizeof *pid, child_by_start);
    kill(pid[device], SIGKILL);
    json_t *doc = finished(&c);
    same_clusters(r, alone, doc, name);
    repeat(r, name, doc);
    json_decref(doc);
    free(text);
}

static void killed(void **state)
{
    rig r;
    rig_open(&r, PROCESSES, true);
    char *text = job_text(&r, "one", "{\"on\": \"cpu:0\", " LONG "}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(r.f.engine, &c);
    json_t *alone = finished(&c);
    kill_one(&r, 2, alone);
    kill_one(&r, 0, alone); // the lead
    json_decref(alone);
    free(text);
    rig_close(&r);
}

// A server that ends in good order leaves a checkpoint, from which the next one goes on, with the
// devices that it has: one, and again two.
static void restarted(void **state)
{
    static const char *const devices[] = {TWO, "cpu:0,mem=128MiB,threads=1", TWO};
    static const size_t members[] = {2, 0, 2};
    rig r;
    hth_err err;
    rig_open(&r, TWO, false);
    char *text = job_text(
        &r, "made", "{\"on\": \"all\", \"k\": 1000, \"init\": \"random\", \"iterations\": 100000}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(r.f.engine, &c);
    for (int i = 0; i < 3; i++) {
        if (i > 0) {
            engines_open(&r.f, devices[i], false);
        }
        until_step(&r.f, "made", step_of(&r.f, "made") + 5);
        assert_int_equal(members_of(&r.f, "made", NULL), members[i]);
        if (i < 2) {
            hth_engine_drain(r.f.engine);
            hth_engine_close(r.f.engine);
        }
        if (i == 0) {
            assert_int_equal(call_wait(&c), HTH_ECANCELED);
        }
    }
    json_decref(ask(&r.f, "cancel", "{\"job\":\"made\"}", &err));
    assert_ok(err);
    free(text);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_one_device),
        cmocka_unit_test(empty_clusters),
        cmocka_unit_test(the_same_shards_have_the_same_bits),
        cmocka_unit_test(bad_input_gets_a_sentence),
        cmocka_unit_test(paused_and_canceled),
        cmocka_unit_test(killed),
        cmocka_unit_test(restarted),
    };
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
