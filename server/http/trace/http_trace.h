// SPDX-License-Identifier: Apache-2.0
// server/http/trace/http_trace.h - traces of requests: which are taken, by settings for all models
// and for single ones, and the file into which they go.
//
// Design notes
// A trace is begun when an inference request arrives, gets its times as the request goes on, and is
// written when the answer has left. Complete traces are kept as text and written at the next tick,
// as a JSON array that is closed again after each write: the file can be read at any time. Loop's
// thread only, except that the engine's thread may store a time in a trace of a request that it
// has.
#ifndef HTH_SERVER_HTTP_TRACE_HTTP_TRACE_H
#define HTH_SERVER_HTTP_TRACE_HTTP_TRACE_H

#include "base/err.h"
#include "server/http/tensors/http_json.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

// X(identifier): the events of a request in order, by the names that they have in the file.
#define HTH_TRACE_EVENTS(X)                                                                        \
    X(HTTP_RECV_START)                                                                             \
    X(HTTP_RECV_END)                                                                               \
    X(REQUEST_START)                                                                               \
    X(QUEUE_START)                                                                                 \
    X(COMPUTE_START)                                                                               \
    X(COMPUTE_INPUT_END)                                                                           \
    X(COMPUTE_OUTPUT_START)                                                                        \
    X(COMPUTE_END)                                                                                 \
    X(INFER_RESPONSE_COMPLETE)                                                                     \
    X(REQUEST_END)                                                                                 \
    X(HTTP_SEND_START)                                                                             \
    X(HTTP_SEND_END)

typedef enum hth_trace_event {
#define HTH_TRACE_ID(id) HTH_TRACE_##id,
    HTH_TRACE_EVENTS(HTH_TRACE_ID)
#undef HTH_TRACE_ID
        HTH_N_TRACE_EVENTS
} hth_trace_event;

typedef struct hth_tracer hth_tracer; // of one server

// The levels, by bits.
#define HTH_TRACE_TIMESTAMPS 1u
#define HTH_TRACE_TENSORS    2u

typedef struct hth_trace {
    hth_tracer *tracer;
    uint64_t id;
    unsigned level;
    char model[201], request[201];
    int version;
    uint64_t log_frequency;          // as it was when the trace began
    uint64_t ns[HTH_N_TRACE_EVENTS]; // CLOCK_MONOTONIC; 0: it did not come to that
    hth_text tensors;                // as the file has them
    char last;                       // of the answer: http_conn.c's, while it is being sent
} hth_trace;

// hth_tracer_open: traces go into `file`; "": requests cannot be traced.
hth_err hth_tracer_open(const char *file, hth_tracer **out);
void hth_tracer_close(hth_tracer *tracer); // writes what is left; NULL is allowed
// hth_tracer_on tells whether requests may be traced at all: asked before times are taken.
bool hth_tracer_on(const hth_tracer *tracer);
// hth_trace_begin makes a trace of a request for `model` when it is one that is to be traced;
// freed by hth_trace_end, which also writes it.
hth_trace *hth_trace_begin(hth_tracer *tracer, const char *model);
void hth_trace_end(hth_trace *trace);
// hth_trace_tensor adds a tensor's contents to a trace of that level: `activity` is
// TENSOR_QUEUE_INPUT or TENSOR_BACKEND_OUTPUT. Of large ones the first 65,536 elements, and "..".
void hth_trace_tensor(hth_trace *trace, const char *activity, const char *name,
                      const hth_tensor *tensor);
void hth_tracer_flush(hth_tracer *tracer); // writes what is complete; each tick

// hth_tracer_set changes settings, of one model or (`model` "") of all that have none of their own:
// `settings` is a request's JSON, where null clears. HTH_EINVAL, HTH_ENOTSUP: nothing changed.
hth_err hth_tracer_set(hth_tracer *tracer, const char *model, const json_t *settings);
json_t *hth_tracer_get(const hth_tracer *tracer, const char *model); // those that hold

#endif
