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
    X(STORE, "store", TEXT, "", "", FIXED, "directory of the models; created if absent")           \
    X(LISTEN, "listen", LIST, "", "", FIXED,                                                       \
      "where clients connect: ipc://PATH, tcp:// or tls+tcp://HOST:PORT; empty: a local socket")   \
    X(HTTP, "http", TEXT, "", "", FIXED,                                                           \
      "where the Open Inference Protocol is served: 127.0.0.1:8000, https://..; empty: nowhere")   \
    X(METRICS, "metrics", TEXT, "", "", FIXED,                                                     \
      "where /metrics is served to Prometheus, 127.0.0.1:8002; needs http; empty: nowhere")        \
    X(METRICS_SUMMARIES, "metrics.summaries", WORD, "false", "false true", LIVE,                   \
      "whether /metrics tells percentiles of the last minute's requests, by model")                \
    X(TRACE_FILE, "trace.file", TEXT, "", "", FIXED,                                               \
      "where traces of HTTP requests go when a client asks for them; empty: it cannot")            \
    X(HTTP_PREFIX, "http.prefix", TEXT, "", "", FIXED,                                             \
      "path in front of all paths over HTTP: /base/path serves /base/path/v2/..; empty: none")     \
    X(HTTP_HOSTS, "http.hosts", LIST, "", "", LIVE,                                                \
      "names, beside localhost and addresses, by which a proxy on this machine calls over HTTP")   \
    X(AUTH_TOKENS_FILE, "auth.tokens_file", TEXT, "", "", FIXED,                                   \
      "file of tokens (hearth token); read again on SIGHUP; empty: there are none")                \
    X(AUTH_LOCAL, "auth.local", LIST, "", "", FIXED,                                               \
      "users and @groups that may do everything through a Unix socket, as root may")               \
    X(TENANT_FILE, "tenant.file", TEXT, "", "", FIXED,                                             \
      "file of what tenants may have (docs/tenants.md); read again on SIGHUP; empty: no limits")   \
    X(USER, "user", TEXT, "", "", FIXED,                                                           \
      "account that hearthd becomes before it opens anything, when root starts it")                \
    X(TLS_CERT, "tls.cert", TEXT, "", "", FIXED,                                                   \
      "PEM file, certificate and chain for https:// and tls+tcp://; read again on SIGHUP")         \
    X(TLS_KEY, "tls.key", TEXT, "", "", FIXED, "PEM file, private key of tls.cert")                \
    X(TLS_MIN_VERSION, "tls.min_version", WORD, "1.2", "1.2 1.3", FIXED,                           \
      "oldest version of TLS that is spoken")                                                      \
    X(ALLOW_CLIENT_SHM, "allow_client_shm", WORD, "false", "false true", FIXED,                    \
      "whether HTTP clients may have tensors in POSIX shared memory that they register")           \
    X(DEVICE, "device", LIST, "cpu", "", FIXED,                                                    \
      "what computes, with its memory and threads: cpu:mem=2GiB,threads=2 or cuda:0,mem=80%; "     \
      "several devices serve together")                                                            \
    X(PRECISION, "precision", WORD, "fp32", "fp32 tf32 bf16", FIXED,                               \
      "in what convolutions and products compute where a model has none of its own; not on a CPU") \
    X(ENGINE_PROCESS, "engine.process", WORD, "child", "thread child", FIXED,                      \
      "where a device is worked: a thread of hearthd, or a child process that can be restarted")   \
    X(ENGINE_SANDBOX, "engine.sandbox", WORD, "true", "false true", FIXED,                         \
      "whether an engine's process is confined: store, no network, no other programs")             \
    X(CUDA_LIBS, "cuda.libs", TEXT, "", "", FIXED,                                                 \
      "folders of CUDA's libraries, with ':' between, looked into first; CUDA_HOME sets it")       \
    X(ONEDNN, "kernels.onednn", WORD, "true", "false true", FIXED,                                 \
      "whether a CPU computes with oneDNN where libhearth_dnnl.so and its libraries are there")    \
    X(CLEAR_ARENA, "memory.clear_arena", WORD, "true", "false true", FIXED,                        \
      "whether memory of results in between is cleared before another model or job has it")        \
    X(STORE_CHECK, "store.check_on_load", WORD, "auto", "auto always never", LIVE,                 \
      "whether tensors are hashed when a model is loaded: auto: where the file has changed since " \
      "that was last done, or it was not within store.scrub_days; always: once in each process")   \
    X(LOG_LEVEL, "log.level", FILTER, "warn", "", LIVE,                                            \
      "what is logged: none, error, warn, info, debug, or by subsystem: warn,store=debug")         \
    X(LOG_FORMAT, "log.format", WORD, "logfmt", "logfmt json", LIVE,                               \
      "logfmt: key=value; json: one object a line")

// X(identifier, name, kind, default, least, most, change, help)
#define HTH_SETTINGS(X)                                                                            \
    X(LIMIT_MODEL_BYTES, "limits.model_bytes", BYTES, 64 * HTH_GIB, HTH_KIB, 1024 * HTH_TIB, LIVE, \
      "largest model file, external data included, that is imported")                              \
    X(LIMIT_UPLOAD_BYTES, "limits.upload_bytes", BYTES, 256 * HTH_MIB, 0, HTH_TIB, LIVE,           \
      "largest model that is taken over HTTP; 0: none is")                                         \
    X(LIMIT_MESSAGE_BYTES, "limits.message_bytes", BYTES, HTH_GIB, 64 * HTH_KIB, HTH_TIB, FIXED,   \
      "largest request or answer, after decompression")                                            \
    X(LIMIT_RANK, "limits.rank", COUNT, 8, 1, 8, FIXED, "most dimensions of a tensor")             \
    X(LIMIT_ELEMENTS, "limits.elements", COUNT, 1099511627776.0, 1, 1125899906842624.0, LIVE,      \
      "most elements of one tensor")                                                               \
    X(LIMIT_NODES, "limits.nodes", COUNT, 200000, 1, 100000000, LIVE,                              \
      "most operators of a model; each takes some 4 KiB of memory when it is loaded")              \
    X(LIMIT_SIGNATURE, "limits.signature", COUNT, 4096, 1, 1000000, LIVE,                          \
      "most inputs and outputs of a model together")                                               \
    X(LIMIT_FOLD_BYTES, "limits.fold_bytes", BYTES, 256 * HTH_MIB, 0, 1024 * HTH_TIB, LIVE,        \
      "memory for results that a model's constants decide and that are computed beforehand, in "   \
      "addition to 4 times its constants; more is computed by each run")                           \
    X(LIMIT_FOLD_OPERATIONS, "limits.fold_operations", COUNT, 2e9, 0, 1e18, LIVE,                  \
      "operations for that, in addition to 16 for each byte of its constants")                     \
    X(LIMIT_FOLDED_BYTES, "limits.folded_bytes", BYTES, 0, 0, 1024 * HTH_TIB, LIVE,                \
      "memory for such results of all models together; 0: a quarter of the machine's")             \
    X(HOST_BYTES, "memory.host_bytes", BYTES, 0, 0, 64 * HTH_TIB, LIVE,                            \
      "host memory that requests take outside of a device, for outputs and between a model's "     \
      "stages; 0: as much as the device has, at most a quarter of the machine's")                  \
    X(QUEUE_LENGTH, "queue.length", COUNT, 1024, 1, 1048576, FIXED,                                \
      "requests that may wait for one engine; more are refused as busy")                           \
    X(QUEUE_TIMEOUT_US, "queue.timeout_us", COUNT, 0, 0, 3600000000.0, LIVE,                       \
      "how long an inference that names no timeout may wait, in microseconds; 0: without end")     \
    X(QUEUE_MEMORY_WAIT, "queue.memory_wait_ms", COUNT, 30000, 0, 3600000.0, LIVE,                 \
      "how long an inference may wait for memory that others hold, in milliseconds; 0: not")       \
    X(QUEUE_PRIORITY, "queue.priority", COUNT, 100, 1, 4294967295.0, LIVE,                         \
      "priority of inferences that name none; 1 is served first")                                  \
    X(BATCH_MAX, "batch.max", COUNT, 32, 1, 65536, LIVE,                                           \
      "samples of one run, at most, into which waiting requests are joined; 1: none are")          \
    X(BATCH_DELAY_US, "batch.delay_us", COUNT, 0, 0, 1000000, LIVE,                                \
      "how long a request may wait for others to join, in microseconds, where that pays")          \
    X(COMPUTE_SPACES, "compute.spaces", COUNT, 4, 1, 4, LIVE,                                      \
      "runs of one model at a time, at most, where that is measured to be faster on a CPU")        \
    X(QUEUE_SPIN_US, "queue.spin_us", COUNT, 100, 0, 10000, FIXED,                                 \
      "time in microseconds that an idle engine looks for work before it sleeps")                  \
    X(DEVICES_COPY_QUEUE, "devices.copy_queue", COUNT, 8, 0, 1048576, LIVE,                        \
      "unanswered requests for a model on each device that has it, at which another gets a copy; " \
      "0: never")                                                                                  \
    X(RING_CLIENTS, "ring.clients", COUNT, 64, 0, 4096, FIXED,                                     \
      "local clients that may send requests through shared memory; more use the socket")           \
    X(RING_BYTES, "ring.bytes", BYTES, 64 * HTH_MIB, 64 * HTH_KIB, HTH_GIB, FIXED,                 \
      "most shared memory of one of them for requests and answers")                                \
    X(ENGINE_HEARTBEAT_MS, "engine.heartbeat_ms", COUNT, 1000, 10, 600000, FIXED,                  \
      "how often hearthd looks whether the engine's process still runs, in milliseconds")          \
    X(ENGINE_HEARTBEATS, "engine.heartbeats", COUNT, 10, 2, 1000, LIVE,                            \
      "looks without a sign of life behind which the engine's process is killed and restarted")    \
    X(ENGINE_RESTART_MS, "engine.restart_ms", COUNT, 10000, 0, 3600000, LIVE,                      \
      "longest pause, in milliseconds, before an engine's process that keeps dying is restarted")  \
    X(ENGINE_STALL_SECONDS, "engine.stall_seconds", COUNT, 30, 1, 86400, LIVE,                     \
      "seconds in which the engine has looked for no requests after which it is not ready")        \
    X(HTTP_IDLE_SECONDS, "http.idle_seconds", COUNT, 300, 1, 86400, FIXED,                         \
      "how long an HTTP connection may stay without a request, or with half of one")               \
    X(HTTP_REQUEST_SECONDS, "http.request_seconds", COUNT, 20, 1, 86400, LIVE,                     \
      "how long a request may take to come, plus what http.request_rate allows; of all front "     \
      "ends")                                                                                      \
    X(HTTP_REQUEST_RATE, "http.request_rate", BYTES, 512, 1, HTH_GIB, LIVE,                        \
      "bytes of a request that allow it a second more")                                            \
    X(HTTP_HEADER_BYTES, "http.header_bytes", BYTES, 32 * HTH_KIB, HTH_KIB, HTH_MIB, FIXED,        \
      "largest request line and headers together")                                                 \
    X(HTTP_URL_BYTES, "http.url_bytes", BYTES, 8 * HTH_KIB, 64, HTH_MIB, LIVE, "longest URL")      \
    X(HTTP_CHUNKS, "http.chunks", COUNT, 1048576, 1, 1e12, LIVE,                                   \
      "most chunks of a request's body")                                                           \
    X(HTTP_JSON_DEPTH, "http.json_depth", COUNT, 100, 4, 100, LIVE,                                \
      "most levels of a request's JSON")                                                           \
    X(HTTP_BUFFERED_BYTES, "http.buffered_bytes", BYTES, 4 * HTH_GIB, HTH_MIB, 64 * HTH_TIB, LIVE, \
      "most bytes of requests and answers that connections of all kinds hold together")            \
    X(SHM_REGIONS, "shm.regions", COUNT, 256, 1, 1024, LIVE,                                       \
      "most regions of shared memory that one tenant has registered over HTTP")                    \
    X(SHM_BYTES, "shm.bytes", BYTES, 64 * HTH_GIB, 4 * HTH_KIB, 4 * HTH_TIB, LIVE,                 \
      "most bytes of memory that one tenant shares with the server; all together 16 times as "     \
      "many")                                                                                      \
    X(LIMIT_CONNECTIONS, "limits.connections", COUNT, 4096, 1, 1048576, LIVE,                      \
      "most HTTP connections, connections of hearth's clients over a network, and local ones")     \
    X(LIMIT_ADDRESS, "limits.connections_per_address", COUNT, 1024, 1, 1048576, LIVE,              \
      "the same from one address of the network, or of one local user")                            \
    X(LIMIT_REQUESTS, "limits.requests", COUNT, 256, 1, 65536, LIVE,                               \
      "inferences and questions of hearth's own clients that are worked on at once; others wait")  \
    X(LIMIT_PEER_REQUESTS, "limits.requests_per_peer", COUNT, 192, 1, 65536, LIVE,                 \
      "the same for one address of the network or one local user")                                 \
    X(LIMIT_CONN_REQUESTS, "limits.requests_per_connection", COUNT, 256, 2, 65536, LIVE,           \
      "requests in progress on one connection of hearth's own clients; no more are read from it")  \
    X(LIMIT_PEER_BYTES, "limits.bytes_per_peer", BYTES, 2 * HTH_GIB, HTH_MIB, 64 * HTH_TIB, LIVE,  \
      "bytes of requests and answers held for one address of the network or one local user")       \
    X(LIMIT_HANDSHAKE_SECONDS, "limits.handshake_seconds", COUNT, 5, 1, 86400, LIVE,               \
      "how long a connection of hearth's own clients may take until it is one")                    \
    X(LIMIT_TOKEN_SECONDS, "limits.token_seconds", COUNT, 10, 1, 86400, LIVE,                      \
      "how long a connection over a network may stay without a valid token, where there are any")  \
    X(LIMIT_IDLE_SECONDS, "limits.idle_seconds", COUNT, 3600, 1, 31536000, LIVE,                   \
      "how long a connection of hearth's own clients over a network may stay without a request")   \
    X(LIMIT_LONG_REQUESTS, "limits.long_requests", COUNT, 1024, 1, 65536, LIVE,                    \
      "the same of training that is waited for, imports, measurements; more are refused")          \
    X(CONVSEL_TOLERANCE, "convsel.tolerance", REAL, 1e-3, 0, 1, FIXED,                             \
      "largest relative error, against the direct algorithm, of a convolution algorithm; in TF32 " \
      "at least 2^-8, in bf16 2^-5; 1e-6 leaves out AMX for fp32 and large Winograd tiles")        \
    X(CONVSEL_AGAIN, "convsel.again_seconds", REAL, 30, 0, 86400, LIVE,                            \
      "a timing for inference that other work on the machine disturbed is taken again, three "     \
      "times "                                                                                     \
      "at most, when so long has passed and the machine is quiet")                                 \
    X(CONVSEL_QUIET, "convsel.quiet_share", REAL, 0.25, 0, 1, LIVE,                                \
      "the machine is quiet while no more than this share of its processors is busy")              \
    X(VECTOR_BYTES, "kernels.vector_bytes", COUNT, 64, 16, 64, FIXED,                              \
      "widest vectors that are used, in bytes: 64 AVX-512, 32 AVX2, 16 SSE2; HEARTH_ISA sets it")  \
    X(STORE_INDEX_BYTES, "store.index_bytes", BYTES, HTH_GIB, 64 * HTH_KIB, 64 * HTH_TIB, FIXED,   \
      "address space reserved at first for a store's index; it grows by itself")                   \
    X(STORE_INLINE_BYTES, "store.inline_bytes", BYTES, 64 * HTH_KIB, 0, HTH_MIB, LIVE,             \
      "tensors up to this size are kept in the index instead of a file each")                      \
    X(STORE_SCRUB_DAYS, "store.scrub_days", COUNT, 7, 0, 3650, LIVE,                               \
      "hearthd reads all that is stored, in the background, once in so many days; 0: it does not") \
    X(STORE_SCRUB_RATE, "store.scrub_rate", BYTES, 16 * HTH_MIB, 64 * HTH_KIB, HTH_TIB, LIVE,      \
      "bytes that it reads in a second, at most")                                                  \
    X(DRAIN_SECONDS, "drain.seconds", COUNT, 30, 1, 3600, LIVE,                                    \
      "how long SIGTERM waits for the answers to accepted requests")

typedef enum hth_setting {
#define HTH_SETTING_ID(id, ...) HTH_SET_##id,
    HTH_TEXT_SETTINGS(HTH_SETTING_ID) HTH_SETTINGS(HTH_SETTING_ID)
#undef HTH_SETTING_ID
        HTH_N_SETTINGS
} hth_setting;

typedef struct hth_setting_info {
    const char *name;
    hth_setting_kind kind;
    double dflt, least, most; // of a number
    const char *text, *words; // of a text: default; the words of WORD, separated by blanks
    hth_setting_change change;
    const char *help;
} hth_setting_info;

// hth_setting_get_info returns row `s` of the table.
const hth_setting_info *hth_setting_get_info(hth_setting s);
// hth_setting_find is the row of `name`; HTH_N_SETTINGS: there is none.
int hth_setting_find(const char *name);
// hth_setting_means is the setting that is called `name` but for case and what separates its words,
// or for which other servers have this word; NULL: none is.
const char *hth_setting_means(const char *name);
bool hth_setting_is_switch(hth_setting s); // its words are false and true
int64_t hth_setting_int(hth_setting s);    // COUNT and BYTES
double hth_setting_real(hth_setting s);    // any number
// hth_setting_text copies a text into `out`, of at least HTH_SETTING_TEXT bytes, and returns it.
const char *hth_setting_text(hth_setting s, char *out);
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
bool hth_setting_is(hth_setting s, const char *text);
// hth_setting_default writes the default of a row as hth_setting_set reads it.
const char *hth_setting_default(hth_setting s, char *out, size_t cap);
void hth_setting_reset(void);       // all to their defaults
uint64_t hth_setting_changes(void); // how often any was set: whether a copy of them is still good
// hth_setting_format writes `value` as a number of kind `kind` and returns `out`.
const char *hth_setting_format(hth_setting_kind kind, double value, char *out, size_t cap);

// hth_parse_size reads "1048576", "512MiB", "2GiB", "1.5G" (binary units; B and iB may be left out,
// case does not matter) or, when `whole` > 0, "60%" of it. HTH_EINVAL says what is wrong.
hth_err hth_parse_size(const char *text, uint64_t whole, uint64_t *out);

#endif
