// SPDX-License-Identifier: Apache-2.0
// The body of an inference request, split into its JSON and the tensors behind it, or taken as the
// only one (raw binary). The input: how the body comes (fuzz_come), how it is cut, the value of
// Inference-Header-Content-Length with a '\n' behind it ("": there is no such header), the body.
// Tensors must have the bytes that their shapes say, and those behind the JSON the body's.
#include "server/http/http_infer.h"
#include "engine/engine_ops.h"

#include <stdlib.h>
#include <string.h>

// An engine whose memory is malloc's; more is not asked of it.
static void *memory_alloc(hth_engine *engine, size_t bytes)
{
    return NULL;
}

static bool memory_free(hth_engine *engine, void *p)
{
    return false;
}

static const hth_engine_ops memory_ops = {.alloc = memory_alloc, .free = memory_free};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

#define FUZZ_BODY (1 << 16)

// What the first byte's two lowest bits say; the others choose a model.
typedef enum fuzz_come { COME_WHOLE, COME_PIECES, COME_BLOCK, COME_CHUNKS } fuzz_come;

typedef struct fuzz_body {
    fuzz_come come;
    const char *model; // the engine's answer, for a raw body
    size_t piece;
    bool taken;          // read as on another thread
    char head_bytes[64]; // the header
    char *p;
    size_t n;
} fuzz_body;

#define MODEL(batch, inputs) "{\"batched\":" batch ",\"max_batch\":4,\"inputs\":[" inputs "]}"
#define INPUT(type, shape)   "{\"name\":\"x\",\"datatype\":\"" type "\",\"shape\":" shape "}"
static const char *const models[] = {
    MODEL("true", INPUT("FP32", "[-1,3]")),
    MODEL("false", INPUT("FP32", "[-1]")),
    MODEL("false", INPUT("BOOL", "[2,-1]")),
    MODEL("false", INPUT("FP32", "[-1,-1]")),
    MODEL("false", INPUT("FP16", "[2,2]")),
    MODEL("false", INPUT("INT64", "[]")),
    MODEL("false", INPUT("INT8", "[0,-1]")),
    MODEL("true", INPUT("UINT8", "[-1,-1]")),
    MODEL("false", INPUT("INT32", "[1,-1,2]") "," INPUT("FP32", "[1]")),
};
#define N_MODELS (sizeof models / sizeof models[0])

static volatile uint8_t fuzz_sink;

static void must(bool right)
{
    if (!right) {
        abort();
    }
}

// unchunk leaves the chunks' data, as far as they are well-formed. In pieces they are the same as
// byte by byte.
static void unchunk(fuzz_body *body)
{
    char *once = malloc(body->n + 1), *data = malloc(body->n + 1);
    hth_chunks one = {HTH_CHUNKS_FIRST, 0}, some = one;
    const char *wrong = NULL, *wrong_too = NULL;
    size_t n = 0;
    memcpy(once, body->p, body->n);
    for (size_t i = 0; i < body->n && wrong == NULL; i++) {
        bool is_data = one.at == HTH_CHUNKS_DATA;
        wrong = hth_chunks_take(&one, &body->p[i], 1);
        data[n] = body->p[i];
        n += is_data;
    }
    for (size_t i = 0; i < body->n && wrong_too == NULL; i += body->piece) {
        wrong_too =
            hth_chunks_take(&some, once + i, body->n - i < body->piece ? body->n - i : body->piece);
    }
    must(wrong == wrong_too && one.at == some.at && one.left == some.left);
    must(memcmp(once, body->p, body->n) == 0);
    free(once);
    free(body->p);
    body->p = data;
    body->n = n;
}

static void block_sent(const void *data, size_t bytes, void *block)
{
    hth_http_block_rele(block);
}

// put_block has the body lie where http_block.c puts a large one.
static void put_block(hth_http *http, hth_http_conn *conn, const fuzz_body *body,
                      struct evbuffer *in)
{
    size_t front = (HTH_INFER_ALIGN - strtoull(body->head_bytes, NULL, 10) % HTH_INFER_ALIGN) %
                   HTH_INFER_ALIGN;
    hth_http_block *block = hth_calloc(1, sizeof *block);
    char *memory = hth_engine_alloc(http->engine, front + body->n);
    *block = (hth_http_block){.h = http,
                              .refs = 2,
                              .bytes = body->n,
                              .come = body->n,
                              .memory = memory,
                              .body = memory + front};
    memcpy(block->body, body->p, body->n);
    http->reserved += body->n;
    conn->block = block;
    evbuffer_add_reference(in, block->body, body->n, block_sent, block);
}

static void put(hth_http *http, hth_http_conn *conn, const fuzz_body *body, struct evbuffer *in)
{
    if (body->come == COME_BLOCK && body->n > 0) {
        put_block(http, conn, body, in);
    } else if (body->come == COME_PIECES) {
        for (size_t i = 0; i < body->n; i += body->piece) {
            size_t some = body->n - i < body->piece ? body->n - i : body->piece;
            evbuffer_add_reference(in, body->p + i, some, NULL, NULL);
        }
    } else {
        evbuffer_add(in, body->p, body->n);
    }
}

static void check_tensor(const hth_tensor *tensor)
{
    size_t bytes = 0;
    must(hth_tensor_bytes(tensor->dtype, &tensor->shape, HTH_LAYOUT_PLAIN, &bytes) == HTH_OK);
    must(bytes == tensor->bytes && tensor->data != NULL);
    for (uint64_t i = 0; i < bytes; i++) {
        uint8_t v = ((const uint8_t *)tensor->data)[i];
        must(tensor->dtype != HTH_DT_BOOL || v < 2);
        fuzz_sink ^= v;
    }
}

// is_copy: the tensor has these bytes, truth values as 0 and 1.
static bool is_copy(const hth_tensor *tensor, const char *p)
{
    const uint8_t *is = tensor->data;
    for (uint64_t i = 0; tensor->dtype == HTH_DT_BOOL && i < tensor->bytes; i++) {
        must(is[i] == (p[i] != 0));
    }
    return tensor->dtype == HTH_DT_BOOL || memcmp(is, p, tensor->bytes) == 0;
}

// check compares what was read with the body: all of it belongs to the JSON or to one tensor.
static void check(const hth_infer_call *call, const fuzz_body *body, bool raw)
{
    size_t head = body->head_bytes[0] != 0 ? strtoull(body->head_bytes, NULL, 10) : body->n;
    size_t at = raw ? 0 : head;
    must(at <= body->n && call->n_in > 0);
    for (int i = 0; i < call->n_in; i++) {
        const json_t *in = json_array_get(json_object_get(call->head, "inputs"), (size_t)i);
        const json_t *parameters = json_object_get(in, "parameters");
        check_tensor(&call->in[i].t);
        if (raw || json_object_get(parameters, "binary_data_size") != NULL) {
            must(call->in[i].t.bytes <= body->n - at && is_copy(&call->in[i].t, body->p + at));
            at += call->in[i].t.bytes;
        }
    }
    must(at == body->n);
    for (int i = 0; i < call->n_wanted; i++) {
        must(call->wanted[i].name != NULL && call->wanted[i].at == NULL);
    }
}

static hth_err decode(hth_http *http, const fuzz_body *body)
{
    static const hth_http_args args = {.name = "m", .spec = "m"};
    hth_http_conn conn = {.h = http};
    hth_http_req *req = &conn.req;
    struct evbuffer *in = evbuffer_new();
    *req = (hth_http_req){.conn = &conn, .body = in};
    req->head.json_bytes = body->head_bytes[0] != 0 ? body->head_bytes : NULL;
    put(http, &conn, body, in);
    hth_infer_call *c = hth_infer_new(http, req, &args);
    bool raw = hth_infer_is_raw(req);
    c->model = raw ? json_loads(body->model, 0, NULL) : NULL;
    c->arrived = hth_http_block_of(&conn, in);
    c->body = in;
    hth_err err = raw ? HTH_OK : hth_infer_head(c);
    if (body->taken) { // as for another thread
        c->body = c->taken = evbuffer_new();
        evbuffer_add_buffer(c->taken, in);
    }
    if (err == HTH_OK) {
        err = raw ? hth_infer_read_raw(c) : hth_infer_read(c);
    }
    hth_http_block_done(&conn, in);
    if (err == HTH_OK) {
        check(c, body, raw);
    }
    hth_http_call_free(&c->c);
    evbuffer_free(in);
    must(http->reserved == 0);
    return err;
}

static bool take(const uint8_t *bytes, size_t n, fuzz_body *body)
{
    const uint8_t *line = n > 2 ? memchr(bytes + 2, '\n', n - 2) : NULL;
    size_t head = line != NULL ? (size_t)(line - bytes) - 2 : 0;
    if (line == NULL || head >= sizeof body->head_bytes || n > FUZZ_BODY ||
        memchr(bytes + 2, '\r', head) != NULL) { // no header has such a value
        return false;
    }
    *body = (fuzz_body){.come = bytes[0] & 3, .piece = (size_t)bytes[1] + 1};
    body->model = models[(bytes[0] >> 2) % N_MODELS];
    memcpy(body->head_bytes, bytes + 2, head);
    body->n = n - head - 3;
    body->p = malloc(body->n + 1);
    memcpy(body->p, line + 1, body->n);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static hth_engine engine = {.ops = &memory_ops};
    static hth_http h;
    fuzz_body b;
    if (!take(bytes, n, &b)) {
        return -1;
    }
    if (h.engine == NULL) {
        h.engine = &engine;
        must(hth_auth_open("", "", &h.auth) == HTH_OK);
        must(hth_shm_open(false, h.engine, &h.shm) == HTH_OK);
    }
    if (b.come == COME_CHUNKS) {
        unchunk(&b);
    }
    hth_err first = decode(&h, &b);
    must(decode(&h, &b) == first); // the JSON may have been kept
    b.taken = true;
    must(decode(&h, &b) == first);
    hth_json_cache_fini(&h.seen);
    free(b.p);
    return 0;
}
