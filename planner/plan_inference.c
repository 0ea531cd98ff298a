// SPDX-License-Identifier: Apache-2.0
// Plans a forward pass. First the easy case: all weights resident, the fastest algorithm
// everywhere. When that does not fit, plan_stream.c decides which algorithms to degrade and which
// weights to stream. Decisions become rectangles, rectangles get addresses (plan_place.c); if the
// arena comes out higher than the bytes that the decision counted on, the budget is tightened by
// the excess and the decision made again. The last resort is the decision with the fewest bytes,
// whose arena is the floor that hth_plan_floor reports, so a budget of at least the floor always
// succeeds; what the budget leaves free around it is then used without moving anything.
#include "planner/plan_place.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>

#define INFERENCE_ROUNDS 6
#define INFERENCE_SEED   1

// The next budget to decide for: less by the excess; from the third round on, or near the floor,
// in large steps towards the floor, where there is less to place.
static uint64_t inference_tighten(uint64_t budget, uint64_t floor, uint64_t excess, int round)
{
    uint64_t above = budget - floor;
    return round < 3 && excess < above / 2 ? budget - excess : floor + above / 5 * 3;
}

// The floor, or HTH_ETOOBIG. Placing it takes as long as a round, so it is not placed when it is
// far below the budget: then the bytes alone will do.
static hth_err inference_floor(hth_placement *placement, bool exact, uint64_t *floor)
{
    *floor = hth_stream_minimal(&placement->model, &placement->decision);
    if (exact || *floor + *floor / 8 >= placement->p->budget) {
        HTH_TRY(hth_place_minimal(placement));
        *floor = hth_place_bytes(placement);
    }
    return *floor <= placement->p->budget ? HTH_OK : hth_plan_refuse(placement->p, *floor, NULL);
}

// Decides and places within the budget.
static hth_err inference_decide(hth_placement *placement)
{
    uint64_t budget = placement->p->budget, floor;
    bool fastest;
    hth_stream_keep_all(&placement->model, budget, &placement->decision, &fastest);
    if (fastest) {
        HTH_TRY(hth_place_assign(placement, 0));
        if (hth_place_bytes(placement) <= budget) {
            return HTH_OK;
        }
    }
    HTH_TRY(inference_floor(placement, false, &floor));
    for (int round = 1; round <= INFERENCE_ROUNDS; round++) {
        HTH_TRY(hth_stream_search(&placement->model, budget, INFERENCE_SEED, round % 2 == 0,
                                  &placement->decision));
        if (!(placement->decision.time_us < INFINITY)) {
            break;
        }
        HTH_TRY(
            hth_place_assign(placement, placement->p->budget - placement->decision.resident_bytes));
        if (hth_place_bytes(placement) <= placement->p->budget) {
            return hth_place_polish(placement);
        }
        budget = inference_tighten(budget, floor, hth_place_bytes(placement) - placement->p->budget,
                                   round);
    }
    HTH_TRY(inference_floor(placement, true, &floor));
    return hth_place_polish(placement);
}

// No plan is faster: all nodes at their fastest, and over the link at least the weights that find
// no room besides the largest stage (less their padding, which is not copied).
static double inference_lower_bound(const hth_placement *placement)
{
    const hth_stream_model *m = &placement->model;
    double compute = 0;
    uint64_t stage = 0;
    for (int s = 0; s < m->n_stages; s++) {
        const hth_plan_node *n = &placement->p->nodes[s];
        double fastest = hth_plan_time(n, 0);
        for (int a = 1; a < n->n_alternatives; a++) {
            fastest = fmin(fastest, hth_plan_time(n, a));
        }
        compute += fastest;
        uint64_t bytes = m->base[s] + m->menu[m->menu_start[s + 1] - 1].workspace;
        stage = bytes > stage ? bytes : stage;
    }
    uint64_t have = placement->p->budget + HTH_PLAN_ALIGN * (uint64_t)m->n_weights,
             all = m->resident_bytes + stage;
    bool link = all > have && placement->p->h2d_bytes_per_s > 0;
    return link ? fmax(compute, (double)(all - have) / placement->p->h2d_bytes_per_s * 1e6)
                : compute;
}

static hth_err inference_plan(hth_placement *placement, hth_plan *plan)
{
    plan->streamed = hth_calloc((size_t)placement->p->n_tensors, sizeof *plan->streamed);
    if (plan->streamed == NULL) {
        return hth_no_memory("a plan of %d tensors", placement->p->n_tensors);
    }
    for (int t = 0; t < placement->p->n_tensors;
         t++) { // a weight that nobody reads is never brought in
        plan->streamed[t] = hth_plan_home(&placement->p->tensors[t]) == HTH_HOME_RESIDENT &&
                            placement->buffers.last_use[t] < 0;
    }
    for (int t = 0; t < placement->p->n_tensors; t++) { // one that is only written, is
        int updated = placement->p->tensors[t].replaces - 1;
        if (updated >= 0) {
            plan->streamed[updated] = false;
        }
    }
    for (int w = 0; w < placement->model.n_weights; w++) {
        plan->streamed[placement->model.weight[w].tensor] = placement->decision.stream[w];
    }
    plan->arena_bytes = placement->arena_bytes;
    plan->resident_bytes = placement->decision.resident_bytes;
    plan->seed = INFERENCE_SEED;
    snprintf(plan->policy, sizeof plan->policy, "inference");
    HTH_TRY(hth_place_emit(placement, plan));
    HTH_TRY(hth_plan_live_peak(placement->p, plan, &plan->live_peak_bytes));
    hth_plan_simulate(placement->p, plan);
    plan->lower_bound_us = inference_lower_bound(placement);
    return HTH_OK;
}

hth_err hth_plan_inference(const hth_problem *problem, hth_plan **out)
{
    uint64_t start_ns = hth_now_ns();
    hth_placement x;
    *out = NULL;
    HTH_TRY(hth_place_open(problem, &x));
    hth_plan *plan = hth_calloc(1, sizeof *plan);
    hth_err err = plan ? inference_decide(&x) : hth_no_memory("a plan");
    if (err == HTH_OK) {
        err = inference_plan(&x, plan);
    }
    hth_place_close(&x);
    if (err != HTH_OK) {
        hth_plan_free(plan);
        return err;
    }
    plan->plan_ms = (double)(hth_now_ns() - start_ns) / 1e6;
    *out = plan;
    return HTH_OK;
}

hth_err hth_plan_floor(const hth_problem *problem, uint64_t *bytes)
{
    hth_placement x;
    HTH_TRY(hth_place_open(problem, &x));
    hth_err err = hth_place_minimal(&x);
    *bytes = hth_place_bytes(&x);
    hth_place_close(&x);
    return err;
}
