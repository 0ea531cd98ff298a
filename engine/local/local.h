// SPDX-License-Identifier: Apache-2.0
// engine/local/local.h - an engine that is a thread of this process.
#ifndef HTH_ENGINE_LOCAL_LOCAL_H
#define HTH_ENGINE_LOCAL_LOCAL_H

#include "engine/engine.h"

// hth_local_open opens config->device and starts the thread; it returns when the device is open,
// and its error is this one's. `store` must outlive the engine.
hth_err hth_local_open(const hth_engine_config *config, hth_store *store, hth_engine **out);

#endif
