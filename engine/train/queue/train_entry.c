// SPDX-License-Identifier: Apache-2.0
// A job in the queue: whose request it is, its arguments, and when it is taken. A job that its
// client leaves here is in the store before that is told, as a checkpoint of step 0: from then on
// it outlives the client, this process and the server.
#include "engine/train/queue/train_entry_impl.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/job_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hth_train_entry_free(hth_train_entry *entry)
{
    if (entry != NULL) {
        hth_train_gang_close(entry);
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

void hth_train_entry_read(hth_train_entry *entry, const json_t *args)
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

hth_err hth_train_entry_keep(hth_train_entry *entry, const json_t *args)
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
    hth_err err = json_object_set_new(args, key, value) == 0 ? hth_train_entry_keep(entry, args)
                                                             : hth_no_memory("a job");
    json_decref(args);
    return err;
}

hth_err hth_train_entry_stored(const hth_train_queue *queue, const hth_train_entry *entry,
                               json_t **doc)
{
    HTH_TRY(hth_checkpoint_find(queue->ms->store, entry->job, doc));
    const char *given = entry->r->arguments != NULL ? entry->r->arguments : "";
    json_t *args = json_loads(given, 0, NULL);
    bool own = hth_checkpoint_of(args, entry->r->crashes > 0, json_object_get(*doc, "job"));
    json_decref(args);
    if (!own) {
        json_decref(*doc);
        *doc = NULL;
        return hth_checkpoint_none(entry->job);
    }
    return HTH_OK;
}

bool hth_train_entry_kept(const hth_train_queue *queue, const hth_train_entry *entry)
{
    json_t *doc = NULL;
    bool kept = hth_train_entry_stored(queue, entry, &doc) == HTH_OK;
    json_decref(doc);
    return kept;
}

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

// entry_goes_on: the job is in the store already, as the checkpoint that it goes on from.
static bool entry_goes_on(const hth_train_queue *queue, const hth_train_entry *entry)
{
    return entry->work != NULL ? hth_job_saved(entry->work) >= 0
                               : hth_train_entry_kept(queue, entry);
}

// entry_accept stores the job before anybody is told that it is taken. Of one whose client waits,
// nothing is stored before there is a step, but the checkpoint of an older job goes when this one
// begins.
static hth_err entry_accept(const hth_train_queue *queue, hth_train_entry *entry)
{
    const char *given = entry->r->arguments != NULL ? entry->r->arguments : "";
    json_t *args = entry->work != NULL ? json_deep_copy(hth_job_args(entry->work))
                                       : json_loads(given, 0, NULL);
    json_t *doc = NULL;
    bool there = hth_checkpoint_find(queue->ms->store, entry->job, &doc) == HTH_OK;
    bool begins = (entry->leaves || entry->work != NULL) && !entry_goes_on(queue, entry);
    hth_err err = HTH_OK;
    json_object_set_new(args, "tenant", json_string(entry->of));
    if (there && begins) {
        entry_replaced(queue, entry, doc);
    }
    if (entry->leaves && begins) {
        err = hth_checkpoint_accept(queue->ms->store, entry->job, args);
    } else if (there && begins) {
        err = hth_checkpoint_rm(queue->ms->store, entry->job);
    }
    json_decref(doc);
    json_decref(args);
    return hth_err_prefix(err, "the job cannot be stored");
}

// entry_told tells who leaves the job here that it is taken.
static void entry_told(hth_train_entry *entry, const char *text)
{
    if (entry->leaves && !entry->taken && entry->r->progress != NULL) {
        entry->r->progress(entry->r, text, 1, 1);
    }
    entry->taken = entry->leaves;
}

hth_err hth_train_entry_take(hth_train_queue *queue, hth_train_entry *entry, const char *word)
{
    char text[60], why[HTH_CHECKPOINT_NOTE] = "";
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", word);
    if (entry->member) {
        entry_told(entry, text);
        return HTH_OK;
    }
    hth_train_entry_number(queue, entry);
    if (!entry->taken && !hth_train_entry_own(entry)) {
        HTH_TRY(entry_accept(queue, entry));
    }
    if (entry->work == NULL) {
        (void)hth_train_wait_why(queue, entry, why);
    }
    hth_train_entry_state(queue, entry, word, why);
    entry_told(entry, text);
    return HTH_OK;
}
