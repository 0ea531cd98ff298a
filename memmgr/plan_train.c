// SPDX-License-Identifier: Apache-2.0
// Plans a training step: search, addresses, and once more with a tighter budget if the addresses
// come out higher than the bytes that the search counted.
#include "memmgr/plan_bound.h"
#include "memmgr/plan_optimal.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRAIN_LIMIT_MS 100 // up to TRAIN_NODES nodes; TRAIN_NODE_MS more for each that follows
#define TRAIN_NODES    500
#define TRAIN_NODE_MS  0.6
#define TRAIN_AGAIN    5    // times the limit, when nothing was found
#define TRAIN_FINE     2048 // of the budget: steps in which rounds tighten it, at least
#define TRAIN_ROUNDS   8
#define TRAIN_BOUND    300 // iterations of the bound, or, where time limits it, as many as may help
#define TRAIN_BOUND_UP 2000
#define TRAIN_BOUND_MS 0.2 // .. within what is left of the limit, or at least this share of it

// The time that the search may take. To go on from another plan takes a third.
static double train_limit_ms(const hth_problem *p, const hth_plan_options *o)
{
    double more = p->n_nodes > TRAIN_NODES ? (p->n_nodes - TRAIN_NODES) * TRAIN_NODE_MS : 0;
    double limit_ms = TRAIN_LIMIT_MS + more;
    limit_ms = o->from != NULL ? fmax(limit_ms / 3, TRAIN_LIMIT_MS) : limit_ms;
    return o->limit_ms > 0 ? o->limit_ms : limit_ms;
}

static hth_err train_too_big(const hth_problem *p, const hth_plan_options *o, uint64_t need)
{
    return hth_fail(HTH_ETOOBIG, "needs at least %llu bytes (policy %s), the budget is %llu",
                    (unsigned long long)need, hth_policy_name(o->policy),
                    (unsigned long long)p->budget);
}

// Plans for `budget` bytes; the plan may be higher, and than p->budget too.
static hth_err train_round(const hth_problem *p, hth_step *m, const hth_plan_options *o,
                           hth_search *x, uint64_t budget, uint64_t deadline_ns, bool warm,
                           hth_plan **plan, uint64_t *height, uint64_t *peak)
{
    hth_outcome out;
    hth_schedule s;
    x->d.budget = budget;
    x->max_decodes = o->limit_decodes > 0 ? x->n_decodes + o->limit_decodes : UINT64_MAX;
    if (o->policy == HTH_POLICY_OPTIMAL) {
        HTH_TRY(hth_search_optimal(x, m, o, &out));
    } else {
        hth_search_policy(x, m, o, deadline_ns, warm, &out);
    }
    if (x->d.failed) {
        return hth_fail(HTH_ENOMEM, "no memory to plan a step of %d nodes", m->n_stages);
    }
    if (out.excess > 0) {
        return train_too_big(p, o, out.peak_bytes + (p->budget - budget));
    }
    HTH_TRY(hth_decode_schedule(&x->d, &out, &s));
    hth_err err = hth_plan_emit(p, &s, plan);
    *height = s.height_bytes + s.resident_bytes;
    *peak = s.peak_bytes;
    hth_schedule_fini(&s);
    if (err == HTH_OK && m->n_gaps > 0) {
        (*plan)->mode = hth_memdup(x->best, (size_t)m->n_gaps);
        (*plan)->n_modes = m->n_gaps;
        if ((*plan)->mode == NULL) {
            hth_plan_free(*plan);
            *plan = NULL;
            err = hth_fail(HTH_ENOMEM, "no memory for a plan of %d nodes", m->n_stages);
        }
    }
    return err;
}

static hth_err train_rounds(const hth_problem *p, hth_step *m, const hth_plan_options *o,
                            hth_search *x, hth_plan **out)
{
    double limit_ms = train_limit_ms(p, o);
    uint64_t budget = p->budget, start_ns = hth_now_ns();
    static const double share[TRAIN_ROUNDS] = {0.7,  0.78, 0.84, 0.88,
                                               0.92, 0.95, 0.98, 1}; // of the time
    hth_plan *best = NULL;
    hth_err err = HTH_OK;
    bool warm = o->from != NULL && o->from->n_modes == m->n_gaps && m->n_gaps > 0;
    if (warm) {
        memcpy(x->best, o->from->mode, (size_t)m->n_gaps);
    }
    for (int round = 0; err == HTH_OK && round < TRAIN_ROUNDS; round++) {
        uint64_t deadline_ns = start_ns + (uint64_t)(limit_ms * share[round] * 1e6);
        uint64_t height = 0, peak = 0;
        hth_plan *plan = NULL;
        err =
            train_round(p, m, o, x, budget, deadline_ns, round > 0 || warm, &plan, &height, &peak);
        uint64_t bytes = plan != NULL ? plan->arena_bytes + plan->resident_bytes : UINT64_MAX;
        if (bytes <= p->budget && (best == NULL || plan->predicted_us < best->predicted_us)) {
            hth_plan_free(best);
            best = plan;
        } else {
            hth_plan_free(plan);
        }
        if (err != HTH_OK || height <= p->budget ||
            (best != NULL && o->policy == HTH_POLICY_OPTIMAL)) {
            break;
        }
        // Algorithms gave way to addresses, or nothing helped: plans for less may be better. The
        // excess, and more each time: addresses lose about the same share in every round.
        // A little at least, and less than this schedule has: the same one would come again.
        uint64_t over = (height - p->budget) / 2 * (uint64_t)(round + 2) + HTH_PLAN_ALIGN;
        uint64_t least = p->budget / TRAIN_FINE * (uint64_t)(round + 1);
        over = over > least ? over : least;
        budget = peak < budget ? peak : budget;
        if (over >= budget || round == TRAIN_ROUNDS - 1) {
            err = train_too_big(p, o, height);
            break;
        }
        budget -= over;
    }
    if (best == NULL) {
        return err;
    }
    best->lower_bound_us = x->proven_us;
    *out = best;
    return HTH_OK;
}

static hth_err train_search(const hth_problem *p, hth_step *m, const hth_plan_options *o,
                            hth_search *x, hth_dual **dual, hth_plan **out)
{
    HTH_TRY(hth_search_open(x, m, p->budget, o));
    x->prices = dual;
    hth_err err = train_rounds(p, m, o, x, out);
    hth_search_close(x);
    return err;
}

// A resident tensor that may be away between two steps.
static bool train_leaves(const hth_step *m, int t)
{
    int last = m->gap_start[t + 1] - 1;
    return !m->arena[t] && last >= m->gap_start[t] && m->gap[last].can_offload;
}

// Whether input j of a node is one more tensor that has to be there beside what never leaves.
static bool train_reads(const hth_step *m, const hth_plan_node *n, int j)
{
    for (int i = 0; i < j; i++) {
        if (n->inputs[i] == n->inputs[j]) {
            return false;
        }
    }
    return m->arena[n->inputs[j]] || train_leaves(m, n->inputs[j]);
}

// The largest stage's own tensors and smallest workspace beside what can never leave.
static uint64_t train_least(const hth_step *m)
{
    uint64_t most = 0;
    for (int s = 0; s < m->n_stages; s++) {
        const hth_plan_node *n = &m->p->nodes[s];
        uint64_t b = hth_step_smallest(m, s)->workspace;
        for (int j = 0; j < n->n_inputs; j++) {
            b += train_reads(m, n, j) ? m->bytes[n->inputs[j]] : 0;
        }
        for (int j = 0; j < n->n_outputs; j++) {
            int t = n->outputs[j];
            b += m->arena[t] && m->pair[t] < 0 ? m->bytes[t] : 0;
        }
        most = b > most ? b : most;
    }
    for (int t = 0; t < m->p->n_tensors; t++) { // resident ones that can never leave
        bool here = hth_plan_home(&m->p->tensors[t]) == HTH_HOME_RESIDENT;
        most += here && !train_leaves(m, t) ? m->bytes[t] : 0;
    }
    return most;
}

hth_err hth_plan_train(const hth_problem *p, const hth_plan_options *o, hth_plan **out)
{
    hth_step m;
    hth_search x;
    hth_dual *dual = NULL;
    uint64_t start_ns = hth_now_ns();
    *out = NULL;
    HTH_TRY(hth_step_init(&m, p));
    hth_err err = train_search(p, &m, o, &x, &dual, out);
    if (err == HTH_ETOOBIG && o->policy != HTH_POLICY_KEEP && o->policy != HTH_POLICY_OPTIMAL &&
        train_least(&m) <= p->budget) {
        // Near the floor a plan may exist that the first search missed: a refusal is worth more
        // time.
        hth_plan_options more = *o;
        more.from = NULL;
        more.seed = o->seed + 1;
        more.limit_ms = TRAIN_AGAIN * train_limit_ms(p, o);
        more.limit_decodes = TRAIN_AGAIN * o->limit_decodes;
        err = train_search(p, &m, &more, &x, &dual, out);
    }
    if (err == HTH_OK) {
        hth_plan *plan = *out;
        snprintf(plan->policy, sizeof plan->policy, "%s", hth_policy_name(o->policy));
        plan->seed = o->seed;
        double us, proven_us = fmax(plan->lower_bound_us, m.fastest_us);
        bool timed = o->limit_decodes == 0;
        double limit_ms = train_limit_ms(p, o);
        double left_ms = limit_ms - (double)(hth_now_ns() - start_ns) / 1e6;
        left_ms = timed ? fmax(left_ms, limit_ms * TRAIN_BOUND_MS) : 0;
        err = hth_step_bound(&m, p->budget, plan->predicted_us,
                             timed ? TRAIN_BOUND_UP : TRAIN_BOUND, left_ms, &dual, NULL, &us);
        plan->lower_bound_us = err == HTH_OK ? fmin(fmax(us, proven_us), plan->predicted_us) : 0;
        plan->plan_ms = (double)(hth_now_ns() - start_ns) / 1e6;
    }
    hth_dual_free(dual);
    hth_step_fini(&m);
    if (err != HTH_OK) {
        hth_plan_free(*out);
        *out = NULL;
    }
    return err;
}

hth_err hth_plan_train_peak(const hth_problem *p, uint64_t *bytes)
{
    hth_problem free_p = *p;
    hth_plan *plan;
    free_p.budget = UINT64_MAX / 4;
    HTH_TRY(hth_plan_train(&free_p, &(hth_plan_options){.policy = HTH_POLICY_KEEP}, &plan));
    *bytes = plan->arena_bytes + plan->resident_bytes;
    hth_plan_free(plan);
    return HTH_OK;
}

hth_err hth_plan_train_floor(const hth_problem *p, uint64_t *bytes)
{
    hth_step m;
    HTH_TRY(hth_step_init(&m, p));
    *bytes = train_least(&m);
    hth_step_fini(&m);
    return HTH_OK;
}
