// SPDX-License-Identifier: Apache-2.0
// Models brought to the device and away from it, through an engine: what the ledger says after each
// step, newer versions beside requests, what does not fit, many threads at once.
#include "tests/rig/train_job.h"

#define DIGITS    "tests/data/digits/digits.onnx"
#define PARITY    "tests/data/digits/digits-parity.onnx"
#define UNTRAINED "tests/data/digits/untrained.onnx"
#define MLP       "tests/data/passes/mlp.onnx"

// ask answers NULL when the engine refuses; c says why.
static json_t *load_ask(fixture *f, const char *tenant, const char *what, const char *arguments,
                        call *c)
{
    *c = (call){.r = {.command = hth_command_find(what), .arguments = arguments, .tenant = tenant}};
    json_t *j = call_run(f->engine, c) == HTH_OK ? json_loads(c->r.json, 0, NULL) : NULL;
    hth_free(c->r.json);
    return j;
}

static json_int_t number(const json_t *json, const char *key)
{
    const json_t *v = json_object_get(json, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

typedef struct ledger {
    json_int_t weights, arena, jobs, free, filled;
} ledger;

// The sum of the parts is what the pool has handed out, to the byte.
static ledger ledger_of(fixture *f)
{
    json_t *doc = told(f, "stats", "{}"), *l = json_object_get(doc, "ledger"), *m;
    size_t i;
    json_int_t private = 0;
    ledger out = {number(l, "weight_bytes"), number(l, "compute_arena_bytes"),
                  number(l, "job_bytes"), number(l, "free_bytes"),
                  number(json_object_get(doc, "residency"), "filled_bytes")};
    assert_int_equal(number(l, "difference_bytes"), 0);
    assert_int_equal(number(l, "unclaimed_bytes"), 0);
    assert_int_equal(out.arena + out.jobs, number(l, "arena_bytes"));
    assert_int_equal(number(l, "workspace_bytes"), 0);
    assert_int_equal(number(l, "private_weight_bytes") + number(l, "shared_weight_bytes"),
                     out.weights);
    assert_int_equal(out.weights + out.arena + out.jobs + number(l, "padding_bytes") + out.free,
                     number(l, "budget_bytes") / 64 * 64);
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        private += number(m, "resident_private_bytes");
    }
    json_array_foreach(json_object_get(doc, "jobs"), i, m)
    {
        private += number(m, "resident_private_bytes");
    }
    assert_int_equal(private, number(l, "private_weight_bytes"));
    json_decref(doc);
    return out;
}

static void same(ledger a, ledger b)
{
    assert_int_equal(a.weights, b.weights);
    assert_int_equal(a.arena, b.arena);
    assert_int_equal(a.jobs, b.jobs);
    assert_int_equal(a.free, b.free);
}

static json_int_t row(fixture *f, const char *name, int version, const char *key)
{
    json_t *doc = told(f, "stats", "{}"), *m;
    json_int_t v = -1;
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        if (strcmp(json_string_value(json_object_get(m, "name")), name) == 0 &&
            number(m, "version") == version) {
            v = number(m, key);
        }
    }
    json_decref(doc);
    return v;
}

#define MANY 17 // digits in a request, at most

// `n` digits; the answer goes to c->out[0].
static hth_err infer_many(fixture *f, const char *tenant, const char *model, int n, call *c)
{
    float image[MANY * 64]; // until call_run has the answer
    hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                   .shape = {4, {n, 1, 8, 8}},
                                   .data = image,
                                   .bytes = (size_t)n * 256}};
    for (int i = 0; i < n * 64; i++) {
        image[i] = (float)(i * 37 % 16) / 16;
    }
    *c = (call){.r = {.model = model, .inputs = &in, .n_inputs = 1, .tenant = tenant}};
    return call_run(f->engine, c);
}

static hth_err infer_as(fixture *f, const char *tenant, const char *model, call *c)
{
    return infer_many(f, tenant, model, 1, c);
}

static int infer(fixture *f, const char *model)
{
    call c;
    assert_ok(infer_as(f, NULL, model, &c));
    free(c.out[0].data);
    return c.r.version;
}

static bool flag(fixture *f, const char *name, const char *key)
{
    json_t *doc = told(f, "loaded", "{}"), *m;
    bool v = false;
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        v = v || (strcmp(json_string_value(json_object_get(m, "name")), name) == 0 &&
                  json_is_true(json_object_get(m, key)));
    }
    json_decref(doc);
    return v;
}

static void test_load_and_unload(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", DIGITS);
    put(f.store, "parity", PARITY);
    ledger empty = ledger_of(&f);
    json_t *j = told(&f, "load", "{\"model\":\"digits\",\"pin\":true}");
    ledger one = ledger_of(&f);
    assert_int_equal(number(j, "moved_bytes"), one.weights);
    assert_true(one.weights > 100000 && one.arena > 0);
    json_decref(j);
    assert_true(flag(&f, "digits", "loaded") && flag(&f, "digits", "pinned"));
    assert_int_equal(infer(&f, "digits"), 1);
    same(ledger_of(&f), one); // all was there
    json_decref(told(&f, "load", "{\"model\":\"parity\"}"));
    ledger two = ledger_of(&f);
    assert_true(two.weights > one.weights && two.weights < one.weights + one.weights / 2);
    assert_true(row(&f, "digits", 1, "resident_shared_bytes") > 0);
    assert_int_equal(row(&f, "digits", 1, "resident_shared_bytes"),
                     row(&f, "parity", 1, "resident_shared_bytes"));
    j = told(&f, "unload", "{\"model\":\"parity\"}");
    assert_int_equal(number(j, "freed_bytes"), one.free - two.free);
    json_decref(j);
    same(ledger_of(&f), one);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":false}"));
    assert_true(flag(&f, "digits", "loaded") && !flag(&f, "digits", "pinned"));
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    same(ledger_of(&f), empty);
    assert_false(flag(&f, "digits", "loaded"));
    call c;
    assert_null(load_ask(&f, NULL, "load", "{\"model\":\"nobody\"}", &c));
    assert_int_equal(c.r.err, HTH_ENOENT);
    assert_null(load_ask(&f, NULL, "load", "{\"model\":\"digits\",\"pin\":1}", &c));
    assert_int_equal(c.r.err, HTH_EINVAL);
    assert_null(load_ask(&f, NULL, "unload", "{\"model\":\"nobody\"}", &c));
    assert_int_equal(c.r.err, HTH_ENOENT);
    assert_non_null(strstr(c.r.detail, "nobody"));
    assert_null(load_ask(&f, NULL, "unload", "{\"model\":\"digits:9\"}", &c));
    assert_int_equal(c.r.err, HTH_ENOENT);
    j = told(&f, "unload", "{\"model\":\"digits\"}"); // there, and not loaded
    assert_int_equal(number(j, "unloaded"), 0);
    json_decref(j);
    assert_null(load_ask(&f, NULL, "unload", "{}", &c));
    assert_int_equal(c.r.err, HTH_EINVAL);
    same(ledger_of(&f), empty);
    fixture_close(&f);
}

static json_int_t tenant(fixture *f, const char *name)
{
    json_t *doc = told(f, "stats", "{}"), *t;
    json_int_t v = 0;
    size_t i;
    json_array_foreach(json_object_get(doc, "tenants"), i, t)
    {
        bool it = strcmp(json_string_value(json_object_get(t, "name")), name) == 0;
        v = it ? number(t, "device_bytes") : v;
    }
    json_decref(doc);
    return v;
}

// Bytes belong to who had them loaded, by whatever request.
static void test_tenants(void **state)
{
    fixture f;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", DIGITS);
    put(f.store, "parity", PARITY);
    assert_ok(infer_as(&f, "uid:1000", "digits", &c));
    free(c.out[0].data);
    json_decref(load_ask(&f, "uid:1001", "load", "{\"model\":\"parity\"}", &c));
    assert_ok(infer_as(&f, "http", "parity", &c)); // asks for what is there
    free(c.out[0].data);
    ledger_of(&f);
    assert_int_equal(tenant(&f, "uid:1000"), row(&f, "digits", 1, "device_bytes"));
    assert_int_equal(tenant(&f, "uid:1001"), row(&f, "parity", 1, "device_bytes"));
    assert_int_equal(tenant(&f, "http"), 0);
    json_decref(told(&f, "unload", "{\"model\":\"parity\"}"));
    json_decref(load_ask(&f, "uid:1000", "load", "{\"model\":\"parity\"}", &c));
    assert_int_equal(tenant(&f, "uid:1000"), ledger_of(&f).weights); // each copy once
    fixture_close(&f);
}

// A job's memory is in the ledger as long as it is at work, and is its submitter's.
static void test_job(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &unet, data);
    put(f.store, "digits", DIGITS);
    infer(&f, "digits");
    ledger before = ledger_of(&f);
    json_t *q = arguments_of(&unet, data, "{\"epochs\": 100000, \"plan-ms\": 100}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    call job = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .tenant = "uid:7"}};
    call_start(f.engine, &job);
    ledger busy = ledger_of(&f);
    for (uint64_t seen = 0; busy.jobs == 0;) {
        events_wait(&seen);
        busy = ledger_of(&f);
    }
    assert_true(busy.jobs > 100000);
    for (int i = 0; i < 20; i++) {
        infer(&f, "digits");
        assert_int_equal(ledger_of(&f).jobs, busy.jobs);
    }
    assert_true(tenant(&f, "uid:7") >= busy.jobs);
    job.r.canceled = 1;
    assert_err(call_wait(&job), HTH_ECANCELED, "cancel");
    ledger after = ledger_of(&f);
    assert_int_equal(after.jobs, 0);
    assert_int_equal(after.weights, before.weights);
    assert_int_equal(tenant(&f, "uid:7"), 0);
    free(text);
    json_decref(q);
    fixture_close(&f);
}

// ---- newer versions

// Nobody waits for a newer version; when it is there only what differs was moved.
static void test_reload(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "m", DIGITS);
    assert_int_equal(infer(&f, "m"), 1);
    assert_int_equal(infer(&f, "m:1"), 1); // asked for by version, it stays beside the newer one
    ledger before = ledger_of(&f);
    put(f.store, "m", PARITY);
    for (int i = 0; i < 20; i++) {
        int version = infer(&f, "m");
        assert_true(version == 1 || version == 2);
        ledger_of(&f);
    }
    json_t *j = told(&f, "load", "{\"model\":\"m\"}"); // answers when it serves
    assert_int_equal(number(j, "version"), 2);
    assert_int_equal(number(j, "moved_bytes"), 0);
    json_decref(j);
    assert_int_equal(infer(&f, "m"), 2);
    assert_int_equal(infer(&f, "m:1"), 1);
    ledger after = ledger_of(&f);
    json_int_t moved = after.filled - before.filled;
    assert_int_equal(moved, row(&f, "m", 2, "resident_private_bytes"));
    assert_int_equal(row(&f, "m", 1, "resident_shared_bytes"),
                     row(&f, "m", 2, "resident_shared_bytes"));
    assert_true(moved > 0 && moved < before.weights / 2);
    json_decref(told(&f, "unload", "{\"model\":\"m:1\"}"));
    assert_int_equal(row(&f, "m", 1, "programs"), -1);
    assert_int_equal(infer(&f, "m"), 2);
    ledger_of(&f);
    fixture_close(&f);
}

// The older version is let go of when nobody asks for it by its version; a pin moves on.
static void test_reload_ends_the_older_one(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "m", PARITY);
    json_decref(told(&f, "load", "{\"model\":\"m\",\"pin\":true}"));
    ledger parity = ledger_of(&f);
    put(f.store, "m", DIGITS);
    json_decref(told(&f, "load", "{\"model\":\"m\"}"));
    assert_int_equal(row(&f, "m", 1, "programs"), -1);
    assert_true(row(&f, "m", 2, "pinned_bytes") > 0);
    put(f.store, "m", PARITY);
    json_decref(told(&f, "load", "{\"model\":\"m\"}"));
    same(ledger_of(&f), parity);
    fixture_close(&f);
}

// A newer version that does not fit the device is refused, with the reason; the older one goes on.
static void test_reload_fails(void **state)
{
    fixture f;
    call c;
    fixture_open(&f, "cpu:mem=24KiB,threads=1");
    put(f.store, "m", "tests/data/http/fixed.onnx");
    json_decref(told(&f, "load", "{\"model\":\"m\"}"));
    ledger before = ledger_of(&f);
    put(f.store, "m", MLP);
    assert_null(load_ask(&f, NULL, "load", "{\"model\":\"m\"}", &c));
    assert_int_equal(c.r.err, HTH_ETOOBIG);
    assert_non_null(strstr(c.r.detail, "a budget of 24.0 KiB"));
    same(ledger_of(&f), before);
    json_t *doc = told(&f, "loaded", "{}"), *m;
    int ready = 0, refused = 0;
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        const char *s = json_string_value(json_object_get(m, "state"));
        ready += number(m, "version") == 1 && strcmp(s, "READY") == 0;
        refused += number(m, "version") == 2 && strcmp(s, "UNAVAILABLE") == 0 &&
                   strstr(json_string_value(json_object_get(m, "reason")), "24.0 KiB") != NULL;
    }
    assert_true(ready == 1 && refused == 1);
    json_decref(doc);
    put(f.store, "m", "tests/data/http/fixed.onnx"); // a still newer one is tried again
    doc = told(&f, "load", "{\"model\":\"m\"}");
    assert_int_equal(number(doc, "version"), 3);
    json_decref(doc);
    fixture_close(&f);
}

static json_t *loaded_version(json_t *doc, int version)
{
    json_t *m;
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        if (number(m, "version") == version) {
            return m;
        }
    }
    return NULL;
}

// Opens the engine again on a device that has room for `one` of the digits' nets, not for two.
static void engine_for(fixture *f, ledger one)
{
    char device[64];
    hth_engine_close(f->engine);
    snprintf(device, sizeof device, "cpu:mem=%lld,threads=1",
             (long long)(one.weights + one.arena + 16 * 1024));
    assert_ok(hth_engine_open(&(hth_engine_config){.device = device}, f->store, &f->engine));
}

// A version that was removed takes no room from the next one, which serves the name.
static void test_import_after_removal(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "m", DIGITS);
    json_decref(told(&f, "load", "{\"model\":\"m\",\"pin\":true}"));
    engine_for(&f, ledger_of(&f));
    static const char *const ask[] = {"serving", "load"};
    for (int i = 0; i < 2; i++) {
        json_decref(told(&f, "load", "{\"model\":\"m\",\"pin\":true}"));
        assert_ok(hth_store_rm(f.store, "m", 0));
        put(f.store, "m", i == 0 ? UNTRAINED : DIGITS);
        json_decref(told(&f, ask[i], "{\"model\":\"m\"}")); // was refused: no room beside
        json_t *doc = told(&f, "loaded", "{}");
        assert_null(loaded_version(doc, i + 1));
        json_decref(doc);
        assert_int_equal(infer(&f, "m"), i + 2);
    }
    ledger_of(&f);
    fixture_close(&f);
}

// What was removed leaves the device without anybody asking for anything; the version before it
// serves the name.
static void test_removal(void **state)
{
    fixture f;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    ledger empty = ledger_of(&f);
    put(f.store, "m", DIGITS);
    put(f.store, "m", PARITY);
    json_decref(told(&f, "load", "{\"model\":\"m\"}"));
    json_decref(told(&f, "load", "{\"model\":\"m:1\"}"));
    assert_ok(hth_store_rm(f.store, "m", 2));
    json_t *doc = told(&f, "serving", "{\"model\":\"m\"}");
    assert_int_equal(number(doc, "version"), 0); // the next request brings version 1
    json_decref(doc);
    doc = told(&f, "loaded", "{}");
    assert_non_null(loaded_version(doc, 1));
    assert_null(loaded_version(doc, 2));
    json_decref(doc);
    assert_int_equal(infer(&f, "m"), 1);
    assert_err(infer_as(&f, NULL, "m:2", &c), HTH_ENOENT, "there are: m:1");
    assert_ok(hth_store_rm(f.store, "m", 0));
    json_decref(told(&f, "serving", "{\"model\":\"m\"}"));
    same(ledger_of(&f), empty);
    fixture_close(&f);
}

// A version that was refused, and then removed, is nobody's reason to refuse anything.
static void test_refused_and_removed(void **state)
{
    fixture f;
    call c;
    fixture_open(&f, "cpu:mem=24KiB,threads=1");
    put(f.store, "m", "tests/data/http/fixed.onnx");
    json_decref(told(&f, "load", "{\"model\":\"m\"}"));
    put(f.store, "m", MLP);
    assert_null(load_ask(&f, NULL, "load", "{\"model\":\"m\"}", &c));
    assert_int_equal(c.r.err, HTH_ETOOBIG);
    assert_ok(hth_store_rm(f.store, "m", 2));
    json_decref(told(&f, "load", "{\"model\":\"m:1\"}"));
    json_t *doc = told(&f, "loaded", "{}");
    assert_null(loaded_version(doc, 2));
    json_decref(doc);
    doc = told(&f, "serving", "{\"model\":\"m\"}");
    assert_int_equal(number(doc, "version"), 1);
    json_decref(doc);
    fixture_close(&f);
}

// ---- what does not fit

// Beside a pinned model another one is refused or waits; it is admitted when the pin ends.
static void test_not_now(void **state)
{
    fixture f;
    char device[64];
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", DIGITS);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    ledger one = ledger_of(&f);
    hth_engine_close(f.engine);
    json_int_t room = one.arena > 24 * 1024 ? one.arena : 24 * 1024;
    snprintf(device, sizeof device, "cpu:mem=%lld,threads=1",
             (long long)(one.weights + room + 4096));
    assert_ok(hth_engine_open(&(hth_engine_config){.device = device}, f.store, &f.engine));
    put(f.store, "mlp", MLP);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    ledger pinned = ledger_of(&f);
    assert_null(load_ask(&f, NULL, "load", "{\"model\":\"mlp\",\"wait\":false}", &c));
    assert_int_equal(c.r.err, HTH_ENODEVMEM);
    assert_non_null(strstr(c.r.detail, "fit now"));
    assert_non_null(strstr(c.r.detail, "pinned"));
    same(ledger_of(&f), pinned);
    infer(&f, "digits");
    same(ledger_of(&f), pinned);

    call waits = {.r = {.command = HTH_COMMAND_LOAD, .arguments = "{\"model\":\"mlp\"}"}};
    call_start(f.engine, &waits);
    infer(&f, "digits");
    assert_false(call_finished(&waits));
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    assert_ok(call_wait(&waits));
    hth_free(waits.r.json);
    assert_true(flag(&f, "mlp", "loaded"));
    ledger_of(&f);

    json_decref(
        told(&f, "unload", "{\"model\":\"mlp\"}")); // canceled, and still waiting at the end
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    waits = (call){.r = {.command = HTH_COMMAND_LOAD, .arguments = "{\"model\":\"mlp\"}"}};
    call_start(f.engine, &waits);
    waits.r.canceled = 1;
    infer(&f, "digits");
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    assert_err(call_wait(&waits), HTH_ECANCELED, "cancel");
    fixture_close(&f);
}

// A pinned model's program is not the one that goes when there are as many as there may be.
static void test_pin_stays(void **state)
{
    fixture f;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", DIGITS);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    assert_true(row(&f, "digits", 1, "pinned_bytes") > 0);
    for (int n = 2; n <= MANY; n++) {
        assert_ok(infer_many(&f, NULL, "digits", n, &c));
        free(c.out[0].data);
        assert_true(row(&f, "digits", 1, "pinned_bytes") > 0);
    }
    ledger_of(&f);
    fixture_close(&f);
}

// The pin ends though a request for another shape came last, and is not given twice.
static void test_unpin(void **state)
{
    fixture f;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", DIGITS);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    json_int_t pinned = row(&f, "digits", 1, "pinned_bytes");
    assert_ok(infer_many(&f, NULL, "digits", 2, &c));
    free(c.out[0].data);
    json_t *doc = told(&f, "load", "{\"model\":\"digits\"}");
    assert_true(json_is_true(json_object_get(doc, "pinned")));
    json_decref(doc);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    assert_int_equal(row(&f, "digits", 1, "pinned_bytes"), pinned);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":false}"));
    assert_int_equal(row(&f, "digits", 1, "pinned_bytes"), 0);
    fixture_close(&f);
}

// Nor does the pin go when a benchmark makes its program again with measured algorithms.
static void test_pin_and_bench(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", DIGITS);
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    json_decref(told(&f, "bench", "{\"model\":\"digits\",\"seconds\":0}"));
    assert_true(row(&f, "digits", 1, "pinned_bytes") > 0);
    assert_int_equal(row(&f, "digits", 1, "programs"), 1);
    ledger_of(&f);
    fixture_close(&f);
}

// A program that was planned for less than the device, because another model is pinned, serves on
// when a question that was about it has been answered.
static void test_pins_and_bench(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", DIGITS);
    put(f.store, "parity", PARITY);
    json_decref(told(&f, "load", "{\"model\":\"parity\",\"pin\":true}"));
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    for (int i = 0; i < 2; i++) {
        json_decref(told(&f, "bench", "{\"model\":\"digits\",\"seconds\":0}"));
        assert_true(row(&f, "digits", 1, "pinned_bytes") > 0);
        // where the fastest algorithms take little memory, there is no plan for half of it
        json_decref(told(&f, "bench", "{\"model\":\"digits\",\"seconds\":0,\"budget\":\"80%\"}"));
        assert_true(row(&f, "digits", 1, "pinned_bytes") > 0);
        assert_int_equal(row(&f, "digits", 1, "programs"), 1);
    }
    ledger_of(&f);
    fixture_close(&f);
}

// ---- many at once

typedef struct worker {
    pthread_t thread;
    fixture *f;
    int rounds, errors;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < w->rounds; i++) {
        call c;
        json_t *j = load_ask(w->f, NULL, "load", "{\"model\":\"digits\"}", &c);
        w->errors += j == NULL;
        json_decref(j);
        w->errors += infer_as(w->f, NULL, "digits", &c) != HTH_OK;
        free(c.out[0].data);
        j = load_ask(w->f, NULL, "unload", "{\"model\":\"digits\"}", &c);
        w->errors += j == NULL;
        json_decref(j);
    }
    return NULL;
}

static void test_threads(void **state)
{
    fixture f;
    worker w[8];
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", DIGITS);
    ledger empty = ledger_of(&f);
    for (int i = 0; i < 8; i++) {
        w[i] = (worker){.f = &f, .rounds = 64};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].errors, 0);
    }
    same(ledger_of(&f), empty);
    fixture_close(&f);
}

static void *client(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < w->rounds; i++) {
        call c;
        w->errors += infer_as(w->f, NULL, "digits", &c) != HTH_OK;
        free(c.out[0].data);
    }
    return NULL;
}

// Sixteen clients of a model: its weights once, and activations of those that run.
static void test_clients(void **state)
{
    fixture f;
    worker w[16];
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", DIGITS);
    infer(&f, "digits");
    ledger one = ledger_of(&f);
    for (int i = 0; i < 16; i++) {
        w[i] = (worker){.f = &f, .rounds = 50};
        assert_int_equal(pthread_create(&w[i].thread, NULL, client, &w[i]), 0);
    }
    ledger busy = ledger_of(&f);
    for (int i = 0; i < 16; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].errors, 0);
    }
    ledger after = ledger_of(&f);
    assert_int_equal(busy.weights, one.weights);
    assert_int_equal(after.weights, one.weights);
    assert_int_equal(after.filled, one.filled);
    assert_true(busy.arena <= 16 * one.arena);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load_and_unload),
                                       cmocka_unit_test(test_tenants),
                                       cmocka_unit_test(test_job),
                                       cmocka_unit_test(test_reload),
                                       cmocka_unit_test(test_reload_ends_the_older_one),
                                       cmocka_unit_test(test_reload_fails),
                                       cmocka_unit_test(test_import_after_removal),
                                       cmocka_unit_test(test_removal),
                                       cmocka_unit_test(test_refused_and_removed),
                                       cmocka_unit_test(test_not_now),
                                       cmocka_unit_test(test_pin_stays),
                                       cmocka_unit_test(test_unpin),
                                       cmocka_unit_test(test_pin_and_bench),
                                       cmocka_unit_test(test_pins_and_bench),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_clients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
