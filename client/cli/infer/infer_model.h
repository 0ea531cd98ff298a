// SPDX-License-Identifier: Apache-2.0
// client/cli/infer/infer_model.h - what a model says of itself: its inputs and its metadata.
#ifndef HTH_CLIENT_CLI_INFER_INFER_MODEL_H
#define HTH_CLIENT_CLI_INFER_INFER_MODEL_H

#include "client/cli/cli.h"

#include <stddef.h>

// hth_infer_describe asks for a model's document, with its metadata; the caller frees it. An exit
// code; errors are not printed (hth_cli_error).
int hth_infer_describe(hth_cli *cli, const char *model, json_t **out);
// hth_infer_find finds an input in a model's document by its name; NULL: the only one. NULL: there
// is no such input, or which one is meant cannot be told. hth_infer_unknown prints that, with the
// nearest name or what there is, and returns HTH_CLI_ERROR.
const json_t *hth_infer_find(const json_t *model, const char *name);
int hth_infer_unknown(const json_t *model, const char *name);
// hth_infer_nearest is the name of a model's input that `name` may be a misspelling of; NULL: none.
const char *hth_infer_nearest(const json_t *model, const char *name);
// hth_infer_signature writes "'image' FP32 [-1,1,8,8]" of an input in a document.
const char *hth_infer_signature(const json_t *input, char *out, size_t cap);
// hth_infer_metadata is a text of a document's metadata, whose key is compared without case; NULL:
// there is none.
const char *hth_infer_metadata(const json_t *model, const char *key);

#endif
