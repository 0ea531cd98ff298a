// SPDX-License-Identifier: Apache-2.0
// client/lane.h - inferences through memory that a local server shares, instead of its socket.
//
// Design notes
// From its second inference on a connection over ipc:// asks the server once to map a ring
// (layout.h). Where that is refused (a server without it, another PID namespace, another user, the
// server's limits), and for whatever does not fit, requests go over the socket as before: nobody
// notices. The ring belongs to one connection (its generation) and ends with it: calls that wait in
// a lane then fail as those on the socket do, and the next connection gets its own.
#ifndef HTH_CLIENT_LANE_H
#define HTH_CLIENT_LANE_H

#include "client/exchange.h"

// hth_lane_exchange is hth_exchange for an inference, by a lane. *used false: this request is for
// the socket, nothing was sent, and the result means nothing.
hth_err hth_lane_exchange(hearth *h, Hearth__Request *q, const hearth_tensor *inputs,
                          hth_reply *out, bool *used);
void hth_lanes_lost(hearth *h); // the connection is gone; any thread
void hth_lanes_fini(hearth *h); // no call is in flight any more

#endif
