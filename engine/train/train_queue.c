// SPDX-License-Identifier: Apache-2.0
// Jobs are known by the model that they make. What ends one decides about its checkpoint: finished
// or canceled by name, it is removed; failed or left by its client, it stays with a note and waits
// to be asked for; stopped with the server, it stays without one and is gone on with. A job of
// which no checkpoint is left has ended, and is kept as a record. A paused job is nothing but its
// checkpoint, and a place in the queue for who waits for it.
#include "engine/train/train_queue.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/train/train_entry_impl.h"
#include "runtime/content/dataset_index.h"
#include "runtime/job_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_EVENT_NS 50000000u // from one event about steps to the next, at least
// Deaths of the engine's process while it was at work on a job: more are no accident.
#define QUEUE_MAX_CRASHES 3

hth_train_entry *hth_train_queue_find(const hth_train_queue *queue, const char *job)
{
    hth_train_entry *e = queue->first;
    while (e != NULL && strcmp(e->job, job) != 0) {
        e = e->next;
    }
    return e;
}

void hth_train_queue_event(const hth_train_queue *queue, const char *job, const char *word)
{
    char text[60];
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", word);
    if (queue->event != NULL) {
        queue->event(queue->event_ctx, job, text, 0, 1);
    }
}

// Steps of the job at work, as often as somebody could look at them, and its last one.
static void queue_event(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const hth_train_queue *q = ctx;
    hth_train_entry *e = q->active;
    uint64_t now = hth_now_ns();
    if (q->event != NULL && (now - e->reported_ns >= QUEUE_EVENT_NS || done == total)) {
        e->reported_ns = now;
        q->event(q->event_ctx, e->job, what, done, total);
    }
}

// queue_take tells who leaves its job here that it is taken: from now on its end is known from its
// record.
static void queue_take(hth_train_entry *e, const char *word)
{
    char text[60];
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", word);
    if (e->leaves && !e->taken && e->r->progress != NULL) {
        e->r->progress(e->r, text, 1, 1);
    }
    e->taken = e->leaves;
}

// entry_own tells that no client waits for a job: the server itself does.
static bool entry_own(const hth_train_entry *e)
{
    return e->r->own;
}

static void queue_append(hth_train_queue *q, hth_train_entry *e)
{
    hth_train_entry **last = &q->first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = e;
    snprintf(e->of, sizeof e->of, "%s", e->r->tenant != NULL ? e->r->tenant : HTH_TENANT_OWN);
    e->tenant = e->tenant != NULL ? e->tenant : hth_tenant_of(q->ms->site->tenants, e->r->tenant);
    if (e->tenant != NULL) {
        e->tenant->jobs++;
    }
}

// queue_keep keeps the timeline of a job that ends in the place of an older one.
static void queue_keep(hth_train_queue *q, hth_train_entry *e)
{
    if (e->timeline == NULL || hth_timeline_ns(e->timeline) == 0) {
        hth_timeline_close(e->timeline);
        return;
    }
    hth_timeline_close(q->timeline);
    q->timeline = e->timeline;
    snprintf(q->timeline_job, sizeof q->timeline_job, "%s", e->job);
    snprintf(q->timeline_tenant, sizeof q->timeline_tenant, "%s", e->of);
}

// queue_drop_own removes datasets that came with the job, unless it is to go on with them.
static void queue_drop_own(hth_train_queue *q, const hth_train_entry *e)
{
    json_t *args = e->r->arguments != NULL ? json_loads(e->r->arguments, 0, NULL) : NULL;
    hth_dataset_drop_own(q->ms->store, args, e->of);
    json_decref(args);
}

void hth_train_queue_end(hth_train_queue *queue, hth_train_entry *entry, hth_err err,
                         const char *word)
{
    char detail[HTH_CHECKPOINT_NOTE];
    hth_train_entry **at = &queue->first;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    queue->freed += entry->work != NULL;
    hth_train_job_free(entry->work);
    queue->active = entry == queue->active ? NULL : queue->active;
    while (*at != entry) {
        at = &(*at)->next;
    }
    *at = entry->next;
    if (entry->tenant != NULL) {
        entry->tenant->jobs--;
    }
    if (word != NULL) {
        hth_train_queue_event(queue, entry->job, word);
    }
    queue_drop_own(queue, entry);
    queue->answer(entry->r, err != HTH_OK ? hth_fail(err, "%s", detail) : HTH_OK);
    queue_keep(queue, entry);
    free(entry->arguments);
    hth_free(entry);
}

// Of a job that failed or was left, the checkpoint stays with the reason next to it, or there is
// none and it has ended. One that could not even be made ready, here or in a process that died, is
// answered to the client, if somebody still waits. Returns the job's state.
static const char *queue_failed(hth_train_queue *q, const hth_train_entry *e, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    const char *word = err == HTH_ECANCELED ? "canceled" : "failed";
    json_t *meta;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool before = e->work == NULL && e->r->crashes > 0; // it was at work in a process that died
    bool saved = e->work != NULL ? hth_train_job_saved(e->work) >= 0 : before || e->r == &e->own;
    if (saved && hth_checkpoint_find(q->ms->store, e->job, &meta) == HTH_OK) {
        hth_checkpoint_note_set(q->ms->store, e->job, detail);
        json_decref(meta);
        word = "stopped";
    } else if (e->work != NULL || before || e->taken) {
        hth_train_queue_record(q, e->job, word, detail);
    }
    hth_fail(err, "%s", detail);
    return word;
}

// Entries.

static void own_done(hth_request *r)
{
    if (r->err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "resumed job failed: %s", r->detail);
    }
    hth_free(r->json);
}

static void entry_read(hth_train_entry *e, const json_t *args)
{
    e->id = json_integer_value(json_object_get(args, "id"));
    e->leaves = json_is_true(json_object_get(args, "detach"));
}

// The arguments of a job asked for by name are its checkpoint's, and what is given with it.
hth_err hth_train_entry_resume(hth_train_queue *queue, hth_train_entry *entry, json_t *given)
{
    json_t *doc;
    HTH_TRY(hth_checkpoint_find(queue->ms->store, entry->job, &doc));
    json_t *args = json_object_get(doc, "job");
    hth_checkpoint_tenant(args, entry->owner);
    json_object_del(given, "job");
    json_object_del(given, "id");
    json_object_del(args, "detach"); // was said about another request
    json_object_update(args, given);
    json_object_set_new(args, "resume", json_true());
    uint64_t id;
    if (json_object_get(args, "id") == NULL && // submitted when jobs had no numbers yet
        hth_job_index_add(queue->ms->store, entry->job, entry->owner, &id) == HTH_OK) {
        json_object_set_new(args, "id", json_integer((json_int_t)id));
    }
    entry_read(entry, args);
    free(entry->arguments);
    entry->arguments = json_dumps(args, JSON_COMPACT);
    entry->r->arguments = entry->arguments;
    entry->tried = 0;
    json_decref(doc);
    return entry->arguments != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for a job");
}

// Names the entry of request `r`. Arguments that name no model are refused when it is its turn.
static hth_err entry_open(hth_train_queue *q, hth_train_entry *e, hth_request *r)
{
    json_t *args = json_loads(r->arguments != NULL ? r->arguments : "", 0, NULL);
    const char *name = json_string_value(json_object_get(args, "job"));
    hth_err err = HTH_OK;
    e->r = r;
    entry_read(e, args);
    if (name != NULL) {
        snprintf(e->job, sizeof e->job, "%s", name);
        err = hth_train_queue_may(q, e->job, r);
        err = err == HTH_OK || err == HTH_ENOENT ? hth_train_entry_resume(q, e, args) : err;
    } else if (hth_checkpoint_job(args, e->job) != HTH_OK) {
        e->job[0] = 0;
    } else {
        err = hth_train_queue_may(q, e->job, r);
        // nobody's so far; what can be no name is refused when it is its turn
        err = err == HTH_ENOENT ? HTH_OK : err;
    }
    const hth_train_entry *same = hth_train_queue_find(q, e->job);
    bool taken = same != NULL && (!entry_own(same) || (same->paused && same->work != NULL));
    if (err == HTH_OK && e->job[0] != 0 && taken) {
        const char *state = same->work != NULL ? "running" : "waiting";
        state = same->paused ? "paused" : state;
        err = hth_fail(HTH_EBUSY, "job '%s' is %s already; --save-as gives this job another name",
                       e->job, state);
    }
    json_decref(args);
    return err;
}

// queue_again is for a job whose process died while it was at work: one that was paused stays so,
// and one with which process after process died is left for somebody to look at.
static void queue_again(hth_train_queue *q, hth_train_entry *e)
{
    char note[HTH_CHECKPOINT_NOTE];
    hth_checkpoint_note_get(q->ms->store, e->job, note);
    e->paused = strcmp(note, HTH_TRAIN_PAUSED) == 0;
    if (!e->paused && e->r->crashes >= QUEUE_MAX_CRASHES) {
        hth_err err = hth_fail(
            HTH_EIO,
            "the engine process died %u times while job '%s' was at work: it is not retried",
            (unsigned)e->r->crashes, e->job);
        hth_log(ERROR, SERVER, "train", "%s", hth_err_detail());
        hth_train_queue_end(q, e, err, queue_failed(q, e, err));
    }
}

// queue_waits returns the job that has waited longest to begin, NULL: none does.
static hth_train_entry *queue_waits(const hth_train_queue *q)
{
    hth_train_entry *e = q->first;
    while (e != NULL && (e->paused || e->work != NULL)) {
        e = e->next;
    }
    return e;
}

void hth_train_queue_add(hth_train_queue *queue, hth_request *request)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e), *same;
    hth_err err =
        e != NULL ? entry_open(queue, e, request) : hth_fail(HTH_ENOMEM, "no memory for a job");
    hth_tenant *tenant = hth_tenant_of(queue->ms->site->tenants, request->tenant);
    same = e != NULL ? hth_train_queue_find(queue, e->job) : NULL;
    bool counted = request->own || (same != NULL && entry_own(same) && same->tenant == tenant);
    err = err == HTH_OK && !counted ? hth_tenant_trains(tenant) : err;
    if (err == HTH_OK && queue->draining) {
        err = hth_fail(HTH_ECANCELED,
                       "the server is stopping and job '%s' had not started: submit it again",
                       e->job);
    }
    if (err != HTH_OK) {
        if (e != NULL) {
            free(e->arguments);
        }
        hth_free(e);
        queue->answer(request, err);
        return;
    }
    if (same != NULL && entry_own(same)) { // who asks takes it over, from its checkpoint
        hth_train_queue_end(queue, same, hth_fail(HTH_ECANCELED, "'%s' was requested", e->job),
                            NULL);
    }
    e->tenant = tenant;
    bool later = queue_waits(queue) != NULL;
    queue_append(queue, e);
    if (later) {
        queue_take(e, "waiting");
    }
    if (request->crashes > 0) {
        queue_again(queue, e);
    }
}

hth_err hth_train_queue_own(hth_train_queue *queue, const char *job, json_t *given, bool requested)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a job");
    }
    snprintf(e->job, sizeof e->job, "%s", job);
    e->own = (hth_request){
        .command = HTH_COMMAND_TRAIN, .tenant = e->owner, .own = true, .done = own_done};
    e->r = &e->own;
    hth_err err = hth_train_entry_resume(queue, e, given);
    e->tenant = hth_tenant_of(queue->ms->site->tenants, e->owner);
    err = err == HTH_OK && requested ? hth_tenant_trains(e->tenant) : err;
    if (err != HTH_OK) {
        free(e->arguments);
        hth_free(e);
        return err;
    }
    queue_append(queue, e);
    return HTH_OK;
}

void hth_train_queue_resume(hth_train_queue *queue)
{
    size_t i;
    json_t *names, *name, *none = json_object();
    char note[HTH_CHECKPOINT_NOTE];
    hth_err err = hth_checkpoint_list(queue->ms->store, &names);
    if (err != HTH_OK) {
        names = NULL;
    }
    json_array_foreach(names, i, name)
    {
        hth_checkpoint_note_get(queue->ms->store, json_string_value(name), note);
        if (note[0] == 0) {
            err = hth_train_queue_own(queue, json_string_value(name), none, false);
        }
    }
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "interrupted jobs: %s", hth_err_detail());
    }
    json_decref(none);
    json_decref(names);
}

// Work.

// queue_adopt has a job whose result is nowhere but in memory wait for room without its client.
static void queue_adopt(hth_train_queue *q, hth_train_entry *e)
{
    hth_request *r = e->r;
    char *text = r->arguments != NULL ? strdup(r->arguments) : NULL;
    snprintf(e->owner, sizeof e->owner, "%s", e->of);
    e->own = (hth_request){
        .command = HTH_COMMAND_TRAIN, .tenant = e->owner, .own = true, .done = own_done};
    free(e->arguments);
    e->arguments = text;
    e->own.arguments = text;
    e->r = &e->own;
    hth_train_job_for(e->work, e->r);
    q->answer(r, hth_fail(HTH_ECANCELED, "job '%s': %s", e->job, hth_train_job_trouble(e->work)));
}

// Whoever waited for a paused or queued job is gone: a paused one stays as it is, in the store.
static void queue_drop_left(hth_train_queue *q)
{
    hth_train_entry *e = q->first, *next;
    for (; e != NULL; e = next) {
        next = e->next;
        if (e->work != NULL && e->paused && e->r->canceled && e->r != &e->own) {
            queue_adopt(q, e);
        } else if (e->paused && e->r->canceled) {
            hth_train_queue_end(q, e, hth_fail(HTH_ECANCELED, "job '%s' stays paused", e->job),
                                NULL);
        } else if (e->work == NULL && e->r->canceled) {
            hth_err err = hth_fail(HTH_ECANCELED, "canceled while it was queued");
            hth_train_queue_end(q, e, err, queue_failed(q, e, err));
        }
    }
}

static bool queue_works(const hth_train_queue *q)
{
    const hth_train_entry *e = q->first;
    while (e != NULL && e->work == NULL) {
        e = e->next;
    }
    return e != NULL;
}

// queue_steps tells of a job that it is at work; one that is stuck (hth_train_job_stuck) is not.
static bool queue_steps(const hth_train_entry *e)
{
    return e->work != NULL && !e->paused;
}

// The one that waits longest may begin, unless nothing has changed since it was tried. The others
// take turns.
static hth_train_entry *queue_next(const hth_train_queue *q)
{
    hth_train_entry *waits = queue_waits(q), *e;
    if (waits != NULL && (waits->tried != q->freed + 1 || !queue_works(q))) {
        return waits;
    }
    for (e = q->active != NULL ? q->active->next : NULL; e != NULL; e = e->next) {
        if (queue_steps(e)) {
            return e;
        }
    }
    for (e = q->first; e != NULL && !queue_steps(e);) {
        e = e->next;
    }
    return e;
}

// queue_began tells that a job is at work: after a death of its process also from which step it
// goes on (-1: it begins anew).
static void queue_began(hth_train_queue *q, hth_train_entry *e)
{
    char text[100];
    hth_train_queue_event(q, e->job, "running");
    queue_take(e, "running");
    if (e->r->crashes > 0 && q->event != NULL) {
        snprintf(text, sizeof text, "{\"state\":\"running\",\"deaths\":%u,\"from_step\":%lld}",
                 (unsigned)e->r->crashes, (long long)hth_train_job_saved(e->work));
        q->event(q->event_ctx, e->job, text, 0, 1);
    }
    e->r->crashes = 0; // paused and resumed, it goes on as any other
    hth_checkpoint_note_set(q->ms->store, e->job, "");
}

// Makes a job ready. Where there is too little memory now, it waits for a job to give some back.
static hth_err queue_begin(hth_train_queue *q, hth_train_entry *e)
{
    if (e->timeline == NULL) {
        (void)hth_timeline_open(&e->timeline); // a job works without
    }
    hth_err err =
        hth_train_job_open(q->ms, e->r, (hth_train_events){queue_event, q, e->timeline}, &e->work);
    if (err == HTH_OK) {
        queue_began(q, e);
    } else if (err == HTH_ENODEVMEM && queue_works(q)) {
        bool reported = e->tried > 0;
        e->tried = q->freed + 1;
        snprintf(e->why, sizeof e->why, "%s", hth_err_detail());
        if (!reported) {
            hth_train_queue_event(q, e->job, HTH_TRAIN_QUEUED);
        }
        queue_take(e, HTH_TRAIN_QUEUED);
        return HTH_OK;
    }
    return err;
}

bool hth_train_queue_slice(hth_train_queue *queue)
{
    bool done = false;
    queue_drop_left(queue);
    queue->freed +=
        queue->ms->site->awaited_bytes < queue->awaited_bytes; // a job may have that, too
    queue->awaited_bytes = queue->ms->site->awaited_bytes;
    hth_train_entry *e = queue_next(queue);
    if (e == NULL) {
        return false;
    }
    queue->active = e;
    hth_err err = e->work != NULL ? hth_train_job_slice(e->work, &done) : queue_begin(queue, e);
    if (err != HTH_OK) {
        hth_train_queue_end(queue, e, err, queue_failed(queue, e, err));
    } else if (done) {
        hth_train_queue_record(queue, e->job, "finished", NULL);
        hth_train_queue_end(queue, e, HTH_OK, "finished");
    } else if (e->work != NULL && hth_train_job_stuck(e->work)) {
        e->paused = true; // until there is room, and somebody says so
        hth_train_queue_event(queue, e->job, HTH_TRAIN_PAUSED);
    }
    return true;
}

void hth_train_queue_stop(hth_train_queue *queue)
{
    while (queue->first != NULL) {
        hth_train_entry *e = queue->first;
        hth_train_queue_end(queue, e, hth_fail(HTH_ECANCELED, "the server is stopping"),
                            e->paused ? NULL : "stopped");
    }
    hth_timeline_close(queue->timeline);
    queue->timeline = NULL;
}

// What becomes of a job whose server stops in good order.
static hth_err queue_drained(const hth_train_entry *e)
{
    char why[HTH_CHECKPOINT_NOTE];
    if (e->paused && e->work == NULL) {
        return hth_fail(HTH_ECANCELED, "the server is stopping: job '%s' stays paused", e->job);
    }
    if (e->work == NULL) {
        return hth_fail(HTH_ECANCELED,
                        "the server is stopping and job '%s' had not started: submit it again",
                        e->job);
    }
    if (hth_train_job_save(e->work) == HTH_OK) {
        return hth_fail(HTH_ECANCELED,
                        "the server is stopping: job '%s' is saved after step %lld and resumes "
                        "when hearthd starts again",
                        e->job, (long long)hth_train_job_saved(e->work));
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return hth_fail(HTH_EIO, "the server is stopping: job '%s' could not be saved: %s", e->job,
                    why);
}

// queue_unbegun keeps a record of a job that its client has left and that has not begun: nothing
// else would be left of it.
static void queue_unbegun(hth_train_queue *q, const hth_train_entry *e, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    json_t *meta = NULL;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    if (e->taken && e->work == NULL && hth_checkpoint_find(q->ms->store, e->job, &meta) != HTH_OK) {
        hth_train_queue_record(q, e->job, "canceled", detail);
    }
    json_decref(meta);
    hth_fail(err, "%s", detail);
}

void hth_train_queue_drain(hth_train_queue *queue)
{
    queue->draining = true;
    while (queue->first != NULL) {
        hth_train_entry *e = queue->first;
        hth_err err = queue_drained(e);
        hth_log(INFO, SERVER, "train", "%s", hth_err_detail());
        queue_unbegun(queue, e, err);
        hth_train_queue_end(queue, e, err, e->paused ? NULL : "stopped");
    }
}
