// SPDX-License-Identifier: Apache-2.0
// Jobs on several devices (group/) hold and wait for memory of several queues, which know nothing
// of each other. What keeps them from waiting for each other for ever is an order of all groups:
// where a member waits, the members of younger groups that cannot begin a round give their memory
// back, and take none before the older one has begun. A paused job's members give theirs back at
// once, as the job itself does, and those of one that is to follow a job take none before: that job
// may need it.
//
// Patience is for groups whose members are on their way: giving back and planning again takes much
// longer than they do.
#include "engine/train/queue/train_entry_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "group/watch.h"

#include <stdio.h>
#include <string.h>

#define GANG_PATIENCE_NS 1000000000u
#define GANG_AGAIN_NS    60000000000u // until one is asked again whose state could not be written

hth_err hth_train_gang_open(hth_train_entry *entry)
{
    const hth_request *r = entry->r;
    return r->member > 0
               ? hth_group_watch_open(r->files[r->n_files - 1], r->member - 1, &entry->gang.watch)
               : HTH_OK;
}

void hth_train_gang_close(hth_train_entry *entry)
{
    hth_group_watch_close(entry->gang.watch);
}

void hth_train_gang_pause(hth_train_entry *entry)
{
    if (entry->gang.watch != NULL && !entry->member) {
        hth_group_watch_pause(entry->gang.watch, entry->paused || entry->n_after > 0);
    }
}

void hth_train_gang_ran(hth_train_queue *queue, hth_train_entry *entry)
{
    uint64_t bytes = entry->gang.watch != NULL ? hth_job_device_bytes(entry->work) : 0;
    if (bytes != entry->gang.bytes) {
        queue->freed += bytes < entry->gang.bytes;
        entry->gang.bytes = bytes;
        hth_train_fair_began(queue, entry);
    }
}

bool hth_train_gang_over(const hth_train_entry *entry)
{
    return entry->gang.watch != NULL && hth_group_watch_over(entry->gang.watch);
}

// gang_waits: `other` would begin, but for what `entry` has: memory, or its place among its
// tenant's jobs.
static bool gang_waits(const hth_train_entry *entry, const hth_train_entry *other)
{
    bool limited = other->gate == HTH_TRAIN_GATE_TENANT || other->gate == HTH_TRAIN_GATE_QUOTA;
    return hth_train_entry_waits(other) &&
           (other->gate == HTH_TRAIN_GATE_NONE || (limited && other->tenant == entry->tenant));
}

// gang_older returns a member of an older group that waits here; NULL: there is none.
static const hth_train_entry *gang_older(const hth_train_queue *queue, const hth_train_entry *entry)
{
    uint64_t order = hth_group_watch_order(entry->gang.watch);
    const hth_train_entry *e = queue->first;
    while (e != NULL && !(e->gang.watch != NULL && gang_waits(entry, e) &&
                          hth_group_watch_order(e->gang.watch) < order)) {
        e = e->next;
    }
    return e;
}

bool hth_train_gang_gated(const hth_train_queue *queue, hth_train_entry *entry)
{
    const hth_group_watch *watch = entry->gang.watch;
    if (watch == NULL) {
        return false;
    }
    entry->gang.gave = entry->gang.gave && gang_older(queue, entry) != NULL;
    return entry->gang.gave || (entry->member && hth_group_watch_paused(watch));
}

void hth_train_gang_why(const hth_train_queue *queue, const hth_train_entry *entry, char *why,
                        size_t cap)
{
    const hth_train_entry *older = gang_older(queue, entry);
    if (older != NULL) {
        const char *member = older->member ? strstr(older->job, HTH_TRAIN_MEMBER) : NULL;
        int n = member != NULL ? (int)(member - older->job) : (int)strlen(older->job);
        snprintf(why, cap, "gave its memory back to job '%.*s', which is older", n, older->job);
    } else {
        snprintf(why, cap, "its job is paused, or follows another one");
    }
}

// gang_gives: the member is to give its memory back now.
static bool gang_gives(const hth_train_queue *queue, hth_train_entry *entry, uint64_t now_ns)
{
    hth_train_gang *gang = &entry->gang;
    if (entry->member && hth_group_watch_paused(gang->watch)) {
        return now_ns >= gang->again_ns;
    }
    if (gang_older(queue, entry) == NULL || !hth_group_watch_lacks(gang->watch)) {
        gang->since_ns = 0;
        return false;
    }
    gang->since_ns = gang->since_ns > 0 ? gang->since_ns : now_ns;
    return now_ns - gang->since_ns >= GANG_PATIENCE_NS && now_ns >= gang->again_ns;
}

// gang_saves writes a state that would be lost; *stored: the lead's, as a checkpoint.
static hth_err gang_saves(hth_train_entry *entry, bool *stored)
{
    json_t *state = hth_job_state(entry->work);
    bool any = json_integer_value(json_object_get(state, "step")) > 0;
    *stored = any && !entry->member;
    json_decref(state);
    return any ? hth_job_save(entry->work) : HTH_OK;
}

static void gang_give(hth_train_queue *queue, hth_train_entry *entry, uint64_t now_ns)
{
    char why[HTH_CHECKPOINT_NOTE];
    bool stored;
    json_t *nothing = json_object();
    hth_err err = gang_saves(entry, &stored);
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "job '%s' keeps its memory: %s", entry->job,
                hth_err_detail());
        entry->gang.again_ns = now_ns + GANG_AGAIN_NS;
        json_decref(nothing);
        return;
    }
    hth_train_gang_why(queue, entry, why, sizeof why);
    hth_log(INFO, SERVER, "train", "job '%s': %s", entry->job, why);
    hth_group_watch_away(entry->gang.watch);
    hth_train_fair_forget(queue, entry);
    hth_job_free(entry->work);
    entry->work = NULL;
    queue->freed++;
    if (stored && hth_train_entry_resume(queue, entry, nothing) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "job '%s': %s", entry->job, hth_err_detail());
        entry->r->crashes = 1; // it goes on from its checkpoint all the same
        entry->retried = true;
    }
    json_decref(nothing);
    entry->tried = 0;
    entry->gang.since_ns = 0;
    entry->gang.gave = true;
    hth_train_entry_state(queue, entry, HTH_TRAIN_QUEUED, why);
    hth_train_queue_event(queue, entry->job, HTH_TRAIN_QUEUED);
}

// gang_ended answers a member that waits for memory it does not need any more.
static void gang_ended(hth_train_queue *queue, hth_train_entry *entry)
{
    entry->r->json = hth_strdup("{}");
    hth_train_queue_end(queue, entry,
                        entry->r->json != NULL ? HTH_OK : hth_no_memory("a training job"), NULL);
}

// gang_refused ends a lead that waits for a group which somebody has refused or ended meanwhile.
static void gang_refused(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_err err = hth_group_watch_error(entry->gang.watch);
    if (err != HTH_OK) {
        hth_train_entry_number(queue, entry);
        hth_train_queue_end(queue, entry, err, hth_train_queue_failed(queue, entry, err));
    }
}

void hth_train_gang_look(hth_train_queue *queue)
{
    uint64_t now_ns = hth_now_ns();
    hth_train_entry *next;
    for (hth_train_entry *e = queue->first; e != NULL; e = next) {
        next = e->next;
        if (e->gang.watch == NULL) {
            continue;
        }
        bool over = hth_train_gang_over(e);
        if (over && e->member && e->work == NULL) {
            gang_ended(queue, e);
        } else if (over && e->work == NULL && !e->paused) {
            gang_refused(queue, e);
        } else if (!over && e->work != NULL && !e->paused && gang_gives(queue, e, now_ns)) {
            gang_give(queue, e, now_ns);
        }
    }
}
