// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_scale.h - bytes as a model's float inputs: (x * scale - mean) / std,
// computed in the step, so that host, link and batches hold one byte a value.
#ifndef HTH_GRAPH_AUTODIFF_TRAIN_SCALE_H
#define HTH_GRAPH_AUTODIFF_TRAIN_SCALE_H

#include "graph/graph.h"

#define HTH_SCALE_CHANNELS 256

typedef struct hth_train_scale {
    bool on; // uint8 data may stand for a float32 input
    float scale;
    int n_mean, n_std; // one for all, or one per channel (axis 1); 0: none
    float mean[HTH_SCALE_CHANNELS], std[HTH_SCALE_CHANNELS];
} hth_train_scale;

// hth_train_scale_add has input `i` of a graph, float32 so far, be uint8 of the same shape. Each
// operation rounds to float32, as numpy's does: x.astype(float32) * scale, - mean, / std. Nodes
// that were there keep their order. HTH_EINVAL: as many means or deviations as the input has no
// channels.
hth_err hth_train_scale_add(hth_graph *graph, int i, const hth_train_scale *scale);

#endif
