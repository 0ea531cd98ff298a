// SPDX-License-Identifier: Apache-2.0
// Large bodies: read from the socket straight to where the engine's process sees them.
//
// When the head of a large request has been looked at, memory for its body is taken from the
// engine, so that the first tensor behind the JSON head begins at a multiple of HTH_INFER_ALIGN.
// What has come of the body with the head is moved there, the rest is received there; evhttp is
// given all of it as one reference when it is whole. Bodies in chunks, over TLS, and those that
// have come whole with their heads do without, and so does everybody when blocks together would
// take more than http.buffered_bytes: memory is only taken by what comes, but room in the slab is
// taken at once.
#include "server/http/http_infer.h"

#include <event2/bufferevent.h>

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

void hth_http_block_rele(hth_http_block *b)
{
    if (b != NULL && --b->refs == 0) {
        b->h->reserved -= b->bytes;
        hth_engine_free(b->h->engine, b->memory);
        hth_free(b);
    }
}

static hth_http_block *block_new(hth_http *h, uint64_t bytes, uint64_t head_bytes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
    uint64_t front = (HTH_INFER_ALIGN - head_bytes % HTH_INFER_ALIGN) % HTH_INFER_ALIGN;
    if (h->reserved > most || bytes > most - h->reserved) {
        return NULL;
    }
    hth_http_block *b = hth_calloc(1, sizeof *b);
    char *memory = b != NULL ? hth_engine_alloc(h->engine, front + bytes) : NULL;
    if (memory == NULL) {
        hth_free(b);
        return NULL;
    }
    *b = (hth_http_block){
        .h = h, .refs = 1, .bytes = bytes, .memory = memory, .body = memory + front};
    h->reserved += bytes;
    return b;
}

void hth_http_block_begin(hth_http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->b);
    uint64_t come = evbuffer_get_length(in) - c->text_due, due = c->due;
    c->due = 0;
    struct evbuffer *head = come < due ? evbuffer_new() : NULL;
    c->block = head != NULL ? block_new(c->h, due, c->head_due) : NULL;
    if (c->block != NULL) {
        c->moving = true;
        evbuffer_remove_buffer(in, head, c->text_due);
        evbuffer_remove(in, c->block->body, come);
        evbuffer_add_buffer(in, head);
        c->moving = false;
        c->block->come = come;
    }
    if (head != NULL) {
        evbuffer_free(head);
    }
}

static void block_sent(const void *data, size_t n, void *block)
{
    hth_http_block_rele(block);
}

// block_give gives evhttp the whole body. Out of memory for a reference: it is copied, or what
// evhttp waits for never comes, as when a client sends no more.
static void block_give(hth_http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->b);
    hth_http_block *b = c->block;
    c->moving = true;
    if (evbuffer_add_reference(in, b->body, b->bytes, block_sent, b) == 0) {
        b->refs++;
    } else {
        evbuffer_add(in, b->body, b->bytes);
    }
    c->moving = false;
}

ssize_t hth_http_block_read(hth_http_conn *c)
{
    hth_http_block *b = c->block;
    ssize_t n = recv(c->fd, b->body + b->come, b->bytes - b->come, MSG_DONTWAIT);
    if (n > 0) {
        b->come += (uint64_t)n;
        c->h->events++;
        hth_http_conn_came(c, (size_t)n, 0);
        if (b->come == b->bytes) {
            block_give(c);
        }
    }
    return n;
}

void hth_http_block_done(hth_http_conn *c, struct evbuffer *body)
{
    if (c != NULL && c->block != NULL) {
        evbuffer_drain(body, evbuffer_get_length(body));
        hth_http_block_rele(c->block);
        c->block = NULL;
    }
}

hth_http_block *hth_http_block_of(const hth_http_conn *c, struct evbuffer *body)
{
    struct evbuffer_iovec v;
    bool whole = c != NULL && c->block != NULL && c->block->come == c->block->bytes &&
                 evbuffer_peek(body, -1, NULL, &v, 1) == 1 && v.iov_base == c->block->body &&
                 v.iov_len == c->block->bytes;
    return whole ? c->block : NULL;
}
