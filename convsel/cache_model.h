// SPDX-License-Identifier: Apache-2.0
// convsel/cache_model.h - where the nodes of a step find their operands: in a cache of the core, in
// the one that cores share, or in memory.
#ifndef HTH_CONVSEL_CACHE_MODEL_H
#define HTH_CONVSEL_CACHE_MODEL_H

#include "device/device.h"
#include "graph/graph.h"

// What a node is measured under. `of` of a node is a text that is the same for nodes in the same
// situation:
//   a letter: how much the step touches between two runs of the node (sweep_bytes);
//   a character per input: '0' in a core's cache, '1' in the shared one, '2' in memory, '-' absent;
//   with 'a', 'b', 'c' in their place nobody needs the input afterwards: its place may be taken;
//   '>', and a character per output: 'n' a place of its own, '-' absent, 'A'.. the place of input
//   0.. .
typedef struct hth_cache_model {
    int n_nodes;
    char **of;
    uint64_t core_bytes;  // what the cores' own caches hold
    uint64_t sweep_bytes; // to touch between two runs, so that the shared cache forgets them
} hth_cache_model;

// hth_cache_model_make describes the nodes of `graph`, whose nodes run in order, again and again,
// in memory that is not short, on a device with these caches. replaces[v] is the value whose memory
// value v takes, -1: none; NULL: none for all. A device without caches: every node's text is NULL,
// that is, nothing is known. Free with hth_cache_model_fini, also after an error.
hth_err hth_cache_model_make(const hth_device_props *props, const hth_graph *graph,
                             const int *replaces, hth_cache_model *out);
void hth_cache_model_fini(hth_cache_model *model);
// hth_cache_model_text is the text of node of that graph, NULL where model is or nothing is known.
const char *hth_cache_model_text(const hth_cache_model *model, const hth_graph *graph,
                                 const hth_node *node);
// hth_cache_model_level is 0, 1 or 2 for the input that `c` describes, -1 if absent; *dies: not
// needed afterwards.
int hth_cache_model_level(char c, bool *dies);

#endif
