// SPDX-License-Identifier: Apache-2.0
// A *unit* is the work of a class: its operator, or a copy or a reduction, so many times. Of each
// class there are three, with memory of their own: for two threads, and for one thread each of the
// measuring thread and of the *other*, a thread that waits for units.
#include "convsel/pairs.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "convsel/bench_impl.h"
#include "device/cpu/copy.h"
#include "device/cpu/team.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIR_BLOCK  ((size_t)16 << 20)   // of a copy, of a reduction
#define PAIR_MOST   ((uint64_t)64 << 20) // operands of a class's operator, if there is a choice
#define PAIR_US     4000.0               // that a unit takes at least
#define PAIR_RUNS   10000                // .. of an operator, at most
#define PAIR_ROUNDS 9
#define PAIR_DELAY  0.05 // of the time, that threads may have waited for processors
#define PAIR_UNITS  3    // of a class: BOTH, MINE, OTHERS
#define PAIR_BOTH   0
#define PAIR_MINE   1
#define PAIR_OTHERS 2

typedef struct pair_unit {
    hth_device device; // with as many threads as it is for
    hth_bench *bench;  // NULL: a copy or a reduction
    hth_kernel *kernel;
    float *to, *from;
    bool adds;
    int runs;
} pair_unit;

typedef struct pair_other {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const pair_unit *unit; // to be run; NULL: none
    bool stopping;
    atomic_int phase; // 0: waits; 1: ready; 2: may run; 3: has run
    hth_err err;
    char detail[256];
} pair_other;

typedef struct pair_bench {
    const hth_graph *graph;
    const hth_timing_cache *cache;
    const hth_pairs_watch *watch; // may be NULL
    pair_unit unit[HTH_PAIR_CLASSES][PAIR_UNITS];
    pair_other other;
    double alone[HTH_PAIR_CLASSES][PAIR_ROUNDS];
    double together[HTH_PAIR_CLASSES][HTH_PAIR_CLASSES][PAIR_ROUNDS];
} pair_bench;

// ---- classes

const char *hth_pair_class_name(hth_pair_class which)
{
#define PAIR_NAME(ID, name) name,
    static const char *const names[] = {HTH_PAIR_CLASS_TABLE(PAIR_NAME)};
#undef PAIR_NAME
    return names[which];
}

hth_pair_class hth_pair_class_of(hth_op op)
{
    switch (op) {
    case HTH_OP_CONV:
    case HTH_OP_CONV_TRANSPOSE:
    case HTH_OP_CONV_GRAD_DATA:
    case HTH_OP_CONV_GRAD_FILTER:
        return HTH_PAIR_CONVOLUTION;
    case HTH_OP_GEMM:
    case HTH_OP_MAT_MUL:
        return HTH_PAIR_PRODUCT;
    case HTH_OP_BATCH_NORMALIZATION:
    case HTH_OP_BATCH_NORM_TRAIN:
    case HTH_OP_BATCH_NORM_GRAD:
    case HTH_OP_LAYER_NORMALIZATION:
    case HTH_OP_LAYER_NORM_GRAD:
    case HTH_OP_GROUP_NORMALIZATION:
    case HTH_OP_GROUP_NORM_GRAD:
    case HTH_OP_INSTANCE_NORMALIZATION:
    case HTH_OP_LRN:
    case HTH_OP_LRN_GRAD:
        return HTH_PAIR_NORM;
    case HTH_OP_ADD:
    case HTH_OP_SUB:
    case HTH_OP_MUL:
    case HTH_OP_DIV:
    case HTH_OP_RELU:
    case HTH_OP_RELU_GRAD:
    case HTH_OP_ELEMENT_GRAD:
    case HTH_OP_LEAKY_RELU:
    case HTH_OP_CLIP:
    case HTH_OP_GELU:
    case HTH_OP_HARD_SIGMOID:
    case HTH_OP_HARD_SWISH:
    case HTH_OP_MISH:
    case HTH_OP_SIGMOID:
    case HTH_OP_SWISH:
    case HTH_OP_TANH:
    case HTH_OP_SCALE_SHIFT:
        return HTH_PAIR_ELEMENTWISE;
    case HTH_OP_ATTENTION:
    case HTH_OP_FUSED_ATTENTION:
        return HTH_PAIR_ATTENTION;
    default:
        return HTH_PAIR_CLASSES;
    }
}

double hth_pairs_oef(const hth_pairs *pairs, hth_pair_class a, hth_pair_class b)
{
    double ta = pairs->alone_us[a], tb = pairs->alone_us[b];
    return (ta + tb - pairs->together_us[a][b]) / (ta < tb ? ta : tb);
}

static uint64_t pair_operands(const hth_graph *graph, const hth_node *node)
{
    uint64_t sum = 0;
    for (int k = 0; k < node->n_inputs + node->n_outputs; k++) {
        int id = k < node->n_inputs ? node->inputs[k] : node->outputs[k - node->n_inputs];
        size_t bytes = 0;
        if (id >= 0) {
            const hth_value *v = &graph->values[id];
            (void)hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes);
        }
        sum += bytes;
    }
    return sum;
}

// The largest of the operators below PAIR_MOST, or the least of those above.
static bool pair_better(uint64_t bytes, uint64_t than)
{
    bool fits = bytes <= PAIR_MOST;
    return fits ? bytes > than || than > PAIR_MOST : bytes < than && than > PAIR_MOST;
}

static void pair_choose(const hth_graph *graph, hth_pairs *out)
{
    uint64_t chosen[HTH_PAIR_CLASSES] = {0};
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        out->node[c] = -1;
        out->there[c] = c == HTH_PAIR_COPY || c == HTH_PAIR_REDUCTION;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        hth_pair_class c = hth_pair_class_of(graph->nodes[i].op);
        uint64_t bytes = pair_operands(graph, &graph->nodes[i]);
        if (c < HTH_PAIR_CLASSES && (!out->there[c] || pair_better(bytes, chosen[c]))) {
            out->there[c] = true;
            out->node[c] = i;
            chosen[c] = bytes;
        }
    }
}

// ---- units

static void pair_add(void *arg, int i, int n)
{
    const pair_unit *u = arg;
    size_t begin, end;
    hth_team_range(PAIR_BLOCK / sizeof(float), i, n, &begin, &end);
    for (size_t k = begin; k < end; k++) {
        u->to[k] += u->from[k];
    }
}

static hth_err unit_run(const pair_unit *unit)
{
    hth_team_set(unit->device.props.n_threads);
    for (int i = 0; i < unit->runs; i++) {
        if (unit->kernel != NULL) {
            const hth_kernel_args args = {unit->bench->args_in, unit->bench->out,
                                          unit->bench->workspace, NULL};
            HTH_TRY(unit->kernel->run(unit->kernel, &args));
        } else if (unit->adds) {
            hth_team_run(pair_add, (void *)unit);
        } else {
            hth_team_copy(unit->to, unit->from, PAIR_BLOCK);
        }
    }
    return HTH_OK;
}

static hth_err unit_open(pair_bench *bench, const hth_pairs *pairs, hth_pair_class which,
                         pair_unit *unit)
{
    unit->runs = 1;
    unit->adds = which == HTH_PAIR_REDUCTION;
    if (pairs->node[which] < 0) {
        unit->to = hth_alloc_aligned(PAIR_BLOCK, HTH_DEVICE_ALIGN);
        unit->from = hth_alloc_aligned(PAIR_BLOCK, HTH_DEVICE_ALIGN);
        if (unit->to == NULL || unit->from == NULL) {
            return hth_no_memory("measuring pairs");
        }
        memset(unit->to, 0, PAIR_BLOCK);
        memset(unit->from, 0, PAIR_BLOCK);
        return HTH_OK;
    }
    const hth_node *node = &bench->graph->nodes[pairs->node[which]];
    hth_team_set(unit->device.props.n_threads);
    HTH_TRY(hth_bench_open(&unit->device, bench->graph, node, bench->cache, NULL, &unit->bench));
    HTH_TRY(hth_kernel_prepare(&unit->device, bench->graph, node, NULL, &unit->kernel));
    hth_err err = hth_bench_load(unit->bench, unit->kernel);
    if (err != HTH_OK) { // nothing is loaded
        hth_kernel_close(unit->kernel);
        unit->kernel = NULL;
    }
    return err;
}

static void unit_close(pair_unit *unit)
{
    if (unit->kernel != NULL) {
        hth_bench_unload(unit->bench, unit->kernel);
    }
    hth_kernel_close(unit->kernel);
    hth_bench_close(unit->bench);
    hth_free(unit->to);
    hth_free(unit->from);
}

static hth_err unit_time(const pair_unit *unit, double *us)
{
    uint64_t from_ns = hth_now_ns();
    HTH_TRY(unit_run(unit));
    *us = (double)(hth_now_ns() - from_ns) / 1e3;
    return HTH_OK;
}

// unit_try times a run of each of a class's units; the first run of each does not count.
static hth_err unit_try(const pair_unit units[PAIR_UNITS], double us[HTH_PAIR_TRIES])
{
    for (int k = 0; k < PAIR_UNITS; k++) {
        HTH_TRY(unit_run(&units[k]));
    }
    for (int i = 0; i < HTH_PAIR_TRIES; i++) {
        HTH_TRY(unit_time(&units[PAIR_BOTH], &us[i]));
    }
    return HTH_OK;
}

void hth_pairs_runs(const bool there[HTH_PAIR_CLASSES], double us[][HTH_PAIR_TRIES],
                    int runs[HTH_PAIR_CLASSES])
{
    double least[HTH_PAIR_CLASSES], longest = PAIR_US;
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        least[c] = us[c][0];
        for (int i = 1; i < HTH_PAIR_TRIES; i++) {
            least[c] = us[c][i] < least[c] ? us[c][i] : least[c];
        }
        longest = there[c] && least[c] > longest ? least[c] : longest;
    }
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        double n = least[c] > 0 ? longest / least[c] + 0.5 : PAIR_RUNS;
        runs[c] = n < PAIR_RUNS ? (int)n : PAIR_RUNS;
    }
}

// ---- the other thread

static void other_main(void *ctx)
{
    pair_other *o = ctx;
    pthread_mutex_lock(&o->lock);
    while (!o->stopping) {
        if (o->unit == NULL) {
            pthread_cond_wait(&o->changed, &o->lock);
            continue;
        }
        atomic_store(&o->phase, 1);
        while (atomic_load(&o->phase) != 2) {
            sched_yield();
        }
        o->err = unit_run(o->unit);
        snprintf(o->detail, sizeof o->detail, "%s", hth_err_detail());
        o->unit = NULL;
        atomic_store(&o->phase, 3);
    }
    pthread_mutex_unlock(&o->lock);
}

static hth_err other_open(pair_other *other)
{
    pthread_mutex_init(&other->lock, NULL);
    pthread_cond_init(&other->changed, NULL);
    hth_err err = hth_thread_start("pairs", other_main, other, &other->thread);
    if (err != HTH_OK) {
        pthread_cond_destroy(&other->changed);
        pthread_mutex_destroy(&other->lock);
    }
    return err;
}

static void other_close(pair_other *other)
{
    pthread_mutex_lock(&other->lock);
    other->stopping = true;
    pthread_cond_signal(&other->changed);
    pthread_mutex_unlock(&other->lock);
    hth_thread_join(other->thread);
    pthread_cond_destroy(&other->changed);
    pthread_mutex_destroy(&other->lock);
}

// Both begin when the other thread is awake.
static hth_err pair_time(pair_other *other, const pair_unit *mine, const pair_unit *others,
                         double *us)
{
    pthread_mutex_lock(&other->lock);
    atomic_store(&other->phase, 0);
    other->unit = others;
    pthread_cond_signal(&other->changed);
    pthread_mutex_unlock(&other->lock);
    while (atomic_load(&other->phase) != 1) {
        sched_yield();
    }
    uint64_t from_ns = hth_now_ns();
    atomic_store(&other->phase, 2);
    hth_err err = unit_run(mine);
    while (atomic_load(&other->phase) != 3) {
        sched_yield();
    }
    *us = (double)(hth_now_ns() - from_ns) / 1e3;
    HTH_TRY(err);
    return hth_err_restore(other->err, other->detail);
}

// ---- all

static hth_err pairs_point(const pair_bench *bench)
{
    const hth_pairs_watch *watch = bench->watch;
    return watch == NULL || watch->go_on(watch->ctx)
               ? HTH_OK
               : hth_fail(HTH_ECANCELED, "canceled while measuring pairs");
}

static hth_err pairs_round(pair_bench *bench, const hth_pairs *pairs, int round)
{
    for (int a = 0; a < HTH_PAIR_CLASSES; a++) {
        if (pairs->there[a]) {
            HTH_TRY(unit_time(&bench->unit[a][PAIR_BOTH], &bench->alone[a][round]));
        }
        for (int b = a; b < HTH_PAIR_CLASSES && pairs->there[a]; b++) {
            if (pairs->there[b]) {
                HTH_TRY(pair_time(&bench->other, &bench->unit[a][PAIR_MINE],
                                  &bench->unit[b][PAIR_OTHERS], &bench->together[a][b][round]));
            }
        }
        (void)hth_bench_between(bench->cache);
        HTH_TRY(pairs_point(bench));
    }
    return HTH_OK;
}

static int pair_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double pair_quartile(double us[PAIR_ROUNDS])
{
    qsort(us, PAIR_ROUNDS, sizeof *us, pair_order);
    return us[PAIR_ROUNDS / 4];
}

static hth_err pairs_run(pair_bench *bench, hth_pairs *pairs)
{
    uint64_t delay_ns = hth_thread_delay_ns(), from_ns = hth_now_ns();
    for (int round = 0; round < PAIR_ROUNDS; round++) {
        HTH_TRY(pairs_round(bench, pairs, round));
    }
    delay_ns = hth_thread_delay_since(delay_ns);
    pairs->disturbed = (double)delay_ns > PAIR_DELAY * (double)(hth_now_ns() - from_ns);
    for (int a = 0; a < HTH_PAIR_CLASSES; a++) {
        pairs->alone_us[a] = pair_quartile(bench->alone[a]);
        for (int b = a; b < HTH_PAIR_CLASSES; b++) {
            pairs->together_us[a][b] = pairs->together_us[b][a] =
                pair_quartile(bench->together[a][b]);
        }
    }
    return HTH_OK;
}

static hth_err pairs_open(pair_bench *bench, const hth_device *device, const hth_pairs *pairs)
{
    double us[HTH_PAIR_CLASSES][HTH_PAIR_TRIES] = {{0}};
    int runs[HTH_PAIR_CLASSES];
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        for (int k = 0; k < PAIR_UNITS && pairs->there[c]; k++) {
            pair_unit *unit = &bench->unit[c][k];
            unit->device = *device;
            unit->device.props.n_threads = k == PAIR_BOTH ? 2 : 1;
            HTH_TRY(unit_open(bench, pairs, (hth_pair_class)c, unit));
        }
        HTH_TRY(pairs->there[c] ? unit_try(bench->unit[c], us[c]) : HTH_OK);
        HTH_TRY(pairs_point(bench));
    }
    hth_pairs_runs(pairs->there, us, runs);
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        for (int k = 0; k < PAIR_UNITS; k++) {
            bench->unit[c][k].runs = runs[c];
        }
    }
    return HTH_OK;
}

static hth_err pairs_take(const hth_device *device, const hth_graph *graph,
                          const hth_timing_cache *cache, const hth_pairs_watch *watch,
                          hth_pairs *pairs)
{
    pair_bench *bench = hth_calloc(1, sizeof *bench);
    if (bench == NULL) {
        return hth_no_memory("measuring pairs");
    }
    bench->graph = graph;
    bench->cache = cache;
    bench->watch = watch;
    hth_err err;
    HTH_GOTO(pairs_open(bench, device, pairs), out);
    HTH_GOTO(other_open(&bench->other), out);
    err = pairs_run(bench, pairs);
    other_close(&bench->other);
out:
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        for (int k = 0; k < PAIR_UNITS; k++) {
            unit_close(&bench->unit[c][k]);
        }
    }
    hth_team_set(device->props.n_threads);
    hth_free(bench);
    return err;
}

// ---- what is remembered

static uint64_t pairs_hash(const char *text, uint64_t hash) // FNV-1a
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    }
    return hash;
}

static void pairs_key(const hth_device *device, const hth_graph *graph, const hth_pairs *pairs,
                      char key[HTH_CONVSEL_KEY])
{
    uint64_t hash = 0xcbf29ce484222325;
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        char text[HTH_CONVSEL_KEY] = "";
        if (pairs->node[c] >= 0) {
            hth_convsel_describe(graph, &graph->nodes[pairs->node[c]], text, sizeof text);
        }
        hash = pairs_hash("|", pairs_hash(text, hash));
    }
    snprintf(key, HTH_CONVSEL_KEY, "pairs2 %016" PRIx64 " | %s", hash, device->props.fingerprint);
}

#define PAIRS_TEXT 2048

static void pairs_write(const hth_pairs *pairs, char text[PAIRS_TEXT])
{
    size_t at = 0;
    for (int a = 0; a < HTH_PAIR_CLASSES; a++) {
        at += (size_t)snprintf(text + at, PAIRS_TEXT - at, "%.1f ", pairs->alone_us[a]);
        for (int b = a; b < HTH_PAIR_CLASSES; b++) {
            at += (size_t)snprintf(text + at, PAIRS_TEXT - at, "%.1f ", pairs->together_us[a][b]);
        }
    }
}

static bool pairs_number(const char **at, bool there, double *out)
{
    char *end;
    *out = strtod(*at, &end);
    bool read = end != *at && (!there || *out > 0);
    *at = end;
    return read;
}

static bool pairs_read(const char *text, hth_pairs *pairs)
{
    for (int a = 0; a < HTH_PAIR_CLASSES; a++) {
        if (!pairs_number(&text, pairs->there[a], &pairs->alone_us[a])) {
            return false;
        }
        for (int b = a; b < HTH_PAIR_CLASSES; b++) {
            bool there = pairs->there[a] && pairs->there[b];
            if (!pairs_number(&text, there, &pairs->together_us[a][b])) {
                return false;
            }
            pairs->together_us[b][a] = pairs->together_us[a][b];
        }
    }
    return true;
}

hth_err hth_pairs_measure(hth_device *device, const hth_graph *graph, const hth_timing_cache *cache,
                          bool again, const hth_pairs_watch *watch, hth_pairs *out)
{
    char key[HTH_CONVSEL_KEY], text[PAIRS_TEXT];
    if (!device->props.inline_compute || device->props.n_threads < 2) {
        return hth_fail(HTH_ENOTSUP,
                        "device %s: pairs are measured on CPU devices with two threads or more",
                        device->props.name);
    }
    memset(out, 0, sizeof *out);
    pair_choose(graph, out);
    pairs_key(device, graph, out, key);
    if (cache != NULL && !again && cache->get(cache->ctx, key, text, sizeof text) == HTH_OK &&
        pairs_read(text, out)) {
        return HTH_OK;
    }
    HTH_TRY(pairs_take(device, graph, cache, watch, out));
    pairs_write(out, text);
    return cache != NULL && !out->disturbed ? cache->put(cache->ctx, key, text) : HTH_OK;
}
