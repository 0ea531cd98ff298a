// SPDX-License-Identifier: Apache-2.0
// Jobs that give memory to a tenant without a job at work, or to a shorter job of their own. One
// that holds enough for both is planned for less, and goes on. Where that cannot be done, or
// more than one would have to, jobs leave: between two steps the state is copied to host memory,
// and the checkpoint's thread writes it to the store while others work; then the job's memory is
// free, and it waits in its old turn. One whose state cannot be written goes on.
#include "engine/train/queue/train_fair.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/train/queue/train_entry_impl.h"

#include <stdio.h>

// Until a job is asked again whose state could not be written.
#define PREEMPT_AGAIN_NS 60000000000u

static void preempt_failed(hth_train_queue *queue, hth_train_entry *entry)
{
    char text[HTH_CHECKPOINT_NOTE];
    snprintf(text, sizeof text, "not paused for another job: %.500s", hth_err_detail());
    hth_log(WARN, SERVER, "train", "job '%s': %s", entry->job, text);
    hth_train_entry_log(entry, "warning", text);
    entry->leaving = HTH_TRAIN_STAYS;
    entry->fair.least_ns = hth_now_ns() - entry->fair.began_ns + PREEMPT_AGAIN_NS;
    queue->fair.changed = true;
}

// preempt_shrinks has a job planned for less, if what that gives back is enough in one piece.
static bool preempt_shrinks(const hth_train_queue *queue, hth_train_entry *entry,
                            const hth_fair_decision *decision)
{
    const hth_fair_job *job = decision->job;
    uint64_t need = (uint64_t)job->demand[job->n_demands - 1].of[HTH_TRAIN_DEVICE_MEMORY];
    uint64_t has = hth_job_device_bytes(entry->work);
    return decision->n_victims == 1 && queue->fair.grows != entry &&
           hth_now_ns() >= entry->less_ns && need < has &&
           hth_job_less(entry->work, has - need) == HTH_OK;
}

// preempt_shrunk looks what became of that. One that has less now is not asked for more soon.
static void preempt_shrunk(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_err err;
    if (!hth_job_resized(entry->work, &err)) {
        return;
    }
    uint64_t now_ns = hth_now_ns();
    entry->leaving = HTH_TRAIN_STAYS;
    entry->less_ns = entry->more_ns = now_ns + PREEMPT_AGAIN_NS;
    queue->fair.changed = true;
    if (err == HTH_OK) {
        queue->freed++;
        hth_train_fair_began(queue, entry);
    }
}

// preempt_begin has a job make no more steps, and be planned for less memory or its state written.
// While an earlier one is still being written it goes on.
static void preempt_begin(hth_train_queue *queue, hth_train_entry *entry,
                          const hth_fair_decision *decision)
{
    if (preempt_shrinks(queue, entry, decision)) {
        entry->leaving = HTH_TRAIN_SHRINKS;
        return;
    }
    hth_err err = hth_job_leave(entry->work);
    if (err == HTH_OK) {
        entry->leaving = HTH_TRAIN_WRITES;
    } else if (err != HTH_EBUSY) {
        preempt_failed(queue, entry);
    }
}

bool hth_train_preempt_poll(hth_train_queue *queue)
{
    bool any = false;
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        hth_err err;
        if (e->leaving == HTH_TRAIN_SHRINKS) {
            preempt_shrunk(queue, e);
        }
        if (e->leaving == HTH_TRAIN_WRITES && hth_job_left(e->work, &err)) {
            e->leaving = HTH_TRAIN_WRITTEN;
            if (err != HTH_OK) {
                preempt_failed(queue, e);
            }
        }
        any = any || e->leaving != HTH_TRAIN_STAYS;
    }
    return any;
}

static bool preempt_chosen(const hth_fair_decision *decision, const hth_train_entry *entry)
{
    bool chosen = false;
    for (int i = 0; i < decision->n_victims; i++) {
        chosen = chosen || decision->victim[i] == &entry->fair;
    }
    return chosen;
}

void hth_train_preempt_stay(hth_train_queue *queue, const hth_fair_decision *decision)
{
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e->leaving == HTH_TRAIN_STAYS || preempt_chosen(decision, e)) {
            continue;
        }
        if (e->leaving == HTH_TRAIN_SHRINKS) {
            hth_job_keep_size(e->work);
        }
        e->leaving = HTH_TRAIN_STAYS;
    }
}

// preempt_why says for whom a job is paused.
static void preempt_why(hth_train_entry *entry, const hth_train_entry *favoured, char *why,
                        size_t cap)
{
    long long step = (long long)hth_job_saved(entry->work);
    if (favoured->tenant == entry->tenant) {
        snprintf(why, cap, "paused after step %lld in favour of job '%s', which is shorter", step,
                 favoured->job);
        return;
    }
    snprintf(why, cap, "paused after step %lld in favour of tenant '%s', which is under its share",
             step, favoured->of);
    snprintf(entry->favoured, sizeof entry->favoured, "%s", favoured->of);
}

// preempt_pause gives the memory of a job back whose state is in the store.
static void preempt_pause(hth_train_queue *queue, hth_train_entry *entry,
                          const hth_train_entry *favoured)
{
    char why[HTH_CHECKPOINT_NOTE];
    json_t *nothing = json_object();
    preempt_why(entry, favoured, why, sizeof why);
    hth_train_fair_leave(queue, entry);
    hth_job_free(entry->work);
    entry->work = NULL;
    queue->freed++;
    if (hth_train_entry_resume(queue, entry, nothing) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "job '%s': %s", entry->job, hth_err_detail());
        entry->r->crashes = 1; // it goes on from its checkpoint all the same
        entry->retried = true;
    }
    json_decref(nothing);
    entry->tried = queue->freed + 1;
    hth_train_entry_state(queue, entry, HTH_TRAIN_QUEUED, why);
    hth_train_queue_event(queue, entry->job, HTH_TRAIN_QUEUED);
}

bool hth_train_preempt_may(const hth_train_queue *queue, const hth_fair_decision *decision)
{
    bool own = true;
    for (int i = 0; i < decision->n_victims; i++) {
        own = own && decision->victim[i]->tenant == decision->job->tenant;
    }
    return !own || decision->n_victims == 0 || queue->ms->site->awaited_bytes == 0;
}

bool hth_train_preempt(hth_train_queue *queue, const hth_fair_decision *decision)
{
    bool all = true;
    for (int i = 0; i < decision->n_victims; i++) {
        hth_train_entry *e = hth_train_fair_entry(decision->victim[i]);
        if (e->leaving == HTH_TRAIN_STAYS) {
            preempt_begin(queue, e, decision);
        }
        all = all && e->leaving == HTH_TRAIN_WRITTEN;
    }
    for (int i = 0; i < decision->n_victims && all; i++) {
        preempt_pause(queue, hth_train_fair_entry(decision->victim[i]),
                      hth_train_fair_entry(decision->job));
    }
    return all;
}
