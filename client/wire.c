// SPDX-License-Identifier: Apache-2.0
// Encoding fills a buffer of the caller's (an nng message's body), decoding checks before it
// believes: magic, lengths, limits, then the protobuf header, then every tensor's dtype, rank,
// dimensions, bytes and place. Regions' ranges are the server's to check: only it knows how large
// they are.
//
// nng keeps 32 bytes of headroom in front of a body; bodies are made HTH_WIRE_ID_BYTES too long and
// trimmed, so that they start where the receiver's will: 4 modulo 16, which the data section's
// start makes good.
#include "client/wire.h"

#include "base/alloc.h"
#include "client/dtype.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WIRE_PREFIX 8u
#define WIRE_ALIGN  64u

const hth_wire_limits hth_wire_default_limits = {
    .message_bytes = 1ull << 30,
    .header_bytes = 256u << 10,
    .tensors = 1024,
    .rank = HEARTH_MAX_RANK,
};

static uint64_t wire_data_start(uint64_t header_bytes)
{
    uint64_t end = WIRE_PREFIX + header_bytes + HTH_WIRE_ID_BYTES;
    return (end + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN - HTH_WIRE_ID_BYTES;
}

static void wire_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static uint32_t wire_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

hth_err hth_wire_place(Hearth__Tensor *const *tensors, size_t count, uint64_t *data_bytes)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (tensors[i]->region != 0) {
            continue;
        }
        if (tensors[i]->bytes > UINT64_MAX - WIRE_ALIGN - at) {
            return hth_fail(HTH_ETOOBIG, "the tensors have more bytes than 64 bits can count");
        }
        tensors[i]->offset = at;
        at = (at + tensors[i]->bytes + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN;
    }
    *data_bytes = at;
    return HTH_OK;
}

hth_err hth_wire_frame_bytes(const ProtobufCMessage *header, uint64_t data_bytes,
                             const hth_wire_limits *limits, size_t *out)
{
    size_t header_bytes = protobuf_c_message_get_packed_size(header);
    if (header_bytes > limits->header_bytes) {
        return hth_fail(HTH_ETOOBIG,
                        "the message's header has %zu bytes; limits.header_bytes is %" PRIu32,
                        header_bytes, limits->header_bytes);
    }
    uint64_t start = wire_data_start(header_bytes);
    if (start > limits->message_bytes || data_bytes > limits->message_bytes - start) {
        return hth_fail(HTH_ETOOBIG,
                        "the message's tensors have %" PRIu64
                        " bytes; limits.message_bytes is %" PRIu64,
                        data_bytes, limits->message_bytes);
    }
    *out = start + data_bytes;
    return HTH_OK;
}

uint8_t *hth_wire_write(const ProtobufCMessage *header, uint8_t *frame)
{
    size_t header_bytes = protobuf_c_message_pack(header, frame + WIRE_PREFIX);
    uint64_t start = wire_data_start(header_bytes);
    wire_put_u32(frame, HTH_WIRE_MAGIC);
    wire_put_u32(frame + 4, (uint32_t)header_bytes);
    memset(frame + WIRE_PREFIX + header_bytes, 0, start - WIRE_PREFIX - header_bytes);
    return frame + start;
}

void hth_wire_pad(Hearth__Tensor *const *tensors, size_t count, uint8_t *data)
{
    for (size_t i = 0; i < count; i++) {
        if (tensors[i]->region == 0) {
            uint64_t end = tensors[i]->offset + tensors[i]->bytes;
            memset(data + end, 0, (WIRE_ALIGN - end % WIRE_ALIGN) % WIRE_ALIGN);
        }
    }
}

// wire_check_shape checks what a tensor is, wherever it lies.
static hth_err wire_check_shape(const char *name, uint32_t dtype, size_t rank, const int64_t *shape,
                                uint64_t bytes, const hth_wire_limits *limits)
{
    uint64_t want;
    if (rank > limits->rank) {
        return hth_fail(HTH_ETOOBIG, "tensor '%s' has rank %zu; limits.rank is %" PRIu32, name,
                        rank, limits->rank);
    }
    hth_err err = hth_dtype_bytes_of((int)dtype, (int)rank, shape, &want);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "tensor '%s'", name);
    }
    return want == bytes
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "tensor '%s' claims %" PRIu64 " bytes, its shape and type make %" PRIu64,
                          name, bytes, want);
}

static hth_err wire_check_tensor(const Hearth__Tensor *tensor, const hth_wire_limits *limits,
                                 uint64_t data_bytes)
{
    HTH_TRY(wire_check_shape(tensor->name, tensor->dtype, tensor->n_shape, tensor->shape,
                             tensor->bytes, limits));
    if (tensor->offset % WIRE_ALIGN != 0) {
        return hth_fail(HTH_EINVAL, "tensor '%s' is at offset %" PRIu64 ", not a multiple of 64",
                        tensor->name, tensor->offset);
    }
    if (tensor->region == 0 &&
        (tensor->offset > data_bytes || tensor->bytes > data_bytes - tensor->offset)) {
        return hth_fail(HTH_ECORRUPT, "tensor '%s' lies outside its message", tensor->name);
    }
    return HTH_OK;
}

static hth_err wire_check_count(size_t n, const hth_wire_limits *limits)
{
    return n <= limits->tensors
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG, "%zu tensors in one message; limits.tensors is %" PRIu32, n,
                          limits->tensors);
}

static hth_err wire_check_bytes(uint64_t bytes, uint32_t header_bytes,
                                const hth_wire_limits *limits)
{
    if (bytes > limits->message_bytes) {
        return hth_fail(HTH_ETOOBIG,
                        "a message of %" PRIu64 " bytes; limits.message_bytes is %" PRIu64, bytes,
                        limits->message_bytes);
    }
    return header_bytes <= limits->header_bytes
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG,
                          "a message header of %" PRIu32 " bytes; limits.header_bytes is %" PRIu32,
                          header_bytes, limits->header_bytes);
}

static hth_err wire_check_tensors(Hearth__Tensor *const *t, size_t n, const hth_wire_limits *limits,
                                  uint64_t data_bytes)
{
    HTH_TRY(wire_check_count(n, limits));
    for (size_t i = 0; i < n; i++) {
        HTH_TRY(wire_check_tensor(t[i], limits, data_bytes));
    }
    return HTH_OK;
}

// wire_split checks everything in front of the protobuf header's content.
static hth_err wire_split(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                          uint32_t *header_bytes, const uint8_t **data, uint64_t *data_bytes)
{
    HTH_TRY(wire_check_bytes(bytes, 0, limits));
    if (bytes < WIRE_PREFIX || wire_get_u32(frame) != HTH_WIRE_MAGIC) {
        return hth_fail(HTH_ECORRUPT, "not a hearth message: it does not start with HTH1");
    }
    *header_bytes = wire_get_u32(frame + 4);
    HTH_TRY(wire_check_bytes(bytes, *header_bytes, limits));
    uint64_t start = wire_data_start(*header_bytes);
    if (start > bytes) {
        return hth_fail(HTH_ECORRUPT, "a message of %zu bytes cannot hold its header of %" PRIu32,
                        bytes, *header_bytes);
    }
    *data = frame + start;
    *data_bytes = bytes - start;
    return HTH_OK;
}

// A header's parts count among what a test sees given out, and can be refused there.
static void *wire_alloc(void *lacks, size_t bytes)
{
    void *p = hth_alloc(bytes);
    if (p == NULL) {
        *(bool *)lacks = true;
    }
    return p;
}

static void wire_release(void *ctx, void *p)
{
    hth_free(p);
}

static ProtobufCAllocator wire_memory = {wire_alloc, wire_release, NULL};

static hth_err wire_unpack(const ProtobufCMessageDescriptor *what, const uint8_t *header,
                           size_t bytes, ProtobufCMessage **out)
{
    bool lacks = false;
    ProtobufCAllocator memory = {wire_alloc, wire_release, &lacks};
    *out = protobuf_c_message_unpack(what, &memory, bytes, header);
    if (*out == NULL) {
        return lacks ? hth_no_memory("a message")
                     : hth_fail(HTH_ECORRUPT, "a message's header does not parse");
    }
    return HTH_OK;
}

static hth_err wire_read(const ProtobufCMessageDescriptor *what, const uint8_t *frame, size_t bytes,
                         const hth_wire_limits *limits, ProtobufCMessage **out,
                         const uint8_t **data, uint64_t *data_bytes)
{
    uint32_t header_bytes = 0;
    *out = NULL;
    HTH_TRY(wire_split(frame, bytes, limits, &header_bytes, data, data_bytes));
    return wire_unpack(what, frame + WIRE_PREFIX, header_bytes, out);
}

hth_err hth_wire_peek_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              Hearth__Request **out)
{
    ProtobufCMessage *m = NULL;
    *out = NULL;
    if (bytes >= 4 && wire_get_u32(frame) != HTH_WIRE_MAGIC) {
        return hth_fail(HTH_ECORRUPT, "not a hearth message: it does not start with HTH1");
    }
    uint32_t header_bytes = bytes >= WIRE_PREFIX ? wire_get_u32(frame + 4) : 0;
    HTH_TRY(wire_check_bytes(0, header_bytes, limits));
    if (bytes < WIRE_PREFIX || bytes - WIRE_PREFIX < header_bytes) {
        return hth_fail(HTH_EBUSY, "a message's header is not whole yet");
    }
    HTH_TRY(wire_unpack(&hearth__request__descriptor, frame + WIRE_PREFIX, header_bytes, &m));
    *out = (Hearth__Request *)m;
    return HTH_OK;
}

hth_err hth_wire_read_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              Hearth__Request **out, const uint8_t **data, uint64_t *data_bytes)
{
    ProtobufCMessage *m;
    *out = NULL;
    HTH_TRY(wire_read(&hearth__request__descriptor, frame, bytes, limits, &m, data, data_bytes));
    Hearth__Request *r = (Hearth__Request *)m;
    hth_err err = HTH_OK;
    if (r->body_case == HEARTH__REQUEST__BODY_INFER) {
        err = wire_check_tensors(r->infer->inputs, r->infer->n_inputs, limits, *data_bytes);
    } else if (r->body_case == HEARTH__REQUEST__BODY__NOT_SET) {
        err = hth_fail(HTH_ENOTSUP, "a request of a kind that this server does not know");
    }
    if (err != HTH_OK) {
        hth_wire_free_request(r);
        return err;
    }
    *out = r;
    return HTH_OK;
}

static hth_err wire_check_outputs(const Hearth__Outputs *outputs, const hth_wire_limits *limits,
                                  uint64_t data_bytes)
{
    HTH_TRY(wire_check_tensors(outputs->outputs, outputs->n_outputs, limits, data_bytes));
    for (size_t i = 0; i < outputs->n_outputs; i++) {
        if (outputs->outputs[i]->region != 0) {
            return hth_fail(HTH_ECORRUPT, "output %zu of a reply lies outside its message", i);
        }
    }
    return HTH_OK;
}

hth_err hth_wire_read_reply(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                            Hearth__Reply **out, const uint8_t **data, uint64_t *data_bytes)
{
    ProtobufCMessage *m;
    *out = NULL;
    HTH_TRY(wire_read(&hearth__reply__descriptor, frame, bytes, limits, &m, data, data_bytes));
    Hearth__Reply *r = (Hearth__Reply *)m;
    hth_err err = HTH_OK;
    if (r->body_case == HEARTH__REPLY__BODY_OUTPUTS) {
        err = wire_check_outputs(r->outputs, limits, *data_bytes);
    } else if (r->body_case == HEARTH__REPLY__BODY_DOCUMENT && r->document->bytes > *data_bytes) {
        err = hth_fail(HTH_ECORRUPT, "a document of %" PRIu64 " bytes in a message with %" PRIu64,
                       r->document->bytes, *data_bytes);
    } else if (r->body_case == HEARTH__REPLY__BODY__NOT_SET) {
        err = hth_fail(HTH_ENOTSUP, "a reply of a kind that this client does not know");
    }
    if (err != HTH_OK) {
        hth_wire_free_reply(r);
        return err;
    }
    *out = r;
    return HTH_OK;
}

void hth_wire_free_request(Hearth__Request *request)
{
    hearth__request__free_unpacked(request, &wire_memory);
}

void hth_wire_free_reply(Hearth__Reply *reply)
{
    hearth__reply__free_unpacked(reply, &wire_memory);
}

hth_err hth_wire_check_record(const hth_ipc_record *record, uint64_t bytes,
                              const hth_wire_limits *limits)
{
    HTH_TRY(hth_ipc_record_check(record, bytes));
    HTH_TRY(wire_check_bytes(bytes, record->head_bytes, limits));
    HTH_TRY(wire_check_count(record->n_tensors, limits));
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        const hth_ipc_record_tensor *t = &record->tensor[i];
        const char *name = hth_ipc_record_name(record, t);
        HTH_TRY(wire_check_shape(name != NULL ? name : "", t->dtype, t->rank, t->dim, t->bytes,
                                 limits));
    }
    return HTH_OK;
}

// ---- frames in nng messages

hth_err hth_wire_message(const ProtobufCMessage *header, Hearth__Tensor *const *tensors,
                         size_t count, uint64_t data_bytes, const hth_wire_limits *limits,
                         nng_msg **out, uint8_t **data)
{
    size_t bytes;
    if (count > 0) {
        HTH_TRY(hth_wire_place(tensors, count, &data_bytes));
    }
    HTH_TRY(hth_wire_frame_bytes(header, data_bytes, limits, &bytes));
    int rv = nng_msg_alloc(out, bytes + HTH_WIRE_ID_BYTES);
    if (rv != 0) {
        return hth_wire_fail(rv, "no memory for a message of %zu bytes", bytes);
    }
    nng_msg_trim(*out, HTH_WIRE_ID_BYTES);
    *data = hth_wire_write(header, nng_msg_body(*out));
    hth_wire_pad(tensors, count, *data);
    return HTH_OK;
}

nng_msg *hth_wire_error(hth_err err, const char *sentence)
{
    uint8_t *data;
    nng_msg *msg;
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Error body = HEARTH__ERROR__INIT;
    body.code = (uint32_t)err;
    body.sentence = (char *)sentence;
    r.body_case = HEARTH__REPLY__BODY_ERROR;
    r.error = &body;
    err = hth_wire_message(&r.base, NULL, 0, 0, &hth_wire_default_limits, &msg, &data);
    return err == HTH_OK ? msg : NULL;
}

bool hth_wire_is_aligned(const uint8_t *data, uint64_t data_bytes)
{
    return (uintptr_t)data % 8 == 0 || data_bytes == 0;
}

const uint8_t *hth_wire_aligned(const uint8_t *data, uint64_t data_bytes, void **copy)
{
    *copy = NULL;
    if (hth_wire_is_aligned(data, data_bytes)) {
        return data;
    }
    *copy = hth_alloc_aligned(data_bytes, 64);
    return *copy == NULL ? NULL : memcpy(*copy, data, data_bytes);
}

static hth_err msg_code(int rv)
{
    switch (rv) {
    case NNG_ENOMEM:
        return HTH_ENOMEM;
    case NNG_ETIMEDOUT:
        return HTH_ETIMEDOUT;
    case NNG_ECANCELED:
    case NNG_ECLOSED:
        return HTH_ECANCELED;
    case NNG_EPERM:
        return HTH_EDENIED;
    case NNG_EADDRINUSE:
        return HTH_EBUSY;
    case NNG_EINVAL:
    case NNG_EADDRINVAL:
        return HTH_EINVAL;
    case NNG_ENOTSUP:
        return HTH_ENOTSUP;
    default:
        return HTH_EIO;
    }
}

hth_err hth_wire_fail(int rv, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return hth_fail(msg_code(rv), "%s: %s", text, nng_strerror(rv));
}

// ---- rings

uint64_t hth_ring_layout_channel(const hth_ring_layout *layout, uint32_t channel)
{
    return hth_ring_bytes(layout->request_bytes) +
           channel * (uint64_t)hth_ring_bytes(layout->channel_bytes);
}

uint64_t hth_ring_layout_bytes(const hth_ring_layout *layout)
{
    bool good = hth_ring_bytes(layout->request_bytes) != 0 &&
                hth_ring_bytes(layout->channel_bytes) != 0 && layout->channels > 0 &&
                layout->channels <= HTH_MAX_CHANNELS;
    return good ? hth_ring_layout_channel(layout, layout->channels) : 0;
}
