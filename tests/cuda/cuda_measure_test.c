// SPDX-License-Identifier: Apache-2.0
// Measuring choices on a CUDA device, over the fake driver: the errors of convolutions in f32, TF32
// and bf16 against sums over operands of their own types, also of what is fused without a bias; the
// times when the driver's reference for events is set anew in between; whether images may have
// their channels last, asked once.
#include "kernels/cuda/fixture.h"

#include "base/clock.h"
#include "convsel/bench.h"
#include "kernels/cuda/kept_texts.h"

#undef fixture_check
#undef hth_kernel_prepare

// The device's memory, taken one behind the other; each case begins anew.
static size_t taken;

static void *take(void *owner, size_t bytes)
{
    void *p = (char *)cuda_test_arena + taken;
    taken += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return taken <= CUDA_TEST_ARENA ? p : NULL;
}

static void give(void *owner, void *p)
{
}

static kept_texts times;
static const hth_timing_cache cache = {texts_get, texts_put, &times, take, give, NULL, NULL};

#define CHANNELS_IN  8
#define CHANNELS_OUT 16
#define SIZE         12

// A convolution of 3 x 3 or one of its gradients; sum and relu: post ops.
static hth_node *conv_open(fixture *f, hth_op op, bool sum, bool relu)
{
    hth_shape x = SHAPE(2, CHANNELS_IN, SIZE, SIZE), y = SHAPE(2, CHANNELS_OUT, SIZE, SIZE);
    hth_shape w = SHAPE(CHANNELS_OUT, CHANNELS_IN, 3, 3);
    fixture_open(f, 3);
    int in[4] = {fixture_value(f, op == HTH_OP_CONV_GRAD_DATA ? y : x),
                 fixture_value(f, op == HTH_OP_CONV_GRAD_FILTER ? y : w), -1, -1};
    hth_shape of = op == HTH_OP_CONV_GRAD_DATA ? x : y;
    int out = fixture_value(f, op == HTH_OP_CONV_GRAD_FILTER ? w : of);
    in[3] = sum ? fixture_value(f, y) : -1; // behind the bias that is not there
    hth_node *n = fixture_node(f, op, in, sum ? 4 : 2, &out, 1);
    hth_node_set_ints(n, "pads", (int64_t[]){1, 1, 1, 1}, 4);
    hth_node_set_ints(n, "strides", (int64_t[]){1, 1}, 2);
    if (sum) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_ADD, 3, 1, 0};
    }
    if (relu) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
    }
    return n;
}

// As pass_half leaves images: in bf16 with their channels last, `half_out` also the result.
static void conv_halve(fixture *f, const hth_node *node, bool half_out)
{
    hth_graph *g = f->graph;
    bool filter = node->op == HTH_OP_CONV_GRAD_FILTER;
    g->precision = HTH_PRECISION_BF16;
    for (int i = 0; i < (filter ? 2 : 1); i++) {
        g->values[node->inputs[i]].dtype = HTH_DT_BF16;
        g->values[node->inputs[i]].layout = HTH_LAYOUT_NHWC;
    }
    if (!filter) {
        g->values[node->outputs[0]].layout = HTH_LAYOUT_NHWC;
        g->values[node->outputs[0]].dtype = half_out ? HTH_DT_BF16 : HTH_DT_F32;
    }
}

static int measure(const fixture *f, const hth_node *node, hth_choice *list)
{
    int count;
    taken = 0;
    times.key[0] = '\0';
    if (hth_convsel_measure(cuda_test_device, f->graph, node, NULL, &cache, list, HTH_MAX_CHOICES,
                            &count) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    assert_true(count > 0);
    return count;
}

static void errors_in_bf16(void **state)
{
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    for (int form = 0; form < 6; form++) {
        fixture f;
        hth_choice list[HTH_MAX_CHOICES];
        hth_node *n = conv_open(&f, ops[form / 2], false, false);
        conv_halve(&f, n, form % 2 == 1);
        int count = measure(&f, n, list);
        for (int i = 0; i < count; i++) {
            if (!(list[i].error > 1e-6 && list[i].error < 0x1p-6)) {
                fail_msg("%s by %s: error %g", hth_op_name(n->op), list[i].name, list[i].error);
            }
        }
        assert_true(list[0].front);
        fixture_close(&f);
    }
}

// Choices with an error of TF32, which is none of FP32's, are on the front there alone.
static void tolerance_by_precision(void **state)
{
    hth_graph g = {.precision = HTH_PRECISION_FP32};
    assert_true(hth_convsel_tolerance(&g, 1e-3) == 1e-3);
    assert_true(hth_convsel_tolerance(&g, 0) == 0);
    g.precision = HTH_PRECISION_TF32;
    assert_true(hth_convsel_tolerance(&g, 1e-3) == 0x1p-8);
    assert_true(hth_convsel_tolerance(&g, 0.25) == 0.25);
    g.precision = HTH_PRECISION_BF16;
    assert_true(hth_convsel_tolerance(&g, 1e-3) == 0x1p-5);
}

// A graph of the convolution with its post ops is offered, runs, and is compared where what is
// fused is a ReLU.
static void fused_without_bias(void **state)
{
    for (int form = 1; form < 4; form++) {
        bool sum = form & 1, relu = form & 2;
        fixture f;
        hth_choice list[HTH_MAX_CHOICES];
        hth_node *n = conv_open(&f, HTH_OP_CONV, sum, relu);
        int count = measure(&f, n, list), fused = 0;
        for (int i = 0; i < count; i++) {
            bool of_graph = list[i].name[0] == 'f';
            fused += of_graph;
            assert_true(list[i].error < 1e-5);
            assert_true(of_graph && sum ? list[i].error < 0 : list[i].error >= 0);
        }
        assert_true(fused > 0);
        fixture_close(&f);
    }
}

// A clock that is a tick later at each reading, and at one of them ten seconds. The driver's
// reference is a tick late, and so are all times by it.
#define TICK_NS 500000u
#define JUMP_NS 10000000000u
typedef struct test_clock {
    uint64_t now, tick, readings, jump;
} test_clock;

static uint64_t test_now(void *ctx)
{
    test_clock *c = ctx;
    c->now += ++c->readings == c->jump ? JUMP_NS : c->tick;
    return c->now;
}

static void times_at_a_new_anchor(void **state)
{
    static const hth_choice any = {.name = "e0", .error = -1};
    test_clock clock = {.now = hth_now_ns(), .tick = TICK_NS};
    hth_clock_inject(test_now, &clock);
    fixture f;
    hth_bench_device *far;
    uint64_t readings = 0;
    const hth_node *n = conv_open(&f, HTH_OP_CONV, false, false);
    taken = 0;
    assert_int_equal(hth_bench_device_open(cuda_test_device, f.graph, n, &cache, &far), HTH_OK);
    for (uint64_t jump = 0; jump <= readings; jump++) {
        hth_choice c = any;
        hth_samples s = {.n = 0};
        clock.readings = 0;
        clock.jump = jump;
        clock.tick = (1 + jump) * TICK_NS; // another reference would be late by as much
        assert_int_equal(hth_bench_device_turn(far, &c, &s), HTH_OK);
        assert_int_equal(s.n, 1);
        readings = jump == 0 ? clock.readings : readings;
        // five runs; one, where the warm-up seemed long; the jump among those that are timed
        uint64_t runs_ns = jump == 4 ? JUMP_NS : clock.tick;
        uint64_t want_ns = jump == 2 ? clock.tick : runs_ns / 5;
        double want_us = (double)want_ns / 1e3;
        if (!(fabs(s.all[0] - want_us) < 10)) {
            fail_msg("jump at reading %d: %g us instead of %g", (int)jump, s.all[0], want_us);
        }
    }
    assert_int_equal(readings, 4); // two events around the warm-up, two around the runs
    hth_bench_device_close(far);
    hth_clock_inject(NULL, NULL);
    fixture_close(&f);
}

// The layout pass asks of every convolution: for less than a search, and the second time nothing.
static void channels_last_is_asked_once(void **state)
{
    const hth_fuse_oracle *o = hth_kernel_oracle(cuda_test_device);
    kept_texts t = {.key = ""};
    hth_device_kept kept = {texts_get, texts_put, &t};
    fixture f;
    hth_choice list[HTH_MAX_CHOICES];
    int count;
    bool any;
    const hth_node *n = conv_open(&f, HTH_OP_CONV, false, false);
    f.graph->precision = HTH_PRECISION_TF32;
    cuda_test_device->kept = &kept;
    uint64_t calls[4] = {hth_cuda_fake_state()->calls};
    assert_int_equal(o->layout(o->ctx, f.graph, n, &any), HTH_LAYOUT_NHWC);
    calls[1] = hth_cuda_fake_state()->calls;
    assert_int_equal(o->layout(o->ctx, f.graph, n, &any), HTH_LAYOUT_NHWC);
    calls[2] = hth_cuda_fake_state()->calls;
    assert_int_equal(
        hth_kernel_algorithms(cuda_test_device, f.graph, n, list, HTH_MAX_CHOICES, &count), HTH_OK);
    calls[3] = hth_cuda_fake_state()->calls;
    print_message("# calls of cuDNN: %d, then %d; a search %d\n", (int)(calls[1] - calls[0]),
                  (int)(calls[2] - calls[1]), (int)(calls[3] - calls[2]));
    assert_true(calls[1] - calls[0] < (calls[3] - calls[2]) * 3 / 4);
    assert_int_equal(calls[2], calls[1]);
    cuda_test_device->kept = NULL;
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_in_bf16),
        cmocka_unit_test(tolerance_by_precision),
        cmocka_unit_test(fused_without_bias),
        cmocka_unit_test(times_at_a_new_anchor),
        cmocka_unit_test(channels_last_is_asked_once),
    };
    return cmocka_run_group_tests(tests, cuda_test_setup, cuda_test_teardown);
}
