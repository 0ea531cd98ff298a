// SPDX-License-Identifier: Apache-2.0
// base/pace.h - long work of a thread: counted where it is done, so that others get their turn
// meanwhile, and that it ends early when nobody wants it any more or when it takes too much.
//
// Design notes
// The loops that can take long (reference kernels, walks over graphs) are far below the callers
// that know who asked. So the account is the thread's: whoever begins something long enters one,
// and the loops count. A unit of work is about a nanosecond on a usual processor: an element that
// is moved or a product that is added. Counts decide, never a clock: what is computed beforehand
// must not depend on how busy a machine is. Without an account counting costs one look, and nothing
// ends.
#ifndef HTH_BASE_PACE_H
#define HTH_BASE_PACE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_PACE_QUANTUM ((uint64_t)1 << 20) // work between two turns

// All zero but for the limits and the turn at first; UINT64_MAX: no limit.
typedef struct hth_pace {
    uint64_t most_work;
    uint64_t most_bytes; // of memory to work in
    // turn is called now and then by the thread that works; it may do other work, with an account
    // of its own. An error ends the work. NULL: nobody is asked.
    hth_err (*turn)(void *ctx);
    void *ctx;
    uint64_t work, bytes; // so far
    uint64_t turned;      // work at the last turn
    hth_err err;          // why it ended; it does not go on any more
    bool over;            // it took more than most_work or most_bytes
    char detail[256];     // the sentence for err
} hth_pace;

// hth_pace_enter makes `pace` the thread's account until hth_pace_leave is called with what it
// returned: the account before (NULL: none). `pace` NULL: work is not counted.
hth_pace *hth_pace_enter(hth_pace *pace);
void hth_pace_leave(hth_pace *before);
hth_pace *hth_pace_now(void); // the thread's account, or NULL

// hth_pace_step counts `work` units that are about to be done. HTH_ETOOBIG: more than most_work;
// else what turn returned. Once it has failed it goes on failing.
hth_err hth_pace_step(uint64_t work);
// hth_pace_over is the same for loops that return nothing: true: stop, whoever called them asks
// hth_pace_step again.
bool hth_pace_over(uint64_t work);
// hth_pace_fill copies, or clears where `from` is NULL, and counts a unit for each byte. What
// hth_pace_step returns ends it half done.
hth_err hth_pace_fill(void *to, const void *from, size_t bytes);
// hth_pace_take counts memory to work in, before it is taken. HTH_ETOOBIG: more than most_bytes.
hth_err hth_pace_take(uint64_t bytes);

#endif
