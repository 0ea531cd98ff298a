// SPDX-License-Identifier: Apache-2.0
// GridSample in one to three dimensions, and its gradients by the image and by the grid.
#include "kernels/cuda/seq.h"

#include <string.h>

static hth_err sample_params(const hth_node *n, const hth_value *x, const hth_value *grid,
                             hth_sample_params *p)
{
    const char *mode = hth_node_str(n, "mode", "linear");
    const char padding = hth_node_str(n, "padding_mode", "zeros")[0];
    int rank = x->shape.rank - 2;
    if (rank < 1 || rank > 3 || grid->shape.rank != rank + 2 || grid->shape.dim[rank + 1] != rank ||
        grid->shape.dim[0] != x->shape.dim[0]) {
        return hth_fail(HTH_ENOTSUP,
                        "images must have one to three dimensions, as many as the grid");
    }
    *p = (hth_sample_params){.batch = (uint32_t)x->shape.dim[0],
                             .channels = (uint32_t)x->shape.dim[1],
                             .size = 1,
                             .rank = rank,
                             .width = strstr(mode, "cubic") != NULL ? 4 : 2,
                             .padding = HTH_SAMPLE_ZEROS,
                             .corners = hth_node_int(n, "align_corners", 0) != 0,
                             .dim = {1, 1, 1}};
    if (strcmp(mode, "nearest") == 0) {
        p->width = 1;
    }
    if (padding == 'b' || padding == 'r') {
        p->padding = padding == 'b' ? HTH_SAMPLE_BORDER : HTH_SAMPLE_REFLECT;
    }
    for (int d = 0; d < rank; d++) {
        p->dim[3 - rank + d] = (int32_t)x->shape.dim[2 + d];
        p->size *= (uint32_t)x->shape.dim[2 + d];
    }
    p->places = hth_cuda_count(grid) / (uint32_t)rank / (p->batch > 0 ? p->batch : 1);
    if (p->size == 0 || p->places == 0 || p->channels == 0) {
        return hth_fail(HTH_ENOTSUP, "an empty image or grid");
    }
    return HTH_OK;
}

static void sample_launch(hth_cuda_seq *s, hth_cuda_kernel_id id, const hth_sample_params *p)
{
    hth_cuda_launch_add(s, id, hth_cuda_blocks(s, p->n, true), 0, 0, p, sizeof *p);
}

hth_err hth_cuda_sample(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                        const char *algorithm)
{
    hth_sample_params p;
    HTH_TRY(hth_cuda_need_f32(g, n, 2, 1));
    HTH_TRY(sample_params(n, hth_cuda_in(g, n, 0), hth_cuda_in(g, n, 1), &p));
    p.n = p.batch * ((p.channels + HTH_SAMPLE_CHANNELS - 1) / HTH_SAMPLE_CHANNELS) * p.places;
    sample_launch(s, HTH_CUDA_hth_sample, &p);
    hth_cuda_bind(s, offsetof(hth_sample_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_sample_params, grid), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(s, offsetof(hth_sample_params, out), HTH_CUDA_OUT, 0, 0);
    return s->err;
}

// Bands enough to keep the device busy: each walks all places.
static uint32_t sample_bands(const hth_cuda_seq *s, const hth_sample_params *p)
{
    uint64_t rows = (uint64_t)p->dim[3 - p->rank], images = (uint64_t)p->batch * p->channels;
    uint64_t wanted = hth_cuda_blocks(s, UINT32_MAX, true) * 256 / images + 1;
    return (uint32_t)(wanted < rows ? wanted : rows);
}

static void sample_grad_image(hth_cuda_seq *s, hth_sample_params p)
{
    size_t taps = (size_t)p.batch * p.places * 3 * (size_t)p.width * sizeof(hth_sample_tap);
    size_t at = hth_cuda_workspace(s, taps);
    hth_cuda_fill(s, 0, p.batch * p.channels * p.size, 0);
    p.n = p.batch * p.places;
    sample_launch(s, HTH_CUDA_hth_sample_taps, &p);
    hth_cuda_bind(s, offsetof(hth_sample_params, grid), HTH_CUDA_IN, 2, 0);
    hth_cuda_bind(s, offsetof(hth_sample_params, tap), HTH_CUDA_WS, 0, at);
    p.bands = sample_bands(s, &p);
    p.n = p.batch * p.channels * p.bands;
    sample_launch(s, HTH_CUDA_hth_sample_grad, &p);
    hth_cuda_bind(s, offsetof(hth_sample_params, dy), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_sample_params, tap), HTH_CUDA_WS, 0, at);
    hth_cuda_bind(s, offsetof(hth_sample_params, out), HTH_CUDA_OUT, 0, 0);
}

// Inputs: the result's gradient, image, grid; outputs: their gradients, either may be absent.
hth_err hth_cuda_sample_grad(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                             const char *algorithm)
{
    hth_sample_params p;
    HTH_TRY(hth_cuda_need_f32(g, n, 3, 2));
    HTH_TRY(sample_params(n, hth_cuda_in(g, n, 1), hth_cuda_in(g, n, 2), &p));
    if (hth_cuda_out(g, n, 0) != NULL) {
        sample_grad_image(s, p);
    }
    if (hth_cuda_out(g, n, 1) != NULL) {
        p.n = p.batch * p.places;
        sample_launch(s, HTH_CUDA_hth_sample_grad_grid, &p);
        hth_cuda_bind(s, offsetof(hth_sample_params, dy), HTH_CUDA_IN, 0, 0);
        hth_cuda_bind(s, offsetof(hth_sample_params, x), HTH_CUDA_IN, 1, 0);
        hth_cuda_bind(s, offsetof(hth_sample_params, grid), HTH_CUDA_IN, 2, 0);
        hth_cuda_bind(s, offsetof(hth_sample_params, out), HTH_CUDA_OUT, 1, 0);
    }
    return s->err;
}
