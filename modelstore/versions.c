// SPDX-License-Identifier: Apache-2.0
// Reading, listing and removing versions: transactions over the tables VERSIONS and TENSORS.
//
// Invariant: a tensor's `refs` is the number of version records in which its id occurs (once per
// record, however often it occurs there). Tensors with refs 0 stay until gc.
#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/spelling.h"

#include <stdio.h>
#include <string.h>

#define VERSIONS_SIMILAR 512 // names, at most, among which one that was misspelt is looked for

typedef struct version_job {
    const char *name;
    int version;
    hth_manifest *manifest;   // of get
    hth_store_entry *entries; // of list
    int *numbers;             // of versions
    int n, cap;
    uint64_t damaged; // tensors that are marked
    char *text;       // of the sentence about what exists
    size_t text_cap;
    bool full;    // nothing more has room in it
    int distance; // of the name that is most similar to `name`
    char similar[HTH_STORE_NAME_MAX + 1];
} version_job;

static void versions_similar(version_job *job, const char *name)
{
    const char *best = NULL;
    hth_spelling_closer(job->name, name, &job->distance, &best);
    if (best != NULL) {
        snprintf(job->similar, sizeof job->similar, "%s", name);
    }
}

static bool versions_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

// versions_name_row appends "vgg:3" for each row to the sentence, as far as there is room, and
// looks for the name that is meant.
static hth_err versions_name_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    version_job *j = ctx;
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    HTH_TRY(hth_version_key_parse(key, name, &version));
    size_t n = strlen(j->text);
    bool same = strcmp(name, j->name) == 0;
    bool owned = versions_ends(name, HTH_STORE_TAIL_DATASET) ||
                 versions_ends(name, HTH_STORE_TAIL_CHECKPOINT);
    if (!same && (j->version != 0 || owned)) {
        return HTH_OK;
    }
    versions_similar(j, name);
    if (!j->full && j->text_cap - n < strlen(name) + 20) {
        snprintf(j->text + n, j->text_cap - n, ", ...");
        j->full = true;
    } else if (!j->full) {
        snprintf(j->text + n, j->text_cap - n, "%s%s:%d", n ? ", " : "", name, version);
    }
    return ++j->n < VERSIONS_SIMILAR ? HTH_OK : HTH_ECANCELED;
}

hth_err hth_versions_absent(hth_txn *txn, const char *name, int version, int last)
{
    char text[600] = "";
    hth_store_alias a;
    version_job j = {
        .name = name, .version = last, .text = text, .text_cap = sizeof text, .distance = 4};
    if (last == 0 && hth_alias_find(txn, name, &a) == HTH_OK) {
        return hth_fail(HTH_ENOENT, "'%s' is an alias of '%s', not a model: use that name", name,
                        hth_alias_target(&a).text);
    }
    hth_err err = hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, versions_name_row, &j);
    if (err != HTH_OK && err != HTH_ECANCELED) {
        return err;
    }
    if (last != 0) {
        return hth_fail(HTH_ENOENT, "model '%s' has no version %d; there are: %s", name, version,
                        text);
    }
    if (j.similar[0] != 0) {
        return hth_fail(HTH_ENOENT, "no model '%s'; did you mean '%s'? There are: %s", name,
                        j.similar, text);
    }
    return hth_fail(HTH_ENOENT, "no model '%s'; %s%s", name,
                    text[0] ? "there are: " : "the store is empty", text);
}

// versions_find stores the record of a version (0: the newest, and *version becomes its number).
static hth_err versions_find(hth_txn *txn, const char *name, int *version, MDB_val *out)
{
    int last;
    HTH_TRY(hth_store_check_name(name));
    HTH_TRY(hth_store_last(txn, name, &last));
    int want = *version == 0 ? last : *version;
    hth_version_key key = hth_version_key_of(name, want);
    hth_err err =
        want > 0 ? hth_txn_get(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, out) : HTH_ENOENT;
    if (err == HTH_ENOENT) {
        return hth_versions_absent(txn, name, *version, last);
    }
    *version = want;
    return err;
}

static hth_err versions_copy_tensors(hth_record *record, hth_manifest *manifest)
{
    manifest->tensors = hth_calloc((size_t)record->n_tensors, sizeof *manifest->tensors);
    if (manifest->tensors == NULL) {
        return hth_no_memory("a version's list of tensors");
    }
    for (int i = 0; i < record->n_tensors; i++) {
        hth_record_tensor t;
        HTH_TRY(hth_record_next(record, &t));
        manifest->tensors[i] = (hth_manifest_tensor){hth_strndup(t.name, t.name_bytes), t.id,
                                                     t.dtype, t.shape, t.bytes};
        manifest->n_tensors++;
        if (manifest->tensors[i].name == NULL) {
            return hth_no_memory("a tensor's name");
        }
    }
    return HTH_OK;
}

static hth_err versions_get(hth_txn *txn, void *ctx)
{
    version_job *j = ctx;
    hth_manifest *m = j->manifest;
    MDB_val v;
    hth_record r;
    hth_manifest_fini(m); // of an earlier try
    m->version = j->version;
    HTH_TRY(versions_find(txn, j->name, &m->version, &v));
    hth_version_key key = hth_version_key_of(j->name, m->version);
    hth_err err = hth_check_record(txn, &key, &v);
    if (err == HTH_OK) {
        err = hth_record_open(&r, v.mv_data, v.mv_size);
    }
    if (err != HTH_OK) {
        return hth_err_prefix(err, "'%s:%d'", j->name, m->version);
    }
    m->created_ns = r.created_ns;
    m->name = hth_strdup(j->name);
    m->skeleton = hth_memdup(r.skeleton, r.skeleton_bytes);
    m->skeleton_bytes = r.skeleton_bytes;
    m->meta = hth_strndup(r.meta, r.meta_bytes);
    if (m->name == NULL || m->skeleton == NULL || m->meta == NULL) {
        return hth_no_memory("reading model '%s'", j->name);
    }
    return versions_copy_tensors(&r, m);
}

typedef struct version_each {
    hth_version_fn fn;
    void *ctx;
} version_each;

static hth_err versions_each_manifest(const version_each *each, const char *name, int version,
                                      hth_record *record)
{
    hth_manifest m = {.name = hth_strdup(name),
                      .version = version,
                      .created_ns = record->created_ns,
                      .skeleton = (void *)record->skeleton, // where it lies: not the manifest's own
                      .skeleton_bytes = record->skeleton_bytes,
                      .meta = hth_strndup(record->meta, record->meta_bytes)};
    hth_err err = m.name != NULL && m.meta != NULL ? versions_copy_tensors(record, &m)
                                                   : hth_no_memory("reading model '%s'", name);
    bool damaged = err == HTH_ECORRUPT;
    if (err == HTH_OK) {
        err = each->fn(each->ctx, &m);
    }
    m.skeleton = NULL;
    hth_manifest_fini(&m);
    return damaged ? HTH_OK : err;
}

static hth_err versions_each_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    hth_record r;
    HTH_TRY(hth_version_key_parse(key, name, &version));
    hth_version_key k = hth_version_key_of(name, version);
    hth_err err = hth_check_record(txn, &k, value);
    if (err == HTH_OK) {
        err = hth_record_open(&r, value->mv_data, value->mv_size);
    }
    if (err != HTH_OK) {
        return err == HTH_ECORRUPT ? HTH_OK : err;
    }
    return versions_each_manifest(ctx, name, version, &r);
}

static hth_err versions_each(hth_txn *txn, void *ctx)
{
    return hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, versions_each_row, ctx);
}

hth_err hth_store_each(hth_store *store, hth_version_fn fn, void *ctx)
{
    return hth_index_read(&store->index, versions_each, &(version_each){fn, ctx});
}

hth_err hth_store_get(hth_store *store, const char *name, int version, hth_manifest *out)
{
    memset(out, 0, sizeof *out);
    hth_err err = hth_index_read(&store->index, versions_get,
                                 &(version_job){.name = name, .version = version, .manifest = out});
    if (err != HTH_OK) {
        hth_manifest_fini(out);
    }
    return err;
}

static hth_err versions_latest(hth_txn *txn, void *ctx)
{
    version_job *j = ctx;
    HTH_TRY(hth_store_check_name(j->name));
    return hth_store_last(txn, j->name, &j->version);
}

hth_err hth_store_latest(hth_store *store, const char *name, int *version)
{
    version_job j = {.name = name};
    hth_err err = hth_index_read(&store->index, versions_latest, &j);
    *version = err == HTH_OK ? j.version : 0;
    return err;
}

static hth_err versions_has(hth_txn *txn, void *ctx)
{
    const version_job *j = ctx;
    MDB_val v;
    int last;
    if (j->version == 0) {
        HTH_TRY(hth_store_last(txn, j->name, &last));
        return last > 0 ? HTH_OK : HTH_ENOENT;
    }
    hth_version_key key = hth_version_key_of(j->name, j->version);
    return hth_txn_get(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, &v);
}

hth_err hth_store_has(hth_store *store, const char *name, int version, bool *has)
{
    HTH_TRY(hth_store_check_name(name));
    hth_err err = hth_index_read(&store->index, versions_has,
                                 &(version_job){.name = name, .version = version});
    *has = err == HTH_OK;
    return err == HTH_ENOENT ? HTH_OK : err;
}

void hth_manifest_fini(hth_manifest *manifest)
{
    for (int i = 0; i < manifest->n_tensors; i++) {
        hth_free(manifest->tensors[i].name);
    }
    hth_free(manifest->tensors);
    hth_free(manifest->skeleton);
    hth_free(manifest->meta);
    hth_free(manifest->name);
    memset(manifest, 0, sizeof *manifest);
}

static hth_err versions_number_row(hth_txn *txn, void *ctx, const MDB_val *key,
                                   const MDB_val *value)
{
    version_job *j = ctx;
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    HTH_TRY(hth_version_key_parse(key, name, &version));
    if (strcmp(name, j->name) != 0) {
        return HTH_ECANCELED; // another model's begin
    }
    if (HTH_GROW(j->numbers, j->n, j->cap) != 0) {
        return hth_no_memory("the versions of model '%s'", name);
    }
    j->numbers[j->n++] = version;
    return HTH_OK;
}

static hth_err versions_numbers(hth_txn *txn, void *ctx)
{
    version_job *j = ctx;
    hth_version_key key = hth_version_key_of(j->name, 1);
    j->n = 0; // of an earlier try
    hth_err err =
        hth_txn_each(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, versions_number_row, j);
    return err == HTH_ECANCELED ? HTH_OK : err;
}

hth_err hth_store_versions(hth_store *store, const char *name, int **out, int *n)
{
    version_job j = {.name = name};
    *out = NULL;
    *n = 0;
    HTH_TRY(hth_store_check_name(name));
    hth_err err = hth_index_read(&store->index, versions_numbers, &j);
    if (err != HTH_OK) {
        hth_free(j.numbers);
        return err;
    }
    *out = j.numbers;
    *n = j.n;
    return HTH_OK;
}

// versions_list_tensors adds the tensors of a record up. HTH_ECORRUPT: the record or the index is
// damaged, or it is known of a tensor.
static hth_err versions_list_tensors(hth_txn *txn, const version_job *job, hth_record *record,
                                     hth_store_entry *entry)
{
    bool damaged = false;
    for (int i = 0; i < record->n_tensors; i++) {
        hth_record_tensor x;
        hth_tensor_row row;
        hth_check_row check;
        HTH_TRY(hth_record_next(record, &x));
        if (x.repeated) {
            continue;
        }
        hth_err err = hth_store_row(txn, &x.id, &row);
        if (err != HTH_OK && err != HTH_ENOENT && err != HTH_ECORRUPT) {
            return err;
        }
        damaged =
            damaged || err != HTH_OK ||
            (job->damaged > 0 && hth_check_get(txn, &x.id, &check) == HTH_OK && check.damaged);
        entry->bytes += x.bytes;
        entry->own_bytes += err == HTH_OK && row.refs == 1 ? x.bytes : 0;
    }
    return damaged ? HTH_ECORRUPT : HTH_OK;
}

static hth_err versions_list_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    version_job *j = ctx;
    hth_record r;
    hth_store_entry e = {.version = 0};
    HTH_TRY(hth_version_key_parse(key, e.name, &e.version));
    hth_err err = hth_record_open(&r, value->mv_data, value->mv_size);
    if (err == HTH_OK) {
        e.created_ns = r.created_ns;
        e.n_tensors = r.n_tensors;
        err = versions_list_tensors(txn, j, &r, &e);
    }
    e.damaged = err == HTH_ECORRUPT;
    if (err != HTH_OK && err != HTH_ECORRUPT) {
        return err;
    }
    if (HTH_GROW(j->entries, j->n, j->cap) != 0) {
        return hth_no_memory("listing the store");
    }
    j->entries[j->n++] = e;
    return HTH_OK;
}

static hth_err versions_list(hth_txn *txn, void *ctx)
{
    version_job *j = ctx;
    hth_check_health health;
    j->n = 0;
    HTH_TRY(hth_check_health_get(txn, &health));
    j->damaged = health.damaged;
    return hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, versions_list_row, j);
}

hth_err hth_store_list(hth_store *store, hth_store_entry **out, int *n)
{
    version_job j = {.n = 0};
    hth_err err = hth_index_read(&store->index, versions_list, &j);
    if (err != HTH_OK) {
        hth_free(j.entries);
        j = (version_job){.n = 0};
    }
    *out = j.entries;
    *n = j.n;
    return err;
}

// versions_unref drops one reference from each tensor of a record (a copy: the map changes
// underneath). A damaged one drops none: gc counts again, and its version has to go all the same.
static hth_err versions_unref(hth_txn *txn, const hth_version_key *key, const void *data,
                              size_t bytes)
{
    hth_record r;
    hth_err err = hth_check_record(txn, key, &(MDB_val){bytes, (void *)data});
    if (err == HTH_OK) {
        err = hth_record_open(&r, data, bytes);
    }
    for (int i = 0; err == HTH_OK && i < r.n_tensors; i++) {
        hth_record_tensor x;
        hth_tensor_row row;
        err = hth_record_next(&r, &x);
        if (err != HTH_OK || x.repeated || hth_store_row(txn, &x.id, &row) != HTH_OK ||
            row.refs == 0) {
            continue; // a damaged store must still let its versions be removed
        }
        row.refs--;
        err = hth_txn_put(txn, HTH_TABLE_TENSORS, &x.id, sizeof x.id, &row, sizeof row);
    }
    return err == HTH_ECORRUPT ? HTH_OK : err;
}

static hth_err versions_rm_one(hth_txn *txn, const char *name, int version)
{
    MDB_val v;
    HTH_TRY(versions_find(txn, name, &version, &v));
    size_t bytes = v.mv_size;
    void *copy = hth_memdup(v.mv_data, bytes);
    if (copy == NULL) {
        return hth_no_memory("removing '%s:%d'", name, version);
    }
    hth_version_key key = hth_version_key_of(name, version);
    hth_err err = versions_unref(txn, &key, copy, bytes);
    hth_free(copy);
    HTH_TRY(err);
    HTH_TRY(hth_check_sum_del(txn, &key));
    return hth_txn_del(txn, HTH_TABLE_VERSIONS, key.text, key.bytes);
}

// versions_left counts the versions of a model but for one.
static hth_err versions_left(hth_txn *txn, const char *name, int but, int *left)
{
    version_job all = {.name = name};
    hth_err err = versions_numbers(txn, &all);
    *left = 0;
    for (int i = 0; i < all.n; i++) {
        *left += all.numbers[i] != but;
    }
    hth_free(all.numbers);
    return err;
}

static hth_err versions_rm(hth_txn *txn, void *ctx)
{
    version_job *j = ctx;
    int last = 0, left = 0;
    if (j->version > 0) {
        HTH_TRY(versions_left(txn, j->name, j->version, &left));
    }
    HTH_TRY(hth_alias_needs(txn, j->name, j->version, left));
    HTH_TRY(versions_rm_one(txn, j->name, j->version));
    if (j->version == 0) {
        HTH_TRY(hth_store_last(txn, j->name, &last));
    }
    while (last > 0) {
        HTH_TRY(versions_rm_one(txn, j->name, last));
        HTH_TRY(hth_store_last(txn, j->name, &last));
    }
    return hth_store_changed(txn);
}

hth_err hth_store_rm(hth_store *store, const char *name, int version)
{
    HTH_TRY(hth_index_write(&store->index, versions_rm,
                            &(version_job){.name = name, .version = version}));
    hth_log(INFO, STORE, "rm", "model=%s version=%d", name, version);
    return HTH_OK;
}
