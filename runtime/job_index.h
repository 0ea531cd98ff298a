// SPDX-License-Identifier: Apache-2.0
// runtime/job_index.h - the numbers of training jobs. A job is called as the model that it makes,
// and many jobs make the same model one after the other: its number, which no other job of the
// store ever has, tells which of them is meant. Any thread, and any process that has the store
// open.
#ifndef HTH_RUNTIME_JOB_INDEX_H
#define HTH_RUNTIME_JOB_INDEX_H

#include "runtime/checkpoint_index.h"

#define HTH_JOB_INDEX 1000 // jobs whose names are found by their numbers: the last ones

// hth_job_index_take gives out the next number, from 1. It leaves out those that would take the
// place of a job's record which was in a queue ("attempts") and has not ended.
hth_err hth_job_index_take(hth_store *store, uint64_t *id);
// A job's record is a JSON object: {"id", "job", "tenant", "submitted", "started", "ended" (ns
// since 1970), "state", "why", "attempt", "attempts", "after", "time_limit"}, as far as that is
// known.
//
// hth_job_index_add gives `job` of `tenant` the next number, and begins its record.
hth_err hth_job_index_add(hth_store *store, const char *job, const char *tenant, uint64_t *id);
// hth_job_index_find stores the name of job number `id`, and whose it is. HTH_ENOENT.
hth_err hth_job_index_find(hth_store *store, uint64_t id, char job[HTH_CHECKPOINT_JOB],
                           char tenant[HTH_TENANT]);
// hth_job_index_begin names and numbers the job that `args` submit ("id", "save-as"), and begins
// its record. Without "save-as" its result is called after the model and the number, "digits-job7",
// so that it is not what is served next. With "resume" it is the tenant's job that has a
// checkpoint: without "save-as" its last one of that model that was named so. admin: jobs without
// an owner are its own, too. *id 0, HTH_OK: it can have no name.
hth_err hth_job_index_begin(hth_store *store, json_t *args, const char *tenant, bool admin,
                            char job[HTH_CHECKPOINT_JOB], uint64_t *id);
// hth_job_index_get stores the record of job number `id`, the caller's. HTH_ENOENT.
hth_err hth_job_index_get(hth_store *store, uint64_t id, json_t **record);
// hth_job_index_set changes the record: `changes` is freed. Nothing happens where there is none.
hth_err hth_job_index_set(hth_store *store, uint64_t id, json_t *changes);
// hth_job_index_lost cancels the records of jobs that have not ended and have no checkpoint: a
// server that ended without a word has lost them, and others wait for what becomes of them. `lost`
// is told each that was in a queue. The caller alone has the store open, and no job is at work.
#define HTH_JOB_INDEX_LOST "its server ended, and nothing of it was stored"
hth_err hth_job_index_lost(hth_store *store, void (*lost)(hth_store *store, const json_t *record));
// hth_job_index_named stores the number of the last job of that name, of those with numbers less
// than `before`. HTH_ENOENT.
hth_err hth_job_index_named(hth_store *store, const char *job, uint64_t before, uint64_t *id);
// hth_job_index_now is the time, in ns since 1970.
uint64_t hth_job_index_now(void);
// hth_job_index_resolve reads which job the arguments of a command mean, {"id": 7}, {"job": "7"}
// where no model is called so, or {"job": "digits"}: in the first two it sets "job" to the job's
// name and "id" to its number. `tenant` is who asks, NULL: someone who may know of others' jobs.
// HTH_ENOENT: such a number is another tenant's; HTH_EINVAL: "id" is no number of a job.
hth_err hth_job_index_resolve(hth_store *store, json_t *args, const char *tenant);

#endif
