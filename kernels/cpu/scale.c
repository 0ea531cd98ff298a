// SPDX-License-Identifier: Apache-2.0
// y[n][c][s] = clamp(x[n][c][s] * scale[c] + shift[c]): what remains of a batch normalization that
// could not be folded into a convolution (DenseNet normalizes before it convolves). scale and shift
// are few: they are put into blocks, in the workspace, at the start of every run, which also serves
// a BatchNormalization given by its four vectors.
#include "kernels/cpu/blocked.h"

#include "device/cpu/team.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct scale_kernel {
    hth_kernel base;
    int n_threads;
    bool norm; // BatchNormalization: inputs are scale, bias, mean, variance
    float epsilon, low, high;
    hth_rows rows;
} scale_kernel;

typedef struct scale_job {
    const scale_kernel *k;
    const float *x, *scale, *shift;
    float *y;
} scale_job;

static inline __attribute__((always_inline)) void scale_row(const scale_job *job, const float *x,
                                                            float *y, size_t block, size_t B)
{
    const float *scale = job->scale + block * B, *shift = job->shift + block * B;
    float low = job->k->low, high = job->k->high;
    for (size_t i = 0; i < job->k->rows.s; i++) {
        for (size_t l = 0; l < B; l++) {
            float v = x[i * B + l] * scale[l] + shift[l];
            v = v < low ? low : v;
            y[i * B + l] = v > high ? high : v;
        }
    }
}

static void scale_part(void *arg, int i, int n)
{
    const scale_job *j = arg;
    const hth_rows *r = &j->k->rows;
    size_t begin, end;
    hth_team_range(r->n * r->blocks, i, n, &begin, &end);
    for (size_t row = begin; row < end; row++) {
        size_t block = row % r->blocks, at = row * r->s * r->b;
        if (r->b == 16) {
            scale_row(j, j->x + at, j->y + at, block, 16);
        } else if (r->b == 8) {
            scale_row(j, j->x + at, j->y + at, block, 8);
        } else {
            scale_row(j, j->x + at, j->y + at, block, 1);
        }
        hth_rows_clear(r, block, j->y + at);
    }
}

static hth_err scale_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const scale_kernel *k = (const scale_kernel *)base;
    size_t c = k->rows.c, padded = k->rows.blocks * k->rows.b;
    float *scale = args->workspace, *shift = scale + padded;
    memset(scale, 0, 2 * padded * sizeof *scale);
    memcpy(scale, args->in[1], c * sizeof *scale);
    memcpy(shift, args->in[2], c * sizeof *shift);
    if (k->norm) {
        const float *mean = args->in[3], *var = args->in[4];
        for (size_t i = 0; i < c; i++) {
            scale[i] /= sqrtf(var[i] + k->epsilon);
            shift[i] -= mean[i] * scale[i];
        }
    }
    scale_job j = {k, args->in[0], scale, shift, args->out[0]};
    hth_team_set(k->n_threads);
    hth_team_run(scale_part, &j);
    return HTH_OK;
}

static bool scale_clamp(const hth_post_op *op, float *low, float *high)
{
    if (op->op != HTH_OP_RELU && op->op != HTH_OP_CLIP) {
        return false;
    }
    *low = op->op == HTH_OP_RELU ? 0 : op->alpha;
    *high = op->op == HTH_OP_RELU ? INFINITY : op->beta;
    return true;
}

bool cpu_scale_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                        const hth_post_op *post, int operand)
{
    float low, high;
    return node->n_post == 0 && scale_clamp(post, &low, &high);
}

static bool scale_takes(const hth_graph *graph, const hth_node *node)
{
    bool norm = node->op == HTH_OP_BATCH_NORMALIZATION;
    for (int i = 0; i < (norm ? 5 : 3); i++) {
        const hth_value *v = &graph->values[node->inputs[i]];
        if (v->dtype != HTH_DT_F32 || (i > 0 && hth_shape_elements(&v->shape) !=
                                                    graph->values[node->inputs[0]].shape.dim[1])) {
            return false;
        }
    }
    return node->n_post <= 1 &&
           (!norm || (node->n_outputs == 1 && hth_node_int(node, "training_mode", 0) == 0));
}

hth_err cpu_scale_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const char *algorithm, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[0]], *y = &graph->values[node->outputs[0]];
    scale_kernel k = {.n_threads = device->props.n_threads,
                      .norm = node->op == HTH_OP_BATCH_NORMALIZATION,
                      .epsilon = hth_node_float(node, "epsilon", 1e-5F),
                      .low = -INFINITY,
                      .high = INFINITY};
    if (algorithm != NULL || !hth_rows_of(&x->shape, x->layout, &k.rows) ||
        y->layout != x->layout || !scale_takes(graph, node) ||
        (node->n_post == 1 && !scale_clamp(&node->post[0], &k.low, &k.high))) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not f32, or in training", node->name);
    }
    k.base = (hth_kernel){.run = scale_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "scale",
                          .inplace_input = 0};
    k.base.workspace_bytes = 2 * k.rows.blocks * k.rows.b * sizeof(float);
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
