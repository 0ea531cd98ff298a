// SPDX-License-Identifier: Apache-2.0
// The timeline of plans: a row for each stream with every kernel and copy, and the memory, whose
// highest sample is the plan's peak.
#include "planner/plan_json.h"
#include "planner/plan_train_gen.h"

#include <math.h>

typedef struct track {
    int events[HTH_N_LANES], samples;
    double highest, last_us, weights;
} track;

static double sum_of(const json_t *args)
{
    const char *key;
    json_t *v;
    double sum = 0;
    json_object_foreach((json_t *)args, key, v)
    {
        assert_true(json_integer_value(v) >= 0);
        sum += (double)json_integer_value(v);
    }
    return sum;
}

static track read_process(const json_t *root, int process)
{
    track t = {.last_us = 0};
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(root, "traceEvents"), i, e)
    {
        if (json_integer_value(json_object_get(e, "pid")) != process) {
            continue;
        }
        const char *kind = json_string_value(json_object_get(e, "ph"));
        double us = json_number_value(json_object_get(e, "ts"));
        if (strcmp(kind, "X") == 0) {
            t.events[json_integer_value(json_object_get(e, "tid"))]++;
        } else if (strcmp(kind, "C") == 0) {
            const json_t *args = json_object_get(e, "args");
            assert_string_equal(json_string_value(json_object_get(e, "name")), "memory");
            assert_true(us >= t.last_us);
            t.last_us = us;
            t.samples++;
            t.highest = fmax(t.highest, sum_of(args));
            t.weights = fmax(t.weights, json_number_value(json_object_get(args, "weights")));
        }
    }
    return t;
}

static void check_track(const hth_problem *p, const hth_plan *plan, const track *t)
{
    int want[HTH_N_LANES] = {0};
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        bool point = in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE;
        want[hth_instr_lane(in)] += !point;
    }
    assert_memory_equal(t->events, want, sizeof want);
    assert_true(t->samples > p->n_nodes);
    assert_true(t->highest == (double)(plan->resident_bytes + plan->live_peak_bytes));
}

static void a_step_has_streams_and_memory(void **state)
{
    int copies = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        hth_problem p = pg_random_small(seed);
        hth_plan *plan = pg_random_schedule(&p, seed, seed % 4 > 0);
        double(*measured)[2] = hth_calloc((size_t)plan->n_instrs, sizeof *measured);
        for (int i = 0; i < plan->n_instrs; i++) { // as a run has them: none of alloc and free
            const hth_instr *in = &plan->instrs[i];
            bool point = in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE;
            measured[i][0] = point ? 0 : 2 * in->start_us;
            measured[i][1] = point ? 0 : 2 * in->end_us;
        }
        json_t *root = hth_plan_trace_json(&p, plan, (const double(*)[2])measured);
        assert_non_null(root);
        const track predicted = read_process(root, 1), seen = read_process(root, 2);
        check_track(&p, plan, &predicted);
        check_track(&p, plan, &seen);
        copies += seen.events[HTH_LANE_H2D] > 0 && seen.events[HTH_LANE_D2H] > 0;
        json_decref(root);
        hth_free(measured);
        hth_plan_free(plan);
        hth_problem_fini(&p);
    }
    assert_true(copies > 20);
}

static void a_forward_pass_has_them_too(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        hth_problem p = pt_random_problem(seed, 30);
        hth_plan *plan;
        assert_ok(hth_plan_floor(&p, &p.budget));
        assert_ok(hth_plan_inference(&p, &plan));
        json_t *root = hth_plan_trace_json(&p, plan, NULL);
        const track t = read_process(root, 1), none = read_process(root, 2);
        check_track(&p, plan, &t);
        assert_true(t.weights > 0 && none.samples == 0);
        json_decref(root);
        hth_plan_free(plan);
        hth_problem_fini(&p);
    }
}

static hth_err trace_made(const hth_problem *p, const hth_plan *plan)
{
    json_t *root = hth_plan_trace_json(p, plan, NULL);
    json_decref(root);
    return root != NULL ? HTH_OK : HTH_ENOMEM;
}

static void no_memory_no_trace(void **state)
{
    hth_problem p = pg_random_small(3);
    hth_plan *plan = pg_random_schedule(&p, 3, true);
    FAULT_LOOP(trace_made(&p, plan));
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_streams_and_memory),
        cmocka_unit_test(a_forward_pass_has_them_too),
        cmocka_unit_test(no_memory_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
