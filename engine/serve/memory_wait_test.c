// SPDX-License-Identifier: Apache-2.0
// Requests whose model does not fit beside what others hold: they wait, nobody stands after them,
// and they end with the memory, with their time, with their sender or with the server.
#include "base/clock.h"
#include "base/settings.h"
#include "base/spin.h"
#include "tests/rig/train_job.h"

#define DIGITS "tests/data/digits/digits.onnx"
#define MLP    "tests/data/passes/mlp.onnx"

static float pixels[128];

// One sample for "digits" or "mlp".
static call call_of(const char *model, hth_request_tensor *in)
{
    for (int i = 0; i < 96; i++) {
        pixels[i] = (float)(i * 37 % 16) / 16;
    }
    bool digits = strcmp(model, "digits") == 0;
    *in = (hth_request_tensor){
        .t = {.dtype = HTH_DT_F32, .shape = {2, {1, 96}}, .data = pixels, .bytes = 384}};
    if (digits) {
        in->t.shape = (hth_shape){4, {1, 1, 8, 8}};
        in->t.bytes = 256;
    }
    return (call){.r = {.model = model, .inputs = in, .n_inputs = 1}};
}

// Two samples for "digits".
static call call_of_two(hth_request_tensor *in)
{
    call c = call_of("digits", in);
    in->t.shape.dim[0] = 2;
    in->t.bytes = sizeof pixels;
    return c;
}

static hth_err infer(fixture *f, const char *model, uint64_t timeout_us)
{
    hth_request_tensor in;
    call c = call_of(model, &in);
    c.r.timeout_us = timeout_us;
    hth_err err = call_run(f->engine, &c);
    free(c.out[0].data);
    return err;
}

static json_int_t number_at(fixture *f, const char *group, const char *key)
{
    json_t *doc = told(f, "stats", "{}");
    const json_t *v = json_object_get(json_object_get(doc, group), key);
    assert_true(json_is_integer(v));
    json_int_t n = json_integer_value(v);
    json_decref(doc);
    return n;
}

static void until_waiting(fixture *f, int n)
{
    while (number_at(f, "memory_waits", "requests") != n) {
        usleep(1000);
    }
}

// The real clock, put forward.
static _Atomic uint64_t ahead_ns;

static uint64_t ahead(void *ctx)
{
    return hth_real_ns() + atomic_load((_Atomic uint64_t *)ctx);
}

// expires: a request for "mlp", which is to wait as the n-th, ends so when that many seconds are
// over, however slow the machine is; timeout_us 0: not its own.
static void expires(fixture *f, int n, uint64_t timeout_us, uint64_t seconds, hth_err err,
                    const char *words)
{
    hth_request_tensor in;
    call c = call_of("mlp", &in);
    c.r.timeout_us = timeout_us;
    call_start(f->engine, &c);
    until_waiting(f, n);
    atomic_fetch_add(&ahead_ns, seconds * 1000000000u);
    until_waiting(f, n - 1); // whoever asks has the engine look at its clock
    assert_err(call_wait(&c), err, words);
}

// Pins "digits", for one sample or for two.
static void pin(fixture *f, bool two)
{
    hth_request_tensor in;
    call c = call_of_two(&in);
    assert_ok(two ? call_run(f->engine, &c) : HTH_OK);
    free(c.out[0].data);
    json_decref(told(f, "load", "{\"model\":\"digits\",\"pin\":true}"));
}

// A device with room for nothing but "digits", which is pinned.
static void rig_of(fixture *f, bool two)
{
    char device[64];
    fixture_open(f, "cpu:mem=64MiB,threads=1");
    put(f->store, "digits", DIGITS);
    put(f->store, "mlp", MLP);
    pin(f, two);
    json_int_t weights = number_at(f, "ledger", "weight_bytes"),
               arena = number_at(f, "ledger", "compute_arena_bytes");
    hth_engine_close(f->engine);
    arena = arena > 24 * 1024 ? arena : 24 * 1024;
    snprintf(device, sizeof device, "cpu:mem=%lld,threads=1", (long long)(weights + arena + 4096));
    assert_ok(
        hth_engine_open(&(hth_engine_config){.device = device, .queue = 16}, f->store, &f->engine));
    pin(f, two);
}

static void rig(fixture *f)
{
    rig_of(f, false);
}

// Three wait; others are served meanwhile; all are answered when the pin ends.
static void test_until_there_is_room(void **state)
{
    fixture f;
    call c[3];
    hth_request_tensor in[3];
    rig(&f);
    for (int i = 0; i < 3; i++) {
        c[i] = call_of("mlp", &in[i]);
        call_start(f.engine, &c[i]);
    }
    until_waiting(&f, 3);
    assert_true(number_at(&f, "memory_waits", "bytes") > 20000);
    for (int i = 0; i < 50; i++) {
        assert_ok(infer(&f, "digits", 0));
        assert_false(call_finished(&c[0]) || call_finished(&c[1]) || call_finished(&c[2]));
    }
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"unpin\":true}"));
    for (int i = 0; i < 3; i++) {
        assert_ok(call_wait(&c[i]));
        assert_int_equal(memcmp(c[i].out[0].data, c[0].out[0].data, c[0].out[0].bytes), 0);
    }
    for (int i = 0; i < 3; i++) {
        free(c[i].out[0].data);
    }
    assert_int_equal(number_at(&f, "memory_waits", "requests"), 0);
    assert_int_equal(number_at(&f, "memory_waits", "bytes"), 0);
    assert_int_equal(number_at(&f, "ledger", "difference_bytes"), 0);
    assert_ok(infer(&f, "digits", 0));
    fixture_close(&f);
}

// Its own timeout, which may be longer than the setting; the setting, and none at all; never is an
// answer at once.
static void test_time(void **state)
{
    fixture f;
    rig(&f);
    hth_clock_inject(ahead, &ahead_ns);
    assert_ok(hth_setting_set("queue.memory_wait_ms", "600000"));
    expires(&f, 1, 300000000, 300, HTH_ETIMEDOUT, "pinned models");
    expires(&f, 1, 0, 600, HTH_ENODEVMEM, "it waited for 60");
    hth_request_tensor in;
    call longer = call_of("mlp", &in);
    longer.r.timeout_us = 3600000000;
    call_start(f.engine, &longer);
    expires(&f, 2, 0, 600, HTH_ENODEVMEM, "it waited for 60");
    assert_false(call_finished(&longer));
    atomic_fetch_add(&ahead_ns, 3000000000000);
    until_waiting(&f, 0);
    assert_err(call_wait(&longer), HTH_ETIMEDOUT, "pinned models");
    assert_ok(hth_setting_set("queue.memory_wait_ms", "0"));
    assert_err(infer(&f, "mlp", 0), HTH_ENODEVMEM, "does not fit now");
    assert_int_equal(number_at(&f, "memory_waits", "requests"), 0);
    json_t *doc = told(&f, "stats", "{}"), *m;
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        bool mlp = strcmp(json_string_value(json_object_get(m, "name")), "mlp") == 0;
        assert_int_equal(json_integer_value(json_object_get(m, "failures")), mlp ? 5 : 0);
    }
    json_decref(doc);
    hth_setting_reset();
    hth_engine_close(f.engine);
    hth_clock_inject(NULL, NULL);
    assert_ok(hth_engine_open(&(hth_engine_config){.device = "cpu:mem=4KiB,threads=1"}, f.store,
                              &f.engine));
    assert_err(infer(&f, "mlp", 0), HTH_ETOOBIG, "more than this device's");
    fixture_close(&f);
}

// A clock that goes on by a millisecond whenever it is looked at.
static uint64_t counted_ns(void *ctx)
{
    return atomic_fetch_add((_Atomic uint64_t *)ctx, 1000000u);
}

// Wherever the engine is when a request's own time is over, in its queue, trying or waiting: that
// is what the answer says.
static void test_own_time(void **state)
{
    fixture f;
    _Atomic uint64_t now_ns = 1000000000000u;
    rig(&f);
    hth_clock_inject(counted_ns, &now_ns);
    for (uint64_t ms = 1; ms <= 40; ms++) {
        assert_err(infer(&f, "mlp", ms * 1000), HTH_ETIMEDOUT, "Request timeout expired");
    }
    fixture_close(&f);
    hth_clock_inject(NULL, NULL);
}

// Half of the queue may wait for memory, so that others find room there.
static void test_queue(void **state)
{
    fixture f;
    call c[9];
    hth_request_tensor in[9];
    rig(&f);
    for (int i = 0; i < 8; i++) {
        c[i] = call_of("mlp", &in[i]);
        call_start(f.engine, &c[i]);
    }
    until_waiting(&f, 8);
    assert_err(infer(&f, "mlp", 0), HTH_ENODEVMEM, "does not fit now");
    assert_ok(infer(&f, "digits", 0));
    c[0].r.canceled = 1; // its sender is gone
    assert_err(call_wait(&c[0]), HTH_ECANCELED, "waited for memory");
    until_waiting(&f, 7);
    json_decref(told(&f, "batching", "{\"model\":\"mlp\",\"queue\":7}"));
    assert_err(infer(&f, "mlp", 0), HTH_EBUSY, "maximum queue size");
    hth_engine_stop(f.engine);
    for (int i = 1; i < 8; i++) {
        assert_err(call_wait(&c[i]), HTH_ECANCELED, "stopping");
    }
    fixture_close(&f);
}

// A model that is unloaded, and made newer, while requests wait for it.
static void test_unloaded_meanwhile(void **state)
{
    fixture f;
    hth_request_tensor in;
    rig(&f);
    call c = call_of("mlp", &in);
    call_start(f.engine, &c);
    until_waiting(&f, 1);
    json_decref(told(&f, "unload", "{\"model\":\"mlp\"}"));
    assert_false(call_finished(&c));
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    assert_ok(call_wait(&c));
    free(c.out[0].data);
    assert_int_equal(number_at(&f, "ledger", "difference_bytes"), 0);
    fixture_close(&f);
}

// A model that is unloaded while one of its own requests waits, because of its pin: that ends, and
// its memory is there.
static void test_unloaded_itself(void **state)
{
    fixture f;
    hth_request_tensor in;
    rig(&f);
    call c = call_of_two(&in);
    call_start(f.engine, &c);
    until_waiting(&f, 1);
    json_t *doc = told(&f, "unload", "{\"model\":\"digits\"}");
    assert_true(json_integer_value(json_object_get(doc, "freed_bytes")) > 0);
    json_decref(doc);
    assert_ok(call_wait(&c));
    free(c.out[0].data);
    assert_int_equal(number_at(&f, "ledger", "weight_bytes"), 0);
    assert_int_equal(number_at(&f, "ledger", "difference_bytes"), 0);
    fixture_close(&f);
}

// What is pinned answers while a smaller request for the same model waits.
static void test_pinned_answers(void **state)
{
    fixture f;
    hth_request_tensor in, two;
    rig_of(&f, true);
    call one = call_of("digits", &in), c = call_of_two(&two);
    call_start(f.engine, &one);
    until_waiting(&f, 1);
    assert_ok(call_run(f.engine, &c));
    assert_false(call_finished(&one));
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"unpin\":true}"));
    assert_ok(call_wait(&one));
    free(c.out[0].data);
    free(one.out[0].data);
    fixture_close(&f);
}

// A pin takes nothing that a request waits for.
static void test_pin_behind(void **state)
{
    fixture f;
    hth_request_tensor in;
    rig(&f);
    put(f.store, "fixed", "tests/data/digits/digits-parity.onnx");
    call c = call_of("mlp", &in), pin = {.r = {.command = HTH_COMMAND_LOAD,
                                               .arguments = "{\"model\":\"fixed\",\"pin\":true}"}};
    call_start(f.engine, &c);
    until_waiting(&f, 1);
    call_start(f.engine, &pin);
    assert_ok(infer(&f, "digits", 0));
    assert_false(call_finished(&pin) || call_finished(&c));
    json_decref(told(&f, "unload", "{\"model\":\"digits\"}"));
    assert_ok(call_wait(&c));
    assert_ok(call_wait(&pin));
    assert_true(c.r.finished_ns < pin.r.finished_ns);
    free(c.out[0].data);
    hth_free(pin.r.json);
    fixture_close(&f);
}

typedef struct job {
    call c;
    char *text;
} job;

static void job_start(fixture *f, job *j, const char *data, int epochs, json_int_t budget,
                      const char *name)
{
    char more[120];
    double want[STEPS];
    snprintf(more, sizeof more,
             "{\"epochs\":%d,\"plan-ms\":50,\"budget\":\"%lld\",\"save-as\":\"%s\"}", epochs,
             (long long)budget, name);
    json_t *q = arguments_of(&unet, data, more, want);
    j->text = json_dumps(q, JSON_COMPACT);
    j->c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = j->text}};
    json_decref(q);
    call_start(f->engine, &j->c);
}

static json_int_t until_trains(fixture *f)
{
    json_int_t bytes = 0;
    while ((bytes = number_at(f, "ledger", "job_bytes")) == 0) {
        usleep(1000);
    }
    return bytes;
}

// The job makes so many more steps: before each one it is decided who is paused.
static void until_steps(fixture *f, const char *name, json_int_t more)
{
    char args[80];
    json_int_t first = -1, at;
    snprintf(args, sizeof args, "{\"job\":\"%s\"}", name);
    do {
        json_t *row = told(f, "job", args);
        at = json_integer_value(json_object_get(row, "step"));
        json_decref(row);
        first = first < 0 ? at : first;
    } while (at < first + more);
}

static void job_end(job *j)
{
    j->c.r.canceled = 1;
    assert_err(call_wait(&j->c), HTH_ECANCELED, "cancel");
    free(j->text);
}

// Beside a job that has nearly all: the request comes before the job that was submitted after it,
// also where that one is so short that the first would be paused for it.
static void test_before_the_next_job(void **state)
{
    fixture f;
    char data[200], device[64];
    job one, two;
    hth_request_tensor in;
    hth_clock_inject(ahead, &ahead_ns);
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    prepare(&f, &unet, data);
    put(f.store, "mlp", MLP);
    job_start(&f, &one, data, 100000, 32 << 20, "a");
    json_int_t bytes = until_trains(&f);
    job_end(&one);
    hth_engine_close(f.engine);
    snprintf(device, sizeof device, "cpu:mem=%lld,threads=2", (long long)bytes + 16 * 1024);
    assert_ok(hth_engine_open(&(hth_engine_config){.device = device}, f.store, &f.engine));
    job_start(&f, &one, data, 100000, bytes, "b");
    until_trains(&f);
    call c = call_of("mlp", &in);
    c.r.timeout_us = 3600000000;
    call_start(f.engine, &c);
    until_waiting(&f, 1);
    job_start(&f, &two, data, 10000, bytes, "c");
    expires(&f, 2, 300000000, 300, HTH_ETIMEDOUT, "training jobs"); // also between its steps
    until_steps(&f, "b", 100);
    assert_false(call_finished(&c));
    job_end(&one);
    assert_ok(call_wait(&c));
    free(c.out[0].data);
    until_trains(&f);
    job_end(&two);
    assert_int_equal(number_at(&f, "ledger", "difference_bytes"), 0);
    fixture_close(&f);
    hth_clock_inject(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_until_there_is_room),
                                       cmocka_unit_test(test_time),
                                       cmocka_unit_test(test_own_time),
                                       cmocka_unit_test(test_queue),
                                       cmocka_unit_test(test_unloaded_meanwhile),
                                       cmocka_unit_test(test_unloaded_itself),
                                       cmocka_unit_test(test_pinned_answers),
                                       cmocka_unit_test(test_pin_behind),
                                       cmocka_unit_test(test_before_the_next_job)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
