// SPDX-License-Identifier: Apache-2.0
#include "runtime/model.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "runtime/catalog.h"
#include "runtime/paced.h"
#include "runtime/precision.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

// model_damaged adds what can be done to the sentence about what is damaged in the store.
static hth_err model_damaged(hth_err err)
{
    char what[700];
    snprintf(what, sizeof what, "%s", hth_err_detail());
    return hth_fail(err,
                    "it is damaged in the store, and not served: %s; importing the same file "
                    "repairs it; `hearth verify` lists what is damaged",
                    what);
}

hth_err hth_model_graph(hth_store *store, const hth_manifest *manifest, hth_graph **out)
{
    hth_err err = HTH_OK;
    hth_onnx_limits limits = hth_catalog_limits();
    *out = NULL;
    hth_const **view = hth_calloc((size_t)manifest->n_tensors, sizeof *view);
    if (view == NULL) {
        return hth_no_memory("loading model '%s'", manifest->name);
    }
    HTH_GOTO(hth_store_check(store, manifest), out);
    for (int i = 0; i < manifest->n_tensors; i++) {
        HTH_GOTO(hth_store_view(store, &manifest->tensors[i], &view[i]), out);
    }
    err = hth_onnx_load(manifest->skeleton, manifest->skeleton_bytes, view, manifest->n_tensors,
                        &limits, out);
out:
    for (int i = 0; i < manifest->n_tensors; i++) {
        hth_const_rele(view[i]);
    }
    hth_free(view);
    return err == HTH_ECORRUPT ? model_damaged(err) : err;
}

static void model_free(hth_models *ms, hth_model *model)
{
    hth_source_fini(ms->site, &model->source);
    hth_manifest_fini(&model->manifest);
    hth_latency_close(model->latency);
    hth_free(model->demand.key);
    hth_free(model);
    hth_site_trim(ms->site);
    ms->site->freed++;
}

void hth_model_hold(hth_model *model)
{
    model->refs++;
}

void hth_model_rele(hth_models *ms, hth_model *model)
{
    assert(model->refs > 0);
    if (--model->refs == 0 && model->gone) {
        model_free(ms, model);
    }
}

hth_batch_policy hth_model_batch_policy(const hth_model *model)
{
    return hth_batching_policy(&model->batching, model->max_batch,
                               model->source.batched && !model->alone);
}

hth_name *hth_model_name(const hth_models *ms, const char *name)
{
    hth_name *n = ms->names;
    while (n != NULL && strcmp(n->name, name) != 0) {
        n = n->next;
    }
    return n;
}

// A name without a version to serve it is forgotten.
static void names_forget(hth_models *ms, const hth_model *model)
{
    for (hth_name **at = &ms->names; *at != NULL;) {
        hth_name *n = *at;
        n->coming = n->coming == model ? NULL : n->coming;
        if (n->serving == model) {
            if (n->coming != NULL) {
                hth_source_unpin_ahead(ms->site, &n->coming->source);
            }
            *at = n->next;
            hth_free(n);
        } else {
            at = &n->next;
        }
    }
}

void hth_model_drop(hth_models *ms, hth_model *model)
{
    hth_model **at = &ms->list;
    ms->recent.model = NULL;
    names_forget(ms, model);
    while (*at != model) {
        at = &(*at)->next;
    }
    *at = model->next;
    model->gone = true;
    for (hth_program *p = model->source.programs; p != NULL; p = p->next) {
        hth_program_pin(ms->site, p, false); // nobody could from now on
    }
    if (model->refs == 0) {
        model_free(ms, model);
    }
}

void hth_models_fini(hth_models *ms)
{
    while (ms->list != NULL) {
        hth_model_drop(ms, ms->list);
    }
    hth_latency_close(ms->latency);
    ms->latency = NULL;
}

// Programs that nobody goes on with leave the device.
static void source_evict(hth_site *site, hth_source *source)
{
    for (hth_program *p = source->programs; p != NULL; p = p->next) {
        if (p->held == 0 && !p->running) {
            hth_program_evict(site, p);
            source_evict(site, &p->rest);
        }
    }
}

int hth_models_unload(hth_models *ms, const char *name, int version)
{
    int n = 0;
    for (hth_model *m = ms->list, *next; m != NULL; m = next) {
        next = m->next;
        if (strcmp(m->name, name) == 0 && (version == 0 || m->version == version)) {
            hth_model_hold(m);
            hth_model_drop(ms, m);
            source_evict(ms->site, &m->source);
            hth_model_rele(ms, m);
            n++;
        }
    }
    return n;
}

void hth_models_renew(hth_models *ms, const char *name)
{
    for (hth_model *m = ms->list, *next; m != NULL; m = next) {
        next = m->next;
        if (strcmp(m->name, name) == 0 &&
            m->source.graph->precision != hth_precision_of(ms->store, name)) {
            hth_model_drop(ms, m);
        }
    }
}

// models_usable tells whether a loaded version may be served on: the store still has it, and what
// it was loaded from is neither known to be damaged now, nor was it when it was loaded. `marks`:
// something was found damaged, or repaired, since this was last looked at.
static bool models_usable(const hth_models *ms, const hth_model *model, bool marks)
{
    bool has = true;
    if (hth_store_has(ms->store, model->name, model->version, &has) == HTH_OK && !has) {
        return false;
    }
    hth_err err = marks ? hth_store_sound(ms->store, &model->manifest) : HTH_OK;
    if (err == HTH_ECORRUPT || err == HTH_EBUSY) {
        hth_log(WARN, SERVER, "model-dropped", "model=%s version=%d: %s", model->name,
                model->version, hth_err_detail());
        return false;
    }
    return true;
}

static void models_forget(hth_models *ms)
{
    uint64_t health = hth_store_health_count(ms->store);
    for (hth_model *m = ms->list, *next; m != NULL; m = next) {
        next = m->next;
        if (!models_usable(ms, m, health != ms->seen_health)) {
            hth_model_drop(ms, m);
        }
    }
    ms->seen_health = health;
}

void hth_models_refresh(hth_models *ms)
{
    uint64_t change = hth_store_change_count(ms->store);
    if (change != ms->seen_change) {
        ms->recent.model = NULL;
        models_forget(ms);
        if (ms->changed != NULL) {
            ms->changed(ms);
        }
        ms->seen_change = change;
    }
}

static int64_t meta_max_batch(const char *meta)
{
    json_t *j = json_loads(meta, 0, NULL);
    json_t *v = json_object_get(j, "max_batch");
    int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    json_decref(j);
    return n;
}

bool hth_model_trained(const hth_manifest *manifest)
{
    json_t *j = json_loads(manifest->meta, 0, NULL);
    bool trained = json_is_true(json_object_get(j, HTH_META_TRAINED));
    json_decref(j);
    return trained;
}

hth_err hth_model_serves(hth_store *store, const hth_manifest *manifest, hth_graph **out,
                         hth_independence *samples)
{
    HTH_TRY(hth_model_graph(store, manifest, out));
    hth_err err = hth_model_trained(manifest) ? hth_train_off(*out) : HTH_OK;
    if (err == HTH_OK) {
        err = hth_independence_prove(*out, samples);
    }
    if (err != HTH_OK) {
        hth_graph_free(*out);
        *out = NULL;
    }
    return err;
}

static hth_err model_load(hth_models *ms, hth_manifest *manifest, hth_model **out)
{
    hth_model *m = hth_calloc(1, sizeof *m);
    if (m == NULL) {
        return hth_no_memory("loading model '%s'", manifest->name);
    }
    uint64_t start_ns = hth_now_ns();
    hth_paced paced;
    hth_paced_begin(&paced, ms->site, ms->asks);
    hth_err err = hth_model_serves(ms->store, manifest, &m->source.graph, &m->independence);
    if (err == HTH_OK) {
        m->source.graph->precision = hth_precision_of(ms->store, manifest->name);
        err = hth_kernel_computes(ms->site->device, m->source.graph->precision);
    }
    if (err == HTH_OK) {
        err = hth_fold_model(m->source.graph, hth_ref_eval, NULL);
    }
    hth_paced_end(&paced);
    if (err != HTH_OK) {
        hth_graph_free(m->source.graph);
        hth_free(m);
        return hth_err_prefix(err, "model '%s' version %d", manifest->name, manifest->version);
    }
    strncpy(m->name, manifest->name, sizeof m->name - 1);
    m->version = manifest->version;
    strcpy(m->account.name, m->name);
    m->account.version = m->version;
    snprintf(m->account.tenant, sizeof m->account.tenant, "%s",
             ms->tenant != NULL ? ms->tenant : HTH_TENANT_OWN);
    m->source.account = &m->account;
    m->max_batch = meta_max_batch(manifest->meta);
    hth_batching_load(ms->store, m->name, &m->batching);
    m->source.batched = m->max_batch != 0 && m->independence.proven;
    for (int i = 0; i < manifest->n_tensors; i++) {
        m->weight_bytes += manifest->tensors[i].bytes;
    }
    m->manifest = *manifest;
    memset(manifest, 0, sizeof *manifest);
    m->load_ns = hth_now_ns() - start_ns;
    m->next = ms->list;
    ms->list = m;
    ms->loaded++;
    *out = m;
    return HTH_OK;
}

hth_model *hth_model_loaded(const hth_models *ms, const char *name, int version)
{
    const hth_name *n = version == 0 ? hth_model_name(ms, name) : NULL;
    hth_model *m = ms->list;
    if (version == 0) {
        return n != NULL ? n->serving : NULL;
    }
    while (m != NULL && (m->version != version || strcmp(m->name, name) != 0)) {
        m = m->next;
    }
    return m;
}

hth_err hth_model_version(hth_models *ms, const char *name, int version, hth_model **out)
{
    hth_manifest manifest;
    *out = version > 0 ? hth_model_loaded(ms, name, version) : NULL;
    if (*out != NULL) {
        return HTH_OK;
    }
    HTH_TRY(hth_store_get(ms->store, name, version, &manifest));
    *out = hth_model_loaded(ms, name, manifest.version);
    hth_err err = *out != NULL ? HTH_OK : model_load(ms, &manifest, out);
    hth_manifest_fini(&manifest);
    return err;
}

// The latest version of a name begins to serve it.
static hth_err model_serve(hth_models *ms, const char *name, hth_model **out)
{
    hth_name *n = hth_calloc(1, sizeof *n);
    const hth_model *before = ms->list;
    if (n == NULL) {
        return hth_no_memory("loading model '%s'", name);
    }
    hth_err err = hth_model_version(ms, name, 0, out);
    if (err != HTH_OK) {
        hth_free(n);
        return err;
    }
    (*out)->by_version = ms->list == before;
    snprintf(n->name, sizeof n->name, "%s", name);
    n->serving = *out;
    n->next = ms->names;
    ms->names = n;
    return HTH_OK;
}

hth_model *hth_model_current(hth_models *ms, const char *spec)
{
    char name[208];
    int version;
    if (hth_store_change_count(ms->store) != ms->seen_change) {
        return NULL;
    }
    if (ms->recent.model != NULL && strcmp(ms->recent.spec, spec) == 0) {
        return ms->recent.model;
    }
    hth_model *m = hth_catalog_parse(spec, name, &version) == HTH_OK
                       ? hth_model_loaded(ms, name, version)
                       : NULL;
    if (m != NULL) {
        m->by_version = m->by_version || version > 0;
    }
    return m;
}

static void model_remember(hth_models *ms, const char *spec, hth_model *model)
{
    if (strlen(spec) < sizeof ms->recent.spec) {
        strcpy(ms->recent.spec, spec);
        ms->recent.model = model;
    }
}

hth_err hth_model_find(hth_models *ms, const char *spec, hth_model **out)
{
    char name[208];
    int version;
    *out = hth_model_current(ms, spec);
    if (*out != NULL) {
        model_remember(ms, spec, *out);
        return HTH_OK;
    }
    hth_models_refresh(ms);
    HTH_TRY(hth_catalog_resolve(ms->store, spec, name, &version));
    *out = hth_model_loaded(ms, name, version);
    if (*out == NULL) {
        HTH_TRY(version > 0 ? hth_model_version(ms, name, version, out)
                            : model_serve(ms, name, out));
    }
    (*out)->by_version = (*out)->by_version || version > 0;
    model_remember(ms, spec, *out);
    return HTH_OK;
}
