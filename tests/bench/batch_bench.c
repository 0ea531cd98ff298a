// SPDX-License-Identifier: Apache-2.0
// Requests of one sample from several clients of one engine, one by one, in concurrent
// instances and joined, and the latency of a single client. usage: batch_bench [MODEL.onnx STORE
// [CLIENTS [SECONDS]]]; the store keeps what was measured of the model's algorithms. Without a
// model: the digits of the tests.
#include "base/alloc.h"
#include "base/clock.h"
#include "base/compare.h"
#include "base/settings.h"
#include "runtime/catalog.h"
#include "engine/engine.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CLIENTS 64
#define MAX_SAMPLES 1000000

typedef struct client {
    hth_engine *engine;
    hth_request r;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    void *out[8];
    const hth_tensor *input;
    uint64_t until_ns;
    double *ms;
    int n, failed;
    pthread_t thread;
} client;

static void fail(const char *what)
{
    fprintf(stderr, "batch_bench: %s: %s\n", what, hth_err_detail());
    exit(1);
}

static hth_err client_place(hth_request *request, hth_request_tensor *out, int n)
{
    client *c = request->ctx;
    for (int i = 0; i < n && i < 8; i++) {
        c->out[i] = c->out[i] != NULL ? c->out[i] : hth_alloc_aligned(out[i].t.bytes, 64);
        out[i].t.data = c->out[i];
    }
    return HTH_OK;
}

static void client_done(hth_request *request)
{
    client *c = request->ctx;
    pthread_mutex_lock(&c->lock);
    c->done = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static hth_err client_ask(client *c)
{
    c->done = false;
    c->r.place = client_place;
    c->r.done = client_done;
    c->r.ctx = c;
    hth_err err = hth_engine_submit(c->engine, &c->r);
    pthread_mutex_lock(&c->lock);
    while (err == HTH_OK && !c->done) {
        pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    HTH_TRY(err);
    return c->r.err;
}

static void *client_main(void *arg)
{
    client *c = arg;
    hth_request_tensor in = {.t = *c->input};
    for (uint64_t at = hth_now_ns(), now; at < c->until_ns && c->n < MAX_SAMPLES; at = now) {
        c->r = (hth_request){.model = "m", .inputs = &in, .n_inputs = 1};
        c->failed += client_ask(c) != HTH_OK;
        now = hth_now_ns();
        c->ms[c->n++] = (double)(now - at) / 1e6;
    }
    return NULL;
}

static json_t *ask(hth_engine *engine, const char *what, const char *arguments)
{
    client c = {.engine = engine, .r = {.command = hth_command_find(what), .arguments = arguments}};
    pthread_mutex_init(&c.lock, NULL);
    pthread_cond_init(&c.changed, NULL);
    if (client_ask(&c) != HTH_OK) {
        fprintf(stderr, "batch_bench: %s: %s\n", what, c.r.detail);
        exit(1);
    }
    json_t *doc = json_loads(c.r.json, 0, NULL);
    hth_free(c.r.json);
    return doc;
}

typedef struct counts {
    json_int_t executions, concurrent, weights, arena; // arena: of a further concurrent run
} counts;

static counts count(hth_engine *engine)
{
    json_t *doc = ask(engine, "stats", "{\"model\":\"m\"}");
    const json_t *m = json_array_get(json_object_get(doc, "models"), 0);
    counts c = {json_integer_value(json_object_get(m, "executions")),
                json_integer_value(json_object_get(m, "concurrent_runs")),
                json_integer_value(json_object_get(m, "resident_private_bytes")) +
                    json_integer_value(json_object_get(m, "mapped_bytes")),
                json_integer_value(json_object_get(m, "instance_arena_bytes"))};
    json_decref(doc);
    return c;
}

static void phase(hth_engine *engine, const hth_tensor *input, int clients, double seconds,
                  const char *max, const char *spaces)
{
    static client c[MAX_CLIENTS];
    if (hth_setting_set("batch.max", max) != HTH_OK ||
        hth_setting_set("compute.instances", spaces) != HTH_OK) {
        fail("settings");
    }
    counts before = count(engine);
    uint64_t start_ns = hth_now_ns();
    for (int i = 0; i < clients; i++) {
        c[i] = (client){.engine = engine,
                        .input = input,
                        .until_ns = start_ns + (uint64_t)(seconds * 1e9),
                        .ms = malloc(MAX_SAMPLES * sizeof(double))};
        pthread_mutex_init(&c[i].lock, NULL);
        pthread_cond_init(&c[i].changed, NULL);
        pthread_create(&c[i].thread, NULL, client_main, &c[i]);
    }
    int n = 0, failed = 0;
    double *all = malloc(sizeof(double) * MAX_SAMPLES * 2);
    for (int i = 0; i < clients; i++) {
        pthread_join(c[i].thread, NULL);
        int room = 2 * MAX_SAMPLES - n, k = c[i].n < room ? c[i].n : room;
        memcpy(all + n, c[i].ms, (size_t)k * sizeof *all);
        n += k;
        failed += c[i].failed;
        free(c[i].ms);
        for (int o = 0; o < 8; o++) {
            hth_free(c[i].out[o]);
        }
    }
    double took = (double)(hth_now_ns() - start_ns) / 1e9;
    qsort(all, (size_t)n, sizeof *all, hth_compare_double);
    counts after = count(engine);
    double runs = (double)(after.executions - before.executions);
    printf("%2d clients, batch.max %2s, compute.instances %s: %9.1f samples/s, p50 %8.3f ms, p99 "
           "%8.3f "
           "ms, %.2f samples a run, %.2f of the runs concurrent, weights %lld bytes, a further "
           "run %lld, %d failed\n",
           clients, max, spaces, n / took, all[n / 2], all[(int)((n - 1) * 0.99)], n / runs,
           (double)(after.concurrent - before.concurrent) / runs, (long long)after.weights,
           (long long)after.arena, failed);
    fflush(stdout);
    free(all);
}

static hth_tensor sample(hth_engine *engine)
{
    json_t *doc = ask(engine, "model", "{\"model\":\"m\"}"),
           *in = json_array_get(json_object_get(doc, "inputs"), 0), *d;
    hth_tensor t = {.dtype = HTH_DT_F32};
    size_t i;
    json_array_foreach(json_object_get(in, "shape"), i, d)
    {
        json_int_t n = json_integer_value(d);
        json_int_t unknown = i == 0 ? 1 : 224;
        t.shape.dim[t.shape.rank++] = n > 0 ? n : unknown;
    }
    if (hth_tensor_bytes(t.dtype, &t.shape, HTH_LAYOUT_PLAIN, &t.bytes) != HTH_OK ||
        (t.data = hth_alloc_aligned(t.bytes, 64)) == NULL) {
        fail("input");
    }
    float *f = t.data;
    for (size_t k = 0; k < t.bytes / sizeof *f; k++) {
        f[k] = (float)(k * 2654435761u % 1000) / 500 - 1;
    }
    json_decref(doc);
    return t;
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/batch-bench-XXXXXX", command[64];
    const char *model = argc > 2 ? argv[1] : "tests/data/digits/digits.onnx";
    const char *path = argc > 2 ? argv[2] : mkdtemp(dir);
    int clients = argc > 3 ? atoi(argv[3]) : 8;
    double seconds = argc > 4 ? atof(argv[4]) : 1;
    hth_store *store = NULL;
    hth_engine *e = NULL;
    hth_put_result put;
    hth_engine_config config = {.device = "cpu:threads=2"};
    if (clients < 1 || clients > MAX_CLIENTS) {
        fprintf(stderr, "batch_bench: 1 to %d clients\n", MAX_CLIENTS);
        return 2;
    }
    if (hth_store_open(path, true, false, &store) != HTH_OK ||
        hth_catalog_import(store, "m", model, -1, NULL, NULL, NULL, &put) != HTH_OK ||
        hth_engine_open(&config, store, &e) != HTH_OK) {
        fail("open");
    }
    for (int batch = 1; batch <= clients; batch *= 2) { // measures the algorithms
        char arguments[96];
        snprintf(arguments, sizeof arguments, "{\"model\":\"m\",\"batch\":%d,\"seconds\":%g}",
                 batch, seconds / 4);
        json_t *doc = ask(e, "bench", arguments);
        printf("a run of %2d: %9.1f samples/s, in slices of %lld\n", batch,
               json_number_value(json_object_get(doc, "samples_per_second")),
               (long long)json_integer_value(json_object_get(doc, "slice")));
        json_decref(doc);
    }
    hth_tensor input = sample(e);
    for (int round = 0; round < 2; round++) {
        phase(e, &input, 1, seconds, "1", "1");
        phase(e, &input, 1, seconds, "32", "4");
        phase(e, &input, clients, seconds, "1", "1");
        phase(e, &input, clients, seconds, "1", "4");
        phase(e, &input, clients, seconds, "32", "1");
        phase(e, &input, clients, seconds, "32", "4");
    }
    hth_free(input.data);
    hth_engine_close(e);
    hth_store_close(store);
    if (argc <= 2) {
        snprintf(command, sizeof command, "rm -rf %s", dir);
        return system(command);
    }
    return 0;
}
