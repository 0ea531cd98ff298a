// SPDX-License-Identifier: Apache-2.0
// By what a convolution can be computed: engines, with the epilogue fused and without, and chunks
// of the batch, which need less workspace.
#include "kernels/cuda/conv_form.h"
#include "kernels/cuda/handles.h"

#include <stdio.h>

#define CONV_WORTH  ((int64_t)1 << 20) // workspace from which chunks of the batch are offered
#define CONV_SPLITS 4                  // chunkings that are offered, in room that whole ones leave

static void conv_keep(const hth_dnn_engine *engine, int split, hth_choice *list, int cap,
                      int *count)
{
    hth_choice c = {.workspace_bytes = (uint64_t)engine->workspace_bytes,
                    .time_us = -1,
                    .error = -1,
                    .split = split,
                    .deterministic = true};
    int written = snprintf(c.name, sizeof c.name, split > 1 ? "%s/%d" : "%s", engine->name, split);
    if (*count < cap && written < (int)sizeof c.name) {
        list[(*count)++] = c;
    }
}

// Chunks of the batch, each by the first of heuristics' engines for it that wants less workspace
// than larger chunks do; `least`: the whole's.
static void conv_splits(const hth_dnn_device *device, const hth_dnn_conv *conv, int64_t least,
                        hth_choice *list, int cap, int *count)
{
    for (int k = 2; k <= HTH_CUDA_CONV_SPLIT_MAX && least > CONV_WORTH; k *= 2) {
        hth_dnn_engine engine[HTH_DNN_ENGINES];
        hth_dnn_conv part;
        hth_dnn_graph graph;
        int found = 0;
        if (!hth_cuda_conv_part(conv, k, &part) ||
            hth_dnn_graph_open(device, &part, &graph) != HTH_OK) {
            continue;
        }
        (void)hth_dnn_first(&graph, engine, HTH_DNN_ENGINES, &found);
        hth_dnn_graph_close(&graph);
        int i = 0;
        while (i < found &&
               (engine[i].workspace_bytes == 0 || engine[i].workspace_bytes >= least)) {
            i++;
        }
        if (i < found) {
            conv_keep(&engine[i], k, list, cap, count);
            least = engine[i].workspace_bytes;
        }
    }
}

hth_err hth_cuda_conv_algorithms(hth_cuda *cuda, const hth_graph *g, const hth_node *node,
                                 bool first, hth_choice *list, int cap, int *count)
{
    hth_dnn_device device = {cuda->api, hth_cuda_site_of(cuda)->dnn, NULL};
    hth_dnn_engine engine[HTH_DNN_ENGINES];
    hth_cuda_conv_form f;
    HTH_TRY(hth_cuda_conv_describe(g, node, &f));
    hth_dnn_conv fused = hth_cuda_conv_fused(&f);
    *count = 0;
    for (int pass = f.n_fused == node->n_post ? 0 : 1; pass < 2; pass++) {
        hth_dnn_graph graph;
        int found = 0;
        if (hth_dnn_graph_open(&device, pass == 0 ? &fused : &f.dnn, &graph) != HTH_OK) {
            continue;
        }
        (void)(first ? hth_dnn_first : hth_dnn_list)(&graph, engine, HTH_DNN_ENGINES, &found);
        hth_dnn_graph_close(&graph);
        for (int i = 0; i < found; i++) {
            conv_keep(&engine[i], 1, list, first ? cap : cap - CONV_SPLITS, count);
        }
        if (!first && found > 0) {
            conv_splits(&device, pass == 0 ? &fused : &f.dnn, engine[0].workspace_bytes, list, cap,
                        count);
        }
    }
    return *count > 0 ? HTH_OK
                      : hth_fail(HTH_ENOTSUP, "cuDNN has no engine for it in %s",
                                 hth_precision_name(f.dnn.precision));
}

bool hth_cuda_conv_last(hth_cuda *cuda, const hth_graph *graph, const hth_node *node)
{
    hth_dnn_device device = {cuda->api, hth_cuda_site_of(cuda)->dnn, NULL};
    hth_cuda_conv_form f;
    if (hth_cuda_conv_describe(graph, node, &f) != HTH_OK) {
        return false;
    }
    f.dnn.nhwc = true;
    f.dnn.precision = graph->precision;
    return hth_dnn_has_kept(&device, &f.dnn, cuda->base.kept, cuda->base.props.fingerprint);
}
