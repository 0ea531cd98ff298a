// SPDX-License-Identifier: Apache-2.0
// server/net/allowance.h - what one peer may use: a local user, or an address of the network (of
// IPv6, its /64).
//
// Design notes
// Limits per connection do not hold who opens many. Therefore connections, requests in progress and
// bytes are counted per peer, too: an allowance is shared by all connections of a peer and lives as
// long as the last of them and the requests that they left. Bytes go into the account of all front
// ends (account.h) as well. Connections of the network and of local users are counted apart, so
// that the former cannot keep the latter out; who is trusted (root, the server's user, auth.local)
// is bound by the process's descriptors only. Thread-safe: the table has a lock, the counts are
// atomic.
#ifndef HTH_SERVER_NET_ALLOWANCE_H
#define HTH_SERVER_NET_ALLOWANCE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct hth_allowances hth_allowances;
typedef struct hth_allowance hth_allowance;

// What an allowance is of. Zero it first: it is compared as bytes.
typedef struct hth_allowance_key {
    uint64_t local; // 1: `id` is a user's number; 0: an address
    uint64_t id[2];
} hth_allowance_key;

// hth_allowance_key_user and hth_allowance_key_address make keys.
hth_allowance_key hth_allowance_key_user(uint64_t uid);
hth_allowance_key hth_allowance_key_address(const struct sockaddr *address);

hth_err hth_allowances_open(hth_allowances **out);
void hth_allowances_close(hth_allowances *allowances); // without allowances; NULL is allowed

// hth_allowance_join counts a connection of a peer and holds its allowance. HTH_EBUSY: there are
// too many.
hth_err hth_allowance_join(hth_allowances *allowances, const hth_allowance_key *key, bool trusted,
                           hth_allowance **out);
// hth_allowance_leave: a connection has ended that was trusted or not; the allowance stays held.
void hth_allowance_leave(hth_allowance *allowance, bool trusted);
void hth_allowance_hold(hth_allowance *allowance);
void hth_allowance_rele(hth_allowance *allowance);
// hth_allowance_full tells whether connections like these are at their limit in all.
bool hth_allowance_full(hth_allowances *allowances, bool local);

// hth_allowance_request counts a request that is in progress: HTH_EBUSY when there are too many of
// its kind. hth_allowance_answered gives it back.
typedef enum hth_allowance_kind {
    HTH_ALLOWANCE_SHORT,
    HTH_ALLOWANCE_LONG,
    HTH_ALLOWANCE_WATCH, // of a training job
    HTH_ALLOWANCE_KINDS
} hth_allowance_kind;
hth_err hth_allowance_request(hth_allowance *allowance, hth_allowance_kind kind);
void hth_allowance_answered(hth_allowance *allowance, hth_allowance_kind kind);

// hth_allowance_shook counts a step of a peer's TLS handshakes in this second, and
// hth_allowance_shakes says how many there were. One thread: the network's loop.
void hth_allowance_shook(hth_allowance *allowance, uint64_t second);
int hth_allowance_shakes(const hth_allowance *allowance, uint64_t second);

// hth_allowance_take counts bytes that are about to be held: HTH_EBUSY, in a sentence for the peer,
// where they are too many for it or in all. hth_allowance_add: where they are there anyway, or few.
hth_err hth_allowance_take(hth_allowance *allowance, uint64_t bytes);
void hth_allowance_add(hth_allowance *allowance, uint64_t bytes);
void hth_allowance_give(hth_allowance *allowance, uint64_t bytes);
// hth_allowance_charge takes them, but never refuses up to 64 KiB.
hth_err hth_allowance_charge(hth_allowance *allowance, uint64_t bytes);

#endif
