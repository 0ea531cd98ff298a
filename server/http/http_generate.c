// SPDX-License-Identifier: Apache-2.0
// Generate: one flat JSON object in, one out. Each member that is named like an input becomes that
// tensor, a bare value or a flat array, in the shape that the model's own leaves for so many
// elements; the other members are parameters. A model here gives one answer to one request, so a
// stream is one event.
#include "server/http/http_infer.h"

#include <stdlib.h>
#include <string.h>

// generate_span is where the member `key` stands that may be a tensor; NULL: it is none.
static const hth_json_span *generate_span(const hth_infer_call *call, const char *key)
{
    const json_t *v = json_object_get(call->head, key);
    return json_is_array(v) ? &call->spans[json_integer_value(json_array_get(v, 0))] : NULL;
}

// generate_shape gives `n` elements the shape of the input: what it leaves open takes what the
// fixed dimensions do not need, the last open one first.
static hth_err generate_shape(const json_t *dims, int64_t n, hth_request_tensor *in)
{
    hth_shape *s = &in->t.shape;
    bool fits = true;
    s->rank = (int)json_array_size(dims);
    for (int i = s->rank - 1; i >= 0; i--) {
        s->dim[i] = json_integer_value(json_array_get(dims, (size_t)i));
        if (s->dim[i] >= 0) {
            fits = fits && s->dim[i] > 0 && n % s->dim[i] == 0;
            n = fits ? n / s->dim[i] : n;
        }
    }
    for (int i = s->rank - 1; i >= 0; i--) {
        if (s->dim[i] < 0) {
            s->dim[i] = n;
            n = 1;
        }
    }
    return fits && n == 1
               ? hth_tensor_bytes(in->t.dtype, s, HTH_LAYOUT_PLAIN, &in->t.bytes)
               : hth_fail(HTH_EINVAL,
                          "The schema can not convert input '%s' to tensor with proper shape",
                          in->name);
}

static hth_err generate_input(const hth_infer_call *call, const json_t *input,
                              hth_request_tensor *in)
{
    const char *type = json_string_value(json_object_get(input, "datatype"));
    const char *name = json_string_value(json_object_get(input, "name"));
    const hth_json_span *span;
    in->name = json_object_iter_key(json_object_iter_at(call->head, name)); // which stays
    in->t.dtype = hth_infer_dtype_named(type != NULL ? type : "");
    span = generate_span(call, in->name);
    if (span == NULL) {
        return hth_fail(HTH_EINVAL, "input '%s' is neither a number, a truth value, nor an array",
                        in->name);
    }
    if (in->t.dtype == HTH_DT_F16 || in->t.dtype == HTH_DT_BF16) {
        return hth_fail(HTH_EINVAL, "receiving %s data via JSON is not supported: input '%s'",
                        hth_dtype_name(in->t.dtype), in->name);
    }
    return generate_shape(json_object_get(input, "shape"), hth_json_count(span), in);
}

// generate_data reads all inputs' elements into one block.
static hth_err generate_data(hth_infer_call *call)
{
    size_t bytes = 0, at = 0;
    for (int i = 0; i < call->n_in; i++) {
        bytes += hth_infer_aligned(call->in[i].t.bytes);
    }
    HTH_TRY(hth_infer_count(call, bytes));
    call->data = hth_engine_alloc(call->c.h->engine, bytes + HTH_INFER_ALIGN);
    if (call->data == NULL) {
        return hth_no_memory("inputs of %zu bytes", bytes);
    }
    for (int i = 0; i < call->n_in; i++) {
        call->in[i].t.data = call->data + at;
        at += hth_infer_aligned(call->in[i].t.bytes);
        hth_err err = hth_json_read(generate_span(call, call->in[i].name), &call->in[i].t,
                                    &call->c.r.canceled);
        if (err != HTH_OK) {
            return hth_err_prefix(err, "Unable to parse input '%s'", call->in[i].name);
        }
    }
    return HTH_OK;
}

// generate_parameter checks a member that is no input: it has no effect.
static hth_err generate_parameter(const hth_infer_call *call, const char *key, const json_t *json)
{
    const hth_json_span *span = generate_span(call, key);
    if (strcmp(key, "parameters") == 0 || strcmp(key, "id") == 0) {
        return HTH_OK;
    }
    json_t *value = span != NULL && span->p[0] != '['
                        ? json_loadb(span->p, span->n, JSON_DECODE_ANY, NULL)
                        : NULL;
    bool scalar = json_is_string(json) || value != NULL;
    json_decref(value);
    return scalar
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "parameter '%.80s' has invalid type. It should be either 'int', 'bool', "
                          "'string' or 'double'",
                          key);
}

static hth_err generate_inputs(hth_infer_call *call)
{
    const json_t *list = json_object_get(call->model, "inputs");
    json_t *v, *input;
    const char *key;
    size_t i;
    call->in = hth_calloc(json_array_size(list), sizeof *call->in);
    if (call->in == NULL) {
        return hth_no_memory("a request");
    }
    json_t *others = json_copy(call->head);
    json_array_foreach(list, i, input)
    {
        const char *name = json_string_value(json_object_get(input, "name"));
        if (json_object_get(call->head, name) != NULL) { // a missing one is the engine's to refuse
            hth_err err = generate_input(call, input, &call->in[call->n_in++]);
            if (err != HTH_OK) {
                json_decref(others);
                return err;
            }
            json_object_del(others, name);
        }
    }
    hth_err err = HTH_OK;
    json_object_foreach(others, key, v)
    {
        if (err == HTH_OK) {
            err = generate_parameter(call, key, v);
        }
    }
    json_decref(others);
    HTH_TRY(err);
    return generate_data(call);
}

static hth_err generate_read(hth_infer_call *call)
{
    size_t n = evbuffer_get_length(call->body);
    const char *text = (const char *)evbuffer_pullup(call->body, -1);
    json_t *id;
    call->spans = hth_calloc(HTH_INFER_MAX_TENSORS, sizeof *call->spans);
    if (text == NULL || call->spans == NULL) {
        return n == 0 ? hth_fail(HTH_EINVAL, "the request has no body")
                      : hth_no_memory("a request");
    }
    HTH_TRY(
        hth_json_flat(text, n, call->spans, HTH_INFER_MAX_TENSORS, &call->counted, &call->head));
    if (!json_is_object(call->head)) {
        return hth_fail(HTH_EINVAL, "the request is not a JSON object");
    }
    HTH_TRY(hth_json_field(call->head, "id", JSON_STRING, "a string", &id));
    call->id = id != NULL ? json_string_value(id) : "";
    HTH_TRY(hth_infer_read_parameters(call));
    call->all_binary = false;
    return generate_inputs(call);
}

// ---- the answer

void hth_infer_write_flat(const hth_infer_call *call, hth_text *out)
{
    hth_infer_who(call, out);
    for (int i = 0; i < call->result->n; i++) {
        hth_text_put(out, ",");
        hth_text_quoted(out, call->result->t[i].name);
        hth_text_put(out, ":");
        hth_json_write_flat(out, &call->result->t[i].t);
    }
    hth_text_put(out, "}");
}

// generate_go_on has the engine's description of the model.
static void generate_go_on(hth_http_call *question, bool stream)
{
    json_t *model = hth_http_answer(question);
    hth_infer_call *c =
        model != NULL ? hth_infer_new(question->h, question->req, &question->args) : NULL;
    if (c != NULL) {
        c->model = json_incref(model);
        c->flat = true;
        c->stream = stream;
        hth_infer_start(c, evbuffer_get_length(question->req->body), generate_read);
    }
    json_decref(model);
}

static void generate_described(hth_http_call *question)
{
    generate_go_on(question, false);
}

static void generate_described_stream(hth_http_call *question)
{
    generate_go_on(question, true);
}

void hth_http_generate(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_trace(http, req, args);
    if (!hth_http_is_unloaded(http, req, args)) {
        hth_http_query(http, req, args, HTH_COMMAND_MODEL, generate_described);
    }
}

void hth_http_generate_stream(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_trace(http, req, args);
    if (!hth_http_is_unloaded(http, req, args)) {
        hth_http_query(http, req, args, HTH_COMMAND_MODEL, generate_described_stream);
    }
}
