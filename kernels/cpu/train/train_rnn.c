// SPDX-License-Identifier: Apache-2.0
// Backpropagation through time of RNN, GRU and LSTM in the form that exporters write (the reset
// gate after the product). The forward pass is computed again and keeps gates and states of every
// step; then the steps are walked back, which turns the gates into the gradients before the
// activations. Only the state's products are made step by step: those with the inputs, and the
// parameters' gradients, which are sums over all steps, are one product each, of all directions
// together where they share an operand. Rows of all buffers are in the order of time, so the state
// before step t lies at t, for a direction that runs backwards at t + 1.
//
// A product packs its second operand first, in the same memory as the last one's.
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/train/train_rnn.h"

#include <string.h>

enum { X, W, R, B, H0, C0, DY, DYH, DYC };
enum { DX, DW, DR, DB, DH0, DC0 };

typedef struct rnn_kernel {
    hth_kernel base;
    int n_threads, n_in, n_out;
    bool reverse, relu; // reverse: the only direction runs backwards
    size_t gates, steps, batch, in, hid, dirs;
    // byte offsets in the workspace
    size_t at_gate, at_dstate, at_state, at_bias, at_h, at_c, at_cand, at_dh, at_dc, at_packed,
        at_scratch, scratch;
} rnn_kernel;

typedef struct rnn_job {
    const rnn_kernel *k;
    const hth_kernel_args *a;
    float *gate, *dstate; // (steps, batch, dirs, gates * hid); the same but for GRU
    float *state;         // (batch, gates * hid); walking back: (batch, hid)
    float *bias, *h, *c, *cand, *dh, *dc, *packed;
    const float *dy;
    size_t dir, t;
    bool backwards, back; // the direction; walking back
    hth_gemm gemm;
    size_t b_row, b_col; // of the matrix to pack
    const float *b;
} rnn_job;

static const float *rnn_in(const rnn_job *job, int i)
{
    return i < job->k->n_in ? job->a->in[i] : NULL;
}

static float *rnn_out(const rnn_job *job, int i)
{
    return i < job->k->n_out ? job->a->out[i] : NULL;
}

static void rnn_pack(void *arg, int i, int n)
{
    const rnn_job *j = arg;
    size_t begin, end;
    hth_team_range(hth_gemm_panels(j->gemm.n), i, n, &begin, &end);
    hth_gemm_pack(j->b, j->b_row, j->b_col, j->gemm.k, j->gemm.n, begin, end, j->packed);
}

static void rnn_share(void *arg, int i, int n)
{
    const rnn_job *j = arg;
    const rnn_kernel *k = j->k;
    char *scratch = (char *)j->a->workspace + k->at_scratch;
    hth_gemm_share(&j->gemm, i, n, hth_cpu_floats(scratch, (size_t)i * k->scratch));
}

// c (m x n, rows c_row apart) = a (a_row, a_col) times what is packed.
static void rnn_multiply(rnn_job *job, const float *a, size_t a_row, size_t a_col, float *c,
                         size_t c_row, size_t m)
{
    job->gemm.m = m;
    job->gemm.a = a;
    job->gemm.a_row = a_row;
    job->gemm.a_col = a_col;
    job->gemm.b = job->packed;
    job->gemm.c = c;
    job->gemm.c_row = c_row;
    job->gemm.alpha = 1;
    hth_cpu_share(job->k->n_threads, m * job->gemm.n * job->gemm.k / 2, rnn_share, job);
}

// The second operand (depth x n) of the products that follow: element (p, q) at b[p row + q col].
static void rnn_operand(rnn_job *job, const float *b, size_t row, size_t col, size_t depth,
                        size_t n)
{
    job->b = b;
    job->b_row = row;
    job->b_col = col;
    job->gemm.k = depth;
    job->gemm.n = n;
    hth_cpu_share(job->k->n_threads, depth * n, rnn_pack, job);
}

// What the step of one sample works on.
static hth_cell rnn_cell(const rnn_job *job, size_t b)
{
    const rnn_kernel *k = job->k;
    size_t wide = k->gates * k->hid, row = job->t * k->batch + b, states = k->batch * k->hid;
    size_t before = (job->t + job->backwards) * states + b * k->hid,
           behind = (job->t + !job->backwards) * states + b * k->hid;
    size_t gates = (row * k->dirs + job->dir) * wide;
    return (hth_cell){.gate = job->gate + gates,
                      .state = job->state + b * wide,
                      .bias = job->bias,
                      .h0 = job->h + before,
                      .c0 = job->c + before,
                      .h = job->h + behind,
                      .c = job->c + behind,
                      .cand = job->cand + row * k->hid,
                      .dh = job->dh + b * k->hid,
                      .dc = job->dc + b * k->hid,
                      .dstate = job->dstate + gates};
}

static void rnn_back(const rnn_job *job, const hth_cell *cell, size_t b)
{
    const rnn_kernel *k = job->k;
    const float *more = job->state + b * k->hid; // through the state's product of the step after
    const float *dy =
        job->dy == NULL ? NULL : job->dy + ((job->t * k->dirs + job->dir) * k->batch + b) * k->hid;
    for (size_t i = 0; i < k->hid; i++) {
        cell->dh[i] += more[i] + (dy == NULL ? 0 : dy[i]);
    }
    if (k->gates == 4) {
        hth_cell_lstm_back(cell, k->hid);
    } else if (k->gates == 3) {
        hth_cell_gru_back(cell, k->hid);
    } else {
        hth_cell_rnn_back(cell, k->hid, k->relu);
    }
}

static void rnn_cells(void *arg, int i, int n)
{
    const rnn_job *j = arg;
    const rnn_kernel *k = j->k;
    size_t begin, end;
    hth_team_range(k->batch, i, n, &begin, &end);
    for (size_t b = begin; b < end; b++) {
        hth_cell p = rnn_cell(j, b);
        if (j->back) {
            rnn_back(j, &p, b);
        } else if (k->gates == 4) {
            hth_cell_lstm(&p, k->hid);
        } else if (k->gates == 3) {
            hth_cell_gru(&p, k->hid);
        } else {
            hth_cell_rnn(&p, k->hid, k->relu);
        }
    }
}

static void rnn_start(const rnn_job *job, float *to, const float *from)
{
    size_t n = job->k->batch * job->k->hid;
    if (from != NULL) {
        memcpy(to, from + job->dir * n, n * sizeof *to);
    } else {
        memset(to, 0, n * sizeof *to);
    }
}

static void rnn_forward(rnn_job *job)
{
    const rnn_kernel *k = job->k;
    size_t wide = k->gates * k->hid, states = k->batch * k->hid,
           first = job->backwards ? k->steps * states : 0;
    const float *bias = rnn_in(job, B);
    memset(job->bias, 0, 2 * wide * sizeof *job->bias);
    if (bias != NULL) {
        memcpy(job->bias, bias + job->dir * 2 * wide, 2 * wide * sizeof *bias);
    }
    rnn_start(job, job->h + first, rnn_in(job, H0));
    rnn_start(job, job->c + (k->gates == 4 ? first : 0), rnn_in(job, C0));
    rnn_operand(job, rnn_in(job, R) + job->dir * wide * k->hid, 1, k->hid, k->hid, wide);
    job->back = false;
    for (size_t s = 0; s < k->steps; s++) {
        job->t = job->backwards ? k->steps - 1 - s : s;
        rnn_multiply(job, job->h + (job->t + job->backwards) * states, k->hid, 1, job->state, wide,
                     k->batch);
        hth_cpu_share(k->n_threads, k->batch * wide * 16, rnn_cells, job);
    }
}

static void rnn_backward(rnn_job *job)
{
    const rnn_kernel *k = job->k;
    size_t wide = k->gates * k->hid, states = k->batch * k->hid, row = k->dirs * wide;
    rnn_start(job, job->dh, rnn_in(job, DYH));
    rnn_start(job, job->dc, k->gates == 4 ? rnn_in(job, DYC) : NULL);
    memset(job->state, 0, states * sizeof *job->state);
    rnn_operand(job, rnn_in(job, R) + job->dir * wide * k->hid, k->hid, 1, wide, k->hid);
    job->back = true;
    for (size_t s = k->steps; s-- > 0;) {
        job->t = job->backwards ? k->steps - 1 - s : s;
        hth_cpu_share(k->n_threads, k->batch * wide * 16, rnn_cells, job);
        rnn_multiply(job, job->dstate + job->t * k->batch * row + job->dir * wide, row, 1,
                     job->state, k->hid, k->batch);
    }
    float *dh0 = rnn_out(job, DH0), *dc0 = rnn_out(job, DC0);
    for (size_t i = 0; dh0 != NULL && i < states; i++) {
        dh0[job->dir * states + i] = job->dh[i] + job->state[i];
    }
    if (dc0 != NULL) {
        memcpy(dc0 + job->dir * states, job->dc, states * sizeof *dc0);
    }
    if (rnn_out(job, DR) != NULL) {
        rnn_operand(job, job->h + (job->backwards ? states : 0), k->hid, 1, k->steps * k->batch,
                    k->hid);
        rnn_multiply(job, job->dstate + job->dir * wide, 1, row,
                     rnn_out(job, DR) + job->dir * wide * k->hid, k->hid, wide);
    }
}

// dB: (dirs, 2, gates * hid), sums over all rows.
static void rnn_bias(const rnn_job *job)
{
    const rnn_kernel *k = job->k;
    size_t wide = k->gates * k->hid, row = k->dirs * wide;
    float *db = rnn_out(job, DB);
    memset(db, 0, 2 * row * sizeof *db);
    for (size_t r = 0; r < k->steps * k->batch; r++) {
        for (size_t d = 0; d < k->dirs; d++) {
            const float *input = job->gate + r * row + d * wide,
                        *state = job->dstate + r * row + d * wide;
            float *to = db + d * 2 * wide;
            for (size_t i = 0; i < wide; i++) {
                to[i] += input[i];
                to[wide + i] += state[i];
            }
        }
    }
}

static hth_err rnn_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const rnn_kernel *k = (const rnn_kernel *)base;
    const char *ws = args->workspace;
    size_t rows = k->steps * k->batch, row = k->dirs * k->gates * k->hid;
    rnn_job j = {.k = k,
                 .a = args,
                 .gate = hth_cpu_floats(ws, k->at_gate),
                 .dstate = hth_cpu_floats(ws, k->at_dstate),
                 .state = hth_cpu_floats(ws, k->at_state),
                 .bias = hth_cpu_floats(ws, k->at_bias),
                 .h = hth_cpu_floats(ws, k->at_h),
                 .c = hth_cpu_floats(ws, k->at_c),
                 .cand = hth_cpu_floats(ws, k->at_cand),
                 .dh = hth_cpu_floats(ws, k->at_dh),
                 .dc = hth_cpu_floats(ws, k->at_dc),
                 .packed = hth_cpu_floats(ws, k->at_packed)};
    j.dy = rnn_in(&j, DY);
    rnn_operand(&j, args->in[W], 1, k->in, k->in, row);
    rnn_multiply(&j, args->in[X], k->in, 1, j.gate, row, rows);
    for (j.dir = 0; j.dir < k->dirs; j.dir++) {
        j.backwards = k->reverse || j.dir == 1;
        rnn_forward(&j);
        rnn_backward(&j);
    }
    if (rnn_out(&j, DX) != NULL) {
        rnn_operand(&j, args->in[W], k->in, 1, row, k->in);
        rnn_multiply(&j, j.gate, row, 1, args->out[DX], k->in, rows);
    }
    if (rnn_out(&j, DW) != NULL) {
        rnn_operand(&j, args->in[X], k->in, 1, rows, k->in);
        rnn_multiply(&j, j.gate, 1, row, args->out[DW], k->in, row);
    }
    if (rnn_out(&j, DB) != NULL) {
        rnn_bias(&j);
    }
    return HTH_OK;
}

static size_t rnn_reserve(rnn_kernel *kernel, size_t floats)
{
    size_t at = kernel->base.workspace_bytes, bytes = floats * sizeof(float);
    kernel->base.workspace_bytes +=
        (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return at;
}

static size_t rnn_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void rnn_describe(rnn_kernel *kernel, const hth_graph *graph, const hth_node *node)
{
    const hth_shape *x = &graph->values[node->inputs[X]].shape,
                    *r = &graph->values[node->inputs[R]].shape;
    kernel->steps = (size_t)x->dim[0];
    kernel->batch = (size_t)x->dim[1];
    kernel->in = (size_t)x->dim[2];
    kernel->dirs = (size_t)r->dim[0];
    kernel->hid = (size_t)r->dim[2];
    size_t rows = kernel->steps * kernel->batch, wide = kernel->gates * kernel->hid,
           row = kernel->dirs * wide, states = (kernel->steps + 1) * kernel->batch * kernel->hid;
    kernel->at_gate = rnn_reserve(kernel, rows * row);
    kernel->at_dstate = kernel->gates == 3 ? rnn_reserve(kernel, rows * row) : kernel->at_gate;
    kernel->at_state = rnn_reserve(kernel, kernel->batch * wide);
    kernel->at_bias = rnn_reserve(kernel, 2 * wide);
    kernel->at_h = rnn_reserve(kernel, states);
    kernel->at_c = rnn_reserve(kernel, kernel->gates == 4 ? states : kernel->batch * kernel->hid);
    kernel->at_cand = rnn_reserve(kernel, kernel->gates == 3 ? rows * kernel->hid : 0);
    kernel->at_dh = rnn_reserve(kernel, kernel->batch * kernel->hid);
    kernel->at_dc = rnn_reserve(kernel, kernel->batch * kernel->hid);
    const size_t shapes[6][2] = {{kernel->in, row},   {kernel->hid, wide}, {wide, kernel->hid},
                                 {rows, kernel->hid}, {row, kernel->in},   {rows, kernel->in}};
    size_t packed = 0;
    for (int i = 0; i < 6; i++) {
        packed = rnn_max(packed, hth_gemm_packed_bytes(shapes[i][0], shapes[i][1]));
    }
    kernel->at_packed = rnn_reserve(kernel, packed / sizeof(float));
    kernel->scratch = hth_gemm_scratch_bytes(rnn_max(rows, row));
    kernel->at_scratch =
        rnn_reserve(kernel, (size_t)kernel->n_threads * kernel->scratch / sizeof(float));
}

hth_err cpu_rnn_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const char *algorithm, hth_kernel **out)
{
    hth_op op = hth_op_find(hth_node_str(node, "of", ""));
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, node->n_inputs) ||
        graph->values[node->inputs[X]].shape.rank != 3 ||
        graph->values[node->inputs[R]].shape.rank != 3 || hth_node_int(node, "layout", 0) != 0 ||
        (op == HTH_OP_GRU && hth_node_int(node, "linear_before_reset", 0) == 0)) {
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
    k->n_in = node->n_inputs;
    k->n_out = node->n_outputs;
    k->gates = op == HTH_OP_GRU ? 3 : 1;
    k->gates = op == HTH_OP_LSTM ? 4 : k->gates;
    k->reverse = strcmp(hth_node_str(node, "direction", "forward"), "reverse") == 0;
    k->relu = hth_node_int(node, "relu", 0) != 0;
    rnn_describe(k, graph, node);
    *out = &k->base;
    return HTH_OK;
}
