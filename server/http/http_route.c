// SPDX-License-Identifier: Apache-2.0
// The table of routes. The path is split at '/' before anything is percent-decoded, so an encoded
// slash cannot make a segment; names are decoded afterwards, once. "versions/V" behind a model's
// name is taken out before the table is looked at.
#include "server/http/http_call.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define ROUTE_SEGMENTS 10

typedef struct route {
    const char *path; // '*': a name
    enum evhttp_cmd_type verb;
    bool versioned; // "versions/V" may stand behind the model's name
    hth_need need;  // who may (auth.h)
    hth_http_handler *handler;
} route;

static const route route_table[] = {
    {"v2/models/*/infer", EVHTTP_REQ_POST, true, HTH_NEED_INFER, hth_http_infer},
    {"v2/models/*/generate", EVHTTP_REQ_POST, true, HTH_NEED_INFER, hth_http_generate},
    {"v2/models/*/generate_stream", EVHTTP_REQ_POST, true, HTH_NEED_INFER,
     hth_http_generate_stream},
    {"v2/health/live", EVHTTP_REQ_GET, false, HTH_NEED_NOTHING, hth_http_live},
    {"v2/health/ready", EVHTTP_REQ_GET, false, HTH_NEED_NOTHING, hth_http_ready},
    {"v2", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_server_metadata},
    {"v2/models/stats", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_all_stats},
    {"v2/models/*/stats", EVHTTP_REQ_GET, true, HTH_NEED_ANY, hth_http_model_stats},
    {"v2/repository/index", EVHTTP_REQ_POST, false, HTH_NEED_ANY, hth_http_repo_index},
    {"v2/repository/*/index", EVHTTP_REQ_POST, false, HTH_NEED_ANY, hth_http_repo_index},
    {"v2/repository/models/*/load", EVHTTP_REQ_POST, false, HTH_NEED_MODEL, hth_http_repo_load},
    {"v2/repository/models/*/unload", EVHTTP_REQ_POST, false, HTH_NEED_MODEL, hth_http_repo_unload},
    {"v2/repository/*/models/*/load", EVHTTP_REQ_POST, false, HTH_NEED_MODEL, hth_http_repo_named},
    {"v2/repository/*/models/*/unload", EVHTTP_REQ_POST, false, HTH_NEED_MODEL,
     hth_http_repo_named},
    {"v2/systemsharedmemory/status", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_shm_status},
    {"v2/systemsharedmemory/register", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_shm_unnamed},
    {"v2/systemsharedmemory/unregister", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_shm_unregister},
    {"v2/systemsharedmemory/region/*/status", EVHTTP_REQ_GET, false, HTH_NEED_ANY,
     hth_http_shm_status},
    {"v2/systemsharedmemory/region/*/register", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_shm_register},
    {"v2/systemsharedmemory/region/*/unregister", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_shm_unregister},
    {"v2/cudasharedmemory/status", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_cuda_status},
    {"v2/cudasharedmemory/register", EVHTTP_REQ_POST, false, HTH_NEED_INFER, hth_http_shm_unnamed},
    {"v2/cudasharedmemory/unregister", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_cuda_unregister},
    {"v2/cudasharedmemory/region/*/status", EVHTTP_REQ_GET, false, HTH_NEED_ANY,
     hth_http_cuda_status},
    {"v2/cudasharedmemory/region/*/register", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_cuda_register},
    {"v2/cudasharedmemory/region/*/unregister", EVHTTP_REQ_POST, false, HTH_NEED_INFER,
     hth_http_cuda_unregister},
    {"v2/trace/setting", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_trace_get},
    {"v2/trace/setting", EVHTTP_REQ_POST, false, HTH_NEED_ADMIN, hth_http_trace_set},
    {"v2/models/*/trace/setting", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_trace_get},
    {"v2/models/*/trace/setting", EVHTTP_REQ_POST, false, HTH_NEED_ADMIN, hth_http_trace_set},
    {"v2/logging", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_logging_get},
    {"v2/logging", EVHTTP_REQ_POST, false, HTH_NEED_ADMIN, hth_http_logging_set},
    {"", EVHTTP_REQ_GET, false, HTH_NEED_NOTHING,
     hth_http_dashboard_page}, // without a figure in it
    {"v2/hearth/devices", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_devices},
    {"v2/hearth/stats", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_stats},
    {"v2/hearth/models", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_models},
    {"v2/hearth/latency", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_latency},
    {"v2/hearth/jobs", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_jobs},
    {"v2/hearth/jobs/*", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_job},
    {"v2/hearth/timeline", EVHTTP_REQ_GET, false, HTH_NEED_ANY, hth_http_dashboard_timeline},
    {"v2/models/*", EVHTTP_REQ_GET, true, HTH_NEED_ANY, hth_http_model_metadata},
    {"v2/models/*/config", EVHTTP_REQ_GET, true, HTH_NEED_ANY, hth_http_model_config},
    {"v2/models/*/ready", EVHTTP_REQ_GET, true, HTH_NEED_ANY, hth_http_model_ready},
};

typedef struct segment {
    const char *p;
    size_t n;
} segment;

typedef struct parts {
    segment at[ROUTE_SEGMENTS];
    int n;
    segment version; // p NULL: none
} parts;

static bool segment_is(const segment *s, const char *word)
{
    return s->n == strlen(word) && memcmp(s->p, word, s->n) == 0;
}

static bool path_split(const char *path, parts *out)
{
    out->n = 0;
    out->version.p = NULL;
    if (path == NULL || path[0] != '/') {
        return false;
    }
    for (const char *p = path + 1;; p++) {
        const char *end = strchrnul(p, '/');
        if (out->n == ROUTE_SEGMENTS) {
            return false;
        }
        out->at[out->n++] = (segment){p, (size_t)(end - p)};
        if (*end == 0) {
            return true;
        }
        p = end;
    }
}

// path_version takes "versions/V" out of v2/models/M/versions/V...; false: V is no number.
static bool path_version(parts *s)
{
    if (s->n < 5 || !segment_is(&s->at[1], "models") || !segment_is(&s->at[3], "versions")) {
        return true;
    }
    s->version = s->at[4];
    memmove(&s->at[3], &s->at[5], (size_t)(s->n - 5) * sizeof s->at[0]);
    s->n -= 2;
    for (size_t i = 0; i < s->version.n; i++) {
        if (s->version.p[i] < '0' || s->version.p[i] > '9') {
            return false;
        }
    }
    return s->version.n > 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// segment_decode undoes percent-encoding. false: it is malformed, or decodes to a NUL.
static bool segment_decode(const segment *s, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if (c == '%') {
            int high = s->n - i > 2 ? hex_digit(s->p[i + 1]) : -1;
            int low = s->n - i > 2 ? hex_digit(s->p[i + 2]) : -1;
            if (high < 0 || low < 0 || high + low == 0) {
                return false;
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (n + 1 >= cap) {
            return false;
        }
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

static bool route_matches(const route *r, const parts *s, const segment **name)
{
    const char *p = r->path;
    *name = NULL;
    if (s->version.p != NULL && !r->versioned) {
        return false;
    }
    for (int i = 0; i < s->n; i++) {
        const char *end = strchrnul(p, '/');
        segment want = {p, (size_t)(end - p)};
        if (want.n == 1 && *p == '*') {
            *name = &s->at[i];
            if (s->at[i].n == 0) {
                return false;
            }
        } else if (want.n != s->at[i].n || memcmp(want.p, s->at[i].p, want.n) != 0) {
            return false;
        }
        if (*end == 0) {
            return i == s->n - 1;
        }
        p = end + 1;
    }
    return false;
}

// name_is_text tells whether a name is UTF-8, as JSON has it.
static bool name_is_text(const char *name)
{
    const char *p = name;
    while ((signed char)*p > 0) {
        p++;
    }
    json_t *text = *p != 0 ? json_string(name) : NULL;
    json_decref(text);
    return *p == 0 || text != NULL;
}

// route_name looks at a decoded name. false: answered.
static bool route_name(hth_http *h, struct evhttp_request *req, const route *r, const char *name)
{
    // no model has such a name, and ':' would say a version
    bool model = strstr(r->path, "models/*") != NULL, text = name_is_text(name);
    if (model && (!text || strpbrk(name, "/:") != NULL)) {
        hth_http_fail(h, req, HTTP_NOTFOUND, "Request for unknown model: '%s' is not found", name);
        return false;
    }
    if (!text) {
        hth_http_fail(h, req, HTTP_BADREQUEST, "the name '%s' in the path is not UTF-8", name);
    }
    return text;
}

// route_args decodes what the path says. false: answered.
static bool route_args(hth_http *h, struct evhttp_request *req, const route *r, const parts *s,
                       const segment *name, hth_http_args *a)
{
    a->name[0] = a->spec[0] = 0;
    a->version = 0;
    if (name == NULL) {
        return true;
    }
    if (!segment_decode(name, a->name, sizeof a->name)) {
        hth_http_fail(h, req, name->n > 3 * sizeof a->name ? HTTP_NOTFOUND : HTTP_BADREQUEST,
                      "a name in the path is not percent-encoded as it should be, or too long");
        return false;
    }
    if (!route_name(h, req, r, a->name)) {
        return false;
    }
    if (s->version.p == NULL) {
        strcpy(a->spec, a->name);
        return true;
    }
    long v = s->version.n < 10 ? strtol(s->version.p, NULL, 10) : 0;
    if (v < 1) { // 0, or more than any version
        hth_http_fail(h, req, HTTP_NOTFOUND,
                      "Request for unknown model: '%s' version %.*s is not found", a->name,
                      (int)(s->version.n < 40 ? s->version.n : 40), s->version.p);
        return false;
    }
    a->version = (int)v;
    snprintf(a->spec, sizeof a->spec, "%s:%d", a->name, a->version);
    return true;
}

// route_path is the path behind http.prefix, or NULL when it has another one.
static const char *route_path(const hth_http *h, const char *path)
{
    size_t n = strlen(h->prefix);
    return path != NULL && strncmp(path, h->prefix, n) == 0 ? path + n : NULL;
}

const char *hth_http_route_allow(const hth_http *h, const char *path)
{
    parts s;
    const segment *name;
    bool get = false, post = false;
    path = route_path(h, path);
    bool split = path_split(path, &s) && path_version(&s);
    for (size_t i = 0; split && i < sizeof route_table / sizeof route_table[0]; i++) {
        const route *r = &route_table[i];
        bool here = route_matches(r, &s, &name);
        get = get || (here && r->verb == EVHTTP_REQ_GET);
        post = post || (here && r->verb == EVHTTP_REQ_POST);
    }
    return get && post ? HTH_HTTP_ALLOW_ALL : get ? HTH_HTTP_ALLOW_GET : "POST";
}

// route_find looks for what is served there; NULL: *status says why nothing is. A HEAD is a GET
// whose answer's body is not sent.
static const route *route_find(const hth_http *h, const char *path, enum evhttp_cmd_type verb,
                               parts *s, const segment **name, int *status)
{
    path = route_path(h, path);
    verb = verb == EVHTTP_REQ_HEAD ? EVHTTP_REQ_GET : verb;
    *status = HTTP_NOTFOUND;
    if (!path_split(path, s) || !path_version(s)) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof route_table / sizeof route_table[0]; i++) {
        const route *r = &route_table[i];
        if (route_matches(r, s, name)) {
            *status = HTTP_BADMETHOD;
            if (r->verb == verb) {
                return r;
            }
        }
    }
    return NULL;
}

int hth_http_route_find(const hth_http *h, const char *path, enum evhttp_cmd_type verb,
                        hth_need *need)
{
    parts s;
    const segment *name;
    int status;
    const route *r = route_find(h, path, verb, &s, &name, &status);
    *need = r != NULL ? r->need : HTH_NEED_ADMIN;
    return r != NULL ? HTTP_OK : status;
}

static const route *route_of(const hth_http *h, struct evhttp_request *req, parts *s,
                             const segment **name, int *status)
{
    return route_find(h, evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req)),
                      evhttp_request_get_command(req), s, name, status);
}

void hth_http_route_on(hth_http *h, struct evhttp_request *req)
{
    parts s;
    const segment *name;
    hth_http_args a;
    int status;
    const route *r = route_of(h, req, &s, &name, &status); // it was found before
    if (r != NULL && route_args(h, req, r, &s, name, &a)) {
        r->handler(h, req, &a);
    }
}

void hth_http_route(hth_http *h, struct evhttp_request *req)
{
    parts s;
    const segment *name;
    hth_http_args a;
    int status;
    const route *r = route_of(h, req, &s, &name, &status);
    if (r == NULL) {
        if (status == HTTP_BADMETHOD) {
            const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
            evhttp_add_header(evhttp_request_get_output_headers(req), "Allow",
                              hth_http_route_allow(h, path));
        }
        hth_http_fail(h, req, status, "%s", hth_http_phrase(status));
    } else if (hth_http_auth(h, req, r->need) && hth_http_inflate(h, req) &&
               route_args(h, req, r, &s, name, &a)) {
        r->handler(h, req, &a);
    }
}
