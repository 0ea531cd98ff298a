// SPDX-License-Identifier: Apache-2.0
// Content that comes: which tensors are there, pieces of one, a version or a dataset of those that
// are; and what a version is made of.
#include "server/http/remote/exchange.h"

#include "server/http/http_range.h"
#include "server/http/http_url.h"
#include "server/http/remote/objects.h"
#include "server/http/tensors/http_base64.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// EINVAL: a piece leaves a gap; all else about it was looked at before.
static const hth_exchange_rule put_status[] = {{HTH_EINVAL, 409},  {HTH_EBUSY, 409},
                                               {HTH_ETOOBIG, 507}, {HTH_ECORRUPT, 400},
                                               {HTH_EIO, 507},     {HTH_OK, 0}};
static const hth_exchange_rule commit_status[] = {
    {HTH_ENOENT, 409},   {HTH_EEXIST, 409}, {HTH_EBUSY, 409}, {HTH_ETOOBIG, 413},
    {HTH_ECORRUPT, 400}, {HTH_EIO, 507},    {HTH_OK, 0}};
// .. of a dataset: what its tenant may have is full
static const hth_exchange_rule dataset_status[] = {
    {HTH_ENOENT, 409},  {HTH_EEXIST, 409},   {HTH_EBUSY, 409}, {HTH_EDENIED, 507},
    {HTH_ETOOBIG, 507}, {HTH_ECORRUPT, 400}, {HTH_EIO, 507},   {HTH_OK, 0}};
static const hth_exchange_rule list_status[] = {
    {HTH_ETOOBIG, 413}, {HTH_ECORRUPT, 400}, {HTH_OK, 0}};

// What have, discard and commits ask.
typedef struct content_ask {
    hth_exchange base;
    hth_objects objects;
    bool discard, dataset, no_wait;
    int max_batch;
    char *meta; // json_dumps'; NULL: none
    char *graph;
    size_t graph_bytes;
} content_ask;

static void content_end(hth_exchange *exchange)
{
    content_ask *ask = (content_ask *)exchange;
    hth_objects_fini(&ask->objects);
    free(ask->meta);
    hth_free(ask->graph);
}

static content_ask *content_new(hth_http *http, hth_http_req *req, const hth_http_args *args,
                                void (*answered)(hth_exchange *exchange))
{
    content_ask *ask = hth_exchange_new(http, req, args, sizeof *ask, answered);
    if (ask != NULL) {
        ask->base.end = content_end;
        ask->base.statuses = list_status;
        ask->max_batch = -1;
    }
    return ask;
}

// ---- have, discard

static void have_answered(hth_exchange *exchange)
{
    const content_ask *ask = (content_ask *)exchange;
    char hex[HTH_ID_HEX];
    json_t *list = json_array();
    for (int i = 0; i < ask->objects.n && (uint64_t)(i + 1) * 8 <= exchange->bytes; i++) {
        const hth_content_object *object = &ask->objects.list[i];
        uint64_t there;
        memcpy(&there, exchange->data + (size_t)i * 8, sizeof there);
        bool whole = there == HTH_CONTENT_WHOLE;
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:b}", "id", hth_id_hex(&object->id, hex), "bytes",
                            (json_int_t)object->bytes, "there",
                            (json_int_t)(whole ? object->bytes : there), "whole", whole));
    }
    hth_http_send_json(exchange->call.h, exchange->call.req, json_pack("{s:o}", "tensors", list));
}

static void discard_answered(hth_exchange *exchange)
{
    hth_http_send_json(exchange->call.h, exchange->call.req, json_object());
}

static hth_err list_read(hth_exchange *exchange, json_t *doc)
{
    return hth_objects_read(doc, false, &((content_ask *)exchange)->objects);
}

static void list_send(hth_exchange *exchange)
{
    const content_ask *ask = (content_ask *)exchange;
    Hearth__Request request = HEARTH__REQUEST__INIT;
    Hearth__Have have = HEARTH__HAVE__INIT;
    Hearth__Discard discard = HEARTH__DISCARD__INIT;
    struct evbuffer *data = evbuffer_new();
    uint64_t bytes;
    hth_err err = data != NULL ? hth_objects_write(&ask->objects, data, &bytes)
                               : hth_fail(HTH_ENOMEM, "out of memory for a request");
    if (err != HTH_OK) {
        hth_exchange_refuse(exchange, err);
    } else if (ask->discard) {
        discard.objects = (uint32_t)ask->objects.n;
        request.body_case = HEARTH__REQUEST__BODY_DISCARD;
        request.discard = &discard;
        hth_exchange_send(exchange, &request, data);
    } else {
        have.objects = (uint32_t)ask->objects.n;
        request.body_case = HEARTH__REQUEST__BODY_HAVE;
        request.have = &have;
        hth_exchange_send(exchange, &request, data);
    }
    if (data != NULL) {
        evbuffer_free(data);
    }
}

void hth_http_tensors_have(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    content_ask *ask = content_new(http, req, args, have_answered);
    if (ask != NULL) {
        hth_exchange_read(&ask->base, list_read, list_send);
    }
}

void hth_http_tensors_discard(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    content_ask *ask = content_new(http, req, args, discard_answered);
    if (ask != NULL) {
        ask->discard = true;
        hth_exchange_read(&ask->base, list_read, list_send);
    }
}

// ---- put

static void put_answered(hth_exchange *exchange)
{
    const Hearth__Stored *s = exchange->reply->stored;
    const Hearth__Error *failed = s->failed;
    int status = failed != NULL ? hth_exchange_status(exchange, (hth_err)failed->code) : 200;
    json_int_t there =
        failed == NULL || status == 409 ? (json_int_t)s->there : 0; // else it is gone
    json_t *doc = json_pack("{s:I, s:b}", "there", there, "whole", (int)s->whole);
    if (failed != NULL) {
        json_object_set_new(doc, "error", json_string(failed->sentence));
    }
    hth_http_send_doc(exchange->call.h, exchange->call.req, status, doc);
}

// put_what reads which tensor a body is a part of, and which. HTH_ECORRUPT: 400.
static hth_err put_what(const hth_http_req *req, const hth_http_args *args,
                        hth_content_object *object, hth_http_range *range)
{
    char datatype[32], shape[HTH_MAX_RANK * 20];
    const char *query = req->head.query;
    uint64_t n = evbuffer_get_length(req->body);
    *object = (hth_content_object){.name = ""};
    if (!hth_objects_id(args->name, &object->id)) {
        return hth_fail(HTH_EINVAL, "'%.80s' is no id: 64 digits from 0 to f", args->name);
    }
    if (hth_http_query_get(query, "datatype", datatype, sizeof datatype) != HTH_HTTP_FOUND ||
        hth_http_query_get(query, "shape", shape, sizeof shape) != HTH_HTTP_FOUND) {
        return hth_fail(HTH_EINVAL, "the URL says a tensor's datatype and shape: "
                                    "?datatype=FP32&shape=64,3");
    }
    HTH_TRY(hth_objects_shaped(datatype, shape, object));
    *range = (hth_http_range){0, n, n};
    if (req->head.content_range != NULL &&
        !hth_http_content_range(req->head.content_range, range)) {
        return hth_fail(HTH_EINVAL,
                        "'Content-Range: %.80s' is no part of a tensor, as 'bytes "
                        "0-99/1000' is",
                        req->head.content_range);
    }
    if (range->total != object->bytes) {
        return hth_fail(HTH_EINVAL,
                        "a tensor of this datatype and shape has %" PRIu64 " bytes, not %" PRIu64,
                        object->bytes, range->total);
    }
    return range->end - range->from == n
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the body has %" PRIu64 " bytes, its Content-Range %" PRIu64,
                          n, range->end - range->from);
}

static void put_send(hth_exchange *exchange, const hth_content_object *object,
                     const hth_http_range *range)
{
    Hearth__Request request = HEARTH__REQUEST__INIT;
    Hearth__Put put = HEARTH__PUT__INIT;
    put.id = (ProtobufCBinaryData){sizeof object->id, (uint8_t *)&object->id};
    put.dtype = (uint32_t)object->dtype;
    put.n_shape = (size_t)object->shape.rank;
    put.shape = (int64_t *)object->shape.dim;
    put.bytes = object->bytes;
    put.offset = range->from;
    put.piece = range->end - range->from;
    request.body_case = HEARTH__REQUEST__BODY_PUT;
    request.put = &put;
    hth_exchange_send(exchange, &request, exchange->call.req->body);
}

void hth_http_tensors_put(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_content_object object;
    hth_http_range range;
    hth_err err = put_what(req, args, &object, &range);
    if (err != HTH_OK) {
        hth_http_fail_err(http, req, err);
    } else if (object.bytes == 0) { // comes with its version
        hth_http_send_json(http, req, json_pack("{s:i, s:b}", "there", 0, "whole", 1));
    } else {
        hth_exchange *exchange = hth_exchange_new(http, req, args, sizeof *exchange, put_answered);
        if (exchange != NULL) {
            exchange->statuses = put_status;
            put_send(exchange, &object, &range);
        }
    }
}

// ---- commits

static void commit_answered(hth_exchange *exchange)
{
    const Hearth__Imported *i = exchange->reply->imported;
    hth_http_send_json(exchange->call.h, exchange->call.req,
                       json_pack("{s:s, s:i, s:b, s:I, s:I, s:I, s:I}", "name",
                                 exchange->call.args.name, "version", (int)i->version, "unchanged",
                                 (int)i->unchanged, "tensors_new", (json_int_t)i->tensors_new,
                                 "tensors_shared", (json_int_t)i->tensors_shared, "bytes_new",
                                 (json_int_t)i->bytes_new, "bytes_shared",
                                 (json_int_t)i->bytes_shared));
}

// commit_graph decodes a model's graph.
static hth_err commit_graph(content_ask *ask, const json_t *doc)
{
    json_t *graph;
    HTH_TRY(hth_json_field_needed(doc, "graph", JSON_STRING, "base64", &graph));
    size_t chars = json_string_length(graph);
    ask->graph = hth_alloc(chars / 4 * 3 + 3);
    if (ask->graph == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a graph of %zu bytes", chars / 4 * 3);
    }
    return hth_base64_decode(json_string_value(graph), chars, ask->graph, &ask->graph_bytes)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'graph' is not base64");
}

static hth_err commit_read(hth_exchange *exchange, json_t *doc)
{
    content_ask *ask = (content_ask *)exchange;
    json_t *meta;
    uint64_t most;
    bool given;
    HTH_TRY(hth_objects_read(doc, true, &ask->objects));
    const char *key = ask->dataset ? "about" : "meta";
    HTH_TRY(hth_json_field(doc, key, JSON_OBJECT, "an object", &meta));
    ask->meta = meta != NULL ? json_dumps(meta, JSON_COMPACT) : NULL;
    if (ask->dataset) {
        return HTH_OK;
    }
    HTH_TRY(hth_json_field_count(doc, "max_batch", &most, &given));
    if (given && most > INT32_MAX) {
        return hth_fail(HTH_EINVAL, "'max_batch' is larger than %d", INT32_MAX);
    }
    ask->max_batch = given ? (int)most : -1;
    HTH_TRY(hth_json_field_bool(doc, "no_wait", &ask->no_wait));
    return commit_graph(ask, doc);
}

static void commit_send(hth_exchange *exchange)
{
    const content_ask *ask = (content_ask *)exchange;
    Hearth__Request request = HEARTH__REQUEST__INIT;
    Hearth__Commit commit = HEARTH__COMMIT__INIT;
    struct evbuffer *data = evbuffer_new();
    hth_err err = data != NULL ? hth_objects_write(&ask->objects, data, &commit.list_bytes)
                               : hth_fail(HTH_ENOMEM, "out of memory for a request");
    if (err == HTH_OK && ask->graph_bytes > 0 &&
        evbuffer_add(data, ask->graph, ask->graph_bytes) != 0) {
        err = hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    commit.kind = ask->dataset ? "dataset" : "model";
    commit.name = (char *)exchange->call.args.name;
    commit.max_batch = ask->max_batch;
    commit.no_wait = ask->dataset || ask->no_wait;
    commit.meta = ask->meta != NULL ? ask->meta : commit.meta;
    commit.objects = (uint32_t)ask->objects.n;
    commit.skeleton_bytes = ask->graph_bytes;
    request.body_case = HEARTH__REQUEST__BODY_COMMIT;
    request.commit = &commit;
    if (err == HTH_OK) {
        hth_exchange_send(exchange, &request, data);
    } else {
        hth_exchange_refuse(exchange, err);
    }
    if (data != NULL) {
        evbuffer_free(data);
    }
}

void hth_http_version_commit(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    content_ask *ask = content_new(http, req, args, commit_answered);
    if (ask != NULL) {
        ask->base.statuses = commit_status;
        hth_exchange_read(&ask->base, commit_read, commit_send);
    }
}

void hth_http_dataset_put(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    content_ask *ask = content_new(http, req, args, commit_answered);
    if (ask != NULL) {
        ask->dataset = true;
        ask->base.statuses = dataset_status;
        hth_exchange_read(&ask->base, commit_read, commit_send);
    }
}
