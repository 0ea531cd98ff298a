// SPDX-License-Identifier: Apache-2.0
#include "fair/fair.h"

#include "base/alloc.h"

void hth_fair_problem_fini(hth_fair_problem *problem)
{
    for (int r = 0; r < problem->n_resources; r++) {
        hth_free(problem->resource[r]);
    }
    for (int i = 0; i < problem->n_tenants; i++) {
        hth_free(problem->tenants[i].name);
        hth_free(problem->tenants[i].demand);
    }
    hth_free(problem->tenants);
    *problem = (hth_fair_problem){.n_resources = 0};
}

bool hth_fair_amount_valid(double amount)
{
    return amount == 0 || (amount >= HTH_FAIR_AMOUNT_MIN && amount <= HTH_FAIR_AMOUNT_MAX);
}

// A number of the problem as its user wrote it.
static double check_said(const hth_fair_problem *p, int r, double amount)
{
    return amount / p->scale[r];
}

static hth_err check_demand(const hth_fair_problem *p, const hth_fair_tenant *t,
                            const hth_fair_amounts *d)
{
    for (int r = 0; r < p->n_resources; r++) {
        if (!hth_fair_amount_valid(check_said(p, r, d->of[r]))) {
            return hth_fail(
                HTH_EINVAL,
                "tenant '%s' needs %.15g of '%s' for a task; it must be 0, or from %g to %g",
                t->name, check_said(p, r, d->of[r]), p->resource[r], HTH_FAIR_AMOUNT_MIN,
                HTH_FAIR_AMOUNT_MAX);
        }
    }
    return HTH_OK;
}

// Of an elastic task some demands may be above the capacity, but not all.
static hth_err check_fits(const hth_fair_problem *p, const hth_fair_tenant *t)
{
    for (int k = 0; k < t->n_demands; k++) {
        if (hth_fair_fits(&t->demand[k], &p->capacity, p->n_resources)) {
            return HTH_OK;
        }
    }
    const hth_fair_amounts *least = &t->demand[t->n_demands - 1];
    int r = 0;
    while (least->of[r] <= p->capacity.of[r]) {
        r++;
    }
    return hth_fail(HTH_EINVAL,
                    "tenant '%s' needs %s%.15g of '%s' for a task; the capacity is %.15g", t->name,
                    t->n_demands > 1 ? "in the end " : "", check_said(p, r, least->of[r]),
                    p->resource[r], check_said(p, r, p->capacity.of[r]));
}

static hth_err check_tenant(const hth_fair_problem *p, const hth_fair_tenant *t)
{
    static const hth_fair_amounts none = {{0}};
    if (!(t->weight >= HTH_FAIR_WEIGHT_MIN && t->weight <= HTH_FAIR_WEIGHT_MAX)) {
        return hth_fail(HTH_EINVAL, "tenant '%s' has the weight %.15g; it must be %g to %.0f",
                        t->name, t->weight, HTH_FAIR_WEIGHT_MIN, HTH_FAIR_WEIGHT_MAX);
    }
    if (t->n_demands == 0) {
        return hth_fail(HTH_EINVAL, "tenant '%s' has 0 demands; its tasks need 1 or more", t->name);
    }
    for (int k = 0; k < t->n_demands; k++) {
        HTH_TRY(check_demand(p, t, &t->demand[k]));
        if (t->tasks == HTH_FAIR_UNLIMITED && hth_fair_fits(&t->demand[k], &none, p->n_resources)) {
            return hth_fail(HTH_EINVAL,
                            "tenant '%s' wants as many tasks as fit and needs 0 of everything for "
                            "one, so that any number fits; give a number of tasks",
                            t->name);
        }
    }
    return check_fits(p, t);
}

hth_err hth_fair_check(const hth_fair_problem *problem)
{
    for (int r = 0; r < problem->n_resources; r++) {
        double c = check_said(problem, r, problem->capacity.of[r]);
        if (!hth_fair_amount_valid(c)) {
            return hth_fail(HTH_EINVAL,
                            "the capacity of '%s' is %.15g; it must be 0, or from %g to %g",
                            problem->resource[r], c, HTH_FAIR_AMOUNT_MIN, HTH_FAIR_AMOUNT_MAX);
        }
    }
    for (int i = 0; i < problem->n_tenants; i++) {
        HTH_TRY(check_tenant(problem, &problem->tenants[i]));
    }
    return HTH_OK;
}
