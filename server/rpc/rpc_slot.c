// SPDX-License-Identifier: Apache-2.0
// Replies, and the requests that go to the engine: inferences and questions. What the store answers
// is in rpc_slot_store.c.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/ipc/sum_link.h"
#include "base/log.h"
#include "base/settings.h"
#include "engine/job_paths.h"
#include "runtime/arguments.h"
#include "runtime/job_index.h"
#include "runtime/redact.h"
#include "server/net/accept_guard.h"
#include "server/net/closer.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- kinds

hth_rpc_slot_kind hth_rpc_slot_kind_of(const Hearth__Request *request, hth_command_id command)
{
    if (command == HTH_COMMAND_WATCH) {
        return HTH_RPC_SLOT_WATCH;
    }
    bool is_short = request->body_case == HEARTH__REQUEST__BODY_INFER ||
                    hth_rpc_slot_is_content(request) || hth_command_is(command, HTH_COMMAND_SHORT);
    return is_short ? HTH_RPC_SLOT_SHORT : HTH_RPC_SLOT_LONG;
}

// ---- replies

void hth_rpc_slot_reply(hth_rpc_slot *slot, Hearth__Reply *reply)
{
    nng_msg *msg = NULL;
    uint8_t *data;
    reply->call = slot->q != NULL ? slot->q->call : 0;
    if (hth_wire_message(&reply->base, NULL, 0, 0, &slot->d->limits, &msg, &data) != HTH_OK) {
        msg = NULL; // no memory: nothing is sent
    }
    hth_rpc_slot_send(slot, msg);
}

void hth_rpc_slot_plain(const hth_rpc_slot *slot, const char *sentence, char *out, size_t cap)
{
    if (hth_conn_same_machine(slot->conn)) {
        snprintf(out, cap, "%s", sentence);
    } else {
        hth_redact(sentence, out, cap);
    }
}

void hth_rpc_slot_fail(hth_rpc_slot *slot, hth_err err, const char *sentence)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Error body = HEARTH__ERROR__INIT;
    char cleared[1024];
    sentence = sentence[0] != 0 ? sentence : hth_strerror(err);
    hth_rpc_slot_plain(slot, sentence, cleared, sizeof cleared);
    body.code = (uint32_t)err;
    body.sentence = cleared;
    r.body_case = HEARTH__REPLY__BODY_ERROR;
    r.error = &body;
    hth_rpc_slot_reply(slot, &r);
}

static hth_err request_document(const hth_rpc_slot *slot, const char *json, nng_msg **msg)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Document body = HEARTH__DOCUMENT__INIT;
    uint8_t *data;
    body.bytes = strlen(json);
    r.call = slot->q->call;
    r.body_case = HEARTH__REPLY__BODY_DOCUMENT;
    r.document = &body;
    HTH_TRY(hth_wire_message(&r.base, NULL, 0, body.bytes, &slot->d->limits, msg, &data));
    memcpy(data, json, body.bytes);
    return HTH_OK;
}

void hth_rpc_slot_document(hth_rpc_slot *slot, const char *json)
{
    nng_msg *msg;
    hth_err err = request_document(slot, json, &msg);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_send(slot, msg);
}

nng_msg *hth_rpc_slot_taken(const hth_rpc_slot *slot, const char *state)
{
    json_t *doc = json_pack("{s:I, s:s, s:s}", "id", (json_int_t)slot->job_id, "job",
                            slot->job_name, "state", state);
    char *text = json_dumps(doc, JSON_COMPACT);
    nng_msg *msg = NULL;
    json_decref(doc);
    if (text != NULL && request_document(slot, text, &msg) != HTH_OK) {
        msg = NULL;
    }
    free(text);
    return msg;
}

// ---- to the engine

// request_frame makes the reply's message, whose data section is *data.
static hth_err request_frame(hth_rpc_slot *slot, const Hearth__Reply *reply, uint8_t **data)
{
    const Hearth__Outputs *o = reply->outputs;
    uint64_t bytes;
    HTH_TRY(hth_wire_place(o->outputs, o->n_outputs, &bytes));
    if (slot->front->reserve != NULL) {
        HTH_TRY(slot->front->reserve(slot->back, bytes));
    }
    return hth_wire_message(&reply->base, o->outputs, o->n_outputs, 0, &slot->d->limits,
                            &slot->reply, data);
}

// request_place makes a frame for the outputs, and sets where their bytes go.
static hth_err request_place(hth_request *req, hth_request_tensor *out, int n)
{
    hth_rpc_slot *s = req->ctx;
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Outputs body = HEARTH__OUTPUTS__INIT;
    uint8_t *data;
    Hearth__Tensor *t = hth_alloc((size_t)n * (sizeof *t + sizeof(Hearth__Tensor *)));
    if (t == NULL) {
        return hth_no_memory("a reply");
    }
    body.outputs = (Hearth__Tensor **)(t + n);
    body.n_outputs = (size_t)n;
    body.version = req->version;
    body.model = req->target;
    for (int i = 0; i < n; i++) {
        hearth__tensor__init(&t[i]);
        t[i].name = out[i].name != NULL ? (char *)out[i].name : t[i].name;
        t[i].dtype = (uint32_t)out[i].t.dtype;
        t[i].n_shape = (size_t)out[i].t.shape.rank;
        t[i].shape = out[i].t.shape.dim;
        t[i].bytes = out[i].t.bytes;
        body.outputs[i] = &t[i];
    }
    r.call = s->q->call;
    r.body_case = HEARTH__REPLY__BODY_OUTPUTS;
    r.outputs = &body;
    hth_err err = request_frame(s, &r, &data);
    for (int i = 0; i < n && err == HTH_OK; i++) {
        out[i].t.data = data + t[i].offset;
    }
    hth_free(t);
    return err;
}

void hth_rpc_slot_told(hth_rpc_slot *slot, char *json, bool tells)
{
    if (!hth_conn_same_machine(slot->conn) && tells && json != NULL) {
        char *cleared = hth_redact_jobs(json);
        hth_free(json);
        json = cleared;
    }
    hth_rpc_slot_document(slot, json != NULL ? json : "null");
    hth_free(json);
}

// request_about_job tells whether the command is about one that there is.
static bool request_about_job(const hth_rpc_slot *slot)
{
    return (hth_command_get(slot->command)->required & HTH_TAKES(JOB)) != 0;
}

void hth_rpc_slot_refused(hth_rpc_slot *slot, hth_err err, const char *sentence)
{
    if (err != HTH_EDENIED || !request_about_job(slot)) {
        hth_rpc_slot_fail(slot, err, sentence);
        return;
    }
    json_t *args = json_loads(slot->changed != NULL ? slot->changed : "", 0, NULL);
    const char *name = json_string_value(json_object_get(args, "job"));
    hth_fail(HTH_ENOENT, "there is no job '%s'; `hearth jobs` lists what there is",
             name != NULL ? name : "");
    json_decref(args);
    hth_rpc_slot_fail(slot, HTH_ENOENT, hth_err_detail());
}

// request_left ends a job that nobody waits for: its record says how it went.
static void request_left(hth_rpc_slot *slot)
{
    if (slot->r.err == HTH_OK) {
        hth_log(INFO, SERVER, "train", "job %" PRIu64 " '%s' has finished", slot->job_id,
                slot->job_name);
    } else {
        hth_log(INFO, SERVER, "train", "job %" PRIu64 " '%s' has ended: %s", slot->job_id,
                slot->job_name, slot->r.detail);
    }
    hth_rpc_slot_drop(slot);
}

static void request_answer(hth_rpc_slot *slot)
{
    hth_rpc_slot *s = slot;
    const hth_request *req = &s->r;
    nng_msg *reply = s->reply;
    char *json = req->json;
    if (s->leaves && req->err == HTH_OK) { // sooner than anything was told about it
        hth_rpc_slot_send(s, hth_rpc_slot_taken(s, "finished"));
    } else if (req->err != HTH_OK) {
        hth_rpc_slot_refused(s, req->err, req->detail);
        if (reply != NULL) {
            nng_msg_free(reply);
        }
    } else if (req->command != HTH_COMMAND_NONE) {
        hth_rpc_slot_told(s, json, hth_command_is(req->command, HTH_COMMAND_REDACTED));
        json = NULL;
    } else if (reply != NULL) {
        hth_rpc_slot_send(s, reply);
    } else {
        hth_rpc_slot_fail(s, HTH_ENOTSUP, "the engine gave no outputs");
    }
    hth_free(json);
}

// request_drop_data lets a job go that has ended, or was refused, with the data that came with it.
static void request_drop_data(hth_store_task *task)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
    hth_rpc_slot_drop_data(s);
    request_answer(s);
}

static void request_done(hth_request *req)
{
    hth_rpc_slot *s = req->ctx;
    if (s->detached) {
        hth_free(req->json);
        request_left(s);
    } else if (hth_rpc_slot_has_data(s)) { // not on the engine's thread, which waits for no disk
        s->job.run = request_drop_data;
        hth_store_worker_submit(s->d->lists, &s->job);
    } else {
        request_answer(s);
    }
}

static void request_progress(hth_request *req, const char *what, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = req->ctx;
    hth_rpc_slot_set_progress(s, what, done, total);
    if (s->leaves && !s->detached && what[0] == '{') { // a state, or a step: it is taken
        json_t *doc = json_loads(what, 0, NULL);
        const char *state = json_string_value(json_object_get(doc, "state"));
        hth_rpc_slot_detach(s, state != NULL ? state : "running");
        json_decref(doc);
    }
}

void hth_rpc_slot_know(hth_rpc_slot *slot)
{
    hth_rpc_slot *s = slot;
    hth_auth_tenant(s->d->auth, s->q->token, hth_conn_tenant(s->conn), s->tenant, sizeof s->tenant);
    s->r.tenant = s->tenant;
    s->r.admin = s->q->body_case == HEARTH__REQUEST__BODY_QUERY &&
                 hth_auth_allows(s->d->auth, hth_conn_peer(s->conn), s->q->token, HTH_NEED_ADMIN);
}

static void request_submit(hth_rpc_slot *slot)
{
    slot->r.done = request_done;
    hth_err err = hth_engine_submit(slot->d->engine, &slot->r);
    if (err != HTH_OK) {
        hth_rpc_slot_drop_data(slot);
        hth_rpc_slot_fail(slot, err, hth_err_detail());
    }
}

void hth_rpc_slot_infer(hth_rpc_slot *slot)
{
    hth_err err = hth_rpc_tensors_inputs_init(&slot->in, slot->conn, slot->q->infer, slot->data,
                                              slot->data_bytes);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    slot->r.model = slot->q->infer->model;
    slot->r.inputs = slot->in.list;
    slot->r.n_inputs = slot->in.n;
    slot->r.priority = slot->q->infer->priority;
    slot->r.timeout_us = slot->q->infer->timeout_us;
    slot->r.place = request_place;
    hth_rpc_slot_know(slot);
    request_submit(slot);
}

hth_err hth_rpc_slot_may_name(const hth_rpc_slot *slot)
{
    if (hth_conn_names_files(slot->conn)) {
        return HTH_OK;
    }
    if (!hth_conn_same_machine(slot->conn)) {
        return hth_fail(HTH_EDENIED, "only clients on the server's machine may name files");
    }
    return hth_fail(HTH_EDENIED, "only the user that hearthd runs as, and root, may name files "
                                 "for it to open");
}

// ---- files

void hth_rpc_slot_close_files(hth_rpc_slot *slot)
{
    for (int i = 0; i < slot->r.n_files; i++) {
        if (slot->conn != NULL) {
            hth_conn_close_taken(slot->conn, slot->r.files[i]);
        } else {
            hth_closer_close(slot->uid, slot->r.files[i], true);
        }
    }
    for (int i = 0; i < slot->n_given; i++) {
        hth_conn_close_taken(slot->conn, slot->given[i].fd);
    }
    if (slot->file >= 0) {
        hth_conn_close_taken(slot->conn, slot->file);
    }
    hth_free(slot->given);
    slot->given = NULL;
    slot->r.n_files = slot->n_given = 0;
    slot->file = -1;
}

// request_path looks at an argument that is a file: its path may be named by some, and with a
// descriptor by others.
static hth_err request_path(const hth_rpc_slot *slot, const char *key, const json_t *json,
                            int n_files)
{
    const json_t *which = json_object_get(json, "descriptor");
    json_int_t i = json_integer_value(which);
    if (json_is_string(json) || json_object_get(json, "path") != NULL) {
        HTH_TRY(hth_rpc_slot_may_name(slot));
    }
    return which == NULL || (json_is_integer(which) && i >= 0 && i < n_files)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%s' names a descriptor that did not come with it", key);
}

// request_paths looks for paths in a query's arguments. Documents that a client reads and writes
// itself are no paths here.
static hth_err request_paths(const hth_rpc_slot *slot, const json_t *args, int n_files)
{
    static const char *const path[] = {"data", "eval", "start", "spill"};
    static const char *const document[] = {"out", "trace", "problem", "profile", "write-profile"};
    for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) {
        HTH_TRY(request_path(slot, path[i], json_object_get(args, path[i]), n_files));
    }
    for (size_t i = 0; i < sizeof document / sizeof document[0]; i++) {
        if (json_is_string(json_object_get(args, document[i]))) {
            HTH_TRY(hth_rpc_slot_may_name(slot));
            return hth_fail(HTH_EINVAL, "'%s' is a document here: its file is the client's",
                            document[i]);
        }
    }
    return HTH_OK;
}

// request_own takes a descriptor of this process as if it had been passed: it counts until it is
// closed.
static hth_err request_own(hth_rpc_slot *slot, int from)
{
    if (!hth_accept_take(HTH_ACCEPT_LOCAL)) {
        return hth_fail(HTH_EBUSY, "the process has too many open files");
    }
    int fd = fcntl(from, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        hth_accept_give(HTH_ACCEPT_LOCAL);
        return hth_fail_errno(errno, "'fd' %d of '" HTH_RANK_KEY "'", from);
    }
    slot->r.files[slot->r.n_files++] = fd;
    return HTH_OK;
}

// request_rank has a training job that is one rank of a group be that member. Its exchange is a
// socket that came with it, or one of this process.
static hth_err request_rank(hth_rpc_slot *slot, json_t *args, hth_rank *rank)
{
    *rank = (hth_rank){.descriptor = -1};
    HTH_TRY(slot->command == HTH_COMMAND_TRAIN ? hth_rank_read(args, rank) : HTH_OK);
    if (rank->ranks == 0) {
        return HTH_OK;
    }
    slot->r.member = 1 + rank->rank;
    if (rank->fd >= 0 && !hth_conn_embedded(slot->conn)) {
        return hth_fail(HTH_EDENIED, "'fd' of '" HTH_RANK_KEY "' is for an engine in the same "
                                     "process: pass a descriptor");
    }
    if (rank->fd >= 0) {
        rank->descriptor = slot->r.n_files;
        HTH_TRY(request_own(slot, rank->fd));
        json_t *object = json_object_get(args, HTH_RANK_KEY);
        json_object_del(object, "fd");
        json_object_set_new(object, "descriptor", json_integer(rank->descriptor));
    }
    return rank->descriptor < slot->r.n_files
               ? hth_sum_link_check(slot->r.files[rank->descriptor])
               : hth_fail(HTH_EINVAL, "'" HTH_RANK_KEY "' names a descriptor that did not come "
                                      "with it");
}

// request_take takes over what the client has passed for a query: files, and a rank's socket.
static hth_err request_take(hth_rpc_slot *slot, json_t *args)
{
    const Hearth__Query *q = slot->q->query;
    if (q->n_handles > HTH_CLIENT_FILES) {
        return hth_fail(HTH_EINVAL, "%zu descriptors for one question", q->n_handles);
    }
    for (size_t i = 0; i < q->n_handles; i++) {
        HTH_TRY(hth_conn_take(slot->conn, q->handles[i], &slot->r.files[i]));
        slot->r.n_files++;
    }
    hth_rank rank;
    HTH_TRY(request_rank(slot, args, &rank));
    for (int i = 0; i < slot->r.n_files; i++) {
        hth_file f;
        HTH_TRY(i != rank.descriptor ? hth_file_take(slot->r.files[i], "what was passed", &f)
                                     : HTH_OK);
    }
    return HTH_OK;
}

// ---- training jobs by their numbers: a new one gets its own before the engine sees it, so that it
// keeps it wherever it runs, and goes on; a question about number 7 becomes one about its name

// job_count counts a job that its client is to leave here, until it ends.
static hth_err job_count(hth_rpc_slot *slot)
{
    hth_dispatch *d = slot->d;
    const hth_tenant_limited limited = {"detached training jobs", "limits.detached_jobs",
                                        hth_setting_int(HTH_SET_LIMIT_DETACHED_JOBS)};
    pthread_mutex_lock(&d->lock);
    hth_err err = hth_tenant_part_take(&d->parts, slot->tenant, &limited, &slot->part);
    pthread_mutex_unlock(&d->lock);
    return err;
}

// job_begins gives a new job its number. One that goes on has it in its checkpoint.
static hth_err job_begins(hth_rpc_slot *slot, json_t *args)
{
    const char *again = json_string_value(json_object_get(args, "job"));
    slot->leaves = json_is_true(json_object_get(args, "detach"));
    HTH_TRY(slot->leaves ? job_count(slot) : HTH_OK);
    if (slot->r.member > 1) { // the job's number is that of rank 0
        return HTH_OK;
    }
    if (again != NULL) {
        json_t *doc = NULL;
        snprintf(slot->job_name, sizeof slot->job_name, "%s", again);
        (void)hth_checkpoint_find(slot->d->store, again, &doc);
        const json_t *asked = json_object_get(doc, "job");
        slot->job_id = (uint64_t)json_integer_value(json_object_get(asked, "id"));
        json_decref(doc);
        return HTH_OK;
    }
    hth_err err = hth_job_index_begin(slot->d->store, args, slot->tenant, slot->r.admin,
                                      slot->job_name, &slot->job_id);
    return slot->leaves ? err : HTH_OK; // a store that cannot be written to trains nothing anyway
}

// request_arguments reads what a question says about jobs by their numbers: it gives a new job its
// own, and finds the name of the one that is asked about. What a job does not know is refused: it
// would run for days as if that had not been said.
static hth_err request_arguments(hth_rpc_slot *slot, json_t *args)
{
    if (slot->command == HTH_COMMAND_TRAIN) {
        json_object_del(args, "id"); // is given below, to nobody who asks for one
        HTH_TRY(hth_arguments_known(slot->command, args));
        HTH_TRY(hth_arguments_check(slot->command, args)); // before it has a number
        return job_begins(slot, args);
    }
    const char *tenant = slot->r.admin ? NULL : slot->tenant;
    return request_about_job(slot) ? hth_job_index_resolve(slot->d->store, args, tenant) : HTH_OK;
}

// request_changed keeps arguments that are not as they came.
static hth_err request_changed(hth_rpc_slot *slot, const json_t *args)
{
    if (slot->command != HTH_COMMAND_TRAIN && !request_about_job(slot)) {
        return HTH_OK;
    }
    slot->changed = json_dumps(args, JSON_COMPACT);
    return slot->changed != NULL ? HTH_OK : hth_no_memory("a question");
}

// ---- questions

static hth_err request_check(hth_rpc_slot *slot, json_t *args)
{
    HTH_TRY(request_take(slot, args));
    HTH_TRY(request_paths(slot, args, slot->r.n_files));
    HTH_TRY(request_arguments(slot, args));
    HTH_TRY(hth_arguments_check(slot->command, args));
    if (slot->command == HTH_COMMAND_TRAIN) {
        HTH_TRY(slot->r.member <= 1 ? hth_rpc_slot_keep_data(slot, args) : HTH_OK);
        HTH_TRY(hth_rpc_slot_claim_data(slot, args));
    }
    HTH_TRY(request_changed(slot, args));
    return hth_job_paths_keep(slot->d->store, args);
}

hth_err hth_rpc_slot_files(hth_rpc_slot *slot)
{
    hth_rpc_slot *s = slot;
    const Hearth__Query *q = s->q->query;
    json_t *args;
    hth_command_id named; // is s->command, which others read meanwhile
    HTH_TRY(hth_command_named(q->what, &named));
    HTH_TRY(hth_arguments_read(s->command, q->arguments, &args));
    hth_err err = request_check(s, args);
    json_decref(args);
    return err;
}

hth_err hth_rpc_slot_read(hth_rpc_slot *slot)
{
    hth_rpc_slot_know(slot);
    return hth_rpc_slot_files(slot);
}

void hth_rpc_slot_query(hth_rpc_slot *slot)
{
    hth_err err = hth_rpc_slot_read(slot);
    if (err != HTH_OK) {
        hth_rpc_slot_drop_data(slot);
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    slot->r.command = slot->command;
    const char *came = slot->q->query->arguments[0] != 0 ? slot->q->query->arguments : "{}";
    slot->r.arguments = slot->changed != NULL ? slot->changed : came;
    slot->r.progress = request_progress;
    request_submit(slot);
}

static void request_train(hth_store_task *task)
{
    hth_rpc_slot_query((hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job)));
}

// A job's number is written to the store: not by a loop that others wait for. One that brings files
// waits where imports do, for they are stored as well.
void hth_rpc_slot_train(hth_rpc_slot *slot)
{
    bool brings = slot->q->query->n_handles > 0;
    slot->job.run = request_train;
    hth_store_worker_submit(brings ? slot->d->jobs : slot->d->lists, &slot->job);
}
