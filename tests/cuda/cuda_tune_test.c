// SPDX-License-Identifier: Apache-2.0
// Choices that are measured while nobody asks, on a CUDA device over the fake driver: the first
// answers come by what cuDNN's heuristics said at once, whose engine is made the slowest here; then
// a program with the measured choices takes over, of which that engine is none; the answers are the
// same words. The next engine on the store begins with the measured ones.
#include "device/cuda/fake/impl.h"
#include "kernels/cuda/fake/fake.h"
#include "tests/rig/npy_data.h"
#include "tests/rig/train_job.h"

#define DEVICE       "cuda:0,mem=300MiB"
#define CONVOLUTIONS 3 // of the model
#define SLOW_NS      5000000u
#define UNMEASURED   2      // requests before a model is worth measuring
#define REQUESTS     200    // until it is measured, at most
#define PAUSE_US     300000 // longer than the engine waits until it takes itself for idle

static hth_tensor image;

static void engine_open(fixture *f)
{
    assert_non_null(hth_cuda_fake_engine_open(1, (uint64_t)512 << 20));
    hth_cuda_fake_engines[0].slow_ns = SLOW_NS;
    fixture_open(f, DEVICE);
}

static void engine_close(fixture *f)
{
    fixture_close(f);
    assert_int_equal(hth_cuda_fake_state()->live, 0);
    hth_cuda_fake_close();
}

// Asks and compares with the answer `want` (data NULL: it becomes that); returns how many
// convolutions engine 0, the slow one, and engine 1 computed from then to the answer.
static void ask_once(const fixture *f, hth_tensor *want, unsigned ran[2])
{
    hth_request_tensor in = {.t = image};
    call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    for (int e = 0; e < 2; e++) {
        ran[e] = atomic_load(&hth_cuda_fake_engines[e].runs);
    }
    assert_ok(call_run(f->engine, &c));
    for (int e = 0; e < 2; e++) {
        ran[e] = atomic_load(&hth_cuda_fake_engines[e].runs) - ran[e];
    }
    if (want->data == NULL) {
        *want = c.out[0];
        return;
    }
    assert_int_equal(c.out[0].bytes, want->bytes);
    assert_memory_equal(c.out[0].data, want->data, want->bytes);
    free(c.out[0].data);
}

// The answer that a CPU gives is near.
static void expect_near(const hth_tensor *got)
{
    fixture f;
    hth_tensor want = {.data = NULL};
    unsigned none[2];
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    ask_once(&f, &want, none);
    fixture_close(&f);
    assert_int_equal(got->bytes, want.bytes);
    for (size_t i = 0; i < want.bytes / sizeof(float); i++) {
        assert_true(fabsf(((float *)got->data)[i] - ((float *)want.data)[i]) < 1e-4F);
    }
    free(want.data);
}

static void taken_over(void **state)
{
    fixture f;
    hth_tensor want = {.data = NULL};
    unsigned ran[2];
    int requests = 0;
    engine_open(&f);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    for (int i = 0; i < UNMEASURED; i++) {
        ask_once(&f, &want, ran);
        assert_int_equal(ran[0], CONVOLUTIONS);
        assert_int_equal(ran[1], 0);
        usleep(i * PAUSE_US); // it is idle, and the model not asked often enough to be worth it
    }
    assert_int_equal(atomic_load(&hth_cuda_fake_engines[1].runs), 0);
    do {
        assert_true(++requests < REQUESTS);
        ask_once(&f, &want, ran);
        usleep(PAUSE_US);
    } while (ran[0] > 0);
    print_message("# the measured program has the place after %d requests\n",
                  UNMEASURED + requests);
    for (int i = 0; i < 5; i++) {
        ask_once(&f, &want, ran);
        assert_int_equal(ran[0], 0);
        assert_int_equal(ran[1], CONVOLUTIONS);
    }
    expect_near(&want);

    hth_engine_close(f.engine);
    hth_engine_config config = {.device = DEVICE};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    ask_once(&f, &want, ran);
    assert_int_equal(ran[0], 0);
    assert_int_equal(ran[1], CONVOLUTIONS);
    free(want.data);
    engine_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(taken_over)};
    assert_true(npy_data("tests/data/digits/images.npy", &image));
    image.shape.dim[0] = 1;
    image.bytes = 256;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
