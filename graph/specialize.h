// SPDX-License-Identifier: Apache-2.0
// graph/specialize.h - a model graph and concrete inputs -> concrete graph(s): shape inference and
// constant folding.
//
// Design notes
// Exporters leave shape arithmetic behind (Shape, Gather, Concat, Reshape): once the input shapes
// are known it is all constant, and one forward walk infers and folds it. Some models need a
// *value*: Reshape by an input tensor, TopK's k, what follows NonMaxSuppression. An input's value
// is simply taken as a constant (`value_inputs` says which ones, so that a cache of plans keys on
// them). A computed value cuts the model in stages: the first graph runs everything that can be
// known now; then `rest` is specialized with what came out. Most models are one stage.
#ifndef HTH_GRAPH_SPECIALIZE_H
#define HTH_GRAPH_SPECIALIZE_H

#include "graph/graph.h"

// hth_eval_fn computes one node on plain host tensors (kernels' reference). out[i].data is
// allocated by the caller with dtype, shape and bytes set. Any thread.
//
// Outputs whose shape depends on the inputs' contents (NonZero, NonMaxSuppression, Compress) are
// computed in two calls: out[0].data == NULL asks for the size only, the function sets out[0].shape
// and out[0].bytes and writes nothing else; the second call comes with the same inputs, that shape,
// and room for those bytes. Such a node is never part of a concrete graph: it is always computed
// here, on the host, when its inputs are known.
typedef hth_err (*hth_eval_fn)(void *ctx, const hth_graph *graph, const hth_node *node,
                               const hth_tensor *in, hth_tensor *out);

typedef struct hth_stage {
    hth_graph *graph; // concrete: every shape known. Owned by the caller. Its inputs are the
                      // model's inputs, all of them and in order (also unused ones).
    hth_graph
        *rest; // what must wait for values; NULL: nothing. Its inputs are, in order: the inputs of
               // `graph`, then the values that `graph` gives as its outputs after the final ones.
    int n_final;      // the first n_final outputs of `graph` are final outputs of the model ..
    int *final_index; // .. namely these positions among the model's outputs; the others feed `rest`
    uint64_t value_inputs; // bit i: the value (not just shape) of input i was used
    // per input: the contents that were used, held, NULL where none were. An input's memory is read
    // once: whoever else may write there, what the stage was made of stands here and nowhere else
    hth_const **contents;
    int n_contents;
} hth_stage;

// hth_specialize makes the stage for inputs of the given dtypes and shapes (`inputs`: as many as
// the model has; data may be NULL where the value is not known). Folds with `eval`, within limits
// (fold.h). HTH_EINVAL: shapes do not agree, names the node; HTH_ENOTSUP: needs the value of an
// input whose data is NULL: out->value_inputs is still set; HTH_ETOOBIG: a size that is data takes
// more than the limits of folding; HTH_ECANCELED: the thread's work (base/pace.h) ended.
hth_err hth_specialize(const hth_graph *model, const hth_tensor *inputs, hth_eval_fn eval,
                       void *ctx, hth_stage *out);
void hth_stage_fini(hth_stage *stage);

// hth_fold_model folds, once, what in a model graph depends on constants alone, so that no
// specialization does it again, within limits (fold.h). Before the graph is shared. HTH_EINVAL: a
// node contradicts itself; HTH_ETOOBIG, HTH_ECANCELED as above; HTH_ENOMEM. After an error the
// graph can only be freed.
hth_err hth_fold_model(hth_graph *model, hth_eval_fn eval, void *ctx);

// hth_infer_node computes dtype and shape of node `n`'s outputs from its inputs (constants'
// contents included) and stores them in the graph. HTH_OK; HTH_EINVAL: the inputs contradict the
// operator; HTH_EBUSY: needs the content of value *wait (not an error: the caller decides).
hth_err hth_infer_node(hth_graph *graph, int node, int *wait);

#endif
