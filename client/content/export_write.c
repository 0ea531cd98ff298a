// SPDX-License-Identifier: Apache-2.0
#include "client/content/export_write.h"

#include "base/alloc.h"
#include "client/safetensors.h"
#include "graph/onnx/onnx.h"

#include <string.h>

#define EXPORT_PIECE ((size_t)1 << 20)

static hth_err write_onnx(const hth_export_source *x)
{
    return hth_onnx_export_write(&(hth_onnx_export){.skeleton = x->skeleton,
                                                    .skeleton_bytes = x->skeleton_bytes,
                                                    .n_tensors = x->n,
                                                    .inference = x->trained,
                                                    .read = x->read,
                                                    .write = x->write,
                                                    .ctx = x->ctx});
}

static hth_err write_head(const hth_export_source *x)
{
    char *head = NULL;
    size_t bytes;
    hearth_tensor *t = hth_calloc((size_t)x->n, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("%d tensors", x->n);
    }
    for (int i = 0; i < x->n; i++) {
        const hth_content_object *from = &x->objects[i];
        t[i] = (hearth_tensor){.name = from->name,
                               .dtype = (hearth_dtype)from->dtype,
                               .rank = from->shape.rank,
                               .bytes = (size_t)from->bytes};
        memcpy(t[i].shape, from->shape.dim, sizeof t[i].shape);
    }
    hth_err err = hth_safetensors_head(t, x->n, &head, &bytes);
    if (err == HTH_OK) {
        err = x->write(x->ctx, head, bytes);
    }
    hth_free(head);
    hth_free(t);
    return err;
}

static hth_err write_tensor(const hth_export_source *x, int i, void *piece)
{
    uint64_t bytes = x->objects[i].bytes;
    for (uint64_t at = 0; at < bytes; at += EXPORT_PIECE) {
        size_t n = bytes - at < EXPORT_PIECE ? (size_t)(bytes - at) : EXPORT_PIECE;
        HTH_TRY(x->read(x->ctx, i, at, piece, n));
        HTH_TRY(x->write(x->ctx, piece, n));
    }
    return HTH_OK;
}

static hth_err write_safetensors(const hth_export_source *x)
{
    HTH_TRY(write_head(x));
    void *piece = hth_alloc(EXPORT_PIECE);
    hth_err err = piece != NULL ? HTH_OK : hth_no_memory("an export");
    for (int i = 0; i < x->n && err == HTH_OK; i++) {
        err = write_tensor(x, i, piece);
    }
    hth_free(piece);
    return err;
}

hth_err hth_export_write(const hth_export_source *source, hth_export_format format)
{
    return format == HTH_EXPORT_ONNX ? write_onnx(source) : write_safetensors(source);
}
