// SPDX-License-Identifier: Apache-2.0
// Old forms of operators -> the newest form, one rule per change. A rule applies to nodes written
// for a version below its `before`; rules run in the table's order, and a later one sees what an
// earlier one made. What a rule may rely on: the node's attributes and inputs, and the types that
// the file states (a hint; most files state none).
#include "graph/onnx_load.h"

#include "base/alloc.h"

#include <limits.h>
#include <string.h>

typedef struct canon { // the node at hand; refers to it by index because adding nodes moves them
    onnx_load *ld;
    int index;
} canon;

static hth_node *canon_node(const canon *c)
{
    return &c->ld->g->nodes[c->index];
}

// canon_set_input makes `value` the node's input number `at`.
static hth_err canon_set_input(const canon *c, int at, int value)
{
    hth_node *n = canon_node(c);
    while (n->n_inputs <= at) {
        HTH_TRY(hth_node_add_input(n, -1));
    }
    n->inputs[at] = value;
    return HTH_OK;
}

// canon_const adds a constant named after the node and `name`: a list, or with rank 0 a scalar.
static hth_err canon_const(const canon *c, const char *name, hth_dtype dt, int rank, int64_t n,
                           const void *data, int *out)
{
    hth_const *k;
    hth_shape shape = {.rank = rank, .dim = {n}};
    HTH_TRY(hth_const_new(dt, &shape, data, &k));
    hth_err err = onnx_add_value(c->ld, canon_node(c)->name, name, k, out);
    if (err != HTH_OK) {
        hth_const_rele(k);
    }
    return err;
}

static hth_err canon_const_input(const canon *c, const char *name, hth_dtype dt, int rank,
                                 int64_t n, const void *data, int at)
{
    int value;
    HTH_TRY(canon_const(c, name, dt, rank, n, data, &value));
    return canon_set_input(c, at, value);
}

// canon_ints_to_input moves a list attribute to input `at`; nothing happens when it is absent or
// empty.
static hth_err canon_ints_to_input(const canon *c, const char *name, int at)
{
    const hth_attr *a = hth_node_attr(canon_node(c), name);
    if (a != NULL && a->type == HTH_ATTR_INTS && a->n > 0) {
        HTH_TRY(canon_const_input(c, name, HTH_DT_I64, 1, a->n, a->u.ints, at));
    }
    hth_node_drop_attr(canon_node(c), name);
    return HTH_OK;
}

// canon_operand_dtype returns the element type of a floating-point operand behind the first (a
// convolution's weights), HTH_DT_NONE if there is none. Resize and Dropout have operands of other types.
static hth_dtype canon_operand_dtype(const hth_graph *g, const hth_node *n)
{
    for (int i = 1; i < n->n_inputs && n->op != HTH_OP_RESIZE && n->op != HTH_OP_DROPOUT; i++) {
        if (n->inputs[i] >= 0 && hth_dtype_is_float(g->values[n->inputs[i]].dtype)) {
            return g->values[n->inputs[i]].dtype;
        }
    }
    return HTH_DT_NONE;
}

// canon_dtype finds the element type of the node's data: stated in the file, or that of what it is
// computed from by operators that keep the type. FP32 when the trail ends.
static hth_dtype canon_dtype(const canon *c)
{
    const hth_graph *g = c->ld->g;
    const hth_node *n = canon_node(c);
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
        return canon_const_input(c, name, HTH_DT_F64, 0, 0, &d, at);
    case HTH_DT_F16:
        half = hth_f32_to_f16(x);
        return canon_const_input(c, name, HTH_DT_F16, 0, 0, &half, at);
    case HTH_DT_BF16:
        half = hth_f32_to_bf16(x);
        return canon_const_input(c, name, HTH_DT_BF16, 0, 0, &half, at);
    default:
        return canon_const_input(c, name, HTH_DT_F32, 0, 0, &x, at);
    }
}

// canon_constant returns the content of input `at`, NULL when it is absent or computed.
static hth_const *canon_constant(const canon *c, int at)
{
    const hth_node *n = canon_node(c);
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
    float value = hth_node_float(canon_node(c), "value", 0);
    HTH_TRY(canon_ints_to_input(c, "pads", 1));
    hth_node_drop_attr(canon_node(c), "value");
    return value == 0 ? HTH_OK : canon_scalar_input(c, "value", value, 2);
}

static hth_err canon_clip_bound(const canon *c, const char *name, int at)
{
    const hth_attr *a = hth_node_attr(canon_node(c), name);
    if (a != NULL && a->type == HTH_ATTR_FLOAT) {
        HTH_TRY(canon_scalar_input(c, name, a->u.f, at));
    }
    hth_node_drop_attr(canon_node(c), name);
    return HTH_OK;
}

static hth_err canon_clip(const canon *c)
{
    HTH_TRY(canon_clip_bound(c, "min", 1));
    return canon_clip_bound(c, "max", 2);
}

static hth_err canon_top_k(const canon *c)
{
    int64_t k = hth_node_int(canon_node(c), "k", -1);
    if (k < 0) {
        return hth_fail(HTH_EINVAL, "attribute 'k' is missing");
    }
    hth_node_drop_attr(canon_node(c), "k");
    return canon_const_input(c, "k", HTH_DT_I64, 1, 1, &k, 1);
}

static hth_err canon_split(const canon *c)
{
    return canon_ints_to_input(c, "split", 1);
}

// Without sizes the outputs are equal parts: said by their number.
static hth_err canon_split_equal(const canon *c)
{
    hth_node *n = canon_node(c);
    bool sizes = n->n_inputs > 1 && n->inputs[1] >= 0;
    return sizes || hth_node_attr(n, "num_outputs") != NULL
               ? HTH_OK
               : hth_node_set_int(n, "num_outputs", n->n_outputs);
}

static hth_err canon_dropout(const canon *c)
{
    float ratio = hth_node_float(canon_node(c), "ratio", 0.5f);
    hth_node_drop_attr(canon_node(c), "ratio");
    return canon_const_input(c, "ratio", HTH_DT_F32, 0, 0, &ratio, 1);
}

static hth_err canon_dropout_training(const canon *c)
{
    hth_const *mode = canon_constant(c, 2);
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
    HTH_TRY(hth_node_set_int(canon_node(c), "axis", hth_node_int(canon_node(c), "axis", 1)));
    return hth_node_set_int(canon_node(c), "flatten", 1);
}

static hth_err canon_batch_norm_old(const canon *c)
{
    hth_node *n = canon_node(c);
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
    c->ld->g->training |= hth_node_int(canon_node(c), "training_mode", 0) == 1;
    return HTH_OK;
}

static hth_err canon_scatter(const canon *c)
{
    canon_node(c)->op = HTH_OP_SCATTER_ELEMENTS;
    return HTH_OK;
}

// canon_resize_nearest chooses the rounding of the old nearest mode: up when shrinking, down when
// growing.
static hth_err canon_resize_nearest(const canon *c, const char **out)
{
    hth_const *scales = canon_constant(c, 2);
    const void *data;
    bool shrinks = false, grows = false;
    *out = "floor";
    if (scales == NULL || scales->dtype != HTH_DT_F32) {
        return HTH_OK;
    }
    HTH_TRY(hth_const_map(scales, &data));
    for (size_t i = 0; i < scales->bytes / sizeof(float); i++) {
        shrinks |= ((const float *)data)[i] < 1;
        grows |= ((const float *)data)[i] > 1;
    }
    hth_const_unmap(scales);
    *out = shrinks ? "ceil" : "floor";
    return shrinks && grows
               ? hth_fail(HTH_ENOTSUP,
                          "shrinking and growing in one node is not supported before opset 11")
               : HTH_OK;
}

// Upsample 7 and 9, Resize 10: input X, scales; no choice of coordinates.
static hth_err canon_resize_old(const canon *c)
{
    hth_node *n = canon_node(c);
    const hth_attr *a = hth_node_attr(n, "scales");
    const char *nearest;
    if (a != NULL && a->type == HTH_ATTR_FLOATS) {
        HTH_TRY(canon_const_input(c, "scales", HTH_DT_F32, 1, a->n, a->u.floats, 2));
        hth_node_drop_attr(n, "scales");
    } else if (n->n_inputs == 2) {
        HTH_TRY(canon_set_input(c, 2, n->inputs[1]));
        n->inputs[1] = -1;
    }
    HTH_TRY(canon_resize_nearest(c, &nearest));
    n->op = HTH_OP_RESIZE;
    if (strcmp(hth_node_str(n, "mode", "nearest"), "bilinear") == 0) {
        HTH_TRY(hth_node_set_str(n, "mode", "linear"));
    }
    HTH_TRY(hth_node_set_str(n, "coordinate_transformation_mode", "asymmetric"));
    return hth_node_set_str(n, "nearest_mode", nearest);
}

// tf_half_pixel_for_nn (opset 11): floor((x + 0.5) / scale) is half_pixel rounded half up.
static hth_err canon_resize_tf(const canon *c)
{
    hth_node *n = canon_node(c);
    const char *mode = hth_node_str(n, "coordinate_transformation_mode", "half_pixel");
    if (strcmp(mode, "tf_half_pixel_for_nn") != 0) {
        return HTH_OK;
    }
    if (strcmp(hth_node_str(n, "mode", "nearest"), "nearest") != 0 ||
        strcmp(hth_node_str(n, "nearest_mode", "round_prefer_floor"), "floor") != 0) {
        return hth_fail(HTH_ENOTSUP,
                        "tf_half_pixel_for_nn is only supported with nearest_mode 'floor'");
    }
    HTH_TRY(hth_node_set_str(n, "coordinate_transformation_mode", "half_pixel"));
    return hth_node_set_str(n, "nearest_mode", "round_prefer_ceil");
}

// Empty roi, scales and sizes mean absent ones.
static hth_err canon_resize_empty(const canon *c)
{
    for (int i = 1; i < canon_node(c)->n_inputs; i++) {
        const hth_const *k = canon_constant(c, i);
        if (k != NULL && k->bytes == 0) {
            canon_node(c)->inputs[i] = -1;
        }
    }
    return HTH_OK;
}

static hth_err canon_grid_sample(const canon *c)
{
    hth_node *n = canon_node(c);
    const char *mode = hth_node_str(n, "mode", "bilinear");
    mode = strcmp(mode, "bilinear") == 0  ? "linear"
           : strcmp(mode, "bicubic") == 0 ? "cubic"
                                          : "nearest";
    return hth_node_set_str(n, "mode", mode);
}

// canon_emit adds a helper node with one output; `to` gets the output's index.
static hth_err canon_emit(const canon *c, hth_op op, const int *inputs, int n_inputs, int *node,
                          int *to)
{
    HTH_TRY(onnx_add_value(c->ld, canon_node(c)->name, hth_op_name(op), NULL, to));
    return hth_graph_add_node(c->ld->g, op, NULL, inputs, n_inputs, to, 1, node);
}

// Version 18 of GroupNormalization has one scale and bias per group: repeat each for the group's
// channels, by Reshape(Expand(Unsqueeze(p, 1), [G, C / G]), [-1]) with C = Shape(X)[1].
static hth_err canon_group_norm(const canon *c)
{
    int64_t groups = hth_node_int(canon_node(c), "num_groups", 0), one = 1, minus_one = -1;
    int n_groups, axis, flat, channels, per_group, target, node;
    const hth_const *scale = canon_constant(c, 1);
    const hth_node *n = canon_node(c);
    if (n->n_inputs < 3 || n->inputs[0] < 0 || n->inputs[1] < 0 || n->inputs[2] < 0 ||
        groups <= 0) {
        return hth_fail(HTH_EINVAL, "scale, bias or num_groups is missing");
    }
    if (scale != NULL && scale->shape.rank == 1 && scale->shape.dim[0] != groups) {
        return HTH_OK; // some exporters wrote one per channel all along
    }
    HTH_TRY(canon_const(c, "groups", HTH_DT_I64, 1, 1, &groups, &n_groups));
    HTH_TRY(canon_const(c, "axis", HTH_DT_I64, 1, 1, &one, &axis));
    HTH_TRY(canon_const(c, "flat", HTH_DT_I64, 1, 1, &minus_one, &flat));
    HTH_TRY(canon_emit(c, HTH_OP_SHAPE, &(int){n->inputs[0]}, 1, &node, &channels));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "start", 1));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "end", 2));
    HTH_TRY(canon_emit(c, HTH_OP_DIV, (int[]){channels, n_groups}, 2, &node, &per_group));
    HTH_TRY(canon_emit(c, HTH_OP_CONCAT, (int[]){n_groups, per_group}, 2, &node, &target));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "axis", 0));
    for (int i = 1; i <= 2; i++) {
        int column, wide, full;
        HTH_TRY(canon_emit(c, HTH_OP_UNSQUEEZE, (int[]){canon_node(c)->inputs[i], axis}, 2, &node,
                           &column));
        HTH_TRY(canon_emit(c, HTH_OP_EXPAND, (int[]){column, target}, 2, &node, &wide));
        HTH_TRY(canon_emit(c, HTH_OP_RESHAPE, (int[]){wide, flat}, 2, &node, &full));
        canon_node(c)->inputs[i] = full;
    }
    return HTH_OK;
}

static hth_err canon_cast(const canon *c)
{
    int64_t to = hth_node_int(canon_node(c), "to", 0);
    return hth_onnx_dtype_known(to)
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "element type %s is not supported", hth_onnx_dtype_text(to));
}

#define CANON_ALWAYS INT_MAX

static const struct {
    hth_op op;
    int before;
    hth_err (*rewrite)(const canon *c);
} canon_rule[] = {
    {HTH_OP_BATCH_NORMALIZATION, 14, canon_batch_norm_old},
    {HTH_OP_BATCH_NORMALIZATION, CANON_ALWAYS, canon_batch_norm},
    {HTH_OP_CAST, CANON_ALWAYS, canon_cast},
    {HTH_OP_CLIP, 11, canon_clip},
    {HTH_OP_DROPOUT, 12, canon_dropout},
    {HTH_OP_DROPOUT, CANON_ALWAYS, canon_dropout_training},
    {HTH_OP_GRID_SAMPLE, 20, canon_grid_sample},
    {HTH_OP_GROUP_NORMALIZATION, 21, canon_group_norm},
    {HTH_OP_HARDMAX, 13, canon_softmax},
    {HTH_OP_LOG_SOFTMAX, 13, canon_softmax},
    {HTH_OP_PAD, 11, canon_pad},
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
    {HTH_OP_RESIZE, 11, canon_resize_old},
    {HTH_OP_RESIZE, 13, canon_resize_tf},
    {HTH_OP_RESIZE, CANON_ALWAYS, canon_resize_empty},
    {HTH_OP_SCATTER, CANON_ALWAYS, canon_scatter},
    {HTH_OP_SLICE, 10, canon_slice},
    {HTH_OP_SOFTMAX, 13, canon_softmax},
    {HTH_OP_SPLIT, 13, canon_split},
    {HTH_OP_SPLIT, CANON_ALWAYS, canon_split_equal},
    {HTH_OP_SQUEEZE, 13, canon_axes},
    {HTH_OP_TOP_K, 10, canon_top_k},
    {HTH_OP_UNSQUEEZE, 13, canon_axes},
    {HTH_OP_UPSAMPLE, CANON_ALWAYS, canon_resize_old},
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
