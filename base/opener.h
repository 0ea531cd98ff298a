// SPDX-License-Identifier: Apache-2.0
// base/opener.h - files by paths that users named, where this process may not open them itself.
//
// Design notes
// A process that is confined to its own folders still trains on files that lie elsewhere. It asks
// the process that started it, which knows what was named by whom. Everywhere else the same calls
// open the file here, with the same sentences.
#ifndef HTH_BASE_OPENER_H
#define HTH_BASE_OPENER_H

#include "base/file.h"

typedef enum hth_open_use {
    HTH_OPEN_DATA,    // a regular file, for reading
    HTH_OPEN_SCRATCH, // a new file without a name, in a folder, for reading and writing
    HTH_N_OPEN_USES
} hth_open_use;

// An opener stores a descriptor, which the caller closes, in *fd; on an error *fd is -1.
typedef hth_err (*hth_opener_fn)(void *ctx, hth_open_use use, const char *path, int *fd);

// hth_opener_set has `fn` open what hth_open_data and hth_open_scratch want; NULL: this process
// does so itself. To be called before there is any other thread.
void hth_opener_set(hth_opener_fn fn, void *ctx);
// hth_open_here opens `path` in this process, even if hth_opener_set has named another opener.
// HTH_ENOENT, HTH_EDENIED and others by the system's reason; HTH_EINVAL: a file to be read is not
// a regular file. Any thread; blocks for as long as the file system does.
hth_err hth_open_here(hth_open_use use, const char *path, int *fd);

// hth_open_data opens the regular file `path` for reading; closed by hth_file_close.
hth_err hth_open_data(const char *path, hth_file *out);
// hth_open_scratch makes a file without a name in `folder`. Its mode is 0600.
hth_err hth_open_scratch(const char *folder, int *fd);

#endif
