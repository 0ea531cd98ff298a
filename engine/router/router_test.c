// SPDX-License-Identifier: Apache-2.0
// Two CPU devices behind one engine: where models, copies and jobs go, what is answered over both,
// and what becomes of a device's work when it ends. Engines are threads and, where a device is to
// end, processes; the program is its own engine's process.
#include "engine/process/child.h"
#include "tests/rig/children.h"
#include "tests/rig/npy_data.h"
#include "tests/rig/train_job.h"

#include "base/settings.h"
#include "base/spin.h"
#include "engine/router/router.h"

#include <semaphore.h>
#include <signal.h>
#include <time.h>

#define TWO      "cpu:0,mem=96MiB,threads=1 cpu:1,mem=160MiB,threads=1"
#define LIMIT_NS 300000000000u // of everything that is waited for; far more than it takes

static hth_tensor digits;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void both_open(fixture *f, const char *devices, bool child)
{
    strcpy(f->dir, "/tmp/hearth-router-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_ok(hth_store_open(f->dir, true, false, &f->store));
    assert_ok(hth_job_paths_begin(f->store));
    hth_engine_config config = {
        .device = devices, .child_store = child ? f->dir : NULL, .resume = true};
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

static void digits_start(const fixture *f, const char *name, hth_request_tensor *in, call *c)
{
    *in = (hth_request_tensor){.name = NULL, .t = digits};
    *c = (call){.r = {.model = name, .inputs = in, .n_inputs = 1, .tenant = as_tenant}};
    call_start(f->engine, c);
}

static void digits_end(call *c)
{
    assert_ok(call_wait(c));
    assert_int_equal(c->out[0].shape.dim[0], digits.shape.dim[0]);
    free(c->out[0].data);
}

static void infer(const fixture *f, const char *name)
{
    hth_request_tensor in;
    call c;
    digits_start(f, name, &in, &c);
    digits_end(&c);
}

static void told_fails(const fixture *f, const char *query, const char *arguments, hth_err want,
                       const char *sentence)
{
    hth_err err;
    json_t *doc = ask((fixture *)f, query, arguments, &err);
    assert_null(doc);
    assert_err(err, want, sentence);
}

// .. at once, without asking a device
static void refused(const fixture *f, const char *query, const char *arguments,
                    const char *sentence)
{
    call c = {.r = {.command = hth_command_find(query), .arguments = arguments, .done = call_done}};
    assert_err(hth_engine_submit(f->engine, &c.r), HTH_EINVAL, sentence);
    assert_true(c.r.done == call_done);
}

static const char *text(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s != NULL ? s : "";
}

static json_int_t number(const json_t *doc, const char *key)
{
    assert_true(json_is_integer(json_object_get(doc, key)));
    return json_integer_value(json_object_get(doc, key));
}

// The row of a list that has `value` as its `key`.
static json_t *row_of(const json_t *list, const char *key, const char *value)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)list, i, row)
    {
        if (strcmp(text(row, key), value) == 0) {
            return row;
        }
    }
    return NULL;
}

// Where a model's version is loaded: "cpu:0", "cpu:1", "cpu:0 cpu:1", "".
static void where(const fixture *f, const char *name, char out[40])
{
    json_t *doc = told(f, "loaded", "{}"), *d;
    json_t *row = row_of(json_object_get(doc, "models"), "name", name);
    size_t i;
    out[0] = 0;
    json_array_foreach(json_object_get(row, "devices"), i, d)
    {
        snprintf(out + strlen(out), 40 - strlen(out), "%s%s", i > 0 ? " " : "",
                 json_string_value(d));
    }
    json_decref(doc);
}

static void expect_where(const fixture *f, const char *name, const char *want)
{
    char got[40];
    where(f, name, got);
    assert_string_equal(got, want);
}

// ---- threads

static void lists(void **state)
{
    assert_false(hth_router_several("cpu:threads=1"));
    assert_false(hth_router_several(" cpu "));
    assert_false(hth_router_several(NULL));
    assert_true(hth_router_several("cpu cuda:0"));
    assert_ok(hth_router_check(TWO));
    assert_err(hth_router_check("cpu cuda:0 cpu:0,mem=1GiB"), HTH_EINVAL, "cpu:0 is named twice");
    assert_err(hth_router_check("cpu gpu:0"), HTH_EINVAL, "unknown device 'gpu'");
    assert_err(
        hth_router_check("cpu:0 cpu:1 cpu:2 cpu:3 cpu:4 cpu:5 cpu:6 cpu:7 cpu:8 cpu:9 cpu:10 "
                         "cpu:11 cpu:12 cpu:13 cpu:14 cpu:15 cpu:16"),
        HTH_EINVAL, "more than 16");
    fixture f;
    strcpy(f.dir, "/tmp/hearth-router-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    assert_ok(hth_store_open(f.dir, true, false, &f.store));
    hth_engine_config config = {.device = "cpu:mem=64MiB cpu:1,mem=64MiB,color=red"};
    assert_err(hth_engine_open(&config, f.store, &f.engine), HTH_EINVAL, "no option 'color'");
    assert_null(f.engine);
    config.device = "cpu:mem=64MiB cpu:1,mem=4000TiB";
    assert_err(hth_engine_open(&config, f.store, &f.engine), HTH_EINVAL, "4000TiB");
    fixture_close(&f);
}

// The most room first, then beside what it shares weights with; questions about both devices.
static void placed(void **state)
{
    fixture f;
    both_open(&f, TWO, false);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    put(f.store, "twin", "tests/data/digits/digits.onnx");
    infer(&f, "digits");
    expect_where(&f, "digits", "cpu:1");
    infer(&f, "twin"); // the same contents
    expect_where(&f, "twin", "cpu:1");
    json_t *doc = told(&f, "load", "{\"model\":\"digits\",\"on\":\"cpu:0\"}");
    assert_string_equal(text(doc, "device"), "cpu:0");
    json_decref(doc);
    expect_where(&f, "digits", "cpu:0 cpu:1");
    refused(&f, "load", "{\"model\":\"digits\",\"on\":\"cpu:7\"}",
            "no device 'cpu:7' (there are: cpu:0, cpu:1)");
    told_fails(&f, "load", "{\"model\":\"none\"}", HTH_ENOENT, "none");
    static const char *const no_version[] = {"01", "+1", " 1", "-1", "0", "1 ", "", "9999999999"};
    for (size_t i = 0; i < sizeof no_version / sizeof *no_version; i++) {
        char args[60];
        snprintf(args, sizeof args, "{\"model\":\"digits:%s\"}", no_version[i]);
        told_fails(&f, "load", args, HTH_EINVAL, "is not a version of model 'digits'");
    }
    told_fails(&f, "models", NULL, HTH_ENOTSUP, "'models' is answered from the store");

    doc = told(&f, "devices", "{}");
    json_t *rows = json_object_get(doc, "devices");
    assert_int_equal(json_array_size(rows), 2);
    assert_int_equal(number(row_of(rows, "name", "cpu:0"), "budget_bytes"), 96 << 20);
    assert_int_equal(number(row_of(rows, "name", "cpu:1"), "budget_bytes"), 160 << 20);
    assert_string_equal(text(row_of(rows, "name", "cpu:1"), "state"), "up");
    json_decref(doc);

    doc = told(&f, "stats", "{}");
    json_t *models = json_object_get(doc, "models"), *m = row_of(models, "name", "digits");
    assert_int_equal(json_array_size(models), 2);
    assert_int_equal(number(m, "requests"), 1);
    assert_int_equal(number(json_object_get(doc, "ledger"), "budget_bytes"), 256 << 20);
    assert_int_equal(json_array_size(json_object_get(doc, "devices")), 2);
    json_decref(doc);
    doc = told(&f, "stats", "{\"model\":\"twin\"}");
    assert_int_equal(json_array_size(json_object_get(doc, "models")), 1);
    json_decref(doc);
    doc = told(&f, "latency", "{}");
    assert_int_equal(number(doc, "requests"), 2);
    assert_true(number(doc, "p50_ns") > 0 && number(doc, "p99_ns") >= number(doc, "p50_ns"));
    assert_true(number(doc, "longest_ns") >= number(doc, "p99_ns"));
    json_decref(doc);
    doc = told(&f, "bench", "{\"model\":\"digits\",\"seconds\":0.01,\"on\":\"cpu:0\"}");
    assert_string_equal(text(doc, "device"), "cpu:0");
    json_decref(doc);

    doc = told(&f, "unload", "{\"model\":\"digits\"}");
    assert_int_equal(number(doc, "unloaded"), 2);
    json_decref(doc);
    hth_err err;
    assert_null(ask(&f, "unload", "{\"model\":\"nobody\"}", &err));
    assert_int_equal(err, HTH_ENOENT);
    doc = told(&f, "latency", "{}"); // what was measured stays
    assert_int_equal(number(doc, "requests"), 2);
    json_decref(doc);
    expect_where(&f, "digits", "");
    infer(&f, "digits"); // its contents are where its twin is
    expect_where(&f, "digits", "cpu:1");
    fixture_close(&f);
}

// until_copied keeps a queue on the only device that has a model, until both answer.
static void until_copied(const fixture *f)
{
    enum { MANY = 200 };
    static call c[MANY];
    static hth_request_tensor in[MANY];
    char got[40] = "";
    uint64_t until = hth_real_after(LIMIT_NS);
    for (bool two = false, used = false; !two || !used;) {
        assert_true(hth_real_ns() < until);
        for (int i = 0; i < MANY; i++) {
            digits_start(f, "digits", &in[i], &c[i]);
        }
        for (int i = 0; i < MANY; i++) {
            digits_end(&c[i]);
        }
        where(f, "digits", got);
        two = strcmp(got, "cpu:0 cpu:1") == 0;
        json_t *doc = told(f, "stats", "{}"), *d;
        size_t i;
        used = json_array_size(json_object_get(doc, "devices")) == 2;
        json_array_foreach(json_object_get(doc, "devices"), i, d)
        {
            used = used && number(d, "arena_bytes") > 0;
        }
        json_decref(doc);
    }
}

// A queue on the only device that has a model makes a copy on the other, which then shares it.
static void copied(void **state)
{
    fixture f;
    assert_ok(hth_setting_set("devices.replica_queue", "4"));
    both_open(&f, TWO, false);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    infer(&f, "digits");
    expect_where(&f, "digits", "cpu:1");
    until_copied(&f);
    assert_ok(hth_setting_set("devices.replica_queue", "8"));
    fixture_close(&f);
}

typedef struct held {
    call c;
    sem_t begun, go_on;
} held;

static hth_err held_place(hth_request *request, hth_request_tensor *out, int n)
{
    held *h = request->ctx;
    sem_post(&h->begun);
    while (sem_wait(&h->go_on) != 0) {
    }
    return call_place(request, out, n);
}

// A canceled question to both devices ends on one that has not come to it, too.
static void canceled(void **state)
{
    fixture f;
    held h;
    hth_request_tensor in = {.name = NULL, .t = digits};
    sem_init(&h.begun, 0, 0);
    sem_init(&h.go_on, 0, 0);
    both_open(&f, TWO, false);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    infer(&f, "digits");
    h.c = (call){.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .place = held_place}};
    call_start(f.engine, &h.c);
    while (sem_wait(&h.begun) != 0) { // its device is not asked anything else meanwhile
    }
    call c = {.r = {.command = HTH_COMMAND_SERVING, .arguments = "{\"model\":\"digits\"}"}};
    call_start(f.engine, &c);
    c.r.canceled = 1;
    sem_post(&h.go_on);
    digits_end(&h.c);
    assert_err(call_wait(&c), HTH_ECANCELED, "canceled while it was queued");
    assert_null(c.r.json);
    fixture_close(&f);
    sem_destroy(&h.begun);
    sem_destroy(&h.go_on);
}

static char *job_text(const char *data, const char *name, double *want)
{
    char more[80];
    snprintf(more, sizeof more, "{\"save-as\":\"%s\",\"epochs\":1000000}", name);
    json_t *args = arguments_of(&image_net, data, more, want);
    char *out = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    return out;
}

// Jobs on both devices at once, and what is told of them.
static void trained(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS], loss[STEPS];
    witness one, two;
    hth_err err;
    both_open(&f, TWO, false);
    prepare(&f, &image_net, data);
    char *first = job_text(data, "one", want), *second = job_text(data, "two", want);
    train_three_steps(&f, &one, first);
    train_three_steps(&f, &two, second);
    witness_let_go();
    json_t *jobs = told(&f, "jobs", "{}");
    const char *a = text(row_of(jobs, "job", "one"), "device");
    const char *b = text(row_of(jobs, "job", "two"), "device");
    assert_true(a[0] != 0 && b[0] != 0 && strcmp(a, b) != 0);
    json_decref(jobs);
    as_tenant = "other"; // sees none of them, unless as an administrator
    for (int admin = 0; admin < 2; admin++) {
        as_admin = admin != 0;
        jobs = ask(&f, "jobs", "{}", &err);
        assert_ok(err);
        assert_int_equal(row_of(jobs, "job", "one") != NULL, as_admin);
        assert_int_equal(row_of(jobs, "job", "two") != NULL, as_admin);
        json_decref(jobs);
    }
    as_tenant = NULL;
    as_admin = false;
    json_t *doc = told(&f, "pause", "{\"job\":\"two\"}");
    assert_string_equal(text(doc, "state"), "paused");
    json_decref(doc);
    doc = told(&f, "job", "{\"job\":\"one\"}");
    assert_string_equal(text(doc, "state"), "running");
    assert_int_not_equal(text(doc, "device")[0], 0);
    json_decref(doc);
    json_decref(told(&f, "resume", "{\"job\":\"two\"}"));
    json_decref(told(&f, "cancel", "{\"job\":\"two\"}"));
    assert_int_equal(call_wait(&two.c), HTH_ECANCELED);
    json_decref(told(&f, "cancel", "{\"job\":\"one\"}"));
    assert_int_equal(call_wait(&one.c), HTH_ECANCELED);
    free(first);
    free(second);
    doc = train(&f, arguments_of(&image_net, data, "{\"on\":\"cpu:0\"}", want), &err);
    assert_non_null(doc);
    losses_of(doc, loss);
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(loss[i] - want[i]) <= 2e-4 * fabs(want[i]) + 1e-5);
    }
    json_decref(doc);
    refused(&f, "train", "{\"model\":\"net_momentum\",\"on\":\"cpu:9\"}", "no device 'cpu:9'");
    fixture_close(&f);
}

static bool has_checkpoint(const fixture *f)
{
    hth_manifest m;
    bool there = hth_store_get(f->store, "made.checkpoint", 0, &m) == HTH_OK;
    if (there) {
        hth_manifest_fini(&m);
    }
    return there;
}

static void limits_write(const fixture *f, const char *text)
{
    char path[100];
    snprintf(path, sizeof path, "%s/tenants", f->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_ok(hth_setting_set("tenant.file", path));
}

// A tenant's job that the end of a server interrupted, and the next server, with limits of tenants.
static void interrupted(fixture *f, char args[900], int epochs, const char *tenant,
                        const char *limits)
{
    char cwd[300];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(args, 900,
             "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
             "\"softmax-xent\",\"lr\":0.01,\"batch\":64,\"epochs\":%d,\"save-as\":\"made\","
             "\"checkpoint-every\":5,\"on\":\"cpu:0\"}",
             cwd, epochs);
    both_open(f, TWO, false);
    put(f->store, "new", "tests/data/digits/untrained.onnx");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args, .tenant = tenant}};
    call_start(f->engine, &c);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (!has_checkpoint(f)) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    hth_engine_close(f->engine);
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    limits_write(f, limits);
    hth_engine_config config = {.device = TWO, .resume = true};
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

// Jobs that the end of a server interrupted go on with the next one, unasked, as jobs of who
// submitted them. Who asks for one that works so takes it over.
static void resumed(void **state)
{
    fixture f;
    char args[900];
    interrupted(&f, args, 60, "alice", "alice jobs=1\n* jobs=0\n");
    json_t *tenants = told(&f, "tenants", "{}");
    const json_t *own = row_of(json_object_get(tenants, "tenants"), "name", "hearth");
    assert_true(own == NULL || (number(own, "jobs") == 0 && number(own, "refused") == 0));
    assert_non_null(row_of(json_object_get(tenants, "tenants"), "name", "alice"));
    json_decref(tenants);
    json_t *jobs = told(&f, "jobs", "{}");
    const json_t *row = row_of(jobs, "job", "made");
    assert_non_null(row);
    assert_int_not_equal(text(row, "device")[0], 0);
    json_decref(jobs);
    call again = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args, .tenant = "alice"}};
    assert_ok(call_run(f.engine, &again));
    hth_setting_reset();
    json_t *doc = json_loads(again.r.json, 0, NULL);
    assert_string_equal(text(doc, "saved_as"), "made");
    assert_int_equal(number(doc, "version"), 1);
    json_decref(doc);
    hth_free(again.r.json);
    fixture_close(&f);
}

// limits has tenants limited: "bob" may have no job, and "alice" next to no memory.
static void limits(const fixture *f)
{
    limits_write(f, "bob jobs=0\nalice memory=2KiB\n");
    json_decref(told(f, "tenants", "{\"read\":true}"));
}

// A request for a job at work that its device refuses changes nothing: who asks about the job, or
// cancels it, still gets where it is.
static void refused_beside(void **state)
{
    fixture f;
    char args[900];
    interrupted(&f, args, 1000000, NULL, "");
    limits(&f);
    for (int i = 0; i < 2; i++) {
        call c = {
            .r = {.command = HTH_COMMAND_TRAIN, .arguments = args, .tenant = "bob", .admin = true}};
        assert_err(call_run(f.engine, &c), HTH_EBUSY, "its limit is 0");
        json_t *doc = told(&f, "job", "{\"job\":\"made\"}");
        assert_string_equal(text(doc, "device"), "cpu:0");
        json_decref(doc);
        doc = told(&f, "devices", "{}");
        json_t *rows = json_object_get(doc, "devices");
        assert_int_equal(number(row_of(rows, "name", "cpu:0"), "jobs"), 1);
        assert_int_equal(number(row_of(rows, "name", "cpu:1"), "jobs"), 0);
        json_decref(doc);
    }
    json_decref(told(&f, "cancel", "{\"job\":\"made\"}"));
    uint64_t until = hth_real_after(LIMIT_NS);
    for (json_int_t left = 1; left > 0;) {
        assert_true(hth_real_ns() < until);
        json_t *doc = told(&f, "devices", "{}");
        left = number(row_of(json_object_get(doc, "devices"), "name", "cpu:0"), "jobs");
        json_decref(doc);
        nap();
    }
    assert_true(has_checkpoint(&f)); // it could be resumed
    hth_setting_reset();
    fixture_close(&f);
}

// What is too big for one tenant is not for the next.
static void refused_for_one(void **state)
{
    fixture f;
    hth_request_tensor in = {.name = NULL, .t = digits};
    both_open(&f, TWO, false);
    limits(&f);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .tenant = "alice"}};
    assert_err(call_run(f.engine, &c), HTH_ETOOBIG, "tenant 'alice' may hold 2048 bytes");
    call l = {.r = {.command = HTH_COMMAND_LOAD,
                    .arguments = "{\"model\":\"digits\"}",
                    .tenant = "alice"}};
    assert_err(call_run(f.engine, &l), HTH_ETOOBIG, "tenant 'alice' may hold 2048 bytes");
    json_t *doc = told(&f, "load", "{\"model\":\"digits\"}");
    assert_string_equal(text(doc, "device"), "cpu:1"); // the most room, as if nobody had asked
    json_decref(doc);
    infer(&f, "digits");
    hth_setting_reset();
    fixture_close(&f);
}

// A tenant for whom a model is too big keeps nobody's copies away: neither when it asks first, nor
// when it is answered first, where another one's request has brought the model.
static void copied_for_others(void **state)
{
    fixture f;
    hth_request_tensor in = {.name = NULL, .t = digits};
    assert_ok(hth_setting_set("devices.replica_queue", "4"));
    both_open(&f, TWO, false);
    limits(&f);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .tenant = "alice"}};
    assert_err(call_run(f.engine, &c), HTH_ETOOBIG, "tenant 'alice' may hold 2048 bytes");
    as_tenant = "bob";
    until_copied(&f);
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    in.t.shape.dim[3] /= 2;
    in.t.bytes /= 2;
    call bad = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .tenant = "bob"}};
    assert_int_equal(call_run(f.engine, &bad), HTH_EINVAL);
    as_tenant = "alice";
    infer(&f, "digits");
    as_tenant = "bob";
    until_copied(&f);
    as_tenant = NULL;
    hth_setting_reset();
    fixture_close(&f);
}

// What is set for a model holds on each device, whatever name it was asked for by there.
static void set_everywhere(void **state)
{
    static const char *const asked[] = {"{\"model\":\"digits:1\",\"on\":\"cpu:0\"}",
                                        "{\"model\":\"digits\",\"on\":\"cpu:1\"}"};
    fixture f;
    both_open(&f, TWO, false);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    json_decref(told(&f, "load", asked[0]));
    json_decref(told(&f, "load", asked[1]));
    json_decref(told(&f, "batching", "{\"model\":\"digits\",\"max\":3}"));
    for (int i = 0; i < 2; i++) {
        json_t *doc = told(&f, "model", asked[i]);
        assert_int_equal(number(json_object_get(doc, "batching"), "max"), 3);
        json_decref(doc);
    }
    fixture_close(&f);
}

// A device without room for a model's request beside what is pinned there: it does not wait for
// memory as long as another one has it.
static void room_elsewhere(void **state)
{
    fixture f;
    char devices[120];
    static float pixels[96];
    hth_request_tensor in = {
        .t = {.dtype = HTH_DT_F32, .shape = {2, {1, 96}}, .data = pixels, .bytes = sizeof pixels}};
    assert_ok(hth_setting_set("queue.memory_wait_ms", "3600000"));
    both_open(&f, TWO, false);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    put(f.store, "mlp", "tests/data/passes/mlp.onnx");
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"pin\":true}"));
    json_t *doc = told(&f, "stats", "{}"), *ledger = json_object_get(doc, "ledger");
    json_int_t arena = number(ledger, "compute_arena_bytes"),
               bytes = number(ledger, "weight_bytes") + (arena > 24576 ? arena : 24576) + 4096;
    json_decref(doc);
    hth_engine_close(f.engine);
    snprintf(devices, sizeof devices, "cpu:0,mem=64MiB,threads=1 cpu:1,mem=%lld,threads=1",
             (long long)bytes);
    hth_engine_config config = {.device = devices};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    json_decref(told(&f, "load", "{\"model\":\"mlp\",\"on\":\"cpu:1\"}"));
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"on\":\"cpu:1\",\"pin\":true}"));
    call c = {.r = {.model = "mlp", .inputs = &in, .n_inputs = 1, .timeout_us = 300000000}};
    assert_ok(call_run(f.engine, &c));
    free(c.out[0].data);
    doc = told(&f, "stats", "{\"model\":\"mlp\"}");
    const json_t *row = row_of(json_object_get(doc, "models"), "name", "mlp");
    assert_int_equal(number(row, "failures"), 1); // cpu:1 was asked first
    json_decref(doc);
    hth_setting_reset();
    fixture_close(&f);
}

// ---- processes

static void kill_others(pid_t spared)
{
    pid_t pid[8];
    for (int n = children_of(getpid(), pid, 8), i = 0; i < n; i++) {
        if (pid[i] != spared) {
            kill(pid[i], SIGKILL);
        }
    }
}

// Of two processes one is killed, at first once: its model is there again, and the other's never
// was away. Then as often as it comes up: its models move, and it does not matter any more.
static void killed(void **state)
{
    fixture f;
    pid_t pid[8];
    char got[40] = "";
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "20"));
    both_open(&f, TWO, true);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    put(f.store, "mlp", "tests/data/passes/mlp.onnx");
    infer(&f, "digits");
    expect_where(&f, "digits", "cpu:1");
    json_decref(told(&f, "load", "{\"model\":\"mlp\",\"on\":\"cpu:0\",\"pin\":true}"));
    assert_int_equal(children_of(getpid(), pid, 8), 2);
    qsort(pid, 2, sizeof *pid, child_by_start);
    pid_t stays = pid[0]; // the first device's was the first
    kill_others(stays);
    infer(&f, "digits");
    json_decref(told(&f, "model", "{\"model\":\"mlp\"}"));
    uint64_t until = hth_real_after(LIMIT_NS);
    while (strcmp(got, "cpu:0") != 0) {
        hth_request_tensor in;
        call c;
        assert_true(hth_real_ns() < until);
        kill_others(stays);
        digits_start(&f, "digits", &in, &c);
        hth_err err = call_wait(&c);
        assert_true(err == HTH_OK || err == HTH_EDEVLOST); // it may have begun when it was killed
        free(err == HTH_OK ? c.out[0].data : NULL);
        where(&f, "digits", got);
        nap();
    }
    infer(&f, "digits");
    assert_true(hth_engine_ready(f.engine));
    json_t *doc = told(&f, "devices", "{}");
    assert_int_equal(json_array_size(json_object_get(doc, "devices")), 2);
    assert_string_equal(text(row_of(json_object_get(doc, "devices"), "name", "cpu:0"), "state"),
                        "up");
    json_decref(doc);
    assert_int_equal(kill(stays, 0), 0);
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "10000"));
    fixture_close(&f);
}

// A job whose device's process is killed goes on there, or elsewhere, from its checkpoint, with the
// losses of one that was never interrupted.
static void killed_while_it_trains(void **state)
{
    fixture f;
    char cwd[300], args[2][900];
    pid_t pid[8];
    hth_manifest m;
    assert_non_null(getcwd(cwd, sizeof cwd));
    for (int i = 0; i < 2; i++) {
        snprintf(args[i], sizeof args[i],
                 "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
                 "\"softmax-xent\",\"lr\":0.01,\"batch\":64,\"epochs\":20,\"save-as\":\"%s\","
                 "\"checkpoint-every\":5}",
                 cwd, i == 0 ? "broken" : "whole");
    }
    both_open(&f, TWO, true);
    put(f.store, "new", "tests/data/digits/untrained.onnx");
    paths_named(f.store, args[0]); // the same file for both
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args[0]}};
    call_start(f.engine, &c);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (hth_store_get(f.store, "broken.checkpoint", 0, &m) != HTH_OK) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    hth_manifest_fini(&m);
    json_t *doc = told(&f, "job", "{\"job\":\"broken\"}");
    bool first = strcmp(text(doc, "device"), "cpu:0") == 0;
    json_decref(doc);
    assert_int_equal(children_of(getpid(), pid, 8), 2);
    qsort(pid, 2, sizeof *pid, child_by_start);
    kill(first ? pid[0] : pid[1], SIGKILL);
    assert_ok(call_wait(&c)); // goes on by itself, to its end
    hth_free(c.r.json);
    call whole = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args[1]}};
    assert_ok(call_run(f.engine, &whole));
    hth_free(whole.r.json);
    same_tensors(&f, "broken", "whole");
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(placed),
        cmocka_unit_test(copied),
        cmocka_unit_test(canceled),
        cmocka_unit_test(trained),
        cmocka_unit_test(resumed),
        cmocka_unit_test(refused_beside),
        cmocka_unit_test(refused_for_one),
        cmocka_unit_test(copied_for_others),
        cmocka_unit_test(set_everywhere),
        cmocka_unit_test(room_elsewhere),
        cmocka_unit_test(killed),
        cmocka_unit_test(killed_while_it_trains),
    };
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    if (!npy_data("tests/data/digits/images.npy", &digits)) {
        return 1;
    }
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    hth_free(digits.data);
    return rv;
}
