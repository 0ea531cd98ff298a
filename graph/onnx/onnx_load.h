// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_load.h - the state of one import, shared by onnx_load.c (bodies, names),
// onnx_type.c, onnx_node.c (one node and its attributes), onnx_inline.c (functions, If) and
// onnx_canon.c (old forms of operators). One thread.
#ifndef HTH_GRAPH_ONNX_ONNX_LOAD_H
#define HTH_GRAPH_ONNX_ONNX_LOAD_H

#include "graph/onnx/onnx.h"
#include "graph/onnx/onnx.pb-c.h"
#include "graph/onnx/onnx_names.h"
#include "graph/onnx/onnx_tensor.h"

typedef Hth__Onnx__ModelProto onnx_model;
typedef Hth__Onnx__GraphProto onnx_graph;
typedef Hth__Onnx__NodeProto onnx_node;
typedef Hth__Onnx__AttributeProto onnx_attribute;
typedef Hth__Onnx__FunctionProto onnx_function;
typedef Hth__Onnx__OperatorSetIdProto onnx_opset;
typedef Hth__Onnx__ValueInfoProto onnx_value_info;

// Functions and subgraphs nest; exporters need three or four levels.
#define ONNX_MAX_DEPTH 32
// No operator has more than a dozen attributes; the bound keeps the linear look-ups linear.
#define ONNX_MAX_ATTRIBUTES 64

typedef struct onnx_load {
    hth_graph *g;
    const onnx_model *model;
    hth_onnx_limits limits;
    hth_names taken;          // names of values, over all scopes
    hth_names symbols;        // name of a symbolic dimension -> its number
    hth_names functions;      // "domain:name:overload" -> index in model->functions
    int steps;                // nodes looked at so far, in all scopes; bounded by limits.max_nodes
    uint64_t made, most_made; // bytes that were made of the skeleton so far, and that may be
    ProtobufCAllocator allocator; // hth_alloc; notes in out_of_memory why an unpack failed
    bool out_of_memory;
} onnx_load;

// A body being read: the graph, a branch of an If, or one call of a function.
typedef struct onnx_scope onnx_scope;
struct onnx_scope {
    const onnx_scope *outer; // whose names a branch may use; NULL otherwise
    hth_names names;    // name in this body -> value index, or -1 for an absent optional parameter
    const char *prefix; // of the names of values and nodes made here
    onnx_opset *const *opsets;
    size_t n_opsets;
    int opset; // of the default domain; 0: none imported
    int depth;
    const onnx_function *function; // the function whose body this is (or is in); NULL: none
    const onnx_node *call;         // the node that calls it ..
    const onnx_scope *call_scope;  // .. and the scope where that stands
};

hth_err onnx_unpack_failed(const onnx_load *ld, const char *what);
// onnx_made counts bytes that are made for a node, a name or an attribute: functions and branches
// are read once for each call, however large they are. HTH_ETOOBIG: more than is in proportion.
hth_err onnx_made(onnx_load *ld, uint64_t bytes);
// onnx_scope_opset finds the default domain's opset among the scope's imports and checks its range.
hth_err onnx_scope_opset(onnx_scope *scope);
// onnx_resolve finds a name in the scope and those around it.
bool onnx_resolve(const onnx_scope *scope, const char *name, int *out);
// onnx_add_value adds a value named "<node>.<suffix>", made unique. `constant` is its content
// (taken over on success), or NULL.
hth_err onnx_add_value(onnx_load *ld, const char *node, const char *suffix, hth_const *constant,
                       int *out);
// onnx_load_nodes reads the nodes of a body, in any order; `types`, which may be NULL, states types
// of their outputs. They are taken over before nodes are added, because rewriting old forms asks
// for them.
hth_err onnx_load_nodes(onnx_load *ld, onnx_scope *scope, onnx_node *const *node, size_t n,
                        const onnx_graph *types);
// onnx_load_branch reads the initializers and nodes of a subgraph.
hth_err onnx_load_branch(onnx_load *ld, onnx_scope *scope, const onnx_graph *graph);

// onnx_type.c
// onnx_type reads the tensor type of an input or output.
hth_err onnx_type(onnx_load *ld, const onnx_value_info *info, hth_dtype *dt, hth_shape *shape);
// onnx_hint gives a computed value the type that the file states for it, if it can be expressed.
hth_err onnx_hint(onnx_load *ld, onnx_scope *scope, const onnx_value_info *info);

// onnx_node.c
bool onnx_domain_default(const char *domain);
// onnx_label is what a node is called in messages: its name, or its first output.
const char *onnx_label(const onnx_node *node);
// onnx_find_attribute stores the attribute of that name, references to the calling node's
// attributes followed; NULL when absent.
hth_err onnx_find_attribute(const onnx_scope *scope, const onnx_node *node, const char *name,
                            const onnx_attribute **out);
// onnx_constant makes the content of a Constant node.
hth_err onnx_constant(onnx_load *ld, const onnx_scope *scope, const onnx_node *node,
                      hth_const **out);
// onnx_tensor_const makes a constant from a TensorProto.
hth_err onnx_tensor_const(onnx_load *ld, hth_span message, hth_onnx_head *head, hth_const **out);
// onnx_add_operator adds a node of a known operator, in canonical form.
hth_err onnx_add_operator(onnx_load *ld, onnx_scope *scope, const onnx_node *node, hth_op op,
                          int since);
// onnx_inputs looks the node's inputs up: node->n_input indices in a fresh array, which the caller
// frees.
hth_err onnx_inputs(const onnx_scope *scope, const onnx_node *node, int **out);

// onnx_inline.c
const onnx_function *onnx_find_function(const onnx_load *ld, const onnx_node *node);
hth_err onnx_inline_function(onnx_load *ld, onnx_scope *scope, const onnx_node *node,
                             const onnx_function *function);
hth_err onnx_inline_if(onnx_load *ld, onnx_scope *scope, const onnx_node *node);

// onnx_canon.c
// onnx_canonicalise rewrites node `index`, written for operator version `since`, to the newest
// form.
hth_err onnx_canonicalise(onnx_load *ld, int index, int since);

#endif
