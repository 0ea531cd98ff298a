// SPDX-License-Identifier: Apache-2.0
// Content codings: gzip and deflate (zlib's format), in requests and, where Accept-Encoding asks
// for it, in answers. What comes out of a request is bounded while it is inflated, alone and with
// what is held for all clients, and nobody waits for it but those whose requests are inflated: what
// is sent is up to a thousand times as much when it comes out, and therefore only a small body is
// inflated on the loop, all others on the threads of http_work.h.
#include "server/http/http_call.h"

#include "server/net/account.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#define ZIP_PIECE (64 << 10)
// The largest body that is inflated on the loop.
#define ZIP_AT_ONCE (1 << 10)
// zlib's largest window; 32 more: gzip or zlib, whichever the data say; 16 more: gzip.
#define ZIP_EITHER (15 | 32)
#define ZIP_GZIP   (15 | 16)
#define ZIP_ZLIB   15
// Of answers: the fastest.
#define ZIP_LEVEL 1
// What comes out is at most about so many times what was sent (RFC 1951: 258 bytes from 2 bits).
#define ZIP_MOST 1032
// .. and of what is no attack, this.
#define ZIP_OFTEN 8

// What is looked at away from the loop, and memory that an inflation holds there (account.h).
typedef struct zip_watch {
    const atomic_int *canceled; // may be NULL
    bool holds;
    uint64_t held;
} zip_watch;

// A request whose body is inflated on a thread.
typedef struct zip_call {
    hth_http_call c;
    zip_watch watch;
    struct evbuffer *body; // the thread's until it is done: what was sent, then what came out
    size_t packed, head;   // bytes that were sent; .. of what comes out that are read as text
    uint64_t most;         // .. that may come out
    uint64_t received_ns;
} zip_call;

static hth_err zip_look(zip_watch *watch, size_t came)
{
    if (watch->canceled != NULL && atomic_load(watch->canceled)) {
        return hth_fail(HTH_ECANCELED, "the request was canceled");
    }
    if (watch->holds) {
        HTH_TRY(hth_http_hold(came));
        watch->held += came;
    }
    return HTH_OK;
}

// zip_run moves all of `in` through `turn` (inflate or deflate) to `out`; `watch` may be NULL.
// *end: the stream's end was reached.
static hth_err zip_run(z_stream *stream, int (*turn)(z_stream *stream, int flush),
                       struct evbuffer *in, struct evbuffer *out, uint64_t limit, zip_watch *watch,
                       bool *end)
{
    *end = false;
    while (!*end) {
        struct evbuffer_iovec from = {NULL, 0}, to;
        bool more = evbuffer_peek(in, -1, NULL, &from, 1) > 0;
        if (evbuffer_reserve_space(out, ZIP_PIECE, &to, 1) != 1) {
            return hth_no_memory("a body");
        }
        stream->next_in = from.iov_base;
        stream->avail_in = (uInt)(from.iov_len < ZIP_PIECE ? from.iov_len : ZIP_PIECE);
        stream->next_out = to.iov_base;
        stream->avail_out = ZIP_PIECE;
        size_t offered = stream->avail_in;
        int rc = turn(stream, more ? Z_NO_FLUSH : Z_FINISH);
        to.iov_len = ZIP_PIECE - stream->avail_out;
        evbuffer_commit_space(out, &to, 1);
        evbuffer_drain(in, offered - stream->avail_in);
        *end = rc == Z_STREAM_END;
        if (watch != NULL) {
            HTH_TRY(zip_look(watch, to.iov_len));
        }
        if (evbuffer_get_length(out) > limit) {
            return hth_fail(HTH_ETOOBIG,
                            "the decompressed request exceeds the maximum allowed input size of "
                            "%llu bytes",
                            (unsigned long long)limit);
        }
        if (!*end &&
            ((rc != Z_OK && rc != Z_BUF_ERROR) || (!more && to.iov_len == 0))) { // broken, or cut
            return hth_fail(HTH_EINVAL, "the body does not match its Content-Encoding");
        }
    }
    return HTH_OK;
}

static hth_err zip_inflate(struct evbuffer *in, uint64_t limit, zip_watch *watch)
{
    z_stream z = {.next_in = NULL};
    struct evbuffer *out = evbuffer_new();
    bool end;
    if (out == NULL || inflateInit2(&z, ZIP_EITHER) != Z_OK) {
        if (out != NULL) {
            evbuffer_free(out);
        }
        return hth_no_memory("a body");
    }
    hth_err err = zip_run(&z, inflate, in, out, limit, watch, &end);
    inflateEnd(&z);
    if (err == HTH_OK && evbuffer_get_length(in) > 0) {
        err = hth_fail(HTH_EINVAL, "unexpected bytes after the compressed body");
    }
    if (err == HTH_OK) {
        evbuffer_add_buffer(in, out);
    }
    evbuffer_free(out);
    return err;
}

// zip_inflated counts what came out of a body of `packed` bytes. false: answered.
static bool zip_inflated(hth_http *http, hth_http_req *req, hth_err err, size_t packed)
{
    size_t n = evbuffer_get_length(req->body);
    if (err != HTH_OK) {
        hth_http_fail_err(http, req, err);
        return false;
    }
    if (n > packed) {
        hth_http_io_grew(req->conn, n - packed);
        if (hth_account_full()) {
            hth_http_fail(http, req, 503, "the server holds too much for its clients: try again");
            return false;
        }
    }
    return true;
}

// ---- away from the loop

// zip_text makes one piece of what is read as text: that takes as long as inflating it, and twice
// the memory meanwhile.
static hth_err zip_text(zip_call *call)
{
    size_t n = evbuffer_get_length(call->body), head = call->head < n ? call->head : n;
    if (head == 0) {
        return HTH_OK;
    }
    HTH_TRY(zip_look(&call->watch, head));
    bool made = evbuffer_pullup(call->body, (ev_ssize_t)head) != NULL;
    hth_account_give(head);
    call->watch.held -= head;
    return made ? HTH_OK : hth_no_memory("a body");
}

static hth_err zip_work(hth_http_call *call)
{
    zip_call *z = (zip_call *)call;
    HTH_TRY(zip_inflate(z->body, z->most, &z->watch));
    return zip_text(z);
}

static void zip_finish(hth_http_call *call)
{
    zip_call *z = (zip_call *)call;
    hth_err err = hth_err_restore(call->r.err, call->r.detail);
    evbuffer_add_buffer(call->req->body, z->body);
    call->h->received_ns = z->received_ns;
    hth_account_give(z->watch.held); // it is the connection's now
    z->watch.held = 0;
    call->req->conn->inflated = true;
    if (zip_inflated(call->h, call->req, err, z->packed)) {
        hth_http_route_on(call->h, call->req);
    }
}

static void zip_drop(hth_http_call *call)
{
    const zip_call *z = (const zip_call *)call;
    hth_account_give(z->watch.held);
    if (z->body != NULL) {
        evbuffer_free(z->body);
    }
}

static void zip_later(hth_http *http, hth_http_req *req, struct evbuffer *body)
{
    const hth_http_args none = {.version = 0};
    const char *head = req->head.json_bytes;
    zip_call *z = hth_http_call_new(http, req, &none, sizeof *z);
    if (z == NULL) {
        return; // answered
    }
    z->c.drop = zip_drop;
    z->watch = (zip_watch){.canceled = &z->c.r.canceled, .holds = true};
    z->packed = evbuffer_get_length(body);
    z->most = req->most;
    z->head = head != NULL ? strtoull(head, NULL, 10) : SIZE_MAX;
    z->received_ns = http->received_ns;
    z->body = evbuffer_new();
    if (z->body == NULL) {
        hth_http_call_refuse(&z->c, hth_no_memory("a body"));
        return;
    }
    evbuffer_add_buffer(z->body, body);
    z->c.task.cost = z->packed * ZIP_OFTEN;
    z->c.task.most = z->packed * ZIP_MOST;
    hth_http_call_work(&z->c, zip_work, zip_finish);
}

bool hth_http_inflate(hth_http *http, hth_http_req *req)
{
    const char *coding = req->head.content_encoding;
    if (coding == NULL || coding[0] == 0 || strcasecmp(coding, "identity") == 0) {
        return true;
    }
    if (strcasecmp(coding, "gzip") != 0 && strcasecmp(coding, "deflate") != 0) {
        hth_http_add(req, "Accept-Encoding", "gzip, deflate");
        hth_http_fail(http, req, 501, "Unsupported Content-Encoding: '%.40s'", coding);
        return false;
    }
    struct evbuffer *body = req->body;
    size_t packed = evbuffer_get_length(body);
    if (packed > ZIP_AT_ONCE) {
        zip_later(http, req, body);
        return false;
    }
    return zip_inflated(http, req, zip_inflate(body, req->most, NULL), packed);
}

// ---- answers

// accepted returns the weight that Accept-Encoding gives `coding`; 0: not accepted.
static double accepted(const char *header, const char *coding)
{
    size_t n = strlen(coding);
    for (const char *p = header; *p != 0; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        if (strncasecmp(p, coding, n) != 0 || strchr(",; \t", p[n]) == NULL) { // 0 is in it
            continue;
        }
        const char *q = p + n, *end = p + strcspn(p, ",");
        q += strspn(q, " \t;");
        return q + 2 < end && strncasecmp(q, "q=", 2) == 0 ? strtod(q + 2, NULL) : 1;
    }
    return 0;
}

hth_http_coding hth_http_accepts(const hth_http_req *req)
{
    const char *header = req->head.accept_encoding;
    double gzip = header != NULL ? accepted(header, "gzip") : 0;
    double zlib = header != NULL ? accepted(header, "deflate") : 0;
    if (gzip > 0 && gzip >= zlib) {
        return HTH_HTTP_GZIP;
    }
    return zlib > 0 ? HTH_HTTP_DEFLATE : HTH_HTTP_PLAIN;
}

bool hth_http_encode(hth_http_coding coding, struct evbuffer *body, const atomic_int *canceled)
{
    z_stream z = {.next_in = NULL};
    zip_watch watch = {.canceled = canceled};
    bool coded = false, end;
    struct evbuffer *out = coding != HTH_HTTP_PLAIN ? evbuffer_new() : NULL;
    if (out == NULL) {
        return false; // as it is: nobody must accept a coding
    }
    if (deflateInit2(&z, ZIP_LEVEL, Z_DEFLATED, coding == HTH_HTTP_GZIP ? ZIP_GZIP : ZIP_ZLIB, 8,
                     Z_DEFAULT_STRATEGY) == Z_OK) {
        coded = zip_run(&z, deflate, body, out, UINT64_MAX, &watch, &end) == HTH_OK;
        if (coded) {
            evbuffer_add_buffer(body, out);
        }
        deflateEnd(&z);
    }
    evbuffer_free(out);
    return coded;
}

void hth_http_encoded(hth_http_req *req, hth_http_coding coding)
{
    hth_http_add(req, "Content-Encoding", coding == HTH_HTTP_GZIP ? "gzip" : "deflate");
}

void hth_http_deflate(hth_http_req *req, struct evbuffer *body)
{
    hth_http_coding coding = hth_http_accepts(req);
    if (hth_http_encode(coding, body, NULL)) {
        hth_http_encoded(req, coding);
    }
}
