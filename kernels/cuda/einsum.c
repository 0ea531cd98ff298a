// SPDX-License-Identifier: Apache-2.0
// Einsum: each label is a dimension of a loop over the results or of one over what is summed, and a
// step in each operand: the sum of those of the places where it stands there, which is how a label
// that repeats walks a diagonal. Dimensions of size 1 have step 0, which is broadcasting.
#include "kernels/cuda/seq.h"

#include <string.h>

// Labels: 0 .. 51 letters, from 52 the dimensions of the ellipsis, counted from the last.
#define EINSUM_LABELS   64
#define EINSUM_ELLIPSIS 52
#define EINSUM_FEW      4096 // results: too few threads to fill a device with one each

typedef struct einsum {
    int64_t size[EINSUM_LABELS], step[HTH_EINSUM_TERMS][EINSUM_LABELS];
    int seen[EINSUM_LABELS]; // in how many places of the operands
    int ellipsis, n_in;
} einsum;

static int einsum_letter(char c)
{
    if (c >= 'a' && c <= 'z') {
        return c - 'a';
    }
    return c >= 'A' && c <= 'Z' ? c - 'A' + 26 : -1;
}

// Reads a term up to ',', '-' or the end; rank -1: the result, whose ellipsis is known. Returns how
// many labels there are, -1: more than there may be.
static int einsum_labels(const einsum *e, const char **text, int rank, int label[EINSUM_LABELS])
{
    int letters = 0, n = 0;
    for (const char *p = *text; *p != '\0' && *p != ',' && *p != '-'; p++) {
        letters += einsum_letter(*p) >= 0;
    }
    int ellipsis = rank < 0 ? e->ellipsis : rank - letters;
    for (; **text != '\0' && **text != ',' && **text != '-'; (*text)++) {
        int at = einsum_letter(**text);
        if (n + (at >= 0 ? 1 : ellipsis) > EINSUM_LABELS ||
            ellipsis > EINSUM_LABELS - EINSUM_ELLIPSIS) {
            return -1;
        }
        if (at >= 0) {
            label[n++] = at;
        } else if (**text == '.') {
            for (int i = ellipsis - 1; i >= 0; i--) {
                label[n++] = EINSUM_ELLIPSIS + i;
            }
            *text += strncmp(*text, "...", 3) == 0 ? 2 : 0;
        }
    }
    return n;
}

static hth_err einsum_operand(einsum *e, const char **text, const hth_shape *shape, int k)
{
    int label[EINSUM_LABELS], n = einsum_labels(e, text, shape->rank, label);
    int64_t step = 1;
    if (n != shape->rank) {
        return hth_fail(HTH_ENOTSUP, "the equation does not fit input %d", k);
    }
    for (int i = n - 1; i >= 0; i--) {
        int l = label[i];
        e->step[k][l] += shape->dim[i] == 1 ? 0 : step;
        e->size[l] = e->seen[l] == 0 || e->size[l] == 1 ? shape->dim[i] : e->size[l];
        e->seen[l]++;
        e->ellipsis = l - EINSUM_ELLIPSIS >= e->ellipsis ? l - EINSUM_ELLIPSIS + 1 : e->ellipsis;
        step *= shape->dim[i];
    }
    *text += **text == ',';
    return HTH_OK;
}

// The result's labels; without an arrow the ellipsis, then what stands in one place, in numpy's
// order: capital letters first.
static int einsum_result(const einsum *e, const char *text, int label[EINSUM_LABELS])
{
    int n = 0;
    if (strncmp(text, "->", 2) == 0) {
        text += 2;
        return einsum_labels(e, &text, -1, label);
    }
    for (int i = e->ellipsis - 1; i >= 0; i--) {
        label[n++] = EINSUM_ELLIPSIS + i;
    }
    for (int i = 0; i < EINSUM_ELLIPSIS; i++) {
        int l = (i + 26) % EINSUM_ELLIPSIS;
        if (e->seen[l] == 1) {
            label[n++] = l;
        }
    }
    return n;
}

static hth_err einsum_loop(const einsum *e, const int *label, int n, hth_dims *dims,
                           hth_steps *steps, uint32_t *count)
{
    hth_cuda_loop l = {.n = e->n_in};
    int64_t all = 1;
    for (int i = 0; i < n; i++) {
        if (e->size[label[i]] == 1) {
            continue;
        }
        if (l.rank == 3 * HTH_MAX_RANK || __builtin_mul_overflow(all, e->size[label[i]], &all) ||
            all > INT32_MAX) {
            return hth_fail(HTH_ENOTSUP, "a sum of more than %d products", INT32_MAX);
        }
        l.dim[l.rank] = e->size[label[i]];
        for (int k = 0; k < e->n_in; k++) {
            l.step[k][l.rank] = e->step[k][label[i]];
        }
        l.rank++;
    }
    *count = (uint32_t)all;
    hth_cuda_loop_fold(&l);
    return hth_cuda_loop_store(&l, dims, steps);
}

static hth_err einsum_loops(const einsum *e, const char *text, hth_einsum_params *params)
{
    int label[EINSUM_LABELS], summed[EINSUM_LABELS], n_summed = 0;
    int n = einsum_result(e, text, label);
    if (n < 0) {
        return hth_fail(HTH_ENOTSUP, "the equation has too many labels");
    }
    for (int l = 0; l < EINSUM_LABELS; l++) {
        bool kept = false;
        for (int i = 0; i < n; i++) {
            kept = kept || label[i] == l;
        }
        if (e->seen[l] > 0 && !kept) {
            summed[n_summed++] = l;
        }
    }
    HTH_TRY(einsum_loop(e, label, n, &params->outer, params->outer_steps, &params->n));
    return einsum_loop(e, summed, n_summed, &params->inner, params->inner_steps, &params->n_sum);
}

hth_err hth_cuda_einsum(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    const char *text = hth_node_str(node, "equation", "");
    einsum e = {.n_in = 0};
    hth_einsum_params p = {.n_in = 0};
    while (hth_cuda_in(graph, node, e.n_in) != NULL) {
        if (e.n_in == HTH_EINSUM_TERMS) {
            return hth_fail(HTH_ENOTSUP, "more than %d operands", HTH_EINSUM_TERMS);
        }
        HTH_TRY(einsum_operand(&e, &text, &hth_cuda_in(graph, node, e.n_in)->shape, e.n_in));
        e.n_in++;
    }
    HTH_TRY(hth_cuda_need_f32(graph, node, e.n_in, 1));
    HTH_TRY(einsum_loops(&e, text, &p));
    if (p.n != hth_cuda_count(hth_cuda_out(graph, node, 0))) {
        return hth_fail(HTH_ENOTSUP, "the equation does not fit the result");
    }
    p.n_in = e.n_in;
    if (p.n < EINSUM_FEW && p.n_sum >= 32) {
        unsigned threads = hth_cuda_row_threads(p.n_sum);
        hth_cuda_launch_add(seq, HTH_CUDA_hth_einsum_block, p.n, threads,
                            (threads + HTH_FOLD) * sizeof(float), &p, sizeof p);
    } else {
        hth_cuda_launch_add(seq, HTH_CUDA_hth_einsum_thread, hth_cuda_blocks(seq, p.n, true), 0, 0,
                            &p, sizeof p);
    }
    hth_cuda_bind(seq, offsetof(hth_einsum_params, out), HTH_CUDA_OUT, 0, 0);
    for (int k = 0; k < e.n_in; k++) {
        size_t at = offsetof(hth_einsum_params, in) + (size_t)k * sizeof p.in[0];
        hth_cuda_bind(seq, at, HTH_CUDA_IN, k, 0);
        seq->moved_bytes += hth_cuda_bytes(hth_cuda_in(graph, node, k));
    }
    seq->moved_bytes += hth_cuda_bytes(hth_cuda_out(graph, node, 0));
    return seq->err;
}
