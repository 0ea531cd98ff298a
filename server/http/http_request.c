// SPDX-License-Identifier: Apache-2.0
// Reads an inference request: a JSON head and, behind it, the bytes of those inputs that say so
// (binary tensor data). Only the head is made contiguous; tensors are used where they came to, if
// that is the engine's memory (http_block.c), or copied there from the pieces in which they
// arrived. Sizes are checked against what has arrived before memory is taken.
#include "server/http/http_infer.h"

#include "server/http/http_field.h"

#include <stdlib.h>
#include <string.h>

// What text takes as tensors is counted above that.
#define READ_COUNTED (64 << 10)

typedef struct reading {
    hth_infer_call *c;
    struct evbuffer *body;
    size_t head_bytes, binary_bytes; // of the body, and of the inputs so far
    size_t text_bytes;               // of inputs that are text, as tensors
    hth_json_span data[HTH_INFER_MAX_TENSORS];
    bool binary[HTH_INFER_MAX_TENSORS]; // of an input: it is behind the head
    bool here[HTH_INFER_MAX_TENSORS];   // .. and used there
} reading;

// ---- inputs

hth_dtype hth_infer_dtype_named(const char *name)
{
    for (int dt = HTH_DT_F32; dt <= HTH_DT_BF16; dt++) {
        if (hth_dtype_bytes((hth_dtype)dt) > 0 &&
            strcmp(hth_dtype_name((hth_dtype)dt), name) == 0) {
            return (hth_dtype)dt;
        }
    }
    return HTH_DT_NONE;
}

static hth_err read_shape(const json_t *list, hth_request_tensor *in)
{
    size_t i;
    json_t *d;
    if (json_array_size(list) > HTH_MAX_RANK) {
        return hth_fail(HTH_EINVAL, "input '%s' has %zu dimensions, more than %d", in->name,
                        json_array_size(list), HTH_MAX_RANK);
    }
    in->t.shape.rank = (int)json_array_size(list);
    json_array_foreach(list, i, d)
    {
        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return hth_fail(HTH_EINVAL,
                            "Unable to parse 'shape' of input '%s': a dimension is a whole number "
                            "that is not negative",
                            in->name);
        }
        in->t.shape.dim[i] = json_integer_value(d);
    }
    if (hth_shape_elements(&in->t.shape) < 0) {
        return hth_fail(HTH_EINVAL,
                        "the shape of input '%s' causes total element count to exceed maximum "
                        "size of %lld",
                        in->name, (long long)INT64_MAX);
    }
    return hth_tensor_bytes(in->t.dtype, &in->t.shape, HTH_LAYOUT_PLAIN, &in->t.bytes) == HTH_OK &&
                   in->t.bytes <= (uint64_t)INT64_MAX
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "byte size overflow for input '%s'", in->name);
}

// read_shared stores where the shared memory is that `parameters` name.
static hth_err read_shared(hth_infer_call *c, const json_t *parameters, const char *tensor,
                           char **at, uint64_t *bytes)
{
    json_t *region;
    uint64_t offset;
    bool sized, placed;
    HTH_TRY(hth_field(parameters, "shared_memory_region", JSON_STRING, "a string", &region));
    HTH_TRY(hth_field_count(parameters, "shared_memory_byte_size", bytes, &sized));
    HTH_TRY(hth_field_count(parameters, "shared_memory_offset", &offset, &placed));
    if (!sized) {
        return hth_fail(HTH_EINVAL, "'shared_memory_byte_size' of tensor '%s' is missing", tensor);
    }
    if (HTH_GROW(c->held, c->n_held, c->cap_held) != 0) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    HTH_TRY(hth_shm_range(c->c.h->shm, c->near ? c->c.tenant : NULL, json_string_value(region),
                          offset, *bytes, at, &c->held[c->n_held]));
    c->n_held++;
    return HTH_OK;
}

// read_too_little is about values in JSON; its prefix is what other servers say.
static hth_err read_too_little(const hth_request_tensor *in, const hth_json_span *data)
{
    char shape[128];
    return hth_fail(
        HTH_EINVAL,
        "input '%s' has less data than its shape says: %lld values, where %s %s has %lld", in->name,
        (long long)(data->p != NULL ? hth_json_count(data) : 0), hth_dtype_name(in->t.dtype),
        hth_shape_str(&in->t.shape, shape, sizeof shape),
        (long long)hth_shape_elements(&in->t.shape));
}

static hth_err read_mismatch(const reading *s, const hth_request_tensor *in, uint64_t bytes)
{
    return bytes == in->t.bytes
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "input byte size mismatch for input '%s' for model '%s'. Expected %zu, "
                          "got %llu",
                          in->name, s->c->c.args.name, in->t.bytes, (unsigned long long)bytes);
}

// read_source finds out where an input's bytes are, and that they are there.
static hth_err read_source(reading *s, const json_t *input, hth_request_tensor *in, int i)
{
    json_t *parameters = json_object_get(input, "parameters");
    uint64_t bytes;
    bool binary, shared = json_object_get(parameters, "shared_memory_region") != NULL;
    HTH_TRY(hth_field_count(parameters, "binary_data_size", &bytes, &binary));
    bool data = json_object_get(input, "data") != NULL;
    if (data + binary + shared != 1) {
        return hth_fail(HTH_EINVAL,
                        "input '%s' must have exactly one of 'data', parameter 'binary_data_size' "
                        "and parameter 'shared_memory_region'",
                        in->name);
    }
    if (shared) {
        char *at;
        s->data[i].p = NULL;
        HTH_TRY(read_shared(s->c, parameters, in->name, &at, &bytes));
        in->t.data = at;
        return read_mismatch(s, in, bytes);
    }
    if (data) {
        return in->t.dtype == HTH_DT_F16 || in->t.dtype == HTH_DT_BF16
                   ? hth_fail(HTH_EINVAL,
                              "receiving %s data via JSON is not supported. Please use the binary "
                              "data format for input '%s'",
                              hth_dtype_name(in->t.dtype), in->name)
               : s->data[i].p != NULL &&
                       hth_json_fits(&s->data[i], hth_shape_elements(&in->t.shape))
                   ? HTH_OK
                   : read_too_little(in, &s->data[i]);
    }
    s->data[i].p = NULL;
    HTH_TRY(read_mismatch(s, in, bytes));
    if (bytes > evbuffer_get_length(s->body) - s->head_bytes - s->binary_bytes) {
        return hth_fail(HTH_EINVAL,
                        "unexpected size for input '%s', expecting %llu bytes of binary data for "
                        "model '%s'",
                        in->name, (unsigned long long)bytes, s->c->c.args.name);
    }
    s->binary_bytes += bytes;
    return HTH_OK;
}

static hth_err read_input(reading *s, const json_t *input, hth_request_tensor *in, int i)
{
    json_t *name, *shape, *datatype;
    if (!json_is_object(input)) {
        return hth_fail(HTH_EINVAL, "Unable to parse 'inputs': an element is no object");
    }
    HTH_TRY(hth_field_needed(input, "name", JSON_STRING, "a string", &name));
    HTH_TRY(hth_field_needed(input, "shape", JSON_ARRAY, "an array", &shape));
    HTH_TRY(hth_field_needed(input, "datatype", JSON_STRING, "a string", &datatype));
    in->name = json_string_value(name);
    in->t.dtype = hth_infer_dtype_named(json_string_value(datatype));
    if (in->t.dtype == HTH_DT_NONE) {
        return hth_fail(HTH_EINVAL, "invalid datatype '%.32s' for input '%s'",
                        json_string_value(datatype), in->name);
    }
    HTH_TRY(read_shape(shape, in));
    return read_source(s, input, in, i);
}

void hth_infer_clean_bools(const hth_tensor *t)
{
    uint8_t *b = t->data;
    for (size_t i = 0; t->dtype == HTH_DT_BOOL && i < t->bytes; i++) {
        b[i] = b[i] != 0;
    }
}

// in_place says that an input is used where its client put it, who may write there meanwhile.
static bool in_place(const hth_tensor *t)
{
    return t->data != NULL && hth_shared_in_place(t) && (uintptr_t)t->data % HTH_INFER_ALIGN == 0;
}

// read_behind finds the inputs behind the head. Where the body has come to the engine's memory,
// those that are aligned stay there: nobody else writes to it.
static void read_behind(reading *s)
{
    hth_infer_call *c = s->c;
    hth_http_block *b = c->arrived;
    uint64_t from = s->head_bytes;
    for (int i = 0; i < c->n_in; i++) {
        hth_tensor *t = &c->in[i].t;
        if (t->data != NULL || s->data[i].p != NULL) {
            continue;
        }
        s->binary[i] = true;
        s->here[i] = b != NULL && (uintptr_t)(b->body + from) % HTH_INFER_ALIGN == 0;
        if (s->here[i]) {
            t->data = b->body + from;
            hth_infer_clean_bools(t);
            b->refs += c->block == NULL;
            c->block = b;
        }
        from += t->bytes;
    }
}

// read_elsewhere fills the inputs that are not behind the head, into a block from `at` on. Those
// that are get their place in it.
static hth_err read_elsewhere(reading *s, char *at)
{
    hth_infer_call *c = s->c;
    for (int i = 0; i < c->n_in; i++) {
        hth_tensor *t = &c->in[i].t;
        if (s->here[i] || in_place(t)) {
            continue;
        }
        const void *shared = t->data;
        t->data = at;
        at += hth_infer_aligned(t->bytes);
        if (shared != NULL) {
            memcpy(t->data, shared, t->bytes);
            hth_infer_clean_bools(t);
        } else if (s->data[i].p != NULL) {
            hth_err err = hth_json_read(&s->data[i], t, &c->c.r.canceled);
            if (err != HTH_OK) {
                return hth_err_prefix(err, "Unable to parse 'data' of input '%s'", c->in[i].name);
            }
        }
    }
    return HTH_OK;
}

// read_data finds a place for all inputs' bytes and puts them there.
static hth_err read_data(reading *s)
{
    hth_infer_call *c = s->c;
    size_t bytes = 0;
    read_behind(s);
    for (int i = 0; i < c->n_in; i++) {
        bool there = s->here[i] || in_place(&c->in[i].t);
        bytes += there ? 0 : hth_infer_aligned(c->in[i].t.bytes);
        s->text_bytes += s->data[i].p != NULL ? c->in[i].t.bytes : 0;
    }
    if (s->text_bytes > READ_COUNTED) {
        HTH_TRY(hth_infer_count(c, s->text_bytes));
    }
    c->data = hth_engine_alloc(c->c.h->engine, bytes + HTH_INFER_ALIGN);
    if (c->data == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for inputs of %zu bytes", bytes);
    }
    HTH_TRY(read_elsewhere(s, c->data));
    evbuffer_drain(s->body, s->head_bytes);
    for (int i = 0; i < c->n_in; i++) {
        if (s->here[i]) {
            evbuffer_drain(s->body, c->in[i].t.bytes);
        } else if (s->binary[i]) {
            evbuffer_remove(s->body, c->in[i].t.data, c->in[i].t.bytes);
            hth_infer_clean_bools(&c->in[i].t);
        }
    }
    return evbuffer_get_length(s->body) == 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "unexpected additional input data for model '%s'",
                          c->c.args.name);
}

static hth_err read_inputs(reading *s)
{
    hth_infer_call *c = s->c;
    json_t *list, *input;
    size_t i;
    HTH_TRY(hth_field_needed(c->head, "inputs", JSON_ARRAY, "an array", &list));
    size_t n = json_array_size(list);
    if (n == 0) {
        return hth_fail(HTH_EINVAL, "the request has no inputs");
    }
    if (n > HTH_INFER_MAX_TENSORS) {
        return hth_fail(HTH_EINVAL, "more than %d inputs", HTH_INFER_MAX_TENSORS);
    }
    c->in = hth_calloc(n, sizeof *c->in);
    if (c->in == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    c->n_in = (int)n;
    json_array_foreach(list, i, input)
    {
        HTH_TRY(read_input(s, input, &c->in[i], (int)i));
    }
    return read_data(s);
}

// ---- outputs

static hth_err read_output(hth_infer_call *c, const json_t *output, hth_infer_wanted *out)
{
    json_t *name, *parameters = json_object_get(output, "parameters");
    if (!json_is_object(output)) {
        return hth_fail(HTH_EINVAL, "Unable to parse 'outputs': an element is no object");
    }
    HTH_TRY(hth_field_needed(output, "name", JSON_STRING, "a string", &name));
    out->name = json_string_value(name);
    for (const hth_infer_wanted *other = c->wanted; other < out; other++) {
        if (strcmp(other->name, out->name) == 0) {
            return hth_fail(HTH_EINVAL, "output '%s' already exists in request", out->name);
        }
    }
    uint64_t classes;
    bool given;
    HTH_TRY(hth_field_count(parameters, "classification", &classes, &given));
    if (classes > HTH_INFER_MAX_CLASSES) {
        return hth_fail(HTH_EINVAL, "classification: more than %d classes of output '%s'",
                        HTH_INFER_MAX_CLASSES, out->name);
    }
    out->classes = (int64_t)classes;
    HTH_TRY(hth_field_bool(parameters, "binary_data", &out->binary));
    if (json_object_get(parameters, "shared_memory_region") == NULL) {
        return HTH_OK;
    }
    if (out->binary || out->classes > 0) {
        return hth_fail(HTH_EINVAL,
                        "output '%s' in shared memory can be neither binary_data nor a "
                        "classification",
                        out->name);
    }
    return read_shared(c, parameters, out->name, &out->at, &out->room);
}

static hth_err read_outputs(hth_infer_call *c)
{
    json_t *list, *output;
    size_t i;
    HTH_TRY(hth_field(c->head, "outputs", JSON_ARRAY, "an array", &list));
    size_t n = json_array_size(list);
    if (n == 0) {
        return HTH_OK;
    }
    if (n > HTH_INFER_MAX_TENSORS) {
        return hth_fail(HTH_EINVAL, "more than %d outputs", HTH_INFER_MAX_TENSORS);
    }
    c->wanted = hth_calloc(n, sizeof *c->wanted);
    if (c->wanted == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    json_array_foreach(list, i, output)
    {
        HTH_TRY(read_output(c, output, &c->wanted[i]));
    }
    c->n_wanted = (int)n;
    return HTH_OK;
}

// ---- the whole

hth_err hth_infer_head(hth_infer_call *c)
{
    const char *text = hth_http_header(c->c.req, "Inference-Header-Content-Length");
    size_t whole = evbuffer_get_length(evhttp_request_get_input_buffer(c->c.req));
    c->head_bytes = whole;
    if (text == NULL) {
        return HTH_OK;
    }
    size_t n = strspn(text, "0123456789");
    unsigned long long v = n > 0 && n < 19 && text[n] == 0 ? strtoull(text, NULL, 10) : whole + 1;
    if (v > whole) {
        return hth_fail(HTH_EINVAL,
                        "Unable to parse Inference-Header-Content-Length, got '%.40s' and a body "
                        "of %zu bytes",
                        text, whole);
    }
    c->head_bytes = (size_t)v;
    return HTH_OK;
}

// read_text parses the head. A thread does not look for what was seen before: it has long ones.
static hth_err read_text(reading *s, const char *text)
{
    hth_infer_call *c = s->c;
    return c->taken == NULL ? hth_head_cache_request(&c->c.h->seen, text, s->head_bytes, s->data,
                                                     HTH_INFER_MAX_TENSORS, &c->counted, &c->head)
                            : hth_json_request(text, s->head_bytes, s->data, HTH_INFER_MAX_TENSORS,
                                               &c->counted, &c->head);
}

hth_err hth_infer_read(hth_infer_call *c)
{
    reading s;
    s.c = c;
    s.body = c->body;
    s.head_bytes = c->head_bytes;
    s.binary_bytes = s.text_bytes = 0;
    json_t *id;
    memset(s.data, 0, sizeof s.data);
    memset(s.binary, 0, sizeof s.binary);
    memset(s.here, 0, sizeof s.here);
    if (s.head_bytes == 0) {
        return hth_fail(HTH_EINVAL, "the request has no body");
    }
    const char *text = (const char *)evbuffer_pullup(s.body, (ev_ssize_t)s.head_bytes);
    if (text == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    HTH_TRY(read_text(&s, text));
    if (!json_is_object(c->head)) {
        return hth_fail(HTH_EINVAL, "the request is not a JSON object");
    }
    HTH_TRY(hth_field(c->head, "id", JSON_STRING, "a string", &id));
    c->id = id != NULL ? json_string_value(id) : "";
    HTH_TRY(hth_infer_read_parameters(c));
    HTH_TRY(read_outputs(c));
    return read_inputs(&s);
}
