// SPDX-License-Identifier: Apache-2.0
// Jobs on several devices that are paused, changed, resumed elsewhere or killed: what they learn,
// what their summaries repeat, and whose they are.
#include "engine/process/child.h"
#include "engine/router/router.h"
#include "tests/rig/children.h"
#include "tests/rig/group_job.h"

#include <signal.h>

#define TWO   "cpu:0,mem=128MiB,threads=1 cpu:1,mem=128MiB,threads=1"
#define THREE TWO " cpu:2,mem=128MiB,threads=1"

static char *text_of(const training *t, const char *data, const char *more)
{
    double want[STEPS];
    json_t *args = arguments_of(t, data, more, want);
    char *text = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    return text;
}

static void change(fixture *f, const char *what, const char *args)
{
    hth_err err;
    json_decref(ask(f, what, args, &err));
    if (err != HTH_OK) {
        fail_msg("%s %s: %s", what, args, hth_err_detail());
    }
}

// ---- shards that are repeated

// repeated runs a job with the shards of another one's summary: the same bits.
static void repeated(fixture *f, const training *t, const char *data, json_t *doc)
{
    char *shards = json_dumps(json_object_get(doc, "shards"), JSON_COMPACT), more[4000];
    const json_t *first = json_array_get(json_array_get(json_object_get(doc, "shards"), 0), 0);
    size_t steps = json_array_size(json_object_get(doc, "history"));
    hth_err err;
    double want[STEPS];
    assert_true(json_is_integer(first) && json_integer_value(first) == 0);
    assert_true(strlen(shards) < sizeof more - 200);
    snprintf(more, sizeof more,
             "{\"on\":\"all\",\"budget\":\"32MiB\",\"epochs\":%zu,\"save-as\":\"again\","
             "\"shards\":%s}",
             steps / STEPS, shards);
    json_t *args = arguments_of(t, data, more, want);
    char *text = json_dumps(args, JSON_COMPACT);
    paths_named(f->store, text);
    json_t *again = train(f, args, &err);
    assert_ok(err);
    same_losses(doc, again, steps);
    same_tensors(f, "result", "again");
    json_decref(again);
    free(text);
    free(shards);
}

// Paused, shards that were given go on where they were, and those that were chosen are repeated.
static void paused(void **state)
{
    static const char *const more[] = {"{\"on\":\"all\",\"budget\":\"32MiB\",\"epochs\":4,"
                                       "\"shards\":[[0,3,1],[2,1,3],[9,1,3],[9,2,2]]}",
                                       "{\"on\":\"all\",\"budget\":\"32MiB\",\"epochs\":30}"};
    fixture f;
    char data[200];
    devices_open(&f, TWO, false);
    prepare(&f, &encoder, data);
    for (int i = 0; i < 2; i++) {
        witness w;
        char *text = text_of(&encoder, data, more[i]);
        train_three_steps(&f, &w, text);
        change(&f, "pause", "{\"job\":\"result\"}");
        change(&f, "resume", "{\"job\":\"result\"}");
        witness_let_go();
        json_t *doc = finished(&w.c);
        if (i == 0) {
            char *shards = json_dumps(json_object_get(doc, "shards"), JSON_COMPACT);
            assert_string_equal(shards, "[[0,3,1],[2,1,3],[9,2,2]]");
            free(shards);
        }
        repeated(&f, &encoder, data, doc);
        json_decref(doc);
        free(text);
    }
    fixture_close(&f);
}

// Who would take over a job that its server has resumed, and is refused, leaves its members alone.
static void taken_over(void **state)
{
    fixture f;
    char data[200];
    size_t joined;
    devices_open(&f, TWO, false);
    prepare(&f, &encoder, data);
    char *text =
        text_of(&encoder, data, "{\"on\":\"all\",\"epochs\":1000000,\"shards\":[[0,2,2]]}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(f.engine, &c);
    until_step(&f, "result", 10);
    hth_engine_drain(f.engine);
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    hth_engine_close(f.engine);
    engines_open(&f, TWO, false);
    until_step(&f, "result", step_of(&f, "result") + 20);
    free(text);
    text = text_of(&encoder, data, "{\"on\":\"all\",\"after\":\"nobody\"}");
    c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    assert_true(call_run(f.engine, &c) != HTH_OK);
    for (int i = 0; i < 3; i++) {
        until_step(&f, "result", step_of(&f, "result") + 20);
        assert_int_equal(members_of(&f, "result", &joined), 2);
        assert_int_equal(joined, 2);
    }
    free(text);
    json_int_t step = step_of(&f, "result");
    text = text_of(&encoder, data,
                   "{\"on\":\"all\",\"epochs\":1000000,\"shards\":[[0,2,2]],\"resume\":true}");
    c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(f.engine, &c); // this one may
    until_step(&f, "result", step + 100);
    assert_int_equal(members_of(&f, "result", &joined), 2);
    assert_int_equal(joined, 2);
    change(&f, "cancel", "{\"job\":\"result\"}");
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    free(text);
    fixture_close(&f);
}

// The process of the lead, or of another member, is killed: the summary has the shards of all steps
// all the same, and none of who was away.
static void killed(void **state)
{
    fixture f;
    char data[200];
    devices_open(&f, TWO, true);
    prepare(&f, &encoder, data);
    for (int device = 0; device < 2; device++) {
        pid_t pid[8];
        char *text = text_of(&encoder, data, "{\"on\":\"all\",\"budget\":\"32MiB\",\"epochs\":60}");
        call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
        paths_named(f.store, text);
        call_start(f.engine, &c);
        until_step(&f, "result", 5);
        assert_int_equal(children_of(getpid(), pid, 8), 2);
        qsort(pid, 2, sizeof *pid, child_by_start);
        kill(pid[device], SIGKILL);
        json_t *doc = finished(&c);
        repeated(&f, &encoder, data, doc);
        json_decref(doc);
        free(text);
    }
    fixture_close(&f);
}

// ---- budgets

// used is what jobs hold of a device.
static double used(fixture *f, int device)
{
    json_t *doc = told(f, "shares", "{}");
    const json_t *row = json_array_get(json_object_get(doc, "devices"), (size_t)device);
    const json_t *tenant = json_array_get(json_object_get(row, "tenants"), 0);
    double bytes =
        json_number_value(json_object_get(json_object_get(tenant, "used"), "device_memory"));
    json_decref(doc);
    return bytes;
}

// All members go on with another budget; with one that is too small none does.
static void budget(void **state)
{
    fixture f;
    char data[200];
    hth_err err;
    devices_open(&f, TWO, false);
    prepare(&f, &encoder, data);
    char *text = text_of(&encoder, data,
                         "{\"on\":\"all\",\"budget\":\"32MiB\",\"epochs\":1000000,"
                         "\"shards\":[[0,2,2],[40,3,1],[80,1,3]]}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(f.engine, &c);
    until_step(&f, "result", 90);
    double before[2] = {used(&f, 0), used(&f, 1)};
    assert_true(before[0] > 0 && before[1] > 0);
    json_decref(ask(&f, "job", "{\"job\":\"result\",\"budget\":\"60%\"}", &err));
    assert_ok(err);
    for (uint64_t until = hth_real_after(LIMIT_NS);
         used(&f, 0) >= before[0] || used(&f, 1) >= before[1];) {
        assert_true(hth_real_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    until_step(&f, "result", step_of(&f, "result") + 30);
    json_decref(ask(&f, "job", "{\"job\":\"result\",\"budget\":\"4KiB\"}", &err));
    assert_true(err != HTH_OK);
    assert_non_null(strstr(hth_err_detail(), "continues with the budget that it had"));
    until_step(&f, "result", step_of(&f, "result") + 30);
    change(&f, "cancel", "{\"job\":\"result\"}");
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    free(text);
    fixture_close(&f);
}

// Of a parameter server the other members have no state of the optimizer in their memory.
static void server(void **state)
{
    fixture f;
    char data[200];
    devices_open(&f, TWO, false);
    prepare(&f, &encoder, data);
    char *text = text_of(&encoder, data,
                         "{\"on\":\"all\",\"budget\":\"32MiB\",\"epochs\":1000000,"
                         "\"reduce\":\"ps\",\"shards\":[[0,2,2]]}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(f.engine, &c);
    until_step(&f, "result", 10);
    hth_manifest m;
    double parameters = 0;
    assert_ok(hth_store_get(f.store, encoder.model, 0, &m));
    for (int i = 0; i < m.n_tensors; i++) {
        parameters += (double)m.tensors[i].bytes;
    }
    hth_manifest_fini(&m);
    assert_true(used(&f, 0) - used(&f, 1) > 1.5 * parameters); // of adamw two for each
    change(&f, "cancel", "{\"job\":\"result\"}");
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    free(text);
    fixture_close(&f);
}

// ---- labels of which none counts

// The batch's loss is 0, and all others are those of one device.
static void ignored(void **state)
{
    static const char *const on[] = {"{\"on\":\"cpu:0\"}", "{\"on\":\"all\"}",
                                     "{\"on\":\"cpu:1,cpu:0\",\"shards\":[[0,3,1]]}"};
    fixture f;
    char data[200];
    writer w = {NULL, NULL, 0};
    devices_open(&f, TWO, false);
    prepare(&f, &encoder, data);
    add_batches(&w, "x", encoder.x, encoder.x_rank, encoder.x_classes, 0);
    size_t before = w.bytes;
    add_batches(&w, "y", encoder.y, encoder.y_rank, encoder.y_classes, encoder.y_seed);
    for (int i = BATCH; i < 2 * BATCH; i++) {
        ((int64_t *)(void *)(w.data + before))[i] = -100;
    }
    writer_close(&w, data);
    json_t *alone = NULL;
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        double want[STEPS], loss[STEPS];
        hth_err err;
        json_t *doc = train(&f, arguments_of(&encoder, data, on[i], want), &err);
        assert_ok(err);
        losses_of(doc, loss);
        assert_true(loss[1] == 0 && loss[0] > 0 && loss[2] > 0);
        alone = i == 0 ? json_incref(doc) : alone;
        close_losses(on[i], alone, doc);
        json_decref(doc);
    }
    json_decref(alone);
    fixture_close(&f);
}

// A shard whose labels all have weight 0, in a batch with other shards: ignored labels contribute
// nothing; labels of a class with weight 0 contribute only label smoothing's part. Losses and
// gradients equal one device's. So do those of a batch with such labels only.
static void shards_without_weight(void **state)
{
    static const struct {
        const training *t;
        int64_t label;
        const char *options;
    } cases[] = {{&encoder, -100, "\"class-weights\":[1,1,2,1,1]"},
                 {&encoder, 0, "\"class-weights\":[0,1,2,1,3]"},
                 {&smooth, -100, "\"sync-bn\":true,\"class-weights\":[1,1,2,1]"},
                 {&smooth, 0, "\"sync-bn\":true,\"class-weights\":[0,1,2,1]"}};
    static const char *const on[] = {"\"cpu:0\"", "\"all\",\"shards\":[[0,3,1]]",
                                     "\"all\",\"shards\":[[0,1,3]]"};
    fixture f;
    char data[200], more[200];
    devices_open(&f, TWO, false);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const training *t = cases[c].t;
        json_t *doc[3];
        writer w = {NULL, NULL, 0};
        prepare(&f, t, data);
        add_batches(&w, "x", t->x, t->x_rank, t->x_classes, 0);
        size_t before = w.bytes;
        add_batches(&w, "y", t->y, t->y_rank, t->y_classes, t->y_seed);
        int64_t *label = (int64_t *)(void *)(w.data + before);
        for (int i = 0; i < STEPS * BATCH; i++) {
            bool none = i % BATCH == BATCH - 1 || i / BATCH == 1 || (i / BATCH == 2 && i % BATCH);
            label[i] = none ? cases[c].label : 1 + i % 3;
        }
        writer_close(&w, data);
        for (int i = 0; i < 3; i++) {
            double want[STEPS], loss[STEPS];
            hth_err err;
            snprintf(more, sizeof more, "{%s,\"label-smoothing\":0.25,\"on\":%s}", cases[c].options,
                     on[i]);
            doc[i] = train(&f, arguments_of(t, data, more, want), &err);
            assert_ok(err);
            losses_of(doc[i], loss);
            assert_true(loss[1] == 0 && loss[0] > 0 && loss[2] > 0);
            close_losses(more, doc[0], doc[i]);
        }
        for (int i = 0; i < 3; i++) {
            json_decref(doc[i]);
        }
    }
    fixture_close(&f);
}

// ---- where they go on

static void reopen(fixture *f, const char *devices)
{
    hth_engine_drain(f->engine);
    hth_engine_close(f->engine);
    engines_open(f, devices, false);
}

// How many parts --accumulate auto chose for one device says nothing of several, nor the reverse.
static void parts_are_one_device_s(void **state)
{
    static const char *const on[] = {"\"cpu:0\"", "\"all\""};
    fixture f;
    char data[200], more[200];
    for (int from = 0; from < 2; from++) {
        devices_open(&f, TWO, false);
        prepare(&f, &image_net, data);
        snprintf(more, sizeof more,
                 "{\"on\":%s,\"save-as\":\"made\",\"epochs\":1000000,\"accumulate\":\"auto\","
                 "\"budget\":\"%s\"}",
                 on[from], from == 0 ? "40%" : "64MiB");
        char *text = text_of(&image_net, data, more);
        call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
        call_start(f.engine, &c);
        until_step(&f, "made", 5);
        change(&f, "cancel", "{\"job\":\"made\"}");
        assert_int_equal(call_wait(&c), HTH_ECANCELED);
        free(text);
        snprintf(more, sizeof more,
                 "{\"on\":%s,\"save-as\":\"made\",\"epochs\":1000000,\"accumulate\":\"auto\","
                 "\"resume\":true}",
                 on[1 - from]);
        text = text_of(&image_net, data, more);
        c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
        json_int_t step = step_of(&f, "made");
        call_start(f.engine, &c);
        until_step(&f, "made", step + 5);
        change(&f, "cancel", "{\"job\":\"made\"}");
        assert_int_equal(call_wait(&c), HTH_ECANCELED);
        free(text);
        fixture_close(&f);
    }
}

// Resumed while another job is on its first device, the lead is on another one, and so are all the
// others.
static void elsewhere(void **state)
{
    fixture f;
    char data[200];
    size_t joined;
    devices_open(&f, TWO, false);
    prepare(&f, &mlp, data);
    char *text = text_of(&mlp, data, "{\"on\":\"all\",\"save-as\":\"made\",\"epochs\":1000000}");
    char *other =
        text_of(&mlp, data, "{\"on\":\"cpu:0\",\"save-as\":\"other\",\"epochs\":1000000}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}},
         d = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = other}};
    call_start(f.engine, &c);
    until_step(&f, "made", 5);
    change(&f, "pause", "{\"job\":\"made\"}");
    reopen(&f, TWO);
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    call_start(f.engine, &d);
    until_step(&f, "other", 5);
    json_int_t step = step_of(&f, "made");
    change(&f, "resume", "{\"job\":\"made\"}");
    until_step(&f, "made", step + 20);
    assert_int_equal(members_of(&f, "made", &joined), 2);
    assert_int_equal(joined, 2);
    change(&f, "cancel", "{\"job\":\"made\"}");
    change(&f, "cancel", "{\"job\":\"other\"}");
    assert_int_equal(call_wait(&d), HTH_ECANCELED);
    free(text);
    free(other);
    fixture_close(&f);
}

static void refused_at_once(const fixture *f, const char *arguments, const char *tenant,
                            hth_err err, const char *sentence)
{
    call c = {.r = {.command = HTH_COMMAND_TRAIN,
                    .arguments = arguments,
                    .tenant = tenant,
                    .done = call_done}};
    assert_err(hth_engine_submit(f->engine, &c.r), err, sentence);
}

// A job that the server goes on with is not on other devices because somebody names some.
static void not_named(void **state)
{
    fixture f;
    char data[200];
    devices_open(&f, THREE, false);
    prepare(&f, &mlp, data);
    char *text = text_of(&mlp, data, "{\"on\":\"cpu:0\",\"save-as\":\"made\",\"epochs\":1000000}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(f.engine, &c);
    until_step(&f, "made", 5);
    reopen(&f, THREE);
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    until_step(&f, "made", step_of(&f, "made") + 5);
    refused_at_once(&f, "{\"job\":\"made\",\"on\":\"cpu:1,cpu:2\"}", NULL, HTH_EINVAL,
                    "job 'made' is on device cpu:0, which --on does not name");
    change(&f, "cancel", "{\"job\":\"made\"}");
    free(text);
    fixture_close(&f);
}

// ---- whose they are

// What is another tenant's is refused before any device is asked.
static void others(void **state)
{
    fixture f;
    char data[200];
    hth_err err;
    devices_open(&f, TWO, false);
    prepare(&f, &mlp, data);
    as_tenant = "alice";
    double want[STEPS];
    json_decref(train(&f, arguments_of(&mlp, data, "{\"save-as\":\"made\"}", want), &err));
    assert_ok(err);
    char *text = text_of(&mlp, data, "{\"on\":\"all\",\"epochs\":1000000}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .tenant = "alice"}};
    call_start(f.engine, &c);
    until_step(&f, "result", 5);
    change(&f, "pause", "{\"job\":\"result\"}");
    refused_at_once(&f, "{\"model\":\"made\",\"on\":\"all\"}", "bob", HTH_EDENIED,
                    "model 'made' belongs to another tenant");
    refused_at_once(&f, "{\"model\":\"mlp_sgd\",\"on\":\"all\",\"save-as\":\"made\"}", "bob",
                    HTH_EDENIED, "model 'made' belongs to another tenant");
    as_tenant = "bob";
    assert_null(ask(&f, "train", "{\"job\":\"result\",\"batch\":1}", &err));
    assert_err(err, HTH_ENOENT, "job 'result' has no checkpoint");
    assert_null(
        ask(&f, "train", "{\"model\":\"mlp_sgd\",\"save-as\":\"result\",\"on\":\"all\"}", &err));
    assert_err(err, HTH_EDENIED, "job 'result' belongs to another tenant");
    as_tenant = "alice";
    change(&f, "cancel", "{\"job\":\"result\"}");
    as_tenant = NULL;
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    free(text);
    fixture_close(&f);
}

// ---- evaluations

// The lead is killed after epochs that it evaluated: the lead that comes after it knows them all.
static void evaluated(void **state)
{
    fixture f;
    char data[200];
    pid_t pid[8];
    devices_open(&f, TWO, true);
    prepare(&f, &mlp, data);
    char *text =
        text_of(&mlp, data, "{\"on\":\"all\",\"epochs\":60,\"hold-out\":0.25,\"keep\":\"best\"}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    paths_named(f.store, text);
    call_start(f.engine, &c);
    until_step(&f, "result", 22);
    assert_int_equal(children_of(getpid(), pid, 8), 2);
    qsort(pid, 2, sizeof *pid, child_by_start);
    kill(pid[0], SIGKILL);
    json_t *doc = finished(&c);
    const json_t *rows = json_object_get(doc, "held_out");
    assert_int_equal(json_array_size(rows), 60);
    double best = INFINITY;
    for (size_t i = 0; i < 60; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_int_equal(json_integer_value(json_object_get(row, "epoch")), (json_int_t)i + 1);
        best = fmin(best, json_number_value(json_object_get(row, "loss")));
    }
    json_int_t step = json_integer_value(json_object_get(doc, "best_step"));
    for (size_t i = 0; i < 60; i++) {
        const json_t *row = json_array_get(rows, i);
        bool is = json_integer_value(json_object_get(row, "step")) == step;
        assert_true(!is || json_number_value(json_object_get(row, "loss")) == best);
    }
    json_decref(doc);
    free(text);
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paused),
        cmocka_unit_test(taken_over),
        cmocka_unit_test(killed),
        cmocka_unit_test(budget),
        cmocka_unit_test(server),
        cmocka_unit_test(ignored),
        cmocka_unit_test(shards_without_weight),
        cmocka_unit_test(parts_are_one_device_s),
        cmocka_unit_test(elsewhere),
        cmocka_unit_test(not_named),
        cmocka_unit_test(others),
        cmocka_unit_test(evaluated),
    };
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
