// SPDX-License-Identifier: Apache-2.0
// A connection's socket: read into its bufferevent's input, written from its output.
//
// A socket's own bufferevent asks how much there is before each read, takes at most 4 KiB, and has
// the kernel watch the socket anew for each request, because evhttp reads no further while it
// answers one. Here the socket is watched for as long as the connection lasts, and is read and
// written by the events of this file; the bufferevent is left without a socket, and evhttp is told
// what came and what has gone. TLS does its own reading and writing.
#include "server/http/http_call.h"

#include <event2/bufferevent.h>

#include <errno.h>
#include <sys/socket.h>

// More than the scratch holds is read in such pieces, at most so many a turn of the loop.
#define IO_READ  (256 << 10)
#define IO_READS 4

static bool io_again(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// ---- reading

// io_more reads what did not fit into the scratch. What goes wrong is found by the next read.
static void io_more(const hth_http_conn *c, struct evbuffer *in)
{
    ssize_t n = IO_READ;
    for (int i = 0; i < IO_READS && n == IO_READ; i++) {
        struct evbuffer_iovec v;
        if (evbuffer_reserve_space(in, IO_READ, &v, 1) != 1) {
            return;
        }
        n = recv(c->fd, v.iov_base, IO_READ, MSG_DONTWAIT);
        if (n > 0) {
            v.iov_len = (size_t)n;
            evbuffer_commit_space(in, &v, 1);
        }
    }
}

// io_read takes what has come; it returns what recv does.
static ssize_t io_read(hth_http_conn *c, struct evbuffer *in)
{
    char *scratch = c->h->scratch;
    if (c->told && c->refused_ns == 0) {
        return 0; // it was given its end: what it has sent is not asked any more
    }
    if (c->block != NULL && c->block->come < c->block->bytes) {
        return hth_http_block_read(c);
    }
    ssize_t n = recv(c->fd, scratch, HTH_HTTP_SCRATCH, MSG_DONTWAIT);
    if (n <= 0) {
        return n;
    }
    if (hth_http_health(c, scratch, (size_t)n)) {
        return n;
    }
    c->due = 0; // of what was looked at before
    if (evbuffer_add(in, scratch, (size_t)n) != 0) {
        errno = ENOMEM;
        return -1;
    }
    if (c->due > 0) {
        hth_http_block_begin(c);
    }
    if (n == HTH_HTTP_SCRATCH && c->block != NULL) {
        (void)hth_http_block_read(c); // what goes wrong is found by the next read
    } else if (n == HTH_HTTP_SCRATCH) {
        io_more(c, in);
    }
    return n;
}

// io_restart has http.idle_seconds begin anew, unless they began in this tick.
static void io_restart(hth_http_conn *c)
{
    struct timeval now;
    event_base_gettimeofday_cached(c->h->base, &now);
    uint64_t tick = ((uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_usec) / HTH_HTTP_TICK_US;
    if (c->tick != tick) {
        c->tick = tick;
        bufferevent_enable(c->b, EV_READ);
    }
}

static void io_readable(evutil_socket_t fd, short what, void *conn)
{
    hth_http_conn *c = conn;
    struct bufferevent *b = c->b;
    struct evbuffer *in = bufferevent_get_input(b);
    if ((bufferevent_get_enabled(b) & EV_READ) == 0) { // evhttp answers, and takes nothing
        event_del(c->readable);
        c->paused = true;
        return;
    }
    ssize_t n = io_read(c, in);
    if (n > 0) {
        io_restart(c);
        if (evbuffer_get_length(in) > 0) {
            bufferevent_trigger(b, EV_READ, 0);
        }
    } else if (n == 0 || !io_again()) {
        bufferevent_disable(b, EV_READ);
        bufferevent_trigger_event(
            b, (short)(BEV_EVENT_READING | (n == 0 ? BEV_EVENT_EOF : BEV_EVENT_ERROR)), 0);
    } // c may be gone
}

void hth_http_io_resume(hth_http_conn *c)
{
    if (c->paused) {
        c->paused = false;
        event_add(c->readable, NULL);
    }
}

// ---- writing

static void io_writable(evutil_socket_t fd, short what, void *conn)
{
    hth_http_conn *c = conn;
    struct bufferevent *b = c->b;
    struct evbuffer *out = bufferevent_get_output(b);
    if (evbuffer_get_length(out) == 0) { // sent meanwhile, and evhttp was told
        event_del(c->writable);
        return;
    }
    int n = evbuffer_write_atmost(out, fd, HTH_HTTP_WRITE);
    if (n < 0 && !io_again()) {
        event_del(c->writable);
        bufferevent_trigger_event(b, BEV_EVENT_WRITING | BEV_EVENT_ERROR, 0);
    } else if (evbuffer_get_length(out) == 0) {
        event_del(c->writable);
        bufferevent_trigger(b, EV_WRITE, 0);
    } else if (n > 0 && (bufferevent_get_enabled(b) & EV_WRITE) != 0) {
        bufferevent_enable(b, EV_WRITE); // http.idle_seconds begin anew
    }
}

void hth_http_io_later(const hth_http_conn *c)
{
    if (c->writable != NULL && evbuffer_get_length(bufferevent_get_output(c->b)) > 0) {
        event_add(c->writable, NULL);
    }
}

void hth_http_io_write(const hth_http_conn *c)
{
    struct evbuffer *out = bufferevent_get_output(c->b);
    if (c->writable == NULL) {
        return;
    }
    (void)evbuffer_write_atmost(out, c->fd, HTH_HTTP_WRITE); // what is wrong is found again
    if (evbuffer_get_length(out) == 0) {
        event_del(c->writable);
        bufferevent_trigger(c->b, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
    } else {
        event_add(c->writable, NULL);
        bufferevent_enable(c->b, EV_WRITE); // http.idle_seconds begin
    }
}

// ---- from accept to close

bool hth_http_io_open(hth_http_conn *c)
{
    c->fd = bufferevent_getfd(c->b);
    if (c->tls) {
        return true;
    }
    struct event_base *base = c->h->base;
    c->readable = event_new(base, c->fd, EV_READ | EV_PERSIST, io_readable, c);
    c->writable = event_new(base, c->fd, EV_WRITE | EV_PERSIST, io_writable, c);
    if (c->readable == NULL || c->writable == NULL || bufferevent_setfd(c->b, -1) != 0) {
        return false;
    }
    bufferevent_enable(c->b, EV_READ); // of it, the time that evhttp waits is left
    return event_add(c->readable, NULL) == 0;
}

void hth_http_io_close(hth_http_conn *c)
{
    if (c->readable != NULL) {
        event_free(c->readable);
    }
    if (c->writable != NULL) {
        event_free(c->writable);
    }
    c->readable = c->writable = NULL;
}
