// SPDX-License-Identifier: Apache-2.0
// tests/rig/train_run.h - runs a training step's graph with the reference kernels: one buffer per
// value, new parameters and state copied back over the old ones after each step.
#ifndef HTH_TESTS_RIG_TRAIN_RUN_H
#define HTH_TESTS_RIG_TRAIN_RUN_H

#include "base/alloc.h"
#include "graph/autodiff/train.h"
#include "kernels/kernel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct train_run {
    const hth_train_graph *t;
    hth_tensor *value;
} train_run;

// Copies elements; f32 may become f64.
static void run_convert(hth_dtype to, void *dst, hth_dtype from, const void *src, int64_t n)
{
    if (to == HTH_DT_F64 && from == HTH_DT_F32) {
        for (int64_t i = 0; i < n; i++) {
            float f;
            memcpy(&f, (const char *)src + i * 4, sizeof f);
            ((double *)dst)[i] = f;
        }
    } else if (n > 0) {
        memcpy(dst, src, (size_t)n * hth_dtype_bytes(to));
    }
}

// Every value gets a zeroed buffer; parameters and statistics start with their content.
static train_run run_open(const hth_train_graph *graph)
{
    train_run r = {graph, calloc((size_t)graph->graph->n_values & 0xffffff, sizeof(hth_tensor))};
    for (int i = 0; i < graph->graph->n_values; i++) {
        const hth_value *v = &graph->graph->values[i];
        r.value[i] = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        assert_int_equal(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &r.value[i].bytes),
                         HTH_OK);
        r.value[i].data = calloc(1, r.value[i].bytes + 1);
        if (v->constant != NULL) {
            const void *data;
            assert_int_equal(hth_const_map(v->constant, &data), HTH_OK);
            run_convert(v->dtype, r.value[i].data, v->constant->dtype, data,
                        hth_shape_elements(&v->shape));
            hth_const_unmap(v->constant);
        }
    }
    for (int s = 0; s < graph->n_slots; s++) {
        hth_const *c = graph->slots[s].content;
        const void *data;
        if (c != NULL) {
            hth_tensor *to = &r.value[graph->graph->inputs[graph->slots[s].input]];
            assert_int_equal(hth_const_map(c, &data), HTH_OK);
            run_convert(to->dtype, to->data, c->dtype, data, hth_shape_elements(&c->shape));
            hth_const_unmap(c);
        }
    }
    return r;
}

static void run_close(train_run *run)
{
    for (int i = 0; i < run->t->graph->n_values; i++) {
        free(run->value[i].data);
    }
    free(run->value);
}

static hth_tensor *run_input(const train_run *run, int position)
{
    return &run->value[run->t->graph->inputs[position]];
}

static hth_tensor *run_output(const train_run *run, int position)
{
    return &run->value[run->t->graph->outputs[position]];
}

static void run_node(const train_run *run, const hth_node *node)
{
    hth_tensor *in = calloc((size_t)node->n_inputs + 1, sizeof *in);
    hth_tensor *out = calloc((size_t)node->n_outputs + 1, sizeof *out);
    for (int k = 0; k < node->n_inputs; k++) {
        in[k] = node->inputs[k] < 0 ? in[k] : run->value[node->inputs[k]];
    }
    for (int k = 0; k < node->n_outputs; k++) {
        out[k] = node->outputs[k] < 0 ? out[k] : run->value[node->outputs[k]];
    }
    if (hth_ref_eval(NULL, run->t->graph, node, in, out) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    free(in);
    free(out);
}

// Computes all nodes; returns the loss.
__attribute__((unused)) static double run_step(train_run *run)
{
    const hth_graph *g = run->t->graph;
    for (int i = 0; i < g->n_nodes; i++) {
        run_node(run, &g->nodes[i]);
    }
    const hth_tensor *loss = run_output(run, 0);
    return loss->dtype == HTH_DT_F64 ? *(double *)loss->data : (double)*(float *)loss->data;
}

// The new parameters, state and statistics become the old ones.
__attribute__((unused)) static void run_commit(train_run *run)
{
    for (int s = 0; s < run->t->n_slots; s++) {
        if (run->t->slots[s].output >= 0) {
            hth_tensor *to = run_input(run, run->t->slots[s].input);
            memcpy(to->data, run_output(run, run->t->slots[s].output)->data, to->bytes);
        }
    }
}

#endif
