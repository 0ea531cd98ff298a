// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_conv_norm.c - a convolution and the batch norm of its result in training, by the
// reference kernels of the two; x between them is rounded to float as a tensor would be.
#include "kernels/ref/ref_num.h"

// conv_norm_x computes the convolution of in[0], in[1], in[2] into a tensor like `like`.
static hth_err conv_norm_x(ref_mem *mem, const hth_graph *graph, const hth_node *node,
                           const int *inputs, const hth_tensor *in, const hth_tensor *like,
                           hth_tensor *out)
{
    float *x;
    int no = 0;
    hth_node conv = *node;
    conv.op = HTH_OP_CONV;
    conv.inputs = (int *)(uintptr_t)inputs;
    conv.n_inputs = 3;
    conv.outputs = &no;
    conv.n_outputs = 1;
    conv.n_post = 0;
    HTH_TRY(REF_TAKE(mem, ref_count(like), &x));
    *out = *like;
    out->data = x;
    return ref_conv(graph, &conv, in, out);
}

static hth_err conv_norm_train(ref_mem *mem, const hth_graph *g, const hth_node *n,
                               const hth_tensor *in, hth_tensor *out)
{
    hth_tensor to[5] = {in[3], in[4], in[5], in[6]};
    hth_node norm = *n;
    HTH_TRY(conv_norm_x(mem, g, n, n->inputs, in, &out[0], &to[0]));
    for (int i = 1; i < 5; i++) {
        to[i] = in[2 + i];
    }
    norm.op = HTH_OP_BATCH_NORM_TRAIN;
    norm.inputs = n->inputs + 2; // all of them are there
    norm.n_inputs = 5;
    norm.n_post = 0;
    return ref_batch_norm_train(g, &norm, to, out);
}

static hth_err conv_norm_grad(ref_mem *mem, const hth_graph *g, const hth_node *n,
                              const hth_tensor *in, hth_tensor *out)
{
    hth_tensor from[6] = {in[0]};
    int inputs[6] = {0, 0, 0, 0, 0, n->n_inputs > 7 ? n->inputs[7] : -1};
    hth_node norm = *n;
    HTH_TRY(conv_norm_x(mem, g, n, n->inputs + 1, in + 1, &in[0], &from[1]));
    for (int i = 2; i < 6 && i + 2 < n->n_inputs; i++) {
        from[i] = in[i + 2];
    }
    norm.op = HTH_OP_BATCH_NORM_GRAD;
    norm.inputs = inputs;
    norm.n_inputs = 6;
    return ref_batch_norm_grad(g, &norm, from, out);
}

REF_KERNEL(ref_conv_norm_train)
{
    ref_mem m = {0};
    hth_err err = conv_norm_train(&m, g, n, in, out);
    ref_mem_fini(&m);
    return err;
}

REF_KERNEL(ref_conv_norm_grad)
{
    ref_mem m = {0};
    hth_err err = conv_norm_grad(&m, g, n, in, out);
    ref_mem_fini(&m);
    return err;
}
