// SPDX-License-Identifier: Apache-2.0
// server/http/http_call.h - the inside of the HTTP door, shared by server/http*.c. Loop's thread
// only, except where a comment says otherwise.
//
// A handler answers its request at once (hth_http_send, hth_http_fail), or makes a call, submits it
// to the engine, and answers in the call's `finish`.
#ifndef HTH_SERVER_HTTP_HTTP_CALL_H
#define HTH_SERVER_HTTP_HTTP_CALL_H

#include "base/hash.h"
#include "base/settings.h"
#include "server/net/accept_guard.h"
#include "server/http/http.h"
#include "server/http/http_chunks.h"
#include "server/http/tensors/http_json.h"
#include "server/http/http_head_cache.h"
#include "server/http/http_shm.h"
#include "server/http/trace/http_trace.h"
#include "server/http/http_work.h"
#include "runtime/machine.h"
#include "runtime/tenants/tenant_rules.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>

#include <pthread.h>
#include <stdatomic.h>

#define HTH_HTTP_TICK_US 20000
#define HTH_HTTP_WRITE   (1 << 20)  // bytes that are written at once
#define HTH_HTTP_SCRATCH (16 << 10) // that are read at once, unless there are more

// How long a call whose answer may be an older one waits for the engine.
#define HTH_HTTP_PATIENCE_NS 150000000u

typedef struct hth_http_call hth_http_call;
typedef struct hth_http_address hth_http_address; // of the network: how many connections it has

// A listener: what its connections are made from.
typedef struct hth_http_door {
    hth_http *h;
    bool tls;
    struct evhttp *http;
    struct evhttp_bound_socket *bound;
    hth_accept_guard *guard;
    int accepted; // in this turn of the loop
    bool resting; // it accepts no more until those were looked at
} hth_http_door;

// A request's body in one piece of the engine's memory.
typedef struct hth_http_block {
    struct hth_http *h;
    _Atomic int refs;     // the connection's, the evbuffer's, the call's
    uint64_t bytes, come; // of the body
    char *body, *memory;  // body: where it begins in the memory
} hth_http_block;

// A connection, from accept to close (http_guard.c).
typedef struct hth_http_conn {
    hth_http *h;
    struct bufferevent *b;
    int fd;
    struct event *readable, *writable; // of the socket; NULL: the bufferevent has it (TLS)
    bool paused;                       // the first is not watched: evhttp takes nothing
    uint64_t tick;                     // when http.idle_seconds began last, in ticks
    struct evhttp_connection *evcon;
    hth_http_address *address;
    hth_peer peer;
    const hth_http_door *door;
    bool tls, told, listed; // told: it was given its end; listed: in conns
    bool admitted;          // it counts: in n_conns, and in accept_guard.h
    bool headed, moving;    // the present head was looked at; its bytes go where we put them
    bool inflated;          // the present body was, on a thread
    struct evbuffer *held;  // of a head that is not whole; may be NULL
    hth_http_block *block;  // where a large body comes to, or lies; NULL: it does not
    // of a head that was just looked at: its own bytes, its body's, and those in front of the
    // body's tensors; due 0: the body need not lie in one piece
    uint64_t text_due, due, head_due;
    uint64_t refused_ns;     // when the present one was refused for its head; 0: it was not
    uint64_t dropped;        // of its body since then
    uint64_t since_ns;       // when what is coming began to; 0: nothing is
    uint64_t bytes, sending; // of the present request, and of its answer
    uint64_t answer_ns;      // when that began to go; 0: none goes
    uint64_t lines;          // of the present request: headers and chunks
    hth_chunks chunks;       // where its body, in chunks, is
    struct hth_http_conn *next_fresh;
    UT_hash_handle hh; // by evcon
} hth_http_conn;
typedef struct hth_http_dashboard hth_http_dashboard;
typedef struct hth_http_list hth_http_list;

// Documents about all models (http_list.c).
typedef enum hth_http_listed {
    HTH_HTTP_LIST_INDEX,
    HTH_HTTP_LIST_READY, // the index of what is served
    HTH_HTTP_LIST_STATS,
    HTH_HTTP_LIST_METRICS,
    HTH_HTTP_LIST_MODELS, // the page's
    HTH_HTTP_LISTS
} hth_http_listed;

// A model that was unloaded over HTTP: not served until it is loaded again.
typedef struct hth_http_unloaded {
    char name[201];
    UT_hash_handle hh;
} hth_http_unloaded;

struct hth_http {
    hth_engine *engine;
    hth_store *store;
    hth_store_worker *jobs;
    hth_http_work *work; // threads for what takes long; NULL: nothing did yet
    hth_auth *auth;
    hth_tls *tls;
    char prefix[HTH_SETTING_TEXT]; // of all paths; "": none
    uint64_t message_bytes, header_bytes;
    struct event_base *base;
    hth_http_door api, metrics; // metrics: closed when it has no address
    struct event *admit;
    hth_http_conn *fresh, *conns; // accepted and not looked at yet; all others
    hth_http_conn *last_conn;     // that was asked for; NULL: it has gone
    hth_http_address *addresses;
    int64_t n_conns;           // that were admitted
    hth_seldom crowded;        // lines of the log about connections that were refused
    _Atomic uint64_t reserved; // bytes of all blocks
    uint64_t looked_ns;
    hth_shm *shm;
    struct event *wake, *tick;
    int wake_fd;
    pthread_t thread;
    bool running;
    atomic_bool stopping, ending;       // refuses; .. and ends when all is answered
    _Atomic(hth_http_call *) completed; // pushed by the engine's thread
    uint64_t events, spin_ns; // what came so far; how long the loop looks for more before it sleeps
    atomic_bool looking;      // it looks, and need not be woken for what is completed
    bool ended;
    hth_http_call *pending; // submitted and not yet answered
    atomic_int n_pending;
    atomic_bool cancel;             // all that is pending
    int n_sending;                  // replies that have not left yet
    uint64_t n_answered, n_refused; // replies; .. of these, because the server stops
    uint64_t stop_ns; // when stopping may end although replies have not left; 0: not yet
    bool writing;     // what reaches an output now is ours, not evhttp's
    pthread_mutex_t unloaded_lock; // changes, on the loop, and others' looking
    hth_http_unloaded *unloaded;
    hth_machine machine; // when /metrics was last asked for; whoever writes them
    hth_tracer *tracer;
    hth_trace
        *tracing; // of the request that is being handled; taken over by its call or its answer
    uint64_t received_ns; // when it began to arrive; 0: not known
    hth_http_dashboard *views;
    hth_http_list *lists[HTH_HTTP_LISTS * 2]; // each for this machine and for others; NULL: not yet
    hth_head_cache seen;
    char scratch[HTH_HTTP_SCRATCH];
    time_t date_s; // what `date` says
    char date[50];
    struct evbuffer *page; // hearth's page
    char page_policy[400]; // .. and its Content-Security-Policy
};

// What the path says: names are percent-decoded.
typedef struct hth_http_args {
    char name[201]; // of the model or the region
    int version;    // 0: none given
    char spec[216]; // "name" or "name:version", as the engine takes it
} hth_http_args;

struct hth_http_call {
    hth_http *h;
    struct evhttp_request *req; // NULL: answered before the engine did
    hth_request r;
    char tenant[HTH_TENANT];
    hth_http_args args;
    void (*finish)(hth_http_call *c); // answers
    // where not NULL: it cannot be submitted (`err`), or took HTH_HTTP_PATIENCE_NS (HTH_ETIMEDOUT);
    // it answers, and `finish` comes without a request then
    void (*late)(hth_http_call *c, hth_err err);
    void (*drop)(hth_http_call *c); // frees what a kind of call holds besides; may be NULL
    // what hth_http_call_work has done on another thread
    hth_err (*work)(hth_http_call *c);
    hth_http_task task;
    bool begun;                 // it is in h->pending
    hth_http_call *prev, *next; // of h->pending
    hth_http_call *next_completed;
    hth_trace *trace;     // NULL: it is not traced
    struct event *closed; // the client's hanging up
    uint64_t since_ns;
};

// hth_http_call_new makes a call of `bytes` (>= sizeof(hth_http_call), which comes first), or
// answers 503 and returns NULL.
void *hth_http_call_new(hth_http *h, struct evhttp_request *req, const hth_http_args *a,
                        size_t bytes);
// hth_http_call_submit hands the call to the engine; it is freed after `finish`, unless that has
// handed it on again. Where the engine does not take it, `finish` is called soon.
void hth_http_call_submit(hth_http_call *c);
// hth_http_call_run is the same for what the thread of `jobs` does: `run` leaves c->r.err and
// c->r.detail and calls c->r.done.
void hth_http_call_run(hth_http_call *c, hth_store_worker *jobs, hth_store_task *job,
                       void (*run)(hth_store_task *j));
// hth_http_call_work has a thread of http_work.h call `work`, whose error and sentence are the
// call's then, and `finish` on the loop's thread. c->task says how long it takes, and whose turn
// that is; one 0: its tenant's (without a token: its address's) and its connection's.
void hth_http_call_work(hth_http_call *c, hth_err (*work)(hth_http_call *c),
                        void (*finish)(hth_http_call *c));
void hth_http_call_free(hth_http_call *c);
// hth_http_call_refuse answers a call that was not submitted with an error, and frees it.
void hth_http_call_refuse(hth_http_call *c, hth_err err);

bool hth_http_complete(hth_http *h); // answers what is completed; returns whether anything was
void hth_http_wake(hth_http *h);     // has the loop look for what is completed; any thread
void hth_http_woken(evutil_socket_t fd, short what, void *h);  // the eventfd's event
void hth_http_ticked(evutil_socket_t fd, short what, void *h); // every tick

// ---- http_guard.c: connections

hth_http_conn *hth_http_conn_new(hth_http_door *door); // NULL: out of memory
void hth_http_door_close(hth_http_door *door);         // nobody else gets in
void hth_http_admit(evutil_socket_t fd, short what, void *h);
hth_http_conn *hth_http_conn_of(hth_http *h, struct evhttp_request *req); // NULL: not known
// What happens to a connection: bytes came or were taken off, a request is there as a whole, an
// answer goes, and has gone.
void hth_http_conn_came(hth_http_conn *c, size_t added, size_t deleted);
void hth_http_conn_whole(hth_http_conn *c);
void hth_http_conn_grew(hth_http_conn *c, size_t bytes); // .. while it was decompressed
void hth_http_conn_answers(hth_http_conn *c, size_t bytes);
void hth_http_conn_answered(hth_http_conn *c);
// hth_http_hold counts memory (account.h) that a request takes besides what came, until
// hth_account_give; any thread. HTH_EBUSY: there is too much already, nothing is counted.
hth_err hth_http_hold(uint64_t bytes);
void hth_http_conn_look(hth_http *h, uint64_t now); // ends what is too slow

// ---- http_may.c: rights

#define HTH_HTTP_CHALLENGE "Bearer realm=\"hearth\""

// Why a request is refused.
typedef struct hth_http_refusal {
    int status;
    bool challenge;    // a token would help
    const char *allow; // of a 405: the verbs that are served there; a literal
    char sentence[700];
} hth_http_refusal;

// hth_http_judge tells whether a request for `target` with these headers may do what needs `need`;
// false: why not is in *no.
bool hth_http_judge(hth_http *h, const hth_http_conn *c, const char *target,
                    const struct evkeyvalq *headers, hth_need need, hth_http_refusal *no);
// hth_http_auth is the same for a request that is there; false: answered.
bool hth_http_auth(hth_http *h, struct evhttp_request *req, hth_need need);
bool hth_http_is_near(hth_http *h, struct evhttp_request *req); // it comes from this machine
// hth_http_tenant stores whose request it is: the token's name, or HTH_HTTP_NOBODY.
#define HTH_HTTP_NOBODY "http"
void hth_http_tenant(hth_http *h, struct evhttp_request *req, char *out, size_t cap);
bool hth_http_is_admin(hth_http *h, struct evhttp_request *req); // it may do everything

// ---- http_host.c: the name that a request calls the server by

#define HTH_HTTP_HOST_BYTES 255 // the longest name that DNS has
// hth_http_host_sound tells whether `n` bytes are a host, with or without a port, as a Host header
// may have it: not longer than that. An empty one is sound.
bool hth_http_host_sound(const char *host, size_t n);
// hth_http_trim moves *value over the blanks that it begins with, and returns how long it is
// without those that it ends with.
size_t hth_http_trim(const char **value);
// hth_http_authority returns the host, *n bytes with its port, in the target of a request line
// ("http://host:1/path"); NULL: the target has none.
const char *hth_http_authority(const char *target, size_t *n);
// hth_http_host_wrong returns a sentence about what is wrong with the name that a request gives the
// server; NULL: nothing is. `needed`: it must have a Host header.
const char *hth_http_host_wrong(const struct evkeyvalq *headers, const char *target, bool needed);
// hth_http_twice returns a sentence about a header that comes twice although what a request may, or
// how it is read, hangs on it: a proxy in front may have looked at the other one. NULL: there is
// none.
const char *hth_http_twice(const struct evkeyvalq *headers);

// ---- http_head.c: heads before their bodies

#define HTH_HTTP_DIFFER                                                                            \
    "the Content-Length headers are no numbers or differ, or there is a Transfer-Encoding beside"
#define HTH_HTTP_ZERO "a zero byte stands in the head"
#define HTH_HTTP_CR   "a carriage return that ends no line stands in the head"
#define HTH_HTTP_FOLD "a line of the head begins with a blank"
#define HTH_HTTP_LONG "the request line and the headers exceed the server's limit"

// hth_http_head_came looks at what has come of a request: bytes came, or an answer has gone with
// something behind its request.
void hth_http_head_came(hth_http_conn *c);
// hth_http_head_chunks looks at the last `n` bytes of what has come behind a head: those of a body
// in chunks are made what evhttp reads, and refused where they are not well-formed.
void hth_http_head_chunks(hth_http_conn *c, size_t n);
// Behind a head that was refused: hth_http_head_drop drops what has come; hth_http_head_end ends
// the connection by a reset, without which who still sends could wait for a minute.
void hth_http_head_drop(hth_http_conn *c);
void hth_http_head_end(hth_http_conn *c);

// ---- http_tls.c

struct bufferevent *hth_http_tls_new(struct event_base *base, hth_tls *tls); // NULL: no memory
// hth_http_dead_new makes one that nothing ever comes through: without any evhttp makes its own,
// which would be neither encrypted nor counted.
struct bufferevent *hth_http_dead_new(struct event_base *base);
// hth_http_tls_tell sends an answer, and says that nothing follows, as far as that goes at once.
void hth_http_tls_tell(struct bufferevent *b, const char *text, size_t n);
bool hth_http_tls_is_up(const struct bufferevent *b); // the handshake is over

// ---- http_io.c: sockets

// hth_http_io_open has the connection's socket read and written; false: out of memory.
bool hth_http_io_open(hth_http_conn *c);
void hth_http_io_close(hth_http_conn *c);
void hth_http_io_resume(hth_http_conn *c); // reads on, behind an answer
// hth_http_io_write writes what is to go out, as far as that goes at once, where evhttp would have
// the loop watch for room, wait, and watch no more; the rest follows. evhttp is told behind its own
// work. hth_http_io_later leaves all of it to the loop.
void hth_http_io_write(const hth_http_conn *c);
void hth_http_io_later(const hth_http_conn *c);

// ---- http_quick.c: health checks

// hth_http_health answers what has come, `n` bytes, if that is a health check that passes, as a
// whole and between two requests. false: nothing has happened.
bool hth_http_health(hth_http_conn *c, const char *text, size_t n);

// ---- http_block.c: large bodies

// hth_http_block_begin has the body whose head was just looked at come to a block, if there is
// memory for it and it has not come already.
void hth_http_block_begin(hth_http_conn *c);
// hth_http_block_read reads on into the block. It returns what recv does.
ssize_t hth_http_block_read(hth_http_conn *c);
// hth_http_block_of is the block in which all of `body` lies, a request's on `c`, in one piece;
// NULL: there is none. The caller takes a reference if it needs it for longer than `body`.
hth_http_block *hth_http_block_of(const hth_http_conn *c, struct evbuffer *body);
void hth_http_block_rele(hth_http_block *b); // NULL is allowed
// hth_http_block_done is for a body that has been read, before its request is answered: what is
// left of it is dropped, and its block, if it has one, is free as soon as no call needs it.
void hth_http_block_done(hth_http_conn *c, struct evbuffer *body);

// ---- http_conn.c: bytes; http_sound.c: what must not come

struct bufferevent *hth_http_bufferevent(struct event_base *base, void *door);
// hth_http_header is a header of the request, the first of that name; NULL: it has none.
const char *hth_http_header(const struct evhttp_request *req, const char *name);
// hth_http_validate checks what evhttp lets through; false: answered.
bool hth_http_validate(hth_http *h, struct evhttp_request *req);
// hth_http_body reads an optional JSON body, a short one: an empty one is NULL. false: answered.
bool hth_http_body(hth_http *h, struct evhttp_request *req, json_t **out);

// ---- http_reply.c: answers

const char *hth_http_phrase(int status);
#define HTH_HTTP_HEALTH_BYTES 192
// hth_http_health_text writes an answer that is 200 with `json`, at most 32 bytes, and returns how
// long it is.
size_t hth_http_health_text(hth_http *h, const char *json, char out[HTH_HTTP_HEALTH_BYTES]);
// hth_http_error_text writes an answer that is an error and ends its connection, for clients that
// are told so past evhttp. `fields`: further header lines. Returns its length; 0: there is no room.
size_t hth_http_error_text(hth_http *h, int status, const char *fields, const char *json, char *out,
                           size_t cap);
// hth_http_send answers; `body` (may be NULL: empty) is emptied, not freed. A HEAD gets its length
// only.
void hth_http_send(hth_http *h, struct evhttp_request *req, int status, const char *type,
                   struct evbuffer *body);
void hth_http_send_json(hth_http *h, struct evhttp_request *req, json_t *doc); // takes `doc`
void hth_http_fail(hth_http *h, struct evhttp_request *req, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// hth_http_fail_err answers with `err`'s status (the one table) and the calling thread's detail.
void hth_http_fail_err(hth_http *h, struct evhttp_request *req, hth_err err);
// hth_http_fail_call answers with what the engine said about `c`; `id` is the request's, or NULL.
void hth_http_fail_call(hth_http_call *c, const char *id);
// hth_http_send_event answers 200 with one server-sent event, whose data is `json`, in chunks.
void hth_http_send_event(hth_http *h, struct evhttp_request *req, const char *json, size_t n);
// hth_http_trace begins a trace of `req` when it is one that is to be traced.
void hth_http_trace(hth_http *h, struct evhttp_request *req, const hth_http_args *a);

// ---- http_zip.c: content codings

// hth_http_inflate puts the decompressed body in the place of a compressed one. false: answered, or
// it takes a while: hth_http_route_on is called then.
bool hth_http_inflate(hth_http *h, struct evhttp_request *req);
typedef enum hth_http_coding { HTH_HTTP_PLAIN, HTH_HTTP_GZIP, HTH_HTTP_DEFLATE } hth_http_coding;
hth_http_coding hth_http_accepts(const struct evhttp_request *req); // what an answer may be in
// hth_http_encode compresses an answer; any thread. false: it is as it was, or, out of memory or
// when *canceled (may be NULL) is set, shorter and of no use.
bool hth_http_encode(hth_http_coding coding, struct evbuffer *body, const atomic_int *canceled);
void hth_http_encoded(struct evhttp_request *req, hth_http_coding coding); // says so in its head
// hth_http_deflate does all of it, on the loop: for short answers.
void hth_http_deflate(struct evhttp_request *req, struct evbuffer *body);

// ---- questions to the engine

// hth_http_ask asks `query` about the model of `a` (all models, when it names none).
void hth_http_ask(hth_http *h, struct evhttp_request *req, const hth_http_args *a,
                  const char *query, void (*finish)(hth_http_call *c));
// hth_http_answer parses what the engine said. NULL: answered.
json_t *hth_http_answer(hth_http_call *c);
// hth_http_max_batch is max_batch_size of a model, from the engine's answer to "model": 0 where the
// first dimension is no batch, or is all that an input has; without a limit the largest that the
// protocol can say.
json_int_t hth_http_max_batch(const json_t *model);

// What health checks answer. hth_http_unready decides whether the server is ready, for all of them:
// it returns NULL, or a sentence that says why it is not.
#define HTH_HTTP_LIVE  "{\"live\":true}"
#define HTH_HTTP_READY "{\"ready\":true}"
const char *hth_http_unready(hth_http *h);

// hth_http_gpu is the number of the GPU that `row`, a model's, names as its "device"; -1: a CPU.
int hth_http_gpu(const json_t *row);

// ---- http_page.c, http_view.c: the page, and what it shows

hth_err hth_http_dashboard_page_open(hth_http *h);
void hth_http_dashboard_page_close(hth_http *h);
void hth_http_views_close(hth_http *h);

// ---- http_list.c: documents about all models

// hth_http_list_ask answers with such a document.
void hth_http_list_ask(hth_http *h, struct evhttp_request *req, hth_http_listed kind);
void hth_http_lists_look(hth_http *h, uint64_t now); // has those made that wait and may be
bool hth_http_lists_wait(const hth_http *h);         // some do
void hth_http_lists_close(hth_http *h);
// Writers run on any thread, one at a time each: `doc` is the engine's answer, NULL where it was
// not asked; `far`: for who is not on this machine.
typedef hth_err hth_http_writer(hth_http *h, const json_t *doc, bool far, hth_text *out);
hth_http_writer hth_http_write_index, hth_http_write_index_ready, hth_http_write_stats;
hth_http_writer hth_http_write_metrics, hth_http_write_models;

// ---- handlers

void hth_http_route(hth_http *h, struct evhttp_request *req);
void hth_http_route_on(hth_http *h, struct evhttp_request *req); // .. behind its inflation
// hth_http_route_find is 200, and what is needed for it, or 404, or 405.
int hth_http_route_find(const hth_http *h, const char *path, enum evhttp_cmd_type verb,
                        hth_need *need);
// hth_http_route_allow lists the verbs that are served at a path, as the header Allow does.
const char *hth_http_route_allow(const hth_http *h, const char *path);
#define HTH_HTTP_ALLOW_GET "GET, HEAD"
#define HTH_HTTP_ALLOW_ALL "GET, HEAD, POST"
typedef void hth_http_handler(hth_http *h, struct evhttp_request *req, const hth_http_args *a);
hth_http_handler hth_http_live, hth_http_ready, hth_http_server_metadata;
hth_http_handler hth_http_model_metadata, hth_http_model_config, hth_http_model_ready;
hth_http_handler hth_http_infer, hth_http_generate, hth_http_generate_stream;
hth_http_handler hth_http_model_stats, hth_http_all_stats;
hth_http_handler hth_http_repo_index, hth_http_repo_load, hth_http_repo_unload;
hth_http_handler hth_http_repo_named; // another repository than the only one: 501
hth_http_unloaded *hth_http_unloaded_find(hth_http *h, const char *name); // NULL: it is not
bool hth_http_unloaded_has(hth_http *h, const char *name);    // the same, for any thread
void hth_http_unloaded_forget(hth_http *h, const char *name); // it was loaded
hth_http_handler hth_http_shm_register, hth_http_shm_unregister, hth_http_shm_status;
hth_http_handler hth_http_shm_unnamed, hth_http_cuda_register, hth_http_cuda_unregister;
hth_http_handler hth_http_cuda_status, hth_http_trace_get, hth_http_trace_set;
hth_http_handler hth_http_logging_get, hth_http_logging_set;
hth_http_handler hth_http_dashboard_page, hth_http_dashboard_devices, hth_http_dashboard_stats,
    hth_http_dashboard_models;
hth_http_handler hth_http_dashboard_latency, hth_http_dashboard_jobs, hth_http_dashboard_job;
hth_http_handler hth_http_dashboard_timeline;
void hth_http_metrics(hth_http *h, struct evhttp_request *req); // the other port's only page
// hth_http_is_unloaded answers 404 and returns true when the model may not be used now.
bool hth_http_is_unloaded(hth_http *h, struct evhttp_request *req, const hth_http_args *a);

#endif
