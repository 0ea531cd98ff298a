// SPDX-License-Identifier: Apache-2.0
// Constants: shared, reference-counted content. Counting is atomic; mapping of derived content is
// serialised by one lock for the whole process, because it is rare (when a device copy is made) and
// never nested in another lock.
#include "graph/graph.h"

#include "base/alloc.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t const_lock = PTHREAD_MUTEX_INITIALIZER;

hth_id_sum *hth_content_sum(hth_dtype dt, const hth_shape *s)
{
    int64_t head[2 + HTH_MAX_RANK] = {
        dt, s->rank}; // little-endian on every machine that hearth runs on
    memcpy(head + 2, s->dim, (size_t)s->rank * sizeof s->dim[0]);
    hth_id_sum *sum = hth_id_sum_begin();
    hth_id_sum_add(sum, head, (2 + (size_t)s->rank) * sizeof head[0]);
    return sum;
}

hth_id hth_content_id(hth_dtype dt, const hth_shape *s, const void *data, size_t bytes)
{
    hth_id_sum *sum = hth_content_sum(dt, s);
    hth_id_sum_add(sum, data, bytes);
    return hth_id_sum_end(sum);
}

static void const_free_owner(hth_const *c)
{
    hth_free(c->owner);
}

hth_err hth_const_adopt(hth_dtype dt, const hth_shape *s, void *data, const hth_id *id,
                        hth_const **out)
{
    size_t bytes;
    *out = NULL;
    HTH_TRY(hth_tensor_bytes(dt, s, HTH_LAYOUT_PLAIN, &bytes));
    hth_const *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a constant");
    }
    atomic_init(&c->refs, 1);
    c->dtype = dt;
    c->shape = *s;
    c->bytes = bytes;
    c->data = data;
    c->owner = data;
    c->release = const_free_owner;
    c->id = id != NULL ? *id : hth_content_id(dt, s, data, bytes);
    *out = c;
    return HTH_OK;
}

hth_err hth_const_new(hth_dtype dt, const hth_shape *s, const void *data, hth_const **out)
{
    size_t bytes;
    *out = NULL;
    HTH_TRY(hth_tensor_bytes(dt, s, HTH_LAYOUT_PLAIN, &bytes));
    void *copy = hth_alloc_aligned(bytes, 64);
    if (copy == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a constant of %zu bytes", bytes);
    }
    memcpy(copy, data, bytes);
    hth_err err = hth_const_adopt(dt, s, copy, NULL, out);
    if (err != HTH_OK) {
        hth_free(copy);
    }
    return err;
}

hth_const *hth_const_hold(hth_const *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void hth_const_rele(hth_const *c)
{
    if (c != NULL && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        if (c->materialize != NULL) {
            hth_free((void *)c->data);
        }
        if (c->release != NULL) {
            c->release(c);
        }
        hth_free(c);
    }
}

hth_err hth_const_map(hth_const *c, const void **out)
{
    hth_err err = HTH_OK;
    if (c->materialize == NULL) {
        *out = c->data;
        return HTH_OK;
    }
    // Recursive use (a derived constant whose sources are derived) would deadlock on one lock:
    // materialize outside it, and keep the first result if two threads were at it.
    pthread_mutex_lock(&const_lock);
    bool have = c->data != NULL;
    c->maps += have;
    pthread_mutex_unlock(&const_lock);
    if (!have) {
        void *dst = hth_alloc_aligned(c->bytes, 64);
        if (dst == NULL) {
            return hth_fail(HTH_ENOMEM, "no memory for a derived constant of %zu bytes", c->bytes);
        }
        err = c->materialize(c, dst);
        if (err != HTH_OK) {
            hth_free(dst);
            return err;
        }
        pthread_mutex_lock(&const_lock);
        c->maps++;
        if (c->data == NULL) {
            c->data = dst;
            dst = NULL;
        }
        pthread_mutex_unlock(&const_lock);
        hth_free(dst);
    }
    *out = c->data;
    return HTH_OK;
}

void hth_const_unmap(hth_const *c)
{
    if (c->materialize == NULL) {
        return;
    }
    pthread_mutex_lock(&const_lock);
    void *drop = NULL;
    if (--c->maps == 0) {
        drop = (void *)c->data;
        c->data = NULL;
    }
    pthread_mutex_unlock(&const_lock);
    hth_free(drop);
}
