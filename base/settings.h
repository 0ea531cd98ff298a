// SPDX-License-Identifier: Apache-2.0
// base/settings.h - every limit and tunable of the process, in one table.
//
// The tables below are the only place that knows a setting: name, kind, default, range, whether it
// can change while the process runs, and help. Configuration file (base/config.h), hearthd's flags,
// --help, the manual page and --check-config are made from them. Reading a number is one atomic
// load, a text is copied under a lock; both from any thread. A setting that is FIXED is set before
// engines and stores are opened, and is read by a component when it is opened; one that is LIVE is
// read at each use.
#ifndef HTH_BASE_SETTINGS_H
#define HTH_BASE_SETTINGS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum hth_setting_kind {
    HTH_KIND_COUNT, // whole number
    HTH_KIND_BYTES, // whole number, written with KiB, MiB, GiB, TiB
    HTH_KIND_REAL,
    HTH_KIND_TEXT,
    HTH_KIND_WORD,   // one of `words`
    HTH_KIND_LIST,   // texts without blanks, separated by blanks; a file and flags add to it
    HTH_KIND_FILTER, // what hth_log_filter takes
} hth_setting_kind;

typedef enum hth_setting_change {
    HTH_CHANGE_FIXED, // at a restart only
    HTH_CHANGE_LIVE,
} hth_setting_change;

#define HTH_SETTING_TEXT 2048 // bytes of a text, its zero included

#define HTH_KIB 1024.0
#define HTH_MIB (1024.0 * HTH_KIB)
#define HTH_GIB (1024.0 * HTH_MIB)
#define HTH_TIB (1024.0 * HTH_GIB)

// X(identifier, name, kind, default, words, change, help)
#define HTH_TEXT_SETTINGS(X)                                                                       \
    X(STORE, "store", TEXT, "", "", FIXED, "model store directory; created if absent")             \
    X(LISTEN, "listen", LIST, "", "", FIXED,                                                       \
      "addresses for hearth clients: ipc://PATH, tcp:// or tls+tcp://HOST:PORT; empty: a local "   \
      "socket")                                                                                    \
    X(HTTP, "http", TEXT, "", "", FIXED,                                                           \
      "address of the Open Inference Protocol server: 127.0.0.1:8000, https://..; empty: off")     \
    X(METRICS, "metrics", TEXT, "", "", FIXED,                                                     \
      "address of /metrics for Prometheus: 127.0.0.1:8002; needs http; empty: off")                \
    X(METRICS_SUMMARIES, "metrics.summaries", WORD, "false", "false true", LIVE,                   \
      "export latency percentiles per model over the last minute in /metrics")                     \
    X(TRACE_FILE, "trace.file", TEXT, "", "", FIXED,                                               \
      "file for traces of HTTP requests, written on a client's request; empty: tracing is off")    \
    X(HTTP_PREFIX, "http.prefix", TEXT, "", "", FIXED,                                             \
      "prefix of all HTTP paths: /base/path serves /base/path/v2/..; empty: none")                 \
    X(HTTP_HOSTS, "http.hosts", LIST, "", "", LIVE,                                                \
      "extra Host names to accept over loopback, besides localhost and IP addresses")              \
    X(AUTH_TOKENS_FILE, "auth.tokens_file", TEXT, "", "", FIXED,                                   \
      "token file (see `hearth token`); reread on SIGHUP; empty: no tokens")                       \
    X(AUTH_LOCAL, "auth.local", LIST, "", "", FIXED,                                               \
      "users and @groups with the admin role on Unix sockets, in addition to root and hearthd's "  \
      "user")                                                                                      \
    X(TENANT_FILE, "tenant.file", TEXT, "", "", FIXED,                                             \
      "file of tenants' limits (docs/tenants.md); reread on SIGHUP; empty: no limits")             \
    X(USER, "user", TEXT, "", "", FIXED, "account to switch to at startup when started by root")   \
    X(TLS_CERT, "tls.cert", TEXT, "", "", FIXED,                                                   \
      "PEM file with the certificate chain for https:// and tls+tcp://; reread on SIGHUP")         \
    X(TLS_KEY, "tls.key", TEXT, "", "", FIXED, "PEM file with the private key of tls.cert")        \
    X(TLS_MIN_VERSION, "tls.min_version", WORD, "1.2", "1.2 1.3", FIXED, "minimum TLS version")    \
    X(ALLOW_CLIENT_SHM, "allow_client_shm", WORD, "false", "false true", FIXED,                    \
      "allow HTTP clients to register POSIX shared memory for tensors")                            \
    X(DEVICE, "device", LIST, "cpu", "", FIXED,                                                    \
      "compute devices, with memory and threads: cpu:mem=2GiB,threads=2 or cuda:0,mem=80%; "       \
      "several devices serve together")                                                            \
    X(PRECISION, "precision", WORD, "fp32", "fp32 tf32 bf16", FIXED,                               \
      "default precision of convolutions and matrix products; a CPU always computes in fp32")      \
    X(ENGINE_PROCESS, "engine.process", WORD, "child", "thread child", FIXED,                      \
      "run a device's engine as a thread of hearthd, or as a child process that can be restarted") \
    X(ENGINE_SANDBOX, "engine.sandbox", WORD, "true", "false true", FIXED,                         \
      "sandbox the engine process: access to the store only, no network, no exec")                 \
    X(CUDA_LIBS, "cuda.libs", TEXT, "", "", FIXED,                                                 \
      "folders searched first for CUDA libraries, separated by ':'; defaults to $CUDA_HOME")       \
    X(ONEDNN, "kernels.onednn", WORD, "true", "false true", FIXED,                                 \
      "use oneDNN on the CPU if libhearth_dnnl.so and its libraries are installed")                \
    X(CLEAR_ARENA, "memory.clear_arena", WORD, "true", "false true", FIXED,                        \
      "zero activation memory before another model or job reuses it")                              \
    X(STORE_CHECK, "store.check_on_load", WORD, "auto", "auto always never", LIVE,                 \
      "verify tensor hashes when a model is loaded: auto: if the file changed since the last "     \
      "check, or that was more than store.scrub_days ago; always: once per process")               \
    X(LOG_LEVEL, "log.level", FILTER, "warn", "", LIVE,                                            \
      "log level: none, error, warn, info or debug; or by subsystem: warn,store=debug")            \
    X(LOG_FORMAT, "log.format", WORD, "logfmt", "logfmt json", LIVE,                               \
      "logfmt: key=value; json: one object per line")

// X(identifier, name, kind, default, min, max, change, help)
#define HTH_SETTINGS(X)                                                                            \
    X(LIMIT_MODEL_BYTES, "limits.model_bytes", BYTES, 64 * HTH_GIB, HTH_KIB, 1024 * HTH_TIB, LIVE, \
      "max size of an imported model file, including external data")                               \
    X(LIMIT_UPLOAD_BYTES, "limits.upload_bytes", BYTES, 256 * HTH_MIB, 0, HTH_TIB, LIVE,           \
      "max size of a model uploaded over HTTP; 0: uploads are refused")                            \
    X(LIMIT_MESSAGE_BYTES, "limits.message_bytes", BYTES, HTH_GIB, 64 * HTH_KIB, HTH_TIB, FIXED,   \
      "max size of a request or reply, after decompression")                                       \
    X(LIMIT_RANK, "limits.rank", COUNT, 8, 1, 8, FIXED, "max dimensions of a tensor")              \
    X(LIMIT_ELEMENTS, "limits.elements", COUNT, 1099511627776.0, 1, 1125899906842624.0, LIVE,      \
      "max elements of a tensor")                                                                  \
    X(LIMIT_NODES, "limits.nodes", COUNT, 200000, 1, 100000000, LIVE,                              \
      "max operators of a model; each takes about 4 KiB of memory while it is loaded")             \
    X(LIMIT_INPUTS_OUTPUTS, "limits.inputs_outputs", COUNT, 4096, 1, 1000000, LIVE,                \
      "max inputs plus outputs of a model")                                                        \
    X(LIMIT_FOLD_BYTES, "limits.fold_bytes", BYTES, 256 * HTH_MIB, 0, 1024 * HTH_TIB, LIVE,        \
      "memory for the results of constant folding per model, in addition to 4 times its "          \
      "constants; the rest is computed in each run")                                               \
    X(LIMIT_FOLD_OPERATIONS, "limits.fold_operations", COUNT, 2e9, 0, 1e18, LIVE,                  \
      "max operations for constant folding per model, in addition to 16 per byte of its "          \
      "constants")                                                                                 \
    X(LIMIT_FOLDED_BYTES, "limits.folded_bytes", BYTES, 0, 0, 1024 * HTH_TIB, LIVE,                \
      "memory for the results of constant folding of all models; 0: a quarter of RAM")             \
    X(LIMIT_OPERATOR_SECONDS, "limits.operator_seconds", COUNT, 30, 1, 1e9, LIVE,                  \
      "max seconds that one operator is expected to compute on a CPU, which nobody interrupts; "   \
      "longer ones are refused")                                                                   \
    X(HOST_BYTES, "memory.host_bytes", BYTES, 0, 0, 64 * HTH_TIB, LIVE,                            \
      "host memory of requests outside of devices, for outputs and between a model's stages; 0: "  \
      "as much as the device has, but at most a quarter of RAM")                                   \
    X(QUEUE_LENGTH, "queue.length", COUNT, 1024, 1, 1048576, FIXED,                                \
      "max queued requests per engine; more are refused as busy")                                  \
    X(QUEUE_TIMEOUT_US, "queue.timeout_us", COUNT, 0, 0, 3600000000.0, LIVE,                       \
      "default queue timeout of an inference in microseconds; 0: none")                            \
    X(QUEUE_MEMORY_WAIT, "queue.memory_wait_ms", COUNT, 30000, 0, 3600000.0, LIVE,                 \
      "max time in milliseconds that an inference waits for memory in use by others; 0: fail at "  \
      "once")                                                                                      \
    X(QUEUE_PRIORITY, "queue.priority", COUNT, 100, 1, 4294967295.0, LIVE,                         \
      "default priority of an inference; 1 is served first")                                       \
    X(BATCH_MAX, "batch.max", COUNT, 32, 1, 65536, LIVE,                                           \
      "max samples of a batch formed from queued requests; 1: no batching")                        \
    X(BATCH_DELAY_US, "batch.delay_us", COUNT, 0, 0, 1000000, LIVE,                                \
      "max time in microseconds that a request waits for its batch to fill, where that pays off")  \
    X(COMPUTE_INSTANCES, "compute.instances", COUNT, 4, 1, 4, LIVE,                                \
      "max concurrent instances of a model on a CPU; used where measured to be faster")            \
    X(QUEUE_SPIN_US, "queue.spin_us", COUNT, 100, 0, 10000, FIXED,                                 \
      "time in microseconds that an idle engine polls for work before it sleeps")                  \
    X(DEVICES_REPLICA_QUEUE, "devices.replica_queue", COUNT, 8, 0, 1048576, LIVE,                  \
      "queued requests per replica of a model at which it is replicated to another device; 0: "    \
      "never")                                                                                     \
    X(RING_CLIENTS, "ring.clients", COUNT, 64, 0, 4096, FIXED,                                     \
      "max local clients that use shared memory rings; further ones use the socket")               \
    X(RING_BYTES, "ring.bytes", BYTES, 64 * HTH_MIB, 64 * HTH_KIB, HTH_GIB, FIXED,                 \
      "max shared memory per ring, for requests and replies")                                      \
    X(ENGINE_HEARTBEAT_MS, "engine.heartbeat_ms", COUNT, 1000, 10, 600000, FIXED,                  \
      "heartbeat interval of the engine process in milliseconds")                                  \
    X(ENGINE_MISSED_HEARTBEATS, "engine.missed_heartbeats", COUNT, 10, 2, 1000, LIVE,              \
      "missed heartbeats after which the engine process is killed and restarted")                  \
    X(ENGINE_RESTART_BACKOFF_MS, "engine.restart_backoff_ms", COUNT, 10000, 0, 3600000, LIVE,      \
      "max delay in milliseconds before a repeatedly crashing engine process is restarted")        \
    X(ENGINE_STALL_SECONDS, "engine.stall_seconds", COUNT, 30, 1, 86400, LIVE,                     \
      "time in seconds without progress of the engine's loop after which it is reported as not "   \
      "ready")                                                                                     \
    X(HTTP_IDLE_SECONDS, "http.idle_seconds", COUNT, 300, 1, 86400, FIXED,                         \
      "idle timeout of an HTTP connection in seconds")                                             \
    X(HTTP_REQUEST_SECONDS, "http.request_seconds", COUNT, 20, 1, 86400, LIVE,                     \
      "time limit in seconds for receiving a request, over any protocol; http.min_request_rate "   \
      "extends it")                                                                                \
    X(HTTP_MIN_REQUEST_RATE, "http.min_request_rate", BYTES, 512, 1, HTH_GIB, LIVE,                \
      "min transfer rate in bytes per second: this many bytes extend the time limit of a request " \
      "by a second")                                                                               \
    X(HTTP_HEADER_BYTES, "http.header_bytes", BYTES, 32 * HTH_KIB, HTH_KIB, HTH_MIB, FIXED,        \
      "max size of the request line and headers together")                                         \
    X(HTTP_URL_BYTES, "http.url_bytes", BYTES, 8 * HTH_KIB, 64, HTH_MIB, LIVE,                     \
      "max length of a URL")                                                                       \
    X(HTTP_CHUNKS, "http.chunks", COUNT, 1048576, 1, 1e12, LIVE, "max chunks of a request body")   \
    X(HTTP_JSON_DEPTH, "http.json_depth", COUNT, 100, 4, 100, LIVE,                                \
      "max nesting depth of JSON in a request")                                                    \
    X(HTTP_BUFFERED_BYTES, "http.buffered_bytes", BYTES, 4 * HTH_GIB, HTH_MIB, 64 * HTH_TIB, LIVE, \
      "max bytes of requests and replies buffered for all connections, of any protocol")           \
    X(SHM_REGIONS, "shm.regions", COUNT, 256, 1, 1024, LIVE,                                       \
      "max shared memory regions that a tenant may register over HTTP")                            \
    X(SHM_BYTES, "shm.bytes", BYTES, 64 * HTH_GIB, 4 * HTH_KIB, 4 * HTH_TIB, LIVE,                 \
      "max shared memory of a tenant; all tenants together: 16 times as much")                     \
    X(LIMIT_CONNECTIONS, "limits.connections", COUNT, 4096, 1, 1048576, LIVE,                      \
      "max connections, counted separately for HTTP, network clients and local clients")           \
    X(LIMIT_ADDRESS, "limits.connections_per_address", COUNT, 1024, 1, 1048576, LIVE,              \
      "max connections per network address or local user")                                         \
    X(LIMIT_REQUESTS, "limits.requests", COUNT, 256, 1, 65536, LIVE,                               \
      "max concurrent requests of hearth clients; more wait")                                      \
    X(LIMIT_PEER_REQUESTS, "limits.requests_per_peer", COUNT, 192, 1, 65536, LIVE,                 \
      "max concurrent requests of hearth clients per network address or local user")               \
    X(LIMIT_CONN_REQUESTS, "limits.requests_per_connection", COUNT, 256, 2, 65536, LIVE,           \
      "max concurrent requests on a hearth client's connection; no more are read from it")         \
    X(LIMIT_PEER_BYTES, "limits.bytes_per_peer", BYTES, 2 * HTH_GIB, HTH_MIB, 64 * HTH_TIB, LIVE,  \
      "max bytes of requests and replies buffered per network address or local user")              \
    X(LIMIT_HANDSHAKE_SECONDS, "limits.handshake_seconds", COUNT, 5, 1, 86400, LIVE,               \
      "time limit in seconds for the handshake of a hearth client")                                \
    X(LIMIT_TOKEN_SECONDS, "limits.token_seconds", COUNT, 10, 1, 86400, LIVE,                      \
      "time limit in seconds for the first valid token on a network connection, if tokens are "    \
      "configured")                                                                                \
    X(LIMIT_IDLE_SECONDS, "limits.idle_seconds", COUNT, 3600, 1, 31536000, LIVE,                   \
      "idle timeout in seconds of a hearth client's network connection")                           \
    X(LIMIT_LONG_REQUESTS, "limits.long_requests", COUNT, 1024, 1, 65536, LIVE,                    \
      "max concurrent long requests of hearth clients (waiting for training, imports, "            \
      "benchmarks); more are refused")                                                             \
    X(LIMIT_WATCHES, "limits.watches", COUNT, 1024, 1, 65536, LIVE,                                \
      "clients that may wait for events of training jobs; one peer gets a quarter of them, and a " \
      "tenant as many as it leaves free")                                                          \
    X(LIMIT_DETACHED_JOBS, "limits.detached_jobs", COUNT, 256, 1, 65536, LIVE,                     \
      "max training jobs that clients have left to the server, of a tenant as many as it leaves "  \
      "free; more are refused")                                                                    \
    X(TRAIN_CHECKPOINT_SECONDS, "train.checkpoint_seconds", COUNT, 60, 0, 1000000, LIVE,           \
      "seconds that a training job runs from one checkpoint to the next; 0: checkpoints only "     \
      "where a job asks for them, is paused, canceled or stopped")                                 \
    X(TRAIN_CANCELED_DAYS, "train.canceled_days", COUNT, 7, 0, 36500, LIVE,                        \
      "days in which a canceled training job can be resumed; then `hearth gc` removes its "        \
      "checkpoint")                                                                                \
    X(TRAIN_REPLAN_SHARE, "train.replan_share", REAL, 0.02, 0, 1, LIVE,                            \
      "max share of a training job's predicted time that the search for better plans works, at "   \
      "the lowest priority, while the job runs; 0: no search")                                     \
    X(FAIR_PATIENCE, "fair.patience", REAL, 2, 0, 86400, LIVE,                                     \
      "seconds that a tenant without a running job waits before another's is paused; 0: forever")  \
    X(CONVSEL_TOLERANCE, "convsel.tolerance", REAL, 1e-3, 0, 1, FIXED,                             \
      "max relative error of a convolution algorithm against direct convolution; at least 2^-8 "   \
      "in TF32 and 2^-5 in bf16; 1e-6 excludes AMX for fp32 and large Winograd tiles")             \
    X(CONVSEL_REMEASURE, "convsel.remeasure_seconds", REAL, 30, 0, 86400, LIVE,                    \
      "delay in seconds before an algorithm's timing that other load disturbed is measured "       \
      "again, on an idle machine and at most three times")                                         \
    X(CONVSEL_QUIET, "convsel.quiet_share", REAL, 0.25, 0, 1, LIVE,                                \
      "max fraction of busy processors at which the machine counts as idle for measurements")      \
    X(VECTOR_BYTES, "kernels.vector_bytes", COUNT, 64, 16, 64, FIXED,                              \
      "max vector width in bytes: 64 AVX-512, 32 AVX2, 16 SSE2; defaults to $HEARTH_ISA")          \
    X(STORE_INDEX_BYTES, "store.index_bytes", BYTES, HTH_GIB, 64 * HTH_KIB, 64 * HTH_TIB, FIXED,   \
      "initial address space of the store's index; grows automatically")                           \
    X(STORE_INLINE_BYTES, "store.inline_bytes", BYTES, 64 * HTH_KIB, 0, HTH_MIB, LIVE,             \
      "max size of a tensor stored in the index rather than in a file of its own")                 \
    X(STORE_UPLOAD_SECONDS, "store.upload_seconds", COUNT, 3600, 1, 31536000, LIVE,                \
      "time in seconds after which uploaded tensors that no model uses are removed")               \
    X(STORE_UPLOAD_BYTES, "store.upload_bytes", BYTES, 256 * HTH_GIB, 0, 1024 * HTH_TIB, LIVE,     \
      "max bytes of uploaded tensors that no model uses yet, for all clients")                     \
    X(STORE_SCRUB_DAYS, "store.scrub_days", COUNT, 7, 0, 3650, LIVE,                               \
      "days in which a background scrub reads and verifies the whole store; 0: off")               \
    X(STORE_SCRUB_RATE, "store.scrub_rate", BYTES, 16 * HTH_MIB, 64 * HTH_KIB, HTH_TIB, LIVE,      \
      "max bytes per second read by the background scrub")                                         \
    X(DRAIN_SECONDS, "drain.seconds", COUNT, 30, 1, 3600, LIVE,                                    \
      "max time in seconds that SIGTERM waits for accepted requests to finish")

// Settings that were renamed: X(old name, identifier). An old name is accepted wherever the new
// one is (file, command line, environment), with a warning, until the next version; only help,
// manual page and completions do not show it.
#define HTH_RENAMED_SETTINGS(X)                                                                    \
    X("limits.signature", LIMIT_INPUTS_OUTPUTS)                                                    \
    X("compute.spaces", COMPUTE_INSTANCES)                                                         \
    X("devices.copy_queue", DEVICES_REPLICA_QUEUE)                                                 \
    X("engine.heartbeats", ENGINE_MISSED_HEARTBEATS)                                               \
    X("engine.restart_ms", ENGINE_RESTART_BACKOFF_MS)                                              \
    X("http.request_rate", HTTP_MIN_REQUEST_RATE)                                                  \
    X("convsel.again_seconds", CONVSEL_REMEASURE)

typedef enum hth_setting {
#define HTH_SETTING_ID(id, ...) HTH_SET_##id,
    HTH_TEXT_SETTINGS(HTH_SETTING_ID) HTH_SETTINGS(HTH_SETTING_ID)
#undef HTH_SETTING_ID
        HTH_N_SETTINGS
} hth_setting;

#define HTH_RENAMED_ID(was, id) HTH_RENAMED_##id,
enum { HTH_RENAMED_SETTINGS(HTH_RENAMED_ID) HTH_N_RENAMED_SETTINGS };
#undef HTH_RENAMED_ID

typedef struct hth_setting_rename {
    const char *was; // the old name
    hth_setting setting;
} hth_setting_rename;

typedef struct hth_setting_info {
    const char *name;
    hth_setting_kind kind;
    double dflt, min, max;    // of a number
    const char *text, *words; // of a text: default; the words of WORD, separated by blanks
    hth_setting_change change;
    const char *help;
} hth_setting_info;

// hth_setting_get_info returns row `setting` of the table.
const hth_setting_info *hth_setting_get_info(hth_setting setting);
// hth_setting_find returns the row of the setting `name`, which may be an old name;
// HTH_N_SETTINGS: there is none.
int hth_setting_find(const char *name);
// hth_setting_get_rename returns row `i` of the table of renamed settings.
const hth_setting_rename *hth_setting_get_rename(int i);
// hth_setting_old_name returns the static copy of `name` if it is a setting's old name, else NULL.
const char *hth_setting_old_name(const char *name);
// hth_setting_means is the setting that is called `name` but for case and what separates its words,
// or for which other servers have this word; NULL: none is.
const char *hth_setting_means(const char *name);
bool hth_setting_is_switch(hth_setting setting); // its words are false and true
int64_t hth_setting_int(hth_setting setting);    // COUNT and BYTES
double hth_setting_real(hth_setting setting);    // any number
// hth_setting_text copies a text into `out`, of at least HTH_SETTING_TEXT bytes, and returns it.
const char *hth_setting_text(hth_setting setting, char *out);
// hth_setting_set parses, checks the range, and stores. HTH_ENOENT: no such name; HTH_EINVAL: the
// sentence gives the range; the value stays as it was. hth_setting_check only looks.
hth_err hth_setting_set(const char *name, const char *value);
hth_err hth_setting_check(const char *name, const char *value);
// hth_setting_given sets what a variable of the environment says; NULL: there is none, nothing is
// set.
hth_err hth_setting_given(const char *name, const char *value);
// hth_setting_get writes the current value as hth_setting_set reads it ("1GiB").
hth_err hth_setting_get(const char *name, char *out, size_t cap);
// hth_setting_is tells whether `text` means the present value.
bool hth_setting_is(hth_setting setting, const char *text);
// hth_setting_default writes the default of a row as hth_setting_set reads it.
const char *hth_setting_default(hth_setting setting, char *out, size_t cap);
void hth_setting_reset(void);       // all to their defaults
uint64_t hth_setting_changes(void); // how often any was set: whether a copy of them is still good
// hth_setting_format writes `value` as a number of kind `kind` and returns `out`.
const char *hth_setting_format(hth_setting_kind kind, double value, char *out, size_t cap);

// hth_parse_size reads "1048576", "512MiB", "2GiB", "1.5G" (binary units; B and iB may be left out,
// case does not matter) or, when `whole` > 0, "60%" of it. HTH_EINVAL says what is wrong.
hth_err hth_parse_size(const char *text, uint64_t whole, uint64_t *out);

#endif
