// SPDX-License-Identifier: Apache-2.0
// Inputs are used where they lie, in the request or in the client's shared memory. What lies in
// shared memory and could steer addresses or shapes (integers, small tensors) is copied first: the
// client may write there at any time.
#include "server/rpc/rpc_tensors.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "client/dtype.h"
#include "client/wire.h"

#include <inttypes.h>
#include <string.h>

struct hth_rpc_tensors_held {
    hth_region *region;
    void *copy;
};

// tensors_copied: the input lies in shared memory, and is to be copied.
static bool tensors_copied(const hth_rpc_tensors_inputs *in, int i)
{
    return in->held[i].region != NULL && !hth_shared_in_place(&in->list[i].t);
}

// tensors_charge counts copies before there are any, for the connection.
static hth_err tensors_charge(hth_rpc_tensors_inputs *in, hth_conn *conn, uint64_t bytes)
{
    HTH_TRY(bytes > 0 ? hth_conn_charge(conn, bytes) : HTH_OK);
    in->conn = conn;
    in->charged += bytes;
    return HTH_OK;
}

// tensors_charge_inputs counts those of inputs: little of a request is never refused, so it is all
// of them at once.
static hth_err tensors_charge_inputs(hth_rpc_tensors_inputs *in, hth_conn *conn)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES), bytes = 0;
    for (int i = 0; i < in->n; i++) {
        uint64_t more = tensors_copied(in, i) ? in->list[i].t.bytes : 0;
        bytes = more > UINT64_MAX - bytes ? UINT64_MAX : bytes + more;
    }
    if (bytes > most) {
        return hth_fail(HTH_ETOOBIG,
                        "inputs of %" PRIu64 " bytes in shared memory that have to be copied; "
                        "limits.message_bytes is %" PRIu64,
                        bytes, most);
    }
    return tensors_charge(in, conn, bytes);
}

static hth_err tensors_copy(hth_rpc_tensors_inputs *in, hth_conn *conn)
{
    HTH_TRY(tensors_charge_inputs(in, conn));
    for (int i = 0; i < in->n; i++) {
        hth_tensor *t = &in->list[i].t;
        if (!tensors_copied(in, i)) {
            continue;
        }
        void *copy = in->held[i].copy = hth_alloc_aligned(t->bytes, 64);
        if (copy == NULL) {
            return hth_no_memory("an input of %zu bytes", t->bytes);
        }
        t->data = memcpy(copy, t->data, t->bytes);
    }
    return HTH_OK;
}

static hth_err tensors_begin(hth_rpc_tensors_inputs *in, size_t n)
{
    *in = (hth_rpc_tensors_inputs){.list = hth_calloc(n, sizeof *in->list),
                                   .held = hth_calloc(n, sizeof *in->held)};
    return in->list != NULL && in->held != NULL ? HTH_OK : hth_no_memory("a request");
}

// tensors_add describes the next input; where it does not lie in a region it is `t->at` bytes after
// `base`.
static hth_err tensors_add(hth_rpc_tensors_inputs *in, hth_conn *conn,
                           const hth_ipc_record_tensor *tensor, const char *name,
                           const uint8_t *base)
{
    hth_request_tensor *one = &in->list[in->n];
    const void *data = base + tensor->at;
    in->n++;
    if (tensor->region != HTH_IPC_RECORD_HERE) {
        HTH_TRY(hth_conn_range(conn, tensor->region, tensor->at, tensor->bytes, &data,
                               &in->held[in->n - 1].region));
    }
    one->name = name;
    one->t = (hth_tensor){.dtype = (hth_dtype)tensor->dtype,
                          .layout = HTH_LAYOUT_PLAIN,
                          .shape = {.rank = (int)tensor->rank},
                          .data = (void *)data,
                          .bytes = tensor->bytes};
    memcpy(one->t.shape.dim, tensor->dim, sizeof tensor->dim);
    return HTH_OK;
}

hth_err hth_rpc_tensors_inputs_init(hth_rpc_tensors_inputs *in, hth_conn *conn,
                                    const Hearth__Infer *infer, const uint8_t *data,
                                    uint64_t data_bytes)
{
    HTH_TRY(tensors_begin(in, infer->n_inputs));
    HTH_TRY(tensors_charge(in, conn, hth_wire_is_aligned(data, data_bytes) ? 0 : data_bytes));
    data = hth_wire_aligned(data, data_bytes, &in->copy);
    if (data == NULL) {
        return hth_no_memory("a request");
    }
    for (size_t i = 0; i < infer->n_inputs; i++) {
        const Hearth__Tensor *t = infer->inputs[i];
        hth_ipc_record_tensor one = {.at = t->offset,
                                     .bytes = t->bytes,
                                     .region = t->region,
                                     .dtype = t->dtype,
                                     .rank = (uint32_t)t->n_shape};
        if (t->n_shape > 0) { // a scalar's is NULL
            memcpy(one.dim, t->shape, t->n_shape * sizeof t->shape[0]);
        }
        HTH_TRY(tensors_add(in, conn, &one, t->name[0] != 0 ? t->name : NULL, data));
    }
    return tensors_copy(in, conn);
}

hth_err hth_rpc_tensors_inputs_record(hth_rpc_tensors_inputs *in, hth_conn *conn,
                                      const hth_ipc_record *record)
{
    HTH_TRY(tensors_begin(in, record->n_tensors));
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        const hth_ipc_record_tensor *t = &record->tensor[i];
        HTH_TRY(tensors_add(in, conn, t, hth_ipc_record_name(record, t), (const uint8_t *)record));
    }
    return tensors_copy(in, conn);
}

void hth_rpc_tensors_inputs_fini(hth_rpc_tensors_inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        hth_region_rele(in->held[i].region);
        hth_free(in->held[i].copy);
    }
    if (in->charged > 0) {
        hth_conn_uncharge(in->conn, in->charged);
    }
    hth_free(in->list);
    hth_free(in->held);
    hth_free(in->copy);
    *in = (hth_rpc_tensors_inputs){.n = 0};
}
