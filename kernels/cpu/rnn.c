// SPDX-License-Identifier: Apache-2.0
// LSTM and GRU as exporters write them: constant weights, the usual activations, no peepholes, no
// clipping, no lengths, one layer of either or both directions. The inputs of all time steps are
// one product; each step then adds the state's product and applies the cell, vectorised over its
// units. Everything else is left to the reference.
#include "kernels/cpu/plain.h"

#include "base/alloc.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector.h"

#include <stdio.h>

typedef struct rnn_kernel {
    hth_kernel base;
    hth_packing packing[2]; // W, R: a direction's panels after the other's
    int n_threads;
    bool lstm, reverse; // reverse: the only direction runs backwards
    size_t gates, steps, batch, in, hid, dirs;
    bool has_bias, has_h, has_c; // inputs 3, 5, 6
    size_t n_out;
    size_t packed[2], at_hr, at_h, at_c, at_scratch, scratch; // byte offsets in the workspace
} rnn_kernel;

typedef struct rnn_job {
    const rnn_kernel *k;
    hth_gemm gemm;
    char *scratch;
    const float *x; // of this step, (batch, gates * hid)
    float *hr, *h, *c, *y;
} rnn_job;

// Gates in ONNX's order: i o f c.
HTH_VECTOR(rnn_lstm, (const float *x, const float *r, float *c, float *h, float *y, size_t n),
           (x, r, c, h, y, n))
{
    for (size_t i = 0; i < n; i++) {
        float in = hth_sigmoidf(x[i] + r[i]), out = hth_sigmoidf(x[n + i] + r[n + i]);
        float forget = hth_sigmoidf(x[2 * n + i] + r[2 * n + i]);
        c[i] = forget * c[i] + in * hth_tanhf(x[3 * n + i] + r[3 * n + i]);
        h[i] = out * hth_tanhf(c[i]);
        y[i] = h[i];
    }
}

// z r h, the reset gate after the product.
HTH_VECTOR(rnn_gru, (const float *x, const float *r, float *h, float *y, size_t n), (x, r, h, y, n))
{
    for (size_t i = 0; i < n; i++) {
        float z = hth_sigmoidf(x[i] + r[i]), reset = hth_sigmoidf(x[n + i] + r[n + i]);
        float v = hth_tanhf(x[2 * n + i] + reset * r[2 * n + i]);
        h[i] = (1.0F - z) * v + z * h[i];
        y[i] = h[i];
    }
}

static void rnn_product(void *arg, int i, int n)
{
    const rnn_job *j = arg;
    hth_gemm_share(&j->gemm, i, n, hth_cpu_floats(j->scratch, (size_t)i * j->k->scratch));
}

static void rnn_cells(void *arg, int i, int n)
{
    const rnn_job *j = arg;
    const rnn_kernel *k = j->k;
    size_t begin, end, wide = k->gates * k->hid;
    hth_team_range(k->batch, i, n, &begin, &end);
    for (size_t b = begin; b < end; b++) {
        const float *x = j->x + b * wide, *r = j->hr + b * wide;
        float *h = j->h + b * k->hid, *y = j->y == NULL ? h : j->y + b * k->hid;
        if (k->lstm) {
            rnn_lstm(x, r, j->c + b * k->hid, h, y, k->hid);
        } else {
            rnn_gru(x, r, h, y, k->hid);
        }
    }
}

// c = a (m x depth) times direction `dir` of packed weights, plus the half `half` of the bias.
static void rnn_multiply(rnn_job *job, const hth_kernel_args *args, const float *a, size_t m,
                         int half, size_t dir, float *c)
{
    const rnn_kernel *k = job->k;
    size_t depth = half == 0 ? k->in : k->hid, n = k->gates * k->hid;
    hth_epilogue bias = {.n = k->has_bias, .step = {{.op = HTH_OP_ADD, .alpha = 1, .col = 1}}};
    bias.step[0].operand =
        k->has_bias ? (const float *)args->in[3] + (2 * dir + (size_t)half) * n : NULL;
    job->gemm = (hth_gemm){.m = m,
                           .n = n,
                           .k = depth,
                           .a = a,
                           .a_row = depth,
                           .a_col = 1,
                           .b = hth_cpu_floats(args->in[1 + half], dir * k->packed[half]),
                           .c = c,
                           .c_row = n,
                           .alpha = 1,
                           .post = &bias};
    hth_cpu_share(k->n_threads, m * n * depth / 2, rnn_product, job);
}

static void rnn_start(const rnn_kernel *kernel, float *state, const float *initial, size_t dir)
{
    size_t n = kernel->batch * kernel->hid;
    if (initial != NULL) {
        memcpy(state, initial + dir * n, n * sizeof *state);
    } else {
        memset(state, 0, n * sizeof *state);
    }
}

static void rnn_direction(const rnn_kernel *kernel, const hth_kernel_args *args, size_t dir)
{
    char *ws = args->workspace;
    size_t state = kernel->batch * kernel->hid, wide = kernel->batch * kernel->gates * kernel->hid;
    float *xw = hth_cpu_floats(ws, 0), *out[3] = {NULL, NULL, NULL};
    rnn_job j = {.k = kernel,
                 .scratch = ws + kernel->at_scratch,
                 .hr = hth_cpu_floats(ws, kernel->at_hr),
                 .h = hth_cpu_floats(ws, kernel->at_h),
                 .c = hth_cpu_floats(ws, kernel->at_c)};
    for (size_t i = 0; i < kernel->n_out; i++) {
        out[i] = args->out[i];
    }
    rnn_start(kernel, j.h, kernel->has_h ? args->in[5] : NULL, dir);
    rnn_start(kernel, j.c, kernel->has_c ? args->in[6] : NULL, dir);
    rnn_multiply(&j, args, args->in[0], kernel->steps * kernel->batch, 0, dir, xw);
    for (size_t s = 0; s < kernel->steps; s++) {
        size_t t = kernel->reverse || dir == 1 ? kernel->steps - 1 - s : s;
        rnn_multiply(&j, args, j.h, kernel->batch, 1, dir, j.hr);
        j.x = xw + t * wide;
        j.y = out[0] == NULL ? NULL : out[0] + (t * kernel->dirs + dir) * state;
        hth_cpu_share(kernel->n_threads, wide * 16, rnn_cells, &j);
    }
    if (out[1] != NULL) {
        memcpy(out[1] + dir * state, j.h, state * sizeof(float));
    }
    if (out[2] != NULL) {
        memcpy(out[2] + dir * state, j.c, state * sizeof(float));
    }
}

static hth_err rnn_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const rnn_kernel *k = (const rnn_kernel *)base;
    for (size_t dir = 0; dir < k->dirs; dir++) {
        rnn_direction(k, args, dir);
    }
    return HTH_OK;
}

static hth_err rnn_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                        void *dst)
{
    const rnn_kernel *k = (const rnn_kernel *)base;
    int half = packing->input - 1;
    size_t depth = half == 0 ? k->in : k->hid, n = k->gates * k->hid;
    for (size_t dir = 0; dir < k->dirs; dir++) {
        hth_gemm_pack((const float *)plain + dir * n * depth, 1, depth, depth, n, 0,
                      hth_gemm_panels(n), hth_cpu_floats(dst, dir * k->packed[half]));
    }
    return HTH_OK;
}

static bool rnn_given(const hth_node *node, int input)
{
    return input < node->n_inputs && node->inputs[input] >= 0;
}

static bool rnn_takes(const hth_graph *graph, const hth_node *node)
{
    bool lstm = node->op == HTH_OP_LSTM;
    return node->n_post == 0 && cpu_plain_f32(graph, node, node->n_inputs) && !rnn_given(node, 4) &&
           !(lstm && rnn_given(node, 7)) && hth_node_attr(node, "activations") == NULL &&
           hth_node_attr(node, "clip") == NULL && hth_node_int(node, "layout", 0) == 0 &&
           hth_node_int(node, "input_forget", 0) == 0 &&
           (lstm || hth_node_int(node, "linear_before_reset", 0) != 0) &&
           graph->values[node->inputs[1]].constant != NULL &&
           graph->values[node->inputs[2]].constant != NULL;
}

static size_t rnn_reserve(rnn_kernel *kernel, size_t bytes)
{
    size_t at = kernel->base.workspace_bytes;
    kernel->base.workspace_bytes +=
        (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return at;
}

static void rnn_describe(rnn_kernel *kernel, const hth_graph *graph, const hth_node *node)
{
    const hth_shape *x = &graph->values[node->inputs[0]].shape,
                    *r = &graph->values[node->inputs[2]].shape;
    kernel->lstm = node->op == HTH_OP_LSTM;
    kernel->gates = kernel->lstm ? 4 : 3;
    kernel->reverse = hth_node_str(node, "direction", "forward")[0] == 'r';
    kernel->steps = (size_t)x->dim[0];
    kernel->batch = (size_t)x->dim[1];
    kernel->in = (size_t)x->dim[2];
    kernel->dirs = (size_t)r->dim[0];
    kernel->hid = (size_t)r->dim[2];
    kernel->has_bias = rnn_given(node, 3);
    kernel->has_h = rnn_given(node, 5);
    kernel->has_c = kernel->lstm && rnn_given(node, 6);
    kernel->n_out = (size_t)node->n_outputs;
    size_t wide = kernel->batch * kernel->gates * kernel->hid * sizeof(float),
           state = kernel->batch * kernel->hid * sizeof(float),
           rows = kernel->steps * kernel->batch;
    rnn_reserve(kernel, kernel->steps * wide); // the inputs' product, at offset 0
    kernel->at_hr = rnn_reserve(kernel, wide);
    kernel->at_h = rnn_reserve(kernel, state);
    kernel->at_c = rnn_reserve(kernel, state);
    kernel->scratch = hth_gemm_scratch_bytes(rows);
    kernel->at_scratch = rnn_reserve(kernel, (size_t)kernel->n_threads * kernel->scratch);
    for (int half = 0; half < 2; half++) {
        size_t depth = half == 0 ? kernel->in : kernel->hid;
        kernel->packed[half] = hth_gemm_packed_bytes(depth, kernel->gates * kernel->hid);
        hth_packing *p = &kernel->packing[half];
        *p = (hth_packing){
            .input = 1 + half, .bytes = kernel->dirs * kernel->packed[half], .pack = rnn_pack};
        snprintf(p->form, sizeof p->form, "panels%d:%zux(%zux%zu)^T", hth_gemm_width(),
                 kernel->dirs, kernel->gates * kernel->hid, depth);
    }
}

hth_err cpu_rnn_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                        const char *algorithm, hth_kernel **out)
{
    if (algorithm != NULL || !rnn_takes(graph, node)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': a rare form of recurrent network", node->name);
    }
    rnn_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){.run = rnn_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "gemm+cells",
                           .inplace_input = -1};
    k->n_threads = device->props.n_threads;
    rnn_describe(k, graph, node);
    k->base.packings = k->packing;
    k->base.n_packings = 2;
    *out = &k->base;
    return HTH_OK;
}
