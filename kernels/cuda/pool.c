// SPDX-License-Identifier: Apache-2.0
// Pooling over windows, with the positions of maxima where they are wanted, and its gradients. Also
// the geometry of windows, which convolutions read, too.
#include "kernels/cuda/window.h"

#include <string.h>

#define WINDOW_MAX ((int64_t)1 << 24)

static hth_err window_attr(const hth_node *n, const char *name, int nsp, int32_t out[3])
{
    int64_t v[HTH_MAX_RANK];
    int have = hth_node_ints(n, name, v, HTH_MAX_RANK);
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

static hth_err window_pads(const hth_node *n, int nsp, hth_cuda_window *w)
{
    const char *mode = hth_node_str(n, "auto_pad", "NOTSET");
    int64_t v[HTH_MAX_RANK] = {0};
    int have = hth_node_ints(n, "pads", v, HTH_MAX_RANK);
    if (strncmp(mode, "SAME", 4) == 0) {
        for (int i = 3 - nsp; i < 3; i++) {
            int32_t total =
                (w->out[i] - 1) * w->stride[i] + (w->k[i] - 1) * w->dilation[i] + 1 - w->in[i];
            total = total < 0 ? 0 : total;
            w->pad[i] = strcmp(mode, "SAME_LOWER") == 0 ? total - total / 2 : total / 2;
            w->pad_end[i] = total - w->pad[i];
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
        w->pad[3 - nsp + i] = (int32_t)v[i];
        w->pad_end[3 - nsp + i] = (int32_t)v[nsp + i];
    }
    return HTH_OK;
}

hth_err hth_cuda_window_get(const hth_node *n, const hth_shape *in, const hth_shape *out,
                            const int64_t *kernel, hth_cuda_window *w)
{
    int nsp = in->rank - 2;
    memset(w, 0, sizeof *w);
    if (nsp < 1 || nsp > 3 || out->rank != in->rank) {
        return hth_fail(HTH_ENOTSUP, "%d spatial dimensions", nsp);
    }
    w->n_spatial = nsp;
    for (int i = 0; i < 3; i++) {
        int s = i - (3 - nsp);
        w->in[i] = s < 0 ? 1 : (int32_t)in->dim[2 + s];
        w->out[i] = s < 0 ? 1 : (int32_t)out->dim[2 + s];
        w->k[i] = s < 0 ? 1 : (int32_t)kernel[s];
    }
    HTH_TRY(window_attr(n, "strides", nsp, w->stride));
    HTH_TRY(window_attr(n, "dilations", nsp, w->dilation));
    return window_pads(n, nsp, w);
}

static hth_err pool_params(const hth_node *n, const hth_shape *in, const hth_shape *out,
                           hth_pool_params *p)
{
    int64_t kernel[HTH_MAX_RANK] = {0};
    hth_cuda_window w;
    if (hth_node_ints(n, "kernel_shape", kernel, HTH_MAX_RANK) != in->rank - 2) {
        return hth_fail(HTH_ENOTSUP, "kernel_shape does not fit");
    }
    HTH_TRY(hth_cuda_window_get(n, in, out, kernel, &w));
    memcpy(p->in, w.in, sizeof w.in);
    memcpy(p->out, w.out, sizeof w.out);
    memcpy(p->k, w.k, sizeof w.k);
    memcpy(p->stride, w.stride, sizeof w.stride);
    memcpy(p->pad, w.pad, sizeof w.pad);
    memcpy(p->pad_end, w.pad_end, sizeof w.pad_end);
    memcpy(p->dilation, w.dilation, sizeof w.dilation);
    p->count_pads = hth_node_int(n, "count_include_pad", 0) != 0;
    p->p = (float)hth_node_int(n, "p", 2);
    return HTH_OK;
}

static hth_err pool_lies(const hth_value *x, const hth_value *y, hth_pool_params *p)
{
    p->inner = hth_cuda_inner(x);
    p->half = hth_cuda_half(x);
    return x->layout == y->layout && x->dtype == y->dtype
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "input and result lie differently");
}

hth_err hth_cuda_pool(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const char *algorithm)
{
    const hth_value *x = hth_cuda_in(g, n, 0), *y = hth_cuda_out(g, n, 0);
    bool train = n->op == HTH_OP_MAX_POOL_TRAIN;
    hth_pool_params p = {.n = hth_cuda_count(y), .kind = HTH_POOL_MAX};
    if (n->op == HTH_OP_AVERAGE_POOL || n->op == HTH_OP_LP_POOL) {
        p.kind = n->op == HTH_OP_LP_POOL ? HTH_POOL_LP : HTH_POOL_AVERAGE;
    }
    HTH_TRY(hth_cuda_need_float(g, n, 1, 1));
    HTH_TRY(pool_params(n, &x->shape, &y->shape, &p));
    HTH_TRY(pool_lies(x, y, &p));
    bool where = !train && hth_cuda_out(g, n, 1) != NULL;
    if (where && hth_node_int(n, "storage_order", 0) != 0) {
        return hth_fail(HTH_ENOTSUP, "positions in column-major order");
    }
    hth_cuda_launch_add(s, HTH_CUDA_hth_pool, hth_cuda_blocks(s, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(s, offsetof(hth_pool_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_pool_params, y), HTH_CUDA_OUT, 0, 0);
    if (train || where) {
        hth_cuda_bind(s, train ? offsetof(hth_pool_params, tap) : offsetof(hth_pool_params, where),
                      HTH_CUDA_OUT, 1, 0);
    }
    s->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}

hth_err hth_cuda_pool_grad(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                           const char *algorithm)
{
    const hth_value *dy = hth_cuda_in(g, n, 0), *dx = hth_cuda_out(g, n, 0);
    bool max = n->op == HTH_OP_MAX_POOL_GRAD;
    hth_pool_params p = {.n = hth_cuda_count(dx), .kind = max ? HTH_POOL_MAX : HTH_POOL_AVERAGE};
    HTH_TRY(hth_cuda_need_float(g, n, 1, 1));
    HTH_TRY(pool_params(n, &dx->shape, &dy->shape, &p));
    HTH_TRY(pool_lies(dy, dx, &p));
    hth_cuda_launch_add(s, HTH_CUDA_hth_pool_grad, hth_cuda_blocks(s, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(s, offsetof(hth_pool_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_pool_params, y), HTH_CUDA_OUT, 0, 0);
    if (max) {
        hth_cuda_bind(s, offsetof(hth_pool_params, tap), HTH_CUDA_IN, 1, 0);
    }
    s->moved_bytes += hth_cuda_bytes(dy) + hth_cuda_bytes(dx);
    return HTH_OK;
}
