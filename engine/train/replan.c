// SPDX-License-Identifier: Apache-2.0
// When to measure, when to search, when to swap. See replan.h.
#include "engine/train/replan_impl.h"

#include "base/alloc.h"
#include "base/compare.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/spin.h"
#include "base/thread.h"
#include "planner/plan_walk.h"
#include "runtime/compile/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPLAN_OFF         0.05  // of the predicted time: further away it was wrong
#define REPLAN_GAIN        0.005 // of the time, to change the plan, ..
#define REPLAN_WORTH       2     // .. and times what changing over costs, in all steps left
#define REPLAN_CORRECTIONS 4     // in a job
#define REPLAN_LIMITS      40    // times a first search's limit: what all searches do at most
#define REPLAN_SLICE_MS    500   // of a search for another budget
#define REPLAN_REST        10    // times a slice's limit, before it, while requests come
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

hth_train_swap hth_trainer_swap(const hth_trainer *trainer)
{
    return trainer->replan.last;
}

// Searching.

// watch_misses: the job goes on as it is.
static hth_err watch_misses(const char *what)
{
    hth_log(WARN, SERVER, "train", "a job %s: %s", what, hth_err_detail());
    return HTH_OK;
}

// What the phase that is watched takes at most with a plan that is worth changing over to.
static double watch_enough_us(const hth_trainer *trainer)
{
    const hth_replan *w = &trainer->replan;
    double now_us = hth_replan_program(trainer)->plan->predicted_us, gain_us = REPLAN_GAIN * now_us;
    double left = (double)w->steps - (double)trainer->counter,
           cost_us = hth_replan_cost_us(trainer);
    double runs = trainer->shapes[0].parts > 1 ? (double)trainer->shapes[0].parts - 1 : 1;
    if (w->steps > 0) {
        gain_us = fmax(gain_us, REPLAN_WORTH * cost_us / (runs * fmax(left, 1)));
    }
    return now_us - gain_us;
}

// How much work a search may do now.
static double watch_limit_ms(const hth_trainer *trainer)
{
    const hth_replan *w = &trainer->replan;
    double share = hth_setting_real(HTH_SET_TRAIN_REPLAN_SHARE);
    double left = (double)w->steps - (double)trainer->counter;
    double limit_ms = REPLAN_LIMITS * hth_plan_limit_ms(&hth_replan_program(trainer)->problem);
    limit_ms -= w->work_ms;
    if (w->steps > 0) {
        double job_ms = left * hth_trainer_predicted_us(trainer) / 1e3;
        limit_ms = fmin(limit_ms, share * job_ms - w->total_ms);
    }
    return share > 0 ? limit_ms : 0;
}

// Steps that requests meet have the lowest priority too (train_overlap.h), and the search would
// take half of the processor that they are left. Nobody waits for one of several slices.
static void watch_rest(hth_replan *replan)
{
    double rest_ms = REPLAN_REST * replan->refine.slice_ms;
    uint64_t now_ns = hth_real_ns(), until_ns = hth_real_after((uint64_t)(rest_ms * 1e6));
    bool patient = replan->refine.limit_ms > replan->refine.slice_ms;
    while (patient && !replan->stop && now_ns < until_ns && now_ns < hth_spin_suspended_until()) {
        replan->rests = 1;
        usleep(REPLAN_LOOK_US);
        now_ns = hth_real_ns();
    }
}

static void watch_search(void *ctx)
{
    hth_replan *w = ctx;
    hth_thread_low();
    while (w->stop == 0 && w->refine.us > w->enough_us && !hth_refine_over(&w->refine)) {
        watch_rest(w);
        (void)hth_refine_slice(&w->refine);
    }
    w->done = 1;
}

// watch_start begins to search for limit_ms from a plan of the step that is watched.
static hth_err watch_start(hth_trainer *trainer, uint64_t bytes, const hth_plan *from,
                           double slice_ms, double limit_ms)
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
    hth_plan_options options = p->options;
    options.seed += (uint64_t)w->slices;
    options.cancel = &w->stop;
    w->done = w->stop = w->rests = 0;
    HTH_GOTO(hth_refine_open(&w->refine, &w->problem, &options, from, slice_ms, limit_ms), fail);
    HTH_GOTO(hth_thread_start("replan", watch_search, w, &w->thread), fail);
    w->searching = true;
    return HTH_OK;
fail:
    hth_refine_close(&w->refine);
    hth_problem_fini(&w->problem);
    return err;
}

hth_err hth_replan_search(hth_trainer *trainer, uint64_t bytes)
{
    const hth_plan none = {.predicted_us = INFINITY};
    double once_ms = hth_replan_program(trainer)->options.limit_ms;
    once_ms = once_ms > 0 ? once_ms : hth_plan_limit_ms(&hth_replan_program(trainer)->problem);
    double slice_ms = trainer->replan.once ? once_ms : REPLAN_SLICE_MS;
    trainer->replan.enough_us = 0;
    return watch_start(trainer, bytes, &none, slice_ms, slice_ms);
}

// watch_begin searches for a plan in the memory that the job has now (trainer_resize.c asks for
// more), if one can be fast enough.
static hth_err watch_begin(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    const hth_plan *plan = hth_replan_program(trainer)->plan;
    double limit_ms = watch_limit_ms(trainer);
    double slice_ms = hth_plan_limit_ms(&hth_replan_program(trainer)->problem);
    w->refined = true;
    w->enough_us = watch_enough_us(trainer);
    if (w->enough_us <= plan->lower_bound_us || (limit_ms < slice_ms && !w->once)) {
        return HTH_OK;
    }
    hth_err err = w->once ? hth_replan_search(trainer, trainer->memory_bytes)
                          : watch_start(trainer, trainer->memory_bytes, plan, slice_ms, limit_ms);
    return err != HTH_OK && !w->once ? watch_misses("searches for no better plan") : err;
}

static void watch_join(hth_replan *replan)
{
    if (replan->searching) {
        hth_thread_join(replan->thread);
        replan->searching = false;
        replan->slices += replan->refine.slices;
    }
}

static void watch_forget(hth_replan *replan)
{
    hth_refine_close(&replan->refine);
    hth_problem_fini(&replan->problem);
}

void hth_replan_stop(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    w->stop = 1;
    watch_join(w);
    w->total_ms += w->resizes ? 0 : w->refine.work_ms;
    watch_forget(w);
    hth_replan_samples_free(w);
    w->n_us = 0;
    w->work_ms = 0;
    w->refined = false;
    w->resizes = w->unwanted = false;
}

// Swapping.

// The found plan, with the problem that it was found for, in the place of the present one.
hth_err hth_replan_take(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    hth_program *p = hth_replan_program(trainer);
    HTH_TRY(hth_plan_verify(&w->problem, w->refine.best));
    HTH_TRY(hth_program_replan(trainer->ms->site, p, &w->problem, &w->refine.best));
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

bool hth_replan_evaluates(const hth_trainer *trainer, const hth_plan *plan, uint64_t bytes)
{
    const hth_trainer_shape *s = &trainer->shapes[0];
    uint64_t slots_bytes = s->parts > 1 ? s->apply.slots_bytes : 0;
    for (int i = 0; s->parts == 1 && i < trainer->slots.n; i++) {
        int t = hth_program_slot(s->apply.program, i);
        bool stays = t >= 0 && !plan->streamed[t];
        slots_bytes += stays ? hth_plan_round(trainer->slots.bytes[i]) : 0;
    }
    return bytes >= slots_bytes + trainer->eval_bytes;
}

// watch_finish takes what was found over, if it is worth it, and goes on from there with what is
// left of the work, unless somebody has stopped the search.
static hth_err watch_finish(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    watch_join(w);
    double from_us = hth_trainer_predicted_us(trainer);
    bool better = w->refine.best != NULL && w->refine.us <= watch_enough_us(trainer) &&
                  hth_replan_evaluates(trainer, w->refine.best, trainer->memory_bytes);
    w->work_ms += w->refine.work_ms;
    w->total_ms += w->refine.work_ms;
    hth_err err = better ? hth_replan_take(trainer) : HTH_OK;
    if (better && err == HTH_OK) {
        w->last =
            (hth_train_swap){(int64_t)trainer->counter, from_us, hth_trainer_predicted_us(trainer)};
        w->refined = w->once || w->stop != 0;
    }
    hth_replan_end(trainer);
    bool goes_on = err == HTH_ENOTSUP || err == HTH_ENOMEM || err == HTH_EIO;
    return goes_on ? watch_misses("takes no better plan") : err;
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
        w->work_ms = 0;
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
