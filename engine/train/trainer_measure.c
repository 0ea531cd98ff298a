// SPDX-License-Identifier: Apache-2.0
// What steps take, instruction by instruction, and what becomes of it: the times of the problem
// that is planned again, and of those that are planned later. Steps in which other processes ran on
// the same processors (their threads waited for one), or that a quota held back, say little: they
// count only where there is nothing else, and are not remembered.
#include "engine/train/replan_impl.h"

#include "base/alloc.h"
#include "base/compare.h"
#include "base/thread.h"
#include "planner/plan_walk.h"
#include "runtime/compile/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPLAN_FACTORS 6   // rounds: copies' times are not part of what is multiplied
#define REPLAN_CALM    1.1 // times the fastest of the measured steps: slower ones were disturbed
// Of a step's time: threads that wait longer for a processor have company.
#define REPLAN_DELAY 0.05

double hth_replan_median(const double *values, int count)
{
    double sorted[HTH_REPLAN_STEPS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, hth_compare_double);
    return hth_median(sorted, count);
}

hth_err hth_replan_choices(const hth_program *program, int **out)
{
    *out = hth_calloc((size_t)program->problem.n_nodes + 1, sizeof **out);
    if (*out == NULL) {
        return hth_no_memory("a new plan");
    }
    for (int i = 0; i < program->plan->n_instrs; i++) {
        const hth_instr *in = &program->plan->instrs[i];
        if (in->kind == HTH_INSTR_COMPUTE && !in->recompute) {
            (*out)[in->node] = in->alt;
        }
    }
    return HTH_OK;
}

void hth_replan_samples_free(hth_replan *replan)
{
    for (int i = 0; i < HTH_REPLAN_SAMPLES; i++) {
        hth_free(replan->sample[i]);
        replan->sample[i] = NULL;
    }
    hth_free(replan->runs);
    replan->runs = NULL;
    replan->n_samples = -1;
}

hth_err hth_replan_measure(hth_trainer *trainer, int steps)
{
    hth_replan *w = &trainer->replan;
    const hth_program *p = hth_replan_program(trainer);
    size_t n = (size_t)p->problem.n_nodes + 1;
    bool all = (w->runs = hth_calloc(n, sizeof *w->runs)) != NULL;
    for (int i = 0; i < steps; i++) {
        w->sample[i] = hth_calloc(n, sizeof *w->sample[i]);
        all = all && w->sample[i] != NULL;
    }
    if (!all) {
        hth_replan_samples_free(w);
        return hth_no_memory("measuring a step");
    }
    for (int i = 0; i < p->plan->n_instrs; i++) {
        const hth_instr *in = &p->plan->instrs[i];
        w->runs[in->kind == HTH_INSTR_COMPUTE ? in->node : p->problem.n_nodes]++;
    }
    memset(w->bytes, 0, sizeof w->bytes);
    memset(w->copy_us, 0, sizeof w->copy_us);
    memset(w->busy_us, 0, sizeof w->busy_us);
    w->n_samples = 0;
    w->want = steps;
    w->delay_ns = hth_thread_delay_ns();
    w->corrections++;
    hth_run_measure(p->run, true);
    return HTH_OK;
}

// A node that runs more than once in a step: the mean.
void hth_replan_sample(hth_trainer *trainer, double us)
{
    hth_replan *w = &trainer->replan;
    const hth_program *p = hth_replan_program(trainer);
    const double(*times)[2] = hth_run_times(p->run);
    for (int i = 0; i < p->plan->n_instrs; i++) {
        const hth_instr *in = &p->plan->instrs[i];
        double took = times[i][1] - times[i][0];
        if (in->kind == HTH_INSTR_COMPUTE) {
            w->sample[w->n_samples][in->node] += took / w->runs[in->node];
        } else if (in->kind == HTH_INSTR_PREFETCH || in->kind == HTH_INSTR_OFFLOAD) {
            int out = in->kind == HTH_INSTR_OFFLOAD;
            w->bytes[w->n_samples][out] += (double)p->problem.tensors[in->tensor].bytes;
            w->copy_us[w->n_samples][out] += took;
        }
    }
    uint64_t delay_ns = hth_thread_delay_ns();
    bool delayed =
        delay_ns > w->delay_ns && (double)(delay_ns - w->delay_ns) / 1e3 > REPLAN_DELAY * us;
    w->busy[w->n_samples] = delayed || hth_device_quota_percent(trainer->ms->site->device) < 100;
    w->delay_ns = delay_ns;
    w->wall_us[w->n_samples++] = us;
}

// The steps that nothing seems to have disturbed, or, where that is not so of any, all that are
// about as fast as the fastest. Returns how many.
static int watch_calm(hth_replan *replan, int calm[HTH_REPLAN_SAMPLES])
{
    int n = 0, quiet = 0;
    double least = INFINITY;
    for (int k = 0; k < replan->want; k++) {
        quiet += !replan->busy[k];
    }
    for (int k = 0; k < replan->want; k++) {
        least = replan->busy[k] && quiet > 0 ? least : fmin(least, replan->wall_us[k]);
    }
    for (int k = 0; k < replan->want; k++) {
        if (replan->wall_us[k] <= REPLAN_CALM * least && !(replan->busy[k] && quiet > 0)) {
            calm[n++] = k;
        }
    }
    replan->calm = quiet > 0 && 2 * n > replan->want;
    return n;
}

// The nodes' times and the link's speeds, unless they were set, become the measured ones, all by
// the same factor so that the present plan's predicted time is the measured one.
hth_err hth_replan_learn(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    hth_program *p = hth_replan_program(trainer);
    int *alt;
    int calm[HTH_REPLAN_SAMPLES], n = watch_calm(w, calm);
    double v[HTH_REPLAN_SAMPLES], factor = 1;
    bool set = hth_device_paced(trainer->ms->site->device);
    HTH_TRY(hth_replan_choices(p, &alt));
    for (int k = 0; k < n; k++) {
        v[k] = w->wall_us[calm[k]];
    }
    w->sampled_us = hth_replan_median(v, n);
    for (int round = 0; round < REPLAN_FACTORS; round++) {
        for (int i = 0; i < p->problem.n_nodes; i++) {
            for (int k = 0; k < n; k++) {
                v[k] = w->sample[calm[k]][i];
            }
            p->problem.nodes[i].alternatives[alt[i]].time_us = hth_replan_median(v, n) * factor;
        }
        double *speed[2] = {&p->problem.h2d_bytes_per_s, &p->problem.d2h_bytes_per_s};
        for (int out = 0; out < 2 && round == 0; out++) {
            double bytes = 0;
            for (int k = 0; k < n; k++) {
                bytes += w->bytes[calm[k]][out];
                w->busy_us[out] += w->copy_us[calm[k]][out];
            }
            if (!set && w->busy_us[out] > 0 && bytes > 0) {
                *speed[out] = bytes / w->busy_us[out] * 1e6;
            }
        }
        hth_plan_simulate(&p->problem, p->plan);
        factor *= p->plan->predicted_us > 0 ? w->sampled_us / p->plan->predicted_us : 1;
    }
    hth_free(alt);
    p->plan->lower_bound_us = fmin(p->plan->lower_bound_us, p->plan->predicted_us);
    hth_run_measure(p->run, false);
    hth_replan_samples_free(w);
    w->n_us = 0;
    return HTH_OK;
}

hth_err hth_replan_remember(hth_trainer *trainer)
{
    hth_replan *w = &trainer->replan;
    const hth_program *p = hth_replan_program(trainer);
    int *alt;
    if (w->sampled_us <= 0 || !w->calm) {
        return HTH_OK;
    }
    HTH_TRY(hth_replan_choices(p, &alt));
    hth_in_step_times *seen = hth_calloc((size_t)p->problem.n_nodes + 1, sizeof *seen);
    hth_err err = seen == NULL ? hth_no_memory("what nodes took") : HTH_OK;
    for (int i = 0; err == HTH_OK && i < p->problem.n_nodes; i++) {
        const hth_choice *c = &p->problem.nodes[i].alternatives[alt[i]];
        seen[i] = (hth_in_step_times){c->name, c->time_us};
    }
    hth_free(alt);
    if (err == HTH_OK) {
        err = hth_program_remember(trainer->ms->site, p, seen, w->busy_us);
    }
    hth_free(seen);
    return err;
}
