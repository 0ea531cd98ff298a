// SPDX-License-Identifier: Apache-2.0
// What a request to a tiny model costs over a local socket, and through a ring in shared memory:
// the digits model (256 bytes in, 40 out per image) with hearth_infer, beside a bare nng request
// and reply with frames of the same sizes, each server in its own process, in alternating rounds of
// one run, by one client thread and by four. Then 600 KB in and out
// of a model that returns its input, in plain memory and in a shared buffer. Prints one JSON line
// per kind and batch, times in microseconds; `model` is what the engine counts for the model itself
// (infer_ns): the median of the rounds' means. usage, from the root: ipc_latency [SECONDS]
#include "tests/bench/latency.h"
#include "engine/process/child.h"
#include "server/server.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include <pthread.h>
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
#define MAX_SAMPLES 1000000
#define MAX_THREADS 4
#define ROUNDS      8

static int serve_bare(const char *url)
{
    nng_socket s;
    nng_msg *m;
    check(nng_rep0_open(&s) || nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, 0) ||
              nng_listen(s, url, NULL, 0),
          "listen");
    while (nng_recvmsg(s, &m, 0) == 0) {
        size_t images = (nng_msg_len(m) - FRAME_BYTES) / IN_BYTES;
        nng_msg_chop(m, images * (IN_BYTES - OUT_BYTES));
        if (nng_sendmsg(s, m, 0) != 0) {
            break;
        }
    }
    return 0;
}

static int serve_hearth(const char *url, const char *store, bool child)
{
    hth_server *s;
    hth_server_config config = {.store = store, .listen = &url, .n_listen = 1, .child = child};
    check(hth_server_open(&config, &s) != HTH_OK, "server");
    return pause();
}

static void orphaned(void)
{
    _exit(1);
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

// One kind of request, and what its threads measured.
typedef struct kind {
    const char *name;
    hearth *h; // NULL: bare
    const char *model;
    nng_socket bare;
    hearth_tensor in;
    uint64_t *ns;
    int n;
    double model_ns[ROUNDS]; // of a request, as the engine counted
} kind;

typedef struct thread {
    pthread_t t;
    kind *k;
    uint64_t until, *ns;
    int n, most;
} thread;

static void one_bare(kind *k)
{
    nng_msg *m;
    check(nng_msg_alloc(&m, k->in.bytes + FRAME_BYTES) || nng_sendmsg(k->bare, m, 0) ||
              nng_recvmsg(k->bare, &m, 0),
          "ping");
    nng_msg_free(m);
}

static void one_hearth(kind *k)
{
    hearth_tensor *y;
    int n;
    check(hearth_infer(k->h, k->model, &k->in, 1, &y, &n) != HEARTH_OK, "infer");
    hearth_tensors_free(y, n);
}

static void *measure(void *arg)
{
    thread *t = arg;
    for (uint64_t t0 = hth_now_ns(), t1; t0 < t->until && t->n < t->most; t0 = t1) {
        if (t->k->h == NULL) {
            one_bare(t->k);
        } else {
            one_hearth(t->k);
        }
        t1 = hth_now_ns();
        t->ns[t->n++] = t1 - t0;
    }
    return NULL;
}

static void run_round(kind *k, int round, int threads, uint64_t each_ns)
{
    thread t[MAX_THREADS];
    double ns0 = 0, n0 = 0, ns1 = 0, n1 = 0;
    if (k->h != NULL) {
        latency_counted(k->h, &ns0, &n0);
    }
    int room = (MAX_SAMPLES - k->n) / threads;
    for (int i = 0; i < threads; i++) {
        t[i] = (thread){.k = k,
                        .until = hth_now_ns() + each_ns,
                        .ns = hth_alloc((size_t)room * sizeof(uint64_t) + 8),
                        .most = room};
        check(t[i].ns == NULL || pthread_create(&t[i].t, NULL, measure, &t[i]), "thread");
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(t[i].t, NULL);
        memcpy(k->ns + k->n, t[i].ns, (size_t)t[i].n * sizeof(uint64_t));
        k->n += t[i].n;
        hth_free(t[i].ns);
    }
    if (k->h != NULL) {
        latency_counted(k->h, &ns1, &n1);
        k->model_ns[round] = (ns1 - ns0) / (n1 > n0 ? n1 - n0 : 1);
    }
}

static void compare(kind *k, int n_kinds, int threads, int64_t batch, double seconds)
{
    for (int i = 0; i < n_kinds; i++) {
        k[i].ns = hth_alloc(MAX_SAMPLES * sizeof(uint64_t));
        check(k[i].ns == NULL, "memory");
    }
    for (int round = -1; round < ROUNDS; round++) {
        for (int i = 0; i < n_kinds; i++) {
            run_round(&k[i], round < 0 ? 0 : round, threads,
                      (uint64_t)(seconds * 1e9 / (ROUNDS + 1) / n_kinds));
            k[i].n = round < 0 ? 0 : k[i].n; // warm-up
        }
    }
    for (int i = 0; i < n_kinds; i++) {
        qsort(k[i].ns, (size_t)k[i].n, sizeof k[i].ns[0], latency_by_value);
        qsort(k[i].model_ns, ROUNDS, sizeof k[i].model_ns[0], latency_by_number);
        double model = (k[i].model_ns[ROUNDS / 2 - 1] + k[i].model_ns[ROUNDS / 2]) / 2e3;
        printf("{\"kind\":\"%s\",\"threads\":%d,\"batch\":%lld,\"bytes\":%zu,\"p50\":%.1f,"
               "\"p99\":%.1f,\"model\":%.1f,\"p50_over_model\":%.1f}\n",
               k[i].name, threads, (long long)batch, k[i].in.bytes,
               latency_at_us(k[i].ns, k[i].n, 0.5), latency_at_us(k[i].ns, k[i].n, 0.99), model,
               latency_at_us(k[i].ns, k[i].n, 0.5) - model);
        hth_free(k[i].ns);
    }
    fflush(stdout);
}

static void compare_digits(hearth *ring, hearth *socket, hearth *child, nng_socket bare,
                           double seconds)
{
    static const struct {
        int64_t batch;
        int threads;
    } runs[] = {{1, 1}, {1, 4}, {16, 1}, {256, 1}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        int64_t batch = runs[i].batch;
        size_t bytes = (size_t)batch * IN_BYTES;
        hearth_tensor in = {.name = "image",
                            .dtype = HEARTH_F32,
                            .rank = 4,
                            .shape = {batch, 1, 8, 8},
                            .data = hth_calloc(1, bytes),
                            .bytes = bytes};
        check(in.data == NULL, "memory");
        kind k[] = {{.name = "bare nng", .bare = bare, .in = in},
                    {.name = "socket", .h = socket, .model = "digits", .in = in},
                    {.name = "ring", .h = ring, .model = "digits", .in = in},
                    {.name = "ring, child process", .h = child, .model = "digits", .in = in}};
        if (runs[i].threads == 1) {
            compare(k, 4, 1, batch, seconds);
        } else {
            compare(k + 1, 3, runs[i].threads, batch, seconds); // one socket has one caller
        }
        hth_free(in.data);
    }
}

static void compare_large(hearth *ring, hearth *socket, double seconds)
{
    const size_t bytes = 150528 * sizeof(float);
    void *shared[2], *plain = hth_calloc(1, bytes);
    check(plain == NULL || hearth_buffer_alloc(ring, bytes, &shared[0]) != HEARTH_OK ||
              hearth_buffer_alloc(socket, bytes, &shared[1]) != HEARTH_OK,
          "memory");
    memset(shared[0], 0, bytes);
    memset(shared[1], 0, bytes);
    hearth_tensor in = {.name = "INPUT0",
                        .dtype = HEARTH_F32,
                        .rank = 1,
                        .shape = {(int64_t)(bytes / sizeof(float))},
                        .data = plain,
                        .bytes = bytes};
    kind k[] = {{.name = "socket, plain memory", .h = socket, .model = "ident", .in = in},
                {.name = "ring, plain memory", .h = ring, .model = "ident", .in = in},
                {.name = "socket, shared buffer", .h = socket, .model = "ident", .in = in},
                {.name = "ring, shared buffer", .h = ring, .model = "ident", .in = in}};
    k[2].in.data = shared[1];
    k[3].in.data = shared[0];
    compare(k, 4, 1, 1, seconds);
    hearth_buffer_free(socket, shared[1]);
    hearth_buffer_free(ring, shared[0]);
    hth_free(plain);
}

static void import_models(hearth *h)
{
    hearth_import_result r;
    check(hearth_import(h, "digits", "tests/data/digits/digits.onnx", -1, NULL, NULL, &r) !=
                  HEARTH_OK ||
              hearth_import(h, "ident", "tests/data/http/ident.onnx", 0, NULL, NULL, &r) !=
                  HEARTH_OK,
          "import");
}

// connect_when_up connects to a server that is starting.
static hearth *connect_when_up(const char *url, const hearth_options *options)
{
    hearth *h = NULL;
    for (int i = 0; i < 500 && hearth_open(url, options, &h) != HEARTH_OK; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    check(h == NULL, "connect");
    return h;
}

int main(int argc, char **argv)
{
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){NULL, orphaned});
    }
    if (argc == 4) {
        return strcmp(argv[1], "bare") == 0
                   ? serve_bare(argv[2])
                   : serve_hearth(argv[2], argv[3], strcmp(argv[1], "child") == 0);
    }
    static const char *const servers[] = {"bare", "hearth", "child"};
    char dir[] = "/tmp/hearth-latency-XXXXXX", url[3][64], store[64], clean[64];
    double seconds = argc > 1 ? atof(argv[1]) : 4;
    pid_t pid[3];
    nng_socket bare;
    check(mkdtemp(dir) == NULL, "mkdtemp");
    snprintf(clean, sizeof clean, "rm -rf %s", dir);
    for (int i = 0; i < 3; i++) {
        snprintf(url[i], sizeof url[i], "ipc://%s/%s", dir, servers[i]);
        snprintf(store, sizeof store, "%s/store%d", dir, i);
        pid[i] = start(servers[i], url[i], store);
    }
    hearth *ring = connect_when_up(url[1], NULL);
    hearth *socket = connect_when_up(url[1], &(hearth_options){.no_ring = 1});
    hearth *child = connect_when_up(url[2], NULL);
    check(nng_req0_open(&bare) || nng_socket_set_size(bare, NNG_OPT_RECVMAXSZ, 0) ||
              nng_dial(bare, url[0], NULL, 0),
          "socket");
    import_models(ring);
    import_models(child);
    compare_digits(ring, socket, child, bare, seconds);
    compare_large(ring, socket, seconds);
    hearth_close(ring);
    hearth_close(socket);
    hearth_close(child);
    nng_close(bare);
    for (int i = 0; i < 3; i++) {
        kill(pid[i], SIGTERM);
        waitpid(pid[i], NULL, 0);
    }
    return system(clean);
}
