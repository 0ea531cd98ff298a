// SPDX-License-Identifier: Apache-2.0
// Queries about datasets of the store: put, list, remove. A put runs where imports do.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "runtime/arguments.h"
#include "runtime/content/dataset_index.h"

#include <jansson.h>

#include <stdlib.h>

static hth_rpc_slot *dataset_slot(hth_store_task *task)
{
    return (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
}

bool hth_rpc_slot_is_dataset(const hth_rpc_slot *slot)
{
    return slot->command == HTH_COMMAND_DATASETS || slot->command == HTH_COMMAND_DATASET_PUT ||
           slot->command == HTH_COMMAND_DATASET_RM;
}

static int dataset_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "storing", done, total);
    return s->r.canceled;
}

hth_caller hth_rpc_slot_caller(hth_rpc_slot *slot)
{
    hth_dispatch *d = slot->d;
    hth_peer peer = hth_conn_peer(slot->conn);
    hth_auth_tenant(d->auth, slot->q->token, hth_conn_tenant(slot->conn), slot->tenant,
                    sizeof slot->tenant);
    pthread_mutex_lock(&d->lock);
    int64_t store_bytes = hth_tenant_rules_of(&d->tenants, slot->tenant).store_bytes;
    pthread_mutex_unlock(&d->lock);
    return (hth_caller){
        slot->tenant, hth_auth_allows(d->auth, peer, slot->q->token, HTH_NEED_ADMIN), store_bytes};
}

static hth_err dataset_put(hth_rpc_slot *slot, const json_t *args, json_t **doc)
{
    const json_t *data = json_object_get(args, "data"),
                 *which = json_object_get(data, "descriptor");
    const char *file = json_is_object(data) ? json_string_value(json_object_get(data, "file"))
                                            : json_string_value(data);
    int i = json_is_integer(which) ? (int)json_integer_value(which) : -1;
    hth_dataset_put put = {.name = json_string_value(json_object_get(args, "name")),
                           .tenant = slot->tenant,
                           .about = json_object_get(args, "about")};
    uint64_t bytes;
    if (file == NULL || (json_is_object(data) && (i < 0 || i >= slot->r.n_files))) {
        return hth_fail(HTH_EINVAL, "'data' is not a file");
    }
    put.store_bytes = hth_rpc_slot_caller(slot).store_bytes;
    HTH_TRY(hth_dataset_file(slot->d->store, &put, i >= 0 ? slot->r.files[i] : -1, file,
                             dataset_progress, slot, &slot->put, &bytes));
    *doc = json_pack(
        "{s:s, s:b, s:I, s:I, s:I, s:I}", "name", put.name, "unchanged", slot->put.unchanged,
        "bytes", (json_int_t)bytes, "moved", (json_int_t)slot->put.bytes_new, "tensors_new",
        (json_int_t)slot->put.tensors_new, "tensors_shared", (json_int_t)slot->put.tensors_shared);
    return HTH_OK;
}

static hth_err dataset_rm(const hth_rpc_slot *slot, const json_t *args, json_t **doc)
{
    const char *name = json_string_value(json_object_get(args, "name"));
    HTH_TRY(hth_dataset_remove(slot->d->store, name,
                               json_string_value(json_object_get(args, "tenant")),
                               (hth_dataset_who){slot->tenant, slot->r.admin}));
    *doc = json_pack("{s:s}", "removed", name);
    return HTH_OK;
}

static hth_err dataset_answer(hth_rpc_slot *slot, const json_t *args, json_t **doc)
{
    switch (slot->command) {
    case HTH_COMMAND_DATASET_PUT:
        return dataset_put(slot, args, doc);
    case HTH_COMMAND_DATASET_RM:
        return dataset_rm(slot, args, doc);
    default:
        return hth_dataset_list(slot->d->store, (hth_dataset_who){slot->tenant, slot->r.admin},
                                doc);
    }
}

static void dataset_run(hth_store_task *task)
{
    hth_rpc_slot *s = dataset_slot(task);
    json_t *args = NULL, *doc = NULL;
    hth_err err = s->r.canceled ? hth_fail(HTH_ECANCELED, "canceled before it began")
                                : hth_arguments_read(s->command, s->q->query->arguments, &args);
    if (err == HTH_OK) {
        err = dataset_answer(s, args, &doc);
    }
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    if (err == HTH_OK && text == NULL) {
        err = hth_no_memory("an answer");
    }
    json_decref(args);
    json_decref(doc);
    if (err != HTH_OK) {
        free(text);
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_document(s, text);
    free(text);
}

void hth_rpc_slot_dataset(hth_rpc_slot *slot)
{
    hth_rpc_slot_know(slot);
    hth_err err = hth_rpc_slot_files(slot);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    bool put = slot->command == HTH_COMMAND_DATASET_PUT;
    slot->job.run = dataset_run;
    hth_store_worker_submit(put ? slot->d->jobs : slot->d->lists, &slot->job);
}
