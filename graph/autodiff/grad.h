// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad.h - what the gradient functions of operators work with. Inside graph/ only.
//
// Design notes
// A gradient function writes the nodes that turn the gradient of a node's outputs into gradients of
// its inputs. Errors stick: the first one is kept in `err`, every later call does nothing and
// returns value -1, so that a gradient reads like its formula; who walks over the graph looks at
// `err` once per node. Shapes are inferred as nodes are made, so a formula can ask for them. `n` is
// a copy of the forward node: the array it stood in moves while nodes are added.
#ifndef HTH_GRAPH_AUTODIFF_GRAD_H
#define HTH_GRAPH_AUTODIFF_GRAD_H

#include "graph/autodiff/train.h"

typedef struct hth_grad {
    hth_graph *g;
    hth_err err;
    int n_values;      // of the forward graph
    int *of;           // per forward value: its gradient so far, -1
    const bool *wants; // per forward value: does it depend on a trainable parameter
    int forward;       // index of the forward node, whose gradient is being made
    int node;          // the node between begin and end
    int made;          // nodes made for it so far
    const char *kind;  // nodes are called NODE.kind, NODE.kind.2, ..
} hth_grad;

typedef void (*hth_grad_fn)(hth_grad *grad, const hth_node *node);

typedef struct hth_grad_rule {
    hth_grad_fn fn; // NULL: no gradient
    unsigned fixed; // bit k: input k (the last bit: and those after) is a setting, not data
    bool flat;      // the derivative is 0 wherever it exists: no gradient goes through
} hth_grad_rule;

// hth_grad_rule_of returns the operator's rule, never NULL.
const hth_grad_rule *hth_grad_rule_of(hth_op op);
// hth_grad_passes says that a gradient can flow from node `node` to its input k.
bool hth_grad_passes(const hth_graph *graph, const hth_node *node, int k);

// hth_grad_fail refuses the node being differentiated: "node 'x' (Op): <sentence>", HTH_ENOTSUP.
void hth_grad_fail(hth_grad *grad, const char *sentence);

// The gradient of output k, -1: none.
int hth_grad_out(const hth_grad *grad, const hth_node *node, int k);
// Does input k need a gradient?
bool hth_grad_wants(const hth_grad *grad, const hth_node *node, int k);
// Adds `v` to the gradient of input k (which may not want it).
void hth_grad_give(hth_grad *grad, const hth_node *node, int k, int v);
const hth_shape *hth_grad_shape(const hth_grad *grad,
                                int v); // of a value; a scalar's after an error

// A node: begin, attributes, end, which returns output 0; hth_grad_output gives the others.
void hth_grad_begin(hth_grad *grad, hth_op op, const int *in, int n_in, int n_out);
void hth_grad_attrs(hth_grad *grad, const hth_node *from); // copies all
void hth_grad_int(hth_grad *grad, const char *name, int64_t v);
void hth_grad_float(hth_grad *grad, const char *name, float v);
void hth_grad_str(hth_grad *grad, const char *name, const char *v);
void hth_grad_ints(hth_grad *grad, const char *name, const int64_t *v, int n);
void hth_grad_drop(hth_grad *grad, const char *name);
int hth_grad_end(hth_grad *grad);
int hth_grad_output(const hth_grad *grad, int k);
// Nodes without attributes.
int hth_grad_1(hth_grad *grad, hth_op op, int a);
int hth_grad_2(hth_grad *grad, hth_op op, int a, int b);
int hth_grad_3(hth_grad *grad, hth_op op, int a, int b, int d);

// hth_grad_table returns zeroed memory for a constant of count elements that a rule writes itself;
// hth_free gives it back. More than is left to compute beforehand (limits.folded_bytes) is refused,
// HTH_ETOOBIG. NULL after an error, also an earlier one.
void *hth_grad_table(hth_grad *grad, int64_t count, size_t size);

// hth_grad_equal is 1 where a equals b, else 0.
int hth_grad_equal(hth_grad *grad, int a, int b);
// hth_grad_divisor is v, and infinity where v is 0: what is divided by it is 0 there.
int hth_grad_divisor(hth_grad *grad, int v);

// Constants: a float scalar, a vector of integers, zeros of a shape.
int hth_grad_scalar(hth_grad *grad, float v);
int hth_grad_list(hth_grad *grad, const int64_t *v, int64_t n);
int hth_grad_zeros(hth_grad *grad, const hth_shape *shape);
// Forms.
int hth_grad_reshape(hth_grad *grad, int v, const hth_shape *shape);
int hth_grad_expand(hth_grad *grad, int v, const hth_shape *shape);
int hth_grad_reduce(hth_grad *grad, hth_op op, int v, const int64_t *axes, int n, bool keep);
// hth_grad_sum_to undoes broadcasting: sums `v` down to shape.
int hth_grad_sum_to(hth_grad *grad, int v, const hth_shape *shape);
// hth_grad_spatial_sum sums over all axes but 1: [N, C, ..] -> [C].
int hth_grad_spatial_sum(hth_grad *grad, int v);
// hth_grad_content reads a constant vector of integers (any width); -1 when it is not one.
int hth_grad_content(hth_grad *grad, int v, int64_t *out, int cap);
// hth_grad_extend gives the forward node outputs up to number k, and returns that one.
int hth_grad_extend(hth_grad *grad, int k);

// Gradient functions. grad_element.c
void hth_grad_unary(hth_grad *grad, const hth_node *node);
void hth_grad_relu(hth_grad *grad, const hth_node *node);
void hth_grad_clip(hth_grad *grad, const hth_node *node);
void hth_grad_pass(hth_grad *grad, const hth_node *node);
void hth_grad_neg(hth_grad *grad, const hth_node *node);
void hth_grad_cast(hth_grad *grad, const hth_node *node);
void hth_grad_dropout(hth_grad *grad, const hth_node *node);
// grad_binary.c
void hth_grad_add(hth_grad *grad, const hth_node *node);
void hth_grad_sub(hth_grad *grad, const hth_node *node);
void hth_grad_mul(hth_grad *grad, const hth_node *node);
void hth_grad_div(hth_grad *grad, const hth_node *node);
void hth_grad_pow(hth_grad *grad, const hth_node *node);
void hth_grad_prelu(hth_grad *grad, const hth_node *node);
void hth_grad_mean(hth_grad *grad, const hth_node *node);
void hth_grad_extreme(hth_grad *grad, const hth_node *node);
void hth_grad_mod(hth_grad *grad, const hth_node *node);
void hth_grad_rotary(hth_grad *grad, const hth_node *node);
void hth_grad_where(hth_grad *grad, const hth_node *node);
// grad_matmul.c
void hth_grad_matmul(hth_grad *grad, const hth_node *node);
void hth_grad_gemm(hth_grad *grad, const hth_node *node);
void hth_grad_einsum(hth_grad *grad, const hth_node *node);
// grad_conv.c
void hth_grad_conv(hth_grad *grad, const hth_node *node);
void hth_grad_conv_transpose(hth_grad *grad, const hth_node *node);
void hth_grad_max_pool(hth_grad *grad, const hth_node *node);
void hth_grad_average_pool(hth_grad *grad, const hth_node *node);
void hth_grad_global_average(hth_grad *grad, const hth_node *node);
void hth_grad_lp_pool(hth_grad *grad, const hth_node *node);
void hth_grad_resize(hth_grad *grad, const hth_node *node);
// grad_norm.c
void hth_grad_batch_norm(hth_grad *grad, const hth_node *node);
void hth_grad_layer_norm(hth_grad *grad, const hth_node *node);
void hth_grad_rms_norm(hth_grad *grad, const hth_node *node);
void hth_grad_group_norm(hth_grad *grad, const hth_node *node);
void hth_grad_lrn(hth_grad *grad, const hth_node *node);
void hth_grad_softmax(hth_grad *grad, const hth_node *node);
void hth_grad_lp_norm(hth_grad *grad, const hth_node *node);
void hth_grad_mean_variance(hth_grad *grad, const hth_node *node);
// grad_reduce.c
void hth_grad_reduce_sum(hth_grad *grad, const hth_node *node);
void hth_grad_reduce_other(hth_grad *grad, const hth_node *node);
void hth_grad_reduce_extreme(hth_grad *grad, const hth_node *node);
void hth_grad_cumsum(hth_grad *grad, const hth_node *node);
// grad_shape.c
void hth_grad_reshape_back(hth_grad *grad, const hth_node *node);
void hth_grad_transpose(hth_grad *grad, const hth_node *node);
void hth_grad_expand_back(hth_grad *grad, const hth_node *node);
void hth_grad_tile(hth_grad *grad, const hth_node *node);
void hth_grad_concat(hth_grad *grad, const hth_node *node);
void hth_grad_split(hth_grad *grad, const hth_node *node);
void hth_grad_slice(hth_grad *grad, const hth_node *node);
void hth_grad_pad(hth_grad *grad, const hth_node *node);
void hth_grad_blocks(hth_grad *grad, const hth_node *node);
void hth_grad_same_on_dy(hth_grad *grad, const hth_node *node);
// grad_rnn.c
void hth_grad_rnn(hth_grad *grad, const hth_node *node);
// grad_index.c
void hth_grad_gather(hth_grad *grad, const hth_node *node);
void hth_grad_gather_elements(hth_grad *grad, const hth_node *node);
void hth_grad_gather_nd(hth_grad *grad, const hth_node *node);
void hth_grad_compress(hth_grad *grad, const hth_node *node);
void hth_grad_grid_sample(hth_grad *grad, const hth_node *node);
void hth_grad_det(hth_grad *grad, const hth_node *node);
void hth_grad_scatter(hth_grad *grad, const hth_node *node);
void hth_grad_top_k(hth_grad *grad, const hth_node *node);

#endif
