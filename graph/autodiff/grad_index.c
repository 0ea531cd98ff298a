// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_index.c - gradients of operators that choose elements by index.
#include "graph/autodiff/grad.h"

#include "base/alloc.h"

#include <string.h>

void hth_grad_gather(hth_grad *grad, const hth_node *node)
{
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    hth_grad_begin(grad, HTH_OP_GATHER_GRAD, (int[]){hth_grad_out(grad, node, 0), node->inputs[1]},
                   2, 1);
    hth_grad_int(grad, "axis", hth_node_int(node, "axis", 0));
    hth_grad_ints(grad, "shape", s.dim, s.rank);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

// scatter joins `updates` with `data` where index says ("add", "mul"), or puts them there ("none").
static int scatter(hth_grad *grad, const hth_node *node, hth_op op, int data, int index,
                   int updates, const char *how)
{
    hth_grad_begin(grad, op, (int[]){data, index, updates}, 3, 1);
    if (op == HTH_OP_SCATTER_ELEMENTS) {
        hth_grad_int(grad, "axis", hth_node_int(node, "axis", 0));
    }
    hth_grad_str(grad, "reduction", how);
    return hth_grad_end(grad);
}

void hth_grad_gather_elements(hth_grad *grad, const hth_node *node)
{
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    int zeros = hth_grad_zeros(grad, &s), dy = hth_grad_out(grad, node, 0);
    int v = scatter(grad, node, HTH_OP_SCATTER_ELEMENTS, zeros, node->inputs[1], dy, "add");
    hth_grad_give(grad, node, 0, v);
}

// Indices that count within a sample (`batch` leading dimensions), with the sample's own in front.
static int whole_indices(hth_grad *grad, int indices, int batch)
{
    const hth_shape s = *hth_grad_shape(grad, indices);
    hth_shape each = {.rank = s.rank}, full = s;
    int64_t samples = 1;
    int64_t *at;
    for (int i = 0; i < s.rank; i++) {
        each.dim[i] = i < batch ? s.dim[i] : 1;
        samples *= each.dim[i];
    }
    each.dim[s.rank - 1] = full.dim[s.rank - 1] = batch;
    at = hth_grad_table(grad, samples * batch, sizeof *at);
    if (at == NULL) {
        return -1;
    }
    for (int64_t i = 0; i < samples; i++) {
        int64_t left = i;
        for (int d = batch - 1; d >= 0; d--) {
            at[i * batch + d] = left % s.dim[d];
            left /= s.dim[d];
        }
    }
    int list = hth_grad_list(grad, at, samples * batch);
    hth_free(at);
    int own = hth_grad_expand(grad, hth_grad_reshape(grad, list, &each), &full);
    hth_grad_begin(grad, HTH_OP_CONCAT, (int[]){own, indices}, 2, 1);
    hth_grad_int(grad, "axis", s.rank - 1);
    return hth_grad_end(grad);
}

void hth_grad_gather_nd(hth_grad *grad, const hth_node *node)
{
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    int batch = (int)hth_node_int(node, "batch_dims", 0), dy = hth_grad_out(grad, node, 0);
    int index = batch > 0 ? whole_indices(grad, node->inputs[1], batch) : node->inputs[1];
    int zeros = hth_grad_zeros(grad, &s);
    hth_grad_give(grad, node, 0, scatter(grad, node, HTH_OP_SCATTER_ND, zeros, index, dy, "add"));
}

// The condition is a constant (the result's shape depends on it), so what was taken is known.
void hth_grad_compress(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    const hth_shape *taken = hth_grad_shape(grad, node->outputs[0]);
    bool flat = hth_node_attr(node, "axis") == NULL;
    int64_t axis = hth_node_int(node, "axis", 0), found = 0, *index;
    hth_const *condition = grad->g->values[node->inputs[1]].constant;
    const void *data;
    if (condition == NULL || condition->dtype != HTH_DT_BOOL ||
        hth_const_map(condition, &data) != HTH_OK) {
        hth_grad_fail(grad, "a computed condition has no gradient");
        return;
    }
    axis = axis < 0 ? axis + x.rank : axis;
    index = hth_grad_table(grad, taken->dim[flat ? 0 : axis], sizeof *index);
    for (int64_t i = 0; index != NULL && i < hth_shape_elements(&condition->shape); i++) {
        if (((const uint8_t *)data)[i] != 0) {
            index[found++] = i;
        }
    }
    hth_const_unmap(condition);
    if (index == NULL) {
        return;
    }
    const hth_shape s = flat ? (hth_shape){1, {hth_shape_elements(&x)}} : x;
    int list = hth_grad_list(grad, index, found);
    hth_free(index);
    hth_grad_begin(grad, HTH_OP_GATHER_GRAD, (int[]){hth_grad_out(grad, node, 0), list}, 2, 1);
    hth_grad_int(grad, "axis", axis);
    hth_grad_ints(grad, "shape", s.dim, s.rank);
    hth_grad_give(grad, node, 0, hth_grad_reshape(grad, hth_grad_end(grad), &x));
}

void hth_grad_grid_sample(hth_grad *grad, const hth_node *node)
{
    int in[3] = {hth_grad_out(grad, node, 0), node->inputs[0], node->inputs[1]}, v[2];
    hth_grad_begin(grad, HTH_OP_GRID_SAMPLE_GRAD, in, 3, 2);
    hth_grad_attrs(grad, node);
    hth_grad_end(grad);
    for (int k = 0; k < 2; k++) {
        v[k] = hth_grad_output(grad, k);
        if (grad->err == HTH_OK && !hth_grad_wants(grad, node, k)) {
            grad->g->nodes[grad->node].outputs[k] = -1;
        }
    }
    for (int k = 0; k < 2; k++) {
        hth_grad_give(grad, node, k, v[k]);
    }
}

void hth_grad_det(hth_grad *grad, const hth_node *node)
{
    int v = hth_grad_2(grad, HTH_OP_DET_GRAD, hth_grad_out(grad, node, 0), node->inputs[0]);
    hth_grad_give(grad, node, 0, v);
}

// gather reads `data` where scatter `node` writes.
static int gather(hth_grad *grad, const hth_node *node, int data)
{
    bool nd = node->op == HTH_OP_SCATTER_ND;
    hth_grad_begin(grad, nd ? HTH_OP_GATHER_ND : HTH_OP_GATHER_ELEMENTS,
                   (int[]){data, node->inputs[1]}, 2, 1);
    if (!nd) {
        hth_grad_int(grad, "axis", hth_node_int(node, "axis", 0));
    }
    return hth_grad_end(grad);
}

// chosen gives v where a and b are equal, else 0, also where v is infinite.
static int chosen(hth_grad *grad, int a, int b, int v)
{
    int same = hth_grad_2(grad, HTH_OP_EQUAL, a, b);
    return hth_grad_3(grad, HTH_OP_WHERE, same, v, hth_grad_scalar(grad, 0));
}

// The largest (or smallest) of what was there and what came: those that are it share its gradient
// evenly.
static void scatter_extreme(hth_grad *grad, const hth_node *node, hth_op op)
{
    int y = node->outputs[0], index = node->inputs[1];
    int stayed = hth_grad_equal(grad, node->inputs[0], y), most = gather(grad, node, y);
    int came = hth_grad_equal(grad, node->inputs[2], most);
    int count = scatter(grad, node, op, stayed, index, came, "add");
    int share = hth_grad_2(grad, HTH_OP_DIV, hth_grad_out(grad, node, 0), count);
    if (hth_grad_wants(grad, node, 0)) {
        hth_grad_give(grad, node, 0, chosen(grad, node->inputs[0], y, share));
    }
    if (hth_grad_wants(grad, node, 2)) {
        share = gather(grad, node, share);
        hth_grad_give(grad, node, 2, chosen(grad, node->inputs[2], most, share));
    }
}

// The product of what was there and what came. An update gets the product of all others: of all
// that are not 0, divided by its own, where no other is 0.
static void scatter_product(hth_grad *grad, const hth_node *node, hth_op op)
{
    int dy = hth_grad_out(grad, node, 0), index = node->inputs[1], u = node->inputs[2];
    if (hth_grad_wants(grad, node, 0)) {
        hth_grad_give(grad, node, 0, scatter(grad, node, op, dy, index, u, "mul"));
    }
    if (!hth_grad_wants(grad, node, 2)) {
        return;
    }
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    int zero = hth_grad_equal(grad, u, hth_grad_scalar(grad, 0));
    int safe = hth_grad_2(grad, HTH_OP_ADD, u, zero); // 1 for 0
    int all = scatter(grad, node, op, node->inputs[0], index, safe, "mul");
    int zeros = scatter(grad, node, op, hth_grad_zeros(grad, &s), index, zero, "add");
    int whole = gather(grad, node, hth_grad_2(grad, HTH_OP_MUL, dy, all));
    int product = hth_grad_2(grad, HTH_OP_DIV, whole, safe);
    hth_grad_give(grad, node, 2, chosen(grad, gather(grad, node, zeros), zero, product));
}

void hth_grad_scatter(hth_grad *grad, const hth_node *node)
{
    bool nd = node->op == HTH_OP_SCATTER_ND;
    const char *how = hth_node_str(node, "reduction", "none");
    int dy = hth_grad_out(grad, node, 0), index = node->inputs[1];
    hth_op op = nd ? HTH_OP_SCATTER_ND : HTH_OP_SCATTER_ELEMENTS;
    if (strcmp(how, "max") == 0 || strcmp(how, "min") == 0) {
        scatter_extreme(grad, node, op);
        return;
    }
    if (strcmp(how, "mul") == 0) {
        scatter_product(grad, node, op);
        return;
    }
    if (hth_grad_wants(grad, node, 0)) {
        int v = dy;
        if (how[0] == 'n') { // what was overwritten gets nothing
            const hth_shape s = *hth_grad_shape(grad, node->inputs[2]);
            v = scatter(grad, node, op, dy, index, hth_grad_zeros(grad, &s), "none");
        }
        hth_grad_give(grad, node, 0, v);
    }
    if (hth_grad_wants(grad, node, 2)) {
        hth_grad_give(grad, node, 2, gather(grad, node, dy));
    }
}

void hth_grad_top_k(hth_grad *grad, const hth_node *node)
{
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    int dy = hth_grad_out(grad, node, 0); // n's outputs move when one is added
    int index = hth_grad_extend(grad, 1), zeros = hth_grad_zeros(grad, &s);
    hth_grad_begin(grad, HTH_OP_SCATTER_ELEMENTS, (int[]){zeros, index, dy}, 3, 1);
    hth_grad_int(grad, "axis", hth_node_int(node, "axis", -1));
    hth_grad_str(grad, "reduction", "add");
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}
