// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/dnnl.h - oneDNN as the CPU's kernels see it: one operation as data, one primitive as
// an object.
//
// Design notes
// An operation is plain data here (hth_dn_op), in oneDNN's own enumerations. What calls oneDNN is
// in a plug-in (kernels/dnnl/, device/cpu/onednn.h), behind a table (hth_dn_calls): where it is
// absent, nothing can be opened, and the CPU has the kernels of our own. Scratchpads are always the
// caller's. A primitive belongs to the thread that runs it; its team must have the size that it had
// when the primitive was opened.
#ifndef HTH_KERNELS_CPU_DNNL_H
#define HTH_KERNELS_CPU_DNNL_H

#include "graph/tensor.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>

#define HTH_DN_MAX_DIMS   DNNL_MAX_NDIMS
#define HTH_DN_MAX_POST   8
#define HTH_DN_MAX_INPUTS 64 // of one concatenation
#define HTH_DN_FORM       96

// A memory descriptor as data. ndims 0: absent.
typedef struct hth_dn_md {
    int ndims;
    hth_dtype dtype;
    bool any;  // the implementation chooses (weights)
    int block; // 0: `strides`; 8 or 16: axis 1 in blocks, otherwise dense
    int64_t dims[HTH_DN_MAX_DIMS], strides[HTH_DN_MAX_DIMS];
} hth_dn_md;

// hth_dn_md_plain describes a dense row-major tensor, hth_dn_md_of a tensor in any of our layouts.
hth_dn_md hth_dn_md_plain(hth_dtype dt, int ndims, const int64_t *dims);
hth_dn_md hth_dn_md_of(hth_dtype dt, const hth_shape *shape, hth_layout layout);

typedef enum hth_dn_kind {
    HTH_DN_CONV,
    HTH_DN_CONV_BWD_DATA,    // dst: diff_src, src1: weights, src: diff_dst
    HTH_DN_CONV_BWD_WEIGHTS, // src, src1: diff_dst, dst: diff_weights, bias: diff_bias
    HTH_DN_DECONV,
    HTH_DN_POOL,
    HTH_DN_BINARY,
    HTH_DN_ELTWISE,
    HTH_DN_REORDER,
    HTH_DN_MATMUL,
    HTH_DN_INNER_PRODUCT,
    HTH_DN_CONCAT,
    HTH_DN_SOFTMAX,
    HTH_DN_LOG_SOFTMAX,
    HTH_DN_LRN,
    HTH_DN_RESAMPLE
} hth_dn_kind;

// One post op: dnnl_sum (alpha: scale), dnnl_eltwise (alg, alpha, beta) or dnnl_binary (alg, src1).
typedef struct hth_dn_post {
    dnnl_primitive_kind_t kind;
    dnnl_alg_kind_t alg;
    float alpha, beta;
    hth_dn_md src1;
} hth_dn_post;

typedef struct hth_dn_op {
    hth_dn_kind kind;
    dnnl_alg_kind_t alg;
    hth_dn_md src, src1, bias, dst; // src1: weights, or the second operand
    const hth_dn_md *srcs;          // concatenation: n_srcs of them
    int n_srcs;
    int axis;                                           // concatenation, softmax
    dnnl_dims_t strides, dilates, pad_l, pad_r, kernel; // dilates as oneDNN counts: 0 is dense
    float alpha, beta, k;                               // eltwise, LRN
    int64_t size;                                       // LRN
    int n_post;
    hth_dn_post post[HTH_DN_MAX_POST];
} hth_dn_op;

typedef struct hth_dn_prim hth_dn_prim;

// hth_dn_here says whether there is oneDNN in this process.
bool hth_dn_here(void);
// hth_dn_prim_open makes the `nth` implementation (0: oneDNN's first choice) of `op`. HTH_ENOENT:
// there are fewer; HTH_ENOTSUP: oneDNN cannot do this at all, or is not here.
hth_err hth_dn_prim_open(const hth_dn_op *op, int nth, hth_dn_prim **out);
// hth_dn_probe asks for the name and the scratchpad of the same implementation without generating
// its code.
#define HTH_DN_NAME 48
hth_err hth_dn_probe(const hth_dn_op *op, int nth, char name[HTH_DN_NAME], size_t *scratchpad);
void hth_dn_prim_close(hth_dn_prim *prim); // NULL is allowed
const char *hth_dn_prim_impl(const hth_dn_prim *prim);
size_t hth_dn_prim_scratchpad(const hth_dn_prim *prim);
// hth_dn_prim_bytes returns the bytes of argument `arg` (DNNL_ARG_*), 0 when the primitive has no
// such argument.
size_t hth_dn_prim_bytes(const hth_dn_prim *prim, int arg);
// hth_dn_prim_form writes a text that names the memory format of `arg`: equal text, equal bytes for
// equal content.
void hth_dn_prim_form(const hth_dn_prim *prim, int arg, char out[HTH_DN_FORM]);
// hth_dn_prim_pack reorders `src`, described by `md`, into the format of `arg`.
hth_err hth_dn_prim_pack(const hth_dn_prim *prim, int arg, const hth_dn_md *md, const void *src,
                         void *dst);
// hth_dn_prim_reorder opens the reorder that hth_dn_prim_pack does, for repeated use
// (DNNL_ARG_FROM, DNNL_ARG_TO).
hth_err hth_dn_prim_reorder(const hth_dn_prim *prim, int arg, const hth_dn_md *md,
                            hth_dn_prim **out);
// hth_dn_prim_unreorder opens the way back, from the format of `arg` to `md`.
hth_err hth_dn_prim_unreorder(const hth_dn_prim *prim, int arg, const hth_dn_md *md,
                              hth_dn_prim **out);
// hth_dn_prim_set says where an argument's bytes are; remembered until the next set.
hth_err hth_dn_prim_set(hth_dn_prim *prim, int arg, const void *data);
hth_err hth_dn_prim_run(hth_dn_prim *prim);

// What the plug-in provides to dnnl.c. `image` writes a digestible image of an argument's memory
// format, at most `cap` bytes, and returns how many; `reorder` is one from `md` to the format of
// `arg`, or `back`.
typedef struct hth_dn_calls {
    hth_err (*open)(const hth_dn_op *op, int nth, hth_dn_prim **out);
    hth_err (*probe)(const hth_dn_op *op, int nth, char name[HTH_DN_NAME], size_t *scratchpad);
    void (*close)(hth_dn_prim *prim);
    const char *(*impl)(const hth_dn_prim *prim);
    size_t (*scratchpad)(const hth_dn_prim *prim);
    size_t (*bytes)(const hth_dn_prim *prim, int arg);
    size_t (*image)(const hth_dn_prim *prim, int arg, uint8_t *out, size_t cap);
    hth_err (*reorder)(const hth_dn_prim *prim, int arg, const hth_dn_md *md, bool back,
                       hth_dn_prim **out);
    hth_err (*set)(hth_dn_prim *prim, int arg, const void *data);
    hth_err (*run)(hth_dn_prim *prim);
} hth_dn_calls;

#endif
