// SPDX-License-Identifier: Apache-2.0
// Load: a model of the store comes to the device, or, with a configuration and files, one that the
// request brings becomes a version of the store first, on the job thread. Files are never written
// under the names that a client gives them: the only ones that are taken are N/model.onnx, from
// memory, through the same checks as an import. A version that cannot be loaded is removed again
// before the request is answered.
//
//     read, import (job thread) -> load (engine) -> answered
//                                       |failed
//                                  removed (job thread) -> answered
#include "server/http/http_call.h"

#include "base/alloc.h"
#include "runtime/batching.h"
#include "runtime/precision.h"
#include "runtime/catalog.h"
#include "server/http/tensors/http_base64.h"
#include "server/http/repository/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What a body may have besides its files.
#define LOAD_JSON_BYTES (1 << 20)
#define LOAD_MAX_FILES  16

// A model's file: N of N/model.onnx, and where its content stands as base64.
typedef struct load_file {
    long version;
    json_t *base64;
} load_file;

typedef struct load_call {
    hth_http_call c;
    hth_store_task job;
    struct evbuffer *body;            // job thread only while it has it
    hth_text text;                    // the engine's arguments
    int made[LOAD_MAX_FILES], n_made; // versions that are new
    bool admin;                       // it is an administrator's
    bool files;                       // it brings some
    bool rebatched;                   // the model's batching was changed
    hth_batching batching;            // .. from this
    bool respelled;                   // its precision was, from this
    char precision[HTH_PRECISION_TEXT];
    bool left;   // of the model, after that was undone, the store has a version
    hth_err why; // the removal's reason
    char sentence[512];
} load_call;

static void load_drop(hth_http_call *call)
{
    load_call *l = (load_call *)call;
    if (l->body != NULL) {
        evbuffer_free(l->body);
    }
    hth_text_fini(&l->text);
}

// ---- what the request brings (job thread)

// load_file_name reads "file:N/model.onnx".
static hth_err load_file_name(const char *key, long *version)
{
    const char *name = key + 5;
    char *end;
    *version = name[0] >= '1' && name[0] <= '9' ? strtol(name, &end, 10) : 0;
    return *version > 0 && *version <= INT32_MAX && strcmp(end, "/model.onnx") == 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "'%.120s': the files that are taken over HTTP are called N/model.onnx",
                          name);
}

static int load_file_order(const void *a, const void *b)
{
    const load_file *x = a, *y = b;
    return (x->version > y->version) - (x->version < y->version);
}

static hth_err load_files(const json_t *all, load_file *file, int *n)
{
    const char *key;
    json_t *v;
    *n = 0;
    json_object_foreach((json_t *)all, key, v)
    {
        if (strncmp(key, "file:", 5) != 0) {
            continue;
        }
        if (*n == LOAD_MAX_FILES) {
            return hth_fail(HTH_ETOOBIG, "more than %d files", LOAD_MAX_FILES);
        }
        HTH_TRY(load_file_name(key, &file[*n].version));
        file[(*n)++].base64 = v;
    }
    qsort(file, (size_t)*n, sizeof *file, load_file_order);
    return HTH_OK;
}

// load_caller is who brings a model, and what it may have in the store.
static hth_err load_caller(load_call *call, hth_caller *out)
{
    char path[HTH_SETTING_TEXT];
    hth_tenant_rules rules;
    HTH_TRY(hth_tenant_rules_read(hth_setting_text(HTH_SET_TENANT_FILE, path), &rules));
    *out = (hth_caller){call->c.tenant, call->admin,
                        hth_tenant_rules_of(&rules, call->c.tenant).store_bytes};
    hth_tenant_rules_fini(&rules);
    return HTH_OK;
}

static hth_err load_import(load_call *call, const load_file *file, hth_model_config *config)
{
    const hth_catalog_check check = {hth_model_config_accept, config};
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_UPLOAD_BYTES);
    hth_put_result r;
    hth_caller caller;
    HTH_TRY(load_caller(call, &caller));
    size_t bytes, chars = json_string_length(file->base64);
    if (chars / 4 > most / 3) {
        return hth_fail(HTH_ETOOBIG,
                        "the model exceeds the maximum allowed input size of %llu bytes "
                        "(limits.upload_bytes)",
                        (unsigned long long)most);
    }
    char *data = hth_alloc_aligned(chars / 4 * 3 + 3, 64);
    if (data == NULL) {
        return hth_no_memory("a model of %zu bytes", chars / 4 * 3);
    }
    bool decoded = hth_base64_decode(json_string_value(file->base64), chars, data, &bytes);
    json_string_set(file->base64, ""); // its memory is not held while the model is read
    hth_err err = decoded
                      ? hth_catalog_import_bytes(call->c.h->store, call->c.args.name, data, bytes,
                                                 config->max_batch, &caller, &check, &r)
                      : hth_fail(HTH_EINVAL, "file %ld/model.onnx is not base64", file->version);
    hth_free(data);
    if (err == HTH_OK && !r.unchanged) {
        call->made[call->n_made++] = r.version;
    }
    return err;
}

// load_versions makes versions of the files that came, or of the newest one with another batch
// limit.
static hth_err load_versions(load_call *call, const load_file *file, int n,
                             hth_model_config *config)
{
    if (n == 0) {
        const hth_catalog_check check = {hth_model_config_accept, config};
        hth_put_result r;
        HTH_TRY(hth_catalog_rebatch(call->c.h->store, call->c.args.name, config->max_batch, &check,
                                    &r));
        if (!r.unchanged) {
            call->made[call->n_made++] = r.version;
        }
    }
    for (int i = 0; i < n && !call->c.r.canceled; i++) {
        HTH_TRY(load_import(call, &file[i], config));
    }
    return HTH_OK;
}

// load_settings sets what the configuration says of the model by its name.
static hth_err load_settings(load_call *call, const hth_model_config *config)
{
    hth_store *store = call->c.h->store;
    const char *name = call->c.args.name;
    if (config->batching != NULL) {
        hth_batching_load(store, name, &call->batching);
        hth_batching b = call->batching;
        HTH_TRY(hth_batching_change(store, name, config->batching, &b));
        call->rebatched = true;
    }
    if (config->precision != NULL) {
        hth_precision_get(store, name, call->precision);
        HTH_TRY(hth_precision_set(store, name, config->precision));
        call->respelled = true;
    }
    return HTH_OK;
}

static hth_err load_put(load_call *call, const json_t *all)
{
    load_file file[LOAD_MAX_FILES];
    hth_model_config config;
    int n;
    HTH_TRY(load_files(all, file, &n));
    call->files = n > 0;
    HTH_TRY(hth_model_config_read(json_string_value(json_object_get(all, "config")),
                                  call->c.args.name, &config));
    hth_caller caller;
    char owner[HTH_TENANT];
    hth_err err;
    HTH_GOTO(load_caller(call, &caller), done);
    HTH_GOTO(hth_owner_new(call->c.h->store, call->c.args.name, &caller, owner), done);
    HTH_GOTO(load_versions(call, file, n, &config), done);
    err = load_settings(call, &config);
done:
    hth_model_config_fini(&config);
    if (err == HTH_OK && call->c.r.canceled) {
        return hth_fail(HTH_ECANCELED, "canceled by its client");
    }
    return err;
}

// load_parameters checks the parameters of a load. *brings: a configuration, and perhaps files.
static hth_err load_parameters(const json_t *json, bool *brings)
{
    json_t *all = json_object_get(json, "parameters"), *v;
    const char *key;
    *brings = json_object_get(all, "config") != NULL;
    if (all != NULL && !json_is_object(all)) {
        return hth_fail(HTH_EINVAL, "Unable to parse 'parameters': it is not an object");
    }
    json_object_foreach(all, key, v)
    {
        bool file = strncmp(key, "file:", 5) == 0;
        if (strcmp(key, "config") != 0 && !file) {
            return hth_fail(HTH_EINVAL, "unrecognized load parameter '%.80s'", key);
        }
        if (!json_is_string(v)) {
            return hth_fail(HTH_EINVAL, "the load parameter '%.80s' is not a string", key);
        }
        if (file && !*brings) {
            return hth_fail(HTH_EINVAL, "a load with files needs the parameter 'config'");
        }
    }
    return HTH_OK;
}

static hth_err load_read(load_call *call)
{
    json_t *q = NULL;
    bool brings;
    size_t n = evbuffer_get_length(call->body);
    const char *text = (const char *)evbuffer_pullup(call->body, -1);
    hth_err err = text != NULL ? hth_json_parse(text, n, &q) : hth_no_memory("a request");
    evbuffer_free(call->body); // the files are in `q` now
    call->body = NULL;
    if (err == HTH_OK) {
        err = load_parameters(q, &brings);
    }
    if (err == HTH_OK && brings) {
        err = load_put(call, json_object_get(q, "parameters"));
    }
    json_decref(q);
    return err;
}

// load_undo removes what was made, with its bytes, and puts back what was set; then it looks for
// what is left.
static void load_undo(load_call *call)
{
    int latest = 0;
    bool made = call->n_made > 0;
    if (call->rebatched) {
        (void)hth_batching_change(call->c.h->store, call->c.args.name, NULL, &call->batching);
    }
    if (call->respelled) {
        (void)hth_precision_set(call->c.h->store, call->c.args.name, call->precision);
    }
    while (call->n_made > 0) {
        (void)hth_store_rm(call->c.h->store, call->c.args.name, call->made[--call->n_made]);
    }
    if (made) {
        hth_store_collect(call->c.h->store);
    }
    (void)hth_store_latest(call->c.h->store, call->c.args.name, &latest);
    call->left = latest > 0 && !hth_http_unloaded_has(call->c.h, call->c.args.name);
}

static void load_done(load_call *call, hth_err err, const char *sentence)
{
    call->c.r.err = err;
    snprintf(call->c.r.detail, sizeof call->c.r.detail, "%s", err != HTH_OK ? sentence : "");
    call->c.r.done(&call->c.r);
}

static load_call *load_of(hth_store_task *task)
{
    return (load_call *)((char *)task - offsetof(load_call, job));
}

static void load_run(hth_store_task *task)
{
    load_call *l = load_of(task);
    char sentence[512] = "";
    hth_err err = load_read(l);
    if (err != HTH_OK) {
        snprintf(sentence, sizeof sentence, "%s", hth_err_detail());
        load_undo(l);
    }
    load_done(l, err, sentence);
}

static void load_run_undo(hth_store_task *task)
{
    load_call *l = load_of(task);
    load_undo(l);
    load_done(l, l->why, l->sentence);
}

// ---- to the device, and the answer (loop's thread)

static load_call *load_new(hth_http *http, hth_http_req *req, const hth_http_args *args,
                           void (*finish)(hth_http_call *call))
{
    load_call *l = hth_http_call_new(http, req, args, sizeof *l);
    if (l != NULL) {
        l->admin = hth_http_is_admin(http, req);
        l->c.drop = load_drop;
        l->c.finish = finish;
    }
    return l;
}

// `files`: the client's own were read; else the store's. A model with a version that answers, or
// may do so with the next request, is not without one.
static void load_refuse(hth_http_call *call, bool files)
{
    const char *name = call->args.name;
    hth_err err = call->r.err;
    bool none = call->r.version == 0 && !((const load_call *)call)->left;
    bool wrong = err == HTH_EINVAL || err == HTH_ENOTSUP || (files && err == HTH_ECORRUPT);
    if (err == HTH_EDENIED) {
        hth_http_fail(call->h, call->req, 403, "failed to load '%s': %s", name, call->r.detail);
    } else if (err == HTH_ENOENT) {
        hth_http_fail(call->h, call->req, 500,
                      "failed to load '%s', failed to poll from model repository", name);
    } else if (err == HTH_ETOOBIG) {
        hth_http_fail(call->h, call->req, 413, "failed to load '%s': %s", name, call->r.detail);
    } else {
        const char *left = none ? ", no version is available" : "";
        hth_http_fail(call->h, call->req, wrong ? 400 : 500, "failed to load '%s'%s: %s", name,
                      left, call->r.detail);
    }
}

static void load_undone(hth_http_call *call)
{
    load_refuse(call, false);
}

// load_keep has `next` know what would have to be undone.
static void load_keep(load_call *next, const load_call *call)
{
    memcpy(next->made, call->made, sizeof next->made);
    next->n_made = call->n_made;
    next->c.r.version = call->c.r.version;
    next->rebatched = call->rebatched;
    next->batching = call->batching;
    next->respelled = call->respelled;
    memcpy(next->precision, call->precision, sizeof next->precision);
}

static void load_loaded(hth_http_call *call)
{
    const load_call *l = (const load_call *)call;
    if (call->r.err == HTH_OK) {
        hth_http_unloaded_forget(call->h, call->args.name);
        hth_http_send(call->h, call->req, 200, NULL, NULL);
        return;
    }
    bool changed = l->n_made > 0 || l->rebatched || l->respelled;
    load_call *undo = changed ? load_new(call->h, call->req, &call->args, load_undone) : NULL;
    if (!changed) {
        load_refuse(call, false);
    } else if (undo != NULL) { // else it is answered
        load_keep(undo, l);
        undo->why = call->r.err;
        snprintf(undo->sentence, sizeof undo->sentence, "%s", call->r.detail);
        hth_http_call_run(&undo->c, call->h->jobs, &undo->job, load_run_undo);
    }
}

// load_submit has the engine bring the model to the device.
static void load_submit(load_call *call)
{
    hth_text_put(&call->text, "{\"model\":");
    hth_text_quoted(&call->text, call->c.args.spec);
    hth_text_add(&call->text, "}", 2);
    call->c.r.command = HTH_COMMAND_LOAD;
    call->c.r.arguments = call->text.failed ? "{}" : call->text.p;
    hth_http_call_submit(&call->c);
}

static void load_stored(hth_http_call *call)
{
    const load_call *l = (const load_call *)call;
    load_call *next =
        call->r.err == HTH_OK ? load_new(call->h, call->req, &call->args, load_loaded) : NULL;
    if (call->r.err != HTH_OK) {
        load_refuse(call, l->files);
    } else if (next != NULL) {
        load_keep(next, l);
        load_submit(next);
    }
}

void hth_http_repo_load(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    struct evbuffer *body = req->body;
    size_t n = evbuffer_get_length(body);
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_UPLOAD_BYTES);
    if (n / 4 > most / 3 + LOAD_JSON_BYTES / 4) {
        hth_http_fail(http, req, 413,
                      "the request exceeds the maximum allowed input size of a model, %llu bytes",
                      (unsigned long long)most);
        return;
    }
    load_call *l = load_new(http, req, args, n > 0 ? load_stored : load_loaded);
    if (l == NULL) {
        return;
    }
    if (n == 0) {
        load_submit(l);
        return;
    }
    l->body = evbuffer_new();
    if (l->body == NULL || evbuffer_add_buffer(l->body, body) != 0) {
        hth_http_call_refuse(&l->c, hth_no_memory("a request"));
        return;
    }
    hth_http_block_done(req->conn, body);
    hth_http_call_run(&l->c, l->c.h->jobs, &l->job, load_run);
}
