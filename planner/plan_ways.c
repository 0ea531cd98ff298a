// SPDX-License-Identifier: Apache-2.0
// Where bytes are missing, what could free them, and about what that costs. Part of the search over
// modes (plan_search.h); nothing here is exact but the bytes.
#include "planner/plan_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WAYS_CHAIN 20 // tensors that are looked at for the cost of a recompute
#define WAYS_TIGHT 16 // part of the budget: a stage with less room can use more

bool hth_search_allows(const hth_search *x, int g, hth_gap_mode mode)
{
    const hth_gap *gap = &x->m->gap[g];
    return mode == HTH_GAP_KEEP || (mode == HTH_GAP_OFFLOAD && x->offload && gap->can_offload) ||
           (mode >= HTH_GAP_RECOMPUTE && x->recompute && gap->can_rerun);
}

// Everything is kept. Behind its last use a tensor is kept for nobody but a recompute that reads
// it: then it is computed again, too, so that a chain is freed as a whole.
void hth_search_keep_all(const hth_search *x, uint8_t *mode)
{
    for (int g = 0; g < x->m->n_gaps; g++) {
        bool tail = x->m->gap[g].q == x->m->n_stages && !x->m->gap[g].cyclic;
        mode[g] =
            tail && hth_search_allows(x, g, HTH_GAP_RECOMPUTE) ? HTH_GAP_RECOMPUTE : HTH_GAP_KEEP;
    }
}

// Whether gap g, kept by the last decode, holds bytes in stage s that another mode would free.
static bool ways_covers(const hth_search *x, int g, int s)
{
    const hth_gap *gap = &x->m->gap[g];
    const hth_decoder *d = &x->d;
    if (d->mode[g] != HTH_GAP_KEEP || x->mode[g] != HTH_GAP_KEEP) {
        return false;
    }
    if (gap->cyclic) {
        return s > d->until[g] || s < gap->q;
    }
    int end = gap->q == x->m->n_stages ? d->until[g] + 1 : gap->q;
    return gap->p < s && s < end;
}

// Whether tensor t is there in stage s or will be brought by then for others: a recompute that
// reads it there costs no further one.
static bool ways_has(const hth_search *x, int t, int s)
{
    const hth_step *m = x->m;
    int g = m->gap_start[t + 1] - 1;
    bool tail =
        m->arena[t] && g >= m->gap_start[t] && m->gap[g].q == m->n_stages && m->gap[g].p < s;
    return !tail || !m->gap[g].can_rerun || x->d.until[g] >= s || x->mode[g] != HTH_GAP_RECOMPUTE;
}

// The time to run node v again in stage s, with what has to be run again for it.
static double ways_chain(const hth_search *x, int v, int s, int *left)
{
    const hth_plan_node *n = &x->m->p->nodes[v];
    double us = hth_step_fastest(x->m, v)->time_us;
    for (int j = 0; j < n->n_inputs && --*left > 0; j++) {
        int t = n->inputs[j], by = x->m->p->tensors[t].producer;
        if (by >= 0 && !ways_has(x, t, s)) {
            us += ways_chain(x, by, s, left);
        }
    }
    return us;
}

// What giving gap g another mode would cost about; `price` of the link's time.
double hth_search_cost(const hth_search *x, int g, hth_gap_mode mode, double price)
{
    const hth_step *m = x->m;
    int t = m->gap[g].tensor, left = WAYS_CHAIN;
    if (mode == HTH_GAP_OFFLOAD) {
        // Hidden or not, a copy takes that much from compute.
        double share = hth_later(price, m->p->copy_interference);
        return share * (m->h2d_us[t] + m->d2h_us[t]) + 1e-3;
    }
    int at = x->d.need[g] < m->gap[g].q ? x->d.need[g] : m->gap[g].q;
    return ways_chain(x, m->p->tensors[t].producer, at, &left) + 1e-3;
}

// Adds what later copies of x->lane make the compute wait to those that they follow without a
// pause. end_us[], late[]: per gap.
static void ways_queue(const hth_search *x, int n, const double *end_us, const double *copy_us,
                       double *late)
{
    const hth_step *m = x->m;
    for (int i = n - 1; i > 0; i--) {
        int g = x->lane[i], h = x->lane[i - 1];
        double start_us = end_us[g] - copy_us[m->gap[g].tensor];
        late[h] += start_us <= end_us[h] * (1 + 1e-9) ? late[g] : 0;
    }
}

// Which copies make the compute wait, on their own or because others queue behind them.
static void ways_late(hth_search *x, const hth_outcome *o)
{
    const hth_step *m = x->m;
    const hth_decoder *d = &x->d;
    int n = 0;
    double end_us = 0, *in = x->late, *out = x->span;
    memset(in, 0, (size_t)m->n_gaps * sizeof *in);
    memset(out, 0, (size_t)m->n_gaps * sizeof *out);
    if (o->stall_us <= 0) {
        return;
    }
    for (int s = 0; s < m->n_stages; end_us = d->end_us[s++]) {
        for (int g = d->backs.head[s]; g >= 0; g = d->backs.next[g]) {
            x->lane[n++] = g;
        }
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            in[g] = hth_later(d->fetched_us[g] - end_us, 0);
        }
        for (int g = d->aways.head[s]; g >= 0; g = d->aways.next[g]) {
            out[g] = hth_later(d->saved_us[g] - end_us, 0);
        }
    }
    ways_queue(x, n, d->fetched_us, m->h2d_us, in);
    n = 0;
    for (int s = 0; s < m->n_stages; s++) {
        for (int g = d->saves.head[s]; g >= 0; g = d->saves.next[g]) {
            int t = m->gap[g].tensor;
            out[g] += hth_later(d->saved_us[g] - end_us, 0);
            x->lane[n++] = g;
            for (int h = m->gap_start[t]; h < m->gap_start[t + 1]; h++) {
                double start_us = d->fetched_us[h] - m->h2d_us[t];
                bool waits = d->mode[h] == HTH_GAP_OFFLOAD && in[h] > 0 && !m->gap[h].cyclic;
                out[g] += waits && start_us <= d->saved_us[g] * (1 + 1e-9) ? in[h] : 0;
            }
        }
    }
    ways_queue(x, n, d->saved_us, m->d2h_us, out);
    for (int g = 0; g < m->n_gaps; g++) {
        int t = m->gap[g].tensor;
        in[g] = hth_sooner(in[g], m->h2d_us[t]) + hth_sooner(out[g], m->d2h_us[t]);
    }
}

void hth_search_note(hth_search *x, const hth_outcome *o)
{
    const hth_step *m = x->m;
    const hth_decoder *d = &x->d;
    for (int s = 0; s < m->n_stages; s++) {
        x->room[s] = (int64_t)d->budget - (int64_t)d->used[s];
        x->item[s] = d->item[s];
    }
    for (int g = 0; g < m->n_gaps; g++) {
        const hth_gap *gap = &m->gap[g];
        int need = d->need[g], q = gap->q < m->n_stages ? gap->q : d->until[g];
        x->end[g] = gap->q < m->n_stages && !gap->cyclic ? gap->q : d->until[g] + 1;
        x->modes[g] = need >= m->n_stages ? 0 : need + 1 < q ? HTH_N_GAP_MODES : HTH_GAP_AGAIN;
    }
    ways_late(x, o);
    for (int g = 0; g < m->n_gaps; g++) {
        const hth_gap *gap = &m->gap[g];
        int end = gap->q < m->n_stages ? gap->q : d->until[g];
        x->span[g] = gap->p < 0 || end <= gap->p ? d->start_us[end > 0 ? end : 0]
                                                 : d->start_us[end] - d->end_us[gap->p];
    }
    x->fits = o->excess == 0;
}

// What the algorithm of stage s gains in time with `freed` more bytes; negative: loses, INFINITY:
// not even the smallest has room.
static double ways_algorithm(const hth_search *x, int s, int64_t freed)
{
    const hth_step *m = x->m;
    int old = x->item[s], k = m->menu_start[s];
    int64_t room = x->room[s] + freed;
    if (freed > 0 ? old == k : (int64_t)m->menu[old].workspace <= room) {
        return 0;
    }
    while (k + 1 < m->menu_end[s] && (int64_t)m->menu[k].workspace > room) {
        k++;
    }
    return (int64_t)m->menu[k].workspace > room ? -INFINITY
                                                : m->menu[old].time_us - m->menu[k].time_us;
}

// What the algorithms of stages [from, to) gain with `freed` more bytes, and the tie-break.
static double ways_stages(const hth_search *x, int from, int to, int64_t freed, double us)
{
    int64_t tight = (int64_t)(x->d.budget / WAYS_TIGHT);
    int n = 0;
    for (int s = from; s < to && us > -INFINITY; s++) {
        us += ways_algorithm(x, s, freed);
        n += x->room[s] < tight;
    }
    return us + (double)freed * n * x->tie_us;
}

double hth_search_gain(const hth_search *x, int g, hth_gap_mode mode)
{
    const hth_step *m = x->m;
    const hth_gap *gap = &m->gap[g];
    int t = gap->tensor, v = m->p->tensors[t].producer;
    hth_gap_mode old = (hth_gap_mode)x->mode[g];
    double us = old >= HTH_GAP_RECOMPUTE ? hth_step_fastest(m, v)->time_us : 0;
    us -= mode >= HTH_GAP_RECOMPUTE ? hth_step_fastest(m, v)->time_us : 0;
    if (old == HTH_GAP_OFFLOAD) {
        us += (1 + x->stall_price) * x->late[g] +
              m->p->copy_interference * (m->h2d_us[t] + m->d2h_us[t]);
    } else if (mode == HTH_GAP_OFFLOAD && !gap->cyclic) {
        us -= (1 + x->stall_price) * hth_later(m->h2d_us[t] - x->span[g], 0);
    }
    if (old != HTH_GAP_KEEP && mode != HTH_GAP_KEEP) {
        return us;
    }
    int64_t freed = mode == HTH_GAP_KEEP ? -(int64_t)m->bytes[t] : (int64_t)m->bytes[t];
    if (gap->cyclic) {
        us = ways_stages(x, 0, gap->q, freed, us);
        return ways_stages(x, x->end[g], m->n_stages, freed, us);
    }
    return ways_stages(x, gap->p + 1, x->end[g], freed, us);
}

// The number of stages over the budget before each stage, as the last decode left them.
static void ways_count(hth_search *x, bool fastest)
{
    const hth_step *m = x->m;
    x->cover[0] = 0;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t ws =
            fastest ? hth_step_fastest(m, s)->workspace : hth_step_smallest(m, s)->workspace;
        x->cover[s + 1] = x->cover[s] + (x->d.used[s] + ws > x->d.budget);
    }
}

static double ways_relief(const hth_search *x, int g)
{
    const hth_gap *gap = &x->m->gap[g];
    int end = gap->q == x->m->n_stages ? x->d.until[g] + 1 : gap->q;
    int n = gap->cyclic ? x->cover[gap->q] + x->cover[x->m->n_stages] - x->cover[gap->p + 1]
                        : x->cover[end] - x->cover[gap->p + 1];
    return (double)x->m->bytes[gap->tensor] * n;
}

// The stage with the most bytes too many, counting the fastest algorithms or the smallest.
int hth_search_worst(const hth_search *x, bool fastest, double *over)
{
    const hth_step *m = x->m;
    int worst = -1;
    *over = 0;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t ws =
            fastest ? hth_step_fastest(m, s)->workspace : hth_step_smallest(m, s)->workspace;
        double o = (double)x->d.used[s] + (double)ws - (double)x->d.budget;
        if (o > *over) {
            *over = o;
            worst = s;
        }
    }
    return worst;
}

int hth_search_rank_cmp(const void *a, const void *b)
{
    const hth_rank *x = a, *y = b;
    if (x->value != y->value) {
        return x->value < y->value ? -1 : 1;
    }
    return x->gap - y->gap;
}

// What was recomputed for stage s or before and is still there: it could have come by the link, or
// been kept away longer. For stages where whole chains pile up.
static int ways_piles(hth_search *x, int s)
{
    const hth_decoder *d = &x->d;
    int n = 0;
    for (int g = 0; g < x->m->n_gaps; g++) {
        const hth_gap *gap = &x->m->gap[g];
        int end = gap->q == x->m->n_stages ? d->until[g] : gap->q;
        if (d->mode[g] == HTH_GAP_RECOMPUTE && d->need[g] < s && s < end) {
            x->rank[n++] = (hth_rank){-(double)x->m->bytes[gap->tensor], g * 4 + HTH_GAP_AGAIN};
        } else if (d->mode[g] == HTH_GAP_RECOMPUTE && d->need[g] <= s && s <= end &&
                   hth_search_allows(x, g, HTH_GAP_OFFLOAD)) {
            x->rank[n++] = (hth_rank){-(double)x->m->bytes[gap->tensor], g * 4 + HTH_GAP_OFFLOAD};
        }
    }
    return n;
}

// All ways to free bytes in stage s, cheapest first: one per gap, in x->rank (gap * 4 + mode).
int hth_search_ways(hth_search *x, int s, bool fastest, double price, double blur)
{
    int n = 0;
    ways_count(x, fastest);
    for (int g = 0; g < x->m->n_gaps; g++) {
        if (!ways_covers(x, g, s)) {
            continue;
        }
        double relief = ways_relief(x, g) + 1, least = INFINITY;
        for (int k = HTH_GAP_OFFLOAD; k <= HTH_GAP_RECOMPUTE; k++) {
            if (hth_search_allows(x, g, (hth_gap_mode)k) && (x->banned[g] & 1 << k) == 0) {
                double c = hth_search_cost(x, g, (hth_gap_mode)k, price) / relief;
                c *= blur > 0 ? exp(blur * ((double)hth_search_random(x, 1000) / 500.0 - 1)) : 1;
                if (c < least) {
                    least = c;
                    x->rank[n] = (hth_rank){c, g * 4 + k};
                }
            }
        }
        n += least < INFINITY;
    }
    n = n > 0 ? n : ways_piles(x, s);
    qsort(x->rank, (size_t)n, sizeof *x->rank, hth_search_rank_cmp);
    return n;
}
