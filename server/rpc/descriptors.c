// SPDX-License-Identifier: Apache-2.0
// A connection that passes descriptors: after the greeting 0 'H' 'F' 'D' 0 0 0 1 come messages of
// eight zero bytes with one descriptor each (SCM_RIGHTS), which are answered with eight bytes, the
// handle, little endian; 0: it was not taken. Everything else ends the connection. On other
// connections, and before the greeting, descriptors that come are closed.
//
// Those that wait for a request are a short array, searched from end to end: they wait for a
// moment, and are few.
#include "server/rpc/descriptors.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/net/accept_guard.h"
#include "server/net/closer.h"
#include "server/rpc/rpc_impl.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define DESCRIPTORS_EACH  64  // that wait, of one connection
#define DESCRIPTORS_USER  128 // .. of one user, who is neither root nor the server's own
#define DESCRIPTORS_ALL   512 // .. of all those
#define DESCRIPTORS_ADMIN 64  // .. and that root and the server's own user have beyond
#define PASS_BYTES        8
#define PASS_TURN         64

// ---- those that wait

typedef struct waiting {
    uint64_t handle, uid;
    const void *owner;
    int fd;
} waiting;

struct hth_descriptors {
    pthread_mutex_t lock;
    int n;
    waiting w[DESCRIPTORS_ALL + DESCRIPTORS_ADMIN];
};

hth_err hth_descriptors_open(hth_descriptors **out)
{
    hth_descriptors *d = hth_calloc(1, sizeof *d);
    *out = d;
    if (d == NULL) {
        return hth_no_memory("passed descriptors");
    }
    pthread_mutex_init(&d->lock, NULL);
    return HTH_OK;
}

// waiting_drop closes one, and takes it out of the list; under the lock.
static void waiting_drop(hth_descriptors *descriptors, int i)
{
    hth_closer_close(descriptors->w[i].uid, descriptors->w[i].fd, true);
    descriptors->w[i] = descriptors->w[--descriptors->n];
}

void hth_descriptors_close(hth_descriptors *descriptors)
{
    if (descriptors == NULL) {
        return;
    }
    while (descriptors->n > 0) {
        waiting_drop(descriptors, 0);
    }
    pthread_mutex_destroy(&descriptors->lock);
    hth_free(descriptors);
}

// waiting_check says whether another of a user's may wait. Under the lock.
static bool waiting_check(const hth_descriptors *descriptors, uint64_t uid, const void *owner)
{
    bool admin = uid == 0 || uid == geteuid();
    int of_owner = 0, of_user = 0;
    for (int i = 0; i < descriptors->n; i++) {
        of_owner += descriptors->w[i].owner == owner;
        of_user += descriptors->w[i].uid == uid;
    }
    return of_owner < DESCRIPTORS_EACH && (admin || of_user < DESCRIPTORS_USER) &&
           descriptors->n < DESCRIPTORS_ALL + (admin ? DESCRIPTORS_ADMIN : 0);
}

hth_err hth_descriptors_put(hth_descriptors *descriptors, uint64_t uid, const void *owner, int fd,
                            uint64_t *handle)
{
    waiting fresh = {.uid = uid, .owner = owner, .fd = fd};
    hth_err err = HTH_OK;
    while (fresh.handle == 0) {
        if (getrandom(&fresh.handle, sizeof fresh.handle, 0) != sizeof fresh.handle) {
            return hth_fail(HTH_EIO, "the system has no random numbers");
        }
    }
    pthread_mutex_lock(&descriptors->lock);
    if (!waiting_check(descriptors, uid, owner) || !hth_accept_take(HTH_ACCEPT_LOCAL)) {
        err = hth_fail(HTH_EBUSY, "%d passed descriptors wait for a request", descriptors->n);
    } else {
        descriptors->w[descriptors->n++] = fresh;
        *handle = fresh.handle;
    }
    pthread_mutex_unlock(&descriptors->lock);
    return err;
}

void hth_descriptors_drop(hth_descriptors *descriptors, const void *owner)
{
    pthread_mutex_lock(&descriptors->lock);
    for (int i = descriptors->n - 1; i >= 0; i--) {
        if (descriptors->w[i].owner == owner) {
            waiting_drop(descriptors, i);
        }
    }
    pthread_mutex_unlock(&descriptors->lock);
}

hth_err hth_descriptors_take(hth_descriptors *descriptors, const hth_conn *peer, uint64_t handle,
                             int *fd)
{
    uint64_t uid;
    bool known = hth_conn_uid(peer, &uid), found = false;
    *fd = -1;
    pthread_mutex_lock(&descriptors->lock);
    for (int i = 0; i < descriptors->n && known && !found; i++) {
        if (descriptors->w[i].handle == handle && descriptors->w[i].uid == uid) {
            *fd = descriptors->w[i].fd;
            descriptors->w[i] = descriptors->w[--descriptors->n];
            found = true;
        }
    }
    pthread_mutex_unlock(&descriptors->lock);
    return found ? HTH_OK
                 : hth_fail(HTH_ENOENT, "no descriptor of yours was passed under this handle");
}

// ---- connections that pass them

bool hth_rpc_pass_hello(const uint8_t *hello)
{
    static const uint8_t pass[HTH_RPC_HELLO] = {0, 'H', 'F', 'D', 0, 0, 0, 1};
    return memcmp(hello, pass, sizeof pass) == 0;
}

// pass_receive takes one message; *fd gets its descriptor, if it has one and no more. Returns as
// hth_rpc_io_read does.
static ssize_t pass_receive(hth_rpc_conn *conn, uint8_t *bytes, int *fd)
{
    int came[HTH_RPC_FDS], n_came;
    ssize_t n = hth_rpc_io_receive(conn, bytes, PASS_BYTES, came, &n_came);
    *fd = n_came == 1 ? came[0] : -1;
    if (n_came > 1) {
        while (n_came > 0) {
            hth_closer_close(conn->uid, came[--n_came], false);
        }
    }
    return n;
}

static void pass_answer(hth_rpc_conn *conn, int fd)
{
    uint64_t handle = 0;
    uint8_t answer[PASS_BYTES];
    if (hth_descriptors_put(conn->r->config.descriptors, conn->uid, conn, fd, &handle) != HTH_OK) {
        hth_closer_close(conn->uid, fd, false);
        handle = 0;
    }
    for (int i = 0; i < PASS_BYTES; i++) {
        answer[i] = (uint8_t)(handle >> (8 * i));
    }
    hth_rpc_out *o = hth_rpc_out_new(conn, answer, sizeof answer, NULL);
    if (o == NULL) {
        conn->dead = true;
        return;
    }
    hth_rpc_out_add(conn, o, true);
}

void hth_rpc_pass(hth_rpc_conn *conn)
{
    static const uint8_t zero[PASS_BYTES];
    uint8_t bytes[PASS_BYTES];
    for (int i = 0; i < PASS_TURN && !conn->dead && !hth_rpc_conn_full(conn); i++) {
        int fd;
        ssize_t n = pass_receive(conn, bytes, &fd);
        if (n == HTH_RPC_AGAIN) {
            break; // none is there
        }
        if (n != PASS_BYTES || fd < 0 || memcmp(bytes, zero, sizeof zero) != 0) {
            if (fd >= 0) {
                hth_closer_close(conn->uid, fd, false);
            }
            conn->dead = true;
            break;
        }
        conn->since_ns = hth_now_ns();
        pass_answer(conn, fd);
    }
}
