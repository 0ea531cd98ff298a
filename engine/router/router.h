// SPDX-License-Identifier: Apache-2.0
// engine/router/router.h - the engines of one machine's devices as one engine: what engine.h
// promises, for engine.c, where several devices are named.
//
// Design notes
// Each device has an engine of its own, a thread or a process, and all have the same store; none
// knows of the others. What is here decides which of them gets a request (place.h), counts what is
// unanswered where, and makes one answer of several. Requests are handed over as they are: their
// `done` is replaced for as long as they are with an engine. Where one device is named there is no
// router, and nothing of this costs anything.
//
// A device is *lost* when its engine says so (HTH_EDEVLOST to what it had not begun), or was away
// for longer than a restart takes. Its models are loaded elsewhere, jobs go on elsewhere from their
// checkpoints. What had begun there fails, as it does with one device.
#ifndef HTH_ENGINE_ROUTER_ROUTER_H
#define HTH_ENGINE_ROUTER_ROUTER_H

#include "engine/engine.h"

// hth_router_several tells whether a text names several devices: "cuda:0,mem=80% cpu:mem=2GiB".
bool hth_router_several(const char *devices);
// hth_router_check reads such a list: HTH_EINVAL: a device is named twice, is none, or there are
// more than HTH_PLACE_DEVICES.
hth_err hth_router_check(const char *devices);

// hth_router_open opens an engine for each device of config->device; when one of them fails, none
// is left open, and the error is its.
hth_err hth_router_open(const hth_engine_config *config, hth_store *store, hth_engine **out);

#endif
