// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/number.h - elements of any type as i64 and double, for .cu files whose operators are
// of small tensors, mostly.
#ifndef HTH_KERNELS_CUDA_NUMBER_H
#define HTH_KERNELS_CUDA_NUMBER_H

#include "device/cuda/grid.h"
#include "graph/tensor.h"

// i: of integers, of u64 the bits; f: the same number as a double.
typedef struct hth_number {
    int64_t i;
    double f;
} hth_number;

HTH_FN int hth_number_is_float(int type)
{
    return type == HTH_DT_F32 || type == HTH_DT_F64 || type == HTH_DT_F16 || type == HTH_DT_BF16;
}

HTH_FN uint32_t hth_number_bytes(int type)
{
    switch (type) {
    case HTH_DT_BOOL:
    case HTH_DT_U8:
    case HTH_DT_I8:
        return 1;
    case HTH_DT_F16:
    case HTH_DT_BF16:
    case HTH_DT_U16:
    case HTH_DT_I16:
        return 2;
    case HTH_DT_F64:
    case HTH_DT_I64:
    case HTH_DT_U64:
        return 8;
    default:
        return 4;
    }
}

HTH_FN float hth_f16_get(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31u, man = h & 0x3FFu;
    if (exp == 0) { // a multiple of the least number
        return (sign != 0 ? -1.0F : 1.0F) * (float)man * 0x1p-24F;
    }
    v.u = sign | (exp == 31 ? 0x7F800000u : (exp + 112) << 23) | man << 13;
    return v.f;
}

// Rounded to nearest, ties to even; NaN stays NaN.
HTH_FN uint16_t hth_f16_put(float f)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = f;
    uint32_t sign = v.u >> 16 & 0x8000u, abs = v.u & 0x7FFFFFFFu;
    if (abs > 0x7F800000u) {
        return (uint16_t)(sign | 0x7E00u | (abs >> 13 & 0x3FFu));
    }
    if (abs >= 0x477FF000u) { // rounds to infinity
        return (uint16_t)(sign | 0x7C00u);
    }
    if (abs < 0x33000001u) { // at most half of the least number
        return (uint16_t)sign;
    }
    uint32_t exp = abs >> 23, man = (abs & 0x7FFFFFu) | 0x800000u;
    uint32_t drop = exp < 113 ? 126 - exp : 13;        // bits below the result's last place
    uint32_t base = exp < 113 ? 0 : (exp - 113) << 10; // the hidden bit adds one to the exponent
    uint32_t kept = man >> drop, rest = man & ((1u << drop) - 1), half = 1u << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1u));
    return (uint16_t)(sign | (base + kept));
}

HTH_FN int64_t hth_number_int(int type, const void *p, int64_t i)
{
    switch (type) {
    case HTH_DT_BOOL:
    case HTH_DT_U8:
        return ((const uint8_t *)p)[i];
    case HTH_DT_I8:
        return ((const int8_t *)p)[i];
    case HTH_DT_U16:
        return ((const uint16_t *)p)[i];
    case HTH_DT_I16:
        return ((const int16_t *)p)[i];
    case HTH_DT_I32:
        return ((const int32_t *)p)[i];
    case HTH_DT_U32:
        return ((const uint32_t *)p)[i];
    default:
        return ((const int64_t *)p)[i];
    }
}

HTH_FN hth_number hth_number_get(int type, const void *p, int64_t i)
{
    hth_number v = {0, 0};
    switch (type) {
    case HTH_DT_F32:
        v.f = ((const float *)p)[i];
        break;
    case HTH_DT_F64:
        v.f = ((const double *)p)[i];
        break;
    case HTH_DT_F16:
        v.f = hth_f16_get(((const uint16_t *)p)[i]);
        break;
    case HTH_DT_BF16:
        v.f = hth_bf16_get(((const uint16_t *)p)[i]);
        break;
    default:
        v.i = hth_number_int(type, p, i);
        v.f = type == HTH_DT_U64 ? (double)(uint64_t)v.i : (double)v.i;
    }
    return v;
}

HTH_FN void hth_number_set(int type, void *p, uint32_t i, hth_number number)
{
    switch (type) {
    case HTH_DT_F32:
        ((float *)p)[i] = (float)number.f;
        break;
    case HTH_DT_F64:
        ((double *)p)[i] = number.f;
        break;
    case HTH_DT_F16:
        ((uint16_t *)p)[i] = hth_f16_put((float)number.f);
        break;
    case HTH_DT_BF16:
        ((uint16_t *)p)[i] = hth_bf16_put((float)number.f);
        break;
    case HTH_DT_BOOL:
        ((uint8_t *)p)[i] = number.i != 0;
        break;
    case HTH_DT_U8:
    case HTH_DT_I8:
        ((uint8_t *)p)[i] = (uint8_t)number.i;
        break;
    case HTH_DT_U16:
    case HTH_DT_I16:
        ((uint16_t *)p)[i] = (uint16_t)number.i;
        break;
    case HTH_DT_I32:
    case HTH_DT_U32:
        ((uint32_t *)p)[i] = (uint32_t)number.i;
        break;
    default:
        ((int64_t *)p)[i] = number.i;
        break;
    }
}

#endif
