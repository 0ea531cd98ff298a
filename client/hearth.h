// SPDX-License-Identifier: Apache-2.0
// hearth.h - the public API: one way to use hearth over a local socket, over the network, or
// embedded.
//
// A connection is opened once and used from any thread; calls block until they are answered. Every
// function returns HEARTH_OK or an error code; hearth_error() gives the sentence for the calling
// thread. Structures filled by hearth are freed by the function that the comment names. Tensors are
// row-major, little-endian. After a fork the connections of before give the child HEARTH_EINVAL,
// and closing them there does nothing; it opens its own, to a server.
#ifndef HEARTH_H
#define HEARTH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEARTH_API      __attribute__((visibility("default")))
#define HEARTH_VERSION  "0.1.0"
#define HEARTH_MAX_RANK 8

typedef enum hearth_status {
    HEARTH_OK = 0,
    HEARTH_EINVAL,
    HEARTH_ENOENT,
    HEARTH_EEXIST,
    HEARTH_EBUSY,
    HEARTH_EDENIED,
    HEARTH_ENOMEM,
    HEARTH_ENODEVMEM,
    HEARTH_ETOOBIG,
    HEARTH_EDEVLOST,
    HEARTH_ECANCELED,
    HEARTH_ECORRUPT,
    HEARTH_ENOTSUP,
    HEARTH_EIO,
    HEARTH_ETIMEDOUT
} hearth_status;

// Element types, ONNX numbering.
typedef enum hearth_dtype {
    HEARTH_F32 = 1,
    HEARTH_U8 = 2,
    HEARTH_I8 = 3,
    HEARTH_U16 = 4,
    HEARTH_I16 = 5,
    HEARTH_I32 = 6,
    HEARTH_I64 = 7,
    HEARTH_BOOL = 9,
    HEARTH_F16 = 10,
    HEARTH_F64 = 11,
    HEARTH_U32 = 12,
    HEARTH_U64 = 13,
    HEARTH_BF16 = 16
} hearth_dtype;

typedef struct hearth hearth; // a connection

typedef struct hearth_options {
    const char *store;    // inproc: directory of the store (created if absent); else ignored
    const char *device;   // inproc: "cpu:mem=2GiB,threads=2"; NULL: "cpu"; several: blanks between
    uint64_t timeout_ms;  // per call, 0: 10 minutes
    int no_shared_memory; // 1: never pass tensors, requests and answers through shared memory
    const char *token;    // what the server knows the caller by; NULL: nothing
    const char *ca_file; // tls+tcp: PEM file of who may have signed the server's certificate; NULL:
                         // the system's
    int no_ring;         // 1: only tensors, in buffers; requests and answers over the socket
} hearth_options;

typedef struct hearth_tensor {
    const char *name;
    hearth_dtype dtype;
    int rank;
    int64_t shape[HEARTH_MAX_RANK];
    void *data;
    size_t bytes;
} hearth_tensor;

// hearth_open connects to `url`: "ipc:///run/hearth.sock", "tcp://host:port",
// "tls+tcp://host:port", or "inproc://" (an engine inside this process, on options->store). options
// may be NULL except for inproc. On error *out is NULL.
HEARTH_API hearth_status hearth_open(const char *url, const hearth_options *options, hearth **out);
// hearth_local_url writes the url of the server of this machine, for hearth_open: the first of
// /run/hearth.sock, /run/hearth/hearth.sock, hearth.sock in `runtime_dir` ($XDG_RUNTIME_DIR; may be
// NULL) and /tmp/hearth-UID.sock at which root, the system's service or the caller's own user
// listens. HEARTH_ENOENT: there is none; HEARTH_EDENIED: only somebody else's.
HEARTH_API hearth_status hearth_local_url(const char *runtime_dir, char *url, size_t bytes);
HEARTH_API void hearth_close(hearth *h); // NULL is allowed; waits for calls in flight
HEARTH_API const char *
hearth_error(void); // sentence of the calling thread's last error; never NULL
HEARTH_API const char *hearth_strerror(hearth_status s); // constant phrase

// hearth_infer runs one request. `model` is "name" or "name:version". Outputs: *outputs gets an
// array of *n tensors, freed by hearth_tensors_free. Inputs are borrowed for the call; `name` may
// be NULL when the model has one input. To a server on this machine requests and answers go through
// shared memory where that is possible, from the second call of a connection on.
HEARTH_API hearth_status hearth_infer(hearth *h, const char *model, const hearth_tensor *inputs,
                                      int n_inputs, hearth_tensor **outputs, int *n_outputs);
// hearth_infer_with is hearth_infer with options; NULL: none. A request that waits for the device
// longer than its timeout is refused with HEARTH_ETIMEDOUT; one that runs is not stopped by it.
typedef struct hearth_infer_options {
    uint32_t priority;   // 1 comes first, then 2, ..; 0: the model's default
    uint64_t timeout_us; // to wait in the server's queue; 0: the model's default
} hearth_infer_options;
HEARTH_API hearth_status hearth_infer_with(hearth *h, const char *model,
                                           const hearth_tensor *inputs, int n_inputs,
                                           const hearth_infer_options *options,
                                           hearth_tensor **outputs, int *n_outputs);
HEARTH_API void hearth_tensors_free(hearth_tensor *t, int n);
// hearth_outputs_version returns the version of the model that gave `outputs`, which are those of
// hearth_infer and not freed yet; 0: the server did not say.
HEARTH_API int hearth_outputs_version(const hearth_tensor *outputs);

// hearth_buffer_alloc gives memory that hearth_infer passes to a local server without copying: fill
// it and use it as a tensor's data. Plain memory when the server is not local. Freed by
// hearth_buffer_free.
HEARTH_API hearth_status hearth_buffer_alloc(hearth *h, size_t bytes, void **out);
HEARTH_API void hearth_buffer_free(hearth *h, void *data);

// hearth_import reads an ONNX file (a path on this machine: local and embedded servers) into the
// store as a new version. max_batch is kept with it, the largest first dimension of a request; 0:
// requests never share a run; negative: not said. progress may be NULL; returning non-zero from it
// cancels. It returns when the new version is the one that answers by the name, if the name is
// served. HEARTH_EBUSY and others whose sentence says that the version is in the store: it cannot
// be run, and an older one goes on.
typedef struct hearth_import_result {
    int version, unchanged;
    uint64_t tensors_new, tensors_shared, bytes_new, bytes_shared;
} hearth_import_result;
typedef int (*hearth_progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
HEARTH_API hearth_status hearth_import(hearth *h, const char *name, const char *path, int max_batch,
                                       hearth_progress progress, void *ctx,
                                       hearth_import_result *out);
// hearth_import_with is hearth_import with options (NULL: none), and reports more.
typedef struct hearth_import_options {
    int no_wait; // 1: return when the version is in the store
} hearth_import_options;
typedef struct hearth_import_report {
    hearth_import_result result;
    uint64_t tensors_repaired, bytes_repaired; // of those shared: were damaged in the store
    int record_repaired; // the same of what the store has of the version beside tensors: its graph
} hearth_import_report;
HEARTH_API hearth_status hearth_import_with(hearth *h, const char *name, const char *path,
                                            int max_batch, const hearth_import_options *options,
                                            hearth_progress progress, void *ctx,
                                            hearth_import_report *out);

// hearth_query asks for a document: "models", "model NAME[:V]", "devices", "stats", and the
// long-running "bench", "plan", "convsel" with JSON arguments. *json is a JSON text, freed by
// hearth_free.
HEARTH_API hearth_status hearth_query(hearth *h, const char *what, const char *arguments_json,
                                      hearth_progress progress, void *ctx, char **json);
HEARTH_API void hearth_free(void *p);

// hearth_remove removes a version ("name:3") or all of them ("name"); hearth_gc removes tensors
// nobody refers to.
HEARTH_API hearth_status hearth_remove(hearth *h, const char *model);
HEARTH_API hearth_status hearth_gc(hearth *h, uint64_t *files, uint64_t *bytes);
// hearth_export writes a version's tensors to a safetensors file on this machine; a path that ends
// in .onnx is refused (HEARTH_EINVAL).
HEARTH_API hearth_status hearth_export(hearth *h, const char *model, const char *path);

#ifdef __cplusplus
}
#endif

#endif
