// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/conv_form.h - a convolution, or one of its gradients, as oneDNN is asked for it, and
// the implementations that it has.
#ifndef HTH_KERNELS_CPU_CONV_FORM_H
#define HTH_KERNELS_CPU_CONV_FORM_H

#include "kernels/cpu/post.h"

#define HTH_CONV_MAX_CHOICES 8

typedef struct hth_conv_form {
    hth_dn_op op; // without algorithm and post ops
    bool transposed;
    hth_dn_md weights; // as the node has them, or widened
    hth_seq_widen widen;
    int n_post, sum;
    hth_cpu_post post[HTH_DN_MAX_POST];
    int split; // the form is that of one of so many chunks along the batch
} hth_conv_form;

typedef struct hth_conv_choice {
    char name[HTH_DN_NAME];
    dnnl_alg_kind_t alg;
    int nth, n_fused; // how many of the form's post ops the primitive does itself
    size_t scratchpad;
} hth_conv_choice;

// hth_conv_describe describes `node` with its image in layout `in`, its result in layout `out`;
// `placed` as for hth_cpu_posts.
hth_err hth_conv_describe(const hth_graph *graph, const hth_node *node, hth_layout in,
                          hth_layout out, bool placed, int split, hth_conv_form *form);
// hth_conv_describe_placed: in the layouts that its values have.
hth_err hth_conv_describe_placed(const hth_graph *graph, const hth_node *node, int split,
                                 hth_conv_form *form);
// hth_conv_fuse puts the first `n_fused` post ops of the form into `op`.
void hth_conv_fuse(hth_dn_op *op, const hth_conv_form *form, int n_fused);
// hth_conv_list stores at most `cap` implementations, oneDNN's first choice first, and returns
// their number.
int hth_conv_list(const hth_conv_form *form, hth_conv_choice *list, int cap);
// hth_conv_find stores the implementation called `algorithm` (NULL: the first). HTH_ENOTSUP: none.
hth_err hth_conv_find(const hth_conv_form *form, const hth_node *node, const char *algorithm,
                      hth_conv_choice *out);

// An algorithm in `split` chunks along the batch is called "NAME/split".
// hth_conv_parse takes such a name apart and returns the number of chunks, 1 when there is none.
int hth_conv_parse(const char *algorithm, char name[HTH_DN_NAME]);
// hth_conv_chunk returns the bytes of one chunk of value `value`, which has a batch dimension.
size_t hth_conv_chunk(const hth_value *value, int split);
// hth_conv_offer_all offers all implementations, whole and in chunks, then our own:
// lowered, Winograd.
hth_err hth_conv_offer_all(hth_device *device, const hth_graph *graph, const hth_node *node,
                           hth_cpu_prepare_fn prepare, hth_cpu_prepare_fn winograd,
                           hth_choice *list, int cap, int *count);

#endif
