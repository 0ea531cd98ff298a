// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/version_swap.h"

#include "base/alloc.h"
#include "base/log.h"
#include "engine/serve/load.h"
#include "runtime/compile/compile.h"
#include "runtime/tenants/quota.h"
#include "runtime/job_memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

static uint64_t reload_filled(const hth_models *ms)
{
    hth_residency_stats s;
    hth_residency_stats_get(ms->site->residency, &s);
    return s.filled_bytes;
}

// Drops what is there of the version that was to come; one that stays for its own sake has no pins
// but its own.
static void reload_stop(hth_models *ms, hth_name *name)
{
    if (name->coming != NULL) {
        hth_source_unpin_ahead(ms->site, &name->coming->source);
    }
    if (name->coming != NULL && !name->coming->by_version) {
        hth_model_drop(ms, name->coming);
    }
    name->coming = NULL;
    name->wanted = 0;
}

static void reload_want(hth_models *ms, hth_name *name)
{
    int latest;
    if (hth_store_latest(ms->store, name->name, &latest) != HTH_OK) {
        return;
    }
    if (latest != name->wanted) { // that one was removed, or is not the newest any more
        reload_stop(ms, name);
    }
    if (latest != name->refused) {
        name->refused = 0;
        name->why[0] = 0;
    }
    bool more = name->refused_bytes > 0 && hth_job_memory_models(ms->site) > name->refused_bytes;
    bool refused = latest == name->refused && !more;
    if (latest > name->serving->version && !refused) {
        name->wanted = latest;
    }
}

void hth_version_swap_check(hth_models *ms)
{
    ms->looked_bytes = hth_job_memory_models(ms->site);
    for (hth_name *n = ms->names; n != NULL; n = n->next) {
        reload_want(ms, n);
    }
}

void hth_version_swap_retry(hth_models *ms, const char *name)
{
    hth_models_refresh(ms);
    hth_name *n = hth_model_name(ms, name);
    if (n != NULL) {
        n->refused = 0;
        reload_want(ms, n);
    }
}

// ---- slices

static hth_program *reload_next(const hth_name *name)
{
    hth_program *p = name->serving->source.programs;
    while (p != NULL && p->followed == name->coming) {
        p = p->next;
    }
    return p;
}

// Inputs like those that program was made for, as the newer version takes them.
static hth_err reload_inputs(const hth_name *name, const hth_program *program, hth_tensor **out)
{
    const hth_graph *g = name->serving->source.graph;
    size_t most = (size_t)(g->n_inputs + name->coming->source.graph->n_inputs) + 1;
    hth_request_tensor *in = hth_calloc(most, sizeof *in);
    *out = hth_calloc(most, sizeof **out);
    if (in == NULL || *out == NULL) {
        hth_free(in);
        return hth_no_memory("a program");
    }
    for (int i = 0; i < g->n_inputs; i++) {
        in[i] = (hth_request_tensor){.name = g->values[g->inputs[i]].name, .t = program->key[i]};
    }
    hth_err err = hth_model_bind(name->coming, in, g->n_inputs, *out);
    hth_free(in);
    return err;
}

// A program of the newer version for the shapes of `program`, as ready as that one. Shapes that it
// does not take, or values that are not known here, are left to the requests that bring them.
static hth_err reload_program(hth_models *ms, const hth_name *name, hth_program *program)
{
    hth_site *site = ms->site;
    hth_source *s = &name->coming->source;
    hth_tensor *inputs;
    hth_program *made = NULL;
    program->held++;
    hth_err err = reload_inputs(name, program, &inputs);
    bool other = err == HTH_EINVAL;
    if (err != HTH_OK) {
        goto done;
    }
    made = hth_source_match(s, inputs);
    if (made == NULL) {
        uint64_t budget = hth_quota_models(site, s->account);
        err = hth_program_compile(site, s, inputs, budget, false, NULL, &made);
        other = err == HTH_ENOTSUP && program->value_inputs == 0;
        if (err != HTH_OK) {
            goto done;
        }
    }
    if (program->active) {
        HTH_GOTO(hth_program_activate(site, made), done);
    }
    if (program->pinned && !made->pinned) {
        hth_program_pin(site, made, true);
        made->pinned_ahead = true;
    }
done:
    hth_free(inputs);
    program->followed = name->coming;
    assert(program->held > 0);
    program->held--;
    return other ? HTH_OK : err;
}

// One that takes none of the shapes in use has to show at least that it can be run at all.
static hth_err reload_prove(hth_models *ms, const hth_name *name)
{
    hth_program *p;
    bool made;
    if (name->coming->source.programs != NULL || name->serving->source.programs == NULL) {
        return HTH_OK;
    }
    hth_err err = hth_load_program(ms, name->coming, NULL, &p, &made);
    return err == HTH_ENOTSUP ? HTH_OK : err;
}

// reload_widen: pinned programs were planned for what the older version's pins left, and have all
// of that from now on.
static void reload_widen(hth_site *site, const hth_source *source)
{
    for (hth_program *p = source->programs; p != NULL; p = p->next) {
        p->stale |=
            p->pinned && hth_program_squeezed(p) && p->budget < hth_program_instead(site, p);
    }
}

static void reload_switch(hth_models *ms, hth_name *name)
{
    hth_model *old = name->serving;
    hth_log(INFO, SERVER, "reload", "model=%s version=%d before=%d moved_bytes=%" PRIu64,
            name->name, name->wanted, old->version, reload_filled(ms) - name->moved_from);
    name->serving = name->coming;
    name->coming = NULL;
    name->wanted = name->refused = 0;
    name->why[0] = 0;
    ms->recent.model = NULL;
    for (hth_program *p = old->source.programs; p != NULL; p = p->next) {
        hth_program_pin(ms->site, p, false);
    }
    for (hth_program *p = name->serving->source.programs; p != NULL; p = p->next) {
        p->pinned_ahead = false;
    }
    if (!old->by_version) {
        hth_model_drop(ms, old);
    }
    reload_widen(ms->site, &name->serving->source);
}

static void reload_refuse(hth_models *ms, hth_name *name, hth_err err)
{
    snprintf(name->why, sizeof name->why, "%s", hth_err_detail());
    name->why_err = err;
    name->refused = name->wanted;
    name->refused_bytes =
        err == HTH_ETOOBIG || err == HTH_ENODEVMEM ? hth_job_memory_models(ms->site) : 0;
    hth_log(WARN, SERVER, "reload", "model=%s version=%d serves=%d: %s", name->name, name->wanted,
            name->serving->version, name->why);
    reload_stop(ms, name);
}

// reload_begin loads the version that is to come. It may be one that was refused before, or lie
// where another one did: nothing was made ready for it.
static hth_err reload_begin(hth_models *ms, hth_name *name)
{
    for (hth_program *p = name->serving->source.programs; p != NULL; p = p->next) {
        p->followed = NULL;
    }
    name->moved_from = reload_filled(ms);
    ms->tenant = name->serving->account.tenant;
    hth_err err = hth_model_version(ms, name->name, name->wanted, &name->coming);
    ms->tenant = NULL;
    return err;
}

static void reload_step(hth_models *ms, hth_name *name)
{
    hth_err err = HTH_OK;
    if (name->coming == NULL) {
        err = reload_begin(ms, name);
    } else {
        hth_program *p = reload_next(name);
        err = p != NULL ? reload_program(ms, name, p) : reload_prove(ms, name);
        if (p == NULL && err == HTH_OK) {
            reload_switch(ms, name);
        }
    }
    if (err != HTH_OK) {
        reload_refuse(ms, name, err);
    }
}

static hth_name *reload_first(const hth_models *ms)
{
    hth_name *n = ms->names;
    while (n != NULL && n->wanted == 0) {
        n = n->next;
    }
    return n;
}

bool hth_version_swap_due(hth_models *ms)
{
    if (ms->list == NULL) {
        return false;
    }
    hth_models_refresh(ms);
    if (hth_job_memory_models(ms->site) > ms->looked_bytes) {
        hth_version_swap_check(ms);
    }
    return reload_first(ms) != NULL;
}

bool hth_version_swap_slice(hth_models *ms)
{
    if (!hth_version_swap_due(ms)) {
        return false;
    }
    reload_step(ms, reload_first(ms));
    return reload_first(ms) != NULL;
}

void hth_version_swap_settle(hth_models *ms, const char *name)
{
    hth_models_refresh(ms);
    hth_version_swap_check(ms);
    for (hth_name *n = hth_model_name(ms, name); n != NULL && n->wanted > 0;) {
        reload_step(ms, n);
        n = hth_model_name(ms, name);
    }
}
