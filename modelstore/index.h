// SPDX-License-Identifier: Apache-2.0
// modelstore/index.h - the store's LMDB index: transactions that grow the map and retry, and its
// tables.
//
// Tables (all numbers little-endian but the version in a key):
//   INFO      "changes" -> u64; "health", "scrub" -> check.h
//   MODELS    name -> u32, the last version number given out; never goes back, so NAME:V means one
//             thing for ever
//   VERSIONS  name, 0, u32 big-endian -> record (record.h)
//   TENSORS   id -> hth_tensor_row
//   INLINES   id -> the bytes of a tensor that has no file
//   TEXTS     key -> text
//   CHECKS    'T', id -> hth_check_row; 'V', a version's key -> hth_record_sum (check.h)
#ifndef HTH_MODELSTORE_INDEX_H
#define HTH_MODELSTORE_INDEX_H

#include "base/err.h"

#include <lmdb.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum hth_table {
    HTH_TABLE_INFO,
    HTH_TABLE_MODELS,
    HTH_TABLE_VERSIONS,
    HTH_TABLE_TENSORS,
    HTH_TABLE_INLINES,
    HTH_TABLE_TEXTS,
    HTH_TABLE_CHECKS, // absent in a store of version 0.1.0 that is opened read-only: then it is
                      // empty
    HTH_N_TABLES
} hth_table;

typedef struct hth_tensor_row {
    uint32_t refs;    // versions that use the tensor
    uint32_t inlined; // 1: bytes are in INLINES, 0: in a file
    uint64_t bytes;
} hth_tensor_row;

typedef struct hth_index {
    MDB_env *env;
    MDB_dbi dbi[HTH_N_TABLES];
    pthread_rwlock_t
        map_lock; // transactions hold it shared; changing the map's size needs it alone
    bool read_only;
    atomic_bool damaged; // its pages, when they were looked at last: nothing is written to it
} hth_index;

typedef struct hth_txn {
    hth_index *ix;
    MDB_txn *txn;
    int rc; // LMDB's last failure
} hth_txn;

// hth_index_open opens the environment in directory `path`. fresh: there may be none, and it and
// its tables are made. HTH_ECORRUPT: it or a table is missing, or its pages are not what they have
// to be, so that using it would end the process or lose what is stored.
hth_err hth_index_open(hth_index *ix, const char *path, bool read_only, bool fresh);
// hth_index_pages looks at the pages again (pages.h). HTH_ECORRUPT: and until they are found right,
// hth_index_write fails so, too: it could overwrite what is in use, or end the process.
hth_err hth_index_pages(hth_index *ix);
// hth_index_copy writes a copy of the index to HTH_INDEX_COPY in the store's directory `dir`:
// whole, or the one that was there stays. Writers wait only for its first pages.
#define HTH_INDEX_COPY "index/data.copy"
hth_err hth_index_copy(hth_index *ix, int dir);
void hth_index_close(hth_index *ix);

// hth_index_read runs fn in a read transaction, hth_index_write in a write transaction that is
// committed when fn returns HTH_OK and undone otherwise. A full map is doubled and fn runs again:
// it must bear repetition. Any thread; fn must not start another transaction.
typedef hth_err (*hth_txn_fn)(hth_txn *txn, void *ctx);
hth_err hth_index_read(hth_index *ix, hth_txn_fn fn, void *ctx);
hth_err hth_index_write(hth_index *ix, hth_txn_fn fn, void *ctx);
// hth_index_commit is the number of the last commit, by any process, 0: not known. It takes no
// transaction, so it costs a fifth of one. hth_txn_seen is the commit that a read transaction sees:
// for as long as hth_index_commit gives the same number, another transaction would find the same.
uint64_t hth_index_commit(hth_index *ix);
uint64_t hth_txn_seen(const hth_txn *txn);

// hth_txn_get stores a value that is valid until the next put or del of this transaction or its
// end. HTH_ENOENT comes without a sentence.
hth_err hth_txn_get(hth_txn *txn, hth_table table, const void *key, size_t key_bytes, MDB_val *out);
hth_err hth_txn_put(hth_txn *txn, hth_table table, const void *key, size_t key_bytes,
                    const void *value, size_t bytes);
hth_err hth_txn_del(hth_txn *txn, hth_table table, const void *key,
                    size_t key_bytes);                                 // absent: fine
hth_err hth_txn_entries(hth_txn *txn, hth_table table, uint64_t *out); // rows, as the table says
// hth_txn_each calls fn for each row whose key is >= `from` (from_bytes 0: all), in order, until fn
// returns other than HTH_OK, which is returned. fn must not change the table.
typedef hth_err (*hth_row_fn)(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value);
hth_err hth_txn_each(hth_txn *txn, hth_table table, const void *from, size_t from_bytes,
                     hth_row_fn fn, void *ctx);

#endif
