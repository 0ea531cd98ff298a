// SPDX-License-Identifier: Apache-2.0
// planner/plan_test.h - planning problems for tests: by hand, and random ones shaped like networks.
#ifndef HTH_PLANNER_PLAN_TEST_H
#define HTH_PLANNER_PLAN_TEST_H

#include "base/test.h"
#include "planner/plan_impl.h"

#include <stdio.h>

// A clock that stands still, for hth_clock_inject: neither a slow machine nor a busy one stops a
// search, whose limit is work.
static inline uint64_t pt_still_ns(void *ctx)
{
    return 1;
}

static uint64_t pt_state;

static inline uint32_t pt_random(uint32_t below)
{
    pt_state = pt_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(pt_state >> 33) % below;
}

static inline int pt_tensor(hth_problem *problem, hth_mem_class cls, uint64_t bytes, int producer)
{
    hth_plan_tensor *x = &problem->tensors[problem->n_tensors];
    *x = (hth_plan_tensor){.bytes = bytes, .cls = cls, .producer = producer};
    x->name = hth_asprintf("t%d", problem->n_tensors);
    return problem->n_tensors++;
}

// Appends a node that reads `in` and makes one tensor of class `cls`; returns the tensor.
static inline int pt_node(hth_problem *problem, const int *in, int n_in, hth_mem_class cls,
                          uint64_t bytes, bool inplace)
{
    int i = problem->n_nodes++, out = pt_tensor(problem, cls, bytes, i);
    hth_plan_node *n = &problem->nodes[i];
    *n = (hth_plan_node){.n_inputs = n_in, .n_outputs = 1, .n_inplace = inplace};
    n->inplace = inplace ? hth_memdup(&(int[2]){in[0], out}, sizeof *n->inplace) : NULL;
    n->name = hth_asprintf("n%d", i);
    n->op = hth_strdup("op");
    n->inputs = hth_memdup(in, (size_t)n_in * sizeof *in);
    n->outputs = hth_memdup(&out, sizeof out);
    return out;
}

static inline void pt_choice(hth_problem *problem, int node, double time_us, uint64_t workspace)
{
    hth_plan_node *n = &problem->nodes[node];
    n->alternatives =
        hth_realloc(n->alternatives, (size_t)n->n_alternatives + 1, sizeof *n->alternatives);
    hth_choice *c = &n->alternatives[n->n_alternatives++];
    *c = (hth_choice){
        .time_us = time_us, .workspace_bytes = workspace, .split = 1, .deterministic = true};
    snprintf(c->name, sizeof c->name, "a%d", n->n_alternatives);
}

static inline hth_problem pt_problem(int n_tensors, int n_nodes)
{
    hth_problem p = {
        .budget = UINT64_MAX / 4, .h2d_bytes_per_s = 5e9, .d2h_bytes_per_s = 5e9, .latency_us = 5};
    p.tensors = hth_calloc((size_t)n_tensors, sizeof *p.tensors);
    p.nodes = hth_calloc((size_t)n_nodes, sizeof *p.nodes);
    return p;
}

// A network of n nodes: mostly a chain with weights, skips of random length, joins, in-place nodes,
// shared weights, menus of one to four algorithms, some without times.
static inline hth_problem pt_random_problem(uint64_t seed, int n)
{
    pt_state = seed * 77 + 5;
    hth_problem p = pt_problem(3 * n + 2, n);
    int previous = pt_tensor(&p, HTH_MEM_INPUT, 1000 + pt_random(50000), -1), last_weight = -1;
    p.tensors[previous].external = pt_random(2) == 0;
    int *made = hth_alloc((size_t)n * sizeof *made);
    for (int i = 0; i < n; i++) {
        int in[3] = {previous, -1, -1}, n_in = 1;
        if (pt_random(3) > 0) {
            bool shared = last_weight >= 0 && pt_random(10) == 0;
            if (!shared) {
                last_weight = pt_tensor(&p, HTH_MEM_WEIGHT,
                                        64 + pt_random(pt_random(4) ? 60000 : 600000), -1);
            }
            in[n_in++] = last_weight;
        }
        if (i > 1 && pt_random(4) == 0) {
            int back = made[i - 1 - (int)pt_random((uint32_t)(i < 30 ? i : 30))];
            if (back != previous) {
                in[n_in++] = back;
            }
        }
        bool inplace = pt_random(3) == 0, output = i == n - 1 || pt_random(40) == 0;
        uint64_t bytes = inplace ? p.tensors[previous].bytes : 200 + pt_random(80000);
        previous = made[i] =
            pt_node(&p, in, n_in, output ? HTH_MEM_OUTPUT : HTH_MEM_ACTIVATION, bytes, inplace);
        p.tensors[previous].external = output && pt_random(2) == 0;
        double time = 5 + pt_random(100);
        uint64_t workspace = pt_random(2) ? 0 : pt_random(200000);
        for (uint32_t k = pt_random(5); k > 0; k--) {
            pt_choice(&p, i, pt_random(30) ? time : -1, workspace);
            time *= 1.1 + pt_random(10) / 10.0;
            workspace = workspace / 2;
        }
    }
    hth_free(made);
    return p;
}

// A plan and its problem, to be damaged.
typedef struct pt_pair {
    hth_problem p;
    hth_plan *plan;
} pt_pair;

static inline void pt_pair_fini(pt_pair *pair)
{
    hth_plan_free(pair->plan);
    hth_problem_fini(&pair->p);
}

static inline void pt_assert_rejected(const pt_pair *pair, const char *what, int i)
{
    if (hth_plan_verify(&pair->p, pair->plan) != HTH_ECORRUPT) {
        fail_msg("instruction %d: %s was not noticed", i, what);
    }
}

#endif
