// SPDX-License-Identifier: Apache-2.0
// One datagram to a Unix socket, whose address is a path, or a name in the abstract space where it
// begins with '@'.
#include "server/daemon/notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void hth_notify(const char *socket_name, const char *state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = socket_name != NULL ? strlen(socket_name) : 0;
    if (n == 0 || n >= sizeof a.sun_path) {
        return;
    }
    memcpy(a.sun_path, socket_name, n);
    if (a.sun_path[0] == '@') {
        a.sun_path[0] = '\0';
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return;
    }
    (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&a,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}
