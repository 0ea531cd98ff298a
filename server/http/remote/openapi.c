// SPDX-License-Identifier: Apache-2.0
// The description of this interface, as it is installed with the docs.
#include "server/http/http_call.h"

#include "openapi.inc"

void hth_http_openapi(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    struct evbuffer *body = evbuffer_new();
    bool made = body != NULL &&
                evbuffer_add_reference(body, page_openapi, sizeof page_openapi, NULL, NULL) == 0;
    hth_http_send(http, req, made ? 200 : 503, "application/json", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
}
