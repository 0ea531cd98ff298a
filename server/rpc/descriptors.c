// SPDX-License-Identifier: Apache-2.0
// A short array, searched from end to end: descriptors wait for a moment, and are few.
#include "server/rpc/descriptors.h"

#include "base/alloc.h"
#include "server/net/accept_guard.h"
#include "server/net/closer.h"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#define DESCRIPTORS_EACH  64  // that wait, of one connection
#define DESCRIPTORS_USER  128 // .. of one user, who is neither root nor the server's own
#define DESCRIPTORS_ALL   512 // .. of all those
#define DESCRIPTORS_ADMIN 64  // .. and that root and the server's own user have beyond

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
        return hth_fail(HTH_ENOMEM, "out of memory for passed descriptors");
    }
    pthread_mutex_init(&d->lock, NULL);
    return HTH_OK;
}

// waiting_drop closes one, and takes it out of the list; under the lock.
static void waiting_drop(hth_descriptors *d, int i)
{
    hth_closer_close(d->w[i].uid, d->w[i].fd, true);
    d->w[i] = d->w[--d->n];
}

void hth_descriptors_close(hth_descriptors *d)
{
    if (d == NULL) {
        return;
    }
    while (d->n > 0) {
        waiting_drop(d, 0);
    }
    pthread_mutex_destroy(&d->lock);
    hth_free(d);
}

// waiting_room says whether another of a user's may wait. Under the lock.
static bool waiting_room(const hth_descriptors *d, uint64_t uid, const void *owner)
{
    bool admin = uid == 0 || uid == geteuid();
    int of_owner = 0, of_user = 0;
    for (int i = 0; i < d->n; i++) {
        of_owner += d->w[i].owner == owner;
        of_user += d->w[i].uid == uid;
    }
    return of_owner < DESCRIPTORS_EACH && (admin || of_user < DESCRIPTORS_USER) &&
           d->n < DESCRIPTORS_ALL + (admin ? DESCRIPTORS_ADMIN : 0);
}

hth_err hth_descriptors_put(hth_descriptors *d, uint64_t uid, const void *owner, int fd,
                            uint64_t *handle)
{
    waiting fresh = {.uid = uid, .owner = owner, .fd = fd};
    hth_err err = HTH_OK;
    while (fresh.handle == 0) {
        if (getrandom(&fresh.handle, sizeof fresh.handle, 0) != sizeof fresh.handle) {
            return hth_fail(HTH_EIO, "the system gives no random numbers");
        }
    }
    pthread_mutex_lock(&d->lock);
    if (!waiting_room(d, uid, owner) || !hth_accept_take(HTH_ACCEPT_LOCAL)) {
        err = hth_fail(HTH_EBUSY, "%d passed descriptors wait for a request", d->n);
    } else {
        d->w[d->n++] = fresh;
        *handle = fresh.handle;
    }
    pthread_mutex_unlock(&d->lock);
    return err;
}

void hth_descriptors_drop(hth_descriptors *d, const void *owner)
{
    pthread_mutex_lock(&d->lock);
    for (int i = d->n - 1; i >= 0; i--) {
        if (d->w[i].owner == owner) {
            waiting_drop(d, i);
        }
    }
    pthread_mutex_unlock(&d->lock);
}

hth_err hth_descriptors_take(hth_descriptors *d, const hth_conn *peer, uint64_t handle, int *fd)
{
    uint64_t uid;
    bool known = hth_conn_uid(peer, &uid), found = false;
    *fd = -1;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n && known && !found; i++) {
        if (d->w[i].handle == handle && d->w[i].uid == uid) {
            *fd = d->w[i].fd;
            d->w[i] = d->w[--d->n];
            hth_accept_give(HTH_ACCEPT_LOCAL);
            found = true;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return found ? HTH_OK
                 : hth_fail(HTH_ENOENT, "no descriptor of yours was passed under this handle");
}
