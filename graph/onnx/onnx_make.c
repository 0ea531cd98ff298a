// SPDX-License-Identifier: Apache-2.0
#include "graph/onnx/onnx_make.h"

#include "base/alloc.h"
#include "graph/onnx/onnx_tensor.h"

#include <string.h>

#define MAKE_IR 8 // of opset 18

// Field numbers of onnx.proto that only a writer needs.
enum {
    M_IR_VERSION = 1,
    M_OPSET = 8,
    O_VERSION = 2,
    G_NAME = 2,
    G_INPUT = 11,
    G_OUTPUT = 12,
    N_NAME = 3,
    A_INT = 3,
    A_TYPE_INT = 2, // value of AttributeProto.type
    T_DIMS = 1,
    T_DTYPE = 2,
    T_NAME = 8,
    V_NAME = 1,
    V_TYPE = 2,
    TYPE_TENSOR = 1,
    TYPE_ELEMENT = 1,
    TYPE_SHAPE = 2,
    SHAPE_DIM = 1,
    DIM_VALUE = 1,
    DIM_PARAM = 2,
};

static void make_text(hth_wire_buffer *to, uint32_t number, const char *text)
{
    hth_wire_put_bytes(to, number, (hth_span){(const uint8_t *)text, strlen(text)});
}

// make_close makes a message a field of another one.
static void make_close(hth_wire_buffer *to, uint32_t number, hth_wire_buffer *message)
{
    hth_wire_put_bytes(to, number, (hth_span){message->data, message->bytes});
    to->failed = to->failed || message->failed;
    hth_free(message->data);
}

static void make_node(hth_wire_buffer *graph, const hth_onnx_make_node *node)
{
    hth_wire_buffer m = {.failed = 0};
    for (int i = 0; i < HTH_ONNX_MAKE_INPUTS && node->input[i] != NULL; i++) {
        make_text(&m, HTH_ONNX_N_INPUT, node->input[i]);
    }
    make_text(&m, HTH_ONNX_N_OUTPUT, node->output);
    make_text(&m, N_NAME, node->output);
    make_text(&m, HTH_ONNX_N_OP_TYPE, node->op);
    for (int i = 0; i < HTH_ONNX_MAKE_ATTRIBUTES && node->attribute[i].name != NULL; i++) {
        hth_wire_buffer a = {.failed = 0};
        make_text(&a, HTH_ONNX_A_NAME, node->attribute[i].name);
        hth_wire_put_varint(&a, A_INT, (uint64_t)node->attribute[i].value);
        hth_wire_put_varint(&a, HTH_ONNX_A_TYPE, A_TYPE_INT);
        make_close(&m, HTH_ONNX_N_ATTRIBUTE, &a);
    }
    make_close(graph, HTH_ONNX_G_NODE, &m);
}

static void make_tensor(hth_wire_buffer *graph, const hth_onnx_tensor *tensor)
{
    hth_wire_buffer m = {.failed = 0};
    for (int i = 0; i < tensor->shape.rank; i++) {
        hth_wire_put_varint(&m, T_DIMS, (uint64_t)tensor->shape.dim[i]);
    }
    hth_wire_put_varint(&m, T_DTYPE, (uint64_t)tensor->dtype);
    make_text(&m, T_NAME, tensor->name);
    hth_wire_put_bytes(&m, HTH_ONNX_T_RAW_DATA, (hth_span){tensor->data, tensor->bytes});
    make_close(graph, HTH_ONNX_G_INITIALIZER, &m);
}

static void make_value(hth_wire_buffer *graph, uint32_t number, const hth_onnx_make_value *value)
{
    hth_wire_buffer m = {.failed = 0}, type = m, tensor = m, shape = m;
    for (int i = 0; i < value->shape.rank; i++) {
        hth_wire_buffer dim = {.failed = 0};
        if (value->shape.dim[i] < 0) {
            make_text(&dim, DIM_PARAM, "N");
        } else {
            hth_wire_put_varint(&dim, DIM_VALUE, (uint64_t)value->shape.dim[i]);
        }
        make_close(&shape, SHAPE_DIM, &dim);
    }
    hth_wire_put_varint(&tensor, TYPE_ELEMENT, (uint64_t)value->dtype);
    make_close(&tensor, TYPE_SHAPE, &shape);
    make_close(&type, TYPE_TENSOR, &tensor);
    make_text(&m, V_NAME, value->name);
    make_close(&m, V_TYPE, &type);
    make_close(graph, number, &m);
}

hth_err hth_onnx_make_file(const hth_onnx_make *make, void **out, size_t *bytes)
{
    hth_wire_buffer file = {.failed = 0}, graph = file, opset = file;
    for (int i = 0; i < make->n_nodes; i++) {
        make_node(&graph, &make->nodes[i]);
    }
    make_text(&graph, G_NAME, make->name);
    for (int i = 0; i < make->n_tensors; i++) {
        make_tensor(&graph, &make->tensors[i]);
    }
    for (int i = 0; i < make->n_inputs; i++) {
        make_value(&graph, G_INPUT, &make->inputs[i]);
    }
    for (int i = 0; i < make->n_outputs; i++) {
        make_value(&graph, G_OUTPUT, &make->outputs[i]);
    }
    hth_wire_put_varint(&file, M_IR_VERSION, MAKE_IR);
    make_close(&file, HTH_ONNX_M_GRAPH, &graph);
    hth_wire_put_varint(&opset, O_VERSION, HTH_ONNX_MAKE_OPSET);
    make_close(&file, M_OPSET, &opset);
    *out = file.failed ? NULL : file.data;
    *bytes = file.bytes;
    if (*out == NULL) {
        hth_free(file.data);
        return hth_no_memory("an ONNX file");
    }
    return HTH_OK;
}
