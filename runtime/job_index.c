// SPDX-License-Identifier: Apache-2.0
// Job number N has the text train/job/S, S = N modulo HTH_JOB_INDEX. The last number is swapped, so
// that of several processes each gets one of its own. A store of before has the numbers of jobs
// that ended up to train/ended/last: those that are given out come after them.
#include "runtime/job_index.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_LAST  "train/job/last"
#define INDEX_ENDED "train/ended/last"
#define INDEX_KEY   40

// index_last reads the number that `key` has; *text is its text, NULL: there is none.
static hth_err index_last(hth_store *store, const char *key, char **text, uint64_t *last)
{
    *text = NULL;
    hth_err err = hth_store_text_load(store, key, text);
    *last = err == HTH_OK ? strtoull(*text, NULL, 10) : 0;
    return err == HTH_ENOENT ? HTH_OK : err;
}

hth_err hth_job_index_take(hth_store *store, uint64_t *id)
{
    hth_err err;
    do {
        char *last = NULL, *ended, text[24];
        HTH_TRY(index_last(store, INDEX_LAST, &last, id));
        if (last == NULL) {
            HTH_TRY(index_last(store, INDEX_ENDED, &ended, id));
            hth_free(ended);
        }
        snprintf(text, sizeof text, "%" PRIu64, ++*id);
        err = hth_store_text_swap(store, INDEX_LAST, last, text);
        hth_free(last);
    } while (err == HTH_EEXIST);
    return err;
}

static const char *index_key(uint64_t id, char key[INDEX_KEY])
{
    snprintf(key, INDEX_KEY, "train/job/%" PRIu64, id % HTH_JOB_INDEX);
    return key;
}

hth_err hth_job_index_add(hth_store *store, const char *job, const char *tenant, uint64_t *id)
{
    char key[INDEX_KEY];
    HTH_TRY(hth_job_index_take(store, id));
    json_t *doc = json_pack("{s:I, s:s, s:s}", "id", (json_int_t)*id, "job", job, "tenant", tenant);
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    hth_err err = text != NULL ? hth_store_text_put(store, index_key(*id, key), text)
                               : hth_fail(HTH_ENOMEM, "no memory for a job's number");
    free(text);
    return err;
}

hth_err hth_job_index_find(hth_store *store, uint64_t id, char job[HTH_CHECKPOINT_JOB],
                           char tenant[HTH_TENANT])
{
    char key[INDEX_KEY], *text = NULL;
    hth_err err = hth_store_text_load(store, index_key(id, key), &text);
    if (err != HTH_OK && err != HTH_ENOENT) {
        return err;
    }
    json_t *doc = text != NULL ? json_loads(text, 0, NULL) : NULL;
    hth_free(text);
    const char *name = json_string_value(json_object_get(doc, "job"));
    bool found = name != NULL && json_integer_value(json_object_get(doc, "id")) == (json_int_t)id;
    if (found) {
        snprintf(job, HTH_CHECKPOINT_JOB, "%s", name);
        hth_checkpoint_tenant(doc, tenant);
    }
    json_decref(doc);
    return found ? HTH_OK
                 : hth_fail(HTH_ENOENT,
                            "there is no job %" PRIu64 "; `hearth jobs` lists what there is", id);
}

// index_number reads which number is meant, 0: none.
static uint64_t index_number(hth_store *store, const json_t *args)
{
    const char *name = json_string_value(json_object_get(args, "job"));
    json_int_t id = json_integer_value(json_object_get(args, "id"));
    bool has = true;
    if (id > 0 || name == NULL || name[0] == 0 || name[strspn(name, "0123456789")] != 0) {
        return id > 0 ? (uint64_t)id : 0;
    }
    return hth_store_has(store, name, 0, &has) == HTH_OK && !has ? strtoull(name, NULL, 10) : 0;
}

// Of others' jobs nobody learns the names.
hth_err hth_job_index_resolve(hth_store *store, json_t *args, const char *tenant)
{
    char name[HTH_CHECKPOINT_JOB], of[HTH_TENANT];
    uint64_t id = index_number(store, args);
    if (id == 0) {
        return json_object_get(args, "id") != NULL
                   ? hth_fail(HTH_EINVAL, "'id' must be the number of a job")
                   : HTH_OK;
    }
    hth_err err = hth_job_index_find(store, id, name, of);
    if (err == HTH_OK && tenant != NULL && strcmp(of, tenant) != 0) {
        return hth_fail(HTH_ENOENT,
                        "there is no job %" PRIu64 "; `hearth jobs` lists what there is", id);
    }
    if (err == HTH_ENOENT) { // a record may have it: of a job before there were such numbers, say
        snprintf(name, sizeof name, "%" PRIu64, id);
    }
    json_object_set_new(args, "job", json_string(name));
    json_object_set_new(args, "id", json_integer((json_int_t)id));
    return HTH_OK;
}
