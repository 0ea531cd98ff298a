// SPDX-License-Identifier: Apache-2.0
// Connections that pass descriptors (descriptors.h): after the greeting 0 'H' 'F' 'D' 0 0 0 1 come
// messages of eight zero bytes with one descriptor each (SCM_RIGHTS), which are answered with eight
// bytes, the handle, little endian; 0: it was not taken. Everything else ends the connection. On
// other connections, and before the greeting, descriptors that come are closed.
#include "server/net/closer.h"
#include "server/rpc/rpc_impl.h"

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

// pass_receive takes one message; *fd gets its descriptor, if it has one and no more. Returns as
// hth_rpc_io_read does.
static ssize_t pass_receive(hth_rpc_conn *c, uint8_t *bytes, int *fd)
{
    int came[HTH_RPC_FDS], n_came;
    ssize_t n = hth_rpc_io_receive(c, bytes, PASS_BYTES, came, &n_came);
    *fd = n_came == 1 ? came[0] : -1;
    if (n_came > 1) {
        while (n_came > 0) {
            hth_closer_close(c->uid, came[--n_came], false);
        }
    }
    return n;
}

static void pass_answer(hth_rpc_conn *c, int fd)
{
    uint64_t handle = 0;
    uint8_t answer[PASS_BYTES];
    if (hth_descriptors_put(c->r->config.descriptors, c->uid, c, fd, &handle) != HTH_OK) {
        hth_closer_close(c->uid, fd, false);
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
        ssize_t n = pass_receive(c, bytes, &fd);
        if (n == HTH_RPC_AGAIN) {
            break; // none is there
        }
        if (n != PASS_BYTES || fd < 0 || memcmp(bytes, zero, sizeof zero) != 0) {
            if (fd >= 0) {
                hth_closer_close(c->uid, fd, false);
            }
            c->dead = true;
            break;
        }
        c->since_ns = hth_now_ns();
        pass_answer(c, fd);
    }
}
