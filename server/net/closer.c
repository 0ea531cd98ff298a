// SPDX-License-Identifier: Apache-2.0
// A list of users that have something to close, each with a queue and a detached thread. A user
// whose queue is empty is forgotten by his thread, which ends. Without memory or threads the caller
// closes: that may block, but loses nothing.
#include "server/net/closer.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "server/net/accept_guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLOSER_STUCK 64 // descriptors of a user that wait, from which on no more are taken

typedef struct closing {
    struct closing *next;
    int fd;
    bool counted;
} closing;

typedef struct closer_user {
    struct closer_user *next;
    uint64_t uid;
    closing *first, **last;
    int n;
} closer_user;

static pthread_mutex_t closer_lock = PTHREAD_MUTEX_INITIALIZER; // guards what follows
static closer_user *closer_users;
static atomic_int closer_n; // of all users; changed under the lock

static void closer_end(int fd, bool counted)
{
    close(fd);
    if (counted) {
        hth_accept_give(HTH_ACCEPT_LOCAL);
    }
}

static closer_user *closer_find(uint64_t uid)
{
    closer_user *u = closer_users;
    while (u != NULL && u->uid != uid) {
        u = u->next;
    }
    return u;
}

static void closer_forget(closer_user *user)
{
    closer_user **at = &closer_users;
    while (*at != user) {
        at = &(*at)->next;
    }
    *at = user->next;
    hth_free(user);
}

static void closer_main(void *arg)
{
    closer_user *u = arg;
    pthread_mutex_lock(&closer_lock);
    while (u->first != NULL) {
        closing *c = u->first;
        pthread_mutex_unlock(&closer_lock);
        closer_end(c->fd, c->counted);
        pthread_mutex_lock(&closer_lock);
        u->first = c->next;
        u->last = u->first != NULL ? u->last : &u->first;
        u->n--;
        atomic_fetch_sub(&closer_n, 1);
        hth_free(c);
    }
    closer_forget(u);
    pthread_mutex_unlock(&closer_lock);
}

// closer_start makes a user's row and thread; NULL: there is none. Under the lock, for which the
// thread waits.
static closer_user *closer_start(uint64_t uid)
{
    pthread_t thread;
    closer_user *u = hth_calloc(1, sizeof *u);
    if (u == NULL) {
        return NULL;
    }
    u->uid = uid;
    u->last = &u->first;
    if (hth_thread_start("hth-closer", closer_main, u, &thread) != HTH_OK) {
        hth_free(u);
        return NULL;
    }
    pthread_detach(thread);
    u->next = closer_users;
    closer_users = u;
    return u;
}

void hth_closer_close(uint64_t uid, int fd, bool counted)
{
    if (uid == 0 || uid == geteuid()) {
        closer_end(fd, counted);
        return;
    }
    closing *c = hth_alloc(sizeof *c);
    pthread_mutex_lock(&closer_lock);
    closer_user *u = c != NULL ? closer_find(uid) : NULL;
    u = c != NULL && u == NULL ? closer_start(uid) : u;
    if (u != NULL) {
        *c = (closing){.fd = fd, .counted = counted};
        *u->last = c;
        u->last = &c->next;
        u->n++;
        atomic_fetch_add(&closer_n, 1);
    }
    pthread_mutex_unlock(&closer_lock);
    if (u == NULL) {
        hth_free(c);
        closer_end(fd, counted);
    }
}

// After the shutdown nothing more can come, and a descriptor never comes without a byte.
void hth_closer_socket(uint64_t uid, int fd, bool counted)
{
    int unread = 1;
    shutdown(fd, SHUT_RDWR);
    if (ioctl(fd, FIONREAD, &unread) == 0 && unread == 0) {
        closer_end(fd, counted);
    } else {
        hth_closer_close(uid, fd, counted);
    }
}

bool hth_closer_stuck(uint64_t uid)
{
    if (atomic_load(&closer_n) < CLOSER_STUCK) {
        return false;
    }
    pthread_mutex_lock(&closer_lock);
    const closer_user *u = closer_find(uid);
    bool stuck = u != NULL && u->n >= CLOSER_STUCK;
    pthread_mutex_unlock(&closer_lock);
    return stuck;
}
