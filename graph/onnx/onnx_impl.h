// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_impl.h - the files of one model: the .onnx file, and those with external data.
// Private to graph/onnx*.c.
//
// Design notes
// The files belong to somebody who may change them at any time. What steers the importer, the
// model's structure, is read into memory once; large tensors stay where they are, and are read when
// somebody wants their bytes (hth_onnx_parts_read), so that a model needs not fit into memory.
// Nothing is mapped: a mapping of a file that is cut ends the process. Every read looks whether the
// file is still the one that was opened.
#ifndef HTH_GRAPH_ONNX_ONNX_IMPL_H
#define HTH_GRAPH_ONNX_ONNX_IMPL_H

#include "base/file.h"
#include "graph/onnx/onnx_tensor.h"

// Tensors of more bytes stay in their files.
#define HTH_ONNX_KEPT_BYTES 65536

typedef struct hth_onnx_part {
    char *location; // as the model writes it; of the model itself its path
    hth_file file;
} hth_onnx_part;

typedef struct hth_onnx_parts { // zeroed: no files, external data refused
    bool has_folder;
    int folder;                  // descriptor of the model's folder
    const hth_onnx_given *given; // instead of a folder
    int n_given;
    hth_onnx_wanted *wanted; // what is not given
    uint64_t bytes, max_bytes;
    hth_onnx_part *part; // part[0] is the model
    int n, cap;
    void *model; // the model file; what is in its large initializers is left out and reads as zeros
    size_t model_bytes;
} hth_onnx_parts;

// hth_onnx_parts_open opens the model file and reads it. On error too, hth_onnx_parts_close frees
// what is held.
hth_err hth_onnx_parts_open(hth_onnx_parts *parts, const char *path, uint64_t max_bytes,
                            hth_span *out);
// hth_onnx_parts_given does so with what parts->given has.
hth_err hth_onnx_parts_given(hth_onnx_parts *parts, const char *shown, uint64_t max_bytes,
                             hth_span *out);
// hth_onnx_parts_external finds where an external tensor's bytes are. *part -1: in a file that is
// wanted. HTH_EDENIED: the file is not below the model's folder.
hth_err hth_onnx_parts_external(hth_onnx_parts *parts, const hth_onnx_head *head, int *part,
                                uint64_t *offset, uint64_t *bytes);
// hth_onnx_parts_read reads `n` bytes at `offset` of a file. HTH_EIO: it changed since it was
// opened. Any thread.
hth_err hth_onnx_parts_read(const hth_onnx_parts *parts, int part, uint64_t offset, void *dst,
                            size_t n);
void hth_onnx_parts_close(hth_onnx_parts *parts);

#endif
