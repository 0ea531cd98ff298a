// SPDX-License-Identifier: Apache-2.0
#include "graph/tensor.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

static const struct {
    hth_dtype dtype;
    size_t bytes;
    const char *name;
} dtype_table[] = {
    {HTH_DT_F32, 4, "FP32"},   {HTH_DT_U8, 1, "UINT8"},     {HTH_DT_I8, 1, "INT8"},
    {HTH_DT_U16, 2, "UINT16"}, {HTH_DT_I16, 2, "INT16"},    {HTH_DT_I32, 4, "INT32"},
    {HTH_DT_I64, 8, "INT64"},  {HTH_DT_STRING, 0, "BYTES"}, {HTH_DT_BOOL, 1, "BOOL"},
    {HTH_DT_F16, 2, "FP16"},   {HTH_DT_F64, 8, "FP64"},     {HTH_DT_U32, 4, "UINT32"},
    {HTH_DT_U64, 8, "UINT64"}, {HTH_DT_BF16, 2, "BF16"},
};
#define N_DTYPES (sizeof dtype_table / sizeof dtype_table[0])

size_t hth_dtype_bytes(hth_dtype dt)
{
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (dtype_table[i].dtype == dt) {
            return dtype_table[i].bytes;
        }
    }
    return 0;
}

const char *hth_dtype_name(hth_dtype dt)
{
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (dtype_table[i].dtype == dt) {
            return dtype_table[i].name;
        }
    }
    return "?";
}

static const char *const precision_names[HTH_N_PRECISIONS] = {"fp32", "tf32", "bf16"};

const char *hth_precision_name(hth_precision precision)
{
    return precision_names[precision];
}

hth_err hth_precision_find(const char *name, hth_precision *out)
{
    for (int i = 0; i < HTH_N_PRECISIONS; i++) {
        if (name != NULL && strcmp(name, precision_names[i]) == 0) {
            *out = (hth_precision)i;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL, "precision '%.40s' is not one of fp32, tf32, bf16",
                    name != NULL ? name : "");
}

bool hth_dtype_is_float(hth_dtype dt)
{
    return dt == HTH_DT_F32 || dt == HTH_DT_F64 || dt == HTH_DT_F16 || dt == HTH_DT_BF16;
}

bool hth_shape_known(const hth_shape *shape)
{
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 0) {
            return false;
        }
    }
    return shape->rank >= 0;
}

bool hth_shape_equal(const hth_shape *a, const hth_shape *b)
{
    return a->rank == b->rank &&
           (a->rank <= 0 || memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]) == 0);
}

int64_t hth_shape_elements(const hth_shape *shape)
{
    int64_t n = 1;
    bool zero = false;
    for (int i = 0; i < shape->rank; i++) {
        // A zero anywhere makes the product zero, but the others must not overflow on the way:
        // sizes with one dimension left out are computed from them.
        zero |= shape->dim[i] == 0;
        if (shape->dim[i] < 0 ||
            (shape->dim[i] > 0 && __builtin_mul_overflow(n, shape->dim[i], &n))) {
            return -1;
        }
    }
    n = zero ? 0 : n;
    return shape->rank < 0 ? -1 : n;
}

const char *hth_shape_str(const hth_shape *shape, char *out, size_t cap)
{
    if (shape->rank < 0) {
        snprintf(out, cap, "[?]");
        return out;
    }
    size_t n = (size_t)snprintf(out, cap, "[");
    for (int i = 0; i < shape->rank && n < cap; i++) {
        const char *comma = i > 0 ? "," : "";
        int w = shape->dim[i] < 0
                    ? snprintf(out + n, cap - n, "%s?", comma)
                    : snprintf(out + n, cap - n, "%s%lld", comma, (long long)shape->dim[i]);
        n += (size_t)w;
    }
    if (n < cap) {
        snprintf(out + n, cap - n, "]");
    }
    return out;
}

hth_err hth_shape_broadcast(const hth_shape *a, const hth_shape *b, hth_shape *out)
{
    hth_shape r = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 1; i <= r.rank; i++) {
        int64_t da = i <= a->rank ? a->dim[a->rank - i] : 1;
        int64_t db = i <= b->rank ? b->dim[b->rank - i] : 1;
        if (da != db && da != 1 && db != 1) {
            char sa[128], sb[128];
            return hth_fail(HTH_EINVAL, "shapes %s and %s do not broadcast",
                            hth_shape_str(a, sa, sizeof sa), hth_shape_str(b, sb, sizeof sb));
        }
        r.dim[r.rank - i] = da == 1 ? db : da;
    }
    *out = r;
    return HTH_OK;
}

const char *hth_layout_name(hth_layout layout)
{
    static const char *const name[] = {"plain", "nChw8c", "nChw16c", "nhwc"};
    return (unsigned)layout < sizeof name / sizeof name[0] ? name[layout] : "?";
}

hth_err hth_tensor_bytes(hth_dtype dt, const hth_shape *shape, hth_layout layout, size_t *out)
{
    hth_shape p = *shape;
    int64_t block = layout == HTH_LAYOUT_C16 ? 16 : 1;
    block = layout == HTH_LAYOUT_C8 ? 8 : block;
    if (p.rank >= 2 && p.dim[1] > 0 && p.dim[1] < INT64_MAX - block) {
        p.dim[1] = (p.dim[1] + block - 1) / block * block;
    }
    int64_t n = hth_shape_elements(&p);
    uint64_t bytes;
    if (n < 0 || hth_mul_bytes((uint64_t)n, hth_dtype_bytes(dt), &bytes) != 0 ||
        bytes > SIZE_MAX / 2) {
        char t[128];
        return hth_fail(HTH_ETOOBIG, "a tensor of shape %s is too large for any memory",
                        hth_shape_str(shape, t, sizeof t));
    }
    *out = (size_t)bytes;
    return HTH_OK;
}

float hth_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3FFu, bits;
    if (exp == 31) {
        bits = sign | 0x7F800000u | man << 13;
    } else if (exp != 0) {
        bits = sign | (exp + 112) << 23 | man << 13;
    } else if (man == 0) {
        bits = sign;
    } else { // subnormal: normalise
        int shift = __builtin_clz(man) - 21;
        bits = sign | (uint32_t)(113 - shift) << 23 | ((man << shift) & 0x3FFu) << 13;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t hth_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u, abs = bits & 0x7FFFFFFFu;
    if (abs > 0x7F800000u) { // NaN keeps its upper payload and stays a NaN
        return (uint16_t)(sign | 0x7C00u | 0x200u | ((abs >> 13) & 0x3FFu));
    }
    if (abs >= 0x477FF000u) { // rounds to infinity
        return (uint16_t)(sign | 0x7C00u);
    }
    if (abs < 0x33000001u) { // at most half of the least subnormal: rounds to zero
        return (uint16_t)sign;
    }
    uint32_t exp = abs >> 23, man = (abs & 0x7FFFFFu) | 0x800000u;
    uint32_t drop = exp < 113 ? 126 - exp : 13;        // bits below the result's last place
    uint32_t base = exp < 113 ? 0 : (exp - 113) << 10; // the hidden bit adds one to the exponent
    uint32_t kept = man >> drop, rest = man & ((1u << drop) - 1), half = 1u << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return (uint16_t)(sign | (base + kept));
}

float hth_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t hth_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
