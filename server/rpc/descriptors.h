// SPDX-License-Identifier: Apache-2.0
// server/rpc/descriptors.h - descriptors that local clients have passed to the server, until a
// request names them.
//
// Design notes
// What a client has open, the server must not open by its name: the name may lead elsewhere by
// then, and opening has consequences. Therefore a client passes the descriptor itself over a
// connection for descriptors, and gets a handle: a random number, good for one request
// of the same user over any connection. A descriptor that no request takes is closed with the
// connection that brought it. Thread-safe.
#ifndef HTH_SERVER_RPC_DESCRIPTORS_H
#define HTH_SERVER_RPC_DESCRIPTORS_H

#include "server/rpc/conn.h"

#include <stdint.h>

hth_err hth_descriptors_open(hth_descriptors **out);
void hth_descriptors_close(hth_descriptors *descriptors); // closes what is left; NULL is allowed

// hth_descriptors_put keeps `fd`, which user `uid` passed over the connection `owner`; *handle,
// never 0, names it. On error `fd` stays the caller's. HTH_EBUSY: the connection or the user has as
// many waiting as they may, or there are too many in all.
hth_err hth_descriptors_put(hth_descriptors *descriptors, uint64_t uid, const void *owner, int fd,
                            uint64_t *handle);
// hth_descriptors_drop closes what `owner` brought and nobody took.
void hth_descriptors_drop(hth_descriptors *descriptors, const void *owner);
// hth_descriptors_take hands over the descriptor that the user at the other end of `peer` passed;
// the caller closes it, and looks what it is before it uses it. HTH_ENOENT: there is none by that
// handle (any more), or it is another user's.
hth_err hth_descriptors_take(hth_descriptors *descriptors, const hth_conn *peer, uint64_t handle,
                             int *fd);

#endif
