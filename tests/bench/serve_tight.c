// SPDX-License-Identifier: Apache-2.0
// Several clients of one model in memory for one copy of it and 60 % more: hearth, which shares the
// copy, against one private copy per stream, of which then one fits. usage: serve_tight MODEL.onnx
// STORE [CLIENTS [SECONDS]]; the store keeps what was measured of the model's algorithms.
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

static double whole(bytes b)
{
    return b.weights + b.mapped + b.arena;
}

// So many servers with these options, the clients spread over them; answers per second.
static double measure(const char *what, serving *s, int servers, const char *device,
                      const hearth_tensor *input, int clients, double seconds, bytes *after)
{
    static asker a[MOST_CLIENTS];
    series all = {0};
    hearth *h[2] = {NULL, NULL};
    for (int i = 0; i < servers; i++) {
        serving_start(&s[i], device, 0);
        h[i] = serving_dial(&s[i]);
    }
    uint64_t now = hth_now_ns();
    for (int i = 0; i < clients; i++) {
        a[i] = (asker){.url = s[i % servers].url,
                       .input = input,
                       .from_ns = now + (uint64_t)(seconds * 0.5e9),
                       .until_ns = now + (uint64_t)(seconds * 1.5e9)};
        check(pthread_create(&a[i].thread, NULL, asks, &a[i]) != 0, "a thread");
    }
    for (int i = 0; i < clients; i++) {
        pthread_join(a[i].thread, NULL);
        for (int k = 0; k < a[i].s.n; k++) {
            series_add(&all, a[i].s.ms[k]);
        }
        free(a[i].s.ms);
    }
    *after = bytes_of(h[0]);
    double rate = (double)all.n / seconds;
    printf("%-44s %7.2f /s  p50 %8.1f ms  weights %6.1f MB  mapped %6.1f MB  arena %6.1f MB\n",
           what, rate, all.n > 0 ? series_part(&all, 0.5) : 0, after->weights / 1e6,
           after->mapped / 1e6, after->arena / 1e6);
    fflush(stdout);
    for (int i = 0; i < servers; i++) {
        hearth_close(h[i]);
        kill(s[i].pid, SIGTERM);
        waitpid(s[i].pid, NULL, 0);
    }
    free(all.ms);
    return rate;
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
    serving s[2];
    check(clients < 1 || clients > MOST_CLIENTS, "1 to 64 clients");
    for (int i = 0; i < 2; i++) {
        serving_begin(&s[i]);
        s[i].store = argv[2];
    }
    serving_start(&s[0], "cpu:mem=16GiB,threads=2", 0);
    hearth *h = serving_dial(&s[0]);
    hearth_import_result imported;
    check(hearth_import(h, "m", argv[1], -1, NULL, NULL, &imported) != HEARTH_OK, "import");
    json_decref(serving_ask(h, "bench", "{\"model\":\"m\",\"batch\":1,\"seconds\":1}"));
    hearth_tensor input = serving_input(h, "m", 1);
    json_decref(serving_ask(h, "unload", "{\"model\":\"m\"}"));
    hearth_tensor *out;
    int n;
    check(hearth_infer(h, "m", &input, 1, &out, &n) != HEARTH_OK, "infer");
    hearth_tensors_free(out, n);
    bytes copy = bytes_of(h), after;
    hearth_close(h);
    kill(s[0].pid, SIGTERM);
    waitpid(s[0].pid, NULL, 0);
    double memory = 1.6 * whole(copy);
    printf("a private copy: %.1f MB (weights %.1f, mapped %.1f, arena %.1f); memory: %.1f MB\n",
           whole(copy) / 1e6, copy.weights / 1e6, copy.mapped / 1e6, copy.arena / 1e6,
           memory / 1e6);
    // a page more than the sums: what the device rounds
    snprintf(alone, sizeof alone, "cpu:mem=%.0f,threads=1", copy.weights + copy.arena + 65536);
    snprintf(one, sizeof one, "cpu:mem=%.0f,threads=2", copy.weights + copy.arena + 65536);
    snprintf(tight, sizeof tight, "cpu:mem=%.0f,threads=2", memory - copy.mapped);
    s[0].flag = s[1].flag = "--batch-max=1";
    double best =
               measure("one private copy, 1 thread", s, 1, alone, &input, clients, seconds, &after),
           two =
               measure("one private copy, 2 threads", s, 1, one, &input, clients, seconds, &after);
    best = two > best ? two : best;
    measure("(twice the memory: two copies, 1 thread each)", s, 2, alone, &input, clients, seconds,
            &after);
    s[0].flag = NULL;
    double single = measure("hearth, 1 client", s, 1, tight, &input, 1, seconds, &after),
           shared = 0;
    bytes first = after;
    shared = measure("hearth, all clients", s, 1, tight, &input, clients, seconds, &after);
    printf("hearth / one private copy: %.2fx; all clients / 1 client: %.2fx\n", shared / best,
           single > 0 ? shared / single : 0);
    printf("weights with %d clients: %.3fx those with 1; %.2f MB for each further stream\n",
           clients, (after.weights + after.mapped) / (first.weights + first.mapped),
           clients > 1 ? (whole(after) - whole(first)) / 1e6 / (clients - 1) : 0);
    for (int i = 0; i < 2; i++) {
        char command[96];
        snprintf(command, sizeof command, "rm -rf %.63s", s[i].dir);
        check(system(command), "removing a folder");
    }
    return 0;
}
