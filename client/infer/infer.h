// SPDX-License-Identifier: Apache-2.0
// client/infer/infer.h - what the ways to ask for an inference share: hearth_infer (infer.c),
// hearth_infer_into (infer_into.c), and outputs in DLPack's form (dlpack.c).
#ifndef HTH_CLIENT_INFER_INFER_H
#define HTH_CLIENT_INFER_INFER_H

#include "client/exchange.h"

#define HTH_INFER_ALIGN 64 // of outputs that an engine in this process writes

// hth_infer_aligned rounds bytes up to HTH_INFER_ALIGN.
static inline size_t hth_infer_aligned(size_t bytes)
{
    return (bytes + HTH_INFER_ALIGN - 1) / HTH_INFER_ALIGN * HTH_INFER_ALIGN;
}

// hth_infer_begin looks whether a request can be made over the connection; hth_infer_check at an
// input. HTH_EINVAL.
hth_err hth_infer_begin(const hearth *handle, const char *model, int n_inputs);
hth_err hth_infer_check(const hearth_tensor *input);
// What another thread sees of a request that a server computes, and does to it.
typedef struct hth_infer_watch {
    _Atomic uint64_t request; // its number, to be canceled by; 0: it was not sent yet
    atomic_bool canceled;     // .. and is not to be
} hth_infer_watch;
// hth_infer_sent asks a server, and waits. `watch` NULL: nobody does.
hth_err hth_infer_sent(hearth *handle, const char *model, const hearth_tensor *inputs, size_t n,
                       const hearth_infer_options *options, hth_infer_watch *watch,
                       hearth_tensor **outputs, int *n_outputs);

// hth_infer_place is the `place` of an hth_embed_infer, with an hth_infer_made, all zero, as its
// ctx: it makes the array that hearth_tensors_free frees.
typedef struct hth_infer_made {
    hearth_tensor *outputs; // NULL: none yet
    int n;
} hth_infer_made;
hth_err hth_infer_place(void *ctx, const char *model, int version, hearth_tensor *out, int n);
// An array of outputs is there until hearth_tensors_free, and until each that holds it has released
// it: any thread, also after the connection. hth_outputs_count is how many outputs it has.
int hth_outputs_count(const hearth_tensor *outputs);
void hth_outputs_hold(const hearth_tensor *outputs);
void hth_outputs_rele(const hearth_tensor *outputs);
// hth_infer_embedded has the connection's own engine compute, and waits (client/embed.h).
hth_err hth_infer_embedded(hearth *handle, const hth_embed_infer *infer);

#endif
