// SPDX-License-Identifier: Apache-2.0
// client/whole.h - files that appear whole: written under another name, synced, renamed.
#ifndef HTH_CLIENT_WHOLE_H
#define HTH_CLIENT_WHOLE_H

#include "base/err.h"

#include <stddef.h>

typedef struct hth_whole_piece {
    const void *data;
    size_t bytes;
} hth_whole_piece;

// hth_whole_write replaces `path` by the concatenation of n pieces. On error `path` is as it was.
hth_err hth_whole_write(const char *path, const hth_whole_piece *piece, size_t n);

#endif
