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

static hth_err buffer_add(hth_buffer *b, const void *data, size_t bytes)
{
    if (b->cap - b->n < bytes) {
        size_t cap = (b->n + bytes) * 3 / 2 + 256;
        void *p = hth_realloc(b->data, cap, 1);
        if (p == NULL) {
            return hth_fail(HTH_ENOMEM, "out of memory for a version's record of %zu bytes", cap);
        }
        b->data = p;
        b->cap = cap;
    }
    if (bytes > 0) {
        memcpy(b->data + b->n, data, bytes);
    }
    b->n += bytes;
    return HTH_OK;
}

hth_err hth_record_head(hth_buffer *b, uint64_t created_ns, const char *meta, const void *skeleton,
                        size_t skeleton_bytes, int n_tensors)
{
    size_t meta_bytes = meta ? strlen(meta) : 0;
    if (meta_bytes > UINT32_MAX || skeleton_bytes > UINT32_MAX) {
        return hth_fail(HTH_ETOOBIG, "a graph of %zu bytes does not fit the store's index",
                        skeleton_bytes);
    }
    record_head h = {created_ns, (uint32_t)n_tensors, (uint32_t)meta_bytes, skeleton_bytes};
    HTH_TRY(buffer_add(b, &h, sizeof h));
    HTH_TRY(buffer_add(b, meta, meta_bytes));
    return buffer_add(b, skeleton, skeleton_bytes);
}

hth_err hth_record_add(hth_buffer *b, const hth_put_tensor *t, const hth_id *id, bool repeated)
{
    size_t name_bytes = strlen(t->name);
    if (name_bytes > UINT16_MAX) {
        return hth_fail(HTH_EINVAL, "tensor '%.40s...': the name has %zu bytes, more than %d",
                        t->name, name_bytes, UINT16_MAX);
    }
    record_tensor h = {
        *id, t->bytes, (uint32_t)t->dtype, (uint8_t)t->shape.rank, repeated, (uint16_t)name_bytes};
    HTH_TRY(buffer_add(b, &h, sizeof h));
    HTH_TRY(buffer_add(b, t->shape.dim, (size_t)t->shape.rank * sizeof t->shape.dim[0]));
    return buffer_add(b, t->name, name_bytes);
}

// record_take moves past `bytes` bytes and returns where they are, NULL when there are not as many.
static const void *record_take(hth_record *r, uint64_t bytes)
{
    if ((uint64_t)(r->end - r->at) < bytes) {
        return NULL;
    }
    const void *p = r->at;
    r->at += bytes;
    return p;
}

static hth_err record_short(void)
{
    return hth_fail(HTH_ECORRUPT, "the store's record of a version is damaged");
}

hth_err hth_record_open(hth_record *r, const void *data, size_t bytes)
{
    record_head h;
    r->at = data;
    r->end = r->at + bytes;
    const void *head = record_take(r, sizeof h);
    if (head == NULL) {
        return record_short();
    }
    memcpy(&h, head, sizeof h);
    r->created_ns = h.created_ns;
    r->meta_bytes = h.meta_bytes;
    r->meta = record_take(r, h.meta_bytes);
    r->skeleton_bytes = h.skeleton_bytes;
    r->skeleton = r->meta ? record_take(r, h.skeleton_bytes) : NULL;
    if (r->skeleton == NULL || h.n_tensors > (size_t)(r->end - r->at) / sizeof(record_tensor)) {
        return record_short();
    }
    r->n_tensors = r->left = (int)h.n_tensors;
    return HTH_OK;
}

hth_err hth_record_next(hth_record *r, hth_record_tensor *out)
{
    record_tensor h;
    const void *head = r->left > 0 ? record_take(r, sizeof h) : NULL;
    if (head == NULL) {
        return record_short();
    }
    memcpy(&h, head, sizeof h);
    size_t dim_bytes = h.rank * sizeof(int64_t);
    const void *dims = h.rank <= HTH_MAX_RANK ? record_take(r, dim_bytes) : NULL;
    const char *name = dims ? record_take(r, h.name_bytes) : NULL;
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
    r->left--;
    return HTH_OK;
}
