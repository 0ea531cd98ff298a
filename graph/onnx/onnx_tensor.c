// SPDX-License-Identifier: Apache-2.0
// A TensorProto keeps its elements in one of three places: raw_data (little-endian, used in place),
// a typed field (numbers, packed or one by one), or an external file (found by onnx_open.c). A
// hostile file may claim 2^40 elements and bring none, so nothing is allocated before the message
// is known to hold that many.
#include "graph/onnx/onnx_tensor.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

enum { // TensorProto's fields
    T_DIMS = 1,
    T_DATA_TYPE = 2,
    T_FLOAT_DATA = 4,
    T_INT32_DATA = 5,
    T_INT64_DATA = 7,
    T_NAME = 8,
    T_RAW_DATA = HTH_ONNX_T_RAW_DATA,
    T_DOUBLE_DATA = 10,
    T_UINT64_DATA = 11,
    T_DOC = 12,
    T_EXTERNAL_DATA = 13,
    T_DATA_LOCATION = 14,
};

const char *hth_onnx_dtype_text(int64_t elem_type)
{
    static const char *const name[] = {
        "UNDEFINED",      "FLOAT",    "UINT8",        "INT8",           "UINT16",
        "INT16",          "INT32",    "INT64",        "STRING",         "BOOL",
        "FLOAT16",        "DOUBLE",   "UINT32",       "UINT64",         "COMPLEX64",
        "COMPLEX128",     "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
        "FLOAT8E5M2FNUZ", "UINT4",    "INT4",         "FLOAT4E2M1",     "FLOAT8E8M0",
        "UINT2",          "INT2"};
    return elem_type >= 0 && elem_type < (int64_t)(sizeof name / sizeof name[0]) ? name[elem_type]
                                                                                 : "?";
}

bool hth_onnx_dtype_known(int64_t elem_type)
{
    return elem_type > 0 && elem_type <= HTH_DT_BF16 && hth_dtype_bytes((hth_dtype)elem_type) > 0;
}

static hth_err head_corrupt(const hth_onnx_head *head, const char *what)
{
    return hth_fail(HTH_ECORRUPT, "tensor '%.*s': %s", HTH_SPAN(head->name), what);
}

static hth_err head_add_dim(hth_onnx_head *head, const hth_onnx_limits *limits, int64_t dim)
{
    if (head->shape.rank >= limits->max_rank || head->shape.rank >= HTH_MAX_RANK) {
        return hth_fail(HTH_ENOTSUP, "tensor '%.*s': more than %d dimensions are not supported",
                        HTH_SPAN(head->name), limits->max_rank);
    }
    if (dim < 0) {
        return head_corrupt(head, "a dimension is negative");
    }
    head->shape.dim[head->shape.rank++] = dim;
    return HTH_OK;
}

static hth_err head_add_dims(hth_onnx_head *head, const hth_onnx_limits *limits,
                             const hth_wire_field *field)
{
    hth_span packed = field->payload;
    uint64_t dim;
    if (field->type != HTH_WIRE_BYTES && field->type != HTH_WIRE_VARINT) {
        return head_corrupt(head, "dims are not integers");
    }
    while (packed.bytes > 0) {
        if (hth_wire_varint(&packed, &dim) != 0) {
            return head_corrupt(head, "dims are cut short");
        }
        HTH_TRY(head_add_dim(head, limits, (int64_t)dim));
    }
    return HTH_OK;
}

static int span_number(hth_span span, uint64_t *out)
{
    uint64_t n = 0;
    for (size_t i = 0; i < span.bytes; i++) {
        uint64_t digit = (uint64_t)span.data[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(n, (uint64_t)10, &n) ||
            __builtin_add_overflow(n, digit, &n)) {
            return -1;
        }
    }
    *out = n;
    return span.bytes == 0 ? -1 : 0;
}

// head_add_external reads one StringStringEntryProto {key 1, value 2} of external_data.
static hth_err head_add_external(hth_onnx_head *head, hth_span entry)
{
    hth_span key = {0}, value = {0};
    hth_wire_field f;
    int more;
    while ((more = hth_wire_next(&entry, &f)) > 0) {
        if (f.type == HTH_WIRE_BYTES && f.number == 1) {
            key = f.payload;
        } else if (f.type == HTH_WIRE_BYTES && f.number == 2) {
            value = f.payload;
        }
    }
    int bad = more;
    if (hth_span_is(key, "location")) {
        head->location = value;
    } else if (hth_span_is(key, "offset")) {
        bad |= span_number(value, &head->offset);
    } else if (hth_span_is(key, "length")) {
        bad |= span_number(value, &head->length);
        head->has_length = true;
    }
    return bad ? head_corrupt(head, "its external_data is damaged") : HTH_OK;
}

static hth_err head_sizes(hth_onnx_head *head, int64_t data_type, const hth_onnx_limits *limits)
{
    if (!hth_onnx_dtype_known(data_type)) {
        return hth_fail(data_type == 0 ? HTH_ECORRUPT : HTH_ENOTSUP,
                        "tensor '%.*s': element type %s (%" PRId64 ") is not supported",
                        HTH_SPAN(head->name), hth_onnx_dtype_text(data_type), data_type);
    }
    head->dtype = (hth_dtype)data_type;
    int64_t n = hth_shape_elements(&head->shape);
    if (n < 0 || (uint64_t)n > limits->max_tensor_elements ||
        hth_mul_bytes((uint64_t)n, hth_dtype_bytes(head->dtype), &head->bytes) != 0) {
        return hth_fail(HTH_ETOOBIG, "tensor '%.*s': its dimensions multiply to too many elements",
                        HTH_SPAN(head->name));
    }
    head->elements = (uint64_t)n;
    return HTH_OK;
}

hth_err hth_onnx_head_read(hth_span message, const hth_onnx_limits *limits, hth_onnx_head *out)
{
    hth_onnx_head *t = out;
    hth_wire_field f;
    hth_span rest = message;
    uint64_t data_type = 0;
    int more;
    *t = (hth_onnx_head){.name = {(const uint8_t *)"", 0}, .message = message};
    while ((more = hth_wire_next(&rest, &f)) > 0) { // the name first: errors below speak of it
        if (f.number == T_NAME && f.type == HTH_WIRE_BYTES) {
            t->name = f.payload;
        }
    }
    if (more < 0) {
        return head_corrupt(t, "its message is damaged");
    }
    for (rest = message; hth_wire_next(&rest, &f) > 0;) {
        if (f.number == T_DIMS) {
            HTH_TRY(head_add_dims(t, limits, &f));
        } else if (f.number == T_DATA_TYPE && f.type == HTH_WIRE_VARINT) {
            data_type = f.value;
        } else if (f.number == T_RAW_DATA && f.type == HTH_WIRE_BYTES) {
            t->raw = f.payload;
            t->has_raw = true;
        } else if (f.number == T_DOC && f.type == HTH_WIRE_BYTES) {
            t->constant = hth_span_is(f.payload, "Constant");
        } else if (f.number == T_DATA_LOCATION && f.type == HTH_WIRE_VARINT) {
            t->external = f.value == 1;
        } else if (f.number == T_EXTERNAL_DATA && f.type == HTH_WIRE_BYTES) {
            HTH_TRY(head_add_external(t, f.payload));
        }
    }
    return head_sizes(t, (int64_t)data_type, limits);
}

void hth_onnx_head_write(const hth_onnx_head *head, hth_wire_buffer *out)
{
    for (int i = 0; i < head->shape.rank; i++) {
        hth_wire_put_varint(out, T_DIMS, (uint64_t)head->shape.dim[i]);
    }
    hth_wire_put_varint(out, T_DATA_TYPE, (uint64_t)head->dtype);
    hth_wire_put_bytes(out, T_NAME, head->name);
    if (head->constant) {
        hth_wire_put_bytes(out, T_DOC, (hth_span){(const uint8_t *)"Constant", 8});
    }
}

hth_err hth_onnx_content_bytes(const hth_onnx_head *head, uint64_t bytes)
{
    char shape[128];
    return bytes == head->bytes
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT,
                          "tensor '%.*s': %s %s needs %" PRIu64 " bytes, the file has %" PRIu64,
                          HTH_SPAN(head->name), hth_dtype_name(head->dtype),
                          hth_shape_str(&head->shape, shape, sizeof shape), head->bytes, bytes);
}

hth_err hth_onnx_content_bools(hth_span name, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            return hth_fail(HTH_ECORRUPT, "tensor '%.*s': a BOOL element is neither 0 nor 1",
                            HTH_SPAN(name));
        }
    }
    return HTH_OK;
}

hth_err hth_onnx_content_check(const hth_onnx_head *head, hth_span bytes)
{
    HTH_TRY(hth_onnx_content_bytes(head, bytes.bytes));
    return head->dtype == HTH_DT_BOOL ? hth_onnx_content_bools(head->name, bytes.data, bytes.bytes)
                                      : HTH_OK;
}

// Which typed field holds elements of a dtype, and how one element is encoded there.
static uint32_t typed_field(hth_dtype dt, hth_wire_type *type)
{
    *type = HTH_WIRE_VARINT;
    switch (dt) {
    case HTH_DT_F32:
        *type = HTH_WIRE_FIXED32;
        return T_FLOAT_DATA;
    case HTH_DT_F64:
        *type = HTH_WIRE_FIXED64;
        return T_DOUBLE_DATA;
    case HTH_DT_I64:
        return T_INT64_DATA;
    case HTH_DT_U32:
    case HTH_DT_U64:
        return T_UINT64_DATA;
    default:
        return T_INT32_DATA; // smaller integers, BOOL, and the bits of 16-bit floats
    }
}

// typed_copy appends the elements of one field (a packed run, or one element) to dst.
static hth_err typed_copy(const hth_onnx_head *head, const hth_wire_field *field,
                          hth_wire_type type, uint8_t *dst, uint64_t *n)
{
    hth_span run = field->payload;
    size_t size = hth_dtype_bytes(head->dtype);
    if (type != HTH_WIRE_VARINT) { // fixed width: the bytes are the elements
        if (run.bytes % size != 0 || run.bytes / size > head->elements - *n) {
            return head_corrupt(head, "it has more elements than its dimensions say");
        }
        memcpy(dst + *n * size, run.data, run.bytes);
        *n += run.bytes / size;
        return HTH_OK;
    }
    while (run.bytes > 0) {
        uint64_t v;
        if (*n == head->elements) {
            return head_corrupt(head, "it has more elements than its dimensions say");
        }
        if (hth_wire_varint(&run, &v) != 0) {
            return head_corrupt(head, "its elements are cut short");
        }
        v = head->dtype == HTH_DT_BOOL ? v != 0 : v;
        memcpy(dst + *n * size, &v, size); // the low bytes of a little-endian number
        ++*n;
    }
    return HTH_OK;
}

static hth_err typed_convert(const hth_onnx_head *head, uint32_t number, hth_wire_type type,
                             uint8_t *dst)
{
    hth_span rest = head->message;
    hth_wire_field f;
    uint64_t n = 0;
    while (hth_wire_next(&rest, &f) > 0) {
        if (f.number == number && (f.type == type || f.type == HTH_WIRE_BYTES)) {
            HTH_TRY(typed_copy(head, &f, type, dst, &n));
        }
    }
    return n == head->elements
               ? HTH_OK
               : head_corrupt(head, "it has fewer elements than its dimensions say");
}

hth_err hth_onnx_content(const hth_onnx_head *head, const void **data, void **owned)
{
    *owned = NULL;
    if (head->external) {
        return hth_fail(HTH_ENOTSUP, "tensor '%.*s': external data is not supported here",
                        HTH_SPAN(head->name));
    }
    if (head->has_raw || head->elements == 0) {
        *data = head->has_raw ? head->raw.data : (const void *)"";
        return hth_onnx_content_check(head, (hth_span){*data, head->raw.bytes});
    }
    hth_wire_type type;
    uint32_t number = typed_field(head->dtype, &type), least = type == HTH_WIRE_VARINT ? 1 : 4;
    if (head->elements > head->message.bytes / least) {
        return head_corrupt(head, "it has fewer elements than its dimensions say");
    }
    uint8_t *dst = hth_alloc_aligned((size_t)head->bytes, 64);
    if (dst == NULL) {
        return hth_no_memory("tensor '%.*s'", HTH_SPAN(head->name));
    }
    hth_err err = typed_convert(head, number, type, dst);
    if (err != HTH_OK) {
        hth_free(dst);
        return err;
    }
    *data = *owned = dst;
    return HTH_OK;
}
