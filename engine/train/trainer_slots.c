// SPDX-License-Identifier: Apache-2.0
// Far places of memory are taken when a content first goes there; in the file every slot has its
// own range from the start, which reads as zeros until it is written.
#include "engine/train/trainer_slots.h"

#include "base/alloc.h"

#include <string.h>

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for parameters and optimizer state");
}

static uint64_t slot_range(size_t bytes)
{
    return (bytes + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
}

static hth_err slots_file(hth_slots *s, const char *dir)
{
    uint64_t end = 0;
    for (int i = 0; i < s->n; i++) {
        s->far[i].at = end;
        end += slot_range(s->bytes[i]);
    }
    HTH_TRY(hth_spill_open(dir, end > 0 ? end : HTH_SPILL_ALIGN, &s->file));
    for (int i = 0; i < s->n; i++) {
        s->far[i].file = s->file;
    }
    return HTH_OK;
}

hth_err hth_slots_open(hth_slots *s, hth_device *d, const hth_train_graph *g, const char *spill)
{
    size_t n = (size_t)g->n_slots + 1;
    *s = (hth_slots){.n = g->n_slots,
                     .device = d,
                     .copy = hth_calloc(n, sizeof *s->copy),
                     .bytes = hth_calloc(n, sizeof *s->bytes),
                     .initial = hth_calloc(n, sizeof *s->initial),
                     .rounded = hth_calloc(n, sizeof *s->rounded),
                     .last = hth_calloc(n, sizeof *s->last),
                     .near = hth_calloc(n, sizeof *s->near),
                     .stored = hth_calloc(n, sizeof *s->stored),
                     .far = hth_calloc(n, sizeof *s->far)};
    if (!s->bytes || !s->initial || !s->rounded || !s->last || !s->near || !s->stored || !s->far ||
        !s->copy) {
        return no_memory();
    }
    for (int i = 0; i < s->n; i++) {
        const hth_value *v = &g->graph->values[g->graph->inputs[g->slots[i].input]];
        hth_const *c = g->slots[i].content;
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &s->bytes[i]));
        s->initial[i] = c != NULL ? hth_const_hold(c) : NULL;
        s->rounded[i] = g->slots[i].kind == HTH_SLOT_COPY;
        if (v->layout == HTH_LAYOUT_NHWC) {
            s->last[i] = v->shape;
        }
    }
    return spill != NULL ? slots_file(s, spill) : HTH_OK;
}

void hth_slots_close(hth_slots *s)
{
    hth_slots_unview(s);
    for (int i = 0; i < s->n; i++) {
        if (s->far != NULL) {
            hth_device_release_host(s->device, s->far[i].memory, s->bytes[i]);
        }
        if (s->initial != NULL) {
            hth_const_rele(s->initial[i]);
        }
    }
    hth_spill_close(s->file);
    hth_free(s->bytes);
    hth_free(s->initial);
    hth_free(s->rounded);
    hth_free(s->last);
    hth_free(s->near);
    hth_free(s->stored);
    hth_free(s->far);
    hth_free(s->copy);
    *s = (hth_slots){.n = 0};
}

// Moving.

// Content that the host sees, or what is near.
static hth_err slot_store(hth_slots *s, int i, const void *content)
{
    hth_run_far *f = &s->far[i];
    if (s->file != NULL) {
        HTH_TRY(hth_spill_write(s->file, f->at, content, s->bytes[i]));
    } else {
        if (f->memory == NULL) {
            HTH_TRY(hth_device_reserve_host(s->device, s->bytes[i], &f->memory));
        }
        if (content == s->near[i]) {
            HTH_TRY(hth_device_get(s->device, f->memory, content, s->bytes[i]));
        } else {
            memcpy(f->memory, content, s->bytes[i]);
        }
    }
    s->stored[i] = true;
    return HTH_OK;
}

// Where element k of a plain tensor is in one that has its channels last.
static size_t slot_last(const hth_shape *s, size_t k)
{
    size_t channels = (size_t)s->dim[1];
    size_t size = (size_t)(hth_shape_elements(s) / s->dim[0] / s->dim[1]);
    return (k / size / channels * size + k % size) * channels + k / size % channels;
}

// Content for slot i from outside, which goes to `near`, or far if that is NULL.
static hth_err slot_fill(hth_slots *s, int i, const void *content, void *near)
{
    uint16_t *rounded = NULL;
    if (s->rounded[i]) {
        rounded = hth_alloc(s->bytes[i]);
        if (rounded == NULL) {
            return no_memory();
        }
        for (size_t k = 0; k < s->bytes[i] / sizeof *rounded; k++) {
            size_t to = s->last[i].rank > 0 ? slot_last(&s->last[i], k) : k;
            rounded[to] = hth_f32_to_bf16(((const float *)content)[k]);
        }
        content = rounded;
    }
    hth_err err = near != NULL ? hth_device_put(s->device, near, content, s->bytes[i])
                               : slot_store(s, i, content);
    hth_free(rounded);
    return err;
}

// The content that slot i begins with.
static hth_err slot_begin(hth_slots *s, int i, void *near)
{
    const void *data;
    HTH_TRY(hth_const_map(s->initial[i], &data));
    hth_err err = slot_fill(s, i, data, near);
    hth_const_unmap(s->initial[i]);
    return err;
}

static hth_err slot_begin_far(hth_slots *s, int i)
{
    if (s->initial[i] != NULL) {
        return slot_begin(s, i, NULL);
    }
    if (s->file == NULL && s->far[i].memory == NULL) {
        HTH_TRY(hth_device_reserve_host(s->device, s->bytes[i], &s->far[i].memory));
        memset(s->far[i].memory, 0, s->bytes[i]);
    }
    s->stored[i] = true;
    return HTH_OK;
}

static hth_err slot_load(hth_slots *s, int i, void *near)
{
    if (s->stored[i] && s->file != NULL) {
        HTH_TRY(hth_spill_read(s->file, s->far[i].at, near, s->bytes[i]));
    } else if (s->stored[i]) {
        HTH_TRY(hth_device_put(s->device, near, s->far[i].memory, s->bytes[i]));
    } else if (s->initial[i] == NULL) {
        HTH_TRY(hth_device_zero(s->device, near, s->bytes[i]));
    } else {
        HTH_TRY(slot_begin(s, i, near));
    }
    s->near[i] = near;
    return HTH_OK;
}

// Takes slot i away from the device.
static hth_err slot_leave(hth_slots *s, int i)
{
    if (!s->stored[i]) {
        HTH_TRY(slot_store(s, i, s->near[i]));
    }
    s->near[i] = NULL;
    return HTH_OK;
}

hth_err hth_slots_leave(hth_slots *s)
{
    for (int i = 0; i < s->n; i++) {
        HTH_TRY(s->near[i] != NULL ? slot_leave(s, i) : HTH_OK);
    }
    return HTH_OK;
}

hth_err hth_slots_enter(hth_slots *s, void *base, const uint64_t *place)
{
    for (int i = 0; i < s->n; i++) { // all that go, before any comes
        if (s->near[i] != NULL &&
            (place[i] == HTH_SLOT_FAR || s->near[i] != (char *)base + place[i])) {
            HTH_TRY(slot_leave(s, i));
        }
    }
    for (int i = 0; i < s->n; i++) {
        if (place[i] != HTH_SLOT_FAR && s->near[i] == NULL) {
            HTH_TRY(slot_load(s, i, (char *)base + place[i]));
        } else if (place[i] == HTH_SLOT_FAR && !s->stored[i]) {
            HTH_TRY(slot_begin_far(s, i));
        }
    }
    return HTH_OK;
}

// Reading and writing from outside.

// A copy of slot i, which is on a device whose memory the host does not see.
static hth_err slot_copy(hth_slots *s, int i)
{
    s->copy[i] = hth_alloc_aligned(s->bytes[i], HTH_DEVICE_ALIGN);
    return s->copy[i] == NULL ? no_memory()
                              : hth_device_get(s->device, s->copy[i], s->near[i], s->bytes[i]);
}

hth_err hth_slots_view(hth_slots *s, const void **view)
{
    const void *map = NULL;
    hth_slots_unview(s);
    for (int i = 0; i < s->n; i++) {
        if (s->near[i] != NULL) {
            bool seen = s->device->props.host_visible;
            HTH_TRY(seen ? HTH_OK : slot_copy(s, i));
            view[i] = seen ? s->near[i] : s->copy[i];
        } else if (s->file == NULL) {
            view[i] = s->far[i].memory;
        } else {
            HTH_TRY(map == NULL ? hth_spill_map(s->file, &map) : HTH_OK);
            view[i] = (const char *)map + s->far[i].at;
        }
    }
    return HTH_OK;
}

void hth_slots_unview(hth_slots *s)
{
    for (int i = 0; s->copy != NULL && i < s->n; i++) {
        hth_free(s->copy[i]);
        s->copy[i] = NULL;
    }
    if (s->file != NULL) {
        hth_spill_unmap(s->file);
    }
}

hth_err hth_slots_set(hth_slots *s, int i, const void *content)
{
    if (s->near[i] != NULL) {
        s->stored[i] = false;
        return slot_fill(s, i, content, s->near[i]);
    }
    return slot_fill(s, i, content, NULL);
}
