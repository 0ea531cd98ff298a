// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/seq.h - a prepared operator on a CUDA device: a sequence of steps, each a kernel of
// ours or a call of cuDNN or cublasLt.
//
// Design notes
// A step's parameters are filled in when the operator is prepared, all but the addresses: where
// those stand, and which input, output or place in the workspace each one is, is noted, and running
// copies them in. A builder adds steps; its errors stick in the sequence (hth_cuda_seq.err), so
// that it reads like a list.
#ifndef HTH_KERNELS_CUDA_SEQ_H
#define HTH_KERNELS_CUDA_SEQ_H

#include "device/cuda/cuda.h"
#include "kernels/cuda/params.h"
#include "kernels/kernel.h"

#define HTH_CUDA_BOUND 16 // addresses of one step
typedef enum hth_cuda_from { HTH_CUDA_IN, HTH_CUDA_OUT, HTH_CUDA_WS } hth_cuda_from;

typedef struct hth_cuda_seq hth_cuda_seq;
typedef struct hth_cuda_step hth_cuda_step;
struct hth_cuda_step {
    // NULL: a launch of `kernel`. Gets the addresses of the step's bindings.
    hth_err (*run)(const hth_cuda_seq *seq, const hth_cuda_step *step, void *const *address);
    void (*close)(hth_cuda_seq *seq, hth_cuda_step *step);
    void *state; // the parameters, or the library's; owned
    size_t bytes;
    CUfunction kernel;
    unsigned blocks, threads, shared_bytes;
    int n_bound;
    struct hth_cuda_bound {
        size_t at; // in the parameters
        hth_cuda_from from;
        int index;
        size_t offset; // bytes
    } bound[HTH_CUDA_BOUND];
};

#define HTH_CUDA_PACKINGS    4
#define HTH_CUDA_PARAM_BYTES 2048 // of the largest parameter struct
struct hth_cuda_seq {
    hth_kernel base;
    hth_cuda *d;
    hth_err err;
    int n_steps, cap;
    hth_cuda_step *steps;
    bool posts_done;                        // the builder took care of the node's post ops
    bool view;                              // in place there is nothing to do
    size_t moved_bytes;                     // what the kernels of ours move
    char name[64];                          // base.implementation
    hth_packing packing[HTH_CUDA_PACKINGS]; // base.packings, ..
    hth_shape packed[HTH_CUDA_PACKINGS];    // .. and what is packed
};
hth_err hth_cuda_seq_run(const hth_kernel *kernel, const hth_kernel_args *args);
void hth_cuda_seq_close(hth_kernel *kernel);

// hth_cuda_launch adds a launch with a copy of `params`. `threads` 0: 256.
void hth_cuda_launch_add(hth_cuda_seq *seq, hth_cuda_kernel_id id, uint64_t blocks,
                         unsigned threads, size_t shared_bytes, const void *params, size_t bytes);
// hth_cuda_bind makes the address at byte `at` of the last step's parameters that of an input, an
// output (index) or the workspace, `offset` bytes after. An absent one stays NULL.
void hth_cuda_bind(hth_cuda_seq *seq, size_t at, hth_cuda_from from, int index, size_t offset);
// hth_cuda_step_add adds a step that a library runs; the sequence takes `state` over also on error.
void hth_cuda_step_add(hth_cuda_seq *seq, hth_cuda_step step);
// hth_cuda_workspace reserves bytes of workspace and returns their offset.
size_t hth_cuda_workspace(hth_cuda_seq *seq, size_t bytes);
// Blocks of 256 threads for `n` items; `loops`: the kernel's threads take several each.
uint64_t hth_cuda_blocks(const hth_cuda_seq *seq, uint64_t n, bool loops);
// Threads for a row of n elements: as many as have something to do, in warps.
unsigned hth_cuda_row_threads(uint64_t n);

// A builder adds the steps of node. HTH_ENOTSUP: not this dtype, attribute, ..
typedef hth_err hth_cuda_build(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                               const char *algorithm);

// Values. NULL: absent, or the operand of a post op.
const hth_value *hth_cuda_in(const hth_graph *graph, const hth_node *node, int i);
const hth_value *hth_cuda_out(const hth_graph *graph, const hth_node *node, int i);
uint32_t hth_cuda_count(const hth_value *value);
size_t hth_cuda_bytes(const hth_value *value); // of a plain tensor
// hth_cuda_need_f32 refuses unless inputs 0 .. n_in - 1 and outputs 0 .. n_out - 1 are f32, as far
// as they are there.
hth_err hth_cuda_need_f32(const hth_graph *graph, const hth_node *node, int n_in, int n_out);
hth_err hth_cuda_need_float(const hth_graph *graph, const hth_node *node, int n_in,
                            int n_out);     // or BF16
bool hth_cuda_half(const hth_value *value); // BF16; NULL: not
// hth_cuda_inner is how far apart positions of an image lie: 1, or its channels.
uint32_t hth_cuda_inner(const hth_value *value);
// hth_cuda_wide stores whether indices are i64 (else i32). HTH_ENOTSUP: neither.
hth_err hth_cuda_wide(const hth_value *index, int32_t *wide);
// hth_cuda_ints reads a constant list of integers. HTH_ENOTSUP: it is computed. *count -1: absent.
hth_err hth_cuda_ints(const hth_graph *graph, const hth_node *node, int input, int64_t *out,
                      int cap, int *count);
hth_err hth_cuda_float(const hth_graph *graph, const hth_node *node, int input, float dflt,
                       float *out);
// hth_cuda_axis: attribute `axis` of input 0, counted from the front; elements before, along,
// after.
hth_err hth_cuda_axis(const hth_node *node, const hth_shape *shape, int64_t dflt, uint32_t *outer,
                      uint32_t *along, uint32_t *inner);

// Loops over strided operands: dimensions of one element go, neighbours that lie alike are joined.
#define HTH_CUDA_OPERANDS 12
typedef struct hth_cuda_loop {
    int rank, n;
    bool last; // axis 1 is the loop's last
    int64_t dim[3 * HTH_MAX_RANK], step[HTH_CUDA_OPERANDS][3 * HTH_MAX_RANK];
} hth_cuda_loop;
// hth_cuda_loop_begin: over the elements of a tensor in the order in which they lie.
void hth_cuda_loop_begin(hth_cuda_loop *loop, const hth_shape *shape, hth_layout lies);
// hth_cuda_loop_add adds an operand of shape `shape`, broadcast to the loop's, and returns its
// number.
int hth_cuda_loop_add(hth_cuda_loop *loop, const hth_shape *shape, hth_layout lies);
void hth_cuda_loop_fold(hth_cuda_loop *loop);
// hth_cuda_loop_store writes dims and steps[k] of operand k. HTH_ENOTSUP: too many dimensions.
hth_err hth_cuda_loop_store(const hth_cuda_loop *loop, hth_dims *dims, hth_steps *steps);
void hth_cuda_row_major(const hth_shape *shape, int64_t *step);
// hth_cuda_steps is the same of a tensor that is plain or has its channels last: of each axis.
void hth_cuda_steps(const hth_shape *shape, hth_layout lies, int64_t *step);

// Chains (element.c).
typedef struct hth_cuda_chain {
    hth_chain_params p;
    hth_cuda_loop loop;
    struct {
        hth_cuda_from from;
        int index;
        size_t offset;
    } at[HTH_CHAIN_OPERANDS];
    hth_layout lies; // the result
    bool full;
    size_t moved_bytes;
} hth_cuda_chain;
// hth_cuda_chain_begin: a chain whose result is like `value`.
void hth_cuda_chain_begin(hth_cuda_chain *chain, const hth_value *value);
int hth_cuda_chain_value(hth_cuda_chain *chain, const hth_value *value, hth_cuda_from from,
                         int index);
// .. an operand that is plain and f32
int hth_cuda_chain_operand(hth_cuda_chain *chain, const hth_shape *shape, hth_cuda_from from,
                           int index, size_t offset);
void hth_cuda_chain_step(hth_cuda_chain *chain, hth_op op, int operand, float alpha, float beta);
void hth_cuda_chain_posts(hth_cuda_chain *chain, const hth_graph *graph, const hth_node *node);
hth_err hth_cuda_chain_end(hth_cuda_seq *seq, hth_cuda_chain *chain, int out);
// hth_cuda_chain_takes says whether a post op can be a step.
bool hth_cuda_chain_takes(const hth_post_op *op);

// hth_cuda_fill adds a fill of output `out` with words of 4 bytes.
void hth_cuda_fill(hth_cuda_seq *seq, int out, uint32_t words, uint32_t value);

// A tensor somewhere, for copies that change how it lies or its type.
typedef struct hth_cuda_place {
    hth_cuda_from from;
    int index;
    size_t offset;
    hth_layout lies;
    bool half;
} hth_cuda_place;
// hth_cuda_move adds a strided copy of elements of `element` bytes, as wide as it can be, from an
// input to an output of the node; the bases are in elements. hth_cuda_move_between: from anywhere
// to anywhere; how a place lies is the loop's matter.
hth_err hth_cuda_move(hth_cuda_seq *seq, hth_cuda_loop *loop, size_t element, int in,
                      int64_t in_base, int out, int64_t out_base);
hth_err hth_cuda_move_between(hth_cuda_seq *seq, hth_cuda_loop *loop, size_t element,
                              const hth_cuda_place *from, int64_t in_base, const hth_cuda_place *to,
                              int64_t out_base);
// hth_cuda_convert adds a copy of a tensor of f32 or bf16. A filter [K, C, ..] with its channels
// last is [K, .., C].
void hth_cuda_convert(hth_cuda_seq *seq, const hth_shape *shape, const hth_cuda_place *from,
                      const hth_cuda_place *to);
// hth_cuda_operand is where a library that wants its input `input` in `lies` and `half` finds it:
// there, or converted in the workspace; a constant is packed so.
hth_cuda_place hth_cuda_operand(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                int input, hth_layout lies, bool half);

// Sums by channel of an image with its channels last (channels.c): `p` filled in but for rows,
// channels and parts; then the addresses are bound by `bind`, of both kernels.
typedef void hth_cuda_last_bind(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node);
void hth_cuda_last(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                   const hth_value *value, bool stats, hth_last_params *params,
                   hth_cuda_last_bind *bind);

// Builders, by file.
hth_cuda_build hth_cuda_element, hth_cuda_typed, hth_cuda_scale_shift; // element.c
hth_cuda_build hth_cuda_reduce, hth_cuda_global_pool, hth_cuda_softmax, hth_cuda_softmax_grad;
hth_cuda_build hth_cuda_batch_norm_train, hth_cuda_batch_norm_grad, hth_cuda_rows,
    hth_cuda_rows_grad,
    hth_cuda_lrn; // norm.c
hth_cuda_build hth_cuda_pool, hth_cuda_pool_grad;
hth_cuda_build hth_cuda_view, hth_cuda_transpose, hth_cuda_slice, hth_cuda_expand, hth_cuda_tile,
    hth_cuda_concat, hth_cuda_split, hth_cuda_blocks_space, hth_cuda_slice_grad,
    hth_cuda_pad; // move.c
hth_cuda_build hth_cuda_gather_elements, hth_cuda_gather_nd, hth_cuda_scatter_elements,
    hth_cuda_scatter_nd;
hth_cuda_build hth_cuda_top_k, hth_cuda_cum_sum, hth_cuda_one_hot, hth_cuda_trilu,
    hth_cuda_reverse_sequence; // select.c
hth_cuda_build hth_cuda_gather, hth_cuda_gather_grad, hth_cuda_attention;
hth_cuda_build hth_cuda_resize; // resize.c
hth_cuda_build hth_cuda_xent, hth_cuda_mse, hth_cuda_bce, hth_cuda_step_op, hth_cuda_clip_scale,
    hth_cuda_dropout; // train.c
hth_cuda_build hth_cuda_sample, hth_cuda_sample_grad, hth_cuda_einsum, hth_cuda_line_norm;
hth_cuda_build hth_cuda_rotary, hth_cuda_det, hth_cuda_hardmax; // rare.c
hth_cuda_build hth_cuda_constant_of_shape, hth_cuda_eye_like, hth_cuda_arange, hth_cuda_compress,
    hth_cuda_dropout_none; // make.c
hth_cuda_build hth_cuda_conv, hth_cuda_matmul, hth_cuda_rnn, hth_cuda_rnn_grad;
// hth_kernel_algorithms for convolutions and products; `first`: hth_kernel_first.
typedef hth_err hth_cuda_lists(hth_cuda *cuda, const hth_graph *graph, const hth_node *node,
                               bool first, hth_choice *list, int cap, int *count);
hth_cuda_lists hth_cuda_conv_algorithms, hth_cuda_matmul_algorithms;
hth_cuda_build hth_cuda_reorder, hth_cuda_cast; // convert.c
// hth_cuda_conv_last says whether cuDNN has an engine for a convolution whose images have their
// channels last, in the graph's precision.
bool hth_cuda_conv_last(hth_cuda *cuda, const hth_graph *graph, const hth_node *node);

#endif
