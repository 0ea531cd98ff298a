// SPDX-License-Identifier: Apache-2.0
// A model graph straight from a file, with its tensors in memory.
#include "graph/onnx/onnx.h"

#include "base/alloc.h"

static hth_err file_constants(const hth_onnx_file *file, hth_const **c, int n)
{
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(file, i);
        void *data = hth_alloc_aligned(t->bytes + 1, 64);
        if (data == NULL) {
            return hth_no_memory("tensor '%s'", t->name);
        }
        hth_err err = hth_onnx_tensor_read(file, i, 0, data, t->bytes);
        if (err == HTH_OK) {
            err = hth_const_adopt(t->dtype, &t->shape, data, NULL, &c[i]);
        }
        if (err != HTH_OK) {
            hth_free(data);
            return err;
        }
    }
    return HTH_OK;
}

static hth_err file_load(const hth_onnx_file *file, hth_graph **out)
{
    size_t bytes;
    int n = hth_onnx_n_tensors(file);
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    hth_const **c = hth_calloc((size_t)n, sizeof(hth_const *));
    if (c == NULL) {
        return hth_no_memory("the model's tensors");
    }
    hth_err err = file_constants(file, c, n);
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
    hth_onnx_file *f;
    *out = NULL;
    HTH_TRY(hth_onnx_open(path, NULL, &f));
    hth_err err = file_load(f, out);
    hth_onnx_close(f);
    return hth_err_prefix(err, "'%s'", path);
}
