// SPDX-License-Identifier: Apache-2.0
// Error is measured on the node without its post ops (an activation can hide or clamp a
// difference), at SAMPLES points of its output, relative to the largest of them. A ReLU hides half
// of the points, which leaves enough.
#include "convsel/bench_impl.h"

#include "base/compare.h"
#include "base/alloc.h"
#include "convsel/convsel.h"
#include "device/cpu/team.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>

#define SAMPLES     2000
#define SAMPLE_MACS 10000000 // of a filter's gradient, whose points are sums over all images
#define SAMPLES_MIN 50

static int64_t bench_points(const hth_bench *b, const hth_node *n)
{
    if (n->op != HTH_OP_CONV_GRAD_FILTER) {
        return SAMPLES;
    }
    const hth_shape *dy = &b->graph->values[n->inputs[1]].shape;
    int64_t points = SAMPLE_MACS * dy->dim[1] / hth_shape_elements(dy);
    return hth_clamp(points, SAMPLES_MIN, SAMPLES);
}

typedef struct sample_job {
    hth_bench *b;
    const hth_node *bare;
    _Atomic hth_err err;
} sample_job;

static void sample_part(void *arg, int i, int n)
{
    sample_job *j = arg;
    hth_bench *b = j->b;
    size_t begin, end;
    hth_team_range((size_t)b->n_points, i, n, &begin, &end);
    const int64_t *index = b->index + begin;
    int points = (int)(end - begin);
    bool bias = j->bare->n_inputs > 2 && j->bare->inputs[2] >= 0;
    hth_err err =
        j->bare->op == HTH_OP_CONV_GRAD_FILTER
            ? hth_sample_filter_grad(b->graph, j->bare, b->in[0].placed, b->in[1].placed, index,
                                     points, b->want + begin)
            : hth_sample_conv(b->graph, j->bare, b->in[0].placed, b->in[1].plain,
                              bias ? b->in[2].plain : NULL, index, points, b->want + begin);
    if (err != HTH_OK) {
        atomic_store(&j->err, err);
    }
}

hth_err hth_bench_samples(hth_bench *b, const hth_node *bare)
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
        b->index[i] = total <= points
                          ? i
                          : (int64_t)(hth_bench_next(&seed) << 16 ^ hth_bench_next(&seed)) % total;
    }
    sample_job j = {b, bare, HTH_OK};
    if (b->device->props.host_visible) { // else those are not the host's threads
        hth_team_set(b->device->props.n_threads);
    }
    hth_team_run(sample_part, &j);
    return atomic_load(&j.err);
}

size_t hth_bench_point(const hth_bench *b, int i)
{
    const hth_value *y = &b->graph->values[b->node->outputs[0]];
    size_t channels = (size_t)y->shape.dim[1], area = 1, step;
    for (int d = 2; d < y->shape.rank; d++) {
        area *= (size_t)y->shape.dim[d];
    }
    size_t at = (size_t)b->index[i], row = at / area;
    size_t base = hth_layout_at(y->layout, channels, area, row / channels, row % channels, &step);
    return base + at % area * step;
}

void hth_bench_compare(const hth_bench *b, bool relu, hth_choice *c)
{
    hth_dtype type = b->graph->values[b->node->outputs[0]].dtype;
    double worst = 0, squares = 0, largest = 1e-30;
    for (int i = 0; i < b->n_points; i++) {
        double got = hth_sample_get(b->out[0], hth_bench_point(b, i), type);
        double want = relu ? fmax(b->want[i], 0) : b->want[i];
        double diff = fabs(got - want);
        worst = diff <= worst ? worst : diff; // a NaN stays
        squares += diff * diff;
        largest = fmax(largest, fabs(b->want[i]));
    }
    c->error = worst / largest;
    c->rms = b->n_points > 0 ? sqrt(squares / b->n_points) / largest : 0;
}

hth_node hth_bench_bare(const hth_bench *b)
{
    hth_node bare = *b->node;
    for (int i = 0; i < bare.n_post; i++) {
        int operand = bare.post[i].input;
        bare.n_inputs = operand >= 0 && operand < bare.n_inputs ? operand : bare.n_inputs;
    }
    bare.n_post = 0;
    return bare;
}

bool hth_bench_relu(const hth_bench *b)
{
    return b->node->n_post == 1 && b->node->post[0].op == HTH_OP_RELU;
}

static bool bench_float(const hth_bench *b, int value)
{
    hth_dtype type = value >= 0 ? b->graph->values[value].dtype : HTH_DT_F32;
    return type == HTH_DT_F32 || type == HTH_DT_BF16;
}

bool hth_bench_has_error(const hth_bench *b)
{
    const hth_node *n = b->node;
    bool all = hth_convsel_has_menu(n->op) && bench_float(b, n->outputs[0]);
    for (int i = 0; i < n->n_inputs && i < 3 && all; i++) {
        all = bench_float(b, n->inputs[i]);
    }
    return all;
}

hth_err hth_bench_error(hth_bench *b, hth_choice *c)
{
    hth_kernel *k;
    if (!hth_bench_has_error(b)) {
        return HTH_OK;
    }
    hth_node bare = hth_bench_bare(b);
    HTH_TRY(hth_kernel_prepare(b->device, b->graph, &bare, c->name, &k));
    hth_err err = hth_bench_load(b, k);
    if (err == HTH_OK) {
        hth_kernel_args a = {b->args_in, b->out, b->workspace};
        (void)hth_bench_between(b->cache);
        err = hth_bench_samples(b, &bare);
        (void)hth_bench_between(b->cache);
        err = err != HTH_OK ? err : k->run(k, &a);
        if (err == HTH_OK) {
            hth_bench_compare(b, false, c);
        }
        hth_bench_unload(b, k);
    }
    hth_kernel_close(k);
    (void)hth_bench_between(b->cache);
    return err;
}
