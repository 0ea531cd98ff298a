// SPDX-License-Identifier: Apache-2.0
// Opening a model file: one walk over the wire format finds every initializer's bytes where they
// lie and copies everything else into the skeleton. What nobody reads (documentation, metadata of
// graphs and nodes, quantization notes) is left out, and a large Constant node becomes an
// initializer, so the skeleton stays small and weights are found once.
//
// Large tensors stay in their files, so opening costs time by the number of nodes and not by the
// number of bytes (onnx_impl.h).
#include "graph/onnx/onnx.h"

#include "base/alloc.h"
#include "graph/onnx/onnx_hint.h"
#include "graph/onnx/onnx_impl.h"

#include <string.h>

const hth_onnx_limits hth_onnx_default_limits = {
    .max_model_bytes = (uint64_t)64 << 30,
    .max_tensor_elements = (uint64_t)1 << 40,
    .max_nodes = 200000,
    .max_rank = HTH_MAX_RANK,
    .max_signature = 4096,
};

// Below this a Constant node stays in the skeleton: its value is likely a shape or an axis, not a
// weight.
#define OPEN_LARGE_CONSTANT 65536

enum { // fields of the messages that are walked
    M_DOC = 6,
    M_GRAPH = HTH_ONNX_M_GRAPH,
    M_TRAINING = HTH_ONNX_M_TRAINING,
    G_NODE = HTH_ONNX_G_NODE,
    G_INITIALIZER = HTH_ONNX_G_INITIALIZER,
    G_DOC = 10,
    G_QUANTIZATION = 14,
    G_SPARSE = 15,
    G_METADATA = 16,
    N_OUTPUT = HTH_ONNX_N_OUTPUT,
    N_OP_TYPE = HTH_ONNX_N_OP_TYPE,
    N_ATTRIBUTE = HTH_ONNX_N_ATTRIBUTE,
    N_DOC = 6,
    N_DOMAIN = HTH_ONNX_N_DOMAIN,
    N_METADATA = 9,
    N_DEVICES = 10,
    A_NAME = HTH_ONNX_A_NAME,
    A_TENSOR = HTH_ONNX_A_TENSOR,
};

struct hth_onnx_file {
    hth_onnx_limits limits;
    hth_onnx_parts parts;
    hth_onnx_tensor *tensors;
    void **owned; // owned[i]: tensors[i]'s converted bytes, or NULL
    int n_tensors, cap_tensors, cap_owned;
    int n_nodes;
    size_t metadata_bytes; // that are in the skeleton
    hth_wire_buffer skeleton;
};

static hth_err open_corrupt(const char *what)
{
    return hth_fail(HTH_ECORRUPT, "not an ONNX model: %s", what);
}

// open_in_file has tensor `i` read later, or at once if it is small.
static hth_err open_in_file(hth_onnx_file *file, const hth_onnx_head *head, int i, int part,
                            uint64_t at, uint64_t bytes)
{
    hth_onnx_tensor *to = &file->tensors[i];
    HTH_TRY(hth_onnx_content_bytes(head, bytes));
    to->part = part;
    to->at = at;
    if (bytes > HTH_ONNX_KEPT_BYTES) {
        return HTH_OK;
    }
    void *owned = hth_alloc_aligned((size_t)bytes + 1, 64);
    if (owned == NULL) {
        return hth_no_memory("reading the model");
    }
    hth_err err = hth_onnx_parts_read(&file->parts, part, at, owned, (size_t)bytes);
    if (err == HTH_OK) {
        err = hth_onnx_content_check(head, (hth_span){owned, (size_t)bytes});
    }
    if (err != HTH_OK) {
        hth_free(owned);
        return err;
    }
    to->data = file->owned[i] = owned;
    return HTH_OK;
}

// open_content finds the bytes of tensor `i`, wherever they are. initializer: bytes that lie in its
// message may have been left in the file.
static hth_err open_content(hth_onnx_file *file, const hth_onnx_head *head, int i, bool initializer)
{
    int part = 0;
    uint64_t at, bytes;
    file->owned[i] = NULL;
    if (head->external) {
        hth_err err = hth_onnx_parts_external(&file->parts, head, &part, &at, &bytes);
        if (err == HTH_OK && part >= 0) {
            err = open_in_file(file, head, i, part, at, bytes);
        }
        return hth_err_prefix(err, "tensor '%.*s'", HTH_SPAN(head->name));
    }
    if (initializer && head->has_raw && head->raw.bytes > HTH_ONNX_KEPT_BYTES &&
        file->parts.n > 0) {
        at = (uint64_t)(head->raw.data - (const uint8_t *)file->parts.model);
        return open_in_file(file, head, i, part, at, head->raw.bytes);
    }
    return hth_onnx_content(head, &file->tensors[i].data, &file->owned[i]);
}

// open_tensor records one initializer and writes its head to the graph's skeleton.
static hth_err open_tensor(hth_onnx_file *file, hth_onnx_head *t, bool initializer,
                           hth_wire_buffer *graph)
{
    hth_wire_buffer head = {0};
    if (HTH_GROW(file->tensors, file->n_tensors, file->cap_tensors) != 0 ||
        HTH_GROW(file->owned, file->n_tensors, file->cap_owned) != 0) {
        return hth_no_memory("reading the model");
    }
    hth_onnx_tensor *to = &file->tensors[file->n_tensors];
    *to = (hth_onnx_tensor){.dtype = t->dtype, .shape = t->shape, .bytes = (size_t)t->bytes};
    HTH_TRY(open_content(file, t, file->n_tensors, initializer));
    file->n_tensors++; // from here hth_onnx_close frees what it owns
    to->name = hth_strndup((const char *)t->name.data, t->name.bytes);
    hth_onnx_head_write(t, &head);
    hth_wire_put_bytes(graph, G_INITIALIZER, (hth_span){head.data, head.bytes});
    hth_free(head.data);
    return to->name == NULL || head.failed ? hth_no_memory("reading the model") : HTH_OK;
}

// open_attribute_tensor returns the tensor of an attribute named "value", an empty span otherwise.
static hth_span open_attribute_tensor(hth_span attribute)
{
    hth_span tensor = {0};
    hth_wire_field f;
    while (hth_wire_next(&attribute, &f) > 0) {
        if (f.number == A_NAME && !hth_span_is(f.payload, "value")) {
            return (hth_span){0};
        }
        if (f.number == A_TENSOR && f.type == HTH_WIRE_BYTES) {
            tensor = f.payload;
        }
    }
    return tensor;
}

// open_weight_constant fills *head and returns true if the node is a Constant whose tensor is large
// or lies in another file, or did when what exported this file imported it (onnx_export.c).
static bool open_weight_constant(const hth_onnx_file *file, hth_span node, hth_onnx_head *head)
{
    hth_span output = {0}, tensor = {0};
    hth_wire_field field;
    bool constant = false;
    while (hth_wire_next(&node, &field) > 0) {
        if (field.number == N_OP_TYPE) {
            constant = hth_span_is(field.payload, "Constant");
        } else if (field.number == N_DOMAIN && field.payload.bytes > 0) {
            return false;
        } else if (field.number == N_OUTPUT) {
            output = field.payload;
        } else if (field.number == N_ATTRIBUTE && field.type == HTH_WIRE_BYTES) {
            tensor = open_attribute_tensor(field.payload);
        }
    }
    if (!constant || output.bytes == 0 || tensor.bytes == 0 ||
        hth_onnx_head_read(tensor, &file->limits, head) != HTH_OK) {
        return false; // the loader will say what is wrong with it
    }
    head->name = output;
    return head->external || head->constant || tensor.bytes >= OPEN_LARGE_CONSTANT;
}

static hth_err open_node(hth_onnx_file *file, const hth_wire_field *node, hth_wire_buffer *graph)
{
    hth_onnx_head weight;
    hth_wire_buffer kept = {0};
    hth_span rest = node->payload;
    hth_wire_field field;
    int more;
    if (++file->n_nodes > file->limits.max_nodes) {
        return hth_fail(HTH_ETOOBIG, "the graph has more than %d nodes (limits.nodes)",
                        file->limits.max_nodes);
    }
    if (open_weight_constant(file, node->payload, &weight)) {
        weight.constant = true;
        return open_tensor(file, &weight, false, graph);
    }
    while ((more = hth_wire_next(&rest, &field)) > 0) {
        if (field.number != N_DOC && field.number != N_METADATA && field.number != N_DEVICES) {
            hth_wire_put(&kept, field.whole);
        }
    }
    hth_wire_put_bytes(graph, G_NODE, (hth_span){kept.data, kept.bytes});
    hth_free(kept.data);
    if (more < 0) {
        return open_corrupt("a node is damaged");
    }
    return kept.failed ? hth_no_memory("reading the model") : HTH_OK;
}

static hth_err open_initializer(hth_onnx_file *file, const hth_wire_field *field,
                                hth_wire_buffer *graph)
{
    hth_onnx_head t;
    HTH_TRY(hth_onnx_head_read(field->payload, &file->limits, &t));
    return open_tensor(file, &t, true, graph);
}

static hth_err open_graph_field(hth_onnx_file *file, const hth_wire_field *field,
                                hth_wire_buffer *graph)
{
    bool message = field->type == HTH_WIRE_BYTES;
    switch (field->number) {
    case G_NODE:
        return message ? open_node(file, field, graph) : open_corrupt("a node is damaged");
    case G_INITIALIZER:
        return message ? open_initializer(file, field, graph)
                       : open_corrupt("an initializer is damaged");
    case G_SPARSE:
        return hth_fail(HTH_ENOTSUP, "sparse initializers are not supported");
    case G_DOC:
    case G_QUANTIZATION:
    case G_METADATA:
        return HTH_OK;
    default:
        hth_wire_put(graph, field->whole);
        return HTH_OK;
    }
}

static hth_err open_graph(hth_onnx_file *file, hth_span message)
{
    hth_wire_buffer graph = {0};
    hth_wire_field field;
    hth_err err = HTH_OK;
    int more = 0;
    while (err == HTH_OK && (more = hth_wire_next(&message, &field)) > 0) {
        err = open_graph_field(file, &field, &graph);
    }
    if (err == HTH_OK && more < 0) {
        err = open_corrupt("its graph is damaged or cut short");
    }
    if (err == HTH_OK) {
        hth_wire_put_bytes(&file->skeleton, M_GRAPH, (hth_span){graph.data, graph.bytes});
        err = graph.failed || file->skeleton.failed ? hth_no_memory("reading the model") : HTH_OK;
    }
    hth_free(graph.data);
    return err;
}

// open_metadata keeps an entry of the model's metadata, while there is room.
static void open_metadata(hth_onnx_file *file, const hth_wire_field *field)
{
    if (field->type == HTH_WIRE_BYTES &&
        field->whole.bytes <= HTH_ONNX_METADATA - file->metadata_bytes) {
        file->metadata_bytes += field->whole.bytes;
        hth_wire_put(&file->skeleton, field->whole);
    }
}

static hth_err open_walk(hth_onnx_file *file, hth_span message)
{
    hth_wire_field field;
    int more, n_graphs = 0;
    while ((more = hth_wire_next(&message, &field)) > 0) {
        if (field.number == M_GRAPH) {
            if (field.type != HTH_WIRE_BYTES || n_graphs++ > 0) {
                return open_corrupt("it has more than one graph");
            }
            HTH_TRY(open_graph(file, field.payload));
        } else if (field.number == HTH_ONNX_M_METADATA) {
            open_metadata(file, &field);
        } else if (field.number != M_DOC && field.number != M_TRAINING) {
            hth_wire_put(&file->skeleton, field.whole);
        }
    }
    if (more < 0) {
        return open_corrupt("it is damaged or cut short");
    }
    if (n_graphs == 0) {
        return open_corrupt("it has no graph");
    }
    return file->skeleton.failed ? hth_no_memory("reading the model") : HTH_OK;
}

// open_model reads the model; of what is none it says what it is instead.
static hth_err open_model(hth_onnx_file *file, hth_span message)
{
    hth_err err = open_walk(file, message);
    const char *hint = err == HTH_OK || err == HTH_ENOMEM ? NULL : hth_onnx_hint(message);
    return hint != NULL ? hth_fail(HTH_ECORRUPT, "not an ONNX model, but %s", hint) : err;
}

static hth_err open_new(const hth_onnx_limits *limits, hth_onnx_file **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_no_memory("reading the model");
    }
    (*out)->limits = limits != NULL ? *limits : hth_onnx_default_limits;
    return HTH_OK;
}

hth_err hth_onnx_open(const char *path, const hth_onnx_limits *limits, hth_onnx_file **out)
{
    hth_onnx_file *f;
    hth_err err;
    *out = NULL;
    HTH_TRY(open_new(limits, &f));
    hth_span model;
    HTH_GOTO(hth_onnx_parts_open(&f->parts, path, f->limits.max_model_bytes, &model), fail);
    HTH_GOTO(open_model(f, model), prefix);
    *out = f;
    return HTH_OK;
prefix:
    hth_err_prefix(err, "'%s'", path);
fail:
    hth_onnx_close(f);
    return err;
}

hth_err hth_onnx_open_given(const char *shown, const hth_onnx_given *given, int n,
                            const hth_onnx_limits *limits, hth_onnx_wanted *wanted,
                            hth_onnx_file **out)
{
    hth_onnx_file *f;
    hth_span model;
    *out = NULL;
    *wanted = (hth_onnx_wanted){NULL, 0, 0};
    HTH_TRY(open_new(limits, &f));
    f->parts.given = given;
    f->parts.n_given = n;
    f->parts.wanted = wanted;
    hth_err err = hth_onnx_parts_given(&f->parts, shown, f->limits.max_model_bytes, &model);
    if (err == HTH_OK && (err = open_model(f, model)) != HTH_OK) {
        hth_err_prefix(err, "'%s'", shown);
    }
    if (err == HTH_OK && wanted->n > 0) {
        err = hth_fail(HTH_ENOENT, "'%s': its external data '%s' was not passed", shown,
                       wanted->location[0]);
    }
    if (err != HTH_OK) {
        hth_onnx_close(f);
        return err;
    }
    f->parts.given = NULL; // everything is open
    *out = f;
    return HTH_OK;
}

hth_err hth_onnx_open_bytes(const void *data, size_t bytes, const hth_onnx_limits *limits,
                            hth_onnx_file **out)
{
    hth_onnx_file *f;
    *out = NULL;
    HTH_TRY(open_new(limits, &f));
    hth_err err = bytes > f->limits.max_model_bytes
                      ? hth_fail(HTH_ETOOBIG, "the model is larger than the limit of %llu bytes",
                                 (unsigned long long)f->limits.max_model_bytes)
                      : open_model(f, (hth_span){data, bytes});
    if (err != HTH_OK) {
        hth_onnx_close(f);
        return err;
    }
    *out = f;
    return HTH_OK;
}

void hth_onnx_close(hth_onnx_file *file)
{
    if (file == NULL) {
        return;
    }
    for (int i = 0; i < file->n_tensors; i++) {
        hth_free(file->tensors[i].name);
        hth_free(file->owned[i]);
    }
    hth_onnx_parts_close(&file->parts);
    hth_free(file->tensors);
    hth_free(file->owned);
    hth_free(file->skeleton.data);
    hth_free(file);
}

int hth_onnx_n_tensors(const hth_onnx_file *file)
{
    return file->n_tensors;
}

const hth_onnx_tensor *hth_onnx_tensor_at(const hth_onnx_file *file, int i)
{
    return &file->tensors[i];
}

hth_err hth_onnx_tensor_read(const hth_onnx_file *file, int i, uint64_t offset, void *dst, size_t n)
{
    const hth_onnx_tensor *t = &file->tensors[i];
    if (offset > t->bytes || n > t->bytes - offset) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has %zu bytes", t->name, t->bytes);
    }
    if (t->data != NULL) {
        memcpy(dst, (const char *)t->data + offset, n);
        return HTH_OK;
    }
    HTH_TRY(hth_onnx_parts_read(&file->parts, t->part, t->at + offset, dst, n));
    hth_span name = {(const uint8_t *)t->name, strlen(t->name)};
    return t->dtype == HTH_DT_BOOL ? hth_onnx_content_bools(name, dst, n) : HTH_OK;
}

const void *hth_onnx_skeleton(const hth_onnx_file *file, size_t *bytes)
{
    *bytes = file->skeleton.bytes;
    return file->skeleton.data;
}
