// SPDX-License-Identifier: Apache-2.0
// client/msg.h - frames (wire.h) in nng messages: what the client and the server do alike.
#ifndef HTH_CLIENT_MSG_H
#define HTH_CLIENT_MSG_H

#include "client/wire.h"

#include <nng/nng.h>

// hth_msg_frame makes a message with `header` and a data section for the n tensors (placed and
// padded here), or of `data_bytes` when n is 0; *data gets the section, which the caller fills. The
// caller owns *out.
hth_err hth_msg_frame(const ProtobufCMessage *header, Hearth__Tensor *const *t, size_t n,
                      uint64_t data_bytes, const hth_wire_limits *limits, nng_msg **out,
                      uint8_t **data);
// hth_msg_aligned returns `data`, or a 64-byte aligned copy of it in *copy (to be freed) when a
// foreign sender placed tensors where the processor would not read them well; NULL: out of memory.
const uint8_t *hth_msg_aligned(const uint8_t *data, uint64_t data_bytes, void **copy);
// hth_msg_fail turns an nng error number into a code and appends its phrase to the sentence.
hth_err hth_msg_fail(int rv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
