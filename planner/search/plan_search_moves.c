// SPDX-License-Identifier: Apache-2.0
// The moves of the search over modes (plan_search.h): greedy steps that free bytes, single flips
// that go down, kicks that leave a valley. Every candidate is decoded exactly; what is not decoded
// is what hth_search_gain says cannot gain.
#include "planner/search/plan_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_FAILED  10   // moves in a row that free nothing: there is no way down from here
#define SEARCH_FEW     300  // intervals of a step per interval that is freed before the next decode
#define SEARCH_BACK    16   // flips that may follow them
#define SEARCH_SMALL   1000 // part of the budget: intervals with less are flipped last
#define SEARCH_GAIN    5e-4 // of the score, that a pass over all intervals has to gain for another
#define SEARCH_WORSE   1.002 // of the best, still gone on from
#define SEARCH_BLUR    1.5   // of the costs after a kick: factors up to exp(1.5)
#define SEARCH_RELIEVE 4     // .. fewer of them for faster algorithms
#define SEARCH_EJECT   8     // flips that may follow a kick

// Gives the first `few` intervals of search->rank, until `over` bytes are freed, the modes that
// stand there, and decodes. What makes more bytes too many (a recompute that needs a whole chain,
// say) is taken back, *outcome too. Returns how many have got them.
static int search_free(hth_search *search, int few, double over, hth_outcome *outcome)
{
    hth_outcome was = *outcome;
    double freed = 0, score = search->score;
    int n = 0;
    for (; n < few && freed < over; n++) {
        int g = search->rank[n].interval / 4;
        freed += (double)search->m->bytes[search->m->interval[g].tensor];
        uint8_t to = (uint8_t)(search->rank[n].interval % 4);
        search->rank[n].interval = g * 4 + search->mode[g]; // where it comes from
        search->mode[g] = to;
    }
    search->score = hth_search_try(search, search->mode, outcome);
    if (outcome->excess <= was.excess) {
        return n;
    }
    while (n > 0) {
        n--;
        search->mode[search->rank[n].interval / 4] = (uint8_t)(search->rank[n].interval % 4);
    }
    search->score = score;
    *outcome = was;
    return 0;
}

// Starts from what is at hand and frees bytes where most are missing, cheapest first, stage by
// stage. False: the step would take longer than limit_us.
bool hth_search_greedy(hth_search *search, double price, bool fastest, double limit_us)
{
    hth_outcome o;
    double over;
    int few = 1 + search->m->n_intervals / SEARCH_FEW, now = few, failed = 0;
    memset(search->banned, 0, (size_t)search->m->n_intervals);
    search->score = hth_search_try(search, search->mode, &o);
    for (int round = 0; round < 4 * search->m->n_intervals && !hth_search_over(search); round++) {
        hth_search_keep_best(search);
        int s = hth_search_worst(search, fastest, &over);
        int n = s >= 0 ? hth_search_moves(search, s, fastest, price, 0) : 0;
        if (n == 0 || (o.excess == 0 && o.time_us >= limit_us)) {
            break;
        }
        // A few at a time: what is worth freeing changes with each.
        int first = search->rank[0].interval;
        if (search_free(search, n < now ? n : now, over, &o) > 0) {
            now = few;
            failed = 0;
            continue;
        }
        search->banned[first / 4] |= (uint8_t)(now == 1 ? 1 << first % 4 : 0);
        now = 1;
        if (++failed > SEARCH_FAILED) {
            break;
        }
        hth_search_try(search, search->mode, &o);
    }
    memset(search->banned, 0, (size_t)search->m->n_intervals);
    return o.excess > 0 || o.time_us < limit_us;
}

// Tries interval g in `mode`; keeps it if that is better.
static bool search_flip(hth_search *search, int g, hth_interval_mode mode)
{
    hth_outcome o;
    uint8_t old = search->mode[g];
    if (old == mode || !hth_search_allows(search, g, mode) ||
        hth_search_gain(search, g, mode) <= 0) {
        return false;
    }
    search->mode[g] = (uint8_t)mode;
    double score = hth_search_try_under(search, search->mode, search->score, &o);
    if (score < search->score) {
        search->score = score;
        hth_search_note(search, &o);
        return true;
    }
    search->mode[g] = old;
    return false;
}

static void search_shuffle(hth_search *search)
{
    hth_plan_work_add(HTH_WORK_NOTE, search->m->n_intervals);
    for (int i = 0; i < search->m->n_intervals; i++) {
        int j = (int)hth_search_random(search, (uint32_t)i + 1);
        search->order[i] = search->order[j];
        search->order[j] = i;
    }
}

// What greedy steps made unnecessary comes back, dearest first.
static void search_prune(hth_search *search)
{
    int n = 0;
    for (int g = 0; g < search->m->n_intervals; g++) {
        if (search->modes[g] > 0 && search->mode[g] != HTH_INTERVAL_KEEP) {
            search->rank[n++] =
                (hth_rank){-hth_search_cost(search, g, (hth_interval_mode)search->mode[g], 1), g};
        }
    }
    qsort(search->rank, (size_t)n, sizeof *search->rank, hth_search_rank_cmp);
    for (int i = 0; i < n && !hth_search_over(search); i++) {
        search_flip(search, search->rank[i].interval, HTH_INTERVAL_KEEP);
    }
}

void hth_search_descend(hth_search *search)
{
    bool better = true, all = false;
    hth_outcome o;
    search->score = hth_search_try(search, search->mode, &o);
    hth_search_note(search, &o);
    search_prune(search);
    while ((better || !all) && !hth_search_over(search)) {
        double before = search->score;
        all = !better;
        better = false;
        search_shuffle(search);
        for (int i = 0; i < search->m->n_intervals && !hth_search_over(search); i++) {
            int g = search->order[i];
            bool small =
                search->m->bytes[search->m->interval[g].tensor] < search->d.budget / SEARCH_SMALL;
            for (int k = HTH_INTERVAL_KEEP; small <= all && k < search->modes[g]; k++) {
                search_flip(search, g, (hth_interval_mode)k);
            }
        }
        better = search->score < before - SEARCH_GAIN * fabs(before);
    }
    search->settled = hth_search_over(search) ? search->settled : search->score;
    hth_search_keep_best(search);
    hth_search_keep_elite(search);
}

// A random interval: one that is not kept, or with one chance in three any that makes a difference.
static int search_pick(hth_search *search)
{
    int n = 0;
    bool any = hth_search_random(search, 3) == 0;
    hth_plan_work_add(HTH_WORK_GAIN, search->m->n_intervals);
    for (int g = 0; g < search->m->n_intervals; g++) {
        if (search->modes[g] > 0 && (any || search->mode[g] != HTH_INTERVAL_KEEP)) {
            search->order[n++] = g;
        }
    }
    return n > 0 ? search->order[hth_search_random(search, (uint32_t)n)] : -1;
}

// An interval whose copies make the compute wait, the longer the likelier; -1: none does.
static int search_late(hth_search *search)
{
    hth_outcome o;
    int latest = -1;
    double most = 0;
    hth_search_try(search, search->mode, &o);
    hth_search_note(search, &o);
    for (int g = 0; g < search->m->n_intervals; g++) {
        double us = search->late[g] * (1 + hth_search_random(search, 1000));
        latest = us > most ? g : latest;
        most = hth_later(us, most);
    }
    return latest;
}

// Frees bytes until it fits again.
static void search_eject(hth_search *search, hth_outcome *outcome)
{
    double over, price = hth_search_random(search, 2) ? 1.0 : 0.1;
    for (int i = 0; i < SEARCH_EJECT && outcome->excess > 0 && !hth_search_over(search); i++) {
        int s = hth_search_worst(search, false, &over);
        if (s < 0 || hth_search_moves(search, s, false, price, SEARCH_BLUR) == 0) {
            return;
        }
        if (search_free(search, 1, over, outcome) == 0) {
            hth_search_try(search, search->mode, outcome);
        }
    }
}

// A stage that loses time to a slow algorithm, the more the likelier; -1: none.
static int search_slow(hth_search *search)
{
    const hth_step *m = search->m;
    int worst = -1;
    double most = 0;
    hth_plan_work_add(HTH_WORK_GAIN, m->n_stages);
    for (int s = 0; s < m->n_stages; s++) {
        double us = m->menu[search->d.item[s]].time_us - hth_step_fastest(m, s)->time_us;
        us *= us > 0 ? 1 + hth_search_random(search, 1000) : 0;
        worst = us > most ? s : worst;
        most = us > most ? us : most;
    }
    return worst;
}

// Frees bytes where algorithms have become slow, for a while.
static void search_relieve(hth_search *search, hth_outcome *outcome)
{
    double price = hth_search_random(search, 2) ? 1.0 : 0.1;
    for (int i = 0, n = (int)hth_search_random(search, SEARCH_RELIEVE); i < n; i++) {
        int s = outcome->excess > 0 || hth_search_over(search) ? -1 : search_slow(search);
        if (s < 0 || hth_search_moves(search, s, true, price, SEARCH_BLUR) == 0) {
            return;
        }
        search_free(search, 1, 1, outcome);
    }
}

// Gives back what has become unnecessary: some of what is not kept, in random order.
static void search_complete(hth_search *search, const hth_outcome *outcome)
{
    int n = 0;
    hth_search_note(search, outcome);
    hth_plan_work_add(HTH_WORK_GAIN, search->m->n_intervals);
    for (int g = 0; g < search->m->n_intervals; g++) {
        if (search->modes[g] > 0 && search->mode[g] != HTH_INTERVAL_KEEP) {
            search->order[n++] = g;
        }
    }
    uint64_t end = search->n_decodes + SEARCH_BACK;
    for (int i = 0; i < n && search->n_decodes < end && !hth_search_over(search); i++) {
        int j = i + (int)hth_search_random(search, (uint32_t)(n - i)), g = search->order[j];
        search->order[j] = search->order[i];
        if (!search_flip(search, g, HTH_INTERVAL_KEEP)) {
            search_flip(
                search, g,
                (hth_interval_mode)(1 + hth_search_random(search, HTH_N_INTERVAL_MODES - 1)));
        }
    }
}

// Gives interval g mode, and with even chances the other intervals of its tensor, too. What only
// a recompute of it reads is computed again once or each time.
static void search_push(hth_search *search, int g, hth_interval_mode mode)
{
    const hth_step *m = search->m;
    int t = m->interval[g].tensor, v = m->p->tensors[t].producer;
    bool whole = hth_search_random(search, 2) == 0;
    for (int h = m->interval_start[t]; h < m->interval_start[t + 1]; h++) {
        if ((h == g || whole) && hth_search_allows(search, h, mode)) {
            search->mode[h] = (uint8_t)mode;
        }
    }
    for (int j = 0; mode >= HTH_INTERVAL_RECOMPUTE && v >= 0 && j < m->p->nodes[v].n_inputs; j++) {
        int in = m->p->nodes[v].inputs[j], tail = m->interval_start[in + 1] - 1;
        mode = hth_search_random(search, 2) ? HTH_INTERVAL_RECOMPUTE : HTH_INTERVAL_REMATERIALIZE;
        if (tail >= m->interval_start[in] && m->interval[tail].q == m->n_stages &&
            hth_search_allows(search, tail, mode)) {
            search->mode[tail] = (uint8_t)mode;
        }
    }
}

// One kick: an interval gets another mode (where the compute waits for long, every other time it is
// one that it waits for, which is copied no more), then others give way until it fits again, then
// some that are away may come back. Kept if it is better, or hardly worse than the best.
bool hth_search_kick(hth_search *search)
{
    hth_outcome o;
    double before = search->score;
    memcpy(search->kept, search->mode, (size_t)search->m->n_intervals);
    for (int i = 0, n = 1 + (int)hth_search_random(search, 2); i < n; i++) {
        bool late = i == 0 && search->stalled && hth_search_random(search, 2) == 0;
        int waits = late ? search_late(search) : -1;
        int g = waits >= 0 ? waits : search_pick(search);
        hth_interval_mode k = (hth_interval_mode)hth_search_random(search, HTH_N_INTERVAL_MODES);
        k = waits >= 0 && k == HTH_INTERVAL_OFFLOAD ? HTH_INTERVAL_KEEP : k;
        if (g >= 0) {
            search_push(search, g, k);
        }
    }
    search->score = hth_search_try(search, search->mode, &o);
    search_relieve(search, &o);
    search_eject(search, &o);
    search_complete(search, &o);
    bool better = search->score < search->best_score;
    hth_search_keep_elite(search);
    if (search->score < before || search->score < search->best_score * SEARCH_WORSE) {
        search->settled = better ? search->score : search->settled;
        hth_search_keep_best(search);
    } else {
        search->score = before;
        memcpy(search->mode, search->kept, (size_t)search->m->n_intervals);
    }
    return better;
}
