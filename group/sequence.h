// SPDX-License-Identifier: Apache-2.0
// group/sequence.h - which shards a job had, by which it can be repeated: a JSON list of rows
// [step, samples of member 0, 1, ..], each of which holds from that step (from 0) on, of whole
// batches.
#ifndef HTH_GROUP_SEQUENCE_H
#define HTH_GROUP_SEQUENCE_H

#include "base/err.h"
#include "group/shards.h"

#include <jansson.h>

// hth_sequence_given is the sequence that a job's arguments ask for ("shards"): rows, or the
// summary of the job that had them. Theirs; NULL: they have none.
const json_t *hth_sequence_given(const json_t *args);
// hth_sequence_check refuses with HTH_EINVAL what is none of `members` devices and this batch. In
// its first row each has a sample at least.
hth_err hth_sequence_check(const json_t *rows, int members, int64_t batch);
// hth_sequence_at stores the shards of a step; false: the sequence has none of so many members.
bool hth_sequence_at(const json_t *rows, int members, int64_t step, int64_t n[HTH_GROUP_MEMBERS]);
// hth_sequence_add adds a row. HTH_ENOMEM.
hth_err hth_sequence_add(json_t *rows, int members, int64_t step, const int64_t *n);
// hth_sequence_cut removes the rows of `step` and later ones.
void hth_sequence_cut(json_t *rows, int64_t step);

#endif
