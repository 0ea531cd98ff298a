// SPDX-License-Identifier: Apache-2.0
// Requests on their way to the child and back.
//
// A request is packed on its submitter's thread: its record, and one block of the slab with the
// inputs that lie neither in the slab nor in a client's memory that the child has mapped. Both stay
// until it is answered, so that it can go to another child.
#include "engine/process/proxy_impl.h"

#include "base/clock.h"

#include <string.h>

#define CALL_NOWHERE UINT64_MAX // of an input, until it is copied

static size_t aligned(size_t bytes)
{
    return (bytes + HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
}

// ---- submission

static void *record_take(void *ctx, size_t bytes)
{
    hth_proxy *p = ctx;
    return bytes > HTH_CHILD_NEAR_BYTES ? hth_slab_alloc(p->in, bytes) : hth_alloc(bytes);
}

void *hth_proxy_alloc(hth_engine *e, size_t bytes)
{
    hth_proxy *p = hth_proxy_of(e);
    return hth_slab_alloc(p->in, bytes);
}

bool hth_proxy_free(hth_engine *e, void *block)
{
    hth_proxy *p = hth_proxy_of(e);
    bool ours = block != NULL && hth_slab_holds(p->in, block, 1);
    if (ours) {
        hth_slab_free(p->in, block);
    }
    return ours;
}

static void call_unpack(hth_proxy *p, proxy_call *c)
{
    if (!hth_proxy_free(&p->engine, c->record)) {
        hth_free(c->record);
    }
    hth_slab_free(p->in, c->data);
    c->record = NULL;
    c->data = NULL;
}

// call_locate says where the child sees an input; false: it has to be copied.
static bool call_locate(hth_proxy *p, const hth_tensor *t, hth_child_tensor *w)
{
    if (hth_slab_holds(p->in, t->data, t->bytes)) {
        w->at = hth_slab_offset(p->in, t->data);
        return true;
    }
    pthread_mutex_lock(&p->lock);
    const proxy_region *r = proxy_region_find(p, t->data, t->bytes);
    if (r != NULL) {
        w->region = r->number;
        w->at = (uint64_t)((const char *)t->data - (const char *)r->base);
    }
    pthread_mutex_unlock(&p->lock);
    return r != NULL;
}

// call_known says where the child may put outputs itself: those of the record behind the inputs.
static void call_known(hth_proxy *p, hth_child_record *record, const hth_request *r)
{
    for (int i = 0; i < r->n_known; i++) {
        hth_child_tensor *w = &record->tensor[r->n_inputs + i];
        if (!call_locate(p, &r->known[i].t, w)) {
            w->name = 0; // none has that
        }
    }
    record->n_known = (uint32_t)r->n_known;
}

static hth_err call_copy(hth_proxy *p, proxy_call *c, const hth_request *r)
{
    size_t bytes = 0;
    for (int i = 0; i < r->n_inputs; i++) {
        bool there = call_locate(p, &r->inputs[i].t, &c->record->tensor[i]);
        if (!there) {
            c->record->tensor[i].at = CALL_NOWHERE;
            bytes += aligned(r->inputs[i].t.bytes);
        }
    }
    if (bytes == 0) {
        return HTH_OK;
    }
    char *at = c->data = hth_slab_alloc(p->in, bytes);
    if (at == NULL) {
        return hth_fail(HTH_ENOMEM, "out of shared memory for inputs of %zu bytes", bytes);
    }
    for (int i = 0; i < r->n_inputs; i++) {
        hth_child_tensor *w = &c->record->tensor[i];
        const hth_tensor *t = &r->inputs[i].t;
        if (w->at == CALL_NOWHERE) {
            w->at = hth_slab_offset(p->in, at);
            if (t->bytes > 0) {
                memcpy(at, t->data, t->bytes);
            }
            at += aligned(t->bytes);
        }
    }
    return HTH_OK;
}

static hth_err call_pack(hth_proxy *p, proxy_call *c)
{
    const hth_request *r = c->r;
    const char *text[HTH_CHILD_TEXTS] = {[HTH_CHILD_MODEL] = r->model,
                                         [HTH_CHILD_QUERY] = r->query,
                                         [HTH_CHILD_ARGUMENTS] = r->arguments,
                                         [HTH_CHILD_TENANT] = r->tenant};
    int n = r->n_inputs + r->n_known;
    hth_request_tensor *all = NULL;
    if (r->n_known > 0) {
        all = hth_calloc((size_t)n, sizeof *all);
        if (all == NULL) {
            return hth_fail(HTH_ENOMEM, "out of memory for a request");
        }
        memcpy(all, r->inputs, (size_t)r->n_inputs * sizeof *all);
        memcpy(all + r->n_inputs, r->known, (size_t)r->n_known * sizeof *all);
    }
    hth_err err =
        hth_child_record_new(text, all != NULL ? all : r->inputs, n, record_take, p, &c->record);
    hth_free(all);
    HTH_TRY(err);
    call_known(p, c->record, r);
    c->record->own = r->own;
    c->record->admin = r->admin;
    c->record->priority = r->priority;
    c->record->timeout_us = r->timeout_us;
    c->record->at_once = r->at_once;
    c->record->n_files = (uint32_t)r->n_files;
    return call_copy(p, c, r);
}

static void call_give_back(hth_proxy *p, proxy_call *c)
{
    c->state = PROXY_FREE;
    c->next = p->first_free;
    p->first_free = (int)(c - p->calls);
}

void proxy_call_free(hth_proxy *p, proxy_call *c)
{
    call_unpack(p, c);
    c->r = NULL;
    p->in_flight--;
    p->others -= !c->own;
    if (c->state != PROXY_KEPT) {
        call_give_back(p, c);
    }
}

void hth_proxy_release(hth_kept *kept)
{
    hth_proxy *p = kept->p;
    pthread_mutex_lock(&p->lock);
    if (kept->out == p->out) { // else there is no child any more that would use it again
        atomic_store(&p->link.board->slot[kept->slot].released, true);
    }
    call_give_back(p, &p->calls[kept->slot]);
    p->n_kept--;
    pthread_mutex_unlock(&p->lock);
    proxy_out_rele(p, kept->out);
    hth_free(kept);
}

// call_files passes a request's descriptors on, in front of it. Where it is tried again they come
// again: the child drops what nobody takes. HTH_EBUSY: there is no room.
static hth_err call_files(hth_proxy *p, const proxy_call *c, uint32_t slot)
{
    HTH_TRY(c->r->n_files > 0 ? proxy_region_settle(p) : HTH_OK);
    for (int i = 0; i < c->r->n_files; i++) {
        int fd = c->r->files[i];
        if (hth_child_fd_send(p->link.socket, hth_child_file(slot, i), fd) != HTH_OK) {
            return hth_fail(HTH_EBUSY, "the engine's process takes no more descriptors now");
        }
    }
    return HTH_OK;
}

// call_send hands a request to the child; lock held.
static hth_err call_send(hth_proxy *p, proxy_call *c)
{
    uint32_t slot = (uint32_t)(c - p->calls);
    hth_child_head head = {.kind = HTH_CHILD_CALL, .slot = slot};
    hth_child_slot *s = &p->link.board->slot[slot];
    HTH_TRY(proxy_region_send(p, c->record));
    if (hth_slab_holds(p->in, c->record, 1)) {
        head.far_at = hth_slab_offset(p->in, c->record);
        head.far_bytes = c->record->bytes;
    }
    HTH_TRY(call_files(p, c, slot));
    c->record->deaths = c->r->deaths;
    // before it was submitted, here, or in a process that died
    c->record->waited_ns = hth_now_ns() - c->r->submitted_ns;
    s->r.started_ns = s->r.submitted_ns = 0;
    atomic_store(&s->released, false);
    hth_err err = hth_child_link_send(&p->link, &head, c->record,
                                      head.far_bytes > 0 ? 0 : c->record->bytes, 0);
    if (err == HTH_OK) {
        c->state = PROXY_SENT;
    }
    return err;
}

// call_take finds a free slot.
static hth_err call_take(hth_proxy *p, proxy_call **out)
{
    hth_err err = HTH_OK;
    pthread_mutex_lock(&p->lock);
    if (p->stopping) {
        err = hth_fail(HTH_ECANCELED, "Server exiting");
    } else if (p->phase != PROXY_UP && p->deaths >= PROXY_LOST) {
        err = hth_fail(HTH_EDEVLOST,
                       "the engine's process died %d times in a row; it is being restarted",
                       p->deaths);
    } else if (p->first_free < 0 && p->high == p->n_calls) {
        err = hth_fail(HTH_EBUSY, "Exceeds maximum queue size");
    } else {
        int slot = p->first_free >= 0 ? p->first_free : p->high++;
        proxy_call *c = &p->calls[slot];
        p->first_free = slot == p->first_free ? c->next : p->first_free;
        *c = (proxy_call){.state = PROXY_FILLING, .order = p->order++, .next = -1};
        c->own = p->looked && pthread_equal(p->looker, pthread_self());
        p->in_flight++;
        p->others += !c->own;
        if (!c->own) {
            proxy_unattend(p);
        }
        *out = c;
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

hth_err hth_proxy_submit(hth_engine *e, hth_request *r)
{
    hth_proxy *p = hth_proxy_of(e);
    proxy_call *c = NULL;
    r->submitted_ns = hth_now_ns() - r->waited_ns;
    HTH_TRY(call_take(p, &c));
    c->r = r;
    hth_err err = call_pack(p, c);
    pthread_mutex_lock(&p->lock);
    if (err == HTH_OK && p->stopping) {
        err = hth_fail(HTH_ECANCELED, "Server exiting");
    } else if (err == HTH_OK && p->phase == PROXY_UP) {
        err = call_send(p, c);
        if (err == HTH_EBUSY || err == HTH_ECANCELED) { // no room, or the child is about to end
            c->state = PROXY_WAITING;
            err = HTH_OK;
        }
    } else if (err == HTH_OK) {
        c->state = PROXY_WAITING;
    }
    if (err != HTH_OK) {
        proxy_call_free(p, c);
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

hth_err proxy_send_waiting(hth_proxy *p)
{
    hth_err err = HTH_OK;
    while (err == HTH_OK) {
        proxy_call *first = NULL;
        for (int i = 0; i < p->high; i++) {
            proxy_call *c = &p->calls[i];
            if (c->state == PROXY_WAITING && (first == NULL || c->order < first->order)) {
                first = c;
            }
        }
        if (first == NULL) {
            break;
        }
        err = call_send(p, first); // no room: the next look tries again
    }
    return err;
}
