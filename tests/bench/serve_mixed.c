// SPDX-License-Identifier: Apache-2.0
// Several models under a mixed load: clients over a local socket, over HTTP and embedded in their
// own process, each a process that is killed at a random moment and followed by another. Every
// answer is compared with one that was given before the load. The server's memory is looked at
// twice a second; of what is behind the first quarter of the time the slope is printed. One JSON
// line; exits with 1 on a wrong answer, an error, or a ledger that does not sum up.
//
// usage, from the root: serve_mixed [OPTION VALUE]..
//   --seconds S (60)   the long form: 3600
//   --clients N (6)    at a time
//   --model FILE.onnx  one more beside the two of tests/data/digits
#include "tests/bench/http_client.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define MODELS       3
#define INPUTS       4
#define CLIENTS      64
#define SHARED_BYTES ((size_t)64 << 20)

// What all processes map. Clients are programs of their own (nng does not survive a fork): they
// find inputs and expected answers here.
typedef struct shared_model {
    char name[16], input[64];
    int rank;
    int64_t shape[HEARTH_MAX_RANK];
    size_t in_bytes, out_bytes, in[INPUTS], out[INPUTS]; // offsets behind this struct
} shared_model;

typedef struct shared {
    atomic_long answers[3], wrong, errors;
    int n_models, port;
    char url[96], store[96];
    shared_model model[MODELS];
    size_t end;
} shared;

static shared *all;
static const char *const doors[] = {"socket", "http", "embedded"};

static void *shared_at(size_t offset)
{
    return (char *)(all + 1) + offset;
}

static void shared_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    check(fd < 0 || ftruncate(fd, (off_t)SHARED_BYTES) != 0, path);
    all = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(all == MAP_FAILED, "memory");
    close(fd);
}

static hearth_tensor shared_input(const shared_model *model, int k)
{
    hearth_tensor t = {.name = model->input,
                       .dtype = HEARTH_F32,
                       .rank = model->rank,
                       .data = shared_at(model->in[k]),
                       .bytes = model->in_bytes};
    memcpy(t.shape, model->shape, sizeof t.shape);
    return t;
}

static void compare(const shared_model *model, int k, const void *got, size_t bytes)
{
    const float *want = shared_at(model->out[k]), *is = got;
    float most = 0, off = 0;
    bool wrong = bytes != model->out_bytes;
    for (size_t i = 0; i < model->out_bytes / sizeof(float) && !wrong; i++) {
        most = fmaxf(most, fabsf(want[i]));
        off = fmaxf(off, fabsf(is[i] - want[i]));
        wrong = isnan(is[i]);
    }
    all->wrong += wrong || off > 1e-3F * most;
}

// ---- a client, until it is killed

static void ask(hearth *h, const shared_model *model, int k)
{
    hearth_tensor *y, x = shared_input(model, k);
    int n;
    if (hearth_infer(h, model->name, &x, 1, &y, &n) != HEARTH_OK) {
        fprintf(stderr, "%s\n", hearth_error());
        all->errors++;
        return;
    }
    compare(model, k, y[0].data, y[0].bytes);
    hearth_tensors_free(y, n);
}

static void ask_http(http_client *client, const shared_model *model, int k)
{
    const void *out;
    size_t bytes;
    int status = http_infer(client, shared_at(model->in[k]), &out, &bytes);
    if (status != 200) {
        fprintf(stderr, "HTTP %d\n", status);
        all->errors++;
        pause_ns(1e8);
        return;
    }
    compare(model, k, out, bytes);
}

static _Noreturn void client(int door, unsigned seed)
{
    hearth *h = NULL;
    http_client http[MODELS];
    for (int i = 0; i < all->n_models && door == 1; i++) {
        hearth_tensor x = shared_input(&all->model[i], 0);
        http_open(&http[i], all->port, all->model[i].name, &x);
    }
    if (door != 1) {
        hearth_options o = {.store = all->store, .device = "cpu:mem=256MiB,threads=1"};
        check(hearth_open(door == 0 ? all->url : "inproc://", &o, &h) != HEARTH_OK, "connecting");
    }
    for (;;) {
        int i = rand_r(&seed) % all->n_models, k = rand_r(&seed) % INPUTS;
        if (door == 1) {
            ask_http(&http[i], &all->model[i], k);
        } else {
            ask(h, &all->model[i], k);
        }
        all->answers[door]++;
        pause_ns(rand_r(&seed) % 4 == 0 ? 2e6 : 0);
    }
}

static pid_t client_start(const char *path, int door, unsigned seed)
{
    char d[16], s[16];
    snprintf(d, sizeof d, "%d", door);
    snprintf(s, sizeof s, "%u", seed);
    pid_t p = fork();
    if (p == 0) {
        execl("/proc/self/exe", "serve_mixed", "client", path, d, s, (char *)NULL);
        _exit(127);
    }
    return p;
}

// One that has ended by itself is an error.
static void client_end(pid_t p)
{
    int status;
    kill(p, SIGKILL);
    waitpid(p, &status, 0);
    all->errors += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
}

// ---- all

static size_t shared_put(const void *data, size_t bytes)
{
    size_t at = all->end;
    all->end += (bytes + 63) / 64 * 64;
    check(sizeof *all + all->end > SHARED_BYTES, "sharing what is expected");
    memcpy(shared_at(at), data, bytes);
    return at;
}

static void prepare(hearth *h, const char *name, const char *file)
{
    hearth_import_result r;
    shared_model *m = &all->model[all->n_models++];
    snprintf(m->name, sizeof m->name, "%s", name);
    check(hearth_import(h, name, file, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    hearth_tensor x = serving_input(h, name, 1), *y;
    snprintf(m->input, sizeof m->input, "%s", x.name);
    memcpy(m->shape, x.shape, sizeof m->shape);
    m->rank = x.rank;
    m->in_bytes = x.bytes;
    for (int k = 0; k < INPUTS; k++) {
        int n;
        for (size_t i = 0; i < x.bytes / sizeof(float); i++) {
            ((float *)x.data)[i] *= k > 0 ? 0.7F : 1;
        }
        check(hearth_infer(h, name, &x, 1, &y, &n) != HEARTH_OK, "infer");
        m->out_bytes = y[0].bytes;
        m->in[k] = shared_put(x.data, x.bytes);
        m->out[k] = shared_put(y[0].data, y[0].bytes);
        hearth_tensors_free(y, n);
    }
    free(x.data);
}

// Least squares, in MiB per hour.
static double slope(const double *t, const double *kib, int n)
{
    double mt = 0, mk = 0, top = 0, bottom = 0;
    for (int i = 0; i < n; i++) {
        mt += t[i] / n;
        mk += kib[i] / n;
    }
    for (int i = 0; i < n; i++) {
        top += (t[i] - mt) * (kib[i] - mk);
        bottom += (t[i] - mt) * (t[i] - mt);
    }
    return bottom > 0 ? top / bottom / 1024 * 3600 : 0;
}

typedef struct memory {
    double *t, *kib;
    int n, cap;
} memory;

// Clients come and go for `seconds`; returns how many were killed meanwhile.
static int load(const serving *s, const char *path, int clients, double seconds, memory *m)
{
    pid_t pid[CLIENTS];
    int killed = 0;
    unsigned seed = 1, next = 1000;
    for (int i = 0; i < clients; i++) {
        pid[i] = client_start(path, i % 3, next++);
    }
    uint64_t from = hth_now_ns();
    double now = 0, looked = 0;
    while (now < seconds) {
        pause_ns(1e8);
        now = (double)(hth_now_ns() - from) / 1e9;
        if (rand_r(&seed) % 8 == 0) {
            int i = rand_r(&seed) % clients;
            client_end(pid[i]);
            pid[i] = client_start(path, i % 3, next++);
            killed++;
        }
        if (now > seconds / 4 && now - looked >= 0.5 && m->n < m->cap) {
            m->t[m->n] = looked = now;
            m->kib[m->n++] = (double)process_kib(s->pid, "VmRSS:");
        }
    }
    for (int i = 0; i < clients; i++) {
        client_end(pid[i]);
    }
    return killed;
}

static int run(const serving *s, hearth *h, const char *path, int clients, double seconds)
{
    memory m = {.cap = (int)(seconds * 2) + 16};
    m.t = calloc((size_t)m.cap, sizeof *m.t);
    m.kib = calloc((size_t)m.cap, sizeof *m.kib);
    check(m.t == NULL || m.kib == NULL, "memory");
    int killed = load(s, path, clients, seconds, &m);
    json_t *doc = serving_ask(h, "stats", "{}"), *l = json_object_get(doc, "ledger");
    json_int_t off = json_integer_value(json_object_get(l, "difference_bytes"));
    printf("{\"seconds\":%.0f,\"clients\":%d,\"killed\":%d", seconds, clients, killed);
    for (int d = 0; d < 3; d++) {
        printf(",\"answers_%s\":%ld", doors[d], (long)all->answers[d]);
    }
    printf(",\"wrong\":%ld,\"errors\":%ld,\"difference_bytes\":%lld,\"rss_first_mb\":%.2f,"
           "\"rss_last_mb\":%.2f,\"rss_slope_mib_per_hour\":%.2f}\n",
           (long)all->wrong, (long)all->errors, (long long)off, m.kib[0] / 1e3,
           m.n > 0 ? m.kib[m.n - 1] / 1e3 : 0, slope(m.t, m.kib, m.n));
    json_decref(doc);
    free(m.t);
    free(m.kib);
    return all->wrong > 0 || all->errors > 0 || off != 0;
}

int main(int argc, char **argv)
{
    double seconds = 60;
    int clients = 6;
    const char *more = NULL;
    char path[96];
    serving s;
    if (argc == 5 && strcmp(argv[1], "client") == 0) {
        shared_map(argv[2]);
        client(atoi(argv[3]), (unsigned)atoi(argv[4]));
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        seconds = strcmp(argv[i], "--seconds") == 0 ? atof(argv[i + 1]) : seconds;
        clients = strcmp(argv[i], "--clients") == 0 ? atoi(argv[i + 1]) : clients;
        more = strcmp(argv[i], "--model") == 0 ? argv[i + 1] : more;
    }
    check(clients < 1 || clients > CLIENTS, "counting the clients");
    serving_begin(&s);
    snprintf(path, sizeof path, "%s/shared", s.dir);
    shared_map(path);
    serving_start(&s, "cpu:mem=2GiB", serving_port());
    all->port = s.port;
    snprintf(all->url, sizeof all->url, "%s", s.url);
    snprintf(all->store, sizeof all->store, "%s/store", s.dir);
    hearth *h = serving_dial(&s);
    prepare(h, "digits", "tests/data/digits/digits.onnx");
    prepare(h, "parity", "tests/data/digits/digits-parity.onnx");
    if (more != NULL) {
        prepare(h, "more", more);
    }
    int bad = run(&s, h, path, clients, seconds);
    hearth_close(h);
    serving_end(&s);
    return bad;
}
