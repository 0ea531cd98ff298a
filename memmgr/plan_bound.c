// SPDX-License-Identifier: Apache-2.0
// The certificate: a time that no plan of this step can beat under the budget.
//
// Lagrangian relaxation. A price per stage for memory takes the budget into the objective; what is
// left separates into one choice per node (its algorithm) and one per gap (keep and pay for the
// stages in between, move, compute again). Time is bounded from below by a mixture of valid bounds,
// whose weights (a point of the simplex) are part of the dual, too:
//   compute   all nodes, all recomputes, and what copies take from compute
//   in, out   all fetches; all copies out
//   windows   (p, s, q): what is absent at stage s and was made at p or later left between p and s,
//   what is
//             absent and needed by q came back between s and q; nodes up to p, s, and from q on
//             run outside of those copies
// The dual is concave and piecewise linear in prices and weights together; a projected subgradient
// with Polyak's step climbs it. Every point that it visits is a valid bound; the best is kept.
// Sources: Held and Karp 1971; Polyak 1969; projection on the simplex: Duchi et al. 2008.
#include "memmgr/plan_bound.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BOUND_STAGES  6 // at which windows are cut
#define BOUND_REACH   4 // windows to each side of each
#define BOUND_CUTS    (2 * BOUND_STAGES * BOUND_REACH)
#define BOUND_WEIGHTS (3 + BOUND_CUTS)
#define BOUND_STALE   25 // steps without progress before the step is halved

typedef struct bound_cut {
    int p, s, q; // nodes 0 .. p, s and q .. count
} bound_cut;

typedef struct bound {
    const hth_step *m;
    double budget;
    double *fixed;    // per stage: bytes that are there in every plan, / budget
    double *price;    // per stage: us per budget
    double *sum;      // prefix sums of price, [n_stages + 1]
    double *use;      // per stage: change of the kept bytes of the minimiser, / budget
    double *over;     // per stage: what the minimiser uses over the budget, / budget
    double *rerun_us; // per gap: its share of a recompute
    double *out_us;   // per gap: a copy out that only this gap can need
    double *share;    // per stage: weights of the bounds in which its node counts
    double *us_sum;   // prefix sums of the minimiser's times
    bound_cut cut[BOUND_CUTS];
    int n_cuts;
    double weight[BOUND_WEIGHTS], slope[BOUND_WEIGHTS];
} bound;

static bool gap_counts(const hth_step *m, const hth_gap *g)
{
    return g->cyclic || g->q < m->n_stages; // behind the last use nothing is needed
}

static void bound_between(const hth_step *m, const hth_gap *g, double *per_stage, double add)
{
    if (g->cyclic) { // [0, q) and (p, n)
        per_stage[0] += add;
        per_stage[g->q] -= add;
        per_stage[g->p + 1] += add;
        per_stage[m->n_stages] -= add;
    } else {
        per_stage[g->p + 1] += add;
        per_stage[g->q] -= add;
    }
}

// What is there whatever the modes: every tensor from its first use to its last, less its gaps; an
// in-place pair once.
static void bound_fixed(bound *b)
{
    const hth_step *m = b->m;
    double *d = b->use;
    memset(d, 0, ((size_t)m->n_stages + 2) * sizeof *d);
    for (int t = 0; t < m->p->n_tensors; t++) {
        int n = m->use_start[t + 1] - m->use_start[t];
        double bytes = (double)m->bytes[t] / b->budget;
        if (m->bytes[t] == 0 || (n == 0 && m->p->tensors[t].producer >= 0)) {
            continue;
        }
        bool whole = !m->arena[t];
        if (n == 0 && !whole) {
            continue;
        }
        int first = whole ? 0 : m->use[m->use_start[t]];
        int last = whole || m->p->tensors[t].cls == HTH_MEM_OUTPUT
                       ? m->n_stages - 1
                       : m->use[m->use_start[t + 1] - 1];
        first = m->p->tensors[t].producer < 0 ? 0 : first;
        d[first] += bytes;
        d[last + 1] -= bytes;
        if (m->pair[t] >= 0 && !whole) {
            d[first] -= bytes;
            d[first + 1] += bytes;
        }
        for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
            if (gap_counts(m, &m->gap[g])) {
                bound_between(m, &m->gap[g], d, -bytes);
            }
        }
    }
    double live = 0;
    for (int s = 0; s < m->n_stages; s++) {
        live += d[s];
        b->fixed[s] = live;
    }
}

static void bound_gaps(bound *b)
{
    const hth_step *m = b->m;
    for (int g = 0; g < m->n_gaps; g++) {
        const hth_gap *gap = &m->gap[g];
        int v = m->p->tensors[gap->tensor].producer, sharers = 0, gaps = 0;
        for (int h = m->gap_start[gap->tensor]; h < m->gap_start[gap->tensor + 1]; h++) {
            gaps += gap_counts(m, &m->gap[h]) || m->gap[h].can_offload;
        }
        b->out_us[g] =
            gaps == 1 && !gap->cyclic && m->arena[gap->tensor] ? m->d2h_us[gap->tensor] : 0;
        b->out_us[g] = gap->cyclic && m->dirty[gap->tensor] ? m->d2h_us[gap->tensor] : b->out_us[g];
        for (int j = 0; v >= 0 && j < m->p->nodes[v].n_outputs; j++) {
            sharers += m->arena[m->p->nodes[v].outputs[j]];
        }
        b->rerun_us[g] = v >= 0 && sharers > 0 ? hth_step_fastest(m, v)->time_us / sharers : 0;
    }
}

// The stage with the most that would be live if everything stayed, none of those in taken[]; -1:
// none.
static int bound_peak(const bound *b, const int *taken, int n)
{
    int best = -1, apart = b->m->n_stages / (4 * BOUND_STAGES) + 1;
    for (int s = 0; s < b->m->n_stages; s++) {
        bool near = false;
        for (int k = 0; k < n; k++) {
            near = near || abs(s - taken[k]) < apart;
        }
        best = !near && (best < 0 || b->sum[s] > b->sum[best]) ? s : best;
    }
    return best;
}

static void bound_cuts(bound *b)
{
    static const int reach[BOUND_REACH] = {2, 6, 16, 48};
    const hth_step *m = b->m;
    int taken[BOUND_STAGES], n = m->n_stages;
    double *d = b->use, live = 0;
    memset(d, 0, ((size_t)n + 2) * sizeof *d);
    for (int g = 0; g < m->n_gaps; g++) {
        if (gap_counts(m, &m->gap[g])) {
            bound_between(m, &m->gap[g], d, (double)m->bytes[m->gap[g].tensor] / b->budget);
        }
    }
    for (int s = 0; s < n; s++) {
        live += d[s];
        b->sum[s] = live + b->fixed[s];
    }
    for (int k = 0; k < BOUND_STAGES; k++) {
        int s = taken[k] = bound_peak(b, taken, k);
        for (int r = 0; s >= 0 && r < BOUND_REACH; r++) {
            int p = s - reach[r], q = s + reach[r];
            b->cut[b->n_cuts++] = (bound_cut){p > -1 ? p : -1, s, s + 1};
            b->cut[b->n_cuts++] = (bound_cut){s - 1, s, q < n ? q : n};
        }
        if (s < 0) {
            break;
        }
    }
}

// Whether the whole of gap g lies where the cut's nodes count: a recompute in it does, too.
static bool cut_counts(const bound_cut *c, const hth_gap *g)
{
    return !g->cyclic && (g->q <= c->p || g->p >= c->q);
}

static bool gap_spans(const hth_gap *g, int s)
{
    return g->cyclic ? s > g->p || s < g->q : g->p < s && s < g->q;
}

// The cheapest algorithm of stage s that can ever fit it, under the price; INFINITY: none can.
static double bound_node(bound *b, int s, double *use, double *us)
{
    const hth_step *m = b->m;
    double best = INFINITY;
    for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
        double ws = (double)m->menu[i].workspace / b->budget;
        double cost = b->share[s] * m->menu[i].time_us + b->price[s] * ws;
        if (b->fixed[s] + ws <= 1 + 1e-12 && cost < best) {
            best = cost;
            *use = ws;
            *us = m->menu[i].time_us;
        }
    }
    return best;
}

// What moving gap g adds to each of the mixed bounds; returns their mixture.
static double bound_move(const bound *b, int g, double *part)
{
    const hth_gap *gap = &b->m->gap[g];
    double in = b->m->h2d_us[gap->tensor], out = b->out_us[g], sum;
    part[0] = b->m->p->copy_interference * (in + out);
    part[1] = in;
    part[2] = out;
    int made = b->m->p->tensors[gap->tensor].producer;
    for (int k = 0; k < b->n_cuts; k++) {
        const bound_cut *c = &b->cut[k];
        bool spans =
            !gap->cyclic && gap_spans(gap, c->s); // a cyclic gap's copies lie on either side
        part[3 + k] = (spans && made >= c->p ? out : 0) + (spans && gap->q <= c->q ? in : 0);
    }
    sum = 0;
    for (int k = 0; k < 3 + b->n_cuts; k++) {
        sum += b->weight[k] * part[k];
    }
    return sum;
}

static double bound_keep(const bound *b, const hth_gap *g)
{
    double all = b->sum[b->m->n_stages];
    double price =
        g->cyclic ? b->sum[g->q] + all - b->sum[g->p + 1] : b->sum[g->q] - b->sum[g->p + 1];
    return price * (double)b->m->bytes[g->tensor] / b->budget;
}

static double bound_gap(bound *b, int g)
{
    const hth_gap *gap = &b->m->gap[g];
    double part[BOUND_WEIGHTS], keep = bound_keep(b, gap), move = INFINITY, again = INFINITY;
    double share = b->weight[0]; // of the bounds in which a recompute counts
    if (gap->can_offload) {
        move = bound_move(b, g, part);
    }
    if (gap->can_rerun) {
        for (int k = 0; k < b->n_cuts; k++) {
            share += cut_counts(&b->cut[k], gap) ? b->weight[3 + k] : 0;
        }
        again = share * b->rerun_us[g];
    }
    if (keep <= move && keep <= again) {
        bound_between(b->m, gap, b->use, (double)b->m->bytes[gap->tensor] / b->budget);
        return keep;
    }
    for (int k = 0; move <= again && k < 3 + b->n_cuts; k++) {
        b->slope[k] += part[k];
    }
    for (int k = 0; move > again && k < b->n_cuts; k++) {
        b->slope[3 + k] += cut_counts(&b->cut[k], gap) ? b->rerun_us[g] : 0;
    }
    b->slope[0] += move > again ? b->rerun_us[g] : 0;
    return fmin(move, again);
}

static void bound_shares(bound *b)
{
    int n = b->m->n_stages;
    double *d = b->use;
    memset(d, 0, ((size_t)n + 2) * sizeof *d);
    for (int k = 0; k < b->n_cuts; k++) {
        const bound_cut *c = &b->cut[k];
        double w = b->weight[3 + k];
        d[0] += w;
        d[c->p + 1] -= w;
        d[c->q] += w;
        if (c->p < c->s && c->s < c->q) {
            d[c->s] += w;
            d[c->s + 1] -= w;
        }
    }
    double sum = 0;
    for (int s = 0; s < n; s++) {
        sum += d[s];
        b->share[s] = b->weight[0] + sum;
    }
}

// The dual's value at the prices and weights at hand; use and slope become its supergradient.
static double bound_value(bound *b)
{
    const hth_step *m = b->m;
    double value = 0, us = 0;
    bound_shares(b);
    memset(b->use, 0, ((size_t)m->n_stages + 2) * sizeof *b->use);
    memset(b->slope, 0, sizeof b->slope);
    b->sum[0] = 0;
    for (int s = 0; s < m->n_stages; s++) {
        b->sum[s + 1] = b->sum[s] + b->price[s];
    }
    for (int g = 0; g < m->n_gaps; g++) {
        value += gap_counts(m, &m->gap[g]) ? bound_gap(b, g) : 0;
    }
    double live = 0;
    for (int s = 0; s < m->n_stages; s++) {
        double ws = 0;
        live += b->use[s];
        value += bound_node(b, s, &ws, &us) + b->price[s] * (b->fixed[s] - 1);
        b->slope[0] += us;
        b->us_sum[s + 1] = b->us_sum[s] + us;
        b->over[s] = live + ws + b->fixed[s] - 1;
    }
    for (int k = 0; k < b->n_cuts; k++) {
        const bound_cut *c = &b->cut[k];
        double all = b->us_sum[m->n_stages];
        b->slope[3 + k] += b->us_sum[c->p + 1] + all - b->us_sum[c->q];
        b->slope[3 + k] += c->p < c->s && c->s < c->q ? b->us_sum[c->s + 1] - b->us_sum[c->s] : 0;
    }
    return value;
}

// The nearest point of the simplex.
static void bound_project(double *w, int n)
{
    double sorted[BOUND_WEIGHTS], sum = 0, shift = 0;
    memcpy(sorted, w, (size_t)n * sizeof *w);
    for (int i = 1; i < n; i++) { // descending
        for (int j = i; j > 0 && sorted[j] > sorted[j - 1]; j--) {
            double x = sorted[j];
            sorted[j] = sorted[j - 1];
            sorted[j - 1] = x;
        }
    }
    for (int i = 0; i < n; i++) {
        sum += sorted[i];
        double at = (sum - 1) / (i + 1);
        shift = sorted[i] > at ? at : shift;
    }
    for (int i = 0; i < n; i++) {
        w[i] = fmax(w[i] - shift, 0);
    }
}

static double bound_climb(bound *b, double upper_us, int iterations)
{
    const hth_step *m = b->m;
    double best = 0, step = 1.5;
    int stale = 0, n = 3 + b->n_cuts;
    // Weights and prices have other units: a weight moves the bound by up to the step's time.
    double unit = upper_us > 0 ? upper_us : 1;
    for (int i = 0; i < iterations; i++) {
        double value = bound_value(b), norm = 0;
        if (!(value < INFINITY)) {
            return INFINITY;
        }
        stale = value > best + 1e-6 * unit ? 0 : stale + 1;
        best = fmax(best, value);
        if (stale == BOUND_STALE) {
            step /= 2;
            stale = 0;
        }
        for (int s = 0; s < m->n_stages; s++) {
            double g = b->price[s] > 0 || b->over[s] > 0 ? b->over[s] : 0;
            norm += g * g;
        }
        for (int k = 0; k < n; k++) {
            norm += b->slope[k] / unit * (b->slope[k] / unit);
        }
        double by = norm > 0 ? step * fmax(upper_us * 1.0001 - value, 1e-9 * unit) / norm : 0;
        for (int s = 0; s < m->n_stages; s++) {
            b->price[s] = fmax(0, b->price[s] + by * b->over[s]);
        }
        for (int k = 0; k < n; k++) {
            b->weight[k] += by * b->slope[k] / unit / unit;
        }
        bound_project(b->weight, n);
    }
    return best;
}

hth_err hth_step_bound(const hth_step *m, uint64_t budget, double upper_us, int iterations,
                       double *out)
{
    size_t ns = (size_t)m->n_stages + 2, ng = (size_t)m->n_gaps + 1;
    bound b = {.m = m,
               .budget = (double)budget + 1,
               .fixed = hth_calloc(ns, sizeof(double)),
               .over = hth_calloc(ns, sizeof(double)),
               .price = hth_calloc(ns, sizeof(double)),
               .sum = hth_calloc(ns, sizeof(double)),
               .use = hth_calloc(ns, sizeof(double)),
               .rerun_us = hth_calloc(ng, sizeof(double)),
               .out_us = hth_calloc(ng, sizeof(double)),
               .share = hth_calloc(ns, sizeof(double)),
               .us_sum = hth_calloc(ns, sizeof(double)),
               .weight = {1}};
    hth_err err = HTH_OK;
    if (!b.fixed || !b.over || !b.price || !b.sum || !b.use || !b.rerun_us || !b.out_us ||
        !b.share || !b.us_sum) {
        err = hth_fail(HTH_ENOMEM, "no memory to bound a step of %d nodes", m->n_stages);
    } else {
        bound_fixed(&b);
        bound_gaps(&b);
        bound_cuts(&b);
        *out = bound_climb(&b, upper_us, iterations);
    }
    hth_free(b.fixed);
    hth_free(b.over);
    hth_free(b.price);
    hth_free(b.sum);
    hth_free(b.use);
    hth_free(b.rerun_us);
    hth_free(b.out_us);
    hth_free(b.share);
    hth_free(b.us_sum);
    return err;
}
