// SPDX-License-Identifier: Apache-2.0
// What bad input gets from a training job: a sentence that names what is wrong, before any step
// where it can be known, and nothing lost.
#include "runtime/catalog.h"
#include "engine/train/checkpoint/checkpoint.h"
#include "tests/rig/train_job.h"

static void bad_input_is_told(void **state)
{
    fixture f;
    char data[200], other[200];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    expect(&f, &image_net, data, "{\"loss\": \"hinge\"}",
           "loss 'hinge' is not one of softmax-xent, mse, bce");
    expect(&f, &image_net, data, "{\"optimizer\": \"lion\"}", "sgd, momentum, adam, adamw");
    expect(&f, &image_net, data, "{\"lr\": -1}", "lr is a number from 0 to 1000000, not -1");
    expect(&f, &image_net, data, "{\"lr\": \"fast\"}", "to 1000000, not \"fast\"");
    expect(&f, &image_net, data, "{\"schedule\": \"cosin\"}", "one-cycle; did you mean 'cosine'?");
    expect(&f, &image_net, data, "{\"schedule\": \"stp:3:0.1\"}", "mean 'step:EPOCHS:GAMMA'?");
    expect(&f, &image_net, data, "{\"policy\": \"chne\"}", "'chne'; did you mean 'chen'? the pol");
    expect(&f, &image_net, data, "{\"budget\": \"abc\"}", "budget: 'abc' is not a size such as");
    expect(&f, &image_net, data, "{\"batch\": 0}", "batch is a number from 1");
    expect(&f, &image_net, data, "{\"policy\": \"magic\"}", "unknown policy 'magic'");
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
    } bad[] = {{{3, 12, 12}, 9, "label 7 of sample 1 is out of range: the model has 4 classes"},
               {{2, 12, 12}, 4, "'x'"}};
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
    int64_t none[STEPS * BATCH], samples[1] = {STEPS * BATCH};
    writer w = {NULL, NULL, 0};
    for (int i = 0; i < STEPS * BATCH; i++) {
        none[i] = -100;
    }
    add_batches(&w, "x", (int64_t[]){3, 12, 12}, 4, 0, 0);
    writer_add(&w, "y", "I64", samples, 1, none, sizeof none);
    writer_close(&w, other);
    char more[300];
    snprintf(more, sizeof more, "{\"data\": \"%s\"}", other);
    expect(&f, &image_net, other, more, "none of the 24 samples has a label: all are -100");
    hth_manifest m;
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT); // nothing was saved
    fixture_close(&f);
}

static void no_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{') {
        fail_msg("a step was run: %s", what);
    }
}

#define NAME_39   "123456789012345678901234567890123456789"
#define LONG_NAME "{\"save-as\": \"" NAME_39 NAME_39 NAME_39 NAME_39 NAME_39 "\"}"

typedef struct refusal {
    const training *t;
    const char *more, *words;
} refusal;

static const refusal refusals[] = {
    {&mlp, "{\"model\": \"no_gradient\"}",
     "node 'pick' (Einsum): an equation of this form has no gradient"},
    {&mlp, "{\"model\": \"no_gradient\", \"freeze\": [\"*\"]}", "there is nothing to train"},
    {&mlp, "{\"model\": \"net_momentum\"}", "'x'"},
    {&image_net, "{\"model\": \"mlp_sgd\", \"loss\": \"mse\"}", "'x'"},
    {&image_net, "{\"loss\": \"mse\"}", "targets are"},
    {&unet, "{\"model\": \"net_momentum\"}", "targets are"},
    {&mlp, "{\"loss\": \"softmax-xent\"}", "targets are"},
    {&mlp, "{\"freeze\": [\"0.*\", \"layer9.*\"]}",
     "'layer9.*' freezes nothing: there are parameters '0.weight', '0.bias', "},
    {&mlp, "{\"budget\": \"0%\"}", "a budget of '0%' is zero bytes"},
    {&mlp, "{\"budget\": \"0.0001%\"}", "is zero bytes"},
    {&mlp, "{\"momentum\": 0.9}", "momentum is a setting of the optimizer momentum, not of sgd"},
    {&mlp, "{\"optimizer\": \"adam\", \"nesterov\": true}", "not of adam"},
    {&mlp, "{\"optimizer\": \"adam\", \"beta2\": 1}", "beta2 is a number from 0 to less"},
    {&mlp, "{\"save-as\": \"a/b\"}", "--save-as: 'a/b' is not a valid model name"},
    {&mlp, "{\"save-as\": \".a\"}", "is not a valid model name"},
    {&mlp, "{\"save-as\": \"a\\nb\"}", "is not a valid model name"},
    {&mlp, "{\"save-as\": \"\"}", "--save-as: '' is not a model name"},
    {&mlp, "{\"save-as\": \"a:b\"}", "--save-as: 'b' is not a version of model 'a'"},
    {&mlp, "{\"save-as\": \"a:3\"}",
     "--save-as: 'a:3': the result becomes the next version of 'a', do not name one"},
    {&mlp, "{\"save-as\": \"a.checkpoint\"}", "those of jobs' checkpoints"},
    {&mlp, LONG_NAME, "has 195 bytes: with the '.checkpoint' of a job's checkpoints"},
    {&mlp, "{\"batch\": 25}", "a batch of 25 is more than the 24 samples to train on"},
    {&mlp, "{\"batch\": 20, \"hold-out\": 0.25}",
     "a batch of 20 is more than the 18 samples to train on (6 of 24 are held out)"},
    {&mlp, "{\"resume\": true}", "has no checkpoint to resume from"},
    {&image_net, "{\"loss\": \"softmax-xnet\"}", "did you mean 'softmax-xent'?"},
    {&image_net, "{\"label-smoothing\": 1}", "label-smoothing is a number from 0 to less than 1"},
    {&image_net, "{\"label-smoothing\": -0.1}", "label-smoothing is a number from 0 to 1"},
    {&image_net, "{\"class-axis\": 2}", "class-axis is a number from -1 to 1"},
    {&image_net, "{\"class-axis\": 0}", "class-axis is 1 or -1"},
    {&image_net, "{\"class-weights\": [1, 2, 3]}",
     "there are 3 class weights, but output 'y' [4,4] has 4 classes in axis 1"},
    {&image_net, "{\"class-weights\": [1, -2, 3, 4]}",
     "class-weights: weight 2 is not a number from 0 to 1e30"},
    {&image_net, "{\"class-weights\": [1, \"a\", 3, 4]}", "class-weights: weight 2 is not"},
    {&image_net, "{\"class-weights\": [0, 0, 0, 0]}",
     "class-weights is a list of numbers, at least one of them above 0"},
    {&image_net, "{\"class-weights\": \"w.txt\"}", "class-weights is a list of numbers"},
    {&image_net, "{\"pos-weight\": 2}",
     "pos-weight is a setting of the loss bce, not of softmax-xent"},
    {&mlp, "{\"label-smoothing\": 0.1}",
     "label-smoothing is a setting of the loss softmax-xent, not of mse"},
    {&mlp_bce, "{\"pos-weight\": [1, 2, 3]}",
     "there are 3 positive weights, but output 'y' [4,2] has 2 classes in axis 1"},
    {&mlp_bce, "{\"pos-weight\": -1}", "pos-weight is a list of numbers"},
    {&image_net, "{\"loss\": \"bce\"}", "targets are"},
    {&unet_weighted, "{\"class-axis\": -1, \"class-weights\": null}", "targets are"},
    {&mlp, "{\"keep\": \"best\"}",
     "keep needs held-out data to compare epochs by: --hold-out SHARE or --eval FILE"},
    {&mlp, "{\"keep\": true}", "keep is last, best or best:accuracy"},
    {&mlp, "{\"patience\": 3}", "patience needs held-out data"},
    {&mlp, "{\"patience\": 0, \"hold-out\": 0.2}", "patience is a number from 1"},
    {&mlp, "{\"keep\": \"bset\", \"hold-out\": 0.2}", "did you mean 'best'?"},
    {&mlp, "{\"keep\": \"best:accuracy\", \"hold-out\": 0.2}",
     "keep is best:accuracy, but the loss mse has no accuracy"},
    {&mlp, "{\"flip\": true}", "--flip is for images [N, C, H, W]: no input of model"},
    {&image_net, "{\"flip\": 1}", "flip is true or false"},
    {&image_net, "{\"crop\": 12}",
     "--crop 12 may leave nothing of the images of 'x', which are 12 x 12: the most is 11"},
    {&image_net, "{\"crop\": 2.5}", "crop is a whole number of pixels from 1"},
    {&image_net, "{\"crop\": 0}", "crop is a whole number of pixels from 1"},
    {&image_net, "{\"crop\": \"2\"}", "crop is a whole number of pixels from 1"},
    {&mlp, "{\"normalize\": \"mean=0,std=1\"}", "--normalize is for images [N, C, H, W]"},
    {&image_net, "{\"normalize\": true}", "normalize is mean=M,..,std=D,.."},
    {&image_net, "{\"normalize\": \"mean=0.5\"}", "normalize is mean=M,..,std=D,.."},
    {&image_net, "{\"normalize\": \"mean=0.5;std=1\"}", "normalize is mean=M,..,std=D,.."},
    {&image_net, "{\"normalize\": \"mean=0.5,x,std=1\"}",
     "normalize: mean '0.5,x' is not a list of numbers"},
    {&image_net, "{\"normalize\": \"std=,mean=1\"}", "normalize: std '' is not a list"},
    {&image_net, "{\"normalize\": {\"mean\": 0, \"std\": 1, \"eps\": 1}}",
     "normalize is mean=M,..,std=D,.."},
    {&image_net, "{\"normalize\": {\"mean\": 0, \"std\": [1, 0, 1]}}",
     "normalize: value 2 of std is 0, which is no deviation"},
    {&image_net, "{\"normalize\": {\"mean\": [1, \"a\", 0], \"std\": 1}}",
     "normalize: value 2 of mean is nan, which is no number"},
    {&image_net, "{\"normalize\": {\"mean\": [1, 2], \"std\": 1}}",
     "--normalize's mean has 2 values, but input 'x' has 3 channels (axis 1)"},
    {&image_net, "{\"normalize\": \"mean=0,std=1,2,3,4\"}",
     "--normalize's std has 4 values, but input 'x' has 3 channels (axis 1)"},
    {&image_net, "{\"normalize\": \"mean=0,std=1\", \"std\": 1}", "normalize and std: say it once"},
    {&image_net, "{\"normalize\": \"mean=0,std=1\", \"scale\": 1}",
     "--scale is for bytes (uint8), and tensor 'x' is FP32"},
};

// refused_at_once asks for a job that is refused, and leaves none.
static void refused_at_once(fixture *f, const refusal *bad)
{
    char data[200];
    double want[STEPS];
    hth_err err;
    prepare(f, bad->t, data);
    json_t *q = arguments_of(bad->t, data, bad->more, want);
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = no_progress}};
    err = call_run(f->engine, &c);
    if (err != HTH_EINVAL && err != HTH_ENOTSUP && err != HTH_ENOENT) {
        fail_msg("%s: %s", bad->more, hth_err_detail());
    }
    if (strstr(hth_err_detail(), bad->words) == NULL) {
        fail_msg("%s: '%s' is not in: %s", bad->more, bad->words, hth_err_detail());
    }
    free(text);
    json_decref(q);
    json_t *jobs = ask(f, "jobs", "{}", &err);
    assert_int_equal(json_array_size(jobs), 0);
    json_decref(jobs);
}

// What can be known before the first step is told before it, and leaves no job.
static void refused_before_any_step(void **state)
{
    fixture f;
    char data[200];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "no_gradient", "tests/data/train/no_gradient.onnx");
    prepare(&f, &mlp, data);
    prepare(&f, &image_net, data);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        refused_at_once(&f, &refusals[i]);
    }
    fixture_close(&f);
}

// The last update is looked at, too. AdamW without eps divides 0 by 0 where a gradient is 0: of the
// positions after the sequence's end.
static void what_is_lost_is_not_published(void **state)
{
    fixture f;
    char data[200];
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &encoder, data);
    expect(&f, &encoder, data, "{\"batch\": 24, \"eps\": 0}",
           "step 1: 'p' gets elements that are not finite: training stops, nothing is saved");
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    fixture_close(&f);
}

// What would drive weights to infinity is measured all the same: a bench learns nothing.
static void measured_without_learning(void **state)
{
    fixture f;
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "net", "tests/data/train/net_momentum.onnx");
    json_t *doc = ask(&f, "bench",
                      "{\"model\": \"net\", \"batch\": 4, \"train\": true, \"seconds\": 0.1, "
                      "\"optimizer\": \"momentum\", \"momentum\": 0.9, \"lr\": 1e6}",
                      &err);
    if (err != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    assert_true(json_integer_value(json_object_get(doc, "runs")) >= 3);
    json_decref(doc);
    fixture_close(&f);
}

// Relu's maximum swallows a NaN: every loss is finite, but the weights in front of it are not. The
// checkpoint after the first step stays what a job can go on from.
static void lost_weights_are_told(void **state)
{
    fixture f;
    char data[200];
    float x[STEPS * BATCH * 432];
    int64_t y[STEPS * BATCH], dim[4] = {STEPS * BATCH, 3, 12, 12};
    writer w = {NULL, NULL, 0};
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "relu_net", "tests/data/train/relu_net.onnx");
    for (int i = 0; i < STEPS * BATCH * 432; i++) {
        x[i] = (float)(i * 37 % 67 - 33) / 32;
    }
    for (int i = 0; i < STEPS * BATCH; i++) {
        y[i] = i * 7 % 4;
    }
    x[BATCH * 2 * 432 + 100] = NAN; // in the third batch
    writer_add(&w, "x", "F32", dim, 4, x, sizeof x);
    writer_add(&w, "y", "I64", dim, 1, y, sizeof y);
    snprintf(data, sizeof data, "%s/lost.safetensors", f.dir);
    writer_close(&w, data);
    expect(
        &f, &image_net, data, "{\"model\": \"relu_net\", \"checkpoint-every\": 1}",
        "step 3: 'c.weight' gets elements that are not finite: training stops, the checkpoint of "
        "step 1 is kept");
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    // Its model stays as long as the job could go on with it.
    assert_int_equal(hth_catalog_remove(f.store, "relu_net:1"), HTH_EBUSY);
    assert_non_null(strstr(hth_err_detail(), "job 'result' needs 'relu_net' to resume"));
    assert_ok(hth_checkpoint_rm(f.store, "result"));
    assert_ok(hth_catalog_remove(f.store, "relu_net:1"));
    fixture_close(&f);
}

// Labels of every width are the same labels.
static void narrow_labels(void **state)
{
    static const struct {
        const char *dtype;
        size_t size;
    } kinds[] = {{"I64", 8}, {"U8", 1}, {"I8", 1}, {"U16", 2}, {"I16", 2}, {"U32", 4}, {"U64", 8}};
    fixture f;
    char data[200], more[400];
    double want[STEPS], loss[2] = {0, 0};
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &unet, data);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        writer w = {NULL, NULL, 0};
        hth_err err;
        int64_t dim[3] = {BATCH + 2, 12, 12};
        uint8_t y[(BATCH + 2) * 144 * 8] = {0};
        for (size_t i = 0; i < (BATCH + 2) * 144; i++) {
            y[i * kinds[k].size] = (uint8_t)(i * 7 % 3); // little-endian
        }
        float x[(BATCH + 2) * 432];
        for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
            x[i] = (float)(i * 37 % 67) / 32 - 1;
        }
        writer_add(&w, "x", "F32", (int64_t[]){BATCH + 2, 3, 12, 12}, 4, x, sizeof x);
        writer_add(&w, "y", kinds[k].dtype, dim, 3, y, (BATCH + 2) * 144 * kinds[k].size);
        snprintf(data, sizeof data, "%s/narrow%zu.safetensors", f.dir, k);
        writer_close(&w, data);
        snprintf(more, sizeof more, "{\"epochs\": 2, \"eval\": \"%s\"}", data);
        json_t *q = arguments_of(&unet, data, more, want), *a = train(&f, q, &err);
        assert_int_equal(err, HTH_OK);
        json_t *history = json_object_get(a, "history");
        assert_int_equal(json_array_size(history), 4);
        loss[k > 0] = json_number_value(json_array_get(json_array_get(history, 3), 0));
        assert_true(k == 0 || loss[0] == loss[1]);
        json_decref(a);
    }
    fixture_close(&f);
}

// No label of the third batch counts; or (`without`) that batch is not there.
static void third_of_nothing(const training *t, const char *path, bool without)
{
    writer all = {NULL, NULL, 0}, w = {NULL, NULL, 0};
    size_t n = without ? STEPS - 1 : STEPS;
    int64_t dim[4] = {(int64_t)n * BATCH, t->x[0], t->x[1], t->x[2]};
    add_batches(&all, "x", t->x, t->x_rank, t->x_classes, 0);
    size_t x = all.bytes / STEPS; // of a batch
    add_batches(&all, "y", t->y, t->y_rank, t->y_classes, t->y_seed);
    size_t y = all.bytes / STEPS - x;
    char *labels = all.data + STEPS * x;
    for (int i = 0; i < BATCH; i++) {
        ((int64_t *)(void *)(labels + 2 * y))[i] = -100;
    }
    if (without) {
        memmove(all.data + 2 * x, all.data + 3 * x, (STEPS - 3) * x);
        memmove(labels + 2 * y, labels + 3 * y, (STEPS - 3) * y);
    }
    writer_add(&w, "x", "F32", dim, t->x_rank, all.data, n * x);
    writer_add(&w, "y", "I64", dim, 1, labels, n * y);
    writer_close(&w, path);
    free(all.data);
    json_decref(all.head);
}

// A batch without a label that counts has a loss of 0 and changes nothing: the job goes on as if
// there were no such batch.
static void labels_that_count_for_nothing(void **state)
{
    static const char *const ways[] = {"{}", "{\"accumulate\": 2}"};
    fixture f;
    char data[200];
    double want[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &smooth, data); // plain gradient descent
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        json_t *doc[2], *history[2];
        for (int without = 0; without < 2; without++) {
            hth_err err;
            snprintf(data, sizeof data, "%s/third%d.safetensors", f.dir, without);
            third_of_nothing(&smooth, data, without > 0);
            doc[without] = train(&f, arguments_of(&smooth, data, ways[k], want), &err);
            if (doc[without] == NULL) {
                fail_msg("%s: %s", ways[k], hth_err_detail());
            }
            history[without] = json_object_get(doc[without], "history");
            assert_int_equal(json_array_size(history[without]), STEPS - without);
        }
        for (size_t i = 0; i < STEPS; i++) {
            const json_t *of[2] = {json_array_get(history[0], i),
                                   json_array_get(history[1], i > 2 ? i - 1 : i)};
            double loss = json_number_value(json_array_get(of[0], 0)),
                   other = i == 2 ? 0 : json_number_value(json_array_get(of[1], 0));
            assert_true(i == 2 ? loss == 0 : other > 0);
            assert_float_equal(loss, other, 1e-5);
        }
        json_decref(doc[0]);
        json_decref(doc[1]);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_input_is_told),
        cmocka_unit_test(refused_before_any_step),
        cmocka_unit_test(what_is_lost_is_not_published),
        cmocka_unit_test(measured_without_learning),
        cmocka_unit_test(lost_weights_are_told),
        cmocka_unit_test(narrow_labels),
        cmocka_unit_test(labels_that_count_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
