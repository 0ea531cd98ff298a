// SPDX-License-Identifier: Apache-2.0
// There is room for the descriptors that are expected and not a byte more: CMSG_SPACE rounds up,
// and the kernel would hand one more out into the padding. What has no room it closes itself, and
// says so.
#include "base/ipc/fd.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union fd_space {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(HTH_FD_MOST * sizeof(int))];
} fd_space;

bool hth_fd_send_all(int socket, const void *packet, size_t bytes, const int *fd, int n, int flags)
{
    fd_space space = {.bytes = {0}};
    struct iovec part = {(void *)packet, bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    size_t all = (size_t)n * sizeof *fd;
    assert(n >= 0 && n <= HTH_FD_MOST);
    if (n > 0) {
        m.msg_control = space.bytes;
        m.msg_controllen = CMSG_SPACE(all);
        space.head.cmsg_level = SOL_SOCKET;
        space.head.cmsg_type = SCM_RIGHTS;
        space.head.cmsg_len = CMSG_LEN(all);
        memcpy(CMSG_DATA(&space.head), fd, all);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &m, flags | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes;
}

bool hth_fd_send(int socket, const void *packet, size_t bytes, int fd, int flags)
{
    return hth_fd_send_all(socket, packet, bytes, &fd, fd >= 0 ? 1 : 0, flags);
}

bool hth_fd_receive_all(int socket, void *packet, size_t bytes, int *fd, int n, int flags)
{
    fd_space space = {.bytes = {0}};
    struct iovec part = {packet, bytes};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = space.bytes,
                       .msg_controllen = CMSG_LEN((size_t)n * sizeof *fd)};
    ssize_t got;
    int came = 0;
    assert(n > 0 && n <= HTH_FD_MOST);
    do {
        got = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    for (int i = 0; i < n; i++) {
        fd[i] = -1;
    }
    if (got < 0) {
        return false;
    }
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        came = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof *fd);
        memcpy(fd, CMSG_DATA(c), (size_t)came * sizeof *fd);
    }
    bool whole = got == (ssize_t)bytes && (m.msg_flags & MSG_TRUNC) == 0;
    if (!whole || came != n || (m.msg_flags & MSG_CTRUNC) != 0) {
        for (int i = 0; i < came; i++) {
            close(fd[i]);
            fd[i] = -1;
        }
    }
    if (!whole) {
        errno = got == 0 ? EPIPE : EBADMSG;
    }
    return whole;
}

bool hth_fd_receive(int socket, void *packet, size_t bytes, int *fd, int flags)
{
    return hth_fd_receive_all(socket, packet, bytes, fd, 1, flags);
}
