// SPDX-License-Identifier: Apache-2.0
// Job number N has the text train/job/S, S = N modulo HTH_JOB_INDEX; numbers whose place is that of
// a job which has not ended are left out. The last number is swapped, so that of several processes
// each gets one of its own. A store of before has the numbers of jobs that ended up to
// train/ended/last: those that are given out come after them.
#include "runtime/job_index.h"

#include "base/alloc.h"
#include "runtime/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static const char *index_key(uint64_t id, char key[INDEX_KEY])
{
    snprintf(key, INDEX_KEY, "train/job/%" PRIu64, id % HTH_JOB_INDEX);
    return key;
}

// index_read stores the record in the place of number `id`, whose it may not be, or NULL.
static hth_err index_read(hth_store *store, uint64_t id, json_t **record)
{
    char key[INDEX_KEY];
    char *text = NULL;
    *record = NULL;
    hth_err err = hth_store_text_load(store, index_key(id, key), &text);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    *record = json_loads(text, 0, NULL);
    hth_free(text);
    return HTH_OK;
}

// index_lives tells whether the place of number `id` has the record of a job that was in a queue
// and has not ended. Others wait for what becomes of it: it is not overwritten.
static bool index_lives(hth_store *store, uint64_t id)
{
    json_t *record;
    if (index_read(store, id, &record) != HTH_OK) {
        return false;
    }
    bool lives = json_object_get(record, "attempts") != NULL &&
                 !json_is_integer(json_object_get(record, "ended"));
    json_decref(record);
    return lives;
}

// index_next is the number after `last` whose place is free; the next one, if none is.
static uint64_t index_next(hth_store *store, uint64_t last)
{
    uint64_t id = last + 1;
    while (id - last < HTH_JOB_INDEX && index_lives(store, id)) {
        id++;
    }
    return id - last < HTH_JOB_INDEX ? id : last + 1;
}

hth_err hth_job_index_take(hth_store *store, uint64_t *id)
{
    hth_err err;
    do {
        char *last = NULL, *ended;
        char text[24];
        HTH_TRY(index_last(store, INDEX_LAST, &last, id));
        if (last == NULL) {
            HTH_TRY(index_last(store, INDEX_ENDED, &ended, id));
            hth_free(ended);
        }
        *id = index_next(store, *id);
        snprintf(text, sizeof text, "%" PRIu64, *id);
        err = hth_store_text_swap(store, INDEX_LAST, last, text);
        hth_free(last);
    } while (err == HTH_EEXIST);
    return err;
}

uint64_t hth_job_index_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static hth_err index_write(hth_store *store, uint64_t id, const json_t *record)
{
    char key[INDEX_KEY];
    char *text = json_dumps(record, JSON_COMPACT);
    hth_err err = text != NULL ? hth_store_text_put(store, index_key(id, key), text)
                               : hth_no_memory("a job's record");
    free(text);
    return err;
}

static hth_err index_begin(hth_store *store, const char *job, const char *tenant, uint64_t id)
{
    json_t *doc =
        json_pack("{s:I, s:s, s:s, s:s, s:I}", "id", (json_int_t)id, "job", job, "tenant", tenant,
                  "state", "waiting", "submitted", (json_int_t)hth_job_index_now());
    hth_err err = index_write(store, id, doc);
    json_decref(doc);
    return err;
}

hth_err hth_job_index_add(hth_store *store, const char *job, const char *tenant, uint64_t *id)
{
    HTH_TRY(hth_job_index_take(store, id));
    return index_begin(store, job, tenant, *id);
}

hth_err hth_job_index_get(hth_store *store, uint64_t id, json_t **record)
{
    HTH_TRY(index_read(store, id, record));
    if (*record != NULL && json_is_string(json_object_get(*record, "job")) &&
        json_integer_value(json_object_get(*record, "id")) == (json_int_t)id) {
        return HTH_OK;
    }
    json_decref(*record);
    *record = NULL;
    return hth_fail(HTH_ENOENT, "there is no job %" PRIu64 "; `hearth jobs` lists what there is",
                    id);
}

hth_err hth_job_index_set(hth_store *store, uint64_t id, json_t *changes)
{
    json_t *record;
    hth_err err = hth_job_index_get(store, id, &record);
    if (err == HTH_OK) {
        err = json_object_update(record, changes) == 0 ? index_write(store, id, record)
                                                       : hth_no_memory("a job's record");
        json_decref(record);
    }
    json_decref(changes);
    return err == HTH_ENOENT ? HTH_OK : err;
}

// index_kept tells whether the job of a record has a checkpoint, or that is not known.
static bool index_kept(hth_store *store, const json_t *record)
{
    json_t *args = NULL;
    hth_err err =
        hth_checkpoint_args(store, json_string_value(json_object_get(record, "job")), &args);
    const json_t *id = json_object_get(args, "id"); // NULL: of a job before there were numbers
    bool other = id != NULL && !json_equal(id, json_object_get(record, "id"));
    json_decref(args);
    return err != HTH_ENOENT && !other;
}

hth_err hth_job_index_lost(hth_store *store, void (*lost)(hth_store *store, const json_t *record))
{
    hth_err err = HTH_OK;
    for (uint64_t place = 0; place < HTH_JOB_INDEX && err == HTH_OK; place++) {
        json_t *record;
        err = index_read(store, place, &record);
        json_int_t id = json_integer_value(json_object_get(record, "id"));
        bool live = json_is_string(json_object_get(record, "job")) &&
                    !json_is_integer(json_object_get(record, "ended"));
        if (live && !index_kept(store, record)) {
            err = hth_job_index_set(store, (uint64_t)id,
                                    json_pack("{s:s, s:s, s:I}", "state", "canceled", "why",
                                              HTH_JOB_INDEX_LOST, "ended",
                                              (json_int_t)hth_job_index_now()));
            if (err == HTH_OK && json_object_get(record, "attempts") != NULL) {
                lost(store, record);
            }
        }
        json_decref(record);
    }
    return err;
}

hth_err hth_job_index_named(hth_store *store, const char *job, uint64_t before, uint64_t *id)
{
    char *text;
    uint64_t last;
    HTH_TRY(index_last(store, INDEX_LAST, &text, &last));
    hth_free(text);
    uint64_t older = 0; // a job that has not ended for long has the place of a newer number
    for (uint64_t at = last < before ? last : before - 1; at > 0 && last - at < HTH_JOB_INDEX;
         at--) {
        json_t *record;
        HTH_TRY(index_read(store, at, &record));
        const char *name = json_string_value(json_object_get(record, "job"));
        json_int_t number = json_integer_value(json_object_get(record, "id"));
        bool found = name != NULL && strcmp(name, job) == 0;
        json_decref(record);
        if (found && number == (json_int_t)at) {
            *id = at;
            return HTH_OK;
        }
        older = found && number > (json_int_t)older && number < (json_int_t)at ? (uint64_t)number
                                                                               : older;
    }
    if (older > 0) {
        *id = older;
        return HTH_OK;
    }
    return hth_fail(HTH_ENOENT, "there is no job '%s'; `hearth jobs` lists what there is", job);
}

hth_err hth_job_index_find(hth_store *store, uint64_t id, char job[HTH_CHECKPOINT_JOB],
                           char tenant[HTH_TENANT])
{
    json_t *record;
    HTH_TRY(hth_job_index_get(store, id, &record));
    snprintf(job, HTH_CHECKPOINT_JOB, "%s", json_string_value(json_object_get(record, "job")));
    hth_checkpoint_tenant(record, tenant);
    json_decref(record);
    return HTH_OK;
}

// ---- a job that is submitted

// begin_mine tells whether the job with these arguments is one that the tenant means when it names
// none: its own; of an administrator also those that were submitted when jobs had no owners yet.
static bool begin_mine(const json_t *job, const char *tenant, bool admin)
{
    char of[HTH_TENANT];
    hth_checkpoint_tenant(job, of);
    return strcmp(of, tenant) == 0 || (admin && strcmp(of, HTH_TENANT_OWN) == 0);
}

// begin_last sets "save-as" to the tenant's last job of the model that has a checkpoint, and was
// given its name here.
static hth_err begin_last(hth_store *store, json_t *args, const char *tenant, bool admin)
{
    json_t *names, *name, *job;
    size_t i;
    HTH_TRY(hth_checkpoint_list(store, &names));
    json_array_foreach(names, i, name) // the last one is the newest
    {
        if (hth_checkpoint_args(store, json_string_value(name), &job) != HTH_OK) {
            continue;
        }
        if (json_is_true(json_object_get(job, "named")) && begin_mine(job, tenant, admin) &&
            json_equal(json_object_get(job, "model"), json_object_get(args, "model"))) {
            json_object_set(args, "save-as", name);
            json_object_set_new(args, "named", json_true());
        }
        json_decref(job);
    }
    json_decref(names);
    return HTH_OK;
}

// begin_again finds the number of the tenant's job that goes on, 0: it has no such job with a
// checkpoint.
static uint64_t begin_again(hth_store *store, const char *job, const char *tenant, bool admin)
{
    json_t *args = NULL;
    (void)hth_checkpoint_args(store, job, &args);
    json_int_t id = json_integer_value(json_object_get(args, "id"));
    bool mine = begin_mine(args, tenant, admin);
    json_decref(args);
    return mine && id > 0 ? (uint64_t)id : 0;
}

hth_err hth_job_index_begin(hth_store *store, json_t *args, const char *tenant, bool admin,
                            char job[HTH_CHECKPOINT_JOB], uint64_t *id)
{
    char named[HTH_CHECKPOINT_JOB];
    bool resume = json_is_true(json_object_get(args, "resume"));
    *id = 0;
    job[0] = 0;
    json_object_del(args, "named");
    if (resume && json_object_get(args, "save-as") == NULL) {
        HTH_TRY(begin_last(store, args, tenant, admin));
    }
    if (hth_checkpoint_job(args, job) != HTH_OK) {
        job[0] = 0;
        return HTH_OK;
    }
    *id = resume ? begin_again(store, job, tenant, admin) : 0;
    if (*id == 0 && json_object_get(args, "save-as") != NULL) {
        HTH_TRY(hth_job_index_add(store, job, tenant, id));
    } else if (*id == 0) {
        HTH_TRY(hth_job_index_take(store, id));
        snprintf(named, sizeof named, "%.180s-job%" PRIu64, job, *id);
        snprintf(job, HTH_CHECKPOINT_JOB, "%s", named);
        json_object_set_new(args, "save-as", json_string(job));
        json_object_set_new(args, "named", json_true());
        HTH_TRY(index_begin(store, job, tenant, *id));
    }
    return json_object_set_new(args, "id", json_integer((json_int_t)*id)) == 0
               ? HTH_OK
               : hth_no_memory("a job's number");
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
