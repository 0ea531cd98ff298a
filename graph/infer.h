// SPDX-License-Identifier: Apache-2.0
// graph/infer.h - what the shape inference of one operator works with. Inside graph/infer*.c only.
//
// A rule reads its node through these functions and stores the outputs' dtypes and shapes. It
// allocates nothing. Every input's shape is known when a rule runs; contents may not be: then the
// rule hands up HTH_EBUSY. Dimensions come from files nobody vouches for, so all arithmetic on them
// goes through the checked helpers.
#ifndef HTH_GRAPH_INFER_H
#define HTH_GRAPH_INFER_H

#include "graph/graph.h"

typedef struct hth_infer {
    hth_graph *g;
    const hth_node *n;
    int n_in; // inputs of the operator itself, without the operands of post ops
    int wait; // value whose content is missing
} hth_infer;

typedef hth_err (*hth_infer_fn)(hth_infer *infer);
// hth_infer_rule returns the operator's rule, NULL when it has none.
hth_infer_fn hth_infer_rule(hth_op op);

bool hth_infer_has(const hth_infer *infer, int i);
const hth_shape *hth_infer_shape(const hth_infer *infer, int i); // input i must be there
hth_dtype hth_infer_dtype(const hth_infer *infer, int i);
// hth_infer_out stores output i; an absent one is left out. HTH_ETOOBIG, HTH_ENOTSUP (rank).
hth_err hth_infer_out(hth_infer *infer, int i, hth_dtype dt, const hth_shape *shape);
// hth_infer_push appends a dimension; HTH_ENOTSUP beyond HTH_MAX_RANK.
hth_err hth_infer_push(hth_infer *infer, hth_shape *shape, int64_t dim);

// hth_infer_fail is hth_fail with "node 'x' (Op): " in front.
hth_err hth_infer_fail(const hth_infer *infer, hth_err err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// hth_infer_disagree fails with "<a> [2,512] and <b> [1024,10] do not agree" for inputs i and j.
hth_err hth_infer_disagree(const hth_infer *infer, const char *a, int i, const char *b, int j);
hth_err hth_infer_overflow(const hth_infer *infer); // HTH_ETOOBIG
// hth_infer_rank fails unless input i has a rank in [min, max].
hth_err hth_infer_rank(const hth_infer *infer, int i, int min, int max);
// hth_infer_same_dtype fails unless inputs i and j (both there) have one dtype.
hth_err hth_infer_same_dtype(const hth_infer *infer, int i, int j);
// hth_infer_axis brings a possibly negative axis into [0, rank).
hth_err hth_infer_axis(const hth_infer *infer, int64_t axis, int rank, int *out);
// hth_infer_attr reads an attribute of integers: *count -1 when absent; more than `cap` fails.
hth_err hth_infer_attr(const hth_infer *infer, const char *name, int64_t *out, int cap, int *count);

// The content of an input.
typedef struct hth_infer_content {
    hth_const *from;
    const void *data;
    hth_dtype dtype;
    int64_t n;
} hth_infer_content;
// hth_infer_open maps input i's content until hth_infer_close; HTH_EBUSY: not known (infer->wait is
// set).
hth_err hth_infer_open(hth_infer *infer, int i, hth_infer_content *out);
void hth_infer_close(hth_infer_content *content);
int64_t hth_infer_int_at(const hth_infer_content *content, int64_t k); // integers and booleans
// hth_infer_ints copies input i's integers; more than `cap` fails. hth_infer_reals: any numbers.
hth_err hth_infer_ints(hth_infer *infer, int i, int64_t *out, int cap, int *count);
hth_err hth_infer_reals(hth_infer *infer, int i, double *out, int cap, int *count);
// hth_infer_axes turns a list of axes (input i; absent: *count = -1) into axes in [0, rank); a
// repeated axis fails.
hth_err hth_infer_axes(hth_infer *infer, int i, int rank, int *list, int *count);

// Checked arithmetic: true on overflow.
static inline bool hth_dim_add(int64_t a, int64_t b, int64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}
static inline bool hth_dim_mul(int64_t a, int64_t b, int64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}

// Rules, by family. infer_elementwise.c
hth_err hth_infer_same(hth_infer *infer); // output 0 is like input 0
hth_err hth_infer_same_axis(hth_infer *infer);
hth_err hth_infer_clip(hth_infer *infer);
hth_err hth_infer_predicate(hth_infer *infer);
hth_err hth_infer_binary(hth_infer *infer);
hth_err hth_infer_compare(hth_infer *infer);
hth_err hth_infer_pow(hth_infer *infer);
hth_err hth_infer_prelu(hth_infer *infer);
hth_err hth_infer_where(hth_infer *infer);
hth_err hth_infer_cast(hth_infer *infer);
hth_err hth_infer_cast_like(hth_infer *infer);
hth_err hth_infer_dropout(hth_infer *infer);
// infer_conv.c
hth_err hth_infer_conv(hth_infer *infer);
hth_err hth_infer_conv_transpose(hth_infer *infer);
hth_err hth_infer_pool(hth_infer *infer);
hth_err hth_infer_global_pool(hth_infer *infer);
// infer_shape.c: moving elements about, one input's shape to another
hth_err hth_infer_reshape(hth_infer *infer);
hth_err hth_infer_flatten(hth_infer *infer);
hth_err hth_infer_squeeze(hth_infer *infer);
hth_err hth_infer_unsqueeze(hth_infer *infer);
hth_err hth_infer_transpose(hth_infer *infer);
hth_err hth_infer_expand(hth_infer *infer);
hth_err hth_infer_tile(hth_infer *infer);
hth_err hth_infer_pad(hth_infer *infer);
hth_err hth_infer_slice(hth_infer *infer);
hth_err hth_infer_concat(hth_infer *infer);
hth_err hth_infer_split(hth_infer *infer);
hth_err hth_infer_depth_to_space(hth_infer *infer);
hth_err hth_infer_space_to_depth(hth_infer *infer);
// infer_index.c: by index, by content, from nothing
hth_err hth_infer_gather(hth_infer *infer);
hth_err hth_infer_gather_elements(hth_infer *infer);
hth_err hth_infer_gather_nd(hth_infer *infer);
hth_err hth_infer_scatter_elements(hth_infer *infer);
hth_err hth_infer_scatter_nd(hth_infer *infer);
hth_err hth_infer_compress(hth_infer *infer);
hth_err hth_infer_non_zero(hth_infer *infer);
hth_err hth_infer_nms(hth_infer *infer);
hth_err hth_infer_one_hot(hth_infer *infer);
hth_err hth_infer_top_k(hth_infer *infer);
hth_err hth_infer_eye_like(hth_infer *infer);
hth_err hth_infer_constant(hth_infer *infer);
hth_err hth_infer_constant_of_shape(hth_infer *infer);
hth_err hth_infer_range(hth_infer *infer);
hth_err hth_infer_shape_of(hth_infer *infer);
hth_err hth_infer_size(hth_infer *infer);
// infer_reduce.c
hth_err hth_infer_reduce(hth_infer *infer);
hth_err hth_infer_arg(hth_infer *infer);
// infer_matmul.c
hth_err hth_infer_matmul(hth_infer *infer);
hth_err hth_infer_gemm(hth_infer *infer);
hth_err hth_infer_einsum(hth_infer *infer);
hth_err hth_infer_det(hth_infer *infer);
hth_err hth_infer_attention(hth_infer *infer);
hth_err hth_infer_fused_attention(hth_infer *infer);
// infer_nn.c
hth_err hth_infer_channels(hth_infer *infer);
hth_err hth_infer_batch_norm(hth_infer *infer);
hth_err hth_infer_layer_norm(hth_infer *infer);
hth_err hth_infer_rnn(hth_infer *infer);
hth_err hth_infer_resize(hth_infer *infer);
hth_err hth_infer_grid_sample(hth_infer *infer);
hth_err hth_infer_rotary(hth_infer *infer);
// infer_train.c: operators of a training step
hth_err hth_infer_attr_shape(hth_infer *infer);
hth_err hth_infer_like_operands(hth_infer *infer);
hth_err hth_infer_conv_grad_filter(hth_infer *infer);
hth_err hth_infer_max_pool_train(hth_infer *infer);
hth_err hth_infer_batch_norm_train(hth_infer *infer);
hth_err hth_infer_conv_norm_train(hth_infer *infer);
hth_err hth_infer_conv_norm_grad(hth_infer *infer);
hth_err hth_infer_norm_grad(hth_infer *infer);
hth_err hth_infer_first_of_two(hth_infer *infer);
hth_err hth_infer_xent(hth_infer *infer);
hth_err hth_infer_mse(hth_infer *infer);
hth_err hth_infer_bce(hth_infer *infer);
hth_err hth_infer_rnn_grad(hth_infer *infer);
hth_err hth_infer_clip_scale(hth_infer *infer);
hth_err hth_infer_step(hth_infer *infer);

// hth_infer_shape_range gives Shape's start and end, clamped: elements [*from, *to) of the
// dimensions.
void hth_infer_shape_range(const hth_node *node, int rank, int *from, int *to);

#endif
