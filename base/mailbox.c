// SPDX-License-Identifier: Apache-2.0
// A ring under one mutex. The count is also atomic so that the spinning receiver reads no lock; a
// sender signals only when the receiver says (under the mutex) that it sleeps, so a busy receiver
// costs a sender no system call. A lock-free ring would save some 50 ns of the microseconds that a
// request takes, and could not be bounded and stopped as simply.
//
// Invariants, under the lock: n <= capacity; the messages are ring[(head + i) % capacity] for i <
// n; after `stopped` n never grows.
#include "base/mailbox.h"

#include "base/alloc.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

struct hth_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    size_t capacity, head;
    _Atomic size_t n;
    atomic_bool stopped, woken;
    bool sleeping;
    uint64_t spin_ns;
    _Atomic(const hth_poll_hook *) watch;
    void **ring;
};

hth_err hth_mailbox_open(size_t capacity, uint64_t spin_ns, hth_mailbox **out)
{
    *out = NULL;
    if (capacity == 0) {
        return hth_fail(HTH_EINVAL, "a mailbox needs room for one message");
    }
    hth_mailbox *m = hth_calloc(1, sizeof *m);
    void **ring = hth_calloc(capacity, sizeof *ring);
    if (m == NULL || ring == NULL) {
        hth_free(m);
        hth_free(ring);
        return hth_no_memory("a queue of %zu messages", capacity);
    }
    m->ring = ring;
    m->capacity = capacity;
    m->spin_ns = spin_ns;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->wake, &attr);
    pthread_condattr_destroy(&attr);
    *out = m;
    return HTH_OK;
}

void hth_mailbox_close(hth_mailbox *mailbox)
{
    if (mailbox != NULL) {
        pthread_cond_destroy(&mailbox->wake);
        pthread_mutex_destroy(&mailbox->lock);
        hth_free(mailbox->ring);
        hth_free(mailbox);
    }
}

hth_err hth_mailbox_send(hth_mailbox *mailbox, void *message)
{
    hth_err err = HTH_OK;
    pthread_mutex_lock(&mailbox->lock);
    size_t n = atomic_load_explicit(&mailbox->n, memory_order_relaxed);
    if (atomic_load(&mailbox->stopped)) {
        err = HTH_ECANCELED;
    } else if (n == mailbox->capacity) {
        err = HTH_EBUSY;
    } else {
        mailbox->ring[(mailbox->head + n) % mailbox->capacity] = message;
        atomic_store_explicit(&mailbox->n, n + 1, memory_order_release);
    }
    bool wake = err == HTH_OK && mailbox->sleeping;
    pthread_mutex_unlock(&mailbox->lock);
    if (wake) {
        pthread_cond_signal(&mailbox->wake);
    }
    switch (err) {
    case HTH_ECANCELED:
        return hth_fail(err, "the receiver is stopping");
    case HTH_EBUSY:
        return hth_fail(err, "the queue is full: %zu requests wait", mailbox->capacity);
    default:
        return err;
    }
}

static bool mailbox_empty(const hth_mailbox *mailbox)
{
    return atomic_load_explicit(&mailbox->n, memory_order_acquire) == 0 && !mailbox->stopped &&
           !mailbox->woken;
}

// mailbox_idle looks everywhere.
static bool mailbox_idle(void *ctx)
{
    hth_mailbox *m = ctx;
    const hth_poll_hook *w = m->watch;
    if (mailbox_empty(m) && w != NULL) {
        (void)w->poll(w->ctx);
    }
    return mailbox_empty(m);
}

// mailbox_sleep waits under the lock until something is there or `until_ns`.
static void mailbox_sleep(hth_mailbox *mailbox, uint64_t until_ns)
{
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    int rc = 0;
    mailbox->sleeping = true;
    while (mailbox_empty(mailbox) && rc != ETIMEDOUT) {
        rc = until_ns == HTH_FOREVER ? pthread_cond_wait(&mailbox->wake, &mailbox->lock)
                                     : pthread_cond_timedwait(&mailbox->wake, &mailbox->lock, &t);
    }
    mailbox->sleeping = false;
}

hth_err hth_mailbox_receive(hth_mailbox *mailbox, uint64_t timeout_ns, void **out)
{
    if (mailbox_idle(mailbox) && timeout_ns > 0) {
        uint64_t until = hth_real_after(timeout_ns), looking = hth_real_after(mailbox->spin_ns);
        hth_spin(mailbox_idle, mailbox, looking < until ? looking : until);
        const hth_poll_hook *w = mailbox->watch;
        if (w != NULL && mailbox_empty(mailbox)) {
            w->leave(w->ctx);
        }
        pthread_mutex_lock(&mailbox->lock);
        mailbox_sleep(mailbox, until);
    } else {
        pthread_mutex_lock(&mailbox->lock);
    }
    hth_err err = HTH_OK;
    mailbox->woken = false;
    if (mailbox->n > 0) {
        *out = mailbox->ring[mailbox->head];
        mailbox->head = (mailbox->head + 1) % mailbox->capacity;
        assert(mailbox->n > 0);
        mailbox->n--;
    } else {
        *out = NULL;
        err = mailbox->stopped ? HTH_ECANCELED : HTH_ETIMEDOUT;
    }
    pthread_mutex_unlock(&mailbox->lock);
    return err;
}

void hth_mailbox_wake(hth_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    mailbox->woken = true;
    pthread_mutex_unlock(&mailbox->lock);
    pthread_cond_signal(&mailbox->wake);
}

void hth_mailbox_stop(hth_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    mailbox->stopped = true;
    pthread_mutex_unlock(&mailbox->lock);
    pthread_cond_signal(&mailbox->wake);
}

void hth_mailbox_set_poll(hth_mailbox *mailbox, const hth_poll_hook *hook)
{
    mailbox->watch = hook;
}

size_t hth_mailbox_count(hth_mailbox *mailbox)
{
    (void)mailbox_idle(mailbox);
    return atomic_load_explicit(&mailbox->n, memory_order_relaxed);
}
