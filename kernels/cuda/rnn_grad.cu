// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/rnn_grad.cu - one time step of RNN, GRU and LSTM with their usual activations, in
// the form that keeps what going back needs, and that step back: a thread per sample and unit, who
// reads and writes nothing of another's. Orders of gates are ONNX's: RNN i; GRU z r h; LSTM i o f
// c. Bytes moved: forward the gates three times, the states; back the gates twice, the states'
// gradients.
#include "kernels/cuda/params.h"

HTH_FN float rnn_sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

// A gate before its activation: the inputs' share and the state's.
HTH_FN float rnn_sum(const hth_rnn_grad_params *p, uint32_t b, uint32_t i, uint32_t q)
{
    int64_t at = (int64_t)b * p->row + q * p->hid + i;
    const float *bias = p->bias;
    return p->gate[at] + p->hr[at] +
           (bias != NULL ? bias[q * p->hid + i] + bias[(p->gates + q) * p->hid + i] : 0);
}

HTH_FN void rnn_keep_lstm(const hth_rnn_grad_params *p, uint32_t b, uint32_t i)
{
    float in = rnn_sigmoid(rnn_sum(p, b, i, 0)), out = rnn_sigmoid(rnn_sum(p, b, i, 1));
    float forget = rnn_sigmoid(rnn_sum(p, b, i, 2)), v = tanhf(rnn_sum(p, b, i, 3));
    float *g = &p->gate[(int64_t)b * p->row + i];
    int64_t at = (int64_t)b * p->state_row + i;
    float next = forget * p->c0[at] + in * v;
    g[0] = in;
    g[p->hid] = out;
    g[2 * p->hid] = forget;
    g[3 * p->hid] = v;
    p->c[at] = next;
    p->h[at] = out * tanhf(next);
}

// coupled: the reset gate is after the product, which it multiplies; else it was applied before.
HTH_FN void rnn_keep_gru(const hth_rnn_grad_params *p, uint32_t b, uint32_t i)
{
    float *g = &p->gate[(int64_t)b * p->row + i];
    int64_t at = (int64_t)b * p->state_row + i;
    const float *bias = p->bias;
    float z = rnn_sigmoid(rnn_sum(p, b, i, 0)), v;
    float own = bias != NULL ? bias[2 * p->hid + i] : 0;
    float far = bias != NULL ? bias[5 * p->hid + i] : 0;
    if (p->coupled) {
        float reset = rnn_sigmoid(rnn_sum(p, b, i, 1));
        float inner = p->hr[(int64_t)b * p->row + 2 * p->hid + i] + far;
        v = tanhf(g[2 * p->hid] + own + reset * inner);
        g[p->hid] = reset;
        p->cand[at] = inner;
    } else {
        v = tanhf(g[2 * p->hid] + own + p->more[at] + far);
    }
    g[0] = z;
    g[2 * p->hid] = v;
    p->h[at] = (1 - z) * v + z * p->h0[at];
}

HTH_KERNEL(hth_rnn_keep, hth_rnn_grad_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->batch * p->hid; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        if (p->gates == 4) {
            rnn_keep_lstm(p, b, i);
        } else if (p->gates == 3) {
            rnn_keep_gru(p, b, i);
        } else {
            float v = rnn_sum(p, b, i, 0);
            if (p->relu) {
                v = v > 0 ? v : 0;
            } else {
                v = tanhf(v);
            }
            p->gate[(int64_t)b * p->row + i] = v;
            p->h[(int64_t)b * p->state_row + i] = v;
        }
    }
}

// GRU that is not coupled: the state after the reset gate, for the product of the candidate.
HTH_KERNEL(hth_rnn_keep_reset, hth_rnn_grad_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->batch * p->hid; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        int64_t at = (int64_t)b * p->state_row + i;
        float r = rnn_sigmoid(rnn_sum(p, b, i, 1));
        p->gate[(int64_t)b * p->row + p->hid + i] = r;
        p->cand[at] = r * p->h0[at];
    }
}

HTH_FN void rnn_back_lstm(const hth_rnn_grad_params *p, uint32_t b, uint32_t i, float dh)
{
    float *g = &p->gate[(int64_t)b * p->row + i];
    int64_t at = (int64_t)b * p->state_row + i;
    float in = g[0], o = g[p->hid], f = g[2 * p->hid], u = g[3 * p->hid], c = tanhf(p->c[at]);
    float d = p->dc[at] + dh * o * (1 - c * c);
    g[0] = d * u * in * (1 - in);
    g[p->hid] = dh * c * o * (1 - o);
    g[2 * p->hid] = d * p->c0[at] * f * (1 - f);
    g[3 * p->hid] = d * in * (1 - u * u);
    p->dc[at] = d * f;
    p->dh[at] = 0;
}

// Not coupled: the reset gate's value stays for hth_rnn_back_reset.
HTH_FN void rnn_back_gru(const hth_rnn_grad_params *p, uint32_t b, uint32_t i, float dh)
{
    float *g = &p->gate[(int64_t)b * p->row + i];
    int64_t at = (int64_t)b * p->state_row + i;
    float z = g[0], reset = g[p->hid], u = g[2 * p->hid];
    float dz = dh * (p->h0[at] - u) * z * (1 - z), du = dh * (1 - z) * (1 - u * u);
    g[0] = dz;
    g[2 * p->hid] = du;
    p->dh[at] = dh * z;
    if (p->coupled) {
        float *far = &p->dgate[(int64_t)b * p->row + i];
        float dr = du * p->cand[at] * reset * (1 - reset);
        g[p->hid] = dr;
        far[0] = dz;
        far[p->hid] = dr;
        far[2 * p->hid] = du * reset;
    }
}

HTH_KERNEL(hth_rnn_back, hth_rnn_grad_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->batch * p->hid; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        int64_t at = (int64_t)b * p->state_row + i;
        float dh = p->dh[at] + (p->more != NULL ? p->more[at] : 0);
        dh += p->dy != NULL ? p->dy[k] : 0;
        if (p->gates == 4) {
            rnn_back_lstm(p, b, i, dh);
        } else if (p->gates == 3) {
            rnn_back_gru(p, b, i, dh);
        } else {
            float *g = &p->gate[(int64_t)b * p->row + i];
            float slope = 1 - *g * *g;
            if (p->relu) {
                slope = *g > 0 ? 1.0F : 0.0F;
            }
            *g = dh * slope;
            p->dh[at] = 0;
        }
    }
}

// GRU that is not coupled: `more` is the gradient of what the reset gate gave.
HTH_KERNEL(hth_rnn_back_reset, hth_rnn_grad_params, 1)
{
    for (uint32_t k = hth_index(t); k < p->batch * p->hid; k += hth_total(t)) {
        uint32_t b = k / p->hid, i = k % p->hid;
        int64_t at = (int64_t)b * p->state_row + i;
        float *r = &p->gate[(int64_t)b * p->row + p->hid + i], back = p->more[at];
        p->dh[at] += back * *r;
        *r = back * p->h0[at] * *r * (1 - *r);
    }
}

// A block has HTH_RNN_COLUMNS columns; of each, every group of threads takes the rows of its
// number, and the groups are added up in order.
HTH_KERNEL(hth_rnn_bias, hth_rnn_bias_params, 2)
{
    uint32_t lane = t->thread % HTH_RNN_COLUMNS, groups = t->n_threads / HTH_RNN_COLUMNS;
    uint32_t col = t->block * HTH_RNN_COLUMNS + lane;
    float sum = 0;
    if (phase == 0) {
        for (uint32_t r = t->thread / HTH_RNN_COLUMNS; r < p->rows && col < p->cols; r += groups) {
            sum += p->in[(int64_t)r * p->row + col];
        }
        shared[t->thread] = sum;
    } else if (t->thread < HTH_RNN_COLUMNS && col < p->cols) {
        for (uint32_t g = 0; g < groups; g++) {
            sum += shared[g * HTH_RNN_COLUMNS + lane];
        }
        p->out[col] = sum;
    }
}
