// SPDX-License-Identifier: Apache-2.0
// GridSample in one to three dimensions, and its gradients by the image and by the grid.
#include "kernels/cuda/seq.h"

#include <string.h>

static hth_err sample_params(const hth_node *node, const hth_value *value, const hth_value *grid,
                             hth_sample_params *params)
{
    const char *mode = hth_node_str(node, "mode", "linear");
    const char padding = hth_node_str(node, "padding_mode", "zeros")[0];
    int rank = value->shape.rank - 2;
    if (rank < 1 || rank > 3 || grid->shape.rank != rank + 2 || grid->shape.dim[rank + 1] != rank ||
        grid->shape.dim[0] != value->shape.dim[0]) {
        return hth_fail(HTH_ENOTSUP,
                        "images must have one to three dimensions, as many as the grid");
    }
    *params = (hth_sample_params){.batch = (uint32_t)value->shape.dim[0],
                                  .channels = (uint32_t)value->shape.dim[1],
                                  .size = 1,
                                  .rank = rank,
                                  .width = strstr(mode, "cubic") != NULL ? 4 : 2,
                                  .padding = HTH_SAMPLE_ZEROS,
                                  .corners = hth_node_int(node, "align_corners", 0) != 0,
                                  .dim = {1, 1, 1}};
    if (strcmp(mode, "nearest") == 0) {
        params->width = 1;
    }
    if (padding == 'b' || padding == 'r') {
        params->padding = padding == 'b' ? HTH_SAMPLE_BORDER : HTH_SAMPLE_REFLECT;
    }
    for (int d = 0; d < rank; d++) {
        params->dim[3 - rank + d] = (int32_t)value->shape.dim[2 + d];
        params->size *= (uint32_t)value->shape.dim[2 + d];
    }
    params->places =
        hth_cuda_count(grid) / (uint32_t)rank / (params->batch > 0 ? params->batch : 1);
    if (params->size == 0 || params->places == 0 || params->channels == 0) {
        return hth_fail(HTH_ENOTSUP, "an empty image or grid");
    }
    return HTH_OK;
}

static void sample_launch(hth_cuda_seq *seq, hth_cuda_kernel_id id, const hth_sample_params *params)
{
    hth_cuda_launch_add(seq, id, hth_cuda_blocks(seq, params->n, true), 0, 0, params,
                        sizeof *params);
}

hth_err hth_cuda_sample(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    hth_sample_params p;
    HTH_TRY(hth_cuda_need_f32(graph, node, 2, 1));
    HTH_TRY(sample_params(node, hth_cuda_in(graph, node, 0), hth_cuda_in(graph, node, 1), &p));
    p.n = p.batch * ((p.channels + HTH_SAMPLE_CHANNELS - 1) / HTH_SAMPLE_CHANNELS) * p.places;
    sample_launch(seq, HTH_CUDA_hth_sample, &p);
    hth_cuda_bind(seq, offsetof(hth_sample_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_sample_params, grid), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_sample_params, out), HTH_CUDA_OUT, 0, 0);
    return seq->err;
}

// Bands enough to keep the device busy: each walks all places.
static uint32_t sample_bands(const hth_cuda_seq *seq, const hth_sample_params *params)
{
    uint64_t rows = (uint64_t)params->dim[3 - params->rank],
             images = (uint64_t)params->batch * params->channels;
    uint64_t wanted = hth_cuda_blocks(seq, UINT32_MAX, true) * 256 / images + 1;
    return (uint32_t)(wanted < rows ? wanted : rows);
}

static void sample_grad_image(hth_cuda_seq *seq, hth_sample_params params)
{
    size_t taps =
        (size_t)params.batch * params.places * 3 * (size_t)params.width * sizeof(hth_sample_tap);
    size_t at = hth_cuda_workspace(seq, taps);
    hth_cuda_fill(seq, 0, params.batch * params.channels * params.size, 0);
    params.n = params.batch * params.places;
    sample_launch(seq, HTH_CUDA_hth_sample_taps, &params);
    hth_cuda_bind(seq, offsetof(hth_sample_params, grid), HTH_CUDA_IN, 2, 0);
    hth_cuda_bind(seq, offsetof(hth_sample_params, tap), HTH_CUDA_WS, 0, at);
    params.bands = sample_bands(seq, &params);
    params.n = params.batch * params.channels * params.bands;
    sample_launch(seq, HTH_CUDA_hth_sample_grad, &params);
    hth_cuda_bind(seq, offsetof(hth_sample_params, dy), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_sample_params, tap), HTH_CUDA_WS, 0, at);
    hth_cuda_bind(seq, offsetof(hth_sample_params, out), HTH_CUDA_OUT, 0, 0);
}

// Inputs: the result's gradient, image, grid; outputs: their gradients, either may be absent.
hth_err hth_cuda_sample_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                             const char *algorithm)
{
    hth_sample_params p;
    HTH_TRY(hth_cuda_need_f32(graph, node, 3, 2));
    HTH_TRY(sample_params(node, hth_cuda_in(graph, node, 1), hth_cuda_in(graph, node, 2), &p));
    if (hth_cuda_out(graph, node, 0) != NULL) {
        sample_grad_image(seq, p);
    }
    if (hth_cuda_out(graph, node, 1) != NULL) {
        p.n = p.batch * p.places;
        sample_launch(seq, HTH_CUDA_hth_sample_grad_grid, &p);
        hth_cuda_bind(seq, offsetof(hth_sample_params, dy), HTH_CUDA_IN, 0, 0);
        hth_cuda_bind(seq, offsetof(hth_sample_params, x), HTH_CUDA_IN, 1, 0);
        hth_cuda_bind(seq, offsetof(hth_sample_params, grid), HTH_CUDA_IN, 2, 0);
        hth_cuda_bind(seq, offsetof(hth_sample_params, out), HTH_CUDA_OUT, 1, 0);
    }
    return seq->err;
}
