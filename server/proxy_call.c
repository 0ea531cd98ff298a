// SPDX-License-Identifier: Apache-2.0
// Requests on their way to the child and back.
//
// A request is packed on its submitter's thread: its record, and one block of the slab with the
// inputs that lie neither in the slab nor in a client's memory that the child has mapped. Both stay
// until it is answered, so that it can go to another child. The answer is copied once, from where
// the child put it to where `place` says.
//
// What a child says is believed as far as it has been checked: an answer to what was not asked, or
// one with offsets that lead astray, ends it.
#include "server/proxy_impl.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

// Deaths of the process while a request waited in it: more are no accident.
#define CALL_MOST_DEATHS 3
#define CALL_NOWHERE     UINT64_MAX // of an input, until it is copied

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

static void call_unpack(hth_proxy *p, proxy_call *c)
{
    if (c->record != NULL && hth_slab_holds(p->in, c->record, 1)) {
        hth_slab_free(p->in, c->record);
    } else {
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
    c->record->priority = r->priority;
    c->record->timeout_us = r->timeout_us;
    return call_copy(p, c, r);
}

// call_free gives the slot back; lock held.
static void call_free(hth_proxy *p, proxy_call *c)
{
    call_unpack(p, c);
    c->state = PROXY_FREE;
    c->r = NULL;
    c->next = p->first_free;
    p->first_free = (int)(c - p->calls);
    p->in_flight--;
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
        p->in_flight++;
        *out = c;
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

hth_err hth_proxy_submit(hth_proxy *p, hth_request *r)
{
    proxy_call *c = NULL;
    r->submitted_ns = hth_now_ns();
    HTH_TRY(call_take(p, &c));
    c->r = r;
    hth_err err = call_pack(p, c);
    pthread_mutex_lock(&p->lock);
    if (err == HTH_OK && p->stopping) {
        err = hth_fail(HTH_ECANCELED, "Server exiting");
    } else if (err == HTH_OK && p->phase == PROXY_UP) {
        err = call_send(p, c);
        err = err == HTH_EBUSY ? hth_fail(err, "Exceeds maximum queue size") : err;
    } else if (err == HTH_OK) {
        c->state = PROXY_WAITING;
    }
    if (err != HTH_OK) {
        call_free(p, c);
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

void proxy_send_waiting(hth_proxy *p)
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
            return;
        }
        err = call_send(p, first); // no room: the next look tries again
    }
}

// ---- answers

// call_end takes a request out of the table, as `err` with the calling thread's detail.
static void call_end(hth_proxy *p, proxy_call *c, hth_err err)
{
    hth_request *r = c->r;
    r->err = err;
    snprintf(r->detail, sizeof r->detail, "%s", err != HTH_OK ? hth_err_detail() : "");
    r->finished_ns = hth_now_ns();
    pthread_mutex_lock(&p->lock);
    call_free(p, c);
    pthread_mutex_unlock(&p->lock);
    hth_request_tensor *outputs = r->outputs;
    r->done(r); // r may be gone now
    hth_free(outputs);
}

// answer_at is where an output lies: in the child's slab, or where its client wants it. NULL: in
// neither.
static void *answer_at(hth_proxy *p, const hth_child_tensor *w)
{
    if (w->region == 0) {
        return hth_slab_at(p->link.out, w->at, w->bytes);
    }
    pthread_mutex_lock(&p->lock);
    const proxy_region *r = proxy_region_number(p, w->region);
    bool inside = r != NULL && w->at <= r->bytes && w->bytes <= r->bytes - w->at;
    void *at = inside ? (char *)r->base + w->at : NULL;
    pthread_mutex_unlock(&p->lock);
    return at;
}

// answer_outputs has the outputs placed, and copies them there, unless that is where they are.
static hth_err answer_outputs(hth_proxy *p, hth_request *r, const hth_child_record *a)
{
    int n = (int)a->n_tensors;
    r->outputs = hth_calloc((size_t)n + 1, sizeof *r->outputs);
    if (r->outputs == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for %d outputs", n);
    }
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        hth_request_tensor *t = &r->outputs[i];
        *t = hth_child_record_tensor(a, i);
        if (hth_tensor_bytes(t->t.dtype, &t->t.shape, t->t.layout, &bytes) != HTH_OK ||
            bytes != t->t.bytes || answer_at(p, &a->tensor[i]) == NULL) {
            p->lost = true;
            return hth_fail(HTH_ECORRUPT, "the engine's process gave an output that cannot be");
        }
    }
    r->n_outputs = n;
    HTH_TRY(r->place(r, r->outputs, n));
    for (int i = 0; i < n; i++) {
        const hth_tensor *t = &r->outputs[i].t;
        const void *from = answer_at(p, &a->tensor[i]);
        if (t->bytes > 0 && t->data != from) {
            memmove(t->data, from, t->bytes); // a client's memory may be both
        }
    }
    return HTH_OK;
}

static hth_err answer_read(hth_proxy *p, hth_request *r, const hth_child_record *a)
{
    const char *detail = hth_child_record_text(a, HTH_CHILD_DETAIL);
    const char *json = hth_child_record_text(a, HTH_CHILD_JSON);
    r->version = a->version;
    r->batched = a->batched != 0;
    r->started_ns = a->started_ns;
    if (a->err != HTH_OK) {
        p->lost = p->lost || a->err == HTH_EDEVLOST;
        return hth_fail((hth_err)a->err, "%s", detail != NULL ? detail : "");
    }
    if (r->query == NULL) {
        return answer_outputs(p, r, a);
    }
    r->json = json != NULL ? hth_strdup(json) : NULL;
    return json != NULL && r->json == NULL ? hth_fail(HTH_ENOMEM, "no memory for an answer")
                                           : HTH_OK;
}

static void answer_take(hth_proxy *p, const hth_child_head *head, proxy_call *c, const char *body,
                        size_t bytes)
{
    hth_child_record *copy;
    const hth_child_record *a;
    hth_request *r = c->r;
    hth_err err = hth_child_link_record(head, body, bytes, p->link.out, &copy, &a);
    if (err == HTH_OK) {
        err = answer_read(p, r, a);
    } else {
        p->lost = p->lost || err == HTH_ECORRUPT;
    }
    atomic_store(&p->link.board->slot[head->slot].released, true);
    if (err == HTH_OK) {
        proxy_models_note(p, r);
    }
    call_end(p, c, err); // names of outputs lie in the record
    hth_free(copy);
}

void proxy_message(hth_proxy *p, const hth_child_head *head, const char *body, size_t bytes)
{
    proxy_call *c = head->slot < (uint32_t)p->n_calls ? &p->calls[head->slot] : NULL;
    pthread_mutex_lock(&p->lock);
    bool asked = c != NULL && c->state == PROXY_SENT; // only this thread changes that back
    pthread_mutex_unlock(&p->lock);
    if (head->kind == HTH_CHILD_DONE && asked) {
        answer_take(p, head, c, body, bytes);
    } else if (head->kind == HTH_CHILD_PROGRESS && asked) {
        if (c->r->progress != NULL) {
            c->r->progress(c->r, body, head->done, head->total);
        }
    } else if (head->kind == HTH_CHILD_EVENT) {
        size_t n = strlen(body) + 1;
        if (p->event != NULL && n < bytes) {
            p->event(p->event_ctx, body, body + n, head->done, head->total);
        }
    } else if (head->kind != HTH_CHILD_PROGRESS) {
        hth_log(ERROR, SERVER, "engine-nonsense", "kind=%u slot=%u", head->kind, head->slot);
        p->lost = true;
    }
}

// ---- what time brings

// call_find returns a call for which `wanted` says yes.
static proxy_call *call_find(hth_proxy *p, bool (*wanted)(hth_proxy *p, const proxy_call *c))
{
    proxy_call *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->high && found == NULL; i++) {
        found = wanted(p, &p->calls[i]) ? &p->calls[i] : NULL;
    }
    if (found != NULL) {
        found->state = PROXY_FILLING; // nobody else looks at it any more
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

static bool call_is_canceled(hth_proxy *p, const proxy_call *c)
{
    return c->state == PROXY_WAITING && c->r->canceled;
}

void proxy_look(hth_proxy *p)
{
    proxy_call *c;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; p->phase == PROXY_UP && i < p->high; i++) {
        if (p->calls[i].state == PROXY_SENT && p->calls[i].r->canceled) {
            p->link.board->slot[i].r.canceled = 1;
        }
    }
    if (p->phase == PROXY_UP) {
        proxy_send_waiting(p);
    }
    pthread_mutex_unlock(&p->lock);
    while ((c = call_find(p, call_is_canceled)) != NULL) {
        call_end(p, c, hth_fail(HTH_ECANCELED, "canceled while it was queued"));
    }
}

static bool call_is_lost(hth_proxy *p, const proxy_call *c)
{
    return c->state == PROXY_SENT || (c->state == PROXY_WAITING && c->deaths >= CALL_MOST_DEATHS);
}

static bool call_is_open(hth_proxy *p, const proxy_call *c)
{
    return c->state == PROXY_SENT || c->state == PROXY_WAITING;
}

// call_has_begun looks at what a dead child left: while a request is queued its start is its
// submission.
static bool call_has_begun(const hth_request *r)
{
    return r->started_ns != r->submitted_ns && r->started_ns != 0;
}

void proxy_bury(hth_proxy *p, const char *sentence, bool all)
{
    int running = 0, waiting = 0;
    proxy_call *c;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->high; i++) {
        c = &p->calls[i];
        if (c->state == PROXY_SENT && !call_has_begun(&p->link.board->slot[i].r)) {
            c->state = PROXY_WAITING;
            c->deaths++;
        }
        running += c->state == PROXY_SENT;
        waiting += c->state == PROXY_WAITING;
    }
    pthread_mutex_unlock(&p->lock);
    if (running + waiting > 0) {
        hth_log(WARN, SERVER, "engine-requests", "failed=%d waiting=%d", running, waiting);
    }
    while ((c = call_find(p, all ? call_is_open : call_is_lost)) != NULL) {
        if (c->deaths >= CALL_MOST_DEATHS) {
            call_end(p, c,
                     hth_fail(HTH_EDEVLOST,
                              "the engine's process died %d times while this request was in its "
                              "queue: it is not tried again",
                              c->deaths));
        } else {
            call_end(p, c, hth_fail(HTH_EDEVLOST, "%s", sentence));
        }
    }
}
