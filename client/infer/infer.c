// SPDX-License-Identifier: Apache-2.0
// hearth_infer: its inputs described, the request sent through the ring or the socket, and its
// outputs handed out in place: the array that the caller gets has the reply in front of it. To an
// engine in this process nothing is sent (client/embed.h).
#include "client/infer/infer.h"

#include "base/alloc.h"
#include "client/infer/buffer.h"
#include "client/dtype.h"
#include "client/ring_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct infer_outputs {
    hth_reply reply;
    void *copy; // of the data section, when it was not aligned
    int version, n;
    atomic_int holds; // but that of the array, until hearth_tensors_free
    char model[208];  // its name
    hearth_tensor t[];
} infer_outputs;

static infer_outputs *infer_outputs_of(const hearth_tensor *outputs)
{
    return (infer_outputs *)((uintptr_t)outputs - offsetof(infer_outputs, t));
}

hth_err hth_infer_check(const hearth_tensor *input)
{
    uint64_t bytes;
    hth_err err = hth_dtype_bytes_of((int)input->dtype, input->rank, input->shape, &bytes);
    if (err == HTH_OK && (bytes != input->bytes || (bytes > 0 && input->data == NULL))) {
        err =
            hth_fail(HTH_EINVAL, "%zu bytes at %s, but its shape and type make %llu", input->bytes,
                     input->data == NULL ? "NULL" : "data", (unsigned long long)bytes);
    }
    if (err != HTH_OK) {
        return hth_err_prefix(err, "input '%s'", input->name != NULL ? input->name : "");
    }
    return HTH_OK;
}

static hth_err infer_describe(const hearth_tensor *in, Hearth__Tensor *tensor)
{
    HTH_TRY(hth_infer_check(in));
    hearth__tensor__init(tensor);
    tensor->name = in->name != NULL ? (char *)in->name : tensor->name;
    tensor->dtype = (uint32_t)in->dtype;
    tensor->n_shape = (size_t)in->rank;
    tensor->shape = (int64_t *)in->shape;
    tensor->bytes = in->bytes;
    return HTH_OK;
}

// infer_outputs_new makes an array for n outputs, which keeps the reply once it is filled.
static infer_outputs *infer_outputs_new(size_t n)
{
    infer_outputs *o = hth_calloc(1, sizeof *o + n * sizeof o->t[0]);
    if (o == NULL) {
        (void)hth_fail(HTH_ENOMEM, "out of memory for %zu outputs", n);
    } else {
        o->n = (int)n;
    }
    return o;
}

// infer_outputs_named keeps whose outputs they are: of "name:version" the name. "": not said.
static void infer_outputs_named(infer_outputs *outputs, const char *spec)
{
    snprintf(outputs->model, sizeof outputs->model, "%.*s", (int)strcspn(spec, ":"), spec);
}

static void infer_output(const char *name, uint32_t dtype, size_t rank, const int64_t *shape,
                         const void *data, uint64_t bytes, hearth_tensor *out)
{
    *out = (hearth_tensor){.name = name,
                           .dtype = (hearth_dtype)dtype,
                           .rank = (int)rank,
                           .data = (void *)data,
                           .bytes = bytes};
    if (rank > 0) { // a scalar's is NULL
        memcpy(out->shape, shape, rank * sizeof shape[0]);
    }
}

// infer_record_outputs makes outputs of a record, infer_frame_outputs of a frame: NULL, and why.
static infer_outputs *infer_record_outputs(const hth_ipc_record *record)
{
    infer_outputs *o = infer_outputs_new(record->n_tensors);
    for (uint32_t i = 0; o != NULL && i < record->n_tensors; i++) {
        const hth_ipc_record_tensor *t = &record->tensor[i];
        const char *name = hth_ipc_record_name(record, t);
        infer_output(name != NULL ? name : "", t->dtype, t->rank, t->dim,
                     (const uint8_t *)record + t->at, t->bytes, &o->t[i]);
    }
    if (o != NULL) {
        const char *served = hth_ipc_record_text(record, HTH_IPC_RECORD_SERVED);
        o->version = record->version;
        infer_outputs_named(o, served != NULL ? served : "");
    }
    return o;
}

static infer_outputs *infer_frame_outputs(const hth_reply *reply)
{
    const Hearth__Outputs *all = reply->head->outputs;
    infer_outputs *o = infer_outputs_new(all->n_outputs);
    const uint8_t *data =
        o != NULL ? hth_wire_aligned(reply->data, reply->data_bytes, &o->copy) : NULL;
    if (data == NULL && reply->data_bytes > 0) {
        hth_free(o);
        (void)hth_fail(HTH_ENOMEM, "out of memory for %zu outputs", all->n_outputs);
        return NULL;
    }
    for (size_t i = 0; o != NULL && i < all->n_outputs; i++) {
        const Hearth__Tensor *t = all->outputs[i];
        infer_output(t->name, t->dtype, t->n_shape, t->shape, data + t->offset, t->bytes, &o->t[i]);
    }
    if (o != NULL) {
        o->version = all->version;
        infer_outputs_named(o, all->model);
    }
    return o;
}

// infer_outputs_take hands the reply over to a fresh array; on error the caller keeps it. `model`:
// whose outputs they are, if the server does not say so.
static hth_err infer_outputs_take(hth_reply *reply, const char *model, hearth_tensor **out,
                                  int *n_out)
{
    if (reply->record == NULL && reply->head->body_case != HEARTH__REPLY__BODY_OUTPUTS) {
        return hth_fail(HTH_ECORRUPT, "the server's answer has no outputs");
    }
    bool framed = reply->record == NULL;
    infer_outputs *o = framed ? infer_frame_outputs(reply) : infer_record_outputs(reply->record);
    if (o == NULL) {
        return HTH_ENOMEM;
    }
    o->reply = *reply;
    *out = o->t;
    if (o->model[0] == 0) {
        infer_outputs_named(o, model);
    }
    *n_out = o->n;
    return HTH_OK;
}

// infer_try sends the request once; *shared tells whether inputs were passed through shared
// memory.
static hth_err infer_try(hearth *h, Hearth__Infer *body, Hearth__Tensor *tensor,
                         const hearth_tensor *inputs, hth_infer_watch *watch, bool *shared,
                         hth_reply *reply)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    bool may_share = *shared;
    *shared = false;
    for (size_t i = 0; i < body->n_inputs; i++) {
        body->inputs[i] = &tensor[i];
        HTH_TRY(infer_describe(&inputs[i], &tensor[i]));
        if (may_share && tensor[i].bytes > 0) {
            hth_buffer_find(h, inputs[i].data, inputs[i].bytes, &tensor[i].region,
                            &tensor[i].offset);
            *shared = *shared || tensor[i].region != 0;
        }
    }
    q.body_case = HEARTH__REQUEST__BODY_INFER;
    q.infer = body;
    q.call = hth_exchange_number(h);
    if (watch != NULL) {
        atomic_store(&watch->request, q.call);
        if (atomic_load(&watch->canceled)) {
            return hth_fail(HTH_ECANCELED, "canceled before it was sent");
        }
    }
    bool used = false;
    hth_err err = h->rings ? hth_ring_exchange(h, &q, inputs, reply, &used) : HTH_OK;
    const hth_watch stops = {.stop = watch != NULL ? &watch->canceled : NULL};
    return used ? err : hth_exchange(h, &q, inputs, &stops, reply);
}

// ---- within the process

hth_err hth_infer_embedded(hearth *handle, const hth_embed_infer *infer)
{
    for (int i = 0; i < infer->n_inputs; i++) {
        HTH_TRY(hth_infer_check(&infer->inputs[i]));
    }
    hth_exchange_hold(handle);
    hth_err err = hth_embed_infer_wait(handle->embedded, infer, handle->timeout_ms);
    hth_exchange_rele(handle);
    return err;
}

// The array, and after it names, which are copied, for a model may go, and data: one block.
hth_err hth_infer_place(void *ctx, const char *model, int version, hearth_tensor *out, int n)
{
    hth_infer_made *made = ctx;
    size_t names = 0, bytes = HTH_INFER_ALIGN;
    for (int i = 0; i < n; i++) { // of tensors that fit in an answer
        names += strlen(out[i].name) + 1;
        bytes += hth_infer_aligned(out[i].bytes);
    }
    infer_outputs *o = hth_alloc(sizeof *o + (size_t)n * sizeof o->t[0] + names + bytes);
    if (o == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for %d outputs", n);
    }
    memset(o, 0, sizeof *o);
    char *name = (char *)&o->t[n];
    uint8_t *data = (uint8_t *)hth_infer_aligned((uintptr_t)name + names);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(out[i].name) + 1;
        out[i].data = data;
        o->t[i] = out[i];
        o->t[i].name = memcpy(name, out[i].name, length);
        name += length;
        data += hth_infer_aligned(out[i].bytes);
    }
    o->version = version;
    o->n = n;
    infer_outputs_named(o, model);
    *made = (hth_infer_made){o->t, n};
    return HTH_OK;
}

static hth_err infer_here(hearth *h, hth_embed_infer *infer, hearth_tensor **out, int *n_out)
{
    hth_infer_made made = {.outputs = NULL};
    infer->place = hth_infer_place;
    infer->ctx = &made;
    hth_err err = hth_infer_embedded(h, infer);
    if (err != HTH_OK && made.outputs != NULL) {
        hearth_tensors_free(made.outputs, made.n);
    } else if (err == HTH_OK) {
        *out = made.outputs;
        *n_out = made.n;
    }
    return err;
}

// ---- calls

hth_err hth_infer_begin(const hearth *handle, const char *model, int n_inputs)
{
    HTH_TRY(hth_exchange_check(handle));
    if (model == NULL) {
        return hth_fail(HTH_EINVAL, "no model is named");
    }
    return n_inputs >= 0 && n_inputs <= (int)handle->limits.tensors
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "%d inputs in one request", n_inputs);
}

hth_err hth_infer_sent(hearth *handle, const char *model, const hearth_tensor *inputs, size_t n,
                       const hearth_infer_options *options, hth_infer_watch *watch,
                       hearth_tensor **outputs, int *n_outputs)
{
    Hearth__Infer body = HEARTH__INFER__INIT;
    hth_reply r;
    bool shared = handle->shared_memory;
    Hearth__Tensor *t = hth_alloc(n * (sizeof *t + sizeof(Hearth__Tensor *)));
    if (t == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    body.inputs = (Hearth__Tensor **)(t + n);
    body.n_inputs = n;
    body.model = (char *)model;
    body.priority = options->priority;
    body.timeout_us = options->timeout_us;
    hth_err err = infer_try(handle, &body, t, inputs, watch, &shared, &r);
    if (err == HTH_EIO &&
        shared) { // the connection changed between looking a buffer up and using it
        shared = false;
        err = infer_try(handle, &body, t, inputs, watch, &shared, &r);
    }
    if (err == HTH_OK && (err = infer_outputs_take(&r, model, outputs, n_outputs)) != HTH_OK) {
        hth_reply_fini(&r);
    }
    hth_free(t);
    return err;
}

hearth_status hearth_infer_with(hearth *h, const char *model, const hearth_tensor *inputs,
                                int n_inputs, const hearth_infer_options *options,
                                hearth_tensor **outputs, int *n_outputs)
{
    hearth_infer_options o = options != NULL ? *options : (hearth_infer_options){.priority = 0};
    *outputs = NULL;
    *n_outputs = 0;
    hth_err err = hth_infer_begin(h, model, n_inputs);
    if (err == HTH_OK && h->embedded != NULL) {
        hth_embed_infer here = {.model = model,
                                .token = h->token,
                                .inputs = inputs,
                                .n_inputs = n_inputs,
                                .priority = o.priority,
                                .timeout_us = o.timeout_us};
        err = infer_here(h, &here, outputs, n_outputs);
    } else if (err == HTH_OK) {
        err = hth_infer_sent(h, model, inputs, (size_t)n_inputs, &o, NULL, outputs, n_outputs);
    }
    return (hearth_status)err;
}

hearth_status hearth_infer(hearth *h, const char *model, const hearth_tensor *inputs, int n_inputs,
                           hearth_tensor **outputs, int *n_outputs)
{
    return hearth_infer_with(h, model, inputs, n_inputs, NULL, outputs, n_outputs);
}

int hearth_outputs_version(const hearth_tensor *outputs)
{
    return infer_outputs_of(outputs)->version;
}

const char *hearth_outputs_model(const hearth_tensor *outputs)
{
    return infer_outputs_of(outputs)->model;
}

int hth_outputs_count(const hearth_tensor *outputs)
{
    return infer_outputs_of(outputs)->n;
}

void hth_outputs_hold(const hearth_tensor *outputs)
{
    atomic_fetch_add(&infer_outputs_of(outputs)->holds, 1);
}

void hth_outputs_rele(const hearth_tensor *outputs)
{
    infer_outputs *o = infer_outputs_of(outputs);
    if (atomic_fetch_sub(&o->holds, 1) > 0) {
        return;
    }
    hth_reply_fini(&o->reply);
    hth_free(o->copy);
    hth_free(o);
}

void hearth_tensors_free(hearth_tensor *tensor, int n)
{
    if (tensor != NULL) {
        hth_outputs_rele(tensor);
    }
}
