// SPDX-License-Identifier: Apache-2.0
// Statistics of models, as the engine counts them for all its clients. A request that was joined
// with others counts the time of their run. Outputs are written in place by the kernels, so
// compute_output takes time only of joined requests; there is no cache.
#include "server/http_call.h"

#include <stdio.h>
#include <string.h>

static json_int_t number(const json_t *m, const char *key)
{
    return json_integer_value(json_object_get(m, key));
}

static json_t *stats_duration(json_int_t count, json_int_t ns)
{
    return json_pack("{s:I, s:I}", "count", count, "ns", ns);
}

static json_t *stats_batches(const json_t *m)
{
    json_t *list = json_array();
    const json_t *b;
    size_t i;
    json_array_foreach(json_object_get(m, "batches"), i, b)
    {
        json_int_t runs = number(b, "runs");
        json_array_append_new(
            list, json_pack("{s:I, s:o, s:o, s:o}", "batch_size", number(b, "samples"),
                            "compute_input", stats_duration(runs, number(b, "input_ns")),
                            "compute_infer", stats_duration(runs, number(b, "infer_ns")),
                            "compute_output", stats_duration(runs, number(b, "output_ns"))));
    }
    return list;
}

static json_t *stats_of(const json_t *m)
{
    const json_t *t = json_object_get(m, "times");
    json_int_t failed = number(m, "failures"), ok = number(m, "requests") - failed;
    json_t *inference = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "success",
                                  stats_duration(ok, number(t, "success_ns")), "fail",
                                  stats_duration(failed, number(t, "failure_ns")), "queue",
                                  stats_duration(ok, number(t, "queue_ns")), "compute_input",
                                  stats_duration(ok, number(t, "input_ns")), "compute_infer",
                                  stats_duration(ok, number(t, "infer_ns")), "compute_output",
                                  stats_duration(ok, number(t, "output_ns")), "cache_hit",
                                  stats_duration(0, 0), "cache_miss", stats_duration(0, 0));
    json_int_t bytes = number(m, "resident_private_bytes") + number(m, "resident_shared_bytes") +
                       number(m, "arena_bytes");
    int gpu = hth_http_gpu(m);
    char version[24];
    snprintf(version, sizeof version, "%" JSON_INTEGER_FORMAT, number(m, "version"));
    return json_pack("{s:O, s:s, s:I, s:I, s:I, s:o, s:{}, s:o, s:[{s:s, s:i, s:I}]}", "name",
                     json_object_get(m, "name"), "version", version, "last_inference",
                     number(t, "last_ms"), "inference_count", number(t, "samples"),
                     "execution_count", number(m, "executions"), "inference_stats", inference,
                     "response_stats", "batch_stats", stats_batches(m), "memory_usage", "type",
                     gpu >= 0 ? "GPU" : "CPU", "id", gpu >= 0 ? gpu : 0, "byte_size", bytes);
}

static void stats_finish(hth_http_call *c)
{
    if (c->r.err == HTH_ENOENT) {
        hth_http_fail(c->h, c->req, HTTP_BADREQUEST, "requested model '%s' is not available",
                      c->args.name);
        return;
    }
    json_t *doc = hth_http_answer(c), *list = json_array(), *m;
    size_t i;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        json_array_append_new(list, stats_of(m));
    }
    if (doc != NULL) {
        hth_http_send_json(c->h, c->req, json_pack("{s:O}", "model_stats", list));
    }
    json_decref(list);
    json_decref(doc);
}

void hth_http_model_stats(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    if (hth_http_unloaded_find(h, a->name) != NULL) {
        hth_http_fail(h, req, HTTP_BADREQUEST, "requested model '%s' is not available", a->name);
    } else {
        hth_http_ask(h, req, a, "stats", stats_finish);
    }
}

void hth_http_all_stats(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_http_ask(h, req, a, "stats", stats_finish);
}
