// SPDX-License-Identifier: Apache-2.0
// Trace and logging settings. Requests are not traced, so a trace can be turned off and not on.
// Logging is hearthd's own filter, seen as the protocol's switches.
#include "server/http_call.h"

#include "base/log.h"

#include <string.h>

// ---- trace

static bool trace_is_off(const json_t *level)
{
    const json_t *v;
    size_t i;
    json_array_foreach(level, i, v)
    {
        if (!json_is_string(v) || strcmp(json_string_value(v), "OFF") != 0) {
            return false;
        }
    }
    return level == NULL || json_is_null(level) || json_is_array(level);
}

static void trace_send(hth_http *h, struct evhttp_request *req)
{
    hth_http_send_json(h, req,
                       json_pack("{s:[s], s:s, s:s, s:s, s:s, s:s}", "trace_level", "OFF",
                                 "trace_rate", "1000", "trace_count", "-1", "log_frequency", "0",
                                 "trace_file", "", "trace_mode", "triton"));
}

void hth_http_trace_get(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_manifest m;
    if (a->name[0] != 0 && hth_store_get(h->store, a->name, 0, &m) != HTH_OK) {
        hth_http_fail(h, req, HTTP_BADREQUEST, "Request for unknown model: '%s' is not found",
                      a->name);
        return;
    }
    if (a->name[0] != 0) {
        hth_manifest_fini(&m);
    }
    trace_send(h, req);
}

void hth_http_trace_set(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    json_t *q;
    if (!hth_http_body(h, req, &q)) {
        return;
    }
    bool off = trace_is_off(json_object_get(q, "trace_level"));
    bool file = json_object_get(q, "trace_file") != NULL;
    json_decref(q);
    if (!off || file) {
        hth_http_fail(h, req, HTTP_NOTIMPLEMENTED, "%s",
                      file ? "trace_file may not be set over the network"
                           : "requests cannot be traced here: the trace level is OFF");
    } else {
        hth_http_trace_get(h, req, a);
    }
}

// ---- logging

static void logging_send(hth_http *h, struct evhttp_request *req)
{
    hth_http_send_json(
        h, req,
        json_pack("{s:s, s:b, s:b, s:b, s:i, s:s}", "log_file", "", "log_info",
                  hth_log_enabled(HTH_LEVEL_INFO, HTH_SUBSYS_SERVER), "log_warning",
                  hth_log_enabled(HTH_LEVEL_WARN, HTH_SUBSYS_SERVER), "log_error",
                  hth_log_enabled(HTH_LEVEL_ERROR, HTH_SUBSYS_SERVER), "log_verbose_level",
                  hth_log_enabled(HTH_LEVEL_DEBUG, HTH_SUBSYS_SERVER), "log_format", "default"));
}

void hth_http_logging_get(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    logging_send(h, req);
}

// logging_switch reads a switch that stays as it is when the request does not name it.
static bool logging_switch(const json_t *q, const char *key, hth_log_level level, bool *good)
{
    const json_t *v = json_object_get(q, key);
    *good = *good && (v == NULL || json_is_boolean(v));
    return v != NULL ? json_is_true(v) : hth_log_enabled(level, HTH_SUBSYS_SERVER);
}

void hth_http_logging_set(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    json_t *q;
    bool good = true;
    if (!hth_http_body(h, req, &q)) {
        return;
    }
    const json_t *verbose = json_object_get(q, "log_verbose_level");
    bool error = logging_switch(q, "log_error", HTH_LEVEL_ERROR, &good);
    bool warn = logging_switch(q, "log_warning", HTH_LEVEL_WARN, &good);
    bool info = logging_switch(q, "log_info", HTH_LEVEL_INFO, &good);
    bool debug = verbose != NULL ? json_integer_value(verbose) > 0
                                 : hth_log_enabled(HTH_LEVEL_DEBUG, HTH_SUBSYS_SERVER);
    bool file = json_object_get(q, "log_file") != NULL;
    good = good && (verbose == NULL || json_is_integer(verbose));
    json_decref(q);
    if (file) {
        hth_http_fail(h, req, HTTP_NOTIMPLEMENTED, "log_file may not be set over the network");
    } else if (!good) {
        hth_http_fail(h, req, HTTP_BADREQUEST,
                      "Unable to parse the logging settings: switches are true or false, "
                      "log_verbose_level is a whole number");
    } else {
        hth_log_filter(debug ? "debug" : info ? "info" : warn ? "warn" : error ? "error" : "none");
        logging_send(h, req);
    }
}
