// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_share.c - what a step sums over the shards of a batch: two sums of each
// batch norm's channels and the number of elements, once forward and once backward.
#include "graph/autodiff/train.h"

#include "base/alloc.h"

#include <inttypes.h>

static int64_t share_of(const hth_node *node)
{
    bool norm = node->op == HTH_OP_BATCH_NORM_TRAIN || node->op == HTH_OP_BATCH_NORM_GRAD;
    return norm ? hth_node_int(node, "share", -1) : -1;
}

hth_err hth_train_shard_sums(const hth_train_graph *step, size_t **list, int *n)
{
    const hth_graph *g = step->graph;
    *n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        int64_t share = share_of(&g->nodes[i]);
        if (share / 2 >= g->n_nodes) { // two to each batch norm
            return hth_fail(HTH_ECORRUPT, "node '%s' (%s): there is no sum %" PRId64,
                            g->nodes[i].name, hth_op_name(g->nodes[i].op), share);
        }
        *n = share >= *n ? (int)share + 1 : *n;
    }
    *list = hth_calloc((size_t)*n + 1, sizeof **list);
    if (*list == NULL) {
        return hth_no_memory("a training step");
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const hth_node *node = &g->nodes[i];
        int scale = node->op == HTH_OP_BATCH_NORM_TRAIN ? 1 : 2;
        if (share_of(node) >= 0) {
            size_t channels = (size_t)hth_shape_elements(&g->values[node->inputs[scale]].shape);
            (*list)[share_of(node)] = 2 * channels + 1;
        }
    }
    return HTH_OK;
}
