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
static void rnn_multiply(rnn_job *j, const hth_kernel_args *args, const float *a, size_t m,
                         int half, size_t dir, float *c)
{
    const rnn_kernel *k = j->k;
    size_t depth = half == 0 ? k->in : k->hid, n = k->gates * k->hid;
    hth_epilogue bias = {.n = k->has_bias, .step = {{.op = HTH_OP_ADD, .alpha = 1, .col = 1}}};
    bias.step[0].operand =
        k->has_bias ? (const float *)args->in[3] + (2 * dir + (size_t)half) * n : NULL;
    j->gemm = (hth_gemm){.m = m,
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
    hth_cpu_share(k->n_threads, m * n * depth / 2, rnn_product, j);
}

static void rnn_start(const rnn_kernel *k, float *state, const float *initial, size_t dir)
{
    size_t n = k->batch * k->hid;
    if (initial != NULL) {
        memcpy(state, initial + dir * n, n * sizeof *state);
    } else {
        memset(state, 0, n * sizeof *state);
    }
}

static void rnn_direction(const rnn_kernel *k, const hth_kernel_args *a, size_t dir)
{
    char *ws = a->workspace;
    size_t state = k->batch * k->hid, wide = k->batch * k->gates * k->hid;
    float *xw = hth_cpu_floats(ws, 0), *out[3] = {NULL, NULL, NULL};
    rnn_job j = {.k = k,
                 .scratch = ws + k->at_scratch,
                 .hr = hth_cpu_floats(ws, k->at_hr),
                 .h = hth_cpu_floats(ws, k->at_h),
                 .c = hth_cpu_floats(ws, k->at_c)};
    for (size_t i = 0; i < k->n_out; i++) {
        out[i] = a->out[i];
    }
    rnn_start(k, j.h, k->has_h ? a->in[5] : NULL, dir);
    rnn_start(k, j.c, k->has_c ? a->in[6] : NULL, dir);
    rnn_multiply(&j, a, a->in[0], k->steps * k->batch, 0, dir, xw);
    for (size_t s = 0; s < k->steps; s++) {
        size_t t = k->reverse || dir == 1 ? k->steps - 1 - s : s;
        rnn_multiply(&j, a, j.h, k->batch, 1, dir, j.hr);
        j.x = xw + t * wide;
        j.y = out[0] == NULL ? NULL : out[0] + (t * k->dirs + dir) * state;
        hth_cpu_share(k->n_threads, wide * 16, rnn_cells, &j);
    }
    if (out[1] != NULL) {
        memcpy(out[1] + dir * state, j.h, state * sizeof(float));
    }
    if (out[2] != NULL) {
        memcpy(out[2] + dir * state, j.c, state * sizeof(float));
    }
}

static hth_err rnn_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const rnn_kernel *k = (const rnn_kernel *)base;
    for (size_t dir = 0; dir < k->dirs; dir++) {
        rnn_direction(k, a, dir);
    }
    return HTH_OK;
}

static hth_err rnn_pack(const hth_kernel *base, const hth_packing *p, const void *plain, void *dst)
{
    const rnn_kernel *k = (const rnn_kernel *)base;
    int half = p->input - 1;
    size_t depth = half == 0 ? k->in : k->hid, n = k->gates * k->hid;
    for (size_t dir = 0; dir < k->dirs; dir++) {
        hth_gemm_pack((const float *)plain + dir * n * depth, 1, depth, depth, n, 0,
                      hth_gemm_panels(n), hth_cpu_floats(dst, dir * k->packed[half]));
    }
    return HTH_OK;
}

static bool rnn_given(const hth_node *n, int input)
{
    return input < n->n_inputs && n->inputs[input] >= 0;
}

static bool rnn_takes(const hth_graph *g, const hth_node *n)
{
    bool lstm = n->op == HTH_OP_LSTM;
    return n->n_post == 0 && cpu_plain_f32(g, n, n->n_inputs) && !rnn_given(n, 4) &&
           !(lstm && rnn_given(n, 7)) && hth_node_attr(n, "activations") == NULL &&
           hth_node_attr(n, "clip") == NULL && hth_node_int(n, "layout", 0) == 0 &&
           hth_node_int(n, "input_forget", 0) == 0 &&
           (lstm || hth_node_int(n, "linear_before_reset", 0) != 0) &&
           g->values[n->inputs[1]].constant != NULL && g->values[n->inputs[2]].constant != NULL;
}

static size_t rnn_reserve(rnn_kernel *k, size_t bytes)
{
    size_t at = k->base.workspace_bytes;
    k->base.workspace_bytes += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return at;
}

static void rnn_describe(rnn_kernel *k, const hth_graph *g, const hth_node *n)
{
    const hth_shape *x = &g->values[n->inputs[0]].shape, *r = &g->values[n->inputs[2]].shape;
    k->lstm = n->op == HTH_OP_LSTM;
    k->gates = k->lstm ? 4 : 3;
    k->reverse = hth_node_str(n, "direction", "forward")[0] == 'r';
    k->steps = (size_t)x->dim[0];
    k->batch = (size_t)x->dim[1];
    k->in = (size_t)x->dim[2];
    k->dirs = (size_t)r->dim[0];
    k->hid = (size_t)r->dim[2];
    k->has_bias = rnn_given(n, 3);
    k->has_h = rnn_given(n, 5);
    k->has_c = k->lstm && rnn_given(n, 6);
    k->n_out = (size_t)n->n_outputs;
    size_t wide = k->batch * k->gates * k->hid * sizeof(float),
           state = k->batch * k->hid * sizeof(float), rows = k->steps * k->batch;
    rnn_reserve(k, k->steps * wide); // the inputs' product, at offset 0
    k->at_hr = rnn_reserve(k, wide);
    k->at_h = rnn_reserve(k, state);
    k->at_c = rnn_reserve(k, state);
    k->scratch = hth_gemm_scratch_bytes(rows);
    k->at_scratch = rnn_reserve(k, (size_t)k->n_threads * k->scratch);
    for (int half = 0; half < 2; half++) {
        size_t depth = half == 0 ? k->in : k->hid;
        k->packed[half] = hth_gemm_packed_bytes(depth, k->gates * k->hid);
        hth_packing *p = &k->packing[half];
        *p = (hth_packing){.input = 1 + half, .bytes = k->dirs * k->packed[half], .pack = rnn_pack};
        snprintf(p->form, sizeof p->form, "panels%d:%zux(%zux%zu)^T", hth_gemm_width(), k->dirs,
                 k->gates * k->hid, depth);
    }
}

hth_err cpu_rnn_prepare(hth_device *d, const hth_graph *g, const hth_node *n, const char *algorithm,
                        hth_kernel **out)
{
    if (algorithm != NULL || !rnn_takes(g, n)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': a rare form of recurrent network", n->name);
    }
    rnn_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for node '%s'", n->name);
    }
    k->base = (hth_kernel){.run = rnn_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "gemm+cells",
                           .inplace_input = -1};
    k->n_threads = d->props.n_threads;
    rnn_describe(k, g, n);
    k->base.packings = k->packing;
    k->base.n_packings = 2;
    *out = &k->base;
    return HTH_OK;
}
