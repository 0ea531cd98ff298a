// SPDX-License-Identifier: Apache-2.0
// The table of routes, and the short JSON bodies that most of them read. The path is split at '/'
// before anything is percent-decoded, so an encoded slash cannot make a segment; names are decoded
// afterwards, once. "versions/V" after a model's name is taken out before the table is looked at.
#include "server/http/http_call.h"

#include "client/content/objects.h"
#include "server/http/http_url.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define ROUTE_SEGMENTS 10
// The most JSON of a request that brings no tensors and no model.
#define ROUTE_BODY_BYTES (64 << 10)
// .. of one that lists tensors, with a graph in it, or says what a job is to do: the parser takes a
// second for some 30 MiB.
#define ROUTE_LIST_BYTES (16 << 20)

struct hth_http_route {
    const char *path; // '*': a name
    hth_http_verb verb;
    bool versioned; // "versions/V" may stand after the model's name
    hth_need need;  // who may (auth.h)
    hth_http_handler *handler;
    uint64_t most; // bytes of its body; 0: limits.message_bytes
};

typedef struct hth_http_route route;

static const route route_table[] = {
    {"v2/models/*/infer", HTH_VERB_POST, true, HTH_NEED_INFER, hth_http_infer, 0},
    {"v2/models/*/generate", HTH_VERB_POST, true, HTH_NEED_INFER, hth_http_generate, 0},
    {"v2/models/*/generate_stream", HTH_VERB_POST, true, HTH_NEED_INFER, hth_http_generate_stream,
     0},
    {"v2/health/live", HTH_VERB_GET, false, HTH_NEED_NOTHING, hth_http_live, 0},
    {"v2/health/ready", HTH_VERB_GET, false, HTH_NEED_NOTHING, hth_http_ready, 0},
    {"v2", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_server_metadata, 0},
    {"v2/models/stats", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_all_stats, 0},
    {"v2/models/*/stats", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_stats, 0},
    {"v2/repository/index", HTH_VERB_POST, false, HTH_NEED_ANY, hth_http_repo_index, 0},
    {"v2/repository/*/index", HTH_VERB_POST, false, HTH_NEED_ANY, hth_http_repo_index, 0},
    {"v2/repository/models/*/load", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_load, 0},
    {"v2/repository/models/*/unload", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_unload,
     0},
    {"v2/repository/*/models/*/load", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_named, 0},
    {"v2/repository/*/models/*/unload", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_repo_named,
     0},
    {"v2/systemsharedmemory/status", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_shm_status, 0},
    {"v2/systemsharedmemory/register", HTH_VERB_POST, false, HTH_NEED_INFER, hth_http_shm_unnamed,
     0},
    {"v2/systemsharedmemory/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_shm_unregister, 0},
    {"v2/systemsharedmemory/region/*/status", HTH_VERB_GET, false, HTH_NEED_ANY,
     hth_http_shm_status, 0},
    {"v2/systemsharedmemory/region/*/register", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_shm_register, 0},
    {"v2/systemsharedmemory/region/*/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_shm_unregister, 0},
    {"v2/cudasharedmemory/status", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_cuda_status, 0},
    {"v2/cudasharedmemory/register", HTH_VERB_POST, false, HTH_NEED_INFER, hth_http_shm_unnamed, 0},
    {"v2/cudasharedmemory/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_cuda_unregister, 0},
    {"v2/cudasharedmemory/region/*/status", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_cuda_status,
     0},
    {"v2/cudasharedmemory/region/*/register", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_cuda_register, 0},
    {"v2/cudasharedmemory/region/*/unregister", HTH_VERB_POST, false, HTH_NEED_INFER,
     hth_http_cuda_unregister, 0},
    {"v2/trace/setting", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_trace_get, 0},
    {"v2/trace/setting", HTH_VERB_POST, false, HTH_NEED_ADMIN, hth_http_trace_set, 0},
    {"v2/models/*/trace/setting", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_trace_get, 0},
    {"v2/models/*/trace/setting", HTH_VERB_POST, false, HTH_NEED_ADMIN, hth_http_trace_set, 0},
    {"v2/logging", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_logging_get, 0},
    {"v2/logging", HTH_VERB_POST, false, HTH_NEED_ADMIN, hth_http_logging_set, 0},
    {"", HTH_VERB_GET, false, HTH_NEED_NOTHING, hth_http_dashboard_page,
     0}, // without a figure in it
    {"v2/hearth/devices", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_devices, 0},
    {"v2/hearth/stats", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_stats, 0},
    {"v2/hearth/models", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_models, 0},
    {"v2/hearth/latency", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_latency, 0},
    {"v2/hearth/jobs", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_job_list, 0},
    {"v2/hearth/jobs", HTH_VERB_POST, false, HTH_NEED_JOB, hth_http_job_submit, ROUTE_LIST_BYTES},
    {"v2/hearth/jobs/*", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_job, 0},
    {"v2/hearth/jobs/*/events", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_job_events, 0},
    {"v2/hearth/jobs/*/logs", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_job_logs, 0},
    {"v2/hearth/jobs/*/result", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_job_result, 0},
    {"v2/hearth/jobs/*/pause", HTH_VERB_POST, false, HTH_NEED_JOB, hth_http_job_pause, 0},
    {"v2/hearth/jobs/*/resume", HTH_VERB_POST, false, HTH_NEED_JOB, hth_http_job_resume,
     ROUTE_LIST_BYTES},
    {"v2/hearth/jobs/*/cancel", HTH_VERB_POST, false, HTH_NEED_JOB, hth_http_job_cancel, 0},
    {"v2/hearth/tensors/have", HTH_VERB_POST, false, HTH_NEED_CONTENT, hth_http_tensors_have,
     ROUTE_LIST_BYTES},
    {"v2/hearth/tensors/discard", HTH_VERB_POST, false, HTH_NEED_CONTENT, hth_http_tensors_discard,
     ROUTE_LIST_BYTES},
    {"v2/hearth/tensors/*", HTH_VERB_PUT, false, HTH_NEED_CONTENT, hth_http_tensors_put,
     HTH_CONTENT_PIECE_BYTES},
    {"v2/hearth/models/*", HTH_VERB_POST, false, HTH_NEED_MODEL, hth_http_version_commit,
     ROUTE_LIST_BYTES},
    {"v2/hearth/models/*/manifest", HTH_VERB_GET, true, HTH_NEED_MODEL, hth_http_version_manifest,
     0},
    {"v2/hearth/models/*/tensors/*", HTH_VERB_GET, true, HTH_NEED_MODEL, hth_http_version_tensor,
     0},
    {"v2/hearth/datasets", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dataset_list, 0},
    {"v2/hearth/datasets/*", HTH_VERB_PUT, false, HTH_NEED_JOB, hth_http_dataset_put,
     ROUTE_LIST_BYTES},
    {"v2/hearth/datasets/*", HTH_VERB_DELETE, false, HTH_NEED_JOB, hth_http_dataset_remove, 0},
    {"v2/hearth/aliases/*", HTH_VERB_PUT, false, HTH_NEED_MODEL, hth_http_alias_put,
     ROUTE_LIST_BYTES},
    {"v2/hearth/aliases/*", HTH_VERB_DELETE, false, HTH_NEED_MODEL, hth_http_alias_remove, 0},
    {"v2/hearth/openapi.json", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_openapi, 0},
    {"v2/hearth/roles", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_roles, 0},
    {"v2/hearth/shares", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_shares, 0},
    {"v2/hearth/timeline", HTH_VERB_GET, false, HTH_NEED_ANY, hth_http_dashboard_timeline, 0},
    {"v2/models/*", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_metadata, 0},
    {"v2/models/*/config", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_config, 0},
    {"v2/models/*/ready", HTH_VERB_GET, true, HTH_NEED_ANY, hth_http_model_ready, 0},
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

// path_version takes "versions/V" out of v2/models/M/versions/V.. and
// v2/hearth/models/M/versions/V.. false: V is no number.
static bool path_version(parts *path)
{
    int model = path->n > 1 && segment_is(&path->at[1], "hearth") ? 3 : 2, word = model + 1;
    if (path->n < word + 2 || !segment_is(&path->at[model - 1], "models") ||
        !segment_is(&path->at[word], "versions")) {
        return true;
    }
    path->version = path->at[word + 1];
    memmove(&path->at[word], &path->at[word + 2],
            (size_t)(path->n - word - 2) * sizeof path->at[0]);
    path->n -= 2;
    for (size_t i = 0; i < path->version.n; i++) {
        if (path->version.p[i] < '0' || path->version.p[i] > '9') {
            return false;
        }
    }
    return path->version.n > 0;
}

// path_names are what a route's path has a '*' for; p NULL: nothing.
typedef struct path_names {
    segment name, item;
} path_names;

static bool route_matches(const route *row, const parts *path, path_names *names)
{
    const char *p = row->path;
    *names = (path_names){{NULL, 0}, {NULL, 0}};
    if (path->version.p != NULL && !row->versioned) {
        return false;
    }
    for (int i = 0; i < path->n; i++) {
        const char *end = strchrnul(p, '/');
        const segment *is = &path->at[i];
        if (*p == '*') {
            *(names->name.p == NULL ? &names->name : &names->item) = *is;
            if (is->n == 0) {
                return false;
            }
        } else if ((size_t)(end - p) != is->n || memcmp(p, is->p, is->n) != 0) {
            return false;
        }
        if (*end == 0) {
            return i == path->n - 1;
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
    const segment *name = &req->name, *item = &req->item, *version = &req->version;
    args->name[0] = args->item[0] = args->spec[0] = 0;
    args->version = 0;
    if (name->p == NULL) {
        return true;
    }
    if (!hth_http_decode(name->p, name->n, args->name, sizeof args->name) ||
        !hth_http_decode(item->p, item->n, args->item, sizeof args->item)) {
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

static const struct {
    hth_http_verb verb;
    const char *word, *allow;
} verbs[] = {{HTH_VERB_GET, "get", HTH_HTTP_ALLOW_GET},
             {HTH_VERB_POST, "post", "POST"},
             {HTH_VERB_PUT, "put", "PUT"},
             {HTH_VERB_DELETE, "delete", "DELETE"}};

#define N_ROUTES (sizeof route_table / sizeof route_table[0])
#define N_VERBS  (sizeof verbs / sizeof verbs[0])

const char *hth_http_route_at(size_t i, const char **verb, bool *versioned)
{
    if (i >= N_ROUTES) {
        return NULL;
    }
    for (size_t k = 0; k < N_VERBS; k++) {
        *verb = verbs[k].verb == route_table[i].verb ? verbs[k].word : *verb;
    }
    *versioned = route_table[i].versioned;
    return route_table[i].path;
}

// route_allow lists the verbs that are served at a path, as the header Allow does.
static void route_allow(const parts *path, char *out)
{
    path_names names;
    out[0] = 0;
    for (size_t k = 0; k < N_VERBS; k++) {
        bool served = false;
        for (size_t i = 0; i < N_ROUTES; i++) {
            const route *row = &route_table[i];
            served = served || (row->verb == verbs[k].verb && route_matches(row, path, &names));
        }
        if (served) {
            strcat(out, out[0] != 0 ? ", " : "");
            strcat(out, verbs[k].allow);
        }
    }
}

bool hth_http_route_find(const hth_http *http, hth_http_req *req, hth_http_refusal *no)
{
    parts s;
    path_names names;
    const char *path = route_path(http, req->head.path);
    hth_http_verb verb = req->head.verb == HTH_VERB_HEAD ? HTH_VERB_GET : req->head.verb;
    bool here = false, split = path_split(path, &s) && path_version(&s);
    for (size_t i = 0; split && i < N_ROUTES; i++) {
        const route *r = &route_table[i];
        if (route_matches(r, &s, &names)) {
            here = true;
            if (r->verb == verb) {
                req->route = r;
                req->need = r->need;
                req->most =
                    r->most > 0 && r->most < http->message_bytes ? r->most : http->message_bytes;
                req->name = names.name;
                req->item = names.item;
                req->version = s.version;
                return true;
            }
        }
    }
    *no = (hth_http_refusal){.status = here ? 405 : 404};
    if (here) {
        route_allow(&s, no->allow);
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
