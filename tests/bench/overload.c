// SPDX-License-Identifier: Apache-2.0
// A server under more load than it can bear, over HTTP on loopback: what it can do is measured with
// a few clients that wait for their answers; then requests with a timeout arrive at FACTOR times
// that rate, whatever becomes of the others. Admitted requests must start in time: those that are
// answered with a result against those that expire in the queue; the rest is refused on arrival.
// usage: overload [MODEL.onnx STORE [FACTOR [SECONDS [TIMEOUT_MS [ROWS]]]]]; without a model: the
// digits of the tests, ROWS samples a request.
#include "base/clock.h"
#include "base/compare.h"
#include "runtime/catalog.h"
#include "runtime/machine.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS  256
#define WARM_CLIENTS 8
#define MAX_ANSWERS  4000000
#define ROW_BYTES    256 // of the digits' images

typedef struct connection {
    int fd;
    bool busy;
    uint64_t sent_ns;
    size_t out_at; // of the request
    size_t got;
    char in[8192]; // 1,000 numbers and a head
} connection;

typedef struct bench {
    int port;
    char *request;
    size_t bytes;
    connection c[CONNECTIONS];
    double *ms; // of the answers with a result
    int n, refused, expired, failed, unsent;
} bench;

static void fail(const char *what)
{
    fprintf(stderr, "overload: %s: %s %s\n", what, hth_err_detail(), strerror(errno));
    exit(1);
}

static void dial(const bench *b, connection *c)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)b->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    *c = (connection){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a) != 0) {
        fail("connect");
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// request writes the one request that all send: binary, small outputs.
static void request(bench *b, int rows, const char *shape, size_t bytes, uint64_t timeout_us)
{
    char head[512], parameters[64] = "";
    if (timeout_us > 0) {
        snprintf(parameters, sizeof parameters, ",\"timeout\":%llu",
                 (unsigned long long)timeout_us);
    }
    int n = snprintf(head, sizeof head,
                     "{\"inputs\":[{\"name\":\"%s\",\"datatype\":\"FP32\",\"shape\":[%d,%s],"
                     "\"parameters\":{\"binary_data_size\":%zu}}],"
                     "\"parameters\":{\"binary_data_output\":true%s}}",
                     getenv("OVERLOAD_INPUT") != NULL ? getenv("OVERLOAD_INPUT") : "image", rows,
                     shape, bytes, parameters);
    free(b->request);
    b->request = calloc(1, 1024 + bytes);
    int m = sprintf(b->request,
                    "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
                    "Inference-Header-Content-Length: %d\r\n\r\n%s",
                    (size_t)n + bytes, n, head);
    b->bytes = (size_t)m + bytes;
}

// push sends what the socket takes.
static void push(bench *b, connection *c)
{
    while (c->out_at < b->bytes) {
        ssize_t n =
            send(c->fd, b->request + c->out_at, b->bytes - c->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0) {
            return;
        }
        c->out_at += (size_t)n;
    }
}

static void begin(bench *b, connection *c)
{
    c->busy = true;
    c->sent_ns = hth_now_ns();
    c->out_at = c->got = 0;
    push(b, c);
}

// answered says that the whole answer is there, and what it was.
static bool answered(const connection *c, int *status)
{
    const char *end = memmem(c->in, c->got, "\r\n\r\n", 4),
               *length = memmem(c->in, c->got, "Content-Length: ", 16);
    for (const char *p = length; p != NULL && p > c->in && p[-1] == '-';) { // not the header's
        size_t at = (size_t)(p - c->in) + 1;
        p = length = memmem(p + 1, c->got - at, "\r\nContent-Length: ", 18);
        length = length != NULL ? length + 2 : NULL;
    }
    if (end == NULL || length == NULL) {
        return false;
    }
    *status = atoi(c->in + 9);
    return c->got >= (size_t)(end + 4 - c->in) + strtoul(length + 16, NULL, 10);
}

static void finish(bench *b, connection *c, int status)
{
    c->busy = false;
    c->in[c->got < sizeof c->in ? c->got : sizeof c->in - 1] = 0;
    if (status == 200 && b->n < MAX_ANSWERS) {
        b->ms[b->n++] = (double)(hth_now_ns() - c->sent_ns) / 1e6;
    } else if (strstr(c->in, "its turn would come") != NULL) {
        b->refused++;
    } else if (strstr(c->in, "Request timeout expired") != NULL) {
        b->expired++;
    } else {
        b->failed++;
    }
}

static void pull(bench *b, connection *c)
{
    int status;
    ssize_t n = recv(c->fd, c->in + c->got, sizeof c->in - 1 - c->got, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        fail("a connection ended");
    }
    c->got += n > 0 ? (size_t)n : 0;
    if (answered(c, &status)) {
        finish(b, c, status);
    }
}

// turn waits until something comes, at most until `until_ns`.
static void turn(bench *b, int n, uint64_t until_ns)
{
    static struct pollfd p[CONNECTIONS];
    uint64_t now = hth_now_ns();
    struct timespec t = {.tv_nsec = until_ns > now ? (long)(until_ns - now) % 1000000000 : 0};
    for (int i = 0; i < n; i++) {
        p[i] =
            (struct pollfd){.fd = b->c[i].busy ? b->c[i].fd : -1,
                            .events = (short)(POLLIN | (b->c[i].out_at < b->bytes ? POLLOUT : 0))};
    }
    if (ppoll(p, (nfds_t)n, &t, NULL) <= 0) {
        return;
    }
    for (int i = 0; i < n; i++) {
        if (p[i].revents & POLLOUT) {
            push(b, &b->c[i]);
        }
        if (p[i].revents & (POLLIN | POLLERR | POLLHUP)) {
            pull(b, &b->c[i]);
        }
    }
}

static void reset(bench *b)
{
    b->n = b->refused = b->expired = b->failed = b->unsent = 0;
}

// closed: `clients` of them, each with one request at a time. Answers a second.
static double closed(bench *b, int clients, double seconds)
{
    uint64_t start = hth_now_ns(), end = start + (uint64_t)(seconds * 1e9);
    reset(b);
    while (hth_now_ns() < end) {
        for (int i = 0; i < clients; i++) {
            if (!b->c[i].busy) {
                begin(b, &b->c[i]);
            }
        }
        turn(b, clients, end);
    }
    double took = (double)(hth_now_ns() - start) / 1e9;
    int n = b->n;
    for (int i = 0; i < clients; i++) {
        while (b->c[i].busy) {
            turn(b, clients, hth_now_ns() + 100000000);
        }
    }
    return n / took;
}

static double uniform(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return ((double)(*state >> 11) + 0.5) * 0x1p-53;
}

// open_loop has requests begin at random, `rate` a second.
static double open_loop(bench *b, double rate, double seconds)
{
    uint64_t start = hth_now_ns(), end = start + (uint64_t)(seconds * 1e9), due = start,
             seed = 88172645463325252u;
    int at = 0;
    reset(b);
    while (hth_now_ns() < end) {
        for (uint64_t now = hth_now_ns(); due <= now;
             due += (uint64_t)(-log(uniform(&seed)) / rate * 1e9)) {
            int tries = 0;
            while (tries < CONNECTIONS && b->c[at].busy) {
                at = (at + 1) % CONNECTIONS;
                tries++;
            }
            if (tries == CONNECTIONS) {
                b->unsent++;
            } else {
                begin(b, &b->c[at]);
            }
        }
        turn(b, CONNECTIONS, due < end ? due : end);
    }
    double took = (double)(hth_now_ns() - start) / 1e9;
    int n = b->n;
    for (int i = 0; i < CONNECTIONS; i++) {
        while (b->c[i].busy) {
            turn(b, CONNECTIONS, hth_now_ns() + 100000000);
        }
    }
    return n / took;
}

static long rss_kib(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%*d %ld", &pages) != 1) {
        pages = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv)
{
    static bench b;
    char dir[] = "/tmp/overload-XXXXXX", command[64];
    bool own = argc <= 2 || argv[1][0] == 0;
    const char *model = own ? "tests/data/digits/digits.onnx" : argv[1];
    const char *path = own ? mkdtemp(dir) : argv[2];
    double factor = argc > 3 ? atof(argv[3]) : 3, seconds = argc > 4 ? atof(argv[4]) : 5;
    double timeout_ms = argc > 5 ? atof(argv[5]) : 50;
    int rows = own ? 64 : 1;
    rows = argc > 6 ? atoi(argv[6]) : rows;
    const char *shape = own ? "1,8,8" : "3,224,224";
    size_t bytes = (size_t)rows * (own ? ROW_BYTES : 3 * 224 * 224 * 4);
    hth_store *store = NULL;
    hth_server *server = NULL;
    hth_put_result put;
    if (path == NULL || hth_store_open(path, true, false, &store) != HTH_OK ||
        hth_catalog_import(store, "m", model, -1, NULL, NULL, NULL, &put) != HTH_OK) {
        fail("store");
    }
    hth_store_close(store);
    hth_server_config config = {.store = path, .device = "cpu:threads=1", .http = "127.0.0.1:0"};
    if (hth_server_open(&config, &server) != HTH_OK) {
        fail("server");
    }
    b.port = hth_server_http_port(server);
    b.ms = malloc(MAX_ANSWERS * sizeof *b.ms);
    for (int i = 0; i < CONNECTIONS; i++) {
        dial(&b, &b.c[i]);
    }
    request(&b, rows, shape, bytes, 0);
    closed(&b, WARM_CLIENTS, seconds / 2);
    double capacity = closed(&b, WARM_CLIENTS, seconds / 2);
    if (b.failed > 0) {
        fprintf(stderr, "overload: %s\n", b.c[0].in);
        exit(1);
    }
    long before = rss_kib();
    request(&b, rows, shape, bytes, (uint64_t)(timeout_ms * 1000));
    hth_machine machine = {0}; // where its host takes the processors away no promise holds
    hth_machine_read(&machine);
    double rate = open_loop(&b, capacity * factor, seconds);
    hth_machine_read(&machine);
    qsort(b.ms, (size_t)b.n, sizeof *b.ms, hth_compare_double);
    int admitted = b.n + b.expired;
    printf("%d clients: %.0f requests/s; at %.1f times that: %.0f results/s (%.2f), p50 %.2f ms, "
           "p99 %.2f ms, p99.99 %.2f ms; timeout %.0f ms: %d admitted, %d late (%.4f %%), %d "
           "refused, %d failed, %d not sent; memory %+ld KiB; the host took %.1f %% of the "
           "processors\n",
           WARM_CLIENTS, capacity, factor, rate, rate / capacity, b.n > 0 ? b.ms[b.n / 2] : 0,
           b.n > 0 ? b.ms[(int)((b.n - 1) * 0.99)] : 0,
           b.n > 0 ? b.ms[(int)((b.n - 1) * 0.9999)] : 0, timeout_ms, admitted, b.expired,
           admitted > 0 ? 100.0 * b.expired / admitted : 0.0, b.refused, b.failed, b.unsent,
           rss_kib() - before, 100 * machine.stolen);
    for (int i = 0; i < CONNECTIONS; i++) {
        close(b.c[i].fd);
    }
    hth_server_close(server);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return own ? system(command) : 0;
}
