// SPDX-License-Identifier: Apache-2.0
#include "modelstore/record.h"

#include "base/alloc.h"

#include <string.h>

typedef struct __attribute__((packed)) record_head {
    uint64_t created_ns;
    uint32_t n_tensors, meta_bytes;
    uint64_t skeleton_bytes;
} record_head;

typedef struct __attribute__((packed)) record_tensor {
    hth_id id;
    uint64_t bytes;
    uint32_t dtype;
    uint8_t rank, repeated;
    uint16_t name_bytes;
} record_tensor;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the store's numbers are little-endian");

static hth_err buffer_add(hth_buffer *buffer, const void *data, size_t bytes)
{
    if (buffer->cap - buffer->n < bytes) {
        size_t cap = (buffer->n + bytes) * 3 / 2 + 256;
        void *p = hth_realloc(buffer->data, cap, 1);
        if (p == NULL) {
            return hth_no_memory("a version's record of %zu bytes", cap);
        }
        buffer->data = p;
        buffer->cap = cap;
    }
    if (bytes > 0) {
        memcpy(buffer->data + buffer->n, data, bytes);
    }
    buffer->n += bytes;
    return HTH_OK;
}

hth_err hth_record_head(hth_buffer *buffer, uint64_t created_ns, const char *meta,
                        const void *skeleton, size_t skeleton_bytes, int n_tensors)
{
    size_t meta_bytes = meta ? strlen(meta) : 0;
    if (meta_bytes > UINT32_MAX || skeleton_bytes > UINT32_MAX) {
        return hth_fail(HTH_ETOOBIG, "a graph of %zu bytes does not fit the store's index",
                        skeleton_bytes);
    }
    record_head h = {created_ns, (uint32_t)n_tensors, (uint32_t)meta_bytes, skeleton_bytes};
    HTH_TRY(buffer_add(buffer, &h, sizeof h));
    HTH_TRY(buffer_add(buffer, meta, meta_bytes));
    return buffer_add(buffer, skeleton, skeleton_bytes);
}

hth_err hth_record_add(hth_buffer *buffer, const hth_put_tensor *tensor, const hth_id *id,
                       bool repeated)
{
    size_t name_bytes = strlen(tensor->name);
    if (name_bytes > UINT16_MAX) {
        return hth_fail(HTH_EINVAL, "tensor '%.40s...': the name has %zu bytes, more than %d",
                        tensor->name, name_bytes, UINT16_MAX);
    }
    record_tensor h = {
        *id,      tensor->bytes,       (uint32_t)tensor->dtype, (uint8_t)tensor->shape.rank,
        repeated, (uint16_t)name_bytes};
    HTH_TRY(buffer_add(buffer, &h, sizeof h));
    HTH_TRY(buffer_add(buffer, tensor->shape.dim,
                       (size_t)tensor->shape.rank * sizeof tensor->shape.dim[0]));
    return buffer_add(buffer, tensor->name, name_bytes);
}

// record_take moves past `bytes` bytes and returns where they are, NULL when there are not as many.
static const void *record_take(hth_record *record, uint64_t bytes)
{
    if ((uint64_t)(record->end - record->at) < bytes) {
        return NULL;
    }
    const void *p = record->at;
    record->at += bytes;
    return p;
}

static hth_err record_short(void)
{
    return hth_fail(HTH_ECORRUPT, "the store's record of a version is damaged");
}

hth_err hth_record_open(hth_record *record, const void *data, size_t bytes)
{
    record_head h;
    record->at = data;
    record->end = record->at + bytes;
    const void *head = record_take(record, sizeof h);
    if (head == NULL) {
        return record_short();
    }
    memcpy(&h, head, sizeof h);
    record->created_ns = h.created_ns;
    record->meta_bytes = h.meta_bytes;
    record->meta = record_take(record, h.meta_bytes);
    record->skeleton_bytes = h.skeleton_bytes;
    record->skeleton = record->meta ? record_take(record, h.skeleton_bytes) : NULL;
    if (record->skeleton == NULL ||
        h.n_tensors > (size_t)(record->end - record->at) / sizeof(record_tensor)) {
        return record_short();
    }
    record->n_tensors = record->left = (int)h.n_tensors;
    return HTH_OK;
}

hth_err hth_record_next(hth_record *record, hth_record_tensor *out)
{
    record_tensor h;
    const void *head = record->left > 0 ? record_take(record, sizeof h) : NULL;
    if (head == NULL) {
        return record_short();
    }
    memcpy(&h, head, sizeof h);
    size_t dim_bytes = h.rank * sizeof(int64_t);
    const void *dims = h.rank <= HTH_MAX_RANK ? record_take(record, dim_bytes) : NULL;
    const char *name = dims ? record_take(record, h.name_bytes) : NULL;
    if (name == NULL) {
        return record_short();
    }
    *out = (hth_record_tensor){.id = h.id,
                               .bytes = h.bytes,
                               .dtype = (hth_dtype)h.dtype,
                               .repeated = h.repeated,
                               .name = name,
                               .name_bytes = h.name_bytes};
    out->shape.rank = h.rank;
    memcpy(out->shape.dim, dims, dim_bytes);
    record->left--;
    return HTH_OK;
}
