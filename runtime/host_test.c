// SPDX-License-Identifier: Apache-2.0
// Host memory of requests: counted, limited, given back; waited for where others have it.
#include "runtime/host.h"

#include "base/settings.h"
#include "runtime/job_memory.h"
#include "tests/rig/site_rig.h"

#define MIB ((uint64_t)1 << 20)

static hth_err none_get(void *ctx, const char *key, char *value, size_t cap)
{
    return HTH_ENOENT;
}

static hth_err none_put(void *ctx, const char *key, const char *value)
{
    return HTH_OK;
}

static const hth_timing_cache no_timings = {.get = none_get, .put = none_put};

static void test_limit(void **state)
{
    site_rig rig;
    site_rig_open(&rig, &no_timings);
    assert_int_equal(hth_host_limit(&rig.site), 64 * MIB); // as much as the device has
    assert_ok(hth_setting_set("memory.host_bytes", "8MiB"));
    assert_int_equal(hth_host_limit(&rig.site), 8 * MIB);
    assert_err(hth_host_take(&rig.site, HTH_HOST_OUTPUTS, 8 * MIB + 1, "an answer"), HTH_ETOOBIG,
               "an answer takes 8388609 B of host memory: more than the limit of 8388608 B for "
               "all requests (memory.host_bytes)");
    assert_ok(hth_host_take(&rig.site, HTH_HOST_OUTPUTS, 5 * MIB, "an answer"));
    assert_err(
        hth_host_take(&rig.site, HTH_HOST_STAGES, 4 * MIB, "a stage"), HTH_ENODEVMEM,
        "a stage takes 4.0 MiB of host memory: requests already use 5.0 MiB of the limit of 8.0 "
        "MiB (memory.host_bytes)");
    assert_int_equal(hth_host_used(&rig.site), 5 * MIB);
    rig.site.refused_over = rig.site.refused_bytes = MIB; // another one, the device's memory
    assert_int_equal(hth_host_take(&rig.site, HTH_HOST_STAGES, 4 * MIB, "a stage"), HTH_ENODEVMEM);
    assert_true(rig.site.refused_over == 0 && rig.site.refused_bytes == 0);
    assert_ok(hth_host_take(&rig.site, HTH_HOST_STAGES, 3 * MIB, "a stage"));
    uint64_t freed = rig.site.freed;
    hth_host_give(&rig.site, HTH_HOST_OUTPUTS, 5 * MIB);
    assert_true(rig.site.freed > freed); // who waits looks again
    hth_host_give(&rig.site, HTH_HOST_STAGES, 3 * MIB);
    assert_int_equal(hth_host_used(&rig.site), 0);
    assert_err(hth_host_take(&rig.site, HTH_HOST_OUTPUTS, UINT64_MAX, "an answer"), HTH_ETOOBIG,
               "more than the limit");
    hth_setting_reset();
    site_rig_close(&rig);
}

// What a measurement was made in goes back to the device's memory, and who waits for that looks
// again; the host's, where the device has none left, is nobody's.
static void test_workspace(void **state)
{
    site_rig rig;
    hth_pool_ledger l;
    site_rig_open(&rig, &no_timings);
    hth_pool_ledger_get(rig.site.pool, &l);
    uint64_t freed = rig.site.freed;
    void *all = hth_site_workspace_take(&rig.site, l.largest_free_bytes);
    assert_true(hth_pool_holds(rig.site.pool, all));
    void *more = hth_site_workspace_take(&rig.site, MIB);
    assert_true(more != NULL && !hth_pool_holds(rig.site.pool, more));
    hth_site_workspace_give(&rig.site, more);
    assert_int_equal(rig.site.freed, freed);
    hth_site_workspace_give(&rig.site, all);
    assert_true(rig.site.freed > freed);
    site_rig_close(&rig);
}

static hth_err infer(site_rig *rig, const char *model, float *x, int64_t n, call *c)
{
    hth_model *m;
    hth_infer_request *w;
    hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                   .shape = {.rank = 1, .dim = {n}},
                                   .data = x,
                                   .bytes = (size_t)n * sizeof *x}};
    *c = (call){.r = {.model = model, .inputs = &in, .n_inputs = 1}};
    call_init(c);
    HTH_TRY(hth_model_find(&rig->models, model, &m));
    HTH_TRY(hth_infer_request_open(&rig->models, m, &c->r, &w));
    hth_err err = hth_infer(&rig->models, w);
    if (err == HTH_OK) {
        assert_true(rig->site.host_bytes[HTH_HOST_OUTPUTS] > 0); // until it is answered
    }
    hth_infer_request_close(&rig->models, w);
    assert_int_equal(rig->site.host_bytes[HTH_HOST_OUTPUTS], 0);
    assert_int_equal(rig->site.host_bytes[HTH_HOST_STAGES], 0);
    hth_free(c->r.outputs);
    return err;
}

// Programs that were made of contents go, the oldest first, when the memory is wanted; the one at
// work does not.
static void test_contents(void **state)
{
    enum { N = 4096 };
    static float x[N];
    site_rig rig;
    call c;
    site_rig_open(&rig, &no_timings);
    put(rig.store, "nonzero", "tests/data/engine/nonzero.onnx");
    put(rig.store, "staged", "tests/data/engine/nonzero_staged.onnx");
    assert_ok(hth_setting_set("memory.host_bytes", "100KiB"));
    for (int i = 0; i < 10; i++) {
        x[i] = 1;
        assert_ok(infer(&rig, "nonzero", x, N, &c));
        assert_int_equal(c.out[0].shape.dim[1], i + 1);
        free(c.out[0].data);
        uint64_t kept = rig.site.host_bytes[HTH_HOST_CONTENTS];
        assert_true(kept >= sizeof x && kept <= 100 << 10);
    }
    assert_true(rig.site.host_bytes[HTH_HOST_CONTENTS] >= 5 * sizeof x);
    assert_ok(infer(&rig, "staged", x, N, &c)); // stages and outputs make room for themselves, too
    free(c.out[0].data);
    free(c.out[1].data);
    for (int i = 0; i < N; i++) {
        x[i] = 1;
    }
    assert_ok(hth_setting_set("memory.host_bytes", "70KiB")); // input, result and answer: 80
    assert_err(infer(&rig, "nonzero", x, N, &c), HTH_ENODEVMEM, "an answer of model 'nonzero'");
    hth_models_unload(&rig.models, "nonzero", 0);
    hth_models_unload(&rig.models, "staged", 0);
    assert_int_equal(hth_host_used(&rig.site), 0);
    hth_setting_reset();
    site_rig_close(&rig);
}

// An answer is limited, whatever memory there is.
static void test_answer(void **state)
{
    enum { N = 20000 };
    static float x[N];
    site_rig rig;
    call c;
    site_rig_open(&rig, &no_timings);
    put(rig.store, "staged", "tests/data/engine/nonzero_staged.onnx");
    assert_ok(hth_setting_set("limits.message_bytes", "100KiB"));
    assert_ok(infer(&rig, "staged", x, N, &c));
    free(c.out[0].data);
    free(c.out[1].data);
    for (int i = 0; i < 4000; i++) {
        x[i] = 1;
    }
    assert_err(infer(&rig, "staged", x, N, &c), HTH_EINVAL,
               "output 'r' with the others takes 109.4 KiB: more than the 100.0 KiB of an answer "
               "(limits.message_bytes)");
    for (int i = 0; i < N; i++) {
        x[i] = 1;
    }
    assert_err(infer(&rig, "staged", x, N, &c), HTH_EINVAL,
               "output 'y' takes 156.2 KiB: more than the 100.0 KiB of an answer "
               "(limits.message_bytes)");
    hth_setting_reset();
    site_rig_close(&rig);
}

static void others_refused(void *ctx)
{
    assert_int_equal(hth_host_take(ctx, HTH_HOST_OUTPUTS, UINT64_MAX, "an answer"), HTH_ETOOBIG);
}

// What does not fit beside a job is not refused for ever because another's answer was, while it was
// compiled.
static void test_refused_meanwhile(void **state)
{
    static float x[96];
    site_rig rig;
    hth_model *m;
    hth_program *p;
    site_rig_open(&rig, &no_timings);
    hth_work_queue queue = {.poll = others_refused, .ctx = &rig.site};
    hth_job_memory job = {.account = NULL};
    hth_tensor in = {.dtype = HTH_DT_F32, .shape = {2, {1, 96}}, .data = x, .bytes = sizeof x};
    put(rig.store, "mlp", "tests/data/passes/mlp.onnx");
    assert_ok(hth_model_find(&rig.models, "mlp", &m));
    hth_job_memory_set(&rig.site, &job, &(hth_curve_point){.device_bytes = 64 * MIB - 4096});
    rig.site.queue = &queue;
    assert_err(hth_infer_program(&rig.models, &m->source, &in, false, NULL, &p), HTH_ENODEVMEM,
               "does not fit now");
    rig.site.queue = NULL;
    hth_job_memory_set(&rig.site, &job, &(hth_curve_point){.device_bytes = 0});
    site_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit), cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_contents), cmocka_unit_test(test_answer),
        cmocka_unit_test(test_refused_meanwhile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
