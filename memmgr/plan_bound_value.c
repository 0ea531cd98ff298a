// SPDX-License-Identifier: Apache-2.0
// The dual's value at given prices and weights: the cheapest choice of every tensor and every node.
// The gaps of a tensor belong together, because only the first that leaves needs a copy out.
#include "memmgr/plan_bound_parts.h"

#include <math.h>
#include <string.h>

// The cheapest time to have left, of a copy out of something made at `made`: right behind its use
// p, or as soon as an arc ends, for the price of staying until then.
static double value_out(const hth_bound *b, int made, int p, int last, double us, double bytes,
                        int *away)
{
    double weight = b->weight[BOUND_BUSY], best;
    int k = 0;
    while (k < b->n_out && b->out[k].to <= p) {
        k++;
    }
    int behind = k;
    for (; k < b->n_out; k++) {
        weight += b->out[k].from <= made ? b->out[k].weight : 0;
    }
    *away = p + 1;
    best = weight * us;
    for (k = behind; k < b->n_out; k++) {
        int to = b->out[k].to;
        double stay = to < last ? bytes * (b->sum[to + 1] - b->sum[p + 1]) : INFINITY;
        if (b->out[k].from > made) {
            continue;
        }
        if (stay >= best) {
            break;
        }
        weight -= b->out[k].weight;
        if (stay + weight * us < best) {
            best = stay + weight * us;
            *away = to + 1;
        }
    }
    return best;
}

// The cheapest time to come back, of a copy in that is needed in stage q: in time, or before an arc
// begins, for the price of staying from then on.
static double value_in(const hth_bound *b, int first, int q, double us, double bytes, int *back)
{
    double weight = b->in_at[q] + b->weight[BOUND_BUSY], best = weight * us;
    *back = q;
    for (int k = 0; k < b->n_in && best > 0; k++) {
        int from = b->in[k].from;
        if (from > q || b->in[k].to < q) {
            continue;
        }
        double stay = from - 1 >= first ? bytes * (b->sum[q] - b->sum[from - 1]) : INFINITY;
        if (stay >= best) {
            break;
        }
        weight -= b->in[k].weight;
        if (stay + weight * us < best) {
            best = stay + weight * us;
            *back = from - 1;
        }
    }
    return best;
}

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

// How something dead is had again in stage s.
typedef struct value_had {
    double us;
    hth_gap_mode mode;
    int away, back;
} value_had;

static double value_dead(const hth_bound *b, int head, int s);

static value_had value_had_again(const hth_bound *b, const hth_dead *x, int s)
{
    const hth_step *m = b->m;
    int u = x->tensor, w = m->p->tensors[u].producer;
    double bytes = hth_bound_bytes(b, u);
    value_had best = {INFINITY, HTH_GAP_KEEP, 0, 0};
    if (x->leave >= s) {
        best.us = bytes * (b->sum[s] - b->sum[x->since + 1]) * x->share;
    }
    if (best.us <= 0) {
        return best;
    }
    if (m->p->nodes[w].recomputable) {
        double again = b->share[s] * b->fast_us[w] * x->share / b->n_made[w];
        again += again < best.us ? value_dead(b, x->reads, s) : 0;
        best = again < best.us ? (value_had){again, HTH_GAP_RECOMPUTE, 0, 0} : best;
    }
    if (m->h2d_us[u] < INFINITY && m->d2h_us[u] < INFINITY) {
        value_had move = {0, HTH_GAP_OFFLOAD, 0, 0};
        move.us = x->share * value_in(b, x->since + 1, s, m->h2d_us[u], bytes, &move.back);
        move.us += x->save * value_out(b, w, x->since, s - 1, m->d2h_us[u], bytes, &move.away);
        best = move.us < best.us ? move : best;
    }
    return best;
}

static double value_dead(const hth_bound *b, int head, int s)
{
    double sum = 0;
    for (int i = head; i >= 0; i = b->dead[i].next) {
        const hth_dead *x = &b->dead[i];
        sum += value_had_again(b, x, s).us;
        sum += x->taken ? 0 : hth_bound_bytes(b, x->tensor) * x->share * b->price[s];
    }
    return sum;
}

// The cheapest stage to compute gap g's tensor again: where it is needed, or before, in a stage
// that counts in fewer paths, for the price of staying from then on.
static double value_again(const hth_bound *b, int g, double limit, int *stage)
{
    const hth_gap *gap = &b->m->gap[g];
    int v = b->m->p->tensors[gap->tensor].producer, q = gap->q, k = b->n_dips;
    double us = b->fast_us[v] / b->n_made[v], bytes = hth_bound_bytes(b, gap->tensor);
    double best = b->share[q] * us;
    best += best < limit ? value_dead(b, b->dead_of[g], q) : 0;
    *stage = q;
    while (k > 0 && b->dip[k - 1] >= q) {
        k--;
    }
    for (; k > 0 && b->dip[k - 1] > gap->p + 1 && b->dip[k - 1] >= b->come[g]; k--) {
        int s = b->dip[k - 1];
        double stay = bytes * (b->sum[q] - b->sum[s]), cost = stay + b->share[s] * us;
        if (stay >= fmin(best, limit)) {
            break;
        }
        cost += cost < best ? value_dead(b, b->dead_of[g], s) : 0;
        if (cost < best) {
            best = cost;
            *stage = s;
        }
    }
    return best;
}

static double value_keep(const hth_bound *b, const hth_gap *g)
{
    double all = b->sum[b->m->n_stages];
    double price =
        g->cyclic ? b->sum[g->q] + all - b->sum[g->p + 1] : b->sum[g->q] - b->sum[g->p + 1];
    return price * hth_bound_bytes(b, g->tensor);
}

static hth_way value_way(const hth_bound *b, int g)
{
    const hth_step *m = b->m;
    const hth_gap *gap = &m->gap[g];
    int t = gap->tensor, stage;
    double bytes = hth_bound_bytes(b, t);
    hth_way x = {.move = INFINITY, .first = INFINITY, .away = gap->p + 1, .back = gap->q};
    if (!hth_bound_counts(m, gap)) {
        return x;
    }
    x.stay = b->leaves[g] ? INFINITY : value_keep(b, gap);
    if (x.stay <= 0) {
        return x;
    }
    if (gap->can_rerun) {
        double again = value_again(b, g, x.stay, &stage);
        if (again < x.stay) {
            x.stay = again;
            x.stage = stage;
            x.again = true;
        }
    }
    if (!gap->can_offload) {
        return x;
    }
    x.move = value_in(b, b->come[g], gap->q, m->h2d_us[t], bytes, &x.back);
    if (gap->cyclic) {
        double out = m->d2h_us[t];
        x.move += m->dirty[t] ? value_out(b, gap->p, gap->p, b->leave[g], out, bytes, &x.away) : 0;
    } else if (m->arena[t] && x.move < x.stay) {
        x.first = x.move + value_out(b, m->p->tensors[t].producer, gap->p, b->leave[g],
                                     m->d2h_us[t], bytes, &x.away);
    }
    return x;
}

// What moving gap g comes to.
static void value_take_move(hth_bound *b, int g, bool saved)
{
    const hth_step *m = b->m;
    const hth_gap *gap = &m->gap[g];
    int t = gap->tensor, made = gap->cyclic ? gap->p : m->p->tensors[t].producer;
    int away = saved ? b->way[g].away : gap->p + 1, back = b->way[g].back;
    double bytes = hth_bound_bytes(b, t);
    b->choice[g] = (hth_choice_of_gap){HTH_GAP_OFFLOAD, away, back, 0, saved};
    value_copies(b, m->h2d_us[t], back, gap->q, saved ? m->d2h_us[t] : 0, made, away);
    b->use[gap->p + 1] += bytes;
    b->use[away] -= bytes;
    b->use[back] += bytes;
    b->use[gap->q] -= bytes;
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
        value_had how = value_had_again(b, x, s);
        b->use[how.mode == HTH_GAP_KEEP ? x->since + 1 : s] += bytes;
        b->use[x->taken ? s : s + 1] -= bytes;
        if (how.mode == HTH_GAP_RECOMPUTE) {
            us += b->fast_us[w] * x->share / b->n_made[w] + value_take_dead(b, x->reads, s);
        } else if (how.mode == HTH_GAP_OFFLOAD) {
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

static void value_take_stay(hth_bound *b, int g)
{
    const hth_gap *gap = &b->m->gap[g];
    double bytes = hth_bound_bytes(b, gap->tensor);
    int v = b->m->p->tensors[gap->tensor].producer;
    const hth_way *x = &b->way[g];
    b->choice[g] = (hth_choice_of_gap){.mode = HTH_GAP_KEEP};
    if (!hth_bound_counts(b->m, gap)) {
        return;
    }
    if (!x->again) {
        hth_bound_between(b->m, gap, b->use, bytes);
        return;
    }
    b->choice[g] = (hth_choice_of_gap){.mode = HTH_GAP_RECOMPUTE, .stage = x->stage};
    b->us[x->stage] += b->fast_us[v] / b->n_made[v] + value_take_dead(b, b->dead_of[g], x->stage);
    b->use[x->stage] += bytes;
    b->use[gap->q] -= bytes;
}

// The cheapest way through all gaps of tensor t: nothing leaves, or gap `first` is the first that
// does. For what the far side has from the start, all are on their own.
static double value_tensor(hth_bound *b, int t)
{
    const hth_step *m = b->m;
    int begin = m->gap_start[t], n = m->gap_start[t + 1] - begin;
    int first = m->arena[t] ? n : -1;
    double stay = 0, rest = 0, best; // rest: of the gaps behind i if the far side has a copy
    hth_way *way = &b->way[begin];
    for (int i = 0; i < n; i++) {
        way[i] = value_way(b, begin + i);
        way[i].before = stay;
        stay += way[i].stay;
    }
    best = stay;
    for (int i = n - 1; i >= 0; i--) {
        if (way[i].before + way[i].first + rest < best) {
            best = way[i].before + way[i].first + rest;
            first = i;
        }
        rest += fmin(way[i].stay, way[i].move);
    }
    for (int i = 0; i < n; i++) {
        const hth_gap *gap = &m->gap[begin + i];
        if (i == first || (i > first && way[i].move < way[i].stay)) {
            value_take_move(b, begin + i, i == first || (gap->cyclic && m->dirty[t]));
        } else {
            value_take_stay(b, begin + i);
        }
    }
    return m->arena[t] ? best : rest;
}

// The cheapest algorithm of stage s that can ever fit it.
static double value_node(const hth_bound *b, int s, double *use, double *us)
{
    const hth_step *m = b->m;
    double best = INFINITY;
    for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
        double workspace = (double)m->menu[i].workspace / b->budget;
        double cost = b->share[s] * m->menu[i].time_us + b->price[s] * workspace;
        if (hth_bound_room(b, s, workspace) && cost < best) {
            best = cost;
            *use = workspace;
            *us = m->menu[i].time_us;
        }
    }
    return best;
}

double hth_bound_value(hth_bound *b)
{
    const hth_step *m = b->m;
    int n = m->n_stages;
    double value = 0, live = 0;
    hth_bound_arcs(b);
    memset(b->use, 0, ((size_t)n + 2) * sizeof *b->use);
    memset(b->us, 0, ((size_t)n + 2) * sizeof *b->us);
    memset(b->length, 0, sizeof b->length);
    b->sum[0] = 0;
    for (int s = 0; s < n; s++) {
        b->sum[s + 1] = b->sum[s] + b->price[s];
    }
    for (int t = 0; t < m->p->n_tensors; t++) {
        value += m->gap_start[t] < m->gap_start[t + 1] ? value_tensor(b, t) : 0;
    }
    for (int s = 0; s < n; s++) {
        double workspace = 0, us = 0;
        live += b->use[s];
        value += value_node(b, s, &workspace, &us) + b->price[s] * (b->fixed[s] - 1);
        b->us[s] += us;
        b->over[s] = live + workspace + b->fixed[s] - 1;
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
