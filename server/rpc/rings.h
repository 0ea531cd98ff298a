// SPDX-License-Identifier: Apache-2.0
// server/rpc/rings.h - the rings of local clients (client/wire.h): takes inferences from them,
// has them done, and answers in their channels.
//
// Design notes
// A ring belongs to a connection, which asked for it by `attach` over its socket, and goes with it;
// a request in progress holds it mapped until it is done. Each has a thread that sleeps until its
// client sends something. That is the slow way: while the engine's thread looks for work
// (hth_engine_set_poll_hook) it looks into all rings itself, and clients wake nobody; it takes a
// bounded number of bytes in one look, and leaves more to the rings' own threads. Whoever finds
// a message decodes it and submits it to the engine; `done` writes the answer into the channel and
// wakes the client where it sleeps. Nobody waits for a client: an answer for which its channel has
// no room is kept, as one that is larger than the channel, unless its call was given up.
//
// What is copied out of the ring, and answers until they are in their channel or fetched, are
// charged to the connection's peer (hth_conn_charge): a call that would be too much gets HTH_EBUSY.
//
// Messages are copied out of the ring before they are looked at. One that is malformed gets an
// error in its channel and ends the ring, not the connection.
//
// Locks, in this order: the table's (list), a ring's `taking` (its consumer's side), a
// ring's `lock` (calls, channels). None is held while the engine runs anything; `done` takes only
// the last one.
#ifndef HTH_SERVER_RPC_RINGS_H
#define HTH_SERVER_RPC_RINGS_H

#include "client/wire.h"
#include "server/net/auth.h"
#include "server/rpc/conn.h"
#include "engine/engine.h"

#include <nng/nng.h>

typedef struct hth_rings hth_rings;

// hth_rings_open makes an empty table; limits ring.clients and ring.bytes come from
// base/settings.h. Engine and auth must outlive it, and the engine must have stopped before it
// closes.
hth_err hth_rings_open(hth_engine *engine, hth_auth *auth, const hth_wire_limits *limits,
                       hth_rings **out);
// hth_rings_attach maps the ring that `attach` describes for connection `conn`. HTH_EDENIED: not a
// local peer, or not sealed, or rings are switched off; HTH_EINVAL: no such layout; HTH_ETOOBIG:
// over a limit; HTH_EEXIST: the connection has one.
hth_err hth_rings_attach(hth_rings *rings, hth_conn *conn, const Hearth__Attach *attach);
// hth_rings_gone ends the ring of a connection that is gone and cancels what it had asked for.
void hth_rings_gone(hth_rings *rings, const hth_conn *conn);
// hth_rings_cancel cancels one call of a connection, if it came by its ring or is in it yet. It
// takes nothing out of the ring: that may be much, and others wait for the loop.
void hth_rings_cancel(hth_rings *rings, const hth_conn *conn, uint64_t call);
// hth_rings_fetch hands over the reply to `call` that did not go into its channel. HTH_ENOENT:
// there is none.
hth_err hth_rings_fetch(hth_rings *rings, const hth_conn *conn, uint64_t call, nng_msg **out);
// hth_rings_refuse, stop, cancel_all and count: as in dispatch.h.
void hth_rings_refuse(hth_rings *rings);
hth_err hth_rings_stop(hth_rings *rings, uint64_t limit_ns);
int hth_rings_cancel_all(hth_rings *rings);
void hth_rings_count(hth_rings *rings, uint64_t *answered, uint64_t *refused);
// hth_rings_close ends all rings and waits for their threads. NULL is allowed.
void hth_rings_close(hth_rings *rings);

#endif
