// SPDX-License-Identifier: Apache-2.0
// Health checks: the server lives while it answers, and is ready while its engine is.
#include "server/http/http_call.h"

#include "base/settings.h"

void hth_http_live(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_send_text(http, req, "{\"live\":true}");
}

static const char *health_trouble(hth_http *http)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_ENGINE_STALL_SECONDS) * 1000000000u;
    if (!hth_engine_ready(http->engine)) {
        return "the engine process is being restarted";
    }
    return hth_engine_stalled_ns(http->engine) > most
               ? "the engine has not looked for requests for engine.stall_seconds"
               : NULL;
}

void hth_http_ready(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    const char *why = health_trouble(http);
    if (why != NULL) {
        hth_http_fail(http, req, 503, "%s", why);
    } else {
        hth_http_send_text(http, req, "{\"ready\":true}");
    }
}
