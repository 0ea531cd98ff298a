// SPDX-License-Identifier: Apache-2.0
// Jobs that are paused, resumed and given other budgets while they work: between two steps, with
// the losses of a job that was left alone.
#include "base/log.h"
#include "engine/train/checkpoint/checkpoint.h"
#include "tests/rig/train_job.h"

#include <stdatomic.h>

static const char common[] = "\"no-shuffle\": false, \"seed\": 7, \"batch\": 5, \"epochs\": 3, "
                             "\"schedule\": \"cosine\"";

typedef struct job_test {
    fixture f;
    witness w;
    json_t *whole; // of a job that was left alone
    char data[200], *text;
} job_test;

// A job after its third step of 15 or more, and the summary of one like it.
static void begin(job_test *test, const training *model, const char *more)
{
    char all[300];
    double want[STEPS];
    hth_err err;
    fixture_open(&test->f, "cpu:mem=256MiB,threads=2");
    prepare(&test->f, model, test->data);
    snprintf(all, sizeof all, "{%s%s, \"save-as\": \"whole\"}", common, more);
    test->whole = train(&test->f, arguments_of(model, test->data, all, want), &err);
    assert_non_null(test->whole);
    snprintf(all, sizeof all, "{%s%s}", common, more);
    json_t *q = arguments_of(model, test->data, all, want);
    test->text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    train_three_steps(&test->f, &test->w, test->text);
}

static void end(job_test *test)
{
    witness_let_go(); // the witness is on its caller's stack
    json_decref(test->whole);
    free(test->text);
    hth_free(test->w.c.r.json);
    fixture_close(&test->f);
}

static void expect_state(fixture *f, const char *query, const char *arguments, const char *word)
{
    hth_err err;
    json_t *row = ask(f, query, arguments, &err);
    if (row == NULL) {
        fail_msg("%s %s: %s", query, arguments, hth_err_detail());
    }
    assert_string_equal(json_string_value(json_object_get(row, "state")), word);
    assert_int_equal(json_integer_value(json_object_get(row, "step")), 3);
    json_decref(row);
}

static void expect_refusal(fixture *f, const char *query, const char *arguments, const char *words)
{
    hth_err err;
    assert_null(ask(f, query, arguments, &err));
    if (strstr(hth_err_detail(), words) == NULL) {
        fail_msg("%s %s: '%s' is not in: %s", query, arguments, words, hth_err_detail());
    }
}

static json_t *wait_for_summary(witness *w)
{
    witness_let_go();
    assert_ok(call_wait(&w->c));
    return json_loads(w->c.r.json, 0, NULL);
}

static void paused_jobs_repeat_the_losses(void **state)
{
    static const training *const all[] = {&mobile, &encoder};
    static const char *const more[] = {"", ", \"hold-out\": 0.4, \"checkpoint-every\": 2"};
    for (int i = 0; i < 2; i++) {
        job_test t;
        begin(&t, all[i], more[i]);
        expect_state(&t.f, "pause", "{\"job\": \"result\"}", "paused");
        expect_refusal(&t.f, "pause", "{\"job\": \"result\"}", "is paused");
        expect_refusal(&t.f, "pause", "{\"job\": \"nobody\"}", "there is no job 'nobody'");
        expect_refusal(&t.f, "pause", "{\"job\": \"whole\"}", "has ended already");
        expect_refusal(&t.f, "resume", "{\"job\": \"whole\"}", "has ended already");
        expect_refusal(&t.f, "job", "{\"job\": \"result\", \"budget\": \"50%\"}", "does not run");
        expect_state(&t.f, "job", "{\"job\": \"result\"}", "paused");
        expect_refusal(&t.f, "train", t.text, "job 'result' is paused already");
        // what resume does not take is ignored: nobody learns of others' jobs by their numbers
        expect_state(&t.f, "resume", "{\"job\": \"result\", \"after\": [4711]}", "waiting");
        json_t *doc = wait_for_summary(&t.w);
        same_losses(t.whole, doc, json_array_size(json_object_get(t.whole, "history")));
        assert_true(
            json_equal(json_object_get(t.whole, "held_out"), json_object_get(doc, "held_out")));
        same_tensors(&t.f, "whole", "result");
        json_decref(doc);
        end(&t);
    }
}

// Other jobs have their turn meanwhile; the next engine leaves a paused job alone until it is asked
// for, and under another budget that holds what its steps took it has the same bits.
static void paused_jobs_stay_paused(void **state)
{
    job_test t;
    hth_err err;
    hth_manifest m;
    double want[STEPS];
    begin(&t, &mobile, "");
    expect_state(&t.f, "pause", "{\"job\": \"result\"}", "paused");
    json_decref(train(&t.f, arguments_of(&mobile, t.data, "{\"save-as\": \"other\"}", want), &err));
    assert_ok(err);
    hth_engine_close(t.f.engine);
    assert_true(t.w.c.finished);
    assert_int_equal(t.w.c.r.err, HTH_ECANCELED);
    hth_engine_config config = {
        .device = "cpu:mem=256MiB,threads=2", .resume = true, .event = events_event};
    assert_ok(hth_engine_open(&config, t.f.store, &t.f.engine));
    for (int i = 0; i < 5; i++) {
        expect_state(&t.f, "job", "{\"job\": \"result\"}", "paused");
        usleep(10000);
    }
    json_decref(ask(&t.f, "resume", "{\"job\": \"result\", \"budget\": \"4MiB\"}", &err));
    assert_ok(err);
    for (uint64_t seen = 0; hth_store_get(t.f.store, "result", 0, &m) == HTH_ENOENT;) {
        events_wait(&seen);
    }
    hth_manifest_fini(&m);
    same_tensors(&t.f, "whole", "result");
    end(&t);
}

// Who waits for a paused job may leave: it stays, and can be canceled.
static void paused_jobs_outlive_their_client(void **state)
{
    job_test t;
    hth_err err;
    begin(&t, &mlp, "");
    expect_state(&t.f, "pause", "{\"job\": \"result\"}", "paused");
    t.w.c.r.canceled = 1;
    call_wait(&t.w.c);
    assert_non_null(strstr(t.w.c.r.detail, "stays paused"));
    expect_state(&t.f, "job", "{\"job\": \"result\"}", "paused");
    expect_state(&t.f, "cancel", "{\"job\": \"result\"}", "canceled");
    json_t *row = ask(&t.f, "job", "{\"job\": \"result\"}", &err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "canceled");
    json_decref(row);
    end(&t);
}

// expect_new asks about the job that waits: it has made no step, whatever an older one has.
static void expect_new(fixture *f, const char *query, const char *word)
{
    hth_err err;
    json_t *row = ask(f, query, "{\"job\": \"result\"}", &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), word);
    assert_true(json_is_null(json_object_get(row, "step")));
    json_decref(row);
}

// job_waits submits the job "result", which waits for another one, "held", that has made three
// steps and is in the middle of one. Returns c's arguments.
static char *job_waits(job_test *t, call *c)
{
    double want[STEPS];
    json_t *q = arguments_of(&mlp, t->data, "{\"save-as\": \"held\", \"epochs\": 9}", want);
    t->text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    train_three_steps(&t->f, &t->w, t->text);
    q = arguments_of(&mlp, t->data, "{\"after\": \"held\"}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    *c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    call_start(t->f.engine, c);
    witness_let(witness_held, false);
    return text;
}

// A job of the name of one that was canceled is not that one while it waits: it shows none of its
// steps, and resumed it begins with arguments of its own.
static void jobs_that_wait_take_no_older_ones_checkpoint(void **state)
{
    job_test t;
    hth_err err;
    double want[STEPS];
    fixture_open(&t.f, "cpu:mem=256MiB,threads=2");
    prepare(&t.f, &mlp, t.data);
    t.whole = train(&t.f, arguments_of(&mlp, t.data, "{\"save-as\": \"whole\"}", want), &err);
    assert_ok(err);
    train_and_leave(&t.f, arguments_of(&mlp, t.data, "{\"epochs\": 3}", want), 2);
    call c;
    char *text = job_waits(&t, &c);
    expect_new(&t.f, "job", "waiting");
    expect_new(&t.f, "pause", "paused");
    expect_new(&t.f, "resume", "waiting");
    char note[HTH_CHECKPOINT_NOTE]; // the older one can still be resumed, and waits to be asked for
    hth_checkpoint_note_get(t.f.store, "result", note);
    assert_non_null(strstr(note, "canceled after step 2"));
    witness_let_go();
    assert_ok(call_wait(&c));
    json_t *doc = json_loads(c.r.json, 0, NULL);
    same_losses(t.whole, doc, STEPS);
    json_decref(doc);
    hth_free(c.r.json);
    free(text);
    assert_ok(call_wait(&t.w.c));
    end(&t);
}

static void budgets_change_between_steps(void **state)
{
    static const training *const all[] = {&unet, &image_net};
    for (int i = 0; i < 2; i++) {
        job_test t;
        hth_err err;
        begin(&t, all[i], ", \"hold-out\": 0.2, \"epochs\": 12"); // not over before it is asked
        json_int_t peak = json_integer_value(json_object_get(t.whole, "peak_bytes"));
        expect_refusal(&t.f, "job", "{\"job\": \"result\", \"budget\": \"much\"}", "much");
        expect_refusal(&t.f, "resume", "{\"job\": \"result\"}", "is running");
        expect_refusal(&t.f, "train", t.text, "job 'result' is running already");
        expect_refusal(&t.f, "job", "{\"job\": \"result\", \"budget\": \"4KiB\"}",
                       "continues with the budget that it had");
        json_decref(ask(&t.f, "job", "{\"job\": \"result\", \"budget\": \"75%\"}", &err));
        assert_ok(err);
        json_t *doc = wait_for_summary(&t.w);
        const json_t *a = json_object_get(t.whole, "history"), *b = json_object_get(doc, "history");
        assert_int_equal(json_array_size(a), json_array_size(b));
        for (size_t k = 0; k < 15; k++) {
            double x = json_number_value(json_array_get(json_array_get(a, k), 0)),
                   y = json_number_value(json_array_get(json_array_get(b, k), 0));
            if (k < 3 ? x != y : fabs(x - y) > 1e-3 * fabs(x) + 1e-5) {
                fail_msg("%s: loss %zu is %g, under another budget %g", all[i]->model, k, x, y);
            }
        }
        assert_true(json_integer_value(json_object_get(doc, "budget_bytes")) <=
                    peak * 3 / 4 + 4096);
        assert_true(json_integer_value(json_object_get(doc, "peak_bytes")) < peak);
        json_decref(doc);
        end(&t);
    }
}

// What the page draws: no more losses than it has room for, the streams of a step, and a log's
// lines, as many as are asked for.
static void losses_are_thinned_and_steps_measured(void **state)
{
    job_test t;
    hth_err err;
    begin(&t, &mlp, "");
    json_t *whole = wait_for_summary(&t.w), *a = json_object_get(whole, "history");
    json_t *doc = ask(&t.f, "job", "{\"job\": \"result\", \"points\": 4}", &err);
    assert_ok(err);
    json_t *b = json_object_get(doc, "history");
    size_t n = json_array_size(a), every = (n + 3) / 4;
    assert_int_equal(json_integer_value(json_object_get(doc, "every")), every);
    assert_true(json_array_size(b) <= 5);
    for (size_t i = 0; i < json_array_size(b); i++) {
        size_t step = i * every < n ? i * every : n - 1;
        assert_true(fabs(json_number_value(json_array_get(json_array_get(b, i), 0)) -
                         json_number_value(json_array_get(json_array_get(a, step), 0))) < 1e-6);
    }
    json_decref(doc);
    json_decref(whole);
    expect_refusal(&t.f, "logs", "{\"job\": \"result\", \"max\": 0}", "1 at least");
    doc = ask(&t.f, "logs", "{\"job\": \"result\", \"max\": 1}", &err);
    assert_ok(err);
    assert_int_equal(json_array_size(json_object_get(doc, "lines")), 1);
    json_decref(doc);
    doc = ask(&t.f, "timeline", "{}", &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(doc, "job")), "result");
    json_int_t step = json_integer_value(json_object_get(doc, "step"));
    assert_true(step >= 3 && step <= (json_int_t)n);
    assert_true(json_array_size(json_object_get(doc, "bars")) > 5);
    json_decref(doc);
    end(&t);
}

static atomic_int warned; // that a job is canceled without a checkpoint

static void listens_for_loss(void *ctx, const hth_log_record *record)
{
    warned += strstr(record->text, "job 'result' is canceled") != NULL;
}

// expect_canceled cancels the job, which can be resumed only where `step` steps are saved.
static void expect_canceled(fixture *f, json_int_t step)
{
    char why[80];
    hth_err err;
    json_t *meta = NULL, *row = ask(f, "cancel", "{\"job\": \"result\"}", &err);
    assert_ok(err);
    snprintf(why, sizeof why,
             step > 0 ? "job 'result' was canceled after step %lld, which is saved"
                      : "job 'result' was canceled",
             (long long)step);
    assert_string_equal(json_string_value(json_object_get(row, "why")), why);
    assert_int_equal(json_is_true(json_object_get(row, "resumable")), step > 0);
    json_decref(row);
    err = hth_checkpoint_find(f->store, "result", &meta);
    assert_int_equal(err, step > 0 ? HTH_OK : HTH_ENOENT);
    assert_int_equal(json_integer_value(json_object_get(meta, "step")), step);
    json_decref(meta);
}

// What is canceled before its first step has nothing to be resumed from, and nobody is warned that
// it is lost: while it waits, and when all that there is of it is that it was accepted. The first
// step is one.
static void jobs_without_a_step_leave_nothing(void **state)
{
    job_test t;
    double want[STEPS];
    fixture_open(&t.f, "cpu:mem=256MiB,threads=2");
    prepare(&t.f, &mlp, t.data);
    json_t *q;
    call c;
    warned = 0;
    hth_log_sink(listens_for_loss, NULL);
    char *text = job_waits(&t, &c);
    expect_canceled(&t.f, 0);
    assert_err(call_wait(&c), HTH_ECANCELED, "job 'result' was canceled");
    witness_let_go();
    assert_ok(call_wait(&t.w.c));
    hth_free(t.w.c.r.json);
    free(text);
    free(t.text);
    for (int step = 0; step <= 1; step++) {
        q = arguments_of(&mlp, t.data, step > 0 ? "{\"id\": 7}" : "{\"id\": 6}", want);
        assert_ok(hth_checkpoint_accept(t.f.store, "result", q));
        q = json_pack("{s:o, s:i, s:i, s:[], s:[]}", "job", q, "step", step, "steps", STEPS,
                      "history", "held_out");
        char *meta = json_dumps(q, JSON_COMPACT);
        assert_ok(hth_checkpoint_put(t.f.store, "result" HTH_CHECKPOINT_TAIL, meta, NULL, 0));
        json_decref(q);
        free(meta);
        expect_canceled(&t.f, step);
    }
    hth_log_sink(NULL, NULL);
    assert_int_equal(warned, 0);
    fixture_close(&t.f);
}

static atomic_int heard; // lines about the job that cannot go on

static void listens(void *ctx, const hth_log_record *record)
{
    heard += strstr(record->text, "interrupted job 'bad': job 'bad' has no checkpoint") != NULL;
}

// One interrupted job that cannot be read is told of, and those after it go on.
static void each_job_that_cannot_go_on_is_told_of(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_put_result result;
    hth_manifest m;
    char meta[] = "{\"job\":{\"save-as\":\"bad\",\"id\":1},\"step\""; // and no more
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    assert_ok(hth_store_put(f.store, "bad" HTH_CHECKPOINT_TAIL, "none", 4, meta, NULL, 0, NULL,
                            NULL, &result));
    json_t *args = arguments_of(&mlp, data, "{\"id\": 2}", want);
    assert_ok(hth_checkpoint_accept(f.store, "result", args));
    json_decref(args);
    hth_engine_close(f.engine);
    hth_log_sink(listens, NULL);
    hth_engine_config config = {
        .device = "cpu:mem=256MiB,threads=2", .resume = true, .event = events_event};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    for (uint64_t seen = 0; hth_store_get(f.store, "result", 0, &m) == HTH_ENOENT;) {
        events_wait(&seen);
    }
    hth_manifest_fini(&m);
    hth_log_sink(NULL, NULL);
    assert_int_equal(heard, 1);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paused_jobs_repeat_the_losses),
        cmocka_unit_test(paused_jobs_stay_paused),
        cmocka_unit_test(paused_jobs_outlive_their_client),
        cmocka_unit_test(jobs_that_wait_take_no_older_ones_checkpoint),
        cmocka_unit_test(budgets_change_between_steps),
        cmocka_unit_test(jobs_without_a_step_leave_nothing),
        cmocka_unit_test(each_job_that_cannot_go_on_is_told_of),
        cmocka_unit_test(losses_are_thinned_and_steps_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
