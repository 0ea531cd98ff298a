// SPDX-License-Identifier: Apache-2.0
// The repository: every model in the store is ready unless it was unloaded here, because the engine
// loads on demand, or it is a newer version that could not take the older one's place. Load answers
// when the weights are on the device (http_load.c). Unload forgets the model and gives its bytes
// back before it answers; over HTTP the name is then unknown until it is loaded again.
#include "server/http_call.h"

#include <stdio.h>
#include <string.h>

hth_http_unloaded *hth_http_unloaded_find(hth_http *h, const char *name)
{
    hth_http_unloaded *u;
    HASH_FIND_STR(h->unloaded, name, u);
    return u;
}

bool hth_http_is_unloaded(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    if (hth_http_unloaded_find(h, a->name) == NULL) {
        return false;
    }
    hth_http_fail(h, req, HTTP_NOTFOUND,
                  "Request for unknown model: '%s' is not found: it was unloaded", a->name);
    return true;
}

void hth_http_unloaded_forget(hth_http *h, const char *name)
{
    hth_http_unloaded *u = hth_http_unloaded_find(h, name);
    if (u != NULL) {
        HASH_DEL(h->unloaded, u);
        hth_free(u);
    }
}

static bool repo_unload(hth_http *h, const char *name)
{
    if (hth_http_unloaded_find(h, name) != NULL) {
        return true;
    }
    hth_http_unloaded *u = hth_calloc(1, sizeof *u);
    if (u == NULL) {
        return false;
    }
    strcpy(u->name, name);
    HASH_ADD_STR(h->unloaded, name, u);
    if (!HTH_HASH_ADDED(u)) {
        hth_free(u);
        return false;
    }
    return true;
}

// ---- index

// What the engine says about a version; NULL: it is not loaded, and nothing is against loading it.
static const json_t *index_find(const json_t *loaded, const hth_store_entry *e)
{
    const json_t *m;
    size_t i;
    json_array_foreach(json_object_get(loaded, "models"), i, m)
    {
        if (json_integer_value(json_object_get(m, "version")) == e->version &&
            strcmp(json_string_value(json_object_get(m, "name")), e->name) == 0) {
            return m;
        }
    }
    return NULL;
}

// index_reason is why a version is not loaded, as the one who asks may know it.
static const char *index_reason(const json_t *m, bool near, char out[512])
{
    const char *reason = json_string_value(json_object_get(m, "reason"));
    if (near || reason == NULL) {
        return reason;
    }
    hth_auth_public(reason, out, 512);
    return out;
}

static void index_add(const hth_http_call *c, const json_t *loaded, const hth_store_entry *e,
                      bool only_ready, json_t *list)
{
    hth_http *h = c->h;
    char version[16], cleared[512];
    const json_t *m = index_find(loaded, e);
    const char *state = "READY", *reason = "";
    if (hth_http_unloaded_find(h, e->name) != NULL) {
        state = "UNAVAILABLE";
        reason = "unloaded";
    } else if (e->damaged) {
        state = "UNAVAILABLE";
        reason = "damaged in the store: an import of the same file repairs it";
    } else if (m != NULL) {
        state = json_string_value(json_object_get(m, "state"));
        reason = index_reason(m, hth_http_is_near(h, c->req), cleared);
    }
    snprintf(version, sizeof version, "%d", e->version);
    if (!only_ready || strcmp(state, "READY") == 0) {
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "name", e->name, "version",
                                              version, "state", state, "reason", reason));
    }
}

static void index_answer(hth_http_call *c, bool only_ready)
{
    hth_store_entry *e;
    int n;
    json_t *loaded = hth_http_answer(c);
    if (loaded == NULL) {
        return;
    }
    hth_err err = hth_store_list(c->h->store, &e, &n);
    if (err != HTH_OK) {
        hth_http_fail_err(c->h, c->req, err);
    } else {
        json_t *list = json_array();
        for (int i = 0; i < n; i++) {
            index_add(c, loaded, &e[i], only_ready, list);
        }
        hth_free(e);
        hth_http_send_json(c->h, c->req, list);
    }
    json_decref(loaded);
}

static void index_finish_all(hth_http_call *c)
{
    index_answer(c, false);
}

static void index_finish_ready(hth_http_call *c)
{
    index_answer(c, true);
}

void hth_http_repo_index(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    static const hth_http_args none = {.version = 0};
    json_t *q;
    if (!hth_http_body(h, req, &q)) {
        return;
    }
    json_t *ready = json_object_get(q, "ready");
    bool only_ready = json_is_true(ready), wrong = ready != NULL && !json_is_boolean(ready);
    json_decref(q);
    if (wrong) {
        hth_http_fail(h, req, HTTP_BADREQUEST,
                      "Unable to parse 'ready': it is neither true nor false");
    } else {
        hth_http_ask(h, req, &none, "loaded", only_ready ? index_finish_ready : index_finish_all);
    }
}

// ---- unload

static void unload_finish(hth_http_call *c)
{
    if (c->r.err != HTH_OK) {
        hth_http_fail_call(c, NULL);
    } else {
        hth_http_send(c->h, c->req, HTTP_OK, NULL, NULL);
    }
}

void hth_http_repo_unload(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    json_t *q;
    if (!hth_http_body(h, req, &q)) {
        return;
    }
    json_t *all = json_object_get(q, "parameters"), *v = json_object_get(all, "unload_dependents");
    bool wrong = (all != NULL && !json_is_object(all)) || (v != NULL && !json_is_boolean(v));
    json_decref(q);
    hth_manifest m;
    if (wrong) {
        hth_http_fail(h, req, HTTP_BADREQUEST,
                      "Unable to parse 'parameters': unload_dependents is true or false");
    } else if (hth_store_get(h->store, a->name, 0, &m) != HTH_OK) {
        hth_http_send(h, req, HTTP_OK, NULL, NULL); // not there: as good as unloaded
    } else {
        hth_manifest_fini(&m);
        if (!repo_unload(h, a->name)) {
            hth_http_fail(h, req, HTTP_SERVUNAVAIL, "out of memory for a name");
        } else {
            hth_http_ask(h, req, a, "unload", unload_finish);
        }
    }
}

void hth_http_repo_named(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_http_fail(h, req, HTTP_NOTIMPLEMENTED, "'repository_name' specification is not supported");
}
