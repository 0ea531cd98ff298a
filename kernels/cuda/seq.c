// SPDX-License-Identifier: Apache-2.0
// Sequences of steps: adding, running, closing. Running copies a step's parameters to the stack,
// puts the addresses in, and launches on the stream that is being issued to.
#include "kernels/cuda/handles.h"

#include "base/alloc.h"

#include <string.h>

#define SEQ_THREADS    256
#define SEQ_WAVES      16u         // blocks per SM of a kernel whose threads loop
#define SEQ_MAX_BLOCKS 0x7fffffffu // the grid's limit

static hth_cuda_step *seq_add(hth_cuda_seq *seq)
{
    if (seq->err == HTH_OK && seq->n_steps == seq->cap) {
        int cap = seq->cap == 0 ? 4 : 2 * seq->cap;
        hth_cuda_step *grown = hth_calloc((size_t)cap, sizeof *grown);
        if (grown == NULL) {
            seq->err = hth_no_memory("preparing an operator");
            return NULL;
        }
        if (seq->n_steps > 0) {
            memcpy(grown, seq->steps, (size_t)seq->n_steps * sizeof *grown);
        }
        hth_free(seq->steps);
        seq->steps = grown;
        seq->cap = cap;
    }
    return seq->err == HTH_OK ? &seq->steps[seq->n_steps++] : NULL;
}

static void seq_close_params(hth_cuda_seq *seq, hth_cuda_step *step)
{
    hth_free(step->state);
}

void hth_cuda_launch_add(hth_cuda_seq *seq, hth_cuda_kernel_id id, uint64_t blocks,
                         unsigned threads, size_t shared_bytes, const void *params, size_t bytes)
{
    if (blocks > SEQ_MAX_BLOCKS && seq->err == HTH_OK) {
        seq->err = hth_fail(HTH_ENOTSUP, "a grid of %llu blocks", (unsigned long long)blocks);
    }
    hth_cuda_step *step = seq_add(seq);
    if (step == NULL) {
        return;
    }
    void *copy = hth_calloc(1, bytes);
    if (copy == NULL) {
        seq->err = hth_no_memory("preparing an operator");
    } else {
        memcpy(copy, params, bytes);
    }
    *step = (hth_cuda_step){.close = seq_close_params,
                            .state = copy,
                            .bytes = bytes,
                            .kernel = hth_cuda_site_of(seq->d)->kernel[id],
                            .blocks = (unsigned)blocks,
                            .threads = threads == 0 ? SEQ_THREADS : threads,
                            .shared_bytes = (unsigned)shared_bytes};
}

void hth_cuda_step_add(hth_cuda_seq *seq, hth_cuda_step step)
{
    hth_cuda_step *to = seq_add(seq);
    if (to != NULL) {
        *to = step;
    } else {
        step.close(seq, &step);
    }
}

void hth_cuda_bind(hth_cuda_seq *seq, size_t at, hth_cuda_from from, int index, size_t offset)
{
    if (seq->err == HTH_OK) {
        hth_cuda_step *step = &seq->steps[seq->n_steps - 1];
        step->bound[step->n_bound++] = (struct hth_cuda_bound){at, from, index, offset};
    }
}

size_t hth_cuda_workspace(hth_cuda_seq *seq, size_t bytes)
{
    size_t at = seq->base.workspace_bytes;
    seq->base.workspace_bytes +=
        (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return at;
}

uint64_t hth_cuda_blocks(const hth_cuda_seq *seq, uint64_t n, bool loops)
{
    uint64_t blocks = (n + SEQ_THREADS - 1) / SEQ_THREADS;
    uint64_t enough =
        (uint64_t)(seq->d->base.props.n_threads > 0 ? seq->d->base.props.n_threads : 1) * SEQ_WAVES;
    if (blocks == 0) {
        return 1;
    }
    return loops && blocks > enough ? enough : blocks;
}

unsigned hth_cuda_row_threads(uint64_t n)
{
    if (n >= SEQ_THREADS) {
        return SEQ_THREADS;
    }
    return n == 0 ? 32 : (unsigned)(n + 31) / 32 * 32;
}

static void *seq_address(const struct hth_cuda_bound *b, const hth_kernel_args *args)
{
    char *base = args->workspace;
    if (b->from == HTH_CUDA_IN) {
        base = (char *)args->in[b->index];
    } else if (b->from == HTH_CUDA_OUT) {
        base = args->out[b->index];
    }
    return base == NULL ? NULL : base + b->offset;
}

static hth_err seq_launch(const hth_cuda_seq *seq, const hth_cuda_step *step, void *const *address)
{
    union {
        char bytes[HTH_CUDA_PARAM_BYTES];
        double aligned;
    } params;
    void *list[] = {&params};
    memcpy(params.bytes, step->state, step->bytes);
    for (int i = 0; i < step->n_bound; i++) {
        memcpy(params.bytes + step->bound[i].at, &address[i], sizeof address[i]);
    }
    return HTH_CUDA(seq->d, cuLaunchKernel, step->kernel, step->blocks, 1, 1, step->threads, 1, 1,
                    step->shared_bytes, seq->d->current, list, NULL);
}

hth_err hth_cuda_seq_run(const hth_kernel *kernel, const hth_kernel_args *args)
{
    const hth_cuda_seq *s = (const hth_cuda_seq *)kernel;
    for (int i = 0; i < s->n_steps && !(s->view && args->in[0] == args->out[0]); i++) {
        const hth_cuda_step *step = &s->steps[i];
        void *address[HTH_CUDA_BOUND];
        for (int b = 0; b < step->n_bound; b++) {
            address[b] = seq_address(&step->bound[b], args);
        }
        HTH_TRY((step->run != NULL ? step->run : seq_launch)(s, step, address));
    }
    return HTH_OK;
}

void hth_cuda_seq_close(hth_kernel *kernel)
{
    hth_cuda_seq *s = (hth_cuda_seq *)kernel;
    for (int i = 0; i < s->n_steps; i++) {
        s->steps[i].close(s, &s->steps[i]);
    }
    hth_free(s->steps);
    hth_free(s);
}
