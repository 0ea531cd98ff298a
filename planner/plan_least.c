// SPDX-License-Identifier: Apache-2.0
// What no plan can do with less, and what to say where no plan was found.
//
// The proof. While node v runs, hth_plan_verify wants a live buffer of the arena for each of its
// inputs and outputs that has its home there, and a place for the workspace of one of its
// alternatives. Live buffers and the workspace do not intersect, with one exception: an output may
// lie in the buffer of its in-place input if it is not larger. So the arena is no lower than the
// sum of these, each rounded up to HTH_PLAN_ALIGN, with v's smallest workspace. A weight or state
// that v reads takes its bytes whether it is resident, for which the budget pays besides the arena,
// or was fetched into it. Without a link to fetch with, all that some node reads is resident all
// the time. Whatever else a plan keeps, copies or computes again only adds to this; the largest
// over all nodes is a bound for every plan. At the end the outputs that live in the arena are all
// there: another one.
//
// What is not known for sure does not count. The alternatives of a loose problem are those that
// were measured, or guessed at: another time there may be one without workspace, one that runs in
// place, or one that wants a weight in a smaller form. Its workspaces and weights count nothing,
// and where an input that is no weight is large enough, its first output may lie in that one's
// buffer.
#include "planner/plan_impl.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

// What tensor t takes while a node that reads or writes it runs.
static uint64_t min_bytes(const hth_problem *problem, int t)
{
    const hth_plan_tensor *x = &problem->tensors[t];
    hth_home home = hth_plan_home(x);
    bool always =
        home == HTH_HOME_RESIDENT && !(problem->h2d_bytes_per_s > 0); // counted once, for all
    bool sure = !problem->loose || x->cls != HTH_MEM_WEIGHT;
    return home == HTH_HOME_CALLER || always || !sure ? 0 : hth_plan_round(x->bytes);
}

// Per tensor: hth_plan_pairs, and 1 + the last node that reads it, 0: none.
typedef struct min_tensors {
    int *pair, *read;
} min_tensors;

// Whether output j of node may lie in the buffer of an input.
static bool min_inplace(const hth_problem *problem, const min_tensors *of,
                        const hth_plan_node *node, int j)
{
    int in = of->pair[node->outputs[j]];
    uint64_t bytes = hth_plan_round(problem->tensors[node->outputs[j]].bytes);
    bool may = in >= 0 && bytes <= hth_plan_round(problem->tensors[in].bytes);
    for (int i = 0; i < node->n_inputs && problem->loose && j == 0; i++) {
        const hth_plan_tensor *x = &problem->tensors[node->inputs[i]];
        may = may || (x->cls != HTH_MEM_WEIGHT && bytes <= hth_plan_round(x->bytes));
    }
    return may;
}

static uint64_t min_node(const hth_problem *problem, const min_tensors *of, int i)
{
    const hth_plan_node *node = &problem->nodes[i];
    uint64_t bytes = 0, workspace = node->n_alternatives > 0 && !problem->loose ? UINT64_MAX : 0;
    for (int a = 0; a < node->n_alternatives; a++) {
        uint64_t w = hth_plan_round(hth_plan_workspace(node, a));
        workspace = w < workspace ? w : workspace;
    }
    for (int j = 0; j < node->n_inputs; j++) {
        int t = node->inputs[j];
        bytes += of->read[t] == i + 1 ? 0 : min_bytes(problem, t); // else it is read twice
        of->read[t] = i + 1;
    }
    for (int j = 0; j < node->n_outputs; j++) {
        bytes += min_inplace(problem, of, node, j) ? 0 : min_bytes(problem, node->outputs[j]);
    }
    return bytes + workspace;
}

// Resident tensors that some node reads, where nothing can be fetched.
static uint64_t min_resident(const hth_problem *problem, const min_tensors *of)
{
    uint64_t bytes = 0;
    for (int t = 0; t < problem->n_tensors && !(problem->h2d_bytes_per_s > 0); t++) {
        const hth_plan_tensor *x = &problem->tensors[t];
        bool counts = hth_plan_home(x) == HTH_HOME_RESIDENT && of->read[t] > 0 &&
                      !(problem->loose && x->cls == HTH_MEM_WEIGHT);
        bytes += counts ? hth_plan_round(x->bytes) : 0;
    }
    return bytes;
}

// Outputs that are in the arena when all is done.
static uint64_t min_end(const hth_problem *problem)
{
    uint64_t bytes = 0;
    for (int t = 0; t < problem->n_tensors; t++) {
        const hth_plan_tensor *x = &problem->tensors[t];
        bool stays = x->cls == HTH_MEM_OUTPUT && x->producer >= 0;
        bytes += stays ? min_bytes(problem, t) : 0;
    }
    return bytes;
}

static uint64_t min_all(const hth_problem *problem, const min_tensors *of, int *node)
{
    uint64_t most = min_end(problem);
    hth_plan_pairs(problem, of->pair);
    for (int i = 0; i < problem->n_nodes; i++) {
        uint64_t bytes = min_node(problem, of, i);
        *node = bytes > most ? i : *node;
        most = bytes > most ? bytes : most;
    }
    return most + min_resident(problem, of);
}

uint64_t hth_plan_min(const hth_problem *problem, int *node)
{
    size_t n = (size_t)problem->n_tensors;
    min_tensors of = {hth_alloc(n * sizeof *of.pair), hth_calloc(n, sizeof *of.read)};
    int at = -1;
    bool known = of.pair != NULL && of.read != NULL;
    uint64_t bytes = known ? min_all(problem, &of, &at) : 0;
    hth_free(of.pair);
    hth_free(of.read);
    if (node != NULL) {
        *node = at;
    }
    return bytes;
}

hth_err hth_shortage_fail(const hth_shortage *shortage)
{
    bool proven = shortage->budget < shortage->least;
    hth_size least = hth_size_down(shortage->least), budget = hth_size_down(shortage->budget),
             found = hth_size_up(shortage->found);
    char policy[40] = "", node[120] = "", one[80] = "", none[80] = "";
    bool alike = (proven && strcmp(least.text, budget.text) == 0) ||
                 (shortage->found > 0 && strcmp(found.text, budget.text) == 0);
    if (alike) {
        least = hth_size_exact(shortage->least);
        budget = hth_size_exact(shortage->budget);
        found = hth_size_exact(shortage->found);
    }
    if (shortage->policy != NULL) {
        snprintf(policy, sizeof policy, " (policy %s)", shortage->policy);
    }
    if (shortage->node != NULL) {
        snprintf(node, sizeof node, " (node '%.80s' alone takes that)", shortage->node);
    }
    if (shortage->found > 0) {
        snprintf(one, sizeof one, "; %s was found for %s", proven ? "a plan" : "one", found.text);
    }
    if (shortage->least > 0) {
        snprintf(none, sizeof none, "; none fits below %s", least.text);
    }
    return proven ? hth_fail(HTH_ETOOBIG, "needs at least %s%s, the budget is %s%s", least.text,
                             node, budget.text, one)
                  : hth_fail(HTH_ETOOBIG, "no plan was found for a budget of %s%s%s%s", budget.text,
                             policy, one, none);
}

hth_err hth_plan_refuse(const hth_problem *problem, uint64_t found, const char *policy)
{
    int node;
    hth_shortage s = {.budget = problem->budget, .found = found, .policy = policy};
    s.least = hth_plan_min(problem, &node);
    s.node = node >= 0 && problem->h2d_bytes_per_s > 0 ? problem->nodes[node].name : NULL;
    return hth_shortage_fail(&s);
}
