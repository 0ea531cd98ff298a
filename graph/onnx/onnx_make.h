// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_make.h - an ONNX file in memory of a graph that the program itself describes.
#ifndef HTH_GRAPH_ONNX_ONNX_MAKE_H
#define HTH_GRAPH_ONNX_ONNX_MAKE_H

#include "graph/onnx/onnx.h"

#define HTH_ONNX_MAKE_INPUTS     3
#define HTH_ONNX_MAKE_ATTRIBUTES 2
#define HTH_ONNX_MAKE_OPSET      18

typedef struct hth_onnx_make_attribute {
    const char *name; // NULL: there is none
    int64_t value;
} hth_onnx_make_attribute;

typedef struct hth_onnx_make_node {
    const char *op, *output;
    const char *input[HTH_ONNX_MAKE_INPUTS]; // NULL: no more
    hth_onnx_make_attribute attribute[HTH_ONNX_MAKE_ATTRIBUTES];
} hth_onnx_make_node;

// An input or output of the graph. A dimension of -1 is "N", the batch's.
typedef struct hth_onnx_make_value {
    const char *name;
    hth_dtype dtype;
    hth_shape shape;
} hth_onnx_make_value;

// Everything is borrowed. Of a tensor name, dtype, shape, data and bytes count.
typedef struct hth_onnx_make {
    const char *name;
    const hth_onnx_make_node *nodes;
    const hth_onnx_tensor *tensors;
    const hth_onnx_make_value *inputs, *outputs;
    int n_nodes, n_tensors, n_inputs, n_outputs;
} hth_onnx_make;

// hth_onnx_make_file writes the file of operators of opset HTH_ONNX_MAKE_OPSET to memory that the
// caller frees with hth_free. Whether the graph is sound is found out by who opens it. HTH_ENOMEM.
hth_err hth_onnx_make_file(const hth_onnx_make *make, void **out, size_t *bytes);

#endif
