// SPDX-License-Identifier: Apache-2.0
// Operators whose positions are data or are computed: Gather and its gradient, attention.
#include "graph/attention.h"
#include "kernels/cuda/seq.h"

#include <string.h>

#define ATTENTION_SCORES 8192 // of a row: what 48 KiB of shared memory hold, and more

static hth_err gather_params(const hth_graph *graph, const hth_node *node, const hth_shape *data,
                             hth_gather_params *params, uint32_t *outer)
{
    const hth_value *index = hth_cuda_in(graph, node, 1);
    HTH_TRY(hth_cuda_wide(index, &params->wide));
    params->count = hth_cuda_count(index);
    return hth_cuda_axis(node, data, 0, outer, &params->along, &params->inner);
}

hth_err hth_cuda_gather(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    hth_gather_params p = {.element = (uint32_t)hth_dtype_bytes(x->dtype)};
    uint32_t outer;
    HTH_TRY(gather_params(graph, node, &x->shape, &p, &outer));
    while (p.element < 16 && p.inner % 2 == 0 && p.inner > 0) { // wider rows, fewer elements
        p.element *= 2;
        p.inner /= 2;
    }
    p.n = outer * p.count * p.inner;
    hth_cuda_launch_add(seq, HTH_CUDA_hth_gather, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_gather_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_gather_params, index), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_gather_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(y);
    return HTH_OK;
}

hth_err hth_cuda_gather_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                             const char *algorithm)
{
    const hth_value *dx = hth_cuda_out(graph, node, 0);
    hth_gather_params p = {.element = sizeof(float)};
    uint32_t outer;
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 0));
    if (dx->dtype != HTH_DT_F32) { // it is what sums are added up in
        return hth_fail(HTH_ENOTSUP, "a result that is %s", hth_dtype_name(dx->dtype));
    }
    p.half = hth_cuda_half(hth_cuda_in(graph, node, 0));
    HTH_TRY(gather_params(graph, node, &dx->shape, &p, &outer));
    p.n = outer * p.inner;
    hth_cuda_fill(seq, 0, hth_cuda_count(dx), 0);
    hth_cuda_launch_add(seq, HTH_CUDA_hth_gather_grad, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_gather_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_gather_params, index), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_gather_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(hth_cuda_in(graph, node, 0));
    return HTH_OK;
}

static void attention_view(int64_t out[5], const hth_attention_view *view)
{
    out[0] = view->offset;
    memcpy(out + 1, view->stride, sizeof view->stride);
}

hth_err hth_cuda_attention(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const char *algorithm)
{
    hth_attention a;
    HTH_TRY(hth_cuda_need_float(graph, node, 4, 1));
    HTH_TRY(hth_attention_get(graph, node, &a));
    if (a.s > ATTENTION_SCORES) {
        return hth_fail(HTH_ENOTSUP, "rows of more than %d scores", ATTENTION_SCORES);
    }
    hth_attention_params p = {.b1 = (uint32_t)a.b1,
                              .t = (uint32_t)a.t,
                              .s = (uint32_t)a.s,
                              .d = (uint32_t)a.d,
                              .e = (uint32_t)a.e,
                              .scale = a.scale};
    attention_view(p.view[0], &a.q);
    attention_view(p.view[1], &a.k);
    attention_view(p.view[2], &a.v);
    attention_view(p.view[3], &a.out);
    attention_view(p.view[4], &a.mask);
    for (int i = 0; i < 5; i++) {
        int input = i == 4 ? 3 : i;
        p.half[i] =
            hth_cuda_half(i == 3 ? hth_cuda_out(graph, node, 0) : hth_cuda_in(graph, node, input));
    }
    unsigned threads = hth_cuda_row_threads((uint64_t)(a.s > a.e ? a.s : a.e));
    hth_cuda_launch_add(seq, HTH_CUDA_hth_attention, (uint64_t)(a.b0 * a.b1 * a.t), threads,
                        (threads + 2 * HTH_FOLD + p.s) * sizeof(float), &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_attention_params, q), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_attention_params, k), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_attention_params, v), HTH_CUDA_IN, 2, 0);
    if (a.has_mask) {
        hth_cuda_bind(seq, offsetof(hth_attention_params, mask), HTH_CUDA_IN, 3, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_attention_params, out), HTH_CUDA_OUT, 0, 0);
    return HTH_OK;
}
