// SPDX-License-Identifier: Apache-2.0
// Centroids as an ONNX file: it loads, and memory that runs out is
// said. That it serves, and what it answers, is asserted by kmeans_job_test.c.
#include "base/test.h"

#include "base/alloc.h"
#include "engine/train/kmeans/kmeans_model.h"
#include "graph/onnx/onnx.h"

#define K 3
#define D 2

static const double centroids[K * D] = {1000, 1000, 1001, 1000, 1000, 1002};

static hth_err make(void)
{
    void *file = NULL;
    size_t bytes;
    hth_err err = hth_kmeans_model(centroids, K, D, &file, &bytes);
    hth_free(file);
    return err;
}

static void memory_that_runs_out_is_said(void **state)
{
    FAULT_LOOP(make());
}

static void it_loads(void **state)
{
    void *bytes;
    size_t n;
    hth_onnx_file *file;
    assert_ok(hth_kmeans_model(centroids, K, D, &bytes, &n));
    assert_true(n <= hth_kmeans_model_bytes(K, D));
    assert_ok(hth_onnx_open_bytes(bytes, n, &hth_onnx_default_limits, &file));
    assert_int_equal(hth_onnx_n_tensors(file), 5);
    const hth_onnx_tensor *t = hth_onnx_tensor_at(file, 0);
    assert_string_equal(t->name, "centroids");
    assert_int_equal(t->bytes, K * D * sizeof(float));
    for (size_t i = 0; i < K * D; i++) {
        float is; // data in a file lie anywhere
        memcpy(&is, (const char *)t->data + i * sizeof is, sizeof is);
        assert_true(is == (float)centroids[i]);
    }
    hth_onnx_close(file);
    hth_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_loads),
        cmocka_unit_test(memory_that_runs_out_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
