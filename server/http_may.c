// SPDX-License-Identifier: Apache-2.0
// What a request over HTTP may: by where it comes from, its token, and what its route needs. A
// request over loopback is a program's of this machine unless its head tells otherwise: that a
// proxy passes it on, or that a browser sends it for a page of another origin.
#include "server/http_call.h"

#include <event2/keyvalq_struct.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

typedef struct may_head {
    const char *authorization, *origin, *host;
    bool forwarded;
} may_head;

static void head_read(struct evhttp_request *req, may_head *out)
{
    const struct evkeyval *kv;
    memset(out, 0, sizeof *out);
    TAILQ_FOREACH(kv, evhttp_request_get_input_headers(req), next)
    {
        const char *key = kv->key;
        switch (key[0] | 32) {
        case 'a':
            if (strcasecmp(key, "Authorization") == 0) {
                out->authorization = kv->value;
            }
            break;
        case 'o':
            if (strcasecmp(key, "Origin") == 0) {
                out->origin = kv->value;
            }
            break;
        case 'h':
            if (strcasecmp(key, "Host") == 0) {
                out->host = kv->value;
            }
            break;
        case 'f':
            out->forwarded = out->forwarded || strcasecmp(key, "Forwarded") == 0;
            break;
        case 'x':
            out->forwarded = out->forwarded || strncasecmp(key, "X-Forwarded-", 12) == 0 ||
                             strcasecmp(key, "X-Real-IP") == 0;
            break;
        }
    }
}

// head_host_is_own tells whether the server was called by an address or localhost.
static bool head_host_is_own(const may_head *q)
{
    char host[64];
    struct in6_addr six;
    struct in_addr four;
    const char *from = q->host + (q->host[0] == '['), *colon = strrchr(from, ':');
    size_t n = q->host[0] == '[' ? strcspn(from, "]")
               : colon != NULL   ? (size_t)(colon - from)
                                 : strlen(from);
    snprintf(host, sizeof host, "%.*s", (int)(n < sizeof host ? n : 0), from);
    return strcasecmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &four) == 1 ||
           inet_pton(AF_INET6, host, &six) == 1;
}

// head_is_own tells whether a request that a browser may have sent comes from a page of this
// server: a page of another origin could otherwise use the rights of a program on this machine, and
// one whose name was made to point here could be taken for ours. That one reads (GET) without an
// Origin; therefore the name is looked at also then, over loopback. One without a dot is of this
// machine or its network: nobody else can make it point here.
static bool head_is_own(const may_head *q, bool loopback)
{
    if (q->origin == NULL) {
        return !loopback || q->forwarded || q->host == NULL || strchr(q->host, '.') == NULL ||
               head_host_is_own(q);
    }
    const char *at = strstr(q->origin, "://");
    return at != NULL && q->host != NULL && strcasecmp(at + 3, q->host) == 0 && head_host_is_own(q);
}

bool hth_http_is_near(hth_http *h, struct evhttp_request *req)
{
    const hth_http_conn *c = hth_http_conn_of(h, req);
    may_head q;
    head_read(req, &q);
    return c != NULL && c->peer == HTH_PEER_LOOPBACK && !q.forwarded;
}

static const char *bearer(const may_head *q)
{
    const char *t = q->authorization;
    if (t == NULL || strncasecmp(t, "Bearer", 6) != 0 || t[6] != ' ') {
        return NULL;
    }
    return t + 6 + strspn(t + 6, " ");
}

void hth_http_tenant(hth_http *h, struct evhttp_request *req, char *out, size_t cap)
{
    may_head q = {.host = NULL};
    if (hth_auth_has_tokens(h->auth)) {
        head_read(req, &q);
    }
    hth_auth_tenant(h->auth, bearer(&q), "http", out, cap);
}

bool hth_http_may(hth_http *h, struct evhttp_request *req, hth_need need)
{
    may_head q;
    bool unknown = false;
    if (need == HTH_NEED_NOTHING) {
        return true;
    }
    const hth_http_conn *c = hth_http_conn_of(h, req);
    head_read(req, &q);
    // What a proxy passes on comes from elsewhere.
    hth_peer peer = c != NULL && !q.forwarded ? c->peer : HTH_PEER_NETWORK;
    if (!hth_auth_has_tokens(h->auth) &&
        !head_is_own(&q, c != NULL && c->peer == HTH_PEER_LOOPBACK)) {
        hth_http_fail(h, req, 403, "%s",
                      q.origin != NULL
                          ? "pages of other origins may not use this server while it has no tokens"
                          : "while it has no tokens, this server is called by localhost or an "
                            "address on its own machine: the Host header names another");
        return false;
    }
    if (hth_auth_check(h->auth, peer, bearer(&q), need, &unknown) == HTH_OK) {
        return true;
    }
    if (unknown) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "WWW-Authenticate",
                          "Bearer realm=\"hearth\"");
    }
    hth_http_fail(h, req, unknown ? 401 : 403, "%s", hth_err_detail());
    return false;
}
