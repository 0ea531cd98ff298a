// SPDX-License-Identifier: Apache-2.0
// What a request over HTTP may: by where it comes from, its token, and what its route needs. A
// request over loopback is a program's of this machine unless its head tells otherwise: that a
// proxy passes it on, or that a browser sends it for a page of another origin.
#include "server/http/http_call.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HOST_BYTES (HTH_HTTP_HOST_BYTES + 1)

// head_host copies the name that the server was called by, without its port; "": none. A name that
// is not sound was refused before.
static void head_host(const hth_http_head *head, char out[HOST_BYTES])
{
    size_t n = 0;
    if (head->host != NULL && head->host_bytes < HOST_BYTES) {
        const char *end = head->host[0] == '[' ? "]" : ":";
        memcpy(out, head->host + (head->host[0] == '['), head->host_bytes);
        n = head->host_bytes - (head->host_bytes > 0 && head->host[0] == '[');
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
    char list[HTH_SETTING_TEXT];
    char *save = NULL;
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
static bool head_is_own(const hth_http_conn *conn, const hth_http_head *head, const char *host)
{
    bool own = host_is_own(host) || host_is_listed(host);
    if (head->origin == NULL) {
        return conn->peer != HTH_PEER_LOOPBACK || own || strchr(host, '.') == NULL;
    }
    const char *at = strstr(head->origin, "://");
    return own && at != NULL && head->host != NULL && strlen(at + 3) == head->host_bytes &&
           strncasecmp(at + 3, head->host, head->host_bytes) == 0;
}

// head_peer is who asks: what a proxy passes on comes from elsewhere.
static hth_peer head_peer(const hth_http_conn *conn, const hth_http_head *head, const char *host)
{
    bool loopback = conn->peer == HTH_PEER_LOOPBACK;
    bool passed = head->forwarded || (!host_is_own(host) && host_is_listed(host));
    return loopback && !passed ? HTH_PEER_LOOPBACK : HTH_PEER_NETWORK;
}

static hth_peer req_peer(const hth_http_req *req)
{
    char host[HOST_BYTES];
    head_host(&req->head, host);
    return head_peer(req->conn, &req->head, host);
}

bool hth_http_is_near(const hth_http_req *req)
{
    return req_peer(req) == HTH_PEER_LOOPBACK;
}

static const char *bearer(const hth_http_head *head)
{
    const char *t = head->authorization;
    if (t == NULL || strncasecmp(t, "Bearer", 6) != 0 || t[6] != ' ') {
        return NULL;
    }
    return t + 6 + strspn(t + 6, " ");
}

const char *hth_http_token(const hth_http_req *req)
{
    return bearer(&req->head);
}

bool hth_http_is_admin(hth_http *http, const hth_http_req *req)
{
    return hth_auth_allows(http->auth, req_peer(req), bearer(&req->head), HTH_NEED_ADMIN);
}

void hth_http_roles(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    static const struct {
        const char *role;
        hth_need need;
    } row[] = {{"infer", HTH_NEED_INFER},
               {"model", HTH_NEED_MODEL},
               {"job", HTH_NEED_JOB},
               {"admin", HTH_NEED_ADMIN}};
    json_t *roles = json_array();
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (hth_auth_allows(http->auth, req_peer(req), bearer(&req->head), row[i].need)) {
            json_array_append_new(roles, json_string(row[i].role));
        }
    }
    hth_http_add(req, "Cache-Control", "no-store");
    hth_http_send_json(http, req, json_pack("{s:o}", "roles", roles));
}

void hth_http_tenant(hth_http *http, const hth_http_req *req, char *out, size_t cap)
{
    hth_auth_tenant(http->auth, bearer(&req->head), HTH_HTTP_NOBODY, out, cap);
}

bool hth_http_may(hth_http *http, const hth_http_req *req, hth_need need, hth_http_refusal *no)
{
    const hth_http_head *q = &req->head;
    const hth_http_conn *c = req->conn;
    char host[HOST_BYTES];
    *no = (hth_http_refusal){.status = 403};
    if (need == HTH_NEED_NOTHING) {
        return true;
    }
    head_host(q, host);
    if (!hth_auth_has_tokens(http->auth) && !head_is_own(c, q, host)) {
        snprintf(
            no->sentence, sizeof no->sentence, "%s",
            q->origin != NULL
                ? "requests from pages of other origins are refused while the server has no tokens"
                : "without tokens, this server accepts only localhost and addresses of its own "
                  "machine in the Host header. If a proxy forwards another name, start hearthd "
                  "with --http-hosts NAME");
        return false;
    }
    if (hth_auth_check(http->auth, head_peer(c, q, host), bearer(q), need, &no->challenge) ==
        HTH_OK) {
        return true;
    }
    no->status = no->challenge ? 401 : 403;
    snprintf(no->sentence, sizeof no->sentence, "%s", hth_err_detail());
    return false;
}
