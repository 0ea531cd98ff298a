// SPDX-License-Identifier: Apache-2.0
// graph/passes/pass.h - rewrites of a concrete graph. Each keeps the graph valid (hth_graph_check)
// and its meaning. After an error (HTH_ENOMEM) the graph can only be freed.
#ifndef HTH_GRAPH_PASSES_PASS_H
#define HTH_GRAPH_PASSES_PASS_H

#include "graph/graph.h"

// hth_pass_attention_parts says every Attention of f32 in operators that have gradients and
// kernels: products, a Softmax, and a bias for what hides keys.
hth_err hth_pass_attention_parts(hth_graph *graph);
// hth_pass_simplify removes what does nothing: Identity, inference Dropout, no-op
// Cast/Reshape/Transpose/Pad/Slice/ Concat of one, pairs of transposes; common subexpressions; dead
// code.
hth_err hth_pass_simplify(hth_graph *graph);
// hth_pass_fold_norm folds inference BatchNormalization (and element-wise Mul/Add by per-channel
// constants) into the Conv, ConvTranspose or Gemm before it. A BatchNormalization that remains
// becomes one scale and shift per channel; a Mul or Add stays as it is.
hth_err hth_pass_fold_norm(hth_graph *graph);
// hth_pass_pattern recognises what exporters decompose: Gelu (erf and tanh forms), Swish,
// HardSwish, LayerNorm, RMSNorm, GlobalAveragePool, an Einsum that is a product, attention
// (HTH_OP_FUSED_ATTENTION).
hth_err hth_pass_pattern(hth_graph *graph);
// hth_pass_elementary is hth_pass_pattern without attention: what it makes has gradients.
hth_err hth_pass_elementary(hth_graph *graph);

// What a device can fuse: true if `post` may follow on node `n` (as it stands, with its post ops so
// far). `operand` is the value of a binary post op's second operand, -1 for unary.
typedef struct hth_fuse_oracle {
    bool (*can_fuse)(void *ctx, const hth_graph *graph, const hth_node *node,
                     const hth_post_op *post, int operand);
    // layout returns the layout in which node `n` wants to read its data input (input 0) and write
    // output 0; for nodes that accept any, HTH_LAYOUT_PLAIN with *any = true: such a node takes its
    // input's layout over.
    hth_layout (*layout)(void *ctx, const hth_graph *graph, const hth_node *node, bool *any);
    // reads_plain says that node `n` can read a plain input though it writes blocked (first
    // convolution). May be NULL.
    bool (*reads_plain)(void *ctx, const hth_graph *graph, const hth_node *node);
    void *ctx;
} hth_fuse_oracle;

// hth_pass_fuse moves element-wise nodes into the node that feeds them while the oracle agrees.
hth_err hth_pass_fuse(hth_graph *graph, const hth_fuse_oracle *oracle);
// hth_pass_layout gives every value a layout and inserts HTH_OP_REORDER nodes at the borders. Graph
// inputs and outputs stay plain.
hth_err hth_pass_layout(hth_graph *graph, const hth_fuse_oracle *oracle);

// hth_pass_conv_norm joins each convolution of a training step with the batch norm of its result
// where that result and the batch norm's are more than `bytes` together (pass_conv_norm.c); after
// layouts are given. *joined: how many.
hth_err hth_pass_conv_norm(hth_graph *graph, uint64_t bytes, int *joined);

// hth_half_fn says whether input (`in`) or output k of node `n` may be bf16 where it is f32 now.
// *alike (false before): only if all of the node's tensors of which that is said are.
typedef bool (*hth_half_fn)(void *ctx, const hth_graph *graph, const hth_node *node, bool in, int k,
                            bool *alike);
// hth_pass_half makes bf16 of what lies between nodes, as far as `fn` allows; after all others.
hth_err hth_pass_half(hth_graph *graph, hth_half_fn fn, void *ctx);

#endif
