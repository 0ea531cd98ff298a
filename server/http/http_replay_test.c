// SPDX-License-Identifier: Apache-2.0
// Recorded requests: what known clients send, byte for byte, and bad requests with the status that
// each must get, as a JSON error, or the outputs. What comes back in binary from the identity "m"
// is compared with what was sent. After all of them the server is ready, and the models' memory is
// what it was before the first.
#include "tests/rig/http_rig.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>

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
        if (made != NULL && strncmp(made, "zeros", 5) == 0 &&
            strcasecmp(key, "Inference-Header-Content-Length") == 0) {
            continue; // make_body gives that of what it makes
        }
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

// expect_identity compares the four floats that end a request to "m" with what its answer ends
// with, and returns whether both are there as they are.
static bool expect_identity(const char *name, const bytes *q, const reply *r)
{
    static const char infer[] = "POST /v2/models/m/infer ";
    enum { tail = 4 * sizeof(float) };
    if (r->status != 200 || strncmp(q->p, infer, sizeof infer - 1) != 0 ||
        header(r, "Inference-Header-Content-Length") == NULL ||
        header(r, "Content-Encoding") != NULL ||
        memmem(q->p, q->n, "-Encoding: gzip", 15) != NULL) {
        return false;
    }
    if (q->n < tail || r->bytes < tail ||
        memcmp(q->p + q->n - tail, r->body + r->bytes - tail, tail) != 0) {
        fail_msg("%s: not what was sent came back", name);
    }
    return true;
}

// make_shared makes the shared memory that a request names: 16 floats, 0 to 15.
static void make_shared(const char *body)
{
    const char *key = body != NULL ? strstr(body, shared_prefix()) : NULL;
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

// replay sends the rows of a file, at least `least`, and returns how many were answered by an
// identity in binary.
static int replay(int port, const char *path, int least)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0, same = 0;
    assert_non_null(file);
    for (; getline(&line, &cap, file) > 0; n++) {
        for (char *at = line; (at = strstr(at, SHARED)) != NULL;) {
            memcpy(at, shared_prefix(), sizeof SHARED - 1);
        }
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *method = json_string_value(json_object_get(row, "method"));
        const json_t *outputs = json_object_get(row, "outputs");
        int want = (int)json_integer_value(json_object_get(row, "status"));
        bool has_body = method == NULL || strcmp(method, "HEAD") != 0;
        bytes q = request_of(row);
        make_shared(json_string_value(json_object_get(row, "body")));
        int fd = dial(port);
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
        same += expect_identity(name, &q, &r);
        close(fd);
        reply_free(&r);
        free(q.p);
        json_decref(row);
    }
    assert_true(n >= least);
    free(line);
    fclose(file);
    return same;
}

// turn loads or unloads all models that there are.
static void turn(int port, const char *verb)
{
    reply all = post(port, "/v2/repository/index", "{}", NULL, 0);
    json_t *doc = json_loadb(all.body, all.bytes, 0, NULL), *row;
    size_t i;
    assert_true(json_array_size(doc) > 10);
    json_array_foreach(doc, i, row)
    {
        char path[128];
        snprintf(path, sizeof path, "/v2/repository/models/%s/%s",
                 json_string_value(json_object_get(row, "name")), verb);
        reply r = post(port, path, "{}", NULL, 0);
        expect_200(&r);
        reply_free(&r);
    }
    json_decref(doc);
    reply_free(&all);
}

// ledger_of returns what the metrics say of a device's memory: "hearth_ledger_..." lines.
static char *ledger_of(int port)
{
    reply r = get(port, "/metrics");
    bytes out = {NULL, 0};
    expect_200(&r);
    assert_non_null(strstr(r.body, "\nhearth_ledger_difference_bytes 0\n"));
    assert_non_null(strstr(r.body, "\nhearth_ledger_unclaimed_bytes 0\n"));
    for (const char *at = r.body; (at = strstr(at, "\nhearth_ledger_")) != NULL; at++) {
        append(&out, at, strcspn(at + 1, "\n") + 1);
    }
    append(&out, "\n", 2);
    reply_free(&r);
    return out.p;
}

// replay_whole also compares the ledger, with no model loaded, before the first row with that
// after the last.
static int replay_whole(void **state, const char *path, int least)
{
    const server_rig *f = *state;
    turn(f->port, "unload");
    char *before = ledger_of(f->metrics_port);
    turn(f->port, "load");
    int same = replay(f->port, path, least);
    reply r = get(f->port, "/v2/health/ready");
    expect_200(&r);
    reply_free(&r);
    turn(f->port, "unload");
    char *behind = ledger_of(f->metrics_port);
    assert_string_equal(behind, before);
    turn(f->port, "load");
    free(before);
    free(behind);
    return same;
}

static void test_golden(void **state)
{
    assert_true(replay_whole(state, "tests/data/http/golden.jsonl", 20) >= 4);
}

static void test_bad(void **state)
{
    replay_whole(state, "tests/data/http/bad.jsonl", 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
