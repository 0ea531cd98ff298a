// SPDX-License-Identifier: Apache-2.0
// modelstore/paths.h - which paths outside of a store its users have named.
//
// Design notes
// A training job goes on from a path after a restart, without who named it. What the engine's
// process says of a job may be a lie, hence the store keeps a list that this process cannot write:
// the folder "paths", in which every path is an empty file whose name is the SHA-256 of the path
// and of what it is opened for. A file is there or is not; nothing can be half written.
#ifndef HTH_MODELSTORE_PATHS_H
#define HTH_MODELSTORE_PATHS_H

#include "base/opener.h"
#include "modelstore/store.h"

typedef struct hth_named_path {
    hth_open_use use;
    const char *path;
} hth_named_path;

// hth_paths_begin forgets what is not in the list of `n`, which may be empty. A store that has no
// such folder yet gets one, with all of the list in it. To be called while nobody else works on the
// store.
hth_err hth_paths_begin(hth_store *store, const hth_named_path *list, int n);
// hth_paths_keep notes that a path was named by who may do so. A store without that folder, which
// no hearthd works on, is left as it is. Any thread.
hth_err hth_paths_keep(hth_store *store, hth_named_path path);
// hth_paths_kept tells whether it was. Any thread.
bool hth_paths_kept(hth_store *store, hth_named_path path);

#endif
