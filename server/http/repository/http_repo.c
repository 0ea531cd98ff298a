// SPDX-License-Identifier: Apache-2.0
// The repository: every model in the store is ready unless it was unloaded here, because the engine
// loads on demand, or it is a newer version that could not take the older one's place. Load answers
// when the weights are on the device (http_load.c). Unload forgets the model and gives its bytes
// back before it answers; over HTTP the name is then unknown until it is loaded again.
#include "server/http/http_call.h"

#include "server/http/tensors/http_json.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/dataset_index.h"
#include "runtime/redact.h"

#include <stdio.h>
#include <string.h>

hth_http_unloaded *hth_http_unloaded_find(hth_http *http, const char *name)
{
    hth_http_unloaded *u;
    HASH_FIND_STR(http->unloaded, name, u);
    return u;
}

bool hth_http_unloaded_has(hth_http *http, const char *name)
{
    pthread_mutex_lock(&http->unloaded_lock);
    bool has = hth_http_unloaded_find(http, name) != NULL;
    pthread_mutex_unlock(&http->unloaded_lock);
    return has;
}

bool hth_http_is_unloaded(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    if (hth_http_unloaded_find(http, args->name) == NULL) {
        return false;
    }
    hth_http_fail(http, req, 404, "Request for unknown model: '%s' is not found: it was unloaded",
                  args->name);
    return true;
}

void hth_http_unloaded_forget(hth_http *http, const char *name)
{
    hth_http_unloaded *u = hth_http_unloaded_find(http, name);
    if (u != NULL) {
        pthread_mutex_lock(&http->unloaded_lock);
        HASH_DEL(http->unloaded, u);
        pthread_mutex_unlock(&http->unloaded_lock);
        hth_free(u);
    }
}

// repo_unload has a model no longer served. NULL: no memory.
static hth_http_unloaded *repo_unload(hth_http *http, const char *name)
{
    hth_http_unloaded *u = hth_http_unloaded_find(http, name);
    if (u != NULL || (u = hth_calloc(1, sizeof *u)) == NULL) {
        return u;
    }
    strcpy(u->name, name);
    u->number = ++http->n_unloaded;
    pthread_mutex_lock(&http->unloaded_lock);
    HASH_ADD_STR(http->unloaded, name, u);
    pthread_mutex_unlock(&http->unloaded_lock);
    if (!HTH_HASH_ADDED(u)) {
        hth_free(u);
        return NULL;
    }
    return u;
}

// ---- index

// index_reason is why a version is not loaded, as the one who asks may know it.
static const char *index_reason(const json_t *json, bool far, char out[512])
{
    const char *reason = json_string_value(json_object_get(json, "reason"));
    if (!far || reason == NULL) {
        return reason != NULL ? reason : "";
    }
    hth_redact(reason, out, 512);
    return out;
}

// index_row writes what is known of a version. `json`: what the engine says of it; NULL: it is not
// loaded, and nothing is against loading it.
static void index_row(hth_http *http, const json_t *json, const hth_store_entry *entry, bool far,
                      bool only_ready, hth_text *out)
{
    char cleared[512];
    const char *state = "READY", *reason = "";
    if (hth_http_unloaded_has(http, entry->name)) {
        state = "UNAVAILABLE";
        reason = "unloaded";
    } else if (entry->damaged) {
        state = "UNAVAILABLE";
        reason = "damaged in the store: importing the same file repairs it";
    } else if (json != NULL) {
        state = json_string_value(json_object_get(json, "state"));
        reason = index_reason(json, far, cleared);
    }
    if (only_ready && strcmp(state, "READY") != 0) {
        return;
    }
    hth_text_put(out, out->n > 1 ? ",{\"name\":" : "{\"name\":");
    hth_text_quoted(out, entry->name);
    hth_text_put(out, ",\"version\":\"");
    hth_text_int(out, entry->version);
    hth_text_put(out, "\",\"state\":");
    hth_text_quoted(out, state);
    hth_text_put(out, ",\"reason\":");
    hth_text_quoted(out, reason);
    hth_text_put(out, "}");
}

static const char *index_key(const char *name, json_int_t version, char out[240])
{
    snprintf(out, 240, "%s:%" JSON_INTEGER_FORMAT, name, version);
    return out;
}

bool hth_http_is_model(const hth_http *http, const char *name)
{
    return !hth_dataset_is(http->store, name) && !hth_checkpoint_is(http->store, name);
}

// index_loaded has the engine's rows by name and version. NULL: out of memory.
static json_t *index_loaded(const json_t *doc)
{
    json_t *all = json_object(), *m;
    char key[240];
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        json_int_t version = json_integer_value(json_object_get(m, "version"));
        if (json_object_set(all, index_key(name != NULL ? name : "", version, key), m) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

// index_version is the version that an alias resolves to now.
static int index_version(hth_http *http, const hth_store_alias *alias)
{
    int version = alias->version;
    if (version == 0 && hth_store_latest(http->store, alias->name, &version) != HTH_OK) {
        version = 0;
    }
    return version;
}

// index_aliases writes a row for each alias, with the state of its target.
static hth_err index_aliases(hth_http *http, const json_t *loaded, bool far, bool only_ready,
                             hth_text *out)
{
    hth_store_alias *a;
    int n;
    char key[240];
    HTH_TRY(hth_store_alias_list(http->store, &a, &n));
    for (int i = 0; i < n; i++) {
        hth_store_entry e = {.version = index_version(http, &a[i])};
        const json_t *m = json_object_get(loaded, index_key(a[i].name, e.version, key));
        memcpy(e.name, a[i].alias, sizeof e.name);
        index_row(http, m, &e, far, only_ready, out);
    }
    hth_free(a);
    return HTH_OK;
}

static hth_err index_write(hth_http *http, const json_t *doc, bool far, bool only_ready,
                           hth_text *out)
{
    hth_store_entry *e;
    int n;
    char key[240];
    HTH_TRY(hth_store_list(http->store, &e, &n));
    json_t *loaded = index_loaded(doc);
    hth_text_put(out, "[");
    for (int i = 0; i < n && loaded != NULL; i++) {
        if (!hth_http_is_model(http, e[i].name)) {
            continue;
        }
        const json_t *m = json_object_get(loaded, index_key(e[i].name, e[i].version, key));
        index_row(http, m, &e[i], far, only_ready, out);
    }
    hth_err err = loaded != NULL ? index_aliases(http, loaded, far, only_ready, out)
                                 : hth_no_memory("the index");
    hth_text_put(out, "]");
    hth_free(e);
    json_decref(loaded);
    return err;
}

hth_err hth_http_write_index(hth_http *http, const json_t *doc, bool far, hth_text *out)
{
    return index_write(http, doc, far, false, out);
}

hth_err hth_http_write_index_ready(hth_http *http, const json_t *doc, bool far, hth_text *out)
{
    return index_write(http, doc, far, true, out);
}

void hth_http_repo_index(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    json_t *q;
    if (!hth_http_body(http, req, &q)) {
        return;
    }
    json_t *ready = json_object_get(q, "ready");
    bool only_ready = json_is_true(ready), wrong = ready != NULL && !json_is_boolean(ready);
    json_decref(q);
    if (wrong) {
        hth_http_fail(http, req, 400, "Unable to parse 'ready': it is neither true nor false");
    } else {
        hth_http_list_request(http, req, only_ready ? HTH_HTTP_LIST_READY : HTH_HTTP_LIST_INDEX);
    }
}

// ---- unload

typedef struct unload_call {
    hth_http_call c;
    hth_text text;   // of the arguments
    uint64_t number; // of the model's hth_http_unloaded
} unload_call;

static void unload_drop(hth_http_call *call)
{
    hth_text_fini(&((unload_call *)call)->text);
}

// unload_answered: a model that no call has unloaded is served on. One that was loaded meanwhile is
// already.
static void unload_answered(const hth_http_call *call)
{
    hth_http_unloaded *u = hth_http_unloaded_find(call->h, call->args.name);
    if (u == NULL || u->number != ((const unload_call *)call)->number) {
        return;
    }
    u->asking--;
    u->gone = u->gone || call->r.err == HTH_OK;
    if (!u->gone && u->asking == 0) {
        hth_http_unloaded_forget(call->h, call->args.name);
    }
}

static void unload_finish(hth_http_call *call)
{
    unload_answered(call);
    if (call->r.err != HTH_OK) {
        hth_http_fail_call(call, NULL);
    } else {
        hth_http_send(call->h, call->req, 200, NULL, NULL);
    }
}

static void unload_ask(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    unload_call *c = hth_http_call_new(http, req, args, sizeof *c);
    if (c == NULL) {
        return;
    }
    c->c.drop = unload_drop;
    c->c.finish = unload_finish;
    hth_text_put(&c->text, "{\"model\":");
    hth_text_quoted(&c->text, args->name);
    hth_text_add(&c->text, "}", 2);
    hth_http_unloaded *u = c->text.failed ? NULL : repo_unload(http, args->name);
    if (u == NULL) {
        hth_http_call_refuse(&c->c, hth_no_memory("a name"));
        return;
    }
    u->asking++;
    c->number = u->number;
    c->c.r.command = HTH_COMMAND_UNLOAD;
    c->c.r.arguments = c->text.p;
    hth_http_call_submit(&c->c);
}

void hth_http_repo_unload(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    json_t *q;
    if (!hth_http_body(http, req, &q)) {
        return;
    }
    json_t *all = json_object_get(q, "parameters"), *v = json_object_get(all, "unload_dependents");
    bool wrong = (all != NULL && !json_is_object(all)) || (v != NULL && !json_is_boolean(v));
    json_decref(q);
    hth_manifest m;
    if (wrong) {
        hth_http_fail(http, req, 400,
                      "Unable to parse 'parameters': unload_dependents is true or false");
    } else if (hth_store_get(http->store, args->name, 0, &m) != HTH_OK) {
        hth_http_send(http, req, 200, NULL, NULL); // not there: as good as unloaded
    } else {
        hth_manifest_fini(&m);
        unload_ask(http, req, args);
    }
}

void hth_http_repo_named(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_fail(http, req, 501, "'repository_name' specification is not supported");
}
