// SPDX-License-Identifier: Apache-2.0
// Fuzzes the importer: any bytes are a model or are refused; what loads is a valid graph, and
// nothing leaks. clang -fsanitize=fuzzer,address; seeds: tests/data/onnx.
#include "graph/onnx.h"

#include "base/alloc.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_load(const hth_onnx_file *f, const hth_onnx_limits *limits)
{
    size_t bytes;
    int n = hth_onnx_n_tensors(f);
    const void *skeleton = hth_onnx_skeleton(f, &bytes);
    hth_const **c = hth_calloc((size_t)n, sizeof(hth_const *));
    hth_graph *g = NULL;
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(f, i);
        if (hth_const_new(t->dtype, &t->shape, t->data, &c[i]) != HTH_OK) {
            abort();
        }
    }
    if (hth_onnx_load(skeleton, bytes, c, n, limits, &g) == HTH_OK &&
        hth_graph_check(g) != HTH_OK) {
        abort();
    }
    hth_graph_free(g);
    for (int i = 0; i < n; i++) {
        hth_const_rele(c[i]);
    }
    hth_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const hth_onnx_limits limits = {.max_model_bytes = 1 << 20,
                                           .max_tensor_elements = 1 << 16,
                                           .max_nodes = 500,
                                           .max_rank = HTH_MAX_RANK,
                                           .max_signature = 100};
    int64_t live = hth_alloc_live();
    hth_onnx_file *f;
    hth_graph *g = NULL;
    if (hth_onnx_open_bytes(data, bytes, &limits, &f) == HTH_OK) {
        fuzz_load(f, &limits);
        hth_onnx_close(f);
    }
    // The skeleton that a store gives back may be damaged, too: the same bytes as one.
    hth_onnx_load(data, bytes, NULL, 0, &limits, &g);
    hth_graph_free(g);
    if (hth_alloc_live() != live) {
        abort();
    }
    return 0;
}
