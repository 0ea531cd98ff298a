// SPDX-License-Identifier: Apache-2.0
// graph/tensor.h - dtypes, shapes, layouts, and a view of a tensor's bytes.
#ifndef HTH_GRAPH_TENSOR_H
#define HTH_GRAPH_TENSOR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Element types; the numbers are ONNX's TensorProto.DataType.
typedef enum hth_dtype {
    HTH_DT_NONE = 0,
    HTH_DT_F32 = 1,
    HTH_DT_U8 = 2,
    HTH_DT_I8 = 3,
    HTH_DT_U16 = 4,
    HTH_DT_I16 = 5,
    HTH_DT_I32 = 6,
    HTH_DT_I64 = 7,
    HTH_DT_STRING = 8, // recognised so that it can be refused by name
    HTH_DT_BOOL = 9,   // one byte, 0 or 1
    HTH_DT_F16 = 10,
    HTH_DT_F64 = 11,
    HTH_DT_U32 = 12,
    HTH_DT_U64 = 13,
    HTH_DT_BF16 = 16,
} hth_dtype;

// hth_dtype_bytes returns the size of one element, 0 for types without a fixed size that hearth can
// hold.
size_t hth_dtype_bytes(hth_dtype dt);
// hth_dtype_name returns the Open Inference Protocol's name ("FP32", "INT64", "BOOL"), "?" when
// unknown.
const char *hth_dtype_name(hth_dtype dt);
bool hth_dtype_is_float(hth_dtype dt); // F16, BF16, F32, F64

// In what convolutions and matrix products compute. TF32: f32 tensors, whose factors are rounded to
// 10 bits of mantissa. BF16: factors of 16 bits, 7 of mantissa. Both add up in f32.
typedef enum hth_precision {
    HTH_PRECISION_FP32,
    HTH_PRECISION_TF32,
    HTH_PRECISION_BF16
} hth_precision;
#define HTH_N_PRECISIONS 3

const char *hth_precision_name(hth_precision precision); // "fp32", "tf32", "bf16"
// hth_precision_find: HTH_EINVAL names those that there are.
hth_err hth_precision_find(const char *name, hth_precision *out);

#define HTH_MAX_RANK 8

// A dimension >= 0 is known. HTH_DIM_UNKNOWN is not known at all; HTH_DIM_SYMBOL(s) is the graph's
// symbol number s, equal wherever it appears ("N", "sequence").
#define HTH_DIM_UNKNOWN      ((int64_t)-1)
#define HTH_DIM_SYMBOL(s)    (-2 - (int64_t)(s))
#define HTH_DIM_TO_SYMBOL(d) ((int)(-2 - (d)))

typedef struct hth_shape {
    int rank; // -1: not even the rank is known
    int64_t dim[HTH_MAX_RANK];
} hth_shape;

#define HTH_SHAPE_UNKNOWN ((hth_shape){.rank = -1})

bool hth_shape_known(const hth_shape *shape); // rank and all dimensions
bool hth_shape_equal(const hth_shape *a, const hth_shape *b);
// hth_shape_elements returns the product of the dimensions (1 for a scalar) of a known shape, or -1
// on overflow.
int64_t hth_shape_elements(const hth_shape *shape);
// hth_shape_str writes "[2,3,224,224]" (symbols and unknowns as "?") to `out` and returns it.
const char *hth_shape_str(const hth_shape *shape, char *out, size_t cap);
// hth_shape_broadcast stores numpy's broadcast of a and b; HTH_EINVAL when they do not agree.
hth_err hth_shape_broadcast(const hth_shape *a, const hth_shape *b, hth_shape *out);

// How the elements lie in memory. All buffers start 64-byte aligned.
typedef enum hth_layout {
    HTH_LAYOUT_PLAIN = 0, // row-major, dense
    HTH_LAYOUT_C8,   // [N, ceil(C/8), spatial.., 8]: channels (axis 1) blocked, the padding holds
                     // zeros
    HTH_LAYOUT_C16,  // [N, ceil(C/16), spatial.., 16]
    HTH_LAYOUT_NHWC, // [N, spatial.., C]
} hth_layout;

const char *hth_layout_name(hth_layout layout); // "plain", "nChw8c", "nChw16c", "nhwc"
// hth_tensor_bytes stores the bytes of a tensor of a known shape in `layout`, padding included;
// HTH_ETOOBIG on overflow.
hth_err hth_tensor_bytes(hth_dtype dt, const hth_shape *shape, hth_layout layout, size_t *out);

// A view: whoever made it owns `data`.
typedef struct hth_tensor {
    hth_dtype dtype;
    hth_layout layout;
    hth_shape shape;
    void *data; // NULL: shape only
    size_t bytes;
} hth_tensor;

// Conversions of one 16-bit float; round to nearest even.
float hth_f16_to_f32(uint16_t h);
uint16_t hth_f32_to_f16(float f);
float hth_bf16_to_f32(uint16_t h);
uint16_t hth_f32_to_bf16(float f);

#endif
