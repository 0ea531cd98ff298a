// SPDX-License-Identifier: Apache-2.0
// runtime/precision.h - in what precision a model computes: what was set for it by name, which the
// store keeps, else the setting `precision`. A training job's is its own, part of its arguments.
#ifndef HTH_RUNTIME_PRECISION_H
#define HTH_RUNTIME_PRECISION_H

#include "graph/tensor.h"
#include "modelstore/store.h"

#include <jansson.h>

#define HTH_PRECISION_TEXT 16

// hth_precision_of is what holds for model `name` ("name" or "name:version").
hth_precision hth_precision_of(hth_store *store, const char *name);
// hth_precision_get is what was set for the name, "" where nothing was.
void hth_precision_get(hth_store *store, const char *name, char out[HTH_PRECISION_TEXT]);
// hth_precision_set sets it; "": as the setting says. HTH_EINVAL.
hth_err hth_precision_set(hth_store *store, const char *name, const char *text);
// hth_precision_fill gives `args` of a job, or of a question about a step of args.model, the
// model's precision unless they name one; fp32 is said by naming none.
void hth_precision_fill(hth_store *store, json_t *args);
// hth_precision_of_config finds a ModelConfig's {"parameters": {"precision": {"string_value"}}};
// NULL: it names none. HTH_EINVAL.
hth_err hth_precision_of_config(const json_t *config, const char **out);

#endif
