// SPDX-License-Identifier: Apache-2.0
// engine/process/child_wire.h - requests and answers as they pass between hearthd and its engine's
// process.
//
// Design notes
// A record is one request or one answer without its tensors' bytes: numbers, then the tensors, then
// the texts, each with a zero behind it; texts and bytes are named by offset. Both ends are the
// same program, so it is a struct as it lies in memory. Both ends check it all the same: whoever
// reads has it in memory of its own, and after hth_child_record_check no offset of a text leads out
// of it. Where a tensor's bytes lie is checked by who maps them.
#ifndef HTH_ENGINE_PROCESS_CHILD_WIRE_H
#define HTH_ENGINE_PROCESS_CHILD_WIRE_H

#include "engine/engine.h"

typedef enum hth_child_kind {
    // to the child
    HTH_CHILD_HELLO = 1, // what it is to open: JSON
    HTH_CHILD_SETTINGS,  // the settings and what is logged: JSON
    HTH_CHILD_CALL,      // a request: record
    HTH_CHILD_REGION, // a client's memory, `done` bytes at `total` of the file that the socket has
    HTH_CHILD_FORGET, // it is no more
    HTH_CHILD_DRAIN,  // hth_engine_drain
    HTH_CHILD_STOP,   // hth_engine_stop, and the process ends
    // from the child
    HTH_CHILD_STARTED,  // device and store are open; `done`: HTH_CHILD_UNCONFINED or 0
    HTH_CHILD_FAILED,   // they cannot be; `done`: the code; text
    HTH_CHILD_PROGRESS, // of a request: text
    HTH_CHILD_EVENT,    // of a training job: its name, a zero, text
    HTH_CHILD_DONE,     // the answer to a request: record
} hth_child_kind;

// The kernel cannot confine the child to the store.
#define HTH_CHILD_UNCONFINED 1u

typedef struct hth_child_head { // of every message
    uint32_t kind;
    uint32_t slot; // of the request; of a region its number
    uint64_t done, total;
    uint64_t far_at, far_bytes; // a record that is too large for a message: where it is in the
                                // sender's slab; far_bytes 0: it follows
} hth_child_head;

typedef struct hth_child_tensor {
    uint64_t name; // offset of its text, 0: none
    uint64_t at;   // of its bytes in the slab or in a region
    uint64_t bytes;
    int64_t dim[HTH_MAX_RANK];
    uint32_t region; // 0: the sender's slab
    uint16_t dtype, rank;
} hth_child_tensor;

// The texts of a request, and of an answer.
enum { HTH_CHILD_MODEL, HTH_CHILD_QUERY, HTH_CHILD_ARGUMENTS, HTH_CHILD_TENANT, HTH_CHILD_TEXTS };
enum { HTH_CHILD_DETAIL, HTH_CHILD_JSON };

typedef struct hth_child_record {
    uint64_t bytes;                 // all of it
    uint64_t text[HTH_CHILD_TEXTS]; // offsets, 0: none
    uint64_t timeout_us, waited_ns, started_ns;
    uint32_t n_tensors, n_known; // of a request: behind the inputs come the places of outputs
    uint32_t priority, at_once;
    int32_t err, version, batched, own;
    uint32_t deaths, admin; // of a request
    uint32_t n_files;       // .. whose descriptors are in the socket, numbered by hth_child_file
    hth_child_tensor tensor[];
} hth_child_record;

// hth_child_record_new makes a record of the texts (NULL: none) and of what tensors are; the rest
// is zero. `take` gives its memory. HTH_ENOMEM.
hth_err hth_child_record_new(const char *const text[HTH_CHILD_TEXTS], const hth_request_tensor *t,
                             int n, void *(*take)(void *ctx, size_t bytes), void *ctx,
                             hth_child_record **out);
// hth_child_record_check: HTH_ECORRUPT says what is wrong with the `bytes` at `r`, which lie at a
// multiple of 8.
hth_err hth_child_record_check(const hth_child_record *r, uint64_t bytes);
// hth_child_record_text is one of the texts, NULL: none.
const char *hth_child_record_text(const hth_child_record *r, int which);
// hth_child_record_tensor is what tensor `i` is, without its bytes; the name lies in the record.
hth_request_tensor hth_child_record_tensor(const hth_child_record *r, int i);

#endif
