// SPDX-License-Identifier: Apache-2.0
// client/layout.h - how a local client's ring lies in the memory that it shares with the server.
//
// Design notes
// One ring (base/ipc/ring.h) carries the requests of all of the client's threads; replies come in
// lanes, a ring each, of which a call has one for as long as it waits: a reply wakes the thread
// that wants it and no other. A message is a 32-bit lane number (in a reply: 0) with a frame
// (wire.h) behind it; the number takes the place that nng's request id has, so that tensors are
// aligned in the receiver's copy. Only inferences travel so. A reply that is larger than its lane
// stays with the server: a `Kept` comes in its place, and the client fetches it over the socket.
#ifndef HTH_CLIENT_LAYOUT_H
#define HTH_CLIENT_LAYOUT_H

#include "base/ipc/ring.h"

#define HTH_LANE_ID_BYTES 4u
#define HTH_MAX_LANES     1024u

typedef struct hth_ring_layout {
    uint64_t request_bytes, lane_bytes; // capacities of the rings
    uint32_t lanes;
} hth_ring_layout;

// hth_ring_layout_bytes is how much memory it takes, the ring of requests first; 0: there is no
// such layout.
uint64_t hth_ring_layout_bytes(const hth_ring_layout *l);
// hth_ring_layout_lane is where the ring of a lane starts.
uint64_t hth_ring_layout_lane(const hth_ring_layout *l, uint32_t lane);

#endif
