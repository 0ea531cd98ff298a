// SPDX-License-Identifier: Apache-2.0
// Everything that is stored, compared with what it has to be.
//
// A tensor is read once, whatever versions use it: first the list of the tensors of all versions in
// question is made, then they are read, then the versions are gone through again, and what each
// uses of the damaged ones is reported. No transaction is open while a file is read. A version that
// is removed meanwhile has no damage.
#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

typedef struct verify_version {
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
} verify_version;

typedef struct verify_tensor {
    hth_object o;
    char *what; // NULL: it is right
    UT_hash_handle hh;
} verify_tensor;

typedef struct verify_job {
    hth_store *s;
    const char *name; // NULL: all
    int version;      // 0: all
    hth_progress_fn progress;
    hth_store_damage_fn damage;
    void *ctx;
    verify_version *versions;
    int n, cap;
    verify_tensor *tensors;
    uint64_t done, total;
    hth_store_verified *out;
} verify_job;

static void verify_report(verify_job *job, const verify_version *version, const char *tensor,
                          const char *file, const char *what)
{
    const hth_store_damage d = {version != NULL ? version->name : "",
                                version != NULL ? version->version : 0, tensor, file, what};
    job->out->damaged++;
    if (job->damage != NULL) {
        job->damage(job->ctx, &d);
    }
}

static void verify_report_index(void *ctx, const char *what)
{
    verify_report(ctx, NULL, "", HTH_STORE_INDEX_FILE, what);
}

// ---- what is in question

static hth_err verify_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    verify_job *j = ctx;
    verify_version v;
    if (hth_version_key_parse(key, v.name, &v.version) != HTH_OK) {
        return HTH_OK; // the index's own check reports it
    }
    if (j->name != NULL &&
        (strcmp(v.name, j->name) != 0 || (j->version != 0 && j->version != v.version))) {
        return HTH_OK;
    }
    if (HTH_GROW(j->versions, j->n, j->cap) != 0) {
        return hth_no_memory("a list of versions");
    }
    j->versions[j->n++] = v;
    return HTH_OK;
}

static hth_err verify_list(hth_txn *txn, void *ctx)
{
    ((verify_job *)ctx)->n = 0;
    return hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, verify_row, ctx);
}

static hth_err verify_add(verify_job *job, const hth_manifest_tensor *tensor)
{
    verify_tensor *v;
    HASH_FIND(hh, job->tensors, &tensor->id, sizeof tensor->id, v);
    if (v != NULL) {
        return HTH_OK;
    }
    if ((v = hth_calloc(1, sizeof *v)) != NULL) {
        v->o = (hth_object){tensor->id, tensor->dtype, tensor->shape, tensor->bytes};
        HASH_ADD(hh, job->tensors, o.id, sizeof v->o.id, v);
        if (!HTH_HASH_ADDED(v)) {
            hth_free(v);
            v = NULL;
        }
    }
    job->total += tensor->bytes;
    return v != NULL ? HTH_OK : hth_no_memory("a list of tensors");
}

// verify_records reads the versions' records and makes the list of their tensors.
static hth_err verify_records(verify_job *job)
{
    for (int i = 0; i < job->n; i++) {
        const verify_version *v = &job->versions[i];
        hth_manifest m;
        hth_err err = hth_store_get(job->s, v->name, v->version, &m);
        if (err == HTH_ECORRUPT) {
            verify_report(job, v, "", HTH_STORE_INDEX_FILE, hth_err_detail());
        } else if (err != HTH_OK && err != HTH_ENOENT) {
            return err;
        }
        err = HTH_OK;
        for (int k = 0; k < m.n_tensors && err == HTH_OK; k++) {
            err = verify_add(job, &m.tensors[k]);
        }
        hth_manifest_fini(&m);
        HTH_TRY(err);
    }
    job->out->versions = (uint64_t)job->n;
    return HTH_OK;
}

// ---- reading

static hth_err verify_tick(void *ctx, size_t bytes)
{
    verify_job *j = ctx;
    j->done += bytes;
    return j->progress != NULL && j->progress(j->ctx, j->done, j->total) != 0
               ? hth_fail(HTH_ECANCELED, "canceled")
               : HTH_OK;
}

static hth_err verify_read(verify_job *job, verify_tensor *tensor)
{
    uint64_t before = job->done;
    bool inlined;
    hth_object_seen seen;
    hth_err err = hth_object_inlined(job->s, &tensor->o, &inlined);
    if (err == HTH_OK && !inlined) {
        err = hth_check_read(job->s, &tensor->o, true, verify_tick, job, &seen);
    }
    if (err == HTH_ECORRUPT) {
        tensor->what = hth_strdup(hth_err_detail());
        err = tensor->what != NULL ? HTH_OK : hth_no_memory("a sentence");
    }
    HTH_TRY(err);
    job->out->tensors++;
    job->out->bytes += tensor->o.bytes;
    return verify_tick(job,
                       before + tensor->o.bytes -
                           job->done); // of one that could not be read to its end
}

static hth_err verify_tensors(verify_job *job, bool *damaged)
{
    *damaged = false;
    for (verify_tensor *v = job->tensors; v != NULL; v = v->hh.next) {
        HTH_TRY(verify_read(job, v));
        *damaged = *damaged || v->what != NULL;
    }
    return HTH_OK;
}

// verify_uses reports the damaged tensors of the versions that still exist.
static hth_err verify_uses(verify_job *job)
{
    for (int i = 0; i < job->n; i++) {
        hth_manifest m;
        hth_err err = hth_store_get(job->s, job->versions[i].name, job->versions[i].version, &m);
        for (int k = 0; k < m.n_tensors; k++) {
            verify_tensor *v;
            HASH_FIND(hh, job->tensors, &m.tensors[k].id, sizeof m.tensors[k].id, v);
            if (v != NULL && v->what != NULL) {
                hth_path path = hth_path_of_tensor(&v->o.id);
                verify_report(job, &job->versions[i], m.tensors[k].name, path.text, v->what);
            }
        }
        hth_manifest_fini(&m);
        if (err != HTH_OK && err != HTH_ENOENT && err != HTH_ECORRUPT) {
            return err;
        }
    }
    return HTH_OK;
}

static hth_err verify_run(verify_job *job)
{
    bool damaged;
    hth_err err = job->name == NULL ? hth_index_check(job->s, verify_report_index, job) : HTH_OK;
    if (err != HTH_OK) { // pages that are damaged, which was reported, are not gone through
        return err == HTH_ECORRUPT ? HTH_OK : err;
    }
    HTH_TRY(hth_index_read(&job->s->index, verify_list, job));
    if (job->n == 0 && job->name != NULL) { // the sentence names what exists
        hth_manifest m;
        err = hth_store_get(job->s, job->name, job->version, &m);
        hth_manifest_fini(&m);
        return err;
    }
    HTH_TRY(verify_records(job));
    HTH_TRY(verify_tensors(job, &damaged));
    return damaged ? verify_uses(job) : HTH_OK;
}

hth_err hth_store_verify_all(hth_store *store, const char *name, int version,
                             hth_progress_fn progress, hth_store_damage_fn damage, void *ctx,
                             hth_store_verified *out)
{
    verify_job j = {.s = store,
                    .name = name,
                    .version = version,
                    .progress = progress,
                    .damage = damage,
                    .ctx = ctx,
                    .out = out};
    *out = (hth_store_verified){.versions = 0};
    HTH_TRY(name != NULL ? hth_store_check_name(name) : HTH_OK);
    hth_err err = verify_run(&j);
    verify_tensor *v, *next;
    HASH_ITER (hh, j.tensors, v, next) {
        HASH_DEL(j.tensors, v);
        hth_free(v->what);
        hth_free(v);
    }
    hth_free(j.versions);
    char detail[1024]; // of err: what was found is kept in any case
    strncpy(detail, hth_err_detail(), sizeof detail - 1);
    detail[sizeof detail - 1] = 0;
    hth_check_flush(store);
    return hth_err_restore(err, detail);
}

// ---- one version

typedef struct verify_first {
    char sentence[1024];
} verify_first;

static void verify_keep_first(void *ctx, const hth_store_damage *damage)
{
    verify_first *f = ctx;
    if (f->sentence[0] == 0 && damage->tensor[0] != 0) {
        snprintf(f->sentence, sizeof f->sentence, "tensor '%s' of '%s:%d': %s", damage->tensor,
                 damage->model, damage->version, damage->what);
    } else if (f->sentence[0] == 0) {
        snprintf(f->sentence, sizeof f->sentence, "%s", damage->what);
    }
}

hth_err hth_store_verify(hth_store *store, const char *name, int version)
{
    verify_first first = {.sentence = ""};
    hth_store_verified v;
    int one = version;
    HTH_TRY(version == 0 ? hth_store_latest(store, name, &one) : HTH_OK);
    HTH_TRY(hth_store_verify_all(store, name, one, NULL, verify_keep_first, &first, &v));
    return v.damaged == 0 ? HTH_OK : hth_fail(HTH_ECORRUPT, "%s", first.sentence);
}
