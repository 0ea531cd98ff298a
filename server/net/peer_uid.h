// SPDX-License-Identifier: Apache-2.0
// server/net/peer_uid.h - whose program is at the other end of a TCP connection on this machine.
#ifndef HTH_SERVER_NET_PEER_UID_H
#define HTH_SERVER_NET_PEER_UID_H

#include "base/err.h"

#include <sys/types.h>

// hth_peer_uid stores the user who made the other end of `fd`, a connected TCP socket whose peer is
// on this machine and in this network namespace, as the kernel says. HTH_ENOENT: the other end is
// not here, or was closed; HTH_ENOTSUP: this process may not ask. Any thread; does not block.
hth_err hth_peer_uid(int fd, uid_t *out);

#endif
