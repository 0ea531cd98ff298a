// SPDX-License-Identifier: Apache-2.0
// client/content/export_write.h - writes the file of an export from its first byte to its last. The
// tensors are read from a store or fetched from a server.
#ifndef HTH_CLIENT_CONTENT_EXPORT_WRITE_H
#define HTH_CLIENT_CONTENT_EXPORT_WRITE_H

#include "client/content/objects.h"
#include "client/export_format.h"

typedef struct hth_export_source {
    const hth_content_object *objects;
    int n;
    const void *skeleton;
    size_t skeleton_bytes;
    bool trained; // by hearth: an ONNX file gets the inference form
    // read stores `n` bytes, from `at` on, of the i-th object: objects in order, each from front to
    // back, and each piece is the next that is written. write takes the file's next bytes.
    hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n);
    hth_err (*write)(void *ctx, const void *data, size_t n);
    void *ctx;
} hth_export_source;

// hth_export_write writes the whole file, at most 1 MiB of a tensor at a time. HTH_ETOOBIG: more
// than an ONNX file holds.
hth_err hth_export_write(const hth_export_source *source, hth_export_format format);

#endif
