// SPDX-License-Identifier: Apache-2.0
// server/rpc/job_watch.h - what happens to training jobs, for clients that watch them.
//
// Design notes
// A watch is a request that waits: the command "watch" is answered when its job has an event after
// the one that the client heard of last. While it waits it is a waiter in a list here, without a
// thread, a place among the requests that are worked on, or anything of the engine's; one thread
// answers all waiters, also those that time out, are canceled, or lose their connection.
//
// Events are kept of jobs that somebody watches, the last HTH_JOB_EVENTS of each. All have numbers
// that grow, also from one life of the server to the next, so that a client which comes back names
// the number that it has. If an event after that is gone, the answer says so ("missed"), and the
// client asks where the job stands. Nobody waits for a client.
//
// Thread-safe. The lock is held for lookups and for writing an answer's text; answers are given
// without it.
#ifndef HTH_SERVER_RPC_JOB_WATCH_H
#define HTH_SERVER_RPC_JOB_WATCH_H

#include "server/net/tenant_parts.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HTH_JOB_EVENTS 64 // of a job, that are kept

typedef struct hth_job_watches hth_job_watches;

// A request that waits; memory of its owner until `answer` is called, which happens once.
typedef struct hth_job_waiter hth_job_waiter;
struct hth_job_waiter {
    uint64_t id;          // of the job
    uint64_t after;       // the event that its client has heard of last
    uint64_t end_ns;      // hth_now_ns: when it is answered without an event
    const char *tenant;   // whose jobs it may see; NULL: all
    const char *asks;     // the tenant that it counts for
    atomic_int *canceled; // not 0: to be answered with HTH_ECANCELED (hth_job_watches_look)
    // HTH_OK: `json` is the answer, hth_alloc'd and taken over; else the sentence is
    // hth_err_detail's. Must not block.
    void (*answer)(hth_job_waiter *waiter, hth_err err, char *json);
    void *job;             // the table's, as what follows
    hth_tenant_part *part; // of limits.watches
    hth_job_waiter *next;
};

hth_err hth_job_watches_open(hth_job_watches **out);
// hth_job_watches_stop answers who waits, and who comes, with HTH_ECANCELED.
void hth_job_watches_stop(hth_job_watches *watches);
// hth_job_watches_close: nobody waits any more, and the engine is closed. NULL is allowed.
void hth_job_watches_close(hth_job_watches *watches);

// hth_job_watches_event is the engine's `event` (engine.h), with the table as its ctx. Any thread.
void hth_job_watches_event(void *watches, const char *job, const char *what, uint64_t done,
                           uint64_t total);

// hth_job_watches_begin has the events of the job that makes `name` kept from now on, while the
// engine is asked which job that is, and stores the number after which they come.
// hth_job_watches_end follows once: with the job's number and whose it is, or 0 if it cannot be
// watched (it is none, or nothing happens to it any more).
void hth_job_watches_begin(hth_job_watches *watches, const char *name, uint64_t *last);
void hth_job_watches_end(hth_job_watches *watches, const char *name, uint64_t id,
                         const char *tenant);
// hth_job_watches_wait answers with events after waiter->after: stored in *json (to be freed by
// hth_free) if there are any or the time is over, else *json is NULL and the waiter waits: it may
// be answered before this returns. HTH_ENOENT: no events of that job are kept for this tenant, and
// nothing waits: ask the engine. HTH_EBUSY: who asks has its part of limits.watches
// (server/net/tenant_parts.h).
hth_err hth_job_watches_wait(hth_job_watches *watches, hth_job_waiter *waiter, char **json);
// hth_job_watches_look has the thread look who was canceled. Any thread.
void hth_job_watches_look(hth_job_watches *watches);
int hth_job_watches_waiting(hth_job_watches *watches);

// hth_job_watches_text is an answer: `events` is what stands in the array, `job` the job's row
// (JSON); NULL: none. The caller frees it by hth_free; NULL: no memory.
char *hth_job_watches_text(const char *job, const char *events, uint64_t last, bool missed);

#endif
