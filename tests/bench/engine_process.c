// SPDX-License-Identifier: Apache-2.0
// What it costs that the engine is a process of its own: the p50 and p99 of one client's requests
// to an identity model, over each door, of a hearthd whose engine is a thread and of one whose
// engine is a child process, in alternating rounds of one run. Prints one JSON line per door.
// usage, from the root: engine_process [SECONDS per door]
#include "tests/bench/serving.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define LARGE_BYTES 602112 // of an image of 224 x 224
#define MAX_SAMPLES 1000000
#define ROUNDS      10
#define PORT        18640

typedef struct side {
    serving s;
    hearth *ring, *socket;
    int http;
    uint64_t *ns;
    int n;
} side;

static char large[LARGE_BYTES], answer[LARGE_BYTES + 65536];

static void side_start(side *d, const char *process, int port)
{
    char store[100], http[40];
    serving_begin(&d->s);
    snprintf(store, sizeof store, "%s/store", d->s.dir);
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    d->s.port = port;
    d->s.pid = fork();
    if (d->s.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        execl(d->s.hearthd, "hearthd", "--store", store, "--listen", d->s.url, "--device",
              "cpu:mem=256MiB,threads=1", "--http", http, "--allow-client-shm", "true",
              "--engine-process", process, (char *)NULL);
        _exit(127);
    }
    d->ring = serving_dial(&d->s);
    check(hearth_import(d->ring, "ident", "tests/data/http/ident.onnx", -1, NULL, NULL, NULL),
          "import");
    const hearth_options o = {.no_shared_memory = 1};
    check(hearth_open(d->s.url, &o, &d->socket), "connecting");
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int one = 1;
    d->http = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(d->http, (struct sockaddr *)&a, sizeof a) != 0, "connecting");
    setsockopt(d->http, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    d->ns = malloc(MAX_SAMPLES * sizeof *d->ns);
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        check(w <= 0, "write");
        p += w;
        n -= (size_t)w;
    }
}

// http_ask sends a request and reads the whole answer, which must be 200.
static void http_ask(int fd, const char *path, const char *json, const char *data, size_t bytes)
{
    char head[1000];
    size_t n = strlen(json), got = 0, all = 0;
    int h = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
                     "Inference-Header-Content-Length: %zu\r\n\r\n%s",
                     path, n + bytes, n, json);
    write_all(fd, head, (size_t)h);
    write_all(fd, data, bytes);
    while (all == 0 || got < all) {
        ssize_t r = read(fd, answer + got, sizeof answer - 1 - got);
        check(r <= 0, "read");
        got += (size_t)r;
        answer[got] = 0;
        const char *end = all == 0 ? strstr(answer, "\r\n\r\n") : NULL;
        if (end != NULL) {
            const char *length = strcasestr(answer, "\r\nContent-Length:");
            all =
                (size_t)(end + 4 - answer) + (length != NULL ? strtoul(length + 17, NULL, 10) : 0);
        }
    }
    if (strncmp(answer, "HTTP/1.1 200", 12) != 0) {
        fprintf(stderr, "%.400s\n", answer);
        exit(1);
    }
}

static void ask_local(hearth *h, size_t bytes)
{
    hearth_tensor *y, in = {.name = "INPUT0",
                            .dtype = HEARTH_F32,
                            .rank = 1,
                            .shape = {(int64_t)(bytes / 4)},
                            .data = large,
                            .bytes = bytes};
    int n;
    check(hearth_infer(h, "ident", &in, 1, &y, &n), "infer");
    hearth_tensors_free(y, n);
}

static void ask_ring(side *d)
{
    ask_local(d->ring, 64);
}

static void ask_socket(side *d)
{
    ask_local(d->socket, 64);
}

static void http_infer(side *d, size_t bytes)
{
    char json[300];
    snprintf(json, sizeof json,
             "{\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[%zu],"
             "\"parameters\":{\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":\"OUTPUT0\","
             "\"parameters\":{\"binary_data\":true}}]}",
             bytes / 4, bytes);
    http_ask(d->http, "/v2/models/ident/infer", json, large, bytes);
}

static void ask_http(side *d)
{
    http_infer(d, 64);
}

static void ask_http_large(side *d)
{
    http_infer(d, LARGE_BYTES);
}

static void ask_http_shm(side *d)
{
    char json[500];
    snprintf(json, sizeof json,
             "{\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[%d],"
             "\"parameters\":{\"shared_memory_region\":\"in\",\"shared_memory_byte_size\":%d}}],"
             "\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{\"shared_memory_region\":\"out\","
             "\"shared_memory_byte_size\":%d}}]}",
             LARGE_BYTES / 4, LARGE_BYTES, LARGE_BYTES);
    http_ask(d->http, "/v2/models/ident/infer", json, "", 0);
}

static void regions_make(const side *d)
{
    static const char *const names[] = {"in", "out"};
    for (int i = 0; i < 2; i++) {
        char key[64], path[100], json[200];
        snprintf(key, sizeof key, "/hearth-bench-%d-%s", (int)d->s.pid, names[i]);
        int fd = shm_open(key, O_CREAT | O_RDWR, 0600);
        check(fd < 0 || ftruncate(fd, LARGE_BYTES) != 0, "shared memory");
        close(fd);
        snprintf(path, sizeof path, "/v2/systemsharedmemory/region/%s/register", names[i]);
        snprintf(json, sizeof json, "{\"key\":\"%s\",\"offset\":0,\"byte_size\":%d}", key,
                 LARGE_BYTES);
        http_ask(d->http, path, json, "", 0);
        shm_unlink(key);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(side *d, double part)
{
    qsort(d->ns, (size_t)d->n, sizeof d->ns[0], by_value);
    return (double)d->ns[(size_t)((double)d->n * part)] / 1e3;
}

static void compare(side d[2], const char *door, void (*ask)(side *d), double seconds)
{
    d[0].n = d[1].n = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            side *now = &d[(i + round) % 2];
            uint64_t t0 = hth_now_ns(), t1;
            uint64_t until = t0 + (uint64_t)(seconds * 1e9 / (2 * ROUNDS + 2));
            for (; t0 < until && now->n < MAX_SAMPLES; t0 = t1) {
                ask(now);
                t1 = hth_now_ns();
                now->ns[now->n++] = t1 - t0;
            }
            now->n = round == 0 ? 0 : now->n; // warm-up
        }
    }
    double thread = percentile_us(&d[0], 0.5), child = percentile_us(&d[1], 0.5);
    printf("{\"door\":\"%s\",\"thread_p50_us\":%.1f,\"child_p50_us\":%.1f,\"ratio\":%.2f,"
           "\"thread_p99_us\":%.1f,\"child_p99_us\":%.1f}\n",
           door, thread, child, child / thread, percentile_us(&d[0], 0.99),
           percentile_us(&d[1], 0.99));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static side d[2];
    double seconds = argc > 1 ? atof(argv[1]) : 4;
    side_start(&d[0], "thread", PORT);
    side_start(&d[1], "child", PORT + 1);
    regions_make(&d[0]);
    regions_make(&d[1]);
    compare(d, "local ring, 64 B", ask_ring, seconds);
    compare(d, "local socket, 64 B", ask_socket, seconds);
    compare(d, "HTTP, 64 B", ask_http, seconds);
    compare(d, "HTTP body, 600 KB", ask_http_large, seconds);
    compare(d, "HTTP shared memory, 600 KB", ask_http_shm, seconds);
    for (int i = 0; i < 2; i++) {
        hearth_close(d[i].ring);
        hearth_close(d[i].socket);
        close(d[i].http);
        free(d[i].ns);
        serving_end(&d[i].s);
    }
    return 0;
}
