// SPDX-License-Identifier: Apache-2.0
// Requests in the engine's process: from a message to the engine, and back.
//
// Outputs get a block of the slab `out` when the engine asks for their place, but for those that a
// client wants in memory of its own. It stays until hearthd says that it needs it no more
// (`released`), or takes the slot for another request: no message is spent on that. A request's
// record is copied, because the ring's memory is reused; inputs are used where they lie.
#include "engine/process/child_impl.h"

#include "base/spin.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CALL_PROGRESS_NS 10000000u // from one message about a request's progress to the next
// A request with a tensor of so many bytes has others sleep where they would look, for so long.
#define CALL_LARGE_BYTES (64u << 10)
#define CALL_REST_NS     10000000u

static hth_child_slot *call_slot(child_call *call)
{
    return &call->c->link.board->slot[call - call->c->calls];
}

// ---- answers: the engine's thread

void child_release(child_call *call)
{
    hth_slab_free(call->c->link.out, call->data);
    hth_slab_free(call->c->link.out, call->far);
    call->data = call->far = NULL;
    call->answered = false;
}

// call_known is the place that a client wants an output at, NULL: none that it fits, or it may
// only get there when it is whole.
static const hth_child_tensor *call_known(const child_call *call, const hth_request_tensor *out,
                                          void **data)
{
    const hth_child_record *q = call->record;
    if (!hth_shared_in_place(&out->t)) {
        return NULL;
    }
    for (uint32_t i = q->n_tensors - q->n_known; i < q->n_tensors; i++) {
        const hth_request_tensor *k = &call->inputs[i];
        if (k->name != NULL && k->t.data != NULL && strcmp(k->name, out->name) == 0 &&
            k->t.bytes >= out->t.bytes) {
            *data = k->t.data;
            return &q->tensor[i];
        }
    }
    return NULL;
}

static hth_err call_place(hth_request *r, hth_request_tensor *out, int n)
{
    child_call *call = r->ctx;
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        if (call_known(call, &out[i], &out[i].t.data) == NULL) {
            out[i].t.data = NULL;
            bytes += (out[i].t.bytes + HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
        }
    }
    char *at = hth_slab_alloc(call->c->link.out, bytes);
    if (at == NULL) {
        return hth_fail(HTH_ENOMEM, "out of shared memory for outputs of %zu bytes", bytes);
    }
    pthread_mutex_lock(&call->c->lock);
    call->data = at;
    pthread_mutex_unlock(&call->c->lock);
    for (int i = 0; i < n; i++) {
        if (out[i].t.data == NULL) {
            out[i].t.data = at;
            at += (out[i].t.bytes + HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
        }
    }
    return HTH_OK;
}

static void call_progress(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    child_call *call = r->ctx;
    uint64_t now = hth_real_ns();
    if (now - call->told_ns >= CALL_PROGRESS_NS || done == total) {
        hth_child_head head = {.kind = HTH_CHILD_PROGRESS,
                               .slot = (uint32_t)(call - call->c->calls),
                               .done = done,
                               .total = total};
        call->told_ns = now;
        (void)hth_child_link_text(&call->c->link, &head, what, 0); // the next one says more
    }
}

// Records are made on the heap, large ones in the slab.
typedef struct answer_memory {
    child *c;
    void *near, *far;
} answer_memory;

static void *answer_take(void *ctx, size_t bytes)
{
    answer_memory *m = ctx;
    if (bytes > HTH_CHILD_NEAR_BYTES) {
        return m->far = hth_slab_alloc(m->c->link.out, bytes);
    }
    return m->near = hth_alloc(bytes);
}

static hth_err answer_record(const hth_request *r, answer_memory *m, hth_child_record **out)
{
    bool good = r->err == HTH_OK;
    const char *text[HTH_CHILD_TEXTS] = {
        [HTH_CHILD_DETAIL] = good ? NULL : r->detail, [HTH_CHILD_JSON] = good ? r->json : NULL};
    int n = good && r->query == NULL ? r->n_outputs : 0;
    HTH_TRY(hth_child_record_new(text, r->outputs, n, answer_take, m, out));
    hth_child_record *a = *out;
    a->err = r->err;
    a->version = r->version;
    a->batched = r->batched;
    a->started_ns = r->started_ns;
    for (int i = 0; i < n; i++) {
        const hth_request_tensor *t = &r->outputs[i];
        void *at;
        if (hth_slab_holds(m->c->link.out, t->t.data, t->t.bytes)) {
            a->tensor[i].at = hth_slab_offset(m->c->link.out, t->t.data);
        } else {
            const hth_child_tensor *k = call_known(r->ctx, t, &at);
            a->tensor[i].region = k->region;
            a->tensor[i].at = k->at;
        }
    }
    return HTH_OK;
}

static void call_answer(hth_request *r)
{
    child_call *call = r->ctx;
    child *c = call->c;
    answer_memory memory = {.c = c};
    hth_child_record none = {.bytes = 0}, *a; // none: refused by who reads it
    hth_child_head head = {.kind = HTH_CHILD_DONE, .slot = (uint32_t)(call - c->calls)};
    if (answer_record(r, &memory, &a) != HTH_OK) {
        hth_free(r->json);
        r->json = NULL;
        r->err = HTH_ENOMEM;
        snprintf(r->detail, sizeof r->detail, "out of shared memory for an answer");
        if (answer_record(r, &memory, &a) != HTH_OK) {
            a = &none;
        }
    }
    if (memory.far != NULL) {
        head.far_at = hth_slab_offset(c->link.out, a);
        head.far_bytes = a->bytes;
    }
    for (int i = 0; i < r->n_files; i++) {
        close(r->files[i]);
    }
    r->n_files = 0;
    hth_free(r->json);
    hth_free(call->record);
    hth_free(call->inputs);
    pthread_mutex_lock(&c->lock);
    call->record = NULL;
    call->inputs = NULL;
    call->far = memory.far;
    call->answered = true; // from here on the blocks may go as soon as hearthd says so
    pthread_mutex_unlock(&c->lock);
    size_t bytes = memory.far != NULL ? 0 : a->bytes;
    c->link.board->rest_ns = hth_spin_rests();
    (void)hth_child_link_send(&c->link, &head, a, bytes, HTH_FOREVER); // fails: nobody is there
    hth_free(memory.near);
}

// ---- requests

static hth_err call_input(child *c, const hth_child_tensor *w, hth_request_tensor *t)
{
    static _Alignas(64) uint8_t nothing[64];
    if (w->bytes == 0) { // of no samples, perhaps
        t->t.data = nothing;
        return HTH_OK;
    }
    t->t.data =
        w->region == 0 ? hth_slab_at(c->link.in, w->at, w->bytes) : child_region_at(c, w, false);
    return t->t.data != NULL
               ? HTH_OK
               : hth_fail(HTH_EIO, "an input's shared memory is not there in the engine's process");
}

static void call_output(child *c, const hth_child_tensor *w, hth_request_tensor *t)
{
    t->t.data = w->region != 0 ? child_region_at(c, w, true) : NULL; // NULL: in the slab
}

// call_rest has nobody look for what comes while large tensors come through sockets: all processors
// copy then. Who yields one gets it back when the others have had their slices, milliseconds later;
// who sleeps is woken. hearthd is told with the next answer.
static void call_rest(const hth_child_record *q, const hth_request *r)
{
    for (int i = 0; i < r->n_inputs; i++) {
        if (q->tensor[i].region == 0 && q->tensor[i].bytes >= CALL_LARGE_BYTES) {
            hth_spin_rest(hth_real_after(CALL_REST_NS));
        }
    }
}

static hth_err call_files(child *c, const child_call *call, const hth_child_record *q,
                          hth_request *r)
{
    uint32_t slot = (uint32_t)(call - c->calls);
    for (uint32_t i = 0; i < q->n_files; i++) {
        HTH_TRY(hth_child_fd_receive(c->link.socket, hth_child_file(slot, (int)i), &r->files[i]));
        r->n_files++;
    }
    return HTH_OK;
}

static hth_err call_open(child *c, child_call *call, const hth_child_record *q, hth_request *r)
{
    r->model = hth_child_record_text(q, HTH_CHILD_MODEL);
    r->query = hth_child_record_text(q, HTH_CHILD_QUERY);
    r->arguments = hth_child_record_text(q, HTH_CHILD_ARGUMENTS);
    r->tenant = hth_child_record_text(q, HTH_CHILD_TENANT);
    r->own = q->own != 0;
    r->admin = q->admin != 0;
    r->priority = q->priority;
    r->timeout_us = q->timeout_us;
    r->waited_ns = q->waited_ns;
    r->at_once = q->at_once != 0;
    r->deaths = q->deaths;
    if (r->model == NULL && r->query == NULL) {
        return hth_fail(HTH_EINVAL, "a request asks for nothing");
    }
    call->inputs = hth_calloc(q->n_tensors + 1u, sizeof *call->inputs);
    if (call->inputs == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    uint32_t n = q->n_tensors - q->n_known;
    for (uint32_t i = 0; i < q->n_tensors; i++) {
        call->inputs[i] = hth_child_record_tensor(q, (int)i);
        if (i < n) {
            HTH_TRY(call_input(c, &q->tensor[i], &call->inputs[i]));
        } else {
            call_output(c, &q->tensor[i], &call->inputs[i]);
        }
    }
    HTH_TRY(call_files(c, call, q, r));
    r->inputs = call->inputs;
    r->n_inputs = (int)n;
    call_rest(q, r); // behind the next line request and record may be gone
    return hth_engine_submit(c->engine, r);
}

void child_take(child *c, const hth_child_head *head, const char *body, size_t bytes)
{
    const hth_child_record *q;
    if (head->slot >= c->link.board->n_slots) {
        return;
    }
    child_call *call = &c->calls[head->slot];
    hth_request *r = &call_slot(call)->r;
    pthread_mutex_lock(&c->lock);
    child_release(call);
    pthread_mutex_unlock(&c->lock);
    *r = (hth_request){
        .place = call_place, .progress = call_progress, .done = call_answer, .ctx = call};
    call->told_ns = 0;
    hth_err err = hth_child_link_record(head, body, bytes, c->link.in, &call->record, &q);
    if (err == HTH_OK && call->record == NULL) {
        call->record = hth_memdup(q, bytes);
        q = call->record;
        err = q != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    if (err == HTH_OK) {
        err = call_open(c, call, q, r);
    }
    if (err != HTH_OK) {
        r->err = err;
        snprintf(r->detail, sizeof r->detail, "%s", hth_err_detail());
        call_answer(r);
    }
}
