// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train.h - autodiff: from a model graph to the graph of one training step.
//
// Design notes
// A step is one concrete graph: forward, loss, backward, optimizer. It computes nothing in place
// and keeps nothing by itself: parameters, optimizer state and running statistics are graph
// *inputs*, their new values graph *outputs*, and a table of slots says which belong together. Who
// runs the step gives each pair one buffer for the life of the job; an optimizer node stands after
// the last reader of the parameter that it updates, so writing the pair in place is right as long
// as nodes run in the graph's order (passes keep it). What may be run twice is everything but the
// optimizer's nodes and the running statistics of BatchNormTrain.
//
// The graph's inputs are, in order: the model's inputs, the target, the step counter, the hyper
// parameters, then one per slot. Its outputs: the loss (f32 scalar), then one per slot (that the
// step changes), then, when asked for, the model's outputs (that of the loss first). Positions
// survive every pass; value indices do not.
#ifndef HTH_GRAPH_AUTODIFF_TRAIN_H
#define HTH_GRAPH_AUTODIFF_TRAIN_H

#include "graph/independence.h"
#include "graph/specialize.h"
#include "graph/autodiff/train_hyper.h"
#include "graph/autodiff/train_scale.h"

typedef enum hth_train_loss {
    // Over one axis; integer labels of the remaining axes, ignore_index -100. A batch whose labels
    // weigh nothing, because all are ignored or their classes' weights are 0, counts no samples:
    // its loss and gradients are 0, and training goes on. (PyTorch's loss is 0 / 0 there.)
    HTH_LOSS_SOFTMAX_XENT,
    HTH_LOSS_MSE, // mean over all elements
    HTH_LOSS_BCE, // sigmoid and binary cross-entropy of each element, mean over all elements
} hth_train_loss;

typedef enum hth_train_optimizer {
    HTH_OPTIMIZER_SGD,
    HTH_OPTIMIZER_MOMENTUM,
    HTH_OPTIMIZER_ADAM,
    HTH_OPTIMIZER_ADAMW,
} hth_train_optimizer;

// Gradients of several batches may be added up before one update: M - 1 runs of an ACCUMULATE
// graph, which adds to the state "NAME/gradient" and leaves parameters alone, then one of an APPLY
// graph, which adds the last batch's, updates, and clears. Both have the same slots. GRAD_SCALE is
// 1 / M. Where gradients are summed elsewhere (group/) an UPDATE graph, which reads no samples and
// has no loss (its first output means nothing), updates by those that lie there, and clears unless
// `keep_sums`.
typedef enum hth_train_phase {
    HTH_TRAIN_WHOLE, // one batch, one update
    HTH_TRAIN_ACCUMULATE,
    HTH_TRAIN_APPLY,
    HTH_TRAIN_UPDATE,
} hth_train_phase;

typedef struct hth_train_options {
    hth_train_loss loss;
    hth_train_phase phase;
    hth_train_optimizer optimizer;
    bool nesterov;
    float clip_norm;       // > 0: gradients are scaled down to this global norm
    const char *output;    // the model output that the loss compares; NULL: the first
    hth_dtype label_dtype; // of softmax-xent's labels: I64 (also when 0) or I32
    int class_axis;        // of the loss's classes: 1 (also when 0) or -1, the last one
    float label_smoothing; // of softmax-xent, 0 to 1
    const float *weights; // along that axis, n_weights of them: of softmax-xent's classes, of bce's
    int n_weights;        // positive targets (1: for all). NULL: all are 1
    const char *const *freeze; // patterns (fnmatch) of parameters that stay as they are
    int n_freeze;
    bool keep_outputs; // the model's outputs are outputs of the step, too
    bool keep_sums;    // of an UPDATE: what it read is cleared by the caller, where need be
    bool sync_bn; // the batch is a shard: batch norm sums over all shards (hth_train_shard_sums)
    hth_precision precision;
    hth_train_scale scale; // of bytes and images that become the model's float inputs
} hth_train_options;

typedef enum hth_slot_kind {
    HTH_SLOT_PARAM,
    HTH_SLOT_STATE, // of the optimizer; starts as zeros
    HTH_SLOT_STAT,  // running statistics of batch norm
    HTH_SLOT_COPY,  // of a parameter, in bf16: what products and convolutions read; written by the
                    // optimizer, and starts as the parameter does, rounded, in the layout of its
                    // input: a filter's has its channels last
} hth_slot_kind;

// hth_slot_of_model: the slot is a part of the model, not of its training.
static inline bool hth_slot_of_model(hth_slot_kind kind)
{
    return kind == HTH_SLOT_PARAM || kind == HTH_SLOT_STAT;
}

typedef struct hth_train_slot {
    int input, output; // positions in graph->inputs and graph->outputs; output -1: not changed
    hth_slot_kind kind;
    char *name;      // the initializer's name; else "NAME/momentum", "NAME/exp_avg", "NAME/bf16"
    int initializer; // which initializer of the file (hth_value.initializer - 1) it starts from, or
                     // belongs to
    hth_const *content; // what it starts with (one reference), of a COPY the parameter's; NULL:
                        // STATE
} hth_train_slot;

typedef struct hth_train_graph {
    hth_graph *graph;
    int n_slots;
    hth_train_slot *slots;
    int n_data;            // inputs 0 .. n_data - 1 are the model's
    int target;            // position among the inputs
    int step;              // u64[1]: seed and step of the random numbers; a new value each step
    int hyper;             // f32[HTH_N_HYPER]
    int first_output;      // position of the model's first output among the outputs, -1: not kept
    hth_train_scale scale; // as it was asked for
} hth_train_graph;

// hth_train_build makes the step graph of `model` for inputs of these dtypes and shapes (`inputs`:
// as many as the model has, batch bound; data may be NULL; uint8 for float32 with options->scale).
// `model` is as hth_onnx_load made it: not folded, no pass run. Trainable is every float32
// initializer of rank 1 or more that a gradient reaches and no pattern freezes. Batch norm trains
// and dropout drops whether the file was exported for training or not. HTH_ENOTSUP names the node
// and operator that has no gradient, or says what cannot be trained; HTH_EINVAL: shapes, labels and
// outputs do not agree. On error *out is empty.
hth_err hth_train_build(const hth_graph *model, const hth_tensor *inputs,
                        const hth_train_options *options, hth_eval_fn eval, void *ctx,
                        hth_train_graph *out);
void hth_train_graph_fini(hth_train_graph *graph);

// hth_train_changes tells which of the model's `n` initializers training gives other contents:
// changed[i], of the one with number i (hth_value.initializer - 1). They are those for which
// hth_train_build makes slots of the model, but no shapes need to be known. HTH_EINVAL: the loss
// has no output; HTH_ENOMEM.
hth_err hth_train_changes(const hth_graph *model, const hth_train_options *options, bool *changed,
                          int n);

// hth_train_class_axis finds out which axis of the logits has the classes, if labels are of shape
// `labels`: 1 or -1. HTH_EINVAL: they fit both, or the output has no classes.
hth_err hth_train_class_axis(const hth_train_graph *step, const hth_shape *labels, int *axis);

// hth_train_shard_sums lists how many numbers each sum over the shards of a batch has that kernels
// of the step ask for (hth_kernel_group): list[i], of the node with `share` i. The caller frees
// *list. Without sync_bn there are none. HTH_ECORRUPT: a share that no step has.
hth_err hth_train_shard_sums(const hth_train_graph *step, size_t **list, int *n);

// hth_train_off makes a model graph that was exported for training one for inference, in place:
// batch norm uses the running statistics, dropout passes everything. For evaluating and serving
// what was trained; other graphs stay as they are. HTH_ENOTSUP: updated statistics are read.
hth_err hth_train_off(hth_graph *model);

// hth_train_divides says whether a batch that is taken in parts trains like the whole: whether the
// samples of the output that the loss compares are proven independent, batch norm and dropout apart
// (they work per part, which the user is told). HTH_EINVAL: there is no such output; HTH_ENOMEM;
// HTH_ENOTSUP: hth_train_off refuses the model.
hth_err hth_train_divides(const hth_graph *model, const hth_train_options *options,
                          hth_independence *out);

// hth_train_forward makes a model graph for inference whose first inputs are the model's and the
// others, in their order, the parameters and statistics of `step`'s slots (not the optimizer's
// state); its one output is the model's first. Inputs that are bytes in `step` are so here. For
// evaluating what is being trained; `model` as for hth_train_build. The caller owns *out.
hth_err hth_train_forward(const hth_graph *model, const hth_train_graph *step, hth_graph **out);

// Gradients of unary element-wise operators are one operator, ElementGrad: dy * f'(z).
// hth_grad_is_element says for which; hth_grad_reads_result, that z is the operator's result, not
// its input.
bool hth_grad_is_element(hth_op op);
bool hth_grad_reads_result(hth_op op);

#endif
