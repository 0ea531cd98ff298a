// SPDX-License-Identifier: Apache-2.0
// When to measure, when to search, when to swap. See replan.h.
#include "engine/train/replan_impl.h"

#include "base/alloc.h"
#include "base/compare.h"
#include "base/log.h"
#include "base/spin.h"
#include "base/thread.h"
#include "planner/plan_walk.h"
#include "runtime/compile/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPLAN_OFF         0.05 // of the predicted time: further away it was wrong
#define REPLAN_GAIN        0.01 // of the time, to change the plan
#define REPLAN_SLACK       1.01 // times the time that no plan can beat: not worth a search
#define REPLAN_CORRECTIONS 4    // in a job
#define REPLAN_ROUNDS      8    // of a search, each with a seed of its own
#define REPLAN_ROUND_MS    500
#define REPLAN_REST        10 // times the last round, while requests need the processors
#define REPLAN_LOOK_US     20000

const hth_trainer_phase *hth_replan_phase(const hth_trainer *trainer)
{
    return trainer->shapes[0].parts > 1 ? &trainer->shapes[0].add : &trainer->shapes[0].apply;
}

hth_program *hth_replan_program(const hth_trainer *trainer)
{
    return hth_replan_phase(trainer)->program;
}

double hth_trainer_measured_us(const hth_trainer *trainer)
{
    int n = trainer->replan.n_us < HTH_REPLAN_STEPS ? trainer->replan.n_us : HTH_REPLAN_STEPS;
    return n > 0 ? hth_replan_median(trainer->replan.us, n) : 0;
}

double hth_trainer_predicted_us(const hth_trainer *trainer)
{
    return trainer->n_shapes > 0 ? hth_trainer_shape_us(trainer, &trainer->shapes[0]) : 0;
}

int hth_trainer_swaps(const hth_trainer *trainer)
{
    return trainer->replan.swaps;
}

bool hth_trainer_plans(const hth_trainer *trainer)
{
    const hth_replan *w = &trainer->replan;
    return w->searching || w->n_samples >= 0 || (w->on && !w->refined);
}

// Searching.

// Steps that requests meet have the lowest priority too (train_overlap.h), and the search would
// take half of the processor that they are left.
static void watch_rest(hth_replan *replan, uint64_t round_ns)
{
    uint64_t now_ns = hth_real_ns(), until_ns = hth_real_after(REPLAN_REST * round_ns);
    while (!replan->stop && now_ns < until_ns && now_ns < hth_spin_suspended_until()) {
        replan->rests = 1;
        usleep(REPLAN_LOOK_US);
        now_ns = hth_real_ns();
    }
}

static void watch_search(void *ctx)
{
    hth_replan *w = ctx;
    uint64_t from_ns = hth_real_ns();
    hth_thread_low();
    for (int round = 0; round < w->rounds && !w->stop; round++) {
        hth_plan *plan;
        if (round > 0) {
            watch_rest(w, hth_real_ns() - from_ns);
            from_ns = hth_real_ns();
        }
        w->options.seed++;
        if (hth_plan_train(&w->problem, &w->options, &plan) != HTH_OK) {
            continue; // nothing found this time
        }
        if (w->found == NULL || plan->predicted_us < w->found->predicted_us) {
            hth_plan_free(w->found);
            w->found = plan;
        } else {
            hth_plan_free(plan);
        }
    }
    w->done = 1;
}

hth_err hth_replan_search(hth_trainer *trainer, uint64_t bytes, int rounds)
{
    hth_replan *w = &trainer->replan;
    const hth_trainer_phase *s = hth_replan_phase(trainer);
    const hth_program *p = s->program;
    int *only;
    HTH_TRY(hth_replan_choices(p, &only));
    hth_err err = hth_problem_copy(&p->problem, only, &w->problem);
    hth_free(only);
    HTH_TRY(err);
    w->problem.budget = p->plan->resident_bytes + bytes - s->slots_bytes;
    w->options = p->options;
    w->options.limit_ms = w->once ? p->options.limit_ms : REPLAN_ROUND_MS;
    w->rounds = rounds;
    w->done = w->stop = w->rests = 0;
    err = hth_thread_start("replan", watch_search, w, &w->thread);
    w->searching = err == HTH_OK;
    if (err != HTH_OK) {
        hth_problem_fini(&w->problem);
    }
    return err;
}

static hth_err watch_begin(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    const hth_plan *plan = hth_replan_program(trainer)->plan;
    w->refined = true;
    if (plan->predicted_us <= plan->lower_bound_us * REPLAN_SLACK) {
        return HTH_OK;
    }
    // What the job has now, and no more: trainer_resize.c asks for more.
    return hth_replan_search(trainer, trainer->memory_bytes, w->once ? 1 : REPLAN_ROUNDS);
}

static void watch_join(hth_replan *replan)
{
    if (replan->searching) {
        hth_thread_join(replan->thread);
        replan->searching = false;
    }
}

static void watch_forget(hth_replan *replan)
{
    hth_plan_free(replan->found);
    hth_problem_fini(&replan->problem);
    replan->found = NULL;
}

void hth_replan_stop(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    w->stop = 1;
    watch_join(w);
    watch_forget(w);
    hth_replan_samples_free(w);
    w->n_us = 0;
    w->refined = false;
    w->resizes = w->unwanted = false;
}

// Swapping.

// The found plan, with the problem that it was found for, in the place of the present one.
hth_err hth_replan_take(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    hth_program *p = hth_replan_program(trainer);
    HTH_TRY(hth_plan_verify(&w->problem, w->found));
    HTH_TRY(hth_program_replan(trainer->ms->site, p, &w->problem, &w->found));
    hth_trainer_place(trainer, &trainer->shapes[0]);
    w->swaps++;
    w->n_us = 0;
    hth_trainer_share(trainer);
    return HTH_OK;
}

void hth_replan_end(hth_trainer *trainer)
{
    watch_join(&trainer->replan);
    watch_forget(&trainer->replan);
    trainer->replan.resizes = trainer->replan.unwanted = false;
}

static hth_err watch_finish(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    watch_join(w);
    double now = hth_replan_program(trainer)->plan->predicted_us;
    bool better = w->found != NULL && w->found->predicted_us < now * (1 - REPLAN_GAIN);
    hth_err err = better ? hth_replan_take(trainer) : HTH_OK;
    hth_replan_end(trainer);
    return err == HTH_ENOTSUP ? HTH_OK : err; // the job goes on as it is
}

static bool watch_is_off(const hth_trainer *trainer)
{
    double predicted = hth_replan_program(trainer)->plan->predicted_us;
    return trainer->replan.n_us >= 2 * HTH_REPLAN_STEPS &&
           trainer->replan.corrections < REPLAN_CORRECTIONS &&
           fabs(hth_replan_median(trainer->replan.one_us, HTH_REPLAN_STEPS) - predicted) >
               REPLAN_OFF * predicted;
}

hth_err hth_replan_correct(hth_trainer *trainer)
{
    trainer->replan.once = true;
    return hth_replan_measure(trainer, HTH_REPLAN_SAMPLES);
}

hth_err hth_replan_see(hth_trainer *trainer, int steps)
{
    trainer->replan.only = true;
    return hth_replan_measure(trainer, steps);
}

bool hth_replan_measures(const hth_trainer *trainer, const hth_program *program)
{
    return trainer->replan.n_samples >= 0 && program == hth_replan_program(trainer);
}

hth_err hth_replan_step(hth_trainer *trainer, double us, double one_us)
{
    hth_replan *w = &trainer->replan;
    if (w->n_samples >= 0) {
        hth_replan_sample(trainer, one_us);
        if (w->n_samples < w->want) {
            return HTH_OK;
        }
        HTH_TRY(hth_replan_learn(trainer));
        HTH_TRY(w->only ? HTH_OK : watch_begin(trainer));
        return w->once ? watch_finish(trainer) : HTH_OK;
    }
    w->us[w->n_us % HTH_REPLAN_STEPS] = us;
    w->one_us[w->n_us % HTH_REPLAN_STEPS] = one_us;
    w->n_us++;
    if (!w->on) {
        return HTH_OK;
    }
    if (w->searching && w->resizes) { // hth_trainer_resized ends it
        if (w->unwanted && w->done) {
            hth_replan_end(trainer);
        }
        return HTH_OK;
    }
    if (w->searching) {
        return w->done ? watch_finish(trainer) : HTH_OK;
    }
    if (watch_is_off(trainer)) {
        return hth_replan_measure(trainer, HTH_REPLAN_SAMPLES);
    }
    return !w->refined && w->n_us > 1 ? watch_begin(trainer) : HTH_OK;
}
