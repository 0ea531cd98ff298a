// SPDX-License-Identifier: Apache-2.0
// Several clients of one model in memory for one copy of it and 60 % more: hearth, which shares the
// copy, against one private copy per stream, of which then one fits. usage: serve_tight MODEL.onnx
// STORE [CLIENTS [SECONDS]]; the store keeps what was measured of the model's algorithms, which is
// done first, for both: SECONDS 0 does nothing else. Windows have SECONDS behind as many that do
// not count.
//
// A stream is a server of its own here, hearthd with nothing joined: it has a copy of the weights,
// an arena, and 1 or 2 threads. Bytes are those of the ledger for a single request: weights on the
// device, weights that are used where the store maps them, and the arena.
#include "tests/bench/serving.h"

#include <pthread.h>

#define MOST_CLIENTS 64

typedef struct asker {
    const char *url;
    const hearth_tensor *input;
    uint64_t from_ns, until_ns; // answers between them are counted
    series s;
    pthread_t thread;
} asker;

static void *asks(void *arg)
{
    asker *a = arg;
    hearth *h = NULL;
    check(hearth_open(a->url, NULL, &h) != HEARTH_OK, "connecting");
    for (uint64_t now = hth_now_ns(); now < a->until_ns;) {
        hearth_tensor *out;
        int n;
        check(hearth_infer(h, "m", a->input, 1, &out, &n) != HEARTH_OK, "infer");
        hearth_tensors_free(out, n);
        uint64_t end = hth_now_ns();
        if (end >= a->from_ns && end <= a->until_ns) {
            series_add(&a->s, (double)(end - now) / 1e6);
        }
        now = end;
    }
    hearth_close(h);
    return NULL;
}

static double number(const json_t *doc, const char *group, const char *key)
{
    return json_number_value(json_object_get(json_object_get(doc, group), key));
}

typedef struct bytes {
    double weights, mapped, arena;
} bytes;

static bytes bytes_of(hearth *h)
{
    json_t *doc = serving_ask(h, "stats", "{}");
    bytes b = {number(doc, "ledger", "weight_bytes"), number(doc, "ledger", "mapped_bytes"),
               number(doc, "ledger", "compute_arena_bytes")};
    json_decref(doc);
    return b;
}

// print_runs says how many runs of how many samples there were.
static void print_runs(hearth *h)
{
    json_t *doc = serving_ask(h, "stats", "{}"), *row;
    const json_t *m = json_array_get(json_object_get(doc, "models"), 0);
    size_t i;
    printf("%44s", "samples of a run, and runs:");
    json_array_foreach(json_object_get(m, "batches"), i, row)
    {
        printf("  %lld: %lld", (long long)json_integer_value(json_object_get(row, "samples")),
               (long long)json_integer_value(json_object_get(row, "runs")));
    }
    printf("; concurrent runs: %lld\n",
           (long long)json_integer_value(json_object_get(m, "concurrent_runs")));
    json_decref(doc);
}

static double whole(bytes b)
{
    return b.weights + b.mapped + b.arena;
}

static void stop(serving *s, hearth *h)
{
    hearth_close(h);
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
}

// measure starts a server with this device; answers per second of all clients.
static double measure(const char *what, serving *s, const char *device, const hearth_tensor *input,
                      int clients, double seconds, bytes *after)
{
    static asker a[MOST_CLIENTS];
    series all = {0};
    serving_start(s, device, 0);
    hearth *h = serving_dial(s);
    uint64_t now = hth_now_ns();
    for (int i = 0; i < clients; i++) {
        a[i] = (asker){.url = s->url,
                       .input = input,
                       .from_ns = now + (uint64_t)(seconds * 1e9),
                       .until_ns = now + (uint64_t)(seconds * 2e9)};
        check(pthread_create(&a[i].thread, NULL, asks, &a[i]) != 0, "a thread");
    }
    for (int i = 0; i < clients; i++) {
        pthread_join(a[i].thread, NULL);
        for (int k = 0; k < a[i].s.n; k++) {
            series_add(&all, a[i].s.ms[k]);
        }
        free(a[i].s.ms);
    }
    *after = bytes_of(h);
    double rate = (double)all.n / seconds;
    printf("%-30s %7.2f /s  p50 %8.1f ms  weights %6.1f MB  mapped %6.1f MB  arena %6.1f MB\n",
           what, rate, all.n > 0 ? series_part(&all, 0.5) : 0, after->weights / 1e6,
           after->mapped / 1e6, after->arena / 1e6);
    if (clients > 1 && s->flag == NULL) {
        print_runs(h);
    }
    fflush(stdout);
    stop(s, h);
    free(all.ms);
    return rate;
}

static json_t *bench(hearth *h, int batch)
{
    char q[80];
    snprintf(q, sizeof q, "{\"model\":\"m\",\"batch\":%d,\"seconds\":0.5}", batch);
    return serving_ask(h, "bench", q);
}

// prepare imports the model, measures its algorithms, for one thread, for two, and for joined runs
// that may fit in 1.6 copies; *copy: what a request of one sample takes.
static hearth_tensor prepare(serving *s, const char *model, int clients, bytes *copy)
{
    hearth_import_result imported;
    hearth_tensor *out;
    int n;
    serving_start(s, "cpu:mem=16GiB,threads=1", 0);
    hearth *h = serving_dial(s);
    check(hearth_import(h, "m", model, -1, NULL, NULL, &imported) != HEARTH_OK, "import");
    json_decref(bench(h, 1));
    stop(s, h);
    serving_start(s, "cpu:mem=16GiB,threads=2", 0);
    h = serving_dial(s);
    json_decref(bench(h, 1));
    hearth_tensor input = serving_input(h, "m", 1);
    json_decref(serving_ask(h, "unload", "{\"model\":\"m\"}"));
    check(hearth_infer(h, "m", &input, 1, &out, &n) != HEARTH_OK, "infer");
    hearth_tensors_free(out, n);
    *copy = bytes_of(h);
    bool larger = true;
    for (int batch = 4; batch <= clients && larger; batch *= 2) {
        json_t *doc = bench(h, batch);
        double weights = json_number_value(json_object_get(doc, "weight_bytes")),
               arena = json_number_value(json_object_get(doc, "arena_bytes"));
        larger = json_integer_value(json_object_get(doc, "slice")) == 0 &&
                 weights + copy->mapped + 2 * arena <= 1.6 * whole(*copy);
        json_decref(doc);
    }
    stop(s, h);
    return input;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: serve_tight MODEL.onnx STORE [CLIENTS [SECONDS]]\n");
        return 2;
    }
    int clients = argc > 3 ? atoi(argv[3]) : 16;
    double seconds = argc > 4 ? atof(argv[4]) : 10;
    char one[96], tight[96], alone[96];
    check(clients < 1 || clients > MOST_CLIENTS, "1 to 64 clients");
    serving s;
    serving_begin(&s);
    s.store = argv[2];
    bytes copy, after, first;
    hearth_tensor input = prepare(&s, argv[1], clients, &copy);
    double memory = 1.6 * whole(copy);
    printf("a private copy: %.1f MB (weights %.1f, mapped %.1f, arena %.1f); memory: %.1f MB\n",
           whole(copy) / 1e6, copy.weights / 1e6, copy.mapped / 1e6, copy.arena / 1e6,
           memory / 1e6);
    // a page more than the sums: what the device rounds
    snprintf(alone, sizeof alone, "cpu:mem=%.0f,threads=1", copy.weights + copy.arena + 65536);
    snprintf(one, sizeof one, "cpu:mem=%.0f,threads=2", copy.weights + copy.arena + 65536);
    snprintf(tight, sizeof tight, "cpu:mem=%.0f,threads=2", memory - copy.mapped);
    if (seconds > 0) {
        s.flag = "--batch-max=1";
        double thread =
            measure("one private copy, 1 thread", &s, alone, &input, clients, seconds, &after);
        double both =
            measure("one private copy, 2 threads", &s, one, &input, clients, seconds, &after);
        s.flag = NULL;
        double shared = measure("hearth, all clients", &s, tight, &input, clients, seconds, &after);
        double single = measure("hearth, 1 client", &s, tight, &input, 1, seconds, &first);
        printf("hearth / one private copy with 1 thread: %.2fx, with 2: %.2fx; / 1 client: %.2fx\n",
               shared / thread, shared / both, single > 0 ? shared / single : 0);
        printf("weights with %d clients: %.3fx those with 1; %.2f MB for each further stream\n",
               clients, (after.weights + after.mapped) / (first.weights + first.mapped),
               clients > 1 ? (whole(after) - whole(first)) / 1e6 / (clients - 1) : 0);
    }
    char command[96];
    snprintf(command, sizeof command, "rm -rf %.63s", s.dir);
    check(system(command), "removing a folder");
    return 0;
}
