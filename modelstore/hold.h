// SPDX-License-Identifier: Apache-2.0
// modelstore/hold.h - what is used for long, and may not go meanwhile.
#ifndef HTH_MODELSTORE_HOLD_H
#define HTH_MODELSTORE_HOLD_H

#include "modelstore/store.h"

#define HTH_STORE_HOLDS "holds" // the folder of the locks in the store

// hth_store_hold holds what is called `what`, shared with others, or alone, until hth_store_let_go
// or the end of the process; it does not wait. HTH_EBUSY: others hold it; HTH_EDENIED: the store is
// read-only. On an error *fd is -1. Any thread, any process.
hth_err hth_store_hold(hth_store *store, const char *what, bool alone, int *fd);
void hth_store_let_go(int fd); // -1 is allowed
// hth_store_hold_end lets go of what is held alone, and which there will be no more: nothing of the
// lock is left. fd -1 is allowed.
void hth_store_hold_end(hth_store *store, const char *what, int fd);

#endif
