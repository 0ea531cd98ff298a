// SPDX-License-Identifier: Apache-2.0
// client/query.h - queries as the client's own functions make them: JSON in, JSON out.
#ifndef HTH_CLIENT_QUERY_H
#define HTH_CLIENT_QUERY_H

#include "client/exchange.h"

#include <jansson.h>

// hth_query_document sends the query `what`, taking `args`, and reads the answer; *doc is the
// caller's, NULL on error.
hth_err hth_query_document(hearth *h, const char *what, json_t *args, json_t **doc);
// hth_query_count is a number of a document that cannot be below 0; 0: it is not there.
uint64_t hth_query_count(const json_t *doc, const char *key);

#endif
