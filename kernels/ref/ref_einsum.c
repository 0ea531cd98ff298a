// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_einsum.c - Einsum: any equation, as a chain of pairwise matrix products.
//
// A term is data with one label per dimension. Two steps do everything. *Arrange* brings a term
// into a given order of labels: repeated labels walk the diagonal, labels that are not asked for
// are summed away, dimensions of size 1 are dropped (which is broadcasting). *Contract* takes two
// terms, sorts their labels into batch (both, still needed), rows (left), columns (right) and depth
// (both, no longer needed), arranges them so and multiplies. Walking the whole product of index
// spaces instead would be exponential in the number of labels.
#include "kernels/ref/ref_num.h"

#include <string.h>

// Labels: 0..51 letters, from 52 the dimensions of the ellipsis, counted from the last.
#define EINSUM_LABELS   64
#define EINSUM_ELLIPSIS 52
#define EINSUM_PART     1024 // elements that are arranged between two looks at whether to go on
#define EINSUM_STEP     4    // the work of one

typedef struct einsum_term {
    int n;
    int label[2 * EINSUM_LABELS];
    int64_t dim[2 * EINSUM_LABELS];
    double *data;
} einsum_term;

typedef struct einsum {
    ref_mem *m;
    int64_t size[EINSUM_LABELS]; // of each label, 0: not used
    int seen[EINSUM_LABELS];     // in how many places of the inputs
    int ellipsis;                // dimensions of the ellipsis
} einsum;

static int einsum_letter(char c)
{
    if (c >= 'a' && c <= 'z') {
        return c - 'a';
    }
    return c >= 'A' && c <= 'Z' ? c - 'A' + 26 : -1;
}

// einsum_labels reads one side of the equation up to ',', '-' or the end; `rank` < 0: take the
// known ellipsis.
static hth_err einsum_labels(const einsum *e, const char **text, int rank, einsum_term *term)
{
    int letters = 0;
    for (const char *p = *text; *p && *p != ',' && *p != '-'; p++) {
        letters += einsum_letter(*p) >= 0;
    }
    int ellipsis = rank < 0 ? e->ellipsis : rank - letters;
    term->n = 0;
    for (; **text && **text != ',' && **text != '-'; (*text)++) {
        int label = einsum_letter(**text);
        if (strncmp(*text, "...", 3) == 0 && term->n + ellipsis <= EINSUM_LABELS) {
            for (int i = ellipsis - 1; i >= 0; i--) {
                term->label[term->n++] = EINSUM_ELLIPSIS + i;
            }
            *text += 2;
        } else if (label >= 0 && term->n < EINSUM_LABELS) {
            term->label[term->n++] = label;
        } else if (**text != ' ') {
            return hth_fail(HTH_EINVAL, "the equation cannot be read at '%.20s'", *text);
        }
    }
    return HTH_OK;
}

static hth_err einsum_read_input(einsum *e, const char **text, const hth_tensor *tensor,
                                 einsum_term *term)
{
    HTH_TRY(einsum_labels(e, text, tensor->shape.rank, term));
    if (term->n != tensor->shape.rank) {
        return hth_fail(HTH_EINVAL, "the equation does not fit an input of rank %d",
                        tensor->shape.rank);
    }
    for (int i = 0; i < term->n; i++) {
        int l = term->label[i];
        int64_t d = tensor->shape.dim[i];
        term->dim[i] = d;
        if (e->seen[l]++ == 0 || e->size[l] == 1) {
            e->size[l] = d;
        } else if (d != 1 && d != e->size[l]) {
            return hth_fail(HTH_EINVAL, "the equation gives one label two sizes");
        }
        if (l - EINSUM_ELLIPSIS >= e->ellipsis) {
            e->ellipsis = l - EINSUM_ELLIPSIS + 1;
        }
    }
    return ref_wide(e->m, tensor, &term->data);
}

static void einsum_implicit(const einsum *e, einsum_term *term)
{
    term->n = 0;
    for (int i = e->ellipsis - 1; i >= 0; i--) {
        term->label[term->n++] = EINSUM_ELLIPSIS + i;
    }
    // numpy's order: capital letters first.
    for (int i = 0; i < EINSUM_ELLIPSIS; i++) {
        int l = (i + 26) % EINSUM_ELLIPSIS;
        if (e->seen[l] == 1) {
            term->label[term->n++] = l;
        }
    }
}

// The step that one more of `label` makes in the term's data; 0 when the term does not depend on
// it.
static int64_t einsum_step(const einsum_term *term, int label)
{
    int64_t step = 1, sum = 0;
    for (int i = term->n - 1; i >= 0; i--) {
        sum += term->label[i] == label && term->dim[i] != 1 ? step : 0;
        step *= term->dim[i];
    }
    return sum;
}

static bool einsum_depends(const einsum_term *term, int label)
{
    for (int i = 0; i < term->n; i++) {
        if (term->label[i] == label && term->dim[i] != 1) {
            return true;
        }
    }
    return false;
}

// The number of elements over these labels; -1 when it overflows (ref_take refuses that).
static int64_t einsum_product(const einsum *e, const int *labels, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++) {
        if (__builtin_mul_overflow(p, e->size[labels[i]], &p)) {
            return -1;
        }
    }
    return p;
}

// einsum_arrange makes the data of `term` over exactly `labels`, row-major, everything else summed.
static hth_err einsum_arrange(einsum *e, const einsum_term *term, const int *labels, int n,
                              double **out)
{
    int all[EINSUM_LABELS], count = n;
    int64_t step[EINSUM_LABELS], to_step[EINSUM_LABELS] = {0}, at[EINSUM_LABELS] = {0}, from = 0,
                                 to = 0;
    memcpy(all, labels, (size_t)n * sizeof *all);
    for (int l = 0; l < EINSUM_LABELS; l++) {
        bool listed = false;
        for (int i = 0; i < n; i++) {
            listed |= labels[i] == l;
        }
        if (!listed && einsum_depends(term, l)) {
            all[count++] = l;
        }
    }
    for (int i = 0; i < count; i++) {
        step[i] = einsum_step(term, all[i]);
        to_step[i] = i < n ? einsum_product(e, labels + i + 1, n - i - 1) : 0;
    }
    HTH_TRY(REF_TAKE(e->m, einsum_product(e, labels, n), out));
    for (int64_t left = einsum_product(e, all, count); left > 0; left--) {
        if (left % EINSUM_PART == 0 && hth_pace_over(EINSUM_PART * EINSUM_STEP)) {
            break;
        }
        (*out)[to] += term->data[from];
        for (int d = count - 1; d >= 0; d--) {
            from += step[d];
            to += to_step[d];
            if (++at[d] < e->size[all[d]]) {
                break;
            }
            from -= step[d] * at[d];
            to -= to_step[d] * at[d];
            at[d] = 0;
        }
    }
    return HTH_OK;
}

static bool einsum_needed(const einsum_term *rest, int n_rest, const einsum_term *result, int label)
{
    for (int i = 0; i < n_rest; i++) {
        if (einsum_depends(&rest[i], label)) {
            return true;
        }
    }
    for (int i = 0; i < result->n; i++) {
        if (result->label[i] == label) {
            return true;
        }
    }
    return false;
}

typedef struct einsum_split {
    int n[4], label[4][EINSUM_LABELS]; // batch, rows, columns, depth
} einsum_split;
enum { BATCH, ROWS, COLS, DEPTH };

static void einsum_sort(const einsum_term *a, const einsum_term *b, const einsum_term *rest,
                        int n_rest, const einsum_term *result, einsum_split *split)
{
    memset(split->n, 0, sizeof split->n);
    for (int l = 0; l < EINSUM_LABELS; l++) {
        bool in_a = einsum_depends(a, l), in_b = einsum_depends(b, l);
        bool needed = einsum_needed(rest, n_rest, result, l);
        int kind = in_a ? ROWS : COLS;
        if (in_a && in_b) {
            kind = needed ? BATCH : DEPTH;
        }
        if ((in_a || in_b) && (needed || kind == DEPTH)) {
            split->label[kind][split->n[kind]++] = l;
        }
    }
}

static int einsum_join(const einsum_split *split, int a, int b, int c, int *out)
{
    int kinds[] = {a, b, c}, n = 0;
    for (int k = 0; k < 3; k++) {
        memcpy(out + n, split->label[kinds[k]], (size_t)split->n[kinds[k]] * sizeof *out);
        n += split->n[kinds[k]];
    }
    return n;
}

// einsum_contract replaces `a` by the product of a and b, keeping the labels that `rest` and
// `result` need.
static hth_err einsum_contract(einsum *e, einsum_term *a, const einsum_term *b,
                               const einsum_term *rest, int n_rest, const einsum_term *result)
{
    einsum_split s;
    int order[EINSUM_LABELS], n;
    int64_t size[4];
    double *left, *right, *product;
    einsum_sort(a, b, rest, n_rest, result, &s);
    for (int k = 0; k < 4; k++) {
        size[k] = einsum_product(e, s.label[k], s.n[k]);
    }
    n = einsum_join(&s, BATCH, ROWS, DEPTH, order);
    HTH_TRY(einsum_arrange(e, a, order, n, &left));
    n = einsum_join(&s, BATCH, DEPTH, COLS, order);
    HTH_TRY(einsum_arrange(e, b, order, n, &right));
    HTH_TRY(REF_TAKE(e->m, size[BATCH] * size[ROWS] * size[COLS], &product));
    for (int64_t i = 0; i < size[BATCH] && !hth_pace_over(1); i++) {
        ref_gemm_f64(size[ROWS], size[COLS], size[DEPTH], left + i * size[ROWS] * size[DEPTH],
                     size[DEPTH], right + i * size[DEPTH] * size[COLS], size[COLS],
                     product + i * size[ROWS] * size[COLS], size[COLS]);
    }
    a->n = einsum_join(&s, BATCH, ROWS, COLS, a->label);
    for (int i = 0; i < a->n; i++) {
        a->dim[i] = e->size[a->label[i]];
    }
    a->data = product;
    return HTH_OK;
}

static hth_err einsum_read(einsum *e, const hth_node *node, const hth_tensor *in,
                           einsum_term *terms, int n_terms, einsum_term *result)
{
    const char *text = hth_node_str(node, "equation", "");
    for (int i = 0; i < n_terms; i++) {
        HTH_TRY(einsum_read_input(e, &text, &in[i], &terms[i]));
        if (*text == ',') {
            text++;
        }
    }
    if (strncmp(text, "->", 2) != 0) {
        einsum_implicit(e, result);
        return HTH_OK;
    }
    text += 2;
    HTH_TRY(einsum_labels(e, &text, -1, result));
    for (int i = 0; i < result->n; i++) {
        for (int k = 0; k < i; k++) {
            if (result->label[k] == result->label[i]) {
                return hth_fail(HTH_EINVAL, "the equation's result repeats a label");
            }
        }
        if (!e->seen[result->label[i]]) {
            return hth_fail(HTH_EINVAL, "the equation's result has a label of its own");
        }
    }
    return HTH_OK;
}

static hth_err einsum_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                           hth_tensor *out)
{
    einsum e = {.m = mem};
    int n_terms = ref_n_inputs(node);
    einsum_term *terms, *result;
    double *y;
    HTH_TRY(REF_TAKE(mem, n_terms + 1, &terms));
    result = terms + n_terms;
    HTH_TRY(einsum_read(&e, node, in, terms, n_terms, result));
    for (int i = 1; i < n_terms; i++) {
        HTH_TRY(einsum_contract(&e, terms, &terms[i], terms + i + 1, n_terms - i - 1, result));
    }
    if (einsum_product(&e, result->label, result->n) != ref_count(&out[0])) {
        return hth_fail(HTH_EINVAL, "the equation's result has another size than the output");
    }
    HTH_TRY(einsum_arrange(&e, terms, result->label, result->n, &y));
    ref_round(y, &out[0]);
    return HTH_OK;
}

REF_OP(ref_einsum, einsum_body)
