// SPDX-License-Identifier: Apache-2.0
// engine/serve/load.h - models brought to the device and away from it by name. Engine's thread
// only.
//
// Design notes
// "load" answers when the bytes are there: the graph loaded, a program compiled, its weights and an
// arena on the device; after a name with a newer version in the store, when that one serves. One
// that fails leaves nothing behind. One that does not fit now waits for the memory to be given
// back. "unload" answers when the bytes are gone; programs that run have ended by then, because
// both are done on the thread that runs them.
#ifndef HTH_ENGINE_SERVE_LOAD_H
#define HTH_ENGINE_SERVE_LOAD_H

#include "runtime/model.h"

// What decides whether a load that waits for memory is worth another try.
typedef struct hth_loads_memory {
    uint64_t bytes;     // that the device has for models, and requests do not wait for
    uint64_t limits;    // how often tenants' limits were read
    uint64_t freed;     // the site's
    uint64_t others_ns; // for how long others have computed
} hth_loads_memory;

typedef struct hth_loads {
    hth_models *ms;
    void (*answer)(hth_request *request, hth_err err); // gives a request back with its result
    hth_request *upgrades;  // for newer versions that are being made ready; by their `next`
    hth_request *waiting;   // for memory
    hth_loads_memory tried; // how it was when those were last tried
    bool by_freed;          // one of them lacked something else than bytes for models
    bool again;             // not all of them were tried as it was then
} hth_loads;

// hth_load_program finds the program that a model is loaded with: the pinned one, else the one used
// last, else one compiled for a batch of one sample; *made: the latter. HTH_ENOTSUP: shapes or
// values are needed that only a request can bring.
hth_err hth_load_program(hth_models *ms, hth_model *model, hth_request *request, hth_program **out,
                         bool *made);

// hth_loads_take takes the requests "load" ({"model", "pin", "wait"}, or true in "unpin" and
// "no-wait"), "serving" ({"model"}), "unload" ({"model"}) and "loaded"; they are answered now or
// later. "serving" loads nothing: it answers {"name", "version"} when
// the newest version serves the name, version 0 where none does; HTH_EBUSY: an older one goes on,
// and why. pin true: its weights stay on the device until it is unloaded, or loaded with
// false; wait false: HTH_ENODEVMEM where there is no room now.
void hth_loads_take(hth_loads *loads, hth_request *request);
// hth_loads_slice does a piece of work for newer versions and for the requests that wait; false:
// there is none left now.
bool hth_loads_slice(hth_loads *loads);
// hth_loads_due says that a slice may have something to do.
bool hth_loads_due(hth_loads *loads);
// hth_loads_stop answers the requests that wait.
void hth_loads_stop(hth_loads *loads);

#endif
