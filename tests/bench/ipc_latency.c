// SPDX-License-Identifier: Apache-2.0
// What a request to a tiny model costs over a local socket: the p50 of hearth_infer on the digits
// model (256 bytes in, 40 out per image, its computation included), beside the p50 of a bare nng
// request and reply with frames of the same sizes, each server in its own process, in alternating
// rounds of one run. Prints one JSON line per batch. usage, from the root: ipc_latency [SECONDS]
#include "client/hearth.h"
#include "server/server.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FRAME_BYTES 124 // of a frame with one input, in front of the tensor's bytes
#define IN_BYTES    256 // of one image
#define OUT_BYTES   40  // of its scores
#define MAX_SAMPLES 2000000

static void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "%s failed: %s\n", what, hearth_error());
        exit(1);
    }
}

static int serve_bare(const char *url)
{
    nng_socket s;
    nng_msg *m;
    check(nng_rep0_open(&s) || nng_listen(s, url, NULL, 0), "listen");
    while (nng_recvmsg(s, &m, 0) == 0) {
        size_t images = (nng_msg_len(m) - FRAME_BYTES) / IN_BYTES;
        nng_msg_chop(m, images * (IN_BYTES - OUT_BYTES));
        if (nng_sendmsg(s, m, 0) != 0) {
            break;
        }
    }
    return 0;
}

static int serve_hearth(const char *url, const char *store)
{
    hth_server *s;
    check(hth_server_open(&(hth_server_config){.store = store, .listen = &url, .n_listen = 1},
                          &s) != HTH_OK,
          "server");
    return pause();
}

static pid_t start(const char *what, const char *url, const char *store)
{
    pid_t p = fork();
    if (p == 0) {
        execl("/proc/self/exe", "ipc_latency", what, url, store, (char *)NULL);
        _exit(127);
    }
    return p;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

typedef struct series {
    uint64_t *ns;
    int n;
} series;

static void measure_bare(nng_socket s, size_t bytes, uint64_t until, series *out)
{
    for (uint64_t t0 = hth_now_ns(), t1; t0 < until && out->n < MAX_SAMPLES; t0 = t1) {
        nng_msg *m;
        check(nng_msg_alloc(&m, bytes) || nng_sendmsg(s, m, 0) || nng_recvmsg(s, &m, 0), "ping");
        nng_msg_free(m);
        t1 = hth_now_ns();
        out->ns[out->n++] = t1 - t0;
    }
}

static void measure_hearth(hearth *h, const hearth_tensor *in, uint64_t until, series *out)
{
    for (uint64_t t0 = hth_now_ns(), t1; t0 < until && out->n < MAX_SAMPLES; t0 = t1) {
        hearth_tensor *y;
        int n;
        check(hearth_infer(h, "m", in, 1, &y, &n) != HEARTH_OK, "infer");
        hearth_tensors_free(y, n);
        t1 = hth_now_ns();
        out->ns[out->n++] = t1 - t0;
    }
}

static double p50_us(series *s)
{
    qsort(s->ns, (size_t)s->n, sizeof s->ns[0], by_value);
    return (double)s->ns[s->n / 2] / 1e3;
}

static void compare(hearth *h, nng_socket bare, int64_t batch, double seconds)
{
    size_t bytes = (size_t)batch * IN_BYTES;
    series a = {hth_alloc(MAX_SAMPLES * sizeof(uint64_t)), 0},
           b = {hth_alloc(MAX_SAMPLES * sizeof(uint64_t)), 0};
    hearth_tensor in = {.name = "image",
                        .dtype = HEARTH_F32,
                        .rank = 4,
                        .shape = {batch, 1, 8, 8},
                        .data = hth_calloc(1, bytes),
                        .bytes = bytes};
    check(a.ns == NULL || b.ns == NULL || in.data == NULL, "memory");
    for (int round = 0; round < 11; round++) {
        uint64_t each = (uint64_t)(seconds * 1e9 / 22);
        measure_bare(bare, bytes + FRAME_BYTES, hth_now_ns() + each, &a);
        measure_hearth(h, &in, hth_now_ns() + each, &b);
        if (round == 0) {
            a.n = b.n = 0; // warm-up
        }
    }
    double bare_us = p50_us(&a), hearth_us = p50_us(&b);
    printf("{\"batch\":%lld,\"bytes\":%zu,\"bare_p50_us\":%.1f,\"hearth_p50_us\":%.1f,\"ratio\":%."
           "2f}\n",
           (long long)batch, bytes, bare_us, hearth_us, hearth_us / bare_us);
    hth_free(in.data);
    hth_free(a.ns);
    hth_free(b.ns);
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        return strcmp(argv[1], "bare") == 0 ? serve_bare(argv[2]) : serve_hearth(argv[2], argv[3]);
    }
    char dir[] = "/tmp/hearth-latency-XXXXXX", bare_url[64], url[64], store[64], clean[64];
    double seconds = argc > 1 ? atof(argv[1]) : 4;
    static const int64_t batches[] = {1, 16, 256};
    hearth_import_result imported;
    check(mkdtemp(dir) == NULL, "mkdtemp");
    snprintf(bare_url, sizeof bare_url, "ipc://%s/bare", dir);
    snprintf(url, sizeof url, "ipc://%s/sock", dir);
    snprintf(store, sizeof store, "%s/store", dir);
    snprintf(clean, sizeof clean, "rm -rf %s", dir);
    pid_t child[2] = {start("bare", bare_url, store), start("hearth", url, store)};
    hearth *h;
    nng_socket bare;
    check(nng_req0_open(&bare) || nng_socket_set_size(bare, NNG_OPT_RECVMAXSZ, 0), "socket");
    int up = 0;
    for (int i = 0; i < 500 && up != 3; i++) {
        up |= (up & 1) != 0 || nng_dial(bare, bare_url, NULL, 0) == 0 ? 1 : 0;
        up |= (up & 2) != 0 || hearth_open(url, NULL, &h) == HEARTH_OK ? 2 : 0;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    check(up != 3, "connect");
    check(hearth_import(h, "m", "tests/data/digits/digits.onnx", -1, NULL, NULL, &imported) !=
              HEARTH_OK,
          "import");
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        compare(h, bare, batches[i], seconds);
    }
    hearth_close(h);
    nng_close(bare);
    for (int i = 0; i < 2; i++) {
        kill(child[i], SIGTERM);
        waitpid(child[i], NULL, 0);
    }
    return system(clean);
}
