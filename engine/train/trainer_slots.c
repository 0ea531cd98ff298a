// SPDX-License-Identifier: Apache-2.0
// Far places of memory are taken when a content first goes there; in the file every slot has its
// own range from the start, which reads as zeros until it is written.
#include "engine/train/trainer_slots.h"

#include "base/alloc.h"
#include "base/pace.h"

#include <string.h>

static uint64_t slot_range(size_t bytes)
{
    return (bytes + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
}

static hth_err slots_file(hth_trainer_slots *slots, const char *dir)
{
    uint64_t end = 0;
    for (int i = 0; i < slots->n; i++) {
        slots->far[i].at = end;
        end += slot_range(slots->bytes[i]);
    }
    HTH_TRY(hth_spill_open(dir, end > 0 ? end : HTH_SPILL_ALIGN, &slots->file));
    for (int i = 0; i < slots->n; i++) {
        slots->far[i].file = slots->file;
    }
    return HTH_OK;
}

hth_err hth_trainer_slots_open(hth_trainer_slots *slots, hth_device *device,
                               const hth_train_graph *graph, const char *spill)
{
    size_t n = (size_t)graph->n_slots + 1;
    *slots = (hth_trainer_slots){.n = graph->n_slots,
                                 .device = device,
                                 .copy = hth_calloc(n, sizeof *slots->copy),
                                 .bytes = hth_calloc(n, sizeof *slots->bytes),
                                 .initial = hth_calloc(n, sizeof *slots->initial),
                                 .rounded = hth_calloc(n, sizeof *slots->rounded),
                                 .last = hth_calloc(n, sizeof *slots->last),
                                 .resident = hth_calloc(n, sizeof *slots->resident),
                                 .stored = hth_calloc(n, sizeof *slots->stored),
                                 .far = hth_calloc(n, sizeof *slots->far)};
    if (!slots->bytes || !slots->initial || !slots->rounded || !slots->last || !slots->resident ||
        !slots->stored || !slots->far || !slots->copy) {
        return hth_no_memory("parameters and optimizer state");
    }
    for (int i = 0; i < slots->n; i++) {
        const hth_value *v = &graph->graph->values[graph->graph->inputs[graph->slots[i].input]];
        hth_const *c = graph->slots[i].content;
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &slots->bytes[i]));
        slots->initial[i] = c != NULL ? hth_const_hold(c) : NULL;
        slots->rounded[i] = graph->slots[i].kind == HTH_SLOT_COPY;
        if (v->layout == HTH_LAYOUT_NHWC) {
            slots->last[i] = v->shape;
        }
    }
    return spill != NULL ? slots_file(slots, spill) : HTH_OK;
}

void hth_trainer_slots_close(hth_trainer_slots *slots)
{
    hth_trainer_slots_unview(slots);
    for (int i = 0; i < slots->n; i++) {
        if (slots->far != NULL) {
            hth_device_release_host(slots->device, slots->far[i].memory, slots->bytes[i]);
        }
        if (slots->initial != NULL) {
            hth_const_rele(slots->initial[i]);
        }
    }
    hth_spill_close(slots->file);
    hth_free(slots->bytes);
    hth_free(slots->initial);
    hth_free(slots->rounded);
    hth_free(slots->last);
    hth_free(slots->resident);
    hth_free(slots->stored);
    hth_free(slots->far);
    hth_free(slots->copy);
    *slots = (hth_trainer_slots){.n = 0};
}

// Moving.

// Content that the host sees, or what is resident.
static hth_err slot_store(hth_trainer_slots *slots, int i, const void *content)
{
    hth_run_far *f = &slots->far[i];
    if (slots->file != NULL) {
        HTH_TRY(hth_spill_write(slots->file, f->at, content, slots->bytes[i]));
    } else {
        if (f->memory == NULL) {
            HTH_TRY(hth_device_reserve_host(slots->device, slots->bytes[i], &f->memory));
        }
        if (content == slots->resident[i]) {
            HTH_TRY(hth_device_get(slots->device, f->memory, content, slots->bytes[i]));
        } else {
            memcpy(f->memory, content, slots->bytes[i]);
        }
    }
    slots->stored[i] = true;
    return HTH_OK;
}

// Where element k of a plain tensor is in one that has its channels last.
static size_t slot_last(const hth_shape *shape, size_t k)
{
    size_t channels = (size_t)shape->dim[1];
    size_t size = (size_t)(hth_shape_elements(shape) / shape->dim[0] / shape->dim[1]);
    return (k / size / channels * size + k % size) * channels + k / size % channels;
}

// Content for slot i from outside, which goes to `resident`, or far if that is NULL.
static hth_err slot_fill(hth_trainer_slots *slots, int i, const void *content, void *resident)
{
    uint16_t *rounded = NULL;
    if (slots->rounded[i]) {
        rounded = hth_alloc(slots->bytes[i]);
        if (rounded == NULL) {
            return hth_no_memory("parameters and optimizer state");
        }
        for (size_t k = 0; k < slots->bytes[i] / sizeof *rounded; k++) {
            size_t to = slots->last[i].rank > 0 ? slot_last(&slots->last[i], k) : k;
            rounded[to] = hth_f32_to_bf16(((const float *)content)[k]);
        }
        content = rounded;
    }
    hth_err err = resident != NULL
                      ? hth_device_put(slots->device, resident, content, slots->bytes[i])
                      : slot_store(slots, i, content);
    hth_free(rounded);
    return err;
}

// The content that slot i begins with.
static hth_err slot_begin(hth_trainer_slots *slots, int i, void *resident)
{
    const void *data;
    HTH_TRY(hth_const_map(slots->initial[i], &data));
    hth_err err = slot_fill(slots, i, data, resident);
    hth_const_unmap(slots->initial[i]);
    return err;
}

static hth_err slot_begin_far(hth_trainer_slots *slots, int i)
{
    if (slots->initial[i] != NULL) {
        return slot_begin(slots, i, NULL);
    }
    if (slots->file == NULL && slots->far[i].memory == NULL) {
        HTH_TRY(hth_device_reserve_host(slots->device, slots->bytes[i], &slots->far[i].memory));
        hth_err err = hth_pace_fill(slots->far[i].memory, NULL, slots->bytes[i]);
        if (err != HTH_OK) {
            hth_device_release_host(slots->device, slots->far[i].memory, slots->bytes[i]);
            slots->far[i].memory = NULL;
            return err;
        }
    }
    slots->stored[i] = true;
    return HTH_OK;
}

static hth_err slot_load(hth_trainer_slots *slots, int i, void *resident)
{
    if (slots->stored[i] && slots->file != NULL) {
        HTH_TRY(hth_spill_read(slots->file, slots->far[i].at, resident, slots->bytes[i]));
    } else if (slots->stored[i]) {
        HTH_TRY(hth_device_put(slots->device, resident, slots->far[i].memory, slots->bytes[i]));
    } else if (slots->initial[i] == NULL) {
        HTH_TRY(hth_device_zero(slots->device, resident, slots->bytes[i]));
    } else {
        HTH_TRY(slot_begin(slots, i, resident));
    }
    slots->resident[i] = resident;
    return HTH_OK;
}

// Takes slot i away from the device.
static hth_err slot_leave(hth_trainer_slots *slots, int i)
{
    if (!slots->stored[i]) {
        HTH_TRY(slot_store(slots, i, slots->resident[i]));
    }
    slots->resident[i] = NULL;
    return HTH_OK;
}

hth_err hth_trainer_slots_leave(hth_trainer_slots *slots)
{
    for (int i = 0; i < slots->n; i++) {
        HTH_TRY(slots->resident[i] != NULL ? slot_leave(slots, i) : HTH_OK);
    }
    return HTH_OK;
}

void hth_trainer_slots_trim(hth_trainer_slots *slots)
{
    for (int i = 0; i < slots->n; i++) {
        if (slots->resident[i] != NULL && slots->far[i].memory != NULL) {
            hth_device_release_host(slots->device, slots->far[i].memory, slots->bytes[i]);
            slots->far[i].memory = NULL;
            slots->stored[i] = false;
        }
    }
}

hth_err hth_trainer_slots_enter(hth_trainer_slots *slots, void *base, const uint64_t *place)
{
    for (int i = 0; i < slots->n; i++) { // all that go, before any comes
        if (slots->resident[i] != NULL &&
            (place[i] == HTH_SLOT_OFF_DEVICE || slots->resident[i] != (char *)base + place[i])) {
            HTH_TRY(slot_leave(slots, i));
        }
    }
    for (int i = 0; i < slots->n; i++) {
        if (place[i] != HTH_SLOT_OFF_DEVICE && slots->resident[i] == NULL) {
            HTH_TRY(slot_load(slots, i, (char *)base + place[i]));
        } else if (place[i] == HTH_SLOT_OFF_DEVICE && !slots->stored[i]) {
            HTH_TRY(slot_begin_far(slots, i));
        }
    }
    return HTH_OK;
}

// Reading and writing from outside.

// A copy of slot i, which is on a device whose memory the host does not see.
static hth_err slot_copy(hth_trainer_slots *slots, int i)
{
    slots->copy[i] = hth_alloc_aligned(slots->bytes[i], HTH_DEVICE_ALIGN);
    return slots->copy[i] == NULL
               ? hth_no_memory("parameters and optimizer state")
               : hth_device_get(slots->device, slots->copy[i], slots->resident[i], slots->bytes[i]);
}

hth_err hth_trainer_slots_view(hth_trainer_slots *slots, const void **view)
{
    const void *map = NULL;
    hth_trainer_slots_unview(slots);
    for (int i = 0; i < slots->n; i++) {
        if (slots->resident[i] != NULL) {
            bool seen = slots->device->props.host_visible;
            HTH_TRY(seen ? HTH_OK : slot_copy(slots, i));
            view[i] = seen ? slots->resident[i] : slots->copy[i];
        } else if (slots->file == NULL) {
            view[i] = slots->far[i].memory;
        } else {
            HTH_TRY(map == NULL ? hth_spill_map(slots->file, &map) : HTH_OK);
            view[i] = (const char *)map + slots->far[i].at;
        }
    }
    return HTH_OK;
}

void hth_trainer_slots_unview(hth_trainer_slots *slots)
{
    for (int i = 0; slots->copy != NULL && i < slots->n; i++) {
        hth_free(slots->copy[i]);
        slots->copy[i] = NULL;
    }
    if (slots->file != NULL) {
        hth_spill_unmap(slots->file);
    }
}

hth_err hth_trainer_slots_set(hth_trainer_slots *slots, int index, const void *content)
{
    if (slots->resident[index] != NULL) {
        slots->stored[index] = false;
        return slot_fill(slots, index, content, slots->resident[index]);
    }
    return slot_fill(slots, index, content, NULL);
}
