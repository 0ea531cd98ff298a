// SPDX-License-Identifier: Apache-2.0
// base/ipc/shm_guard.h - mapped files whose owner may shrink them: what is gone reads as zeros.
#ifndef HTH_BASE_IPC_SHM_GUARD_H
#define HTH_BASE_IPC_SHM_GUARD_H

#include <stdint.h>

// hth_shm_guard makes accesses to a mapping harmless, whatever becomes of the file, and returns its
// row; -1: there are too many. hth_shm_unguard forgets it, once it is unmapped; -1 is allowed. Any
// thread.
int hth_shm_guard(const void *data, uint64_t bytes);
void hth_shm_unguard(int row);

#endif
