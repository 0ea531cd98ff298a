// SPDX-License-Identifier: Apache-2.0
// engine/train/queue/job_log.h - a job's log: the last HTH_TRAIN_LOG_BYTES of its lines, as a text
// in the store, by the job's number. A line is {"n", "time", "level", "text"}: its number, from 1,
// and ns since 1970. Lines are added in memory, and written to the store by hth_job_log_flush.
#ifndef HTH_ENGINE_TRAIN_QUEUE_JOB_LOG_H
#define HTH_ENGINE_TRAIN_QUEUE_JOB_LOG_H

#include "modelstore/store.h"

#include <jansson.h>

#define HTH_TRAIN_LOG_BYTES 16384
#define HTH_TRAIN_LOG_LINE  400 // bytes of a line's text, at most

typedef struct hth_job_log hth_job_log;

// hth_job_log_open opens the log of job number `id`, with the lines that the store has.
hth_err hth_job_log_open(hth_store *store, uint64_t id, hth_job_log **out);
void hth_job_log_close(hth_job_log *log); // writes what was added; NULL is allowed
// hth_job_log_add adds a line; NULL takes none. What is too long is cut.
void hth_job_log_add(hth_job_log *log, const char *level, const char *text);
void hth_job_log_flush(hth_job_log *log); // NULL is allowed
// hth_job_log_lines returns {"lines": [..], "next"}: at most `max` lines with numbers greater
// than `after`, and what `after` is to be to get those that follow. The caller's; NULL: no memory.
json_t *hth_job_log_lines(const hth_job_log *log, json_int_t after, size_t max);

#endif
