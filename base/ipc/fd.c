// SPDX-License-Identifier: Apache-2.0
// There is room for one descriptor and not a byte more: CMSG_SPACE rounds up, and the kernel would
// hand a second one out into the padding. What has no room it closes itself, and says so.
#include "base/ipc/fd.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union fd_space {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
} fd_space;

bool hth_fd_send(int socket, const void *packet, size_t bytes, int fd, int flags)
{
    fd_space space = {.bytes = {0}};
    struct iovec part = {(void *)packet, bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = space.bytes;
        m.msg_controllen = sizeof space.bytes;
        space.head.cmsg_level = SOL_SOCKET;
        space.head.cmsg_type = SCM_RIGHTS;
        space.head.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&space.head), &fd, sizeof fd);
    }
    ssize_t n;
    do {
        n = sendmsg(socket, &m, flags | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes;
}

bool hth_fd_receive(int socket, void *packet, size_t bytes, int *fd, int flags)
{
    fd_space space = {.bytes = {0}};
    struct iovec part = {packet, bytes};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = space.bytes,
                       .msg_controllen = CMSG_LEN(sizeof *fd)};
    ssize_t n;
    do {
        n = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    *fd = -1;
    if (n < 0) {
        return false;
    }
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    }
    bool whole = n == (ssize_t)bytes && (m.msg_flags & MSG_TRUNC) == 0;
    if (*fd >= 0 && (!whole || (m.msg_flags & MSG_CTRUNC) != 0)) {
        close(*fd);
        *fd = -1;
    }
    if (!whole) {
        errno = n == 0 ? EPIPE : EBADMSG;
    }
    return whole;
}
