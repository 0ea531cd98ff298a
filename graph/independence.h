// SPDX-License-Identifier: Apache-2.0
// graph/independence.h - the proof that a model's samples do not depend on each other.
//
// Design notes
// Requests of several clients may share a run, and a batch may be padded or run in slices, only
// where every sample's answer is the same whatever the other samples are, and however many. That is
// proven: one walk over the model graph follows the axis along which the samples lie through every
// operator (follow.h; the rules stand in the table of infer.c). What no rule proves counts as
// dependent. The walk reads a model graph as hth_onnx_load returns it, needs neither weights nor
// input shapes, and is linear in nodes and edges: the result can be computed wherever a graph is.
#ifndef HTH_GRAPH_INDEPENDENCE_H
#define HTH_GRAPH_INDEPENDENCE_H

#include "graph/graph.h"

#define HTH_DEPENDS_TEXT 320

typedef struct hth_independence {
    bool proven;
    int node;                   // the node of the graph that is in its way; -1: an input or output
    char why[HTH_DEPENDS_TEXT]; // one sentence that names it and the axis; "": proven
} hth_independence;

// hth_independence_prove stores whether this holds for all inputs that hth_independence_covers, and
// numbers of samples M and N: with M + N samples in the first dimension of every input, the outputs
// are those for the first M followed by those for the other N, along their first dimension, which
// has a row for each sample. The first dimension of every input must be one and the same symbol.
// HTH_OK whatever the answer is; HTH_ENOMEM. Any thread; the graph is only read.
hth_err hth_independence_prove(const hth_graph *graph, hth_independence *out);

// hth_independence_covers says whether a proof holds for runs of `samples` samples that are like
// those of `inputs`, n tensors with samples along their first dimension: none is empty, since
// Reshape copies a dimension where it is told 0, and none has more elements than int32 can count;
// there are fewer than 2^17 samples.
bool hth_independence_covers(const hth_tensor *inputs, int n, int64_t samples);

#endif
