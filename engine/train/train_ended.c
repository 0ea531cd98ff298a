// SPDX-License-Identifier: Apache-2.0
// Job number N has the texts train/ended/S (its row) and train/ended/S/history, S = N modulo
// HTH_ENDED_JOBS: the oldest is overwritten, nothing is ever removed. The number is taken first, by
// what was swapped into train/ended/last: jobs of several devices, each in a process of its own,
// may end at once. The history is written next and says whose it is, so that a process that dies in
// between leaves no row with the losses of another job.
#include "engine/train/train_ended.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ENDED_KEY  40
#define ENDED_LAST "train/ended/last"

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for the record of a job");
}

static const char *ended_key(json_int_t slot, const char *tail, char key[ENDED_KEY])
{
    snprintf(key, ENDED_KEY, "train/ended/%lld%s", (long long)slot, tail);
    return key;
}

static json_int_t ended_id(const json_t *row)
{
    return json_integer_value(json_object_get(row, "id"));
}

static json_t *ended_read(hth_store *store, json_int_t slot, const char *tail)
{
    char key[ENDED_KEY], *text;
    if (hth_store_text_load(store, ended_key(slot, tail, key), &text) != HTH_OK) {
        return NULL;
    }
    json_t *doc = json_loads(text, 0, NULL);
    hth_free(text);
    return doc;
}

static hth_err ended_write(hth_store *store, json_int_t slot, const char *tail, const json_t *doc)
{
    char key[ENDED_KEY];
    char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    hth_err err =
        text != NULL ? hth_store_text_put(store, ended_key(slot, tail, key), text) : no_memory();
    free(text);
    return err;
}

// All rows, the last job first.
static hth_err ended_rows(hth_store *store, json_t *rows[HTH_ENDED_JOBS], int *n)
{
    *n = 0;
    for (int slot = 0; slot < HTH_ENDED_JOBS; slot++) {
        json_t *row = ended_read(store, slot, "");
        if (ended_id(row) < 1) {
            json_decref(row);
            continue;
        }
        int at = (*n)++;
        for (; at > 0 && ended_id(rows[at - 1]) < ended_id(row); at--) {
            rows[at] = rows[at - 1];
        }
        rows[at] = row;
    }
    return HTH_OK;
}

static void ended_rows_free(json_t *rows[HTH_ENDED_JOBS], int n)
{
    for (int i = 0; i < n; i++) {
        json_decref(rows[i]);
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

// ended_take takes the next number: behind the last one given out, and behind all rows, those of
// a store that knows no last one too.
static hth_err ended_take(hth_store *store, json_int_t *id)
{
    hth_err err;
    do {
        int n;
        char *last = NULL, text[24];
        json_t *rows[HTH_ENDED_JOBS];
        HTH_TRY(ended_rows(store, rows, &n));
        *id = n > 0 ? ended_id(rows[0]) : 0;
        ended_rows_free(rows, n);
        err = hth_store_text_load(store, ENDED_LAST, &last);
        if (err != HTH_OK && err != HTH_ENOENT) {
            return err;
        }
        long long given = last != NULL ? strtoll(last, NULL, 10) : 0;
        *id = (*id > given ? *id : given) + 1;
        snprintf(text, sizeof text, "%lld", (long long)*id);
        err = hth_store_text_swap(store, ENDED_LAST, last, text);
        hth_free(last);
    } while (err == HTH_EEXIST);
    return err;
}

hth_err hth_ended_add(hth_store *store, json_t *row, const json_t *state)
{
    struct timespec now;
    size_t every;
    json_int_t id;
    HTH_TRY(ended_take(store, &id));
    json_int_t slot = id % HTH_ENDED_JOBS;
    clock_gettime(CLOCK_REALTIME, &now);
    json_object_set_new(row, "id", json_integer(id));
    json_object_set_new(row, "ended_ns",
                        json_integer((json_int_t)now.tv_sec * 1000000000 + now.tv_nsec));
    json_t *kept = json_object();
    json_object_set_new(kept, "id", json_integer(id));
    json_object_set_new(
        kept, "history",
        hth_ended_thin(json_object_get(state, "history"), HTH_ENDED_POINTS, &every));
    json_object_set_new(kept, "every", json_integer((json_int_t)every));
    json_object_set(kept, "held_out", json_object_get(state, "held_out"));
    hth_err err = ended_write(store, slot, "/history", kept);
    json_decref(kept);
    return err == HTH_OK ? ended_write(store, slot, "", row) : err;
}

hth_err hth_ended_list(hth_store *store, json_t *out)
{
    int n;
    json_t *rows[HTH_ENDED_JOBS];
    HTH_TRY(ended_rows(store, rows, &n));
    for (int i = 0; i < n; i++) {
        json_array_append(out, rows[i]);
    }
    ended_rows_free(rows, n);
    return HTH_OK;
}

hth_err hth_ended_find(hth_store *store, const char *job, bool history, json_t **out)
{
    int n, named = -1, numbered = -1;
    char *end;
    long long id = strtoll(job, &end, 10);
    json_t *rows[HTH_ENDED_JOBS];
    HTH_TRY(ended_rows(store, rows, &n));
    for (int i = n - 1; i >= 0; i--) {
        const char *name = json_string_value(json_object_get(rows[i], "job"));
        named = name != NULL && strcmp(name, job) == 0 ? i : named;
        numbered = *end == 0 && ended_id(rows[i]) == id ? i : numbered;
    }
    int i = named >= 0 ? named : numbered;
    *out = i >= 0 ? json_incref(rows[i]) : NULL;
    ended_rows_free(rows, n);
    if (i < 0) {
        return hth_fail(HTH_ENOENT, "there is no job '%s'; `hearth jobs` lists what there is", job);
    }
    json_t *kept = history ? ended_read(store, ended_id(*out) % HTH_ENDED_JOBS, "/history") : NULL;
    if (ended_id(kept) == ended_id(*out)) {
        json_object_del(kept, "id");
        json_object_update(*out, kept);
    }
    json_decref(kept);
    return HTH_OK;
}
