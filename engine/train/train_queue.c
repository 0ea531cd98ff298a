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

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_EVENT_NS 50000000u // from one event about steps to the next, at least
// Deaths of the engine's process while it was at work on a job: more are no accident.
#define QUEUE_MOST_DEATHS 3

hth_train_entry *hth_train_queue_find(const hth_train_queue *q, const char *job)
{
    hth_train_entry *e = q->first;
    while (e != NULL && strcmp(e->job, job) != 0) {
        e = e->next;
    }
    return e;
}

void hth_train_queue_event(const hth_train_queue *q, const char *job, const char *word)
{
    char text[60];
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", word);
    if (q->event != NULL) {
        q->event(q->event_ctx, job, text, 0, 1);
    }
}

// Steps of the job at work, as often as somebody could look at them, and its last one.
static void queue_tell(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const hth_train_queue *q = ctx;
    hth_train_entry *e = q->active;
    uint64_t now = hth_now_ns();
    if (q->event != NULL && (now - e->told_ns >= QUEUE_EVENT_NS || done == total)) {
        e->told_ns = now;
        q->event(q->event_ctx, e->job, what, done, total);
    }
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

void hth_train_queue_end(hth_train_queue *q, hth_train_entry *e, hth_err err, const char *word)
{
    char detail[HTH_CHECKPOINT_NOTE];
    hth_train_entry **at = &q->first;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    q->freed += e->work != NULL;
    hth_train_job_free(e->work);
    q->active = e == q->active ? NULL : q->active;
    while (*at != e) {
        at = &(*at)->next;
    }
    *at = e->next;
    if (e->tenant != NULL) {
        e->tenant->jobs--;
    }
    if (word != NULL) {
        hth_train_queue_event(q, e->job, word);
    }
    q->answer(e->r, err != HTH_OK ? hth_fail(err, "%s", detail) : HTH_OK);
    queue_keep(q, e);
    free(e->arguments);
    hth_free(e);
}

// Of a job that failed or was left, the checkpoint stays with the reason beside it, or there is
// none and it has ended. One that could not even be made ready, here or in a process that died, is
// told to who asked for it. Returns the job's state.
static const char *queue_failed(hth_train_queue *q, const hth_train_entry *e, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    const char *word = err == HTH_ECANCELED ? "canceled" : "failed";
    json_t *meta;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool before = e->work == NULL && e->r->deaths > 0; // it was at work in a process that died
    bool saved = e->work != NULL ? hth_train_job_saved(e->work) >= 0 : before || e->r == &e->own;
    if (saved && hth_checkpoint_find(q->ms->store, e->job, &meta) == HTH_OK) {
        hth_checkpoint_note_set(q->ms->store, e->job, detail);
        json_decref(meta);
        word = "stopped";
    } else if (e->work != NULL || before) {
        hth_train_queue_record(q, e->job, word, detail);
    }
    hth_fail(err, "%s", detail);
    return word;
}

// Entries.

static void own_done(hth_request *r)
{
    if (r->err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "a job that was gone on with: %s", r->detail);
    }
    hth_free(r->json);
}

// The arguments of a job asked for by name are its checkpoint's, and what is given with it.
hth_err hth_train_entry_again(hth_train_queue *q, hth_train_entry *e, json_t *given)
{
    json_t *doc;
    HTH_TRY(hth_checkpoint_find(q->ms->store, e->job, &doc));
    json_t *args = json_object_get(doc, "job");
    hth_checkpoint_tenant(args, e->owner);
    json_object_del(given, "job");
    json_object_update(args, given);
    json_object_set_new(args, "resume", json_true());
    free(e->arguments);
    e->arguments = json_dumps(args, JSON_COMPACT);
    e->r->arguments = e->arguments;
    e->tried = 0;
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
        err = hth_train_queue_may(q, e->job, r);
        err = err == HTH_OK || err == HTH_ENOENT ? hth_train_entry_again(q, e, args) : err;
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
        err = hth_fail(HTH_EBUSY,
                       "job '%s' is %s already; --save-as makes this one another model, and job",
                       e->job,
                       same->paused         ? "paused"
                       : same->work != NULL ? "running"
                                            : "waiting");
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
    if (!e->paused && e->r->deaths >= QUEUE_MOST_DEATHS) {
        hth_err err = hth_fail(HTH_EIO,
                               "the engine's process died %u times while job '%s' was at work: it "
                               "is not tried again",
                               (unsigned)e->r->deaths, e->job);
        hth_log(ERROR, SERVER, "train", "%s", hth_err_detail());
        hth_train_queue_end(q, e, err, queue_failed(q, e, err));
    }
}

void hth_train_queue_add(hth_train_queue *q, hth_request *r)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e), *same;
    hth_err err = e != NULL ? entry_open(q, e, r) : hth_fail(HTH_ENOMEM, "no memory for a job");
    hth_tenant *tenant = hth_tenant_of(q->ms->site->tenants, r->tenant);
    same = e != NULL ? hth_train_queue_find(q, e->job) : NULL;
    bool counted = r->own || (same != NULL && entry_own(same) && same->tenant == tenant);
    err = err == HTH_OK && !counted ? hth_tenant_trains(tenant) : err;
    if (err == HTH_OK && q->draining) {
        err = hth_fail(HTH_ECANCELED, "the server stops before job '%s' began: ask again", e->job);
    }
    if (err != HTH_OK) {
        if (e != NULL) {
            free(e->arguments);
        }
        hth_free(e);
        q->answer(r, err);
        return;
    }
    if (same != NULL && entry_own(same)) { // who asks takes it over, from its checkpoint
        hth_train_queue_end(q, same, hth_fail(HTH_ECANCELED, "'%s' was asked for", e->job), NULL);
    }
    e->tenant = tenant;
    queue_append(q, e);
    if (r->deaths > 0) {
        queue_again(q, e);
    }
}

hth_err hth_train_queue_own(hth_train_queue *q, const char *job, json_t *given, bool asked)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a job");
    }
    snprintf(e->job, sizeof e->job, "%s", job);
    e->own = (hth_request){.query = "train", .tenant = e->owner, .own = true, .done = own_done};
    e->r = &e->own;
    hth_err err = hth_train_entry_again(q, e, given);
    e->tenant = hth_tenant_of(q->ms->site->tenants, e->owner);
    err = err == HTH_OK && asked ? hth_tenant_trains(e->tenant) : err;
    if (err != HTH_OK) {
        free(e->arguments);
        hth_free(e);
        return err;
    }
    queue_append(q, e);
    return HTH_OK;
}

void hth_train_queue_resume(hth_train_queue *q)
{
    size_t i;
    json_t *names, *name, *none = json_object();
    char note[HTH_CHECKPOINT_NOTE];
    hth_err err = hth_checkpoint_list(q->ms->store, &names);
    if (err != HTH_OK) {
        names = NULL;
    }
    json_array_foreach(names, i, name)
    {
        hth_checkpoint_note_get(q->ms->store, json_string_value(name), note);
        if (note[0] == 0) {
            err = hth_train_queue_own(q, json_string_value(name), none, false);
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
    e->own = (hth_request){.query = "train", .tenant = e->owner, .own = true, .done = own_done};
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
    hth_train_entry *waits = q->first, *e;
    while (waits != NULL && (waits->paused || waits->work != NULL)) {
        waits = waits->next;
    }
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
    if (e->r->deaths > 0 && q->event != NULL) {
        snprintf(text, sizeof text, "{\"state\":\"running\",\"deaths\":%u,\"from_step\":%lld}",
                 (unsigned)e->r->deaths, (long long)hth_train_job_saved(e->work));
        q->event(q->event_ctx, e->job, text, 0, 1);
    }
    e->r->deaths = 0; // paused and resumed, it goes on as any other
    hth_checkpoint_note_set(q->ms->store, e->job, "");
}

// Makes a job ready. Where there is too little memory now, it waits for a job to give some back.
static hth_err queue_begin(hth_train_queue *q, hth_train_entry *e)
{
    if (e->timeline == NULL) {
        (void)hth_timeline_open(&e->timeline); // a job works without
    }
    hth_err err =
        hth_train_job_open(q->ms, e->r, (hth_train_tell){queue_tell, q, e->timeline}, &e->work);
    if (err == HTH_OK) {
        queue_began(q, e);
    } else if (err == HTH_ENODEVMEM && queue_works(q)) {
        bool told = e->tried > 0;
        e->tried = q->freed + 1;
        snprintf(e->why, sizeof e->why, "%s", hth_err_detail());
        if (!told) {
            hth_train_queue_event(q, e->job, HTH_TRAIN_QUEUED);
        }
        return HTH_OK;
    }
    return err;
}

bool hth_train_queue_turn(hth_train_queue *q)
{
    bool done = false;
    queue_drop_left(q);
    q->freed += q->ms->site->awaited_bytes < q->awaited_bytes; // a job may have that, too
    q->awaited_bytes = q->ms->site->awaited_bytes;
    hth_train_entry *e = queue_next(q);
    if (e == NULL) {
        return false;
    }
    q->active = e;
    hth_err err = e->work != NULL ? hth_train_job_turn(e->work, &done) : queue_begin(q, e);
    if (err != HTH_OK) {
        hth_train_queue_end(q, e, err, queue_failed(q, e, err));
    } else if (done) {
        hth_train_queue_record(q, e->job, "finished", NULL);
        hth_train_queue_end(q, e, HTH_OK, "finished");
    } else if (e->work != NULL && hth_train_job_stuck(e->work)) {
        e->paused = true; // until there is room, and somebody says so
        hth_train_queue_event(q, e->job, HTH_TRAIN_PAUSED);
    }
    return true;
}

void hth_train_queue_stop(hth_train_queue *q)
{
    while (q->first != NULL) {
        hth_train_entry *e = q->first;
        hth_train_queue_end(q, e, hth_fail(HTH_ECANCELED, "the server stops"),
                            e->paused ? NULL : "stopped");
    }
    hth_timeline_close(q->timeline);
    q->timeline = NULL;
}

// What becomes of a job whose server stops in good order.
static hth_err queue_drained(const hth_train_entry *e)
{
    char why[HTH_CHECKPOINT_NOTE];
    if (e->paused && e->work == NULL) {
        return hth_fail(HTH_ECANCELED, "the server stops: job '%s' stays paused", e->job);
    }
    if (e->work == NULL) {
        return hth_fail(HTH_ECANCELED, "the server stops before job '%s' began: ask again", e->job);
    }
    if (hth_train_job_save(e->work) == HTH_OK) {
        return hth_fail(HTH_ECANCELED,
                        "the server stops: job '%s' is saved behind step %lld and goes on when "
                        "hearthd starts again",
                        e->job, (long long)hth_train_job_saved(e->work));
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return hth_fail(HTH_EIO, "the server stops: job '%s' could not be saved: %s", e->job, why);
}

void hth_train_queue_drain(hth_train_queue *q)
{
    q->draining = true;
    while (q->first != NULL) {
        hth_train_entry *e = q->first;
        hth_err err = queue_drained(e);
        hth_log(INFO, SERVER, "train", "%s", hth_err_detail());
        hth_train_queue_end(q, e, err, e->paused ? NULL : "stopped");
    }
}
