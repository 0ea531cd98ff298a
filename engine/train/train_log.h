// SPDX-License-Identifier: Apache-2.0
// engine/train/train_log.h - a job's log: the last HTH_TRAIN_LOG_BYTES of its lines, as a text in
// the store, by the job's number. A line is {"n", "time", "level", "text"}: its number, from 1, and
// ns since 1970. Lines are added in memory, and written to the store by hth_train_log_flush.
#ifndef HTH_ENGINE_TRAIN_TRAIN_LOG_H
#define HTH_ENGINE_TRAIN_TRAIN_LOG_H

#include "modelstore/store.h"

#include <jansson.h>

#define HTH_TRAIN_LOG_BYTES 16384
#define HTH_TRAIN_LOG_LINE  400 // bytes of a line's text, at most

typedef struct hth_train_log hth_train_log;

// hth_train_log_open opens the log of job number `id`, with the lines that the store has.
hth_err hth_train_log_open(hth_store *store, uint64_t id, hth_train_log **out);
void hth_train_log_close(hth_train_log *log); // writes what was added; NULL is allowed
// hth_train_log_add adds a line; NULL takes none. What is too long is cut.
void hth_train_log_add(hth_train_log *log, const char *level, const char *text);
void hth_train_log_flush(hth_train_log *log); // NULL is allowed
// hth_train_log_lines returns {"lines": [..], "next"}: at most `max` lines with numbers greater
// than `after`, and what `after` is to be to get those that follow. The caller's; NULL: no memory.
json_t *hth_train_log_lines(const hth_train_log *log, json_int_t after, size_t max);

#endif
