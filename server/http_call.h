// SPDX-License-Identifier: Apache-2.0
// server/http_call.h - the inside of the HTTP door, shared by server/http*.c. Loop's thread only,
// except where a comment says otherwise.
//
// A handler answers its request at once (hth_http_send, hth_http_fail), or makes a call, submits it
// to the engine, and answers in the call's `finish`.
#ifndef HTH_SERVER_HTTP_CALL_H
#define HTH_SERVER_HTTP_CALL_H

#include "base/hash.h"
#include "server/http.h"
#include "server/http_shm.h"
#include "server/http_trace.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>

#include <pthread.h>
#include <stdatomic.h>

// Of the request line and the headers together.
#define HTH_HTTP_HEADER_BYTES (32 << 10)

#define HTH_HTTP_TICK_US 20000

typedef struct hth_http_call hth_http_call;

// A model that was unloaded over HTTP: not served until it is loaded again.
typedef struct hth_http_unloaded {
    char name[201];
    UT_hash_handle hh;
} hth_http_unloaded;

// When a connection's request began to arrive.
typedef struct hth_http_received {
    const struct bufferevent *connection;
    uint64_t ns; // 0: it has no request
} hth_http_received;
#define HTH_HTTP_RECEIVED 256 // a power of two; more connections than that share

struct hth_http {
    hth_engine *engine;
    hth_store *store;
    uint64_t message_bytes;
    struct event_base *base;
    struct evhttp *http, *metrics; // metrics: NULL when it has no address
    struct evhttp_bound_socket *bound, *metrics_bound;
    hth_shm *shm;
    struct event *wake, *tick;
    int wake_fd;
    pthread_t thread;
    bool running;
    atomic_bool stopping;
    _Atomic(hth_http_call *) completed; // pushed by the engine's thread
    hth_http_call *pending;             // submitted and not yet answered
    atomic_int n_pending;
    atomic_bool cancel; // all that is pending
    int n_sending;      // replies that have not left yet
    uint64_t stop_ns;   // when stopping may end although replies have not left
    bool writing;       // what reaches an output now is ours, not evhttp's
    hth_http_unloaded *unloaded;
    hth_tracer *tracer;
    hth_trace
        *tracing; // of the request that is being handled; taken over by its call or its answer
    uint64_t received_ns;                          // when it began to arrive; 0: not known
    hth_http_received received[HTH_HTTP_RECEIVED]; // while requests are traced
};

// What the path says: names are percent-decoded.
typedef struct hth_http_args {
    char name[201]; // of the model or the region
    int version;    // 0: none given
    char spec[216]; // "name" or "name:version", as the engine takes it
} hth_http_args;

struct hth_http_call {
    hth_http *h;
    struct evhttp_request *req;
    hth_request r;
    hth_http_args args;
    void (*finish)(hth_http_call *c); // answers
    void (*drop)(hth_http_call *c);   // frees what a kind of call holds besides; may be NULL
    hth_http_call *prev, *next;       // of h->pending
    hth_http_call *next_completed;
    hth_trace *trace;     // NULL: it is not traced
    struct event *closed; // the client's hanging up
    uint64_t since_ns;
};

// hth_http_call_new makes a call of `bytes` (>= sizeof(hth_http_call), which comes first), or
// answers 503 and returns NULL.
void *hth_http_call_new(hth_http *h, struct evhttp_request *req, const hth_http_args *a,
                        size_t bytes);
// hth_http_call_submit hands the call to the engine; it is freed after `finish`. When the engine
// does not take it, it is answered and freed here.
void hth_http_call_submit(hth_http_call *c);
void hth_http_call_free(hth_http_call *c);
// hth_http_call_refuse answers a call that was not submitted with an error, and frees it.
void hth_http_call_refuse(hth_http_call *c, hth_err err);

void hth_http_wake(hth_http *h); // has the loop look for what is completed; any thread
void hth_http_woken(evutil_socket_t fd, short what, void *h);  // the eventfd's event
void hth_http_ticked(evutil_socket_t fd, short what, void *h); // every tick

// ---- http_conn.c: connections and replies

struct bufferevent *hth_http_bufferevent(struct event_base *base, void *h);
// hth_http_sound checks what evhttp lets through; false: answered.
bool hth_http_sound(hth_http *h, struct evhttp_request *req);
// hth_http_send answers; `body` (may be NULL: empty) is emptied, not freed.
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
// hth_http_body reads an optional JSON body: an empty one is NULL. false: answered.
bool hth_http_body(hth_http *h, struct evhttp_request *req, json_t **out);

// hth_http_trace begins a trace of `req` when it is one that is to be traced.
void hth_http_trace(hth_http *h, struct evhttp_request *req, const hth_http_args *a);

// ---- http_zip.c: content codings

// hth_http_inflate puts the decompressed body in the place of a compressed one. false: answered.
bool hth_http_inflate(hth_http *h, struct evhttp_request *req);
// hth_http_deflate compresses an answer when the request accepts that.
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

// ---- handlers

void hth_http_route(hth_http *h, struct evhttp_request *req);
typedef void hth_http_handler(hth_http *h, struct evhttp_request *req, const hth_http_args *a);
hth_http_handler hth_http_live, hth_http_ready, hth_http_server_metadata;
hth_http_handler hth_http_model_metadata, hth_http_model_config, hth_http_model_ready;
hth_http_handler hth_http_infer, hth_http_generate, hth_http_generate_stream;
hth_http_handler hth_http_model_stats, hth_http_all_stats;
hth_http_handler hth_http_repo_index, hth_http_repo_load, hth_http_repo_unload;
hth_http_handler hth_http_repo_named; // another repository than the only one: 501
hth_http_unloaded *hth_http_unloaded_find(hth_http *h, const char *name); // NULL: it is not
hth_http_handler hth_http_shm_register, hth_http_shm_unregister, hth_http_shm_status;
hth_http_handler hth_http_shm_unnamed, hth_http_cuda_register, hth_http_cuda_unregister;
hth_http_handler hth_http_cuda_status, hth_http_trace_get, hth_http_trace_set;
hth_http_handler hth_http_logging_get, hth_http_logging_set;
void hth_http_metrics(hth_http *h, struct evhttp_request *req); // the other port's only page
// hth_http_is_unloaded answers 404 and returns true when the model may not be used now.
bool hth_http_is_unloaded(hth_http *h, struct evhttp_request *req, const hth_http_args *a);

#endif
