// SPDX-License-Identifier: Apache-2.0
// The front end: a frame for the dispatcher, a place for it, its reply on the loop. Long requests,
// and those for which there is no place, do not wait: they are refused, and their clients try
// again.
#include "server/http/remote/exchange.h"

#include "base/alloc.h"
#include "server/http/tensors/http_json.h"
#include "server/http/http_url.h"
#include "server/net/account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// The most of a body that is read on the loop.
#define EXCHANGE_SHORT (64 << 10)

// ---- lifetime

// exchange_clear forgets a reply, and gives back what was counted for it.
static void exchange_clear(hth_exchange *exchange)
{
    if (exchange->reply != NULL) {
        hth_wire_free_reply(exchange->reply);
    }
    if (exchange->message != NULL) {
        nng_msg_free(exchange->message);
    }
    if (exchange->counted) {
        hth_allowance_answered(exchange->allowance, exchange->kind);
    }
    hth_account_give(exchange->held);
    exchange->reply = NULL;
    exchange->message = NULL;
    exchange->counted = false;
    exchange->held = 0;
}

static void exchange_drop(hth_http_call *call)
{
    hth_exchange *exchange = (hth_exchange *)call;
    exchange_clear(exchange);
    if (exchange->end != NULL) {
        exchange->end(exchange);
    }
    if (exchange->body != NULL) {
        evbuffer_free(exchange->body);
    }
    if (exchange->who != NULL) {
        hth_conn_close(exchange->who);
        hth_conn_rele(exchange->who);
    }
    if (exchange->allowance != NULL) {
        hth_allowance_leave(exchange->allowance, false);
        hth_allowance_rele(exchange->allowance);
    }
}

static void exchange_gone(hth_http_call *call)
{
    const hth_exchange *exchange = (hth_exchange *)call;
    if (exchange->who != NULL) {
        hth_dispatch_gone(call->h->dispatch, exchange->who);
    }
}

// exchange_open finds out who asks.
static hth_err exchange_open(hth_exchange *exchange)
{
    const hth_http_req *req = exchange->call.req;
    const hth_conn_who who = {.where = HTH_CONN_HTTP, .loopback = hth_http_is_near(req)};
    struct sockaddr_storage from = {0};
    socklen_t n = sizeof from;
    if (getpeername(req->conn->fd, (struct sockaddr *)&from, &n) != 0) {
        return hth_fail(HTH_ECANCELED, "the client has gone");
    }
    hth_allowance_key key = hth_allowance_key_address((struct sockaddr *)&from);
    HTH_TRY(hth_allowance_join(exchange->call.h->allowances, &key, false, &exchange->allowance));
    return hth_conn_open(exchange->call.h->callers, &who, &exchange->who);
}

static void exchange_finish(hth_http_call *call);

void *hth_exchange_again(hth_http *http, hth_http_req *req, const hth_http_args *args, size_t bytes)
{
    hth_exchange *exchange = hth_http_call_make(http, req, args, bytes);
    if (exchange != NULL) {
        exchange->call.finish = exchange_finish;
        exchange->call.drop = exchange_drop;
        exchange->call.gone = exchange_gone;
    }
    return exchange;
}

void *hth_exchange_new(hth_http *http, hth_http_req *req, const hth_http_args *args, size_t bytes,
                       void (*answered)(hth_exchange *exchange))
{
    hth_exchange *exchange = hth_exchange_again(http, req, args, bytes);
    if (exchange == NULL) {
        hth_http_fail(http, req, 503, "out of memory for a request");
        return NULL;
    }
    exchange->answered = answered;
    return exchange;
}

// ---- to the dispatcher

static void exchange_answer(void *back, nng_msg *reply)
{
    hth_exchange *exchange = back;
    exchange->message = reply;
    exchange->call.r.done(&exchange->call.r);
}

static hth_err exchange_reserve(void *back, uint64_t bytes)
{
    hth_exchange *exchange = back;
    HTH_TRY(hth_http_hold(bytes));
    exchange->held += bytes;
    return HTH_OK;
}

// exchange_frame makes a frame of a request and a data section.
static hth_err exchange_frame(hth_exchange *exchange, const Hearth__Request *request,
                              struct evbuffer *data, hth_message *out)
{
    hth_wire_limits limits = hth_wire_default_limits;
    size_t data_bytes = data != NULL ? evbuffer_get_length(data) : 0, bytes;
    limits.message_bytes = exchange->call.h->message_bytes;
    HTH_TRY(hth_wire_frame_bytes(&request->base, data_bytes, &limits, &bytes));
    HTH_TRY(exchange_reserve(exchange, bytes));
    void *owner;
    hth_http_conn *conn = exchange->call.req->conn;
    uint8_t *frame =
        data != NULL ? hth_http_block_take(conn, data, bytes - data_bytes, &owner) : NULL;
    if (frame != NULL) { // the section follows the head already
        (void)hth_wire_write(&request->base, frame);
        *out = (hth_message){frame, bytes, owner, hth_free};
        return HTH_OK;
    }
    frame = hth_alloc(bytes);
    if (frame == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a message of %zu bytes", bytes);
    }
    uint8_t *section = hth_wire_write(&request->base, frame);
    if (data_bytes > 0) {
        evbuffer_remove(data, section, data_bytes);
    }
    *out = (hth_message){frame, bytes, frame, hth_free};
    return HTH_OK;
}

// exchange_run starts a request that is to be worked on, where there is a place for it.
static void exchange_run(hth_exchange *exchange, hth_rpc_slot *slot)
{
    hth_rpc_slot_kind kind = hth_rpc_slot_get_kind(slot);
    exchange->kind = (hth_allowance_kind)kind;
    hth_err err = hth_allowance_request(exchange->allowance, exchange->kind);
    exchange->counted = err == HTH_OK;
    if (err == HTH_OK && kind != HTH_RPC_SLOT_WATCH && !hth_rpc_slot_place(slot)) {
        err = hth_fail(HTH_EBUSY,
                       "the server has as many requests of this kind as it takes: try again");
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
    } else {
        hth_rpc_slot_run(slot);
    }
}

static hth_err exchange_take(hth_exchange *exchange, Hearth__Request *request,
                             struct evbuffer *data)
{
    static const hth_front front = {.answer = exchange_answer, .reserve = exchange_reserve};
    hth_message message;
    hth_rpc_slot *slot;
    const char *token = hth_http_token(exchange->call.req);
    request->call = 1;
    request->token = token != NULL ? (char *)token : request->token;
    HTH_TRY(exchange->who == NULL ? exchange_open(exchange) : HTH_OK);
    HTH_TRY(exchange_frame(exchange, request, data, &message));
    HTH_TRY(hth_dispatch_take(exchange->call.h->dispatch, exchange->who, &message, &front, exchange,
                              &slot));
    if (slot != NULL) {
        exchange_run(exchange, slot);
    }
    return HTH_OK;
}

void hth_exchange_refuse(hth_exchange *exchange, hth_err err)
{
    hth_request *r = &exchange->call.r;
    if (!exchange->call.begun) {
        hth_http_call_begin(&exchange->call);
    }
    r->err = err;
    snprintf(r->detail, sizeof r->detail, "%s", hth_err_detail());
    r->done(r);
}

void hth_exchange_send(hth_exchange *exchange, Hearth__Request *request, struct evbuffer *data)
{
    exchange_clear(exchange);
    exchange->call.finish = exchange_finish;
    hth_http_call_begin(&exchange->call);
    hth_err err = exchange_take(exchange, request, data);
    if (err != HTH_OK) {
        hth_exchange_refuse(exchange, err);
    }
}

void hth_exchange_query(hth_exchange *exchange, hth_command_id command, json_t *args)
{
    Hearth__Request request = HEARTH__REQUEST__INIT;
    Hearth__Query query = HEARTH__QUERY__INIT;
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    if (text == NULL) {
        hth_exchange_refuse(exchange, hth_fail(HTH_ENOMEM, "out of memory for a request"));
        return;
    }
    query.what = (char *)hth_command_name(command);
    query.arguments = text;
    request.body_case = HEARTH__REQUEST__BODY_QUERY;
    request.query = &query;
    hth_exchange_send(exchange, &request, NULL);
    free(text);
}

// ---- replies

static hth_err exchange_decode(hth_exchange *exchange)
{
    hth_request *r = &exchange->call.r;
    hth_wire_limits limits = hth_wire_default_limits;
    limits.message_bytes = UINT64_MAX; // it is the server's own
    if (r->err != HTH_OK) {
        return hth_fail(r->err, "%s", r->detail);
    }
    if (exchange->message == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an answer");
    }
    HTH_TRY(hth_wire_read_reply(nng_msg_body(exchange->message), nng_msg_len(exchange->message),
                                &limits, &exchange->reply, &exchange->data, &exchange->bytes));
    const Hearth__Error *error =
        exchange->reply->body_case == HEARTH__REPLY__BODY_ERROR ? exchange->reply->error : NULL;
    return error != NULL ? hth_fail((hth_err)error->code, "%s", error->sentence) : HTH_OK;
}

static void exchange_finish(hth_http_call *call)
{
    hth_exchange *exchange = (hth_exchange *)call;
    char sentence[sizeof call->r.detail * 2];
    hth_err err = exchange_decode(exchange);
    if (err == HTH_OK) {
        exchange->answered(exchange);
        return;
    }
    snprintf(sentence, sizeof sentence, "%s", hth_err_detail());
    call->r.err = HTH_OK; // it may be sent again
    if (exchange->failed != NULL) {
        exchange->failed(exchange, err, sentence);
    } else {
        hth_exchange_fail(exchange, err, sentence);
    }
}

int hth_exchange_status(const hth_exchange *exchange, hth_err err)
{
    const hth_exchange_rule *s = exchange->statuses;
    while (s != NULL && s->err != HTH_OK && s->err != err) {
        s++;
    }
    return s != NULL && s->err == err ? s->status : hth_http_status(err);
}

void hth_exchange_fail(hth_exchange *exchange, hth_err err, const char *sentence)
{
    hth_http_fail(exchange->call.h, exchange->call.req, hth_exchange_status(exchange, err), "%s",
                  sentence[0] != 0 ? sentence : hth_strerror(err));
}

void hth_exchange_document(hth_exchange *exchange)
{
    const hth_http_call *call = &exchange->call;
    struct evbuffer *body = evbuffer_new();
    bool made = body != NULL && evbuffer_add(body, exchange->data, exchange->bytes) == 0;
    hth_http_add(call->req, "Cache-Control", "no-store");
    hth_http_send(call->h, call->req, made ? 200 : 503, "application/json", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
}

json_t *hth_exchange_json(hth_exchange *exchange)
{
    const char *text = (const char *)exchange->data;
    json_t *doc = json_loadb(text, exchange->bytes, JSON_DECODE_ANY, NULL);
    if (doc == NULL) {
        hth_exchange_fail(exchange, HTH_ENOMEM, "out of memory for an answer");
    }
    return doc;
}

// ---- bodies

static hth_err exchange_parse(hth_exchange *exchange)
{
    size_t n = evbuffer_get_length(exchange->body);
    const char *text = n > 0 ? (const char *)evbuffer_pullup(exchange->body, -1) : "";
    json_t *doc = NULL;
    hth_err err = HTH_OK;
    if (text == NULL) {
        err = hth_no_memory("a request");
    } else if (n > 0) {
        err = hth_json_parse(text, n, &doc);
    }
    evbuffer_free(exchange->body);
    exchange->body = NULL;
    if (err == HTH_OK) {
        err = exchange->read(exchange, doc);
    }
    json_decref(doc);
    return err;
}

static hth_err exchange_work(hth_http_call *call)
{
    return exchange_parse((hth_exchange *)call);
}

static void exchange_worked(hth_http_call *call)
{
    hth_exchange *exchange = (hth_exchange *)call;
    if (call->r.err == HTH_OK) {
        exchange->next(exchange);
    } else {
        exchange_finish(call);
    }
}

void hth_exchange_read(hth_exchange *exchange, hth_err (*read)(hth_exchange *exchange, json_t *doc),
                       void (*next)(hth_exchange *exchange))
{
    hth_http_req *req = exchange->call.req;
    size_t n = evbuffer_get_length(req->body);
    exchange->read = read;
    exchange->next = next;
    exchange->body = evbuffer_new();
    if (exchange->body == NULL || evbuffer_add_buffer(exchange->body, req->body) != 0) {
        hth_exchange_refuse(exchange, hth_fail(HTH_ENOMEM, "out of memory for a request"));
        return;
    }
    hth_http_block_done(req->conn, req->body);
    exchange->call.task.cost = n;
    if (n > EXCHANGE_SHORT) {
        hth_http_call_work(&exchange->call, exchange_work, exchange_worked);
        return;
    }
    hth_err err = exchange_parse(exchange);
    if (err == HTH_OK) {
        next(exchange);
    } else {
        hth_exchange_refuse(exchange, err);
    }
}

// ---- what stands after the path's '?'

bool hth_exchange_switch(hth_http *http, hth_http_req *req, const char *name, bool *out)
{
    char value[8];
    hth_http_found found = hth_http_query_get(req->head.query, name, value, sizeof value);
    bool no = strcmp(value, "false") == 0 || strcmp(value, "0") == 0;
    bool yes = value[0] == 0 || strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
    *out = found == HTH_HTTP_FOUND && yes;
    if (found == HTH_HTTP_BAD || (found == HTH_HTTP_FOUND && !yes && !no)) {
        hth_http_fail(http, req, 400, "'%s' in the URL is true or false", name);
        return false;
    }
    return true;
}

bool hth_exchange_count(hth_http *http, hth_http_req *req, const char *name, uint64_t most,
                        uint64_t *out, bool *given)
{
    char value[24];
    hth_http_found found = hth_http_query_get(req->head.query, name, value, sizeof value);
    size_t n = strspn(value, "0123456789");
    *given = found == HTH_HTTP_FOUND;
    *out = *given && n > 0 && n < 20 && value[n] == 0 ? strtoull(value, NULL, 10) : 0;
    bool wrong = *given && (n == 0 || n > 19 || value[n] != 0 || *out > most);
    if (found == HTH_HTTP_BAD || wrong) {
        hth_http_fail(http, req, 400, "'%s' in the URL is a number from 0 to %llu", name,
                      (unsigned long long)most);
        return false;
    }
    return true;
}
