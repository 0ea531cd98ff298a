// SPDX-License-Identifier: Apache-2.0
// The list of buffers is short, so that a search through it costs less than a table. A buffer may
// be used by several calls at once; freeing one that a call uses is the caller's error, as with any
// memory. After a reconnect one of them tries to have it mapped again; the others wait for that.
#include "client/infer/buffer.h"

#include "base/alloc.h"
#include "base/ipc/memfd.h"
#include "client/descriptor.h"
#include "client/exchange.h"

#define BUFFER_ALIGN 64u

struct hth_buffer {
    uint8_t *data;
    size_t bytes;
    int fd;              // -1: plain memory
    uint32_t region;     // 0: not mapped by the server
    uint64_t generation; // of the connection that mapped it
    hth_buffer *next;
};

static hth_err buffer_ask(hearth *h, const hth_buffer *buffer, uint32_t *region)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Map body = HEARTH__MAP__INIT;
    hth_reply r;
    HTH_TRY(hth_descriptor_pass(h, buffer->fd, &body.handle));
    body.bytes = buffer->bytes;
    q.body_case = HEARTH__REQUEST__BODY_MAP;
    q.map = &body;
    HTH_TRY(hth_exchange(h, &q, NULL, NULL, &r));
    *region = r.head->body_case == HEARTH__REPLY__BODY_MAPPED ? r.head->mapped->region : 0;
    hth_reply_fini(&r);
    return HTH_OK;
}

// buffer_map has the server map the buffer over the present connection. One that fails is not asked
// again over that connection, by whichever call: what lies in the buffer is copied until the next.
static hth_err buffer_map(hearth *h, hth_buffer *buffer)
{
    uint64_t generation = atomic_load(&h->generation);
    uint32_t region = 0;
    hth_err err = buffer_ask(h, buffer, &region);
    pthread_mutex_lock(&h->lock);
    buffer->region = region;
    buffer->generation = generation;
    pthread_mutex_unlock(&h->lock);
    return err;
}

static void buffer_release(hth_buffer *buffer)
{
    if (buffer->fd >= 0) {
        hth_memfd_drop(buffer->fd, buffer->data, buffer->bytes);
    } else {
        hth_free(buffer->data);
    }
    buffer->data = NULL;
    buffer->fd = -1;
}

static hth_err buffer_fill(hearth *h, size_t bytes, hth_buffer *buffer)
{
    void *shared;
    buffer->fd = -1;
    buffer->bytes = bytes;
    if (h->shared_memory && bytes > 0 &&
        hth_memfd_make("hearth", bytes, &buffer->fd, &shared) == HTH_OK) {
        buffer->data = shared;
        if (buffer_map(h, buffer) == HTH_OK) {
            return HTH_OK;
        }
        buffer_release(buffer);
    }
    buffer->data = hth_alloc_aligned(bytes, BUFFER_ALIGN);
    return buffer->data != NULL ? HTH_OK : hth_no_memory("a buffer of %zu bytes", bytes);
}

hearth_status hearth_buffer_alloc(hearth *h, size_t bytes, void **out)
{
    *out = NULL;
    if (hth_exchange_check(h) != HTH_OK) {
        return HEARTH_EINVAL;
    }
    hth_buffer *b = hth_calloc(1, sizeof *b);
    if (b == NULL) {
        return (hearth_status)hth_no_memory("a buffer");
    }
    hth_err err = buffer_fill(h, bytes, b);
    if (err != HTH_OK) {
        hth_free(b);
        return (hearth_status)err;
    }
    pthread_mutex_lock(&h->lock);
    b->next = h->buffers;
    h->buffers = b;
    pthread_mutex_unlock(&h->lock);
    *out = b->data;
    return HEARTH_OK;
}

static void buffer_unmap(hearth *h, uint32_t region)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Unmap body = HEARTH__UNMAP__INIT;
    hth_reply r;
    body.region = region;
    q.body_case = HEARTH__REQUEST__BODY_UNMAP;
    q.unmap = &body;
    if (hth_exchange(h, &q, NULL, NULL, &r) == HTH_OK) {
        hth_reply_fini(&r);
    }
}

void hearth_buffer_free(hearth *h, void *data)
{
    if (data == NULL || h->forks != hth_forks()) { // the parent's
        return;
    }
    pthread_mutex_lock(&h->lock);
    hth_buffer **at = &h->buffers;
    while (*at != NULL && (*at)->data != data) {
        at = &(*at)->next;
    }
    hth_buffer *b = *at;
    if (b != NULL) {
        *at = b->next;
    }
    pthread_mutex_unlock(&h->lock);
    if (b == NULL) {
        return;
    }
    if (b->region != 0 && b->generation == atomic_load(&h->generation) &&
        atomic_load(&h->pipes) > 0) {
        buffer_unmap(h, b->region);
    }
    buffer_release(b);
    hth_free(b);
}

// buffer_region is the buffer's region; false: it belongs to another connection.
static bool buffer_region(hearth *h, const hth_buffer *buffer, uint32_t *region)
{
    pthread_mutex_lock(&h->lock);
    bool present = buffer->generation == atomic_load(&h->generation);
    *region = present ? buffer->region : 0;
    pthread_mutex_unlock(&h->lock);
    return present;
}

// buffer_renew has a buffer mapped over the present connection, unless another call has done it.
static void buffer_renew(hearth *h, hth_buffer *buffer, uint32_t *region)
{
    pthread_mutex_lock(&h->mapping);
    if (!buffer_region(h, buffer, region) && buffer_map(h, buffer) == HTH_OK) {
        (void)buffer_region(h, buffer, region);
    }
    pthread_mutex_unlock(&h->mapping);
}

void hth_buffer_find(hearth *handle, const void *data, size_t bytes, uint32_t *region,
                     uint64_t *offset)
{
    const uint8_t *p = data;
    bool stale = false;
    *region = 0;
    *offset = 0;
    pthread_mutex_lock(&handle->lock);
    hth_buffer *b = handle->buffers;
    while (b != NULL && !(p >= b->data && p < b->data + b->bytes)) {
        b = b->next;
    }
    if (b != NULL && b->fd >= 0 && bytes <= b->bytes - (size_t)(p - b->data) &&
        (p - b->data) % BUFFER_ALIGN == 0) {
        *region = b->region;
        *offset = (uint64_t)(p - b->data);
        stale = b->generation != atomic_load(&handle->generation);
    }
    pthread_mutex_unlock(&handle->lock);
    if (stale) {
        buffer_renew(handle, b, region);
    }
    *offset = *region != 0 ? *offset : 0;
}

void hth_buffer_fini(hearth *handle)
{
    while (handle->buffers != NULL) {
        hth_buffer *b = handle->buffers;
        handle->buffers = b->next;
        buffer_release(b);
        hth_free(b);
    }
}
