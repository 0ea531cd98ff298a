// SPDX-License-Identifier: Apache-2.0
// server/query.h - questions to an engine that are answered by a JSON document. Engine's thread
// only.
#ifndef HTH_SERVER_QUERY_H
#define HTH_SERVER_QUERY_H

#include "server/model.h"

// hth_query_answer sets r->json for r->query ("devices", "stats", "model", "bench", "plan",
// "convsel").
hth_err hth_query_answer(hth_models *ms, hth_request *r);

#endif
