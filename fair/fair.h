// SPDX-License-Identifier: Apache-2.0
// fair/fair.h - who gets which share of what a node has: Dominant Resource Fairness.
//
// Design notes
// The paper is Ghodsi, Zaharia, Hindman, Konwinski, Shenker and Stoica, "Dominant Resource
// Fairness: Fair Allocation of Multiple Resource Types", NSDI 2011. A tenant's *dominant share* is
// the largest of its shares of the resources; progressive filling raises all dominant shares,
// divided by the tenants' weights, alike.
//
// Demands are elastic: a task has a list of demands, from best to least, and any of them will do.
//
// Everything here is a function of its arguments: no device, file, clock or global state. Any
// thread, with data of its own.
#ifndef HTH_FAIR_FAIR_H
#define HTH_FAIR_FAIR_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define HTH_FAIR_RESOURCES 16
#define HTH_FAIR_UNLIMITED UINT64_MAX // as a number of tasks: as many as fit
#define HTH_FAIR_TASKS     10000000   // that are given out in all, at most
// Amounts are 0 or in this range, and weights in theirs, so that no quotient leaves a double's.
#define HTH_FAIR_AMOUNT_MIN 1e-9
#define HTH_FAIR_AMOUNT_MAX 1e18
#define HTH_FAIR_WEIGHT_MIN 0.000001
#define HTH_FAIR_WEIGHT_MAX 1000000.0

// One number for each resource, in the unit of the capacity; those beyond the count are 0.
typedef struct hth_fair_amounts {
    double of[HTH_FAIR_RESOURCES];
} hth_fair_amounts;

typedef struct hth_fair_tenant {
    char *name;
    double weight;
    uint64_t tasks;           // wanted
    hth_fair_amounts *demand; // of a task: n_demands, from best to least
    int n_demands;
} hth_fair_tenant;

typedef struct hth_fair_problem {
    int n_resources, n_tenants;
    char *resource[HTH_FAIR_RESOURCES]; // names
    hth_fair_amounts capacity;
    hth_fair_tenant *tenants;
    // What amounts were multiplied by when they were read, so that decimals are whole numbers; 1 or
    // a power of ten.
    double scale[HTH_FAIR_RESOURCES];
} hth_fair_problem;

typedef struct hth_fair_share {
    uint64_t tasks;
    hth_fair_amounts used;
    double dominant_share; // of the capacity, not divided by the weight
    int dominant;          // the resource of which it is; -1: nothing is used
} hth_fair_share;

typedef struct hth_fair_shares {
    hth_fair_share *of; // one for each tenant
    hth_fair_amounts left;
} hth_fair_shares;

// hth_fair_problem_fini frees what the problem holds and leaves it empty.
void hth_fair_problem_fini(hth_fair_problem *problem);
// hth_fair_check: HTH_EINVAL names the tenant, and both numbers: a weight or an amount out of
// range, a task that fits the capacity with none of its demands, a tenant
// that wants as many tasks as fit and needs nothing for them.
hth_err hth_fair_check(const hth_fair_problem *problem);

// hth_fair_whole says whether x is the number nearest to some whole number, up to HTH_FAIR_EXACT,
// divided by `scale`, a power of ten: with scale 100, whether it has two decimals.
#define HTH_FAIR_EXACT 9007199254740992.0 // 2^53
bool hth_fair_whole(double x, double scale);

// hth_fair_amount_valid: 0, or in range.
bool hth_fair_amount_valid(double amount);
// hth_fair_fits says whether a demand is at most `room` in each of n resources.
bool hth_fair_fits(const hth_fair_amounts *demand, const hth_fair_amounts *room, int n);
// hth_fair_dominant is the largest share of the capacity; *which (may be NULL) gets its resource,
// -1 where nothing is used. Nothing of a resource that has no capacity is a share of 0.
double hth_fair_dominant(const hth_fair_amounts *used, const hth_fair_amounts *capacity, int n,
                         int *which);

// hth_fair_fill gives out whole tasks, one at a time, to the tenant with the least dominant share
// divided by its weight (among equal ones the first), with the first of its demands that fits. A
// tenant whose task does not fit is passed over. Comparisons are exact where amounts are whole
// numbers, weights have at most six decimals, and a capacity times 10^6 times a weight is at most
// 2^64. Takes n log n for n tasks and tenants. At most `most` tasks (HTH_EINVAL says who has how
// many). The caller owns *out until hth_fair_shares_fini; on error nothing is held.
hth_err hth_fair_fill(const hth_fair_problem *problem, uint64_t most, hth_fair_shares *out);
void hth_fair_shares_fini(hth_fair_shares *shares);

// hth_fair_divide gives out parts of tasks: all dominant shares divided by weights rise alike until
// a resource is used up, which stops those who need it, or a tenant has all that it wants. Each
// task has its first demand. tasks[i] gets the number of tenant i. This is the form for which the
// paper proves sharing incentive, strategy-proofness, envy-freeness and Pareto efficiency. Takes
// n log n for n tenants. Errors: hth_fair_check's, HTH_ENOMEM.
hth_err hth_fair_divide(const hth_fair_problem *problem, double *tasks);

#endif
