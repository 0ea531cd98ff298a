// SPDX-License-Identifier: Apache-2.0
// client/ring_exchange.h - inferences through memory that a local server shares, instead of its
// socket.
//
// Design notes
// At its first inference a connection over ipc:// asks the server once to map a ring (wire.h), so a
// program that makes one call goes the same way as one that makes many. Where that is refused (a
// server without it, another PID namespace, another user, the server's limits), and for whatever
// does not fit, requests go over the socket: nobody notices. The ring belongs to one connection
// (its generation) and ends with it: calls that wait in a channel then fail as those on the socket
// do, and the next connection gets its own.
#ifndef HTH_CLIENT_RING_EXCHANGE_H
#define HTH_CLIENT_RING_EXCHANGE_H

#include "client/exchange.h"

// hth_ring_exchange is hth_exchange for an inference, by a channel. *used false: this request is
// for the socket, nothing was sent, and the result means nothing.
hth_err hth_ring_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                          hth_reply *out, bool *used);
void hth_ring_exchange_lost(hearth *handle); // the connection is gone; any thread
void hth_ring_exchange_fini(hearth *handle); // no call is in flight any more

#endif
