// SPDX-License-Identifier: Apache-2.0
// hearth.h - the public API: the same calls over a local socket, over the network, or with an
// engine in this process.
//
// Open a connection once and use it from any thread. A call blocks until its reply is there. Every
// function returns HEARTH_OK or an error code; hearth_error() returns the sentence that explains
// the calling thread's last error. Structures filled by hearth are freed by the function that their
// comment names. Tensors are row-major and little-endian. In a forked child the connections of its
// parent return HEARTH_EINVAL, and closing them does nothing: the child opens its own, to a server.
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
    const char *store;    // inproc: directory of the store, created if absent; else ignored
    const char *device;   // inproc: "cpu:mem=2GiB,threads=2"; NULL: "cpu"; several: blanks between
    uint64_t timeout_ms;  // per call, 0: 10 minutes
    int no_shared_memory; // 1: never pass tensors, requests and replies through shared memory
    const char *token;    // identifies the caller to the server; NULL: none
    const char *ca_file;  // tls+tcp: PEM file of the authorities that may have signed the server's
                          // certificate; NULL: the system's
    int no_ring; // 1: requests and replies use the socket, tensors in buffers shared memory
} hearth_options;

// Receives what the library tells of what it does: one call at a time, from any thread of it; it
// must not call the library. level: "error", "warn", "info" or "debug". The strings are valid
// during the call.
typedef void (*hearth_log)(void *ctx, const char *level, const char *event, const char *text);

// Options of an engine in this process. Settings are those of hearthd(8) as "name=value":
// "queue.length=10000", "listen=ipc:///run/my.sock", "http=127.0.0.1:8000", "log.level=debug". They
// hold for the process, and those that hearthd would need a restart for have to be set before its
// first engine is opened; listen, http and metrics are the engine's own.
typedef struct hearth_embed_options {
    size_t size;       // see hearth_load_options
    const char *store; // directory, created if absent; ":memory:": nothing of it is kept
    const char *device;
    const char *const *settings;
    size_t n_settings;
    hearth_log log; // the process's; NULL: as before
    void *log_ctx;
    uint64_t timeout_ms; // per call, 0: 10 minutes
} hearth_embed_options;

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
// hearth_embed is hearth_open with an engine in this process. HEARTH_ENOENT: there is no such
// setting; HEARTH_EINVAL: its value is out of its range; HEARTH_EBUSY: a setting that another
// engine of the process has another value of. On error *out is NULL, and what was set before stays
// set.
HEARTH_API hearth_status hearth_embed(const hearth_embed_options *options, hearth **out);
// hearth_local_url writes the URL of this machine's server, for hearth_open: the first of
// /run/hearth.sock, /run/hearth/hearth.sock, hearth.sock in `runtime_dir` ($XDG_RUNTIME_DIR; may be
// NULL) and /tmp/hearth-UID.sock on which root, the system's service or the caller's own user
// listens. HEARTH_ENOENT: nobody listens; HEARTH_EDENIED: only another user does.
HEARTH_API hearth_status hearth_local_url(const char *runtime_dir, char *url, size_t bytes);
HEARTH_API void hearth_close(hearth *h); // NULL is allowed; waits for calls in flight
HEARTH_API const char *
hearth_error(void); // sentence of the calling thread's last error; never NULL
HEARTH_API const char *hearth_strerror(hearth_status s); // constant phrase

// hearth_infer runs one request. `model` is "name" or "name:version". It stores an
// array of *n_outputs tensors in *outputs, freed by hearth_tensors_free. Inputs are borrowed for
// the call; their `name` may be NULL when the model has one input. With a server on this machine,
// requests and replies go through shared memory where possible, from a connection's second call on.
HEARTH_API hearth_status hearth_infer(hearth *h, const char *model, const hearth_tensor *inputs,
                                      int n_inputs, hearth_tensor **outputs, int *n_outputs);
// hearth_infer_with is hearth_infer with options; NULL: none. A request that waits for the device
// longer than its timeout fails with HEARTH_ETIMEDOUT; the timeout does not stop one that runs.
typedef struct hearth_infer_options {
    uint32_t priority;   // 1 comes first, then 2, ..; 0: the model's default
    uint64_t timeout_us; // to wait in the server's queue; 0: the model's default
} hearth_infer_options;
HEARTH_API hearth_status hearth_infer_with(hearth *h, const char *model,
                                           const hearth_tensor *inputs, int n_inputs,
                                           const hearth_infer_options *options,
                                           hearth_tensor **outputs, int *n_outputs);
// hearth_infer_into is hearth_infer with outputs in the caller's memory: each of the n_outputs has
// `data`, the `bytes` there, and a name; without names they are all of the model's outputs, in its
// order. An engine in this process writes its results there and copies nothing; a server's are
// copied. On return outputs[i] says dtype, rank, shape and bytes. HEARTH_EINVAL: the model has no
// such output, or one is too small: outputs[i].bytes are the bytes that each takes.
HEARTH_API hearth_status hearth_infer_into(hearth *h, const char *model,
                                           const hearth_tensor *inputs, int n_inputs,
                                           hearth_tensor *outputs, int n_outputs);
HEARTH_API void hearth_tensors_free(hearth_tensor *t, int n);
// hearth_submit is hearth_infer_with that does not wait: `done` is called once, when the answer is
// there. Inputs are borrowed until then, `outputs` are the callee's, freed by hearth_tensors_free
// (NULL on error; hearth_error() says why). out may be NULL. Callbacks of a connection come one
// after the other, from one thread of the library, and may make any call; hearth_close in one
// closes the connection after it. In an engine of this process a call has as long as it takes,
// and options->timeout_us in the queue. On an error there is no call: HEARTH_EINVAL, HEARTH_ENOMEM,
// HEARTH_EBUSY (the engine is full of others' calls), HEARTH_ECANCELED (the connection is being
// closed).
//
// hearth_call_cancel ends a call within an operator of its model, HEARTH_ECANCELED; `done` still
// comes. A call need not be freed: canceling one that is done does nothing, at any time. Over a
// connection to a server it may wait for that server's reply.
typedef struct hearth_call hearth_call;
typedef void (*hearth_done)(void *ctx, hearth_status status, hearth_tensor *outputs, int n_outputs);
HEARTH_API hearth_status hearth_submit(hearth *h, const char *model, const hearth_tensor *inputs,
                                       int n_inputs, const hearth_infer_options *options,
                                       hearth_done done, void *ctx, hearth_call **out);
HEARTH_API void hearth_call_cancel(hearth_call *call); // NULL is allowed
// hearth_event_fd is for event loops: a descriptor of the connection, readable when calls are done.
// From then on their callbacks come from hearth_event_run, on the calling thread, which returns how
// many there were, and from hearth_close. Before the first hearth_submit. -1, both: an error.
HEARTH_API int hearth_event_fd(hearth *h);
HEARTH_API int hearth_event_run(hearth *h);
// hearth_outputs_version returns the version of the model that computed `outputs`, an array of
// hearth_infer that is not freed yet; 0: the server did not report it.
HEARTH_API int hearth_outputs_version(const hearth_tensor *outputs);
// hearth_outputs_model returns that model's name; after a request for an alias, the name of its
// target. Valid until hearth_tensors_free.
HEARTH_API const char *hearth_outputs_model(const hearth_tensor *outputs);

// hearth_tensor_from_dlpack describes a tensor that another library lends as an input of an
// inference, in place: nothing is copied, and read-only memory will do. `lent` stays the caller's,
// also on an error, who calls its deleter once, if it has one, when the inference has returned, or
// in hearth_submit's `done`; until then *out is valid. `name` is borrowed as long; NULL: see
// hearth_infer. Its structures are those of DLPack (https://dmlc.github.io/dlpack): include your
// own dlpack.h. HEARTH_EINVAL: it lies on a device, its elements are none of hearth_dtype (complex,
// packed bits, several lanes), it is not row-major without gaps, or it has no data; HEARTH_ENOTSUP:
// of another version than 1.x, only the deleter may be used. On error *out is zero.
struct DLManagedTensorVersioned;
struct DLManagedTensor; // of DLPack before 1.0
HEARTH_API hearth_status hearth_tensor_from_dlpack(const struct DLManagedTensorVersioned *lent,
                                                   const char *name, hearth_tensor *out);
HEARTH_API hearth_status hearth_tensor_from_dlpack_unversioned(const struct DLManagedTensor *lent,
                                                               const char *name,
                                                               hearth_tensor *out);
// hearth_outputs_dlpack lends output `output` of an array that hearth_tensors_free frees, in place
// and to be written, too. Whoever has *lent calls its deleter once, from any thread. The memory is
// given back when hearth_tensors_free and the deleters of all that was lent of the array have been
// called, in any order, also after hearth_close. HEARTH_EINVAL: there is no such output;
// HEARTH_ENOMEM. On error *lent is NULL, and nothing is lent.
HEARTH_API hearth_status hearth_outputs_dlpack(const hearth_tensor *outputs, int output,
                                               struct DLManagedTensorVersioned **lent);
HEARTH_API hearth_status hearth_outputs_dlpack_unversioned(const hearth_tensor *outputs, int output,
                                                           struct DLManagedTensor **lent);

// hearth_buffer_alloc allocates memory that hearth_infer passes to a local server without copying:
// fill it and use it as a tensor's data. It is plain memory when the server is not local. Freed by
// hearth_buffer_free.
HEARTH_API hearth_status hearth_buffer_alloc(hearth *h, size_t bytes, void **out);
HEARTH_API void hearth_buffer_free(hearth *h, void *data);

// hearth_import stores an ONNX file of this machine as a new version. A remote server receives only
// the tensors that its store lacks; it keeps for a while what an interrupted import has sent, so
// that the next one does not send it again. max_batch is stored with the version: the largest first
// dimension of a request; 0: requests are never batched; negative: unspecified. progress may be
// NULL; a non-zero return from it cancels the import. If the name is being served, the call returns
// when the new version serves it. When the new version cannot run, the call fails (HEARTH_EBUSY and
// others), the sentence says that the version is in the store, and the older one keeps serving.
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
    uint64_t tensors_repaired, bytes_repaired; // shared tensors that were damaged in the store
    int record_repaired;  // 1: so was the version's record, which holds all but its tensors
    uint64_t bytes_moved; // of tensors, sent to a remote server
} hearth_import_report;
HEARTH_API hearth_status hearth_import_with(hearth *h, const char *name, const char *path,
                                            int max_batch, const hearth_import_options *options,
                                            hearth_progress progress, void *ctx,
                                            hearth_import_report *out);

// hearth_import_memory is hearth_import of an ONNX file in memory, all of it: none of its tensors
// may be in other files. It takes as much room in $TMPDIR, or /tmp, for as long. out may be NULL.
HEARTH_API hearth_status hearth_import_memory(hearth *h, const char *name, const void *onnx,
                                              size_t bytes, int max_batch,
                                              hearth_import_result *out);

// hearth_query sends a command to the server, such as "models", "stats", "load", "train" or "jobs",
// and waits for its reply. docs/commands.md lists all commands, with the role that each needs and
// its arguments, a JSON object (NULL or "": none). "model NAME[:V]" is short for "model" with that
// argument. *json is a JSON text, freed by hearth_free; NULL on error. HEARTH_ENOENT: no such
// command, model or job; HEARTH_EINVAL: an argument is missing or has the wrong type;
// HEARTH_EDENIED: the caller lacks the role.
HEARTH_API hearth_status hearth_query(hearth *h, const char *what, const char *arguments_json,
                                      hearth_progress progress, void *ctx, char **json);
HEARTH_API void hearth_free(void *p);

// hearth_remove removes a version ("name:3") or all of them ("name"); hearth_gc removes the tensors
// that no version uses.
HEARTH_API hearth_status hearth_remove(hearth *h, const char *model);
HEARTH_API hearth_status hearth_gc(hearth *h, uint64_t *files, uint64_t *bytes);
// hearth_export writes a version to a file on this machine: to a path that ends in .onnx the model,
// as it is served, to one that ends in .safetensors its tensors. HEARTH_EINVAL: any other path.
HEARTH_API hearth_status hearth_export(hearth *h, const char *model, const char *path);
// hearth_export_with is hearth_export with a report; progress and out may be NULL.
typedef struct hearth_export_report {
    uint64_t bytes; // of the file
    uint64_t moved; // received over the connection; a server on this machine writes the file itself
} hearth_export_report;
HEARTH_API hearth_status hearth_export_with(hearth *h, const char *model, const char *path,
                                            hearth_progress progress, void *ctx,
                                            hearth_export_report *out);
// hearth_push copies a version from the server of `h` to that of `to`, as a new version of the same
// name. What the other server lacks goes through this process. It blocks as hearth_import_with
// does, and has the same report and the same no_wait. progress and out may be NULL.
HEARTH_API hearth_status hearth_push(hearth *h, const char *model, hearth *to, int no_wait,
                                     hearth_progress progress, void *ctx,
                                     hearth_import_report *out);

// ---- datasets in the store

// hearth_data_put stores a dataset, a file or folder of a format that docs/training.md lists, by
// content: it sends only what the server lacks. hearth_train_submit accepts its name as `data`. It
// belongs to the caller: nobody else sees or uses it. options and out may be NULL. Blocks while it
// reads and stores. HEARTH_EINVAL, HEARTH_ENOENT, HEARTH_ECORRUPT: not a valid dataset;
// HEARTH_EBUSY: a job trains on the dataset that this one would replace; HEARTH_EDENIED: it exceeds
// what the caller may store.
typedef struct hearth_data_options {
    size_t size;            // see hearth_load_options
    const char *label;      // the CSV column that is y; NULL: y, label or target
    const char *image_size; // "HxW": resamples images to this size; NULL: all have the same size
} hearth_data_options;
typedef struct hearth_data_result {
    uint64_t bytes, moved_bytes; // of all tensors; of those that the store lacked
} hearth_data_result;
HEARTH_API hearth_status hearth_data_put(hearth *h, const char *name, const char *path,
                                         const hearth_data_options *options,
                                         hearth_data_result *out);
// hearth_data_remove removes one of the caller's datasets. HEARTH_ENOENT; HEARTH_EBUSY: a job uses
// it. The query "datasets" lists them.
HEARTH_API hearth_status hearth_data_remove(hearth *h, const char *name);

// ---- models on the device

// A structure that begins with `size` may get more fields: set it to the structure's size, or to 0
// for the fields of its first version. Zero is the default of every field.
typedef struct hearth_load_options {
    size_t size;
    int pin;        // 1: keep its weights on the device, whatever else needs the memory
    int unpin;      // 1: its weights may be evicted again; neither: as before
    int no_wait;    // 1: fail if jobs or pinned models leave too little memory now
    const char *on; // the device, if the server has several ("cuda:1"); NULL: the server chooses
} hearth_load_options;
typedef struct hearth_load_result {
    int version, pinned;
    uint64_t moved_bytes; // copied to the device; 0: the weights were there already
} hearth_load_result;
// hearth_load loads a model ("name" or "name:version") to the device, and returns when its weights
// are there; if the name has a newer version, when that version serves it. options and out may be
// NULL. Blocks until then, at most for the connection's timeout. HEARTH_ENOENT; HEARTH_ETOOBIG: it
// never fits; HEARTH_ENODEVMEM: it does not fit now (only with no_wait); HEARTH_EDENIED.
HEARTH_API hearth_status hearth_load(hearth *h, const char *model,
                                     const hearth_load_options *options, hearth_load_result *out);
// hearth_unload removes a version, or all versions of a name, from the device, and stores how many
// bytes that freed (freed_bytes may be NULL). Blocks until runs with it have ended. The next
// request loads it again. HEARTH_ENOENT: no such model; one that is not loaded frees 0 bytes.
HEARTH_API hearth_status hearth_unload(hearth *h, const char *model, uint64_t *freed_bytes);

// ---- training jobs

// A job belongs to the server: it continues after its connection is closed, and a server that shuts
// down saves its state. Its name is that of the model that gets the result; its number is unique in
// the store and distinguishes it from earlier jobs of that name. hearth_close stops an engine in
// this process: a running job is then saved as "stopped", and hearth_job_resume on the next
// connection continues it.
typedef struct hearth_job {
    uint64_t id; // from 1
} hearth_job;

typedef enum hearth_job_state {
    HEARTH_JOB_OTHER = 0, // a state that this library does not know
    HEARTH_JOB_WAITING,   // for its turn, another job, or its next attempt: `why` says what
    HEARTH_JOB_QUEUED,    // for device memory, or its tenant's limit: `why` says how much
    HEARTH_JOB_RUNNING,
    HEARTH_JOB_PAUSED,   // by hearth_job_pause; its checkpoint is in the store, its memory is free
    HEARTH_JOB_STOPPED,  // with its server: hearth_job_resume, or the next server, continues it
    HEARTH_JOB_FINISHED, // its result is in the store
    HEARTH_JOB_FAILED,   // hearth_job_resume continues a job that failed or was
    HEARTH_JOB_CANCELED  // canceled from its checkpoint, if there is one
} hearth_job_state;

// The status of a job. Filled by hearth and freed, with its strings, by hearth_free; new fields go
// at its end. NAN: not known (yet).
typedef struct hearth_job_info hearth_job_info;
struct hearth_job_info {
    uint64_t id;
    const char *name;   // the model that gets the result
    const char *model;  // the model that it trains; "" before it has begun
    const char *tenant; // its owner
    hearth_job_state state;
    const char *why;      // why it waits, failed, or is in trouble; else ""
    uint64_t step, steps; // updates made, and planned; 0 of 0 before it has begun
    double loss;          // mean over the last step's batch
    double
        held_out_loss;   // mean over the held-out samples after the last epoch; NAN: there are none
    double accuracy;     // on the held-out samples, from 0 to 1
    double step_ms;      // the last step's time; NAN: it is not running
    double seconds_left; // estimated, with other jobs' turns; NAN: it is not running
    uint64_t peak_bytes, budget_bytes; // of device memory: planned, and allowed; 0: not running
    int version;                       // of `name`, published by a finished job; else 0
    uint64_t ended_ns;                 // since 1970; 0: it has not ended
    const char *event;       // hearth_job_watch: the server's event (JSON, as `hearth job --follow
                             // --json` prints it); else ""
    hearth_job_info *next;   // in a list; NULL: this is the last one
    double lr;               // of the last step
    double top5, perplexity; // on the held-out samples; NAN: there is none
};

// A job may be one rank of several that train one model together, each with a server of its own
// (or a device): the exchange by which its caller sums what crosses (hearth_exchange_open).
typedef struct hearth_exchange hearth_exchange;

// What a job does. Its losses depend on these options only, and not on budget or policy.
typedef struct hearth_train_options {
    size_t size;           // see hearth_load_options
    const char *loss;      // "softmax-xent" (NULL), "bce" (of logits), "mse"
    const char *optimizer; // "sgd" (NULL), "momentum", "adam", "adamw"
    double lr;             // learning rate; 0: 0.001
    double weight_decay;   // 0: the optimizer's (0; adamw: 0.01)
    uint32_t batch;        // samples per update; 0: 32
    uint32_t epochs;       // passes over the data; 0: 1
    uint32_t seed;         // for the order of samples, the choice of held-out samples, and dropout
    int no_shuffle;        // 1: samples in the file's order
    const char *budget;    // of device memory: "512MiB", or "60%" of what a step takes without a
                           // limit; NULL: what the device can give when the job begins
    const char *save_as;   // the model that gets the result as a new version, and the job's name;
                           // NULL: a model of its own, "digits-job7"
    const char *eval;      // dataset to evaluate after every epoch; NULL: none
    double hold_out;       // share of the samples, 0 to 1, to evaluate instead of training on them
    uint32_t checkpoint_every; // steps from one checkpoint to the next; 0: none
    const char *on;   // the device, if the server has several ("cuda:1"); NULL: the server chooses
    const char *more; // JSON object of further options of `hearth train` by their names,
                      // {"warmup": 100}; they override the fields above. NULL: none
    int class_axis;   // of softmax-xent's and bce's classes: 1, or -1, the last one; 0: derived
                      // from the labels' shape
    double label_smoothing; // softmax-xent: at least 0, below 1
    const double
        *weights; // softmax-xent: of each class; bce: of positive targets, one for each class or
                  // one for all. NULL: all are 1
    size_t n_weights;
    const char *schedule; // "constant" (NULL), "cosine", "one-cycle", .. (`hearth help train`)
    const char *keep;     // the parameters to publish: "last" (NULL), "best" by held-out loss,
                          // "best:accuracy"
    uint32_t patience; // ends the job after this many epochs without a better evaluation; 0: never
    hearth_exchange *exchange; // the job is this rank; NULL: it is alone. Of rank 1 and those after
                               // it out->id is 0: the job that counts is that of rank 0
} hearth_train_options;

// hearth_train_submit starts a job that trains `model` ("name" or "name:version") on `data`: a
// safetensors file with the model's inputs (or x) and y, whose first dimension counts the samples,
// or a .npz, .csv, IDX or image dataset (docs/training.md; options->more may have "label", "size",
// "scale", "mean", "std", "normalize", "flip" and "crop"), or the name of a dataset of
// hearth_data_put. The client reads it and passes it on; a remote server receives what it lacks of
// it, and keeps that until the job ends. options may be NULL; strings are borrowed for the call.
// Returns when the server has checked the job, and the job runs or waits for its turn or for
// memory. That takes moments; seconds if the model's operators were never timed there; at most the
// current step of another job more. On error there is no job and out->id is 0: HEARTH_EINVAL,
// HEARTH_ENOENT, HEARTH_EDENIED, HEARTH_ENOTSUP (an operator without a gradient), HEARTH_ETOOBIG
// (never fits), HEARTH_EBUSY (a job of that name has not ended, or the server has as many jobs as
// it allows).
HEARTH_API hearth_status hearth_train_submit(hearth *h, const char *model, const char *data,
                                             const hearth_train_options *options, hearth_job *out);
// hearth_job_find finds a job, whichever connection submitted it: the latest one named `name`, or
// one by its number ("7"). HEARTH_ENOENT; HEARTH_EDENIED: it is another tenant's. On error out->id
// is 0.
HEARTH_API hearth_status hearth_job_find(hearth *h, const char *name, hearth_job *out);
// hearth_job_list stores the caller's jobs as a list; NULL: there are none. Those that have not
// ended come first, then the last 100 that have, latest first. One hearth_free of the first frees
// all.
HEARTH_API hearth_status hearth_job_list(hearth *h, hearth_job_info **out);
// hearth_job_status stores a job's status; it does not wait. HEARTH_ENOENT, here and in the calls
// below: there is no such job, it is another tenant's, or 100 jobs have ended after it.
HEARTH_API hearth_status hearth_job_status(hearth *h, hearth_job job, hearth_job_info **out);
// hearth_job_watch calls `watcher` on the calling thread: with the job's status now, after a step
// (at most twenty times a second), after a change of state, and once a second without an event.
// It returns HEARTH_OK when the job stops, finishes, fails or is canceled; it keeps watching a
// paused job. A watcher that is slower than the job misses events: `event` is then {"missed":true}
// once, and the next events begin with the job's current status. `info` belongs to the library and
// is valid during the call. A watcher that returns non-zero ends the watching, not the job:
// HEARTH_ECANCELED. If the server goes away, the library tries to reconnect for a minute, then
// returns HEARTH_EIO. out: the job's status at the end; may be NULL.
typedef int (*hearth_job_watcher)(void *ctx, const hearth_job_info *info);
HEARTH_API hearth_status hearth_job_watch(hearth *h, hearth_job job, hearth_job_watcher watcher,
                                          void *ctx, hearth_job_info **out);
// hearth_job_wait is the same without a watcher, for at most `timeout_ms` (0: without a limit).
// HEARTH_ETIMEDOUT: the job has not ended, and continues.
HEARTH_API hearth_status hearth_job_wait(hearth *h, hearth_job job, uint64_t timeout_ms,
                                         hearth_job_info **out);
// hearth_job_pause stops a job after its current step, with a checkpoint; its device memory is free
// when the call returns. A waiting job does not begin. The job stays paused when the server
// restarts. HEARTH_EINVAL: it is paused, stopped, or has ended.
HEARTH_API hearth_status hearth_job_pause(hearth *h, hearth_job job);
// hearth_job_resume continues a job that is not running from its checkpoint, with the losses of a
// job that never stopped, and returns at once. budget: as in hearth_train_options; NULL: as before.
// HEARTH_EINVAL: it is running, or has ended without a checkpoint.
HEARTH_API hearth_status hearth_job_resume(hearth *h, hearth_job job, const char *budget);
// hearth_job_cancel ends a job after its current step; hearth_job_resume can continue it from its
// last checkpoint, which stays. HEARTH_EINVAL: it has ended.
HEARTH_API hearth_status hearth_job_cancel(hearth *h, hearth_job job);

// The result of a job. Filled by hearth and freed, with all that it points to, by hearth_free; new
// fields go at its end.
typedef struct hearth_evaluation {
    uint64_t step, epoch;
    const char *set; // "hold-out", "eval"
    double loss;
    double accuracy; // 0 to 1; NAN with mse
} hearth_evaluation;
typedef struct hearth_train_result {
    const char *model; // the model that got the result
    int version;
    uint64_t steps;
    size_t n_losses;       // of losses and step_ms: one per step; with more than 10,000 steps one
    uint64_t every;        // per `every` steps, and the last
    const double *losses;  // means over batches
    const double *step_ms; // the steps' times
    size_t n_evaluations;
    const hearth_evaluation *evaluations; // on held-out samples, after each epoch
    const double *top5, *perplexity;      // of each evaluation; NAN: there is none
    uint64_t best_step, best_epoch;       // of the best evaluation, with keep or patience; else 0
    int stopped_early;                    // 1: `patience` ended the job before its last epoch
} hearth_train_result;
// hearth_job_result stores the result of a finished job; it does not wait (hearth_job_wait does).
// HEARTH_EBUSY: it has not ended; HEARTH_ECANCELED: it was canceled, or is stopped with a
// checkpoint; HEARTH_EIO: it has failed, and hearth_error() says why.
HEARTH_API hearth_status hearth_job_result(hearth *h, hearth_job job, hearth_train_result **out);
// ---- a job as one rank of several

// Each of `ranks` processes opens an exchange, submits the same job with it (options->exchange; the
// same model, data and options, each to its own server), and then does what hearth_exchange_next
// asks, until that says that the job has ended:
//
//     while ((s = hearth_exchange_next(x, 0, &part)) == HEARTH_OK) {
//         MPI_Allreduce(MPI_IN_PLACE, part.data, part.count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
//         hearth_exchange_done(x, &part);
//     }
//
// `hearth train --group mpi` is such a program. A batch is divided among the ranks by the speed of
// their devices; all make the same update. Parts come in the same order on all ranks, and may be
// under way together: those of a later one need not wait for the answer of an earlier one.
typedef enum hearth_exchange_kind {
    HEARTH_EXCHANGE_SUM_F32 = 2,  // `count` floats become their sums over all ranks, in place
    HEARTH_EXCHANGE_SUM_F64 = 3,  // .. doubles
    HEARTH_EXCHANGE_BROADCAST = 4 // `count` bytes become what they are on rank `root`
} hearth_exchange_kind;

typedef struct hearth_exchange_part {
    hearth_exchange_kind kind;
    int root;
    void *data; // the job's memory, there until the exchange is closed
    uint64_t count, id;
} hearth_exchange_part;

// hearth_exchange_open makes the exchange of rank `rank` of `ranks`. HEARTH_EINVAL: no such rank,
// or more than 16 of them. One thread at a time. The job's server has to be on this machine
// (ipc://), or in this process.
HEARTH_API hearth_status hearth_exchange_open(int rank, int ranks, hearth_exchange **out);
// hearth_exchange_argument is the argument "exchange" of the question "train", for who asks it by
// hearth_query: there until the exchange is closed.
HEARTH_API const char *hearth_exchange_argument(const hearth_exchange *exchange);
// hearth_exchange_next waits for what is to be summed next, after the job was submitted.
// timeout_ms 0: for as long as it takes; else HEARTH_ETIMEDOUT. HEARTH_ENOENT: the job has ended on
// all ranks; HEARTH_ECANCELED: on this one, before the others': they wait for a sum that never
// comes, and are to be ended.
HEARTH_API hearth_status hearth_exchange_next(hearth_exchange *exchange, uint64_t timeout_ms,
                                              hearth_exchange_part *part);
// hearth_exchange_done says that a part's sum is there. Blocks while the job has no room for it.
HEARTH_API hearth_status hearth_exchange_done(hearth_exchange *exchange,
                                              const hearth_exchange_part *part);
// hearth_exchange_fail ends the job, with a checkpoint on rank 0: another rank was lost.
HEARTH_API void hearth_exchange_fail(hearth_exchange *exchange, const char *why);
// hearth_exchange_fd becomes readable when hearth_exchange_next has something to say.
HEARTH_API int hearth_exchange_fd(const hearth_exchange *exchange);
// hearth_exchange_close ends a job that still needs it like hearth_exchange_fail. NULL is allowed.
HEARTH_API void hearth_exchange_close(hearth_exchange *exchange);

// hearth_job_state_name returns the word for a state ("running"); never NULL.
HEARTH_API const char *hearth_job_state_name(hearth_job_state state);

#ifdef __cplusplus
}
#endif

#endif
