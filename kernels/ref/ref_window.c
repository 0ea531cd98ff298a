// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_window.c - reads the geometry of a sliding window from a node's attributes and
// shapes.
//
// SAME padding is derived from the output's size, which shape inference has fixed: the one that
// ceil(in / stride) gives.
#include "kernels/ref/ref_window.h"

#include <string.h>

// No picture needs more, and no position computed from such numbers overflows.
#define WINDOW_MAX ((int64_t)1 << 24)

static hth_err window_limit(const hth_node *n, const char *name, int64_t v, int64_t least)
{
    if (v < least || v > WINDOW_MAX) {
        return hth_fail(HTH_EINVAL, "node '%s': %s of %lld", n->name, name, (long long)v);
    }
    return HTH_OK;
}

static hth_err window_attr(const hth_node *n, const char *name, int64_t fallback, int nsp,
                           int64_t out[3])
{
    int64_t v[6] = {0};
    int have = hth_node_ints(n, name, v, 6);
    if (have >= 0 && have != nsp) {
        return hth_fail(HTH_EINVAL, "node '%s': %s has %d elements for %d dimensions", n->name,
                        name, have, nsp);
    }
    for (int i = 0; i < 3; i++) {
        out[i] = i < 3 - nsp || have < 0 ? fallback : v[i - (3 - nsp)];
        HTH_TRY(window_limit(n, name, out[i], 1));
    }
    return HTH_OK;
}

static hth_err window_pads(ref_window *w, const hth_node *n, int nsp)
{
    const char *mode = hth_node_str(n, "auto_pad", "NOTSET");
    int64_t v[6] = {0};
    int have = hth_node_ints(n, "pads", v, 6);
    if (strncmp(mode, "SAME", 4) == 0) {
        for (int i = 3 - nsp; i < 3; i++) {
            int64_t total =
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
        return hth_fail(HTH_EINVAL, "node '%s': pads has %d elements for %d dimensions", n->name,
                        have, nsp);
    }
    for (int i = 0; i < nsp; i++) {
        HTH_TRY(window_limit(n, "pads", v[i], -WINDOW_MAX));
        HTH_TRY(window_limit(n, "pads", v[nsp + i], -WINDOW_MAX));
        w->pad[3 - nsp + i] = v[i];
        w->pad_end[3 - nsp + i] = v[nsp + i];
    }
    return HTH_OK;
}

hth_err ref_window_init(ref_window *w, const hth_node *n, const hth_shape *in, const hth_shape *out,
                        const int64_t *kernel, int n_kernel)
{
    int nsp = in->rank - 2;
    *w = (ref_window){.n_in = 1, .n_out = 1, .n_taps = 1};
    if (nsp < 1 || nsp > 3) {
        return hth_fail(HTH_ENOTSUP, "node '%s': %d spatial dimensions are not supported", n->name,
                        nsp);
    }
    if (out->rank != in->rank || n_kernel != nsp) {
        return hth_fail(HTH_EINVAL, "node '%s': ranks of input, output and kernel differ", n->name);
    }
    w->batch = in->dim[0];
    w->channels = in->dim[1];
    for (int i = 0; i < 3; i++) {
        int s = i - (3 - nsp);
        w->in[i] = s < 0 ? 1 : in->dim[2 + s];
        w->out[i] = s < 0 ? 1 : out->dim[2 + s];
        w->k[i] = s < 0 ? 1 : kernel[s];
        HTH_TRY(window_limit(n, "kernel_shape", w->k[i], 0));
        w->n_in *= w->in[i];
        w->n_out *= w->out[i];
        w->n_taps *= w->k[i];
        HTH_TRY(window_limit(n, "window size", w->n_taps, 0));
    }
    HTH_TRY(window_attr(n, "strides", 1, nsp, w->stride));
    HTH_TRY(window_attr(n, "dilations", 1, nsp, w->dilation));
    return window_pads(w, n, nsp);
}

void ref_window_position(const int64_t size[3], int64_t p, int64_t at[3])
{
    at[2] = p % size[2];
    at[1] = p / size[2] % size[1];
    at[0] = p / size[2] / size[1];
}

int64_t ref_window_touch(const ref_window *w, const int64_t to[3], const int64_t at[3],
                         const int64_t tap[3])
{
    int64_t index = 0;
    for (int i = 0; i < 3; i++) {
        int64_t x = at[i] * w->stride[i] - w->pad[i] + tap[i] * w->dilation[i];
        if (x < 0 || x >= to[i]) {
            return -1;
        }
        index = index * to[i] + x;
    }
    return index;
}
