// SPDX-License-Identifier: Apache-2.0
// What a request's head must not say although evhttp lets it through: names and values that others
// read differently, no host or two, lengths that differ, a transfer coding that is not chunked, a
// body behind a verb that has none, a target with blanks in it or over its limit.
#include "server/http/http_call.h"

#include "server/net/account.h"
#include "server/http/tensors/http_json.h"

#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>

#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

// The most JSON of a request that brings no tensors and no model.
#define SOUND_BODY_BYTES (64 << 10)

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

// sound_name says whether a header's name is a token (RFC 9110, 5.6.2): for evhttp it is whatever
// stands in front of a colon, "Content-Length " too.
static bool sound_name(const char *name)
{
    const char *p = name;
    while (isalnum((unsigned char)*p) || (*p != 0 && strchr("-_!#$%&'*+.^`|~", *p) != NULL)) {
        p++;
    }
    return p != name && *p == 0;
}

// sound_fields says whether a proxy in front reads the headers' names and values as evhttp does.
static bool sound_fields(const struct evkeyvalq *headers)
{
    const struct evkeyval *kv;
    TAILQ_FOREACH(kv, headers, next)
    {
        if (!sound_name(kv->key) || strchr(kv->value, '\r') != NULL) {
            return false;
        }
    }
    return true;
}

// sound_target says whether the target has neither blanks nor control characters: evhttp takes all
// between the first blank and the last for it.
static bool sound_target(const char *target)
{
    const unsigned char *p = (const unsigned char *)target;
    while (*p > ' ' && *p != 0x7f) {
        p++;
    }
    return *p == 0;
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
    if (hth_account_full()) {
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

// sound_head returns a sentence about what is wrong with a head, which ends the connection:
// whatever follows it may be meant differently. NULL: nothing is wrong.
static const char *sound_head(struct evhttp_request *req, bool *chunked)
{
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(req);
    if (!sound_fields(headers)) {
        return "a header's name or value is not well-formed";
    }
    if (!sound_target(evhttp_request_get_uri(req))) {
        return "the request's target has a blank or a control character in it";
    }
    const char *host = hth_http_host_wrong(headers, evhttp_request_get_uri(req), req->minor > 0);
    const char *wrong = host != NULL ? host : hth_http_twice(headers);
    if (wrong != NULL) {
        return wrong;
    }
    if (!sound_verb(req)) {
        return "HEAD and TRACE have no body";
    }
    return sound_lengths(headers, chunked) ? NULL : HTH_HTTP_DIFFER;
}

bool hth_http_validate(hth_http *h, struct evhttp_request *req)
{
    bool chunked = true;
    hth_http_conn *conn = hth_http_conn_of(h, req);
    h->received_ns = conn != NULL ? conn->since_ns : 0;
    if (conn != NULL) {
        hth_http_conn_whole(conn);
    }
    const char *wrong = sound_head(req, &chunked);
    if (wrong == NULL && chunked) {
        return sound_size(h, req);
    }
    evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
    hth_http_fail(h, req, wrong != NULL ? HTTP_BADREQUEST : HTTP_NOTIMPLEMENTED, "%s",
                  wrong != NULL ? wrong : "the only transfer coding here is chunked");
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
    if (n > SOUND_BODY_BYTES) {
        hth_http_fail(h, req, 413, "the body of this request is %zu bytes: at most %d are read", n,
                      SOUND_BODY_BYTES);
        return false;
    }
    const char *text = (const char *)evbuffer_pullup(in, -1);
    hth_err err = text != NULL ? hth_json_parse(text, n, out)
                               : hth_fail(HTH_ENOMEM, "out of memory for a request");
    if (err != HTH_OK) {
        hth_http_fail_err(h, req, err);
    }
    return err == HTH_OK;
}
