// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/load.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/catalog.h"
#include "engine/serve/infer.h"
#include "engine/serve/loaded.h"
#include "runtime/tenants/quota.h"
#include "engine/serve/version_swap.h"
#include "runtime/job_memory.h"
#include "runtime/tenants/tenant.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct load_args {
    char spec[216], name[208];
    int version;
    int pin, wait; // -1: not said
} load_args;

static hth_err load_flag(const json_t *doc, const char *key, int *out)
{
    const json_t *v = json_object_get(doc, key);
    *out = v == NULL ? -1 : json_is_true(v);
    return v == NULL || json_is_boolean(v)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%s' is neither true nor false", key);
}

static hth_err load_parse(hth_store *store, const json_t *doc, load_args *args)
{
    const char *model = json_string_value(json_object_get(doc, "model"));
    if (model == NULL || strlen(model) >= sizeof args->spec) {
        return hth_fail(HTH_EINVAL, "the argument 'model' is missing");
    }
    strcpy(args->spec, model);
    HTH_TRY(hth_catalog_resolve(store, args->spec, args->name, &args->version));
    HTH_TRY(load_flag(doc, "pin", &args->pin));
    return load_flag(doc, "wait", &args->wait);
}

static hth_err load_read(const hth_models *ms, const hth_request *request, load_args *args)
{
    *args = (load_args){.version = 0};
    json_t *doc = json_loads(request->arguments != NULL ? request->arguments : "{}", 0, NULL);
    hth_err err = load_parse(ms->store, doc, args);
    args->pin = json_is_true(json_object_get(doc, "unpin")) ? 0 : args->pin;
    args->wait = json_is_true(json_object_get(doc, "no-wait")) ? 0 : args->wait;
    json_decref(doc);
    return err;
}

static hth_err load_answer(hth_request *request, json_t *doc)
{
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    request->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return request->json != NULL ? HTH_OK : hth_no_memory("an answer");
}

// ---- load

static void load_inputs_free(const hth_model *model, hth_tensor *in)
{
    for (int i = 0; in != NULL && i < model->source.graph->n_inputs; i++) {
        hth_free(in[i].data);
    }
    hth_free(in);
}

// load_found is the program that is pinned, or else the one used last that is not to be made again;
// NULL: there is none.
static hth_program *load_found(const hth_model *model)
{
    hth_program *found = NULL;
    for (hth_program *p = model->source.programs; p != NULL; p = p->next) {
        if (p->pinned) {
            return p;
        }
        found = found == NULL && !p->stale ? p : found;
    }
    return found;
}

hth_err hth_load_program(hth_models *ms, hth_model *model, hth_request *request, hth_program **out,
                         bool *made)
{
    *out = load_found(model);
    *made = *out == NULL;
    if (!*made) {
        return HTH_OK;
    }
    hth_tensor *in = hth_calloc((size_t)model->source.graph->n_inputs + 1, sizeof *in);
    if (in == NULL) {
        return hth_no_memory("loading model '%s'", model->name);
    }
    hth_err err = hth_model_synthetic(model, 1, false, in);
    *made = err == HTH_OK && hth_source_match(&model->source, in) == NULL;
    if (err == HTH_OK) {
        err = hth_infer_program(ms, &model->source, in, false, request, out);
    }
    load_inputs_free(model, in);
    return err;
}

// load_leaves: a pin takes nothing that a request waits for.
static hth_err load_leaves(hth_site *site, const hth_program *program)
{
    uint64_t weights, arena, left = hth_job_memory_models(site);
    hth_program_ledger(program, &weights, &arena);
    if (program->pinned || site->awaited_bytes == 0 || site->awaited_bytes + weights <= left) {
        return HTH_OK;
    }
    site->refused_over = left > 0 ? left : 1;
    return hth_fail(HTH_ENODEVMEM,
                    "cannot pin it now: %d requests wait for memory, the oldest for %llu bytes",
                    site->awaiting, (unsigned long long)site->awaited_bytes);
}

// load_done pins a model that was brought, or no longer, and answers how many bytes were moved.
// `program` is NULL if it takes what only a request can bring.
static hth_err load_done(hth_site *site, const hth_model *model, hth_program *program, int pin,
                         uint64_t moved, hth_request *request)
{
    if (program != NULL && pin > 0) {
        HTH_TRY(load_leaves(site, program));
    }
    bool pinned = program != NULL && (pin < 0 ? program->pinned : pin > 0);
    HTH_TRY(load_answer(request, json_pack("{s:s, s:i, s:b, s:I}", "name", model->name, "version",
                                           model->version, "pinned", pinned, "moved_bytes",
                                           (json_int_t)moved)));
    if (program != NULL && pin > 0) {
        hth_program_pin(site, program, true);
    }
    for (hth_program *p = pin == 0 ? model->source.programs : NULL; p != NULL; p = p->next) {
        hth_program_pin(site, p, false);
    }
    return HTH_OK;
}

static hth_err load_bring(hth_models *ms, hth_model *model, int pin, hth_request *request)
{
    hth_site *site = ms->site;
    hth_program *p;
    hth_residency_stats before, after;
    bool made, was_active = false;
    uint64_t start_ns = hth_now_ns();
    hth_residency_stats_get(site->residency, &before);
    if (model->source.programs == NULL || !model->source.programs->active) {
        hth_quota_owner(site, &model->account, request->tenant);
    }
    hth_err err = hth_load_program(ms, model, request, &p, &made);
    if (err == HTH_ENOTSUP) { // shapes or values that only a request can bring
        p = NULL;
        err = HTH_OK;
    } else if (err == HTH_OK) {
        was_active = p->active;
        err = hth_program_activate(site, p);
    }
    model->load_ns += hth_now_ns() - start_ns;
    hth_residency_stats_get(site->residency, &after);
    if (err == HTH_OK) {
        err = load_done(site, model, p, pin, after.filled_bytes - before.filled_bytes, request);
    }
    if (err == HTH_OK || p == NULL) {
        return err;
    }
    if (made) {
        hth_program_free(site, p);
    } else if (!was_active) {
        hth_program_evict(site, p);
    }
    return err;
}

// load_refused fails as a newer version than the one that serves a name did, if one was refused.
static hth_err load_refused(const hth_name *name, hth_request *request)
{
    if (name->refused <= name->serving->version) {
        return HTH_OK;
    }
    request->version = name->serving->version;
    return hth_fail(name->why_err, "version %d was refused, version %d still answers: %s",
                    name->refused, name->serving->version, name->why);
}

// *list: where it waits: the newest version is being made ready, or there is no room now.
static hth_err load_try(hth_loads *loads, hth_request *request, const load_args *args,
                        hth_request ***list)
{
    hth_models *ms = loads->ms;
    hth_model *m;
    hth_models_renew(ms, args->name);
    bool fresh = hth_model_loaded(ms, args->name, args->version) == NULL;
    HTH_TRY(hth_model_find(ms, args->spec, &m));
    hth_batching_load(ms->store, m->name, &m->batching);
    const hth_name *n = args->version == 0 ? hth_model_name(ms, args->name) : NULL;
    if (n != NULL && n->wanted > 0) {
        *list = &loads->upgrades;
        return HTH_OK;
    }
    HTH_TRY(n != NULL ? load_refused(n, request) : HTH_OK);
    ms->site->refused_over = ms->site->refused_bytes = 0;
    hth_err err = load_bring(ms, m, args->pin, request);
    if (err != HTH_OK && fresh) {
        hth_model_drop(ms, m);
    }
    if (err != HTH_OK) {
        hth_site_trim(ms->site);
    }
    *list = err == HTH_ENODEVMEM && args->wait != 0 ? &loads->waiting : NULL;
    loads->by_freed = loads->by_freed || (*list != NULL && ms->site->refused_over == 0);
    return *list != NULL ? HTH_OK : err;
}

// load_serving answers what serves a name when its newest version does, or may not; *list: where it
// waits for that. Nothing serves a name that nobody has asked for: it gets the newest then.
static hth_err load_serving(hth_loads *loads, hth_request *request, const load_args *args,
                            hth_request ***list)
{
    const hth_name *n = hth_model_name(loads->ms, args->name);
    int version = n != NULL ? n->serving->version : 0;
    if (n != NULL && n->wanted > 0) {
        *list = &loads->upgrades;
        return HTH_OK;
    }
    HTH_TRY(n != NULL ? load_refused(n, request) : HTH_OK);
    return load_answer(request, json_pack("{s:s, s:i}", "name", args->name, "version", version));
}

static void load_one(hth_loads *loads, hth_request *request, bool first)
{
    load_args a;
    hth_request **list = NULL;
    hth_err err = load_read(loads->ms, request, &a);
    bool serving = request->command == HTH_COMMAND_SERVING;
    loads->ms->tenant = request->tenant;
    loads->ms->asks = request;
    hth_models_refresh(loads->ms); // what was removed serves nothing, nor does it keep its place
    if (err == HTH_OK && first && a.version == 0) {
        hth_version_swap_retry(loads->ms, a.name);
    }
    if (err == HTH_OK) {
        err =
            serving ? load_serving(loads, request, &a, &list) : load_try(loads, request, &a, &list);
    }
    loads->ms->tenant = NULL;
    loads->ms->asks = NULL;
    if (list != NULL) {
        request->next = *list;
        *list = request;
    } else {
        loads->answer(request, err);
    }
}

// ---- waiting for memory

static hth_loads_memory loads_memory(const hth_loads *loads)
{
    const hth_site *site = loads->ms->site;
    return (hth_loads_memory){.bytes = hth_job_memory_models(site) - site->awaited_bytes,
                              .limits = site->tenants != NULL ? site->tenants->reads : 0,
                              .freed = site->freed,
                              .others_ns = hth_work_others_ns(site->queue)};
}

// Runs that end free something all the time, and a try may take long: only who lacked something
// else than bytes for models is tried for that.
static bool loads_worth(const hth_loads *loads, const hth_loads_memory *now)
{
    const hth_loads_memory *tried = &loads->tried;
    return loads->again || now->bytes != tried->bytes || now->limits != tried->limits ||
           (loads->by_freed && now->freed != tried->freed);
}

// loads_tried notes how it was `before` those that wait were tried. What a try frees is its own,
// unless others computed meanwhile: that may have been theirs.
static void loads_tried(hth_loads *loads, const hth_loads_memory *before)
{
    hth_loads_memory now = loads_memory(loads);
    loads->tried = *before;
    loads->tried.freed = now.others_ns == before->others_ns ? now.freed : before->freed;
}

static void take_load(hth_loads *loads, hth_request *request)
{
    bool only = loads->waiting == NULL;
    hth_loads_memory before = loads_memory(loads);
    loads->by_freed = loads->by_freed && !only;
    loads->again = !only && loads_worth(loads, &before);
    load_one(loads, request, true);
    if (only) {
        loads_tried(loads, &before);
    }
}

// ---- unload

// What the store does not have is not there to be unloaded, unless it is loaded still.
static hth_err load_known(const hth_models *ms, const load_args *args)
{
    bool has;
    for (const hth_model *at = ms->list; at != NULL; at = at->next) {
        if (strcmp(at->name, args->name) == 0 &&
            (args->version == 0 || at->version == args->version)) {
            return HTH_OK;
        }
    }
    HTH_TRY(hth_store_has(ms->store, args->name, args->version, &has));
    if (!has) { // the sentence says what there is
        hth_manifest m;
        HTH_TRY(hth_store_get(ms->store, args->name, args->version, &m));
        hth_manifest_fini(&m);
    }
    return HTH_OK;
}

static hth_err load_unload(const hth_loads *loads, hth_request *request)
{
    load_args a;
    hth_pool_ledger before, after;
    HTH_TRY(load_read(loads->ms, request, &a));
    HTH_TRY(load_known(loads->ms, &a));
    hth_pool_ledger_get(loads->ms->site->pool, &before);
    int n = hth_models_unload(loads->ms, a.name, a.version);
    hth_pool_ledger_get(loads->ms->site->pool, &after);
    return load_answer(request,
                       json_pack("{s:s, s:i, s:I}", "name", a.name, "unloaded", n, "freed_bytes",
                                 (json_int_t)(after.free_bytes - before.free_bytes)));
}

// ---- the engine's side

static void take_serving(hth_loads *loads, hth_request *request)
{
    load_one(loads, request, true);
}

static void take_unload(hth_loads *loads, hth_request *request)
{
    loads->answer(request, load_unload(loads, request));
}

static hth_err load_loaded(const hth_loads *loads, hth_request *request)
{
    json_t *doc;
    HTH_TRY(hth_loaded_list(loads->ms, &doc));
    return load_answer(request, doc);
}

static void take_loaded(hth_loads *loads, hth_request *request)
{
    loads->answer(request, load_loaded(loads, request));
}

void hth_loads_take(hth_loads *loads, hth_request *request)
{
    static void (*const take[HTH_COMMANDS])(hth_loads * loads, hth_request * request) = {
#define LOAD_ROW(ID, name, ...) [HTH_COMMAND_##ID] = take_##name,
        HTH_COMMANDS_LOAD(LOAD_ROW)};
    assert(take[request->command] != NULL);
    take[request->command](loads, request);
}

// A request that waited for its name's newer version goes on when that has come about or not.
static bool load_settled(const hth_loads *loads, const hth_request *request)
{
    load_args a;
    const hth_name *n =
        load_read(loads->ms, request, &a) == HTH_OK ? hth_model_name(loads->ms, a.name) : NULL;
    return n == NULL || n->wanted == 0;
}

static void loads_retry(hth_loads *loads, hth_request **from, bool changed)
{
    hth_request *list = *from, *next;
    *from = NULL;
    for (hth_request *r = list; r != NULL; r = next) {
        next = r->next;
        if (*hth_request_canceled(r)) {
            loads->answer(r, hth_fail(HTH_ECANCELED, "canceled while it waited to be loaded"));
        } else if (from == &loads->waiting ? changed : load_settled(loads, r)) {
            load_one(loads, r, false);
        } else {
            r->next = *from;
            *from = r;
        }
    }
}

bool hth_loads_due(hth_loads *loads)
{
    return hth_version_swap_due(loads->ms) || loads->upgrades != NULL || loads->waiting != NULL;
}

bool hth_loads_slice(hth_loads *loads)
{
    bool more = hth_version_swap_slice(loads->ms);
    hth_loads_memory before = loads_memory(loads);
    bool worth = loads_worth(loads, &before);
    loads->by_freed = loads->by_freed && !worth;
    loads->again = false;
    loads_retry(loads, &loads->upgrades, false);
    loads_retry(loads, &loads->waiting, worth);
    loads_tried(loads, &before);
    return more;
}

void hth_loads_stop(hth_loads *loads)
{
    hth_request **list[] = {&loads->upgrades, &loads->waiting};
    for (int i = 0; i < 2; i++) {
        while (*list[i] != NULL) {
            hth_request *r = *list[i];
            *list[i] = r->next;
            loads->answer(r, hth_fail(HTH_ECANCELED, "the server is stopping"));
        }
    }
}
