// SPDX-License-Identifier: Apache-2.0
// client/cli/detach.h - Ctrl-C and a hang-up while a training job is followed.
//
// Design notes
// The job belongs to its server, so a client that ends leaves it there: the first Ctrl-C says how
// to go on from here, a second one soon after it cancels the job. An engine in this process cannot
// go on without it: there the job is stopped first, with a checkpoint. A rank's job ends with it.
//
// Signals are blocked in all threads and read by one of this module's, because the thread that
// follows the job waits inside the library. Before there is a job they do what they always do.
#ifndef HTH_CLIENT_CLI_DETACH_H
#define HTH_CLIENT_CLI_DETACH_H

#include "base/err.h"
#include "client/hearth.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#define HTH_DETACH_NAME 256

typedef struct hth_detach {
    pthread_t thread;
    bool running;
    sigset_t set;     // that are read here; none that is ignored
    int signals, end; // descriptors
    // set by hth_detach_job, before `armed`
    hearth *h;
    hearth_job job;
    char name[HTH_DETACH_NAME];
    bool embedded, rank;
    atomic_bool armed;
    atomic_int left; // the signal that ends the following; 0: none has come
} hth_detach;

// hth_detach_begin blocks the signals: before any other thread there is, so before a connection. On
// error they do what they always do, and there is nothing to end.
hth_err hth_detach_begin(hth_detach *detach);
// hth_detach_job says which job is followed from now on. embedded: by an engine in this process.
void hth_detach_job(hth_detach *detach, hearth *h, hearth_job job, const char *name, bool embedded);
// hth_detach_rank: this client sums for the job, which ends with it.
void hth_detach_rank(hth_detach *detach);
// hth_detach_left is the signal after which the job is to be followed no more; 0: none has come.
int hth_detach_left(const hth_detach *detach);
// hth_detach_end ends the thread: after a Ctrl-C when it is known whether a second one follows.
void hth_detach_end(hth_detach *detach);

#endif
