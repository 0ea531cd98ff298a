// SPDX-License-Identifier: Apache-2.0
// Search over modes. Greedy starts at several prices of the link, each followed by a descent of
// single flips; then iterated local search from the best: a kick around one stage, ejections until
// it fits again, and completions that give back what the kick made unnecessary. Every candidate is
// decoded exactly, so nothing is estimated but the order in which moves are tried.
#include "memmgr/plan_bound.h"
#include "memmgr/plan_search.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_PENALTY 40.0 // of the fastest step, per budget of excess
#define SEARCH_TIE                                                                                 \
    1e-4 // of the fastest step, per budget of mean residency: prefers what leaves room
#define SEARCH_WARM_NS     30000000u // that a warm start may take even when the time is up
#define SEARCH_FEW         300       // gaps of a step per gap that is freed before the next decode
#define SEARCH_HOPELESS    16.0      // times the fastest step: not worth decoding further
#define SEARCH_BACK        16        // flips that may follow them
#define SEARCH_DUAL        100       // iterations of the dual for a start
#define SEARCH_SMALL       1000 // part of the budget: gaps with less are flipped when no other helps
#define SEARCH_GAIN        5e-4  // of the score, that a pass over all gaps has to gain for another
#define SEARCH_LOWER       0.08  // of the budget, in which it comes down
#define SEARCH_LOWER_KICKS 400   // .. after each, at most
#define SEARCH_STALL       1.0   // what a stall counts on top of its time among the starts
#define SEARCH_FAR         1.5   // times the best: a start that costs as much is left
#define SEARCH_WORSE       1.002 // of the best, still gone on from
#define SEARCH_BLUR        1.5   // of the costs behind a kick: factors up to exp(1.5)
#define SEARCH_EJECT       8     // flips that may follow a kick
#define SEARCH_ALIKE       400   // kicks without success before the search gives up, per 100 gaps

uint32_t hth_search_random(hth_search *x, uint32_t below)
{
    x->rng = x->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((x->rng >> 32) * below) >> 32);
}

static bool search_over(const hth_search *x)
{
    return x->n_decodes >= x->max_decodes || hth_now_ns() >= x->deadline_ns;
}

// hth_search_try, given up (with some score from `limit` on) as soon as the score cannot be under
// `limit`.
static double search_try(hth_search *x, const uint8_t *mode, double limit, hth_outcome *o)
{
    double budget = (double)x->d.budget + 1, unit = x->m->fastest_us + 1;
    double most = hth_sooner(limit, SEARCH_HOPELESS * unit);
    double least = hth_decode_needs(&x->d, mode, most);
    x->n_decodes++;
    if (least >= most) {
        *o = (hth_outcome){.time_us = INFINITY, .excess = INFINITY, .worst = -1};
        return least >= limit ? least : INFINITY;
    }
    // Bytes too many cost a step at least.
    bool all = least + unit < limit;
    hth_decode_fit(&x->d, all, o);
    if (!all && o->excess > 0) {
        return least + unit;
    }
    hth_decode_time(&x->d, o);
    double score = o->time_us + SEARCH_TIE * unit * o->mean / budget;
    if (x->no_stalls && o->stall_us > 1e-6 * o->time_us) {
        score += unit + o->stall_us;
    }
    score += x->stall_price * o->stall_us;
    return o->excess > 0 ? score + unit + SEARCH_PENALTY * unit * o->excess / budget : score;
}

double hth_search_try(hth_search *x, const uint8_t *mode, hth_outcome *o)
{
    return search_try(x, mode, INFINITY, o);
}

// Takes the modes at hand as the best if they are.
static void search_keep_best(hth_search *x)
{
    if (x->score < x->best_score) {
        x->best_score = x->score;
        memcpy(x->best, x->mode, (size_t)x->m->n_gaps);
    }
}

// Starts from what is at hand and frees bytes where most are missing, cheapest first, stage by
// stage. False: the step would take longer than limit_us.
static bool search_greedy(hth_search *x, double price, bool fastest, double limit_us)
{
    hth_outcome o;
    double over;
    for (int round = 0; round < 4 * x->m->n_gaps && !search_over(x); round++) {
        x->score = hth_search_try(x, x->mode, &o);
        search_keep_best(x);
        if (o.time_us >= limit_us) {
            return false;
        }
        int s = hth_search_worst(x, fastest, &over);
        if (s < 0) {
            break;
        }
        int n = hth_search_ways(x, s, fastest, price, 0), few = 1 + x->m->n_gaps / SEARCH_FEW;
        double freed = 0;
        // A few at a time: what is worth freeing changes with each.
        for (int i = 0; i < n && freed < over && i < few; i++) {
            int g = x->rank[i].gap / 4;
            x->mode[g] = (uint8_t)(x->rank[i].gap % 4);
            freed += (double)x->m->bytes[x->m->gap[g].tensor];
        }
        if (n == 0) {
            break;
        }
    }
    return true;
}

// How many modes of each gap make a difference, as the last decode left it: none where nothing
// reads behind it, AGAIN only where something reads more than once.
static void search_modes(hth_search *x)
{
    for (int g = 0; g < x->m->n_gaps; g++) {
        const hth_gap *gap = &x->m->gap[g];
        int need = x->d.need[g], q = gap->q < x->m->n_stages ? gap->q : x->d.until[g];
        x->modes[g] = need >= x->m->n_stages ? 0 : need + 1 < q ? HTH_N_GAP_MODES : HTH_GAP_AGAIN;
    }
}

// Tries gap g in `mode`; keeps it if that is better.
static bool search_flip(hth_search *x, int g, hth_gap_mode mode)
{
    hth_outcome o;
    uint8_t old = x->mode[g];
    if (old == mode || !hth_search_allows(x, g, mode)) {
        return false;
    }
    x->mode[g] = (uint8_t)mode;
    double score = search_try(x, x->mode, x->score, &o);
    if (score < x->score) {
        x->score = score;
        search_modes(x);
        return true;
    }
    x->mode[g] = old;
    return false;
}

static void search_shuffle(hth_search *x)
{
    for (int i = 0; i < x->m->n_gaps; i++) {
        int j = (int)hth_search_random(x, (uint32_t)i + 1);
        x->order[i] = x->order[j];
        x->order[j] = i;
    }
}

// What greedy steps made unnecessary comes back, dearest first.
static void search_prune(hth_search *x)
{
    int n = 0;
    for (int g = 0; g < x->m->n_gaps; g++) {
        if (x->modes[g] > 0 && x->mode[g] != HTH_GAP_KEEP) {
            x->rank[n++] = (hth_rank){-hth_search_cost(x, g, (hth_gap_mode)x->mode[g], 1), g};
        }
    }
    qsort(x->rank, (size_t)n, sizeof *x->rank, hth_search_rank_cmp);
    for (int i = 0; i < n && !search_over(x); i++) {
        search_flip(x, x->rank[i].gap, HTH_GAP_KEEP);
    }
}

static void search_descend(hth_search *x)
{
    bool better = true, all = false;
    hth_outcome o;
    x->score = hth_search_try(x, x->mode, &o);
    search_modes(x);
    search_prune(x);
    while ((better || !all) && !search_over(x)) {
        double before = x->score;
        all = !better;
        better = false;
        search_shuffle(x);
        for (int i = 0; i < x->m->n_gaps && !search_over(x); i++) {
            int g = x->order[i];
            bool small = x->m->bytes[x->m->gap[g].tensor] < x->d.budget / SEARCH_SMALL;
            for (int k = HTH_GAP_KEEP; small <= all && k < x->modes[g]; k++) {
                search_flip(x, g, (hth_gap_mode)k);
            }
        }
        better = x->score < before * (1 - SEARCH_GAIN);
    }
    search_keep_best(x);
}

// A random gap: one that is not kept, or with one chance in three any that makes a difference.
static int search_pick(hth_search *x)
{
    int n = 0;
    bool any = hth_search_random(x, 3) == 0;
    for (int g = 0; g < x->m->n_gaps; g++) {
        if (x->modes[g] > 0 && (any || x->mode[g] != HTH_GAP_KEEP)) {
            x->order[n++] = g;
        }
    }
    return n > 0 ? x->order[hth_search_random(x, (uint32_t)n)] : -1;
}

// Frees bytes until it fits again.
static void search_eject(hth_search *x, hth_outcome *o)
{
    double over, price = hth_search_random(x, 2) ? 1.0 : 0.1;
    for (int i = 0; i < SEARCH_EJECT && o->excess > 0 && !search_over(x); i++) {
        int s = hth_search_worst(x, false, &over);
        if (s < 0 || hth_search_ways(x, s, false, price, SEARCH_BLUR) == 0) {
            return;
        }
        x->mode[x->rank[0].gap / 4] = (uint8_t)(x->rank[0].gap % 4);
        x->score = hth_search_try(x, x->mode, o);
    }
}

// Gives back what has become unnecessary: some of what is not kept, in random order.
static void search_complete(hth_search *x)
{
    int n = 0;
    search_modes(x);
    for (int g = 0; g < x->m->n_gaps; g++) {
        if (x->modes[g] > 0 && x->mode[g] != HTH_GAP_KEEP) {
            x->order[n++] = g;
        }
    }
    for (int i = 0; i < n && i < SEARCH_BACK && !search_over(x); i++) {
        int j = i + (int)hth_search_random(x, (uint32_t)(n - i)), g = x->order[j];
        x->order[j] = x->order[i];
        if (!search_flip(x, g, HTH_GAP_KEEP)) {
            search_flip(x, g, (hth_gap_mode)(1 + hth_search_random(x, HTH_N_GAP_MODES - 1)));
        }
    }
}

// Gives gap g mode k, and with even chances the other gaps of its tensor, too. What only a
// recompute of it reads is computed again once or each time.
static void search_push(hth_search *x, int g, hth_gap_mode k)
{
    const hth_step *m = x->m;
    int t = m->gap[g].tensor, v = m->p->tensors[t].producer;
    bool whole = hth_search_random(x, 2) == 0;
    for (int h = m->gap_start[t]; h < m->gap_start[t + 1]; h++) {
        if ((h == g || whole) && hth_search_allows(x, h, k)) {
            x->mode[h] = (uint8_t)k;
        }
    }
    for (int j = 0; k >= HTH_GAP_RECOMPUTE && v >= 0 && j < m->p->nodes[v].n_inputs; j++) {
        int in = m->p->nodes[v].inputs[j], tail = m->gap_start[in + 1] - 1;
        k = hth_search_random(x, 2) ? HTH_GAP_RECOMPUTE : HTH_GAP_AGAIN;
        if (tail >= m->gap_start[in] && m->gap[tail].q == m->n_stages &&
            hth_search_allows(x, tail, k)) {
            x->mode[tail] = (uint8_t)k;
        }
    }
}

// One kick: a gap gets another mode, then others give way until it fits again, then some that are
// away may come back. Kept if it is better, or hardly worse than the best.
static bool search_kick(hth_search *x)
{
    hth_outcome o;
    double before = x->score;
    memcpy(x->kept, x->mode, (size_t)x->m->n_gaps);
    for (int i = 0, n = 1 + (int)hth_search_random(x, 2); i < n; i++) {
        int g = search_pick(x);
        hth_gap_mode k = (hth_gap_mode)hth_search_random(x, HTH_N_GAP_MODES);
        if (g >= 0) {
            search_push(x, g, k);
        }
    }
    x->score = hth_search_try(x, x->mode, &o);
    search_eject(x, &o);
    search_complete(x);
    bool better = x->score < x->best_score;
    if (x->score < before || x->score < x->best_score * SEARCH_WORSE) {
        search_keep_best(x);
    } else {
        x->score = before;
        memcpy(x->mode, x->kept, (size_t)x->m->n_gaps);
    }
    return better;
}

// The least memory there can be: everything is away whenever it may.
static void search_away(hth_search *x)
{
    hth_outcome o;
    for (int g = 0; g < x->m->n_gaps; g++) {
        x->mode[g] = hth_search_allows(x, g, HTH_GAP_OFFLOAD)     ? HTH_GAP_OFFLOAD
                     : hth_search_allows(x, g, HTH_GAP_RECOMPUTE) ? HTH_GAP_RECOMPUTE
                                                                  : HTH_GAP_KEEP;
    }
    x->score = hth_search_try(x, x->mode, &o);
    search_keep_best(x);
}

// Gives what comes next its share of what is left until then: two parts of `parts`, or all of it.
static void search_slice(hth_search *x, uint64_t until_ns, uint64_t until, int parts)
{
    uint64_t now_ns = hth_now_ns(), k = parts > 2 ? (uint64_t)parts : 2;
    x->deadline_ns = now_ns < until_ns ? now_ns + (until_ns - now_ns) / k * 2 : until_ns;
    if (until < UINT64_MAX) {
        x->max_decodes =
            x->n_decodes < until ? x->n_decodes + (until - x->n_decodes) / k * 2 : until;
    }
}

// Prices of the link, levers alone, room for the fastest algorithms or the smallest.
typedef struct search_start {
    double price;
    bool offload, recompute, fastest;
} search_start;

// One start: greedy with its levers, then down with all of them. The first one ends whatever it
// takes, or there is nothing to go on from.
static void search_begin(hth_search *x, const search_start *start, bool first)
{
    bool offload = x->offload, recompute = x->recompute;
    hth_outcome o;
    hth_search_try(x, x->best, &o);
    double limit = o.excess > 0 ? INFINITY : o.time_us * SEARCH_FAR;
    hth_search_keep_all(x, x->mode);
    x->offload = offload && start->offload;
    x->recompute = recompute && start->recompute;
    bool near = search_greedy(x, start->price, start->fastest, limit);
    x->offload = offload;
    x->recompute = recompute;
    if (first) {
        hth_search_try(x, x->best, &o);
        if (o.excess > 0) { // better than nothing
            search_away(x);
        }
        memcpy(x->mode, x->best, (size_t)x->m->n_gaps);
    }
    if (near) {
        search_descend(x);
    }
}

// Starts from what the dual does.
static void search_dual(hth_search *x)
{
    hth_outcome o;
    double us;
    hth_search_try(x, x->best, &o);
    if (hth_step_bound(x->m, x->d.budget, o.time_us, SEARCH_DUAL, 0, x->prices, x->mode, &us) !=
        HTH_OK) {
        x->d.failed = true;
        return;
    }
    search_greedy(x, 1, false, INFINITY);
    search_descend(x);
}

// Starts from everything kept and lets the budget come down in steps, each a little too small for
// what the one before has found.
static void search_lower(hth_search *x, uint64_t until_ns, uint64_t until)
{
    hth_outcome o;
    uint64_t budget = x->d.budget;
    hth_search_keep_all(x, x->mode);
    hth_search_try(x, x->mode, &o);
    double from = (double)o.peak_bytes, to = (double)budget;
    double best = x->best_score;
    int steps = 1 + (int)(log(from / to) / SEARCH_LOWER);
    for (int k = 1; k <= steps && from > to; k++) {
        // What fits more memory is not the best of anything.
        x->d.budget = k < steps ? (uint64_t)(from * pow(to / from, (double)k / steps)) : budget;
        x->best_score = k < steps ? -INFINITY : best;
        search_slice(x, until_ns, until, 2 * (steps - k + 1));
        search_greedy(x, 0.3, false, INFINITY);
        search_descend(x);
        for (int i = 0; i < SEARCH_LOWER_KICKS && !search_over(x); i++) {
            search_kick(x);
        }
    }
    x->d.budget = budget;
}

// Greedy starts. Each goes down on its own for a share of the time, because the best start is
// seldom the best after that.
static void search_starts(hth_search *x, uint64_t until_ns)
{
    static const search_start starts[] = {{0.3, true, true, true},    {1.0, false, true, false},
                                          {0.02, true, false, false}, {1.0, false, true, true},
                                          {0.02, true, true, true},   {1.0, true, true, true},
                                          {0.3, true, true, false},   {3.0, true, true, true},
                                          {1.0, true, true, false},   {0.02, true, true, false}};
    const int n = (int)(sizeof starts / sizeof *starts);
    uint64_t end_ns = x->deadline_ns, end_decodes = x->max_decodes;
    uint64_t until =
        end_decodes < UINT64_MAX ? end_decodes - (end_decodes - x->n_decodes) / 3 : UINT64_MAX;
    for (int i = 0; i < n; i++) {
        const search_start *s = &starts[i];
        bool has = (s->offload || x->recompute) && (s->recompute || x->offload);
        if (has && x->n_decodes < until && hth_now_ns() < until_ns) {
            search_slice(x, until_ns, until, i == 0 ? 8 : n - i);
            search_begin(x, s, i == 0);
            if (x->dual && i == 0) {
                search_slice(x, until_ns, until, 8);
                search_dual(x);
                search_slice(x, until_ns, until, 2);
                search_lower(x, x->deadline_ns, x->max_decodes);
            }
        }
    }
    x->deadline_ns = end_ns;
    x->max_decodes = end_decodes;
}

void hth_search_run(hth_search *x, uint64_t deadline_ns, bool warm, hth_outcome *out)
{
    size_t n = (size_t)x->m->n_gaps;
    uint64_t now_ns = hth_now_ns();
    x->deadline_ns = deadline_ns;
    if (warm) {
        // A tighter budget than before: what is missing is little, so it is freed whatever the
        // time, before everything else would leave.
        uint64_t least_ns = now_ns + SEARCH_WARM_NS;
        x->deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
        memcpy(x->mode, x->best, n);
        x->best_score = hth_search_try(x, x->best, out);
        if (out->excess > 0) {
            search_greedy(x, 0.3, false, INFINITY);
        }
        hth_search_try(x, x->best, out);
        if (out->excess > 0) {
            search_away(x);
        }
        x->deadline_ns = deadline_ns;
    } else {
        x->best_score = INFINITY;
        hth_search_keep_all(x, x->mode);
        x->score = hth_search_try(x, x->mode, out);
        search_keep_best(x);
        if (out->excess == 0 && out->time_us <= x->m->fastest_us * (1 + 1e-9)) {
            return; // nothing is faster
        }
        x->stall_price = SEARCH_STALL;
        search_starts(x, now_ns + (deadline_ns > now_ns ? (deadline_ns - now_ns) / 3 * 2 : 0));
    }
    x->stall_price = 0;
    x->best_score = hth_search_try(x, x->best, out);
    memcpy(x->mode, x->best, n);
    search_descend(x);
    int limit = SEARCH_ALIKE * (1 + (int)n / 100);
    for (int since = 0; n > 0 && since < limit && !search_over(x); since++) {
        if (search_kick(x)) {
            since = 0;
        }
    }
    hth_search_try(x, x->best, out);
}

hth_err hth_search_open(hth_search *x, const hth_step *m, uint64_t budget,
                        const hth_plan_options *o)
{
    size_t n = (size_t)m->n_gaps + 1;
    *x = (hth_search){.m = m,
                      .offload = true,
                      .recompute = true,
                      .rng = o->seed * 2 + 1,
                      .max_decodes = UINT64_MAX,
                      .mode = hth_calloc(n, 1),
                      .best = hth_calloc(n, 1),
                      .kept = hth_calloc(n, 1),
                      .first = hth_calloc(n, 1),
                      .modes = hth_calloc(n, 1),
                      .order = hth_calloc(n, sizeof(int)),
                      .rank = hth_calloc(n, sizeof *x->rank),
                      .cover = hth_calloc((size_t)m->n_stages + 1, sizeof(int))};
    hth_err err = hth_decoder_init(&x->d, m, budget);
    if (err == HTH_OK && (!x->mode || !x->modes || !x->best || !x->kept || !x->first || !x->order ||
                          !x->cover || !x->rank)) {
        err = hth_fail(HTH_ENOMEM, "no memory to plan a step of %d nodes", m->n_stages);
    }
    if (err != HTH_OK) {
        hth_search_close(x);
    }
    return err;
}

void hth_search_close(hth_search *x)
{
    hth_decoder_fini(&x->d);
    hth_free(x->mode);
    hth_free(x->best);
    hth_free(x->kept);
    hth_free(x->first);
    hth_free(x->modes);
    hth_free(x->order);
    hth_free(x->cover);
    hth_free(x->rank);
    memset(x, 0, sizeof *x);
}
