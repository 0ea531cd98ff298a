// SPDX-License-Identifier: Apache-2.0
// modelstore/check.h - what is known of the stored bytes: when a tensor's file was last read and
// found right, which are damaged, and what a version's record has to be.
//
// Design notes
// A tensor's id says what its bytes are, a version's record is summed up when it is written: both
// can be checked at any time, by any process. What was found is kept in the index (table CHECKS),
// so that a restart goes on where it was, and in the memory of the process, because a process may
// not be able to write. A tensor that is marked as damaged is not read again as long as its file is
// the same one: who asks for it gets the error. An import of its content repairs it (put.c), and
// takes the mark away.
#ifndef HTH_MODELSTORE_CHECK_H
#define HTH_MODELSTORE_CHECK_H

#include "modelstore/object.h"

// What is known of a tensor's file.
typedef struct hth_check_row {
    uint64_t checked_ns; // when it was read last, since 1970
    hth_object_seen seen;
    uint32_t damaged;
    uint32_t spare;
} hth_check_row;

// What a version's record has to be: the sum of its bytes after created_ns, and that.
typedef struct hth_record_sum {
    hth_id sum;
    uint64_t created_ns;
} hth_record_sum;

// Counts of the index (INFO "health").
typedef struct hth_check_health {
    uint64_t damaged; // tensors that are marked
    uint64_t events;  // marks and repairs so far
} hth_check_health;

// ---- in a transaction

// hth_check_get reads a tensor's row; HTH_ENOENT without a sentence. hth_check_put writes it, and
// keeps the counts; hth_check_del forgets it.
hth_err hth_check_get(hth_txn *txn, const hth_id *id, hth_check_row *out);
hth_err hth_check_put(hth_txn *txn, const hth_id *id, const hth_check_row *row);
hth_err hth_check_del(hth_txn *txn, const hth_id *id);
hth_err hth_check_health_get(hth_txn *txn, hth_check_health *out);
// hth_check_event tells all processes that something was marked or repaired: programs look whether
// it is theirs.
hth_err hth_check_event(hth_txn *txn);

// hth_check_sum sums a record up. hth_check_sum_put keeps the sum of the record of a version.
hth_record_sum hth_check_sum(const void *record, size_t bytes);
hth_err hth_check_sum_put(hth_txn *txn, const hth_version_key *key, const void *record,
                          size_t bytes);
hth_err hth_check_sum_get(hth_txn *txn, const hth_version_key *key,
                          hth_record_sum *out); // HTH_ENOENT
hth_err hth_check_sum_del(hth_txn *txn, const hth_version_key *key);
// hth_check_record compares a version's record with its sum, if there is one. HTH_ECORRUPT.
hth_err hth_check_record(hth_txn *txn, const hth_version_key *key, const MDB_val *record);

// Where the reading in the background is (INFO "scrub").
typedef struct hth_scrub_state {
    uint64_t passed_ns;      // when it had last read all that was due, since 1970; 0: never
    uint64_t oldest_ns;      // when, then, the tensor that was read longest ago was read
    uint64_t tensors, bytes; // that have files
    uint64_t index_ns;       // when the index was last compared with itself
    uint64_t index_damages;  // what was found then
    uint64_t copied_changes; // the store's count of changes when the index was last copied
} hth_scrub_state;
hth_err hth_scrub_state_get(hth_txn *txn, hth_scrub_state *out);
hth_err hth_scrub_state_put(hth_txn *txn, const hth_scrub_state *state);

// ---- of a store

// hth_check_sums_fill has each version's record have a sum: those that version 0.1.0
// wrote have none, and are taken as they are.
hth_err hth_check_sums_fill(hth_store *store);
// hth_check_read is hth_object_check, and remembers what it finds. A tensor that the store has lost
// meanwhile, with its last version, is not damaged: HTH_OK.
hth_err hth_check_read(hth_store *store, const hth_object *object, bool direct,
                       hth_object_tick tick, void *ctx, hth_object_seen *seen);

// hth_check_found keeps that a file was read, and found damaged or right. A mark is logged, and
// kept at once; that a file is right is kept by the next hth_check_flush, or by nobody.
void hth_check_found(hth_store *store, const hth_id *id, const hth_object_seen *seen, bool damaged);
// hth_check_flush writes what was found to the index, as far as it can be written, and not over a
// newer mark of the same file.
void hth_check_flush(hth_store *store);
// hth_check_look looks at a tensor's file, and tells whether it has to be read before its content
// is used. HTH_ECORRUPT: it is not there as it was stored, or marked as damaged; HTH_ENOENT: the
// store has lost it meanwhile.
hth_err hth_check_look(hth_store *store, const hth_object *object, hth_object_seen *seen,
                       bool *needed);
// hth_store_view_stale tells whether this process has the tensor mapped from another file than it
// has now.
bool hth_store_view_stale(hth_store *store, const hth_manifest_tensor *tensor);
// hth_index_check compares the index with itself, and reports what is wrong with it. HTH_ECORRUPT:
// its pages are damaged, as was reported: whoever reads or writes it now could end the process.
hth_err hth_index_check(hth_store *store, void (*report)(void *ctx, const char *what), void *ctx);
// hth_check_forget frees what the process knows.
void hth_check_forget(hth_store *store);

#endif
