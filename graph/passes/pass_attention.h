// SPDX-License-Identifier: Apache-2.0
// graph/passes/pass_attention.h - the parts of hth_pass_pattern that find products and attention.
// Internal to graph/.
#ifndef HTH_GRAPH_PASSES_PASS_ATTENTION_H
#define HTH_GRAPH_PASSES_PASS_ATTENTION_H

#include "graph/passes/pass_util.h"

// hth_pass_attention replaces every attention by HTH_OP_FUSED_ATTENTION; what became unused is left
// for compaction.
hth_err hth_pass_attention(hth_graph *graph, const hth_uses *uses);

// hth_pass_einsum turns Einsum of two operands into MatMul between transposes where it is a
// product.
hth_err hth_pass_einsum(hth_graph *graph);

#endif
