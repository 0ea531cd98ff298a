// SPDX-License-Identifier: Apache-2.0
// Jobs of several tenants on a device that has too little memory for all of them: who begins, who
// passes whom, who is paused for whom, and that a paused job ends as one that was left alone.
#include "base/clock.h"
#include "base/settings.h"
#include "modelstore/file.h"
#include "runtime/checkpoint_index.h"
#include "tests/rig/train_job.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

// A clock that can be put forward.
static atomic_uint_fast64_t clock_ahead_ns;

static uint64_t clock_ahead(void *ctx)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + clock_ahead_ns;
}

static int setup(void **state)
{
    clock_ahead_ns = 0;
    hth_clock_inject(clock_ahead, NULL);
    return 0;
}

static int teardown(void **state)
{
    hth_clock_inject(NULL, NULL);
    hth_setting_reset();
    as_tenant = NULL;
    as_admin = false;
    return 0;
}

typedef struct rig {
    fixture f;
    char data[200];
    const training *model;
    json_t *whole;  // summary of a job that was left alone
    uint64_t bytes; // that it took
} rig;

#define ENDLESS ", \"epochs\": 1000000"

static const char common[] =
    "\"no-shuffle\": false, \"seed\": 7, \"batch\": 5, \"epochs\": 8, \"plan-ms\": 50";

// alice's job.
typedef struct alice {
    witness w;
    char *text;
} alice;

static char *rig_text(const rig *r, const char *more)
{
    char all[400];
    double want[STEPS];
    snprintf(all, sizeof all, "{%s%s}", common, more);
    json_t *q = arguments_of(r->model, r->data, all, want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    return text;
}

// rig_open has a device with memory for `times` such jobs.
static void rig_open(rig *r, const training *model, double times)
{
    char device[80], all[400];
    double want[STEPS];
    hth_err err;
    *r = (rig){.model = model};
    fixture_open(&r->f, "cpu:mem=256MiB,threads=2");
    prepare(&r->f, model, r->data);
    snprintf(all, sizeof all, "{%s, \"save-as\": \"whole\"}", common);
    r->whole = train(&r->f, arguments_of(model, r->data, all, want), &err);
    assert_non_null(r->whole);
    r->bytes = (uint64_t)json_integer_value(json_object_get(r->whole, "peak_bytes"));
    hth_engine_close(r->f.engine);
    snprintf(device, sizeof device, "cpu:mem=%.0fKiB,threads=2", (double)r->bytes * times / 1024);
    hth_engine_config config = {.device = device, .event = events_event};
    assert_ok(hth_engine_open(&config, r->f.store, &r->f.engine));
}

static void rig_close(rig *r)
{
    witness_let_go();
    json_decref(r->whole);
    fixture_close(&r->f);
}

// Whose job it is, and what it has of the device: a budget of so many bytes.
typedef struct job {
    call c;
    char *text;
} job;

static void job_start(rig *r, job *j, const char *tenant, const char *name, const char *more)
{
    char all[200];
    snprintf(all, sizeof all, ", \"save-as\": \"%s\"%s", name, more);
    j->text = rig_text(r, all);
    j->c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = j->text, .tenant = tenant}};
    call_start(r->f.engine, &j->c);
}

static json_t *job_end(job *j)
{
    assert_ok(call_wait(&j->c));
    json_t *doc = json_loads(j->c.r.json, 0, NULL);
    hth_free(j->c.r.json);
    free(j->text);
    return doc;
}

static json_t *row_of(rig *r, const char *name)
{
    char args[100];
    hth_err err;
    snprintf(args, sizeof args, "{\"job\": \"%s\"}", name);
    as_admin = true;
    json_t *row = ask(&r->f, "job", args, &err);
    assert_ok(err);
    return row;
}

static void until_state(rig *r, const char *name, const char *state)
{
    for (uint64_t seen = 0;; events_wait(&seen)) {
        json_t *row = row_of(r, name);
        bool is = strcmp(json_string_value(json_object_get(row, "state")), state) == 0;
        json_decref(row);
        if (is) {
            return;
        }
    }
}

static void expect_why(rig *r, const char *name, const char *words)
{
    json_t *row = row_of(r, name);
    const char *why = json_string_value(json_object_get(row, "why"));
    if (why == NULL || strstr(why, words) == NULL) {
        fail_msg("%s: '%s' is not in: %s", name, words, json_dumps(row, JSON_COMPACT));
    }
    json_decref(row);
}

static void until_logged(rig *r, const char *name, const char *words)
{
    for (uint64_t seen = 0; !logged(&r->f, name, words);) {
        events_wait(&seen);
    }
}

// The first device of "shares", as that tenant is told.
static json_t *shares_of(rig *r, const char *tenant)
{
    hth_err err;
    as_tenant = tenant;
    as_admin = false;
    json_t *doc = ask(&r->f, "shares", "{}", &err);
    as_tenant = NULL;
    as_admin = true;
    assert_ok(err);
    json_t *device = json_incref(json_array_get(json_object_get(doc, "devices"), 0));
    json_decref(doc);
    return device;
}

static const json_t *tenant_in(const json_t *device, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(device, "tenants"), i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "tenant")), name) == 0) {
            return row;
        }
    }
    fail_msg("no tenant '%s' in %s", name, json_dumps(device, JSON_COMPACT));
    return NULL;
}

static double number_in(const json_t *row, const char *object, const char *key)
{
    const json_t *o = object != NULL ? json_object_get(row, object) : row;
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static const json_t *job_in(const json_t *tenant, const char *list)
{
    const json_t *jobs = json_object_get(tenant, list);
    assert_int_equal(json_array_size(jobs), 1);
    return json_array_get(jobs, 0);
}

// alice_holds has a device with memory for `times` jobs of alice's, the first of which is held
// after its third step. From then on the test asks as an administrator.
static void alice_holds(rig *r, const training *model, double times, const char *more, alice *held)
{
    rig_open(r, model, times);
    held->text = rig_text(r, more);
    as_tenant = "alice";
    train_three_steps(&r->f, &held->w, held->text);
    as_tenant = NULL;
    as_admin = true;
}

// alice_is_canceled ends alice's job without a result.
static void alice_is_canceled(alice *held)
{
    held->w.c.r.canceled = 1;
    witness_let_go();
    assert_int_equal(call_wait(&held->w.c), HTH_ECANCELED);
    free(held->text);
}

// alice_ends_undisturbed: the losses and the result of alice's job are those of one that was left
// alone.
static void alice_ends_undisturbed(rig *r, alice *held)
{
    assert_ok(call_wait(&held->w.c));
    json_t *doc = json_loads(held->w.c.r.json, 0, NULL);
    same_losses(r->whole, doc, json_array_size(json_object_get(r->whole, "history")));
    same_tensors(&r->f, "whole", "result");
    json_decref(doc);
    hth_free(held->w.c.r.json);
    free(held->text);
}

// needs_whole is the budget of a job that was left alone, and `more`.
static const char *needs_whole(const rig *r, const char *more, char out[100])
{
    snprintf(out, 100, ", \"budget\": \"%.0fKiB\"%s", (double)r->bytes / 1024 + 1, more);
    return out;
}

// What is told of alice, whose job holds the device, and of bob, whose job waits for it.
static void expect_shares(rig *r)
{
    json_t *device = shares_of(r, "bob");
    const json_t *alice = tenant_in(device, "alice"), *bob = tenant_in(device, "bob");
    double bytes = number_in(alice, "used", "device_memory");
    assert_true(bytes >= (double)r->bytes && bytes <= (double)r->bytes * 1.3);
    assert_true(number_in(job_in(alice, "running"), NULL, "memory_bytes") == bytes);
    assert_true(json_is_null(json_object_get(job_in(alice, "running"), "job")));
    double share = bytes / number_in(device, "capacity", "device_memory");
    assert_true(fabs(number_in(alice, "share", "device_memory") - share) < 1e-9);
    assert_true(number_in(alice, NULL, "dominant_share") >= share);
    assert_true(number_in(alice, NULL, "entitlement") == 0.5);
    assert_false(json_is_true(json_object_get(alice, "under")));
    assert_true(number_in(bob, "used", "device_memory") == 0);
    assert_true(json_is_true(json_object_get(bob, "under")));
    const json_t *waits = job_in(bob, "waiting");
    assert_string_equal(json_string_value(json_object_get(waits, "job")), "other");
    assert_string_equal(json_string_value(json_object_get(waits, "waits_for")), "memory");
    json_t *row = row_of(r, "other");
    assert_non_null(strstr(json_string_value(json_object_get(row, "why")), "of device memory"));
    json_decref(row);
    json_decref(device);
}

// bob has nothing; after his patience alice's job is paused for his, and goes on after it. Its
// losses and its result are those of a job that was left alone.
static void paused_for_another(void **state)
{
    static const training *const all[] = {&mobile, &encoder};
    for (int i = 0; i < 2; i++) {
        rig r;
        alice held;
        job other;
        char budget[100];
        alice_holds(&r, all[i], 1.5, "", &held);
        job_start(&r, &other, "bob", "other", needs_whole(&r, ", \"epochs\": 400", budget));
        until_state(&r, "other", "queued");
        expect_why(&r, "other", "of device memory");
        expect_why(&r, "other", "tenant 'bob' is under its share");
        expect_shares(&r);
        clock_ahead_ns += 10000000000u;
        until_state(&r, "result", "queued");
        expect_why(&r, "result", "paused in favour of tenant 'bob'");
        assert_true(logged(&r.f, "result", "in favour of tenant 'bob', which is under its share"));
        witness_let_go(); // from here on they may take turns
        json_decref(job_end(&other));
        alice_ends_undisturbed(&r, &held);
        rig_close(&r);
    }
}

// A job of alice's that takes a quarter of hers does not wait for it to end: hers is paused, goes
// on after the shorter one, and ends as one that was left alone. Both take milliseconds, less than
// there lie between them: the priority makes up for that.
static void paused_for_shorter(void **state)
{
    rig r;
    alice held;
    job other;
    char budget[100];
    alice_holds(&r, &mobile, 1.5, "", &held);
    job_start(&r, &other, "alice", "other",
              needs_whole(&r, ", \"epochs\": 2, \"priority\": 1", budget));
    until_state(&r, "other", "queued");
    expect_why(&r, "other", "of device memory");
    clock_ahead_ns += 10000000000u;
    until_state(&r, "result", "queued");
    assert_true(logged(&r.f, "result", "in favour of job 'other', which is shorter"));
    until_state(&r, "other", "finished"); // the first one is still held
    witness_let_go();
    json_decref(job_end(&other));
    alice_ends_undisturbed(&r, &held);
    rig_close(&r);
}

// until_still waits until a job makes no more steps, however often it may.
static void until_still(rig *r, const char *name)
{
    json_int_t step = -1;
    for (int same = 0; same < 10;) {
        json_t *row = row_of(r, name);
        json_int_t now = json_integer_value(json_object_get(row, "step"));
        same = now == step ? same + 1 : 0;
        step = now;
        json_decref(row);
    }
}

// A budget that comes while a job's state is written, for which it is to be paused, counts: the job
// goes on with it after the pause.
static void a_budget_comes_before_the_pause(void **state)
{
    rig r;
    alice held;
    job other;
    char budget[100];
    hth_err err;
    int lock, dir;
    json_t *args;
    alice_holds(&r, &mobile, 1.5, "", &held);
    job_start(&r, &other, "bob", "other", needs_whole(&r, "", budget));
    until_state(&r, "other", "queued");
    dir = open(r.f.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    assert_ok(hth_store_file_lock(dir, "lock", true, &lock)); // no checkpoint is written meanwhile
    clock_ahead_ns += 10000000000u;
    until_still(&r, "result");
    json_decref(ask(&r.f, "job", "{\"job\": \"result\", \"budget\": \"100%\"}", &err));
    assert_ok(err);
    close(lock);
    close(dir);
    until_state(&r, "result", "queued");
    assert_ok(hth_checkpoint_args(r.f.store, "result", &args));
    const char *kept = json_string_value(json_object_get(args, "budget"));
    assert_string_equal(kept != NULL ? kept : "none", "100%");
    json_decref(args);
    witness_let_go();
    json_decref(job_end(&other));
    alice_ends_undisturbed(&r, &held);
    rig_close(&r);
}

// A job whose state cannot be written is not paused: it goes on, and is asked again a minute later.
static void unwritten_state(void **state)
{
    rig r;
    alice held;
    job other;
    char budget[100];
    assert_ok(hth_setting_set("store.inline_bytes", "0"));
    alice_holds(&r, &mobile, 1.5, ENDLESS, &held);
    job_start(&r, &other, "bob", "other", needs_whole(&r, "", budget));
    until_state(&r, "other", "queued");
    hth_store_file_full(true);
    clock_ahead_ns += 10000000000u;
    until_logged(&r, "result", "not paused for another job: ");
    hth_store_file_full(false);
    until_state(&r, "result", "running");
    until_state(&r, "other", "queued");
    clock_ahead_ns += 70000000000u;
    until_logged(&r, "result", "in favour of tenant 'bob'");
    witness_let_go();
    json_decref(job_end(&other));
    alice_is_canceled(&held);
    rig_close(&r);
}

// Without patience nobody is paused. A small job passes one that waits for much, whose turn it is
// when there is room, and among a tenant's own jobs priority is time that they have waited.
static void who_is_next(void **state)
{
    rig r;
    alice held;
    job large, urgent, small;
    char budget[100];
    assert_ok(hth_setting_set("fair.patience", "0"));
    alice_holds(&r, &mobile, 1.5, ENDLESS, &held);
    job_start(&r, &large, "bob", "large", needs_whole(&r, "", budget));
    until_state(&r, "large", "queued");
    job_start(&r, &urgent, "bob", "urgent", needs_whole(&r, ", \"priority\": 5", budget));
    until_state(&r, "urgent", "queued");
    expect_why(&r, "urgent", "of device memory");
    snprintf(budget, sizeof budget, ", \"budget\": \"%.0fKiB\", \"accumulate\": 5",
             (double)r.bytes * 0.45 / 1024);
    clock_ahead_ns += 100000000000u;
    job_start(&r, &small, "carol", "small", budget);
    until_state(&r, "small", "finished");
    json_decref(job_end(&small));
    until_state(&r, "large", "queued");
    until_state(&r, "urgent", "queued");
    alice_is_canceled(&held);
    json_decref(job_end(&large));
    json_decref(job_end(&urgent));
    json_t *first = row_of(&r, "urgent"), *then = row_of(&r, "large");
    assert_true(json_integer_value(json_object_get(first, "started")) <
                json_integer_value(json_object_get(then, "started")));
    json_decref(first);
    json_decref(then);
    rig_close(&r);
}

// until_finished waits until a job has ended by itself, which waits for no memory meanwhile.
static void until_finished(rig *r, const char *name)
{
    for (uint64_t seen = 0;; events_wait(&seen)) {
        json_t *row = row_of(r, name);
        const char *why = json_string_value(json_object_get(row, "why"));
        if (why != NULL && strstr(why, "of device memory") != NULL) {
            fail_msg("%s", json_dumps(row, JSON_COMPACT));
        }
        bool is = strcmp(json_string_value(json_object_get(row, "state")), "finished") == 0;
        json_decref(row);
        if (is) {
            return;
        }
    }
}

// A job without a budget of its own takes the point of its curve that the others leave: nobody is
// paused for it.
static void elastic_jobs_share_memory(void **state)
{
    rig r;
    alice held;
    job other;
    assert_ok(hth_setting_set("fair.patience", "0"));
    alice_holds(&r, &mobile, 1.6, ENDLESS, &held);
    job_start(&r, &other, "bob", "other", "");
    until_finished(&r, "other"); // while alice's job holds what it had
    json_t *doc = job_end(&other);
    assert_true(json_integer_value(json_object_get(doc, "peak_bytes")) < (json_int_t)r.bytes);
    json_decref(doc);
    json_t *row = row_of(&r, "result");
    assert_string_equal(json_string_value(json_object_get(row, "state")), "running");
    json_decref(row);
    alice_is_canceled(&held);
    rig_close(&r);
}

// A server that stops saves all jobs at work, and each says so in its own log.
static void stopped_with_several(void **state)
{
    static const char *const names[] = {"one", "two"};
    rig r;
    job jobs[2];
    rig_open(&r, &mobile, 4);
    as_admin = true;
    for (int i = 0; i < 2; i++) {
        job_start(&r, &jobs[i], "alice", names[i], ENDLESS);
    }
    for (int i = 0; i < 2; i++) {
        until_state(&r, names[i], "running");
    }
    hth_engine_drain(r.f.engine);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(call_wait(&jobs[i].c), HTH_ECANCELED);
        assert_true(logged(&r.f, names[i], "the server is stopping"));
        free(jobs[i].text);
    }
    rig_close(&r);
}

static void mistakes(void **state)
{
    rig r;
    rig_open(&r, &mobile, 2);
    expect(&r.f, &mobile, r.data, "{\"priority\": 101}", "priority");
    expect(&r.f, &mobile, r.data, "{\"priority\": \"high\"}", "priority");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(paused_for_another, setup, teardown),
        cmocka_unit_test_setup_teardown(paused_for_shorter, setup, teardown),
        cmocka_unit_test_setup_teardown(a_budget_comes_before_the_pause, setup, teardown),
        cmocka_unit_test_setup_teardown(unwritten_state, setup, teardown),
        cmocka_unit_test_setup_teardown(who_is_next, setup, teardown),
        cmocka_unit_test_setup_teardown(elastic_jobs_share_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(stopped_with_several, setup, teardown),
        cmocka_unit_test_setup_teardown(mistakes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
