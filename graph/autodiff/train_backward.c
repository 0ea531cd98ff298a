// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_backward.c - reverse mode: the walk from the loss back to the parameters.
//
// Nodes are visited from last to first, each when the gradients of its outputs are complete. A
// gradient that several readers add to is summed as they come, in the order of the walk, so that
// only one partial sum lives at a time. A parameter's optimizer node is written as soon as its last
// reader has given its part: its gradient then dies at once. With clipping all of them wait for the
// norm of all gradients.
#include "graph/autodiff/train_build.h"

#include "graph/autodiff/grad.h"

#include "base/alloc.h"

#include <string.h>

typedef struct backward {
    train_build *t;
    hth_grad c;
    bool *wants, *reached; // per forward value: depends on a parameter; leads to the loss
    int *slot;             // per forward value: its parameter's slot, -1
    int n_forward, output;
} backward;

static bool is_float_value(const hth_graph *graph, int v)
{
    return v >= 0 && hth_dtype_is_float(graph->values[v].dtype);
}

// Which values depend on parameters, and which the loss depends on.
static void find_paths(backward *b)
{
    hth_graph *g = b->t->g;
    for (int i = 0; i < b->n_forward; i++) {
        const hth_node *n = &g->nodes[i];
        bool any = false;
        for (int k = 0; k < n->n_inputs; k++) {
            any |= n->inputs[k] >= 0 && b->wants[n->inputs[k]] && hth_grad_passes(g, n, k);
        }
        any &= !hth_grad_rule_of(n->op)->flat;
        for (int k = 0; k < n->n_outputs && any; k++) {
            if (is_float_value(g, n->outputs[k])) {
                b->wants[n->outputs[k]] = true;
            }
        }
    }
    b->reached[b->output] = true;
    for (int i = b->n_forward - 1; i >= 0; i--) {
        const hth_node *n = &g->nodes[i];
        bool any = false;
        for (int k = 0; k < n->n_outputs; k++) {
            any |= n->outputs[k] >= 0 && b->reached[n->outputs[k]];
        }
        for (int k = 0; k < n->n_inputs && any; k++) {
            if (n->inputs[k] >= 0 && hth_grad_passes(g, n, k)) {
                b->reached[n->inputs[k]] = true;
            }
        }
    }
}

static void drop_input(hth_graph *graph, int value)
{
    int n = 0;
    for (int i = 0; i < graph->n_inputs; i++) {
        if (graph->inputs[i] != value) {
            graph->inputs[n++] = graph->inputs[i];
        }
    }
    graph->n_inputs = n;
    graph->values[value].is_input = false;
}

// Parameters that the loss does not depend on are constants again.
static hth_err drop_unreached(backward *b)
{
    train_build *t = b->t;
    int kept = 0, parameters = 0;
    for (int s = 0; s < t->n_slots; s++) {
        train_slot *p = &t->slots[s];
        if (p->slot.kind == HTH_SLOT_PARAM && !b->reached[p->value]) {
            drop_input(t->g, p->value);
            t->g->values[p->value].constant = p->slot.content;
            b->wants[p->value] = false;
            hth_free(p->slot.name);
            continue;
        }
        parameters += p->slot.kind == HTH_SLOT_PARAM;
        t->slots[kept++] = *p;
    }
    t->n_slots = kept;
    return parameters > 0 ? HTH_OK
                          : hth_fail(HTH_ENOTSUP, "there is nothing to train: no float32 parameter "
                                                  "leads to the loss, or all are frozen");
}

// How many parts each parameter's gradient has.
static void count_reads(backward *b)
{
    hth_graph *g = b->t->g;
    for (int s = 0; s < b->t->n_slots; s++) {
        if (b->t->slots[s].slot.kind == HTH_SLOT_PARAM) {
            b->slot[b->t->slots[s].value] = s;
        }
    }
    for (int i = 0; i < b->n_forward; i++) {
        for (int k = 0; k < g->nodes[i].n_inputs; k++) {
            int v = g->nodes[i].inputs[k];
            if (v >= 0 && b->slot[v] >= 0) {
                b->t->slots[b->slot[v]].left++;
            }
        }
    }
}

// Node has given its part: parameters that it was the last reader of are updated.
static hth_err parameters_done(backward *b, const hth_node *node)
{
    for (int k = 0; k < node->n_inputs; k++) {
        int v = node->inputs[k], s = v < 0 ? -1 : b->slot[v];
        if (s < 0 || --b->t->slots[s].left > 0) {
            continue;
        }
        if (b->c.of[v] < 0) {
            return hth_fail(HTH_ENOTSUP, "parameter '%s' gets no gradient",
                            b->t->slots[s].slot.name);
        }
        if (b->t->o->phase != HTH_TRAIN_WHOLE) {
            HTH_TRY(train_accumulate(b->t, s, &b->c.of[v]));
        }
        if (b->t->gradients == NULL) {
            HTH_TRY(train_update(b->t, s, b->c.of[v], -1));
        }
    }
    return HTH_OK;
}

static hth_err visit(backward *b, int i)
{
    hth_graph *g = b->t->g;
    const hth_node n = g->nodes[i];
    bool has = false, wanted = false;
    for (int k = 0; k < n.n_outputs; k++) {
        has |= n.outputs[k] >= 0 && b->c.of[n.outputs[k]] >= 0;
    }
    b->c.forward = i;
    b->c.made = 0;
    for (int k = 0; k < n.n_inputs && has; k++) {
        if (n.inputs[k] >= 0 && b->wants[n.inputs[k]] && hth_grad_passes(g, &n, k)) {
            wanted = true;
            if (g->values[n.inputs[k]].dtype != HTH_DT_F32) {
                hth_grad_fail(&b->c, "training is in FP32");
            }
        }
    }
    if (wanted) {
        hth_grad_fn fn = hth_grad_rule_of(n.op)->fn;
        if (fn == NULL) {
            hth_grad_fail(&b->c, "the operator has no gradient");
        } else {
            fn(&b->c, &n);
        }
    }
    HTH_TRY(b->c.err);
    return parameters_done(b, &n);
}

static hth_err update_clipped(backward *b)
{
    train_build *t = b->t;
    int n = 0, clip, last = t->n_slots;
    for (int s = 0; s < last; s++) {
        if (t->slots[s].slot.kind == HTH_SLOT_PARAM) {
            t->gradients[n++] = b->c.of[t->slots[s].value];
        }
    }
    if (t->o->phase == HTH_TRAIN_ACCUMULATE) {
        clip = -1;
    } else {
        HTH_TRY(train_clip(t, t->gradients, n, &clip));
    }
    for (int s = 0; s < last; s++) {
        if (t->slots[s].slot.kind == HTH_SLOT_PARAM) {
            HTH_TRY(train_update(t, s, b->c.of[t->slots[s].value], clip));
        }
    }
    return HTH_OK;
}

static hth_err run(backward *b)
{
    train_build *t = b->t;
    for (int s = 0; s < t->n_slots; s++) {
        if (t->slots[s].slot.kind == HTH_SLOT_PARAM) {
            b->wants[t->slots[s].value] = true;
        }
    }
    find_paths(b);
    HTH_TRY(drop_unreached(b));
    count_reads(b);
    HTH_TRY(train_loss(t, b->output, &b->c.of[b->output]));
    for (int i = b->n_forward - 1; i >= 0; i--) {
        HTH_TRY(visit(b, i));
    }
    return t->gradients != NULL ? update_clipped(b) : HTH_OK;
}

hth_err train_backward(train_build *build, int output)
{
    size_t n = (size_t)build->g->n_values + 1;
    backward b = {.t = build, .n_forward = build->g->n_nodes, .output = output};
    b.c = (hth_grad){.g = build->g,
                     .n_values = build->g->n_values,
                     .of = hth_alloc(n * sizeof(int)),
                     .kind = "grad"};
    b.wants = hth_calloc(n, sizeof *b.wants);
    b.reached = hth_calloc(n, sizeof *b.reached);
    b.slot = hth_alloc(n * sizeof *b.slot);
    b.c.wants = b.wants;
    if (build->o->clip_norm > 0) {
        build->gradients = hth_calloc((size_t)build->n_slots + 1, sizeof *build->gradients);
    }
    hth_err err;
    if (b.c.of == NULL || b.wants == NULL || b.reached == NULL || b.slot == NULL ||
        (build->o->clip_norm > 0 && build->gradients == NULL)) {
        err = hth_no_memory("a training step");
    } else {
        memset(b.c.of, -1, n * sizeof *b.c.of);
        memset(b.slot, -1, n * sizeof *b.slot);
        err = run(&b);
    }
    hth_free(b.c.of);
    hth_free(b.wants);
    hth_free(b.reached);
    hth_free(b.slot);
    hth_free(build->gradients);
    build->gradients = NULL;
    return err;
}
