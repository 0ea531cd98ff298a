// SPDX-License-Identifier: Apache-2.0
// client/content/send_impl.h - the inside of send.h: pieces of objects, and the threads that send
// them (send.c); which objects are sent, and the end of it (send_missing.c).
#ifndef HTH_CLIENT_CONTENT_SEND_IMPL_H
#define HTH_CLIENT_CONTENT_SEND_IMPL_H

#include "client/content/send.h"

#include "base/hash.h"

#include <pthread.h>

#define HTH_SEND_PIECE   ((size_t)512 << 10)
#define HTH_SEND_LOOK_MS 100

typedef struct hth_send_object {
    int i;               // of the source
    uint64_t there;      // what the server has of its first bytes
    uint64_t next;       // where the next piece begins
    int under_way;       // pieces
    bool whole, lost;    // lost: a piece was, so it is asked for anew
    bool asking, failed; // .. which somebody does; it was whole and wrong before
    UT_hash_handle hh;   // by its id
} hth_send_object;

typedef struct hth_send_job {
    hearth *h;
    hth_content_source *source;
    const hth_watch *watch;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    hth_send_object *objects, *by_id;
    int n, first; // those before `first` are whole
    bool grows;   // more of them may come
    int running;
    int tries; // without a piece that arrived
    uint64_t moved, done, total;
    bool stop;
    hth_err err;
    char detail[1024];
} hth_send_job;

// hth_send_have asks how far `n` objects are.
hth_err hth_send_have(hearth *handle, const hth_content_object *objects, int n, uint64_t *there);
// hth_send_found takes what the server said of an object.
void hth_send_found(hth_send_object *object, uint64_t bytes, uint64_t there);
// Under the lock: hth_send_fail ends the job, hth_send_wait waits for a change, `ms` at most.
void hth_send_fail(hth_send_job *job, hth_err err);
void hth_send_wait(hth_send_job *job, uint64_t ms);
// hth_send_thread sends pieces until all objects are whole, and no more come, or the job ends.
void hth_send_thread(void *job);

#endif
