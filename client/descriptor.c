// SPDX-License-Identifier: Apache-2.0
#include "client/descriptor.h"

#include "base/ipc/fd.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define DESCRIPTOR_BYTES   8
#define DESCRIPTOR_SECONDS 10

static void descriptor_drop(hearth *h)
{
    if (h->passing_fd >= 0) {
        close(h->passing_fd);
        h->passing_fd = -1;
    }
}

static hth_err descriptor_connect(hearth *h)
{
    static const char hello[DESCRIPTOR_BYTES] = {0, 'H', 'F', 'D', 0, 0, 0, 1};
    const struct timeval patience = {.tv_sec = DESCRIPTOR_SECONDS};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strncmp(h->url, "ipc://", 6) != 0 || strlen(h->url + 6) >= sizeof a.sun_path) {
        return hth_fail(HTH_ENOTSUP, "descriptors are only passed over ipc://, not to %s", h->url);
    }
    strcpy(a.sun_path, h->url + 6);
    h->passing_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->passing_fd < 0) {
        return hth_fail_errno(errno, "cannot make a socket");
    }
    if (setsockopt(h->passing_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        setsockopt(h->passing_fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0 ||
        connect(h->passing_fd, (const struct sockaddr *)&a, sizeof a) != 0 ||
        send(h->passing_fd, hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
        hth_err err = hth_fail_errno(errno, "no server at %s", h->url);
        descriptor_drop(h);
        return err;
    }
    return HTH_OK;
}

// descriptor_exchange sends a descriptor over the connection that is there.
static hth_err descriptor_exchange(hearth *h, int fd, uint64_t *handle)
{
    static const char zero[DESCRIPTOR_BYTES];
    uint8_t answer[DESCRIPTOR_BYTES];
    if (!hth_fd_send(h->passing_fd, zero, sizeof zero, fd, 0) ||
        recv(h->passing_fd, answer, sizeof answer, MSG_WAITALL) != DESCRIPTOR_BYTES) {
        descriptor_drop(h);
        return hth_fail(HTH_EIO, "%s takes no descriptors", h->url);
    }
    *handle = 0;
    for (int i = 0; i < DESCRIPTOR_BYTES; i++) {
        *handle |= (uint64_t)answer[i] << (8 * i);
    }
    return *handle != 0 ? HTH_OK
                        : hth_fail(HTH_EBUSY, "%s has too many passed descriptors", h->url);
}

hth_err hth_descriptor_pass(hearth *connection, int fd, uint64_t *handle)
{
    hth_err err = HTH_EIO;
    pthread_mutex_lock(&connection->passing);
    if (connection->passing_fd >= 0) { // of a server that may have gone since
        err = descriptor_exchange(connection, fd, handle);
    }
    if (err == HTH_EIO) {
        err = descriptor_connect(connection);
        if (err == HTH_OK) {
            err = descriptor_exchange(connection, fd, handle);
        }
    }
    pthread_mutex_unlock(&connection->passing);
    return err;
}

hth_err hth_descriptor_server(hearth *handle, uint64_t *uid)
{
    struct ucred who;
    socklen_t bytes = sizeof who;
    pthread_mutex_lock(&handle->passing);
    hth_err err = handle->passing_fd >= 0 ? HTH_OK : descriptor_connect(handle);
    if (err == HTH_OK &&
        getsockopt(handle->passing_fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) {
        err = hth_fail_errno(errno, "cannot identify the server at %s", handle->url);
    }
    *uid = err == HTH_OK ? who.uid : 0;
    pthread_mutex_unlock(&handle->passing);
    return err;
}

void hth_descriptor_fini(hearth *handle)
{
    descriptor_drop(handle);
}
