// SPDX-License-Identifier: Apache-2.0
// engine/query/query.h - questions to an engine that are answered by a JSON document. Engine's
// thread only.
#ifndef HTH_ENGINE_QUERY_QUERY_H
#define HTH_ENGINE_QUERY_QUERY_H

#include "runtime/model.h"

#include <jansson.h>

// hth_query_stats answers "stats", of one model or (NULL) of all. The caller owns *out.
hth_err hth_query_stats(hth_models *ms, const hth_model *only, json_t **out);
// hth_query_answer sets r->json for r->query ("devices", "stats", "model", "bench", "plan",
// "convsel").
hth_err hth_query_answer(hth_models *ms, hth_request *r);
// hth_query_at_once says that this changes, loads and computes nothing: the answer is there, also
// while something else is being loaded or compiled.
bool hth_query_at_once(hth_models *ms, const hth_request *r);

// hth_query_problem answers "plan" about a problem that is a file, which needs no engine.
hth_err hth_query_problem(json_t *args, json_t **out);

#endif
