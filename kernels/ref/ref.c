// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref.c - hth_ref_eval: from an operator to its reference kernel, and what is common to
// all of them.
//
// Invariants: a kernel is called with plain, present, large enough buffers only, so that no kernel
// checks them again. 16-bit floats are computed in f32: for kernels marked WIDE the operands are
// converted here, and the results rounded once, after the post ops. Post ops run on output 0 when
// the kernel has filled it. Temporary memory is taken per call: the reference is for checking,
// folding and rare operators.
#include "kernels/ref/ref.h"

#include "base/alloc.h"
#include "kernels/ref/ref_nn.h"

#include <string.h>

enum {
    WIDE = 1,   // f16 and bf16 are given as f32
    SHAPE = 2,  // reads the shapes of its inputs only: their data may be NULL
    LAYOUT = 4, // reads and writes tensors of any layout
};

typedef struct ref_row {
    ref_fn fn;
    unsigned flags;
} ref_row;

static const ref_row ref_table[HTH_N_OPS] = {
    [HTH_OP_NONE] = {NULL, 0},

// Convolution, pooling, normalisation, products, recurrent, attention, selection by score.
#define REF_NN_ROW(op, kernel, flags) [HTH_OP_##op] = {kernel, flags},
    REF_NN_ROWS(REF_NN_ROW) REF_TRAIN_ROWS(REF_NN_ROW)
#undef REF_NN_ROW

        // Element-wise, reductions, data movement.
        // clang-format off
    [HTH_OP_ABS] = {ref_unary, WIDE}, [HTH_OP_ACOS] = {ref_unary, WIDE},
    [HTH_OP_ACOSH] = {ref_unary, WIDE}, [HTH_OP_ASIN] = {ref_unary, WIDE},
    [HTH_OP_ASINH] = {ref_unary, WIDE}, [HTH_OP_ATAN] = {ref_unary, WIDE},
    [HTH_OP_ATANH] = {ref_unary, WIDE}, [HTH_OP_BITWISE_NOT] = {ref_unary, WIDE},
    [HTH_OP_CEIL] = {ref_unary, WIDE}, [HTH_OP_CELU] = {ref_unary, WIDE},
    [HTH_OP_COS] = {ref_unary, WIDE}, [HTH_OP_COSH] = {ref_unary, WIDE},
    [HTH_OP_ELU] = {ref_unary, WIDE}, [HTH_OP_ERF] = {ref_unary, WIDE},
    [HTH_OP_EXP] = {ref_unary, WIDE}, [HTH_OP_FLOOR] = {ref_unary, WIDE},
    [HTH_OP_GELU] = {ref_unary, WIDE}, [HTH_OP_HARD_SIGMOID] = {ref_unary, WIDE},
    [HTH_OP_HARD_SWISH] = {ref_unary, WIDE}, [HTH_OP_LEAKY_RELU] = {ref_unary, WIDE},
    [HTH_OP_LOG] = {ref_unary, WIDE}, [HTH_OP_MISH] = {ref_unary, WIDE},
    [HTH_OP_NEG] = {ref_unary, WIDE}, [HTH_OP_NOT] = {ref_unary, WIDE},
    [HTH_OP_RECIPROCAL] = {ref_unary, WIDE}, [HTH_OP_RELU] = {ref_unary, WIDE},
    [HTH_OP_ROUND] = {ref_unary, WIDE}, [HTH_OP_SELU] = {ref_unary, WIDE},
    [HTH_OP_SHRINK] = {ref_unary, WIDE}, [HTH_OP_SIGMOID] = {ref_unary, WIDE},
    [HTH_OP_SIGN] = {ref_unary, WIDE}, [HTH_OP_SIN] = {ref_unary, WIDE},
    [HTH_OP_SINH] = {ref_unary, WIDE}, [HTH_OP_SOFTPLUS] = {ref_unary, WIDE},
    [HTH_OP_SOFTSIGN] = {ref_unary, WIDE}, [HTH_OP_SQRT] = {ref_unary, WIDE},
    [HTH_OP_SWISH] = {ref_unary, WIDE}, [HTH_OP_TAN] = {ref_unary, WIDE},
    [HTH_OP_TANH] = {ref_unary, WIDE}, [HTH_OP_THRESHOLDED_RELU] = {ref_unary, WIDE},
    [HTH_OP_IS_INF] = {ref_is_special, 0}, [HTH_OP_IS_NA_N] = {ref_is_special, 0},
    [HTH_OP_ADD] = {ref_binary, WIDE}, [HTH_OP_SUB] = {ref_binary, WIDE},
    [HTH_OP_MUL] = {ref_binary, WIDE}, [HTH_OP_DIV] = {ref_binary, WIDE},
    [HTH_OP_POW] = {ref_binary, WIDE}, [HTH_OP_MOD] = {ref_binary, WIDE},
    [HTH_OP_PRELU] = {ref_binary, WIDE}, [HTH_OP_EQUAL] = {ref_binary, WIDE},
    [HTH_OP_GREATER] = {ref_binary, WIDE}, [HTH_OP_GREATER_OR_EQUAL] = {ref_binary, WIDE},
    [HTH_OP_LESS] = {ref_binary, WIDE}, [HTH_OP_LESS_OR_EQUAL] = {ref_binary, WIDE},
    [HTH_OP_AND] = {ref_binary, 0}, [HTH_OP_OR] = {ref_binary, 0}, [HTH_OP_XOR] = {ref_binary, 0},
    [HTH_OP_BITWISE_AND] = {ref_binary, 0}, [HTH_OP_BITWISE_OR] = {ref_binary, 0},
    [HTH_OP_BITWISE_XOR] = {ref_binary, 0}, [HTH_OP_BIT_SHIFT] = {ref_binary, 0},
    [HTH_OP_MAX] = {ref_variadic, WIDE}, [HTH_OP_MEAN] = {ref_variadic, WIDE},
    [HTH_OP_MIN] = {ref_variadic, WIDE}, [HTH_OP_SUM] = {ref_variadic, WIDE},
    [HTH_OP_CLIP] = {ref_clip, WIDE}, [HTH_OP_WHERE] = {ref_where, 0},
    [HTH_OP_CAST] = {ref_cast, 0}, [HTH_OP_CAST_LIKE] = {ref_cast, 0},
    [HTH_OP_REDUCE_L1] = {ref_reduce, WIDE}, [HTH_OP_REDUCE_L2] = {ref_reduce, WIDE},
    [HTH_OP_REDUCE_LOG_SUM] = {ref_reduce, WIDE}, [HTH_OP_REDUCE_LOG_SUM_EXP] = {ref_reduce, WIDE},
    [HTH_OP_REDUCE_MAX] = {ref_reduce, WIDE}, [HTH_OP_REDUCE_MEAN] = {ref_reduce, WIDE},
    [HTH_OP_REDUCE_MIN] = {ref_reduce, WIDE}, [HTH_OP_REDUCE_PROD] = {ref_reduce, WIDE},
    [HTH_OP_REDUCE_SUM] = {ref_reduce, WIDE}, [HTH_OP_REDUCE_SUM_SQUARE] = {ref_reduce, WIDE},
    [HTH_OP_ARG_MAX] = {ref_arg, WIDE}, [HTH_OP_ARG_MIN] = {ref_arg, WIDE},
    [HTH_OP_CUM_SUM] = {ref_cumsum, WIDE},
    [HTH_OP_FLATTEN] = {ref_reshape, 0}, [HTH_OP_IDENTITY] = {ref_reshape, 0},
    [HTH_OP_RESHAPE] = {ref_reshape, 0}, [HTH_OP_SQUEEZE] = {ref_reshape, 0},
    [HTH_OP_UNSQUEEZE] = {ref_reshape, 0}, [HTH_OP_EXPAND] = {ref_broadcast, 0},
    [HTH_OP_TRANSPOSE] = {ref_transpose, 0}, [HTH_OP_CONCAT] = {ref_concat, 0},
    [HTH_OP_SPLIT] = {ref_split, 0}, [HTH_OP_SLICE] = {ref_slice, 0}, [HTH_OP_TILE] = {ref_tile, 0},
    [HTH_OP_PAD] = {ref_pad, 0}, [HTH_OP_GATHER] = {ref_gather, 0},
    [HTH_OP_GATHER_ELEMENTS] = {ref_gather_elements, 0}, [HTH_OP_GATHER_ND] = {ref_gather_nd, 0},
    [HTH_OP_SCATTER] = {ref_scatter_elements, WIDE},
    [HTH_OP_SCATTER_ELEMENTS] = {ref_scatter_elements, WIDE},
    [HTH_OP_SCATTER_ND] = {ref_scatter_nd, WIDE}, [HTH_OP_SHAPE] = {ref_shape, SHAPE},
    [HTH_OP_SIZE] = {ref_size, SHAPE}, [HTH_OP_CONSTANT] = {ref_constant, 0},
    [HTH_OP_CONSTANT_OF_SHAPE] = {ref_constant_of_shape, 0}, [HTH_OP_RANGE] = {ref_range, WIDE},
    [HTH_OP_TRILU] = {ref_trilu, 0}, [HTH_OP_EYE_LIKE] = {ref_eye_like, SHAPE},
    [HTH_OP_NON_ZERO] = {ref_non_zero, 0}, [HTH_OP_COMPRESS] = {ref_compress, 0},
    // clang-format on
};

int ref_n_inputs(const hth_node *node)
{
    int count = node->n_inputs;
    for (int i = 0; i < node->n_post; i++) {
        int operand = node->post[i].input;
        if (operand >= 0 && operand < count) {
            count = operand;
        }
    }
    return count;
}

const hth_tensor *ref_in(const hth_node *node, const hth_tensor *in, int i)
{
    return i < ref_n_inputs(node) && node->inputs[i] >= 0 ? &in[i] : NULL;
}

hth_tensor *ref_out(const hth_node *node, hth_tensor *out, int i)
{
    return i < node->n_outputs && node->outputs[i] >= 0 ? &out[i] : NULL;
}

int ref_axis(int64_t axis, int rank)
{
    if (axis < -rank || axis >= rank) {
        return -1;
    }
    return (int)(axis < 0 ? axis + rank : axis);
}

hth_err ref_axes(const hth_tensor *tensor, int rank, bool mask[HTH_MAX_RANK])
{
    memset(mask, 0, HTH_MAX_RANK * sizeof *mask);
    for (int64_t i = 0; i < ref_count(tensor); i++) {
        int64_t axis = ref_get_i64(tensor->dtype, tensor->data, i);
        int a = ref_axis(axis, rank);
        if (a < 0 || mask[a]) {
            return hth_fail(HTH_EINVAL, "axis %lld is not one of the %d axes, or listed twice",
                            (long long)axis, rank);
        }
        mask[a] = true;
    }
    return HTH_OK;
}

void ref_around(const hth_shape *shape, int axis, int64_t *outer, int64_t *along, int64_t *inner)
{
    *outer = *inner = 1;
    *along = shape->dim[axis];
    for (int d = 0; d < axis; d++) {
        *outer *= shape->dim[d];
    }
    for (int d = axis + 1; d < shape->rank; d++) {
        *inner *= shape->dim[d];
    }
}

hth_err ref_no_dtype(hth_dtype dt)
{
    return hth_fail(HTH_ENOTSUP, "dtype %s is not supported", hth_dtype_name(dt));
}

static hth_err ref_check(const hth_tensor *tensor, unsigned flags, bool needs_data,
                         const char *what, int i)
{
    size_t bytes;
    if (hth_dtype_bytes(tensor->dtype) == 0) {
        return ref_no_dtype(tensor->dtype);
    }
    if (!needs_data) {
        return HTH_OK;
    }
    if (tensor->layout != HTH_LAYOUT_PLAIN && !(flags & LAYOUT)) {
        return hth_fail(HTH_ENOTSUP, "%s %d has layout %s", what, i,
                        hth_layout_name(tensor->layout));
    }
    if (!hth_shape_known(&tensor->shape)) {
        return hth_fail(HTH_EINVAL, "the shape of %s %d is not known", what, i);
    }
    HTH_TRY(hth_tensor_bytes(tensor->dtype, &tensor->shape, tensor->layout, &bytes));
    if (bytes > 0 && (tensor->data == NULL || tensor->bytes < bytes)) {
        return hth_fail(HTH_EINVAL, "%s %d has %zu bytes of %zu", what, i,
                        tensor->data ? tensor->bytes : 0, bytes);
    }
    return HTH_OK;
}

// These learn the shape of their result from values; they are first called without data.
static bool ref_sizes_itself(hth_op op)
{
    return op == HTH_OP_NON_ZERO || op == HTH_OP_COMPRESS || op == HTH_OP_NON_MAX_SUPPRESSION;
}

static hth_err ref_check_all(const hth_node *node, unsigned flags, const hth_tensor *in,
                             const hth_tensor *out)
{
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0) {
            HTH_TRY(ref_check(&in[i], flags, !(flags & SHAPE), "input", i));
        }
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] >= 0) {
            bool needed = out[i].data != NULL || !ref_sizes_itself(node->op);
            HTH_TRY(ref_check(&out[i], flags, needed, "output", i));
        }
    }
    return HTH_OK;
}

static void ref_post_binary(const hth_post_op *op, const hth_tensor *b, hth_tensor *y)
{
    const hth_shape *shapes[] = {&y->shape, &b->shape};
    ref_iter it;
    for (bool more = ref_iter_broadcast(&it, &y->shape, 2, shapes); more;
         more = ref_iter_next(&it)) {
        float *to = (float *)y->data + it.offset[0];
        const float *from = (const float *)b->data + it.offset[1];
        if (op->op == HTH_OP_ADD) {
            for (int64_t i = 0; i < it.count; i++) {
                to[i * it.stride[0]] += op->alpha * from[i * it.stride[1]];
            }
        } else if (op->op == HTH_OP_RELU_GRAD) {
            for (int64_t i = 0; i < it.count; i++) {
                float y = from[i * it.stride[1]], dy = to[i * it.stride[0]];
                to[i * it.stride[0]] = y > op->alpha && y < op->beta ? dy : 0;
            }
        } else {
            ref_binary_run(op->op, HTH_DT_F32, to, to, it.stride[0], from, it.stride[1], it.count);
        }
    }
}

static hth_err ref_post(const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    for (int i = 0; i < node->n_post; i++) {
        const hth_post_op *p = &node->post[i];
        if (out[0].dtype != HTH_DT_F32) {
            return ref_no_dtype(out[0].dtype);
        }
        if (p->input < 0) {
            if (!ref_unary_f32(p->op, p->alpha, p->beta, out[0].data, out[0].data,
                               ref_count(&out[0]))) {
                return hth_fail(HTH_ENOTSUP, "%s as a post operation", hth_op_name(p->op));
            }
            continue;
        }
        if (p->input >= node->n_inputs || node->inputs[p->input] < 0 ||
            in[p->input].dtype != HTH_DT_F32) {
            return hth_fail(HTH_EINVAL, "the operand of post operation %d (%s) is not there", i,
                            hth_op_name(p->op));
        }
        if (p->op != HTH_OP_RELU_GRAD &&
            !ref_binary_run(p->op, HTH_DT_F32, NULL, NULL, 1, NULL, 1, 0)) {
            return hth_fail(HTH_ENOTSUP, "%s as a post operation", hth_op_name(p->op));
        }
        HTH_TRY(ref_can_broadcast(&in[p->input].shape, &out[0].shape));
        ref_post_binary(p, &in[p->input], &out[0]);
    }
    return HTH_OK;
}

static bool ref_is_narrow(const hth_tensor *tensor)
{
    return tensor->dtype == HTH_DT_F16 || tensor->dtype == HTH_DT_BF16;
}

// ref_widen makes *tensor an f32 tensor with memory of its own, filled from tensor's when `fill`.
static hth_err ref_widen(hth_tensor *tensor, bool fill)
{
    hth_tensor wide = *tensor;
    wide.dtype = HTH_DT_F32;
    if (tensor->data != NULL) {
        HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &tensor->shape, HTH_LAYOUT_PLAIN, &wide.bytes));
        HTH_TRY(hth_pace_take(wide.bytes));
        HTH_TRY(hth_pace_step((uint64_t)ref_count(tensor)));
        wide.data = hth_alloc_aligned(wide.bytes > 0 ? wide.bytes : 64, 64);
        if (wide.data == NULL) {
            return hth_no_memory("%zu bytes in f32", wide.bytes);
        }
        if (fill) {
            ref_convert(HTH_DT_F32, wide.data, tensor->dtype, tensor->data, ref_count(tensor));
        }
    }
    *tensor = wide;
    return HTH_OK;
}

static hth_err ref_run(const hth_graph *graph, const hth_node *node, ref_fn fn,
                       const hth_tensor *in, hth_tensor *out)
{
    HTH_TRY(fn(graph, node, in, out));
    HTH_TRY(hth_pace_step(0)); // loops that ended early return no error
    return node->n_post > 0 && out[0].data != NULL ? ref_post(node, in, out) : HTH_OK;
}

static void ref_narrow_all(int count, hth_tensor *wide, hth_tensor *out)
{
    for (int i = 0; i < count; i++) {
        if (wide[i].dtype == HTH_DT_NONE) {
            continue; // absent
        }
        if (wide[i].dtype == out[i].dtype) {
            out[i].shape = wide[i].shape; // a kernel may size its own result
            out[i].bytes = wide[i].bytes;
        } else if (out[i].data != NULL) {
            ref_convert(out[i].dtype, out[i].data, HTH_DT_F32, wide[i].data, ref_count(&out[i]));
        }
    }
}

// ref_run_wide runs the kernel on f32 copies of the 16-bit floats among the operands.
static hth_err ref_run_wide(const hth_graph *graph, const hth_node *node, ref_fn fn,
                            const hth_tensor *in, hth_tensor *out)
{
    hth_err err = HTH_OK;
    int n_all = node->n_inputs + node->n_outputs, done = 0;
    hth_tensor *wide = hth_calloc((size_t)n_all, sizeof *wide);
    if (wide == NULL) {
        return hth_no_memory("%d operands", n_all);
    }
    for (; done < n_all; done++) {
        bool is_in = done < node->n_inputs;
        const hth_tensor *t = is_in ? &in[done] : &out[done - node->n_inputs];
        bool present = is_in ? node->inputs[done] >= 0 : node->outputs[done - node->n_inputs] >= 0;
        if (!present) {
            continue;
        }
        wide[done] = *t;
        if (ref_is_narrow(t)) {
            HTH_GOTO(ref_widen(&wide[done], is_in), done);
        }
    }
    HTH_GOTO(ref_run(graph, node, fn, wide, wide + node->n_inputs), done);
    ref_narrow_all(node->n_outputs, wide + node->n_inputs, out);
done:
    for (int i = 0; i < done; i++) {
        const hth_tensor *t = i < node->n_inputs ? &in[i] : &out[i - node->n_inputs];
        if (wide[i].dtype != HTH_DT_NONE && wide[i].dtype != t->dtype) {
            hth_free(wide[i].data);
        }
    }
    hth_free(wide);
    return err;
}

static bool ref_any_narrow(const hth_node *node, const hth_tensor *in, const hth_tensor *out)
{
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0 && ref_is_narrow(&in[i])) {
            return true;
        }
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] >= 0 && ref_is_narrow(&out[i])) {
            return true;
        }
    }
    return false;
}

// ref_work counts what any kernel does at least: look at what goes in, write what comes out.
static hth_err ref_work(const hth_node *node, unsigned flags, const hth_tensor *in,
                        const hth_tensor *out)
{
    uint64_t work = (uint64_t)node->n_inputs + (uint64_t)node->n_outputs;
    for (int i = 0; i < node->n_inputs && !(flags & SHAPE); i++) {
        work += node->inputs[i] >= 0 ? (uint64_t)ref_count(&in[i]) : 0;
    }
    for (int i = 0; i < node->n_outputs; i++) {
        work += node->outputs[i] >= 0 && out[i].data != NULL ? (uint64_t)ref_count(&out[i]) : 0;
    }
    return hth_pace_step(work);
}

// ref_empty says that nothing comes out. A tensor without elements may have dimensions of any size,
// over which a kernel would walk for years.
static bool ref_empty(const hth_node *node, const hth_tensor *out)
{
    bool empty = !ref_sizes_itself(node->op);
    for (int i = 0; i < node->n_outputs && empty; i++) {
        empty = node->outputs[i] < 0 || ref_count(&out[i]) == 0;
    }
    return empty;
}

static hth_err ref_dispatch(const hth_graph *graph, const hth_node *node, const hth_tensor *in,
                            hth_tensor *out)
{
    const ref_row *row = &ref_table[node->op];
    if (row->fn == NULL) {
        return hth_fail(HTH_ENOTSUP, "there is no reference kernel");
    }
    HTH_TRY(ref_check_all(node, row->flags, in, out));
    if (ref_empty(node, out)) {
        return HTH_OK;
    }
    HTH_TRY(ref_work(node, row->flags, in, out));
    // Post ops are computed in f32, so a 16-bit result needs widening also where the kernel itself
    // does not.
    bool wide = (row->flags & WIDE) != 0 || node->n_post > 0;
    return (wide && ref_any_narrow(node, in, out) ? ref_run_wide : ref_run)(graph, node, row->fn,
                                                                            in, out);
}

hth_err hth_ref_eval(void *ctx, const hth_graph *graph, const hth_node *node, const hth_tensor *in,
                     hth_tensor *out)
{
    hth_err err = ref_dispatch(graph, node, in, out);
    return hth_err_prefix(err, "node '%s' (%s)", node->name, hth_op_name(node->op));
}
