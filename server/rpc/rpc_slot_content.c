// SPDX-License-Identifier: Apache-2.0
// Requests about content by its ids: what is there, pieces that come, versions made of them, and
// pieces that go. Each runs on a thread of the dispatcher's; those of one object on the same one,
// so that none waits for another's lock. A commit runs where imports do.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "runtime/content/content.h"

#include <inttypes.h>
#include <string.h>

static hth_rpc_slot *content_slot(hth_store_task *task)
{
    return (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
}

static void content_refuse(hth_rpc_slot *slot, hth_err err)
{
    hth_rpc_slot_fail(slot, err, hth_err_detail());
}

// content_list reads a list of `n` objects. Each is looked up: no version has as many as this
// refuses, and one request would keep a thread from others for minutes.
static hth_err content_list(const hth_rpc_slot *slot, uint64_t bytes, uint32_t n,
                            hth_content_object **out)
{
    int64_t most = hth_setting_int(HTH_SET_LIMIT_NODES);
    *out = NULL;
    return n <= most ? hth_content_list_read(slot->data, bytes, n, out)
                     : hth_fail(HTH_ETOOBIG, "a list of %" PRIu32 " objects; limits.nodes is %lld",
                                n, (long long)most);
}

static hth_err content_id(const ProtobufCBinaryData *from, hth_id *id)
{
    if (from->len != sizeof *id) {
        return hth_fail(HTH_EINVAL, "an id has %zu bytes, not %zu", sizeof *id, from->len);
    }
    memcpy(id, from->data, sizeof *id);
    return HTH_OK;
}

// content_reply makes a reply with a data section of `bytes`, counted as its front end's.
static hth_err content_reply(const hth_rpc_slot *slot, Hearth__Reply *reply, uint64_t bytes,
                             nng_msg **msg, uint8_t **data)
{
    reply->call = slot->q->call;
    if (slot->front->reserve != NULL) {
        HTH_TRY(slot->front->reserve(slot->back, bytes));
    }
    return hth_wire_message(&reply->base, NULL, 0, bytes, &slot->d->limits, msg, data);
}

static hth_content_who content_who(hth_rpc_slot *slot)
{
    hth_peer peer = hth_conn_peer(slot->conn);
    return (hth_content_who){hth_rpc_slot_caller(slot),
                             hth_auth_allows(slot->d->auth, peer, slot->q->token, HTH_NEED_MODEL)};
}

// ---- have, discard

static hth_err content_have(hth_rpc_slot *slot, nng_msg **msg)
{
    uint32_t n = slot->q->have->objects;
    const hth_content_who who = content_who(slot);
    hth_content_object *objects;
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Held body = HEARTH__HELD__INIT;
    uint8_t *data;
    HTH_TRY(content_list(slot, slot->data_bytes, n, &objects));
    uint64_t *there = hth_calloc(n, sizeof *there);
    hth_err err;
    HTH_GOTO(there != NULL ? hth_content_have(slot->d->store, &who, objects, (int)n, there)
                           : hth_no_memory("%u objects", n),
             done);
    body.objects = n;
    r.body_case = HEARTH__REPLY__BODY_HELD;
    r.held = &body;
    HTH_GOTO(content_reply(slot, &r, n * sizeof *there, msg, &data), done);
    if (n > 0) {
        memcpy(data, there, n * sizeof *there);
    }
done:
    hth_free(there);
    hth_free(objects);
    return err;
}

static hth_err content_discard(hth_rpc_slot *slot, nng_msg **msg)
{
    uint32_t n = slot->q->discard->objects;
    hth_content_object *objects;
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Done body = HEARTH__DONE__INIT;
    uint8_t *data;
    HTH_TRY(content_list(slot, slot->data_bytes, n, &objects));
    hth_err err = hth_content_discard(slot->d->store, slot->tenant, objects, (int)n);
    hth_free(objects);
    HTH_TRY(err);
    r.body_case = HEARTH__REPLY__BODY_FINISHED;
    r.finished = &body;
    return content_reply(slot, &r, 0, msg, &data);
}

// ---- put

static hth_err put_object(const hth_rpc_slot *slot, hth_content_object *object)
{
    const Hearth__Put *q = slot->q->put;
    if (q->piece != slot->data_bytes || q->n_shape > HTH_MAX_RANK) {
        return q->n_shape > HTH_MAX_RANK
                   ? hth_fail(HTH_ETOOBIG, "an object of rank %zu; limits.rank is %d", q->n_shape,
                              HTH_MAX_RANK)
                   : hth_fail(HTH_EINVAL,
                              "a piece claims %" PRIu64 " bytes, its message has %" PRIu64,
                              q->piece, slot->data_bytes);
    }
    *object = (hth_content_object){.name = "", .dtype = (hth_dtype)q->dtype, .bytes = q->bytes};
    object->shape.rank = (int)q->n_shape;
    for (size_t i = 0; i < q->n_shape; i++) {
        object->shape.dim[i] = q->shape[i];
    }
    return content_id(&q->id, &object->id);
}

// put_most is how much the caller may have uploaded that no version uses.
static uint64_t put_most(hth_rpc_slot *slot)
{
    hth_dispatch *d = slot->d;
    pthread_mutex_lock(&d->lock);
    int64_t most = hth_tenant_rules_of(&d->tenants, slot->tenant).upload_bytes;
    pthread_mutex_unlock(&d->lock);
    return (uint64_t)most;
}

static hth_err content_put(hth_rpc_slot *slot, nng_msg **msg)
{
    hth_content_object o;
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Stored body = HEARTH__STORED__INIT;
    Hearth__Error failed = HEARTH__ERROR__INIT;
    uint8_t *data;
    uint64_t there;
    HTH_TRY(put_object(slot, &o));
    hth_err err =
        hth_content_put(slot->d->store, slot->tenant, put_most(slot), &o, slot->q->put->offset,
                        slot->data, (size_t)slot->data_bytes, &there);
    body.there = there == HTH_CONTENT_WHOLE ? o.bytes : there;
    body.whole = there == HTH_CONTENT_WHOLE;
    char sentence[1024];
    if (err != HTH_OK) {
        hth_rpc_slot_plain(slot, hth_err_detail(), sentence, sizeof sentence);
        failed.code = (uint32_t)err;
        failed.sentence = sentence;
        body.failed = &failed;
    }
    r.body_case = HEARTH__REPLY__BODY_STORED;
    r.stored = &body;
    return content_reply(slot, &r, 0, msg, &data);
}

// ---- manifest, get

static hth_err manifest_message(hth_rpc_slot *slot, const hth_manifest *manifest,
                                const hth_content_object *objects, nng_msg **msg)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Version body = HEARTH__VERSION__INIT;
    uint8_t *data;
    HTH_TRY(hth_content_list_bytes(objects, manifest->n_tensors, &body.list_bytes));
    body.name = manifest->name;
    body.version = manifest->version;
    body.meta = manifest->meta;
    body.objects = (uint32_t)manifest->n_tensors;
    body.skeleton_bytes = manifest->skeleton_bytes;
    r.body_case = HEARTH__REPLY__BODY_VERSION;
    r.version = &body;
    HTH_TRY(content_reply(slot, &r, body.list_bytes + body.skeleton_bytes, msg, &data));
    hth_content_list_write(objects, manifest->n_tensors, data);
    memcpy(data + body.list_bytes, manifest->skeleton, manifest->skeleton_bytes);
    return HTH_OK;
}

static hth_err content_manifest(hth_rpc_slot *slot, nng_msg **msg)
{
    hth_manifest m;
    hth_content_object *objects;
    const hth_caller caller = hth_rpc_slot_caller(slot);
    HTH_TRY(hth_content_manifest(slot->d->store, slot->q->manifest->model, &caller, &m, &objects));
    hth_err err = manifest_message(slot, &m, objects, msg);
    hth_free(objects);
    hth_manifest_fini(&m);
    return err;
}

static hth_err content_get(hth_rpc_slot *slot, nng_msg **msg)
{
    const Hearth__Get *q = slot->q->get;
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Piece body = HEARTH__PIECE__INIT;
    uint8_t *data;
    hth_id id;
    HTH_TRY(content_id(&q->id, &id));
    if (q->bytes > HTH_CONTENT_PIECE_BYTES) {
        return hth_fail(HTH_ETOOBIG, "a piece of %" PRIu64 " bytes; it has %zu at most", q->bytes,
                        HTH_CONTENT_PIECE_BYTES);
    }
    body.bytes = q->bytes;
    r.body_case = HEARTH__REPLY__BODY_PIECE;
    r.piece = &body;
    HTH_TRY(content_reply(slot, &r, q->bytes, msg, &data));
    const hth_caller caller = hth_rpc_slot_caller(slot);
    hth_err err =
        hth_content_get(slot->d->store, q->model, &caller, &id, q->offset, data, (size_t)q->bytes);
    if (err != HTH_OK) {
        nng_msg_free(*msg);
        *msg = NULL;
    }
    return err;
}

// ---- commit

static int commit_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "importing", done, total);
    return s->r.canceled;
}

static bool content_is_dataset(const Hearth__Commit *commit)
{
    return strcmp(commit->kind, "dataset") == 0;
}

static hth_err content_commit(hth_rpc_slot *slot)
{
    const Hearth__Commit *q = slot->q->commit;
    hth_content_object *objects;
    bool dataset = content_is_dataset(q), known = dataset || strcmp("model", q->kind) == 0;
    if (!known) {
        return hth_fail(HTH_ENOTSUP, "content of the kind '%.40s': there are models and datasets",
                        q->kind);
    }
    if (q->list_bytes > slot->data_bytes || q->skeleton_bytes > slot->data_bytes - q->list_bytes) {
        return hth_fail(HTH_ECORRUPT,
                        "a list of %" PRIu64 " bytes and a graph of %" PRIu64
                        " in a message with %" PRIu64,
                        q->list_bytes, q->skeleton_bytes, slot->data_bytes);
    }
    HTH_TRY(content_list(slot, q->list_bytes, q->objects, &objects));
    const uint8_t *skeleton = slot->data + q->list_bytes;
    const hth_content_model m = {.name = q->name,
                                 .who = content_who(slot),
                                 .meta = q->meta,
                                 .max_batch = q->max_batch,
                                 .skeleton = skeleton,
                                 .skeleton_bytes = (size_t)q->skeleton_bytes,
                                 .objects = objects,
                                 .n = (int)q->objects,
                                 .here = skeleton + q->skeleton_bytes,
                                 .here_bytes =
                                     slot->data_bytes - q->list_bytes - q->skeleton_bytes};
    hth_err err =
        dataset ? hth_content_dataset_put(slot->d->store, &m, commit_progress, slot, &slot->put)
                : hth_content_commit(slot->d->store, &m, commit_progress, slot, &slot->put);
    hth_free(objects);
    return err;
}

static void content_run_commit(hth_store_task *task)
{
    hth_rpc_slot *s = content_slot(task);
    hth_err err =
        s->r.canceled ? hth_fail(HTH_ECANCELED, "canceled before it began") : content_commit(s);
    if (err != HTH_OK) {
        content_refuse(s, err);
    } else {
        bool serves = !content_is_dataset(s->q->commit);
        hth_rpc_slot_stored(s, s->q->commit->name, !serves || s->q->commit->no_wait);
    }
}

// ---- all but commits

static hth_err content_answer(hth_rpc_slot *slot, nng_msg **msg)
{
    switch (slot->q->body_case) {
    case HEARTH__REQUEST__BODY_HAVE:
        return content_have(slot, msg);
    case HEARTH__REQUEST__BODY_PUT:
        return content_put(slot, msg);
    case HEARTH__REQUEST__BODY_DISCARD:
        return content_discard(slot, msg);
    case HEARTH__REQUEST__BODY_MANIFEST:
        return content_manifest(slot, msg);
    default:
        return content_get(slot, msg);
    }
}

static void content_run(hth_store_task *task)
{
    hth_rpc_slot *s = content_slot(task);
    nng_msg *msg = NULL;
    hth_err err = s->r.canceled ? hth_fail(HTH_ECANCELED, "canceled before it began")
                                : content_answer(s, &msg);
    if (err != HTH_OK) {
        content_refuse(s, err);
    } else {
        hth_rpc_slot_send(s, msg);
    }
}

bool hth_rpc_slot_is_content(const Hearth__Request *request)
{
    return request->body_case == HEARTH__REQUEST__BODY_HAVE ||
           request->body_case == HEARTH__REQUEST__BODY_PUT ||
           request->body_case == HEARTH__REQUEST__BODY_DISCARD ||
           request->body_case == HEARTH__REQUEST__BODY_MANIFEST ||
           request->body_case == HEARTH__REQUEST__BODY_GET;
}

// content_worker spreads requests over the threads.
static hth_store_worker *content_worker(const hth_rpc_slot *slot)
{
    const Hearth__Request *q = slot->q;
    uint64_t which = q->call;
    if (q->body_case == HEARTH__REQUEST__BODY_PUT && q->put->id.len > 0) {
        which = q->put->id.data[0];
    }
    return slot->d->content[which % HTH_DISPATCH_CONTENT];
}

void hth_rpc_slot_content(hth_rpc_slot *slot)
{
    bool commit = slot->q->body_case == HEARTH__REQUEST__BODY_COMMIT;
    hth_auth_tenant(slot->d->auth, slot->q->token, hth_conn_tenant(slot->conn), slot->tenant,
                    sizeof slot->tenant);
    slot->job.run = commit ? content_run_commit : content_run;
    hth_store_worker_submit(commit ? slot->d->jobs : content_worker(slot), &slot->job);
}
