// SPDX-License-Identifier: Apache-2.0
// Where the search over modes begins (plan_search.h): greedy at several prices of the link, what
// the certificate's dual does, and a budget that comes down from everything kept.
#include "planner/bound/plan_bound.h"
#include "planner/search/plan_search.h"

#include <math.h>
#include <string.h>

#define SEARCH_DUAL        100  // iterations of the dual for a start
#define SEARCH_MAX         0.6  // of its solutions: what the dual does more often is always done
#define SEARCH_LOWER       0.12 // part of the budget by which it comes down at once, at most
#define SEARCH_LOWER_MIN   0.03 // .. below which steps are not halved
#define SEARCH_LOWER_STEPS 26   // .. of the time is the most for a step, where there are few
#define SEARCH_LOWER_FALLS 3 // more steps at which the time falls off before half of the time: left
#define SEARCH_LOWER_LATE  4.0  // parts
#define SEARCH_LOWER_KICKS 8    // .. after each, at most
#define SEARCH_FALL        1.04 // times the step before: it has fallen off
#define SEARCH_FAR         1.5  // times the best: a start that costs as much is left

// The least memory there can be: everything is away whenever it may.
void hth_search_away(hth_search *search)
{
    hth_outcome o;
    for (int g = 0; g < search->m->n_intervals; g++) {
        search->mode[g] = HTH_INTERVAL_KEEP;
        if (hth_search_allows(search, g, HTH_INTERVAL_OFFLOAD)) {
            search->mode[g] = HTH_INTERVAL_OFFLOAD;
        } else if (hth_search_allows(search, g, HTH_INTERVAL_RECOMPUTE)) {
            search->mode[g] = HTH_INTERVAL_RECOMPUTE;
        }
    }
    search->score = hth_search_try(search, search->mode, &o);
    hth_search_keep_best(search);
}

// Gives what comes next its share of what is left until then: two parts of `parts`, or all of it.
static void search_slice(hth_search *search, uint64_t until_ns, uint64_t until, int parts)
{
    uint64_t now_ns = hth_plan_work_now_ns(), k = parts > 2 ? (uint64_t)parts : 2;
    search->deadline_ns = now_ns < until_ns ? now_ns + (until_ns - now_ns) / k * 2 : until_ns;
    if (until < UINT64_MAX) {
        search->max_decodes = search->n_decodes < until
                                  ? search->n_decodes + (until - search->n_decodes) / k * 2
                                  : until;
    }
}

// Prices of the link, levers alone, room for the fastest algorithms or the smallest.
typedef struct search_start {
    double price;
    bool offload, recompute, fastest;
} search_start;

// One start: greedy with its levers, then down with all of them. The first one ends whatever it
// takes, or there is nothing to go on from.
static void search_begin(hth_search *search, const search_start *start, bool first)
{
    bool offload = search->offload, recompute = search->recompute;
    hth_outcome o;
    hth_search_try(search, search->best, &o);
    double limit = o.excess > 0 ? INFINITY : o.time_us * SEARCH_FAR;
    hth_search_keep_all(search, search->mode);
    search->offload = offload && start->offload;
    search->recompute = recompute && start->recompute;
    bool near = hth_search_greedy(search, start->price, start->fastest, limit);
    search->offload = offload;
    search->recompute = recompute;
    if (first && o.excess > 0) {
        hth_search_try(search, search->best, &o);
        if (o.excess > 0) { // better than nothing
            hth_search_away(search);
        }
        memcpy(search->mode, search->best, (size_t)search->m->n_intervals);
    }
    if (near) {
        hth_search_descend(search);
    }
}

// What the dual does in more than `least` of its solutions, or, with `blur`, in more than a share
// that is up to `least` less and differs from tensor to tensor; then bytes are freed until it fits.
static void search_round(hth_search *search, double least, bool blur)
{
    const hth_step *m = search->m;
    int tensor = -1;
    double at = least;
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_bound_share *s = &search->share[g];
        if (m->interval[g].tensor != tensor && blur) {
            at = least * (1 - 0.001 * hth_search_random(search, 1000));
        }
        tensor = m->interval[g].tensor;
        search->mode[g] = s->offload > s->recompute ? HTH_INTERVAL_OFFLOAD : HTH_INTERVAL_RECOMPUTE;
        if ((double)s->offload + (double)s->recompute <= at) {
            search->mode[g] = HTH_INTERVAL_KEEP;
        }
    }
}

// Starts from what the dual does.
static void search_dual(hth_search *search)
{
    static const double least[] = {0.5, 0.35, 0.2, 0.1};
    hth_outcome o;
    double us, best = INFINITY, at = 0;
    hth_search_try(search, search->best, &o);
    uint64_t now_ns = hth_plan_work_now_ns();
    double limit_ms =
        search->deadline_ns > now_ns ? (double)(search->deadline_ns - now_ns) / 2e6 : 1e-3;
    hth_err err = hth_step_bound(search->m, search->d.budget, o.time_us, SEARCH_DUAL,
                                 search->max_decodes < UINT64_MAX ? 0 : limit_ms, search->prices,
                                 search->share, &us);
    if (err != HTH_OK) {
        search->d.failed = true;
        return;
    }
    search->shares = true;
    for (size_t i = 0; i < sizeof least / sizeof *least; i++) {
        search_round(search, least[i], false);
        double score = hth_search_try(search, search->mode, &o);
        at = score < best ? least[i] : at;
        best = hth_sooner(score, best);
    }
    search_round(search, at, false);
    hth_search_greedy(search, 1, false, INFINITY);
    hth_search_descend(search);
}

// Frees what the budget at hand asks for, from the modes at hand. Where the time falls off, by
// stalls as a rule, the link was priced too low: another price is tried, the better one counts.
static void search_step_down(hth_search *search, double before)
{
    static const double prices[] = {0.3, 3};
    size_t n = (size_t)search->m->n_intervals;
    hth_outcome o;
    double least = INFINITY;
    memcpy(search->before, search->mode, n);
    for (size_t i = 0; i < sizeof prices / sizeof *prices && least > before * SEARCH_FALL; i++) {
        memcpy(search->mode, search->before, n);
        hth_search_greedy(search, prices[i], false, INFINITY);
        double score = hth_search_try(search, search->mode, &o);
        if (score < least) {
            least = score;
            memcpy(search->step, search->mode, n);
        }
    }
    memcpy(search->mode, search->step, n);
}

// Starts from everything kept and lets the budget come down in steps, each a little too small for
// what the one before has found; smaller ones where the time falls off. Returns whether it has not
// fallen off in the end.
static bool search_lower(hth_search *search, uint64_t until_ns, uint64_t until)
{
    bool fine = true;
    int falls = 0;
    uint64_t now_ns = hth_plan_work_now_ns(), half_ns = now_ns + (until_ns - now_ns) / 2;
    hth_outcome o;
    uint64_t budget = search->d.budget;
    hth_search_keep_all(search, search->mode);
    hth_search_try(search, search->mode, &o);
    double at = log((double)o.peak_bytes / hth_later((double)budget, 1)), step = SEARCH_LOWER;
    double best = search->best_score, before = search->m->fastest_us;
    while (at > 0 && (falls <= SEARCH_LOWER_FALLS || hth_plan_work_now_ns() > half_ns)) {
        double to = hth_later(at - step, 0), was = before;
        // What fits more memory is not the best of anything.
        search->d.budget = to > 0 ? (uint64_t)((double)budget * exp(to)) : budget;
        search->best_score = to > 0 ? -INFINITY : best;
        search->deadline_ns = until_ns;
        search->max_decodes = until;
        search_step_down(search, before);
        search_slice(search, until_ns, until, 1 + (int)(SEARCH_LOWER_LATE * at / (at - to)));
        uint64_t max_ns = hth_plan_work_now_ns() + (until_ns - now_ns) / SEARCH_LOWER_STEPS;
        search->deadline_ns = search->deadline_ns < max_ns ? search->deadline_ns : max_ns;
        hth_search_descend(search);
        bool fell = search->score > before * SEARCH_FALL;
        before = search->score;
        if (fell && step > SEARCH_LOWER_MIN && hth_plan_work_now_ns() < until_ns &&
            search->n_decodes < until) {
            memcpy(search->mode, search->before, (size_t)search->m->n_intervals);
            before = was;
            step /= 2;
            continue;
        }
        for (int i = 0; i < SEARCH_LOWER_KICKS && !hth_search_over(search); i++) {
            hth_search_kick(search);
        }
        at = to;
        fine = !fell;
        falls += fell;
    }
    search->d.budget = budget;
    search->best_score = at > 0 ? best : search->best_score;
    return fine && at <= 0;
}

// The ways to begin, in the order in which they are tried.
static const search_start search_start_of[] = {
    {0.3, true, true, true},  {1.0, false, true, false}, {0.02, true, false, false},
    {1.0, false, true, true}, {0.02, true, true, true},  {1.0, true, true, true},
    {0.3, true, true, false}, {3.0, true, true, true},   {1.0, true, true, false},
    {0.02, true, true, false}};
#define SEARCH_STARTS ((int)(sizeof search_start_of / sizeof *search_start_of))

// Whether the policy has what a start begins with.
static bool search_has(const hth_search *search, const search_start *start)
{
    return (start->offload || search->recompute) && (start->recompute || search->offload);
}

// Greedy starts, each gone down from on its own for a share of the time, because the best start is
// seldom the best after that.
void hth_search_starts(hth_search *search)
{
    uint64_t end_ns = search->deadline_ns, end_decodes = search->max_decodes;
    search_slice(search, end_ns, end_decodes, 3);
    uint64_t until_ns = search->deadline_ns, until = search->max_decodes;
    for (int i = 0; i < SEARCH_STARTS; i++) {
        if (search_has(search, &search_start_of[i]) && search->n_decodes < until &&
            hth_plan_work_now_ns() < until_ns) {
            search_slice(search, until_ns, until, i == 0 ? 8 : SEARCH_STARTS - i);
            search_begin(search, &search_start_of[i], i == 0);
        }
    }
    search->deadline_ns = end_ns;
    search->max_decodes = end_decodes;
}

// The budget comes down, for a third of the time at most; then the first greedy start and what the
// dual does, or, where nothing good came of that, all greedy starts.
void hth_search_valleys(hth_search *search)
{
    uint64_t end_ns = search->deadline_ns, end_decodes = search->max_decodes;
    search_slice(search, end_ns, end_decodes, 6);
    bool fine = search_lower(search, search->deadline_ns, search->max_decodes);
    search_slice(search, end_ns, end_decodes, fine ? 8 : 4);
    if (fine) {
        search_begin(search, &search_start_of[0], true);
    } else {
        hth_search_starts(search);
    }
    if (fine) {
        search_slice(search, end_ns, end_decodes, 4);
        search_dual(search);
    }
    search->deadline_ns = end_ns;
    search->max_decodes = end_decodes;
}

bool hth_search_another(hth_search *search, int *next)
{
    int i = *next / 2 % SEARCH_STARTS;
    bool round = search->shares && (*next)++ % 2 == 0;
    const search_start *s = &search_start_of[i];
    if (round) {
        search_round(search, SEARCH_MAX, true);
        hth_search_greedy(search, 1, false, INFINITY);
        hth_search_descend(search);
    } else if (search_has(search, s)) {
        search_begin(search, s, false);
    }
    *next += search->shares ? 0 : 2;
    return *next < 2 * SEARCH_STARTS;
}
