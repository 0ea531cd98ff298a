// SPDX-License-Identifier: Apache-2.0
// Plans a training step: runs its searches (search/plan_rounds.h), some in turn and two
// concurrently, keeps the fastest plan, and certifies it.
#include "planner/plan_train.h"

#include "planner/exact/plan_optimal.h"
#include "planner/plan_impl.h"
#include "planner/plan_work.h"
#include "planner/search/plan_rounds.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRAIN_LIMIT_MS 100 // up to this many nodes, ..
#define TRAIN_NODES    500
#define TRAIN_NODE_MS  0.6  // .. for each one more, ..
#define TRAIN_MAX_MS   1000 // .. at most
#define TRAIN_AGAIN    5    // times the limit, when nothing was found
#define TRAIN_BOUND    300 // iterations of the bound, or, where time limits it, as many as may help
#define TRAIN_BOUND_UP 2000
#define TRAIN_BOUND_MS 0.03 // .. within what is left of the limit, or at least this share of it
#define TRAIN_REST     0.35 // of the limit: as much has to be left for another search
#define TRAIN_OPEN     0.05 // of the certificate, by which a plan exceeds it: longer searches
#define TRAIN_LONGER   3    // times the limit, for that
#define TRAIN_BELOW_MS 5    // of the search below the proven floor, for what to say
#define TRAIN_FASTEST  1e-9 // of the time above the fastest algorithms': nothing is faster

double hth_plan_limit_ms(const hth_problem *problem)
{
    double more = TRAIN_NODE_MS * fmax(problem->n_nodes - TRAIN_NODES, 0);
    return fmin(TRAIN_LIMIT_MS + more, TRAIN_MAX_MS);
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
                          const hth_plan_options *options, bool concurrent, uint64_t start_ns,
                          hth_dual **dual, uint64_t *found, hth_plan **out)
{
    double limit_ms = hth_rounds_limit_ms(problem, options);
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
    hth_err err =
        hth_rounds_search(problem, step, &rest, HTH_ROUNDS_OTHER, concurrent, dual, found, &plan);
    hth_rounds_faster(&plan, out);
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
    little.limit_ms = fmin(TRAIN_BELOW_MS, hth_rounds_limit_ms(problem, options));
    hth_err err =
        hth_rounds_search(problem, step, &little, HTH_ROUNDS_LAST, false, dual, found, out);
    return err == HTH_ETOOBIG ? hth_rounds_too_big(problem, options, *found) : err;
}

// Runs the first search and, on the work that it leaves, the one with other rules. `concurrent` is
// hth_rounds_search's.
static hth_err train_both(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, bool concurrent, hth_dual **dual,
                          uint64_t *found, hth_plan **out)
{
    uint64_t start_ns = hth_plan_work_now_ns();
    hth_err err =
        hth_rounds_search(problem, step, options, HTH_ROUNDS_FIRST, concurrent, dual, found, out);
    bool goes = !options->any && !hth_rounds_canceled(options) &&
                hth_policy_searches(options->policy) && (err == HTH_OK || err == HTH_ETOOBIG);
    return goes ? train_rest(problem, step, options, concurrent, start_ns, dual, found, out) : err;
}

// Another policy's searches, which run concurrently with hearth's on a second thread, with the same
// seed. mo-sos's steps without stalls have fewer local optima, str-auto's with fixed algorithms
// others, so each finds what the other misses.
typedef struct train_companion {
    const hth_problem *problem;
    hth_plan_options options;
    bool parts; // those of the policies that it contains, too
    pthread_t thread;
    bool runs, stopped;
    hth_err err;
    uint64_t found;
    hth_plan *plan;
} train_companion;

static hth_err train_policy(const hth_problem *problem, hth_step *step,
                            const hth_plan_options *options, bool last, bool *stopped,
                            hth_dual **dual, uint64_t *found, hth_plan **out);

static void companion_search(train_companion *companion)
{
    train_companion *c = companion;
    hth_dual *dual = NULL;
    hth_step step;
    c->err = hth_step_init(&step, c->problem);
    if (c->err != HTH_OK) {
        return;
    }
    c->err = c->parts
                 ? train_policy(c->problem, &step, &c->options, false, &c->stopped, &dual,
                                &c->found, &c->plan)
                 : train_both(c->problem, &step, &c->options, false, &dual, &c->found, &c->plan);
    hth_dual_free(dual);
    hth_step_fini(&step);
}

static void companion_main(void *ctx)
{
    train_companion *companion = ctx;
    double limit_ms = hth_rounds_limit_ms(companion->problem, &companion->options);
    hth_plan_work_begin((companion->parts ? TRAIN_LONGER : 1) * limit_ms, companion->options.cancel,
                        companion->options.gate);
    companion_search(companion);
    companion->stopped = hth_plan_work_end() || companion->stopped;
}

// If no thread can be started, companion_end runs the search.
static void companion_start(train_companion *companion)
{
    companion->found = UINT64_MAX;
    companion->runs =
        hth_thread_start("hearth-plan", companion_main, companion, &companion->thread) == HTH_OK;
}

// Waits for the search, and keeps its plan in *out if that is faster. Sets *stopped if the real
// clock stopped it.
static hth_err companion_end(train_companion *companion, hth_err err, bool *stopped,
                             uint64_t *found, hth_plan **out)
{
    if (companion->runs) {
        hth_thread_join(companion->thread);
    } else {
        companion_search(companion);
    }
    *stopped = *stopped || companion->stopped;
    *found = companion->found < *found ? companion->found : *found;
    hth_rounds_faster(&companion->plan, out);
    if (companion->err != HTH_OK && companion->err != HTH_ETOOBIG) {
        return hth_no_memory("planning a step of %d nodes", companion->problem->n_nodes);
    }
    return err == HTH_ETOOBIG && *out != NULL ? HTH_OK : err;
}

static bool train_pairs(const hth_plan_options *options)
{
    return options->policy == HTH_POLICY_HEARTH && options->from == NULL &&
           options->limit_decodes == 0 && !options->any && !options->alone;
}

// Runs one policy's searches, and hearth's concurrently with those of `other`: mo-sos's at first.
// hearth's therefore spend no work on what mo-sos finds, neither then nor later.
static hth_err train_pair(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, const hth_plan_options *other,
                          bool *stopped, hth_dual **dual, uint64_t *found, hth_plan **out)
{
    bool pairs = train_pairs(options);
    train_companion companion = {
        .problem = problem, .options = *other, .parts = other->policy == HTH_POLICY_STR};
    if (pairs) {
        companion_start(&companion);
    }
    hth_err err = train_both(problem, step, options, pairs, dual, found, out);
    return pairs ? companion_end(&companion, err, stopped, found, out) : err;
}

// Plans by one policy. A baseline is never worse than another one that it contains, which has the
// same limit as if it were asked for. `last`: before a refusal, more is spent.
static hth_err train_policy(const hth_problem *problem, hth_step *step,
                            const hth_plan_options *options, bool last, bool *stopped,
                            hth_dual **dual, uint64_t *found, hth_plan **out)
{
    hth_plan_options more = *options;
    more.policy = HTH_POLICY_MOSOS;
    hth_err err = train_pair(problem, step, options, &more, stopped, dual, found, out);
    bool baseline = options->policy != HTH_POLICY_HEARTH && !options->any && options->from == NULL;
    for (int k = 0; baseline && k < HTH_N_POLICIES; k++) {
        hth_plan *part = NULL;
        more.policy = (hth_policy)k;
        if (!train_part(options->policy, more.policy) || hth_rounds_canceled(options) ||
            (err != HTH_OK && err != HTH_ETOOBIG)) {
            continue;
        }
        hth_err part_err = train_policy(problem, step, &more, last, stopped, dual, found, &part);
        hth_rounds_faster(&part, out);
        err = part_err == HTH_OK || part_err == HTH_ETOOBIG ? err : part_err;
        err = *out != NULL && err == HTH_ETOOBIG ? HTH_OK : err;
    }
    if (err == HTH_ETOOBIG && last && hth_policy_searches(options->policy) &&
        !hth_rounds_canceled(options) && step->floor_bytes <= problem->budget) {
        // Near the floor a plan may exist that the first search missed: a refusal is worth more
        // time.
        more = *options;
        more.from = NULL;
        more.seed = options->seed + 1;
        uint64_t again = options->any ? 1 : TRAIN_AGAIN;
        more.limit_ms = (double)again * hth_rounds_limit_ms(problem, options);
        more.limit_decodes = again * options->limit_decodes;
        err = hth_rounds_search(problem, step, &more, HTH_ROUNDS_LAST, false, dual, found, out);
    }
    return err == HTH_ETOOBIG ? hth_rounds_too_big(problem, options, *found) : err;
}

// Adds what is known of a plan once it is there.
static hth_err train_certify(const hth_problem *problem, hth_step *step,
                             const hth_plan_options *options, uint64_t work_ns, hth_dual **dual,
                             hth_plan *plan)
{
    double us, proven_us = fmax(plan->lower_bound_us, step->fastest_us);
    bool timed = options->limit_decodes == 0;
    double limit_ms = hth_rounds_limit_ms(problem, options);
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

// Near its floor a step has deep local optima, and what the certificate leaves open is found late:
// searches once more, for longer, while str-auto's search runs on the second thread for the limit.
// Keeps the fastest plan in *out, which stays as it is if memory runs out.
static void train_longer(const hth_problem *problem, hth_step *step,
                         const hth_plan_options *options, bool *stopped, hth_dual **dual,
                         uint64_t *found, hth_plan **out)
{
    hth_plan_options longer = *options, other = *options;
    hth_plan *plan = NULL;
    double proven_us = (*out)->lower_bound_us;
    bool open = (*out)->predicted_us > proven_us * (1 + TRAIN_OPEN);
    if (!open || !train_pairs(options) || hth_rounds_canceled(options)) {
        return;
    }
    *stopped = hth_plan_work_end() || *stopped;
    longer.limit_ms = TRAIN_LONGER * hth_rounds_limit_ms(problem, options);
    hth_plan_work_begin(longer.limit_ms, options->cancel, options->gate);
    if (*stopped) { // no more of what is as slow as that
        return;
    }
    other.policy = HTH_POLICY_STR;
    uint64_t work_ns = hth_plan_work_now_ns();
    (void)train_pair(problem, step, &longer, &other, stopped, dual, found, &plan);
    hth_rounds_faster(&plan, out);
    (*out)->lower_bound_us = fmax((*out)->lower_bound_us, proven_us);
    (void)train_certify(problem, step, &longer, work_ns, dual, *out);
}

hth_err hth_plan_train(const hth_problem *problem, const hth_plan_options *options, hth_plan **out)
{
    hth_step step;
    hth_dual *dual = NULL;
    uint64_t start_ns = hth_now_ns(), work_ns = hth_plan_work_now_ns(), found = UINT64_MAX;
    *out = NULL;
    HTH_TRY(hth_step_init(&step, problem));
    hth_plan_work_begin(hth_rounds_limit_ms(problem, options), options->cancel, options->gate);
    bool below = hth_policy_searches(options->policy) && problem->budget < step.floor_bytes;
    bool stopped = false;
    hth_err err = below ? train_below(problem, &step, options, &dual, &found, out)
                        : train_policy(problem, &step, options, true, &stopped, &dual, &found, out);
    if (err == HTH_OK) {
        err = train_certify(problem, &step, options, work_ns, &dual, *out);
    }
    if (err == HTH_OK) {
        train_longer(problem, &step, options, &stopped, &dual, &found, out);
    }
    stopped = hth_plan_work_end() || stopped || hth_rounds_canceled(options);
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
