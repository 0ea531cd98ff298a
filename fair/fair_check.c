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
static double check_said(const hth_fair_problem *problem, int r, double amount)
{
    return amount / problem->scale[r];
}

static hth_err check_demand(const hth_fair_problem *problem, const hth_fair_tenant *tenant,
                            const hth_fair_amounts *amounts)
{
    for (int r = 0; r < problem->n_resources; r++) {
        if (!hth_fair_amount_valid(check_said(problem, r, amounts->of[r]))) {
            return hth_fail(
                HTH_EINVAL,
                "tenant '%s' needs %.15g of '%s' for a task; it must be 0, or from %g to %g",
                tenant->name, check_said(problem, r, amounts->of[r]), problem->resource[r],
                HTH_FAIR_AMOUNT_MIN, HTH_FAIR_AMOUNT_MAX);
        }
    }
    return HTH_OK;
}

// Of an elastic task some demands may be above the capacity, but not all.
static hth_err check_fits(const hth_fair_problem *problem, const hth_fair_tenant *tenant)
{
    for (int k = 0; k < tenant->n_demands; k++) {
        if (hth_fair_fits(&tenant->demand[k], &problem->capacity, problem->n_resources)) {
            return HTH_OK;
        }
    }
    const hth_fair_amounts *least = &tenant->demand[tenant->n_demands - 1];
    int r = 0;
    while (least->of[r] <= problem->capacity.of[r]) {
        r++;
    }
    return hth_fail(HTH_EINVAL,
                    "tenant '%s' needs %s%.15g of '%s' for a task; the capacity is %.15g",
                    tenant->name, tenant->n_demands > 1 ? "in the end " : "",
                    check_said(problem, r, least->of[r]), problem->resource[r],
                    check_said(problem, r, problem->capacity.of[r]));
}

static hth_err check_tenant(const hth_fair_problem *problem, const hth_fair_tenant *tenant)
{
    static const hth_fair_amounts none = {{0}};
    if (!(tenant->weight >= HTH_FAIR_WEIGHT_MIN && tenant->weight <= HTH_FAIR_WEIGHT_MAX)) {
        return hth_fail(HTH_EINVAL, "tenant '%s' has the weight %.15g; it must be %g to %.0f",
                        tenant->name, tenant->weight, HTH_FAIR_WEIGHT_MIN, HTH_FAIR_WEIGHT_MAX);
    }
    if (tenant->n_demands == 0) {
        return hth_fail(HTH_EINVAL, "tenant '%s' has 0 demands; its tasks need 1 or more",
                        tenant->name);
    }
    for (int k = 0; k < tenant->n_demands; k++) {
        HTH_TRY(check_demand(problem, tenant, &tenant->demand[k]));
        if (tenant->tasks == HTH_FAIR_UNLIMITED &&
            hth_fair_fits(&tenant->demand[k], &none, problem->n_resources)) {
            return hth_fail(HTH_EINVAL,
                            "tenant '%s' wants as many tasks as fit and needs 0 of everything for "
                            "one, so that any number fits; give a number of tasks",
                            tenant->name);
        }
    }
    return check_fits(problem, tenant);
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
