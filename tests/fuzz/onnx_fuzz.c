// SPDX-License-Identifier: Apache-2.0
// Fuzzes the importer: any bytes are a model or are refused; what loads is a valid graph, and
// nothing leaks. Its samples are followed through it, whatever it is. clang
// -fsanitize=fuzzer,address; seeds: tests/data/onnx.
#include "graph/independence.h"
#include "graph/onnx/onnx.h"

#include "base/alloc.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// Says of all inputs that they hold samples, and follows those.
static void fuzz_follow(hth_graph *g)
{
    hth_independence found;
    if (g->n_symbols == 0) {
        g->symbols = hth_realloc(g->symbols, 1, sizeof *g->symbols);
        if (g->symbols == NULL || (g->symbols[0] = hth_strdup("N")) == NULL) {
            abort();
        }
        g->n_symbols = 1;
    }
    for (int i = 0; i < g->n_inputs; i++) {
        hth_shape *s = &g->values[g->inputs[i]].shape;
        if (s->rank > 0) {
            s->dim[0] = HTH_DIM_SYMBOL(0);
        }
    }
    if (hth_independence_prove(g, &found) != HTH_OK || found.proven != (found.why[0] == 0) ||
        found.node >= g->n_nodes) {
        abort();
    }
}

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
    if (hth_onnx_load(skeleton, bytes, c, n, limits, &g) == HTH_OK) {
        if (hth_graph_check(g) != HTH_OK) {
            abort();
        }
        fuzz_follow(g);
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
