// SPDX-License-Identifier: Apache-2.0
// A convolution and its batch norm in slices of the batch against the reference, which computes in
// double: within the tolerances of the batch norm that has all of its tensors (train_ops_test.c).
#include "kernels/cpu/fixture.h"

static const hth_layout layouts[] = {HTH_LAYOUT_PLAIN, HTH_LAYOUT_C16, HTH_LAYOUT_C8};
static const hth_shape images[] = {
    {4, {4, 19, 6, 6}}, {5, {4, 20, 3, 5, 4}}, {4, {6, 16, 20, 20}}, {4, {3, 8, 9, 5}}};
#define N_IMAGES (sizeof images / sizeof images[0])
#define CHANNELS 3 // of the convolution's input

static int channels(fixture *f, const hth_shape *y)
{
    return fixture_value(f, SHAPE(y->dim[1]));
}

// conv_inputs makes a, w and, with `bias`, the bias of a convolution of the shape y with padding 1.
static void conv_inputs(fixture *f, const hth_shape *y, bool bias, int *in)
{
    hth_shape a = *y, w = *y;
    a.dim[1] = CHANNELS;
    w.dim[0] = y->dim[1];
    w.dim[1] = CHANNELS;
    for (int d = 2; d < y->rank; d++) {
        w.dim[d] = 3;
    }
    in[0] = fixture_value(f, a);
    in[1] = fixture_value(f, w);
    in[2] = bias ? channels(f, y) : -1;
}

static void conv_attributes(hth_node *n, int rank)
{
    static const int64_t ones[6] = {1, 1, 1, 1, 1, 1};
    assert_int_equal(hth_node_set_ints(n, "pads", ones, 2 * (rank - 2)), HTH_OK);
}

// check runs the node with every number of slices, and by default, with one thread and with three.
static void check(fixture *f, int y, hth_layout layout, double tolerance)
{
    hth_choice list[8];
    int n;
    const hth_node *node = &f->graph->nodes[f->node];
    bool grad = node->op == HTH_OP_CONV_NORM_GRAD;
    f->graph->values[y].layout = layout;
    f->graph->values[grad ? node->inputs[0] : node->outputs[0]].layout = layout;
    assert_int_equal(hth_kernel_algorithms(&f->device, f->graph, node, list, 8, &n), HTH_OK);
    assert_true(n > 0);
    for (int threads = 1; threads <= 3; threads += 2) {
        f->device.props.n_threads = threads;
        for (int k = 0; k < n; k++) {
            assert_true(k == 0 || list[k].workspace_bytes <= list[k - 1].workspace_bytes);
            fixture_check(f, list[k].name, false, tolerance);
            fixture_check(f, list[k].name, true, tolerance);
        }
        fixture_check(f, NULL, false, tolerance);
    }
    fixture_close(f);
}

static void forward(void **state)
{
    for (size_t i = 0; i < N_IMAGES * 12; i++) {
        fixture f;
        hth_shape s = images[i / 12];
        fixture_open(&f, 31 + i);
        int in[7], out[5];
        conv_inputs(&f, &s, i / 3 % 2, in);
        out[0] = fixture_value(&f, s);
        for (int k = 1; k < 5; k++) {
            in[2 + k] = channels(&f, &s);
            out[k] = k > 2 && i % 3 == 1 ? -1 : channels(&f, &s);
        }
        hth_node *n = fixture_node(&f, HTH_OP_CONV_NORM_TRAIN, in, 7, out, 5);
        hth_node_set_float(n, "momentum", 0.8F);
        conv_attributes(n, s.rank);
        if (i / 6 % 2) {
            n->post[n->n_post++] = (hth_post_op){HTH_OP_CLIP, -1, 0.1F, 0.9F};
        }
        check(&f, out[0], layouts[i % 3], 5e-5);
    }
}

static void backward(void **state)
{
    for (size_t i = 0; i < N_IMAGES * 12; i++) {
        fixture f;
        hth_shape s = images[i / 12];
        fixture_open(&f, 53 + i);
        int in[8], out[3], masked = i / 3 % 2;
        in[0] = fixture_value(&f, s);
        conv_inputs(&f, &s, i / 6 % 2, in + 1);
        for (int k = 0; k < 4; k++) {
            in[4 + k] = channels(&f, &s);
        }
        for (int k = 0; k < 3; k++) {
            out[k] = k == 0 ? fixture_value(&f, s) : channels(&f, &s);
        }
        hth_node *n = fixture_node(&f, HTH_OP_CONV_NORM_GRAD, in, 7 + masked, out, 3);
        conv_attributes(n, s.rank);
        // What the norm made of x is exact on this grid, and never at a bound of the mask.
        f.grid = masked ? 0x1p-3F : 0;
        hth_node_set_float(n, "low", 0x1p-16F);
        hth_node_set_float(n, "high", 0.5F + 0x1p-16F);
        check(&f, out[0], layouts[i % 3], 3e-5);
    }
}

static void refused(void **state)
{
    fixture f;
    hth_kernel *k;
    hth_shape s = images[0];
    int in[7], out[5];
    fixture_open(&f, 1);
    conv_inputs(&f, &s, false, in);
    out[0] = fixture_value(&f, s);
    for (int i = 1; i < 5; i++) {
        in[2 + i] = channels(&f, &s);
        out[i] = channels(&f, &s);
    }
    hth_node *n = fixture_node(&f, HTH_OP_CONV_NORM_TRAIN, in, 7, out, 5);
    conv_attributes(n, s.rank);
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, "slices/3", &k), HTH_ENOTSUP);
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, "whole", &k), HTH_ENOTSUP);
    fixture_faults(&f, "slices/2");
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(backward),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
