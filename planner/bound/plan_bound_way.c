// SPDX-License-Identifier: Apache-2.0
// What can happen in an interval, and what it costs at given prices and weights: the cheapest
// stages to leave and to come back, to compute again, and to have again what that reads.
#include "planner/bound/plan_bound_impl.h"

#include <math.h>

// The cheapest time to have left, of a copy out of something made at `made`: right after its use
// p, or as soon as an arc ends, for the price of staying until then.
static double way_out(const hth_bound *bound, int made, int p, int last, double us, double bytes,
                      int *away)
{
    double weight = bound->weight[BOUND_BUSY], best;
    int k = 0;
    while (k < bound->n_out && bound->out[k].to <= p) {
        k++;
    }
    int behind = k;
    for (; k < bound->n_out; k++) {
        weight += bound->out[k].from <= made ? bound->out[k].weight : 0;
    }
    *away = p + 1;
    best = weight * us;
    for (k = behind; k < bound->n_out; k++) {
        int to = bound->out[k].to;
        double residency = to < last ? bytes * (bound->sum[to + 1] - bound->sum[p + 1]) : INFINITY;
        if (bound->out[k].from > made) {
            continue;
        }
        if (residency >= best) {
            break;
        }
        weight -= bound->out[k].weight;
        if (residency + weight * us < best) {
            best = residency + weight * us;
            *away = to + 1;
        }
    }
    return best;
}

// The cheapest time to come back, of a copy in that is needed in stage q: in time, or before an arc
// begins, for the price of staying from then on.
static double way_in(const hth_bound *bound, int first, int q, double us, double bytes, int *back)
{
    double weight = bound->in_at[q] + bound->weight[BOUND_BUSY], best = weight * us;
    *back = q;
    for (int k = 0; k < bound->n_in && best > 0; k++) {
        int from = bound->in[k].from;
        if (from > q || bound->in[k].to < q) {
            continue;
        }
        double residency =
            from - 1 >= first ? bytes * (bound->sum[q] - bound->sum[from - 1]) : INFINITY;
        if (residency >= best) {
            break;
        }
        weight -= bound->in[k].weight;
        if (residency + weight * us < best) {
            best = residency + weight * us;
            *back = from - 1;
        }
    }
    return best;
}

static double way_dead(const hth_bound *bound, int head, int s);

// A recompute: of node v, in a stage from `first` to the one that needs it, q.
typedef struct way_rerun {
    int v, first, q;
    int reads;        // what is dead of its inputs
    double us, bytes; // that it pays for: compute, and staying until q
} way_rerun;

// What it costs in stage s; more than `limit` is of no use.
static double way_rerun_in(const hth_bound *bound, const way_rerun *of, int s, double limit)
{
    double cost = of->bytes * (bound->sum[of->q] - bound->sum[s]) + bound->share[s] * of->us;
    return cost < limit ? cost + way_dead(bound, of->reads, s) : INFINITY;
}

// The cheapest stage for it: the last one with room, or one before that counts in fewer paths, for
// the price of staying from then on. Where something is dead that is kept, another stage may be
// cheaper yet: hth_bound_exact knows.
static double way_again(const hth_bound *bound, const way_rerun *of, double limit, int *stage)
{
    int k = bound->n_dips, s = hth_bound_rerun(bound, of->v, of->first, of->q, 0, of->bytes);
    if (s < of->first) {
        return INFINITY;
    }
    double best = way_rerun_in(bound, of, s, limit);
    *stage = s;
    while (k > 0 && bound->dip[k - 1] >= s) {
        k--;
    }
    for (; k > 0 && bound->dip[k - 1] >= of->first && best > 0; k--) {
        double most = fmin(best, limit);
        s = bound->dip[k - 1];
        if (of->bytes * (bound->sum[of->q] - bound->sum[s]) >= most) {
            break;
        }
        s = hth_bound_rerun(bound, of->v, of->first, s, of->bytes, of->bytes);
        double cost = s >= of->first ? way_rerun_in(bound, of, s, most) : INFINITY;
        if (cost < best) {
            best = cost;
            *stage = s;
        }
    }
    return best;
}

hth_had hth_bound_moved(const hth_bound *bound, const hth_dead *dead, int come, int s)
{
    const hth_step *m = bound->m;
    int u = dead->tensor, w = m->p->tensors[u].producer;
    double bytes = hth_bound_bytes(bound, u), in = m->h2d_us[u], out = m->d2h_us[u];
    hth_had move = {INFINITY, HTH_INTERVAL_OFFLOAD, 0, 0, 0};
    if (in < INFINITY && out < INFINITY) {
        move.us = dead->share * way_in(bound, come, s, in, bytes, &move.back);
        move.us += dead->save > 0
                       ? dead->save * way_out(bound, w, dead->since, s - 1, out, bytes, &move.away)
                       : 0;
    }
    return move;
}

hth_had hth_bound_had(const hth_bound *bound, const hth_dead *dead, int s)
{
    const hth_step *m = bound->m;
    int u = dead->tensor, w = m->p->tensors[u].producer;
    double bytes = hth_bound_bytes(bound, u);
    hth_had best = {INFINITY, HTH_INTERVAL_KEEP, 0, 0, 0};
    if (dead->leave >= s) {
        best.us = bytes * (bound->sum[s] - bound->sum[dead->since + 1]) * dead->share;
    }
    if (best.us <= 0) {
        return best;
    }
    int come = hth_bound_come(bound, u, dead->since + 1, s);
    if (m->p->nodes[w].recomputable) {
        double own = dead->taken ? 0 : bytes; // else another's counts
        hth_had again = {INFINITY, HTH_INTERVAL_RECOMPUTE, 0, 0, 0};
        again.stage = hth_bound_rerun(bound, w, come, s, own, bytes);
        if (again.stage >= come) {
            way_rerun of = {.q = s,
                            .reads = dead->reads,
                            .us = bound->fast_us[w] * dead->share / bound->n_made[w],
                            .bytes = bytes * dead->share};
            again.us = way_rerun_in(bound, &of, again.stage, best.us);
        }
        best = again.us < best.us ? again : best;
    }
    hth_had move = hth_bound_moved(bound, dead, come, s);
    return move.us < best.us ? move : best;
}

static double way_dead(const hth_bound *bound, int head, int s)
{
    double sum = 0;
    for (int i = head; i >= 0; i = bound->dead[i].next) {
        const hth_dead *x = &bound->dead[i];
        sum += hth_bound_had(bound, x, s).us;
        sum += x->taken ? 0 : hth_bound_bytes(bound, x->tensor) * x->share * bound->price[s];
    }
    return sum;
}

static double way_keep(const hth_bound *bound, const hth_interval *interval)
{
    double all = bound->sum[bound->m->n_stages];
    double price = interval->cyclic ? bound->sum[interval->q] + all - bound->sum[interval->p + 1]
                                    : bound->sum[interval->q] - bound->sum[interval->p + 1];
    return price * hth_bound_bytes(bound, interval->tensor);
}

hth_way hth_bound_way(const hth_bound *bound, int g, bool apart)
{
    const hth_step *m = bound->m;
    const hth_interval *interval = &m->interval[g];
    int t = interval->tensor, stage = interval->q;
    double bytes = hth_bound_bytes(bound, t);
    int at = apart && g == bound->apart_interval[t] ? bound->apart_at[t] : -1;
    int leave = at >= 0 && at < bound->leave[g] ? at : bound->leave[g];
    int come = at >= bound->come[g] ? at + 1 : bound->come[g];
    hth_way x = {.move = INFINITY, .first = INFINITY, .away = interval->p + 1, .back = interval->q};
    if (!hth_bound_counts(m, interval)) {
        return x;
    }
    x.residency = bound->leaves[g] || at >= 0 ? INFINITY : way_keep(bound, interval);
    if (x.residency <= 0) {
        return x;
    }
    if (interval->can_rerun) {
        int v = m->p->tensors[t].producer;
        way_rerun of = {.v = v,
                        .first = come > interval->p + 1 ? come : interval->p + 1,
                        .q = interval->q,
                        .reads = bound->dead_of[g],
                        .us = bound->fast_us[v] / bound->n_made[v],
                        .bytes = bytes};
        double again = bound->exact && of.reads >= 0 ? hth_bound_exact(bound, g, of.first, &stage)
                                                     : way_again(bound, &of, x.residency, &stage);
        if (again < x.residency) {
            x.residency = again;
            x.stage = stage;
            x.again = true;
        }
    }
    if (!interval->can_offload) {
        return x;
    }
    x.move = way_in(bound, come, interval->q, m->h2d_us[t], bytes, &x.back);
    if (interval->cyclic) {
        double out = m->d2h_us[t];
        x.move +=
            m->dirty[t] ? way_out(bound, interval->p, interval->p, leave, out, bytes, &x.away) : 0;
    } else if (m->arena[t] && x.move < x.residency) {
        x.first = x.move + way_out(bound, m->p->tensors[t].producer, interval->p, leave,
                                   m->d2h_us[t], bytes, &x.away);
    }
    return x;
}
