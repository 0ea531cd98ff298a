// SPDX-License-Identifier: Apache-2.0
// What goes out. Whoever brings a small reply sends it at once, which saves the loop's thread from
// being woken; the loop sends what the socket did not take then, what is large, and all of TLS.
#include "server/rpc/rpc_impl.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

#define OUT_PARTS 16                  // of one system call
#define OUT_NOW   (64u << 10)         // largest reply that another thread sends
#define OUT_TURN  ((size_t)512 << 10) // sent in one go, so that others get theirs

size_t hth_rpc_head(const hth_rpc_conn *c, uint64_t bytes, uint8_t *head)
{
    size_t n = 0;
    if (c->local) {
        head[n++] = 1;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        head[n++] = (uint8_t)(bytes >> shift);
    }
    return n;
}

static size_t out_bytes(const hth_rpc_out *o)
{
    return o->n_head + (o->msg != NULL ? nng_msg_len(o->msg) : 0);
}

static void out_free(hth_rpc_conn *c, hth_rpc_out *o)
{
    if (o->charged > 0) {
        hth_allowance_give(c->allowance, o->charged);
    }
    if (o->msg != NULL) {
        nng_msg_free(o->msg);
    }
    hth_free(o);
}

hth_rpc_out *hth_rpc_out_new(hth_rpc_conn *c, const void *head, size_t n_head, nng_msg *msg)
{
    hth_rpc_out *o = hth_alloc(sizeof *o);
    if (o != NULL) {
        o->next = NULL;
        o->msg = msg;
        o->n_head = n_head;
        o->sent = 0;
        o->charged = 0;
        memcpy(o->head, head, n_head);
    }
    return o;
}

// out_parts gathers what the list begins with.
static int out_parts(const hth_rpc_conn *c, struct iovec *v)
{
    int n = 0;
    for (hth_rpc_out *o = c->out; o != NULL && n + 2 <= OUT_PARTS; o = o->next) {
        size_t in_msg = o->sent > o->n_head ? o->sent - o->n_head : 0;
        if (o->sent < o->n_head) {
            v[n++] = (struct iovec){o->head + o->sent, o->n_head - o->sent};
        }
        if (o->msg != NULL && nng_msg_len(o->msg) > in_msg) {
            v[n++] = (struct iovec){(uint8_t *)nng_msg_body(o->msg) + in_msg,
                                    nng_msg_len(o->msg) - in_msg};
        }
    }
    return n;
}

// out_sent takes n bytes off the list.
static void out_sent(hth_rpc_conn *c, size_t n)
{
    atomic_fetch_sub(&c->out_bytes, n);
    while (c->out != NULL) {
        hth_rpc_out *o = c->out;
        size_t left = out_bytes(o) - o->sent;
        if (n < left) {
            o->sent += n;
            return;
        }
        n -= left;
        c->out = o->next;
        c->last_out = c->out != NULL ? c->last_out : &c->out;
        out_free(c, o);
    }
}

// out_send sends until the socket takes no more, or `most` bytes have gone. Under the lock.
static void out_send(hth_rpc_conn *c, size_t most)
{
    struct iovec v[OUT_PARTS];
    while (c->out != NULL && most > 0 && !c->broken) {
        ssize_t n = hth_rpc_io_write(c, v, out_parts(c, v));
        if (n < 0) {
            c->broken = n != HTH_RPC_AGAIN;
            break;
        }
        out_sent(c, (size_t)n);
        most -= (size_t)n < most ? (size_t)n : most;
        if (c->out_late_ns != 0) {
            hth_rpc_moved(&c->out_late_ns, (uint64_t)n, hth_now_ns());
        }
    }
    if (c->out == NULL) {
        c->out_late_ns = 0;
    } else if (c->out_late_ns == 0) {
        hth_rpc_moved(&c->out_late_ns, 0, hth_now_ns());
    }
}

void hth_rpc_out_add(hth_rpc_conn *c, hth_rpc_out *o, bool soon)
{
    bool on_loop = hth_rpc_on_loop(c->r), left = false;
    size_t bytes = out_bytes(o);
    pthread_mutex_lock(&c->lock);
    if (c->gone) {
        out_free(c, o);
    } else {
        *c->last_out = o;
        c->last_out = &o->next;
        atomic_fetch_add(&c->out_bytes, bytes);
        if (soon && c->out == o && c->ssl == NULL && (on_loop || bytes <= OUT_NOW)) {
            out_send(c, OUT_TURN);
        }
        left = c->out != NULL || c->broken;
    }
    pthread_mutex_unlock(&c->lock);
    if (left && !on_loop) {
        hth_rpc_touch(c);
    }
}

void hth_rpc_out_fail(hth_rpc_conn *c)
{
    pthread_mutex_lock(&c->lock);
    c->broken = true;
    bool gone = c->gone;
    pthread_mutex_unlock(&c->lock);
    if (!gone) {
        hth_rpc_touch(c);
    }
}

void hth_rpc_out_flush(hth_rpc_conn *c)
{
    pthread_mutex_lock(&c->lock);
    if (!c->gone) {
        out_send(c, OUT_TURN);
    }
    bool left = c->out != NULL && !c->broken;
    c->dead = c->dead || c->broken;
    pthread_mutex_unlock(&c->lock);
    if (left) {
        event_add(c->write, NULL);
    }
}

void hth_rpc_out_drop(hth_rpc_conn *c)
{
    while (c->out != NULL) {
        hth_rpc_out *o = c->out;
        c->out = o->next;
        out_free(c, o);
    }
    c->last_out = &c->out;
    atomic_store(&c->out_bytes, 0);
    c->out_late_ns = 0;
}
