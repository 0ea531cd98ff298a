// SPDX-License-Identifier: Apache-2.0
// A batch is compared with its slices only where samples are proven independent.
#include "engine/serve/microbatch.h"

#include "runtime/compile/compile.h"
#include "tests/rig/site_rig.h"

#define SAMPLES 16

static hth_err none_get(void *ctx, const char *key, char *value, size_t cap)
{
    return HTH_ENOENT;
}

static hth_err none_put(void *ctx, const char *key, const char *value)
{
    return HTH_OK;
}

static const hth_timing_cache none = {.get = none_get, .put = none_put};

// How many programs there are after the choice: the whole batch's, and those of slices.
static int programs(const char *path, bool independent)
{
    site_rig r;
    hth_model *m;
    hth_program *p;
    hth_tensor in[1];
    int n = 0;
    site_rig_open(&r, &none);
    put(r.store, "m", path);
    assert_ok(hth_model_find(&r.models, "m", &m));
    assert_int_equal(m->independence.proven, independent);
    assert_int_equal(m->source.batched, independent);
    assert_ok(hth_model_synthetic(m, SAMPLES, true, in));
    assert_ok(hth_infer_program(&r.models, &m->source, in, false, NULL, &p));
    assert_ok(hth_microbatch_choose(&r.models, p, NULL));
    assert_true(p->sliced);
    assert_true(independent || p->slice == 0);
    for (const hth_program *q = m->source.programs; q != NULL; q = q->next) {
        n++;
    }
    hth_free(in[0].data);
    site_rig_close(&r);
    return n;
}

static void test_choice(void **state)
{
    assert_int_equal(programs("tests/data/digits/digits.onnx", true), 3); // of 16, 4 and 1
    assert_int_equal(programs("tests/data/digits/untrained.onnx", false), 1);
    assert_int_equal(programs("tests/data/train/centered.onnx", false), 1);
}

// Under a budget that weights do not fit into, whatever runs keeps it, though slices of them would
// be faster: their program has all of the device.
static void test_budget(void **state)
{
    site_rig r;
    hth_model *m;
    hth_program *p;
    hth_tensor in[1];
    uint64_t weights, arena, more;
    site_rig_open(&r, &none);
    put(r.store, "m", "tests/data/passes/mlp.onnx");
    assert_ok(hth_model_find(&r.models, "m", &m));
    assert_ok(hth_model_synthetic(m, 8, true, in));
    assert_ok(hth_infer_program(&r.models, &m->source, in, false, NULL, &p));
    hth_program_ledger(p, &weights, &arena);
    uint64_t budget = (weights + arena) * 6 / 10;
    assert_ok(hth_program_compile(&r.site, &m->source, in, budget, false, NULL, &p));
    for (int i = 0; i < 4; i++) {
        assert_ok(hth_microbatch_choose(&r.models, p, NULL));
        hth_program_ledger(hth_microbatch_program(&r.models, p), &more, &arena);
        assert_in_range(more + arena, 1, budget);
    }
    assert_true(weights > budget);
    hth_free(in[0].data);
    site_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
