// SPDX-License-Identifier: Apache-2.0
// client/job_impl.h - what job.c and job_watch.c share: a question to a server, and its document.
#ifndef HTH_CLIENT_JOB_IMPL_H
#define HTH_CLIENT_JOB_IMPL_H

#include "client/job_document.h"

// hth_job_ask asks `what`, taking `args`, and reads the answer; *doc is the caller's, NULL on error.
hth_err hth_job_ask(hearth *h, const char *what, json_t *args, json_t **doc);

#endif
