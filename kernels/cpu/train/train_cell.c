// SPDX-License-Identifier: Apache-2.0
// One step of one sample of a recurrent network, forward and back. Loops over the units that the
// compiler vectorises; see train_rnn.h.
#include "kernels/cpu/train/train_rnn.h"

#include "kernels/cpu/vector.h"

// Sum of both halves of a gate before its activation.
#define CELL_IN(k) (g[(k)*n + i] + r[(k)*n + i] + b[(k)*n + i] + b[(k)*n + i + half])

HTH_VECTOR(cell_rnn,
           (float *g, const float *r, const float *b, float *h, size_t n, size_t half, bool relu),
           (g, r, b, h, n, half, relu))
{
    for (size_t i = 0; relu && i < n; i++) {
        float v = CELL_IN(0);
        h[i] = g[i] = v > 0 ? v : 0;
    }
    for (size_t i = 0; !relu && i < n; i++) {
        h[i] = g[i] = hth_tanhf(CELL_IN(0));
    }
}

HTH_VECTOR(cell_lstm,
           (float *g, const float *r, const float *b, const float *c0, float *c, float *h, size_t n,
            size_t half),
           (g, r, b, c0, c, h, n, half))
{
    for (size_t i = 0; i < n; i++) {
        float in = hth_sigmoidf(CELL_IN(0)), out = hth_sigmoidf(CELL_IN(1));
        float forget = hth_sigmoidf(CELL_IN(2)), v = hth_tanhf(CELL_IN(3));
        float next = forget * c0[i] + in * v;
        g[i] = in;
        g[n + i] = out;
        g[2 * n + i] = forget;
        g[3 * n + i] = v;
        c[i] = next;
        h[i] = out * hth_tanhf(next);
    }
}

HTH_VECTOR(cell_gru,
           (float *g, const float *r, const float *b, const float *h0, float *h, float *cand,
            size_t n, size_t half),
           (g, r, b, h0, h, cand, n, half))
{
    for (size_t i = 0; i < n; i++) {
        float z = hth_sigmoidf(CELL_IN(0)), reset = hth_sigmoidf(CELL_IN(1));
        float inner = r[2 * n + i] + b[2 * n + i + half];
        float v = hth_tanhf(g[2 * n + i] + b[2 * n + i] + reset * inner);
        g[i] = z;
        g[n + i] = reset;
        g[2 * n + i] = v;
        cand[i] = inner;
        h[i] = (1.0F - z) * v + z * h0[i];
    }
}

HTH_VECTOR(back_rnn, (float *g, float *dh, size_t n, bool relu), (g, dh, n, relu))
{
    for (size_t i = 0; relu && i < n; i++) {
        g[i] = dh[i] * (g[i] > 0 ? 1.0F : 0.0F);
        dh[i] = 0;
    }
    for (size_t i = 0; !relu && i < n; i++) {
        g[i] = dh[i] * (1 - g[i] * g[i]);
        dh[i] = 0;
    }
}

HTH_VECTOR(back_lstm, (float *g, const float *c0, const float *c, float *dh, float *dc, size_t n),
           (g, c0, c, dh, dc, n))
{
    for (size_t i = 0; i < n; i++) {
        float in = g[i], o = g[n + i], f = g[2 * n + i], u = g[3 * n + i], t = hth_tanhf(c[i]);
        float d = dc[i] + dh[i] * o * (1 - t * t);
        g[i] = d * u * in * (1 - in);
        g[n + i] = dh[i] * t * o * (1 - o);
        g[2 * n + i] = d * c0[i] * f * (1 - f);
        g[3 * n + i] = d * in * (1 - u * u);
        dc[i] = d * f;
        dh[i] = 0;
    }
}

HTH_VECTOR(back_gru,
           (float *g, const float *h0, const float *cand, float *dh, float *dstate, size_t n),
           (g, h0, cand, dh, dstate, n))
{
    for (size_t i = 0; i < n; i++) {
        float z = g[i], reset = g[n + i], u = g[2 * n + i], d = dh[i];
        float dz = d * (h0[i] - u) * z * (1 - z), du = d * (1 - z) * (1 - u * u);
        float dr = du * cand[i] * reset * (1 - reset);
        g[i] = dstate[i] = dz;
        g[n + i] = dstate[n + i] = dr;
        g[2 * n + i] = du;
        dstate[2 * n + i] = du * reset;
        dh[i] = d * z;
    }
}

void hth_cell_rnn(const hth_cell *cell, size_t n, bool relu)
{
    cell_rnn(cell->gate, cell->state, cell->bias, cell->h, n, n, relu);
}

void hth_cell_lstm(const hth_cell *cell, size_t n)
{
    cell_lstm(cell->gate, cell->state, cell->bias, cell->c0, cell->c, cell->h, n, 4 * n);
}

void hth_cell_gru(const hth_cell *cell, size_t n)
{
    cell_gru(cell->gate, cell->state, cell->bias, cell->h0, cell->h, cell->cand, n, 3 * n);
}

void hth_cell_rnn_back(const hth_cell *cell, size_t n, bool relu)
{
    back_rnn(cell->gate, cell->dh, n, relu);
}

void hth_cell_lstm_back(const hth_cell *cell, size_t n)
{
    back_lstm(cell->gate, cell->c0, cell->c, cell->dh, cell->dc, n);
}

void hth_cell_gru_back(const hth_cell *cell, size_t n)
{
    back_gru(cell->gate, cell->h0, cell->cand, cell->dh, cell->dstate, n);
}
