// SPDX-License-Identifier: Apache-2.0
// A short array, searched from end to end: descriptors wait for a moment, and are few.
#include "server/descriptors.h"

#include "base/alloc.h"
#include "server/accept_guard.h"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#define DESCRIPTORS_EACH 64  // that wait, of one connection
#define DESCRIPTORS_ALL  512 // of all

typedef struct waiting {
    uint64_t handle, uid;
    const void *owner;
    int fd;
} waiting;

struct hth_descriptors {
    pthread_mutex_t lock;
    int n;
    waiting w[DESCRIPTORS_ALL];
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

// waiting_remove takes one out of the list, under the lock.
static void waiting_remove(hth_descriptors *d, int i)
{
    d->w[i] = d->w[--d->n];
    hth_accept_give(HTH_ACCEPT_LOCAL);
}

void hth_descriptors_close(hth_descriptors *d)
{
    if (d == NULL) {
        return;
    }
    while (d->n > 0) {
        close(d->w[0].fd);
        waiting_remove(d, 0);
    }
    pthread_mutex_destroy(&d->lock);
    hth_free(d);
}

hth_err hth_descriptors_put(hth_descriptors *d, uint64_t uid, const void *owner, int fd,
                            uint64_t *handle)
{
    waiting fresh = {.uid = uid, .owner = owner, .fd = fd};
    hth_err err = HTH_OK;
    int same = 0;
    while (fresh.handle == 0) {
        if (getrandom(&fresh.handle, sizeof fresh.handle, 0) != sizeof fresh.handle) {
            return hth_fail(HTH_EIO, "the system gives no random numbers");
        }
    }
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n; i++) {
        same += d->w[i].owner == owner;
    }
    if (same >= DESCRIPTORS_EACH || d->n >= DESCRIPTORS_ALL || !hth_accept_take(HTH_ACCEPT_LOCAL)) {
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
            close(d->w[i].fd);
            waiting_remove(d, i);
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
            waiting_remove(d, i);
            found = true;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return found ? HTH_OK
                 : hth_fail(HTH_ENOENT, "no descriptor of yours was passed under this handle");
}
