// SPDX-License-Identifier: Apache-2.0
// graph/passes/fold.h - computing a node whose inputs are constants, and the ids of what comes out.
// Inside graph/ only.
//
// Design notes
// A model decides what is folded, and may be anybody's: a kilobyte of it can ask for any number of
// bytes and operations. So there is an account of both for each walk over a graph, in proportion to
// the constants that it begins with. What would take more stays a node: a run computes it, within
// the device's memory, and can be canceled. Only what no run can compute (sizes that are data) is
// refused. Tiny results, which shape arithmetic is made of, are computed whatever is left.
#ifndef HTH_GRAPH_PASSES_FOLD_H
#define HTH_GRAPH_PASSES_FOLD_H

#include "graph/specialize.h"

typedef struct hth_fold {
    hth_eval_fn eval;
    void *ctx;
    uint64_t bytes, work; // left: of results and scratch memory, of operations (base/pace.h)
    int n_values;         // of the graph when it was opened
    int *users;           // of each of those values: nodes to come, and graph outputs
    int *seen;            // by which node (its index + 1) last, when sources are counted
} hth_fold;

// hth_fold_open opens the account for a walk over `graph` with `more` bytes of contents in addition
// to its constants.
hth_err hth_fold_open(hth_fold *fold, const hth_graph *graph, uint64_t more, hth_eval_fn eval,
                      void *ctx);
void hth_fold_close(hth_fold *fold);

// hth_fold_node turns the outputs of `node` (shapes inferred) into constants and marks the node
// deleted, when all of its inputs are constants (Shape and Size: always), the result has at most
// 64 MiB, or no more bytes than the inputs, or no more elements than one of them, and at most
// `max_elements` elements, and the account has room. Outputs whose shape depends on contents are
// always computed: HTH_ETOOBIG where the account does not allow it. Results that no other node
// reads any more are given back. HTH_ECANCELED: the thread's account of work (base/pace.h) ended.
// *folded says whether it happened; HTH_OK and false: the node stays.
hth_err hth_fold_node(hth_graph *graph, int node, hth_fold *fold, int64_t max_elements,
                      bool *folded);

// hth_fold_live is how many bytes of folded results there are in this process.
uint64_t hth_fold_live(void);
// hth_fold_room is how many more bytes may be computed beforehand, of all models together.
uint64_t hth_fold_room(void);

// hth_node_key hashes operator, attributes, post operations and inputs (constants by their ids,
// others by index): equal for equal computations in one graph; where all inputs are constants, in
// any graph.
hth_id hth_node_key(const hth_graph *graph, const hth_node *node);

#endif
