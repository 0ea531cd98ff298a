// SPDX-License-Identifier: Apache-2.0
// fair/fair_file.h - a problem of shares as text, and its answer, both JSON.
#ifndef HTH_FAIR_FAIR_FILE_H
#define HTH_FAIR_FAIR_FILE_H

#include "fair/fair.h"

#include <jansson.h>
#include <stddef.h>

// hth_fair_problem_read reads
//   {"capacity": {"cpu": 9, "memory": 18}, "tenants": [{"name": "A", "weight": 1, "tasks": null,
//    "demand": {"cpu": 1, "memory": 4}}]}
// Without a weight it is 1, without tasks as many as fit (null); a demand is an object, or a list
// of objects from best to least; of a resource that it does not name it needs 0. Unknown keys are
// errors. Amounts of up to nine decimals are made whole numbers (scale). The caller owns *out until
// hth_fair_problem_fini; HTH_EINVAL names what is wrong, with the numbers, and *out is empty.
hth_err hth_fair_problem_read(const char *text, size_t n, hth_fair_problem *out);
// hth_fair_shares_json is {"tenants": [{"name", "tasks", "used": {..}, "dominant_share"}], "left":
// {..}}, in the problem's units. NULL: no memory. The caller owns it.
json_t *hth_fair_shares_json(const hth_fair_problem *problem, const hth_fair_shares *shares);
// hth_fair_amount_json is an amount of resource r as its user measures it: a whole number where it
// is one.
json_t *hth_fair_amount_json(const hth_fair_problem *problem, int r, double amount);

#endif
