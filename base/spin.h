// SPDX-License-Identifier: Apache-2.0
// base/spin.h - looking again and again for a short while, before a thread sleeps.
//
// Waking a sleeping thread costs tens of microseconds, more than a small model takes, and who has
// an answer tends to ask again at once. Both sides of a queue therefore look for a while first.
#ifndef HTH_BASE_SPIN_H
#define HTH_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define HTH_FOREVER UINT64_MAX // of a timeout

// Another place that messages come from: who waits for messages of his own looks there, too.
typedef struct hth_poll_hook {
    bool (*poll)(void *ctx);  // handles what has come, and says whether anything had; cheap
    void (*leave)(void *ctx); // the same, once, before the waiting thread sleeps: somebody else has
                              // to look from then on, until poll is called again
    void *ctx;
} hth_poll_hook;

// hth_real_ns is CLOCK_MONOTONIC even where tests replace the clock (clock.h): it bounds waiting
// that is real. hth_real_after adds to it; HTH_FOREVER stays what it is.
uint64_t hth_real_ns(void);
uint64_t hth_real_after(uint64_t timeout_ns);
// hth_spin looks until `idle` says false or it is `until_ns` by hth_real_ns. It yields between any
// two looks: on a full machine the other side may need this very core, and where nobody does a
// yield takes no longer than a look.
void hth_spin(bool (*idle)(void *ctx), void *ctx, uint64_t until_ns);
// hth_spin_suspend disables spinning process-wide until `until_ns` (or the current deadline, if
// later): threads that would spin sleep at once. Used while SCHED_IDLE threads compute: one of
// them, once scheduled, runs until the scheduler's next tick, for milliseconds, whereas waking a
// sleeping thread takes microseconds.
void hth_spin_suspend(uint64_t until_ns);
// hth_spin_suspended_until returns that deadline; one that has passed, or 0: spinning is enabled.
uint64_t hth_spin_suspended_until(void);

#endif
