// SPDX-License-Identifier: Apache-2.0
// modelstore/put_impl.h - a put in progress: what its two files (put.c, put_work.c) share.
#ifndef HTH_MODELSTORE_PUT_IMPL_H
#define HTH_MODELSTORE_PUT_IMPL_H

#include "base/hash.h"
#include "modelstore/check.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct hth_put_item {
    const hth_put_tensor *t;
    hth_id id;
    bool early;    // written while it is hashed: the store has no tensor of its size
    bool repeated; // another item of this put has the id, and does its work
    bool fresh;    // not in the index when looked up
    bool damaged;  // in the index, and not whole: its bytes are written again
    bool renamed;
    bool uploaded; // its file is an upload's
    bool there;    // a file was in its place before, which the index may not have known
    hth_path temp; // "" until the file is being made
    void *held;    // bytes that had to be read, as long as they are needed
    bool stays;    // .. which is until the end, and they are the item's own
    // of an uploaded one: the state in which its file was synced
    hth_object_seen synced;
    UT_hash_handle hh;
} hth_put_item;

typedef struct hth_put_task {
    hth_put_item *item;
    bool hash, write; // an early item is two tasks, any other one
} hth_put_task;

typedef struct hth_put_job {
    hth_store *s;
    const char *name;
    int n;               // of items; 0 until they are there
    hth_put_item *items; // in the caller's order
    int n_tasks;
    hth_put_task *tasks; // largest first
    hth_put_item *by_id; // guarded by lock
    size_t inline_max;
    const hth_put_ask *ask; // NULL: whatever the newest version is, another one may follow
    int asked_of;           // .. the newest one when it was asked
    hth_progress_fn progress;
    void *ctx;
    pthread_t caller;
    uint64_t total;
    _Atomic uint64_t done; // bytes hashed or written, of 2 * total
    atomic_int next;       // task
    atomic_bool stop;
    pthread_mutex_t lock;
    hth_err err; // first failure, with its sentence; guarded by lock
    char detail[1024];
    hth_buffer record;
    hth_put_result result;
} hth_put_job;

// hth_put_work_init makes items and tasks of `n` tensors.
hth_err hth_put_work_init(hth_put_job *job, const hth_put_tensor *tensors, int n);
// hth_put_work hashes all tensors and writes the files of those that need one, under temporary
// names, on two threads. Afterwards id, repeated and fresh of all items are set. On error the first
// failure; files may be there.
hth_err hth_put_work(hth_put_job *job);
// hth_put_compare sets it->damaged where the store has the tensor, but not these very bytes. Bytes
// in the index are looked at in place, a file is read.
hth_err hth_put_compare(hth_put_job *job, hth_put_item *it);
// hth_put_mend makes the index list the tensors as this put leaves them, where what it says of a
// damaged one, or of one that it had lost, is wrong. In the put's transaction; every file is in its
// place.
hth_err hth_put_mend(hth_txn *txn, hth_put_job *job);
// hth_put_mend_records writes the damaged records of those versions of the model again that were
// what is being put; before hth_put_mend.
hth_err hth_put_mend_records(hth_txn *txn, hth_put_job *job);
// hth_put_tick counts bytes that were worked on and, on the caller's thread, tells the caller.
// HTH_ECANCELED.
hth_err hth_put_tick(hth_put_job *job, size_t bytes);
// hth_put_bytes is where an item's bytes are; NULL: they are read (hth_put_read). Those that go
// into the index are always there.
const void *hth_put_bytes(const hth_put_item *it);
hth_err hth_put_read(const hth_put_item *it, uint64_t at, void *dst, size_t n);
void hth_put_work_fini(hth_put_job *job); // what items hold
// hth_put_given finds an item that has an id in place of bytes, in the index or among uploads.
// hth_put_given_end removes uploads that this put was given and has not renamed, after the commit.
hth_err hth_put_given(hth_put_job *job, hth_put_item *it);
void hth_put_given_end(hth_put_job *job);
// hth_put_given_sync syncs an upload's file, and notes which one that was.
hth_err hth_put_given_sync(const hth_put_job *job, hth_put_item *it);
// hth_put_given_place renames an upload's file to `to`, unless its owner has removed it meanwhile,
// and perhaps begun another one of that name. HTH_EBUSY. One that is whole is synced first, if it
// is not the file that was.
hth_err hth_put_given_place(const hth_put_job *job, const hth_put_item *it, const hth_path *to);
bool hth_put_is_given(const hth_put_item *it);
// hth_put_is_file tells whether the item's bytes go to a file that this put makes.
bool hth_put_is_file(const hth_put_job *job, const hth_put_item *it);

#endif
