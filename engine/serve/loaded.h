// SPDX-License-Identifier: Apache-2.0
// engine/serve/loaded.h - the command "loaded": which models are on the device, and which are to
// come or may not. Engine's thread only.
#ifndef HTH_ENGINE_SERVE_LOADED_H
#define HTH_ENGINE_SERVE_LOADED_H

#include "runtime/model.h"

#include <jansson.h>

// hth_loaded_list makes {"models": [{"name", "version", "state", "reason", "loaded", "pinned",
// "device_bytes", "mapped_bytes"}]}: versions that are loaded, and those that wait to be, or may
// not. *out is the caller's.
hth_err hth_loaded_list(const hth_models *ms, json_t **out);

#endif
