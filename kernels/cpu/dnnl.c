// SPDX-License-Identifier: Apache-2.0
// Descriptions, and the way to the plug-in that has oneDNN.
#include "kernels/cpu/dnnl.h"

#include "base/alloc.h"
#include "base/id.h"
#include "device/cpu/onednn.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>

static const hth_dn_calls *calls(void)
{
    const hth_onednn *o = hth_onednn_get();
    return o == NULL ? NULL : o->calls;
}

bool hth_dn_here(void)
{
    return calls() != NULL;
}

hth_err hth_dn_prim_open(const hth_dn_op *op, int nth, hth_dn_prim **out)
{
    *out = NULL;
    return hth_dn_here() ? calls()->open(op, nth, out)
                         : hth_fail(HTH_ENOTSUP, "there is no oneDNN");
}

hth_err hth_dn_probe(const hth_dn_op *op, int nth, char name[HTH_DN_NAME], size_t *scratchpad)
{
    return hth_dn_here() ? calls()->probe(op, nth, name, scratchpad)
                         : hth_fail(HTH_ENOTSUP, "there is no oneDNN");
}

// A primitive exists only where there is a plug-in.

void hth_dn_prim_close(hth_dn_prim *prim)
{
    if (prim != NULL) {
        calls()->close(prim);
    }
}

const char *hth_dn_prim_impl(const hth_dn_prim *prim)
{
    return calls()->impl(prim);
}

size_t hth_dn_prim_scratchpad(const hth_dn_prim *prim)
{
    return calls()->scratchpad(prim);
}

size_t hth_dn_prim_bytes(const hth_dn_prim *prim, int arg)
{
    return calls()->bytes(prim, arg);
}

hth_err hth_dn_prim_reorder(const hth_dn_prim *prim, int arg, const hth_dn_md *md,
                            hth_dn_prim **out)
{
    return calls()->reorder(prim, arg, md, false, out);
}

hth_err hth_dn_prim_unreorder(const hth_dn_prim *prim, int arg, const hth_dn_md *md,
                              hth_dn_prim **out)
{
    return calls()->reorder(prim, arg, md, true, out);
}

hth_err hth_dn_prim_set(hth_dn_prim *prim, int arg, const void *data)
{
    return calls()->set(prim, arg, data);
}

hth_err hth_dn_prim_run(hth_dn_prim *prim)
{
    return calls()->run(prim);
}

void hth_dn_prim_form(const hth_dn_prim *prim, int arg, char out[HTH_DN_FORM])
{
    uint8_t image[4096];
    hth_chunk chunk = {image, calls()->image(prim, arg, image, sizeof image)};
    hth_id id = hth_id_of(&chunk, 1);
    char hex[HTH_ID_HEX];
    snprintf(out, HTH_DN_FORM, "dnnl:%.32s", hth_id_hex(&id, hex));
}

hth_err hth_dn_prim_pack(const hth_dn_prim *prim, int arg, const hth_dn_md *md, const void *src,
                         void *dst)
{
    hth_dn_prim *r;
    HTH_TRY(hth_dn_prim_reorder(prim, arg, md, &r));
    hth_err err = HTH_OK;
    void *scratch = NULL;
    if (hth_dn_prim_scratchpad(r) > 0) {
        scratch = hth_alloc_aligned(hth_dn_prim_scratchpad(r), 64);
        if (scratch == NULL) {
            err = hth_no_memory("reordering a constant");
            goto done;
        }
        HTH_GOTO(hth_dn_prim_set(r, DNNL_ARG_SCRATCHPAD, scratch), done);
    }
    HTH_GOTO(hth_dn_prim_set(r, DNNL_ARG_FROM, src), done);
    HTH_GOTO(hth_dn_prim_set(r, DNNL_ARG_TO, dst), done);
    err = hth_dn_prim_run(r);
done:
    hth_dn_prim_close(r);
    hth_free(scratch);
    return err;
}

hth_dn_md hth_dn_md_plain(hth_dtype dt, int ndims, const int64_t *dims)
{
    hth_dn_md md = {.ndims = ndims, .dtype = dt};
    int64_t stride = 1;
    for (int i = ndims - 1; i >= 0; i--) {
        md.dims[i] = dims[i];
        md.strides[i] = stride;
        stride *= dims[i];
    }
    return md;
}

hth_dn_md hth_dn_md_of(hth_dtype dt, const hth_shape *shape, hth_layout layout)
{
    hth_dn_md md = hth_dn_md_plain(dt, shape->rank, shape->dim);
    md.block = hth_layout_block(layout);
    if (layout == HTH_LAYOUT_NHWC) {
        int64_t stride = shape->dim[1];
        md.strides[1] = 1;
        for (int i = shape->rank - 1; i >= 2; i--) {
            md.strides[i] = stride;
            stride *= shape->dim[i];
        }
        md.strides[0] = stride;
    }
    return md;
}
