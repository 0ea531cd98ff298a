// SPDX-License-Identifier: Apache-2.0
// Pooling over windows, with the positions of maxima where they are wanted, and its gradients. Also
// the geometry of windows, which convolutions read, too.
#include "kernels/cuda/window.h"

#include <string.h>

#define WINDOW_MAX ((int64_t)1 << 24)

static hth_err window_attr(const hth_node *node, const char *name, int nsp, int32_t out[3])
{
    int64_t v[HTH_MAX_RANK];
    int have = hth_node_ints(node, name, v, HTH_MAX_RANK);
    if (have >= 0 && have != nsp) {
        return hth_fail(HTH_ENOTSUP, "%s has %d elements for %d dimensions", name, have, nsp);
    }
    for (int i = 0; i < 3; i++) {
        int64_t x = i < 3 - nsp || have < 0 ? 1 : v[i - (3 - nsp)];
        if (x < 1 || x > WINDOW_MAX) {
            return hth_fail(HTH_ENOTSUP, "%s of %lld", name, (long long)x);
        }
        out[i] = (int32_t)x;
    }
    return HTH_OK;
}

static hth_err window_pads(const hth_node *node, int nsp, hth_cuda_window *window)
{
    const char *mode = hth_node_str(node, "auto_pad", "NOTSET");
    int64_t v[HTH_MAX_RANK] = {0};
    int have = hth_node_ints(node, "pads", v, HTH_MAX_RANK);
    if (strncmp(mode, "SAME", 4) == 0) {
        for (int i = 3 - nsp; i < 3; i++) {
            int32_t total = (window->out[i] - 1) * window->stride[i] +
                            (window->k[i] - 1) * window->dilation[i] + 1 - window->in[i];
            total = total < 0 ? 0 : total;
            window->pad[i] = strcmp(mode, "SAME_LOWER") == 0 ? total - total / 2 : total / 2;
            window->pad_end[i] = total - window->pad[i];
        }
        return HTH_OK;
    }
    if (strcmp(mode, "VALID") == 0 || have <= 0) {
        return HTH_OK;
    }
    if (have != 2 * nsp) {
        return hth_fail(HTH_ENOTSUP, "pads has %d elements for %d dimensions", have, nsp);
    }
    for (int i = 0; i < nsp; i++) {
        window->pad[3 - nsp + i] = (int32_t)v[i];
        window->pad_end[3 - nsp + i] = (int32_t)v[nsp + i];
    }
    return HTH_OK;
}

hth_err hth_cuda_window_get(const hth_node *node, const hth_shape *in, const hth_shape *out,
                            const int64_t *kernel, hth_cuda_window *window)
{
    int nsp = in->rank - 2;
    memset(window, 0, sizeof *window);
    if (nsp < 1 || nsp > 3 || out->rank != in->rank) {
        return hth_fail(HTH_ENOTSUP, "%d spatial dimensions", nsp);
    }
    window->n_spatial = nsp;
    for (int i = 0; i < 3; i++) {
        int s = i - (3 - nsp);
        window->in[i] = s < 0 ? 1 : (int32_t)in->dim[2 + s];
        window->out[i] = s < 0 ? 1 : (int32_t)out->dim[2 + s];
        window->k[i] = s < 0 ? 1 : (int32_t)kernel[s];
    }
    HTH_TRY(window_attr(node, "strides", nsp, window->stride));
    HTH_TRY(window_attr(node, "dilations", nsp, window->dilation));
    return window_pads(node, nsp, window);
}

static hth_err pool_params(const hth_node *node, const hth_shape *in, const hth_shape *out,
                           hth_pool_params *params)
{
    int64_t kernel[HTH_MAX_RANK] = {0};
    hth_cuda_window w;
    if (hth_node_ints(node, "kernel_shape", kernel, HTH_MAX_RANK) != in->rank - 2) {
        return hth_fail(HTH_ENOTSUP, "kernel_shape does not fit");
    }
    HTH_TRY(hth_cuda_window_get(node, in, out, kernel, &w));
    memcpy(params->in, w.in, sizeof w.in);
    memcpy(params->out, w.out, sizeof w.out);
    memcpy(params->k, w.k, sizeof w.k);
    memcpy(params->stride, w.stride, sizeof w.stride);
    memcpy(params->pad, w.pad, sizeof w.pad);
    memcpy(params->pad_end, w.pad_end, sizeof w.pad_end);
    memcpy(params->dilation, w.dilation, sizeof w.dilation);
    params->count_pads = hth_node_int(node, "count_include_pad", 0) != 0;
    params->p = (float)hth_node_int(node, "p", 2);
    return HTH_OK;
}

static hth_err pool_lies(const hth_value *x, const hth_value *y, hth_pool_params *params)
{
    params->inner = hth_cuda_inner(x);
    params->half = hth_cuda_half(x);
    return x->layout == y->layout && x->dtype == y->dtype
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "input and result lie differently");
}

hth_err hth_cuda_pool(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    bool train = node->op == HTH_OP_MAX_POOL_TRAIN;
    hth_pool_params p = {.n = hth_cuda_count(y), .kind = HTH_POOL_MAX};
    if (node->op == HTH_OP_AVERAGE_POOL || node->op == HTH_OP_LP_POOL) {
        p.kind = node->op == HTH_OP_LP_POOL ? HTH_POOL_LP : HTH_POOL_AVERAGE;
    }
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    HTH_TRY(pool_params(node, &x->shape, &y->shape, &p));
    HTH_TRY(pool_lies(x, y, &p));
    bool where = !train && hth_cuda_out(graph, node, 1) != NULL;
    if (where && hth_node_int(node, "storage_order", 0) != 0) {
        return hth_fail(HTH_ENOTSUP, "positions in column-major order");
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_pool, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_pool_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_pool_params, y), HTH_CUDA_OUT, 0, 0);
    if (train || where) {
        hth_cuda_bind(seq,
                      train ? offsetof(hth_pool_params, tap) : offsetof(hth_pool_params, where),
                      HTH_CUDA_OUT, 1, 0);
    }
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}

hth_err hth_cuda_pool_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const char *algorithm)
{
    const hth_value *dy = hth_cuda_in(graph, node, 0), *dx = hth_cuda_out(graph, node, 0);
    bool max = node->op == HTH_OP_MAX_POOL_GRAD;
    hth_pool_params p = {.n = hth_cuda_count(dx), .kind = max ? HTH_POOL_MAX : HTH_POOL_AVERAGE};
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    HTH_TRY(pool_params(node, &dx->shape, &dy->shape, &p));
    HTH_TRY(pool_lies(dy, dx, &p));
    hth_cuda_launch_add(seq, HTH_CUDA_hth_pool_grad, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_pool_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_pool_params, y), HTH_CUDA_OUT, 0, 0);
    if (max) {
        hth_cuda_bind(seq, offsetof(hth_pool_params, tap), HTH_CUDA_IN, 1, 0);
    }
    seq->moved_bytes += hth_cuda_bytes(dy) + hth_cuda_bytes(dx);
    return HTH_OK;
}
