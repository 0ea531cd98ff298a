// SPDX-License-Identifier: Apache-2.0
// 3x3 convolutions of stride 1 in well-known networks: Winograd of our own against everything that
// oneDNN has, layer by layer, in the three directions. All algorithms of a layer run in turn, again
// and again; the least time counts. GFLOP/s are effective: the direct sum's operations by the time.
//
// usage: wino_bench [--net vgg19|unet|resnet50] [--batch N] [--direction fwd|bwd_data|bwd_filter]
//                   [--layer WORD] [--threads N] [--rounds N] [--all] [--add ALGORITHM]...
// --all prints every algorithm, --add measures one that is not on the menu. HEARTH_ISA=avx2 limits
// both. Without arguments: ResNet-50's layers at batch 1. At the end: the slowest of ours that the
// front offers, against oneDNN's direct.
#include "base/alloc.h"
#include "base/clock.h"
#include "base/isa.h"
#include "convsel/convsel.h"
#include "kernels/kernel.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

typedef struct layer {
    const char *net;
    int64_t in, out, size;
} layer;

// The first layers, of three channels, read a plain image: direct alone.
static const layer layers[] = {
    {"vgg19", 64, 64, 224},    {"vgg19", 64, 128, 112},    {"vgg19", 128, 128, 112},
    {"vgg19", 128, 256, 56},   {"vgg19", 256, 256, 56},    {"vgg19", 256, 512, 28},
    {"vgg19", 512, 512, 28},   {"vgg19", 512, 512, 14},    {"unet", 64, 64, 256},
    {"unet", 64, 128, 128},    {"unet", 128, 128, 128},    {"unet", 128, 256, 64},
    {"unet", 256, 256, 64},    {"unet", 256, 512, 32},     {"unet", 512, 512, 32},
    {"unet", 512, 1024, 16},   {"unet", 1024, 1024, 16},   {"unet", 1024, 512, 32},
    {"unet", 512, 256, 64},    {"unet", 256, 128, 128},    {"unet", 128, 64, 256},
    {"resnet50", 64, 64, 56},  {"resnet50", 128, 128, 28}, {"resnet50", 256, 256, 14},
    {"resnet50", 512, 512, 7},
};

#define MOST_ADDED 8

typedef struct bench {
    const char *net, *direction, *only, *added[MOST_ADDED];
    int batch, rounds, n_added;
    bool all;
    hth_device device;
    double log_best, log_4, log_direct;
    int n;
    // of ours on the front
    int offered, slower; // slower than direct by more than 3 %
    double least;        // least time of direct / ours
    char least_name[128];
} bench;

static void check(hth_err err, const char *what)
{
    if (err != HTH_OK) {
        fprintf(stderr, "%s: %s\n", what, hth_err_detail());
        exit(1);
    }
}

static void *memory(size_t bytes)
{
    float *p = hth_alloc_aligned(bytes + 64, 64);
    if (p == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    uint32_t state = 1;
    for (size_t i = 0; i < bytes / sizeof *p; i++) {
        state = state * 1664525U + 1013904223U;
        p[i] = (float)(int32_t)state * 0x1p-31F;
    }
    return p;
}

typedef struct candidate {
    hth_kernel *kernel;
    void *packed;
    double us;
} candidate;

static int value(hth_graph *graph, int64_t a, int64_t b, int64_t h, int64_t w)
{
    hth_shape s = {.rank = 4, .dim = {a, b, h, w}};
    int v;
    check(hth_graph_add_value(graph, NULL, HTH_DT_F32, &s, &v), "value");
    return v;
}

// The layer's graph: one node.
static const hth_node *make(const bench *b, const layer *l, hth_op op, hth_graph *graph)
{
    int x = value(graph, b->batch, l->in, l->size, l->size),
        y = value(graph, b->batch, l->out, l->size, l->size);
    int w, node;
    hth_layout blocked = b->device.props.vector_bytes >= 64 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
    graph->values[x].layout = graph->values[y].layout = blocked;
    if (op == HTH_OP_CONV) {
        hth_shape s = {.rank = 4, .dim = {l->out, l->in, 3, 3}};
        hth_const *c;
        check(hth_const_adopt(HTH_DT_F32, &s, memory((size_t)hth_shape_elements(&s) * 4), NULL, &c),
              "filter");
        check(hth_graph_add_const(graph, NULL, c, &w), "filter");
    } else {
        w = value(graph, l->out, l->in, 3, 3);
    }
    int in[2] = {op == HTH_OP_CONV_GRAD_DATA ? y : x, op == HTH_OP_CONV_GRAD_FILTER ? y : w};
    int grad = op == HTH_OP_CONV_GRAD_DATA ? x : w, out = op == HTH_OP_CONV ? y : grad;
    check(hth_graph_add_node(graph, op, "layer", in, 2, &out, 1, &node), "node");
    const int64_t pads[4] = {1, 1, 1, 1};
    check(hth_node_set_ints(&graph->nodes[node], "pads", pads, 4), "pads");
    return &graph->nodes[node];
}

static size_t bytes_of(const hth_value *value)
{
    size_t bytes = 0;
    check(hth_tensor_bytes(value->dtype, &value->shape, value->layout, &bytes), "tensor");
    return bytes;
}

// Every candidate in turn, `rounds` times, fewer for what is hopeless.
static void measure(const bench *b, const hth_graph *graph, const hth_node *node, hth_choice *list,
                    int count)
{
    candidate c[HTH_MAX_CHOICES] = {{0}};
    void *in[2], *out[1], *ws;
    uint64_t most = 64;
    double best = INFINITY;
    for (int i = 0; i < 2; i++) {
        in[i] = memory(bytes_of(&graph->values[node->inputs[i]]));
    }
    out[0] = memory(bytes_of(&graph->values[node->outputs[0]]));
    for (int i = 0; i < count; i++) {
        check(hth_kernel_prepare((hth_device *)&b->device, graph, node, list[i].name, &c[i].kernel),
              "kernel");
        const hth_kernel *k = c[i].kernel;
        most = k->workspace_bytes > most ? k->workspace_bytes : most;
        c[i].us = INFINITY;
        if (k->n_packings > 0 && k->packings[0].pack != NULL) {
            c[i].packed = memory(k->packings[0].bytes);
            check(k->packings[0].pack(k, &k->packings[0], in[1], c[i].packed), "pack");
        }
    }
    ws = memory(most);
    for (int round = 0; round < b->rounds + 1; round++) {
        for (int i = 0; i < count; i++) {
            void *args[2] = {in[0], c[i].packed != NULL ? c[i].packed : in[1]};
            hth_kernel_args a = {args, out, ws, NULL};
            if (isfinite(c[i].us) && c[i].us > 2.5 * best) {
                continue;
            }
            uint64_t start = hth_now_ns();
            check(c[i].kernel->run(c[i].kernel, &a), "run");
            double us = (double)(hth_now_ns() - start) / 1e3;
            c[i].us = fmin(c[i].us, us);
            best = fmin(best, us);
        }
    }
    for (int i = 0; i < count; i++) {
        list[i].time_us = c[i].us;
        hth_kernel_close(c[i].kernel);
        hth_free(c[i].packed);
    }
    hth_free(in[0]);
    hth_free(in[1]);
    hth_free(out[0]);
    hth_free(ws);
}

static bool ours(const hth_choice *choice)
{
    return strncmp(choice->name, "winograd", 8) == 0;
}

static bool onednn_winograd(const hth_choice *choice)
{
    return !ours(choice) && strstr(choice->name, "wino") != NULL;
}

// The fastest of ours (1), of oneDNN's Winograd (2), of the rest (0), with at most `most` MiB.
static const hth_choice *fastest(const hth_choice *list, int n, int kind, double most)
{
    const hth_choice *best = NULL;
    for (int i = 0; i < n; i++) {
        int other = onednn_winograd(&list[i]) ? 2 : 0, is = ours(&list[i]) ? 1 : other;
        if (is == kind && (double)list[i].workspace_bytes <= most * MIB &&
            (best == NULL || list[i].time_us < best->time_us)) {
            best = &list[i];
        }
    }
    return best;
}

static void cell(const hth_choice *choice, double gflop, bool name)
{
    if (choice == NULL) {
        printf(" - |");
    } else if (name) {
        printf(" %.0f (%.3s%s, %.1f MiB) |", gflop / choice->time_us * 1e6, choice->name + 9,
               strstr(choice->name, ":run") ? " run" : "", (double)choice->workspace_bytes / MIB);
    } else {
        printf(" %.0f (%.1f MiB) |", gflop / choice->time_us * 1e6,
               (double)choice->workspace_bytes / MIB);
    }
}

static void report(bench *b, const layer *l, const hth_choice *list, int n)
{
    double gflop = 2e-9 * 9 * (double)(b->batch * l->in * l->out * l->size * l->size);
    const hth_choice *direct = fastest(list, n, 0, 1e9), *theirs = fastest(list, n, 2, 1e9);
    const hth_choice *most = fastest(list, n, 1, 16.5), *four = fastest(list, n, 1, 4.2),
                     *one = fastest(list, n, 1, 1.6);
    printf("| %s %ldx%ld @%ld |", l->net, (long)l->in, (long)l->out, (long)l->size);
    cell(direct, gflop, false);
    cell(theirs, gflop, false);
    cell(most, gflop, true);
    cell(four, gflop, true);
    cell(one, gflop, true);
    if (most != NULL && direct != NULL) {
        double best = theirs != NULL ? fmin(direct->time_us, theirs->time_us) : direct->time_us;
        printf(" %.2f | %.2f |\n", best / most->time_us, direct->time_us / most->time_us);
        b->log_best += log(best / most->time_us);
        b->log_direct += log(direct->time_us / most->time_us);
        b->log_4 += four == NULL ? 0 : log(most->time_us / four->time_us);
        b->n++;
    } else {
        printf(" | |\n");
    }
    for (int i = 0; b->all && i < n; i++) {
        printf("    %-32s %8.2f MiB %10.0f us %6.0f GFLOP/s\n", list[i].name,
               (double)list[i].workspace_bytes / MIB, list[i].time_us,
               gflop / list[i].time_us * 1e6);
    }
    fflush(stdout);
}

static int by_time(const void *a, const void *b)
{
    const hth_choice *x = a, *y = b;
    return x->time_us < y->time_us ? -1 : x->time_us > y->time_us;
}

// What the front would offer by these times: ours against oneDNN's direct.
static void front(bench *b, const layer *l, hth_choice *list, int n)
{
    const hth_choice *direct = fastest(list, n, 0, 1e9);
    double limit = direct == NULL ? 0 : direct->time_us;
    qsort(list, (size_t)n, sizeof *list, by_time);
    hth_convsel_front(list, n, HTH_CONVSEL_TOLERANCE);
    for (int i = 0; i < n && limit > 0; i++) {
        if (!list[i].front || !ours(&list[i])) {
            continue;
        }
        double ratio = limit / list[i].time_us;
        b->offered++;
        b->slower += ratio < 1 / 1.03;
        if (b->offered == 1 || ratio < b->least) {
            b->least = ratio;
            snprintf(b->least_name, sizeof b->least_name, "%ldx%ld @%ld, %.47s", (long)l->in,
                     (long)l->out, (long)l->size, list[i].name);
        }
    }
}

// Algorithms of the menu, and those added by name.
static int candidates(bench *b, const hth_graph *graph, const hth_node *node, hth_choice *list)
{
    int count, kept = 0;
    check(hth_kernel_algorithms(&b->device, graph, node, list, HTH_MAX_CHOICES, &count),
          "algorithms");
    for (int i = 0; i < count; i++) {
        if (strchr(list[i].name, '/') == NULL) { // oneDNN's chunks: the same in slices
            list[kept++] = list[i];
        }
    }
    for (int i = 0; i < b->n_added && kept < HTH_MAX_CHOICES; i++) {
        hth_kernel *k;
        check(hth_kernel_prepare(&b->device, graph, node, b->added[i], &k), b->added[i]);
        list[kept] = (hth_choice){.workspace_bytes = k->workspace_bytes};
        snprintf(list[kept].name, sizeof list[kept].name, "%s", b->added[i]);
        kept++;
        hth_kernel_close(k);
    }
    return kept;
}

static void run(bench *b, const layer *l)
{
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    for (int k = 0; k < 3; k++) {
        hth_choice list[HTH_MAX_CHOICES];
        hth_graph *g;
        if (strcmp(hth_convsel_direction(ops[k]), b->direction) != 0) {
            continue;
        }
        check(hth_graph_new(&g), "graph");
        const hth_node *n = make(b, l, ops[k], g);
        int count = candidates(b, g, n, list);
        measure(b, g, n, list, count);
        report(b, l, list, count);
        front(b, l, list, count);
        hth_graph_free(g);
    }
}

int main(int argc, char **argv)
{
    bench b = {.net = "resnet50", .direction = "fwd", .batch = 1, .rounds = 9};
    int threads = 2;
    static const struct option options[] = {{"net", required_argument, NULL, 'n'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"direction", required_argument, NULL, 'd'},
                                            {"layer", required_argument, NULL, 'l'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"all", no_argument, NULL, 'a'},
                                            {"add", required_argument, NULL, '+'},
                                            {NULL, 0, NULL, 0}};
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        b.net = o == 'n' ? optarg : b.net;
        b.direction = o == 'd' ? optarg : b.direction;
        b.only = o == 'l' ? optarg : b.only;
        b.batch = o == 'b' ? atoi(optarg) : b.batch;
        b.rounds = o == 'r' ? atoi(optarg) : b.rounds;
        threads = o == 't' ? atoi(optarg) : threads;
        b.all = b.all || o == 'a';
        if (o == '+' && b.n_added < MOST_ADDED) {
            b.added[b.n_added++] = optarg;
        }
        if (o == '?' || b.batch < 1 || threads < 1) {
            return 2;
        }
    }
    check(hth_isa_limit(getenv("HEARTH_ISA")), "HEARTH_ISA");
    b.device = (hth_device){.props = {.name = "cpu:0", .n_threads = threads}};
    b.device.props.vector_bytes = hth_isa_bytes();
    printf("%s, batch %d, %d threads, %s vectors of %d bytes; effective GFLOP/s (workspace)\n\n",
           b.direction, b.batch, threads, b.net, hth_isa_bytes());
    printf("| layer | direct | oneDNN's Winograd | winograd, 16 MiB | 4 MiB | 1.5 MiB | times the "
           "best of oneDNN | times direct |\n|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%ldx%ld@%ld", (long)layers[i].in, (long)layers[i].out,
                 (long)layers[i].size);
        if (strcmp(layers[i].net, b.net) == 0 && (b.only == NULL || strstr(name, b.only) != NULL)) {
            run(&b, &layers[i]);
        }
    }
    if (b.n > 0) {
        printf(
            "\ngeometric mean of %d layers: %.2f times the best of oneDNN, %.2f times direct, at "
            "4 MiB %.2f of 16 MiB\n",
            b.n, exp(b.log_best / b.n), exp(b.log_direct / b.n), exp(b.log_4 / b.n));
        printf(
            "on the front: %d of ours; against direct the slowest is %.2f (%s), %d slower by more "
            "than 3 %%\n",
            b.offered, b.least, b.least_name, b.slower);
    }
    return 0;
}
