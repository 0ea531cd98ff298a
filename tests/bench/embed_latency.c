// SPDX-License-Identifier: Apache-2.0
// What an inference costs with the engine inside this process, beside onnxruntime's Run from C
// with inputs and outputs bound once: the digits model (256 bytes in, 40 out), and 600 KB in and
// out of a model that returns its input, by one thread and by two, in alternating rounds of one
// run. Prints one JSON line per kind, times in microseconds; `model` is what the engine counts for
// the model itself. usage, from the root: embed_latency [SECONDS [LIBONNXRUNTIME.so]]
#include "tests/bench/latency.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS      8
#define MAX_SAMPLES 2000000
#define MAX_THREADS 2
#define LARGE       150528 // floats: an image of 224x224

// ---- onnxruntime, by its C API (version 1 of its table, which later ones
// only append to)

typedef struct ort_base {
    const void *const *(*api)(uint32_t version);
    const char *(*version)(void);
} ort_base;

enum {
    ORT_ERROR_TEXT = 2,
    ORT_ENV = 3,
    ORT_SESSION = 7,
    ORT_RUN = 9,
    ORT_OPTIONS = 10,
    ORT_THREADS = 24,
    ORT_TENSOR = 49,
    ORT_MEMORY = 69,
};

typedef struct ort {
    const void *const *api;
    void *env, *memory;
} ort;

typedef struct ort_model {
    const ort *o;
    void *session;
    const char *in_name, *out_name;
} ort_model;

typedef void *(*ort_make)(void **out);
typedef void *(*ort_set)(void *options, int n);
typedef void *(*ort_read)(const void *env, const char *path, const void *options, void **out);
typedef void *(*ort_run)(void *session, const void *options, const char *const *in_names,
                         const void *const *in, size_t n_in, const char *const *out_names,
                         size_t n_out, void **out);

static void ort_check(const ort *o, void *status, const char *what)
{
    if (status != NULL) {
        const char *(*text)(const void *status);
        memcpy(&text, &o->api[ORT_ERROR_TEXT], sizeof text);
        fprintf(stderr, "onnxruntime: %s: %s\n", what, text(status));
        exit(1);
    }
}

static bool ort_open(const char *library, ort *o)
{
    void *so = library != NULL ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
    ort_base *(*base)(void) = NULL;
    if (so == NULL) {
        fprintf(stderr, "without onnxruntime: %s\n", library != NULL ? dlerror() : "not named");
        return false;
    }
    *(void **)&base = dlsym(so, "OrtGetApiBase");
    check(base == NULL, "OrtGetApiBase");
    o->api = base()->api(1);
    fprintf(stderr, "onnxruntime %s\n", base()->version());
    void *(*env)(int level, const char *name, void **out);
    void *(*memory)(int allocator, int type, void **out);
    memcpy(&env, &o->api[ORT_ENV], sizeof env);
    memcpy(&memory, &o->api[ORT_MEMORY], sizeof memory);
    ort_check(o, env(3, "bench", &o->env), "environment");
    ort_check(o, memory(0, 0, &o->memory), "memory");
    return true;
}

static ort_model ort_load(const ort *o, const char *path, int threads, const char *in_name,
                          const char *out_name)
{
    ort_model m = {.o = o, .in_name = in_name, .out_name = out_name};
    void *options = NULL;
    ort_make make;
    ort_set set;
    ort_read load;
    memcpy(&make, &o->api[ORT_OPTIONS], sizeof make);
    memcpy(&set, &o->api[ORT_THREADS], sizeof set);
    memcpy(&load, &o->api[ORT_SESSION], sizeof load);
    ort_check(o, make(&options), "options");
    ort_check(o, set(options, threads), "threads");
    ort_check(o, load(o->env, path, options, &m.session), path);
    return m;
}

static void *ort_tensor(const ort *o, const hearth_tensor *t)
{
    void *out, *(*make)(const void *memory, void *data, size_t bytes, const int64_t *shape,
                        size_t rank, int type, void **value);
    memcpy(&make, &o->api[ORT_TENSOR], sizeof make);
    ort_check(o, make(o->memory, t->data, t->bytes, t->shape, (size_t)t->rank, 1, &out), "tensor");
    return out;
}

// ---- kinds

typedef struct kind {
    const char *name, *model;
    hearth *h;                // NULL: onnxruntime
    bool into;                // into memory of the caller
    const ort_model *session; // of onnxruntime
    hearth_tensor in, out;
    uint64_t *ns;
    int n;
    double model_ns[ROUNDS];
} kind;

typedef struct thread {
    pthread_t t;
    const kind *k;
    uint64_t until, *ns;
    int n, most;
    hearth_tensor in, out; // its own
    void *ort_in, *ort_out;
    ort_run run;
} thread;

static void one(thread *t)
{
    hearth_tensor out = t->out, *y;
    int n;
    if (t->k->h == NULL) {
        const void *in = t->ort_in;
        ort_check(t->k->session->o,
                  t->run(t->k->session->session, NULL, &t->k->session->in_name, &in, 1,
                         &t->k->session->out_name, 1, &t->ort_out),
                  "run");
    } else if (t->k->into) {
        check(hearth_infer_into(t->k->h, t->k->model, &t->in, 1, &out, 1) != HEARTH_OK, "infer");
    } else {
        check(hearth_infer(t->k->h, t->k->model, &t->in, 1, &y, &n) != HEARTH_OK, "infer");
        hearth_tensors_free(y, n);
    }
}

static void *measure(void *arg)
{
    thread *t = arg;
    for (uint64_t t0 = hth_now_ns(), t1; t0 < t->until && t->n < t->most; t0 = t1) {
        one(t);
        t1 = hth_now_ns();
        t->ns[t->n++] = t1 - t0;
    }
    return NULL;
}

static void thread_begin(thread *t, const kind *k, uint64_t each_ns, int room)
{
    *t = (thread){.k = k,
                  .ns = hth_alloc((size_t)room * sizeof(uint64_t) + 8),
                  .most = room,
                  .in = k->in,
                  .out = k->out};
    t->in.data = hth_alloc_aligned(k->in.bytes, 64);
    t->out.data = hth_alloc_aligned(k->out.bytes, 64);
    check(t->ns == NULL || t->in.data == NULL || t->out.data == NULL, "memory");
    memset(t->in.data, 0, k->in.bytes);
    memset(t->out.data, 0, k->out.bytes);
    if (k->session != NULL) {
        t->ort_in = ort_tensor(k->session->o, &t->in);
        t->ort_out = ort_tensor(k->session->o, &t->out);
        memcpy(&t->run, &k->session->o->api[ORT_RUN], sizeof t->run);
    }
    t->until = hth_now_ns() + each_ns;
    check(pthread_create(&t->t, NULL, measure, t), "thread");
}

static void run_round(kind *k, int round, int threads, uint64_t each_ns)
{
    thread t[MAX_THREADS];
    double ns0 = 0, n0 = 0, ns1 = 0, n1 = 0;
    if (k->h != NULL) {
        latency_counted(k->h, &ns0, &n0);
    }
    for (int i = 0; i < threads; i++) {
        thread_begin(&t[i], k, each_ns, (MAX_SAMPLES - k->n) / threads);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(t[i].t, NULL);
        memcpy(k->ns + k->n, t[i].ns, (size_t)t[i].n * sizeof(uint64_t));
        k->n += t[i].n;
        hth_free(t[i].ns);
        hth_free(t[i].in.data);
        hth_free(t[i].out.data);
    }
    if (k->h != NULL) {
        latency_counted(k->h, &ns1, &n1);
        k->model_ns[round] = (ns1 - ns0) / (n1 > n0 ? n1 - n0 : 1);
    }
}

static void compare(kind *k, int n_kinds, int threads, double seconds)
{
    for (int i = 0; i < n_kinds; i++) {
        k[i].n = 0;
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
        printf("{\"model\":\"%s\",\"kind\":\"%s\",\"threads\":%d,\"bytes\":%zu,\"p50\":%.2f,"
               "\"p99\":%.1f",
               k[i].model, k[i].name, threads, k[i].in.bytes, latency_at_us(k[i].ns, k[i].n, 0.5),
               latency_at_us(k[i].ns, k[i].n, 0.99));
        if (k[i].h != NULL) {
            printf(",\"model_us\":%.2f,\"p50_over_model\":%.2f", model,
                   latency_at_us(k[i].ns, k[i].n, 0.5) - model);
        }
        printf("}\n");
        hth_free(k[i].ns);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const char *const file[] = {"tests/data/digits/digits.onnx",
                                       "tests/data/http/ident.onnx"};
    char dir[] = "/tmp/hearth-embed-XXXXXX", clean[64];
    double seconds = argc > 1 ? atof(argv[1]) : 6;
    ort o;
    bool other = ort_open(argc > 2 ? argv[2] : NULL, &o);
    check(mkdtemp(dir) == NULL, "mkdtemp");
    snprintf(clean, sizeof clean, "rm -rf %s", dir);
    hearth *h;
    check(hearth_open("inproc://", &(hearth_options){.store = dir}, &h) != HEARTH_OK, "open");
    check(hearth_import(h, "digits", file[0], -1, NULL, NULL, NULL) != HEARTH_OK ||
              hearth_import(h, "ident", file[1], 0, NULL, NULL, NULL) != HEARTH_OK,
          "import");
    hearth_tensor image = {
        .name = "image", .dtype = HEARTH_F32, .rank = 4, .shape = {1, 1, 8, 8}, .bytes = 256};
    hearth_tensor scores = {.rank = 2, .shape = {1, 10}, .bytes = 40};
    hearth_tensor large = {.name = "INPUT0",
                           .dtype = HEARTH_F32,
                           .rank = 1,
                           .shape = {LARGE},
                           .bytes = LARGE * sizeof(float)};
    hearth_tensor copied = large;
    copied.name = NULL;
    ort_model digits[2], ident[2];
    for (int i = 0; i < 2 && other; i++) {
        digits[i] = ort_load(&o, file[0], 1 + i, "image", "logits");
        ident[i] = ort_load(&o, file[1], 1 + i, "INPUT0", "OUTPUT0");
    }
    kind small[] = {
        {.name = "infer_into", .model = "digits", .h = h, .into = true, .in = image, .out = scores},
        {.name = "infer", .model = "digits", .h = h, .in = image, .out = scores},
        {.name = "onnxruntime, 1 thread",
         .model = "digits",
         .session = &digits[0],
         .in = image,
         .out = scores},
        {.name = "onnxruntime, 2 threads",
         .model = "digits",
         .session = &digits[1],
         .in = image,
         .out = scores}};
    kind big[] = {
        {.name = "infer_into", .model = "ident", .h = h, .into = true, .in = large, .out = copied},
        {.name = "infer", .model = "ident", .h = h, .in = large, .out = copied},
        {.name = "onnxruntime, 1 thread",
         .model = "ident",
         .session = &ident[0],
         .in = large,
         .out = copied},
        {.name = "onnxruntime, 2 threads",
         .model = "ident",
         .session = &ident[1],
         .in = large,
         .out = copied}};
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        compare(small, other ? 4 : 2, threads, seconds);
        compare(big, other ? 4 : 2, threads, seconds);
    }
    hearth_close(h);
    return system(clean);
}
