// SPDX-License-Identifier: Apache-2.0
// Commands about models, devices and tenants: a function query_NAME for each row of
// HTH_COMMANDS_QUERY (runtime/command.h), here or in the other files of this folder.
#include "engine/query/query_impl.h"

#include "base/alloc.h"
#include "device/plugin.h"
#include "device/quota.h"
#include "graph/onnx/onnx.h"
#include "runtime/precision.h"
#include "runtime/query_latency.h"
#include "runtime/tenants/tenant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static json_t *shape_json(const hth_shape *shape)
{
    json_t *a = json_array();
    for (int i = 0; i < shape->rank; i++) {
        json_array_append_new(a, json_integer(shape->dim[i] < 0 ? -1 : shape->dim[i]));
    }
    return a;
}

static json_t *values_json(const hth_graph *graph, const int *list, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        const hth_value *v = &graph->values[list[i]];
        json_t *row = json_pack("{s:s, s:s, s:o}", "name", v->name, "datatype",
                                hth_dtype_name(v->dtype), "shape", shape_json(&v->shape));
        if (v->shape.rank < 0) {
            json_object_set_new(row, "any_rank", json_true()); // a single number's shape is [], too
        }
        json_array_append_new(a, row);
    }
    return a;
}

static void query_describe(const query *q, const hth_model *model, json_t **out)
{
    const hth_graph *g = model->source.graph;
    hth_batch_policy p = hth_model_batch_policy(model);
    *out = json_pack(
        "{s:s, s:i, s:s, s:o, s:o, s:i, s:i, s:I, s:I, s:s, s:b, s:b, s:b, s:o}", "name",
        model->name, "version", model->version, "device", q->ms->site->device->props.name, "inputs",
        values_json(g, g->inputs, g->n_inputs), "outputs", values_json(g, g->outputs, g->n_outputs),
        "nodes", g->n_nodes, "tensors", model->manifest.n_tensors, "bytes",
        (json_int_t)model->weight_bytes, "max_batch", (json_int_t)model->max_batch, "precision",
        hth_precision_name(g->precision), "training", g->training, "batched", model->source.batched,
        "independent", model->independence.proven, "batching", hth_batching_json(&p));
    if (!model->independence.proven) {
        json_object_set_new(*out, "dependent_because", json_string(model->independence.why));
    }
}

// query_metadata_add adds an entry of the model's metadata that is a text to the object `ctx`; of
// several with one key the first counts.
static void query_metadata_add(void *ctx, hth_onnx_text key, hth_onnx_text value)
{
    bool text = memchr(key.text, 0, key.bytes) == NULL &&
                memchr(value.text, 0, value.bytes) == NULL; // JSON could hold zeros, few readers do
    char *name = text ? hth_strndup(key.text, key.bytes) : NULL;
    if (name != NULL && json_object_get(ctx, name) == NULL) {
        json_object_set_new(ctx, name, json_stringn(value.text, value.bytes)); // NULL: no UTF-8
    }
    hth_free(name);
}

static void query_metadata(const hth_model *model, json_t *doc)
{
    json_t *metadata = json_object();
    hth_onnx_metadata(model->manifest.skeleton, model->manifest.skeleton_bytes, query_metadata_add,
                      metadata);
    json_object_set_new(doc, "metadata", metadata);
}

// query_model describes a model. "keep": false: one that was not loaded before is not loaded after.
// "metadata": what its file says of it, too, which may be long.
static hth_err query_model(query *q, json_t **out)
{
    hth_model *m;
    const json_t *keep = json_object_get(q->args, "keep");
    if (keep != NULL && !json_is_boolean(keep)) {
        return hth_fail(HTH_EINVAL, "'keep' is neither true nor false");
    }
    uint64_t loaded = q->ms->loaded;
    HTH_TRY(query_find_model(q, &m));
    query_describe(q, m, out);
    if (json_is_true(json_object_get(q->args, "metadata"))) {
        query_metadata(m, *out);
    }
    if (json_is_false(keep) && q->ms->loaded != loaded && m->refs == 0) {
        hth_model_drop(q->ms, m);
    }
    return HTH_OK;
}

// query_batching sets how a model's requests wait and are joined, where something is given, and
// says how that is now.
static hth_err query_batching(query *q, json_t **out)
{
    hth_model *m;
    HTH_TRY(query_find_model(q, &m));
    hth_batching b = m->batching;
    if (json_object_size(q->args) > 1) {
        HTH_TRY(hth_batching_change(q->ms->store, m->name, q->args, &b));
    }
    for (hth_model *each = q->ms->list; each != NULL; each = each->next) {
        each->batching = strcmp(each->name, m->name) == 0 ? b : each->batching;
    }
    hth_batch_policy p = hth_model_batch_policy(m);
    *out = hth_batching_json(&p);
    json_object_set_new(*out, "model", json_string(m->name));
    return HTH_OK;
}

// query_precision sets in what a model computes, where something is given, and says what holds. The
// model itself is not needed for that: it may not be for this device as it is.
static hth_err query_precision(query *q, json_t **out)
{
    hth_manifest found;
    char set[HTH_PRECISION_TEXT];
    const char *name = query_text(q, "model"), *wanted = query_text(q, "precision");
    if (name == NULL || strchr(name, ':') != NULL) {
        return hth_fail(HTH_EINVAL, "the model's name, without a version, is missing");
    }
    HTH_TRY(hth_store_get(q->ms->store, name, 0, &found));
    hth_manifest_fini(&found);
    if (wanted != NULL && wanted[0]) {
        hth_precision p;
        HTH_TRY(hth_precision_find(wanted, &p));
        HTH_TRY(hth_kernel_computes(q->ms->site->device, p));
    }
    HTH_TRY(wanted != NULL ? hth_precision_set(q->ms->store, name, wanted) : HTH_OK);
    hth_models_renew(q->ms, name);
    hth_precision_get(q->ms->store, name, set);
    *out = json_pack("{s:s, s:s, s:b}", "model", name, "precision",
                     hth_precision_name(hth_precision_of(q->ms->store, name)), "set", set[0] != 0);
    return HTH_OK;
}

static hth_err query_devices(query *q, json_t **out)
{
    const hth_device *device = q->ms->site->device;
    const hth_device_props *p = &device->props;
    const hth_site *site = q->ms->site;
    hth_pool_ledger l;
    char cuda[256];
    hth_pool_ledger_get(site->pool, &l);
    bool found = hth_plugin_cuda_probe(cuda, sizeof cuda) == HTH_OK;
    *out = json_pack(
        "{s:s, s:[{s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:i, s:s, s:f, s:f, s:b, s:f, s:f, s:f}]}",
        "cuda", found ? cuda : hth_err_detail(), "devices", "name", p->name, "description",
        p->description, "total_bytes", (json_int_t)p->total_bytes, "budget_bytes",
        (json_int_t)p->budget_bytes, "used_bytes", (json_int_t)(l.reserved_bytes - l.free_bytes),
        "threads", p->n_threads, "quota_percent", hth_device_quota_percent(device), "vector_bytes",
        p->vector_bytes, "fingerprint", p->fingerprint, "h2d_bytes_per_s", site->link_bytes_per_s,
        "d2h_bytes_per_s", site->link_back_bytes_per_s, "link_set", hth_device_paced(device),
        "link_latency_us", site->link_latency_us, "copy_interference", site->copy_interference,
        "copy_us", site->copy_us);
    return HTH_OK;
}

// query_device_quota sets a device's share of its processors, and says what it is.
static hth_err query_device_quota(query *q, json_t **out)
{
    hth_device *device = q->ms->site->device;
    int percent;
    HTH_TRY(hth_quota_read(query_text(q, "quota"), &percent));
    HTH_TRY(hth_device_quota(device, percent));
    *out = json_pack("{s:s, s:i}", "device", device->props.name, "quota_percent", percent);
    return HTH_OK;
}

static hth_err query_stats(query *q, json_t **out)
{
    hth_model *only = NULL;
    if (query_text(q, "model") != NULL) {
        HTH_TRY(query_find_model(q, &only));
    }
    return hth_query_stats(q->ms, only, q->r, out);
}

static hth_err query_latency(query *q, json_t **out)
{
    *out = hth_latency_json(q->ms);
    return HTH_OK;
}

// What tenants may have and have; {"read"}: the file that says so is read again.
static hth_err query_tenants(query *q, json_t **out)
{
    json_t *stats;
    hth_tenants *all = q->ms->site->tenants;
    if (json_is_true(json_object_get(q->args, "read")) && all != NULL) {
        HTH_TRY(hth_tenants_read(all));
        q->ms->site->freed++; // a limit may be higher now
    }
    HTH_TRY(hth_query_stats(q->ms, NULL, q->r, &stats));
    *out = json_pack("{s:O}", "tenants", json_object_get(stats, "tenants"));
    json_decref(stats);
    return *out != NULL ? HTH_OK : hth_no_memory("an answer");
}

bool hth_query_at_once(hth_models *ms, const hth_request *request)
{
    const hth_command_row *row = hth_command_get(request->command);
    bool known = (row->traits & HTH_COMMAND_AT_ONCE) != 0;
    if (!known || request->arguments == NULL || request->arguments[0] == 0) {
        return known && row->required == 0;
    }
    if ((row->takes & HTH_TAKES(MODEL)) == 0) {
        return true;
    }
    json_t *args = json_loads(request->arguments, 0, NULL);
    const char *model = json_string_value(json_object_get(args, "model"));
    known = model == NULL || hth_model_current(ms, model) != NULL;
    json_decref(args);
    return known;
}

hth_err hth_query_answer(hth_models *ms, hth_request *request)
{
    static hth_err (*const answer[HTH_COMMANDS])(query * q, json_t * *out) = {
#define QUERY_ROW(ID, name, ...) [HTH_COMMAND_##ID] = query_##name,
        HTH_COMMANDS_QUERY(QUERY_ROW)};
    assert(answer[request->command] != NULL);
    query q = {.ms = ms, .r = request};
    json_error_t je;
    q.args = json_loads(
        request->arguments != NULL && request->arguments[0] ? request->arguments : "{}", 0, &je);
    if (!json_is_object(q.args)) {
        json_decref(q.args);
        return hth_fail(HTH_EINVAL, "the arguments of '%s' are not a JSON object: %s",
                        hth_command_name(request->command), hth_err_json(je.text));
    }
    const char *before = ms->tenant; // one that is answered while another one's model is made ready
    const hth_request *asked = ms->asks;
    ms->tenant = request->tenant;
    ms->asks = request;
    json_t *doc = NULL;
    hth_err err = answer[request->command](&q, &doc);
    char *text = err == HTH_OK ? json_dumps(doc, JSON_COMPACT) : NULL;
    request->json = text != NULL ? hth_strdup(text) : NULL;
    if (err == HTH_OK && request->json == NULL) {
        err = hth_no_memory("an answer");
    }
    free(text);
    json_decref(doc);
    ms->tenant = before;
    ms->asks = asked;
    json_decref(q.args);
    return err;
}
