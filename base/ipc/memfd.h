// SPDX-License-Identifier: Apache-2.0
// base/ipc/memfd.h - memory that another process can map too, without a name in the file system.
#ifndef HTH_BASE_IPC_MEMFD_H
#define HTH_BASE_IPC_MEMFD_H

#include "base/err.h"

#include <stddef.h>

// hth_memfd_make makes `bytes` of zeroed memory and maps it for reading and writing; *fd is its
// descriptor (closed on exec), to be passed on or opened through /proc/PID/fd. It is sealed: its
// size cannot change, so that no access by whoever maps it can fault. Ended by hth_memfd_drop. On
// error *fd is -1 and *out NULL. HTH_EIO, HTH_ENOMEM and so on by the system's reason.
hth_err hth_memfd_make(const char *name, size_t bytes, int *fd, void **out);
void hth_memfd_drop(int fd, void *p, size_t bytes); // fd -1: it was closed before

#endif
