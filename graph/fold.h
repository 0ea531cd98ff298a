// SPDX-License-Identifier: Apache-2.0
// graph/fold.h - computing a node whose inputs are constants, and the ids of what comes out. Inside
// graph/ only.
#ifndef HTH_GRAPH_FOLD_H
#define HTH_GRAPH_FOLD_H

#include "graph/specialize.h"

// hth_fold_node turns the outputs of `node` (shapes inferred) into constants and marks the node
// deleted, when all of its inputs are constants (Shape and Size: always) and the result has at most
// `max_bytes` bytes, or fewer than the inputs, and `max_elements` elements at most. Outputs whose
// shape depends on contents are always computed. *folded says whether it happened; HTH_OK and
// false: the node stays.
hth_err hth_fold_node(hth_graph *g, int node, size_t max_bytes, int64_t max_elements,
                      hth_eval_fn eval, void *ctx, bool *folded);

// hth_node_key hashes operator, attributes, post operations and inputs (constants by their ids,
// others by index): equal for equal computations in one graph; where all inputs are constants, in
// any graph.
hth_id hth_node_key(const hth_graph *g, const hth_node *n);

#endif
