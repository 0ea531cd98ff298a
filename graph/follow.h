// SPDX-License-Identifier: Apache-2.0
// graph/follow.h - what the rule of one operator about samples works with. Inside
// graph/follow*.c only.
//
// Design notes
// Let a model's inputs hold N samples along their first dimensions, and let v(X) be what a value
// comes to. A rule gives each output of its node a *track*, a fact about v that holds for every N:
//   FIXED    v(X) does not depend on X, nor on N;
//   COUNT    v(X) has the same shape for all X and depends on N alone: shape arithmetic;
//   SAMPLES  v(X) is made of N parts, part i depends on sample i alone, and is what v comes to for
//            that sample alone. The dimension `axis` has the length outer * N * inner: seen as
//            three dimensions [outer, N, inner], the parts follow each other along the middle one.
//            outer 1: the parts are whole blocks. No other dimension depends on N;
//   MIXED    none of these is proven; `reason` says where the proof ended.
//
// Of SAMPLES more may be known: all positions along the axis are `equal` (a broadcast), or all
// elements are at least 0 and less than `below`. And two kinds of numbers differ from what they are
// for a sample alone: every element of part i is i * stride + r with 0 <= r < reach (`index`), or
// the elements at position 0 of the last dimension are i, and no others differ (`coords`, by which
// GatherND and ScatterND address). They are good for addressing sample i; what else is computed
// with them is `lost`, as MIXED is, but for its shape, which exporters ask for.
//
// Dimensions, and the elements of small tensors of integers, are sizes (follow_size.h). A rule runs
// when no input is MIXED, none has an unknown rank unless all are FIXED, and COUNT meets SAMPLES
// only in operands whose contents the rule reads (`contents` of its row).
#ifndef HTH_GRAPH_FOLLOW_H
#define HTH_GRAPH_FOLLOW_H

#include "graph/graph.h"
#include "graph/follow_size.h"

typedef enum hth_track_kind {
    HTH_TRACK_NONE, // not visited
    HTH_TRACK_FIXED,
    HTH_TRACK_COUNT,
    HTH_TRACK_SAMPLES,
    HTH_TRACK_MIXED,
} hth_track_kind;

typedef struct hth_track {
    uint8_t kind;
    bool equal, index, coords, lost;
    bool bounded;      // whether a constant's bound was looked for
    int8_t axis, rank; // rank -1: not known
    hth_dtype dtype;   // HTH_DT_NONE: not known
    hth_size outer, inner;
    hth_size stride, reach; // of index
    hth_size below;         // HTH_SIZE_OTHER: no bound is known
    hth_size dim[HTH_MAX_RANK];
    int reason; // of MIXED, and of what is lost
    int n;      // elements whose sizes are known, 0: none is
    hth_size *element;
} hth_track;

typedef struct hth_follow hth_follow;
// A rule stores the tracks of its node's outputs, or says that they are MIXED.
typedef void (*hth_follow_fn)(hth_follow *follow);

// What the operator table says besides the rule.
enum {
    HTH_FOLLOW_MOVES = 1,  // elements are only moved, copied or left out: an index stays one
    HTH_FOLLOW_TAKES = 2,  // the rule deals with index, coords and bounds itself
    HTH_FOLLOW_BOUNDS = 4, // .. with bounds
};

struct hth_follow {
    const hth_graph *g;
    hth_sizes *sizes;
    hth_track *track; // by value
    int node;
    const hth_node *n; // &g->nodes[node]
    int n_in;          // inputs without the operands of post operations
    struct hth_reason *reasons;
    int n_reasons, cap_reasons;
    bool failed; // no memory
};

// ---- inputs
bool hth_follow_has(const hth_follow *follow, int i);
const hth_track *hth_follow_in(const hth_follow *follow, int i); // input i must be there
bool hth_follow_samples(const hth_follow *follow, int i);        // it is there, and SAMPLES
// hth_follow_any returns the first input that is SAMPLES, -1: none is.
int hth_follow_any(const hth_follow *follow);
// hth_follow_only says that no input but those in `mask` (bit i) is SAMPLES; else the outputs are
// MIXED.
bool hth_follow_only(hth_follow *follow, unsigned mask);
// hth_follow_elements returns the number of elements of input i, -1 where that is not a number, or
// the input is absent.
int64_t hth_follow_elements(const hth_follow *follow, int i);
// hth_follow_element is element k of input i: a symbol of its own where it is not known.
hth_size hth_follow_element(hth_follow *follow, int i, int k);
// hth_follow_length is a dimension that depends on the inputs' contents, nobody knows how.
hth_size hth_follow_length(hth_follow *follow);
// hth_follow_ints stores the elements of input i where they are numbers, at most `cap`; -1: they
// are not. An input that is absent has none: 0.
int hth_follow_ints(hth_follow *follow, int i, int64_t *out, int cap);
// hth_follow_axis brings an axis into [0, rank); false: it is outside, and the outputs are MIXED.
bool hth_follow_axis(hth_follow *follow, int64_t axis, int rank, int *out);
// hth_follow_numbers says that input i's dimensions are numbers, and stores them.
bool hth_follow_numbers(const hth_follow *follow, int i, hth_shape *out);

// ---- outputs
// hth_follow_out stores output i's track; an absent one is left out. `track` is copied, without
// contents.
void hth_follow_out(hth_follow *follow, int i, const hth_track *track);
// hth_follow_mixed makes all outputs MIXED: "node 'n' (Op) <does> axis 2, which holds the samples";
// axis -1: "node 'n' (Op) <does>".
void hth_follow_mixed(hth_follow *follow, const char *does, int axis);
// hth_follow_mix is the same for output i alone.
void hth_follow_mix(hth_follow *follow, int i, const char *does, int axis);
// hth_follow_lose says that track's values are lost, if input i's are, or for being computed with
// samples' numbers.
void hth_follow_lose(hth_follow *follow, hth_track *track, int i);
// hth_follow_rows says that every element of part i of input `at` is i.
bool hth_follow_rows(hth_follow *follow, int at);
// hth_follow_set gives output 0 `n` known elements; `element` is hth_alloc'd and taken over. What
// changes with N makes it COUNT, else it is FIXED.
void hth_follow_set(hth_follow *follow, int i, hth_size *element, int n);

// ---- tracks
hth_size hth_follow_dims(hth_follow *follow, const hth_track *track, int from,
                         int to);                              // product of [from, to)
bool hth_follow_alike(const hth_track *a, const hth_track *b); // the samples lie alike
// hth_follow_settle has to's samples lie as by's, where all positions along to's axis are equal:
// then nothing but what they meet says which is whose. `by` is alike.
void hth_follow_settle(hth_track *to, const hth_track *by);
// hth_follow_place has the samples lie along `axis` of `to` as along a's; to->dim[axis] is set.
void hth_follow_place(hth_track *to, int axis, const hth_track *track);
// hth_follow_join joins `n` tracks as element-wise operators do, by broadcasting; false: the
// outputs are MIXED.
bool hth_follow_join(hth_follow *follow, const hth_track *const *in, int n, hth_track *out);

// The rules, by family. follow_element.c
void hth_through_element(hth_follow *follow); // all inputs broadcast to output 0
void hth_through_first(hth_follow *follow);   // input 0, element by element; the others are FIXED
void hth_through_add(hth_follow *follow);
void hth_through_mul(hth_follow *follow);
void hth_through_mod(hth_follow *follow);
void hth_through_cast_like(hth_follow *follow);
void hth_through_dropout(hth_follow *follow);
void hth_through_softmax(hth_follow *follow);
void hth_through_along(hth_follow *follow); // one line along an axis at a time
void hth_through_reduce(hth_follow *follow);
void hth_through_arg(hth_follow *follow);
void hth_through_top_k(hth_follow *follow);
// follow_shape.c
void hth_through_reshape(hth_follow *follow);
void hth_through_flatten(hth_follow *follow);
void hth_through_squeeze(hth_follow *follow);
void hth_through_unsqueeze(hth_follow *follow);
void hth_through_transpose(hth_follow *follow);
void hth_through_expand(hth_follow *follow);
void hth_through_tile(hth_follow *follow);
// follow_cut.c
void hth_through_pad(hth_follow *follow);
void hth_through_slice(hth_follow *follow);
void hth_through_concat(hth_follow *follow);
void hth_through_split(hth_follow *follow);
// follow_index.c
void hth_through_gather(hth_follow *follow);
void hth_through_gather_elements(hth_follow *follow);
void hth_through_gather_nd(hth_follow *follow);
void hth_through_scatter_elements(hth_follow *follow);
void hth_through_scatter_nd(hth_follow *follow);
void hth_through_compress(hth_follow *follow);
void hth_through_by_content(hth_follow *follow); // as many results as the contents decide
void hth_through_one_hot(hth_follow *follow);
void hth_through_eye_like(hth_follow *follow);
void hth_through_reverse(hth_follow *follow);
void hth_through_constant(hth_follow *follow);
void hth_through_constant_of_shape(hth_follow *follow);
void hth_through_range(hth_follow *follow);
void hth_through_shape_of(hth_follow *follow);
void hth_through_size(hth_follow *follow);
// follow_matmul.c
void hth_through_matmul(hth_follow *follow);
void hth_through_gemm(hth_follow *follow);
void hth_through_einsum(hth_follow *follow);
void hth_through_attention(hth_follow *follow);
void hth_through_rotary(hth_follow *follow);
// follow_nn.c
void hth_through_conv(hth_follow *follow);
void hth_through_pool(hth_follow *follow);
void hth_through_blocks(hth_follow *follow); // depth to space and back
void hth_through_batch_norm(hth_follow *follow);
void hth_through_per_channel(
    hth_follow *follow); // instance and group normalization, per first dimension
void hth_through_layer_norm(hth_follow *follow);
void hth_through_mean_variance(hth_follow *follow);
void hth_through_lrn(hth_follow *follow);
void hth_through_matrix(hth_follow *follow); // of the last two dimensions: Det, Trilu
void hth_through_rnn(hth_follow *follow);
void hth_through_resize(hth_follow *follow);
void hth_through_grid(hth_follow *follow);

// follow_content.c: the elements of a node without SAMPLES, for outputs that have few.
void hth_follow_content(hth_follow *follow);

// What the operator table has about samples; rule NULL: nothing is proven.
typedef struct hth_follow_row {
    hth_follow_fn rule;
    unsigned contents; // bit i: the rule reads input i's contents
    unsigned flags;
} hth_follow_row;
const hth_follow_row *hth_follow_row_of(hth_op op);

#endif
