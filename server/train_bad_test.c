// SPDX-License-Identifier: Apache-2.0
// What bad input gets from a training job: a sentence that names what is wrong, before any step
// where it can be known, and nothing lost.
#include "tests/train_job.h"

static void bad_input_is_told(void **state)
{
    fixture f;
    char data[200], other[200];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    expect(&f, &image_net, data, "{\"loss\": \"hinge\"}",
           "loss 'hinge' is none of softmax-xent, mse");
    expect(&f, &image_net, data, "{\"optimizer\": \"lion\"}", "sgd, momentum, adam, adamw");
    expect(&f, &image_net, data, "{\"lr\": -1}", "lr is a number from 0");
    expect(&f, &image_net, data, "{\"batch\": 0}", "batch is a number from 1");
    expect(&f, &image_net, data, "{\"policy\": \"magic\"}", "no policy is called 'magic'");
    expect(&f, &image_net, data, "{\"model\": \"nobody\"}", "nobody");
    expect(&f, &image_net, data, "{\"save-as\": \"a:b\", \"budget\": \"4KiB\"}", "not a version");
    expect(&f, &image_net, data, "{\"data\": \"/nowhere.safetensors\"}", "/nowhere.safetensors");
    expect(&f, &image_net, data, "{\"budget\": \"4KiB\"}", "needs at least");
    expect(&f, &image_net, data, "{\"lr\": 1e6, \"weight-decay\": 1e6}",
           "training stops, nothing is saved");
    expect(&f, &image_net, data, "{\"loss\": \"mse\"}", "targets are");
    const struct {
        int64_t x[3];
        int64_t classes;
        const char *words;
    } bad[] = {{{3, 12, 12}, 9, "out of range: the model has 4 classes"}, {{2, 12, 12}, 4, "'x'"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        writer w = {NULL, NULL, 0};
        int64_t none[1] = {0};
        add_batches(&w, "x", bad[i].x, 4, 0, 0);
        add_batches(&w, "y", none, 1, bad[i].classes, 0);
        snprintf(other, sizeof other, "%s/bad.safetensors", f.dir);
        writer_close(&w, other);
        char more[300];
        snprintf(more, sizeof more, "{\"data\": \"%s\"}", other);
        expect(&f, &image_net, other, more, bad[i].words);
    }
    hth_manifest m;
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT); // nothing was saved
    fixture_close(&f);
}

static void no_progress(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{') {
        fail_msg("a step was run: %s", what);
    }
}

// What can be known before the first step is told before it, and leaves no job.
static void refused_before_any_step(void **state)
{
    static const struct {
        const training *t;
        const char *more, *words;
    } bad[] = {
        {&mlp, "{\"model\": \"no_gradient\"}",
         "node 'pick' (ScatterElements): this reduction has no gradient"},
        {&mlp, "{\"model\": \"no_gradient\", \"freeze\": [\"*\"]}", "there is nothing to train"},
        {&mlp, "{\"model\": \"net_momentum\"}", "'x'"},
        {&image_net, "{\"model\": \"mlp_sgd\", \"loss\": \"mse\"}", "'x'"},
        {&image_net, "{\"loss\": \"mse\"}", "targets are"},
        {&unet, "{\"model\": \"net_momentum\"}", "targets are"},
        {&mlp, "{\"loss\": \"softmax-xent\"}", "targets are"},
    };
    fixture f;
    char data[200];
    double want[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "no_gradient", "tests/data/train/no_gradient.onnx");
    prepare(&f, &mlp, data);
    prepare(&f, &image_net, data);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hth_err err;
        prepare(&f, bad[i].t, data);
        json_t *q = arguments_of(bad[i].t, data, bad[i].more, want);
        char *text = json_dumps(q, JSON_COMPACT);
        call c = {.r = {.query = "train", .arguments = text, .progress = no_progress}};
        err = call_run(f.engine, &c);
        if (err != HTH_EINVAL && err != HTH_ENOTSUP) {
            fail_msg("%s: %s", bad[i].more, hth_err_detail());
        }
        if (strstr(hth_err_detail(), bad[i].words) == NULL) {
            fail_msg("%s: '%s' is not in: %s", bad[i].more, bad[i].words, hth_err_detail());
        }
        free(text);
        json_decref(q);
        json_t *jobs = ask(&f, "jobs", "{}", &err);
        assert_int_equal(json_array_size(jobs), 0);
        json_decref(jobs);
    }
    fixture_close(&f);
}

// The last update is looked at, too. AdamW without eps divides 0 by 0 where a gradient is 0: of the
// positions behind the sequence's end.
static void what_is_lost_is_not_published(void **state)
{
    fixture f;
    char data[200];
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &encoder, data);
    expect(&f, &encoder, data, "{\"batch\": 24, \"eps\": 0}",
           "behind step 1 'p' has elements that are not finite");
    assert_non_null(strstr(hth_err_detail(), "nothing is published, nothing is saved"));
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_input_is_told),
        cmocka_unit_test(refused_before_any_step),
        cmocka_unit_test(what_is_lost_is_not_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
