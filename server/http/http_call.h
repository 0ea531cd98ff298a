// SPDX-License-Identifier: Apache-2.0
// server/http/http_call.h - the inside of the HTTP front end, shared by server/http*.c. Loop's
// thread only, except where a comment says otherwise.
//
// The folders below server/http/ have its handlers, by what they are about: repository/ (models:
// metadata, load, unload, statistics), remote/ (content and jobs), dashboard/, trace/; tensors/
// reads and writes JSON. What comes before a handler is here.
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
#include "server/http/http_head.h"
#include "server/http/tensors/http_json.h"
#include "server/http/http_shm.h"
#include "server/http/trace/http_trace.h"
#include "server/http/http_work.h"
#include "runtime/machine.h"
#include "runtime/tenants/tenant_rules.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <jansson.h>
#include <openssl/ssl.h>

#include <pthread.h>
#include <stdatomic.h>

#define HTH_HTTP_TICK_US 20000
#define HTH_HTTP_SCRATCH (16 << 10) // bytes that are read at once, unless there are more
#define HTH_HTTP_FIELDS  8          // headers that a handler sets for an answer

// How long a call whose answer may be an older one waits for the engine.
#define HTH_HTTP_PATIENCE_NS 150000000u

typedef struct hth_http_call hth_http_call;
typedef struct hth_http_stream hth_http_stream;   // http_stream.h
typedef struct hth_http_address hth_http_address; // of the network: how many connections it has

// A listener: what its connections are made from.
typedef struct hth_http_listener {
    hth_http *h;
    bool tls;
    bool metrics; // it serves /metrics and nothing else
    struct evconnlistener *accepting;
    hth_accept_guard *guard;
} hth_http_listener;

// Where a connection is.
typedef enum hth_http_at {
    HTH_HTTP_AT_HEAD, // nothing, or some of a head, has come
    HTH_HTTP_AT_BODY,
    HTH_HTTP_AT_WHOLE,  // the request is there
    HTH_HTTP_AT_WORK,   // .. and a handler has it
    HTH_HTTP_AT_ANSWER, // the answer goes
    HTH_HTTP_AT_LINGER, // it was told its end: what still comes is dropped
    HTH_HTTP_AT_END,    // it is closed at the next opportunity
} hth_http_at;

typedef struct hth_http_segment { // of a path, as it came
    const char *p;                // NULL: none
    size_t n;
} hth_http_segment;

// A connection's present request. It is valid until it is answered.
typedef struct hth_http_req {
    struct hth_http_conn *conn;
    hth_http_head head;
    struct evbuffer *body;
    const struct hth_http_route *route; // that serves it, what that needs, and what the path names
    hth_need need;
    uint64_t most; // bytes that its body may have
    hth_http_segment name, item, version;
    struct {
        const char *name, *value; // must be there until the answer is sent
    } field[HTH_HTTP_FIELDS];     // of the answer
    int n_fields;
} hth_http_req;

// A request's body in one piece of the engine's memory, or (plain) of hth_alloc's.
typedef struct hth_http_block {
    struct hth_http *h;
    _Atomic int refs;     // the connection's, the evbuffer's, the call's
    uint64_t bytes, come; // of the body
    bool plain;
    char *body, *memory; // body: where it begins in the memory
} hth_http_block;

// A connection, from accept to close (http_conn.c).
typedef struct hth_http_conn {
    hth_http *h;
    const hth_http_listener *listener;
    struct hth_http_conn *prev, *next; // of h->conns
    int fd;
    SSL *ssl;                          // NULL: plain
    int reads;                         // of TLS, that this turn has left
    struct event *readable, *writable; // of the socket
    struct event *again;               // in the loop's next turn, after others were looked at
    struct evbuffer *out;
    hth_http_address *address;
    hth_peer peer;
    hth_http_at at;
    bool paused;             // `readable` is not watched: something came while a request is at work
    bool advancing;          // conn_advance is at work, and goes on itself
    bool refused;            // the present request ends the connection, and is not read to its end
    bool judged;             // .. may do what it wants to
    bool inflated;           // its body was, on a thread
    bool broken;             // its answer cannot leave any more
    hth_http_stream *stream; // what makes the answer while it goes; NULL: it is there
    char *text;              // the head
    size_t text_bytes, text_capacity, seen;
    int skipped; // empty lines before it
    char *rest;  // what came after the present request; NULL: nothing
    size_t rest_at, rest_bytes;
    size_t ahead;            // bytes after the present request, once that is whole
    uint64_t left;           // of a body with a length
    hth_chunks chunks;       // where a body in chunks is
    uint64_t lines;          // of it: two of each chunk, and one of each header after them
    hth_http_block *block;   // where a large body comes to, or lies; NULL: it does not
    uint64_t active_ns;      // when something came or went last
    uint64_t since_ns;       // when what is coming began to; 0: nothing is
    uint64_t answer_ns;      // when the answer began to go; 0: none goes
    uint64_t refused_ns;     // when it was told its end
    uint64_t dropped;        // bytes since then
    uint64_t bytes, sending; // that count: of what came and was not answered, and of its answer
    hth_http_req req;
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

// A model that was unloaded over HTTP: not served until it is loaded again. Nor is it while the
// engine is asked, so that no request brings it back meanwhile.
typedef struct hth_http_unloaded {
    char name[201];
    uint64_t number; // no other has had it
    int asking;      // calls at the engine
    bool gone;       // one of them was answered: it was unloaded
    UT_hash_handle hh;
} hth_http_unloaded;

struct hth_http {
    hth_engine *engine;
    hth_dispatch *dispatch; // answers what is asked about content and jobs
    hth_conns *callers;     // .. by these
    hth_allowances *allowances;
    hth_store *store;
    hth_store_worker *jobs;
    hth_http_work *work; // threads for what takes long; NULL: nothing did yet
    hth_auth *auth;
    hth_tls *tls;
    char prefix[HTH_SETTING_TEXT]; // of all paths; "": none
    uint64_t message_bytes, header_bytes;
    struct event_base *base;
    hth_http_listener api, metrics; // metrics: closed when it has no address
    hth_http_conn *conns;
    hth_http_address *addresses;
    int64_t n_conns;
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
    atomic_bool polling;      // it looks, and need not be woken for what is completed
    bool ended;
    hth_http_call *pending; // submitted and not yet answered
    atomic_int n_pending;
    atomic_bool cancel;             // all that is pending
    int n_sending;                  // replies that have not left yet
    uint64_t n_answered, n_refused; // replies; .. of these, because the server stops
    uint64_t stop_ns; // when stopping may end although replies have not left; 0: not yet
    pthread_mutex_t unloaded_lock; // changes, on the loop, and others' lookups
    hth_http_unloaded *unloaded;
    uint64_t n_unloaded; // numbers that they were given
    hth_machine machine; // when /metrics was last asked for; whoever writes them
    hth_tracer *tracer;
    hth_trace
        *tracing; // of the request that is being handled; taken over by its call or its answer
    uint64_t received_ns; // when it began to arrive; 0: not known
    hth_http_dashboard *views;
    hth_http_list *lists[HTH_HTTP_LISTS * 2]; // each for this machine and for others; NULL: not yet
    hth_json_cache seen;
    char scratch[HTH_HTTP_SCRATCH];
    time_t date_s; // what `date` says
    char date[50];
    struct evbuffer *page; // hearth's page
    char page_policy[400]; // .. and its Content-Security-Policy
};

// What the path says: names are percent-decoded.
typedef struct hth_http_args {
    char name[201]; // of the model, the region, the job, ..
    char item[201]; // of what the path names below it; "": nothing
    int version;    // 0: none given
    char spec[216]; // "name" or "name:version", as the engine takes it
} hth_http_args;

struct hth_http_call {
    hth_http *h;
    hth_http_req *req; // NULL: answered before the engine did
    hth_request r;
    char tenant[HTH_TENANT];
    hth_http_args args;
    void (*finish)(hth_http_call *call); // answers
    // where not NULL: it cannot be submitted (`err`), or took HTH_HTTP_PATIENCE_NS (HTH_ETIMEDOUT);
    // it answers, and `finish` comes without a request then
    void (*late)(hth_http_call *call, hth_err err);
    void (*drop)(hth_http_call *call); // frees what a kind of call holds besides; may be NULL
    void (*gone)(hth_http_call *call); // its client has hung up; may be NULL
    // what hth_http_call_work has done on another thread
    hth_err (*work)(hth_http_call *call);
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
void *hth_http_call_new(hth_http *http, hth_http_req *req, const hth_http_args *args, size_t bytes);
// hth_http_call_make is the same, and answers nothing: NULL: no memory.
void *hth_http_call_make(hth_http *http, hth_http_req *req, const hth_http_args *args,
                         size_t bytes);
// hth_http_call_begin is for what others than the engine answer: they call call->r.done, on any
// thread, and `finish` follows.
void hth_http_call_begin(hth_http_call *call);
// hth_http_call_submit hands the call to the engine; it is freed after `finish`, unless that has
// handed it on again. Where the engine does not take it, `finish` is called soon.
void hth_http_call_submit(hth_http_call *call);
// hth_http_call_run is the same for what the thread of `jobs` does: `run` leaves call->r.err and
// call->r.detail and calls call->r.done.
void hth_http_call_run(hth_http_call *call, hth_store_worker *jobs, hth_store_task *job,
                       void (*run)(hth_store_task *task));
// hth_http_call_work has a thread of http_work.h call `work`, whose error and sentence are the
// call's then, and `finish` on the loop's thread. c->task says how long it takes, and whose turn
// that is; one 0: its tenant's (without a token: its address's) and its connection's.
void hth_http_call_work(hth_http_call *call, hth_err (*work)(hth_http_call *call),
                        void (*finish)(hth_http_call *call));
void hth_http_call_free(hth_http_call *call);
// hth_http_call_refuse answers a call that was not submitted with an error, and frees it.
void hth_http_call_refuse(hth_http_call *call, hth_err err);

bool hth_http_complete(hth_http *http); // answers what is completed; returns whether anything was
void hth_http_wake(hth_http *http);     // has the loop look for what is completed; any thread
void hth_http_woken(evutil_socket_t fd, short what, void *http);  // the eventfd's event
void hth_http_ticked(evutil_socket_t fd, short what, void *http); // every tick

// Why a request is refused.
typedef struct hth_http_refusal {
    int status;
    bool challenge; // a token would help
    char allow[40]; // of a 405: the verbs that are served there; "": another refusal
    char sentence[700];
} hth_http_refusal;

void hth_http_listener_close(hth_http_listener *listener); // http.c: nobody else gets in

// ---- http_guard.c: who is at the other end, and how slow it may be

void hth_http_accepted(struct evconnlistener *accepting, evutil_socket_t fd,
                       struct sockaddr *address, int address_bytes, void *listener);
void hth_http_guard_leave(hth_http *http,
                          hth_http_address *address); // a connection from there is closed
// hth_http_hold counts memory (account.h) that a request takes besides what came, until
// hth_account_give; any thread. HTH_EBUSY: there is too much already, nothing is counted.
hth_err hth_http_hold(uint64_t bytes);
void hth_http_conns_check_slow(hth_http *http, uint64_t now); // ends what is too slow

// ---- http_conn.c: a connection's requests, one after the other

// hth_http_conn_new makes a connection of an accepted socket that is counted at `address`; where it
// cannot, it closes the socket, and that no longer counts.
void hth_http_conn_new(hth_http_listener *listener, int fd, hth_http_address *address,
                       hth_peer peer);
void hth_http_conn_free(hth_http_conn *conn);
// hth_http_conn_refuse answers what is coming with an error, and ends the connection after it.
void hth_http_conn_refuse(hth_http_conn *conn, int status, const char *sentence);
void hth_http_conn_reset(
    hth_http_conn *conn); // ends it so that the client notices at once; frees it
// hth_http_stream_sent: all that was written of a streamed answer has left (http_stream.c).
void hth_http_stream_sent(hth_http_stream *stream);
// hth_http_conn_answered goes on after an answer that has left, or cannot.
void hth_http_conn_answered(hth_http_conn *conn);

// ---- http_auth.c: rights

#define HTH_HTTP_CHALLENGE "Bearer realm=\"hearth\""

// hth_http_may tells whether a request may do what needs `need`; false: why not is in *no.
bool hth_http_may(hth_http *http, const hth_http_req *req, hth_need need, hth_http_refusal *no);
bool hth_http_is_near(const hth_http_req *req); // it comes from this machine
// hth_http_tenant stores whose request it is: the token's name, or HTH_HTTP_NOBODY.
#define HTH_HTTP_NOBODY "http"
void hth_http_tenant(hth_http *http, const hth_http_req *req, char *out, size_t cap);
bool hth_http_is_admin(hth_http *http, const hth_http_req *req); // it may do everything
const char *hth_http_token(const hth_http_req *req);             // NULL: it has none

// ---- http_io.c: sockets, plain or with TLS

// hth_http_io_read reads what has come: how much; 0: the end, or an error; HTH_HTTP_AGAIN.
#define HTH_HTTP_AGAIN (-1)
ssize_t hth_http_io_read(hth_http_conn *conn, void *memory, size_t bytes);
// hth_http_io_send sends some of `bytes`, as far as that goes at once: how much. false in
// *well: it never will.
size_t hth_http_io_send(hth_http_conn *conn, const void *memory, size_t bytes, bool *well);
// hth_http_io_write sends what is in conn->out as far as that goes at once; the rest follows when
// the socket has room. false: it never will.
bool hth_http_io_write(hth_http_conn *conn);
// hth_http_io_bulk is called when some of a large body came or goes. Nobody spins for a while:
// processors are needed to decrypt, hash and write, and who yields one gets it back when the others
// have had their slices, milliseconds later.
void hth_http_io_bulk(void);
bool hth_http_io_secure(hth_http_conn *conn); // begins TLS; false: out of memory
void hth_http_io_finish(hth_http_conn *conn); // says that nothing more is sent
void hth_http_io_close(hth_http_conn *conn);
// What happens to a connection: bytes came, a body was decompressed, an answer goes.
void hth_http_io_came(hth_http_conn *conn, size_t bytes);
void hth_http_io_grew(hth_http_conn *conn, size_t bytes);
void hth_http_io_answers(hth_http_conn *conn, size_t bytes);

// ---- http_block.c: large bodies

// hth_http_block_begin has the body of the request whose head was read come to a block, if there is
// memory for it.
void hth_http_block_begin(hth_http_conn *conn);
bool hth_http_block_give(hth_http_conn *conn); // it is whole: the request's body; false: no memory
// hth_http_block_of is the block in which all of `body` lies, a request's on `conn`, in one piece;
// NULL: there is none. The caller takes a reference if it needs it for longer than `body`.
hth_http_block *hth_http_block_of(const hth_http_conn *conn, struct evbuffer *body);
void hth_http_block_rele(hth_http_block *block); // NULL is allowed
// hth_http_block_done is for a body that has been read, before its request is answered: what is
// left of it is dropped, and its block, if it has one, is free as soon as no call needs it.
void hth_http_block_done(hth_http_conn *conn, struct evbuffer *body);
// hth_http_block_take takes the memory of a body that was PUT, as hth_http_block_of finds it: the
// place `front` bytes before the body, which may be written. *owner is for hth_free. The body is
// empty then. NULL: it is not in such a block, or that has less room in front; nothing has changed.
uint8_t *hth_http_block_take(hth_http_conn *conn, struct evbuffer *body, size_t front,
                             void **owner);

// ---- http_reply.c: answers

const char *hth_http_phrase(int status);
int hth_http_status(hth_err err); // of an error, by the table
// hth_http_reply_head writes an answer's head, for a body of `length` bytes, and returns how long
// it is. HTH_HTTP_CHUNKED: it comes in chunks, or, over HTTP/1.0, until the connection ends.
#define HTH_HTTP_REPLY_HEAD 2048
#define HTH_HTTP_CHUNKED    UINT64_MAX
size_t hth_http_reply_head(hth_http *http, const hth_http_req *req, int status, const char *type,
                           uint64_t length, char out[HTH_HTTP_REPLY_HEAD]);
// hth_http_error_text writes an answer that is an error and ends its connection, for a client that
// gets no further. Returns its length.
size_t hth_http_error_text(hth_http *http, int status, const char *sentence, char *out, size_t cap);
// hth_http_add sets a header of the answer; both texts must be there until that is sent.
void hth_http_add(hth_http_req *req, const char *name, const char *value);
// hth_http_send answers; `body` (may be NULL: empty) is emptied, not freed. A HEAD gets its length
// only.
void hth_http_send(hth_http *http, hth_http_req *req, int status, const char *type,
                   struct evbuffer *body);
void hth_http_send_text(hth_http *http, hth_http_req *req, const char *json);
void hth_http_send_json(hth_http *http, hth_http_req *req, json_t *doc); // takes `doc`
// hth_http_send_doc is the same with another status.
void hth_http_send_doc(hth_http *http, hth_http_req *req, int status, json_t *doc);
void hth_http_fail(hth_http *http, hth_http_req *req, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// hth_http_fail_err answers with `err`'s status (the one table) and the calling thread's detail.
void hth_http_fail_err(hth_http *http, hth_http_req *req, hth_err err);
// hth_http_fail_call answers with what the engine said about `call`; `id` is the request's, or
// NULL.
void hth_http_fail_call(hth_http_call *call, const char *id);
// hth_http_send_event answers 200 with one server-sent event, whose data is `json`, in chunks.
void hth_http_send_event(hth_http *http, hth_http_req *req, const char *json, size_t bytes);
// hth_http_trace begins a trace of `req` when it is one that is to be traced.
void hth_http_trace(hth_http *http, hth_http_req *req, const hth_http_args *args);

// ---- http_zip.c: content codings

// hth_http_inflate puts the decompressed body in the place of a compressed one. false: answered, or
// it takes a while: hth_http_route_on is called then.
bool hth_http_inflate(hth_http *http, hth_http_req *req);
typedef enum hth_http_coding { HTH_HTTP_PLAIN, HTH_HTTP_GZIP, HTH_HTTP_DEFLATE } hth_http_coding;
hth_http_coding hth_http_accepts(const hth_http_req *req); // what an answer may be in
// hth_http_encode compresses an answer; any thread. false: it is as it was, or, out of memory or
// when *canceled (may be NULL) is set, shorter and of no use.
bool hth_http_encode(hth_http_coding coding, struct evbuffer *body, const atomic_int *canceled);
void hth_http_encoded(hth_http_req *req, hth_http_coding coding); // says so in its head
// hth_http_deflate does all of it, on the loop: for short answers.
void hth_http_deflate(hth_http_req *req, struct evbuffer *body);

// ---- questions to the engine

// hth_http_query asks for `command` about the model of `args` (all models, when it names none).
void hth_http_query(hth_http *http, hth_http_req *req, const hth_http_args *args,
                    hth_command_id command, void (*finish)(hth_http_call *call));
// hth_http_answer parses what the engine said. NULL: answered.
json_t *hth_http_answer(hth_http_call *call);
// hth_http_max_batch is max_batch_size of a model, from the engine's answer to "model": 0 where the
// first dimension is no batch, or is all that an input has; without a limit the largest that the
// protocol can say.
json_int_t hth_http_max_batch(const json_t *model);

// hth_http_gpu is the number of the GPU that `row`, a model's, names as its "device"; -1: a CPU.
int hth_http_gpu(const json_t *row);

// ---- http_dashboard_page.c, http_dashboard.c: the page, and what it shows

hth_err hth_http_dashboard_page_open(hth_http *http);
void hth_http_dashboard_page_close(hth_http *http);
void hth_http_views_close(hth_http *http);

// ---- http_list.c: documents about all models

// hth_http_list_request answers with such a document.
void hth_http_list_request(hth_http *http, hth_http_req *req, hth_http_listed kind);
void hth_http_lists_start(hth_http *http, uint64_t now); // has those made that wait and may be
bool hth_http_lists_wait(const hth_http *http);          // some do
void hth_http_lists_close(hth_http *http);
// Writers run on any thread, one at a time each: `doc` is the engine's answer, NULL where it was
// not asked; `far`: for who is not on this machine.
typedef hth_err hth_http_writer(hth_http *http, const json_t *doc, bool far, hth_text *out);
hth_http_writer hth_http_write_index, hth_http_write_index_ready, hth_http_write_stats;
hth_http_writer hth_http_write_metrics, hth_http_write_models;
// hth_http_is_model tells a model's name from those of datasets and checkpoints, which their owners
// are told of by other lists.
bool hth_http_is_model(const hth_http *http, const char *name);

// ---- handlers

// hth_http_route_at is the i-th route: its path, '*' for a name; NULL: there are not so many.
const char *hth_http_route_at(size_t i, const char **verb, bool *versioned);
// hth_http_route_find notes in the request what serves it; false: nothing does, and why is in *no.
bool hth_http_route_find(const hth_http *http, hth_http_req *req, hth_http_refusal *no);
void hth_http_route_on(hth_http *http, hth_http_req *req); // has it served
// hth_http_body reads an optional JSON body, a short one: an empty one is NULL. false: answered.
bool hth_http_body(hth_http *http, hth_http_req *req, json_t **out);
#define HTH_HTTP_ALLOW_GET "GET, HEAD"
#define HTH_HTTP_ALLOW_ALL "GET, HEAD, POST, PUT, DELETE"
typedef void hth_http_handler(hth_http *http, hth_http_req *req, const hth_http_args *args);
hth_http_handler hth_http_live, hth_http_ready, hth_http_server_metadata;
hth_http_handler hth_http_model_metadata, hth_http_model_config, hth_http_model_ready;
hth_http_handler hth_http_infer, hth_http_generate, hth_http_generate_stream;
hth_http_handler hth_http_model_stats, hth_http_all_stats;
hth_http_handler hth_http_repo_index, hth_http_repo_load, hth_http_repo_unload;
hth_http_handler hth_http_repo_named; // another repository than the only one: 501
hth_http_unloaded *hth_http_unloaded_find(hth_http *http, const char *name); // NULL: it is not
bool hth_http_unloaded_has(hth_http *http, const char *name);    // the same, for any thread
void hth_http_unloaded_forget(hth_http *http, const char *name); // it was loaded
hth_http_handler hth_http_shm_register, hth_http_shm_unregister, hth_http_shm_status;
hth_http_handler hth_http_shm_unnamed, hth_http_cuda_register, hth_http_cuda_unregister;
hth_http_handler hth_http_cuda_status, hth_http_trace_get, hth_http_trace_set;
hth_http_handler hth_http_logging_get, hth_http_logging_set;
hth_http_handler hth_http_dashboard_page, hth_http_dashboard_devices, hth_http_dashboard_stats,
    hth_http_dashboard_models;
hth_http_handler hth_http_dashboard_latency, hth_http_dashboard_jobs, hth_http_dashboard_job;
hth_http_handler hth_http_dashboard_shares, hth_http_dashboard_timeline;
hth_http_handler hth_http_roles; // which ones the caller has
// remote/: content and jobs
hth_http_handler hth_http_tensors_have, hth_http_tensors_discard, hth_http_tensors_put;
hth_http_handler hth_http_version_commit, hth_http_version_manifest, hth_http_version_tensor;
hth_http_handler hth_http_dataset_list, hth_http_dataset_put, hth_http_dataset_remove;
hth_http_handler hth_http_job_list, hth_http_job_submit, hth_http_job_events, hth_http_job_logs;
hth_http_handler hth_http_job_pause, hth_http_job_resume, hth_http_job_cancel, hth_http_job_result;
hth_http_handler hth_http_alias_put, hth_http_alias_remove, hth_http_openapi;
void hth_http_metrics(hth_http *http, hth_http_req *req); // the other port's only page
// hth_http_is_unloaded answers 404 and returns true when the model may not be used now.
bool hth_http_is_unloaded(hth_http *http, hth_http_req *req, const hth_http_args *args);

#endif
