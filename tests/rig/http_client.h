// SPDX-License-Identifier: Apache-2.0
// tests/rig/http_client.h - a client that sends bytes as they are and reads one reply at a time;
// for tests of the HTTP front end.
#ifndef HTH_TESTS_RIG_HTTP_CLIENT_H
#define HTH_TESTS_RIG_HTTP_CLIENT_H

#include "base/test.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

typedef struct reply {
    int status; // 0: the connection ended without one
    char *head, *body;
    size_t bytes; // of the body
    char *whole;
} reply;

static inline int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 300};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline void push(int fd, const void *data, size_t n)
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

static inline const char *header(const reply *r, const char *name)
{
    size_t n = strlen(name);
    for (char *line = strstr(r->head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') {
            return line + 2 + n + 1 + strspn(line + 3 + n, " ");
        }
    }
    return NULL;
}

// pull reads one reply; of a chunked one the chunks as they are. A HEAD's has no body, whatever its
// head says.
static inline reply pull(int fd, bool has_body)
{
    reply r = {.whole = calloc(1, 4096)};
    size_t n = 0, cap = 4095, want = SIZE_MAX, head_bytes = 0;
    bool chunked = false;
    while (n < want) {
        if (n == cap) {
            cap *= 2;
            r.whole = realloc(r.whole, cap + 1);
        }
        size_t most = r.head == NULL || chunked ? 1 : cap - n; // never into the next reply
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
            const char *coding = header(&r, "Transfer-Encoding");
            chunked = coding != NULL && strncmp(coding, "chunked", 7) == 0;
            want = n + (has_body && length != NULL ? strtoull(length, NULL, 10) : 0);
            want = chunked ? SIZE_MAX : want;
            r.bytes = want - n;
            r.status = atoi(r.head + 9);
            head_bytes = n;
        } else if (chunked && memcmp(r.whole + n - 5, "0\r\n\r\n", 5) == 0) {
            r.bytes = n - head_bytes;
            break;
        }
    }
    r.body = r.whole + (n - (r.head != NULL ? r.bytes : 0));
    return r;
}

static inline void reply_free(reply *r)
{
    free(r->head);
    free(r->whole);
}

static inline reply ask(int port, const void *data, size_t n, bool has_body)
{
    int fd = dial(port);
    push(fd, data, n);
    reply r = pull(fd, has_body);
    close(fd);
    return r;
}

// post sends a JSON head and what follows it.
static inline reply post(int port, const char *path, const char *json, const void *data, size_t n)
{
    char head[512];
    size_t json_bytes = strlen(json);
    int head_bytes = snprintf(head, sizeof head,
                              "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
                              "Inference-Header-Content-Length: %zu\r\n\r\n",
                              path, json_bytes + n, json_bytes);
    int fd = dial(port);
    push(fd, head, (size_t)head_bytes);
    push(fd, json, json_bytes);
    push(fd, data, n);
    reply r = pull(fd, true);
    close(fd);
    return r;
}

static inline reply get(int port, const char *path)
{
    char q[128];
    int n = snprintf(q, sizeof q, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    return ask(port, q, (size_t)n, true);
}

static inline void expect_200(const reply *r)
{
    if (r->status != 200) {
        fail_msg("status %d: %.*s", r->status, (int)r->bytes, r->body);
    }
}

// base64 is malloc'd text.
static inline char *base64(const void *data, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    char *out = malloc(n / 3 * 4 + 5), *to = out;
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)p[i] << 16;
        v |= i + 1 < n ? (unsigned)p[i + 1] << 8 : 0;
        v |= i + 2 < n ? p[i + 2] : 0;
        *to++ = digit[v >> 18];
        *to++ = digit[v >> 12 & 63];
        *to++ = i + 1 < n ? digit[v >> 6 & 63] : '=';
        *to++ = i + 2 < n ? digit[v & 63] : '=';
    }
    *to = 0;
    return out;
}

// file_base64 is the content of a file of tests/data/http.
static inline char *file_base64(const char *name)
{
    char path[96], *data = malloc(1 << 16);
    snprintf(path, sizeof path, "tests/data/http/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, 1 << 16, f);
    fclose(f);
    assert_true(n > 0 && n < 1 << 16);
    char *text = base64(data, n);
    free(data);
    return text;
}

#endif
