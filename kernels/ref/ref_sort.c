// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_sort.c - selection by score: TopK and NonMaxSuppression.
//
// Every element becomes a 64-bit key whose order as a signed integer is the element's order (floats
// by their bits, NaN above all, both zeros equal). With the position as the second key the order is
// total, so any sort is stable and the result the same everywhere.
#include "kernels/ref/ref_num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SORT_STEPS 64 // the work of sorting, by element
#define NMS_PAIR   8  // of comparing two boxes

typedef struct sort_item {
    int64_t key, index;
} sort_item;

static int sort_compare(const void *a, const void *b)
{
    const sort_item *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return (x->index > y->index) - (x->index < y->index);
}

static int64_t sort_key_of_double(double v)
{
    int64_t bits;
    v += 0.0; // -0 becomes +0
    memcpy(&bits, &v, sizeof bits);
    if (v != v) {
        return INT64_MAX;
    }
    return bits < 0 ? INT64_MIN - bits : bits;
}

static int64_t sort_key(const hth_tensor *tensor, int64_t i)
{
    if (!ref_is_int(tensor->dtype)) {
        return sort_key_of_double(ref_get_f64(tensor->dtype, tensor->data, i));
    }
    int64_t v = ref_get_i64(tensor->dtype, tensor->data, i);
    return tensor->dtype == HTH_DT_U64 ? (int64_t)((uint64_t)v ^ (1ull << 63)) : v;
}

static hth_err sort_topk_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                              hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int axis = ref_axis(hth_node_int(node, "axis", -1), s->rank);
    bool largest = hth_node_int(node, "largest", 1) != 0;
    hth_tensor *values = ref_out(node, out, 0), *indices = ref_out(node, out, 1);
    size_t bytes = hth_dtype_bytes(in[0].dtype);
    int64_t outer, along, inner, k = ref_i64_at(&in[1], 0);
    sort_item *item;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    ref_around(s, axis, &outer, &along, &inner);
    for (int i = 0; i < 2; i++) {
        hth_tensor *t = i ? indices : values;
        if (t && (k < 0 || k > along || ref_count(t) != outer * k * inner)) {
            return hth_fail(HTH_EINVAL, "k = %lld does not fit", (long long)k);
        }
    }
    HTH_TRY(REF_TAKE(mem, along, &item));
    for (int64_t r = 0; r < outer * inner && !hth_pace_over((uint64_t)along * SORT_STEPS); r++) {
        int64_t from = r / inner * along * inner + r % inner,
                to = r / inner * k * inner + r % inner;
        for (int64_t i = 0; i < along; i++) {
            int64_t key = sort_key(&in[0], from + i * inner);
            item[i] = (sort_item){largest ? ~key : key, i};
        }
        qsort(item, (size_t)along, sizeof *item, sort_compare);
        for (int64_t i = 0; i < k; i++) {
            if (values) {
                memcpy((char *)values->data + (size_t)(to + i * inner) * bytes,
                       (const char *)in[0].data + (size_t)(from + item[i].index * inner) * bytes,
                       bytes);
            }
            if (indices) {
                ((int64_t *)indices->data)[to + i * inner] = item[i].index;
            }
        }
    }
    return HTH_OK;
}

typedef struct nms_box {
    double lo[2], hi[2];
} nms_box;

static nms_box nms_read(const hth_tensor *boxes, int64_t i, bool centre)
{
    double v[4];
    nms_box b;
    ref_wide_at(boxes, 4 * i, 4, v);
    for (int d = 0; d < 2; d++) {
        b.lo[d] = centre ? v[d] - v[d + 2] / 2 : fmin(v[d], v[d + 2]);
        b.hi[d] = centre ? v[d] + v[d + 2] / 2 : fmax(v[d], v[d + 2]);
    }
    return b;
}

// Intersection over union; 0 when either box is empty.
static double nms_overlap(const nms_box *a, const nms_box *b)
{
    double common = 1, area_a = 1, area_b = 1;
    for (int d = 0; d < 2; d++) {
        common *= fmax(fmin(a->hi[d], b->hi[d]) - fmax(a->lo[d], b->lo[d]), 0);
        area_a *= a->hi[d] - a->lo[d];
        area_b *= b->hi[d] - b->lo[d];
    }
    return common > 0 && area_a > 0 && area_b > 0 ? common / (area_a + area_b - common) : 0;
}

typedef struct nms {
    const hth_tensor *boxes, *scores, *min_score;
    int64_t n_boxes, max_out;
    double max_overlap;
    bool centre;
    sort_item *item; // candidates of one class
    nms_box *kept;   // selected ones of one class
    int64_t *out;    // (count, 3), NULL: count only
    int64_t count;
} nms;

static void nms_class(nms *s, int64_t batch, int64_t n_classes, int64_t c)
{
    int64_t n = 0, kept = 0, first = (batch * n_classes + c) * s->n_boxes;
    if (hth_pace_over((uint64_t)s->n_boxes * SORT_STEPS)) {
        return;
    }
    for (int64_t i = 0; i < s->n_boxes; i++) {
        double score = ref_f64_at(s->scores, first + i);
        if (!s->min_score || score > ref_f64_at(s->min_score, 0)) {
            s->item[n++] = (sort_item){~sort_key_of_double(score), i};
        }
    }
    qsort(s->item, (size_t)n, sizeof *s->item, sort_compare);
    for (int64_t i = 0; i < n && kept < s->max_out; i++) {
        nms_box b = nms_read(s->boxes, batch * s->n_boxes + s->item[i].index, s->centre);
        bool clear = true;
        if (hth_pace_over((uint64_t)kept * NMS_PAIR)) {
            return;
        }
        for (int64_t k = 0; k < kept && clear; k++) {
            clear = nms_overlap(&b, &s->kept[k]) <= s->max_overlap;
        }
        if (!clear) {
            continue;
        }
        s->kept[kept++] = b;
        if (s->out) {
            int64_t *to = s->out + 3 * s->count;
            to[0] = batch;
            to[1] = c;
            to[2] = s->item[i].index;
        }
        s->count++;
    }
}

static hth_err nms_all(ref_mem *mem, const hth_node *node, const hth_tensor *in, int64_t *out,
                       int64_t *count)
{
    const hth_tensor *min_score = ref_in(node, in, 4);
    const hth_shape *b = &in[0].shape, *c = &in[1].shape;
    nms s = {.boxes = &in[0], .scores = &in[1], .out = out};
    if (b->rank != 3 || c->rank != 3 || b->dim[2] != 4 || b->dim[1] != c->dim[2] ||
        b->dim[0] != c->dim[0]) {
        return hth_fail(HTH_EINVAL, "the shapes of boxes and scores do not agree");
    }
    s.n_boxes = b->dim[1];
    s.max_out = ref_i64_at(ref_in(node, in, 2), 0);
    s.max_overlap = ref_f64_at(ref_in(node, in, 3), 0);
    s.min_score = min_score && ref_count(min_score) > 0 ? min_score : NULL;
    s.centre = hth_node_int(node, "center_point_box", 0) != 0;
    HTH_TRY(REF_TAKE(mem, s.n_boxes, &s.item));
    HTH_TRY(REF_TAKE(mem, s.n_boxes, &s.kept));
    for (int64_t i = 0; i < b->dim[0]; i++) {
        for (int64_t k = 0; k < c->dim[1]; k++) {
            nms_class(&s, i, c->dim[1], k);
        }
    }
    *count = s.count;
    return HTH_OK;
}

static hth_err sort_nms_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    int64_t count;
    HTH_TRY(nms_all(mem, node, in, NULL, &count));
    if (out[0].data == NULL) {
        out[0].shape = (hth_shape){.rank = 2, .dim = {count, 3}};
        out[0].bytes = (size_t)count * 3 * sizeof(int64_t);
        return HTH_OK;
    }
    if (ref_count(&out[0]) != 3 * count) {
        return hth_fail(HTH_EINVAL, "the output must hold exactly %lld boxes", (long long)count);
    }
    return nms_all(mem, node, in, out[0].data, &count);
}

REF_OP(ref_topk, sort_topk_body)
REF_OP(ref_non_max_suppression, sort_nms_body)
