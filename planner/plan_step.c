// SPDX-License-Identifier: Apache-2.0
// From a planning problem to the model that the search works on. See plan_step.h.
#include "planner/plan_step.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hth_step_fini(hth_step *step)
{
    void *all[] = {step->use_start,  step->use,      step->interval_start, step->interval,
                   step->menu_start, step->menu,     step->pair,           step->updated,
                   step->dirty,      step->bytes,    step->arena,          step->h2d_us,
                   step->d2h_us,     step->heir,     step->first,          step->last,
                   step->kept,       step->backward, step->menu_end,       step->menu_whole};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
    memset(step, 0, sizeof *step);
}

// The arrays that are one per tensor or stage.
static hth_err step_arrays(hth_step *step)
{
    size_t nt = (size_t)step->p->n_tensors + 1, ns = (size_t)step->p->n_nodes + 1, uses = 1,
           alts = 1;
    for (int i = 0; i < step->p->n_nodes; i++) {
        const hth_plan_node *n = &step->p->nodes[i];
        uses += (size_t)(n->n_inputs + n->n_outputs);
        alts += n->n_alternatives > 0 ? (size_t)n->n_alternatives : 1;
    }
    step->use_start = hth_calloc(nt + 1, sizeof(int));
    step->use = hth_calloc(uses, sizeof(int));
    step->interval_start = hth_calloc(nt, sizeof(int));
    step->interval = hth_calloc(uses + nt, sizeof *step->interval);
    step->menu_start = hth_calloc(ns, sizeof(int));
    step->menu_end = hth_calloc(ns, sizeof(int));
    step->menu_whole = hth_calloc(ns, sizeof(int));
    step->menu = hth_calloc(alts + ns, sizeof *step->menu);
    step->pair = hth_calloc(nt, sizeof(int));
    step->updated = hth_calloc(nt, sizeof(int));
    step->dirty = hth_calloc(nt, sizeof(bool));
    step->bytes = hth_calloc(nt, sizeof *step->bytes);
    step->arena = hth_calloc(nt, sizeof(bool));
    step->backward = hth_calloc(nt, sizeof(int));
    step->heir = hth_calloc(nt, sizeof(int));
    step->first = hth_calloc(nt, sizeof(int));
    step->last = hth_calloc(nt, sizeof(int));
    step->kept = hth_calloc(ns + 1, sizeof *step->kept);
    step->h2d_us = hth_calloc(nt, sizeof(double));
    step->d2h_us = hth_calloc(nt, sizeof(double));
    bool ok = step->use_start && step->use && step->interval_start && step->interval &&
              step->menu_start && step->menu_end && step->menu_whole && step->menu && step->pair &&
              step->updated && step->dirty && step->bytes && step->arena && step->backward &&
              step->heir && step->first && step->last && step->kept && step->h2d_us && step->d2h_us;
    return ok ? HTH_OK : hth_no_memory("planning a step of %d nodes", step->p->n_nodes);
}

static void step_tensors(hth_step *step)
{
    const hth_problem *p = step->p;
    bool out = p->d2h_bytes_per_s > 0, in = p->h2d_bytes_per_s > 0;
    for (int t = 0; t < p->n_tensors; t++) {
        const hth_plan_tensor *x = &p->tensors[t];
        hth_home home = hth_plan_home(x);
        step->arena[t] = home == HTH_HOME_ARENA;
        step->bytes[t] = home == HTH_HOME_CALLER ? 0 : hth_plan_round(x->bytes);
        step->h2d_us[t] =
            in ? p->latency_us + (double)x->bytes / p->h2d_bytes_per_s * 1e6 : INFINITY;
        step->d2h_us[t] =
            out ? p->latency_us + (double)x->bytes / p->d2h_bytes_per_s * 1e6 : INFINITY;
        step->pair[t] = -1;
        step->updated[t] = p->n_nodes;
    }
    for (int i = 0; i < p->n_nodes; i++) {
        for (int j = 0; j < p->nodes[i].n_inplace; j++) {
            int x = p->nodes[i].inplace[j][0], y = p->nodes[i].inplace[j][1];
            if (step->arena[x] && step->arena[y] && step->bytes[x] == step->bytes[y] &&
                p->tensors[x].producer >= 0 && p->tensors[x].cls != HTH_MEM_OUTPUT) {
                step->pair[y] = x;
            }
        }
    }
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensors[t].replaces > 0) {
            step->updated[p->tensors[t].replaces - 1] = p->tensors[t].producer;
            step->dirty[p->tensors[t].replaces - 1] = true;
        }
        step->resident_bytes +=
            hth_plan_home(&p->tensors[t]) == HTH_HOME_RESIDENT ? step->bytes[t] : 0;
    }
}

// A use is a stage; a node that reads a tensor twice uses it once. `seen`, per tensor, is scratch.
static void step_uses(hth_step *step, int *seen)
{
    const hth_problem *p = step->p;
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
                    step->use[step->use_start[t + 1]] = i;
                }
                step->use_start[t + 1 + (pass == 0)]++;
            }
        }
        for (int t = 0; pass == 0 && t < p->n_tensors; t++) {
            step->use_start[t + 2] += step->use_start[t + 1];
        }
    }
}

bool hth_step_may_rerun(const hth_step *step, int v, int s)
{
    const hth_plan_node *n = &step->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        int by = step->updated[n->inputs[j]];
        if (by <= s && by != v) {
            return false;
        }
    }
    return true;
}

static bool step_can_rerun(const hth_step *step, int t)
{
    int v = step->p->tensors[t].producer;
    return v >= 0 && step->p->nodes[v].recomputable;
}

static void step_add_interval(hth_step *step, int t, int p, int q, bool cyclic)
{
    bool link = step->h2d_us[t] < INFINITY && step->d2h_us[t] < INFINITY;
    step->interval[step->n_intervals++] =
        (hth_interval){t, p, q, cyclic, link, !cyclic && step_can_rerun(step, t)};
}

static void step_intervals_of(hth_step *step, int t, int n_uses)
{
    const int *u = &step->use[step->use_start[t]];
    int n = step->n_stages, last = n_uses - 1;
    if (n_uses == 0 || step->bytes[t] == 0) {
        return;
    }
    if (!step->arena[t]) { // resident: away from its last use to its first
        if (u[0] + n - u[last] >= 3) {
            for (int k = 0; k < last; k++) {
                if (u[k + 1] - u[k] >= 2) {
                    step_add_interval(step, t, u[k], u[k + 1], false);
                }
            }
            step_add_interval(step, t, u[last], u[0], true);
        }
        return;
    }
    for (int k = 0; k < last; k++) {
        if (u[k + 1] - u[k] >= 2) {
            step_add_interval(step, t, u[k], u[k + 1], false);
        }
    }
    if (step->p->tensors[t].cls == HTH_MEM_OUTPUT) {
        if (n - 1 - u[last] >= 2) { // it has to be there at the end
            step_add_interval(step, t, u[last], n - 1, false);
        }
    } else if (u[last] + 1 < n) {
        step_add_interval(step, t, u[last], n, false);
    }
}

// The tensors with intervals, backwards; those that are there before the step at the end.
static void step_backward(hth_step *step)
{
    const hth_problem *p = step->p;
    for (int v = step->n_stages - 1; v >= 0; v--) {
        for (int j = 0; j < p->nodes[v].n_outputs; j++) {
            int t = p->nodes[v].outputs[j];
            if (step->interval_start[t] < step->interval_start[t + 1]) {
                step->backward[step->n_backward++] = t;
            }
        }
    }
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensors[t].producer < 0 && step->interval_start[t] < step->interval_start[t + 1]) {
            step->backward[step->n_backward++] = t;
            step->n_roots++;
        }
    }
}

// What is there, stage by stage, while everything is kept.
static void step_kept(hth_step *step)
{
    step->kept[0] = (int64_t)step->resident_bytes;
    for (int t = 0; t < step->p->n_tensors; t++) {
        int producer = step->p->tensors[t].producer,
            n = step->use_start[t + 1] - step->use_start[t];
        int64_t bytes = (int64_t)step->bytes[t];
        step->first[t] = producer;
        step->last[t] = n > 0 ? step->use[step->use_start[t + 1] - 1] : producer;
        if (producer < 0) {
            step->first[t] = n > 0 ? 0 : -1;
        }
        if (step->p->tensors[t].cls == HTH_MEM_OUTPUT) {
            step->last[t] = step->n_stages - 1;
        }
        step->heir[t] = -1;
        if (step->arena[t] && bytes > 0 && step->first[t] >= 0) {
            step->kept[step->first[t]] += bytes;
            step->kept[step->last[t] + 1] -= bytes;
        }
    }
    for (int t = 0; t < step->p->n_tensors; t++) {
        int x = step->pair[t];
        if (x >= 0 && step->last[x] == step->first[t]) {
            step->heir[x] = t;
            step->kept[step->first[t]] -= (int64_t)step->bytes[t];
            step->kept[step->first[t] + 1] += (int64_t)step->bytes[t];
        }
    }
}

static void step_menus(hth_step *step)
{
    int at = 0;
    for (int s = 0; s < step->n_stages; s++) {
        step->menu_start[s] = step->menu_whole[s] = at;
        at += hth_plan_menu(&step->p->nodes[s], &step->menu[at]);
        step->menu_end[s] = at;
        step->fastest_us += step->menu[step->menu_start[s]].time_us;
    }
    step->menu_free = &step->menu[at];
    for (int s = 0; s < step->n_stages; s++) {
        step->menu_free[s] = step->menu[step->menu_start[s]];
        step->menu_free[s].workspace = 0;
    }
}

void hth_step_trim(hth_step *step, hth_trim how)
{
    int free = (int)(step->menu_free - step->menu); // they follow the menus
    for (int s = 0; s < step->n_stages; s++) {
        int end = s + 1 < step->n_stages ? step->menu_whole[s + 1] : free;
        step->menu_start[s] = how == HTH_TRIM_SMALLEST ? end - 1 : step->menu_whole[s];
        step->menu_end[s] = end;
        if (how == HTH_TRIM_FREE) {
            step->menu_start[s] = free + s;
            step->menu_end[s] = free + s + 1;
        }
    }
}

hth_err hth_step_init(hth_step *step, const hth_problem *problem)
{
    *step = (hth_step){.p = problem, .n_stages = problem->n_nodes};
    hth_err err = hth_problem_check(problem);
    if (err == HTH_OK) {
        err = step_arrays(step);
    }
    if (err != HTH_OK) {
        hth_step_fini(step);
        return err;
    }
    step_tensors(step);
    step_uses(step, step->interval_start);
    step->interval_start[0] = 0;
    for (int t = 0; t < problem->n_tensors; t++) {
        step_intervals_of(step, t, step->use_start[t + 1] - step->use_start[t]);
        step->interval_start[t + 1] = step->n_intervals;
    }
    step_backward(step);
    step_kept(step);
    step_menus(step);
    err = hth_step_floor(step);
    if (err != HTH_OK) {
        hth_step_fini(step);
    }
    return err;
}
