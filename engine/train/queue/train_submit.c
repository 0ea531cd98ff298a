// SPDX-License-Identifier: Apache-2.0
// How a request becomes a job in the queue: which job it is about, whether its tenant may have it,
// and whether it begins at once.
#include "engine/train/queue/train_entry_impl.h"
#include "engine/train/queue/train_kind.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/job_index.h"
#include "runtime/arguments.h"
#include "runtime/tenants/owner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Deaths of the engine's process while it was at work on a job: more are no accident.
#define SUBMIT_MAX_CRASHES 3

// submit_owned notes whose the result is to be. Whoever trains a model can have what is in it, so
// that it must be the caller's, or nobody's.
static hth_err submit_owned(const hth_train_queue *queue, hth_train_entry *entry,
                            const json_t *args)
{
    hth_caller caller = {entry->r->tenant, entry->r->admin, HTH_TENANT_NEVER};
    const char *model = json_string_value(json_object_get(args, "model"));
    bool again = entry->r->crashes > 0; // what it adds to the store was looked at before
    char owner[HTH_TENANT];
    if (model != NULL) {
        HTH_TRY(hth_owner_may(queue->ms->store, model, &caller, "train"));
    }
    const hth_tenant *t = caller.tenant != NULL && !again
                              ? hth_tenant_of(queue->ms->site->tenants, caller.tenant)
                              : NULL;
    caller.store_bytes = t != NULL ? t->limits.store_bytes : HTH_TENANT_NEVER;
    HTH_TRY(hth_owner_new(queue->ms->store, entry->job, &caller, owner));
    if (!again) {
        HTH_TRY(hth_train_quota(queue, entry->job, owner, args));
    }
    return owner[0] != 0 ? hth_train_entry_set(entry, HTH_META_OWNER, json_string(owner)) : HTH_OK;
}

// submit_asked has the job go on that a request names. Another tenant's is none.
static hth_err submit_asked(hth_train_queue *queue, hth_train_entry *entry, json_t *args)
{
    hth_err err = hth_train_queue_may(queue, entry->job, entry->r);
    if (err == HTH_EDENIED) {
        return hth_checkpoint_none(entry->job);
    }
    HTH_TRY(err == HTH_ENOENT ? HTH_OK : err);
    return hth_train_entry_resume(queue, entry, args);
}

// submit_named reads which job a request is about, and refuses what is another tenant's.
static hth_err submit_named(hth_train_queue *queue, hth_train_entry *entry, json_t *args)
{
    const char *name = json_string_value(json_object_get(args, "job"));
    if (name != NULL) {
        snprintf(entry->job, sizeof entry->job, "%s", name);
        return submit_asked(queue, entry, args);
    }
    if (hth_checkpoint_job(args, entry->job) != HTH_OK) {
        entry->job[0] = 0; // what can be no name is refused when it is its turn
        return HTH_OK;
    }
    hth_err err = hth_train_queue_may(queue, entry->job, entry->r);
    HTH_TRY(err == HTH_ENOENT ? HTH_OK : err); // nobody's so far
    return submit_owned(queue, entry, args);
}

// submit_begin names a job whose result nobody has named, where that was not done before.
static hth_err submit_begin(const hth_train_queue *queue, const hth_request *request, json_t *args)
{
    char job[HTH_CHECKPOINT_JOB];
    uint64_t id;
    bool named = json_object_get(args, "save-as") != NULL || json_object_get(args, "job") != NULL ||
                 (json_object_get(args, "model") == NULL && json_object_get(args, "kind") == NULL);
    bool admin = request->admin || request->tenant == NULL;
    const char *tenant = request->tenant != NULL ? request->tenant : HTH_TENANT_OWN;
    return named ? HTH_OK : hth_job_index_begin(queue->ms->store, args, tenant, admin, job, &id);
}

// submit_arguments reads what a request asks for, and stores it with what was added to it.
static hth_err submit_arguments(hth_train_queue *queue, hth_train_entry *entry,
                                hth_request *request, json_t *args)
{
    hth_err err = submit_begin(queue, request, args);
    hth_train_entry_read(entry, args);
    entry->fresh = entry->id > 0 && json_object_get(args, "job") == NULL;
    HTH_TRY(err);
    HTH_TRY(hth_train_wait_read(queue, request, args));
    return json_is_object(args) ? hth_train_entry_keep(entry, args) : HTH_OK;
}

// submit_alone refuses a job whose name another one has that is at work or waits.
static hth_err submit_alone(const hth_train_queue *queue, const hth_train_entry *entry)
{
    const hth_train_entry *same = hth_train_queue_find(queue, entry->job);
    bool taken =
        same != NULL && (!hth_train_entry_own(same) || (same->paused && same->work != NULL));
    if (entry->job[0] == 0 || !taken) {
        return HTH_OK;
    }
    const char *state = same->work != NULL ? "running" : "waiting";
    state = same->paused ? "paused" : state;
    return hth_fail(HTH_EBUSY, "job '%s' is %s already; --save-as gives this job another name",
                    entry->job, state);
}

// submit_member has a device compute for a group whose lead is elsewhere: on this server, where
// everything was looked at, or, of a rank, on another one, which knows nothing of this store.
static hth_err submit_member(hth_train_queue *queue, hth_train_entry *entry,
                             const hth_request *request, const json_t *args)
{
    char name[HTH_CHECKPOINT_JOB];
    const char *model = json_string_value(json_object_get(args, "model"));
    if (json_object_get(args, HTH_RANK_KEY) != NULL && model != NULL) {
        const hth_caller caller = {request->tenant, request->admin, HTH_TENANT_NEVER};
        HTH_TRY(hth_owner_may(queue->ms->store, model, &caller, "train"));
        snprintf(name, sizeof name, "%.150s, %d", model, (int)(++queue->ranks % 100000));
        entry->leaves = json_is_true(json_object_get(args, "detach"));
    } else {
        HTH_TRY(hth_checkpoint_job(args, name));
    }
    entry->member = true;
    entry->attempt = 1;
    entry->retries = (int)json_integer_value(json_object_get(args, "retries"));
    entry->priority = (int)json_number_value(json_object_get(args, "priority"));
    entry->spills = json_is_string(json_object_get(args, "spill"));
    snprintf(entry->job, sizeof entry->job, "%.180s" HTH_TRAIN_MEMBER "%d)", name,
             request->member - 1);
    return HTH_OK;
}

static hth_err submit_read(hth_train_queue *queue, hth_train_entry *entry, hth_request *request,
                           json_t *args)
{
    bool rank = json_object_get(args, HTH_RANK_KEY) != NULL; // its group has no memory here
    HTH_TRY(rank ? HTH_OK : hth_train_gang_open(entry));
    if (request->member > 1) {
        return submit_member(queue, entry, request, args);
    }
    hth_err err = submit_arguments(queue, entry, request, args);
    hth_train_entry_read(entry, args);
    HTH_TRY(err);
    HTH_TRY(submit_named(queue, entry, args));
    return submit_alone(queue, entry);
}

// Names the entry of request `request`. Arguments that name no model are refused when it is its
// turn.
static hth_err submit_open(hth_train_queue *queue, hth_train_entry *entry, hth_request *request)
{
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    json_object_del(args, HTH_META_OWNER); // is said here, to nobody who asks for one
    entry->r = request;
    entry->given = request->arguments;
    entry->left_s = NAN;
    hth_err err = submit_read(queue, entry, request, args);
    json_decref(args);
    return err;
}

// submit_budget: a budget that the job was given at work is in its checkpoint only. One that was
// submitted to go on from there has said what it is to have.
static void submit_budget(hth_train_entry *entry, const json_t *stored)
{
    json_t *args = json_loads(entry->r->arguments != NULL ? entry->r->arguments : "", 0, NULL);
    json_t *budget = json_object_get(stored, "budget");
    if (budget != NULL && !json_is_true(json_object_get(args, "resume"))) {
        (void)hth_train_entry_set(entry, "budget", json_incref(budget));
    }
    json_decref(args);
}

// submit_again is for a job whose process died while it was at work: one that was paused stays so,
// and one with which process after process died is tried again as often as was asked for, or is
// left for somebody to look at.
static void submit_again(hth_train_queue *queue, hth_train_entry *entry)
{
    char note[HTH_CHECKPOINT_NOTE] = "";
    json_t *doc = NULL;
    if (!entry->member && hth_train_entry_stored(queue, entry, &doc) == HTH_OK) {
        hth_checkpoint_note_get(queue->ms->store, entry->job, note);
        submit_budget(entry, json_object_get(doc, "job"));
    }
    json_decref(doc);
    entry->paused = strcmp(note, HTH_TRAIN_PAUSED) == 0;
    hth_train_gang_pause(entry);
    if (!entry->paused && entry->r->crashes >= SUBMIT_MAX_CRASHES) {
        hth_train_entry_number(queue, entry);
        hth_err err = hth_fail(
            HTH_EIO,
            "the engine process died %u times while job '%s' was at work: it is not retried",
            (unsigned)entry->r->crashes, entry->job);
        hth_log(ERROR, SERVER, "train", "%s", hth_err_detail());
        if (!hth_train_wait_again(queue, entry, err)) {
            hth_train_queue_end(queue, entry, err, hth_train_queue_failed(queue, entry, err));
        }
    }
}

// submit_refused looks whether a job may come into the queue.
static hth_err submit_refused(hth_train_queue *queue, const hth_train_entry *entry,
                              const hth_request *request, const hth_train_entry *same)
{
    hth_tenant *tenant = hth_tenant_of(queue->ms->site->tenants, request->tenant);
    bool counted =
        request->own || (same != NULL && hth_train_entry_own(same) && same->tenant == tenant);
    HTH_TRY(counted ? HTH_OK : hth_tenant_trains(tenant));
    return queue->draining
               ? hth_fail(HTH_ECANCELED,
                          "the server is stopping and job '%s' had not started: submit it again",
                          entry->job)
               : HTH_OK;
}

// submit_recorded tells whether the record of the entry's number is that of a job which was in the
// queue before: of one that this request was to go on with, perhaps somebody else's.
static bool submit_recorded(const hth_train_queue *queue, const hth_train_entry *entry)
{
    json_t *record = NULL;
    (void)hth_job_index_get(queue->ms->store, (uint64_t)entry->id, &record);
    bool recorded = json_object_get(record, "attempts") != NULL;
    json_decref(record);
    return recorded;
}

// submit_never drops what does not come into the queue: a new job has a number perhaps, and is
// none.
static void submit_never(hth_train_queue *queue, hth_train_entry *entry, hth_err err)
{
    char why[HTH_CHECKPOINT_NOTE];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (entry != NULL && entry->fresh && !submit_recorded(queue, entry)) {
        hth_train_entry_state(queue, entry, "failed", why);
    }
    hth_fail(err, "%s", why);
    if (entry != NULL) {
        hth_train_entry_release(entry);
    }
    hth_train_entry_free(entry);
}

// submit_waits tells who leaves a job here that it is taken, where it does not begin at once. What
// can be seen to be wrong by then is refused.
static hth_err submit_waits(hth_train_queue *queue, hth_train_entry *entry, bool later)
{
    HTH_TRY(hth_train_wait_look(queue, entry));
    if (!later && entry->gate == HTH_TRAIN_GATE_NONE) {
        return HTH_OK;
    }
    bool known = entry->member || hth_train_entry_own(entry); // by the lead, or when it was taken
    HTH_TRY(known ? HTH_OK : hth_train_kind_check(entry->r->arguments));
    return hth_train_entry_take(
        queue, entry, entry->gate == HTH_TRAIN_GATE_TENANT ? HTH_TRAIN_QUEUED : "waiting");
}

// submit_beside tells whether a new member joins the queue without ending the member of the same
// name. That one belongs to a group at work, and ends with it. The new group's lead has not been
// accepted yet: if it is refused, the old group must go on unharmed.
static bool submit_beside(const hth_train_entry *entry, const hth_train_entry *same)
{
    return entry->member && same->member && !hth_train_gang_over(same);
}

void hth_train_queue_add(hth_train_queue *queue, hth_request *request)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e), *same;
    hth_err err = e != NULL ? submit_open(queue, e, request) : hth_no_memory("a job");
    same = e != NULL ? hth_train_queue_find(queue, e->job) : NULL;
    if (err == HTH_OK) {
        err = submit_refused(queue, e, request, same);
    }
    if (err != HTH_OK) {
        submit_never(queue, e, err);
        queue->answer(request, err);
        return;
    }
    if (same != NULL && hth_train_entry_own(same) && !submit_beside(e, same)) {
        // who asks takes it over, from its checkpoint
        hth_train_queue_end(queue, same, hth_fail(HTH_ECANCELED, "'%s' was requested", e->job),
                            NULL);
    }
    bool later = hth_train_queue_ahead(queue) != NULL;
    hth_train_queue_append(queue, e);
    hth_train_gang_pause(e);
    if (request->crashes > 0) {
        submit_again(queue, e);
    } else if ((err = submit_waits(queue, e, later)) != HTH_OK) {
        hth_train_queue_end(queue, e, err, hth_train_queue_failed(queue, e, err));
    }
}
