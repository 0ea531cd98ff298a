// SPDX-License-Identifier: Apache-2.0
// Of a configuration only what changes something is looked at: the batch limit, how requests wait
// and are joined, and inputs and outputs, which must be the model's own. How many instances there
// are, hearth decides by itself.
#include "server/http/repository/model_config.h"

#include "runtime/batching.h"
#include "runtime/precision.h"

#include <stdio.h>
#include <string.h>

static const char *const config_fields[] = {"name",
                                            "platform",
                                            "backend",
                                            "runtime",
                                            "version_policy",
                                            "max_batch_size",
                                            "input",
                                            "output",
                                            "batch_input",
                                            "batch_output",
                                            "optimization",
                                            "dynamic_batching",
                                            "instance_group",
                                            "default_model_filename",
                                            "cc_model_filenames",
                                            "metric_tags",
                                            "parameters",
                                            "model_warmup",
                                            "model_operations",
                                            "model_transaction_policy",
                                            "model_repository_agents",
                                            "response_cache",
                                            "model_metrics"};
static const char *const config_refused[] = {"sequence_batching", "ensemble_scheduling"};

static bool config_lists(const char *const *list, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], word) == 0) {
            return true;
        }
    }
    return false;
}

static hth_err config_keys(const json_t *doc)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)doc, key, v)
    {
        if (config_lists(config_refused, sizeof config_refused / sizeof config_refused[0], key)) {
            return hth_fail(HTH_ENOTSUP,
                            "'%s' is not supported: models keep no state and call no others", key);
        }
        if (!config_lists(config_fields, sizeof config_fields / sizeof config_fields[0], key)) {
            return hth_fail(HTH_EINVAL, "a model configuration has no field '%.80s'", key);
        }
    }
    return HTH_OK;
}

// config_word checks a text that may only be one of `allowed`; "" is always one.
static hth_err config_word(const json_t *doc, const char *key, const char *const *allowed, size_t n)
{
    const json_t *v = json_object_get(doc, key);
    const char *text = json_string_value(v);
    if (v == NULL || (text != NULL && (text[0] == 0 || config_lists(allowed, n, text)))) {
        return HTH_OK;
    }
    return hth_fail(HTH_EINVAL, "the model configuration's '%s' is '%.80s', not '%s'", key,
                    text != NULL ? text : "", allowed[0]);
}

static hth_err config_batch(const json_t *doc, int *out)
{
    const json_t *v = json_object_get(doc, "max_batch_size");
    *out = v != NULL ? (int)json_integer_value(v) : -1;
    return v == NULL || (json_is_integer(v) && json_integer_value(v) >= 0 &&
                         json_integer_value(v) <= INT32_MAX)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the model configuration's 'max_batch_size' is not a whole "
                                      "number from 0 to 2147483647");
}

static hth_err config_read(const char *name, hth_model_config *out)
{
    static const char *const platforms[] = {"onnxruntime_onnx", "onnx_hearth"};
    static const char *const backends[] = {"onnxruntime", "hearth"};
    static const char *const files[] = {"model.onnx"};
    const char *const names[] = {name};
    if (!json_is_object(out->doc)) {
        return hth_fail(HTH_EINVAL, "the model configuration is not a JSON object");
    }
    HTH_TRY(config_keys(out->doc));
    HTH_TRY(config_word(out->doc, "name", names, 1));
    HTH_TRY(config_word(out->doc, "platform", platforms, 2));
    HTH_TRY(config_word(out->doc, "backend", backends, 2));
    HTH_TRY(config_word(out->doc, "default_model_filename", files, 1));
    HTH_TRY(config_batch(out->doc, &out->max_batch));
    HTH_TRY(hth_batching_of_config(out->doc, &out->batching));
    HTH_TRY(hth_precision_of_config(out->doc, &out->precision));
    const json_t *policy = json_object_get(out->doc, "model_transaction_policy");
    if (json_is_true(json_object_get(policy, "decoupled"))) {
        return hth_fail(HTH_ENOTSUP,
                        "decoupled models are not supported: a request has one response");
    }
    return HTH_OK;
}

hth_err hth_model_config_read(const char *text, const char *name, hth_model_config *out)
{
    *out = (hth_model_config){.doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL)};
    hth_err err = config_read(name, out);
    if (err != HTH_OK) {
        hth_model_config_fini(out);
    }
    return err;
}

void hth_model_config_fini(hth_model_config *config)
{
    json_decref(config->doc);
    json_decref(config->batching);
    config->doc = config->batching = NULL;
}

// ---- against the graph

static const hth_value *config_find(const hth_graph *graph, const int *list, int n,
                                    const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(graph->values[list[i]].name, name) == 0) {
            return &graph->values[list[i]];
        }
    }
    return NULL;
}

// config_dims says whether dims without the batch are the value's; -1 fits all, and so does what
// the model leaves open.
static bool config_dims(const json_t *dims, const hth_value *value, bool batch)
{
    size_t i, skip = batch;
    json_t *d;
    if (!json_is_array(dims) || json_array_size(dims) + skip != (size_t)value->shape.rank) {
        return false;
    }
    json_array_foreach(dims, i, d)
    {
        int64_t have = value->shape.dim[i + skip], said = json_integer_value(d);
        if (!json_is_integer(d) || (said >= 0 && have >= 0 && said != have)) {
            return false;
        }
    }
    return true;
}

static hth_err config_tensors(const hth_model_config *config, const hth_graph *graph,
                              const char *key, const int *list, int n)
{
    const json_t *all = json_object_get(config->doc, key);
    json_t *t;
    size_t i;
    if (all != NULL && !json_is_array(all)) {
        return hth_fail(HTH_EINVAL, "the model configuration's '%s' is not an array", key);
    }
    json_array_foreach(all, i, t)
    {
        const char *name = json_string_value(json_object_get(t, "name"));
        const char *type = json_string_value(json_object_get(t, "data_type"));
        const hth_value *v = name != NULL ? config_find(graph, list, n, name) : NULL;
        char want[32];
        if (v == NULL) {
            return hth_fail(HTH_EINVAL,
                            "the model has no %s '%.80s', which its configuration lists", key,
                            name != NULL ? name : "");
        }
        snprintf(want, sizeof want, "TYPE_%s", hth_dtype_name(v->dtype));
        if (type == NULL || strcmp(type, want) != 0) {
            return hth_fail(HTH_EINVAL, "%s '%.80s' is %s, but its configuration has %.40s", key,
                            name, want, type != NULL ? type : "nothing");
        }
        if (json_object_get(t, "dims") != NULL &&
            !config_dims(json_object_get(t, "dims"), v, config->max_batch > 0)) {
            return hth_fail(HTH_EINVAL,
                            "the model's dims of %s '%.80s' differ from its configuration's", key,
                            name);
        }
    }
    return HTH_OK;
}

hth_err hth_model_config_accept(void *config, const hth_graph *graph,
                                const hth_independence *samples)
{
    const hth_model_config *c = config;
    for (int i = 0; i < graph->n_inputs && c->max_batch > 0; i++) {
        const hth_value *v = &graph->values[graph->inputs[i]];
        if (v->shape.rank < 1 || v->shape.dim[0] >= 0) {
            return hth_fail(
                HTH_EINVAL,
                "the first dimension of input '%s' is fixed, so the model has no batch: "
                "max_batch_size must be 0, not %d",
                v->name, c->max_batch);
        }
    }
    if (c->max_batch > 0 && !samples->proven) {
        return hth_fail(HTH_EINVAL,
                        "the model configuration's 'max_batch_size' is %d, and the model's samples "
                        "are not independent: %s",
                        c->max_batch, samples->why);
    }
    HTH_TRY(config_tensors(c, graph, "input", graph->inputs, graph->n_inputs));
    return config_tensors(c, graph, "output", graph->outputs, graph->n_outputs);
}
