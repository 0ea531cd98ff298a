// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol over a real socket, with the real engine and identity models:
// requests as known clients send them, bad requests, values compared bit by bit, large bodies, and
// connections that misbehave.
#include "base/settings.h"
#include "base/test.h"
#include "server/catalog.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <zlib.h>

// How the names of the shared memory begin that this test makes.
#define SHARED "hearth_test_"

typedef struct fixture {
    char dir[64], store[96];
    hth_server *server;
    int port;
} fixture;

typedef struct reply {
    int status; // 0: the connection ended without one
    char *head, *body;
    size_t bytes; // of the body
    char *whole;
} reply;

static void import(hth_store *store, const char *name, const char *file, int max_batch)
{
    char path[96];
    hth_put_result r;
    snprintf(path, sizeof path, "tests/data/http/%s.onnx", file);
    assert_ok(hth_catalog_import(store, name, path, max_batch, NULL, NULL, &r));
}

static int setup(void **state)
{
    static const char *const plain[] = {"ident", "fixed", "two",  "i8",   "u8",  "i32",
                                        "i64",   "u64",   "bool", "fp16", "fp64"};
    fixture *f = calloc(1, sizeof *f);
    hth_store *store;
    strcpy(f->dir, "/tmp/hearth-http-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->store, sizeof f->store, "%s/store", f->dir);
    assert_ok(hth_store_open(f->store, true, false, &store));
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        import(store, plain[i], plain[i], 0);
    }
    import(store, "batch", "batch", 4);
    import(store, "batch2", "batch2", 4);
    import(store, "m", "m", 8);
    import(store, "lm", "ident", 0);
    hth_store_close(store);
    assert_ok(hth_setting_set("limits.message_bytes", "128MiB"));
    hth_server_config config = {.store = f->store,
                                .device = "cpu:mem=1GiB,threads=2",
                                .http = "127.0.0.1:0",
                                .metrics = "127.0.0.1:0",
                                .client_shm = true};
    assert_ok(hth_server_open(&config, &f->server));
    f->port = hth_server_http_port(f->server);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    char command[128];
    hth_server_close(f->server);
    assert_int_equal(system("rm -f /dev/shm/" SHARED "*"), 0);
    snprintf(command, sizeof command, "rm -rf %s", f->dir);
    int rc = system(command);
    free(f);
    return rc;
}

// ---- a client

static int dial(const fixture *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)f->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 30};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void push(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) {
            return; // the server has had enough: its answer says why
        }
        p += sent;
        n -= (size_t)sent;
    }
}

static const char *header(const reply *r, const char *name)
{
    size_t n = strlen(name);
    for (char *line = strstr(r->head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') {
            return line + 2 + n + 1 + strspn(line + 3 + n, " ");
        }
    }
    return NULL;
}

// pull reads one reply. A HEAD's has no body, whatever its head says.
static reply pull(int fd, bool has_body)
{
    reply r = {.whole = calloc(1, 4096)};
    size_t n = 0, cap = 4095, want = SIZE_MAX;
    while (n < want) {
        if (n == cap) {
            cap *= 2;
            r.whole = realloc(r.whole, cap + 1);
        }
        size_t most = r.head == NULL ? 1 : cap - n; // never into the next reply
        most = want - n < most ? want - n : most;
        ssize_t got = recv(fd, r.whole + n, most, 0);
        if (got <= 0) {
            break;
        }
        n += (size_t)got;
        r.whole[n] = 0;
        if (r.head == NULL && n >= 4 && memcmp(r.whole + n - 4, "\r\n\r\n", 4) == 0) {
            if (strncmp(r.whole, "HTTP/1.1 100", 12) == 0) {
                n = 0;
                continue;
            }
            r.head = strdup(r.whole);
            const char *length = header(&r, "Content-Length");
            want = n + (has_body && length != NULL ? strtoull(length, NULL, 10) : 0);
            r.bytes = want - n;
            r.status = atoi(r.head + 9);
        }
    }
    r.body = r.whole + (n - (r.head != NULL ? r.bytes : 0));
    return r;
}

static void reply_free(reply *r)
{
    free(r->head);
    free(r->whole);
}

static reply ask(const fixture *f, const void *data, size_t n, bool has_body)
{
    int fd = dial(f);
    push(fd, data, n);
    reply r = pull(fd, has_body);
    close(fd);
    return r;
}

// post sends a JSON head and what follows it.
static reply post(const fixture *f, const char *path, const char *json, const void *data, size_t n)
{
    char head[512];
    size_t json_bytes = strlen(json);
    int head_bytes = snprintf(head, sizeof head,
                              "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
                              "Inference-Header-Content-Length: %zu\r\n\r\n",
                              path, json_bytes + n, json_bytes);
    int fd = dial(f);
    push(fd, head, (size_t)head_bytes);
    push(fd, json, json_bytes);
    push(fd, data, n);
    reply r = pull(fd, true);
    close(fd);
    return r;
}

// ---- recorded requests

static unsigned char *from_base64(const char *s, size_t *n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char *out = malloc(strlen(s) + 4);
    unsigned bits = 0, held = 0;
    *n = 0;
    for (; *s != 0 && *s != '='; s++) {
        bits = bits << 6 | (unsigned)(strchr(digit, *s) - digit);
        held += 6;
        if (held >= 8) {
            held -= 8;
            out[(*n)++] = (unsigned char)(bits >> held);
        }
    }
    return out;
}

// A request that is being put together.
typedef struct bytes {
    char *p;
    size_t n;
} bytes;

static void append(bytes *b, const void *p, size_t n)
{
    b->p = realloc(b->p, b->n + n + 1);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void append_text(bytes *b, const char *s)
{
    append(b, s, strlen(s));
}

static void append_many(bytes *b, char c, size_t n)
{
    b->p = realloc(b->p, b->n + n + 1);
    memset(b->p + b->n, c, n);
    b->n += n;
}

#define VALID                                                                                      \
    "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[3],\"datatype\":\"FP32\",\"data\":[1,2,3]}]}"

// make_body makes bodies that are too large to be kept in a file.
static void make_body(const char *kind, size_t n, bytes *body, bytes *head)
{
    if (strcmp(kind, "spaces") == 0 || strcmp(kind, "padded") == 0) {
        append_text(body, strcmp(kind, "padded") == 0 ? VALID : "");
        append_many(body, ' ', n);
    } else if (strcmp(kind, "deep") == 0) {
        append_text(body, "{\"inputs\":");
        append_many(body, '[', n);
        append_many(body, ']', n);
        append_text(body, "}");
    } else if (strcmp(kind, "zeros") == 0) {
        char json[400], line[80];
        int json_bytes = snprintf(
            json, sizeof json,
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%zu],\"datatype\":\"FP32\","
            "\"parameters\":{"
            "\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{"
            "\"classification\":1,\"binary_data\":true}}]}",
            n / 4, n);
        append_text(body, json);
        append_many(body, 0, n);
        snprintf(line, sizeof line, "Inference-Header-Content-Length: %d\r\n", json_bytes);
        append_text(head, line);
    } else if (strcmp(kind, "header") == 0) {
        append_text(head, "X-Long: ");
        append_many(head, 'a', n);
        append_text(head, "\r\n");
    } else {
        assert_string_equal(kind, "headers");
        for (size_t i = 0; i < n; i++) {
            append_text(head, "h: 1\r\n");
        }
    }
}

static bytes request_of(const json_t *row)
{
    bytes out = {NULL, 0}, body = {NULL, 0}, head = {NULL, 0};
    const char *raw = json_string_value(json_object_get(row, "raw_b64"));
    const char *made = json_string_value(json_object_get(row, "made")), *key;
    json_t *v;
    if (raw != NULL) {
        out.p = (char *)from_base64(raw, &out.n);
        return out;
    }
    const char *b64 = json_string_value(json_object_get(row, "body_b64"));
    const char *method = json_string_value(json_object_get(row, "method"));
    json_object_foreach(json_object_get(row, "headers"), key, v)
    {
        append_text(&head, key);
        append_text(&head, ": ");
        append_text(&head, json_string_value(v));
        append_text(&head, "\r\n");
    }
    append_text(&out, method);
    append_text(&out, " ");
    append_text(&out, json_string_value(json_object_get(row, "path")));
    if (made != NULL && strncmp(made, "path ", 5) == 0) {
        append_many(&out, 'a', strtoull(made + 5, NULL, 10));
    } else if (made != NULL) {
        char kind[16];
        assert_int_equal(sscanf(made, "%15s", kind), 1);
        make_body(kind, strtoull(made + strlen(kind), NULL, 10), &body, &head);
    } else if (b64 != NULL) {
        body.p = (char *)from_base64(b64, &body.n);
    } else if (json_is_string(json_object_get(row, "body"))) {
        v = json_object_get(row, "body");
        append(&body, json_string_value(v), json_string_length(v));
    }
    append_text(&out, " HTTP/1.1\r\nHost: x\r\n");
    append(&out, head.p != NULL ? head.p : "", head.n);
    if (body.n > 0 || strcmp(method, "POST") == 0) {
        char line[64];
        snprintf(line, sizeof line, "Content-Length: %zu\r\n", body.n);
        append_text(&out, line);
    }
    append_text(&out, "\r\n");
    append(&out, body.p != NULL ? body.p : "", body.n);
    free(head.p);
    free(body.p);
    return out;
}

// expect_error fails unless the body is {"error": "..."} and nothing else.
static void expect_error(const char *name, const reply *r)
{
    json_t *doc = json_loadb(r->body, r->bytes, 0, NULL);
    const char *type = header(r, "Content-Type"),
               *s = json_string_value(json_object_get(doc, "error"));
    if (json_object_size(doc) != 1 || s == NULL || s[0] == 0 || type == NULL ||
        strncmp(type, "application/json\r", 17) != 0) {
        fail_msg("%s: status %d without a JSON error: %.*s", name, r->status, (int)r->bytes,
                 r->body);
    }
    json_decref(doc);
}

static void expect_outputs(const char *name, const reply *r, const json_t *want)
{
    json_t *doc = json_loadb(r->body, r->bytes, 0, NULL);
    if (!json_equal(json_object_get(doc, "outputs"), want)) {
        fail_msg("%s: other outputs: %.*s", name, (int)r->bytes, r->body);
    }
    json_decref(doc);
}

// make_shared makes the shared memory that a request names: 16 floats, 0 to 15.
static void make_shared(const char *body)
{
    const char *key = body != NULL ? strstr(body, SHARED) : NULL;
    float x[16];
    if (key == NULL) {
        return;
    }
    char name[80];
    snprintf(name, sizeof name, "/%.*s", (int)strspn(key, "abcdefghijklmnopqrstuvwxyz_0123456789"),
             key);
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    for (int i = 0; i < 16; i++) {
        x[i] = (float)i;
    }
    assert_int_equal(write(fd, x, sizeof x), sizeof x);
    close(fd);
}

static void replay(const fixture *f, const char *path, int least)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    assert_non_null(file);
    for (; getline(&line, &cap, file) > 0; n++) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *method = json_string_value(json_object_get(row, "method"));
        const json_t *outputs = json_object_get(row, "outputs");
        int want = (int)json_integer_value(json_object_get(row, "status"));
        bool has_body = method == NULL || strcmp(method, "HEAD") != 0;
        bytes q = request_of(row);
        make_shared(json_string_value(json_object_get(row, "body")));
        int fd = dial(f);
        push(fd, q.p, q.n);
        if (want == 0) { // half a request: what else could it be told?
            shutdown(fd, SHUT_WR);
        }
        reply r = pull(fd, has_body);
        if (r.status != want) {
            fail_msg("%s: status %d instead of %d: %.*s", name, r.status, want,
                     (int)(r.bytes < 300 ? r.bytes : 300), r.body);
        }
        if (want >= 400 && has_body) {
            expect_error(name, &r);
        } else if (outputs != NULL) {
            expect_outputs(name, &r, outputs);
        }
        close(fd);
        reply_free(&r);
        free(q.p);
        json_decref(row);
    }
    assert_true(n >= least);
    free(line);
    fclose(file);
}

static void test_golden(void **state)
{
    replay(*state, "tests/data/http/golden.jsonl", 20);
}

static void test_bad(void **state)
{
    replay(*state, "tests/data/http/bad.jsonl", 200);
}

// ---- values

static void expect_200(const reply *r)
{
    if (r->status != 200) {
        fail_msg("status %d: %.*s", r->status, (int)r->bytes, r->body);
    }
}

// Every finite float comes back with the same bits through JSON in both directions, and through
// binary data; so do infinities through binary in, JSON out.
static void test_values(void **state)
{
    enum { N = 4000 };
    static float x[N];
    uint32_t seed = 1;
    char json[256];
    for (int i = 0; i < N; i++) {
        do {
            seed = seed * 1664525u + 1013904223u;
            memcpy(&x[i], &seed, sizeof seed);
        } while (!isfinite(x[i]));
    }
    x[0] = -0.0f;
    x[1] = 16777216.0f;
    x[2] = 0.1f;
    snprintf(json, sizeof json,
             "{\"id\":\"a "
             "\\\"b\\\"\",\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%d],\"datatype\":\"FP32\","
             "\"parameters\":{\"binary_data_size\":%d}}]}",
             N, 4 * N);
    reply r = post(*state, "/v2/models/ident/infer", json, x, sizeof x);
    expect_200(&r);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *data = json_object_get(json_array_get(json_object_get(doc, "outputs"), 0), "data");
    assert_string_equal(json_string_value(json_object_get(doc, "id")), "a \"b\"");
    assert_int_equal(json_array_size(data), N);
    for (size_t i = 0; i < N; i++) {
        float y = (float)json_number_value(json_array_get(data, i));
        assert_memory_equal(&y, &x[i], sizeof y);
    }
    char *text = json_dumps(data, 0);
    char *back = malloc(strlen(text) + 256);
    sprintf(back,
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%d],\"datatype\":\"FP32\",\"data\":%s}],"
            "\"parameters\":{\"binary_data_output\":true}}",
            N, text);
    reply b = post(*state, "/v2/models/ident/infer", back, NULL, 0);
    expect_200(&b);
    size_t head = strtoull(header(&b, "Inference-Header-Content-Length"), NULL, 10);
    assert_int_equal(b.bytes - head, sizeof x);
    assert_memory_equal(b.body + head, x, sizeof x);
    free(back);
    free(text);
    json_decref(doc);
    reply_free(&b);
    reply_free(&r);
}

static void test_large(void **state)
{
    size_t n = 3000000, bytes_in = 4 * n;
    char json[256];
    float *x = malloc(bytes_in);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)i;
    }
    snprintf(
        json, sizeof json,
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%zu],\"datatype\":\"FP32\",\"parameters\":{"
        "\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{"
        "\"binary_data\":true}}]}",
        n, bytes_in);
    for (int round = 0; round < 3; round++) {
        reply r = post(*state, "/v2/models/ident/infer", json, x, bytes_in);
        expect_200(&r);
        size_t head = strtoull(header(&r, "Inference-Header-Content-Length"), NULL, 10);
        assert_int_equal(r.bytes, head + bytes_in);
        assert_memory_equal(r.body + head, x, bytes_in);
        reply_free(&r);
    }
    free(x);
}

static void test_integers(void **state)
{
    static const char *const one[][3] = {
        {"u64", "UINT64", "[0,18446744073709551615,9223372036854775808]"},
        {"i64", "INT64", "[-9223372036854775808,9223372036854775807,-1]"},
        {"i8", "INT8", "[-128,127,0]"},
        {"u8", "UINT8", "[255,0,1]"},
        {"bool", "BOOL", "[true,false,true]"}};
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        char path[64], json[256];
        snprintf(path, sizeof path, "/v2/models/%s/infer", one[i][0]);
        snprintf(
            json, sizeof json,
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[3],\"datatype\":\"%s\",\"data\":%s}]}",
            one[i][1], one[i][2]);
        reply r = post(*state, path, json, NULL, 0);
        expect_200(&r);
        if (strstr(r.body, one[i][2]) == NULL) {
            fail_msg("%s came back as %s", one[i][2], r.body);
        }
        reply_free(&r);
    }
}

// Raw binary: the body is the input, all outputs are binary; a class per row of a batch.
static void test_raw_and_classes(void **state)
{
    static const float x[6] = {1, 9, 9, -3, NAN, -2};
    static const char q[] = "POST /v2/models/batch/infer HTTP/1.1\r\nHost: x\r\n"
                            "Inference-Header-Content-Length: 0\r\nContent-Length: 12\r\n\r\n";
    int fd = dial(*state);
    push(fd, q, sizeof q - 1);
    push(fd, x, 12);
    reply r = pull(fd, true);
    close(fd);
    expect_200(&r);
    assert_non_null(strstr(r.body, "\"shape\":[1,3]"));
    assert_memory_equal(r.body + r.bytes - 12, x, 12);
    reply_free(&r);
    r = post(
        *state, "/v2/models/batch/infer",
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[2,3],\"datatype\":\"FP32\",\"parameters\":"
        "{\"binary_data_size\":24}}],\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{"
        "\"classification\":2}}]}",
        x, sizeof x);
    expect_200(&r);
    assert_non_null(strstr(r.body,
                           "\"datatype\":\"BYTES\",\"shape\":[2,2],\"data\":["
                           "\"9.000000:1\",\"9.000000:2\",\"-2.000000:2\",\"-3.000000:0\"]"));
    reply_free(&r);
}

static reply get(const fixture *f, const char *path)
{
    char q[128];
    int n = snprintf(q, sizeof q, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    return ask(f, q, (size_t)n, true);
}

static json_int_t stats_number(const fixture *f, const char *group, const char *key)
{
    reply r = get(f, "/v2/models/batch2/stats");
    expect_200(&r);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *m = json_array_get(json_object_get(doc, "model_stats"), 0);
    json_t *s = json_object_get(json_object_get(m, "inference_stats"), group);
    json_int_t v = json_integer_value(json_object_get(group[0] != 0 ? s : m, key));
    assert_string_equal(json_string_value(json_object_get(m, "version")), "1");
    json_decref(doc);
    reply_free(&r);
    return v;
}

// inference_count counts elements of the batch, success requests.
static void test_statistics(void **state)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    json_int_t count = stats_number(*state, "", "inference_count");
    json_int_t ok = stats_number(*state, "success", "count");
    json_int_t failed = stats_number(*state, "fail", "count");
    const char *half =
        "{\"name\":\"INPUT%d\",\"shape\":[2,3],\"datatype\":\"%s\",\"data\":[1,2,3,4,5,6]}";
    for (int i = 0; i < 3; i++) {
        char a[160], b[160], json[400];
        snprintf(a, sizeof a, half, 0, "FP32");
        snprintf(b, sizeof b, half, 1, i < 2 ? "FP32" : "INT32");
        snprintf(json, sizeof json, "{\"inputs\":[%s,%s]}", a, b);
        reply r = post(*state, "/v2/models/batch2/infer", json, x, 0);
        assert_int_equal(r.status, i < 2 ? 200 : 400);
        reply_free(&r);
    }
    assert_int_equal(stats_number(*state, "", "inference_count"), count + 4);
    assert_int_equal(stats_number(*state, "success", "count"), ok + 2);
    assert_int_equal(stats_number(*state, "fail", "count"), failed + 1);
    assert_true(stats_number(*state, "compute_infer", "ns") > 0);
}

// What comes out of a small body is bounded while it comes out.
static void test_bomb(void **state)
{
    enum { PIECE = 1 << 20 };
    char head[256], *piece = calloc(1, PIECE);
    bytes z = {malloc(4 << 20), 0};
    z_stream s = {.next_out = (Bytef *)z.p, .avail_out = 4 << 20};
    assert_int_equal(deflateInit(&s, 9), Z_OK);
    for (int i = 0; i <= 200; i++) {
        s.next_in = (Bytef *)piece;
        s.avail_in = i < 200 ? PIECE : 0;
        int rc = deflate(&s, i < 200 ? Z_NO_FLUSH : Z_FINISH);
        assert_int_equal(rc, i < 200 ? Z_OK : Z_STREAM_END);
    }
    z.n = s.total_out;
    deflateEnd(&s);
    int n =
        snprintf(head, sizeof head,
                 "POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 z.n);
    int fd = dial(*state);
    push(fd, head, (size_t)n);
    push(fd, z.p, z.n);
    reply r = pull(fd, true);
    assert_int_equal(r.status, 413);
    close(fd);
    reply_free(&r);
    free(z.p);
    free(piece);
}

// ---- shared memory

static void shm_ask(const fixture *f, const char *path, const char *json)
{
    reply r = post(f, path, json, NULL, 0);
    expect_200(&r);
    reply_free(&r);
}

// A large tensor goes in and out where the client has it; an object that shrank costs its owner the
// result and the server nothing.
static void test_shared(void **state)
{
    enum { N = 100000 };
    int fd = shm_open("/" SHARED "large", O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 8 * N), 0);
    float *x = mmap(NULL, 8 * N, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < N; i++) {
        x[i] = (float)i / 3;
    }
    shm_ask(*state, "/v2/systemsharedmemory/region/large/register",
            "{\"key\":\"/" SHARED "large\",\"byte_size\":800000}");
    static const char q[] =
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[100000],\"datatype\":\"FP32\",\"parameters\":"
        "{"
        "\"shared_memory_region\":\"large\",\"shared_memory_byte_size\":400000}}],\"outputs\":[{"
        "\"name\":\"OUTPUT0\",\"parameters\":{\"shared_memory_region\":\"large\","
        "\"shared_memory_byte_size\":400000,\"shared_memory_offset\":400000}}]}";
    reply r = post(*state, "/v2/models/ident/infer", q, NULL, 0);
    expect_200(&r);
    assert_non_null(
        strstr(r.body, "{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[100000]}"));
    assert_memory_equal(x, x + N, 4 * N);
    reply_free(&r);
    assert_int_equal(ftruncate(fd, 4096), 0);
    r = post(*state, "/v2/models/ident/infer", q, NULL, 0);
    expect_200(&r);
    reply_free(&r);
    shm_ask(*state, "/v2/systemsharedmemory/region/large/unregister", "");
    munmap(x, 8 * N);
    close(fd);
}

static void test_metrics(void **state)
{
    fixture other = **(fixture **)state;
    reply r = get(*state, "/metrics");
    assert_int_equal(r.status, 404);
    reply_free(&r);
    other.port = hth_server_metrics_port(other.server);
    r = get(&other, "/metrics");
    expect_200(&r);
    assert_non_null(
        strstr(r.body, "\nnv_inference_request_success{model=\"ident\",version=\"1\"} "));
    assert_non_null(strstr(r.body, "\nhearth_ledger_free_bytes "));
    assert_non_null(strstr(header(&r, "Content-Type"), "text/plain; charset=utf-8"));
    reply_free(&r);
}

// ---- connections

static void test_pipelined(void **state)
{
    static const char two[] = "GET /v2/models/batch/config HTTP/1.1\r\nHost: x\r\n\r\n"
                              "HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
                              "GET http://x/v2 HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = dial(*state);
    push(fd, two, sizeof two - 1);
    reply a = pull(fd, true), b = pull(fd, false), c = pull(fd, true);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"max_batch_size\":4"));
    assert_non_null(strstr(a.body, "\"dims\":[3]"));
    assert_int_equal(b.status, 405);
    assert_int_equal(c.status, 200);
    assert_non_null(strstr(c.body, "\"name\":\"hearth\""));
    reply_free(&a);
    reply_free(&b);
    reply_free(&c);
    close(fd);
}

static void test_metadata(void **state)
{
    reply r = get(*state, "/v2/models/batch");
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *want = json_pack(
        "{s:s, s:[s], s:s, s:[{s:s, s:s, s:[i, i]}], s:[{s:s, s:s, s:[i, i]}]}", "name", "batch",
        "versions", "1", "platform", "onnx_hearth", "inputs", "name", "INPUT0", "datatype", "FP32",
        "shape", -1, 3, "outputs", "name", "OUTPUT0", "datatype", "FP32", "shape", -1, 3);
    assert_true(json_equal(doc, want));
    json_decref(want);
    json_decref(doc);
    reply_free(&r);
}

static void test_stop(void **state)
{
    fixture *f = *state;
    int idle = dial(f);
    hth_server_stop(f->server);
    char c;
    assert_true(recv(idle, &c, 1, 0) <= 0);
    close(idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metadata),   cmocka_unit_test(test_values),
        cmocka_unit_test(test_integers),   cmocka_unit_test(test_large),
        cmocka_unit_test(test_pipelined),  cmocka_unit_test(test_raw_and_classes),
        cmocka_unit_test(test_statistics), cmocka_unit_test(test_bomb),
        cmocka_unit_test(test_shared),     cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_golden),     cmocka_unit_test(test_bad),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
