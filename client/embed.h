// SPDX-License-Identifier: Apache-2.0
// client/embed.h - a whole server inside this process. Declared by the client, which needs it for
// "inproc://", and implemented by server/embed.c, so that the client includes nothing of the
// server.
#ifndef HTH_CLIENT_EMBED_H
#define HTH_CLIENT_EMBED_H

#include "base/err.h"
#include "client/hearth.h"

#include <stdbool.h>

typedef struct hth_embedded hth_embedded;

// hth_embed_open starts store, engine and dispatcher, listening on a url that no other has.
// options->device NULL: "cpu". On error *out is NULL and nothing is held.
hth_err hth_embed_open(const hearth_embed_options *options, hth_embedded **out);
const char *hth_embed_url(const hth_embedded *embedded); // valid until close
// hth_embed_close answers what was accepted. Requests that take longer than drain.seconds are
// canceled; if they do not end then either, their server is abandoned, not freed. NULL is allowed.
void hth_embed_close(hth_embedded *embedded);

// An inference, all of it borrowed until its answer. `place` is called once, when the outputs are
// known but for their data, and sets every out[i].data to memory that the results are written to;
// in any thread, which it must not keep waiting. An error of it is the answer.
typedef struct hth_embed_infer {
    const char *model, *token; // token NULL: none
    const hearth_tensor *inputs;
    int n_inputs;
    uint32_t priority;
    uint64_t timeout_us; // in the queue
    hth_err (*place)(void *ctx, const char *model, int version, hearth_tensor *out, int n);
    void *ctx;
} hth_embed_infer;
// hth_embed_infer_wait computes it, on the calling thread where it can be, without a copy of
// inputs or outputs, and returns when the answer is there. HTH_ETIMEDOUT: it took longer than
// `limit_ms`, and was canceled.
hth_err hth_embed_infer_wait(hth_embedded *embedded, const hth_embed_infer *infer,
                             uint64_t limit_ms);

// hth_embed_infer_start hands it to the engine. `done` is called once, on its thread, which
// it must not keep waiting; `infer` itself may go as soon as this returns, what it points to may
// not. HTH_EBUSY: the engine has as many requests as it takes; then done is not called.
typedef struct hth_embed_call hth_embed_call;
typedef void (*hth_embed_done)(void *ctx, hth_err err, const char *detail);
hth_err hth_embed_infer_start(hth_embedded *embedded, const hth_embed_infer *infer,
                              hth_embed_done done, hth_embed_call **out);
// hth_embed_infer_cancel has it end within one operator; done still comes. Before done has
// returned.
void hth_embed_infer_cancel(hth_embed_call *call);

// hth_embed_data answers "plan", or "curve", about a planning problem (the argument "problem" is
// its file), or about a training step of an ONNX file ("model" is its path) for the device of a
// profile. It needs neither store nor device, and blocks while it plans. On success *json is the
// caller's, freed by hth_free.
hth_err hth_embed_data(bool curve, const char *arguments, char **json);

#endif
