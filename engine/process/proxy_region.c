// SPDX-License-Identifier: Apache-2.0
// Memory of clients that is mapped here is mapped in the child as well, when an input lies in it
// for the first time: its descriptor goes over the socket, its number over the ring, in front of
// the request, which waits where the ring has no room. Where that fails the request is refused;
// nothing else is lost.
#include "engine/process/proxy_impl.h"

#include <fcntl.h>
#include <unistd.h>

// What is smaller is copied anyway, by who submits it.
#define REGION_LEAST_BYTES (64u << 10)

void hth_proxy_share(hth_engine *e, int fd, uint64_t offset, const void *base, size_t bytes)
{
    hth_proxy *p = hth_proxy_of(e);
    if (bytes < REGION_LEAST_BYTES) {
        return;
    }
    proxy_region *r = hth_calloc(1, sizeof *r);
    int mine = r != NULL ? fcntl(fd, F_DUPFD_CLOEXEC, 10) : -1;
    if (mine < 0) { // inputs are copied
        hth_free(r);
        return;
    }
    *r = (proxy_region){.base = base, .fd = mine, .offset = offset, .bytes = bytes};
    pthread_mutex_lock(&p->lock);
    r->number = ++p->last_region != 0 ? p->last_region : ++p->last_region;
    HASH_ADD_PTR(p->regions, base, r);
    bool added = HTH_HASH_ADDED(r);
    pthread_mutex_unlock(&p->lock);
    if (!added) {
        close(mine);
        hth_free(r);
    }
}

static void region_free(hth_proxy *p, proxy_region *r)
{
    HASH_DEL(p->regions, r);
    close(r->fd);
    hth_free(r);
}

void proxy_region_forget(hth_proxy *p, bool known)
{
    while (p->forgotten != NULL) {
        proxy_region *r = p->forgotten;
        hth_child_head head = {.kind = HTH_CHILD_FORGET, .slot = r->number};
        if (!known && hth_child_link_send(&p->link, &head, NULL, 0, 0) != HTH_OK) {
            return;
        }
        p->forgotten = r->next;
        hth_free(r);
    }
}

void hth_proxy_unshare(hth_engine *e, const void *base)
{
    hth_proxy *p = hth_proxy_of(e);
    proxy_region *r;
    pthread_mutex_lock(&p->lock);
    HASH_FIND_PTR(p->regions, &base, r);
    if (r != NULL) {
        bool tell = p->phase == PROXY_UP && r->known == p->pid;
        HASH_DEL(p->regions, r);
        close(r->fd);
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

proxy_region *proxy_region_find(hth_proxy *p, const void *data, size_t bytes)
{
    uintptr_t at = (uintptr_t)data;
    proxy_region *r = p->regions;
    while (r != NULL) {
        uintptr_t base = (uintptr_t)r->base;
        if (at >= base && at - base <= r->bytes && bytes <= r->bytes - (at - base)) {
            break;
        }
        r = r->hh.next;
    }
    return r;
}

proxy_region *proxy_region_number(hth_proxy *p, uint32_t number)
{
    proxy_region *r = p->regions;
    while (r != NULL && r->number != number) {
        r = r->hh.next;
    }
    return r;
}

// region_tell says what the descriptor is that was passed.
static hth_err region_tell(hth_proxy *p, proxy_region *r)
{
    hth_child_head head = {
        .kind = HTH_CHILD_REGION, .slot = r->number, .done = r->bytes, .total = r->offset};
    HTH_TRY(hth_child_link_send(&p->link, &head, NULL, 0, 0));
    p->passed = 0;
    r->known = p->pid;
    return HTH_OK;
}

hth_err proxy_region_settle(hth_proxy *p)
{
    proxy_region *before = proxy_region_number(p, p->passed);
    return before != NULL ? region_tell(p, before) : HTH_OK;
}

// region_send passes a region on. What was passed before comes first, so that descriptors and
// messages stay in step; where that is gone the child drops its descriptor.
static hth_err region_send(hth_proxy *p, proxy_region *r)
{
    const proxy_region *before = proxy_region_number(p, p->passed);
    HTH_TRY(proxy_region_settle(p));
    if (before != r) {
        HTH_TRY(hth_child_fd_send(p->link.socket, r->number, r->fd));
        p->passed = r->number;
        HTH_TRY(region_tell(p, r));
    }
    return HTH_OK;
}

hth_err proxy_region_send(hth_proxy *p, const hth_child_record *record)
{
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        uint32_t number = record->tensor[i].region;
        proxy_region *r = number != 0 ? proxy_region_number(p, number) : NULL;
        if (r != NULL && r->known != p->pid) {
            HTH_TRY(region_send(p, r));
        }
    }
    return HTH_OK;
}

void proxy_region_close(hth_proxy *p)
{
    proxy_region_forget(p, true);
    while (p->regions != NULL) {
        region_free(p, p->regions);
    }
}
