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

static hth_err window_limit(const char *name, int64_t v, int64_t least)
{
    if (v < least || v > WINDOW_MAX) {
        return hth_fail(HTH_EINVAL, "%s of %lld", name, (long long)v);
    }
    return HTH_OK;
}

static hth_err window_attr(const hth_node *node, const char *name, int64_t fallback, int nsp,
                           int64_t out[3])
{
    int64_t v[6] = {0};
    int have = hth_node_ints(node, name, v, 6);
    if (have >= 0 && have != nsp) {
        return hth_fail(HTH_EINVAL, "%s has %d elements for %d dimensions", name, have, nsp);
    }
    for (int i = 0; i < 3; i++) {
        out[i] = i < 3 - nsp || have < 0 ? fallback : v[i - (3 - nsp)];
        HTH_TRY(window_limit(name, out[i], 1));
    }
    return HTH_OK;
}

static hth_err window_pads(ref_window *window, const hth_node *node, int nsp)
{
    const char *mode = hth_node_str(node, "auto_pad", "NOTSET");
    int64_t v[6] = {0};
    int have = hth_node_ints(node, "pads", v, 6);
    if (strncmp(mode, "SAME", 4) == 0) {
        for (int i = 3 - nsp; i < 3; i++) {
            int64_t total = (window->out[i] - 1) * window->stride[i] +
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
        return hth_fail(HTH_EINVAL, "pads has %d elements for %d dimensions", have, nsp);
    }
    for (int i = 0; i < nsp; i++) {
        HTH_TRY(window_limit("pads", v[i], -WINDOW_MAX));
        HTH_TRY(window_limit("pads", v[nsp + i], -WINDOW_MAX));
        window->pad[3 - nsp + i] = v[i];
        window->pad_end[3 - nsp + i] = v[nsp + i];
    }
    return HTH_OK;
}

hth_err ref_window_init(ref_window *window, const hth_node *node, const hth_shape *in,
                        const hth_shape *out, const int64_t *kernel, int n_kernel)
{
    int nsp = in->rank - 2;
    *window = (ref_window){.n_in = 1, .n_out = 1, .n_taps = 1};
    if (nsp < 1 || nsp > 3) {
        return hth_fail(HTH_ENOTSUP, "%d spatial dimensions are not supported", nsp);
    }
    if (out->rank != in->rank || n_kernel != nsp) {
        return hth_fail(HTH_EINVAL, "ranks of input, output and kernel differ");
    }
    window->batch = in->dim[0];
    window->channels = in->dim[1];
    for (int i = 0; i < 3; i++) {
        int s = i - (3 - nsp);
        window->in[i] = s < 0 ? 1 : in->dim[2 + s];
        window->out[i] = s < 0 ? 1 : out->dim[2 + s];
        window->k[i] = s < 0 ? 1 : kernel[s];
        HTH_TRY(window_limit("kernel_shape", window->k[i], 0));
        window->n_in *= window->in[i];
        window->n_out *= window->out[i];
        window->n_taps *= window->k[i];
        HTH_TRY(window_limit("window size", window->n_taps, 0));
    }
    HTH_TRY(window_attr(node, "strides", 1, nsp, window->stride));
    HTH_TRY(window_attr(node, "dilations", 1, nsp, window->dilation));
    return window_pads(window, node, nsp);
}

void ref_window_position(const int64_t size[3], int64_t p, int64_t at[3])
{
    at[2] = p % size[2];
    at[1] = p / size[2] % size[1];
    at[0] = p / size[2] / size[1];
}

int64_t ref_window_touch(const ref_window *window, const int64_t to[3], const int64_t at[3],
                         const int64_t tap[3])
{
    int64_t index = 0;
    for (int i = 0; i < 3; i++) {
        int64_t x = at[i] * window->stride[i] - window->pad[i] + tap[i] * window->dilation[i];
        if (x < 0 || x >= to[i]) {
            return -1;
        }
        index = index * to[i] + x;
    }
    return index;
}
