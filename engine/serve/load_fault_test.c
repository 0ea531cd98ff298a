// SPDX-License-Identifier: Apache-2.0
// Loading, taking a newer version over and unloading, with every allocation failing in turn, and a
// device whose copies and launches do: what fails leaves the ledger as it was, and no block.
#include "device/fake/fake.h"
#include "engine/serve/infer.h"
#include "runtime/host.h"
#include "runtime/ledger.h"
#include "engine/serve/load.h"
#include "engine/serve/tune.h"
#include "engine/serve/version_swap.h"
#include "tests/rig/engine_call.h"
#include "tests/rig/npy_data.h"

#define DIGITS "tests/data/digits/digits.onnx"
#define PARITY "tests/data/digits/digits-parity.onnx"
#define MLP    "tests/data/passes/mlp.onnx"

static hth_err none_get(void *ctx, const char *key, char *value, size_t cap)
{
    return HTH_ENOENT;
}

static hth_err none_put(void *ctx, const char *key, const char *value)
{
    return HTH_OK;
}

static const hth_timing_cache no_timings = {.get = none_get, .put = none_put};

// An engine's insides, on this thread.
typedef struct rig {
    char dir[64];
    hth_store *store;
    hth_site site;
    hth_models models;
    hth_loads loads;
} rig;

static void rig_answer(hth_request *request, hth_err err)
{
    request->err = err;
}

static void rig_open(rig *r, const char *device)
{
    memset(r, 0, sizeof *r);
    strcpy(r->dir, "/tmp/hearth-load-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    assert_ok(hth_store_open(r->dir, true, false, &r->store));
    assert_ok(hth_device_open(device, &r->site.device));
    assert_ok(hth_pool_open(r->site.device, r->site.device->props.budget_bytes, &r->site.pool));
    assert_ok(hth_residency_open(r->site.pool, &r->site.residency));
    r->site.tolerance = 1e-3;
    r->site.timings = &no_timings;
    r->site.link_bytes_per_s = r->site.link_back_bytes_per_s = 2e9;
    r->models =
        (hth_models){.store = r->store, .site = &r->site, .changed = hth_version_swap_check};
    r->loads = (hth_loads){.ms = &r->models, .answer = rig_answer};
}

static void rig_close(rig *r)
{
    hth_models_fini(&r->models);
    assert_null(r->site.arena);
    assert_null(r->site.programs);
    hth_residency_close(r->site.residency);
    hth_pool_close(r->site.pool);
    hth_device_close(r->site.device);
    hth_store_close(r->store);
    assert_int_equal(test_remove(r->dir), 0);
}

static hth_err rig_ask(rig *r, const char *what, const char *arguments)
{
    hth_request q = {.command = hth_command_find(what), .arguments = arguments, .err = HTH_EIO};
    hth_loads_take(&r->loads, &q);
    hth_free(q.json);
    return q.err;
}

// What the pool has free, after the ledger was checked.
static uint64_t rig_free(const rig *r)
{
    hth_ledger l;
    assert_ok(hth_ledger_read(&r->site, &l));
    assert_int_equal(l.difference, 0);
    assert_int_equal(l.unclaimed_bytes, 0);
    uint64_t free = l.pool.free_bytes;
    hth_ledger_fini(&l);
    hth_pool_check(r->site.pool);
    return free;
}

// Each allocation fails in turn, in `what`, until it succeeds. Returns how many there were.
static int rig_faults(rig *r, const char *what, const char *arguments)
{
    uint64_t free = rig_free(r);
    for (uint64_t nth = 1;; nth++) {
        int64_t live = hth_alloc_live();
        hth_fault_alloc(nth);
        hth_err err = rig_ask(r, what, arguments);
        hth_fault_alloc(0);
        if (err == HTH_OK) {
            rig_free(r);
            return (int)nth - 1;
        }
        assert_int_equal(err, HTH_ENOMEM);
        assert_int_equal(rig_free(r), free);
        assert_int_equal(hth_alloc_live(), live);
        assert_true(nth < 100000);
    }
}

static void test_load(void **state)
{
    static const char *const device[] = {"cpu:mem=64MiB,threads=1", "fake:mem=64MiB,seed=3"};
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_open(&r, device[i]);
        put(r.store, "digits", DIGITS);
        put(r.store, "parity", PARITY);
        uint64_t empty = rig_free(&r);
        assert_true(rig_faults(&r, "load", "{\"model\":\"digits\"}") > 100);
        assert_true(rig_faults(&r, "load", "{\"model\":\"parity\",\"pin\":true}") > 100);
        assert_ok(rig_ask(&r, "load", "{\"model\":\"digits\"}"));
        uint64_t both = rig_free(&r);
        assert_ok(rig_ask(&r, "unload", "{\"model\":\"digits\"}"));
        assert_true(rig_free(&r) > both);
        assert_ok(rig_ask(&r, "unload", "{\"model\":\"parity\"}"));
        assert_int_equal(rig_free(&r), empty);
        rig_close(&r);
    }
}

// A newer version that fails for lack of memory is as if it had not been tried.
static void test_reload(void **state)
{
    rig r;
    rig_open(&r, "cpu:mem=64MiB,threads=1");
    put(r.store, "m", DIGITS);
    assert_ok(rig_ask(&r, "load", "{\"model\":\"m\"}"));
    uint64_t free = rig_free(&r);
    put(r.store, "m", PARITY);
    const hth_name *n = hth_model_name(&r.models, "m");
    for (uint64_t nth = 1; n->serving->version == 1; nth++) {
        hth_version_swap_retry(&r.models, "m");
        assert_int_equal(n->wanted, 2);
        int64_t live = hth_alloc_live();
        hth_fault_alloc(nth);
        hth_version_swap_settle(&r.models, "m");
        hth_fault_alloc(0);
        n = hth_model_name(&r.models, "m");
        if (n->serving->version == 1) {
            assert_int_equal(n->refused, 2);
            assert_true(n->why[0] != 0);
            assert_int_equal(rig_free(&r), free);
            assert_int_equal(hth_alloc_live(), live);
        }
        assert_true(nth < 100000);
    }
    assert_ok(rig_ask(&r, "unload", "{\"model\":\"m\"}"));
    rig_close(&r);
}

static hth_err rig_place(hth_request *request, hth_request_tensor *out, int n)
{
    assert_int_equal(n, 1);
    assert_true(out[0].t.bytes <= 4096);
    out[0].t.data = request->ctx;
    return HTH_OK;
}

static hth_err rig_infer(rig *r, const char *model, const hth_tensor *tensor, void *out)
{
    hth_request_tensor in = {.t = *tensor};
    hth_request q = {.model = model, .inputs = &in, .n_inputs = 1, .place = rig_place, .ctx = out};
    hth_model *m;
    hth_infer_request *w = NULL;
    hth_err err = hth_model_find(&r->models, model, &m);
    if (err == HTH_OK) {
        err = hth_infer_request_open(&r->models, m, &q, &w);
    }
    if (err == HTH_OK) {
        err = hth_infer(&r->models, w);
        hth_infer_request_close(&r->models, w);
    }
    hth_free(q.outputs);
    return err;
}

// A device that fails at any copy or launch of a model whose weights are streamed.
static void test_device(void **state)
{
    rig r;
    hth_tensor x;
    char right[4096], out[4096];
    hth_tensor y;
    rig_open(&r, "fake:mem=112KiB,seed=5");
    put(r.store, "mlp", MLP);
    assert_true(npy_data("tests/data/passes/mlp.x.npy", &x));
    assert_true(npy_data("tests/data/passes/mlp.y.npy", &y));
    assert_ok(rig_infer(&r, "mlp", &x, right));
    uint64_t free = rig_free(&r);
    hth_fake_control *c = hth_fake_control_of(r.site.device);
    unsigned *const fault[] = {&c->fail_copy, &c->fail_launch, &c->fail_copy_run,
                               &c->fail_launch_run};
    int failed = 0;
    for (size_t k = 0; k < sizeof fault / sizeof fault[0]; k++) {
        for (unsigned nth = 1;; nth++) {
            *fault[k] = nth;
            hth_err err = rig_infer(&r, "mlp", &x, out);
            *fault[k] = 0;
            assert_int_equal(rig_free(&r), free);
            if (err == HTH_OK) {
                assert_memory_equal(out, right, y.bytes);
                break;
            }
            assert_int_equal(err, HTH_EDEVLOST);
            failed++;
        }
    }
    assert_true(failed > 4);
    assert_ok(rig_ask(&r, "unload", "{\"model\":\"mlp\"}"));
    assert_int_equal(rig_free(&r), 112 * 1024);
    hth_free(x.data);
    hth_free(y.data);
    rig_close(&r);
}

static int n_pinned(const rig *r, int version)
{
    int n = 0;
    for (const hth_model *m = r->models.list; m != NULL; m = m->next) {
        for (const hth_program *p = m->source.programs; p != NULL; p = p->next) {
            n += m->version == version && p->pinned;
        }
    }
    return n;
}

// A newer version that was loaded by its version stays when it is refused; the pin of the older,
// which serves on, does not become its own.
static void test_reload_pinned(void **state)
{
    rig r;
    char out[4096];
    float image[2 * 64] = {0};
    hth_tensor x = {.dtype = HTH_DT_F32, .shape = {4, {2, 1, 8, 8}}, .data = image, .bytes = 512};
    rig_open(&r, "cpu:mem=64MiB,threads=1");
    put(r.store, "m", DIGITS);
    assert_ok(rig_ask(&r, "load", "{\"model\":\"m\",\"pin\":true}"));
    assert_ok(rig_infer(&r, "m", &x, out));
    x.shape.dim[0] = 1;
    x.bytes = 256;
    assert_ok(rig_infer(&r, "m", &x, out)); // the pinned program is the first that is followed
    put(r.store, "m", PARITY);
    assert_ok(rig_ask(&r, "load", "{\"model\":\"m:2\"}"));
    uint64_t pinned = r.site.pinned_bytes;
    const hth_name *n = hth_model_name(&r.models, "m");
    for (uint64_t nth = 1; n->serving->version == 1; nth++) {
        hth_version_swap_retry(&r.models, "m");
        hth_fault_alloc(nth);
        hth_version_swap_settle(&r.models, "m");
        hth_fault_alloc(0);
        n = hth_model_name(&r.models, "m");
        if (n->serving->version == 1) {
            assert_int_equal(n_pinned(&r, 2), 0);
            assert_int_equal(n_pinned(&r, 1), 1);
            assert_int_equal(r.site.pinned_bytes, pinned);
        }
        assert_true(nth < 100000);
    }
    assert_int_equal(n_pinned(&r, 2), 1);
    assert_int_equal(n_pinned(&r, 1), 0);
    put(r.store, "m", DIGITS); // and one with a pin of its own keeps that
    assert_ok(rig_ask(&r, "load", "{\"model\":\"m:3\",\"pin\":true}"));
    hth_version_swap_retry(&r.models, "m");
    while (hth_model_name(&r.models, "m")->coming == NULL) {
        assert_true(hth_version_swap_slice(&r.models));
    }
    assert_true(hth_version_swap_slice(&r.models));
    assert_int_equal(n_pinned(&r, 3), 1);
    put(r.store, "m", PARITY); // version 3 is not waited for any more
    hth_models_refresh(&r.models);
    assert_int_equal(n_pinned(&r, 3), 1);

    // Nor has one a pin for a version that is unloaded meanwhile.
    assert_ok(rig_ask(&r, "unload", "{\"model\":\"m:3\"}"));
    assert_ok(rig_ask(&r, "load", "{\"model\":\"m:4\"}"));
    while (n_pinned(&r, 4) == 0) {
        assert_true(hth_version_swap_slice(&r.models));
    }
    assert_int_equal(hth_model_name(&r.models, "m")->serving->version, 2);
    assert_ok(rig_ask(&r, "unload", "{\"model\":\"m:2\"}"));
    assert_int_equal(n_pinned(&r, 4), 0);
    assert_int_equal(r.site.pinned_bytes, 0);
    rig_close(&r);
}

static hth_program *pinned_of(rig *r)
{
    hth_program *p = hth_model_name(&r->models, "m")->serving->source.programs;
    while (p != NULL && !p->pinned) {
        p = p->next;
    }
    assert_non_null(p);
    return p;
}

// put_changed puts a model with another number in the middle of its weights.
static void put_changed(const rig *r, const char *name, const char *path)
{
    static char bytes[1 << 20];
    char changed[100];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_in_range(n, 1, sizeof bytes - 1);
    bytes[n / 2] ^= 1;
    snprintf(changed, sizeof changed, "%s/changed.onnx", r->dir);
    f = fopen(changed, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    put(r->store, name, changed);
}

// A newer version of a pinned model is planned for what that leaves, and once more when that goes:
// all of its weights stay on the device then.
static void test_reload_squeezed(void **state)
{
    rig r;
    char device[64];
    uint64_t weights, arena, bytes = 64 << 20;
    for (int i = 0; i < 2; i++) {
        snprintf(device, sizeof device, "cpu:mem=%llu,threads=1", (unsigned long long)bytes);
        rig_open(&r, device);
        put(r.store, "m", MLP);
        assert_ok(rig_ask(&r, "load", "{\"model\":\"m\",\"pin\":true}"));
        hth_program_ledger(pinned_of(&r), &weights, &arena);
        bytes = (weights + arena) * 16 / 10; // two do not fit
        if (i == 0) {
            rig_close(&r);
        }
    }
    assert_false(hth_program_squeezed(pinned_of(&r)));
    put_changed(&r, "m", MLP);
    hth_version_swap_retry(&r.models, "m");
    hth_version_swap_settle(&r.models, "m");
    assert_int_equal(hth_model_name(&r.models, "m")->serving->version, 2);
    assert_true(hth_program_squeezed(pinned_of(&r)));
    for (int i = 0; i < 1000 && hth_tune_step(&r.models); i++) {
    }
    assert_false(hth_tune_pending(&r.models));
    assert_false(hth_program_squeezed(pinned_of(&r)));
    assert_int_equal(n_pinned(&r, 2), 1);
    rig_close(&r);
}

// How often a model was brought from the store when loads that wait were looked at again.
static uint64_t rig_tries(rig *r)
{
    uint64_t before = r->models.loaded;
    assert_false(hth_loads_slice(&r->loads));
    return r->models.loaded - before;
}

// rig_wait asks for a load that has to wait.
static void rig_wait(rig *r, hth_request *request, const char *arguments)
{
    *request = (hth_request){.command = HTH_COMMAND_LOAD, .arguments = arguments, .err = HTH_EIO};
    hth_loads_take(&r->loads, request);
    assert_ptr_equal(r->loads.waiting, request);
}

// A load that the host had no memory for is tried when some was given back, and then only.
static void test_waits_for_host(void **state)
{
    rig r;
    hth_request q;
    rig_open(&r, "cpu:mem=64MiB,threads=1");
    put(r.store, "nonzero", "tests/data/engine/nonzero.onnx");
    uint64_t most = hth_host_limit(&r.site);
    assert_ok(hth_host_take(&r.site, HTH_HOST_OUTPUTS, most, "the test"));
    rig_wait(&r, &q, "{\"model\":\"nonzero\"}");
    assert_int_equal(rig_tries(&r), 0);
    hth_host_give(&r.site, HTH_HOST_OUTPUTS, 4); // too little
    assert_int_equal(rig_tries(&r), 1);
    assert_int_equal(rig_tries(&r), 0); // nor for what it freed itself
    hth_host_give(&r.site, HTH_HOST_OUTPUTS, most - 4);
    assert_int_equal(rig_tries(&r), 1);
    assert_ok(q.err);
    hth_free(q.json);
    rig_close(&r);
}

// One that a pinned model leaves too little of the device for is tried when that has changed.
static void test_waits_for_pin(void **state)
{
    rig r;
    hth_request q;
    hth_ledger l;
    char device[64];
    uint64_t bytes = 64 << 20;
    for (int i = 0; i < 2; i++) {
        snprintf(device, sizeof device, "cpu:mem=%llu,threads=1", (unsigned long long)bytes);
        rig_open(&r, device);
        put(r.store, "digits", DIGITS);
        put(r.store, "mlp", MLP);
        assert_ok(rig_ask(&r, "load", "{\"model\":\"digits\",\"pin\":true}"));
        assert_ok(hth_ledger_read(&r.site, &l));
        bytes = l.private_bytes + (28 << 10);
        hth_ledger_fini(&l);
        if (i == 0) {
            rig_close(&r);
        }
    }
    rig_wait(&r, &q, "{\"model\":\"mlp\"}");
    r.site.freed++; // a run has ended
    assert_int_equal(rig_tries(&r), 0);
    assert_ok(rig_ask(&r, "load", "{\"model\":\"digits\",\"unpin\":true}"));
    assert_int_equal(rig_tries(&r), 1);
    assert_ok(q.err);
    hth_free(q.json);

    // Nor is a pin missed that came and went since loads were looked at.
    assert_ok(rig_ask(&r, "unload", "{\"model\":\"mlp\"}"));
    assert_int_equal(rig_tries(&r), 0);
    assert_ok(rig_ask(&r, "load", "{\"model\":\"digits\",\"pin\":true}"));
    rig_wait(&r, &q, "{\"model\":\"mlp\"}");
    assert_ok(rig_ask(&r, "load", "{\"model\":\"digits\",\"unpin\":true}"));
    assert_int_equal(rig_tries(&r), 1);
    assert_ok(q.err);
    hth_free(q.json);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load),
                                       cmocka_unit_test(test_reload),
                                       cmocka_unit_test(test_device),
                                       cmocka_unit_test(test_reload_pinned),
                                       cmocka_unit_test(test_reload_squeezed),
                                       cmocka_unit_test(test_waits_for_host),
                                       cmocka_unit_test(test_waits_for_pin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
