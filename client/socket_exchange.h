// SPDX-License-Identifier: Apache-2.0
// client/socket_exchange.h - requests over streams of our own (socket.h) instead of nng's sockets.
//
// Design notes
// nng's threads do not survive a fork, and nng ends a process that calls it afterwards: in a child,
// requests go this way. So do those over TLS: nng's library for that compares certificates with
// names only, and says of all that can be wrong that it is a "Cryptographic error". It speaks what
// nng speaks (SP: 8 bytes of greeting, messages with their length in front, a request's id in front
// of its body), so a server sees no difference. Each call has a stream of its own, taken from a
// list, and asks for its progress on the same one: calls of other connections are nobody's
// business. There is no shared memory: that belongs to one connection.
#ifndef HTH_CLIENT_SOCKET_EXCHANGE_H
#define HTH_CLIENT_SOCKET_EXCHANGE_H

#include "client/exchange.h"

// hth_socket_exchange_open connects once, so that what is wrong is said when a connection is
// opened.
hth_err hth_socket_exchange_open(hearth *handle);
// hth_socket_exchange is hth_exchange, after what it does for every way.
hth_err hth_socket_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                            const hth_watch *watch, hth_reply *out);
void hth_socket_exchange_fini(hearth *handle); // no call is in flight any more

#endif
