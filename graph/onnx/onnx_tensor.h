// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_tensor.h - one TensorProto: its head, and where its bytes are. Private to
// graph/onnx*.c.
#ifndef HTH_GRAPH_ONNX_ONNX_TENSOR_H
#define HTH_GRAPH_ONNX_ONNX_TENSOR_H

#include "graph/onnx/onnx.h"
#include "graph/onnx/onnx_wire.h"

// Fields that more than one of those who read and write models know.
enum {
    HTH_ONNX_M_GRAPH = 7,
    HTH_ONNX_M_METADATA = 14,
    HTH_ONNX_M_TRAINING = 20,
    HTH_ONNX_G_NODE = 1,
    HTH_ONNX_G_INITIALIZER = 5,
    HTH_ONNX_N_INPUT = 1,
    HTH_ONNX_N_OUTPUT = 2,
    HTH_ONNX_N_OP_TYPE = 4,
    HTH_ONNX_N_ATTRIBUTE = 5,
    HTH_ONNX_N_DOMAIN = 7,
    HTH_ONNX_A_NAME = 1,
    HTH_ONNX_A_TENSOR = 5,
    HTH_ONNX_A_TYPE = 20,
    HTH_ONNX_T_RAW_DATA = 9,
};

// What a TensorProto says. Everything is borrowed from the message.
typedef struct hth_onnx_head {
    hth_span name; // not terminated
    hth_dtype dtype;
    hth_shape shape;
    uint64_t elements, bytes;
    bool external;
    hth_span location; // of the external file
    uint64_t offset, length;
    bool has_length;
    hth_span raw;
    bool has_raw;
    bool constant; // of a Constant node: not a parameter
    hth_span message;
} hth_onnx_head;

// hth_onnx_head_read checks dtype, shape and sizes (HTH_ECORRUPT, HTH_ENOTSUP, HTH_ETOOBIG with the
// tensor's name).
hth_err hth_onnx_head_read(hth_span message, const hth_onnx_limits *limits, hth_onnx_head *out);
// hth_onnx_content finds the bytes of a tensor that is not external: in the message, or converted
// from typed fields into *owned (hth_alloc'd, the caller frees it; else NULL).
hth_err hth_onnx_content(const hth_onnx_head *head, const void **data, void **owned);
// hth_onnx_content_check verifies found bytes: the count, and that booleans are 0 or 1.
hth_err hth_onnx_content_check(const hth_onnx_head *head, hth_span bytes);
// hth_onnx_content_bytes verifies the count only, of bytes that are read later.
hth_err hth_onnx_content_bytes(const hth_onnx_head *head, uint64_t bytes);
// hth_onnx_content_bools: HTH_ECORRUPT when one of n bytes is neither 0 nor 1.
hth_err hth_onnx_content_bools(hth_span name, const void *data, size_t n);
// hth_onnx_head_write writes a TensorProto that has only name, dtype and dims (and
// says by its doc_string that it is a Constant).
void hth_onnx_head_write(const hth_onnx_head *head, hth_wire_buffer *out);
// hth_onnx_dtype_known tells whether hearth holds elements of ONNX type `elem_type`.
bool hth_onnx_dtype_known(int64_t elem_type);
// hth_onnx_dtype_text names any ONNX element type, also those that hearth cannot hold
// ("FLOAT8E4M3FN").
const char *hth_onnx_dtype_text(int64_t elem_type);

// For printf: HTH_SPAN(t->name) with "%.*s".
#define HTH_SPAN(s) (int)((s).bytes < 200 ? (s).bytes : 200), (const char *)(s).data

#endif
