// SPDX-License-Identifier: Apache-2.0
// Programs' operators take host memory: its sum has a limit, and the oldest programs go first.
#include "runtime/overhead.h"

#include "engine/serve/load.h"
#include "runtime/compile/compile.h"
#include "tests/rig/site_rig.h"

#define MIB ((uint64_t)1 << 20)

static hth_err small_program(site_rig *rig, hth_model *model, int64_t n, hth_program **out)
{
    float data[8] = {0};
    hth_tensor in = {.dtype = HTH_DT_F32, .shape = {1, {n}}, .data = data, .bytes = (size_t)n * 4};
    return hth_infer_program(&rig->models, &model->source, &in, false, NULL, out);
}

static void test_oldest_goes(void **state)
{
    site_rig r;
    hth_model *m;
    hth_program *p[4], *q;
    site_rig_open(&r, NULL);
    put(r.store, "ident", "tests/data/http/ident.onnx");
    assert_ok(hth_model_find(&r.models, "ident", &m));
    for (int i = 0; i < 3; i++) {
        assert_ok(small_program(&r, m, i + 1, &p[i]));
        assert_true(p[i]->overhead_bytes > 0);
        p[i]->overhead_bytes = 200 * MIB; // as if they were large
        p[i]->used_at = (uint64_t)(10 - i);
    }
    p[2]->held++; // the oldest, but in use
    assert_ok(small_program(&r, m, 4, &p[3]));
    assert_int_equal(m->source.n_programs, 3); // p[1], the next one, is gone
    assert_ok(small_program(&r, m, 1, &q));
    assert_ptr_equal(q, p[0]);
    assert_ok(small_program(&r, m, 3, &q));
    assert_ptr_equal(q, p[2]);
    p[2]->held--;
    p[0]->overhead_bytes = p[2]->overhead_bytes = 600 * MIB;
    assert_ok(small_program(&r, m, 5, &p[1])); // both have to go
    assert_ok(small_program(&r, m, 4, &q));
    assert_int_equal(m->source.n_programs, 2);
    site_rig_close(&r);
}

// One that was just compiled and did not run yet is the newest.
static void test_made_is_new(void **state)
{
    site_rig r;
    hth_model *m;
    hth_program *ran, *made, *p;
    site_rig_open(&r, NULL);
    put(r.store, "ident", "tests/data/http/ident.onnx");
    assert_ok(hth_model_find(&r.models, "ident", &m));
    assert_ok(small_program(&r, m, 1, &ran));
    assert_ok(hth_program_activate(&r.site, ran));
    assert_ok(small_program(&r, m, 2, &made));
    ran->overhead_bytes = made->overhead_bytes = 256 * MIB;
    assert_ok(small_program(&r, m, 3, &p));
    assert_ok(small_program(&r, m, 2, &p));
    assert_int_equal(p->overhead_bytes, 256 * MIB); // it is that one still
    assert_int_equal(m->source.n_programs, 2);
    site_rig_close(&r);
}

// Each instance of a program takes as much host memory as the program itself.
static void test_instances_count(void **state)
{
    site_rig r;
    hth_model *m;
    hth_program *whole, *old, *p;
    site_rig_open(&r, NULL);
    put(r.store, "ident", "tests/data/http/ident.onnx");
    assert_ok(hth_model_find(&r.models, "ident", &m));
    assert_ok(small_program(&r, m, 1, &whole));
    assert_ok(small_program(&r, m, 2, &old));
    old->overhead_bytes = 600 * MIB;
    assert_ok(
        hth_program_compile_instance(&r.site, whole, 1, &whole->instance[whole->n_instances]));
    whole->n_instances++;
    assert_int_equal(whole->instance[0]->overhead_bytes, whole->overhead_bytes);
    assert_int_equal(m->source.n_programs, 1); // the old one had to go
    assert_ok(small_program(&r, m, 1, &p));
    assert_ptr_equal(p, whole);
    site_rig_close(&r);
}

static void test_too_many(void **state)
{
    site_rig r;
    hth_program p = {.graph = NULL};
    const hth_shape s = {1, {3}};
    int in, out;
    site_rig_open(&r, NULL);
    assert_ok(hth_graph_new(&p.graph));
    assert_ok(hth_graph_add_value(p.graph, "x", HTH_DT_F32, &s, &in));
    for (int i = 0; i < 140000; i++) {
        assert_ok(hth_graph_add_value(p.graph, "", HTH_DT_F32, &s, &out));
        assert_ok(hth_graph_add_node(p.graph, HTH_OP_RELU, "", &in, 1, &out, 1, NULL));
        in = out;
    }
    assert_int_equal(hth_overhead_room(&r.site, &p), HTH_ETOOBIG);
    assert_non_null(strstr(hth_err_detail(), "140000 operators take about 573440000 bytes"));
    assert_non_null(strstr(hth_err_detail(), "the limit is 536870912"));
    hth_graph_free(p.graph);
    site_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oldest_goes),
        cmocka_unit_test(test_made_is_new),
        cmocka_unit_test(test_instances_count),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
