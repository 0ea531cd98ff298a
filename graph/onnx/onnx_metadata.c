// SPDX-License-Identifier: Apache-2.0
// The model's metadata, read from the skeleton where somebody asks for it: the loader does not.
#include "graph/onnx/onnx.h"
#include "graph/onnx/onnx_tensor.h"

enum { // fields of StringStringEntryProto
    E_KEY = 1,
    E_VALUE = 2,
};

static void metadata_entry(hth_span entry, hth_onnx_metadata_fn fn, void *ctx)
{
    hth_onnx_text key = {NULL, 0}, value = {"", 0};
    hth_wire_field field;
    int more;
    while ((more = hth_wire_next(&entry, &field)) > 0) {
        hth_onnx_text text = {(const char *)field.payload.data, field.payload.bytes};
        if (field.type == HTH_WIRE_BYTES && field.number == E_KEY) {
            key = text;
        } else if (field.type == HTH_WIRE_BYTES && field.number == E_VALUE) {
            value = text;
        }
    }
    if (more == 0 && key.text != NULL) {
        fn(ctx, key, value);
    }
}

void hth_onnx_metadata(const void *skeleton, size_t bytes, hth_onnx_metadata_fn fn, void *ctx)
{
    hth_span model = {skeleton, bytes};
    hth_wire_field field;
    while (hth_wire_next(&model, &field) > 0) {
        if (field.number == HTH_ONNX_M_METADATA && field.type == HTH_WIRE_BYTES) {
            metadata_entry(field.payload, fn, ctx);
        }
    }
}
