// SPDX-License-Identifier: Apache-2.0
// Element-wise operators on plain f32 tensors: a piece of input 0, broadcast, is copied to the
// output and the operator applied to it there, in the first-level cache, by the same loops that
// apply post ops. Rows are as many trailing dimensions as every operand runs through alike.
#include "kernels/cpu/plain.h"

#include "base/alloc.h"
#include "kernels/cpu/epilogue.h"

#include <float.h>
#include <string.h>

#define ELEMENT_CHUNK 2048 // floats: 8 KiB of output, with operands well inside 32 KiB

typedef struct element_kernel {
    hth_kernel base;
    int n_threads;
    size_t rows, cols, cost;
    hth_epilogue_step first; // how input 0 is read
    hth_epilogue chain;
} element_kernel;

typedef struct element_job {
    const element_kernel *k;
    hth_epilogue chain;
    const float *x;
    float *y;
} element_job;

static void element_load(const element_job *job, size_t row, size_t col, size_t n)
{
    const hth_epilogue_step *s = &job->k->first;
    const float *x = job->x + hth_epilogue_offset(s, row) + col * s->col;
    float *y = job->y + row * job->k->cols + col;
    if (x == y) {
        return;
    }
    if (s->col == 1) {
        memcpy(y, x, n * sizeof *y);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = *x;
    }
}

static void element_share(void *arg, int i, int n)
{
    const element_job *j = arg;
    const element_kernel *k = j->k;
    size_t chunks = (k->cols + ELEMENT_CHUNK - 1) / ELEMENT_CHUNK, begin, end;
    size_t group = k->cols < ELEMENT_CHUNK ? ELEMENT_CHUNK / k->cols : 1;
    size_t groups = (k->rows + group - 1) / group;
    hth_team_range(groups * chunks, i, n, &begin, &end);
    for (size_t w = begin; w < end; w++) {
        size_t row = w / chunks * group, col = w % chunks * ELEMENT_CHUNK;
        size_t rows = k->rows - row < group ? k->rows - row : group;
        size_t cols = k->cols - col < ELEMENT_CHUNK ? k->cols - col : ELEMENT_CHUNK;
        for (size_t r = 0; r < rows; r++) {
            element_load(j, row + r, col, cols);
        }
        hth_epilogue_apply(&j->chain, j->y + row * k->cols + col, k->cols, row, rows, col, cols);
    }
}

static hth_err element_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const element_kernel *k = (const element_kernel *)base;
    element_job j = {k, k->chain, args->in[0], args->out[0]};
    hth_epilogue_bind(&j.chain, args->in);
    hth_cpu_share(k->n_threads, k->rows * k->cols * k->cost, element_share, &j);
    return HTH_OK;
}

// The operator itself as a step; Clip's bounds must be constant.
static bool element_step(const hth_graph *graph, const hth_node *node, hth_epilogue_step *step)
{
    bool binary = node->n_inputs == 2 && node->op != HTH_OP_CLIP;
    *step = (hth_epilogue_step){.op = node->op, .alpha = 1, .input = binary ? 1 : -1};
    if (!hth_epilogue_known(node->op, binary)) {
        return false;
    }
    if (node->op != HTH_OP_CLIP) {
        if (!binary) {
            step->alpha = hth_cpu_alpha(node, node->op);
            step->beta = hth_node_float(node, "beta", 0.5F);
        }
        if (node->op == HTH_OP_GELU) {
            step->alpha = strcmp(hth_node_str(node, "approximate", "none"), "tanh") == 0;
        }
        return true;
    }
    step->alpha = -FLT_MAX;
    step->beta = FLT_MAX;
    for (int i = 1; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0) {
            const hth_const *c = graph->values[node->inputs[i]].constant;
            if (c == NULL || c->data == NULL) {
                return false;
            }
            memcpy(i == 1 ? &step->alpha : &step->beta, c->data, sizeof step->alpha);
        }
    }
    return true;
}

// The longest rows for which all operands are complete or a single number in a row.
static void element_rows(const hth_graph *graph, const hth_node *node, element_kernel *kernel,
                         int operands)
{
    const hth_shape *y = &graph->values[node->outputs[0]].shape;
    hth_epilogue_step *s[2] = {&kernel->first, &kernel->chain.step[0]};
    for (int keep = y->rank; keep >= 0; keep--) {
        bool fits = true;
        for (int i = 0; i < operands && fits; i++) {
            fits = hth_epilogue_operand(&graph->values[node->inputs[i]].shape, y, keep, s[i]);
        }
        if (fits) {
            kernel->cols = 1;
            for (int d = y->rank - keep; d < y->rank; d++) {
                kernel->cols *= (size_t)y->dim[d];
            }
            kernel->rows = (size_t)hth_shape_elements(y) / kernel->cols;
            return;
        }
    }
}

hth_err cpu_element_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const char *algorithm, hth_kernel **out)
{
    hth_epilogue_step step;
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, node->n_inputs) ||
        !element_step(graph, node, &step)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not an element-wise loop", node->name);
    }
    element_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){.run = element_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "element",
                           .inplace_input = -1};
    k->n_threads = device->props.n_threads;
    k->chain = (hth_epilogue){.n = 1, .step = {step}};
    k->cost = step.input < 0 ? 4 : 1;
    element_rows(graph, node, k, step.input < 0 ? 1 : 2);
    const hth_value *x = &graph->values[node->inputs[0]];
    bool twice = step.input > 0 && node->inputs[0] == node->inputs[1];
    if (hth_shape_equal(&x->shape, &graph->values[node->outputs[0]].shape) && !twice) {
        k->base.inplace_input = 0;
    }
    *out = &k->base;
    return HTH_OK;
}

bool cpu_plain_f32(const hth_graph *graph, const hth_node *node, int inputs)
{
    for (int i = 0; i < inputs + node->n_outputs; i++) {
        int at = i < inputs ? node->inputs[i] : node->outputs[i - inputs];
        const hth_value *v = at < 0 ? NULL : &graph->values[at];
        if (v != NULL && (v->dtype != HTH_DT_F32 || v->layout != HTH_LAYOUT_PLAIN ||
                          hth_shape_elements(&v->shape) <= 0)) {
            return false;
        }
    }
    return true;
}
