// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/post.h - post ops of a node in oneDNN's terms: fused into a primitive, or run after
// it.
#ifndef HTH_KERNELS_CPU_POST_H
#define HTH_KERNELS_CPU_POST_H

#include "kernels/cpu/seq.h"

typedef struct hth_cpu_post {
    hth_dn_post dn;
    int input; // the operand's position in node->inputs, -1: none
} hth_cpu_post;

// hth_cpu_eltwise translates an element-wise operator of one operand; one of ours may be two of
// oneDNN's. Returns how many it stored, 0: oneDNN has no such operation. alpha, beta as in
// hth_post_op.
int hth_cpu_eltwise(hth_op op, float alpha, float beta, hth_dn_post out[2]);

// hth_cpu_posts translates the post ops of `node`, whose output 0 is stored in `out_layout`.
// Operands are taken in the layout of their value when `placed`, else (before layouts are chosen)
// in the output's if their rank is the same and they are not broadcast along the channels. Stores
// at most HTH_DN_MAX_POST and their number; HTH_ENOTSUP: names the post op.
// `*sum` is the input that a dnnl_sum post op adds, -1: none.
hth_err hth_cpu_posts(const hth_graph *graph, const hth_node *node, hth_layout out_layout,
                      bool placed, hth_cpu_post *list, int *count, int *sum);
// hth_cpu_tail appends steps that apply list[from..count) to output 0 in place.
hth_err hth_cpu_tail(hth_seq *seq, const hth_cpu_post *list, int from, int count,
                     const hth_dn_md *md);

#endif
