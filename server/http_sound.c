// SPDX-License-Identifier: Apache-2.0
// What a request's head must not say although evhttp lets it through: names and values that others
// read differently, lengths that differ, a transfer coding that is not chunked, a body behind a
// verb that has none, a URL over its limit.
#include "server/http_call.h"

#include "server/http_json.h"

#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>

#include <string.h>
#include <strings.h>
#include <sys/queue.h>

const char *hth_http_header(const struct evhttp_request *req, const char *name)
{
    const struct evkeyval *kv;
    TAILQ_FOREACH(kv, req->input_headers, next)
    {
        if ((kv->key[0] | 32) == (name[0] | 32) && strcasecmp(kv->key, name) == 0) {
            return kv->value;
        }
    }
    return NULL;
}

// sound_fields says whether a proxy in front reads the headers' names and values as evhttp does:
// it takes "Content-Length :" for another name, and a single CR for a part of the value.
static bool sound_fields(const struct evkeyvalq *headers)
{
    const struct evkeyval *kv;
    TAILQ_FOREACH(kv, headers, next)
    {
        if (kv->key[0] == 0 || strpbrk(kv->key, " \t\r") != NULL ||
            strchr(kv->value, '\r') != NULL) {
            return false;
        }
    }
    return true;
}

// sound_lengths says whether all Content-Length headers are numbers and agree: evhttp takes the
// first, a proxy in front may take the last.
static bool sound_lengths(const struct evkeyvalq *headers, bool *chunked)
{
    const struct evkeyval *kv;
    const char *length = NULL;
    bool coded = false;
    *chunked = true;
    TAILQ_FOREACH(kv, headers, next)
    {
        if (strcasecmp(kv->key, "Content-Length") == 0) {
            const char *text = kv->value + strspn(kv->value, " \t");
            size_t digits = strspn(text, "0123456789");
            if (digits == 0 || text[digits] != 0 ||
                (length != NULL && strcmp(length, kv->value) != 0)) {
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
    if (!sound_fields(evhttp_request_get_input_headers(req))) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
        hth_http_fail(h, req, HTTP_BADREQUEST, "a header's name or value is not well-formed");
        return false;
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
    hth_http_fail(h, req, lengths ? HTTP_NOTIMPLEMENTED : HTTP_BADREQUEST, "%s",
                  lengths ? "the only transfer coding here is chunked" : HTH_HTTP_DIFFER);
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
