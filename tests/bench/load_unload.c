// SPDX-License-Identifier: Apache-2.0
// Threads that load, ask and unload one model, each in its own time: no error, a ledger that is
// back where it was, and a server whose memory stays. The server runs in its own process. Prints
// one JSON line; exits with 1 where anything of that is not so.
//
// usage, from the root: load_unload [OPTION VALUE]..
//   --threads N (8)  --rounds N (64)    the long form: 32 and 1024
//   --model FILE.onnx
#include "tests/bench/serving.h"

#include <pthread.h>
#include <stdatomic.h>

#define RSS_SLACK_KIB 4096 // the allocator keeps this much, more or less

static atomic_int errors, done;

typedef struct worker {
    pthread_t thread;
    const serving *s;
    const hearth_tensor *in;
    int rounds;
} worker;

static void count(hearth_status s)
{
    if (s != HEARTH_OK) {
        fprintf(stderr, "%s\n", hearth_error());
        errors++;
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    hearth *h = serving_dial(w->s);
    for (int i = 0; i < w->rounds; i++) {
        char *text = NULL;
        hearth_tensor *y = NULL;
        int n = 0;
        count(hearth_query(h, "load", "{\"model\":\"m\"}", NULL, NULL, &text));
        hearth_free(text);
        count(hearth_infer(h, "m", w->in, 1, &y, &n));
        hearth_tensors_free(y, n);
        text = NULL;
        count(hearth_query(h, "unload", "{\"model\":\"m\"}", NULL, NULL, &text));
        hearth_free(text);
        done++;
    }
    hearth_close(h);
    return NULL;
}

typedef struct state {
    json_int_t used, difference;
    long rss_kib;
} state;

static state state_now(hearth *h, const serving *s)
{
    json_t *doc = serving_ask(h, "stats", "{}"), *l = json_object_get(doc, "ledger");
    state x = {json_integer_value(json_object_get(l, "budget_bytes")) -
                   json_integer_value(json_object_get(l, "free_bytes")),
               json_integer_value(json_object_get(l, "difference_bytes")),
               process_kib(s->pid, "VmRSS:")};
    json_decref(doc);
    return x;
}

static void run(const serving *s, const hearth_tensor *in, int threads, int rounds)
{
    worker *w = calloc((size_t)threads, sizeof *w);
    check(w == NULL, "memory");
    for (int i = 0; i < threads; i++) {
        w[i] = (worker){.s = s, .in = in, .rounds = rounds};
        check(pthread_create(&w[i].thread, NULL, work, &w[i]) != 0, "a thread");
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(w[i].thread, NULL);
    }
    free(w);
}

int main(int argc, char **argv)
{
    int threads = 8, rounds = 64;
    const char *model = "tests/data/digits/digits.onnx";
    hearth_import_result r;
    serving s;
    for (int i = 1; i + 1 < argc; i += 2) {
        threads = strcmp(argv[i], "--threads") == 0 ? atoi(argv[i + 1]) : threads;
        rounds = strcmp(argv[i], "--rounds") == 0 ? atoi(argv[i + 1]) : rounds;
        model = strcmp(argv[i], "--model") == 0 ? argv[i + 1] : model;
    }
    serving_begin(&s);
    serving_start(&s, "cpu:mem=1GiB", 0);
    hearth *h = serving_dial(&s);
    check(hearth_import(h, "m", model, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    state empty = state_now(h, &s);
    hearth_tensor in = serving_input(h, "m", 1);
    json_decref(serving_ask(h, "unload", "{\"model\":\"m\"}"));
    run(&s, &in, threads, rounds / 8 + 1); // threads, connections and the allocator's arenas
    state warm = state_now(h, &s);
    uint64_t from = hth_now_ns();
    done = 0;
    run(&s, &in, threads, rounds);
    double seconds = (double)(hth_now_ns() - from) / 1e9;
    state end = state_now(h, &s);
    bool good = errors == 0 && end.used == empty.used && end.difference == 0 &&
                end.rss_kib <= warm.rss_kib + RSS_SLACK_KIB;
    printf("{\"threads\":%d,\"rounds\":%d,\"errors\":%d,\"rounds_per_second\":%.1f,"
           "\"used_before_bytes\":%lld,\"used_after_bytes\":%lld,\"difference_bytes\":%lld,"
           "\"rss_warm_kib\":%ld,\"rss_end_kib\":%ld,\"good\":%s}\n",
           threads, rounds, errors, done / seconds, (long long)empty.used, (long long)end.used,
           (long long)end.difference, warm.rss_kib, end.rss_kib, good ? "true" : "false");
    hearth_close(h);
    serving_end(&s);
    return good ? 0 : 1;
}
