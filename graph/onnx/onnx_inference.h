// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_inference.h - nodes as they compute in inference, in the messages of a model:
// what hth_train_off (graph/autodiff/train.h) does to a graph, for the file of it. Private to
// graph/onnx*.c.
#ifndef HTH_GRAPH_ONNX_ONNX_INFERENCE_H
#define HTH_GRAPH_ONNX_ONNX_INFERENCE_H

#include "graph/onnx/onnx_wire.h"

// hth_onnx_inference_node appends a node, field `number` of *out, with what it contains: Dropout
// does not drop, BatchNormalization uses the statistics that it is given. `depth`: of functions and
// branches around it; there a node's further results may be results of the body, and are kept.
// HTH_ECORRUPT, HTH_ENOTSUP; out->failed: no memory.
hth_err hth_onnx_inference_node(hth_span node, uint32_t number, int depth, hth_wire_buffer *out);
// hth_onnx_inference_function does so with a model-local function.
hth_err hth_onnx_inference_function(hth_span function, uint32_t number, hth_wire_buffer *out);

#endif
