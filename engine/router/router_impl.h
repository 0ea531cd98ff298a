// SPDX-License-Identifier: Apache-2.0
// engine/router/router_impl.h - the inside of a machine's engines: router.c (lifetime),
// router_infer.c (inference), router_own.c (requests of its own), router_model.c (what is where),
// router_query.c (questions), router_job.c (training).
//
// One lock guards everything that changes; it is never held across a call into an engine that
// submits, nor while a request's `done` is called.
#ifndef HTH_ENGINE_ROUTER_ROUTER_IMPL_H
#define HTH_ENGINE_ROUTER_ROUTER_IMPL_H

#include "engine/engine_ops.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/router/router.h"
#include "engine/router/place.h"
#include "runtime/tenants/owner.h"
#include "runtime/tenants/tenant_rules.h"

#include <jansson.h>
#include <pthread.h>

typedef struct hth_router hth_router;

// How long a device may be away before its models are sought elsewhere: a process is started again
// within some milliseconds.
#define ROUTER_AWAY_NS 1000000000u

// A content, on how many of a device's models.
typedef struct router_content {
    hth_id id;
    uint64_t bytes;
    int refs[HTH_PLACE_DEVICES];
    UT_hash_handle hh;
} router_content;

// A model on a device.
typedef struct router_there {
    bool has, coming, refused;
    bool loaded;                  // it has said that it has it
    bool good;                    // it has answered a request
    char too_big_for[HTH_TENANT]; // in whose name it last refused a copy; "": nobody's
    int requests;
    double service_ns; // of a request, smoothed; 0: not known
} router_there;

// "name" or "name:version" that was asked for and is in the store. Never freed before the router.
typedef struct router_model {
    char spec[216];
    char tenant[HTH_TENANT]; // who was answered first, or had it loaded; "": nobody yet
    bool pinned;
    uint64_t bytes; // of all its contents
    int n_content;
    router_content **content;
    router_there on[HTH_PLACE_DEVICES];
    UT_hash_handle hh;
} router_model;

typedef struct router_device {
    hth_engine *engine;
    char name[64];
    bool host;
    bool dead;        // its engine, a thread, has lost it: until the process ends
    uint64_t away_ns; // since when it is not ready; 0: it was
    int requests, jobs;
    // by the engine's ledger, and what was placed there since it was asked
    uint64_t budget_bytes, free_bytes, placed_bytes, queried_bytes;
    bool asking;
} router_device;

// A training job that a client or the router itself waits for. A client's request for one that the
// router waits for stands in `r` from when it is sent; until the router's own is answered nobody
// knows which of them the device keeps.
typedef struct router_job {
    char name[208];
    int device;
    hth_request *r;   // NULL: nobody, and the row is for `lost`
    bool own;         // r is the router's
    hth_request *was; // the router's that r came after, and is not answered; NULL: none
    int was_device;
    int lost; // times that its device went
    UT_hash_handle hh;
} router_job;

struct hth_router {
    hth_engine engine;
    hth_store *store;
    bool child, resume;
    int n;
    router_device device[HTH_PLACE_DEVICES];
    pthread_mutex_t lock; // of all that follows, and what changes in `device`
    pthread_cond_t changed;
    _Atomic bool stopping;
    bool draining;
    router_model *models;
    router_content *contents;
    router_job *jobs;
};

static inline hth_router *hth_router_of(hth_engine *engine)
{
    return (hth_router *)engine;
}

// A request of the router's own.
typedef struct router_own {
    hth_request r;
    hth_router *router;
    int device;
    void (*then)(struct router_own *own);
    char *arguments;            // malloc'd
    struct router_group *group; // of a group's member, or of a job that is its lead; NULL: none
    char name[216], tenant[HTH_TENANT];
} router_own;

// ---- router_infer.c

hth_err router_infer(hth_router *router, hth_request *request);

// router_up tells whether a device takes work. Lock held.
bool router_up(hth_router *router, int device);
// router_places describes all devices as `model` (NULL: nothing) sees them; those of the mask
// `tried` are not up. Lock held.
void router_places(hth_router *router, const router_model *model, uint32_t tried, hth_place *out);
// router_pick chooses a device for a request for `model`; *another: also one for a copy, -1: none.
// With `place`, it has the model from then on. Lock held.
int router_pick(hth_router *router, router_model *model, uint32_t tried, bool place, int *another);
// router_send hands `request` to `device` and counts it; router_sent takes it from the counts
// again.
hth_err router_send(hth_router *router, hth_request *request, int device);
void router_sent(hth_router *router, hth_request *request);
// router_finish gives a request back to who submitted it.
void router_finish(hth_request *request);
// router_lost takes a device's models away from it and has them loaded elsewhere.
void router_lost(hth_router *router, int device);
// router_is_lost tells by an answer, or a refusal, whether the device that gave it is lost.
bool router_is_lost(hth_router *router, const hth_request *request, hth_err err);

// ---- router_own.c

// router_own_make makes a request of the router's own, about `name` and in a tenant's name; takes
// `args`. When it is answered `then` may look at it, and it is freed.
hth_err router_own_make(hth_router *router, int device, const char *tenant, hth_command_id command,
                        json_t *args, const char *name, void (*then)(router_own *own),
                        router_own **out);
// router_own_submit hands it over; on error it stays the caller's, to be given to router_own_free.
hth_err router_own_submit(router_own *own);
void router_own_free(router_own *own);
hth_err router_own_ask(hth_router *router, int device, const char *tenant, hth_command_id command,
                       json_t *args, const char *name, void (*then)(router_own *own)); // both
// router_refresh asks a device for its ledger, unless it is asked already.
void router_refresh(hth_router *router, int device);

// ---- router_model.c: lock held, where nothing else is said

// router_model_find returns a model's row, NULL: the store has no such model, or there is no
// memory. Lock not held.
router_model *router_model_find(hth_router *router, const char *spec);
uint64_t router_model_lacks(const router_model *model, int device);
void router_model_place(hth_router *router, router_model *model, int device);
// router_model_for notes whose a model is, if it is nobody's, or too big for who had it; again:
// also if it is somebody's.
void router_model_for(router_model *model, const char *tenant, bool again);
void router_model_leave(router_model *model, int device);
// router_model_small tells whether a device has refused a copy in the name of whose a model is.
bool router_model_small(const router_model *model, int device);
// router_model_unload has all devices without `spec`, and its versions if it names none.
void router_model_unload(hth_router *router, const char *spec);
// router_model_fetch has a device load a model in the background, to answer requests there when it
// has. Lock not held; model->on[device].coming is set.
void router_model_fetch(hth_router *router, router_model *model, int device);
void router_models_close(hth_router *router);

// ---- router_query.c

hth_err router_query(hth_router *router, hth_request *request);

// ---- router_group.c

typedef struct router_group router_group;
// router_group_devices finds the devices that the argument "on" names ("cpu:0,cuda:1", "all"), in
// their order; *n 0: it names none. HTH_EINVAL: one is not there, or twice, or the batch is smaller
// than there are.
hth_err router_group_devices(const hth_router *router, const json_t *args,
                             int device[HTH_PLACE_DEVICES], int *n);
// router_group_open has all devices but the first take part in a job, as far as the caller may;
// `files` are borrowed.
hth_err router_group_open(hth_router *router, const int *device, int n, const json_t *args,
                          const hth_caller *caller, const int *files, int n_files,
                          router_group **out);
// router_group_lead makes a request the lead's, until router_group_leave.
hth_err router_group_lead(router_group *group, hth_request *lead, int n, const json_t *args);
void router_group_leave(router_group *group, hth_request *lead);
// router_group_answered: a lead that another device's loss has ended, not its own's, says so
// (HTH_EDEVLOST). NULL is allowed.
void router_group_answered(const router_group *group, hth_request *lead);
// router_group_end: the lead was answered, or never sent. NULL is allowed.
void router_group_end(router_group *group, hth_err err);

// ---- router_job.c

hth_err router_job_train(hth_router *router, hth_request *request);
// router_job_device is where a job is, -1: nowhere. Lock not held.
int router_job_device(hth_router *router, const char *job);
// router_job_resume has a job go on, from its checkpoint, in the name of who submitted it; `args`
// (borrowed) are those of the command "resume", NULL: none. device -1: wherever there is room.
void router_job_resume(hth_router *router, const char *job, const json_t *args, int device);
// router_jobs_resume does so with all jobs that were interrupted by the end of an earlier server.
void router_jobs_resume(hth_router *router);
void router_jobs_close(hth_router *router);

#endif
