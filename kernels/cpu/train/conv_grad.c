// SPDX-License-Identifier: Apache-2.0
// Gradients of Conv by oneDNN. The data gradient is one primitive; its filter is reordered on every
// run, since parameters change with every step. The filter's gradient comes in the implementation's
// own format and is reordered to the parameter's. In chunks along the batch, each chunk's filter
// gradient is added to the sum of those before, always in the same order.
#include "kernels/cpu/conv.h"

#include "kernels/cpu/conv_form.h"
#include "kernels/cpu/winograd/winograd.h"

static hth_err grad_data_build(hth_seq *seq, const hth_graph *graph, const hth_node *node,
                               const hth_conv_form *form, hth_dn_prim *prim)
{
    hth_seq_ref weights;
    hth_err err = hth_seq_weights(seq, prim, DNNL_ARG_WEIGHTS, &graph->values[node->inputs[1]], 1,
                                  &form->weights, &form->widen, &weights);
    if (err != HTH_OK) {
        hth_dn_prim_close(prim);
        return err;
    }
    HTH_TRY(hth_seq_add(seq, prim));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_WEIGHTS, weights.from, weights.at));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_DIFF_DST, HTH_SEQ_IN, 0));
    hth_seq_step(seq, hth_conv_chunk(&graph->values[node->inputs[0]], form->split));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_DIFF_SRC, HTH_SEQ_OUT, 0));
    hth_seq_step(seq, hth_conv_chunk(&graph->values[node->outputs[0]], form->split));
    if (node->n_post == 1) {
        hth_seq_mask(seq, node->post[0].input, hth_conv_chunk(&graph->values[node->outputs[0]], 1),
                     node->post[0].alpha, node->post[0].beta);
    }
    return HTH_OK;
}

static hth_err grad_bind(hth_seq *seq, const int *arg, const hth_seq_ref *place, int n)
{
    for (int i = 0; i < n; i++) {
        HTH_TRY(hth_seq_bind(seq, arg[i], place[i].from, place[i].at));
    }
    return HTH_OK;
}

// Adds `bytes` of floats at `part` to `sum`, or puts them there if they are the first.
static hth_err grad_gather(hth_seq *seq, size_t bytes, hth_seq_ref part, hth_seq_ref sum)
{
    int64_t count = (int64_t)(bytes / sizeof(float));
    hth_dn_md md = hth_dn_md_plain(HTH_DT_F32, 1, &count);
    hth_dn_op copy = {.kind = HTH_DN_REORDER, .src = md, .dst = md};
    hth_dn_op add = {
        .kind = HTH_DN_BINARY, .alg = dnnl_binary_add, .src = md, .src1 = md, .dst = md};
    hth_dn_prim *p;
    HTH_TRY(hth_dn_prim_open(&copy, 0, &p));
    HTH_TRY(hth_seq_add(seq, p));
    hth_seq_only(seq, HTH_SEQ_FIRST);
    HTH_TRY(grad_bind(seq, (int[]){DNNL_ARG_FROM, DNNL_ARG_TO}, (hth_seq_ref[]){part, sum}, 2));
    HTH_TRY(hth_dn_prim_open(&add, 0, &p));
    HTH_TRY(hth_seq_add(seq, p));
    hth_seq_only(seq, HTH_SEQ_BUT_FIRST);
    return grad_bind(seq, (int[]){DNNL_ARG_SRC_0, DNNL_ARG_SRC_1, DNNL_ARG_DST},
                     (hth_seq_ref[]){sum, part, sum}, 3);
}

static hth_err grad_filter_build(hth_seq *seq, const hth_graph *graph, const hth_node *node,
                                 const hth_conv_form *form, hth_dn_prim *prim)
{
    size_t bytes = hth_dn_prim_bytes(prim, DNNL_ARG_DIFF_WEIGHTS),
           bias = hth_dn_prim_bytes(prim, DNNL_ARG_DIFF_BIAS);
    hth_dn_prim *reorder;
    hth_err err = hth_dn_prim_unreorder(prim, DNNL_ARG_DIFF_WEIGHTS, &form->weights, &reorder);
    if (err != HTH_OK) {
        hth_dn_prim_close(prim);
        return err;
    }
    hth_seq_ref dw = {HTH_SEQ_WORKSPACE, hth_seq_reserve(seq, bytes)}, sum = dw;
    hth_seq_ref db = {HTH_SEQ_OUT, 1}, db_sum = db;
    err = hth_seq_add(seq, prim);
    if (err != HTH_OK) {
        hth_dn_prim_close(reorder);
        return err;
    }
    if (form->split > 1) {
        sum.at = hth_seq_reserve(seq, bytes);
        db = (hth_seq_ref){HTH_SEQ_WORKSPACE, hth_seq_reserve(seq, bias)};
    }
    HTH_GOTO(hth_seq_bind(seq, DNNL_ARG_SRC, HTH_SEQ_IN, 0), fail);
    hth_seq_step(seq, hth_conv_chunk(&graph->values[node->inputs[0]], form->split));
    HTH_GOTO(hth_seq_bind(seq, DNNL_ARG_DIFF_DST, HTH_SEQ_IN, 1), fail);
    hth_seq_step(seq, hth_conv_chunk(&graph->values[node->inputs[1]], form->split));
    HTH_GOTO(hth_seq_bind(seq, DNNL_ARG_DIFF_WEIGHTS, dw.from, dw.at), fail);
    HTH_GOTO(bias > 0 ? hth_seq_bind(seq, DNNL_ARG_DIFF_BIAS, db.from, db.at) : HTH_OK, fail);
    if (form->split > 1) {
        HTH_GOTO(grad_gather(seq, bytes, dw, sum), fail);
        HTH_GOTO(bias > 0 ? grad_gather(seq, bias, db, db_sum) : HTH_OK, fail);
    }
    HTH_TRY(hth_seq_add(seq, reorder));
    hth_seq_only(seq, HTH_SEQ_LAST);
    return grad_bind(seq, (int[]){DNNL_ARG_FROM, DNNL_ARG_TO},
                     (hth_seq_ref[]){sum, {HTH_SEQ_OUT, 0}}, 2);
fail:
    hth_dn_prim_close(reorder);
    return err;
}

hth_err cpu_conv_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const char *algorithm, hth_kernel **out)
{
    hth_conv_form f;
    hth_conv_choice c;
    hth_dn_prim *p;
    hth_seq *s;
    char name[HTH_DN_NAME];
    int split = algorithm == NULL ? 1 : hth_conv_parse(algorithm, name);
    HTH_TRY(hth_conv_describe_placed(graph, node, split, &f));
    HTH_TRY(hth_conv_find(&f, node, algorithm == NULL ? NULL : name, &c));
    hth_dn_op op = f.op;
    op.alg = c.alg;
    HTH_TRY(hth_seq_open(device, &s));
    hth_seq_split(s, split);
    hth_err err = hth_dn_prim_open(&op, c.nth, &p);
    if (err == HTH_OK) {
        err = node->op == HTH_OP_CONV_GRAD_DATA ? grad_data_build(s, graph, node, &f, p)
                                                : grad_filter_build(s, graph, node, &f, p);
    }
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, algorithm == NULL ? c.name : algorithm, out);
}

hth_err cpu_conv_grad_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                                 hth_choice *list, int cap, int *count)
{
    return hth_conv_offer_all(device, graph, node, cpu_conv_grad_prepare, cpu_winograd_prepare,
                              list, cap, count);
}

// Whether oneDNN's direct algorithm takes the gradient with the image in layout `in`, the result's
// in layout `out`. Where only Winograd does (fewer channels than a block), there would be no choice
// of little workspace.
static bool grad_takes(const hth_graph *graph, const hth_node *node, hth_layout in, hth_layout out)
{
    hth_conv_form f;
    hth_conv_choice first;
    return hth_conv_describe(graph, node, in, out, false, 1, &f) == HTH_OK &&
           hth_conv_list(&f, &first, 1) == 1 && first.alg == dnnl_convolution_direct;
}

hth_layout cpu_conv_grad_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                                bool *any)
{
    hth_layout blocked;
    hth_cpu_block(device, &blocked);
    *any = false;
    bool takes = grad_takes(graph, node, blocked, blocked) ||
                 (node->op == HTH_OP_CONV_GRAD_FILTER &&
                  grad_takes(graph, node, HTH_LAYOUT_PLAIN, blocked)) ||
                 (!hth_dn_here() && cpu_winograd_fits(graph, node, blocked));
    return takes ? blocked : HTH_LAYOUT_PLAIN;
}

bool cpu_conv_grad_reads_plain(hth_device *device, const hth_graph *graph, const hth_node *node)
{
    hth_layout blocked;
    hth_cpu_block(device, &blocked);
    return node->op == HTH_OP_CONV_GRAD_FILTER &&
           grad_takes(graph, node, HTH_LAYOUT_PLAIN, blocked);
}

bool cpu_conv_grad_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_post_op *post, int operand)
{
    return node->op == HTH_OP_CONV_GRAD_DATA && node->n_post == 0 && post->op == HTH_OP_RELU_GRAD &&
           operand >= 0;
}
