// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM: the inputs of all time steps are one product of cublasLt, each step one of the
// state and a kernel of ours that applies the gates (GRU with the reset gate before the product:
// two of each). A direction is one step of the sequence, which issues all of its time steps; the
// directions take turns, in one workspace.
#include "kernels/cuda/rnn.h"

#include "kernels/cuda/handles.h"

#include "base/alloc.h"

#include <string.h>
#include <strings.h>

enum { X, W, R, B, LENGTHS, H0, C0, P, Y, YH, YC, WS, RNN_OPERANDS };

typedef struct rnn_dir {
    hth_cuda_product *input, *state, *candidate; // the last: NULL, but of a GRU that resets first
    hth_rnn_params p;                            // but for addresses and the step
    int slot[RNN_OPERANDS];                      // of the addresses, -1: absent
    size_t at_xw, at_hr, at_candidate, at_rh, at_h, at_c, at_products; // in the workspace
    int64_t state_row; // of the states in and out: from one sample to the next
} rnn_dir;

// Activations by name, with the defaults of alpha and beta; `n` of them are attributes.
static const struct {
    const char *name;
    int n;
    float alpha, beta;
} rnn_acts[] = {
    [HTH_RNN_TANH] = {"Tanh", 0, 0, 0},
    [HTH_RNN_SIGMOID] = {"Sigmoid", 0, 0, 0},
    [HTH_RNN_RELU] = {"Relu", 0, 0, 0},
    [HTH_RNN_AFFINE] = {"Affine", 2, 1, 0},
    [HTH_RNN_LEAKY_RELU] = {"LeakyRelu", 1, 0.01F, 0},
    [HTH_RNN_THRESHOLDED_RELU] = {"ThresholdedRelu", 1, 1, 0},
    [HTH_RNN_SCALED_TANH] = {"ScaledTanh", 2, 1, 1},
    [HTH_RNN_HARD_SIGMOID] = {"HardSigmoid", 2, 0.2F, 0.5F},
    [HTH_RNN_ELU] = {"Elu", 1, 1, 0},
    [HTH_RNN_SOFTSIGN] = {"Softsign", 0, 0, 0},
    [HTH_RNN_SOFTPLUS] = {"Softplus", 0, 0, 0},
};
#define RNN_N_ACTS ((int)(sizeof rnn_acts / sizeof *rnn_acts))

// Those of direction `dir` of `dirs`; attributes are listed for all, one after the other.
static hth_err rnn_activations(const hth_node *node, int per, int dirs, int dir,
                               hth_rnn_params *params)
{
    static const char *const usual[] = {"Sigmoid", "Tanh", "Tanh"};
    const hth_attr *names = hth_node_attr(node, "activations");
    const hth_attr *alpha = hth_node_attr(node, "activation_alpha");
    const hth_attr *beta = hth_node_attr(node, "activation_beta");
    int a = 0, b = 0;
    if (names != NULL && (names->type != HTH_ATTR_STRINGS || names->n != per * dirs)) {
        return hth_fail(HTH_EINVAL, "%d activations are needed", per * dirs);
    }
    for (int i = 0; i < per * (dir + 1); i++) {
        const char *otherwise = per == 1 ? "Tanh" : usual[i % per];
        const char *name = names != NULL ? names->u.strings[i] : otherwise;
        int k = 0, to = i % per;
        while (k < RNN_N_ACTS && strcasecmp(rnn_acts[k].name, name) != 0) {
            k++;
        }
        if (k == RNN_N_ACTS) {
            return hth_fail(HTH_ENOTSUP, "activation %s is not supported", name);
        }
        params->act[to] = k;
        params->alpha[to] = rnn_acts[k].alpha;
        params->beta[to] = rnn_acts[k].beta;
        if (rnn_acts[k].n > 0 && alpha != NULL && alpha->type == HTH_ATTR_FLOATS && a < alpha->n) {
            params->alpha[to] = alpha->u.floats[a++];
        }
        if (rnn_acts[k].n > 1 && beta != NULL && beta->type == HTH_ATTR_FLOATS && b < beta->n) {
            params->beta[to] = beta->u.floats[b++];
        }
    }
    return HTH_OK;
}

static hth_err rnn_check(const hth_graph *graph, const hth_node *node, uint32_t gates)
{
    const hth_value *x = hth_cuda_in(graph, node, X), *w = hth_cuda_in(graph, node, W),
                    *r = hth_cuda_in(graph, node, R);
    const hth_value *lengths = hth_cuda_in(graph, node, LENGTHS);
    for (int i = 0; i < 8 + node->n_outputs; i++) {
        const hth_value *v = i < 8 ? hth_cuda_in(graph, node, i) : hth_cuda_out(graph, node, i - 8);
        if (v != NULL && i != LENGTHS && v->dtype != HTH_DT_F32) {
            return hth_fail(HTH_ENOTSUP, "%s: only FP32", hth_dtype_name(v->dtype));
        }
    }
    if (x->shape.rank != 3 || w->shape.rank != 3 || r->shape.rank != 3 || w->shape.dim[0] > 2 ||
        w->shape.dim[1] != r->shape.dim[2] * gates || w->shape.dim[2] != x->shape.dim[2] ||
        (lengths != NULL && lengths->dtype != HTH_DT_I32) || hth_cuda_count(x) == 0) {
        return hth_fail(HTH_ENOTSUP, "the shapes of X, W and R do not agree, or X is empty");
    }
    return HTH_OK;
}

hth_err hth_cuda_rnn_launch(const hth_cuda_seq *seq, hth_cuda_kernel_id id, uint64_t blocks,
                            size_t shared_bytes, const void *params)
{
    CUfunction f = hth_cuda_site_of(seq->d)->kernel[id];
    union {
        const void *given;
        void *any;
    } at = {params};
    return HTH_CUDA(seq->d, cuLaunchKernel, f, (unsigned)blocks, 1, 1, 256, 1, 1,
                    (unsigned)shared_bytes, seq->d->current, (void *[]){at.any}, NULL);
}

hth_err hth_cuda_rnn_copy(const hth_cuda_seq *seq, const hth_rnn_state_params *params)
{
    uint64_t blocks = hth_cuda_blocks(seq, params->n, true);
    return params->out == NULL
               ? HTH_OK
               : hth_cuda_rnn_launch(seq, HTH_CUDA_hth_rnn_state, blocks, 0, params);
}

static void *rnn_address(const rnn_dir *dir, int operand, void *const *address)
{
    return dir->slot[operand] >= 0 ? address[dir->slot[operand]] : NULL;
}

// The rows of a state: from the input (NULL: zeros) to the workspace, or back to an output.
static hth_err rnn_state(const hth_cuda_seq *seq, const rnn_dir *dir, const float *in,
                         int64_t in_step, float *out, int64_t out_step)
{
    const hth_rnn_state_params p = {.in = in,
                                    .out = out,
                                    .n = dir->p.batch * dir->p.hid,
                                    .hid = dir->p.hid,
                                    .in_step = in_step,
                                    .out_step = out_step};
    return hth_cuda_rnn_copy(seq, &p);
}

float *hth_cuda_rnn_at(void *workspace, size_t at)
{
    void *p = (char *)workspace + at;
    return p;
}

static hth_err rnn_steps(const hth_cuda_seq *seq, const rnn_dir *dir, hth_rnn_params *params,
                         const float *r, char *ws)
{
    const uint64_t blocks = hth_cuda_blocks(seq, (uint64_t)params->batch * params->hid, true);
    float *hr = hth_cuda_rnn_at(ws, dir->at_hr),
          *candidate = hth_cuda_rnn_at(ws, dir->at_candidate);
    for (params->step = 0; params->step < params->steps; params->step++) {
        HTH_TRY(hth_cuda_product_run(seq, dir->state, params->h, r, hr, ws + dir->at_products));
        if (dir->candidate != NULL) {
            HTH_TRY(hth_cuda_rnn_launch(seq, HTH_CUDA_hth_rnn_reset, blocks, 0, params));
            HTH_TRY(hth_cuda_product_run(seq, dir->candidate, params->rh,
                                         r + (size_t)2 * params->hid * params->hid, candidate,
                                         ws + dir->at_products));
        }
        HTH_TRY(hth_cuda_rnn_launch(seq, HTH_CUDA_hth_rnn_cell, blocks, 0, params));
    }
    return HTH_OK;
}

static hth_err rnn_run(const hth_cuda_seq *seq, const hth_cuda_step *step, void *const *address)
{
    const rnn_dir *d = step->state;
    char *ws = address[d->slot[WS]];
    hth_rnn_params p = d->p;
    p.xw = hth_cuda_rnn_at(ws, d->at_xw);
    p.hr = hth_cuda_rnn_at(ws, d->at_hr);
    p.candidate = d->candidate != NULL ? hth_cuda_rnn_at(ws, d->at_candidate) : p.hr + 2 * p.hid;
    p.rh = hth_cuda_rnn_at(ws, d->at_rh);
    p.h = hth_cuda_rnn_at(ws, d->at_h);
    p.c = hth_cuda_rnn_at(ws, d->at_c);
    p.bias = rnn_address(d, B, address);
    p.peep = rnn_address(d, P, address);
    p.lengths = rnn_address(d, LENGTHS, address);
    p.y = rnn_address(d, Y, address);
    HTH_TRY(rnn_state(seq, d, rnn_address(d, H0, address), d->state_row, p.h, p.hid));
    HTH_TRY(rnn_state(seq, d, rnn_address(d, C0, address), d->state_row, p.c, p.hid));
    HTH_TRY(hth_cuda_product_run(seq, d->input, address[d->slot[X]], address[d->slot[W]],
                                 hth_cuda_rnn_at(ws, d->at_xw), ws + d->at_products));
    HTH_TRY(rnn_steps(seq, d, &p, address[d->slot[R]], ws));
    HTH_TRY(rnn_state(seq, d, p.h, p.hid, rnn_address(d, YH, address), d->state_row));
    return rnn_state(seq, d, p.c, p.hid, rnn_address(d, YC, address), d->state_row);
}

static void rnn_close(hth_cuda_seq *seq, hth_cuda_step *step)
{
    rnn_dir *d = step->state;
    hth_cuda_product_close(seq->d, d->input);
    hth_cuda_product_close(seq->d, d->state);
    hth_cuda_product_close(seq->d, d->candidate);
    hth_free(d);
}

uint32_t hth_cuda_rnn_align(size_t floats)
{
    size_t bits = floats * sizeof(float) | HTH_DEVICE_ALIGN;
    return (uint32_t)(bits & (~bits + 1));
}

// The products and, in the sequence's workspace, what they and the cells hand on.
static hth_err rnn_products(const hth_cuda_seq *seq, const hth_graph *graph, rnn_dir *dir,
                            int64_t in)
{
    const hth_rnn_params *p = &dir->p;
    bool resets = p->gates == 3 && !p->coupled;
    int64_t rows = (int64_t)p->steps * p->batch, gates = resets ? 2 : p->gates;
    size_t w = (size_t)p->dir * p->gates * p->hid * (size_t)in;
    size_t r = (size_t)p->dir * p->gates * p->hid * p->hid;
    const hth_cuda_product_form input = {.m = rows,
                                         .n = (int64_t)p->gates * p->hid,
                                         .k = in,
                                         .trans_b = true,
                                         .align_b = hth_cuda_rnn_align(w)};
    hth_cuda_product_form state = {.m = p->batch,
                                   .n = gates * p->hid,
                                   .k = p->hid,
                                   .trans_b = true,
                                   .align_b = hth_cuda_rnn_align(r)};
    HTH_TRY(hth_cuda_product_open(seq->d, &input, graph->precision, &dir->input));
    HTH_TRY(hth_cuda_product_open(seq->d, &state, graph->precision, &dir->state));
    state.n = p->hid;
    state.align_b = hth_cuda_rnn_align(r + (size_t)2 * p->hid * p->hid);
    return resets ? hth_cuda_product_open(seq->d, &state, graph->precision, &dir->candidate)
                  : HTH_OK;
}

size_t hth_cuda_rnn_place(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return here;
}

static size_t rnn_layout(rnn_dir *dir)
{
    const hth_rnn_params *p = &dir->p;
    size_t at = 0, state = (size_t)p->batch * p->hid * sizeof(float), most = 0;
    const hth_cuda_product *products[] = {dir->input, dir->state, dir->candidate};
    for (int i = 0; i < 3; i++) {
        size_t bytes = products[i] != NULL ? hth_cuda_product_workspace(products[i]) : 0;
        most = bytes > most ? bytes : most;
    }
    dir->at_xw = hth_cuda_rnn_place(&at, state * p->gates * p->steps);
    dir->at_hr = hth_cuda_rnn_place(&at, state * p->gates);
    dir->at_candidate = hth_cuda_rnn_place(&at, state);
    dir->at_rh = hth_cuda_rnn_place(&at, state);
    dir->at_h = hth_cuda_rnn_place(&at, state);
    dir->at_c = hth_cuda_rnn_place(&at, state);
    dir->at_products = hth_cuda_rnn_place(&at, most);
    return at;
}

// Binds operand `i` of the direction, if it is there, `floats` after its beginning.
static void rnn_bind(hth_cuda_seq *seq, rnn_dir *dir, int i, bool there, size_t floats)
{
    dir->slot[i] = there && seq->err == HTH_OK ? seq->steps[seq->n_steps - 1].n_bound : -1;
    if (there && i < Y) {
        hth_cuda_bind(seq, 0, HTH_CUDA_IN, i, floats * sizeof(float));
    } else if (there) {
        hth_cuda_bind(seq, 0, HTH_CUDA_OUT, i - Y, floats * sizeof(float));
    }
}

static void rnn_bind_all(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         rnn_dir *d, size_t in)
{
    const hth_rnn_params *p = &d->p;
    size_t dir = p->dir, gh = (size_t)p->gates * p->hid;
    size_t state = dir * p->hid * (p->batch_first ? 1 : p->batch);
    const size_t from[RNN_OPERANDS] = {
        [W] = dir * gh * in, [R] = dir * gh * p->hid, [B] = dir * 2 * gh, [H0] = state,
        [C0] = state,        [P] = dir * 3 * p->hid,  [YH] = state,       [YC] = state};
    for (int i = 0; i < WS; i++) {
        bool there =
            i < Y ? hth_cuda_in(graph, node, i) != NULL : hth_cuda_out(graph, node, i - Y) != NULL;
        rnn_bind(seq, d, i, there, from[i]);
    }
    d->slot[WS] = seq->err == HTH_OK ? seq->steps[seq->n_steps - 1].n_bound : -1;
    hth_cuda_bind(seq, 0, HTH_CUDA_WS, 0, 0);
}

static hth_rnn_params rnn_params(const hth_graph *graph, const hth_node *node, uint32_t gates,
                                 uint32_t dir)
{
    const hth_shape *x = &hth_cuda_in(graph, node, X)->shape,
                    *r = &hth_cuda_in(graph, node, R)->shape;
    bool first = hth_node_int(node, "layout", 0) != 0;
    const char *coupled = gates == 4 ? "input_forget" : "linear_before_reset";
    hth_rnn_params p = {.batch = (uint32_t)x->dim[!first],
                        .hid = (uint32_t)r->dim[2],
                        .steps = (uint32_t)x->dim[first],
                        .gates = gates,
                        .dirs = (uint32_t)r->dim[0],
                        .dir = dir,
                        .batch_first = first,
                        .coupled = hth_node_int(node, coupled, 0) != 0,
                        .clip = hth_node_float(node, "clip", 0)};
    p.reverse = dir == 1 || strcmp(hth_node_str(node, "direction", "forward"), "reverse") == 0;
    p.hr_step = (gates == 3 && !p.coupled ? 2 : gates) * p.hid;
    p.candidate_step = gates == 3 && !p.coupled ? p.hid : p.hr_step;
    return p;
}

static hth_err rnn_direction(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                             uint32_t gates, uint32_t dir)
{
    int64_t in = hth_cuda_in(graph, node, X)->shape.dim[2];
    rnn_dir *d = hth_calloc(1, sizeof *d);
    if (d == NULL) {
        return hth_no_memory("preparing a recurrence");
    }
    d->p = rnn_params(graph, node, gates, dir);
    d->state_row = (int64_t)d->p.hid * (d->p.batch_first ? d->p.dirs : 1);
    int per = gates == 1 ? 1 : (int)gates - 1;
    hth_err err = rnn_activations(node, per, (int)d->p.dirs, (int)dir, &d->p);
    if (err == HTH_OK) {
        err = rnn_products(seq, graph, d, in);
    }
    size_t bytes = err == HTH_OK ? rnn_layout(d) : 0;
    hth_cuda_step_add(seq, (hth_cuda_step){.run = rnn_run, .close = rnn_close, .state = d});
    HTH_TRY(err);
    HTH_TRY(seq->err);
    seq->base.workspace_bytes =
        bytes > seq->base.workspace_bytes ? bytes : seq->base.workspace_bytes;
    rnn_bind_all(seq, graph, node, d, (size_t)in);
    return seq->err;
}

hth_err hth_cuda_rnn(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     const char *algorithm)
{
    uint32_t gates = node->op == HTH_OP_GRU ? 3 : 1;
    gates = node->op == HTH_OP_LSTM ? 4 : gates;
    const hth_value *y = hth_cuda_out(graph, node, 0);
    HTH_TRY(rnn_check(graph, node, gates));
    if (y != NULL && hth_cuda_in(graph, node, LENGTHS) != NULL) { // what is after an end is zero
        hth_cuda_fill(seq, 0, hth_cuda_count(y), 0);
    }
    for (uint32_t d = 0; d < (uint32_t)hth_cuda_in(graph, node, W)->shape.dim[0]; d++) {
        HTH_TRY(rnn_direction(seq, graph, node, gates, d));
    }
    return HTH_OK;
}
