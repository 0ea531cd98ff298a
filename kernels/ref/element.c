// SPDX-License-Identifier: Apache-2.0
// kernels/ref/element.c - elements of any dtype: one at a time, in runs, and converted.
//
// The rules of conversion are those of numpy on x86, which onnxruntime and PyTorch share: a float
// goes to an integer through the widest integer that the processor converts to (so 300.0 becomes
// uint8 44, and what does not fit int32 or int64 becomes its minimum), integers wrap modulo 2^n,
// anything but 0 is true. ONNX leaves these cases open.
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#define ELEMENT_INTS(X)                                                                            \
    X(U8, uint8_t)                                                                                 \
    X(I8, int8_t)                                                                                  \
    X(U16, uint16_t)                                                                               \
    X(I16, int16_t)                                                                                \
    X(I32, int32_t)                                                                                \
    X(U32, uint32_t)                                                                               \
    X(I64, int64_t)                                                                                \
    X(U64, uint64_t)

#define ELEMENT_2_63 9223372036854775808.0

static int64_t element_trunc(double v, hth_dtype to)
{
    if (to == HTH_DT_U64 && v >= ELEMENT_2_63) {
        return v < 2 * ELEMENT_2_63 ? (int64_t)(uint64_t)v : 0;
    }
    if (to == HTH_DT_I32 && !(v > -2147483649.0 && v < 2147483648.0)) {
        return INT32_MIN;
    }
    return v >= -ELEMENT_2_63 && v < ELEMENT_2_63 ? (int64_t)v : INT64_MIN;
}

double ref_get_f64(hth_dtype dt, const void *data, int64_t i)
{
    switch (dt) {
    case HTH_DT_F32:
        return ((const float *)data)[i];
    case HTH_DT_F64:
        return ((const double *)data)[i];
    case HTH_DT_F16:
        return hth_f16_to_f32(((const uint16_t *)data)[i]);
    case HTH_DT_BF16:
        return hth_bf16_to_f32(((const uint16_t *)data)[i]);
    case HTH_DT_U64:
        return (double)((const uint64_t *)data)[i];
    default:
        return (double)ref_get_i64(dt, data, i);
    }
}

int64_t ref_get_i64(hth_dtype dt, const void *data, int64_t i)
{
    switch (dt) {
#define ELEMENT_GET(d, type)                                                                       \
    case HTH_DT_##d:                                                                               \
        return (int64_t)((const type *)data)[i];
        ELEMENT_INTS(ELEMENT_GET)
    case HTH_DT_BOOL:
        return ref_true(data, i);
    default:
        return element_trunc(ref_get_f64(dt, data, i), HTH_DT_I64);
    }
}

void ref_set_f64(hth_dtype dt, void *data, int64_t i, double v)
{
    switch (dt) {
    case HTH_DT_F32:
        ((float *)data)[i] = (float)v;
        break;
    case HTH_DT_F64:
        ((double *)data)[i] = v;
        break;
    case HTH_DT_F16:
        ((uint16_t *)data)[i] = hth_f32_to_f16((float)v);
        break;
    case HTH_DT_BF16:
        ((uint16_t *)data)[i] = hth_f32_to_bf16((float)v);
        break;
    case HTH_DT_BOOL:
        ((bool *)data)[i] = v != 0;
        break;
    default:
        ref_set_i64(dt, data, i, element_trunc(v, dt));
    }
}

void ref_set_i64(hth_dtype dt, void *data, int64_t i, int64_t v)
{
    switch (dt) {
#define ELEMENT_SET(d, type)                                                                       \
    case HTH_DT_##d:                                                                               \
        ((type *)data)[i] = (type)v;                                                               \
        break;
        ELEMENT_INTS(ELEMENT_SET)
    case HTH_DT_BOOL:
        ((bool *)data)[i] = v != 0;
        break;
    default:
        ref_set_f64(dt, data, i, (double)v);
    }
}

void ref_load_i64(hth_dtype dt, const void *src, int64_t stride, int64_t n, int64_t *dst)
{
    switch (dt) {
#define ELEMENT_LOAD(d, type)                                                                      \
    case HTH_DT_##d:                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            dst[i] = (int64_t)((const type *)src)[i * stride];                                     \
        }                                                                                          \
        break;
        ELEMENT_INTS(ELEMENT_LOAD)
    case HTH_DT_BOOL:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = ref_true(src, i * stride);
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = ref_get_i64(dt, src, i * stride);
        }
    }
}

void ref_store_i64(hth_dtype dt, void *dst, const int64_t *src, int64_t n)
{
    switch (dt) {
#define ELEMENT_STORE(d, type)                                                                     \
    case HTH_DT_##d:                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            ((type *)dst)[i] = (type)src[i];                                                       \
        }                                                                                          \
        break;
        ELEMENT_INTS(ELEMENT_STORE)
    case HTH_DT_BOOL:
        for (int64_t i = 0; i < n; i++) {
            ((bool *)dst)[i] = src[i] != 0;
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            ref_set_i64(dt, dst, i, src[i]);
        }
    }
}

// element_to_f32 is the loop behind most conversions that are not between integers.
static void element_to_f32(float *dst, hth_dtype from, const void *src, int64_t n)
{
    switch (from) {
#define ELEMENT_F32(d, type)                                                                       \
    case HTH_DT_##d:                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            dst[i] = (float)((const type *)src)[i];                                                \
        }                                                                                          \
        break;
        ELEMENT_INTS(ELEMENT_F32)
    case HTH_DT_BOOL:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = ref_true(src, i);
        }
        break;
        ELEMENT_F32(F64, double)
    case HTH_DT_F16:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = hth_f16_to_f32(((const uint16_t *)src)[i]);
        }
        break;
    case HTH_DT_BF16:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = hth_bf16_to_f32(((const uint16_t *)src)[i]);
        }
        break;
    default:
        memcpy(dst, src, (size_t)n * sizeof *dst);
    }
}

static void element_from_f32(hth_dtype to, void *dst, const float *src, int64_t n)
{
    switch (to) {
#define ELEMENT_FROM_F32(d, type, value)                                                           \
    case HTH_DT_##d:                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            ((type *)dst)[i] = (type)(value);                                                      \
        }                                                                                          \
        break;
        ELEMENT_FROM_F32(F64, double, src[i])
        ELEMENT_FROM_F32(BOOL, bool, src[i] != 0)
        ELEMENT_FROM_F32(F16, uint16_t, hth_f32_to_f16(src[i]))
        ELEMENT_FROM_F32(BF16, uint16_t, hth_f32_to_bf16(src[i]))
        ELEMENT_FROM_F32(I64, int64_t, element_trunc(src[i], HTH_DT_I64))
        ELEMENT_FROM_F32(I32, int32_t, element_trunc(src[i], HTH_DT_I32))
        ELEMENT_FROM_F32(U8, uint8_t, element_trunc(src[i], HTH_DT_U8))
    default:
        for (int64_t i = 0; i < n; i++) {
            ref_set_f64(to, dst, i, src[i]);
        }
    }
}

void ref_convert(hth_dtype to, void *dst, hth_dtype from, const void *src, int64_t n)
{
    enum { BLOCK = 512 };
    if (to == from) {
        memcpy(dst, src, (size_t)n * hth_dtype_bytes(to));
    } else if (to == HTH_DT_F32) {
        element_to_f32(dst, from, src, n);
    } else if (from == HTH_DT_F32) {
        element_from_f32(to, dst, src, n);
    } else if (ref_is_int(to) && ref_is_int(from)) {
        size_t from_bytes = hth_dtype_bytes(from), to_bytes = hth_dtype_bytes(to);
        int64_t block[BLOCK];
        for (int64_t i = 0; i < n; i += BLOCK) {
            int64_t m = n - i < BLOCK ? n - i : BLOCK;
            ref_load_i64(from, (const char *)src + (size_t)i * from_bytes, 1, m, block);
            ref_store_i64(to, (char *)dst + (size_t)i * to_bytes, block, m);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            ref_set_f64(to, dst, i, ref_get_f64(from, src, i));
        }
    }
}

void ref_fill(void *dst, const void *value, size_t element_bytes, int64_t n)
{
    int64_t one = 1, zero = 0;
    ref_copy(1, &n, dst, &one, value, &zero, element_bytes);
}
