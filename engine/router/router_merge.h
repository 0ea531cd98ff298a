// SPDX-License-Identifier: Apache-2.0
// engine/router/router_merge.h - one answer of several devices' answers to the same question. Pure.
//
// Design notes
// What one device answers is the shape of what several do, so that nobody who reads it has to know
// how many there are: counts and bytes are sums, and rows get the name of their device, or devices,
// in addition to what they had. Percentiles of all requests are taken anew from the sum of the
// histograms; where no histogram is at hand (of a model, of five seconds) the largest of the
// devices' is answered, which no percentile of the sum exceeds.
#ifndef HTH_ENGINE_ROUTER_ROUTER_MERGE_H
#define HTH_ENGINE_ROUTER_ROUTER_MERGE_H

#include "runtime/command.h"

#include <jansson.h>

// hth_router_merge makes the answer to `command`, as its row's column `merge` says, of docs[i]
// (borrowed, NULL: none) from device name[i]. NULL: no memory, or no document.
json_t *hth_router_merge(hth_command_id command, json_t *const *docs, const char *const *name,
                         int count);

#endif
