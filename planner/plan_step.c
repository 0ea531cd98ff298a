// SPDX-License-Identifier: Apache-2.0
// From a planning problem to the model that the search works on. See plan_step.h.
#include "planner/plan_step.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hth_step_fini(hth_step *m)
{
    void *all[] = {m->use_start, m->use,    m->interval_start, m->interval, m->menu_start,
                   m->menu,      m->pair,   m->updated,        m->dirty,    m->bytes,
                   m->arena,     m->h2d_us, m->d2h_us,         m->heir,     m->first,
                   m->last,      m->kept,   m->backward,       m->menu_end, m->menu_whole};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
    memset(m, 0, sizeof *m);
}

// The arrays that are one per tensor or stage.
static hth_err step_arrays(hth_step *m)
{
    size_t nt = (size_t)m->p->n_tensors + 1, ns = (size_t)m->p->n_nodes + 1, uses = 1, alts = 1;
    for (int i = 0; i < m->p->n_nodes; i++) {
        const hth_plan_node *n = &m->p->nodes[i];
        uses += (size_t)(n->n_inputs + n->n_outputs);
        alts += n->n_alternatives > 0 ? (size_t)n->n_alternatives : 1;
    }
    m->use_start = hth_calloc(nt + 1, sizeof(int));
    m->use = hth_calloc(uses, sizeof(int));
    m->interval_start = hth_calloc(nt, sizeof(int));
    m->interval = hth_calloc(uses + nt, sizeof *m->interval);
    m->menu_start = hth_calloc(ns, sizeof(int));
    m->menu_end = hth_calloc(ns, sizeof(int));
    m->menu_whole = hth_calloc(ns, sizeof(int));
    m->menu = hth_calloc(alts + ns, sizeof *m->menu);
    m->pair = hth_calloc(nt, sizeof(int));
    m->updated = hth_calloc(nt, sizeof(int));
    m->dirty = hth_calloc(nt, sizeof(bool));
    m->bytes = hth_calloc(nt, sizeof *m->bytes);
    m->arena = hth_calloc(nt, sizeof(bool));
    m->backward = hth_calloc(nt, sizeof(int));
    m->heir = hth_calloc(nt, sizeof(int));
    m->first = hth_calloc(nt, sizeof(int));
    m->last = hth_calloc(nt, sizeof(int));
    m->kept = hth_calloc(ns + 1, sizeof *m->kept);
    m->h2d_us = hth_calloc(nt, sizeof(double));
    m->d2h_us = hth_calloc(nt, sizeof(double));
    bool ok = m->use_start && m->use && m->interval_start && m->interval && m->menu_start &&
              m->menu_end && m->menu_whole && m->menu && m->pair && m->updated && m->dirty &&
              m->bytes && m->arena && m->backward && m->heir && m->first && m->last && m->kept &&
              m->h2d_us && m->d2h_us;
    return ok ? HTH_OK
              : hth_fail(HTH_ENOMEM, "no memory to plan a step of %d nodes", m->p->n_nodes);
}

static void step_tensors(hth_step *m)
{
    const hth_problem *p = m->p;
    bool out = p->d2h_bytes_per_s > 0, in = p->h2d_bytes_per_s > 0;
    for (int t = 0; t < p->n_tensors; t++) {
        const hth_plan_tensor *x = &p->tensors[t];
        hth_home home = hth_plan_home(x);
        m->arena[t] = home == HTH_HOME_ARENA;
        m->bytes[t] = home == HTH_HOME_CALLER ? 0 : hth_plan_round(x->bytes);
        m->h2d_us[t] = in ? p->latency_us + (double)x->bytes / p->h2d_bytes_per_s * 1e6 : INFINITY;
        m->d2h_us[t] = out ? p->latency_us + (double)x->bytes / p->d2h_bytes_per_s * 1e6 : INFINITY;
        m->pair[t] = -1;
        m->updated[t] = p->n_nodes;
    }
    for (int i = 0; i < p->n_nodes; i++) {
        for (int j = 0; j < p->nodes[i].n_inplace; j++) {
            int x = p->nodes[i].inplace[j][0], y = p->nodes[i].inplace[j][1];
            if (m->arena[x] && m->arena[y] && m->bytes[x] == m->bytes[y] &&
                p->tensors[x].producer >= 0 && p->tensors[x].cls != HTH_MEM_OUTPUT) {
                m->pair[y] = x;
            }
        }
    }
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensors[t].replaces > 0) {
            m->updated[p->tensors[t].replaces - 1] = p->tensors[t].producer;
            m->dirty[p->tensors[t].replaces - 1] = true;
        }
        m->resident_bytes += hth_plan_home(&p->tensors[t]) == HTH_HOME_RESIDENT ? m->bytes[t] : 0;
    }
}

// A use is a stage; a node that reads a tensor twice uses it once. `seen`, per tensor, is scratch.
static void step_uses(hth_step *m, int *seen)
{
    const hth_problem *p = m->p;
    for (int pass = 0; pass < 2; pass++) { // count, then fill: use_start[t + 1] is where t goes on
        memset(seen, -1, (size_t)p->n_tensors * sizeof *seen);
        for (int i = 0; i < p->n_nodes; i++) {
            const hth_plan_node *n = &p->nodes[i];
            for (int j = 0; j < n->n_inputs + n->n_outputs; j++) {
                int t = j < n->n_inputs ? n->inputs[j] : n->outputs[j - n->n_inputs];
                if (seen[t] == i) {
                    continue;
                }
                seen[t] = i;
                if (pass == 1) {
                    m->use[m->use_start[t + 1]] = i;
                }
                m->use_start[t + 1 + (pass == 0)]++;
            }
        }
        for (int t = 0; pass == 0 && t < p->n_tensors; t++) {
            m->use_start[t + 2] += m->use_start[t + 1];
        }
    }
}

bool hth_step_may_rerun(const hth_step *m, int v, int s)
{
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        int by = m->updated[n->inputs[j]];
        if (by <= s && by != v) {
            return false;
        }
    }
    return true;
}

static bool step_can_rerun(const hth_step *m, int t)
{
    int v = m->p->tensors[t].producer;
    return v >= 0 && m->p->nodes[v].recomputable;
}

static void step_add_interval(hth_step *m, int t, int p, int q, bool cyclic)
{
    bool link = m->h2d_us[t] < INFINITY && m->d2h_us[t] < INFINITY;
    m->interval[m->n_intervals++] =
        (hth_interval){t, p, q, cyclic, link, !cyclic && step_can_rerun(m, t)};
}

static void step_intervals_of(hth_step *m, int t, int n_uses)
{
    const int *u = &m->use[m->use_start[t]];
    int n = m->n_stages, last = n_uses - 1;
    if (n_uses == 0 || m->bytes[t] == 0) {
        return;
    }
    if (!m->arena[t]) { // resident: away from its last use to its first
        if (u[0] + n - u[last] >= 3) {
            for (int k = 0; k < last; k++) {
                if (u[k + 1] - u[k] >= 2) {
                    step_add_interval(m, t, u[k], u[k + 1], false);
                }
            }
            step_add_interval(m, t, u[last], u[0], true);
        }
        return;
    }
    for (int k = 0; k < last; k++) {
        if (u[k + 1] - u[k] >= 2) {
            step_add_interval(m, t, u[k], u[k + 1], false);
        }
    }
    if (m->p->tensors[t].cls == HTH_MEM_OUTPUT) {
        if (n - 1 - u[last] >= 2) { // it has to be there at the end
            step_add_interval(m, t, u[last], n - 1, false);
        }
    } else if (u[last] + 1 < n) {
        step_add_interval(m, t, u[last], n, false);
    }
}

// The tensors with intervals, backwards; those that are there before the step at the end.
static void step_backward(hth_step *m)
{
    const hth_problem *p = m->p;
    for (int v = m->n_stages - 1; v >= 0; v--) {
        for (int j = 0; j < p->nodes[v].n_outputs; j++) {
            int t = p->nodes[v].outputs[j];
            if (m->interval_start[t] < m->interval_start[t + 1]) {
                m->backward[m->n_backward++] = t;
            }
        }
    }
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensors[t].producer < 0 && m->interval_start[t] < m->interval_start[t + 1]) {
            m->backward[m->n_backward++] = t;
            m->n_roots++;
        }
    }
}

// What is there, stage by stage, while everything is kept.
static void step_kept(hth_step *m)
{
    m->kept[0] = (int64_t)m->resident_bytes;
    for (int t = 0; t < m->p->n_tensors; t++) {
        int producer = m->p->tensors[t].producer, n = m->use_start[t + 1] - m->use_start[t];
        int64_t bytes = (int64_t)m->bytes[t];
        m->first[t] = producer;
        m->last[t] = n > 0 ? m->use[m->use_start[t + 1] - 1] : producer;
        if (producer < 0) {
            m->first[t] = n > 0 ? 0 : -1;
        }
        if (m->p->tensors[t].cls == HTH_MEM_OUTPUT) {
            m->last[t] = m->n_stages - 1;
        }
        m->heir[t] = -1;
        if (m->arena[t] && bytes > 0 && m->first[t] >= 0) {
            m->kept[m->first[t]] += bytes;
            m->kept[m->last[t] + 1] -= bytes;
        }
    }
    for (int t = 0; t < m->p->n_tensors; t++) {
        int x = m->pair[t];
        if (x >= 0 && m->last[x] == m->first[t]) {
            m->heir[x] = t;
            m->kept[m->first[t]] -= (int64_t)m->bytes[t];
            m->kept[m->first[t] + 1] += (int64_t)m->bytes[t];
        }
    }
}

static void step_menus(hth_step *m)
{
    int at = 0;
    for (int s = 0; s < m->n_stages; s++) {
        m->menu_start[s] = m->menu_whole[s] = at;
        at += hth_plan_menu(&m->p->nodes[s], &m->menu[at]);
        m->menu_end[s] = at;
        m->fastest_us += m->menu[m->menu_start[s]].time_us;
    }
    m->menu_free = &m->menu[at];
    for (int s = 0; s < m->n_stages; s++) {
        m->menu_free[s] = m->menu[m->menu_start[s]];
        m->menu_free[s].workspace = 0;
    }
}

void hth_step_trim(hth_step *m, hth_trim how)
{
    int free = (int)(m->menu_free - m->menu); // they follow the menus
    for (int s = 0; s < m->n_stages; s++) {
        int end = s + 1 < m->n_stages ? m->menu_whole[s + 1] : free;
        m->menu_start[s] = how == HTH_TRIM_SMALLEST ? end - 1 : m->menu_whole[s];
        m->menu_end[s] = end;
        if (how == HTH_TRIM_FREE) {
            m->menu_start[s] = free + s;
            m->menu_end[s] = free + s + 1;
        }
    }
}

hth_err hth_step_init(hth_step *m, const hth_problem *p)
{
    *m = (hth_step){.p = p, .n_stages = p->n_nodes};
    hth_err err = hth_problem_check(p);
    if (err == HTH_OK) {
        err = step_arrays(m);
    }
    if (err != HTH_OK) {
        hth_step_fini(m);
        return err;
    }
    step_tensors(m);
    step_uses(m, m->interval_start);
    m->interval_start[0] = 0;
    for (int t = 0; t < p->n_tensors; t++) {
        step_intervals_of(m, t, m->use_start[t + 1] - m->use_start[t]);
        m->interval_start[t + 1] = m->n_intervals;
    }
    step_backward(m);
    step_kept(m);
    step_menus(m);
    return HTH_OK;
}
