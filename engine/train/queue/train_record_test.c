// SPDX-License-Identifier: Apache-2.0
// What the store keeps of a job from the moment on that it is accepted, so that it outlives its
// client and its server; what it waits for, how long it may run, and how often it is tried.
#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "engine/train/checkpoint/checkpoint.h"
#include "engine/train/queue/job_log.h"
#include "modelstore/file.h"
#include "runtime/job_index.h"
#include "tests/rig/train_job.h"

#include <errno.h>
#include <time.h>

#define DEVICE  "cpu:mem=256MiB,threads=2"
#define FOREVER "\"epochs\": 1000000, \"plan-ms\": 50"

// A clock that can be put forward.
static atomic_uint_fast64_t clock_ahead_ns;

static uint64_t clock_ahead(void *ctx)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + clock_ahead_ns;
}

static void clock_forward(double seconds)
{
    clock_ahead_ns += (uint64_t)(seconds * 1e9);
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
    return 0;
}

static char *job_text(const training *t, const char *data, const char *more)
{
    double want[STEPS];
    json_t *q = arguments_of(t, data, more, want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    return text;
}

static json_t *row_get(fixture *f, const char *arguments)
{
    hth_err err;
    json_t *row = ask(f, "job", arguments, &err);
    assert_ok(err);
    return row;
}

static void expect_row(fixture *f, const char *arguments, const char *state, const char *why)
{
    json_t *row = row_get(f, arguments);
    const char *is = json_string_value(json_object_get(row, "state"));
    const char *because = json_string_value(json_object_get(row, "why"));
    if (strcmp(is, state) != 0 || strstr(because != NULL ? because : "", why) == NULL) {
        fail_msg("%s is %s: %s; not %s: %s", arguments, is, because, state, why);
    }
    json_decref(row);
}

// until_row waits for a job's state.
static void until_row(fixture *f, const char *arguments, const char *state)
{
    for (bool is = false; !is;) {
        json_t *row = row_get(f, arguments);
        is = strcmp(json_string_value(json_object_get(row, "state")), state) == 0;
        json_decref(row);
    }
}

static int64_t saved_step(hth_store *store, const char *job)
{
    json_t *doc = NULL;
    int64_t step = hth_checkpoint_find(store, job, &doc) == HTH_OK
                       ? json_integer_value(json_object_get(doc, "step"))
                       : -1;
    json_decref(doc);
    return step;
}

// logged tells whether a line of the job's log has these words.
// A job that its client leaves: what was told, and whether the store had it then.
typedef struct left {
    call c;
    hth_store *store;
    const char *job;
    int told;
    bool stored, numbered;
} left;

static void left_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    left *l = request->ctx;
    uint64_t id;
    if (strstr(what, "\"state\"") == NULL) {
        return;
    }
    pthread_mutex_lock(&l->c.lock);
    if (l->told++ == 0) {
        l->stored = saved_step(l->store, l->job) == 0;
        l->numbered = hth_job_index_named(l->store, l->job, UINT64_MAX, &id) == HTH_OK;
    }
    pthread_cond_broadcast(&l->c.changed);
    pthread_mutex_unlock(&l->c.lock);
}

static void leave(fixture *f, left *l, const char *job, const char *text)
{
    *l = (left){.store = f->store,
                .job = job,
                .c.r = {.command = HTH_COMMAND_TRAIN,
                        .arguments = text,
                        .progress = left_progress,
                        .tenant = as_tenant,
                        .admin = as_admin}};
    call_start(f->engine, &l->c);
    witness_let(witness_held, false);
    pthread_mutex_lock(&l->c.lock);
    while (l->told == 0 && !l->c.finished) {
        pthread_cond_wait(&l->c.changed, &l->c.lock);
    }
    pthread_mutex_unlock(&l->c.lock);
    if (l->c.finished) {
        fail_msg("%s: %s", job, l->c.r.detail);
    }
    assert_true(l->stored);
    assert_true(l->numbered);
}

static void again(fixture *f)
{
    hth_engine_config config = {.device = DEVICE, .resume = true};
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

// Accepted jobs are in the store before that is told, and begin with the next engine: one that was
// at work without a checkpoint, and those that waited, in their order.
static void accepted_jobs_are_stored(void **state)
{
    fixture f;
    left one, two;
    char data[200];
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    char *whole = job_text(&mlp, data, "{\"save-as\": \"whole\"}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = whole}};
    assert_ok(call_run(f.engine, &c));
    hth_free(c.r.json);
    char *first = job_text(&mlp, data, "{\"detach\": true, \"save-as\": \"z\", " FOREVER "}");
    char *second = job_text(&mlp, data, "{\"detach\": true, \"save-as\": \"a\", \"after\": \"z\"}");
    leave(&f, &one, "z", first);
    leave(&f, &two, "a", second);
    hth_engine_close(f.engine);
    assert_err(call_wait(&one.c), HTH_ECANCELED, "the server is stopping");
    assert_err(call_wait(&two.c), HTH_ECANCELED, "the server is stopping");
    again(&f);
    expect_row(&f, "{\"job\": \"a\"}", "waiting", "waits for job 'z' (2)");
    until_row(&f, "{\"job\": \"z\"}", "running");
    hth_err err;
    json_decref(ask(&f, "cancel", "{\"job\": \"z\"}", &err));
    assert_ok(err);
    until_row(&f, "{\"job\": \"a\"}", "canceled");
    expect_row(&f, "{\"job\": \"a\"}", "canceled",
               "job 'z' (2), which it was to follow, was canceled");
    assert_int_equal(saved_step(f.store, "a"), -1); // it has made nothing
    free(second);
    second = job_text(&mlp, data, "{\"detach\": true, \"save-as\": \"a\", \"after\": \"whole\"}");
    leave(&f, &two, "a", second);
    assert_ok(call_wait(&two.c));
    hth_free(two.c.r.json);
    same_tensors(&f, "whole", "a");
    json_t *row = row_get(&f, "{\"job\": \"a\"}");
    assert_string_equal(json_string_value(json_object_get(row, "state")), "finished");
    json_int_t at[3];
    static const char *const keys[] = {"submitted", "started", "ended"};
    for (int i = 0; i < 3; i++) {
        at[i] = json_integer_value(json_object_get(row, keys[i]));
        assert_true(at[i] > 1700000000000000000 && (i == 0 || at[i] >= at[i - 1]));
    }
    assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "after"), 0)), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "attempt")), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "attempts")), 1);
    json_decref(row);
    free(whole);
    free(first);
    free(second);
    fixture_close(&f);
}

// What fails before it has a checkpoint of a step does not begin again: one that a server has gone
// on with has no client, and is in the store from the start.
static void what_failed_does_not_begin_again(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    fixture_open(&f, DEVICE);
    prepare(&f, &image_net, data);
    json_t *args = arguments_of(&image_net, data, "{\"lr\": 1e4, \"weight-decay\": 1e4}", want);
    assert_ok(hth_checkpoint_accept(f.store, "result", args));
    json_decref(args);
    hth_engine_close(f.engine);
    again(&f);
    for (bool ended = false; !ended;) {
        json_t *row = row_get(&f, "{\"job\": \"result\"}");
        const char *word = json_string_value(json_object_get(row, "state"));
        ended = strcmp(word, "waiting") != 0 && strcmp(word, "running") != 0;
        json_decref(row);
    }
    expect_row(&f, "{\"job\": \"result\"}", "failed", "training stops, nothing is saved");
    assert_int_equal(saved_step(f.store, "result"), -1);
    fixture_close(&f);
}

// A checkpoint is made after 60 s at work, not before, and none where the setting is 0; one that
// the end of the engine interrupts goes on from it.
static void checkpoints_come_by_themselves(void **state)
{
    fixture f;
    witness w;
    char data[200];
    hth_err err;
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    char *text = job_text(&mlp, data, "{" FOREVER "}");
    train_three_steps(&f, &w, text);
    clock_forward(59);
    for (int i = 0; i < 5; i++) {
        json_decref(row_get(&f, "{\"job\": \"result\"}"));
    }
    assert_int_equal(saved_step(f.store, "result"), -1);
    clock_forward(1);
    while (saved_step(f.store, "result") < 0) {
        json_decref(row_get(&f, "{\"job\": \"result\"}"));
    }
    int64_t first = saved_step(f.store, "result");
    assert_true(first >= 8);
    while (!logged(&f, "result", "written")) {
    }
    assert_ok(hth_setting_set("train.checkpoint_seconds", "0"));
    clock_forward(1000);
    for (int i = 0; i < 5; i++) {
        json_decref(row_get(&f, "{\"job\": \"result\"}"));
    }
    assert_int_equal(saved_step(f.store, "result"), first);
    json_t *row = ask(&f, "cancel", "{\"job\": \"result\"}", &err);
    assert_ok(err);
    assert_int_equal(saved_step(f.store, "result"),
                     json_integer_value(json_object_get(row, "step")));
    assert_true(json_is_true(json_object_get(row, "resumable"))); // from that checkpoint
    assert_non_null(strstr(json_string_value(json_object_get(row, "why")), "which is saved"));
    json_decref(row);
    witness_let_go();
    assert_err(call_wait(&w.c), HTH_ECANCELED, "was canceled after step");
    uint64_t now = hth_job_index_now(), day = 86400u * UINT64_C(1000000000);
    assert_ok(hth_checkpoint_unused(f.store, "mlp_sgd", 1)); // a canceled job keeps no model
    assert_ok(hth_checkpoint_expire(f.store, now, day));
    assert_true(saved_step(f.store, "result") > 0);
    assert_ok(hth_checkpoint_expire(f.store, now + day, day));
    assert_int_equal(saved_step(f.store, "result"), -1);
    expect_row(&f, "{\"job\": \"result\"}", "canceled", "was canceled after step");
    free(text);
    fixture_close(&f);
}

// A job whose time is over has failed with a checkpoint; resumed it has all of it again, and ends
// as one without a limit.
static void time_is_limited(void **state)
{
    fixture f;
    witness w;
    char data[200];
    hth_err err;
    const char *rest = "\"no-shuffle\": false, \"batch\": 2, \"epochs\": 2";
    char more[200];
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    snprintf(more, sizeof more, "{%s, \"save-as\": \"whole\"}", rest);
    double want[STEPS];
    json_t *whole = train(&f, arguments_of(&mlp, data, more, want), &err);
    assert_ok(err);
    snprintf(more, sizeof more, "{%s, \"time-limit\": 10}", rest);
    char *text = job_text(&mlp, data, more);
    train_three_steps(&f, &w, text);
    clock_forward(9);
    expect_row(&f, "{\"job\": \"result\"}", "running", "");
    clock_forward(2);
    witness_let_go();
    assert_err(call_wait(&w.c), HTH_ETIMEDOUT, "time limit: 10 s are over after step ");
    expect_row(&f, "{\"job\": \"result\"}", "failed", "time limit: 10 s are over after step ");
    json_t *row = row_get(&f, "{\"job\": \"result\"}");
    assert_true(json_is_true(json_object_get(row, "resumable")));
    assert_int_equal(json_integer_value(json_object_get(row, "time_limit")), 10);
    json_decref(row);
    json_t *doc = train(&f, json_pack("{s:s}", "job", "result"), &err);
    assert_ok(err);
    same_losses(whole, doc, 24);
    same_tensors(&f, "whole", "result");
    json_decref(whole);
    json_decref(doc);
    expect(&f, &mlp, data, "{\"time-limit\": -1}", "time-limit is a number from 0");
    expect(&f, &mlp, data, "{\"retries\": -1}", "retries is a number from 0");
    free(text);
    fixture_close(&f);
}

static int faults; // that are still to come

static void fail_result(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    if (strstr(what, "\"step\"") != NULL && done == total && faults-- > 0) {
        hth_store_file_fault(1, ENOSPC);
    }
}

// What fails by the file system is tried again, from its last checkpoint, as often as was asked
// for; what fails by what was asked for is not.
static void attempts_are_counted(void **state)
{
    fixture f;
    char data[200];
    assert_ok(hth_setting_set("store.inline_bytes", "0"));
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    char *text = job_text(&mlp, data, "{\"retries\": 1}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = fail_result}};
    faults = 1;
    assert_ok(call_run(f.engine, &c));
    hth_free(c.r.json);
    json_t *row = row_get(&f, "{\"job\": \"result\"}");
    assert_string_equal(json_string_value(json_object_get(row, "state")), "finished");
    assert_int_equal(json_integer_value(json_object_get(row, "attempt")), 2);
    assert_int_equal(json_integer_value(json_object_get(row, "attempts")), 2);
    assert_true(logged(&f, "result", "attempt 1 failed: the result of job 'result' could not be"));
    json_decref(row);
    free(text);
    text = job_text(&mlp, data,
                    "{\"save-as\": \"bad\", \"retries\": 5, \"lr\": 1e6, "
                    "\"weight-decay\": 1e6}");
    c.r = (hth_request){.command = HTH_COMMAND_TRAIN, .arguments = text};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "training stops");
    row = row_get(&f, "{\"job\": \"bad\"}");
    assert_int_equal(json_integer_value(json_object_get(row, "attempt")), 1);
    json_decref(row);
    free(text);
    fixture_close(&f);
}

// What the engine told of a job last: its state, and the step that it went on from.
static char told_state[24];
static long long told_from;

static void told_event(void *ctx, const char *job, const char *what, uint64_t done, uint64_t total)
{
    if (strstr(what, "\"step\"") != NULL && done == total && faults > 0) {
        faults--;
        hth_store_file_fault(1, ENOSPC);
    }
    const char *from = strstr(what, "\"from_step\":");
    (void)sscanf(what, "{\"state\":\"%23[a-z]", told_state);
    told_from = from != NULL ? atoll(strchr(from, ':') + 1) : told_from;
}

static void told_again(fixture *f)
{
    hth_engine_config config = {.device = DEVICE, .event = told_event};
    hth_engine_close(f->engine);
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

static void told_open(fixture *f)
{
    faults = 0;
    fixture_open(f, DEVICE);
    told_again(f);
}

// begun_text is a job's request as a server gives it to its engine, with a number.
static char *begun_text(const fixture *f, const char *data, const char *more)
{
    char job[HTH_CHECKPOINT_JOB];
    double want[STEPS];
    uint64_t id;
    json_t *q = arguments_of(&mlp, data, more, want);
    assert_ok(hth_job_index_begin(f->store, q, HTH_TENANT_OWN, true, job, &id));
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    return text;
}

// put_newer makes what was trained as "whole" the second version of the model that was trained.
static void put_newer(hth_store *store)
{
    hth_manifest m;
    hth_put_tensor t[8] = {{.name = NULL}};
    hth_const *view[8];
    hth_put_result result;
    assert_ok(hth_store_get(store, "whole", 0, &m));
    assert_in_range(m.n_tensors, 1, 8);
    for (int i = 0; i < m.n_tensors; i++) {
        const hth_manifest_tensor *x = &m.tensors[i];
        assert_ok(hth_store_view(store, x, &view[i]));
        t[i] = (hth_put_tensor){.name = x->name,
                                .dtype = x->dtype,
                                .shape = x->shape,
                                .data = view[i]->data,
                                .bytes = x->bytes};
    }
    assert_ok(hth_store_put(store, "mlp_sgd", m.skeleton, m.skeleton_bytes, NULL, t, m.n_tensors,
                            NULL, NULL, &result));
    assert_int_equal(result.version, 2);
    for (int i = 0; i < m.n_tensors; i++) {
        hth_const_rele(view[i]);
    }
    hth_manifest_fini(&m);
}

// A job is held, gets another budget, and there is a newer version of its model.
static void begin_and_change(fixture *f, witness *w, const char *text, json_int_t *budget_bytes)
{
    hth_err err;
    train_three_steps(f, w, text);
    json_t *row = ask(f, "job", "{\"job\": \"result\", \"budget\": \"100%\"}", &err);
    assert_ok(err);
    *budget_bytes = json_integer_value(json_object_get(row, "budget_bytes"));
    json_decref(row);
    put_newer(f->store);
}

// expect_same: it went on from that step, as one that was left alone, within the other budget.
static void expect_same(call *c, json_t *whole, int64_t from, json_int_t budget_bytes)
{
    assert_ok(call_wait(c));
    json_t *doc = json_loads(c->r.json, 0, NULL);
    assert_int_equal(told_from, from);
    same_losses(whole, doc, STEPS);
    assert_int_equal(json_integer_value(json_object_get(doc, "budget_bytes")), budget_bytes);
    json_decref(doc);
    hth_free(c->r.json);
}

// Another attempt goes on with the version and the budget that the one before had.
static void another_attempt_has_what_the_first_had(void **state)
{
    fixture f;
    witness w;
    char data[200];
    double want[STEPS];
    hth_err err;
    json_int_t budget_bytes;
    assert_ok(hth_setting_set("store.inline_bytes", "0"));
    told_open(&f);
    prepare(&f, &mlp, data);
    json_t *whole = train(&f, arguments_of(&mlp, data, "{\"save-as\": \"whole\"}", want), &err);
    assert_ok(err);
    char *text = begun_text(&f, data, "{\"retries\": 1}");
    begin_and_change(&f, &w, text, &budget_bytes);
    faults = 1;
    witness_let_go();
    while (!logged(&f, "result", "attempt 1 failed")) {
    }
    clock_forward(2);
    expect_same(&w.c, whole, STEPS, budget_bytes);
    same_tensors(&f, "whole", "result");
    json_decref(whole);
    free(text);
    fixture_close(&f);
}

// A dataset with a batch less.
static void write_fewer(const char *path)
{
    static const float zeros[(STEPS - 1) * BATCH * 12];
    int64_t x[2] = {(STEPS - 1) * BATCH, 12}, y[2] = {(STEPS - 1) * BATCH, 2};
    writer w = {NULL, NULL, 0};
    writer_add(&w, "x", "F32", x, 2, zeros, sizeof zeros);
    writer_add(&w, "y", "F32", y, 2, zeros, sizeof zeros / 6);
    writer_close(&w, path);
}

// So does the next process of one that has died; it does not begin anew with other data.
static void another_process_has_what_the_first_had(void **state)
{
    fixture f;
    witness w;
    char data[200], away[220];
    double want[STEPS];
    hth_err err;
    json_int_t budget_bytes;
    told_open(&f);
    prepare(&f, &mlp, data);
    json_t *whole = train(&f, arguments_of(&mlp, data, "{\"save-as\": \"whole\"}", want), &err);
    assert_ok(err);
    char *text = begun_text(&f, data, "{}");
    begin_and_change(&f, &w, text, &budget_bytes);
    hth_engine_drain(f.engine);
    witness_let_go();
    assert_err(call_wait(&w.c), HTH_ECANCELED, "job 'result' is saved after step");
    int64_t step = saved_step(f.store, "result");
    assert_true(step > 3);
    told_again(&f);
    snprintf(away, sizeof away, "%s.away", data);
    assert_int_equal(rename(data, away), 0);
    write_fewer(data);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .crashes = 1}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "its data has another size");
    assert_int_equal(saved_step(f.store, "result"), step);
    assert_int_equal(rename(away, data), 0);
    c.r = (hth_request){.command = HTH_COMMAND_TRAIN, .arguments = text, .crashes = 1};
    call_start(f.engine, &c);
    expect_same(&c, whole, step, budget_bytes);
    same_tensors(&f, "whole", "result");
    json_decref(whole);
    free(text);
    fixture_close(&f);
}

static uint64_t fault_at, fault_from; // of what is done, or allocated, after the last step
static bool fault_memory;

static void fail_later(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    if (strstr(what, "\"step\"") != NULL && done == total) {
        fault_from = hth_alloc_count();
        if (fault_memory) {
            hth_fault_alloc(fault_at);
        } else {
            hth_store_file_fault(fault_at, EIO);
        }
    }
}

// expect_finished runs a job with that fault: it has finished if its result is published, and else
// failed. Returns whether it is.
static bool expect_finished(fixture *f, const char *text)
{
    bool there;
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = fail_later}};
    hth_err err = call_run(f->engine, &c);
    hth_fault_alloc(0);
    hth_store_file_fault(0, 0);
    assert_ok(hth_store_has(f->store, "result", 0, &there));
    if (strcmp(told_state, there ? "finished" : "failed") != 0 ||
        (there && err != HTH_OK && !fault_memory)) {
        fail_msg("%d, %d: published %d, %s: %s", fault_memory, (int)fault_at, there, told_state,
                 c.r.detail);
    }
    (void)hth_store_rm(f->store, "result", 0);
    assert_ok(hth_checkpoint_rm(f->store, "result"));
    hth_free(c.r.json);
    return there;
}

// A job whose result is published has finished, whatever fails then: its checkpoint cannot be
// removed, or there is no memory for the answer.
static void what_is_published_has_finished(void **state)
{
    fixture f;
    char data[200];
    int published[2] = {0, 0}, last[2] = {40, 1};
    told_open(&f);
    prepare(&f, &mlp, data);
    for (int k = 0; k < 2; k++) {
        fault_memory = k == 1; // where nobody else allocates
        char *text = job_text(&mlp, data, k == 1 ? "{}" : "{\"checkpoint-every\": 1}");
        for (fault_at = 1; fault_at <= (uint64_t)last[k]; fault_at++) {
            published[k] += expect_finished(&f, text);
            last[1] = (int)(hth_alloc_count() - fault_from);
        }
        assert_true(published[k] > 1 && published[k] < last[k]);
        free(text);
    }
    fixture_close(&f);
}

// A second attempt does not go on from what an older job of the same name and the same arguments
// has left: what it reads may be another thing now.
static void another_attempt_is_of_the_same_job(void **state)
{
    fixture f;
    char data[200], away[220];
    double want[STEPS];
    hth_err err;
    training other = mlp;
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    train_and_leave(&f, arguments_of(&mlp, data, "{\"retries\": 1}", want), 2);
    writer w = {NULL, NULL, 0};
    other.y_seed++;
    add_batches(&w, "x", other.x, other.x_rank, other.x_classes, 0);
    add_batches(&w, "y", other.y, other.y_rank, other.y_classes, other.y_seed);
    writer_close(&w, data);
    json_t *whole = train(&f, arguments_of(&mlp, data, "{\"save-as\": \"whole\"}", want), &err);
    assert_ok(err);
    snprintf(away, sizeof away, "%s.away", data);
    assert_int_equal(rename(data, away), 0);
    assert_int_equal(symlink(data, data), 0); // what cannot be opened now is tried again
    char *text = job_text(&mlp, data, "{\"retries\": 1}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(f.engine, &c);
    while (!logged(&f, "result", "attempt 1 failed")) {
    }
    assert_int_equal(rename(away, data), 0);
    clock_forward(2);
    assert_ok(call_wait(&c));
    json_t *doc = json_loads(c.r.json, 0, NULL);
    same_losses(whole, doc, STEPS);
    json_decref(doc);
    json_decref(whole);
    hth_free(c.r.json);
    free(text);
    fixture_close(&f);
}

// expect_canceled looks whether jobs that are to follow it learn that the last one of a name ended.
static void expect_canceled(fixture *f, const char *job)
{
    json_t *record;
    uint64_t id;
    assert_ok(hth_job_index_named(f->store, job, UINT64_MAX, &id));
    assert_ok(hth_job_index_get(f->store, id, &record));
    const char *word = json_string_value(json_object_get(record, "state"));
    if (strcmp(word, "canceled") != 0 || !json_is_integer(json_object_get(record, "ended"))) {
        fail_msg("%s is %s", job, word);
    }
    json_decref(record);
}

// What waits when a server stops, and only the name has a checkpoint, is told that it is lost, and
// so are jobs that are to follow it.
static void jobs_that_wait_are_lost_with_their_server(void **state)
{
    fixture f;
    witness w;
    char data[200];
    double want[STEPS];
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    train_and_leave(&f, arguments_of(&mlp, data, "{}", want), 2);
    char *text = job_text(&mlp, data, "{\"save-as\": \"held\", \"epochs\": 9}");
    char *waits = job_text(&mlp, data, "{\"after\": \"held\", \"lr\": 0.5}");
    train_three_steps(&f, &w, text);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = waits}};
    call_start(f.engine, &c);
    witness_let(witness_held, false);
    expect_row(&f, "{\"job\": \"result\"}", "waiting", "waits for job 'held'");
    hth_engine_drain(f.engine);
    witness_let_go();
    assert_err(call_wait(&c), HTH_ECANCELED, "job 'result' had not started: submit it again");
    assert_err(call_wait(&w.c), HTH_ECANCELED, "job 'held' is saved after step");
    assert_int_equal(saved_step(f.store, "result"), 2); // the older job's
    expect_canceled(&f, "result");
    free(text);
    free(waits);
    fixture_close(&f);
}

static void wait_end(call *c, const char *words)
{
    c->r.canceled = 1;
    witness_let(witness_held, false);
    assert_err(call_wait(c), HTH_ECANCELED, words);
}

// A job whose client goes before it has begun has ended, also if it was paused; one that a server
// has lost, too: jobs that are to follow it end as well.
static void jobs_that_never_begin_have_ended(void **state)
{
    fixture f;
    witness w;
    char data[200];
    hth_err err;
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    char *text = job_text(&mlp, data, "{\"save-as\": \"held\", \"epochs\": 9}");
    char *waits = job_text(&mlp, data, "{\"after\": \"held\"}");
    char *follows = job_text(&mlp, data, "{\"after\": \"result\", \"save-as\": \"next\"}");
    train_three_steps(&f, &w, text);
    for (int paused = 0; paused < 3; paused++) {
        call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = waits}}, next = c;
        next.r.arguments = follows;
        call_start(f.engine, &c);
        call_start(f.engine, &next);
        expect_row(&f, "{\"job\": \"next\"}", "waiting", "waits for job 'result'");
        if (paused > 0) {
            json_decref(ask(&f, "pause", "{\"job\": \"result\"}", &err));
            assert_ok(err);
        }
        if (paused < 2) {
            wait_end(&c, paused > 0 ? "paused: it had not begun" : "while it was queued");
        } else {
            hth_engine_drain(f.engine);
            witness_let_go();
            assert_err(call_wait(&c), HTH_ECANCELED, "'result' had not started: submit it again");
        }
        expect_canceled(&f, "result");
        clock_forward(1);
        witness_let(witness_held, false);
        assert_err(call_wait(&next), HTH_ECANCELED, paused < 2 ? "was canceled" : "stopping");
    }
    assert_err(call_wait(&w.c), HTH_ECANCELED, "job 'held' is saved after step");
    free(text);
    free(waits);
    free(follows);
    fixture_close(&f);
}

// One that is in the store, and waits, stays paused when its server stops.
static void jobs_that_wait_stay_paused(void **state)
{
    fixture f;
    left one, two;
    char data[200];
    hth_err err;
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    char *first = job_text(&mlp, data, "{\"detach\": true, \"save-as\": \"z\", " FOREVER "}");
    char *second = job_text(&mlp, data, "{\"detach\": true, \"after\": \"z\"}");
    leave(&f, &one, "z", first);
    leave(&f, &two, "result", second);
    json_decref(ask(&f, "pause", "{\"job\": \"result\"}", &err));
    assert_ok(err);
    hth_engine_drain(f.engine);
    assert_err(call_wait(&two.c), HTH_ECANCELED, "job 'result' stays paused");
    assert_err(call_wait(&one.c), HTH_ECANCELED, "the server is stopping");
    hth_engine_close(f.engine);
    again(&f);
    expect_row(&f, "{\"job\": \"result\"}", "paused", "");
    json_decref(ask(&f, "resume", "{\"job\": \"result\"}", &err));
    assert_ok(err);
    expect_row(&f, "{\"job\": \"result\"}", "waiting", "waits for job 'z'");
    free(first);
    free(second);
    fixture_close(&f);
}

// Jobs to follow are found by name and number; unknown ones, and others', are refused before
// anything is accepted.
static void jobs_to_follow_are_known(void **state)
{
    fixture f;
    witness w;
    char data[200];
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    expect(&f, &mlp, data, "{\"after\": \"nothing\"}", "--after: there is no job 'nothing'");
    expect(&f, &mlp, data, "{\"after\": \"7\"}", "--after: there is no job '7'");
    as_tenant = "alice";
    char *text = job_text(&mlp, data, "{" FOREVER "}");
    train_three_steps(&f, &w, text);
    as_tenant = "bob";
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .tenant = "bob"}};
    char *theirs = job_text(&mlp, data, "{\"save-as\": \"b\", \"after\": \"result\"}");
    c.r.arguments = theirs;
    call_start(f.engine, &c);
    witness_let(witness_held, false);
    assert_err(call_wait(&c), HTH_ENOENT, "--after: there is no job 'result'");
    as_tenant = "alice";
    free(theirs);
    theirs = job_text(&mlp, data, "{\"save-as\": \"b\", \"after\": \"1,result\"}");
    c.r = (hth_request){.command = HTH_COMMAND_TRAIN, .tenant = "alice", .arguments = theirs};
    call_start(f.engine, &c);
    witness_let(witness_held, false);
    expect_row(&f, "{\"job\": \"b\"}", "waiting", "waits for job 'result' (1), job 'result' (1)");
    json_t *row = row_get(&f, "{\"job\": \"b\"}");
    assert_true(json_is_real(json_object_get(row, "wait_seconds")));
    json_decref(row);
    c.r.canceled = 1;
    witness_let_go();
    assert_err(call_wait(&c), HTH_ECANCELED, "canceled while it was queued");
    w.c.r.canceled = 1;
    assert_err(call_wait(&w.c), HTH_ECANCELED, "canceled after step");
    as_tenant = NULL;
    free(text);
    free(theirs);
    fixture_close(&f);
}

// Of several jobs to follow each counts from the start: one that has finished is not waited for,
// and one that never will ends the job while others are at work.
static void all_jobs_to_follow_count(void **state)
{
    fixture f;
    witness w;
    char data[200];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    json_decref(train(&f, arguments_of(&mlp, data, "{\"save-as\": \"done\"}", want), &err));
    assert_ok(err);
    train_and_leave(&f, arguments_of(&mlp, data, "{\"save-as\": \"ended\"}", want), 2);
    char *text = job_text(&mlp, data, "{\"save-as\": \"held\", \"epochs\": 9}");
    char *follows = job_text(&mlp, data, "{\"after\": \"done,held\"}");
    char *never = job_text(&mlp, data, "{\"after\": \"ended,held\", \"save-as\": \"never\"}");
    train_three_steps(&f, &w, text);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = follows}}, other = c;
    other.r.arguments = never;
    call_start(f.engine, &c);
    call_start(f.engine, &other);
    expect_row(&f, "{\"job\": \"result\"}", "waiting", "waits for job 'held' (3)");
    assert_true(other.finished); // asked after it
    assert_err(call_wait(&other), HTH_ECANCELED, "job 'ended' (2), which it was to follow, was");
    witness_let_go();
    assert_ok(call_wait(&w.c));
    assert_ok(call_wait(&c));
    hth_free(w.c.r.json);
    hth_free(c.r.json);
    free(text);
    free(follows);
    free(never);
    fixture_close(&f);
}

// A result that nobody has named is a model of its own, and not what is served next.
static void results_have_names_of_their_own(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    hth_manifest m;
    fixture_open(&f, DEVICE);
    prepare(&f, &mlp, data);
    for (int i = 1; i <= 2; i++) {
        char name[40], last[60];
        json_t *q = arguments_of(&mlp, data, "{}", want);
        json_object_del(q, "save-as");
        json_t *doc = train(&f, q, &err);
        assert_ok(err);
        snprintf(name, sizeof name, "mlp_sgd-job%d", i);
        snprintf(last, sizeof last, "{\"job\": \"%s\"}", name);
        assert_string_equal(json_string_value(json_object_get(doc, "saved_as")), name);
        assert_int_equal(json_integer_value(json_object_get(doc, "version")), 1);
        json_decref(doc);
        expect_row(&f, last, "finished", "");
    }
    assert_ok(hth_store_get(f.store, "mlp_sgd", 0, &m));
    assert_int_equal(m.version, 1);
    hth_manifest_fini(&m);
    same_tensors(&f, "mlp_sgd-job1", "mlp_sgd-job2");
    json_t *q = arguments_of(&mlp, data, "{\"epochs\": 3}", want);
    json_object_del(q, "save-as");
    json_t *again = json_deep_copy(q);
    train_and_leave(&f, q, 7);
    json_object_set_new(again, "resume", json_true()); // the same command: the same job
    json_t *doc = train(&f, again, &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(doc, "saved_as")), "mlp_sgd-job3");
    json_decref(doc);
    json_t *row = row_get(&f, "{\"job\": \"mlp_sgd-job3\"}");
    assert_int_equal(json_integer_value(json_object_get(row, "id")), 3);
    json_decref(row);
    fixture_close(&f);
}

// A log has the last lines that fit, numbered, and is the same when it is opened again.
static void logs_are_bounded(void **state)
{
    fixture f;
    char text[64];
    hth_job_log *log;
    fixture_open(&f, DEVICE);
    assert_ok(hth_job_log_open(f.store, 5, &log));
    for (int i = 1; i <= 1000; i++) {
        snprintf(text, sizeof text, "line %d", i);
        hth_job_log_add(log, "info", text);
    }
    hth_job_log_add(log, "info", "\xff\xfe"); // is no text
    hth_job_log_close(log);
    for (int k = 0; k < 2; k++) {
        assert_ok(hth_job_log_open(f.store, 5, &log));
        json_t *doc = hth_job_log_lines(log, 0, SIZE_MAX);
        const json_t *lines = json_object_get(doc, "lines");
        size_t n = json_array_size(lines);
        assert_in_range(n, 200, HTH_TRAIN_LOG_BYTES / 40);
        assert_int_equal(json_integer_value(json_object_get(doc, "next")), 1000);
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(lines, n - 1), "text")), "line 1000");
        json_decref(doc);
        doc = hth_job_log_lines(log, 990, 4);
        assert_int_equal(json_array_size(json_object_get(doc, "lines")), 4);
        assert_int_equal(json_integer_value(json_object_get(doc, "next")), 994);
        json_decref(doc);
        hth_job_log_close(log);
    }
    assert_ok(hth_job_log_open(f.store, 5 + HTH_JOB_INDEX, &log)); // has the same place
    json_t *doc = hth_job_log_lines(log, 0, SIZE_MAX);
    assert_int_equal(json_array_size(json_object_get(doc, "lines")), 0);
    json_decref(doc);
    hth_job_log_close(log);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(accepted_jobs_are_stored, setup, teardown),
        cmocka_unit_test_setup_teardown(what_failed_does_not_begin_again, setup, teardown),
        cmocka_unit_test_setup_teardown(checkpoints_come_by_themselves, setup, teardown),
        cmocka_unit_test_setup_teardown(time_is_limited, setup, teardown),
        cmocka_unit_test_setup_teardown(attempts_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(another_attempt_has_what_the_first_had, setup, teardown),
        cmocka_unit_test_setup_teardown(another_process_has_what_the_first_had, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_published_has_finished, setup, teardown),
        cmocka_unit_test_setup_teardown(another_attempt_is_of_the_same_job, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_that_wait_are_lost_with_their_server, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_that_never_begin_have_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_that_wait_stay_paused, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_to_follow_are_known, setup, teardown),
        cmocka_unit_test_setup_teardown(all_jobs_to_follow_count, setup, teardown),
        cmocka_unit_test_setup_teardown(results_have_names_of_their_own, setup, teardown),
        cmocka_unit_test_setup_teardown(logs_are_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
