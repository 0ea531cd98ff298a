// SPDX-License-Identifier: Apache-2.0
// Connections that pass descriptors (descriptors.h): after the greeting 0 'H' 'F' 'D' 0 0 0 1 come
// messages of eight zero bytes with one descriptor each (SCM_RIGHTS), which are answered with eight
// bytes, the handle, little endian; 0: it was not taken. Everything else ends the connection. On
// other connections, and before the greeting, no ancillary data is received: the kernel closes
// descriptors that come there.
#include "server/rpc_parts.h"

#include "base/clock.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PASS_BYTES 8
#define PASS_TURN  64

bool hth_rpc_pass_hello(const uint8_t *hello)
{
    static const uint8_t pass[HTH_RPC_HELLO] = {0, 'H', 'F', 'D', 0, 0, 0, 1};
    return memcmp(hello, pass, sizeof pass) == 0;
}

// pass_receive takes one message; *fd gets its descriptor, if it has one and no more: padding has
// room for a second. Returns as recvmsg does.
static ssize_t pass_receive(int from, uint8_t *bytes, int *fd)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec v = {bytes, PASS_BYTES};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int came[sizeof control / sizeof(int)];
    size_t n_came = 0;
    *fd = -1;
    ssize_t n = recvmsg(from, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *h = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (h != NULL && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
        n_came = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(came, CMSG_DATA(h), n_came * sizeof(int));
    }
    if (n_came == 1 && (m.msg_flags & MSG_CTRUNC) == 0) {
        *fd = came[0];
        return n;
    }
    while (n_came > 0) {
        close(came[--n_came]);
    }
    return n;
}

static void pass_answer(hth_rpc_conn *c, int fd)
{
    uint64_t handle = 0;
    uint8_t answer[PASS_BYTES];
    if (hth_descriptors_put(c->r->config.descriptors, c->uid, c, fd, &handle) != HTH_OK) {
        close(fd);
        handle = 0;
    }
    for (int i = 0; i < PASS_BYTES; i++) {
        answer[i] = (uint8_t)(handle >> (8 * i));
    }
    hth_rpc_out *o = hth_rpc_out_new(c, answer, sizeof answer, NULL);
    if (o == NULL) {
        c->dead = true;
        return;
    }
    hth_rpc_out_add(c, o, true);
}

void hth_rpc_pass(hth_rpc_conn *c)
{
    static const uint8_t zero[PASS_BYTES];
    uint8_t bytes[PASS_BYTES];
    for (int i = 0; i < PASS_TURN && !c->dead && !hth_rpc_conn_full(c); i++) {
        int fd;
        ssize_t n = pass_receive(c->fd, bytes, &fd);
        if (n < 0 && fd < 0) {
            break; // none is there
        }
        if (n != PASS_BYTES || fd < 0 || memcmp(bytes, zero, sizeof zero) != 0) {
            if (fd >= 0) {
                close(fd);
            }
            c->dead = true;
            break;
        }
        c->since_ns = hth_now_ns();
        pass_answer(c, fd);
    }
}
