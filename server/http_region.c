// SPDX-License-Identifier: Apache-2.0
// Requests about shared memory. Unregistering what is not there succeeds, as clients begin with it;
// so do questions about CUDA's regions, of which there are none.
#include "server/http_call.h"
#include "server/http_shm.h"

static bool region_count(const json_t *q, const char *key, uint64_t *out, bool needed)
{
    const json_t *v = json_object_get(q, key);
    *out = (uint64_t)json_integer_value(v);
    return v == NULL ? !needed : json_is_integer(v) && json_integer_value(v) >= 0;
}

void hth_http_shm_register(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    json_t *q;
    uint64_t offset, bytes;
    if (!hth_http_body(h, req, &q)) {
        return;
    }
    const char *key = json_string_value(json_object_get(q, "key"));
    if (key == NULL || !region_count(q, "offset", &offset, false) ||
        !region_count(q, "byte_size", &bytes, true)) {
        hth_http_fail(h, req, HTTP_BADREQUEST,
                      "Unable to parse the region: 'key' is a string, 'byte_size' and 'offset' "
                      "(which may be missing) are whole numbers that are not negative");
    } else {
        hth_err err = hth_shm_register(h->shm, a->name, key, offset, bytes);
        if (err != HTH_OK) {
            hth_http_fail_err(h, req, err);
        } else {
            hth_http_send(h, req, HTTP_OK, NULL, NULL);
        }
    }
    json_decref(q);
}

void hth_http_shm_unregister(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_shm_unregister(h->shm, a->name);
    hth_http_send(h, req, HTTP_OK, NULL, NULL);
}

void hth_http_shm_status(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    json_t *list;
    hth_err err = hth_shm_status(h->shm, a->name, &list);
    if (err != HTH_OK) {
        hth_http_fail_err(h, req, err);
    } else {
        hth_http_send_json(h, req, list);
    }
}

void hth_http_shm_unnamed(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_http_fail(h, req, HTTP_BADREQUEST, "'region' is missing: which one is to be registered?");
}

void hth_http_cuda_register(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_http_fail(h, req, HTTP_BADREQUEST,
                  "failed to register CUDA shared memory region: there is no CUDA device here");
}

void hth_http_cuda_unregister(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_http_send(h, req, HTTP_OK, NULL, NULL);
}

void hth_http_cuda_status(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    if (a->name[0] != 0) {
        hth_http_fail(h, req, HTTP_NOTFOUND, "Unable to find CUDA shared memory region: '%s'",
                      a->name);
    } else {
        hth_http_send_json(h, req, json_array());
    }
}
