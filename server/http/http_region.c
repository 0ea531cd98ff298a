// SPDX-License-Identifier: Apache-2.0
// Requests about shared memory. Unregistering what is not there succeeds, as clients begin with it;
// so do questions about CUDA's regions, of which there are none. Whose program registers a region
// is what the kernel says; who is not on this machine has none.
#include "server/http/http_call.h"
#include "server/http/http_shm.h"
#include "server/net/peer_uid.h"

// region_asker says whose regions a request may see; `tenant` is room for the name.
static hth_shm_asker region_asker(hth_http *h, struct evhttp_request *req, char tenant[HTH_TENANT])
{
    hth_http_tenant(h, req, tenant, HTH_TENANT);
    return (hth_shm_asker){.tenant = hth_http_is_near(h, req) ? tenant : NULL,
                           .admin = hth_http_is_admin(h, req)};
}

// region_register maps an object for who asks.
static hth_err region_register(hth_http *h, struct evhttp_request *req, const char *name,
                               const char *key, uint64_t offset, uint64_t bytes)
{
    char tenant[HTH_TENANT];
    const hth_shm_asker a = region_asker(h, req, tenant);
    const hth_http_conn *conn = hth_http_conn_of(h, req);
    uid_t uid;
    HTH_TRY(hth_shm_allowed(h->shm));
    if (a.tenant == NULL || conn == NULL) {
        return hth_fail(HTH_EDENIED, "shared memory is registered by programs of the server's own "
                                     "machine, over loopback and not through a proxy");
    }
    HTH_TRY(hth_peer_uid(conn->fd, &uid));
    return hth_shm_register(h->shm, a.tenant, uid, name, key, offset, bytes);
}

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
        hth_err err = region_register(h, req, a->name, key, offset, bytes);
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
    char tenant[HTH_TENANT];
    const hth_shm_asker asker = region_asker(h, req, tenant);
    hth_shm_unregister(h->shm, &asker, a->name);
    hth_http_send(h, req, HTTP_OK, NULL, NULL);
}

void hth_http_shm_status(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    json_t *list;
    char tenant[HTH_TENANT];
    const hth_shm_asker asker = region_asker(h, req, tenant);
    hth_err err = hth_shm_status(h->shm, &asker, a->name, &list);
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
