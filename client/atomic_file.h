// SPDX-License-Identifier: Apache-2.0
// client/atomic_file.h - files that appear whole: written under another name, synced, renamed.
#ifndef HTH_CLIENT_ATOMIC_FILE_H
#define HTH_CLIENT_ATOMIC_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_atomic_file_piece {
    const void *data;
    size_t bytes;
} hth_atomic_file_piece;

// A file that is being written under another name.
typedef struct hth_atomic_file {
    char *path, *tmp;
    int fd;
} hth_atomic_file;

// hth_atomic_file_begin makes the file that will become `path`; the caller writes to file->fd.
// hth_atomic_file_end syncs it and gives it its name (keep), or removes it; the sentence of an
// earlier error stays.
hth_err hth_atomic_file_begin(const char *path, hth_atomic_file *file);
hth_err hth_atomic_file_end(hth_atomic_file *file, bool keep);
// hth_atomic_file_put writes `count` pieces to a descriptor; `shown` is for messages.
hth_err hth_atomic_file_put(int fd, const char *shown, const hth_atomic_file_piece *piece,
                            size_t count);
// hth_atomic_file_write replaces `path` by the concatenation of `count` pieces. On error `path` is
// as it was.
hth_err hth_atomic_file_write(const char *path, const hth_atomic_file_piece *piece, size_t count);

#endif
