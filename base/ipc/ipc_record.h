// SPDX-License-Identifier: Apache-2.0
// base/ipc/ipc_record.h - a request or an answer as a struct in memory that two processes of this
// machine share: what a client puts into its ring (client/wire.h), and what hearthd's engine
// process reads (engine/process/child_link.h).
//
// Design notes
// Nothing is decoded: after hth_ipc_record_check the struct is used where it lies. It begins with
// numbers; tensors' descriptions follow, then texts, each with a zero after it, then, at a multiple
// of HTH_IPC_RECORD_ALIGN, the bytes of tensors that travel in the record. Texts and bytes are
// named by their offsets from its start. Native byte order: both sides are on one machine.
//
// Trust: who reads a record has it in memory that its writer cannot write into, a copy out of a
// ring or memory that is shared for reading only; else what was checked could change. The check
// proves that no offset of a text, and none of bytes that travel in the record, leads out of it. It
// does not know what data types are, nor what memory there is besides: where a tensor lies
// elsewhere is checked by who has that mapped. Who may ask is no part of it: that stands in the
// head of the message around a record, which only the process that knows writes.
#ifndef HTH_BASE_IPC_IPC_RECORD_H
#define HTH_BASE_IPC_IPC_RECORD_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define HTH_IPC_RECORD_ALIGN 64u // of a record in memory, and of tensors in it
#define HTH_IPC_RECORD_RANK  8

// Where a tensor's bytes are, in place of a region's number.
#define HTH_IPC_RECORD_HERE 0u         // in the record; `at` counts from its start
#define HTH_IPC_RECORD_SLAB UINT32_MAX // in its writer's slab

typedef struct hth_ipc_record_tensor {
    uint64_t at, bytes;
    int64_t dim[HTH_IPC_RECORD_RANK];
    uint32_t region; // else a number of memory that was shared before; `at` counts from its start
    uint32_t name;   // offset of its text, 0: none
    uint32_t dtype;  // ONNX numbering
    uint32_t rank;
} hth_ipc_record_tensor;

// The texts of a request, and of an answer.
enum { HTH_IPC_RECORD_MODEL, HTH_IPC_RECORD_QUERY, HTH_IPC_RECORD_ARGUMENTS, HTH_IPC_RECORD_TEXTS };
enum {
    HTH_IPC_RECORD_DETAIL,
    HTH_IPC_RECORD_JSON,
    HTH_IPC_RECORD_SERVED, // target of the alias that was requested, else none
};

typedef struct hth_ipc_record {
    uint64_t bytes;                      // all of it
    uint32_t head_bytes;                 // without the tensors' bytes
    uint32_t text[HTH_IPC_RECORD_TEXTS]; // offsets, 0: none
    uint32_t n_tensors;
    uint32_t n_known; // of a request: the last ones are places of outputs
    uint32_t priority, err;
    int32_t version;
    uint32_t batched;
    union {
        uint64_t timeout_us; // of a request
        uint64_t started_ns; // of an answer
    };
    hth_ipc_record_tensor tensor[];
} hth_ipc_record;

// ---- writing: hth_ipc_record_begin, hth_ipc_record_add for each tensor, hth_ipc_record_end

// hth_ipc_record_room is how much memory a record takes without its tensors' bytes: the n tensors'
// names have `name_bytes`, a zero each included. A multiple of HTH_IPC_RECORD_ALIGN.
size_t hth_ipc_record_room(const char *const text[HTH_IPC_RECORD_TEXTS], size_t n,
                           size_t name_bytes);
// hth_ipc_record_begin starts a record of n tensors in that much memory; texts may be NULL. What is
// not set here or later is zero.
void hth_ipc_record_begin(hth_ipc_record *record, const char *const text[HTH_IPC_RECORD_TEXTS],
                          size_t n);
// hth_ipc_record_add describes the next tensor, which lies in the record until the caller says
// where else. name NULL: none.
hth_ipc_record_tensor *hth_ipc_record_add(hth_ipc_record *record, const char *name, uint32_t dtype,
                                          size_t rank, const int64_t *dim, uint64_t bytes);
// hth_ipc_record_end gives the tensors that lie in the record their places and stores how many
// bytes all of it has. HTH_ETOOBIG: more than 64 bits can count. The caller writes the tensors'
// bytes.
hth_err hth_ipc_record_end(hth_ipc_record *record);
// hth_ipc_record_pad is how many bytes after a tensor of `bytes` are zero, so that the next one is
// aligned.
static inline size_t hth_ipc_record_pad(uint64_t bytes)
{
    return (size_t)(-bytes % HTH_IPC_RECORD_ALIGN);
}

// ---- reading

// hth_ipc_record_check looks at the `bytes` at record, which lie at a multiple of
// HTH_IPC_RECORD_ALIGN. HTH_ECORRUPT says what is wrong.
hth_err hth_ipc_record_check(const hth_ipc_record *record, uint64_t bytes);
// hth_ipc_record_text is one of the texts, hth_ipc_record_name a tensor's name; NULL: there is
// none.
static inline const char *hth_ipc_record_text(const hth_ipc_record *record, int which)
{
    return record->text[which] != 0 ? (const char *)record + record->text[which] : NULL;
}
static inline const char *hth_ipc_record_name(const hth_ipc_record *record,
                                              const hth_ipc_record_tensor *tensor)
{
    return tensor->name != 0 ? (const char *)record + tensor->name : NULL;
}

#endif
