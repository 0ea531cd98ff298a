// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_curve.h"

#include "base/alloc.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

#define ADMIT_CELLS 4096

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
    hth_plan *plan;
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

// Admission.

static int admit_cells(uint64_t bytes, uint64_t device)
{
    double share = device > 0 ? (double)bytes / (double)device : 2;
    return share > 1 ? ADMIT_CELLS + 1 : (int)ceil(share * ADMIT_CELLS);
}

static double admit_cost(const hth_curve *curve, int k, double weight)
{
    return weight * curve->point[k].time_us / curve->point[curve->n - 1].time_us;
}

// What the chosen points take of the link, as a share of the time.
static double admit_link(const hth_curve *const *curves, int n, const int *chosen)
{
    double share = 0;
    for (int j = 0; j < n; j++) {
        const hth_curve_point *p = &curves[j]->point[chosen[j]];
        share += p->time_us > 0 ? fmax(p->h2d_us, p->d2h_us) / p->time_us : 0;
    }
    return share;
}

// best[j][c]: least cost of jobs 0 .. j-1 in c cells; from[j][c]: the point that job j took.
// `first`: per job, the least point that it may take.
static bool admit_solve(const hth_curve *const *curves, const double *weight, int n,
                        uint64_t device, const int *first, double *best, int8_t *from, int *chosen)
{
    const size_t row = ADMIT_CELLS + 1;
    for (size_t c = 0; c < row; c++) {
        best[c] = 0;
    }
    for (int j = 0; j < n; j++) {
        double *to = &best[(size_t)(j + 1) * row];
        for (int c = 0; c <= ADMIT_CELLS; c++) {
            to[c] = INFINITY;
            from[(size_t)j * row + (size_t)c] = -1;
            for (int k = first[j]; k < curves[j]->n; k++) {
                int need = admit_cells(curves[j]->point[k].device_bytes, device);
                double cost = need > c ? INFINITY
                                       : best[(size_t)j * row + (size_t)(c - need)] +
                                             admit_cost(curves[j], k, weight[j]);
                if (cost < to[c]) {
                    to[c] = cost;
                    from[(size_t)j * row + (size_t)c] = (int8_t)k;
                }
            }
        }
    }
    int c = ADMIT_CELLS;
    for (int j = n - 1; j >= 0; j--) {
        int k = from[(size_t)j * row + (size_t)c];
        if (k < 0) {
            return false;
        }
        chosen[j] = k;
        c -= admit_cells(curves[j]->point[k].device_bytes, device);
    }
    return true;
}

// The job that uses the link most may not take its present point, nor one below, any more.
static int admit_busiest(const hth_curve *const *curves, int n, const int *chosen)
{
    int worst = -1;
    double most = 0;
    for (int j = 0; j < n; j++) {
        const hth_curve_point *p = &curves[j]->point[chosen[j]];
        double share = p->time_us > 0 ? fmax(p->h2d_us, p->d2h_us) / p->time_us : 0;
        if (share > most && chosen[j] + 1 < curves[j]->n) {
            most = share;
            worst = j;
        }
    }
    return worst;
}

hth_err hth_curve_admit(const hth_curve *const *curves, const double *weight, int n,
                        uint64_t device_bytes, double link_share, int *chosen)
{
    size_t row = ADMIT_CELLS + 1, rows = (size_t)n + 1;
    double *best = hth_calloc(rows * row, sizeof *best);
    int8_t *from = hth_calloc(rows * row, sizeof *from);
    int *first = hth_calloc(rows, sizeof *first);
    hth_err err = best && from && first ? HTH_OK : hth_no_memory("admitting jobs");
    while (err == HTH_OK) {
        if (!admit_solve(curves, weight, n, device_bytes, first, best, from, chosen)) {
            err = hth_fail(HTH_ETOOBIG, "%d jobs do not fit %llu bytes and their share of the link",
                           n, (unsigned long long)device_bytes);
            break;
        }
        int busy =
            admit_link(curves, n, chosen) > link_share ? admit_busiest(curves, n, chosen) : -1;
        if (busy < 0) {
            break;
        }
        first[busy] = chosen[busy] + 1;
    }
    hth_free(best);
    hth_free(from);
    hth_free(first);
    return err;
}
