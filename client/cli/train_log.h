// SPDX-License-Identifier: Apache-2.0
// client/cli/train_log.h - a job's losses as files: CSV, and TensorBoard's event file.
//
// Design notes
// Rows are written as the job's events come, so that a plot grows with the job. A client hears of a
// fast job's steps only now and then, or began to listen late: when the job has ended, its document
// has every step, and files with gaps are replaced by whole ones. One thread at a time.
#ifndef HTH_CLIENT_CLI_TRAIN_LOG_H
#define HTH_CLIENT_CLI_TRAIN_LOG_H

#include "base/err.h"

#include <jansson.h>

typedef struct hth_train_log hth_train_log;

// hth_train_log_open makes the files: `csv`, and in the folder `tensorboard`, which is made if it
// is not there, one file of a new name. A CSV file that is there is replaced with the first that is
// heard of the job: of one that is refused nothing is. Either may be NULL; both: *out is NULL.
// HTH_EIO names what cannot be made.
hth_err hth_train_log_open(const char *csv, const char *tensorboard, hth_train_log **out);
// hth_train_log_event takes what was said about the job (JSON); other things than steps are
// ignored. A failed write is reported at the end. log may be NULL.
void hth_train_log_event(hth_train_log *log, const json_t *event);
// hth_train_log_end takes the job's document or the summary of its training (NULL: nothing more is
// known, and where nothing was heard before either, files are as they were), fills gaps if it has
// no fewer steps than the files, and closes them. Of a thinned one ("every") files without a step
// get what it has; gaps are told on stderr. The error is the first one of all writes.
hth_err hth_train_log_end(hth_train_log *log, const json_t *doc);

#endif
