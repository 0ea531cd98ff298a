// SPDX-License-Identifier: Apache-2.0
// What clients ask before they infer: what does the server do, which inputs has a model. Models are
// asked of the engine, which loads them if needed: a model that is ready can be run.
#include "server/http/http_call.h"

#include "client/hearth.h"
#include "server/http/tensors/http_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hth_http_server_metadata(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_send_json(
        http, req,
        json_pack("{s:s, s:s, s:[s, s, s, s, s, s, s, s, s, s, s]}", "name", "hearth", "version",
                  HEARTH_VERSION, "extensions", "classification", "model_repository",
                  "model_repository(unload_dependents)", "schedule_policy", "model_configuration",
                  "system_shared_memory", "binary_tensor_data", "parameters", "statistics", "trace",
                  "logging"));
}

// ---- models

typedef struct meta_call {
    hth_http_call c;
    hth_text text; // of the arguments
} meta_call;

static void meta_drop(hth_http_call *call)
{
    hth_text_fini(&((meta_call *)call)->text);
}

void hth_http_query(hth_http *http, hth_http_req *req, const hth_http_args *args,
                    hth_command_id command, void (*finish)(hth_http_call *call))
{
    meta_call *m = hth_http_call_new(http, req, args, sizeof *m);
    if (m == NULL) {
        return;
    }
    hth_text text = {.p = NULL};
    hth_text_put(&text, args->spec[0] != 0 ? "{\"model\":" : "{");
    if (args->spec[0] != 0) {
        hth_text_quoted(&text, args->spec);
    }
    hth_text_add(&text, "}", 2);
    m->text = text;
    m->c.drop = meta_drop;
    m->c.r.command = command;
    m->c.r.arguments = text.failed ? "{}" : text.p;
    m->c.finish = finish;
    hth_http_call_submit(&m->c);
}

static void meta_ask(hth_http *http, hth_http_req *req, const hth_http_args *args,
                     void (*finish)(hth_http_call *call))
{
    if (!hth_http_is_unloaded(http, req, args)) {
        hth_http_query(http, req, args, HTH_COMMAND_MODEL, finish);
    }
}

json_t *hth_http_answer(hth_http_call *call)
{
    if (call->r.err != HTH_OK) {
        hth_http_fail_call(call, NULL);
        return NULL;
    }
    json_t *doc = call->r.json != NULL ? json_loads(call->r.json, 0, NULL) : NULL;
    if (doc == NULL) {
        hth_http_fail(call->h, call->req, 500, "the engine did not answer");
    }
    return doc;
}

// meta_versions lists the versions of a model that the store has, or the one that was asked about.
static json_t *meta_versions(const hth_http_call *call, int version)
{
    int *numbers = NULL;
    int n = 0;
    char text[16];
    json_t *list = json_array();
    if (call->args.version == 0 &&
        hth_store_versions(call->h->store, call->args.name, &numbers, &n) != HTH_OK) {
        n = 0;
    }
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%d", numbers[i]);
        json_array_append_new(list, json_string(text));
    }
    hth_free(numbers);
    if (n == 0) {
        snprintf(text, sizeof text, "%d", version);
        json_array_append_new(list, json_string(text));
    }
    return list;
}

// meta_parameters says whether the model's samples are independent, and if not, why.
static json_t *meta_parameters(const json_t *json)
{
    json_t *why = json_object_get(json, "dependent_because");
    json_t *doc = json_pack("{s:O}", "independent", json_object_get(json, "independent"));
    if (why != NULL) {
        json_object_set(doc, "dependent_because", why);
    }
    return doc;
}

static void meta_metadata(hth_http_call *call)
{
    json_t *m = hth_http_answer(call);
    if (m != NULL) {
        int version = (int)json_integer_value(json_object_get(m, "version"));
        hth_http_send_json(
            call->h, call->req,
            json_pack("{s:O, s:o, s:s, s:O, s:O, s:o}", "name", json_object_get(m, "name"),
                      "versions", meta_versions(call, version), "platform", "onnx_hearth", "inputs",
                      json_object_get(m, "inputs"), "outputs", json_object_get(m, "outputs"),
                      "parameters", meta_parameters(m)));
        json_decref(m);
    }
}

static void meta_ready(hth_http_call *call)
{
    if (call->r.err != HTH_OK) {
        hth_http_fail_call(call, NULL);
    } else {
        hth_http_send_json(call->h, call->req,
                           json_pack("{s:s, s:b}", "name", call->args.name, "ready", 1));
    }
}

json_int_t hth_http_max_batch(const json_t *json)
{
    json_int_t most = json_integer_value(json_object_get(json, "max_batch"));
    size_t i;
    json_t *input;
    if (!json_is_true(json_object_get(json, "batched"))) {
        return 0;
    }
    json_array_foreach(json_object_get(json, "inputs"), i, input)
    {
        if (json_array_size(json_object_get(input, "shape")) < 2) {
            return 0;
        }
    }
    return most > 0 && most < INT32_MAX ? most : INT32_MAX;
}

int hth_http_gpu(const json_t *row)
{
    const char *device = json_string_value(json_object_get(row, "device"));
    return device != NULL && strncmp(device, "cuda:", 5) == 0 ? atoi(device + 5) : -1;
}

// config_group says where the model runs; how many runs there are at a time, hearth decides.
static json_t *config_group(const json_t *json)
{
    int gpu = hth_http_gpu(json);
    json_t *gpus = gpu >= 0 ? json_pack("[i]", gpu) : json_array();
    const char *kind = gpu >= 0 ? "KIND_GPU" : "KIND_CPU";
    return json_pack("{s:O, s:s, s:i, s:o}", "name", json_object_get(json, "name"), "kind", kind,
                     "count", 1, "gpus", gpus);
}

// config_tensors turns names, types and shapes into what a ModelConfig says of them.
static json_t *config_tensors(const json_t *tensors, bool batch)
{
    json_t *list = json_array(), *t;
    size_t i;
    json_array_foreach(tensors, i, t)
    {
        char type[32];
        const char *name = json_string_value(json_object_get(t, "datatype"));
        snprintf(type, sizeof type, "TYPE_%s", name != NULL ? name : "");
        json_t *dims = json_copy(json_object_get(t, "shape"));
        if (batch) {
            json_array_remove(dims, 0);
        }
        json_array_append_new(list, json_pack("{s:O, s:s, s:o}", "name", json_object_get(t, "name"),
                                              "data_type", type, "dims", dims));
    }
    return list;
}

// config_batching says in a ModelConfig's terms how requests wait and are joined.
static json_t *config_batching(const json_t *json)
{
    return json_pack("{s:O, s:O, s:b, s:I, s:O, s:{s:s, s:O, s:b, s:O}}", "preferred_batch_size",
                     json_object_get(json, "preferred"), "max_queue_delay_microseconds",
                     json_object_get(json, "delay_us"), "preserve_ordering", 0, "priority_levels",
                     (json_int_t)UINT32_MAX, "default_priority_level",
                     json_object_get(json, "priority"), "default_queue_policy", "timeout_action",
                     "REJECT", "default_timeout_microseconds", json_object_get(json, "timeout_us"),
                     "allow_timeout_override", 1, "max_queue_size", json_object_get(json, "queue"));
}

// config_parameters says what a ModelConfig has no field for.
static void config_parameters(const json_t *json, json_t *to)
{
    json_t *precision = json_object_get(json, "precision");
    json_t *why = json_object_get(json, "dependent_because");
    if (precision != NULL) {
        json_object_set_new(to, "precision", json_pack("{s:O}", "string_value", precision));
    }
    json_object_set_new(to, "independent",
                        json_pack("{s:s}", "string_value", why == NULL ? "true" : "false"));
    if (why != NULL) {
        json_object_set_new(to, "dependent_because", json_pack("{s:O}", "string_value", why));
    }
}

static void meta_config(hth_http_call *call)
{
    json_t *m = hth_http_answer(call);
    if (m != NULL) {
        json_int_t max_batch = hth_http_max_batch(m);
        const json_t *batching = json_object_get(m, "batching");
        json_t *config =
            json_pack("{s:O, s:s, s:s, s:{s:{s:i}}, s:I, s:o, s:o, s:[o], s:{}}", "name",
                      json_object_get(m, "name"), "platform", "onnx_hearth", "backend", "hearth",
                      "version_policy", "latest", "num_versions", 1, "max_batch_size", max_batch,
                      "input", config_tensors(json_object_get(m, "inputs"), max_batch > 0),
                      "output", config_tensors(json_object_get(m, "outputs"), max_batch > 0),
                      "instance_group", config_group(m), "parameters");
        config_parameters(m, json_object_get(config, "parameters"));
        if (max_batch > 0 && json_integer_value(json_object_get(batching, "max")) > 1) {
            json_object_set_new(config, "dynamic_batching", config_batching(batching));
        }
        hth_http_send_json(call->h, call->req, config);
        json_decref(m);
    }
}

void hth_http_model_metadata(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    meta_ask(http, req, args, meta_metadata);
}

void hth_http_model_config(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    meta_ask(http, req, args, meta_config);
}

void hth_http_model_ready(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    meta_ask(http, req, args, meta_ready);
}
