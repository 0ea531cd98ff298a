// SPDX-License-Identifier: Apache-2.0
// Limits of tenants: the file, and what an engine does with it.
#include "base/settings.h"
#include "runtime/tenants/tenant.h"
#include "runtime/tenants/tenant_rules.h"
#include "tests/rig/train_job.h"

#include <math.h>

#define DIGITS "tests/data/digits/digits.onnx"
#define MLP    "tests/data/passes/mlp.onnx"

static void test_rules(void **state)
{
    static const char text[] = "# who\n\nalice weight=2.5 memory=1MiB # more\r\n"
                               "  uid:7\twaiting=3 jobs=0\n* waiting=9 weight=0.5";
    hth_tenant_rules r;
    assert_ok(hth_tenant_rules_parse(text, sizeof text - 1, &r));
    assert_int_equal(r.n, 3);
    hth_tenant_limits l = hth_tenant_rules_of(&r, "alice");
    assert_true(l.weight == 2.5 && l.memory_bytes == 1 << 20 && l.waiting == HTH_TENANT_NEVER);
    l = hth_tenant_rules_of(&r, "uid:7");
    assert_true(l.weight == 1 && l.waiting == 3 && l.jobs == 0);
    l = hth_tenant_rules_of(&r, "bob");
    assert_true(l.weight == 0.5 && l.waiting == 9 && l.memory_bytes == HTH_TENANT_NEVER);
    hth_tenant_rules_fini(&r);
    l = hth_tenant_rules_of(&r, "bob");
    assert_true(l.weight == 1 && l.waiting == HTH_TENANT_NEVER);
    assert_ok(hth_tenant_rules_read("", &r));
    assert_int_equal(r.n, 0);
    assert_err(hth_tenant_rules_read("/no/such/file", &r), HTH_ENOENT, "/no/such/file");
}

static void test_mistakes(void **state)
{
    static const char *const bad[][2] = {
        {"a weight=0", "line 1: weight=0: not a number from"},
        {"a\n\nb weight=nan", "line 3: weight=nan"},
        {"a weight=1e9", "weight=1e9"},
        {"a memory=many", "many"},
        {"a waiting=-1", "waiting=-1"},
        {"a waiting=1.5", "not a whole number"},
        {"a jobs=", "jobs=: not a number"},
        {"a speed=3", "'speed' is not one of"},
        {"a fast", "'fast' is not one of weight=N"},
        {"weight=2", "not a tenant's name"},
        {"a\na jobs=1", "line 2: 'a' has two lines"},
        {"012345678901234567890123456789012345678901234567890123456789012345",
         "not a tenant's name"}};
    hth_tenant_rules r;
    char line[600];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_err(hth_tenant_rules_parse(bad[i][0], strlen(bad[i][0]), &r), HTH_EINVAL, bad[i][1]);
        assert_null(r.list);
    }
    memset(line, 'a', sizeof line);
    assert_err(hth_tenant_rules_parse(line, sizeof line, &r), HTH_EINVAL, "line 1");
    assert_ok(hth_tenant_rules_parse(line, HTH_TOKEN_NAME - 1, &r)); // as a token may be called
    hth_tenant_rules_fini(&r);
    assert_err(hth_tenant_rules_parse("a\0b", 3, &r), HTH_EINVAL, "zero byte");
}

// ---- an engine

static void limits_write(const fixture *f, const char *text)
{
    char path[100];
    snprintf(path, sizeof path, "%s.tenants", f->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_ok(hth_setting_set("tenant.file", path));
}

static void engine_again(fixture *f, const char *device)
{
    hth_engine_close(f->engine);
    assert_ok(hth_engine_open(&(hth_engine_config){.device = device, .event = events_event},
                              f->store, &f->engine));
}

static void rig(fixture *f, const char *device, const char *limits)
{
    fixture_open(f, device);
    put(f->store, "digits", DIGITS);
    put(f->store, "parity", "tests/data/digits/digits-parity.onnx");
    put(f->store, "mlp", MLP);
    limits_write(f, limits);
    engine_again(f, device);
}

static void rig_close(fixture *f)
{
    char path[100];
    snprintf(path, sizeof path, "%s.tenants", f->dir);
    fixture_close(f);
    unlink(path);
    hth_setting_reset();
}

static hth_err request(fixture *f, const char *tenant, const char *what, const char *arguments)
{
    call c = {.r = {.command = hth_command_find(what), .arguments = arguments, .tenant = tenant}};
    hth_err err = call_run(f->engine, &c);
    hth_free(c.r.json);
    return err;
}

// request_admin is the same of an administrator.
static hth_err request_admin(fixture *f, const char *tenant, const char *what,
                             const char *arguments)
{
    call c = {.r = {.command = hth_command_find(what),
                    .arguments = arguments,
                    .tenant = tenant,
                    .admin = true}};
    hth_err err = call_run(f->engine, &c);
    hth_free(c.r.json);
    return err;
}

// A figure of a tenant; -1: null or none.
static json_int_t has(fixture *f, const char *tenant, const char *key)
{
    json_t *doc = told(f, "tenants", NULL), *t;
    json_int_t v = -1;
    size_t i;
    json_array_foreach(json_object_get(doc, "tenants"), i, t)
    {
        const json_t *it = json_object_get(t, key);
        bool same = strcmp(json_string_value(json_object_get(t, "name")), tenant) == 0;
        v = same && json_is_integer(it) ? json_integer_value(it) : v;
    }
    json_decref(doc);
    return v;
}

static json_int_t figure(fixture *f, const char *group, const char *key)
{
    json_t *doc = told(f, "stats", NULL);
    json_int_t v = json_integer_value(json_object_get(json_object_get(doc, group), key));
    json_decref(doc);
    return v;
}

// until_waiting waits until n requests wait for memory. Those in the queue count as waiting, too,
// but not while they are tried for the first time.
static void until_waiting(fixture *f, int n)
{
    while (figure(f, "memory_waits", "requests") != n) {
        usleep(1000);
    }
}

#define MANY 64 // samples of a model whose arena is larger than another's weights

static float pixels[MANY * 64];

static call call_of(const char *tenant, const char *model, hth_request_tensor *in)
{
    bool mlp = strcmp(model, "mlp") == 0;
    int64_t n = strcmp(model, "digits64") == 0 ? MANY : 1;
    *in = (hth_request_tensor){
        .t = {.dtype = HTH_DT_F32, .data = pixels, .bytes = mlp ? 384 : 256 * (size_t)n}};
    in->t.shape = mlp ? (hth_shape){2, {1, 96}} : (hth_shape){4, {n, 1, 8, 8}};
    model = n == MANY ? "digits" : model;
    return (call){.r = {.model = model, .inputs = in, .n_inputs = 1, .tenant = tenant}};
}

static hth_err infer(fixture *f, const char *tenant, const char *model)
{
    hth_request_tensor in;
    call c = call_of(tenant, model, &in);
    hth_err err = call_run(f->engine, &c);
    free(c.out[0].data);
    return err;
}

// What a tenant's limit of requests that wait refuses is told to it, and costs nobody else
// anything.
static void test_waiting(void **state)
{
    fixture f;
    call c[4];
    hth_request_tensor in[4];
    rig(&f, "cpu:mem=64MiB,threads=1", "alice waiting=2\nbob waiting=0\n");
    assert_ok(infer(&f, "alice", "digits"));
    assert_err(infer(&f, "bob", "digits"), HTH_EBUSY,
               "tenant 'bob' has 0 requests waiting, its limit is 0");
    json_int_t weights, arena;
    json_t *doc = told(&f, "stats", NULL), *l = json_object_get(doc, "ledger");
    weights = json_integer_value(json_object_get(l, "weight_bytes"));
    arena = json_integer_value(json_object_get(l, "compute_arena_bytes"));
    json_decref(doc);
    char device[64];
    arena = arena > 24 * 1024 ? arena : 24 * 1024;
    snprintf(device, sizeof device, "cpu:mem=%lld,threads=1", (long long)(weights + arena + 4096));
    engine_again(&f, device);
    assert_ok(request(&f, NULL, "load", "{\"model\":\"digits\",\"pin\":true}"));
    for (int i = 0; i < 2; i++) { // they wait for memory
        c[i] = call_of("alice", "mlp", &in[i]);
        call_start(f.engine, &c[i]);
    }
    until_waiting(&f, 2);
    assert_int_equal(has(&f, "alice", "waiting"), 2);
    assert_int_equal(has(&f, "alice", "waiting_limit"), 2);
    assert_err(infer(&f, "alice", "digits"), HTH_EBUSY, "'alice' has 2 requests waiting");
    assert_ok(infer(&f, "carol", "digits"));
    assert_int_equal(has(&f, "alice", "refused"), 1);
    assert_int_equal(has(&f, "carol", "waiting_limit"), -1);
    limits_write(&f, "alice waiting=3\n");
    assert_ok(request(&f, NULL, "tenants", "{\"read\":true}"));
    assert_ok(infer(&f, "alice", "digits"));
    limits_write(&f, "alice waiting=x\n"); // a mistake changes nothing
    assert_err(request(&f, NULL, "tenants", "{\"read\":true}"), HTH_EINVAL, "line 1");
    assert_int_equal(has(&f, "alice", "waiting_limit"), 3);
    assert_ok(request(&f, NULL, "unload", "{\"model\":\"digits\"}"));
    for (int i = 0; i < 2; i++) {
        assert_ok(call_wait(&c[i]));
        free(c[i].out[0].data);
    }
    assert_int_equal(has(&f, "alice", "waiting"), 0);
    assert_true(has(&f, "alice", "run_ns") > 0);
    rig_close(&f);
}

// Within its limit a tenant's models take turns; others' stay.
static void test_memory(void **state)
{
    fixture f;
    char limits[100];
    rig(&f, "cpu:mem=64MiB,threads=1", "");
    assert_ok(infer(&f, "alice", "digits"));
    json_int_t one = has(&f, "alice", "memory_bytes");
    assert_true(one > 100000);
    assert_ok(infer(&f, "bob", "mlp"));
    json_int_t bobs = has(&f, "bob", "memory_bytes");
    snprintf(limits, sizeof limits, "alice memory=%lld\n", (long long)one + 1000);
    limits_write(&f, limits);
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    assert_ok(infer(&f, "bob", "mlp"));
    for (int i = 0; i < 6; i++) {
        assert_ok(infer(&f, "alice", i % 2 == 0 ? "digits" : "parity"));
        assert_true(has(&f, "alice", "memory_bytes") <= one + 1000);
        assert_int_equal(has(&f, "bob", "memory_bytes"), bobs);
    }
    assert_int_equal(has(&f, "alice", "memory_limit"), one + 1000);

    // What others have on the device is theirs, whoever asks for it.
    json_int_t mine = has(&f, "alice", "memory_bytes");
    assert_ok(infer(&f, "alice", "mlp"));
    assert_int_equal(has(&f, "alice", "memory_bytes"), mine);

    // A pin, and then there is no room for another: not now, until it goes.
    assert_ok(hth_setting_set("queue.memory_wait_ms", "20"));
    assert_ok(request(&f, "alice", "load", "{\"model\":\"digits\",\"pin\":true}"));
    assert_err(infer(&f, "alice", "parity"), HTH_ENODEVMEM, "tenant 'alice'");
    assert_ok(request(&f, "alice", "load", "{\"model\":\"digits\",\"unpin\":true}"));
    assert_ok(infer(&f, "alice", "parity"));

    limits_write(&f, "alice memory=2KiB\n");
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    assert_err(infer(&f, "alice", "digits"), HTH_ETOOBIG, "tenant 'alice' may hold 2048 bytes");
    assert_ok(infer(&f, "bob", "digits"));
    assert_ok(infer(&f, "alice", "digits")); // bob's
    json_t *doc = told(&f, "stats", NULL);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(doc, "ledger"), "difference_bytes")), 0);
    json_decref(doc);
    rig_close(&f);
}

// Two programs of a model hold its weights together: neither one going makes room for what the
// other one holds, and looking for more to let go of ends.
static void test_memory_of_many_programs(void **state)
{
    fixture f;
    char limits[100];
    rig(&f, "cpu:mem=64MiB,threads=1", "");
    assert_ok(infer(&f, "alice", "digits"));
    assert_ok(infer(&f, "alice", "digits64"));
    json_int_t both = has(&f, "alice", "memory_bytes");
    snprintf(limits, sizeof limits, "alice memory=%lld\n", (long long)both + 1000);
    limits_write(&f, limits);
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    for (int i = 0; i < 3; i++) {
        assert_ok(infer(&f, "alice", "digits"));
        assert_ok(infer(&f, "alice", "digits64"));
        assert_ok(infer(&f, "alice", "parity"));
        assert_true(has(&f, "alice", "memory_bytes") <= both + 1000);
    }
    rig_close(&f);
}

// A model for which a tenant's own pin leaves too little waits for that, and for nothing else:
// no weights are moved meanwhile, nobody else's leave, and no memory is kept for it.
static void test_behind_own_pin(void **state)
{
    fixture f;
    char limits[100];
    hth_request_tensor in;
    rig(&f, "cpu:mem=64MiB,threads=1", "");
    put(f.store, "new", "tests/data/digits/untrained.onnx");
    assert_ok(infer(&f, "alice", "digits64"));
    json_int_t arena = figure(&f, "ledger", "compute_arena_bytes");
    assert_true(arena > 40000); // "mlp" would do with less
    json_int_t limit = has(&f, "alice", "memory_bytes") + 4000;
    snprintf(limits, sizeof limits, "alice memory=%lld\n", (long long)limit);
    limits_write(&f, limits);
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    assert_ok(infer(&f, "alice", "mlp"));
    assert_ok(infer(&f, "alice", "digits64"));
    assert_ok(request(&f, "alice", "load", "{\"model\":\"digits\",\"pin\":true}"));
    assert_ok(infer(&f, "bob", "new"));
    call c = call_of("alice", "mlp", &in);
    call_start(f.engine, &c);
    until_waiting(&f, 1);
    json_int_t fills = figure(&f, "residency", "fills"),
               evictions = figure(&f, "residency", "evictions");
    for (int i = 0; i < 20; i++) {
        assert_ok(infer(&f, "bob", "new"));
    }
    assert_false(call_finished(&c));
    assert_int_equal(figure(&f, "residency", "fills"), fills);
    assert_int_equal(figure(&f, "residency", "evictions"), evictions);
    assert_int_equal(figure(&f, "memory_waits", "requests"), 1);
    assert_int_equal(figure(&f, "memory_waits", "bytes"), 0);
    assert_in_range(has(&f, "alice", "memory_bytes"), 1, limit);
    assert_ok(request(&f, "alice", "load", "{\"model\":\"digits\",\"unpin\":true}"));
    assert_ok(call_wait(&c));
    free(c.out[0].data);
    assert_in_range(has(&f, "alice", "memory_bytes"), 1, limit);
    rig_close(&f);
}

// A load that waits for its tenant's pin is done when the tenant may have more.
static void test_load_and_a_higher_limit(void **state)
{
    fixture f;
    char limits[100];
    rig(&f, "cpu:mem=64MiB,threads=1", "");
    assert_ok(infer(&f, "alice", "digits"));
    snprintf(limits, sizeof limits, "alice memory=%lld\n",
             (long long)has(&f, "alice", "memory_bytes") + 1000);
    limits_write(&f, limits);
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    assert_ok(request(&f, "alice", "load", "{\"model\":\"digits\",\"pin\":true}"));
    call c = {.r = {.command = HTH_COMMAND_LOAD,
                    .arguments = "{\"model\":\"parity\"}",
                    .tenant = "alice"}};
    call_start(f.engine, &c);
    assert_ok(infer(&f, "alice", "digits"));
    assert_false(call_finished(&c));
    limits_write(&f, "alice memory=32MiB\n");
    assert_ok(request(&f, NULL, "tenants", "{\"read\":true}"));
    assert_ok(call_wait(&c));
    hth_free(c.r.json);
    rig_close(&f);
}

// until_queued waits until a job is queued, for that reason.
static void until_queued(fixture *f, const char *job, const char *why)
{
    char args[100];
    snprintf(args, sizeof args, "{\"job\":\"%s\"}", job);
    for (bool queued = false; !queued;) {
        json_t *row = told(f, "job", args);
        const char *said = json_string_value(json_object_get(row, "why"));
        queued = strcmp(json_string_value(json_object_get(row, "state")), "queued") == 0 &&
                 said != NULL && strcmp(said, why) == 0;
        json_decref(row);
    }
}

// until_has waits until a tenant's figure is no longer 0, or `job` ends; NULL: none.
static void until_has(fixture *f, const char *tenant, const char *key, call *job)
{
    for (uint64_t seen = 0; has(f, tenant, key) <= 0 && (job == NULL || !call_finished(job));) {
        events_wait(&seen);
    }
}

// Jobs by number, and by their memory.
static void test_jobs(void **state)
{
    fixture f;
    char data[200], limits[100];
    double want[STEPS];
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    prepare(&f, &unet, data);
    limits_write(&f, "alice jobs=1\nbob memory=4KiB\n");
    engine_again(&f, "cpu:mem=64MiB,threads=2");
    json_t *q = arguments_of(&unet, data, "{\"epochs\": 100000, \"plan-ms\": 50}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    call job = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .tenant = "alice"}};
    call_start(f.engine, &job);
    until_has(&f, "alice", "memory_bytes", NULL);
    assert_int_equal(has(&f, "alice", "jobs"), 1);
    assert_err(request(&f, "alice", "train", text), HTH_EBUSY, ""); // the same one
    json_object_set_new(q, "save-as", json_string("other"));
    char *other = json_dumps(q, JSON_COMPACT);
    json_object_set_new(q, "save-as", json_string("third"));
    char *third = json_dumps(q, JSON_COMPACT);
    call queued = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = third, .tenant = "alice"}};
    call_start(f.engine, &queued); // one more than may be at work
    until_queued(&f, "third", "tenant 'alice' has 1 of 1 jobs running");
    assert_err(request(&f, "bob", "train", other), HTH_ETOOBIG, "tenant 'bob' may hold 4096 bytes");
    json_int_t held = has(&f, "alice", "memory_bytes"), less = held / 4 * 3;
    snprintf(limits, sizeof limits, "alice jobs=1\nbob memory=4KiB\ncarol memory=%lld\n",
             (long long)less);
    limits_write(&f, limits);
    assert_ok(request(&f, NULL, "tenants", "{\"read\":true}"));
    call small = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = other, .tenant = "carol"}};
    call_start(f.engine, &small); // planned for what it may have
    until_has(&f, "carol", "memory_bytes", &small);
    if (call_finished(&small)) {
        fail_msg("%s", small.r.detail);
    }
    assert_in_range(has(&f, "carol", "memory_bytes"), 1, less);
    assert_int_equal(has(&f, "alice", "memory_bytes"), held);
    job.r.canceled = 1;
    assert_err(call_wait(&job), HTH_ECANCELED, "cancel");
    until_has(&f, "alice", "memory_bytes", &queued); // its turn comes
    assert_false(call_finished(&queued));
    assert_in_range(has(&f, "alice", "memory_bytes"), 1, held);
    small.r.canceled = queued.r.canceled = 1;
    assert_err(call_wait(&queued), HTH_ECANCELED, "cancel");
    assert_err(call_wait(&small), HTH_ECANCELED, "cancel");
    assert_int_equal(has(&f, "alice", "jobs"), 0);
    free(text);
    free(other);
    free(third);
    json_decref(q);
    rig_close(&f);
}

// A job that goes on without its client stays its submitter's: what has it go on is refused what
// the submitter may not have, and charges nobody else; the end of a server takes nothing away.
static void test_jobs_that_go_on(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    const char *limits = "alice jobs=1\n* jobs=0\n";
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    prepare(&f, &mlp, data);
    limits_write(&f, limits);
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    json_t *q = arguments_of(&mlp, data, "{\"epochs\": 100000000, \"plan-ms\": 50}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_object_set_new(q, "save-as", json_string("other"));
    char *other = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    call job = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .tenant = "alice"}};
    call_start(f.engine, &job);
    until_has(&f, "alice", "memory_bytes", NULL);
    assert_ok(request(&f, "alice", "pause", "{\"job\":\"result\"}"));
    job.r.canceled = 1;
    assert_err(call_wait(&job), HTH_ECANCELED, "stays paused");
    assert_int_equal(has(&f, "alice", "jobs"), 0);

    call second = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = other, .tenant = "alice"}};
    call_start(f.engine, &second);
    until_has(&f, "alice", "jobs", NULL);
    until_has(&f, "alice", "memory_bytes", NULL);
    assert_ok(request(&f, "alice", "resume", "{\"job\":\"result\"}"));
    until_queued(&f, "result", "tenant 'alice' has 1 of 1 jobs running");
    assert_ok(request(&f, "alice", "pause", "{\"job\":\"result\"}"));
    second.r.canceled = 1;
    assert_err(call_wait(&second), HTH_ECANCELED, "");
    assert_err(request(&f, "bob", "resume", "{\"job\":\"result\",\"tenant\":\"bob\"}"), HTH_EDENIED,
               "another tenant");
    assert_ok(request_admin(&f, "bob", "resume", "{\"job\":\"result\",\"tenant\":\"bob\"}"));
    assert_int_equal(has(&f, "alice", "jobs"), 1);
    until_has(&f, "alice", "memory_bytes", NULL);

    hth_engine_close(f.engine);
    hth_engine_config config = {
        .device = "cpu:mem=64MiB,threads=1", .resume = true, .event = events_event};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    assert_int_equal(has(&f, "alice", "jobs"), 1);
    until_has(&f, "alice", "memory_bytes", NULL);
    assert_true(has(&f, "hearth", "jobs") <= 0 && has(&f, "hearth", "memory_bytes") <= 0);
    call again = {.r = {.command = HTH_COMMAND_TRAIN,
                        .arguments = "{\"job\":\"result\"}",
                        .tenant = "alice"}};
    call_start(f.engine, &again); // takes it over: no second job
    until_has(&f, "alice", "jobs", NULL);
    assert_false(call_finished(&again));
    assert_ok(request(&f, "alice", "cancel", "{\"job\":\"result\"}"));
    assert_err(call_wait(&again), HTH_ECANCELED, "was canceled");
    assert_int_equal(has(&f, "alice", "jobs"), 0);
    free(text);
    free(other);
    rig_close(&f);
}

// Steps of jobs are charged by what they take: weights 3 and 1 are three quarters and one of the
// time, of jobs whose steps take differently long.
static void test_job_weights(void **state)
{
    fixture f;
    char slow[200], quick[200];
    double want[STEPS];
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    prepare(&f, &unet, slow);
    prepare(&f, &mlp, quick);
    limits_write(&f, "alice weight=3\nbob weight=1\n");
    engine_again(&f, "cpu:mem=64MiB,threads=1");
    json_t *q = arguments_of(&unet, slow, "{\"epochs\": 1000000, \"plan-ms\": 50}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    call one = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .tenant = "alice"}};
    q = arguments_of(&mlp, quick, "{\"epochs\": 100000000, \"plan-ms\": 50, \"save-as\": \"b\"}",
                     want);
    char *other = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    call two = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = other, .tenant = "bob"}};
    call_start(f.engine, &one);
    call_start(f.engine, &two);
    until_has(&f, "alice", "run_ns", NULL);
    until_has(&f, "bob", "run_ns", NULL);
    int64_t a = has(&f, "alice", "run_ns"), b = has(&f, "bob", "run_ns"), ra = 0, rb = 0;
    // Nobody is ahead by more than a slice, whatever its length: on a busy machine, where others
    // lengthen some, the shares need longer to show.
    double share = 0;
    for (uint64_t seen = 0; share < 0.72 || share > 0.78 || ra + rb < 2000000000;) {
        ra = has(&f, "alice", "run_ns") - a;
        rb = has(&f, "bob", "run_ns") - b;
        share = (double)ra / (double)(ra + rb + 1);
        if (ra + rb > 60000000000) {
            fail_msg("%.3f of the time, not 0.75", share);
        }
        events_wait(&seen);
    }
    one.r.canceled = two.r.canceled = 1;
    assert_err(call_wait(&one), HTH_ECANCELED, "cancel");
    assert_err(call_wait(&two), HTH_ECANCELED, "cancel");
    free(text);
    free(other);
    rig_close(&f);
}

// Shares of late: half of the last 10 s is half, and fades when nothing more comes.
static void shares_of_late(void **state)
{
    hth_tenant t = {.name = "alice"};
    double device, link;
    uint64_t now_ns = 1;
    for (int i = 0; i < 10000; i++) { // 100 s
        now_ns += 10000000u;
        hth_tenant_ran(&t, 5000000u, 1000000u, now_ns);
    }
    hth_tenant_share(&t, now_ns, &device, &link);
    assert_true(fabs(device - 0.5) < 0.001 && fabs(link - 0.1) < 0.001);
    hth_tenant_share(&t, now_ns + HTH_TENANT_LATELY_NS, &device, &link);
    assert_true(fabs(device - 0.5 * exp(-1)) < 0.001);
    hth_tenant_ran(&t, 3600000000000u, 0, now_ns);
    hth_tenant_share(&t, now_ns, &device, &link);
    assert_true(device == 1);
    assert_ptr_equal(hth_tenant_of_flow(&t.flow), &t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_weights),    cmocka_unit_test(test_rules),
        cmocka_unit_test(test_mistakes),       cmocka_unit_test(test_waiting),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_memory_of_many_programs),
        cmocka_unit_test(test_behind_own_pin), cmocka_unit_test(test_load_and_a_higher_limit),
        cmocka_unit_test(test_jobs),           cmocka_unit_test(test_jobs_that_go_on),
        cmocka_unit_test(shares_of_late)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
