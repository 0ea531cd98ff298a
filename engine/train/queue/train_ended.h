// SPDX-License-Identifier: Apache-2.0
// engine/train/queue/train_ended.h - what is kept of training jobs that have ended: the last
// HTH_ENDED_JOBS of them, each a row and its losses, as texts in the store. Any thread, and any
// process that has the store open.
#ifndef HTH_ENGINE_TRAIN_QUEUE_TRAIN_ENDED_H
#define HTH_ENGINE_TRAIN_QUEUE_TRAIN_ENDED_H

#include "modelstore/store.h"

#include <jansson.h>

#define HTH_ENDED_JOBS   100
#define HTH_ENDED_POINTS 10000 // losses that are kept of a job; of longer ones every n-th step's

// hth_ended_add keeps `row`, which gets the time as "ended_ns" and the next number as "id" where it
// has none, and `state`'s "history", "held_out", "memory" and what was best. The oldest record goes
// when there are too many.
hth_err hth_ended_add(hth_store *store, json_t *row, const json_t *state);
// hth_ended_list appends the rows to the array `out`, the last job first.
hth_err hth_ended_list(hth_store *store, json_t *out);
// hth_ended_find stores the row of job number `job`, or of the last job of that name; with
// `history` its losses ([[loss, ms], ..]), "every", the steps from one to the next, and "held_out".
// HTH_ENOENT.
hth_err hth_ended_find(hth_store *store, const char *job, bool history, json_t **out);

// hth_ended_lost ends the jobs that a server which was killed has lost (hth_job_index_lost), and
// keeps a row of each.
hth_err hth_ended_lost(hth_store *store);

// hth_ended_thin returns every n-th loss, at most `most` (> 0), and the last one; *every: n.
json_t *hth_ended_thin(const json_t *history, size_t most, size_t *every);

#endif
