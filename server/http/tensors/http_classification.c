// SPDX-License-Identifier: Apache-2.0
// The classification extension: of each row of an output its N largest values, as strings
// "value:index". A heap of N with the smallest on top is kept while a row is read; equal values
// rank by index, NaN below everything.
#include "server/http/http_infer.h"

#include "client/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    double value;
    int64_t index;
} entry;

static bool below(const entry *a, const entry *b)
{
    return a->value < b->value || (a->value == b->value && a->index > b->index);
}

static void sift(entry *heap, int64_t n)
{
    for (int64_t i = 0, child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && below(&heap[child + 1], &heap[child]);
        if (!below(&heap[child], &heap[i])) {
            return;
        }
        entry t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
    }
}

static int largest_first(const void *a, const void *b)
{
    return below(a, b) ? 1 : -1;
}

// top stores the `n` largest of `count` elements from `first` on, in order.
static void top(const hth_tensor *tensor, int64_t first, int64_t count, entry *heap, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        heap[i] = (entry){-INFINITY, INT64_MAX};
    }
    for (int64_t i = 0; i < count; i++) {
        double v = hth_dtype_value((int)tensor->dtype, tensor->data, (size_t)(first + i));
        entry e = {isnan(v) ? -INFINITY : v, i};
        if (below(&heap[0], &e)) {
            heap[0] = e;
            sift(heap, n);
        }
    }
    qsort(heap, (size_t)n, sizeof *heap, largest_first);
}

static void class_string(const hth_tensor *tensor, int64_t first, const entry *e, char out[400])
{
    double v = hth_dtype_value((int)tensor->dtype, tensor->data, (size_t)(first + e->index));
    snprintf(out, 400, hth_dtype_is_float(tensor->dtype) ? "%f:%lld" : "%.0f:%lld", v,
             (long long)e->index);
}

hth_err hth_infer_classify(const hth_tensor *tensor, bool batched, int64_t count,
                           hth_infer_classes *out)
{
    bool rows = batched && tensor->shape.rank > 1;
    int64_t all = hth_shape_elements(&tensor->shape), n_rows = rows ? tensor->shape.dim[0] : 1;
    int64_t row = n_rows > 0 ? all / n_rows : 0;
    count = count < row ? count : row;
    *out = (hth_infer_classes){.shape = rows ? (hth_shape){2, {n_rows, count}}
                                             : (hth_shape){1, {count}}};
    entry *heap = hth_calloc((size_t)count + 1, sizeof *heap);
    if (heap == NULL) {
        return hth_no_memory("%lld classes", (long long)count);
    }
    hth_text_put(&out->json, "[");
    for (int64_t r = 0; r < n_rows && count > 0; r++) {
        top(tensor, r * row, row, heap, count);
        for (int64_t i = 0; i < count; i++) {
            char s[400];
            class_string(tensor, r * row, &heap[i], s);
            uint32_t bytes = (uint32_t)strlen(s);
            hth_text_put(&out->json, r + i > 0 ? ",\"" : "\"");
            hth_text_put(&out->json, s);
            hth_text_put(&out->json, "\"");
            hth_text_add(&out->binary, (const char *)&bytes, sizeof bytes);
            hth_text_put(&out->binary, s);
        }
    }
    hth_text_put(&out->json, "]");
    hth_free(heap);
    if (out->json.failed || out->binary.failed) {
        hth_infer_classes_fini(out);
        return hth_no_memory("%lld classes", (long long)count);
    }
    return HTH_OK;
}

void hth_infer_classes_fini(hth_infer_classes *classes)
{
    hth_text_fini(&classes->json);
    hth_text_fini(&classes->binary);
}
