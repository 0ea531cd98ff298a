// SPDX-License-Identifier: Apache-2.0
#include "engine/train/checkpoint/checkpoint_write.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/store_worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_ALIGN 64

struct hth_checkpointer {
    hth_store *store;
    hth_store_worker *thread;
    hth_store_task job;
    // of the checkpoint at work: the thread's while `busy`
    char name[HTH_CHECKPOINT_NAME];
    char *meta;          // from json_dumps
    hth_put_tensor *put; // names and data lie in `copy`, or are the trainer's
    int n;
    int64_t step;
    char *copy;
    size_t copy_bytes;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t idle;
    bool busy, put_due, trim_due; // what the thread is to do, put first
    bool unproven;                // the one before is still there
    bool untrimmed;               // .. because it could not be removed
    int64_t saved;
    hth_err err;
    char detail[512];
};

static hth_err write_put(hth_checkpointer *checkpointer)
{
    return hth_checkpoint_put(checkpointer->store, checkpointer->name, checkpointer->meta,
                              checkpointer->put, checkpointer->n);
}

static void write_drop(hth_checkpointer *checkpointer)
{
    free(checkpointer->meta);
    hth_free(checkpointer->put);
    checkpointer->meta = NULL;
    checkpointer->put = NULL;
}

// write_trimmed notes, under the lock, what became of removing the one before. Where that failed
// the last one is as good as it was: it is tried again when the next step has proved it again.
static void write_trimmed(hth_checkpointer *checkpointer, hth_err err)
{
    if (err != HTH_OK && !checkpointer->untrimmed) {
        hth_log(WARN, STORE, "checkpoint-kept", "model=%s: an older one is not removed: %s",
                checkpointer->name, hth_err_detail());
    }
    checkpointer->untrimmed = err != HTH_OK;
    checkpointer->unproven = checkpointer->unproven || checkpointer->untrimmed;
}

static void write_run(hth_store_task *job)
{
    hth_checkpointer *w = (hth_checkpointer *)((char *)job - offsetof(hth_checkpointer, job));
    pthread_mutex_lock(&w->lock);
    while (w->put_due || w->trim_due) {
        bool put = w->put_due;
        *(put ? &w->put_due : &w->trim_due) = false;
        pthread_mutex_unlock(&w->lock);
        hth_err err = put ? write_put(w) : hth_checkpoint_trim(w->store, w->name);
        pthread_mutex_lock(&w->lock);
        if (!put) {
            write_trimmed(w, err);
        } else if (err != HTH_OK) {
            w->err = err;
            snprintf(w->detail, sizeof w->detail, "%s", hth_err_detail());
            w->unproven = false; // there is nothing to prove
            w->trim_due = false;
        } else {
            w->saved = w->step;
        }
    }
    w->busy = false;
    pthread_cond_signal(&w->idle);
    pthread_mutex_unlock(&w->lock);
}

hth_err hth_checkpointer_open(hth_store *store, hth_checkpointer **out)
{
    *out = NULL;
    hth_checkpointer *w = hth_calloc(1, sizeof *w);
    if (w == NULL) {
        return hth_no_memory("checkpoints");
    }
    w->store = store;
    w->saved = -1;
    w->job.run = write_run;
    hth_err err = hth_store_worker_open(&w->thread);
    if (err != HTH_OK) {
        hth_free(w);
        return err;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->idle, NULL);
    *out = w;
    return HTH_OK;
}

void hth_checkpointer_close(hth_checkpointer *checkpointer)
{
    if (checkpointer == NULL) {
        return;
    }
    hth_store_worker_close(checkpointer->thread);
    write_drop(checkpointer);
    hth_free(checkpointer->copy);
    pthread_cond_destroy(&checkpointer->idle);
    pthread_mutex_destroy(&checkpointer->lock);
    hth_free(checkpointer);
}

hth_err hth_checkpointer_wait(hth_checkpointer *checkpointer, int64_t *saved)
{
    pthread_mutex_lock(&checkpointer->lock);
    while (checkpointer->busy) {
        pthread_cond_wait(&checkpointer->idle, &checkpointer->lock);
    }
    *saved = checkpointer->saved;
    hth_err err = checkpointer->err;
    checkpointer->err = HTH_OK;
    pthread_mutex_unlock(&checkpointer->lock);
    return hth_err_restore(err, checkpointer->detail);
}

bool hth_checkpointer_poll(hth_checkpointer *checkpointer, int64_t *saved, hth_err *err)
{
    pthread_mutex_lock(&checkpointer->lock);
    bool busy = checkpointer->busy;
    pthread_mutex_unlock(&checkpointer->lock);
    if (!busy) { // only this thread has it write
        *err = hth_checkpointer_wait(checkpointer, saved);
    }
    return !busy;
}

static size_t write_aligned(size_t bytes)
{
    return (bytes + WRITE_ALIGN - 1) / WRITE_ALIGN * WRITE_ALIGN;
}

// Copies names and contents; false: there is no memory for that. The memory is kept for the next
// time.
static bool write_copy(hth_checkpointer *checkpointer)
{
    size_t bytes = 0;
    for (int i = 0; i < checkpointer->n; i++) {
        bytes += write_aligned(checkpointer->put[i].bytes) +
                 write_aligned(strlen(checkpointer->put[i].name) + 1);
    }
    if (checkpointer->copy_bytes < bytes) {
        hth_free(checkpointer->copy);
        checkpointer->copy = hth_alloc_aligned(bytes, WRITE_ALIGN);
        checkpointer->copy_bytes = checkpointer->copy != NULL ? bytes : 0;
    }
    char *at = checkpointer->copy;
    for (int i = 0; at != NULL && i < checkpointer->n; i++) {
        hth_put_tensor *t = &checkpointer->put[i];
        t->data = memcpy(at, t->data, t->bytes);
        at += write_aligned(t->bytes);
        t->name = strcpy(at, t->name);
        at += write_aligned(strlen(t->name) + 1);
    }
    return at != NULL;
}

hth_err hth_checkpointer_save(hth_checkpointer *checkpointer, const hth_train_spec *spec,
                              hth_trainer *trainer, const hth_checkpoint *checkpoint)
{
    int64_t saved;
    HTH_TRY(hth_checkpointer_wait(checkpointer, &saved));
    write_drop(checkpointer);
    HTH_TRY(hth_checkpoint_name(spec, checkpointer->name));
    json_t *doc = hth_checkpoint_doc(checkpoint);
    checkpointer->meta = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(doc);
    if (checkpointer->meta == NULL) {
        return hth_no_memory("a checkpoint");
    }
    HTH_TRY(hth_trainer_state(trainer, &checkpointer->put, &checkpointer->n));
    checkpointer->step = checkpoint->step;
    checkpointer->unproven = true;
    if (spec->spill != NULL || !write_copy(checkpointer)) {
        HTH_TRY(write_put(checkpointer));
        checkpointer->saved = checkpoint->step;
        return HTH_OK;
    }
    checkpointer->busy = checkpointer->put_due = true; // the thread does not run
    hth_store_worker_submit(checkpointer->thread, &checkpointer->job);
    return HTH_OK;
}

void hth_checkpointer_proved(hth_checkpointer *checkpointer)
{
    pthread_mutex_lock(&checkpointer->lock);
    bool idle = checkpointer->unproven && !checkpointer->busy;
    checkpointer->trim_due = checkpointer->trim_due || checkpointer->unproven;
    checkpointer->busy = checkpointer->busy || checkpointer->unproven;
    checkpointer->unproven = false;
    pthread_mutex_unlock(&checkpointer->lock);
    if (idle) {
        hth_store_worker_submit(checkpointer->thread, &checkpointer->job);
    }
}

hth_err hth_checkpointer_back(hth_checkpointer *checkpointer, const hth_train_spec *spec)
{
    int64_t saved;
    (void)hth_checkpointer_wait(checkpointer, &saved); // one that was not written is not there
    HTH_TRY(hth_checkpoint_name(spec, checkpointer->name));
    return hth_checkpoint_back(checkpointer->store, checkpointer->name, &checkpointer->saved);
}
