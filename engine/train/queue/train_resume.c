// SPDX-License-Identifier: Apache-2.0
// How a job goes on from its checkpoint: asked for by its name, after a pause, or by the server
// itself when it starts again.
#include "engine/train/queue/train_entry_impl.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/job_index.h"
#include "runtime/arguments.h"

#include <math.h>
#include <stdio.h>

// resume_left guesses what the steps will take that a job has left, by those that it has made.
static double resume_left(const json_t *doc)
{
    const json_t *history = json_object_get(doc, "history");
    size_t n = json_array_size(history);
    double ms = 0, steps = (double)json_integer_value(json_object_get(doc, "steps"));
    for (size_t i = 0; i < n; i++) {
        ms += json_number_value(json_array_get(json_array_get(history, i), 1));
    }
    return n > 0 ? ms / 1e3 / (double)n * (steps - (double)n) : NAN;
}

// resume_same refuses what would make another job of one that goes on. Who owns these was looked at
// when it was submitted: with another model it would learn what that has, and under another name it
// would have the checkpoints of the job that is called so.
static hth_err resume_same(const char *job, const json_t *args, const json_t *given)
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
    hth_err err = resume_same(entry->job, args, given);
    if (err != HTH_OK) {
        json_decref(doc);
        return err;
    }
    hth_checkpoint_tenant(args, entry->owner);
    json_object_del(given, "job");
    json_object_del(given, "id");
    json_object_del(args, "detach"); // was said about another request
    if (entry->r != &entry->own) {   // .. and who asks says with which ranks it goes on
        json_object_del(args, HTH_RANK_KEY);
    }
    json_object_update(args, given);
    json_object_set_new(args, "resume", json_true());
    uint64_t id;
    if (json_object_get(args, "id") == NULL && // submitted when jobs had no numbers yet
        hth_job_index_add(queue->ms->store, entry->job, entry->owner, &id) == HTH_OK) {
        json_object_set_new(args, "id", json_integer((json_int_t)id));
    }
    hth_train_entry_read(entry, args);
    entry->left_s = resume_left(doc);
    entry->left_steps = json_integer_value(json_object_get(doc, "steps")) -
                        (int64_t)json_array_size(json_object_get(doc, "history"));
    hth_train_fair_forget(queue, entry);
    if (json_object_get(given, "budget") != NULL) {
        json_object_del(args, HTH_TRAIN_HAD);
    }
    hth_train_fair_exact(entry, args);
    entry->tried = 0;
    err = hth_train_entry_keep(entry, args);
    json_decref(doc);
    return err;
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
    if (hth_checkpoint_list(queue->ms->store, &names) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "interrupted jobs: %s", hth_err_detail());
        names = NULL;
    }
    json_array_foreach(names, i, name)
    {
        const char *job = json_string_value(name);
        hth_checkpoint_note_get(queue->ms->store, job, note);
        if (note[0] == 0 && hth_train_queue_own(queue, job, none, false) != HTH_OK) {
            hth_log(WARN, SERVER, "train", "interrupted job '%s': %s", job, hth_err_detail());
        }
    }
    json_decref(none);
    json_decref(names);
}
