// SPDX-License-Identifier: Apache-2.0
// runtime/catalog.h - what the server does with the store itself: import, export, remove, list. Any
// thread; they block.
#ifndef HTH_RUNTIME_CATALOG_H
#define HTH_RUNTIME_CATALOG_H

#include "graph/independence.h"
#include "graph/onnx/onnx.h"
#include "modelstore/store.h"
#include "runtime/tenants/owner.h"

// hth_catalog_import reads an ONNX file, checks that every operator in it can run, and only then
// puts it as a new version. max_batch is kept with it: the largest first dimension of a request, 0:
// requests never share a run; negative: not said. caller: whose it is (HTH_EDENIED: the name is
// another tenant's, or it has no room for it); NULL: nobody's.
hth_err hth_catalog_import(hth_store *store, const char *name, const char *path, int max_batch,
                           const hth_caller *caller, hth_progress_fn progress, void *ctx,
                           hth_put_result *out);
// A further check of a graph, and of what is proven of it, before it is stored.
typedef struct hth_catalog_check {
    hth_err (*accept)(void *ctx, const hth_graph *graph, const hth_independence *samples);
    void *ctx;
} hth_catalog_check;

// hth_catalog_check_graph loads the graph of a skeleton with constants that borrow the tensors'
// bytes, or read them: every operator known, every shape sound. `check` may be NULL.
hth_err hth_catalog_check_graph(const void *skeleton, size_t bytes, const hth_put_tensor *tensor,
                                int n, const hth_catalog_check *check);

// hth_catalog_import_bytes is an import of a file that is in memory, without external data. `check`
// may be NULL.
// hth_catalog_import_given is the same for descriptors that a client has passed, which stay the
// caller's (graph/onnx/onnx.h). HTH_EDENIED, HTH_EINVAL: one is of no file that can be read.
hth_err hth_catalog_import_given(hth_store *store, const char *name, const char *shown,
                                 const hth_onnx_given *given, int n, int max_batch,
                                 const hth_caller *caller, hth_progress_fn progress, void *ctx,
                                 hth_onnx_wanted *wanted, hth_put_result *out);
hth_err hth_catalog_import_bytes(hth_store *store, const char *name, const void *data, size_t bytes,
                                 int max_batch, const hth_caller *caller,
                                 const hth_catalog_check *check, hth_put_result *out);
// hth_catalog_rebatch makes a new version of `name` that differs from the latest in max_batch only
// (INT32_MAX: no limit); out->unchanged: it has that already, or that is not said.
hth_err hth_catalog_rebatch(hth_store *store, const char *name, int max_batch,
                            const hth_catalog_check *check, hth_put_result *out);
// hth_catalog_export writes a version ("name" or "name:version"): as an ONNX model (`path` ends in
// .onnx), as it is served, or its tensors as a safetensors file (.safetensors); `path` appears
// whole. fd >= 0: it is written to this descriptor, which a client has passed, and `path` is only
// its name. HTH_EDENIED, HTH_EINVAL: it is of no file that can be written. HTH_ETOOBIG: more than
// an ONNX file holds.
hth_err hth_catalog_export(hth_store *store, const char *model, const char *path, int fd,
                           hth_progress_fn progress, void *ctx);
hth_err hth_catalog_remove(hth_store *store, const char *model);
// hth_catalog_list stores
// {"models":[{"name","version","bytes","own_bytes","tensors","checkpoint","created_ns","owner"}],
// "aliases":[{"alias","model"}]}, freed by hth_free; "damaged": true, where something of it is
// known to be; "owner": "" of nobody's, null of what is another tenant's than the caller, whose
// checkpoints are left out.
hth_err hth_catalog_list(hth_store *store, const hth_caller *caller, char **json);
// hth_catalog_parse splits "name:version"; version 0 when none is given. A version is digits that
// do not begin with 0. HTH_EINVAL.
hth_err hth_catalog_parse(const char *model, char name[201], int *version);

// hth_catalog_resolve is the same, and resolves an alias.
hth_err hth_catalog_resolve(hth_store *store, const char *model, char name[201], int *version);
// hth_catalog_limits returns what may be imported and loaded, from the settings.
hth_onnx_limits hth_catalog_limits(void);

#endif
