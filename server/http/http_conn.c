// SPDX-License-Identifier: Apache-2.0
// A connection's requests, one after the other:
//
//     HEAD -> BODY -> WHOLE -> WORK -> ANSWER -> HEAD    the next request may have come already
//       |      |                         |-----> END     the connection is closed
//       '------'----------------> ANSWER ------> LINGER  refused: what still comes is dropped
//
// What has come goes through conn_feed, whatever pieces it comes in; what comes after a request
// waits in c->rest, and is at most one piece. Who may not send a large body is told so before it
// costs memory: the request is judged when its head is there if the body is large, comes in chunks
// or waits for "100 Continue", and otherwise when it is whole. A connection that is closed over
// unread bytes takes its last answer with it; therefore LINGER.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/net/account.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// A body up to this size may come before its request is judged.
#define CONN_BODY_BYTES (64 << 10)
// Empty lines that may come before a request line: old clients send one after a body.
#define CONN_EMPTY_LINES 4
// What is read at once to where it stays; bytes and requests that are taken in one turn of the
// loop.
#define CONN_READ     (256 << 10)
#define CONN_TURN     (1 << 20)
#define CONN_REQUESTS 16
// Of a head's text, what a connection keeps for the next one.
#define CONN_TEXT_BYTES 1024
// Lines of a trailer that a body in chunks may have.
#define CONN_TRAILERS 64

#define CONN_LONG  "the request line and the headers exceed the server's limit"
#define CONN_LARGE "the request exceeds the maximum allowed input size of the server"
#define CONN_HOLDS "the server holds too much for its clients: try again"

// ---- refusing

static bool refusal(hth_http_refusal *no, int status, const char *sentence)
{
    *no = (hth_http_refusal){.status = status};
    snprintf(no->sentence, sizeof no->sentence, "%s", sentence);
    return false;
}

static void conn_fail(hth_http_conn *c, const hth_http_refusal *no)
{
    if (no->allow != NULL) {
        hth_http_add(&c->req, "Allow", no->allow);
    }
    if (no->challenge) {
        hth_http_add(&c->req, "WWW-Authenticate", HTH_HTTP_CHALLENGE);
    }
    hth_http_fail(c->h, &c->req, no->status, "%s", no->sentence);
}

static void conn_drop_body(hth_http_conn *c)
{
    evbuffer_drain(c->req.body, evbuffer_get_length(c->req.body));
    hth_http_block_rele(c->block);
    c->block = NULL;
}

static void conn_refuse(hth_http_conn *c, const hth_http_refusal *no)
{
    hth_log(INFO, SERVER, "http-refused", "status=%d %s", no->status, no->sentence);
    conn_drop_body(c);
    c->refused = true;
    c->req.head.keep = false;
    c->at = HTH_HTTP_AT_WORK;
    c->since_ns = 0;
    conn_fail(c, no);
}

void hth_http_conn_refuse(hth_http_conn *conn, int status, const char *sentence)
{
    hth_http_refusal no;
    refusal(&no, status, sentence);
    conn_refuse(conn, &no);
}

void hth_http_conn_reset(hth_http_conn *conn)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    hth_http_conn_free(conn);
}

// ---- judging

// judge_size looks at what the body would cost. false: refused. Nothing that is got reads a body:
// a small one does no harm.
static bool judge_size(const hth_http *h, const hth_http_head *d, hth_http_refusal *no)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
    uint64_t held = hth_account_bytes();
    if (d->verb == HTH_VERB_GET && (d->chunked || d->length > CONN_BODY_BYTES)) {
        return refusal(no, 413, "a GET has no body of this size, and none in chunks");
    }
    if (d->length > h->message_bytes) {
        return refusal(no, 413, CONN_LARGE);
    }
    return d->length <= CONN_BODY_BYTES || (held <= most && d->length <= most - held) ||
           refusal(no, 503, CONN_HOLDS);
}

// conn_judge tells whether the request may go on, once; false: why not is in *no.
static bool conn_judge(hth_http_conn *c, hth_http_refusal *no)
{
    hth_http_req *req = &c->req;
    hth_need need = HTH_NEED_ANY;
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_URL_BYTES);
    c->judged = true;
    if (req->head.target_bytes > most) {
        *no = (hth_http_refusal){.status = 414};
        snprintf(no->sentence, sizeof no->sentence,
                 "the URL exceeds the server's limit of %llu bytes", (unsigned long long)most);
        return false;
    }
    if (!c->listener->metrics) {
        if (!hth_http_route_find(c->h, req, no)) {
            return false;
        }
        need = req->need;
    }
    return hth_http_may(c->h, req, need, no) && judge_size(c->h, &req->head, no);
}

// conn_stops answers that the server stops, if it does.
static bool conn_stops(hth_http_conn *c)
{
    if (c->listener->metrics || !atomic_load(&c->h->stopping)) {
        return false;
    }
    c->h->n_refused++;
    c->req.head.keep = false;
    hth_http_fail(c->h, &c->req, 503, "Server exiting");
    return true;
}

// conn_whole has a request served that is there, and has `ahead` bytes after it.
static void conn_whole(hth_http_conn *c, size_t ahead)
{
    hth_http *h = c->h;
    hth_http_refusal no;
    assert(c->at == HTH_HTTP_AT_WHOLE);
    c->ahead = ahead;
    h->received_ns = c->since_ns;
    c->since_ns = 0;
    c->at = HTH_HTTP_AT_WORK;
    if (conn_stops(c)) {
        return;
    }
    if (hth_account_full()) {
        hth_http_fail(h, &c->req, 503, CONN_HOLDS);
    } else if (!c->judged && !conn_judge(c, &no)) {
        conn_fail(c, &no);
    } else if (c->listener->metrics) {
        hth_http_metrics(h, &c->req);
    } else if (c->req.head.content_encoding == NULL || hth_http_inflate(h, &c->req)) {
        hth_http_route_on(h, &c->req);
    }
}

// ---- heads

// head_begin looks at a head that was read, before its body.
static void head_begin(hth_http_conn *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const hth_http_head *d = &c->req.head;
    hth_http_refusal no;
    bool costly = d->chunked || d->length > CONN_BODY_BYTES || d->expect != HTH_EXPECT_NOTHING;
    if (d->coded) {
        refusal(&no, 501, "the only transfer coding here is chunked");
    } else if (d->verb == HTH_VERB_UNKNOWN) {
        refusal(&no, 405, hth_http_phrase(405));
        no.allow = HTH_HTTP_ALLOW_ALL;
    } else if (costly && !c->listener->metrics && atomic_load(&c->h->stopping)) {
        c->refused = true;
        c->at = HTH_HTTP_AT_WORK;
        (void)conn_stops(c);
        return;
    } else if (costly && !conn_judge(c, &no)) {
        // refused below
    } else if (d->expect == HTH_EXPECT_OTHER) {
        refusal(&no, 417, hth_http_phrase(417));
    } else if (d->length > c->h->message_bytes) {
        refusal(&no, 413, CONN_LARGE);
    } else {
        if (d->expect == HTH_EXPECT_CONTINUE && (d->chunked || d->length > 0) &&
            (evbuffer_add(c->out, go_on, sizeof go_on - 1) != 0 || !hth_http_io_write(c))) {
            c->at = HTH_HTTP_AT_END;
            return;
        }
        c->left = d->length;
        c->chunks = (hth_chunks){.at = HTH_CHUNKS_FIRST};
        c->lines = 0;
        c->at = d->chunked || c->left > 0 ? HTH_HTTP_AT_BODY : HTH_HTTP_AT_WHOLE;
        if (d->length > CONN_BODY_BYTES && d->verb == HTH_VERB_POST) {
            hth_http_block_begin(c);
        }
        return;
    }
    conn_refuse(c, &no);
}

// head_reserve has room for `n` bytes of text, and one more.
static bool head_reserve(hth_http_conn *c, size_t n)
{
    size_t capacity = c->text_capacity > 0 ? c->text_capacity : CONN_TEXT_BYTES;
    while (capacity < n + 1) {
        capacity *= 2;
    }
    char *text = capacity > c->text_capacity ? hth_realloc(c->text, capacity, 1) : c->text;
    if (text == NULL) {
        return false;
    }
    c->text = text;
    c->text_capacity = capacity > c->text_capacity ? capacity : c->text_capacity;
    return true;
}

// head_uncount forgets the last `n` bytes that came: they say nothing. A connection on which
// nothing else came waits for a request again.
static void head_uncount(hth_http_conn *c, size_t n)
{
    c->skipped++;
    c->bytes -= n;
    hth_account_give(n);
    c->since_ns = c->bytes == 0 ? 0 : c->since_ns;
}

// empty_line counts the bytes of an empty line that `n` bytes begin with, if it may be there.
static size_t empty_line(const hth_http_conn *c, const char *p, size_t n)
{
    if (c->skipped >= CONN_EMPTY_LINES) {
        return 0;
    }
    if (p[0] == '\n') {
        return 1;
    }
    return n > 1 && p[0] == '\r' && p[1] == '\n' ? 2 : 0;
}

// feed_head takes what belongs to the head, and returns how many bytes it took.
static size_t feed_head(hth_http_conn *c, const char *p, size_t n)
{
    size_t most = c->h->header_bytes, before = c->text_bytes, end = 0, some = n;
    size_t empty = before == 0 ? empty_line(c, p, n) : 0;
    if (empty > 0) {
        head_uncount(c, empty);
        return empty;
    }
    if (before == 0) {
        c->req.head = (hth_http_head){.verb = HTH_VERB_UNKNOWN, .minor = 1, .path = ""};
        c->seen = 0;
        end = hth_http_head_end(p, n, &c->seen);
        some = end > 0 ? end : n;
    }
    some = some < most + 1 - before ? some : most + 1 - before;
    if (!head_reserve(c, before + some)) {
        hth_http_conn_refuse(c, 503, "out of memory for a request");
        return n;
    }
    memcpy(c->text + before, p, some);
    c->text_bytes += some;
    if (before == 1 && c->text[0] == '\r' && empty_line(c, c->text, c->text_bytes) == 2) {
        head_uncount(c, 2); // an empty line in two pieces
        c->text_bytes = 0;
        return 1;
    }
    end = end > 0 ? end : hth_http_head_end(c->text, c->text_bytes, &c->seen);
    if (c->text_bytes > most && (end == 0 || end > most)) {
        hth_http_conn_refuse(c, 431, CONN_LONG);
        return some;
    }
    if (end == 0) {
        return some;
    }
    c->text_bytes = end;
    const char *wrong = hth_http_head_read(c->text, end, &c->req.head);
    if (wrong != NULL) {
        hth_http_conn_refuse(c, 400, wrong);
    } else {
        head_begin(c);
    }
    return end - before;
}

// ---- bodies

static void body_failed(hth_http_conn *c)
{
    hth_http_conn_refuse(c, 503, "out of memory for a body");
}

// body_took counts `n` bytes that are where they stay.
static void body_took(hth_http_conn *c, size_t n)
{
    assert(c->at == HTH_HTTP_AT_BODY && n <= c->left);
    c->left -= n;
    if (c->block != NULL) {
        c->block->come += n;
    }
    if (c->left > 0) {
        return;
    }
    c->at = HTH_HTTP_AT_WHOLE;
    if (c->block != NULL && !hth_http_block_give(c)) {
        body_failed(c);
    }
}

static size_t feed_sized(hth_http_conn *c, const char *p, size_t n)
{
    size_t some = n < c->left ? n : (size_t)c->left;
    if (c->block != NULL) {
        memcpy(c->block->body + c->block->come, p, some);
    } else if (evbuffer_add(c->req.body, p, some) != 0) {
        body_failed(c);
        return n;
    }
    body_took(c, some);
    return some;
}

// chunks_wrong says what is wrong with a body in chunks although it is well-formed.
static const char *chunks_wrong(const hth_http_conn *c)
{
    uint64_t chunks = (uint64_t)hth_setting_int(HTH_SET_HTTP_CHUNKS);
    uint64_t come = evbuffer_get_length(c->req.body);
    if (c->lines > 2 * chunks + CONN_TRAILERS) {
        return "the request comes in too many chunks";
    }
    bool large = c->chunks.at == HTH_CHUNKS_DATA && c->chunks.left > c->h->message_bytes - come;
    return large ? CONN_LARGE : NULL;
}

// chunks_go_on looks at a body in chunks after some more of it.
static void chunks_go_on(hth_http_conn *c, const char *wrong)
{
    const char *large = chunks_wrong(c);
    if (wrong != NULL) {
        hth_http_conn_refuse(c, 400, wrong);
    } else if (large != NULL) {
        hth_http_conn_refuse(c, 413, large);
    } else if (c->chunks.at == HTH_CHUNKS_NONE) {
        c->at = HTH_HTTP_AT_WHOLE;
    }
}

static size_t feed_chunks(hth_http_conn *c, char *p, size_t n)
{
    size_t used = 0;
    while (used < n && c->at == HTH_HTTP_AT_BODY) {
        bool data = c->chunks.at == HTH_CHUNKS_DATA;
        size_t some = 1;
        if (data) {
            some = n - used < c->chunks.left ? n - used : (size_t)c->chunks.left;
        }
        if (data && evbuffer_add(c->req.body, p + used, some) != 0) {
            body_failed(c);
            return n;
        }
        c->lines += !data && p[used] == '\n';
        chunks_go_on(c, hth_chunks_take(&c->chunks, p + used, some));
        used += some;
    }
    return used;
}

// ---- what comes

// conn_feed takes what it can of `n` bytes, and returns how many: the rest is for after the answer.
static size_t conn_feed(hth_http_conn *c, char *p, size_t n)
{
    size_t used = 0;
    for (int requests = 0; used < n && requests < CONN_REQUESTS;) {
        if (c->at == HTH_HTTP_AT_HEAD) {
            used += feed_head(c, p + used, n - used);
            requests += c->at != HTH_HTTP_AT_HEAD || c->text_bytes == 0;
        } else if (c->at == HTH_HTTP_AT_BODY && c->req.head.chunked) {
            used += feed_chunks(c, p + used, n - used);
        } else if (c->at == HTH_HTTP_AT_BODY) {
            used += feed_sized(c, p + used, n - used);
        } else if (c->at == HTH_HTTP_AT_LINGER) {
            c->dropped += n - used;
            used = n;
        } else {
            break;
        }
        if (c->at == HTH_HTTP_AT_WHOLE) {
            conn_whole(c, n - used);
        }
    }
    return used;
}

// conn_feed_remainder feeds what came after the last request.
static void conn_feed_remainder(hth_http_conn *c)
{
    c->rest_at += conn_feed(c, c->rest + c->rest_at, c->rest_bytes - c->rest_at);
    if (c->rest_at == c->rest_bytes) {
        hth_free(c->rest);
        c->rest = NULL;
        c->rest_at = c->rest_bytes = 0;
    }
}

// conn_keep keeps `n` bytes for after the answer.
static void conn_keep(hth_http_conn *c, const char *p, size_t n)
{
    c->rest = n > 0 ? hth_memdup(p, n) : NULL;
    c->rest_bytes = c->rest != NULL ? n : 0;
    if (n > 0 && c->rest == NULL) { // what is at work is answered, and no other request is
        c->req.head.keep = false;
        c->at = c->at == HTH_HTTP_AT_HEAD ? HTH_HTTP_AT_END : c->at;
    }
}

// direct_bytes is how much of the body may be read to where it stays.
static uint64_t direct_bytes(const hth_http_conn *c)
{
    if (c->at != HTH_HTTP_AT_BODY) {
        return 0;
    }
    if (!c->req.head.chunked) {
        return c->left;
    }
    return c->chunks.at == HTH_CHUNKS_DATA ? c->chunks.left : 0;
}

// read_direct reads at most `most` bytes of the body to where it stays; *asked: it could have been
// so many.
static ssize_t read_direct(hth_http_conn *c, uint64_t most, size_t *asked)
{
    struct evbuffer_iovec v = {NULL, 0};
    struct evbuffer *body = c->req.body;
    *asked = most < CONN_READ ? (size_t)most : CONN_READ;
    if (c->block != NULL) {
        *asked = (size_t)most;
        v.iov_base = c->block->body + c->block->come;
    } else if (evbuffer_reserve_space(body, (ev_ssize_t)*asked, &v, 1) != 1) {
        return 0;
    }
    ssize_t n = hth_http_io_read(c, v.iov_base, *asked);
    if (n <= 0) {
        return n;
    }
    v.iov_len = (size_t)n;
    if (c->block == NULL && evbuffer_commit_space(body, &v, 1) != 0) {
        return 0;
    }
    hth_http_io_came(c, (size_t)n);
    if (c->at != HTH_HTTP_AT_BODY) { // it was refused: too much is held
        c->dropped = (uint64_t)n;
    } else if (c->req.head.chunked) {
        chunks_go_on(c, hth_chunks_take(&c->chunks, v.iov_base, (size_t)n));
    } else {
        body_took(c, (size_t)n);
    }
    if (c->at == HTH_HTTP_AT_WHOLE) {
        conn_whole(c, 0);
    }
    return n;
}

// conn_read reads once, and feeds it. It returns what hth_http_io_read does.
static ssize_t conn_read(hth_http_conn *c, bool *more)
{
    uint64_t direct = direct_bytes(c);
    size_t asked = HTH_HTTP_SCRATCH;
    ssize_t n;
    if (direct > HTH_HTTP_SCRATCH || (direct > 0 && c->block != NULL)) {
        n = read_direct(c, direct, &asked);
    } else {
        char *scratch = c->h->scratch;
        n = hth_http_io_read(c, scratch, asked);
        if (n > 0) {
            hth_http_io_came(c, (size_t)n);
            size_t used = conn_feed(c, scratch, (size_t)n);
            conn_keep(c, scratch + used, (size_t)n - used);
        }
    }
    *more = n > 0 && (c->ssl == NULL ? (size_t)n == asked
                                     : c->at == HTH_HTTP_AT_BODY || SSL_pending(c->ssl) > 0);
    return n;
}

// conn_waits tells whether there is something to do that the socket does not know of.
static bool conn_waits(const hth_http_conn *c)
{
    return c->rest != NULL || c->at == HTH_HTTP_AT_END ||
           (c->ssl != NULL && c->at != HTH_HTTP_AT_LINGER && SSL_pending(c->ssl) > 0);
}

// conn_again goes on in the next turn of the loop: who always has more keeps nobody else waiting.
static void conn_again(hth_http_conn *c)
{
    static const struct timeval now = {0};
    event_add(c->again, &now);
}

// conn_advance goes on with a connection, a bounded time. false: it has gone.
static bool conn_advance(hth_http_conn *c)
{
    bool more = true;
    for (size_t came = 0; came < CONN_TURN && more;) {
        if (c->rest != NULL && c->at != HTH_HTTP_AT_END) {
            conn_feed_remainder(c);
        }
        if (c->at == HTH_HTTP_AT_END ||
            (c->at == HTH_HTTP_AT_LINGER && c->dropped > c->h->message_bytes)) {
            c->at == HTH_HTTP_AT_END ? hth_http_conn_free(c) : hth_http_conn_reset(c);
            return false;
        }
        if (c->at == HTH_HTTP_AT_WORK || c->at == HTH_HTTP_AT_ANSWER) {
            event_del(c->readable);
            c->paused = true;
            return true;
        }
        if (c->rest != NULL) {
            break;
        }
        ssize_t n = conn_read(c, &more);
        if (n == 0) {
            hth_http_conn_free(c);
            return false;
        }
        came += n > 0 ? (size_t)n : 0;
    }
    if (conn_waits(c)) {
        conn_again(c);
    }
    return true;
}

static void conn_readable(evutil_socket_t fd, short what, void *conn)
{
    hth_http_conn *c = conn;
    c->advancing = true;
    if (conn_advance(c)) {
        c->advancing = false;
    }
}

static void conn_writable(evutil_socket_t fd, short what, void *conn)
{
    hth_http_conn *c = conn;
    bool idle = evbuffer_get_length(c->out) == 0;
    if (!hth_http_io_write(c)) {
        c->at = c->at == HTH_HTTP_AT_ANSWER ? c->at : HTH_HTTP_AT_END;
        c->req.head.keep = c->refused = false;
        evbuffer_drain(c->out, evbuffer_get_length(c->out));
    }
    if (c->at == HTH_HTTP_AT_ANSWER && evbuffer_get_length(c->out) == 0) {
        hth_http_conn_answered(c);
    } else if (idle || c->at == HTH_HTTP_AT_END) { // TLS waited for room, in a handshake
        conn_readable(fd, what, c);
    }
}

void hth_http_conn_answered(hth_http_conn *conn)
{
    size_t rest = conn->refused ? 0 : conn->ahead;
    assert(conn->at == HTH_HTTP_AT_ANSWER);
    hth_account_give(conn->bytes + conn->sending);
    hth_account_add(rest);
    conn->h->n_sending--;
    conn->bytes = rest;
    conn->sending = conn->answer_ns = 0;
    conn->since_ns = rest > 0 ? hth_now_ns() : 0;
    conn->active_ns = hth_now_ns();
    conn_drop_body(conn);
    if (conn->text_capacity > CONN_TEXT_BYTES) {
        hth_free(conn->text);
        conn->text = NULL;
        conn->text_capacity = 0;
    }
    conn->text_bytes = conn->ahead = 0;
    conn->skipped = 0;
    conn->judged = conn->inflated = false;
    conn->req.n_fields = 0;
    if (!conn->refused) {
        conn->at = conn->req.head.keep ? HTH_HTTP_AT_HEAD : HTH_HTTP_AT_END;
    }
    if (conn->refused || (conn->at == HTH_HTTP_AT_END && (rest > 0 || conn->paused))) {
        hth_http_io_finish(conn);
        conn->refused_ns = conn->active_ns;
        conn->at = HTH_HTTP_AT_LINGER;
    }
    if (conn->paused) {
        conn->paused = false;
        event_add(conn->readable, NULL);
    }
    if (!conn->advancing && conn_waits(conn)) {
        conn_again(conn);
    }
}

// ---- from accept to close

void hth_http_conn_new(hth_http_listener *listener, int fd, hth_http_address *address,
                       hth_peer peer)
{
    hth_http *h = listener->h;
    hth_http_conn *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        close(fd);
        hth_http_guard_leave(h, address);
        return;
    }
    *c = (hth_http_conn){
        .h = h, .listener = listener, .fd = fd, .address = address, .peer = peer, .next = h->conns};
    c->req.conn = c;
    c->active_ns = hth_now_ns();
    c->since_ns = listener->tls ? c->active_ns : 0; // the handshake counts
    if (h->conns != NULL) {
        h->conns->prev = c;
    }
    h->conns = c;
    c->out = evbuffer_new();
    c->req.body = evbuffer_new();
    c->readable = event_new(h->base, fd, EV_READ | EV_PERSIST, conn_readable, c);
    c->writable = event_new(h->base, fd, EV_WRITE | EV_PERSIST, conn_writable, c);
    c->again = evtimer_new(h->base, conn_readable, c);
    if (c->out == NULL || c->req.body == NULL || c->readable == NULL || c->writable == NULL ||
        c->again == NULL || (listener->tls && !hth_http_io_secure(c)) ||
        event_add(c->readable, NULL) != 0) {
        hth_http_conn_free(c);
    }
}

void hth_http_conn_free(hth_http_conn *conn)
{
    hth_http *h = conn->h;
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        h->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    h->n_sending -= conn->at == HTH_HTTP_AT_ANSWER;
    hth_account_give(conn->bytes + conn->sending);
    hth_http_guard_leave(h, conn->address);
    hth_http_io_close(conn);
    if (conn->out != NULL) {
        evbuffer_free(conn->out);
    }
    if (conn->req.body != NULL) {
        evbuffer_free(conn->req.body);
    }
    hth_http_block_rele(conn->block);
    hth_free(conn->text);
    hth_free(conn->rest);
    hth_free(conn);
}
