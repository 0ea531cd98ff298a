// SPDX-License-Identifier: Apache-2.0
// The floor of a training step: bytes that every schedule has in some stage.
//
// The proof. plan_schedule.h: a buffer is owned for whole stages, and a tensor leaves only within
// an interval, if it can come back by the link or by a recompute. So stage s has every tensor that
// lives then and has no such interval around s, and the smallest workspace of node s. Tensors that
// are there before the step live from its beginning, outputs to its end, resident ones all the
// time; a tensor and the one that takes its buffer over are one buffer in the stage that both are
// in. Recomputes only add to this.
//
// With a link it is exact: a tensor may be away in the whole of each interval at once, at the price
// of stalls, so that the schedule in which all are has just these bytes. Without one, what is
// recomputed in a stage has its inputs there, too, which is not counted.
#include "planner/plan_step.h"
#include "planner/plan_train.h"

#include "base/alloc.h"

static void floor_add(int64_t *delta, int first, int last, int64_t bytes)
{
    if (first <= last) {
        delta[first] += bytes;
        delta[last + 1] -= bytes;
    }
}

// The stages in which tensor t lives whatever the modes: first > last: none.
static void floor_life(const hth_step *step, int t, int *first, int *last)
{
    const hth_plan_tensor *x = &step->p->tensors[t];
    int n = step->use_start[t + 1] - step->use_start[t];
    *first = 0;
    *last = step->n_stages - 1;
    if (step->arena[t]) {
        *first = x->producer < 0 ? 0 : x->producer;
        *last = x->cls == HTH_MEM_OUTPUT && n > 0 ? *last : -1;
        *last = n > 0 && *last < 0 ? step->use[step->use_start[t + 1] - 1] : *last;
    }
}

static void floor_tensor(const hth_step *step, int t, int64_t *delta)
{
    int first, last;
    int64_t bytes = (int64_t)step->bytes[t];
    floor_life(step, t, &first, &last);
    floor_add(delta, first, last, bytes);
    if (step->pair[t] >= 0 && step->heir[step->pair[t]] == t) {
        floor_add(delta, first, first, -bytes);
    }
    for (int g = step->interval_start[t]; g < step->interval_start[t + 1]; g++) {
        const hth_interval *interval = &step->interval[g];
        bool leaves = interval->can_offload || interval->can_rerun;
        if (leaves && interval->cyclic) {
            floor_add(delta, 0, interval->q - 1, -bytes);
            floor_add(delta, interval->p + 1, step->n_stages - 1, -bytes);
        } else if (leaves && interval->q < step->n_stages) { // later, nothing is counted
            floor_add(delta, interval->p + 1, interval->q - 1, -bytes);
        }
    }
}

hth_err hth_step_floor(hth_step *step)
{
    int64_t *delta = hth_calloc((size_t)step->n_stages + 1, sizeof *delta), live = 0;
    if (delta == NULL) {
        return hth_no_memory("planning a step of %d nodes", step->n_stages);
    }
    for (int t = 0; t < step->p->n_tensors; t++) {
        floor_tensor(step, t, delta);
    }
    step->floor_bytes = 0;
    for (int s = 0; s < step->n_stages; s++) {
        live += delta[s];
        uint64_t bytes = (uint64_t)live + hth_step_smallest(step, s)->workspace;
        step->floor_bytes = bytes > step->floor_bytes ? bytes : step->floor_bytes;
    }
    hth_free(delta);
    return HTH_OK;
}

hth_err hth_plan_train_floor(const hth_problem *problem, uint64_t *bytes)
{
    hth_step m;
    HTH_TRY(hth_step_init(&m, problem));
    *bytes = m.floor_bytes;
    hth_step_fini(&m);
    return HTH_OK;
}
