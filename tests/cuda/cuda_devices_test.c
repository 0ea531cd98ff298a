// SPDX-License-Identifier: Apache-2.0
// Two CUDA devices and a CPU behind one engine, each in a process of its own that has a fake driver
// of its own: answers against onnxruntime's wherever a model is, what CUDA has no operator for, and
// processes that are killed until their device is given up. The program is its engines' process.
#include "device/cuda/fake/impl.h"
#include "kernels/cuda/fake/fake.h"
#include "engine/process/child.h"
#include "tests/rig/children.h"
#include "tests/rig/npy_data.h"
#include "tests/rig/train_job.h"

#include "base/settings.h"
#include "base/spin.h"

#include <math.h>
#include <signal.h>
#include <time.h>

#define MIB      ((uint64_t)1 << 20)
#define DEVICES  "cuda:0,mem=100MiB cuda:1,mem=200MiB cpu:mem=300MiB,threads=1"
#define LIMIT_NS 300000000000u // of everything that is waited for; far more than it takes

static hth_tensor input, want;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static const char *text(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s != NULL ? s : "";
}

// The first device that has a model; "": none.
static void where(const fixture *f, const char *name, char out[40])
{
    json_t *doc = told(f, "loaded", "{}"), *row;
    size_t i;
    out[0] = 0;
    json_array_foreach(json_object_get(doc, "models"), i, row)
    {
        if (strcmp(text(row, "name"), name) == 0) {
            snprintf(out, 40, "%s",
                     json_string_value(json_array_get(json_object_get(row, "devices"), 0)));
        }
    }
    json_decref(doc);
}

static void expect_where(const fixture *f, const char *name, const char *expected)
{
    char got[40];
    where(f, name, got);
    assert_string_equal(got, expected);
}

// Asks "residual" and compares; false: what computed it was killed.
static bool infer(const fixture *f)
{
    hth_request_tensor in = {.name = NULL, .t = input};
    call c = {.r = {.model = "residual", .inputs = &in, .n_inputs = 1}};
    hth_err err = call_run(f->engine, &c);
    if (err == HTH_EDEVLOST) {
        free(c.out[0].data);
        return false;
    }
    assert_ok(err);
    const float *a = c.out[0].data, *b = want.data;
    float largest = 0, error = 0;
    assert_int_equal(c.out[0].bytes, want.bytes);
    for (size_t i = 0; i < want.bytes / sizeof *b; i++) {
        largest = fmaxf(largest, fabsf(b[i]));
        error = isnan(a[i]) ? INFINITY : fmaxf(error, fabsf(a[i] - b[i]));
    }
    assert_true(error <= 1e-4f * largest);
    free(c.out[0].data);
    return true;
}

// CUDA has no operator for it: it is computed by the CPU.
static void infer_refused(const fixture *f)
{
    static float x[2 * 4 * 3 * 3];
    hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                   .shape = {.rank = 4, .dim = {2, 4, 3, 3}},
                                   .data = x,
                                   .bytes = sizeof x}};
    call c = {.r = {.model = "sample", .inputs = &in, .n_inputs = 1}};
    assert_ok(call_run(f->engine, &c));
    assert_true(c.out[0].bytes > 0);
    free(c.out[0].data);
}

// Kills all processes but the spared ones, again and again, until a model is on a device.
static void kill_until(const fixture *f, const pid_t *spared, int n_spared, const char *device)
{
    char got[40] = "";
    uint64_t until = hth_real_after(LIMIT_NS);
    while (strcmp(got, device) != 0) {
        pid_t pid[8];
        assert_true(hth_real_ns() < until);
        for (int n = children_of(getpid(), pid, 8), i = 0; i < n; i++) {
            bool spare = false;
            for (int k = 0; k < n_spared; k++) {
                spare = spare || pid[i] == spared[k];
            }
            if (!spare) {
                kill(pid[i], SIGKILL);
            }
        }
        (void)infer(f);
        where(f, "residual", got);
        nap();
    }
    assert_true(infer(f));
}

static void devices(void **state)
{
    fixture f;
    pid_t pid[8];
    strcpy(f.dir, "/tmp/hearth-cuda-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "20"));
    assert_ok(hth_store_open(f.dir, true, false, &f.store));
    hth_engine_config config = {.device = "cuda:0,mem=100MiB cuda:2,mem=100MiB",
                                .child_store = f.dir};
    assert_err(hth_engine_open(&config, f.store, &f.engine), HTH_ENOTSUP, "cuda:2");
    config.device = DEVICES;
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    assert_int_equal(children_of(getpid(), pid, 8), 3);
    qsort(pid, 3, sizeof *pid, child_by_start); // in the order of the devices

    put(f.store, "residual", "tests/data/passes/residual.onnx");
    put(f.store, "mlp", "tests/data/passes/mlp.onnx");
    put(f.store, "sample", "tests/data/onnx/grid_sample16.onnx");
    assert_true(infer(&f));
    expect_where(&f, "residual", "cuda:1"); // most room, and the CPU is no GPU
    json_t *doc = told(&f, "load", "{\"model\":\"mlp\",\"on\":\"cuda:0\"}");
    json_decref(doc);
    infer_refused(&f);
    infer_refused(&f);
    doc = told(&f, "devices", "{}");
    assert_int_equal(json_array_size(json_object_get(doc, "devices")), 3);
    json_decref(doc);
    doc = told(&f, "stats", "{}");
    const json_t *rows = json_object_get(doc, "devices");
    const json_t *one = json_object_get(json_array_get(rows, 0), "gpu"),
                 *two = json_object_get(json_array_get(rows, 1), "gpu");
    assert_true(strncmp(text(one, "uuid"), "GPU-00f1", 8) == 0);
    assert_true(strncmp(text(two, "uuid"), "GPU-01f1", 8) == 0);
    assert_int_equal(json_integer_value(json_object_get(two, "total_bytes")), 512 * MIB);
    assert_null(json_object_get(json_array_get(rows, 2), "gpu"));
    json_decref(doc);

    kill_until(&f, (pid_t[]){pid[0], pid[2]}, 2, "cuda:0");
    expect_where(&f, "mlp", "cuda:0");
    kill_until(&f, (pid_t[]){pid[2]}, 1, "cpu:0");
    assert_int_equal(kill(pid[2], 0), 0);
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "10000"));
    fixture_close(&f);
}

// A job on each device at the same time: PyTorch's losses.
static void jobs(void **state)
{
    fixture f;
    char data[200];
    double losses[STEPS], loss[STEPS];
    static call c[2];
    char *args[2];
    strcpy(f.dir, "/tmp/hearth-cuda-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    assert_ok(hth_store_open(f.dir, true, false, &f.store));
    assert_ok(hth_job_paths_begin(f.store));
    hth_engine_config config = {.device = "cuda:0,mem=200MiB cuda:1,mem=200MiB",
                                .child_store = f.dir};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    prepare(&f, &image_net, data);
    for (int i = 0; i < 2; i++) {
        char more[80];
        snprintf(more, sizeof more, "{\"save-as\":\"r%d\",\"on\":\"cuda:%d\"}", i, i);
        json_t *doc = arguments_of(&image_net, data, more, losses);
        args[i] = json_dumps(doc, JSON_COMPACT);
        paths_named(f.store, args[i]);
        json_decref(doc);
        c[i] = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = args[i]}};
        call_start(f.engine, &c[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(call_wait(&c[i]));
        json_t *doc = json_loads(c[i].r.json, 0, NULL);
        losses_of(doc, loss);
        for (int k = 0; k < STEPS; k++) {
            assert_true(fabs(loss[k] - losses[k]) <= 2e-4 * fabs(losses[k]) + 1e-5);
        }
        json_decref(doc);
        hth_free(c[i].r.json);
        free(args[i]);
    }
    same_tensors(&f, "r0", "r1");
    fixture_close(&f);
}

// Engines as threads: a device whose context has ended is gone until the process ends. What ran
// there fails with the driver's sentence; everything after it is answered by the CPU.
static void lost(void **state)
{
    fixture f;
    hth_cuda_fake *driver = hth_cuda_fake_state();
    strcpy(f.dir, "/tmp/hearth-cuda-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    assert_ok(hth_store_open(f.dir, true, false, &f.store));
    hth_engine_config config = {.device = "cuda:0,mem=100MiB cpu:mem=300MiB,threads=1"};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    put(f.store, "residual", "tests/data/passes/residual.onnx");
    assert_true(infer(&f));
    expect_where(&f, "residual", "cuda:0");
    driver->fail_with = CUDA_ERROR_ECC_UNCORRECTABLE;
    driver->sticky = true;
    driver->fail_nth = 1;
    uint64_t until = hth_real_after(LIMIT_NS);
    while (infer(&f)) { // it may take what it knows to be there before it asks the driver
        assert_true(hth_real_ns() < until);
    }
    for (int i = 0; i < 5; i++) {
        assert_true(infer(&f));
    }
    json_t *doc = told(&f, "devices", "{}"), *row;
    size_t i;
    json_array_foreach(json_object_get(doc, "devices"), i, row)
    {
        bool cpu = strcmp(text(row, "name"), "cpu:0") == 0;
        assert_string_equal(text(row, "state"), cpu ? "up" : "lost");
    }
    json_decref(doc);
    assert_true(hth_engine_ready(f.engine));
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(devices), cmocka_unit_test(jobs),
                                       cmocka_unit_test(lost)};
    hth_cuda_fake *driver = hth_cuda_fake_engine_open(7, 512 * MIB);
    if (driver == NULL) {
        return 1;
    }
    driver->n_devices = 2;
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    if (!npy_data("tests/data/passes/residual.x.npy", &input) ||
        !npy_data("tests/data/passes/residual.y.npy", &want)) {
        return 1;
    }
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    hth_free(input.data);
    hth_free(want.data);
    hth_cuda_fake_close();
    return rv;
}
