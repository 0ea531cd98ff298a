// SPDX-License-Identifier: Apache-2.0
// What can happen in an interval, and what it costs at given prices and weights: the cheapest
// stages to leave and to come back, to compute again, and to have again what that reads.
#include "planner/bound/plan_bound_impl.h"

#include <math.h>

// The cheapest time to have left, of a copy out of something made at `made`: right after its use
// p, or as soon as an arc ends, for the price of staying until then.
static double way_out(const hth_bound *b, int made, int p, int last, double us, double bytes,
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
        double residency = to < last ? bytes * (b->sum[to + 1] - b->sum[p + 1]) : INFINITY;
        if (b->out[k].from > made) {
            continue;
        }
        if (residency >= best) {
            break;
        }
        weight -= b->out[k].weight;
        if (residency + weight * us < best) {
            best = residency + weight * us;
            *away = to + 1;
        }
    }
    return best;
}

// The cheapest time to come back, of a copy in that is needed in stage q: in time, or before an arc
// begins, for the price of staying from then on.
static double way_in(const hth_bound *b, int first, int q, double us, double bytes, int *back)
{
    double weight = b->in_at[q] + b->weight[BOUND_BUSY], best = weight * us;
    *back = q;
    for (int k = 0; k < b->n_in && best > 0; k++) {
        int from = b->in[k].from;
        if (from > q || b->in[k].to < q) {
            continue;
        }
        double residency = from - 1 >= first ? bytes * (b->sum[q] - b->sum[from - 1]) : INFINITY;
        if (residency >= best) {
            break;
        }
        weight -= b->in[k].weight;
        if (residency + weight * us < best) {
            best = residency + weight * us;
            *back = from - 1;
        }
    }
    return best;
}

static double way_dead(const hth_bound *b, int head, int s);

hth_had hth_bound_had(const hth_bound *b, const hth_dead *x, int s)
{
    const hth_step *m = b->m;
    int u = x->tensor, w = m->p->tensors[u].producer;
    double bytes = hth_bound_bytes(b, u);
    hth_had best = {INFINITY, HTH_INTERVAL_KEEP, 0, 0};
    if (x->leave >= s) {
        best.us = bytes * (b->sum[s] - b->sum[x->since + 1]) * x->share;
    }
    if (best.us <= 0) {
        return best;
    }
    if (m->p->nodes[w].recomputable) {
        double again = b->share[s] * b->fast_us[w] * x->share / b->n_made[w];
        again += again < best.us ? way_dead(b, x->reads, s) : 0;
        best = again < best.us ? (hth_had){again, HTH_INTERVAL_RECOMPUTE, 0, 0} : best;
    }
    if (m->h2d_us[u] < INFINITY && m->d2h_us[u] < INFINITY) {
        hth_had move = {0, HTH_INTERVAL_OFFLOAD, 0, 0};
        move.us = x->share * way_in(b, x->since + 1, s, m->h2d_us[u], bytes, &move.back);
        move.us += x->save * way_out(b, w, x->since, s - 1, m->d2h_us[u], bytes, &move.away);
        best = move.us < best.us ? move : best;
    }
    return best;
}

static double way_dead(const hth_bound *b, int head, int s)
{
    double sum = 0;
    for (int i = head; i >= 0; i = b->dead[i].next) {
        const hth_dead *x = &b->dead[i];
        sum += hth_bound_had(b, x, s).us;
        sum += x->taken ? 0 : hth_bound_bytes(b, x->tensor) * x->share * b->price[s];
    }
    return sum;
}

// The cheapest stage to compute interval g's tensor again: where it is needed, or before, in a
// stage that counts in fewer paths, for the price of staying from then on.
static double way_again(const hth_bound *b, int g, int come, double limit, int *stage)
{
    const hth_interval *interval = &b->m->interval[g];
    int v = b->m->p->tensors[interval->tensor].producer, q = interval->q, k = b->n_dips;
    double us = b->fast_us[v] / b->n_made[v], bytes = hth_bound_bytes(b, interval->tensor);
    double best = b->share[q] * us;
    best += best < limit ? way_dead(b, b->dead_of[g], q) : 0;
    *stage = q;
    while (k > 0 && b->dip[k - 1] >= q) {
        k--;
    }
    for (; k > 0 && b->dip[k - 1] > interval->p + 1 && b->dip[k - 1] >= come; k--) {
        int s = b->dip[k - 1];
        double residency = bytes * (b->sum[q] - b->sum[s]), cost = residency + b->share[s] * us;
        if (residency >= fmin(best, limit)) {
            break;
        }
        cost += cost < best ? way_dead(b, b->dead_of[g], s) : 0;
        if (cost < best) {
            best = cost;
            *stage = s;
        }
    }
    return best;
}

static double way_keep(const hth_bound *b, const hth_interval *g)
{
    double all = b->sum[b->m->n_stages];
    double price =
        g->cyclic ? b->sum[g->q] + all - b->sum[g->p + 1] : b->sum[g->q] - b->sum[g->p + 1];
    return price * hth_bound_bytes(b, g->tensor);
}

hth_way hth_bound_way(const hth_bound *b, int g, bool apart)
{
    const hth_step *m = b->m;
    const hth_interval *interval = &m->interval[g];
    int t = interval->tensor, stage;
    double bytes = hth_bound_bytes(b, t);
    int at = apart && g == b->apart_interval[t] ? b->apart_at[t] : -1;
    int leave = at >= 0 && at < b->leave[g] ? at : b->leave[g];
    int come = at >= b->come[g] ? at + 1 : b->come[g];
    hth_way x = {.move = INFINITY, .first = INFINITY, .away = interval->p + 1, .back = interval->q};
    if (!hth_bound_counts(m, interval)) {
        return x;
    }
    x.residency = b->leaves[g] || at >= 0 ? INFINITY : way_keep(b, interval);
    if (x.residency <= 0) {
        return x;
    }
    if (interval->can_rerun) {
        double again = way_again(b, g, come, x.residency, &stage);
        if (again < x.residency) {
            x.residency = again;
            x.stage = stage;
            x.again = true;
        }
    }
    if (!interval->can_offload) {
        return x;
    }
    x.move = way_in(b, come, interval->q, m->h2d_us[t], bytes, &x.back);
    if (interval->cyclic) {
        double out = m->d2h_us[t];
        x.move +=
            m->dirty[t] ? way_out(b, interval->p, interval->p, leave, out, bytes, &x.away) : 0;
    } else if (m->arena[t] && x.move < x.residency) {
        x.first = x.move + way_out(b, m->p->tensors[t].producer, interval->p, leave, m->d2h_us[t],
                                   bytes, &x.away);
    }
    return x;
}
