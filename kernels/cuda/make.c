// SPDX-License-Identifier: Apache-2.0
// Operators whose results are made of few numbers, where they are too large, or known too late, to
// be folded: ConstantOfShape, EyeLike, Range; Compress, whose result is as large as its condition,
// a constant, says; and Dropout of inference, whose mask is asked for.
#include "kernels/cuda/seq.h"

#include "base/compare.h"

#include <string.h>

static void make_launch(hth_cuda_seq *seq, hth_cuda_kernel_id id, const hth_make_params *params)
{
    hth_cuda_launch_add(seq, id, hth_cuda_blocks(seq, params->n, true), 0, 0, params,
                        sizeof *params);
    hth_cuda_bind(seq, offsetof(hth_make_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += (size_t)params->n * params->element;
}

hth_err hth_cuda_constant_of_shape(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                   const char *algorithm)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    const hth_attr *value = hth_node_attr(node, "value");
    hth_make_params p = {.n = hth_cuda_count(y), .element = (uint32_t)hth_dtype_bytes(y->dtype)};
    if (value != NULL && value->type == HTH_ATTR_TENSOR) {
        const void *data;
        if (value->u.tensor->dtype != y->dtype || value->u.tensor->bytes != p.element) {
            return hth_fail(HTH_ENOTSUP, "the value is not one of the result's type");
        }
        HTH_TRY(hth_const_map(value->u.tensor, &data));
        memcpy(&p.value, data, p.element);
        hth_const_unmap(value->u.tensor);
    }
    make_launch(seq, HTH_CUDA_hth_make, &p);
    return seq->err;
}

// The bits of a 1.
static bool make_one(hth_dtype dt, uint64_t *out)
{
    const float f = 1;
    const double d = 1;
    *out = 1;
    switch (dt) {
    case HTH_DT_F32:
        *out = 0;
        memcpy(out, &f, sizeof f);
        return true;
    case HTH_DT_F64:
        memcpy(out, &d, sizeof d);
        return true;
    case HTH_DT_F16:
        *out = 0x3C00;
        return true;
    case HTH_DT_BF16:
        *out = 0x3F80;
        return true;
    default:
        return !hth_dtype_is_float(dt) && hth_dtype_bytes(dt) > 0;
    }
}

hth_err hth_cuda_eye_like(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          const char *algorithm)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    hth_make_params p = {.n = hth_cuda_count(y),
                         .element = (uint32_t)hth_dtype_bytes(y->dtype),
                         .cols = (uint32_t)y->shape.dim[1],
                         .k = hth_node_int(node, "k", 0)};
    if (!make_one(y->dtype, &p.value)) {
        return hth_fail(HTH_ENOTSUP, "%s", hth_dtype_name(y->dtype));
    }
    int64_t far = y->shape.dim[0] + y->shape.dim[1]; // no diagonal: everything is zero
    p.k = hth_clamp(p.k, -far, far);
    make_launch(seq, HTH_CUDA_hth_make, &p);
    return seq->err;
}

hth_err hth_cuda_arange(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    const hth_make_params p = {
        .n = hth_cuda_count(y), .element = (uint32_t)hth_dtype_bytes(y->dtype), .type = y->dtype};
    bool known = hth_dtype_is_float(y->dtype) || y->dtype == HTH_DT_I16 || y->dtype == HTH_DT_I32 ||
                 y->dtype == HTH_DT_I64;
    if (!known) {
        return hth_fail(HTH_ENOTSUP, "a range of %s", hth_dtype_name(y->dtype));
    }
    make_launch(seq, HTH_CUDA_hth_range, &p);
    hth_cuda_bind(seq, offsetof(hth_make_params, start), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_make_params, delta), HTH_CUDA_IN, 2, 0);
    return seq->err;
}

// A list of the positions that are true, in the workspace, which a Gather then reads.
hth_err hth_cuda_compress(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *condition = hth_cuda_in(graph, node, 1);
    const hth_value *y = hth_cuda_out(graph, node, 0);
    hth_gather_params p = {.element = (uint32_t)hth_dtype_bytes(x->dtype),
                           .along = hth_cuda_count(x),
                           .inner = 1,
                           .wide = 1};
    uint32_t outer = 1;
    if (condition->dtype != HTH_DT_BOOL) {
        return hth_fail(HTH_ENOTSUP, "the condition is %s", hth_dtype_name(condition->dtype));
    }
    if (hth_node_attr(node, "axis") != NULL) {
        HTH_TRY(hth_cuda_axis(node, &x->shape, 0, &outer, &p.along, &p.inner));
    }
    p.n = hth_cuda_count(y);
    p.count = p.n / outer / p.inner;
    const hth_make_params list = {
        .n = hth_cuda_count(condition) < p.along ? hth_cuda_count(condition) : p.along};
    size_t at = hth_cuda_workspace(seq, p.count * sizeof(int64_t));
    hth_cuda_launch_add(seq, HTH_CUDA_hth_compress, 1, 256, 256 * sizeof(uint32_t), &list,
                        sizeof list);
    hth_cuda_bind(seq, offsetof(hth_make_params, start), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_make_params, out), HTH_CUDA_WS, 0, at);
    hth_cuda_launch_add(seq, HTH_CUDA_hth_gather, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_gather_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_gather_params, index), HTH_CUDA_WS, 0, at);
    hth_cuda_bind(seq, offsetof(hth_gather_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(y);
    return seq->err;
}

// Outside of training nothing is dropped: a copy, and a mask of trues.
hth_err hth_cuda_dropout_none(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                              const char *algorithm)
{
    const hth_value *training = hth_cuda_in(graph, node, 2), *mask = hth_cuda_out(graph, node, 1);
    const void *data;
    bool drops = training != NULL;
    if (drops && training->constant != NULL && training->dtype == HTH_DT_BOOL) {
        HTH_TRY(hth_const_map(training->constant, &data));
        drops = *(const uint8_t *)data != 0;
        hth_const_unmap(training->constant);
    }
    if (drops) {
        return hth_fail(HTH_ENOTSUP,
                        "it drops elements (training_mode): that is a training step's");
    }
    if (mask != NULL) {
        hth_cuda_fill(seq, 1, (hth_cuda_count(mask) + 3) / 4, 0x01010101);
    }
    return hth_cuda_view(seq, graph, node, algorithm);
}
