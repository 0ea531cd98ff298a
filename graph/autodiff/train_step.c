// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_step.c - slots, the loss, and the optimizer's nodes.
#include "graph/autodiff/train_build.h"

#include "base/alloc.h"

#include <string.h>

hth_err train_add_slot(train_build *build, hth_slot_kind kind, char *name, int value,
                       int initializer, hth_const *content)
{
    if (HTH_GROW(build->slots, build->n_slots, build->cap_slots) != 0) {
        hth_free(name);
        return hth_no_memory("a training step");
    }
    build->slots[build->n_slots++] = (train_slot){
        .slot = {.kind = kind,
                 .name = name,
                 .initializer = initializer,
                 .content = content != NULL ? hth_const_hold(content) : NULL},
        .value = value,
        .next = -1,
    };
    return HTH_OK;
}

static hth_err infer(hth_graph *graph, int node)
{
    int wait;
    return hth_infer_node(graph, node, &wait);
}

// The axis of the classes, counted from the front; -1: there is none.
static int class_axis(const train_build *build, int output)
{
    int rank = build->g->values[output].shape.rank;
    if (build->o->class_axis < 0) {
        return rank - 1;
    }
    return rank > 1 ? 1 : -1;
}

// Labels are like the logits without the axis of the classes; another target is like the output.
static hth_err add_target(train_build *build, int output)
{
    hth_graph *g = build->g;
    hth_shape s = g->values[output].shape;
    hth_dtype dt = g->values[output].dtype;
    if (build->o->loss == HTH_LOSS_SOFTMAX_XENT) {
        char text[128];
        int axis = class_axis(build, output);
        if (s.rank < 2) {
            return hth_fail(HTH_EINVAL,
                            "output '%s' has the shape %s; a softmax cross-entropy needs classes "
                            "in dimension 1",
                            g->values[output].name, hth_shape_str(&s, text, sizeof text));
        }
        memmove(s.dim + axis, s.dim + axis + 1, (size_t)(s.rank - axis - 1) * sizeof s.dim[0]);
        s.rank--;
        dt = build->o->label_dtype == HTH_DT_I32 ? HTH_DT_I32 : HTH_DT_I64;
    }
    HTH_TRY(hth_graph_add_value(g, "hearth.target", dt, &s, &build->target));
    return hth_graph_add_input(g, build->target);
}

// The weights of the loss as a constant; *out -1: there are none.
static hth_err add_weights(train_build *build, int output, int *out)
{
    const hth_value *y = &build->g->values[output];
    int n = build->o->n_weights, axis = class_axis(build, output);
    bool xent = build->o->loss == HTH_LOSS_SOFTMAX_XENT;
    hth_const *c;
    *out = -1;
    if (build->o->weights == NULL) {
        return HTH_OK;
    }
    int64_t classes = axis >= 0 ? y->shape.dim[axis] : 1;
    if (n != classes && (xent || n != 1)) {
        char text[128];
        const char *kind = xent ? "class" : "positive";
        return hth_fail(HTH_EINVAL,
                        "there are %d %s weights, but output '%s' %s has %lld classes in axis %d",
                        n, kind, y->name, hth_shape_str(&y->shape, text, sizeof text),
                        (long long)classes, axis >= 0 ? axis : 0);
    }
    HTH_TRY(hth_const_new(HTH_DT_F32, &(hth_shape){1, {n}}, build->o->weights, &c));
    hth_err err = hth_graph_add_const(build->g, "hearth.loss.weights", c, out);
    if (err != HTH_OK) {
        hth_const_rele(c);
    }
    return err;
}

static hth_err add_loss_node(train_build *build, hth_op op, const char *name, const int in[4],
                             int *value)
{
    int node, n_in = in[2] >= 0 ? 3 : 2;
    n_in = in[3] >= 0 ? 4 : n_in;
    bool xent = build->o->loss == HTH_LOSS_SOFTMAX_XENT;
    HTH_TRY(hth_graph_add_value(build->g, name, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, value));
    HTH_TRY(hth_graph_add_node(build->g, op, name, in, n_in, value, 1, &node));
    hth_node *n = &build->g->nodes[node];
    if (build->o->loss != HTH_LOSS_MSE) {
        HTH_TRY(hth_node_set_int(n, "axis", build->o->class_axis < 0 ? -1 : 1));
    }
    if (xent && build->o->label_smoothing > 0) {
        HTH_TRY(hth_node_set_float(n, "smoothing", build->o->label_smoothing));
    }
    return infer(build->g, node);
}

// A part of a batch is divided by what the whole batch's labels weigh, which only the caller knows.
hth_err train_loss(train_build *build, int output, int *grad)
{
    static const hth_op ops[][2] = {
        [HTH_LOSS_SOFTMAX_XENT] = {HTH_OP_SOFTMAX_XENT, HTH_OP_SOFTMAX_XENT_GRAD},
        [HTH_LOSS_MSE] = {HTH_OP_MSE, HTH_OP_MSE_GRAD},
        [HTH_LOSS_BCE] = {HTH_OP_BCE, HTH_OP_BCE_GRAD}};
    bool parts = build->o->loss == HTH_LOSS_SOFTMAX_XENT && build->o->phase != HTH_TRAIN_WHOLE;
    int in[4] = {output, -1, -1, parts ? build->hyper : -1};
    if (build->g->values[output].dtype != HTH_DT_F32) {
        return hth_fail(HTH_ENOTSUP, "output '%s' is %s; training is in FP32",
                        build->g->values[output].name,
                        hth_dtype_name(build->g->values[output].dtype));
    }
    HTH_TRY(add_target(build, output));
    in[1] = build->target;
    HTH_TRY(add_weights(build, output, &in[2]));
    HTH_TRY(add_loss_node(build, ops[build->o->loss][0], "hearth.loss", in, &build->loss));
    return add_loss_node(build, ops[build->o->loss][1], "hearth.loss.grad", in, grad);
}

static const hth_value *loss_logits(const hth_train_graph *step)
{
    const hth_graph *g = step->graph;
    const hth_value *loss = &g->values[g->outputs[0]];
    return &g->values[g->nodes[loss->producer].inputs[0]];
}

static bool labels_fit(const hth_shape *logits, const hth_shape *labels, int axis)
{
    bool fit = labels->rank == logits->rank - 1;
    for (int i = 0; fit && i < labels->rank; i++) {
        fit = labels->dim[i] == logits->dim[i < axis ? i : i + 1];
    }
    return fit;
}

hth_err hth_train_class_axis(const hth_train_graph *step, const hth_shape *labels, int *axis)
{
    const hth_value *y = loss_logits(step);
    int last = y->shape.rank - 1;
    bool front = labels_fit(&y->shape, labels, 1), back = labels_fit(&y->shape, labels, last);
    char logits[128], given[128];
    *axis = front || last < 2 ? 1 : -1;
    if (front != back || last < 2) {
        return HTH_OK;
    }
    hth_shape_str(&y->shape, logits, sizeof logits);
    hth_shape_str(labels, given, sizeof given);
    return front ? hth_fail(HTH_EINVAL,
                            "labels %s fit output '%s' %s with its classes in axis 1 and in the "
                            "last one: --class-axis 1 or -1 chooses",
                            given, y->name, logits)
                 : hth_fail(HTH_EINVAL,
                            "labels are %s, but output '%s' %s needs one per position: its shape "
                            "without axis 1, or without the last one",
                            given, y->name, logits);
}

// State `what` of parameter slot s, or its copy: an input like the parameter, in a slot of its own.
static hth_err add_state(train_build *build, int s, hth_slot_kind kind, const char *what,
                         int *value)
{
    const hth_train_slot *p = &build->slots[s].slot;
    bool copy = kind == HTH_SLOT_COPY;
    const hth_shape shape = build->g->values[build->slots[s].value].shape;
    char *name = hth_asprintf("%s/%s", p->name, what);
    if (name == NULL) {
        return hth_no_memory("a training step");
    }
    hth_err err =
        hth_graph_add_value(build->g, name, copy ? HTH_DT_BF16 : HTH_DT_F32, &shape, value);
    if (err == HTH_OK) {
        err = hth_graph_add_input(build->g, *value);
    }
    if (err != HTH_OK) {
        hth_free(name);
        return err;
    }
    return train_add_slot(build, kind, name, *value, p->initializer, copy ? p->content : NULL);
}

static hth_err new_value(train_build *build, int slot, int *out)
{
    const hth_train_slot *s = &build->slots[slot].slot;
    const hth_value *v = &build->g->values[build->slots[slot].value];
    const hth_shape shape = v->shape;
    const hth_layout layout = v->layout;
    hth_dtype dt = v->dtype;
    char *name = hth_asprintf("%s/new", s->name);
    hth_err err = name == NULL ? hth_no_memory("a training step")
                               : hth_graph_add_value(build->g, name, dt, &shape, out);
    hth_free(name);
    HTH_TRY(err);
    build->g->values[*out].layout = layout;
    build->slots[slot].next = *out;
    return HTH_OK;
}

static hth_err add_binary(train_build *build, hth_op op, const char *name, int a, int b, int out)
{
    int node;
    HTH_TRY(hth_graph_add_node(build->g, op, name, (int[]){a, b}, 2, &out, 1, &node));
    return infer(build->g, node);
}

hth_err train_accumulate(train_build *build, int s, int *gradient)
{
    int sum, next, before = *gradient, slot = build->n_slots;
    HTH_TRY(add_state(build, s, HTH_SLOT_STATE, "gradient", &sum));
    build->slots[slot].sum = true;
    if (build->o->phase == HTH_TRAIN_UPDATE) {
        *gradient = sum;
        return HTH_OK;
    }
    HTH_TRY(new_value(build, slot, &next));
    const char *name = build->slots[slot].slot.name;
    if (build->o->phase == HTH_TRAIN_ACCUMULATE) {
        *gradient = next;
        return add_binary(build, HTH_OP_ADD, name, sum, before, next);
    }
    const hth_shape shape = build->g->values[sum].shape;
    HTH_TRY(hth_graph_add_value(build->g, NULL, HTH_DT_F32, &shape, gradient));
    HTH_TRY(add_binary(build, HTH_OP_ADD, name, sum, before, *gradient));
    return add_binary(build, HTH_OP_SUB, name, sum, sum, next); // 0, in the place of the sum
}

// Whether node computes in the graph's precision with its input k.
static bool reads_rounded(const hth_node *node, int k)
{
    switch (node->op) {
    case HTH_OP_MAT_MUL:
    case HTH_OP_GEMM:
        return k < 2;
    case HTH_OP_CONV:
    case HTH_OP_CONV_TRANSPOSE:
    case HTH_OP_CONV_GRAD_DATA:
        return k == 1;
    default:
        return false;
    }
}

// Sums are cleared when all have read them. What computed them falls to compaction.
hth_err train_updates(train_build *build)
{
    int node;
    for (int s = 0; s < build->n_slots; s++) {
        int sum = build->slots[s].value, next;
        if (build->slots[s].sum && !build->o->keep_sums) {
            HTH_TRY(new_value(build, s, &next));
            HTH_TRY(add_binary(build, HTH_OP_SUB, build->slots[s].slot.name, sum, sum, next));
        } else if (build->slots[s].slot.kind == HTH_SLOT_STAT) {
            build->slots[s].next = -1;
        }
    }
    HTH_TRY(hth_graph_add_value(build->g, "hearth.none", HTH_DT_NONE, &HTH_SHAPE_UNKNOWN,
                                &build->loss));
    HTH_TRY(hth_graph_add_node(build->g, HTH_OP_REDUCE_SUM, "hearth.none", &build->hyper, 1,
                               &build->loss, 1, &node));
    HTH_TRY(hth_node_set_int(&build->g->nodes[node], "keepdims", 0));
    return infer(build->g, node);
}

// In bf16 what reads parameter slot s rounded reads its copy, which gets a slot after the
// optimizer's state; *copy -1: nothing does. All reads are there before the update is. A filter's
// copy has its channels last, as engines of convolutions in bf16 want it.
static hth_err add_copy(train_build *build, int s, int *copy)
{
    *copy = -1;
    int v = build->slots[s].value;
    bool filter = build->g->values[v].shape.rank > 2;
    for (int i = 0; i < build->g->n_nodes && build->o->precision == HTH_PRECISION_BF16; i++) {
        for (int k = 0; k < build->g->nodes[i].n_inputs; k++) {
            if (build->g->nodes[i].inputs[k] != v || !reads_rounded(&build->g->nodes[i], k)) {
                continue;
            }
            if (*copy < 0) {
                HTH_TRY(add_state(build, s, HTH_SLOT_COPY, "bf16", copy));
            }
            build->g->nodes[i].inputs[k] = *copy;
            hth_op op = build->g->nodes[i].op;
            filter = filter && op != HTH_OP_MAT_MUL && op != HTH_OP_GEMM;
        }
    }
    if (*copy >= 0 && filter) {
        build->g->values[*copy].layout = HTH_LAYOUT_NHWC;
    }
    return HTH_OK;
}

hth_err train_update(train_build *build, int s, int gradient, int clip)
{
    static const char *const adam[] = {"exp_avg", "exp_avg_sq"}, *const momentum[] = {"momentum"};
    bool is_adam =
        build->o->optimizer == HTH_OPTIMIZER_ADAM || build->o->optimizer == HTH_OPTIMIZER_ADAMW;
    int n_state = is_adam ? 2 : build->o->optimizer == HTH_OPTIMIZER_MOMENTUM;
    int in[7] = {build->slots[s].value, gradient, -1, -1}, out[4] = {-1, -1, -1, -1}, node;
    int first = build->n_slots, copy, n_out = 1 + n_state;
    for (int i = 0; i < n_state; i++) {
        HTH_TRY(add_state(build, s, HTH_SLOT_STATE, is_adam ? adam[i] : momentum[i], &in[2 + i]));
    }
    HTH_TRY(add_copy(build, s, &copy));
    if (build->o->phase == HTH_TRAIN_ACCUMULATE) {
        return HTH_OK; // the same slots, for both graphs to share
    }
    HTH_TRY(new_value(build, s, &out[0]));
    for (int i = 0; i < n_state; i++) {
        HTH_TRY(new_value(build, first + i, &out[1 + i]));
    }
    if (copy >= 0) {
        n_out = is_adam ? 4 : 3; // in the copy's place, which is why the node reads it
        HTH_TRY(new_value(build, first + n_state, &out[n_out - 1]));
    }
    int hyper = is_adam ? 4 : 3;
    in[hyper] = build->hyper;
    in[hyper + 1] = clip;
    in[hyper + 2] = copy;
    int n_in = copy >= 0 ? hyper + 3 : hyper + 1 + (clip >= 0);
    char *name = hth_asprintf("%s/step", build->slots[s].slot.name);
    if (name == NULL) {
        return hth_no_memory("a training step");
    }
    hth_op op = is_adam ? HTH_OP_ADAM_STEP : HTH_OP_SGD_STEP;
    hth_err err = hth_graph_add_node(build->g, op, name, in, n_in, out, n_out, &node);
    hth_free(name);
    HTH_TRY(err);
    if (build->o->optimizer == HTH_OPTIMIZER_ADAMW) {
        HTH_TRY(hth_node_set_int(&build->g->nodes[node], "decoupled", 1));
    } else if (n_state == 1 && build->o->nesterov) {
        HTH_TRY(hth_node_set_int(&build->g->nodes[node], "nesterov", 1));
    }
    return infer(build->g, node);
}
