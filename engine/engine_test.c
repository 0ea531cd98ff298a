// SPDX-License-Identifier: Apache-2.0
// The engine on real models: answers against onnxruntime's, sharing of weights, small budgets,
// stages, bad requests, queries.
#include "tests/rig/engine_call.h"
#include "tests/rig/npy_data.h"

#include <math.h>
#include <stdio.h>

// infer asks model `name` about input tensor and leaves the answer in c->out.
static hth_err infer(fixture *f, const char *name, const hth_tensor *tensor, call *c)
{
    hth_request_tensor in = {.name = NULL, .t = *tensor};
    *c = (call){.r = {.model = name, .inputs = &in, .n_inputs = 1}};
    return call_run(f->engine, c);
}

static void expect_close(const hth_tensor *got, const hth_tensor *want)
{
    const float *a = got->data, *b = want->data;
    float largest = 0, error = 0;
    assert_true(hth_shape_equal(&got->shape, &want->shape));
    for (size_t i = 0; i < want->bytes / sizeof *b; i++) {
        largest = fmaxf(largest, fabsf(b[i]));
        error = isnan(a[i]) ? INFINITY : fmaxf(error, fabsf(a[i] - b[i]));
    }
    if (error > 1e-4f * largest) {
        fail_msg("differs by %g of %g", (double)error, (double)largest);
    }
}

static const char *const models[] = {
    "residual", "attention", "attention_masked", "attention_biased", "written_norm",
    "staged",   "mlp"};

// expect_answer asks model `name`, whose files are tests/data/FOLDER/NAME.*.
static void expect_answer(fixture *f, const char *folder, const char *name)
{
    char path[128];
    hth_tensor x, y;
    call c;
    snprintf(path, sizeof path, "tests/data/%s/%s.x.npy", folder, name);
    assert_true(npy_data(path, &x));
    snprintf(path, sizeof path, "tests/data/%s/%s.y.npy", folder, name);
    assert_true(npy_data(path, &y));
    assert_ok(infer(f, name, &x, &c));
    assert_int_equal(c.r.n_outputs, 1);
    expect_close(&c.out[0], &y);
    free(c.out[0].data);
    hth_free(x.data);
    hth_free(y.data);
}

static void put_from(fixture *f, const char *folder, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/data/%s/%s.onnx", folder, name);
    put(f->store, name, path);
}

static void test_answers(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
            if (round == 0) {
                put_from(&f, "passes", models[i]);
            }
            expect_answer(&f, "passes", models[i]);
        }
    }
    fixture_close(&f);
}

// A callback that keeps the engine's thread: nobody is looked for meanwhile, and that can be seen.
#define STALLED_NS 20000000u

static hth_engine *stalled_engine;

static hth_err place_late(hth_request *request, hth_request_tensor *out, int n)
{
    while (hth_engine_stalled_ns(stalled_engine) < STALLED_NS) {
    }
    return call_place(request, out, n);
}

static void test_stalls(void **state)
{
    fixture f;
    hth_tensor x;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &x));
    hth_request_tensor in = {.name = NULL, .t = x};
    call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .place = place_late}};
    stalled_engine = f.engine;
    assert_ok(call_run(f.engine, &c));
    while (hth_engine_stalled_ns(f.engine) >= STALLED_NS) { // idle, it turns all the same
    }
    free(c.out[0].data);
    hth_free(x.data);
    fixture_close(&f);
}

// What looks like a pattern and is none.
static void test_edges(void **state)
{
    static const char *const edges[] = {"masked_row"};
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        put_from(&f, "engine", edges[i]);
        expect_answer(&f, "engine", edges[i]);
    }
    hth_tensor x;
    call c;
    put_from(&f, "engine", "gather_outside");
    assert_true(npy_data("tests/data/engine/gather_outside.x.npy", &x));
    assert_err(infer(&f, "gather_outside", &x, &c), HTH_EINVAL, "index");
    free(c.out[0].data);
    hth_free(x.data);
    fixture_close(&f);
}

// A batch of nothing has an answer of nothing.
static void test_empty_batch(void **state)
{
    static const char *const empty[] = {"attention", "attention_masked", "written_norm", "residual",
                                        "mlp"};
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        char path[128];
        hth_tensor x;
        call c;
        put_from(&f, "passes", empty[i]);
        snprintf(path, sizeof path, "tests/data/passes/%s.x.npy", empty[i]);
        assert_true(npy_data(path, &x));
        x.shape.dim[0] = 0;
        x.bytes = 0;
        assert_ok(infer(&f, empty[i], &x, &c));
        assert_int_equal(c.out[0].bytes, 0);
        assert_int_equal(c.out[0].shape.dim[0], 0);
        free(c.out[0].data);
        hth_free(x.data);
        expect_answer(&f, "passes", empty[i]);
    }
    fixture_close(&f);
}

static json_int_t at(json_t *json, const char *object, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(json, object), key));
}

// Two models that differ in their heads share everything else: the second costs its head only.
static void test_sharing(void **state)
{
    fixture f;
    hth_tensor x;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    put(f.store, "parity", "tests/data/digits/digits-parity.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &x));
    assert_ok(infer(&f, "digits", &x, &c));
    free(c.out[0].data);
    json_t *one = told(&f, "stats", "{}");
    assert_ok(infer(&f, "parity:1", &x, &c));
    free(c.out[0].data);
    json_t *two = told(&f, "stats", "{}");
    json_int_t first = at(one, "residency", "resident_bytes"),
               both = at(two, "residency", "resident_bytes");
    assert_true(first > 100000);
    // The heads are 10x256 and 2x256 floats and may be padded to whole register blocks.
    assert_in_range(both - first, 2 * 256 * 4, 48 * 256 * 4);
    json_decref(one);
    json_decref(two);
    hth_free(x.data);
    fixture_close(&f);
}

// Weights of twice the budget: the same bits, streamed.
static void test_weights_do_not_fit(void **state)
{
    fixture rich, poor;
    hth_tensor x;
    call a, b;
    fixture_open(&rich, "cpu:mem=64MiB,threads=2");
    fixture_open(&poor, "cpu:mem=112KiB,threads=2"); // the weights are 224 KB
    put(rich.store, "mlp", "tests/data/passes/mlp.onnx");
    put(poor.store, "mlp", "tests/data/passes/mlp.onnx");
    assert_true(npy_data("tests/data/passes/mlp.x.npy", &x));
    assert_ok(infer(&rich, "mlp", &x, &a));
    for (int round = 0; round < 5; round++) {
        assert_ok(infer(&poor, "mlp", &x, &b));
        assert_memory_equal(a.out[0].data, b.out[0].data, a.out[0].bytes);
        free(b.out[0].data);
    }
    json_t *j = told(&poor, "plan", "{\"model\":\"mlp\",\"batch\":4}");
    assert_true(json_integer_value(json_object_get(j, "streamed_bytes")) > 112 * 1024);
    json_decref(j);
    free(a.out[0].data);
    hth_free(x.data);
    fixture_close(&rich);
    fixture_close(&poor);
}

// Every request is counted once, for all and for its model.
static void test_latency(void **state)
{
    fixture f;
    hth_tensor x;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    put(f.store, "parity", "tests/data/digits/digits-parity.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &x));
    json_t *j = told(&f, "latency", "{}");
    assert_int_equal(json_integer_value(json_object_get(j, "requests")), 0);
    json_decref(j);
    for (int i = 0; i < 4; i++) {
        assert_ok(infer(&f, i < 3 ? "digits" : "parity", &x, &c));
        free(c.out[0].data);
    }
    x.dtype = HTH_DT_I32;
    assert_int_equal(infer(&f, "digits", &x, &c), HTH_EINVAL);
    j = told(&f, "latency", "{}");
    assert_int_equal(json_integer_value(json_object_get(j, "requests")), 5);
    assert_int_equal(json_integer_value(json_object_get(j, "failures")), 1);
    assert_true(json_integer_value(json_object_get(j, "p50_ns")) > 0);
    json_t *models = json_object_get(j, "models"), *m;
    size_t i;
    assert_int_equal(json_array_size(models), 2);
    json_array_foreach(models, i, m)
    {
        bool digits = strcmp(json_string_value(json_object_get(m, "name")), "digits") == 0;
        assert_int_equal(json_integer_value(json_object_get(m, "requests")), digits ? 4 : 1);
        assert_int_equal(json_integer_value(json_object_get(m, "failures")), digits ? 1 : 0);
    }
    json_decref(j);
    hth_free(x.data);
    fixture_close(&f);
}

static void test_bad_requests(void **state)
{
    fixture f;
    hth_tensor x, bad;
    call c;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &x));
    assert_err(infer(&f, "digit", &x, &c), HTH_ENOENT, "digit");
    assert_err(infer(&f, "digits:7", &x, &c), HTH_ENOENT, "7");
    assert_err(infer(&f, "digits:x", &x, &c), HTH_EINVAL, "version");
    bad = x;
    bad.dtype = HTH_DT_I32;
    assert_err(infer(&f, "digits", &bad, &c), HTH_EINVAL,
               "data-type is 'INT32', but model 'digits' expects 'FP32', of shape [-1,1,8,8]");
    bad = x;
    bad.shape.dim[3] = 9;
    assert_err(infer(&f, "digits", &bad, &c), HTH_EINVAL,
               "unexpected shape for input 'image' for model 'digits'");
    bad = x;
    bad.bytes -= 4;
    assert_err(infer(&f, "digits", &bad, &c), HTH_EINVAL, "byte size mismatch");
    hth_request_tensor in = {.name = "nobody", .t = x};
    c = (call){.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    assert_err(
        call_run(f.engine, &c), HTH_EINVAL,
        "input 'image' of model 'digits' is missing (got 'nobody'): 'image' FP32 [-1,1,8,8]");
    c = (call){.r = {.model = "digits"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL,
               "expected 1 inputs but got 0 inputs for model 'digits': 'image' FP32 [-1,1,8,8]");
    c = (call){.r = {.command = HTH_COMMAND_MODELS}};
    assert_err(call_run(f.engine, &c), HTH_ENOTSUP, "'models' is answered from the store");
    c = (call){
        .r = {.command = HTH_COMMAND_BENCH, .arguments = "{\"model\":\"digits\",\"batch\":1e300}"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "batch");
    c = (call){.r = {.command = HTH_COMMAND_BENCH,
                     .arguments = "{\"model\":\"digits\",\"seconds\":1e300}"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "seconds");
    c = (call){
        .r = {.command = HTH_COMMAND_BENCH,
              .arguments = "{\"model\":\"digits\",\"train\":true,\"batch\":8,\"seconds\":1e300}"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "seconds");
    c = (call){.r = {.command = HTH_COMMAND_PLAN, .arguments = "[1"}};
    assert_err(call_run(f.engine, &c), HTH_EINVAL, "JSON");
    assert_ok(infer(&f, "digits", &x, &c)); // and it lives on
    free(c.out[0].data);
    hth_free(x.data);
    fixture_close(&f);
}

// A budget that cannot hold the model at all is refused with the bytes that it needs; the next
// request is served.
static void test_too_small(void **state)
{
    fixture f;
    hth_tensor x;
    call c;
    fixture_open(&f, "cpu:mem=24KiB,threads=1");
    put(f.store, "mlp", "tests/data/passes/mlp.onnx");
    assert_true(npy_data("tests/data/passes/mlp.x.npy", &x));
    assert_err(infer(&f, "mlp", &x, &c), HTH_ETOOBIG, "for a budget of 24.0 KiB");
    hth_free(x.data);
    fixture_close(&f);
}

// Winograd needs more than direct convolution, for its filters, too: a budget that holds only the
// smaller forms is enough.
static void test_smallest_forms(void **state)
{
    fixture f;
    char arguments[128];
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    json_decref(told(&f, "convsel", "{\"model\":\"digits\",\"batch\":16}"));
    json_t *small = told(&f, "plan", "{\"model\":\"digits\",\"batch\":16,\"budget\":\"420KiB\"}");
    json_int_t floor_bytes = json_integer_value(json_object_get(small, "floor_bytes"));
    assert_in_range(floor_bytes, 100 << 10, 400 << 10);
    snprintf(arguments, sizeof arguments, "{\"model\":\"digits\",\"batch\":16,\"budget\":\"%lld\"}",
             (long long)floor_bytes);
    json_t *least = told(&f, "plan", arguments);
    assert_true(json_integer_value(json_object_get(least, "resident_bytes")) +
                    json_integer_value(json_object_get(least, "arena_bytes")) <=
                floor_bytes);
    json_decref(small);
    json_decref(least);
    fixture_close(&f);
}

static void test_queries(void **state)
{
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    json_t *j = told(&f, "bench", "{\"model\":\"digits\",\"batch\":2,\"seconds\":0.05}");
    assert_true(json_number_value(json_object_get(j, "p50_ms")) > 0);
    json_int_t arena = json_integer_value(json_object_get(j, "arena_bytes"));
    assert_true(arena > 0 &&
                arena <=
                    1.05 * (double)json_integer_value(json_object_get(j, "live_peak_bytes")) + 64);
    json_decref(j);
    j = told(&f, "convsel", "{\"model\":\"digits\",\"batch\":2}");
    assert_true(json_array_size(j) >= 3);
    json_decref(j);
    j = told(&f, "model", "{\"model\":\"digits\"}");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(j, "inputs"), 0), "name")),
        "image");
    json_decref(j);
    j = told(&f, "plan", "{\"model\":\"digits\",\"batch\":2,\"out\":true,\"trace\":true}");
    const json_t *files = json_object_get(j, "files"), *plan = json_object_get(files, "out");
    assert_string_equal(json_string_value(json_object_get(plan, "format")), "hearth-plan-1");
    assert_true(json_is_array(json_object_get(json_object_get(files, "trace"), "traceEvents")));
    json_decref(j);
    fixture_close(&f);
}

static double policy_number(const json_t *doc, size_t row, const char *key)
{
    return json_number_value(
        json_object_get(json_array_get(json_object_get(doc, "policies"), row), key));
}

// The policies from row `first` on have no plan; frees the document.
static void policies_have_none(json_t *doc, size_t first)
{
    for (size_t i = first; i < 3; i++) {
        const json_t *row = json_array_get(json_object_get(doc, "policies"), i);
        assert_non_null(json_string_value(json_object_get(row, "error")));
        assert_null(json_object_get(row, "ratio"));
    }
    json_decref(doc);
}

// Several policies are measured in turns, each relative to the step that has all memory.
static void test_policies(void **state)
{
    static const char *const names[] = {"keep", "hearth", "chen"};
    fixture f;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "u", "tests/data/train/unet_adam.onnx");
    json_t *j = told(&f, "bench",
                     "{\"model\":\"u\",\"batch\":16,\"train\":true,\"steps\":1,"
                     "\"budget\":\"70%\",\"policy\":\"hearth,chen\"}");
    assert_int_equal(json_array_size(json_object_get(j, "policies")), 3);
    assert_int_equal(json_integer_value(json_object_get(j, "rounds")), 1);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(json_object_get(j, "policies"), i);
        double ms = policy_number(j, i, "p50_ms"), peak = policy_number(j, i, "peak_bytes");
        assert_string_equal(json_string_value(json_object_get(row, "policy")), names[i]);
        assert_true(ms > 0 && policy_number(j, i, "planned_ms") > 0);
        assert_float_equal(policy_number(j, i, "ratio"), ms / policy_number(j, 0, "p50_ms"), 1e-6);
        assert_true(i == 0 || peak <= 0.7 * policy_number(j, 0, "peak_bytes"));
        assert_float_equal(policy_number(j, i, "ledger_bytes"), peak, 0);
    }
    json_decref(j);
    j = told(&f, "bench",
             "{\"model\":\"u\",\"batch\":4,\"train\":true,\"seconds\":0,"
             "\"budget\":\"1KiB\",\"policy\":\"keep,vdnn\"}");
    assert_int_equal(json_integer_value(json_object_get(j, "rounds")), 3);
    assert_float_equal(policy_number(j, 0, "ratio"), 1, 0);
    assert_true(policy_number(j, 0, "least_ms") <= policy_number(j, 0, "p50_ms"));
    policies_have_none(j, 1);
    fixture_close(&f);
    fixture_open(&f, "cpu:mem=4MiB,threads=2");
    put(f.store, "u", "tests/data/train/unet_adam.onnx");
    j = told(&f, "bench",
             "{\"model\":\"u\",\"batch\":512,\"train\":true,\"seconds\":600,"
             "\"policy\":\"keep,vdnn\"}"); // no policy has a plan: it ends at once
    assert_int_equal(json_integer_value(json_object_get(j, "rounds")), 0);
    policies_have_none(j, 0);
    fixture_close(&f);
}

// What would be cut without a word is refused.
static void test_whole_numbers(void **state)
{
    static const struct {
        const char *arguments, *says;
    } bad[] = {{"{\"model\":\"digits\",\"batch\":1.9}", "batch is a whole number"},
               {"{\"model\":\"digits\",\"train\":true,\"steps\":0.5}", "steps is a whole number"},
               {"{\"model\":\"digits\",\"train\":true,\"steps\":6,\"policy\":\"keep\"}",
                "steps is a whole number from 1 to 5"},
               {"{\"model\":\"digits\",\"train\":true,\"steps\":1001,\"policy\":\"keep,vdnn\"}",
                "steps is a whole number from 1 to 1000"},
               {"{\"model\":\"digits\",\"train\":true,\"policy\":\"keep,magic\"}",
                "unknown policy 'magic'"},
               {"{\"model\":\"digits\",\"train\":true,\"policy\":\"keep,\"}", "unknown policy ''"},
               {"{\"model\":\"digits\",\"train\":true,\"trace\":true,\"policy\":\"keep,vdnn\"}",
                "trace is for one policy"},
               {"{\"model\":\"digits\",\"train\":true,\"policy\":\"keep,keep,keep,keep,keep,keep,"
                "keep,keep,keep,keep,keep,keep,keep,keep,keep,keep\"}",
                "more than 15 policies"}};
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        call c = {.r = {.command = HTH_COMMAND_BENCH, .arguments = bad[i].arguments}};
        assert_int_equal(call_run(f.engine, &c), HTH_EINVAL);
        assert_non_null(strstr(c.r.detail, bad[i].says));
    }
    fixture_close(&f);
}

// However a batch is run, whole or in slices, each sample gets the answer that it gets alone.
static void test_slices(void **state)
{
    fixture f;
    hth_tensor x;
    call whole, one;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    assert_true(npy_data("tests/data/digits/images.npy", &x));
    json_t *j = told(&f, "bench", "{\"model\":\"digits\",\"batch\":24,\"seconds\":0.05}");
    assert_true(json_is_integer(json_object_get(j, "slice")));
    json_decref(j);
    hth_tensor batch = x;
    batch.shape.dim[0] = 24;
    batch.bytes = 24 * 256;
    assert_ok(infer(&f, "digits", &batch, &whole));
    for (int i = 0; i < 24; i++) {
        hth_tensor sample = x, want = whole.out[0];
        sample.shape.dim[0] = want.shape.dim[0] = 1;
        sample.bytes = 256;
        sample.data = (char *)x.data + (size_t)i * 256;
        want.bytes = 40;
        want.data = (char *)whole.out[0].data + (size_t)i * 40;
        assert_ok(infer(&f, "digits", &sample, &one));
        expect_close(&one.out[0], &want);
        free(one.out[0].data);
    }
    free(whole.out[0].data);
    hth_free(x.data);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),       cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_edges),         cmocka_unit_test(test_empty_batch),
        cmocka_unit_test(test_sharing),       cmocka_unit_test(test_weights_do_not_fit),
        cmocka_unit_test(test_latency),       cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_too_small),     cmocka_unit_test(test_smallest_forms),
        cmocka_unit_test(test_queries),       cmocka_unit_test(test_policies),
        cmocka_unit_test(test_whole_numbers), cmocka_unit_test(test_slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
