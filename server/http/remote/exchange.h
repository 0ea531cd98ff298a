// SPDX-License-Identifier: Apache-2.0
// server/http/remote/exchange.h - requests of hearth's own clients, made by handlers of HTTP.
//
// Design notes
// Content and jobs over HTTP are the same requests as over ipc, tcp and tls: a handler fills a
// Hearth__Request, the dispatcher (server/rpc/dispatch.h) gets it as a frame, as it does from any
// front end, and its reply is written as JSON or bytes. So roles, owners, limits, quotas and errors
// are those of the other transports, and this folder has no rules of its own.
//
// An exchange is such a request, and a call like those to the engine: it waits in http->pending,
// and a client that hangs up cancels it. Its caller looks to the dispatcher like a connection of
// its own: a proxy may send many callers over one connection. Loop's thread only, unless said.
#ifndef HTH_SERVER_HTTP_REMOTE_EXCHANGE_H
#define HTH_SERVER_HTTP_REMOTE_EXCHANGE_H

#include "server/http/http_call.h"
#include "client/wire.h"
#include "server/net/allowance.h"
#include "server/rpc/dispatch.h"

typedef struct hth_exchange hth_exchange;

// An error that has another status here than in the general table (http_reply.c).
typedef struct hth_exchange_rule {
    hth_err err; // HTH_OK ends a list
    int status;
} hth_exchange_rule;

struct hth_exchange {
    hth_http_call call; // first
    hth_conn *who;      // its caller
    hth_allowance *allowance;
    hth_allowance_kind kind;
    bool counted;         // in the allowance
    uint64_t held;        // bytes of its messages that are counted (account.h)
    nng_msg *message;     // the reply
    Hearth__Reply *reply; // .. decoded
    const uint8_t *data;  // .. its data section
    uint64_t bytes;
    const hth_exchange_rule *statuses; // NULL: none
    struct evbuffer *body;             // while it is read
    hth_err (*read)(hth_exchange *exchange, json_t *doc);
    void (*next)(hth_exchange *exchange);
    void (*answered)(hth_exchange *exchange); // the reply is no error
    // the reply is an error; NULL: it is the answer, with its status
    void (*failed)(hth_exchange *exchange, hth_err err, const char *sentence);
    void (*end)(hth_exchange *exchange); // frees what a kind of exchange has besides; may be NULL
};

// hth_exchange_new makes an exchange of `bytes` (>= sizeof(hth_exchange), which comes first), or
// answers 503 and returns NULL. It is freed after what it calls has returned without sending it
// again.
void *hth_exchange_new(hth_http *http, hth_http_req *req, const hth_http_args *args, size_t bytes,
                       void (*answered)(hth_exchange *exchange));
// hth_exchange_again is the same for an answer that has begun: NULL where there is no memory, and
// nothing is answered. Its caller sets `answered`.
void *hth_exchange_again(hth_http *http, hth_http_req *req, const hth_http_args *args,
                         size_t bytes);
// hth_exchange_send hands `request` with a data section (emptied; NULL: none) to the dispatcher. In
// any case `answered` or `failed` follow later.
void hth_exchange_send(hth_exchange *exchange, Hearth__Request *request, struct evbuffer *data);
// hth_exchange_query sends a command with arguments, which are freed; NULL: no memory for them.
void hth_exchange_query(hth_exchange *exchange, hth_command_id command, json_t *args);
// hth_exchange_refuse has the exchange fail without having been sent, with hth_err_detail().
void hth_exchange_refuse(hth_exchange *exchange, hth_err err);
// hth_exchange_read has `read` read the request's body, parsed as JSON (NULL: it is empty), at once
// or, where it is long, on another thread, and then `next` go on.
void hth_exchange_read(hth_exchange *exchange, hth_err (*read)(hth_exchange *exchange, json_t *doc),
                       void (*next)(hth_exchange *exchange));

// ---- answers

// hth_exchange_document answers with a reply's document as it is; for `answered`.
void hth_exchange_document(hth_exchange *exchange);
// hth_exchange_json parses it. NULL: answered.
json_t *hth_exchange_json(hth_exchange *exchange);
// hth_exchange_fail answers with an error; hth_exchange_status is its status.
void hth_exchange_fail(hth_exchange *exchange, hth_err err, const char *sentence);
int hth_exchange_status(const hth_exchange *exchange, hth_err err);

// hth_exchange_switch reads a truth value of the path's query ("mine", "mine=true"). false:
// answered.
bool hth_exchange_switch(hth_http *http, hth_http_req *req, const char *name, bool *out);
// hth_exchange_count likewise a whole number, `most` at most; *given: it is there.
bool hth_exchange_count(hth_http *http, hth_http_req *req, const char *name, uint64_t most,
                        uint64_t *out, bool *given);

#endif
