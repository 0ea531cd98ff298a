// SPDX-License-Identifier: Apache-2.0
// modelstore/file.h - the store's file operations. Each changing operation is a point at which a
// test can make it fail or kill the process. Paths are relative to the directory `dir`; sentences
// name the path. Any thread.
#ifndef HTH_MODELSTORE_FILE_H
#define HTH_MODELSTORE_FILE_H

#include "base/err.h"
#include "base/id.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_path {
    char text[96]; // longest: "tensors/ab/" and 62 digits
} hth_path;

hth_path hth_path_of_tensor(const hth_id *id); // "tensors/ab/cdef.."
hth_path hth_path_of_temp(void);               // "tmp/" and 16 random digits

// hth_store_file_mkdir makes one directory; one that exists is fine.
hth_err hth_store_file_mkdir(int dir, const char *path);
// hth_store_file_write makes the new file `path` of `bytes` bytes and starts, but does not wait
// for, its way to the disk. `tick` (may be NULL) is called after each piece with its size; an error
// from it ends the writing. On error the file may exist in part.
hth_err hth_store_file_write(int dir, const char *path, const void *data, size_t bytes,
                             hth_err (*tick)(void *ctx, size_t bytes), void *ctx);
// hth_store_file_write_from is the same for bytes that come in pieces: `piece` stores where the `n`
// bytes at `at` are, until its next call; an error from it ends the writing.
hth_err
hth_store_file_write_from(int dir, const char *path, size_t bytes,
                          hth_err (*piece)(void *ctx, size_t at, size_t n, const void **data),
                          void *piece_ctx, hth_err (*tick)(void *ctx, size_t bytes), void *ctx);
// hth_store_file_part_open opens a file that grows by hth_store_file_part_write, and is made where
// it is absent (make), else HTH_ENOENT; the caller closes *fd. HTH_EBUSY: there is no descriptor
// for it now, the disk is well. hth_store_file_part_cut has it end after `bytes`.
hth_err hth_store_file_part_open(int dir, const char *path, bool make, int *fd);
hth_err hth_store_file_part_write(int fd, const char *path, const void *data, size_t bytes,
                                  uint64_t at);
hth_err hth_store_file_part_cut(int fd, const char *path, uint64_t bytes);
// Bytes of a piece, at most: enough that a system call is nothing beside the copy, few enough to be
// in a core's cache still when what was read into them is written.
#define HTH_STORE_CHUNK ((size_t)1 << 20)
// hth_store_file_sync waits until the file's or directory's contents are on the disk.
hth_err hth_store_file_sync(int dir, const char *path);
hth_err hth_store_file_rename(int dir, const char *from, const char *to);
// hth_store_file_replace is the same; what is at `to` and is no file, an empty folder, goes first.
hth_err hth_store_file_replace(int dir, const char *from, const char *to);
hth_err hth_store_file_unlink(int dir, const char *path); // one that does not exist is fine
// hth_store_file_point is an operation done elsewhere (the index's commit), named for the sentence.
hth_err hth_store_file_point(const char *what);
// hth_store_file_bytes stores the size of a file; HTH_ENOENT when there is none.
hth_err hth_store_file_bytes(int dir, const char *path, uint64_t *out);
// hth_store_file_lock waits for the lock file `path`, shared or exclusive, between threads and
// processes alike. The caller closes *fd to let go; the system does when the process dies.
hth_err hth_store_file_lock(int dir, const char *path, bool exclusive, int *fd);
// hth_store_file_lock_now is the same, exclusive, and does not wait. HTH_EBUSY: somebody has it.
hth_err hth_store_file_lock_now(int dir, const char *path, int *fd);
// hth_store_read_only is the refusal to change a store that is open read-only: HTH_EDENIED.
hth_err hth_store_read_only(void);
// hth_store_file_scan calls fn for each entry of a directory but "." and ".."; an error from fn
// ends the scan.
hth_err hth_store_file_scan(int dir, const char *path, hth_err (*fn)(void *ctx, const char *name),
                            void *ctx);

// hth_store_file_fault makes the n-th changing operation from now (1-based, all threads together)
// fail with `errnum`, half done if it is a write; HTH_STORE_FILE_KILL: the process is killed there
// instead. 0 turns it off.
#define HTH_STORE_FILE_KILL (-1)
void hth_store_file_fault(uint64_t nth, int errnum);
// hth_store_file_full has every changing operation fail with ENOSPC until it is turned off.
void hth_store_file_full(bool full);

#endif
