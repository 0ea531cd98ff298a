// SPDX-License-Identifier: Apache-2.0
// The Nth job that ends has the texts train/ended/S (its row) and train/ended/S/history, S = N
// modulo HTH_ENDED_JOBS: the oldest is overwritten, nothing is ever removed. N is taken first, by
// what was swapped into train/ended/last: jobs of several devices, each in a process of its own,
// may end at once. The history is written next and says whose it is, so that a process that dies in
// between leaves no row with the losses of another job.
#include "engine/train/queue/train_ended.h"
#include "engine/train/train_eval.h"

#include "base/alloc.h"
#include "runtime/job_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDED_KEY  40
#define ENDED_LAST "train/ended/last"

static const char *ended_key(json_int_t index, const char *tail, char key[ENDED_KEY])
{
    snprintf(key, ENDED_KEY, "train/ended/%lld%s", (long long)index, tail);
    return key;
}

static json_int_t ended_id(const json_t *row)
{
    return json_integer_value(json_object_get(row, "id"));
}

static json_t *ended_read(hth_store *store, json_int_t index, const char *tail)
{
    char key[ENDED_KEY];
    char *text;
    if (hth_store_text_load(store, ended_key(index, tail, key), &text) != HTH_OK) {
        return NULL;
    }
    json_t *doc = json_loads(text, 0, NULL);
    hth_free(text);
    return doc;
}

static hth_err ended_write(hth_store *store, json_int_t index, const char *tail, const json_t *doc)
{
    char key[ENDED_KEY];
    char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    hth_err err = text != NULL ? hth_store_text_put(store, ended_key(index, tail, key), text)
                               : hth_no_memory("the record of a job");
    free(text);
    return err;
}

typedef struct ended_row {
    json_t *row;
    int index;
} ended_row;

static bool ended_before(const json_t *a, const json_t *b)
{
    json_int_t at = json_integer_value(json_object_get(a, "ended_ns")),
               bt = json_integer_value(json_object_get(b, "ended_ns"));
    return at < bt || (at == bt && ended_id(a) < ended_id(b));
}

// All rows, the job that ended last first.
static int ended_rows(hth_store *store, ended_row rows[HTH_ENDED_JOBS])
{
    int n = 0;
    for (int index = 0; index < HTH_ENDED_JOBS; index++) {
        json_t *row = ended_read(store, index, "");
        if (ended_id(row) < 1) {
            json_decref(row);
            continue;
        }
        int at = n++;
        for (; at > 0 && ended_before(rows[at - 1].row, row); at--) {
            rows[at] = rows[at - 1];
        }
        rows[at] = (ended_row){row, index};
    }
    return n;
}

static void ended_rows_free(ended_row rows[HTH_ENDED_JOBS], int n)
{
    for (int i = 0; i < n; i++) {
        json_decref(rows[i].row);
    }
}

json_t *hth_ended_thin(const json_t *history, size_t most, size_t *every)
{
    size_t n = json_array_size(history);
    json_t *out = json_array();
    *every = n / most + (n % most > 0);
    *every = *every > 0 ? *every : 1;
    for (size_t i = 0; i < n; i += *every) {
        json_array_append(out, json_array_get(history, i));
    }
    if (n > 0 && (n - 1) % *every != 0) {
        json_array_append(out, json_array_get(history, n - 1));
    }
    return out;
}

// ended_take counts a job that ends: after the last one, and where the store knows none (it is an
// older one) after all rows, whose numbers are their places there.
static hth_err ended_take(hth_store *store, json_int_t *nth)
{
    hth_err err;
    do {
        char *last = NULL;
        char text[24];
        err = hth_store_text_load(store, ENDED_LAST, &last);
        if (err != HTH_OK && err != HTH_ENOENT) {
            return err;
        }
        *nth = last != NULL ? (json_int_t)strtoll(last, NULL, 10) : 0;
        ended_row rows[HTH_ENDED_JOBS];
        int n = last == NULL ? ended_rows(store, rows) : 0;
        for (int i = 0; i < n; i++) {
            json_int_t id = ended_id(rows[i].row);
            *nth = *nth > id ? *nth : id;
        }
        ended_rows_free(rows, n);
        snprintf(text, sizeof text, "%lld", (long long)++*nth);
        err = hth_store_text_swap(store, ENDED_LAST, last, text);
        hth_free(last);
    } while (err == HTH_EEXIST);
    return err;
}

hth_err hth_ended_add(hth_store *store, json_t *row, const json_t *state)
{
    static const char *const same[] = {"held_out", "best_step", "best_epoch", "stopped_early",
                                       "memory"};
    size_t every;
    json_int_t nth;
    uint64_t id = (uint64_t)ended_id(row);
    HTH_TRY(id == 0 ? hth_job_index_take(store, &id) : HTH_OK);
    HTH_TRY(ended_take(store, &nth));
    json_int_t index = nth % HTH_ENDED_JOBS;
    json_object_set_new(row, "id", json_integer((json_int_t)id));
    if (!json_is_integer(json_object_get(row, "ended_ns"))) {
        json_object_set_new(row, "ended_ns", json_integer((json_int_t)hth_job_index_now()));
    }
    json_t *kept = json_object();
    json_object_set_new(kept, "id", json_integer((json_int_t)id));
    json_object_set_new(
        kept, "history",
        hth_ended_thin(json_object_get(state, "history"), HTH_ENDED_POINTS, &every));
    json_object_set_new(kept, "every", json_integer((json_int_t)every));
    hth_train_details(state, kept);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_object_set(kept, same[i], json_object_get(state, same[i]));
    }
    hth_err err = ended_write(store, index, "/history", kept);
    json_decref(kept);
    HTH_TRY(err);
    return ended_write(store, index, "", row);
}

hth_err hth_ended_list(hth_store *store, json_t *out)
{
    ended_row rows[HTH_ENDED_JOBS];
    int n = ended_rows(store, rows);
    for (int i = 0; i < n; i++) {
        json_array_append(out, rows[i].row);
    }
    ended_rows_free(rows, n);
    return HTH_OK;
}

hth_err hth_ended_find(hth_store *store, const char *job, bool history, json_t **out)
{
    int named = -1, numbered = -1;
    char *end;
    long long id = strtoll(job, &end, 10);
    ended_row rows[HTH_ENDED_JOBS];
    int n = ended_rows(store, rows);
    for (int i = n - 1; i >= 0; i--) {
        const char *name = json_string_value(json_object_get(rows[i].row, "job"));
        named = name != NULL && strcmp(name, job) == 0 ? i : named;
        numbered = *end == 0 && ended_id(rows[i].row) == id ? i : numbered;
    }
    int i = named >= 0 ? named : numbered;
    int index = i >= 0 ? rows[i].index : 0;
    *out = i >= 0 ? json_incref(rows[i].row) : NULL;
    ended_rows_free(rows, n);
    if (i < 0) {
        return hth_fail(HTH_ENOENT, "there is no job '%s'; `hearth jobs` lists what there is", job);
    }
    json_t *kept = history ? ended_read(store, index, "/history") : NULL;
    if (ended_id(kept) == ended_id(*out)) {
        json_object_del(kept, "id");
        json_object_update(*out, kept);
    }
    json_decref(kept);
    return HTH_OK;
}
