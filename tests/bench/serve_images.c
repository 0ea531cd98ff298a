// SPDX-License-Identifier: Apache-2.0
// Images over HTTP: clients that each send one image after the other, as a binary tensor of a
// batch of one (600 KB for ResNet-50), to a hearthd of its own. Prints one JSON line: images per
// second, latencies, and the server's memory: the process's pages, and weights and arenas by its
// ledger.
//
// usage, from the root: serve_images [OPTION VALUE]..
//   --model FILE.onnx  --clients N (8)  --seconds S (10)
#include "tests/bench/http_client.h"

#include <pthread.h>

typedef struct worker {
    pthread_t thread;
    const serving *s;
    const hearth_tensor *in;
    uint64_t until_ns;
    series ms;
    int errors;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    http_client c;
    const void *out;
    size_t bytes;
    http_open(&c, w->s->port, "m", w->in);
    for (uint64_t t0 = hth_now_ns(), t1; t0 < w->until_ns; t0 = t1) {
        w->errors += http_infer(&c, w->in->data, &out, &bytes) != 200;
        t1 = hth_now_ns();
        series_add(&w->ms, (double)(t1 - t0) / 1e6);
    }
    http_close(&c);
    return NULL;
}

// All clients for `seconds`; returns how many images.
static int run(const serving *s, const hearth_tensor *in, int clients, double seconds, series *all,
               int *errors)
{
    worker *w = calloc((size_t)clients, sizeof *w);
    uint64_t until = hth_now_ns() + (uint64_t)(seconds * 1e9);
    int n = 0;
    check(w == NULL, "memory");
    for (int i = 0; i < clients; i++) {
        w[i] = (worker){.s = s, .in = in, .until_ns = until};
        check(pthread_create(&w[i].thread, NULL, work, &w[i]) != 0, "a thread");
    }
    for (int i = 0; i < clients; i++) {
        pthread_join(w[i].thread, NULL);
        n += w[i].ms.n;
        *errors += w[i].errors;
        for (int k = 0; k < w[i].ms.n; k++) {
            series_add(all, w[i].ms.ms[k]);
        }
        free(w[i].ms.ms);
    }
    free(w);
    return n;
}

static double weights_mb(hearth *h)
{
    json_t *doc = serving_ask(h, "stats", "{}");
    json_t *v = json_object_get(json_object_get(doc, "ledger"), "weight_bytes");
    double mb = json_number_value(v) / 1e6;
    json_decref(doc);
    return mb;
}

int main(int argc, char **argv)
{
    const char *model = "tests/data/digits/digits.onnx";
    int clients = 8, errors = 0;
    double seconds = 10;
    hearth_import_result r;
    series warm = {.n = 0}, all = {.n = 0};
    serving s;
    for (int i = 1; i + 1 < argc; i += 2) {
        model = strcmp(argv[i], "--model") == 0 ? argv[i + 1] : model;
        clients = strcmp(argv[i], "--clients") == 0 ? atoi(argv[i + 1]) : clients;
        seconds = strcmp(argv[i], "--seconds") == 0 ? atof(argv[i + 1]) : seconds;
    }
    serving_begin(&s);
    serving_start(&s, "cpu:mem=3GiB", serving_port());
    hearth *h = serving_dial(&s);
    check(hearth_import(h, "m", model, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    hearth_tensor in = serving_input(h, "m", 1);
    json_decref(serving_ask(h, "bench", "{\"model\":\"m\",\"batch\":1,\"seconds\":1}"));
    run(&s, &in, 1, seconds / 3, &warm, &errors);
    double one_mb = weights_mb(h);
    run(&s, &in, clients, seconds / 3, &warm, &errors);
    uint64_t from = hth_now_ns();
    int n = run(&s, &in, clients, seconds, &all, &errors);
    double took = (double)(hth_now_ns() - from) / 1e9;
    json_t *doc = serving_ask(h, "stats", "{}"), *l = json_object_get(doc, "ledger");
    json_t *m = json_array_get(json_object_get(doc, "models"), 0);
    printf("{\"model\":\"%s\",\"clients\":%d,\"image_bytes\":%zu,\"errors\":%d,"
           "\"images_per_second\":%.2f,\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"rss_mb\":%.1f,"
           "\"rss_anon_mb\":%.1f,\"weights_in_store_mb\":%.1f,\"weights_resident_mb\":%.1f,"
           "\"weights_one_client_mb\":%.1f,\"weights_mapped_mb\":%.1f,\"arena_mb\":%.1f}\n",
           strrchr(model, '/') + 1, clients, in.bytes, errors, n / took, series_part(&all, 0.5),
           series_part(&all, 0.99), (double)process_kib(s.pid, "VmRSS:") / 1e3,
           (double)process_kib(s.pid, "RssAnon:") / 1e3,
           json_number_value(json_object_get(m, "weight_bytes")) / 1e6,
           json_number_value(json_object_get(l, "weight_bytes")) / 1e6, one_mb,
           json_number_value(json_object_get(l, "mapped_bytes")) / 1e6,
           json_number_value(json_object_get(l, "arena_bytes")) / 1e6);
    json_decref(doc);
    hearth_close(h);
    serving_end(&s);
    return errors > 0;
}
