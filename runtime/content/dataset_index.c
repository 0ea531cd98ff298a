// SPDX-License-Identifier: Apache-2.0
// The owner stands in the name, so that names of tenants are apart, and in the meta, as it is.
#include "runtime/content/dataset_index.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/spelling.h"
#include "modelstore/hold.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/dataset_own.h"
#include "runtime/request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *tenant_of(const char *tenant)
{
    return tenant != NULL ? tenant : HTH_TENANT_OWN;
}

// dataset_key writes the name of a dataset's versions; characters of the tenant that a name cannot
// have, or that would end it, as %XX.
static hth_err dataset_key(const char *name, const char *tenant, char out[HTH_DATASET_NAME])
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = strlen(name), at = 0, tail = sizeof HTH_DATASET_TAIL;
    HTH_TRY(hth_store_check_new(name));
    if (strchr(name, '@') != NULL) {
        return hth_fail(HTH_EINVAL, "'%s' is no name for a dataset: it has a '@'", name);
    }
    memcpy(out, name, n);
    at = n;
    out[at++] = '@';
    for (const char *p = tenant; *p != 0 && at + 4 + tail < HTH_DATASET_NAME; p++) {
        unsigned char c = (unsigned char)*p;
        if (isalnum(c) || c == '-' || c == '_') {
            out[at++] = *p;
        } else {
            out[at++] = '%';
            out[at++] = hex[c >> 4];
            out[at++] = hex[c & 15];
        }
    }
    if (at + 4 + tail >= HTH_DATASET_NAME) {
        return hth_fail(HTH_EINVAL, "'%.32s..' has %zu bytes: it is too long for a dataset's name",
                        name, n);
    }
    memcpy(out + at, HTH_DATASET_TAIL, tail);
    return HTH_OK;
}

static bool dataset_looks(const char *name)
{
    size_t n = strlen(name), tail = strlen(HTH_DATASET_TAIL);
    return n > tail && strchr(name, '@') != NULL && strcmp(name + n - tail, HTH_DATASET_TAIL) == 0;
}

bool hth_dataset_named(const char *model, const char *tenant, bool *mine)
{
    char name[HTH_DATASET_NAME], key[HTH_DATASET_NAME];
    size_t stem = strcspn(model, "@");
    *mine = false;
    if (!dataset_looks(model)) {
        return false;
    }
    snprintf(name, sizeof name, "%.*s", (int)stem, model);
    *mine = dataset_key(name, tenant_of(tenant), key) == HTH_OK && strcmp(key, model) == 0;
    return true;
}

hth_err hth_dataset_model(const char *name)
{
    return dataset_looks(name)
               ? hth_fail(HTH_EINVAL, "'%s': names with '@' that end in '%s' are those of datasets",
                          name, HTH_DATASET_TAIL)
               : HTH_OK;
}

// dataset_meta reads the meta of a version; NULL: it is no dataset.
static json_t *dataset_meta(const hth_manifest *manifest)
{
    json_t *doc = json_loads(manifest->meta, 0, NULL);
    if (!json_is_string(json_object_get(doc, "dataset")) ||
        !json_is_string(json_object_get(doc, "tenant"))) {
        json_decref(doc);
        return NULL;
    }
    return doc;
}

bool hth_dataset_is(hth_store *store, const char *model)
{
    hth_manifest m;
    if (!dataset_looks(model) || hth_store_get(store, model, 0, &m) != HTH_OK) {
        return false;
    }
    json_t *doc = dataset_meta(&m);
    bool is = doc != NULL;
    json_decref(doc);
    hth_manifest_fini(&m);
    return is;
}

hth_err hth_dataset_is_not(hth_store *store, const char *model)
{
    return hth_dataset_is(store, model) ? hth_fail(HTH_ENOENT, "no model '%s'", model) : HTH_OK;
}

// dataset_none says that there is none, and which of the tenant's (store NULL: nothing) is meant.
static hth_err dataset_none(hth_store *store, const char *name, const char *tenant)
{
    json_t *doc = NULL, *row;
    const char *meant = NULL;
    char hint[HTH_DATASET_NAME + 20] = "";
    int distance = 4;
    size_t i;
    if (store != NULL) {
        (void)hth_dataset_list(store, (hth_dataset_who){tenant, false}, &doc);
    }
    json_array_foreach(json_object_get(doc, "datasets"), i, row)
    {
        hth_spelling_closer(name, json_string_value(json_object_get(row, "name")), &distance,
                            &meant);
    }
    if (meant != NULL) {
        snprintf(hint, sizeof hint, "did you mean '%s'? ", meant);
    }
    json_decref(doc);
    return hth_fail(HTH_ENOENT, "no dataset '%s'; %s`hearth data ls` lists what there is", name,
                    hint);
}

hth_err hth_dataset_get(hth_store *store, const char *name, const char *tenant, hth_manifest *out)
{
    char key[HTH_DATASET_NAME];
    HTH_TRY(dataset_key(name, tenant_of(tenant), key));
    hth_err err = hth_store_get(store, key, 0, out);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? dataset_none(store, name, tenant) : err;
    }
    json_t *doc = dataset_meta(out);
    if (doc == NULL) {
        hth_manifest_fini(out);
        return dataset_none(store, name, tenant);
    }
    json_decref(doc);
    return HTH_OK;
}

hth_err hth_dataset_hold(hth_store *store, const char *name, const char *tenant, hth_manifest *out,
                         int *fd)
{
    char key[HTH_DATASET_NAME];
    HTH_TRY(dataset_key(name, tenant_of(tenant), key));
    hth_err err = hth_store_hold(store, key, false, fd);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "dataset '%s'", name);
    }
    err = hth_dataset_get(store, name, tenant, out);
    if (err != HTH_OK) {
        hth_store_let_go(*fd);
        *fd = -1;
    }
    return err;
}

// ---- all of them

typedef hth_err (*dataset_fn)(void *ctx, const hth_manifest *manifest, const json_t *meta);

// dataset_each calls fn for the newest version of each dataset.
static hth_err dataset_each(hth_store *store, dataset_fn fn, void *ctx)
{
    hth_store_entry *e;
    int n;
    HTH_TRY(hth_store_list(store, &e, &n));
    hth_err err = HTH_OK;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        hth_manifest m;
        bool last = i + 1 == n || strcmp(e[i].name, e[i + 1].name) != 0;
        if (!last || !dataset_looks(e[i].name) ||
            hth_store_get(store, e[i].name, e[i].version, &m) != HTH_OK) {
            continue;
        }
        json_t *meta = dataset_meta(&m);
        err = meta != NULL ? fn(ctx, &m, meta) : HTH_OK;
        json_decref(meta);
        hth_manifest_fini(&m);
    }
    hth_free(e);
    return err;
}

static uint64_t manifest_bytes(const hth_manifest *manifest)
{
    uint64_t bytes = 0;
    for (int i = 0; i < manifest->n_tensors; i++) {
        bytes += manifest->tensors[i].bytes;
    }
    return bytes;
}

static bool meta_is(const json_t *meta, const char *key, const char *text)
{
    return text != NULL && strcmp(json_string_value(json_object_get(meta, key)), text) == 0;
}

typedef struct dataset_rows {
    hth_dataset_who who;
    json_t *list;
} dataset_rows;

static json_t *dataset_tensor(const hth_manifest_tensor *tensor)
{
    json_t *shape = json_array();
    for (int d = 0; d < tensor->shape.rank; d++) {
        json_array_append_new(shape, json_integer(tensor->shape.dim[d]));
    }
    return json_pack("{s:s, s:s, s:o}", "name", tensor->name, "dtype",
                     hth_dtype_name(tensor->dtype), "shape", shape);
}

static hth_err dataset_row(void *ctx, const hth_manifest *manifest, const json_t *meta)
{
    dataset_rows *r = ctx;
    const json_t *about = json_object_get(meta, "about"),
                 *classes = json_object_get(about, "classes");
    if (!r->who.admin && !meta_is(meta, "tenant", tenant_of(r->who.tenant))) {
        return HTH_OK;
    }
    json_t *tensors = json_array(), *format = json_object_get(about, "format");
    for (int i = 0; i < manifest->n_tensors; i++) {
        json_array_append_new(tensors, dataset_tensor(&manifest->tensors[i]));
    }
    format = json_is_string(format) ? format : json_object_get(meta, "format");
    json_int_t samples = manifest->n_tensors > 0 ? manifest->tensors[0].shape.dim[0] : 0;
    json_t *row =
        json_pack("{s:O, s:O, s:I, s:I, s:O, s:I, s:o}", "name", json_object_get(meta, "dataset"),
                  "tenant", json_object_get(meta, "tenant"), "bytes",
                  (json_int_t)manifest_bytes(manifest), "samples", samples, "format", format,
                  "created_ns", (json_int_t)manifest->created_ns, "tensors", tensors);
    if (json_is_array(classes)) {
        json_object_set(row, "classes", (json_t *)classes);
    }
    return json_array_append_new(r->list, row) == 0 ? HTH_OK : hth_no_memory("a dataset");
}

hth_err hth_dataset_list(hth_store *store, hth_dataset_who who, json_t **out)
{
    dataset_rows r = {who, json_array()};
    hth_err err = dataset_each(store, dataset_row, &r);
    *out = err == HTH_OK ? json_pack("{s:O}", "datasets", r.list) : NULL;
    json_decref(r.list);
    HTH_TRY(err);
    return *out != NULL ? HTH_OK : hth_no_memory("a dataset");
}

// ---- claims

// What is held for a job that was submitted and reads it later: apart from the dataset, which is
// held by who reads it.
#define DATASET_CLAIM "#submitted"
#define CLAIM_NAME    (HTH_DATASET_NAME + sizeof DATASET_CLAIM)

static void claim_name(const char *key, char out[CLAIM_NAME])
{
    snprintf(out, CLAIM_NAME, "%s" DATASET_CLAIM, key);
}

static hth_err claim_hold(hth_store *store, const char *name, const char *tenant, bool alone,
                          int *fd)
{
    char key[HTH_DATASET_NAME], claim[CLAIM_NAME];
    *fd = -1;
    HTH_TRY(dataset_key(name, tenant_of(tenant), key));
    claim_name(key, claim);
    return hth_store_hold(store, claim, alone, fd);
}

hth_err hth_dataset_claim(hth_store *store, const char *name, const char *tenant, int *fd)
{
    hth_manifest m;
    *fd = -1;
    HTH_TRY(hth_dataset_get(store, name, tenant, &m)); // else it would leave a lock of nothing
    hth_manifest_fini(&m);
    HTH_TRY(claim_hold(store, name, tenant, false, fd));
    hth_err err = hth_dataset_get(store, name, tenant, &m);
    if (err != HTH_OK) {
        hth_store_let_go(*fd);
        *fd = -1;
        return err;
    }
    hth_manifest_fini(&m);
    return HTH_OK;
}

void hth_dataset_unclaim(int fd)
{
    hth_store_let_go(fd);
}

// ---- remove

// dataset_free holds a dataset alone: no job runs on it, and none is to go on with it.
static hth_err dataset_free(hth_store *store, const char *name, const char *tenant, int *fd)
{
    char key[HTH_DATASET_NAME];
    *fd = -1;
    HTH_TRY(dataset_key(name, tenant, key));
    HTH_TRY(hth_checkpoint_no_dataset(store, name, tenant));
    hth_err err = hth_store_hold(store, key, true, fd);
    return err == HTH_EBUSY ? hth_fail(HTH_EBUSY,
                                       "a job trains on dataset '%s': `hearth jobs` "
                                       "lists it",
                                       name)
                            : err;
}

// dataset_unclaimed is dataset_free where no job waits for the dataset, either; *claim is held
// alone as well.
static hth_err dataset_unclaimed(hth_store *store, const char *name, const char *tenant, int *fd,
                                 int *claim)
{
    *fd = -1;
    hth_err err = claim_hold(store, name, tenant, true, claim);
    if (err != HTH_OK) {
        return err == HTH_EBUSY ? hth_fail(HTH_EBUSY,
                                           "a job waits to train on dataset '%s': `hearth jobs` "
                                           "lists it",
                                           name)
                                : err;
    }
    err = dataset_free(store, name, tenant, fd);
    if (err != HTH_OK) {
        hth_store_let_go(*claim);
        *claim = -1;
    }
    return err;
}

// dataset_rm removes what is held alone, and its locks.
static hth_err dataset_rm(hth_store *store, const char *name, const char *tenant, int fd, int claim)
{
    char key[HTH_DATASET_NAME], claimed[CLAIM_NAME];
    hth_err err = dataset_key(name, tenant, key);
    if (err == HTH_OK) {
        err = hth_store_rm(store, key, 0);
    }
    if (err != HTH_OK) {
        hth_store_let_go(fd);
        hth_store_let_go(claim);
        return err;
    }
    claim_name(key, claimed);
    hth_store_hold_end(store, key, fd);
    hth_store_hold_end(store, claimed, claim);
    hth_store_collect(store);
    return HTH_OK;
}

hth_err hth_dataset_remove(hth_store *store, const char *name, const char *owner,
                           hth_dataset_who who)
{
    hth_manifest m;
    int fd, claim;
    const char *mine = tenant_of(who.tenant), *tenant = owner != NULL ? owner : mine;
    if (!who.admin && strcmp(tenant, mine) != 0) {
        return dataset_none(NULL, name, NULL);
    }
    HTH_TRY(hth_dataset_get(store, name, tenant, &m));
    hth_manifest_fini(&m);
    HTH_TRY(dataset_unclaimed(store, name, tenant, &fd, &claim));
    return dataset_rm(store, name, tenant, fd, claim);
}

// ---- put

static hth_err put_check(const hth_dataset_put *put)
{
    if (put->n == 0) {
        return hth_fail(HTH_EINVAL, "there are no tensors");
    }
    for (int i = 0; i < put->n; i++) {
        const hth_put_tensor *t = &put->tensors[i];
        if (t->shape.rank < 1) {
            return hth_fail(HTH_EINVAL, "tensor '%s' is a single value, not a list of samples",
                            t->name);
        }
        if (t->shape.dim[0] != put->tensors[0].shape.dim[0]) {
            return hth_fail(HTH_EINVAL, "'%s' has %lld samples, but '%s' has %lld",
                            put->tensors[0].name, (long long)put->tensors[0].shape.dim[0], t->name,
                            (long long)t->shape.dim[0]);
        }
    }
    return put->tensors[0].shape.dim[0] > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "there are no samples");
}

// What a put holds of the dataset that it replaces, alone, until the old version is gone; and from
// before the new one is there, which then is the dataset.
typedef struct put_old {
    hth_store *store;
    const char *name, *tenant;
    int fd, claim;
    hth_err err; // why it may not, with its sentence
    char why[600];
} put_old;

static hth_err put_may(void *ctx)
{
    put_old *old = ctx;
    old->err = dataset_unclaimed(old->store, old->name, old->tenant, &old->fd, &old->claim);
    snprintf(old->why, sizeof old->why, "%s", hth_err_detail());
    return old->err;
}

// put_replaced removes what the dataset was before. The new one is there, whatever becomes of that:
// what stays goes with the next put, or with the dataset.
static void put_replaced(hth_store *store, const char *key, int version)
{
    int *versions = NULL;
    int n = 0;
    hth_err err = hth_store_versions(store, key, &versions, &n);
    for (int i = 0; i < n && err == HTH_OK; i++) {
        err = versions[i] != version ? hth_store_rm(store, key, versions[i]) : HTH_OK;
    }
    hth_free(versions);
    if (err != HTH_OK) {
        hth_log(WARN, STORE, "dataset", "'%s' keeps what it was before version %d: %s", key,
                version, hth_err_detail());
    }
}

// put_version stores a version, which is the only one then.
static hth_err put_version(hth_store *store, const hth_dataset_put *put, const char *key,
                           const char *meta, hth_progress_fn progress, void *ctx,
                           hth_put_result *out)
{
    put_old old = {
        .store = store, .name = put->name, .tenant = tenant_of(put->tenant), .fd = -1, .claim = -1};
    // the age of what came with jobs counts from the last one
    const hth_put_ask ask = {put_may, &old, hth_dataset_own_is(put->name)};
    hth_err err =
        hth_store_put_if(store, key, meta, put->tensors, put->n, &ask, progress, ctx, out);
    bool replaced = err == HTH_OK && old.fd >= 0 && !out->unchanged;
    if (replaced) {
        put_replaced(store, key, out->version);
    }
    hth_store_let_go(old.fd);
    hth_store_let_go(old.claim);
    if (replaced) {
        hth_store_collect(store);
    }
    return old.err != HTH_OK ? hth_err_restore(old.err, old.why) : err;
}

hth_err hth_dataset_store(hth_store *store, const hth_dataset_put *put, hth_progress_fn progress,
                          void *ctx, hth_put_result *out)
{
    char key[HTH_DATASET_NAME];
    const char *tenant = tenant_of(put->tenant);
    memset(out, 0, sizeof *out);
    HTH_TRY(put_check(put));
    HTH_TRY(dataset_key(put->name, tenant, key));
    json_t *meta = json_pack("{s:s, s:s, s:s}", "dataset", put->name, "tenant", tenant, "format",
                             "safetensors");
    if (json_is_object(put->about)) {
        json_object_set(meta, "about", (json_t *)put->about);
    }
    char *text = meta != NULL ? json_dumps(meta, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    const hth_owner_put made = {.graph = "",
                                .meta_bytes = text != NULL ? strlen(text) : 0,
                                .tensors = put->tensors,
                                .n = put->n};
    hth_err err = text != NULL ? hth_owner_room(store, tenant, put->store_bytes, key, &made)
                               : hth_no_memory("a dataset");
    if (err == HTH_OK) {
        err = put_version(store, put, key, text, progress, ctx, out);
    }
    free(text);
    json_decref(meta);
    return err;
}
