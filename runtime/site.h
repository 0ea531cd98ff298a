// SPDX-License-Identifier: Apache-2.0
// runtime/site.h - what programs share on one device: its memory, what was measured on it, who has
// what of it, and who waits. Engine's thread only.
#ifndef HTH_RUNTIME_SITE_H
#define HTH_RUNTIME_SITE_H

#include "convsel/profile.h"
#include "memmgr/residency.h"
#include "runtime/quiet.h"
#include "runtime/tenants/tenant_rules.h"
#include "sched/work.h"

typedef struct hth_program hth_program;       // program.h
typedef struct hth_job_memory hth_job_memory; // job_memory.h
typedef struct hth_tenants hth_tenants;       // tenants/tenant.h
typedef struct hth_leftover hth_leftover;     // request.h

// Whom bytes belong to: a version of a model, or a training job. ledger.h counts them.
typedef struct hth_account {
    char name[208];
    int version;
    char tenant[HTH_TENANT]; // whose request had it loaded, or submitted the job
    bool job;
} hth_account;

// What host memory outside of the device is for (host.h).
typedef enum hth_host_use {
    HTH_HOST_OUTPUTS,  // of requests, until they are answered
    HTH_HOST_STAGES,   // what a stage of a model gives, until the last one has run
    HTH_HOST_BATCHES,  // joined requests', benchmarks' and evaluations' inputs and outputs
    HTH_HOST_CONTENTS, // of programs: inputs' contents that they were made of, and what followed
    HTH_HOST_N_USES
} hth_host_use;

// What programs share on one device.
typedef struct hth_site {
    hth_device *device;
    hth_pool *pool;
    hth_residency *residency;
    const hth_timing_cache *timings;
    double tolerance;        // of convolution algorithms: largest error / largest output
    double link_bytes_per_s; // host to device, measured
    double link_back_bytes_per_s, link_latency_us;
    double copy_interference, copy_us; // hth_problem's
    double traffic_bytes_per_s;        // of nodes that only move bytes; 0: the link's
    void *arena;
    size_t arena_bytes;
    // since when disturbed timings wait to be taken again (0: there were none), and until when they
    // do in any case; what the machine did when it was looked at last
    uint64_t disturbed_ns, again_ns;
    hth_quiet quiet;
    // a caller's thread runs what is run (engine/serve/serve_here.c): programs for it alone, where
    // there are any, and this is left for after; NULL: the engine's thread does
    hth_leftover *later;
    bool trim; // the arena could be smaller, but was in use when that was seen
    // memory.clear_arena: whose the first `arena_owned` bytes are; nobody else's are in them
    bool arena_cleared;
    const hth_account *arena_owner; // NULL: nobody's
    size_t arena_owned;
    hth_program *active;                 // list of active programs, most recently used first
    hth_program *programs;               // all there are, active or not
    uint64_t pinned_bytes, pinned_arena; // weights of pinned programs, and their largest arena
    uint64_t clock;                      // counts runs: recency
    // requests that wait for memory (memory_wait.h): how often some was given back; the bytes for
    // models that the last was refused for (0: they were not what it lacked) and what it would take
    // of what others hold (0: only its own tenant is in its way); what the oldest of those that
    // would needs; how many wait
    uint64_t freed, refused_over, refused_bytes, awaited_bytes;
    int awaiting;
    uint64_t host_bytes[HTH_HOST_N_USES], host_default_bytes; // host.h
    // frees host memory that is kept for the next use and nobody uses now; false: there is none.
    // NULL: nobody keeps any
    bool (*host_spare)(void *ctx);
    void *host_spare_ctx;
    bool host_refused; // the last compilation was refused for memory of the host, not the device's
    hth_job_memory *shares; // of training jobs
    hth_tenants *tenants;   // NULL: nobody has limits
    // who computes next; NULL: whoever calls has the device for itself. Loading, compiling and
    // measuring have points there (hth_work_point); runs in the site's arena hold the device
    hth_work_queue *queue;
} hth_site;

// hth_site_alloc takes device memory for what is no program's, as idle programs leave it, cleared;
// hth_pool_free gives it back. There are preemption points while it is cleared.
hth_err hth_site_alloc(hth_site *site, size_t bytes, hth_pool_use use, void **out);
// hth_site_alloc_spare is hth_site_alloc of what nothing occupies: nothing is evicted for it.
hth_err hth_site_alloc_spare(hth_site *site, size_t bytes, hth_pool_use use, void **out);
// hth_site_workspace_take and hth_site_workspace_give are those of a timing cache whose owner is
// the site. Measuring takes what the pool has free, so that it needs no memory in addition to the
// device's; where that is too little, the host's. NULL: there is none.
void *hth_site_workspace_take(void *site, size_t bytes);
void hth_site_workspace_give(void *site, void *memory);
// hth_site_trim gives back what of the arena no program needs any more, after the run that uses
// it.
void hth_site_trim(hth_site *site);
// hth_site_make_room deactivates what is to be made again anyway, else the least recently used
// other program; false when there is none left. pinned: those, too.
bool hth_site_make_room(hth_site *site, const hth_program *keep, bool pinned);
// hth_site_ensure_arena has the arena be as large as the program's plan wants. A larger one takes
// its place: next to it, where there is room, so that a failure leaves what was there.
hth_err hth_site_ensure_arena(hth_site *site, const hth_program *program);
void hth_site_drop_arena(hth_site *site);
// hth_site_shrink_arena drops an arena of more than `need` bytes; false: there is none.
bool hth_site_shrink_arena(hth_site *site, size_t need);

#endif
