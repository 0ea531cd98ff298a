// SPDX-License-Identifier: Apache-2.0
// Jobs are known by the model that they make. What ends one decides about its checkpoint: finished
// or canceled by name, it is removed; failed or left by its client, it stays with a note and waits
// to be asked for; stopped with the server, it stays without one and is gone on with. A job of
// which no checkpoint is left has ended, and is kept as a record.
#include "server/train_queue.h"

#include "base/alloc.h"
#include "base/log.h"
#include "server/checkpoint.h"
#include "server/train_ended.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hth_train_entry {
    hth_train_entry *next;
    hth_request *r;
    char job[HTH_CHECKPOINT_JOB];
    char *arguments; // of a job that is gone on with, from json_dumps
    hth_request own; // of one that nobody waits for
};

static hth_train_entry *queue_find(const hth_train_queue *q, const char *job)
{
    hth_train_entry *e = q->first;
    while (e != NULL && strcmp(e->job, job) != 0) {
        e = e->next;
    }
    return e;
}

static void queue_append(hth_train_queue *q, hth_train_entry *e)
{
    hth_train_entry **last = &q->first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = e;
}

// Ends the job with the result that hth_fail has set.
static void queue_end(hth_train_queue *q, hth_train_entry *e, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    hth_train_entry **at = &q->first;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    if (e == q->first) {
        hth_train_job_free(q->job);
        q->job = NULL;
    }
    while (*at != e) {
        at = &(*at)->next;
    }
    *at = e->next;
    q->answer(e->r, err != HTH_OK ? hth_fail(err, "%s", detail) : HTH_OK);
    free(e->arguments);
    hth_free(e);
}

// Where a job stands: at work, or when it made its last checkpoint. HTH_ENOENT: neither.
static hth_err queue_state(const hth_train_queue *q, const char *job, json_t **out)
{
    const hth_train_entry *e = queue_find(q, job);
    if (e == NULL || e != q->first || q->job == NULL) {
        return hth_checkpoint_find(q->ms->store, job, out);
    }
    *out = hth_train_job_state(q->job);
    return *out != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory to describe a job");
}

// The last evaluation of the data named first: what was held out of them, else those of --eval.
static const json_t *held_last(const json_t *state)
{
    const json_t *list = json_object_get(state, "held_out"), *last = NULL;
    json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        const char *a = json_string_value(json_object_get(json_array_get(list, 0), "set")),
                   *b = json_string_value(json_object_get(v, "set"));
        last = a != NULL && b != NULL && strcmp(a, b) == 0 ? v : last;
    }
    return last;
}

// A job's row from where it stands, which may be NULL. All rows have the same keys.
static json_t *job_row(const char *job, const char *word, const json_t *state, const char *why)
{
    const json_t *losses = json_object_get(state, "history");
    const json_t *last = json_array_get(losses, json_array_size(losses) - 1);
    const json_t *held = held_last(state);
    return json_pack("{s:n, s:s, s:s, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:n, s:s?}", "id", "job",
                     job, "state", word, "model",
                     json_object_get(json_object_get(state, "job"), "model"), "step",
                     json_object_get(state, "step"), "steps", json_object_get(state, "steps"),
                     "loss", json_array_get(last, 0), "held_out_loss",
                     json_object_get(held, "loss"), "accuracy", json_object_get(held, "accuracy"),
                     "ended_ns", "why", why != NULL && why[0] != 0 ? why : NULL);
}

static void queue_record(hth_train_queue *q, const char *job, const char *word, const char *why)
{
    json_t *state = NULL;
    hth_err err = queue_state(q, job, &state);
    if (err == HTH_OK) {
        json_t *row = job_row(job, word, state, why);
        err = hth_ended_add(q->ms->store, row, state);
        json_decref(row);
    }
    json_decref(state);
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "no record of job '%s': %s", job, hth_err_detail());
    }
}

// Of a job that failed or was left, the checkpoint stays with the reason beside it, or there is
// none and it has ended. One that could not even be made ready is told to who asked for it.
static void queue_failed(hth_train_queue *q, const hth_train_entry *e, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    json_t *meta;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool saved = q->job != NULL ? hth_train_job_saved(q->job) > 0 : e->r == &e->own;
    if (saved && hth_checkpoint_find(q->ms->store, e->job, &meta) == HTH_OK) {
        hth_checkpoint_note_set(q->ms->store, e->job, detail);
        json_decref(meta);
    } else if (q->job != NULL) {
        queue_record(q, e->job, err == HTH_ECANCELED ? "canceled" : "failed", detail);
    }
    hth_fail(err, "%s", detail);
}

static void own_done(hth_request *r)
{
    if (r->err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "a job that was gone on with: %s", r->detail);
    }
    hth_free(r->json);
}

// The arguments of a job asked for by name are its checkpoint's, and what is given with it.
static hth_err entry_by_name(hth_train_queue *q, hth_train_entry *e, json_t *given)
{
    json_t *doc;
    HTH_TRY(hth_checkpoint_find(q->ms->store, e->job, &doc));
    json_t *args = json_object_get(doc, "job");
    json_object_del(given, "job");
    json_object_update(args, given);
    json_object_set_new(args, "resume", json_true());
    e->arguments = json_dumps(args, JSON_COMPACT);
    e->r->arguments = e->arguments;
    json_decref(doc);
    return e->arguments != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for a job");
}

// Names the entry of request `r`. Arguments that name no model are refused when it is its turn.
static hth_err entry_open(hth_train_queue *q, hth_train_entry *e, hth_request *r)
{
    json_t *args = json_loads(r->arguments != NULL ? r->arguments : "", 0, NULL);
    const char *name = json_string_value(json_object_get(args, "job"));
    hth_err err = HTH_OK;
    e->r = r;
    if (name != NULL) {
        snprintf(e->job, sizeof e->job, "%s", name);
        err = entry_by_name(q, e, args);
    } else if (hth_checkpoint_job(args, e->job) != HTH_OK) {
        e->job[0] = 0;
    }
    json_decref(args);
    return err;
}

void hth_train_queue_add(hth_train_queue *q, hth_request *r)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e), *same;
    hth_err err = e != NULL ? entry_open(q, e, r) : hth_fail(HTH_ENOMEM, "no memory for a job");
    if (err != HTH_OK) {
        hth_free(e);
        q->answer(r, err);
        return;
    }
    same = queue_find(q, e->job);
    if (same != NULL && same->r == &same->own) { // who asks takes it over, from its checkpoint
        queue_end(q, same, hth_fail(HTH_ECANCELED, "'%s' was asked for", e->job));
    }
    queue_append(q, e);
}

void hth_train_queue_resume(hth_train_queue *q)
{
    size_t i;
    json_t *names, *name;
    char note[HTH_CHECKPOINT_NOTE];
    if (hth_checkpoint_list(q->ms->store, &names) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "cannot look for training jobs: %s", hth_err_detail());
        return;
    }
    json_array_foreach(names, i, name)
    {
        hth_checkpoint_note_get(q->ms->store, json_string_value(name), note);
        hth_train_entry *e = note[0] == 0 ? hth_calloc(1, sizeof *e) : NULL;
        if (e == NULL) {
            continue;
        }
        snprintf(e->job, sizeof e->job, "%s", json_string_value(name));
        e->own = (hth_request){.query = "train", .done = own_done};
        e->r = &e->own;
        json_t *none = json_object();
        if (entry_by_name(q, e, none) == HTH_OK) {
            queue_append(q, e);
        } else {
            hth_free(e);
        }
        json_decref(none);
    }
    json_decref(names);
}

bool hth_train_queue_turn(hth_train_queue *q)
{
    bool done = false;
    hth_train_entry *e = q->first;
    if (e == NULL) {
        return false;
    }
    hth_err err;
    if (q->job != NULL) {
        err = hth_train_job_turn(q->job, &done);
    } else if (e->r->canceled) {
        err = hth_fail(HTH_ECANCELED, "canceled while it was queued");
    } else {
        err = hth_train_job_open(q->ms, e->r, &q->job);
        if (err == HTH_OK) {
            hth_checkpoint_note_set(q->ms->store, e->job, "");
        }
    }
    if (err != HTH_OK) {
        queue_failed(q, e, err);
    } else if (done) {
        queue_record(q, e->job, "finished", NULL);
    }
    if (err != HTH_OK || done) {
        queue_end(q, e, err);
    }
    return true;
}

void hth_train_queue_stop(hth_train_queue *q)
{
    while (q->first != NULL) {
        queue_end(q, q->first, hth_fail(HTH_ECANCELED, "the server stops"));
    }
}

// Questions.

// One job: at work, waiting, in the store only, or ended.
static hth_err job_describe(hth_train_queue *q, const char *job, bool history, json_t **out)
{
    json_t *state = NULL;
    char note[HTH_CHECKPOINT_NOTE] = "";
    const hth_train_entry *e = queue_find(q, job);
    hth_err err = queue_state(q, job, &state);
    if (err != HTH_OK && e == NULL) {
        return err == HTH_ENOENT ? hth_ended_find(q->ms->store, job, history, out) : err;
    }
    if (e == NULL) {
        hth_checkpoint_note_get(q->ms->store, job, note);
    }
    const char *word = e == NULL ? "stopped" : e == q->first ? "running" : "waiting";
    *out = job_row(job, word, state, note);
    if (history && state != NULL) {
        json_object_set(*out, "history", json_object_get(state, "history"));
        json_object_set(*out, "held_out", json_object_get(state, "held_out"));
    }
    json_decref(state);
    return HTH_OK;
}

static hth_err queue_list(hth_train_queue *q, json_t **out)
{
    size_t i;
    json_t *row, *names, *name;
    HTH_TRY(hth_checkpoint_list(q->ms->store, &names));
    *out = json_array();
    for (const hth_train_entry *e = q->first; e != NULL; e = e->next) {
        if (job_describe(q, e->job, false, &row) == HTH_OK) {
            json_array_append_new(*out, row);
        }
    }
    json_array_foreach(names, i, name)
    {
        const char *job = json_string_value(name);
        if (queue_find(q, job) == NULL && job_describe(q, job, false, &row) == HTH_OK) {
            json_array_append_new(*out, row);
        }
    }
    json_decref(names);
    return hth_ended_list(q->ms->store, *out);
}

static hth_err queue_cancel(hth_train_queue *q, const char *job, json_t **out)
{
    hth_train_entry *e = queue_find(q, job);
    HTH_TRY(job_describe(q, job, false, out));
    if (!json_is_null(json_object_get(*out, "ended_ns"))) {
        json_decref(*out);
        return hth_fail(HTH_EINVAL, "job '%s' has ended already", job);
    }
    json_object_set_new(*out, "state", json_string("canceled"));
    if (!json_is_null(json_object_get(*out, "step"))) { // else it never began
        queue_record(q, job, "canceled", NULL);
    }
    if (e != NULL) {
        queue_end(q, e, hth_fail(HTH_ECANCELED, "job '%s' was canceled", job));
    }
    hth_err err = hth_checkpoint_rm(q->ms->store, job);
    if (err != HTH_OK) {
        json_decref(*out);
    }
    return err;
}

hth_err hth_train_queue_query(hth_train_queue *q, hth_request *r, bool *known)
{
    bool list = strcmp(r->query, "jobs") == 0, cancel = strcmp(r->query, "cancel") == 0;
    json_t *doc = NULL;
    *known = list || cancel || strcmp(r->query, "job") == 0;
    if (!*known) {
        return HTH_OK;
    }
    json_t *args = json_loads(r->arguments != NULL ? r->arguments : "", 0, NULL);
    const char *job = json_string_value(json_object_get(args, "job"));
    job = job != NULL ? job : "";
    hth_err err = list     ? queue_list(q, &doc)
                  : cancel ? queue_cancel(q, job, &doc)
                           : job_describe(q, job, true, &doc);
    json_decref(args);
    HTH_TRY(err);
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    r->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return r->json != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for an answer");
}
