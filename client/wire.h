// SPDX-License-Identifier: Apache-2.0
// client/wire.h - what clients and servers send each other: the frame that carries a request or a
// reply, in an nng message or another stream; and how a local client's ring lies in the memory that
// it shares with the server.
//
// Design notes
// A frame:
//   [u32 magic][u32 header bytes][header: protobuf][zeros][data section: raw tensors, or a JSON
//   text]
//
// Little-endian. The data section starts at the first offset after the header that is 60 modulo
// 64, and tensors lie at multiples of 64 in it: nng keeps its 4-byte request id in front of a
// frame, so that with it the tensors are aligned in the receiver's memory and need not be copied. A
// decoded header borrows nothing; its tensors are checked against their shapes and the frame's
// length before anybody sees them. Any thread.
//
// One ring (base/ipc/ring.h) carries the requests of all of the client's threads; replies come in
// channels, a ring each, of which a call has one for as long as it waits: a reply wakes the thread
// that wants it and no other. A message is a head, in a request the client's token, and, at the
// next multiple of 64, a record (base/ipc/ipc_record.h): an inference, or its answer. The head and
// the token are read by the server alone, and the record goes on to its engine. A reply that is
// larger than its channel stays with the server: a head without a record comes in its place, and
// the client fetches the record over the socket.
#ifndef HTH_CLIENT_WIRE_H
#define HTH_CLIENT_WIRE_H

#include "base/ipc/ipc_record.h"
#include "base/ipc/ring.h"
#include "client/hearth.pb-c.h"

#include <nng/nng.h>

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
hth_err hth_wire_place(Hearth__Tensor *const *tensors, size_t count, uint64_t *data_bytes);
// hth_wire_frame_bytes stores the length of a frame with `header` and a data section of
// `data_bytes`. HTH_ETOOBIG: over a limit.
hth_err hth_wire_frame_bytes(const ProtobufCMessage *header, uint64_t data_bytes,
                             const hth_wire_limits *limits, size_t *out);
// hth_wire_write writes everything in front of the data section into `frame` and returns where that
// section starts. The caller fills the section, padding included (hth_wire_pad).
uint8_t *hth_wire_write(const ProtobufCMessage *header, uint8_t *frame);
// hth_wire_pad zeroes the gap after each tensor of region 0, so that no old memory leaves the
// process.
void hth_wire_pad(Hearth__Tensor *const *tensors, size_t count, uint8_t *data);

// hth_wire_peek_request decodes the header of a request of which the first `bytes` have come, for
// hth_wire_free_request; its tensors are not checked. HTH_EBUSY: the header is not whole yet.
hth_err hth_wire_peek_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              Hearth__Request **out);
// hth_wire_read_request decodes a frame; *data gets its data section (in `frame`), *data_bytes its
// length. The header is freed with hth_wire_free_request. HTH_ECORRUPT: not a frame; HTH_EINVAL: a
// frame that asks for nonsense; HTH_ETOOBIG.
hth_err hth_wire_read_request(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                              Hearth__Request **out, const uint8_t **data, uint64_t *data_bytes);
hth_err hth_wire_read_reply(const uint8_t *frame, size_t bytes, const hth_wire_limits *limits,
                            Hearth__Reply **out, const uint8_t **data, uint64_t *data_bytes);
void hth_wire_free_request(Hearth__Request *request); // NULL is allowed
void hth_wire_free_reply(Hearth__Reply *reply);

// ---- frames in nng messages

// hth_wire_message makes a message with `header` and a data section for the count tensors (placed
// and padded here), or of `data_bytes` when count is 0; *data gets the section, which the caller
// fills. The caller owns *out.
hth_err hth_wire_message(const ProtobufCMessage *header, Hearth__Tensor *const *tensors,
                         size_t count, uint64_t data_bytes, const hth_wire_limits *limits,
                         nng_msg **out, uint8_t **data);
// hth_wire_error makes a reply of an error, which the caller owns. NULL: no memory for it.
nng_msg *hth_wire_error(hth_err err, const char *sentence);
// hth_wire_aligned returns `data`, or a 64-byte aligned copy of it in *copy (to be freed) when a
// foreign sender placed tensors where the processor would not read them well; NULL: out of memory.
// hth_wire_is_aligned tells whether it copies nothing.
bool hth_wire_is_aligned(const uint8_t *data, uint64_t data_bytes);
const uint8_t *hth_wire_aligned(const uint8_t *data, uint64_t data_bytes, void **copy);
// hth_wire_fail turns an nng error number into a code and appends its phrase to the sentence.
hth_err hth_wire_fail(int rv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// ---- rings

#define HTH_MAX_CHANNELS  1024u
#define HTH_CHANNEL_TOKEN 1024u // bytes of a token, at most

typedef struct hth_channel_head {
    _Alignas(
        HTH_IPC_RECORD_ALIGN) uint64_t call; // chosen by the client; in a reply 0: about the ring
    uint32_t channel;                        // of a request
    uint32_t token_bytes;                    // of a request, and its token follows; 0: it has none
} hth_channel_head;

typedef struct hth_ring_layout {
    uint64_t request_bytes, channel_bytes; // capacities of the rings
    uint32_t channels;
} hth_ring_layout;

// hth_ring_layout_bytes is how much memory it takes, the ring of requests first; 0: there is no
// such layout.
uint64_t hth_ring_layout_bytes(const hth_ring_layout *layout);
// hth_ring_layout_channel is where the ring of a channel starts.
uint64_t hth_ring_layout_channel(const hth_ring_layout *layout, uint32_t channel);
// hth_channel_record is where a message's record starts.
static inline size_t hth_channel_record(const hth_channel_head *head)
{
    return sizeof *head + head->token_bytes + hth_ipc_record_pad(head->token_bytes);
}

// hth_wire_check_record is what hth_wire_read_request and _reply check, for the same in a ring: the
// `bytes` at `record`, in private memory, are a record, within the limits, with tensors that can
// be. Their regions are the server's to check; a reply's lie in it. The same errors.
hth_err hth_wire_check_record(const hth_ipc_record *record, uint64_t bytes,
                              const hth_wire_limits *limits);

#endif
