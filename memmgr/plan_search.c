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
#define SEARCH_SAME        1e-4      // of the score: less is no difference
#define SEARCH_LOOK        4         // decodes between two looks at the clock
#define SEARCH_FEW         300       // gaps of a step per gap that is freed before the next decode
#define SEARCH_HOPELESS    16.0      // times the fastest step: not worth decoding further
#define SEARCH_BACK        16        // flips that may follow them
#define SEARCH_DUAL        100       // iterations of the dual for a start
#define SEARCH_SMALL       1000 // part of the budget: gaps with less are flipped when no other helps
#define SEARCH_GAIN        5e-4  // of the score, that a pass over all gaps has to gain for another
#define SEARCH_LOWER       0.12  // part of the budget by which it comes down at once, at most
#define SEARCH_LOWER_LEAST 0.03  // .. below which steps are not halved
#define SEARCH_LOWER_LATE  3.0   // parts
#define SEARCH_LOWER_KICKS 8     // .. after each, at most
#define SEARCH_FALL        1.04  // times the step before: it has fallen off
#define SEARCH_STALL       4.0   // what a stall counts on top of its time among the starts
#define SEARCH_FAR         1.5   // times the best: a start that costs as much is left
#define SEARCH_WORSE       1.002 // of the best, still gone on from
#define SEARCH_BLUR        1.5   // of the costs behind a kick: factors up to exp(1.5)
#define SEARCH_EJECT       8     // flips that may follow a kick
#define SEARCH_ALIKE       100   // kicks without success before another start, per 100 gaps

uint32_t hth_search_random(hth_search *x, uint32_t below)
{
    x->rng = x->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((x->rng >> 32) * below) >> 32);
}

// Asks the clock only every few decodes: it costs as much as some of them.
static bool search_over(hth_search *x)
{
    if (x->n_decodes >= x->next_look) {
        x->next_look = x->n_decodes + SEARCH_LOOK;
        x->now_ns = hth_now_ns();
    }
    return x->n_decodes >= x->max_decodes || x->now_ns >= x->deadline_ns;
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
    hth_decode_fit(&x->d, all, limit, o);
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

void hth_search_elite(hth_search *x, const uint8_t *mode, double score)
{
    size_t n = (size_t)x->m->n_gaps;
    int at = x->n_elites;
    for (int i = 0; i < x->n_elites; i++) {
        if (fabs(x->elite_score[i] - score) <= SEARCH_SAME * score) {
            return;
        }
    }
    for (; at > 0 && x->elite_score[at - 1] > score; at--) {
        if (at < HTH_SEARCH_ELITES) {
            memcpy(x->elite + (size_t)at * n, x->elite + (size_t)(at - 1) * n, n);
            x->elite_score[at] = x->elite_score[at - 1];
        }
    }
    if (at < HTH_SEARCH_ELITES) {
        memcpy(x->elite + (size_t)at * n, mode, n);
        x->elite_score[at] = score;
        x->n_elites += x->n_elites < HTH_SEARCH_ELITES;
    }
}

// Takes the modes at hand as the best if they are.
static void search_keep_best(hth_search *x)
{
    if (x->score < x->best_score) {
        x->best_score = x->score;
        memcpy(x->best, x->mode, (size_t)x->m->n_gaps);
    }
}

// .. and among the best few.
static void search_keep_elite(hth_search *x)
{
    if (x->fits && x->stall_price == 0) {
        hth_search_elite(x, x->mode, x->score);
    }
}

// Gives the first `few` gaps of x->rank, until `over` bytes are freed, the modes that stand there,
// and decodes. What makes more bytes too many (a recompute that needs a whole chain, say) is taken
// back, *o too. Returns how many have got them.
static int search_free(hth_search *x, int few, double over, hth_outcome *o)
{
    hth_outcome was = *o;
    double freed = 0, score = x->score;
    int n = 0;
    for (; n < few && freed < over; n++) {
        int g = x->rank[n].gap / 4;
        freed += (double)x->m->bytes[x->m->gap[g].tensor];
        uint8_t to = (uint8_t)(x->rank[n].gap % 4);
        x->rank[n].gap = g * 4 + x->mode[g]; // where it comes from
        x->mode[g] = to;
    }
    x->score = hth_search_try(x, x->mode, o);
    if (o->excess <= was.excess) {
        return n;
    }
    while (n > 0) {
        n--;
        x->mode[x->rank[n].gap / 4] = (uint8_t)(x->rank[n].gap % 4);
    }
    x->score = score;
    *o = was;
    return 0;
}

// Starts from what is at hand and frees bytes where most are missing, cheapest first, stage by
// stage. False: the step would take longer than limit_us.
static bool search_greedy(hth_search *x, double price, bool fastest, double limit_us)
{
    hth_outcome o;
    double over;
    int few = 1 + x->m->n_gaps / SEARCH_FEW, now = few;
    memset(x->banned, 0, (size_t)x->m->n_gaps);
    x->score = hth_search_try(x, x->mode, &o);
    for (int round = 0; round < 4 * x->m->n_gaps && !search_over(x); round++) {
        search_keep_best(x);
        int s = hth_search_worst(x, fastest, &over);
        int n = s >= 0 ? hth_search_ways(x, s, fastest, price, 0) : 0;
        if (n == 0 || (o.excess == 0 && o.time_us >= limit_us)) {
            break;
        }
        // A few at a time: what is worth freeing changes with each.
        int first = x->rank[0].gap;
        if (search_free(x, n < now ? n : now, over, &o) > 0) {
            now = few;
            continue;
        }
        x->banned[first / 4] |= (uint8_t)(now == 1 ? 1 << first % 4 : 0);
        now = 1;
        hth_search_try(x, x->mode, &o);
    }
    memset(x->banned, 0, (size_t)x->m->n_gaps);
    return o.excess > 0 || o.time_us < limit_us;
}

// Tries gap g in `mode`; keeps it if that is better.
static bool search_flip(hth_search *x, int g, hth_gap_mode mode)
{
    hth_outcome o;
    uint8_t old = x->mode[g];
    if (old == mode || !hth_search_allows(x, g, mode) || hth_search_gain(x, g, mode) <= 0) {
        return false;
    }
    x->mode[g] = (uint8_t)mode;
    double score = search_try(x, x->mode, x->score, &o);
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
    hth_search_note(x, &o);
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
    search_keep_elite(x);
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
        if (search_free(x, 1, over, o) == 0) {
            hth_search_try(x, x->mode, o);
        }
    }
}

// Gives back what has become unnecessary: some of what is not kept, in random order.
static void search_complete(hth_search *x, const hth_outcome *o)
{
    int n = 0;
    hth_search_note(x, o);
    for (int g = 0; g < x->m->n_gaps; g++) {
        if (x->modes[g] > 0 && x->mode[g] != HTH_GAP_KEEP) {
            x->order[n++] = g;
        }
    }
    uint64_t end = x->n_decodes + SEARCH_BACK;
    for (int i = 0; i < n && x->n_decodes < end && !search_over(x); i++) {
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
    search_complete(x, &o);
    bool better = x->score < x->best_score;
    search_keep_elite(x);
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
    uint64_t now_ns = hth_now_ns();
    double limit_ms = x->deadline_ns > now_ns ? (double)(x->deadline_ns - now_ns) / 2e6 : 1e-3;
    hth_err err =
        hth_step_bound(x->m, x->d.budget, o.time_us, SEARCH_DUAL,
                       x->max_decodes < UINT64_MAX ? 0 : limit_ms, x->prices, x->mode, &us);
    if (err != HTH_OK) {
        x->d.failed = true;
        return;
    }
    search_greedy(x, 1, false, INFINITY);
    search_descend(x);
}

// Frees what the budget at hand asks for, from the modes at hand. Where the time falls off, by
// stalls as a rule, the link was priced too low: another price is tried, the better one counts.
static void search_step_down(hth_search *x, double before)
{
    static const double prices[] = {0.3, 3};
    size_t n = (size_t)x->m->n_gaps;
    hth_outcome o;
    double least = INFINITY;
    memcpy(x->before, x->mode, n);
    for (size_t i = 0; i < sizeof prices / sizeof *prices && least > before * SEARCH_FALL; i++) {
        memcpy(x->mode, x->before, n);
        search_greedy(x, prices[i], false, INFINITY);
        double score = hth_search_try(x, x->mode, &o);
        if (score < least) {
            least = score;
            memcpy(x->step, x->mode, n);
        }
    }
    memcpy(x->mode, x->step, n);
}

// Starts from everything kept and lets the budget come down in steps, each a little too small for
// what the one before has found; smaller ones where the time falls off. Returns whether it has not
// fallen off in the end.
static bool search_lower(hth_search *x, uint64_t until_ns, uint64_t until)
{
    bool fine = true;
    hth_outcome o;
    uint64_t budget = x->d.budget;
    hth_search_keep_all(x, x->mode);
    hth_search_try(x, x->mode, &o);
    double at = log((double)o.peak_bytes / (double)budget), step = SEARCH_LOWER;
    double best = x->best_score, before = x->m->fastest_us;
    while (at > 0) {
        double to = hth_later(at - step, 0), was = before;
        // What fits more memory is not the best of anything.
        x->d.budget = to > 0 ? (uint64_t)((double)budget * exp(to)) : budget;
        x->best_score = to > 0 ? -INFINITY : best;
        x->deadline_ns = until_ns;
        x->max_decodes = until;
        search_step_down(x, before);
        search_slice(x, until_ns, until, 1 + (int)(SEARCH_LOWER_LATE * at / (at - to)));
        search_descend(x);
        bool fell = x->score > before * SEARCH_FALL;
        before = x->score;
        if (fell && step > SEARCH_LOWER_LEAST && hth_now_ns() < until_ns && x->n_decodes < until) {
            memcpy(x->mode, x->before, (size_t)x->m->n_gaps);
            before = was;
            step /= 2;
            continue;
        }
        for (int i = 0; i < SEARCH_LOWER_KICKS && !search_over(x); i++) {
            search_kick(x);
        }
        at = to;
        fine = !fell;
    }
    x->d.budget = budget;
    return fine;
}

// The ways to begin, in the order in which they are tried.
static const search_start search_start_of[] = {
    {0.3, true, true, true},  {1.0, false, true, false}, {0.02, true, false, false},
    {1.0, false, true, true}, {0.02, true, true, true},  {1.0, true, true, true},
    {0.3, true, true, false}, {3.0, true, true, true},   {1.0, true, true, false},
    {0.02, true, true, false}};
#define SEARCH_STARTS ((int)(sizeof search_start_of / sizeof *search_start_of))

// Whether the policy has what a start begins with.
static bool search_has(const hth_search *x, const search_start *s)
{
    return (s->offload || x->recompute) && (s->recompute || x->offload);
}

// Greedy starts, each gone down from on its own for a share of the time, because the best start is
// seldom the best after that.
static void search_starts(hth_search *x)
{
    uint64_t end_ns = x->deadline_ns, end_decodes = x->max_decodes;
    search_slice(x, end_ns, end_decodes, 3);
    uint64_t until_ns = x->deadline_ns, until = x->max_decodes;
    for (int i = 0; i < SEARCH_STARTS; i++) {
        if (search_has(x, &search_start_of[i]) && x->n_decodes < until && hth_now_ns() < until_ns) {
            search_slice(x, until_ns, until, i == 0 ? 8 : SEARCH_STARTS - i);
            search_begin(x, &search_start_of[i], i == 0);
        }
    }
    x->deadline_ns = end_ns;
    x->max_decodes = end_decodes;
}

// The budget comes down for half of the time; where nothing good comes of that, the first of the
// greedy starts is tried, too, else what the dual does.
static void search_valleys(hth_search *x)
{
    uint64_t end_ns = x->deadline_ns, end_decodes = x->max_decodes;
    search_slice(x, end_ns, end_decodes, 4);
    bool fine = search_lower(x, x->deadline_ns, x->max_decodes);
    search_slice(x, end_ns, end_decodes, fine ? 5 : 3);
    search_begin(x, &search_start_of[0], true);
    if (fine) {
        search_slice(x, end_ns, end_decodes, 8);
        search_dual(x);
    }
    x->deadline_ns = end_ns;
    x->max_decodes = end_decodes;
}

// Kicks until the time is up. When they bring nothing any more, other starts, until these bring
// nothing, either.
static void search_kicks(hth_search *x)
{
    int limit = SEARCH_ALIKE * (1 + x->m->n_gaps / 100), next = 0, starts = 0;
    for (int since = 0; x->m->n_gaps > 0 && !search_over(x); since++) {
        if (search_kick(x)) {
            since = starts = 0;
        }
        if (since >= limit && (!x->dual || ++starts > SEARCH_STARTS)) {
            return;
        }
        if (since >= limit) {
            const search_start *s = &search_start_of[next++ % SEARCH_STARTS];
            if (search_has(x, s)) {
                search_begin(x, s, false);
            }
            since = 0;
        }
    }
}

// From modes that may not fit: a tighter budget than before, as a rule. What is missing is little,
// so it is freed whatever the time, before everything else would leave.
static void search_warm(hth_search *x, hth_outcome *out)
{
    uint64_t deadline_ns = x->deadline_ns, least_ns = hth_now_ns() + SEARCH_WARM_NS;
    x->deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
    memcpy(x->mode, x->best, (size_t)x->m->n_gaps);
    x->best_score = hth_search_try(x, x->best, out);
    if (out->excess > 0) {
        search_greedy(x, 0.3, false, INFINITY);
    }
    hth_search_try(x, x->best, out);
    if (out->excess > 0) {
        search_away(x);
    }
    x->deadline_ns = deadline_ns;
}

void hth_search_run(hth_search *x, uint64_t deadline_ns, bool warm, hth_outcome *out)
{
    x->deadline_ns = deadline_ns;
    x->n_elites = 0;
    if (warm) {
        search_warm(x, out);
    } else {
        x->best_score = INFINITY;
        hth_search_keep_all(x, x->mode);
        x->score = hth_search_try(x, x->mode, out);
        search_keep_best(x);
        if (out->excess == 0 && out->time_us <= x->m->fastest_us * (1 + 1e-9)) {
            return; // nothing is faster
        }
        x->stall_price = SEARCH_STALL;
        if (x->dual) {
            search_valleys(x);
        } else {
            search_starts(x);
        }
    }
    x->stall_price = 0;
    x->best_score = hth_search_try(x, x->best, out);
    memcpy(x->mode, x->best, (size_t)x->m->n_gaps);
    search_descend(x);
    search_kicks(x);
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
                      .before = hth_calloc(n, 1),
                      .banned = hth_calloc(n, 1),
                      .step = hth_calloc(n, 1),
                      .elite = hth_calloc(n, HTH_SEARCH_ELITES),
                      .room = hth_calloc((size_t)m->n_stages + 1, sizeof(int64_t)),
                      .item = hth_calloc((size_t)m->n_stages + 1, sizeof(int)),
                      .end = hth_calloc(n, sizeof(int)),
                      .tie_us = SEARCH_TIE * m->fastest_us / (double)(budget + 1) / m->n_stages,
                      .order = hth_calloc(n, sizeof(int)),
                      .rank = hth_calloc(n, sizeof *x->rank),
                      .cover = hth_calloc((size_t)m->n_stages + 1, sizeof(int))};
    hth_err err = hth_decoder_init(&x->d, m, budget);
    if (err == HTH_OK && (!x->mode || !x->modes || !x->room || !x->elite || !x->before ||
                          !x->banned || !x->step || !x->item || !x->end || !x->best || !x->kept ||
                          !x->first || !x->order || !x->cover || !x->rank)) {
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
    hth_free(x->before);
    hth_free(x->banned);
    hth_free(x->step);
    hth_free(x->elite);
    hth_free(x->room);
    hth_free(x->item);
    hth_free(x->end);
    hth_free(x->order);
    hth_free(x->cover);
    hth_free(x->rank);
    memset(x, 0, sizeof *x);
}
