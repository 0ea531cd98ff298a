// SPDX-License-Identifier: Apache-2.0
#include "runtime/tenants/owner.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/size.h"
#include "runtime/catalog.h"
#include "runtime/checkpoint_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWNER_PIECE ((size_t)1 << 20)

// owner_of reads a meta: of a version, of a dataset ("tenant"), or of a checkpoint, which
// belongs to its job's tenant, not to the owner of the result.
static void owner_of(const char *meta, char owner[HTH_TENANT])
{
    owner[0] = 0;
    if (meta == NULL || hth_checkpoint_owner(meta, owner) ||
        (strstr(meta, "\"" HTH_META_OWNER "\"") == NULL && strstr(meta, "\"tenant\"") == NULL)) {
        return; // most have none: nothing is parsed
    }
    json_t *doc = json_loads(meta, 0, NULL);
    const char *text = json_string_value(json_object_get(doc, HTH_META_OWNER));
    if (text == NULL && json_is_string(json_object_get(doc, "dataset"))) {
        text = json_string_value(json_object_get(doc, "tenant"));
    }
    snprintf(owner, HTH_TENANT, "%s", text != NULL ? text : "");
    json_decref(doc);
}

hth_err hth_owner_get(hth_store *store, const char *name, char owner[HTH_TENANT])
{
    hth_manifest m;
    owner[0] = 0;
    hth_err err = hth_store_get(store, name, 0, &m);
    if (err == HTH_OK) {
        owner_of(m.meta, owner);
        hth_manifest_fini(&m);
    }
    return err == HTH_ENOENT || err == HTH_EINVAL ? HTH_OK : err; // the action says what is wrong
}

static bool owner_allows(const char *owner, const hth_caller *caller)
{
    return owner[0] == 0 || caller == NULL || caller->admin ||
           (caller->tenant != NULL && strcmp(owner, caller->tenant) == 0);
}

bool hth_owner_is(const char *meta, const hth_caller *caller)
{
    char owner[HTH_TENANT];
    owner_of(meta, owner);
    return owner_allows(owner, caller);
}

hth_err hth_owner_refuse(const char *name, const char *what)
{
    return hth_fail(HTH_EDENIED,
                    "model '%s' belongs to another tenant: only that one and the role 'admin' may "
                    "%s it",
                    name, what);
}

hth_err hth_owner_may(hth_store *store, const char *model, const hth_caller *caller,
                      const char *what)
{
    char name[201], owner[HTH_TENANT];
    int version;
    if (caller == NULL || caller->admin || hth_catalog_resolve(store, model, name, &version)) {
        return HTH_OK; // what is no name is refused as such
    }
    HTH_TRY(hth_owner_get(store, name, owner));
    return owner_allows(owner, caller) ? HTH_OK : hth_owner_refuse(name, what);
}

hth_err hth_owner_new(hth_store *store, const char *name, const hth_caller *caller,
                      char owner[HTH_TENANT])
{
    hth_manifest m;
    owner[0] = 0;
    hth_err err = hth_store_get(store, name, 0, &m);
    if (err == HTH_ENOENT || err == HTH_EINVAL) { // a new name, or none, which is refused as such
        bool mine = caller != NULL && !caller->admin && caller->tenant != NULL;
        snprintf(owner, HTH_TENANT, "%s", mine ? caller->tenant : "");
        return HTH_OK;
    }
    HTH_TRY(err);
    owner_of(m.meta, owner);
    hth_manifest_fini(&m);
    if (!owner_allows(owner, caller)) {
        return hth_fail(HTH_EDENIED,
                        "model '%s' belongs to another tenant: give the new one another name",
                        name);
    }
    bool limited = caller != NULL && !caller->admin && caller->tenant != NULL &&
                   caller->store_bytes != HTH_TENANT_NEVER;
    return owner[0] != 0 || !limited
               ? HTH_OK
               : hth_fail(HTH_EDENIED,
                          "model '%s' is nobody's, so that what is added to it counts for nobody, "
                          "and tenant '%s' has a limit (store=, tenant.file): give the new one "
                          "another name",
                          name, caller->tenant);
}

char *hth_owner_meta(const char *meta, const char *owner)
{
    json_t *doc = json_loads(meta, 0, NULL);
    doc = json_is_object(doc) ? doc : json_object();
    if (owner[0] != 0) {
        json_object_set_new(doc, HTH_META_OWNER, json_string(owner));
    } else {
        json_object_del(doc, HTH_META_OWNER);
    }
    char *text = json_dumps(doc, JSON_COMPACT), *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return out;
}

// ---- room

typedef struct owner_object {
    hth_id id;
    UT_hash_handle hh;
} owner_object;

typedef struct owner_sum {
    owner_object *objects; // by id
    uint64_t bytes;
} owner_sum;

static hth_err sum_add(owner_sum *sum, const hth_id *id, uint64_t bytes)
{
    owner_object *o;
    HASH_FIND(hh, sum->objects, id, sizeof *id, o);
    if (o != NULL) {
        return HTH_OK;
    }
    o = hth_calloc(1, sizeof *o);
    if (o != NULL) {
        o->id = *id;
        HASH_ADD(hh, sum->objects, id, sizeof o->id, o);
        if (!HTH_HASH_ADDED(o)) {
            hth_free(o);
            o = NULL;
        }
    }
    sum->bytes += bytes;
    return o != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a sum of bytes");
}

static void sum_fini(owner_sum *sum)
{
    owner_object *o, *next;
    HASH_ITER (hh, sum->objects, o, next) {
        HASH_DEL(sum->objects, o);
        hth_free(o);
    }
}

// The record of a version, as it is added up. Equal ones are one content.
typedef struct owner_record {
    hth_id id;
    uint64_t bytes;
} owner_record;

static owner_record record_begin(const void *graph, size_t graph_bytes, size_t meta_bytes)
{
    return (owner_record){hth_id_of(&(hth_chunk){graph, graph_bytes}, 1), graph_bytes + meta_bytes};
}

static void record_tensor(owner_record *record, const char *name, const hth_id *id)
{
    const hth_chunk parts[] = {
        {&record->id, sizeof record->id}, {id, sizeof *id}, {name, strlen(name)}};
    record->id = hth_id_of(parts, 3);
    record->bytes += HTH_OWNER_TENSOR + strlen(name);
}

// sum_version adds a version, if it is the tenant's; a checkpoint is its job's, and ends with it.
static hth_err sum_version(owner_sum *sum, const hth_manifest *m, const char *tenant)
{
    char owner[HTH_TENANT];
    if (hth_checkpoint_owner(m->meta, owner)) {
        return HTH_OK;
    }
    owner_of(m->meta, owner);
    if (strcmp(owner, tenant) != 0) {
        return HTH_OK;
    }
    owner_record record = record_begin(m->skeleton, m->skeleton_bytes, strlen(m->meta));
    for (int i = 0; i < m->n_tensors; i++) {
        HTH_TRY(sum_add(sum, &m->tensors[i].id, m->tensors[i].bytes));
        record_tensor(&record, m->tensors[i].name, &m->tensors[i].id);
    }
    return sum_add(sum, &record.id, record.bytes);
}

typedef struct owner_store {
    owner_sum *sum;
    const char *tenant, *but;
} owner_store;

static hth_err sum_stored(void *ctx, const hth_manifest *manifest)
{
    const owner_store *s = ctx;
    bool counts = s->but == NULL || strcmp(manifest->name, s->but) != 0;
    return counts ? sum_version(s->sum, manifest, s->tenant) : HTH_OK;
}

// room_id finds the id of what is put, where it has none.
static hth_err room_id(const hth_put_tensor *t, void *piece, hth_id *id)
{
    if (t->id != NULL) {
        *id = *t->id;
        return HTH_OK;
    }
    if (t->data != NULL || t->bytes == 0) {
        *id = hth_content_id(t->dtype, &t->shape, t->data, t->bytes);
        return HTH_OK;
    }
    hth_id_sum *sum = hth_content_sum(t->dtype, &t->shape);
    hth_err err = HTH_OK;
    for (uint64_t at = 0; at < t->bytes && err == HTH_OK; at += OWNER_PIECE) {
        size_t n = t->bytes - at < OWNER_PIECE ? (size_t)(t->bytes - at) : OWNER_PIECE;
        err = t->read(t->read_ctx, at, piece, n);
        if (err == HTH_OK) {
            hth_id_sum_add(sum, piece, n);
        }
    }
    *id = hth_id_sum_end(sum);
    return err;
}

static hth_err room_put(owner_sum *sum, const hth_owner_put *put)
{
    hth_id id;
    owner_record record = record_begin(put->graph, put->graph_bytes, put->meta_bytes);
    void *piece = hth_alloc(OWNER_PIECE);
    hth_err err = piece != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a sum of bytes");
    for (int i = 0; i < put->n && err == HTH_OK; i++) {
        err = room_id(&put->tensors[i], piece, &id);
        if (err == HTH_OK) {
            err = sum_add(sum, &id, put->tensors[i].bytes);
            record_tensor(&record, put->tensors[i].name, &id);
        }
    }
    hth_free(piece);
    HTH_TRY(err);
    return sum_add(sum, &record.id, record.bytes);
}

hth_err hth_owner_room(hth_store *store, const char *tenant, int64_t most, const char *but,
                       const hth_owner_put *put)
{
    owner_sum sum = {NULL, 0};
    uint64_t had = 0;
    if (most == HTH_TENANT_NEVER || tenant[0] == 0) {
        return HTH_OK;
    }
    hth_err err = hth_store_each(store, sum_stored, &(owner_store){&sum, tenant, but});
    if (err == HTH_OK) {
        had = sum.bytes;
        err = room_put(&sum, put);
    }
    sum_fini(&sum);
    HTH_TRY(err);
    return sum.bytes <= (uint64_t)most
               ? HTH_OK
               : hth_fail(HTH_EDENIED,
                          "tenant '%s' has %s of models and datasets in the store and may have %s "
                          "(store=, tenant.file): %s more do not fit",
                          tenant, hth_size_of(had).text, hth_size_of((uint64_t)most).text,
                          hth_size_of(sum.bytes - had).text);
}
