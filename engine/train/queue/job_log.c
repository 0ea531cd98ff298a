// SPDX-License-Identifier: Apache-2.0
// Job number N has its log in the text train/log/S, S = N modulo HTH_JOB_INDEX, which says whose it
// is: the log of a job of long ago is overwritten.
#include "engine/train/queue/job_log.h"

#include "base/alloc.h"
#include "base/log.h"
#include "runtime/job_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG_KEY  40
#define LOG_LINE 40 // bytes that a line takes in addition to its text

struct hth_job_log {
    hth_store *store;
    uint64_t id;
    json_t *lines; // [{"n", "time", "level", "text"}, ..]
    json_int_t last;
    size_t bytes;
    bool changed;
};

static const char *log_key(uint64_t id, char key[LOG_KEY])
{
    snprintf(key, LOG_KEY, "train/log/%" PRIu64, id % HTH_JOB_INDEX);
    return key;
}

static size_t log_line_bytes(const json_t *line)
{
    return LOG_LINE + json_string_length(json_object_get(line, "text"));
}

// log_load takes over the lines of the store, if they are this job's.
static hth_err log_load(hth_job_log *log)
{
    char key[LOG_KEY];
    char *text = NULL;
    hth_err err = hth_store_text_load(log->store, log_key(log->id, key), &text);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    json_t *doc = json_loads(text, 0, NULL), *line;
    json_t *lines = json_object_get(doc, "lines");
    size_t i;
    hth_free(text);
    if (json_integer_value(json_object_get(doc, "id")) == (json_int_t)log->id &&
        json_is_array(lines)) {
        json_decref(log->lines);
        log->lines = json_incref(lines);
        json_array_foreach(lines, i, line)
        {
            log->last = json_integer_value(json_object_get(line, "n"));
            log->bytes += log_line_bytes(line);
        }
    }
    json_decref(doc);
    return HTH_OK;
}

hth_err hth_job_log_open(hth_store *store, uint64_t id, hth_job_log **out)
{
    hth_job_log *log = hth_calloc(1, sizeof *log);
    *out = NULL;
    if (log == NULL) {
        return hth_no_memory("a job's log");
    }
    *log = (hth_job_log){.store = store, .id = id, .lines = json_array()};
    hth_err err = log_load(log);
    if (err != HTH_OK) {
        hth_job_log_close(log);
        return err;
    }
    *out = log;
    return HTH_OK;
}

void hth_job_log_close(hth_job_log *log)
{
    if (log != NULL) {
        hth_job_log_flush(log);
        json_decref(log->lines);
        hth_free(log);
    }
}

void hth_job_log_add(hth_job_log *log, const char *level, const char *text)
{
    if (log == NULL) {
        return;
    }
    size_t n = strlen(text);
    for (n = n < HTH_TRAIN_LOG_LINE ? n : HTH_TRAIN_LOG_LINE;
         n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;) {
        n--; // not in the middle of a character
    }
    json_t *line = json_pack("{s:I, s:I, s:s, s:s%}", "n", log->last + 1, "time",
                             (json_int_t)hth_job_index_now(), "level", level, "text", text, n);
    if (line == NULL || json_array_append_new(log->lines, line) != 0) {
        return; // a line that is not UTF-8, or no memory: the job goes on without
    }
    log->last++;
    log->bytes += log_line_bytes(line);
    log->changed = true;
    while (log->bytes > HTH_TRAIN_LOG_BYTES) {
        log->bytes -= log_line_bytes(json_array_get(log->lines, 0));
        json_array_remove(log->lines, 0);
    }
}

void hth_job_log_flush(hth_job_log *log)
{
    char key[LOG_KEY];
    if (log == NULL || !log->changed) {
        return;
    }
    json_t *doc = json_pack("{s:I, s:O}", "id", (json_int_t)log->id, "lines", log->lines);
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    hth_err err = text != NULL ? hth_store_text_put(log->store, log_key(log->id, key), text)
                               : hth_no_memory("a job's log");
    free(text);
    log->changed = err != HTH_OK; // is tried again with the next line
    if (err != HTH_OK) {
        hth_log(WARN, STORE, "job-log", "job=%" PRIu64 " %s", log->id, hth_err_detail());
    }
}

json_t *hth_job_log_lines(const hth_job_log *log, json_int_t after, size_t max)
{
    json_t *lines = json_array(), *line;
    size_t i;
    json_array_foreach(log->lines, i, line)
    {
        json_int_t n = json_integer_value(json_object_get(line, "n"));
        if (n > after && json_array_size(lines) < max) {
            json_array_append(lines, line);
        }
    }
    line = json_array_get(lines, json_array_size(lines) - 1);
    json_int_t next = line != NULL ? json_integer_value(json_object_get(line, "n")) : after;
    return json_pack("{s:o, s:I}", "lines", lines, "next", next);
}
