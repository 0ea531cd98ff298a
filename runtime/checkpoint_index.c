// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint_index.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/catalog.h"
#include "runtime/content/dataset_own.h"
#include "runtime/job_index.h"
#include "runtime/request.h"

#include <stdio.h>
#include <string.h>

hth_err hth_checkpoint_forget(hth_store *store, const char *name, int version)
{
    HTH_TRY(hth_store_rm(store, name, version));
    hth_store_collect(store);
    return HTH_OK;
}

hth_err hth_checkpoint_job(const json_t *args, char out[HTH_CHECKPOINT_JOB])
{
    int version;
    const char *name = json_string_value(json_object_get(args, "save-as"));
    name = name != NULL ? name : json_string_value(json_object_get(args, "model"));
    name = name != NULL ? name : json_string_value(json_object_get(args, "kind"));
    return hth_catalog_parse(name != NULL ? name : "", out, &version);
}

void hth_checkpoint_tenant(const json_t *args, char out[HTH_TENANT])
{
    const char *tenant = json_string_value(json_object_get(args, "tenant"));
    snprintf(out, HTH_TENANT, "%s", tenant != NULL ? tenant : HTH_TENANT_OWN);
}

bool hth_checkpoint_of(const json_t *args, bool died, const json_t *stored)
{
    const json_t *id = json_object_get(args, "id");
    bool same = id != NULL ? json_equal(id, json_object_get(stored, "id")) : died;
    return same || json_is_true(json_object_get(args, "resume"));
}

#define META_JOB "{\"job\":" // what a checkpoint's meta begins with

// meta_args reads the first member of a checkpoint's meta.
static json_t *meta_args(const char *meta)
{
    size_t skip = strlen(META_JOB);
    if (meta != NULL && strncmp(meta, META_JOB, skip) == 0) {
        return json_loadb(meta + skip, strlen(meta + skip), JSON_DISABLE_EOF_CHECK, NULL);
    }
    json_t *doc = meta != NULL ? json_loads(meta, 0, NULL) : NULL;
    json_t *args = json_incref(json_object_get(doc, "job"));
    json_decref(doc);
    return args;
}

hth_err hth_checkpoint_none(const char *job)
{
    return hth_fail(HTH_ENOENT, "job '%s' has no checkpoint; `hearth jobs` lists what there is",
                    job);
}

bool hth_checkpoint_owner(const char *meta, char out[HTH_TENANT])
{
    if (strncmp(meta, META_JOB, strlen(META_JOB)) != 0) {
        return false;
    }
    json_t *args = meta_args(meta);
    hth_checkpoint_tenant(args, out);
    json_decref(args);
    return true;
}

static hth_err checkpoint_read(hth_store *store, const char *job, bool whole, json_t **out)
{
    char name[HTH_CHECKPOINT_NAME];
    hth_manifest m;
    *out = NULL;
    snprintf(name, sizeof name, "%s" HTH_CHECKPOINT_TAIL, job);
    hth_err err = hth_store_get(store, name, 0, &m);
    if (err == HTH_OK) {
        *out = whole ? json_loads(m.meta, 0, NULL) : meta_args(m.meta);
        hth_manifest_fini(&m);
    }
    if (err == HTH_OK && !json_is_object(whole ? json_object_get(*out, "job") : *out)) {
        json_decref(*out);
        *out = NULL;
        err = HTH_ENOENT;
    }
    // what can be no name has none
    return err == HTH_ENOENT || err == HTH_EINVAL ? hth_checkpoint_none(job) : err;
}

hth_err hth_checkpoint_find(hth_store *store, const char *job, json_t **doc)
{
    return checkpoint_read(store, job, true, doc);
}

hth_err hth_checkpoint_args(hth_store *store, const char *job, json_t **args)
{
    return checkpoint_read(store, job, false, args);
}

// The part of a model's name in front of the tail; 0: it has none.
static size_t checkpoint_stem(const char *model)
{
    size_t bytes = strlen(model), tail = strlen(HTH_CHECKPOINT_TAIL);
    return bytes > tail && strcmp(model + bytes - tail, HTH_CHECKPOINT_TAIL) == 0 ? bytes - tail
                                                                                  : 0;
}

hth_err hth_checkpoint_model(const char *name)
{
    return checkpoint_stem(name) > 0
               ? hth_fail(HTH_EINVAL, "'%s': names that end in '%s' are those of jobs' checkpoints",
                          name, HTH_CHECKPOINT_TAIL)
               : HTH_OK;
}

bool hth_checkpoint_is(hth_store *store, const char *model)
{
    char job[HTH_CHECKPOINT_JOB];
    json_t *args = NULL;
    snprintf(job, sizeof job, "%.*s", (int)checkpoint_stem(model), model);
    bool is = job[0] != 0 && hth_checkpoint_args(store, job, &args) == HTH_OK;
    json_decref(args);
    return is;
}

// list_insert adds a name in the order of the jobs' numbers, which are those of `ids`.
static void list_insert(json_t *names, json_t *ids, const char *name, const json_t *args)
{
    json_int_t id = json_integer_value(json_object_get(args, "id"));
    size_t at = json_array_size(names);
    while (at > 0 && json_integer_value(json_array_get(ids, at - 1)) > id) {
        at--;
    }
    json_array_insert_new(names, at, json_string(name));
    json_array_insert_new(ids, at, json_integer(id));
}

// list_read reads the job of a checkpoint; *args NULL: there is none, but a model of such a name,
// or one that is damaged. What only cannot be read now is an error: its job may need something.
static hth_err list_read(hth_store *store, const char *job, json_t **args)
{
    *args = NULL;
    hth_err err = hth_checkpoint_args(store, job, args);
    return err == HTH_ENOENT || err == HTH_ECORRUPT ? HTH_OK : err;
}

hth_err hth_checkpoint_list(hth_store *store, json_t **names)
{
    hth_store_entry *e;
    int n;
    json_t *args, *ids = json_array();
    *names = NULL;
    hth_err err = hth_store_list(store, &e, &n);
    if (err != HTH_OK) {
        json_decref(ids);
        return err;
    }
    *names = json_array();
    for (int i = 0; i < n && err == HTH_OK; i++) {
        size_t stem = checkpoint_stem(e[i].name);
        bool last = i + 1 == n || strcmp(e[i].name, e[i + 1].name) != 0;
        if (!last || stem == 0) {
            continue;
        }
        e[i].name[stem] = 0;
        err = list_read(store, e[i].name, &args);
        if (args != NULL) {
            list_insert(*names, ids, e[i].name, args);
            json_decref(args);
        }
    }
    json_decref(ids);
    hth_free(e);
    if (err != HTH_OK) {
        json_decref(*names);
        *names = NULL;
    }
    return err;
}

static bool checkpoint_uses(const json_t *args, const char *model, int version)
{
    const char *name = json_string_value(json_object_get(args, "model"));
    size_t n = strlen(model);
    json_int_t begun = json_integer_value(json_object_get(args, "version"));
    return name != NULL && strncmp(name, model, n) == 0 && (name[n] == 0 || name[n] == ':') &&
           (version == 0 || begun == version);
}

// What a job must not need: a model's version (0: any), or a dataset of a tenant's.
typedef struct checkpoint_need {
    const char *model;
    int version;
    const char *dataset, *tenant;
} checkpoint_need;

// *own: the dataset came with the job, and has no other use.
static bool checkpoint_reads(const json_t *args, const char *dataset, const char *tenant, bool *own)
{
    static const char *const keys[] = {"data", "eval", "start"};
    char whose[HTH_TENANT];
    hth_checkpoint_tenant(args, whose);
    for (int i = 0; i < 3; i++) {
        const json_t *data = json_object_get(args, keys[i]);
        const char *name = json_string_value(json_object_get(data, "dataset"));
        if (name != NULL && strcmp(name, dataset) == 0 && strcmp(whose, tenant) == 0) {
            *own = json_is_true(json_object_get(data, "own"));
            return true;
        }
    }
    return false;
}

// checkpoint_canceled tells whether a job was canceled: nobody waits for it, and its checkpoint is
// kept for who has canceled it by mistake. *ended_ns: since 1970.
static bool checkpoint_canceled(hth_store *store, const char *job, const json_t *args,
                                uint64_t *ended_ns)
{
    char note[HTH_CHECKPOINT_NOTE];
    json_t *record = NULL;
    const json_t *id = json_object_get(args, "id");
    hth_checkpoint_note_get(store, job, note);
    if (note[0] == 0 ||
        hth_job_index_get(store, (uint64_t)json_integer_value(id), &record) != HTH_OK) {
        return false;
    }
    const char *state = json_string_value(json_object_get(record, "state"));
    bool canceled = state != NULL && strcmp(state, "canceled") == 0;
    *ended_ns = (uint64_t)json_integer_value(json_object_get(record, "ended"));
    json_decref(record);
    return canceled;
}

hth_err hth_checkpoint_expire(hth_store *store, uint64_t now_ns, uint64_t age_ns)
{
    json_t *names, *name, *args;
    size_t i;
    uint64_t ended_ns;
    HTH_TRY(hth_checkpoint_list(store, &names));
    hth_err err = HTH_OK;
    json_array_foreach(names, i, name)
    {
        const char *job = json_string_value(name);
        if (err != HTH_OK || hth_checkpoint_args(store, job, &args) != HTH_OK) {
            continue;
        }
        if (checkpoint_canceled(store, job, args, &ended_ns) && now_ns >= ended_ns &&
            now_ns - ended_ns >= age_ns) {
            hth_log(INFO, STORE, "checkpoint-expired", "job=%s", job);
            err = hth_checkpoint_rm(store, job);
        }
        json_decref(args);
    }
    json_decref(names);
    return err;
}

// checkpoint_needs refuses where a job is to go on with what is to be removed.
static hth_err checkpoint_needs(hth_store *store, const char *job, const json_t *args,
                                const checkpoint_need *need)
{
    uint64_t ended_ns;
    bool own = false;
    if (need->model != NULL && checkpoint_uses(args, need->model, need->version) &&
        !checkpoint_canceled(store, job, args, &ended_ns)) {
        return hth_fail(HTH_EBUSY, "job '%s' needs '%s' to resume: `hearth cancel %s` ends it", job,
                        need->model, job);
    }
    if (need->dataset != NULL && checkpoint_reads(args, need->dataset, need->tenant, &own) &&
        (own || !checkpoint_canceled(store, job, args, &ended_ns))) {
        return hth_fail(HTH_EBUSY,
                        "job '%s' needs dataset '%s' to resume: `hearth cancel %s` ends it", job,
                        need->dataset, job);
    }
    return HTH_OK;
}

static hth_err checkpoint_may_need(hth_store *store, const char *job, const checkpoint_need *need)
{
    json_t *args;
    HTH_TRY(list_read(store, job, &args));
    hth_err err = args != NULL ? checkpoint_needs(store, job, args, need) : HTH_OK;
    json_decref(args);
    return err;
}

static hth_err checkpoint_none_needs(hth_store *store, const checkpoint_need *need)
{
    json_t *names, *name;
    size_t i;
    HTH_TRY(hth_checkpoint_list(store, &names));
    hth_err err = HTH_OK;
    json_array_foreach(names, i, name)
    {
        if (err == HTH_OK) {
            err = checkpoint_may_need(store, json_string_value(name), need);
        }
    }
    json_decref(names);
    return err;
}

hth_err hth_checkpoint_unused(hth_store *store, const char *model, int version)
{
    return checkpoint_none_needs(store, &(checkpoint_need){.model = model, .version = version});
}

hth_err hth_checkpoint_no_dataset(hth_store *store, const char *dataset, const char *tenant)
{
    return checkpoint_none_needs(store, &(checkpoint_need){.dataset = dataset, .tenant = tenant});
}

hth_err hth_checkpoint_rm(hth_store *store, const char *job)
{
    json_t *doc;
    char name[HTH_CHECKPOINT_NAME];
    char tenant[HTH_TENANT];
    hth_err err = hth_checkpoint_find(store, job, &doc);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    hth_checkpoint_note_set(store, job, "");
    snprintf(name, sizeof name, "%s" HTH_CHECKPOINT_TAIL, job);
    err = hth_checkpoint_forget(store, name, 0);
    const json_t *args = json_object_get(doc, "job");
    hth_checkpoint_tenant(args, tenant);
    if (err == HTH_OK) {
        hth_dataset_drop_own(store, args, tenant);
    }
    json_decref(doc);
    return err;
}

static const char *note_key(const char *job, char key[HTH_CHECKPOINT_NAME])
{
    snprintf(key, HTH_CHECKPOINT_NAME, "train/note/%s", job);
    return key;
}

void hth_checkpoint_note_set(hth_store *store, const char *job, const char *note)
{
    char key[HTH_CHECKPOINT_NAME];
    hth_store_text_put(store, note_key(job, key), note);
}

void hth_checkpoint_note_get(hth_store *store, const char *job, char note[HTH_CHECKPOINT_NOTE])
{
    char key[HTH_CHECKPOINT_NAME];
    if (hth_store_text_get(store, note_key(job, key), note, HTH_CHECKPOINT_NOTE) != HTH_OK) {
        note[0] = 0;
    }
}
