// SPDX-License-Identifier: Apache-2.0
// Conv and ConvTranspose. A post op that an implementation refuses (Winograd knows sums and ReLU
// only) runs after it as a step of its own, so that every algorithm computes the whole node. In
// chunks along the batch, the workspace is that of one chunk; then all post ops must be fused.
#include "kernels/cpu/conv.h"

#include "kernels/cpu/conv_form.h"
#include "kernels/cpu/lowered.h"
#include "kernels/cpu/winograd/winograd.h"

#include <string.h>

// Binds the fused second operands, and makes the buffer of a fused sum the output's.
static hth_err conv_bind_posts(hth_seq *seq, const hth_graph *graph, const hth_node *node,
                               const hth_conv_form *form, int n_fused)
{
    for (int i = 0; i < n_fused; i++) {
        const hth_dn_post *p = &form->post[i].dn;
        if (p->kind == dnnl_sum) {
            hth_seq_accumulate(seq, form->post[i].input,
                               hth_seq_last_bytes(seq, DNNL_ARG_DST) * (size_t)form->split);
        } else if (form->post[i].input >= 0) {
            const hth_value *v = &graph->values[node->inputs[form->post[i].input]];
            HTH_TRY(hth_seq_bind(seq, DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) | DNNL_ARG_SRC_1,
                                 HTH_SEQ_IN, (size_t)form->post[i].input));
            bool batch = p->src1.ndims == form->op.dst.ndims && v->shape.dim[0] > 1 &&
                         v->shape.rank == form->op.dst.ndims;
            hth_seq_step(seq, batch ? hth_conv_chunk(v, form->split) : 0);
        }
    }
    return HTH_OK;
}

static hth_err conv_build(hth_seq *seq, const hth_graph *graph, const hth_node *node,
                          const hth_conv_form *form, const hth_conv_choice *choice)
{
    hth_dn_op op = form->op;
    hth_dn_prim *p;
    hth_seq_ref weights;
    op.alg = choice->alg;
    hth_conv_fuse(&op, form, choice->n_fused);
    HTH_TRY(hth_dn_prim_open(&op, choice->nth, &p));
    hth_err err = hth_seq_weights(seq, p, DNNL_ARG_WEIGHTS, &graph->values[node->inputs[1]], 1,
                                  &form->weights, &form->widen, &weights);
    if (err != HTH_OK) {
        hth_dn_prim_close(p);
        return err;
    }
    hth_seq_split(seq, form->split);
    HTH_TRY(hth_seq_add(seq, p));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_WEIGHTS, weights.from, weights.at));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_SRC, HTH_SEQ_IN, 0));
    hth_seq_step(seq, hth_conv_chunk(&graph->values[node->inputs[0]], form->split));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_DST, HTH_SEQ_OUT, 0));
    hth_seq_step(seq, hth_conv_chunk(&graph->values[node->outputs[0]], form->split));
    if (form->op.bias.ndims != 0) {
        HTH_TRY(hth_seq_bind(seq, DNNL_ARG_BIAS, HTH_SEQ_IN, 2));
    }
    HTH_TRY(conv_bind_posts(seq, graph, node, form, choice->n_fused));
    return hth_cpu_tail(seq, form->post, choice->n_fused, form->n_post, &form->op.dst);
}

hth_err cpu_conv_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    hth_conv_form f;
    hth_conv_choice c;
    char name[HTH_DN_NAME];
    int split = algorithm == NULL ? 1 : hth_conv_parse(algorithm, name);
    HTH_TRY(hth_conv_describe_placed(graph, node, split, &f));
    HTH_TRY(hth_conv_find(&f, node, algorithm == NULL ? NULL : name, &c));
    if (split > 1 && c.n_fused < f.n_post) {
        return hth_fail(HTH_ENOTSUP, "node '%s': post ops after '%s'", node->name, algorithm);
    }
    hth_seq *s;
    HTH_TRY(hth_seq_open(device, &s));
    hth_err err = conv_build(s, graph, node, &f, &c);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, algorithm == NULL ? c.name : algorithm, out);
}

hth_err cpu_conv_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                            hth_choice *list, int cap, int *count)
{
    return hth_conv_offer_all(device, graph, node, cpu_conv_prepare, cpu_winograd_prepare, list,
                              cap, count);
}

// Whether oneDNN's direct convolution takes the node with these layouts, all post ops fused.
static bool conv_takes(const hth_graph *graph, const hth_node *node, hth_layout in, hth_layout out)
{
    hth_conv_form f;
    hth_conv_choice first;
    return hth_conv_describe(graph, node, in, out, false, 1, &f) == HTH_OK &&
           hth_conv_list(&f, &first, 1) == 1 && first.n_fused == f.n_post;
}

bool cpu_conv_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                       const hth_post_op *post, int operand)
{
    int inputs[16];
    hth_node with = *node;
    if (node->n_inputs + 1 > 16 || node->n_post >= HTH_MAX_POST_OPS) {
        return false;
    }
    memcpy(inputs, node->inputs, (size_t)node->n_inputs * sizeof inputs[0]);
    with.inputs = inputs;
    with.post[with.n_post] = *post;
    with.post[with.n_post].input = -1;
    if (operand >= 0) {
        // Behind the bias's place, as the pass will put it.
        while (with.n_inputs < 3) {
            inputs[with.n_inputs++] = -1;
        }
        with.post[with.n_post].input = with.n_inputs;
        inputs[with.n_inputs++] = operand;
    }
    with.n_post++;
    bool any;
    hth_layout l = cpu_conv_layout(device, graph, node, &any);
    return conv_takes(graph, &with,
                      cpu_conv_reads_plain(device, graph, node) ? HTH_LAYOUT_PLAIN : l, l);
}

hth_layout cpu_conv_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                           bool *any)
{
    hth_layout blocked;
    hth_cpu_block(device, &blocked);
    *any = false;
    bool takes = conv_takes(graph, node, blocked, blocked) ||
                 conv_takes(graph, node, HTH_LAYOUT_PLAIN, blocked);
    takes = takes || (!hth_dn_here() && (cpu_winograd_fits(graph, node, blocked) ||
                                         cpu_lowered_fits(graph, node, blocked)));
    return takes ? blocked : HTH_LAYOUT_PLAIN;
}

bool cpu_conv_reads_plain(hth_device *device, const hth_graph *graph, const hth_node *node)
{
    hth_layout blocked;
    hth_cpu_block(device, &blocked);
    return conv_takes(graph, node, HTH_LAYOUT_PLAIN, blocked);
}
