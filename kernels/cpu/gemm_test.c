// SPDX-License-Identifier: Apache-2.0
// MatMul, Gemm, LSTM and GRU against the reference: shapes around the sizes of tiles, blocks and
// panels, both ways of sharing, transposed operands, broadcast batches, every kind of post op.
#include "kernels/cpu/fixture.h"

#define TOLERANCE 2e-6

static void gemm_case(int64_t m, int64_t n, int64_t k, bool ta, bool tb, int bias, float alpha,
                      bool constant)
{
    fixture f;
    fixture_open(&f, (uint64_t)(m * 131 + n * 17 + k));
    hth_shape sb = tb ? SHAPE(n, k) : SHAPE(k, n);
    const hth_shape biases[] = {SHAPE(1), SHAPE(n), SHAPE(m, 1), SHAPE(m, n), SHAPE(1)};
    hth_shape sc = biases[bias];
    int in[] = {fixture_value(&f, ta ? SHAPE(k, m) : SHAPE(m, k)),
                constant ? fixture_const(&f, sb) : fixture_value(&f, sb),
                bias ? fixture_value(&f, sc) : -1};
    int out[] = {fixture_value(&f, SHAPE(m, n))};
    hth_node *node = fixture_node(&f, HTH_OP_GEMM, in, bias ? 3 : 2, out, 1);
    assert_int_equal(hth_node_set_int(node, "transA", ta), HTH_OK);
    assert_int_equal(hth_node_set_int(node, "transB", tb), HTH_OK);
    assert_int_equal(hth_node_set_float(node, "alpha", alpha), HTH_OK);
    assert_int_equal(hth_node_set_float(node, "beta", 0.75F), HTH_OK);
    fixture_check(&f, NULL, false, TOLERANCE);
    fixture_close(&f);
}

static void gemm_shapes(void **state)
{
    const int64_t sizes[] = {1, 2, 13, 15, 31, 33, 64, 129};
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            gemm_case(sizes[i], sizes[j], sizes[(i + j) % 8], i % 2, j % 2, (i + j) % 5, 1,
                      j % 3 > 0);
        }
    }
    gemm_case(300, 70, 400, false, true, 1, 0.5F, true); // blocks of rows and of depth
    gemm_case(530, 33, 1000, true, false, 3, 1, false);
    gemm_case(300, 70, 1000, true, false, 1, 0.5F, false);
    gemm_case(1, 1000, 800, false, true, 1, 1, true);
}

static void matmul_case(hth_shape a, hth_shape b, hth_shape y, bool constant)
{
    fixture f;
    fixture_open(&f, (uint64_t)hth_shape_elements(&y));
    int in[] = {fixture_value(&f, a), constant ? fixture_const(&f, b) : fixture_value(&f, b)};
    int out[] = {fixture_value(&f, y)};
    fixture_node(&f, HTH_OP_MAT_MUL, in, 2, out, 1);
    fixture_check(&f, NULL, false, TOLERANCE);
    fixture_close(&f);
}

static void matmul_batches(void **state)
{
    for (int constant = 0; constant < 2; constant++) {
        matmul_case(SHAPE(2, 9, 40), SHAPE(40, 50), SHAPE(2, 9, 50), constant);
        matmul_case(SHAPE(3, 2, 9, 40), SHAPE(3, 2, 40, 50), SHAPE(3, 2, 9, 50), constant);
        matmul_case(SHAPE(3, 1, 9, 40), SHAPE(5, 40, 50), SHAPE(3, 5, 9, 50), constant);
        matmul_case(SHAPE(40), SHAPE(3, 40, 8), SHAPE(3, 8), constant);
        matmul_case(SHAPE(7, 40), SHAPE(40), SHAPE(7), constant);
        matmul_case(SHAPE(70, 200), SHAPE(2, 200, 90), SHAPE(2, 70, 90), constant);
    }
}

static void matmul_posts(void **state)
{
    const hth_op unary[] = {HTH_OP_RELU, HTH_OP_LEAKY_RELU,   HTH_OP_CLIP,       HTH_OP_SIGMOID,
                            HTH_OP_TANH, HTH_OP_SWISH,        HTH_OP_HARD_SWISH, HTH_OP_ELU,
                            HTH_OP_GELU, HTH_OP_HARD_SIGMOID, HTH_OP_GELU};
    const hth_shape operands[] = {SHAPE(45),        SHAPE(1),        SHAPE(2, 3, 7, 45),
                                  SHAPE(7, 45),     SHAPE(3, 1, 45), SHAPE(2, 1, 7, 1),
                                  SHAPE(1, 3, 1, 1)};
    for (int i = 0; i < 11; i++) {
        for (int o = 0; o < 7; o++) {
            fixture f;
            fixture_open(&f, (uint64_t)(i * 7 + o));
            int in[] = {fixture_value(&f, SHAPE(2, 3, 7, 20)), fixture_const(&f, SHAPE(20, 45)),
                        fixture_value(&f, operands[o]), fixture_const(&f, SHAPE(45))};
            int out[] = {fixture_value(&f, SHAPE(2, 3, 7, 45))};
            hth_node *n = fixture_node(&f, HTH_OP_MAT_MUL, in, 4, out, 1);
            n->post[0] = (hth_post_op){HTH_OP_ADD, 3, 1, 0};
            float alpha = i == 10 ? 1.0F : 0.3F;
            n->post[1] = (hth_post_op){unary[i], -1, i == 8 ? 0.0F : alpha, 0.6F};
            n->post[2] =
                (hth_post_op){o % 2 ? HTH_OP_ADD : HTH_OP_MUL, 2, o == 3 ? -1.0F : 1.0F, 0};
            n->n_post = 3;
            fixture_check(&f, NULL, false, 1e-5);
            fixture_close(&f);
        }
    }
}

static void recurrent_case(hth_op op, int64_t batch, int64_t hid, const char *direction, int inputs)
{
    const int64_t steps = 5, width = 19, gates = op == HTH_OP_LSTM ? 4 : 3;
    const int64_t dirs = direction[0] == 'b' ? 2 : 1;
    fixture f;
    fixture_open(&f, (uint64_t)(batch * hid + inputs));
    int in[] = {fixture_value(&f, SHAPE(steps, batch, width)),
                fixture_const(&f, SHAPE(dirs, gates * hid, width)),
                fixture_const(&f, SHAPE(dirs, gates * hid, hid)),
                fixture_const(&f, SHAPE(dirs, 2 * gates * hid)),
                -1,
                fixture_value(&f, SHAPE(dirs, batch, hid)),
                fixture_value(&f, SHAPE(dirs, batch, hid))};
    int out[] = {fixture_value(&f, SHAPE(steps, dirs, batch, hid)),
                 fixture_value(&f, SHAPE(dirs, batch, hid)),
                 fixture_value(&f, SHAPE(dirs, batch, hid))};
    hth_node *n = fixture_node(&f, op, in, inputs, out, op == HTH_OP_LSTM ? 3 : 2);
    assert_int_equal(hth_node_set_str(n, "direction", direction), HTH_OK);
    assert_int_equal(hth_node_set_int(n, "hidden_size", hid), HTH_OK);
    assert_int_equal(hth_node_set_int(n, "linear_before_reset", 1), HTH_OK);
    fixture_check(&f, NULL, false, 1e-5);
    fixture_close(&f);
}

static void recurrent(void **state)
{
    const char *const directions[] = {"forward", "reverse", "bidirectional"};
    for (int i = 0; i < 12; i++) {
        recurrent_case(HTH_OP_LSTM, 1 + i % 3, i % 2 ? 48 : 7, directions[i / 4], i < 6 ? 7 : 4);
        recurrent_case(HTH_OP_GRU, 1 + i % 3, i % 2 ? 48 : 7, directions[i / 4], i % 4 ? 6 : 3);
    }
    recurrent_case(HTH_OP_LSTM, 64, 130, "bidirectional", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_shapes),
        cmocka_unit_test(matmul_batches),
        cmocka_unit_test(matmul_posts),
        cmocka_unit_test(recurrent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
