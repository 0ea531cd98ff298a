// SPDX-License-Identifier: Apache-2.0
// Training jobs through the engine: PyTorch's losses with all memory and with little (the same bits
// over random plans: trainer_plans_test.c), and results that are served.
#include "planner/plan_least_test.h"
#include "engine/train/checkpoint/checkpoint.h"
#include "tests/rig/train_job.h"

static void check_training(const training *t)
{
    static const char *const ways[] = {
        "{}", "{\"policy\": \"keep\"}", "{\"budget\": \"75%\", \"spill\": \"/tmp\"}",
        "{\"budget\": \"70%\"}", "{\"budget\": \"80%\", \"policy\": \"str-auto\"}"};
    fixture f;
    char data[200];
    double want[STEPS], loss[STEPS], whole[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, t, data);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        hth_err err;
        json_t *doc = train(&f, arguments_of(t, data, ways[k], want), &err);
        if (doc == NULL) {
            fail_msg("%s %s: %s", t->model, ways[k], hth_err_detail());
        }
        json_int_t peak = json_integer_value(json_object_get(doc, "peak_bytes")),
                   budget = json_integer_value(json_object_get(doc, "budget_bytes"));
        assert_true(peak > 0 && peak <= budget);
        losses_of(doc, loss);
        for (int i = 0; i < STEPS; i++) {
            if (fabs(loss[i] - want[i]) > 2e-4 * fabs(want[i]) + 1e-5) {
                fail_msg("%s %s: loss %d is %g, PyTorch's is %g", t->model, ways[k], i, loss[i],
                         want[i]);
            }
        }
        if (k == 0) {
            memcpy(whole, loss, sizeof whole);
        } else if (k == 1) { // the same algorithms: the same bits
            assert_memory_equal(whole, loss, sizeof whole);
        }
        json_decref(doc);
    }
    fixture_close(&f);
}

// The losses of a training, one per step; returns how many.
static int train_losses(fixture *f, const training *t, const char *data, const char *more,
                        double *loss, json_t **memory)
{
    double want[STEPS];
    hth_err err;
    json_t *doc = train(f, arguments_of(t, data, more, want), &err), *history;
    if (doc == NULL) {
        fail_msg("%s %s: %s", t->model, more, hth_err_detail());
    }
    history = json_object_get(doc, "history");
    int n = (int)json_array_size(history);
    for (int i = 0; i < n; i++) {
        loss[i] = json_number_value(json_array_get(json_array_get(history, (size_t)i), 0));
    }
    *memory = doc;
    return n;
}

static void compare_losses(const char *model, const char *way, const double *got,
                           const double *want, int n, double tolerance)
{
    for (int i = 0; i < n; i++) {
        if (fabs(got[i] - want[i]) > tolerance * (fabs(want[i]) + 0.1)) {
            fail_msg("%s %s: loss %d is %.9g, not %.9g", model, way, i, got[i], want[i]);
        }
    }
}

// A batch norm whose tensors do not lie in the budget together is computed in slices of the batch:
// PyTorch's losses, where the step was refused. So is the least memory that a refusal names.
static void a_batch_norm_is_sliced(void **state)
{
    static const char *const ways[] = {"{\"budget\": \"60%\"}",
                                       "{\"budget\": \"60%\", \"spill\": \"/tmp\"}"};
    fixture f;
    char data[200];
    double want[STEPS], loss[STEPS], whole[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &volume, data);
    json_t *doc;
    assert_int_equal(train_losses(&f, &volume, data, "{}", whole, &doc), STEPS);
    json_int_t all = json_integer_value(json_object_get(doc, "budget_bytes"));
    json_decref(doc);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        assert_int_equal(train_losses(&f, &volume, data, ways[k], loss, &doc), STEPS);
        json_int_t budget = json_integer_value(json_object_get(doc, "budget_bytes"));
        assert_true(budget < all);
        assert_true(json_integer_value(json_object_get(doc, "peak_bytes")) <= budget);
        json_decref(doc);
        json_decref(arguments_of(&volume, data, "{}", want));
        compare_losses(volume.model, ways[k], loss, want, STEPS, 2e-4);
        compare_losses(volume.model, ways[k], loss, whole, STEPS, 1e-5);
    }
    fixture_close(&f);
}

// A batch in parts has the losses of the whole batch, PyTorch's: also where the epoch's last batch
// is not a multiple of it, with state that leaves for memory or for a file, and with the number of
// parts left open. Batch norm apart, whose statistics are those of a part.
static void parts_add_up(void **state)
{
    static const char *const ways[] = {
        "{\"batch\": 10, \"epochs\": 2, \"accumulate\": 2}",
        "{\"batch\": 10, \"epochs\": 2, \"accumulate\": \"5\", \"budget\": "
        "\"85%\"}",
        "{\"batch\": 10, \"epochs\": 2, \"accumulate\": 5, \"budget\": \"85%\", "
        "\"spill\": "
        "\"/tmp\"}",
        "{\"batch\": 10, \"epochs\": 2, \"accumulate\": \"auto\", \"budget\": "
        "\"75%\"}"};
    static const char *const exact[] = {"{\"accumulate\": 2}",
                                        "{\"accumulate\": 4, \"budget\": \"90%\"}"};
    static const training *const models[] = {&encoder, &mlp, &mlp_inference};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fixture f;
        char data[200];
        double whole[2 * STEPS], parts[2 * STEPS];
        json_t *doc;
        const training *t = models[m];
        fixture_open(&f, "cpu:mem=256MiB,threads=2");
        prepare(&f, t, data);
        int n = train_losses(&f, t, data, "{\"batch\": 10, \"epochs\": 2}", whole, &doc);
        assert_int_equal(n, 6); // 10, 10, 4
        json_decref(doc);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            assert_int_equal(train_losses(&f, t, data, ways[k], parts, &doc), n);
            json_int_t accumulate = json_integer_value(json_object_get(doc, "accumulate"));
            static const json_int_t most[] = {2, 5, 5, 2};
            assert_in_range(accumulate, k == 3 ? 1 : most[k], most[k]);
            assert_true(json_integer_value(json_object_get(doc, "peak_bytes")) <=
                        json_integer_value(json_object_get(doc, "budget_bytes")));
            json_decref(doc);
            compare_losses(t->model, ways[k], parts, whole, n, 1e-5);
        }
        for (size_t k = 0; k < sizeof exact / sizeof *exact; k++) {
            json_decref(arguments_of(t, data, "{}", whole));
            assert_int_equal(train_losses(&f, t, data, exact[k], parts, &doc), STEPS);
            json_decref(doc);
            compare_losses(t->model, exact[k], parts, whole, STEPS, 2e-4);
        }
        expect(&f, t, data, "{\"accumulate\": 3}", "cannot be split into 3 equal parts");
        expect(&f, t, data, "{\"accumulate\": \"some\"}", "accumulate is 'auto' or");
        fixture_close(&f);
    }
}

// A batch whose samples depend on each other is never taken in parts: not when that is asked for,
// nor where the number of parts is left open.
static void dependent_samples_stay_together(void **state)
{
    static const char *const whole[] = {"{\"model\": \"centered\"}",
                                        "{\"model\": \"centered\", \"accumulate\": \"auto\"}"};
    fixture f;
    char data[200];
    double loss[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "centered", "tests/data/train/centered.onnx");
    prepare(&f, &image_net, data);
    expect(&f, &image_net, data, "{\"model\": \"centered\", \"accumulate\": 2}",
           "a batch cannot be split into 2 parts, because the model's samples are not independent: "
           "node "
           "'ReduceMean_3' (ReduceMean) reduces over axis 0, which holds the samples");
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++) {
        json_t *doc;
        assert_int_equal(train_losses(&f, &image_net, data, whole[k], loss, &doc), STEPS);
        assert_int_equal(json_integer_value(json_object_get(doc, "accumulate")), 1);
        json_decref(doc);
    }
    fixture_close(&f);
}

static json_t *ask_curve(fixture *f, const char *arguments)
{
    call c = {.r = {.command = HTH_COMMAND_CURVE, .arguments = arguments}};
    assert_ok(call_run(f->engine, &c));
    json_t *doc = json_loads(c.r.json, 0, NULL);
    hth_free(c.r.json);
    return doc;
}

static double point_number(const json_t *curve, size_t i, const char *key)
{
    return json_number_value(json_object_get(json_array_get(curve, i), key));
}

#define CHANGE_STEPS    24 // of an epoch, at most
#define MORE_PERCENT    106
#define PARTS_TOLERANCE 1e-4
#define PATIENT         "\"plan-ms\": 300" // what is said to fit has to be found again

// In parts a batch can be planned for less memory than as a whole, and a job takes that choice.
// What a refusal says of another number of samples or parts is true: it fits in the bytes that are
// named, and, where any does, in the budget. In a little more it fits as well, though the step that
// updates may keep so much then that the other steps do not fit next to it.
static void changes_fit(fixture *f, const training *t, const char *data, unsigned long long budget)
{
    static const char *const what[] = {"batch", "accumulate"};
    char more[200], flag[20], why[512];
    double loss[3 * CHANGE_STEPS];
    call c = {.r = {.command = HTH_COMMAND_TRAIN}};
    snprintf(more, sizeof more, "{\"batch\": 24, \"budget\": \"%llu\", " PATIENT "}", budget);
    json_t *q = arguments_of(t, data, more, loss), *doc;
    char *text = json_dumps(q, JSON_COMPACT);
    c.r.arguments = text;
    assert_int_equal(call_run(f->engine, &c), HTH_ETOOBIG);
    snprintf(why, sizeof why, "%s", hth_err_detail());
    free(text);
    json_decref(q);
    for (int i = 0; i < 2; i++) {
        long long number;
        snprintf(flag, sizeof flag, "--%s", what[i]);
        unsigned long long bytes = pl_change(why, flag, &number);
        assert_true(number > 0 && bytes > 0 && bytes <= budget);
        int64_t batch = i == 0 ? number : 24;
        double want[3 * CHANGE_STEPS];
        snprintf(more, sizeof more, "{\"batch\": %lld, \"accumulate\": %lld, \"epochs\": 3}",
                 (long long)batch, i == 0 ? 1 : number);
        int n = train_losses(f, t, data, more, want, &doc);
        json_decref(doc);
        for (unsigned percent = 100; percent <= MORE_PERCENT; percent += 3) {
            snprintf(more, sizeof more,
                     "{\"batch\": %lld, \"accumulate\": %lld, \"epochs\": 3, \"budget\": "
                     "\"%llu\", " PATIENT "}",
                     (long long)batch, i == 0 ? 1 : number, bytes * percent / 100);
            assert_int_equal(train_losses(f, t, data, more, loss, &doc), n);
            compare_losses(t->model, more, loss, want, n, PARTS_TOLERANCE);
            json_decref(doc);
        }
    }
}

static void parts_save_memory(void **state)
{
    fixture f;
    long long divided;
    char data[200], more[200];
    double loss[2 * STEPS];
    json_t *doc;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &unet, data);
    json_t *whole = ask_curve(&f, "{\"model\": \"unet_adam\", \"batch\": 24, \"plan-ms\": 50}");
    json_t *parts = ask_curve(&f, "{\"model\": \"unet_adam\", \"batch\": 24, \"plan-ms\": 50, "
                                  "\"accumulate\": \"auto\"}");
    size_t n = json_array_size(parts);
    assert_true(n > 1 && point_number(parts, 0, "accumulate") > 1);
    assert_true(point_number(whole, 0, "accumulate") == 1);
    assert_true(point_number(parts, 0, "budget_bytes") < point_number(whole, 0, "budget_bytes"));
    for (size_t i = 1; i < n; i++) {
        assert_true(point_number(parts, i, "time_ms") <= point_number(parts, i - 1, "time_ms"));
        assert_true(point_number(parts, i, "device_bytes") <=
                    point_number(parts, i, "budget_bytes"));
    }
    snprintf(
        more, sizeof more,
        "{\"batch\": 24, \"epochs\": 3, \"accumulate\": \"auto\", \"budget\": \"%.0f\", " PATIENT
        "}",
        point_number(parts, 0, "budget_bytes") * 1.1);
    assert_int_equal(train_losses(&f, &unet, data, more, loss, &doc), 3);
    assert_true(isfinite(loss[2]));
    bool many = json_integer_value(json_object_get(doc, "accumulate")) > 1;
    // For what a plan is said to be found is enough, and so is what is said to help.
    call c = {.r = {.command = HTH_COMMAND_TRAIN}};
    json_t *q =
        arguments_of(&unet, data, "{\"batch\": 24, \"budget\": \"100KB\", " PATIENT "}", loss);
    char *text = json_dumps(q, JSON_COMPACT);
    c.r.arguments = text;
    assert_int_equal(call_run(f.engine, &c), HTH_ETOOBIG);
    free(text);
    json_decref(q);
    unsigned long long need = pl_found(hth_err_detail());
    unsigned long long less = pl_change(hth_err_detail(), "--accumulate", &divided);
    assert_true(less > 0 && less < need && divided > 1 && 24 % divided == 0);
    assert_true(many || point_number(parts, 0, "budget_bytes") * 1.1 > (double)need * 0.9);
    json_decref(doc);
    snprintf(more, sizeof more, "{\"batch\": 24, \"budget\": \"%llu\", " PATIENT "}", need);
    assert_int_equal(train_losses(&f, &unet, data, more, loss, &doc), 1);
    json_decref(doc);
    snprintf(more, sizeof more,
             "{\"batch\": 24, \"accumulate\": %lld, \"budget\": \"%llu\", " PATIENT "}", divided,
             less);
    assert_int_equal(train_losses(&f, &unet, data, more, loss, &doc), 1);
    json_decref(doc);
    changes_fit(&f, &unet, data, need / 10 * 8);
    // A job that goes on does so in the same number of parts, with more memory too.
    static const char auto_parts[] = "\"batch\": 24, \"epochs\": 3, \"accumulate\": \"auto\", "
                                     "\"checkpoint-every\": 1, \"save-as\": \"cut\"";
    snprintf(more, sizeof more, "{%s, \"budget\": \"%.0f\"}", auto_parts,
             point_number(parts, 0, "budget_bytes") * 1.1);
    train_and_leave(&f, arguments_of(&unet, data, more, loss), 2);
    json_t *begun;
    assert_ok(hth_checkpoint_find(f.store, "cut", &begun));
    snprintf(more, sizeof more, "{%s, \"resume\": true}", auto_parts);
    assert_int_equal(train_losses(&f, &unet, data, more, loss, &doc), 3);
    assert_int_equal(json_integer_value(json_object_get(doc, "accumulate")),
                     json_integer_value(json_object_get(json_object_get(begun, "job"), "parts")));
    json_decref(begun);
    json_decref(doc);
    json_decref(whole);
    json_decref(parts);
    fixture_close(&f);
}

static void losses_are_pytorchs(void **state)
{
    check_training(&mlp);
    check_training(&mlp_inference);
    check_training(&encoder);
    check_training(&image_net);
    check_training(&clipped);
    check_training(&unet);
    check_training(&mobile);
    check_training(&tokens); // the axis of the classes follows from the labels
    check_training(&unet_weighted);
    check_training(&smooth);
    check_training(&image_bce);
    check_training(&mlp_bce);
}

// The weights of labels differ from part to part, and some are ignored: the mean is the whole
// batch's, which is PyTorch's.
static void parts_have_one_mean(void **state)
{
    static const char *const ways[] = {"{\"accumulate\": 2}",
                                       "{\"accumulate\": 4, \"clip\": 1000}"};
    fixture f;
    char data[200];
    double want[STEPS], loss[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &tokens, data);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        hth_err err;
        json_t *doc = train(&f, arguments_of(&tokens, data, ways[k], want), &err);
        if (doc == NULL) {
            fail_msg("%s: %s", ways[k], hth_err_detail());
        }
        losses_of(doc, loss);
        for (int i = 0; i < STEPS; i++) {
            if (fabs(loss[i] - want[i]) > 2e-4 * fabs(want[i])) {
                fail_msg("%s: loss %d is %g, PyTorch's is %g", ways[k], i, loss[i], want[i]);
            }
        }
        json_decref(doc);
    }
    fixture_close(&f);
}

// What was trained is a version like any other, and one of a training export is served as for
// inference: the answer to a sample does not depend on its neighbours in the batch.
static void results_are_served(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    json_t *doc = train(&f, arguments_of(&image_net, data, "{}", want), &err);
    assert_non_null(doc);
    assert_int_equal(json_integer_value(json_object_get(doc, "version")), 1);
    json_decref(doc);
    float x[2 * 432], y[2][8];
    for (int i = 0; i < 2 * 432; i++) {
        x[i] = (float)(i % 37 - 18) / 16;
    }
    for (int n = 1; n <= 2; n++) {
        hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                       .shape = {.rank = 4, .dim = {n, 3, 12, 12}},
                                       .data = x,
                                       .bytes = (size_t)n * 432 * 4}};
        call c = {.r = {.model = "result", .inputs = &in, .n_inputs = 1}};
        assert_ok(call_run(f.engine, &c));
        memcpy(y[n - 1], c.out[0].data, (size_t)n * 16);
        free(c.out[0].data);
    }
    for (int i = 0; i < 4; i++) {
        assert_float_equal(y[0][i], y[1][i], 1e-5);
    }
    fixture_close(&f);
}

// Frozen parameters keep their content ids; the others do not.
static void frozen_parameters_stay(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    hth_manifest before, after;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *doc = train(&f, arguments_of(&mlp, data, "{\"freeze\": [\"0.*\"]}", want), &err);
    assert_non_null(doc);
    json_decref(doc);
    assert_ok(hth_store_get(f.store, "mlp_sgd", 0, &before));
    assert_ok(hth_store_get(f.store, "result", 0, &after));
    assert_int_equal(before.n_tensors, after.n_tensors);
    int frozen = 0, trained = 0;
    for (int i = 0; i < before.n_tensors; i++) {
        bool same = hth_id_equal(&before.tensors[i].id, &after.tensors[i].id);
        assert_int_equal(same, strncmp(before.tensors[i].name, "0.", 2) == 0);
        *(same ? &frozen : &trained) += 1;
    }
    assert_true(frozen == 2 && trained == 4);
    hth_manifest_fini(&before);
    hth_manifest_fini(&after);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_pytorchs),
        cmocka_unit_test(parts_have_one_mean),
        cmocka_unit_test(a_batch_norm_is_sliced),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(dependent_samples_stay_together),
        cmocka_unit_test(parts_save_memory),
        cmocka_unit_test(results_are_served),

        cmocka_unit_test(frozen_parameters_stay),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
