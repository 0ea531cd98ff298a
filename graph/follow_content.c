// SPDX-License-Identifier: Apache-2.0
// Shape arithmetic: the elements of small tensors that do not depend on the samples' values, as
// sizes. What is not computed here counts as unknown, never as a guess.
#include "graph/follow_impl.h"

#include "base/compare.h"
#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define CONTENT_CAST (HTH_N_OPS + 16) // + dtype: symbols of values in another type
#define CONTENT_PAIR (HTH_N_OPS + 3)
#define CONTENT_FMOD (HTH_N_OPS + 64) // + dtype: the rest of a division with the sign of its first

bool follow_whole(hth_dtype dt, const void *data, int64_t k, int64_t *out)
{
    uint64_t bits = 0;
    size_t bytes = hth_dtype_bytes(dt);
    double d = NAN;
    float single;
    if (bytes == 0 || bytes > sizeof bits) {
        return false;
    }
    memcpy(&bits, (const char *)data + (size_t)k * bytes, bytes);
    switch (dt) {
    case HTH_DT_I64:
    case HTH_DT_U32:
    case HTH_DT_U16:
    case HTH_DT_U8:
    case HTH_DT_BOOL:
        *out = (int64_t)bits;
        return true;
    case HTH_DT_I32:
        *out = (int32_t)bits;
        return true;
    case HTH_DT_I16:
        *out = (int16_t)bits;
        return true;
    case HTH_DT_I8:
        *out = (int8_t)bits;
        return true;
    case HTH_DT_F32:
        memcpy(&single, &bits, sizeof single);
        d = single;
        break;
    case HTH_DT_F64:
        memcpy(&d, &bits, sizeof d);
        break;
    case HTH_DT_F16:
        d = hth_f16_to_f32((uint16_t)bits);
        break;
    case HTH_DT_BF16:
        d = hth_bf16_to_f32((uint16_t)bits);
        break;
    default:
        return false;
    }
    *out = fabs(d) <= FOLLOW_WHOLE ? (int64_t)d : 0;
    return (double)*out == d && !(d == 0 && signbit(d));
}

// Types whose arithmetic is followed: no smaller integers, which wrap around.
static bool content_type(hth_dtype dt)
{
    return dt == HTH_DT_I64 || dt == HTH_DT_I32 || dt == HTH_DT_BOOL || dt == HTH_DT_F32 ||
           dt == HTH_DT_F64;
}

// content_room allocates the elements of output i where they are few and their number is known.
static hth_size *content_room(hth_follow *follow, int i, int *n)
{
    int v = i < follow->n->n_outputs ? follow->n->outputs[i] : -1;
    const hth_track *t = v >= 0 ? &follow->track[v] : NULL;
    int64_t count = 1, dim;
    if (t == NULL || t->rank < 0 || t->kind == HTH_TRACK_SAMPLES || t->kind == HTH_TRACK_MIXED ||
        t->n > 0) {
        return NULL;
    }
    for (int d = 0; d < t->rank; d++) {
        if (!hth_size_value(follow->sizes, t->dim[d], &dim) || dim < 1 || dim > FOLLOW_ELEMENTS ||
            (count *= dim) > FOLLOW_ELEMENTS) {
            return NULL;
        }
    }
    hth_size *room = hth_calloc((size_t)count, sizeof *room);
    follow->failed = follow->failed || room == NULL;
    *n = (int)count;
    return room;
}

// The element of input i that meets element k of output 0 when they broadcast.
static hth_size content_at(hth_follow *follow, int i, int k)
{
    const hth_track *t = hth_follow_in(follow, i), *out = &follow->track[follow->n->outputs[0]];
    int64_t at = 0, step = 1, n = 1, dim;
    for (int d = 1; d <= out->rank; d++) {
        (void)hth_size_value(follow->sizes, out->dim[out->rank - d], &n);
        if (d <= t->rank) {
            (void)hth_size_value(follow->sizes, t->dim[t->rank - d], &dim);
            at += dim == 1 ? 0 : k % n * step;
            step *= dim;
        }
        k /= (int)n;
    }
    return hth_follow_element(follow, i, (int)at);
}

static bool content_numbers(const hth_follow *follow)
{
    hth_shape s;
    for (int i = 0; i < follow->n_in; i++) {
        if (hth_follow_has(follow, i) && !hth_follow_numbers(follow, i, &s)) {
            return false;
        }
    }
    return true;
}

static hth_size content_where(hth_follow *follow, int k)
{
    hth_size c = content_at(follow, 0, k), a = content_at(follow, 1, k),
             b = content_at(follow, 2, k);
    int64_t truth;
    if (hth_size_value(follow->sizes, c, &truth)) {
        return truth != 0 ? a : b;
    }
    hth_size pair = hth_size_made(follow->sizes, CONTENT_PAIR, a, b, false);
    bool positive = hth_size_at_least_0(follow->sizes, a) && hth_size_at_least_0(follow->sizes, b);
    return a == b ? a : hth_size_made(follow->sizes, HTH_OP_WHERE, c, pair, positive);
}

static hth_size content_cast(hth_follow *follow, hth_size size, hth_dtype from, hth_dtype to)
{
    int64_t n;
    bool whole = from == HTH_DT_I64 || from == HTH_DT_I32 || from == HTH_DT_BOOL;
    bool number = hth_size_value(follow->sizes, size, &n);
    int how = CONTENT_CAST + (int)to;
    if (to == HTH_DT_BOOL) {
        if (number) {
            return hth_size_number(follow->sizes, n != 0);
        }
        return hth_size_at_least_1(follow->sizes, size)
                   ? hth_size_number(follow->sizes, 1)
                   : hth_size_made(follow->sizes, how, size, size, true);
    }
    bool fits = number && n >= -FOLLOW_WHOLE && n <= FOLLOW_WHOLE;
    if (whole && to == HTH_DT_I32) {
        return hth_size_int32(follow->sizes, size);
    }
    if ((content_type(to) && fits) || (whole && to == HTH_DT_I64)) {
        return size;
    }
    return hth_size_made(follow->sizes, how, size, size,
                         false); // what is too large may wrap around
}

static hth_size content_element(hth_follow *follow, int k)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_op op = follow->n->op;
    bool rest = op == HTH_OP_MOD && hth_node_int(follow->n, "fmod", 0) != 0;
    if (op == HTH_OP_WHERE) {
        return content_where(follow, k);
    }
    hth_size a = content_at(follow, 0, k);
    if (op == HTH_OP_CAST) {
        return content_cast(follow, a, x->dtype, (hth_dtype)hth_node_int(follow->n, "to", 0));
    }
    if (follow->n_in == 1) {
        return hth_size_compute(follow->sizes, op, x->dtype, a, a);
    }
    for (int i = 1; i < follow->n_in; i++) {
        hth_size b = content_at(follow, i, k);
        a = rest ? hth_size_made(follow->sizes, CONTENT_FMOD + (int)x->dtype, a, b, false)
                 : hth_size_compute(follow->sizes, op, x->dtype, a, b);
    }
    return a;
}

// Element-wise operators that shape arithmetic is made of.
static bool content_computed(hth_op op)
{
    switch (op) {
    case HTH_OP_ABS:
    case HTH_OP_ADD:
    case HTH_OP_AND:
    case HTH_OP_CAST:
    case HTH_OP_CEIL:
    case HTH_OP_DIV:
    case HTH_OP_EQUAL:
    case HTH_OP_FLOOR:
    case HTH_OP_GREATER:
    case HTH_OP_GREATER_OR_EQUAL:
    case HTH_OP_LESS:
    case HTH_OP_LESS_OR_EQUAL:
    case HTH_OP_MAX:
    case HTH_OP_MIN:
    case HTH_OP_MOD:
    case HTH_OP_MUL:
    case HTH_OP_NEG:
    case HTH_OP_NOT:
    case HTH_OP_OR:
    case HTH_OP_RELU:
    case HTH_OP_ROUND:
    case HTH_OP_SUB:
    case HTH_OP_WHERE:
    case HTH_OP_XOR:
        return true;
    default:
        return false;
    }
}

static void content_elementwise(hth_follow *follow)
{
    int n;
    for (int i = 0; i < follow->n_in; i++) {
        if (!hth_follow_has(follow, i) || !content_type(hth_follow_in(follow, i)->dtype)) {
            return;
        }
    }
    hth_size *element = content_numbers(follow) ? content_room(follow, 0, &n) : NULL;
    for (int k = 0; element != NULL && k < n; k++) {
        element[k] = content_element(follow, k);
    }
    if (element != NULL) {
        hth_follow_set(follow, 0, element, n);
    }
}

// Elements in the same order under another shape, or all the same one.
static void content_copy(hth_follow *follow, bool first)
{
    int n;
    hth_size *element = content_room(follow, 0, &n);
    bool known = element != NULL && hth_follow_elements(follow, 0) == (first ? 1 : n);
    for (int k = 0; known && k < n; k++) {
        element[k] = hth_follow_element(follow, 0, first ? 0 : k);
    }
    if (known) {
        hth_follow_set(follow, 0, element, n);
    } else {
        hth_free(element);
    }
}

// Gather of a vector's elements, by numbers.
static void content_gather(hth_follow *follow)
{
    int64_t at[FOLLOW_ELEMENTS], total = hth_follow_elements(follow, 0);
    int n = 0, have = hth_follow_ints(follow, 1, at, FOLLOW_ELEMENTS);
    hth_size *element =
        hth_follow_in(follow, 0)->rank == 1 && have > 0 ? content_room(follow, 0, &n) : NULL;
    bool known = element != NULL && have == n;
    for (int k = 0; known && k < n; k++) {
        at[k] += at[k] < 0 ? total : 0;
        known = at[k] >= 0 && at[k] < total;
        element[k] = known ? hth_follow_element(follow, 0, (int)at[k]) : HTH_SIZE_OTHER;
    }
    if (known) {
        hth_follow_set(follow, 0, element, n);
    } else {
        hth_free(element);
    }
}

// A result whose element at c0, c1, .. is input 0's at from[0] + c0 * step[0], ..; `axis` says
// which dimension of input 0 belongs to which of the result.
typedef struct content_view {
    int axis[HTH_MAX_RANK];
    int64_t from[HTH_MAX_RANK], step[HTH_MAX_RANK];
} content_view;

static void content_strided(hth_follow *follow, const content_view *view)
{
    hth_shape x, y;
    int n = 0;
    const hth_track *out = &follow->track[follow->n->outputs[0]];
    hth_size *element = hth_follow_numbers(follow, 0, &x) ? content_room(follow, 0, &n) : NULL;
    bool known = element != NULL;
    y.rank = out->rank;
    for (int d = 0; known && d < y.rank; d++) {
        known = hth_size_value(follow->sizes, out->dim[d], &y.dim[d]);
    }
    for (int k = 0; known && k < n; k++) {
        int64_t left = k, at = 0, c[HTH_MAX_RANK] = {0};
        for (int d = y.rank - 1; d >= 0; d--) {
            c[view->axis[d]] = view->from[d] + left % y.dim[d] * view->step[d];
            left /= y.dim[d];
        }
        for (int d = 0; d < x.rank; d++) {
            known = known && c[d] >= 0 && c[d] < x.dim[d];
            at = at * x.dim[d] + c[d];
        }
        element[k] = known ? hth_follow_element(follow, 0, (int)at) : HTH_SIZE_OTHER;
    }
    if (known) {
        hth_follow_set(follow, 0, element, n);
    } else {
        hth_free(element);
    }
}

static void content_slice(hth_follow *follow)
{
    int64_t from[HTH_MAX_RANK], axes[HTH_MAX_RANK], steps[HTH_MAX_RANK];
    content_view v;
    hth_shape x;
    int n = hth_follow_ints(follow, 1, from, HTH_MAX_RANK);
    bool has_axes = hth_follow_has(follow, 3), has_steps = hth_follow_has(follow, 4);
    if (n < 0 || !hth_follow_numbers(follow, 0, &x) || n > x.rank ||
        (has_axes && hth_follow_ints(follow, 3, axes, HTH_MAX_RANK) != n) ||
        (has_steps && hth_follow_ints(follow, 4, steps, HTH_MAX_RANK) != n)) {
        return;
    }
    for (int d = 0; d < x.rank; d++) {
        v.axis[d] = d;
        v.from[d] = 0;
        v.step[d] = 1;
    }
    for (int i = 0; i < n; i++) {
        int64_t d = has_axes ? axes[i] : i, first = from[i];
        int64_t step = has_steps ? steps[i] : 1;
        d += d < 0 ? x.rank : 0;
        if (d < 0 || d >= x.rank || step > FOLLOW_ELEMENTS || step < -FOLLOW_ELEMENTS) {
            return;
        }
        int64_t last = step < 0 ? x.dim[d] - 1 : x.dim[d];
        first += first < 0 ? x.dim[d] : 0;
        v.from[d] = hth_clamp(first, 0, last);
        v.step[d] = step;
    }
    content_strided(follow, &v);
}

static void content_transpose(hth_follow *follow)
{
    int64_t perm[HTH_MAX_RANK];
    content_view v;
    int rank = hth_follow_in(follow, 0)->rank,
        n = hth_node_ints(follow->n, "perm", perm, HTH_MAX_RANK);
    if (n >= 0 && n != rank) {
        return;
    }
    for (int d = 0; d < rank; d++) {
        v.axis[d] = n < 0 ? rank - 1 - d : (int)perm[d];
        v.axis[d] += v.axis[d] < 0 ? rank : 0;
        v.from[d] = 0;
        v.step[d] = 1;
    }
    content_strided(follow, &v);
}

static void content_concat(hth_follow *follow)
{
    int n = 0, at = 0;
    hth_size *element = hth_follow_in(follow, 0)->rank == 1 ? content_room(follow, 0, &n) : NULL;
    for (int i = 0; element != NULL && i < follow->n_in; i++) {
        int64_t have = hth_follow_elements(follow, i);
        for (int k = 0; k < have && at < n; k++) {
            element[at++] = hth_follow_element(follow, i, k);
        }
    }
    if (element != NULL && at == n) {
        hth_follow_set(follow, 0, element, n);
    } else {
        hth_free(element);
    }
}

static void content_split(hth_follow *follow)
{
    int at = 0, n = 0;
    bool known = hth_follow_in(follow, 0)->rank == 1;
    for (int i = 0; known && i < follow->n->n_outputs; i++) {
        hth_size *element = content_room(follow, i, &n);
        known = element != NULL && at + n <= hth_follow_elements(follow, 0);
        for (int k = 0; known && k < n; k++) {
            element[k] = hth_follow_element(follow, 0, at++);
        }
        if (known) {
            hth_follow_set(follow, i, element, n);
        } else {
            hth_free(element);
        }
    }
}

// The operator that joins two elements of a reduction.
static hth_op content_reducer(hth_op op)
{
    switch (op) {
    case HTH_OP_REDUCE_PROD:
        return HTH_OP_MUL;
    case HTH_OP_REDUCE_SUM:
        return HTH_OP_ADD;
    case HTH_OP_REDUCE_MAX:
        return HTH_OP_MAX;
    default:
        return HTH_OP_MIN;
    }
}

// All elements of a vector as one.
static void content_reduce(hth_follow *follow)
{
    hth_op op = content_reducer(follow->n->op);
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t total = hth_follow_elements(follow, 0);
    int n = 0;
    hth_size *element = content_type(x->dtype) && total > 0 && total <= FOLLOW_ELEMENTS
                            ? content_room(follow, 0, &n)
                            : NULL;
    if (element == NULL || n != 1) {
        hth_free(element);
        return;
    }
    element[0] = hth_follow_element(follow, 0, 0);
    for (int k = 1; k < total; k++) {
        element[0] = hth_size_compute(follow->sizes, op, x->dtype, element[0],
                                      hth_follow_element(follow, 0, k));
    }
    hth_follow_set(follow, 0, element, 1);
}

// Constant and ConstantOfShape: what their attribute says.
static void content_attribute(hth_follow *follow)
{
    const hth_attr *a = hth_node_attr(follow->n, "value");
    const void *data;
    int n = 0;
    bool fill = follow->n->op == HTH_OP_CONSTANT_OF_SHAPE;
    hth_size *element = content_room(follow, 0, &n);
    if (element == NULL) {
        return;
    }
    const hth_const *c = a != NULL && a->type == HTH_ATTR_TENSOR ? a->u.tensor : NULL;
    bool mapped = c != NULL && hth_const_map(a->u.tensor, &data) == HTH_OK;
    for (int k = 0; k < n; k++) {
        int64_t whole = 0;
        bool known = fill && a == NULL;
        if (mapped) {
            known = c->bytes > 0 && follow_whole(c->dtype, data, fill ? 0 : k, &whole);
        }
        element[k] =
            known ? hth_size_number(follow->sizes, whole) : hth_size_fresh(follow->sizes, false);
    }
    if (mapped) {
        hth_const_unmap(a->u.tensor);
    }
    hth_follow_set(follow, 0, element, n);
}

void hth_follow_content(hth_follow *follow)
{
    hth_op op = follow->n->op;
    if (op != HTH_OP_SPLIT && follow->n->outputs[0] < 0) {
        return;
    }
    if (content_computed(op)) {
        content_elementwise(follow);
        return;
    }
    switch (op) {
    case HTH_OP_IDENTITY:
    case HTH_OP_RESHAPE:
    case HTH_OP_FLATTEN:
    case HTH_OP_SQUEEZE:
    case HTH_OP_UNSQUEEZE:
        content_copy(follow, false);
        break;
    case HTH_OP_EXPAND:
    case HTH_OP_TILE:
        content_copy(follow, true);
        break;
    case HTH_OP_GATHER:
        content_gather(follow);
        break;
    case HTH_OP_SLICE:
        content_slice(follow);
        break;
    case HTH_OP_TRANSPOSE:
        content_transpose(follow);
        break;
    case HTH_OP_CONCAT:
        content_concat(follow);
        break;
    case HTH_OP_SPLIT:
        content_split(follow);
        break;
    case HTH_OP_REDUCE_PROD:
    case HTH_OP_REDUCE_SUM:
    case HTH_OP_REDUCE_MAX:
    case HTH_OP_REDUCE_MIN:
        content_reduce(follow);
        break;
    case HTH_OP_CONSTANT:
    case HTH_OP_CONSTANT_OF_SHAPE:
        content_attribute(follow);
        break;
    default:
        break;
    }
}
