// SPDX-License-Identifier: Apache-2.0
// server/net/mapped.h - the address space that clients' shared memory takes, in one sum for all
// front ends. A file need not have the memory that it says it has: without a limit a few calls use
// up the addresses that a process has, and nothing can be mapped any more. Nor can it where small
// mappings are as many as the kernel lets a process have. Any thread.
#ifndef HTH_SERVER_NET_MAPPED_H
#define HTH_SERVER_NET_MAPPED_H

#include "base/err.h"

#include <stdint.h>

// Mappings of one tenant.
#define HTH_MAPPED_REGIONS 2048

// hth_mapped_take counts one mapping of `bytes` that is about to be made for `who`, a tenant.
// HTH_EBUSY, in a sentence for the client: he would have more than shm.bytes, or
// HTH_MAPPED_REGIONS, or all together more than 16 times that.
hth_err hth_mapped_take(const char *who, uint64_t bytes);
void hth_mapped_give(const char *who, uint64_t bytes); // one of so many is unmapped

#endif
