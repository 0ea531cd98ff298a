// SPDX-License-Identifier: Apache-2.0
// planner/plan_least_test.h - reads a refusal's sentence, for tests that hold it against what plans
// were found for.
#ifndef HTH_PLANNER_PLAN_LEAST_TEST_H
#define HTH_PLANNER_PLAN_LEAST_TEST_H

#include "base/settings.h"
#include "base/test.h"
#include "planner/plan_curve.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// The bytes that the sentence names after these words; 0: it does not have them.
static inline uint64_t pl_size(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    char size[40] = "";
    uint64_t bytes;
    if (at == NULL) {
        return 0;
    }
    at += strlen(words);
    size_t n = strspn(at, "0123456789."), interval = at[n] == ' ';
    size_t unit = n + interval;
    while (isalpha((unsigned char)at[unit])) {
        unit++;
    }
    snprintf(size, sizeof size, "%.*s%.*s", (int)n, at, (int)(unit - n - interval),
             at + n + interval);
    assert_ok(hth_parse_size(size, 0, &bytes));
    return bytes;
}

// The bytes that it says a plan was found for.
static inline uint64_t pl_found(const char *text)
{
    uint64_t bytes = pl_size(text, "; a plan was found for ");
    return bytes > 0 ? bytes : pl_size(text, "; one was found for ");
}

// The bytes that it says a plan was found for with another number of --batch or --accumulate.
static inline uint64_t pl_change(const char *text, const char *what, long long *number)
{
    char words[40];
    snprintf(words, sizeof words, "; with %s ", what);
    const char *at = strstr(text, words);
    *number = at != NULL ? atoll(at + strlen(words)) : 0;
    return at != NULL ? pl_size(at, " for ") : 0;
}

// Checks the sentence of a refusal under `budget`, where plans were found for `fewest` bytes:
// whether it says what is proven, which is then no more than that. *found: that it names, 0: none.
static inline bool pl_check(const char *text, uint64_t budget, uint64_t fewest, uint64_t *found)
{
    uint64_t least = pl_size(text, "needs at least ");
    if (least > fewest) {
        fail_msg("there is a plan for %llu bytes: %s", (unsigned long long)fewest, text);
    }
    if (pl_size(text, "; none fits below ") > (fewest < budget ? fewest : budget)) {
        fail_msg("there is a plan for %llu bytes: %s", (unsigned long long)fewest, text);
    }
    *found = pl_found(text);
    assert_true(*found == 0 || *found > budget);
    if (least == 0 && strstr(text, "no plan was found for a budget of ") == NULL) {
        fail_msg("neither proven nor not found: %s", text);
    }
    assert_true(least == 0 || pl_size(text, "the budget is ") < least);
    assert_true(least == 0 || budget < least + least / 8); // as far as it is rounded
    return least > 0;
}

// The fewest bytes that a verified plan of problem with the moves of a training step is found for,
// from `enough` down.
static inline uint64_t pl_fewest(const hth_problem *problem, uint64_t seed, uint64_t enough)
{
    hth_problem at = *problem;
    uint64_t low = 0, high = enough;
    for (int k = 0; k < 10 && low < high; k++) {
        hth_plan *plan;
        hth_plan_options o = {.seed = seed + (uint64_t)k, .limit_ms = 5000, .limit_decodes = 100};
        at.budget = low + (high - low) / 2;
        if (hth_plan_train(&at, &o, &plan) == HTH_OK) {
            assert_ok(hth_plan_verify(&at, plan));
            high = plan->arena_bytes + plan->resident_bytes;
            hth_plan_free(plan);
        } else {
            low = at.budget + 1;
        }
    }
    return high;
}

#endif
