// SPDX-License-Identifier: Apache-2.0
// Quantised operators of ONNX, said in floating point:
//   DequantizeLinear  (x - zero_point) * scale
//   QuantizeLinear    saturate(round(x / scale) + zero_point), rounded half to even
//   QLinear*, *Integer  the operator itself between the two
// What is quantised and made a float at once is not stored as integers between: the whole numbers
// stay in floats, which have all of up to 16 bits. Constants (weights) are folded like all others.
// Integer sums are those of FP32 products, rounded: as exact as the algorithm that is chosen.
#include "graph/onnx/onnx_canon.h"

#include <math.h>
#include <string.h>

#define QUANT_SMALL 65536 // bytes of a parameter that is looked at
#define QUANT_STEPS 64    // nodes that are looked through

// quant_input returns the value that input `at` is, seen through Identity; -1: absent.
static int quant_input(const canon *c, int at)
{
    const hth_graph *g = c->ld->g;
    const hth_node *n = onnx_canon_node(c);
    int value = at < n->n_inputs ? n->inputs[at] : -1;
    for (int i = 0; i < QUANT_STEPS && value >= 0 && g->values[value].producer >= 0; i++) {
        const hth_node *before = &g->nodes[g->values[value].producer];
        if (before->op != HTH_OP_IDENTITY) {
            break;
        }
        value = before->inputs[0];
    }
    return value;
}

static hth_err quant_emit(const canon *c, hth_op op, int a, int b, int *out)
{
    int node;
    return onnx_canon_emit(c, op, (int[]){a, b}, b < 0 ? 1 : 2, &node, out);
}

static hth_err quant_cast(const canon *c, int value, hth_dtype to, int *out)
{
    int node;
    HTH_TRY(onnx_canon_emit(c, HTH_OP_CAST, &value, 1, &node, out));
    c->ld->g->values[*out].dtype = to;
    return hth_node_set_int(&c->ld->g->nodes[node], "to", to);
}

static hth_err quant_number(const canon *c, const char *name, float x, int *out)
{
    return onnx_canon_const(c, name, HTH_DT_F32, 0, 0, &x, out);
}

// The node at hand becomes `op` of these inputs, without attributes, with its first output.
static void quant_become(const canon *c, hth_op op, int a, int b)
{
    hth_node *n = onnx_canon_node(c);
    while (n->n_attrs > 0) {
        hth_node_drop_attr(n, n->attrs[0].name);
    }
    n->op = op;
    n->inputs[0] = a;
    n->n_inputs = 1;
    if (b >= 0) {
        n->inputs[1] = b; // every quantised operator has two inputs, or asks for one result
        n->n_inputs = 2;
    }
}

// quant_dtype returns a value's type: the file's, or what operators make that keep it; `otherwise`
// where nothing says it.
static hth_dtype quant_dtype(const canon *c, int value, hth_dtype otherwise)
{
    const hth_graph *g = c->ld->g;
    for (int i = 0; i < QUANT_STEPS && value >= 0; i++) {
        const hth_value *v = &g->values[value];
        if (v->dtype != HTH_DT_NONE) {
            return v->dtype;
        }
        const hth_node *n = v->producer >= 0 ? &g->nodes[v->producer] : NULL;
        if (n != NULL && n->op == HTH_OP_CAST) {
            return (hth_dtype)hth_node_int(n, "to", otherwise);
        }
        bool keeps =
            n != NULL && n->n_inputs > 0 &&
            (n->op == HTH_OP_IDENTITY || n->op == HTH_OP_RESHAPE || n->op == HTH_OP_SQUEEZE ||
             n->op == HTH_OP_UNSQUEEZE || n->op == HTH_OP_GATHER || n->op == HTH_OP_SLICE);
        value = keeps ? n->inputs[0] : -1;
    }
    return otherwise;
}

// quant_along gives a parameter with a number for each index of `axis` the shape that broadcasts
// with `rank` dimensions, -1: of a rank that is not known. One number may stay as it is.
static hth_err quant_along(const canon *c, int value, int axis, int rank, int *out)
{
    const hth_value *v = &c->ld->g->values[value];
    int64_t shape[HTH_MAX_RANK] = {-1};
    int after = axis < 0 ? -1 - axis : rank - 1 - axis, one_of;
    bool one = v->shape.rank == 0 || hth_shape_elements(&v->shape) == 1;
    bool computed = v->shape.rank < 0 && rank >= 0 && (after < 0 || after >= rank); // so one number
    *out = value;
    if (computed || (one && (v->shape.rank == 0 || rank > 0))) {
        return HTH_OK;
    }
    if (one) {
        after = -1; // [1], of a scalar
    } else if (v->shape.rank > 1) {
        return v->shape.rank == rank // of a matrix product: [.., 1, columns]
                   ? HTH_OK
                   : hth_fail(HTH_ENOTSUP,
                              "a scale or zero point of %d dimensions is not supported",
                              v->shape.rank);
    } else if (axis >= 0 && rank < 0) {
        return hth_fail(HTH_ENOTSUP,
                        "a scale or zero point for each index of axis %d of a tensor "
                        "whose rank the file does not say is not supported",
                        axis);
    } else if (after < 0 || after >= HTH_MAX_RANK || (rank >= 0 && after >= rank)) {
        return hth_fail(HTH_EINVAL, "axis %d is none of %d dimensions", axis, rank);
    } else if (after == 0) {
        return HTH_OK;
    }
    for (int i = 1; i <= after; i++) {
        shape[i] = 1;
    }
    HTH_TRY(onnx_canon_const(c, "along", HTH_DT_I64, 1, after + 1, shape, &one_of));
    return quant_emit(c, HTH_OP_RESHAPE, value, one_of, out);
}

static int quant_rank(const canon *c, int value)
{
    return c->ld->g->values[value].shape.rank;
}

// A constant scale is a positive number. Those of other types than FP32 are not looked at.
static hth_err quant_check_scale(const canon *c, int value)
{
    hth_const *k = c->ld->g->values[value].constant;
    const void *data;
    if (k == NULL || k->dtype != HTH_DT_F32 || k->bytes > QUANT_SMALL) {
        return HTH_OK;
    }
    HTH_TRY(hth_const_map(k, &data));
    float bad = 1, scale;
    for (size_t i = 0; i < k->bytes / sizeof scale; i++) {
        memcpy(&scale, (const char *)data + i * sizeof scale, sizeof scale);
        bad = scale > 0 && scale < INFINITY ? bad : scale;
    }
    hth_const_unmap(k);
    return bad > 0 && bad < INFINITY
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "a scale is %g, which is not positive and finite",
                          (double)bad);
}

// A zero point has the type of what it belongs to.
static hth_err quant_check_types(const canon *c, int x, int zero_point)
{
    hth_dtype a = quant_dtype(c, x, HTH_DT_NONE), b = quant_dtype(c, zero_point, HTH_DT_NONE);
    return a == b || a == HTH_DT_NONE || b == HTH_DT_NONE
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the zero point is %s, and what it belongs to %s",
                          hth_dtype_name(b), hth_dtype_name(a));
}

static uint16_t quant_u16(const void *data)
{
    uint16_t x;
    memcpy(&x, data, sizeof x);
    return x;
}

// quant_scalar reads a constant of one number, false: it is none.
static hth_err quant_scalar(const canon *c, int value, float *out, bool *is)
{
    hth_const *k = value >= 0 ? c->ld->g->values[value].constant : NULL;
    const void *data;
    *is = k != NULL && hth_shape_elements(&k->shape) == 1;
    if (!*is) {
        return HTH_OK;
    }
    HTH_TRY(hth_const_map(k, &data));
    switch (k->dtype) { // the file's bytes lie where they lie
    case HTH_DT_U8:
        *out = (float)*(const uint8_t *)data;
        break;
    case HTH_DT_I8:
        *out = (float)*(const int8_t *)data;
        break;
    case HTH_DT_U16:
        *out = (float)quant_u16(data);
        break;
    case HTH_DT_I16:
        *out = (float)(int16_t)quant_u16(data);
        break;
    case HTH_DT_F32:
        memcpy(out, data, sizeof *out);
        break;
    default:
        *is = false;
    }
    hth_const_unmap(k);
    return HTH_OK;
}

// Weights are mostly quantised without a zero point: with zeros.
static hth_err quant_is_zero(const canon *c, int value, bool *zero)
{
    hth_const *k = value >= 0 ? c->ld->g->values[value].constant : NULL;
    const void *data;
    *zero = value < 0 || (k != NULL && k->bytes <= QUANT_SMALL);
    if (k != NULL && *zero) {
        HTH_TRY(hth_const_map(k, &data));
        for (size_t i = 0; i < k->bytes && *zero; i++) {
            *zero = ((const uint8_t *)data)[i] == 0;
        }
        hth_const_unmap(k);
    }
    return HTH_OK;
}

static bool quant_limits(hth_dtype dt, float *least, float *most)
{
    static const struct {
        hth_dtype dt;
        float least, most;
    } limit[] = {{HTH_DT_U8, 0, 255},
                 {HTH_DT_I8, -128, 127},
                 {HTH_DT_U16, 0, 65535},
                 {HTH_DT_I16, -32768, 32767}};
    *least = *most = 0;
    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++) {
        if (limit[i].dt == dt) {
            *least = limit[i].least;
            *most = limit[i].most;
            return true;
        }
    }
    return false;
}

static const hth_node *quant_producer(const canon *c, int value, hth_op op)
{
    const hth_graph *g = c->ld->g;
    int producer = value >= 0 ? g->values[value].producer : -1;
    return producer >= 0 && g->nodes[producer].op == op ? &g->nodes[producer] : NULL;
}

// quant_before finds what x was cast from where that is Clip(Round(..)) + `zero` within the limits
// of x's type, as quant_end writes it: the whole numbers x - zero; -1: it is not.
static hth_err quant_before(const canon *c, int x, float zero, int *out)
{
    const hth_node *cast = quant_producer(c, x, HTH_OP_CAST);
    const hth_node *add = cast != NULL ? quant_producer(c, cast->inputs[0], HTH_OP_ADD) : NULL;
    const hth_node *last = add != NULL ? add : cast;
    int centred = last != NULL ? last->inputs[0] : -1;
    const hth_node *clip = quant_producer(c, centred, HTH_OP_CLIP);
    float least, most, low, high, added = 0;
    bool is_low, is_high, is_added = true;
    *out = -1;
    if (clip == NULL || clip->n_inputs != 3 || c->ld->g->values[centred].dtype != HTH_DT_F32 ||
        quant_producer(c, clip->inputs[0], HTH_OP_ROUND) == NULL ||
        !quant_limits((hth_dtype)hth_node_int(cast, "to", 0), &least, &most)) {
        return HTH_OK;
    }
    HTH_TRY(quant_scalar(c, clip->inputs[1], &low, &is_low));
    HTH_TRY(quant_scalar(c, clip->inputs[2], &high, &is_high));
    if (add != NULL) {
        HTH_TRY(quant_scalar(c, add->inputs[1], &added, &is_added));
    }
    bool same = is_low && is_high && is_added && added == zero && low == least - zero &&
                high == most - zero;
    *out = same ? centred : -1;
    return HTH_OK;
}

// quant_whole makes the numbers x - zero_point, in FP32. zero_point may be absent.
static hth_err quant_whole(const canon *c, int x, int zero_point, int axis, int *out)
{
    int zero, rank = quant_rank(c, x);
    float number = 0;
    bool none, one;
    HTH_TRY(quant_check_types(c, x, zero_point));
    HTH_TRY(quant_is_zero(c, zero_point, &none));
    HTH_TRY(quant_scalar(c, zero_point, &number, &one));
    *out = -1;
    if (none || one) {
        HTH_TRY(quant_before(c, x, none ? 0 : number, out));
    }
    if (*out >= 0) {
        return HTH_OK;
    }
    HTH_TRY(quant_cast(c, x, HTH_DT_F32, out));
    if (none) {
        return HTH_OK;
    }
    HTH_TRY(quant_along(c, zero_point, axis, rank, &zero));
    HTH_TRY(quant_cast(c, zero, HTH_DT_F32, &zero));
    return quant_emit(c, HTH_OP_SUB, *out, zero, out);
}

// A scale in FP32, in the shape that broadcasts.
static hth_err quant_scale(const canon *c, int scale, int axis, int rank, int *out)
{
    HTH_TRY(quant_check_scale(c, scale));
    HTH_TRY(quant_along(c, scale, axis, rank, out));
    return quant_dtype(c, scale, HTH_DT_F32) == HTH_DT_F32 ? HTH_OK
                                                           : quant_cast(c, *out, HTH_DT_F32, out);
}

// quant_float makes (x - zero_point) * scale, in FP32.
static hth_err quant_float(const canon *c, int x, int scale, int zero_point, int axis, int *out)
{
    int whole, factor;
    HTH_TRY(quant_whole(c, x, zero_point, axis, &whole));
    HTH_TRY(quant_scale(c, scale, axis, quant_rank(c, x), &factor));
    return quant_emit(c, HTH_OP_MUL, whole, factor, out);
}

// quant_round makes the whole numbers, in FP32, that saturate(round(x / scale) + zero_point) has in
// type `to`. Of a constant zero point the limits are moved, so that the numbers without it are
// there for who makes floats of them.
static hth_err quant_round(const canon *c, int x, int scale, int zero_point, int axis, hth_dtype to,
                           int *out)
{
    int rank = quant_rank(c, x), divisor, whole, zero, low, high, node;
    float least, most, number = 0;
    bool none, one;
    if (!quant_limits(to, &least, &most)) {
        return hth_fail(HTH_ENOTSUP, "quantising to %s is not supported", hth_dtype_name(to));
    }
    HTH_TRY(quant_is_zero(c, zero_point, &none));
    HTH_TRY(quant_scalar(c, zero_point, &number, &one));
    HTH_TRY(quant_scale(c, scale, axis, rank, &divisor));
    HTH_TRY(quant_cast(c, x, HTH_DT_F32, &x)); // mostly it is that already
    HTH_TRY(quant_emit(c, HTH_OP_DIV, x, divisor, &whole));
    HTH_TRY(quant_emit(c, HTH_OP_ROUND, whole, -1, &whole));
    number = none ? 0 : number;
    if (!none && !one) {
        HTH_TRY(quant_along(c, zero_point, axis, rank, &zero));
        HTH_TRY(quant_cast(c, zero, HTH_DT_F32, &zero));
        HTH_TRY(quant_emit(c, HTH_OP_ADD, whole, zero, &whole));
    }
    HTH_TRY(quant_number(c, "least", least - number, &low));
    HTH_TRY(quant_number(c, "most", most - number, &high));
    HTH_TRY(onnx_canon_emit(c, HTH_OP_CLIP, (int[]){whole, low, high}, 3, &node, out));
    c->ld->g->values[*out].dtype = HTH_DT_F32;
    if (number != 0) {
        HTH_TRY(quant_number(c, "zero", number, &zero));
        HTH_TRY(quant_emit(c, HTH_OP_ADD, *out, zero, out));
    }
    return HTH_OK;
}

// The node at hand becomes the last step of quantising x.
static hth_err quant_end(const canon *c, int x, int scale, int zero_point, int axis, hth_dtype to)
{
    int whole;
    HTH_TRY(quant_round(c, x, scale, zero_point, axis, to, &whole));
    hth_value *v = c->ld->g->values, *y = &v[onnx_canon_node(c)->outputs[0]];
    y->dtype = to;
    y->shape = y->shape.rank < 0 ? v[x].shape : y->shape; // who dequantises it asks for the rank
    quant_become(c, HTH_OP_CAST, whole, -1);
    return hth_node_set_int(onnx_canon_node(c), "to", to);
}

// quant_to finds the type to quantise to: the zero point's, UINT8 without one.
static hth_err quant_to(const canon *c, int zero_point, hth_dtype said, hth_dtype *to)
{
    hth_dtype without = said != HTH_DT_NONE ? said : HTH_DT_U8;
    *to = zero_point < 0 ? without : quant_dtype(c, zero_point, said);
    if (*to == HTH_DT_NONE) {
        return hth_fail(HTH_ENOTSUP, "the file does not say the type of the zero point");
    }
    return said == HTH_DT_NONE || said == *to
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the zero point is %s, and output_dtype %s",
                          hth_dtype_name(*to), hth_dtype_name(said));
}

// quant_emit_plain emits the operator itself: a convolution with the attributes of the node at
// hand, or MatMul, which has none.
static hth_err quant_emit_plain(const canon *c, hth_op op, const int *inputs, int n, int *out)
{
    int node;
    HTH_TRY(onnx_canon_emit(c, op, inputs, n, &node, out));
    return op == HTH_OP_CONV ? hth_node_copy_attrs(&c->ld->g->nodes[node], onnx_canon_node(c))
                             : HTH_OK;
}

static hth_err quant_need(const canon *c, int least)
{
    for (int i = 0; i < least; i++) {
        if (quant_input(c, i) < 0) {
            return hth_fail(HTH_EINVAL, "a required input is missing");
        }
    }
    const hth_node *n = onnx_canon_node(c);
    const hth_op_info *info = hth_op_info_of(n->op);
    if (n->n_inputs > info->max_inputs || n->n_outputs > info->max_outputs) {
        return hth_fail(HTH_EINVAL, "%d inputs and %d outputs are not what the operator has",
                        n->n_inputs, n->n_outputs);
    }
    return n->n_outputs > 0 && n->outputs[0] >= 0 ? HTH_OK
                                                  : hth_fail(HTH_EINVAL, "it has no output");
}

static hth_err quant_axis(const canon *c, int *axis)
{
    const hth_node *n = onnx_canon_node(c);
    int64_t at = hth_node_int(n, "axis", 1);
    if (hth_node_int(n, "block_size", 0) != 0) {
        return hth_fail(HTH_ENOTSUP, "block_size is not supported");
    }
    if (at < -HTH_MAX_RANK || at >= HTH_MAX_RANK) {
        return hth_fail(HTH_EINVAL, "axis %lld is none", (long long)at);
    }
    *axis = (int)at;
    return HTH_OK;
}

hth_err onnx_canon_dequantize(const canon *c)
{
    int axis, whole, factor;
    HTH_TRY(quant_need(c, 2));
    HTH_TRY(quant_axis(c, &axis));
    int x = quant_input(c, 0), scale = quant_input(c, 1);
    int64_t said = hth_node_int(onnx_canon_node(c), "output_dtype", 0);
    hth_dtype to = said != 0 ? (hth_dtype)said : quant_dtype(c, scale, HTH_DT_F32);
    if (!hth_onnx_dtype_known(to) || !hth_dtype_is_float(to)) {
        return hth_fail(HTH_ENOTSUP, "floats of type %s are not supported",
                        hth_onnx_dtype_text(to));
    }
    HTH_TRY(quant_whole(c, x, quant_input(c, 2), axis, &whole));
    HTH_TRY(quant_scale(c, scale, axis, quant_rank(c, x), &factor));
    if (to == HTH_DT_F32) {
        quant_become(c, HTH_OP_MUL, whole, factor);
        return HTH_OK;
    }
    HTH_TRY(quant_emit(c, HTH_OP_MUL, whole, factor, &whole));
    quant_become(c, HTH_OP_CAST, whole, -1);
    return hth_node_set_int(onnx_canon_node(c), "to", to);
}

hth_err onnx_canon_quantize(const canon *c)
{
    int axis;
    HTH_TRY(quant_need(c, 2));
    HTH_TRY(quant_axis(c, &axis));
    int64_t said = hth_node_int(onnx_canon_node(c), "output_dtype", 0);
    if (said != 0 && !hth_onnx_dtype_known(said)) {
        return hth_fail(HTH_ENOTSUP, "element type %s is not supported", hth_onnx_dtype_text(said));
    }
    int zero_point = quant_input(c, 2);
    hth_dtype to;
    HTH_TRY(quant_to(c, zero_point, (hth_dtype)said, &to));
    return quant_end(c, quant_input(c, 0), quant_input(c, 1), zero_point, axis, to);
}

// The result of QLinearConv or QLinearMatMul.
static hth_err quant_product(const canon *c, int y, int axis)
{
    int zero_point = quant_input(c, 7);
    hth_dtype to;
    HTH_TRY(quant_to(c, zero_point, HTH_DT_NONE, &to));
    return quant_end(c, y, quant_input(c, 6), zero_point, axis, to);
}

// x, its scale, zero point, w, its scale, zero point, y's scale, zero point, bias: INT32, of scale
// x's * w's.
hth_err onnx_canon_qlinear_conv(const canon *c)
{
    int in[3], y, factor;
    HTH_TRY(quant_need(c, 8));
    HTH_TRY(quant_float(c, quant_input(c, 0), quant_input(c, 1), quant_input(c, 2), 1, &in[0]));
    HTH_TRY(quant_float(c, quant_input(c, 3), quant_input(c, 4), quant_input(c, 5), 0, &in[1]));
    int bias = quant_input(c, 8);
    if (bias >= 0) {
        HTH_TRY(quant_emit(c, HTH_OP_MUL, quant_input(c, 1), quant_input(c, 4), &factor));
        HTH_TRY(quant_cast(c, bias, HTH_DT_F32, &in[2]));
        HTH_TRY(quant_emit(c, HTH_OP_MUL, in[2], factor, &in[2]));
    }
    HTH_TRY(quant_emit_plain(c, HTH_OP_CONV, in, bias >= 0 ? 3 : 2, &y));
    return quant_product(c, y, 1);
}

// a, its scale, zero point, b, its scale, zero point, y's scale, zero point. Of a one for each row,
// of b one for each column.
hth_err onnx_canon_qlinear_matmul(const canon *c)
{
    int in[2], y;
    HTH_TRY(quant_need(c, 8));
    HTH_TRY(quant_float(c, quant_input(c, 0), quant_input(c, 1), quant_input(c, 2), -2, &in[0]));
    HTH_TRY(quant_float(c, quant_input(c, 3), quant_input(c, 4), quant_input(c, 5), -1, &in[1]));
    HTH_TRY(quant_emit_plain(c, HTH_OP_MAT_MUL, in, 2, &y));
    return quant_product(c, y, -2);
}

// a, b, their zero points: INT32, of rounded sums.
static hth_err quant_integer(const canon *c, hth_op op, int a_axis, int b_axis)
{
    int in[2], sum, whole;
    HTH_TRY(quant_need(c, 2));
    HTH_TRY(quant_whole(c, quant_input(c, 0), quant_input(c, 2), a_axis, &in[0]));
    HTH_TRY(quant_whole(c, quant_input(c, 1), quant_input(c, 3), b_axis, &in[1]));
    HTH_TRY(quant_emit_plain(c, op, in, 2, &sum));
    HTH_TRY(quant_emit(c, HTH_OP_ROUND, sum, -1, &whole));
    quant_become(c, HTH_OP_CAST, whole, -1);
    c->ld->g->values[onnx_canon_node(c)->outputs[0]].dtype = HTH_DT_I32;
    return hth_node_set_int(onnx_canon_node(c), "to", HTH_DT_I32);
}

hth_err onnx_canon_conv_integer(const canon *c)
{
    return quant_integer(c, HTH_OP_CONV, 1, 0);
}

hth_err onnx_canon_matmul_integer(const canon *c)
{
    return quant_integer(c, HTH_OP_MAT_MUL, -2, -1);
}

// An operator whose output is that of the node at hand number `at`.
static hth_err quant_output(const canon *c, hth_op op, const int *inputs, int n, int at, int *out,
                            int *node)
{
    int wanted = at < onnx_canon_node(c)->n_outputs ? onnx_canon_node(c)->outputs[at] : -1;
    if (wanted < 0) {
        return onnx_canon_emit(c, op, inputs, n, node, out);
    }
    *out = wanted;
    return hth_graph_add_node(c->ld->g, op, NULL, inputs, n, &wanted, 1, node);
}

static hth_err quant_extreme(const canon *c, hth_op reduce, hth_op with, int zero, int *out)
{
    int node, extreme;
    HTH_TRY(onnx_canon_emit(c, reduce, &(int){quant_input(c, 0)}, 1, &node, &extreme));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "keepdims", 0));
    return quant_emit(c, with, extreme, zero, out);
}

// y, its scale, zero point: UINT8, of the range that x has, 0 included. Where all is 0 the scale
// is 1, as onnxruntime has it.
hth_err onnx_canon_dynamic_quantize(const canon *c)
{
    int zero, one, steps, high, low, range, scale, same, minus, place, whole, point, node;
    HTH_TRY(quant_need(c, 1));
    HTH_TRY(quant_number(c, "zero", 0, &zero));
    HTH_TRY(quant_number(c, "one", 1, &one));
    HTH_TRY(quant_number(c, "steps", 255, &steps));
    HTH_TRY(quant_extreme(c, HTH_OP_REDUCE_MAX, HTH_OP_MAX, zero, &high));
    HTH_TRY(quant_extreme(c, HTH_OP_REDUCE_MIN, HTH_OP_MIN, zero, &low));
    HTH_TRY(quant_emit(c, HTH_OP_SUB, high, low, &range));
    HTH_TRY(quant_emit(c, HTH_OP_EQUAL, range, zero, &same));
    HTH_TRY(quant_emit(c, HTH_OP_DIV, range, steps, &range));
    HTH_TRY(quant_output(c, HTH_OP_WHERE, (int[]){same, one, range}, 3, 1, &scale, &node));
    c->ld->g->values[scale].dtype = HTH_DT_F32;
    c->ld->g->values[scale].shape = (hth_shape){.rank = 0};
    HTH_TRY(quant_emit(c, HTH_OP_NEG, low, -1, &minus));
    HTH_TRY(quant_emit(c, HTH_OP_DIV, minus, scale, &place));
    HTH_TRY(quant_emit(c, HTH_OP_ROUND, place, -1, &place));
    HTH_TRY(onnx_canon_emit(c, HTH_OP_CLIP, (int[]){place, zero, steps}, 3, &node, &whole));
    c->ld->g->values[whole].dtype = HTH_DT_F32;
    HTH_TRY(quant_output(c, HTH_OP_CAST, &whole, 1, 2, &point, &node));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "to", HTH_DT_U8));
    c->ld->g->values[point].dtype = HTH_DT_U8;
    c->ld->g->values[point].shape = (hth_shape){.rank = 0};
    HTH_TRY(quant_end(c, quant_input(c, 0), scale, point, 1, HTH_DT_U8));
    onnx_canon_node(c)->n_outputs = 1;
    return HTH_OK;
}
