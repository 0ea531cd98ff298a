// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_rnn.c - RNN, GRU, LSTM: both directions, peepholes, lengths, clipping, all
// activations.
//
// The three cells share everything but one step function. Per direction the inputs of all time
// steps are multiplied by W at once; each step then multiplies the state by R. A sequence shorter
// than the batch's longest keeps its state and writes zeros; the reverse direction of such a
// sequence starts at its own last element. Formulas and the orders of the gates (RNN: i; GRU: z r
// h; LSTM: i o f c) are ONNX's. All arithmetic is double.
#include "kernels/ref/ref_num.h"

#include "base/compare.h"

#include <math.h>
#include <string.h>
#include <strings.h>

typedef struct rnn_act {
    char kind;
    double alpha, beta;
} rnn_act;

// Names, with the default alpha and beta; `n` of them are attributes of the activation.
static const struct {
    const char *name;
    char kind;
    int n;
    double alpha, beta;
} rnn_acts[] = {
    {"Tanh", 't', 0, 0, 0},         {"Sigmoid", 's', 0, 0, 0},
    {"Relu", 'r', 0, 0, 0},         {"Affine", 'a', 2, 1, 0},
    {"LeakyRelu", 'l', 1, 0.01, 0}, {"ThresholdedRelu", 'h', 1, 1, 0},
    {"ScaledTanh", 'c', 2, 1, 1},   {"HardSigmoid", 'g', 2, 0.2, 0.5},
    {"Elu", 'e', 1, 1, 0},          {"Softsign", 'n', 0, 0, 0},
    {"Softplus", 'p', 0, 0, 0},
};
#define RNN_N_ACTS ((int)(sizeof rnn_acts / sizeof rnn_acts[0]))

static double rnn_apply(const rnn_act *act, double x)
{
    // clang-format off
    switch (act->kind) {
    case 't': return tanh(x);
    case 's': return 1 / (1 + exp(-x));
    case 'r': return x > 0 ? x : 0;
    case 'a': return act->alpha * x + act->beta;
    case 'l': return x >= 0 ? x : act->alpha * x;
    case 'h': return x >= act->alpha ? x : 0;
    case 'c': return act->alpha * tanh(act->beta * x);
    case 'g': return fmin(fmax(act->alpha * x + act->beta, 0), 1);
    case 'e': return x >= 0 ? x : act->alpha * (exp(x) - 1);
    case 'n': return x / (1 + fabs(x));
    default: return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    }
    // clang-format on
}

typedef struct rnn rnn;
struct rnn {
    const hth_node *node;
    int gates, n_acts; // per direction
    int64_t steps, batch, in, hid, dirs;
    bool batch_first, linear_before_reset, input_forget;
    double clip; // 0: none
    rnn_act act[6];
    const hth_tensor *lengths;
    // One direction at a time:
    const rnn_act *f;
    double *w, *r;        // transposed: (in, gates * hid), (hid, gates * hid)
    double *bias, *rbias; // (gates * hid)
    double *peep;         // LSTM: (3 * hid), NULL: none
    double *xw;           // (steps * batch, gates * hid)
    double *h, *c;        // (batch, hid)
    double *hr, *tmp;     // (batch, gates * hid)
    void (*cell)(rnn *k, int64_t b, const double *x); // new state of sample b from x (gates * hid)
};

static double rnn_gate(const rnn *k, int act, double x)
{
    if (k->clip > 0) {
        x = fmin(fmax(x, -k->clip), k->clip);
    }
    return rnn_apply(&k->f[act], x);
}

static void rnn_cell_rnn(rnn *k, int64_t b, const double *x)
{
    double *h = k->h + b * k->hid, *hr = k->hr + b * k->hid;
    for (int64_t i = 0; i < k->hid; i++) {
        h[i] = rnn_gate(k, 0, x[i] + hr[i] + k->bias[i] + k->rbias[i]);
    }
}

static void rnn_cell_lstm(rnn *k, int64_t b, const double *x)
{
    int64_t n = k->hid;
    double *h = k->h + b * n, *c = k->c + b * n, *hr = k->hr + b * 4 * n;
    for (int64_t i = 0; i < n; i++) {
        double g[4];
        for (int q = 0; q < 4; q++) {
            g[q] = x[q * n + i] + hr[q * n + i] + k->bias[q * n + i] + k->rbias[q * n + i];
        }
        const double *p = k->peep;
        double in = rnn_gate(k, 0, g[0] + (p ? p[i] * c[i] : 0));
        double forget = 1 - in;
        if (!k->input_forget) {
            forget = rnn_gate(k, 0, g[2] + (p ? p[2 * n + i] * c[i] : 0));
        }
        c[i] = forget * c[i] + in * rnn_gate(k, 1, g[3]);
        double o = rnn_gate(k, 0, g[1] + (p ? p[n + i] * c[i] : 0));
        h[i] = o * rnn_apply(&k->f[2], c[i]);
    }
}

static void rnn_cell_gru(rnn *k, int64_t b, const double *x)
{
    int64_t n = k->hid;
    double *h = k->h + b * n, *hr = k->hr + b * 3 * n, *z = k->tmp, *r = z + n, *rh = r + n,
           *cand = rh + n;
    for (int64_t i = 0; i < n; i++) {
        z[i] = rnn_gate(k, 0, x[i] + hr[i] + k->bias[i] + k->rbias[i]);
        r[i] = rnn_gate(k, 0, x[n + i] + hr[n + i] + k->bias[n + i] + k->rbias[n + i]);
        rh[i] = r[i] * h[i];
        cand[i] = k->linear_before_reset ? r[i] * (hr[2 * n + i] + k->rbias[2 * n + i])
                                         : k->rbias[2 * n + i];
    }
    if (!k->linear_before_reset) {
        ref_gemm_f64(1, n, n, rh, n, k->r + 2 * n, 3 * n, cand, n);
    }
    for (int64_t i = 0; i < n; i++) {
        double v = rnn_gate(k, 1, x[2 * n + i] + cand[i] + k->bias[2 * n + i]);
        h[i] = (1 - z[i]) * v + z[i] * h[i];
    }
}

static hth_err rnn_activations(rnn *k)
{
    static const char *const usual[] = {"Sigmoid", "Tanh", "Tanh"};
    const hth_attr *names = hth_node_attr(k->node, "activations");
    const hth_attr *alpha = hth_node_attr(k->node, "activation_alpha");
    const hth_attr *beta = hth_node_attr(k->node, "activation_beta");
    int a = 0, b = 0, total = k->n_acts * (int)k->dirs;
    if (names && (names->type != HTH_ATTR_STRINGS || names->n != total)) {
        return hth_fail(HTH_EINVAL, "%d activations are needed", total);
    }
    for (int i = 0; i < total; i++) {
        const char *otherwise = k->n_acts == 1 ? "Tanh" : usual[i % k->n_acts];
        const char *name = names ? names->u.strings[i] : otherwise;
        int t = 0;
        while (t < RNN_N_ACTS && strcasecmp(rnn_acts[t].name, name) != 0) {
            t++;
        }
        if (t == RNN_N_ACTS) {
            return hth_fail(HTH_ENOTSUP, "activation %s is not supported", name);
        }
        k->act[i] = (rnn_act){rnn_acts[t].kind, rnn_acts[t].alpha, rnn_acts[t].beta};
        if (rnn_acts[t].n > 0 && alpha && alpha->type == HTH_ATTR_FLOATS && a < alpha->n) {
            k->act[i].alpha = alpha->u.floats[a++];
        }
        if (rnn_acts[t].n > 1 && beta && beta->type == HTH_ATTR_FLOATS && b < beta->n) {
            k->act[i].beta = beta->u.floats[b++];
        }
    }
    return HTH_OK;
}

static hth_err rnn_sizes(rnn *k, const hth_tensor *in, hth_tensor *out)
{
    const hth_shape *x = &in[0].shape, *w = &in[1].shape, *r = &in[2].shape;
    if (x->rank != 3 || w->rank != 3 || r->rank != 3) {
        return hth_fail(HTH_EINVAL, "X, W and R must have three dimensions");
    }
    k->batch_first = hth_node_int(k->node, "layout", 0) != 0;
    k->steps = x->dim[k->batch_first];
    k->batch = x->dim[!k->batch_first];
    k->in = x->dim[2];
    k->dirs = w->dim[0];
    k->hid = r->dim[2];
    if (k->dirs < 1 || k->dirs > 2 || w->dim[1] != k->gates * k->hid || w->dim[2] != k->in ||
        r->dim[0] != k->dirs || r->dim[1] != k->gates * k->hid) {
        return hth_fail(HTH_EINVAL, "the shapes of X, W and R do not agree");
    }
    const int64_t wanted[] = {k->dirs * 2 * k->gates * k->hid, k->batch,
                              k->dirs * k->batch * k->hid, k->dirs * k->batch * k->hid,
                              k->dirs * 3 * k->hid};
    for (int i = 0; i < 5; i++) {
        HTH_TRY(ref_need_count(ref_in(k->node, in, 3 + i), wanted[i]));
    }
    HTH_TRY(ref_need_count(ref_out(k->node, out, 0), k->steps * k->dirs * k->batch * k->hid));
    HTH_TRY(ref_need_count(ref_out(k->node, out, 1), k->dirs * k->batch * k->hid));
    return ref_need_count(ref_out(k->node, out, 2), k->dirs * k->batch * k->hid);
}

static int64_t rnn_length(const rnn *k, int64_t b)
{
    int64_t n = k->lengths ? ref_i64_at(k->lengths, b) : k->steps;
    return hth_clamp(n, 0, k->steps);
}

static hth_err rnn_take(rnn *k, ref_mem *mem)
{
    int64_t gh = k->gates * k->hid;
    HTH_TRY(REF_TAKE(mem, k->in * gh, &k->w));
    HTH_TRY(REF_TAKE(mem, k->hid * gh, &k->r));
    HTH_TRY(REF_TAKE(mem, k->steps * k->batch * gh, &k->xw));
    HTH_TRY(REF_TAKE(mem, k->batch * k->hid, &k->h));
    HTH_TRY(REF_TAKE(mem, k->batch * k->hid, &k->c));
    HTH_TRY(REF_TAKE(mem, k->batch * gh, &k->hr));
    return REF_TAKE(mem, 4 * k->hid, &k->tmp);
}

// Where (direction, sample) stands in an initial or final state.
static int64_t rnn_state_at(const rnn *k, int64_t d, int64_t b)
{
    return (k->batch_first ? b * k->dirs + d : d * k->batch + b) * k->hid;
}

static void rnn_load_state(const rnn *k, const hth_tensor *tensor, int64_t d, double *state)
{
    memset(state, 0, (size_t)(k->batch * k->hid) * sizeof *state);
    for (int64_t b = 0; tensor && b < k->batch; b++) {
        ref_wide_at(tensor, rnn_state_at(k, d, b), k->hid, state + b * k->hid);
    }
}

static void rnn_store_state(const rnn *k, hth_tensor *tensor, int64_t d, const double *state)
{
    for (int64_t b = 0; tensor && b < k->batch; b++) {
        ref_round_at(state + b * k->hid, rnn_state_at(k, d, b), k->hid, tensor);
    }
}

static void rnn_steps(rnn *k, bool reverse, int64_t d, double *y)
{
    int64_t gh = k->gates * k->hid;
    for (int64_t s = 0; s < k->steps && !hth_pace_over((uint64_t)(k->batch * gh) * 8); s++) {
        memset(k->hr, 0, (size_t)(k->batch * gh) * sizeof *k->hr);
        ref_gemm_f64(k->batch, gh, k->hid, k->h, k->hid, k->r, gh, k->hr, gh);
        for (int64_t b = 0; b < k->batch; b++) {
            int64_t len = rnn_length(k, b), t = reverse ? len - 1 - s : s;
            if (s >= len) {
                continue;
            }
            k->cell(k, b, k->xw + (k->batch_first ? b * k->steps + t : t * k->batch + b) * gh);
            int64_t at = k->batch_first ? (b * k->steps + t) * k->dirs + d
                                        : (t * k->dirs + d) * k->batch + b;
            memcpy(y + at * k->hid, k->h + b * k->hid, (size_t)k->hid * sizeof *y);
        }
    }
}

static hth_err rnn_run(ref_mem *mem, rnn *k, const hth_node *node, const hth_tensor *in,
                       hth_tensor *out)
{
    const char *direction = hth_node_str(node, "direction", "forward");
    const hth_tensor *b = ref_in(node, in, 3), *p = ref_in(node, in, 7);
    double *x, *w, *r, *bias, *peep = NULL, *y;
    k->node = node;
    k->clip = hth_node_float(node, "clip", 0);
    k->lengths = ref_in(node, in, 4);
    HTH_TRY(rnn_sizes(k, in, out));
    HTH_TRY(rnn_activations(k));
    HTH_TRY(rnn_take(k, mem));
    int64_t gh = k->gates * k->hid, rows = k->steps * k->batch;
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(ref_wide(mem, &in[1], &w));
    HTH_TRY(ref_wide(mem, &in[2], &r));
    HTH_TRY(b ? ref_wide(mem, b, &bias) : REF_TAKE(mem, k->dirs * 2 * gh, &bias));
    if (p) {
        HTH_TRY(ref_wide(mem, p, &peep));
    }
    HTH_TRY(REF_TAKE(mem, rows * k->dirs * k->hid, &y));
    for (int64_t d = 0; d < k->dirs; d++) {
        k->f = k->act + d * k->n_acts;
        k->bias = bias + d * 2 * gh;
        k->rbias = k->bias + gh;
        k->peep = peep ? peep + d * 3 * k->hid : NULL;
        ref_transpose_f64(w + d * gh * k->in, gh, k->in, k->w);
        ref_transpose_f64(r + d * gh * k->hid, gh, k->hid, k->r);
        memset(k->xw, 0, (size_t)(rows * gh) * sizeof *k->xw);
        ref_gemm_f64(rows, gh, k->in, x, k->in, k->w, gh, k->xw, gh);
        rnn_load_state(k, ref_in(node, in, 5), d, k->h);
        rnn_load_state(k, k->gates == 4 ? ref_in(node, in, 6) : NULL, d, k->c);
        rnn_steps(k, d == 1 || strcmp(direction, "reverse") == 0, d, y);
        rnn_store_state(k, ref_out(node, out, 1), d, k->h);
        rnn_store_state(k, ref_out(node, out, 2), d, k->c);
    }
    if (ref_out(node, out, 0)) {
        ref_round(y, &out[0]);
    }
    return HTH_OK;
}

static hth_err rnn_rnn_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                            hth_tensor *out)
{
    rnn k = {.gates = 1, .n_acts = 1, .cell = rnn_cell_rnn};
    return rnn_run(mem, &k, node, in, out);
}

static hth_err rnn_gru_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                            hth_tensor *out)
{
    rnn k = {.gates = 3, .n_acts = 2, .cell = rnn_cell_gru};
    k.linear_before_reset = hth_node_int(node, "linear_before_reset", 0) != 0;
    return rnn_run(mem, &k, node, in, out);
}

static hth_err rnn_lstm_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    rnn k = {.gates = 4, .n_acts = 3, .cell = rnn_cell_lstm};
    k.input_forget = hth_node_int(node, "input_forget", 0) != 0;
    return rnn_run(mem, &k, node, in, out);
}

REF_OP(ref_rnn, rnn_rnn_body)
REF_OP(ref_gru, rnn_gru_body)
REF_OP(ref_lstm, rnn_lstm_body)
