// SPDX-License-Identifier: Apache-2.0
// client/file.h - files that appear whole: written under another name, synced, renamed.
#ifndef HTH_CLIENT_FILE_H
#define HTH_CLIENT_FILE_H

#include "base/err.h"

#include <stddef.h>

typedef struct hth_file_piece {
    const void *data;
    size_t bytes;
} hth_file_piece;

// hth_file_write replaces `path` by the concatenation of n pieces. On error `path` is as it was.
hth_err hth_file_write(const char *path, const hth_file_piece *piece, size_t n);
// hth_file_read stores the whole content, hth_alloc'd with a NUL behind it. HTH_ETOOBIG: more than
// `most` bytes.
hth_err hth_file_read(const char *path, size_t most, void **out, size_t *bytes);

#endif
