// SPDX-License-Identifier: Apache-2.0
// client/whole.h - files that appear whole: written under another name, synced, renamed.
#ifndef HTH_CLIENT_WHOLE_H
#define HTH_CLIENT_WHOLE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_whole_piece {
    const void *data;
    size_t bytes;
} hth_whole_piece;

// A file that is being written under another name.
typedef struct hth_whole {
    char *path, *tmp;
    int fd;
} hth_whole;

// hth_whole_begin makes the file that will become `path`; the caller writes to w->fd. hth_whole_end
// syncs it and gives it its name (keep), or removes it; the sentence of an earlier error stays.
hth_err hth_whole_begin(const char *path, hth_whole *w);
hth_err hth_whole_end(hth_whole *w, bool keep);
// hth_whole_put writes n pieces to a descriptor; `shown` is for messages.
hth_err hth_whole_put(int fd, const char *shown, const hth_whole_piece *piece, size_t n);
// hth_whole_write replaces `path` by the concatenation of n pieces. On error `path` is as it was.
hth_err hth_whole_write(const char *path, const hth_whole_piece *piece, size_t n);

#endif
