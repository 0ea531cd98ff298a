// SPDX-License-Identifier: Apache-2.0
// client/npy.h - numpy's .npy files, versions 1 to 3, every type that hearth holds.
#ifndef HTH_CLIENT_NPY_H
#define HTH_CLIENT_NPY_H

#include "client/hearth.h"

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// hth_npy_parse reads the header of `bytes` bytes at `file`: dtype, rank, shape and bytes of *out
// (data points into `file`), and whether the elements are in Fortran order. HTH_ECORRUPT: no .npy
// file, or cut short; HTH_ENOTSUP: a type or byte order that hearth does not hold. Borrows nothing
// else; fuzzed.
hth_err hth_npy_parse(const void *file, size_t bytes, hearth_tensor *out, bool *fortran);
// hth_npy_describe is the same for the file's first `bytes` bytes, which hold the header; the
// elements, from byte *start on, need not be there. out->data is NULL.
hth_err hth_npy_describe(const void *file, size_t bytes, hearth_tensor *out, bool *fortran,
                         size_t *start);
// hth_npy_transpose writes the elements of a tensor in Fortran order to `out`, row-major; both have
// t->bytes bytes.
void hth_npy_transpose(const hearth_tensor *tensor, uint8_t *out);
// hth_npy_read reads an array from what the user of this process named: a file, a FIFO, "-" for
// standard input (hth_file_load_own). out->data is row-major, 64-byte aligned, and freed by
// hth_free; out->name is NULL. What follows the array is not read.
hth_err hth_npy_read(const char *path, hearth_tensor *out);
// The steps of hth_npy_read, for those who learn from a file's bytes what it is: hth_npy_is looks
// at its beginning; hth_npy_begins (hth_file_begins) ends the reading of what is no array, and
// reads no more than the array, for a stream may have no end; hth_npy_of is what was read.
#define HTH_NPY_FILE ((size_t)64 << 30) // most bytes of a file
bool hth_npy_is(const void *data, size_t bytes);
hth_err hth_npy_begins(const void *data, size_t bytes, size_t *end);
hth_err hth_npy_of(const char *shown, const void *file, size_t bytes, hearth_tensor *out);
// hth_npy_write replaces `path`. bfloat16, which numpy has not, is written as the 16-bit integers
// of its pattern.
hth_err hth_npy_write(const char *path, const hearth_tensor *tensor);

#endif
