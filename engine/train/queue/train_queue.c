// SPDX-License-Identifier: Apache-2.0
// Jobs are known by the model that they make. What ends one decides about its checkpoint: finished,
// it is removed; failed, canceled or left by its client, it stays with a note why, and waits to be
// asked for; stopped with the server, it stays without one and is gone on with. Whatever became of
// it, a job is kept as a record. A paused job is nothing but its checkpoint, and a place in the
// queue for who waits for it.
#include "engine/train/queue/train_queue.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/train/queue/train_entry_impl.h"
#include "engine/train/queue/train_kind.h"
#include "runtime/content/dataset_own.h"
#include "runtime/job_index.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_EVENT_NS 50000000u // from one event about steps to the next, at least

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
    const hth_train_entry *entry = hth_train_queue_find(queue, job);
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", word);
    if (entry != NULL && entry->member) {
        return;
    }
    if (queue->event != NULL) {
        queue->event(queue->event_ctx, job, text, 0, 1);
    }
}

// Steps of a job, as often as somebody could look at them, and its last one.
static void queue_event(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    hth_train_entry *e = ctx;
    const hth_train_queue *queue = e->queue;
    uint64_t now = hth_now_ns();
    if (e->member) {
        return;
    }
    hth_train_entry_step(e, what, done, total);
    if (queue->event != NULL && (now - e->reported_ns >= QUEUE_EVENT_NS || done == total)) {
        e->reported_ns = now;
        queue->event(queue->event_ctx, e->job, what, done, total);
    }
}

// Not only of the job whose turn it is: others' checkpoints are written meanwhile.
static void queue_log(void *ctx, const char *level, const char *text)
{
    hth_train_entry_log(ctx, level, text);
}

void hth_train_queue_append(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_train_queue *q = queue;
    hth_train_entry **last = &q->first, *e = entry;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = e;
    e->since_ns = hth_now_ns();
    snprintf(e->of, sizeof e->of, "%s", e->r->tenant != NULL ? e->r->tenant : HTH_TENANT_OWN);
    e->tenant = e->tenant != NULL ? e->tenant : hth_tenant_of(q->ms->site->tenants, e->r->tenant);
    if (e->tenant != NULL) {
        e->tenant->jobs++;
    }
}

// queue_keep keeps the timeline of a job that ends in the place of an older one.
static void queue_keep(hth_train_queue *queue, hth_train_entry *entry)
{
    if (entry->timeline == NULL || hth_timeline_ns(entry->timeline) == 0) {
        hth_timeline_close(entry->timeline);
        return;
    }
    hth_timeline_close(queue->timeline);
    queue->timeline = entry->timeline;
    snprintf(queue->timeline_job, sizeof queue->timeline_job, "%s", entry->job);
    snprintf(queue->timeline_tenant, sizeof queue->timeline_tenant, "%s", entry->of);
}

// queue_drop_own removes datasets that came with the job, unless it is to go on with them.
static void queue_drop_own(hth_train_queue *queue, const hth_train_entry *entry)
{
    json_t *args = entry->r->arguments != NULL ? json_loads(entry->r->arguments, 0, NULL) : NULL;
    hth_dataset_drop_own(queue->ms->store, args, entry->of);
    json_decref(args);
}

void hth_train_queue_end(hth_train_queue *queue, hth_train_entry *entry, hth_err err,
                         const char *word)
{
    char detail[HTH_CHECKPOINT_NOTE];
    hth_train_entry **at = &queue->first;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    queue->freed += entry->work != NULL;
    hth_job_free(entry->work);
    queue->active = entry == queue->active ? NULL : queue->active;
    while (*at != entry) {
        at = &(*at)->next;
    }
    *at = entry->next;
    hth_train_turn_leave(queue, entry);
    hth_train_fair_leave(queue, entry);
    if (entry->tenant != NULL) {
        assert(entry->tenant->jobs > 0);
        entry->tenant->jobs--;
    }
    if (word != NULL) {
        hth_train_queue_event(queue, entry->job, word);
    }
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        e->looked_ns = 0; // it may be what they wait for
    }
    if (!entry->member) {
        queue_drop_own(queue, entry);
    }
    hth_train_entry_release(entry);
    queue->answer(entry->r, hth_err_restore(err, detail));
    queue_keep(queue, entry);
    hth_train_entry_free(entry);
}

// queue_leave keeps the checkpoint of a job that ends, with the reason, if there is a step to go on
// from, and else removes it. What an older job of its name has left stays as it is.
static void queue_leave(const hth_train_queue *queue, const hth_train_entry *entry, bool saved,
                        const char *why)
{
    json_t *doc = NULL;
    bool stored = hth_train_entry_stored(queue, entry, &doc) == HTH_OK;
    if (stored && saved && json_integer_value(json_object_get(doc, "step")) > 0) {
        hth_checkpoint_note_set(queue->ms->store, entry->job, why);
    } else if (stored) {
        hth_checkpoint_rm(queue->ms->store, entry->job);
    }
    json_decref(doc);
}

// Of a job that failed or was left, the checkpoint stays with the reason next to it, if there was a
// step; without one it goes, or the next hearthd would begin the job again. One that could not even
// be made ready, here or in a process that died, is answered to the client, if somebody still
// waits.
const char *hth_train_queue_failed(hth_train_queue *queue, hth_train_entry *entry, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    const char *word = err == HTH_ECANCELED ? "canceled" : "failed";
    if (entry->member) {
        return word;
    }
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool before = entry->work == NULL && entry->r->crashes > 0; // at work in a process that died
    bool begun = entry->work != NULL || before || entry->taken || entry->paused ||
                 hth_train_entry_own(entry);
    bool saved = entry->work != NULL ? hth_job_saved(entry->work) > 0 : begun;
    if (begun || entry->fresh || entry->noted) { // others may wait for what becomes of it
        hth_train_entry_state(queue, entry, word, detail);
    }
    if (begun) {
        hth_train_queue_record(queue, entry->job, word, detail);
        queue_leave(queue, entry, saved, detail);
    }
    hth_fail(err, "%s", detail);
    return word;
}

hth_train_entry *hth_train_queue_ahead(const hth_train_queue *queue)
{
    hth_train_entry *e = queue->first;
    while (e != NULL && !(hth_train_entry_waits(e) && e->gate == HTH_TRAIN_GATE_NONE)) {
        e = e->next;
    }
    return e;
}

// Work.

// queue_adopt has a job whose result is nowhere but in memory wait for room without its client.
static void queue_adopt(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_request *r = entry->r;
    char *text = r->arguments != NULL ? strdup(r->arguments) : NULL;
    snprintf(entry->owner, sizeof entry->owner, "%s", entry->of);
    free(entry->arguments);
    entry->arguments = text;
    hth_train_entry_adopt(entry);
    hth_job_serve(entry->work, entry->r);
    queue->answer(
        r, hth_fail(HTH_ECANCELED, "job '%s': %s", entry->job, hth_job_trouble(entry->work)));
}

// Whoever waited for a paused or queued job is gone: a paused one stays as it is, in the store. One
// that was paused before it began is not there, and goes as well.
static void queue_drop_left(hth_train_queue *queue)
{
    hth_train_entry *e = queue->first, *next;
    for (; e != NULL; e = next) {
        next = e->next;
        if (e->work != NULL && e->paused && e->r->canceled && e->r != &e->own) {
            queue_adopt(queue, e);
        } else if (e->paused && e->r->canceled && hth_train_entry_kept(queue, e)) {
            hth_train_queue_end(queue, e, hth_fail(HTH_ECANCELED, "job '%s' stays paused", e->job),
                                NULL);
        } else if (e->work == NULL && e->r->canceled) {
            hth_err err = hth_fail(HTH_ECANCELED, "canceled while it was %s",
                                   e->paused ? "paused: it had not begun" : "queued");
            hth_train_queue_end(queue, e, err, hth_train_queue_failed(queue, e, err));
        }
    }
}

// queue_look finds out who may begin, and ends those that never will.
static void queue_look(hth_train_queue *queue)
{
    hth_train_entry *e = queue->first, *next;
    for (; e != NULL; e = next) {
        next = e->next;
        hth_err err = hth_train_entry_waits(e) ? hth_train_wait_look(queue, e) : HTH_OK;
        if (err != HTH_OK) {
            hth_train_entry_number(queue, e);
            hth_train_queue_end(queue, e, err, hth_train_queue_failed(queue, e, err));
        }
    }
}

static bool queue_works(const hth_train_queue *queue)
{
    const hth_train_entry *e = queue->first;
    while (e != NULL && e->work == NULL) {
        e = e->next;
    }
    return e != NULL;
}

// What may begin now comes first. The others take turns, with steps, or to be planned.
static hth_train_entry *queue_next(hth_train_queue *queue)
{
    hth_train_entry *begins = hth_train_fair_next(queue);
    return begins != NULL ? begins : hth_train_turn_next(queue);
}

// queue_step has the job whose turn it is make a step, and charges it.
static hth_err queue_step(hth_train_queue *queue, hth_train_entry *entry, bool *done)
{
    uint64_t start_ns = hth_now_ns();
    entry->turn.item.slice_ns = hth_job_predicted_ns(entry->work);
    entry->turn.left_ns = hth_job_left_ns(entry->work);
    entry->link = hth_job_link(entry->work);
    hth_err err = hth_job_slice(entry->work, done);
    hth_train_turn_ran(queue, entry, hth_now_ns() - start_ns);
    hth_train_gang_ran(queue, entry);
    return err;
}

// queue_began tells that a job is at work: after a death of its process, or another attempt, also
// from which step it goes on (-1: it begins anew).
static hth_err queue_began(hth_train_queue *queue, hth_train_entry *entry)
{
    char text[160];
    const json_t *m = hth_job_planned(entry->work);
    entry->turn.left_ns = hth_job_left_ns(entry->work);
    HTH_TRY(hth_train_entry_take(queue, entry, "running"));
    snprintf(text, sizeof text, "planned: %.1f MiB of %.1f MiB, %.3g ms a step predicted",
             json_number_value(json_object_get(m, "peak_bytes")) / 1048576,
             json_number_value(json_object_get(m, "budget_bytes")) / 1048576,
             json_number_value(json_object_get(m, "predicted_ms")));
    hth_train_entry_log(entry, "info", text);
    hth_train_queue_event(queue, entry->job, "running");
    if (entry->r->crashes > 0 && queue->event != NULL) {
        unsigned n = entry->retried ? (unsigned)entry->attempt : (unsigned)entry->r->crashes;
        snprintf(text, sizeof text, "{\"state\":\"running\",\"%s\":%u,\"from_step\":%lld}",
                 entry->retried ? "attempt" : "deaths", n, (long long)hth_job_saved(entry->work));
        queue->event(queue->event_ctx, entry->job, text, 0, 1);
    }
    entry->r->crashes = 0; // paused and resumed, it goes on as any other
    entry->retried = false;
    entry->not_before_ns = 0;
    if (!entry->member) {
        hth_checkpoint_note_set(queue->ms->store, entry->job, "");
    }
    return HTH_OK;
}

// queue_blocked has a job wait that there is too little memory for.
static hth_err queue_blocked(hth_train_queue *queue, hth_train_entry *entry)
{
    bool reported = entry->tried > 0;
    snprintf(entry->why, sizeof entry->why, "%s", hth_err_detail());
    if (entry->fair.state == HTH_FAIR_RUNS) {
        hth_train_fair_blocked(queue, entry);
    }
    entry->tried = queue->freed + 1;
    if (!reported) {
        HTH_TRY(hth_train_entry_take(queue, entry, HTH_TRAIN_QUEUED));
        hth_train_queue_event(queue, entry->job, HTH_TRAIN_QUEUED);
    }
    return HTH_OK;
}

// Makes a job ready. Where there is too little memory now, it waits for a job to give some back.
static hth_err queue_begin(hth_train_queue *queue, hth_train_entry *entry)
{
    if (entry->timeline == NULL) {
        (void)hth_timeline_open(&entry->timeline); // a job works without
    }
    entry->queue = queue;
    hth_train_events events = {.fn = queue_event,
                               .ctx = entry,
                               .timeline = entry->timeline,
                               .log = queue_log,
                               .admission = {.ask = hth_train_fair_ask, .ctx = queue}};
    events.admission.exact = entry->offer.exact;
    events.admission.need_bytes = hth_train_fair_granted(entry, &events.admission.budget_bytes);
    uint64_t from_ns = hth_now_ns();
    hth_err err = hth_train_kind_open(queue->ms, entry->r, events, &entry->work);
    entry->opened_ns = hth_now_ns() - from_ns;
    if (err == HTH_OK) {
        hth_train_fair_began(queue, entry);
        entry->favoured[0] = 0;
        return queue_began(queue, entry);
    }
    bool planned = entry->fair.state == HTH_FAIR_RUNS; // it was to begin, and waits again
    bool waits = err == HTH_ENODEVMEM && (planned || queue_works(queue));
    return waits ? queue_blocked(queue, entry) : err;
}

// queue_finished ends a job whose result is stored, whatever became of its answer.
static void queue_finished(hth_train_queue *queue, hth_train_entry *entry, hth_err err)
{
    char why[HTH_CHECKPOINT_NOTE];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    hth_train_entry_state(queue, entry, "finished", NULL);
    if (!entry->member) {
        hth_train_queue_record(queue, entry->job, "finished", NULL);
    }
    hth_train_queue_end(queue, entry, hth_err_restore(err, why), "finished");
}

bool hth_train_queue_slice(hth_train_queue *queue)
{
    bool done = false;
    queue_drop_left(queue);
    hth_train_gang_look(queue);
    queue_look(queue);
    queue->freed +=
        queue->ms->site->awaited_bytes < queue->awaited_bytes; // a job may have that, too
    queue->awaited_bytes = queue->ms->site->awaited_bytes;
    hth_train_entry *e = queue_next(queue);
    if (e == NULL) {
        return false;
    }
    queue->active = e;
    hth_err err = e->work != NULL ? queue_step(queue, e, &done) : queue_begin(queue, e);
    if (done) {
        queue_finished(queue, e, err);
    } else if (err != HTH_OK) {
        if (!hth_train_wait_again(queue, e, err)) {
            hth_train_queue_end(queue, e, err, hth_train_queue_failed(queue, e, err));
        }
    } else if (e->work != NULL && hth_job_stuck(e->work)) {
        e->paused = true; // until there is room, and somebody says so
        hth_train_gang_pause(e);
        hth_train_entry_state(queue, e, HTH_TRAIN_PAUSED, hth_job_trouble(e->work));
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
    hth_train_fair_fini(&queue->fair);
}

// What becomes of a job whose server stops in good order.
static hth_err queue_drained(const hth_train_queue *queue, hth_train_entry *entry)
{
    char why[HTH_CHECKPOINT_NOTE];
    if (entry->member) {
        return hth_fail(HTH_ECANCELED, "the server is stopping");
    }
    if (entry->work == NULL) {
        const char *stays = entry->paused ? "the server is stopping: job '%s' stays paused"
                                          : "the server is stopping: job '%s' waits, and begins "
                                            "when hearthd starts again";
        return hth_fail(HTH_ECANCELED,
                        hth_train_entry_kept(queue, entry)
                            ? stays
                            : "the server is stopping and job '%s' had not started: submit it "
                              "again",
                        entry->job);
    }
    if (hth_job_save(entry->work) == HTH_OK) {
        return hth_fail(HTH_ECANCELED,
                        "the server is stopping: job '%s' is saved after step %lld and resumes "
                        "when hearthd starts again",
                        entry->job, (long long)hth_job_saved(entry->work));
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return hth_fail(HTH_EIO, "the server is stopping: job '%s' could not be saved: %s", entry->job,
                    why);
}

// queue_stopped is the state of a job whose server has stopped, with what queue_drained has said:
// one of which nothing is stored has ended. NULL: as before.
static const char *queue_stopped(hth_train_queue *queue, hth_train_entry *entry, hth_err err)
{
    char detail[HTH_CHECKPOINT_NOTE];
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool lost = !entry->member && !hth_train_entry_kept(queue, entry);
    (void)hth_err_restore(err, detail);
    if (lost) {
        return hth_train_queue_failed(queue, entry, err);
    }
    return entry->paused ? NULL : "stopped";
}

void hth_train_queue_drain(hth_train_queue *queue)
{
    queue->draining = true;
    while (queue->first != NULL) {
        hth_train_entry *e = queue->first;
        hth_err err = queue_drained(queue, e);
        hth_log(INFO, SERVER, "train", "%s", hth_err_detail());
        hth_train_entry_log(e, "info", hth_err_detail());
        hth_train_queue_end(queue, e, err, queue_stopped(queue, e, err));
    }
}
