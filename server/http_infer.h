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
    hth_engine *engine; // its memory is from there
    hth_kept *kept;     // .. and the outputs' that the engine's process has kept; may be NULL
    int refs;           // the call's, and one for each output that is being sent from here
    int n;
    hth_request_tensor t[];
} hth_infer_result;

typedef struct hth_infer_call {
    hth_http_call c;
    json_t *head;   // the request's JSON, never changed; names are borrowed from it
    const char *id; // ""
    hth_request_tensor *in;
    int n_in;
    char *data;            // of all inputs that are not used where they came to
    hth_http_block *block; // where others came to; NULL: none did
    hth_shm_region **held;
    int n_held, cap_held;
    hth_infer_wanted *wanted;
    int n_wanted;              // 0: every output
    hth_request_tensor *known; // of them, those that go to shared memory
    bool all_binary;           // for outputs that are not named
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

// Where the inputs' bytes begin.
#define HTH_INFER_ALIGN 64u

static inline size_t hth_infer_aligned(size_t bytes)
{
    return (bytes + HTH_INFER_ALIGN - 1) / HTH_INFER_ALIGN * HTH_INFER_ALIGN;
}

// hth_infer_dtype_named is the type of that name; HTH_DT_NONE: there is none.
hth_dtype hth_infer_dtype_named(const char *name);
void hth_infer_clean_bools(const hth_tensor *t); // a client's truth values become 0 and 1
// hth_infer_read_parameters reads "parameters" of c->head.
hth_err hth_infer_read_parameters(hth_infer_call *c);

// hth_infer_is_raw tells whether the whole body is the model's only input, and makes it that:
// `model` is the engine's answer to "model".
bool hth_infer_is_raw(struct evhttp_request *req);
hth_err hth_infer_read_raw(hth_infer_call *c, const json_t *model);

// hth_infer_new makes a call that answers as infer does, or answers 503 and returns NULL.
hth_infer_call *hth_infer_new(hth_http *h, struct evhttp_request *req, const hth_http_args *a);
// hth_infer_name_trace says whose the trace is, and what the tensors hold if that is traced; in
// `finish`.
void hth_infer_name_trace(const hth_infer_call *c);
// hth_infer_start submits `c`; with an error it answers with that, and frees it.
void hth_infer_start(hth_infer_call *c, hth_err err);

// hth_infer_unanswered answers that there is no memory for the answer; over: that its text is more
// than limits.message_bytes.
void hth_infer_unanswered(const hth_http_call *call, bool over);

// hth_infer_who begins an answer: id, model, version; members may follow.
void hth_infer_who(const hth_infer_call *c, hth_text *out);

// hth_infer_read reads the request's body into `c`: id, inputs with their data, wanted outputs.
// On error the sentence says what is wrong, and the caller frees the call.
hth_err hth_infer_read(hth_infer_call *c);

#endif
