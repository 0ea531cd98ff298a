// SPDX-License-Identifier: Apache-2.0
// memmgr/plan_json.h - writing a JSON value to a file. Part of the plan files.
#ifndef HTH_MEMMGR_PLAN_JSON_H
#define HTH_MEMMGR_PLAN_JSON_H

#include "base/err.h"

#include <jansson.h>

// hth_plan_json_save writes `root` (NULL: it could not be made, HTH_ENOMEM) to `path` and drops the
// reference.
hth_err hth_plan_json_save(json_t *root, const char *path);

#endif
