// SPDX-License-Identifier: Apache-2.0
// kernels/ref/select.c - Clip, Where, and the conversions Cast and CastLike.
#include "kernels/ref/ref.h"

REF_KERNEL(ref_clip)
{
    HTH_TRY(ref_broadcast_copy(&in[0], &out[0]));
    for (int i = 1; i <= 2; i++) {
        const hth_tensor *bound = ref_in(n, in, i);
        if (bound != NULL) {
            HTH_TRY(ref_binary_into(i == 1 ? HTH_OP_MAX : HTH_OP_MIN, bound, &out[0]));
        }
    }
    return HTH_OK;
}

#define SELECT_WHERE(type)                                                                         \
    static void select_where_##type(type *o, const uint8_t *c, int64_t sc, const type *x,          \
                                    int64_t sx, const type *y, int64_t sy, int64_t n)              \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            type p = x[i * sx], q = y[i * sy];                                                     \
            o[i] = c[i * sc] ? p : q;                                                              \
        }                                                                                          \
    }
SELECT_WHERE(uint8_t)
SELECT_WHERE(uint16_t)
SELECT_WHERE(uint32_t)
SELECT_WHERE(uint64_t)

REF_KERNEL(ref_where)
{
    const hth_shape *shapes[] = {&out[0].shape, &in[0].shape, &in[1].shape, &in[2].shape};
    if (in[0].dtype != HTH_DT_BOOL || in[1].dtype != in[2].dtype || out[0].dtype != in[1].dtype) {
        return hth_fail(HTH_EINVAL, "the condition must be BOOL and both values of one dtype");
    }
    for (int k = 1; k < 4; k++) {
        HTH_TRY(ref_can_broadcast(shapes[k], shapes[0]));
    }
    ref_iter it;
    for (bool more = ref_iter_broadcast(&it, shapes[0], 4, shapes); more;
         more = ref_iter_next(&it)) {
        const uint8_t *c = (const uint8_t *)in[0].data + it.offset[1];
        int64_t sc = it.stride[1], sx = it.stride[2], sy = it.stride[3];
        switch (hth_dtype_bytes(out[0].dtype)) {
#define SELECT_WHERE_CASE(bytes, type)                                                             \
    case bytes:                                                                                    \
        select_where_##type((type *)out[0].data + it.offset[0], c, sc,                             \
                            (const type *)in[1].data + it.offset[2], sx,                           \
                            (const type *)in[2].data + it.offset[3], sy, it.count);                \
        break;
            SELECT_WHERE_CASE(1, uint8_t)
            SELECT_WHERE_CASE(2, uint16_t)
            SELECT_WHERE_CASE(4, uint32_t)
            SELECT_WHERE_CASE(8, uint64_t)
        }
    }
    return HTH_OK;
}

REF_KERNEL(ref_cast)
{
    if (ref_count(&in[0]) != ref_count(&out[0])) {
        return hth_fail(HTH_EINVAL, "input and output do not agree");
    }
    ref_convert(out[0].dtype, out[0].data, in[0].dtype, in[0].data, ref_count(&in[0]));
    return HTH_OK;
}
