// SPDX-License-Identifier: Apache-2.0
// Memory that hearthd and its child both see: the slab `in`, the outputs' slab, and memory of
// clients. The latter is mapped in the child as well, when an input lies in it for the first time:
// it is told in front of the request. Where there is no room for that the request waits, and what
// came after it waits, too.
#include "engine/process/proxy_impl.h"

// What is smaller is copied anyway, by who submits it.
#define REGION_LEAST_BYTES (64u << 10)

// ---- memory of hearthd's own that a child sees

void *hth_proxy_alloc(hth_engine *engine, size_t bytes)
{
    hth_proxy *p = hth_proxy_of(engine);
    return hth_slab_alloc(p->in, bytes);
}

bool hth_proxy_free(hth_engine *engine, void *block)
{
    hth_proxy *p = hth_proxy_of(engine);
    bool ours = block != NULL && hth_slab_holds(p->in, block, 1);
    if (ours) {
        hth_slab_free(p->in, block);
    }
    return ours;
}

// ---- clients' memory

void hth_proxy_share(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes)
{
    hth_proxy *p = hth_proxy_of(engine);
    if (bytes < REGION_LEAST_BYTES) {
        return;
    }
    proxy_region *r = hth_calloc(1, sizeof *r);
    if (r == NULL) { // inputs are copied
        return;
    }
    *r = (proxy_region){.base = base, .fd = fd, .offset = offset, .bytes = bytes};
    pthread_mutex_lock(&p->lock);
    p->last_region = p->last_region % (HTH_IPC_RECORD_SLAB - 1) + 1; // neither that nor 0
    r->number = p->last_region;
    HASH_ADD_PTR(p->regions, base, r);
    bool added = HTH_HASH_ADDED(r);
    pthread_mutex_unlock(&p->lock);
    if (!added) {
        hth_free(r);
    }
}

void proxy_region_forget(hth_proxy *proxy, bool known)
{
    while (proxy->forgotten != NULL) {
        proxy_region *r = proxy->forgotten;
        hth_child_head head = {.kind = HTH_CHILD_FORGET, .entry = r->number};
        if (!known && hth_child_link_send(&proxy->link, &head, NULL, 0, 0) != HTH_OK) {
            return;
        }
        proxy->forgotten = r->next;
        hth_free(r);
    }
}

void hth_proxy_unshare(hth_engine *engine, const void *base)
{
    hth_proxy *p = hth_proxy_of(engine);
    proxy_region *r;
    pthread_mutex_lock(&p->lock);
    HASH_FIND_PTR(p->regions, &base, r);
    if (r != NULL) {
        bool tell = p->phase == PROXY_UP && r->known == p->child;
        HASH_DEL(p->regions, r);
        if (tell) {
            r->next = p->forgotten;
            p->forgotten = r;
            proxy_region_forget(p, false);
        } else {
            hth_free(r);
        }
    }
    pthread_mutex_unlock(&p->lock);
}

// region_find is the region in which [data, data + bytes) lies; NULL: none.
static proxy_region *region_find(hth_proxy *proxy, const void *data, size_t bytes)
{
    uintptr_t at = (uintptr_t)data;
    proxy_region *r = proxy->regions;
    while (r != NULL) {
        uintptr_t base = (uintptr_t)r->base;
        if (at >= base && at - base <= r->bytes && bytes <= r->bytes - (at - base)) {
            break;
        }
        r = r->hh.next;
    }
    return r;
}

// region_number: NULL: it is gone.
static proxy_region *region_number(hth_proxy *proxy, uint32_t number)
{
    proxy_region *r = proxy->regions;
    while (r != NULL && r->number != number) {
        r = r->hh.next;
    }
    return r;
}

// ---- where tensors are

bool proxy_locate(hth_proxy *proxy, const hth_tensor *tensor, hth_ipc_record_tensor *out)
{
    if (hth_slab_holds(proxy->in, tensor->data, tensor->bytes)) {
        out->region = HTH_IPC_RECORD_SLAB;
        out->at = hth_slab_offset(proxy->in, tensor->data);
        return true;
    }
    pthread_mutex_lock(&proxy->lock);
    const proxy_region *r = region_find(proxy, tensor->data, tensor->bytes);
    if (r != NULL) {
        out->region = r->number;
        out->at = (uint64_t)((const char *)tensor->data - (const char *)r->base);
    }
    pthread_mutex_unlock(&proxy->lock);
    return r != NULL;
}

void *proxy_output_at(const hth_proxy *proxy, const proxy_call *call,
                      const hth_ipc_record_tensor *tensor)
{
    if (tensor->region == HTH_IPC_RECORD_SLAB) {
        return hth_slab_at(proxy->link.out, tensor->at, tensor->bytes);
    }
    // the request holds the memory of its own places only, and only these are its client's
    const hth_ipc_record *q = call->record;
    const hth_ipc_record_tensor *place = &q->tensor[q->n_tensors - q->n_known];
    for (int i = 0; i < call->r->n_known && i < (int)q->n_known; i++) {
        if (place[i].region == tensor->region && place[i].at == tensor->at &&
            tensor->bytes <= place[i].bytes) {
            return call->r->known[i].t.data;
        }
    }
    return NULL;
}

// ---- telling the child

static hth_err region_send(hth_proxy *proxy, proxy_region *region)
{
    hth_child_head head = {.kind = HTH_CHILD_REGION,
                           .entry = region->number,
                           .done = region->bytes,
                           .total = region->offset};
    HTH_TRY(hth_child_link_pass(&proxy->link, &head, NULL, 0, &region->fd, 1));
    region->known = proxy->child;
    return HTH_OK;
}

hth_err proxy_region_send(hth_proxy *proxy, const hth_ipc_record *record)
{
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        uint32_t number = record->tensor[i].region;
        bool region = number != HTH_IPC_RECORD_HERE && number != HTH_IPC_RECORD_SLAB;
        proxy_region *r = region ? region_number(proxy, number) : NULL;
        if (r != NULL && r->known != proxy->child) {
            HTH_TRY(region_send(proxy, r));
        }
    }
    return HTH_OK;
}

void proxy_region_close(hth_proxy *proxy)
{
    proxy_region_forget(proxy, true);
    while (proxy->regions != NULL) {
        proxy_region *r = proxy->regions;
        HASH_DEL(proxy->regions, r);
        hth_free(r);
    }
}
