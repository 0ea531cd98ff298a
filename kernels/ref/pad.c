// SPDX-License-Identifier: Apache-2.0
// kernels/ref/pad.c - Pad: constant, reflect, edge, wrap; negative amounts crop.
//
// Every mode is a map from a position in the output to one in the input (or to none: the constant),
// for each axis alone. The maps are made first; then rows are moved, the part of a row that maps to
// neighbours in one copy.
#include "kernels/ref/ref.h"

#include "base/alloc.h"

typedef enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP } pad_mode;

static int64_t pad_modulo(int64_t i, int64_t n)
{
    int64_t r = i % n;
    return r < 0 ? r + n : r;
}

// pad_position maps position i relative to n > 0 kept elements; -1: the constant.
static int64_t pad_position(pad_mode mode, int64_t i, int64_t n)
{
    if (i >= 0 && i < n) {
        return i;
    }
    switch (mode) {
    case PAD_EDGE:
        return i < 0 ? 0 : n - 1;
    case PAD_WRAP:
        return pad_modulo(i, n);
    case PAD_REFLECT: {
        int64_t m = n == 1 ? 0 : pad_modulo(i, 2 * (n - 1));
        return m < n ? m : 2 * (n - 1) - m;
    }
    default:
        return -1;
    }
}

static hth_err pad_map(pad_mode mode, int64_t from, int64_t before, int64_t after, int64_t to,
                       int64_t *map)
{
    if (before < -from || after < -from || before > to + from || after > to + from ||
        from + before + after != to) {
        return hth_fail(HTH_EINVAL, "the amounts do not agree with the shape of the output");
    }
    int64_t first = before < 0 ? -before : 0;
    int64_t last = after < 0 ? -after : 0;
    int64_t kept = from - first - last;
    if (kept <= 0 && to > 0 && mode != PAD_CONSTANT) {
        return hth_fail(HTH_EINVAL, "there is nothing to repeat in an axis of %lld elements",
                        (long long)from);
    }
    for (int64_t i = 0; i < to; i++) {
        int64_t p = pad_position(mode, i - (before > 0 ? before : 0), kept);
        map[i] = p < 0 ? -1 : p + first;
    }
    return HTH_OK;
}

// pad_row moves one row of `count` elements; src NULL: only the constant.
static void pad_row(char *dst, const char *src, const int64_t *map, int64_t count,
                    const char *value, size_t bytes)
{
    for (int64_t i = 0; i < count;) {
        int64_t run = 1;
        if (src == NULL || map[i] < 0) {
            while (i + run < count && (src == NULL || map[i + run] < 0)) {
                run++;
            }
            ref_fill(dst + i * (int64_t)bytes, value, bytes, run);
        } else {
            while (i + run < count && map[i + run] == map[i] + run) {
                run++;
            }
            ref_move(dst + i * (int64_t)bytes, src + map[i] * (int64_t)bytes, (size_t)run * bytes);
        }
        i += run;
    }
}

static void pad_rows(const hth_tensor *x, hth_tensor *y, int64_t *const *map, const char *value)
{
    int last = y->shape.rank - 1;
    size_t bytes = hth_dtype_bytes(y->dtype);
    int64_t step[HTH_MAX_RANK], at[HTH_MAX_RANK] = {0}, width = y->shape.dim[last];
    int64_t rows = ref_count(y) > 0 ? ref_count(y) / width : 0;
    ref_steps(&x->shape, step);
    for (int64_t row = 0; row < rows; row++) {
        const char *src = x->data;
        for (int d = 0; d < last && src != NULL; d++) {
            int64_t p = map[d][at[d]];
            src = p < 0 ? NULL : src + p * step[d] * (int64_t)bytes;
        }
        pad_row((char *)y->data + (size_t)(row * width) * bytes, src, map[last], width, value,
                bytes);
        for (int d = last - 1; d >= 0 && ++at[d] == y->shape.dim[d]; d--) {
            at[d] = 0;
        }
    }
}

static hth_err pad_amounts(const hth_node *node, const hth_tensor *in, int rank, int64_t *before,
                           int64_t *after)
{
    const hth_tensor *axes = ref_in(node, in, 3);
    int64_t count = axes ? ref_count(axes) : rank;
    if (ref_count(&in[1]) != 2 * count) {
        return hth_fail(HTH_EINVAL, "there must be two amounts per axis");
    }
    for (int64_t i = 0; i < count; i++) {
        int a = ref_axis(axes ? ref_get_i64(axes->dtype, axes->data, i) : i, rank);
        if (a < 0) {
            return hth_fail(HTH_EINVAL, "an axis is out of range");
        }
        before[a] = ref_get_i64(in[1].dtype, in[1].data, i);
        after[a] = ref_get_i64(in[1].dtype, in[1].data, count + i);
    }
    return HTH_OK;
}

static hth_err pad_mode_of(const hth_node *node, pad_mode *mode)
{
    static const char *const names[] = {"constant", "reflect", "edge", "wrap"};
    const char *name = hth_node_str(node, "mode", "constant");
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            *mode = (pad_mode)i;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL, "unknown mode '%s'", name);
}

REF_KERNEL(ref_pad)
{
    const hth_tensor *x = &in[0], *constant = ref_in(n, in, 2);
    int rank = x->shape.rank;
    int64_t before[HTH_MAX_RANK] = {0}, after[HTH_MAX_RANK] = {0}, total = 0;
    int64_t *map[HTH_MAX_RANK];
    char value[8] = {0};
    pad_mode mode = PAD_CONSTANT;
    hth_err err = HTH_OK;
    HTH_TRY(pad_mode_of(n, &mode));
    HTH_TRY(pad_amounts(n, in, rank, before, after));
    if (out[0].shape.rank != rank || out[0].dtype != x->dtype ||
        (constant && constant->dtype != x->dtype)) {
        return hth_fail(HTH_EINVAL, "dtypes or ranks do not agree");
    }
    if (rank == 0) {
        return ref_broadcast_copy(x, &out[0]);
    }
    if (constant && ref_count(constant) > 0) {
        memcpy(value, constant->data, hth_dtype_bytes(x->dtype));
    }
    for (int d = 0; d < rank; d++) {
        total += out[0].shape.dim[d];
    }
    int64_t *maps = hth_calloc((size_t)total + 1, sizeof *maps);
    if (maps == NULL) {
        return hth_no_memory("%lld positions", (long long)total);
    }
    int64_t *next = maps;
    for (int d = 0; d < rank; d++) {
        map[d] = next;
        next += out[0].shape.dim[d];
        HTH_GOTO(pad_map(mode, x->shape.dim[d], before[d], after[d], out[0].shape.dim[d], map[d]),
                 done);
    }
    pad_rows(x, &out[0], map, value);
done:
    hth_free(maps);
    return err;
}
