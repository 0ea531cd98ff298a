// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/version_swap.h"

#include "base/alloc.h"
#include "base/log.h"
#include "engine/serve/load.h"
#include "runtime/tenants/quota.h"
#include "runtime/job_memory.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t reload_filled(const hth_models *ms)
{
    hth_residency_stats s;
    hth_residency_stats_get(ms->site->residency, &s);
    return s.filled_bytes;
}

// Drops what is there of the version that was to come.
static void reload_stop(hth_models *ms, hth_name *n)
{
    if (n->coming != NULL && !n->coming->by_version) {
        hth_model_drop(ms, n->coming);
    }
    n->coming = NULL;
    n->wanted = 0;
}

static void reload_want(hth_models *ms, hth_name *n)
{
    int latest;
    if (hth_store_latest(ms->store, n->name, &latest) != HTH_OK) {
        return;
    }
    if (latest != n->wanted) { // that one was removed, or is not the newest any more
        reload_stop(ms, n);
    }
    if (latest != n->refused) {
        n->refused = 0;
        n->why[0] = 0;
    }
    bool more = n->refused_bytes > 0 && hth_job_memory_models(ms->site) > n->refused_bytes;
    bool refused = latest == n->refused && !more;
    if (latest > n->serving->version && !refused) {
        n->wanted = latest;
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

static hth_program *reload_next(const hth_name *n)
{
    hth_program *p = n->serving->source.programs;
    while (p != NULL && p->followed == n->coming) {
        p = p->next;
    }
    return p;
}

// Inputs like those that p was made for, as the newer version takes them.
static hth_err reload_inputs(const hth_name *n, const hth_program *p, hth_tensor **out)
{
    const hth_graph *g = n->serving->source.graph;
    size_t most = (size_t)(g->n_inputs + n->coming->source.graph->n_inputs) + 1;
    hth_request_tensor *in = hth_calloc(most, sizeof *in);
    *out = hth_calloc(most, sizeof **out);
    if (in == NULL || *out == NULL) {
        hth_free(in);
        return hth_fail(HTH_ENOMEM, "no memory for a program");
    }
    for (int i = 0; i < g->n_inputs; i++) {
        in[i] = (hth_request_tensor){.name = g->values[g->inputs[i]].name, .t = p->key[i]};
    }
    hth_err err = hth_model_bind(n->coming, in, g->n_inputs, *out);
    hth_free(in);
    return err;
}

// A program of the newer version for the shapes of `p`, as ready as that one. Shapes that it does
// not take, or values that are not known here, are left to the requests that bring them.
static hth_err reload_program(hth_models *ms, const hth_name *n, hth_program *p)
{
    hth_site *site = ms->site;
    hth_source *s = &n->coming->source;
    hth_tensor *inputs;
    hth_program *made = NULL;
    p->held++;
    hth_err err = reload_inputs(n, p, &inputs);
    bool other = err == HTH_EINVAL;
    if (err == HTH_OK) {
        made = hth_source_match(s, inputs);
        err = made != NULL
                  ? HTH_OK
                  : hth_program_compile(site, s, inputs, hth_quota_models(site, s->account), false,
                                        NULL, &made);
        other = err == HTH_ENOTSUP && p->value_inputs == 0;
    }
    hth_free(inputs);
    if (err == HTH_OK && p->active) {
        err = hth_program_activate(site, made);
    }
    if (err == HTH_OK && p->pinned) {
        hth_program_pin(site, made, true);
    }
    p->followed = n->coming;
    p->held--;
    return other ? HTH_OK : err;
}

// One that takes none of the shapes in use has to show at least that it can be run at all.
static hth_err reload_prove(hth_models *ms, const hth_name *n)
{
    hth_program *p;
    bool made;
    if (n->coming->source.programs != NULL || n->serving->source.programs == NULL) {
        return HTH_OK;
    }
    hth_err err = hth_load_program(ms, n->coming, NULL, &p, &made);
    return err == HTH_ENOTSUP ? HTH_OK : err;
}

static void reload_switch(hth_models *ms, hth_name *n)
{
    hth_model *old = n->serving;
    hth_log(INFO, SERVER, "reload", "model=%s version=%d before=%d moved_bytes=%" PRIu64, n->name,
            n->wanted, old->version, reload_filled(ms) - n->moved_from);
    n->serving = n->coming;
    n->coming = NULL;
    n->wanted = n->refused = 0;
    n->why[0] = 0;
    ms->recent.model = NULL;
    for (hth_program *p = old->source.programs; p != NULL; p = p->next) {
        hth_program_pin(ms->site, p, false);
    }
    if (!old->by_version) {
        hth_model_drop(ms, old);
    }
}

static void reload_refuse(hth_models *ms, hth_name *n, hth_err err)
{
    snprintf(n->why, sizeof n->why, "%s", hth_err_detail());
    n->why_err = err;
    n->refused = n->wanted;
    n->refused_bytes =
        err == HTH_ETOOBIG || err == HTH_ENODEVMEM ? hth_job_memory_models(ms->site) : 0;
    hth_log(WARN, SERVER, "reload", "model=%s version=%d serves=%d: %s", n->name, n->wanted,
            n->serving->version, n->why);
    reload_stop(ms, n);
}

static void reload_step(hth_models *ms, hth_name *n)
{
    hth_err err = HTH_OK;
    if (n->coming == NULL) {
        n->moved_from = reload_filled(ms);
        ms->tenant = n->serving->account.tenant;
        err = hth_model_version(ms, n->name, n->wanted, &n->coming);
        ms->tenant = NULL;
    } else {
        hth_program *p = reload_next(n);
        err = p != NULL ? reload_program(ms, n, p) : reload_prove(ms, n);
        if (p == NULL && err == HTH_OK) {
            reload_switch(ms, n);
        }
    }
    if (err != HTH_OK) {
        reload_refuse(ms, n, err);
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
