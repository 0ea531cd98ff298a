// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/train_overlap.h"

#include "base/clock.h"
#include "base/spin.h"
#include "device/cpu/team.h"

// How long ago requests came that are expected again.
#define OVERLAP_REQUEST_NS 60000000000u
// How long threads rest, after each time that the engine's thread has slept during a step of low
// priority.
#define OVERLAP_REST_NS 2000000000u

void hth_train_overlap_lower(hth_train_overlap *overlap)
{
    if (!overlap->low) {
        hth_instance_lower(overlap->instance);
        overlap->low = true;
    }
    hth_team_keep(true);
    hth_spin_suspend(hth_real_after(OVERLAP_REST_NS));
}

static bool overlap_start(void *ctx, hth_err (*fn)(void *arg), void *arg)
{
    hth_train_overlap *o = ctx;
    bool requested = hth_now_ns() - o->requested_ns < OVERLAP_REQUEST_NS;
    if (o->instance != NULL && o->low && !requested) {
        hth_instance_close(o->instance);
        o->instance = NULL;
    }
    if (o->instance == NULL) {
        const hth_instance_config c = {
            .name = "step", .threads = o->threads, .done = o->wake, .ctx = o->ctx};
        o->low = false;
        if (hth_instance_open(&c, &o->instance) != HTH_OK) {
            return false;
        }
    }
    hth_instance_start(o->instance, fn, arg);
    return true;
}

static bool overlap_busy(void *ctx)
{
    return hth_instance_busy(((const hth_train_overlap *)ctx)->instance);
}

static hth_err overlap_wait(void *ctx)
{
    hth_team_keep(false);
    return hth_instance_wait(((const hth_train_overlap *)ctx)->instance);
}

void hth_train_overlap_init(hth_train_overlap *overlap)
{
    overlap->other = (hth_work_other){overlap_start, overlap_busy, overlap_wait, overlap};
}

void hth_train_overlap_fini(hth_train_overlap *overlap)
{
    hth_instance_close(overlap->instance);
    overlap->instance = NULL;
}
