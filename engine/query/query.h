// SPDX-License-Identifier: Apache-2.0
// engine/query/query.h - commands that are answered by a JSON document about models, devices and
// tenants (HTH_COMMANDS_QUERY). Engine's thread only.
#ifndef HTH_ENGINE_QUERY_QUERY_H
#define HTH_ENGINE_QUERY_QUERY_H

#include "runtime/model.h"

#include <jansson.h>

// hth_query_stats answers "stats", of one model or (NULL) of all, to who asks. The caller owns
// *out.
hth_err hth_query_stats(hth_models *ms, const hth_model *only, const hth_request *asks,
                        json_t **out);
// hth_query_answer sets request->json, the answer to request->command, which is one of
// HTH_COMMANDS_QUERY.
hth_err hth_query_answer(hth_models *ms, hth_request *request);
// hth_query_at_once tells whether a command (of any section) changes, loads and computes nothing:
// its answer is there even while something else is being loaded or compiled.
bool hth_query_at_once(hth_models *ms, const hth_request *request);

// hth_query_data answers HTH_COMMAND_PLAN or HTH_COMMAND_CURVE about what is data alone: the
// argument "problem", or a step of training of the ONNX file that "model" names, for the device of
// "profile". It needs no engine. Any thread.
hth_err hth_query_data(hth_command_id command, json_t *args, json_t **out);

#endif
