// SPDX-License-Identifier: Apache-2.0
// What one tenant's request leaves in the memory of a CUDA device (over the fake driver, whose
// memory can be looked into) is gone before another model's program runs there, and before a
// training job has it; and without memory.clear_arena the first is not so, which shows that the
// test looks.
#include "base/settings.h"
#include "device/cuda/fake/impl.h"
#include "kernels/cuda/fake/fake.h"
#include "tests/rig/train_job.h"

#define MIB          ((uint64_t)1 << 20)
#define BATCH_IMAGES 32

static hth_cuda_fake *driver;

static void engine_open(fixture *f, bool clear)
{
    assert_ok(hth_setting_set("memory.clear_arena", clear ? "true" : "false"));
    driver = hth_cuda_fake_engine_open(1, 512 * MIB);
    assert_non_null(driver);
    fixture_open(f, "cuda:0,mem=64MiB");
    put(f->store, "secret", "tests/data/digits/digits.onnx");
    put(f->store, "other", "tests/data/digits/digits-parity.onnx");
}

static void engine_close(fixture *f)
{
    fixture_close(f);
    assert_int_equal(driver->live, 0);
    hth_cuda_fake_close();
    hth_setting_reset();
}

static bool is_mark(float v)
{
    return fabsf(v) > 1e20F && isfinite(v);
}

static hth_err place_and_cancel(hth_request *request, hth_request_tensor *out, int n)
{
    request->canceled = 1;
    return call_place(request, out, n);
}

// A batch of images, all of one number. canceled: in front of the first operator, when the arena is
// the model's already.
static void infer(fixture *f, const char *tenant, const char *model, int64_t batch, float value,
                  bool canceled)
{
    static float image[BATCH_IMAGES * 64];
    for (int i = 0; i < BATCH_IMAGES * 64; i++) {
        image[i] = value;
    }
    hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                   .shape = {4, {batch, 1, 8, 8}},
                                   .data = image,
                                   .bytes = (size_t)batch * 256}};
    call c = {.r = {.model = model, .inputs = &in, .n_inputs = 1, .tenant = tenant}};
    if (canceled) {
        c.r.place = place_and_cancel;
        assert_err(call_run(f->engine, &c), HTH_ECANCELED, "");
    } else if (call_run(f->engine, &c) != HTH_OK) {
        fail_msg("%s: %s", model, c.r.detail);
    }
    free(c.out[0].data);
}

// Marks that are left when bob's model has the arena behind alice's.
static uint64_t left_to_a_run(bool clear)
{
    fixture f;
    engine_open(&f, clear);
    infer(&f, "alice", "secret", BATCH_IMAGES, 1e30F, false);
    assert_true(hth_cuda_fake_count(is_mark) > 100);
    infer(&f, "bob", "other", BATCH_IMAGES, 0, true);
    uint64_t left = hth_cuda_fake_count(is_mark);
    engine_close(&f);
    return left;
}

static void test_arena(void **state)
{
    uint64_t kept = left_to_a_run(false), cleared = left_to_a_run(true);
    print_message("# marks left: %llu, cleared: %llu\n", (unsigned long long)kept,
                  (unsigned long long)cleared);
    assert_true(kept > 100);
    assert_int_equal(cleared, 0);
}

// .. and when bob's job has the memory that was the arena.
static uint64_t left_by_a_job(bool clear)
{
    fixture f;
    char data[200];
    double want[STEPS];
    engine_open(&f, clear);
    prepare(&f, &unet, data);
    infer(&f, "alice", "secret", 6, 1e30F, false);
    call c = {.r = {.command = HTH_COMMAND_UNLOAD, .arguments = "{\"model\":\"secret\"}"}};
    assert_ok(call_run(f.engine, &c));
    hth_free(c.r.json);
    assert_true(hth_cuda_fake_count(is_mark) > 100); // nobody's now
    json_t *q = arguments_of(&unet, data, "{\"policy\": \"keep\"}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .tenant = "bob"}};
    assert_ok(call_run(f.engine, &c));
    hth_free(c.r.json);
    uint64_t left = hth_cuda_fake_count(is_mark);
    free(text);
    json_decref(q);
    engine_close(&f);
    return left;
}

static void test_job(void **state)
{
    uint64_t kept = left_by_a_job(false), cleared = left_by_a_job(true);
    print_message("# marks left: %llu, cleared: %llu\n", (unsigned long long)kept,
                  (unsigned long long)cleared);
    assert_int_equal(cleared, 0); // how many a step leaves else depends on its algorithms
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arena), cmocka_unit_test(test_job)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
