// SPDX-License-Identifier: Apache-2.0
// Batch-norm folding. At inference y = scale[c] * x + shift[c] with constants, and a linear
// operator in front takes both in: W' = W * scale along its output channels, b' = b * scale + shift
// (Jacob et al. 2018, section 3.2). The scaled filter is a derived constant: nothing is computed
// before a device wants its copy. Element-wise Mul and Add by per-channel constants are the same
// thing and are taken in the same way. A MatMul has no bias and keeps its scale behind it, which is
// fused as a post op. In a graph exported for training, batch norm stays as it is: it uses the
// batch's statistics.
#include "graph/passes/pass.h"

#include "base/alloc.h"
#include "graph/passes/pass_util.h"

#include <math.h>
#include <string.h>

typedef struct affine { // y = scale[c] * x + shift[c], n channels along axis 1
    int64_t n;
    float *scale, *shift;
} affine;

// No filter has more; a shape that a client names may.
#define FOLD_CHANNELS (1 << 20)

static void affine_fini(affine *a)
{
    hth_free(a->scale);
    hth_free(a->shift);
}

static hth_err affine_init(affine *a, int64_t n)
{
    if (n > FOLD_CHANNELS) {
        return hth_fail(HTH_ETOOBIG, "more channels than a filter has: %lld", (long long)n);
    }
    *a = (affine){n, hth_alloc((size_t)n * sizeof(float)), hth_alloc((size_t)n * sizeof(float))};
    if (a->scale != NULL && a->shift != NULL) {
        return HTH_OK;
    }
    affine_fini(a);
    return hth_no_memory("folding a batch norm");
}

// read_channels copies a constant f32 that is one value, or one per channel (axis 1 of a value of
// rank `rank`).
static bool read_channels(const hth_graph *graph, int value, int rank, int64_t channels, float *out)
{
    hth_const *c = value < 0 ? NULL : graph->values[value].constant;
    const void *data;
    if (c == NULL || c->dtype != HTH_DT_F32) {
        return false;
    }
    int64_t n = hth_shape_elements(&c->shape);
    int at = c->shape.rank - (rank - 1); // where axis 1 stands in the operand's shape
    bool per_channel =
        n == channels && at >= 0 && at < c->shape.rank && c->shape.dim[at] == channels;
    if ((n != 1 && !per_channel) || hth_const_map(c, &data) != HTH_OK) {
        return false;
    }
    const float *f = data;
    for (int64_t i = 0; i < channels; i++) {
        out[i] = f[n == 1 ? 0 : i];
    }
    hth_const_unmap(c);
    return true;
}

static bool affine_of_batch_norm(const hth_graph *graph, const hth_node *node, affine *a)
{
    const hth_value *x = &graph->values[node->inputs[0]];
    if (hth_node_int(node, "training_mode", 0) != 0 || x->dtype != HTH_DT_F32 ||
        x->shape.rank < 2 || node->n_outputs > 1 || affine_init(a, x->shape.dim[1]) != HTH_OK) {
        return false;
    }
    float eps = hth_node_float(node, "epsilon", 1e-5f);
    float *mean = hth_alloc((size_t)a->n * 2 * sizeof *mean), *var = mean + a->n;
    bool ok = mean != NULL && read_channels(graph, node->inputs[1], 2, a->n, a->scale) &&
              read_channels(graph, node->inputs[2], 2, a->n, a->shift) &&
              read_channels(graph, node->inputs[3], 2, a->n, mean) &&
              read_channels(graph, node->inputs[4], 2, a->n, var);
    for (int64_t c = 0; ok && c < a->n; c++) {
        double s = a->scale[c] / sqrt((double)var[c] + eps);
        a->scale[c] = (float)s;
        a->shift[c] = (float)(a->shift[c] - mean[c] * s);
    }
    hth_free(mean);
    if (!ok) {
        affine_fini(a);
    }
    return ok;
}

static bool affine_of_arithmetic(const hth_graph *graph, const hth_node *node, int *data_input,
                                 affine *a)
{
    bool add = node->op == HTH_OP_ADD;
    for (int k = 0; k < 2; k++) {
        int x = node->inputs[k], c = node->inputs[1 - k];
        const hth_value *v = &graph->values[x];
        if (v->constant != NULL || graph->values[c].constant == NULL || v->dtype != HTH_DT_F32 ||
            v->shape.rank < 2 ||
            !hth_shape_equal(&v->shape, &graph->values[node->outputs[0]].shape) ||
            affine_init(a, v->shape.dim[1]) != HTH_OK) {
            continue;
        }
        for (int64_t i = 0; i < a->n; i++) {
            a->scale[i] = 1;
            a->shift[i] = 0;
        }
        if (read_channels(graph, c, v->shape.rank, a->n, add ? a->shift : a->scale)) {
            *data_input = k;
            return true;
        }
        affine_fini(a);
    }
    return false;
}

// filter_axis says along which axis of its filter (input 1) a linear node's output channels (axis
// 1) lie; -1: not one.
static int filter_axis(const hth_node *node)
{
    switch (node->op) {
    case HTH_OP_CONV:
        return 0;
    case HTH_OP_CONV_TRANSPOSE:
        return 1;
    case HTH_OP_GEMM:
        if (hth_node_float(node, "beta", 1) != 1) {
            return -1;
        }
        return hth_node_int(node, "transB", 0) ? 0 : 1;
    default:
        return -1;
    }
}

static hth_err fold_bias(hth_graph *graph, int node, const affine *a)
{
    hth_node *n = &graph->nodes[node];
    int bias = -1;
    float *b = hth_calloc((size_t)a->n, sizeof *b);
    if (b == NULL) {
        return hth_no_memory("folding a batch norm");
    }
    if (n->n_inputs > 2 && n->inputs[2] >= 0) {
        (void)read_channels(graph, n->inputs[2], 2, a->n, b); // was read before: fold_into
    }
    for (int64_t c = 0; c < a->n; c++) {
        b[c] = b[c] * a->scale[c] + a->shift[c];
    }
    hth_err err = hth_pass_const_f32(graph, NULL, b, a->n, &bias);
    hth_free(b);
    HTH_TRY(err);
    n = &graph->nodes[node];
    if (n->n_inputs > 2) {
        n->inputs[2] = bias;
        return HTH_OK;
    }
    return hth_node_add_input(n, bias);
}

// fold_into takes `a` into linear node `node`; *done says whether it could be.
static hth_err fold_into(hth_graph *graph, int node, const affine *a, bool *done)
{
    hth_node *n = &graph->nodes[node];
    int axis = filter_axis(n);
    hth_const *w = axis < 0 ? NULL : graph->values[n->inputs[1]].constant, *scaled, *scale;
    int64_t groups = n->op == HTH_OP_CONV_TRANSPOSE ? hth_node_int(n, "group", 1) : 1;
    bool has_bias = n->n_inputs > 2 && n->inputs[2] >= 0;
    *done = false;
    if (w == NULL || w->dtype != HTH_DT_F32 || n->n_post > 0 ||
        w->shape.dim[axis] * groups != a->n) {
        return HTH_OK;
    }
    float *probe = hth_alloc((size_t)a->n * sizeof *probe);
    bool readable =
        probe != NULL && (!has_bias || read_channels(graph, n->inputs[2], 2, a->n, probe));
    hth_free(probe);
    if (!readable) {
        return HTH_OK;
    }
    bool identity = true;
    for (int64_t c = 0; c < a->n; c++) {
        identity &= a->scale[c] == 1;
    }
    if (!identity) {
        hth_shape s = {.rank = 1, .dim = {a->n}};
        HTH_TRY(hth_const_new(HTH_DT_F32, &s, a->scale, &scale));
        hth_err err = hth_pass_scaled(w, scale, axis, (int)groups, &scaled);
        hth_const_rele(scale);
        HTH_TRY(err);
        int value;
        err = hth_graph_add_const(graph, NULL, scaled, &value);
        if (err != HTH_OK) {
            hth_const_rele(scaled);
            return err;
        }
        graph->nodes[node].inputs[1] = value;
    }
    HTH_TRY(fold_bias(graph, node, a));
    *done = true;
    return HTH_OK;
}

// fold_alone makes a normalisation that found nothing to fold into a ScaleShift.
static hth_err fold_alone(hth_graph *graph, int i, const affine *a)
{
    int scale, shift;
    HTH_TRY(hth_pass_const_f32(graph, NULL, a->scale, a->n, &scale));
    HTH_TRY(hth_pass_const_f32(graph, NULL, a->shift, a->n, &shift));
    hth_node *n = &graph->nodes[i];
    n->op = HTH_OP_SCALE_SHIFT;
    n->inputs[1] = scale;
    n->inputs[2] = shift;
    n->n_inputs = 3;
    return HTH_OK;
}

static hth_err fold_node(hth_graph *graph, hth_uses *uses, int i)
{
    hth_node *n = &graph->nodes[i];
    affine a;
    int data_input = 0;
    bool norm = n->op == HTH_OP_BATCH_NORMALIZATION, done = false;
    if (n->deleted || n->n_post > 0 || !(norm || n->op == HTH_OP_ADD || n->op == HTH_OP_MUL) ||
        !(norm ? affine_of_batch_norm(graph, n, &a)
               : affine_of_arithmetic(graph, n, &data_input, &a))) {
        return HTH_OK;
    }
    int x = n->inputs[data_input], from = graph->values[x].producer;
    hth_err err = HTH_OK;
    if (from >= 0 && hth_uses_only(graph, uses, x) == i) {
        err = fold_into(graph, from, &a, &done);
    }
    n = &graph->nodes[i];
    if (err == HTH_OK && done) {
        n->deleted = true;
        hth_pass_set_output(graph, from, n->outputs[0]);
    } else if (err == HTH_OK && norm) {
        err = fold_alone(graph, i, &a);
    }
    affine_fini(&a);
    return err;
}

hth_err hth_pass_fold_norm(hth_graph *graph)
{
    hth_uses u;
    HTH_TRY(hth_uses_open(graph, &u));
    hth_err err = HTH_OK;
    int n_nodes = graph->n_nodes;
    for (int i = 0; i < n_nodes && err == HTH_OK; i++) {
        err = fold_node(graph, &u, i);
    }
    hth_uses_close(&u);
    HTH_TRY(err);
    return hth_graph_compact(graph);
}
