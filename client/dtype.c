// SPDX-License-Identifier: Apache-2.0
// One row per element type; the formats' own numbers and names meet nowhere else in the client.
#include "client/dtype.h"

#include "base/alloc.h"

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

const hth_dtype_names *hth_dtype_of_npy(const char *descr)
{
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        if (strcmp(dtype_table[i].npy, descr) == 0) {
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
