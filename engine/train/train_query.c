// SPDX-License-Identifier: Apache-2.0
// Commands about training jobs: a function query_NAME for each row of HTH_COMMANDS_JOBS
// (runtime/command.h). They come between two steps: what changes a job, changes it there.
#include "engine/train/train_queue.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/train/train_ended.h"
#include "engine/train/train_entry_impl.h"
#include "engine/train/train_eval.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- whose jobs

// query_mine tells whether a job of that tenant's is one that `r` may be told about, and may
// change.
static bool query_mine(const hth_request *r, const char *tenant)
{
    return r->admin || r->tenant == NULL || (tenant != NULL && strcmp(tenant, r->tenant) == 0);
}

static hth_err query_others(const char *job)
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
    json_t *doc = NULL;
    char tenant[HTH_TENANT] = "";
    if (e != NULL) {
        return query_mine(request, e->of) ? HTH_OK : query_others(job);
    }
    hth_err err = hth_checkpoint_find(queue->ms->store, job, &doc);
    if (err == HTH_OK) {
        hth_checkpoint_tenant(json_object_get(doc, "job"), tenant);
    }
    json_decref(doc);
    return err == HTH_OK && !query_mine(request, tenant) ? query_others(job) : err;
}

// query_may: what has no checkpoint and is not in the queue is nobody's so far.
static hth_err query_may(const hth_train_queue *q, const char *job, const hth_request *r)
{
    hth_err err = hth_train_queue_may(q, job, r);
    return err == HTH_ENOENT ? HTH_OK : err;
}

// query_ended_may is the same for the row of a job that has ended.
static hth_err query_ended_may(const json_t *row, const char *job, const hth_request *r)
{
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    return query_mine(r, tenant) ? HTH_OK : query_others(job);
}

// ---- rows

// Where a job stands: at work, or when it made its last checkpoint. HTH_ENOENT: neither.
static hth_err query_state(const hth_train_queue *q, const char *job, json_t **out)
{
    if (!hth_train_entry_works(q, hth_train_queue_find(q, job))) {
        return hth_checkpoint_find(q->ms->store, job, out);
    }
    *out = hth_train_job_state(hth_train_queue_find(q, job)->work);
    return *out != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory to describe a job");
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

// query_tenant is whose a job is that is in the queue, or stands like this.
static void query_tenant(const hth_train_entry *e, const json_t *state, char out[HTH_TENANT])
{
    if (e != NULL) {
        snprintf(out, HTH_TENANT, "%s", e->of);
    } else {
        hth_checkpoint_tenant(json_object_get(state, "job"), out);
    }
}

void hth_train_queue_record(hth_train_queue *queue, const char *job, const char *word,
                            const char *why)
{
    json_t *state = NULL;
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    hth_err err = query_state(queue, job, &state);
    if (err == HTH_ENOENT && e != NULL) { // it never came to a step here: what was asked for
        state = json_pack("{s:o?}", "job", json_loads(e->r->arguments, 0, NULL));
        err = HTH_OK;
    }
    if (err == HTH_OK) {
        char tenant[HTH_TENANT];
        query_tenant(e, state, tenant);
        json_t *row = job_row(job, tenant, word, state, why);
        err = hth_ended_add(queue->ms->store, row, state);
        json_decref(row);
    }
    json_decref(state);
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "no record of job '%s': %s", job, hth_err_detail());
    }
}

static const char *job_word(const hth_train_queue *q, const hth_train_entry *e, char *note)
{
    if (e == NULL && strcmp(note, HTH_TRAIN_PAUSED) == 0) {
        note[0] = 0;
        return "paused";
    }
    if (e != NULL && e->work == NULL && !e->paused && e->tried > 0) {
        snprintf(note, HTH_CHECKPOINT_NOTE, "%s", e->why);
        return HTH_TRAIN_QUEUED;
    }
    if (e == NULL) {
        return "stopped";
    }
    if (e->paused) {
        return "paused";
    }
    return e->work != NULL ? "running" : "waiting";
}

// One job: at work, waiting, in the store only, or ended.
static hth_err job_describe(hth_train_queue *q, const hth_request *r, const char *job, bool history,
                            json_t **out)
{
    json_t *state = NULL;
    char note[HTH_CHECKPOINT_NOTE] = "";
    const hth_train_entry *e = hth_train_queue_find(q, job);
    hth_err err = query_state(q, job, &state);
    if (err != HTH_OK && e == NULL) {
        HTH_TRY(err == HTH_ENOENT ? hth_ended_find(q->ms->store, job, history, out) : err);
        err = query_ended_may(*out, job, r);
        if (err != HTH_OK) {
            json_decref(*out);
        }
        return err;
    }
    char tenant[HTH_TENANT];
    query_tenant(e, state, tenant);
    if (!query_mine(r, tenant)) {
        json_decref(state);
        return query_others(job);
    }
    if (e == NULL) {
        hth_checkpoint_note_get(q->ms->store, job, note);
    }
    const char *word = job_word(q, e, note);
    if (e != NULL && e->work != NULL) {
        snprintf(note, sizeof note, "%s", hth_train_job_trouble(e->work));
    }
    *out = job_row(job, tenant, word, state, note);
    if (e != NULL && e->id > 0) { // has no step yet, perhaps
        json_object_set_new(*out, "id", json_integer(e->id));
    }
    if (history && state != NULL) {
        json_object_set(*out, "history", json_object_get(state, "history"));
        json_object_set(*out, "held_out", json_object_get(state, "held_out"));
        hth_train_details(state, *out);
    }
    json_decref(state);
    return HTH_OK;
}

static hth_err query_jobs(hth_train_queue *q, const hth_request *r, const char *none, json_t *args,
                          json_t **out)
{
    size_t i;
    json_t *row, *names, *name, *ended = json_array();
    HTH_TRY(hth_checkpoint_list(q->ms->store, &names));
    *out = json_array();
    for (const hth_train_entry *e = q->first; e != NULL; e = e->next) {
        if (job_describe(q, r, e->job, false, &row) == HTH_OK) {
            json_array_append_new(*out, row);
        }
    }
    json_array_foreach(names, i, name)
    {
        const char *job = json_string_value(name);
        if (hth_train_queue_find(q, job) == NULL &&
            job_describe(q, r, job, false, &row) == HTH_OK) {
            json_array_append_new(*out, row);
        }
    }
    json_decref(names);
    hth_err err = hth_ended_list(q->ms->store, ended);
    json_array_foreach(ended, i, row)
    {
        if (query_mine(r, json_string_value(json_object_get(row, "tenant")))) {
            json_array_append(*out, row);
        }
    }
    json_decref(ended);
    return err;
}

// The row of a job that has not ended.
static hth_err job_live(hth_train_queue *q, const hth_request *r, const char *job, json_t **out)
{
    HTH_TRY(job_describe(q, r, job, false, out));
    if (json_is_null(json_object_get(*out, "ended_ns"))) {
        return HTH_OK;
    }
    json_decref(*out);
    return hth_fail(HTH_EINVAL, "job '%s' has ended already", job);
}

static hth_err query_cancel(hth_train_queue *q, const hth_request *r, const char *job, json_t *args,
                            json_t **out)
{
    hth_train_entry *e = hth_train_queue_find(q, job);
    HTH_TRY(job_live(q, r, job, out));
    json_object_set_new(*out, "state", json_string("canceled"));
    if (!json_is_null(json_object_get(*out, "step"))) { // else it never began
        hth_train_queue_record(q, job, "canceled", NULL);
    }
    if (e != NULL) {
        hth_train_queue_end(q, e, hth_fail(HTH_ECANCELED, "job '%s' was canceled", job),
                            "canceled");
    }
    hth_err err = hth_checkpoint_rm(q->ms->store, job);
    if (err != HTH_OK) {
        json_decref(*out);
    }
    return err;
}

// A job at work becomes its checkpoint; one that waits just does not have its turn.
static hth_err query_pause(hth_train_queue *q, const hth_request *r, const char *job, json_t *args,
                           json_t **out)
{
    hth_train_entry *e = hth_train_queue_find(q, job);
    HTH_TRY(query_may(q, job, r));
    if (e == NULL || e->paused) {
        HTH_TRY(job_live(q, r, job, out));
        const char *word = json_string_value(json_object_get(*out, "state"));
        hth_fail(HTH_EINVAL, "job '%s' is %s", job, word);
        json_decref(*out);
        return HTH_EINVAL;
    }
    if (hth_train_entry_works(q, e)) {
        HTH_TRY(hth_train_job_save(e->work));
        hth_checkpoint_note_set(q->ms->store, job, HTH_TRAIN_PAUSED);
        hth_train_job_free(e->work);
        e->work = NULL;
        q->freed++;
    }
    e->paused = true;
    hth_train_queue_event(q, job, HTH_TRAIN_PAUSED);
    if (e->r->progress != NULL) {
        e->r->progress(e->r, HTH_TRAIN_PAUSED, 0, 1);
    }
    return job_describe(q, r, job, false, out);
}

static hth_err query_resume(hth_train_queue *q, const hth_request *r, const char *job, json_t *args,
                            json_t **out)
{
    hth_train_entry *e = hth_train_queue_find(q, job);
    json_t *meta;
    HTH_TRY(query_may(q, job, r));
    if (e != NULL && !e->paused) {
        return hth_fail(HTH_EINVAL, "job '%s' is %s", job, e->work != NULL ? "running" : "waiting");
    }
    hth_err err = hth_checkpoint_find(q->ms->store, job, &meta);
    if (err == HTH_OK) {
        json_decref(meta);
        HTH_TRY(e != NULL ? hth_train_entry_resume(q, e, args)
                          : hth_train_queue_own(q, job, args, true));
        hth_checkpoint_note_set(q->ms->store, job, "");
    } else if (e == NULL) {
        HTH_TRY(job_live(q, r, job, out)); // ended, or never was
        json_decref(*out);
        return err;
    }
    if (e != NULL) {
        e->paused = false;
    }
    hth_train_queue_event(q, job, "waiting");
    return job_describe(q, r, job, false, out);
}

// A job at work is planned again; one that waits will be planned so.
static hth_err job_budget(hth_train_queue *q, const char *job, const char *budget)
{
    hth_train_entry *e = hth_train_queue_find(q, job);
    if (e == NULL || e->paused) {
        return hth_fail(HTH_EINVAL, "job '%s' does not run; `hearth resume %s --budget %s`", job,
                        job, budget);
    }
    if (hth_train_entry_works(q, e)) {
        q->freed++;
        return hth_train_job_budget(e->work, budget);
    }
    json_t *args = json_loads(e->r->arguments != NULL ? e->r->arguments : "", 0, NULL);
    json_object_set_new(args, "budget", json_string(budget));
    char *text = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    if (text == NULL) {
        return hth_fail(HTH_EINVAL, "job '%s' has no arguments to change", job);
    }
    free(e->arguments);
    e->arguments = text;
    e->r->arguments = text;
    e->tried = 0;
    return HTH_OK;
}

// job_thin leaves at most `most` losses in a job's document.
static void job_thin(json_t *doc, size_t most)
{
    size_t every;
    json_int_t before = json_integer_value(json_object_get(doc, "every"));
    json_t *thin = hth_ended_thin(json_object_get(doc, "history"), most, &every);
    json_object_set_new(doc, "history", thin);
    json_object_set_new(doc, "every", json_integer((before > 0 ? before : 1) * (json_int_t)every));
}

static hth_err query_job(hth_train_queue *q, const hth_request *r, const char *job, json_t *args,
                         json_t **out)
{
    const char *budget = json_string_value(json_object_get(args, "budget"));
    if (budget != NULL) {
        HTH_TRY(job_live(q, r, job, out));
        json_decref(*out);
        HTH_TRY(job_budget(q, job, budget));
    }
    HTH_TRY(job_describe(q, r, job, true, out));
    if (hth_train_entry_works(q, hth_train_queue_find(q, job))) {
        const json_t *m = hth_train_job_memory(hth_train_queue_find(q, job)->work);
        json_object_set(*out, "peak_bytes", json_object_get(m, "peak_bytes"));
        json_object_set(*out, "budget_bytes", json_object_get(m, "budget_bytes"));
        json_t *times = hth_train_job_times(hth_train_queue_find(q, job)->work);
        json_object_update(*out, times);
        json_decref(times);
    }
    json_int_t points = json_integer_value(json_object_get(args, "points"));
    if (points > 0) {
        job_thin(*out, (size_t)points);
    }
    return HTH_OK;
}

// The job that had a step measured last. There may be none: then there are no bars.
static hth_err query_timeline(hth_train_queue *q, const hth_request *r, const char *none,
                              json_t *args, json_t **out)
{
    bool mine = q->timeline != NULL && query_mine(r, q->timeline_tenant);
    const hth_timeline *last = mine ? q->timeline : NULL;
    const char *job = q->timeline_job;
    for (const hth_train_entry *e = q->first; e != NULL; e = e->next) {
        if (e->timeline != NULL && query_mine(r, e->of) &&
            hth_timeline_ns(e->timeline) > (last != NULL ? hth_timeline_ns(last) : 0)) {
            last = e->timeline;
            job = e->job;
        }
    }
    *out = last != NULL ? hth_timeline_json(last, hth_now_ns()) : json_pack("{s:[]}", "bars");
    json_object_set_new(*out, "job", last != NULL ? json_string(job) : json_null());
    return HTH_OK;
}

// query_id is the number of the job of that name which has not ended, 0: it has none, or there is
// none.
static json_int_t query_id(const hth_train_queue *q, const char *job)
{
    const hth_train_entry *e = hth_train_queue_find(q, job);
    json_t *doc = NULL;
    if (e != NULL) {
        return e->id;
    }
    (void)hth_checkpoint_find(q->ms->store, job, &doc);
    json_int_t id = json_integer_value(json_object_get(json_object_get(doc, "job"), "id"));
    json_decref(doc);
    return id;
}

hth_err hth_train_queue_query(hth_train_queue *queue, hth_request *request)
{
    static hth_err (*const answer[HTH_COMMANDS])(hth_train_queue * queue,
                                                 const hth_request *request, const char *job,
                                                 json_t *args, json_t **out) = {
#define JOBS_ROW(ID, name, ...) [HTH_COMMAND_##ID] = query_##name,
        HTH_COMMANDS_JOBS(JOBS_ROW)};
    json_t *doc = NULL;
    assert(answer[request->command] != NULL);
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    const char *job = json_string_value(json_object_get(args, "job"));
    char name[HTH_CHECKPOINT_JOB];
    json_int_t id = json_integer_value(json_object_get(args, "id"));
    snprintf(name, sizeof name, "%s", job != NULL ? job : "");
    if (id > 0 && query_id(queue, name) != id) { // one of before, of that name
        snprintf(name, sizeof name, "%lld", (long long)id);
    }
    hth_err err = answer[request->command](queue, request, name, args, &doc);
    json_decref(args);
    HTH_TRY(err);
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    request->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return request->json != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for an answer");
}
