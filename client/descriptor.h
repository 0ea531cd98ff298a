// SPDX-License-Identifier: Apache-2.0
// client/descriptor.h - passes open descriptors to a server on this machine.
//
// Design notes
// A request cannot carry a descriptor: nng does not. A second connection to the same ipc:// url
// does, made when it is needed first. It begins with the greeting 0 'H' 'F' 'D' 0 0 0 1; then each
// message is eight zero bytes with one descriptor (SCM_RIGHTS), and its answer eight bytes, little
// endian: the handle by which one request of the same user may name the descriptor, or 0. The
// server closes what no request has taken when the connection ends, 64 may wait.
#ifndef HTH_CLIENT_DESCRIPTOR_H
#define HTH_CLIENT_DESCRIPTOR_H

#include "client/exchange.h"

// hth_descriptor_pass has the server have `fd`, too, as it is open here; *handle names it in one
// request over connection. `fd` stays the caller's. Blocks for at most some seconds; any thread.
// HTH_ENOTSUP: connection is not over ipc://; HTH_EIO: there is no server, or it takes no
// descriptors; HTH_EBUSY: it has too many.
hth_err hth_descriptor_pass(hearth *connection, int fd, uint64_t *handle);
// hth_descriptor_server stores the user that the server runs as. Errors are those of
// hth_descriptor_pass.
hth_err hth_descriptor_server(hearth *handle, uint64_t *uid);
void hth_descriptor_fini(hearth *handle); // ends the connection, if there is one

#endif
