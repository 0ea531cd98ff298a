// SPDX-License-Identifier: Apache-2.0
// Old forms of operators -> the newest form, one rule per change. A rule applies to nodes written
// for a version below its `before`; rules run in the table's order, and a later one sees what an
// earlier one made. What a rule may rely on: the node's attributes and inputs, and the types that
// the file states (a hint; most files state none).
#include "graph/onnx/onnx_canon.h"

#include "base/alloc.h"

#include <limits.h>
#include <string.h>

hth_node *onnx_canon_node(const canon *c)
{
    return &c->ld->g->nodes[c->index];
}

hth_err onnx_canon_set_input(const canon *c, int at, int value)
{
    hth_node *n = onnx_canon_node(c);
    while (n->n_inputs <= at) {
        HTH_TRY(hth_node_add_input(n, -1));
    }
    n->inputs[at] = value;
    return HTH_OK;
}

hth_err onnx_canon_const(const canon *c, const char *name, hth_dtype dt, int rank, int64_t n,
                         const void *data, int *out)
{
    hth_const *k;
    hth_shape shape = {.rank = rank, .dim = {n}};
    HTH_TRY(hth_const_new(dt, &shape, data, &k));
    hth_err err = onnx_add_value(c->ld, onnx_canon_node(c)->name, name, k, out);
    if (err != HTH_OK) {
        hth_const_rele(k);
    }
    return err;
}

hth_err onnx_canon_const_input(const canon *c, const char *name, hth_dtype dt, int rank, int64_t n,
                               const void *data, int at)
{
    int value;
    HTH_TRY(onnx_canon_const(c, name, dt, rank, n, data, &value));
    return onnx_canon_set_input(c, at, value);
}

// canon_ints_to_input moves a list attribute to input `at`; nothing happens when it is absent or
// empty.
static hth_err canon_ints_to_input(const canon *c, const char *name, int at)
{
    const hth_attr *a = hth_node_attr(onnx_canon_node(c), name);
    if (a != NULL && a->type == HTH_ATTR_INTS && a->n > 0) {
        HTH_TRY(onnx_canon_const_input(c, name, HTH_DT_I64, 1, a->n, a->u.ints, at));
    }
    hth_node_drop_attr(onnx_canon_node(c), name);
    return HTH_OK;
}

// canon_operand_dtype returns the element type of a floating-point operand after the first (a
// convolution's weights), HTH_DT_NONE if there is none. Resize and Dropout have operands of other
// types.
static hth_dtype canon_operand_dtype(const hth_graph *graph, const hth_node *node)
{
    for (int i = 1; i < node->n_inputs && node->op != HTH_OP_RESIZE && node->op != HTH_OP_DROPOUT;
         i++) {
        if (node->inputs[i] >= 0 && hth_dtype_is_float(graph->values[node->inputs[i]].dtype)) {
            return graph->values[node->inputs[i]].dtype;
        }
    }
    return HTH_DT_NONE;
}

// canon_dtype finds the element type of the node's data: stated in the file, or that of what it is
// computed from by operators that keep the type. FP32 when the trail ends.
static hth_dtype canon_dtype(const canon *c)
{
    const hth_graph *g = c->ld->g;
    const hth_node *n = onnx_canon_node(c);
    for (int steps = 0; steps < 64 && n->n_inputs > 0 && n->inputs[0] >= 0; steps++) {
        const hth_value *v = &g->values[n->inputs[0]];
        if (v->dtype != HTH_DT_NONE) {
            return v->dtype;
        }
        if (v->producer < 0) {
            break;
        }
        n = &g->nodes[v->producer];
        if (n->op == HTH_OP_CAST) {
            return (hth_dtype)hth_node_int(n, "to", HTH_DT_F32);
        }
        hth_dtype dt = canon_operand_dtype(g, n);
        if (dt != HTH_DT_NONE) {
            return dt;
        }
    }
    return HTH_DT_F32;
}

// canon_scalar_input makes input `at` the number `x` in the type of the node's data.
static hth_err canon_scalar_input(const canon *c, const char *name, float x, int at)
{
    double d = x;
    uint16_t half;
    switch (canon_dtype(c)) {
    case HTH_DT_F64:
        return onnx_canon_const_input(c, name, HTH_DT_F64, 0, 0, &d, at);
    case HTH_DT_F16:
        half = hth_f32_to_f16(x);
        return onnx_canon_const_input(c, name, HTH_DT_F16, 0, 0, &half, at);
    case HTH_DT_BF16:
        half = hth_f32_to_bf16(x);
        return onnx_canon_const_input(c, name, HTH_DT_BF16, 0, 0, &half, at);
    default:
        return onnx_canon_const_input(c, name, HTH_DT_F32, 0, 0, &x, at);
    }
}

hth_err onnx_canon_emit(const canon *c, hth_op op, const int *inputs, int n_inputs, int *node,
                        int *to)
{
    HTH_TRY(onnx_add_value(c->ld, onnx_canon_node(c)->name, hth_op_name(op), NULL, to));
    return hth_graph_add_node(c->ld->g, op, c->ld->g->values[*to].name, inputs, n_inputs, to, 1,
                              node);
}

hth_const *onnx_canon_constant(const canon *c, int at)
{
    const hth_node *n = onnx_canon_node(c);
    return at < n->n_inputs && n->inputs[at] >= 0 ? c->ld->g->values[n->inputs[at]].constant : NULL;
}

// The rules.

static hth_err canon_axes(const canon *c)
{
    return canon_ints_to_input(c, "axes", 1);
}

static hth_err canon_slice(const canon *c)
{
    HTH_TRY(canon_ints_to_input(c, "starts", 1));
    HTH_TRY(canon_ints_to_input(c, "ends", 2));
    return canon_ints_to_input(c, "axes", 3);
}

static hth_err canon_pad(const canon *c)
{
    float value = hth_node_float(onnx_canon_node(c), "value", 0);
    HTH_TRY(canon_ints_to_input(c, "pads", 1));
    hth_node_drop_attr(onnx_canon_node(c), "value");
    return value == 0 ? HTH_OK : canon_scalar_input(c, "value", value, 2);
}

static hth_err canon_clip_bound(const canon *c, const char *name, int at)
{
    const hth_attr *a = hth_node_attr(onnx_canon_node(c), name);
    if (a != NULL && a->type == HTH_ATTR_FLOAT) {
        HTH_TRY(canon_scalar_input(c, name, a->u.f, at));
    }
    hth_node_drop_attr(onnx_canon_node(c), name);
    return HTH_OK;
}

static hth_err canon_clip(const canon *c)
{
    HTH_TRY(canon_clip_bound(c, "min", 1));
    return canon_clip_bound(c, "max", 2);
}

static hth_err canon_top_k(const canon *c)
{
    int64_t k = hth_node_int(onnx_canon_node(c), "k", -1);
    if (k < 0) {
        return hth_fail(HTH_EINVAL, "attribute 'k' is missing");
    }
    hth_node_drop_attr(onnx_canon_node(c), "k");
    return onnx_canon_const_input(c, "k", HTH_DT_I64, 1, 1, &k, 1);
}

static hth_err canon_split(const canon *c)
{
    return canon_ints_to_input(c, "split", 1);
}

// Without sizes the outputs are equal parts: said by their number.
static hth_err canon_split_equal(const canon *c)
{
    hth_node *n = onnx_canon_node(c);
    bool sizes = n->n_inputs > 1 && n->inputs[1] >= 0;
    return sizes || hth_node_attr(n, "num_outputs") != NULL
               ? HTH_OK
               : hth_node_set_int(n, "num_outputs", n->n_outputs);
}

static hth_err canon_dropout(const canon *c)
{
    float ratio = hth_node_float(onnx_canon_node(c), "ratio", 0.5f);
    hth_node_drop_attr(onnx_canon_node(c), "ratio");
    return onnx_canon_const_input(c, "ratio", HTH_DT_F32, 0, 0, &ratio, 1);
}

static hth_err canon_dropout_training(const canon *c)
{
    hth_const *mode = onnx_canon_constant(c, 2);
    const void *data;
    if (mode != NULL && mode->dtype == HTH_DT_BOOL && mode->bytes == 1) {
        HTH_TRY(hth_const_map(mode, &data));
        c->ld->g->training |= *(const uint8_t *)data != 0;
        hth_const_unmap(mode);
    }
    return HTH_OK;
}

// Before opset 13 these worked on the matrix [product of dims before axis, product of the others].
static hth_err canon_softmax(const canon *c)
{
    HTH_TRY(
        hth_node_set_int(onnx_canon_node(c), "axis", hth_node_int(onnx_canon_node(c), "axis", 1)));
    return hth_node_set_int(onnx_canon_node(c), "flatten", 1);
}

static hth_err canon_batch_norm_old(const canon *c)
{
    hth_node *n = onnx_canon_node(c);
    if (hth_node_int(n, "spatial", 1) != 1) {
        return hth_fail(HTH_ENOTSUP, "spatial=0 is not supported");
    }
    hth_node_drop_attr(n, "spatial");
    for (int i = 3; i < n->n_outputs;
         i++) { // saved_mean, saved_var: whoever reads them finds no producer
        if (n->outputs[i] >= 0) {
            c->ld->g->values[n->outputs[i]].producer = -1;
        }
    }
    bool training = n->n_outputs > 1;
    n->n_outputs = n->n_outputs > 3 ? 3 : n->n_outputs;
    return training ? hth_node_set_int(n, "training_mode", 1) : HTH_OK;
}

static hth_err canon_batch_norm(const canon *c)
{
    c->ld->g->training |= hth_node_int(onnx_canon_node(c), "training_mode", 0) == 1;
    return HTH_OK;
}

static hth_err canon_scatter(const canon *c)
{
    onnx_canon_node(c)->op = HTH_OP_SCATTER_ELEMENTS;
    return HTH_OK;
}

static hth_err canon_grid_sample(const canon *c)
{
    hth_node *n = onnx_canon_node(c);
    const char *mode = hth_node_str(n, "mode", "bilinear");
    const char *newest = strcmp(mode, "bicubic") == 0 ? "cubic" : "nearest";
    return hth_node_set_str(n, "mode", strcmp(mode, "bilinear") == 0 ? "linear" : newest);
}

static hth_err canon_cast(const canon *c)
{
    int64_t to = hth_node_int(onnx_canon_node(c), "to", 0);
    return hth_onnx_dtype_known(to)
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "element type %s is not supported", hth_onnx_dtype_text(to));
}

#define CANON_SPATIAL 3 // dimensions of a window; inference of shapes has the same bound

// A filter's rank and kernel_shape are known at import; the data's rank often is not.
static hth_err canon_window(const canon *c)
{
    const hth_node *n = onnx_canon_node(c);
    bool filter = n->op == HTH_OP_CONV || n->op == HTH_OP_CONV_TRANSPOSE;
    int spatial = hth_node_ints(n, "kernel_shape", NULL, 0);
    if (filter && n->n_inputs > 1 && n->inputs[1] >= 0 && spatial < 0) {
        spatial = c->ld->g->values[n->inputs[1]].shape.rank - 2;
    }
    return spatial <= CANON_SPATIAL
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "%d spatial dimensions are not supported", spatial);
}

#define CANON_ALWAYS INT_MAX

static const struct {
    hth_op op;
    int before;
    hth_err (*rewrite)(const canon *c);
} canon_rule[] = {
    {HTH_OP_AVERAGE_POOL, CANON_ALWAYS, canon_window},
    {HTH_OP_BATCH_NORMALIZATION, 14, canon_batch_norm_old},
    {HTH_OP_BATCH_NORMALIZATION, CANON_ALWAYS, canon_batch_norm},
    {HTH_OP_CAST, CANON_ALWAYS, canon_cast},
    {HTH_OP_CLIP, 11, canon_clip},
    {HTH_OP_CONV, CANON_ALWAYS, canon_window},
    {HTH_OP_CONV_INTEGER, CANON_ALWAYS, onnx_canon_conv_integer},
    {HTH_OP_CONV_TRANSPOSE, CANON_ALWAYS, canon_window},
    {HTH_OP_DEQUANTIZE_LINEAR, CANON_ALWAYS, onnx_canon_dequantize},
    {HTH_OP_DROPOUT, 12, canon_dropout},
    {HTH_OP_DROPOUT, CANON_ALWAYS, canon_dropout_training},
    {HTH_OP_DYNAMIC_QUANTIZE_LINEAR, CANON_ALWAYS, onnx_canon_dynamic_quantize},
    {HTH_OP_GRID_SAMPLE, 20, canon_grid_sample},
    {HTH_OP_GROUP_NORMALIZATION, 21, onnx_canon_group_norm},
    {HTH_OP_GRU, CANON_ALWAYS, onnx_canon_rnn},
    {HTH_OP_HARDMAX, 13, canon_softmax},
    {HTH_OP_LOG_SOFTMAX, 13, canon_softmax},
    {HTH_OP_LP_POOL, CANON_ALWAYS, canon_window},
    {HTH_OP_LSTM, CANON_ALWAYS, onnx_canon_rnn},
    {HTH_OP_MAT_MUL_INTEGER, CANON_ALWAYS, onnx_canon_matmul_integer},
    {HTH_OP_MAX_POOL, CANON_ALWAYS, canon_window},
    {HTH_OP_PAD, 11, canon_pad},
    {HTH_OP_QLINEAR_CONV, CANON_ALWAYS, onnx_canon_qlinear_conv},
    {HTH_OP_QLINEAR_MAT_MUL, CANON_ALWAYS, onnx_canon_qlinear_matmul},
    {HTH_OP_QUANTIZE_LINEAR, CANON_ALWAYS, onnx_canon_quantize},
    {HTH_OP_REDUCE_L1, 18, canon_axes},
    {HTH_OP_REDUCE_L2, 18, canon_axes},
    {HTH_OP_REDUCE_LOG_SUM, 18, canon_axes},
    {HTH_OP_REDUCE_LOG_SUM_EXP, 18, canon_axes},
    {HTH_OP_REDUCE_MAX, 18, canon_axes},
    {HTH_OP_REDUCE_MEAN, 18, canon_axes},
    {HTH_OP_REDUCE_MIN, 18, canon_axes},
    {HTH_OP_REDUCE_PROD, 18, canon_axes},
    {HTH_OP_REDUCE_SUM, 13, canon_axes},
    {HTH_OP_REDUCE_SUM_SQUARE, 18, canon_axes},
    {HTH_OP_RESIZE, 11, onnx_canon_resize_old},
    {HTH_OP_RESIZE, 13, onnx_canon_resize_tf},
    {HTH_OP_RESIZE, CANON_ALWAYS, onnx_canon_resize_empty},
    {HTH_OP_RNN, CANON_ALWAYS, onnx_canon_rnn},
    {HTH_OP_SCATTER, CANON_ALWAYS, canon_scatter},
    {HTH_OP_SLICE, 10, canon_slice},
    {HTH_OP_SOFTMAX, 13, canon_softmax},
    {HTH_OP_SPLIT, 13, canon_split},
    {HTH_OP_SPLIT, CANON_ALWAYS, canon_split_equal},
    {HTH_OP_SQUEEZE, 13, canon_axes},
    {HTH_OP_TOP_K, 10, canon_top_k},
    {HTH_OP_UNSQUEEZE, 13, canon_axes},
    {HTH_OP_UPSAMPLE, CANON_ALWAYS, onnx_canon_resize_old},
};

hth_err onnx_canonicalise(onnx_load *ld, int index, int since)
{
    canon c = {ld, index};
    hth_op op =
        ld->g->nodes[index].op; // a rule may rename the node; the rules of its old name go on
    for (size_t i = 0; i < sizeof canon_rule / sizeof canon_rule[0]; i++) {
        if (canon_rule[i].op == op && since < canon_rule[i].before) {
            HTH_TRY(canon_rule[i].rewrite(&c));
        }
    }
    return HTH_OK;
}
