// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/rnn.cu - one time step of RNN, GRU and LSTM after its products: a thread per sample
// and unit applies the gates. A sample that has ended keeps its state. Orders of gates are ONNX's:
// RNN i; GRU z r h; LSTM i o f c. Bytes moved: the products' results, the state twice, the output.
#include "graph/op.h"
#include "kernels/cuda/params.h"

HTH_FN float rnn_apply(const hth_rnn_params *p, int k, float x)
{
    float a = p->alpha[k], b = p->beta[k];
    switch (p->act[k]) {
    case HTH_RNN_TANH: return tanhf(x);
    case HTH_RNN_SIGMOID: return 1 / (1 + expf(-x));
    case HTH_RNN_RELU: return x > 0 ? x : 0;
    case HTH_RNN_AFFINE: return a * x + b;
    case HTH_RNN_LEAKY_RELU: return x >= 0 ? x : a * x;
    case HTH_RNN_THRESHOLDED_RELU: return x >= a ? x : 0;
    case HTH_RNN_SCALED_TANH: return a * tanhf(b * x);
    case HTH_RNN_HARD_SIGMOID: return fminf(fmaxf(a * x + b, 0), 1);
    case HTH_RNN_ELU: return x >= 0 ? x : a * expm1f(x);
    case HTH_RNN_SOFTSIGN: return x / (1 + fabsf(x));
    default: return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
    }
}

HTH_FN float rnn_gate(const hth_rnn_params *p, int k, float x)
{
    return rnn_apply(p, k, p->clip > 0 ? fminf(fmaxf(x, -p->clip), p->clip) : x);
}

// The time of this step for sample b; -1: it has ended.
HTH_FN int64_t rnn_time(const hth_rnn_params *p, uint32_t b)
{
    int64_t length = p->lengths != NULL ? p->lengths[b] : (int64_t)p->steps;
    length = length > (int64_t)p->steps ? (int64_t)p->steps : length;
    if ((int64_t)p->step >= length) {
        return -1;
    }
    return p->reverse ? length - 1 - p->step : p->step;
}

// What of gate q does not come from the state.
HTH_FN float rnn_input(const hth_rnn_params *p, uint32_t b, uint32_t i, int64_t time, int q)
{
    int64_t row = p->batch_first ? (int64_t)b * p->steps + time : time * p->batch + b;
    uint32_t at = (uint32_t)q * p->hid + i;
    return p->xw[row * p->gates * p->hid + at] + (p->bias != NULL ? p->bias[at] : 0);
}

// The state's share of gate q, with its bias.
HTH_FN float rnn_state_bias(const hth_rnn_params *p, uint32_t i, int q)
{
    return p->bias != NULL ? p->bias[(p->gates + (uint32_t)q) * p->hid + i] : 0;
}

HTH_FN float rnn_recurrent(const hth_rnn_params *p, uint32_t b, uint32_t i, int q)
{
    return p->hr[(int64_t)b * p->hr_step + (uint32_t)q * p->hid + i] + rnn_state_bias(p, i, q);
}

HTH_FN float rnn_lstm(const hth_rnn_params *p, uint32_t b, uint32_t i, int64_t time)
{
    float g[4], *c = &p->c[(int64_t)b * p->hid + i];
    for (int q = 0; q < 4; q++) {
        g[q] = rnn_input(p, b, i, time, q) + rnn_recurrent(p, b, i, q);
    }
    const float *peep = p->peep;
    float in = rnn_gate(p, 0, g[0] + (peep != NULL ? peep[i] * *c : 0));
    float forget = 1 - in;
    if (!p->coupled) {
        forget = rnn_gate(p, 0, g[2] + (peep != NULL ? peep[2 * p->hid + i] * *c : 0));
    }
    float now = forget * *c + in * rnn_gate(p, 1, g[3]);
    *c = now;
    float out = rnn_gate(p, 0, g[1] + (peep != NULL ? peep[p->hid + i] * now : 0));
    return out * rnn_apply(p, 2, now);
}

HTH_FN float rnn_gru(const hth_rnn_params *p, uint32_t b, uint32_t i, int64_t time)
{
    float z = rnn_gate(p, 0, rnn_input(p, b, i, time, 0) + rnn_recurrent(p, b, i, 0));
    float more = p->candidate[(int64_t)b * p->candidate_step + i] + rnn_state_bias(p, i, 2);
    if (p->coupled) { // the reset gate is after the product
        more *= rnn_gate(p, 0, rnn_input(p, b, i, time, 1) + rnn_recurrent(p, b, i, 1));
    }
    float v = rnn_gate(p, 1, rnn_input(p, b, i, time, 2) + more);
    return (1 - z) * v + z * p->h[(int64_t)b * p->hid + i];
}

HTH_KERNEL(hth_rnn_cell, hth_rnn_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->batch * p->hid; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        int64_t time = rnn_time(p, b);
        if (time < 0) {
            continue;
        }
        float h;
        if (p->gates == 4) {
            h = rnn_lstm(p, b, i, time);
        } else if (p->gates == 3) {
            h = rnn_gru(p, b, i, time);
        } else {
            h = rnn_gate(p, 0, rnn_input(p, b, i, time, 0) + rnn_recurrent(p, b, i, 0));
        }
        p->h[k] = h;
        if (p->y != NULL) {
            int64_t at = p->batch_first ? ((int64_t)b * p->steps + time) * p->dirs + p->dir
                                        : (time * p->dirs + p->dir) * p->batch + b;
            p->y[at * p->hid + i] = h;
        }
    }
}

// GRU: the state after the reset gate, for the product of the candidate.
HTH_KERNEL(hth_rnn_reset, hth_rnn_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->batch * p->hid; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        int64_t time = rnn_time(p, b);
        float r = 0;
        if (time >= 0) {
            r = rnn_gate(p, 0, rnn_input(p, b, i, time, 1) + rnn_recurrent(p, b, i, 1));
        }
        p->rh[k] = r * p->h[k];
    }
}

// A state's rows, or zeros, to where they are wanted.
HTH_KERNEL(hth_rnn_state, hth_rnn_state_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->n; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        float more = p->more != NULL ? p->more[b * p->in_step + i] : 0;
        p->out[b * p->out_step + i] = (p->in != NULL ? p->in[b * p->in_step + i] : 0) + more;
    }
}
