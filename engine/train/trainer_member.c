// SPDX-License-Identifier: Apache-2.0
// A group's member makes a step in two parts, between which others' gradients come in. Everything
// that a pass writes can be undone: gradients are zeros before it, running statistics are copied.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

static const hth_train_graph *member_graph(const hth_trainer *trainer)
{
    return &hth_trainer_current(trainer)->add.graph;
}

static bool member_summed(const hth_trainer *trainer, int slot)
{
    return member_graph(trainer)->slots[slot].output >= 0;
}

static bool member_statistic(const hth_trainer *trainer, int slot)
{
    return member_graph(trainer)->slots[slot].kind == HTH_SLOT_STAT;
}

hth_err hth_trainer_sums_open(hth_trainer *trainer, hth_trainer_sums *sums)
{
    size_t all = (size_t)trainer->slots.n + 1, statistics = 0;
    *sums = (hth_trainer_sums){.slot = hth_calloc(all, sizeof *sums->slot),
                               .floats = hth_calloc(all, sizeof *sums->floats),
                               .statistic = hth_calloc(all, sizeof *sums->statistic),
                               .content = hth_calloc(all, sizeof *sums->content)};
    if (sums->slot == NULL || sums->floats == NULL || sums->statistic == NULL ||
        sums->content == NULL) {
        return hth_no_memory("a training job");
    }
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_summed(trainer, i)) {
            sums->slot[sums->n] = i;
            sums->floats[sums->n] = trainer->slots.bytes[i] / sizeof(float);
            sums->statistic[sums->n] = member_statistic(trainer, i);
            statistics += sums->statistic[sums->n] ? trainer->slots.bytes[i] : 0;
            sums->n++;
        }
    }
    hth_free(trainer->statistics);
    trainer->statistics = hth_alloc(statistics + 1);
    return trainer->statistics != NULL ? HTH_OK : hth_no_memory("a training job");
}

void hth_trainer_sums_close(hth_trainer_sums *sums)
{
    hth_free(sums->slot);
    hth_free(sums->floats);
    hth_free(sums->statistic);
    hth_free(sums->content);
    *sums = (hth_trainer_sums){.n = 0};
}

static hth_err member_contents(hth_trainer *trainer, const void ***out)
{
    *out = hth_calloc((size_t)trainer->slots.n + 1, sizeof **out);
    hth_err err = *out != NULL ? hth_trainer_slots_view(&trainer->slots, *out)
                               : hth_no_memory("a training job");
    if (err != HTH_OK) {
        hth_free((void *)*out);
        *out = NULL;
    }
    return err;
}

// Copies the running statistics as they are.
static hth_err member_keep(hth_trainer *trainer)
{
    const void **view;
    char *to = (char *)trainer->statistics;
    HTH_TRY(member_contents(trainer, &view));
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_summed(trainer, i) && member_statistic(trainer, i)) {
            memcpy(to, view[i], trainer->slots.bytes[i]);
            to += trainer->slots.bytes[i];
        }
    }
    hth_free((void *)view);
    hth_trainer_slots_unview(&trainer->slots);
    return HTH_OK;
}

// Labels of which none counts have no mean, and weigh nothing.
hth_err hth_trainer_pass(hth_trainer *trainer, int member, const hth_tensor *inputs,
                         const hth_tensor *target, float *loss, double *weight)
{
    hth_trainer_shape *s = hth_trainer_current(trainer);
    bool labels = trainer->spec->options.loss == HTH_LOSS_SOFTMAX_XENT;
    *weight = labels ? hth_trainer_norm(trainer, target) : (double)inputs[0].shape.dim[0];
    hth_trainer_hyper(trainer, 1, *weight > 0 ? *weight : 1);
    trainer->stall_ns = trainer->run_ns = 0;
    HTH_TRY(hth_trainer_enter(trainer, &s->add));
    HTH_TRY(member_keep(trainer));
    trainer->measured = hth_timeline_begin(trainer->timeline, hth_now_ns());
    return hth_trainer_part(trainer, &s->add, 0, (uint64_t)member, inputs, target, loss);
}

void hth_trainer_pass_none(hth_trainer *trainer)
{
    hth_trainer_hyper(trainer, 1, 1);
    trainer->stall_ns = trainer->run_ns = 0;
    trainer->measured = false;
}

double hth_trainer_pass_us(const hth_trainer *trainer)
{
    return (double)trainer->run_ns / 1e3;
}

hth_err hth_trainer_view(hth_trainer *trainer, hth_trainer_sums *sums)
{
    const void **view;
    HTH_TRY(member_contents(trainer, &view));
    for (int k = 0; k < sums->n; k++) {
        sums->content[k] = view[sums->slot[k]];
    }
    hth_free((void *)view);
    return HTH_OK;
}

hth_err hth_trainer_sum(hth_trainer *trainer, const hth_trainer_sums *sums, int k,
                        const float *content)
{
    return hth_trainer_slots_set(&trainer->slots, sums->slot[k], content);
}

hth_err hth_trainer_update(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target)
{
    hth_trainer_phase *phase = &hth_trainer_current(trainer)->apply;
    float none;
    hth_trainer_slots_unview(&trainer->slots);
    HTH_TRY(hth_trainer_part(trainer, phase, 0, 0, inputs, target, &none));
    trainer->counter++;
    if (trainer->measured) {
        hth_timeline_end(trainer->timeline, trainer->counter, hth_now_ns());
    }
    return HTH_OK;
}

hth_err hth_trainer_undo(hth_trainer *trainer, const hth_trainer_sums *sums)
{
    size_t most = 0;
    const char *from = (const char *)trainer->statistics;
    for (int k = 0; k < sums->n; k++) {
        most = sums->floats[k] > most ? sums->floats[k] : most;
    }
    float *zeros = hth_calloc(most + 1, sizeof *zeros);
    hth_err err = zeros != NULL ? HTH_OK : hth_no_memory("a training job");
    hth_trainer_slots_unview(&trainer->slots);
    for (int k = 0; k < sums->n && err == HTH_OK; k++) {
        const void *content = sums->statistic[k] ? (const void *)from : zeros;
        err = hth_trainer_slots_set(&trainer->slots, sums->slot[k], content);
        from += sums->statistic[k] ? sums->floats[k] * sizeof *zeros : 0;
    }
    hth_free(zeros);
    return err;
}

// ---- the whole state

static bool member_copy(const hth_trainer *trainer, int slot)
{
    return member_graph(trainer)->slots[slot].kind == HTH_SLOT_COPY;
}

// member_whole: the slot is part of what members take from each other. A parameter server has the
// optimizer's state alone, and others take it between steps, when gradients are zeros.
static bool member_whole(const hth_trainer *trainer, int slot)
{
    return trainer->spec->server ? hth_slot_of_model(member_graph(trainer)->slots[slot].kind)
                                 : !member_copy(trainer, slot);
}

size_t hth_trainer_whole_bytes(const hth_trainer *trainer)
{
    size_t bytes = 0;
    for (int i = 0; i < trainer->slots.n; i++) {
        bytes += member_whole(trainer, i) ? trainer->slots.bytes[i] : 0;
    }
    return bytes;
}

hth_err hth_trainer_write(hth_trainer *trainer, void *to)
{
    const void **view;
    char *at = to;
    HTH_TRY(member_contents(trainer, &view));
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_whole(trainer, i)) {
            memcpy(at, view[i], trainer->slots.bytes[i]);
            at += trainer->slots.bytes[i];
        }
    }
    hth_free((void *)view);
    hth_trainer_slots_unview(&trainer->slots);
    return HTH_OK;
}

// A copy is set from its parameter, which belongs to the same initializer.
static hth_err member_read_copies(hth_trainer *trainer, int parameter, const void *content)
{
    const hth_train_graph *g = member_graph(trainer);
    for (int i = 0; i < trainer->slots.n; i++) {
        bool of = g->slots[parameter].kind == HTH_SLOT_PARAM && member_copy(trainer, i) &&
                  g->slots[i].initializer == g->slots[parameter].initializer;
        HTH_TRY(of ? hth_trainer_slots_set(&trainer->slots, i, content) : HTH_OK);
    }
    return HTH_OK;
}

hth_err hth_trainer_read(hth_trainer *trainer, const void *from, uint64_t steps)
{
    const char *at = from;
    hth_trainer_slots_unview(&trainer->slots);
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_whole(trainer, i)) {
            HTH_TRY(hth_trainer_slots_set(&trainer->slots, i, at));
            HTH_TRY(member_read_copies(trainer, i, at));
            at += trainer->slots.bytes[i];
        }
    }
    trainer->counter = steps;
    return HTH_OK;
}

uint64_t hth_trainer_fingerprint(const hth_trainer *trainer)
{
    const hth_train_graph *g = member_graph(trainer);
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)trainer->manifest.version; // FNV-1a
    for (int i = 0; i < g->n_slots; i++) {
        if (!member_whole(trainer, i) && !member_summed(trainer, i)) {
            continue;
        }
        for (const char *c = g->slots[i].name; *c != 0; c++) {
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        }
        hash = (hash ^ trainer->slots.bytes[i]) * 0x100000001b3u;
    }
    return hash;
}
