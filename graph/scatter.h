// SPDX-License-Identifier: Apache-2.0
// graph/scatter.h - what ScatterElements and ScatterND do where they write.
#ifndef HTH_GRAPH_SCATTER_H
#define HTH_GRAPH_SCATTER_H

#include "graph/graph.h"

#include <string.h>

// hth_scatter_reduction stores what a node's updates are combined by: HTH_OP_ADD, _MUL, _MAX, _MIN,
// or HTH_OP_NONE where they replace. false: attribute `reduction` names none of these.
static inline bool hth_scatter_reduction(const hth_node *node, hth_op *out)
{
    static const struct {
        const char *name;
        hth_op op;
    } table[] = {{"none", HTH_OP_NONE},
                 {"add", HTH_OP_ADD},
                 {"mul", HTH_OP_MUL},
                 {"max", HTH_OP_MAX},
                 {"min", HTH_OP_MIN}};
    const char *name = hth_node_str(node, "reduction", "none");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, name) == 0) {
            *out = table[i].op;
            return true;
        }
    }
    return false;
}

#endif
