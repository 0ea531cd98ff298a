// SPDX-License-Identifier: Apache-2.0
// client/wire_head.h - a frame's header: its memory, and headers that are those of an earlier frame
// but for the call's number. The inside of wire.h.
#ifndef HTH_CLIENT_WIRE_HEAD_H
#define HTH_CLIENT_WIRE_HEAD_H

#include "client/wire.h"

#include <stdbool.h>

// A header as it came. What is zero is filled in by hth_wire_head_read.
typedef struct hth_wire_head {
    const uint8_t *at;
    size_t bytes;
    uint64_t data_bytes; // of its frame's data section
    size_t call_bytes;   // how much of it is the call's number; 0: it does not begin with one
    uint64_t call;       // that number, where it does
    bool known;          // from an earlier frame, which was found good
} hth_wire_head;

// hth_wire_head_read decodes a header, or takes the one that `seen` has. HTH_ECORRUPT.
hth_err hth_wire_head_read(const ProtobufCMessageDescriptor *what, hth_wire_head *h,
                           hth_wire_seen *seen, ProtobufCMessage **out);
// hth_wire_head_remember has `seen` (NULL is allowed) know m, which it did not, from here on: of a
// frame that was found good.
void hth_wire_head_remember(const hth_wire_head *h, hth_wire_seen *seen, ProtobufCMessage *m);

#endif
