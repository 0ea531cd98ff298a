// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_wire.h - protobuf's wire format, read and written in place. Private to
// graph/onnx*.c.
//
// A message is a row of fields {number, wire type, payload}. Reading copies nothing: payloads point
// into the message. Every length is checked against what is left. Any thread.
#ifndef HTH_GRAPH_ONNX_ONNX_WIRE_H
#define HTH_GRAPH_ONNX_ONNX_WIRE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_span { // borrowed bytes
    const uint8_t *data;
    size_t bytes;
} hth_span;

bool hth_span_is(hth_span span, const char *text);

typedef enum hth_wire_type {
    HTH_WIRE_VARINT = 0,
    HTH_WIRE_FIXED64 = 1,
    HTH_WIRE_BYTES = 2,
    HTH_WIRE_FIXED32 = 5,
} hth_wire_type;

typedef struct hth_wire_field {
    uint32_t number;
    hth_wire_type type;
    uint64_t value;   // VARINT
    hth_span payload; // the bytes after tag (and length); of a VARINT, its encoding
    hth_span whole;   // tag included
} hth_wire_field;

// hth_wire_next takes the next field off the front of *message. Returns 1, 0 at the end, or -1 when
// what follows is not a field (cut short, an overlong number, a group).
int hth_wire_next(hth_span *message, hth_wire_field *out);
// hth_wire_varint takes one base-128 number off the front; 0 on success, -1 otherwise.
int hth_wire_varint(hth_span *from, uint64_t *out);

// A growing message. After `failed` was set (out of memory) appending does nothing.
typedef struct hth_wire_buffer {
    uint8_t *data; // hth_alloc'd; the owner frees it
    size_t bytes, capacity;
    int failed;
} hth_wire_buffer;

void hth_wire_put(hth_wire_buffer *buffer, hth_span bytes);
void hth_wire_put_varint(hth_wire_buffer *buffer, uint32_t number, uint64_t value);
void hth_wire_put_bytes(hth_wire_buffer *buffer, uint32_t number, hth_span bytes);
// hth_wire_put_head writes what stands before `bytes` bytes of a field: its tag and their number.
void hth_wire_put_head(hth_wire_buffer *buffer, uint32_t number, uint64_t bytes);

#endif
