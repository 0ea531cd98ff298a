// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_rnn.c - backpropagation through time of RNN, GRU and LSTM.
//
// Inputs: X, W, R, B?, H0?, C0?, dY?, dYh?, dYc? with the forward operator's shapes; outputs: dX,
// dW, dR, dB, dH0, dC0, each optional. The forward pass is computed again, one direction at a time,
// and keeps gates and states of every step; then the steps are walked back. Cells are the usual
// ones (sigmoid and tanh; RNN: tanh or, with attribute relu, Relu), all in double. Orders of gates
// are ONNX's: RNN i; GRU z r h; LSTM i o f c.
#include "kernels/ref/ref_num.h"

#include <math.h>
#include <string.h>

enum { X, W, R, B, H0, C0, DY, DYH, DYC, N_INPUTS };

typedef struct rnn {
    const hth_node *node;
    const hth_tensor *in[N_INPUTS];
    int gates;
    int64_t steps, batch, width, hid, dirs;
    bool batch_first, relu, linear_before_reset;
    double *x, *w, *r, *b, *dx, *dw, *dr, *db; // of all directions
    double *h, *c, *gate; // per step (and one more for h, c): (steps + 1, batch, hid), gates
    double *cand;         // GRU: what the reset gate multiplies, per step
    double *dh, *dc;      // (batch, hid)
    double *da, *dra;     // gradients before the activations, at the input's and the state's side
} rnn;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

// out += m v, or with `turned` m^T v; m (rows, cols).
static void times(const double *m, int64_t rows, int64_t cols, bool turned, const double *v,
                  double *out)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            if (turned) {
                out[j] += m[i * cols + j] * v[i];
            } else {
                out[i] += m[i * cols + j] * v[j];
            }
        }
    }
}

// m += a b^T; m (rows, cols).
static void outer(double *m, int64_t rows, int64_t cols, const double *a, const double *b)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            m[i * cols + j] += a[i] * b[j];
        }
    }
}

static int64_t row_at(const rnn *k, int64_t t, int64_t b)
{
    return k->batch_first ? b * k->steps + t : t * k->batch + b;
}

static int64_t y_at(const rnn *k, int64_t d, int64_t t, int64_t b)
{
    return (k->batch_first ? (b * k->steps + t) * k->dirs + d : (t * k->dirs + d) * k->batch + b) *
           k->hid;
}

static int64_t state_at(const rnn *k, int64_t d, int64_t b)
{
    return (k->batch_first ? b * k->dirs + d : d * k->batch + b) * k->hid;
}

// The parameters of one direction, and one sample's place at one step.
typedef struct place {
    const double *w, *r, *wb, *rb;
    double *dw, *dr, *dwb, *drb;
    const double *x, *h0, *c0; // the step's input, the states before it
    double *h, *c, *gate, *cand;
} place;

// One step forward from p's states; keeps the gates.
static void forward(const rnn *k, const place *p)
{
    int64_t n = k->hid, gh = k->gates * n;
    double *g = p->gate, *rh = k->dra;
    memset(g, 0, (size_t)gh * sizeof *g);
    memset(rh, 0, (size_t)gh * sizeof *rh);
    times(p->w, gh, k->width, false, p->x, g);
    times(p->r, gh, n, false, p->h0, rh);
    for (int64_t i = 0; i < gh; i++) {
        g[i] += p->wb[i];
        rh[i] += p->rb[i];
        g[i] += k->gates == 3 && i >= 2 * n ? 0 : rh[i];
    }
    for (int64_t i = 0; i < n && k->gates == 1; i++) {
        p->h[i] = g[i] = k->relu ? fmax(g[i], 0) : tanh(g[i]);
    }
    for (int64_t i = 0; i < n && k->gates == 4; i++) {
        g[i] = sigmoid(g[i]);
        g[n + i] = sigmoid(g[n + i]);
        g[2 * n + i] = sigmoid(g[2 * n + i]);
        g[3 * n + i] = tanh(g[3 * n + i]);
        p->c[i] = g[2 * n + i] * p->c0[i] + g[i] * g[3 * n + i];
        p->h[i] = g[n + i] * tanh(p->c[i]);
    }
    if (k->gates != 3) {
        return;
    }
    for (int64_t i = 0; i < 2 * n; i++) {
        g[i] = sigmoid(g[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        p->cand[i] = k->linear_before_reset ? rh[2 * n + i] : g[n + i] * p->h0[i];
        g[2 * n + i] += k->linear_before_reset ? g[n + i] * p->cand[i] : p->rb[2 * n + i];
    }
    if (!k->linear_before_reset) {
        times(p->r + 2 * n * n, n, n, false, p->cand, g + 2 * n);
    }
    for (int64_t i = 0; i < n; i++) {
        g[2 * n + i] = tanh(g[2 * n + i]);
        p->h[i] = (1 - g[i]) * g[2 * n + i] + g[i] * p->h0[i];
    }
}

// One step back: dh, dc are the gradients of the states after the step and become those before it.
static void backward(const rnn *k, const place *p, double *dh, double *dc, double *dx)
{
    int64_t n = k->hid, gh = k->gates * n;
    const double *g = p->gate;
    double *da = k->da, *dra = k->dra;
    for (int64_t i = 0; i < n; i++) {
        if (k->gates == 1) {
            da[i] = dh[i] * (k->relu ? g[i] > 0 : 1 - g[i] * g[i]);
            dh[i] = 0;
        } else if (k->gates == 4) {
            double t = tanh(p->c[i]), in = g[i], o = g[n + i], f = g[2 * n + i], u = g[3 * n + i];
            dc[i] += dh[i] * o * (1 - t * t);
            da[i] = dc[i] * u * in * (1 - in);
            da[n + i] = dh[i] * t * o * (1 - o);
            da[2 * n + i] = dc[i] * p->c0[i] * f * (1 - f);
            da[3 * n + i] = dc[i] * in * (1 - u * u);
            dc[i] *= f;
            dh[i] = 0;
        } else {
            double z = g[i], u = g[2 * n + i];
            da[i] = dh[i] * (p->h0[i] - u) * z * (1 - z);
            da[2 * n + i] = dh[i] * (1 - z) * (1 - u * u);
            dh[i] *= z;
        }
    }
    memcpy(dra, da, (size_t)gh * sizeof *dra);
    if (k->gates == 3) {
        double *back = dra + gh; // gradient of what the reset gate gave
        memset(back, 0, (size_t)n * sizeof *back);
        if (!k->linear_before_reset) {
            times(p->r + 2 * n * n, n, n, true, da + 2 * n, back);
            outer(p->dr + 2 * n * n, n, n, da + 2 * n, p->cand);
        }
        for (int64_t i = 0; i < n; i++) {
            double r = g[n + i], u = da[2 * n + i];
            double dr = k->linear_before_reset ? u * p->cand[i] : back[i] * p->h0[i];
            da[n + i] = dra[n + i] = dr * r * (1 - r);
            dh[i] += k->linear_before_reset ? 0 : back[i] * r;
            dra[2 * n + i] = k->linear_before_reset ? u * r : u;
        }
    }
    // Without linear_before_reset the candidate's part of R has been done above.
    int64_t rows = k->gates == 3 && !k->linear_before_reset ? 2 * n : gh;
    times(p->r, rows, n, true, dra, dh);
    outer(p->dr, rows, n, dra, p->h0);
    times(p->w, gh, k->width, true, da, dx);
    outer(p->dw, gh, k->width, da, p->x);
    for (int64_t i = 0; i < gh; i++) {
        p->dwb[i] += da[i];
        p->drb[i] += dra[i];
    }
}

static place place_of(const rnn *k, int64_t d, int64_t s, int64_t t, int64_t b)
{
    int64_t n = k->hid, gh = k->gates * n, at = (s * k->batch + b) * n, next = at + k->batch * n;
    return (place){
        .w = k->w + d * gh * k->width,
        .r = k->r + d * gh * n,
        .wb = k->b + d * 2 * gh,
        .rb = k->b + d * 2 * gh + gh,
        .dw = k->dw + d * gh * k->width,
        .dr = k->dr + d * gh * n,
        .dwb = k->db + d * 2 * gh,
        .drb = k->db + d * 2 * gh + gh,
        .x = k->x + row_at(k, t, b) * k->width,
        .h0 = k->h + at,
        .c0 = k->c + at,
        .h = k->h + next,
        .c = k->c + next,
        .gate = k->gate + (s * k->batch + b) * gh,
        .cand = k->cand + at,
    };
}

static void add_at(const hth_tensor *tensor, int64_t at, int64_t n, double *tmp, double *to)
{
    if (tensor != NULL) {
        ref_wide_at(tensor, at, n, tmp);
        for (int64_t i = 0; i < n; i++) {
            to[i] += tmp[i];
        }
    }
}

static void direction(rnn *k, int64_t d, bool reverse, hth_tensor *dh0, hth_tensor *dc0)
{
    int64_t n = k->hid, states = k->batch * n;
    memset(k->h, 0, (size_t)states * sizeof *k->h);
    memset(k->c, 0, (size_t)states * sizeof *k->c);
    memset(k->dh, 0, (size_t)states * sizeof *k->dh);
    memset(k->dc, 0, (size_t)states * sizeof *k->dc);
    for (int64_t b = 0; b < k->batch; b++) {
        add_at(k->in[H0], state_at(k, d, b), n, k->da, k->h + b * n);
        add_at(k->in[C0], state_at(k, d, b), n, k->da, k->c + b * n);
        add_at(k->in[DYH], state_at(k, d, b), n, k->da, k->dh + b * n);
        add_at(k->in[DYC], state_at(k, d, b), n, k->da, k->dc + b * n);
    }
    for (int64_t i = 0; i < k->steps * k->batch; i++) {
        int64_t s = i / k->batch, t = reverse ? k->steps - 1 - s : s;
        place p = place_of(k, d, s, t, i % k->batch);
        forward(k, &p);
    }
    for (int64_t i = k->steps * k->batch - 1; i >= 0; i--) {
        int64_t s = i / k->batch, t = reverse ? k->steps - 1 - s : s, b = i % k->batch;
        place p = place_of(k, d, s, t, b);
        add_at(k->in[DY], y_at(k, d, t, b), n, k->da, k->dh + b * n);
        backward(k, &p, k->dh + b * n, k->dc + b * n, k->dx + row_at(k, t, b) * k->width);
    }
    for (int64_t b = 0; b < k->batch; b++) {
        if (dh0 != NULL) {
            ref_round_at(k->dh + b * n, state_at(k, d, b), n, dh0);
        }
        if (dc0 != NULL) {
            ref_round_at(k->dc + b * n, state_at(k, d, b), n, dc0);
        }
    }
}

static hth_err rnn_open(ref_mem *mem, rnn *k, const hth_node *node, const hth_tensor *in)
{
    hth_op op = hth_op_find(hth_node_str(node, "of", ""));
    k->node = node;
    k->gates = op == HTH_OP_GRU ? 3 : 1;
    k->gates = op == HTH_OP_LSTM ? 4 : k->gates;
    k->batch_first = hth_node_int(node, "layout", 0) != 0;
    k->relu = hth_node_int(node, "relu", 0) != 0;
    k->linear_before_reset = hth_node_int(node, "linear_before_reset", 0) != 0;
    for (int i = 0; i < N_INPUTS; i++) {
        k->in[i] = ref_in(node, in, i);
    }
    const hth_shape *x = &in[X].shape, *w = &in[W].shape, *r = &in[R].shape;
    if (x->rank != 3 || w->rank != 3 || r->rank != 3 || w->dim[2] != x->dim[2] ||
        w->dim[1] != k->gates * r->dim[2] || r->dim[1] != w->dim[1] || r->dim[0] != w->dim[0]) {
        return hth_fail(HTH_EINVAL, "the shapes of X, W and R do not agree");
    }
    k->steps = x->dim[k->batch_first];
    k->batch = x->dim[!k->batch_first];
    k->width = x->dim[2];
    k->dirs = w->dim[0];
    k->hid = r->dim[2];
    int64_t gh = k->gates * k->hid, states = k->dirs * k->batch * k->hid;
    const int64_t count[N_INPUTS] = {ref_count(&in[X]),
                                     ref_count(&in[W]),
                                     ref_count(&in[R]),
                                     k->dirs * 2 * gh,
                                     states,
                                     states,
                                     k->steps * states,
                                     states,
                                     states};
    for (int i = 0; i < N_INPUTS; i++) {
        HTH_TRY(ref_need_count(k->in[i], count[i]));
    }
    HTH_TRY(ref_wide(mem, &in[X], &k->x));
    HTH_TRY(ref_wide(mem, &in[W], &k->w));
    HTH_TRY(ref_wide(mem, &in[R], &k->r));
    HTH_TRY(k->in[B] ? ref_wide(mem, k->in[B], &k->b) : REF_TAKE(mem, count[B], &k->b));
    HTH_TRY(REF_TAKE(mem, count[X], &k->dx));
    HTH_TRY(REF_TAKE(mem, count[W], &k->dw));
    HTH_TRY(REF_TAKE(mem, count[R], &k->dr));
    HTH_TRY(REF_TAKE(mem, count[B], &k->db));
    int64_t all = (k->steps + 1) * k->batch * k->hid;
    HTH_TRY(REF_TAKE(mem, all, &k->h));
    HTH_TRY(REF_TAKE(mem, all, &k->c));
    HTH_TRY(REF_TAKE(mem, all, &k->cand));
    HTH_TRY(REF_TAKE(mem, k->steps * k->batch * gh, &k->gate));
    HTH_TRY(REF_TAKE(mem, k->batch * k->hid, &k->dh));
    HTH_TRY(REF_TAKE(mem, k->batch * k->hid, &k->dc));
    HTH_TRY(REF_TAKE(mem, gh, &k->da));
    return REF_TAKE(mem, gh + k->hid, &k->dra);
}

static hth_err rnn_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    rnn k = {0};
    HTH_TRY(rnn_open(mem, &k, node, in));
    bool reverse = strcmp(hth_node_str(node, "direction", "forward"), "reverse") == 0;
    for (int64_t d = 0; d < k.dirs; d++) {
        direction(&k, d, reverse || d == 1, ref_out(node, out, 4), ref_out(node, out, 5));
    }
    const double *result[] = {k.dx, k.dw, k.dr, k.db};
    for (int i = 0; i < 4; i++) {
        if (ref_out(node, out, i) != NULL) {
            ref_round(result[i], &out[i]);
        }
    }
    return HTH_OK;
}

REF_OP(ref_rnn_grad, rnn_grad_body)
