// SPDX-License-Identifier: Apache-2.0
// When to measure, when to search, when to swap. See trainer_watch.h.
#include "server/trainer.h"

#include "base/alloc.h"
#include "base/compare.h"
#include "base/log.h"
#include "base/thread.h"
#include "memmgr/plan_parts.h"
#include "server/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define WATCH_OFF         0.05 // of the predicted time: further away it was wrong
#define WATCH_GAIN        0.01 // of the time, to change the plan
#define WATCH_SLACK       1.01 // times the time that no plan can beat: not worth a search
#define WATCH_CORRECTIONS 4    // in a job
#define WATCH_ROUNDS      8    // of a search, each with a seed of its own
#define WATCH_ROUND_MS    500
#define WATCH_FACTORS     6 // rounds: copies' times are not part of what is multiplied

static const hth_trainer_phase *watch_phase(const hth_trainer *t)
{
    return t->shapes[0].parts > 1 ? &t->shapes[0].add : &t->shapes[0].apply;
}

static hth_program *watch_program(const hth_trainer *t)
{
    return watch_phase(t)->program;
}

static double watch_median(const double *v, int n)
{
    double sorted[HTH_WATCH_STEPS];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, hth_compare_double);
    return sorted[n / 2];
}

double hth_trainer_measured_us(const hth_trainer *t)
{
    int n = t->watch.n_us < HTH_WATCH_STEPS ? t->watch.n_us : HTH_WATCH_STEPS;
    return n > 0 ? watch_median(t->watch.us, n) : 0;
}

double hth_trainer_predicted_us(const hth_trainer *t)
{
    return t->n_shapes > 0 ? hth_trainer_shape_us(t, &t->shapes[0]) : 0;
}

int hth_trainer_swaps(const hth_trainer *t)
{
    return t->watch.swaps;
}

// Searching.

static void watch_search(void *ctx)
{
    hth_watch *w = ctx;
    setpriority(PRIO_PROCESS, (id_t)gettid(), 19); // of this thread alone
    for (int round = 0; round < (w->once ? 1 : WATCH_ROUNDS) && !w->stop; round++) {
        hth_plan *plan;
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

// The algorithm that each node has now.
static hth_err watch_choices(const hth_program *p, int **out)
{
    *out = hth_calloc((size_t)p->problem.n_nodes + 1, sizeof **out);
    if (*out == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to plan again");
    }
    for (int i = 0; i < p->plan->n_instrs; i++) {
        const hth_instr *in = &p->plan->instrs[i];
        if (in->kind == HTH_INSTR_COMPUTE && !in->recompute) {
            (*out)[in->node] = in->alt;
        }
    }
    return HTH_OK;
}

static hth_err watch_begin(hth_trainer *t)
{
    hth_watch *w = &t->watch;
    const hth_program *p = watch_program(t);
    int *only;
    w->refined = true;
    if (p->plan->predicted_us <= p->plan->lower_bound_us * WATCH_SLACK) {
        return HTH_OK;
    }
    HTH_TRY(watch_choices(p, &only));
    hth_err err = hth_problem_copy(&p->problem, only, &w->problem);
    hth_free(only);
    HTH_TRY(err);
    // What the job has now, and no more: growing could find others in the way.
    const hth_trainer_phase *s = watch_phase(t);
    w->problem.budget = p->plan->resident_bytes + t->memory_bytes - s->slots_bytes;
    w->options = p->options;
    w->options.limit_ms = w->once ? p->options.limit_ms : WATCH_ROUND_MS;
    w->done = w->stop = 0;
    err = hth_thread_start("replan", watch_search, w, &w->thread);
    w->searching = err == HTH_OK;
    return err;
}

static void watch_join(hth_watch *w)
{
    if (w->searching) {
        hth_thread_join(w->thread);
        w->searching = false;
    }
}

static void watch_forget(hth_watch *w)
{
    hth_plan_free(w->found);
    hth_problem_fini(&w->problem);
    w->found = NULL;
}

static void watch_samples_free(hth_watch *w)
{
    for (int i = 0; i < HTH_WATCH_SAMPLES; i++) {
        hth_free(w->sample[i]);
        w->sample[i] = NULL;
    }
    w->n_samples = -1;
}

void hth_watch_stop(hth_trainer *t)
{
    hth_watch *w = &t->watch;
    w->stop = 1;
    watch_join(w);
    watch_forget(w);
    watch_samples_free(w);
    w->n_us = 0;
    w->refined = false;
}

// Swapping.

// The found plan, with the problem that it was found for, in the place of the present one.
static hth_err watch_swap(hth_trainer *t)
{
    hth_watch *w = &t->watch;
    hth_program *p = watch_program(t);
    HTH_TRY(hth_plan_verify(&w->problem, w->found));
    HTH_TRY(hth_program_replan(t->ms->site, p, &w->problem, &w->found));
    hth_trainer_place(t, &t->shapes[0]);
    w->swaps++;
    w->n_us = 0;
    hth_trainer_share(t);
    return HTH_OK;
}

static hth_err watch_finish(hth_trainer *t)
{
    hth_watch *w = &t->watch;
    watch_join(w);
    double now = watch_program(t)->plan->predicted_us;
    hth_err err = w->found != NULL && w->found->predicted_us < now * (1 - WATCH_GAIN)
                      ? watch_swap(t)
                      : HTH_OK;
    watch_forget(w);
    return err;
}

// Measuring.

static hth_err watch_measure(hth_trainer *t)
{
    hth_watch *w = &t->watch;
    const hth_program *p = watch_program(t);
    for (int i = 0; i < HTH_WATCH_SAMPLES; i++) {
        w->sample[i] = hth_calloc((size_t)p->problem.n_nodes + 1, sizeof *w->sample[i]);
        if (w->sample[i] == NULL) {
            watch_samples_free(w);
            return hth_fail(HTH_ENOMEM, "no memory to measure a step");
        }
    }
    memset(w->bytes, 0, sizeof w->bytes);
    memset(w->busy_us, 0, sizeof w->busy_us);
    w->n_samples = 0;
    w->corrections++;
    hth_run_measure(p->run, true);
    return HTH_OK;
}

static void watch_sample(hth_trainer *t, double us)
{
    hth_watch *w = &t->watch;
    const hth_program *p = watch_program(t);
    const double(*times)[2] = hth_run_times(p->run);
    for (int i = 0; i < p->plan->n_instrs; i++) {
        const hth_instr *in = &p->plan->instrs[i];
        double took = times[i][1] - times[i][0];
        if (in->kind == HTH_INSTR_COMPUTE && !in->recompute) {
            w->sample[w->n_samples][in->node] = took;
        } else if (in->kind == HTH_INSTR_PREFETCH || in->kind == HTH_INSTR_OFFLOAD) {
            int out = in->kind == HTH_INSTR_OFFLOAD;
            w->bytes[out] += (double)p->problem.tensors[in->tensor].bytes;
            w->busy_us[out] += took;
        }
    }
    w->wall_us[w->n_samples++] = us;
}

// The nodes' times and the link's speeds become the measured ones, all by the same factor so that
// the present plan's predicted time is the measured one.
static hth_err watch_learn(hth_trainer *t)
{
    hth_watch *w = &t->watch;
    hth_program *p = watch_program(t);
    int *alt;
    double v[HTH_WATCH_SAMPLES], factor = 1;
    HTH_TRY(watch_choices(p, &alt));
    w->sampled_us = watch_median(w->wall_us, HTH_WATCH_SAMPLES);
    for (int round = 0; round < WATCH_FACTORS; round++) {
        for (int i = 0; i < p->problem.n_nodes; i++) {
            for (int k = 0; k < HTH_WATCH_SAMPLES; k++) {
                v[k] = w->sample[k][i];
            }
            p->problem.nodes[i].alternatives[alt[i]].time_us =
                watch_median(v, HTH_WATCH_SAMPLES) * factor;
        }
        double *speed[2] = {&p->problem.h2d_bytes_per_s, &p->problem.d2h_bytes_per_s};
        for (int out = 0; out < 2 && round == 0; out++) {
            if (w->busy_us[out] > 0 && w->bytes[out] > 0) {
                *speed[out] = w->bytes[out] / w->busy_us[out] * 1e6;
            }
        }
        hth_plan_simulate(&p->problem, p->plan);
        factor *= p->plan->predicted_us > 0 ? w->sampled_us / p->plan->predicted_us : 1;
    }
    hth_free(alt);
    p->plan->lower_bound_us = fmin(p->plan->lower_bound_us, p->plan->predicted_us);
    hth_run_measure(p->run, false);
    watch_samples_free(w);
    w->n_us = 0;
    return watch_begin(t);
}

static bool watch_is_off(const hth_trainer *t)
{
    double predicted = watch_program(t)->plan->predicted_us;
    return t->watch.n_us >= 2 * HTH_WATCH_STEPS && t->watch.corrections < WATCH_CORRECTIONS &&
           fabs(watch_median(t->watch.one_us, HTH_WATCH_STEPS) - predicted) > WATCH_OFF * predicted;
}

hth_err hth_watch_correct(hth_trainer *t)
{
    t->watch.once = true;
    return watch_measure(t);
}

hth_err hth_watch_step(hth_trainer *t, double us, double one_us)
{
    hth_watch *w = &t->watch;
    if (w->n_samples >= 0) {
        watch_sample(t, one_us);
        HTH_TRY(w->n_samples == HTH_WATCH_SAMPLES ? watch_learn(t) : HTH_OK);
        return w->once && w->n_samples < 0 ? watch_finish(t) : HTH_OK;
    }
    w->us[w->n_us % HTH_WATCH_STEPS] = us;
    w->one_us[w->n_us % HTH_WATCH_STEPS] = one_us;
    w->n_us++;
    if (!w->on) {
        return HTH_OK;
    }
    if (w->searching) {
        return w->done ? watch_finish(t) : HTH_OK;
    }
    if (watch_is_off(t)) {
        return watch_measure(t);
    }
    return !w->refined && w->n_us > 1 ? watch_begin(t) : HTH_OK;
}
