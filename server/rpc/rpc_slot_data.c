// SPDX-License-Identifier: Apache-2.0
// Datasets that a client passes with a training job, as descriptors, which nobody can open again:
// they become datasets of the store that go with the job. So a job goes on after a restart whoever
// submitted it, what it keeps counts for its tenant, and a file that its owner changes meanwhile
// changes nothing.
#include "server/rpc/rpc_slot_impl.h"

#include "runtime/content/dataset_own.h"

#include <jansson.h>

static const char *const data_keys[HTH_RPC_SLOT_DATA] = {"data", "eval", "start"};

static int data_progress(void *ctx, uint64_t done, uint64_t total)
{
    hth_rpc_slot *s = ctx;
    hth_rpc_slot_set_progress(s, "storing", done, total);
    return s->r.canceled;
}

// data_passed finds the descriptor of an argument that is nothing else; -1: it is no such one.
static int data_passed(const hth_rpc_slot *s, const json_t *v)
{
    const json_t *which = json_object_get(v, "descriptor");
    json_int_t i = json_is_integer(which) ? json_integer_value(which) : -1;
    bool named = json_object_get(v, "path") != NULL;
    return !named && i >= 0 && i < s->r.n_files ? s->r.files[i] : -1;
}

static hth_err data_store(hth_rpc_slot *s, json_t *args, const char *key, int fd)
{
    char name[HTH_DATASET_OWN];
    hth_put_result result;
    uint64_t bytes;
    const char *file = json_string_value(json_object_get(json_object_get(args, key), "file"));
    hth_dataset_own_name(s->job_id, key, name);
    hth_dataset_put put = {.name = name, .tenant = s->tenant};
    put.store_bytes = hth_rpc_slot_caller(s).store_bytes;
    HTH_TRY(hth_dataset_file(s->d->store, &put, fd, file != NULL ? file : "what was passed",
                             data_progress, s, &result, &bytes));
    s->keeps_data = true;
    json_t *v = json_pack("{s:s, s:b}", "dataset", name, "own", 1);
    return v != NULL && json_object_set_new(args, key, v) == 0 ? HTH_OK
                                                               : hth_no_memory("a request");
}

hth_err hth_rpc_slot_keep_data(hth_rpc_slot *slot, json_t *args)
{
    for (int i = 0; i < HTH_RPC_SLOT_DATA; i++) {
        int fd = data_passed(slot, json_object_get(args, data_keys[i]));
        if (fd >= 0) {
            HTH_TRY(data_store(slot, args, data_keys[i], fd));
        }
    }
    return HTH_OK;
}

// What there is not, or goes at this moment, is refused when it is the job's turn; at once what its
// client has sent, whose name nobody has given.
hth_err hth_rpc_slot_claim_data(hth_rpc_slot *slot, const json_t *args)
{
    for (int i = 0; i < HTH_RPC_SLOT_DATA; i++) {
        const json_t *data = json_object_get(args, data_keys[i]);
        const char *name = json_string_value(json_object_get(data, "dataset"));
        hth_err err = HTH_OK;
        if (name != NULL) {
            err = hth_dataset_claim(slot->d->store, name, slot->tenant, &slot->claim[i]);
        }
        if (err == HTH_ENOENT && json_is_true(json_object_get(data, "own"))) {
            return hth_fail(HTH_ENOENT,
                            "what was sent as '%s' is no longer in the store "
                            "(store.upload_seconds): submit the job again",
                            data_keys[i]);
        }
    }
    return HTH_OK;
}

void hth_rpc_slot_unclaim_data(hth_rpc_slot *slot)
{
    for (int i = 0; i < HTH_RPC_SLOT_DATA; i++) {
        hth_dataset_unclaim(slot->claim[i]);
        slot->claim[i] = -1;
    }
}

bool hth_rpc_slot_has_data(const hth_rpc_slot *slot)
{
    bool has = slot->keeps_data;
    for (int i = 0; i < HTH_RPC_SLOT_DATA; i++) {
        has = has || slot->claim[i] >= 0;
    }
    return has;
}

void hth_rpc_slot_drop_data(hth_rpc_slot *slot)
{
    char name[HTH_DATASET_OWN];
    bool trains = slot->command == HTH_COMMAND_TRAIN && slot->changed != NULL;
    json_t *args = trains ? json_loads(slot->changed, 0, NULL) : NULL;
    hth_rpc_slot_unclaim_data(slot);
    hth_dataset_drop_own(slot->d->store, args, slot->tenant);
    json_decref(args);
    for (int i = 0; slot->keeps_data && i < HTH_RPC_SLOT_DATA; i++) {
        hth_dataset_own_name(slot->job_id, data_keys[i], name);
        hth_dataset_own_drop(slot->d->store, name, slot->tenant);
    }
    slot->keeps_data = false;
}
