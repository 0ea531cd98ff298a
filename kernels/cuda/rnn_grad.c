// SPDX-License-Identifier: Apache-2.0
// Backpropagation through time of RNN, GRU and LSTM. The forward pass is computed again and keeps
// gates and states of every step; then the steps are walked back, which turns the gates into the
// gradients before the activations. Only the state's products are made step by step: those with the
// inputs, and the parameters' gradients, which are sums over all steps, are one product each.
//
// Rows of all buffers are in the order of time, so the state before step t lies at t, for a
// direction that runs backwards at t + 1. Rows are padded so that each begins where cublasLt's
// vector loads want it (HTH_DEVICE_ALIGN): a step reads and writes in the middle of a buffer. The
// directions take turns, in one workspace; the gradient of X is the sum of theirs.
#include "kernels/cuda/rnn.h"

#include "base/alloc.h"

#include <string.h>

enum { X, W, R, B, H0, C0, DY, DYH, DYC, DX, DW, DR, DB, DH0, DC0, WS, GRAD_OPERANDS };
// PRODUCT_CANDIDATE..: of a GRU that resets before the product.
enum {
    PRODUCT_INPUT,
    PRODUCT_STATE,
    PRODUCT_CANDIDATE,
    PRODUCT_BACK_CANDIDATE,
    PRODUCT_BACK,
    PRODUCT_DR,
    PRODUCT_DR_CANDIDATE,
    PRODUCT_DX,
    PRODUCT_DW,
    GRAD_PRODUCTS
};

typedef struct grad_dir {
    hth_cuda_product *product[GRAD_PRODUCTS]; // NULL: not needed
    hth_rnn_grad_params p;                    // but for addresses
    uint32_t steps, dirs, dir;
    int64_t in;
    bool backwards, resets;  // resets: before the product
    int slot[GRAD_OPERANDS]; // of the addresses, -1: absent
    size_t at_gate, at_dgate, at_hr, at_more, at_h, at_c, at_cand, at_dh, at_dc, at_products;
} grad_dir;

// What a run works on.
typedef struct grad_job {
    const hth_cuda_seq *s;
    const grad_dir *d;
    hth_rnn_grad_params p;
    float *operand[GRAD_OPERANDS]; // NULL: absent
    char *ws;
    float *gate, *dgate, *h, *c, *cand, *more, *hr; // of all steps
} grad_job;

static float *grad_at(const grad_job *job, size_t at)
{
    return hth_cuda_rnn_at(job->ws, at);
}

static hth_err grad_product(const grad_job *job, int which, const float *a, const float *b,
                            float *c)
{
    const hth_cuda_product *q = job->d->product[which];
    return q == NULL ? HTH_OK
                     : hth_cuda_product_run(job->s, q, a, b, c, job->ws + job->d->at_products);
}

static hth_err grad_launch(const grad_job *job, hth_cuda_kernel_id id)
{
    uint64_t blocks = hth_cuda_blocks(job->s, (uint64_t)job->p.batch * job->p.hid, true);
    return hth_cuda_rnn_launch(job->s, id, blocks, 0, &job->p);
}

// A state of the workspace, from or to (`out`) an operand, which is dense; plus `more`, if given.
static hth_err grad_state(const grad_job *job, float *state, const float *more, float *operand,
                          bool out)
{
    hth_rnn_state_params p = {.in = operand,
                              .more = more,
                              .out = state,
                              .n = job->p.batch * job->p.hid,
                              .hid = job->p.hid,
                              .in_step = job->p.hid,
                              .out_step = job->p.state_row};
    if (out) {
        p.in = state;
        p.out = operand;
        p.in_step = job->p.state_row;
        p.out_step = job->p.hid;
    }
    return hth_cuda_rnn_copy(job->s, &p);
}

// The addresses of step t.
static void grad_step(grad_job *job, uint32_t t)
{
    const grad_dir *d = job->d;
    size_t gates = (size_t)job->p.batch * job->p.row,
           states = (size_t)job->p.batch * job->p.state_row;
    size_t before = (t + d->backwards) * states, behind = (t + !d->backwards) * states;
    bool lstm = job->p.gates == 4;
    job->p.gate = job->gate + t * gates;
    job->p.dgate = job->dgate != job->gate ? job->dgate + t * gates : NULL;
    job->p.h0 = job->h + before;
    job->p.h = job->h + behind;
    job->p.c0 = job->c + (lstm ? before : 0);
    job->p.c = job->c + (lstm ? behind : 0);
    job->p.cand = job->cand + (job->p.gates == 3 ? t * states : 0);
    job->p.dy = job->operand[DY] == NULL
                    ? NULL
                    : job->operand[DY] + ((size_t)t * d->dirs + d->dir) * job->p.batch * job->p.hid;
}

// Where R of GRU's third gate begins.
static size_t grad_third(const grad_job *job)
{
    return (size_t)2 * job->p.hid * job->p.hid;
}

static hth_err grad_forward(grad_job *job)
{
    const grad_dir *d = job->d;
    size_t states = (size_t)job->p.batch * job->p.state_row, first = d->backwards ? d->steps : 0;
    const float *r = job->operand[R];
    HTH_TRY(grad_state(job, job->h + first * states, NULL, job->operand[H0], false));
    if (job->p.gates == 4) {
        HTH_TRY(grad_state(job, job->c + first * states, NULL, job->operand[C0], false));
    }
    HTH_TRY(grad_product(job, PRODUCT_INPUT, job->operand[X], job->operand[W], job->gate));
    job->p.more = job->more;
    for (uint32_t s = 0; s < d->steps; s++) {
        grad_step(job, d->backwards ? d->steps - 1 - s : s);
        HTH_TRY(grad_product(job, PRODUCT_STATE, job->p.h0, r, job->hr));
        if (d->resets) {
            HTH_TRY(grad_launch(job, HTH_CUDA_hth_rnn_keep_reset));
            HTH_TRY(
                grad_product(job, PRODUCT_CANDIDATE, job->p.cand, r + grad_third(job), job->more));
        }
        HTH_TRY(grad_launch(job, HTH_CUDA_hth_rnn_keep));
    }
    return HTH_OK;
}

static hth_err grad_backward(grad_job *job)
{
    const grad_dir *d = job->d;
    const float *r = job->operand[R];
    HTH_TRY(grad_state(job, job->p.dh, NULL, job->operand[DYH], false));
    HTH_TRY(grad_state(job, job->p.dc, NULL, job->operand[DYC], false));
    job->p.more = NULL; // nothing is after the last step
    for (uint32_t s = d->steps; s-- > 0;) {
        grad_step(job, d->backwards ? d->steps - 1 - s : s);
        HTH_TRY(grad_launch(job, HTH_CUDA_hth_rnn_back));
        job->p.more = job->more;
        if (d->resets) {
            HTH_TRY(grad_product(job, PRODUCT_BACK_CANDIDATE, job->p.gate + (size_t)2 * job->p.hid,
                                 r + grad_third(job), job->more));
            HTH_TRY(grad_launch(job, HTH_CUDA_hth_rnn_back_reset));
        }
        HTH_TRY(grad_product(job, PRODUCT_BACK, job->p.dgate != NULL ? job->p.dgate : job->p.gate,
                             r, job->more));
    }
    HTH_TRY(grad_state(job, job->p.dh, job->more, job->operand[DH0], true));
    return grad_state(job, job->p.dc, NULL, job->operand[DC0], true);
}

static hth_err grad_bias(const grad_job *job, const float *in, float *out)
{
    uint32_t cols = job->p.gates * job->p.hid;
    const hth_rnn_bias_params p = {in, out, job->d->steps * job->p.batch, cols, job->p.row};
    return hth_cuda_rnn_launch(job->s, HTH_CUDA_hth_rnn_bias,
                               (cols + HTH_RNN_COLUMNS - 1) / HTH_RNN_COLUMNS, 256 * sizeof(float),
                               &p);
}

// What is a sum over all steps.
static hth_err grad_sums(const grad_job *job)
{
    const grad_dir *d = job->d;
    size_t states = (size_t)job->p.batch * job->p.state_row,
           wide = (size_t)job->p.gates * job->p.hid;
    float *db = job->operand[DB], *dr = job->operand[DR];
    HTH_TRY(grad_product(job, PRODUCT_DR, job->dgate, job->h + (d->backwards ? states : 0), dr));
    if (dr != NULL && d->resets) {
        HTH_TRY(grad_product(job, PRODUCT_DR_CANDIDATE, job->gate + (size_t)2 * job->p.hid,
                             job->cand, dr + grad_third(job)));
    }
    HTH_TRY(grad_product(job, PRODUCT_DX, job->gate, job->operand[W], job->operand[DX]));
    HTH_TRY(grad_product(job, PRODUCT_DW, job->gate, job->operand[X], job->operand[DW]));
    if (db == NULL) {
        return HTH_OK;
    }
    HTH_TRY(grad_bias(job, job->gate, db));
    return grad_bias(job, job->dgate, db + wide);
}

static hth_err grad_run(const hth_cuda_seq *seq, const hth_cuda_step *step, void *const *address)
{
    const grad_dir *d = step->state;
    grad_job j = {.s = seq, .d = d, .p = d->p, .ws = address[d->slot[WS]]};
    for (int i = 0; i < WS; i++) {
        j.operand[i] = d->slot[i] >= 0 ? address[d->slot[i]] : NULL;
    }
    j.gate = grad_at(&j, d->at_gate);
    j.dgate = grad_at(&j, d->at_dgate);
    j.hr = grad_at(&j, d->at_hr);
    j.more = grad_at(&j, d->at_more);
    j.h = grad_at(&j, d->at_h);
    j.c = grad_at(&j, d->at_c);
    j.cand = grad_at(&j, d->at_cand);
    j.p.hr = j.hr;
    j.p.dh = grad_at(&j, d->at_dh);
    j.p.dc = grad_at(&j, d->at_dc);
    j.p.bias = j.operand[B];
    HTH_TRY(grad_forward(&j));
    HTH_TRY(grad_backward(&j));
    return grad_sums(&j);
}

static void grad_close(hth_cuda_seq *seq, hth_cuda_step *step)
{
    grad_dir *d = step->state;
    for (int i = 0; i < GRAD_PRODUCTS; i++) {
        hth_cuda_product_close(seq->d, d->product[i]);
    }
    hth_free(d);
}

// The products of a direction. Operands of the workspace begin where everything may be read, those
// of the node where the direction's part of them does.
static void grad_forms(const grad_dir *dir, hth_cuda_product_form f[GRAD_PRODUCTS])
{
    const hth_rnn_grad_params *p = &dir->p;
    int64_t rows = (int64_t)dir->steps * p->batch, wide = (int64_t)p->gates * p->hid, hid = p->hid;
    int64_t gates = dir->resets ? 2 * hid : wide, row = p->row, states = p->state_row, in = dir->in;
    size_t r = (size_t)dir->dir * (size_t)(wide * hid), third = r + (size_t)(2 * hid * hid);
    uint32_t w_at = hth_cuda_rnn_align((size_t)dir->dir * (size_t)(wide * in));
    uint32_t r_at = hth_cuda_rnn_align(r), third_at = hth_cuda_rnn_align(third);
    uint32_t gate_at = hth_cuda_rnn_align((size_t)(2 * hid));
    const hth_cuda_product_form forms[GRAD_PRODUCTS] = {
        [PRODUCT_INPUT] = {rows, wide, in, 0, 0, row, .trans_b = true, .align_b = w_at},
        [PRODUCT_STATE] = {p->batch, gates, hid, states, 0, row, .trans_b = true, .align_b = r_at},
        [PRODUCT_CANDIDATE] = {p->batch, hid, hid, states, 0, states, .trans_b = true,
                               .align_b = third_at},
        [PRODUCT_BACK_CANDIDATE] = {p->batch, hid, hid, row, 0, states, .align_a = gate_at,
                                    .align_b = third_at},
        [PRODUCT_BACK] = {p->batch, hid, gates, row, 0, states, .align_b = r_at},
        [PRODUCT_DR] = {gates, hid, rows, row, states, 0, .trans_a = true, .align_c = r_at},
        [PRODUCT_DR_CANDIDATE] = {hid, hid, rows, row, states, 0, .trans_a = true,
                                  .align_a = gate_at, .align_c = third_at},
        [PRODUCT_DX] = {rows, in, wide, row, 0, 0, .align_b = w_at, .adds = dir->dir > 0},
        [PRODUCT_DW] = {wide, in, rows, row, 0, 0, .trans_a = true, .align_c = w_at},
    };
    memcpy(f, forms, sizeof forms);
}

static hth_err grad_products(const hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                             grad_dir *dir)
{
    hth_cuda_product_form f[GRAD_PRODUCTS];
    const bool wanted[GRAD_PRODUCTS] = {
        [PRODUCT_INPUT] = true,
        [PRODUCT_STATE] = true,
        [PRODUCT_CANDIDATE] = dir->resets,
        [PRODUCT_BACK_CANDIDATE] = dir->resets,
        [PRODUCT_BACK] = true,
        [PRODUCT_DR] = hth_cuda_out(graph, node, DR - DX) != NULL,
        [PRODUCT_DR_CANDIDATE] = dir->resets && hth_cuda_out(graph, node, DR - DX) != NULL,
        [PRODUCT_DX] = hth_cuda_out(graph, node, 0) != NULL,
        [PRODUCT_DW] = hth_cuda_out(graph, node, DW - DX) != NULL};
    grad_forms(dir, f);
    for (int i = 0; i < GRAD_PRODUCTS; i++) {
        if (wanted[i]) {
            HTH_TRY(hth_cuda_product_open(seq->d, &f[i], graph->precision, &dir->product[i]));
        }
    }
    return HTH_OK;
}

static size_t grad_layout(grad_dir *dir)
{
    const hth_rnn_grad_params *p = &dir->p;
    size_t at = 0, most = 0, row = (size_t)p->batch * p->row * sizeof(float);
    size_t state = (size_t)p->batch * p->state_row * sizeof(float);
    for (int i = 0; i < GRAD_PRODUCTS; i++) {
        size_t bytes = dir->product[i] != NULL ? hth_cuda_product_workspace(dir->product[i]) : 0;
        most = bytes > most ? bytes : most;
    }
    dir->at_gate = hth_cuda_rnn_place(&at, row * dir->steps);
    dir->at_dgate =
        p->gates == 3 && !dir->resets ? hth_cuda_rnn_place(&at, row * dir->steps) : dir->at_gate;
    dir->at_hr = hth_cuda_rnn_place(&at, row);
    dir->at_more = hth_cuda_rnn_place(&at, state);
    dir->at_h = hth_cuda_rnn_place(&at, state * (dir->steps + (size_t)1));
    dir->at_c = hth_cuda_rnn_place(&at, p->gates == 4 ? state * (dir->steps + (size_t)1) : 0);
    dir->at_cand = hth_cuda_rnn_place(&at, p->gates == 3 ? state * dir->steps : 0);
    dir->at_dh = hth_cuda_rnn_place(&at, state);
    dir->at_dc = hth_cuda_rnn_place(&at, state);
    dir->at_products = hth_cuda_rnn_place(&at, most);
    return at;
}

// Binds the operands that are there, each where the direction's part of it begins.
static void grad_bind(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node, grad_dir *d)
{
    size_t wide = (size_t)d->p.gates * d->p.hid, dir = d->dir;
    size_t w = dir * wide * (size_t)d->in, r = dir * wide * d->p.hid, b = dir * 2 * wide,
           h = dir * d->p.batch * d->p.hid;
    const size_t from[WS] = {[W] = w,   [R] = r,  [B] = b,  [H0] = h, [C0] = h,  [DYH] = h,
                             [DYC] = h, [DW] = w, [DR] = r, [DB] = b, [DH0] = h, [DC0] = h};
    int bound = 0;
    for (int i = 0; i < WS; i++) {
        bool in = i < DX,
             there = (in ? hth_cuda_in(graph, node, i) : hth_cuda_out(graph, node, i - DX)) != NULL;
        d->slot[i] = there ? bound++ : -1;
        if (there && in) {
            hth_cuda_bind(seq, 0, HTH_CUDA_IN, i, from[i] * sizeof(float));
        } else if (there) {
            hth_cuda_bind(seq, 0, HTH_CUDA_OUT, i - DX, from[i] * sizeof(float));
        }
    }
    d->slot[WS] = bound;
    hth_cuda_bind(seq, 0, HTH_CUDA_WS, 0, 0);
}

// Floats of a row of n that the next one begins aligned after.
static uint32_t grad_padded(uint32_t n)
{
    const uint32_t unit = HTH_DEVICE_ALIGN / sizeof(float);
    return (n + unit - 1) / unit * unit;
}

static hth_err grad_direction(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                              uint32_t gates, uint32_t dir)
{
    const hth_shape *x = &hth_cuda_in(graph, node, X)->shape,
                    *r = &hth_cuda_in(graph, node, R)->shape;
    grad_dir *d = hth_calloc(1, sizeof *d);
    if (d == NULL) {
        return hth_no_memory("preparing a recurrence");
    }
    d->steps = (uint32_t)x->dim[0];
    d->in = x->dim[2];
    d->dirs = (uint32_t)r->dim[0];
    d->dir = dir;
    d->backwards = dir == 1 || strcmp(hth_node_str(node, "direction", "forward"), "reverse") == 0;
    d->p = (hth_rnn_grad_params){.batch = (uint32_t)x->dim[1],
                                 .hid = (uint32_t)r->dim[2],
                                 .gates = gates,
                                 .relu = hth_node_int(node, "relu", 0) != 0,
                                 .coupled = hth_node_int(node, "linear_before_reset", 0) != 0};
    d->p.row = grad_padded(gates * d->p.hid);
    d->p.state_row = grad_padded(d->p.hid);
    d->resets = gates == 3 && !d->p.coupled;
    hth_err err = grad_products(seq, graph, node, d);
    size_t bytes = err == HTH_OK ? grad_layout(d) : 0;
    hth_cuda_step_add(seq, (hth_cuda_step){.run = grad_run, .close = grad_close, .state = d});
    HTH_TRY(err);
    HTH_TRY(seq->err);
    seq->base.workspace_bytes =
        bytes > seq->base.workspace_bytes ? bytes : seq->base.workspace_bytes;
    grad_bind(seq, graph, node, d);
    return seq->err;
}

hth_err hth_cuda_rnn_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          const char *algorithm)
{
    hth_op of = hth_op_find(hth_node_str(node, "of", ""));
    uint32_t gates = of == HTH_OP_GRU ? 3 : 1;
    gates = of == HTH_OP_LSTM ? 4 : gates;
    const hth_value *x = hth_cuda_in(graph, node, X), *w = hth_cuda_in(graph, node, W),
                    *r = hth_cuda_in(graph, node, R);
    HTH_TRY(hth_cuda_need_f32(graph, node, DX, WS - DX));
    if (hth_node_int(node, "layout", 0) != 0) {
        return hth_fail(HTH_ENOTSUP, "the gradient of a recurrence whose batch comes first "
                                     "(layout=1) has no kernel; export it with layout=0");
    }
    if (x->shape.rank != 3 || w->shape.rank != 3 || r->shape.rank != 3 || w->shape.dim[0] > 2 ||
        w->shape.dim[1] != r->shape.dim[2] * gates || w->shape.dim[2] != x->shape.dim[2] ||
        hth_cuda_count(x) == 0 || hth_cuda_count(r) == 0) {
        return hth_fail(HTH_ENOTSUP, "the shapes of X, W and R do not agree, or one is empty");
    }
    for (uint32_t d = 0; d < (uint32_t)w->shape.dim[0]; d++) {
        HTH_TRY(grad_direction(seq, graph, node, gates, d));
    }
    return HTH_OK;
}
