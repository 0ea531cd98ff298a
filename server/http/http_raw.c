// SPDX-License-Identifier: Apache-2.0
// Raw binary: the whole body is the model's only input, and all outputs are binary.
#include "server/http/http_infer.h"

#include <string.h>

bool hth_infer_is_raw(struct evhttp_request *req)
{
    const char *text = hth_http_header(req, "Inference-Header-Content-Length");
    return text != NULL && strcmp(text, "0") == 0;
}

// raw_shape deduces the input's shape from the bytes that there are: a batch of one, and at most
// one dimension that the model leaves open.
static hth_err raw_shape(const json_t *dims, bool batch, size_t bytes, hth_request_tensor *in)
{
    size_t i, known = hth_dtype_bytes(in->t.dtype);
    int open = -1;
    json_t *d;
    in->t.shape.rank = (int)json_array_size(dims);
    json_array_foreach(dims, i, d)
    {
        int64_t v = batch && i == 0 ? 1 : json_integer_value(d);
        if (v < 0 && open >= 0) {
            return hth_fail(HTH_EINVAL,
                            "Shape of a raw request can be deduced only if at most one dimension "
                            "of input '%s' is variable",
                            in->name);
        }
        open = v < 0 ? (int)i : open;
        in->t.shape.dim[i] = v;
        known *= v < 0 ? 1 : (size_t)v;
    }
    if (open >= 0 && known > 0 && bytes % known == 0) {
        in->t.shape.dim[open] = (int64_t)(bytes / known);
        return HTH_OK;
    }
    return open < 0 && bytes == known
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the %zu bytes of a raw request do not fit input '%s'", bytes,
                          in->name);
}

hth_err hth_infer_read_raw(hth_infer_call *c)
{
    struct evbuffer *body = c->body;
    const json_t *model = c->model;
    const json_t *list = json_object_get(model, "inputs"), *input = json_array_get(list, 0);
    const char *type = json_string_value(json_object_get(input, "datatype"));
    size_t bytes = evbuffer_get_length(body);
    if (json_array_size(list) != 1) {
        return hth_fail(HTH_EINVAL,
                        "Raw request must only have 1 input (found 1) to be deduced but got %zu "
                        "inputs in '%s' model repository",
                        json_array_size(list), c->c.args.name);
    }
    c->in = hth_calloc(1, sizeof *c->in);
    c->block = c->arrived;
    if (c->block != NULL && (uintptr_t)c->block->body % HTH_INFER_ALIGN == 0) {
        c->block->refs++;
    } else {
        c->block = NULL;
        c->data = hth_engine_alloc(c->c.h->engine, bytes + HTH_INFER_ALIGN);
    }
    void *at = c->block != NULL ? c->block->body : c->data;
    if (c->in == NULL || at == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an input of %zu bytes", bytes);
    }
    c->id = "";
    c->all_binary = true;
    c->n_in = 1;
    c->in->name = NULL; // the model's only one
    c->in->t = (hth_tensor){.dtype = hth_infer_dtype_named(type != NULL ? type : ""), .data = at};
    c->in->t.bytes = bytes;
    hth_request_tensor named = *c->in;
    named.name = json_string_value(json_object_get(input, "name"));
    HTH_TRY(
        raw_shape(json_object_get(input, "shape"), hth_http_max_batch(model) > 0, bytes, &named));
    c->in->t.shape = named.t.shape;
    if (c->data != NULL) {
        evbuffer_remove(body, c->data, bytes);
    }
    hth_infer_clean_bools(&c->in->t);
    return HTH_OK;
}
