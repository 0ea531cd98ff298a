// SPDX-License-Identifier: Apache-2.0
// modelstore/record.h - the bytes of one version in the index: written once, read in place.
//
//   u64 created_ns | u32 n_tensors | u32 meta_bytes | u64 skeleton_bytes | meta | skeleton |
//   tensors tensor: 32 id | u64 bytes | u32 dtype | u8 rank | u8 repeated | u16 name_bytes | rank x
//   i64 | name
//
// Little-endian, unaligned. `repeated`: the id occurred earlier in the record. Everything behind
// created_ns tells whether two versions are equal.
#ifndef HTH_MODELSTORE_RECORD_H
#define HTH_MODELSTORE_RECORD_H

#include "modelstore/store.h"

typedef struct hth_record {
    uint64_t created_ns;
    int n_tensors;
    const char *meta; // not terminated
    size_t meta_bytes;
    const void *skeleton;
    size_t skeleton_bytes;
    const uint8_t *at, *end; // the next tensor
    int left;
} hth_record; // points into the bytes it was opened on

typedef struct hth_record_tensor {
    hth_id id;
    uint64_t bytes;
    hth_dtype dtype;
    hth_shape shape;
    bool repeated;
    const char *name; // not terminated
    size_t name_bytes;
} hth_record_tensor;

#define HTH_RECORD_CREATED_BYTES 8

// hth_record_head and hth_record_add append to a growing buffer; HTH_ENOMEM leaves it for the
// caller to free.
typedef struct hth_buffer {
    uint8_t *data; // hth_alloc'd
    size_t n, cap;
} hth_buffer;
hth_err hth_record_head(hth_buffer *buffer, uint64_t created_ns, const char *meta,
                        const void *skeleton, size_t skeleton_bytes, int n_tensors);
hth_err hth_record_add(hth_buffer *buffer, const hth_put_tensor *tensor, const hth_id *id,
                       bool repeated);

// hth_record_open reads the head; hth_record_next reads the next of n_tensors tensors.
// HTH_ECORRUPT: the bytes are not a record; nothing beyond them is touched.
hth_err hth_record_open(hth_record *record, const void *data, size_t bytes);
hth_err hth_record_next(hth_record *record, hth_record_tensor *out);

#endif
