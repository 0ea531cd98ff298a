// SPDX-License-Identifier: Apache-2.0
// Training jobs: each is on one device, from its request "train" to that request's answer. A job
// that a client left behind, or that a restart or a death interrupted, is asked for by the router
// itself ({"job"}), so that there is a request for each job that works, and its end is seen. Such a
// request is in the name of who submitted the job; a client that asks for the job takes it over.
//
// Where a device cannot have a job (an operator, memory) the next one is asked. A job whose device
// is lost goes on elsewhere from its checkpoint; one with which three devices went is left for
// somebody to look at.
#include "engine/router/router_impl.h"

#include "runtime/checkpoint_index.h"
#include "runtime/arguments.h"
#include "runtime/tenants/owner.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB_LOST 3

// ---- the table; lock held

static router_job *job_find(hth_router *router, const char *name)
{
    router_job *j;
    HASH_FIND_STR(router->jobs, name, j);
    return j;
}

// job_put notes where a job is, and for whom. Who waits for it so far is the router, or nobody.
static void job_put(hth_router *router, const char *name, int device, hth_request *request,
                    bool own)
{
    router_job *j = job_find(router, name);
    if (j == NULL && (j = hth_calloc(1, sizeof *j)) != NULL) {
        snprintf(j->name, sizeof j->name, "%s", name);
        HASH_ADD_STR(router->jobs, name, j);
        if (!HTH_HASH_ADDED(j)) {
            hth_free(j);
            j = NULL;
        }
    }
    if (j != NULL) {
        if (j->r != NULL) {
            assert(router->device[j->device].jobs > 0);
            router->device[j->device].jobs--;
            j->was = j->r;
            j->was_device = j->device;
        }
        router->device[device].jobs++;
        j->device = device;
        j->r = request;
        j->own = own;
    }
}

// job_leave takes r from a job that is its; the router's own request that r came after is who waits
// again, if the device did not give the job to r.
static void job_leave(hth_router *router, router_job *job)
{
    assert(router->device[job->device].jobs > 0);
    router->device[job->device].jobs--;
    if (job->was != NULL) {
        job->r = job->was;
        job->device = job->was_device;
        job->own = true;
        job->was = NULL;
        router->device[job->device].jobs++;
    } else {
        job->lost = job->r->err == HTH_EDEVLOST ? job->lost + 1 : 0;
        job->r = NULL;
    }
}

// job_drop notes that `request` is answered. A job for which nobody waits is forgotten.
static void job_drop(hth_router *router, const char *name, const hth_request *request)
{
    router_job *j = job_find(router, name);
    if (j != NULL && j->was == request) {
        j->was = NULL;
    } else if (j != NULL && j->r == request) {
        job_leave(router, j);
    }
    if (j != NULL && j->r == NULL && j->lost == 0) {
        HASH_DEL(router->jobs, j);
        hth_free(j);
    }
}

int router_job_device(hth_router *router, const char *job)
{
    pthread_mutex_lock(&router->lock);
    const router_job *j = job_find(router, job);
    int device = j != NULL && j->r != NULL ? j->device : -1;
    pthread_mutex_unlock(&router->lock);
    return device;
}

void router_jobs_close(hth_router *router)
{
    while (router->jobs != NULL) {
        router_job *j = router->jobs;
        HASH_DEL(router->jobs, j);
        hth_free(j);
    }
}

// ---- where

// job_named is the device that a job is to be on, or the first of several; -1: it names none.
static int job_named(const hth_router *router, const json_t *args)
{
    int device[HTH_PLACE_DEVICES], n;
    return router_group_devices(router, args, device, &n) == HTH_OK && n > 0 ? device[0] : -1;
}

// job_pick chooses a device that was not tried. `stay`: where it is told to be, even if that is
// away for the moment. Lock held.
static int job_pick(hth_router *router, int stay, uint32_t tried)
{
    hth_place d[HTH_PLACE_DEVICES];
    router_places(router, NULL, tried, d);
    return stay >= 0 && (tried >> stay & 1) == 0 && !router->device[stay].dead
               ? stay
               : hth_place_job(d, router->n);
}

// job_went tells whether a job is to go on: it was interrupted, and has a checkpoint.
static bool job_went(hth_router *router, const char *name)
{
    json_t *doc;
    char note[HTH_CHECKPOINT_NOTE];
    if (name[0] == 0 || router->stopping ||
        hth_checkpoint_find(router->store, name, &doc) != HTH_OK) {
        return false;
    }
    json_decref(doc);
    hth_checkpoint_note_get(router->store, name, note);
    return note[0] == 0;
}

// job_lost_on has a job go on whose device went, if it can.
static void job_lost_on(hth_router *router, const char *name, int device)
{
    pthread_mutex_lock(&router->lock);
    const router_job *j = job_find(router, name);
    int times = j != NULL ? j->lost : 0;
    bool there = !router->device[device].dead && router->child;
    bool stops = router->stopping || router->draining;
    pthread_mutex_unlock(&router->lock);
    if (stops || !job_went(router, name)) {
        return;
    }
    if (times >= JOB_LOST) {
        hth_log(ERROR, SERVER, "train", "job '%s' was running when its device failed, %d times",
                name, times);
        hth_checkpoint_note_set(router->store, name,
                                "its device's engine failed several times while it was running");
        return;
    }
    router_job_resume(router, name, NULL,
                      there && hth_engine_ready(router->device[device].engine) ? device : -1);
}

static void job_lost(hth_router *router, const char *name, int device)
{
    job_lost_on(router, name, device);
    pthread_mutex_lock(&router->lock);
    router_job *j = job_find(router, name);
    if (j != NULL && j->r == NULL) { // it does not
        HASH_DEL(router->jobs, j);
        hth_free(j);
    }
    pthread_mutex_unlock(&router->lock);
}

// ---- jobs that nobody waits for

static void resume_done(router_own *own)
{
    hth_router *n = own->router;
    router_group_answered(own->group, &own->r);
    pthread_mutex_lock(&n->lock);
    job_drop(n, own->name, &own->r);
    pthread_mutex_unlock(&n->lock);
    router_group_end(own->group, own->r.err);
    if (own->r.err == HTH_EDEVLOST) {
        job_lost(n, own->name, own->device);
    } else if (own->r.err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "resumed job failed: %s", own->r.detail);
    }
}

// resume_group has a job that was on several devices go on there, as far as they are up. Its lead
// is where `own` goes. Where that cannot be the job goes on alone.
static void resume_group(hth_router *router, router_own *own, const json_t *job)
{
    int named[HTH_PLACE_DEVICES], device[HTH_PLACE_DEVICES], n, up = 1;
    json_t *given = json_loads(own->arguments, 0, NULL), *args = json_deep_copy(job);
    json_object_update(args, given);
    json_object_set_new(args, "resume", json_true());
    if (router_group_devices(router, args, named, &n) != HTH_OK) {
        n = 0;
    }
    device[0] = own->device;
    pthread_mutex_lock(&router->lock);
    for (int i = 0; i < n && up < HTH_PLACE_DEVICES; i++) {
        if (named[i] != own->device && router_up(router, named[i])) {
            device[up++] = named[i];
        }
    }
    pthread_mutex_unlock(&router->lock);
    const hth_caller caller = {own->tenant, true, HTH_TENANT_NEVER};
    if (n > 1 && up > 1 &&
        router_group_open(router, device, up, args, &caller, NULL, 0, &own->group) == HTH_OK &&
        router_group_lead(own->group, &own->r, up, given) != HTH_OK) {
        router_group_end(own->group, HTH_ECANCELED);
        own->group = NULL;
    }
    json_decref(args);
    json_decref(given);
}

// resume_home is the device where a job was told to be, of several the first that is up; -1: it
// names none.
static int resume_home(hth_router *router, const json_t *args)
{
    int device[HTH_PLACE_DEVICES], n, i = 0;
    if (router_group_devices(router, args, device, &n) != HTH_OK || n == 0) {
        return -1;
    }
    pthread_mutex_lock(&router->lock);
    while (i < n && !router_up(router, device[i])) {
        i++;
    }
    pthread_mutex_unlock(&router->lock);
    return device[i < n ? i : 0];
}

// resume_refused says why a job does not go on: in the log, and to who asks for it if its device is
// lost. Of one that did not begin for another reason nothing is noted: the next server tries again.
static void resume_refused(hth_router *router, const char *job, int device, hth_err err)
{
    char note[HTH_CHECKPOINT_NOTE], why[300];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    hth_log(WARN, SERVER, "train", "cannot resume job '%s': %s", job, why);
    if (err == HTH_EDEVLOST && !router->stopping) {
        snprintf(note, sizeof note,
                 "its device %s is lost: %s; `hearth resume %s` goes on elsewhere",
                 router->device[device].name, why, job);
        hth_checkpoint_note_set(router->store, job, note);
    }
}

void router_job_resume(hth_router *router, const char *job, const json_t *args, int device)
{
    json_t *given = args != NULL ? json_copy((json_t *)args) : json_object(), *doc = NULL;
    char tenant[HTH_TENANT];
    json_object_set_new(given, "job", json_string(job));
    if (hth_checkpoint_find(router->store, job, &doc) == HTH_OK && device < 0) {
        device = resume_home(router, json_object_get(doc, "job"));
    }
    hth_checkpoint_tenant(json_object_get(doc, "job"), tenant);
    router_own *o = NULL;
    if (router_own_make(router, 0, tenant, HTH_COMMAND_TRAIN, given, job, resume_done, &o) !=
        HTH_OK) {
        hth_log(WARN, SERVER, "train", "cannot resume job '%s': %s", job, hth_err_detail());
        json_decref(doc);
        return;
    }
    pthread_mutex_lock(&router->lock);
    const router_job *j = job_find(router, job);
    bool waited_for = j != NULL && j->r != NULL; // somebody has asked for it meanwhile
    int to = job_pick(router, device, 0);
    o->device = to >= 0 ? to : 0;
    if (!waited_for) {
        job_put(router, job, o->device, &o->r, true);
    }
    pthread_mutex_unlock(&router->lock);
    if (!waited_for) {
        resume_group(router, o, json_object_get(doc, "job"));
    }
    json_decref(doc);
    hth_err err = waited_for ? HTH_OK : router_own_submit(o);
    if (err != HTH_OK) {
        resume_refused(router, job, o->device, err);
        router_group_end(o->group, HTH_ECANCELED);
        pthread_mutex_lock(&router->lock);
        job_drop(router, job, &o->r);
        pthread_mutex_unlock(&router->lock);
    }
    if (waited_for || err != HTH_OK) {
        router_own_free(o);
    }
}

void router_jobs_resume(hth_router *router)
{
    size_t i;
    json_t *names, *name;
    if (hth_checkpoint_list(router->store, &names) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "interrupted jobs: %s", hth_err_detail());
        return;
    }
    json_array_foreach(names, i, name)
    {
        if (job_went(router, json_string_value(name))) {
            router_job_resume(router, json_string_value(name), NULL, -1);
        }
    }
    json_decref(names);
}

// ---- a client's

// job_name writes the name of the job that a request is about, "" where it names none.
static void job_name(const json_t *args, char out[HTH_CHECKPOINT_JOB])
{
    const char *name = json_string_value(json_object_get(args, "job"));
    out[0] = 0;
    if (name != NULL) {
        snprintf(out, HTH_CHECKPOINT_JOB, "%s", name);
    } else if (hth_checkpoint_job(args, out) != HTH_OK) {
        out[0] = 0;
    }
}

// request_job is the name of a request's job here. What rank 1, 2, .. of others' jobs is called
// elsewhere is not known: each is a job of its own.
static void request_job(const hth_request *request, const json_t *args,
                        char out[HTH_CHECKPOINT_JOB])
{
    if (request->member > 1 && json_object_get(args, HTH_RANK_KEY) != NULL) {
        snprintf(out, HTH_CHECKPOINT_JOB, "rank %d, %p", request->member - 1,
                 (const void *)request);
    } else {
        job_name(args, out);
    }
}

static hth_err train_send(hth_router *router, hth_request *request);

static void train_done(hth_request *request)
{
    hth_router *n = request->route.router;
    char name[HTH_CHECKPOINT_JOB];
    int device = request->route.device;
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    request_job(request, args, name);
    json_decref(args);
    router_group *group = request->route.group;
    bool elsewhere = group == NULL && (request->err == HTH_ENOTSUP || request->err == HTH_ETOOBIG ||
                                       request->err == HTH_ENODEVMEM);
    bool lost = router_is_lost(n, request, request->err);
    router_group_answered(group, request);
    bool went = request->err == HTH_EDEVLOST;
    router_sent(n, request);
    pthread_mutex_lock(&n->lock);
    job_drop(n, name, request);
    pthread_mutex_unlock(&n->lock);
    if (lost) {
        router_lost(n, device);
    }
    if (elsewhere && !request->canceled && train_send(n, request) == HTH_OK) {
        return;
    }
    if (group != NULL) {
        router_group_leave(group, request);
        router_group_end(group, request->err);
    }
    router_finish(request);
    router_refresh(n, device);
    if (went) {
        job_lost(n, name, device);
    }
}

static hth_err train_send(hth_router *router, hth_request *request)
{
    char name[HTH_CHECKPOINT_JOB];
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    int stay = job_named(router, args);
    request_job(request, args, name);
    pthread_mutex_lock(&router->lock);
    const router_job *j = job_find(router, name);
    bool there = j != NULL && j->r != NULL, other = there && !j->own,
         again = request->route.tried != 0;
    int to = -1;
    if (there && !again) {
        to = j->device; // who is there says so
    } else if (!again || stay < 0) {
        to = there ? -1 : job_pick(router, stay, request->route.tried);
    }
    if (to >= 0 && name[0] != 0 && !other) {
        job_put(router, name, to, request, false);
    }
    pthread_mutex_unlock(&router->lock);
    json_decref(args);
    if (to < 0) {
        return hth_fail(HTH_EDEVLOST, "no device is left for training");
    }
    request->done = train_done;
    hth_err err = router_send(router, request, to);
    if (err != HTH_OK) {
        pthread_mutex_lock(&router->lock);
        job_drop(router, name, request);
        pthread_mutex_unlock(&router->lock);
        return err;
    }
    router_refresh(router, to);
    return HTH_OK;
}

// train_group sends a job to several devices. It is `args` in whole, and `asked` by the request.
static hth_err train_group(hth_router *router, hth_request *request, const int *device, int n,
                           const json_t *args, const json_t *asked)
{
    router_group *group;
    const hth_caller caller = {request->tenant, request->admin, HTH_TENANT_NEVER};
    HTH_TRY(router_group_open(router, device, n, args, &caller, request->files, request->n_files,
                              &group));
    hth_err err = router_group_lead(group, request, n, asked);
    request->route.group = group;
    if (err == HTH_OK) {
        err = train_send(router, request);
    }
    if (err != HTH_OK) {
        request->route.group = NULL;
        router_group_leave(group, request);
        router_group_end(group, err);
    }
    return err;
}

// train_other tells whether a job of that name is another tenant's: the device that is asked
// answers as it does about any such job.
static bool train_other(const hth_router *router, const hth_request *request, const json_t *args)
{
    char name[HTH_CHECKPOINT_JOB], tenant[HTH_TENANT];
    json_t *is = NULL;
    bool all = request->admin || request->tenant == NULL;
    job_name(args, name);
    if (all || name[0] == 0 || hth_checkpoint_args(router->store, name, &is) != HTH_OK) {
        return false;
    }
    hth_checkpoint_tenant(is, tenant);
    json_decref(is);
    return strcmp(tenant, request->tenant) != 0;
}

// train_owned looks who may have the model of a new job, and a version of its result: of its
// devices only the lead's does.
static hth_err train_owned(const hth_router *router, const hth_request *request, const json_t *args)
{
    const hth_caller caller = {request->tenant, request->admin || request->tenant == NULL,
                               HTH_TENANT_NEVER};
    const char *model = json_string_value(json_object_get(args, "model"));
    char name[HTH_CHECKPOINT_JOB], owner[HTH_TENANT];
    job_name(args, name);
    HTH_TRY(model != NULL ? hth_owner_may(router->store, model, &caller, "train") : HTH_OK);
    return name[0] != 0 ? hth_owner_new(router->store, name, &caller, owner) : HTH_OK;
}

// train_whole returns a job's arguments: of one that is asked for by its name those of its
// checkpoint, and what is given with it.
static json_t *train_whole(const hth_router *router, const json_t *asked)
{
    const char *name = json_string_value(json_object_get(asked, "job"));
    json_t *doc, *args = json_deep_copy(asked);
    if (name != NULL && hth_checkpoint_find(router->store, name, &doc) == HTH_OK) {
        json_decref(args);
        args = json_deep_copy(json_object_get(doc, "job"));
        json_object_update(args, (json_t *)asked);
        json_object_set_new(args, "resume", json_true());
        json_decref(doc);
    }
    return args;
}

// train_leads puts the device of the lead first, which is where the router waits for the job
// already. *taken: a client does, or did not leave it. HTH_EINVAL: it is on none of these devices.
static hth_err train_leads(hth_router *router, const json_t *args, int *device, int n, bool *taken)
{
    char name[HTH_CHECKPOINT_JOB];
    int i = 0;
    job_name(args, name);
    pthread_mutex_lock(&router->lock);
    const router_job *j = job_find(router, name);
    bool there = j != NULL && j->r != NULL;
    int lead = there ? j->device : device[0];
    *taken = there && !j->own;
    pthread_mutex_unlock(&router->lock);
    while (i < n && device[i] != lead) {
        i++;
    }
    if (i == n && !*taken) {
        return hth_fail(HTH_EINVAL,
                        "job '%s' is on device %s, which --on does not name: `hearth cancel %s` "
                        "first, or name it",
                        name, router->device[lead].name, name);
    }
    device[i < n ? i : 0] = device[0];
    device[0] = lead;
    return HTH_OK;
}

// train_several sends a job to its devices, or to the one that has it so far.
static hth_err train_several(hth_router *router, hth_request *request, int *device, int n,
                             const json_t *args, const json_t *asked)
{
    bool taken;
    if (request->member > 0) {
        return hth_fail(HTH_EINVAL,
                        "--on names %d devices, and a rank is on one: start a rank for each", n);
    }
    HTH_TRY(train_leads(router, asked, device, n, &taken));
    if (taken) {
        return train_send(router, request);
    }
    if (json_object_get(asked, "job") == NULL) {
        HTH_TRY(train_owned(router, request, args));
    }
    return train_group(router, request, device, n, args, asked);
}

hth_err router_job_train(hth_router *router, hth_request *request)
{
    int device[HTH_PLACE_DEVICES], n;
    json_t *asked = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    if (train_other(router, request, asked)) {
        json_decref(asked);
        return train_send(router, request);
    }
    json_t *args = train_whole(router, asked);
    hth_err err = router_group_devices(router, args, device, &n);
    if (err == HTH_OK) {
        err = n > 1 ? train_several(router, request, device, n, args, asked)
                    : train_send(router, request);
    }
    json_decref(args);
    json_decref(asked);
    return err;
}
