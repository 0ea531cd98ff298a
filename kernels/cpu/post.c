// SPDX-License-Identifier: Apache-2.0
// The first Add of a tensor that looks like the output becomes dnnl_sum: the operand's buffer is
// the output's, nothing is read twice. That needs an operand which this node reads for nothing else
// and which may be overwritten; every other second operand becomes dnnl_binary. HardSigmoid is a
// line and a clip, so that oneDNN 2, which lacks it, has it too.
#include "kernels/cpu/post.h"

static hth_dn_post post_eltwise(dnnl_alg_kind_t alg, float alpha, float beta)
{
    return (hth_dn_post){.kind = dnnl_eltwise, .alg = alg, .alpha = alpha, .beta = beta};
}

int hth_cpu_eltwise(hth_op op, float alpha, float beta, hth_dn_post out[2])
{
    const float third =
        DNNL_VERSION_MAJOR >= 3 ? 1.0F / 6.0F : 0.0F; // oneDNN 2's HardSwish has no parameters
    switch (op) {
    case HTH_OP_RELU:
        out[0] = post_eltwise(dnnl_eltwise_relu, 0, 0);
        return 1;
    case HTH_OP_LEAKY_RELU:
        out[0] = post_eltwise(dnnl_eltwise_relu, alpha, 0);
        return 1;
    case HTH_OP_CLIP:
        out[0] = post_eltwise(dnnl_eltwise_clip, alpha, beta);
        return 1;
    case HTH_OP_SIGMOID:
        out[0] = post_eltwise(dnnl_eltwise_logistic, 0, 0);
        return 1;
    case HTH_OP_SWISH:
        out[0] = post_eltwise(dnnl_eltwise_swish, alpha, 0);
        return 1;
    case HTH_OP_HARD_SWISH:
        out[0] = post_eltwise(dnnl_eltwise_hardswish, third, third * 3);
        return 1;
    case HTH_OP_HARD_SIGMOID:
        out[0] = post_eltwise(dnnl_eltwise_linear, alpha, beta);
        out[1] = post_eltwise(dnnl_eltwise_clip, 0, 1);
        return 2;
    case HTH_OP_GELU:
        out[0] = post_eltwise(alpha != 0 ? dnnl_eltwise_gelu_tanh : dnnl_eltwise_gelu_erf, 0, 0);
        return 1;
    case HTH_OP_TANH:
        out[0] = post_eltwise(dnnl_eltwise_tanh, 0, 0);
        return 1;
    case HTH_OP_ELU:
        out[0] = post_eltwise(dnnl_eltwise_elu, alpha, 0);
        return 1;
    case HTH_OP_ABS:
        out[0] = post_eltwise(dnnl_eltwise_abs, 0, 0);
        return 1;
    case HTH_OP_NEG:
        out[0] = post_eltwise(dnnl_eltwise_linear, -1, 0);
        return 1;
    case HTH_OP_SQRT:
        out[0] = post_eltwise(dnnl_eltwise_sqrt, 0, 0);
        return 1;
    case HTH_OP_EXP:
        out[0] = post_eltwise(dnnl_eltwise_exp, 0, 0);
        return 1;
    case HTH_OP_MISH:
        out[0] = post_eltwise(dnnl_eltwise_mish, 0, 0);
        return 1;
    default:
        return 0;
    }
}

// oneDNN's name of Add, Sub, Mul, Div, Min, Max; dnnl_alg_kind_undef for others.
static dnnl_alg_kind_t post_binary_alg(hth_op op)
{
    switch (op) {
    case HTH_OP_ADD:
        return dnnl_binary_add;
    case HTH_OP_SUB:
        return dnnl_binary_sub;
    case HTH_OP_MUL:
        return dnnl_binary_mul;
    case HTH_OP_DIV:
        return dnnl_binary_div;
    case HTH_OP_MIN:
        return dnnl_binary_min;
    case HTH_OP_MAX:
        return dnnl_binary_max;
    default:
        return dnnl_alg_kind_undef;
    }
}

// Whether post_operand can describe it: a blocked tensor of lower rank blocks another axis than the
// output's channels.
static bool post_operand_fits(const hth_shape *shape, hth_layout layout, int rank)
{
    return shape->rank == rank || (shape->rank < rank && layout == HTH_LAYOUT_PLAIN);
}

// An operand, with ones in front up to `rank` dimensions.
static hth_dn_md post_operand(const hth_shape *shape, hth_layout layout, int rank)
{
    if (shape->rank == rank) {
        return hth_dn_md_of(HTH_DT_F32, shape, layout);
    }
    int64_t dims[HTH_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        int from = i - (rank - shape->rank);
        dims[i] = from < 0 ? 1 : shape->dim[from];
    }
    return hth_dn_md_plain(HTH_DT_F32, rank, dims);
}

static hth_err post_binary(const hth_graph *graph, const hth_node *node, const hth_post_op *op,
                           hth_layout out_layout, bool placed, hth_cpu_post *to, int *sum)
{
    const hth_value *out = &graph->values[node->outputs[0]],
                    *v = &graph->values[node->inputs[op->input]];
    bool alone = v->constant == NULL, alike = hth_shape_equal(&v->shape, &out->shape);
    for (int i = 0; i < node->n_inputs; i++) {
        alone = alone && (i == op->input || node->inputs[i] != node->inputs[op->input]);
    }
    hth_layout l = placed ? v->layout : HTH_LAYOUT_PLAIN;
    if (!placed && v->constant == NULL && v->shape.rank == out->shape.rank && v->shape.rank > 1 &&
        v->shape.dim[1] == out->shape.dim[1]) {
        l = out_layout;
    }
    to->input = op->input;
    if (op->op == HTH_OP_ADD && *sum < 0 && alone && alike && l == out_layout) {
        *sum = op->input;
        to->dn = (hth_dn_post){.kind = dnnl_sum, .alpha = op->alpha};
        return HTH_OK;
    }
    bool minus = op->op == HTH_OP_ADD && op->alpha == -1;
    to->dn =
        (hth_dn_post){.kind = dnnl_binary, .alg = post_binary_alg(minus ? HTH_OP_SUB : op->op)};
    if (v->dtype != HTH_DT_F32 || !post_operand_fits(&v->shape, l, out->shape.rank) ||
        to->dn.alg == dnnl_alg_kind_undef || (op->op == HTH_OP_ADD && op->alpha != 1 && !minus)) {
        return hth_fail(HTH_ENOTSUP, "post op %s of node '%s'", hth_op_name(op->op), node->name);
    }
    to->dn.src1 = post_operand(&v->shape, l, out->shape.rank);
    return HTH_OK;
}

hth_err hth_cpu_posts(const hth_graph *graph, const hth_node *node, hth_layout out_layout,
                      bool placed, hth_cpu_post *list, int *count, int *sum)
{
    *count = 0;
    *sum = -1;
    for (int i = 0; i < node->n_post; i++) {
        const hth_post_op *p = &node->post[i];
        if (*count + 2 > HTH_DN_MAX_POST) {
            return hth_fail(HTH_ENOTSUP, "too many post ops on node '%s'", node->name);
        }
        if (p->input >= 0) {
            HTH_TRY(post_binary(graph, node, p, out_layout, placed, &list[*count], sum));
            (*count)++;
            continue;
        }
        hth_dn_post dn[2];
        int made = hth_cpu_eltwise(p->op, p->alpha, p->beta, dn);
        if (made == 0) {
            return hth_fail(HTH_ENOTSUP, "post op %s of node '%s'", hth_op_name(p->op), node->name);
        }
        for (int k = 0; k < made; k++) {
            list[(*count)++] = (hth_cpu_post){dn[k], -1};
        }
    }
    return HTH_OK;
}

static hth_err tail_step(hth_seq *seq, const hth_cpu_post *post, const hth_dn_md *md)
{
    bool unary = post->dn.kind == dnnl_eltwise;
    hth_dn_op op = {.kind = unary ? HTH_DN_ELTWISE : HTH_DN_BINARY, .src = *md, .dst = *md};
    op.alg = post->dn.alg;
    if (post->dn.kind == dnnl_sum) {
        op.alg = post->dn.alpha < 0 ? dnnl_binary_sub : dnnl_binary_add;
    }
    op.alpha = post->dn.alpha;
    op.beta = post->dn.beta;
    if (!unary) {
        op.src1 = post->dn.kind == dnnl_sum ? *md : post->dn.src1;
    }
    if (post->dn.kind == dnnl_sum && post->dn.alpha != 1 && post->dn.alpha != -1) {
        return hth_fail(HTH_ENOTSUP, "a scaled sum after the primitive");
    }
    hth_dn_prim *prim;
    HTH_TRY(hth_dn_prim_open(&op, 0, &prim));
    HTH_TRY(hth_seq_add(seq, prim));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_SRC, HTH_SEQ_OUT, 0));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_DST, HTH_SEQ_OUT, 0));
    return unary ? HTH_OK : hth_seq_bind(seq, DNNL_ARG_SRC_1, HTH_SEQ_IN, (size_t)post->input);
}

hth_err hth_cpu_tail(hth_seq *seq, const hth_cpu_post *list, int from, int count,
                     const hth_dn_md *md)
{
    for (int i = from; i < count; i++) {
        HTH_TRY(tail_step(seq, &list[i], md));
    }
    return HTH_OK;
}
