// SPDX-License-Identifier: Apache-2.0
// What a request over HTTP may: by where it comes from, its token, and what its route needs. A
// request over loopback is a program's of this machine unless its head tells otherwise: that a
// proxy passes it on, or that a browser sends it for a page of another origin.
#include "server/http/http_call.h"

#include <event2/keyvalq_struct.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

#define HOST_BYTES (HTH_HTTP_HOST_BYTES + 1)

typedef struct may_head {
    const char *authorization, *origin;
    const char *host; // what the server was called by, of host_bytes; NULL: it is not said
    size_t host_bytes;
    bool forwarded;
} may_head;

// head_read finds what counts. A host in the target counts, and the header does not then.
static void head_read(const struct evkeyvalq *headers, const char *target, may_head *out)
{
    const struct evkeyval *kv;
    memset(out, 0, sizeof *out);
    const char *authority = hth_http_authority(target, &out->host_bytes);
    TAILQ_FOREACH(kv, headers, next)
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
                size_t bytes = hth_http_trim(&out->host);
                out->host_bytes = authority == NULL ? bytes : out->host_bytes;
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
    out->host = authority != NULL ? authority : out->host;
}

// head_host copies the name that the server was called by, without its port; "": none. A name that
// is not sound was refused before.
static void head_host(const may_head *q, char out[HOST_BYTES])
{
    size_t n = 0;
    if (q->host != NULL && q->host_bytes < HOST_BYTES) {
        const char *end = q->host[0] == '[' ? "]" : ":";
        memcpy(out, q->host + (q->host[0] == '['), q->host_bytes);
        n = q->host_bytes - (q->host_bytes > 0 && q->host[0] == '[');
        out[n] = 0;
        n = strcspn(out, end);
    }
    out[n] = 0;
}

// host_is_own tells whether that is an address or localhost.
static bool host_is_own(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    return strcasecmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &four) == 1 ||
           inet_pton(AF_INET6, host, &six) == 1;
}

// host_is_listed tells whether http.hosts has it: requests by that name come through a proxy.
static bool host_is_listed(const char *host)
{
    char list[HTH_SETTING_TEXT], *save = NULL;
    hth_setting_text(HTH_SET_HTTP_HOSTS, list);
    const char *name = strtok_r(list, " ", &save);
    while (name != NULL && strcasecmp(name, host) != 0) {
        name = strtok_r(NULL, " ", &save);
    }
    return name != NULL;
}

// head_is_own tells whether a request that a browser may have sent comes from a page of this
// server: a page of another origin could otherwise use the rights of a program on this machine, and
// one whose name was made to point here could be taken for ours. That one reads (GET) without an
// Origin, and with any other header that it likes; therefore the name is looked at also then, over
// loopback. One without a dot is of this machine or its network: nobody else can make it point
// here.
static bool head_is_own(const hth_http_conn *c, const may_head *q, const char *host)
{
    bool own = host_is_own(host) || host_is_listed(host);
    if (q->origin == NULL) {
        return c == NULL || c->peer != HTH_PEER_LOOPBACK || own || strchr(host, '.') == NULL;
    }
    const char *at = strstr(q->origin, "://");
    return own && at != NULL && q->host != NULL && strlen(at + 3) == q->host_bytes &&
           strncasecmp(at + 3, q->host, q->host_bytes) == 0;
}

// head_peer is who asks: what a proxy passes on comes from elsewhere.
static hth_peer head_peer(const hth_http_conn *c, const may_head *q, const char *host)
{
    bool loopback = c != NULL && c->peer == HTH_PEER_LOOPBACK;
    bool passed = q->forwarded || (!host_is_own(host) && host_is_listed(host));
    return loopback && !passed ? HTH_PEER_LOOPBACK : HTH_PEER_NETWORK;
}

bool hth_http_is_near(hth_http *h, struct evhttp_request *req)
{
    char host[HOST_BYTES];
    may_head q;
    head_read(evhttp_request_get_input_headers(req), evhttp_request_get_uri(req), &q);
    head_host(&q, host);
    return head_peer(hth_http_conn_of(h, req), &q, host) == HTH_PEER_LOOPBACK;
}

static const char *bearer(const may_head *q)
{
    const char *t = q->authorization;
    if (t == NULL || strncasecmp(t, "Bearer", 6) != 0 || t[6] != ' ') {
        return NULL;
    }
    return t + 6 + strspn(t + 6, " ");
}

bool hth_http_is_admin(hth_http *h, struct evhttp_request *req)
{
    char host[HOST_BYTES];
    may_head q;
    head_read(evhttp_request_get_input_headers(req), evhttp_request_get_uri(req), &q);
    head_host(&q, host);
    return hth_auth_allows(h->auth, head_peer(hth_http_conn_of(h, req), &q, host), bearer(&q),
                           HTH_NEED_ADMIN);
}

void hth_http_tenant(hth_http *h, struct evhttp_request *req, char *out, size_t cap)
{
    may_head q = {.host = NULL};
    if (hth_auth_has_tokens(h->auth)) {
        head_read(evhttp_request_get_input_headers(req), evhttp_request_get_uri(req), &q);
    }
    hth_auth_tenant(h->auth, bearer(&q), HTH_HTTP_NOBODY, out, cap);
}

bool hth_http_judge(hth_http *h, const hth_http_conn *c, const char *target,
                    const struct evkeyvalq *headers, hth_need need, hth_http_refusal *no)
{
    may_head q;
    char host[HOST_BYTES];
    *no = (hth_http_refusal){.status = 403};
    if (need == HTH_NEED_NOTHING) {
        return true;
    }
    head_read(headers, target, &q);
    head_host(&q, host);
    if (!hth_auth_has_tokens(h->auth) && !head_is_own(c, &q, host)) {
        snprintf(no->sentence, sizeof no->sentence, "%s",
                 q.origin != NULL
                     ? "pages of other origins may not use this server while it has no tokens"
                     : "while it has no tokens, this server is called by localhost or an "
                       "address on its own machine: the Host header names another. Where a proxy "
                       "passes that name on, hearthd needs --http-hosts NAME");
        return false;
    }
    if (hth_auth_check(h->auth, head_peer(c, &q, host), bearer(&q), need, &no->challenge) ==
        HTH_OK) {
        return true;
    }
    no->status = no->challenge ? 401 : 403;
    snprintf(no->sentence, sizeof no->sentence, "%s", hth_err_detail());
    return false;
}

bool hth_http_auth(hth_http *h, struct evhttp_request *req, hth_need need)
{
    hth_http_refusal no;
    if (hth_http_judge(h, hth_http_conn_of(h, req), evhttp_request_get_uri(req),
                       evhttp_request_get_input_headers(req), need, &no)) {
        return true;
    }
    if (no.challenge) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "WWW-Authenticate",
                          HTH_HTTP_CHALLENGE);
    }
    hth_http_fail(h, req, no.status, "%s", no.sentence);
    return false;
}
