// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/conv_form.h - a node that is a convolution in cuDNN's terms, and its parts along the
// batch.
#ifndef HTH_KERNELS_CUDA_CONV_FORM_H
#define HTH_KERNELS_CUDA_CONV_FORM_H

#include "kernels/cuda/dnn.h"
#include "kernels/cuda/seq.h"

typedef struct hth_cuda_conv_form {
    hth_dnn_conv dnn;     // without what is fused
    int bias;             // input, -1: none
    int x_in, w_in, y_in; // which input each is, -1: the result
    int n_fused;          // post ops that a fused graph takes, -1: it cannot be fused
    int sum;              // input of the fused sum, -1: none
} hth_cuda_conv_form;

// HTH_ENOTSUP: cuDNN is not asked for such a one.
hth_err hth_cuda_conv_describe(const hth_graph *graph, const hth_node *node,
                               hth_cuda_conv_form *form);
// hth_cuda_conv_fused is the convolution with what form->n_fused says.
hth_dnn_conv hth_cuda_conv_fused(const hth_cuda_conv_form *form);

// An algorithm that runs chunks of the batch one after the other is "ENGINE/k": the plan is one of
// a chunk, and so is its workspace. Of a filter's gradient chunks would have to be added up, which
// plans do not do: it has none.
#define HTH_CUDA_CONV_SPLIT_MAX 16
// hth_cuda_conv_parse stores the engine's name and returns the number of chunks; 0: a wrong one.
int hth_cuda_conv_parse(const char *name, char engine[sizeof((hth_choice *)0)->name]);
// hth_cuda_conv_part makes the k-th part of a convolution; false: it has none whose images begin
// where they may.
bool hth_cuda_conv_part(const hth_dnn_conv *conv, int k, hth_dnn_conv *part);
// hth_cuda_conv_image_bytes: of the whole batch, dims as conv->x or conv->y.
size_t hth_cuda_conv_image_bytes(const hth_dnn_conv *conv, const int64_t *dims);

#endif
