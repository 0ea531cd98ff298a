// SPDX-License-Identifier: Apache-2.0
// Requests that leave the callback's thread: to the engine (infer, queries) or to the job thread.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "runtime/arguments.h"
#include "runtime/catalog.h"
#include "engine/job_paths.h"
#include "runtime/verify.h"
#include "runtime/redact.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- kinds

// Questions that are answered in a moment; others compute, load or train.
static bool query_is_short(const char *what)
{
    static const char *const words[] = {"models", "model",   "devices", "stats",    "jobs",
                                        "job",    "latency", "loaded",  "timeline", "pause",
                                        "resume", "cancel",  "tenants", "batching", "precision"};
    size_t i = 0;
    while (i < sizeof words / sizeof words[0] && strcmp(words[i], what) != 0) {
        i++;
    }
    return i < sizeof words / sizeof words[0];
}

hth_rpc_slot_kind hth_rpc_slot_kind_of(const Hearth__Request *q)
{
    bool is_short = q->body_case == HEARTH__REQUEST__BODY_INFER ||
                    (q->body_case == HEARTH__REQUEST__BODY_QUERY && query_is_short(q->query->what));
    return is_short ? HTH_RPC_SLOT_SHORT : HTH_RPC_SLOT_LONG;
}

// ---- to the engine

static hth_err request_frame(void *ctx, const ProtobufCMessage *header, Hearth__Tensor *const *list,
                             size_t n, uint8_t **data)
{
    hth_rpc_slot *s = ctx;
    uint64_t bytes;
    HTH_TRY(hth_wire_place(list, n, &bytes));
    if (s->front->room != NULL) {
        HTH_TRY(s->front->room(s->back, bytes));
    }
    return hth_msg_frame(header, list, n, 0, &s->d->limits, &s->reply, data);
}

static hth_err request_place(hth_request *req, hth_request_tensor *out, int n_out)
{
    hth_rpc_slot *s = req->ctx;
    return hth_rpc_tensors_outputs(s->q->call, req->version, out, n_out, request_frame, s);
}

// request_document answers with a document, and frees it; one that tells about this machine without
// that, to peers elsewhere.
static void request_document(hth_rpc_slot *s, char *json, bool tells)
{
    if (!hth_conn_same_machine(s->conn) && tells && json != NULL) {
        char *cleared = hth_redact_jobs(json);
        hth_free(json);
        json = cleared;
    }
    hth_rpc_slot_document(s, json != NULL ? json : "null");
    hth_free(json);
}

// request_tells: answers with why a job or a model is not at work, and with what a job was asked
// for.
static bool request_tells(const char *query)
{
    static const char *const about[] = {"jobs",   "job",    "train", "pause",
                                        "resume", "cancel", "loaded"};
    bool tells = false;
    for (size_t i = 0; i < sizeof about / sizeof about[0] && !tells; i++) {
        tells = strcmp(query, about[i]) == 0;
    }
    return tells;
}

static void request_done(hth_request *req)
{
    hth_rpc_slot *s = req->ctx;
    nng_msg *reply = s->reply;
    char *json = req->json;
    if (req->err != HTH_OK) {
        hth_rpc_slot_fail(s, req->err, req->detail);
        if (reply != NULL) {
            nng_msg_free(reply);
        }
    } else if (req->query != NULL) {
        request_document(s, json, request_tells(req->query));
        json = NULL;
    } else if (reply != NULL) {
        hth_rpc_slot_send(s, reply);
    } else {
        hth_rpc_slot_fail(s, HTH_ENOTSUP, "the engine gave no outputs");
    }
    hth_free(json);
}

static void request_progress(hth_request *req, const char *what, uint64_t done, uint64_t total)
{
    hth_rpc_slot_set_progress(req->ctx, what, done, total);
}

static void request_submit(hth_rpc_slot *s)
{
    hth_auth_tenant(s->d->auth, s->q->token, hth_conn_tenant(s->conn), s->tenant, sizeof s->tenant);
    s->r.tenant = s->tenant;
    s->r.admin = s->r.query != NULL &&
                 hth_auth_allows(s->d->auth, hth_conn_peer(s->conn), s->q->token, HTH_NEED_ADMIN);
    s->r.done = request_done;
    hth_err err = hth_engine_submit(s->d->engine, &s->r);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
    }
}

void hth_rpc_slot_infer(hth_rpc_slot *s)
{
    hth_err err = hth_rpc_tensors_inputs_init(&s->in, s->conn, s->q->infer, s->data, s->data_bytes);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_tensors_request(s->q->infer, &s->in, &s->r);
    s->r.place = request_place;
    request_submit(s);
}

// request_may_name: whether the peer may have the server open files by their paths.
static hth_err request_may_name(const hth_rpc_slot *s)
{
    return hth_conn_names_files(s->conn) ? HTH_OK
           : hth_conn_same_machine(s->conn)
               ? hth_fail(HTH_EDENIED,
                          "only the user that hearthd runs as, and root, may name files "
                          "for it to open")
               : hth_fail(HTH_EDENIED, "only clients on the server's machine may name files");
}

// ---- files

void hth_rpc_slot_close_files(hth_rpc_slot *s)
{
    for (int i = 0; i < s->r.n_files; i++) {
        hth_conn_close_taken(s->conn, s->r.files[i]);
    }
    for (int i = 0; i < s->n_given; i++) {
        hth_conn_close_taken(s->conn, s->given[i].fd);
    }
    if (s->file >= 0) {
        hth_conn_close_taken(s->conn, s->file);
    }
    hth_free(s->given);
    s->given = NULL;
    s->r.n_files = s->n_given = 0;
    s->file = -1;
}

// request_path looks at an argument that is a file: its path may be named by some, and with a
// descriptor by others.
static hth_err request_path(const hth_rpc_slot *s, const char *key, const json_t *v, int n_files)
{
    const json_t *which = json_object_get(v, "descriptor");
    json_int_t i = json_integer_value(which);
    if (json_is_string(v) || json_object_get(v, "path") != NULL) {
        HTH_TRY(request_may_name(s));
    }
    return which == NULL || (json_is_integer(which) && i >= 0 && i < n_files)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%s' names a descriptor that did not come with it", key);
}

// request_paths looks for paths in a query's arguments. Documents that a client reads and writes
// itself are no paths here.
static hth_err request_paths(const hth_rpc_slot *s, const json_t *args, int n_files)
{
    static const char *const path[] = {"data", "eval", "spill"};
    static const char *const document[] = {"out", "trace", "problem", "profile", "write-profile"};
    for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) {
        HTH_TRY(request_path(s, path[i], json_object_get(args, path[i]), n_files));
    }
    for (size_t i = 0; i < sizeof document / sizeof document[0]; i++) {
        if (json_is_string(json_object_get(args, document[i]))) {
            HTH_TRY(request_may_name(s));
            return hth_fail(HTH_EINVAL, "'%s' is a document here: its file is the client's",
                            document[i]);
        }
    }
    return HTH_OK;
}

// request_take takes over what the client has passed for a query.
static hth_err request_take(hth_rpc_slot *s)
{
    const Hearth__Query *q = s->q->query;
    if (q->n_handles > HTH_REQUEST_FILES) {
        return hth_fail(HTH_EINVAL, "%zu descriptors for one question", q->n_handles);
    }
    for (size_t i = 0; i < q->n_handles; i++) {
        hth_file f;
        HTH_TRY(hth_conn_take(s->conn, q->handles[i], &s->r.files[i]));
        s->r.n_files++;
        HTH_TRY(hth_file_take(s->r.files[i], "what was passed", &f));
    }
    return HTH_OK;
}

static hth_err request_files(hth_rpc_slot *s)
{
    const Hearth__Query *q = s->q->query;
    json_t *args;
    HTH_TRY(hth_arguments_read(q->what, q->arguments, &args));
    hth_err err = request_take(s);
    err = err == HTH_OK ? request_paths(s, args, s->r.n_files) : err;
    err = err == HTH_OK ? hth_arguments_check(q->what, args) : err;
    err = err == HTH_OK ? hth_job_paths_keep(s->d->store, args) : err;
    json_decref(args);
    return err;
}

void hth_rpc_slot_query(hth_rpc_slot *s)
{
    hth_err err = request_files(s);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    s->r.query = s->q->query->what;
    s->r.arguments = s->q->query->arguments[0] != 0 ? s->q->query->arguments : "{}";
    s->r.progress = request_progress;
    request_submit(s);
}

// ---- to the job threads

static void request_list(hth_store_task *j)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)j - offsetof(hth_rpc_slot, job));
    char *json;
    hth_err err = hth_catalog_list(s->d->store, &json);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_document(s, json);
    hth_free(json);
}

void hth_rpc_slot_models(hth_rpc_slot *s)
{
    s->job.run = request_list;
    hth_store_worker_submit(s->d->lists, &s->job);
}

static int request_verify_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "reading", done, total);
    return s->r.canceled;
}

static void request_verify(hth_store_task *j)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)j - offsetof(hth_rpc_slot, job));
    char *json = NULL;
    hth_err err = s->r.canceled ? hth_fail(HTH_ECANCELED, "canceled before it began")
                                : hth_verify_answer(s->d->store, s->q->query->arguments,
                                                    request_verify_progress, s, &json);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    request_document(s, json, true);
}

void hth_rpc_slot_verify(hth_rpc_slot *s)
{
    s->job.run = request_verify;
    hth_store_worker_submit(s->d->checks, &s->job);
}

static int request_put_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "importing", done, total);
    return s->r.canceled;
}

static void request_imported(hth_rpc_slot *s)
{
    const hth_put_result *r = &s->put;
    Hearth__Reply reply = HEARTH__REPLY__INIT;
    Hearth__Imported body = HEARTH__IMPORTED__INIT;
    body.version = r->version;
    body.unchanged = r->unchanged;
    body.tensors_new = r->tensors_new;
    body.tensors_shared = r->tensors_shared;
    body.bytes_new = r->bytes_new;
    body.bytes_shared = r->bytes_shared;
    body.tensors_repaired = r->tensors_repaired;
    body.bytes_repaired = r->bytes_repaired;
    body.record_repaired = r->record_repaired;
    reply.body_case = HEARTH__REPLY__BODY_IMPORTED;
    reply.imported = &body;
    hth_rpc_slot_reply(s, &reply);
}

// request_stored says what became of a version that is in the store, but does not answer.
static void request_stored(hth_rpc_slot *s, hth_err err, const char *why)
{
    char sentence[800];
    snprintf(sentence, sizeof sentence, "%s:%d is in the store, but %s", s->q->import_model->name,
             s->put.version, why);
    hth_rpc_slot_fail(s, err, sentence);
}

static void request_serves(hth_request *req)
{
    hth_rpc_slot *s = req->ctx;
    hth_free(req->json);
    req->json = NULL;
    // an engine that is started again loads the newest version: it is asked once more, as long as
    // it is not that version which ends it
    if (req->err == HTH_EDEVLOST && ++s->losses < HTH_RPC_SLOT_LOSSES &&
        hth_engine_submit(s->d->engine, req) == HTH_OK) {
        return;
    }
    hth_free(s->arguments);
    if (req->err != HTH_OK) {
        request_stored(s, req->err, req->detail);
    } else {
        request_imported(s);
    }
}

// request_serve waits until the version that was imported answers by its name, where the name is
// served.
static void request_serve(hth_rpc_slot *s)
{
    const char *name = s->q->import_model->name;
    char text[32];
    json_t *args = json_pack("{s:s}", "model", name);
    char *arguments = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    s->arguments = arguments != NULL ? hth_strdup(arguments) : NULL;
    free(arguments);
    json_decref(args);
    if (s->arguments == NULL) {
        request_stored(s, HTH_ENOMEM, "out of memory");
        return;
    }
    snprintf(text, sizeof text, "loading version %d", s->put.version);
    hth_rpc_slot_set_progress(s, text, 0, 0);
    hth_auth_tenant(s->d->auth, s->q->token, hth_conn_tenant(s->conn), s->tenant, sizeof s->tenant);
    s->r.tenant = s->tenant;
    s->r.query = "serving";
    s->r.arguments = s->arguments;
    s->r.done = request_serves;
    hth_err err = hth_engine_submit(s->d->engine, &s->r);
    if (err != HTH_OK) {
        hth_free(s->arguments);
        request_stored(s, err, hth_err_detail());
    }
}

static void request_wanted(hth_rpc_slot *s, hth_onnx_wanted *w)
{
    Hearth__Reply reply = HEARTH__REPLY__INIT;
    Hearth__Wanted body = HEARTH__WANTED__INIT;
    body.locations = w->location;
    body.n_locations = (size_t)w->n;
    reply.body_case = HEARTH__REPLY__BODY_WANTED;
    reply.wanted = &body;
    hth_rpc_slot_reply(s, &reply);
}

static void request_import(hth_rpc_slot *s)
{
    const Hearth__Import *q = s->q->import_model;
    hth_onnx_wanted wanted = {NULL, 0, 0};
    bool no_wait = q->no_wait;
    hth_err err =
        s->n_given > 0
            ? hth_catalog_import_given(s->d->store, q->name, q->path, s->given, s->n_given,
                                       q->max_batch, request_put_progress, s, &wanted, &s->put)
            : hth_catalog_import(s->d->store, q->name, q->path, q->max_batch, request_put_progress,
                                 s, &s->put);
    if (err == HTH_ENOENT && wanted.n > 0) {
        request_wanted(s, &wanted);
    } else if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
    } else if (no_wait) {
        request_imported(s);
    } else {
        request_serve(s);
    }
    hth_onnx_wanted_fini(&wanted);
}

static void request_run_job(hth_store_task *j)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)j - offsetof(hth_rpc_slot, job));
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Collected collected = HEARTH__COLLECTED__INIT;
    Hearth__Done finished = HEARTH__DONE__INIT;
    hth_err err;
    r.body_case = HEARTH__REPLY__BODY_FINISHED;
    r.finished = &finished;
    if (s->r.canceled) {
        err = hth_fail(HTH_ECANCELED, "canceled before it began");
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_IMPORT_MODEL) {
        request_import(s);
        return;
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_GC) {
        err = hth_store_gc(s->d->store, &collected.files, &collected.bytes);
        r.body_case = HEARTH__REPLY__BODY_COLLECTED;
        r.collected = &collected;
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_EXPORT_MODEL) {
        err = hth_catalog_export(s->d->store, s->q->export_model->model, s->q->export_model->path,
                                 s->file);
    } else {
        err = hth_catalog_remove(s->d->store, s->q->remove->model);
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
    } else {
        hth_rpc_slot_reply(s, &r);
    }
}

// request_given takes over the files of an import.
static hth_err request_given(hth_rpc_slot *s)
{
    const Hearth__Import *q = s->q->import_model;
    if (q->files[0]->location[0] != 0 || q->n_files > HTH_ONNX_WANTED + 1) {
        return hth_fail(HTH_EINVAL, "the model comes first of what is passed");
    }
    s->given = hth_calloc(q->n_files, sizeof *s->given);
    if (s->given == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an import");
    }
    for (size_t i = 0; i < q->n_files; i++) {
        s->given[i].location = q->files[i]->location;
        HTH_TRY(hth_conn_take(s->conn, q->files[i]->handle, &s->given[i].fd));
        s->n_given++;
    }
    return HTH_OK;
}

// request_job_files takes over what an import or export was passed, or looks whether it may name
// paths.
static hth_err request_job_files(hth_rpc_slot *s)
{
    const Hearth__Request *q = s->q;
    if (q->body_case == HEARTH__REQUEST__BODY_IMPORT_MODEL) {
        return q->import_model->n_files > 0 ? request_given(s) : request_may_name(s);
    }
    if (q->body_case == HEARTH__REQUEST__BODY_EXPORT_MODEL) {
        uint64_t handle = q->export_model->handle;
        return handle != 0 ? hth_conn_take(s->conn, handle, &s->file) : request_may_name(s);
    }
    return HTH_OK;
}

void hth_rpc_slot_job(hth_rpc_slot *s)
{
    hth_err err = request_job_files(s);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    s->job.run = request_run_job;
    hth_store_worker_submit(s->d->jobs, &s->job);
}
