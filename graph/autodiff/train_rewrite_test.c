// SPDX-License-Identifier: Apache-2.0
// What train_shorten rewrites computes what it did before.
#include "graph/test_words.h"
#include "tests/rig/train_run.h"

#define SIDE 3

// x (2 x)^T + w, the product in elements of type `type`, the transposed matrix scaled.
static void check_scaled_product(hth_dtype type)
{
    char text[256];
    const hth_train_options o = {.loss = HTH_LOSS_MSE, .keep_outputs = true};
    const hth_tensor in = {.dtype = HTH_DT_F32, .shape = {2, {SIDE, SIDE}}};
    hth_train_graph t;
    snprintf(text, sizeof text,
             "x:3,3; h=Cast(x) to=%d; k=Cast(#v2) to=%d; u=Transpose(h) perm=1,0; m=Mul(u k); "
             "p=MatMul(h m); f=Cast(p) to=1; y=Add(f #f3,3); -> y",
             type, type);
    hth_graph *g = words_graph(text);
    for (int v = 0; v < g->n_values; v++) {
        bool matrix = g->values[v].constant != NULL && g->values[v].shape.rank == 2;
        g->values[v].initializer = matrix ? 1 : 0;
    }
    if (hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    train_run run = run_open(&t);
    float *x = run_input(&run, 0)->data;
    for (int i = 0; i < SIDE * SIDE; i++) {
        x[i] = (float)(i * 7 % 5);
    }
    run_step(&run);
    const float *y = run_output(&run, t.first_output)->data,
                *w = run_input(&run, t.slots[0].input)->data;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            float sum = w[i * SIDE + j];
            for (int k = 0; k < SIDE; k++) {
                sum += x[i * SIDE + k] * 2 * x[j * SIDE + k];
            }
            assert_true(y[i * SIDE + j] == sum);
        }
    }
    run_close(&run);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

static void test_scaled_products(void **state)
{
    check_scaled_product(HTH_DT_F32);
    check_scaled_product(HTH_DT_F64);
    check_scaled_product(HTH_DT_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaled_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
