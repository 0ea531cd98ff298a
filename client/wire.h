// SPDX-License-Identifier: Apache-2.0
// client/wire.h - the frame that carries a request or a reply, without the transport.
//
//   [u32 magic][u32 header bytes][header: protobuf][zeros][data section: raw tensors, or a JSON
//   text]
//
// Little-endian. The data section starts at the first offset behind the header that is 60 modulo
// 64, and tensors lie at multiples of 64 in it: nng keeps its 4-byte request id in front of a
// frame, so that with it the tensors are aligned in the receiver's memory and need not be copied. A
// decoded header borrows nothing; its tensors are checked against their shapes and the frame's
// length before anybody sees them. Any thread.
#ifndef HTH_CLIENT_WIRE_H
#define HTH_CLIENT_WIRE_H

#include "base/err.h"
#include "client/hearth.pb-c.h"

#include <stddef.h>
#include <stdint.h>

#define HTH_WIRE_MAGIC    0x31485448u // "HTH1"
#define HTH_WIRE_ID_BYTES 4u          // nng's request id

// What a receiver accepts. Beyond them: HTH_ETOOBIG with the limit's name.
typedef struct hth_wire_limits {
    uint64_t message_bytes; // limits.message_bytes: a whole frame
    uint32_t header_bytes;  // limits.header_bytes
    uint32_t tensors;       // limits.tensors: in one message
    uint32_t rank;          // limits.rank, at most HEARTH_MAX_RANK
} hth_wire_limits;
extern const hth_wire_limits hth_wire_default_limits; // 1 GiB, 256 KiB, 1,024, 8

// hth_wire_place gives the tensors of region 0 their offsets in the data section and stores its
// bytes. HTH_ETOOBIG on overflow.
hth_err hth_wire_place(Hearth__Tensor *const *t, size_t n, uint64_t *data_bytes);
// hth_wire_frame_bytes stores the length of a frame with `header` and a data section of
// `data_bytes`. HTH_ETOOBIG: over a limit.
hth_err hth_wire_frame_bytes(const ProtobufCMessage *header, uint64_t data_bytes,
                             const hth_wire_limits *limits, size_t *out);
// hth_wire_write writes everything in front of the data section into `frame` and returns where that
// section starts. The caller fills the section, padding included (hth_wire_pad).
uint8_t *hth_wire_write(const ProtobufCMessage *header, uint8_t *frame);
// hth_wire_pad zeroes the gap behind each tensor of region 0, so that no old memory leaves the
// process.
void hth_wire_pad(Hearth__Tensor *const *t, size_t n, uint8_t *data);

// The header that a reader of one sender's frames decoded last: senders send the same one again and
// again but for the call's number, with which it begins. Zeroed at first.
#define HTH_WIRE_SEEN 256u // longer headers are decoded each time
typedef struct hth_wire_seen {
    uint64_t call;             // of the frame that was read last
    ProtobufCMessage *message; // NULL: none
    uint64_t data_bytes;
    size_t bytes;
    uint8_t head[HTH_WIRE_SEEN]; // behind the call's number
} hth_wire_seen;

// hth_wire_peek_request decodes the header of a request of which the first `bytes` have come, for
// hth_wire_free_request; its tensors are not checked. HTH_EBUSY: the header is not whole yet.
hth_err hth_wire_peek_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              Hearth__Request **out);
// hth_wire_read_request decodes a frame; *data gets its data section (in `frame`), *data_bytes its
// length. `seen`, which may be NULL, is what its sender sent before, read with the same limits: of
// an inference the header may then be that of an earlier frame; it is not to be changed, and the
// call's number is in `seen` only. The header is freed with hth_wire_free_request. HTH_ECORRUPT:
// not a frame; HTH_EINVAL: a frame that asks for nonsense; HTH_ETOOBIG.
hth_err hth_wire_read_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              hth_wire_seen *seen, Hearth__Request **out, const uint8_t **data,
                              uint64_t *data_bytes);
hth_err hth_wire_read_reply(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                            hth_wire_seen *seen, Hearth__Reply **out, const uint8_t **data,
                            uint64_t *data_bytes);
void hth_wire_free_request(Hearth__Request *r); // NULL is allowed
void hth_wire_free_reply(Hearth__Reply *r);
void hth_wire_seen_fini(hth_wire_seen *s);

#endif
