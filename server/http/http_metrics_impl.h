// SPDX-License-Identifier: Apache-2.0
// server/http/http_metrics_impl.h - what the files that write /metrics share.
#ifndef HTH_SERVER_HTTP_HTTP_METRICS_IMPL_H
#define HTH_SERVER_HTTP_HTTP_METRICS_IMPL_H

#include "server/http/tensors/http_json.h"

#include <jansson.h>

// hth_metric_head begins a metric: its help and its type.
void hth_metric_head(hth_text *out, const char *name, const char *type, const char *help);
// hth_metric_real ends a line with a value, without an exponent, which not every reader takes.
void hth_metric_real(hth_text *out, double v);
// hth_metrics_shares writes the metrics of the answer to "shares": its "devices"; NULL: none.
void hth_metrics_shares(hth_text *out, const json_t *devices);

#endif
