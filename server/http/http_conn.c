// SPDX-License-Identifier: Apache-2.0
// Bytes of connections: what evhttp does differently from what clients of the protocol need.
//
// evhttp answers some requests itself (bad request line, headers or body over their limits, unknown
// verb) with a page of HTML. Every error must be JSON, so its output is watched: what is written
// while `writing` is false is evhttp's own, and is replaced by the same status with a JSON body.
#include "server/http/http_call.h"

#include "base/stats.h"

#include <event2/bufferevent.h>

#include <stdio.h>
#include <string.h>

#define HTTP_TOO_LARGE_HEADER 431

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
        return HTH_HTTP_LONG;
    case 413:
        return "the request exceeds the maximum allowed input size of the server";
    default:
        return hth_http_phrase(status);
    }
}

// page_drop empties what is to go out; its first `keep` bytes go to `kept`, unless that is NULL.
static void page_drop(struct evbuffer *out, size_t keep, struct evbuffer *kept)
{
    if (kept != NULL) {
        evbuffer_remove_buffer(out, kept, keep);
    }
    evbuffer_drain(out, evbuffer_get_length(out));
}

// page_replace puts a JSON error in the place of the page whose first line is in `out`.
static void page_replace(const hth_http_conn *c, struct evbuffer *out)
{
    int status = page_status(c->h, out);
    if (status == 100) { // "go on", not an answer
        return;
    }
    char json[120], text[400];
    snprintf(json, sizeof json, "{\"error\":\"%s\"}", page_sentence(status));
    size_t n =
        hth_http_error_text(c->h, status, status == 405 ? "Allow: " HTH_HTTP_ALLOW_ALL "\r\n" : "",
                            json, text, sizeof text);
    page_drop(out, 0, NULL);
    evbuffer_add(out, text, n);
}

// page_cut drops what evhttp adds to a page that was replaced.
static void page_cut(struct evbuffer *out, size_t keep)
{
    struct evbuffer *ours = evbuffer_new();
    if (ours != NULL) {
        page_drop(out, keep, ours);
        evbuffer_add_buffer(out, ours);
        evbuffer_free(ours);
    }
}

static void conn_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    const hth_http_conn *c = arg;
    hth_http *h = c->h;
    if (info->n_deleted > 0 && !h->writing) {
        hth_stat_add(HTH_STAT_HTTP_BYTES_OUT, info->n_deleted);
    }
    if (info->n_added == 0 || h->writing) {
        return;
    }
    h->writing = true; // what is added here comes here again
    if (info->orig_size == 0) {
        page_replace(c, out);
    } else {
        page_cut(out, info->orig_size);
    }
    h->writing = false;
    hth_http_io_later(c);
}

static void conn_input(struct evbuffer *in, const struct evbuffer_cb_info *info, void *arg)
{
    hth_http_conn *c = arg;
    if (info->n_added > 0) {
        conn_input_bytes = evbuffer_get_length(in);
        c->h->events++;
    }
    if (c->moving) {
        return;
    }
    hth_http_conn_came(c, info->n_added, info->n_deleted);
    if (c->refused_ns != 0) {
        hth_http_head_drop(c);
        return;
    }
    if (info->n_added > 0 && c->headed) {
        hth_http_head_chunks(c, info->n_added);
    } else if (info->n_added > 0) {
        hth_http_head_came(c);
    }
}

struct bufferevent *hth_http_bufferevent(struct event_base *base, void *arg)
{
    hth_http_door *door = arg;
    struct bufferevent *b =
        door->tls ? hth_http_tls_new(base, door->h->tls) : bufferevent_socket_new(base, -1, 0);
    hth_http_conn *c = b != NULL ? hth_http_conn_new(door) : NULL;
    if (c == NULL) {
        if (b != NULL) {
            bufferevent_free(b);
        }
        return hth_http_dead_new(base);
    }
    c->b = b;
    if (c->tls) {
        bufferevent_set_max_single_write(b, HTH_HTTP_WRITE);
    }
    evbuffer_add_cb(bufferevent_get_output(b), conn_output, c);
    evbuffer_add_cb(bufferevent_get_input(b), conn_input, c);
    return b;
}
