// SPDX-License-Identifier: Apache-2.0
// engine/process/child_files.h - files that hearthd opens for the engine's process, which is
// confined to the store.
//
// Design notes
// The child asks over a socket of its own, one question at a time, and waits: what it would have
// opened itself comes as a descriptor. hearthd opens nothing but what the store's list of paths
// has (modelstore/paths.h), which only hearthd writes: who runs code in the child gets the files
// that users named for it, and no others. A thread for each child answers, so that a file system
// that stands still keeps nobody but the job that needs it.
#ifndef HTH_ENGINE_PROCESS_CHILD_FILES_H
#define HTH_ENGINE_PROCESS_CHILD_FILES_H

#include "base/opener.h"

// hth_child_files_use has hth_open_data and hth_open_scratch ask over `socket` from now on: the
// child's side. To be called before there is any other thread.
void hth_child_files_use(int socket);
// hth_child_files_serve answers what comes over `socket`, until the other side is gone or it is
// shut down: hearthd's side. `store`: the folder of the store that the child works on.
void hth_child_files_serve(int socket, const char *store);

#endif
