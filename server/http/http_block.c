// SPDX-License-Identifier: Apache-2.0
// Large bodies: read from the socket straight to where the engine's process sees them.
//
// When the head of a large request has been looked at, memory for its body is taken from the
// engine, so that the first tensor after the JSON head begins at a multiple of HTH_INFER_ALIGN,
// and the body is received there; the request gets all of it as one reference when it is whole.
// Bodies in chunks do without, and so does everybody when blocks together would take more than
// http.buffered_bytes: memory is only taken by what comes, but room in the slab is taken at once.
#include "server/http/http_infer.h"

#include <assert.h>
#include <stdlib.h>

void hth_http_block_rele(hth_http_block *block)
{
    assert(block == NULL || block->refs > 0);
    if (block != NULL && --block->refs == 0) {
        block->h->reserved -= block->bytes;
        hth_engine_free(block->h->engine, block->memory);
        hth_free(block);
    }
}

static hth_http_block *block_new(hth_http *http, uint64_t bytes, uint64_t head_bytes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
    uint64_t front = (HTH_INFER_ALIGN - head_bytes % HTH_INFER_ALIGN) % HTH_INFER_ALIGN;
    if (http->reserved > most || bytes > most - http->reserved) {
        return NULL;
    }
    hth_http_block *b = hth_calloc(1, sizeof *b);
    char *memory = b != NULL ? hth_engine_alloc(http->engine, front + bytes) : NULL;
    if (memory == NULL) {
        hth_free(b);
        return NULL;
    }
    *b = (hth_http_block){
        .h = http, .refs = 1, .bytes = bytes, .memory = memory, .body = memory + front};
    http->reserved += bytes;
    return b;
}

void hth_http_block_begin(hth_http_conn *conn)
{
    const hth_http_head *d = &conn->req.head;
    uint64_t json = d->json_bytes != NULL ? strtoull(d->json_bytes, NULL, 10) : 0;
    conn->block = block_new(conn->h, d->length, json);
}

static void block_sent(const void *data, size_t n, void *block)
{
    hth_http_block_rele(block);
}

bool hth_http_block_give(hth_http_conn *conn)
{
    hth_http_block *b = conn->block;
    if (evbuffer_add_reference(conn->req.body, b->body, b->bytes, block_sent, b) != 0) {
        return false;
    }
    b->refs++;
    return true;
}

void hth_http_block_done(hth_http_conn *conn, struct evbuffer *body)
{
    if (conn != NULL && conn->block != NULL) {
        evbuffer_drain(body, evbuffer_get_length(body));
        hth_http_block_rele(conn->block);
        conn->block = NULL;
    }
}

hth_http_block *hth_http_block_of(const hth_http_conn *conn, struct evbuffer *body)
{
    struct evbuffer_iovec v;
    bool whole = conn != NULL && conn->block != NULL && conn->block->come == conn->block->bytes &&
                 evbuffer_peek(body, -1, NULL, &v, 1) == 1 && v.iov_base == conn->block->body &&
                 v.iov_len == conn->block->bytes;
    return whole ? conn->block : NULL;
}
