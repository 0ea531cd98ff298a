// SPDX-License-Identifier: Apache-2.0
// Constants: shared, reference-counted content. Counting is atomic; mapping of derived content is
// serialised by one lock for the whole process, because it is rare (when a device copy is made) and
// never nested in another lock.
#include "graph/graph.h"

#include "base/alloc.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t const_lock = PTHREAD_MUTEX_INITIALIZER;

hth_id_sum *hth_content_sum(hth_dtype dt, const hth_shape *shape)
{
    int64_t head[2 + HTH_MAX_RANK] = {
        dt, shape->rank}; // little-endian on every machine that hearth runs on
    memcpy(head + 2, shape->dim, (size_t)shape->rank * sizeof shape->dim[0]);
    hth_id_sum *sum = hth_id_sum_begin();
    hth_id_sum_add(sum, head, (2 + (size_t)shape->rank) * sizeof head[0]);
    return sum;
}

hth_id hth_content_id(hth_dtype dt, const hth_shape *shape, const void *data, size_t bytes)
{
    hth_id_sum *sum = hth_content_sum(dt, shape);
    hth_id_sum_add(sum, data, bytes);
    return hth_id_sum_end(sum);
}

static void const_free_owner(hth_const *constant)
{
    hth_free(constant->owner);
}

hth_err hth_const_adopt(hth_dtype dt, const hth_shape *shape, void *data, const hth_id *id,
                        hth_const **out)
{
    size_t bytes;
    *out = NULL;
    HTH_TRY(hth_tensor_bytes(dt, shape, HTH_LAYOUT_PLAIN, &bytes));
    hth_const *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_no_memory("a constant");
    }
    atomic_init(&c->refs, 1);
    c->dtype = dt;
    c->shape = *shape;
    c->bytes = bytes;
    c->data = data;
    c->owner = data;
    c->release = const_free_owner;
    c->id = id != NULL ? *id : hth_content_id(dt, shape, data, bytes);
    *out = c;
    return HTH_OK;
}

hth_err hth_const_new(hth_dtype dt, const hth_shape *shape, const void *data, hth_const **out)
{
    size_t bytes;
    *out = NULL;
    HTH_TRY(hth_tensor_bytes(dt, shape, HTH_LAYOUT_PLAIN, &bytes));
    void *copy = hth_alloc_aligned(bytes, 64);
    if (copy == NULL) {
        return hth_no_memory("a constant of %zu bytes", bytes);
    }
    memcpy(copy, data, bytes);
    hth_err err = hth_const_adopt(dt, shape, copy, NULL, out);
    if (err != HTH_OK) {
        hth_free(copy);
    }
    return err;
}

hth_const *hth_const_hold(hth_const *constant)
{
    atomic_fetch_add_explicit(&constant->refs, 1, memory_order_relaxed);
    return constant;
}

void hth_const_rele(hth_const *constant)
{
    if (constant != NULL &&
        atomic_fetch_sub_explicit(&constant->refs, 1, memory_order_acq_rel) == 1) {
        if (constant->materialize != NULL) {
            hth_free((void *)constant->data);
        }
        if (constant->release != NULL) {
            constant->release(constant);
        }
        hth_free(constant);
    }
}

hth_err hth_const_map(hth_const *constant, const void **out)
{
    hth_err err = HTH_OK;
    if (constant->materialize == NULL) {
        *out = constant->data;
        return HTH_OK;
    }
    // Recursive use (a derived constant whose sources are derived) would deadlock on one lock:
    // materialize outside it, and keep the first result if two threads were at it.
    pthread_mutex_lock(&const_lock);
    bool have = constant->data != NULL;
    constant->maps += have;
    pthread_mutex_unlock(&const_lock);
    if (!have) {
        void *dst = hth_alloc_aligned(constant->bytes, 64);
        if (dst == NULL) {
            return hth_no_memory("a derived constant of %zu bytes", constant->bytes);
        }
        err = constant->materialize(constant, dst);
        if (err != HTH_OK) {
            hth_free(dst);
            return err;
        }
        pthread_mutex_lock(&const_lock);
        constant->maps++;
        if (constant->data == NULL) {
            constant->data = dst;
            dst = NULL;
        }
        pthread_mutex_unlock(&const_lock);
        hth_free(dst);
    }
    *out = constant->data;
    return HTH_OK;
}

void hth_const_unmap(hth_const *constant)
{
    if (constant->materialize == NULL) {
        return;
    }
    pthread_mutex_lock(&const_lock);
    void *drop = NULL;
    assert(constant->maps > 0);
    if (--constant->maps == 0) {
        drop = (void *)constant->data;
        constant->data = NULL;
    }
    pthread_mutex_unlock(&const_lock);
    hth_free(drop);
}
