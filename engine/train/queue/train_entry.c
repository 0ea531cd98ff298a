// SPDX-License-Identifier: Apache-2.0
// How a job comes into the queue: asked for by a client, or gone on with by the server itself from
// its checkpoint. A job that its client leaves here is in the store before that is told, as a
// checkpoint of step 0: from then on it outlives the client, this process and the server.
#include "engine/train/queue/train_entry_impl.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/job_index.h"
#include "runtime/tenants/owner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Deaths of the engine's process while it was at work on a job: more are no accident.
#define ENTRY_MAX_CRASHES 3

void hth_train_entry_free(hth_train_entry *entry)
{
    if (entry != NULL) {
        hth_job_log_close(entry->log);
        free(entry->arguments);
        hth_free(entry);
    }
}

static void own_done(hth_request *request)
{
    if (request->err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "resumed job failed: %s", request->detail);
    }
    hth_free(request->json);
}

void hth_train_entry_release(hth_train_entry *entry)
{
    if (entry->r != NULL) {
        entry->r->arguments = entry->given;
    }
}

void hth_train_entry_adopt(hth_train_entry *entry)
{
    hth_train_entry_release(entry);
    entry->given = NULL;
    entry->own = (hth_request){
        .command = HTH_COMMAND_TRAIN, .tenant = entry->owner, .own = true, .done = own_done};
    entry->own.arguments = entry->arguments;
    entry->r = &entry->own;
}

// entry_read reads of a job's arguments what the queue needs to know.
static void entry_read(hth_train_entry *entry, const json_t *args)
{
    const json_t *after = json_object_get(args, "after"), *id;
    size_t i;
    entry->id = json_integer_value(json_object_get(args, "id"));
    entry->leaves = json_is_true(json_object_get(args, "detach"));
    entry->retries = (int)json_integer_value(json_object_get(args, "retries"));
    entry->attempt = entry->attempt > 0 ? entry->attempt : 1;
    entry->priority = (int)json_number_value(json_object_get(args, "priority"));
    entry->spills = json_is_string(json_object_get(args, "spill"));
    entry->n_after = 0;
    json_array_foreach(after, i, id)
    {
        if (entry->n_after < HTH_TRAIN_AFTER) {
            entry->after[entry->n_after++] = (uint64_t)json_integer_value(id);
        }
    }
}

// entry_keep makes `args` the arguments of the job's request.
static hth_err entry_keep(hth_train_entry *entry, const json_t *args)
{
    char *text = json_dumps(args, JSON_COMPACT);
    if (text == NULL) {
        return hth_no_memory("a job");
    }
    free(entry->arguments);
    entry->arguments = text;
    entry->r->arguments = text;
    return HTH_OK;
}

hth_err hth_train_entry_set(hth_train_entry *entry, const char *key, json_t *value)
{
    const char *before = entry->r->arguments != NULL ? entry->r->arguments : "";
    json_t *args = json_loads(before, 0, NULL);
    hth_err err = json_object_set_new(args, key, value) == 0 ? entry_keep(entry, args)
                                                             : hth_no_memory("a job");
    json_decref(args);
    return err;
}

// entry_left guesses what the steps will take that a job has left, by those that it has made.
static double entry_left(const json_t *doc)
{
    const json_t *history = json_object_get(doc, "history");
    size_t n = json_array_size(history);
    double ms = 0, steps = (double)json_integer_value(json_object_get(doc, "steps"));
    for (size_t i = 0; i < n; i++) {
        ms += json_number_value(json_array_get(json_array_get(history, i), 1));
    }
    return n > 0 ? ms / 1e3 / (double)n * (steps - (double)n) : NAN;
}

// entry_same refuses what would make another job of one that goes on. Who owns these was looked at
// when it was submitted: with another model it would learn what that has, and under another name it
// would have the checkpoints of the job that is called so.
static hth_err entry_same(const char *job, const json_t *args, const json_t *given)
{
    static const char *const keys[] = {"model", "save-as"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *is = json_object_get(args, keys[i]), *asked = json_object_get(given, keys[i]);
        const char *text = json_string_value(is);
        if (asked != NULL && !json_equal(is, asked)) {
            return hth_fail(HTH_EINVAL, "job '%s' goes on as it was submitted: its '%s' stays '%s'",
                            job, keys[i], text != NULL ? text : "");
        }
    }
    return HTH_OK;
}

// The arguments of a job asked for by name are its checkpoint's, and what is given with it.
hth_err hth_train_entry_resume(hth_train_queue *queue, hth_train_entry *entry, json_t *given)
{
    json_t *doc;
    HTH_TRY(hth_checkpoint_find(queue->ms->store, entry->job, &doc));
    json_t *args = json_object_get(doc, "job");
    hth_err err = entry_same(entry->job, args, given);
    if (err != HTH_OK) {
        json_decref(doc);
        return err;
    }
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
    entry->left_s = entry_left(doc);
    hth_train_fair_forget(queue, entry);
    if (json_object_get(given, "budget") != NULL) {
        json_object_del(args, HTH_TRAIN_HAD);
    }
    hth_train_fair_exact(entry, args);
    entry->tried = 0;
    err = entry_keep(entry, args);
    json_decref(doc);
    return err;
}

// ---- taken

// entry_replaced keeps a record of a job whose checkpoint goes, because another one of its name
// begins. One that ended with it has one.
static void entry_replaced(const hth_train_queue *queue, const hth_train_entry *entry,
                           const json_t *doc)
{
    char note[HTH_CHECKPOINT_NOTE], why[80];
    const json_t *id = json_object_get(json_object_get(doc, "job"), "id");
    hth_checkpoint_note_get(queue->ms->store, entry->job, note);
    if (json_integer_value(id) != entry->id &&
        (note[0] == 0 || strcmp(note, HTH_TRAIN_PAUSED) == 0)) {
        snprintf(why, sizeof why, "job %lld of the same name began", (long long)entry->id);
        hth_train_queue_replaced(queue, entry->job, doc, why);
    }
}

// entry_accept stores the job before anybody is told that it is taken. One that goes on from its
// checkpoint is there already; of one whose client waits, nothing is stored before there is a step,
// but the checkpoint of an older job goes, too.
static hth_err entry_accept(const hth_train_queue *queue, hth_train_entry *entry)
{
    const char *given = entry->r->arguments != NULL ? entry->r->arguments : "";
    json_t *args = entry->work != NULL ? json_deep_copy(hth_train_job_arguments(entry->work))
                                       : json_loads(given, 0, NULL);
    json_t *doc = NULL;
    bool there = hth_checkpoint_find(queue->ms->store, entry->job, &doc) == HTH_OK;
    bool goes_on =
        there && (json_is_true(json_object_get(args, "resume")) || entry->r->crashes > 0);
    hth_err err = HTH_OK;
    json_object_set_new(args, "tenant", json_string(entry->of));
    if (there && !goes_on) {
        entry_replaced(queue, entry, doc);
    }
    if (entry->leaves && !goes_on) {
        err = hth_checkpoint_accept(queue->ms->store, entry->job, args);
    } else if (there && !goes_on && entry->work != NULL) {
        err = hth_checkpoint_rm(queue->ms->store, entry->job);
    }
    json_decref(doc);
    json_decref(args);
    return hth_err_prefix(err, "the job cannot be stored");
}

hth_err hth_train_entry_take(hth_train_queue *queue, hth_train_entry *entry, const char *word)
{
    char text[60], why[HTH_CHECKPOINT_NOTE] = "";
    hth_train_entry_number(queue, entry);
    if (!entry->taken && !hth_train_entry_own(entry)) {
        HTH_TRY(entry_accept(queue, entry));
    }
    if (entry->work == NULL) {
        (void)hth_train_wait_why(queue, entry, why);
    }
    hth_train_entry_state(queue, entry, word, why);
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", word);
    if (entry->leaves && !entry->taken && entry->r->progress != NULL) {
        entry->r->progress(entry->r, text, 1, 1);
    }
    entry->taken = entry->leaves;
    return HTH_OK;
}

// ---- into the queue

// entry_owned notes whose the result is to be. Whoever trains a model can have what is in it, so
// that it must be the caller's, or nobody's.
static hth_err entry_owned(const hth_train_queue *queue, hth_train_entry *entry, const json_t *args)
{
    const hth_caller caller = {entry->r->tenant, entry->r->admin, HTH_TENANT_NEVER};
    const char *model = json_string_value(json_object_get(args, "model"));
    char owner[HTH_TENANT];
    if (model != NULL) {
        HTH_TRY(hth_owner_may(queue->ms->store, model, &caller, "train"));
    }
    HTH_TRY(hth_owner_new(queue->ms->store, entry->job, &caller, owner));
    if (entry->r->crashes == 0) { // else it was looked at before
        HTH_TRY(hth_train_quota(queue, entry->job, owner, args));
    }
    return owner[0] != 0 ? hth_train_entry_set(entry, HTH_META_OWNER, json_string(owner)) : HTH_OK;
}

// entry_asked has the job go on that a request names. Another tenant's is none.
static hth_err entry_asked(hth_train_queue *queue, hth_train_entry *entry, json_t *args)
{
    hth_err err = hth_train_queue_may(queue, entry->job, entry->r);
    if (err == HTH_EDENIED) {
        return hth_checkpoint_none(entry->job);
    }
    HTH_TRY(err == HTH_ENOENT ? HTH_OK : err);
    return hth_train_entry_resume(queue, entry, args);
}

// entry_named reads which job a request is about, and refuses what is another tenant's.
static hth_err entry_named(hth_train_queue *queue, hth_train_entry *entry, json_t *args)
{
    const char *name = json_string_value(json_object_get(args, "job"));
    if (name != NULL) {
        snprintf(entry->job, sizeof entry->job, "%s", name);
        return entry_asked(queue, entry, args);
    }
    if (hth_checkpoint_job(args, entry->job) != HTH_OK) {
        entry->job[0] = 0; // what can be no name is refused when it is its turn
        return HTH_OK;
    }
    hth_err err = hth_train_queue_may(queue, entry->job, entry->r);
    HTH_TRY(err == HTH_ENOENT ? HTH_OK : err); // nobody's so far
    return entry_owned(queue, entry, args);
}

// entry_begin names a job whose result nobody has named, where that was not done before.
static hth_err entry_begin(const hth_train_queue *queue, const hth_request *request, json_t *args)
{
    char job[HTH_CHECKPOINT_JOB];
    uint64_t id;
    bool named = json_object_get(args, "save-as") != NULL || json_object_get(args, "job") != NULL ||
                 json_object_get(args, "model") == NULL;
    bool admin = request->admin || request->tenant == NULL;
    const char *tenant = request->tenant != NULL ? request->tenant : HTH_TENANT_OWN;
    return named ? HTH_OK : hth_job_index_begin(queue->ms->store, args, tenant, admin, job, &id);
}

// entry_arguments reads what a request asks for, and stores it with what was added to it.
static hth_err entry_arguments(hth_train_queue *queue, hth_train_entry *entry, hth_request *request,
                               json_t *args)
{
    hth_err err = entry_begin(queue, request, args);
    entry_read(entry, args);
    entry->fresh = entry->id > 0 && json_object_get(args, "job") == NULL;
    HTH_TRY(err);
    HTH_TRY(hth_train_wait_read(queue, request, args));
    return json_is_object(args) ? entry_keep(entry, args) : HTH_OK;
}

// entry_alone refuses a job whose name another one has that is at work or waits.
static hth_err entry_alone(const hth_train_queue *queue, const hth_train_entry *entry)
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

// Names the entry of request `request`. Arguments that name no model are refused when it is its
// turn.
static hth_err entry_open(hth_train_queue *queue, hth_train_entry *entry, hth_request *request)
{
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    json_object_del(args, HTH_META_OWNER); // is said here, to nobody who asks for one
    entry->r = request;
    entry->given = request->arguments;
    entry->left_s = NAN;
    hth_err err = entry_arguments(queue, entry, request, args);
    entry_read(entry, args);
    if (err == HTH_OK) {
        err = entry_named(queue, entry, args);
    }
    if (err == HTH_OK) {
        err = entry_alone(queue, entry);
    }
    json_decref(args);
    return err;
}

// entry_again is for a job whose process died while it was at work: one that was paused stays so,
// and one with which process after process died is tried again as often as was asked for, or is
// left for somebody to look at.
static void entry_again(hth_train_queue *queue, hth_train_entry *entry)
{
    char note[HTH_CHECKPOINT_NOTE];
    hth_checkpoint_note_get(queue->ms->store, entry->job, note);
    entry->paused = strcmp(note, HTH_TRAIN_PAUSED) == 0;
    if (!entry->paused && entry->r->crashes >= ENTRY_MAX_CRASHES) {
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

// entry_refused looks whether a job may come into the queue.
static hth_err entry_refused(hth_train_queue *queue, const hth_train_entry *entry,
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

// entry_recorded tells whether the record of the entry's number is that of a job which was in the
// queue before: of one that this request was to go on with, perhaps somebody else's.
static bool entry_recorded(const hth_train_queue *queue, const hth_train_entry *entry)
{
    json_t *record = NULL;
    (void)hth_job_index_get(queue->ms->store, (uint64_t)entry->id, &record);
    bool recorded = json_object_get(record, "attempts") != NULL;
    json_decref(record);
    return recorded;
}

// entry_never drops what does not come into the queue: a new job has a number perhaps, and is none.
static void entry_never(hth_train_queue *queue, hth_train_entry *entry, hth_err err)
{
    char why[HTH_CHECKPOINT_NOTE];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (entry != NULL && entry->fresh && !entry_recorded(queue, entry)) {
        hth_train_entry_state(queue, entry, "failed", why);
    }
    hth_fail(err, "%s", why);
    if (entry != NULL) {
        hth_train_entry_release(entry);
    }
    hth_train_entry_free(entry);
}

// entry_waits tells who leaves a job here that it is taken, where it does not begin at once.
static hth_err entry_waits(hth_train_queue *queue, hth_train_entry *entry, bool later)
{
    HTH_TRY(hth_train_wait_look(queue, entry));
    if (!later && entry->gate == HTH_TRAIN_GATE_NONE) {
        return HTH_OK;
    }
    return hth_train_entry_take(
        queue, entry, entry->gate == HTH_TRAIN_GATE_TENANT ? HTH_TRAIN_QUEUED : "waiting");
}

void hth_train_queue_add(hth_train_queue *queue, hth_request *request)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e), *same;
    hth_err err = e != NULL ? entry_open(queue, e, request) : hth_no_memory("a job");
    same = e != NULL ? hth_train_queue_find(queue, e->job) : NULL;
    if (err == HTH_OK) {
        err = entry_refused(queue, e, request, same);
    }
    if (err != HTH_OK) {
        entry_never(queue, e, err);
        queue->answer(request, err);
        return;
    }
    if (same != NULL && hth_train_entry_own(same)) { // who asks takes it over, from its checkpoint
        hth_train_queue_end(queue, same, hth_fail(HTH_ECANCELED, "'%s' was requested", e->job),
                            NULL);
    }
    bool later = hth_train_queue_ahead(queue) != NULL;
    hth_train_queue_append(queue, e);
    if (request->crashes > 0) {
        entry_again(queue, e);
    } else if ((err = entry_waits(queue, e, later)) != HTH_OK) {
        hth_train_queue_end(queue, e, err, hth_train_queue_failed(queue, e, err));
    }
}

hth_err hth_train_queue_own(hth_train_queue *queue, const char *job, json_t *given, bool requested)
{
    hth_train_entry *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_no_memory("a job");
    }
    snprintf(e->job, sizeof e->job, "%s", job);
    hth_train_entry_adopt(e);
    hth_err err = hth_train_entry_resume(queue, e, given);
    e->tenant = hth_tenant_of(queue->ms->site->tenants, e->owner);
    if (err == HTH_OK && requested) {
        err = hth_tenant_trains(e->tenant);
    }
    if (err != HTH_OK) {
        hth_train_entry_free(e);
        return err;
    }
    hth_train_queue_append(queue, e);
    hth_train_entry_number(queue, e);
    (void)hth_train_wait_look(queue, e); // whatever it is, its turn says so
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
