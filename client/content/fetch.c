// SPDX-License-Identifier: Apache-2.0
#include "client/content/fetch.h"

#include "base/alloc.h"
#include "client/content/send.h"

#include <string.h>
#include <time.h>

#define FETCH_TRIES   8
#define FETCH_WAIT_MS 100 // before the second one; each other one takes twice as long

static hth_err fetch_unexpected(const hearth *h)
{
    return hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", h->url);
}

// made_read takes apart what the server sent.
static hth_err made_read(const hearth *h, hth_content_made *made)
{
    const Hearth__Version *v = made->reply.head->version;
    uint64_t bytes = made->reply.data_bytes;
    if (v->list_bytes > bytes || v->skeleton_bytes != bytes - v->list_bytes || v->version < 1) {
        return fetch_unexpected(h);
    }
    HTH_TRY(hth_content_list_read(made->reply.data, v->list_bytes, v->objects, &made->objects));
    made->n = (int)v->objects;
    made->name = v->name;
    made->meta = v->meta;
    made->version = v->version;
    made->skeleton = made->reply.data + v->list_bytes;
    made->skeleton_bytes = (size_t)v->skeleton_bytes;
    made->model = hth_asprintf("%s:%d", v->name, v->version);
    return made->model != NULL ? HTH_OK : hth_no_memory("a version");
}

hth_err hth_content_made_get(hearth *handle, const char *model, hth_content_made *out)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Manifest body = HEARTH__MANIFEST__INIT;
    *out = (hth_content_made){.n = 0};
    body.model = (char *)model;
    q.body_case = HEARTH__REQUEST__BODY_MANIFEST;
    q.manifest = &body;
    HTH_TRY(hth_exchange_call(handle, &q, HEARTH__REPLY__BODY_VERSION, NULL, &out->reply));
    return made_read(handle, out);
}

void hth_content_made_fini(hth_content_made *made)
{
    hth_free(made->model);
    hth_free(made->objects);
    hth_reply_fini(&made->reply);
}

static hth_err fetch_once(hearth *h, const hth_content_made *made, int i, uint64_t at, void *dst,
                          size_t n)
{
    const hth_content_object *o = &made->objects[i];
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Get body = HEARTH__GET__INIT;
    hth_reply r;
    body.model = made->model;
    body.id = (ProtobufCBinaryData){sizeof o->id, (uint8_t *)o->id.byte};
    body.offset = at;
    body.bytes = n;
    q.body_case = HEARTH__REQUEST__BODY_GET;
    q.get = &body;
    HTH_TRY(hth_exchange_call(h, &q, HEARTH__REPLY__BODY_PIECE, NULL, &r));
    hth_err err = r.data_bytes == n ? HTH_OK : fetch_unexpected(h);
    if (err == HTH_OK && n > 0) {
        memcpy(dst, r.data, n);
    }
    hth_reply_fini(&r);
    return err;
}

hth_err hth_content_piece(hearth *handle, const hth_content_made *made, int i, uint64_t at,
                          void *dst, size_t n)
{
    hth_err err = fetch_once(handle, made, i, at, dst, n);
    for (int tries = 1; tries < FETCH_TRIES && hth_content_lost(err); tries++) {
        uint64_t ms = (uint64_t)FETCH_WAIT_MS << (tries < 5 ? tries - 1 : 4);
        const struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
        nanosleep(&t, NULL);
        err = fetch_once(handle, made, i, at, dst, n);
    }
    return hth_err_prefix(err, "tensor '%s'", made->objects[i].name);
}
