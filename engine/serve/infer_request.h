// SPDX-License-Identifier: Apache-2.0
// engine/serve/infer_request.h - an inference request that was accepted: its model held, its
// tensors bound and checked; what the batcher queues. Engine's thread only.
#ifndef HTH_ENGINE_SERVE_INFER_REQUEST_H
#define HTH_ENGINE_SERVE_INFER_REQUEST_H

#include "engine/serve/batcher.h"
#include "runtime/model.h"

typedef struct hth_infer_request {
    hth_batch_item item; // first
    hth_request *r;
    hth_model *model;    // held
    bool placed;         // its outputs have a place
    uint64_t host_bytes; // .. of which so many are counted (host.h)
    bool done;           // its result stands
    // of one that waits for memory (memory_wait.h): since and until when, the bytes for models that
    // it was refused for (0: they were not what it lacked), what it needs of what others hold
    uint64_t awaits_since_ns, awaits_until_ns, awaits_over, awaits_bytes;
    hth_tensor *probe;   // room for the inputs of a program of another batch
    hth_tensor inputs[]; // in the model's order
} hth_infer_request;

// hth_infer_request_open binds request's tensors to the inputs of `model`, which stays held until
// hth_infer_request_close. HTH_EINVAL: the sentence says which input and what was expected; the
// failure is counted.
hth_err hth_infer_request_open(hth_models *ms, hth_model *model, hth_request *request,
                               hth_infer_request **out);
void hth_infer_request_close(hth_models *ms, hth_infer_request *infer);

// hth_infer_request_key describes infer's inputs with `samples` samples, without data: good until
// the next call.
const hth_tensor *hth_infer_request_key(const hth_infer_request *infer, int64_t samples);
// hth_infer_request_alike says that the samples of two requests for one model have the same shapes.
bool hth_infer_request_alike(const hth_infer_request *left, const hth_infer_request *right);

// hth_infer_request_outputs makes the list of the request's outputs, by name; once.
hth_err hth_infer_request_outputs(hth_infer_request *infer);
// hth_infer_request_describe says what the model's output `at` is like (dtype, shape, bytes;
// tensor->data is not looked at), before its place is asked for. HTH_EINVAL: it has a place
// already, because the request had to wait for memory and is run again, and is another one now:
// somebody wrote into the inputs.
hth_err hth_infer_request_describe(hth_infer_request *infer, int at, const hth_tensor *tensor);
// hth_infer_request_place describes program's outputs, which are the outputs map[i] of the model
// (NULL: i), of `samples` samples (-1: of as many as program has), and asks the submitter for a
// place of all outputs. Once: a place stays. HTH_EINVAL: they are more than an answer may have;
// HTH_ETOOBIG: than the host's memory for requests; HTH_ENODEVMEM: not now.
hth_err hth_infer_request_place(hth_models *ms, hth_infer_request *infer,
                                const hth_program *program, const int *map, int64_t samples);
// hth_infer_request_result puts a result into the request, with the present detail if it is an
// error.
void hth_infer_request_result(hth_infer_request *infer, hth_err err);

// What a run took, from the end of the queue on.
typedef struct hth_infer_request_times {
    uint64_t start_ns, input_ns, infer_ns, output_ns; // when each was done
} hth_infer_request_times;

// hth_infer_request_count adds a request that is done to its model's counts; hth_infer_request_ran
// adds a run of `samples` samples for one or more of them.
void hth_infer_request_count(hth_models *ms, hth_model *model, const hth_request *request,
                             const hth_infer_request_times *times, hth_err err);
void hth_infer_request_ran(hth_model *model, int64_t samples, const hth_infer_request_times *times);

#endif
