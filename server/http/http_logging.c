// SPDX-License-Identifier: Apache-2.0
// Logging settings: hearthd's own filter, seen as the protocol's switches. The filter is a level,
// so what is more severe than something that is logged is logged too; the answer says what holds.
// The log goes where hearthd's standard error goes, with times of ISO 8601: neither can be changed
// from here.
#include "server/http/http_call.h"

#include "base/log.h"

#include <string.h>

static void logging_send(hth_http *http, hth_http_req *req)
{
    hth_http_send_json(
        http, req,
        json_pack("{s:s, s:b, s:b, s:b, s:i, s:s}", "log_file", "", "log_info",
                  hth_log_enabled(HTH_LEVEL_INFO, HTH_SUBSYS_SERVER), "log_warning",
                  hth_log_enabled(HTH_LEVEL_WARN, HTH_SUBSYS_SERVER), "log_error",
                  hth_log_enabled(HTH_LEVEL_ERROR, HTH_SUBSYS_SERVER), "log_verbose_level",
                  hth_log_enabled(HTH_LEVEL_DEBUG, HTH_SUBSYS_SERVER), "log_format", "ISO8601"));
}

void hth_http_logging_get(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    logging_send(http, req);
}

// logging_switch reads a switch that stays as it is when the request does not name it.
static bool logging_switch(const json_t *json, const char *key, hth_log_level level, bool *good)
{
    const json_t *v = json_object_get(json, key);
    *good = *good && (v == NULL || json_is_boolean(v));
    return v != NULL ? json_is_true(v) : hth_log_enabled(level, HTH_SUBSYS_SERVER);
}

// logging_filter is the filter with the most of what is switched on.
static const char *logging_filter(bool debug, bool info, bool warn, bool error)
{
    if (debug) {
        return "debug";
    }
    if (info) {
        return "info";
    }
    if (warn) {
        return "warn";
    }
    return error ? "error" : "none";
}

void hth_http_logging_set(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    json_t *q;
    bool good = true;
    if (!hth_http_body(http, req, &q)) {
        return;
    }
    const json_t *verbose = json_object_get(q, "log_verbose_level");
    bool error = logging_switch(q, "log_error", HTH_LEVEL_ERROR, &good);
    bool warn = logging_switch(q, "log_warning", HTH_LEVEL_WARN, &good);
    bool info = logging_switch(q, "log_info", HTH_LEVEL_INFO, &good);
    bool debug = verbose != NULL ? json_integer_value(verbose) > 0
                                 : hth_log_enabled(HTH_LEVEL_DEBUG, HTH_SUBSYS_SERVER);
    bool file = json_object_get(q, "log_file") != NULL;
    const char *format = json_string_value(json_object_get(q, "log_format"));
    bool other = json_object_get(q, "log_format") != NULL &&
                 (format == NULL || strcmp(format, "ISO8601") != 0);
    good = good && (verbose == NULL || json_is_integer(verbose));
    json_decref(q);
    if (file || other) {
        hth_http_fail(http, req, 501, "%s",
                      file ? "log_file may not be set over the network"
                           : "log_format is ISO8601 and cannot be changed");
    } else if (!good) {
        hth_http_fail(http, req, 400,
                      "Unable to parse the logging settings: switches are true or false, "
                      "log_verbose_level is a whole number");
    } else {
        hth_log_filter(logging_filter(debug, info, warn, error));
        logging_send(http, req);
    }
}
