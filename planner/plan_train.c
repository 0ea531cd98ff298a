// SPDX-License-Identifier: Apache-2.0
// Plans a training step: search, addresses, and once more with a tighter budget if the addresses
// come out higher than the bytes that the search counted.
#include "planner/bound/plan_bound.h"
#include "planner/exact/plan_optimal.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRAIN_LIMIT_MS 100 // up to this many nodes, ..
#define TRAIN_NODES    500
#define TRAIN_NODE_MS  0.6  // .. for each one more, ..
#define TRAIN_MAX_MS   1000 // .. at most
#define TRAIN_AGAIN    5    // times the limit, when nothing was found
#define TRAIN_FINE     2048 // of the budget: steps in which rounds tighten it, at least
#define TRAIN_HASTE    4    // times those steps, once the search's time is up
#define TRAIN_ROUNDS   8
#define TRAIN_ALIKE    1e-9 // of the time: no difference
#define TRAIN_NEAR     5e-4 // .. and one that is not worth another round
#define TRAIN_SEARCH   0.8  // of the limit, by which that ends
#define TRAIN_MIN      0.1  // of the limit, for the search of a round
#define TRAIN_ONCE     0.68 // of the limit: later than that no round follows one that fits
#define TRAIN_ELITES   0.1  // of the limit, for the addresses of the best few
#define TRAIN_BOUND    300 // iterations of the bound, or, where time limits it, as many as may help
#define TRAIN_BOUND_UP 2000
#define TRAIN_BOUND_MS 0.03 // .. within what is left of the limit, or at least this share of it
#define TRAIN_WARM     3    // part of the limit that going on from another plan takes
#define TRAIN_REST     0.35 // of the limit: as much has to be left for another search
#define TRAIN_POOR     1.3  // times the fastest algorithms' time: worth the searches it contains
#define TRAIN_BELOW_MS 5    // of the search below the proven floor, for what to say
#define TRAIN_FASTEST  1e-9 // of the time above the fastest algorithms': nothing is faster

// found: the bytes of a plan.
static hth_err train_too_big(const hth_problem *problem, const hth_plan_options *options,
                             uint64_t found)
{
    return hth_plan_refuse(problem, found, hth_policy_name(options->policy));
}

double hth_plan_limit_ms(const hth_problem *problem)
{
    double more = TRAIN_NODE_MS * fmax(problem->n_nodes - TRAIN_NODES, 0);
    return fmin(TRAIN_LIMIT_MS + more, TRAIN_MAX_MS);
}

// The time that the search may take.
static double train_limit_ms(const hth_problem *problem, const hth_plan_options *options)
{
    double limit_ms = hth_plan_limit_ms(problem);
    limit_ms = options->from != NULL ? limit_ms / TRAIN_WARM : limit_ms;
    return options->limit_ms > 0 ? options->limit_ms : limit_ms;
}

static bool train_canceled(const hth_plan_options *options)
{
    return options->cancel != NULL && *options->cancel != 0;
}

// A plan on its way: what came of one round, or of one of the best few of its modes.
typedef struct train_try {
    hth_plan *plan;        // may be higher than the budget
    uint64_t height, peak; // before algorithms gave way; of the schedule
    double time_us;        // of the best modes
} train_try;

// Lays out what the decoder has, decided by `mode`.
static hth_err train_lay(const hth_problem *problem, const hth_search *search,
                         const hth_outcome *outcome, const uint8_t *mode, bool hasty,
                         train_try *try)
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
        if (try->plan->mode == NULL) {
            hth_plan_free(try->plan);
            try->plan = NULL;
            err = hth_no_memory("a plan of %d nodes", search->m->n_stages);
        }
    }
    return err;
}

// Takes try's plan for *best if it fits and is faster; frees the other.
static void train_keep(const hth_problem *problem, train_try *try, hth_plan **best)
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
static hth_err train_elites(const hth_problem *problem, hth_search *search, uint64_t deadline_ns,
                            train_try *try, hth_plan **best)
{
    hth_outcome o;
    for (int i = 0; i < search->n_elites && (i == 0 || hth_plan_work_now_ns() < deadline_ns); i++) {
        const uint8_t *mode = search->elite + (size_t)i * (size_t)search->m->n_intervals;
        train_try one;
        hth_search_try(search, mode, &o);
        if (*best != NULL && (*best)->predicted_us <= o.time_us * (1 + TRAIN_ALIKE)) {
            break;
        }
        HTH_TRY(train_lay(problem, search, &o, mode, true, &one));
        *try = i == 0 || one.height < try->height ? one : *try;
        train_keep(problem, &one, best);
    }
    try->plan = NULL;
    hth_search_try(search, search->best, &o);
    return HTH_OK;
}

// Lays `mode` out; *found: the least that a plan takes so far. A round for less than the budget may
// come out within it.
static hth_err train_measure(const hth_problem *problem, hth_search *search, const uint8_t *mode,
                             uint64_t *found, hth_plan **best)
{
    hth_outcome out;
    train_try t;
    hth_decode(&search->d, mode, &out); // the search gives up on what is very slow
    if (search->d.failed) {
        return hth_no_memory("planning a step of %d nodes", search->m->n_stages);
    }
    HTH_TRY(train_lay(problem, search, &out, mode, true, &t));
    uint64_t bytes = t.plan->arena_bytes + t.plan->resident_bytes;
    *found = bytes < *found ? bytes : *found;
    train_keep(problem, &t, best);
    return HTH_OK;
}

// The search found nothing that fits: what came nearest is laid out, and everything kept, to say
// how much a plan takes.
static hth_err train_nearest(const hth_problem *problem, const hth_plan_options *options,
                             hth_search *search, uint64_t *found, hth_plan **best)
{
    // every interval HTH_INTERVAL_KEEP, which is 0
    uint8_t *keep = hth_calloc((size_t)search->m->n_intervals + 1, sizeof *keep);
    if (keep == NULL) {
        return hth_no_memory("a plan");
    }
    hth_err err;
    HTH_GOTO(train_measure(problem, search, search->best, found, best), out);
    HTH_GOTO(train_measure(problem, search, keep, found, best), out);
    err = train_too_big(problem, options, *found);
out:
    hth_free(keep);
    return err;
}

// Plans for `budget` bytes; *best: the fastest plan within problem->budget so far.
static hth_err train_round(const hth_problem *problem, hth_step *step,
                           const hth_plan_options *options, hth_search *search, uint64_t budget,
                           uint64_t deadline_ns, bool warm, train_try *try, uint64_t *found,
                           hth_plan **best)
{
    hth_outcome out;
    uint64_t late_ns = (uint64_t)(TRAIN_ELITES * train_limit_ms(problem, options) * 1e6);
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
        return train_nearest(problem, options, search, found, best);
    }
    hth_plan *few = NULL;
    hth_err err = search->n_elites > 0
                      ? train_elites(problem, search, deadline_ns + late_ns, try, &few)
                      : HTH_OK;
    if (err == HTH_OK && few == NULL && (search->n_elites == 0 || *best == NULL)) {
        train_try one;
        err = train_lay(problem, search, &out, search->best, false, &one);
        *try = try->height == 0 || one.height < try->height ? one : *try;
        train_keep(problem, &one, &few);
    }
    *try = (train_try){few, try->height, try->peak, out.time_us};
    train_keep(problem, try, best);
    return err;
}

// Everything that may leave does, with no bytes to spare, so that addresses have all the room there
// is: slow, but the least that there is a schedule for. HTH_ETOOBIG: that does not fit.
static hth_err train_away(const hth_problem *problem, const hth_step *step,
                          const hth_plan_options *options, hth_search *search, uint64_t *found,
                          hth_plan **best)
{
    if (options->policy != HTH_POLICY_HEARTH && options->policy != HTH_POLICY_STR) {
        return train_too_big(problem, options, *found);
    }
    search->d.budget = step->floor_bytes;
    hth_search_away(search);
    HTH_TRY(train_measure(problem, search, search->mode, found, best));
    return *best != NULL ? HTH_OK : train_too_big(problem, options, *found);
}

static hth_err train_rounds(const hth_problem *problem, hth_step *step,
                            const hth_plan_options *options, hth_search *search, bool last,
                            uint64_t *found, hth_plan **out)
{
    double limit_ms = train_limit_ms(problem, options);
    uint64_t budget = problem->budget, start_ns = hth_plan_work_now_ns();
    static const double share[TRAIN_ROUNDS] = {0.6,  0.7,  0.76, 0.8,
                                               0.84, 0.88, 0.94, 1}; // of the time
    hth_plan *best = NULL;
    hth_err err = HTH_OK;
    bool warm = options->from != NULL && options->from->n_modes == step->n_intervals &&
                step->n_intervals > 0;
    if (warm) {
        memcpy(search->best, options->from->mode, (size_t)step->n_intervals);
    }
    for (int round = 0; err == HTH_OK && round < TRAIN_ROUNDS; round++) {
        // Addresses may have taken some of the time: a little is left for the search in any case.
        double from_ms = (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
        double until_ms = fmin(from_ms + TRAIN_MIN * limit_ms, TRAIN_SEARCH * limit_ms);
        bool soon = options->any && round == 0; // what fits then will do
        until_ms = fmax(until_ms, soon ? 0 : share[round] * limit_ms);
        train_try t = {0};
        err =
            train_round(problem, step, options, search, budget,
                        start_ns + (uint64_t)(until_ms * 1e6), round > 0 || warm, &t, found, &best);
        bool fits = t.height <= problem->budget ||
                    (best != NULL && best->predicted_us <= t.time_us * (1 + TRAIN_NEAR));
        // A plan that fits is searched on from once, if addresses have left time for that.
        double past_ms = (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
        bool late = best != NULL && past_ms > (fits ? TRAIN_ONCE : 1) * limit_ms;
        bool once = options->any || !hth_policy_searches(options->policy);
        if (err == HTH_OK && best == NULL && train_canceled(options)) {
            err = train_too_big(problem, options, *found);
        }
        if (err != HTH_OK || late || train_canceled(options) || (fits && (round > 0 || once)) ||
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
        uint64_t least = problem->budget / TRAIN_FINE * (uint64_t)(round + 1);
        over = over > least ? over : least;
        over *= past_ms > TRAIN_SEARCH * limit_ms ? TRAIN_HASTE : 1;
        budget = t.peak < budget ? t.peak : budget;
        if (over >= budget || round == TRAIN_ROUNDS - 1) {
            *found = t.height < *found ? t.height : *found;
            err = train_too_big(problem, options, *found);
            break;
        }
        budget -= over;
    }
    if (best == NULL && err == HTH_ETOOBIG && last) {
        err = train_away(problem, step, options, search, found, &best);
    }
    if (best == NULL || err == HTH_ENOMEM) {
        hth_plan_free(best);
        return err;
    }
    best->lower_bound_us = search->proven_us;
    *out = best;
    return HTH_OK;
}

// Takes *plan for *best if there is none or it is faster; frees the other.
static void train_faster(hth_plan **plan, hth_plan **best)
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
static hth_err train_greedy(const hth_problem *problem, hth_step *step,
                            const hth_plan_options *options, hth_search *search, uint64_t *found,
                            hth_plan **best)
{
    for (int k = 0; k < HTH_N_POLICIES; k++) {
        double us = search->given_us[k];
        if (us > 0 && us < INFINITY && (*best == NULL || us < (*best)->predicted_us)) {
            hth_plan_options greedy = *options;
            hth_plan *plan = NULL;
            greedy.policy = (hth_policy)k;
            hth_err err = train_rounds(problem, step, &greedy, search, false, found, &plan);
            if (err != HTH_OK && err != HTH_ETOOBIG) {
                return err;
            }
            train_faster(&plan, best);
        }
    }
    return *best != NULL ? HTH_OK : train_too_big(problem, options, *found);
}

// Which search: the first one, one with what that left of its limit, or one before a refusal.
typedef enum train_which { TRAIN_FIRST, TRAIN_OTHER, TRAIN_LAST } train_which;

// The other search has other rules. Whatever fits comes first: near its floor a step may take so
// many times as long that, by score, one that does not fit is better. And copies give way to faster
// algorithms, which is worth what it costs each decode where the first search has left much.
static hth_err train_search(const hth_problem *problem, hth_step *step,
                            const hth_plan_options *options, train_which which, hth_dual **dual,
                            uint64_t *found, hth_plan **out)
{
    hth_search search;
    bool last = which == TRAIN_LAST;
    HTH_TRY(hth_search_open(&search, step, problem->budget, options));
    search.prices = dual;
    search.fits_first = which == TRAIN_OTHER;
    search.d.hurries = search.fits_first || (options->from != NULL && options->from->hurries);
    hth_err err = train_rounds(problem, step, options, &search, last, found, out);
    bool goes = !train_canceled(options) && (err == HTH_OK || err == HTH_ETOOBIG);
    if (hth_policy_searches(options->policy) && goes) {
        err = train_greedy(problem, step, options, &search, found, out);
    }
    hth_search_close(&search);
    return err;
}

// Whether `other` is one of the searching policies that a policy contains, and is not contained in
// another one of these.
static bool train_part(hth_policy policy, hth_policy other)
{
    bool part = hth_policy_contains(policy, other) && hth_policy_searches(other);
    for (int k = 0; k < HTH_N_POLICIES; k++) {
        part = part && !(hth_policy_contains(policy, (hth_policy)k) &&
                         hth_policy_contains((hth_policy)k, other));
    }
    return part;
}

// What a search leaves of its limit goes to another one, of steps of a few dozen nodes most of it.
// Takes its plan for *out if that is faster.
static hth_err train_rest(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, uint64_t start_ns, hth_dual **dual,
                          uint64_t *found, hth_plan **out)
{
    double limit_ms = train_limit_ms(problem, options);
    double left_ms = limit_ms - (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
    bool fastest = *out != NULL && (*out)->predicted_us <= step->fastest_us * (1 + TRAIN_FASTEST);
    if (fastest || options->from != NULL || options->limit_decodes > 0 ||
        left_ms < TRAIN_REST * limit_ms) {
        return *out != NULL ? HTH_OK : HTH_ETOOBIG;
    }
    hth_plan_options rest = *options;
    hth_plan *plan = NULL;
    rest.limit_ms = left_ms;
    rest.seed = options->seed + 1;
    hth_err err = train_search(problem, step, &rest, TRAIN_OTHER, dual, found, &plan);
    train_faster(&plan, out);
    return *out != NULL && err == HTH_ETOOBIG ? HTH_OK : err;
}

// No schedule fits a budget below the proven floor. A short search finds memory that a plan exists
// for, which the refusal names.
static hth_err train_below(const hth_problem *problem, hth_step *step,
                           const hth_plan_options *options, hth_dual **dual, uint64_t *found,
                           hth_plan **out)
{
    hth_plan_options little = *options;
    little.from = NULL;
    little.any = true;
    little.limit_ms = fmin(TRAIN_BELOW_MS, train_limit_ms(problem, options));
    hth_err err = train_search(problem, step, &little, TRAIN_LAST, dual, found, out);
    return err == HTH_ETOOBIG ? train_too_big(problem, options, *found) : err;
}

// Plans by one policy. A baseline is never worse than another one that it contains, which has the
// same limit as if it were asked for; hearth is not, where its own plan is a poor one.
static hth_err train_policy(const hth_problem *problem, hth_step *step,
                            const hth_plan_options *options, hth_dual **dual, uint64_t *found,
                            hth_plan **out)
{
    hth_plan_options more = *options;
    uint64_t start_ns = hth_plan_work_now_ns();
    hth_err err = train_search(problem, step, options, TRAIN_FIRST, dual, found, out);
    bool more_wanted =
        !options->any && !train_canceled(options) && (err == HTH_OK || err == HTH_ETOOBIG);
    if (hth_policy_searches(options->policy) && more_wanted) {
        err = train_rest(problem, step, options, start_ns, dual, found, out);
    }
    more.from = NULL;
    bool poor = *out != NULL && (*out)->predicted_us > TRAIN_POOR * step->fastest_us;
    bool parts = more_wanted && (options->policy != HTH_POLICY_HEARTH || poor);
    for (int k = 0; k < HTH_N_POLICIES && parts && options->from == NULL; k++) {
        hth_plan *part = NULL;
        more.policy = (hth_policy)k;
        if (!train_part(options->policy, more.policy) || train_canceled(options) ||
            (err != HTH_OK && err != HTH_ETOOBIG)) {
            continue;
        }
        hth_err part_err = train_policy(problem, step, &more, dual, found, &part);
        train_faster(&part, out);
        err = part_err == HTH_OK || part_err == HTH_ETOOBIG ? err : part_err;
        err = *out != NULL && err == HTH_ETOOBIG ? HTH_OK : err;
    }
    if (err == HTH_ETOOBIG && hth_policy_searches(options->policy) && !train_canceled(options) &&
        step->floor_bytes <= problem->budget) {
        // Near the floor a plan may exist that the first search missed: a refusal is worth more
        // time.
        more = *options;
        more.from = NULL;
        more.seed = options->seed + 1;
        uint64_t again = options->any ? 1 : TRAIN_AGAIN;
        more.limit_ms = (double)again * train_limit_ms(problem, options);
        more.limit_decodes = again * options->limit_decodes;
        err = train_search(problem, step, &more, TRAIN_LAST, dual, found, out);
    }
    return err == HTH_ETOOBIG ? train_too_big(problem, options, *found) : err;
}

// Adds what is known of a plan once it is there.
static hth_err train_certify(const hth_problem *problem, hth_step *step,
                             const hth_plan_options *options, uint64_t work_ns, hth_dual **dual,
                             hth_plan *plan)
{
    double us, proven_us = fmax(plan->lower_bound_us, step->fastest_us);
    bool timed = options->limit_decodes == 0;
    double limit_ms = train_limit_ms(problem, options);
    double left_ms = limit_ms - (double)(hth_plan_work_now_ns() - work_ns) / 1e6;
    left_ms = timed ? fmax(left_ms, limit_ms * TRAIN_BOUND_MS) : 0;
    snprintf(plan->policy, sizeof plan->policy, "%s", hth_policy_name(options->policy));
    plan->seed = options->seed;
    if (options->any) { // nobody asks how good it is
        plan->lower_bound_us = fmin(proven_us, plan->predicted_us);
        return HTH_OK;
    }
    HTH_TRY(hth_step_bound(step, problem->budget, plan->predicted_us,
                           timed ? TRAIN_BOUND_UP : TRAIN_BOUND, left_ms, dual, NULL, &us));
    plan->lower_bound_us = fmin(fmax(us, proven_us), plan->predicted_us);
    return HTH_OK;
}

hth_err hth_plan_train(const hth_problem *problem, const hth_plan_options *options, hth_plan **out)
{
    hth_step step;
    hth_dual *dual = NULL;
    uint64_t start_ns = hth_now_ns(), work_ns = hth_plan_work_now_ns(), found = UINT64_MAX;
    *out = NULL;
    HTH_TRY(hth_step_init(&step, problem));
    hth_plan_work_begin(train_limit_ms(problem, options), options->cancel);
    bool below = hth_policy_searches(options->policy) && problem->budget < step.floor_bytes;
    hth_err err = (below ? train_below : train_policy)(problem, &step, options, &dual, &found, out);
    if (err == HTH_OK) {
        err = train_certify(problem, &step, options, work_ns, &dual, *out);
    }
    bool stopped = hth_plan_work_end();
    hth_dual_free(dual);
    hth_step_fini(&step);
    if (err != HTH_OK) {
        hth_plan_free(*out);
        *out = NULL;
        return err;
    }
    (*out)->stopped = stopped;
    (*out)->plan_ms = (double)(hth_now_ns() - start_ns) / 1e6;
    return HTH_OK;
}

hth_err hth_plan_train_peak(const hth_problem *problem, uint64_t *bytes)
{
    hth_problem free_p = *problem;
    hth_plan *plan;
    free_p.budget = UINT64_MAX / 4;
    HTH_TRY(hth_plan_train(&free_p, &(hth_plan_options){.policy = HTH_POLICY_KEEP}, &plan));
    *bytes = plan->arena_bytes + plan->resident_bytes;
    hth_plan_free(plan);
    return HTH_OK;
}
