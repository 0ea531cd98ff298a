// SPDX-License-Identifier: Apache-2.0
// engine/train/trainer_slots.h - the contents of a job's slots (parameters, optimizer state,
// running statistics): on the device, or far from it, in memory or in a file. Engine's thread only.
//
// Design notes
// A slot begins as the model's initializer, which the store maps, and comes to the device from
// there: what is resident has no copy in host memory until it has to leave. A job's programs
// (another batch shape, the phases of an accumulated step) may want different slots resident; those
// that both want at the same place stay, the others move when the program changes.
#ifndef HTH_ENGINE_TRAIN_TRAINER_SLOTS_H
#define HTH_ENGINE_TRAIN_TRAINER_SLOTS_H

#include "runtime/program.h"

#define HTH_SLOT_OFF_DEVICE UINT64_MAX // the place of a slot that is not on the device

typedef struct hth_trainer_slots {
    int n;
    size_t *bytes;
    hth_const **initial; // held; NULL: zeros
    bool *rounded;       // bf16 where `initial`, and what it is set to, is f32
    hth_shape *last;     // .. and has its channels last where that is plain; else of rank 0
    void **resident;     // on the device; NULL: not there
    bool *stored; // the far place holds the content; neither resident nor stored: `initial` does
    hth_run_far *far;
    hth_spill *file; // of all slots; NULL: far is memory
    hth_device *device;
    void **copy; // what hth_trainer_slots_view made of slots that the host does not see
} hth_trainer_slots;

// hth_trainer_slots_open takes the slots of `graph` over as they begin. spill: directory of the
// file that far slots go to, NULL: memory. Closed also on error; slots->far stays where it is until
// then.
hth_err hth_trainer_slots_open(hth_trainer_slots *slots, hth_device *device,
                               const hth_train_graph *graph, const char *spill);
void hth_trainer_slots_close(
    hth_trainer_slots *slots); // one that was never opened is allowed, zeroed

// hth_trainer_slots_enter brings slot i to base + place[i], or far. Places do not overlap; a slot
// that is where it should be is not touched.
hth_err hth_trainer_slots_enter(hth_trainer_slots *slots, void *base, const uint64_t *place);
// hth_trainer_slots_leave brings all slots far: their memory on the device is not used any more.
hth_err hth_trainer_slots_leave(hth_trainer_slots *slots);
// hth_trainer_slots_trim gives back the far places in memory of slots that are resident.
void hth_trainer_slots_trim(hth_trainer_slots *slots);
// hth_trainer_slots_changed tells that slot i was written where it is.
static inline void hth_trainer_slots_changed(hth_trainer_slots *slots, int index)
{
    slots->stored[index] = slots->resident[index] == NULL;
}

// hth_trainer_slots_view gives all contents to read from, until hth_trainer_slots_unview or a step.
hth_err hth_trainer_slots_view(hth_trainer_slots *slots, const void **view);
void hth_trainer_slots_unview(hth_trainer_slots *slots);
// hth_trainer_slots_set overwrites slot i, wherever it is; of a copy of a parameter `content` is
// the parameter's.
hth_err hth_trainer_slots_set(hth_trainer_slots *slots, int index, const void *content);

#endif
