// SPDX-License-Identifier: Apache-2.0
// engine/serve/batcher_choose_impl.h - the inside of the batcher: which requests make a run. Shared
// by batcher*.c only.
#ifndef HTH_ENGINE_SERVE_BATCHER_CHOOSE_IMPL_H
#define HTH_ENGINE_SERVE_BATCHER_CHOOSE_IMPL_H

#include "engine/serve/batcher.h"

typedef struct hth_batch_choice {
    int n; // items; 0: none now
    hth_batch_item *item[HTH_BATCH_ITEMS];
    int64_t bucket;   // samples of their run; 0: the one item, as it is
    uint64_t wake_ns; // n is 0: when to ask again; UINT64_MAX: when something changes
} hth_batch_choice;

// hth_batch_choose decides what is run with `head`, the first of its queue.
void hth_batch_choose(hth_batcher *batcher, hth_batch_item *head, uint64_t now_ns,
                      hth_batch_filter filter, hth_batch_choice *out);

// hth_batch_flow_link and _unlink: a flow has items from now on, or none.
void hth_batch_flow_link(hth_batcher *batcher, hth_batch_flow *flow);
void hth_batch_flow_unlink(hth_batcher *batcher, hth_batch_flow *flow);
// hth_batch_item_ns is what the samples of an item that waits took lately.
double hth_batch_item_ns(const hth_batch_item *item);

#endif
