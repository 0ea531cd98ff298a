// SPDX-License-Identifier: Apache-2.0
// server/rpc/rpc.h - listeners for hearth's own clients: ipc://, tcp:// and tls+tcp://.
//
// Design notes
// Clients use nng's REQ sockets; the server speaks their framing itself, on plain sockets and a
// libevent loop, because nng lets peers hold its memory and its threads as long as they like
// (docs/rationale.md). On a byte stream each side first sends eight bytes: 0 'S' 'P' 0, its
// protocol (REQ 0x30, REP 0x31) in 16 bits, two zeros. Messages follow: 64 bits
// of length (on ipc with a byte 1 in front), then so many bytes; all big endian. A request begins
// with words of 32 bits of which the last has its high bit set, the request's number; the reply
// begins with the same words.
//
// A front end (hth_rpc) is a loop on a thread of its own with its listeners and connections. What a
// connection may cost (allowance.h, base/settings.h: limits.*) before it has shown a valid token,
// where tokens are asked for: 64 KiB, one request at a time, limits.token_seconds. Afterwards:
// requests in progress and bytes, by connection, by peer and in all; what comes or goes more slowly
// than http.request_seconds and http.min_request_rate allow ends the connection. A message is
// received into memory that grows with what has come. What is too large, or finds no room, is
// answered with an error at once; the rest of it is read and dropped. Replies wait with their
// connection, and their requests are forgotten. When a connection ends, all that it had ends at
// once: requests that run are canceled, regions and rings unmapped, descriptors closed.
#ifndef HTH_SERVER_RPC_RPC_H
#define HTH_SERVER_RPC_RPC_H

#include "server/rpc/descriptors.h"
#include "server/rpc/dispatch.h"
#include "server/net/allowance.h"
#include "server/net/tls.h"

typedef struct hth_rpc hth_rpc;

typedef struct hth_rpc_config {
    const char *name; // of the thread
    hth_dispatch *dispatch;
    hth_conns *conns;
    hth_auth *auth;
    hth_rings *rings;
    hth_descriptors *descriptors;
    hth_allowances *allowances;
    hth_tls *tls;           // for tls+tcp://
    uint64_t message_bytes; // largest message
} hth_rpc_config;

// hth_rpc_open makes a loop, which runs on its thread from hth_rpc_start on. Everything in the
// configuration must outlive it.
hth_err hth_rpc_open(const hth_rpc_config *config, hth_rpc **out);
// hth_rpc_listen binds and listens, before the start. HTH_EINVAL, HTH_EIO, ..: a sentence why not.
hth_err hth_rpc_listen(hth_rpc *rpc, const char *url);
hth_err hth_rpc_start(hth_rpc *rpc);
// hth_rpc_stop disconnects everybody, once their replies have left or `linger_ns` is over, and ends
// the thread. Replies to requests that still run are dropped.
void hth_rpc_stop(hth_rpc *rpc, uint64_t linger_ns);
// hth_rpc_close frees: stopped, and when no request of its connections runs any more. NULL is
// allowed.
void hth_rpc_close(hth_rpc *rpc);

#endif
