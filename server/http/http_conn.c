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
#include "server/http/http_stream.h"

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

static void conn_fail(hth_http_conn *conn, const hth_http_refusal *no)
{
    if (no->allow[0] != 0) {
        hth_http_add(&conn->req, "Allow", no->allow);
    }
    if (no->challenge) {
        hth_http_add(&conn->req, "WWW-Authenticate", HTH_HTTP_CHALLENGE);
    }
    hth_http_fail(conn->h, &conn->req, no->status, "%s", no->sentence);
}

static void conn_drop_body(hth_http_conn *conn)
{
    evbuffer_drain(conn->req.body, evbuffer_get_length(conn->req.body));
    hth_http_block_rele(conn->block);
    conn->block = NULL;
}

static void conn_refuse(hth_http_conn *conn, const hth_http_refusal *no)
{
    hth_log(INFO, SERVER, "http-refused", "status=%d %s", no->status, no->sentence);
    conn_drop_body(conn);
    conn->refused = true;
    conn->req.head.keep = false;
    conn->at = HTH_HTTP_AT_WORK;
    conn->since_ns = 0;
    conn_fail(conn, no);
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

// judge_size looks at what the body would cost. false: refused. Nothing that is got or removed
// reads a body: a small one does no harm.
static bool judge_size(const hth_http *http, const hth_http_req *req, hth_http_refusal *no)
{
    const hth_http_head *head = &req->head;
    bool none = head->verb == HTH_VERB_GET || head->verb == HTH_VERB_DELETE;
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
    uint64_t held = hth_account_bytes();
    if (none && (head->chunked || head->length > CONN_BODY_BYTES)) {
        return refusal(no, 413, "a GET or DELETE has no body");
    }
    if (head->length > http->message_bytes) {
        return refusal(no, 413, CONN_LARGE);
    }
    if (head->length > req->most) {
        *no = (hth_http_refusal){.status = 413};
        snprintf(no->sentence, sizeof no->sentence,
                 "the body of this request has %llu bytes at most, not %llu",
                 (unsigned long long)req->most, (unsigned long long)head->length);
        return false;
    }
    return head->length <= CONN_BODY_BYTES || (held <= most && head->length <= most - held) ||
           refusal(no, 503, CONN_HOLDS);
}

// conn_judge tells whether the request may go on, once; false: why not is in *no.
static bool conn_judge(hth_http_conn *conn, hth_http_refusal *no)
{
    hth_http_req *req = &conn->req;
    hth_need need = HTH_NEED_ANY;
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_URL_BYTES);
    conn->judged = true;
    if (req->head.target_bytes > most) {
        *no = (hth_http_refusal){.status = 414};
        snprintf(no->sentence, sizeof no->sentence,
                 "the URL exceeds the server's limit of %llu bytes", (unsigned long long)most);
        return false;
    }
    if (!conn->listener->metrics) {
        if (!hth_http_route_find(conn->h, req, no)) {
            return false;
        }
        need = req->need;
    }
    return hth_http_may(conn->h, req, need, no) && judge_size(conn->h, req, no);
}

// conn_stops answers that the server stops, if it does.
static bool conn_stops(hth_http_conn *conn)
{
    if (conn->listener->metrics || !atomic_load(&conn->h->stopping)) {
        return false;
    }
    conn->h->n_refused++;
    conn->req.head.keep = false;
    hth_http_fail(conn->h, &conn->req, 503, "Server exiting");
    return true;
}

// conn_whole has a request served that is there, and has `ahead` bytes after it.
static void conn_whole(hth_http_conn *conn, size_t ahead)
{
    hth_http *h = conn->h;
    hth_http_refusal no;
    assert(conn->at == HTH_HTTP_AT_WHOLE);
    conn->ahead = ahead;
    h->received_ns = conn->since_ns;
    conn->since_ns = 0;
    conn->at = HTH_HTTP_AT_WORK;
    if (conn_stops(conn)) {
        return;
    }
    if (hth_account_full()) {
        hth_http_fail(h, &conn->req, 503, CONN_HOLDS);
    } else if (!conn->judged && !conn_judge(conn, &no)) {
        conn_fail(conn, &no);
    } else if (conn->listener->metrics) {
        hth_http_metrics(h, &conn->req);
    } else if (conn->req.head.content_encoding == NULL || hth_http_inflate(h, &conn->req)) {
        hth_http_route_on(h, &conn->req);
    }
}

// ---- heads

// head_begin looks at a head that was read, before its body.
static void head_begin(hth_http_conn *conn)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const hth_http_head *d = &conn->req.head;
    hth_http_refusal no;
    bool costly = d->chunked || d->length > CONN_BODY_BYTES || d->expect != HTH_EXPECT_NOTHING;
    if (d->coded) {
        refusal(&no, 501, "the only transfer coding here is chunked");
    } else if (d->verb == HTH_VERB_UNKNOWN) {
        refusal(&no, 405, hth_http_phrase(405));
        strcpy(no.allow, HTH_HTTP_ALLOW_ALL);
    } else if (costly && !conn->listener->metrics && atomic_load(&conn->h->stopping)) {
        conn->refused = true;
        conn->at = HTH_HTTP_AT_WORK;
        (void)conn_stops(conn);
        return;
    } else if (costly && !conn_judge(conn, &no)) {
        // refused below
    } else if (d->expect == HTH_EXPECT_OTHER) {
        refusal(&no, 417, hth_http_phrase(417));
    } else if (d->length > conn->h->message_bytes) {
        refusal(&no, 413, CONN_LARGE);
    } else {
        if (d->expect == HTH_EXPECT_CONTINUE && (d->chunked || d->length > 0) &&
            (evbuffer_add(conn->out, go_on, sizeof go_on - 1) != 0 || !hth_http_io_write(conn))) {
            conn->at = HTH_HTTP_AT_END;
            return;
        }
        conn->left = d->length;
        conn->chunks = (hth_chunks){.at = HTH_CHUNKS_FIRST};
        conn->lines = 0;
        conn->at = d->chunked || conn->left > 0 ? HTH_HTTP_AT_BODY : HTH_HTTP_AT_WHOLE;
        if (d->length > CONN_BODY_BYTES && (d->verb == HTH_VERB_POST || d->verb == HTH_VERB_PUT)) {
            hth_http_block_begin(conn);
        }
        return;
    }
    conn_refuse(conn, &no);
}

// head_reserve has room for `n` bytes of text, and one more.
static bool head_reserve(hth_http_conn *conn, size_t n)
{
    size_t capacity = conn->text_capacity > 0 ? conn->text_capacity : CONN_TEXT_BYTES;
    while (capacity < n + 1) {
        capacity *= 2;
    }
    char *text = capacity > conn->text_capacity ? hth_realloc(conn->text, capacity, 1) : conn->text;
    if (text == NULL) {
        return false;
    }
    conn->text = text;
    conn->text_capacity = capacity > conn->text_capacity ? capacity : conn->text_capacity;
    return true;
}

// head_uncount forgets the last `n` bytes that came: they say nothing. A connection on which
// nothing else came waits for a request again.
static void head_uncount(hth_http_conn *conn, size_t n)
{
    conn->skipped++;
    conn->bytes -= n;
    hth_account_give(n);
    conn->since_ns = conn->bytes == 0 ? 0 : conn->since_ns;
}

// empty_line counts the bytes of an empty line that `n` bytes begin with, if it may be there.
static size_t empty_line(const hth_http_conn *conn, const char *p, size_t n)
{
    if (conn->skipped >= CONN_EMPTY_LINES) {
        return 0;
    }
    if (p[0] == '\n') {
        return 1;
    }
    return n > 1 && p[0] == '\r' && p[1] == '\n' ? 2 : 0;
}

// feed_head takes what belongs to the head, and returns how many bytes it took.
static size_t feed_head(hth_http_conn *conn, const char *p, size_t n)
{
    size_t most = conn->h->header_bytes, before = conn->text_bytes, end = 0, some = n;
    size_t empty = before == 0 ? empty_line(conn, p, n) : 0;
    if (empty > 0) {
        head_uncount(conn, empty);
        return empty;
    }
    if (before == 0) {
        conn->req.head = (hth_http_head){.verb = HTH_VERB_UNKNOWN, .minor = 1, .path = ""};
        conn->req.most = conn->h->message_bytes;
        conn->seen = 0;
        end = hth_http_head_end(p, n, &conn->seen);
        some = end > 0 ? end : n;
    }
    some = some < most + 1 - before ? some : most + 1 - before;
    if (!head_reserve(conn, before + some)) {
        hth_http_conn_refuse(conn, 503, "out of memory for a request");
        return n;
    }
    memcpy(conn->text + before, p, some);
    conn->text_bytes += some;
    if (before == 1 && conn->text[0] == '\r' &&
        empty_line(conn, conn->text, conn->text_bytes) == 2) {
        head_uncount(conn, 2); // an empty line in two pieces
        conn->text_bytes = 0;
        return 1;
    }
    end = end > 0 ? end : hth_http_head_end(conn->text, conn->text_bytes, &conn->seen);
    if (conn->text_bytes > most && (end == 0 || end > most)) {
        hth_http_conn_refuse(conn, 431, CONN_LONG);
        return some;
    }
    if (end == 0) {
        return some;
    }
    conn->text_bytes = end;
    const char *wrong = hth_http_head_read(conn->text, end, &conn->req.head);
    if (wrong != NULL) {
        hth_http_conn_refuse(conn, 400, wrong);
    } else {
        head_begin(conn);
    }
    return end - before;
}

// ---- bodies

static void body_failed(hth_http_conn *conn)
{
    hth_http_conn_refuse(conn, 503, "out of memory for a body");
}

// body_took counts `n` bytes that are where they stay.
static void body_took(hth_http_conn *conn, size_t n)
{
    assert(conn->at == HTH_HTTP_AT_BODY && n <= conn->left);
    conn->left -= n;
    if (conn->block != NULL) {
        conn->block->come += n;
    }
    if (conn->left > 0) {
        return;
    }
    conn->at = HTH_HTTP_AT_WHOLE;
    if (conn->block != NULL && !hth_http_block_give(conn)) {
        body_failed(conn);
    }
}

static size_t feed_sized(hth_http_conn *conn, const char *p, size_t n)
{
    size_t some = n < conn->left ? n : (size_t)conn->left;
    if (conn->block != NULL) {
        memcpy(conn->block->body + conn->block->come, p, some);
    } else if (evbuffer_add(conn->req.body, p, some) != 0) {
        body_failed(conn);
        return n;
    }
    body_took(conn, some);
    return some;
}

// chunks_wrong says what is wrong with a body in chunks although it is well-formed.
static const char *chunks_wrong(const hth_http_conn *conn)
{
    uint64_t chunks = (uint64_t)hth_setting_int(HTH_SET_HTTP_CHUNKS);
    uint64_t come = evbuffer_get_length(conn->req.body);
    if (conn->lines > 2 * chunks + CONN_TRAILERS) {
        return "the request comes in too many chunks";
    }
    bool large = conn->chunks.at == HTH_CHUNKS_DATA && conn->chunks.left > conn->req.most - come;
    return large ? CONN_LARGE : NULL;
}

// chunks_go_on looks at a body in chunks after some more of it.
static void chunks_go_on(hth_http_conn *conn, const char *wrong)
{
    const char *large = chunks_wrong(conn);
    if (wrong != NULL) {
        hth_http_conn_refuse(conn, 400, wrong);
    } else if (large != NULL) {
        hth_http_conn_refuse(conn, 413, large);
    } else if (conn->chunks.at == HTH_CHUNKS_NONE) {
        conn->at = HTH_HTTP_AT_WHOLE;
    }
}

static size_t feed_chunks(hth_http_conn *conn, char *p, size_t n)
{
    size_t used = 0;
    while (used < n && conn->at == HTH_HTTP_AT_BODY) {
        bool data = conn->chunks.at == HTH_CHUNKS_DATA;
        size_t some = 1;
        if (data) {
            some = n - used < conn->chunks.left ? n - used : (size_t)conn->chunks.left;
        }
        if (data && evbuffer_add(conn->req.body, p + used, some) != 0) {
            body_failed(conn);
            return n;
        }
        conn->lines += !data && p[used] == '\n';
        chunks_go_on(conn, hth_chunks_take(&conn->chunks, p + used, some));
        used += some;
    }
    return used;
}

// ---- what comes

// conn_feed takes what it can of `n` bytes, and returns how many: the rest is for after the answer.
static size_t conn_feed(hth_http_conn *conn, char *p, size_t n)
{
    size_t used = 0;
    for (int requests = 0; used < n && requests < CONN_REQUESTS;) {
        if (conn->at == HTH_HTTP_AT_HEAD) {
            used += feed_head(conn, p + used, n - used);
            requests += conn->at != HTH_HTTP_AT_HEAD || conn->text_bytes == 0;
        } else if (conn->at == HTH_HTTP_AT_BODY && conn->req.head.chunked) {
            used += feed_chunks(conn, p + used, n - used);
        } else if (conn->at == HTH_HTTP_AT_BODY) {
            used += feed_sized(conn, p + used, n - used);
        } else if (conn->at == HTH_HTTP_AT_LINGER) {
            conn->dropped += n - used;
            used = n;
        } else {
            break;
        }
        if (conn->at == HTH_HTTP_AT_WHOLE) {
            conn_whole(conn, n - used);
        }
    }
    return used;
}

// conn_feed_remainder feeds what came after the last request.
static void conn_feed_remainder(hth_http_conn *conn)
{
    conn->rest_at += conn_feed(conn, conn->rest + conn->rest_at, conn->rest_bytes - conn->rest_at);
    if (conn->rest_at == conn->rest_bytes) {
        hth_free(conn->rest);
        conn->rest = NULL;
        conn->rest_at = conn->rest_bytes = 0;
    }
}

// conn_keep keeps `n` bytes for after the answer.
static void conn_keep(hth_http_conn *conn, const char *p, size_t n)
{
    conn->rest = n > 0 ? hth_memdup(p, n) : NULL;
    conn->rest_bytes = conn->rest != NULL ? n : 0;
    if (n > 0 && conn->rest == NULL) { // what is at work is answered, and no other request is
        conn->req.head.keep = false;
        conn->at = conn->at == HTH_HTTP_AT_HEAD ? HTH_HTTP_AT_END : conn->at;
    }
}

// direct_bytes is how much of the body may be read to where it stays.
static uint64_t direct_bytes(const hth_http_conn *conn)
{
    if (conn->at != HTH_HTTP_AT_BODY) {
        return 0;
    }
    if (!conn->req.head.chunked) {
        return conn->left;
    }
    return conn->chunks.at == HTH_CHUNKS_DATA ? conn->chunks.left : 0;
}

// read_direct reads at most `most` bytes of the body to where it stays; *asked: it could have been
// so many.
static ssize_t read_direct(hth_http_conn *conn, uint64_t most, size_t *asked)
{
    struct evbuffer_iovec v = {NULL, 0};
    struct evbuffer *body = conn->req.body;
    *asked = most < CONN_READ ? (size_t)most : CONN_READ;
    if (conn->block != NULL) {
        *asked = (size_t)most;
        v.iov_base = conn->block->body + conn->block->come;
    } else if (evbuffer_reserve_space(body, (ev_ssize_t)*asked, &v, 1) != 1) {
        return 0;
    }
    ssize_t n = hth_http_io_read(conn, v.iov_base, *asked);
    if (n <= 0) {
        return n;
    }
    v.iov_len = (size_t)n;
    if (conn->block == NULL && evbuffer_commit_space(body, &v, 1) != 0) {
        return 0;
    }
    hth_http_io_came(conn, (size_t)n);
    hth_http_io_bulk();
    if (conn->at != HTH_HTTP_AT_BODY) { // it was refused: too much is held
        conn->dropped = (uint64_t)n;
    } else if (conn->req.head.chunked) {
        chunks_go_on(conn, hth_chunks_take(&conn->chunks, v.iov_base, (size_t)n));
    } else {
        body_took(conn, (size_t)n);
    }
    if (conn->at == HTH_HTTP_AT_WHOLE) {
        conn_whole(conn, 0);
    }
    return n;
}

// conn_read reads once, and feeds it. It returns what hth_http_io_read does.
static ssize_t conn_read(hth_http_conn *conn, bool *more)
{
    uint64_t direct = direct_bytes(conn);
    size_t asked = HTH_HTTP_SCRATCH;
    ssize_t n;
    if (direct > HTH_HTTP_SCRATCH || (direct > 0 && conn->block != NULL)) {
        n = read_direct(conn, direct, &asked);
    } else {
        char *scratch = conn->h->scratch;
        n = hth_http_io_read(conn, scratch, asked);
        if (n > 0) {
            hth_http_io_came(conn, (size_t)n);
            size_t used = conn_feed(conn, scratch, (size_t)n);
            conn_keep(conn, scratch + used, (size_t)n - used);
        }
    }
    *more =
        n > 0 && (conn->ssl == NULL ? (size_t)n == asked
                                    : conn->at == HTH_HTTP_AT_BODY || SSL_pending(conn->ssl) > 0);
    return n;
}

// conn_waits tells whether there is something to do that the socket does not know of.
static bool conn_waits(const hth_http_conn *conn)
{
    return conn->rest != NULL || conn->at == HTH_HTTP_AT_END ||
           (conn->ssl != NULL && conn->at != HTH_HTTP_AT_LINGER && SSL_pending(conn->ssl) > 0);
}

// conn_again goes on in the next turn of the loop: who always has more keeps nobody else waiting.
static void conn_again(hth_http_conn *conn)
{
    static const struct timeval now = {0};
    event_add(conn->again, &now);
}

// conn_advance goes on with a connection, a bounded time. false: it has gone.
static bool conn_advance(hth_http_conn *conn)
{
    bool more = true;
    for (size_t came = 0; came < CONN_TURN && more;) {
        if (conn->rest != NULL && conn->at != HTH_HTTP_AT_END) {
            conn_feed_remainder(conn);
        }
        if (conn->at == HTH_HTTP_AT_END ||
            (conn->at == HTH_HTTP_AT_LINGER && conn->dropped > conn->h->message_bytes)) {
            conn->at == HTH_HTTP_AT_END ? hth_http_conn_free(conn) : hth_http_conn_reset(conn);
            return false;
        }
        if (conn->at == HTH_HTTP_AT_WORK || conn->at == HTH_HTTP_AT_ANSWER) {
            event_del(conn->readable);
            conn->paused = true;
            return true;
        }
        if (conn->rest != NULL) {
            break;
        }
        ssize_t n = conn_read(conn, &more);
        if (n == 0) {
            hth_http_conn_free(conn);
            return false;
        }
        came += n > 0 ? (size_t)n : 0;
    }
    if (conn_waits(conn)) {
        conn_again(conn);
    }
    return true;
}

static void conn_readable(evutil_socket_t fd, short what, void *conn)
{
    hth_http_conn *c = conn;
    c->reads = HTH_TLS_READS;
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
        bool stays = c->at == HTH_HTTP_AT_ANSWER || c->at == HTH_HTTP_AT_WORK; // its call has it
        c->at = stays ? c->at : HTH_HTTP_AT_END;
        c->req.head.keep = c->refused = false;
        c->broken = true;
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
    if (conn->stream != NULL) { // the answer goes on
        hth_http_stream_sent(conn->stream);
        return;
    }
    hth_account_give(conn->bytes + conn->sending);
    hth_account_add(rest);
    assert(conn->h->n_sending > 0);
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
    if (conn->stream != NULL) {
        conn->stream->free(conn->stream);
    }
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
