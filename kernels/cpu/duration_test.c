// SPDX-License-Identifier: Apache-2.0
// What is refused because it would keep the device for too long, and that nothing usual is.
#include "kernels/cpu/duration.h"

#include "kernels/cpu/fixture.h"

typedef struct work {
    const char *what;
    hth_op op;
    hth_shape in[3], out;
    int n_in;
    int64_t window, size; // kernel_shape, both ways; LRN's size
} work;

static double work_s(const work *w, int threads, hth_err *err)
{
    fixture f;
    int in[3];
    fixture_open(&f, 1);
    f.device.props.n_threads = threads;
    for (int i = 0; i < w->n_in; i++) {
        in[i] = fixture_value(&f, w->in[i]);
    }
    int out = fixture_value(&f, w->out);
    hth_node *n = fixture_node(&f, w->op, in, w->n_in, &out, 1);
    if (w->window > 0) {
        assert_int_equal(hth_node_set_ints(n, "kernel_shape", (int64_t[]){w->window, w->window}, 2),
                         HTH_OK);
    }
    if (w->size > 0) {
        assert_int_equal(hth_node_set_int(n, "size", w->size), HTH_OK);
    }
    double s = hth_cpu_duration_s(f.graph, n, threads);
    *err = hth_cpu_duration_check(&f.device, f.graph, n);
    fixture_close(&f);
    return s;
}

// The largest operators of networks, on one thread.
static void test_usual(void **state)
{
    const hth_shape vgg = SHAPE(256, 64, 224, 224), unet = SHAPE(120, 64, 388, 388);
    const work list[] = {
        {"VGG19, batch 256", HTH_OP_CONV, {vgg, SHAPE(64, 64, 3, 3)}, vgg, 2, 0, 0},
        {".. its data's gradient", HTH_OP_CONV_GRAD_DATA, {vgg, SHAPE(64, 64, 3, 3)}, vgg, 2, 0, 0},
        {".. its filters'", HTH_OP_CONV_GRAD_FILTER, {vgg, vgg}, SHAPE(64, 64, 3, 3), 2, 0, 0},
        {"U-Net, batch 120",
         HTH_OP_CONV,
         {SHAPE(120, 128, 390, 390), SHAPE(64, 128, 3, 3)},
         unet,
         2,
         0,
         0},
        {"ResNet-50's stem, batch 512",
         HTH_OP_CONV,
         {SHAPE(512, 3, 224, 224), SHAPE(64, 3, 7, 7)},
         SHAPE(512, 64, 112, 112),
         2,
         0,
         0},
        {"patches of 32 x 32, batch 512",
         HTH_OP_CONV,
         {SHAPE(512, 3, 384, 384), SHAPE(1024, 3, 32, 32)},
         SHAPE(512, 1024, 12, 12),
         2,
         0,
         0},
        {"a spectrogram of a minute",
         HTH_OP_CONV,
         {SHAPE(16, 1, 960000), SHAPE(2050, 1, 2048)},
         SHAPE(16, 2050, 3000),
         2,
         0,
         0},
        {"generator",
         HTH_OP_CONV_TRANSPOSE,
         {SHAPE(256, 512, 32, 32), SHAPE(512, 256, 4, 4)},
         SHAPE(256, 256, 64, 64),
         2,
         0,
         0},
        {"pool", HTH_OP_MAX_POOL, {vgg}, SHAPE(256, 64, 112, 112), 1, 2, 0},
        {"pool of all", HTH_OP_AVERAGE_POOL, {vgg}, SHAPE(256, 64, 1, 1), 1, 224, 0},
        {"AlexNet's LRN, batch 256",
         HTH_OP_LRN,
         {SHAPE(256, 96, 55, 55)},
         SHAPE(256, 96, 55, 55),
         1,
         0,
         5},
        {"a transformer's logits",
         HTH_OP_MAT_MUL,
         {SHAPE(8192, 4096), SHAPE(4096, 50257)},
         SHAPE(8192, 50257),
         2,
         0,
         0},
        {"LSTM, batch 256",
         HTH_OP_LSTM,
         {SHAPE(500, 256, 1024), SHAPE(1, 4096, 1024), SHAPE(1, 4096, 1024)},
         SHAPE(500, 1, 256, 1024),
         3,
         0,
         0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        hth_err err;
        double s = work_s(&list[i], 1, &err);
        if (err != HTH_OK) {
            fail_msg("%s: %.1f s", list[i].what, s);
        }
        assert_true(s > 0);
    }
}

// Few tensors that computing takes minutes or hours for, each in less than a GiB of memory.
static void test_refused(void **state)
{
    const hth_shape x = SHAPE(1, 1, 8000, 8000), w = SHAPE(1, 1, 4000, 4000),
                    y = SHAPE(1, 1, 4001, 4001), m = SHAPE(8000, 8000);
    const work list[] = {
        {"Conv", HTH_OP_CONV, {x, w}, y, 2, 0, 0},
        {"ConvTranspose", HTH_OP_CONV_TRANSPOSE, {y, w}, x, 2, 0, 0},
        {"ConvGradData", HTH_OP_CONV_GRAD_DATA, {y, w}, x, 2, 0, 0},
        {"ConvGradFilter", HTH_OP_CONV_GRAD_FILTER, {x, y}, w, 2, 0, 0},
        {"MaxPool", HTH_OP_MAX_POOL, {x}, y, 1, 4000, 0},
        {"AveragePool", HTH_OP_AVERAGE_POOL, {x}, y, 1, 4000, 0},
        {"MaxPoolGrad", HTH_OP_MAX_POOL_GRAD, {y}, x, 1, 4000, 0},
        {"LRN", HTH_OP_LRN, {SHAPE(1, 8000, 100, 100)}, SHAPE(1, 8000, 100, 100), 1, 0, 8001},
        {"MatMul", HTH_OP_MAT_MUL, {SHAPE(20, 8000, 8000), m}, SHAPE(20, 8000, 8000), 2, 0, 0},
        {"GRU",
         HTH_OP_GRU,
         {SHAPE(1000000, 1, 64), SHAPE(1, 6000, 64), SHAPE(1, 6000, 2000)},
         SHAPE(1000000, 1, 1, 2000),
         3,
         0,
         0},
    };
    char words[100];
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        hth_err err;
        double s = work_s(&list[i], 2, &err);
        if (err != HTH_EINVAL) {
            fail_msg("%s: %.1f s", list[i].what, s);
        }
        snprintf(words, sizeof words, "node 'node' (%s) would compute for at least %.0f s on 2 thr",
                 list[i].what, s);
        assert_non_null(strstr(hth_err_detail(), words));
        assert_non_null(
            strstr(hth_err_detail(), "at most 30 s are allowed (limits.operator_seconds"));
    }
}

// The kernel is not even made, nor are its algorithms listed, which would be timed; the setting
// allows it.
static void test_kernel(void **state)
{
    fixture f;
    hth_kernel *k;
    hth_choice list[16];
    int n_list;
    fixture_open(&f, 1);
    int in[2] = {fixture_value(&f, SHAPE(20, 8000, 8000)), fixture_value(&f, SHAPE(8000, 8000))},
        out = fixture_value(&f, SHAPE(20, 8000, 8000));
    const hth_node *n = fixture_node(&f, HTH_OP_MAT_MUL, in, 2, &out, 1);
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, NULL, &k), HTH_EINVAL);
    assert_int_equal(hth_kernel_algorithms(&f.device, f.graph, n, list, 16, &n_list), HTH_EINVAL);
    assert_int_equal(hth_setting_set("limits.operator_seconds", "100"), HTH_OK);
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, NULL, &k), HTH_OK);
    hth_kernel_close(k);
    hth_setting_reset();
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usual),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
