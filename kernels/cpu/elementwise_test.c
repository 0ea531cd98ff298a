// SPDX-License-Identifier: Apache-2.0
// Element-wise operators and movement on plain tensors against the reference; exp, tanh and erf
// against libm over the floats.
#include "kernels/cpu/fixture.h"

#include "kernels/cpu/vector.h"

typedef struct worst {
    double ulp, absolute;
} worst;

static void worst_add(worst *w, float got, double want)
{
    float near = (float)want;
    double ulp = fabs((double)nextafterf(near, INFINITY) - near);
    double diff = fabs((double)got - want);
    w->absolute = !(diff <= w->absolute) ? diff : w->absolute;
    w->ulp = !(diff / ulp <= w->ulp) ? diff / ulp : w->ulp;
}

HTH_VECTOR(functions, (const float *x, float *e, float *t, float *r, size_t n), (x, e, t, r, n))
{
    for (size_t i = 0; i < n; i++) {
        e[i] = hth_expf(x[i]);
        t[i] = hth_tanhf(x[i]);
        r[i] = hth_erff(x[i]);
    }
}

static void mathematics(void **state)
{
    static float x[1024], e[1024], t[1024], r[1024];
    worst we = {0}, wt = {0}, wr = {0};
    // Every 2500th float of magnitude 1e-20 to 86.6, both signs.
    uint32_t first = 0x1e3ce508, last = 0x42ad3333;
    for (uint64_t at = first; at < last; at += 1024 / 2 * 2500) {
        for (uint32_t i = 0; i < 1024; i++) {
            uint32_t bits = (uint32_t)(at + (i / 2) * 2500);
            bits = (bits > last ? last : bits) | (i % 2) << 31;
            memcpy(&x[i], &bits, sizeof bits);
        }
        functions(x, e, t, r, 1024);
        for (int i = 0; i < 1024; i++) {
            worst_add(&we, e[i], exp((double)x[i]));
            worst_add(&wt, t[i], tanh((double)x[i]));
            worst_add(&wr, r[i], erf((double)x[i]));
        }
    }
    print_message("exp %.2f ulp, tanh %.2f ulp, erf %.2g absolute\n", we.ulp, wt.ulp, wr.absolute);
    assert_true(we.ulp < 2 && wt.ulp < 8 && wr.absolute < 6e-7);
    const float ends[8] = {0, -0.0F, INFINITY, -INFINITY, NAN, 89, -104, 88.72F};
    functions(ends, e, t, r, 8);
    assert_true(e[0] == 1 && e[1] == 1 && e[2] == INFINITY && e[3] == 0 && isnan(e[4]));
    assert_true(e[5] == INFINITY && e[6] == 0 && isfinite(e[7]));
    assert_true(fabsf(t[2] - 1) < 5e-7F && t[3] == -t[2] && isnan(t[4]));
    assert_true(fabsf(r[2] - 1) < 1e-6F && isnan(r[4]));
}

static void unary(void **state)
{
    const hth_op ops[] = {HTH_OP_RELU,         HTH_OP_LEAKY_RELU, HTH_OP_SIGMOID, HTH_OP_TANH,
                          HTH_OP_SWISH,        HTH_OP_HARD_SWISH, HTH_OP_ELU,     HTH_OP_GELU,
                          HTH_OP_HARD_SIGMOID, HTH_OP_EXP,        HTH_OP_ERF,     HTH_OP_NEG,
                          HTH_OP_ABS,          HTH_OP_RECIPROCAL};
    const int64_t sizes[] = {1, 31, 33, 2049, 50000};
    for (int i = 0; i < 14 * 5; i++) {
        fixture f;
        fixture_open(&f, (uint64_t)i);
        int in[] = {fixture_value(&f, SHAPE(sizes[i % 5]))},
            out[] = {fixture_value(&f, SHAPE(sizes[i % 5]))};
        fixture_node(&f, ops[i / 5], in, 1, out, 1);
        fixture_check(&f, NULL, i % 2, 2e-6);
        fixture_close(&f);
    }
}

static void binary(void **state)
{
    const hth_op ops[] = {HTH_OP_ADD, HTH_OP_SUB, HTH_OP_MUL, HTH_OP_DIV, HTH_OP_MIN, HTH_OP_MAX};
    const hth_shape pairs[][3] = {
        {SHAPE(3, 70), SHAPE(3, 70), SHAPE(3, 70)},
        {SHAPE(1), SHAPE(3, 70), SHAPE(3, 70)},
        {SHAPE(70), SHAPE(3, 70), SHAPE(3, 70)},
        {SHAPE(3, 1), SHAPE(3, 70), SHAPE(3, 70)},
        {SHAPE(3, 1), SHAPE(1, 70), SHAPE(3, 70)},
        {SHAPE(2, 4, 3, 5, 6), SHAPE(4, 1, 5, 6), SHAPE(2, 4, 3, 5, 6)},
        {SHAPE(2, 4, 30, 50), SHAPE(1, 4, 1, 1), SHAPE(2, 4, 30, 50)},
        {SHAPE(2, 1, 4, 1), SHAPE(3, 1, 5), SHAPE(2, 3, 4, 5)},
        {SHAPE(200, 300), SHAPE(200, 300), SHAPE(200, 300)},
    };
    for (int i = 0; i < 6 * 9; i++) {
        const hth_shape *p = pairs[i / 6];
        fixture f;
        fixture_open(&f, (uint64_t)i);
        int in[] = {fixture_value(&f, p[0]), fixture_value(&f, p[1])},
            out[] = {fixture_value(&f, p[2])};
        fixture_node(&f, ops[i % 6], in, 2, out, 1);
        fixture_check(&f, NULL, i % 2, 1e-6);
        fixture_close(&f);
    }
}

static void transpose_case(hth_shape shape, const int64_t *perm)
{
    fixture f;
    hth_shape y = {.rank = shape.rank};
    for (int i = 0; i < shape.rank; i++) {
        y.dim[i] = shape.dim[perm[i]];
    }
    fixture_open(&f, 1);
    int in[] = {fixture_value(&f, shape)}, out[] = {fixture_value(&f, y)};
    hth_node *n = fixture_node(&f, HTH_OP_TRANSPOSE, in, 1, out, 1);
    assert_int_equal(hth_node_set_ints(n, "perm", perm, shape.rank), HTH_OK);
    fixture_check(&f, NULL, false, 0);
    fixture_close(&f);
}

static void movement(void **state)
{
    transpose_case(SHAPE(5, 7), (int64_t[]){1, 0});
    transpose_case(SHAPE(100, 333), (int64_t[]){1, 0});
    transpose_case(SHAPE(2, 30, 17, 19), (int64_t[]){0, 2, 3, 1});
    transpose_case(SHAPE(4, 8, 3, 32), (int64_t[]){2, 0, 1, 3});
    transpose_case(SHAPE(64, 1, 700), (int64_t[]){1, 0, 2}); // nothing moves
    fixture f;
    fixture_open(&f, 2);
    int in[] = {fixture_value(&f, SHAPE(9, 50, 40)),
                fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){1, -30}),
                fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){8, 1000}),
                fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){0, -2}),
                fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){3, 1})};
    int out[] = {fixture_value(&f, SHAPE(3, 30, 40))};
    fixture_node(&f, HTH_OP_SLICE, in, 5, out, 1);
    fixture_check(&f, NULL, false, 0);
    int data[] = {fixture_value(&f, SHAPE(3, 20, 16)),
                  fixture_const_of(&f, HTH_DT_I64, SHAPE(2, 2), (int64_t[]){0, -1, 19, 7})};
    int rows[] = {fixture_value(&f, SHAPE(3, 2, 2, 16))};
    hth_node *n = fixture_node(&f, HTH_OP_GATHER, data, 2, rows, 1);
    assert_int_equal(hth_node_set_int(n, "axis", 1), HTH_OK);
    fixture_check(&f, NULL, false, 0);
    int small[] = {fixture_value(&f, SHAPE(3, 1, 5)),
                   fixture_const_of(&f, HTH_DT_I64, SHAPE(4), (int64_t[]){2, 1, 4, 1})};
    int large[] = {fixture_value(&f, SHAPE(2, 3, 4, 5))};
    fixture_node(&f, HTH_OP_EXPAND, small, 2, large, 1);
    fixture_check(&f, NULL, false, 0);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mathematics),
        cmocka_unit_test(unary),
        cmocka_unit_test(binary),
        cmocka_unit_test(movement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
