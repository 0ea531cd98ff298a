// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_scale.h - data as a model's float inputs: (x * scale - mean) / std of bytes,
// (x - mean) / std of images, computed in the step. Host, link and batches hold data as the file
// has them, evaluations do the same, and no pass over a batch on the host is needed.
#ifndef HTH_GRAPH_AUTODIFF_TRAIN_SCALE_H
#define HTH_GRAPH_AUTODIFF_TRAIN_SCALE_H

#include "graph/graph.h"

#define HTH_SCALE_CHANNELS 256

typedef struct hth_train_scale {
    bool on;           // uint8 data may stand for a float32 input
    bool images;       // mean and std are of 4 dimensions [N, C, H, W] only, float32 or uint8
    float scale;       // of bytes; 1: none
    int n_mean, n_std; // one for all, or one per channel (axis 1); 0: none. With `images` both
    float mean[HTH_SCALE_CHANNELS], std[HTH_SCALE_CHANNELS];
} hth_train_scale;

// hth_train_scales: data of `dtype` are changed on their way to the input `want` of a model.
bool hth_train_scales(const hth_train_scale *scale, hth_dtype dtype, const hth_value *want);
// hth_train_scale_add has input `i` of a graph, float32 so far, be one of `dtype` and the same
// shape, which hth_train_scales. Each operation rounds to float32, as numpy's does:
// x.astype(float32) * scale (of bytes only), - mean, / std. Nodes that were there keep their order.
// HTH_EINVAL: as many means or deviations as the input has no channels.
hth_err hth_train_scale_add(hth_graph *graph, int i, hth_dtype dtype, const hth_train_scale *scale);

#endif
