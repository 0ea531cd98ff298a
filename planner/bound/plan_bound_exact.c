// SPDX-License-Identifier: Apache-2.0
// The certificate's last word. While the dual is climbed, the minimiser tries those stages for a
// recompute that are the cheapest as a rule; a bound is one only if it tried them all. In the end
// it does: for what is dead in an interval, rows of what having it costs in each stage, from the
// deepest of a chain up.
#include "planner/bound/plan_bound_impl.h"

#include "base/alloc.h"

#include <math.h>

// How many rows below `head` are in use at a time: one for each level of the chain.
static int exact_levels(const hth_bound *bound, int head)
{
    int most = 0;
    for (int i = head; i >= 0; i = bound->dead[i].next) {
        int n = 1 + exact_levels(bound, bound->dead[i].reads);
        most = n > most ? n : most;
    }
    return most;
}

// Numbers in the table of interval g: two for each level and stage, and a row for the sum.
static size_t exact_size(const hth_bound *bound, int g)
{
    const hth_interval *interval = &bound->m->interval[g];
    size_t levels = (size_t)exact_levels(bound, bound->dead_of[g]);
    return (2 * levels + 1) * (size_t)(interval->q - interval->p);
}

hth_err hth_bound_exact_table(hth_bound *bound)
{
    size_t most = 1;
    for (int g = 0; g < bound->m->n_intervals; g++) {
        size_t n = bound->dead_of[g] >= 0 ? exact_size(bound, g) : 0;
        most = n > most ? n : most;
    }
    bound->table = hth_alloc(most * sizeof *bound->table);
    return bound->table != NULL ? HTH_OK
                                : hth_no_memory("bounding a step of %d nodes", bound->m->n_stages);
}

// The stages of an interval up to one, and the rows of numbers that are free yet.
typedef struct exact_row {
    int first, n; // row[k]: of stage first + k
    double *row;
} exact_row;

// The cheapest of early[] from `come` on and before k; *at is the one of k - 1, when that began at
// *from; -1: none.
static double exact_before(const double *early, int come, int k, int *from, int *at)
{
    bool again = *at < come || *from > come;
    *from = come;
    if (again) {
        *at = -1;
        for (int i = come; i < k; i++) {
            *at = *at < 0 || early[i] < early[*at] ? i : *at;
        }
    } else if (k > come && early[k - 1] < early[*at]) {
        *at = k - 1;
    }
    return *at >= 0 ? early[*at] : INFINITY;
}

static void exact_list(const hth_bound *bound, int head, exact_row rows, double *sum);

// Adds to sum[], if it is not NULL, what having one dead tensor in each stage costs, and returns
// how it is had in the last one.
static hth_had exact_dead(const hth_bound *bound, const hth_dead *x, exact_row rows, double *sum)
{
    const hth_step *m = bound->m;
    double *reads = rows.row, *early = rows.row + rows.n;
    int u = x->tensor, w = m->p->tensors[u].producer, at = -1, from = 0;
    bool again = m->p->nodes[w].recomputable;
    double bytes = hth_bound_bytes(bound, u), mine = bytes * x->share;
    double us = bound->fast_us[w] * x->share / bound->n_made[w];
    hth_had best = {INFINITY, HTH_INTERVAL_KEEP, 0, 0, 0};
    for (int k = 0; k < rows.n; k++) {
        reads[k] = 0;
    }
    if (again) {
        exact_list(bound, x->reads, (exact_row){rows.first, rows.n, early + rows.n}, reads);
    }
    for (int k = 0; k < rows.n; k++) {
        int s = rows.first + k, come = hth_bound_come(bound, u, rows.first, s);
        double stays = mine * (bound->sum[s] - bound->sum[rows.first]);
        double now = again ? bound->share[s] * us + reads[k] : INFINITY;
        double before = stays + exact_before(early, come - rows.first, k, &from, &at);
        bool room = again && hth_bound_reruns(bound, w, s, bytes);
        early[k] = room ? now - stays : INFINITY;
        best = (hth_had){x->leave >= s ? stays : INFINITY, HTH_INTERVAL_KEEP, 0, 0, 0};
        if (before < best.us) {
            best = (hth_had){before, HTH_INTERVAL_RECOMPUTE, rows.first + at, 0, 0};
        }
        if (now < best.us && (room || hth_bound_reruns(bound, w, s, x->taken ? 0 : bytes))) {
            best = (hth_had){now, HTH_INTERVAL_RECOMPUTE, s, 0, 0};
        }
        if (best.us > 0) {
            hth_had move = hth_bound_moved(bound, x, come, s);
            best = move.us < best.us ? move : best;
        }
        if (sum != NULL) {
            sum[k] += best.us + (x->taken ? 0 : mine * bound->price[s]);
        }
    }
    return best;
}

// Adds to sum[] what having all of the list in each stage costs.
static void exact_list(const hth_bound *bound, int head, exact_row rows, double *sum)
{
    for (int i = head; i >= 0; i = bound->dead[i].next) {
        (void)exact_dead(bound, &bound->dead[i], rows, sum);
    }
}

hth_had hth_bound_exact_had(const hth_bound *bound, const hth_dead *dead, int s)
{
    return exact_dead(bound, dead, (exact_row){dead->since + 1, s - dead->since, bound->table},
                      NULL);
}

double hth_bound_exact(const hth_bound *bound, int g, int first, int *stage)
{
    const hth_interval *interval = &bound->m->interval[g];
    int v = bound->m->p->tensors[interval->tensor].producer, p = interval->p, q = interval->q;
    double bytes = hth_bound_bytes(bound, interval->tensor), best = INFINITY;
    double us = bound->fast_us[v] / bound->n_made[v], *sum = bound->table;
    exact_row rows = {p + 1, q - p, sum + (q - p)};
    for (int k = 0; k < rows.n; k++) {
        sum[k] = 0;
    }
    exact_list(bound, bound->dead_of[g], rows, sum);
    *stage = q;
    for (int s = first; s <= q; s++) {
        double cost = bytes * (bound->sum[q] - bound->sum[s]) + bound->share[s] * us;
        cost += sum[s - p - 1];
        if (cost < best && hth_bound_reruns(bound, v, s, s < q ? bytes : 0)) {
            best = cost;
            *stage = s;
        }
    }
    return best;
}
