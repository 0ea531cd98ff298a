// SPDX-License-Identifier: Apache-2.0
// Questions: to all devices, whose answers become one (router_merge.h), or to the one that they are
// about. A device that is away is not asked: its part is missing, and "devices" says so. It is told
// to unload what would be loaded again when it is back, and not waited for.
#include "engine/router/router_impl.h"

#include "base/clock.h"
#include "runtime/catalog.h"
#include "engine/router/router_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Which devices are asked: a row's column `asked` in lower case.
typedef enum router_query_kind {
    ROUTER_none, // no request of that command comes here; any device says so
    ROUTER_all,
    ROUTER_each,
    ROUTER_having,
    ROUTER_one,
    ROUTER_load,
    ROUTER_train,
    ROUTER_job,
} router_query_kind;

static const router_query_kind router_asks[HTH_COMMANDS] = {
#define ROUTER_ROW(ID, name, need, traits, asked, ...) [HTH_COMMAND_##ID] = ROUTER_##asked,
    HTH_COMMAND_TABLE(ROUTER_ROW)};

// A question to several devices.
typedef struct router_all {
    hth_router *router;
    hth_request *r; // what is answered
    bool each;      // the first error of any device is the answer
    bool answered;  // r has its answer already, which an error takes back
    int n;
    int device[HTH_PLACE_DEVICES];
    hth_request part[HTH_PLACE_DEVICES];
    atomic_int left;
} router_all;

static const char *query_text(const json_t *args, const char *key)
{
    return json_string_value(json_object_get(args, key));
}

static json_t *query_args(const hth_request *request)
{
    json_t *args = json_loads(
        request->arguments != NULL && request->arguments[0] ? request->arguments : "{}", 0, NULL);
    return args != NULL ? args : json_object(); // whoever is asked says what is wrong
}

static void answer_json(hth_request *request, json_t *doc)
{
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    hth_free(request->json);
    request->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    if (request->json == NULL) {
        request->err = HTH_ENOMEM;
        snprintf(request->detail, sizeof request->detail, "no memory for an answer");
    }
}

// ---- to all

// Rows of devices, those that are away too, and what the router knows of each.
static void all_devices(hth_router *router, json_t *doc)
{
    json_t *rows = json_object_get(doc, "devices"), *row;
    pthread_mutex_lock(&router->lock);
    for (int i = 0; i < router->n; i++) {
        router_device *d = &router->device[i];
        bool up = router_up(router, i);
        bool lost = d->dead || (!up && hth_now_ns() - d->away_ns >= ROUTER_AWAY_NS);
        size_t k;
        json_t *found = NULL;
        json_array_foreach(rows, k, row)
        {
            const char *name = query_text(row, "name");
            found = name != NULL && strcmp(name, d->name) == 0 ? row : found;
        }
        if (found == NULL) {
            found = json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:s}", "name", d->name,
                              "description", "", "total_bytes", (json_int_t)0, "budget_bytes",
                              (json_int_t)d->budget_bytes, "used_bytes", 0, "threads", 0,
                              "quota_percent", 0, "vector_bytes", 0, "fingerprint", "");
            json_array_append_new(rows, found);
        }
        const char *state = lost ? "lost" : "restarting";
        state = up ? "up" : state;
        json_object_update_new(found, json_pack("{s:s, s:i, s:i}", "state", state, "requests",
                                                d->requests, "jobs", d->jobs));
    }
    pthread_mutex_unlock(&router->lock);
}

// all_result sets whether `r` has failed: when all devices have, or, of a question that each must
// answer, when one has.
static void all_result(const router_all *all)
{
    hth_request *r = all->r;
    const hth_request *why = &all->part[0];
    for (int i = 0; i < all->n; i++) {
        bool bad = all->part[i].err != HTH_OK;
        why = bad == all->each ? &all->part[i] : why;
        if (bad == all->each) {
            break;
        }
    }
    r->err = why->err;
    r->version = why->version;
    snprintf(r->detail, sizeof r->detail, "%s", why->err == HTH_OK ? "" : why->detail);
    if (r->err != HTH_OK) {
        hth_free(r->json);
        r->json = NULL;
    }
}

static void all_finish(router_all *all)
{
    hth_router *n = all->router;
    hth_request *r = all->r;
    json_t *docs[HTH_PLACE_DEVICES] = {NULL}, *args = query_args(r);
    const char *name[HTH_PLACE_DEVICES];
    for (int i = 0; i < all->n; i++) {
        name[i] = n->device[all->device[i]].name;
        docs[i] = all->part[i].json != NULL ? json_loads(all->part[i].json, 0, NULL) : NULL;
        hth_free(all->part[i].json);
    }
    all_result(all);
    if (r->err == HTH_OK && !all->answered) {
        json_t *doc = hth_router_merge(r->command, docs, name, all->n);
        if (r->command == HTH_COMMAND_DEVICES) {
            all_devices(n, doc);
        } else if (r->command == HTH_COMMAND_UNLOAD && query_text(args, "model") != NULL) {
            pthread_mutex_lock(&n->lock);
            router_model_unload(n, query_text(args, "model"));
            pthread_mutex_unlock(&n->lock);
        }
        answer_json(r, doc);
        json_decref(doc);
    }
    for (int i = 0; i < all->n; i++) {
        json_decref(docs[i]);
    }
    json_decref(args);
    r->finished_ns = hth_now_ns();
    hth_free(all);
    router_finish(r);
}

static void all_done(hth_request *part)
{
    router_all *a = part->ctx;
    if (atomic_fetch_sub(&a->left, 1) == 1) {
        all_finish(a);
    }
}

// all_ask asks the devices of a mask: request's command, or, where it is answered already, another
// one with the same arguments.
static hth_err all_ask(hth_router *router, hth_request *request, uint32_t mask,
                       hth_command_id command)
{
    router_all *a = hth_calloc(1, sizeof *a);
    hth_err err = HTH_OK;
    if (a == NULL) {
        return hth_no_memory("a question to all devices");
    }
    a->router = router;
    a->r = request;
    a->each = router_asks[command] == ROUTER_each;
    a->answered = command != request->command;
    for (int i = 0; i < router->n; i++) {
        if ((mask >> i & 1) != 0) {
            a->part[a->n] = (hth_request){.command = command,
                                          .arguments = request->arguments,
                                          .tenant = request->tenant,
                                          .admin = request->admin,
                                          .whole = request,
                                          .done = all_done,
                                          .ctx = a};
            a->device[a->n++] = i;
        }
    }
    int taken = 0, all = a->n;
    atomic_store(&a->left, all + 1); // one is this function's
    for (int i = 0; i < all; i++) {
        hth_err one = hth_engine_submit(router->device[a->device[i]].engine, &a->part[i]);
        if (one != HTH_OK) {
            a->part[i].err = err = one;
            snprintf(a->part[i].detail, sizeof a->part[i].detail, "%s", hth_err_detail());
            atomic_fetch_sub(&a->left, 1);
        }
        taken += one == HTH_OK;
    }
    if (taken == 0) { // the last refusal is still the thread's detail
        hth_free(a);
        return err;
    }
    if (atomic_fetch_sub(&a->left, 1) == 1) {
        all_finish(a);
    }
    return HTH_OK;
}

// query_up is the mask of devices that are there; the first one, if none is: it has to say why.
static uint32_t query_up(hth_router *router)
{
    uint32_t mask = 0;
    pthread_mutex_lock(&router->lock);
    for (int i = 0; i < router->n; i++) {
        mask |= router_up(router, i) ? 1u << i : 0;
    }
    pthread_mutex_unlock(&router->lock);
    return mask != 0 ? mask : 1;
}

// ---- unloading where nobody answers now

static void unload_done(router_own *own)
{
    if (own->r.err != HTH_OK) {
        hth_log(WARN, SERVER, "model-not-unloaded", "model=%s device=%s: %s", own->name,
                own->router->device[own->device].name, own->r.detail);
    }
}

// unload_away has the devices that are not asked unload a model when they are back.
static void unload_away(hth_router *router, const hth_request *request, json_t *args,
                        uint32_t asked)
{
    const char *spec = query_text(args, "model");
    for (int i = 0; router->child && spec != NULL && i < router->n; i++) {
        if ((asked >> i & 1) == 0 &&
            router_own_ask(router, i, request->tenant != NULL ? request->tenant : "",
                           HTH_COMMAND_UNLOAD, json_incref(args), spec, unload_done) != HTH_OK) {
            hth_log(WARN, SERVER, "model-not-unloaded", "model=%s device=%s: %s", spec,
                    router->device[i].name, hth_err_detail());
        }
    }
}

// ---- to one

// query_named is the device that the argument "on" names, -1: it names none.
static hth_err query_named(const hth_router *router, const json_t *args, int *device)
{
    const char *on = query_text(args, "on");
    char list[HTH_PLACE_DEVICES * 66] = "";
    *device = -1;
    for (int i = 0; on != NULL && i < router->n; i++) {
        if (strcmp(on, router->device[i].name) == 0) {
            *device = i;
            return HTH_OK;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 0 ? ", " : "",
                 router->device[i].name);
    }
    return on == NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "there is no device '%.60s' (there are: %s)", on, list);
}

static void one_done(hth_request *request)
{
    router_sent(request->route.router, request);
    router_finish(request);
}

static void load_learn(hth_router *router, hth_request *request)
{
    router_model *m = request->route.model;
    router_there *t = &m->on[request->route.device];
    json_t *args = query_args(request);
    const json_t *pin = json_object_get(args, "pin");
    bool unpin = json_is_true(json_object_get(args, "unpin"));
    pthread_mutex_lock(&router->lock);
    if (request->err == HTH_OK) {
        router_model_place(router, m, request->route.device);
        t->loaded = true;
        router_model_for(m, request->tenant, true);
        t->refused = false;
        t->too_big_for[0] = 0;
        m->pinned = pin != NULL || unpin ? json_is_true(pin) && !unpin : m->pinned;
    } else if (!t->good && !t->loaded) {
        router_model_leave(m, request->route.device);
        t->refused = t->refused || request->err == HTH_ENOTSUP;
    }
    pthread_mutex_unlock(&router->lock);
    json_decref(args);
}

static hth_err load_send(hth_router *router, hth_request *request);

// load_others has the other devices take the newest version of a name over, too, where they serve
// it, before `request`, which has been answered by one, is given back; false: there is nobody to
// ask.
static bool load_others(hth_router *router, hth_request *request)
{
    char name[201];
    int version = 0;
    json_t *args = query_args(request);
    const char *spec = query_text(args, "model");
    uint32_t others = query_up(router) & ~(1u << request->route.device);
    bool named = spec != NULL && hth_catalog_parse(spec, name, &version) == HTH_OK && version == 0;
    json_decref(args);
    return named && others != 0 && all_ask(router, request, others, HTH_COMMAND_SERVING) == HTH_OK;
}

static void load_done(hth_request *request)
{
    hth_router *n = request->route.router;
    int device = request->route.device;
    bool lost = router_is_lost(n, request, request->err);
    bool again = request->err == HTH_ENOTSUP || request->err == HTH_ETOOBIG ||
                 request->err == HTH_ENODEVMEM || lost;
    request->route.older = request->version > 0 ? request->version : request->route.older;
    router_sent(n, request);
    load_learn(n, request);
    if (lost) {
        router_lost(n, device);
    }
    if (request->err == HTH_OK) {
        json_t *doc = json_loads(request->json, 0, NULL);
        json_object_set_new(doc, "device", json_string(n->device[device].name));
        answer_json(request, doc);
        json_decref(doc);
        router_refresh(n, device);
        if (load_others(n, request)) {
            return;
        }
    }
    if (!again || request->canceled || load_send(n, request) != HTH_OK) {
        request->version = request->err != HTH_OK ? request->route.older
                                                  : 0; // another device failing ends it nowhere
        router_finish(request);
    }
}

// load_send has a model loaded where it is already or belongs, or where it is said to.
static hth_err load_send(hth_router *router, hth_request *request)
{
    int to, ignored;
    json_t *args = query_args(request);
    hth_err err = query_named(router, args, &to);
    json_decref(args);
    HTH_TRY(err);
    if (to >= 0 && (request->route.tried >> to & 1) != 0) {
        to = -1;
    } else if (to < 0) {
        pthread_mutex_lock(&router->lock);
        to = router_pick(router, request->route.model, request->route.tried, false, &ignored);
        pthread_mutex_unlock(&router->lock);
    }
    return to >= 0 ? router_send(router, request, to)
                   : hth_fail(HTH_EDEVLOST, "no device is left for it");
}

// query_sets tells whether a question about a model changes something. A device that has the model
// by another name (of a version), or not in memory now, has to know that, too.
static bool query_sets(const hth_request *request, const json_t *args)
{
    return request->command != HTH_COMMAND_STATS && json_object_size(args) > 1;
}

// query_having is the mask of the devices with the model that the question is about; 0: it is about
// none, or is nowhere.
static uint32_t query_having(hth_router *router, const router_model *model)
{
    uint32_t mask = 0;
    pthread_mutex_lock(&router->lock);
    for (int i = 0; model != NULL && i < router->n; i++) {
        mask |= model->on[i].has && router_up(router, i) ? 1u << i : 0;
    }
    pthread_mutex_unlock(&router->lock);
    return mask;
}

// query_model asks a device that has the model, or would get it.
static hth_err query_model(hth_router *router, hth_request *request, const json_t *args)
{
    const char *spec = query_text(args, "model");
    router_model *m = spec != NULL ? router_model_find(router, spec) : NULL;
    int to, ignored;
    HTH_TRY(query_named(router, args, &to));
    if (to < 0) {
        pthread_mutex_lock(&router->lock);
        to = router_pick(router, m, 0, false, &ignored);
        pthread_mutex_unlock(&router->lock);
    }
    request->done = one_done;
    return router_send(router, request, to);
}

static void job_done(hth_request *request)
{
    hth_router *n = request->route.router;
    json_t *args = query_args(request),
           *doc = request->err == HTH_OK ? json_loads(request->json, 0, NULL) : NULL;
    const char *job = query_text(args, "job");
    bool resumed = doc != NULL && request->command == HTH_COMMAND_RESUME;
    router_sent(n, request);
    if (resumed && router_job_device(n, job) < 0) {
        router_job_resume(n, job, args, request->route.device);
    }
    int at = job != NULL ? router_job_device(n, job) : -1;
    if (doc != NULL) {
        json_object_set_new(doc, "device", at >= 0 ? json_string(n->device[at].name) : json_null());
        answer_json(request, doc);
    }
    json_decref(doc);
    json_decref(args);
    router_finish(request);
}

// query_job asks the device where the job is; where it is on none, any knows what the store knows.
static hth_err query_job(hth_router *router, hth_request *request, const json_t *args)
{
    const char *job = query_text(args, "job");
    int to = job != NULL ? router_job_device(router, job) : -1;
    hth_place d[HTH_PLACE_DEVICES];
    pthread_mutex_lock(&router->lock);
    router_places(router, NULL, 0, d);
    to = to >= 0 && d[to].up ? to : hth_place_job(d, router->n);
    pthread_mutex_unlock(&router->lock);
    request->done = job_done;
    return router_send(router, request, to >= 0 ? to : 0);
}

hth_err router_query(hth_router *router, hth_request *request)
{
    router_query_kind kind = router_asks[request->command];
    json_t *args = query_args(request);
    const char *spec = query_text(args, "model");
    hth_err err;
    if (kind == ROUTER_train) {
        err = router_job_train(router, request);
    } else if (kind == ROUTER_job) {
        err = query_job(router, request, args);
    } else if (kind == ROUTER_load && spec != NULL) {
        request->route.model = router_model_find(router, spec);
        request->done = request->route.model != NULL ? load_done : one_done;
        err = load_send(router, request);
    } else if (kind == ROUTER_having && spec != NULL) {
        uint32_t mask = query_sets(request, args)
                            ? query_up(router)
                            : query_having(router, router_model_find(router, spec));
        err = mask != 0 ? all_ask(router, request, mask, request->command)
                        : query_model(router, request, args);
    } else if (kind == ROUTER_all || kind == ROUTER_each || kind == ROUTER_having) {
        uint32_t mask = query_up(router);
        if (request->command == HTH_COMMAND_UNLOAD) {
            unload_away(router, request, args, mask);
        }
        err = all_ask(router, request, mask, request->command);
    } else {
        err = query_model(router, request, args);
    }
    json_decref(args);
    return err;
}
