// SPDX-License-Identifier: Apache-2.0
// Jobs that end before their time: what is kept of them, and that they go on as if they had not.
#include "server/train_ended.h"
#include "tests/train_job.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static void stop_at_seven(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{' && done == 7) {
        r->canceled = true;
    }
}

// A job that ends behind step 7 goes on from step 6 and has, bit by bit, the losses of one that ran
// through: order of the samples, a shorter last batch, optimizer state, running statistics.
static void a_checkpoint_repeats_the_losses(void **state)
{
    static const char more[] = "{\"batch\": 5, \"epochs\": 3, \"no-shuffle\": false, "
                               "\"seed\": 3, \"schedule\": \"cosine\", "
                               "\"checkpoint-every\": 3, \"resume\": true, \"lr\": 0.01}";
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &unet, data);
    json_t *whole = train(&f, arguments_of(&unet, data, more, want), &err);
    assert_non_null(whole);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    json_t *q = arguments_of(&unet, data, more, want);
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.query = "train", .arguments = text, .progress = stop_at_seven}};
    assert_int_equal(call_run(f.engine, &c), HTH_ECANCELED);
    assert_non_null(strstr(hth_err_detail(), "the checkpoint of step 6 is kept"));
    free(text);
    assert_ok(hth_store_get(f.store, "result.checkpoint", 0, &m));
    int version = m.version;
    hth_manifest_fini(&m);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", version - 1, &m), HTH_ENOENT);
    json_object_set_new(q, "lr", json_real(0.5));
    assert_null(train(&f, q, &err));
    assert_non_null(strstr(hth_err_detail(), "of another job: 'lr'"));
    json_t *rest = train(&f, arguments_of(&unet, data, more, want), &err);
    assert_non_null(rest);
    json_t *a = json_object_get(whole, "history"), *b = json_object_get(rest, "history");
    assert_int_equal(json_array_size(a), 15);
    assert_int_equal(json_array_size(b), 15);
    for (size_t i = 0; i < 15; i++) {
        double x = json_number_value(json_array_get(json_array_get(a, i), 0)),
               y = json_number_value(json_array_get(json_array_get(b, i), 0));
        if (x != y) {
            fail_msg("loss %zu is %.9g, after a checkpoint %.9g", i, x, y);
        }
    }
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    json_decref(whole);
    json_decref(rest);
    fixture_close(&f);
}

static void expect_jobs(fixture *f, size_t n)
{
    hth_err err;
    json_t *jobs = ask(f, "jobs", "{}", &err);
    size_t live = 0, i;
    json_t *row;
    assert_true(json_is_array(jobs));
    json_array_foreach(jobs, i, row)
    {
        live += json_is_null(json_object_get(row, "id"));
    }
    assert_int_equal(live, n);
    json_decref(jobs);
}

// A job that is gone on with by its name ends as if it had not stopped: behind an epoch's end, in
// one, with Adam's moments, running statistics and dropout's random numbers.
static void jobs_go_on_by_name(void **state)
{
    static const struct {
        const training *t;
        const char *every;
        int stop_at, saved;
    } cuts[] = {
        {&mobile, "4", 7, 5}, {&mobile, "4", 9, 8}, {&encoder, "100", 14, 10}, {&mlp, "1", 1, 1}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        fixture f;
        char data[200], more[300];
        double want[STEPS];
        hth_err err;
        fixture_open(&f, "cpu:mem=256MiB,threads=2");
        prepare(&f, cuts[i].t, data);
        const char *base = "\"no-shuffle\": false, \"seed\": 7, \"batch\": 5, \"epochs\": 3, "
                           "\"schedule\": \"cosine\", \"warmup\": 2";
        snprintf(more, sizeof more, "{%s, \"save-as\": \"whole\"}", base);
        json_t *whole = train(&f, arguments_of(cuts[i].t, data, more, want), &err);
        assert_non_null(whole);
        snprintf(more, sizeof more, "{%s, \"checkpoint-every\": %s}", base, cuts[i].every);
        train_and_leave(&f, arguments_of(cuts[i].t, data, more, want), cuts[i].stop_at);
        expect_jobs(&f, 1);
        json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
        assert_int_equal(json_integer_value(json_object_get(job, "step")), cuts[i].saved);
        assert_int_equal(json_integer_value(json_object_get(job, "steps")), 15);
        assert_string_equal(json_string_value(json_object_get(job, "state")), "stopped");
        json_decref(job);
        json_t *rest = train(&f, json_pack("{s:s}", "job", "result"), &err);
        if (rest == NULL) {
            fail_msg("%s", hth_err_detail());
        }
        same_losses(whole, rest, 15);
        same_tensors(&f, "whole", "result");
        expect_jobs(&f, 0);
        json_decref(rest);
        json_decref(whole);
        fixture_close(&f);
    }
}

// A job that fails keeps its last checkpoint; canceled by its number it leaves nothing.
static void failed_jobs_keep_their_checkpoint(void **state)
{
    fixture f;
    char data[200];
    hth_err err;
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    expect(&f, &image_net, data, "{\"lr\": 1e4, \"weight-decay\": 1e4, \"checkpoint-every\": 1}",
           "training stops, the checkpoint of step ");
    json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    const char *why = strstr(json_string_value(json_object_get(job, "why")), "step ");
    long long lost, kept;
    assert_non_null(why);
    assert_int_equal(sscanf(why, "step %lld", &lost), 1);
    assert_int_equal(sscanf(strstr(why, "the checkpoint"), "the checkpoint of step %lld", &kept),
                     1);
    assert_int_equal(json_integer_value(json_object_get(job, "step")), kept);
    // A step from it had a finite loss: the one behind it, of the very state that was lost, is
    // gone.
    assert_true(lost > 2 && kept == lost - 2);
    json_decref(job);
    json_t *resumed = json_pack("{s:s}", "job", "result");
    assert_null(train(&f, resumed, &err)); // ends at the same step
    assert_non_null(strstr(hth_err_detail(), "training stops"));
    assert_int_equal(sscanf(strstr(hth_err_detail(), "step "), "step %lld", &kept), 1);
    assert_int_equal(kept, lost);
    json_t *q = json_pack("{s:s, s:s}", "job", "result", "schedule", "cosine");
    assert_null(train(&f, q, &err));
    assert_non_null(strstr(hth_err_detail(), "of another job: 'schedule'"));
    assert_ok(hth_store_get(f.store, "result.checkpoint", 0, &m));
    hth_manifest_fini(&m);
    json_decref(ask(&f, "cancel", "{\"job\": \"result\"}", &err));
    assert_ok(err);
    expect_jobs(&f, 0);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    assert_string_equal(json_string_value(json_object_get(job, "state")), "canceled");
    json_decref(job);
    assert_null(ask(&f, "cancel", "{\"job\": \"result\"}", &err));
    assert_non_null(strstr(hth_err_detail(), "has ended already"));
    assert_null(train(&f, json_pack("{s:s}", "job", "result"), &err));
    assert_non_null(strstr(hth_err_detail(), "job 'result' has no checkpoint"));
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    fixture_close(&f);
}

// From step 3 on no file takes anything, and each step gives a checkpoint the time to fail.
static void full_from_three(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{' && done >= 3) {
        struct rlimit limit;
        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = 1;
        setrlimit(RLIMIT_FSIZE, &limit);
        usleep(100000);
    }
}

// Where a checkpoint cannot be written the job says why, not that there is none.
static void checkpoints_that_fail_say_why(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    struct rlimit was;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *q = arguments_of(&mlp, data, "{\"batch\": 1, \"checkpoint-every\": 4}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.query = "train", .arguments = text, .progress = full_from_three}};
    getrlimit(RLIMIT_FSIZE, &was);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    hth_err err = call_run(f.engine, &c);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, before);
    assert_int_not_equal(err, HTH_OK);
    assert_non_null(strstr(hth_err_detail(), "File too large"));
    hth_free(c.r.json);
    free(text);
    json_decref(q);
    fixture_close(&f);
}

// An engine that ends takes its jobs along; the next one goes on with them, unasked. One that is
// canceled at work is gone.
static void engines_go_on_with_jobs(void **state)
{
    fixture f;
    witness w;
    char data[200], *text;
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    json_decref(train(&f, arguments_of(&image_net, data, "{\"save-as\": \"whole\"}", want), &err));
    json_t *q = arguments_of(&image_net, data, "{\"checkpoint-every\": 2}", want);
    text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    train_three_steps(&f, &w, text);
    json_t *row = ask(&f, "cancel", "{\"job\": \"result\"}", &err);
    assert_int_equal(json_integer_value(json_object_get(row, "step")), 3);
    json_decref(row);
    assert_true(w.c.finished);
    assert_int_equal(w.c.r.err, HTH_ECANCELED);
    expect_jobs(&f, 0);
    train_three_steps(&f, &w, text);
    close_while_held(&f);
    assert_true(w.c.finished);
    assert_int_equal(w.c.r.err, HTH_ECANCELED);
    put(f.store, "net_momentum", "tests/data/train/net_clip.onnx"); // not what the job trains
    put(f.store, "net_momentum", "tests/data/train/mlp_sgd.onnx");
    free(text);
    hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2", .resume = true};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    bool ended = false;
    for (int i = 0; i < 12000 && !ended; i++) {
        json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
        ended = strcmp(json_string_value(json_object_get(job, "state")), "finished") == 0;
        json_decref(job);
        usleep(10000);
    }
    assert_true(ended);
    same_tensors(&f, "whole", "result");
    fixture_close(&f);
}

// What ended is kept with its losses: by name the last one, by number each, and in the next engine,
// too.
static void ended_jobs_are_kept(void **state)
{
    static const char *const words[] = {"failed", "finished"};
    fixture f;
    char data[200], name[40];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *doc = train(&f, arguments_of(&mlp, data, "{}", want), &err);
    assert_non_null(doc);
    assert_null(
        train(&f, arguments_of(&mlp, data, "{\"lr\": 1e6, \"weight-decay\": 1e6}", want), &err));
    assert_null(train(&f, arguments_of(&mlp, data, "{\"lr\": -1}", want), &err)); // is no job
    for (int engine = 0; engine < 2; engine++) {
        json_t *jobs = ask(&f, "jobs", "{}", &err);
        assert_int_equal(json_array_size(jobs), 2);
        for (size_t i = 0; i < 2; i++) {
            const json_t *row = json_array_get(jobs, i);
            assert_string_equal(json_string_value(json_object_get(row, "state")), words[i]);
            assert_int_equal(json_integer_value(json_object_get(row, "id")), 2 - i);
            assert_true(json_integer_value(json_object_get(row, "ended_ns")) > 1000000000000000000);
            assert_null(json_object_get(row, "history"));
        }
        json_decref(jobs);
        json_t *last = ask(&f, "job", "{\"job\": \"result\"}", &err),
               *first = ask(&f, "job", "{\"job\": \"1\"}", &err);
        assert_non_null(strstr(json_string_value(json_object_get(last, "why")), "training stops"));
        assert_string_equal(json_string_value(json_object_get(first, "job")), "result");
        same_losses(doc, first, STEPS);
        json_decref(last);
        json_decref(first);
        assert_null(ask(&f, "job", "{\"job\": \"3\"}", &err));
        assert_non_null(strstr(hth_err_detail(), "there is no job '3'"));
        hth_engine_close(f.engine);
        hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2", .resume = true};
        assert_ok(hth_engine_open(&config, f.store, &f.engine));
    }
    json_decref(doc);
    json_t *history = json_array(), *row, *list = json_array();
    for (int i = 0; i < 25001; i++) {
        json_array_append_new(history, json_pack("[i, i]", i, 0));
    }
    doc = json_pack("{s:o}", "history", history);
    for (int i = 0; i < HTH_ENDED_JOBS + 5; i++) {
        snprintf(name, sizeof name, "job%d", i);
        row = json_pack("{s:s}", "job", name);
        assert_ok(hth_ended_add(f.store, row, i == HTH_ENDED_JOBS + 4 ? doc : NULL));
        json_decref(row);
    }
    assert_ok(hth_ended_list(f.store, list));
    assert_int_equal(json_array_size(list), HTH_ENDED_JOBS);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "id")), 107);
    assert_int_equal(hth_ended_find(f.store, "job4", false, &row), HTH_ENOENT);
    assert_ok(hth_ended_find(f.store, name, true, &row));
    assert_int_equal(json_integer_value(json_object_get(row, "every")), 3);
    history = json_object_get(row, "history");
    assert_int_equal(json_array_size(history), 8335); // 0, 3, .. 24999, and the last
    assert_int_equal(json_integer_value(json_array_get(json_array_get(history, 8334), 0)), 25000);
    json_decref(row);
    json_decref(list);
    json_decref(doc);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_repeats_the_losses),
        cmocka_unit_test(jobs_go_on_by_name),
        cmocka_unit_test(failed_jobs_keep_their_checkpoint),
        cmocka_unit_test(checkpoints_that_fail_say_why),
        cmocka_unit_test(engines_go_on_with_jobs),
        cmocka_unit_test(ended_jobs_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
