// SPDX-License-Identifier: Apache-2.0
// What all planners share: the check of a problem, liveness with in-place pairs, emission, and the
// rules of time.
#include "planner/plan_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_MAX_BYTES ((uint64_t)1 << 60) // sums of everything stay far from overflow
#define PLAN_MAX_US    1e15                // 30 years: sums of millions of times stay finite
#define PLAN_MAX_SHARE 1e3                 // .. and what copies take from compute, too

void hth_problem_fini(hth_problem *problem)
{
    for (int i = 0; problem->tensors != NULL && i < problem->n_tensors; i++) {
        hth_free(problem->tensors[i].name);
    }
    for (int i = 0; problem->nodes != NULL && i < problem->n_nodes; i++) {
        hth_plan_node *n = &problem->nodes[i];
        hth_free(n->name);
        hth_free(n->op);
        hth_free(n->inputs);
        hth_free(n->outputs);
        hth_free(n->inplace);
        hth_free(n->alternatives);
    }
    hth_free(problem->tensors);
    hth_free(problem->nodes);
    memset(problem, 0, sizeof *problem);
}

static bool copy_node(const hth_plan_node *node, int only, hth_plan_node *out)
{
    *out = *node;
    out->n_alternatives = only < 0 || node->n_alternatives == 0 ? node->n_alternatives : 1;
    out->name = node->name ? hth_strdup(node->name) : NULL;
    out->op = node->op ? hth_strdup(node->op) : NULL;
    out->inputs = hth_memdup(node->inputs, (size_t)node->n_inputs * sizeof *node->inputs);
    out->outputs = hth_memdup(node->outputs, (size_t)node->n_outputs * sizeof *node->outputs);
    out->inplace = hth_memdup(node->inplace, (size_t)node->n_inplace * sizeof *node->inplace);
    out->alternatives = hth_memdup(node->alternatives + (only < 0 ? 0 : only),
                                   (size_t)out->n_alternatives * sizeof *node->alternatives);
    return (out->name || !node->name) && (out->op || !node->op) && out->inputs && out->outputs &&
           out->inplace && out->alternatives;
}

hth_err hth_problem_copy(const hth_problem *problem, const int *only, hth_problem *out)
{
    *out = *problem;
    out->n_tensors = out->n_nodes = 0;
    out->tensors = hth_calloc((size_t)problem->n_tensors + 1, sizeof *out->tensors);
    out->nodes = hth_calloc((size_t)problem->n_nodes + 1, sizeof *out->nodes);
    bool ok = out->tensors != NULL && out->nodes != NULL;
    for (int t = 0; ok && t < problem->n_tensors; t++) {
        hth_plan_tensor *x = &out->tensors[out->n_tensors++];
        *x = problem->tensors[t];
        x->name = x->name != NULL ? hth_strdup(x->name) : NULL;
        ok = x->name != NULL || problem->tensors[t].name == NULL;
    }
    for (int i = 0; ok && i < problem->n_nodes; i++) {
        ok =
            copy_node(&problem->nodes[i], only != NULL ? only[i] : -1, &out->nodes[out->n_nodes++]);
    }
    if (!ok) {
        hth_problem_fini(out);
        return hth_no_memory("a copy of a problem of %d nodes", problem->n_nodes);
    }
    return HTH_OK;
}

void hth_plan_free(hth_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (int i = 0; i < plan->n_instrs; i++) {
        hth_free(plan->instrs[i].waits);
    }
    hth_free(plan->instrs);
    hth_free(plan->streamed);
    hth_free(plan->mode);
    hth_free(plan);
}

// The problem's check.

static const char *problem_name(const char *name)
{
    return name ? name : "?";
}

// Per tensor, for the check of all nodes.
typedef struct problem_marks {
    bool *made;         // its producer lists it
    int *read, *paired; // 1 + the last node that reads it, or has it in an in-place pair
} problem_marks;

static hth_err problem_check_tensor(const hth_problem *problem, const problem_marks *marks, int t,
                                    uint64_t *sum)
{
    const hth_plan_tensor *x = &problem->tensors[t];
    if (x->producer < -1 || x->producer >= problem->n_nodes || (unsigned)x->cls > HTH_MEM_OUTPUT ||
        x->bytes > PLAN_MAX_BYTES) {
        return hth_fail(
            HTH_EINVAL, "tensor %d '%s': producer %d, class %d or bytes %llu out of range", t,
            problem_name(x->name), x->producer, (int)x->cls, (unsigned long long)x->bytes);
    }
    if (x->cls == HTH_MEM_WEIGHT && x->producer >= 0) {
        return hth_fail(HTH_EINVAL, "tensor %d '%s': a weight cannot have a producer", t,
                        problem_name(x->name));
    }
    if (x->producer >= 0 && !marks->made[t]) {
        return hth_fail(HTH_EINVAL, "tensor %d '%s': node %d does not produce it", t,
                        problem_name(x->name), x->producer);
    }
    if (x->replaces < 0 || x->replaces > problem->n_tensors || (x->replaces > 0 && !x->external)) {
        return hth_fail(HTH_EINVAL, "tensor %d '%s': replaces %d, which it cannot", t,
                        problem_name(x->name), x->replaces - 1);
    }
    *sum += hth_plan_round(x->bytes);
    return *sum <= PLAN_MAX_BYTES
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the tensors' sizes add up to more than 2^60 bytes");
}

static hth_err problem_check_pairs(const hth_problem *problem, problem_marks *marks, int i)
{
    const hth_plan_node *node = &problem->nodes[i];
    for (int j = 0; j < node->n_inplace; j++) {
        int in = node->inplace[j][0], out = node->inplace[j][1];
        bool known = in >= 0 && in < problem->n_tensors && out >= 0 && out < problem->n_tensors;
        if (!known || marks->read[in] != i + 1 || !marks->made[out] ||
            problem->tensors[out].producer != i || marks->paired[in] == i + 1 ||
            marks->paired[out] == i + 1) {
            return hth_fail(
                HTH_EINVAL,
                "node %d '%s': in-place pair %d, %d is not an input and an output, each once", i,
                problem_name(node->name), in, out);
        }
        marks->paired[in] = marks->paired[out] = i + 1;
    }
    return HTH_OK;
}

static hth_err problem_check_choices(const hth_plan_node *node, int i)
{
    for (int j = 0; j < node->n_alternatives; j++) {
        const hth_choice *c = &node->alternatives[j];
        if (!isfinite(c->time_us) || c->time_us > PLAN_MAX_US) {
            return hth_fail(HTH_EINVAL,
                            "node %d '%s': alternative '%s' takes %g us; it can take at most %g", i,
                            problem_name(node->name), c->name, c->time_us, PLAN_MAX_US);
        }
        if (c->workspace_bytes > PLAN_MAX_BYTES) {
            return hth_fail(HTH_EINVAL,
                            "node %d '%s': alternative '%s' has an impossible workspace", i,
                            problem_name(node->name), c->name);
        }
    }
    return HTH_OK;
}

static hth_err problem_check_node(const hth_problem *problem, problem_marks *marks, int i)
{
    const hth_plan_node *n = &problem->nodes[i];
    for (int j = 0; j < n->n_inputs; j++) {
        int t = n->inputs[j];
        if (t < 0 || t >= problem->n_tensors || problem->tensors[t].producer >= i) {
            return hth_fail(HTH_EINVAL, "node %d '%s': input %d is not a tensor produced before it",
                            i, problem_name(n->name), t);
        }
        marks->read[t] = i + 1;
    }
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        if (t < 0 || t >= problem->n_tensors || problem->tensors[t].producer != i ||
            marks->made[t]) {
            return hth_fail(HTH_EINVAL,
                            "node %d '%s': output %d is listed twice, or is another node's", i,
                            problem_name(n->name), t);
        }
        marks->made[t] = true;
    }
    HTH_TRY(problem_check_pairs(problem, marks, i));
    return problem_check_choices(n, i);
}

static bool problem_within(double x, double most)
{
    return x >= 0 && x <= most; // not so if it is no number
}

// Of all bytes together, over the link in both directions: each copy takes less.
static hth_err problem_check_link(const hth_problem *problem, uint64_t bytes)
{
    double rates[] = {problem->h2d_bytes_per_s, problem->d2h_bytes_per_s};
    for (int k = 0; k < 2; k++) {
        if (rates[k] > 0 && (double)bytes / rates[k] * 1e6 > PLAN_MAX_US) {
            return hth_fail(HTH_EINVAL,
                            "the link: a copy of all %llu bytes at %g bytes/s takes more than %g "
                            "us",
                            (unsigned long long)bytes, rates[k], PLAN_MAX_US);
        }
    }
    return HTH_OK;
}

static hth_err problem_check_all(const hth_problem *problem, problem_marks *marks)
{
    uint64_t sum = 0;
    for (int i = 0; i < problem->n_nodes; i++) {
        HTH_TRY(problem_check_node(problem, marks, i));
    }
    for (int t = 0; t < problem->n_tensors; t++) {
        HTH_TRY(problem_check_tensor(problem, marks, t, &sum));
    }
    return problem_check_link(problem, sum);
}

hth_err hth_problem_check(const hth_problem *problem)
{
    // A copy that costs less than nothing would make any plan with more of them better.
    if (problem->n_tensors < 0 || problem->n_nodes < 0 || isnan(problem->h2d_bytes_per_s) ||
        isnan(problem->d2h_bytes_per_s) || !problem_within(problem->latency_us, PLAN_MAX_US) ||
        !problem_within(problem->copy_interference, PLAN_MAX_SHARE) ||
        !problem_within(problem->copy_us, PLAN_MAX_US)) {
        return hth_fail(HTH_EINVAL, "a planning problem with a negative count, or an invalid link");
    }
    size_t n = (size_t)problem->n_tensors;
    problem_marks marks = {.made = hth_calloc(n, sizeof *marks.made),
                           .read = hth_calloc(n, sizeof *marks.read),
                           .paired = hth_calloc(n, sizeof *marks.paired)};
    hth_err err = marks.made && marks.read && marks.paired
                      ? problem_check_all(problem, &marks)
                      : hth_no_memory("the check of %d tensors", problem->n_tensors);
    hth_free(marks.made);
    hth_free(marks.read);
    hth_free(marks.paired);
    return err;
}

hth_home hth_plan_home(const hth_plan_tensor *tensor)
{
    if (tensor->external) {
        return HTH_HOME_CALLER;
    }
    bool kept = tensor->cls == HTH_MEM_WEIGHT || tensor->cls == HTH_MEM_STATE;
    return kept && tensor->producer < 0 ? HTH_HOME_RESIDENT : HTH_HOME_ARENA;
}

double hth_plan_time(const hth_plan_node *node, int alt)
{
    return alt < node->n_alternatives && node->alternatives[alt].time_us > 0
               ? node->alternatives[alt].time_us
               : 0;
}

// Menus.

static int menu_cmp(const void *a, const void *b)
{
    const hth_menu_item *x = a, *y = b;
    if (x->time_us != y->time_us) {
        return x->time_us < y->time_us ? -1 : 1;
    }
    return (x->alt > y->alt) - (x->alt < y->alt);
}

int hth_plan_menu(const hth_plan_node *node, hth_menu_item *out)
{
    double slowest = 0;
    int kept = 0;
    if (node->n_alternatives == 0) {
        out[0] = (hth_menu_item){0, 0, 0};
        return 1;
    }
    for (int i = 0; i < node->n_alternatives; i++) {
        slowest = fmax(slowest, node->alternatives[i].time_us);
    }
    for (int i = 0; i < node->n_alternatives; i++) {
        const hth_choice *c = &node->alternatives[i];
        out[i] = (hth_menu_item){i, c->time_us < 0 ? HUGE_VAL : c->time_us,
                                 hth_plan_round(c->workspace_bytes)};
    }
    qsort(out, (size_t)node->n_alternatives, sizeof *out, menu_cmp);
    for (int i = 0; i < node->n_alternatives; i++) {
        if (kept == 0 || out[i].workspace < out[kept - 1].workspace) {
            out[kept] = out[i];
            out[kept++].time_us = fmin(out[i].time_us, slowest);
        }
    }
    return kept;
}

// Liveness.

void hth_buffers_fini(hth_buffers *buffers)
{
    hth_free(buffers->rect);
    hth_free(buffers->of_tensor);
    hth_free(buffers->first_use);
    hth_free(buffers->last_use);
    memset(buffers, 0, sizeof *buffers);
}

static void buffers_lives(const hth_problem *problem, hth_buffers *buffers)
{
    for (int t = 0; t < problem->n_tensors; t++) {
        const hth_plan_tensor *x = &problem->tensors[t];
        buffers->of_tensor[t] = -1;
        buffers->first_use[t] = x->producer >= 0 ? x->producer : problem->n_nodes;
        buffers->last_use[t] = x->producer;
    }
    for (int i = 0; i < problem->n_nodes; i++) {
        for (int j = 0; j < problem->nodes[i].n_inputs; j++) {
            int t = problem->nodes[i].inputs[j];
            buffers->first_use[t] = i < buffers->first_use[t] ? i : buffers->first_use[t];
            buffers->last_use[t] = i;
        }
    }
    for (int t = 0; t < problem->n_tensors; t++) {
        if (problem->tensors[t].cls == HTH_MEM_OUTPUT) {
            buffers->last_use[t] = problem->n_nodes - 1;
        }
    }
}

// Whether `out` may take over the buffer of `in` at node `i`. A buffer is not kept for something
// less than half of it.
static bool buffers_may_share(const hth_problem *problem, const hth_buffers *buffers, int i, int in,
                              int out)
{
    if (in < 0 || buffers->of_tensor[in] < 0 ||
        hth_plan_home(&problem->tensors[out]) != HTH_HOME_ARENA || buffers->last_use[in] != i) {
        return false;
    }
    const hth_plan_tensor *x = &problem->tensors[in], *y = &problem->tensors[out];
    uint64_t buffer = buffers->rect[buffers->of_tensor[in]].bytes;
    return x->producer >= 0 && x->cls != HTH_MEM_OUTPUT &&
           hth_plan_round(y->bytes) <= hth_plan_round(x->bytes) &&
           2 * hth_plan_round(y->bytes) >= buffer;
}

hth_err hth_plan_buffers(const hth_problem *problem, hth_buffers *buffers)
{
    size_t n = (size_t)problem->n_tensors;
    int *pair = hth_alloc(n * sizeof *pair);
    *buffers = (hth_buffers){.rect = hth_calloc(n, sizeof *buffers->rect),
                             .of_tensor = hth_calloc(n, sizeof(int)),
                             .first_use = hth_calloc(n, sizeof(int)),
                             .last_use = hth_calloc(n, sizeof(int))};
    if (!pair || !buffers->rect || !buffers->of_tensor || !buffers->first_use ||
        !buffers->last_use) {
        hth_free(pair);
        hth_buffers_fini(buffers);
        return hth_no_memory("the liveness of %d tensors", problem->n_tensors);
    }
    buffers_lives(problem, buffers);
    hth_plan_pairs(problem, pair);
    for (int t = 0; t < problem->n_tensors; t++) { // what is there from the start
        const hth_plan_tensor *x = &problem->tensors[t];
        if (x->producer < 0 && hth_plan_home(x) == HTH_HOME_ARENA && buffers->last_use[t] >= 0) {
            buffers->rect[buffers->n] =
                (hth_rect){0, buffers->last_use[t], hth_plan_round(x->bytes), 0};
            buffers->of_tensor[t] = buffers->n++;
        }
    }
    for (int i = 0; i < problem->n_nodes; i++) {
        const hth_plan_node *node = &problem->nodes[i];
        for (int j = 0; j < node->n_outputs; j++) {
            int t = node->outputs[j];
            if (hth_plan_home(&problem->tensors[t]) != HTH_HOME_ARENA) {
                continue;
            }
            if (buffers_may_share(problem, buffers, i, pair[t], t)) {
                buffers->of_tensor[t] = buffers->of_tensor[pair[t]];
                buffers->rect[buffers->of_tensor[t]].last = buffers->last_use[t];
            } else {
                buffers->rect[buffers->n] = (hth_rect){
                    i, buffers->last_use[t], hth_plan_round(problem->tensors[t].bytes), 0};
                buffers->of_tensor[t] = buffers->n++;
            }
        }
    }
    hth_free(pair);
    return HTH_OK;
}

// Emission and time.

hth_err hth_plan_add(hth_plan_builder *builder, hth_instr in, const int *waits, int n_waits,
                     int *index)
{
    hth_plan *plan = builder->plan;
    in.n_waits = n_waits;
    in.waits = n_waits ? hth_memdup(waits, (size_t)n_waits * sizeof *waits) : NULL;
    if ((n_waits && in.waits == NULL) ||
        HTH_GROW(plan->instrs, plan->n_instrs, builder->cap) != 0) {
        hth_free(in.waits);
        return hth_no_memory("a plan of %d instructions", plan->n_instrs + 1);
    }
    if (index != NULL) {
        *index = plan->n_instrs;
    }
    plan->instrs[plan->n_instrs++] = in;
    return HTH_OK;
}

static double instr_duration(const hth_problem *problem, const hth_instr *in)
{
    double rate =
        in->kind == HTH_INSTR_PREFETCH ? problem->h2d_bytes_per_s : problem->d2h_bytes_per_s;
    switch (in->kind) {
    case HTH_INSTR_COMPUTE:
        return hth_plan_time(&problem->nodes[in->node], in->alt);
    case HTH_INSTR_OFFLOAD:
    case HTH_INSTR_PREFETCH:
        return problem->latency_us +
               (rate > 0 ? (double)problem->tensors[in->tensor].bytes / rate * 1e6 : 0);
    default:
        return 0;
    }
}

double hth_plan_slowed(const hth_problem *problem, double time_us, double compute_us,
                       double link_us, int copies)
{
    double alone = time_us - compute_us; // copies that run while compute waits take nothing from it
    return time_us + problem->copy_interference * fmax(0, link_us - alone) +
           problem->copy_us * copies;
}

void hth_plan_simulate(const hth_problem *problem, hth_plan *plan)
{
    double lane[HTH_N_LANES] = {0}, compute = 0, link = 0;
    int copies = 0;
    plan->predicted_us = 0;
    for (int i = 0; i < plan->n_instrs; i++) {
        hth_instr *in = &plan->instrs[i];
        double *free_at = &lane[hth_instr_lane(in)];
        in->start_us = *free_at;
        for (int j = 0; j < in->n_waits; j++) {
            in->start_us = fmax(in->start_us, plan->instrs[in->waits[j]].end_us);
        }
        *free_at = in->end_us = in->start_us + instr_duration(problem, in);
        *(hth_instr_lane(in) == HTH_LANE_COMPUTE ? &compute : &link) += in->end_us - in->start_us;
        copies += hth_instr_lane(in) != HTH_LANE_COMPUTE;
        plan->predicted_us = fmax(plan->predicted_us, in->end_us);
    }
    plan->predicted_us = hth_plan_slowed(problem, plan->predicted_us, compute, link, copies);
}

hth_err hth_plan_live_peak(const hth_problem *problem, const hth_plan *plan, uint64_t *peak)
{
    hth_live live;
    HTH_TRY(hth_live_open(problem, &live));
    *peak = 0;
    for (int i = 0; i < plan->n_instrs; i++) {
        hth_live_step(&live, &plan->instrs[i]);
        *peak = live.bytes + live.scratch > *peak ? live.bytes + live.scratch : *peak;
    }
    hth_live_close(&live);
    return HTH_OK;
}
