// SPDX-License-Identifier: Apache-2.0
// engine/serve/version_swap.h - a newer version takes a served one's place. Engine's thread only.
//
// Design notes
// The older version serves until the newer one is ready: its graph loaded, a program compiled for
// each shape that is in use, and their weights on the device where the older one's are. Tensors
// that both have are there already, and are not moved. The work is done in slices, a program each,
// so that requests are answered in between. A version that fails in any of this is refused, once:
// the older one goes on, until the store has a still newer one, or somebody asks to load it. The
// older one may be removed meanwhile: then nothing is left to go on, and the newest is loaded like
// one of a name that nobody has asked for.
#ifndef HTH_ENGINE_SERVE_VERSION_SWAP_H
#define HTH_ENGINE_SERVE_VERSION_SWAP_H

#include "runtime/model.h"

// hth_version_swap_check asks the store for newer versions of the names that are served.
void hth_version_swap_check(hth_models *ms);
// hth_version_swap_slice makes one program ready; false: there is none. It checks by itself.
bool hth_version_swap_slice(hth_models *ms);
// hth_version_swap_due checks what has changed, and says that a slice has something to do.
bool hth_version_swap_due(hth_models *ms);
// hth_version_swap_retry forgets that the latest version of `name` was refused.
void hth_version_swap_retry(hth_models *ms, const char *name);
// hth_version_swap_settle does all the work for `name` at once.
void hth_version_swap_settle(hth_models *ms, const char *name);

#endif
