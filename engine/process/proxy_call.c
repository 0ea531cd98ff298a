// SPDX-License-Identifier: Apache-2.0
// Requests on their way to the child and back, and what becomes of those to which there is no
// answer.
//
// A request is packed on its submitter's thread: its record, which one that came through a ring has
// already, and one block of the slab with the inputs that lie neither in the slab nor in a client's
// memory that the child has mapped. Both stay until it is answered, so that it can go to another
// child.
//
// An answer is copied once, from where the child put it to where `place` says, unless the request
// keeps it where it is. What a child says is believed as far as it has been checked: an answer to
// what was not asked, or one with offsets that lead astray, ends it.
#include "engine/process/proxy_impl.h"

#include "base/clock.h"
#include "base/ipc/fd.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define CALL_NOWHERE UINT64_MAX // of an input, until it is copied
// Deaths of the process while a request waited in it: more are no accident.
#define CALL_MAX_CRASHES 3

static size_t aligned(size_t bytes)
{
    return (bytes + HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
}

// call_set changes what a call is at, and counts those that wait; lock held.
static void call_set(hth_proxy *proxy, proxy_call *call, proxy_state state)
{
    proxy->n_waiting += (state == PROXY_WAITING) - (call->state == PROXY_WAITING);
    call->state = state;
}

// ---- submission

static void call_unpack(hth_proxy *proxy, proxy_call *call)
{
    if (call->record != call->r->record) {
        hth_slab_free(proxy->in, call->record);
    }
    hth_slab_free(proxy->in, call->data);
    call->record = NULL;
    call->data = NULL;
}

// call_copy copies the inputs of `bytes` together that nothing tells the child where they are.
static hth_err call_copy(hth_proxy *proxy, proxy_call *call, size_t bytes)
{
    const hth_request *r = call->r;
    char *at = call->data = hth_slab_alloc(proxy->in, bytes);
    if (at == NULL) {
        return hth_fail(HTH_ENOMEM, "out of shared memory for inputs of %zu bytes", bytes);
    }
    for (int i = 0; i < r->n_inputs; i++) {
        hth_ipc_record_tensor *w = &call->record->tensor[i];
        const hth_tensor *t = &r->inputs[i].t;
        if (w->at == CALL_NOWHERE) {
            w->at = hth_slab_offset(proxy->in, at);
            if (t->bytes > 0) {
                memcpy(at, t->data, t->bytes);
            }
            at += aligned(t->bytes);
        }
    }
    return HTH_OK;
}

// call_inputs says in the record where the inputs are.
static hth_err call_inputs(hth_proxy *proxy, proxy_call *call)
{
    const hth_request *r = call->r;
    size_t bytes = 0;
    for (int i = 0; i < r->n_inputs; i++) {
        hth_ipc_record_tensor *w = &call->record->tensor[i];
        if (!proxy_locate(proxy, &r->inputs[i].t, w)) {
            w->region = HTH_IPC_RECORD_SLAB;
            w->at = CALL_NOWHERE;
            bytes += aligned(r->inputs[i].t.bytes);
        }
    }
    return bytes > 0 ? call_copy(proxy, call, bytes) : HTH_OK;
}

static hth_ipc_record_tensor *call_add(hth_ipc_record *record, const hth_request_tensor *tensor)
{
    return hth_ipc_record_add(record, tensor->name, tensor->t.dtype, (size_t)tensor->t.shape.rank,
                              tensor->t.shape.dim, tensor->t.bytes);
}

static size_t call_names(const hth_request_tensor *tensor, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        bytes += tensor[i].name != NULL ? strlen(tensor[i].name) + 1 : 0;
    }
    return bytes;
}

// call_record makes the record of a request that has none. Where the child may put outputs itself
// stands after the inputs.
static hth_err call_record(hth_proxy *proxy, proxy_call *call)
{
    const hth_request *r = call->r;
    const char *const text[HTH_IPC_RECORD_TEXTS] = {[HTH_IPC_RECORD_MODEL] = r->model,
                                                    [HTH_IPC_RECORD_QUERY] =
                                                        hth_command_name(r->command),
                                                    [HTH_IPC_RECORD_ARGUMENTS] = r->arguments};
    size_t n = (size_t)r->n_inputs + (size_t)r->n_known;
    size_t names = call_names(r->inputs, r->n_inputs) + call_names(r->known, r->n_known);
    size_t bytes = hth_ipc_record_room(text, n, names);
    hth_ipc_record *record = bytes > 0 ? hth_slab_alloc(proxy->in, bytes) : NULL;
    if (record == NULL) {
        return hth_no_memory("a message of %zu bytes", bytes);
    }
    hth_ipc_record_begin(record, text, n);
    record->priority = r->priority;
    record->timeout_us = r->timeout_us;
    for (int i = 0; i < r->n_inputs; i++) {
        call_add(record, &r->inputs[i])->region =
            HTH_IPC_RECORD_SLAB; // until call_inputs says where
    }
    for (int i = 0; i < r->n_known; i++) {
        hth_ipc_record_tensor *w = call_add(record, &r->known[i]);
        if (!proxy_locate(proxy, &r->known[i].t, w)) {
            w->region = HTH_IPC_RECORD_SLAB;
            w->name = 0; // none has that
        }
    }
    record->n_known = (uint32_t)r->n_known;
    call->record = record;
    return hth_ipc_record_end(record);
}

static hth_err call_pack(hth_proxy *proxy, proxy_call *call)
{
    const hth_request *r = call->r;
    if (r->record != NULL && hth_slab_holds(proxy->in, r->record, sizeof *r->record)) {
        call->record = r->record;
    } else {
        HTH_TRY(call_record(proxy, call));
    }
    return call_inputs(proxy, call);
}

static void call_give_back(hth_proxy *proxy, proxy_call *call)
{
    call_set(proxy, call, PROXY_FREE);
    call->next = proxy->first_free;
    proxy->first_free = (int)(call - proxy->calls);
}

void proxy_call_free(hth_proxy *proxy, proxy_call *call)
{
    call_unpack(proxy, call);
    call->r = NULL;
    assert(proxy->in_flight > 0);
    proxy->in_flight--;
    proxy->others -= !call->own;
    if (call->state != PROXY_RETAINED) {
        call_give_back(proxy, call);
    }
}

static void call_release(hth_retained *retained)
{
    proxy_retained *kept = (proxy_retained *)retained;
    hth_proxy *p = kept->p;
    pthread_mutex_lock(&p->lock);
    if (kept->out == p->out) { // else there is no child any more that would use it again
        atomic_store(&p->link.control->entry[kept->entry].released, true);
    }
    call_give_back(p, &p->calls[kept->entry]);
    assert(p->n_retained > 0);
    p->n_retained--;
    pthread_mutex_unlock(&p->lock);
    proxy_out_rele(p, kept->out);
    hth_free(kept);
}

// call_send hands a request to the child; lock held. HTH_EBUSY: no room; HTH_ECANCELED: the child
// is about to end.
static hth_err call_send(hth_proxy *proxy, proxy_call *call)
{
    _Static_assert(HTH_REQUEST_FILES <= HTH_FD_MOST, "they go in one packet");
    const hth_request *r = call->r;
    uint32_t entry = (uint32_t)(call - proxy->calls);
    hth_child_entry *s = &proxy->link.control->entry[entry];
    hth_child_head head = {.kind = HTH_CHILD_CALL,
                           .entry = entry,
                           .far_at = hth_slab_offset(proxy->in, call->record),
                           .far_bytes = call->record->bytes};
    // before it was submitted, here, or in a process that died
    hth_child_ask ask = {.waited_ns = hth_now_ns() - r->submitted_ns,
                         .crashes = r->crashes,
                         .member = r->member,
                         .n_files = (uint32_t)r->n_files,
                         .own = r->own,
                         .admin = r->admin,
                         .at_once = r->at_once,
                         .known = r->tenant != NULL};
    snprintf(ask.tenant, sizeof ask.tenant, "%s", r->tenant != NULL ? r->tenant : "");
    HTH_TRY(proxy_region_send(proxy, call->record));
    s->r.started_ns = s->r.submitted_ns = 0;
    atomic_store(&s->released, false);
    hth_err err = r->n_files > 0 ? hth_child_link_pass(&proxy->link, &head, &ask, sizeof ask,
                                                       r->files, r->n_files)
                                 : hth_child_link_send(&proxy->link, &head, &ask, sizeof ask, 0);
    if (err == HTH_OK) {
        call_set(proxy, call, PROXY_SENT);
    } else if (err == HTH_ECORRUPT) { // it spoilt its ring
        proxy->lost = true;
        err = HTH_ECANCELED;
    }
    return err;
}

// call_changes: a request that waits changes what is loaded or pinned, and is not ours.
static bool call_changes(const proxy_call *call)
{
    return (call->state == PROXY_FILLING || call->state == PROXY_WAITING) && !call->again &&
           (call->r->command == HTH_COMMAND_LOAD || call->r->command == HTH_COMMAND_UNLOAD);
}

// call_order is the place of a new request among those that wait: the last, or, to load `again`
// what was loaded, just before the first that changes that. Lock held.
static uint64_t call_order(hth_proxy *proxy, bool again)
{
    uint64_t order = proxy->order += 2; // there is a place before each
    for (int i = 0; again && i < proxy->high; i++) {
        const proxy_call *c = &proxy->calls[i];
        order = call_changes(c) && c->order < order ? c->order - 1 : order;
    }
    return order;
}

// call_take finds a free entry. A request to load `again` is for the child that has just started.
static hth_err call_take(hth_proxy *proxy, hth_request *request, bool again, proxy_call **out)
{
    hth_err err = HTH_OK;
    pthread_mutex_lock(&proxy->lock);
    if (proxy->stopping) {
        err = hth_fail(HTH_ECANCELED, "Server exiting");
    } else if (proxy->phase != PROXY_UP && proxy->crashes >= PROXY_LOST && !again) {
        err = hth_fail(HTH_EDEVLOST,
                       "the engine process died %d times in a row; it is being restarted",
                       proxy->crashes);
    } else if (proxy->first_free < 0 && proxy->high == proxy->n_calls) {
        err = hth_fail(HTH_EBUSY, "Exceeds maximum queue size");
    } else {
        int entry = proxy->first_free >= 0 ? proxy->first_free : proxy->high++;
        proxy_call *c = &proxy->calls[entry];
        proxy->first_free = entry == proxy->first_free ? c->next : proxy->first_free;
        uint64_t order = call_order(proxy, again);
        *c = (proxy_call){
            .state = PROXY_FILLING, .r = request, .order = order, .again = again, .next = -1};
        c->own = proxy->polling && pthread_equal(proxy->poller, pthread_self());
        proxy->in_flight++;
        proxy->others += !c->own;
        if (!c->own) {
            proxy_stop_polling(proxy);
        }
        *out = c;
    }
    pthread_mutex_unlock(&proxy->lock);
    return err;
}

// call_submit sends a call that is packed, after all that wait already, or leaves it to the
// supervisor's thread while there is no child or no room. Under the lock.
static hth_err call_submit(hth_proxy *proxy, proxy_call *call)
{
    if (proxy->stopping) {
        return hth_fail(HTH_ECANCELED, "Server exiting");
    }
    bool up = proxy->phase == PROXY_UP, first = proxy->n_waiting == 0;
    hth_err err = up && first ? call_send(proxy, call) : HTH_EBUSY;
    if (err != HTH_EBUSY && err != HTH_ECANCELED) {
        return err;
    }
    call_set(proxy, call, PROXY_WAITING); // no room, or the child is about to end
    if (up && !first) {
        (void)proxy_send_waiting(proxy);
    }
    return HTH_OK;
}

static hth_err call_accept(hth_proxy *proxy, hth_request *request, bool again)
{
    proxy_call *c = NULL;
    request->submitted_ns = hth_now_ns() - request->waited_ns;
    HTH_TRY(call_take(proxy, request, again, &c));
    hth_err err = call_pack(proxy, c);
    pthread_mutex_lock(&proxy->lock);
    if (err == HTH_OK) {
        err = call_submit(proxy, c);
    }
    if (err != HTH_OK) {
        proxy_call_free(proxy, c);
    }
    pthread_mutex_unlock(&proxy->lock);
    return err;
}

hth_err hth_proxy_submit(hth_engine *engine, hth_request *request)
{
    return call_accept(hth_proxy_of(engine), request, false);
}

hth_err proxy_submit_again(hth_proxy *proxy, hth_request *request)
{
    return call_accept(proxy, request, true);
}

hth_err proxy_send_waiting(hth_proxy *proxy)
{
    hth_err err = HTH_OK;
    while (err == HTH_OK) {
        proxy_call *first = NULL;
        for (int i = 0; i < proxy->high; i++) {
            proxy_call *c = &proxy->calls[i];
            if (c->state == PROXY_WAITING && c->refused == HTH_OK &&
                (first == NULL || c->order < first->order)) {
                first = c;
            }
        }
        if (first == NULL) {
            break;
        }
        err = call_send(proxy, first); // no room: the next tick tries again
        if (err != HTH_EBUSY && err != HTH_ECANCELED) {
            first->refused = err;
            err = HTH_OK;
        }
    }
    return err;
}

// ---- answers

// call_end takes a request out of the table, as `err` with the calling thread's detail.
static void call_end(hth_proxy *proxy, proxy_call *call, hth_err err)
{
    hth_request *r = call->r;
    r->err = err;
    r->detail[0] = 0;
    if (err != HTH_OK) {
        snprintf(r->detail, sizeof r->detail, "%s", hth_err_detail());
    }
    r->finished_ns = hth_now_ns();
    pthread_mutex_lock(&proxy->lock);
    proxy_call_free(proxy, call);
    pthread_mutex_unlock(&proxy->lock);
    hth_request_tensor *outputs = r->outputs;
    r->done(r); // r may be gone now
    hth_free(outputs);
}

// answer_keep has outputs stay where the child put them until they are given up.
static hth_err answer_keep(hth_proxy *proxy, hth_request *request, proxy_call *call)
{
    proxy_retained *k = hth_alloc(sizeof *k);
    if (k == NULL) {
        return hth_no_memory("an answer");
    }
    pthread_mutex_lock(&proxy->lock);
    *k = (proxy_retained){{call_release}, proxy, proxy->out, (int)(call - proxy->calls)};
    proxy->out->refs++;
    call_set(proxy, call, PROXY_RETAINED);
    proxy->n_retained++;
    pthread_mutex_unlock(&proxy->lock);
    request->retained = &k->head;
    return HTH_OK;
}

// answer_may_stay tells whether outputs may stay in the child's slab: slow readers of answers leave
// enough entries to all others.
static bool answer_may_stay(hth_proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    bool may = proxy->n_retained < proxy->n_calls / 4;
    pthread_mutex_unlock(&proxy->lock);
    return may;
}

// answer_outputs has the outputs placed, and copies them there, unless that is where they are.
static hth_err answer_outputs(hth_proxy *proxy, proxy_call *call, const hth_ipc_record *record)
{
    hth_request *r = call->r;
    int n = (int)record->n_tensors;
    bool keep = false, may = r->keeps && answer_may_stay(proxy);
    r->outputs = hth_calloc((size_t)n + 1, sizeof *r->outputs);
    if (r->outputs == NULL) {
        return hth_no_memory("%d outputs", n);
    }
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        hth_request_tensor *t = &r->outputs[i];
        *t = hth_child_record_tensor(record, &record->tensor[i]);
        void *at = proxy_output_at(proxy, call, &record->tensor[i]);
        if (hth_tensor_bytes(t->t.dtype, &t->t.shape, t->t.layout, &bytes) != HTH_OK ||
            bytes != t->t.bytes || at == NULL || t->name == NULL) {
            proxy->lost = true;
            return hth_fail(HTH_ECORRUPT, "the engine process returned an invalid output");
        }
        t->t.data = NULL;
        t->offered = may && record->tensor[i].region == HTH_IPC_RECORD_SLAB ? at : NULL;
    }
    r->n_outputs = n;
    HTH_TRY(r->place(r, r->outputs, n));
    for (int i = 0; i < n; i++) {
        const hth_tensor *t = &r->outputs[i].t;
        const void *from = proxy_output_at(proxy, call, &record->tensor[i]);
        if (t->data == from) {
            keep = keep || r->outputs[i].offered != NULL;
        } else if (t->bytes > 0) {
            memmove(t->data, from, t->bytes); // a client's memory may be both
        }
        r->outputs[i].offered = NULL;
    }
    return keep ? answer_keep(proxy, r, call) : HTH_OK;
}

static hth_err answer_read(hth_proxy *proxy, proxy_call *call, const hth_ipc_record *record)
{
    hth_request *r = call->r;
    const char *detail = hth_ipc_record_text(record, HTH_IPC_RECORD_DETAIL);
    const char *json = hth_ipc_record_text(record, HTH_IPC_RECORD_JSON);
    r->version = record->version;
    r->batched = record->batched != 0;
    r->started_ns = record->started_ns;
    if (record->err != HTH_OK) {
        proxy->lost |= record->err == HTH_EDEVLOST;
        return hth_fail((hth_err)record->err, "%s", detail != NULL ? detail : "");
    }
    if (r->command == HTH_COMMAND_NONE) {
        return answer_outputs(proxy, call, record);
    }
    r->json = json != NULL ? hth_strdup(json) : NULL;
    return json != NULL && r->json == NULL ? hth_no_memory("an answer") : HTH_OK;
}

static void answer_take(hth_proxy *proxy, const hth_child_head *head, proxy_call *call,
                        const char *body, size_t bytes)
{
    hth_ipc_record *copy;
    const hth_ipc_record *a;
    hth_request *r = call->r;
    hth_err err = hth_child_link_answer(head, body, bytes, proxy->link.out, &copy, &a);
    if (err == HTH_OK) {
        err = answer_read(proxy, call, a);
    } else {
        proxy->lost |= err == HTH_ECORRUPT;
    }
    atomic_store(&proxy->link.control->entry[head->entry].released, r->retained == NULL);
    if (err == HTH_OK) {
        proxy_models_note(proxy, r);
    }
    call_end(proxy, call, err); // names of outputs lie in the record
    hth_free(copy);
}

void proxy_message(hth_proxy *proxy, const hth_child_head *head, const char *body, size_t bytes)
{
    proxy_call *c = head->entry < (uint32_t)proxy->n_calls ? &proxy->calls[head->entry] : NULL;
    pthread_mutex_lock(&proxy->lock);
    bool asked = c != NULL && c->state == PROXY_SENT; // only this thread changes that back
    pthread_mutex_unlock(&proxy->lock);
    if (head->kind == HTH_CHILD_DONE && asked) {
        answer_take(proxy, head, c, body, bytes);
    } else if (head->kind == HTH_CHILD_PROGRESS && asked) {
        if (c->r->progress != NULL) {
            c->r->progress(c->r, body, head->done, head->total);
        }
    } else if (head->kind == HTH_CHILD_EVENT) {
        size_t n = strlen(body) + 1;
        if (proxy->event != NULL && n < bytes) {
            proxy->event(proxy->event_ctx, body, body + n, head->done, head->total);
        }
    } else if (head->kind != HTH_CHILD_PROGRESS) {
        hth_log(ERROR, SERVER, "engine-nonsense", "kind=%u entry=%u", head->kind, head->entry);
        proxy->lost = true;
    }
}

// ---- what time brings

// call_find returns a call for which `wanted` says yes.
static proxy_call *call_find(hth_proxy *proxy,
                             bool (*wanted)(hth_proxy *proxy, const proxy_call *call))
{
    proxy_call *found = NULL;
    pthread_mutex_lock(&proxy->lock);
    for (int i = 0; i < proxy->high && found == NULL; i++) {
        found = wanted(proxy, &proxy->calls[i]) ? &proxy->calls[i] : NULL;
    }
    if (found != NULL) {
        call_set(proxy, found, PROXY_FILLING); // nobody else looks at it any more
    }
    pthread_mutex_unlock(&proxy->lock);
    return found;
}

static bool call_is_canceled(hth_proxy *proxy, const proxy_call *call)
{
    return call->state == PROXY_WAITING && *hth_request_canceled(call->r);
}

static bool call_is_refused(hth_proxy *proxy, const proxy_call *call)
{
    return call->state == PROXY_WAITING && call->refused != HTH_OK;
}

static bool call_is_expired(hth_proxy *proxy, const proxy_call *call)
{
    const hth_request *r = call->r;
    return call->state == PROXY_WAITING && r->command == HTH_COMMAND_NONE && r->timeout_us > 0 &&
           (hth_now_ns() - r->submitted_ns) / 1000u >= r->timeout_us;
}

void proxy_tick(hth_proxy *proxy)
{
    proxy_call *c;
    pthread_mutex_lock(&proxy->lock);
    for (int i = 0; proxy->phase == PROXY_UP && i < proxy->high; i++) {
        const proxy_call *call = &proxy->calls[i];
        if (call->state == PROXY_SENT && *hth_request_canceled(call->r)) {
            proxy->link.control->entry[i].r.canceled = 1;
        }
    }
    if (proxy->phase == PROXY_UP) {
        proxy_region_forget(proxy, false);
        (void)proxy_send_waiting(proxy);
    }
    pthread_mutex_unlock(&proxy->lock);
    while ((c = call_find(proxy, call_is_refused)) != NULL) {
        call_end(proxy, c, hth_fail(c->refused, "the engine process cannot be given this request"));
    }
    while ((c = call_find(proxy, call_is_canceled)) != NULL) {
        call_end(proxy, c, hth_fail(HTH_ECANCELED, "canceled while it was queued"));
    }
    while ((c = call_find(proxy, call_is_expired)) != NULL) {
        call_end(proxy, c, hth_fail(HTH_ETIMEDOUT, "Request timeout expired"));
    }
}

static bool call_is_lost(hth_proxy *proxy, const proxy_call *call)
{
    return call->state == PROXY_SENT ||
           (call->state == PROXY_WAITING && call->crashes >= CALL_MAX_CRASHES);
}

static bool call_is_open(hth_proxy *proxy, const proxy_call *call)
{
    return call->state == PROXY_SENT || call->state == PROXY_WAITING;
}

// call_has_begun looks at what a dead child left: while a request is queued its start is its
// submission.
static bool call_has_begun(const hth_request *request)
{
    return request->started_ns != request->submitted_ns && request->started_ns != 0;
}

// call_goes_on tells of a request that had begun whether the next child can go on with it: a
// training job has its checkpoint, or nothing that it left, and what the child knows of it.
static bool call_goes_on(const hth_request *request)
{
    return request->command == HTH_COMMAND_TRAIN;
}

void proxy_bury(hth_proxy *proxy, const char *sentence, bool all)
{
    int running = 0, waiting = 0;
    proxy_call *c;
    pthread_mutex_lock(&proxy->lock);
    for (int i = 0; i < proxy->high; i++) {
        c = &proxy->calls[i];
        if (c->state == PROXY_SENT && !call_has_begun(&proxy->link.control->entry[i].r)) {
            call_set(proxy, c, PROXY_WAITING);
            c->crashes++;
            c->r->started_ns = 0; // nothing was computed for it
        } else if (c->state == PROXY_SENT) {
            c->r->started_ns = proxy->link.control->entry[i].r.started_ns;
            c->r->crashes++;
            call_set(proxy, c, call_goes_on(c->r) ? PROXY_WAITING : PROXY_SENT);
        }
        running += c->state == PROXY_SENT;
        waiting += c->state == PROXY_WAITING;
    }
    pthread_mutex_unlock(&proxy->lock);
    if (running + waiting > 0) {
        hth_log(WARN, SERVER, "engine-requests", "failed=%d waiting=%d", running, waiting);
    }
    while ((c = call_find(proxy, all ? call_is_open : call_is_lost)) != NULL) {
        if (c->crashes >= CALL_MAX_CRASHES) {
            call_end(proxy, c,
                     hth_fail(HTH_EDEVLOST,
                              "the engine process died %d times while this request was in its "
                              "queue: it is not retried",
                              c->crashes));
        } else {
            call_end(proxy, c, hth_fail(HTH_EDEVLOST, "%s", sentence));
        }
    }
}
