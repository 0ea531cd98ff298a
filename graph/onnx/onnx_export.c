// SPDX-License-Identifier: Apache-2.0
// From a skeleton and its tensors back to an ONNX file: the skeleton is the file but for the
// tensors' bytes, so those are put back where they were, as raw_data. Names, opsets, functions and
// open dimensions are thereby what was imported.
//
// A message's length stands before it. So everything but the tensors is made first, in memory, with
// the places ("cuts") where tensors come in; then the file is written from front to back, and no
// more than a piece of a tensor is ever held.
#include "graph/onnx/onnx.h"

#include "base/alloc.h"
#include "graph/onnx/onnx_inference.h"
#include "graph/onnx/onnx_tensor.h"

#include <inttypes.h>
#include <string.h>

#define EXPORT_PIECE ((size_t)1 << 20)
// A protobuf message, and so an ONNX file, has fewer than 2 GiB.
#define EXPORT_MOST ((uint64_t)INT32_MAX)

enum {
    M_FUNCTIONS = 25,
    A_TYPE_TENSOR = 4, // value of AttributeProto.type
};

// A tensor's bytes are written after `at` bytes of the text.
typedef struct export_cut {
    size_t at;
    uint64_t bytes;
} export_cut;

typedef struct export_file {
    const hth_onnx_export *x;
    hth_wire_buffer text; // all but the tensors' bytes
    export_cut *cuts;     // the i-th tensor's
    int n, cap;
    uint64_t bytes; // of all tensors
} export_file;

static hth_err export_damaged(void)
{
    return hth_fail(HTH_ECORRUPT, "the stored graph is damaged");
}

// ---- the text

static void free_buffer(hth_wire_buffer *buffer)
{
    hth_free(buffer->data);
    *buffer = (hth_wire_buffer){.failed = buffer->failed};
}

// export_wrap makes *buffer, whose last `content` bytes are to come from a tensor, the field
// `number` of a message.
static void export_wrap(hth_wire_buffer *buffer, uint32_t number, uint64_t content)
{
    hth_wire_buffer outer = {.failed = buffer->failed};
    hth_wire_put_head(&outer, number, buffer->bytes + content);
    hth_wire_put(&outer, (hth_span){buffer->data, buffer->bytes});
    free_buffer(buffer);
    *buffer = outer;
}

static void export_put_text(hth_wire_buffer *buffer, uint32_t number, const char *text)
{
    hth_wire_put_bytes(buffer, number, (hth_span){(const uint8_t *)text, strlen(text)});
}

// export_constant makes the tensor in *buffer, whose bytes come last, the value of a Constant node.
static void export_constant(hth_wire_buffer *buffer, hth_span output, uint64_t content)
{
    hth_wire_buffer attribute = {0}, node = {0};
    export_wrap(buffer, HTH_ONNX_A_TENSOR, content);
    export_put_text(&attribute, HTH_ONNX_A_NAME, "value");
    hth_wire_put_varint(&attribute, HTH_ONNX_A_TYPE, A_TYPE_TENSOR);
    hth_wire_put(&attribute, (hth_span){buffer->data, buffer->bytes});
    attribute.failed |= buffer->failed;
    free_buffer(buffer);
    export_wrap(&attribute, HTH_ONNX_N_ATTRIBUTE, content);
    hth_wire_put_bytes(&node, HTH_ONNX_N_OUTPUT, output);
    export_put_text(&node, HTH_ONNX_N_OP_TYPE, "Constant");
    hth_wire_put(&node, (hth_span){attribute.data, attribute.bytes});
    node.failed |= attribute.failed;
    free_buffer(&attribute);
    export_wrap(&node, HTH_ONNX_G_NODE, content);
    *buffer = node;
}

static hth_err export_tensor(export_file *file, hth_span message, hth_wire_buffer *graph)
{
    hth_onnx_head t;
    hth_wire_buffer b = {0};
    HTH_TRY(hth_onnx_head_read(message, &hth_onnx_default_limits, &t));
    if (HTH_GROW(file->cuts, file->n, file->cap) != 0) {
        return hth_no_memory("exporting the model");
    }
    hth_onnx_head_write(&t, &b);
    hth_wire_put_head(&b, HTH_ONNX_T_RAW_DATA, t.bytes);
    if (t.constant && t.name.bytes > 0) {
        export_constant(&b, t.name, t.bytes);
    } else {
        export_wrap(&b, HTH_ONNX_G_INITIALIZER, t.bytes);
    }
    hth_wire_put(graph, (hth_span){b.data, b.bytes});
    graph->failed |= b.failed;
    hth_free(b.data);
    file->cuts[file->n++] = (export_cut){graph->bytes, t.bytes};
    file->bytes += t.bytes;
    return graph->failed ? hth_no_memory("exporting the model") : HTH_OK;
}

static hth_err export_graph_fields(export_file *file, hth_span message, hth_wire_buffer *graph)
{
    hth_wire_field field;
    hth_err err = HTH_OK;
    int more = 0;
    while (err == HTH_OK && (more = hth_wire_next(&message, &field)) > 0) {
        if (field.number == HTH_ONNX_G_INITIALIZER) {
            err = export_tensor(file, field.payload, graph);
        } else if (field.number == HTH_ONNX_G_NODE && file->x->inference) {
            err = hth_onnx_inference_node(field.payload, HTH_ONNX_G_NODE, 0, graph);
        } else {
            hth_wire_put(graph, field.whole);
        }
    }
    if (err == HTH_OK && more < 0) {
        return export_damaged();
    }
    return err;
}

static hth_err export_graph(export_file *file, hth_span message)
{
    hth_wire_buffer graph = {0};
    hth_err err = export_graph_fields(file, message, &graph);
    hth_wire_put_head(&file->text, HTH_ONNX_M_GRAPH, graph.bytes + file->bytes);
    for (int i = 0; i < file->n; i++) {
        file->cuts[i].at += file->text.bytes;
    }
    hth_wire_put(&file->text, (hth_span){graph.data, graph.bytes});
    file->text.failed |= graph.failed;
    hth_free(graph.data);
    return err;
}

static hth_err export_text(export_file *file)
{
    hth_span model = {file->x->skeleton, file->x->skeleton_bytes};
    hth_wire_field field;
    hth_err err = HTH_OK;
    int more = 0;
    bool graph = false;
    while (err == HTH_OK && (more = hth_wire_next(&model, &field)) > 0) {
        if (field.number == HTH_ONNX_M_GRAPH && !graph) {
            graph = true;
            err = export_graph(file, field.payload);
        } else if (field.number == M_FUNCTIONS && file->x->inference) {
            err = hth_onnx_inference_function(field.payload, M_FUNCTIONS, &file->text);
        } else {
            hth_wire_put(&file->text, field.whole);
        }
    }
    if (err == HTH_OK && (more < 0 || !graph || file->n != file->x->n_tensors)) {
        err = export_damaged();
    }
    if (err == HTH_OK && file->text.failed) {
        return hth_no_memory("exporting the model");
    }
    return err;
}

static hth_err export_fits(const export_file *file)
{
    uint64_t bytes = file->text.bytes + file->bytes;
    return bytes <= EXPORT_MOST
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG,
                          "as an ONNX file it has %" PRIu64 " bytes, and one holds at most %" PRIu64
                          ": export it as .safetensors",
                          bytes, EXPORT_MOST);
}

// ---- the file

static hth_err export_write_tensor(const export_file *file, int i, void *piece)
{
    const hth_onnx_export *x = file->x;
    for (uint64_t at = 0; at < file->cuts[i].bytes;) {
        uint64_t left = file->cuts[i].bytes - at;
        size_t n = left < EXPORT_PIECE ? (size_t)left : EXPORT_PIECE;
        HTH_TRY(x->read(x->ctx, i, at, piece, n));
        HTH_TRY(x->write(x->ctx, piece, n));
        at += n;
    }
    return HTH_OK;
}

static hth_err export_write(const export_file *file)
{
    const uint8_t *text = file->text.data;
    size_t from = 0;
    hth_err err = HTH_OK;
    void *piece = hth_alloc(EXPORT_PIECE);
    if (piece == NULL) {
        return hth_no_memory("exporting the model");
    }
    for (int i = 0; i < file->n && err == HTH_OK; i++) {
        err = file->x->write(file->x->ctx, text + from, file->cuts[i].at - from);
        if (err == HTH_OK) {
            err = export_write_tensor(file, i, piece);
        }
        from = file->cuts[i].at;
    }
    hth_free(piece);
    HTH_TRY(err);
    return file->x->write(file->x->ctx, text + from, file->text.bytes - from);
}

hth_err hth_onnx_export_write(const hth_onnx_export *export)
{
    export_file f = {.x = export};
    hth_err err;
    HTH_GOTO(export_text(&f), done);
    HTH_GOTO(export_fits(&f), done);
    err = export_write(&f);
done:
    hth_free(f.text.data);
    hth_free(f.cuts);
    return err;
}
