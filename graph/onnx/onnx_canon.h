// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_canon.h - what the rules of onnx_canon*.c share. Private to them. One thread.
#ifndef HTH_GRAPH_ONNX_ONNX_CANON_H
#define HTH_GRAPH_ONNX_ONNX_CANON_H

#include "graph/onnx/onnx_load.h"

typedef struct canon { // the node at hand; refers to it by index because adding nodes moves them
    onnx_load *ld;
    int index;
} canon;

hth_node *onnx_canon_node(const canon *c);
// onnx_canon_set_input makes `value` the node's input number `at`.
hth_err onnx_canon_set_input(const canon *c, int at, int value);
// onnx_canon_const adds a constant named after the node and `name`: a list, or with rank 0 a
// scalar.
hth_err onnx_canon_const(const canon *c, const char *name, hth_dtype dt, int rank, int64_t n,
                         const void *data, int *out);
// onnx_canon_const_input makes such a constant input `at`.
hth_err onnx_canon_const_input(const canon *c, const char *name, hth_dtype dt, int rank, int64_t n,
                               const void *data, int at);
// onnx_canon_emit adds a helper node with one output; `to` gets the output's index. Both are named
// "<node>.<operator>": what a message says of the helper leads to the model's node.
hth_err onnx_canon_emit(const canon *c, hth_op op, const int *inputs, int n_inputs, int *node,
                        int *to);
// onnx_canon_constant returns the content of input `at`, NULL when it is absent or computed.
hth_const *onnx_canon_constant(const canon *c, int at);

// Rules of onnx_canon_resize.c, onnx_canon_group.c, onnx_canon_rnn.c and onnx_canon_quant.c.
hth_err onnx_canon_resize_old(const canon *c);
hth_err onnx_canon_resize_tf(const canon *c);
hth_err onnx_canon_resize_empty(const canon *c);
hth_err onnx_canon_group_norm(const canon *c);
hth_err onnx_canon_rnn(const canon *c);
hth_err onnx_canon_quantize(const canon *c);
hth_err onnx_canon_dequantize(const canon *c);
hth_err onnx_canon_dynamic_quantize(const canon *c);
hth_err onnx_canon_qlinear_conv(const canon *c);
hth_err onnx_canon_qlinear_matmul(const canon *c);
hth_err onnx_canon_conv_integer(const canon *c);
hth_err onnx_canon_matmul_integer(const canon *c);

#endif
