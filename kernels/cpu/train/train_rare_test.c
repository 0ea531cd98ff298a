// SPDX-License-Identifier: Apache-2.0
// Mean squared error, and the gradients of group, instance and local response normalisation and of
// recurrent networks, against the reference: in place and not, with one thread and with several,
// optional tensors there and absent.
#include "kernels/cpu/fixture.h"

static void mean_squared_error(void **state)
{
    (void)state;
    static const hth_shape shapes[] = {{1, {1}}, {2, {3, 5}}, {2, {17, 1003}}, {4, {2, 3, 64, 65}}};
    for (size_t i = 0; i < 8; i++) {
        fixture f;
        fixture_open(&f, 3 + i);
        hth_shape s = shapes[i / 2];
        bool grad = i % 2;
        int in[2] = {fixture_value(&f, s), fixture_value(&f, s)},
            out = fixture_value(&f, grad ? s : (hth_shape){.rank = 0});
        fixture_node(&f, grad ? HTH_OP_MSE_GRAD : HTH_OP_MSE, in, 2, &out, 1);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-6);
    }
}

// One group, several, a group per channel (instance norm); parameters of channels and of groups.
static void group_norm_grad(void **state)
{
    (void)state;
    static const int64_t groups[] = {1, 4, 12};
    for (size_t i = 0; i < 3 * 2 * 4; i++) {
        fixture f;
        fixture_open(&f, 5 + i);
        hth_shape x = i % 2 ? SHAPE(3, 12, 9, 7) : SHAPE(2, 12, 70);
        int64_t g = groups[i / 8];
        hth_shape p = SHAPE(i / 2 % 2 ? g : 12);
        int in[3] = {fixture_value(&f, x), fixture_value(&f, x), fixture_value(&f, p)}, out[3];
        for (int k = 0; k < 3; k++) {
            out[k] = i / 4 % 2 && k == (int)(i % 3) ? -1 : fixture_value(&f, k == 0 ? x : p);
        }
        hth_node *n = fixture_node(&f, HTH_OP_GROUP_NORM_GRAD, in, 3, out, 3);
        hth_node_set_int(n, "num_groups", g);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 3e-5);
    }
}

static void lrn_grad(void **state)
{
    (void)state;
    static const hth_layout layouts[] = {HTH_LAYOUT_PLAIN, HTH_LAYOUT_C16, HTH_LAYOUT_C8};
    static const int64_t sizes[] = {5, 1, 4, 9};
    for (size_t i = 0; i < 24; i++) {
        fixture f;
        fixture_open(&f, 7 + i);
        hth_shape x = i / 3 % 2 ? SHAPE(2, 19, 7, 5) : SHAPE(3, 48, 40);
        int in[2] = {fixture_value(&f, x), fixture_value(&f, x)}, out = fixture_value(&f, x);
        hth_node *n = fixture_node(&f, HTH_OP_LRN_GRAD, in, 2, &out, 1);
        hth_node_set_int(n, "size", sizes[i / 6]);
        hth_node_set_float(n, "alpha", 0.3F);
        hth_node_set_float(n, "beta", i % 2 ? 0.75F : 0.6F);
        hth_node_set_float(n, "bias", i % 4 < 2 ? 1 : 2);
        fixture_check_own(&f, layouts[i % 3], 5e-6);
    }
}

// Cells, directions, initial states, gradients of the last states, outputs that nobody wants.
static void rnn_grad(void **state)
{
    (void)state;
    static const char *const of[] = {"LSTM", "GRU", "RNN", "RNN"};
    static const char *const directions[] = {"forward", "reverse", "bidirectional"};
    static const int64_t gates[] = {4, 3, 1, 1};
    for (size_t i = 0; i < 4 * 3 * 4; i++) {
        fixture f;
        fixture_open(&f, 9 + i);
        size_t cell = i / 12, way = i / 4 % 3, rest = i % 4;
        int64_t dirs = way == 2 ? 2 : 1, steps = 5, batch = rest == 3 ? 17 : 3, width = 11,
                hid = rest == 3 ? 40 : 9, wide = gates[cell] * hid;
        hth_shape x = SHAPE(steps, batch, width), w = SHAPE(dirs, wide, width),
                  r = SHAPE(dirs, wide, hid), b = SHAPE(dirs, 2 * wide),
                  h = SHAPE(dirs, batch, hid), y = SHAPE(steps, dirs, batch, hid);
        bool c = cell == 0, all = rest > 0;
        int in[9] = {fixture_value(&f, x),
                     fixture_value(&f, w),
                     fixture_value(&f, r),
                     all ? fixture_value(&f, b) : -1,
                     all ? fixture_value(&f, h) : -1,
                     all && c ? fixture_value(&f, h) : -1,
                     rest != 1 ? fixture_value(&f, y) : -1,
                     all ? fixture_value(&f, h) : -1,
                     all && c ? fixture_value(&f, h) : -1};
        int out[6];
        const hth_shape *like[6] = {&x, &w, &r, &b, &h, &h};
        for (int k = 0; k < 6; k++) {
            bool given = k < 3 || (all && (k < 5 || c));
            out[k] = !given || (rest == 2 && k % 2 == 0) ? -1 : fixture_value(&f, *like[k]);
        }
        hth_node *n = fixture_node(&f, HTH_OP_RNN_GRAD, in, 9, out, 6);
        hth_node_set_str(n, "of", of[cell]);
        hth_node_set_str(n, "direction", directions[way]);
        hth_node_set_int(n, "linear_before_reset", 1);
        hth_node_set_int(n, "relu", cell == 3);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-5);
    }
}

// GRU whose reset gate is before the product, of sizes at which rows of a direction begin anywhere.
static void rnn_grad_resets_first(void **state)
{
    (void)state;
    static const char *const directions[] = {"forward", "reverse", "bidirectional"};
    for (size_t i = 0; i < 6; i++) {
        fixture f;
        fixture_open(&f, 11 + i);
        int64_t dirs = i % 3 == 2 ? 2 : 1, batch = i < 3 ? 5 : 1, hid = i < 3 ? 7 : 32;
        hth_shape x = SHAPE(4, batch, 3), w = SHAPE(dirs, 3 * hid, 3),
                  r = SHAPE(dirs, 3 * hid, hid), b = SHAPE(dirs, 6 * hid),
                  h = SHAPE(dirs, batch, hid);
        int in[9] = {fixture_value(&f, x),
                     fixture_value(&f, w),
                     fixture_value(&f, r),
                     fixture_value(&f, b),
                     fixture_value(&f, h),
                     -1,
                     fixture_value(&f, SHAPE(4, dirs, batch, hid)),
                     fixture_value(&f, h),
                     -1},
            out[6] = {fixture_value(&f, x), fixture_value(&f, w), fixture_value(&f, r),
                      fixture_value(&f, b), fixture_value(&f, h), -1};
        hth_node *n = fixture_node(&f, HTH_OP_RNN_GRAD, in, 9, out, 6);
        hth_node_set_str(n, "of", "GRU");
        hth_node_set_str(n, "direction", directions[i % 3]);
        fixture_check(&f, NULL, false, 2e-5);
        fixture_faults(&f, NULL);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_squared_error),
        cmocka_unit_test(group_norm_grad),
        cmocka_unit_test(lrn_grad),
        cmocka_unit_test(rnn_grad),
        cmocka_unit_test(rnn_grad_resets_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
