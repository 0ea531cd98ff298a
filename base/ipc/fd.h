// SPDX-License-Identifier: Apache-2.0
// base/ipc/fd.h - descriptors that go to another process, with a packet of bytes, over a Unix
// socket.
#ifndef HTH_BASE_IPC_FD_H
#define HTH_BASE_IPC_FD_H

#include <stdbool.h>
#include <stddef.h>

#define HTH_FD_MOST 4 // with one packet

// hth_fd_send sends `bytes` at `packet`, and `fd` with them, which stays the caller's; fd -1: none.
// It blocks while the socket is full, unless `flags` (of sendmsg) has MSG_DONTWAIT. False: errno
// says why; nobody has got the descriptor.
bool hth_fd_send(int socket, const void *packet, size_t bytes, int fd, int flags);
// hth_fd_receive takes the next packet of a SOCK_SEQPACKET, of exactly `bytes`. *fd is the
// descriptor that came with it, which the caller closes (it is closed on exec, too); -1: there is
// none, or there is more than one, and then none of them is kept. It blocks until there is a
// packet, unless `flags` (of recvmsg) has MSG_DONTWAIT. False: errno says why, EPIPE that the peer
// has gone, EBADMSG that the packet has another length; *fd is -1.
bool hth_fd_receive(int socket, void *packet, size_t bytes, int *fd, int flags);

// hth_fd_send_all and hth_fd_receive_all are the same for `n` descriptors, at most HTH_FD_MOST: all
// of them go, and come, with the packet, or none does. On receipt all n are -1 where another number
// came.
bool hth_fd_send_all(int socket, const void *packet, size_t bytes, const int *fd, int n, int flags);
bool hth_fd_receive_all(int socket, void *packet, size_t bytes, int *fd, int n, int flags);

#endif
