// SPDX-License-Identifier: Apache-2.0
// The parameters and running statistics of the best epoch so far, which become the result. They are
// copied to host memory, or under --spill to a file, both taken before the first step: an epoch
// that is better than all before must not fail for want of room. Checkpoints have them, too.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"

#include <string.h>

#define KEPT_NOT UINT64_MAX

static void *kept_memory(const hth_trainer_kept *kept, int slot)
{
    return (char *)kept->memory + kept->at[slot];
}

hth_err hth_trainer_keep_open(hth_trainer *trainer)
{
    hth_trainer_kept *k = &trainer->kept;
    const hth_train_graph *g = hth_trainer_graph(trainer);
    uint64_t bytes = 0;
    k->n = trainer->slots.n;
    k->at = hth_calloc((size_t)k->n + 1, sizeof *k->at);
    k->name = hth_calloc((size_t)k->n + 1, sizeof *k->name);
    if (k->at == NULL || k->name == NULL) {
        return hth_no_memory("the best parameters");
    }
    for (int i = 0; i < k->n; i++) {
        bool kept = hth_slot_of_model(g->slots[i].kind);
        k->at[i] = kept ? bytes : KEPT_NOT;
        k->name[i] = kept ? hth_asprintf("%s/kept", g->slots[i].name) : NULL;
        if (kept && k->name[i] == NULL) {
            return hth_no_memory("the best parameters");
        }
        uint64_t end = trainer->slots.bytes[i] + HTH_SPILL_ALIGN - 1;
        bytes += kept ? end / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN : 0;
    }
    if (trainer->spec->spill != NULL) {
        return hth_spill_open(trainer->spec->spill, bytes, &k->file);
    }
    k->memory = hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
    return k->memory != NULL ? HTH_OK : hth_no_memory("the best parameters");
}

bool hth_trainer_keeps(const hth_trainer *trainer)
{
    return trainer->kept.any;
}

hth_err hth_trainer_kept_set(hth_trainer *trainer, int slot, const void *content)
{
    hth_trainer_kept *k = &trainer->kept;
    if (k->at[slot] == KEPT_NOT) {
        return HTH_OK;
    }
    if (k->file != NULL) {
        return hth_spill_write(k->file, k->at[slot], content, trainer->slots.bytes[slot]);
    }
    memcpy(kept_memory(k, slot), content, trainer->slots.bytes[slot]);
    return HTH_OK;
}

hth_err hth_trainer_keep(hth_trainer *trainer)
{
    hth_trainer_kept *k = &trainer->kept;
    const void **view = hth_calloc((size_t)k->n + 1, sizeof *view);
    if (k->file != NULL) {
        hth_spill_unmap(k->file);
    }
    hth_err err = view != NULL ? hth_trainer_slots_view(&trainer->slots, view)
                               : hth_no_memory("the best parameters");
    for (int i = 0; err == HTH_OK && i < k->n; i++) {
        err = hth_trainer_kept_set(trainer, i, view[i]);
    }
    hth_trainer_slots_unview(&trainer->slots);
    hth_free(view);
    k->any = k->any || err == HTH_OK;
    return err;
}

hth_err hth_trainer_kept_view(hth_trainer *trainer, const void **content)
{
    const hth_trainer_kept *k = &trainer->kept;
    const void *base = k->memory;
    if (!k->any) {
        return HTH_OK;
    }
    if (k->file != NULL) {
        hth_spill_unmap(k->file);
        HTH_TRY(hth_spill_map(k->file, &base));
    }
    for (int i = 0; i < k->n; i++) {
        content[i] = k->at[i] != KEPT_NOT ? (const char *)base + k->at[i] : content[i];
    }
    return HTH_OK;
}

void hth_trainer_kept_close(hth_trainer *trainer)
{
    hth_trainer_kept *k = &trainer->kept;
    for (int i = 0; k->name != NULL && i < k->n; i++) {
        hth_free(k->name[i]);
    }
    hth_spill_close(k->file);
    hth_free(k->name);
    hth_free(k->at);
    hth_free(k->memory);
    *k = (hth_trainer_kept){.n = 0};
}
