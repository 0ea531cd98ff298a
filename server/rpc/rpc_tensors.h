// SPDX-License-Identifier: Apache-2.0
// server/rpc/rpc_tensors.h - the inputs that a request has for the engine: of a frame
// (client/wire.h), or of a record (base/ipc/ipc_record.h).
#ifndef HTH_SERVER_RPC_RPC_TENSORS_H
#define HTH_SERVER_RPC_RPC_TENSORS_H

#include "client/wire.h"
#include "server/rpc/conn.h"
#include "engine/engine.h"

typedef struct hth_rpc_tensors_held
    hth_rpc_tensors_held; // what an input holds until it is given back

// The inputs of a request, where they lie: in it, in a client's shared memory, or in copies.
typedef struct hth_rpc_tensors_inputs {
    hth_request_tensor *list; // names are borrowed of the request
    hth_rpc_tensors_held *held;
    int n;
    void *copy; // of the frame's data section, when it was not aligned
    // bytes of the copies, which the connection is charged for
    uint64_t charged;
    const hth_conn *conn;
} hth_rpc_tensors_inputs;

// hth_rpc_tensors_inputs_init describes the tensors of `infer`, whose frame has its data section at
// `data`; both and `conn` must outlive *in. Copied is what lies in shared memory and could steer
// addresses or shapes, and a data section that is not aligned. Ended by
// hth_rpc_tensors_inputs_fini, after an error too. HTH_ETOOBIG, HTH_EBUSY: the copies would have
// too many bytes, by themselves or with what else is held for this client, or for all.
hth_err hth_rpc_tensors_inputs_init(hth_rpc_tensors_inputs *in, hth_conn *conn,
                                    const Hearth__Infer *infer, const uint8_t *data,
                                    uint64_t data_bytes);
// hth_rpc_tensors_inputs_record does the same for a record that was checked.
hth_err hth_rpc_tensors_inputs_record(hth_rpc_tensors_inputs *in, hth_conn *conn,
                                      const hth_ipc_record *record);
void hth_rpc_tensors_inputs_fini(hth_rpc_tensors_inputs *in);

#endif
