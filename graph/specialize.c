// SPDX-License-Identifier: Apache-2.0
// graph/specialize.c - one forward walk over a copy of the model graph: infer, fold, and note what
// must wait.
//
// Facts per value after the walk: its shape is known, or it is WAITING (some node before it needs
// contents that only running gives). A WAITING value's node and everything after it go to `rest`.
// SOFT marks constants that come from an input's contents: they hold for this request only, so no
// more is folded with them than shape arithmetic needs; the work on larger tensors stays on the
// device. The walk is linear in nodes and edges. Threads: none of its own; the model graph is only
// read.
#include "graph/specialize.h"

#include "graph/passes/fold.h"

#include "base/alloc.h"
#include "base/pace.h"

#include <string.h>

#define SOFT_ELEMENTS 1024 // shapes, counts, indices of a few boxes
#define VISIT_WORK    512  // of inferring a node, in units of base/pace.h

enum { WAITING = 1, SOFT = 2 };

typedef struct walk {
    hth_graph *g;
    const hth_tensor *inputs;
    hth_fold fold;
    hth_stage *out;
    int n_values;         // of the model; values after are contents of inputs
    unsigned char *flags; // per value of the model
    int *content;         // per value of the model: the constant with its contents, 0: none
    int *cut; // values that `rest` reads from this stage; those whose contents are awaited come
              // first
    int n_cut, n_waiting;
    int missing; // an input whose contents are needed and not there, -1
} walk;

static unsigned char flags_of(const walk *w, int value)
{
    if (value < 0) {
        return 0;
    }
    return value < w->n_values ? w->flags[value] : SOFT;
}

static hth_err check_dim(const hth_graph *graph, const hth_value *value, int axis, int64_t got,
                         int64_t *symbols)
{
    int64_t want = value->shape.dim[axis];
    if (got < 0 || (want >= 0 && want != got)) {
        return hth_fail(HTH_EINVAL, "input '%s': dimension %d is %lld, the model expects %lld",
                        value->name, axis, (long long)got, (long long)want);
    }
    if (want >= 0 || want == HTH_DIM_UNKNOWN) {
        return HTH_OK;
    }
    int s = HTH_DIM_TO_SYMBOL(want);
    if (symbols[s] >= 0 && symbols[s] != got) {
        return hth_fail(
            HTH_EINVAL, "input '%s': dimension %d ('%s') is %lld, but %lld in an input before it",
            value->name, axis, graph->symbols[s], (long long)got, (long long)symbols[s]);
    }
    symbols[s] = got;
    return HTH_OK;
}

static hth_err bind_input(hth_graph *graph, hth_value *value, const hth_tensor *tensor,
                          int64_t *symbols)
{
    size_t bytes;
    char want[128], got[128];
    if (tensor->dtype != value->dtype) {
        return hth_fail(HTH_EINVAL, "input '%s' is %s, the model expects %s", value->name,
                        hth_dtype_name(tensor->dtype), hth_dtype_name(value->dtype));
    }
    if (value->shape.rank >= 0 && tensor->shape.rank != value->shape.rank) {
        return hth_fail(HTH_EINVAL, "input '%s' has the shape %s, the model expects %s",
                        value->name, hth_shape_str(&tensor->shape, got, sizeof got),
                        hth_shape_str(&value->shape, want, sizeof want));
    }
    for (int i = 0; i < value->shape.rank; i++) {
        HTH_TRY(check_dim(graph, value, i, tensor->shape.dim[i], symbols));
    }
    if (!hth_shape_known(&tensor->shape)) {
        return hth_fail(HTH_EINVAL, "the shape of input '%s' is not known", value->name);
    }
    HTH_TRY(hth_tensor_bytes(tensor->dtype, &tensor->shape, HTH_LAYOUT_PLAIN, &bytes));
    value->shape = tensor->shape;
    return HTH_OK;
}

static hth_err bind_inputs(walk *w)
{
    hth_graph *g = w->g;
    hth_err err = HTH_OK;
    int64_t *symbols = hth_calloc((size_t)g->n_symbols + 1, sizeof *symbols);
    if (symbols == NULL) {
        return hth_no_memory("specializing a model");
    }
    memset(symbols, 0xff, (size_t)g->n_symbols * sizeof *symbols);
    for (int i = 0; err == HTH_OK && i < g->n_inputs; i++) {
        err = bind_input(g, &g->values[g->inputs[i]], &w->inputs[i], symbols);
    }
    hth_free(symbols);
    return err;
}

static int input_number(const hth_graph *graph, int value)
{
    for (int i = 0; i < graph->n_inputs; i++) {
        if (graph->inputs[i] == value) {
            return i;
        }
    }
    return -1;
}

// Makes the contents of graph input number i a constant and stores its value index; *out -1: not
// there.
static hth_err take_content(walk *w, int i, int *out)
{
    const hth_tensor *t = &w->inputs[i];
    int value = w->g->inputs[i];
    *out = w->content[value] != 0 ? w->content[value] : -1;
    if (*out >= 0) {
        return HTH_OK;
    }
    if (i >= 64) {
        return hth_fail(HTH_ENOTSUP,
                        "the contents of input '%s' are needed, but it comes after 64 others",
                        w->g->values[value].name);
    }
    w->out->value_inputs |= UINT64_C(1) << i;
    if (t->data == NULL) {
        w->missing = value;
        return HTH_OK;
    }
    hth_const *c;
    HTH_TRY(hth_const_new(t->dtype, &t->shape, t->data, &c));
    hth_err err = hth_graph_add_const(w->g, NULL, c, out);
    if (err != HTH_OK) {
        hth_const_rele(c);
        return err;
    }
    w->content[value] = *out;
    w->out->contents[i] = hth_const_hold(c);
    return HTH_OK;
}

static void wait_for(walk *w, int node, int value)
{
    const hth_node *n = &w->g->nodes[node];
    if (value >= 0 && !(w->flags[value] & WAITING)) {
        w->cut[w->n_cut++] = value;
    }
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] >= 0) {
            w->flags[n->outputs[i]] |= WAITING;
        }
    }
    w->n_waiting++;
}

static void read_content(hth_node *node, int value, int content)
{
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] == value) {
            node->inputs[i] = content;
        }
    }
}

// Readers of an input whose (few) contents are known read those. Returns the inputs' flags
// together.
static unsigned char look_at_inputs(walk *w, hth_node *node)
{
    unsigned char flags = 0;
    for (int i = 0; i < node->n_inputs; i++) {
        int v = node->inputs[i], known = v >= 0 && v < w->n_values ? w->content[v] : 0;
        if (known != 0 && hth_shape_elements(&w->g->values[v].shape) <= SOFT_ELEMENTS) {
            node->inputs[i] = known;
        }
        flags |= flags_of(w, node->inputs[i]);
    }
    return flags;
}

// Infers node i; takes contents of graph inputs as it asks for them. *waits: it must go to `rest`.
static hth_err infer_with_contents(walk *w, int i, unsigned char *flags, bool *waits)
{
    int value, content;
    hth_err err;
    *waits = false;
    while ((err = hth_infer_node(w->g, i, &value)) == HTH_EBUSY) {
        int input = input_number(w->g, value);
        content = -1;
        if (input >= 0) {
            HTH_TRY(take_content(w, input, &content));
        }
        if (content < 0) {
            wait_for(w, i, input < 0 ? value : -1);
            *waits = true;
            return HTH_OK;
        }
        read_content(&w->g->nodes[i], value, content);
        *flags |= SOFT;
    }
    return err;
}

static hth_err visit(walk *w, int i)
{
    unsigned char flags = look_at_inputs(w, &w->g->nodes[i]);
    bool waits, folded;
    if (flags & WAITING) {
        wait_for(w, i, -1);
        return HTH_OK;
    }
    HTH_TRY(infer_with_contents(w, i, &flags, &waits));
    if (waits) {
        return HTH_OK;
    }
    HTH_TRY(hth_fold_node(w->g, i, &w->fold, flags & SOFT ? SOFT_ELEMENTS : INT64_MAX, &folded));
    const hth_node *n = &w->g->nodes[i];
    for (int k = 0; folded && k < n->n_outputs; k++) {
        if (n->outputs[k] >= 0) {
            w->flags[n->outputs[k]] |= flags & SOFT;
        }
    }
    return HTH_OK;
}

static bool node_waits(const walk *w, const hth_node *node)
{
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] >= 0) {
            return (w->flags[node->outputs[i]] & WAITING) != 0;
        }
    }
    return false;
}

// Completes the list of values that cross the cut, each once.
static hth_err find_cut(walk *w)
{
    const hth_graph *g = w->g;
    bool *listed = hth_calloc((size_t)g->n_values, sizeof *listed);
    int n = 0;
    if (listed == NULL) {
        return hth_no_memory("specializing a model");
    }
    for (int i = 0; i < w->n_cut; i++) {
        if (!listed[w->cut[i]]) {
            listed[w->cut[i]] = true;
            w->cut[n++] = w->cut[i];
        }
    }
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].deleted || !node_waits(w, &g->nodes[i])) {
            continue;
        }
        for (int k = 0; k < g->nodes[i].n_inputs; k++) {
            int v = g->nodes[i].inputs[k];
            if (v >= 0 && !(flags_of(w, v) & WAITING) && g->values[v].producer >= 0 && !listed[v]) {
                listed[v] = true;
                w->cut[n++] = v;
            }
        }
    }
    w->n_cut = n;
    hth_free(listed);
    return HTH_OK;
}

// Keeps the outputs that are (or are not) waiting.
static void keep_outputs(const walk *w, hth_graph *graph, bool waiting)
{
    int n = 0;
    for (int i = 0; i < graph->n_outputs; i++) {
        int v = graph->outputs[i];
        bool keep = ((flags_of(w, v) & WAITING) != 0) == waiting;
        graph->values[v].is_output = keep;
        if (keep) {
            graph->outputs[n++] = v;
        }
    }
    graph->n_outputs = n;
}

static void keep_nodes(const walk *w, hth_graph *graph, bool waiting)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        graph->nodes[i].deleted |= node_waits(w, &graph->nodes[i]) != waiting;
    }
}

static hth_err make_rest(walk *w)
{
    HTH_TRY(hth_graph_clone(w->g, &w->out->rest));
    hth_graph *r = w->out->rest;
    keep_nodes(w, r, true);
    keep_outputs(w, r, true);
    for (int i = 0; i < w->n_cut; i++) {
        HTH_TRY(hth_graph_add_input(r, w->cut[i]));
    }
    return hth_graph_compact(r);
}

static hth_err finish(walk *w)
{
    hth_graph *g = w->g;
    hth_stage *s = w->out;
    s->final_index = hth_calloc((size_t)g->n_outputs + 1, sizeof *s->final_index);
    if (s->final_index == NULL) {
        return hth_no_memory("specializing a model");
    }
    for (int i = 0; i < g->n_outputs; i++) {
        if (!(flags_of(w, g->outputs[i]) & WAITING)) {
            s->final_index[s->n_final++] = i;
        }
    }
    if (w->n_waiting > 0) {
        HTH_TRY(find_cut(w));
        HTH_TRY(make_rest(w));
        keep_nodes(w, g, false);
        keep_outputs(w, g, false);
        for (int i = 0; i < w->n_cut; i++) {
            HTH_TRY(hth_graph_add_output(g, w->cut[i]));
        }
    }
    return hth_graph_compact(g);
}

static hth_err walk_all(walk *w)
{
    size_t n = (size_t)w->n_values + 1;
    w->flags = hth_calloc(n, sizeof *w->flags);
    w->content = hth_calloc(n, sizeof *w->content);
    w->cut = hth_calloc(n + (size_t)w->g->n_nodes, sizeof *w->cut);
    w->out->contents = hth_calloc((size_t)w->g->n_inputs + 1, sizeof *w->out->contents);
    if (w->flags == NULL || w->content == NULL || w->cut == NULL || w->out->contents == NULL) {
        return hth_no_memory("specializing a model");
    }
    w->out->n_contents = w->g->n_inputs;
    HTH_TRY(bind_inputs(w));
    for (int i = 0; i < w->g->n_nodes; i++) {
        HTH_TRY(hth_pace_step(VISIT_WORK));
        HTH_TRY(visit(w, i));
    }
    if (w->missing >= 0) {
        return hth_fail(HTH_ENOTSUP,
                        "a shape depends on the contents of input '%s', which are not known",
                        w->g->values[w->missing].name);
    }
    return finish(w);
}

// The contents that came along.
static uint64_t content_bytes(const hth_graph *model, const hth_tensor *inputs)
{
    uint64_t sum = 0;
    for (int i = 0; i < model->n_inputs; i++) {
        sum += inputs[i].data != NULL ? inputs[i].bytes : 0;
    }
    return sum;
}

hth_err hth_specialize(const hth_graph *model, const hth_tensor *inputs, hth_eval_fn eval,
                       void *ctx, hth_stage *out)
{
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_graph_clone(model, &out->graph));
    hth_err err = hth_graph_compact(out->graph); // what nobody uses must not make a request wait
    walk w = {.g = out->graph,
              .inputs = inputs,
              .out = out,
              .n_values = out->graph->n_values,
              .missing = -1};
    if (err == HTH_OK) {
        err = hth_fold_open(&w.fold, w.g, content_bytes(model, inputs), eval, ctx);
    }
    if (err == HTH_OK) {
        err = walk_all(&w);
    }
    hth_fold_close(&w.fold);
    hth_free(w.flags);
    hth_free(w.content);
    hth_free(w.cut);
    if (err != HTH_OK) {
        uint64_t used = out->value_inputs;
        hth_stage_fini(out);
        out->value_inputs = used;
    }
    return err;
}

void hth_stage_fini(hth_stage *stage)
{
    hth_graph_free(stage->graph);
    hth_graph_free(stage->rest);
    hth_free(stage->final_index);
    for (int i = 0; i < stage->n_contents; i++) {
        hth_const_rele(stage->contents[i]);
    }
    hth_free(stage->contents);
    memset(stage, 0, sizeof *stage);
}

static bool reads_constants_only(const hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0 && graph->values[node->inputs[i]].constant == NULL) {
            return false;
        }
    }
    return true;
}

static hth_err fold_constants(hth_graph *model, hth_fold *fold)
{
    for (int i = 0; i < model->n_nodes; i++) {
        int wait;
        bool folded;
        HTH_TRY(hth_pace_step(VISIT_WORK));
        if (!model->nodes[i].deleted && reads_constants_only(model, &model->nodes[i])) {
            HTH_TRY(hth_infer_node(model, i, &wait));
            HTH_TRY(hth_fold_node(model, i, fold, INT64_MAX, &folded));
        }
    }
    return HTH_OK;
}

hth_err hth_fold_model(hth_graph *model, hth_eval_fn eval, void *ctx)
{
    hth_fold f;
    HTH_TRY(hth_fold_open(&f, model, 0, eval, ctx));
    hth_err err = fold_constants(model, &f);
    hth_fold_close(&f);
    HTH_TRY(err);
    return hth_graph_compact(model);
}
