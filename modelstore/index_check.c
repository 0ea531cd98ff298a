// SPDX-License-Identifier: Apache-2.0
// The index against itself, in one transaction: rows have the sizes and keys that rows have, what a
// walk through a table finds is found by its key, too, there are as many rows as the table says,
// and each tensor is listed with the number of versions that use it. What a version's record says
// is compared with its sum elsewhere (verify.c): one that does not parse is only left out here.
#include "modelstore/uses.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct index_job {
    void (*report)(void *ctx, const char *what);
    void *ctx;
    hth_uses uses;
    hth_table table;
    const char *rows; // of what they are
    hth_err (*look)(hth_txn *txn, struct index_job *j, const MDB_val *key, const MDB_val *value);
    uint64_t found, lost;
} index_job;

static hth_err __attribute__((format(printf, 2, 3)))
index_report(index_job *j, const char *fmt, ...)
{
    char what[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    j->report(j->ctx, what);
    return HTH_OK;
}

// ---- tables

static hth_err index_info(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value)
{
    bool changes = key->mv_size == 7 && memcmp(key->mv_data, "changes", 7) == 0;
    return changes && value->mv_size != sizeof(uint64_t)
               ? index_report(job, "the store's count of changes is damaged")
               : HTH_OK;
}

static hth_err index_model(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value)
{
    char name[HTH_STORE_NAME_MAX + 1] = "";
    if (key->mv_size <= HTH_STORE_NAME_MAX) {
        memcpy(name, key->mv_data, key->mv_size);
    }
    if (hth_store_check_name(name) != HTH_OK || value->mv_size != sizeof(uint32_t)) {
        return index_report(job, "the store's list of models is damaged");
    }
    uint32_t number;
    int last;
    memcpy(&number, value->mv_data, sizeof number);
    HTH_TRY(hth_store_last(txn, name, &last));
    return (uint32_t)last <= number
               ? HTH_OK
               : index_report(job,
                              "the store's list of models has version %u as the last one of "
                              "'%s', which has version %d",
                              (unsigned)number, name, last);
}

static hth_err index_version(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value)
{
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    MDB_val v;
    if (hth_version_key_parse(key, name, &version) != HTH_OK ||
        hth_store_check_name(name) != HTH_OK || version <= 0) {
        return index_report(job, "the store's list of versions is damaged");
    }
    hth_err err = hth_txn_get(txn, HTH_TABLE_MODELS, name, strlen(name), &v);
    return err == HTH_ENOENT
               ? index_report(job, "the store's list of models lacks '%s', which has version %d",
                              name, version)
               : err;
}

static hth_err index_tensor(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value)
{
    hth_tensor_row row;
    hth_id id;
    char hex[HTH_ID_HEX];
    if (key->mv_size != sizeof id || value->mv_size != sizeof row) {
        return index_report(job, "the store's list of tensors is damaged");
    }
    memcpy(&id, key->mv_data, sizeof id);
    memcpy(&row, value->mv_data, sizeof row);
    uint32_t uses = hth_uses_of(&job->uses, &id);
    if (row.inlined > 1) {
        return index_report(job, "the store's list of tensors is damaged at %.16s..",
                            hth_id_hex(&id, hex));
    }
    return row.refs == uses || job->uses.unreadable > 0
               ? HTH_OK
               : index_report(job,
                              "the store's list of tensors has %.16s.. as used by %u versions, and "
                              "%u use it; `hearth gc` corrects that",
                              hth_id_hex(&id, hex), (unsigned)row.refs, (unsigned)uses);
}

static hth_err index_key(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value)
{
    return key->mv_size == sizeof(hth_id)
               ? HTH_OK
               : index_report(job, "the store's %s are damaged: a key of %zu bytes", job->rows,
                              key->mv_size);
}

static hth_err index_any(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value)
{
    return HTH_OK;
}

// ---- all of them

static hth_err index_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    index_job *j = ctx;
    MDB_val v;
    j->found++;
    hth_err err = hth_txn_get(txn, j->table, key->mv_data, key->mv_size, &v);
    bool same = err == HTH_OK && v.mv_data == value->mv_data;
    j->lost += !same;
    return err == HTH_OK || err == HTH_ENOENT ? j->look(txn, j, key, value) : err;
}

static hth_err index_table(hth_txn *txn, index_job *job)
{
    uint64_t entries;
    job->found = job->lost = 0;
    HTH_TRY(hth_txn_entries(txn, job->table, &entries));
    HTH_TRY(hth_txn_each(txn, job->table, NULL, 0, index_row, job));
    if (job->found != entries) {
        return index_report(job, "the store's index has %llu %s, and says %llu",
                            (unsigned long long)job->found, job->rows, (unsigned long long)entries);
    }
    return job->lost == 0
               ? HTH_OK
               : index_report(job, "%llu %s of the store's index are not found by their keys",
                              (unsigned long long)job->lost, job->rows);
}

static hth_err index_tables(hth_txn *t, void *ctx)
{
    static const struct {
        const char *rows;
        hth_err (*look)(hth_txn *txn, index_job *job, const MDB_val *key, const MDB_val *value);
    } table[HTH_N_TABLES] = {[HTH_TABLE_INFO] = {"counts", index_info},
                             [HTH_TABLE_MODELS] = {"models", index_model},
                             [HTH_TABLE_VERSIONS] = {"versions", index_version},
                             [HTH_TABLE_TENSORS] = {"tensors", index_tensor},
                             [HTH_TABLE_INLINES] = {"small tensors", index_key},
                             [HTH_TABLE_TEXTS] = {"texts", index_any},
                             [HTH_TABLE_CHECKS] = {"checks", index_any}};
    index_job *j = ctx;
    hth_uses_fini(&j->uses); // of an earlier try
    HTH_TRY(hth_uses_count(t, &j->uses));
    for (int i = 0; i < HTH_N_TABLES; i++) {
        j->table = (hth_table)i;
        j->rows = table[i].rows;
        j->look = table[i].look;
        HTH_TRY(index_table(t, j));
    }
    return HTH_OK;
}

hth_err hth_index_check(hth_store *store, void (*report)(void *ctx, const char *what), void *ctx)
{
    index_job j = {.report = report, .ctx = ctx};
    hth_err err = hth_index_pages(&store->index); // else what follows could end the process
    if (err == HTH_ECORRUPT) {
        report(ctx, hth_err_detail());
    }
    HTH_TRY(err);
    err = hth_index_read(&store->index, index_tables, &j);
    hth_uses_fini(&j.uses);
    if (err == HTH_ECORRUPT) {
        report(ctx, hth_err_detail());
        return HTH_OK;
    }
    return err;
}
