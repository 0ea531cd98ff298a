// SPDX-License-Identifier: Apache-2.0
// Running walks fixed arrays: set the addresses that changed, execute. oneDNN itself may take a few
// bytes from the heap per execution; nothing here does.
#include "kernels/cpu/seq.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/blocked.h"
#include "kernels/cpu/train/train.h"

#include <stdio.h>
#include <string.h>

typedef struct seq_bind {
    int step, arg;
    hth_seq_ref ref;
    size_t chunk; // bytes from one chunk of the batch to the next
} seq_bind;

typedef struct seq_step {
    hth_dn_prim *prim;
    hth_seq_when when;
} seq_step;

typedef struct seq_packing {
    int arg;
    hth_dn_md md;
    hth_seq_widen widen;
    const hth_dn_prim *prim;
} seq_packing;

struct hth_seq {
    hth_kernel base;
    int n_threads, split;
    int n_steps, cap_steps, n_binds, cap_binds, cap_packings, cap_sources;
    seq_step *steps;
    seq_bind *binds;
    seq_packing *sources; // parallel to base.packings
    size_t reserved, scratchpad;
    int accumulate;
    size_t accumulate_bytes;
    hth_rows clear; // b <= 1: nothing
    int mask;       // input; -1: none
    size_t mask_floats;
    float low, high;
    char name[HTH_DN_NAME];
};

static void seq_close(hth_kernel *base)
{
    hth_seq *s = (hth_seq *)base;
    for (int i = 0; i < s->n_steps; i++) {
        hth_dn_prim_close(s->steps[i].prim);
    }
    hth_free(s->steps);
    hth_free(s->binds);
    hth_free(s->sources);
    hth_free(s->base.packings);
    hth_free(s);
}

typedef struct seq_copy {
    char *dst;
    const char *src;
    size_t bytes;
} seq_copy;

static void seq_copy_part(void *arg, int i, int n)
{
    const seq_copy *c = arg;
    size_t begin, end;
    hth_team_range(c->bytes, i, n, &begin, &end);
    memcpy(c->dst + begin, c->src + begin, end - begin);
}

typedef struct seq_padding {
    const hth_rows *rows;
    float *y;
} seq_padding;

static void seq_clear_part(void *arg, int i, int n)
{
    const seq_padding *p = arg;
    size_t begin, end, row = p->rows->s * p->rows->b, last = p->rows->blocks - 1;
    hth_team_range(p->rows->n, i, n, &begin, &end);
    for (size_t k = begin; k < end; k++) {
        hth_rows_clear(p->rows, last, p->y + (k * p->rows->blocks + last) * row);
    }
}

static void *seq_resolve(const hth_kernel_args *args, hth_seq_ref ref)
{
    if (ref.from == HTH_SEQ_IN) {
        return args->in[ref.at];
    }
    return ref.from == HTH_SEQ_OUT ? args->out[ref.at] : (char *)args->workspace + ref.at;
}

static bool seq_runs(hth_seq_when when, size_t chunk, int split)
{
    return when == HTH_SEQ_ALWAYS || (when == HTH_SEQ_FIRST && chunk == 0) ||
           (when == HTH_SEQ_BUT_FIRST && chunk > 0) ||
           (when == HTH_SEQ_LAST && (int)chunk + 1 == split);
}

static hth_err seq_chunk(const hth_seq *seq, const hth_kernel_args *args, size_t chunk)
{
    int b = 0;
    for (int i = 0; i < seq->n_steps; i++) {
        bool runs = seq_runs(seq->steps[i].when, chunk, seq->split);
        for (; b < seq->n_binds && seq->binds[b].step == i; b++) {
            const char *at = seq_resolve(args, seq->binds[b].ref);
            at = at == NULL ? NULL : at + chunk * seq->binds[b].chunk;
            HTH_TRY(runs ? hth_dn_prim_set(seq->steps[i].prim, seq->binds[b].arg, at) : HTH_OK);
        }
        HTH_TRY(runs ? hth_dn_prim_run(seq->steps[i].prim) : HTH_OK);
    }
    if (seq->mask >= 0) {
        size_t n = seq->mask_floats / (size_t)seq->split;
        float *y = (float *)args->out[0] + chunk * n;
        hth_cpu_relu_grad(seq->n_threads, y, (const float *)args->in[seq->mask] + chunk * n, NULL,
                          y, n, seq->low, seq->high);
    }
    return HTH_OK;
}

static hth_err seq_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const hth_seq *s = (const hth_seq *)base;
    hth_team_set(s->n_threads);
    if (s->accumulate >= 0 && args->in[s->accumulate] != args->out[0]) {
        seq_copy c = {args->out[0], args->in[s->accumulate], s->accumulate_bytes};
        hth_team_run(seq_copy_part, &c);
    }
    for (int c = 0; c < s->split; c++) {
        HTH_TRY(seq_chunk(s, args, (size_t)c));
    }
    if (s->clear.b > 1) {
        seq_padding p = {&s->clear, args->out[0]};
        hth_team_run(seq_clear_part, &p);
    }
    return HTH_OK;
}

hth_err hth_seq_open(hth_device *device, hth_seq **out)
{
    hth_seq *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a kernel");
    }
    s->base = (hth_kernel){.run = seq_run, .close = seq_close, .inplace_input = -1};
    s->n_threads = device->props.n_threads;
    s->accumulate = s->mask = -1;
    s->split = 1;
    *out = s;
    return HTH_OK;
}

void hth_seq_abort(hth_seq *seq)
{
    if (seq != NULL) {
        seq_close(&seq->base);
    }
}

hth_err hth_seq_add(hth_seq *seq, hth_dn_prim *prim)
{
    if (HTH_GROW(seq->steps, seq->n_steps, seq->cap_steps) != 0) {
        hth_dn_prim_close(prim);
        return hth_no_memory("a kernel");
    }
    seq->steps[seq->n_steps++] = (seq_step){prim, HTH_SEQ_ALWAYS};
    if (hth_dn_prim_scratchpad(prim) > seq->scratchpad) {
        seq->scratchpad = hth_dn_prim_scratchpad(prim);
    }
    return HTH_OK;
}

hth_err hth_seq_bind(hth_seq *seq, int arg, hth_seq_from from, size_t at)
{
    if (HTH_GROW(seq->binds, seq->n_binds, seq->cap_binds) != 0) {
        return hth_no_memory("a kernel");
    }
    seq->binds[seq->n_binds++] = (seq_bind){seq->n_steps - 1, arg, {from, at}, 0};
    return HTH_OK;
}

void hth_seq_split(hth_seq *seq, int n)
{
    seq->split = n;
}

void hth_seq_step(hth_seq *seq, size_t bytes)
{
    seq->binds[seq->n_binds - 1].chunk = bytes;
}

void hth_seq_only(hth_seq *seq, hth_seq_when when)
{
    seq->steps[seq->n_steps - 1].when = when;
}

size_t hth_seq_last_bytes(const hth_seq *seq, int arg)
{
    return hth_dn_prim_bytes(seq->steps[seq->n_steps - 1].prim, arg);
}

size_t hth_seq_reserve(hth_seq *seq, size_t bytes)
{
    size_t at = seq->reserved;
    seq->reserved += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return at;
}

static float *seq_widen(const hth_seq_widen *widen, const float *plain)
{
    size_t row = (size_t)(widen->in * widen->taps), outs = (size_t)(widen->groups * widen->out);
    float *wide = hth_calloc(outs * (size_t)widen->merge, row * sizeof *wide);
    for (size_t o = 0; wide != NULL && o < outs; o++) {
        size_t slot = o / (size_t)widen->out %
                      (size_t)widen->merge; // which of the merged groups this output belongs to
        memcpy(wide + (o * (size_t)widen->merge + slot) * row, plain + o * row, row * sizeof *wide);
    }
    return wide;
}

static hth_err seq_pack(const hth_kernel *kernel, const hth_packing *packing, const void *plain,
                        void *dst)
{
    const hth_seq *s = (const hth_seq *)kernel;
    const seq_packing *src = &s->sources[packing - kernel->packings];
    hth_team_set(s->n_threads);
    if (src->widen.merge <= 1) {
        return hth_dn_prim_pack(src->prim, src->arg, &src->md, plain, dst);
    }
    float *wide = seq_widen(&src->widen, plain);
    hth_err err = wide == NULL ? hth_no_memory("packing a filter")
                               : hth_dn_prim_pack(src->prim, src->arg, &src->md, wide, dst);
    hth_free(wide);
    return err;
}

hth_err hth_seq_weights(hth_seq *seq, const hth_dn_prim *prim, int arg, const hth_value *value,
                        int input, const hth_dn_md *md, const hth_seq_widen *widen,
                        hth_seq_ref *out)
{
    if (value->constant == NULL) {
        hth_dn_prim *reorder;
        size_t at = hth_seq_reserve(seq, hth_dn_prim_bytes(prim, arg));
        HTH_TRY(hth_dn_prim_reorder(prim, arg, md, &reorder));
        HTH_TRY(hth_seq_add(seq, reorder));
        hth_seq_only(seq, HTH_SEQ_FIRST);
        HTH_TRY(hth_seq_bind(seq, DNNL_ARG_FROM, HTH_SEQ_IN, (size_t)input));
        *out = (hth_seq_ref){HTH_SEQ_WORKSPACE, at};
        return hth_seq_bind(seq, DNNL_ARG_TO, HTH_SEQ_WORKSPACE, at);
    }
    if (HTH_GROW(seq->base.packings, seq->base.n_packings, seq->cap_packings) != 0 ||
        HTH_GROW(seq->sources, seq->base.n_packings, seq->cap_sources) != 0) {
        return hth_no_memory("a kernel");
    }
    hth_packing *k = &seq->base.packings[seq->base.n_packings];
    *k = (hth_packing){.input = input, .bytes = hth_dn_prim_bytes(prim, arg), .pack = seq_pack};
    hth_dn_prim_form(prim, arg, k->form);
    if (widen->merge > 1) {
        size_t n = strlen(k->form);
        snprintf(k->form + n, sizeof k->form - n, ":groups=%d", (int)widen->groups);
    }
    seq->sources[seq->base.n_packings++] = (seq_packing){arg, *md, *widen, prim};
    *out = (hth_seq_ref){HTH_SEQ_IN, (size_t)input};
    return HTH_OK;
}

void hth_seq_accumulate(hth_seq *seq, int input, size_t bytes)
{
    seq->accumulate = input;
    seq->accumulate_bytes = bytes;
    seq->base.inplace_input = input;
}

void hth_seq_mask(hth_seq *seq, int input, size_t bytes, float low, float high)
{
    seq->mask = input;
    seq->mask_floats = bytes / sizeof(float);
    seq->low = low;
    seq->high = high;
}

void hth_seq_clear(hth_seq *seq, const hth_shape *shape, hth_layout layout)
{
    if (!hth_rows_of(shape, layout, &seq->clear) || seq->clear.c % seq->clear.b == 0) {
        seq->clear.b = 0;
    }
}

// Scratchpads are bound last, when the reserved places are all known; the binds stay sorted by
// step.
static hth_err seq_bind_scratchpads(hth_seq *seq)
{
    for (int i = 0; i < seq->n_steps; i++) {
        if (hth_dn_prim_scratchpad(seq->steps[i].prim) == 0) {
            continue;
        }
        HTH_TRY(hth_seq_bind(seq, DNNL_ARG_SCRATCHPAD, HTH_SEQ_WORKSPACE, seq->reserved));
        seq_bind last = seq->binds[seq->n_binds - 1];
        last.step = i;
        int at = seq->n_binds - 1;
        for (; at > 0 && seq->binds[at - 1].step > i; at--) {
            seq->binds[at] = seq->binds[at - 1];
        }
        seq->binds[at] = last;
    }
    return HTH_OK;
}

hth_err hth_seq_finish(hth_seq *seq, const char *name, hth_kernel **out)
{
    hth_err err = seq_bind_scratchpads(seq);
    if (err != HTH_OK) {
        hth_seq_abort(seq);
        return err;
    }
    snprintf(seq->name, sizeof seq->name, "%s",
             name != NULL ? name : hth_dn_prim_impl(seq->steps[0].prim));
    seq->base.implementation = seq->name;
    seq->base.workspace_bytes = seq->reserved + seq->scratchpad;
    *out = &seq->base;
    return HTH_OK;
}
