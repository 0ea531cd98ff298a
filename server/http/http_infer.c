// SPDX-License-Identifier: Apache-2.0
// Inference over HTTP. The loop's thread reads a request, or has a thread read one that is long;
// the engine's thread calls infer_place, where outputs that nobody can have are refused before
// anything is computed; the answer is http_answer.c's.
#include "server/http/http_infer.h"

#include "base/clock.h"
#include "server/net/account.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

// The most text that is read on the loop, and bytes that are copied there: more takes milliseconds,
// and is done on the threads of http_work.h.
#define INFER_LONG_TEXT (64 << 10)
#define INFER_LONG_COPY (512 << 10)

// From here on, outputs that are sent as they are stay where the engine's process put them.
#define INFER_KEEP_BYTES (64 << 10)
// Outputs up to here are counted, but never refused: as a request's first bytes are (http_io.c).
#define INFER_FREE_BYTES (64 << 10)

void hth_infer_result_rele(hth_infer_result *result)
{
    assert(result == NULL || result->refs > 0);
    if (result != NULL && --result->refs == 0) {
        hth_engine_release(result->retained);
        hth_engine_free(result->engine, result);
    }
}

hth_err hth_infer_count(hth_infer_call *call, uint64_t bytes)
{
    HTH_TRY(hth_http_hold(bytes));
    call->counted += bytes;
    return HTH_OK;
}

// infer_free_inputs frees the inputs' bytes, which nobody reads after the run.
static void infer_free_inputs(hth_infer_call *call)
{
    hth_engine_free(call->c.h->engine, call->data);
    hth_http_block_rele(call->block);
    hth_account_give(call->counted);
    call->data = NULL;
    call->block = NULL;
    call->counted = 0;
}

void hth_infer_uncount_outputs(hth_infer_call *call)
{
    hth_account_give(call->placed);
    call->placed = 0;
}

static void infer_drop(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    json_decref(c->head);
    json_decref(c->model);
    hth_free(c->spans);
    hth_free(c->in);
    hth_infer_answer_free(c->answer);
    if (c->taken != NULL) {
        evbuffer_free(c->taken);
    }
    infer_free_inputs(c);
    hth_infer_uncount_outputs(c);
    hth_free(c->wanted);
    hth_free(c->known);
    for (int i = 0; i < c->n_held; i++) {
        hth_shm_rele(c->held[i]);
    }
    hth_free(c->held);
    hth_infer_result_rele(c->result);
}

// ---- on the engine's thread

static const hth_infer_wanted *infer_wanted(const hth_infer_call *call, const char *name)
{
    for (int i = 0; i < call->n_wanted; i++) {
        if (strcmp(call->wanted[i].name, name) == 0) {
            return &call->wanted[i];
        }
    }
    return NULL;
}

static hth_err infer_check_output(const hth_infer_call *call, const hth_request_tensor *out)
{
    const hth_infer_wanted *w = infer_wanted(call, out->name);
    bool sent = call->n_wanted == 0 || w != NULL;
    bool binary = w != NULL ? w->binary || w->classes > 0 || w->at != NULL : call->all_binary;
    if (w != NULL && w->at != NULL && w->capacity < out->t.bytes) {
        return hth_fail(HTH_EIO,
                        "shared memory size specified with the request for output '%s' should be "
                        "at least %zu bytes to hold the results",
                        out->name, out->t.bytes);
    }
    return sent && !binary && (out->t.dtype == HTH_DT_F16 || out->t.dtype == HTH_DT_BF16)
               ? hth_fail(HTH_EINVAL,
                          "sending %s data via JSON is not supported. Please use the binary data "
                          "format for output '%s'",
                          hth_dtype_name(out->t.dtype), out->name)
               : HTH_OK;
}

static hth_err infer_check(const hth_infer_call *call, const hth_request_tensor *out, int n)
{
    for (int w = 0; w < call->n_wanted; w++) {
        int at = 0;
        while (at < n && strcmp(out[at].name, call->wanted[w].name) != 0) {
            at++;
        }
        if (at == n) {
            return hth_fail(HTH_EINVAL, "unexpected inference output '%.200s' for model '%s'",
                            call->wanted[w].name, call->c.args.name);
        }
    }
    for (int i = 0; i < n; i++) {
        HTH_TRY(infer_check_output(call, &out[i]));
    }
    return HTH_OK;
}

// infer_shared is where an output is written that the client wants in shared memory; NULL: it does
// not, or infer_share copies it there when it is whole.
static char *infer_shared(const hth_infer_call *call, const hth_request_tensor *out)
{
    const hth_infer_wanted *w = infer_wanted(call, out->name);
    return w != NULL && hth_shared_in_place(&out->t) ? w->at : NULL;
}

// infer_stays says that an output is sent from where it is offered.
static bool infer_stays(const hth_infer_call *call, const hth_request_tensor *out)
{
    const hth_infer_wanted *w = infer_wanted(call, out->name);
    bool sent = w != NULL ? w->binary && w->classes == 0 : call->n_wanted == 0 && call->all_binary;
    return out->offered != NULL && out->t.bytes >= INFER_KEEP_BYTES && sent;
}

// infer_count_outputs counts what the server holds of the outputs until the connection counts them
// as its answer.
static hth_err infer_count_outputs(hth_infer_call *call, uint64_t bytes)
{
    if (bytes <= INFER_FREE_BYTES) {
        hth_account_add(bytes);
    } else {
        HTH_TRY(hth_http_hold(bytes));
    }
    call->placed += bytes;
    return HTH_OK;
}

static hth_err infer_place(hth_request *request, hth_request_tensor *out, int n)
{
    hth_infer_call *c = (hth_infer_call *)request->ctx;
    HTH_TRY(infer_check(c, out, n));
    size_t names = 0, data = 0, kept = 0, head = sizeof *c->result + (size_t)n * sizeof *out;
    for (int i = 0; i < n; i++) {
        bool stays = infer_stays(c, &out[i]);
        names += strlen(out[i].name) + 1;
        out[i].t.data = stays ? out[i].offered : infer_shared(c, &out[i]);
        kept += stays ? out[i].t.bytes : 0;
        data += out[i].t.data != NULL ? 0 : hth_infer_aligned(out[i].t.bytes);
    }
    HTH_TRY(infer_count_outputs(c, kept + data));
    hth_infer_result *result =
        hth_engine_alloc(c->c.h->engine, hth_infer_aligned(head + names) + data);
    if (result == NULL) {
        return hth_no_memory("outputs of %zu bytes", data);
    }
    char *name = (char *)result + head, *at = (char *)result + hth_infer_aligned(head + names);
    result->engine = c->c.h->engine;
    result->retained = NULL;
    result->refs = 1;
    result->n = n;
    for (int i = 0; i < n; i++) {
        if (out[i].t.data == NULL) {
            out[i].t.data = at;
            at += hth_infer_aligned(out[i].t.bytes);
        }
        result->t[i] = out[i];
        result->t[i].name = strcpy(name, out[i].name);
        name += strlen(name) + 1;
    }
    c->result = result;
    if (c->c.trace != NULL) {
        c->c.trace->ns[HTH_TRACE_COMPUTE_INPUT_END] = hth_now_ns();
    }
    return HTH_OK;
}

void hth_infer_name_trace(const hth_infer_call *call)
{
    hth_trace *trace = call->c.h->tracing;
    if (trace != NULL) {
        trace->version = call->c.r.version;
        snprintf(trace->request, sizeof trace->request, "%s", call->id);
    }
    if (trace != NULL && (trace->level & HTH_TRACE_TENSORS) != 0) {
        for (int i = 0; i < call->n_in; i++) {
            hth_trace_tensor(trace, "TENSOR_QUEUE_INPUT", call->in[i].name, &call->in[i].t);
        }
        for (int i = 0; call->c.r.err == HTH_OK && call->result != NULL && i < call->result->n;
             i++) {
            const hth_request_tensor *out = &call->result->t[i];
            hth_trace_tensor(trace, "TENSOR_BACKEND_OUTPUT", out->name, &out->t);
        }
    }
}

// infer_share copies outputs to shared memory that were not written there.
static void infer_share(const hth_infer_call *call)
{
    for (int i = 0; i < call->n_wanted; i++) {
        const hth_infer_wanted *w = &call->wanted[i];
        const hth_tensor *t = w->at != NULL ? &hth_infer_output(call->result, w->name)->t : NULL;
        if (t != NULL && t->data != w->at) {
            memcpy(w->at, t->data, t->bytes); // infer_check has seen that there is room
        }
    }
}

static void infer_finish(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    if (c->result != NULL) {
        c->result->retained = call->r.retained;
    }
    hth_infer_name_trace(c);
    infer_free_inputs(c);
    if (call->r.err != HTH_OK) {
        hth_http_fail_call(call, c->id);
    } else if (c->result == NULL) {
        hth_http_fail(call->h, call->req, 501, "the model has no outputs");
    } else {
        infer_share(c);
        hth_infer_reply(c);
    }
}

// infer_known tells the engine of the outputs that go to shared memory. It may do without.
static void infer_known(hth_infer_call *call)
{
    call->known = hth_calloc((size_t)call->n_wanted + 1, sizeof *call->known);
    for (int i = 0; call->known != NULL && i < call->n_wanted; i++) {
        const hth_infer_wanted *w = &call->wanted[i];
        if (w->at != NULL) {
            call->known[call->c.r.n_known++] =
                (hth_request_tensor){.name = w->name, .t = {.data = w->at, .bytes = w->capacity}};
        }
    }
    call->c.r.known = call->known;
}

// infer_submit hands a request that was read to the engine.
static void infer_submit(hth_infer_call *call)
{
    call->c.finish = infer_finish;
    call->c.r.model = call->c.args.spec;
    call->c.r.inputs = call->in;
    call->c.r.n_inputs = call->n_in;
    call->c.r.place = infer_place;
    call->c.r.keeps = !call->flat;
    infer_known(call);
    hth_http_call_submit(&call->c);
}

// ---- reading

// infer_work reads the request on a thread. Its body, and the text that was parsed, go there, too:
// to free much takes as long as to copy it.
static hth_err infer_work(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    hth_err err = c->read(c);
    evbuffer_free(c->taken);
    c->taken = c->body = NULL;
    return err;
}

static void infer_read(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    if (call->r.err != HTH_OK) {
        hth_http_fail_err(call->h, call->req, hth_fail(call->r.err, "%s", call->r.detail));
    } else {
        infer_submit(c);
    }
}

// infer_begin notes what a reader needs of the connection, whose it is no more on another thread.
static void infer_begin(hth_infer_call *call)
{
    hth_http *h = call->c.h;
    call->body = call->c.req->body;
    call->arrived = hth_http_block_of(call->c.req->conn, call->body);
    call->near = hth_shm_allowed(h->shm) == HTH_OK && hth_http_is_near(call->c.req);
}

// infer_take makes the body the call's own. false: out of memory.
static bool infer_take(hth_infer_call *call, hth_http_conn *conn)
{
    call->taken = evbuffer_new();
    if (call->taken == NULL || evbuffer_add_buffer(call->taken, call->body) != 0) {
        return false;
    }
    call->body = call->taken;
    hth_http_block_done(conn, call->c.req->body);
    return true;
}

void hth_infer_start(hth_infer_call *call, size_t text_bytes, hth_err (*read)(hth_infer_call *call))
{
    hth_http_conn *conn = call->c.req->conn;
    infer_begin(call);
    size_t copied = call->arrived != NULL ? 0 : evbuffer_get_length(call->body);
    call->read = read;
    if (text_bytes > INFER_LONG_TEXT || copied > INFER_LONG_COPY) {
        call->c.task.cost = text_bytes + copied;
        call->c.task.goes_on = conn->inflated;
        if (infer_take(call, conn)) {
            hth_http_call_work(&call->c, infer_work, infer_read);
        } else {
            hth_http_call_refuse(&call->c, hth_no_memory("a request"));
        }
        return;
    }
    hth_err err = read(call);
    hth_http_block_done(conn, call->body);
    if (err != HTH_OK) {
        hth_http_call_refuse(&call->c, err);
    } else {
        infer_submit(call);
    }
}

hth_infer_call *hth_infer_new(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_infer_call *c = hth_http_call_new(http, req, args, sizeof *c);
    if (c != NULL) {
        c->c.drop = infer_drop;
        c->id = "";
    }
    return c;
}

// infer_raw goes on when the engine has said what the model's inputs are.
static void infer_raw(hth_http_call *question)
{
    json_t *model = hth_http_answer(question);
    hth_infer_call *c =
        model != NULL ? hth_infer_new(question->h, question->req, &question->args) : NULL;
    if (c != NULL) {
        c->model = json_incref(model);
        hth_infer_start(c, 0, hth_infer_read_raw);
    }
    json_decref(model);
}

void hth_http_infer(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_trace(http, req, args);
    if (hth_http_is_unloaded(http, req, args)) {
        return;
    }
    if (hth_infer_is_raw(req)) {
        hth_http_query(http, req, args, HTH_COMMAND_MODEL, infer_raw);
        return;
    }
    hth_infer_call *c = hth_infer_new(http, req, args);
    hth_err err = c != NULL ? hth_infer_head(c) : HTH_OK;
    if (err != HTH_OK) {
        hth_http_call_refuse(&c->c, err);
    } else if (c != NULL) {
        hth_infer_start(c, c->head_bytes, hth_infer_read);
    }
}
