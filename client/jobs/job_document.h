// SPDX-License-Identifier: Apache-2.0
// client/jobs/job_document.h - what hearth.h says of training jobs, read from and written to the
// documents that servers speak: job.c has the calls.
#ifndef HTH_CLIENT_JOBS_JOB_DOCUMENT_H
#define HTH_CLIENT_JOBS_JOB_DOCUMENT_H

#include "client/hearth.h"

#include "base/err.h"

#include <jansson.h>

#include <stdbool.h>

// hth_options_read copies a structure that begins with its size (0: `first` bytes, as many as its
// first version had) to `out`, which has `bytes`, and zero for what the caller's header lacks.
// HTH_ENOTSUP: it uses a field that this library does not know.
hth_err hth_options_read(const void *given, void *out, size_t bytes, size_t first);
// hth_job_arguments writes what a job is asked to do as the arguments of the question "train"; the
// caller frees *text with hth_free.
hth_err hth_job_arguments(const char *model, const char *data, const hearth_train_options *options,
                          char **text);
// hth_job_rows makes a list of rows (an array), hth_job_row of one, with the event that led to it
// (NULL: none). hearth_free frees it, with all that it points to; of no rows *out is NULL.
hth_err hth_job_rows(const json_t *rows, hearth_job_info **out);
hth_err hth_job_row(const json_t *row, const char *event, hearth_job_info **out);
// hth_job_result makes a result of a finished job's document. HTH_EBUSY, HTH_ECANCELED, HTH_EIO: it
// has not finished.
hth_err hth_job_result(const json_t *doc, hearth_train_result **out);
hearth_job_state hth_job_state_of(const json_t *row);
bool hth_job_goes_on(hearth_job_state state);

#endif
