// SPDX-License-Identifier: Apache-2.0
// The model that plan_stream.c searches on: per stage the live bytes and the menu of algorithms,
// per weight its uses.
#include "planner/plan_stream.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static hth_err model_menus(hth_stream_model *model)
{
    size_t total = 0;
    for (int i = 0; i < model->n_stages; i++) {
        total +=
            model->p->nodes[i].n_alternatives > 0 ? (size_t)model->p->nodes[i].n_alternatives : 1;
    }
    model->menu = hth_alloc(total * sizeof *model->menu);
    if (model->menu == NULL) {
        return hth_no_memory("%zu alternatives", total);
    }
    model->menu_start[0] = 0;
    for (int i = 0; i < model->n_stages; i++) {
        model->menu_start[i + 1] =
            model->menu_start[i] +
            hth_plan_menu(&model->p->nodes[i], model->menu + model->menu_start[i]);
    }
    return HTH_OK;
}

static void model_base(hth_stream_model *model)
{
    uint64_t sum = 0;
    for (int i = 0; i < model->buffers->n; i++) {
        model->base[model->buffers->rect[i].first] += model->buffers->rect[i].bytes;
        model->base[model->buffers->rect[i].last + 1] -= model->buffers->rect[i].bytes;
    }
    for (int s = 0; s < model->n_stages; s++) {
        model->base[s] = sum += model->base[s];
    }
}

// Weights that are used and, when there is a link, streamable; the rest of the resident bytes is
// fixed: a place that is dropped would lose an update.
static void model_weights(hth_stream_model *model, int *of_tensor)
{
    const int updated = -2;
    for (int t = 0; t < model->p->n_tensors; t++) {
        of_tensor[t] = -1;
    }
    for (int t = 0; t < model->p->n_tensors; t++) {
        if (model->p->tensors[t].replaces > 0) {
            of_tensor[model->p->tensors[t].replaces - 1] = updated;
        }
    }
    for (int t = 0; t < model->p->n_tensors; t++) {
        const hth_plan_tensor *x = &model->p->tensors[t];
        uint64_t bytes = hth_plan_round(x->bytes);
        bool used = model->buffers->last_use[t] >= 0 || of_tensor[t] == updated;
        if (hth_plan_home(x) != HTH_HOME_RESIDENT || !used) {
            continue;
        }
        model->resident_bytes += bytes;
        if (of_tensor[t] == updated || x->cls != HTH_MEM_WEIGHT ||
            !(model->p->h2d_bytes_per_s > 0) || bytes == 0) {
            model->fixed_bytes += bytes;
            continue;
        }
        of_tensor[t] = model->n_weights;
        double copy_us = model->p->latency_us + (double)x->bytes / model->p->h2d_bytes_per_s * 1e6;
        model->weight[model->n_weights++] = (hth_streamable){t, bytes, copy_us};
    }
}

// Uses in order of need; adjacent stages are one use. `open` holds each weight's last use so far.
static void model_uses(hth_stream_model *model, const int *of_tensor, int *open)
{
    for (int w = 0; w < model->n_weights; w++) {
        open[w] = -1;
    }
    for (int s = 0; s < model->n_stages; s++) {
        const hth_plan_node *n = &model->p->nodes[s];
        for (int j = 0; j < n->n_inputs; j++) {
            int w = of_tensor[n->inputs[j]];
            if (w < 0) {
                continue;
            }
            if (open[w] >= 0 && model->use[open[w]].last >= s - 1) {
                model->use[open[w]].last = s;
                continue;
            }
            model->use[model->n_uses] = (hth_stream_use){w, s, s, open[w]};
            open[w] = model->n_uses++;
        }
    }
}

hth_err hth_stream_model_init(hth_stream_model *model, const hth_problem *problem,
                              const hth_buffers *buffers)
{
    size_t n = (size_t)problem->n_nodes + 1, n_inputs = 0;
    for (int i = 0; i < problem->n_nodes; i++) {
        n_inputs += (size_t)problem->nodes[i].n_inputs;
    }
    *model =
        (hth_stream_model){.p = problem,
                           .buffers = buffers,
                           .n_stages = problem->n_nodes,
                           .base = hth_calloc(n, sizeof *model->base),
                           .menu_start = hth_calloc(n, sizeof *model->menu_start),
                           .weight = hth_calloc((size_t)problem->n_tensors, sizeof *model->weight),
                           .use = hth_calloc(n_inputs, sizeof *model->use),
                           .used = hth_calloc(n, sizeof *model->used),
                           .used_base = hth_calloc(n, sizeof *model->used_base),
                           .end_us = hth_calloc(n, sizeof *model->end_us),
                           .latest_us = hth_calloc(n_inputs, sizeof *model->latest_us)};
    int *of_tensor = hth_alloc((size_t)problem->n_tensors * sizeof *of_tensor);
    int *open = hth_alloc((size_t)problem->n_tensors * sizeof *open);
    hth_err err = HTH_ENOMEM;
    if (!model->base || !model->menu_start || !model->weight || !model->use || !model->used ||
        !model->used_base || !model->end_us || !model->latest_us || !of_tensor || !open) {
        hth_fail(err, "no memory to plan %d nodes", problem->n_nodes);
    } else if ((err = model_menus(model)) == HTH_OK) {
        model_base(model);
        model_weights(model, of_tensor);
        model_uses(model, of_tensor, open);
    }
    hth_free(of_tensor);
    hth_free(open);
    if (err != HTH_OK) {
        hth_stream_model_fini(model);
    }
    return err;
}

void hth_stream_model_fini(hth_stream_model *model)
{
    hth_free(model->base);
    hth_free(model->menu_start);
    hth_free(model->menu);
    hth_free(model->weight);
    hth_free(model->use);
    hth_free(model->used);
    hth_free(model->used_base);
    hth_free(model->end_us);
    hth_free(model->latest_us);
    memset(model, 0, sizeof *model);
}

hth_err hth_stream_decision_init(const hth_stream_model *model, hth_stream_decision *decision)
{
    *decision = (hth_stream_decision){
        .stream = hth_calloc((size_t)model->n_weights, sizeof *decision->stream),
        .item = hth_calloc((size_t)model->n_stages, sizeof *decision->item),
        .fetched = hth_calloc((size_t)model->n_uses, sizeof *decision->fetched),
        .begin = hth_calloc((size_t)model->n_uses, sizeof *decision->begin),
        .time_us = INFINITY};
    if (!decision->stream || !decision->item || !decision->fetched || !decision->begin) {
        hth_stream_decision_fini(decision);
        return hth_no_memory("planning %d nodes", model->n_stages);
    }
    return HTH_OK;
}

void hth_stream_decision_fini(hth_stream_decision *decision)
{
    hth_free(decision->stream);
    hth_free(decision->item);
    hth_free(decision->fetched);
    hth_free(decision->begin);
    memset(decision, 0, sizeof *decision);
}
