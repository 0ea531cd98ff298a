// SPDX-License-Identifier: Apache-2.0
// server/net/auth.h - who may do what.
//
// The folder server/net/ is what all front ends share before a request is understood: who the peer
// is and what it may do, limits by peer and in sum, TLS, addresses and socket files.
//
// Design notes
// A request comes from a peer, may carry a token, and needs something. The row of each route of
// HTTP (http_route.c) and hth_auth_need, for hearth's own clients, say what. One function decides
// for both front ends. Peers that are trusted (this process, the server's user, root, auth.local)
// need no token; what the others may do without one depends on whether the server has tokens at
// all:
//
//                                        no tokens        with tokens
//   Unix socket of another user          infer            what the token may
//   HTTP over loopback                   infer, model,    what the token may
//                                        admin
//   everything else on the network       infer            what the token may
//
// Tokens are there as soon as auth.tokens_file is named, even if the file is empty. Thread-safe.
#ifndef HTH_SERVER_NET_AUTH_H
#define HTH_SERVER_NET_AUTH_H

#include "client/hearth.pb-c.h"
#include "client/token.h"
#include "runtime/command.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_auth hth_auth;

typedef enum hth_peer {
    HTH_PEER_NETWORK,
    HTH_PEER_LOCAL,    // a Unix socket, and another user
    HTH_PEER_LOOPBACK, // HTTP from this machine: any of its users
    HTH_PEER_TRUSTED,
} hth_peer;

// hth_auth_open reads the file of tokens ("": there are none); `local` lists users and @groups,
// separated by blanks, that are trusted as peers of a Unix socket; names that are not known are
// logged. HTH_EINVAL, HTH_EDENIED: the file is not as it should be; HTH_ENOENT: there is none.
hth_err hth_auth_open(const char *tokens_file, const char *local, hth_auth **out);
void hth_auth_close(hth_auth *auth); // NULL is allowed
// hth_auth_reload reads the file again. On error the tokens stay as they are.
hth_err hth_auth_reload(hth_auth *auth);
bool hth_auth_has_tokens(const hth_auth *auth);

// hth_auth_local is the peer of a Unix socket.
hth_peer hth_auth_local(const hth_auth *auth, uint64_t uid, uint64_t gid);
// hth_auth_check: HTH_EDENIED with a sentence that says what to do. `token` NULL or "": none.
// *unknown (may be NULL) tells that a token was missing or is not known, rather than too weak.
hth_err hth_auth_check(hth_auth *auth, hth_peer peer, const char *token, hth_need need,
                       bool *unknown);
// hth_auth_allows is the same for who only wants to know: nothing is logged.
bool hth_auth_allows(hth_auth *auth, hth_peer peer, const char *token, hth_need need);
// hth_auth_tenant stores whose the bytes are that a request brings to the device: the token's name,
// or `without` where there is none that the server knows.
void hth_auth_tenant(hth_auth *auth, const char *token, const char *without, char *out, size_t cap);
// hth_auth_need is what a request of hearth's own clients needs; `command` is a query's.
hth_need hth_auth_need(const Hearth__Request *request, hth_command_id command);

#endif
