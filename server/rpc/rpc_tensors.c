// SPDX-License-Identifier: Apache-2.0
// Inputs are used where they lie, in the frame or in the client's shared memory. What lies in
// shared memory and could steer addresses or shapes (integers, small tensors) is copied first: the
// client may write there at any time. Outputs are written by the engine into the reply's own frame.
#include "server/rpc/rpc_tensors.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "client/dtype.h"
#include "client/msg.h"
#include "server/net/account.h"

#include <inttypes.h>
#include <string.h>

struct hth_rpc_tensors_held {
    hth_region *region;
    void *copy;
};

// frame_charge counts a copy of `bytes` before it is made.
static hth_err frame_charge(hth_rpc_tensors_inputs *in, uint64_t bytes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    if (bytes > most || in->charged > most - bytes) {
        return hth_fail(HTH_ETOOBIG,
                        "inputs of %" PRIu64 " bytes in shared memory that have to be copied; "
                        "limits.message_bytes is %" PRIu64,
                        in->charged + bytes, most);
    }
    if (!hth_account_take(bytes)) {
        return hth_fail(HTH_EBUSY, "the server holds too much for its clients: try again");
    }
    in->charged += bytes;
    return HTH_OK;
}

static hth_err frame_shared(hth_conn *c, const Hearth__Tensor *t, hth_rpc_tensors_inputs *in,
                            hth_rpc_tensors_held *held, const void **data)
{
    HTH_TRY(hth_conn_range(c, t->region, t->offset, t->bytes, data, &held->region));
    if (hth_shared_in_place(&(hth_tensor){.dtype = (hth_dtype)t->dtype, .bytes = t->bytes})) {
        return HTH_OK;
    }
    HTH_TRY(frame_charge(in, t->bytes));
    held->copy = hth_alloc_aligned(t->bytes, 64);
    if (held->copy == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an input of %llu bytes",
                        (unsigned long long)t->bytes);
    }
    *data = memcpy(held->copy, *data, t->bytes);
    return HTH_OK;
}

static hth_err frame_input(hth_conn *c, const Hearth__Tensor *t, const uint8_t *section,
                           hth_rpc_tensors_inputs *all, int i)
{
    const void *data;
    hth_request_tensor *in = &all->list[i];
    if (t->region != 0) {
        HTH_TRY(frame_shared(c, t, all, &all->held[i], &data));
    } else {
        data = section + t->offset;
    }
    in->name = t->name[0] != 0 ? t->name : NULL;
    in->t = (hth_tensor){.dtype = (hth_dtype)t->dtype,
                         .layout = HTH_LAYOUT_PLAIN,
                         .shape = {.rank = (int)t->n_shape},
                         .data = (void *)data,
                         .bytes = t->bytes};
    if (t->n_shape > 0) { // a scalar's is NULL
        memcpy(in->t.shape.dim, t->shape, t->n_shape * sizeof t->shape[0]);
    }
    return HTH_OK;
}

hth_err hth_rpc_tensors_inputs_init(hth_rpc_tensors_inputs *in, hth_conn *c, const Hearth__Infer *q,
                                    const uint8_t *data, uint64_t data_bytes)
{
    *in = (hth_rpc_tensors_inputs){.n = 0};
    data = hth_msg_aligned(data, data_bytes, &in->copy);
    in->list = hth_calloc(q->n_inputs, sizeof *in->list);
    in->held = hth_calloc(q->n_inputs, sizeof *in->held);
    if (data == NULL || in->list == NULL || in->held == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    in->n = (int)q->n_inputs;
    for (int i = 0; i < in->n; i++) {
        HTH_TRY(frame_input(c, q->inputs[i], data, in, i));
    }
    return HTH_OK;
}

void hth_rpc_tensors_inputs_fini(hth_rpc_tensors_inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        hth_region_rele(in->held[i].region);
        hth_free(in->held[i].copy);
    }
    if (in->charged > 0) {
        hth_account_give(in->charged);
    }
    hth_free(in->list);
    hth_free(in->held);
    hth_free(in->copy);
    *in = (hth_rpc_tensors_inputs){.n = 0};
}

void hth_rpc_tensors_request(const Hearth__Infer *q, const hth_rpc_tensors_inputs *in,
                             hth_request *r)
{
    r->model = q->model;
    r->inputs = in->list;
    r->n_inputs = in->n;
    r->priority = q->priority;
    r->timeout_us = q->timeout_us;
}

hth_err hth_rpc_tensors_outputs(uint64_t call, int version, hth_request_tensor *out, int n,
                                hth_err (*make)(void *ctx, const ProtobufCMessage *header,
                                                Hearth__Tensor *const *list, size_t n,
                                                uint8_t **data),
                                void *ctx)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Outputs body = HEARTH__OUTPUTS__INIT;
    uint8_t *data;
    Hearth__Tensor *t = hth_alloc((size_t)n * (sizeof *t + sizeof(Hearth__Tensor *)));
    if (t == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a reply");
    }
    body.outputs = (Hearth__Tensor **)(t + n);
    body.n_outputs = (size_t)n;
    body.version = version;
    for (int i = 0; i < n; i++) {
        hearth__tensor__init(&t[i]);
        t[i].name = out[i].name != NULL ? (char *)out[i].name : t[i].name;
        t[i].dtype = (uint32_t)out[i].t.dtype;
        t[i].n_shape = (size_t)out[i].t.shape.rank;
        t[i].shape = out[i].t.shape.dim;
        t[i].bytes = out[i].t.bytes;
        body.outputs[i] = &t[i];
    }
    r.call = call;
    r.body_case = HEARTH__REPLY__BODY_OUTPUTS;
    r.outputs = &body;
    hth_err err = make(ctx, &r.base, body.outputs, body.n_outputs, &data);
    for (int i = 0; i < n && err == HTH_OK; i++) {
        out[i].t.data = data + t[i].offset;
    }
    hth_free(t);
    return err;
}
