// SPDX-License-Identifier: Apache-2.0
// A Unix socket names its peer; over TCP the kernel's table of sockets does, which is asked for the
// very pair of addresses and ports (sock_diag(7)): that costs the same however many sockets there
// are, which reading /proc/net/tcp does not.
//
// A socket that its program has closed is root's for some kernels while it says goodbye. It has no
// inode then. The kernel reads the inode after the user: with an inode, the user is the owner's.
#include "server/net/peer_uid.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct uid_question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 diag;
} uid_question;

// uid_address stores an address and its port as the question has them, and returns the family:
// IPv4 for an address of it that IPv6 stands for.
static int uid_address(const struct sockaddr_storage *a, __be32 out[4], __be16 *port)
{
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)a;
        out[0] = four->sin_addr.s_addr;
        *port = four->sin_port;
        return AF_INET;
    }
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    bool mapped = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
    size_t skip = mapped ? 12 : 0;
    memcpy(out, six->sin6_addr.s6_addr + skip, 16 - skip);
    *port = six->sin6_port;
    return mapped ? AF_INET : AF_INET6;
}

// uid_ask fills the question about the other end of `fd`.
static hth_err uid_ask(int fd, uid_question *question)
{
    struct sockaddr_storage here, there;
    socklen_t n_here = sizeof here, n_there = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &n_here) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &n_there) != 0 ||
        (there.ss_family != AF_INET && there.ss_family != AF_INET6)) {
        return hth_fail(HTH_ENOENT, "the other end of the connection is not on this machine");
    }
    struct inet_diag_sockid *id = &question->diag.id;
    *question = (uid_question){.head = {.nlmsg_len = sizeof *question,
                                        .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                                        .nlmsg_flags = NLM_F_REQUEST},
                               .diag = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u}};
    question->diag.sdiag_family = (uint8_t)uid_address(&there, id->idiag_src, &id->idiag_sport);
    (void)uid_address(&here, id->idiag_dst, &id->idiag_dport);
    id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    return HTH_OK;
}

static hth_err uid_answer(const void *answer, size_t n, uid_t *out)
{
    struct nlmsghdr head = {.nlmsg_len = 0};
    struct inet_diag_msg m;
    if (n >= sizeof head) {
        memcpy(&head, answer, sizeof head);
    }
    if (head.nlmsg_type == SOCK_DIAG_BY_FAMILY && n >= NLMSG_LENGTH(sizeof m)) {
        memcpy(&m, (const char *)answer + NLMSG_HDRLEN, sizeof m);
        if (m.idiag_inode != 0 && m.idiag_state != TCP_TIME_WAIT) {
            *out = m.idiag_uid;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_ENOENT, "the other end of the connection was closed, or is not on this "
                                "machine");
}

hth_err hth_peer_uid(int fd, uid_t *out)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    char answer[1024];
    uid_question q;
    HTH_TRY(uid_ask(fd, &q));
    int k = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (k < 0) {
        return hth_fail(errno == EMFILE || errno == ENFILE ? HTH_EBUSY : HTH_ENOTSUP,
                        "cannot ask the kernel whose connection this is: %s", strerror(errno));
    }
    ssize_t sent = sendto(k, &q, sizeof q, 0, (struct sockaddr *)&kernel, sizeof kernel);
    // The kernel answers before sendto returns.
    ssize_t n = sent == (ssize_t)sizeof q ? recv(k, answer, sizeof answer, MSG_DONTWAIT) : -1;
    int e = errno;
    close(k);
    return n < 0 ? hth_fail(HTH_ENOTSUP, "cannot ask the kernel whose connection this is: %s",
                            strerror(e))
                 : uid_answer(answer, (size_t)n, out);
}
