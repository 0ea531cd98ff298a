// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx.h - ONNX files: reading a model file without its weights, and the skeleton that
// the store keeps.
//
// Design notes
// hth_onnx_open reads the file but for its large tensors, and walks its protobuf wire format once:
// it finds every initializer's bytes (raw_data, external data files, or typed fields, which are
// converted) and makes the *skeleton*: the same ModelProto with the tensors' bytes taken out. Only
// the skeleton goes through protobuf-c. The store keeps the skeleton and a list of tensor ids;
// hth_onnx_load turns both back into a model graph.
#ifndef HTH_GRAPH_ONNX_ONNX_H
#define HTH_GRAPH_ONNX_ONNX_H

#include "graph/graph.h"

typedef struct hth_onnx_limits {
    uint64_t max_model_bytes; // file and external data together
    uint64_t max_tensor_elements;
    int max_nodes, max_rank; // rank <= HTH_MAX_RANK
    int max_signature;       // inputs and outputs together
} hth_onnx_limits;
extern const hth_onnx_limits hth_onnx_default_limits; // 64 GiB, 2^40, 200,000, 8, 4,096

typedef struct hth_onnx_tensor {
    char *name;
    hth_dtype dtype;
    hth_shape shape;
    const void *data; // little-endian, row-major; the file's. NULL: hth_onnx_tensor_read
    size_t bytes;
    int part; // where it is read from
    uint64_t at;
} hth_onnx_tensor;

typedef struct hth_onnx_file hth_onnx_file;

// hth_onnx_open reads `path`. Errors (HTH_ECORRUPT, HTH_ENOTSUP, HTH_ETOOBIG, HTH_ENOENT) name the
// offending part. External data must lie below the model's folder: absolute paths, "..", and links
// out of it are refused.
hth_err hth_onnx_open(const char *path, const hth_onnx_limits *limits, hth_onnx_file **out);
// hth_onnx_open_given is the same for descriptors that a client has passed, which were looked at
// (base/file.h) and stay the caller's: given[0] is the model, which is called `shown`, the others
// its external data by their locations. HTH_ENOENT: some are not there, and *wanted lists them, at
// most HTH_ONNX_WANTED.
#define HTH_ONNX_WANTED 1024
typedef struct hth_onnx_given {
    const char *location;
    int fd;
} hth_onnx_given;
typedef struct hth_onnx_wanted {
    char **location;
    int n, cap;
} hth_onnx_wanted;
hth_err hth_onnx_open_given(const char *shown, const hth_onnx_given *given, int n,
                            const hth_onnx_limits *limits, hth_onnx_wanted *wanted,
                            hth_onnx_file **out);
void hth_onnx_wanted_fini(hth_onnx_wanted *wanted);
// hth_onnx_open_bytes is the same for a buffer (no external data); the buffer must outlive the
// file. For fuzzing, uploads.
hth_err hth_onnx_open_bytes(const void *data, size_t bytes, const hth_onnx_limits *limits,
                            hth_onnx_file **out);
void hth_onnx_close(hth_onnx_file *file);
int hth_onnx_n_tensors(const hth_onnx_file *file);
const hth_onnx_tensor *hth_onnx_tensor_at(const hth_onnx_file *file, int i);
// hth_onnx_tensor_read reads `n` bytes at `offset` of the i-th tensor, wherever they are. HTH_EIO:
// the file changed since it was opened, HTH_ECORRUPT: a BOOL that is none. Any thread; blocks for
// as long as the file system does.
hth_err hth_onnx_tensor_read(const hth_onnx_file *file, int i, uint64_t offset, void *dst,
                             size_t n);
const void *hth_onnx_skeleton(const hth_onnx_file *file, size_t *bytes);

// What a model's author says of it, ModelProto.metadata_props, stays in the skeleton, and so in
// what is exported of it: entries up to HTH_ONNX_METADATA bytes in all; what has no room is left
// out.
// hth_onnx_metadata calls `fn` for each entry, in the file's order. Texts are borrowed, not
// terminated, and may be any bytes; keys may repeat. An entry that is damaged is left out. No
// allocation; any thread.
#define HTH_ONNX_METADATA ((size_t)1 << 20)
typedef struct hth_onnx_text {
    const char *text;
    size_t bytes;
} hth_onnx_text;
typedef void (*hth_onnx_metadata_fn)(void *ctx, hth_onnx_text key, hth_onnx_text value);
void hth_onnx_metadata(const void *skeleton, size_t bytes, hth_onnx_metadata_fn fn, void *ctx);

// hth_onnx_load builds the model graph from a skeleton and the initializers' contents: tensors[i]
// belongs to the i-th initializer of the skeleton (hth_onnx_tensor_at's order); each gets one more
// reference. Refuses unknown operators, versions, dtypes by node name, operator and opset;
// duplicates, cycles, dangling names. Result is canonical (graph.h).
hth_err hth_onnx_load(const void *skeleton, size_t bytes, hth_const *const *tensors, int n_tensors,
                      const hth_onnx_limits *limits, hth_graph **out);
// hth_onnx_export_write writes the ONNX file of a skeleton and its tensors, front to back, with at
// most 1 MiB of a tensor at a time. Opened again, it gives the same skeleton and tensors.
typedef struct hth_onnx_export {
    const void *skeleton;
    size_t skeleton_bytes;
    int n_tensors;
    bool inference; // without training mode: Dropout does not drop, batch norm takes its statistics
    // read stores `n` bytes at `at` of the i-th tensor, in order; write takes the file's next ones.
    // What they fail with is what the export fails with.
    hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n);
    hth_err (*write)(void *ctx, const void *data, size_t n);
    void *ctx;
} hth_onnx_export;
// HTH_ETOOBIG: the file would have 2 GiB or more, before anything is written. HTH_ECORRUPT: the
// skeleton is damaged, or has another number of tensors.
hth_err hth_onnx_export_write(const hth_onnx_export *export);
// hth_onnx_load_file is open + load with tensors that are read into memory. For tests and tools
// that need no store.
hth_err hth_onnx_load_file(const char *path, hth_graph **out);

#endif
