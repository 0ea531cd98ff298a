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
    int64_t classes; // 0: the tensor itself
    char *at;        // in shared memory; NULL: in the answer
    uint64_t room;
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
    char *data; // of all inputs that are not used where a client put them
    hth_shm_region **held;
    int n_held, cap_held;
    hth_infer_wanted *wanted;
    int n_wanted;    // 0: every output
    bool all_binary; // for outputs that are not named
    hth_infer_result *result;
} hth_infer_call;

// The largest values of an output: strings, as a JSON array and as BYTES.
typedef struct hth_infer_classes {
    hth_shape shape;
    hth_text json, binary;
} hth_infer_classes;

// The most that may be asked for.
#define HTH_INFER_MAX_CLASSES 1000000

// hth_infer_classify ranks the `n` largest values of each row of `t` (of all, when `batched` is
// false). On success hth_infer_classes_fini frees *out.
hth_err hth_infer_classify(const hth_tensor *t, bool batched, int64_t n, hth_infer_classes *out);
void hth_infer_classes_fini(hth_infer_classes *c);

// hth_infer_is_raw tells whether the whole body is the model's only input, and makes it that:
// `model` is the engine's answer to "model".
bool hth_infer_is_raw(struct evhttp_request *req);
hth_err hth_infer_read_raw(hth_infer_call *c, const json_t *model);

// hth_infer_read reads the request's body into `c`: id, inputs with their data, wanted outputs.
// On error the sentence says what is wrong, and the caller frees the call.
hth_err hth_infer_read(hth_infer_call *c);

#endif
