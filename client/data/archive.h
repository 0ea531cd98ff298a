// SPDX-License-Identifier: Apache-2.0
// client/data/archive.h - the arrays of a .npz archive, one by one and of any shapes: what a
// dataset (data.h) has to agree on, they need not.
#ifndef HTH_CLIENT_DATA_ARCHIVE_H
#define HTH_CLIENT_DATA_ARCHIVE_H

#include "client/data/zip.h"
#include "client/hearth.h"

#include <stdbool.h>

// Read-only for its user.
typedef struct hth_archive {
    const char *shown; // borrowed; begins the sentence of every error
    hth_file file;
    hth_zip_member *member; // those that are arrays; their names are without ".npy"
    int n;
} hth_archive;

// hth_archive_is tells by the first bytes whether it is an archive.
bool hth_archive_is(const void *data, size_t bytes);
// hth_archive_open opens the archive at `path`, of which at most HTH_ARCHIVE_ARRAYS members are
// read; `path` must outlive it. Errors are those of hth_file_open and hth_zip_read, and HTH_EINVAL:
// it has no array. On an error there is nothing to close.
#define HTH_ARCHIVE_ARRAYS 4096
hth_err hth_archive_open(const char *path, hth_archive *out);
// hth_archive_of is the same for the bytes of one, which are copied. HTH_EIO: there is no room for
// them in memory (a file without a name).
hth_err hth_archive_of(const char *shown, const void *data, size_t bytes, hth_archive *out);
void hth_archive_close(hth_archive *archive); // zeroed, closed before: nothing happens

// hth_archive_find returns the number of the array `name`, -1: there is none.
int hth_archive_find(const hth_archive *archive, const char *name);
// hth_archive_names writes the arrays' names, "'a', 'b', ..", as far as there is room.
const char *hth_archive_names(const hth_archive *archive, char *out, size_t cap);
// hth_archive_read reads array i: row-major, as hth_npy_read does. HTH_ECORRUPT: it is damaged, or
// says more than it holds; HTH_ENOTSUP: a type that hearth does not hold; HTH_ENOMEM.
hth_err hth_archive_read(const hth_archive *archive, int i, hearth_tensor *out);

// ---- an array in a stream, for those who read a part of it at a time

// hth_array_member makes the stream of a member; `shown` and the file are borrowed.
void hth_array_member(const hth_file *file, const hth_zip_member *member, const char *shown,
                      hth_stream *out);
// hth_array_head reads the header at a stream's beginning: dtype, rank, shape and bytes of *out,
// whether the elements are in Fortran order, and where in the stream they are. `bytes`: what there
// is of it in all. Errors like hth_archive_read's.
hth_err hth_array_head(hth_stream *stream, uint64_t bytes, hearth_tensor *out, bool *fortran,
                       uint64_t *start);
// hth_array_turn reads the elements of one in Fortran order to `out`, row-major.
hth_err hth_array_turn(hth_stream *stream, uint64_t start, const hearth_tensor *tensor,
                       uint8_t *out);

#endif
