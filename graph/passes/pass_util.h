// SPDX-License-Identifier: Apache-2.0
// graph/passes/pass_util.h - what the passes share: use counts, matching helpers, derived
// constants. Internal to graph/.
#ifndef HTH_GRAPH_PASSES_PASS_UTIL_H
#define HTH_GRAPH_PASSES_PASS_UTIL_H

#include "graph/graph.h"

// Who reads each value; one scan. Valid until the graph is changed in a way that the pass does not
// note itself.
typedef struct hth_uses {
    int *count; // readers, graph outputs included
    int *node;  // a reading node (the only one where count is 1 and the value is no graph output),
                // -1: none
} hth_uses;
hth_err hth_uses_open(const hth_graph *graph, hth_uses *out);
void hth_uses_close(hth_uses *uses);
// hth_uses_only returns the node that is the only reader of `value`, or -1.
int hth_uses_only(const hth_graph *graph, const hth_uses *uses, int value);

// hth_pass_producer returns the node that makes input `slot` of `node` if it is an `op`, else NULL.
const hth_node *hth_pass_producer(const hth_graph *graph, const hth_node *node, int slot,
                                  hth_op op);
// hth_pass_scalar stores the value of a constant float (any float dtype) with one element; false
// otherwise.
bool hth_pass_scalar(const hth_graph *graph, int value, float *out);
// hth_pass_near says that value is a constant scalar within 1e-3 relative of x.
bool hth_pass_near(const hth_graph *graph, int value, float x);
// hth_pass_ints reads a constant int64 tensor of at most `cap` elements; -1 when it is not one.
int hth_pass_ints(const hth_graph *graph, int value, int64_t *out, int cap);
// hth_pass_const_f32 adds a constant vector [n] made from `data` (copied).
hth_err hth_pass_const_f32(hth_graph *graph, const char *name, const float *data, int64_t n,
                           int *out);
// hth_pass_const_ints adds a constant int64 vector.
hth_err hth_pass_const_ints(hth_graph *graph, const char *name, const int64_t *data, int n,
                            int *out);

// hth_pass_scaled makes the derived constant w * s[index along axis]: materialized on demand, id
// from the ids of both. constant f32, scale f32 of w.shape.dim[axis] elements; axis_group: for
// grouped transposed filters the axis counts within a group, scale has groups * dim[axis] elements
// and axis 0 is split in groups.
hth_err hth_pass_scaled(hth_const *constant, hth_const *scale, int axis, int groups,
                        hth_const **out);

// hth_pass_set_output lets node `n` (by index) write `value` as its output 0 instead of what it
// wrote.
void hth_pass_set_output(hth_graph *graph, int node, int value);

#endif
