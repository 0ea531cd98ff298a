// SPDX-License-Identifier: Apache-2.0
// The timeline of plans: a row for each stream with every kernel and copy, and the memory, whose
// highest sample is what the plan takes, all in the fields of the Trace Event Format.
#include "planner/plan_json.h"
#include "planner/plan_train_gen.h"

#include <math.h>

typedef struct track {
    int events[HTH_N_LANES], samples;
    double highest, highest_live, last_us, weights, sum;
    double end_us[HTH_N_LANES];
} track;

static double sum_of(const json_t *args)
{
    const char *key;
    json_t *v;
    double sum = 0;
    json_object_foreach((json_t *)args, key, v)
    {
        assert_true(json_is_integer(v) && json_integer_value(v) >= 0);
        sum += (double)json_integer_value(v);
    }
    return sum;
}

static double number(const json_t *e, const char *key)
{
    assert_true(json_is_number(json_object_get(e, key)));
    return json_number_value(json_object_get(e, key));
}

// A complete event, as the Trace Event Format has it. Those of a row follow each other: where two
// overlap and neither is in the other, Perfetto drops one.
static void read_complete(const json_t *e, track *t)
{
    json_int_t lane = json_integer_value(json_object_get(e, "tid"));
    double start = number(e, "ts"), length = number(e, "dur");
    assert_true(json_is_integer(json_object_get(e, "tid")) && lane >= 0 && lane < HTH_N_LANES);
    assert_true(json_is_object(json_object_get(e, "args")));
    assert_true(start >= 0 && length >= 0);
    assert_true(start >= t->end_us[lane] - 1e-6);
    t->end_us[lane] = start + length;
    t->events[lane]++;
}

// A counter event: each of its args is a number. The sum comes after the classes.
static void read_counter(const json_t *e, const char *name, track *t)
{
    const json_t *args = json_object_get(e, "args");
    double us = number(e, "ts"), sum = sum_of(args);
    assert_true(us >= t->last_us && json_object_size(args) > 0);
    t->last_us = us;
    if (strcmp(name, "memory in all") == 0) {
        assert_true(sum == t->sum && number(args, "bytes") == sum);
        return;
    }
    assert_string_equal(name, "memory");
    t->sum = sum;
    t->samples++;
    t->highest = fmax(t->highest, sum);
    t->highest_live = fmax(t->highest_live, sum - number(args, "between buffers"));
    t->weights = fmax(t->weights, number(args, "weights"));
}

static void read_metadata(const json_t *e, const char *name)
{
    const json_t *args = json_object_get(e, "args");
    if (strcmp(name, "thread_sort_index") == 0) {
        assert_true(json_is_integer(json_object_get(args, "sort_index")));
        return;
    }
    assert_true(strcmp(name, "process_name") == 0 || strcmp(name, "thread_name") == 0);
    assert_non_null(json_string_value(json_object_get(args, "name")));
}

static track read_process(const json_t *root, int process)
{
    track t = {.last_us = 0};
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(root, "traceEvents"), i, e)
    {
        const char *kind = json_string_value(json_object_get(e, "ph"));
        const char *name = json_string_value(json_object_get(e, "name"));
        assert_true(kind != NULL && name != NULL && name[0] != 0);
        if (number(e, "pid") != process) {
            continue;
        }
        if (strcmp(kind, "X") == 0) {
            read_complete(e, &t);
        } else if (strcmp(kind, "C") == 0) {
            read_counter(e, name, &t);
        } else {
            assert_string_equal(kind, "M");
            read_metadata(e, name);
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
    assert_true(t->highest == (double)(plan->resident_bytes + plan->arena_bytes));
    assert_true(t->highest_live == (double)(plan->resident_bytes + plan->live_peak_bytes));
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
