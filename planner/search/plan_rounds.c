// SPDX-License-Identifier: Apache-2.0
// Rounds of a search: modes, their addresses, and once more with a tighter budget where the
// addresses come out higher than the bytes that the search counted. See plan_rounds.h.
#include "planner/search/plan_rounds.h"

#include "planner/exact/plan_optimal.h"
#include "planner/plan_work.h"
#include "planner/search/plan_search.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define ROUNDS_FINE   2048 // of the budget: steps in which rounds tighten it, at least
#define ROUNDS_HASTE  4    // times those steps, once the search's time is up
#define ROUNDS_MAX    8
#define ROUNDS_ALIKE  1e-9 // of the time: no difference
#define ROUNDS_NEAR   5e-4 // .. and one that is not worth another round
#define ROUNDS_SEARCH 0.8  // of the limit, by which that ends
#define ROUNDS_MIN    0.1  // of the limit, for the search of a round
#define ROUNDS_ONCE   0.68 // of the limit: later than that no round follows one that fits
#define ROUNDS_ELITES 0.1  // of the limit, for the addresses of the best few
// Another plan's decisions are laid out for such a part of the budget less each time, for so long.
#define ROUNDS_LESS  128
#define ROUNDS_AGAIN 0.3 // of the limit
#define ROUNDS_WARM  3   // part of the limit that going on from another plan takes

hth_err hth_rounds_too_big(const hth_problem *problem, const hth_plan_options *options,
                           uint64_t found)
{
    bool known = found < UINT64_MAX;
    return hth_plan_refuse(problem, known ? found : 0, hth_policy_name(options->policy));
}

double hth_rounds_limit_ms(const hth_problem *problem, const hth_plan_options *options)
{
    bool exact = options->policy == HTH_POLICY_OPTIMAL;
    double limit_ms = exact ? HTH_OPTIMAL_MS : hth_plan_limit_ms(problem);
    limit_ms = options->from != NULL ? limit_ms / ROUNDS_WARM : limit_ms;
    return options->limit_ms > 0 ? options->limit_ms : limit_ms;
}

bool hth_rounds_canceled(const hth_plan_options *options)
{
    return options->cancel != NULL && *options->cancel != 0;
}

// A plan on its way: what came of one round, or of one of the best few of its modes.
typedef struct rounds_try {
    hth_plan *plan;        // may be higher than the budget
    uint64_t height, peak; // before algorithms gave way; of the schedule
    double time_us;        // of the best modes
} rounds_try;

// Lays out what the decoder has, decided by `mode`.
static hth_err rounds_lay(const hth_problem *problem, const hth_search *search,
                          const hth_outcome *outcome, const uint8_t *mode, bool hasty,
                          rounds_try *try)
{
    hth_schedule s;
    size_t n = (size_t)search->m->n_intervals;
    try->plan = NULL;
    HTH_TRY(hth_decode_schedule(&search->d, outcome, &s));
    hth_err err = hth_plan_emit(problem, &s, hasty, &try->plan);
    try->height = s.height_bytes + s.resident_bytes;
    try->peak = s.peak_bytes;
    hth_schedule_fini(&s);
    if (err == HTH_OK && n > 0) {
        try->plan->mode = hth_memdup(mode, n);
        try->plan->n_modes = (int)n;
        try->plan->hurries = search->d.hurries;
        try->plan->mode_bytes = search->d.budget;
        if (try->plan->mode == NULL) {
            hth_plan_free(try->plan);
            try->plan = NULL;
            err = hth_no_memory("a plan of %d nodes", search->m->n_stages);
        }
    }
    return err;
}

// Takes try's plan for *best if it fits and is faster; frees the other.
static void rounds_keep(const hth_problem *problem, rounds_try *try, hth_plan **best)
{
    bool fits =
        try->plan != NULL && try->plan->arena_bytes + try->plan->resident_bytes <= problem->budget;
    if (fits && (*best == NULL || try->plan->predicted_us < (*best)->predicted_us)) {
        hth_plan_free(*best);
        *best = try->plan;
    } else {
        hth_plan_free(try->plan);
    }
    try->plan = NULL;
}

// Lays out the best few, best first, until the next one would be slower than what there is, or the
// time is up. *try: the lowest of them.
static hth_err rounds_elites(const hth_problem *problem, hth_search *search, uint64_t deadline_ns,
                             rounds_try *try, hth_plan **best)
{
    hth_outcome o;
    for (int i = 0; i < search->n_elites && (i == 0 || hth_plan_work_now_ns() < deadline_ns); i++) {
        const uint8_t *mode = search->elite + (size_t)i * (size_t)search->m->n_intervals;
        rounds_try one;
        hth_search_try(search, mode, &o);
        if (*best != NULL && (*best)->predicted_us <= o.time_us * (1 + ROUNDS_ALIKE)) {
            break;
        }
        HTH_TRY(rounds_lay(problem, search, &o, mode, true, &one));
        *try = i == 0 || one.height < try->height ? one : *try;
        rounds_keep(problem, &one, best);
    }
    try->plan = NULL;
    hth_search_try(search, search->best, &o);
    return HTH_OK;
}

// Lays `mode` out; *found: the least that a plan takes so far. A round for less than the budget may
// come out within it.
static hth_err rounds_measure(const hth_problem *problem, hth_search *search, const uint8_t *mode,
                              bool hasty, uint64_t *found, hth_plan **best)
{
    hth_outcome out;
    rounds_try t;
    hth_decode(&search->d, mode, &out); // the search gives up on what is very slow
    if (search->d.failed) {
        return hth_no_memory("planning a step of %d nodes", search->m->n_stages);
    }
    HTH_TRY(rounds_lay(problem, search, &out, mode, hasty, &t));
    uint64_t bytes = t.plan->arena_bytes + t.plan->resident_bytes;
    *found = bytes < *found ? bytes : *found;
    rounds_keep(problem, &t, best);
    return HTH_OK;
}

// The search found nothing that fits: what came nearest is laid out, and everything kept, to say
// how much a plan takes.
static hth_err rounds_nearest(const hth_problem *problem, const hth_plan_options *options,
                              hth_search *search, uint64_t *found, hth_plan **best)
{
    // every interval HTH_INTERVAL_KEEP, which is 0
    uint8_t *keep = hth_calloc((size_t)search->m->n_intervals + 1, sizeof *keep);
    if (keep == NULL) {
        return hth_no_memory("a plan");
    }
    hth_err err;
    HTH_GOTO(rounds_measure(problem, search, search->best, true, found, best), out);
    HTH_GOTO(rounds_measure(problem, search, keep, true, found, best), out);
    err = hth_rounds_too_big(problem, options, *found);
out:
    hth_free(keep);
    return err;
}

// Plans for `budget` bytes; *best: the fastest plan within problem->budget so far.
static hth_err rounds_one(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, hth_search *search, uint64_t budget,
                          uint64_t deadline_ns, bool warm, rounds_try *try, uint64_t *found,
                          hth_plan **best)
{
    hth_outcome out;
    uint64_t late_ns = (uint64_t)(ROUNDS_ELITES * hth_rounds_limit_ms(problem, options) * 1e6);
    search->d.budget = budget;
    search->max_decodes =
        options->limit_decodes > 0 ? search->n_decodes + options->limit_decodes : UINT64_MAX;
    if (options->policy == HTH_POLICY_OPTIMAL) {
        HTH_TRY(hth_search_optimal(search, step, options, &out));
    } else {
        hth_search_policy(search, step, options, deadline_ns, warm, &out);
    }
    if (search->d.failed) {
        return hth_no_memory("planning a step of %d nodes", step->n_stages);
    }
    if (out.excess > 0) {
        return rounds_nearest(problem, options, search, found, best);
    }
    hth_plan *few = NULL;
    hth_err err = search->n_elites > 0
                      ? rounds_elites(problem, search, deadline_ns + late_ns, try, &few)
                      : HTH_OK;
    if (err == HTH_OK && few == NULL && (search->n_elites == 0 || *best == NULL)) {
        rounds_try one;
        err = rounds_lay(problem, search, &out, search->best, false, &one);
        *try = try->height == 0 || one.height < try->height ? one : *try;
        rounds_keep(problem, &one, &few);
    }
    *try = (rounds_try){few, try->height, try->peak, out.time_us};
    rounds_keep(problem, try, best);
    return err;
}

// Everything that may leave does, with no bytes to spare, so that addresses have all the room there
// is: slow, but the least that there is a schedule for. HTH_ETOOBIG: that does not fit.
static hth_err rounds_away(const hth_problem *problem, const hth_step *step,
                           const hth_plan_options *options, hth_search *search, uint64_t *found,
                           hth_plan **best)
{
    if (options->policy != HTH_POLICY_HEARTH && options->policy != HTH_POLICY_STR) {
        return hth_rounds_too_big(problem, options, *found);
    }
    search->d.budget = step->floor_bytes;
    hth_search_away(search);
    HTH_TRY(rounds_measure(problem, search, search->mode, true, found, best));
    return *best != NULL ? HTH_OK : hth_rounds_too_big(problem, options, *found);
}

// Lays out what another plan of the step decided. With fewer algorithms to choose from its copies
// may come at other times, and addresses take more: then so for less and less, until `deadline_ns`.
static hth_err rounds_again(const hth_problem *problem, const hth_step *step,
                            const hth_plan_options *options, hth_search *search,
                            uint64_t deadline_ns, uint64_t *found, hth_plan **best)
{
    const hth_plan *from = options->from;
    uint64_t most = problem->budget, less = most / ROUNDS_LESS + 1, bytes = from->mode_bytes;
    bytes = bytes > 0 && bytes < most ? bytes : most;
    while (*best == NULL && bytes >= step->floor_bytes && bytes > less &&
           hth_plan_work_now_ns() < deadline_ns && !hth_rounds_canceled(options)) {
        search->d.budget = bytes;
        HTH_TRY(rounds_measure(problem, search, from->mode, true, found, best));
        if (*best == NULL) {
            HTH_TRY(rounds_measure(problem, search, from->mode, false, found, best));
        }
        bytes -= less;
    }
    return HTH_OK;
}

static hth_err rounds_all(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, hth_search *search, bool last,
                          uint64_t *found, hth_plan **out)
{
    double limit_ms = hth_rounds_limit_ms(problem, options);
    uint64_t budget = problem->budget, start_ns = hth_plan_work_now_ns();
    static const double share[ROUNDS_MAX] = {0.6,  0.7,  0.76, 0.8,
                                             0.84, 0.88, 0.94, 1}; // of the time
    hth_plan *best = NULL;
    hth_err err = HTH_OK;
    bool warm = options->from != NULL && options->from->n_modes == step->n_intervals &&
                step->n_intervals > 0;
    if (warm) {
        memcpy(search->best, options->from->mode, (size_t)step->n_intervals);
        err = rounds_again(problem, step, options, search,
                           start_ns + (uint64_t)(ROUNDS_AGAIN * limit_ms * 1e6), found, &best);
    }
    for (int round = 0; err == HTH_OK && round < ROUNDS_MAX; round++) {
        // Addresses may have taken some of the time: a little is left for the search in any case.
        double from_ms = (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
        double until_ms = fmin(from_ms + ROUNDS_MIN * limit_ms, ROUNDS_SEARCH * limit_ms);
        bool soon = options->any && round == 0; // what fits then will do
        until_ms = fmax(until_ms, soon ? 0 : share[round] * limit_ms);
        rounds_try t = {0};
        err =
            rounds_one(problem, step, options, search, budget,
                       start_ns + (uint64_t)(until_ms * 1e6), round > 0 || warm, &t, found, &best);
        *found = t.height > 0 && t.height < *found ? t.height : *found;
        bool fits = t.height <= problem->budget ||
                    (best != NULL && best->predicted_us <= t.time_us * (1 + ROUNDS_NEAR));
        // A plan that fits is searched on from once, if addresses have left time for that.
        double past_ms = (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
        bool late = best != NULL && past_ms > (fits ? ROUNDS_ONCE : 1) * limit_ms;
        bool once = options->any || !hth_policy_searches(options->policy);
        if (err == HTH_OK && best == NULL && hth_rounds_canceled(options)) {
            err = hth_rounds_too_big(problem, options, *found);
        }
        if (err != HTH_OK || late || hth_rounds_canceled(options) ||
            (fits && (round > 0 || once)) ||
            (best != NULL && options->policy == HTH_POLICY_OPTIMAL)) {
            break;
        }
        if (fits) { // more of the same
            continue;
        }
        // Algorithms gave way to addresses, or nothing helped: plans for less may be better. The
        // excess, and more each time: addresses lose about the same share in every round.
        // A little at least, and less than this schedule has: the same one would come again.
        uint64_t over = (t.height - problem->budget) / 2 * (uint64_t)(round + 2) + HTH_PLAN_ALIGN;
        uint64_t least = problem->budget / ROUNDS_FINE * (uint64_t)(round + 1);
        over = over > least ? over : least;
        over *= past_ms > ROUNDS_SEARCH * limit_ms ? ROUNDS_HASTE : 1;
        budget = t.peak < budget ? t.peak : budget;
        if (over >= budget || round == ROUNDS_MAX - 1) {
            err = hth_rounds_too_big(problem, options, *found);
            break;
        }
        budget -= over;
    }
    if (best == NULL && err == HTH_ETOOBIG && last) {
        err = rounds_away(problem, step, options, search, found, &best);
    }
    if (best == NULL || err == HTH_ENOMEM) {
        hth_plan_free(best);
        return err;
    }
    best->lower_bound_us = search->proven_us;
    *out = best;
    return HTH_OK;
}

void hth_rounds_faster(hth_plan **plan, hth_plan **best)
{
    hth_plan *other = *plan;
    if (other != NULL && (*best == NULL || other->predicted_us < (*best)->predicted_us)) {
        other = *best;
        *best = *plan;
    }
    hth_plan_free(other);
    *plan = NULL;
}

// Plans by the greedy policies that options->policy contains, where they may be faster than *best:
// what their modes come to is known from the search's start.
static hth_err rounds_greedy(const hth_problem *problem, hth_step *step,
                             const hth_plan_options *options, hth_search *search, uint64_t *found,
                             hth_plan **best)
{
    for (int k = 0; k < HTH_N_POLICIES; k++) {
        double us = search->given_us[k];
        if (us > 0 && us < INFINITY && (*best == NULL || us < (*best)->predicted_us)) {
            hth_plan_options greedy = *options;
            hth_plan *plan = NULL;
            greedy.policy = (hth_policy)k;
            hth_err err = rounds_all(problem, step, &greedy, search, false, found, &plan);
            if (err != HTH_OK && err != HTH_ETOOBIG) {
                return err;
            }
            hth_rounds_faster(&plan, best);
        }
    }
    return *best != NULL ? HTH_OK : hth_rounds_too_big(problem, options, *found);
}

// Whatever fits comes first: near its floor a step may take so many times as long that, by score,
// one that does not fit is better. And copies give way to faster algorithms, which is worth what it
// costs each decode where the first search has left much.
hth_err hth_rounds_search(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, hth_rounds rounds, bool concurrent,
                          hth_dual **dual, uint64_t *found, hth_plan **out)
{
    hth_search search;
    bool last = rounds == HTH_ROUNDS_LAST;
    HTH_TRY(hth_search_open(&search, step, problem->budget, options));
    search.prices = dual;
    search.concurrent = concurrent;
    search.fits_first = rounds == HTH_ROUNDS_OTHER;
    search.d.hurries = search.fits_first || (options->from != NULL && options->from->hurries);
    hth_err err = rounds_all(problem, step, options, &search, last, found, out);
    bool goes = !hth_rounds_canceled(options) && (err == HTH_OK || err == HTH_ETOOBIG);
    if (hth_policy_searches(options->policy) && goes) {
        err = rounds_greedy(problem, step, options, &search, found, out);
    }
    hth_search_close(&search);
    return err;
}
