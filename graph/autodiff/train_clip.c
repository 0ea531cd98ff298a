// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_clip.c - gradients clipped to a norm: one node makes a factor of all of
// them, which each optimizer's node multiplies its own by.
#include "graph/autodiff/train_build.h"

#include "base/alloc.h"

#include <string.h>

hth_err train_clip(train_build *build, const int *gradients, int n, int *out)
{
    int node, wait;
    int *in = hth_calloc((size_t)n + 1, sizeof *in);
    if (in == NULL) {
        return hth_no_memory("a training step");
    }
    in[0] = build->hyper;
    memcpy(in + 1, gradients, (size_t)n * sizeof *in);
    hth_err err =
        hth_graph_add_value(build->g, "hearth.clip", HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, out);
    if (err == HTH_OK) {
        err = hth_graph_add_node(build->g, HTH_OP_CLIP_SCALE, "hearth.clip", in, n + 1, out, 1,
                                 &node);
    }
    hth_free(in);
    HTH_TRY(err);
    HTH_TRY(hth_node_set_float(&build->g->nodes[node], "max_norm", build->o->clip_norm));
    return hth_infer_node(build->g, node, &wait);
}
