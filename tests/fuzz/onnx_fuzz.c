// SPDX-License-Identifier: Apache-2.0
// Fuzzes the importer: any bytes are a model or are refused; what loads is a valid graph, and
// nothing leaks. Its samples are followed through it, whatever it is, and it is exported: what is
// opened of that is the same again. clang -fsanitize=fuzzer,address; seeds: tests/data/onnx.
#include "graph/independence.h"
#include "graph/onnx/onnx.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// Says of all inputs that they hold samples, and follows those.
static void fuzz_follow(hth_graph *graph)
{
    hth_independence found;
    if (graph->n_symbols == 0) {
        graph->symbols = hth_realloc(graph->symbols, 1, sizeof *graph->symbols);
        if (graph->symbols == NULL || (graph->symbols[0] = hth_strdup("N")) == NULL) {
            abort();
        }
        graph->n_symbols = 1;
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        hth_shape *s = &graph->values[graph->inputs[i]].shape;
        if (s->rank > 0) {
            s->dim[0] = HTH_DIM_SYMBOL(0);
        }
    }
    if (hth_independence_prove(graph, &found) != HTH_OK || found.proven != (found.why[0] == 0) ||
        found.node >= graph->n_nodes) {
        abort();
    }
}

// Texts of metadata lie in the skeleton, all of them apart from each other.
static void fuzz_entry(void *ctx, hth_onnx_text key, hth_onnx_text value)
{
    size_t *left = ctx;
    if (key.bytes + value.bytes > *left) {
        abort();
    }
    *left -= key.bytes + value.bytes;
}

typedef struct fuzz_file {
    const hth_onnx_file *from; // NULL: of a skeleton without tensors' bytes
    char *data;
    size_t bytes, cap;
} fuzz_file;

static hth_err fuzz_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    const fuzz_file *f = ctx;
    memset(dst, 0, n);
    return f->from != NULL ? hth_onnx_tensor_read(f->from, i, at, dst, n)
                           : hth_fail(HTH_EIO, "it has no bytes");
}

static hth_err fuzz_write(void *ctx, const void *data, size_t n)
{
    fuzz_file *f = ctx;
    if (f->bytes + n > f->cap) {
        f->cap = 2 * (f->bytes + n);
        f->data = realloc(f->data, f->cap);
        if (f->data == NULL) {
            abort();
        }
    }
    memcpy(f->data + f->bytes, data, n);
    f->bytes += n;
    return HTH_OK;
}

static hth_err fuzz_export(fuzz_file *to, const void *skeleton, size_t bytes, int n, bool inference)
{
    to->bytes = 0;
    return hth_onnx_export_write(&(hth_onnx_export){.skeleton = skeleton,
                                                    .skeleton_bytes = bytes,
                                                    .n_tensors = n,
                                                    .inference = inference,
                                                    .read = fuzz_read,
                                                    .write = fuzz_write,
                                                    .ctx = to});
}

// Of a model that loads.
static void fuzz_round_trip(const hth_onnx_file *file)
{
    size_t bytes, again_bytes;
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    fuzz_file to = {.from = file};
    hth_onnx_file *again;
    (void)fuzz_export(&to, skeleton, bytes, hth_onnx_n_tensors(file), true);
    if (fuzz_export(&to, skeleton, bytes, hth_onnx_n_tensors(file), false) != HTH_OK ||
        hth_onnx_open_bytes(to.data, to.bytes, NULL, &again) != HTH_OK) {
        abort();
    }
    const void *same = hth_onnx_skeleton(again, &again_bytes);
    if (bytes != again_bytes || memcmp(skeleton, same, bytes) != 0 ||
        hth_onnx_n_tensors(file) != hth_onnx_n_tensors(again)) {
        abort();
    }
    hth_onnx_close(again);
    free(to.data);
}

static void fuzz_load(const hth_onnx_file *file, const hth_onnx_limits *limits)
{
    size_t bytes;
    int n = hth_onnx_n_tensors(file);
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    size_t left = bytes;
    hth_onnx_metadata(skeleton, bytes, fuzz_entry, &left);
    hth_const **c = hth_calloc((size_t)n, sizeof(hth_const *));
    hth_graph *g = NULL;
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(file, i);
        if (hth_const_new(t->dtype, &t->shape, t->data, &c[i]) != HTH_OK) {
            abort();
        }
    }
    if (hth_onnx_load(skeleton, bytes, c, n, limits, &g) == HTH_OK) {
        if (hth_graph_check(g) != HTH_OK) {
            abort();
        }
        fuzz_follow(g);
        fuzz_round_trip(file);
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
    size_t left = bytes;
    hth_onnx_metadata(data, bytes, fuzz_entry, &left);
    hth_onnx_load(data, bytes, NULL, 0, &limits, &g);
    hth_graph_free(g);
    fuzz_file to = {.from = NULL};
    for (int n = 0; n < 3; n++) {
        (void)fuzz_export(&to, data, bytes, n, true);
    }
    free(to.data);
    if (hth_alloc_live() != live) {
        abort();
    }
    return 0;
}
