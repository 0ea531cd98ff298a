// SPDX-License-Identifier: Apache-2.0
// The answer of an inference: JSON, and after it the bytes of those outputs that are sent as they
// are, large ones from where the engine put them. Answers of much text, and those that are
// compressed, are written by the threads of http_work.h: everybody else would wait for them.
#include "server/http/http_infer.h"

#include "base/settings.h"
#include "base/size.h"
#include "server/net/account.h"

#include <stdio.h>
#include <string.h>

// Below, a copy is cheaper than a reference.
#define ANSWER_SMALL_BYTES 4096
// The most text that is written on the loop, and bytes that are compressed there.
#define ANSWER_LONG_BYTES (64 << 10)
// What an element takes as text, about.
#define ANSWER_TEXT 16

// What follows the head: a tensor's bytes, or text made for the answer.
typedef struct piece {
    const hth_tensor *tensor;
    hth_text text;
} piece;

typedef struct hth_infer_answer {
    hth_infer_call *c;
    hth_text head;
    size_t head_bytes;
    hth_http_coding coding; // what it may be in
    bool coded;             // .. and is
    bool made;              // it is whole
    bool classes;           // .. and is not, because of their text
    uint64_t counted;       // memory that is held for it (account.h)
    struct evbuffer *body;
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

const hth_request_tensor *hth_infer_output(const hth_infer_result *result, const char *name)
{
    const hth_request_tensor *t = result->t;
    while (strcmp(t->name, name) != 0) { // it was looked for before the run
        t++;
    }
    return t;
}

static void answer_size(hth_text *out, size_t bytes)
{
    hth_text_put(out, ",\"parameters\":{\"binary_data_size\":");
    hth_text_int(out, (int64_t)bytes);
    hth_text_put(out, "}}");
}

// answer_classes_binary writes text of a piece; what it takes, the head may not have.
static void answer_classes_binary(answer *a, const hth_tensor *tensor, const hth_shape *classes)
{
    hth_text *out = &a->head, *text = &a->piece[a->n_pieces++].text;
    *text = (hth_text){.most = out->most - out->n, .canceled = out->canceled};
    if (out->failed) {
        return;
    }
    if (text->most == 0) { // which would be no limit
        out->failed = out->over = true;
        return;
    }
    hth_infer_classify(tensor, classes, true, text);
    out->failed = text->failed;
    out->over = text->over;
    out->most -= text->n;
    answer_size(out, text->n);
}

static void answer_classes(answer *a, const hth_request_tensor *tensor,
                           const hth_infer_wanted *wanted)
{
    hth_text *out = &a->head;
    hth_shape classes = hth_infer_classes(&tensor->t, a->c->c.r.batched, wanted->classes);
    answer_begin(out, tensor->name, "BYTES", &classes);
    if (wanted->binary) {
        answer_classes_binary(a, &tensor->t, &classes);
    } else {
        hth_text_put(out, ",\"data\":");
        hth_infer_classify(&tensor->t, &classes, false, out);
        hth_text_put(out, "}");
    }
    a->classes = a->classes || out->over;
}

static void answer_output(answer *a, const hth_request_tensor *tensor, bool binary)
{
    hth_text *out = &a->head;
    answer_begin(out, tensor->name, hth_dtype_name(tensor->t.dtype), &tensor->t.shape);
    if (binary) {
        answer_size(out, tensor->t.bytes);
        a->piece[a->n_pieces++].tensor = &tensor->t;
    } else {
        hth_text_put(out, ",\"data\":");
        hth_json_write(out, &tensor->t);
        hth_text_put(out, "}");
    }
}

void hth_infer_who(const hth_infer_call *call, hth_text *out)
{
    hth_text_put(out, "{");
    if (call->id[0] != 0) {
        hth_text_put(out, "\"id\":");
        hth_text_quoted(out, call->id);
        hth_text_put(out, ",");
    }
    hth_text_put(out, "\"model_name\":");
    char name[HTH_STORE_TARGET]; // an alias's target
    const char *asked = call->c.r.target[0] != 0 ? call->c.r.target : call->c.args.name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(asked, ":"), asked);
    hth_text_quoted(out, name);
    hth_text_put(out, ",\"model_version\":\"");
    hth_text_int(out, call->c.r.version);
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
            answer_classes(a, hth_infer_output(c->result, w->name), w);
        } else if (w != NULL && w->at != NULL) {
            const hth_request_tensor *t = hth_infer_output(c->result, w->name);
            answer_begin(out, t->name, hth_dtype_name(t->t.dtype), &t->t.shape);
            hth_text_put(out, "}"); // and nothing else: clients take parameters for binary data
        } else if (w != NULL) {
            answer_output(a, hth_infer_output(c->result, w->name), w->binary);
        } else {
            answer_output(a, &c->result->t[i], c->all_binary);
        }
    }
    hth_text_put(out, "]}");
}

static void reference_sent(const void *data, size_t bytes, void *result)
{
    hth_infer_result_rele(result);
}

static void text_sent(const void *data, size_t bytes, void *ctx)
{
    hth_free((void *)data);
}

// answer_text adds text to a body: long text without a copy.
static bool answer_text(struct evbuffer *body, hth_text *text)
{
    if (text->n < ANSWER_SMALL_BYTES) {
        return evbuffer_add(body, text->p, text->n) == 0;
    }
    bool added = evbuffer_add_reference(body, text->p, text->n, text_sent, NULL) == 0;
    if (added) {
        *text = (hth_text){.p = NULL};
    }
    return added;
}

static bool answer_tensor(struct evbuffer *body, const hth_tensor *tensor, hth_infer_result *result)
{
    if (tensor->bytes < ANSWER_SMALL_BYTES) {
        return evbuffer_add(body, tensor->data, tensor->bytes) == 0;
    }
    bool added =
        evbuffer_add_reference(body, tensor->data, tensor->bytes, reference_sent, result) == 0;
    result->refs += added;
    return added;
}

// answer_make writes the answer; any thread, with the call for itself.
static void answer_make(answer *a)
{
    a->head.most = (size_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    if (a->c->flat) {
        hth_infer_write_flat(a->c, &a->head);
    } else {
        answer_head(a);
    }
    a->head_bytes = a->head.n;
    if (a->head.failed || a->c->stream) { // a stream's text is sent as it is
        a->made = !a->head.failed;
        return;
    }
    a->made = answer_text(a->body, &a->head);
    for (int i = 0; i < a->n_pieces && a->made; i++) {
        piece *p = &a->piece[i];
        a->made = p->tensor != NULL ? answer_tensor(a->body, p->tensor, a->c->result)
                                    : answer_text(a->body, &p->text);
    }
    size_t n = evbuffer_get_length(a->body);
    a->coded = a->made && hth_http_encode(a->coding, a->body, &a->c->c.r.canceled);
    a->made = a->made && (a->coded || evbuffer_get_length(a->body) == n); // else it is half gone
}

static void answer_fail(const answer *a, const hth_http_call *call)
{
    if (a != NULL && a->head.over) {
        hth_http_fail(call->h, call->req, 400,
                      a->classes
                          ? "the answer with its classes is more than %s (limits.message_bytes)"
                          : "the answer as JSON is more than %s (limits.message_bytes): "
                            "binary_data needs less",
                      hth_size_of((uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES)).text);
    } else {
        hth_http_fail(call->h, call->req, 503, "out of memory for an answer");
    }
}

static void answer_send(const answer *a)
{
    const hth_http_call *call = &a->c->c;
    bool binary = a->n_pieces > 0;
    char length[24];
    hth_infer_uncount_outputs(a->c); // the connection counts its answer
    if (!a->made) {
        answer_fail(a, call);
    } else if (a->c->stream) {
        hth_http_send_event(call->h, call->req, a->head.p, a->head.n);
    } else {
        snprintf(length, sizeof length, "%zu", a->head_bytes);
        if (binary) {
            hth_http_add(call->req, "Inference-Header-Content-Length", length);
        }
        if (a->coded) {
            hth_http_encoded(call->req, a->coding);
        }
        hth_http_send(call->h, call->req, 200,
                      binary ? "application/octet-stream" : "application/json", a->body);
    }
}

static hth_err answer_work(hth_http_call *call)
{
    answer *a = ((hth_infer_call *)call)->answer;
    a->head.canceled = &call->r.canceled;
    answer_make(a);
    return call->r.canceled ? hth_fail(HTH_ECANCELED, "the request was canceled") : HTH_OK;
}

static void answer_over(hth_http_call *call)
{
    hth_infer_call *c = (hth_infer_call *)call;
    if (call->r.err != HTH_OK) {
        hth_http_fail_call(call, c->id);
    } else {
        answer_send(c->answer);
    }
}

// answer_cost is about how much has to be done and held: bytes of text, and of what is compressed.
// *looked are elements that are only looked at.
static uint64_t answer_cost(const answer *a, uint64_t *looked)
{
    const hth_infer_call *c = a->c;
    int n = c->n_wanted > 0 ? c->n_wanted : c->result->n;
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    uint64_t binary = 0, text = 0;
    for (int i = 0; i < n; i++) {
        const hth_infer_wanted *w = c->n_wanted > 0 ? &c->wanted[i] : NULL;
        const hth_tensor *t =
            w != NULL ? &hth_infer_output(c->result, w->name)->t : &c->result->t[i].t;
        if (w != NULL && w->at != NULL) {
            continue;
        }
        if (w != NULL && w->classes > 0) {
            hth_shape classes = hth_infer_classes(t, c->c.r.batched, w->classes);
            uint64_t more = hth_infer_classes_most(t, &classes);
            text += more < most ? more : most; // it is not written beyond
            *looked += t->bytes / hth_dtype_bytes(t->dtype);
        } else if (w != NULL ? w->binary : c->all_binary && !c->flat) {
            binary += t->bytes;
        } else {
            text += t->bytes / hth_dtype_bytes(t->dtype) * ANSWER_TEXT;
        }
    }
    return text + (a->coding != HTH_HTTP_PLAIN ? binary : 0);
}

void hth_infer_answer_free(answer *held)
{
    if (held == NULL) {
        return;
    }
    for (int i = 0; i < held->n_pieces; i++) {
        hth_text_fini(&held->piece[i].text);
    }
    hth_text_fini(&held->head);
    if (held->body != NULL) {
        evbuffer_free(held->body);
    }
    hth_account_give(held->counted);
    hth_free(held);
}

void hth_infer_reply(hth_infer_call *call)
{
    size_t n = (size_t)(call->n_wanted > 0 ? call->n_wanted : call->result->n);
    answer *a = call->answer = hth_calloc(1, sizeof *a + n * sizeof a->piece[0]);
    if (a == NULL || (a->body = evbuffer_new()) == NULL) {
        answer_fail(NULL, &call->c);
        return;
    }
    a->c = call;
    a->coding = call->stream ? HTH_HTTP_PLAIN : hth_http_accepts(call->c.req);
    uint64_t looked = 0, held = answer_cost(a, &looked), cost = held + looked * ANSWER_TEXT;
    if (cost <= ANSWER_LONG_BYTES) {
        answer_make(a);
        answer_send(a);
        return;
    }
    hth_err err = hth_http_hold(held);
    if (err != HTH_OK) {
        hth_http_fail_err(call->c.h, call->c.req, err);
        return;
    }
    a->counted = held;
    call->c.task.cost = cost;
    call->c.task.goes_on = false; // or reading would wait for as long as answers are made
    hth_http_call_work(&call->c, answer_work, answer_over);
}
