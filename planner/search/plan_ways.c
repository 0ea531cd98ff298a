// SPDX-License-Identifier: Apache-2.0
// Where bytes are missing, what could free them, and about what that costs. Part of the search over
// modes (plan_search.h); nothing here is exact but the bytes.
#include "planner/search/plan_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOVES_CHAIN 20 // tensors that are looked at for the cost of a recompute
#define MOVES_TIGHT 16 // part of the budget: a stage with less room can use more

bool hth_search_allows(const hth_search *search, int g, hth_interval_mode mode)
{
    const hth_interval *interval = &search->m->interval[g];
    return mode == HTH_INTERVAL_KEEP ||
           (mode == HTH_INTERVAL_OFFLOAD && search->offload && interval->can_offload) ||
           (mode >= HTH_INTERVAL_RECOMPUTE && search->recompute && interval->can_rerun);
}

// Everything is kept. Behind its last use a tensor is kept for nobody but a recompute that reads
// it: then it is computed again, too, so that a chain is freed as a whole.
void hth_search_keep_all(const hth_search *search, uint8_t *mode)
{
    for (int g = 0; g < search->m->n_intervals; g++) {
        bool tail =
            search->m->interval[g].q == search->m->n_stages && !search->m->interval[g].cyclic;
        mode[g] = tail && hth_search_allows(search, g, HTH_INTERVAL_RECOMPUTE)
                      ? HTH_INTERVAL_RECOMPUTE
                      : HTH_INTERVAL_KEEP;
    }
}

// Whether interval g, kept by the last decode, holds bytes in stage s that another mode would free.
static bool moves_covers(const hth_search *search, int g, int s)
{
    const hth_interval *interval = &search->m->interval[g];
    const hth_decoder *d = &search->d;
    if (d->mode[g] != HTH_INTERVAL_KEEP || search->mode[g] != HTH_INTERVAL_KEEP) {
        return false;
    }
    if (interval->cyclic) {
        return s > d->until[g] || s < interval->q;
    }
    int end = interval->q == search->m->n_stages ? d->until[g] + 1 : interval->q;
    return interval->p < s && s < end;
}

// Whether tensor t is there in stage s or will be brought by then for others: a recompute that
// reads it there costs no further one.
static bool moves_has(const hth_search *search, int t, int s)
{
    const hth_step *m = search->m;
    int g = m->interval_start[t + 1] - 1;
    bool tail = m->arena[t] && g >= m->interval_start[t] && m->interval[g].q == m->n_stages &&
                m->interval[g].p < s;
    return !tail || !m->interval[g].can_rerun || search->d.until[g] >= s ||
           search->mode[g] != HTH_INTERVAL_RECOMPUTE;
}

// The time to run node v again in stage s, with what has to be run again for it.
static double moves_chain(const hth_search *search, int v, int s, int *left)
{
    const hth_plan_node *n = &search->m->p->nodes[v];
    double us = hth_step_fastest(search->m, v)->time_us;
    for (int j = 0; j < n->n_inputs && --*left > 0; j++) {
        int t = n->inputs[j], by = search->m->p->tensors[t].producer;
        if (by >= 0 && !moves_has(search, t, s)) {
            us += moves_chain(search, by, s, left);
        }
    }
    return us;
}

// What giving interval g another mode would cost about; `price` of the link's time.
double hth_search_cost(const hth_search *search, int g, hth_interval_mode mode, double price)
{
    const hth_step *m = search->m;
    int t = m->interval[g].tensor, left = MOVES_CHAIN;
    if (mode == HTH_INTERVAL_OFFLOAD) {
        // Hidden or not, a copy takes that much from compute.
        double share = hth_later(price, m->p->copy_interference);
        return share * (m->h2d_us[t] + m->d2h_us[t]) + 2 * m->p->copy_us + 1e-3;
    }
    int at = search->d.need[g] < m->interval[g].q ? search->d.need[g] : m->interval[g].q;
    return moves_chain(search, m->p->tensors[t].producer, at, &left) + 1e-3;
}

// Adds what later copies of search->lane make the compute wait to those that they follow without a
// pause. end_us[], late[]: per interval.
static void moves_queue(const hth_search *search, int n, const double *end_us,
                        const double *copy_us, double *late)
{
    const hth_step *m = search->m;
    for (int i = n - 1; i > 0; i--) {
        int g = search->lane[i], h = search->lane[i - 1];
        double start_us = end_us[g] - copy_us[m->interval[g].tensor];
        late[h] += start_us <= end_us[h] * (1 + 1e-9) ? late[g] : 0;
    }
}

// Which copies make the compute wait, on their own or because others queue after them.
static void moves_late(hth_search *search, const hth_outcome *outcome)
{
    const hth_step *m = search->m;
    const hth_decoder *d = &search->d;
    int n = 0;
    double end_us = 0;
    double *in = search->late, *out = search->span;
    memset(in, 0, (size_t)m->n_intervals * sizeof *in);
    memset(out, 0, (size_t)m->n_intervals * sizeof *out);
    if (outcome->stall_us <= 0) {
        return;
    }
    for (int s = 0; s < m->n_stages; end_us = d->end_us[s++]) {
        for (int g = d->backs.head[s]; g >= 0; g = d->backs.next[g]) {
            search->lane[n++] = g;
        }
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            in[g] = hth_later(d->fetched_us[g] - end_us, 0);
        }
        for (int g = d->aways.head[s]; g >= 0; g = d->aways.next[g]) {
            out[g] = hth_later(d->saved_us[g] - end_us, 0);
        }
    }
    moves_queue(search, n, d->fetched_us, m->h2d_us, in);
    n = 0;
    for (int s = 0; s < m->n_stages; s++) {
        for (int g = d->saves.head[s]; g >= 0; g = d->saves.next[g]) {
            int t = m->interval[g].tensor;
            out[g] += hth_later(d->saved_us[g] - end_us, 0);
            search->lane[n++] = g;
            for (int h = m->interval_start[t]; h < m->interval_start[t + 1]; h++) {
                double start_us = d->fetched_us[h] - m->h2d_us[t];
                bool waits =
                    d->mode[h] == HTH_INTERVAL_OFFLOAD && in[h] > 0 && !m->interval[h].cyclic;
                out[g] += waits && start_us <= d->saved_us[g] * (1 + 1e-9) ? in[h] : 0;
            }
        }
    }
    moves_queue(search, n, d->saved_us, m->d2h_us, out);
    for (int g = 0; g < m->n_intervals; g++) {
        int t = m->interval[g].tensor;
        in[g] = hth_sooner(in[g], m->h2d_us[t]) + hth_sooner(out[g], m->d2h_us[t]);
    }
}

void hth_search_note(hth_search *search, const hth_outcome *outcome)
{
    const hth_step *m = search->m;
    const hth_decoder *d = &search->d;
    hth_plan_work_add(HTH_WORK_NOTE, m->n_stages + m->n_intervals);
    for (int s = 0; s < m->n_stages; s++) {
        search->room[s] = (int64_t)d->budget - (int64_t)d->used[s];
        search->item[s] = d->item[s];
    }
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        int need = d->need[g], q = interval->q < m->n_stages ? interval->q : d->until[g];
        search->end[g] =
            interval->q < m->n_stages && !interval->cyclic ? interval->q : d->until[g] + 1;
        search->modes[g] = need + 1 < q ? HTH_N_INTERVAL_MODES : HTH_INTERVAL_REMATERIALIZE;
        if (need >= m->n_stages) {
            search->modes[g] = 0;
        }
    }
    moves_late(search, outcome);
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        int end = interval->q < m->n_stages ? interval->q : d->until[g];
        search->span[g] = d->start_us[end > 0 ? end : 0];
        if (interval->p >= 0 && end > interval->p) {
            search->span[g] -= d->end_us[interval->p];
        }
    }
    search->fits = outcome->excess == 0;
    search->stalled = outcome->stall_us > HTH_SEARCH_STALLS * outcome->time_us;
}

// What the algorithm of stage s gains in time with `freed` more bytes; negative: loses, INFINITY:
// not even the smallest has room.
static double moves_algorithm(const hth_search *search, int s, int64_t freed)
{
    const hth_step *m = search->m;
    int old = search->item[s], k = m->menu_start[s];
    int64_t room = search->room[s] + freed;
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
static double moves_stages(const hth_search *search, int from, int to, int64_t freed, double us)
{
    int64_t tight = (int64_t)(search->d.budget / MOVES_TIGHT);
    int n = 0;
    hth_plan_work_add(HTH_WORK_GAIN, to > from ? to - from : 0);
    for (int s = from; s < to && us > -INFINITY; s++) {
        us += moves_algorithm(search, s, freed);
        n += search->room[s] < tight;
    }
    return us + (double)freed * n * search->tie_us;
}

double hth_search_gain(const hth_search *search, int g, hth_interval_mode mode)
{
    const hth_step *m = search->m;
    const hth_interval *interval = &m->interval[g];
    int t = interval->tensor, v = m->p->tensors[t].producer;
    hth_interval_mode old = (hth_interval_mode)search->mode[g];
    double us = old >= HTH_INTERVAL_RECOMPUTE ? hth_step_fastest(m, v)->time_us : 0;
    us -= mode >= HTH_INTERVAL_RECOMPUTE ? hth_step_fastest(m, v)->time_us : 0;
    if (old == HTH_INTERVAL_OFFLOAD) {
        us += (1 + search->stall_price) * search->late[g] +
              m->p->copy_interference * (m->h2d_us[t] + m->d2h_us[t]) + 2 * m->p->copy_us;
    } else if (mode == HTH_INTERVAL_OFFLOAD) {
        us -= 2 * m->p->copy_us;
        us -= interval->cyclic
                  ? 0
                  : (1 + search->stall_price) * hth_later(m->h2d_us[t] - search->span[g], 0);
    }
    if (old != HTH_INTERVAL_KEEP && mode != HTH_INTERVAL_KEEP) {
        return us;
    }
    int64_t freed = mode == HTH_INTERVAL_KEEP ? -(int64_t)m->bytes[t] : (int64_t)m->bytes[t];
    if (interval->cyclic) {
        us = moves_stages(search, 0, interval->q, freed, us);
        return moves_stages(search, search->end[g], m->n_stages, freed, us);
    }
    return moves_stages(search, interval->p + 1, search->end[g], freed, us);
}

// The number of stages over the budget before each stage, as the last decode left them.
static void moves_count(hth_search *search, bool fastest)
{
    const hth_step *m = search->m;
    search->cover[0] = 0;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t ws =
            fastest ? hth_step_fastest(m, s)->workspace : hth_step_smallest(m, s)->workspace;
        search->cover[s + 1] = search->cover[s] + (search->d.used[s] + ws > search->d.budget);
    }
}

static double moves_relief(const hth_search *search, int g)
{
    const hth_interval *interval = &search->m->interval[g];
    int end = interval->q == search->m->n_stages ? search->d.until[g] + 1 : interval->q;
    int n = interval->cyclic ? search->cover[interval->q] + search->cover[search->m->n_stages] -
                                   search->cover[interval->p + 1]
                             : search->cover[end] - search->cover[interval->p + 1];
    return (double)search->m->bytes[interval->tensor] * n;
}

// The stage with the most bytes too many, counting the fastest algorithms or the smallest.
int hth_search_worst(const hth_search *search, bool fastest, double *over)
{
    const hth_step *m = search->m;
    int worst = -1;
    hth_plan_work_add(HTH_WORK_GAIN, m->n_stages);
    *over = 0;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t ws =
            fastest ? hth_step_fastest(m, s)->workspace : hth_step_smallest(m, s)->workspace;
        double o = (double)search->d.used[s] + (double)ws - (double)search->d.budget;
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
    return x->interval - y->interval;
}

// What was recomputed for stage s or before and is still there: it could have come by the link, or
// been kept away longer. For stages where whole chains pile up.
static int moves_piles(hth_search *search, int s)
{
    const hth_decoder *d = &search->d;
    int n = 0;
    for (int g = 0; g < search->m->n_intervals; g++) {
        const hth_interval *interval = &search->m->interval[g];
        int end = interval->q == search->m->n_stages ? d->until[g] : interval->q;
        if (d->mode[g] == HTH_INTERVAL_RECOMPUTE && d->need[g] < s && s < end) {
            search->rank[n++] = (hth_rank){-(double)search->m->bytes[interval->tensor],
                                           g * 4 + HTH_INTERVAL_REMATERIALIZE};
        } else if (d->mode[g] == HTH_INTERVAL_RECOMPUTE && d->need[g] <= s && s <= end &&
                   hth_search_allows(search, g, HTH_INTERVAL_OFFLOAD)) {
            search->rank[n++] = (hth_rank){-(double)search->m->bytes[interval->tensor],
                                           g * 4 + HTH_INTERVAL_OFFLOAD};
        }
    }
    return n;
}

// All ways to free bytes in stage s, cheapest first: one per interval, in search->rank (interval *
// 4 + mode).
int hth_search_moves(hth_search *search, int s, bool fastest, double price, double blur)
{
    int n = 0;
    hth_plan_work_add(HTH_WORK_NOTE, search->m->n_stages + search->m->n_intervals);
    moves_count(search, fastest);
    for (int g = 0; g < search->m->n_intervals; g++) {
        if (!moves_covers(search, g, s)) {
            continue;
        }
        double relief = moves_relief(search, g) + 1, least = INFINITY;
        for (int k = HTH_INTERVAL_OFFLOAD; k <= HTH_INTERVAL_RECOMPUTE; k++) {
            if (hth_search_allows(search, g, (hth_interval_mode)k) &&
                (search->banned[g] & 1 << k) == 0) {
                double c = hth_search_cost(search, g, (hth_interval_mode)k, price) / relief;
                c *= blur > 0 ? exp(blur * ((double)hth_search_random(search, 1000) / 500.0 - 1))
                              : 1;
                if (c < least) {
                    least = c;
                    search->rank[n] = (hth_rank){c, g * 4 + k};
                }
            }
        }
        n += least < INFINITY;
    }
    n = n > 0 ? n : moves_piles(search, s);
    hth_plan_work_add(HTH_WORK_MOVE, n);
    qsort(search->rank, (size_t)n, sizeof *search->rank, hth_search_rank_cmp);
    return n;
}
