// SPDX-License-Identifier: Apache-2.0
// Answers: JSON, server-sent events, errors (the one table of their statuses), and the traces that
// end when an answer has left. An answer goes out where it is made.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "runtime/redact.h"

#include <event2/util.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>
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

int hth_http_status(hth_err err)
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
                  {201, "Created"},
                  {206, "Partial Content"},
                  {400, "Bad Request"},
                  {401, "Unauthorized"},
                  {403, "Forbidden"},
                  {404, "Not Found"},
                  {405, "Method Not Allowed"},
                  {408, "Request Timeout"},
                  {409, "Conflict"},
                  {413, "Payload Too Large"},
                  {414, "URI Too Long"},
                  {416, "Range Not Satisfiable"},
                  {417, "Expectation Failed"},
                  {431, "Request Header Fields Too Large"},
                  {500, "Internal Server Error"},
                  {501, "Not Implemented"},
                  {503, "Service Unavailable"},
                  {507, "Insufficient Storage"}};
    for (size_t i = 0; i < sizeof phrase / sizeof phrase[0]; i++) {
        if (phrase[i].status == status) {
            return phrase[i].phrase;
        }
    }
    return "Error";
}

// ---- traces

void hth_http_trace(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    http->tracing = hth_tracer_on(http->tracer) ? hth_trace_begin(http->tracer, args->name) : NULL;
    if (http->tracing != NULL) {
        uint64_t now = hth_now_ns();
        http->tracing->ns[HTH_TRACE_HTTP_RECV_START] =
            http->received_ns != 0 ? http->received_ns : now;
        http->tracing->ns[HTH_TRACE_HTTP_RECV_END] = now;
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
static void reply_trace(hth_http *http, struct evbuffer *body)
{
    hth_trace *t = http->tracing;
    http->tracing = NULL;
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

// What a short answer takes at most, with its head.
#define REPLY_SHORT 4096

// reply_date is the present moment as a header says it.
static const char *reply_date(hth_http *http)
{
    time_t now = time(NULL);
    if (now != http->date_s) {
        http->date_s = now;
        evutil_date_rfc1123(http->date, sizeof http->date, NULL);
    }
    return http->date;
}

// reply_put puts `text` at `at`, and returns where it ends: before `end`, where it would be too
// long.
static char *reply_put(char *at, const char *end, const char *text)
{
    size_t n = strlen(text), room = (size_t)(end - at);
    return mempcpy(at, text, n < room ? n : room);
}

static char *reply_field(char *at, const char *end, const char *key, const char *value)
{
    at = reply_put(reply_put(at, end, key), end, ": ");
    return reply_put(reply_put(at, end, value), end, "\r\n");
}

// reply_number puts `n` in decimal at `at`, and returns where it ends.
static char *reply_number(char *at, const char *end, uint64_t n)
{
    char digits[21]; // the largest has 20
    char *p = digits + sizeof digits - 1;
    *p = 0;
    do {
        *--p = (char)('0' + n % 10);
        n /= 10;
    } while (n != 0);
    return reply_put(at, end, p);
}

size_t hth_http_reply_head(hth_http *http, const hth_http_req *req, int status, const char *type,
                           uint64_t length, char out[HTH_HTTP_REPLY_HEAD])
{
    const hth_http_head *d = &req->head;
    char *at = out, *end = out + HTH_HTTP_REPLY_HEAD;
    at = reply_put(at, end, d->minor > 0 ? "HTTP/1.1 " : "HTTP/1.0 ");
    at = reply_put(reply_number(at, end, (uint64_t)status), end, " ");
    at = reply_put(reply_put(at, end, hth_http_phrase(status)), end, "\r\n");
    at = type != NULL ? reply_field(at, end, "Content-Type", type) : at;
    for (int i = 0; i < req->n_fields; i++) {
        at = reply_field(at, end, req->field[i].name, req->field[i].value);
    }
    at = reply_field(at, end, "Date", reply_date(http));
    if (length == HTH_HTTP_CHUNKED && d->minor > 0) {
        at = reply_field(at, end, "Transfer-Encoding", "chunked");
    } else if (length != HTH_HTTP_CHUNKED) {
        at = reply_number(reply_put(at, end, "Content-Length: "), end, length);
        at = reply_put(at, end, "\r\n");
    }
    if (!d->keep) {
        at = reply_field(at, end, "Connection", "close");
    } else if (d->minor == 0) {
        at = reply_field(at, end, "Connection", "keep-alive");
    }
    at = reply_put(at, end, "\r\n");
    assert(at < end);
    return (size_t)(at - out);
}

size_t hth_http_error_text(hth_http *http, int status, const char *sentence, char *out, size_t cap)
{
    int n = snprintf(out, cap,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nDate: %s\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n{\"error\":\"%s\"}",
                     status, hth_http_phrase(status), reply_date(http), strlen(sentence) + 12,
                     sentence);
    return n > 0 && (size_t)n < cap ? (size_t)n : 0;
}

void hth_http_add(hth_http_req *req, const char *name, const char *value)
{
    assert(req->n_fields < HTH_HTTP_FIELDS);
    req->field[req->n_fields].name = name;
    req->field[req->n_fields++].value = value;
}

// reply_short sends a short answer from one piece, `n` bytes with its body: of most answers no
// memory is taken for that.
static bool reply_short(hth_http_conn *conn, const char *text, size_t n)
{
    bool well;
    size_t sent = hth_http_io_send(conn, text, n, &well);
    return well && (sent == n || (evbuffer_add(conn->out, text + sent, n - sent) == 0 &&
                                  hth_http_io_write(conn)));
}

// reply_send sends an answer whose head is the first `n` of REPLY_SHORT bytes at `text`; `body` may
// be NULL, and is emptied.
static void reply_send(hth_http_conn *conn, char *text, size_t n, struct evbuffer *body)
{
    hth_http *h = conn->h;
    size_t bytes = body != NULL ? evbuffer_get_length(body) : 0;
    bool well;
    hth_http_io_answers(conn, bytes);
    h->n_sending++;
    h->n_answered++;
    conn->at = HTH_HTTP_AT_ANSWER;
    if (n + bytes <= REPLY_SHORT && evbuffer_get_length(conn->out) == 0) {
        if (bytes > 0) {
            evbuffer_copyout(body, text + n, bytes);
        }
        well = reply_short(conn, text, n + bytes);
        if (bytes > 0) {
            evbuffer_drain(body, bytes);
        }
    } else {
        well = evbuffer_add(conn->out, text, n) == 0 &&
               (bytes == 0 || evbuffer_add_buffer(conn->out, body) == 0) && hth_http_io_write(conn);
    }
    if (!well) { // its client has gone
        conn->req.head.keep = conn->refused = false;
        evbuffer_drain(conn->out, evbuffer_get_length(conn->out));
    }
    if (evbuffer_get_length(conn->out) == 0) {
        hth_http_conn_answered(conn);
    }
}

void hth_http_send(hth_http *http, hth_http_req *req, int status, const char *type,
                   struct evbuffer *body)
{
    char text[REPLY_SHORT];
    if (http->tracing != NULL) {
        reply_trace(http, body);
    }
    size_t length = body != NULL ? evbuffer_get_length(body) : 0;
    if (req->head.verb == HTH_VERB_HEAD && body != NULL) {
        evbuffer_drain(body, length);
    }
    reply_send(req->conn, text, hth_http_reply_head(http, req, status, type, length, text), body);
}

void hth_http_send_text(hth_http *http, hth_http_req *req, const char *json)
{
    char text[REPLY_SHORT];
    size_t length = strlen(json),
           n = hth_http_reply_head(http, req, 200, "application/json", length, text);
    assert(n + length <= sizeof text);
    memcpy(text + n, json, length);
    reply_send(req->conn, text, n + (req->head.verb != HTH_VERB_HEAD ? length : 0), NULL);
}

// event_chunked makes a body one chunk, and the last. HTTP/1.0 knows none.
static bool event_chunked(struct evbuffer *event)
{
    char size[24];
    int n = snprintf(size, sizeof size, "%zx\r\n", evbuffer_get_length(event));
    return evbuffer_prepend(event, size, (size_t)n) == 0 &&
           evbuffer_add(event, "\r\n0\r\n\r\n", 7) == 0;
}

void hth_http_send_event(hth_http *http, hth_http_req *req, const char *json, size_t bytes)
{
    char text[REPLY_SHORT];
    bool chunked = req->head.minor > 0;
    struct evbuffer *event = evbuffer_new();
    if (event == NULL || evbuffer_add(event, "data: ", 6) != 0 ||
        evbuffer_add(event, json, bytes) != 0 || evbuffer_add(event, "\n\n", 2) != 0 ||
        (chunked && !event_chunked(event))) {
        hth_http_fail(http, req, 503, "out of memory for an answer");
    } else {
        if (http->tracing != NULL) {
            reply_trace(http, event);
        }
        size_t head =
            hth_http_reply_head(http, req, 200, "text/event-stream; charset=utf-8",
                                chunked ? HTH_HTTP_CHUNKED : evbuffer_get_length(event), text);
        reply_send(req->conn, text, head, event);
    }
    if (event != NULL) {
        evbuffer_free(event);
    }
}

// reply_json writes `doc`, which may hold anything that came in a request.
static void reply_json(hth_http *http, hth_http_req *req, int status, const json_t *doc)
{
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    struct evbuffer *body = evbuffer_new();
    if (text == NULL || body == NULL || evbuffer_add(body, text, strlen(text)) != 0) {
        status = 503; // without a body: there is no memory for one
    }
    hth_http_send(http, req, status, "application/json", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
    free(text);
}

void hth_http_send_doc(hth_http *http, hth_http_req *req, int status, json_t *doc)
{
    reply_json(http, req, status, doc);
    json_decref(doc);
}

void hth_http_send_json(hth_http *http, hth_http_req *req, json_t *doc)
{
    hth_http_send_doc(http, req, 200, doc);
}

void hth_http_fail(hth_http *http, hth_http_req *req, int status, const char *fmt, ...)
{
    char sentence[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    if (!hth_http_is_near(req)) {
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
    reply_json(http, req, status, doc);
    json_decref(doc);
}

void hth_http_fail_err(hth_http *http, hth_http_req *req, hth_err err)
{
    const char *detail = hth_err_detail();
    int status = err == HTH_ETOOBIG ? 413 : hth_http_status(err); // the request, not a tensor in it
    hth_http_fail(http, req, status, "%s", detail[0] != 0 ? detail : hth_strerror(err));
}

void hth_http_fail_call(hth_http_call *call, const char *id)
{
    const hth_http_args *a = &call->args;
    if (call->r.err != HTH_ENOENT) {
        const char *detail = call->r.detail[0] != 0 ? call->r.detail : hth_strerror(call->r.err);
        if (call->r.command != HTH_COMMAND_NONE) {
            hth_http_fail(call->h, call->req, hth_http_status(call->r.err), "%s", detail);
        } else {
            hth_http_fail(call->h, call->req, hth_http_status(call->r.err),
                          "[request id: %.200s] %s", id != NULL && id[0] != 0 ? id : "<id_unknown>",
                          detail);
        }
    } else if (a->version != 0) {
        hth_http_fail(call->h, call->req, 404,
                      "Request for unknown model: '%s' version %d is not found", a->name,
                      a->version);
    } else {
        hth_http_fail(call->h, call->req, 404, "Request for unknown model: '%s' is not found",
                      a->name);
    }
}
