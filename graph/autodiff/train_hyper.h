// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_hyper.h - the order of a training step's hyper parameters. Apart from
// train.h, because kernels that are compiled for a device read it, too.
#ifndef HTH_GRAPH_AUTODIFF_TRAIN_HYPER_H
#define HTH_GRAPH_AUTODIFF_TRAIN_HYPER_H

// The hyper parameters' input: f32[HTH_N_HYPER], filled before each step. Formulas are
// torch.optim's; gradients are first multiplied by GRAD_SCALE (1 / number of accumulated steps) and
// by the clipping factor. CORRECT1 and CORRECT2 are Adam's 1 - beta^t (t from 1), of the betas as
// floats. LOSS_NORM is what a cross-entropy of a part of a batch is divided by: the weights of the
// whole batch's labels, over its parts; 0: none counts. CLIP is the clipping factor, 0: it is
// computed, of the gradients' norm.
typedef enum hth_hyper {
    HTH_HYPER_LR,
    HTH_HYPER_BETA1, // momentum's factor, or Adam's beta1
    HTH_HYPER_BETA2,
    HTH_HYPER_EPS,
    HTH_HYPER_DECAY, // weight decay
    HTH_HYPER_GRAD_SCALE,
    HTH_HYPER_CORRECT1,
    HTH_HYPER_CORRECT2,
    HTH_HYPER_LOSS_NORM,
    HTH_HYPER_CLIP,
    HTH_N_HYPER,
} hth_hyper;

#endif
