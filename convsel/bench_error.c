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

static int64_t bench_points(const hth_bench *bench, const hth_node *node)
{
    if (node->op != HTH_OP_CONV_GRAD_FILTER) {
        return SAMPLES;
    }
    const hth_shape *dy = &bench->graph->values[node->inputs[1]].shape;
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
    const void *bias_plain = bias ? b->in[2].plain : NULL;
    hth_err err = j->bare->op == HTH_OP_CONV_GRAD_FILTER
                      ? hth_sample_filter_grad(b->graph, j->bare, b->in[0].placed, b->in[1].placed,
                                               index, points, b->want + begin)
                      : hth_sample_conv(b->graph, j->bare, b->in[0].placed, b->in[1].plain,
                                        bias_plain, index, points, b->want + begin);
    if (err != HTH_OK) {
        atomic_store(&j->err, err);
    }
}

hth_err hth_bench_samples(hth_bench *bench, const hth_node *bare)
{
    if (bench->want != NULL) {
        return HTH_OK;
    }
    int64_t total = hth_shape_elements(&bench->graph->values[bare->outputs[0]].shape);
    int64_t points = bench_points(bench, bare);
    uint64_t seed = 42;
    bench->n_points = (int)(total < points ? total : points);
    bench->index = hth_alloc((size_t)bench->n_points * sizeof *bench->index);
    bench->want = hth_alloc((size_t)bench->n_points * sizeof *bench->want);
    if (bench->index == NULL || bench->want == NULL) {
        return hth_no_memory("measuring node '%s'", bare->name);
    }
    for (int i = 0; i < bench->n_points; i++) {
        bench->index[i] =
            total <= points
                ? i
                : (int64_t)(hth_bench_next(&seed) << 16 ^ hth_bench_next(&seed)) % total;
    }
    sample_job j = {bench, bare, HTH_OK};
    if (bench->device->props.host_visible) { // else those are not the host's threads
        hth_team_set(bench->device->props.n_threads);
    }
    hth_team_run(sample_part, &j);
    return atomic_load(&j.err);
}

size_t hth_bench_point(const hth_bench *bench, int i)
{
    const hth_value *y = &bench->graph->values[bench->node->outputs[0]];
    size_t channels = (size_t)y->shape.dim[1], area = 1, step;
    for (int d = 2; d < y->shape.rank; d++) {
        area *= (size_t)y->shape.dim[d];
    }
    size_t at = (size_t)bench->index[i], row = at / area;
    size_t base = hth_layout_at(y->layout, channels, area, row / channels, row % channels, &step);
    return base + at % area * step;
}

void hth_bench_compare(const hth_bench *bench, bool relu, hth_choice *choice)
{
    hth_dtype type = bench->graph->values[bench->node->outputs[0]].dtype;
    double worst = 0, squares = 0, largest = 1e-30;
    for (int i = 0; i < bench->n_points; i++) {
        double got = hth_sample_get(bench->out[0], hth_bench_point(bench, i), type);
        double want = relu ? fmax(bench->want[i], 0) : bench->want[i];
        double diff = fabs(got - want);
        worst = diff <= worst ? worst : diff; // a NaN stays
        squares += diff * diff;
        largest = fmax(largest, fabs(bench->want[i]));
    }
    choice->error = worst / largest;
    choice->rms = bench->n_points > 0 ? sqrt(squares / bench->n_points) / largest : 0;
}

hth_node hth_bench_bare(const hth_bench *bench)
{
    hth_node bare = *bench->node;
    for (int i = 0; i < bare.n_post; i++) {
        int operand = bare.post[i].input;
        bare.n_inputs = operand >= 0 && operand < bare.n_inputs ? operand : bare.n_inputs;
    }
    bare.n_post = 0;
    return bare;
}

bool hth_bench_relu(const hth_bench *bench)
{
    return bench->node->n_post == 1 && bench->node->post[0].op == HTH_OP_RELU;
}

static bool bench_float(const hth_bench *bench, int value)
{
    hth_dtype type = value >= 0 ? bench->graph->values[value].dtype : HTH_DT_F32;
    return type == HTH_DT_F32 || type == HTH_DT_BF16;
}

bool hth_bench_has_error(const hth_bench *bench)
{
    const hth_node *n = bench->node;
    bool all = hth_convsel_has_menu(n->op) && bench_float(bench, n->outputs[0]);
    for (int i = 0; i < n->n_inputs && i < 3 && all; i++) {
        all = bench_float(bench, n->inputs[i]);
    }
    return all;
}

hth_err hth_bench_error(hth_bench *bench, hth_choice *choice)
{
    hth_kernel *k;
    if (!hth_bench_has_error(bench)) {
        return HTH_OK;
    }
    hth_node bare = hth_bench_bare(bench);
    HTH_TRY(hth_kernel_prepare(bench->device, bench->graph, &bare, choice->name, &k));
    hth_err err = hth_bench_load(bench, k);
    if (err != HTH_OK) {
        goto close;
    }
    hth_kernel_args a = {bench->args_in, bench->out, bench->workspace, NULL};
    (void)hth_bench_between(bench->cache);
    err = hth_bench_samples(bench, &bare);
    (void)hth_bench_between(bench->cache);
    if (err != HTH_OK) {
        goto unload;
    }
    HTH_GOTO(k->run(k, &a), unload);
    hth_bench_compare(bench, false, choice);
unload:
    hth_bench_unload(bench, k);
close:
    hth_kernel_close(k);
    (void)hth_bench_between(bench->cache);
    return err;
}
