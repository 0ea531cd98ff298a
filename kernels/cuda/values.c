// SPDX-License-Identifier: Apache-2.0
// What builders ask of a node's values, and loops over strided operands.
#include "kernels/cuda/seq.h"

#include <string.h>

// How many of the node's inputs are the operator's own; operands of post ops stand after them.
static int values_own(const hth_node *node)
{
    int count = node->n_inputs;
    for (int i = 0; i < node->n_post; i++) {
        int operand = node->post[i].input;
        count = operand >= 0 && operand < count ? operand : count;
    }
    return count;
}

const hth_value *hth_cuda_in(const hth_graph *graph, const hth_node *node, int i)
{
    return i < values_own(node) && node->inputs[i] >= 0 ? &graph->values[node->inputs[i]] : NULL;
}

const hth_value *hth_cuda_out(const hth_graph *graph, const hth_node *node, int i)
{
    return i < node->n_outputs && node->outputs[i] >= 0 ? &graph->values[node->outputs[i]] : NULL;
}

uint32_t hth_cuda_count(const hth_value *value)
{
    return (uint32_t)hth_shape_elements(&value->shape);
}

size_t hth_cuda_bytes(const hth_value *value)
{
    return (size_t)hth_shape_elements(&value->shape) * hth_dtype_bytes(value->dtype);
}

// The i-th of the node's n_in inputs and its outputs, of a type that is not in `only`.
static hth_err values_refuse(const hth_value *value, int i, int n_in, const char *only)
{
    const char *type = hth_dtype_name(value->dtype);
    if (i < n_in) {
        return hth_fail(HTH_ENOTSUP, "input %d is %s: only %s", i, type, only);
    }
    return hth_fail(HTH_ENOTSUP, "output %d is %s: only %s", i - n_in, type, only);
}

hth_err hth_cuda_need_f32(const hth_graph *graph, const hth_node *node, int n_in, int n_out)
{
    for (int i = 0; i < n_in + n_out; i++) {
        const hth_value *v =
            i < n_in ? hth_cuda_in(graph, node, i) : hth_cuda_out(graph, node, i - n_in);
        if (v != NULL && v->dtype != HTH_DT_F32) {
            return values_refuse(v, i, n_in, "FP32");
        }
    }
    return HTH_OK;
}

bool hth_cuda_half(const hth_value *value)
{
    return value != NULL && value->dtype == HTH_DT_BF16;
}

hth_err hth_cuda_need_float(const hth_graph *graph, const hth_node *node, int n_in, int n_out)
{
    for (int i = 0; i < n_in + n_out; i++) {
        const hth_value *v =
            i < n_in ? hth_cuda_in(graph, node, i) : hth_cuda_out(graph, node, i - n_in);
        if (v != NULL && v->dtype != HTH_DT_F32 && v->dtype != HTH_DT_BF16) {
            return values_refuse(v, i, n_in, "FP32 and BF16");
        }
    }
    return HTH_OK;
}

hth_err hth_cuda_wide(const hth_value *index, int32_t *wide)
{
    *wide = index->dtype == HTH_DT_I64;
    return *wide || index->dtype == HTH_DT_I32
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "indices are %s", hth_dtype_name(index->dtype));
}

uint32_t hth_cuda_inner(const hth_value *value)
{
    return value->layout == HTH_LAYOUT_NHWC ? (uint32_t)value->shape.dim[1] : 1;
}

static int64_t values_int(hth_dtype dt, const void *data, int64_t i)
{
    return dt == HTH_DT_I32 ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
}

hth_err hth_cuda_ints(const hth_graph *graph, const hth_node *node, int input, int64_t *out,
                      int cap, int *count)
{
    const hth_value *v = hth_cuda_in(graph, node, input);
    const void *data;
    *count = -1;
    if (v == NULL) {
        return HTH_OK;
    }
    if (v->constant == NULL || (v->dtype != HTH_DT_I64 && v->dtype != HTH_DT_I32) ||
        hth_shape_elements(&v->shape) > cap) {
        return hth_fail(HTH_ENOTSUP, "input %d is computed", input);
    }
    *count = (int)hth_shape_elements(&v->shape);
    HTH_TRY(hth_const_map(v->constant, &data));
    for (int i = 0; i < *count; i++) {
        out[i] = values_int(v->dtype, data, i);
    }
    hth_const_unmap(v->constant);
    return HTH_OK;
}

hth_err hth_cuda_float(const hth_graph *graph, const hth_node *node, int input, float dflt,
                       float *out)
{
    const hth_value *v = hth_cuda_in(graph, node, input);
    const void *data;
    *out = dflt;
    if (v == NULL) {
        return HTH_OK;
    }
    if (v->constant == NULL || v->dtype != HTH_DT_F32 || hth_shape_elements(&v->shape) != 1) {
        return hth_fail(HTH_ENOTSUP, "input %d is computed, or not one FP32", input);
    }
    HTH_TRY(hth_const_map(v->constant, &data));
    *out = *(const float *)data;
    hth_const_unmap(v->constant);
    return HTH_OK;
}

hth_err hth_cuda_axis(const hth_node *node, const hth_shape *shape, int64_t dflt, uint32_t *outer,
                      uint32_t *along, uint32_t *inner)
{
    int64_t axis = hth_node_int(node, "axis", dflt), before = 1, behind = 1;
    axis += axis < 0 ? shape->rank : 0;
    if (axis < 0 || axis >= shape->rank) {
        return hth_fail(HTH_ENOTSUP, "axis is out of range");
    }
    for (int d = 0; d < shape->rank; d++) {
        before *= d < axis ? shape->dim[d] : 1;
        behind *= d > axis ? shape->dim[d] : 1;
    }
    *outer = (uint32_t)before;
    *along = (uint32_t)shape->dim[axis];
    *inner = (uint32_t)behind;
    if (hth_node_int(node, "flatten", 0) != 0) {
        *along *= *inner;
        *inner = 1;
    }
    return HTH_OK;
}

void hth_cuda_row_major(const hth_shape *shape, int64_t *step)
{
    int64_t at = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        step[d] = at;
        at *= shape->dim[d];
    }
}

void hth_cuda_steps(const hth_shape *shape, hth_layout lies, int64_t *step)
{
    int64_t at = lies == HTH_LAYOUT_NHWC ? shape->dim[1] : 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        bool last = d == 1 && lies == HTH_LAYOUT_NHWC;
        step[d] = last ? 1 : at;
        at *= last ? 1 : shape->dim[d];
    }
}

// Where axis d of the result is in the loop.
static int loop_axis(const hth_cuda_loop *loop, int d)
{
    if (!loop->last || d == 0) {
        return d;
    }
    return d == 1 ? loop->rank - 1 : d - 1;
}

void hth_cuda_loop_begin(hth_cuda_loop *loop, const hth_shape *shape, hth_layout lies)
{
    memset(loop, 0, sizeof *loop);
    loop->rank = shape->rank;
    loop->last = lies == HTH_LAYOUT_NHWC;
    for (int d = 0; d < shape->rank; d++) {
        loop->dim[loop_axis(loop, d)] = shape->dim[d];
    }
}

int hth_cuda_loop_add(hth_cuda_loop *loop, const hth_shape *shape, hth_layout lies)
{
    int64_t step[HTH_MAX_RANK];
    hth_cuda_steps(shape, lies, step);
    for (int d = 0; d < shape->rank; d++) {
        loop->step[loop->n][loop_axis(loop, loop->rank - shape->rank + d)] =
            shape->dim[d] == 1 ? 0 : step[d];
    }
    return loop->n++;
}

static void loop_drop(hth_cuda_loop *loop, int d)
{
    for (int k = d; k + 1 < loop->rank; k++) {
        loop->dim[k] = loop->dim[k + 1];
        for (int o = 0; o < loop->n; o++) {
            loop->step[o][k] = loop->step[o][k + 1];
        }
    }
    loop->rank--;
}

void hth_cuda_loop_fold(hth_cuda_loop *loop)
{
    for (int d = loop->rank - 1; d >= 0; d--) {
        if (loop->dim[d] == 1) {
            loop_drop(loop, d);
        }
    }
    for (int d = loop->rank - 2; d >= 0; d--) {
        bool alike = true;
        for (int o = 0; o < loop->n; o++) {
            alike = alike && loop->step[o][d] == loop->step[o][d + 1] * loop->dim[d + 1];
        }
        if (alike) {
            loop->dim[d + 1] *= loop->dim[d];
            loop_drop(loop, d);
        }
    }
}

hth_err hth_cuda_loop_store(const hth_cuda_loop *loop, hth_dims *dims, hth_steps *steps)
{
    if (loop->rank > HTH_CUDA_RANK) {
        return hth_fail(HTH_ENOTSUP, "%d dimensions that do not lie alike: at most %d", loop->rank,
                        HTH_CUDA_RANK);
    }
    *dims = (hth_dims){.rank = loop->rank};
    for (int d = 0; d < loop->rank; d++) {
        dims->dim[d] = (uint32_t)loop->dim[d];
        for (int o = 0; o < loop->n; o++) {
            steps[o].step[d] = loop->step[o][d];
        }
    }
    return HTH_OK;
}
