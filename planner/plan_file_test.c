// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_json.h"
#include "planner/plan_test.h"
#include "planner/plan_train.h"

#include <jansson.h>
#include <unistd.h>

static char file_path[] = "/tmp/hearth-plan-XXXXXX";

static void put(const char *text)
{
    FILE *f = fopen(file_path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

// Written and read again, a problem gives the same plan.
static void test_round_trip(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        hth_problem p = pt_random_problem(seed, 30), q;
        hth_plan *a, *b;
        assert_ok(hth_plan_floor(&p, &p.budget));
        p.budget += p.budget / 10;
        snprintf(p.device, sizeof p.device, "test \"quoted\" device");
        assert_ok(hth_plan_inference(&p, &a));
        assert_ok(hth_plan_write(file_path, &p, a));
        assert_ok(hth_problem_read(file_path, &q));
        assert_string_equal(q.device, p.device);
        assert_true(q.n_tensors == p.n_tensors && q.n_nodes == p.n_nodes && q.budget == p.budget);
        assert_ok(hth_plan_inference(&q, &b));
        assert_ok(hth_plan_verify(&q, a));
        assert_true(a->n_instrs == b->n_instrs && a->arena_bytes == b->arena_bytes &&
                    a->predicted_us == b->predicted_us);
        hth_plan_free(a);
        hth_plan_free(b);
        hth_problem_fini(&p);
        hth_problem_fini(&q);
    }
}

// The written file, key by key, as another program would read it.
static void test_format(void **state)
{
    hth_problem p = pt_random_problem(3, 20);
    hth_plan *plan;
    assert_ok(hth_plan_floor(&p, &p.budget));
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_write(file_path, &p, plan));
    json_t *root = json_load_file(file_path, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "format")), "hearth-plan-1");
    assert_int_equal(json_integer_value(json_object_get(root, "arena_bytes")), plan->arena_bytes);
    json_t *list = json_object_get(root, "instructions"), *o;
    size_t i;
    assert_int_equal(json_array_size(list), plan->n_instrs);
    json_array_foreach(list, i, o)
    {
        const hth_instr *in = &plan->instrs[i];
        assert_int_equal(json_integer_value(json_object_get(o, "i")), i);
        if (in->kind == HTH_INSTR_COMPUTE) {
            assert_string_equal(json_string_value(json_object_get(o, "kind")), "compute");
            assert_string_equal(json_string_value(json_object_get(o, "stream")), "compute");
            assert_int_equal(json_integer_value(json_object_get(o, "workspace_offset")),
                             in->offset);
            assert_int_equal(json_array_size(json_object_get(o, "waits")), in->n_waits);
        } else if (in->kind == HTH_INSTR_PREFETCH) {
            assert_string_equal(json_string_value(json_object_get(o, "stream")), "h2d");
            assert_int_equal(json_integer_value(json_object_get(o, "offset")), in->offset);
            assert_true(json_real_value(json_object_get(o, "end_us")) == in->end_us);
        }
    }
    json_decref(root);
    double(*measured)[2] = hth_calloc((size_t)plan->n_instrs, sizeof *measured);
    assert_ok(hth_plan_write_trace(file_path, &p, plan, (const double(*)[2])measured));
    root = json_load_file(file_path, 0, NULL);
    assert_true(json_array_size(json_object_get(root, "traceEvents")) > 2u * (size_t)p.n_nodes);
    json_decref(root);
    hth_free(measured);
    assert_int_not_equal(hth_plan_write("/nowhere/plan.json", &p, plan), HTH_OK);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

#define HEAD_REST                                                                                  \
    "\"budget\":1000,\"tensors\":[{\"id\":0,\"name\":\"x\",\"bytes\":64,\"class\":\"input\","      \
    "\"producer\":-1},"
#define HEAD "{" HEAD_REST
#define TAIL                                                                                       \
    "\"nodes\":[{\"id\":0,\"name\":\"n\",\"op\":\"relu\",\"inputs\":[0],\"outputs\":[1],"          \
    "\"alternatives\":[]}]}"

// A step in the plain format: an optimizer's output that is paired with a weight is its update.
static void test_updates(void **state)
{
    static const char step[] =
        "{\"budget\":100000,\"link\":{\"h2d\":1e9,\"d2h\":1e9,\"latency_us\":1},\"tensors\":["
        "{\"id\":0,\"name\":\"x\",\"bytes\":64,\"class\":\"input\",\"producer\":-1},"
        "{\"id\":1,\"name\":\"w\",\"bytes\":6400,\"class\":\"weight\",\"producer\":-1},"
        "{\"id\":2,\"name\":\"g\",\"bytes\":6400,\"class\":\"gradient\",\"producer\":0},"
        "{\"id\":3,\"name\":\"v\",\"bytes\":6400,\"class\":\"state\",\"producer\":1}],\"nodes\":["
        "{\"id\":0,\"name\":\"grad\",\"op\":\"g\",\"inputs\":[0,1],\"outputs\":[2],"
        "\"inplace\":[],\"alternatives\":[{\"name\":\"a\",\"time_us\":5,\"workspace\":0}]},"
        "{\"id\":1,\"name\":\"step\",\"op\":\"sgd\",\"inputs\":[1,2],\"outputs\":[3],"
        "\"inplace\":[[1,3]],\"alternatives\":[]}]}";
    hth_problem p;
    hth_plan *plan;
    put(step);
    for (int pass = 0; pass < 2; pass++) { // as written by hand, then as written by us
        assert_ok(hth_problem_read(file_path, &p));
        assert_int_equal(p.tensors[3].replaces, 2);
        assert_true(p.nodes[0].recomputable && !p.nodes[1].recomputable);
        assert_int_equal(p.nodes[1].n_inplace, 0);
        assert_ok(hth_plan_train(&p, &(hth_plan_options){.policy = HTH_POLICY_KEEP}, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        assert_int_equal(plan->resident_bytes, 6400);
        assert_int_equal(plan->arena_bytes, 64 + 6400); // the update takes nothing
        assert_ok(hth_plan_write(file_path, &p, plan));
        json_t *root = json_load_file(file_path, 0, NULL);
        json_t *node =
            json_array_get(json_object_get(json_object_get(root, "problem"), "nodes"), 1);
        json_t *pair = json_array_get(json_object_get(node, "inplace"), 0);
        assert_int_equal(json_integer_value(json_array_get(pair, 0)), 1);
        assert_int_equal(json_integer_value(json_array_get(pair, 1)), 3);
        json_decref(root);
        hth_plan_free(plan);
        hth_problem_fini(&p);
    }
}

static void test_reading_validates(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "line 1"},
        {"[]", "budget"},
        {"{\"format\":\"other\"}", "format"},
        {"{\"budget\":-5,\"tensors\":[],\"nodes\":[]}", "budget"},
        {"{\"budget\":1.5,\"tensors\":[],\"nodes\":[]}", "budget"},
        {"{\"budget\":1}", "tensors"},
        {"{\"budget\":1,\"tensors\":{},\"nodes\":[]}", "tensors"},
        {HEAD "{\"id\":0,\"bytes\":1,\"class\":\"output\"}]," TAIL, "twice"},
        {HEAD "{\"id\":7,\"bytes\":1,\"class\":\"output\"}]," TAIL, "id"},
        {HEAD "{\"id\":1,\"class\":\"output\"}]," TAIL, "bytes"},
        {HEAD "{\"id\":1,\"bytes\":-1,\"class\":\"output\"}]," TAIL, "bytes"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"thing\"}]," TAIL, "thing"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":5}]," TAIL, "output 1"},
        {"{\"link\":{\"interference\":-1}," HEAD_REST "{\"id\":1,\"bytes\":1,\"class\":\"output\","
         "\"producer\":0}]," TAIL,
         "link"},
        {"{\"link\":{\"latency_us\":-1}," HEAD_REST "{\"id\":1,\"bytes\":1,\"class\":\"output\","
         "\"producer\":0}]," TAIL,
         "link"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"inputs\":[\"x\"],\"outputs\":[1]}]}",
         "inputs"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"inputs\":[1],\"outputs\":[1]}]}",
         "produced before"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"inputs\":[0],\"outputs\":[1],\"inplace\":[[1,0]]}]}",
         "in-place"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"inputs\":[0],\"outputs\":[1],\"inplace\":[[0]]}]}",
         "pairs"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"inputs\":[0],\"outputs\":[1],\"inplace\":{\"a\":1}}]}",
         "pairs"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"inputs\":[0],\"outputs\":[1],"
              "\"alternatives\":[{\"time_us\":\"fast\"}]}]}",
         "time_us"},
        {HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}],\"nodes\":[{\"id\":0,"
              "\"name\":\"n\",\"inputs\":[0],\"outputs\":[1],"
              "\"alternatives\":[{\"name\":\"slow\",\"time_us\":1e16}]}]}",
         "node 0 'n': alternative 'slow' takes 1e+16 us"},
        {"{\"link\":{\"latency_us\":1e16}," HEAD_REST "{\"id\":1,\"bytes\":1,\"class\":\"output\","
         "\"producer\":0}]," TAIL,
         "link"},
        {"{\"link\":{\"interference\":1e300}," HEAD_REST
         "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0}]," TAIL,
         "link"},
        {"{\"link\":{\"h2d\":1e-300}," HEAD_REST "{\"id\":1,\"bytes\":1,\"class\":\"output\","
         "\"producer\":0}]," TAIL,
         "link"},
        {"{\"link\":{\"d2h\":1e-300}," HEAD_REST "{\"id\":1,\"bytes\":1,\"class\":\"output\","
         "\"producer\":0}]," TAIL,
         "link"},
    };
    hth_problem p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i].text);
        hth_err err = hth_problem_read(file_path, &p);
        if (err == HTH_OK || strstr(hth_err_detail(), bad[i].words) == NULL) {
            fail_msg("%s: %s: %s", bad[i].text, hth_strerror(err), hth_err_detail());
        }
    }
    put(HEAD "{\"id\":1,\"bytes\":1,\"class\":\"output\",\"producer\":0,\"new key\":{}}]," TAIL);
    assert_ok(hth_problem_read(file_path, &p));
    assert_true(p.n_nodes == 1 && p.nodes[0].n_inplace == 0 && p.tensors[1].cls == HTH_MEM_OUTPUT);
    hth_problem_fini(&p);
    assert_err(hth_problem_read("/nowhere/plan.json", &p), HTH_ENOENT, "nowhere");
}

static hth_err read_once(void)
{
    hth_problem p;
    HTH_TRY(hth_problem_read(file_path, &p));
    hth_problem_fini(&p);
    return HTH_OK;
}

static void test_allocation_faults(void **state)
{
    hth_problem p = pt_random_problem(3, 4);
    hth_plan *plan;
    assert_ok(hth_plan_inference(&p, &plan));
    p.budget = 1 << 30;
    assert_ok(hth_plan_write(file_path, &p, plan));
    FAULT_LOOP(read_once());
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

static int fails_after; // as many of jansson's allocations one fails; below 0: none does

static void *failing_malloc(size_t bytes)
{
    return fails_after-- == 0 ? NULL : malloc(bytes);
}

// Where memory runs out there is no document at all, never one that lacks a key.
static void written_whole_or_not(void **state)
{
    hth_problem p = pt_random_problem(3, 4);
    hth_plan *plan;
    assert_ok(hth_plan_inference(&p, &plan));
    p.tensors[0].external = true;
    p.budget = 1 << 30;
    fails_after = -1;
    json_set_alloc_funcs(failing_malloc, free);
    json_t *whole = hth_plan_json(&p, plan);
    assert_non_null(whole);
    bool failed = true;
    for (int n = 0; failed; n++) {
        fails_after = n;
        json_t *got = hth_plan_json(&p, plan);
        failed = fails_after < 0;
        fails_after = -1;
        assert_true(got == NULL || json_equal(got, whole));
        assert_true(got != NULL || failed);
        json_decref(got);
    }
    json_decref(whole);
    json_set_alloc_funcs(malloc, free);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

static int setup(void **state)
{
    return close(mkstemp(file_path));
}

static int teardown(void **state)
{
    return unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_format),
        cmocka_unit_test(test_updates),           cmocka_unit_test(test_reading_validates),
        cmocka_unit_test(test_allocation_faults), cmocka_unit_test(written_whole_or_not),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
