// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_test.c - the reference kernels against ONNX's own node tests, and what those do
// not cover: post ops, 16-bit floats, in-place results, indices out of range, results that size
// themselves. With an argument: only the cases of that operator, or whose name contains it.
#include "kernels/ref/ref.h"

#include "base/alloc.h"
#include "tests/rig/ref_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *test_only; // from the command line

// Relative to the largest magnitude of the tensor, and to the element.
static double test_tolerance(hth_dtype dt)
{
    if (dt == HTH_DT_F16) {
        return 2e-3;
    }
    return dt == HTH_DT_BF16 ? 1.6e-2 : 1e-6;
}

static bool test_same_float(double got, double want, double largest, double tolerance)
{
    if (isnan(want) || isinf(want)) {
        return isnan(want) ? isnan(got) : got == want;
    }
    return fabs(got - want) <= tolerance * (largest + fabs(want));
}

static bool test_same(const hth_tensor *got, const hth_tensor *want)
{
    if (got->dtype != want->dtype || !hth_shape_equal(&got->shape, &want->shape)) {
        return false;
    }
    if (ref_is_int(want->dtype)) {
        return want->bytes == 0 || memcmp(got->data, want->data, want->bytes) == 0;
    }
    double largest = 0;
    for (int64_t i = 0; i < ref_count(want); i++) {
        double v = fabs(ref_get_f64(want->dtype, want->data, i));
        largest = isfinite(v) && v > largest ? v : largest;
    }
    for (int64_t i = 0; i < ref_count(want); i++) {
        double g = ref_get_f64(got->dtype, got->data, i),
               w = ref_get_f64(want->dtype, want->data, i);
        if (!test_same_float(g, w, largest, test_tolerance(want->dtype))) {
            print_message("    [%lld] is %.9g, not %.9g\n", (long long)i, g, w);
            return false;
        }
    }
    return true;
}

// The outputs get exactly the memory that they need, so that a sanitizer sees any write beyond.
static bool test_case(ref_case *c)
{
    hth_graph g = {0};
    hth_tensor out[REF_CASE_TENSORS];
    for (int i = 0; i < c->node.n_outputs; i++) {
        out[i] = c->want[i];
        out[i].data = c->want[i].data ? hth_alloc(c->want[i].bytes) : NULL;
        if (out[i].data != NULL) {
            memset(out[i].data, 0xa5, out[i].bytes);
        }
    }
    hth_err err = hth_ref_eval(NULL, &g, &c->node, c->in, out);
    bool good = err == HTH_OK;
    if (!good) {
        print_message("    %s: %s\n", hth_strerror(err), hth_err_detail());
    }
    for (int i = 0; i < c->node.n_outputs; i++) {
        good = good && (c->want[i].data == NULL || test_same(&out[i], &c->want[i]));
        hth_free(out[i].data);
    }
    return good;
}

static bool test_skips(const ref_case *c)
{
    return test_only && strcmp(hth_op_name(c->node.op), test_only) != 0 &&
           strstr(c->name, test_only) == NULL;
}

static void test_onnx_cases(void **state)
{
    ref_cases f;
    ref_case c;
    int ran = 0, failed = 0;
    assert_true(ref_cases_open(&f, "tests/data/ref_cases.bin"));
    for (; ref_cases_next(&f, &c); ref_case_clear(&c)) {
        const char *op = hth_op_name(c.node.op);
        if (test_skips(&c)) {
            continue;
        }
        ran++;
        if (!test_case(&c)) {
            print_message("  %s (%s) differs\n", c.name, op);
            failed++;
        }
    }
    assert_false(f.bad);
    ref_case_clear(&c);
    ref_cases_close(&f);
    print_message("%d of %d cases agree\n", ran - failed, ran);
    assert_int_equal(failed, 0);
}

static uint32_t test_random(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

// test_damage changes one dimension, one number of an integer input, or one attribute.
static void test_damage(ref_case *c, uint32_t *seed)
{
    static const int64_t values[] = {0, 1, 2, -1, -3, 7, 1000, INT64_MIN, INT64_MAX};
    int64_t v = values[test_random(seed, sizeof values / sizeof *values)];
    hth_node *n = &c->node;
    uint32_t what = test_random(seed, 4);
    if (what == 0 && n->n_attrs > 0) {
        hth_attr *a = &c->attrs[test_random(seed, (uint32_t)n->n_attrs)];
        if (a->type == HTH_ATTR_INT) {
            a->u.i = v;
        } else if (a->type == HTH_ATTR_INTS && a->n > 0) {
            a->u.ints[test_random(seed, (uint32_t)a->n)] = v;
        }
        return;
    }
    bool is_out = what == 1 || n->n_inputs == 0;
    int count = is_out ? n->n_outputs : n->n_inputs;
    hth_tensor *t = is_out ? &c->want[test_random(seed, (uint32_t)count)]
                           : &c->in[test_random(seed, (uint32_t)count)];
    if (t->data != NULL && t->bytes > 0 && what == 3 && ref_is_int(t->dtype)) {
        ref_set_i64(t->dtype, t->data, (int64_t)test_random(seed, (uint32_t)ref_count(t)), v);
    } else if (t->shape.rank > 0) {
        t->shape.dim[test_random(seed, (uint32_t)t->shape.rank)] = test_random(seed, 5);
        t->shape.rank -= (int)test_random(seed, 4) == 0;
    }
}

// Nodes whose inputs contradict each other: any result code, but no access outside of the buffers
// (for sanitizers).
static void test_damaged_cases(void **state)
{
    ref_cases f;
    ref_case c;
    int refused = 0;
    for (uint32_t round = 0; round < 8; round++) {
        uint32_t seed = round * 7919u + 1;
        assert_true(ref_cases_open(&f, "tests/data/ref_cases.bin"));
        for (; ref_cases_next(&f, &c); ref_case_clear(&c)) {
            if (test_skips(&c)) {
                continue;
            }
            hth_graph g = {0};
            hth_tensor out[REF_CASE_TENSORS];
            test_damage(&c, &seed);
            bool sized = true;
            for (int i = 0; i < c.node.n_outputs; i++) {
                out[i] = c.want[i];
                sized = sized && hth_tensor_bytes(out[i].dtype, &out[i].shape, HTH_LAYOUT_PLAIN,
                                                  &out[i].bytes) == HTH_OK;
                out[i].data =
                    c.want[i].dtype != HTH_DT_NONE ? hth_calloc(1, out[i].bytes + 1) : NULL;
            }
            refused += sized && hth_ref_eval(NULL, &g, &c.node, c.in, out) != HTH_OK;
            for (int i = 0; i < c.node.n_outputs; i++) {
                hth_free(out[i].data);
            }
        }
        ref_case_clear(&c);
        ref_cases_close(&f);
    }
    assert_true(test_only != NULL || refused > 1000);
}

// A node of up to four operands on the stack, for what the cases do not cover.
static const int test_positions[] = {0, 1, 2, 3};
static hth_node test_node(hth_op op, int n_inputs)
{
    return (hth_node){.name = (char *)"n",
                      .op = op,
                      .n_inputs = n_inputs,
                      .n_outputs = 1,
                      .inputs = (int *)test_positions,
                      .outputs = (int *)test_positions};
}

static hth_tensor test_tensor(hth_dtype dt, void *data, int rank, int64_t d0, int64_t d1)
{
    hth_tensor t = {.dtype = dt, .data = data, .shape = {.rank = rank, .dim = {d0, d1}}};
    t.bytes = (size_t)ref_count(&t) * hth_dtype_bytes(dt);
    return t;
}

static hth_err test_eval(const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    hth_graph g = {0};
    return hth_ref_eval(NULL, &g, node, in, out);
}

// clip(leaky(2 * x + 0.5 * row)) * row, by hand.
static void test_post_ops(void **state)
{
    float x[6] = {-3, -2, -1, 1, 2, 3}, two = 2, row[3] = {1, 2, 4}, y[6];
    hth_node n = test_node(HTH_OP_MUL, 3);
    n.n_post = 4;
    n.post[0] = (hth_post_op){HTH_OP_ADD, 2, 0.5f, 0};
    n.post[1] = (hth_post_op){HTH_OP_LEAKY_RELU, -1, 0.5f, 0};
    n.post[2] = (hth_post_op){HTH_OP_CLIP, -1, -2, 7};
    n.post[3] = (hth_post_op){HTH_OP_MUL, 2, 0, 0};
    hth_tensor in[3] = {test_tensor(HTH_DT_F32, x, 2, 2, 3), test_tensor(HTH_DT_F32, &two, 0, 0, 0),
                        test_tensor(HTH_DT_F32, row, 1, 3, 0)};
    hth_tensor out = test_tensor(HTH_DT_F32, y, 2, 2, 3);
    const float want[6] = {-2, -3, 0, 2.5f, 10, 28};
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(y, want, sizeof want);
    n.post[1].op = HTH_OP_CONV;
    assert_int_equal(test_eval(&n, in, &out), HTH_ENOTSUP);
}

// 16-bit floats are rounded once, after the post ops: 1 + 2^-11 is a tie that rounds down unless
// something follows.
static void test_half(void **state)
{
    uint16_t a = hth_f32_to_f16(1), b = hth_f32_to_f16(0x1p-11f), y = 0;
    hth_node n = test_node(HTH_OP_ADD, 2);
    hth_tensor in[2] = {test_tensor(HTH_DT_F16, &a, 1, 1, 0), test_tensor(HTH_DT_F16, &b, 1, 1, 0)};
    hth_tensor out = test_tensor(HTH_DT_F16, &y, 1, 1, 0);
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_int_equal(y, a);
    n.n_post = 1;
    hth_tensor both[3] = {in[0], in[1], in[1]};
    n.post[0] = (hth_post_op){HTH_OP_ADD, 2, 1, 0};
    n.n_inputs = 3;
    assert_int_equal(test_eval(&n, both, &out), HTH_OK);
    assert_int_equal(y, a + 1);
}

static void test_in_place(void **state)
{
    int32_t x[4] = {1, -2, 3, -4}, row[2] = {10, 20};
    hth_node n = test_node(HTH_OP_SUB, 2);
    hth_tensor in[2] = {test_tensor(HTH_DT_I32, x, 2, 2, 2), test_tensor(HTH_DT_I32, row, 1, 2, 0)};
    hth_tensor out = in[0];
    const int32_t want[4] = {-9, -22, -7, -24};
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(x, want, sizeof want);
}

static void test_bad_indices(void **state)
{
    float data[4] = {1, 2, 3, 4}, one[1] = {9}, y[4];
    int64_t index[1] = {4};
    hth_tensor in[3] = {test_tensor(HTH_DT_F32, data, 1, 4, 0),
                        test_tensor(HTH_DT_I64, index, 1, 1, 0),
                        test_tensor(HTH_DT_F32, one, 1, 1, 0)};
    hth_tensor single = test_tensor(HTH_DT_F32, y, 1, 1, 0),
               all = test_tensor(HTH_DT_F32, y, 1, 4, 0);
    hth_node gather = test_node(HTH_OP_GATHER, 2), elements = test_node(HTH_OP_GATHER_ELEMENTS, 2);
    hth_node scatter = test_node(HTH_OP_SCATTER_ELEMENTS, 3);
    for (int k = 0; k < 3; k++) {
        index[0] = (int64_t[]){4, -5, INT64_MIN}[k];
        assert_int_equal(test_eval(&gather, in, &single), HTH_EINVAL);
        assert_int_equal(test_eval(&elements, in, &single), HTH_EINVAL);
        assert_int_equal(test_eval(&scatter, in, &all), HTH_EINVAL);
    }
    index[0] = -4;
    assert_int_equal(test_eval(&gather, in, &single), HTH_OK);
    assert_true(y[0] == 1);
    in[1].shape = (hth_shape){.rank = 2, .dim = {1, 1}};
    hth_node nd = test_node(HTH_OP_SCATTER_ND, 3);
    assert_int_equal(test_eval(&nd, in, &all), HTH_OK);
    assert_true(y[0] == 9 && y[1] == 2);
    index[0] = 4;
    assert_int_equal(test_eval(&nd, in, &all), HTH_EINVAL);
    assert_non_null(strstr(hth_err_detail(), "ScatterND"));
}

static void test_sizes_itself(void **state)
{
    float x[6] = {0, 1, 2, 0, 0, NAN};
    int64_t y[6];
    hth_node n = test_node(HTH_OP_NON_ZERO, 1);
    hth_tensor in = test_tensor(HTH_DT_F32, x, 2, 2, 3),
               out = {.dtype = HTH_DT_I64, .shape = HTH_SHAPE_UNKNOWN};
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_int_equal(out.shape.dim[0], 2);
    assert_int_equal(out.shape.dim[1], 3);
    assert_int_equal(out.bytes, sizeof y);
    out.data = y;
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_memory_equal(y, ((int64_t[]){0, 0, 1, 1, 2, 2}), sizeof y);
}

// What numpy gives for x.astype(..) on x86.
static void test_cast(void **state)
{
    double x[6] = {-1.9, 300, 2147483648.0, 1e19, NAN, -0.0};
    uint8_t u8[6];
    int32_t i32[6];
    uint64_t u64[6];
    bool b[6];
    hth_node n = test_node(HTH_OP_CAST, 1);
    hth_tensor in = test_tensor(HTH_DT_F64, x, 1, 6, 0), out = test_tensor(HTH_DT_U8, u8, 1, 6, 0);
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_memory_equal(u8, ((uint8_t[]){255, 44, 0, 0, 0, 0}), 6);
    out = test_tensor(HTH_DT_I32, i32, 1, 6, 0);
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_memory_equal(i32, ((int32_t[]){-1, 300, INT32_MIN, INT32_MIN, INT32_MIN, 0}), 24);
    out = test_tensor(HTH_DT_U64, u64, 1, 6, 0);
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_true(u64[0] == UINT64_MAX && u64[3] == 10000000000000000000u);
    out = test_tensor(HTH_DT_BOOL, b, 1, 6, 0);
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_memory_equal(b, ((bool[]){1, 1, 1, 1, 1, 0}), 6);
}

// Integer operators have no undefined corner: division by zero, overflow, shifts beyond the width.
static void test_integer_corners(void **state)
{
    int64_t x[4] = {INT64_MIN, 7, -7, INT64_MAX}, y[4] = {-1, 0, 2, 2}, z[4];
    hth_tensor in[2] = {test_tensor(HTH_DT_I64, x, 1, 4, 0), test_tensor(HTH_DT_I64, y, 1, 4, 0)};
    hth_tensor out = test_tensor(HTH_DT_I64, z, 1, 4, 0);
    hth_node n = test_node(HTH_OP_DIV, 2);
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(z, ((int64_t[]){INT64_MIN, 0, -3, INT64_MAX / 2}), sizeof z);
    n.op = HTH_OP_MOD;
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(z, ((int64_t[]){0, 0, 1, 1}), sizeof z);
    n.op = HTH_OP_MUL;
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(z, ((int64_t[]){INT64_MIN, 0, -14, -2}), sizeof z);
}

// What numpy gives: Shrink computes in double, and the result wraps as a cast does.
static void test_integer_shrink(void **state)
{
    int32_t x[5] = {-3, -1, 0, 1, 3}, y[5];
    uint8_t u[3] = {0, 1, 255};
    hth_node n = test_node(HTH_OP_SHRINK, 1);
    hth_attr attr[2] = {{.name = (char *)"bias", .type = HTH_ATTR_FLOAT, .u.f = 1},
                        {.name = (char *)"lambd", .type = HTH_ATTR_FLOAT, .u.f = 1.5f}};
    n.attrs = attr;
    n.n_attrs = 2;
    hth_tensor in = test_tensor(HTH_DT_I32, x, 1, 5, 0), out = test_tensor(HTH_DT_I32, y, 1, 5, 0);
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_memory_equal(y, ((int32_t[]){-2, 0, 0, 0, 2}), sizeof y);
    attr[0].u.f = -1.5f;
    in = out = test_tensor(HTH_DT_U8, u, 1, 3, 0); // in place
    assert_int_equal(test_eval(&n, &in, &out), HTH_OK);
    assert_memory_equal(u, ((uint8_t[]){0, 0, 0}), sizeof u);
}

// ReduceLogSumExp of integers computes in double and truncates, along either axis.
static void test_integer_lse(void **state)
{
    int32_t x[6] = {1, 2, 3, 1000, -7, 1000}, y[3];
    uint64_t u[2] = {40, 40}, v;
    int64_t axis = 1;
    hth_node n = test_node(HTH_OP_REDUCE_LOG_SUM_EXP, 2);
    hth_tensor in[2] = {test_tensor(HTH_DT_I32, x, 2, 2, 3),
                        test_tensor(HTH_DT_I64, &axis, 1, 1, 0)};
    hth_tensor out = test_tensor(HTH_DT_I32, y, 2, 2, 1);
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(y, ((int32_t[]){3, 1000}), 2 * sizeof *y);
    axis = 0;
    out = test_tensor(HTH_DT_I32, y, 2, 1, 3);
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_memory_equal(y, ((int32_t[]){1000, 2, 1000}), sizeof y);
    in[0] = test_tensor(HTH_DT_U64, u, 1, 2, 0);
    out = test_tensor(HTH_DT_U64, &v, 1, 1, 0);
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    assert_int_equal(v, 40);
}

// Buffers that are too small, shapes that do not broadcast, layouts, unknown dtypes: a sentence, no
// access.
static void test_refusals(void **state)
{
    float x[4] = {0}, y[4];
    hth_node n = test_node(HTH_OP_ADD, 2);
    hth_tensor in[2] = {test_tensor(HTH_DT_F32, x, 1, 4, 0), test_tensor(HTH_DT_F32, x, 1, 3, 0)};
    hth_tensor out = test_tensor(HTH_DT_F32, y, 1, 4, 0);
    assert_int_equal(test_eval(&n, in, &out), HTH_EINVAL);
    in[1] = in[0];
    in[1].bytes = 8;
    assert_int_equal(test_eval(&n, in, &out), HTH_EINVAL);
    in[1] = in[0];
    in[1].layout = HTH_LAYOUT_NHWC;
    assert_int_equal(test_eval(&n, in, &out), HTH_ENOTSUP);
    in[1] = in[0];
    in[1].dtype = HTH_DT_STRING;
    assert_int_equal(test_eval(&n, in, &out), HTH_ENOTSUP);
    in[1] = in[0];
    assert_int_equal(test_eval(&n, in, &out), HTH_OK);
    in[0] = in[1] = out = (hth_tensor){
        .dtype = HTH_DT_F32, .data = x, .bytes = sizeof *x, .shape = {6, {1, 1, 1, 1, 1, 1}}};
    n.op = HTH_OP_CONV;
    assert_int_equal(test_eval(&n, in, &out), HTH_ENOTSUP);
    assert_string_equal(hth_err_detail(),
                        "node 'n' (Conv): 4 spatial dimensions are not supported");
}

// Every allocation of a widened reduction fails once: an error each time, and nothing is left
// after.
static void test_out_of_memory(void **state)
{
    uint16_t x[4] = {0x3c00, 0x4000, 0x4200, 0x4400}, y[1];
    hth_node n = test_node(HTH_OP_REDUCE_SUM, 1);
    hth_tensor in = test_tensor(HTH_DT_F16, x, 1, 4, 0), out = test_tensor(HTH_DT_F16, y, 1, 1, 0);
    int64_t live = hth_alloc_live();
    uint64_t nth = 1;
    for (hth_err err = HTH_ENOMEM; err != HTH_OK; nth++) {
        hth_fault_alloc(nth);
        err = test_eval(&n, &in, &out);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_int_equal(hth_alloc_live(), live);
    }
    assert_true(nth > 3);
    assert_int_equal(y[0], 0x4900); // 10
}

int main(int argc, char **argv)
{
    test_only = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_onnx_cases),      cmocka_unit_test(test_damaged_cases),
        cmocka_unit_test(test_post_ops),        cmocka_unit_test(test_half),
        cmocka_unit_test(test_in_place),        cmocka_unit_test(test_bad_indices),
        cmocka_unit_test(test_sizes_itself),    cmocka_unit_test(test_cast),
        cmocka_unit_test(test_integer_corners), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),   cmocka_unit_test(test_integer_shrink),
        cmocka_unit_test(test_integer_lse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
