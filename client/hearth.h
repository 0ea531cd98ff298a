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
// hearth_outputs_model returns that model's name; after a request for an alias, its target's. Valid
// until hearth_tensors_free.
HEARTH_API const char *hearth_outputs_model(const hearth_tensor *outputs);

// hearth_buffer_alloc gives memory that hearth_infer passes to a local server without copying: fill
// it and use it as a tensor's data. Plain memory when the server is not local. Freed by
// hearth_buffer_free.
HEARTH_API hearth_status hearth_buffer_alloc(hearth *h, size_t bytes, void **out);
HEARTH_API void hearth_buffer_free(hearth *h, void *data);

// hearth_import reads an ONNX file of this machine into the store as a new version. To a server
// elsewhere only those tensors travel that its store lacks; what an interrupted import has sent is
// kept there for a while, and not sent again. max_batch is kept with it, the largest first dimension of a request; 0:
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
    int record_repaired;  // the same of what the store has of the version besides tensors
    uint64_t bytes_moved; // of tensors, that were sent to a server elsewhere
} hearth_import_report;
HEARTH_API hearth_status hearth_import_with(hearth *h, const char *name, const char *path,
                                            int max_batch, const hearth_import_options *options,
                                            hearth_progress progress, void *ctx,
                                            hearth_import_report *out);

// hearth_query gives a command to the server, such as "models", "stats", "load", "train" or "jobs",
// and waits for its answer: docs/commands.md lists all, with the role that each needs and its
// arguments, a JSON object (NULL or "": none). "model NAME[:V]" is short for "model" with that
// argument. *json is a JSON text, freed by hearth_free; NULL on error. HEARTH_ENOENT: there is no
// such command, model or job; HEARTH_EINVAL: an argument is missing or has a wrong type;
// HEARTH_EDENIED: the caller lacks the role.
HEARTH_API hearth_status hearth_query(hearth *h, const char *what, const char *arguments_json,
                                      hearth_progress progress, void *ctx, char **json);
HEARTH_API void hearth_free(void *p);

// hearth_remove removes a version ("name:3") or all of them ("name"); hearth_gc removes tensors
// nobody refers to.
HEARTH_API hearth_status hearth_remove(hearth *h, const char *model);
HEARTH_API hearth_status hearth_gc(hearth *h, uint64_t *files, uint64_t *bytes);
// hearth_export writes a version to a file on this machine: a path that ends in .onnx gets the model,
// as it is served, one that ends in .safetensors its tensors; others are refused (HEARTH_EINVAL).
HEARTH_API hearth_status hearth_export(hearth *h, const char *model, const char *path);
// hearth_export_with is hearth_export, and reports; progress and out may be NULL.
typedef struct hearth_export_report {
    uint64_t bytes; // of the file
    uint64_t moved; // that came over the connection; a server of this machine writes the file
} hearth_export_report;
HEARTH_API hearth_status hearth_export_with(hearth *h, const char *model, const char *path,
                                            hearth_progress progress, void *ctx,
                                            hearth_export_report *out);
// hearth_push copies a version from the server of `h` to that of `to`, as a new version of the same
// name, through this process: what the other server lacks. Blocks as hearth_import_with does, whose
// report and no_wait it has. progress and out may be NULL.
HEARTH_API hearth_status hearth_push(hearth *h, const char *model, hearth *to, int no_wait,
                                     hearth_progress progress, void *ctx,
                                     hearth_import_report *out);

// ---- datasets of the store

// hearth_data_put stores a dataset, a file or folder of a format that docs/training.md lists, by
// content: what the server has already is not moved. hearth_train_submit takes its name as `data`.
// It belongs to the caller: others neither see nor use it. options and out may be NULL. Blocks for
// as long as reading and storing take. HEARTH_EINVAL, HEARTH_ENOENT, HEARTH_ECORRUPT: no sound
// dataset; HEARTH_EBUSY: a job trains on the one that it would replace; HEARTH_EDENIED: the caller
// may not store as much.
typedef struct hearth_data_options {
    size_t size;            // see hearth_load_options
    const char *label;      // the column of a CSV that is y; NULL: y, label or target
    const char *image_size; // "HxW" that images are resampled to; NULL: all have one size
} hearth_data_options;
typedef struct hearth_data_result {
    uint64_t bytes, moved_bytes; // of all tensors; of those that the store did not have
} hearth_data_result;
HEARTH_API hearth_status hearth_data_put(hearth *h, const char *name, const char *path,
                                         const hearth_data_options *options,
                                         hearth_data_result *out);
// hearth_data_remove removes one of the caller's. HEARTH_ENOENT; HEARTH_EBUSY: a job uses it. The
// query "datasets" lists them.
HEARTH_API hearth_status hearth_data_remove(hearth *h, const char *name);

// ---- models on the device

// A structure that begins with `size` may grow: set that to the structure's size, or leave it 0 for
// the fields that this header's first version of it has. Zero is the default of every field.
typedef struct hearth_load_options {
    size_t size;
    int pin;        // 1: its weights stay there, whoever needs the room
    int unpin;      // 1: they stay no longer than others'; neither: as before
    int no_wait;    // 1: fail where jobs or pinned models leave too little room now
    const char *on; // of a server with several devices: which ("cuda:1"); NULL: it chooses
} hearth_load_options;
typedef struct hearth_load_result {
    int version, pinned;
    uint64_t moved_bytes; // to the device; 0: the weights were there already
} hearth_load_result;
// hearth_load brings a model ("name" or "name:version") to the device, and returns when its weights
// are there; of a name with a newer version, when that one answers. options and out may be NULL.
// Blocks for as long as that takes, at most the connection's timeout. HEARTH_ENOENT;
// HEARTH_ETOOBIG: it never fits; HEARTH_ENODEVMEM: not now (only with no_wait); HEARTH_EDENIED.
HEARTH_API hearth_status hearth_load(hearth *h, const char *model,
                                     const hearth_load_options *options, hearth_load_result *out);
// hearth_unload takes a version, or all of a name's, off the device, and stores how many bytes that
// freed there (may be NULL). Blocks until runs with it have ended. The next request brings it back.
// HEARTH_ENOENT: there is no such model; one that is not loaded frees 0 bytes.
HEARTH_API hearth_status hearth_unload(hearth *h, const char *model, uint64_t *freed_bytes);

// ---- training jobs

// A job belongs to the server: it goes on when its connection is closed, and a server that is
// stopped in good order keeps its state. It is called as the model that it makes; its number, which
// no other job of the store has, tells it from those that made the same model before. An engine in
// this process stops with hearth_close: a job at work is saved and "stopped" then, and
// hearth_job_resume goes on with it on the next connection.
typedef struct hearth_job {
    uint64_t id; // from 1
} hearth_job;

typedef enum hearth_job_state {
    HEARTH_JOB_OTHER = 0, // one that this library has no name for
    HEARTH_JOB_WAITING,   // for its turn, another job, or its next attempt: `why` says what
    HEARTH_JOB_QUEUED,    // for device memory, or its tenant's limit: `why` says how much
    HEARTH_JOB_RUNNING,
    HEARTH_JOB_PAUSED,   // by hearth_job_pause; its checkpoint is in the store, its memory is free
    HEARTH_JOB_STOPPED,  // with its server: hearth_job_resume, or the next server, goes on with it
    HEARTH_JOB_FINISHED, // for good
    HEARTH_JOB_FAILED,   // where there is a checkpoint, hearth_job_resume goes on with it; so
    HEARTH_JOB_CANCELED  // with one that was canceled
} hearth_job_state;

// Where a job stands. Filled and freed by hearth (hearth_free), with its strings: it may get more
// fields at its end. NAN: not known (yet).
typedef struct hearth_job_info hearth_job_info;
struct hearth_job_info {
    uint64_t id;
    const char *name;   // the model that it makes
    const char *model;  // that it trains, "" before it has begun
    const char *tenant; // whose it is
    hearth_job_state state;
    const char *why;      // it waits, has failed, or is in trouble; ""
    uint64_t step, steps; // updates made, and in all; 0 of 0 before it has begun
    double loss;          // mean over the last step's batch
    double
        held_out_loss;   // mean over the held-out samples after the last epoch; NAN: there are none
    double accuracy;     // of them, from 0 to 1
    double step_ms;      // the last step's time; NAN: it is not running
    double seconds_left; // guessed from the steps so far; NAN: it is not running
    uint64_t peak_bytes, budget_bytes; // of device memory: planned, and allowed; 0: not running
    int version;                       // of `name`, that a finished job has made; else 0
    uint64_t ended_ns;                 // since 1970; 0: it has not ended
    const char *event;     // hearth_job_watch: what the server said (JSON, as `hearth job --follow
                           // --json` prints it); else ""
    hearth_job_info *next; // of a list; NULL: the last one
    double lr;             // of the last step
    double top5, perplexity; // of the held-out samples, as accuracy is; NAN: there is none
};

// What a job is asked to do. The losses depend on nothing else, and not on budget or policy.
typedef struct hearth_train_options {
    size_t size;           // see hearth_load_options
    const char *loss;      // "softmax-xent" (NULL), "bce" (of logits), "mse"
    const char *optimizer; // "sgd" (NULL), "momentum", "adam", "adamw"
    double lr;             // learning rate; 0: 0.001
    double weight_decay;   // 0: the optimizer's (0; adamw: 0.01)
    uint32_t batch;        // samples of an update; 0: 32
    uint32_t epochs;       // times through the data; 0: 1
    uint32_t seed;         // of the order of samples, what is held out, and dropout
    int no_shuffle;        // 1: samples in the file's order
    const char *budget;    // of device memory: "512MiB", or "60%" of what a step takes when memory
                           // is not short; NULL: what the device can give when the job begins
    const char *save_as;   // the model that gets the result as a new version, and the job's name;
                           // NULL: a model of its own, "digits-job7"
    const char *eval;      // dataset to evaluate after every epoch; NULL: none
    double hold_out;       // share of the samples, 0 to 1, that is kept to be evaluated
    uint32_t checkpoint_every; // steps from one checkpoint to the next; 0: none
    const char *on;   // of a server with several devices: which ("cuda:1"); NULL: it chooses
    const char *more; // JSON object of further options of `hearth train` by their names,
                      // {"warmup": 100}; they come before the fields above. NULL: none
    int class_axis;   // of softmax-xent's and bce's classes: 1, or -1, the last one; 0: as the
                      // labels' shape says
    double label_smoothing; // softmax-xent: from 0 to less than 1
    const double
        *weights; // softmax-xent: of each class; bce: of positive targets, of each class or
                  // one for all. NULL: all are 1
    size_t n_weights;
    const char *schedule; // "constant" (NULL), "cosine", "one-cycle", .. (`hearth help train`)
    const char *keep;  // whose parameters the result has: "last" (NULL), "best" by held-out loss,
                       // "best:accuracy"
    uint32_t patience; // epochs without a better evaluation that end the job; 0: it makes all
} hearth_train_options;

// hearth_train_submit has a server train `model` ("name" or "name:version") on `data`: a
// safetensors file with the model's inputs (or x) and y, whose first dimension counts the samples,
// or a .npz, .csv, IDX or image dataset (docs/training.md; options->more may have "label", "size",
// "scale", "mean" and "std"), or the name of one of hearth_data_put. The client reads it, and
// passes it on; a server elsewhere is sent what it lacks of it, until the job ends. options may be
// NULL, strings are borrowed for the call. Returns when the server has checked the job and it
// runs, or waits for its turn or for memory: after moments, of a model whose operators were never
// timed there after seconds, or, after a long step of another job, that step. What is refused is
// no job: HEARTH_EINVAL, HEARTH_ENOENT, HEARTH_EDENIED, HEARTH_ENOTSUP (an operator without a
// gradient), HEARTH_ETOOBIG (never fits), HEARTH_EBUSY (a job of that name has not ended, or there
// are as many jobs as the server allows). On error out->id is 0.
HEARTH_API hearth_status hearth_train_submit(hearth *h, const char *model, const char *data,
                                             const hearth_train_options *options, hearth_job *out);
// hearth_job_find finds a job that anybody has submitted: the last one that makes the model `name`,
// or one by its number ("7"). HEARTH_ENOENT; HEARTH_EDENIED: it is another tenant's. On error
// out->id is 0.
HEARTH_API hearth_status hearth_job_find(hearth *h, const char *name, hearth_job *out);
// hearth_job_list stores the caller's jobs as a list, NULL: there are none. Those that have not
// ended come first, then the last 100 that have, the last one first. One hearth_free of the first
// one frees all.
HEARTH_API hearth_status hearth_job_list(hearth *h, hearth_job_info **out);
// hearth_job_status stores where a job stands; it does not wait. HEARTH_ENOENT: there is no such
// job, it is another tenant's, or it ended 100 jobs ago. So say the calls below.
HEARTH_API hearth_status hearth_job_status(hearth *h, hearth_job job, hearth_job_info **out);
// hearth_job_watch calls `watcher` with where the job stands now, and on the calling thread
// whenever it has made a step (at most twenty times a second) or changes its state, until it stops,
// finishes, fails or is canceled: then it returns HEARTH_OK. Who is slower than the job misses
// events: then `event` is {"missed":true} once, and what follows begins with where it stands. Once
// a second the watcher is called without an event. `info` is the library's, for the call. A number
// other than 0 ends the watching with HEARTH_ECANCELED, not the job. A paused job is waited for. A
// server that goes away is tried again for a minute, HEARTH_EIO: it did not come back. out: where
// the job stands at the end; may be NULL.
typedef int (*hearth_job_watcher)(void *ctx, const hearth_job_info *info);
HEARTH_API hearth_status hearth_job_watch(hearth *h, hearth_job job, hearth_job_watcher watcher,
                                          void *ctx, hearth_job_info **out);
// hearth_job_wait is the same without a watcher, for `timeout_ms` at most (0: as long as it takes).
// HEARTH_ETIMEDOUT: the job has not ended, and goes on.
HEARTH_API hearth_status hearth_job_wait(hearth *h, hearth_job job, uint64_t timeout_ms,
                                         hearth_job_info **out);
// hearth_job_pause stops a job after the step at work, with a checkpoint; its device memory is free
// when it returns. One that waits does not begin. It stays paused when the server is started again.
// HEARTH_EINVAL: it is paused, stopped, or has ended.
HEARTH_API hearth_status hearth_job_pause(hearth *h, hearth_job job);
// hearth_job_resume has a job continue that is not at work and has a checkpoint, with the losses of
// one that never stopped, and returns at once. budget: as in hearth_train_options; NULL: as before.
// HEARTH_EINVAL: it is at work, or has ended without a checkpoint.
HEARTH_API hearth_status hearth_job_resume(hearth *h, hearth_job job, const char *budget);
// hearth_job_cancel ends a job that has not ended, after the step at work; a checkpoint is kept for
// hearth_job_resume. HEARTH_EINVAL: it has ended.
HEARTH_API hearth_status hearth_job_cancel(hearth *h, hearth_job job);

// What a job has made. Filled and freed by hearth (hearth_free), with all that it points to: a
// result may get more fields at its end.
typedef struct hearth_evaluation {
    uint64_t step, epoch;
    const char *set; // "hold-out", "eval"
    double loss;
    double accuracy; // 0 to 1; NAN: mse has none
} hearth_evaluation;
typedef struct hearth_train_result {
    const char *model; // whose new version the result is
    int version;
    uint64_t steps;
    size_t n_losses;       // of losses and step_ms: one of every step, of more than 10,000 steps
    uint64_t every;        // every `every`-th, and the last one
    const double *losses;  // means over batches
    const double *step_ms; // the steps' times
    size_t n_evaluations;
    const hearth_evaluation *evaluations; // over held-out samples, of each epoch
    const double *top5, *perplexity;      // of each evaluation; NAN: there is none
    uint64_t best_step, best_epoch;       // of the best evaluation, with keep or patience; else 0
    int stopped_early;                    // 1: `patience` ended it before its last epoch
} hearth_train_result;
// hearth_job_result stores what a finished job has made; it does not wait (hearth_job_wait does).
// HEARTH_EBUSY: it has not ended; HEARTH_ECANCELED: it was canceled, or is stopped with a
// checkpoint; HEARTH_EIO: it has failed, hearth_error() says why.
HEARTH_API hearth_status hearth_job_result(hearth *h, hearth_job job, hearth_train_result **out);
// hearth_job_state_name is the state's word: "running"; never NULL.
HEARTH_API const char *hearth_job_state_name(hearth_job_state state);

#ifdef __cplusplus
}
#endif

#endif
