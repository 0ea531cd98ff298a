// SPDX-License-Identifier: Apache-2.0
// The table of routes, and the short JSON bodies that most of them read. The path is split at '/'
// before anything is percent-decoded, so an encoded slash cannot make a segment; names are decoded
// afterwards, once. "versions/V" after a model's name is taken out before the table is looked at.
#include "server/http/http_call.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define ROUTE_SEGMENTS 10
// The most JSON of a request that brings no tensors and no model.
#define ROUTE_BODY_BYTES (64 << 10)

struct hth_http_route {
    const char *path; // '*': a name
    hth_http_verb verb;
    bool versioned; // "versions/V" may stand after the model's name
    hth_need need;  // who may (auth.h)
    hth_http_handler *handler;
};

typedef struct hth_http_route route;

static const route route_table[] = {
    {"v2/models/*/infer", HTH_VERB_POST, true, HTH_NEED_INFER, hth_http_infer},
    {"v2/models/*/generate", HTH_VERB_POST, true, HTH_NEED_INFER, hth_http_generate},
    {"v2/models/*/generate_stream", HTH_VERB_POST, true, HTH_NEED_INFER, hth_http_generate_stream},
    {"v2/health/live", HTH_VERB_GET, false, HTH_NEED_NOTHING, hth_http_live},
    {"v2/health/ready", HTH_VERB_GET, false, HTH_NEED_NOTHING, hth_http_ready},
    {"v2", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_server_metadata},
    {"v2/models/stats", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_all_stats},
    {"v2/models/*/stats", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_stats},
    {"v2/repository/index", HTH_VERB_POST, false, HTH_NEED_ANY, hth_http_repo_index},
    {"v2/repository/*/index", HTH_VERB_POST, false, HTH_NEED_ANY, hth_http_repo_index},
    {"v2/repository/models/*/load", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_load},
    {"v2/repository/models/*/unload", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_unload},
    {"v2/repository/*/models/*/load", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_named},
    {"v2/repository/*/models/*/unload", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_named},
    {"v2/systemsharedmemory/status", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_shm_status},
    {"v2/systemsharedmemory/register", HTH_VERB_POST, false, HTH_NEED_INFER, hth_http_shm_unnamed},
    {"v2/systemsharedmemory/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_shm_unregister},
    {"v2/systemsharedmemory/region/*/status", HTH_VERB_GET, false, HTH_NEED_ANY,
     hth_http_shm_status},
    {"v2/systemsharedmemory/region/*/register", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_shm_register},
    {"v2/systemsharedmemory/region/*/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_shm_unregister},
    {"v2/cudasharedmemory/status", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_cuda_status},
    {"v2/cudasharedmemory/register", HTH_VERB_POST, false, HTH_NEED_INFER, hth_http_shm_unnamed},
    {"v2/cudasharedmemory/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_cuda_unregister},
    {"v2/cudasharedmemory/region/*/status", HTH_VERB_GET, false, HTH_NEED_ANY,
     hth_http_cuda_status},
    {"v2/cudasharedmemory/region/*/register", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_cuda_register},
    {"v2/cudasharedmemory/region/*/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_cuda_unregister},
    {"v2/trace/setting", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_trace_get},
    {"v2/trace/setting", HTH_VERB_POST, false, HTH_NEED_ADMIN, hth_http_trace_set},
    {"v2/models/*/trace/setting", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_trace_get},
    {"v2/models/*/trace/setting", HTH_VERB_POST, false, HTH_NEED_ADMIN, hth_http_trace_set},
    {"v2/logging", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_logging_get},
    {"v2/logging", HTH_VERB_POST, false, HTH_NEED_ADMIN, hth_http_logging_set},
    {"", HTH_VERB_GET, false, HTH_NEED_NOTHING, hth_http_dashboard_page}, // without a figure in it
    {"v2/hearth/devices", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_devices},
    {"v2/hearth/stats", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_stats},
    {"v2/hearth/models", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_models},
    {"v2/hearth/latency", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_latency},
    {"v2/hearth/jobs", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_jobs},
    {"v2/hearth/jobs/*", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_job},
    {"v2/hearth/shares", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_shares},
    {"v2/hearth/timeline", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_timeline},
    {"v2/models/*", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_metadata},
    {"v2/models/*/config", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_config},
    {"v2/models/*/ready", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_ready},
};

typedef hth_http_segment segment;

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
    int low = c | 32;
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
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
static bool route_name(hth_http *http, hth_http_req *req, const route *r, const char *name)
{
    // no model has such a name, and ':' would say a version
    bool model = strstr(r->path, "models/*") != NULL, text = name_is_text(name);
    if (model && (!text || strpbrk(name, "/:") != NULL)) {
        hth_http_fail(http, req, 404, "Request for unknown model: '%s' is not found", name);
        return false;
    }
    if (!text) {
        hth_http_fail(http, req, 400, "the name '%s' in the path is not UTF-8", name);
    }
    return text;
}

// route_args decodes what the path says. false: answered.
static bool route_args(hth_http *http, hth_http_req *req, hth_http_args *args)
{
    const segment *name = &req->name, *version = &req->version;
    args->name[0] = args->spec[0] = 0;
    args->version = 0;
    if (name->p == NULL) {
        return true;
    }
    if (!segment_decode(name, args->name, sizeof args->name)) {
        hth_http_fail(http, req, name->n > 3 * sizeof args->name ? 404 : 400,
                      "a name in the path is not percent-encoded as it should be, or too long");
        return false;
    }
    if (!route_name(http, req, req->route, args->name)) {
        return false;
    }
    if (version->p == NULL) {
        strcpy(args->spec, args->name);
        return true;
    }
    long v = version->n < 10 ? strtol(version->p, NULL, 10) : 0;
    if (v < 1) { // 0, or more than any version
        hth_http_fail(http, req, 404, "Request for unknown model: '%s' version %.*s is not found",
                      args->name, (int)(version->n < 40 ? version->n : 40), version->p);
        return false;
    }
    args->version = (int)v;
    snprintf(args->spec, sizeof args->spec, "%s:%d", args->name, args->version);
    return true;
}

// route_path is the path after http.prefix, or NULL when it has another one.
static const char *route_path(const hth_http *http, const char *path)
{
    size_t n = strlen(http->prefix);
    return path != NULL && strncmp(path, http->prefix, n) == 0 ? path + n : NULL;
}

// route_allow lists the verbs that are served at a path, as the header Allow does.
static const char *route_allow(const parts *s)
{
    const segment *name;
    bool get = false, post = false;
    for (size_t i = 0; i < sizeof route_table / sizeof route_table[0]; i++) {
        const route *r = &route_table[i];
        bool here = route_matches(r, s, &name);
        get = get || (here && r->verb == HTH_VERB_GET);
        post = post || (here && r->verb == HTH_VERB_POST);
    }
    if (!get) {
        return "POST";
    }
    return post ? HTH_HTTP_ALLOW_ALL : HTH_HTTP_ALLOW_GET;
}

bool hth_http_route_find(const hth_http *http, hth_http_req *req, hth_http_refusal *no)
{
    parts s;
    const segment *name;
    const char *path = route_path(http, req->head.path);
    hth_http_verb verb = req->head.verb == HTH_VERB_HEAD ? HTH_VERB_GET : req->head.verb;
    bool here = false, split = path_split(path, &s) && path_version(&s);
    for (size_t i = 0; split && i < sizeof route_table / sizeof route_table[0]; i++) {
        const route *r = &route_table[i];
        if (route_matches(r, &s, &name)) {
            here = true;
            if (r->verb == verb) {
                req->route = r;
                req->need = r->need;
                req->name = name != NULL ? *name : (segment){NULL, 0};
                req->version = s.version;
                return true;
            }
        }
    }
    *no = (hth_http_refusal){.status = 404};
    if (here) {
        *no = (hth_http_refusal){.status = 405, .allow = route_allow(&s)};
    }
    strcpy(no->sentence, hth_http_phrase(no->status));
    return false;
}

void hth_http_route_on(hth_http *http, hth_http_req *req)
{
    hth_http_args a;
    if (route_args(http, req, &a)) {
        req->route->handler(http, req, &a);
    }
}

bool hth_http_body(hth_http *http, hth_http_req *req, json_t **out)
{
    struct evbuffer *in = req->body;
    size_t n = evbuffer_get_length(in);
    *out = NULL;
    if (n == 0) {
        return true;
    }
    if (n > ROUTE_BODY_BYTES) {
        hth_http_fail(http, req, 413, "the body of this request is %zu bytes: at most %d are read",
                      n, ROUTE_BODY_BYTES);
        return false;
    }
    const char *text = (const char *)evbuffer_pullup(in, -1);
    hth_err err = text != NULL ? hth_json_parse(text, n, out) : hth_no_memory("a request");
    if (err != HTH_OK) {
        hth_http_fail_err(http, req, err);
    }
    return err == HTH_OK;
}
