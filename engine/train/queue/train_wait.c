// SPDX-License-Identifier: Apache-2.0
// Why a training job waits: for jobs that it is to follow (`--after`), for one of its tenant's jobs
// that are at work (`jobs=` of the file of tenants), for its next attempt (`--retries`), for memory
// of the device, or for those that came before it. How long is a guess: from the steps that the
// jobs before it have left, and from what their steps take.
#include "engine/train/queue/train_entry_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "runtime/job_index.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_LOOK_NS   100000000u  // from one question to the store to the next
#define WAIT_RETRY_NS  1000000000u // before the first repetition; then twice as long each time
#define WAIT_RETRY_MAX 6           // .. so many times

// ---- jobs to follow

static hth_err wait_unknown(const char *name)
{
    return hth_fail(HTH_ENOENT, "--after: there is no job '%s'; `hearth jobs` lists what there is",
                    name);
}

// wait_find stores the number of the job that `name` means, a number or a name; `own` is the number
// of who asks. Of others' jobs nobody learns whether they are there.
static hth_err wait_find(const hth_train_queue *queue, const hth_request *request, const char *name,
                         uint64_t own, uint64_t *id)
{
    json_t *record = NULL;
    char tenant[HTH_TENANT];
    hth_err err = HTH_ENOENT;
    if (name[0] != 0 && name[strspn(name, "0123456789")] == 0) {
        *id = strtoull(name, NULL, 10);
        err = hth_job_index_get(queue->ms->store, *id, &record);
    }
    if (err == HTH_ENOENT) {
        err = hth_job_index_named(queue->ms->store, name, own > 0 ? own : UINT64_MAX, id);
        if (err == HTH_OK) {
            err = hth_job_index_get(queue->ms->store, *id, &record);
        }
    }
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? wait_unknown(name) : err;
    }
    hth_checkpoint_tenant(record, tenant);
    json_decref(record);
    bool mine = request->admin || request->tenant == NULL || strcmp(tenant, request->tenant) == 0;
    return mine && *id != own ? HTH_OK : wait_unknown(name);
}

hth_err hth_train_wait_read(const hth_train_queue *queue, const hth_request *request, json_t *args)
{
    const json_t *after = json_object_get(args, "after");
    uint64_t own = (uint64_t)json_integer_value(json_object_get(args, "id")), id;
    char all[1024];
    char *save = NULL;
    if (after == NULL || json_is_array(after) || json_is_null(after)) {
        return HTH_OK; // nothing, or read before
    }
    if (json_is_integer(after)) {
        snprintf(all, sizeof all, "%lld", (long long)json_integer_value(after));
    } else if (json_string_length(after) < sizeof all) {
        snprintf(all, sizeof all, "%s", json_string_value(after));
    } else {
        return hth_fail(HTH_EINVAL, "--after takes jobs by name or number, separated by commas");
    }
    json_t *list = json_array();
    hth_err err = HTH_OK;
    for (char *name = strtok_r(all, ",", &save); name != NULL && err == HTH_OK;
         name = strtok_r(NULL, ",", &save)) {
        err = wait_find(queue, request, name, own, &id);
        json_array_append_new(list, json_integer((json_int_t)id));
    }
    if (err == HTH_OK && json_array_size(list) > HTH_TRAIN_AFTER) {
        err = hth_fail(HTH_EINVAL, "--after names %zu jobs, %d are the most", json_array_size(list),
                       HTH_TRAIN_AFTER);
    }
    if (err == HTH_OK) {
        json_object_set(args, "after", list);
    }
    json_decref(list);
    return err;
}

// wait_ended tells whether job number `id` has finished. HTH_ECANCELED: it never will.
static hth_err wait_ended(const hth_train_queue *queue, uint64_t id, bool *finished)
{
    json_t *record;
    *finished = false;
    hth_err err = hth_job_index_get(queue->ms->store, id, &record);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? hth_fail(HTH_ECANCELED,
                                            "nothing is known any more of job %llu, which it was "
                                            "to follow",
                                            (unsigned long long)id)
                                 : err;
    }
    const char *state = json_string_value(json_object_get(record, "state"));
    const char *why = json_string_value(json_object_get(record, "why"));
    state = state != NULL ? state : "";
    *finished = strcmp(state, "finished") == 0;
    if (strcmp(state, "failed") == 0 || strcmp(state, "canceled") == 0) {
        const char *end = state[0] == 'f' ? "has failed" : "was canceled";
        const char *colon = why != NULL ? ": " : "";
        err = hth_fail(HTH_ECANCELED, "job '%s' (%llu), which it was to follow, %s%s%.300s",
                       json_string_value(json_object_get(record, "job")), (unsigned long long)id,
                       end, colon, why != NULL ? why : "");
    }
    json_decref(record);
    return err;
}

// wait_after asks about all of them: one that never finishes ends the job at once, whatever the
// others do.
static hth_err wait_after(hth_train_queue *queue, hth_train_entry *entry)
{
    uint64_t now = hth_now_ns();
    bool finished;
    int i = 0;
    if (entry->looked_ns > 0 && now - entry->looked_ns < WAIT_LOOK_NS) {
        return HTH_OK;
    }
    entry->looked_ns = now;
    while (i < entry->n_after) {
        hth_err err = wait_ended(queue, entry->after[i], &finished);
        if (err == HTH_ECANCELED) {
            return err;
        }
        if (err != HTH_OK) { // the store cannot be read now
            hth_log(WARN, SERVER, "train", "job '%s': %s", entry->job, hth_err_detail());
            return HTH_OK;
        }
        if (finished) {
            entry->n_after--;
            memmove(&entry->after[i], &entry->after[i + 1],
                    (size_t)(entry->n_after - i) * sizeof *entry->after);
        } else {
            i++;
        }
    }
    return HTH_OK;
}

// ---- gates

// wait_running counts the tenant's jobs that are at work.
static int64_t wait_running(const hth_train_queue *queue, const hth_tenant *tenant)
{
    int64_t n = 0;
    for (const hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        n += e->tenant == tenant && e->work != NULL;
    }
    return n;
}

hth_err hth_train_wait_look(hth_train_queue *queue, hth_train_entry *entry)
{
    const hth_tenant *t = entry->tenant;
    entry->gate = HTH_TRAIN_GATE_NONE;
    if (entry->n_after > 0) {
        HTH_TRY(wait_after(queue, entry));
        hth_train_gang_pause(entry);
    }
    if (entry->n_after > 0) {
        entry->gate = HTH_TRAIN_GATE_AFTER;
    } else if (entry->not_before_ns > hth_now_ns()) {
        entry->gate = HTH_TRAIN_GATE_RETRY;
    } else if (hth_train_gang_gated(queue, entry)) {
        entry->gate = HTH_TRAIN_GATE_GROUP;
    } else if (t != NULL && t->limits.jobs > 0 && wait_running(queue, t) >= t->limits.jobs) {
        // where none may be at work, those that a server's end interrupted go on in any case
        entry->gate = HTH_TRAIN_GATE_TENANT;
    } else if (!hth_train_fair_quota(queue, entry)) {
        entry->gate = HTH_TRAIN_GATE_QUOTA;
    }
    return HTH_OK;
}

// ---- attempts

// wait_helps tells whether an error may be another one the next time: the device, its memory, a
// file system. What was asked for stays wrong.
static bool wait_helps(hth_err err)
{
    return err == HTH_EIO || err == HTH_ENODEVMEM || err == HTH_ENOMEM || err == HTH_EDEVLOST;
}

// A rank that has joined the others cannot do so again: what they share is lost.
bool hth_train_wait_again(hth_train_queue *queue, hth_train_entry *entry, hth_err err)
{
    char why[HTH_CHECKPOINT_NOTE], text[HTH_CHECKPOINT_NOTE + 80];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (entry->attempt > entry->retries || entry->r->canceled || !wait_helps(err) ||
        hth_train_gang_over(entry) || entry->r->joined) {
        return false;
    }
    bool rank = entry->r->member > 0 && entry->gang.watch == NULL;
    int doubled = entry->attempt - 1 < WAIT_RETRY_MAX ? entry->attempt - 1 : WAIT_RETRY_MAX;
    queue->freed += entry->work != NULL;
    hth_job_free(entry->work);
    entry->work = NULL;
    hth_train_fair_forget(queue, entry);
    entry->retried = true;
    entry->attempt++;
    entry->not_before_ns = hth_now_ns() + ((uint64_t)WAIT_RETRY_NS << doubled);
    entry->tried = 0;
    if (entry->r->crashes == 0 && !rank) {
        entry->r->crashes = 1; // from its checkpoint
    }
    snprintf(entry->why, sizeof entry->why, "%s", why);
    snprintf(text, sizeof text, "attempt %d failed: %s", entry->attempt - 1, why);
    hth_train_entry_number(queue, entry);
    hth_train_entry_log(entry, "warning", text);
    hth_train_entry_state(queue, entry, "waiting", NULL);
    hth_train_queue_event(queue, entry->job, "waiting");
    return true;
}

// ---- how long

// wait_first is when the first of the jobs at work ends, of one tenant's (NULL: of all); NAN: there
// is none, or it is not known.
static double wait_first(const hth_train_queue *queue, const hth_tenant *tenant)
{
    double first = NAN;
    hth_train_turn_predict(queue);
    for (const hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e->work != NULL && !e->paused && (tenant == NULL || e->tenant == tenant)) {
            first = fmin(first, hth_train_turn_left(queue, e)); // of a number and NAN: that
        }
    }
    return first;
}

// wait_turn is how long a job waits that comes next, after those before it.
static double wait_turn(const hth_train_queue *queue, const hth_train_entry *entry, int *ahead)
{
    double seconds = wait_first(queue, NULL);
    *ahead = 0;
    for (const hth_train_entry *e = queue->first; e != entry; e = e->next) {
        if (hth_train_entry_waits(e) && e->gate == HTH_TRAIN_GATE_NONE) {
            seconds += e->left_s;
            ++*ahead;
        }
    }
    return seconds;
}

// wait_followed is how long the jobs take that this one is to follow: all that is known here.
static double wait_followed(const hth_train_queue *queue, const hth_train_entry *entry,
                            char why[HTH_CHECKPOINT_NOTE])
{
    double seconds = 0;
    int n = snprintf(why, HTH_CHECKPOINT_NOTE, "waits for");
    hth_train_turn_predict(queue);
    for (int i = 0; i < entry->n_after; i++) {
        const hth_train_entry *e = queue->first;
        char name[HTH_CHECKPOINT_JOB] = "", tenant[HTH_TENANT];
        while (e != NULL && (uint64_t)e->id != entry->after[i]) {
            e = e->next;
        }
        (void)hth_job_index_find(queue->ms->store, entry->after[i], name, tenant);
        if (n < HTH_CHECKPOINT_NOTE) {
            n += snprintf(why + n, (size_t)(HTH_CHECKPOINT_NOTE - n), "%s job '%s' (%llu)",
                          i > 0 ? "," : "", name, (unsigned long long)entry->after[i]);
        }
        double one = e != NULL ? e->left_s : NAN;
        one = e != NULL && e->work != NULL ? hth_train_turn_left(queue, e) : one;
        seconds = isnan(one) || isnan(seconds) ? NAN : fmax(seconds, one);
    }
    return seconds;
}

double hth_train_wait_why(const hth_train_queue *queue, const hth_train_entry *entry,
                          char why[HTH_CHECKPOINT_NOTE])
{
    int ahead = 0;
    uint64_t now = hth_now_ns();
    if (entry->gate == HTH_TRAIN_GATE_AFTER) {
        return wait_followed(queue, entry, why);
    }
    if (entry->gate == HTH_TRAIN_GATE_TENANT) {
        const hth_tenant *t = entry->tenant;
        snprintf(why, HTH_CHECKPOINT_NOTE, "tenant '%s' has %lld of %lld jobs running", t->name,
                 (long long)wait_running(queue, t), (long long)t->limits.jobs);
        return wait_first(queue, t);
    }
    if (entry->gate == HTH_TRAIN_GATE_RETRY) {
        snprintf(why, HTH_CHECKPOINT_NOTE, "attempt %d of %d follows: %.400s", entry->attempt,
                 entry->retries + 1, entry->why);
        return entry->not_before_ns > now ? (double)(entry->not_before_ns - now) / 1e9 : 0;
    }
    if (entry->gate == HTH_TRAIN_GATE_GROUP) {
        hth_train_gang_why(queue, entry, why, HTH_CHECKPOINT_NOTE);
        return NAN;
    }
    if (entry->gate == HTH_TRAIN_GATE_QUOTA) {
        snprintf(why, HTH_CHECKPOINT_NOTE,
                 "tenant '%s': its other jobs leave too little of its "
                 "limit of device memory",
                 entry->of);
        return wait_first(queue, entry->tenant);
    }
    if (entry->offer.n > 0 && queue->fair.jobs != NULL) {
        return hth_train_reason(queue, entry, why, HTH_CHECKPOINT_NOTE);
    }
    double seconds = wait_turn(queue, entry, &ahead);
    if (entry->tried > 0) {
        snprintf(why, HTH_CHECKPOINT_NOTE, "%s", entry->why);
    } else if (ahead > 0) {
        snprintf(why, HTH_CHECKPOINT_NOTE, "%d %s ahead of it", ahead,
                 ahead == 1 ? "job is" : "jobs are");
    } else {
        why[0] = 0; // its turn comes now
        seconds = 0;
    }
    return seconds;
}
