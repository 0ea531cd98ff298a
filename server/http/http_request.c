// SPDX-License-Identifier: Apache-2.0
// Reads an inference request: a JSON head and, after it, the bytes of those inputs that say so
// (binary tensor data). Only the head is made contiguous; tensors are used where they came to, if
// that is the engine's memory (http_block.c), or copied there from the pieces in which they
// arrived. Sizes are checked against what has arrived before memory is taken.
#include "server/http/http_infer.h"

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
    bool binary[HTH_INFER_MAX_TENSORS]; // of an input: it is after the head
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
static hth_err read_shared(hth_infer_call *call, const json_t *parameters, const char *tensor,
                           char **at, uint64_t *bytes)
{
    json_t *region;
    uint64_t offset;
    bool sized, placed;
    HTH_TRY(hth_json_field(parameters, "shared_memory_region", JSON_STRING, "a string", &region));
    HTH_TRY(hth_json_field_count(parameters, "shared_memory_byte_size", bytes, &sized));
    HTH_TRY(hth_json_field_count(parameters, "shared_memory_offset", &offset, &placed));
    if (!sized) {
        return hth_fail(HTH_EINVAL, "'shared_memory_byte_size' of tensor '%s' is missing", tensor);
    }
    if (HTH_GROW(call->held, call->n_held, call->cap_held) != 0) {
        return hth_no_memory("a request");
    }
    HTH_TRY(hth_shm_range(call->c.h->shm, call->near ? call->c.tenant : NULL,
                          json_string_value(region), offset, *bytes, at,
                          &call->held[call->n_held]));
    call->n_held++;
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
    HTH_TRY(hth_json_field_count(parameters, "binary_data_size", &bytes, &binary));
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
        if (in->t.dtype == HTH_DT_F16 || in->t.dtype == HTH_DT_BF16) {
            return hth_fail(HTH_EINVAL,
                            "receiving %s data via JSON is not supported. Please use the binary "
                            "data format for input '%s'",
                            hth_dtype_name(in->t.dtype), in->name);
        }
        bool fits =
            s->data[i].p != NULL && hth_json_fits(&s->data[i], hth_shape_elements(&in->t.shape));
        return fits ? HTH_OK : read_too_little(in, &s->data[i]);
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
        return hth_fail(HTH_EINVAL, "Unable to parse 'inputs': an element is not an object");
    }
    HTH_TRY(hth_json_field_needed(input, "name", JSON_STRING, "a string", &name));
    HTH_TRY(hth_json_field_needed(input, "shape", JSON_ARRAY, "an array", &shape));
    HTH_TRY(hth_json_field_needed(input, "datatype", JSON_STRING, "a string", &datatype));
    in->name = json_string_value(name);
    in->t.dtype = hth_infer_dtype_named(json_string_value(datatype));
    if (in->t.dtype == HTH_DT_NONE) {
        return hth_fail(HTH_EINVAL, "invalid datatype '%.32s' for input '%s'",
                        json_string_value(datatype), in->name);
    }
    HTH_TRY(read_shape(shape, in));
    return read_source(s, input, in, i);
}

void hth_infer_clean_bools(const hth_tensor *tensor)
{
    uint8_t *b = tensor->data;
    for (size_t i = 0; tensor->dtype == HTH_DT_BOOL && i < tensor->bytes; i++) {
        b[i] = b[i] != 0;
    }
}

// in_place says that an input is used where its client put it, who may write there meanwhile.
static bool in_place(const hth_tensor *tensor)
{
    return tensor->data != NULL && hth_shared_in_place(tensor) &&
           (uintptr_t)tensor->data % HTH_INFER_ALIGN == 0;
}

// read_after_head finds the inputs after the head. Where the body has come to the engine's memory,
// those that are aligned stay there: nobody else writes to it.
static void read_after_head(reading *s)
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

// read_elsewhere fills the inputs that are not after the head, into a block from `at` on. Those
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
    size_t bytes = 0, copied = 0; // from shared memory
    read_after_head(s);
    for (int i = 0; i < c->n_in; i++) {
        bool there = s->here[i] || in_place(&c->in[i].t);
        bytes += there ? 0 : hth_infer_aligned(c->in[i].t.bytes);
        copied += there || c->in[i].t.data == NULL ? 0 : c->in[i].t.bytes;
        s->text_bytes += s->data[i].p != NULL ? c->in[i].t.bytes : 0;
    }
    if (copied > c->c.h->message_bytes) {
        return hth_fail(HTH_ETOOBIG,
                        "inputs of %zu bytes in shared memory that have to be copied; "
                        "limits.message_bytes is %" PRIu64,
                        copied, c->c.h->message_bytes);
    }
    if (s->text_bytes + copied > READ_COUNTED) {
        HTH_TRY(hth_infer_count(c, s->text_bytes + copied));
    }
    c->data = hth_engine_alloc(c->c.h->engine, bytes + HTH_INFER_ALIGN);
    if (c->data == NULL) {
        return hth_no_memory("inputs of %zu bytes", bytes);
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
    HTH_TRY(hth_json_field_needed(c->head, "inputs", JSON_ARRAY, "an array", &list));
    size_t n = json_array_size(list);
    if (n == 0) {
        return hth_fail(HTH_EINVAL, "the request has no inputs");
    }
    if (n > HTH_INFER_MAX_TENSORS) {
        return hth_fail(HTH_EINVAL, "more than %d inputs", HTH_INFER_MAX_TENSORS);
    }
    c->in = hth_calloc(n, sizeof *c->in);
    if (c->in == NULL) {
        return hth_no_memory("a request");
    }
    c->n_in = (int)n;
    json_array_foreach(list, i, input)
    {
        HTH_TRY(read_input(s, input, &c->in[i], (int)i));
    }
    return read_data(s);
}

// ---- outputs

static hth_err read_output(hth_infer_call *call, const json_t *output, hth_infer_wanted *out)
{
    json_t *name, *parameters = json_object_get(output, "parameters");
    if (!json_is_object(output)) {
        return hth_fail(HTH_EINVAL, "Unable to parse 'outputs': an element is not an object");
    }
    HTH_TRY(hth_json_field_needed(output, "name", JSON_STRING, "a string", &name));
    out->name = json_string_value(name);
    for (const hth_infer_wanted *other = call->wanted; other < out; other++) {
        if (strcmp(other->name, out->name) == 0) {
            return hth_fail(HTH_EINVAL, "output '%s' already exists in request", out->name);
        }
    }
    uint64_t classes;
    bool given;
    HTH_TRY(hth_json_field_count(parameters, "classification", &classes, &given));
    if (classes > HTH_INFER_MAX_CLASSES) {
        return hth_fail(HTH_EINVAL, "classification: more than %d classes of output '%s'",
                        HTH_INFER_MAX_CLASSES, out->name);
    }
    out->classes = (int64_t)classes;
    HTH_TRY(hth_json_field_bool(parameters, "binary_data", &out->binary));
    if (json_object_get(parameters, "shared_memory_region") == NULL) {
        return HTH_OK;
    }
    if (out->binary || out->classes > 0) {
        return hth_fail(HTH_EINVAL,
                        "output '%s' in shared memory can be neither binary_data nor a "
                        "classification",
                        out->name);
    }
    return read_shared(call, parameters, out->name, &out->at, &out->capacity);
}

static hth_err read_outputs(hth_infer_call *call)
{
    json_t *list, *output;
    size_t i;
    HTH_TRY(hth_json_field(call->head, "outputs", JSON_ARRAY, "an array", &list));
    size_t n = json_array_size(list);
    if (n == 0) {
        return HTH_OK;
    }
    if (n > HTH_INFER_MAX_TENSORS) {
        return hth_fail(HTH_EINVAL, "more than %d outputs", HTH_INFER_MAX_TENSORS);
    }
    call->wanted = hth_calloc(n, sizeof *call->wanted);
    if (call->wanted == NULL) {
        return hth_no_memory("a request");
    }
    json_array_foreach(list, i, output)
    {
        HTH_TRY(read_output(call, output, &call->wanted[i]));
    }
    call->n_wanted = (int)n;
    return HTH_OK;
}

// ---- parameters: those that mean something here, and the form of all others, which have no
// effect. Models have no state between requests: a sequence's name, start and end are checked and
// otherwise ignored.

static hth_err check_parameter(const json_t *all, const char *key, const json_t *json)
{
    static const char *const switches[] = {"sequence_start", "sequence_end", "binary_data_output"};
    uint64_t count;
    bool yes;
    if (strncmp(key, "triton_", 7) == 0) {
        return hth_fail(HTH_EINVAL, "parameter keys starting with 'triton_' are reserved: '%.80s'",
                        key);
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (strcmp(key, switches[i]) == 0) {
            return hth_json_field_bool(all, key, &yes);
        }
    }
    if (strcmp(key, "sequence_id") == 0 && !json_is_string(json)) {
        return hth_json_field_count(all, key, &count, &yes);
    }
    return json_is_object(json) || json_is_array(json) || json_is_null(json)
               ? hth_fail(HTH_EINVAL,
                          "parameter '%.80s' is not a string, a number, or a truth value", key)
               : HTH_OK;
}

// read_queueing reads where and how long the request may wait.
static hth_err read_queueing(hth_infer_call *call, const json_t *all)
{
    uint64_t priority;
    bool given;
    HTH_TRY(hth_json_field_count(all, "priority", &priority, &given));
    HTH_TRY(hth_json_field_count(all, "timeout", &call->c.r.timeout_us, &given));
    call->c.r.priority = (uint32_t)priority;
    return priority <= UINT32_MAX
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Unable to parse 'priority': it is larger than %lld",
                          (long long)UINT32_MAX);
}

hth_err hth_infer_read_parameters(hth_infer_call *call)
{
    json_t *all, *v;
    const char *key;
    HTH_TRY(hth_json_field(call->head, "parameters", JSON_OBJECT, "an object", &all));
    json_object_foreach(all, key, v)
    {
        HTH_TRY(check_parameter(all, key, v));
    }
    HTH_TRY(read_queueing(call, all));
    return hth_json_field_bool(all, "binary_data_output", &call->all_binary);
}

// ---- the whole

hth_err hth_infer_head(hth_infer_call *call)
{
    const char *text = call->c.req->head.json_bytes;
    size_t whole = evbuffer_get_length(call->c.req->body);
    call->head_bytes = whole;
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
    call->head_bytes = (size_t)v;
    return HTH_OK;
}

// read_text parses the head. A thread does not look for what was seen before: it has long ones.
static hth_err read_text(reading *s, const char *text)
{
    hth_infer_call *c = s->c;
    return c->taken == NULL ? hth_json_cache_request(&c->c.h->seen, text, s->head_bytes, s->data,
                                                     HTH_INFER_MAX_TENSORS, &c->counted, &c->head)
                            : hth_json_request(text, s->head_bytes, s->data, HTH_INFER_MAX_TENSORS,
                                               &c->counted, &c->head);
}

hth_err hth_infer_read(hth_infer_call *call)
{
    reading s;
    s.c = call;
    s.body = call->body;
    s.head_bytes = call->head_bytes;
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
        return hth_no_memory("a request");
    }
    HTH_TRY(read_text(&s, text));
    if (!json_is_object(call->head)) {
        return hth_fail(HTH_EINVAL, "the request is not a JSON object");
    }
    HTH_TRY(hth_json_field(call->head, "id", JSON_STRING, "a string", &id));
    call->id = id != NULL ? json_string_value(id) : "";
    HTH_TRY(hth_infer_read_parameters(call));
    HTH_TRY(read_outputs(call));
    return read_inputs(&s);
}

// ---- raw: the whole body is the model's only input, and all outputs are binary

bool hth_infer_is_raw(hth_http_req *req)
{
    const char *text = req->head.json_bytes;
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

hth_err hth_infer_read_raw(hth_infer_call *call)
{
    struct evbuffer *body = call->body;
    const json_t *model = call->model;
    const json_t *list = json_object_get(model, "inputs"), *input = json_array_get(list, 0);
    const char *type = json_string_value(json_object_get(input, "datatype"));
    size_t bytes = evbuffer_get_length(body);
    if (json_array_size(list) != 1) {
        return hth_fail(HTH_EINVAL,
                        "Raw request must only have 1 input (found 1) to be deduced but got %zu "
                        "inputs in '%s' model repository",
                        json_array_size(list), call->c.args.name);
    }
    call->in = hth_calloc(1, sizeof *call->in);
    call->block = call->arrived;
    if (call->block != NULL && (uintptr_t)call->block->body % HTH_INFER_ALIGN == 0) {
        call->block->refs++;
    } else {
        call->block = NULL;
        call->data = hth_engine_alloc(call->c.h->engine, bytes + HTH_INFER_ALIGN);
    }
    void *at = call->block != NULL ? call->block->body : call->data;
    if (call->in == NULL || at == NULL) {
        return hth_no_memory("an input of %zu bytes", bytes);
    }
    call->id = "";
    call->all_binary = true;
    call->n_in = 1;
    call->in->name = NULL; // the model's only one
    call->in->t =
        (hth_tensor){.dtype = hth_infer_dtype_named(type != NULL ? type : ""), .data = at};
    call->in->t.bytes = bytes;
    hth_request_tensor named = *call->in;
    named.name = json_string_value(json_object_get(input, "name"));
    HTH_TRY(
        raw_shape(json_object_get(input, "shape"), hth_http_max_batch(model) > 0, bytes, &named));
    call->in->t.shape = named.t.shape;
    if (call->data != NULL) {
        evbuffer_remove(body, call->data, bytes);
    }
    hth_infer_clean_bools(&call->in->t);
    return HTH_OK;
}
