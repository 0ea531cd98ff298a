// SPDX-License-Identifier: Apache-2.0
// Inference over HTTP. The engine's thread calls infer_place, where outputs that nobody can have
// are refused before anything is computed; the loop's thread writes the answer. Large outputs are
// sent from where the engine put them.
#include "server/http_infer.h"

#include "base/clock.h"
#include "base/settings.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

// Below, a copy is cheaper than a reference.
#define INFER_SMALL_BYTES 4096
// From here on, outputs that are sent as they are stay where the engine's process put them.
#define INFER_KEEP_BYTES (64 << 10)

static void result_rele(hth_infer_result *r)
{
    if (r != NULL && --r->refs == 0) {
        hth_engine_release(r->kept);
        hth_engine_free(r->engine, r);
    }
}

// infer_free_inputs frees the inputs' bytes, which nobody reads behind the run.
static void infer_free_inputs(hth_infer_call *c)
{
    hth_engine_free(c->c.h->engine, c->data);
    hth_http_block_rele(c->block);
    c->data = NULL;
    c->block = NULL;
}

static void infer_drop(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    json_decref(c->head);
    hth_free(c->in);
    infer_free_inputs(c);
    hth_free(c->wanted);
    hth_free(c->known);
    for (int i = 0; i < c->n_held; i++) {
        hth_shm_rele(c->held[i]);
    }
    hth_free(c->held);
    result_rele(c->result);
}

// ---- on the engine's thread

static const hth_infer_wanted *infer_wanted(const hth_infer_call *c, const char *name)
{
    for (int i = 0; i < c->n_wanted; i++) {
        if (strcmp(c->wanted[i].name, name) == 0) {
            return &c->wanted[i];
        }
    }
    return NULL;
}

static hth_err infer_check_output(const hth_infer_call *c, const hth_request_tensor *out)
{
    const hth_infer_wanted *w = infer_wanted(c, out->name);
    bool sent = c->n_wanted == 0 || w != NULL;
    bool binary = w != NULL ? w->binary || w->classes > 0 || w->at != NULL : c->all_binary;
    if (w != NULL && w->at != NULL && w->room < out->t.bytes) {
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

static hth_err infer_check(const hth_infer_call *c, const hth_request_tensor *out, int n)
{
    for (int w = 0; w < c->n_wanted; w++) {
        int at = 0;
        while (at < n && strcmp(out[at].name, c->wanted[w].name) != 0) {
            at++;
        }
        if (at == n) {
            return hth_fail(HTH_EINVAL, "unexpected inference output '%.200s' for model '%s'",
                            c->wanted[w].name, c->c.args.name);
        }
    }
    for (int i = 0; i < n; i++) {
        HTH_TRY(infer_check_output(c, &out[i]));
    }
    return HTH_OK;
}

// infer_shared is where an output is written that the client wants in shared memory; NULL: it does
// not, or infer_share copies it there when it is whole.
static char *infer_shared(const hth_infer_call *c, const hth_request_tensor *out)
{
    const hth_infer_wanted *w = infer_wanted(c, out->name);
    return w != NULL && hth_shared_in_place(&out->t) ? w->at : NULL;
}

// infer_stays says that an output is sent from where it is offered.
static bool infer_stays(const hth_infer_call *c, const hth_request_tensor *out)
{
    const hth_infer_wanted *w = infer_wanted(c, out->name);
    bool sent = w != NULL ? w->binary && w->classes == 0 : c->n_wanted == 0 && c->all_binary;
    return out->offered != NULL && out->t.bytes >= INFER_KEEP_BYTES && sent;
}

static hth_err infer_place(hth_request *r, hth_request_tensor *out, int n)
{
    hth_infer_call *c = (hth_infer_call *)r->ctx;
    HTH_TRY(infer_check(c, out, n));
    size_t names = 0, data = 0, head = sizeof *c->result + (size_t)n * sizeof *out;
    for (int i = 0; i < n; i++) {
        names += strlen(out[i].name) + 1;
        out[i].t.data = infer_stays(c, &out[i]) ? out[i].offered : infer_shared(c, &out[i]);
        data += out[i].t.data != NULL ? 0 : hth_infer_aligned(out[i].t.bytes);
    }
    hth_infer_result *result =
        hth_engine_alloc(c->c.h->engine, hth_infer_aligned(head + names) + data);
    if (result == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for outputs of %zu bytes", data);
    }
    char *name = (char *)result + head, *at = (char *)result + hth_infer_aligned(head + names);
    result->engine = c->c.h->engine;
    result->kept = NULL;
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

// ---- the answer

// What follows the head: a tensor's bytes, or text made for the answer.
typedef struct piece {
    const hth_tensor *tensor;
    hth_text text;
} piece;

typedef struct answer {
    hth_infer_call *c;
    hth_text head;
    int n_pieces;
    piece piece[]; // one for each output that is sent
} answer;

static void answer_begin(hth_text *out, const char *name, const char *datatype,
                         const hth_shape *shape)
{
    hth_text_put(out, "{\"name\":");
    hth_text_quoted(out, name);
    hth_text_put(out, ",\"datatype\":\"");
    hth_text_put(out, datatype);
    hth_text_put(out, "\",\"shape\":");
    hth_text_shape(out, shape);
}

static void answer_size(hth_text *out, size_t bytes)
{
    hth_text_put(out, ",\"parameters\":{\"binary_data_size\":");
    hth_text_int(out, (int64_t)bytes);
    hth_text_put(out, "}}");
}

static void answer_classes(answer *a, const hth_request_tensor *t, const hth_infer_wanted *w)
{
    hth_infer_classes classes;
    if (hth_infer_classify(&t->t, a->c->c.r.batched, w->classes, &classes) != HTH_OK) {
        a->head.failed = true;
        return;
    }
    answer_begin(&a->head, t->name, "BYTES", &classes.shape);
    if (w->binary) {
        answer_size(&a->head, classes.binary.n);
        a->piece[a->n_pieces++].text = classes.binary;
        classes.binary = (hth_text){.p = NULL};
    } else {
        hth_text_put(&a->head, ",\"data\":");
        hth_text_add(&a->head, classes.json.p, classes.json.n);
        hth_text_put(&a->head, "}");
    }
    hth_infer_classes_fini(&classes);
}

static void answer_output(answer *a, const hth_request_tensor *t, bool binary)
{
    hth_text *out = &a->head;
    answer_begin(out, t->name, hth_dtype_name(t->t.dtype), &t->t.shape);
    if (binary) {
        answer_size(out, t->t.bytes);
        a->piece[a->n_pieces++].tensor = &t->t;
    } else {
        hth_text_put(out, ",\"data\":");
        hth_json_write(out, &t->t);
        hth_text_put(out, "}");
    }
}

static const hth_request_tensor *result_find(const hth_infer_result *r, const char *name)
{
    const hth_request_tensor *t = r->t;
    while (strcmp(t->name, name) != 0) { // infer_check has found it
        t++;
    }
    return t;
}

// infer_share copies outputs to shared memory that were not written there.
static void infer_share(const hth_infer_call *c)
{
    for (int i = 0; i < c->n_wanted; i++) {
        const hth_infer_wanted *w = &c->wanted[i];
        const hth_tensor *t = w->at != NULL ? &result_find(c->result, w->name)->t : NULL;
        if (t != NULL && t->data != w->at) {
            memcpy(w->at, t->data, t->bytes); // infer_check has seen that there is room
        }
    }
}

void hth_infer_who(const hth_infer_call *c, hth_text *out)
{
    hth_text_put(out, "{");
    if (c->id[0] != 0) {
        hth_text_put(out, "\"id\":");
        hth_text_quoted(out, c->id);
        hth_text_put(out, ",");
    }
    hth_text_put(out, "\"model_name\":");
    hth_text_quoted(out, c->c.args.name);
    hth_text_put(out, ",\"model_version\":\"");
    hth_text_int(out, c->c.r.version);
    hth_text_put(out, "\"");
}

static void answer_head(answer *a)
{
    const hth_infer_call *c = a->c;
    hth_text *out = &a->head;
    hth_infer_who(c, out);
    hth_text_put(out, ",\"outputs\":[");
    int n = c->n_wanted > 0 ? c->n_wanted : c->result->n;
    for (int i = 0; i < n; i++) {
        hth_text_put(out, i > 0 ? "," : "");
        const hth_infer_wanted *w = c->n_wanted > 0 ? &c->wanted[i] : NULL;
        if (w != NULL && w->classes > 0) {
            answer_classes(a, result_find(c->result, w->name), w);
        } else if (w != NULL && w->at != NULL) {
            const hth_request_tensor *t = result_find(c->result, w->name);
            answer_begin(out, t->name, hth_dtype_name(t->t.dtype), &t->t.shape);
            hth_text_put(out, "}"); // and nothing else: clients take parameters for binary data
        } else if (w != NULL) {
            answer_output(a, result_find(c->result, w->name), w->binary);
        } else {
            answer_output(a, &c->result->t[i], c->all_binary);
        }
    }
    hth_text_put(out, "]}");
}

static void reference_sent(const void *data, size_t bytes, void *result)
{
    result_rele(result);
}

static int answer_tensor(struct evbuffer *body, const hth_tensor *t, hth_infer_result *r)
{
    if (t->bytes < INFER_SMALL_BYTES) {
        return evbuffer_add(body, t->data, t->bytes);
    }
    int rc = evbuffer_add_reference(body, t->data, t->bytes, reference_sent, r);
    r->refs += rc == 0;
    return rc;
}

static bool answer_body(answer *a, struct evbuffer *body)
{
    bool ok = body != NULL && !a->head.failed && evbuffer_add(body, a->head.p, a->head.n) == 0;
    for (int i = 0; i < a->n_pieces && ok; i++) {
        const piece *p = &a->piece[i];
        ok = (p->tensor != NULL ? answer_tensor(body, p->tensor, a->c->result)
                                : evbuffer_add(body, p->text.p, p->text.n)) == 0;
    }
    return ok;
}

static void answer_send(answer *a, struct evbuffer *body)
{
    const hth_http_call *call = &a->c->c;
    char length[24];
    snprintf(length, sizeof length, "%zu", a->head.n);
    if (a->n_pieces > 0) {
        evhttp_add_header(evhttp_request_get_output_headers(call->req),
                          "Inference-Header-Content-Length", length);
    }
    hth_http_deflate(call->req, body);
    hth_http_send(call->h, call->req, HTTP_OK,
                  a->n_pieces > 0 ? "application/octet-stream" : "application/json", body);
}

void hth_infer_name_trace(const hth_infer_call *c)
{
    hth_trace *trace = c->c.h->tracing;
    if (trace != NULL) {
        trace->version = c->c.r.version;
        snprintf(trace->request, sizeof trace->request, "%s", c->id);
    }
    if (trace != NULL && (trace->level & HTH_TRACE_TENSORS) != 0) {
        for (int i = 0; i < c->n_in; i++) {
            hth_trace_tensor(trace, "TENSOR_QUEUE_INPUT", c->in[i].name, &c->in[i].t);
        }
        for (int i = 0; c->c.r.err == HTH_OK && c->result != NULL && i < c->result->n; i++) {
            const hth_request_tensor *out = &c->result->t[i];
            hth_trace_tensor(trace, "TENSOR_BACKEND_OUTPUT", out->name, &out->t);
        }
    }
}

void hth_infer_unanswered(const hth_http_call *call, bool over)
{
    if (over) {
        hth_http_fail(
            call->h, call->req, HTTP_BADREQUEST,
            "the answer as JSON is more than %s (limits.message_bytes): binary_data needs "
            "less",
            hth_size_of((uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES)).text);
    } else {
        hth_http_fail(call->h, call->req, HTTP_SERVUNAVAIL, "out of memory for an answer");
    }
}

static void infer_finish(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    if (c->result != NULL) {
        c->result->kept = call->r.kept;
    }
    hth_infer_name_trace(c);
    infer_free_inputs(c);
    if (call->r.err != HTH_OK) {
        hth_http_fail_call(call, c->id);
        return;
    }
    if (c->result == NULL) {
        hth_http_fail(call->h, call->req, HTTP_NOTIMPLEMENTED, "the model has no outputs");
        return;
    }
    infer_share(c);
    size_t n = (size_t)(c->n_wanted > 0 ? c->n_wanted : c->result->n);
    answer *a = hth_calloc(1, sizeof *a + n * sizeof a->piece[0]);
    struct evbuffer *body = evbuffer_new();
    if (a != NULL) {
        a->c = c;
        a->head.most = (size_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
        answer_head(a);
    }
    if (a == NULL || !answer_body(a, body)) {
        hth_infer_unanswered(call, a != NULL && a->head.over);
    } else {
        answer_send(a, body);
    }
    for (int i = 0; a != NULL && i < a->n_pieces; i++) {
        hth_text_fini(&a->piece[i].text);
    }
    if (a != NULL) {
        hth_text_fini(&a->head);
    }
    hth_free(a);
    if (body != NULL) {
        evbuffer_free(body);
    }
}

// infer_known tells the engine of the outputs that go to shared memory. It may do without.
static void infer_known(hth_infer_call *c)
{
    c->known = hth_calloc((size_t)c->n_wanted + 1, sizeof *c->known);
    for (int i = 0; c->known != NULL && i < c->n_wanted; i++) {
        const hth_infer_wanted *w = &c->wanted[i];
        if (w->at != NULL) {
            c->known[c->c.r.n_known++] =
                (hth_request_tensor){.name = w->name, .t = {.data = w->at, .bytes = w->room}};
        }
    }
    c->c.r.known = c->known;
}

void hth_infer_start(hth_infer_call *c, hth_err err)
{
    struct evhttp_request *req = c->c.req;
    hth_http_block_done(hth_http_conn_of(c->c.h, req), evhttp_request_get_input_buffer(req));
    if (err != HTH_OK) {
        hth_http_call_refuse(&c->c, err);
        return;
    }
    c->c.r.model = c->c.args.spec;
    c->c.r.inputs = c->in;
    c->c.r.n_inputs = c->n_in;
    c->c.r.place = infer_place;
    c->c.r.keeps = c->c.finish == infer_finish;
    infer_known(c);
    hth_http_call_submit(&c->c);
}

hth_infer_call *hth_infer_new(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_infer_call *c = hth_http_call_new(h, req, a, sizeof *c);
    if (c != NULL) {
        c->c.drop = infer_drop;
        c->c.finish = infer_finish;
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
        hth_infer_start(c, hth_infer_read_raw(c, model));
    }
    json_decref(model);
}

void hth_http_infer(hth_http *h, struct evhttp_request *req, const hth_http_args *a)
{
    hth_http_trace(h, req, a);
    if (hth_http_is_unloaded(h, req, a)) {
        return;
    }
    if (hth_infer_is_raw(req)) {
        hth_http_ask(h, req, a, "model", infer_raw);
        return;
    }
    hth_infer_call *c = hth_infer_new(h, req, a);
    if (c != NULL) {
        hth_infer_start(c, hth_infer_read(c));
    }
}
