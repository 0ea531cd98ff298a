// SPDX-License-Identifier: Apache-2.0
// Operators that are one oneDNN primitive from input 0 to output 0: activations, LRN, softmax,
// layout changes (in place, one for each sample), pooling.
#include "kernels/cpu/primitive.h"

#include "base/alloc.h"
#include "kernels/cpu/post.h"
#include "kernels/ref/ref_window.h"

#include <string.h>

// Both tensors as they lie; HTH_ENOTSUP for what oneDNN's f32 primitives cannot take.
static hth_err prim_describe(const hth_graph *graph, const hth_node *node, hth_dn_kind kind,
                             hth_dn_op *op)
{
    const hth_value *x = &graph->values[node->inputs[0]], *y = &graph->values[node->outputs[0]];
    if (x->dtype != HTH_DT_F32 || y->dtype != HTH_DT_F32 || x->shape.rank < 1 ||
        x->shape.rank > 6 || node->n_post > 0 || hth_shape_elements(&x->shape) == 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, rank, post ops or empty", node->name);
    }
    *op = (hth_dn_op){.kind = kind,
                      .src = hth_dn_md_of(HTH_DT_F32, &x->shape, x->layout),
                      .dst = hth_dn_md_of(HTH_DT_F32, &y->shape, y->layout)};
    return HTH_OK;
}

static hth_err prim_step(hth_seq *seq, const hth_dn_op *op, hth_seq_from from)
{
    hth_dn_prim *p;
    HTH_TRY(hth_dn_prim_open(op, 0, &p));
    HTH_TRY(hth_seq_add(seq, p));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_SRC, from, 0));
    return hth_seq_bind(seq, DNNL_ARG_DST, HTH_SEQ_OUT, 0);
}

// A sequence of op[0] from input to output and, where there is a second one, op[1] in place on the
// output. Plain-loop implementations are left to the project's reference, except reorders (all
// formats) when `ref_too`.
static hth_err prim_steps(hth_device *device, const hth_dn_op *op, int n_ops, bool ref_too,
                          hth_seq **out)
{
    hth_seq *s = NULL;
    char name[HTH_DN_NAME];
    size_t scratchpad;
    HTH_TRY(hth_dn_probe(&op[0], 0, name, &scratchpad));
    if (!ref_too && strncmp(name, "ref", 3) == 0) {
        return hth_fail(HTH_ENOTSUP, "oneDNN has only '%s'", name);
    }
    HTH_TRY(hth_seq_open(device, &s));
    for (int i = 0; i < n_ops; i++) {
        hth_err err = prim_step(s, &op[i], i == 0 ? HTH_SEQ_IN : HTH_SEQ_OUT);
        if (err != HTH_OK) {
            hth_seq_abort(s);
            return err;
        }
    }
    *out = s;
    return HTH_OK;
}

static hth_err prim_kernel(hth_device *device, const hth_dn_op *op, bool ref_too, hth_kernel **out)
{
    hth_seq *s = NULL;
    HTH_TRY(prim_steps(device, op, 1, ref_too, &s));
    return hth_seq_finish(s, NULL, out);
}

// Attributes as post ops have them: Clip's bounds are inputs and must be constant.
static bool unary_params(const hth_graph *graph, const hth_node *node, float *alpha, float *beta)
{
    *alpha = hth_cpu_alpha(node, node->op);
    *beta = hth_node_float(node, "beta", 0.5F);
    if (node->op == HTH_OP_GELU) {
        *alpha = strcmp(hth_node_str(node, "approximate", "none"), "tanh") == 0;
    }
    for (int i = 1; node->op == HTH_OP_CLIP && i <= 2; i++) {
        float *to = i == 1 ? alpha : beta;
        *to = i == 1 ? -__FLT_MAX__ : __FLT_MAX__;
        if (i < node->n_inputs && node->inputs[i] >= 0) {
            const hth_const *c = graph->values[node->inputs[i]].constant;
            if (c == NULL || c->data == NULL || c->dtype != HTH_DT_F32) {
                return false;
            }
            memcpy(to, c->data, sizeof *to);
        }
    }
    return true;
}

// An activation does not care where an element stands: the tensor is one row of numbers, padding
// included, which is zeroed afterwards where the function does not keep zero.
hth_err cpu_unary_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const char *algorithm, hth_kernel **out)
{
    hth_dn_op op[2];
    hth_dn_post post[2];
    float alpha, beta;
    HTH_TRY(prim_describe(graph, node, HTH_DN_ELTWISE, &op[0]));
    int count = algorithm == NULL && unary_params(graph, node, &alpha, &beta)
                    ? hth_cpu_eltwise(node->op, alpha, beta, post)
                    : 0;
    if (count == 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': no such activation", node->name);
    }
    const hth_value *x = &graph->values[node->inputs[0]], *y = &graph->values[node->outputs[0]];
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &x->shape, x->layout, &bytes));
    int64_t elements = (int64_t)(bytes / sizeof(float));
    if (x->layout != y->layout) {
        return hth_fail(HTH_ENOTSUP, "node '%s': layouts differ", node->name);
    }
    op[0].src = op[0].dst = hth_dn_md_plain(HTH_DT_F32, 1, &elements);
    op[1] = op[0];
    for (int i = 0; i < count; i++) {
        op[i].alg = post[i].alg;
        op[i].alpha = post[i].alpha;
        op[i].beta = post[i].beta;
    }
    hth_seq *s = NULL;
    HTH_TRY(prim_steps(device, op, count, false, &s));
    hth_seq_clear(s, &y->shape, y->layout);
    HTH_TRY(hth_seq_finish(s, NULL, out));
    (*out)->inplace_input = 0;
    return HTH_OK;
}

hth_err cpu_lrn_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                        const char *algorithm, hth_kernel **out)
{
    hth_dn_op op;
    HTH_TRY(prim_describe(graph, node, HTH_DN_LRN, &op));
    op.alg = dnnl_lrn_across_channels;
    op.size = hth_node_int(node, "size", 1);
    op.alpha = hth_node_float(node, "alpha", 1e-4F);
    op.beta = hth_node_float(node, "beta", 0.75F);
    op.k = hth_node_float(node, "bias", 1.0F);
    if (op.size % 2 == 0 || algorithm != NULL) {
        return hth_fail(HTH_ENOTSUP, "node '%s': an even window is not centered", node->name);
    }
    return prim_kernel(device, &op, true, out);
}

hth_err cpu_softmax_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const char *algorithm, hth_kernel **out)
{
    hth_dn_op op;
    HTH_TRY(prim_describe(graph, node,
                          node->op == HTH_OP_SOFTMAX ? HTH_DN_SOFTMAX : HTH_DN_LOG_SOFTMAX, &op));
    int rank = graph->values[node->inputs[0]].shape.rank,
        axis = (int)hth_node_int(node, "axis", -1);
    op.axis = axis < 0 ? axis + rank : axis;
    if (op.src.block != 0 || algorithm != NULL) {
        return hth_fail(HTH_ENOTSUP, "node '%s': softmax of a blocked tensor", node->name);
    }
    return prim_kernel(device, &op, false, out);
}

// ---- layout changes

// A Reorder whose tensors are of one size can take the place of an input that nobody reads after
// it: sample after sample by way of the workspace, so that a step has room for one of the two. Not
// for few samples, whose way takes as much memory as it gives, nor for many or small ones, whose
// way takes longer.
#define REORDER_SAMPLES_MIN 4
#define REORDER_SAMPLES     1024
#define REORDER_SAMPLE      ((size_t)16 << 10) // bytes

typedef struct reorder {
    hth_kernel base;
    hth_kernel *apart, *inplace;
} reorder;

static hth_err reorder_run(const hth_kernel *kernel, const hth_kernel_args *args)
{
    const reorder *r = (const reorder *)kernel;
    const hth_kernel *k = args->in[0] == args->out[0] ? r->inplace : r->apart;
    return k->run(k, args);
}

static void reorder_close(hth_kernel *kernel)
{
    reorder *r = (reorder *)kernel;
    hth_kernel_close(r->apart);
    hth_kernel_close(r->inplace);
    hth_free(r);
}

static bool reorder_fits(const hth_graph *graph, const hth_node *node, size_t x_bytes,
                         size_t y_bytes)
{
    const hth_shape *shape = &graph->values[node->inputs[0]].shape;
    int x = node->inputs[0];
    bool last = true;
    for (int i = (int)(node - graph->nodes) + 1; i < graph->n_nodes; i++) {
        for (int j = 0; j < graph->nodes[i].n_inputs; j++) {
            last = last && graph->nodes[i].inputs[j] != x;
        }
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        last = last && graph->outputs[i] != x;
    }
    return graph->values[x].producer >= 0 && last && x_bytes == y_bytes && shape->rank >= 3 &&
           shape->dim[0] >= REORDER_SAMPLES_MIN && shape->dim[0] <= REORDER_SAMPLES &&
           x_bytes / (size_t)shape->dim[0] >= REORDER_SAMPLE;
}

typedef struct reorder_end {
    hth_seq_from where;
    size_t at, step; // from sample to sample
} reorder_end;

static hth_err reorder_add(hth_seq *seq, const hth_dn_op *op, reorder_end from, reorder_end to)
{
    hth_dn_prim *p;
    HTH_TRY(hth_dn_prim_open(op, 0, &p));
    HTH_TRY(hth_seq_add(seq, p));
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_SRC, from.where, from.at));
    hth_seq_step(seq, from.step);
    HTH_TRY(hth_seq_bind(seq, DNNL_ARG_DST, to.where, to.at));
    hth_seq_step(seq, to.step);
    return HTH_OK;
}

// Each sample goes into the workspace as it is, and from there in its new form.
static hth_err reorder_steps(hth_seq *seq, const hth_dn_op op[2], size_t sample)
{
    reorder_end in = {HTH_SEQ_IN, 0, sample}, out = {HTH_SEQ_OUT, 0, sample};
    reorder_end place = {HTH_SEQ_WORKSPACE, hth_seq_reserve(seq, sample), 0};
    HTH_TRY(reorder_add(seq, &op[0], in, place));
    return reorder_add(seq, &op[1], place, out);
}

// `bytes`: of either tensor.
static hth_err reorder_inplace(hth_device *device, const hth_graph *graph, const hth_node *node,
                               size_t bytes, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[0]], *y = &graph->values[node->outputs[0]];
    hth_shape shape = x->shape;
    size_t sample = bytes / (size_t)shape.dim[0];
    int64_t elements = (int64_t)(sample / sizeof(float));
    shape.dim[0] = 1;
    hth_dn_md row = hth_dn_md_plain(HTH_DT_F32, 1, &elements);
    const hth_dn_op op[2] = {{.kind = HTH_DN_REORDER, .src = row, .dst = row},
                             {.kind = HTH_DN_REORDER,
                              .src = hth_dn_md_of(HTH_DT_F32, &shape, x->layout),
                              .dst = hth_dn_md_of(HTH_DT_F32, &shape, y->layout)}};
    hth_seq *s;
    HTH_TRY(hth_seq_open(device, &s));
    hth_err err = reorder_steps(s, op, sample);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    hth_seq_split(s, (int)x->shape.dim[0]);
    return hth_seq_finish(s, NULL, out);
}

hth_err cpu_reorder_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const char *algorithm, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[0]], *y = &graph->values[node->outputs[0]];
    hth_dn_op op;
    size_t bytes, y_bytes;
    hth_kernel *apart;
    HTH_TRY(prim_describe(graph, node, HTH_DN_REORDER, &op));
    if (algorithm != NULL) {
        return HTH_ENOTSUP;
    }
    HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &x->shape, x->layout, &bytes));
    HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &y->shape, y->layout, &y_bytes));
    HTH_TRY(prim_kernel(device, &op, true, &apart));
    if (!reorder_fits(graph, node, bytes, y_bytes)) {
        *out = apart;
        return HTH_OK;
    }
    reorder *r = hth_calloc(1, sizeof *r);
    hth_err err = r != NULL ? reorder_inplace(device, graph, node, bytes, &r->inplace)
                            : hth_no_memory("a Reorder");
    if (err != HTH_OK) {
        hth_kernel_close(apart);
        hth_free(r);
        return err;
    }
    r->apart = apart;
    r->base = (hth_kernel){.run = reorder_run,
                           .close = reorder_close,
                           .implementation = apart->implementation,
                           .workspace_bytes = apart->workspace_bytes > r->inplace->workspace_bytes
                                                  ? apart->workspace_bytes
                                                  : r->inplace->workspace_bytes,
                           .inplace_input = 0};
    *out = &r->base;
    return HTH_OK;
}

// ---- pooling

// Padding at the end is what the output's size implies. An average that counts padding must not
// count the part that ceil_mode added.
static hth_err pool_geometry(const hth_graph *graph, const hth_node *node, hth_dn_op *op)
{
    const hth_shape *x = &graph->values[node->inputs[0]].shape,
                    *y = &graph->values[node->outputs[0]].shape;
    int64_t kernel[6] = {0};
    int nsp = x->rank - 2, n_kernel = hth_node_ints(node, "kernel_shape", kernel, 6);
    ref_window w;
    HTH_TRY(ref_window_init(&w, node, x, y, kernel, n_kernel));
    for (int i = 0; i < nsp; i++) {
        int s = i + 3 - nsp;
        int64_t span = (w.k[s] - 1) * w.dilation[s] + 1;
        int64_t end = (w.out[s] - 1) * w.stride[s] + span - w.in[s] - w.pad[s];
        if (op->alg == dnnl_pooling_avg_include_padding && end > w.pad_end[s]) {
            return hth_fail(HTH_ENOTSUP, "node '%s': ceil_mode with counted padding", node->name);
        }
        op->kernel[i] = w.k[s];
        op->strides[i] = w.stride[s];
        op->dilates[i] = w.dilation[s] - 1;
        op->pad_l[i] = w.pad[s];
        op->pad_r[i] = end > 0 ? end : 0;
    }
    return HTH_OK;
}

static void pool_global(const hth_dn_md *x, hth_dn_op *op)
{
    for (int i = 0; i < x->ndims - 2; i++) {
        op->kernel[i] = x->dims[i + 2];
        op->strides[i] = 1;
    }
}

// ReduceMean over all spatial dimensions is what exporters make of global average pooling.
static bool reduces_all_spatial(const hth_graph *graph, const hth_node *node, int rank)
{
    const hth_const *c =
        node->n_inputs > 1 && node->inputs[1] >= 0 ? graph->values[node->inputs[1]].constant : NULL;
    if (c == NULL || c->data == NULL || c->dtype != HTH_DT_I64 ||
        c->bytes != sizeof(int64_t) * (size_t)(rank - 2)) {
        return false;
    }
    unsigned seen = 0;
    for (int i = 0; i < rank - 2; i++) {
        int64_t axis = ((const int64_t *)c->data)[i];
        seen |= 1U << (axis < 0 ? axis + rank : axis);
    }
    return seen == (1U << rank) - 4;
}

hth_err cpu_pool_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    hth_dn_op op;
    HTH_TRY(prim_describe(graph, node, HTH_DN_POOL, &op));
    bool indices = node->n_outputs > 1 && node->outputs[1] >= 0;
    if (algorithm != NULL || indices || op.src.ndims < 3 || op.src.ndims > 5) {
        return hth_fail(HTH_ENOTSUP, "node '%s': indices or rank", node->name);
    }
    bool max = node->op == HTH_OP_MAX_POOL || node->op == HTH_OP_GLOBAL_MAX_POOL;
    op.alg = dnnl_pooling_max;
    if (!max) {
        op.alg = hth_node_int(node, "count_include_pad", 0) != 0 ? dnnl_pooling_avg_include_padding
                                                                 : dnnl_pooling_avg_exclude_padding;
    }
    if (node->op == HTH_OP_MAX_POOL || node->op == HTH_OP_AVERAGE_POOL) {
        HTH_TRY(pool_geometry(graph, node, &op));
    } else if (node->op == HTH_OP_REDUCE_MEAN && !reduces_all_spatial(graph, node, op.src.ndims)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not a global average", node->name);
    } else {
        if (op.dst.ndims == 2) { // keepdims 0: the same numbers
            int64_t dims[5] = {op.src.dims[0], op.src.dims[1], 1, 1, 1};
            op.dst = hth_dn_md_plain(HTH_DT_F32, op.src.ndims, dims);
        }
        pool_global(&op.src, &op);
    }
    return prim_kernel(device, &op, false, out);
}

hth_layout cpu_any_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                          bool *any)
{
    const hth_shape *x = &graph->values[node->inputs[0]].shape;
    *any = graph->values[node->inputs[0]].dtype == HTH_DT_F32 && x->rank >= 3 && x->rank <= 5;
    return HTH_LAYOUT_PLAIN;
}

hth_layout cpu_pool_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                           bool *any)
{
    hth_layout l = cpu_any_layout(device, graph, node, any);
    *any = *any && (node->n_outputs < 2 || node->outputs[1] < 0) &&
           (node->op != HTH_OP_REDUCE_MEAN ||
            (hth_node_int(node, "keepdims", 1) != 0 &&
             reduces_all_spatial(graph, node, graph->values[node->inputs[0]].shape.rank)));
    return l;
}
