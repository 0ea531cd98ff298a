// SPDX-License-Identifier: Apache-2.0
// graph/infer_matmul.c - matrix products in all their dresses: MatMul, Gemm, Einsum, attention; and
// the determinant.
#include "graph/infer.h"

#include <ctype.h>
#include <string.h>

static void swap_last(hth_shape *shape, bool swap)
{
    if (swap) {
        int64_t rows = shape->dim[shape->rank - 2];
        shape->dim[shape->rank - 2] = shape->dim[shape->rank - 1];
        shape->dim[shape->rank - 1] = rows;
    }
}

// MatMul as ONNX has it, and with our attributes transA and transB: the operand's last two
// dimensions change places (autodiff; vectors are left alone).
hth_err hth_infer_matmul(hth_infer *infer)
{
    hth_shape a = *hth_infer_shape(infer, 0), b = *hth_infer_shape(infer, 1), s;
    bool row = a.rank == 1,
         column = b.rank == 1; // a vector counts as a matrix of one row or column
    HTH_TRY(hth_infer_rank(infer, 0, 1, HTH_MAX_RANK));
    HTH_TRY(hth_infer_rank(infer, 1, 1, HTH_MAX_RANK));
    HTH_TRY(hth_infer_same_dtype(infer, 0, 1));
    a = row ? (hth_shape){2, {1, a.dim[0]}} : a;
    b = column ? (hth_shape){2, {b.dim[0], 1}} : b;
    swap_last(&a, !row && hth_node_int(infer->n, "transA", 0) != 0);
    swap_last(&b, !column && hth_node_int(infer->n, "transB", 0) != 0);
    int64_t m = a.dim[a.rank - 2], k = a.dim[a.rank - 1], n = b.dim[b.rank - 1];
    if (k != b.dim[b.rank - 2]) {
        return hth_infer_disagree(infer, "A", 0, "B", 1);
    }
    a.rank -= 2;
    b.rank -= 2;
    if (hth_shape_broadcast(&a, &b, &s) != HTH_OK) {
        return hth_infer_disagree(infer, "A", 0, "B", 1);
    }
    if (!row) {
        HTH_TRY(hth_infer_push(infer, &s, m));
    }
    if (!column) {
        HTH_TRY(hth_infer_push(infer, &s, n));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

// All dimensions but the last as rows.
static hth_err flatten(const hth_infer *infer, int i, hth_shape *out)
{
    const hth_shape *s = hth_infer_shape(infer, i);
    *out = (hth_shape){2, {1, s->dim[s->rank - 1]}};
    for (int d = 0; d < s->rank - 1; d++) {
        if (hth_dim_mul(out->dim[0], s->dim[d], &out->dim[0])) {
            return hth_infer_overflow(infer);
        }
    }
    return HTH_OK;
}

// Gemm as ONNX has it, and with our attribute flatten: all dimensions of A and B but the last are
// rows (autodiff).
hth_err hth_infer_gemm(hth_infer *infer)
{
    int most = hth_node_int(infer->n, "flatten", 0) != 0 ? HTH_MAX_RANK : 2;
    hth_shape first, second;
    HTH_TRY(hth_infer_rank(infer, 0, 2, most));
    HTH_TRY(hth_infer_rank(infer, 1, 2, most));
    HTH_TRY(hth_infer_same_dtype(infer, 0, 1));
    HTH_TRY(flatten(infer, 0, &first));
    HTH_TRY(flatten(infer, 1, &second));
    const hth_shape *a = &first, *b = &second;
    int ta = hth_node_int(infer->n, "transA", 0) != 0,
        tb = hth_node_int(infer->n, "transB", 0) != 0;
    hth_shape s = {2, {a->dim[ta], b->dim[!tb]}}, joined;
    if (a->dim[!ta] != b->dim[tb]) {
        return hth_infer_disagree(infer, "A", 0, "B", 1);
    }
    if (hth_infer_has(infer, 2) &&
        (hth_shape_broadcast(&s, hth_infer_shape(infer, 2), &joined) != HTH_OK ||
         !hth_shape_equal(&joined, &s))) {
        return hth_infer_disagree(infer, "B", 1, "C", 2);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

// What an equation's letters and its "..." stand for.
typedef struct labels {
    int64_t dim[128]; // by letter; -1: not seen
    int count[128];   // how often among the inputs
    hth_shape rest;   // broadcast of what "..." covers
} labels;

// One term of the left side, up to ',' or '-' or the end, against input i.
static hth_err einsum_term(hth_infer *infer, const char *p, size_t len, int i, labels *l)
{
    const hth_shape *x = hth_infer_shape(infer, i);
    int letters = 0, at = 0;
    for (size_t k = 0; k < len; k++) {
        letters += isalpha((unsigned char)p[k]) != 0;
    }
    for (size_t k = 0; k < len; k++) {
        unsigned char ch = (unsigned char)p[k];
        if (strncmp(p + k, "...", 3) == 0 && letters <= x->rank && at <= letters) {
            hth_shape part = {.rank = x->rank - letters}, joined;
            memcpy(part.dim, x->dim + at, (size_t)part.rank * sizeof part.dim[0]);
            if (hth_shape_broadcast(&l->rest, &part, &joined) != HTH_OK) {
                return hth_infer_disagree(infer, "the first input", 0, "a later one", i);
            }
            l->rest = joined;
            at += part.rank;
            k += 2;
        } else if (isalpha(ch) && at < x->rank) {
            int64_t *dim = &l->dim[ch];
            if (*dim != -1 && *dim != 1 && x->dim[at] != *dim && x->dim[at] != 1) {
                return hth_infer_disagree(infer, "the first input", 0, "a later one", i);
            }
            *dim = *dim == -1 || *dim == 1 ? x->dim[at] : *dim;
            l->count[ch]++;
            at++;
        } else if (ch != ' ') {
            return hth_infer_fail(infer, HTH_EINVAL, "input %d and its term '%.*s' do not agree", i,
                                  (int)len, p);
        }
    }
    if (at != x->rank) {
        return hth_infer_fail(infer, HTH_EINVAL, "term '%.*s' does not name all %d dimensions",
                              (int)len, p, x->rank);
    }
    return HTH_OK;
}

// Without "->": the dimensions of "...", then every letter that stands once, in alphabetical order.
static hth_err einsum_implicit(hth_infer *infer, const labels *l, hth_shape *shape)
{
    *shape = l->rest;
    for (int ch = 'A'; ch <= 'z'; ch++) {
        if (l->count[ch] == 1) {
            HTH_TRY(hth_infer_push(infer, shape, l->dim[ch]));
        }
    }
    return HTH_OK;
}

static hth_err einsum_explicit(hth_infer *infer, const char *p, const labels *l, hth_shape *shape)
{
    for (; *p != '\0'; p++) {
        unsigned char ch = (unsigned char)*p;
        if (strncmp(p, "...", 3) == 0) {
            for (int i = 0; i < l->rest.rank; i++) {
                HTH_TRY(hth_infer_push(infer, shape, l->rest.dim[i]));
            }
            p += 2;
        } else if (isalpha(ch) && l->count[ch] > 0) {
            HTH_TRY(hth_infer_push(infer, shape, l->dim[ch]));
        } else if (ch != ' ') {
            return hth_infer_fail(infer, HTH_EINVAL, "'%c' in the equation's result is not known",
                                  ch);
        }
    }
    return HTH_OK;
}

hth_err hth_infer_einsum(hth_infer *infer)
{
    const char *p = hth_node_str(infer->n, "equation", ""), *arrow = strstr(p, "->");
    const char *end = arrow != NULL ? arrow : p + strlen(p);
    labels l = {.rest = {.rank = 0}};
    hth_shape s = {0};
    memset(l.dim, 0xff, sizeof l.dim);
    for (int i = 0; i < infer->n_in; i++) {
        size_t len = strcspn(p, ",");
        len = len < (size_t)(end - p) ? len : (size_t)(end - p);
        if (!hth_infer_has(infer, i) || (i < infer->n_in - 1) != (p + len < end)) {
            return hth_infer_fail(infer, HTH_EINVAL, "the equation has not %d terms", infer->n_in);
        }
        HTH_TRY(hth_infer_same_dtype(infer, 0, i));
        HTH_TRY(einsum_term(infer, p, len, i, &l));
        p += len + (p + len < end);
    }
    HTH_TRY(arrow != NULL ? einsum_explicit(infer, arrow + 2, &l, &s)
                          : einsum_implicit(infer, &l, &s));
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_det(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 2, HTH_MAX_RANK));
    hth_shape s = *hth_infer_shape(infer, 0);
    s.rank -= 2;
    if (s.dim[s.rank] != s.dim[s.rank + 1]) {
        return hth_infer_fail(infer, HTH_EINVAL, "the matrix is %lld x %lld",
                              (long long)s.dim[s.rank], (long long)s.dim[s.rank + 1]);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

// Brings [B, T, H*D] into [B, H, T, D]; 4 dimensions are so already.
static hth_err split_heads(const hth_infer *infer, int i, const char *attr, hth_shape *out)
{
    const hth_shape *x = hth_infer_shape(infer, i);
    int64_t heads = hth_node_int(infer->n, attr, 0);
    HTH_TRY(hth_infer_rank(infer, i, 3, 4));
    if (x->rank == 4) {
        *out = *x;
        return HTH_OK;
    }
    if (heads < 1 || x->dim[2] % heads != 0) {
        return hth_infer_fail(infer, HTH_EINVAL, "input %d: %lld columns for %s = %lld", i,
                              (long long)x->dim[2], attr, (long long)heads);
    }
    *out = (hth_shape){4, {x->dim[0], heads, x->dim[1], x->dim[2] / heads}};
    return HTH_OK;
}

hth_err hth_infer_attention(hth_infer *infer)
{
    hth_shape q, k, v;
    int64_t past = 0, total;
    HTH_TRY(split_heads(infer, 0, "q_num_heads", &q));
    HTH_TRY(split_heads(infer, 1, "kv_num_heads", &k));
    HTH_TRY(split_heads(infer, 2, "kv_num_heads", &v));
    if (q.dim[0] != k.dim[0] || q.dim[3] != k.dim[3] || k.dim[1] < 1 || q.dim[1] % k.dim[1] != 0) {
        return hth_infer_disagree(infer, "Q", 0, "K", 1);
    }
    if (k.dim[0] != v.dim[0] || k.dim[1] != v.dim[1] || k.dim[2] != v.dim[2]) {
        return hth_infer_disagree(infer, "K", 1, "V", 2);
    }
    if (hth_infer_has(infer, 4)) {
        HTH_TRY(hth_infer_rank(infer, 4, 4, 4));
        past = hth_infer_shape(infer, 4)->dim[2];
    }
    if (hth_dim_add(past, k.dim[2], &total)) {
        return hth_infer_overflow(infer);
    }
    hth_shape y = {4, {q.dim[0], q.dim[1], q.dim[2], v.dim[3]}};
    if (hth_infer_shape(infer, 0)->rank == 3) {
        y = (hth_shape){3, {q.dim[0], q.dim[2], 0}};
        if (hth_dim_mul(q.dim[1], v.dim[3], &y.dim[2])) {
            return hth_infer_overflow(infer);
        }
    }
    hth_shape qk = {4, {q.dim[0], q.dim[1], q.dim[2], total}};
    k.dim[2] = v.dim[2] = total;
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &y));
    HTH_TRY(hth_infer_out(infer, 1, hth_infer_dtype(infer, 1), &k));
    HTH_TRY(hth_infer_out(infer, 2, hth_infer_dtype(infer, 2), &v));
    return hth_infer_out(infer, 3, hth_infer_dtype(infer, 0), &qk);
}

hth_err hth_infer_fused_attention(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 2, HTH_MAX_RANK));
    HTH_TRY(hth_infer_rank(infer, 2, 2, HTH_MAX_RANK));
    hth_shape s = *hth_infer_shape(infer, 0);
    s.dim[s.rank - 1] = hth_infer_shape(infer, 2)->dim[hth_infer_shape(infer, 2)->rank - 1];
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}
