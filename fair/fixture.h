// SPDX-License-Identifier: Apache-2.0
// fair/fixture.h - random problems of shares for tests, the same from the same seed.
#ifndef HTH_FAIR_FIXTURE_H
#define HTH_FAIR_FIXTURE_H

#include "base/test.h"
#include "fair/fair.h"

static inline uint64_t fair_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed >> 11;
}

static inline uint64_t fair_below(uint64_t *seed, uint64_t n)
{
    return fair_random(seed) % n;
}

// fair_between is a number from a to b.
static inline double fair_between(uint64_t *seed, double a, double b)
{
    return a + (b - a) * (double)fair_below(seed, 1u << 20) / (1 << 20);
}

// A demand of up to a tenth of the capacity, zero for some resources but not for all.
static inline hth_fair_amounts fair_random_demand(uint64_t *seed, const hth_fair_amounts *capacity,
                                                  int n)
{
    hth_fair_amounts d = {{0}};
    for (int r = 0; r < n; r++) {
        d.of[r] = fair_below(seed, 4) == 0 ? 0 : capacity->of[r] * fair_between(seed, 0.001, 0.1);
    }
    int r = (int)fair_below(seed, (uint64_t)n);
    d.of[r] = capacity->of[r] * fair_between(seed, 0.001, 0.1);
    return d;
}

// One demand a tenant; `limited`: some tenants want a certain number of tasks.
static inline hth_fair_problem fair_random_problem(uint64_t seed, bool limited)
{
    uint64_t s = seed * 2654435761u + 88172645463325252u;
    hth_fair_problem p = {.n_resources = 1 + (int)fair_below(&s, 5),
                          .n_tenants = 1 + (int)fair_below(&s, 12)};
    p.tenants = hth_calloc((size_t)p.n_tenants, sizeof *p.tenants);
    for (int r = 0; r < p.n_resources; r++) {
        p.resource[r] = hth_asprintf("r%d", r);
        p.scale[r] = 1;
        p.capacity.of[r] = fair_between(&s, 1, 1000);
    }
    for (int i = 0; i < p.n_tenants; i++) {
        hth_fair_tenant *t = &p.tenants[i];
        t->name = hth_asprintf("t%d", i);
        t->weight = fair_between(&s, 0.2, 4);
        t->tasks = limited && fair_below(&s, 3) == 0 ? fair_below(&s, 20) : HTH_FAIR_UNLIMITED;
        t->n_demands = 1;
        t->demand = hth_calloc(1, sizeof *t->demand);
        t->demand[0] = fair_random_demand(&s, &p.capacity, p.n_resources);
    }
    return p;
}

#endif
