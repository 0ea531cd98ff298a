// SPDX-License-Identifier: Apache-2.0
// Large bodies: read from the socket straight to where the engine's process sees them.
//
// When the head of a large request has been looked at, memory for its body is taken from the
// engine, so that the first tensor after the JSON head begins at a multiple of HTH_INFER_ALIGN,
// and the body is received there; the request gets all of it as one reference when it is whole.
// Bodies in chunks do without, and so does everybody when blocks together would take more than
// http.buffered_bytes: memory is only taken by what comes, but room in the slab is taken at once.
//
// What is PUT is not for the engine but, in most cases, for the dispatcher: its block is plain
// memory, with room in front of the body for the head of the message that it becomes.
#include "server/http/http_infer.h"

#include <assert.h>
#include <stdlib.h>

#define BLOCK_FRONT 1024 // of a message's head; a multiple of HTH_INFER_ALIGN

void hth_http_block_rele(hth_http_block *block)
{
    assert(block == NULL || block->refs > 0);
    if (block != NULL && --block->refs == 0) {
        block->h->reserved -= block->bytes;
        if (block->plain) {
            hth_free(block->memory);
        } else {
            hth_engine_free(block->h->engine, block->memory);
        }
        hth_free(block);
    }
}

static hth_http_block *block_new(hth_http *http, uint64_t bytes, uint64_t front, bool plain)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
    if (http->reserved > most || bytes > most - http->reserved) {
        return NULL;
    }
    hth_http_block *b = hth_calloc(1, sizeof *b);
    char *memory = NULL;
    if (b != NULL) {
        memory = plain ? hth_alloc(front + bytes) : hth_engine_alloc(http->engine, front + bytes);
    }
    if (memory == NULL) {
        hth_free(b);
        return NULL;
    }
    *b = (hth_http_block){.h = http,
                          .refs = 1,
                          .bytes = bytes,
                          .plain = plain,
                          .memory = memory,
                          .body = memory + front};
    http->reserved += bytes;
    return b;
}

void hth_http_block_begin(hth_http_conn *conn)
{
    const hth_http_head *d = &conn->req.head;
    if (d->verb == HTH_VERB_PUT) {
        conn->block = block_new(conn->h, d->length, BLOCK_FRONT, true);
        return;
    }
    uint64_t json = d->json_bytes != NULL ? strtoull(d->json_bytes, NULL, 10) : 0;
    uint64_t front = (HTH_INFER_ALIGN - json % HTH_INFER_ALIGN) % HTH_INFER_ALIGN;
    conn->block = block_new(conn->h, d->length, front, false);
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

uint8_t *hth_http_block_take(hth_http_conn *conn, struct evbuffer *body, size_t front, void **owner)
{
    hth_http_block *b = hth_http_block_of(conn, body);
    if (b == NULL || !b->plain || front > BLOCK_FRONT) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)b->body - front;
    *owner = b->memory;
    b->memory = NULL;
    hth_http_block_done(conn, body);
    return at;
}
