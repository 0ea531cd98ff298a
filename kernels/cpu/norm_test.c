// SPDX-License-Identifier: Apache-2.0
// Norms, Softmax and reductions on plain tensors against the reference.
#include "kernels/cpu/fixture.h"

static void norm_layer(void **state)
{
    const int64_t sizes[] = {1, 5, 31, 32, 33, 768, 3001};
    for (int i = 0; i < 7; i++) {
        for (int kind = 0; kind < 4;
             kind++) { // LayerNorm without and with bias and statistics, RMSNorm
            fixture f;
            fixture_open(&f, (uint64_t)(i * 4 + kind));
            hth_shape s = SHAPE(3, 4, sizes[i]);
            int in[] = {fixture_value(&f, s), fixture_const(&f, SHAPE(sizes[i])),
                        fixture_const(&f, SHAPE(sizes[i]))};
            int out[] = {fixture_value(&f, s), fixture_value(&f, SHAPE(3, 4, 1)),
                         fixture_value(&f, SHAPE(3, 4, 1))};
            hth_node *n =
                fixture_node(&f, kind == 3 ? HTH_OP_RMSNORMALIZATION : HTH_OP_LAYER_NORMALIZATION,
                             in, kind == 0 || kind == 3 ? 2 : 3, out, kind == 2 ? 3 : 1);
            assert_int_equal(hth_node_set_float(n, "epsilon", 1e-3F), HTH_OK);
            fixture_check(&f, NULL, kind == 1, 1e-5);
            fixture_close(&f);
        }
    }
}

static void norm_channels(void **state)
{
    for (int groups = 1; groups <= 12; groups *= 2) {
        bool instance = groups == 8;
        fixture f;
        fixture_open(&f, (uint64_t)groups);
        hth_shape s = SHAPE(2, 12, 5, 7);
        int in[] = {fixture_value(&f, s), fixture_const(&f, SHAPE(12)),
                    fixture_const(&f, SHAPE(12))};
        int out[] = {fixture_value(&f, s)};
        hth_node *n =
            fixture_node(&f, instance ? HTH_OP_INSTANCE_NORMALIZATION : HTH_OP_GROUP_NORMALIZATION,
                         in, 3, out, 1);
        assert_int_equal(hth_node_set_int(n, "num_groups", instance ? 12 : groups), HTH_OK);
        fixture_check(&f, NULL, false, 1e-5);
        fixture_close(&f);
    }
}

static void reduce_case(hth_op op, hth_shape x, hth_shape y, const int64_t *axes, int64_t count)
{
    fixture f;
    fixture_open(&f, (uint64_t)op);
    int in[] = {fixture_value(&f, x), fixture_const_of(&f, HTH_DT_I64, SHAPE(count), axes)};
    int out[] = {fixture_value(&f, y)};
    hth_node *n = fixture_node(&f, op, in, 2, out, 1);
    assert_int_equal(hth_node_set_int(n, "keepdims", 0), HTH_OK);
    fixture_check(&f, NULL, false, 1e-5);
    fixture_close(&f);
}

static void reductions(void **state)
{
    const hth_op ops[] = {HTH_OP_REDUCE_SUM, HTH_OP_REDUCE_MEAN, HTH_OP_REDUCE_L2,
                          HTH_OP_REDUCE_SUM_SQUARE};
    for (int i = 0; i < 4; i++) {
        reduce_case(ops[i], SHAPE(3, 5, 77), SHAPE(3, 5), (int64_t[]){-1}, 1);
        reduce_case(ops[i], SHAPE(3, 50, 77), SHAPE(3), (int64_t[]){1, 2}, 2);
        reduce_case(ops[i], SHAPE(3, 50, 77), SHAPE(3, 77), (int64_t[]){1}, 1);
        reduce_case(ops[i], SHAPE(30, 5, 77), SHAPE(5, 77), (int64_t[]){0}, 1);
        reduce_case(ops[i], SHAPE(3, 5, 4, 7), SHAPE(5, 7), (int64_t[]){0, 2}, 2);
        reduce_case(ops[i], SHAPE(3, 1, 4), SHAPE(3, 4), (int64_t[]){1}, 1);
    }
}

static void softmax(void **state)
{
    const int64_t sizes[] = {1, 3, 32, 49, 64, 1000};
    for (int i = 0; i < 6; i++) {
        fixture f;
        fixture_open(&f, (uint64_t)i);
        hth_shape s = SHAPE(4, 6, sizes[i]);
        int in[] = {fixture_value(&f, s)}, out[] = {fixture_value(&f, s)};
        fixture_node(&f, HTH_OP_SOFTMAX, in, 1, out, 1);
        fixture_check(&f, NULL, i % 2, 1e-5);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_layer),
        cmocka_unit_test(norm_channels),
        cmocka_unit_test(reductions),
        cmocka_unit_test(softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
