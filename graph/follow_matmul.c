// SPDX-License-Identifier: Apache-2.0
// Matrix products in all their dresses: MatMul, Gemm, Einsum, attention.
//
// A product of [.., M, K] and [.., K, N] depends on samples as the element-wise product of
// [.., M, 1] and [.., 1, N] does, as long as they do not lie along K, over which it sums.
#include "graph/follow.h"

#include <ctype.h>
#include <string.h>

static const char *const sums = "sums over";

// product_factor makes input i of a product, a matrix or more, into what joins: its dimension
// `across` (from the end, 1 or 2) becomes 1. false: the samples lie along it.
static bool product_factor(hth_follow *follow, int i, bool swap, int across, hth_track *out)
{
    *out = *hth_follow_in(follow, i);
    int last = out->rank - 1;
    if (swap) {
        hth_size rows = out->dim[last - 1];
        out->dim[last - 1] = out->dim[last];
        out->dim[last] = rows;
        if (out->axis == last) {
            out->axis = (int8_t)(last - 1);
        } else if (out->axis == last - 1) {
            out->axis = (int8_t)last;
        }
    }
    if (out->kind == HTH_TRACK_SAMPLES && out->axis == out->rank - across) {
        hth_follow_mixed(follow, sums, hth_follow_in(follow, i)->axis);
        return false;
    }
    out->dim[out->rank - across] = hth_size_number(follow->sizes, 1);
    return true;
}

// drop_dim takes dimension d, which is 1, out of `track`.
static void drop_dim(hth_track *track, int d)
{
    for (int i = d; i + 1 < track->rank; i++) {
        track->dim[i] = track->dim[i + 1];
    }
    track->axis = (int8_t)(track->axis > d ? track->axis - 1 : track->axis);
    track->rank--;
}

void hth_through_matmul(hth_follow *follow)
{
    const hth_track *a = hth_follow_in(follow, 0), *b = hth_follow_in(follow, 1);
    bool row = a->rank == 1, column = b->rank == 1; // a vector is a matrix of one row or column
    hth_track x = *a, y = *b, out;
    if (a->rank < 1 || b->rank < 1) {
        hth_follow_mixed(follow, "multiplies an operand that is not a matrix", -1);
        return;
    }
    if ((row && a->kind == HTH_TRACK_SAMPLES) || (column && b->kind == HTH_TRACK_SAMPLES)) {
        hth_follow_mixed(follow, sums, 0);
        return;
    }
    hth_size one = hth_size_number(follow->sizes, 1);
    if (row) {
        x = (hth_track){.kind = a->kind, .rank = 2, .dtype = a->dtype, .dim = {one, one}};
    } else if (!product_factor(follow, 0, hth_node_int(follow->n, "transA", 0) != 0, 1, &x)) {
        return;
    }
    if (column) {
        y = (hth_track){.kind = b->kind, .rank = 2, .dtype = b->dtype, .dim = {one, one}};
    } else if (!product_factor(follow, 1, hth_node_int(follow->n, "transB", 0) != 0, 2, &y)) {
        return;
    }
    const hth_track *in[2] = {&x, &y};
    if (hth_follow_join(follow, in, 2, &out)) {
        if (column) {
            drop_dim(&out, out.rank - 1);
        }
        if (row) {
            drop_dim(&out, out.rank - (column ? 1 : 2));
        }
        hth_follow_out(follow, 0, &out);
    }
}

void hth_through_gemm(hth_follow *follow)
{
    hth_track x, y, out;
    if (hth_follow_in(follow, 0)->rank != 2 || hth_follow_in(follow, 1)->rank != 2) {
        hth_follow_mixed(follow, "multiplies an operand that is not a matrix", -1);
        return;
    }
    if (product_factor(follow, 0, hth_node_int(follow->n, "transA", 0) != 0, 1, &x) &&
        product_factor(follow, 1, hth_node_int(follow->n, "transB", 0) != 0, 2, &y)) {
        const hth_track *in[3] = {&x, &y,
                                  hth_follow_has(follow, 2) ? hth_follow_in(follow, 2) : NULL};
        if (hth_follow_join(follow, in, in[2] != NULL ? 3 : 2, &out)) {
            hth_follow_out(follow, 0, &out);
        }
    }
}

// ---- Einsum: dimensions by letter; those of "..." by their place from the end

#define EINSUM_REST 128

typedef struct einsum {
    hth_size dim[EINSUM_REST + HTH_MAX_RANK]; // by label
    bool seen[EINSUM_REST + HTH_MAX_RANK];
    int count[EINSUM_REST]; // how often a letter stands among the inputs
    int rest;               // dimensions of "..."
    int along;              // the samples' label, -1: not met
    hth_track like;         // a track whose samples lie as all do
} einsum;

// einsum_labels gives each of input i's `rank` dimensions its label; false: they do not fit.
static bool einsum_labels(const char *p, size_t len, int rank, int *label, int *rest)
{
    int letters = 0, at = 0;
    for (size_t k = 0; k < len; k++) {
        letters += isalpha((unsigned char)p[k]) != 0;
    }
    for (size_t k = 0; k < len; k++) {
        if (strncmp(p + k, "...", 3) == 0 && letters <= rank && at <= letters) {
            int n = rank - letters;
            for (int d = 0; d < n; d++) {
                label[at++] = EINSUM_REST + n - 1 - d;
            }
            *rest = n > *rest ? n : *rest;
            k += 2;
        } else if (isalpha((unsigned char)p[k]) && at < rank) {
            label[at++] = (unsigned char)p[k];
        } else if (p[k] != ' ') {
            return false;
        }
    }
    return at == rank;
}

// One term of the left side against input i; false: the outputs are MIXED.
static bool einsum_term(hth_follow *follow, const char *p, size_t len, int i, einsum *e)
{
    const hth_track *x = hth_follow_in(follow, i);
    int label[HTH_MAX_RANK];
    bool samples = x->kind == HTH_TRACK_SAMPLES;
    if (!einsum_labels(p, len, x->rank, label, &e->rest)) {
        hth_follow_mixed(follow, "has an equation that cannot be followed", -1);
        return false;
    }
    for (int d = 0; d < x->rank; d++) {
        int l = label[d];
        if (l < EINSUM_REST) {
            e->count[l]++;
        }
        if (samples && d == x->axis) {
            if (e->along >= 0 && (e->along != l || !hth_follow_alike(&e->like, x))) {
                hth_follow_mixed(follow, "combines each sample with all others", -1);
                return false;
            }
            if (e->along < 0) {
                e->like = *x;
            }
            e->along = l;
            hth_follow_settle(&e->like, x);
        } else if (samples && l == label[x->axis]) {
            hth_follow_mixed(follow, "takes a diagonal through", x->axis);
            return false;
        }
        if (!e->seen[l] || (samples && d == x->axis)) {
            e->dim[l] = x->dim[d];
        } else if (l != e->along) {
            e->dim[l] = hth_size_broadcast(follow->sizes, e->dim[l], x->dim[d]);
        }
        e->seen[l] = true;
    }
    return true;
}

// A term without samples has no dimension that meets theirs.
static bool einsum_apart(hth_follow *follow, const char *p, const char *end, const einsum *e)
{
    for (int i = 0; i < follow->n_in; i++) {
        const hth_track *x = hth_follow_in(follow, i);
        int label[HTH_MAX_RANK], rest = 0;
        size_t len = strcspn(p, ",");
        len = len < (size_t)(end - p) ? len : (size_t)(end - p);
        bool fits = einsum_labels(p, len, x->rank, label, &rest);
        for (int d = 0; d < x->rank && fits && x->kind != HTH_TRACK_SAMPLES; d++) {
            if (label[d] == e->along) {
                hth_follow_mixed(follow, "sets a dimension of fixed length against samples", -1);
                return false;
            }
        }
        p += len + (p + len < end);
    }
    return true;
}

static bool einsum_put(hth_follow *follow, const einsum *e, int label, hth_track *track)
{
    if (track->rank == HTH_MAX_RANK || !e->seen[label]) {
        hth_follow_mixed(follow, "has an equation that cannot be followed", -1);
        return false;
    }
    track->dim[track->rank++] = e->dim[label];
    if (label == e->along) {
        if (track->kind == HTH_TRACK_SAMPLES) {
            hth_follow_mixed(follow, "names the samples' dimension twice", -1);
            return false;
        }
        hth_follow_place(track, track->rank - 1, &e->like);
        track->equal = false;
    }
    return true;
}

static bool einsum_rest(hth_follow *follow, const einsum *e, hth_track *track)
{
    for (int d = e->rest - 1; d >= 0; d--) {
        if (!einsum_put(follow, e, EINSUM_REST + d, track)) {
            return false;
        }
    }
    return true;
}

// The right side; without one, "..." and then every letter that stands once.
static bool einsum_result(hth_follow *follow, const einsum *e, const char *arrow, hth_track *track)
{
    if (arrow == NULL) {
        bool fits = einsum_rest(follow, e, track);
        for (int ch = 'A'; ch <= 'z' && fits; ch++) {
            fits = e->count[ch] != 1 || einsum_put(follow, e, ch, track);
        }
        return fits;
    }
    for (const char *p = arrow + 2; *p != '\0'; p++) {
        if (strncmp(p, "...", 3) == 0) {
            if (!einsum_rest(follow, e, track)) {
                return false;
            }
            p += 2;
        } else if (*p != ' ' && !einsum_put(follow, e, (unsigned char)*p & 127, track)) {
            return false;
        }
    }
    return true;
}

void hth_through_einsum(hth_follow *follow)
{
    const char *equation = hth_node_str(follow->n, "equation", ""), *p = equation;
    const char *arrow = strstr(p, "->"), *end = arrow != NULL ? arrow : p + strlen(p);
    einsum e = {.along = -1};
    hth_track t = {.kind = HTH_TRACK_FIXED};
    for (int i = 0; i < follow->n_in; i++) {
        size_t len = strcspn(p, ",");
        len = len < (size_t)(end - p) ? len : (size_t)(end - p);
        if (!hth_follow_has(follow, i)) {
            hth_follow_mixed(follow, "has an equation that cannot be followed", -1);
            return;
        }
        if (!einsum_term(follow, p, len, i, &e)) {
            return;
        }
        p += len + (p + len < end);
    }
    if ((e.along >= 0 && !einsum_apart(follow, equation, end, &e)) ||
        !einsum_result(follow, &e, arrow, &t)) {
        return;
    }
    if (e.along >= 0 && t.kind != HTH_TRACK_SAMPLES) {
        hth_follow_mixed(follow, sums, e.like.axis);
        return;
    }
    hth_follow_out(follow, 0, &t);
}

// ---- attention

// Says that all of the inputs in `list` (absent ones count for nothing) hold samples along axis 0,
// alike, or none does. out: input 0's track, whose samples lie as all do.
static bool first_axes(hth_follow *follow, const int *list, int n, hth_track *out)
{
    const hth_track *like = NULL;
    *out = *hth_follow_in(follow, 0);
    for (int i = 0; i < n; i++) {
        like = like == NULL && hth_follow_samples(follow, list[i]) ? hth_follow_in(follow, list[i])
                                                                   : like;
    }
    for (int i = 0; i < n && like != NULL; i++) {
        if (!hth_follow_has(follow, list[i])) {
            continue;
        }
        const hth_track *x = hth_follow_in(follow, list[i]);
        if (x->kind != HTH_TRACK_SAMPLES || x->axis != 0 || !hth_follow_alike(x, like)) {
            hth_follow_mixed(follow, "has operands whose samples do not all lie along axis 0", -1);
            return false;
        }
        like = like->equal ? x : like;
        hth_follow_settle(out, x);
    }
    return true;
}

// Brings [B, T, H * D] into [B, H, T, D]; 4 dimensions are so already. Of the samples only axis 0
// is looked at.
static bool split_heads(hth_follow *follow, int i, const char *attr, hth_track *out)
{
    *out = *hth_follow_in(follow, i);
    if (out->rank == 4) {
        return true;
    }
    hth_size heads = hth_size_number(follow->sizes, hth_node_int(follow->n, attr, 0));
    if (out->rank != 3 || hth_size_is(follow->sizes, heads, 0)) {
        hth_follow_mixed(follow, "has an operand that cannot be followed", -1);
        return false;
    }
    out->rank = 4;
    out->dim[3] = hth_size_quotient_dim(follow->sizes, out->dim[2], heads);
    out->dim[2] = out->dim[1];
    out->dim[1] = heads;
    return true;
}

void hth_through_attention(hth_follow *follow)
{
    static const int operands[] = {0, 1, 2, 4, 5, 6};
    hth_track like, q, k, v, joined;
    if (!first_axes(follow, operands, 6, &like) || !split_heads(follow, 0, "q_num_heads", &q) ||
        !split_heads(follow, 1, "kv_num_heads", &k) ||
        !split_heads(follow, 2, "kv_num_heads", &v)) {
        return;
    }
    hth_follow_settle(&q, &like);
    hth_follow_settle(&k, &like);
    hth_follow_settle(&v, &like);
    hth_track scores = q;
    hth_size total = k.dim[2];
    if (hth_follow_has(follow, 4) && hth_follow_in(follow, 4)->rank == 4) {
        total = hth_size_compute(follow->sizes, HTH_OP_ADD, HTH_DT_I64,
                                 hth_follow_in(follow, 4)->dim[2], total);
    }
    scores.dim[3] = total;
    if (hth_follow_has(follow, 3)) {
        const hth_track *in[2] = {&scores, hth_follow_in(follow, 3)};
        if (in[1]->rank > 4 || !hth_follow_join(follow, in, 2, &joined)) {
            hth_follow_mixed(follow, "has a mask that does not lie along the samples", -1);
            return;
        }
        if (joined.kind == HTH_TRACK_SAMPLES && (joined.axis != 0 || q.kind != joined.kind)) {
            hth_follow_mixed(follow, "has a mask that does not lie along the samples", -1);
            return;
        }
        hth_follow_settle(&scores, &joined);
        hth_follow_settle(&q, &joined);
    }
    hth_track y = q;
    y.dim[3] = v.dim[3];
    if (hth_follow_in(follow, 0)->rank == 3) {
        y.rank = 3;
        y.dim[1] = q.dim[2];
        y.dim[2] = hth_size_mul(follow->sizes, q.dim[1], v.dim[3]);
    }
    k.dim[2] = v.dim[2] = total;
    q.equal = k.equal = v.equal = y.equal = scores.equal = false;
    hth_follow_out(follow, 0, &y);
    hth_follow_out(follow, 1, &k);
    hth_follow_out(follow, 2, &v);
    hth_follow_out(follow, 3, &scores);
}

// RotaryEmbedding: caches by position, or one row for each sample.
void hth_through_rotary(hth_follow *follow)
{
    static const int with[] = {0, 3}, without[] = {0, 1, 2};
    bool positions = hth_follow_has(follow, 3);
    const int *operands = positions ? with : without;
    hth_track t;
    if (positions && (hth_follow_samples(follow, 1) || hth_follow_samples(follow, 2))) {
        hth_follow_mixed(follow, "has caches that depend on the samples", -1);
    } else if (first_axes(follow, operands, positions ? 2 : 3, &t)) {
        t.equal = false;
        hth_follow_out(follow, 0, &t);
    }
}
