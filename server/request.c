// SPDX-License-Identifier: Apache-2.0
// Requests that leave the callback's thread: to the engine (infer, queries) or to the job thread.
// Inputs are used where they lie, in the message or in the client's shared memory. What lies in
// shared memory and could steer addresses or shapes (integers, small tensors) is copied first: the
// client may write there at any time. Outputs are written by the engine into the reply's own
// message.
#include "server/slot.h"

#include "base/alloc.h"
#include "server/catalog.h"

#include <jansson.h>

#include <string.h>

#define REQUEST_SMALL_BYTES (64u << 10)

void hth_slot_reset(hth_slot *s, nng_msg *msg)
{
    s->conn = NULL;
    s->q = NULL;
    s->r = (hth_request){.ctx = s};
    s->progress = (hth_progress){.what = ""};
    s->msg = msg;
    s->copy = NULL;
    s->inputs = NULL;
    s->held = NULL;
    s->n_inputs = 0;
    s->reply = NULL;
}

void hth_slot_clear(hth_slot *s)
{
    for (int i = 0; i < s->n_inputs; i++) {
        hth_region_rele(s->held[i].region);
        hth_free(s->held[i].copy);
    }
    hth_free(s->inputs);
    hth_free(s->held);
    hth_free(s->copy);
    hth_wire_free_request(s->q);
    nng_msg_free(s->msg);
    hth_conn_rele(s->conn);
    hth_slot_reset(s, NULL);
}

// ---- to the engine

static hth_err request_shared(hth_slot *s, const Hearth__Tensor *t, hth_slot_input *held,
                              const void **data)
{
    HTH_TRY(hth_conn_range(s->conn, t->region, t->offset, t->bytes, data, &held->region));
    if (hth_dtype_is_float((hth_dtype)t->dtype) && t->bytes > REQUEST_SMALL_BYTES) {
        return HTH_OK;
    }
    held->copy = hth_alloc_aligned(t->bytes, 64);
    if (held->copy == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an input of %llu bytes",
                        (unsigned long long)t->bytes);
    }
    *data = memcpy(held->copy, *data, t->bytes);
    return HTH_OK;
}

static hth_err request_input(hth_slot *s, const Hearth__Tensor *t, hth_request_tensor *in,
                             hth_slot_input *held)
{
    const void *data;
    if (t->region != 0) {
        HTH_TRY(request_shared(s, t, held, &data));
    } else {
        data = s->data + t->offset;
    }
    in->name = t->name[0] != 0 ? t->name : NULL;
    in->t = (hth_tensor){.dtype = (hth_dtype)t->dtype,
                         .layout = HTH_LAYOUT_PLAIN,
                         .shape = {.rank = (int)t->n_shape},
                         .data = (void *)data,
                         .bytes = t->bytes};
    memcpy(in->t.shape.dim, t->shape, t->n_shape * sizeof t->shape[0]);
    return HTH_OK;
}

static hth_err request_inputs(hth_slot *s, const Hearth__Infer *q)
{
    s->data = hth_msg_aligned(s->data, s->data_bytes, &s->copy);
    s->inputs = hth_calloc(q->n_inputs, sizeof *s->inputs);
    s->held = hth_calloc(q->n_inputs, sizeof *s->held);
    if (s->data == NULL || s->inputs == NULL || s->held == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    s->n_inputs = (int)q->n_inputs;
    for (size_t i = 0; i < q->n_inputs; i++) {
        HTH_TRY(request_input(s, q->inputs[i], &s->inputs[i], &s->held[i]));
    }
    return HTH_OK;
}

static hth_err request_frame(hth_slot *s, Hearth__Tensor **list, size_t n, uint8_t **data)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Outputs body = HEARTH__OUTPUTS__INIT;
    body.outputs = list;
    body.n_outputs = n;
    r.call = s->q->call;
    r.body_case = HEARTH__REPLY__BODY_OUTPUTS;
    r.outputs = &body;
    return hth_msg_frame(&r.base, list, n, 0, &s->d->limits, &s->reply, data);
}

static hth_err request_place(hth_request *req, hth_request_tensor *out, int n_out)
{
    hth_slot *s = req->ctx;
    size_t n = (size_t)n_out;
    uint8_t *data;
    Hearth__Tensor *t = hth_alloc(n * (sizeof *t + sizeof(Hearth__Tensor *)));
    if (t == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a reply");
    }
    Hearth__Tensor **list = (Hearth__Tensor **)(t + n);
    for (size_t i = 0; i < n; i++) {
        hearth__tensor__init(&t[i]);
        t[i].name = out[i].name != NULL ? (char *)out[i].name : t[i].name;
        t[i].dtype = (uint32_t)out[i].t.dtype;
        t[i].n_shape = (size_t)out[i].t.shape.rank;
        t[i].shape = out[i].t.shape.dim;
        t[i].bytes = out[i].t.bytes;
        list[i] = &t[i];
    }
    hth_err err = request_frame(s, list, n, &data);
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        out[i].t.data = data + t[i].offset;
    }
    hth_free(t);
    return err;
}

static void request_done(hth_request *req)
{
    hth_slot *s = req->ctx;
    nng_msg *reply = s->reply;
    char *json = req->json;
    if (req->err != HTH_OK) {
        hth_slot_fail(s, req->err, req->detail);
        if (reply != NULL) {
            nng_msg_free(reply);
        }
    } else if (req->query != NULL) {
        hth_slot_document(s, json != NULL ? json : "null");
    } else if (reply != NULL) {
        hth_slot_send(s, reply);
    } else {
        hth_slot_fail(s, HTH_ENOTSUP, "the engine gave no outputs");
    }
    hth_free(json);
}

static void request_progress(hth_request *req, const char *what, uint64_t done, uint64_t total)
{
    hth_slot_set_progress(req->ctx, what, done, total);
}

static void request_submit(hth_slot *s)
{
    hth_auth_tenant(s->d->auth, s->q->token, hth_conn_tenant(s->conn), s->tenant, sizeof s->tenant);
    s->r.tenant = s->tenant;
    s->r.done = request_done;
    hth_err err = hth_engine_submit(s->d->engine, &s->r);
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
    }
}

void hth_slot_infer(hth_slot *s)
{
    hth_err err = request_inputs(s, s->q->infer);
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
        return;
    }
    s->r.model = s->q->infer->model;
    s->r.inputs = s->inputs;
    s->r.n_inputs = s->n_inputs;
    s->r.priority = s->q->infer->priority;
    s->r.timeout_us = s->q->infer->timeout_us;
    s->r.place = request_place;
    request_submit(s);
}

// request_names_files tells whether a query's arguments name files for the server to read or write.
static bool request_names_files(const char *arguments)
{
    json_t *j = json_loads(arguments, 0, NULL);
    bool files = false;
    static const char *const key[] = {"out",  "trace", "problem", "profile",
                                      "data", "eval",  "spill",   "write-profile"};
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        files = files || json_is_string(json_object_get(j, key[i]));
    }
    json_decref(j);
    return files;
}

void hth_slot_query(hth_slot *s)
{
    if (!hth_conn_same_machine(s->conn) && request_names_files(s->q->query->arguments)) {
        hth_slot_fail(s, HTH_EDENIED, "only clients on the server's machine may name files");
        return;
    }
    s->r.query = s->q->query->what;
    s->r.arguments = s->q->query->arguments[0] != 0 ? s->q->query->arguments : "{}";
    s->r.progress = request_progress;
    request_submit(s);
}

// ---- to the job thread

static int request_put_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_slot *s = ctx;
    hth_slot_set_progress(s, "importing", done, total);
    return s->r.canceled;
}

static hth_err request_import(hth_slot *s, Hearth__Imported *out)
{
    hth_put_result r;
    const Hearth__Import *q = s->q->import_model;
    HTH_TRY(hth_catalog_import(s->d->store, q->name, q->path, q->max_batch, request_put_progress, s,
                               &r));
    out->version = r.version;
    out->unchanged = r.unchanged;
    out->tensors_new = r.tensors_new;
    out->tensors_shared = r.tensors_shared;
    out->bytes_new = r.bytes_new;
    out->bytes_shared = r.bytes_shared;
    return HTH_OK;
}

static void request_run_job(hth_job *j)
{
    hth_slot *s = (hth_slot *)((char *)j - offsetof(hth_slot, job));
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Imported imported = HEARTH__IMPORTED__INIT;
    Hearth__Collected collected = HEARTH__COLLECTED__INIT;
    Hearth__Done finished = HEARTH__DONE__INIT;
    hth_err err;
    r.body_case = HEARTH__REPLY__BODY_FINISHED;
    r.finished = &finished;
    if (s->r.canceled) {
        err = hth_fail(HTH_ECANCELED, "canceled before it began");
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_IMPORT_MODEL) {
        err = request_import(s, &imported);
        r.body_case = HEARTH__REPLY__BODY_IMPORTED;
        r.imported = &imported;
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_GC) {
        err = hth_store_gc(s->d->store, &collected.files, &collected.bytes);
        r.body_case = HEARTH__REPLY__BODY_COLLECTED;
        r.collected = &collected;
    } else if (s->q->body_case == HEARTH__REQUEST__BODY_EXPORT_MODEL) {
        err = hth_catalog_export(s->d->store, s->q->export_model->model, s->q->export_model->path);
    } else {
        err = hth_catalog_remove(s->d->store, s->q->remove->model);
    }
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
    } else {
        hth_slot_reply(s, &r);
    }
}

void hth_slot_job(hth_slot *s)
{
    bool by_path = s->q->body_case == HEARTH__REQUEST__BODY_IMPORT_MODEL ||
                   s->q->body_case == HEARTH__REQUEST__BODY_EXPORT_MODEL;
    if (by_path && !hth_conn_same_machine(s->conn)) {
        hth_slot_fail(s, HTH_EDENIED, "only clients on the server's machine may name files");
        return;
    }
    s->job.run = request_run_job;
    hth_jobs_submit(s->d->jobs, &s->job);
}
