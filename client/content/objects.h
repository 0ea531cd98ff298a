// SPDX-License-Identifier: Apache-2.0
// client/content/objects.h - lists of objects as they travel: what a client names content by.
//
// A list is its objects one after the other:
//   32 id | u32 dtype | u8 rank | u8 here | u16 name bytes | u64 bytes | rank x i64 | name | 0
// Little-endian, unaligned. `here`: the object's bytes come along, after everything else of the
// message, in the list's order.
#ifndef HTH_CLIENT_CONTENT_OBJECTS_H
#define HTH_CLIENT_CONTENT_OBJECTS_H

#include "base/id.h"
#include "graph/tensor.h"

// Bytes of a piece that one message carries, at most: HTH_UPLOAD_PIECE_BYTES of the store's.
#define HTH_CONTENT_PIECE_BYTES ((size_t)8 << 20)
#define HTH_CONTENT_WHOLE       UINT64_MAX

typedef struct hth_content_object {
    const char *name;
    hth_id id;
    hth_dtype dtype;
    hth_shape shape;
    uint64_t bytes;
    bool here;
} hth_content_object;

// hth_content_list_bytes is how long a list of `n` objects is, hth_content_list_write writes it.
// Names have less than 65,536 bytes, else HTH_EINVAL.
hth_err hth_content_list_bytes(const hth_content_object *objects, int n, uint64_t *bytes);
void hth_content_list_write(const hth_content_object *objects, int n, uint8_t *at);
// hth_content_list_read reads a list that has to be of `n` objects and to end after `bytes` bytes;
// their names point into it. Every object is possible: known dtype, shape and bytes agree. The
// caller frees *out by hth_free. HTH_ECORRUPT, HTH_EINVAL, HTH_ENOMEM: *out is NULL.
hth_err hth_content_list_read(const uint8_t *list, uint64_t bytes, uint32_t n,
                              hth_content_object **out);

#endif
