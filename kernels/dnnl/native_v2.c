// SPDX-License-Identifier: Apache-2.0
// Descriptors the way of oneDNN 2: by-value memory descriptors, operation descriptors, an iterator
// over implementations.
#include "kernels/dnnl/native.h"

#if DNNL_VERSION_MAJOR == 2

#include <string.h>

typedef union v2_desc {
    dnnl_convolution_desc_t conv;
    dnnl_deconvolution_desc_t deconv;
    dnnl_pooling_v2_desc_t pool;
    dnnl_binary_desc_t binary;
    dnnl_eltwise_desc_t eltwise;
    dnnl_matmul_desc_t matmul;
    dnnl_inner_product_desc_t inner;
    dnnl_softmax_v2_desc_t softmax;
    dnnl_lrn_desc_t lrn;
    dnnl_resampling_desc_t resample;
} v2_desc;

typedef struct v2_mds {
    dnnl_memory_desc_t src, src1, bias, dst;
} v2_mds;

static dnnl_status_t v2_md(const hth_dn_md *m, dnnl_memory_desc_t *out)
{
    memset(out, 0, sizeof *out);
    if (m->ndims == 0) {
        return dnnl_success;
    }
    dnnl_data_type_t dt = hth_dn_dtype(m->dtype);
    if (m->any) {
        return dnnl_memory_desc_init_by_tag(out, m->ndims, m->dims, dt, dnnl_format_tag_any);
    }
    if (m->block != 0) {
        return dnnl_memory_desc_init_by_tag(out, m->ndims, m->dims, dt, hth_dn_block_tag(m));
    }
    return dnnl_memory_desc_init_by_strides(out, m->ndims, m->dims, dt, m->strides);
}

static dnnl_status_t v2_op_desc(const hth_dn_op *op, v2_mds *mds, v2_desc *desc)
{
    const dnnl_prop_kind_t fwd = dnnl_forward_inference;
    dnnl_memory_desc_t *bias = op->bias.ndims != 0 ? &mds->bias : NULL;
    switch (op->kind) {
    case HTH_DN_CONV:
        return dnnl_dilated_convolution_forward_desc_init(&desc->conv, fwd, op->alg, &mds->src,
                                                          &mds->src1, bias, &mds->dst, op->strides,
                                                          op->dilates, op->pad_l, op->pad_r);
    case HTH_DN_CONV_BWD_DATA:
        return dnnl_dilated_convolution_backward_data_desc_init(&desc->conv, op->alg, &mds->dst,
                                                                &mds->src1, &mds->src, op->strides,
                                                                op->dilates, op->pad_l, op->pad_r);
    case HTH_DN_CONV_BWD_WEIGHTS:
        return dnnl_dilated_convolution_backward_weights_desc_init(
            &desc->conv, op->alg, &mds->src, &mds->dst, bias, &mds->src1, op->strides, op->dilates,
            op->pad_l, op->pad_r);
    case HTH_DN_DECONV:
        return dnnl_dilated_deconvolution_forward_desc_init(
            &desc->deconv, fwd, op->alg, &mds->src, &mds->src1, bias, &mds->dst, op->strides,
            op->dilates, op->pad_l, op->pad_r);
    case HTH_DN_POOL:
        return dnnl_pooling_v2_forward_desc_init(&desc->pool, fwd, op->alg, &mds->src, &mds->dst,
                                                 op->strides, op->kernel, op->dilates, op->pad_l,
                                                 op->pad_r);
    case HTH_DN_BINARY:
        return dnnl_binary_desc_init(&desc->binary, op->alg, &mds->src, &mds->src1, &mds->dst);
    case HTH_DN_ELTWISE:
        return dnnl_eltwise_forward_desc_init(&desc->eltwise, fwd, op->alg, &mds->src, op->alpha,
                                              op->beta);
    case HTH_DN_MATMUL:
        return dnnl_matmul_desc_init(&desc->matmul, &mds->src, &mds->src1, bias, &mds->dst);
    case HTH_DN_INNER_PRODUCT:
        return dnnl_inner_product_forward_desc_init(&desc->inner, fwd, &mds->src, &mds->src1, bias,
                                                    &mds->dst);
    case HTH_DN_SOFTMAX:
        return dnnl_softmax_v2_forward_desc_init(&desc->softmax, fwd, dnnl_softmax_accurate,
                                                 &mds->src, &mds->dst, op->axis);
    case HTH_DN_LOG_SOFTMAX:
        return dnnl_softmax_v2_forward_desc_init(&desc->softmax, fwd, dnnl_softmax_log, &mds->src,
                                                 &mds->dst, op->axis);
    case HTH_DN_LRN:
        return dnnl_lrn_forward_desc_init(&desc->lrn, fwd, op->alg, &mds->src, op->size, op->alpha,
                                          op->beta, op->k);
    case HTH_DN_RESAMPLE:
        return dnnl_resampling_forward_desc_init(&desc->resample, fwd, op->alg, NULL, &mds->src,
                                                 &mds->dst);
    default:
        return dnnl_unimplemented;
    }
}

static dnnl_status_t v2_concat(dnnl_engine_t e, const hth_dn_op *op, dnnl_primitive_attr_t attr,
                               dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t srcs[HTH_DN_MAX_INPUTS], dst;
    dnnl_status_t st = v2_md(&op->dst, &dst);
    if (op->n_srcs > HTH_DN_MAX_INPUTS) {
        return dnnl_unimplemented;
    }
    for (int i = 0; i < op->n_srcs && st == dnnl_success; i++) {
        st = v2_md(&op->srcs[i], &srcs[i]);
    }
    return st != dnnl_success
               ? st
               : dnnl_concat_primitive_desc_create(out, &dst, op->n_srcs, op->axis, srcs, attr, e);
}

// The training forward pass is the hint that backward descriptors ask for.
static dnnl_status_t v2_hint(dnnl_engine_t e, const hth_dn_op *op, v2_mds *mds,
                             dnnl_primitive_desc_t *out)
{
    bool data = op->kind == HTH_DN_CONV_BWD_DATA;
    if (!data && op->kind != HTH_DN_CONV_BWD_WEIGHTS) {
        return dnnl_success;
    }
    dnnl_convolution_desc_t d;
    const dnnl_memory_desc_t *x = data ? &mds->dst : &mds->src;
    const dnnl_memory_desc_t *w = data ? &mds->src1 : &mds->dst;
    const dnnl_memory_desc_t *y = data ? &mds->src : &mds->src1;
    dnnl_status_t st = dnnl_dilated_convolution_forward_desc_init(
        &d, dnnl_forward_training, dnnl_convolution_direct, x, w, NULL, y, op->strides, op->dilates,
        op->pad_l, op->pad_r);
    return st != dnnl_success ? st : dnnl_primitive_desc_create(out, &d, NULL, e, NULL);
}

static dnnl_status_t v2_iterate(dnnl_engine_t e, const v2_desc *desc, dnnl_primitive_attr_t attr,
                                dnnl_primitive_desc_t hint, int nth, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_iterator_t it;
    dnnl_status_t st = dnnl_primitive_desc_iterator_create(&it, desc, attr, e, hint);
    if (st != dnnl_success) {
        return st;
    }
    while (nth-- > 0 && st == dnnl_success) {
        st = dnnl_primitive_desc_iterator_next(it);
    }
    if (st == dnnl_success) {
        *out = dnnl_primitive_desc_iterator_fetch(it);
        st = *out == NULL ? dnnl_out_of_memory : dnnl_success;
    }
    dnnl_primitive_desc_iterator_destroy(it);
    return st;
}

dnnl_status_t hth_dn_native_pd(dnnl_engine_t e, const hth_dn_op *op, dnnl_primitive_attr_t attr,
                               int nth, dnnl_primitive_desc_t *out)
{
    if (op->kind == HTH_DN_CONCAT) {
        return nth > 0 ? HTH_DN_ENDS : v2_concat(e, op, attr, out);
    }
    v2_mds m;
    v2_desc d;
    const hth_dn_md *from[] = {&op->src, &op->src1, &op->bias, &op->dst};
    dnnl_memory_desc_t *to[] = {&m.src, &m.src1, &m.bias, &m.dst};
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 4 && st == dnnl_success; i++) {
        st = v2_md(from[i], to[i]);
    }
    if (st == dnnl_success && op->kind == HTH_DN_REORDER) {
        return nth > 0 ? HTH_DN_ENDS
                       : dnnl_reorder_primitive_desc_create(out, &m.src, e, &m.dst, e, attr);
    }
    dnnl_primitive_desc_t hint = NULL;
    if (st == dnnl_success) {
        st = v2_op_desc(op, &m, &d);
    }
    if (st == dnnl_success) {
        st = v2_hint(e, op, &m, &hint);
    }
    if (st == dnnl_success) {
        st = v2_iterate(e, &d, attr, hint, nth, out);
    }
    if (hint != NULL) {
        dnnl_primitive_desc_destroy(hint);
    }
    return st;
}

dnnl_status_t hth_dn_native_reorder(dnnl_engine_t e, const hth_dn_md *md, hth_dn_native_md native,
                                    bool back, dnnl_primitive_attr_t attr,
                                    dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t m;
    dnnl_status_t st = v2_md(md, &m);
    if (st != dnnl_success) {
        return st;
    }
    return back ? dnnl_reorder_primitive_desc_create(out, native, e, &m, e, attr)
                : dnnl_reorder_primitive_desc_create(out, &m, e, native, e, attr);
}

dnnl_status_t hth_dn_native_post(dnnl_post_ops_t ops, const hth_dn_post *post)
{
    if (post->kind == dnnl_sum) {
        return dnnl_post_ops_append_sum(ops, post->alpha);
    }
    if (post->kind == dnnl_eltwise) {
        return dnnl_post_ops_append_eltwise(ops, 1.0F, post->alg, post->alpha, post->beta);
    }
    dnnl_memory_desc_t m;
    dnnl_status_t st = v2_md(&post->src1, &m);
    return st != dnnl_success ? st : dnnl_post_ops_append_binary(ops, post->alg, &m);
}

static size_t image_add(uint8_t *out, size_t cap, size_t at, const void *data, size_t bytes)
{
    if (at + bytes <= cap) {
        memcpy(out + at, data, bytes);
        return at + bytes;
    }
    return at;
}

// Field by field: the bytes of the unused parts of the struct are not defined.
size_t hth_dn_native_image(hth_dn_native_md md, uint8_t *out, size_t cap)
{
    size_t n = 0, dims = (size_t)md->ndims * sizeof md->dims[0];
    n = image_add(out, cap, n, &md->ndims, sizeof md->ndims);
    n = image_add(out, cap, n, &md->data_type, sizeof md->data_type);
    n = image_add(out, cap, n, &md->format_kind, sizeof md->format_kind);
    n = image_add(out, cap, n, md->dims, dims);
    n = image_add(out, cap, n, md->padded_dims, dims);
    if (md->format_kind == dnnl_blocked) {
        const dnnl_blocking_desc_t *b = &md->format_desc.blocking;
        size_t blocks = (size_t)b->inner_nblks * sizeof b->inner_blks[0];
        n = image_add(out, cap, n, b->strides, dims);
        n = image_add(out, cap, n, b->inner_blks, blocks);
        n = image_add(out, cap, n, b->inner_idxs, blocks);
    } else if (md->format_kind == dnnl_format_kind_wino) {
        const dnnl_wino_desc_t *w = &md->format_desc.wino_desc;
        const int field[] = {(int)w->wino_format, w->r,        w->alpha,     w->ic,       w->oc,
                             w->ic_block,         w->oc_block, w->ic2_block, w->oc2_block};
        n = image_add(out, cap, n, field, sizeof field);
        n = image_add(out, cap, n, &w->adj_scale, sizeof w->adj_scale);
    }
    return n;
}

#else
typedef int hth_dn_other_version; // ISO C forbids an empty file
#endif
