// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_num.c - scratch, conversion to and from double, matrix product.
//
// Invariant: every conversion is exact or correctly rounded, except 64-bit integers beyond 2^53
// (integer products have their own path in ref_gemm.c). The product runs in tiles of columns so
// that the rows of b stay in the cache, four rows of c at a time so that each element of b is
// loaded once for four products; per element of c the order of the sum is 0, 1, .. k-1 in every
// tile, so results do not depend on the tiling.
#include "kernels/ref/ref_num.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define MEM_HEAD 64 // room for the link; keeps the alignment of what follows

void *ref_take(ref_mem *mem, int64_t n, size_t size)
{
    uint64_t bytes;
    char *p = NULL;
    if (n >= 0 && hth_mul_bytes((uint64_t)n, size, &bytes) == 0 && bytes <= SIZE_MAX - MEM_HEAD) {
        if (hth_pace_take(bytes) != HTH_OK) {
            return NULL;
        }
        p = hth_calloc(1, bytes + MEM_HEAD);
    }
    if (!p) {
        hth_no_memory("%lld scratch elements", (long long)n);
        return NULL;
    }
    memcpy(p, &mem->last, sizeof mem->last);
    mem->last = p;
    return p + MEM_HEAD;
}

hth_err ref_untaken(void)
{
    const hth_pace *p = hth_pace_now();
    bool ended = p != NULL && p->err != HTH_OK;
    return ended ? p->err : HTH_ENOMEM;
}

void ref_mem_fini(ref_mem *mem)
{
    while (mem->last) {
        void *p = mem->last;
        memcpy(&mem->last, p, sizeof mem->last);
        hth_free(p);
    }
}

hth_err ref_need_rank(const hth_tensor *tensor, int rank)
{
    if (tensor->shape.rank < rank) {
        return hth_fail(HTH_EINVAL, "a tensor of rank %d, where at least %d are needed",
                        tensor->shape.rank, rank);
    }
    return HTH_OK;
}

hth_err ref_need_same(const hth_tensor *a, const hth_tensor *b)
{
    return hth_shape_equal(&a->shape, &b->shape)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "input and output have different shapes");
}

hth_err ref_need_count(const hth_tensor *tensor, int64_t count)
{
    if (tensor && ref_count(tensor) != count) {
        return hth_fail(HTH_EINVAL, "a tensor of %lld elements, where %lld are needed",
                        (long long)ref_count(tensor), (long long)count);
    }
    return HTH_OK;
}

int64_t ref_span(const hth_shape *shape, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++) {
        n *= shape->dim[i];
    }
    return n;
}

void ref_wide_at(const hth_tensor *tensor, int64_t first, int64_t count, double *out)
{
    const char *from = tensor->data;
    if (count > 0 && !hth_pace_over((uint64_t)count)) { // of no elements the data may be NULL
        ref_convert(HTH_DT_F64, out, tensor->dtype,
                    from + (size_t)first * hth_dtype_bytes(tensor->dtype), count);
    }
}

hth_err ref_wide(ref_mem *mem, const hth_tensor *tensor, double **out)
{
    int64_t count = ref_count(tensor);
    HTH_TRY(REF_TAKE(mem, count, out));
    ref_wide_at(tensor, 0, count, *out);
    return HTH_OK;
}

// The range of an integer type, in doubles that convert back without overflow.
static void num_range(hth_dtype dt, double *lo, double *hi)
{
    int bits = (int)hth_dtype_bytes(dt) * 8;
    bool is_signed = dt == HTH_DT_I8 || dt == HTH_DT_I16 || dt == HTH_DT_I32 || dt == HTH_DT_I64;
    double span = ldexp(1, is_signed ? bits - 1 : bits);
    *lo = is_signed ? -span : 0;
    *hi = bits == 64 ? nextafter(span, 0) : span - 1;
}

void ref_round_at(const double *v, int64_t first, int64_t count, hth_tensor *tensor)
{
    if (count == 0) {
        return; // the data may be NULL
    }
    char *to = (char *)tensor->data + (size_t)first * hth_dtype_bytes(tensor->dtype);
    if (!ref_is_int(tensor->dtype) || tensor->dtype == HTH_DT_BOOL) {
        ref_convert(tensor->dtype, to, HTH_DT_F64, v, count);
        return;
    }
    double lo, hi;
    num_range(tensor->dtype, &lo, &hi);
    for (int64_t i = 0; i < count; i++) {
        double x = v[i] != v[i] ? 0 : fmin(fmax(trunc(v[i]), lo), hi);
        ref_set_f64(tensor->dtype, to, i, x);
    }
}

void ref_round(const double *v, hth_tensor *tensor)
{
    ref_round_at(v, 0, ref_count(tensor), tensor);
}

hth_err ref_expand(ref_mem *mem, const hth_tensor *tensor, const hth_shape *shape, double **out)
{
    double *src;
    const hth_shape *shapes[] = {&tensor->shape};
    ref_iter it;
    HTH_TRY(ref_wide(mem, tensor, &src));
    *out = src;
    if (hth_shape_equal(&tensor->shape, shape)) {
        return HTH_OK;
    }
    HTH_TRY(ref_can_broadcast(&tensor->shape, shape));
    HTH_TRY(REF_TAKE(mem, hth_shape_elements(shape), out));
    double *to = *out;
    for (bool more = ref_iter_broadcast(&it, shape, 1, shapes); more; more = ref_iter_next(&it)) {
        for (int64_t i = 0; i < it.count; i++) {
            *to++ = src[it.offset[0] + i * it.stride[0]];
        }
    }
    return HTH_OK;
}

double ref_f64_at(const hth_tensor *tensor, int64_t i)
{
    return tensor && i < ref_count(tensor) ? ref_get_f64(tensor->dtype, tensor->data, i) : 0;
}

int64_t ref_i64_at(const hth_tensor *tensor, int64_t i)
{
    return tensor && i < ref_count(tensor) ? ref_get_i64(tensor->dtype, tensor->data, i) : 0;
}

#define GEMM_TILE 128 // columns: a row of c (1 KiB) times four stays in the first-level cache

REF_UNCHECKED
static void num_gemm_rows4(int64_t n, int64_t k, const double *restrict a, int64_t lda,
                           const double *restrict b, int64_t ldb, double *restrict c, int64_t ldc)
{
    double *restrict c0 = c, *restrict c1 = c + ldc, *restrict c2 = c + 2 * ldc,
                     *restrict c3 = c + 3 * ldc;
    for (int64_t p = 0; p < k; p++) {
        const double *restrict row = b + p * ldb;
        double a0 = a[p], a1 = a[lda + p], a2 = a[2 * lda + p], a3 = a[3 * lda + p];
        for (int64_t j = 0; j < n; j++) {
            double v = row[j];
            c0[j] += a0 * v;
            c1[j] += a1 * v;
            c2[j] += a2 * v;
            c3[j] += a3 * v;
        }
    }
}

REF_UNCHECKED
static void num_gemm_row(int64_t n, int64_t k, const double *restrict a, const double *restrict b,
                         int64_t ldb, double *restrict c)
{
    for (int64_t p = 0; p < k; p++) {
        const double *restrict row = b + p * ldb;
        double v = a[p];
        for (int64_t j = 0; j < n; j++) {
            c[j] += v * row[j];
        }
    }
}

void ref_gemm_f64(int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b,
                  int64_t ldb, double *c, int64_t ldc)
{
    if (m > 0 && n > 0 && k > 0) { // the last of each, for sanitizers
        (void)*(const volatile double *)&a[(m - 1) * lda + k - 1];
        (void)*(const volatile double *)&b[(k - 1) * ldb + n - 1];
        (void)*(const volatile double *)&c[(m - 1) * ldc + n - 1];
    }
    for (int64_t j = 0; j < n; j += GEMM_TILE) {
        int64_t cols = n - j < GEMM_TILE ? n - j : GEMM_TILE, i = 0;
        uint64_t row = (uint64_t)cols * (uint64_t)k;
        for (; i + 4 <= m && !hth_pace_over(4 * row); i += 4) {
            num_gemm_rows4(cols, k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc);
        }
        for (; i < m && !hth_pace_over(row); i++) {
            num_gemm_row(cols, k, a + i * lda, b + j, ldb, c + i * ldc + j);
        }
    }
}

#define TRANSPOSE_TILE 16 // two tiles of doubles fit the first-level cache

void ref_transpose_f64(const double *a, int64_t rows, int64_t cols, double *out)
{
    for (int64_t i0 = 0; i0 < rows; i0 += TRANSPOSE_TILE) {
        int64_t i1 = i0 + TRANSPOSE_TILE < rows ? i0 + TRANSPOSE_TILE : rows;
        for (int64_t j = 0; j < cols; j++) {
            for (int64_t i = i0; i < i1; i++) {
                out[j * rows + i] = a[i * cols + j];
            }
        }
    }
}

void ref_softmax_row(double *row, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        max = row[i] > max || row[i] != row[i] ? row[i] : max;
    }
    for (int64_t i = 0; i < n; i++) {
        row[i] = exp(row[i] - max);
        sum += row[i];
    }
    for (int64_t i = 0; i < n; i++) {
        row[i] /= sum;
    }
}

double ref_cubic(double distance, double a)
{
    double x = fabs(distance);
    if (x <= 1) {
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    }
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}
