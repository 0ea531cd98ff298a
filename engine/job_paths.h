// SPDX-License-Identifier: Apache-2.0
// engine/job_paths.h - the paths in a request's arguments: samples ("data", "eval"), first
// centroids ("start"), and the folder of a file for what leaves the device ("spill").
#ifndef HTH_ENGINE_JOB_PATHS_H
#define HTH_ENGINE_JOB_PATHS_H

#include "modelstore/paths.h"

#include <jansson.h>

#define HTH_JOB_PATHS 4 // of one request, at most

// hth_job_paths stores the paths that `args` names, which must outlive them, and returns how many.
int hth_job_paths(const json_t *args, hth_named_path out[HTH_JOB_PATHS]);
// hth_job_paths_keep notes them in the store, so that the engine's process may have them opened,
// now and after a restart. The caller has seen that whoever asks may name paths.
hth_err hth_job_paths_keep(hth_store *store, const json_t *args);
// hth_job_paths_begin forgets what no job of the store's checkpoints needs (hth_paths_begin).
hth_err hth_job_paths_begin(hth_store *store);

#endif
