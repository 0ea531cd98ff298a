// SPDX-License-Identifier: Apache-2.0
// Content that goes: what a version is made of, and its tensors, whole or in part. A tensor leaves
// in pieces, each read when the one before it has left (http_stream.h).
#include "server/http/remote/exchange.h"

#include "server/http/http_range.h"
#include "server/http/http_stream.h"
#include "server/http/remote/objects.h"
#include "server/http/tensors/http_base64.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FETCH_PIECE ((uint64_t)1 << 20) // of a tensor, that is held at a time

// ---- manifest

static void manifest_tensors(hth_text *out, const hth_content_object *list, uint32_t n)
{
    char hex[HTH_ID_HEX];
    hth_text_put(out, "\",\"tensors\":[");
    for (uint32_t i = 0; i < n; i++) {
        hth_text_put(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        hth_text_quoted(out, list[i].name);
        hth_text_put(out, ",\"id\":\"");
        hth_text_put(out, hth_id_hex(&list[i].id, hex));
        hth_text_put(out, "\",\"datatype\":\"");
        hth_text_put(out, hth_dtype_name(list[i].dtype));
        hth_text_put(out, "\",\"shape\":");
        hth_text_shape(out, &list[i].shape);
        hth_text_put(out, ",\"bytes\":");
        hth_text_int(out, (int64_t)list[i].bytes);
        hth_text_put(out, "}");
    }
    hth_text_put(out, "]}");
}

// manifest_list reads the reply's list of tensors, for hth_free.
static hth_err manifest_list(const hth_exchange *exchange, hth_content_object **out)
{
    const Hearth__Version *version = exchange->reply->version;
    return hth_content_list_read(exchange->data, version->list_bytes, version->objects, out);
}

static void manifest_text(hth_text *out, const hth_exchange *exchange,
                          const hth_content_object *list)
{
    const Hearth__Version *version = exchange->reply->version;
    hth_text_put(out, "{\"name\":");
    hth_text_quoted(out, version->name);
    hth_text_put(out, ",\"version\":");
    hth_text_int(out, version->version);
    hth_text_put(out, ",\"meta\":");
    hth_text_put(out, version->meta[0] != 0 ? version->meta : "{}");
    hth_text_put(out, ",\"graph\":\"");
    hth_base64_encode(out, exchange->data + version->list_bytes, version->skeleton_bytes);
    manifest_tensors(out, list, version->objects);
}

static void manifest_answered(hth_exchange *exchange)
{
    hth_content_object *list = NULL;
    hth_text text = {.p = NULL};
    struct evbuffer *body = evbuffer_new();
    hth_err err = manifest_list(exchange, &list);
    if (err == HTH_OK) {
        manifest_text(&text, exchange, list);
    }
    if (err == HTH_OK && !text.failed && body != NULL && evbuffer_add(body, text.p, text.n) == 0) {
        hth_http_send(exchange->call.h, exchange->call.req, 200, "application/json", body);
    } else {
        hth_exchange_fail(exchange, HTH_ENOMEM, "out of memory for an answer");
    }
    hth_text_fini(&text);
    hth_free(list);
    if (body != NULL) {
        evbuffer_free(body);
    }
}

static void manifest_send(hth_exchange *exchange)
{
    Hearth__Request request = HEARTH__REQUEST__INIT;
    Hearth__Manifest manifest = HEARTH__MANIFEST__INIT;
    manifest.model = exchange->call.args.spec;
    request.body_case = HEARTH__REQUEST__BODY_MANIFEST;
    request.manifest = &manifest;
    hth_exchange_send(exchange, &request, NULL);
}

void hth_http_version_manifest(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_exchange *exchange = hth_exchange_new(http, req, args, sizeof *exchange, manifest_answered);
    if (exchange != NULL) {
        manifest_send(exchange);
    }
}

// ---- a tensor

// An answer with a tensor, until it has left.
typedef struct fetch {
    hth_http_stream stream;
    hth_http *http;
    hth_http_req *req;
    hth_http_args args;
    hth_id id;
    hth_http_range range; // what is to go: `from` grows
    bool begun;           // its head is written
    char part[80], etag[HTH_ID_HEX + 2];
} fetch;

typedef struct fetch_call {
    hth_exchange base;
    fetch *of;
} fetch_call;

static void fetch_piece(hth_exchange *exchange);

static void fetch_free(hth_http_stream *stream)
{
    hth_free(stream);
}

// fetch_end frees an answer that has not begun; else the stream does.
static void fetch_end(hth_exchange *exchange)
{
    fetch *of = ((fetch_call *)exchange)->of;
    if (of != NULL) {
        hth_free(of);
    }
}

static void fetch_failed(hth_exchange *exchange, hth_err err, const char *sentence)
{
    fetch_call *call = (fetch_call *)exchange;
    if (call->of != NULL) {
        hth_exchange_fail(exchange, err, sentence);
    } else {
        hth_http_stream_break(exchange->call.req->conn->stream);
    }
}

// fetch_begin writes the head of the answer, which owns itself from here on.
static void fetch_begin(fetch_call *call)
{
    fetch *of = call->of;
    bool part = of->part[0] != 0;
    char hex[HTH_ID_HEX];
    snprintf(of->etag, sizeof of->etag, "\"%s\"", hth_id_hex(&of->id, hex));
    hth_http_add(of->req, "Accept-Ranges", "bytes");
    hth_http_add(of->req, "ETag", of->etag);
    if (part) {
        hth_http_add(of->req, "Content-Range", of->part);
    }
    call->of = NULL;
    of->begun = true;
    hth_http_stream_begin(&of->stream, of->req, part ? 206 : 200, "application/octet-stream",
                          of->range.end - of->range.from);
}

static void fetch_more(hth_http_stream *stream)
{
    fetch *of = (fetch *)stream;
    fetch_call *call = hth_exchange_again(of->http, of->req, &of->args, sizeof *call);
    if (call == NULL) {
        hth_http_stream_break(stream);
        return;
    }
    call->base.failed = fetch_failed;
    fetch_piece(&call->base);
}

static void piece_sent(const void *data, size_t bytes, void *message)
{
    nng_msg_free(message);
}

static void fetch_got(hth_exchange *exchange)
{
    fetch_call *call = (fetch_call *)exchange;
    fetch *of = call->of;
    struct evbuffer *body = evbuffer_new();
    bool added = body != NULL && evbuffer_add_reference(body, exchange->data, exchange->bytes,
                                                        piece_sent, exchange->message) == 0;
    if (!added) {
        fetch_failed(exchange, HTH_ENOMEM, "out of memory for an answer");
    } else {
        exchange->message = NULL; // is the body's
        if (of != NULL) {
            fetch_begin(call);
        } else {
            of = (fetch *)exchange->call.req->conn->stream;
        }
        of->range.from += exchange->bytes;
        hth_http_stream_write(&of->stream, body, of->range.from == of->range.end);
    }
    if (body != NULL) {
        evbuffer_free(body);
    }
}

// fetch_piece asks for the next piece.
static void fetch_piece(hth_exchange *exchange)
{
    const fetch_call *call = (fetch_call *)exchange;
    fetch *of = call->of != NULL ? call->of : (fetch *)exchange->call.req->conn->stream;
    uint64_t left = of->range.end - of->range.from;
    Hearth__Request request = HEARTH__REQUEST__INIT;
    Hearth__Get get = HEARTH__GET__INIT;
    get.model = of->args.spec;
    get.id = (ProtobufCBinaryData){sizeof of->id, (uint8_t *)&of->id};
    get.offset = of->range.from;
    get.bytes = left < FETCH_PIECE ? left : FETCH_PIECE;
    request.body_case = HEARTH__REQUEST__BODY_GET;
    request.get = &get;
    exchange->answered = fetch_got;
    hth_exchange_send(exchange, &request, NULL);
}

// fetch_find looks how large the tensor is. HTH_ENOENT.
static hth_err fetch_find(const hth_exchange *exchange, const hth_id *id, uint64_t *bytes)
{
    hth_content_object *list;
    char hex[HTH_ID_HEX];
    uint32_t n = exchange->reply->version->objects, i = 0;
    HTH_TRY(manifest_list(exchange, &list));
    while (i < n && !hth_id_equal(&list[i].id, id)) {
        i++;
    }
    *bytes = i < n ? list[i].bytes : 0;
    hth_free(list);
    return i < n ? HTH_OK
                 : hth_fail(HTH_ENOENT, "model '%s' has no tensor %s", exchange->call.args.spec,
                            hth_id_hex(id, hex));
}

// fetch_outside answers a range of which nothing is there.
static void fetch_outside(fetch *of, uint64_t bytes)
{
    snprintf(of->part, sizeof of->part, "bytes */%" PRIu64, bytes);
    hth_http_add(of->req, "Content-Range", of->part);
    hth_http_fail(of->http, of->req, 416, "the tensor has %" PRIu64 " bytes", bytes);
}

static void fetch_known(hth_exchange *exchange)
{
    fetch_call *call = (fetch_call *)exchange;
    fetch *of = call->of;
    uint64_t bytes;
    hth_err err = fetch_find(exchange, &of->id, &bytes);
    if (err != HTH_OK) {
        hth_exchange_fail(exchange, err, hth_err_detail());
        return;
    }
    hth_http_ranged ranged = hth_http_range_read(of->req->head.range, bytes, &of->range);
    if (ranged == HTH_HTTP_OUTSIDE) {
        fetch_outside(of, bytes);
        return;
    }
    if (ranged == HTH_HTTP_PART) {
        snprintf(of->part, sizeof of->part, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64,
                 of->range.from, of->range.end - 1, bytes);
    }
    if (of->req->head.verb != HTH_VERB_HEAD && bytes > 0) {
        fetch_piece(exchange);
        return;
    }
    struct evbuffer *none = evbuffer_new();
    fetch_begin(call);
    if (none == NULL) {
        hth_http_stream_break(&of->stream);
        return;
    }
    hth_http_stream_write(&of->stream, none, true);
    evbuffer_free(none);
}

void hth_http_version_tensor(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_id id;
    if (!hth_objects_id(args->item, &id)) {
        hth_http_fail(http, req, 400, "'%s' is no id: 64 digits from 0 to f", args->item);
        return;
    }
    fetch_call *call = hth_exchange_new(http, req, args, sizeof *call, fetch_known);
    if (call == NULL) {
        return;
    }
    call->base.end = fetch_end;
    call->base.failed = fetch_failed;
    call->of = hth_calloc(1, sizeof *call->of);
    if (call->of == NULL) {
        call->base.failed = NULL;
        hth_exchange_refuse(&call->base, hth_fail(HTH_ENOMEM, "out of memory for a request"));
        return;
    }
    call->of->stream.more = fetch_more;
    call->of->stream.free = fetch_free;
    call->of->http = http;
    call->of->req = req;
    call->of->args = *args;
    call->of->id = id;
    manifest_send(&call->base);
}
