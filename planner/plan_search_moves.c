// SPDX-License-Identifier: Apache-2.0
// The moves of the search over modes (plan_search.h): greedy steps that free bytes, single flips
// that go down, kicks that leave a valley. Every candidate is decoded exactly; what is not decoded
// is what hth_search_gain says cannot gain.
#include "planner/plan_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_FAILED  10  // moves in a row that free nothing: there is no way down from here
#define SEARCH_FEW     300 // intervals of a step per interval that is freed before the next decode
#define SEARCH_BACK    16  // flips that may follow them
#define SEARCH_SMALL   1000 // part of the budget: intervals with less are flipped when no other helps
#define SEARCH_GAIN    5e-4  // of the score, that a pass over all intervals has to gain for another
#define SEARCH_WORSE   1.002 // of the best, still gone on from
#define SEARCH_BLUR    1.5   // of the costs after a kick: factors up to exp(1.5)
#define SEARCH_RELIEVE 4     // .. fewer of them for faster algorithms
#define SEARCH_EJECT   8     // flips that may follow a kick

// Gives the first `few` intervals of x->rank, until `over` bytes are freed, the modes that stand
// there, and decodes. What makes more bytes too many (a recompute that needs a whole chain, say) is
// taken back, *o too. Returns how many have got them.
static int search_free(hth_search *x, int few, double over, hth_outcome *o)
{
    hth_outcome was = *o;
    double freed = 0, score = x->score;
    int n = 0;
    for (; n < few && freed < over; n++) {
        int g = x->rank[n].interval / 4;
        freed += (double)x->m->bytes[x->m->interval[g].tensor];
        uint8_t to = (uint8_t)(x->rank[n].interval % 4);
        x->rank[n].interval = g * 4 + x->mode[g]; // where it comes from
        x->mode[g] = to;
    }
    x->score = hth_search_try(x, x->mode, o);
    if (o->excess <= was.excess) {
        return n;
    }
    while (n > 0) {
        n--;
        x->mode[x->rank[n].interval / 4] = (uint8_t)(x->rank[n].interval % 4);
    }
    x->score = score;
    *o = was;
    return 0;
}

// Starts from what is at hand and frees bytes where most are missing, cheapest first, stage by
// stage. False: the step would take longer than limit_us.
bool hth_search_greedy(hth_search *x, double price, bool fastest, double limit_us)
{
    hth_outcome o;
    double over;
    int few = 1 + x->m->n_intervals / SEARCH_FEW, now = few, failed = 0;
    memset(x->banned, 0, (size_t)x->m->n_intervals);
    x->score = hth_search_try(x, x->mode, &o);
    for (int round = 0; round < 4 * x->m->n_intervals && !hth_search_over(x); round++) {
        hth_search_keep_best(x);
        int s = hth_search_worst(x, fastest, &over);
        int n = s >= 0 ? hth_search_moves(x, s, fastest, price, 0) : 0;
        if (n == 0 || (o.excess == 0 && o.time_us >= limit_us)) {
            break;
        }
        // A few at a time: what is worth freeing changes with each.
        int first = x->rank[0].interval;
        if (search_free(x, n < now ? n : now, over, &o) > 0) {
            now = few;
            failed = 0;
            continue;
        }
        x->banned[first / 4] |= (uint8_t)(now == 1 ? 1 << first % 4 : 0);
        now = 1;
        if (++failed > SEARCH_FAILED) {
            break;
        }
        hth_search_try(x, x->mode, &o);
    }
    memset(x->banned, 0, (size_t)x->m->n_intervals);
    return o.excess > 0 || o.time_us < limit_us;
}

// Tries interval g in `mode`; keeps it if that is better.
static bool search_flip(hth_search *x, int g, hth_interval_mode mode)
{
    hth_outcome o;
    uint8_t old = x->mode[g];
    if (old == mode || !hth_search_allows(x, g, mode) || hth_search_gain(x, g, mode) <= 0) {
        return false;
    }
    x->mode[g] = (uint8_t)mode;
    double score = hth_search_try_under(x, x->mode, x->score, &o);
    if (score < x->score) {
        x->score = score;
        hth_search_note(x, &o);
        return true;
    }
    x->mode[g] = old;
    return false;
}

static void search_shuffle(hth_search *x)
{
    for (int i = 0; i < x->m->n_intervals; i++) {
        int j = (int)hth_search_random(x, (uint32_t)i + 1);
        x->order[i] = x->order[j];
        x->order[j] = i;
    }
}

// What greedy steps made unnecessary comes back, dearest first.
static void search_prune(hth_search *x)
{
    int n = 0;
    for (int g = 0; g < x->m->n_intervals; g++) {
        if (x->modes[g] > 0 && x->mode[g] != HTH_INTERVAL_KEEP) {
            x->rank[n++] = (hth_rank){-hth_search_cost(x, g, (hth_interval_mode)x->mode[g], 1), g};
        }
    }
    qsort(x->rank, (size_t)n, sizeof *x->rank, hth_search_rank_cmp);
    for (int i = 0; i < n && !hth_search_over(x); i++) {
        search_flip(x, x->rank[i].interval, HTH_INTERVAL_KEEP);
    }
}

void hth_search_descend(hth_search *x)
{
    bool better = true, all = false;
    hth_outcome o;
    x->score = hth_search_try(x, x->mode, &o);
    hth_search_note(x, &o);
    search_prune(x);
    while ((better || !all) && !hth_search_over(x)) {
        double before = x->score;
        all = !better;
        better = false;
        search_shuffle(x);
        for (int i = 0; i < x->m->n_intervals && !hth_search_over(x); i++) {
            int g = x->order[i];
            bool small = x->m->bytes[x->m->interval[g].tensor] < x->d.budget / SEARCH_SMALL;
            for (int k = HTH_INTERVAL_KEEP; small <= all && k < x->modes[g]; k++) {
                search_flip(x, g, (hth_interval_mode)k);
            }
        }
        better = x->score < before * (1 - SEARCH_GAIN);
    }
    x->settled = hth_search_over(x) ? x->settled : x->score;
    hth_search_keep_best(x);
    hth_search_keep_elite(x);
}

// A random interval: one that is not kept, or with one chance in three any that makes a difference.
static int search_pick(hth_search *x)
{
    int n = 0;
    bool any = hth_search_random(x, 3) == 0;
    for (int g = 0; g < x->m->n_intervals; g++) {
        if (x->modes[g] > 0 && (any || x->mode[g] != HTH_INTERVAL_KEEP)) {
            x->order[n++] = g;
        }
    }
    return n > 0 ? x->order[hth_search_random(x, (uint32_t)n)] : -1;
}

// Frees bytes until it fits again.
static void search_eject(hth_search *x, hth_outcome *o)
{
    double over, price = hth_search_random(x, 2) ? 1.0 : 0.1;
    for (int i = 0; i < SEARCH_EJECT && o->excess > 0 && !hth_search_over(x); i++) {
        int s = hth_search_worst(x, false, &over);
        if (s < 0 || hth_search_moves(x, s, false, price, SEARCH_BLUR) == 0) {
            return;
        }
        if (search_free(x, 1, over, o) == 0) {
            hth_search_try(x, x->mode, o);
        }
    }
}

// A stage that loses time to a slow algorithm, the more the likelier; -1: none.
static int search_slow(hth_search *x)
{
    const hth_step *m = x->m;
    int worst = -1;
    double most = 0;
    for (int s = 0; s < m->n_stages; s++) {
        double us = m->menu[x->d.item[s]].time_us - hth_step_fastest(m, s)->time_us;
        us *= us > 0 ? 1 + hth_search_random(x, 1000) : 0;
        worst = us > most ? s : worst;
        most = us > most ? us : most;
    }
    return worst;
}

// Frees bytes where algorithms have become slow, for a while.
static void search_relieve(hth_search *x, hth_outcome *o)
{
    double price = hth_search_random(x, 2) ? 1.0 : 0.1;
    for (int i = 0, n = (int)hth_search_random(x, SEARCH_RELIEVE); i < n; i++) {
        int s = o->excess > 0 || hth_search_over(x) ? -1 : search_slow(x);
        if (s < 0 || hth_search_moves(x, s, true, price, SEARCH_BLUR) == 0) {
            return;
        }
        search_free(x, 1, 1, o);
    }
}

// Gives back what has become unnecessary: some of what is not kept, in random order.
static void search_complete(hth_search *x, const hth_outcome *o)
{
    int n = 0;
    hth_search_note(x, o);
    for (int g = 0; g < x->m->n_intervals; g++) {
        if (x->modes[g] > 0 && x->mode[g] != HTH_INTERVAL_KEEP) {
            x->order[n++] = g;
        }
    }
    uint64_t end = x->n_decodes + SEARCH_BACK;
    for (int i = 0; i < n && x->n_decodes < end && !hth_search_over(x); i++) {
        int j = i + (int)hth_search_random(x, (uint32_t)(n - i)), g = x->order[j];
        x->order[j] = x->order[i];
        if (!search_flip(x, g, HTH_INTERVAL_KEEP)) {
            search_flip(x, g,
                        (hth_interval_mode)(1 + hth_search_random(x, HTH_N_INTERVAL_MODES - 1)));
        }
    }
}

// Gives interval g mode k, and with even chances the other intervals of its tensor, too. What only
// a recompute of it reads is computed again once or each time.
static void search_push(hth_search *x, int g, hth_interval_mode k)
{
    const hth_step *m = x->m;
    int t = m->interval[g].tensor, v = m->p->tensors[t].producer;
    bool whole = hth_search_random(x, 2) == 0;
    for (int h = m->interval_start[t]; h < m->interval_start[t + 1]; h++) {
        if ((h == g || whole) && hth_search_allows(x, h, k)) {
            x->mode[h] = (uint8_t)k;
        }
    }
    for (int j = 0; k >= HTH_INTERVAL_RECOMPUTE && v >= 0 && j < m->p->nodes[v].n_inputs; j++) {
        int in = m->p->nodes[v].inputs[j], tail = m->interval_start[in + 1] - 1;
        k = hth_search_random(x, 2) ? HTH_INTERVAL_RECOMPUTE : HTH_INTERVAL_REMATERIALIZE;
        if (tail >= m->interval_start[in] && m->interval[tail].q == m->n_stages &&
            hth_search_allows(x, tail, k)) {
            x->mode[tail] = (uint8_t)k;
        }
    }
}

// One kick: an interval gets another mode, then others give way until it fits again, then some that
// are away may come back. Kept if it is better, or hardly worse than the best.
bool hth_search_kick(hth_search *x)
{
    hth_outcome o;
    double before = x->score;
    memcpy(x->kept, x->mode, (size_t)x->m->n_intervals);
    for (int i = 0, n = 1 + (int)hth_search_random(x, 2); i < n; i++) {
        int g = search_pick(x);
        hth_interval_mode k = (hth_interval_mode)hth_search_random(x, HTH_N_INTERVAL_MODES);
        if (g >= 0) {
            search_push(x, g, k);
        }
    }
    x->score = hth_search_try(x, x->mode, &o);
    search_relieve(x, &o);
    search_eject(x, &o);
    search_complete(x, &o);
    bool better = x->score < x->best_score;
    hth_search_keep_elite(x);
    if (x->score < before || x->score < x->best_score * SEARCH_WORSE) {
        x->settled = better ? x->score : x->settled;
        hth_search_keep_best(x);
    } else {
        x->score = before;
        memcpy(x->mode, x->kept, (size_t)x->m->n_intervals);
    }
    return better;
}
