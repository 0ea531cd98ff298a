// SPDX-License-Identifier: Apache-2.0
// server/rpc/rpc_tensors.h - what a request's frame (client/wire.h) has for the engine, and a
// reply's frame for the engine's outputs, whichever way frames travel.
#ifndef HTH_SERVER_RPC_RPC_TENSORS_H
#define HTH_SERVER_RPC_RPC_TENSORS_H

#include "client/wire.h"
#include "server/rpc/conn.h"
#include "engine/engine.h"

typedef struct hth_rpc_tensors_held
    hth_rpc_tensors_held; // what an input holds until it is given back

// The inputs of a request, where they lie: in the frame, in a client's shared memory, or in copies.
typedef struct hth_rpc_tensors_inputs {
    hth_request_tensor *list; // names are borrowed of the header
    hth_rpc_tensors_held *held;
    int n;
    void *copy;       // of the frame's data section, when it was not aligned
    uint64_t charged; // bytes of the copies, in the account (account.h)
} hth_rpc_tensors_inputs;

// hth_rpc_tensors_inputs_init describes the tensors of `q`, whose frame has its data section at
// `data`; both and `c` must outlive *in. What lies in shared memory and could steer addresses or
// shapes is copied. Ended by hth_rpc_tensors_inputs_fini, after an error too. HTH_ETOOBIG,
// HTH_EBUSY: the copies would have too many bytes, by themselves or with what all clients have.
hth_err hth_rpc_tensors_inputs_init(hth_rpc_tensors_inputs *in, hth_conn *c, const Hearth__Infer *q,
                                    const uint8_t *data, uint64_t data_bytes);
void hth_rpc_tensors_inputs_fini(hth_rpc_tensors_inputs *in);
// hth_rpc_tensors_request fills in what `q` asks of the engine, with these inputs.
void hth_rpc_tensors_request(const Hearth__Infer *q, const hth_rpc_tensors_inputs *in,
                             hth_request *r);

// hth_rpc_tensors_outputs makes the header of the reply to `call` with the n outputs of a model's
// `version`, has `make` make a
// frame of it (whose data section is *data), and sets where the outputs' bytes go.
hth_err hth_rpc_tensors_outputs(uint64_t call, int version, hth_request_tensor *out, int n,
                                hth_err (*make)(void *ctx, const ProtobufCMessage *header,
                                                Hearth__Tensor *const *list, size_t n,
                                                uint8_t **data),
                                void *ctx);

#endif
