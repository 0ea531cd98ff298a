// SPDX-License-Identifier: Apache-2.0
// client/content/partial_file.h - a file that appears whole, and whose writer may be killed and go
// on: it is written as PATH.part, which the next writer of the same path finds.
//
// Who finds one believes nothing of it: it checks what it uses. A part that is another user's, or
// no regular file, or that another process writes at the moment, is left alone, and a file of
// another name is written instead.
#ifndef HTH_CLIENT_CONTENT_PARTIAL_FILE_H
#define HTH_CLIENT_CONTENT_PARTIAL_FILE_H

#include "client/atomic_file.h"

#include <stdint.h>

#define HTH_PARTIAL_TAIL ".part"

typedef struct hth_partial_file {
    hth_atomic_file file;
    uint64_t have; // bytes that were there
    uint64_t at;   // .. where the next ones go
    uint64_t sent; // .. that the disk was told of
    bool named;    // a part that others may find; else it goes with its writer
} hth_partial_file;

// hth_partial_file_begin opens or makes the file that will become `path`.
hth_err hth_partial_file_begin(const char *path, hth_partial_file *file);
// hth_partial_file_read stores the next `n` bytes of those that were there, and passes over them;
// false: there are not as many, or they cannot be read.
bool hth_partial_file_read(hth_partial_file *file, void *dst, size_t n);
// hth_partial_file_write writes the next `n` bytes.
hth_err hth_partial_file_write(hth_partial_file *file, const void *data, size_t n);
// hth_partial_file_again begins anew: nothing that was there counts.
void hth_partial_file_again(hth_partial_file *file);

typedef enum hth_partial_end {
    HTH_PARTIAL_WHOLE, // synced, and gets its name
    HTH_PARTIAL_LEFT,  // stays as a part
    HTH_PARTIAL_REMOVED,
} hth_partial_end;
// hth_partial_file_end: the sentence of an earlier error stays unless this fails.
hth_err hth_partial_file_end(hth_partial_file *file, hth_partial_end end);

#endif
