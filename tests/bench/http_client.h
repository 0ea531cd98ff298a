// SPDX-License-Identifier: Apache-2.0
// tests/bench/http_client.h - an inference over HTTP with binary tensors, on a connection that is
// kept: no more of a client than a bench needs.
#ifndef HTH_BENCH_HTTP_CLIENT_H
#define HTH_BENCH_HTTP_CLIENT_H

#include "tests/bench/serving.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>

typedef struct http_client {
    int fd, port;
    char *head, *reply; // the request's head with its JSON, the reply's body
    size_t head_bytes, cap, data_bytes;
} http_client;

// http_open dials and writes the head of every request; exits where it cannot.
static inline void http_open(http_client *client, int port, const char *model,
                             const hearth_tensor *in)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char json[512], shape[128] = "";
    int one = 1;
    *client = (http_client){.fd = -1, .port = port, .data_bytes = in->bytes};
    for (int i = 0; i < 500 && client->fd < 0; i++) {
        client->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client->fd, (struct sockaddr *)&a, sizeof a) != 0) {
            close(client->fd);
            client->fd = -1;
            pause_ns(1e7);
        }
    }
    check(client->fd < 0, "connecting over HTTP");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int i = 0; i < in->rank; i++) {
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", i > 0 ? "," : "",
                 (long long)in->shape[i]);
    }
    snprintf(json, sizeof json,
             "{\"inputs\":[{\"name\":\"%s\",\"datatype\":\"FP32\",\"shape\":[%s],\"parameters\":{"
             "\"binary_data_size\":%zu}}],\"parameters\":{\"binary_data_output\":true}}",
             in->name, shape, in->bytes);
    client->head = malloc(1024);
    check(client->head == NULL, "memory");
    client->head_bytes = (size_t)snprintf(client->head, 1024,
                                          "POST /v2/models/%s/infer HTTP/1.1\r\nHost: bench\r\n"
                                          "Content-Length: %zu\r\n"
                                          "Inference-Header-Content-Length: %zu\r\n\r\n%s",
                                          model, strlen(json) + in->bytes, strlen(json), json);
}

static inline void http_close(http_client *client)
{
    close(client->fd);
    free(client->head);
    free(client->reply);
}

static inline int http_push(int fd, const void *data, size_t n, int flags)
{
    for (const char *p = data; n > 0;) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL | flags);
        if (sent <= 0) {
            return -1;
        }
        p += sent;
        n -= (size_t)sent;
    }
    return 0;
}

static inline size_t http_field(const char *head, const char *name)
{
    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n")) {
        size_t n = strlen(name);
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') {
            return strtoull(line + 3 + n, NULL, 10);
        }
    }
    return 0;
}

// http_infer asks once. *out, *bytes: the first output's data, valid until the next call. Returns
// the status; 0: the connection is gone.
static inline int http_infer(http_client *client, const void *data, const void **out, size_t *bytes)
{
    char head[4096];
    size_t n = 0;
    if (http_push(client->fd, client->head, client->head_bytes, MSG_MORE) != 0 ||
        http_push(client->fd, data, client->data_bytes, 0) != 0) {
        return 0;
    }
    char *end = NULL;
    while (end == NULL) {
        ssize_t got = recv(client->fd, head + n, sizeof head - 1 - n, 0);
        if (got <= 0) {
            return 0;
        }
        n += (size_t)got;
        head[n] = 0;
        end = strstr(head, "\r\n\r\n");
        if (end == NULL && n == sizeof head - 1) {
            return 0;
        }
    }
    size_t body = http_field(head, "Content-Length"), at = n - (size_t)(end + 4 - head);
    size_t json = http_field(head, "Inference-Header-Content-Length");
    if (body + 1 > client->cap) {
        client->cap = body + 1;
        client->reply = realloc(client->reply, client->cap);
        check(client->reply == NULL, "memory");
    }
    memcpy(client->reply, end + 4, at);
    while (at < body) {
        ssize_t got = recv(client->fd, client->reply + at, body - at, 0);
        if (got <= 0) {
            return 0;
        }
        at += (size_t)got;
    }
    *out = client->reply + json;
    *bytes = body - json;
    return atoi(head + 9);
}

#endif
