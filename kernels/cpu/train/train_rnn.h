// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/train/train_rnn.h - the cells of recurrent networks, one step of one sample forward
// and back, vectorised over the units.
//
// Gates come in as the input's share, without bias, and are left as their values; `bias` has the
// input's half first, then the state's. Orders are ONNX's: RNN i; GRU z r h; LSTM i o f c. Going
// back, `gate` becomes the gradient before the activations. dh is all that the step's state gets.
#ifndef HTH_KERNELS_CPU_TRAIN_TRAIN_RNN_H
#define HTH_KERNELS_CPU_TRAIN_TRAIN_RNN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_cell {
    float *gate;        // gates * n
    const float *state; // the state's product; gates * n
    const float *bias;  // 2 * gates * n
    const float *h0, *c0;
    float *h, *c;
    float *cand; // GRU: what the reset gate multiplies; n
    // back: dh in, what of it goes on to h0 by itself out; the gradient of c likewise
    float *dh, *dc;
    float *dstate; // GRU: the gradient of the state's product; gates * n
} hth_cell;

void hth_cell_rnn(const hth_cell *cell, size_t n, bool relu);
void hth_cell_lstm(const hth_cell *cell, size_t n);
void hth_cell_gru(const hth_cell *cell, size_t n); // reset after the product
void hth_cell_rnn_back(const hth_cell *cell, size_t n, bool relu);
void hth_cell_lstm_back(const hth_cell *cell, size_t n);
void hth_cell_gru_back(const hth_cell *cell, size_t n);

#endif
