// SPDX-License-Identifier: Apache-2.0
// Descriptors the way of oneDNN 3: opaque memory descriptors that are created and destroyed,
// primitive descriptors made by one call per operation and stepped to the next implementation in
// place.
#include "kernels/dnnl/native.h"

#if DNNL_VERSION_MAJOR >= 3

#include <string.h>

typedef struct v3_mds {
    dnnl_memory_desc_t src, src1, bias, dst;
} v3_mds;

// An absent descriptor stays NULL, which oneDNN understands.
static dnnl_status_t v3_md(const hth_dn_md *m, dnnl_memory_desc_t *out)
{
    *out = NULL;
    if (m->ndims == 0) {
        return dnnl_success;
    }
    dnnl_data_type_t dt = hth_dn_dtype(m->dtype);
    if (m->any) {
        return dnnl_memory_desc_create_with_tag(out, m->ndims, m->dims, dt, dnnl_format_tag_any);
    }
    if (m->block != 0) {
        return dnnl_memory_desc_create_with_tag(out, m->ndims, m->dims, dt, hth_dn_block_tag(m));
    }
    return dnnl_memory_desc_create_with_strides(out, m->ndims, m->dims, dt, m->strides);
}

static void v3_md_close(dnnl_memory_desc_t m)
{
    if (m != NULL) {
        dnnl_memory_desc_destroy(m);
    }
}

static dnnl_status_t v3_pd(dnnl_engine_t e, const hth_dn_op *op, const v3_mds *m,
                           dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                           dnnl_primitive_desc_t *out)
{
    const dnnl_prop_kind_t fwd = dnnl_forward_inference;
    switch (op->kind) {
    case HTH_DN_CONV:
        return dnnl_convolution_forward_primitive_desc_create(
            out, e, fwd, op->alg, m->src, m->src1, m->bias, m->dst, op->strides, op->dilates,
            op->pad_l, op->pad_r, attr);
    case HTH_DN_CONV_BWD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(
            out, e, op->alg, m->dst, m->src1, m->src, op->strides, op->dilates, op->pad_l,
            op->pad_r, hint, attr);
    case HTH_DN_CONV_BWD_WEIGHTS:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            out, e, op->alg, m->src, m->dst, m->bias, m->src1, op->strides, op->dilates, op->pad_l,
            op->pad_r, hint, attr);
    case HTH_DN_DECONV:
        return dnnl_deconvolution_forward_primitive_desc_create(
            out, e, fwd, op->alg, m->src, m->src1, m->bias, m->dst, op->strides, op->dilates,
            op->pad_l, op->pad_r, attr);
    case HTH_DN_POOL:
        return dnnl_pooling_forward_primitive_desc_create(out, e, fwd, op->alg, m->src, m->dst,
                                                          op->strides, op->kernel, op->dilates,
                                                          op->pad_l, op->pad_r, attr);
    case HTH_DN_BINARY:
        return dnnl_binary_primitive_desc_create(out, e, op->alg, m->src, m->src1, m->dst, attr);
    case HTH_DN_ELTWISE:
        return dnnl_eltwise_forward_primitive_desc_create(out, e, fwd, op->alg, m->src, m->dst,
                                                          op->alpha, op->beta, attr);
    case HTH_DN_REORDER:
        return dnnl_reorder_primitive_desc_create(out, m->src, e, m->dst, e, attr);
    case HTH_DN_MATMUL:
        return dnnl_matmul_primitive_desc_create(out, e, m->src, m->src1, m->bias, m->dst, attr);
    case HTH_DN_INNER_PRODUCT:
        return dnnl_inner_product_forward_primitive_desc_create(out, e, fwd, m->src, m->src1,
                                                                m->bias, m->dst, attr);
    case HTH_DN_SOFTMAX:
        return dnnl_softmax_forward_primitive_desc_create(out, e, fwd, dnnl_softmax_accurate,
                                                          m->src, m->dst, op->axis, attr);
    case HTH_DN_LOG_SOFTMAX:
        return dnnl_softmax_forward_primitive_desc_create(out, e, fwd, dnnl_softmax_log, m->src,
                                                          m->dst, op->axis, attr);
    case HTH_DN_LRN:
        return dnnl_lrn_forward_primitive_desc_create(out, e, fwd, op->alg, m->src, m->dst,
                                                      op->size, op->alpha, op->beta, op->k, attr);
    case HTH_DN_RESAMPLE:
        return dnnl_resampling_forward_primitive_desc_create(out, e, fwd, op->alg, NULL, m->src,
                                                             m->dst, attr);
    default:
        return dnnl_unimplemented;
    }
}

static dnnl_status_t v3_concat(dnnl_engine_t e, const hth_dn_op *op, dnnl_primitive_attr_t attr,
                               dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t srcs[HTH_DN_MAX_INPUTS] = {NULL}, dst = NULL;
    if (op->n_srcs > HTH_DN_MAX_INPUTS) {
        return dnnl_unimplemented;
    }
    dnnl_status_t st = v3_md(&op->dst, &dst);
    for (int i = 0; i < op->n_srcs && st == dnnl_success; i++) {
        st = v3_md(&op->srcs[i], &srcs[i]);
    }
    if (st == dnnl_success) {
        st = dnnl_concat_primitive_desc_create(out, e, dst, op->n_srcs, op->axis,
                                               (const_dnnl_memory_desc_t const *)srcs, attr);
    }
    for (int i = 0; i < op->n_srcs; i++) {
        v3_md_close(srcs[i]);
    }
    v3_md_close(dst);
    return st;
}

// The training forward pass is the hint that backward descriptors ask for.
static dnnl_status_t v3_hint(dnnl_engine_t e, const hth_dn_op *op, const v3_mds *m,
                             dnnl_primitive_desc_t *out)
{
    bool data = op->kind == HTH_DN_CONV_BWD_DATA;
    if (!data && op->kind != HTH_DN_CONV_BWD_WEIGHTS) {
        return dnnl_success;
    }
    const_dnnl_memory_desc_t x = data ? m->dst : m->src;
    const_dnnl_memory_desc_t w = data ? m->src1 : m->dst;
    const_dnnl_memory_desc_t y = data ? m->src : m->src1;
    return dnnl_convolution_forward_primitive_desc_create(
        out, e, dnnl_forward_training, dnnl_convolution_direct, x, w, NULL, y, op->strides,
        op->dilates, op->pad_l, op->pad_r, NULL);
}

static dnnl_status_t v3_nth(dnnl_engine_t e, const hth_dn_op *op, const v3_mds *m,
                            dnnl_primitive_attr_t attr, int nth, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t st = v3_hint(e, op, m, &hint);
    if (st == dnnl_success) {
        st = v3_pd(e, op, m, attr, hint, out);
    }
    while (st == dnnl_success && nth-- > 0) {
        st = dnnl_primitive_desc_next_impl(*out);
        if (st != dnnl_success) {
            dnnl_primitive_desc_destroy(*out);
            *out = NULL;
        }
    }
    if (hint != NULL) {
        dnnl_primitive_desc_destroy(hint);
    }
    return st;
}

dnnl_status_t hth_dn_native_pd(dnnl_engine_t e, const hth_dn_op *op, dnnl_primitive_attr_t attr,
                               int nth, dnnl_primitive_desc_t *out)
{
    if (op->kind == HTH_DN_CONCAT) {
        return nth > 0 ? HTH_DN_ENDS : v3_concat(e, op, attr, out);
    }
    v3_mds m = {NULL, NULL, NULL, NULL};
    const hth_dn_md *from[] = {&op->src, &op->src1, &op->bias, &op->dst};
    dnnl_memory_desc_t *to[] = {&m.src, &m.src1, &m.bias, &m.dst};
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 4 && st == dnnl_success; i++) {
        st = v3_md(from[i], to[i]);
    }
    if (st == dnnl_success) {
        st = v3_nth(e, op, &m, attr, nth, out);
    }
    for (int i = 0; i < 4; i++) {
        v3_md_close(*to[i]);
    }
    return st;
}

dnnl_status_t hth_dn_native_reorder(dnnl_engine_t e, const hth_dn_md *md, hth_dn_native_md native,
                                    bool back, dnnl_primitive_attr_t attr,
                                    dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t m;
    dnnl_status_t st = v3_md(md, &m);
    if (st == dnnl_success) {
        st = back ? dnnl_reorder_primitive_desc_create(out, native, e, m, e, attr)
                  : dnnl_reorder_primitive_desc_create(out, m, e, native, e, attr);
    }
    v3_md_close(m);
    return st;
}

dnnl_status_t hth_dn_native_post(dnnl_post_ops_t ops, const hth_dn_post *post)
{
    if (post->kind == dnnl_sum) {
        return dnnl_post_ops_append_sum(ops, post->alpha, 0, dnnl_data_type_undef);
    }
    if (post->kind == dnnl_eltwise) {
        return dnnl_post_ops_append_eltwise(ops, post->alg, post->alpha, post->beta);
    }
    dnnl_memory_desc_t m;
    dnnl_status_t st = v3_md(&post->src1, &m);
    if (st == dnnl_success) {
        st = dnnl_post_ops_append_binary(ops, post->alg, m);
    }
    v3_md_close(m);
    return st;
}

size_t hth_dn_native_image(hth_dn_native_md md, uint8_t *out, size_t cap)
{
    size_t n = 0;
    if (dnnl_memory_desc_get_blob(NULL, &n, md) != dnnl_success || n > cap) {
        return 0;
    }
    return dnnl_memory_desc_get_blob(out, &n, md) == dnnl_success ? n : 0;
}

#else
typedef int hth_dn_other_version; // ISO C forbids an empty file
#endif
