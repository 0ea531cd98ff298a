// SPDX-License-Identifier: Apache-2.0
// Requests in the engine's process: from a message to the engine, and back.
//
// Outputs get a block of the slab `out` when the engine asks for their place, but for those that a
// client wants in memory of its own. It stays until hearthd says that it needs it no more
// (`released`), or takes the entry for another request: no message is spent on that. A request's
// record and inputs are used where they lie, which stays until it is answered.
#include "engine/process/child_impl.h"

#include "base/spin.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CALL_PROGRESS_NS 10000000u // from one message about a request's progress to the next
// A request with a tensor of so many bytes has others sleep where they would spin.
#define CALL_LARGE_BYTES (64u << 10)

static hth_child_entry *call_entry(child_call *call)
{
    return &call->c->link.control->entry[call - call->c->calls];
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
static const hth_ipc_record_tensor *call_known(const child_call *call,
                                               const hth_request_tensor *out, void **data)
{
    const hth_ipc_record *q = call->record;
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

static hth_err call_place(hth_request *request, hth_request_tensor *out, int n)
{
    child_call *call = request->ctx;
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

static void call_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    child_call *call = request->ctx;
    uint64_t now = hth_real_ns();
    if (now - call->reported_ns >= CALL_PROGRESS_NS || done == total) {
        hth_child_head head = {.kind = HTH_CHILD_PROGRESS,
                               .entry = (uint32_t)(call - call->c->calls),
                               .done = done,
                               .total = total};
        call->reported_ns = now;
        (void)hth_child_link_text(&call->c->link, &head, what, 0); // the next one says more
    }
}

// Records are made on the heap, large ones in the slab.
typedef struct answer_memory {
    child *c;
    void *near, *far;
} answer_memory;

static void *answer_take(answer_memory *memory, size_t bytes)
{
    if (bytes > HTH_CHILD_NEAR_BYTES) {
        return memory->far = hth_slab_alloc(memory->c->link.out, bytes);
    }
    return memory->near = hth_alloc(bytes);
}

static hth_err answer_record(const hth_request *request, answer_memory *memory,
                             hth_ipc_record **out)
{
    bool good = request->err == HTH_OK;
    const char *text[HTH_IPC_RECORD_TEXTS] = {NULL};
    if (good) {
        text[HTH_IPC_RECORD_JSON] = request->json;
    } else {
        text[HTH_IPC_RECORD_DETAIL] = request->detail;
    }
    int n = good && request->command == HTH_COMMAND_NONE ? request->n_outputs : 0;
    size_t names = 0;
    for (int i = 0; i < n; i++) {
        names += strlen(request->outputs[i].name) + 1;
    }
    size_t bytes = hth_ipc_record_room(text, (size_t)n, names);
    hth_ipc_record *a = *out = bytes > 0 ? answer_take(memory, bytes) : NULL;
    if (a == NULL) {
        return HTH_ENOMEM;
    }
    hth_ipc_record_begin(a, text, (size_t)n);
    a->err = (uint32_t)request->err;
    a->version = request->version;
    a->batched = request->batched;
    a->started_ns = request->started_ns;
    for (int i = 0; i < n; i++) {
        const hth_tensor *t = &request->outputs[i].t;
        hth_ipc_record_tensor *w = hth_ipc_record_add(
            a, request->outputs[i].name, t->dtype, (size_t)t->shape.rank, t->shape.dim, t->bytes);
        void *at;
        if (hth_slab_holds(memory->c->link.out, t->data, t->bytes)) {
            w->region = HTH_IPC_RECORD_SLAB;
            w->at = hth_slab_offset(memory->c->link.out, t->data);
        } else {
            const hth_ipc_record_tensor *k = call_known(request->ctx, &request->outputs[i], &at);
            w->region = k->region;
            w->at = k->at;
        }
    }
    return hth_ipc_record_end(a);
}

static void call_answer(hth_request *request)
{
    child_call *call = request->ctx;
    child *c = call->c;
    answer_memory memory = {.c = c};
    hth_ipc_record none = {.bytes = 0}, *a; // none: refused by who reads it
    hth_child_head head = {.kind = HTH_CHILD_DONE, .entry = (uint32_t)(call - c->calls)};
    if (answer_record(request, &memory, &a) != HTH_OK) {
        hth_free(request->json);
        request->json = NULL;
        request->err = HTH_ENOMEM;
        snprintf(request->detail, sizeof request->detail, "out of shared memory for an answer");
        if (answer_record(request, &memory, &a) != HTH_OK) {
            a = &none;
        }
    }
    if (memory.far != NULL) {
        head.far_at = hth_slab_offset(c->link.out, a);
        head.far_bytes = a->bytes;
    }
    for (int i = 0; i < request->n_files; i++) {
        close(request->files[i]);
    }
    request->n_files = 0;
    hth_free(request->json);
    hth_free(call->inputs);
    pthread_mutex_lock(&c->lock);
    call->record = NULL;
    call->inputs = NULL;
    call->far = memory.far;
    call->answered = true; // from here on the blocks may go as soon as hearthd says so
    pthread_mutex_unlock(&c->lock);
    size_t bytes = 0;
    if (memory.far == NULL) {
        bytes = a == &none ? sizeof none : a->bytes;
    }
    c->link.control->spin_suspended_ns = hth_spin_suspended_until();
    (void)hth_child_link_send(&c->link, &head, a, bytes, HTH_FOREVER); // fails: nobody is there
    hth_free(memory.near);
}

// ---- requests

static hth_err call_input(child *c, const hth_ipc_record_tensor *tensor, hth_request_tensor *t)
{
    static _Alignas(64) uint8_t nothing[64];
    if (tensor->bytes == 0) { // of no samples, perhaps
        t->t.data = nothing;
        return HTH_OK;
    }
    t->t.data = tensor->region == HTH_IPC_RECORD_SLAB
                    ? hth_slab_at(c->link.in, tensor->at, tensor->bytes)
                    : child_region_at(c, tensor, false);
    return t->t.data != NULL
               ? HTH_OK
               : hth_fail(HTH_EIO, "an input's shared memory is not there in the engine process");
}

// call_suspend_spin stops spinning while large tensors come through sockets: all processors
// copy then. Who yields one gets it back when the others have had their slices, milliseconds later;
// who sleeps is woken. hearthd is told with the next answer.
static void call_suspend_spin(const hth_ipc_record *record, const hth_request *request)
{
    for (int i = 0; i < request->n_inputs; i++) {
        if (record->tensor[i].region == HTH_IPC_RECORD_SLAB &&
            record->tensor[i].bytes >= CALL_LARGE_BYTES) {
            hth_spin_suspend(hth_real_after(HTH_CHILD_NO_SPIN_NS));
        }
    }
}

static hth_err call_files(child *c, const child_call *call, const hth_child_head *head,
                          hth_request *request)
{
    int n = (int)call->ask.n_files;
    HTH_TRY(n > 0 ? hth_child_link_passed(&c->link, head, request->files, n) : HTH_OK);
    request->n_files = n;
    return HTH_OK;
}

// call_inputs says where the request's tensors are: inputs, and places of outputs after them, where
// those are not in the slab.
static hth_err call_inputs(child *c, child_call *call, hth_request *request)
{
    const hth_ipc_record *q = call->record;
    uint32_t n = q->n_tensors - q->n_known;
    call->inputs = hth_calloc(q->n_tensors + 1u, sizeof *call->inputs);
    if (call->inputs == NULL) {
        return hth_no_memory("a request");
    }
    for (uint32_t i = 0; i < q->n_tensors; i++) {
        const hth_ipc_record_tensor *w = &q->tensor[i];
        call->inputs[i] = hth_child_record_tensor(q, w);
        if (i < n) {
            HTH_TRY(call_input(c, w, &call->inputs[i]));
        } else {
            call->inputs[i].t.data = child_region_at(c, w, true);
        }
    }
    request->inputs = call->inputs;
    request->n_inputs = (int)n;
    return HTH_OK;
}

static hth_err call_open(child *c, child_call *call, const hth_child_head *head,
                         hth_request *request)
{
    const hth_ipc_record *q = call->record;
    const hth_child_ask *ask = &call->ask;
    request->model = hth_ipc_record_text(q, HTH_IPC_RECORD_MODEL);
    request->command = hth_command_find(hth_ipc_record_text(q, HTH_IPC_RECORD_QUERY));
    request->arguments = hth_ipc_record_text(q, HTH_IPC_RECORD_ARGUMENTS);
    request->priority = q->priority;
    request->timeout_us = q->timeout_us;
    request->tenant = ask->known ? ask->tenant : NULL;
    request->own = ask->own;
    request->admin = ask->admin;
    request->waited_ns = ask->waited_ns;
    request->at_once = ask->at_once;
    request->crashes = ask->crashes;
    request->member = ask->member;
    if (request->model == NULL && request->command == HTH_COMMAND_NONE) {
        return hth_fail(HTH_EINVAL, "a request asks for nothing");
    }
    HTH_TRY(call_inputs(c, call, request));
    HTH_TRY(call_files(c, call, head, request));
    call_suspend_spin(q, request); // after the next line request and record may be gone
    return hth_engine_submit(c->engine, request);
}

// call_read takes what hearthd says of a request, and its record.
static hth_err call_read(child *c, child_call *call, const hth_child_head *head, const char *body,
                         size_t bytes)
{
    call->record = hth_slab_at(c->link.in, head->far_at, head->far_bytes);
    if (call->record == NULL || bytes != sizeof call->ask) {
        return hth_fail(HTH_ECORRUPT, "a request lies outside of what is shared");
    }
    memcpy(&call->ask, body, bytes);
    return hth_ipc_record_check(call->record, head->far_bytes);
}

void child_take(child *process, const hth_child_head *head, const char *body, size_t bytes)
{
    if (head->entry >= process->link.control->n_entries) {
        return;
    }
    child_call *call = &process->calls[head->entry];
    hth_request *r = &call_entry(call)->r;
    pthread_mutex_lock(&process->lock);
    child_release(call);
    pthread_mutex_unlock(&process->lock);
    *r = (hth_request){
        .place = call_place, .progress = call_progress, .done = call_answer, .ctx = call};
    call->reported_ns = 0;
    hth_err err = call_read(process, call, head, body, bytes);
    if (err == HTH_OK) {
        err = call_open(process, call, head, r);
    }
    if (err != HTH_OK) {
        r->err = err;
        snprintf(r->detail, sizeof r->detail, "%s", hth_err_detail());
        call_answer(r);
    }
}
