// SPDX-License-Identifier: Apache-2.0
// The dual's value at given prices and weights: the cheapest choice of every tensor and every node.
// The intervals of a tensor belong together, because only the first that leaves needs a copy out.
#include "planner/bound/plan_bound_impl.h"

#include <math.h>
#include <string.h>

// Adds a copy in that is away until `back` and needed in stage q, and a copy out of something made
// at `made` that is away from `away`, to the lengths of the paths.
static void value_copies(hth_bound *bound, double in_us, int back, int q, double out_us, int made,
                         int away)
{
    bound->length[BOUND_BUSY] += in_us + out_us;
    for (int k = 0; k < bound->n_paths; k++) {
        for (int i = 0; i < bound->path[k].n_arcs; i++) {
            const hth_arc *a = &bound->path[k].arc[i];
            if (a->in) {
                bound->length[k] += back >= a->from && q <= a->to ? in_us : 0;
            } else {
                bound->length[k] += made >= a->from && away <= a->to ? out_us : 0;
            }
        }
    }
}

// What moving interval g comes to.
static void value_take_move(hth_bound *bound, int g, const hth_way *way, bool saved)
{
    const hth_step *m = bound->m;
    const hth_interval *interval = &m->interval[g];
    int t = interval->tensor, made = interval->cyclic ? interval->p : m->p->tensors[t].producer;
    int away = saved ? way->away : interval->p + 1, back = way->back;
    double bytes = hth_bound_bytes(bound, t);
    bound->choice[g] = (hth_choice_of_interval){HTH_INTERVAL_OFFLOAD, away, back, 0, saved};
    value_copies(bound, m->h2d_us[t], back, interval->q, saved ? m->d2h_us[t] : 0, made, away);
    bound->use[interval->p + 1] += bytes;
    bound->use[away] -= bytes;
    bound->use[back] += bytes;
    bound->use[interval->q] -= bytes;
}

// .. and having all that is dead in stage s.
static void value_take_dead(hth_bound *bound, int head, int s)
{
    const hth_step *m = bound->m;
    for (int i = head; i >= 0; i = bound->dead[i].next) {
        hth_dead *x = &bound->dead[i];
        double bytes = hth_bound_bytes(bound, x->tensor) * x->share, save = x->save / x->share;
        int u = x->tensor, w = m->p->tensors[u].producer;
        hth_had how = bound->exact ? hth_bound_exact_had(bound, x, s) : hth_bound_had(bound, x, s);
        int from = how.mode == HTH_INTERVAL_KEEP ? x->since + 1 : s;
        bound->use[how.mode == HTH_INTERVAL_RECOMPUTE ? how.stage : from] += bytes;
        bound->use[x->taken ? s : s + 1] -= bytes;
        if (how.mode == HTH_INTERVAL_RECOMPUTE) {
            bound->us[how.stage] += bound->fast_us[w] * x->share / bound->n_made[w];
            value_take_dead(bound, x->reads, how.stage);
        } else if (how.mode == HTH_INTERVAL_OFFLOAD) {
            x->moved = true;
            x->at = s;
            x->away = how.away;
            x->back = how.back;
            value_copies(bound, x->share * m->h2d_us[u], how.back, s, x->save * m->d2h_us[u], w,
                         how.away);
            bound->use[x->since + 1] += bytes * save;
            bound->use[how.away] -= bytes * save;
            bound->use[how.back] += bytes;
            bound->use[s] -= bytes;
        }
    }
}

static void value_take_residency(hth_bound *bound, int g, const hth_way *way)
{
    const hth_interval *interval = &bound->m->interval[g];
    double bytes = hth_bound_bytes(bound, interval->tensor);
    int v = bound->m->p->tensors[interval->tensor].producer;
    bound->choice[g] = (hth_choice_of_interval){.mode = HTH_INTERVAL_KEEP};
    if (!hth_bound_counts(bound->m, interval)) {
        return;
    }
    if (!way->again) {
        hth_bound_between(bound->m, interval, bound->use, bytes);
        return;
    }
    bound->choice[g] =
        (hth_choice_of_interval){.mode = HTH_INTERVAL_RECOMPUTE, .stage = way->stage};
    bound->us[way->stage] += bound->fast_us[v] / bound->n_made[v];
    value_take_dead(bound, bound->dead_of[g], way->stage);
    bound->use[way->stage] += bytes;
    bound->use[interval->q] -= bytes;
}

// What tensor t costs: nothing leaves, or interval `first` is the first that does. For what the far
// side has from the start, all intervals are on their own. way[]: of its intervals.
static double value_tensor(const hth_bound *bound, int t, bool apart, hth_way *way, int *first)
{
    const hth_step *m = bound->m;
    int begin = m->interval_start[t], n = m->interval_start[t + 1] - begin;
    double residency = 0, rest = 0,
           best; // rest: of the intervals after i if the far side has a copy
    *first = m->arena[t] ? n : -1;
    for (int i = 0; i < n; i++) {
        way[i] = hth_bound_way(bound, begin + i, apart);
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

static void value_take(hth_bound *bound, int t, const hth_way *way, int first)
{
    const hth_step *m = bound->m;
    int begin = m->interval_start[t], n = m->interval_start[t + 1] - begin;
    for (int i = 0; i < n; i++) {
        bool round = m->interval[begin + i].cyclic && m->dirty[t];
        if (i == first || (i > first && way[i].move < way[i].residency)) {
            value_take_move(bound, begin + i, &way[i], i == first || round);
        } else {
            value_take_residency(bound, begin + i, &way[i]);
        }
    }
}

// Tensors that are not tied to a stage.
static double value_tensors(hth_bound *bound)
{
    const hth_step *m = bound->m;
    double value = 0;
    for (int t = 0; t < m->p->n_tensors; t++) {
        int first;
        if (m->interval_start[t] < m->interval_start[t + 1] && bound->apart_interval[t] < 0) {
            hth_way *way = &bound->way[m->interval_start[t]];
            value += value_tensor(bound, t, false, way, &first);
            value_take(bound, t, way, first);
        }
    }
    return value;
}

// The cheapest algorithm of stage s that can ever fit it, together with the tensors that are tied
// to it: those that find no room besides its workspace are away in this stage.
static double value_node(hth_bound *bound, int s, double *use, double *us)
{
    const hth_step *m = bound->m;
    double best = INFINITY;
    for (int t = bound->apart_head[s]; t >= 0; t = bound->apart_next[t]) {
        int g = m->interval_start[t];
        bound->apart_cost[t][0] =
            value_tensor(bound, t, false, &bound->way[g], &bound->apart_first[t][0]);
        bound->apart_cost[t][1] =
            value_tensor(bound, t, true, &bound->way_apart[g], &bound->apart_first[t][1]);
    }
    for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
        double workspace = (double)m->menu[i].workspace / bound->budget;
        double cost = bound->share[s] * m->menu[i].time_us + bound->price[s] * workspace;
        for (int t = bound->apart_head[s]; t >= 0; t = bound->apart_next[t]) {
            cost += bound->apart_cost[t][!hth_bound_room(bound, s,
                                                         workspace + hth_bound_bytes(bound, t))];
        }
        if (hth_bound_room(bound, s, workspace) && cost < best) {
            best = cost;
            *use = workspace;
            *us = m->menu[i].time_us;
        }
    }
    for (int t = bound->apart_head[s]; t >= 0 && best < INFINITY; t = bound->apart_next[t]) {
        bool apart = !hth_bound_room(bound, s, *use + hth_bound_bytes(bound, t));
        const hth_way *way = apart ? bound->way_apart : bound->way;
        value_take(bound, t, &way[m->interval_start[t]], bound->apart_first[t][apart]);
    }
    return best;
}

double hth_bound_value(hth_bound *bound)
{
    const hth_step *m = bound->m;
    int n = m->n_stages;
    double value, live = 0;
    hth_bound_arcs(bound);
    memset(bound->use, 0, ((size_t)n + 2) * sizeof *bound->use);
    memset(bound->us, 0, ((size_t)n + 2) * sizeof *bound->us);
    memset(bound->length, 0, sizeof bound->length);
    for (int i = 0; i < bound->n_dead; i++) {
        bound->dead[i].moved = false;
    }
    bound->sum[0] = 0;
    for (int s = 0; s < n; s++) {
        bound->sum[s + 1] = bound->sum[s] + bound->price[s];
    }
    value = value_tensors(bound);
    for (int s = 0; s < n; s++) {
        double us = 0;
        bound->over[s] = 0;
        value +=
            value_node(bound, s, &bound->over[s], &us) + bound->price[s] * (bound->fixed[s] - 1);
        bound->us[s] += us;
    }
    for (int s = 0; s < n; s++) { // now all bytes are known
        live += bound->use[s];
        bound->over[s] += live + bound->fixed[s] - 1;
        bound->us_sum[s + 1] = bound->us_sum[s] + bound->us[s];
    }
    bound->length[BOUND_BUSY] += bound->us_sum[n];
    for (int k = 0; k < bound->n_paths; k++) {
        bound->length[k] += bound->us_sum[n];
        for (int i = 0; i < bound->path[k].n_arcs; i++) {
            const hth_arc *a = &bound->path[k].arc[i];
            int first = hth_arc_first(a);
            bound->length[k] -= first < a->to ? bound->us_sum[a->to] - bound->us_sum[first] : 0;
        }
    }
    return value;
}
