// SPDX-License-Identifier: Apache-2.0
// graph/attention.h - HTH_OP_FUSED_ATTENTION: softmax(scale * Q K^T + mask) V over strided
// operands.
//
// Design notes
// Between the projections and the products exporters leave reshapes, transposes, slices and splits
// of one packed tensor. They only say where an element lies, so the fused operator takes its
// operands as views of the tensors that a kernel really wrote: an offset and a stride per logical
// dimension. Nothing is moved.
#ifndef HTH_GRAPH_ATTENTION_H
#define HTH_GRAPH_ATTENTION_H

#include "graph/graph.h"

// Element (b0, b1, t, d) of an operand lies at offset + b0*stride[0] + b1*stride[1] + t*stride[2] +
// d*stride[3].
typedef struct hth_attention_view {
    int64_t offset, stride[4];
} hth_attention_view;

typedef struct hth_attention {
    int64_t b0, b1, t, s, d,
        e; // Q (b0, b1, t, d), K (b0, b1, s, d), V (b0, b1, s, e), out (b0, b1, t, e)
    hth_attention_view q, k, v, out; // of inputs 0, 1, 2 and output 0
    hth_attention_view mask; // of input 3 over (b0, b1, t, s); broadcast dimensions have stride 0
    bool has_mask;
    float scale;
} hth_attention;

// hth_attention_get reads a node's description. HTH_EINVAL when it is not one that
// hth_attention_set wrote, or when a view leaves its tensor.
hth_err hth_attention_get(const hth_graph *graph, const hth_node *node, hth_attention *out);
// hth_attention_set writes it as attributes `dims`, `q_view`, `k_view`, `v_view`, `out_view`,
// `mask_view`, `scale`.
hth_err hth_attention_set(hth_node *node, const hth_attention *attention);

#endif
