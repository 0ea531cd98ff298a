// SPDX-License-Identifier: Apache-2.0
// server/http_infer.h - an inference request over HTTP: between http_request.c, which reads it, and
// http_infer.c, which has it run and answers.
#ifndef HTH_SERVER_HTTP_INFER_H
#define HTH_SERVER_HTTP_INFER_H

#include "server/http_call.h"
#include "server/http_json.h"

// Inputs, or outputs, of one request.
#define HTH_INFER_MAX_TENSORS 256

// An output that the request names.
typedef struct hth_infer_wanted {
    const char *name;
    bool binary;
} hth_infer_wanted;

// The outputs' names, shapes and bytes: one block, in which everything that they point to lies.
typedef struct hth_infer_result {
    int refs; // the call's, and one for each output that is being sent from here
    int n;
    hth_request_tensor t[];
} hth_infer_result;

typedef struct hth_infer_call {
    hth_http_call c;
    json_t *head;   // the request's JSON; names are borrowed from it
    const char *id; // ""
    hth_request_tensor *in;
    int n_in;
    char *data; // of all inputs
    hth_infer_wanted *wanted;
    int n_wanted;    // 0: every output
    bool all_binary; // for outputs that are not named
    hth_infer_result *result;
} hth_infer_call;

// hth_infer_read reads the request's body into `c`: id, inputs with their data, wanted outputs.
// On error the sentence says what is wrong, and the caller frees the call.
hth_err hth_infer_read(hth_infer_call *c);

#endif
