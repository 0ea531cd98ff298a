// SPDX-License-Identifier: Apache-2.0
// Images over HTTP: clients that each send one image after the other, as a binary tensor of a
// batch of one (600 KB for ResNet-50), to a hearthd of its own, and in turns to other servers of
// the Open Inference Protocol. Prints a JSON line for each: images per second (of all windows and
// of each), latencies, memory (Pss of its processes), how far its answer is from hearth's, relative
// to the largest output; for hearth also weights and arenas by its ledger. Exits with 1 on an error
// or another answer.
//
// usage, from the root: serve_images [OPTION VALUE]..
//   --model FILE.onnx  --clients N (8)  --seconds S (10, a round)  --rounds N (1)
//   --also PORT:MODEL:PID   another server on this machine, up to 4 times
#include "tests/bench/http_client.h"

#include <math.h>
#include <pthread.h>

#define TARGETS 5

typedef struct target {
    const char *model;
    int port;
    pid_t pid;
    int images, errors;
    double seconds, off; // off: its answer from hearth's
    series ms, windows;  // windows: images per second of each
} target;

typedef struct worker {
    pthread_t thread;
    const target *to;
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
    http_open(&c, w->to->port, w->to->model, w->in);
    for (uint64_t t0 = hth_now_ns(), t1; t0 < w->until_ns; t0 = t1) {
        w->errors += http_infer(&c, w->in->data, &out, &bytes) != 200;
        t1 = hth_now_ns();
        series_add(&w->ms, (double)(t1 - t0) / 1e6);
    }
    http_close(&c);
    return NULL;
}

// All clients for `seconds`, added to what *t counts.
static void run(target *t, const hearth_tensor *in, int clients, double seconds)
{
    worker *w = calloc((size_t)clients, sizeof *w);
    uint64_t from = hth_now_ns(), until = from + (uint64_t)(seconds * 1e9);
    int before = t->images;
    check(w == NULL, "memory");
    for (int i = 0; i < clients; i++) {
        w[i] = (worker){.to = t, .in = in, .until_ns = until};
        check(pthread_create(&w[i].thread, NULL, work, &w[i]) != 0, "a thread");
    }
    for (int i = 0; i < clients; i++) {
        pthread_join(w[i].thread, NULL);
        t->images += w[i].ms.n;
        t->errors += w[i].errors;
        for (int k = 0; k < w[i].ms.n; k++) {
            series_add(&t->ms, w[i].ms.ms[k]);
        }
        free(w[i].ms.ms);
    }
    double took = (double)(hth_now_ns() - from) / 1e9;
    t->seconds += took;
    series_add(&t->windows, (t->images - before) / took);
    free(w);
}

static void warm_up(const target *t, const hearth_tensor *in, int clients, double seconds)
{
    target warm = *t;
    run(&warm, in, clients, seconds);
    free(warm.ms.ms);
    free(warm.windows.ms);
}

static double *answer(const target *t, const hearth_tensor *in, int *n)
{
    http_client c;
    const void *out;
    size_t bytes;
    http_open(&c, t->port, t->model, in);
    check(http_infer(&c, in->data, &out, &bytes) != 200, "a first answer");
    *n = (int)(bytes / sizeof(float));
    double *v = malloc((size_t)*n * sizeof *v + 1);
    check(v == NULL, "memory");
    for (int i = 0; i < *n; i++) {
        v[i] = ((const float *)out)[i];
    }
    http_close(&c);
    return v;
}

static void compare(target *targets, int count, const hearth_tensor *in)
{
    int n, m;
    double *want = answer(&targets[0], in, &n), most = 0;
    for (int k = 1; k < count; k++) {
        double *is = answer(&targets[k], in, &m);
        check(m != n, "an answer of the same size");
        for (int i = 0; i < n; i++) {
            most = fmax(most, fabs(want[i]));
            targets[k].off = fmax(targets[k].off, fabs(is[i] - want[i]));
        }
        targets[k].off /= most;
        targets[k].errors += !(targets[k].off < 1e-3);
        free(is);
    }
    free(want);
}

static double weights_mb(hearth *h)
{
    json_t *doc = serving_ask(h, "stats", "{}");
    json_t *v = json_object_get(json_object_get(doc, "ledger"), "weight_bytes");
    double mb = json_number_value(v) / 1e6;
    json_decref(doc);
    return mb;
}

static json_t *report(target *t, int clients, size_t image_bytes)
{
    json_t *windows = json_array();
    for (int i = 0; i < t->windows.n; i++) {
        json_array_append_new(windows, json_real(t->windows.ms[i]));
    }
    return json_pack("{s:s, s:i, s:i, s:I, s:i, s:f, s:o, s:f, s:f, s:f, s:f}", "model", t->model,
                     "port", t->port, "clients", clients, "image_bytes", (json_int_t)image_bytes,
                     "errors", t->errors, "images_per_second", t->images / t->seconds, "windows",
                     windows, "p50_ms", series_part(&t->ms, 0.5), "p99_ms",
                     series_part(&t->ms, 0.99), "pss_mb", (double)process_kib(t->pid, "Pss:") / 1e3,
                     "off", t->off);
}

static void report_ledger(json_t *line, hearth *h, double one_mb)
{
    json_t *doc = serving_ask(h, "stats", "{}"), *l = json_object_get(doc, "ledger");
    const char *const keys[] = {"weight_bytes", "mapped_bytes", "arena_bytes"};
    for (int i = 0; i < 3; i++) {
        json_object_set(line, keys[i], json_object_get(l, keys[i]));
    }
    json_object_set_new(line, "weights_one_client_mb", json_real(one_mb));
    json_decref(doc);
}

static int parse(int argc, char **argv, target *targets, const char **file, int *clients,
                 int *rounds, double *seconds)
{
    int n = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        *file = strcmp(argv[i], "--model") == 0 ? argv[i + 1] : *file;
        *clients = strcmp(argv[i], "--clients") == 0 ? atoi(argv[i + 1]) : *clients;
        *rounds = strcmp(argv[i], "--rounds") == 0 ? atoi(argv[i + 1]) : *rounds;
        *seconds = strcmp(argv[i], "--seconds") == 0 ? atof(argv[i + 1]) : *seconds;
        if (strcmp(argv[i], "--also") == 0) {
            char *port = strtok(argv[i + 1], ":"), *name = strtok(NULL, ":"),
                 *pid = strtok(NULL, ":");
            check(n == TARGETS || pid == NULL, "--also PORT:MODEL:PID");
            targets[n++] = (target){.model = name, .port = atoi(port), .pid = atoi(pid)};
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    const char *file = "tests/data/digits/digits.onnx";
    int clients = 8, rounds = 1, errors = 0;
    double seconds = 10;
    hearth_import_result r;
    target targets[TARGETS];
    serving s;
    int n = parse(argc, argv, targets, &file, &clients, &rounds, &seconds);
    serving_begin(&s);
    serving_start(&s, "cpu:mem=3GiB", serving_port());
    targets[0] = (target){.model = "m", .port = s.port, .pid = s.pid};
    hearth *h = serving_dial(&s);
    check(hearth_import(h, "m", file, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    hearth_tensor in = serving_input(h, "m", 1);
    json_decref(serving_ask(h, "bench", "{\"model\":\"m\",\"batch\":1,\"seconds\":1}"));
    warm_up(&targets[0], &in, 1, seconds / 3);
    double one_mb = weights_mb(h);
    for (int k = 0; k < n; k++) {
        warm_up(&targets[k], &in, clients, seconds);
    }
    compare(targets, n, &in);
    for (int i = 0; i < rounds * n; i++) {
        run(&targets[i % n], &in, clients, seconds);
    }
    for (int k = 0; k < n; k++) {
        json_t *line = report(&targets[k], clients, in.bytes);
        if (k == 0) {
            report_ledger(line, h, one_mb);
        }
        json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(5));
        putchar('\n');
        json_decref(line);
        errors += targets[k].errors;
    }
    hearth_close(h);
    serving_end(&s);
    return errors > 0;
}
