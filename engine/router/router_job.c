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

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB_LOST 3

// ---- the table; lock held

static router_job *job_find(hth_router *n, const char *name)
{
    router_job *j;
    HASH_FIND_STR(n->jobs, name, j);
    return j;
}

// job_put notes where a job is, and for whom. Who waits for it so far is the router, or nobody.
static void job_put(hth_router *n, const char *name, int device, hth_request *r, bool own)
{
    router_job *j = job_find(n, name);
    if (j == NULL && (j = hth_calloc(1, sizeof *j)) != NULL) {
        snprintf(j->name, sizeof j->name, "%s", name);
        HASH_ADD_STR(n->jobs, name, j);
        if (!HTH_HASH_ADDED(j)) {
            hth_free(j);
            j = NULL;
        }
    }
    if (j != NULL) {
        if (j->r != NULL) {
            n->device[j->device].jobs--;
            j->was = j->r;
            j->was_device = j->device;
        }
        n->device[device].jobs++;
        j->device = device;
        j->r = r;
        j->own = own;
    }
}

// job_leave takes r from a job that is its; the router's own request that r came after is who waits
// again, if the device did not give the job to r.
static void job_leave(hth_router *n, router_job *j)
{
    n->device[j->device].jobs--;
    if (j->was != NULL) {
        j->r = j->was;
        j->device = j->was_device;
        j->own = true;
        j->was = NULL;
        n->device[j->device].jobs++;
    } else {
        j->lost = j->r->err == HTH_EDEVLOST ? j->lost + 1 : 0;
        j->r = NULL;
    }
}

// job_drop notes that `r` is answered. A job for which nobody waits is forgotten.
static void job_drop(hth_router *n, const char *name, const hth_request *r)
{
    router_job *j = job_find(n, name);
    if (j != NULL && j->was == r) {
        j->was = NULL;
    } else if (j != NULL && j->r == r) {
        job_leave(n, j);
    }
    if (j != NULL && j->r == NULL && j->lost == 0) {
        HASH_DEL(n->jobs, j);
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

static int job_named(const hth_router *n, const json_t *args)
{
    const char *on = json_string_value(json_object_get(args, "on"));
    for (int i = 0; on != NULL && i < n->n; i++) {
        if (strcmp(on, n->device[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

// job_pick chooses a device that was not tried. `stay`: where it is told to be, even if that is
// away for the moment. Lock held.
static int job_pick(hth_router *n, int stay, uint32_t tried)
{
    hth_place d[HTH_PLACE_DEVICES];
    router_places(n, NULL, tried, d);
    return stay >= 0 && (tried >> stay & 1) == 0 && !n->device[stay].dead ? stay
                                                                          : hth_place_job(d, n->n);
}

// job_went tells whether a job is to go on: it was interrupted, and has a checkpoint.
static bool job_went(hth_router *n, const char *name)
{
    json_t *doc;
    char note[HTH_CHECKPOINT_NOTE];
    if (name[0] == 0 || n->stopping || hth_checkpoint_find(n->store, name, &doc) != HTH_OK) {
        return false;
    }
    json_decref(doc);
    hth_checkpoint_note_get(n->store, name, note);
    return note[0] == 0;
}

// job_lost has a job go on whose device went.
static void job_lost(hth_router *n, const char *name, int device)
{
    pthread_mutex_lock(&n->lock);
    const router_job *j = job_find(n, name);
    int times = j != NULL ? j->lost : 0;
    bool there = !n->device[device].dead && n->child;
    bool stops = n->stopping || n->draining;
    pthread_mutex_unlock(&n->lock);
    if (stops || !job_went(n, name)) {
        return;
    }
    if (times >= JOB_LOST) {
        hth_log(ERROR, SERVER, "train", "job '%s' was running when its device failed, %d times",
                name, times);
        hth_checkpoint_note_set(n->store, name,
                                "its device's engine failed several times while it was running");
        return;
    }
    router_job_resume(n, name, NULL,
                      there && hth_engine_ready(n->device[device].engine) ? device : -1);
}

// ---- jobs that nobody waits for

static void resume_done(router_own *o)
{
    hth_router *n = o->router;
    pthread_mutex_lock(&n->lock);
    job_drop(n, o->name, &o->r);
    pthread_mutex_unlock(&n->lock);
    if (o->r.err == HTH_EDEVLOST) {
        job_lost(n, o->name, o->device);
    } else if (o->r.err != HTH_OK) {
        hth_log(WARN, SERVER, "train", "resumed job failed: %s", o->r.detail);
    }
}

void router_job_resume(hth_router *router, const char *job, const json_t *args, int device)
{
    json_t *given = args != NULL ? json_copy((json_t *)args) : json_object(), *doc = NULL;
    char tenant[HTH_TENANT];
    json_object_set_new(given, "job", json_string(job));
    if (hth_checkpoint_find(router->store, job, &doc) == HTH_OK && device < 0) {
        device = job_named(router, json_object_get(doc, "job"));
    }
    hth_checkpoint_tenant(json_object_get(doc, "job"), tenant);
    json_decref(doc);
    router_own *o = NULL;
    if (router_own_make(router, 0, tenant, HTH_COMMAND_TRAIN, given, job, resume_done, &o) !=
        HTH_OK) {
        hth_log(WARN, SERVER, "train", "cannot resume job '%s': %s", job, hth_err_detail());
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
    if (waited_for) {
        router_own_free(o);
    } else if (router_own_submit(o) != HTH_OK) {
        pthread_mutex_lock(&router->lock);
        job_drop(router, job, &o->r);
        pthread_mutex_unlock(&router->lock);
        router_own_free(o);
        hth_log(WARN, SERVER, "train", "cannot resume job '%s': %s", job, hth_err_detail());
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

static hth_err train_send(hth_router *n, hth_request *r);

static void train_done(hth_request *r)
{
    hth_router *n = r->route.router;
    char name[HTH_CHECKPOINT_JOB];
    int device = r->route.device;
    json_t *args = json_loads(r->arguments != NULL ? r->arguments : "", 0, NULL);
    job_name(args, name);
    json_decref(args);
    bool elsewhere = r->err == HTH_ENOTSUP || r->err == HTH_ETOOBIG || r->err == HTH_ENODEVMEM;
    bool lost = router_is_lost(n, r, r->err), went = r->err == HTH_EDEVLOST;
    router_sent(n, r);
    pthread_mutex_lock(&n->lock);
    job_drop(n, name, r);
    pthread_mutex_unlock(&n->lock);
    if (lost) {
        router_lost(n, device);
    }
    if (elsewhere && !r->canceled && train_send(n, r) == HTH_OK) {
        return;
    }
    router_finish(r);
    router_refresh(n, device);
    if (went) {
        job_lost(n, name, device);
    }
}

static hth_err train_send(hth_router *n, hth_request *r)
{
    char name[HTH_CHECKPOINT_JOB];
    json_t *args = json_loads(r->arguments != NULL ? r->arguments : "", 0, NULL);
    int stay = job_named(n, args);
    job_name(args, name);
    pthread_mutex_lock(&n->lock);
    const router_job *j = job_find(n, name);
    bool there = j != NULL && j->r != NULL, other = there && !j->own, again = r->route.tried != 0;
    int to = -1;
    if (there && !again) {
        to = j->device; // who is there says so
    } else if (!again || stay < 0) {
        to = there ? -1 : job_pick(n, stay, r->route.tried);
    }
    if (to >= 0 && name[0] != 0 && !other) {
        job_put(n, name, to, r, false);
    }
    pthread_mutex_unlock(&n->lock);
    json_decref(args);
    if (to < 0) {
        return hth_fail(HTH_EDEVLOST, "no device is left for training");
    }
    r->done = train_done;
    hth_err err = router_send(n, r, to);
    if (err != HTH_OK) {
        pthread_mutex_lock(&n->lock);
        job_drop(n, name, r);
        pthread_mutex_unlock(&n->lock);
        return err;
    }
    router_refresh(n, to);
    return HTH_OK;
}

hth_err router_job_train(hth_router *router, hth_request *request)
{
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    const char *on = json_string_value(json_object_get(args, "on"));
    hth_err err = on != NULL && job_named(router, args) < 0
                      ? hth_fail(HTH_EINVAL, "there is no device '%.60s' here", on)
                      : HTH_OK;
    json_decref(args);
    return err == HTH_OK ? train_send(router, request) : err;
}
