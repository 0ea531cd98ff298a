// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_build.h - the state of one hth_train_build. Inside graph/train*.c only.
#ifndef HTH_GRAPH_AUTODIFF_TRAIN_BUILD_H
#define HTH_GRAPH_AUTODIFF_TRAIN_BUILD_H

#include "graph/passes/pass_util.h"
#include "graph/autodiff/train.h"

// A slot while the graph is built. Until the graph is specialized `output` is a position among the
// outputs (of statistics); then values are known by index.
typedef struct train_slot {
    hth_train_slot slot;
    int value, next; // value indices: the input and its new value (-1: not made yet)
    int left;        // reads whose gradients are still to come
    bool sum;        // gradients are added up in it
} train_slot;

typedef struct train_build {
    hth_graph *g;
    const hth_train_options *o;
    train_slot *slots;
    int n_slots, cap_slots;
    int n_data, n_outputs;         // of the model
    int step, hyper, target, loss; // value indices
    int n_norms;                   // batch norms
    int *gradients;                // of parameters, when they are clipped: all wait for their norm
    hth_uses uses;                 // of the model's values, in train_prepare
    int *origin;                   // (train_origins), in train_prepare
} train_build;

// train_prepare.c
// train_prepare turns parameters and statistics into inputs, batch norm and dropout into what they
// are in training. Inputs are then: the model's, step, hyper, slots.
hth_err train_prepare(train_build *build);
// train_frozen tells whether a pattern freezes the parameter of that name.
bool train_frozen(const hth_train_options *options, const char *name);

// train_statistic.c
// train_origins stores for each value what it is a copy of (Identity): itself, or a value before
// it. The caller frees *out; NULL on error.
hth_err train_origins(const hth_graph *graph, int **out);
// train_check_statistics refuses a model in which anything but batch norm reads an initializer that
// is a running statistic, or two layers have it. HTH_ENOTSUP.
hth_err train_check_statistics(const hth_graph *graph, const int *origin);

// train.c
// train_find_output stores the position of the output that the loss compares. HTH_EINVAL.
hth_err train_find_output(const hth_graph *graph, const char *name, int *out);

// train_rewrite.c
// train_shorten says products with transposed matrices by attributes, concatenations of dense
// blocks by the one before, gathers of all parts by a Split; puts MaxPool before Relu, and fuses
// batch norm with the Relu or Clip after it.
hth_err train_shorten(hth_graph *graph);
// train_shorten_backward lets ReluGrad sum the two parts of its gradient itself; the Add falls to
// compaction.
hth_err train_shorten_backward(hth_graph *graph);

// train_backward.c
// train_backward adds loss, gradients and optimizer; slots whose parameter no gradient reaches are
// dropped, and the parameter is a constant again.
hth_err train_backward(train_build *build, int output);

// train_step.c
// train_add_slot appends a slot for graph input `value`; takes over `name`, also on error.
hth_err train_add_slot(train_build *build, hth_slot_kind kind, char *name, int value,
                       int initializer, hth_const *content);
// train_loss adds the loss of value `output` and its gradient, which *grad gets.
hth_err train_loss(train_build *build, int output, int *grad);
// train_update adds the optimizer's node for slot s; `clip` is the factor of clipping, -1: none.
hth_err train_update(train_build *build, int s, int gradient, int clip);
// train_accumulate adds the slot that gradients of parameter slot s are added up in; *gradient
// becomes the sum.
hth_err train_accumulate(train_build *build, int s, int *gradient);
// train_updates makes the step one that only updates: all optimizer nodes are there.
hth_err train_updates(train_build *build);

// train_clip.c
// train_clip adds the factor that clips n gradients to options' clip_norm; *out is its value.
hth_err train_clip(train_build *build, const int *gradients, int n, int *out);

#endif
