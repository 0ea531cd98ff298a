// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_attention.c - Attention, FusedAttention, RotaryEmbedding.
//
// Heads are brought to (batch, heads, sequence, size) first, so that one loop over (batch, head)
// serves operands of three and four dimensions, grouped heads and a cache. Whether a row attends to
// anything is decided on the bias, not on the scores: a row that may see no key gives zeros, never
// NaN.
#include "graph/attention.h"

#include "base/compare.h"
#include "kernels/ref/ref_num.h"

#include <math.h>
#include <string.h>

#define ATTENTION_KEY 16 // the work of a key, beyond its product

typedef struct attention {
    int64_t batch, heads, kv_heads, queries, keys, past, size, v_size;
    double *q, *k, *v; // (batch, heads, sequence, size)
    double *mask;      // (batch, heads, queries, keys) or NULL
    double scale, softcap;
    bool causal;
    int64_t left, right; // window, -1: open
    const hth_tensor *lengths;
    int mode;       // what `scores` gets
    double *y;      // (batch, heads, queries, v_size)
    double *scores; // (batch, heads, queries, keys), NULL: not wanted
} attention;

// attention_heads brings tensor to (batch, heads, past + sequence, size), after the cache.
static hth_err attention_heads(ref_mem *mem, const hth_tensor *tensor, const hth_tensor *past,
                               int64_t heads, double **out)
{
    const hth_shape *s = &tensor->shape;
    bool flat = s->rank == 3;
    int64_t batch = s->dim[0], len = s->dim[flat ? 1 : 2];
    int64_t n_past = past ? past->shape.dim[2] : 0;
    int64_t size = flat ? s->dim[2] / heads : s->dim[3];
    HTH_TRY(REF_TAKE(mem, batch * heads * (n_past + len) * size, out));
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t h = 0; h < heads; h++) {
            double *to = *out + (b * heads + h) * (n_past + len) * size;
            if (past) {
                ref_wide_at(past, (b * heads + h) * n_past * size, n_past * size, to);
            }
            for (int64_t t = 0; t < len; t++) {
                int64_t from = flat ? (b * len + t) * heads + h : (b * heads + h) * len + t;
                ref_wide_at(tensor, from * size, size, to + (n_past + t) * size);
            }
        }
    }
    return HTH_OK;
}

// attention_mask makes the additive mask; a mask shorter than the keys excludes the rest.
static hth_err attention_mask(ref_mem *mem, attention *a, const hth_tensor *tensor)
{
    hth_shape full = {.rank = 4, .dim = {a->batch, a->heads, a->queries, 0}};
    int64_t width = tensor->shape.rank ? tensor->shape.dim[tensor->shape.rank - 1] : 1,
            rows = a->batch * a->heads * a->queries;
    double *x;
    full.dim[3] = width == 1 ? a->keys : width;
    if (full.dim[3] > a->keys) {
        return hth_fail(HTH_EINVAL, "the mask is longer than the keys");
    }
    HTH_TRY(ref_expand(mem, tensor, &full, &x));
    HTH_TRY(REF_TAKE(mem, rows * a->keys, &a->mask));
    HTH_TRY(hth_pace_step((uint64_t)(rows * a->keys)));
    for (int64_t i = 0; i < rows * a->keys; i++) {
        int64_t key = i % a->keys;
        double v = key < full.dim[3] ? x[i / a->keys * full.dim[3] + key] : -INFINITY;
        bool drop = key >= full.dim[3] || (tensor->dtype == HTH_DT_BOOL && v == 0);
        double kept = tensor->dtype == HTH_DT_BOOL ? 0 : v;
        a->mask[i] = drop ? -INFINITY : kept;
    }
    return HTH_OK;
}

// The bias of (batch, head, query, key).
static double attention_bias(const attention *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t valid = a->lengths ? ref_i64_at(a->lengths, b) : a->keys;
    valid = hth_clamp(valid, 0, a->keys); // a length comes with the request
    int64_t at = i + (a->lengths ? valid - a->queries : a->past);
    bool hidden = j >= valid || (a->causal && j > at) || (a->left >= 0 && at - j > a->left) ||
                  (a->right >= 0 && j - at > a->right);
    double mask = a->mask ? a->mask[((b * a->heads + h) * a->queries + i) * a->keys + j] : 0;
    return hidden ? -INFINITY : mask;
}

// Scores of one row become probabilities; what the fourth output wants is kept on the way.
static void attention_row(const attention *a, int64_t b, int64_t h, int64_t i, double *row)
{
    double *keep = a->scores ? a->scores + ((b * a->heads + h) * a->queries + i) * a->keys : NULL;
    size_t bytes = (size_t)a->keys * sizeof *row;
    bool any = false;
    if (keep && a->mode == 0) {
        memcpy(keep, row, bytes);
    }
    for (int64_t j = 0; j < a->keys && a->softcap > 0; j++) {
        row[j] = a->softcap * tanh(row[j] / a->softcap);
    }
    if (keep && a->mode == 1) {
        memcpy(keep, row, bytes);
    }
    for (int64_t j = 0; j < a->keys; j++) {
        double bias = attention_bias(a, b, h, i, j);
        any |= bias > -INFINITY;
        row[j] += bias;
    }
    if (keep && a->mode == 2) {
        memcpy(keep, row, bytes);
    }
    if (any) {
        ref_softmax_row(row, a->keys);
    } else {
        memset(row, 0, bytes);
    }
    if (keep && a->mode == 3) {
        memcpy(keep, row, bytes);
    }
}

static hth_err attention_run(ref_mem *mem, attention *a)
{
    double *kt, *s;
    HTH_TRY(REF_TAKE(mem, a->size * a->keys, &kt));
    HTH_TRY(REF_TAKE(mem, a->queries * a->keys, &s));
    HTH_TRY(REF_TAKE(mem, a->batch * a->heads * a->queries * a->v_size, &a->y));
    for (int64_t i = 0; i < a->batch * a->heads; i++) {
        int64_t b = i / a->heads, h = i % a->heads;
        int64_t kv = b * a->kv_heads + h / (a->heads / a->kv_heads);
        ref_transpose_f64(a->k + kv * a->keys * a->size, a->keys, a->size, kt);
        memset(s, 0, (size_t)(a->queries * a->keys) * sizeof *s);
        ref_gemm_f64(a->queries, a->keys, a->size, a->q + i * a->queries * a->size, a->size, kt,
                     a->keys, s, a->keys);
        for (int64_t t = 0; t < a->queries; t++) {
            for (int64_t j = 0; j < a->keys; j++) {
                s[t * a->keys + j] *= a->scale;
            }
            if (hth_pace_over((uint64_t)a->keys * ATTENTION_KEY)) {
                return HTH_OK;
            }
            attention_row(a, b, h, t, s + t * a->keys);
        }
        ref_gemm_f64(a->queries, a->v_size, a->keys, s, a->keys, a->v + kv * a->keys * a->v_size,
                     a->v_size, a->y + i * a->queries * a->v_size, a->v_size);
    }
    return HTH_OK;
}

// attention_is: the tensor is (batch, heads, len, size), or the same flat: (batch, len, heads *
// size).
static bool attention_is(const hth_tensor *tensor, int64_t batch, int64_t heads, int64_t len,
                         int64_t size)
{
    const hth_shape *s = &tensor->shape;
    bool flat = s->rank == 3;
    if (flat) {
        return s->dim[0] == batch && s->dim[1] == len && s->dim[2] == heads * size;
    }
    return s->rank == 4 && s->dim[0] == batch && s->dim[1] == heads && s->dim[2] == len &&
           s->dim[3] == size;
}

static hth_err attention_heads_of(attention *a, const hth_node *node, const hth_tensor *in,
                                  bool flat)
{
    a->heads = flat ? hth_node_int(node, "q_num_heads", 0) : in[0].shape.dim[1];
    a->kv_heads = flat ? hth_node_int(node, "kv_num_heads", 0) : in[1].shape.dim[1];
    if (a->heads < 1 || a->kv_heads < 1 || a->heads > INT32_MAX || a->heads % a->kv_heads) {
        return hth_fail(HTH_EINVAL, "%lld heads of Q do not share %lld heads of K and V",
                        (long long)a->heads, (long long)a->kv_heads);
    }
    return HTH_OK;
}

static hth_err attention_sizes(attention *a, const hth_node *node, const hth_tensor *in)
{
    const hth_shape *q = &in[0].shape, *k = &in[1].shape, *v = &in[2].shape;
    const hth_tensor *pk = ref_in(node, in, 4), *pv = ref_in(node, in, 5);
    bool flat = q->rank == 3;
    if ((q->rank != 3 && q->rank != 4) || k->rank != q->rank || v->rank != q->rank || !pk != !pv) {
        return hth_fail(HTH_EINVAL, "Q, K and V must have three or four dimensions");
    }
    HTH_TRY(attention_heads_of(a, node, in, flat));
    int64_t fresh = flat ? k->dim[1] : k->dim[2];
    a->batch = q->dim[0];
    a->queries = flat ? q->dim[1] : q->dim[2];
    a->past = pk ? pk->shape.dim[2] : 0;
    a->keys = a->past + fresh;
    a->size = flat ? q->dim[2] / a->heads : q->dim[3];
    a->v_size = flat ? v->dim[2] / a->kv_heads : v->dim[3];
    if (!attention_is(&in[0], a->batch, a->heads, a->queries, a->size) ||
        !attention_is(&in[1], a->batch, a->kv_heads, fresh, a->size) ||
        !attention_is(&in[2], a->batch, a->kv_heads, fresh, a->v_size) ||
        (pk && (pk->shape.rank != 4 || pv->shape.rank != 4 ||
                !attention_is(pk, a->batch, a->kv_heads, a->past, a->size) ||
                !attention_is(pv, a->batch, a->kv_heads, a->past, a->v_size)))) {
        return hth_fail(HTH_EINVAL, "the shapes of Q, K, V and the cache do not agree");
    }
    return HTH_OK;
}

static void attention_store(const attention *a, hth_tensor *tensor)
{
    if (tensor->shape.rank == 4) {
        ref_round(a->y, tensor);
        return;
    }
    for (int64_t i = 0; i < a->batch * a->heads * a->queries; i++) {
        int64_t t = i % a->queries, h = i / a->queries % a->heads, b = i / a->queries / a->heads;
        ref_round_at(a->y + i * a->v_size, ((b * a->queries + t) * a->heads + h) * a->v_size,
                     a->v_size, tensor);
    }
}

static hth_err attention_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                              hth_tensor *out)
{
    attention a = {.causal = hth_node_int(node, "is_causal", 0) != 0,
                   .softcap = hth_node_float(node, "softcap", 0),
                   .left = hth_node_int(node, "left_window_size", -1),
                   .right = hth_node_int(node, "right_window_size", -1),
                   .mode = (int)hth_node_int(node, "qk_matmul_output_mode", 0),
                   .lengths = ref_in(node, in, 6)};
    const hth_tensor *mask = ref_in(node, in, 3);
    HTH_TRY(attention_sizes(&a, node, in));
    if (a.lengths && ref_count(a.lengths) != a.batch) {
        return hth_fail(HTH_EINVAL, "nonpad_kv_seqlen must have one element per sample");
    }
    a.scale = hth_node_float(node, "scale", 0);
    a.scale = hth_node_attr(node, "scale") ? a.scale : 1 / sqrt((double)a.size);
    HTH_TRY(ref_need_count(&out[0], a.batch * a.heads * a.queries * a.v_size));
    HTH_TRY(ref_need_count(ref_out(node, out, 1), a.batch * a.kv_heads * a.keys * a.size));
    HTH_TRY(ref_need_count(ref_out(node, out, 2), a.batch * a.kv_heads * a.keys * a.v_size));
    HTH_TRY(ref_need_count(ref_out(node, out, 3), a.batch * a.heads * a.queries * a.keys));
    HTH_TRY(attention_heads(mem, &in[0], NULL, a.heads, &a.q));
    HTH_TRY(attention_heads(mem, &in[1], ref_in(node, in, 4), a.kv_heads, &a.k));
    HTH_TRY(attention_heads(mem, &in[2], ref_in(node, in, 5), a.kv_heads, &a.v));
    if (mask) {
        HTH_TRY(attention_mask(mem, &a, mask));
    }
    if (ref_out(node, out, 3)) {
        HTH_TRY(REF_TAKE(mem, a.batch * a.heads * a.queries * a.keys, &a.scores));
    }
    HTH_TRY(attention_run(mem, &a));
    attention_store(&a, &out[0]);
    const double *extra[] = {a.k, a.v, a.scores};
    for (int i = 1; i < 4; i++) {
        if (ref_out(node, out, i)) {
            ref_round(extra[i - 1], &out[i]);
        }
    }
    return HTH_OK;
}

// attention_gather makes the dense (b0, b1, rows, cols) copy of what an operand's view shows.
static hth_err attention_gather(ref_mem *mem, const hth_tensor *tensor,
                                const hth_attention_view *view, const int64_t dim[4], double **out)
{
    HTH_TRY(REF_TAKE(mem, dim[0] * dim[1] * dim[2] * dim[3], out));
    for (int64_t i = 0; i < dim[0] * dim[1] * dim[2]; i++) {
        int64_t row = i % dim[2], b1 = i / dim[2] % dim[1], b0 = i / dim[2] / dim[1];
        int64_t from =
            view->offset + b0 * view->stride[0] + b1 * view->stride[1] + row * view->stride[2];
        for (int64_t j = 0; j < dim[3]; j++) {
            (*out)[i * dim[3] + j] =
                ref_get_f64(tensor->dtype, tensor->data, from + j * view->stride[3]);
        }
    }
    return HTH_OK;
}

static hth_err attention_fused_body(ref_mem *mem, const hth_graph *graph, const hth_node *node,
                                    const hth_tensor *in, hth_tensor *out)
{
    hth_attention f;
    HTH_TRY(hth_attention_get(graph, node, &f));
    attention a = {.left = -1,
                   .right = -1,
                   .batch = f.b0,
                   .heads = f.b1,
                   .kv_heads = f.b1,
                   .queries = f.t,
                   .keys = f.s,
                   .size = f.d,
                   .v_size = f.e,
                   .scale = f.scale};
    const int64_t q[] = {f.b0, f.b1, f.t, f.d}, k[] = {f.b0, f.b1, f.s, f.d};
    const int64_t v[] = {f.b0, f.b1, f.s, f.e}, mask[] = {f.b0, f.b1, f.t, f.s};
    HTH_TRY(attention_gather(mem, &in[0], &f.q, q, &a.q));
    HTH_TRY(attention_gather(mem, &in[1], &f.k, k, &a.k));
    HTH_TRY(attention_gather(mem, &in[2], &f.v, v, &a.v));
    if (f.has_mask) {
        HTH_TRY(attention_gather(mem, &in[3], &f.mask, mask, &a.mask));
    }
    HTH_TRY(attention_run(mem, &a));
    for (int64_t i = 0; i < f.b0 * f.b1 * f.t; i++) {
        int64_t t = i % f.t, b1 = i / f.t % f.b1, b0 = i / f.t / f.b1;
        int64_t to =
            f.out.offset + b0 * f.out.stride[0] + b1 * f.out.stride[1] + t * f.out.stride[2];
        for (int64_t j = 0; j < f.e; j++) {
            ref_set_f64(out[0].dtype, out[0].data, to + j * f.out.stride[3], a.y[i * f.e + j]);
        }
    }
    return HTH_OK;
}

REF_KERNEL(ref_fused_attention)
{
    ref_mem m = {0};
    hth_err err = attention_fused_body(&m, g, n, in, out);
    ref_mem_fini(&m);
    return err;
}

// RotaryEmbedding: pairs of elements turn by the angle of their position.
typedef struct rotary {
    int64_t batch, heads, len, size, turned;
    bool flat, interleaved;
    const hth_tensor *positions;
    double *cos, *sin;
    int64_t rows; // of the tables
} rotary;

static hth_err rotary_sizes(rotary *r, const hth_node *node, const hth_tensor *in)
{
    const hth_shape *s = &in[0].shape;
    if (s->rank != 3 && s->rank != 4) {
        return hth_fail(HTH_EINVAL, "the input must have three or four dimensions");
    }
    r->flat = s->rank == 3;
    r->heads = r->flat ? hth_node_int(node, "num_heads", 0) : s->dim[1];
    if (r->heads < 1 || r->heads > INT32_MAX || (r->flat && s->dim[2] % r->heads)) {
        return hth_fail(HTH_EINVAL, "the input cannot be split into %lld heads",
                        (long long)r->heads);
    }
    r->batch = s->dim[0];
    r->len = r->flat ? s->dim[1] : s->dim[2];
    r->size = r->flat ? s->dim[2] / r->heads : s->dim[3];
    r->turned = hth_node_int(node, "rotary_embedding_dim", 0);
    r->turned = r->turned ? r->turned : r->size;
    r->interleaved = hth_node_int(node, "interleaved", 0) != 0;
    r->positions = ref_in(node, in, 3);
    int64_t half = r->turned / 2, places = r->batch * r->len;
    if (r->turned < 2 || r->turned > r->size || r->turned % 2 || ref_count(&in[1]) % half ||
        ref_count(&in[1]) != ref_count(&in[2]) ||
        (r->positions && ref_count(r->positions) != places)) {
        return hth_fail(HTH_EINVAL, "the tables of angles do not fit the input");
    }
    r->rows = ref_count(&in[1]) / half;
    if (!r->positions && r->rows != places) {
        return hth_fail(HTH_EINVAL, "the tables of angles do not fit the input");
    }
    return HTH_OK;
}

static hth_err rotary_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                           hth_tensor *out)
{
    rotary r = {0};
    double *x, *y;
    HTH_TRY(rotary_sizes(&r, node, in));
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(ref_wide(mem, &in[0], &y));
    HTH_TRY(ref_wide(mem, &in[1], &r.cos));
    HTH_TRY(ref_wide(mem, &in[2], &r.sin));
    int64_t half = r.turned / 2;
    for (int64_t i = 0; i < r.batch * r.heads * r.len; i++) {
        int64_t b = i / (r.heads * r.len), t = r.flat ? i / r.heads % r.len : i % r.len;
        int64_t place = b * r.len + t, row = r.positions ? ref_i64_at(r.positions, place) : place;
        if (row < 0 || row >= r.rows) {
            return hth_fail(HTH_EINVAL, "position %lld has no angle", (long long)row);
        }
        for (int64_t j = 0; j < half; j++) {
            int64_t p = i * r.size + (r.interleaved ? 2 * j : j);
            int64_t q = p + (r.interleaved ? 1 : half);
            double c = r.cos[row * half + j], s = r.sin[row * half + j];
            y[p] = c * x[p] - s * x[q];
            y[q] = s * x[p] + c * x[q];
        }
    }
    ref_round(y, &out[0]);
    return HTH_OK;
}

REF_OP(ref_attention, attention_body)
REF_OP(ref_rotary_embedding, rotary_body)
