// SPDX-License-Identifier: Apache-2.0
// The dual's value at given prices and weights: the cheapest choice of every tensor and every node.
// The intervals of a tensor belong together, because only the first that leaves needs a copy out.
#include "planner/bound/plan_bound_impl.h"

#include <math.h>
#include <string.h>

// Adds a copy in that is away until `back` and needed in stage q, and a copy out of something made
// at `made` that is away from `away`, to the lengths of the paths.
static void value_copies(hth_bound *b, double in_us, int back, int q, double out_us, int made,
                         int away)
{
    b->length[BOUND_BUSY] += in_us + out_us;
    for (int k = 0; k < b->n_paths; k++) {
        for (int i = 0; i < b->path[k].n_arcs; i++) {
            const hth_arc *a = &b->path[k].arc[i];
            if (a->in) {
                b->length[k] += back >= a->from && q <= a->to ? in_us : 0;
            } else {
                b->length[k] += made >= a->from && away <= a->to ? out_us : 0;
            }
        }
    }
}

// What moving interval g comes to.
static void value_take_move(hth_bound *b, int g, const hth_way *x, bool saved)
{
    const hth_step *m = b->m;
    const hth_interval *interval = &m->interval[g];
    int t = interval->tensor, made = interval->cyclic ? interval->p : m->p->tensors[t].producer;
    int away = saved ? x->away : interval->p + 1, back = x->back;
    double bytes = hth_bound_bytes(b, t);
    b->choice[g] = (hth_choice_of_interval){HTH_INTERVAL_OFFLOAD, away, back, 0, saved};
    value_copies(b, m->h2d_us[t], back, interval->q, saved ? m->d2h_us[t] : 0, made, away);
    b->use[interval->p + 1] += bytes;
    b->use[away] -= bytes;
    b->use[back] += bytes;
    b->use[interval->q] -= bytes;
}

// .. and having all that is dead in stage s; returns the time of its recomputes.
static double value_take_dead(hth_bound *b, int head, int s)
{
    const hth_step *m = b->m;
    double us = 0;
    for (int i = head; i >= 0; i = b->dead[i].next) {
        const hth_dead *x = &b->dead[i];
        double bytes = hth_bound_bytes(b, x->tensor) * x->share, save = x->save / x->share;
        int u = x->tensor, w = m->p->tensors[u].producer;
        hth_had how = hth_bound_had(b, x, s);
        b->use[how.mode == HTH_INTERVAL_KEEP ? x->since + 1 : s] += bytes;
        b->use[x->taken ? s : s + 1] -= bytes;
        if (how.mode == HTH_INTERVAL_RECOMPUTE) {
            us += b->fast_us[w] * x->share / b->n_made[w] + value_take_dead(b, x->reads, s);
        } else if (how.mode == HTH_INTERVAL_OFFLOAD) {
            value_copies(b, x->share * m->h2d_us[u], how.back, s, x->save * m->d2h_us[u], w,
                         how.away);
            b->use[x->since + 1] += bytes * save;
            b->use[how.away] -= bytes * save;
            b->use[how.back] += bytes;
            b->use[s] -= bytes;
        }
    }
    return us;
}

static void value_take_residency(hth_bound *b, int g, const hth_way *x)
{
    const hth_interval *interval = &b->m->interval[g];
    double bytes = hth_bound_bytes(b, interval->tensor);
    int v = b->m->p->tensors[interval->tensor].producer;
    b->choice[g] = (hth_choice_of_interval){.mode = HTH_INTERVAL_KEEP};
    if (!hth_bound_counts(b->m, interval)) {
        return;
    }
    if (!x->again) {
        hth_bound_between(b->m, interval, b->use, bytes);
        return;
    }
    b->choice[g] = (hth_choice_of_interval){.mode = HTH_INTERVAL_RECOMPUTE, .stage = x->stage};
    b->us[x->stage] += b->fast_us[v] / b->n_made[v] + value_take_dead(b, b->dead_of[g], x->stage);
    b->use[x->stage] += bytes;
    b->use[interval->q] -= bytes;
}

// What tensor t costs: nothing leaves, or interval `first` is the first that does. For what the far
// side has from the start, all intervals are on their own. way[]: of its intervals.
static double value_tensor(const hth_bound *b, int t, bool apart, hth_way *way, int *first)
{
    const hth_step *m = b->m;
    int begin = m->interval_start[t], n = m->interval_start[t + 1] - begin;
    double residency = 0, rest = 0,
           best; // rest: of the intervals after i if the far side has a copy
    *first = m->arena[t] ? n : -1;
    for (int i = 0; i < n; i++) {
        way[i] = hth_bound_way(b, begin + i, apart);
        way[i].before = residency;
        residency += way[i].residency;
    }
    best = residency;
    for (int i = n - 1; i >= 0; i--) {
        if (way[i].before + way[i].first + rest < best) {
            best = way[i].before + way[i].first + rest;
            *first = i;
        }
        rest += fmin(way[i].residency, way[i].move);
    }
    return m->arena[t] ? best : rest;
}

static void value_take(hth_bound *b, int t, const hth_way *way, int first)
{
    const hth_step *m = b->m;
    int begin = m->interval_start[t], n = m->interval_start[t + 1] - begin;
    for (int i = 0; i < n; i++) {
        bool round = m->interval[begin + i].cyclic && m->dirty[t];
        if (i == first || (i > first && way[i].move < way[i].residency)) {
            value_take_move(b, begin + i, &way[i], i == first || round);
        } else {
            value_take_residency(b, begin + i, &way[i]);
        }
    }
}

// Tensors that are not tied to a stage.
static double value_tensors(hth_bound *b)
{
    const hth_step *m = b->m;
    double value = 0;
    for (int t = 0; t < m->p->n_tensors; t++) {
        int first;
        if (m->interval_start[t] < m->interval_start[t + 1] && b->apart_interval[t] < 0) {
            hth_way *way = &b->way[m->interval_start[t]];
            value += value_tensor(b, t, false, way, &first);
            value_take(b, t, way, first);
        }
    }
    return value;
}

// The cheapest algorithm of stage s that can ever fit it, together with the tensors that are tied
// to it: those that find no room besides its workspace are away in this stage.
static double value_node(hth_bound *b, int s, double *use, double *us)
{
    const hth_step *m = b->m;
    double best = INFINITY;
    for (int t = b->apart_head[s]; t >= 0; t = b->apart_next[t]) {
        int g = m->interval_start[t];
        b->apart_cost[t][0] = value_tensor(b, t, false, &b->way[g], &b->apart_first[t][0]);
        b->apart_cost[t][1] = value_tensor(b, t, true, &b->way_apart[g], &b->apart_first[t][1]);
    }
    for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
        double workspace = (double)m->menu[i].workspace / b->budget;
        double cost = b->share[s] * m->menu[i].time_us + b->price[s] * workspace;
        for (int t = b->apart_head[s]; t >= 0; t = b->apart_next[t]) {
            cost += b->apart_cost[t][!hth_bound_room(b, s, workspace + hth_bound_bytes(b, t))];
        }
        if (hth_bound_room(b, s, workspace) && cost < best) {
            best = cost;
            *use = workspace;
            *us = m->menu[i].time_us;
        }
    }
    for (int t = b->apart_head[s]; t >= 0 && best < INFINITY; t = b->apart_next[t]) {
        bool apart = !hth_bound_room(b, s, *use + hth_bound_bytes(b, t));
        const hth_way *way = apart ? b->way_apart : b->way;
        value_take(b, t, &way[m->interval_start[t]], b->apart_first[t][apart]);
    }
    return best;
}

double hth_bound_value(hth_bound *b)
{
    const hth_step *m = b->m;
    int n = m->n_stages;
    double value, live = 0;
    hth_bound_arcs(b);
    memset(b->use, 0, ((size_t)n + 2) * sizeof *b->use);
    memset(b->us, 0, ((size_t)n + 2) * sizeof *b->us);
    memset(b->length, 0, sizeof b->length);
    b->sum[0] = 0;
    for (int s = 0; s < n; s++) {
        b->sum[s + 1] = b->sum[s] + b->price[s];
    }
    value = value_tensors(b);
    for (int s = 0; s < n; s++) {
        double us = 0;
        b->over[s] = 0;
        value += value_node(b, s, &b->over[s], &us) + b->price[s] * (b->fixed[s] - 1);
        b->us[s] += us;
    }
    for (int s = 0; s < n; s++) { // now all bytes are known
        live += b->use[s];
        b->over[s] += live + b->fixed[s] - 1;
        b->us_sum[s + 1] = b->us_sum[s] + b->us[s];
    }
    b->length[BOUND_BUSY] += b->us_sum[n];
    for (int k = 0; k < b->n_paths; k++) {
        b->length[k] += b->us_sum[n];
        for (int i = 0; i < b->path[k].n_arcs; i++) {
            const hth_arc *a = &b->path[k].arc[i];
            int first = hth_arc_first(a);
            b->length[k] -= first < a->to ? b->us_sum[a->to] - b->us_sum[first] : 0;
        }
    }
    return value;
}
