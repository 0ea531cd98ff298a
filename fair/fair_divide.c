// SPDX-License-Identifier: Apache-2.0
// Water filling. The level is every tenant's dominant share by weight, while it gets more; it rises
// from event to event: a tenant has all that it wants, or a resource is used up. Tenants are sorted
// by the level at which they have enough, so an event of the first kind costs one step, and there
// are no more of the second kind than resources. What rises with the level is summed up from the
// last tenant to the first: subtracted from a sum, who has enough would leave rounding there, next
// to which a tenant of little weight is nothing.
#include "fair/fair.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

typedef struct divide_tenant {
    double enough; // the level at which it has all that it wants
    double rate;   // tasks by level
    const hth_fair_amounts *demand;
    int index;
    bool stopped;
    hth_fair_amounts rising; // by resource, with the level: of this one and all after it
} divide_tenant;

static int divide_order(const void *a, const void *b)
{
    const divide_tenant *x = a, *y = b;
    return x->enough != y->enough ? (x->enough > y->enough) - (x->enough < y->enough)
                                  : x->index - y->index;
}

// Sets what rises from tenant `next` on; anew after each resource that is used up.
static void divide_rates(divide_tenant *tenant, int next, int n, int n_resources)
{
    hth_fair_amounts sum = {{0}};
    for (int i = n - 1; i >= next; i--) {
        for (int r = 0; r < n_resources && !tenant[i].stopped; r++) {
            sum.of[r] += tenant[i].rate * tenant[i].demand->of[r];
        }
        tenant[i].rising = sum;
    }
}

static void divide_stop(divide_tenant *tenant, double level, double *tasks)
{
    tenant->stopped = true;
    tasks[tenant->index] = tenant->rate * level;
}

// divide_full is the level at which the first resource is used up, *which; infinity: none is.
static double divide_full(const hth_fair_amounts *left, const hth_fair_amounts *rate, int n,
                          double level, int *which)
{
    double full = INFINITY;
    for (int r = 0; r < n; r++) {
        double at = rate->of[r] > 0 ? level + fmax(left->of[r], 0) / rate->of[r] : INFINITY;
        *which = at < full ? r : *which;
        full = at < full ? at : full;
    }
    return full;
}

static void divide_run(const hth_fair_problem *problem, divide_tenant *tenant, int n, double *tasks)
{
    hth_fair_amounts left = problem->capacity;
    double level = 0;
    int next = 0, r = 0;
    divide_rates(tenant, 0, n, problem->n_resources);
    for (;;) {
        while (next < n && tenant[next].stopped) {
            next++;
        }
        if (next == n) {
            return;
        }
        const hth_fair_amounts *rate = &tenant[next].rising;
        double full = divide_full(&left, rate, problem->n_resources, level, &r);
        double to = fmin(full, tenant[next].enough);
        for (int q = 0; q < problem->n_resources; q++) {
            left.of[q] -= rate->of[q] * (to - level);
        }
        level = to;
        if (full > tenant[next].enough) {
            divide_stop(&tenant[next], level, tasks);
        } else {
            left.of[r] = 0;
            for (int i = next; i < n; i++) {
                if (!tenant[i].stopped && tenant[i].demand->of[r] > 0) {
                    divide_stop(&tenant[i], level, tasks);
                }
            }
            divide_rates(tenant, next, n, problem->n_resources);
        }
    }
}

// The dominant share of a task; infinite where it needs what there is none of.
static double divide_share(const hth_fair_problem *problem, const hth_fair_amounts *demand)
{
    double share = 0;
    for (int r = 0; r < problem->n_resources; r++) {
        share = demand->of[r] > 0 ? fmax(share, demand->of[r] / problem->capacity.of[r]) : share;
    }
    return share;
}

hth_err hth_fair_divide(const hth_fair_problem *problem, double *tasks)
{
    int n = problem->n_tenants, m = 0;
    HTH_TRY(hth_fair_check(problem));
    divide_tenant *t = hth_calloc((size_t)n + 1, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("the shares of %d tenants", n);
    }
    for (int i = 0; i < n; i++) {
        const hth_fair_tenant *x = &problem->tenants[i];
        double wants = x->tasks == HTH_FAIR_UNLIMITED ? INFINITY : (double)x->tasks;
        double share = divide_share(problem, &x->demand[0]);
        tasks[i] = share == 0 ? wants : 0;
        if (share > 0 && !isinf(share)) {
            t[m] = (divide_tenant){.rate = x->weight / share, .demand = &x->demand[0], .index = i};
            t[m].enough = wants / t[m].rate;
            m++;
        }
    }
    qsort(t, (size_t)m, sizeof *t, divide_order);
    divide_run(problem, t, m, tasks);
    hth_free(t);
    return HTH_OK;
}
