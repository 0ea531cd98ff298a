// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/sum_link.h"

#include "base/ipc/fd.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

hth_err hth_sum_link_make(int *engine, int *client)
{
    int pair[2];
    *engine = *client = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return hth_fail_errno(errno, "cannot make the socket of a rank's exchange");
    }
    *engine = pair[0];
    *client = pair[1];
    return HTH_OK;
}

hth_err hth_sum_link_check(int fd)
{
    int domain = 0, type = 0;
    socklen_t n = sizeof domain, m = sizeof type;
    bool good = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 &&
                getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &m) == 0 && domain == AF_UNIX &&
                type == SOCK_SEQPACKET;
    return good ? HTH_OK
                : hth_fail(HTH_EINVAL, "what was passed as a rank's exchange is no such socket");
}

static hth_err link_gone(void)
{
    return hth_fail(HTH_ECANCELED, "the other side of a rank's exchange has gone");
}

hth_err hth_sum_link_send(int fd, const hth_sum_message *message, int passed)
{
    while (!hth_fd_send(fd, message, sizeof *message, passed, MSG_DONTWAIT)) {
        if (errno == EAGAIN || errno == ENOBUFS) {
            return HTH_EBUSY;
        }
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
            return link_gone();
        }
        if (errno != EINTR) {
            return hth_fail_errno(errno, "cannot write to a rank's exchange");
        }
    }
    return HTH_OK;
}

hth_err hth_sum_link_wait(int fd, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int got = ppoll(&p, 1, &t, NULL);
    if (got < 0 && errno != EINTR) {
        return hth_fail_errno(errno, "cannot wait for a rank's exchange");
    }
    return got > 0 ? HTH_OK : HTH_ETIMEDOUT;
}

hth_err hth_sum_link_receive(int fd, uint64_t ns, hth_sum_message *message, int *passed)
{
    int came = -1;
    int *to = passed != NULL ? passed : &came;
    *to = -1;
    if (ns > 0) {
        HTH_TRY(hth_sum_link_wait(fd, ns));
    }
    bool got = hth_fd_receive(fd, message, sizeof *message, to, MSG_DONTWAIT);
    if (!got && errno == ECONNRESET) { // said first where the other side left something unread
        got = hth_fd_receive(fd, message, sizeof *message, to, MSG_DONTWAIT);
    }
    if (!got) {
        if (errno == EAGAIN || errno == EINTR) {
            return HTH_ETIMEDOUT;
        }
        if (errno == EPIPE || errno == ECONNRESET) {
            return link_gone();
        }
        return errno == EBADMSG
                   ? hth_fail(HTH_ECORRUPT, "a message of another length in a rank's exchange")
                   : hth_fail_errno(errno, "cannot read a rank's exchange");
    }
    message->text[sizeof message->text - 1] = 0;
    if (came >= 0) {
        close(came); // nobody asked for one
    }
    return HTH_OK;
}
