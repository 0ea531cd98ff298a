// SPDX-License-Identifier: Apache-2.0
// Encoding fills a buffer of the caller's (an nng message's body), decoding checks before it
// believes: magic, lengths, limits, then the protobuf header, then every tensor's dtype, rank,
// dimensions, bytes and place. Regions' ranges are the server's to check: only it knows how large
// they are.
#include "client/wire.h"

#include "client/dtype.h"
#include "client/wire_head.h"

#include <inttypes.h>
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

hth_err hth_wire_place(Hearth__Tensor *const *t, size_t n, uint64_t *data_bytes)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (t[i]->region != 0) {
            continue;
        }
        if (t[i]->bytes > UINT64_MAX - WIRE_ALIGN - at) {
            return hth_fail(HTH_ETOOBIG, "the tensors have more bytes than 64 bits can count");
        }
        t[i]->offset = at;
        at = (at + t[i]->bytes + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN;
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

void hth_wire_pad(Hearth__Tensor *const *t, size_t n, uint8_t *data)
{
    for (size_t i = 0; i < n; i++) {
        if (t[i]->region == 0) {
            uint64_t end = t[i]->offset + t[i]->bytes;
            memset(data + end, 0, (WIRE_ALIGN - end % WIRE_ALIGN) % WIRE_ALIGN);
        }
    }
}

// wire_split checks everything in front of the protobuf header's content.
static hth_err wire_split(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                          uint32_t *header_bytes, const uint8_t **data, uint64_t *data_bytes)
{
    if (bytes > limits->message_bytes) {
        return hth_fail(HTH_ETOOBIG, "a message of %zu bytes; limits.message_bytes is %" PRIu64,
                        bytes, limits->message_bytes);
    }
    if (bytes < WIRE_PREFIX || wire_get_u32(frame) != HTH_WIRE_MAGIC) {
        return hth_fail(HTH_ECORRUPT, "not a hearth message: it does not start with HTH1");
    }
    *header_bytes = wire_get_u32(frame + 4);
    if (*header_bytes > limits->header_bytes) {
        return hth_fail(HTH_ETOOBIG,
                        "a message header of %" PRIu32 " bytes; limits.header_bytes is %" PRIu32,
                        *header_bytes, limits->header_bytes);
    }
    uint64_t start = wire_data_start(*header_bytes);
    if (start > bytes) {
        return hth_fail(HTH_ECORRUPT, "a message of %zu bytes cannot hold its header of %" PRIu32,
                        bytes, *header_bytes);
    }
    *data = frame + start;
    *data_bytes = bytes - start;
    return HTH_OK;
}

static hth_err wire_check_tensor(const Hearth__Tensor *t, const hth_wire_limits *limits,
                                 uint64_t data_bytes)
{
    uint64_t want;
    if (t->n_shape > limits->rank) {
        return hth_fail(HTH_ETOOBIG, "tensor '%s' has rank %zu; limits.rank is %" PRIu32, t->name,
                        t->n_shape, limits->rank);
    }
    hth_err err = hth_dtype_bytes_of((int)t->dtype, (int)t->n_shape, t->shape, &want);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "tensor '%s'", t->name);
    }
    if (want != t->bytes) {
        return hth_fail(HTH_EINVAL,
                        "tensor '%s' claims %" PRIu64 " bytes, its shape and type make %" PRIu64,
                        t->name, t->bytes, want);
    }
    if (t->offset % WIRE_ALIGN != 0) {
        return hth_fail(HTH_EINVAL, "tensor '%s' is at offset %" PRIu64 ", not a multiple of 64",
                        t->name, t->offset);
    }
    if (t->region == 0 && (t->offset > data_bytes || t->bytes > data_bytes - t->offset)) {
        return hth_fail(HTH_ECORRUPT, "tensor '%s' lies outside its message", t->name);
    }
    return HTH_OK;
}

static hth_err wire_check_tensors(Hearth__Tensor *const *t, size_t n, const hth_wire_limits *limits,
                                  uint64_t data_bytes)
{
    if (n > limits->tensors) {
        return hth_fail(HTH_ETOOBIG, "%zu tensors in one message; limits.tensors is %" PRIu32, n,
                        limits->tensors);
    }
    for (size_t i = 0; i < n; i++) {
        HTH_TRY(wire_check_tensor(t[i], limits, data_bytes));
    }
    return HTH_OK;
}

static hth_err wire_read(const ProtobufCMessageDescriptor *what, const uint8_t *frame, size_t bytes,
                         const hth_wire_limits *limits, hth_wire_seen *seen, hth_wire_head *h,
                         ProtobufCMessage **out, const uint8_t **data, uint64_t *data_bytes)
{
    uint32_t header_bytes = 0;
    *out = NULL;
    HTH_TRY(wire_split(frame, bytes, limits, &header_bytes, data, data_bytes));
    *h = (hth_wire_head){
        .at = frame + WIRE_PREFIX, .bytes = header_bytes, .data_bytes = *data_bytes};
    return hth_wire_head_read(what, h, seen, out);
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
    if (header_bytes > limits->header_bytes) {
        return hth_fail(HTH_ETOOBIG,
                        "a message header of %" PRIu32 " bytes; limits.header_bytes is %" PRIu32,
                        header_bytes, limits->header_bytes);
    }
    if (bytes < WIRE_PREFIX || bytes - WIRE_PREFIX < header_bytes) {
        return hth_fail(HTH_EBUSY, "a message's header is not whole yet");
    }
    hth_wire_head h = {.at = frame + WIRE_PREFIX, .bytes = header_bytes};
    HTH_TRY(hth_wire_head_read(&hearth__request__descriptor, &h, NULL, &m));
    *out = (Hearth__Request *)m;
    return HTH_OK;
}

hth_err hth_wire_read_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              hth_wire_seen *seen, Hearth__Request **out, const uint8_t **data,
                              uint64_t *data_bytes)
{
    ProtobufCMessage *m;
    hth_wire_head h;
    *out = NULL;
    HTH_TRY(wire_read(&hearth__request__descriptor, frame, bytes, limits, seen, &h, &m, data,
                      data_bytes));
    Hearth__Request *r = (Hearth__Request *)m;
    hth_err err = HTH_OK;
    if (seen != NULL) {
        seen->call = h.known ? h.call : r->call;
    }
    if (r->body_case == HEARTH__REQUEST__BODY_INFER && !h.known) {
        err = wire_check_tensors(r->infer->inputs, r->infer->n_inputs, limits, *data_bytes);
        if (err == HTH_OK) {
            hth_wire_head_remember(&h, seen, m);
        }
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

static hth_err wire_check_outputs(const Hearth__Outputs *o, const hth_wire_limits *limits,
                                  uint64_t data_bytes)
{
    HTH_TRY(wire_check_tensors(o->outputs, o->n_outputs, limits, data_bytes));
    for (size_t i = 0; i < o->n_outputs; i++) {
        if (o->outputs[i]->region != 0) {
            return hth_fail(HTH_ECORRUPT, "output %zu of a reply lies outside its message", i);
        }
    }
    return HTH_OK;
}

hth_err hth_wire_read_reply(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                            hth_wire_seen *seen, Hearth__Reply **out, const uint8_t **data,
                            uint64_t *data_bytes)
{
    ProtobufCMessage *m;
    hth_wire_head h;
    *out = NULL;
    HTH_TRY(wire_read(&hearth__reply__descriptor, frame, bytes, limits, seen, &h, &m, data,
                      data_bytes));
    Hearth__Reply *r = (Hearth__Reply *)m;
    hth_err err = HTH_OK;
    if (seen != NULL) {
        seen->call = h.known ? h.call : r->call;
    }
    if (r->body_case == HEARTH__REPLY__BODY_OUTPUTS && !h.known) {
        err = wire_check_outputs(r->outputs, limits, *data_bytes);
        if (err == HTH_OK) {
            hth_wire_head_remember(&h, seen, m);
        }
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
