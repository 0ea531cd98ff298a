// SPDX-License-Identifier: Apache-2.0
// Commands about training jobs: a function query_NAME for each row of HTH_COMMANDS_JOBS
// (runtime/command.h). They come between two steps: what changes a job, changes it there.
#include "engine/train/queue/train_queue.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/train/queue/train_ended.h"
#include "engine/train/queue/train_entry_impl.h"
#include "runtime/job_index.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// query_may: what has no checkpoint and is not in the queue is nobody's so far.
static hth_err query_may(const hth_train_queue *queue, const char *job, const hth_request *request)
{
    hth_err err = hth_train_queue_may(queue, job, request);
    return err == HTH_ENOENT ? HTH_OK : err;
}

// ---- lists

// jobs_unnamed is all that is told of others' jobs: that there is one, its state, and what it holds
// of the device.
static json_t *jobs_unnamed(const hth_train_entry *entry)
{
    json_t *times = entry->work != NULL ? hth_job_times(entry->work) : NULL;
    json_t *row = json_pack("{s:n, s:n, s:n, s:s, s:O?, s:n}", "id", "job", "tenant", "state",
                            hth_train_row_word(entry), "memory_bytes",
                            json_object_get(times, "memory_bytes"), "ended_ns");
    json_decref(times);
    return row;
}

// jobs_has tells whether a list has the job of that number.
static bool jobs_has(const json_t *list, const json_t *id)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)list, i, row)
    {
        if (json_is_integer(id) && json_equal(json_object_get(row, "id"), id)) {
            return true;
        }
    }
    return false;
}

// jobs_ended adds the jobs that have ended; `kept` names those of them that can be resumed.
static void jobs_ended(json_t *list, const json_t *ended, const json_t *kept,
                       const hth_request *asks)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)ended, i, row)
    {
        const json_t *id = json_object_get(row, "id");
        if (!jobs_has(list, id) &&
            hth_train_row_mine(asks, json_string_value(json_object_get(row, "tenant")))) {
            json_object_set_new(row, "resumable", json_boolean(jobs_has(kept, id)));
            json_array_append(list, row);
        }
    }
}

// jobs_stored adds the jobs that are in the store only. What ended with a checkpoint is told of
// from its record, which has no losses to read; those go to `kept`.
static void jobs_stored(hth_train_queue *queue, const hth_request *asks, const json_t *ended,
                        json_t *list, json_t *kept)
{
    size_t i;
    json_t *names, *name, *args, *row;
    char note[HTH_CHECKPOINT_NOTE];
    if (hth_checkpoint_list(queue->ms->store, &names) != HTH_OK) {
        return;
    }
    json_array_foreach(names, i, name)
    {
        const char *job = json_string_value(name);
        if (hth_train_queue_find(queue, job) != NULL ||
            hth_checkpoint_args(queue->ms->store, job, &args) != HTH_OK) {
            continue;
        }
        const json_t *id = json_object_get(args, "id");
        hth_checkpoint_note_get(queue->ms->store, job, note);
        if (note[0] != 0 && strcmp(note, HTH_TRAIN_PAUSED) != 0 && jobs_has(ended, id)) {
            json_array_append_new(kept, json_pack("{s:O}", "id", id));
        } else if (hth_train_row_get(queue, asks, job, false, &row) == HTH_OK) {
            json_array_append_new(list, row);
        }
        json_decref(args);
    }
    json_decref(names);
}

// "mine": only the caller's own, also where it may see others'. "all": of others', too, that they
// are there.
static hth_err query_jobs(hth_train_queue *queue, const hth_request *request, const char *none,
                          json_t *args, json_t **out)
{
    json_t *row, *ended = json_array(), *kept = json_array();
    bool all = json_is_true(json_object_get(args, "all"));
    hth_request asks = *request; // by what it is to be told
    asks.admin = request->admin && !json_is_true(json_object_get(args, "mine"));
    *out = json_array();
    for (const hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e->member) {
            continue; // its lead's row tells of it
        }
        if (hth_train_row_get(queue, &asks, e->job, false, &row) == HTH_OK) {
            json_array_append_new(*out, row);
        } else if (all) {
            json_array_append_new(*out, jobs_unnamed(e));
        }
    }
    hth_err err = hth_ended_list(queue->ms->store, ended);
    if (err == HTH_OK) {
        jobs_stored(queue, &asks, ended, *out, kept);
        jobs_ended(*out, ended, kept, &asks);
    } else {
        json_decref(*out);
    }
    json_decref(kept);
    json_decref(ended);
    return err;
}

// ---- changes

// The row of a job that has not ended, or can be resumed.
static hth_err job_live(hth_train_queue *queue, const hth_request *request, const char *job,
                        json_t **out)
{
    HTH_TRY(hth_train_row_get(queue, request, job, false, out));
    if (json_is_null(json_object_get(*out, "ended_ns")) ||
        json_is_true(json_object_get(*out, "resumable"))) {
        return HTH_OK;
    }
    json_decref(*out);
    return hth_fail(HTH_EINVAL, "job '%s' has ended already", job);
}

// cancel_stored cancels a job that is nothing but its checkpoint.
static hth_err cancel_stored(hth_train_queue *queue, const char *job, const json_t *row,
                             const char *why)
{
    json_int_t id = json_integer_value(json_object_get(row, "id"));
    HTH_TRY(hth_job_index_set(queue->ms->store, (uint64_t)id,
                              json_pack("{s:s, s:s, s:I}", "state", "canceled", "why", why, "ended",
                                        (json_int_t)hth_job_index_now())));
    hth_train_queue_record(queue, job, "canceled", why);
    hth_checkpoint_note_set(queue->ms->store, job, why);
    return json_integer_value(json_object_get(row, "step")) > 0
               ? HTH_OK
               : hth_checkpoint_rm(queue->ms->store, job);
}

// A canceled job keeps a checkpoint of where it stands.
static hth_err query_cancel(hth_train_queue *queue, const hth_request *request, const char *job,
                            json_t *args, json_t **out)
{
    char why[HTH_CHECKPOINT_JOB + 80];
    hth_train_entry *e = hth_train_queue_find(queue, job);
    HTH_TRY(job_live(queue, request, job, out));
    json_int_t step = json_integer_value(json_object_get(*out, "step"));
    if (strcmp(json_string_value(json_object_get(*out, "state")), "canceled") == 0) {
        json_decref(*out);
        return hth_fail(HTH_EINVAL, "job '%s' has ended already", job);
    }
    bool saved = step > 0 && (e == NULL || e->work == NULL || hth_job_save(e->work) == HTH_OK);
    if (step > 0 && !saved) {
        hth_log(WARN, SERVER, "train", "job '%s' is canceled: %s", job, hth_err_detail());
    }
    snprintf(why, sizeof why,
             saved ? "job '%s' was canceled after step %lld, which is saved"
                   : "job '%s' was canceled",
             job, (long long)step);
    json_object_set_new(*out, "state", json_string("canceled"));
    json_object_set_new(*out, "why", json_string(why));
    json_object_set_new(*out, "resumable", json_boolean(saved));
    if (e == NULL) {
        hth_err err = cancel_stored(queue, job, *out, why);
        if (err != HTH_OK) {
            json_decref(*out);
        }
        return err;
    }
    hth_err err = hth_fail(HTH_ECANCELED, "%s", why);
    hth_train_queue_end(queue, e, err, hth_train_queue_failed(queue, e, err));
    return HTH_OK;
}

// A job at work becomes its checkpoint; one that waits just does not have its turn.
static hth_err query_pause(hth_train_queue *queue, const hth_request *request, const char *job,
                           json_t *args, json_t **out)
{
    hth_train_entry *e = hth_train_queue_find(queue, job);
    HTH_TRY(query_may(queue, job, request));
    if (e == NULL || e->paused) {
        HTH_TRY(job_live(queue, request, job, out));
        const char *word = json_string_value(json_object_get(*out, "state"));
        hth_fail(HTH_EINVAL, "job '%s' is %s already", job, word);
        json_decref(*out);
        return HTH_EINVAL;
    }
    if (hth_train_entry_works(queue, e)) {
        HTH_TRY(hth_job_save(e->work));
        hth_checkpoint_note_set(queue->ms->store, job, HTH_TRAIN_PAUSED);
        hth_job_free(e->work);
        e->work = NULL;
        queue->freed++;
    } else if (hth_train_entry_kept(queue, e)) {
        hth_checkpoint_note_set(queue->ms->store, job, HTH_TRAIN_PAUSED);
    }
    hth_train_fair_forget(queue, e);
    e->paused = true;
    hth_train_gang_pause(e);
    hth_train_entry_number(queue, e);
    hth_train_entry_state(queue, e, HTH_TRAIN_PAUSED, NULL);
    hth_train_queue_event(queue, job, HTH_TRAIN_PAUSED);
    if (e->r->progress != NULL) {
        e->r->progress(e->r, HTH_TRAIN_PAUSED, 0, 1);
    }
    return hth_train_row_get(queue, request, job, false, out);
}

// resume_takes removes what was not checked: the command ignores it, and a job's arguments have
// members of their own, such as the numbers of the jobs it follows.
static void resume_takes(json_t *args)
{
    const hth_command_row *row = hth_command_get(HTH_COMMAND_RESUME);
    json_t *taken = json_object();
    for (int i = 0; i < HTH_ARGUMENTS; i++) {
        const char *name = hth_argument_name((hth_argument)i);
        if ((row->takes >> i & 1) != 0) {
            json_object_set(taken, name, json_object_get(args, name));
        }
    }
    json_object_clear(args);
    json_object_update(args, taken);
    json_decref(taken);
}

static hth_err query_resume(hth_train_queue *queue, const hth_request *request, const char *job,
                            json_t *args, json_t **out)
{
    hth_train_entry *e = hth_train_queue_find(queue, job);
    json_t *meta;
    HTH_TRY(query_may(queue, job, request));
    resume_takes(args);
    if (e != NULL && !e->paused) {
        return hth_fail(HTH_EINVAL, "job '%s' is %s", job, e->work != NULL ? "running" : "waiting");
    }
    hth_err err = e != NULL ? hth_train_entry_stored(queue, e, &meta) // not an older job's
                            : hth_checkpoint_find(queue->ms->store, job, &meta);
    if (err == HTH_OK) {
        json_decref(meta);
        HTH_TRY(e != NULL ? hth_train_entry_resume(queue, e, args)
                          : hth_train_queue_own(queue, job, args, true));
        hth_checkpoint_note_set(queue->ms->store, job, "");
    } else if (e == NULL) {
        HTH_TRY(job_live(queue, request, job, out)); // ended, or never was
        json_decref(*out);
        return err;
    }
    e = hth_train_queue_find(queue, job);
    if (e != NULL) {
        e->paused = false;
        hth_train_gang_pause(e);
        hth_train_entry_number(queue, e);
        hth_train_entry_state(queue, e, "waiting", "resumed");
    }
    hth_train_queue_event(queue, job, "waiting");
    return hth_train_row_get(queue, request, job, false, out);
}

// A job at work is planned again, also in another attempt; one that waits will be planned so.
static hth_err job_budget(hth_train_queue *queue, const char *job, const char *budget)
{
    hth_train_entry *e = hth_train_queue_find(queue, job);
    if (e == NULL || e->paused) {
        return hth_fail(HTH_EINVAL, "job '%s' does not run; `hearth resume %s --budget %s`", job,
                        job, budget);
    }
    if (hth_train_entry_works(queue, e)) {
        queue->freed++;
        hth_err err = hth_job_budget(e->work, budget);
        hth_train_fair_began(queue, e);
        HTH_TRY(err);
        if (e->leaving != HTH_TRAIN_SHRINKS) { // what it would leave is written with the old budget
            e->leaving = HTH_TRAIN_STAYS;
        }
        return hth_train_entry_set(e, "budget", json_string(budget));
    }
    hth_train_fair_forget(queue, e);
    HTH_TRY(hth_train_entry_set(e, "budget", json_string(budget)));
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

// job_times adds to a row what a job at work takes, and when it ends in its turns.
static void job_times(const hth_train_queue *queue, const hth_train_entry *entry, json_t *row)
{
    const json_t *m = hth_job_planned(entry->work);
    json_t *times = hth_job_times(entry->work);
    hth_train_turn_predict(queue);
    double left_s = entry->paused ? NAN : hth_train_turn_left(queue, entry);
    json_object_set(row, "peak_bytes", json_object_get(m, "peak_bytes"));
    json_object_set(row, "budget_bytes", json_object_get(m, "budget_bytes"));
    json_object_update(row, times);
    json_object_set_new(row, "seconds_left", isnan(left_s) ? json_null() : json_real(left_s));
    json_decref(times);
}

static hth_err query_job(hth_train_queue *queue, const hth_request *request, const char *job,
                         json_t *args, json_t **out)
{
    const char *budget = json_string_value(json_object_get(args, "budget"));
    if (budget != NULL) {
        HTH_TRY(job_live(queue, request, job, out));
        json_decref(*out);
        HTH_TRY(job_budget(queue, job, budget));
    }
    HTH_TRY(hth_train_row_get(queue, request, job, true, out));
    if (hth_train_entry_works(queue, hth_train_queue_find(queue, job))) {
        job_times(queue, hth_train_queue_find(queue, job), *out);
    }
    json_int_t points = json_integer_value(json_object_get(args, "points"));
    if (points > 0) {
        job_thin(*out, (size_t)points);
    }
    return HTH_OK;
}

// "after": the number of the last line that the caller has; "max": how many it wants.
static hth_err query_logs(hth_train_queue *queue, const hth_request *request, const char *job,
                          json_t *args, json_t **out)
{
    json_t *row;
    const json_t *most = json_object_get(args, "max");
    json_int_t after = json_integer_value(json_object_get(args, "after"));
    HTH_TRY(hth_train_row_get(queue, request, job, false, &row));
    json_int_t id = json_integer_value(json_object_get(row, "id"));
    json_decref(row);
    if (most != NULL && json_integer_value(most) < 1) {
        return hth_fail(HTH_EINVAL, "'max' must be a number of lines, 1 at least");
    }
    size_t max = most != NULL ? (size_t)json_integer_value(most) : SIZE_MAX;
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    hth_job_log *log = NULL;
    if (e == NULL || e->log == NULL) {
        HTH_TRY(hth_job_log_open(queue->ms->store, (uint64_t)id, &log));
    }
    *out = hth_job_log_lines(log != NULL ? log : e->log, after, max);
    hth_job_log_close(log);
    return *out != NULL ? HTH_OK : hth_no_memory("a job's log");
}

// The job that had a step measured last. There may be none: then there are no bars.
static hth_err query_timeline(hth_train_queue *queue, const hth_request *request, const char *none,
                              json_t *args, json_t **out)
{
    bool mine = queue->timeline != NULL && hth_train_row_mine(request, queue->timeline_tenant);
    const hth_timeline *last = mine ? queue->timeline : NULL;
    const char *job = queue->timeline_job;
    for (const hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e->timeline != NULL && hth_train_row_mine(request, e->of) &&
            hth_timeline_ns(e->timeline) > (last != NULL ? hth_timeline_ns(last) : 0)) {
            last = e->timeline;
            job = e->job;
        }
    }
    *out = last != NULL ? hth_timeline_json(last, hth_now_ns()) : json_pack("{s:[]}", "bars");
    json_object_set_new(*out, "job", last != NULL ? json_string(job) : json_null());
    return HTH_OK;
}

// What each tenant has of the device, and what its jobs wait for.
static hth_err query_shares(hth_train_queue *queue, const hth_request *request, const char *none,
                            json_t *args, json_t **out)
{
    return hth_train_shares(queue, request, out);
}

// query_id is the number of the job of that name which has not ended, 0: it has none, or there is
// none.
static json_int_t query_id(const hth_train_queue *queue, const char *job)
{
    const hth_train_entry *e = hth_train_queue_find(queue, job);
    json_t *args = NULL;
    if (e != NULL) {
        return e->id;
    }
    (void)hth_checkpoint_args(queue->ms->store, job, &args);
    json_int_t id = json_integer_value(json_object_get(args, "id"));
    json_decref(args);
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
    return request->json != NULL ? HTH_OK : hth_no_memory("an answer");
}
