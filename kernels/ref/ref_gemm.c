// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_gemm.c - Gemm and MatMul.
//
// Floats multiply in double. Integers multiply modulo 2^64, which is what any narrower type's
// wrap-around follows from.
#include "kernels/ref/ref_num.h"

// The operand in double; turned: each of its matrices transposed.
static hth_err gemm_operand(ref_mem *mem, const hth_tensor *tensor, int64_t rows, int64_t cols,
                            bool turned, double **out)
{
    double *x;
    HTH_TRY(ref_wide(mem, tensor, &x));
    *out = x;
    if (turned) {
        HTH_TRY(REF_TAKE(mem, ref_count(tensor), out));
        for (int64_t at = 0; at < ref_count(tensor); at += rows * cols) {
            ref_transpose_f64(x + at, rows, cols, *out + at);
        }
    }
    return HTH_OK;
}

// All dimensions but the last as rows (attribute flatten; a matrix stays as it is).
static hth_shape gemm_matrix(const hth_shape *shape)
{
    return (hth_shape){2, {ref_span(shape, 0, shape->rank - 1), shape->dim[shape->rank - 1]}};
}

static hth_err gemm_body(ref_mem *mem, const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    const hth_tensor *bias = ref_in(node, in, 2);
    bool ta = hth_node_int(node, "transA", 0) != 0, tb = hth_node_int(node, "transB", 0) != 0;
    double alpha = hth_node_float(node, "alpha", 1), beta = hth_node_float(node, "beta", 1), *a, *b,
           *c = NULL, *y;
    const hth_shape *sy = &out[0].shape;
    bool flat = hth_node_int(node, "flatten", 0) != 0;
    HTH_TRY(ref_need_rank(&in[0], 2));
    HTH_TRY(ref_need_rank(&in[1], 2));
    hth_shape ma = flat ? gemm_matrix(&in[0].shape) : in[0].shape;
    hth_shape mb = flat ? gemm_matrix(&in[1].shape) : in[1].shape;
    hth_shape *sa = &ma, *sb = &mb;
    if (sa->rank != 2 || sb->rank != 2 || sy->rank != 2 || sa->dim[!ta] != sb->dim[tb] ||
        sy->dim[0] != sa->dim[ta] || sy->dim[1] != sb->dim[!tb]) {
        return hth_fail(HTH_EINVAL, "the matrices' shapes do not agree");
    }
    int64_t rows = sy->dim[0], cols = sy->dim[1], k = sb->dim[tb];
    HTH_TRY(gemm_operand(mem, &in[0], sa->dim[0], sa->dim[1], ta, &a));
    HTH_TRY(gemm_operand(mem, &in[1], sb->dim[0], sb->dim[1], tb, &b));
    HTH_TRY(REF_TAKE(mem, rows * cols, &y));
    if (bias) {
        HTH_TRY(ref_expand(mem, bias, sy, &c));
    }
    ref_gemm_f64(rows, cols, k, a, k, b, cols, y, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        y[i] = alpha * y[i] + (c ? beta * c[i] : 0);
    }
    ref_round(y, &out[0]);
    return HTH_OK;
}

// The product of one pair of matrices (rows, k) x (k, cols), which stand at element offsets a and
// b.
typedef struct gemm_pair {
    int64_t rows, cols, k, a, b, y;
} gemm_pair;

static void gemm_pair_u64(const gemm_pair *pair, const uint64_t *a, const uint64_t *b, uint64_t *y)
{
    for (int64_t i = 0; i < pair->rows; i++) {
        for (int64_t k = 0; k < pair->k && !hth_pace_over((uint64_t)pair->cols); k++) {
            uint64_t v = a[pair->a + i * pair->k + k];
            for (int64_t j = 0; j < pair->cols; j++) {
                y[pair->y + i * pair->cols + j] += v * b[pair->b + k * pair->cols + j];
            }
        }
    }
}

static hth_err gemm_load_int(ref_mem *mem, const hth_tensor *tensor, uint64_t **out)
{
    HTH_TRY(REF_TAKE(mem, ref_count(tensor), out));
    ref_load_i64(tensor->dtype, tensor->data, 1, ref_count(tensor), (int64_t *)*out);
    return HTH_OK;
}

// The batch dimensions of an operand, as numbers of matrices.
static hth_shape gemm_batch(const hth_shape *shape)
{
    hth_shape batch = {.rank = shape->rank > 2 ? shape->rank - 2 : 0};
    for (int i = 0; i < batch.rank; i++) {
        batch.dim[i] = shape->dim[i];
    }
    return batch;
}

// MatMul's own attributes; vectors are left alone.
static int gemm_turned(const hth_node *node, const char *name, const hth_shape *shape)
{
    return shape->rank > 1 && hth_node_int(node, name, 0) != 0;
}

static hth_err gemm_matmul_shapes(const hth_node *node, const hth_shape *a, const hth_shape *b,
                                  const hth_tensor *tensor, gemm_pair *pair, hth_shape *batch)
{
    hth_shape ba = gemm_batch(a), bb = gemm_batch(b);
    if (a->rank < 1 || b->rank < 1) {
        return hth_fail(HTH_EINVAL, "operands must not be scalars");
    }
    int ta = gemm_turned(node, "transA", a), tb = gemm_turned(node, "transB", b);
    *pair = (gemm_pair){.rows = a->rank > 1 ? a->dim[a->rank - 2 + ta] : 1,
                        .cols = b->rank > 1 ? b->dim[b->rank - 1 - tb] : 1,
                        .k = a->dim[a->rank - 1 - ta]};
    HTH_TRY(hth_shape_broadcast(&ba, &bb, batch));
    if (b->dim[b->rank > 1 ? b->rank - 2 + tb : 0] != pair->k ||
        hth_shape_elements(batch) * pair->rows * pair->cols != ref_count(tensor)) {
        return hth_fail(HTH_EINVAL, "the matrices' shapes do not agree");
    }
    return HTH_OK;
}

static hth_err gemm_matmul_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                hth_tensor *out)
{
    gemm_pair p = {0};
    hth_shape batch, sa = gemm_batch(&in[0].shape), sb = gemm_batch(&in[1].shape);
    const hth_shape *shapes[] = {&sa, &sb};
    bool ints = ref_is_int(out[0].dtype);
    double *a = NULL, *b = NULL, *y = NULL;
    uint64_t *ia = NULL, *ib = NULL, *iy = NULL;
    HTH_TRY(gemm_matmul_shapes(node, &in[0].shape, &in[1].shape, &out[0], &p, &batch));
    bool ta = gemm_turned(node, "transA", &in[0].shape),
         tb = gemm_turned(node, "transB", &in[1].shape);
    if (ints) {
        if (ta || tb) {
            return hth_fail(HTH_ENOTSUP, "integers with transA or transB");
        }
        HTH_TRY(gemm_load_int(mem, &in[0], &ia));
        HTH_TRY(gemm_load_int(mem, &in[1], &ib));
        HTH_TRY(REF_TAKE(mem, ref_count(&out[0]), &iy));
    } else {
        HTH_TRY(gemm_operand(mem, &in[0], p.k, p.rows, ta, &a));
        HTH_TRY(gemm_operand(mem, &in[1], p.cols, p.k, tb, &b));
        HTH_TRY(REF_TAKE(mem, ref_count(&out[0]), &y));
    }
    ref_iter it;
    for (bool more = ref_iter_broadcast(&it, &batch, 2, shapes); more; more = ref_iter_next(&it)) {
        for (int64_t i = 0; i < it.count; i++, p.y += p.rows * p.cols) {
            p.a = (it.offset[0] + i * it.stride[0]) * p.rows * p.k;
            p.b = (it.offset[1] + i * it.stride[1]) * p.k * p.cols;
            if (ints) {
                gemm_pair_u64(&p, ia, ib, iy);
            } else {
                ref_gemm_f64(p.rows, p.cols, p.k, a + p.a, p.k, b + p.b, p.cols, y + p.y, p.cols);
            }
        }
    }
    if (ints) {
        ref_store_i64(out[0].dtype, out[0].data, (const int64_t *)iy, ref_count(&out[0]));
    } else {
        ref_round(y, &out[0]);
    }
    return HTH_OK;
}

REF_OP(ref_gemm, gemm_body)
REF_OP(ref_matmul, gemm_matmul_body)
