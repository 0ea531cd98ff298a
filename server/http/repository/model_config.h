// SPDX-License-Identifier: Apache-2.0
// server/http/repository/model_config.h - what a client says about a model that it loads: a
// ModelConfig of the Open Inference Protocol, as JSON.
#ifndef HTH_SERVER_HTTP_REPOSITORY_MODEL_CONFIG_H
#define HTH_SERVER_HTTP_REPOSITORY_MODEL_CONFIG_H

#include "graph/independence.h"

#include <jansson.h>

typedef struct hth_model_config {
    json_t *doc;
    int max_batch;         // -1: not said; INT32_MAX: no limit
    const char *precision; // "": as the server's setting says; NULL: not said. Part of doc
    json_t *batching;      // as hth_batching_change takes it; NULL: not said
} hth_model_config;

// hth_model_config_read reads a configuration for model `name`. Fields that have no effect here are
// accepted; HTH_EINVAL: a field does not exist or is not well-formed; HTH_ENOTSUP: it asks for what
// is not done here. On success hth_model_config_fini frees *out.
hth_err hth_model_config_read(const char *text, const char *name, hth_model_config *out);
void hth_model_config_fini(hth_model_config *config);
// hth_model_config_accept checks that the inputs and outputs that `config` (an hth_model_config)
// names are the graph's, and that its samples are proven independent if `config` says that there is
// a batch. HTH_EINVAL.
hth_err hth_model_config_accept(void *config, const hth_graph *graph,
                                const hth_independence *samples);

#endif
