// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to the reader of problems of shares, and shares out what it accepts: nobody
// gets more than it wants, everything adds up to the capacity, and the answer can be written.
#include "fair/fair_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

#define FUZZ_TASKS 2000

static void need(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check_whole(const hth_fair_problem *problem, const hth_fair_shares *shares)
{
    hth_fair_amounts sum = shares->left;
    for (int i = 0; i < problem->n_tenants; i++) {
        need(shares->of[i].tasks <= problem->tenants[i].tasks);
        need(shares->of[i].dominant_share >= 0 && shares->of[i].dominant_share <= 1 + 1e-9);
        for (int r = 0; r < problem->n_resources; r++) {
            sum.of[r] += shares->of[i].used.of[r];
        }
    }
    for (int r = 0; r < problem->n_resources; r++) {
        need(shares->left.of[r] >= 0);
        need(fabs(sum.of[r] - problem->capacity.of[r]) <= 1e-9 * problem->capacity.of[r]);
    }
    json_t *doc = hth_fair_shares_json(problem, shares);
    need(doc != NULL);
    json_decref(doc);
}

static void check_parts(const hth_fair_problem *problem)
{
    double *tasks = calloc((size_t)problem->n_tenants, sizeof *tasks);
    hth_fair_amounts used = {{0}};
    need(hth_fair_divide(problem, tasks) == HTH_OK);
    for (int i = 0; i < problem->n_tenants; i++) {
        need(tasks[i] >= 0 && tasks[i] <= (double)problem->tenants[i].tasks * (1 + 1e-9));
        for (int r = 0; r < problem->n_resources; r++) {
            double amount = problem->tenants[i].demand[0].of[r];
            used.of[r] += amount > 0 ? amount * tasks[i] : 0;
        }
    }
    for (int r = 0; r < problem->n_resources; r++) {
        need(used.of[r] <= problem->capacity.of[r] * (1 + 1e-6));
    }
    free(tasks);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    hth_fair_problem p;
    hth_fair_shares s;
    char *text = malloc(n + 1); // of its own size: a byte too far is seen
    memcpy(text, bytes, n);
    if (hth_fair_problem_read(text, n, &p) == HTH_OK) {
        if (hth_fair_fill(&p, FUZZ_TASKS, &s) == HTH_OK) {
            check_whole(&p, &s);
            hth_fair_shares_fini(&s);
        }
        check_parts(&p);
        hth_fair_problem_fini(&p);
    }
    free(text);
    return 0;
}
