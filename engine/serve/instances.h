// SPDX-License-Identifier: Apache-2.0
// engine/serve/instances.h - several runs of one model at a time, each in an instance (instance.h)
// with a share of the device's threads, on one copy of the weights.
//
// Design notes
// Where an operator is too small to feed all threads, concurrent runs of fewer threads each
// answer more requests. That is measured, not assumed: a program remembers what its runs take, with
// all threads and concurrently, and the better way is taken where several wait and joining
// them is not better. How many runs there are follows from the threads and from memory: each
// further one costs an arena, and is had only if that fits with what is there. A lone client is
// always answered by all threads.
//
// Instances work only inside hth_instances_run: everywhere else the engine's thread finds the
// device as if there were none. Inside, it takes what arrives, hands runs out and gets them back;
// what cannot run with the others ends it. Engine's thread.
#ifndef HTH_ENGINE_SERVE_INSTANCES_H
#define HTH_ENGINE_SERVE_INSTANCES_H

#include "engine/serve/instance.h"
#include "engine/serve/infer_request.h"

struct hth_serve;
struct hth_pick;

// An instance and what it runs.
typedef struct hth_instance_run {
    hth_instance
        *instance; // opened when it is first needed, and anew for another number of threads
    int threads;   // .. of it
    hth_program *p;
    hth_infer_request *work; // NULL: it is idle
    hth_tensor *out;
    hth_infer_request_times t;
    hth_batch_bill bill; // who owes for it
} hth_instance_run;

typedef struct hth_instances {
    hth_instance_run run[HTH_INSTANCES];
    hth_model *demanded; // held: its programs for instances are to be made; NULL: none's
    hth_tensor *key;     // for these inputs, without data
    bool narrow;         // the one for a caller alone
    uint64_t round_ns;   // how long runs are handed out at once
} hth_instances;

// How many runs there are at a time, and the threads of each; runs 0: one at a time with all.
typedef struct hth_instances_split {
    int runs, threads;
} hth_instances_split;

// hth_instances_split_of splits `threads` among `most` runs, or as many as memory allows: each but
// the first needs arena_bytes of free_bytes.
hth_instances_split hth_instances_split_of(int threads, int most, uint64_t arena_bytes,
                                           uint64_t free_bytes);
// hth_instances_run runs the one request in *pick, and what waits after it, concurrently. On
// return pick->n is 0, or *pick is what is to be run next by all threads: what it was, where it did
// not pay.
void hth_instances_run(struct hth_serve *serve, struct hth_pick *pick);
// hth_instances_demand asks for the programs of such a request; narrow: for a caller alone.
void hth_instances_demand(hth_instances *instances, const hth_infer_request *request, bool narrow);
// hth_instances_compile compiles a program that was demanded; false: none was.
bool hth_instances_compile(struct hth_serve *serve);
void hth_instances_fini(hth_instances *instances); // before the models

#endif
