// SPDX-License-Identifier: Apache-2.0
// Results that held-out data choose: --keep best publishes the parameters of the best epoch, which
// survive a checkpoint, and --patience ends a job that gets no better. The rate triples every
// epoch, so that a job first learns and then forgets: a shorter one has the best epoch's
// parameters.
#include "tests/rig/train_job.h"

#define EPOCHS 8

static const char base[] = "\"no-shuffle\": false, \"seed\": 5, \"batch\": 5, \"lr\": 0.02, "
                           "\"schedule\": \"exponential:3\"";

static json_t *run(fixture *f, const char *data, int epochs, const char *more)
{
    char text[600];
    double want[STEPS];
    hth_err err;
    snprintf(text, sizeof text, "{%s, \"eval\": \"%s\", \"epochs\": %d%s}", base, data, epochs,
             more);
    json_t *doc = train(f, arguments_of(&mlp_bce, data, text, want), &err);
    if (doc == NULL) {
        fail_msg("%s: %s", text, hth_err_detail());
    }
    return doc;
}

static int number(const json_t *doc, const char *key)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_integer(v) ? (int)json_integer_value(v) : -1;
}

// The epoch whose `key` is best, the first of several.
static int best_epoch(const json_t *doc, const char *key, double sign)
{
    const json_t *held = json_object_get(doc, "held_out");
    size_t best = 0;
    for (size_t i = 1; i < json_array_size(held); i++) {
        double v = json_number_value(json_object_get(json_array_get(held, i), key)),
               b = json_number_value(json_object_get(json_array_get(held, best), key));
        best = v * sign < b * sign ? i : best;
    }
    return (int)best + 1;
}

static void the_best_epoch_is_the_result(void **state)
{
    static const char *const ways[] = {"", "", ", \"budget\": \"85%\", \"spill\": \"/tmp\""};
    fixture f;
    char data[200];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp_bce, data);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        char more[200];
        snprintf(more, sizeof more, ", \"keep\": \"%s\"%s", k == 1 ? "best:accuracy" : "best",
                 ways[k]);
        json_t *doc = run(&f, data, EPOCHS, more);
        int best = k == 1 ? best_epoch(doc, "accuracy", -1) : best_epoch(doc, "loss", 1);
        print_message("# best is epoch %d of %d\n", best, EPOCHS);
        assert_true(best < EPOCHS && (k == 1 || best > 1));
        assert_int_equal(number(doc, "best_epoch"), best);
        assert_int_equal(number(doc, "best_step"), best * 5);
        assert_int_equal(number(doc, "steps"), EPOCHS * 5);
        assert_true(json_is_false(json_object_get(doc, "stopped_early")));
        snprintf(more, sizeof more, ", \"save-as\": \"short\"%s", ways[k]);
        json_decref(run(&f, data, best, more));
        same_tensors(&f, "short", "result");
        json_decref(doc);
    }
    json_t *last = run(&f, data, EPOCHS, ", \"save-as\": \"last\"");
    assert_int_equal(number(last, "best_epoch"), -1); // nobody asked
    hth_manifest a, b;
    assert_ok(hth_store_get(f.store, "last", 0, &a));
    assert_ok(hth_store_get(f.store, "result", 0, &b));
    assert_false(hth_id_equal(&a.tensors[0].id, &b.tensors[0].id));
    hth_manifest_fini(&a);
    hth_manifest_fini(&b);
    json_decref(last);
    fixture_close(&f);
}

// Interrupted after the best epoch, in the middle of one and at its end, before there is a best
// one: the end is that of a job that was not.
static void a_checkpoint_has_the_best_epoch(void **state)
{
    static const int cuts[] = {3, 18, 23, 31};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        fixture f;
        char data[200], more[600];
        double want[STEPS];
        hth_err err;
        fixture_open(&f, "cpu:mem=256MiB,threads=2");
        prepare(&f, &mlp_bce, data);
        json_t *whole = run(&f, data, EPOCHS, ", \"keep\": \"best\", \"save-as\": \"whole\"");
        snprintf(more, sizeof more,
                 "{%s, \"eval\": \"%s\", \"epochs\": %d, \"keep\": \"best\", "
                 "\"checkpoint-every\": 2}",
                 base, data, EPOCHS);
        train_and_leave(&f, arguments_of(&mlp_bce, data, more, want), cuts[i]);
        json_t *rest = train(&f, json_pack("{s:s}", "job", "result"), &err);
        if (rest == NULL) {
            fail_msg("%s", hth_err_detail());
        }
        same_losses(whole, rest, EPOCHS * 5);
        assert_true(
            json_equal(json_object_get(whole, "held_out"), json_object_get(rest, "held_out")));
        assert_int_equal(number(rest, "best_step"), number(whole, "best_step"));
        same_tensors(&f, "whole", "result");
        json_decref(whole);
        json_decref(rest);
        fixture_close(&f);
    }
}

static json_t *told_early; // what the job said of its early end

static void note_early(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    json_t *o = json_loads(what, 0, NULL), *early = json_object_get(o, "early_stop");
    if (early != NULL) {
        assert_null(told_early);
        told_early = json_incref(early);
    }
    json_decref(o);
}

// It ends `patience` epochs after the best one, says so, and goes on to the same end when it was
// interrupted before.
static void patience_ends_a_job(void **state)
{
    fixture f;
    char data[200], more[600];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp_bce, data);
    json_t *whole = run(&f, data, EPOCHS, "");
    int best = best_epoch(whole, "loss", 1), end = best + 2;
    assert_true(end < EPOCHS);
    snprintf(more, sizeof more,
             "{%s, \"eval\": \"%s\", \"epochs\": %d, \"patience\": 2, \"save-as\": \"early\"}",
             base, data, EPOCHS);
    json_t *q = arguments_of(&mlp_bce, data, more, want);
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = note_early}};
    assert_ok(call_run(f.engine, &c));
    json_t *doc = json_loads(c.r.json, 0, NULL);
    assert_int_equal(number(doc, "steps"), end * 5);
    assert_int_equal(number(doc, "best_epoch"), best);
    assert_true(json_is_true(json_object_get(doc, "stopped_early")));
    assert_int_equal(json_array_size(json_object_get(doc, "history")), end * 5);
    assert_int_equal(number(told_early, "epoch"), end);
    assert_int_equal(number(told_early, "best_epoch"), best);
    assert_int_equal(number(told_early, "best_step"), best * 5);
    json_t *job = ask(&f, "job", "{\"job\": \"early\"}", &err);
    assert_string_equal(json_string_value(json_object_get(job, "state")), "finished");
    assert_true(json_is_true(json_object_get(job, "stopped_early")));
    json_decref(job);
    json_decref(run(&f, data, end, ", \"save-as\": \"short\""));
    same_tensors(&f, "short", "early"); // the last parameters, unless the best are to be kept
    json_object_set_new(q, "save-as", json_string("result"));
    json_object_set_new(q, "keep", json_string("best"));
    json_object_set_new(q, "checkpoint-every", json_integer(2));
    train_and_leave(&f, json_incref(q), end * 5 - 1);
    json_t *rest = train(&f, json_pack("{s:s}", "job", "result"), &err);
    assert_non_null(rest);
    assert_int_equal(number(rest, "steps"), end * 5);
    json_decref(run(&f, data, best, ", \"save-as\": \"short\""));
    same_tensors(&f, "short", "result");
    json_decref(rest);
    json_decref(told_early);
    json_decref(whole);
    json_decref(doc);
    json_decref(q);
    free(text);
    hth_free(c.r.json);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_epoch_is_the_result),
        cmocka_unit_test(a_checkpoint_has_the_best_epoch),
        cmocka_unit_test(patience_ends_a_job),
    };
    return cmocka_run_group_tests_name("train_keep", tests, NULL, NULL);
}
