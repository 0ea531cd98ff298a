// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_num.h - what the numeric reference kernels share: scratch memory, numbers as
// double, matrix product.
//
// Design notes
// The kernels of convolution, matrix product, normalisation and the like are the yardstick for the
// fast ones, so they compute in double whatever the tensors hold, in a fixed order: inputs are
// widened once, results rounded once. Scratch belongs to a ref_mem that the operator's entry frees
// at one place, so the code between may simply return. Owner: the calling thread; no state.
#ifndef HTH_KERNELS_REF_REF_NUM_H
#define HTH_KERNELS_REF_REF_NUM_H

#include "kernels/ref/ref_nn.h"

typedef struct ref_mem {
    void *last; // each block starts with a pointer to the one before
} ref_mem;

// ref_take returns n elements of `size` bytes (zeroed) that live until ref_mem_fini, or NULL (the
// sentence is set).
void *ref_take(ref_mem *mem, int64_t n, size_t size);
void ref_mem_fini(ref_mem *mem);
#define REF_TAKE(m, n, out)                                                                        \
    ((*(out) = ref_take(m, n, sizeof **(out))) != NULL ? HTH_OK : ref_untaken())
hth_err ref_untaken(void); // why the last ref_take failed: HTH_ENOMEM, or the work is to end

// REF_OP defines operator `name` as `body` with a scratch that ends with the call.
#define REF_OP(name, body)                                                                         \
    REF_KERNEL(name)                                                                               \
    {                                                                                              \
        ref_mem m = {0};                                                                           \
        hth_err err = body(&m, n, in, out);                                                        \
        ref_mem_fini(&m);                                                                          \
        return err;                                                                                \
    }

// ref_wide stores the tensor's elements as double (bool: 0 or 1) in scratch.
hth_err ref_wide(ref_mem *mem, const hth_tensor *tensor, double **out);
// ref_wide_at is the same for elements [first, first + count), into memory of the caller's.
void ref_wide_at(const hth_tensor *tensor, int64_t first, int64_t count, double *out);
// ref_round rounds `v` into the tensor: floats to nearest even, integers towards zero and
// saturated.
void ref_round(const double *v, hth_tensor *tensor);
void ref_round_at(const double *v, int64_t first, int64_t count, hth_tensor *tensor);
// ref_expand is ref_wide broadcast (numpy's rule) to `shape`.
hth_err ref_expand(ref_mem *mem, const hth_tensor *tensor, const hth_shape *shape, double **out);
// ref_f64_at and ref_i64_at read one element; 0 when the tensor (may be NULL) does not have it.
double ref_f64_at(const hth_tensor *tensor, int64_t i);
int64_t ref_i64_at(const hth_tensor *tensor, int64_t i);

// Sanitizers do not check what these loops touch: they would take most of the kernels' tests.
#define REF_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

// ref_axpy_f64 adds a x to y, both of n elements.
REF_UNCHECKED
static inline void ref_axpy_f64(int64_t n, double a, const double *x, double *y)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] += a * x[i];
    }
}
// ref_gemm_f64 adds a b to c: a (m, k), b (k, n), c (m, n), row-major with the given leading
// dimensions. The sum over k runs upwards for every element of c.
void ref_gemm_f64(int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b,
                  int64_t ldb, double *c, int64_t ldc);
// ref_transpose_f64 writes the transpose of a (rows, cols) to out (cols, rows).
void ref_transpose_f64(const double *a, int64_t rows, int64_t cols, double *out);
// ref_softmax_row replaces a row by its softmax.
void ref_softmax_row(double *row, int64_t n);
// ref_cubic is the kernel of cubic convolution (Keys 1981) with parameter a; 0 beyond a distance
// of 2.
double ref_cubic(double distance, double a);
// ref_need_rank: HTH_EINVAL when the tensor has fewer than `rank` dimensions.
hth_err ref_need_rank(const hth_tensor *tensor, int rank);
// ref_need_same: HTH_EINVAL when the tensors have different shapes.
hth_err ref_need_same(const hth_tensor *a, const hth_tensor *b);
// ref_need_count: HTH_EINVAL when the tensor (NULL: absent, fine) does not have `count` elements.
hth_err ref_need_count(const hth_tensor *tensor, int64_t count);
// ref_span returns the product of dimensions [from, to).
int64_t ref_span(const hth_shape *shape, int from, int to);

#endif
