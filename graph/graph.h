// SPDX-License-Identifier: Apache-2.0
// graph/graph.h - the graph: values, nodes in topological order, inputs, outputs. Pure data, no
// device.
//
// Design notes
// A *model graph* is what an ONNX file says, in canonical form: every operator in the form of the
// newest opset that op.h names (attributes that later became inputs are constants). Its shapes may
// be symbolic. It is immutable once loaded and shared by all threads. A *concrete graph* is made
// from it for given input shapes by hth_specialize (specialize.h): every shape known, everything
// that does not depend on the inputs' values folded away. Passes (pass.h) rewrite concrete graphs;
// planner and kernels only ever see concrete graphs. Values and nodes refer to each other by index,
// so a graph can be copied, written and compared without chasing pointers.
#ifndef HTH_GRAPH_GRAPH_H
#define HTH_GRAPH_GRAPH_H

#include "base/id.h"
#include "graph/op.h"
#include "graph/tensor.h"

#include <stdatomic.h>

// Constant content, reference counted and shared between graphs (model, concrete, plans). Either
// the bytes are at hand
// (`data`), or `materialize` can make them: a folded or transformed weight need not stay in host
// memory once a device has its copy. `id` addresses the content: of stored tensors the store's id,
// of derived ones the hash of the recipe and its sources, so equal derivations are one tensor
// wherever they arise.
typedef struct hth_const hth_const;
struct hth_const {
    atomic_int refs;
    hth_id id;
    hth_dtype dtype;
    hth_shape shape;
    size_t bytes;
    const void *data; // NULL: call hth_const_map
    int maps;         // users of materialized data; guarded by the module's lock
    // materialize writes `bytes` bytes to dst. Any thread. NULL when data is always there.
    hth_err (*materialize)(hth_const *constant, void *dst);
    void (*release)(
        hth_const *constant); // frees owner (and data, if it is the owner's); NULL: nothing to free
    void *owner;
};

// hth_const_new makes a constant that owns a copy of `bytes` at `data` (row-major, dense), id =
// content hash.
hth_err hth_const_new(hth_dtype dt, const hth_shape *shape, const void *data, hth_const **out);
// hth_const_adopt is hth_const_new taking over an hth_alloc'd block instead of copying; on error
// the caller keeps it. `id` NULL: content hash.
hth_err hth_const_adopt(hth_dtype dt, const hth_shape *shape, void *data, const hth_id *id,
                        hth_const **out);
// hth_const_hold returns constant with one more reference; hth_const_rele drops one (NULL is
// allowed).
hth_const *hth_const_hold(hth_const *constant);
void hth_const_rele(hth_const *constant);
// hth_const_map makes the bytes available until hth_const_unmap; calls nest. Any thread.
hth_err hth_const_map(hth_const *constant, const void **out);
void hth_const_unmap(hth_const *constant);
// hth_content_id is the content address of a tensor: SHA-256 of dtype, rank, dims (int64
// little-endian) and bytes.
hth_id hth_content_id(hth_dtype dt, const hth_shape *shape, const void *data, size_t bytes);
// hth_content_sum begins the sum of a content whose bytes are added in parts (hth_id_sum_add); its
// end is the same id.
hth_id_sum *hth_content_sum(hth_dtype dt, const hth_shape *shape);

typedef struct hth_value {
    char *name; // owned by the graph; unique, never NULL, may be made up ("conv_17.out")
    hth_dtype dtype;
    hth_shape shape;
    hth_layout layout;
    hth_const *constant; // content, one reference owned by the graph; NULL: not constant
    int producer;        // node index, -1 for graph inputs and constants
    int initializer;     // 1 + number of the file's initializer that this constant is; 0: none, or
                         // the content of a Constant node
    bool is_input, is_output;
} hth_value;

typedef enum hth_attr_type {
    HTH_ATTR_INT,
    HTH_ATTR_FLOAT,
    HTH_ATTR_STRING,
    HTH_ATTR_INTS,
    HTH_ATTR_FLOATS,
    HTH_ATTR_TENSOR,
    HTH_ATTR_STRINGS,
} hth_attr_type;

typedef struct hth_attr {
    char *name;
    hth_attr_type type;
    int n; // elements of ints, floats, strings
    union {
        int64_t i;
        float f;
        char *s; // NUL-terminated
        int64_t *ints;
        float *floats;
        char **strings;
        hth_const *tensor;
    } u;
} hth_attr;

// What a kernel does to its result before storing it, in order: relu(conv(x) + residual) is {ADD
// input 3}, {RELU}. op is an element-wise HTH_OP_*; `input` >= 0 names the position in node->inputs
// of the second operand (same shape as the output, or broadcastable to it), -1 for unary. alpha,
// beta: Clip's bounds, LeakyRelu's slope, HardSigmoid's pair; Add with alpha: out += alpha *
// operand; ReluGrad: out = alpha < operand < beta ? out : 0.
typedef struct hth_post_op {
    hth_op op;
    int input;
    float alpha, beta;
} hth_post_op;
#define HTH_MAX_POST_OPS 6

typedef struct hth_node {
    char *name; // never NULL
    hth_op op;
    int n_inputs, n_outputs; // inputs include the operands of post ops, after the operator's own
    int *inputs, *outputs;   // value indices, -1: absent optional one
    int n_attrs;
    hth_attr *attrs;
    int n_post;
    hth_post_op post[HTH_MAX_POST_OPS];
    bool deleted; // set by passes, removed by hth_graph_compact
    bool dear;    // folding was too much work once: it is not tried again
} hth_node;

typedef struct hth_graph {
    int n_values, cap_values;
    hth_value *values;
    int n_nodes, cap_nodes;
    hth_node *nodes; // topological order
    int n_inputs, n_outputs;
    int *inputs, *outputs; // value indices, in the model's order; initializers are not inputs
    int n_symbols;
    char **symbols;          // names of symbolic dimensions
    hth_precision precision; // of its convolutions and products
    bool training; // exported in training mode: batch norm uses batch statistics, dropout drops
} hth_graph;

hth_err hth_graph_new(hth_graph **out);
void hth_graph_free(hth_graph *graph); // NULL is allowed
// hth_graph_clone makes a deep copy; constants are shared.
hth_err hth_graph_clone(const hth_graph *graph, hth_graph **out);

// hth_graph_add_value appends a value (name is copied; NULL makes one up) and stores its index.
hth_err hth_graph_add_value(hth_graph *graph, const char *name, hth_dtype dt,
                            const hth_shape *shape, int *out);
// hth_graph_add_const appends a value with content; takes over one reference of `constant` on
// success.
hth_err hth_graph_add_const(hth_graph *graph, const char *name, hth_const *constant, int *out);
// hth_graph_add_node appends a node and sets its outputs' producer. Arrays and name are copied.
hth_err hth_graph_add_node(hth_graph *graph, hth_op op, const char *name, const int *inputs,
                           int n_inputs, const int *outputs, int n_outputs, int *out);
hth_err hth_graph_add_input(hth_graph *graph, int value);
hth_err hth_graph_add_output(hth_graph *graph, int value);
// hth_node_add_input appends one more input to an existing node.
hth_err hth_node_add_input(hth_node *node, int value);
void hth_node_clear(hth_node *node); // frees what the node owns

// hth_graph_sort restores topological order; HTH_EINVAL names a node on a cycle.
hth_err hth_graph_sort(hth_graph *graph);
// hth_graph_compact removes deleted nodes, nodes whose outputs nobody uses, and values nobody
// refers to; graph inputs and outputs stay, in order.
hth_err hth_graph_compact(hth_graph *graph);
// hth_graph_check verifies indices, order, producers, uniqueness; HTH_ECORRUPT says what is wrong.
// For tests and imports.
hth_err hth_graph_check(const hth_graph *graph);

// Attributes. Getters return the default when the attribute is absent or of another type.
const hth_attr *hth_node_attr(const hth_node *node, const char *name);
int64_t hth_node_int(const hth_node *node, const char *name, int64_t dflt);
float hth_node_float(const hth_node *node, const char *name, float dflt);
const char *hth_node_str(const hth_node *node, const char *name, const char *dflt);
// hth_node_ints copies up to `cap` elements to out and returns how many the attribute has, or -1
// when absent.
int hth_node_ints(const hth_node *node, const char *name, int64_t *out, int cap);
// hth_node_axis is attribute `name` (`dflt` when absent) as an axis of `rank` dimensions, negative
// ones counted from the end: 0 <= axis < rank, or -1 where there is no such axis, whatever the
// attribute says.
int hth_node_axis(const hth_node *node, const char *name, int64_t dflt, int rank);
hth_err hth_node_set_int(hth_node *node, const char *name, int64_t v);
hth_err hth_node_set_float(hth_node *node, const char *name, float v);
hth_err hth_node_set_str(hth_node *node, const char *name, const char *v);
hth_err hth_node_set_ints(hth_node *node, const char *name, const int64_t *v, int count);
// hth_node_put_attr stores `attr` under its name, replacing an older one; it takes a's memory over,
// also on error.
hth_err hth_node_put_attr(hth_node *node, hth_attr attr);
void hth_attr_clear(hth_attr *attr);                       // frees what the attribute owns
void hth_node_drop_attr(hth_node *node, const char *name); // absent is fine
hth_err hth_node_copy_attrs(hth_node *to, const hth_node *from);

#endif
