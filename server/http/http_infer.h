// SPDX-License-Identifier: Apache-2.0
// server/http/http_infer.h - an inference request over HTTP: between http_request.c and
// http_generate.c, which read it, http_infer.c, which has it run, and http_answer.c.
#ifndef HTH_SERVER_HTTP_HTTP_INFER_H
#define HTH_SERVER_HTTP_HTTP_INFER_H

#include "server/http/http_call.h"
#include "server/http/tensors/http_json.h"

// Inputs, or outputs, of one request.
#define HTH_INFER_MAX_TENSORS 256

// An output that the request names.
typedef struct hth_infer_wanted {
    const char *name;
    bool binary;
    int64_t classes; // 0: the tensor itself
    char *at;        // in shared memory; NULL: in the answer
    uint64_t capacity;
} hth_infer_wanted;

// The outputs' names, shapes and bytes: one block, in which everything that they point to lies.
typedef struct hth_infer_result {
    hth_engine *engine;     // its memory is from there
    hth_retained *retained; // .. and the outputs' that the engine's process has kept; may be NULL
    int refs;               // the call's, and one for each output that is being sent from here
    int n;
    hth_request_tensor t[];
} hth_infer_result;

typedef struct hth_infer_answer hth_infer_answer;

typedef struct hth_infer_call {
    hth_http_call c;
    // what is read: a reader may be on another thread, and has nothing else of the connection
    struct evbuffer *body, *taken; // the request's, or `taken` from it
    size_t head_bytes;             // of it, the JSON in front
    hth_http_block *arrived;       // where all of it lies; NULL: in pieces
    bool near;                     // shared memory may be named
    hth_err (*read)(struct hth_infer_call *call);
    json_t *model;        // the engine's answer to "model", where that is needed; may be NULL
    hth_json_span *spans; // of generate
    bool flat, stream;    // it is answered as generate does; .. as an event
    uint64_t counted;     // memory that is held for its inputs (account.h)
    uint64_t placed;      // .. and for its outputs, until its answer goes
    json_t *head;         // the request's JSON, never changed; names are borrowed from it
    const char *id;       // ""
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
    hth_infer_answer *answer;
} hth_infer_call;

// The most classes of a row that may be asked for.
#define HTH_INFER_MAX_CLASSES 1000000

// hth_infer_classes is the shape of the `count` largest values of each row of `tensor` (of all,
// when `batched` is false).
hth_shape hth_infer_classes(const hth_tensor *tensor, bool batched, int64_t count);
// hth_infer_classes_most is how much memory they may take to write.
uint64_t hth_infer_classes_most(const hth_tensor *tensor, const hth_shape *classes);
// hth_infer_classify ranks `classes` values of `tensor` and writes them to `out` as strings: bytes
// with their lengths in front where `binary`, else a JSON array. It ends early where `out` fails,
// and fails where that is canceled.
void hth_infer_classify(const hth_tensor *tensor, const hth_shape *classes, bool binary,
                        hth_text *out);

// Where the inputs' bytes begin.
#define HTH_INFER_ALIGN 64u

static inline size_t hth_infer_aligned(size_t bytes)
{
    return (bytes + HTH_INFER_ALIGN - 1) / HTH_INFER_ALIGN * HTH_INFER_ALIGN;
}

// hth_infer_dtype_named is the type of that name; HTH_DT_NONE: there is none.
hth_dtype hth_infer_dtype_named(const char *name);
void hth_infer_clean_bools(const hth_tensor *tensor); // a client's truth values become 0 and 1
// hth_infer_read_parameters reads "parameters" of call->head.
hth_err hth_infer_read_parameters(hth_infer_call *call);

// hth_infer_is_raw tells whether the whole body is the model's only input. hth_infer_read_raw makes
// it that: c->model is the engine's answer to "model".
bool hth_infer_is_raw(hth_http_req *req);
hth_err hth_infer_read_raw(hth_infer_call *call);

// hth_infer_new makes a call that answers as infer does, or answers 503 and returns NULL.
hth_infer_call *hth_infer_new(hth_http *http, hth_http_req *req, const hth_http_args *args);
// hth_infer_name_trace says whose the trace is, and what the tensors hold if that is traced; in
// `finish`.
void hth_infer_name_trace(const hth_infer_call *call);
// hth_infer_start has `read` read the request into `c`, at once or, where it has long text or much
// to copy, on another thread, and the engine run it; with an error it is answered with that. `read`
// may use what is in `c`, and of `c->c.h` what is for any thread. The call is taken over.
void hth_infer_start(hth_infer_call *call, size_t text_bytes,
                     hth_err (*read)(hth_infer_call *call));

// hth_infer_who begins an answer: id, model, version; members may follow.
void hth_infer_who(const hth_infer_call *call, hth_text *out);
// hth_infer_write_flat writes an answer as generate has it.
void hth_infer_write_flat(const hth_infer_call *call, hth_text *out);
// hth_infer_reply answers with call->result, at once or from another thread; in the call's
// `finish`.
void hth_infer_reply(hth_infer_call *call);
void hth_infer_answer_free(hth_infer_answer *held);   // NULL is allowed
void hth_infer_result_rele(hth_infer_result *result); // NULL is allowed
// hth_infer_output finds an output of a result that has it.
const hth_request_tensor *hth_infer_output(const hth_infer_result *result, const char *name);

// hth_infer_head stores how long the JSON in front of the body is. HTH_EINVAL.
hth_err hth_infer_head(hth_infer_call *call);
// hth_infer_read reads the request's body into `call`: id, inputs with their data, wanted outputs.
// On error the sentence says what is wrong, and the caller frees the call.
hth_err hth_infer_read(hth_infer_call *call);
// hth_infer_count counts memory that the inputs take besides their text, until they are freed.
// HTH_EBUSY.
hth_err hth_infer_count(hth_infer_call *call, uint64_t bytes);
// hth_infer_uncount_outputs gives back what the outputs count: their answer goes, or none does.
void hth_infer_uncount_outputs(hth_infer_call *call);

#endif
