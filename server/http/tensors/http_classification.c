// SPDX-License-Identifier: Apache-2.0
// The classification extension: of each row of an output its N largest values, as strings
// "value:index". A heap of N with the smallest on top is kept while a row is read; equal values
// rank by index, NaN below everything.
#include "server/http/http_infer.h"

#include "client/dtype.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Elements after which it is looked whether the request is canceled.
#define CLASS_LOOKS 65536
// The longest texts of a class: a sign, the digits, a point and six more, ":", an index; and what
// is around it in JSON, or its length.
#define CLASS_BESIDES (1 + 1 + 6 + 1 + 19 + 4)
#define CLASS_DOUBLE  (DBL_MAX_10_EXP + 1 + CLASS_BESIDES)
#define CLASS_OTHER   (FLT_MAX_10_EXP + 1 + CLASS_BESIDES) // BF16's exponent is FP32's

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

static bool is_canceled(hth_text *out)
{
    bool canceled = out->canceled != NULL && atomic_load(out->canceled);
    out->failed = out->failed || canceled;
    return canceled;
}

// top stores the `n` largest of `count` elements from `first` on, in order. It ends early where
// `out` is canceled.
static void top(const hth_tensor *tensor, int64_t first, int64_t count, entry *heap, int64_t n,
                hth_text *out)
{
    for (int64_t i = 0; i < n; i++) {
        heap[i] = (entry){-INFINITY, INT64_MAX};
    }
    for (int64_t i = 0; i < count; i++) {
        if (i % CLASS_LOOKS == 0 && is_canceled(out)) {
            return;
        }
        double v = hth_dtype_value((int)tensor->dtype, tensor->data, (size_t)(first + i));
        entry e = {isnan(v) ? -INFINITY : v, i};
        if (below(&heap[0], &e)) {
            heap[0] = e;
            sift(heap, n);
        }
    }
    qsort(heap, (size_t)n, sizeof *heap, largest_first);
}

static void class_string(const hth_tensor *tensor, int64_t first, const entry *e,
                         char out[CLASS_DOUBLE])
{
    double v = hth_dtype_value((int)tensor->dtype, tensor->data, (size_t)(first + e->index));
    snprintf(out, CLASS_DOUBLE, hth_dtype_is_float(tensor->dtype) ? "%f:%lld" : "%.0f:%lld", v,
             (long long)e->index);
}

hth_shape hth_infer_classes(const hth_tensor *tensor, bool batched, int64_t count)
{
    bool rows = batched && tensor->shape.rank > 1;
    int64_t all = hth_shape_elements(&tensor->shape), n_rows = rows ? tensor->shape.dim[0] : 1;
    int64_t row = n_rows > 0 ? all / n_rows : 0;
    count = count < row ? count : row;
    return rows ? (hth_shape){2, {n_rows, count}} : (hth_shape){1, {count}};
}

uint64_t hth_infer_classes_most(const hth_tensor *tensor, const hth_shape *classes)
{
    uint64_t n = (uint64_t)hth_shape_elements(classes);
    uint64_t ranked = (uint64_t)classes->dim[classes->rank - 1] * sizeof(entry);
    return n * (tensor->dtype == HTH_DT_F64 ? CLASS_DOUBLE : CLASS_OTHER) + ranked;
}

void hth_infer_classify(const hth_tensor *tensor, const hth_shape *classes, bool binary,
                        hth_text *out)
{
    int64_t n_rows = classes->rank > 1 ? classes->dim[0] : 1;
    int64_t count = classes->dim[classes->rank - 1];
    int64_t row = count > 0 && n_rows > 0 ? hth_shape_elements(&tensor->shape) / n_rows : 0;
    entry *heap = out->failed ? NULL : hth_calloc((size_t)count + 1, sizeof *heap);
    out->failed = heap == NULL;
    if (!binary) {
        hth_text_put(out, "[");
    }
    for (int64_t r = 0; r < n_rows && count > 0 && !out->failed; r++) {
        top(tensor, r * row, row, heap, count, out);
        for (int64_t i = 0; i < count && !out->failed; i++) {
            char s[CLASS_DOUBLE];
            if (i % CLASS_LOOKS == 0 && is_canceled(out)) {
                break;
            }
            class_string(tensor, r * row, &heap[i], s);
            uint32_t bytes = (uint32_t)strlen(s);
            if (binary) {
                hth_text_add(out, (const char *)&bytes, sizeof bytes);
                hth_text_put(out, s);
            } else {
                hth_text_put(out, r + i > 0 ? ",\"" : "\"");
                hth_text_put(out, s);
                hth_text_put(out, "\"");
            }
        }
    }
    if (!binary) {
        hth_text_put(out, "]");
    }
    hth_free(heap);
}
