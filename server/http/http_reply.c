// SPDX-License-Identifier: Apache-2.0
// Answers: JSON, server-sent events, errors (the one table of their statuses), and the traces that
// end when an answer has left. An answer goes out where it is made.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "runtime/redact.h"

#include <event2/bufferevent.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/util.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>

// ---- errors: the one table

typedef struct http_status {
    hth_err err;
    int status;
} http_status;

static const http_status status_table[] = {
    {HTH_EINVAL, 400},   {HTH_ENOENT, 404},    {HTH_EEXIST, 400},    {HTH_EBUSY, 503},
    {HTH_EDENIED, 403},  {HTH_ENOMEM, 503},    {HTH_ENODEVMEM, 503}, {HTH_ETOOBIG, 400},
    {HTH_EDEVLOST, 503}, {HTH_ECANCELED, 503}, {HTH_ECORRUPT, 500},  {HTH_ENOTSUP, 501},
    {HTH_EIO, 500},      {HTH_ETIMEDOUT, 503},
};

static int status_of(hth_err err)
{
    for (size_t i = 0; i < sizeof status_table / sizeof status_table[0]; i++) {
        if (status_table[i].err == err) {
            return status_table[i].status;
        }
    }
    return 500;
}

const char *hth_http_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrase[] = {{200, "OK"},
                  {400, "Bad Request"},
                  {401, "Unauthorized"},
                  {403, "Forbidden"},
                  {404, "Not Found"},
                  {405, "Method Not Allowed"},
                  {408, "Request Timeout"},
                  {413, "Payload Too Large"},
                  {414, "URI Too Long"},
                  {417, "Expectation Failed"},
                  {431, "Request Header Fields Too Large"},
                  {500, "Internal Server Error"},
                  {501, "Not Implemented"},
                  {503, "Service Unavailable"}};
    for (size_t i = 0; i < sizeof phrase / sizeof phrase[0]; i++) {
        if (phrase[i].status == status) {
            return phrase[i].phrase;
        }
    }
    return "Error";
}

// ---- traces

void hth_http_trace(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    h->tracing = hth_tracer_on(h->tracer) ? hth_trace_begin(h->tracer, a->name) : NULL;
    if (h->tracing != NULL) {
        uint64_t now = hth_now_ns();
        h->tracing->ns[HTH_TRACE_HTTP_RECV_START] = h->received_ns != 0 ? h->received_ns : now;
        h->tracing->ns[HTH_TRACE_HTTP_RECV_END] = now;
    }
}

static void reply_traced(const void *last, size_t n, void *trace)
{
    hth_trace *t = trace;
    t->ns[HTH_TRACE_HTTP_SEND_END] = hth_now_ns();
    hth_trace_end(t);
}

// reply_cut_last takes the last byte off `body`.
static bool reply_cut_last(struct evbuffer *body, char *last)
{
    size_t n = body != NULL ? evbuffer_get_length(body) : 0;
    struct evbuffer *front = n > 0 ? evbuffer_new() : NULL;
    if (front == NULL) {
        return false;
    }
    bool cut = evbuffer_remove_buffer(body, front, n - 1) == (int)(n - 1) &&
               evbuffer_remove(body, last, 1) == 1;
    evbuffer_prepend_buffer(body, front);
    evbuffer_free(front);
    return cut;
}

// reply_trace makes the answer's last byte a reference whose release, when it has left or the
// connection is gone, ends the trace.
static void reply_trace(hth_http *h, struct evbuffer *body)
{
    hth_trace *t = h->tracing;
    h->tracing = NULL;
    t->ns[HTH_TRACE_HTTP_SEND_START] = hth_now_ns();
    bool cut = reply_cut_last(body, &t->last);
    if (!cut || evbuffer_add_reference(body, &t->last, 1, reply_traced, t) != 0) {
        if (cut) {
            evbuffer_add(body, &t->last, 1);
        }
        reply_traced(NULL, 0, t);
    }
}

// ---- replies

static void reply_sent(struct evhttp_request *req, void *arg)
{
    hth_http *h = arg;
    hth_http_conn *conn = hth_http_conn_of(h, req);
    if (conn != NULL) {
        hth_http_conn_answered(conn);
        if (evhttp_request_get_command(req) == EVHTTP_REQ_CONNECT) { // evhttp would keep it
            shutdown(conn->fd, SHUT_RDWR);
        }
    }
    h->n_sending--;
}

// reply_date is the present moment as a header says it.
static const char *reply_date(hth_http *h)
{
    time_t now = time(NULL);
    if (now != h->date_s) {
        h->date_s = now;
        evutil_date_rfc1123(h->date, sizeof h->date, NULL);
    }
    return h->date;
}

// reply_is_plain tells whether an answer needs no more than reply_plain knows: most do not.
static bool reply_is_plain(const hth_http_conn *conn, const struct evhttp_request *req)
{
    return conn != NULL && conn->writable != NULL && req->major == 1 && req->minor == 1 &&
           req->type != EVHTTP_REQ_CONNECT && !req->chunked &&
           (req->flags & EVHTTP_PROXY_REQUEST) == 0;
}

// reply_field puts "key: value" at `at`, and returns where it ends.
static char *reply_field(char *at, const char *key, const char *value)
{
    return stpcpy(stpcpy(stpcpy(stpcpy(at, key), ": "), value), "\r\n");
}

// reply_fields puts the headers that were set for the answer at `at`, and returns where they end.
static char *reply_fields(char *at, const struct evhttp_request *req)
{
    const char *asked = hth_http_header(req, "Connection");
    bool close = asked != NULL && strcasecmp(asked, "close") == 0;
    const struct evkeyval *kv;
    TAILQ_FOREACH(kv, req->output_headers, next)
    {
        if (!close || strcasecmp(kv->key, "Connection") != 0) {
            at = reply_field(at, kv->key, kv->value);
        }
    }
    return close ? reply_field(at, "Connection", "close") : at;
}

// reply_most is what the head takes at most, `extra` bytes for what is in no header that was set.
static size_t reply_most(const struct evhttp_request *req, size_t extra)
{
    const struct evkeyval *kv;
    TAILQ_FOREACH(kv, req->output_headers, next)
    {
        extra += strlen(kv->key) + strlen(kv->value) + 4;
    }
    return extra;
}

// reply_number puts `n` in decimal at `at`, and returns where it ends.
static char *reply_number(char *at, uint64_t n)
{
    char digits[20]; // the largest has 20
    char *end = digits + sizeof digits, *p = end;
    do {
        *--p = (char)('0' + n % 10);
        n /= 10;
    } while (n != 0);
    return mempcpy(at, p, (size_t)(end - p));
}

size_t hth_http_health_text(hth_http *h, const char *json, char out[HTH_HTTP_HEALTH_BYTES])
{
    char *at = stpcpy(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n");
    at = stpcpy(reply_field(at, "Date", reply_date(h)), "Content-Length: ");
    at = stpcpy(reply_number(at, strlen(json)), "\r\n\r\n");
    return (size_t)(stpcpy(at, json) - out);
}

size_t hth_http_error_text(hth_http *h, int status, const char *fields, const char *json, char *out,
                           size_t cap)
{
    int n = snprintf(out, cap,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nDate: %s\r\n"
                     "Content-Length: %zu\r\n%sConnection: close\r\n\r\n%s",
                     status, hth_http_phrase(status), reply_date(h), strlen(json), fields, json);
    return n > 0 && (size_t)n < cap ? (size_t)n : 0;
}

// reply_plain is evhttp_send_reply without its formatting, and without copies of what the headers
// say. `length`: what the head says of the body. false: out of memory, nothing has happened.
static bool reply_plain(hth_http *h, const hth_http_conn *conn, struct evhttp_request *req,
                        int status, const char *type, size_t length, struct evbuffer *body)
{
    struct evbuffer *out = bufferevent_get_output(conn->b);
    const char *date = reply_date(h), *phrase = hth_http_phrase(status);
    struct evbuffer_iovec v;
    size_t most = reply_most(req, 200 + strlen(phrase) + (type != NULL ? strlen(type) : 0));
    if (evbuffer_reserve_space(out, (ev_ssize_t)most, &v, 1) != 1) {
        return false;
    }
    char *at = reply_number(stpcpy(v.iov_base, "HTTP/1.1 "), (uint64_t)status);
    at = stpcpy(stpcpy(stpcpy(at, " "), phrase), "\r\n");
    at = type != NULL ? reply_field(at, "Content-Type", type) : at;
    at = reply_field(reply_fields(at, req), "Date", date);
    at = stpcpy(at, "Content-Length: ");
    at = reply_number(at, length);
    at = stpcpy(at, "\r\n\r\n");
    v.iov_len = (size_t)(at - (char *)v.iov_base);
    evbuffer_commit_space(out, &v, 1);
    if (body != NULL) {
        evbuffer_add_buffer(out, body);
    }
    evhttp_send_reply_end(req); // behind what is to go out
    return true;
}

// reply_evhttp has evhttp write the head. The length is said here: it does not say it where it
// knows of no body, of a HEAD's, nor to clients of HTTP/1.0, who could not see then that it was
// cut.
static void reply_evhttp(struct evhttp_request *req, int status, const char *type, size_t length,
                         struct evbuffer *body)
{
    if (type != NULL) {
        evhttp_add_header(req->output_headers, "Content-Type", type);
    }
    char digits[24];
    *reply_number(digits, length) = 0;
    evhttp_add_header(req->output_headers, "Content-Length", digits);
    evhttp_send_reply(req, status, hth_http_phrase(status), body);
}

void hth_http_send(hth_http *h, struct evhttp_request *req, int status, const char *type,
                   struct evbuffer *body)
{
    if (h->tracing != NULL) {
        reply_trace(h, body);
    }
    size_t length = body != NULL ? evbuffer_get_length(body) : 0;
    hth_http_conn *conn = hth_http_conn_of(h, req);
    if (req->type == EVHTTP_REQ_HEAD && body != NULL) {
        evbuffer_drain(body, length);
    }
    if (conn != NULL) {
        hth_http_conn_answers(conn, body != NULL ? evbuffer_get_length(body) : 0);
    }
    h->n_sending++;
    h->n_answered++;
    evhttp_request_set_on_complete_cb(req, reply_sent, h);
    h->writing = true;
    if (!reply_is_plain(conn, req) || !reply_plain(h, conn, req, status, type, length, body)) {
        reply_evhttp(req, status, type, length, body);
    }
    h->writing = false;
    if (conn != NULL) {
        hth_http_io_write(conn);
    }
}

void hth_http_send_event(hth_http *h, struct evhttp_request *req, const char *json, size_t n)
{
    struct evbuffer *event = evbuffer_new();
    if (event == NULL || evbuffer_add(event, "data: ", 6) != 0 ||
        evbuffer_add(event, json, n) != 0 || evbuffer_add(event, "\n\n", 2) != 0) {
        hth_http_fail(h, req, HTTP_SERVUNAVAIL, "out of memory for an answer");
    } else {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type",
                          "text/event-stream; charset=utf-8");
        if (h->tracing != NULL) {
            reply_trace(h, event);
        }
        hth_http_conn *conn = hth_http_conn_of(h, req);
        if (conn != NULL) {
            hth_http_conn_answers(conn, evbuffer_get_length(event));
        }
        h->n_sending++;
        h->n_answered++;
        evhttp_request_set_on_complete_cb(req, reply_sent, h);
        h->writing = true;
        evhttp_send_reply_start(req, HTTP_OK, hth_http_phrase(HTTP_OK));
        evhttp_send_reply_chunk(req, event);
        evhttp_send_reply_end(req);
        h->writing = false;
        if (conn != NULL) {
            hth_http_io_write(conn);
        }
    }
    if (event != NULL) {
        evbuffer_free(event);
    }
}

// reply_json writes `doc`, which may hold anything that came in a request.
static void reply_json(hth_http *h, struct evhttp_request *req, int status, const json_t *doc)
{
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    struct evbuffer *body = evbuffer_new();
    if (text == NULL || body == NULL || evbuffer_add(body, text, strlen(text)) != 0) {
        status = HTTP_SERVUNAVAIL; // without a body: there is no memory for one
    }
    hth_http_send(h, req, status, "application/json", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
    free(text);
}

void hth_http_send_json(hth_http *h, struct evhttp_request *req, json_t *doc)
{
    reply_json(h, req, HTTP_OK, doc);
    json_decref(doc);
}

void hth_http_fail(hth_http *h, struct evhttp_request *req, int status, const char *fmt, ...)
{
    char sentence[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    if (!hth_http_is_near(h, req)) {
        char cleared[sizeof sentence];
        hth_redact(sentence, cleared, sizeof cleared);
        memcpy(sentence, cleared, sizeof sentence);
    }
    json_t *s = json_string(sentence);
    if (s == NULL) { // it quotes what is not UTF-8
        for (char *p = sentence; *p != 0; p++) {
            *p = (signed char)*p < 0 ? '?' : *p;
        }
        s = json_string(sentence);
    }
    json_t *doc = json_pack("{s:o}", "error", s);
    reply_json(h, req, status, doc);
    json_decref(doc);
}

void hth_http_fail_err(hth_http *h, struct evhttp_request *req, hth_err err)
{
    const char *detail = hth_err_detail();
    int status = err == HTH_ETOOBIG ? 413 : status_of(err); // the request, not a tensor in it
    hth_http_fail(h, req, status, "%s", detail[0] != 0 ? detail : hth_strerror(err));
}

void hth_http_fail_call(hth_http_call *c, const char *id)
{
    const hth_http_args *a = &c->args;
    if (c->r.err != HTH_ENOENT) {
        const char *detail = c->r.detail[0] != 0 ? c->r.detail : hth_strerror(c->r.err);
        if (c->r.query != NULL) {
            hth_http_fail(c->h, c->req, status_of(c->r.err), "%s", detail);
        } else {
            hth_http_fail(c->h, c->req, status_of(c->r.err), "[request id: %.200s] %s",
                          id != NULL && id[0] != 0 ? id : "<id_unknown>", detail);
        }
    } else if (a->version != 0) {
        hth_http_fail(c->h, c->req, HTTP_NOTFOUND,
                      "Request for unknown model: '%s' version %d is not found", a->name,
                      a->version);
    } else {
        hth_http_fail(c->h, c->req, HTTP_NOTFOUND, "Request for unknown model: '%s' is not found",
                      a->name);
    }
}
