// SPDX-License-Identifier: Apache-2.0
// What the store keeps of a job from its first moment on: its record (runtime/job_index.h), which
// has its times and its state, and its log (job_log.h). Both are only told here; what the job is
// to do is in its checkpoint.
#include "engine/train/queue/train_entry_impl.h"
#include "engine/train/queue/train_kind.h"

#include "base/clock.h"
#include "base/log.h"
#include "runtime/job_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_STEP_NS 10000000000u // from one step in the log to the next, at least

static json_t *record_after(const hth_train_entry *entry, const json_t *args)
{
    const json_t *after = json_object_get(args, "after");
    return json_is_array(after) ? json_deep_copy(after) : json_null();
}

// record_begin completes the record of a job that comes into the queue, for the first time or again
// after a restart, and reads which attempt is at work.
static void record_begin(const hth_train_queue *queue, hth_train_entry *entry)
{
    json_t *record, *args = json_loads(entry->r->arguments, 0, NULL);
    char text[HTH_TRAIN_LOG_LINE], does[240];
    if (hth_job_index_get(queue->ms->store, (uint64_t)entry->id, &record) == HTH_OK) {
        json_int_t attempt = json_integer_value(json_object_get(record, "attempt"));
        entry->attempt = attempt > entry->attempt ? (int)attempt : entry->attempt;
        json_decref(record);
    }
    (void)hth_job_index_set(queue->ms->store, (uint64_t)entry->id,
                            json_pack("{s:i, s:o, s:O?}", "attempts", entry->retries + 1, "after",
                                      record_after(entry, args), "time_limit",
                                      json_object_get(args, "time-limit")));
    if (hth_job_log_open(queue->ms->store, (uint64_t)entry->id, &entry->log) == HTH_OK) {
        json_t *lines = hth_job_log_lines(entry->log, 0, 1);
        if (json_array_size(json_object_get(lines, "lines")) == 0) {
            hth_train_kind_does(args, entry->job, does, sizeof does);
            snprintf(text, sizeof text, "submitted by '%s': %s", entry->of, does);
            hth_job_log_add(entry->log, "info", text);
        }
        json_decref(lines);
    }
    json_decref(args);
}

void hth_train_entry_number(const hth_train_queue *queue, hth_train_entry *entry)
{
    char detail[HTH_CHECKPOINT_NOTE]; // why the job ends, perhaps
    uint64_t id;
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    if (entry->id == 0 && entry->job[0] != 0 && !entry->member &&
        hth_job_index_add(queue->ms->store, entry->job, entry->of, &id) == HTH_OK) {
        entry->id = (json_int_t)id;
        hth_train_entry_set(entry, "id", json_integer(entry->id));
        if (entry->work != NULL) {
            hth_job_number(entry->work, id);
        }
    }
    if (entry->id > 0 && entry->log == NULL) {
        record_begin(queue, entry);
    }
    (void)hth_err_restore(HTH_EIO, detail);
}

void hth_train_entry_log(hth_train_entry *entry, const char *level, const char *text)
{
    hth_job_log_add(entry->log, level, text);
}

static bool record_ended(const char *word)
{
    return strcmp(word, "finished") == 0 || strcmp(word, "failed") == 0 ||
           strcmp(word, "canceled") == 0;
}

void hth_train_entry_state(const hth_train_queue *queue, hth_train_entry *entry, const char *word,
                           const char *why)
{
    char text[HTH_TRAIN_LOG_LINE];
    json_t *record;
    if (entry->member) {
        return;
    }
    entry->noted = true;
    bool some = why != NULL && why[0] != 0, ended = record_ended(word);
    const char *colon = some ? ": " : "";
    snprintf(text, sizeof text, "%s%s%s", word, colon, some ? why : "");
    hth_job_log_add(entry->log, strcmp(word, "failed") == 0 ? "error" : "info", text);
    hth_job_log_flush(entry->log);
    if (entry->id == 0 ||
        hth_job_index_get(queue->ms->store, (uint64_t)entry->id, &record) != HTH_OK) {
        return;
    }
    json_t *when = ended ? json_integer((json_int_t)hth_job_index_now()) : json_null();
    json_t *changes = json_pack("{s:s, s:s?, s:i, s:o}", "state", word, "why", some ? why : NULL,
                                "attempt", entry->attempt, "ended", when);
    bool begins =
        strcmp(word, "running") == 0 && !json_is_integer(json_object_get(record, "started"));
    if (begins) {
        json_object_set_new(changes, "started", json_integer((json_int_t)hth_job_index_now()));
    }
    json_decref(record);
    if (hth_job_index_set(queue->ms->store, (uint64_t)entry->id, changes) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "record of job '%s': %s", entry->job, hth_err_detail());
    }
}

void hth_train_entry_step(hth_train_entry *entry, const char *event, uint64_t done, uint64_t total)
{
    uint64_t now = hth_now_ns();
    char text[HTH_TRAIN_LOG_LINE];
    if (entry->log == NULL ||
        (done < total && entry->logged_ns > 0 && now - entry->logged_ns < RECORD_STEP_NS)) {
        return;
    }
    json_t *o = json_loads(event, 0, NULL);
    const json_t *held = json_object_get(o, "held_out_loss");
    if (json_object_get(o, "step") != NULL) {
        const char *form = json_object_get(o, "inertia") != NULL
                               ? "iteration %llu of %llu: inertia %.6g, %.3g ms"
                               : "step %llu of %llu: loss %.6g, %.3g ms";
        int n = snprintf(text, sizeof text, form, (unsigned long long)done,
                         (unsigned long long)total, json_number_value(json_object_get(o, "loss")),
                         json_number_value(json_object_get(o, "ms")));
        if (held != NULL) {
            snprintf(text + n, sizeof text - (size_t)n, "; held-out loss %.6g",
                     json_number_value(held));
        }
        hth_job_log_add(entry->log, "info", text);
        if (done < total) { // else its end comes next
            hth_job_log_flush(entry->log);
        }
        entry->logged_ns = now;
    } else if (json_object_get(o, "seeded") != NULL) {
        snprintf(text, sizeof text, "k-means++ has chosen %.0f of %.0f centroids",
                 json_number_value(json_object_get(o, "seeded")),
                 json_number_value(json_object_get(o, "centroids")));
        hth_job_log_add(entry->log, "info", text);
        hth_job_log_flush(entry->log);
        entry->logged_ns = now;
    }
    json_decref(o);
}
