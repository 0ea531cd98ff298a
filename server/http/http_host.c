// SPDX-License-Identifier: Apache-2.0
// The name that a request calls the server by: the Host header or, where the request line has one,
// the host in its target, which then counts alone (RFC 9112, 3.2.2). Rights may depend on it
// (http_may.c): what is no name, or two, is refused and never interpreted.
#include "server/http/http_call.h"

#include <event2/keyvalq_struct.h>

#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

// host_chars counts the leading bytes that a registered name or an IPv4 address may have (RFC 3986,
// 3.2.2).
static size_t host_chars(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && (isalnum((unsigned char)p[i]) ||
                     (p[i] != 0 && strchr("-._~%!$&'()*+,;=", p[i]) != NULL))) {
        i++;
    }
    return i;
}

// host_literal counts the bytes of an address in brackets; 0: it is not one.
static size_t host_literal(const char *p, size_t n)
{
    size_t i = 1;
    while (i < n && (isxdigit((unsigned char)p[i]) || p[i] == ':' || p[i] == '.')) {
        i++;
    }
    return i > 2 && i < n && p[i] == ']' ? i + 1 : 0;
}

bool hth_http_host_sound(const char *host, size_t n)
{
    bool literal = n > 0 && host[0] == '[';
    size_t i = literal ? host_literal(host, n) : host_chars(host, n);
    if (n > HTH_HTTP_HOST_BYTES || (literal && i == 0)) {
        return false;
    }
    if (i < n && host[i] == ':') {
        i++;
        while (i < n && isdigit((unsigned char)host[i])) {
            i++;
        }
    }
    return i == n;
}

size_t hth_http_trim(const char **value)
{
    *value += strspn(*value, " \t");
    size_t n = strlen(*value);
    while (n > 0 && strchr(" \t", (*value)[n - 1]) != NULL) {
        n--;
    }
    return n;
}

const char *hth_http_authority(const char *target, size_t *n)
{
    bool absolute = target != NULL && target[0] != '/'; // evhttp has none for what it refused
    const char *at = absolute ? strstr(target, "://") : NULL;
    *n = at != NULL ? strcspn(at + 3, "/?#") : 0;
    return at != NULL ? at + 3 : NULL;
}

const char *hth_http_host_wrong(const struct evkeyvalq *headers, const char *target, bool needed)
{
    const struct evkeyval *kv;
    size_t n, hosts = 0;
    TAILQ_FOREACH(kv, headers, next)
    {
        if ((kv->key[0] | 32) == 'h' && strcasecmp(kv->key, "Host") == 0) {
            const char *value = kv->value;
            size_t bytes = hth_http_trim(&value);
            if (!hth_http_host_sound(value, bytes)) {
                return "the Host header is not a host's name or address, with or without a port, "
                       "of at most 255 bytes";
            }
            hosts++;
        }
    }
    const char *authority = hth_http_authority(target, &n);
    if (hosts > 1) {
        return "the request has more than one Host header";
    }
    if (hosts == 0 && needed) {
        return "the request has no Host header, which HTTP/1.1 needs";
    }
    return authority != NULL && (n == 0 || !hth_http_host_sound(authority, n))
               ? "the request's target names no host"
               : NULL;
}

const char *hth_http_twice(const struct evkeyvalq *headers)
{
    static const struct {
        const char *name, *sentence;
    } once[] = {
        {"Authorization", "the request has more than one Authorization header"},
        {"Origin", "the request has more than one Origin header"},
        {"Content-Encoding", "the request has more than one Content-Encoding header"},
        {"Inference-Header-Content-Length",
         "the request has more than one Inference-Header-Content-Length header"},
    };
    enum { N = sizeof once / sizeof once[0] };
    const struct evkeyval *kv;
    bool seen[N] = {false};
    TAILQ_FOREACH(kv, headers, next)
    {
        for (int i = 0; i < N; i++) {
            if ((kv->key[0] | 32) == (once[i].name[0] | 32) &&
                strcasecmp(kv->key, once[i].name) == 0) {
                if (seen[i]) {
                    return once[i].sentence;
                }
                seen[i] = true;
            }
        }
    }
    return NULL;
}
