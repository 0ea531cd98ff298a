// SPDX-License-Identifier: Apache-2.0
#include "graph/onnx/onnx_wire.h"

#include "base/alloc.h"

#include <string.h>

bool hth_span_is(hth_span span, const char *text)
{
    return span.bytes == strlen(text) && memcmp(span.data, text, span.bytes) == 0;
}

int hth_wire_varint(hth_span *from, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < from->bytes && i < 10; i++) {
        value |= (uint64_t)(from->data[i] & 0x7f) << (7 * i);
        if (from->data[i] < 0x80) {
            *out = value;
            from->data += i + 1;
            from->bytes -= i + 1;
            return 0;
        }
    }
    return -1;
}

// wire_take moves the first `n` bytes of *from to *out.
static int wire_take(hth_span *from, uint64_t n, hth_span *out)
{
    if (n > from->bytes) {
        return -1;
    }
    *out = (hth_span){from->data, (size_t)n};
    from->data += n;
    from->bytes -= (size_t)n;
    return 0;
}

static int wire_payload(hth_span *span, hth_wire_field *field)
{
    hth_span before = *span;
    uint64_t n;
    switch (field->type) {
    case HTH_WIRE_VARINT:
        if (hth_wire_varint(span, &field->value) != 0) {
            return -1;
        }
        field->payload = (hth_span){before.data, before.bytes - span->bytes};
        return 0;
    case HTH_WIRE_FIXED64:
        return wire_take(span, 8, &field->payload);
    case HTH_WIRE_FIXED32:
        return wire_take(span, 4, &field->payload);
    case HTH_WIRE_BYTES:
        return hth_wire_varint(span, &n) != 0 ? -1 : wire_take(span, n, &field->payload);
    }
    return -1;
}

int hth_wire_next(hth_span *message, hth_wire_field *out)
{
    hth_span rest = *message;
    uint64_t tag;
    if (rest.bytes == 0) {
        return 0;
    }
    if (hth_wire_varint(&rest, &tag) != 0 || tag >> 3 == 0 || tag >> 3 >= 1u << 29) {
        return -1;
    }
    *out = (hth_wire_field){.number = (uint32_t)(tag >> 3), .type = (hth_wire_type)(tag & 7)};
    if (wire_payload(&rest, out) != 0) {
        return -1;
    }
    out->whole = (hth_span){message->data, message->bytes - rest.bytes};
    *message = rest;
    return 1;
}

void hth_wire_put(hth_wire_buffer *buffer, hth_span bytes)
{
    if (buffer->failed || bytes.bytes == 0) {
        return;
    }
    if (bytes.bytes > buffer->capacity - buffer->bytes) {
        size_t want = buffer->bytes + bytes.bytes + buffer->capacity / 2 + 256;
        uint8_t *grown = hth_realloc(buffer->data, want, 1);
        if (grown == NULL) {
            buffer->failed = 1;
            return;
        }
        buffer->data = grown;
        buffer->capacity = want;
    }
    memcpy(buffer->data + buffer->bytes, bytes.data, bytes.bytes);
    buffer->bytes += bytes.bytes;
}

static void wire_put_number(hth_wire_buffer *buffer, uint64_t value)
{
    uint8_t byte[10];
    size_t n = 0;
    do {
        byte[n] = (uint8_t)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);
        value >>= 7;
        n++;
    } while (value != 0);
    hth_wire_put(buffer, (hth_span){byte, n});
}

void hth_wire_put_varint(hth_wire_buffer *buffer, uint32_t number, uint64_t value)
{
    wire_put_number(buffer, (uint64_t)number << 3 | HTH_WIRE_VARINT);
    wire_put_number(buffer, value);
}

void hth_wire_put_head(hth_wire_buffer *buffer, uint32_t number, uint64_t bytes)
{
    wire_put_number(buffer, (uint64_t)number << 3 | HTH_WIRE_BYTES);
    wire_put_number(buffer, bytes);
}

void hth_wire_put_bytes(hth_wire_buffer *buffer, uint32_t number, hth_span bytes)
{
    hth_wire_put_head(buffer, number, bytes.bytes);
    hth_wire_put(buffer, bytes);
}
