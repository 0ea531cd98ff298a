// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/seq.h - a kernel that is a short sequence of oneDNN primitives: what most kernels of
// the CPU are.
//
// Design notes
// The builder collects steps; each argument of a step is bound to an input, an output, or a place
// in the workspace. All steps share one scratchpad after the places that were reserved. A constant
// that a primitive wants in a form of its own becomes a packing; a tensor that is not constant is
// reordered by a step before, on every run.
#ifndef HTH_KERNELS_CPU_SEQ_H
#define HTH_KERNELS_CPU_SEQ_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"

typedef enum hth_seq_from { HTH_SEQ_IN, HTH_SEQ_OUT, HTH_SEQ_WORKSPACE } hth_seq_from;

typedef struct hth_seq_ref {
    hth_seq_from from;
    size_t at; // input, output, or byte offset
} hth_seq_ref;

// Filters [groups*out, in, taps] of groups too narrow for a block of channels are made wider:
// `merge` neighbouring groups become one, whose filter is zero where an input belongs to another
// group. merge 0 or 1: as they are.
typedef struct hth_seq_widen {
    int64_t groups, merge, out, in, taps;
} hth_seq_widen;

typedef struct hth_seq hth_seq;

// hth_seq_open starts a sequence; hth_seq_abort drops an unfinished one (NULL is allowed).
hth_err hth_seq_open(hth_device *device, hth_seq **out);
void hth_seq_abort(hth_seq *seq);
// hth_seq_add appends a step and takes `prim` over, also on error. hth_seq_bind binds an argument
// of the last step; an argument that the primitive does not have is ignored.
hth_err hth_seq_add(hth_seq *seq, hth_dn_prim *prim);
hth_err hth_seq_bind(hth_seq *seq, int arg, hth_seq_from from, size_t at);
// hth_seq_split says that the steps run `n` times, for one chunk of the batch after the other;
// hth_seq_step, that the last bind's place moves by `bytes` from chunk to chunk; hth_seq_only, that
// the last step runs for some of the chunks.
typedef enum hth_seq_when {
    HTH_SEQ_ALWAYS,
    HTH_SEQ_FIRST,
    HTH_SEQ_BUT_FIRST,
    HTH_SEQ_LAST
} hth_seq_when;
void hth_seq_split(hth_seq *seq, int n);
void hth_seq_step(hth_seq *seq, size_t bytes);
void hth_seq_only(hth_seq *seq, hth_seq_when when);
// hth_seq_last_bytes returns the bytes of an argument of the last step.
size_t hth_seq_last_bytes(const hth_seq *seq, int arg);
// hth_seq_reserve takes `bytes` of the workspace and returns their offset.
size_t hth_seq_reserve(hth_seq *seq, size_t bytes);
// hth_seq_weights arranges that argument `arg` of `prim` (not yet added) can be read in prim's
// form: *out is what to bind. `md` describes input number `input` as the node has it.
hth_err hth_seq_weights(hth_seq *seq, const hth_dn_prim *prim, int arg, const hth_value *value,
                        int input, const hth_dn_md *md, const hth_seq_widen *widen,
                        hth_seq_ref *out);
// hth_seq_accumulate says that the steps add to output 0, which starts as input `input`: they may
// share a buffer; otherwise `bytes` are copied first.
void hth_seq_accumulate(hth_seq *seq, int input, size_t bytes);
// hth_seq_clear says that the steps leave something in the padding of the blocked output 0: zero it
// at the end.
void hth_seq_clear(hth_seq *seq, const hth_shape *shape, hth_layout layout);
// hth_seq_mask says that of output 0, a tensor of `bytes`, only what stands where input `input`
// lies between low and high stays (a ReluGrad after); done chunk by chunk.
void hth_seq_mask(hth_seq *seq, int input, size_t bytes, float low, float high);
// hth_seq_finish turns the sequence into the kernel; on error the sequence is gone. `name` NULL:
// the name of the first step's implementation.
hth_err hth_seq_finish(hth_seq *seq, const char *name, hth_kernel **out);

#endif
