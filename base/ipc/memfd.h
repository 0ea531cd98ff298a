// SPDX-License-Identifier: Apache-2.0
// base/ipc/memfd.h - memory that another process can map too, without a name in the file system.
#ifndef HTH_BASE_IPC_MEMFD_H
#define HTH_BASE_IPC_MEMFD_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

// hth_memfd_make makes `bytes` of zeroed memory and maps it for reading and writing; *fd is its
// descriptor (closed on exec), to be passed on or opened through /proc/PID/fd. It is sealed: its
// size cannot change, so that no access by whoever maps it can fault. Ended by hth_memfd_drop. On
// error *fd is -1 and *out NULL. HTH_EIO, HTH_ENOMEM and so on by the system's reason.
hth_err hth_memfd_make(const char *name, size_t bytes, int *fd, void **out);
void hth_memfd_drop(int fd, void *p, size_t bytes); // fd -1: it was closed before

// hth_memfd_check proves that a descriptor is a memfd of `bytes` which cannot shrink. One that is
// no memfd has no seals: F_GET_SEALS fails on it. Huge pages are refused: holes in them fault.
// HTH_EDENIED; HTH_EINVAL: it is smaller.
hth_err hth_memfd_check(int fd, uint64_t bytes);

#endif
