// SPDX-License-Identifier: Apache-2.0
// What the page shows, as JSON below /v2/hearth. The engine is asked as by any client, and its last
// answer to each question is kept: while that is fresh, however many look, it is answered at once;
// and while the engine is within something long, or is started again, the last answer is given with
// its age, after HTH_HTTP_PATIENCE_NS at most. What the store knows is read from it.
#include "server/http/http_call.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/http/tensors/http_json.h"
#include "runtime/job_index.h"
#include "runtime/redact.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VIEW_FRESH_NS 200000000u
#define VIEW_MAX      32 // answers that are kept; the one that nobody asked for longest goes
#define VIEW_POINTS   600

struct hth_http_dashboard {
    hth_http_dashboard *next; // asked for before
    hth_command_id command;
    char job[201];
    char who[HTH_TENANT]; // whose jobs it is about; "": everybody's, or it is about no jobs
    int asking;           // calls at the engine
    char *text;           // NULL: no answer yet
    char *public;         // .. as who is elsewhere may see it; NULL: nobody asked
    uint64_t answered_ns;
};

typedef struct view_call {
    hth_http_call c;
    char *arguments; // NULL: there are none
} view_call;

static void view_free(hth_http_dashboard *v)
{
    hth_free(v->text);
    hth_free(v->public);
    hth_free(v);
}

void hth_http_views_close(hth_http *http)
{
    while (http->views != NULL) {
        hth_http_dashboard *v = http->views;
        http->views = v->next;
        view_free(v);
    }
}

// view_forget removes the one that nobody asked for longest, when there are too many.
static void view_forget(hth_http *h)
{
    hth_http_dashboard **at = &h->views, **last = NULL;
    int n = 0;
    for (; *at != NULL; at = &(*at)->next, n++) {
        last = (*at)->asking == 0 ? at : last;
    }
    if (n > VIEW_MAX && last != NULL) {
        hth_http_dashboard *v = *last;
        *last = v->next;
        view_free(v);
    }
}

// view_find makes the view the first of the list. NULL: no memory.
static hth_http_dashboard *view_find(hth_http *h, hth_command_id command, const char *job,
                                     const char *who)
{
    hth_http_dashboard **at = &h->views, *v;
    while (*at != NULL && ((*at)->command != command || strcmp((*at)->job, job) != 0 ||
                           strcmp((*at)->who, who) != 0)) {
        at = &(*at)->next;
    }
    if ((v = *at) != NULL) {
        *at = v->next;
    } else if ((v = hth_calloc(1, sizeof *v)) != NULL) {
        v->command = command;
        strcpy(v->job, job);
        strcpy(v->who, who);
    } else {
        return NULL;
    }
    v->next = h->views;
    h->views = v;
    return v;
}

// ---- answers

// view_state says why an answer is an older one.
static const char *view_state(hth_http *h, hth_err err)
{
    if (err == HTH_OK) {
        return "ready";
    }
    if (err == HTH_EDEVLOST || !hth_engine_ready(h->engine)) {
        return "restarting";
    }
    return err == HTH_ECANCELED ? "stopping" : "busy";
}

// view_send answers with what is known; nothing is null.
static void view_send(hth_http *h, hth_http_req *req, hth_http_dashboard *v, hth_err err)
{
    struct evbuffer *body = evbuffer_new();
    bool far = hth_command_is(v->command, HTH_COMMAND_REDACTED) && !hth_http_is_near(req);
    if (far && v->public == NULL && v->text != NULL) {
        v->public = hth_redact_jobs(v->text);
    }
    const char *text = far ? v->public : v->text;
    bool sent = body != NULL;
    if (text == NULL) {
        sent = sent && evbuffer_add_printf(body, "{\"state\":\"%s\",\"age_ms\":null,\"data\":null}",
                                           view_state(h, err)) > 0;
    } else {
        sent = sent &&
               evbuffer_add_printf(
                   body, "{\"state\":\"%s\",\"age_ms\":%" PRIu64 ",\"data\":", view_state(h, err),
                   (hth_now_ns() - v->answered_ns) / 1000000u) > 0 &&
               evbuffer_add(body, text, strlen(text)) == 0 && evbuffer_add(body, "}", 1) == 0;
    }
    hth_http_add(req, "Cache-Control", "no-store");
    hth_http_send(h, req, sent ? 200 : 503, "application/json", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
}

// view_who is whose view of `command` somebody has: a tenant is told about its own jobs.
static const char *view_who(hth_command_id command, const char *tenant, bool admin)
{
    return hth_command_is(command, HTH_COMMAND_OWN_JOBS) && !admin ? tenant : "";
}

static hth_http_dashboard *view_of(hth_http_call *c)
{
    return view_find(c->h, c->r.command, c->args.name,
                     view_who(c->r.command, c->tenant, c->r.admin));
}

static void view_late(hth_http_call *c, hth_err err)
{
    hth_http_dashboard *v = view_of(c);
    if (err != HTH_ETIMEDOUT) {
        v->asking--;
    }
    view_send(c->h, c->req, v, err);
}

// view_text replaces the answer that is kept; takes `text`, which may be NULL.
static void view_text(hth_http_dashboard *v, char *text)
{
    hth_free(v->text);
    hth_free(v->public);
    v->text = text;
    v->public = NULL;
}

static void view_finish(hth_http_call *c)
{
    hth_http_dashboard *v = view_of(c);
    v->asking--;
    if (c->r.err == HTH_OK) {
        view_text(v, c->r.json);
        c->r.json = NULL;
        v->answered_ns = hth_now_ns();
    } else if (c->r.err == HTH_ENOENT) { // there was one, perhaps
        view_text(v, NULL);
    }
    if (c->req == NULL) {
        return;
    }
    if (c->r.err == HTH_OK || v->text != NULL) {
        view_send(c->h, c->req, v, c->r.err);
    } else if (c->r.err == HTH_ENOENT) {
        hth_http_fail(c->h, c->req, 404, "%s", c->r.detail);
    } else {
        hth_http_fail_call(c, NULL);
    }
}

static void view_drop(hth_http_call *c)
{
    free(((view_call *)c)->arguments);
}

// view_arguments makes what the engine is asked about a job, which the path names or numbers;
// *out is NULL where the view is about none. HTH_ENOENT: the number of another tenant's job.
static hth_err view_arguments(hth_http *h, const hth_http_dashboard *v, char **out)
{
    *out = NULL;
    if (v->job[0] == 0) {
        return HTH_OK;
    }
    json_t *args = json_pack("{s:i, s:s}", "points", VIEW_POINTS, "job", v->job);
    hth_err err = hth_job_index_resolve(h->store, args, v->who[0] != 0 ? v->who : NULL);
    *out = err == HTH_OK ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    return err != HTH_OK || *out != NULL ? err : hth_fail(HTH_ENOMEM, "out of memory for a query");
}

static void view_ask(hth_http *h, hth_http_req *req, const hth_http_args *a, hth_http_dashboard *v)
{
    char *arguments;
    hth_err err = view_arguments(h, v, &arguments);
    if (err != HTH_OK) {
        hth_http_fail(h, req, err == HTH_ENOENT ? 404 : 503, "%s", hth_err_detail());
        return;
    }
    view_call *c = hth_http_call_new(h, req, a, sizeof *c);
    if (c == NULL) {
        free(arguments);
        return;
    }
    c->arguments = arguments;
    c->c.r.command = v->command;
    c->c.r.admin = v->who[0] == 0;
    c->c.r.arguments = c->arguments != NULL ? c->arguments : "{}";
    c->c.finish = view_finish;
    c->c.late = view_late;
    c->c.drop = view_drop;
    v->asking++;
    hth_http_call_submit(&c->c);
}

static void view_serve(hth_http *h, hth_http_req *req, const hth_http_args *a,
                       hth_command_id command)
{
    char tenant[HTH_TENANT];
    view_forget(h);
    hth_http_tenant(h, req, tenant, sizeof tenant);
    bool admin = hth_http_is_admin(h, req);
    hth_http_dashboard *v = view_find(h, command, a->name, view_who(command, tenant, admin));
    if (v == NULL) {
        hth_http_fail(h, req, 503, "out of memory for a request");
    } else if (v->text != NULL && hth_now_ns() - v->answered_ns < VIEW_FRESH_NS) {
        view_send(h, req, v, HTH_OK);
    } else if (v->text != NULL && v->asking > 0) { // the engine has the question already
        view_send(h, req, v, HTH_EBUSY);
    } else {
        view_ask(h, req, a, v);
    }
}

// ---- handlers

void hth_http_dashboard_devices(hth_http *h, hth_http_req *req, const hth_http_args *a)
{
    view_serve(h, req, a, HTH_COMMAND_DEVICES);
}

void hth_http_dashboard_stats(hth_http *h, hth_http_req *req, const hth_http_args *a)
{
    view_serve(h, req, a, HTH_COMMAND_STATS);
}

void hth_http_dashboard_latency(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_LATENCY);
}

void hth_http_dashboard_jobs(hth_http *h, hth_http_req *req, const hth_http_args *a)
{
    view_serve(h, req, a, HTH_COMMAND_JOBS);
}

void hth_http_dashboard_job(hth_http *h, hth_http_req *req, const hth_http_args *a)
{
    view_serve(h, req, a, HTH_COMMAND_JOB);
}

void hth_http_dashboard_timeline(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_TIMELINE);
}

hth_err hth_http_write_models(hth_http *h, const json_t *doc, bool far, hth_text *out)
{
    hth_store_entry *e;
    int n;
    HTH_TRY(hth_store_list(h->store, &e, &n));
    hth_text_put(out, "{\"state\":\"ready\",\"age_ms\":0,\"data\":[");
    for (int i = 0; i < n; i++) {
        hth_text_put(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        hth_text_quoted(out, e[i].name);
        hth_text_put(out, ",\"version\":");
        hth_text_int(out, e[i].version);
        hth_text_put(out, ",\"bytes\":");
        hth_text_int(out, (int64_t)e[i].bytes);
        hth_text_put(out, hth_http_unloaded_has(h, e[i].name) ? ",\"unloaded\":true}"
                                                              : ",\"unloaded\":false}");
    }
    hth_text_put(out, "]}");
    hth_free(e);
    return HTH_OK;
}

void hth_http_dashboard_models(hth_http *h, hth_http_req *req, const hth_http_args *a)
{
    hth_http_list_request(h, req, HTH_HTTP_LIST_MODELS);
}
