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

static const float *rnn_in(const rnn_job *j, int i)
{
    return i < j->k->n_in ? j->a->in[i] : NULL;
}

static float *rnn_out(const rnn_job *j, int i)
{
    return i < j->k->n_out ? j->a->out[i] : NULL;
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
static void rnn_multiply(rnn_job *j, const float *a, size_t a_row, size_t a_col, float *c,
                         size_t c_row, size_t m)
{
    j->gemm.m = m;
    j->gemm.a = a;
    j->gemm.a_row = a_row;
    j->gemm.a_col = a_col;
    j->gemm.b = j->packed;
    j->gemm.c = c;
    j->gemm.c_row = c_row;
    j->gemm.alpha = 1;
    hth_cpu_share(j->k->n_threads, m * j->gemm.n * j->gemm.k / 2, rnn_share, j);
}

// The second operand (depth x n) of the products that follow: element (p, q) at b[p row + q col].
static void rnn_operand(rnn_job *j, const float *b, size_t row, size_t col, size_t depth, size_t n)
{
    j->b = b;
    j->b_row = row;
    j->b_col = col;
    j->gemm.k = depth;
    j->gemm.n = n;
    hth_cpu_share(j->k->n_threads, depth * n, rnn_pack, j);
}

// What the step of one sample works on.
static hth_cell rnn_cell(const rnn_job *j, size_t b)
{
    const rnn_kernel *k = j->k;
    size_t wide = k->gates * k->hid, row = j->t * k->batch + b, states = k->batch * k->hid;
    size_t before = (j->t + j->backwards) * states + b * k->hid,
           behind = (j->t + !j->backwards) * states + b * k->hid;
    size_t gates = (row * k->dirs + j->dir) * wide;
    return (hth_cell){.gate = j->gate + gates,
                      .state = j->state + b * wide,
                      .bias = j->bias,
                      .h0 = j->h + before,
                      .c0 = j->c + before,
                      .h = j->h + behind,
                      .c = j->c + behind,
                      .cand = j->cand + row * k->hid,
                      .dh = j->dh + b * k->hid,
                      .dc = j->dc + b * k->hid,
                      .dstate = j->dstate + gates};
}

static void rnn_back(const rnn_job *j, const hth_cell *p, size_t b)
{
    const rnn_kernel *k = j->k;
    const float *more = j->state + b * k->hid; // through the state's product of the step after
    const float *dy =
        j->dy == NULL ? NULL : j->dy + ((j->t * k->dirs + j->dir) * k->batch + b) * k->hid;
    for (size_t i = 0; i < k->hid; i++) {
        p->dh[i] += more[i] + (dy == NULL ? 0 : dy[i]);
    }
    if (k->gates == 4) {
        hth_cell_lstm_back(p, k->hid);
    } else if (k->gates == 3) {
        hth_cell_gru_back(p, k->hid);
    } else {
        hth_cell_rnn_back(p, k->hid, k->relu);
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

static void rnn_start(const rnn_job *j, float *to, const float *from)
{
    size_t n = j->k->batch * j->k->hid;
    if (from != NULL) {
        memcpy(to, from + j->dir * n, n * sizeof *to);
    } else {
        memset(to, 0, n * sizeof *to);
    }
}

static void rnn_forward(rnn_job *j)
{
    const rnn_kernel *k = j->k;
    size_t wide = k->gates * k->hid, states = k->batch * k->hid,
           first = j->backwards ? k->steps * states : 0;
    const float *bias = rnn_in(j, B);
    memset(j->bias, 0, 2 * wide * sizeof *j->bias);
    if (bias != NULL) {
        memcpy(j->bias, bias + j->dir * 2 * wide, 2 * wide * sizeof *bias);
    }
    rnn_start(j, j->h + first, rnn_in(j, H0));
    rnn_start(j, j->c + (k->gates == 4 ? first : 0), rnn_in(j, C0));
    rnn_operand(j, rnn_in(j, R) + j->dir * wide * k->hid, 1, k->hid, k->hid, wide);
    j->back = false;
    for (size_t s = 0; s < k->steps; s++) {
        j->t = j->backwards ? k->steps - 1 - s : s;
        rnn_multiply(j, j->h + (j->t + j->backwards) * states, k->hid, 1, j->state, wide, k->batch);
        hth_cpu_share(k->n_threads, k->batch * wide * 16, rnn_cells, j);
    }
}

static void rnn_backward(rnn_job *j)
{
    const rnn_kernel *k = j->k;
    size_t wide = k->gates * k->hid, states = k->batch * k->hid, row = k->dirs * wide;
    rnn_start(j, j->dh, rnn_in(j, DYH));
    rnn_start(j, j->dc, k->gates == 4 ? rnn_in(j, DYC) : NULL);
    memset(j->state, 0, states * sizeof *j->state);
    rnn_operand(j, rnn_in(j, R) + j->dir * wide * k->hid, k->hid, 1, wide, k->hid);
    j->back = true;
    for (size_t s = k->steps; s-- > 0;) {
        j->t = j->backwards ? k->steps - 1 - s : s;
        hth_cpu_share(k->n_threads, k->batch * wide * 16, rnn_cells, j);
        rnn_multiply(j, j->dstate + j->t * k->batch * row + j->dir * wide, row, 1, j->state, k->hid,
                     k->batch);
    }
    float *dh0 = rnn_out(j, DH0), *dc0 = rnn_out(j, DC0);
    for (size_t i = 0; dh0 != NULL && i < states; i++) {
        dh0[j->dir * states + i] = j->dh[i] + j->state[i];
    }
    if (dc0 != NULL) {
        memcpy(dc0 + j->dir * states, j->dc, states * sizeof *dc0);
    }
    if (rnn_out(j, DR) != NULL) {
        rnn_operand(j, j->h + (j->backwards ? states : 0), k->hid, 1, k->steps * k->batch, k->hid);
        rnn_multiply(j, j->dstate + j->dir * wide, 1, row, rnn_out(j, DR) + j->dir * wide * k->hid,
                     k->hid, wide);
    }
}

// dB: (dirs, 2, gates * hid), sums over all rows.
static void rnn_bias(const rnn_job *j)
{
    const rnn_kernel *k = j->k;
    size_t wide = k->gates * k->hid, row = k->dirs * wide;
    float *db = rnn_out(j, DB);
    memset(db, 0, 2 * row * sizeof *db);
    for (size_t r = 0; r < k->steps * k->batch; r++) {
        for (size_t d = 0; d < k->dirs; d++) {
            const float *input = j->gate + r * row + d * wide,
                        *state = j->dstate + r * row + d * wide;
            float *to = db + d * 2 * wide;
            for (size_t i = 0; i < wide; i++) {
                to[i] += input[i];
                to[wide + i] += state[i];
            }
        }
    }
}

static hth_err rnn_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const rnn_kernel *k = (const rnn_kernel *)base;
    const char *ws = a->workspace;
    size_t rows = k->steps * k->batch, row = k->dirs * k->gates * k->hid;
    rnn_job j = {.k = k,
                 .a = a,
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
    rnn_operand(&j, a->in[W], 1, k->in, k->in, row);
    rnn_multiply(&j, a->in[X], k->in, 1, j.gate, row, rows);
    for (j.dir = 0; j.dir < k->dirs; j.dir++) {
        j.backwards = k->reverse || j.dir == 1;
        rnn_forward(&j);
        rnn_backward(&j);
    }
    if (rnn_out(&j, DX) != NULL) {
        rnn_operand(&j, a->in[W], k->in, 1, row, k->in);
        rnn_multiply(&j, j.gate, row, 1, a->out[DX], k->in, rows);
    }
    if (rnn_out(&j, DW) != NULL) {
        rnn_operand(&j, a->in[X], k->in, 1, rows, k->in);
        rnn_multiply(&j, j.gate, 1, row, a->out[DW], k->in, row);
    }
    if (rnn_out(&j, DB) != NULL) {
        rnn_bias(&j);
    }
    return HTH_OK;
}

static size_t rnn_reserve(rnn_kernel *k, size_t floats)
{
    size_t at = k->base.workspace_bytes, bytes = floats * sizeof(float);
    k->base.workspace_bytes += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return at;
}

static size_t rnn_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void rnn_describe(rnn_kernel *k, const hth_graph *g, const hth_node *n)
{
    const hth_shape *x = &g->values[n->inputs[X]].shape, *r = &g->values[n->inputs[R]].shape;
    k->steps = (size_t)x->dim[0];
    k->batch = (size_t)x->dim[1];
    k->in = (size_t)x->dim[2];
    k->dirs = (size_t)r->dim[0];
    k->hid = (size_t)r->dim[2];
    size_t rows = k->steps * k->batch, wide = k->gates * k->hid, row = k->dirs * wide,
           states = (k->steps + 1) * k->batch * k->hid;
    k->at_gate = rnn_reserve(k, rows * row);
    k->at_dstate = k->gates == 3 ? rnn_reserve(k, rows * row) : k->at_gate;
    k->at_state = rnn_reserve(k, k->batch * wide);
    k->at_bias = rnn_reserve(k, 2 * wide);
    k->at_h = rnn_reserve(k, states);
    k->at_c = rnn_reserve(k, k->gates == 4 ? states : k->batch * k->hid);
    k->at_cand = rnn_reserve(k, k->gates == 3 ? rows * k->hid : 0);
    k->at_dh = rnn_reserve(k, k->batch * k->hid);
    k->at_dc = rnn_reserve(k, k->batch * k->hid);
    const size_t shapes[6][2] = {{k->in, row},   {k->hid, wide}, {wide, k->hid},
                                 {rows, k->hid}, {row, k->in},   {rows, k->in}};
    size_t packed = 0;
    for (int i = 0; i < 6; i++) {
        packed = rnn_max(packed, hth_gemm_packed_bytes(shapes[i][0], shapes[i][1]));
    }
    k->at_packed = rnn_reserve(k, packed / sizeof(float));
    k->scratch = hth_gemm_scratch_bytes(rnn_max(rows, row));
    k->at_scratch = rnn_reserve(k, (size_t)k->n_threads * k->scratch / sizeof(float));
}

hth_err cpu_rnn_grad_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                             const char *algorithm, hth_kernel **out)
{
    hth_op op = hth_op_find(hth_node_str(n, "of", ""));
    if (algorithm != NULL || n->n_post > 0 || !cpu_plain_f32(g, n, n->n_inputs) ||
        g->values[n->inputs[X]].shape.rank != 3 || g->values[n->inputs[R]].shape.rank != 3 ||
        hth_node_int(n, "layout", 0) != 0 ||
        (op == HTH_OP_GRU && hth_node_int(n, "linear_before_reset", 0) == 0)) {
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
    k->n_in = n->n_inputs;
    k->n_out = n->n_outputs;
    k->gates = op == HTH_OP_GRU ? 3 : 1;
    k->gates = op == HTH_OP_LSTM ? 4 : k->gates;
    k->reverse = strcmp(hth_node_str(n, "direction", "forward"), "reverse") == 0;
    k->relu = hth_node_int(n, "relu", 0) != 0;
    rnn_describe(k, g, n);
    *out = &k->base;
    return HTH_OK;
}
