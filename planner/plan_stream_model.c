// SPDX-License-Identifier: Apache-2.0
// The model that plan_stream.c searches on: per stage the live bytes and the menu of algorithms,
// per weight its uses.
#include "planner/plan_stream.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static hth_err model_menus(hth_stream_model *m)
{
    size_t total = 0;
    for (int i = 0; i < m->n_stages; i++) {
        total += m->p->nodes[i].n_alternatives > 0 ? (size_t)m->p->nodes[i].n_alternatives : 1;
    }
    m->menu = hth_alloc(total * sizeof *m->menu);
    if (m->menu == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for %zu alternatives", total);
    }
    m->menu_start[0] = 0;
    for (int i = 0; i < m->n_stages; i++) {
        m->menu_start[i + 1] =
            m->menu_start[i] + hth_plan_menu(&m->p->nodes[i], m->menu + m->menu_start[i]);
    }
    return HTH_OK;
}

static void model_base(hth_stream_model *m)
{
    uint64_t sum = 0;
    for (int i = 0; i < m->buffers->n; i++) {
        m->base[m->buffers->rect[i].first] += m->buffers->rect[i].bytes;
        m->base[m->buffers->rect[i].last + 1] -= m->buffers->rect[i].bytes;
    }
    for (int s = 0; s < m->n_stages; s++) {
        m->base[s] = sum += m->base[s];
    }
}

// Weights that are used and, when there is a link, streamable; the rest of the resident bytes is
// fixed.
static void model_weights(hth_stream_model *m, int *of_tensor)
{
    for (int t = 0; t < m->p->n_tensors; t++) {
        const hth_plan_tensor *x = &m->p->tensors[t];
        uint64_t bytes = hth_plan_round(x->bytes);
        of_tensor[t] = -1;
        if (hth_plan_home(x) != HTH_HOME_RESIDENT || m->buffers->last_use[t] < 0) {
            continue;
        }
        m->resident_bytes += bytes;
        if (x->cls != HTH_MEM_WEIGHT || !(m->p->h2d_bytes_per_s > 0) || bytes == 0) {
            m->fixed_bytes += bytes;
            continue;
        }
        of_tensor[t] = m->n_weights;
        double copy_us = m->p->latency_us + (double)x->bytes / m->p->h2d_bytes_per_s * 1e6;
        m->weight[m->n_weights++] = (hth_streamable){t, bytes, copy_us};
    }
}

// Uses in order of need; adjacent stages are one use. `open` holds each weight's last use so far.
static void model_uses(hth_stream_model *m, const int *of_tensor, int *open)
{
    for (int w = 0; w < m->n_weights; w++) {
        open[w] = -1;
    }
    for (int s = 0; s < m->n_stages; s++) {
        const hth_plan_node *n = &m->p->nodes[s];
        for (int j = 0; j < n->n_inputs; j++) {
            int w = of_tensor[n->inputs[j]];
            if (w < 0) {
                continue;
            }
            if (open[w] >= 0 && m->use[open[w]].last >= s - 1) {
                m->use[open[w]].last = s;
                continue;
            }
            m->use[m->n_uses] = (hth_stream_use){w, s, s, open[w]};
            open[w] = m->n_uses++;
        }
    }
}

hth_err hth_stream_model_init(hth_stream_model *m, const hth_problem *p, const hth_buffers *b)
{
    size_t n = (size_t)p->n_nodes + 1, n_inputs = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        n_inputs += (size_t)p->nodes[i].n_inputs;
    }
    *m = (hth_stream_model){.p = p,
                            .buffers = b,
                            .n_stages = p->n_nodes,
                            .base = hth_calloc(n, sizeof *m->base),
                            .menu_start = hth_calloc(n, sizeof *m->menu_start),
                            .weight = hth_calloc((size_t)p->n_tensors, sizeof *m->weight),
                            .use = hth_calloc(n_inputs, sizeof *m->use),
                            .used = hth_calloc(n, sizeof *m->used),
                            .used_base = hth_calloc(n, sizeof *m->used_base),
                            .end_us = hth_calloc(n, sizeof *m->end_us),
                            .latest_us = hth_calloc(n_inputs, sizeof *m->latest_us)};
    int *of_tensor = hth_alloc((size_t)p->n_tensors * sizeof *of_tensor);
    int *open = hth_alloc((size_t)p->n_tensors * sizeof *open);
    hth_err err = HTH_ENOMEM;
    if (!m->base || !m->menu_start || !m->weight || !m->use || !m->used || !m->used_base ||
        !m->end_us || !m->latest_us || !of_tensor || !open) {
        hth_fail(err, "no memory to plan %d nodes", p->n_nodes);
    } else if ((err = model_menus(m)) == HTH_OK) {
        model_base(m);
        model_weights(m, of_tensor);
        model_uses(m, of_tensor, open);
    }
    hth_free(of_tensor);
    hth_free(open);
    if (err != HTH_OK) {
        hth_stream_model_fini(m);
    }
    return err;
}

void hth_stream_model_fini(hth_stream_model *m)
{
    hth_free(m->base);
    hth_free(m->menu_start);
    hth_free(m->menu);
    hth_free(m->weight);
    hth_free(m->use);
    hth_free(m->used);
    hth_free(m->used_base);
    hth_free(m->end_us);
    hth_free(m->latest_us);
    memset(m, 0, sizeof *m);
}

hth_err hth_stream_decision_init(const hth_stream_model *m, hth_stream_decision *d)
{
    *d = (hth_stream_decision){.stream = hth_calloc((size_t)m->n_weights, sizeof *d->stream),
                               .item = hth_calloc((size_t)m->n_stages, sizeof *d->item),
                               .fetched = hth_calloc((size_t)m->n_uses, sizeof *d->fetched),
                               .begin = hth_calloc((size_t)m->n_uses, sizeof *d->begin),
                               .time_us = INFINITY};
    if (!d->stream || !d->item || !d->fetched || !d->begin) {
        hth_stream_decision_fini(d);
        return hth_fail(HTH_ENOMEM, "no memory to plan %d nodes", m->n_stages);
    }
    return HTH_OK;
}

void hth_stream_decision_fini(hth_stream_decision *d)
{
    hth_free(d->stream);
    hth_free(d->item);
    hth_free(d->fetched);
    hth_free(d->begin);
    memset(d, 0, sizeof *d);
}
