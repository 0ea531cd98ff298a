// SPDX-License-Identifier: Apache-2.0
// The client reads the model file twice: for its tensors' ids, and what the server lacks of them;
// it never holds one. A tensor that changes between its hash and its way to the server is refused
// there.
#include "client/content/hash.h"
#include "client/content/send.h"

#include "base/alloc.h"
#include "graph/onnx/onnx.h"

static hth_err import_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    return hth_onnx_tensor_read(ctx, i, at, dst, n);
}

static hth_err import_objects(const hth_onnx_file *file, hth_content_source *source)
{
    source->objects = hth_calloc((size_t)source->n, sizeof *source->objects);
    for (int i = 0; source->objects != NULL && i < source->n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(file, i);
        source->objects[i] = (hth_content_object){
            .name = t->name, .dtype = t->dtype, .shape = t->shape, .bytes = t->bytes};
    }
    return source->objects != NULL ? HTH_OK : hth_no_memory("an import");
}

hth_err hth_content_import(hearth *handle, const char *path, hth_content_version *version,
                           const hth_watch *watch, hearth_import_report *out)
{
    hth_onnx_file *file;
    HTH_TRY(hth_onnx_open(path, NULL, &file));
    hth_content_source source = {.n = hth_onnx_n_tensors(file), .read = import_read, .ctx = file};
    version->skeleton = hth_onnx_skeleton(file, &version->skeleton_bytes);
    hth_err err = import_objects(file, &source);
    if (err == HTH_OK) {
        err = hth_content_ids_begin(source.objects, source.n, import_read, file, &source.ids);
    }
    if (err == HTH_OK) {
        err = hth_content_send_version(handle, &source, version, watch, out);
    }
    hth_content_ids_end(source.ids);
    hth_free(source.objects);
    hth_onnx_close(file);
    return err;
}
