// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_curve.h"

#include "base/alloc.h"
#include "base/size.h"

#include <math.h>
#include <stdlib.h>

static void curve_link(const hth_problem *problem, const hth_plan *plan, hth_curve_point *out)
{
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        double us = in->end_us - in->start_us;
        out->h2d_us += in->kind == HTH_INSTR_PREFETCH ? us : 0;
        out->d2h_us += in->kind == HTH_INSTR_OFFLOAD ? us : 0;
    }
}

hth_err hth_curve_point_of(const hth_problem *problem, const hth_plan_options *options,
                           uint64_t budget, hth_curve_point *out, bool *fits, hth_plan **keep)
{
    hth_problem at = *problem;
    hth_plan *plan = NULL;
    *fits = false;
    if (keep != NULL) {
        *keep = NULL;
    }
    if (options->cancel != NULL && *options->cancel != 0) {
        return hth_fail(HTH_ECANCELED, "planning was canceled");
    }
    at.budget = budget;
    hth_err err = hth_plan_train(&at, options, &plan);
    if (keep != NULL) {
        *keep = plan;
    }
    *fits = err == HTH_OK;
    if (err != HTH_OK) {
        return err == HTH_ETOOBIG ? HTH_OK : err;
    }
    *out = (hth_curve_point){.budget_bytes = budget,
                             .device_bytes = plan->arena_bytes + plan->resident_bytes,
                             .host_bytes = plan->host_bytes,
                             .time_us = plan->predicted_us,
                             .lower_bound_us = plan->lower_bound_us,
                             .parts = 1};
    curve_link(problem, plan, out);
    hth_plan_free(keep == NULL ? plan : NULL);
    return HTH_OK;
}

// A plan for less memory is valid for more, and a bound for more memory is valid for less.
static void curve_monotone(hth_curve *curve)
{
    for (int i = 0; i < curve->n; i++) {
        curve->point[i].source = i;
        if (i > 0 && curve->point[i - 1].time_us <= curve->point[i].time_us) {
            uint64_t budget = curve->point[i].budget_bytes;
            double bound = curve->point[i].lower_bound_us;
            curve->point[i] = curve->point[i - 1];
            curve->point[i].budget_bytes = budget;
            curve->point[i].lower_bound_us = bound;
        }
    }
    for (int i = curve->n - 2; i >= 0; i--) {
        double bound = curve->point[i + 1].lower_bound_us;
        curve->point[i].lower_bound_us = fmax(curve->point[i].lower_bound_us, bound);
    }
}

hth_err hth_plan_curve_by(hth_curve_plan plan, void *ctx, uint64_t peak, uint64_t floor,
                          hth_curve *out)
{
    hth_curve_point point[HTH_CURVE_POINTS];
    int n = 0;
    *out = (hth_curve){.floor_bytes = floor, .peak_bytes = peak};
    uint64_t low = floor < peak ? floor : peak;
    for (int i = 0; i < HTH_CURVE_POINTS; i++) {
        bool fits;
        uint64_t budget = peak - (peak - low) / (HTH_CURVE_POINTS - 1) * (uint64_t)i;
        HTH_TRY(plan(ctx, budget, &point[n], &fits));
        if (!fits) {
            break;
        }
        n++;
    }
    out->n = n;
    for (int i = 0; i < n; i++) {
        out->point[i] = point[n - 1 - i];
    }
    curve_monotone(out);
    return HTH_OK;
}

typedef struct curve_step {
    const hth_problem *p;
    hth_plan_options o; // each goes on from the plan for the budget above
    hth_plan *last;
} curve_step;

static hth_err curve_plan(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits)
{
    curve_step *x = ctx;
    hth_plan *plan = NULL;
    hth_err err = hth_curve_point_of(x->p, &x->o, budget, out, fits, &plan);
    if (plan != NULL) {
        hth_plan_free(x->last);
        x->o.from = x->last = plan;
    }
    return err;
}

hth_err hth_plan_curve(const hth_problem *problem, const hth_plan_options *options, hth_curve *out)
{
    curve_step x = {.p = problem, .o = *options};
    uint64_t peak, floor;
    *out = (hth_curve){.n = 0};
    HTH_TRY(hth_plan_train_peak(problem, &peak));
    HTH_TRY(hth_plan_train_floor(problem, &floor));
    hth_err err = hth_plan_curve_by(curve_plan, &x, peak, floor, out);
    hth_plan_free(x.last);
    return err;
}

hth_err hth_curve_min(hth_curve_plan plan, void *ctx, uint64_t peak, uint64_t floor,
                      uint64_t *bytes)
{
    hth_curve_point point;
    bool fits;
    uint64_t enough = (uint64_t)((double)peak * HTH_CURVE_MIN), low = floor, high = peak;
    HTH_TRY(plan(ctx, peak, &point, &fits));
    if (!fits) {
        return hth_fail(HTH_ETOOBIG, "no plan was found for %s", hth_size_of(peak).text);
    }
    *bytes = high = point.device_bytes;
    while (high > low && high - low > enough) {
        uint64_t middle = low + (high - low) / 2;
        HTH_TRY(plan(ctx, middle, &point, &fits));
        if (fits) {
            *bytes = high = point.device_bytes;
        } else {
            low = middle;
        }
    }
    return HTH_OK;
}

// Admission: a multiple-choice knapsack with three resources, job by job. A choice is a point for
// each of the first jobs, with what they take in all. One that another beats in cost, bytes and
// both directions of the link (or equals: the first stays) leads to nothing better, and is dropped.

typedef struct admit_choice {
    double cost, in, out; // in, out: of the time, that direction of the link is busy
    uint64_t bytes;
    int before; // the choice of the jobs before that it goes on from
    int point;  // of the last job
} admit_choice;

typedef struct admit_choices {
    admit_choice *at;
    int n, cap;
} admit_choices;

#define ADMIT_ROUNDING 1e-9

static int admit_cheaper(const void *a, const void *b)
{
    const admit_choice *x = a, *y = b;
    if (x->cost != y->cost) {
        return x->cost > y->cost ? 1 : -1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool admit_beaten(const admit_choice *choice, const admit_choice *cheaper, int n)
{
    for (int i = 0; i < n; i++) {
        if (cheaper[i].bytes <= choice->bytes && cheaper[i].in <= choice->in &&
            cheaper[i].out <= choice->out) {
            return true;
        }
    }
    return false;
}

// admit_prune keeps of n choices those that count, and returns how many. Of too many, every so
// many-th by cost, and the one with the fewest bytes.
static int admit_prune(admit_choice *at, int n)
{
    int kept = 0, few = 0;
    qsort(at, (size_t)n, sizeof *at, admit_cheaper);
    for (int i = 0; i < n; i++) {
        if (!admit_beaten(&at[i], at, kept)) {
            at[kept++] = at[i];
        }
    }
    if (kept <= HTH_ADMIT_CHOICES) {
        return kept;
    }
    for (int i = 0; i < kept; i++) {
        few = at[i].bytes < at[few].bytes ? i : few;
    }
    admit_choice fewest = at[few];
    for (int i = 0; i < HTH_ADMIT_CHOICES - 1; i++) {
        at[i] = at[(int64_t)i * kept / (HTH_ADMIT_CHOICES - 1)];
    }
    at[HTH_ADMIT_CHOICES - 1] = fewest;
    return HTH_ADMIT_CHOICES;
}

static admit_choice admit_take(const admit_choice *before, int number, const hth_admit_job *job,
                               int k)
{
    const hth_curve_point *p = &job->curve->point[k];
    double fastest_us = job->curve->point[job->curve->n - 1].time_us;
    double in = p->time_us > 0 ? fmin(1, p->h2d_us / p->time_us) : 0;
    double out = p->time_us > 0 ? fmin(1, p->d2h_us / p->time_us) : 0;
    return (admit_choice){.cost = before->cost + job->weight * p->time_us / fastest_us,
                          .in = before->in + job->turn * in,
                          .out = before->out + job->turn * out,
                          .bytes = before->bytes + p->device_bytes,
                          .before = number,
                          .point = k};
}

// admit_extend adds the choices of one more job.
static hth_err admit_extend(admit_choices *all, const hth_admit_job *job, int from, int to,
                            uint64_t device_bytes, double link)
{
    for (int b = from; b < to; b++) {
        for (int k = 0; k < job->curve->n; k++) {
            admit_choice c = admit_take(&all->at[b], b, job, k);
            if (c.bytes > device_bytes || fmax(c.in, c.out) > link + ADMIT_ROUNDING) {
                continue;
            }
            if (HTH_GROW(all->at, all->n, all->cap) != 0) {
                return hth_no_memory("admitting jobs");
            }
            all->at[all->n++] = c;
        }
    }
    all->n = to + admit_prune(&all->at[to], all->n - to);
    return HTH_OK;
}

// admit_solve: *found: there is a choice, and chosen[] is the best one.
static hth_err admit_solve(const hth_admit_job *jobs, int n, uint64_t device_bytes, double link,
                           int *chosen, bool *found)
{
    admit_choices all = {.n = 0};
    hth_err err = HTH_GROW(all.at, all.n, all.cap) == 0 ? HTH_OK : hth_no_memory("admitting jobs");
    int from = 0;
    if (err == HTH_OK) {
        all.at[all.n++] = (admit_choice){.before = -1};
    }
    for (int j = 0; err == HTH_OK && j < n; j++) {
        int to = all.n;
        err = admit_extend(&all, &jobs[j], from, to, device_bytes, link);
        from = to;
    }
    *found = err == HTH_OK && from < all.n;
    for (int j = n - 1, c = from; *found && j >= 0; j--) { // the first is the cheapest
        chosen[j] = all.at[c].point;
        c = all.at[c].before;
    }
    hth_free(all.at);
    return err;
}

hth_err hth_curve_admit(const hth_admit_job *jobs, int n, uint64_t device_bytes, int *chosen,
                        bool *link)
{
    bool found, fits = false;
    HTH_TRY(admit_solve(jobs, n, device_bytes, 1, chosen, &found));
    if (!found) {
        HTH_TRY(admit_solve(jobs, n, device_bytes, INFINITY, chosen, &fits));
    }
    if (link != NULL) {
        *link = fits;
    }
    if (found) {
        return HTH_OK;
    }
    return fits ? hth_fail(HTH_ETOOBIG, "the copies of %d jobs take more time than there is", n)
                : hth_fail(HTH_ETOOBIG, "%d jobs do not fit %s", n, hth_size_of(device_bytes).text);
}
