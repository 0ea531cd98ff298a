// SPDX-License-Identifier: Apache-2.0
// tests/rig/free_port.h - TCP ports of the loopback that nobody listens at, and that no other test
// gets as long as this process lives. Below those that the kernel gives to connections: a server
// that is started again finds its port as it was.
#ifndef HTH_TESTS_RIG_FREE_PORT_H
#define HTH_TESTS_RIG_FREE_PORT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FREE_PORT_FIRST 10000
#define FREE_PORT_MANY  22000

// port_claim takes a name for the port that only one process has; -1: another one has it. The
// kernel gives it up with the process.
static inline int port_claim(int port)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "hearth-test-port-%d", port);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, bytes) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static inline bool port_is_free(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool is = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return is;
}

// free_port is the first of `n` (1 or 2) such ports, one behind the other.
static inline int free_port(int n)
{
    int from = FREE_PORT_FIRST + (int)getpid() * 7 % FREE_PORT_MANY;
    for (int port = from;;
         port = port + 2 < FREE_PORT_FIRST + FREE_PORT_MANY ? port + 2 : FREE_PORT_FIRST) {
        int one = port_claim(port), two = n > 1 ? port_claim(port + 1) : -1;
        if (one >= 0 && (n == 1 || two >= 0) && port_is_free(port) &&
            (n == 1 || port_is_free(port + 1))) {
            return port;
        }
        close(one);
        close(two);
    }
}

#endif
