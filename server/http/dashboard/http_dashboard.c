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

#include <assert.h>
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
    hth_http_dashboard *view; // it asks for: there for as long as it is at the engine
    char *arguments;          // NULL: there are none
} view_call;

static void view_free(hth_http_dashboard *dashboard)
{
    hth_free(dashboard->text);
    hth_free(dashboard->public);
    hth_free(dashboard);
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
static void view_forget(hth_http *http)
{
    hth_http_dashboard **at = &http->views, **last = NULL;
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
static hth_http_dashboard *view_find(hth_http *http, hth_command_id command, const char *job,
                                     const char *who)
{
    hth_http_dashboard **at = &http->views, *v;
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
    v->next = http->views;
    http->views = v;
    return v;
}

// ---- answers

// view_state says why an answer is an older one.
static const char *view_state(hth_http *http, hth_err err)
{
    if (err == HTH_OK) {
        return "ready";
    }
    if (err == HTH_EDEVLOST || !hth_engine_ready(http->engine)) {
        return "restarting";
    }
    return err == HTH_ECANCELED ? "stopping" : "busy";
}

// view_send answers with what is known; nothing is null.
static void view_send(hth_http *http, hth_http_req *req, hth_http_dashboard *dashboard, hth_err err)
{
    struct evbuffer *body = evbuffer_new();
    bool far = hth_command_is(dashboard->command, HTH_COMMAND_REDACTED) && !hth_http_is_near(req);
    if (far && dashboard->public == NULL && dashboard->text != NULL) {
        dashboard->public = hth_redact_jobs(dashboard->text);
    }
    const char *text = far ? dashboard->public : dashboard->text;
    bool sent = body != NULL;
    if (text == NULL) {
        sent = sent && evbuffer_add_printf(body, "{\"state\":\"%s\",\"age_ms\":null,\"data\":null}",
                                           view_state(http, err)) > 0;
    } else {
        sent = sent &&
               evbuffer_add_printf(body, "{\"state\":\"%s\",\"age_ms\":%" PRIu64 ",\"data\":",
                                   view_state(http, err),
                                   (hth_now_ns() - dashboard->answered_ns) / 1000000u) > 0 &&
               evbuffer_add(body, text, strlen(text)) == 0 && evbuffer_add(body, "}", 1) == 0;
    }
    hth_http_add(req, "Cache-Control", "no-store");
    hth_http_send(http, req, sent ? 200 : 503, "application/json", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
}

// view_who is whose view of `command` somebody has: a tenant is told about its own jobs.
static const char *view_who(hth_command_id command, const char *tenant, bool admin)
{
    return hth_command_is(command, HTH_COMMAND_OWN_JOBS) && !admin ? tenant : "";
}

static void view_late(hth_http_call *call, hth_err err)
{
    hth_http_dashboard *v = ((view_call *)call)->view;
    if (err != HTH_ETIMEDOUT) {
        assert(v->asking > 0);
        v->asking--;
    }
    view_send(call->h, call->req, v, err);
}

// view_text replaces the answer that is kept; takes `text`, which may be NULL.
static void view_text(hth_http_dashboard *dashboard, char *text)
{
    hth_free(dashboard->text);
    hth_free(dashboard->public);
    dashboard->text = text;
    dashboard->public = NULL;
}

static void view_finish(hth_http_call *call)
{
    hth_http_dashboard *v = ((view_call *)call)->view;
    assert(v->asking > 0);
    v->asking--;
    if (call->r.err == HTH_OK) {
        view_text(v, call->r.json);
        call->r.json = NULL;
        v->answered_ns = hth_now_ns();
    } else if (call->r.err == HTH_ENOENT) { // there was one, perhaps
        view_text(v, NULL);
    }
    if (call->req == NULL) {
        return;
    }
    if (call->r.err == HTH_OK || v->text != NULL) {
        view_send(call->h, call->req, v, call->r.err);
    } else if (call->r.err == HTH_EDENIED) { // nobody learns more about jobs of others
        hth_http_fail(call->h, call->req, 404,
                      "there is no job '%s'; `hearth jobs` lists what "
                      "there is",
                      call->args.name);
    } else if (call->r.err == HTH_ENOENT) {
        hth_http_fail(call->h, call->req, 404, "%s", call->r.detail);
    } else {
        hth_http_fail_call(call, NULL);
    }
}

static void view_drop(hth_http_call *call)
{
    free(((view_call *)call)->arguments);
}

// view_arguments makes what the engine is asked about a job, which the path names or numbers;
// *out is NULL where the view is about none. HTH_ENOENT: the number of another tenant's job.
static hth_err view_arguments(hth_http *http, const hth_http_dashboard *dashboard, char **out)
{
    *out = NULL;
    if (dashboard->job[0] == 0) {
        return HTH_OK;
    }
    json_t *args = json_pack("{s:i, s:s}", "points", VIEW_POINTS, "job", dashboard->job);
    hth_err err =
        hth_job_index_resolve(http->store, args, dashboard->who[0] != 0 ? dashboard->who : NULL);
    *out = err == HTH_OK ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    HTH_TRY(err);
    return *out != NULL ? HTH_OK : hth_no_memory("a query");
}

static void view_ask(hth_http *http, hth_http_req *req, const hth_http_args *args,
                     hth_http_dashboard *dashboard)
{
    char *arguments;
    hth_err err = view_arguments(http, dashboard, &arguments);
    if (err != HTH_OK) {
        hth_http_fail(http, req, err == HTH_ENOENT ? 404 : 503, "%s", hth_err_detail());
        return;
    }
    view_call *c = hth_http_call_new(http, req, args, sizeof *c);
    if (c == NULL) {
        free(arguments);
        return;
    }
    c->view = dashboard;
    c->arguments = arguments;
    if (dashboard->who[0] != 0) { // the tokens may have changed since it was found
        strcpy(c->c.tenant, dashboard->who);
    }
    c->c.r.command = dashboard->command;
    c->c.r.admin = dashboard->who[0] == 0;
    c->c.r.arguments = c->arguments != NULL ? c->arguments : "{}";
    c->c.finish = view_finish;
    c->c.late = view_late;
    c->c.drop = view_drop;
    dashboard->asking++;
    hth_http_call_submit(&c->c);
}

static void view_serve(hth_http *http, hth_http_req *req, const hth_http_args *args,
                       hth_command_id command)
{
    char tenant[HTH_TENANT];
    view_forget(http);
    hth_http_tenant(http, req, tenant, sizeof tenant);
    bool admin = hth_http_is_admin(http, req);
    hth_http_dashboard *v = view_find(http, command, args->name, view_who(command, tenant, admin));
    if (v == NULL) {
        hth_http_fail(http, req, 503, "out of memory for a request");
    } else if (v->text != NULL && hth_now_ns() - v->answered_ns < VIEW_FRESH_NS) {
        view_send(http, req, v, HTH_OK);
    } else if (v->text != NULL && v->asking > 0) { // the engine has the question already
        view_send(http, req, v, HTH_EBUSY);
    } else {
        view_ask(http, req, args, v);
    }
}

// ---- handlers

void hth_http_dashboard_devices(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_DEVICES);
}

void hth_http_dashboard_stats(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_STATS);
}

void hth_http_dashboard_latency(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_LATENCY);
}

void hth_http_dashboard_jobs(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_JOBS);
}

void hth_http_dashboard_job(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_JOB);
}

void hth_http_dashboard_shares(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_SHARES);
}

void hth_http_dashboard_timeline(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    view_serve(http, req, args, HTH_COMMAND_TIMELINE);
}

hth_err hth_http_write_models(hth_http *http, const json_t *doc, bool far, hth_text *out)
{
    hth_store_entry *e;
    int n, written = 0;
    HTH_TRY(hth_store_list(http->store, &e, &n));
    hth_text_put(out, "{\"state\":\"ready\",\"age_ms\":0,\"data\":[");
    for (int i = 0; i < n; i++) {
        if (!hth_http_is_model(http, e[i].name)) {
            continue;
        }
        hth_text_put(out, written++ > 0 ? ",{\"name\":" : "{\"name\":");
        hth_text_quoted(out, e[i].name);
        hth_text_put(out, ",\"version\":");
        hth_text_int(out, e[i].version);
        hth_text_put(out, ",\"bytes\":");
        hth_text_int(out, (int64_t)e[i].bytes);
        hth_text_put(out, hth_http_unloaded_has(http, e[i].name) ? ",\"unloaded\":true}"
                                                                 : ",\"unloaded\":false}");
    }
    hth_text_put(out, "]}");
    hth_free(e);
    return HTH_OK;
}

void hth_http_dashboard_models(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_list_request(http, req, HTH_HTTP_LIST_MODELS);
}
