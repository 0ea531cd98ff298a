// SPDX-License-Identifier: Apache-2.0
// A training job on several devices: a request to each. The lead's is the job's own; the router
// makes the others', which end with it. What they exchange lies in shared memory, whose descriptor
// each request has with it.
//
// Whoever is refused before the first step (an operator, too little memory) ends the group with its
// sentence; afterwards the others go on without it.
#include "engine/router/router_impl.h"

#include "group/group.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct router_group {
    int fd;
    int files[HTH_REQUEST_FILES], n_files; // the job's, and `fd`; the group's own descriptors
    char *arguments;                       // of the lead, malloc'd
    const char *given;                     // .. in place of these
    _Atomic int refs;                      // the lead and members that are not answered
    _Atomic bool lost;                     // it has ended with a member's device
};

// ---- which devices

static int group_named(const hth_router *router, const char *name, size_t len)
{
    for (int i = 0; i < router->n; i++) {
        if (strlen(router->device[i].name) == len &&
            strncmp(router->device[i].name, name, len) == 0) {
            return i;
        }
    }
    return -1;
}

hth_err router_group_devices(const hth_router *router, const json_t *args,
                             int device[HTH_PLACE_DEVICES], int *n)
{
    const char *at = json_string_value(json_object_get(args, "on"));
    bool all = at != NULL && strcmp(at, "all") == 0;
    uint32_t seen = 0;
    for (*n = 0; all && *n < router->n; ++*n) {
        device[*n] = *n;
    }
    while (at != NULL && !all) {
        size_t len = strcspn(at, ",");
        int i = group_named(router, at, len);
        if (i < 0) {
            return hth_fail(HTH_EINVAL, "there is no device '%.*s' here", len < 60 ? (int)len : 60,
                            at);
        }
        if ((seen >> i & 1) != 0) {
            return hth_fail(HTH_EINVAL, "--on names device %s twice", router->device[i].name);
        }
        seen |= 1u << i;
        device[(*n)++] = i;
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    double batch = json_number_value(json_object_get(args, "batch"));
    return *n < 2 || batch <= 0 || batch >= *n
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "a batch of %g samples is too small for %d devices", batch,
                          *n);
}

// ---- lifetime

static void group_rele(router_group *group)
{
    if (atomic_fetch_sub(&group->refs, 1) > 1) {
        return;
    }
    for (int i = 0; i < group->n_files; i++) {
        close(group->files[i]);
    }
    free(group->arguments);
    hth_free(group);
}

static hth_err group_files(router_group *group, int members, const int *files, int n_files)
{
    assert(n_files < HTH_REQUEST_FILES);
    for (int i = 0; i < n_files; i++) {
        int fd = fcntl(files[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            return hth_fail_errno(errno, "cannot pass a job's data to its devices");
        }
        group->files[group->n_files++] = fd;
    }
    HTH_TRY(hth_group_make(members, &group->fd));
    group->files[group->n_files++] = group->fd;
    return HTH_OK;
}

// member_refused ends the group for a member's error, if it has not made a step; false: it goes on.
static bool member_refused(router_group *group, hth_err err, const char *why)
{
    bool lost = err == HTH_EDEVLOST;
    if (lost) {
        atomic_store(&group->lost, true); // before the lead may answer
    }
    bool refused = hth_group_refuse(group->fd, err, why);
    if (lost && !refused) {
        atomic_store(&group->lost, false);
    }
    return refused;
}

static void member_done(router_own *own)
{
    hth_router *router = own->router;
    router_group *group = own->group;
    char why[600];
    pthread_mutex_lock(&router->lock);
    router->device[own->device].jobs--;
    pthread_mutex_unlock(&router->lock);
    if (own->r.err == HTH_EDEVLOST && !router->child) { // a process is started again
        router_lost(router, own->device);
    }
    if (own->r.err != HTH_OK) {
        const char *name = router->device[own->device].name;
        snprintf(why, sizeof why, "device %s: %s", name, own->r.detail);
        bool goes_on = !member_refused(group, own->r.err, why);
        if (goes_on) {
            hth_group_gone(group->fd, own->r.member - 1);
        }
        if (goes_on && !router->stopping) {
            hth_log(WARN, SERVER, "train", "a group goes on without device %s: %s", name,
                    own->r.detail);
        }
    }
    group_rele(group);
}

static hth_err member_send(hth_router *router, router_group *group, int device, int member,
                           const hth_caller *caller, json_t *args)
{
    router_own *own;
    const char *tenant = caller->tenant != NULL ? caller->tenant : "";
    HTH_TRY(router_own_make(router, device, tenant, HTH_COMMAND_TRAIN, json_deep_copy(args), "",
                            member_done, &own));
    own->group = group;
    own->r.admin = caller->admin || caller->tenant == NULL; // may do what the one who asks may
    own->r.member = 1 + member;
    memcpy(own->r.files, group->files, sizeof group->files);
    own->r.n_files = group->n_files;
    atomic_fetch_add(&group->refs, 1);
    pthread_mutex_lock(&router->lock);
    router->device[device].jobs++;
    pthread_mutex_unlock(&router->lock);
    hth_err err = router_own_submit(own);
    if (err != HTH_OK) {
        pthread_mutex_lock(&router->lock);
        router->device[device].jobs--;
        pthread_mutex_unlock(&router->lock);
        atomic_fetch_sub(&group->refs, 1);
        router_own_free(own);
    }
    return err;
}

// What the members are asked for is the job, but for what only its lead does.
static json_t *member_args(const json_t *args)
{
    json_t *own = json_deep_copy(args);
    static const char *const leads[] = {"detach", "after", "id", "job"};
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        json_object_del(own, leads[i]);
    }
    return own;
}

hth_err router_group_open(hth_router *router, const int *device, int n, const json_t *args,
                          const hth_caller *caller, const int *files, int n_files,
                          router_group **out)
{
    *out = NULL;
    router_group *group = hth_calloc(1, sizeof *group);
    if (group == NULL) {
        return hth_no_memory("a group of devices");
    }
    group->refs = 1;
    hth_err err = group_files(group, n, files, n_files);
    if (err != HTH_OK) {
        group_rele(group);
        return err;
    }
    json_t *own = member_args(args);
    json_object_set_new(own, "members", json_integer(n));
    for (int i = 1; i < n && err == HTH_OK; i++) {
        err = member_send(router, group, device[i], i, caller, own);
    }
    json_decref(own);
    if (err != HTH_OK) {
        router_group_end(group, err);
        return err;
    }
    *out = group;
    return HTH_OK;
}

hth_err router_group_lead(router_group *group, hth_request *lead, int n, const json_t *args)
{
    json_t *own = json_deep_copy(args);
    json_object_set_new(own, "members", json_integer(n));
    group->arguments = json_dumps(own, JSON_COMPACT);
    json_decref(own);
    if (group->arguments == NULL) {
        return hth_no_memory("a group of devices");
    }
    group->given = lead->arguments;
    lead->arguments = group->arguments;
    lead->files[lead->n_files++] = group->fd;
    lead->member = 1 + HTH_GROUP_LEAD;
    return HTH_OK;
}

void router_group_leave(router_group *group, hth_request *lead)
{
    if (lead->member > 0) {
        lead->arguments = group->given;
        lead->n_files--;
        lead->member = 0;
    }
}

void router_group_answered(const router_group *group, hth_request *lead)
{
    if (group != NULL && lead->err == HTH_EIO && atomic_load(&group->lost)) {
        lead->err = HTH_EDEVLOST;
    }
}

void router_group_end(router_group *group, hth_err err)
{
    if (group != NULL) {
        hth_group_end(group->fd, err == HTH_OK ? HTH_OK : HTH_ECANCELED, "the job has ended");
        group_rele(group);
    }
}
