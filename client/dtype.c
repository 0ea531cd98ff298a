// SPDX-License-Identifier: Apache-2.0
// One row per element type; the formats' own numbers and names meet nowhere else in the client.
#include "client/dtype.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

static const hth_dtype_names dtype_table[] = {
    {HEARTH_F32, 4, "FP32", "<f4", "F32"},   {HEARTH_U8, 1, "UINT8", "|u1", "U8"},
    {HEARTH_I8, 1, "INT8", "|i1", "I8"},     {HEARTH_U16, 2, "UINT16", "<u2", "U16"},
    {HEARTH_I16, 2, "INT16", "<i2", "I16"},  {HEARTH_I32, 4, "INT32", "<i4", "I32"},
    {HEARTH_I64, 8, "INT64", "<i8", "I64"},  {HEARTH_BOOL, 1, "BOOL", "|b1", "BOOL"},
    {HEARTH_F16, 2, "FP16", "<f2", "F16"},   {HEARTH_F64, 8, "FP64", "<f8", "F64"},
    {HEARTH_U32, 4, "UINT32", "<u4", "U32"}, {HEARTH_U64, 8, "UINT64", "<u8", "U64"},
    {HEARTH_BF16, 2, "BF16", "<u2", "BF16"},
};
#define DTYPE_ROWS (sizeof dtype_table / sizeof dtype_table[0])

const hth_dtype_names *hth_dtype_names_of(int dtype)
{
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        if ((int)dtype_table[i].dtype == dtype) {
            return &dtype_table[i];
        }
    }
    return NULL;
}

const hth_dtype_names *hth_dtype_of_name(const char *name)
{
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        if (strcmp(dtype_table[i].name, name) == 0) {
            return &dtype_table[i];
        }
    }
    return NULL;
}

const hth_dtype_names *hth_dtype_of_npy(const char *descr)
{
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        if (strcmp(dtype_table[i].npy, descr) == 0) {
            return &dtype_table[i];
        }
    }
    return NULL;
}

const hth_dtype_names *hth_dtype_of_safetensors(const char *name)
{
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        if (strcmp(dtype_table[i].safetensors, name) == 0) {
            return &dtype_table[i];
        }
    }
    return NULL;
}

hth_err hth_dtype_bytes_of(int dtype, int rank, const int64_t *shape, uint64_t *out)
{
    const hth_dtype_names *d = hth_dtype_names_of(dtype);
    if (d == NULL) {
        return hth_fail(HTH_EINVAL, "%d is not a supported data type", dtype);
    }
    if (rank < 0 || rank > HEARTH_MAX_RANK) {
        return hth_fail(HTH_EINVAL, "rank %d is not between 0 and %d", rank, HEARTH_MAX_RANK);
    }
    uint64_t bytes = d->bytes;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0) {
            return hth_fail(HTH_EINVAL, "dimension %d is negative (%lld)", i, (long long)shape[i]);
        }
        if (hth_mul_bytes(bytes, (uint64_t)shape[i], &bytes) != 0) {
            return hth_fail(HTH_ETOOBIG, "the shape has more bytes than 64 bits can count");
        }
    }
    *out = bytes;
    return HTH_OK;
}

// dtype_half converts IEEE binary16: the exponent moves from bias 15 to the double's.
static double dtype_half(uint16_t h)
{
    int exponent = h >> 10 & 31;
    double m = (h & 1023) / 1024.0;
    double v;
    if (exponent == 0) {
        v = ldexp(m, -14);
    } else if (exponent == 31) {
        v = m == 0 ? INFINITY : NAN;
    } else {
        v = ldexp(1 + m, exponent - 15);
    }
    return h & 0x8000 ? -v : v;
}

uint16_t hth_dtype_half(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    int exponent;
    if (isnan(v)) {
        return 0x7e00;
    }
    if (a >= 65520) { // half a step above the largest one
        return sign | 0x7c00;
    }
    (void)frexp(a, &exponent); // a is in [2^(exponent - 1), 2^exponent)
    exponent = a < ldexp(1, -14) ? -14 : exponent - 1;
    // In steps of this exponent: 1,024 to 2,048 of them, of subnormal numbers fewer. What rounds up
    // to 2,048 carries into the exponent's bits.
    long steps = lrint(ldexp(a, 10 - exponent));
    return (uint16_t)(sign | (((exponent + 14) << 10) + steps));
}

static double dtype_bfloat(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16; // the upper half of a binary32
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#define DTYPE_LOAD(type, data, i)                                                                  \
    (memcpy(&u.type, (const uint8_t *)(data) + (i) * sizeof u.type, sizeof u.type), u.type)

double hth_dtype_value(int dtype, const void *data, size_t index)
{
    union {
        float f;
        double d;
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
    } u;
    switch (dtype) {
    case HEARTH_F32:
        return DTYPE_LOAD(f, data, index);
    case HEARTH_F64:
        return DTYPE_LOAD(d, data, index);
    case HEARTH_U8:
    case HEARTH_BOOL:
        return DTYPE_LOAD(u8, data, index);
    case HEARTH_I8:
        return DTYPE_LOAD(i8, data, index);
    case HEARTH_U16:
        return DTYPE_LOAD(u16, data, index);
    case HEARTH_I16:
        return DTYPE_LOAD(i16, data, index);
    case HEARTH_I32:
        return DTYPE_LOAD(i32, data, index);
    case HEARTH_U32:
        return DTYPE_LOAD(u32, data, index);
    case HEARTH_I64:
        return (double)DTYPE_LOAD(i64, data, index);
    case HEARTH_U64:
        return (double)DTYPE_LOAD(u64, data, index);
    case HEARTH_F16:
        return dtype_half(DTYPE_LOAD(u16, data, index));
    case HEARTH_BF16:
        return dtype_bfloat(DTYPE_LOAD(u16, data, index));
    default:
        return NAN;
    }
}
