// SPDX-License-Identifier: Apache-2.0
// engine/serve/memory_wait.h - inferences that wait for memory: their program fits the device, but
// not what jobs, pinned models and what runs leave of it now. Engine's thread only.
//
// Design notes
// Such a request leaves the queue of its model, so that nobody waits after it, and goes back to
// its old place there when there may be room: the site's count of what was given back (`freed`) has
// moved on, and where a plan was refused there is more for models than it was refused for. Nothing
// is tried otherwise. Others for the same model join it without being tried.
//
// It does not starve: what comes free is offered to those that wait, oldest first, before loads and
// jobs are looked at, and what the oldest needs of others (site->awaited_bytes) is left out of what
// a new job or pin may have. It does not wait for ever either: its own timeout ends it, and
// queue.memory_wait_ms one that has none.
#ifndef HTH_ENGINE_SERVE_MEMORY_WAIT_H
#define HTH_ENGINE_SERVE_MEMORY_WAIT_H

#include "engine/serve/infer_request.h"

typedef struct hth_memory_wait { // all zero but for the models at first
    hth_models *ms;
    hth_batch_item *first; // of works, by `next`, oldest first
    int n;
    uint64_t freed; // of the site, when they were last looked at
} hth_memory_wait;

// hth_memory_wait_add has `infer` wait, whose result in its request is HTH_ENODEVMEM; `most`: how
// many may. false: it waits no longer, or may not; it is to be answered with its result.
bool hth_memory_wait_add(hth_memory_wait *memory_wait, hth_infer_request *infer, int most);
// hth_memory_wait_joins says that `infer` needs no less than one for the same model that waits: it
// was not tried, and its result is now that one's.
bool hth_memory_wait_joins(const hth_memory_wait *memory_wait, hth_infer_request *infer);
// hth_memory_wait_ready takes one out that is to be tried again; NULL: none now.
hth_infer_request *hth_memory_wait_ready(hth_memory_wait *memory_wait);
// hth_memory_wait_ended takes one out that was canceled or whose time is over, and puts the result
// for it into its request; NULL: there is none.
hth_infer_request *hth_memory_wait_ended(hth_memory_wait *memory_wait, uint64_t now_ns);
// hth_memory_wait_wake_ns is when the next one's time is over; UINT64_MAX: never.
uint64_t hth_memory_wait_wake_ns(const hth_memory_wait *memory_wait);
// hth_memory_wait_last takes any one out; NULL: none waits.
hth_infer_request *hth_memory_wait_last(hth_memory_wait *memory_wait);

#endif
