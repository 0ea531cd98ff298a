// SPDX-License-Identifier: Apache-2.0
// runtime/content/verify.h - the question "verify": whether what is stored is what was.
#ifndef HTH_RUNTIME_CONTENT_VERIFY_H
#define HTH_RUNTIME_CONTENT_VERIFY_H

#include "modelstore/store.h"

// hth_verify_answer reads all that is stored, or the versions of the argument "model" ("name" or
// "name:version"), and stores an hth_alloc'd {"versions", "tensors", "bytes", "damages", "damaged":
// [{"model", "version", "tensor", "file", "why"}]}: `damages` of them, of which the first thousand
// are listed; "" and 0 where it is the index. `progress` gets bytes, and cancels. Blocks as long as
// the disk takes. HTH_ENOENT, HTH_EINVAL: the model; HTH_ECANCELED.
hth_err hth_verify_answer(hth_store *store, const char *arguments, hth_progress_fn progress,
                          void *ctx, char **json);

#endif
