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
static hth_err conv_bind_posts(hth_seq *s, const hth_graph *g, const hth_node *n,
                               const hth_conv_form *f, int n_fused)
{
    for (int i = 0; i < n_fused; i++) {
        const hth_dn_post *p = &f->post[i].dn;
        if (p->kind == dnnl_sum) {
            hth_seq_accumulate(s, f->post[i].input,
                               hth_seq_last_bytes(s, DNNL_ARG_DST) * (size_t)f->split);
        } else if (f->post[i].input >= 0) {
            const hth_value *v = &g->values[n->inputs[f->post[i].input]];
            HTH_TRY(hth_seq_bind(s, DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) | DNNL_ARG_SRC_1, HTH_SEQ_IN,
                                 (size_t)f->post[i].input));
            bool batch = p->src1.ndims == f->op.dst.ndims && v->shape.dim[0] > 1 &&
                         v->shape.rank == f->op.dst.ndims;
            hth_seq_step(s, batch ? hth_conv_chunk(v, f->split) : 0);
        }
    }
    return HTH_OK;
}

static hth_err conv_build(hth_seq *s, const hth_graph *g, const hth_node *n, const hth_conv_form *f,
                          const hth_conv_choice *c)
{
    hth_dn_op op = f->op;
    hth_dn_prim *p;
    hth_seq_ref weights;
    op.alg = c->alg;
    hth_conv_fuse(&op, f, c->n_fused);
    HTH_TRY(hth_dn_prim_open(&op, c->nth, &p));
    hth_err err = hth_seq_weights(s, p, DNNL_ARG_WEIGHTS, &g->values[n->inputs[1]], 1, &f->weights,
                                  &f->widen, &weights);
    if (err != HTH_OK) {
        hth_dn_prim_close(p);
        return err;
    }
    hth_seq_split(s, f->split);
    HTH_TRY(hth_seq_add(s, p));
    HTH_TRY(hth_seq_bind(s, DNNL_ARG_WEIGHTS, weights.from, weights.at));
    HTH_TRY(hth_seq_bind(s, DNNL_ARG_SRC, HTH_SEQ_IN, 0));
    hth_seq_step(s, hth_conv_chunk(&g->values[n->inputs[0]], f->split));
    HTH_TRY(hth_seq_bind(s, DNNL_ARG_DST, HTH_SEQ_OUT, 0));
    hth_seq_step(s, hth_conv_chunk(&g->values[n->outputs[0]], f->split));
    if (f->op.bias.ndims != 0) {
        HTH_TRY(hth_seq_bind(s, DNNL_ARG_BIAS, HTH_SEQ_IN, 2));
    }
    HTH_TRY(conv_bind_posts(s, g, n, f, c->n_fused));
    return hth_cpu_tail(s, f->post, c->n_fused, f->n_post, &f->op.dst);
}

hth_err cpu_conv_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                         const char *algorithm, hth_kernel **out)
{
    hth_conv_form f;
    hth_conv_choice c;
    char name[HTH_DN_NAME];
    int split = algorithm == NULL ? 1 : hth_conv_parse(algorithm, name);
    HTH_TRY(hth_conv_describe_placed(g, n, split, &f));
    HTH_TRY(hth_conv_find(&f, n, algorithm == NULL ? NULL : name, &c));
    if (split > 1 && c.n_fused < f.n_post) {
        return hth_fail(HTH_ENOTSUP, "node '%s': post ops after '%s'", n->name, algorithm);
    }
    hth_seq *s;
    HTH_TRY(hth_seq_open(d, &s));
    hth_err err = conv_build(s, g, n, &f, &c);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, algorithm == NULL ? c.name : algorithm, out);
}

hth_err cpu_conv_algorithms(hth_device *d, const hth_graph *g, const hth_node *n, hth_choice *list,
                            int cap, int *count)
{
    return hth_conv_offer_all(d, g, n, cpu_conv_prepare, cpu_winograd_prepare, list, cap, count);
}

// Whether oneDNN's direct convolution takes the node with these layouts, all post ops fused.
static bool conv_takes(const hth_graph *g, const hth_node *n, hth_layout in, hth_layout out)
{
    hth_conv_form f;
    hth_conv_choice first;
    return hth_conv_describe(g, n, in, out, false, 1, &f) == HTH_OK &&
           hth_conv_list(&f, &first, 1) == 1 && first.n_fused == f.n_post;
}

bool cpu_conv_can_fuse(hth_device *d, const hth_graph *g, const hth_node *n,
                       const hth_post_op *post, int operand)
{
    int inputs[16];
    hth_node with = *n;
    if (n->n_inputs + 1 > 16 || n->n_post >= HTH_MAX_POST_OPS) {
        return false;
    }
    memcpy(inputs, n->inputs, (size_t)n->n_inputs * sizeof inputs[0]);
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
    hth_layout l = cpu_conv_layout(d, g, n, &any);
    return conv_takes(g, &with, cpu_conv_reads_plain(d, g, n) ? HTH_LAYOUT_PLAIN : l, l);
}

hth_layout cpu_conv_layout(hth_device *d, const hth_graph *g, const hth_node *n, bool *any)
{
    hth_layout blocked;
    hth_cpu_block(d, &blocked);
    *any = false;
    bool takes = conv_takes(g, n, blocked, blocked) || conv_takes(g, n, HTH_LAYOUT_PLAIN, blocked);
    takes = takes || (!hth_dn_here() &&
                      (cpu_winograd_fits(g, n, blocked) || cpu_lowered_fits(g, n, blocked)));
    return takes ? blocked : HTH_LAYOUT_PLAIN;
}

bool cpu_conv_reads_plain(hth_device *d, const hth_graph *g, const hth_node *n)
{
    hth_layout blocked;
    hth_cpu_block(d, &blocked);
    return conv_takes(g, n, HTH_LAYOUT_PLAIN, blocked);
}
