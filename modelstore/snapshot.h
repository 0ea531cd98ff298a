// SPDX-License-Identifier: Apache-2.0
// modelstore/snapshot.h - a copy of an LMDB file in memory, for a reader that cannot be in its
// table of readers.
#ifndef HTH_MODELSTORE_SNAPSHOT_H
#define HTH_MODELSTORE_SNAPSHOT_H

#include "base/err.h"

// hth_snapshot_take copies the LMDB file `path`, as one commit left it, to a memfd that the caller
// closes, while other processes may write. HTH_EBUSY: somebody commits all the time.
hth_err hth_snapshot_take(const char *path, int *fd);

#endif
