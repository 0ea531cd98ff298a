// SPDX-License-Identifier: Apache-2.0
// client/cli/infer/infer_classes.h - the outputs of `hearth infer` that are scores of classes:
// whose names are known, and which are best.
#ifndef HTH_CLIENT_CLI_INFER_INFER_CLASSES_H
#define HTH_CLIENT_CLI_INFER_INFER_CLASSES_H

#include "client/cli/infer/infer_inputs.h"
#include "client/data/names.h"

#include <stddef.h>

#define HTH_INFER_BEST 5

// hth_infer_best finds the largest of n values from element `from` on, in order; of equal ones the
// first, NaN never. Returns how many there are.
int hth_infer_best(const hearth_tensor *tensor, size_t from, size_t n, size_t best[HTH_INFER_BEST]);

// hth_infer_file_names reads --classes into a zeroed *out, which stays empty without that option.
// hth_infer_model_names reads the names that the metadata of a model's document has under names,
// class_names, classes, labels or id2label; empty: under none of them. The caller frees with
// hth_class_names_fini. An exit code; errors are printed.
int hth_infer_file_names(const hth_cli *cli, hth_class_names *out);
void hth_infer_model_names(const json_t *model, hth_class_names *out);

// hth_infer_scores tells whether a tensor may be scores of classes: floats [samples, classes], of
// `classes` classes, or where that is 0, of more than one.
bool hth_infer_scores(const hearth_tensor *tensor, int classes);
// hth_infer_ranking describes such scores: {"probabilities": "values" or "softmax", "samples":
// [{"sample": number or picture, "best": [{"index", "name", "value", "probability"}]}]}. Rows that
// are not negative and sum to 1 are probabilities, if all are; else their softmax is. Samples are
// called like the pictures of `in` where there is one for each. NULL: no memory.
json_t *hth_infer_ranking(const hearth_tensor *tensor, const hth_class_names *names,
                          const hth_infer_inputs *in);
void hth_infer_ranking_print(const json_t *classes);

#endif
