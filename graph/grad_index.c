// SPDX-License-Identifier: Apache-2.0
// graph/grad_index.c - gradients of operators that choose elements by index.
#include "graph/grad.h"

void hth_grad_gather(hth_grad *c, const hth_node *n)
{
    const hth_shape s = *hth_grad_shape(c, n->inputs[0]);
    hth_grad_begin(c, HTH_OP_GATHER_GRAD, (int[]){hth_grad_out(c, n, 0), n->inputs[1]}, 2, 1);
    hth_grad_int(c, "axis", hth_node_int(n, "axis", 0));
    hth_grad_ints(c, "shape", s.dim, s.rank);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

// scatter adds `updates` to `data` where index says (add), or puts them there.
static int scatter(hth_grad *c, const hth_node *n, hth_op op, int data, int index, int updates,
                   bool add)
{
    hth_grad_begin(c, op, (int[]){data, index, updates}, 3, 1);
    if (op == HTH_OP_SCATTER_ELEMENTS) {
        hth_grad_int(c, "axis", hth_node_int(n, "axis", 0));
    }
    if (add) {
        hth_grad_str(c, "reduction", "add");
    }
    return hth_grad_end(c);
}

// GatherElements and GatherND.
void hth_grad_gather_elements(hth_grad *c, const hth_node *n)
{
    bool nd = n->op == HTH_OP_GATHER_ND;
    const hth_shape s = *hth_grad_shape(c, n->inputs[0]);
    if (nd && hth_node_int(n, "batch_dims", 0) != 0) {
        hth_grad_fail(c, "batch dimensions have no gradient");
        return;
    }
    int zeros = hth_grad_zeros(c, &s);
    hth_op op = nd ? HTH_OP_SCATTER_ND : HTH_OP_SCATTER_ELEMENTS;
    hth_grad_give(c, n, 0, scatter(c, n, op, zeros, n->inputs[1], hth_grad_out(c, n, 0), true));
}

void hth_grad_scatter(hth_grad *c, const hth_node *n)
{
    bool nd = n->op == HTH_OP_SCATTER_ND;
    char how = hth_node_str(n, "reduction", "none")[0];
    int dy = hth_grad_out(c, n, 0), index = n->inputs[1];
    hth_op op = nd ? HTH_OP_SCATTER_ND : HTH_OP_SCATTER_ELEMENTS;
    if (how != 'n' && how != 'a') {
        hth_grad_fail(c, "this reduction has no gradient");
        return;
    }
    if (hth_grad_wants(c, n, 0)) {
        int v = dy;
        if (how == 'n') { // what was overwritten gets nothing
            const hth_shape s = *hth_grad_shape(c, n->inputs[2]);
            v = scatter(c, n, op, dy, index, hth_grad_zeros(c, &s), false);
        }
        hth_grad_give(c, n, 0, v);
    }
    if (hth_grad_wants(c, n, 2)) {
        hth_grad_begin(c, nd ? HTH_OP_GATHER_ND : HTH_OP_GATHER_ELEMENTS, (int[]){dy, index}, 2, 1);
        if (!nd) {
            hth_grad_int(c, "axis", hth_node_int(n, "axis", 0));
        }
        hth_grad_give(c, n, 2, hth_grad_end(c));
    }
}

void hth_grad_top_k(hth_grad *c, const hth_node *n)
{
    const hth_shape s = *hth_grad_shape(c, n->inputs[0]);
    int dy = hth_grad_out(c, n, 0); // n's outputs move when one is added
    int index = hth_grad_extend(c, 1), zeros = hth_grad_zeros(c, &s);
    hth_grad_begin(c, HTH_OP_SCATTER_ELEMENTS, (int[]){zeros, index, dy}, 3, 1);
    hth_grad_int(c, "axis", hth_node_int(n, "axis", -1));
    hth_grad_str(c, "reduction", "add");
    hth_grad_give(c, n, 0, hth_grad_end(c));
}
