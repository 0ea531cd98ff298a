// SPDX-License-Identifier: Apache-2.0
#include "client/content/objects.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

typedef struct __attribute__((packed)) content_head {
    hth_id id;
    uint32_t dtype;
    uint8_t rank, here;
    uint16_t name_bytes;
    uint64_t bytes;
} content_head;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire's numbers are little-endian");

static size_t content_bytes(size_t rank, size_t name_bytes)
{
    return sizeof(content_head) + rank * sizeof(int64_t) + name_bytes + 1;
}

hth_err hth_content_list_bytes(const hth_content_object *objects, int n, uint64_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        size_t name = strlen(objects[i].name);
        if (name > UINT16_MAX) {
            return hth_fail(HTH_EINVAL, "tensor '%.40s..': the name has %zu bytes, more than %d",
                            objects[i].name, name, UINT16_MAX);
        }
        *bytes += content_bytes((size_t)objects[i].shape.rank, name);
    }
    return HTH_OK;
}

void hth_content_list_write(const hth_content_object *objects, int n, uint8_t *at)
{
    for (int i = 0; i < n; i++) {
        const hth_content_object *o = &objects[i];
        size_t rank = (size_t)o->shape.rank, name = strlen(o->name);
        content_head h = {o->id,   (uint32_t)o->dtype, (uint8_t)rank,
                          o->here, (uint16_t)name,     o->bytes};
        memcpy(at, &h, sizeof h);
        memcpy(at + sizeof h, o->shape.dim, rank * sizeof(int64_t));
        memcpy(at + sizeof h + rank * sizeof(int64_t), o->name, name + 1);
        at += content_bytes(rank, name);
    }
}

static hth_err content_check(const hth_content_object *object)
{
    size_t bytes;
    if (hth_dtype_bytes(object->dtype) == 0 || !hth_shape_known(&object->shape)) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has no element type or shape that can be stored",
                        object->name);
    }
    HTH_TRY(hth_tensor_bytes(object->dtype, &object->shape, HTH_LAYOUT_PLAIN, &bytes));
    return bytes == object->bytes
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "tensor '%s' claims %" PRIu64 " bytes, its shape and type make %zu",
                          object->name, object->bytes, bytes);
}

// content_read reads the object at *at, of which `left` bytes are there, and moves *at on.
static hth_err content_read(const uint8_t **at, uint64_t left, hth_content_object *out)
{
    content_head h;
    if (left < sizeof h) {
        return hth_fail(HTH_ECORRUPT, "a list of objects ends too early");
    }
    memcpy(&h, *at, sizeof h);
    size_t bytes = content_bytes(h.rank, h.name_bytes);
    const char *name = (const char *)*at + bytes - h.name_bytes - 1;
    if (h.rank > HTH_MAX_RANK || left < bytes || strnlen(name, h.name_bytes + 1u) != h.name_bytes) {
        return hth_fail(HTH_ECORRUPT, "a list of objects is not one");
    }
    *out = (hth_content_object){.name = name,
                                .id = h.id,
                                .dtype = (hth_dtype)h.dtype,
                                .bytes = h.bytes,
                                .here = h.here != 0};
    out->shape.rank = h.rank;
    memcpy(out->shape.dim, *at + sizeof h, h.rank * sizeof(int64_t));
    *at += bytes;
    return content_check(out);
}

hth_err hth_content_list_read(const uint8_t *list, uint64_t bytes, uint32_t n,
                              hth_content_object **out)
{
    const uint8_t *at = list, *end = list + bytes;
    *out = NULL;
    if (n > bytes / content_bytes(0, 0) || n > INT32_MAX) {
        return hth_fail(HTH_ECORRUPT, "a list of %" PRIu32 " objects cannot have %" PRIu64 " bytes",
                        n, bytes);
    }
    hth_content_object *o = hth_calloc(n, sizeof *o);
    hth_err err = o != NULL ? HTH_OK : hth_no_memory("%u objects", n);
    for (uint32_t i = 0; i < n && err == HTH_OK; i++) {
        err = content_read(&at, (uint64_t)(end - at), &o[i]);
    }
    if (err == HTH_OK && at != end) {
        err = hth_fail(HTH_ECORRUPT, "a list of objects goes on after its last one");
    }
    if (err != HTH_OK) {
        hth_free(o);
        return err;
    }
    *out = o;
    return HTH_OK;
}
