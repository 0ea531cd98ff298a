// SPDX-License-Identifier: Apache-2.0
// server/rpc/conn.h - the connections of a server, and the shared memory that each has mapped.
//
// Design notes
// A connection is opened and closed by the front end that accepted it; calls in flight hold it.
// Regions belong to a connection and go with it, so the memory of a killed client is back as soon
// as its calls are. A region is a memfd that its client has passed (descriptors.h): it must be
// sealed against shrinking, so that no access can fault, and is mapped read-only. What the client
// writes while a request runs may change the request's result but nothing else: rpc_tensors.c
// copies everything that steers addresses. Thread-safe. Table and regions are guarded by one lock,
// held for lookups only.
#ifndef HTH_SERVER_RPC_CONN_H
#define HTH_SERVER_RPC_CONN_H

#include "server/net/allowance.h"
#include "server/net/auth.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_conns hth_conns;
typedef struct hth_conn hth_conn;
typedef struct hth_region hth_region;
typedef struct hth_descriptors hth_descriptors;

// hth_conns_open: `auth` and `descriptors`, which may be NULL, must outlive the table.
hth_err hth_conns_open(const hth_auth *auth, hth_descriptors *descriptors, hth_conns **out);
// hth_conns_close: every connection must be removed and released. NULL is allowed.
void hth_conns_close(hth_conns *conns);
// hth_conns_share has `engine`, which must outlive the connections, know of their regions; before
// there are any. NULL: nobody is told.
void hth_conns_share(hth_conns *conns, hth_engine *engine);

// Who is at the other end, as the kernel says.
typedef struct hth_conn_who {
    enum { HTH_CONN_NETWORK, HTH_CONN_LOCAL, HTH_CONN_EMBEDDED, HTH_CONN_HTTP } where;
    bool loopback; // over HTTP: it is a program of this machine
    bool known;    // of a local one: its credentials are
    uint64_t uid, gid;
    hth_allowance *allowance; // the connection holds it; NULL: what it keeps is not counted
} hth_conn_who;

// hth_conn_open makes a connection; the caller releases it after hth_conn_close, which says that
// its client is gone: requests in flight keep it.
hth_err hth_conn_open(hth_conns *conns, const hth_conn_who *who, hth_conn **out);
void hth_conn_close(hth_conn *conn);
void hth_conn_hold(hth_conn *conn);
void hth_conn_rele(hth_conn *conn);                   // NULL is allowed
bool hth_conn_is_gone(hth_conn *conn);                // it was closed
struct hth_rpc_slot **hth_conn_slots(hth_conn *conn); // the list of its requests, the dispatcher's

// hth_conn_tenant is who is at the other end, where no token says so: "uid:1000", "embedded",
// "network", "http".
const char *hth_conn_tenant(const hth_conn *conn);
// hth_conn_same_machine: its client is on this machine, and sentences may have paths. Only over ipc
// and inproc may memory be named.
bool hth_conn_same_machine(const hth_conn *conn);
// hth_conn_embedded: the peer is this process.
bool hth_conn_embedded(const hth_conn *conn);
// hth_conn_names_files: what the server opens, the peer could open, too: it is the server's own
// user, root, or the process that embeds the server. Nobody else may name paths.
bool hth_conn_names_files(const hth_conn *conn);
hth_peer hth_conn_peer(const hth_conn *conn);
// hth_conn_charge counts what is about to be kept for the connection besides what its socket
// carries, until hth_conn_uncharge; little is never refused. HTH_EBUSY: as hth_allowance_take.
hth_err hth_conn_charge(const hth_conn *conn, uint64_t bytes);
void hth_conn_uncharge(const hth_conn *conn, uint64_t bytes);
// hth_conn_uid stores the user at the other end of a Unix socket; false: it is another connection,
// or the kernel did not say.
bool hth_conn_uid(const hth_conn *conn, uint64_t *uid);

// hth_conn_take hands over the descriptor that the client passed under `handle`; the caller closes
// it by hth_conn_close_taken, until when it counts (accept_guard.h), and looks what it is before
// using it. HTH_ENOENT: there is none (any more), or it is another
// user's; HTH_EDENIED: not over a Unix socket.
hth_err hth_conn_take(const hth_conn *conn, uint64_t handle, int *fd);
void hth_conn_close_taken(const hth_conn *conn, int fd); // closes such a one, and never blocks
// hth_conn_map maps the passed descriptor `handle`, a sealed memfd of `bytes`, and stores the
// region's number. A region counts as a descriptor, which the engine keeps of it. HTH_ENOENT,
// HTH_EDENIED: see hth_conn_take, or not a sealed memfd; HTH_EINVAL: another size; HTH_ETOOBIG: too
// many regions of the connection; HTH_EBUSY: of the tenant, or too many bytes (mapped.h).
hth_err hth_conn_map(hth_conn *conn, uint64_t handle, uint64_t bytes, uint32_t *region);
// hth_conn_map_ring does the same for reading and writing, and stores where it is; the caller
// unmaps it.
hth_err hth_conn_map_ring(hth_conn *conn, uint64_t handle, uint64_t bytes, void **out);
hth_err hth_conn_unmap(hth_conn *conn, uint32_t region); // requests in flight keep it; HTH_ENOENT
// hth_conn_range stores the address of [offset, offset + bytes) of a region, and the region held
// until hth_region_rele. HTH_EIO: not of this connection (the client tries again without it);
// HTH_EINVAL: outside of it.
hth_err hth_conn_range(hth_conn *conn, uint32_t region, uint64_t offset, uint64_t bytes,
                       const void **out, hth_region **held);
void hth_region_rele(hth_region *region); // NULL is allowed

#endif
