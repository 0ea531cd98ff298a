// SPDX-License-Identifier: Apache-2.0
// A joined run's memory and programs while host memory is short: what nobody uses goes, and what a
// run goes on with stays; and what its requests wait for.
#include "engine/serve/batch_run.h"

#include "engine/serve/memory_wait.h"
#include "runtime/host.h"
#include "tests/rig/site_rig.h"

#define MIB      ((uint64_t)1 << 20)
#define REQUESTS 2
#define SAMPLES  4

typedef struct joined {
    site_rig s;
    hth_model *m;
    hth_batch_run run;
    hth_infer_request *work[REQUESTS];
    hth_request_tensor in[REQUESTS];
    call c[REQUESTS];
    bool fails; // the joined run ends before its first operator
} joined;

static joined rig;

static hth_err rig_place(hth_request *request, hth_request_tensor *outputs, int n)
{
    rig.run.stop = rig.fails;
    return call_place(request, outputs, n);
}

static void rig_open(void)
{
    static float pixels[SAMPLES * 64];
    memset(&rig, 0, sizeof rig);
    site_rig_open(&rig.s, NULL);
    put(rig.s.store, "digits", "tests/data/digits/digits.onnx");
    assert_ok(hth_model_find(&rig.s.models, "digits", &rig.m));
    for (int i = 0; i < REQUESTS; i++) {
        rig.in[i] = (hth_request_tensor){.t = {.dtype = HTH_DT_F32,
                                               .shape = {4, {SAMPLES, 1, 8, 8}},
                                               .data = pixels,
                                               .bytes = sizeof pixels}};
        rig.c[i] = (call){.r = {.model = "digits", .inputs = &rig.in[i], .n_inputs = 1}};
        call_init(&rig.c[i]);
        rig.c[i].r.place = rig_place;
        assert_ok(hth_infer_request_open(&rig.s.models, rig.m, &rig.c[i].r, &rig.work[i]));
    }
}

static void rig_close(void)
{
    for (int i = 0; i < REQUESTS; i++) {
        hth_infer_request_close(&rig.s.models, rig.work[i]);
        free(rig.c[i].out[0].data);
        hth_free(rig.c[i].r.outputs);
    }
    hth_batch_run_fini(&rig.run);
    site_rig_close(&rig.s);
}

static void rig_run(void)
{
    assert_ok(hth_batch_run_run(&rig.run, &rig.s.models, rig.work, REQUESTS, REQUESTS * SAMPLES));
    for (int i = 0; i < REQUESTS; i++) {
        assert_ok(rig.work[i]->r->err);
    }
}

// The program of one request is run in slices, whose program is made in the middle of that: there
// is host memory for the operators of one of them only.
static void test_alone_in_slices(void **state)
{
    hth_program *p;
    rig_open();
    rig.fails = true;
    hth_source *source = &rig.m->source;
    assert_ok(hth_infer_program(&rig.s.models, source, rig.work[0]->inputs, false, NULL, &p));
    p->slice = 1;
    p->sliced = true;
    p->overhead_bytes = 512 * MIB;
    p->held++; // until the run has its program
    const hth_tensor *key = hth_infer_request_key(rig.work[0], REQUESTS * SAMPLES);
    hth_program *whole;
    assert_ok(hth_infer_program(&rig.s.models, source, key, false, NULL, &whole));
    p->held--;
    uint64_t before = rig.s.site.clock;
    rig_run();
    p = hth_source_match(source, rig.work[0]->inputs);
    assert_non_null(p);
    assert_int_equal(p->overhead_bytes, 512 * MIB); // it is that one still
    assert_int_equal(p->n_timed, REQUESTS);
    assert_true(p->used_at > before); // though only the other one was on the device
    assert_int_equal(p->held, 0);
    rig_close();
}

// The memory of the last joined run is there for the next one, until somebody else needs it.
static void test_memory_goes(void **state)
{
    rig_open();
    rig_run();
    uint64_t all = hth_host_limit(&rig.s.site), used = hth_host_used(&rig.s.site);
    void *memory = rig.run.memory;
    assert_non_null(memory);
    assert_true(rig.run.bytes > 0 && used >= rig.run.bytes);
    uint64_t rest = all - used;
    assert_ok(hth_host_take(&rig.s.site, HTH_HOST_STAGES, rest, "a stage")); // both fit
    assert_ptr_equal(rig.run.memory, memory);
    assert_ok(hth_host_take(&rig.s.site, HTH_HOST_STAGES, 1, "another"));
    assert_null(rig.run.memory);
    hth_host_give(&rig.s.site, HTH_HOST_STAGES, rest + 1);
    rig_run(); // as before
    assert_non_null(rig.run.memory);
    rig.run.n = 1; // something runs
    rest = all - hth_host_used(&rig.s.site);
    assert_int_equal(hth_host_take(&rig.s.site, HTH_HOST_STAGES, rest + 1, "a stage"),
                     HTH_ENODEVMEM);
    rig.run.n = 0;
    rig_close();
}

// rig_waits: a run lacks what the test has taken, and no more of the device than it has for models,
// which another one was refused before it. Its requests wait until something is given back.
static void rig_waits(hth_memory_wait *wait)
{
    static hth_batch_flow flow = {.weight = 1};
    hth_site *site = &rig.s.site;
    site->refused_over = site->device->props.budget_bytes;
    site->refused_bytes = MIB;
    assert_ok(hth_batch_run_run(&rig.run, &rig.s.models, rig.work, REQUESTS, REQUESTS * SAMPLES));
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(rig.work[i]->r->err, HTH_ENODEVMEM);
        rig.work[i]->item.flow = &flow;
        assert_true(hth_memory_wait_add(wait, rig.work[i], REQUESTS));
    }
    assert_int_equal(site->awaited_bytes, 0);
}

static void rig_goes_on(hth_memory_wait *wait)
{
    for (int i = 0; i < REQUESTS; i++) {
        assert_ptr_equal(hth_memory_wait_ready(wait), rig.work[i]);
    }
}

static void test_waits_for_its_own(void **state)
{
    hth_pool_ledger l;
    hth_memory_wait wait = {.ms = &rig.s.models};
    hth_site *site = &rig.s.site;
    rig_open();
    rig_run();
    size_t bytes = rig.run.bytes;
    rig_close();
    rig_open();
    // it can be joined, and its answers have no place
    uint64_t rest = hth_host_limit(site) - hth_host_used(site) - bytes - 1;
    assert_ok(hth_host_take(site, HTH_HOST_STAGES, rest, "a stage"));
    rig_waits(&wait);
    hth_host_give(site, HTH_HOST_STAGES, rest);
    rig_goes_on(&wait);
    hth_pool_ledger_get(site->pool, &l);
    void *measured = hth_site_workspace_take(site, l.largest_free_bytes);
    assert_true(hth_pool_holds(site->pool, measured));
    rig_waits(&wait);
    hth_site_workspace_give(site, measured);
    rig_goes_on(&wait);
    rig_run();
    rig_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_in_slices),
        cmocka_unit_test(test_memory_goes),
        cmocka_unit_test(test_waits_for_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
