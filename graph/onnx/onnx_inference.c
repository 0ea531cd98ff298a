// SPDX-License-Identifier: Apache-2.0
// In all versions of the operators that hearth reads, inference is what is left when the mode is
// taken away: Dropout's third operand, and BatchNormalization's attribute and further results
// (before version 14 these are the mode).
#include "graph/onnx/onnx_inference.h"

#include "base/alloc.h"
#include "graph/onnx/onnx_load.h"
#include "graph/onnx/onnx_tensor.h"

#include <string.h>

enum {
    A_GRAPH = 6,
    A_GRAPHS = 11,
    F_NODE = 7,
};

enum { BATCH_NORM_MEAN = 3, BATCH_NORM_OUTPUTS = 5 };

typedef enum inference_kind { KIND_OTHER, KIND_BATCH_NORM, KIND_DROPOUT } inference_kind;

static hth_err inference_damaged(void)
{
    return hth_fail(HTH_ECORRUPT, "a node of the stored graph is damaged");
}

static inference_kind inference_kind_of(hth_span node)
{
    inference_kind kind = KIND_OTHER;
    hth_wire_field f;
    while (hth_wire_next(&node, &f) > 0) {
        if (f.number == HTH_ONNX_N_DOMAIN && f.payload.bytes > 0 &&
            !hth_span_is(f.payload, "ai.onnx")) {
            return KIND_OTHER;
        }
        if (f.number == HTH_ONNX_N_OP_TYPE) {
            kind = hth_span_is(f.payload, "Dropout") ? KIND_DROPOUT : KIND_OTHER;
            kind = hth_span_is(f.payload, "BatchNormalization") ? KIND_BATCH_NORM : kind;
        }
    }
    return kind;
}

static bool inference_is_mode(hth_span attribute)
{
    hth_wire_field f;
    bool mode = false;
    while (hth_wire_next(&attribute, &f) > 0) {
        mode = mode || (f.number == HTH_ONNX_A_NAME && hth_span_is(f.payload, "training_mode"));
    }
    return mode;
}

// inference_wrap appends what was made as a field, and frees it.
static void inference_wrap(hth_wire_buffer *made, uint32_t number, hth_wire_buffer *out)
{
    hth_wire_put_bytes(out, number, (hth_span){made->data, made->bytes});
    out->failed |= made->failed;
    hth_free(made->data);
}

// inference_body appends a graph or a function, whose nodes are the fields `nodes`.
static hth_err inference_body(hth_span body, uint32_t nodes, int depth, uint32_t number,
                              hth_wire_buffer *out)
{
    hth_wire_buffer made = {0};
    hth_wire_field f;
    hth_err err = depth <= ONNX_MAX_DEPTH
                      ? HTH_OK
                      : hth_fail(HTH_ENOTSUP, "branches nested more than %d deep", ONNX_MAX_DEPTH);
    int more = 0;
    while (err == HTH_OK && (more = hth_wire_next(&body, &f)) > 0) {
        if (f.number == nodes && f.type == HTH_WIRE_BYTES) {
            err = hth_onnx_inference_node(f.payload, nodes, depth, &made);
        } else {
            hth_wire_put(&made, f.whole);
        }
    }
    inference_wrap(&made, number, out);
    if (err == HTH_OK && more < 0) {
        return inference_damaged();
    }
    return err;
}

// inference_attribute appends an attribute, which may be a branch.
static hth_err inference_attribute(hth_span attribute, int depth, hth_wire_buffer *out)
{
    hth_wire_buffer made = {0};
    hth_wire_field f;
    hth_err err = HTH_OK;
    int more = 0;
    while (err == HTH_OK && (more = hth_wire_next(&attribute, &f)) > 0) {
        if ((f.number == A_GRAPH || f.number == A_GRAPHS) && f.type == HTH_WIRE_BYTES) {
            err = inference_body(f.payload, HTH_ONNX_G_NODE, depth + 1, f.number, &made);
        } else {
            hth_wire_put(&made, f.whole);
        }
    }
    inference_wrap(&made, HTH_ONNX_N_ATTRIBUTE, out);
    if (err == HTH_OK && more < 0) {
        return inference_damaged();
    }
    return err;
}

// inference_stands_in appends a node that gives a result that batch norm does not have any more:
// the statistic that goes in is the one that comes out.
static void inference_stands_in(hth_span input, hth_span output, uint32_t number,
                                hth_wire_buffer *out)
{
    hth_wire_buffer node = {0};
    hth_wire_put_bytes(&node, HTH_ONNX_N_INPUT, input);
    hth_wire_put_bytes(&node, HTH_ONNX_N_OUTPUT, output);
    hth_wire_put_bytes(&node, HTH_ONNX_N_OP_TYPE, (hth_span){(const uint8_t *)"Identity", 8});
    inference_wrap(&node, number, out);
}

// Names of a node, as far as they are wanted.
typedef struct inference_names {
    hth_span name[BATCH_NORM_OUTPUTS];
    int n;
} inference_names;

// inference_name notes a name and returns its index.
static int inference_name(inference_names *names, hth_span name)
{
    if (names->n < BATCH_NORM_OUTPUTS) {
        names->name[names->n] = name;
    }
    return names->n++;
}

hth_err hth_onnx_inference_node(hth_span node, uint32_t number, int depth, hth_wire_buffer *out)
{
    inference_kind kind = inference_kind_of(node);
    inference_names inputs = {.n = 0}, outputs = {.n = 0};
    hth_wire_buffer made = {0};
    hth_wire_field f;
    hth_err err = HTH_OK;
    int more = 0;
    while (err == HTH_OK && (more = hth_wire_next(&node, &f)) > 0) {
        bool keep = true;
        if (f.number == HTH_ONNX_N_INPUT) {
            keep = inference_name(&inputs, f.payload) < 2 || kind != KIND_DROPOUT;
        } else if (f.number == HTH_ONNX_N_OUTPUT) {
            keep = inference_name(&outputs, f.payload) < 1 || kind != KIND_BATCH_NORM;
        } else if (f.number == HTH_ONNX_N_ATTRIBUTE && f.type == HTH_WIRE_BYTES) {
            bool mode = kind == KIND_BATCH_NORM && inference_is_mode(f.payload);
            err = mode ? HTH_OK : inference_attribute(f.payload, depth, &made);
            keep = false;
        }
        if (keep) {
            hth_wire_put(&made, f.whole);
        }
    }
    inference_wrap(&made, number, out);
    for (int k = 1; kind == KIND_BATCH_NORM && depth > 0 && k < outputs.n; k++) {
        if (k < BATCH_NORM_OUTPUTS && outputs.name[k].bytes > 0) {
            hth_span statistic = inputs.name[BATCH_NORM_MEAN + (k + 1) % 2];
            inference_stands_in(statistic, outputs.name[k], number, out);
        }
    }
    if (err == HTH_OK && more < 0) {
        return inference_damaged();
    }
    return err;
}

hth_err hth_onnx_inference_function(hth_span function, uint32_t number, hth_wire_buffer *out)
{
    return inference_body(function, F_NODE, 1, number, out);
}
