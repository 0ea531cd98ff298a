// SPDX-License-Identifier: Apache-2.0
// kernels/dnnl/native.h - what native_v2.c and native_v3.c provide to primitive.c.
//
// Design notes
// oneDNN 2 and 3 differ in how descriptors are made (by-value structs and iterators; opaque
// handles), not in what can be asked of a primitive once it exists. So two files turn an operation
// (hth_dn_op) into a primitive descriptor, and primitive.c is common.
#ifndef HTH_KERNELS_DNNL_NATIVE_H
#define HTH_KERNELS_DNNL_NATIVE_H

#include "kernels/cpu/dnnl.h"

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t hth_dn_native_md;
#define HTH_DN_ENDS dnnl_last_impl_reached
#else
typedef const dnnl_memory_desc_t *hth_dn_native_md;
#define HTH_DN_ENDS dnnl_iterator_ends
#endif

// Maps of our terms to oneDNN's.
dnnl_data_type_t hth_dn_dtype(hth_dtype dt);
dnnl_format_tag_t hth_dn_block_tag(const hth_dn_md *m);
// hth_dn_native_pd makes the descriptor of the nth implementation; `attr` carries scratchpad mode
// and post ops. HTH_DN_ENDS: there are fewer.
dnnl_status_t hth_dn_native_pd(dnnl_engine_t e, const hth_dn_op *op, dnnl_primitive_attr_t attr,
                               int nth, dnnl_primitive_desc_t *out);
// hth_dn_native_reorder describes a reorder from `md` to `native`, or `back`.
dnnl_status_t hth_dn_native_reorder(dnnl_engine_t e, const hth_dn_md *md, hth_dn_native_md native,
                                    bool back, dnnl_primitive_attr_t attr,
                                    dnnl_primitive_desc_t *out);
dnnl_status_t hth_dn_native_post(dnnl_post_ops_t ops, const hth_dn_post *post);
// hth_dn_native_image returns a digestible image of a descriptor: at most `cap` bytes.
size_t hth_dn_native_image(hth_dn_native_md md, uint8_t *out, size_t cap);

#endif
