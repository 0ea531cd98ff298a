// SPDX-License-Identifier: Apache-2.0
// Connections and replies: what evhttp does differently from what clients of the protocol need.
//
// evhttp answers some requests itself (bad request line, headers or body over their limits, unknown
// verb) with a page of HTML. Every error must be JSON, so its output is watched: what is written
// while `writing` is false is evhttp's own, and is replaced by the same status with a JSON body.
// And it reads 4 KiB at a time, a turn of the loop each; the hook on the input takes what else has
// come.
#include "server/http_call.h"

#include "base/clock.h"
#include "base/stats.h"
#include "server/http_json.h"

#include <event2/bufferevent.h>
#include <event2/keyvalq_struct.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/socket.h>

// What libevent 2.1 reads at most at once, and what is taken instead.
#define CONN_LIBRARY_READ 4096
#define CONN_READ         (256 << 10)
#define CONN_READS        4
#define CONN_WRITE        (1 << 20)

#define HTTP_TOO_LARGE_HEADER 431

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

static const char *status_phrase(int status)
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

// ---- evhttp's own pages

// How much was in the input when it last grew. evhttp reads, parses and answers in one go, so it is
// the input of whoever is being answered now.
static _Thread_local size_t conn_input_bytes;

// page_status says what a page of evhttp's should have been called. Its code is 0 where it did not
// come to one: an unknown verb.
static int page_status(const hth_http *h, struct evbuffer *out)
{
    char line[64] = "";
    int status = 0;
    ev_ssize_t n = evbuffer_copyout(out, line, sizeof line - 1);
    line[n > 0 ? n : 0] = 0;
    if (sscanf(line, "HTTP/%*d.%*d %d", &status) != 1) {
        return 400;
    }
    if (status == 400 && conn_input_bytes > h->header_bytes) { // no head ends in it
        return HTTP_TOO_LARGE_HEADER;
    }
    return status == 0 || status == 501 ? 405 : status;
}

static const char *page_sentence(int status)
{
    switch (status) {
    case 400:
        return "the request is not well-formed HTTP/1.1";
    case HTTP_TOO_LARGE_HEADER:
        return "the request line and the headers exceed the server's limit";
    case 413:
        return "the request exceeds the maximum allowed input size of the server";
    default:
        return status_phrase(status);
    }
}

// page_drop empties what is to go out; its first `keep` bytes go to `kept`, unless that is NULL. A
// socket's output is frozen but while it is written; TLS's never is, and would never empty if it
// were.
static void page_drop(const hth_http_conn *c, struct evbuffer *out, size_t keep,
                      struct evbuffer *kept)
{
    if (!c->tls) {
        evbuffer_unfreeze(out, 1);
    }
    if (kept != NULL) {
        evbuffer_remove_buffer(out, kept, keep);
    }
    evbuffer_drain(out, evbuffer_get_length(out));
    if (!c->tls) {
        evbuffer_freeze(out, 1);
    }
}

// page_replace puts a JSON error in the place of the page whose first line is in `out`.
static void page_replace(const hth_http_conn *c, struct evbuffer *out)
{
    int status = page_status(c->h, out);
    if (status == 100) { // "go on", not an answer
        return;
    }
    const char *sentence = page_sentence(status);
    page_drop(c, out, 0, NULL);
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: "
                        "%zu\r\nConnection: close\r\n\r\n{\"error\":\"%s\"}",
                        status, status_phrase(status), strlen(sentence) + 12, sentence);
}

// page_cut drops what evhttp adds to a page that was replaced.
static void page_cut(const hth_http_conn *c, struct evbuffer *out, size_t keep)
{
    struct evbuffer *ours = evbuffer_new();
    if (ours != NULL) {
        page_drop(c, out, keep, ours);
        evbuffer_add_buffer(out, ours);
        evbuffer_free(ours);
    }
}

static void conn_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    const hth_http_conn *c = arg;
    hth_http *h = c->h;
    hth_stat_add(HTH_STAT_HTTP_BYTES_OUT, h->writing ? 0 : info->n_deleted);
    if (info->n_added == 0 || h->writing) {
        return;
    }
    h->writing = true; // what is added here comes here again
    if (info->orig_size == 0) {
        page_replace(c, out);
    } else {
        page_cut(c, out, info->orig_size);
    }
    h->writing = false;
}

void hth_http_trace(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    h->tracing = hth_tracer_on(h->tracer) ? hth_trace_begin(h->tracer, a->name) : NULL;
    if (h->tracing != NULL) {
        uint64_t now = hth_now_ns();
        h->tracing->ns[HTH_TRACE_HTTP_RECV_START] = h->received_ns != 0 ? h->received_ns : now;
        h->tracing->ns[HTH_TRACE_HTTP_RECV_END] = now;
    }
}

static void conn_input(struct evbuffer *in, const struct evbuffer_cb_info *info, void *arg)
{
    hth_http_conn *c = arg;
    if (info->n_added > 0) {
        conn_input_bytes = evbuffer_get_length(in);
    }
    hth_http_conn_came(c, info->n_added, info->n_deleted);
    if (info->n_added != CONN_LIBRARY_READ || c->tls) { // what TLS has read is all there is
        return;
    }
    for (int i = 0; i < CONN_READS; i++) {
        struct evbuffer_iovec v;
        if (evbuffer_reserve_space(in, CONN_READ, &v, 1) != 1) {
            return;
        }
        ssize_t n = recv(bufferevent_getfd(c->b), v.iov_base, CONN_READ, MSG_DONTWAIT);
        if (n <= 0) {
            return; // evhttp's own next read finds the same
        }
        v.iov_len = (size_t)n;
        evbuffer_commit_space(in, &v, 1); // comes here again, and counts
        if (n < CONN_READ) {
            return;
        }
    }
}

struct bufferevent *hth_http_bufferevent(struct event_base *base, void *arg)
{
    const hth_http_door *door = arg;
    struct bufferevent *b =
        door->tls ? hth_http_tls_new(base, door->h->tls) : bufferevent_socket_new(base, -1, 0);
    hth_http_conn *c = b != NULL ? hth_http_conn_new(door->h, door->tls) : NULL;
    if (c == NULL) {
        if (b != NULL) {
            bufferevent_free(b);
        }
        return hth_http_dead_new(base);
    }
    c->b = b;
    bufferevent_set_max_single_write(b, CONN_WRITE);
    evbuffer_add_cb(bufferevent_get_output(b), conn_output, c);
    evbuffer_add_cb(bufferevent_get_input(b), conn_input, c);
    return b;
}

// ---- requests

// sound_lengths says whether all Content-Length headers agree: evhttp takes the first, a proxy in
// front may take the last.
static bool sound_lengths(const struct evkeyvalq *headers, bool *chunked)
{
    const struct evkeyval *kv;
    const char *length = NULL;
    bool coded = false;
    *chunked = true;
    TAILQ_FOREACH(kv, headers, next)
    {
        if (strcasecmp(kv->key, "Content-Length") == 0) {
            if (length != NULL && strcmp(length, kv->value) != 0) {
                return false;
            }
            length = kv->value;
        } else if (strcasecmp(kv->key, "Transfer-Encoding") == 0) {
            *chunked = *chunked && strcasecmp(kv->value, "chunked") == 0;
            coded = true;
        }
    }
    return length == NULL || !coded; // not all versions of libevent see to that
}

// sound_size looks at what must not be more than it may; false: answered.
static bool sound_size(hth_http *h, struct evhttp_request *req)
{
    const char *uri = evhttp_request_get_uri(req);
    if (strlen(uri) > (size_t)hth_setting_int(HTH_SET_HTTP_URL_BYTES)) {
        hth_http_fail(h, req, 414, "the URL exceeds the server's limit of %lld bytes",
                      (long long)hth_setting_int(HTH_SET_HTTP_URL_BYTES));
        return false;
    }
    if (hth_http_conn_full(h)) {
        hth_http_fail(h, req, HTTP_SERVUNAVAIL,
                      "the server holds too much for its clients: try again");
        return false;
    }
    return true;
}

// sound_verb says whether evhttp has read the body that the head announces: it does not behind
// these two verbs, and would take it for the next request.
static bool sound_verb(struct evhttp_request *req)
{
    const struct evkeyval *kv;
    enum evhttp_cmd_type verb = evhttp_request_get_command(req);
    if (verb != EVHTTP_REQ_HEAD && verb != EVHTTP_REQ_TRACE) {
        return true;
    }
    TAILQ_FOREACH(kv, evhttp_request_get_input_headers(req), next)
    {
        if (strcasecmp(kv->key, "Transfer-Encoding") == 0 ||
            (strcasecmp(kv->key, "Content-Length") == 0 &&
             kv->value[strspn(kv->value, "0")] != 0)) {
            return false;
        }
    }
    return true;
}

bool hth_http_sound(hth_http *h, struct evhttp_request *req)
{
    bool chunked;
    hth_http_conn *conn = hth_http_conn_of(h, req);
    h->received_ns = conn != NULL ? conn->since_ns : 0;
    if (conn != NULL) {
        hth_http_conn_whole(conn);
    }
    bool verb = sound_verb(req);
    if (!verb) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
    }
    if (evhttp_request_get_command(req) == EVHTTP_REQ_HEAD) {
        // evhttp would send a body after the head: an empty one keeps the connection in step.
        hth_http_send(h, req, verb ? HTTP_BADMETHOD : HTTP_BADREQUEST, NULL, NULL);
        return false;
    }
    if (!verb) {
        hth_http_fail(h, req, HTTP_BADREQUEST, "HEAD and TRACE have no body");
        return false;
    }
    bool lengths = sound_lengths(evhttp_request_get_input_headers(req), &chunked);
    if (lengths && chunked) {
        return sound_size(h, req);
    }
    evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
    hth_http_fail(
        h, req, lengths ? HTTP_NOTIMPLEMENTED : HTTP_BADREQUEST, "%s",
        lengths ? "the only transfer coding here is chunked"
                : "the Content-Length headers differ, or there is a Transfer-Encoding beside");
    return false;
}

bool hth_http_body(hth_http *h, struct evhttp_request *req, json_t **out)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t n = evbuffer_get_length(in);
    *out = NULL;
    if (n == 0) {
        return true;
    }
    const char *text = (const char *)evbuffer_pullup(in, -1);
    hth_err err = text != NULL ? hth_json_parse(text, n, out)
                               : hth_fail(HTH_ENOMEM, "out of memory for a request");
    if (err != HTH_OK) {
        hth_http_fail_err(h, req, err);
    }
    return err == HTH_OK;
}

// ---- replies

static void reply_sent(struct evhttp_request *req, void *arg)
{
    hth_http *h = arg;
    hth_http_conn *conn = hth_http_conn_of(h, req);
    if (conn != NULL) {
        hth_http_conn_answered(conn);
    }
    h->n_sending--;
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

void hth_http_send(hth_http *h, struct evhttp_request *req, int status, const char *type,
                   struct evbuffer *body)
{
    if (h->tracing != NULL) {
        reply_trace(h, body);
    }
    if (type != NULL) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type", type);
    }
    hth_http_conn *conn = hth_http_conn_of(h, req);
    if (conn != NULL) {
        hth_http_conn_answers(conn, body != NULL ? evbuffer_get_length(body) : 0);
    }
    h->n_sending++;
    evhttp_request_set_on_complete_cb(req, reply_sent, h);
    h->writing = true;
    evhttp_send_reply(req, status, status_phrase(status), body);
    h->writing = false;
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
        evhttp_request_set_on_complete_cb(req, reply_sent, h);
        h->writing = true;
        evhttp_send_reply_start(req, HTTP_OK, status_phrase(HTTP_OK));
        evhttp_send_reply_chunk(req, event);
        evhttp_send_reply_end(req);
        h->writing = false;
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
        hth_auth_public(sentence, cleared, sizeof cleared);
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
