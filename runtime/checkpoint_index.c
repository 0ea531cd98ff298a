// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint_index.h"

#include "base/alloc.h"
#include "runtime/catalog.h"
#include "runtime/content/dataset_index.h"
#include "runtime/request.h"

#include <stdio.h>
#include <string.h>

hth_err hth_checkpoint_forget(hth_store *store, const char *name, int version)
{
    uint64_t files, bytes;
    HTH_TRY(hth_store_rm(store, name, version));
    return hth_store_gc(store, &files, &bytes);
}

hth_err hth_checkpoint_job(const json_t *args, char out[HTH_CHECKPOINT_JOB])
{
    int version;
    const char *name = json_string_value(json_object_get(args, "save-as"));
    name = name != NULL ? name : json_string_value(json_object_get(args, "model"));
    return hth_catalog_parse(name != NULL ? name : "", out, &version);
}

void hth_checkpoint_tenant(const json_t *args, char out[HTH_TENANT])
{
    const char *tenant = json_string_value(json_object_get(args, "tenant"));
    snprintf(out, HTH_TENANT, "%s", tenant != NULL ? tenant : HTH_TENANT_OWN);
}

hth_err hth_checkpoint_find(hth_store *store, const char *job, json_t **doc)
{
    char name[HTH_CHECKPOINT_NAME];
    hth_manifest m;
    *doc = NULL;
    snprintf(name, sizeof name, "%s" HTH_CHECKPOINT_TAIL, job);
    hth_err err = hth_store_get(store, name, 0, &m);
    if (err == HTH_OK) {
        *doc = json_loads(m.meta, 0, NULL);
        hth_manifest_fini(&m);
    }
    if (err == HTH_OK && !json_is_object(json_object_get(*doc, "job"))) {
        json_decref(*doc);
        *doc = NULL;
        err = HTH_ENOENT;
    }
    return err == HTH_ENOENT || err == HTH_EINVAL // what can be no name has none
               ? hth_fail(HTH_ENOENT,
                          "job '%s' has no checkpoint; `hearth jobs` lists what there is", job)
               : err;
}

// The part of a model's name in front of the tail; 0: it has none.
static size_t checkpoint_stem(const char *model)
{
    size_t bytes = strlen(model), tail = strlen(HTH_CHECKPOINT_TAIL);
    return bytes > tail && strcmp(model + bytes - tail, HTH_CHECKPOINT_TAIL) == 0 ? bytes - tail
                                                                                  : 0;
}

bool hth_checkpoint_is(hth_store *store, const char *model)
{
    char job[HTH_CHECKPOINT_JOB];
    json_t *doc = NULL;
    snprintf(job, sizeof job, "%.*s", (int)checkpoint_stem(model), model);
    bool is = job[0] != 0 && hth_checkpoint_find(store, job, &doc) == HTH_OK;
    json_decref(doc);
    return is;
}

hth_err hth_checkpoint_list(hth_store *store, json_t **names)
{
    hth_store_entry *e;
    int n;
    json_t *doc;
    HTH_TRY(hth_store_list(store, &e, &n));
    *names = json_array();
    for (int i = 0; i < n; i++) {
        size_t stem = checkpoint_stem(e[i].name);
        bool last = i + 1 == n || strcmp(e[i].name, e[i + 1].name) != 0;
        if (!last || stem == 0) {
            continue;
        }
        e[i].name[stem] = 0;
        if (hth_checkpoint_find(store, e[i].name, &doc) == HTH_OK) { // else a model of this name
            json_array_append_new(*names, json_string(e[i].name));
            json_decref(doc);
        }
    }
    hth_free(e);
    return HTH_OK;
}

static bool checkpoint_uses(const json_t *doc, const char *model, int version)
{
    const json_t *args = json_object_get(doc, "job");
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

static bool checkpoint_reads(const json_t *doc, const char *dataset, const char *tenant)
{
    static const char *const keys[] = {"data", "eval"};
    const json_t *args = json_object_get(doc, "job");
    char whose[HTH_TENANT];
    hth_checkpoint_tenant(args, whose);
    for (int i = 0; i < 2; i++) {
        const char *name =
            json_string_value(json_object_get(json_object_get(args, keys[i]), "dataset"));
        if (name != NULL && strcmp(name, dataset) == 0 && strcmp(whose, tenant) == 0) {
            return true;
        }
    }
    return false;
}

static hth_err checkpoint_none_needs(hth_store *store, const checkpoint_need *need)
{
    json_t *names, *name, *doc;
    size_t i;
    HTH_TRY(hth_checkpoint_list(store, &names));
    hth_err err = HTH_OK;
    json_array_foreach(names, i, name)
    {
        const char *job = json_string_value(name);
        if (err == HTH_OK && hth_checkpoint_find(store, job, &doc) == HTH_OK) {
            if (need->model != NULL && checkpoint_uses(doc, need->model, need->version)) {
                err =
                    hth_fail(HTH_EBUSY, "job '%s' needs '%s' to resume: `hearth cancel %s` ends it",
                             job, need->model, job);
            } else if (need->dataset != NULL &&
                       checkpoint_reads(doc, need->dataset, need->tenant)) {
                err = hth_fail(HTH_EBUSY,
                               "job '%s' needs dataset '%s' to resume: `hearth cancel %s` ends it",
                               job, need->dataset, job);
            }
            json_decref(doc);
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
