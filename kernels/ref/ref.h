// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref.h - the frame of the reference kernels: function type, inputs, loops, elements of
// any dtype.
//
// Design notes
// A reference kernel computes one node from what stands in `in`, `out` and the node's attributes;
// of the graph it reads only `training`. Dtypes, shapes and bytes of `out` are given. hth_ref_eval
// has checked before the call that every buffer is plain and large enough, and has turned f16 and
// bf16 into f32 where the table says so: such a kernel sees f32 and f64, never the 16-bit floats.
// Kernels keep no state; any number of threads may run them at once. Loops whose time is not the
// number of elements that go in and out count their work (base/pace.h) and return when it is to
// end: hth_ref_eval gives the error.
#ifndef HTH_KERNELS_REF_REF_H
#define HTH_KERNELS_REF_REF_H

#include "base/pace.h"
#include "kernels/kernel.h"

#include <string.h>

typedef hth_err (*ref_fn)(const hth_graph *graph, const hth_node *node, const hth_tensor *in,
                          hth_tensor *out);

#define REF_KERNEL(name)                                                                           \
    hth_err name(const hth_graph *g, const hth_node *n, const hth_tensor *in, hth_tensor *out)

// Inputs and outputs.
// ref_n_inputs returns how many of the node's inputs are the operator's own (operands of post ops
// stand after them).
int ref_n_inputs(const hth_node *node);
// ref_in returns input i, NULL when that optional input is absent; ref_out the same of an output.
const hth_tensor *ref_in(const hth_node *node, const hth_tensor *in, int i);
hth_tensor *ref_out(const hth_node *node, hth_tensor *out, int i);
static inline int64_t ref_count(const hth_tensor *tensor)
{
    return hth_shape_elements(&tensor->shape);
}
// ref_axis returns axis counted from 0 for -rank <= axis < rank, -1 otherwise.
int ref_axis(int64_t axis, int rank);
// ref_axes marks the axes that int32/int64 tensor `tensor` lists. HTH_EINVAL: out of range or
// listed twice.
hth_err ref_axes(const hth_tensor *tensor, int rank, bool mask[HTH_MAX_RANK]);
// ref_around stores the elements before, along and after `axis` (0 <= axis < rank).
void ref_around(const hth_shape *shape, int axis, int64_t *outer, int64_t *along, int64_t *inner);
// ref_no_dtype says that the operator is not made for `dt`: HTH_ENOTSUP.
hth_err ref_no_dtype(hth_dtype dt);

// Elements. ref_get_* and ref_set_* convert one element: floats from and to integers by truncation
// as on x86, integers modulo 2^n, bool as 0 or 1; u64 travels through int64_t by its bits.
static inline bool ref_is_int(hth_dtype dt) // bool included
{
    return !hth_dtype_is_float(dt);
}
// ref_true is element i of a tensor of BOOL. A request may bring any byte; what is not 0 is true.
static inline bool ref_true(const void *data, int64_t i)
{
    return ((const uint8_t *)data)[i] != 0;
}
double ref_get_f64(hth_dtype dt, const void *data, int64_t i);
int64_t ref_get_i64(hth_dtype dt, const void *data, int64_t i);
void ref_set_f64(hth_dtype dt, void *data, int64_t i, double v);
void ref_set_i64(hth_dtype dt, void *data, int64_t i, int64_t v);
// ref_load_i64 reads n integer elements with a stride (in elements, any sign); ref_store_i64 writes
// n dense ones.
void ref_load_i64(hth_dtype dt, const void *src, int64_t stride, int64_t n, int64_t *dst);
void ref_store_i64(hth_dtype dt, void *dst, const int64_t *src, int64_t n);
// ref_convert converts n dense elements; the rules of Cast. dst and src do not overlap.
void ref_convert(hth_dtype to, void *dst, hth_dtype from, const void *src, int64_t n);
// ref_fill writes `n` copies of the element at `value`.
void ref_fill(void *dst, const void *value, size_t element_bytes, int64_t n);

// Loops over up to REF_MAX_OPERANDS strided operands. Neighbouring dimensions that lie alike in all
// operands are joined, so that the innermost run is as long as it can be:
//     for (bool more = ref_iter_broadcast(&it, &out->shape, 2, shapes); more; more =
//     ref_iter_next(&it)) {
//         run(a + it.offset[0], it.stride[0], b + it.offset[1], it.stride[1], it.count);
//     }
#define REF_MAX_OPERANDS 4
#define REF_MAX_LOOP     (2 * HTH_MAX_RANK)
typedef struct ref_iter {
    int64_t count;                    // elements of the innermost run, or of a part of it
    int64_t stride[REF_MAX_OPERANDS]; // its strides, in elements
    int64_t offset[REF_MAX_OPERANDS]; // where it starts, in elements
    int rank, n_operands;             // of the loops around it
    int64_t dim[REF_MAX_LOOP], at[REF_MAX_LOOP], step[REF_MAX_LOOP][REF_MAX_OPERANDS];
    int64_t run, done; // of a run that is visited in parts: its elements, those before this part
    int64_t uncounted; // elements since the last hth_pace_over
} ref_iter;
// ref_iter_strided starts a loop over `dim` with step[d][operand] in elements; false when there is
// nothing to visit.
bool ref_iter_strided(ref_iter *it, int rank, const int64_t *dim, int n_operands,
                      const int64_t (*step)[REF_MAX_OPERANDS]);
// ref_iter_broadcast starts a loop over shape `shape`; the operands' shapes are broadcast to it
// (they must agree with it, which ref_can_broadcast checks). Long runs are visited in parts.
bool ref_iter_broadcast(ref_iter *it, const hth_shape *shape, int n_operands,
                        const hth_shape *const *shapes);
// ref_iter_next goes on to the next run; false: there is none, or the work has ended early
// (base/pace.h), which hth_ref_eval sees.
bool ref_iter_next(ref_iter *it);
// ref_can_broadcast: HTH_EINVAL when `from` does not broadcast to `to`.
hth_err ref_can_broadcast(const hth_shape *from, const hth_shape *to);

// ref_copy copies elements of 1, 2, 4 or 8 bytes between two strided arrays (strides in elements,
// any sign, 0 repeats the source). dst and src do not overlap.
void ref_copy(int rank, const int64_t *dim, void *dst, const int64_t *dst_step, const void *src,
              const int64_t *src_step, size_t element_bytes);
// ref_steps stores the row-major strides of `shape`, in elements.
void ref_steps(const hth_shape *shape, int64_t *step);

// ref_unary_f32 computes y[i] = op(x[i]) for a float operator of one operand; y may be x. alpha and
// beta: its attributes in the order of the ONNX specification. false when `op` is not such an
// operator.
bool ref_unary_f32(hth_op op, float alpha, float beta, const float *x, float *y, int64_t n);
// ref_binary_run computes out[i] = op(a[i * sa], b[i * sb]) for Add, Sub, Mul, Div, Max, Min (any
// dtype but the 16-bit floats); out may be a or b when that one's stride is 1. false when there is
// no such operator or dtype.
bool ref_binary_run(hth_op op, hth_dtype dt, void *out, const void *a, int64_t sa, const void *b,
                    int64_t sb, int64_t n);
// ref_binary_into computes y = op(y, x) for ref_binary_run's operators, x broadcast to y.
hth_err ref_binary_into(hth_op op, const hth_tensor *x, hth_tensor *y);
// ref_broadcast_copy fills y with x, broadcast to y's shape; nothing to do when they are the same
// buffer.
hth_err ref_broadcast_copy(const hth_tensor *x, hth_tensor *y);
// ref_move copies one element or row; the sizes of elements without a call.
static inline void ref_move(void *dst, const void *src, size_t bytes)
{
    switch (bytes) {
    case 1:
        memcpy(dst, src, 1);
        break;
    case 2:
        memcpy(dst, src, 2);
        break;
    case 4:
        memcpy(dst, src, 4);
        break;
    case 8:
        memcpy(dst, src, 8);
        break;
    default:
        memcpy(dst, src, bytes);
    }
}

// Positions that are data.
// ref_index counts a negative index from the end; false when it is out of range, which
// ref_bad_index reports.
bool ref_index(int64_t *index, int64_t dim);
hth_err ref_bad_index(int64_t index, int64_t dim);
// ref_elements_begin starts the loop of GatherElements and ScatterElements: operand 0 are the
// indices (dense), operand 1 the data with position 0 along `axis`. *more: there is something to
// visit.
hth_err ref_elements_begin(const hth_shape *data, const hth_shape *index, int axis, ref_iter *it,
                           bool *more);
// ref_tuple turns tuple number `tuple` of `depth` indices into an offset in the dimensions first ..
// first + depth - 1.
hth_err ref_tuple(const hth_shape *shape, int first, int depth, const hth_tensor *index,
                  int64_t tuple, int64_t *offset);

// The kernels, in ref_table (ref.c) by operator.
REF_KERNEL(ref_unary);
REF_KERNEL(ref_is_special);
REF_KERNEL(ref_binary);
REF_KERNEL(ref_variadic);
REF_KERNEL(ref_clip);
REF_KERNEL(ref_where);
REF_KERNEL(ref_cast);
REF_KERNEL(ref_reduce);
REF_KERNEL(ref_arg);
REF_KERNEL(ref_cumsum);
REF_KERNEL(ref_reshape);
REF_KERNEL(ref_broadcast);
REF_KERNEL(ref_transpose);
REF_KERNEL(ref_concat);
REF_KERNEL(ref_split);
REF_KERNEL(ref_slice);
REF_KERNEL(ref_tile);
REF_KERNEL(ref_pad);
REF_KERNEL(ref_gather);
REF_KERNEL(ref_gather_elements);
REF_KERNEL(ref_gather_nd);
REF_KERNEL(ref_scatter_elements);
REF_KERNEL(ref_scatter_nd);
REF_KERNEL(ref_shape);
REF_KERNEL(ref_size);
REF_KERNEL(ref_constant);
REF_KERNEL(ref_constant_of_shape);
REF_KERNEL(ref_range);
REF_KERNEL(ref_trilu);
REF_KERNEL(ref_eye_like);
REF_KERNEL(ref_non_zero);
REF_KERNEL(ref_compress);

#endif
