// SPDX-License-Identifier: Apache-2.0
// base/ipc/slab.h - memory that two processes see: a memfd, from which one of them gives out
// blocks.
//
// Design notes
// The owner writes, the other side has mapped it for reading only and names what lies there by
// offset. A side that is not trusted gets a descriptor that is good for no more (hth_slab_reader).
// The bookkeeping stands in front of the blocks, where only the owner can write: a peer that has
// gone mad spoils nothing. The file is sparse and cannot change its size, so no access can fault;
// memory that is free again beyond HTH_SLAB_KEEP goes back to the system.
#ifndef HTH_BASE_IPC_SLAB_H
#define HTH_BASE_IPC_SLAB_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_SLAB_ALIGN 64u
#define HTH_SLAB_KEEP  (16u << 20) // bytes at the beginning that stay when they are free

typedef struct hth_slab hth_slab;

// hth_slab_make makes a file `name` (seen in /proc/PID/maps) of at most `bytes` and stores how
// large it is: less where the address space is limited.
hth_err hth_slab_make(const char *name, uint64_t bytes, int *fd, uint64_t *made);
// hth_slab_open maps a file of hth_slab_make; `fd` stays the caller's and must outlive the slab.
// owner: blocks are given out here.
hth_err hth_slab_open(int fd, uint64_t bytes, bool owner, hth_slab **out);
void hth_slab_close(hth_slab *slab); // NULL is allowed
// hth_slab_reader stores a descriptor of the file `fd`, the caller's, by which it can be mapped for
// reading only. Who has no other one, and none of root's rights over files, cannot open it for
// more.
hth_err hth_slab_reader(int fd, int *reader);

// hth_slab_alloc gives out a block at a multiple of HTH_SLAB_ALIGN; NULL: there is none of that
// size. Owner; any thread.
void *hth_slab_alloc(hth_slab *slab, size_t bytes);
void hth_slab_free(hth_slab *slab, void *block); // NULL is allowed

// hth_slab_offset is where `p`, inside the slab, lies; hth_slab_at is the address of `bytes` at
// `offset`, NULL when they are not all inside.
uint64_t hth_slab_offset(const hth_slab *slab, const void *p);
void *hth_slab_at(const hth_slab *slab, uint64_t offset, uint64_t bytes);
bool hth_slab_holds(const hth_slab *slab, const void *p, size_t bytes);

#endif
