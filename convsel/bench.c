// SPDX-License-Identifier: Apache-2.0
// One node alone. Time is the median of repeated runs on warm caches: what differs between the
// algorithms of a layer is arithmetic and workspace traffic, which that shows. Other processes only
// ever add to a run: when the median is half again the fastest run, the lower quartile is taken
// instead. The number of runs follows their length, so that a model of fifty distinct convolutions
// is measured in seconds.
//
// Error is measured on the node without its post ops (an activation can hide or clamp a
// difference), at SAMPLES points of its output, relative to the largest of them.
#include "convsel/bench.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "convsel/convsel.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES     2000
#define SAMPLE_MACS 10000000 // of a filter's gradient, whose points are sums over all images
#define SAMPLES_MIN 50
#define MIN_RUNS    5
#define MAX_RUNS    31
#define ENOUGH_NS   10000000u // stop after this much time, once MIN_RUNS are done
#define LONG_RUN_NS 20000000u // such a run is long enough to be believed with LONG_RUNS a time
#define LONG_RUNS   2

typedef struct bench_input {
    void *plain;  // row-major content
    void *placed; // in the value's layout; NULL: plain is it
} bench_input;

struct hth_bench {
    hth_device *device;
    const hth_timing_cache *cache; // NULL: host memory
    const hth_graph *graph;
    const hth_node *node;
    bench_input *in;
    void **args_in, **packed, **out;
    void *workspace; // the largest so far: fresh pages would cost each choice's first run
    size_t workspace_bytes;
    int64_t *index; // of the sampled points
    double *want;   // their values, computed when first needed
    int n_points;
};

static uint64_t bench_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return *seed >> 33;
}

static void bench_fill(float *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (float)(int32_t)bench_next(&seed) * 0x1p-30F - 1.0F;
    }
}

// Random numbers, except that a constant of another operator or type keeps its content: it may be
// an index or an axis.
static hth_err bench_content(hth_bench *b, const hth_value *v, void *plain, size_t bytes, int i)
{
    if (v->constant != NULL && (v->dtype != HTH_DT_F32 || !hth_convsel_has_menu(b->node->op))) {
        const void *data;
        HTH_TRY(hth_const_map(v->constant, &data));
        memcpy(plain, data, bytes);
        hth_const_unmap(v->constant);
    } else if (v->dtype == HTH_DT_F32) {
        bench_fill(plain, bytes / sizeof(float), (uint64_t)i + 1);
    } else {
        memset(plain, 0, bytes);
    }
    return HTH_OK;
}

static void *bench_take(const hth_bench *b, size_t bytes)
{
    return b->cache != NULL && b->cache->take != NULL
               ? b->cache->take(b->cache->owner, bytes > 0 ? bytes : 1)
               : hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
}

static void bench_give(const hth_bench *b, void *p)
{
    if (b->cache != NULL && b->cache->take != NULL && p != NULL) {
        b->cache->give(b->cache->owner, p);
    } else {
        hth_free(p);
    }
}

static hth_err bench_buffer(const hth_bench *b, const hth_value *v, hth_layout l, void **out,
                            size_t *bytes)
{
    HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, l, bytes));
    *out = bench_take(b, *bytes);
    return *out == NULL ? hth_fail(HTH_ENOMEM, "out of memory to measure a node") : HTH_OK;
}

static hth_err bench_make(hth_bench *b)
{
    const hth_node *n = b->node;
    size_t bytes;
    for (int i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i] < 0) {
            continue;
        }
        const hth_value *v = &b->graph->values[n->inputs[i]];
        bench_input *in = &b->in[i];
        HTH_TRY(bench_buffer(b, v, HTH_LAYOUT_PLAIN, &in->plain, &bytes));
        HTH_TRY(bench_content(b, v, in->plain, bytes, i));
        if (v->layout != HTH_LAYOUT_PLAIN) {
            HTH_TRY(bench_buffer(b, v, v->layout, &in->placed, &bytes));
            hth_cpu_relayout(hth_dtype_bytes(v->dtype), &v->shape, HTH_LAYOUT_PLAIN, in->plain,
                             v->layout, in->placed);
        }
    }
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] >= 0) {
            const hth_value *v = &b->graph->values[n->outputs[i]];
            HTH_TRY(bench_buffer(b, v, v->layout, &b->out[i], &bytes));
            memset(b->out[i], 0, bytes);
        }
    }
    return HTH_OK;
}

hth_err hth_bench_open(hth_device *d, const hth_graph *g, const hth_node *n,
                       const hth_timing_cache *cache, hth_bench **out)
{
    hth_bench *b = hth_calloc(1, sizeof *b);
    hth_err err = HTH_OK;
    *out = NULL;
    if (b == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory to measure node '%s'", n->name);
    }
    b->device = d;
    b->cache = cache;
    b->graph = g;
    b->node = n;
    b->in = hth_calloc((size_t)n->n_inputs, sizeof *b->in);
    b->args_in = hth_calloc((size_t)n->n_inputs, sizeof *b->args_in);
    b->packed = hth_calloc((size_t)n->n_inputs, sizeof *b->packed);
    b->out = hth_calloc((size_t)n->n_outputs, sizeof *b->out);
    if (b->in == NULL || b->args_in == NULL || b->packed == NULL || b->out == NULL) {
        err = hth_fail(HTH_ENOMEM, "out of memory to measure node '%s'", n->name);
    } else {
        err = bench_make(b);
    }
    if (err != HTH_OK) {
        hth_bench_close(b);
        return err;
    }
    *out = b;
    return HTH_OK;
}

void hth_bench_close(hth_bench *b)
{
    if (b == NULL) {
        return;
    }
    for (int i = 0; b->in != NULL && i < b->node->n_inputs; i++) {
        bench_give(b, b->in[i].plain);
        bench_give(b, b->in[i].placed);
    }
    for (int i = 0; b->out != NULL && i < b->node->n_outputs; i++) {
        bench_give(b, b->out[i]);
    }
    hth_free(b->in);
    hth_free(b->args_in);
    hth_free(b->packed);
    hth_free(b->out);
    bench_give(b, b->workspace);
    hth_free(b->index);
    hth_free(b->want);
    hth_free(b);
}

static void bench_unload(hth_bench *b, const hth_kernel *k)
{
    for (int i = 0; i < k->n_packings; i++) {
        bench_give(b, b->packed[k->packings[i].input]);
        b->packed[k->packings[i].input] = NULL;
    }
}

static const void *bench_at(const hth_bench *b, int i)
{
    return b->in[i].placed != NULL ? b->in[i].placed : b->in[i].plain;
}

// Points the arguments at the inputs in the forms that `k` wants, and gives it a workspace.
static hth_err bench_load(hth_bench *b, const hth_kernel *k)
{
    for (int i = 0; i < b->node->n_inputs; i++) {
        b->args_in[i] = (void *)(uintptr_t)bench_at(b, i);
    }
    if (b->workspace == NULL || b->workspace_bytes < k->workspace_bytes) {
        bench_give(b, b->workspace);
        b->workspace = bench_take(b, k->workspace_bytes);
        b->workspace_bytes = b->workspace == NULL ? 0 : k->workspace_bytes;
        if (b->workspace != NULL) {
            memset(b->workspace, 0, b->workspace_bytes); // its pages are there before the first run
        }
    }
    hth_err err = b->workspace == NULL ? HTH_ENOMEM : HTH_OK;
    for (int i = 0; i < k->n_packings && err == HTH_OK; i++) {
        const hth_packing *p = &k->packings[i];
        if (p->pack == NULL) {
            continue;
        }
        b->packed[p->input] = bench_take(b, p->bytes);
        err = b->packed[p->input] == NULL
                  ? HTH_ENOMEM
                  : p->pack(k, p, b->in[p->input].plain, b->packed[p->input]);
        b->args_in[p->input] = b->packed[p->input];
    }
    if (err == HTH_OK) {
        return HTH_OK;
    }
    bench_unload(b, k);
    return err == HTH_ENOMEM ? hth_fail(err, "out of memory to measure node '%s'", b->node->name)
                             : err;
}

static int bench_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static hth_err bench_median(const hth_kernel *k, const hth_kernel_args *a, double hopeless_us,
                            double *us)
{
    double times[MAX_RUNS];
    uint64_t total = 0, first = hth_now_ns();
    int runs = 0, least = MIN_RUNS;
    HTH_TRY(k->run(k, a));
    *us = (double)(hth_now_ns() - first) / 1e3;
    if (*us > hopeless_us) {
        return HTH_OK;
    }
    while (runs < MAX_RUNS && (runs < least || total < ENOUGH_NS)) {
        uint64_t start = hth_now_ns();
        HTH_TRY(k->run(k, a));
        uint64_t took = hth_now_ns() - start;
        total += took;
        times[runs++] = (double)took / 1e3;
        least = took > LONG_RUN_NS ? LONG_RUNS : least;
    }
    qsort(times, (size_t)runs, sizeof times[0], bench_order);
    bool disturbed = times[runs / 2] > 1.5 * times[0];
    *us = times[disturbed ? runs / 4 : runs / 2];
    return HTH_OK;
}

hth_err hth_bench_time(hth_bench *b, hth_choice *c, double hopeless_us)
{
    hth_kernel *k;
    HTH_TRY(hth_kernel_prepare(b->device, b->graph, b->node, c->name, &k));
    hth_err err = bench_load(b, k);
    if (err == HTH_OK) {
        hth_kernel_args a = {b->args_in, b->out, b->workspace};
        err = bench_median(k, &a, hopeless_us, &c->time_us);
        c->workspace_bytes = k->workspace_bytes;
        bench_unload(b, k);
    }
    hth_kernel_close(k);
    return err;
}

static int64_t bench_points(const hth_bench *b, const hth_node *n)
{
    if (n->op != HTH_OP_CONV_GRAD_FILTER) {
        return SAMPLES;
    }
    const hth_shape *dy = &b->graph->values[n->inputs[1]].shape;
    int64_t points = SAMPLE_MACS * dy->dim[1] / hth_shape_elements(dy);
    return points > SAMPLES ? SAMPLES : points < SAMPLES_MIN ? SAMPLES_MIN : points;
}

static hth_err bench_samples(hth_bench *b, const hth_node *bare)
{
    if (b->want != NULL) {
        return HTH_OK;
    }
    int64_t total = hth_shape_elements(&b->graph->values[bare->outputs[0]].shape);
    int64_t points = bench_points(b, bare);
    uint64_t seed = 42;
    b->n_points = (int)(total < points ? total : points);
    b->index = hth_alloc((size_t)b->n_points * sizeof *b->index);
    b->want = hth_alloc((size_t)b->n_points * sizeof *b->want);
    if (b->index == NULL || b->want == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory to measure node '%s'", bare->name);
    }
    for (int i = 0; i < b->n_points; i++) {
        b->index[i] =
            total <= points ? i : (int64_t)(bench_next(&seed) << 16 ^ bench_next(&seed)) % total;
    }
    if (bare->op == HTH_OP_CONV_GRAD_FILTER) {
        return hth_sample_filter_grad(b->graph, bare, bench_at(b, 0), bench_at(b, 1), b->index,
                                      b->n_points, b->want);
    }
    bool bias = bare->n_inputs > 2 && bare->inputs[2] >= 0;
    return hth_sample_conv(b->graph, bare, bench_at(b, 0), b->in[1].plain,
                           bias ? b->in[2].plain : NULL, b->index, b->n_points, b->want);
}

static double bench_compare(const hth_bench *b, const hth_value *y)
{
    size_t channels = (size_t)y->shape.dim[1], area = 1;
    double worst = 0, largest = 1e-30;
    for (int i = 2; i < y->shape.rank; i++) {
        area *= (size_t)y->shape.dim[i];
    }
    for (int i = 0; i < b->n_points; i++) {
        size_t at = (size_t)b->index[i], row = at / area, step;
        size_t base =
            hth_layout_at(y->layout, channels, area, row / channels, row % channels, &step);
        double got = ((const float *)b->out[0])[base + at % area * step];
        double diff = fabs(got - b->want[i]);
        worst = diff <= worst ? worst : diff; // a NaN stays
        largest = fmax(largest, fabs(b->want[i]));
    }
    return worst / largest;
}

hth_err hth_bench_error(hth_bench *b, hth_choice *c)
{
    hth_kernel *k;
    if (!hth_convsel_has_menu(b->node->op) ||
        b->graph->values[b->node->outputs[0]].dtype != HTH_DT_F32) {
        return HTH_OK;
    }
    hth_node bare = *b->node;
    for (int i = 0; i < bare.n_post; i++) {
        int operand = bare.post[i].input;
        bare.n_inputs = operand >= 0 && operand < bare.n_inputs ? operand : bare.n_inputs;
    }
    bare.n_post = 0;
    HTH_TRY(hth_kernel_prepare(b->device, b->graph, &bare, c->name, &k));
    hth_err err = bench_load(b, k);
    if (err == HTH_OK) {
        hth_kernel_args a = {b->args_in, b->out, b->workspace};
        err = bench_samples(b, &bare);
        err = err != HTH_OK ? err : k->run(k, &a);
        c->error = err != HTH_OK ? c->error : bench_compare(b, &b->graph->values[bare.outputs[0]]);
        bench_unload(b, k);
    }
    hth_kernel_close(k);
    return err;
}
