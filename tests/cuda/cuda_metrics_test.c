// SPDX-License-Identifier: Apache-2.0
// What /metrics and a model's documents say about GPUs, over the fake driver, which counts what it
// gave: of a CUDA device that is the only one, and of one beside a CPU.
#include "kernels/cuda/fake/fake.h"
#include "tests/rig/http_rig.h"

#define MIB ((uint64_t)1 << 20)

static hth_cuda_fake *driver;

static void expect_line(const reply *r, const char *name, uint64_t value)
{
    char line[200];
    snprintf(line, sizeof line,
             "\n%s{gpu_uuid=\"GPU-00f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff\"} %llu\n", name,
             (unsigned long long)value);
    if (strstr(r->body, line) == NULL) {
        fail_msg("no %s in %s", line, r->body);
    }
}

static void expect_says(const server_rig *rig, const char *path, const char *words)
{
    reply r = get(hth_server_http_port(rig->server), path);
    expect_200(&r);
    if (strstr(r.body, words) == NULL) {
        fail_msg("no %s in %s", words, r.body);
    }
    reply_free(&r);
}

// where[]: what a model's configuration and its statistics say of its device.
static void serve(const char *device, const char *const where[2])
{
    server_rig f = {.port = 0};
    hth_store *store;
    server_rig_make(&f);
    assert_ok(hth_store_open(f.store, true, false, &store));
    rig_import(store, "batch", "batch", 4);
    hth_store_close(store);
    hth_server_config config = {
        .store = f.store, .device = device, .http = "127.0.0.1:0", .metrics = "127.0.0.1:0"};
    assert_ok(hth_server_open(&config, &f.server));
    reply r = get(hth_server_metrics_port(f.server), "/metrics");
    expect_200(&r);
    expect_line(&r, "nv_gpu_memory_total_bytes", 512 * MIB);
    expect_line(&r, "nv_gpu_memory_used_bytes", driver->used_bytes);
    const char *head = strstr(r.body, "\n# TYPE nv_gpu_memory_used_bytes gauge\n");
    assert_non_null(head);
    assert_null(strstr(head + 2, "# TYPE nv_gpu_memory_used_bytes"));
    reply_free(&r);
    expect_says(&f, "/v2/models/batch/config", where[0]);
    expect_says(&f, "/v2/models/batch/stats", where[1]);
    server_rig_end(&f);
}

static void test_only(void **state)
{
    static const char *const gpu[2] = {"\"kind\":\"KIND_GPU\",\"count\":1,\"gpus\":[0]",
                                       "\"memory_usage\":[{\"type\":\"GPU\",\"id\":0,"};
    serve("cuda:0,mem=100MiB", gpu);
}

static void test_beside_a_cpu(void **state)
{
    static const char *const either[2] = {"\"count\":1,\"gpus\":[", "\"memory_usage\":[{\"type\":"};
    serve("cuda:0,mem=100MiB cpu:mem=100MiB,threads=1", either);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_only),
                                       cmocka_unit_test(test_beside_a_cpu)};
    driver = hth_cuda_fake_engine_open(7, 512 * MIB);
    if (driver == NULL) {
        return 1;
    }
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    hth_cuda_fake_close();
    return rv;
}
