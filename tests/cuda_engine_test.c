// SPDX-License-Identifier: Apache-2.0
// Whole models on a CUDA device over the fake driver: answers against onnxruntime's, training
// against PyTorch's losses, under a budget that makes tensors leave the device with the same bits,
// in more than one order of everything that is not ordered. What a model needs and the device has
// not is refused with the operator's name.
#include "device/cuda/fake/impl.h"
#include "kernels/cuda/fake/fake.h"
#include "tests/npy_data.h"
#include "tests/train_job.h"

#include <stdio.h>

#define MIB  ((uint64_t)1 << 20)
#define LESS "{\"budget\": \"85%\", \"plan-ms\": 100}"

static hth_cuda_fake *driver;

static void engine_open(fixture *f, uint64_t seed)
{
    driver = hth_cuda_fake_engine_open(seed, 512 * MIB);
    assert_non_null(driver);
    fixture_open(f, "cuda:0,mem=300MiB");
}

static void engine_close(fixture *f)
{
    fixture_close(f);
    assert_int_equal(driver->live, 0);
    assert_int_equal(driver->used_bytes, 0);
    hth_cuda_fake_close();
}

static hth_err infer(fixture *f, const char *name, const hth_tensor *x, call *c)
{
    hth_request_tensor in = {.name = NULL, .t = *x};
    *c = (call){.r = {.model = name, .inputs = &in, .n_inputs = 1}};
    return call_run(f->engine, c);
}

static void expect_close(const char *name, const hth_tensor *got, const hth_tensor *want)
{
    const float *a = got->data, *b = want->data;
    float largest = 0, error = 0;
    assert_true(hth_shape_equal(&got->shape, &want->shape));
    for (size_t i = 0; i < want->bytes / sizeof *b; i++) {
        largest = fmaxf(largest, fabsf(b[i]));
        error = isnan(a[i]) ? INFINITY : fmaxf(error, fabsf(a[i] - b[i]));
    }
    if (error > 1e-4f * largest) {
        fail_msg("%s differs by %g of %g", name, (double)error, (double)largest);
    }
}

// The models of tests/data/passes with onnxruntime's answers; asked until the engine has tuned
// them.
static void answers(void **state)
{
    static const char *const models[] = {"residual",         "attention",    "attention_masked",
                                         "attention_biased", "written_norm", "mlp"};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        fixture f;
        engine_open(&f, seed);
        for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
            char path[128];
            hth_tensor x, y;
            snprintf(path, sizeof path, "tests/data/passes/%s.onnx", models[m]);
            put(f.store, models[m], path);
            snprintf(path, sizeof path, "tests/data/passes/%s.x.npy", models[m]);
            assert_true(npy_data(path, &x));
            snprintf(path, sizeof path, "tests/data/passes/%s.y.npy", models[m]);
            assert_true(npy_data(path, &y));
            for (int round = 0; round < 6; round++) {
                call c;
                if (infer(&f, models[m], &x, &c) != HTH_OK) {
                    fail_msg("%s: %s", models[m], hth_err_detail());
                }
                expect_close(models[m], &c.out[0], &y);
                free(c.out[0].data);
            }
            hth_free(x.data);
            hth_free(y.data);
        }
        engine_close(&f);
    }
}

// A convolutional network of two stages on handwritten digits: the CPU's answers.
static void digits(void **state)
{
    fixture f;
    hth_tensor x;
    call on_cpu, on_cuda;
    assert_true(npy_data("tests/data/digits/images.npy", &x));
    fixture_open(&f, "cpu:mem=256MiB,threads=1");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    assert_ok(infer(&f, "digits", &x, &on_cpu));
    fixture_close(&f);
    engine_open(&f, 3);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    assert_ok(infer(&f, "digits", &x, &on_cuda));
    expect_close("digits", &on_cuda.out[0], &on_cpu.out[0]);
    free(on_cpu.out[0].data);
    free(on_cuda.out[0].data);
    hth_free(x.data);
    engine_close(&f);
}

static void trains(const training *t, uint64_t seed, const char *budget)
{
    const char *const ways[] = {"{}", budget};
    fixture f;
    char data[200];
    double want[STEPS], loss[STEPS], whole[STEPS];
    engine_open(&f, seed);
    prepare(&f, t, data);
    for (int k = 0; k < 2; k++) {
        hth_err err;
        json_t *doc = train(&f, arguments_of(t, data, ways[k], want), &err);
        if (doc == NULL) {
            fail_msg("%s %s: %s", t->model, ways[k], hth_err_detail());
        }
        losses_of(doc, loss);
        for (int i = 0; i < STEPS; i++) {
            if (!(fabs(loss[i] - want[i]) <= 2e-4 * fabs(want[i]) + 1e-5)) {
                fail_msg("%s %s: loss %d is %g, PyTorch's is %g", t->model, ways[k], i, loss[i],
                         want[i]);
            }
        }
        if (k == 0) {
            memcpy(whole, loss, sizeof whole);
        } else { // the same algorithms: the same bits
            assert_memory_equal(whole, loss, sizeof whole);
        }
        json_decref(doc);
    }
    engine_close(&f);
}

static void train_image_net(void **state)
{
    trains(&image_net, 1, LESS);
    trains(&image_net, 2, LESS);
}

static void train_encoder(void **state)
{
    trains(&encoder, 3, LESS);
}

static void train_others(void **state)
{
    trains(&mobile, 4, LESS);
    trains(&mlp, 5, "{}"); // has nothing that could leave
    trains(&clipped, 6, LESS);
    trains(&unet, 7, LESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),         cmocka_unit_test(digits),
        cmocka_unit_test(train_image_net), cmocka_unit_test(train_encoder),
        cmocka_unit_test(train_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
