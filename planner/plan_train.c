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

// What the searches of one step share, on one thread.
typedef struct train_search {
    const hth_problem *problem;
    hth_step step;
    hth_dual *dual; // where the certificate's dual ended, for the next search
    uint64_t found; // bytes of the least plan that was seen
    bool stopped;   // by the real clock
} train_search;

static hth_err train_open(train_search *t, const hth_problem *problem)
{
    *t = (train_search){.problem = problem, .found = UINT64_MAX};
    return hth_step_init(&t->step, problem);
}

static void train_close(train_search *t)
{
    hth_dual_free(t->dual);
    hth_step_fini(&t->step);
}

static hth_err train_round(train_search *t, const hth_plan_options *options, hth_rounds rounds,
                           bool concurrent, hth_plan **out)
{
    return hth_rounds_search(t->problem, &t->step, options, rounds, concurrent, &t->dual, &t->found,
                             out);
}

// train_clock gives what follows a real clock of its own, whatever stopped what came before.
static void train_clock(train_search *t, const hth_plan_options *options)
{
    t->stopped = hth_plan_work_end() || t->stopped;
    hth_plan_work_begin(hth_rounds_limit_ms(t->problem, options), options->cancel, options->gate);
}

// What a search leaves of its limit goes to another one, of steps of a few dozen nodes most of it.
// Takes its plan for *out if that is faster.
static hth_err train_rest(train_search *t, const hth_plan_options *options, bool concurrent,
                          uint64_t start_ns, hth_plan **out)
{
    double limit_ms = hth_rounds_limit_ms(t->problem, options);
    double left_ms = limit_ms - (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
    bool fastest = *out != NULL && (*out)->predicted_us <= t->step.fastest_us * (1 + TRAIN_FASTEST);
    if (fastest || options->from != NULL || options->limit_decodes > 0 ||
        left_ms < TRAIN_REST * limit_ms) {
        return *out != NULL ? HTH_OK : HTH_ETOOBIG;
    }
    hth_plan_options rest = *options;
    hth_plan *plan = NULL;
    rest.limit_ms = left_ms;
    rest.seed = options->seed + 1;
    hth_err err = train_round(t, &rest, HTH_ROUNDS_OTHER, concurrent, &plan);
    hth_rounds_faster(&plan, out);
    return *out != NULL && err == HTH_ETOOBIG ? HTH_OK : err;
}

// No schedule fits a budget below the proven floor. A short search finds memory that a plan exists
// for, which the refusal names.
static hth_err train_below(train_search *t, const hth_plan_options *options, hth_plan **out)
{
    hth_plan_options little = *options;
    little.from = NULL;
    little.any = true;
    little.limit_ms = fmin(TRAIN_BELOW_MS, hth_rounds_limit_ms(t->problem, options));
    hth_err err = train_round(t, &little, HTH_ROUNDS_LAST, false, out);
    return err == HTH_ETOOBIG ? hth_rounds_too_big(t->problem, options, t->found) : err;
}

// Runs the first search and, on the work that it leaves, the one with other rules. `concurrent` is
// hth_rounds_search's.
static hth_err train_both(train_search *t, const hth_plan_options *options, bool concurrent,
                          hth_plan **out)
{
    uint64_t start_ns = hth_plan_work_now_ns();
    hth_err err = train_round(t, options, HTH_ROUNDS_FIRST, concurrent, out);
    bool goes = !options->any && !hth_rounds_canceled(options) &&
                hth_policy_searches(options->policy) && (err == HTH_OK || err == HTH_ETOOBIG);
    return goes ? train_rest(t, options, concurrent, start_ns, out) : err;
}

// Searches that run concurrently with hearth's on a second thread. mo-sos's steps without stalls
// have fewer local optima, str-auto's with fixed algorithms others, so each finds what the other
// misses; they have hearth's seed. Where hearth searches for longer, str-auto's come, with those of
// the policies that it contains, and then hearth's with another seed.
typedef struct train_companion {
    train_search search;
    hth_plan_options options;
    bool longer;
    pthread_t thread;
    bool runs;
    hth_err err;
    hth_plan *plan;
} train_companion;

static hth_err train_policy(train_search *t, const hth_plan_options *options, bool last,
                            hth_plan **out);

// hearth's searches with another seed, with what str-auto's left of the limit that hearth's have on
// the other thread.
static hth_err companion_longer(train_companion *companion, uint64_t start_ns)
{
    hth_plan_options own = companion->options;
    hth_plan *plan = NULL;
    double limit_ms =
        TRAIN_LONGER * hth_rounds_limit_ms(companion->search.problem, &companion->options);
    own.policy = HTH_POLICY_HEARTH;
    own.seed += 2; // the other thread has the first two
    own.limit_ms = limit_ms - (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
    if (own.limit_ms <= 0) {
        return HTH_OK;
    }
    train_clock(&companion->search, &own);
    hth_err err = train_both(&companion->search, &own, true, &plan);
    hth_rounds_faster(&plan, &companion->plan);
    return err;
}

static void companion_search(train_companion *companion)
{
    train_companion *c = companion;
    uint64_t start_ns = hth_plan_work_now_ns();
    c->err = train_open(&c->search, c->search.problem);
    if (c->err != HTH_OK) {
        return;
    }
    c->err = c->longer ? train_policy(&c->search, &c->options, false, &c->plan)
                       : train_both(&c->search, &c->options, false, &c->plan);
    c->search.stopped = hth_plan_work_here.stopped || c->search.stopped;
    if (c->longer && (c->err == HTH_OK || c->err == HTH_ETOOBIG) && !c->search.stopped &&
        !hth_rounds_canceled(&c->options)) {
        c->err = companion_longer(c, start_ns);
    }
    train_close(&c->search);
}

static void companion_main(void *ctx)
{
    train_companion *companion = ctx;
    double limit_ms = hth_rounds_limit_ms(companion->search.problem, &companion->options);
    hth_plan_work_begin((companion->longer ? TRAIN_LONGER : 1) * limit_ms,
                        companion->options.cancel, companion->options.gate);
    companion_search(companion);
    companion->search.stopped = hth_plan_work_end() || companion->search.stopped;
}

// If no thread can be started, companion_end runs the search.
static void companion_start(train_companion *companion)
{
    companion->runs =
        hth_thread_start("hearth-plan", companion_main, companion, &companion->thread) == HTH_OK;
}

// Waits for the search, and keeps its plan in *out if that is faster.
static hth_err companion_end(train_companion *companion, hth_err err, train_search *t,
                             hth_plan **out)
{
    if (companion->runs) {
        hth_thread_join(companion->thread);
    } else {
        t->stopped = hth_plan_work_end() || t->stopped;
        companion_main(companion); // has a clock of its own
        train_clock(t, &companion->options);
    }
    t->stopped = t->stopped || companion->search.stopped;
    t->found = companion->search.found < t->found ? companion->search.found : t->found;
    hth_rounds_faster(&companion->plan, out);
    if (companion->err != HTH_OK && companion->err != HTH_ETOOBIG) {
        return hth_no_memory("planning a step of %d nodes", t->problem->n_nodes);
    }
    return err == HTH_ETOOBIG && *out != NULL ? HTH_OK : err;
}

static bool train_pairs(const hth_plan_options *options)
{
    return options->policy == HTH_POLICY_HEARTH && options->from == NULL &&
           options->limit_decodes == 0 && !options->any && !options->alone;
}

// Runs one policy's searches, and hearth's concurrently with mo-sos's at first, with the others'
// (train_companion) when it searches for longer. hearth's therefore spend no work on what mo-sos
// finds, neither then nor later.
static hth_err train_pair(train_search *t, const hth_plan_options *options, bool longer,
                          hth_plan **out)
{
    bool pairs = train_pairs(options);
    train_companion companion = {.search = {.problem = t->problem, .found = UINT64_MAX},
                                 .options = *options,
                                 .longer = longer};
    hth_plan_options own = *options;
    if (longer) {
        own.limit_ms = TRAIN_LONGER * hth_rounds_limit_ms(t->problem, options);
    }
    companion.options.policy = longer ? HTH_POLICY_STR : HTH_POLICY_MOSOS;
    if (pairs) {
        companion_start(&companion);
    }
    hth_err err = train_both(t, &own, pairs, out);
    return pairs ? companion_end(&companion, err, t, out) : err;
}

// Plans by one policy. A baseline is never worse than another one that it contains, which has the
// same limit as if it were asked for. `last`: before a refusal, more is spent.
static hth_err train_policy(train_search *t, const hth_plan_options *options, bool last,
                            hth_plan **out)
{
    hth_plan_options more = *options;
    hth_err err = train_pair(t, options, false, out);
    bool baseline = options->policy != HTH_POLICY_HEARTH && !options->any && options->from == NULL;
    for (int k = 0; baseline && k < HTH_N_POLICIES; k++) {
        hth_plan *part = NULL;
        more.policy = (hth_policy)k;
        if (!train_part(options->policy, more.policy) || hth_rounds_canceled(options) ||
            (err != HTH_OK && err != HTH_ETOOBIG)) {
            continue;
        }
        train_clock(t, &more);
        hth_err part_err = train_policy(t, &more, last, &part);
        hth_rounds_faster(&part, out);
        err = part_err == HTH_OK || part_err == HTH_ETOOBIG ? err : part_err;
        err = *out != NULL && err == HTH_ETOOBIG ? HTH_OK : err;
    }
    if (err == HTH_ETOOBIG && last && hth_policy_searches(options->policy) &&
        !hth_rounds_canceled(options) && t->step.floor_bytes <= t->problem->budget) {
        // Near the floor a plan may exist that the first search missed: a refusal is worth more
        // time.
        more = *options;
        more.from = NULL;
        more.seed = options->seed + 1;
        uint64_t again = options->any ? 1 : TRAIN_AGAIN;
        more.limit_ms = (double)again * hth_rounds_limit_ms(t->problem, options);
        more.limit_decodes = again * options->limit_decodes;
        train_clock(t, &more);
        err = train_round(t, &more, HTH_ROUNDS_LAST, false, out);
    }
    return err == HTH_ETOOBIG ? hth_rounds_too_big(t->problem, options, t->found) : err;
}

// Adds what is known of a plan once it is there.
static hth_err train_certify(train_search *t, const hth_plan_options *options, uint64_t work_ns,
                             hth_plan *plan)
{
    double us, proven_us = fmax(plan->lower_bound_us, t->step.fastest_us);
    bool timed = options->limit_decodes == 0;
    double limit_ms = hth_rounds_limit_ms(t->problem, options);
    double left_ms = limit_ms - (double)(hth_plan_work_now_ns() - work_ns) / 1e6;
    left_ms = timed ? fmax(left_ms, limit_ms * TRAIN_BOUND_MS) : 0;
    snprintf(plan->policy, sizeof plan->policy, "%s", hth_policy_name(options->policy));
    plan->seed = options->seed;
    if (options->any) { // nobody asks how good it is
        plan->lower_bound_us = fmin(proven_us, plan->predicted_us);
        return HTH_OK;
    }
    HTH_TRY(hth_step_bound(&t->step, t->problem->budget, plan->predicted_us,
                           timed ? TRAIN_BOUND_UP : TRAIN_BOUND, left_ms, &t->dual, NULL, &us));
    plan->lower_bound_us = fmin(fmax(us, proven_us), plan->predicted_us);
    return HTH_OK;
}

// Near its floor a step has deep local optima, and what the certificate leaves open is found late:
// searches once more, for longer, while others run on the second thread.
// Keeps the fastest plan in *out, which stays as it is if memory runs out.
static void train_longer(train_search *t, const hth_plan_options *options, hth_plan **out)
{
    hth_plan_options longer = *options;
    hth_plan *plan = NULL;
    double proven_us = (*out)->lower_bound_us;
    bool open = (*out)->predicted_us > proven_us * (1 + TRAIN_OPEN);
    if (!open || !train_pairs(options) || hth_rounds_canceled(options)) {
        return;
    }
    longer.limit_ms = TRAIN_LONGER * hth_rounds_limit_ms(t->problem, options);
    train_clock(t, &longer);
    if (t->stopped) { // no more of what is as slow as that
        return;
    }
    uint64_t work_ns = hth_plan_work_now_ns();
    (void)train_pair(t, options, true, &plan);
    hth_rounds_faster(&plan, out);
    (*out)->lower_bound_us = fmax((*out)->lower_bound_us, proven_us);
    (void)train_certify(t, &longer, work_ns, *out);
}

hth_err hth_plan_train(const hth_problem *problem, const hth_plan_options *options, hth_plan **out)
{
    train_search t;
    uint64_t start_ns = hth_now_ns();
    *out = NULL;
    HTH_TRY(train_open(&t, problem));
    hth_plan_work_begin(hth_rounds_limit_ms(problem, options), options->cancel, options->gate);
    uint64_t work_ns = hth_plan_work_now_ns();
    bool below = hth_policy_searches(options->policy) && problem->budget < t.step.floor_bytes;
    hth_err err = below ? train_below(&t, options, out) : train_policy(&t, options, true, out);
    if (err == HTH_OK) {
        err = train_certify(&t, options, work_ns, *out);
    }
    if (err == HTH_OK) {
        train_longer(&t, options, out);
    }
    t.stopped = hth_plan_work_end() || t.stopped || hth_rounds_canceled(options);
    train_close(&t);
    if (err != HTH_OK) {
        hth_plan_free(*out);
        *out = NULL;
        return err;
    }
    (*out)->stopped = t.stopped;
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
