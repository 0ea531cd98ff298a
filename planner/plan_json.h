// SPDX-License-Identifier: Apache-2.0
// planner/plan_json.h - problems, plans and timelines as JSON values, and these as files.
#ifndef HTH_PLANNER_PLAN_JSON_H
#define HTH_PLANNER_PLAN_JSON_H

#include "planner/plan.h"

#include <jansson.h>

// hth_plan_json is a plan with its problem, format "hearth-plan-1"; hth_plan_trace_json the
// timeline (hth_plan_write_trace). NULL: no memory. The caller owns it.
json_t *hth_plan_json(const hth_problem *problem, const hth_plan *plan);
json_t *hth_plan_trace_json(const hth_problem *problem, const hth_plan *plan,
                            const double (*measured_us)[2]);
// hth_problem_from_json reads a problem, or that of a plan. On an error *out is empty. HTH_EINVAL
// names what is wrong, HTH_ENOTSUP: another format.
hth_err hth_problem_from_json(const json_t *root, hth_problem *out);

// hth_plan_json_save writes `root` (NULL: it could not be made, HTH_ENOMEM) to `path` and drops the
// reference.
hth_err hth_plan_json_save(json_t *root, const char *path);

#endif
