// SPDX-License-Identifier: Apache-2.0
// What is told of a job, as a JSON object with the same keys of all jobs: where it stands, by the
// queue, its checkpoint, or the record of one that ended; and who may be told that.
#include "engine/train/queue/train_entry_impl.h"

#include "base/log.h"
#include "engine/train/queue/train_ended.h"
#include "engine/train/train_eval.h"
#include "runtime/job_index.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- whose jobs

bool hth_train_row_mine(const hth_request *request, const char *tenant)
{
    return request->admin || request->tenant == NULL ||
           (tenant != NULL && strcmp(tenant, request->tenant) == 0);
}

static hth_err row_others(const char *job)
{
    return hth_fail(HTH_EDENIED,
                    "job '%s' belongs to another tenant: only that tenant, or the role 'admin', "
                    "may see or change it",
                    job);
}

hth_err hth_train_queue_may(const hth_train_queue *queue, const char *job,
                            const hth_request *request)
{
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    json_t *args = NULL;
    char tenant[HTH_TENANT] = "";
    if (e != NULL) {
        return hth_train_row_mine(request, e->of) ? HTH_OK : row_others(job);
    }
    hth_err err = hth_checkpoint_args(queue->ms->store, job, &args);
    if (err == HTH_OK) {
        hth_checkpoint_tenant(args, tenant);
    }
    json_decref(args);
    if (err == HTH_OK && !hth_train_row_mine(request, tenant)) {
        return row_others(job);
    }
    return err;
}

// row_ended_may is the same for the row of a job that has ended.
static hth_err row_ended_may(const json_t *row, const char *job, const hth_request *request)
{
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    return hth_train_row_mine(request, tenant) ? HTH_OK : row_others(job);
}

// ---- rows

// Where a job stands: at work, or when it made its last checkpoint. HTH_ENOENT: neither.
static hth_err row_state(const hth_train_queue *queue, const char *job, json_t **out)
{
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    if (!hth_train_entry_works(queue, e)) {
        return e != NULL ? hth_train_entry_stored(queue, e, out)
                         : hth_checkpoint_find(queue->ms->store, job, out);
    }
    *out = hth_job_state(e->work);
    return *out != NULL ? HTH_OK : hth_no_memory("describing a job");
}

// A job's row from where it stands, which may be NULL. All rows have the same keys.
static json_t *job_row(const char *job, const char *tenant, const char *word, const json_t *state,
                       const char *why)
{
    const json_t *losses = json_object_get(state, "history");
    const json_t *last = json_array_get(losses, json_array_size(losses) - 1);
    const json_t *held = hth_train_held_out(json_object_get(state, "held_out"));
    const json_t *asked = json_object_get(state, "job");
    return json_pack("{s:O?, s:s, s:s, s:s, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:n, s:s?}",
                     "id", json_object_get(asked, "id"), "job", job, "tenant", tenant, "state",
                     word, "model", json_object_get(asked, "model"), "step",
                     json_object_get(state, "step"), "steps", json_object_get(state, "steps"),
                     "loss", json_array_get(last, 0), "held_out_loss",
                     json_object_get(held, "loss"), "accuracy", json_object_get(held, "accuracy"),
                     "version", json_object_get(state, "version"), "ended_ns", "why",
                     why != NULL && why[0] != 0 ? why : NULL);
}

// row_tenant is whose a job is that is in the queue, or stands like this.
static void row_tenant(const hth_train_entry *entry, const json_t *state, char out[HTH_TENANT])
{
    if (entry != NULL) {
        snprintf(out, HTH_TENANT, "%s", entry->of);
    } else {
        hth_checkpoint_tenant(json_object_get(state, "job"), out);
    }
}

// row_record adds to a row what the job's record says. of a job that is not at work, and has ended,
// also when that was.
static void row_record(hth_store *store, json_t *row)
{
    static const char *const keys[] = {"submitted", "started", "ended",     "attempt",
                                       "attempts",  "after",   "time_limit"};
    json_t *record = NULL;
    json_int_t id = json_integer_value(json_object_get(row, "id"));
    (void)hth_job_index_get(store, (uint64_t)id, &record);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(record, keys[i]);
        json_object_set_new(row, keys[i], v != NULL ? json_incref(v) : json_null());
    }
    json_object_set(row, "ended_ns", json_object_get(row, "ended"));
    json_object_set_new(row, "wait_seconds", json_null());
    json_object_set_new(row, "resumable", json_false());
    json_decref(record);
}

static void row_keep(hth_store *store, const char *job, const char *tenant, const char *word,
                     const json_t *state, const char *why)
{
    json_t *row = job_row(job, tenant, word, state, why);
    row_record(store, row);
    hth_err err = hth_ended_add(store, row, state);
    json_decref(row);
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "no record of job '%s': %s", job, hth_err_detail());
    }
}

void hth_train_queue_record(hth_train_queue *queue, const char *job, const char *word,
                            const char *why)
{
    json_t *state = NULL;
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    hth_err err = row_state(queue, job, &state);
    if (err == HTH_ENOENT && e != NULL) { // it never came to a step here: what was asked for
        state = json_pack("{s:o?}", "job", json_loads(e->r->arguments, 0, NULL));
        err = HTH_OK;
    }
    if (err == HTH_OK) {
        char tenant[HTH_TENANT];
        row_tenant(e, state, tenant);
        if (hth_train_entry_works(queue, e)) {
            json_object_set(state, "memory", (json_t *)hth_job_planned(e->work));
        }
        row_keep(queue->ms->store, job, tenant, word, state, why);
    } else {
        hth_log(WARN, SERVER, "train", "no record of job '%s': %s", job, hth_err_detail());
    }
    json_decref(state);
}

void hth_train_queue_replaced(const hth_train_queue *queue, const char *job, const json_t *doc,
                              const char *why)
{
    char tenant[HTH_TENANT];
    const json_t *id = json_object_get(json_object_get(doc, "job"), "id");
    row_tenant(NULL, doc, tenant);
    (void)hth_job_index_set(queue->ms->store, (uint64_t)json_integer_value(id),
                            json_pack("{s:s, s:s, s:I}", "state", "canceled", "why", why, "ended",
                                      (json_int_t)hth_job_index_now()));
    row_keep(queue->ms->store, job, tenant, "canceled", doc, why);
}

// row_lost keeps the record of a job of which nothing else is left.
static void row_lost(hth_store *store, const json_t *record)
{
    char tenant[HTH_TENANT];
    json_t *state = json_pack("{s:{s:O}}", "job", "id", json_object_get(record, "id"));
    hth_checkpoint_tenant(record, tenant);
    row_keep(store, json_string_value(json_object_get(record, "job")), tenant, "canceled", state,
             HTH_JOB_INDEX_LOST);
    json_decref(state);
}

hth_err hth_ended_lost(hth_store *store)
{
    return hth_job_index_lost(store, row_lost);
}

// row_stored is the state of a job that is in the store only; *note becomes why.
static const char *row_stored(hth_store *store, const char *job, const json_t *state, char *note)
{
    const json_t *id = json_object_get(json_object_get(state, "job"), "id");
    json_t *record = NULL;
    hth_checkpoint_note_get(store, job, note);
    if (strcmp(note, HTH_TRAIN_PAUSED) == 0) {
        note[0] = 0;
        return "paused";
    }
    if (note[0] == 0) {
        return "stopped"; // with its server: the next one goes on with it
    }
    (void)hth_job_index_get(store, (uint64_t)json_integer_value(id), &record);
    const char *word = json_string_value(json_object_get(record, "state"));
    bool canceled = word != NULL && strcmp(word, "canceled") == 0;
    json_decref(record);
    return canceled ? "canceled" : "failed";
}

const char *hth_train_row_word(const hth_train_entry *entry)
{
    if (entry->paused) {
        return "paused";
    }
    if (entry->work != NULL) {
        return "running";
    }
    bool queued = entry->gate == HTH_TRAIN_GATE_TENANT || entry->gate == HTH_TRAIN_GATE_GROUP ||
                  (entry->gate == HTH_TRAIN_GATE_NONE && entry->tried > 0);
    return queued ? HTH_TRAIN_QUEUED : "waiting";
}

// row_live describes a job in the queue: where it stands, which may be NULL, and what it waits for.
static json_t *row_live(const hth_train_queue *queue, const hth_train_entry *entry,
                        const char *tenant, const json_t *state)
{
    char why[HTH_CHECKPOINT_NOTE] = "";
    double seconds = NAN;
    if (entry->work != NULL) {
        snprintf(why, sizeof why, "%s", hth_job_trouble(entry->work));
    } else if (!entry->paused) {
        seconds = hth_train_wait_why(queue, entry, why);
    }
    json_t *row = job_row(entry->job, tenant, hth_train_row_word(entry), state, why);
    if (entry->id > 0) { // has no step yet, perhaps
        json_object_set_new(row, "id", json_integer(entry->id));
    }
    row_record(queue->ms->store, row);
    json_object_set_new(row, "ended", json_null());
    json_object_set_new(row, "ended_ns", json_null());
    json_object_set_new(row, "resumable", json_boolean(entry->paused));
    json_object_set_new(row, "wait_seconds",
                        isnan(seconds) || isinf(seconds) ? json_null() : json_real(seconds));
    return row;
}

static hth_err row_ended(hth_train_queue *queue, const hth_request *request, const char *job,
                         bool history, json_t **out)
{
    HTH_TRY(hth_ended_find(queue->ms->store, job, history, out));
    hth_err err = row_ended_may(*out, job, request);
    if (err != HTH_OK) {
        json_decref(*out);
    }
    return err;
}

hth_err hth_train_row_get(hth_train_queue *queue, const hth_request *request, const char *job,
                          bool history, json_t **out)
{
    json_t *state = NULL;
    char note[HTH_CHECKPOINT_NOTE] = "", tenant[HTH_TENANT];
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    hth_err err = row_state(queue, job, &state);
    if (err != HTH_OK && e == NULL) {
        return err == HTH_ENOENT ? row_ended(queue, request, job, history, out) : err;
    }
    row_tenant(e, state, tenant);
    if (!hth_train_row_mine(request, tenant)) {
        json_decref(state);
        return row_others(job);
    }
    if (e != NULL) {
        *out = row_live(queue, e, tenant, state);
    } else {
        const char *word = row_stored(queue->ms->store, job, state, note);
        *out = job_row(job, tenant, word, state, note);
        row_record(queue->ms->store, *out);
        json_object_set_new(*out, "resumable", json_true());
    }
    if (history && state != NULL) {
        json_object_set(*out, "history", json_object_get(state, "history"));
        json_object_set(*out, "held_out", json_object_get(state, "held_out"));
        hth_train_details(state, *out);
    }
    json_decref(state);
    return HTH_OK;
}
