// SPDX-License-Identifier: Apache-2.0
// A model graph straight from a file. A constant borrows the mapping where its bytes happen to be
// aligned (external data mostly is); protobuf aligns nothing, so what lies inside the .onnx file is
// copied.
#include "graph/onnx.h"

#include "base/alloc.h"

#include <string.h>

#define FILE_ALIGNMENT 64 // what kernels may rely on

typedef struct file_owner { // keeps the file open while constants borrow from it
    atomic_int refs;
    hth_onnx_file *file;
} file_owner;

static void file_rele(file_owner *o)
{
    if (atomic_fetch_sub(&o->refs, 1) == 1) {
        hth_onnx_close(o->file);
        hth_free(o);
    }
}

static void file_release(hth_const *c)
{
    file_rele(c->owner);
}

static hth_err file_borrow(file_owner *o, const hth_onnx_tensor *t, hth_const **out)
{
    hth_const *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a constant");
    }
    atomic_init(&c->refs, 1);
    c->id = hth_content_id(t->dtype, &t->shape, t->data, t->bytes);
    c->dtype = t->dtype;
    c->shape = t->shape;
    c->bytes = t->bytes;
    c->data = t->data;
    c->release = file_release;
    c->owner = o;
    atomic_fetch_add(&o->refs, 1);
    *out = c;
    return HTH_OK;
}

static hth_err file_constants(file_owner *o, hth_const **c, int n)
{
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(o->file, i);
        bool aligned = t->bytes > 0 && (uintptr_t)t->data % FILE_ALIGNMENT == 0;
        HTH_TRY(aligned ? file_borrow(o, t, &c[i])
                        : hth_const_new(t->dtype, &t->shape, t->data, &c[i]));
    }
    return HTH_OK;
}

static hth_err file_load(file_owner *o, hth_graph **out)
{
    size_t bytes;
    int n = hth_onnx_n_tensors(o->file);
    const void *skeleton = hth_onnx_skeleton(o->file, &bytes);
    hth_const **c = hth_calloc((size_t)n, sizeof(hth_const *));
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for the model's tensors");
    }
    hth_err err = file_constants(o, c, n);
    if (err == HTH_OK) {
        err = hth_onnx_load(skeleton, bytes, c, n, NULL, out);
    }
    for (int i = 0; i < n; i++) {
        hth_const_rele(c[i]);
    }
    hth_free(c);
    return err;
}

hth_err hth_onnx_load_file(const char *path, hth_graph **out)
{
    *out = NULL;
    file_owner *o = hth_calloc(1, sizeof *o);
    if (o == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to open '%s'", path);
    }
    atomic_init(&o->refs, 1);
    hth_err err = hth_onnx_open(path, NULL, &o->file);
    if (err == HTH_OK) {
        err = file_load(o, out);
        if (err != HTH_OK) {
            hth_err_prefix(err, "'%s'", path);
        }
    }
    file_rele(o);
    return err;
}
