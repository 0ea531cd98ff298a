// SPDX-License-Identifier: Apache-2.0
// Statistics of models, as the engine counts them for all its clients. A request that was joined
// with others counts the time of their run. Outputs are written in place by the kernels, so
// compute_output takes time only of joined requests; there is no cache.
#include "server/http/http_call.h"

#include <string.h>

static json_int_t number(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key));
}

// stats_int writes a member; `key` with its quotes, its colon, and what stands before it.
static void stats_int(hth_text *out, const char *key, json_int_t v)
{
    hth_text_put(out, key);
    hth_text_int(out, v);
}

static void stats_duration(hth_text *out, const char *key, json_int_t count, json_int_t ns)
{
    hth_text_put(out, key);
    stats_int(out, "{\"count\":", count);
    stats_int(out, ",\"ns\":", ns);
    hth_text_put(out, "}");
}

static void stats_batches(hth_text *out, const json_t *json)
{
    const json_t *b;
    size_t i;
    hth_text_put(out, ",\"batch_stats\":[");
    json_array_foreach(json_object_get(json, "batches"), i, b)
    {
        json_int_t runs = number(b, "runs");
        stats_int(out, i > 0 ? ",{\"batch_size\":" : "{\"batch_size\":", number(b, "samples"));
        stats_duration(out, ",\"compute_input\":", runs, number(b, "input_ns"));
        stats_duration(out, ",\"compute_infer\":", runs, number(b, "infer_ns"));
        stats_duration(out, ",\"compute_output\":", runs, number(b, "output_ns"));
        hth_text_put(out, "}");
    }
    hth_text_put(out, "]");
}

static void stats_inference(hth_text *out, const json_t *json)
{
    const json_t *t = json_object_get(json, "times");
    json_int_t failed = number(json, "failures"), ok = number(json, "requests") - failed;
    stats_int(out, ",\"last_inference\":", number(t, "last_ms"));
    stats_int(out, ",\"inference_count\":", number(t, "samples"));
    stats_int(out, ",\"execution_count\":", number(json, "executions"));
    stats_duration(out, ",\"inference_stats\":{\"success\":", ok, number(t, "success_ns"));
    stats_duration(out, ",\"fail\":", failed, number(t, "failure_ns"));
    stats_duration(out, ",\"queue\":", ok, number(t, "queue_ns"));
    stats_duration(out, ",\"compute_input\":", ok, number(t, "input_ns"));
    stats_duration(out, ",\"compute_infer\":", ok, number(t, "infer_ns"));
    stats_duration(out, ",\"compute_output\":", ok, number(t, "output_ns"));
    stats_duration(out, ",\"cache_hit\":", 0, 0);
    stats_duration(out, ",\"cache_miss\":", 0, 0);
    hth_text_put(out, "},\"response_stats\":{}");
}

static void stats_of(hth_text *out, const json_t *json)
{
    json_int_t bytes = number(json, "resident_private_bytes") +
                       number(json, "resident_shared_bytes") + number(json, "arena_bytes");
    int gpu = hth_http_gpu(json);
    hth_text_put(out, "{\"name\":");
    hth_text_quoted(out, json_string_value(json_object_get(json, "name")));
    stats_int(out, ",\"version\":\"", number(json, "version"));
    hth_text_put(out, "\"");
    stats_inference(out, json);
    stats_batches(out, json);
    hth_text_put(out, gpu >= 0 ? ",\"memory_usage\":[{\"type\":\"GPU\""
                               : ",\"memory_usage\":[{\"type\":\"CPU\"");
    stats_int(out, ",\"id\":", gpu >= 0 ? gpu : 0);
    stats_int(out, ",\"byte_size\":", bytes);
    hth_text_put(out, "}]}");
}

hth_err hth_http_write_stats(hth_http *http, const json_t *doc, bool far, hth_text *out)
{
    const json_t *m;
    size_t i;
    hth_text_put(out, "{\"model_stats\":[");
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        hth_text_put(out, i > 0 ? "," : "");
        stats_of(out, m);
    }
    hth_text_put(out, "]}");
    return HTH_OK;
}

static void stats_finish(hth_http_call *call)
{
    if (call->r.err == HTH_ENOENT) {
        hth_http_fail(call->h, call->req, 400, "requested model '%s' is not available",
                      call->args.name);
        return;
    }
    json_t *doc = hth_http_answer(call);
    struct evbuffer *body = evbuffer_new();
    hth_text out = {.p = NULL};
    if (doc != NULL) {
        (void)hth_http_write_stats(call->h, doc, false, &out);
        if (out.failed || body == NULL || evbuffer_add(body, out.p, out.n) != 0) {
            hth_http_fail(call->h, call->req, 503, "out of memory for an answer");
        } else {
            hth_http_send(call->h, call->req, 200, "application/json", body);
        }
    }
    if (body != NULL) {
        evbuffer_free(body);
    }
    hth_text_fini(&out);
    json_decref(doc);
}

void hth_http_model_stats(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    if (hth_http_unloaded_find(http, args->name) != NULL) {
        hth_http_fail(http, req, 400, "requested model '%s' is not available", args->name);
    } else {
        hth_http_query(http, req, args, HTH_COMMAND_STATS, stats_finish);
    }
}

void hth_http_all_stats(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_list_request(http, req, HTH_HTTP_LIST_STATS);
}
