// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/params.h - the kernels of the .cu files by name, and the parameters of each: what
// the host fills in and the device reads. Counts are of elements and below 2^32.
#ifndef HTH_KERNELS_CUDA_PARAMS_H
#define HTH_KERNELS_CUDA_PARAMS_H

#include "device/cuda/grid.h"

// X(name, source file)
// clang-format off
#define HTH_CUDA_KERNELS(X) \
    X(hth_chain, chain) X(hth_typed, typed) \
    X(hth_reduce_block, reduce) X(hth_reduce_thread, reduce) X(hth_arg, reduce) \
    X(hth_softmax, softmax) X(hth_softmax_grad, softmax) \
    X(hth_channel_stats, batch_norm) X(hth_channel_grad, batch_norm) \
    X(hth_channel_grad_apply, batch_norm) \
    X(hth_rows, row_norm) X(hth_rows_grad, row_norm) X(hth_rows_grad_params, row_norm) \
    X(hth_lrn, lrn) X(hth_lrn_grad, lrn) \
    X(hth_pool, pool) X(hth_pool_grad, pool) \
    X(hth_move, move) X(hth_pad, move) X(hth_fill, move) \
    X(hth_gather, gather) X(hth_gather_grad, gather) \
    X(hth_pick, scatter) X(hth_put, scatter) X(hth_pick_tuples, scatter) \
    X(hth_put_tuples, scatter) \
    X(hth_topk, topk) X(hth_scan, scan) X(hth_one_hot, select) X(hth_trilu, select) \
    X(hth_reverse, select) \
    X(hth_rnn_cell, rnn) X(hth_rnn_reset, rnn) X(hth_rnn_state, rnn) \
    X(hth_rnn_keep, rnn_grad) X(hth_rnn_keep_reset, rnn_grad) X(hth_rnn_back, rnn_grad) \
    X(hth_rnn_back_reset, rnn_grad) X(hth_rnn_bias, rnn_grad) \
    X(hth_einsum_thread, einsum) X(hth_einsum_block, einsum) \
    X(hth_line_norm, line_norm) X(hth_hardmax, line_norm) \
    X(hth_rotary, rotary) X(hth_det, det) X(hth_det_grad, det) \
    X(hth_make, make) X(hth_range, make) X(hth_compress, make) \
    X(hth_sample, sample) X(hth_sample_taps, sample) X(hth_sample_grad, sample) \
    X(hth_sample_grad_grid, sample) \
    X(hth_resize, resize) X(hth_resize_grad, resize) \
    X(hth_xent_rows, loss) X(hth_xent_sum, loss) X(hth_xent_grad, loss) \
    X(hth_squares, loss) X(hth_squares_sum, loss) X(hth_mse_grad, loss) X(hth_bce, loss) \
    X(hth_bce_grad, loss) \
    X(hth_convert, convert) X(hth_transpose, convert) \
    X(hth_last_stats, channels_last) X(hth_last_stats_join, channels_last) \
    X(hth_last_sums, channels_last) X(hth_last_sums_join, channels_last) \
    X(hth_sgd, step) X(hth_adam, step) X(hth_dropout, dropout) X(hth_attention, attention)
// clang-format on

// Element-wise: a value per element, then steps, each with an operand or none. Steps are
// HTH_OP_*'s.
#define HTH_CHAIN_OPERANDS 10
#define HTH_CHAIN_STEPS    12
typedef enum hth_chain_mode {
    HTH_CHAIN_SAME, // lies as the result does
    HTH_CHAIN_ONE,  // one element
    HTH_CHAIN_STRIDED
} hth_chain_mode;
typedef struct hth_chain_operand {
    const void *data;
    int32_t mode, half; // half: bf16
    hth_steps steps;
} hth_chain_operand;
// of: what HTH_OP_ELEMENT_GRAD is the gradient of. HTH_OP_BATCH_NORMALIZATION as a step divides by
// the root of operand + alpha, HTH_OP_MEAN multiplies by alpha.
typedef struct hth_chain_step {
    int32_t op, of, operand;
    float alpha, beta;
} hth_chain_step;
typedef struct hth_chain_params {
    void *out;
    uint32_t n;
    int32_t n_steps, half;
    hth_dims dims;
    hth_chain_operand operand[HTH_CHAIN_OPERANDS];
    hth_chain_step step[HTH_CHAIN_STEPS];
} hth_chain_params;

// Element-wise with other types than f32: comparison, logic, Where, Cast, integers. type:
// hth_dtype.
typedef struct hth_typed_params {
    void *out;
    uint32_t n;
    int32_t op, n_operands, out_type, type[3];
    int32_t flags; // IsInf: 1 positive, 2 negative; Mod: 4 C's; BitShift: 8 left
    hth_dims dims;
    const void *in[3];
    hth_steps steps[3];
} hth_typed_params;

// Reductions: a loop over the results, in it one over what is reduced. op: HTH_OP_REDUCE_*, or
// HTH_OP_ARG_MAX, _MIN with i64 results; last: of equal ones the last. type: hth_dtype of integers
// and of f64, else 0.
typedef struct hth_reduce_params {
    const void *in;
    void *out;
    uint32_t n_out, n_in;
    int32_t op, last, half_in, half_out, type; // half: bf16
    float p;                                   // of Lp norms
    hth_dims outer, inner;
    hth_steps outer_steps, inner_steps;
} hth_reduce_params;

// Rows of `along` elements, `inner` apart. y: of the gradient the forward pass's result.
typedef struct hth_softmax_params {
    const void *x, *y;
    void *out;
    uint32_t along, inner;
    int32_t logs, half_x, half_y, half_out; // half: bf16
} hth_softmax_params;
typedef struct hth_hardmax_params {
    const float *x;
    float *out;
    uint32_t rows, along, inner;
} hth_hardmax_params;

// Batch norm, x [batch, channels, size]. Statistics of one channel per block.
typedef struct hth_channel_params {
    const void *x;
    const float *running_mean, *running_var;
    float *mean, *inv, *new_mean, *new_var; // the last two may be NULL
    uint32_t batch, channels, size;
    int32_t half;
    float eps, momentum;
} hth_channel_params;
// The gradient: dbias = sum dy, dscale = sum dy * xhat, of dy where low < the result < high if
// there is a bias.
// inner: elements from one channel to the next, `size`, or 1 where channels are last.
typedef struct hth_channel_grad_params {
    const void *dy, *x;
    const float *scale, *mean, *inv, *bias;
    float *dscale, *dbias;
    void *dx;
    uint32_t batch, channels, size, inner;
    int32_t half_dy, half_x, half_dx;
    float low, high;
} hth_channel_grad_params;

// The same of x [rows, channels]: `parts` ranges of rows, each summed up by itself into
// part[0], part[1] [parts, channels] (mean and squared distances; dy and dy * xhat), which a second
// kernel joins in order. x may be NULL in `grad`: dscale is not wanted.
typedef struct hth_last_params {
    hth_channel_params stats;
    hth_channel_grad_params grad;
    float *part[2];
    uint32_t rows, channels, parts;
} hth_last_params;

// Rows normalised by moments of their own: layer, RMS, group, instance norm. Element i of row r has
// parameter (r % groups) * per + i / inner. moments, for the gradients: where mean and inv of row r
// are; `given`: they are known.
typedef struct hth_rows_params {
    const void *dy, *x;
    const float *scale, *bias;
    void *out;
    float *mean, *inv; // may be NULL
    const float *given_mean, *given_inv;
    float *dscale, *dbias; // either may be NULL
    uint32_t rows, size, groups, per, inner;
    int32_t centre; // 0: RMS norm
    int32_t half_dy, half_x, half_out;
    float eps;
} hth_rows_params;

typedef struct hth_lrn_params {
    const void *x, *dy;
    void *out;
    int32_t half_x, half_dy, half_out;
    uint32_t n, channels, inner;
    int32_t before, after;   // the window
    float alpha, beta, bias; // alpha: of one element
} hth_lrn_params;

// Windows of up to three dimensions over images of `n_in` elements.
typedef enum hth_pool_kind { HTH_POOL_MAX, HTH_POOL_AVERAGE, HTH_POOL_LP } hth_pool_kind;
// inner: 1, or the channels, which are last.
typedef struct hth_pool_params {
    const void *x;
    void *y;
    uint8_t *tap;   // of the maximum, its number in the window; may be NULL
    int64_t *where; // or its index in x; may be NULL
    uint32_t n;     // results: elements of y, of the gradient elements of x
    uint32_t inner;
    int32_t kind, count_pads, half;
    float p; // of Lp
    int32_t in[3], out[3], k[3], stride[3], pad[3], pad_end[3], dilation[3];
} hth_pool_params;

// A strided copy of elements of 1, 2, 4, 8 or 16 bytes.
typedef struct hth_move_params {
    const void *in;
    void *out;
    uint32_t n, element;
    int64_t in_base, out_base; // elements
    hth_dims dims;
    hth_steps in_steps, out_steps;
} hth_move_params;
// mode: 0 constant, 1 reflect, 2 edge, 3 wrap. `value` (may be NULL: zeros) is an element.
typedef struct hth_pad_params {
    const void *in, *value;
    void *out;
    uint32_t n, element;
    int32_t mode;
    hth_dims dims;      // of the result
    hth_steps in_steps; // of the input
    int32_t before[HTH_CUDA_RANK], first[HTH_CUDA_RANK], kept[HTH_CUDA_RANK];
} hth_pad_params;
typedef struct hth_fill_params {
    void *out;
    uint32_t n; // words of 4 bytes
    uint32_t value;
} hth_fill_params;

// out [outer, count, inner] from data [outer, along, inner]. An index out of range reads zeros, and
// adds nothing in the gradient.
typedef struct hth_gather_params {
    const void *in, *index;
    void *out;
    uint32_t n, element, count, along, inner;
    int32_t wide; // indices are i64
    int32_t half; // of the gradient `in` is bf16
} hth_gather_params;

// GatherElements: of each index the data's place but for the axis, whose step is along_step.
typedef struct hth_pick_params {
    const void *in, *index;
    void *out;
    uint32_t n, element, along;
    int32_t wide;
    int64_t along_step;
    hth_dims dims;
    hth_steps steps;
} hth_pick_params;
// ScatterElements: n lines of `count` indices each, index_step apart. op: HTH_OP_NONE writes,
// others combine f32.
typedef struct hth_put_params {
    const void *updates, *index;
    void *out;
    uint32_t n, element, count, along;
    int32_t wide, op;
    int64_t along_step, index_step;
    hth_dims dims;
    hth_steps index_steps, steps;
} hth_put_params;
// GatherND, ScatterND: tuples of `depth` indices into dim, each naming a slice of `slice` elements;
// `tuples` of them for each batch of `inside` slices.
typedef struct hth_tuple_params {
    const void *in, *index; // of a scatter the updates
    void *out;
    uint32_t n, element, tuples, slice, depth;
    int32_t wide, op;
    int64_t inside;
    uint32_t dim[HTH_CUDA_RANK];
} hth_tuple_params;

// Rows of `along` elements, `inner` apart; out and index may be NULL. type: hth_dtype.
typedef struct hth_topk_params {
    const void *in;
    void *out;
    int64_t *index;
    uint32_t n, along, inner, k;
    int32_t type, largest;
} hth_topk_params;
typedef struct hth_scan_params {
    const void *in;
    void *out;
    uint32_t n, along, inner; // n: lines
    int32_t type, exclusive, reverse;
} hth_scan_params;
typedef struct hth_select_params {
    const void *in, *index;
    void *out;
    uint32_t n, element, rows, along, inner;
    int32_t wide, upper;
    int64_t k;
} hth_select_params;

// A copy that changes f32 to bf16 or back, and one that turns [batch, rows, cols] into
// [batch, cols, rows].
typedef struct hth_convert_params {
    const void *in;
    void *out;
    uint32_t n;
    int32_t half_in, half_out;
} hth_convert_params;
#define HTH_TILE 32u // of a transposition; a block of HTH_TILE * HTH_TILE / 4 threads
typedef struct hth_transpose_params {
    const void *in;
    void *out;
    uint32_t rows, cols;
    int32_t half_in, half_out;
} hth_transpose_params;

// Three neighbouring dimensions, of which those of one tap are copied or (nearest) chosen from;
// inner: elements of those after. coordinates, nearest: as resize.c numbers them. stretch: of
// distances, below 1 where antialiasing widens the kernel. from, size: the region of interest.
typedef struct hth_resize_params {
    const void *x;
    void *y;
    uint32_t n, inner;
    int32_t half, cubic, coordinates, nearest, divides; // divides: weights by their sum
    int32_t exclude;                                    // what is outside weighs nothing
    int32_t in[3], out[3], taps[3], moves[3];           // moves: is resized
    float cubic_a, outside;
    double scale[3], stretch[3], from[3], size[3];
} hth_resize_params;

// A sum of products for each of n results: of operands at outer + inner.
#define HTH_EINSUM_TERMS 6
typedef struct hth_einsum_params {
    const float *in[HTH_EINSUM_TERMS];
    float *out;
    uint32_t n, n_sum;
    int32_t n_in;
    hth_dims outer, inner;
    hth_steps outer_steps[HTH_EINSUM_TERMS], inner_steps[HTH_EINSUM_TERMS];
} hth_einsum_params;

// Results made of few numbers. type: hth_dtype.
typedef struct hth_make_params {
    void *out;
    const void *start, *delta;
    uint64_t value;
    uint32_t n, element, cols;
    int32_t type;
    int64_t k;
} hth_make_params;

// Heads of `size` elements, of which the first `turned` turn. cos, sin: [rows, turned / 2].
// positions may be NULL: a row per place.
typedef struct hth_rotary_params {
    const float *x, *cos, *sin;
    const void *positions;
    float *out;
    uint32_t n, heads, len, size, turned;
    int32_t flat, interleaved, wide; // flat: [batch, len, heads, size], else heads before len
    int64_t rows;
} hth_rotary_params;

// n matrices, of the gradient n elements, of [size, size].
typedef struct hth_det_params {
    const float *x, *dy;
    double *room;
    float *out;
    uint32_t n, size;
} hth_det_params;

// GridSample: images of three dimensions (the first ones 1), `places` results of each channel.
// width: taps per dimension: 1 nearest, 2 linear, 4 cubic. tap: of every place, dimension, and
// number.
#define HTH_SAMPLE_CHANNELS 16u // that a thread samples one after the other
typedef enum hth_sample_padding {
    HTH_SAMPLE_ZEROS,
    HTH_SAMPLE_BORDER,
    HTH_SAMPLE_REFLECT
} hth_sample_padding;
typedef struct hth_sample_tap {
    int32_t at; // -1: outside
    float weight;
} hth_sample_tap;
typedef struct hth_sample_params {
    const float *x, *grid, *dy;
    hth_sample_tap *tap;
    float *out;
    uint32_t n, batch, channels, places, size, bands;
    int32_t rank, width, padding, corners, dim[3];
} hth_sample_params;

// Cross-entropy over `classes` of x [outer, classes, inner].
typedef struct hth_xent_params {
    const float *x, *weights, *hyper; // of the classes, NULL: 1; has the divisor, NULL: the labels'
    const void *labels;
    float *rows;    // loss per row, NaN where the label is no class
    float *counted; // what the sum is divided by; the sum of all weights
    void *out;      // the loss, f32, or the gradient
    uint32_t n_rows, classes, inner;
    int32_t wide, half; // half: the gradient is bf16
    int64_t ignore;
    float smoothing;
} hth_xent_params;

// Binary cross-entropy of the logits x: of a block into part[block], or the gradient into out. An
// element's weight where it is positive: that of its class (classes of x [outer, classes, inner]).
typedef struct hth_bce_params {
    const float *x, *y, *weights; // NULL: 1
    float *part;
    void *out;
    uint32_t n, classes, inner;
    int32_t half;
    float factor;
} hth_bce_params;

// Sums of squares of a, or of a - b: of a block into part[block]; then all parts into out.
// max_norm > 0: out is the factor that clips gradients, hyper has their scale.
typedef struct hth_squares_params {
    const float *a, *b, *hyper;
    float *part;
    void *out; // f32, of a gradient with `half` bf16
    uint32_t n, n_parts;
    int32_t half;
    float factor, max_norm;
} hth_squares_params;

// One optimizer step, graph/autodiff/train.h's formulas. clip, m may be NULL.
typedef struct hth_step_params {
    const float *p, *g, *m, *v, *hyper, *clip;
    float *new_p, *new_m, *new_v;
    void *copy; // of new_p in bf16, may be NULL
    uint32_t n;
    int32_t flag;        // nesterov, decoupled
    uint32_t rows, cols; // of a copy that has its channels last: the filter's matrices; rows 0: not
} hth_step_params;

typedef struct hth_dropout_params {
    const void *x;
    void *y;
    const uint64_t *step;
    uint32_t n;
    int32_t half_x, half_y;
    float scale;
    uint64_t salt, threshold;
} hth_dropout_params;

// One step of a recurrence. xw: the inputs' product, a row of gates * hid per step and sample; hr:
// the state's; candidate: GRU's third gate of it. coupled: LSTM's forget is 1 - input; GRU resets
// after the product.
typedef enum hth_rnn_act {
    HTH_RNN_TANH,
    HTH_RNN_SIGMOID,
    HTH_RNN_RELU,
    HTH_RNN_AFFINE,
    HTH_RNN_LEAKY_RELU,
    HTH_RNN_THRESHOLDED_RELU,
    HTH_RNN_SCALED_TANH,
    HTH_RNN_HARD_SIGMOID,
    HTH_RNN_ELU,
    HTH_RNN_SOFTSIGN,
    HTH_RNN_SOFTPLUS
} hth_rnn_act;
typedef struct hth_rnn_params {
    const float *xw, *hr, *candidate, *bias, *peep; // bias, peep may be NULL
    const int32_t *lengths;                         // may be NULL
    float *h, *c, *rh, *y;                          // y may be NULL
    uint32_t batch, hid, steps, gates, dirs, dir, step, hr_step, candidate_step;
    int32_t reverse, batch_first, coupled, act[3];
    float alpha[3], beta[3], clip;
} hth_rnn_params;
typedef struct hth_rnn_state_params {
    const float *in, *more; // either may be NULL; their sum is copied
    float *out;
    uint32_t n, hid;
    int64_t in_step, out_step;
} hth_rnn_state_params;
// The same walked back, one step. Rows of gates are `row` floats apart, of states `state_row`.
// gate: the inputs' share, then the gates' values, then the gradients before the activations;
// dgate: those on the state's side, of GRU (coupled) only; hr: the state's product; more: another
// product, going back the state's gradient through the step after.
typedef struct hth_rnn_grad_params {
    float *gate, *dgate;                          // dgate may be NULL
    const float *hr, *bias, *more, *h0, *c0, *dy; // bias, dy and, going back, more may be NULL
    float *h, *c, *cand, *dh, *dc;
    uint32_t batch, hid, gates, row, state_row;
    int32_t relu, coupled;
} hth_rnn_grad_params;
// Sums of the columns of a matrix whose rows are `row` floats apart; a block has HTH_RNN_COLUMNS.
#define HTH_RNN_COLUMNS 32u
typedef struct hth_rnn_bias_params {
    const float *in;
    float *out;
    uint32_t rows, cols, row;
} hth_rnn_bias_params;

// One block per (b0, b1, t); view: offset, then strides as graph/attention.h has them.
typedef struct hth_attention_params {
    const void *q, *k, *v, *mask; // mask may be NULL
    void *out;
    int32_t half[5]; // which of q, k, v, out, mask are bf16
    uint32_t b1, t, s, d, e;
    float scale;
    int64_t view[5][5]; // of q, k, v, out, mask
} hth_attention_params;

#define HTH_CUDA_ENUM(name, file) HTH_CUDA_##name,
typedef enum hth_cuda_kernel_id {
    HTH_CUDA_KERNELS(HTH_CUDA_ENUM) HTH_CUDA_N_KERNELS
} hth_cuda_kernel_id;
#undef HTH_CUDA_ENUM

#endif
