// SPDX-License-Identifier: Apache-2.0
// Requests that a thread answers from the store: the list of models, verify, import, export,
// remove, gc. An import then asks the engine to serve what is new.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "runtime/catalog.h"
#include "runtime/content/dataset_own.h"
#include "runtime/job_index.h"
#include "runtime/content/verify.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GC_WAIT_SECONDS 30
#define GC_LOOK_NS      20000000

static void request_list(hth_store_task *task)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
    char *json;
    const hth_caller caller = hth_rpc_slot_caller(s);
    hth_err err = hth_catalog_list(s->d->store, &caller, &json);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_document(s, json);
    hth_free(json);
}

void hth_rpc_slot_models(hth_rpc_slot *slot)
{
    slot->job.run = request_list;
    hth_store_worker_submit(slot->d->lists, &slot->job);
}

static int request_verify_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "reading", done, total);
    return s->r.canceled;
}

static void request_verify(hth_store_task *task)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
    char *json = NULL;
    hth_err err = s->r.canceled ? hth_fail(HTH_ECANCELED, "canceled before it began")
                                : hth_verify_answer(s->d->store, s->q->query->arguments,
                                                    request_verify_progress, s, &json);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_told(s, json, true);
}

void hth_rpc_slot_verify(hth_rpc_slot *slot)
{
    slot->job.run = request_verify;
    hth_store_worker_submit(slot->d->checks, &slot->job);
}

static int request_put_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "importing", done, total);
    return s->r.canceled;
}

static void request_imported(hth_rpc_slot *slot)
{
    const hth_put_result *r = &slot->put;
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
    hth_rpc_slot_reply(slot, &reply);
}

// request_stored says what became of a version that is in the store, but does not answer.
static void request_stored(hth_rpc_slot *slot, hth_err err, const char *why)
{
    char sentence[800];
    snprintf(sentence, sizeof sentence, "%s:%d is in the store, but %s", slot->made,
             slot->put.version, why);
    hth_rpc_slot_fail(slot, err, sentence);
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
static void request_serve(hth_rpc_slot *slot)
{
    char text[32];
    json_t *args = json_pack("{s:s}", "model", slot->made);
    char *arguments = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    slot->arguments = arguments != NULL ? hth_strdup(arguments) : NULL;
    free(arguments);
    json_decref(args);
    if (slot->arguments == NULL) {
        request_stored(slot, HTH_ENOMEM, "out of memory");
        return;
    }
    snprintf(text, sizeof text, "loading version %d", slot->put.version);
    hth_rpc_slot_set_progress(slot, text, 0, 0);
    hth_auth_tenant(slot->d->auth, slot->q->token, hth_conn_tenant(slot->conn), slot->tenant,
                    sizeof slot->tenant);
    slot->r.tenant = slot->tenant;
    slot->r.command = HTH_COMMAND_SERVING;
    slot->r.arguments = slot->arguments;
    slot->r.done = request_serves;
    hth_err err = hth_engine_submit(slot->d->engine, &slot->r);
    if (err != HTH_OK) {
        hth_free(slot->arguments);
        request_stored(slot, err, hth_err_detail());
    }
}

void hth_rpc_slot_stored(hth_rpc_slot *slot, const char *name, bool no_wait)
{
    slot->made = name;
    if (no_wait) {
        request_imported(slot);
    } else {
        request_serve(slot);
    }
}

static void request_wanted(hth_rpc_slot *slot, hth_onnx_wanted *wanted)
{
    Hearth__Reply reply = HEARTH__REPLY__INIT;
    Hearth__Wanted body = HEARTH__WANTED__INIT;
    body.locations = wanted->location;
    body.n_locations = (size_t)wanted->n;
    reply.body_case = HEARTH__REPLY__BODY_WANTED;
    reply.wanted = &body;
    hth_rpc_slot_reply(slot, &reply);
}

static void request_import(hth_rpc_slot *slot)
{
    const Hearth__Import *q = slot->q->import_model;
    hth_onnx_wanted wanted = {NULL, 0, 0};
    const hth_caller caller = hth_rpc_slot_caller(slot);
    bool no_wait = q->no_wait;
    hth_err err;
    if (slot->n_given > 0) {
        err = hth_catalog_import_given(slot->d->store, q->name, q->path, slot->given, slot->n_given,
                                       q->max_batch, &caller, request_put_progress, slot, &wanted,
                                       &slot->put);
    } else {
        err = hth_catalog_import(slot->d->store, q->name, q->path, q->max_batch, &caller,
                                 request_put_progress, slot, &slot->put);
    }
    if (err == HTH_ENOENT && wanted.n > 0) {
        request_wanted(slot, &wanted);
    } else if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
    } else {
        hth_rpc_slot_stored(slot, q->name, no_wait);
    }
    hth_onnx_wanted_fini(&wanted);
}

static int request_export_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "exporting", done, total);
    return s->r.canceled;
}

// request_collect waits for imports of other programs, whose next one may begin before the last one
// has ended, and has all of this one's wait for it meanwhile: not for long, or without a client.
static hth_err request_collect(hth_rpc_slot *slot, Hearth__Collected *out)
{
    const struct timespec look = {.tv_nsec = GC_LOOK_NS};
    uint64_t until_ns = hth_now_ns() + (uint64_t)GC_WAIT_SECONDS * 1000000000u;
    hth_err err;
    while ((err = hth_store_gc(slot->d->store, &out->files, &out->bytes)) == HTH_EBUSY) {
        if (slot->r.canceled) {
            return hth_fail(HTH_ECANCELED, "canceled");
        }
        if (hth_now_ns() >= until_ns) {
            return hth_fail(HTH_EBUSY,
                            "something is being put into the store, and was for %d seconds: try "
                            "again later",
                            GC_WAIT_SECONDS);
        }
        nanosleep(&look, NULL);
    }
    return err;
}

// request_gc also ends the time in which a canceled job can be resumed, and removes datasets whose
// clients have died.
static hth_err request_gc(hth_rpc_slot *slot, Hearth__Collected *out)
{
    hth_store *store = slot->d->store;
    uint64_t days = (uint64_t)hth_setting_int(HTH_SET_TRAIN_CANCELED_DAYS);
    uint64_t seconds = (uint64_t)hth_setting_int(HTH_SET_STORE_UPLOAD_SECONDS);
    HTH_TRY(hth_checkpoint_expire(store, hth_job_index_now(), days * 86400u * 1000000000u));
    HTH_TRY(hth_dataset_own_expire(store, hth_job_index_now(), seconds * 1000000000u));
    return request_collect(slot, out);
}

static hth_err request_export(hth_rpc_slot *slot)
{
    const Hearth__Export *q = slot->q->export_model;
    const hth_caller caller = hth_rpc_slot_caller(slot);
    HTH_TRY(hth_owner_may(slot->d->store, q->model, &caller, "export"));
    return hth_catalog_export(slot->d->store, q->model, q->path, slot->file,
                              request_export_progress, slot);
}

static hth_err request_remove(hth_rpc_slot *slot)
{
    const hth_caller caller = hth_rpc_slot_caller(slot);
    HTH_TRY(hth_owner_may(slot->d->store, slot->q->remove->model, &caller, "remove"));
    return hth_catalog_remove(slot->d->store, slot->q->remove->model);
}

static void request_run_job(hth_store_task *task)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
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
        err = request_gc(s, &collected);
        r.body_case = HEARTH__REPLY__BODY_COLLECTED;
        r.collected = &collected;
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_EXPORT_MODEL) {
        err = request_export(s);
    } else {
        err = request_remove(s);
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
    } else {
        hth_rpc_slot_reply(s, &r);
    }
}

// request_given takes over the files of an import.
static hth_err request_given(hth_rpc_slot *slot)
{
    const Hearth__Import *q = slot->q->import_model;
    if (q->files[0]->location[0] != 0 || q->n_files > HTH_ONNX_WANTED + 1) {
        return hth_fail(HTH_EINVAL, "the model comes first of what is passed");
    }
    slot->given = hth_calloc(q->n_files, sizeof *slot->given);
    if (slot->given == NULL) {
        return hth_no_memory("an import");
    }
    for (size_t i = 0; i < q->n_files; i++) {
        slot->given[i].location = q->files[i]->location;
        HTH_TRY(hth_conn_take(slot->conn, q->files[i]->handle, &slot->given[i].fd));
        slot->n_given++;
    }
    return HTH_OK;
}

// request_job_files takes over what an import or export was passed, or looks whether it may name
// paths.
static hth_err request_job_files(hth_rpc_slot *slot)
{
    const Hearth__Request *q = slot->q;
    if (q->body_case == HEARTH__REQUEST__BODY_IMPORT_MODEL) {
        return q->import_model->n_files > 0 ? request_given(slot) : hth_rpc_slot_may_name(slot);
    }
    if (q->body_case == HEARTH__REQUEST__BODY_EXPORT_MODEL) {
        uint64_t handle = q->export_model->handle;
        return handle != 0 ? hth_conn_take(slot->conn, handle, &slot->file)
                           : hth_rpc_slot_may_name(slot);
    }
    return HTH_OK;
}

void hth_rpc_slot_job(hth_rpc_slot *slot)
{
    hth_err err = request_job_files(slot);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    slot->job.run = request_run_job;
    hth_store_worker_submit(slot->d->jobs, &slot->job);
}
