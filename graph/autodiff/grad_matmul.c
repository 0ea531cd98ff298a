// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_matmul.c - gradients of matrix products.
//
// Products with a transposed operand are said by MatMul's and Gemm's attributes transA and transB,
// so nothing is transposed in memory. The gradient of a matrix that a whole batch was multiplied by
// is one product over all rows of the batch (Gemm's attribute flatten), not a sum of products.
#include "graph/autodiff/grad.h"

#include <stdio.h>
#include <string.h>

static int product(hth_grad *grad, hth_op op, int a, bool ta, int b, bool tb)
{
    hth_grad_begin(grad, op, (int[]){a, b}, 2, 1);
    if (ta) {
        hth_grad_int(grad, "transA", 1);
    }
    if (tb) {
        hth_grad_int(grad, "transB", 1);
    }
    if (op == HTH_OP_GEMM) {
        hth_grad_int(grad, "flatten", 1);
    }
    return hth_grad_end(grad);
}

// The operands as matrices: a vector counts as one row (a) or one column (b).
static int as_matrix(hth_grad *grad, int v, bool column)
{
    const hth_shape *s = hth_grad_shape(grad, v);
    hth_shape m = {2, {1, s->dim[0]}};
    if (column) {
        m = (hth_shape){2, {s->dim[0], 1}};
    }
    return s->rank == 1 ? hth_grad_reshape(grad, v, &m) : v;
}

static int matmul_dy(hth_grad *grad, const hth_node *node, int a, int b)
{
    hth_shape s = *hth_grad_shape(grad, node->outputs[0]);
    int dy = hth_grad_out(grad, node, 0);
    if (hth_grad_shape(grad, b)->rank == 1) {
        s.dim[s.rank++] = 1;
    }
    if (hth_grad_shape(grad, a)->rank == 1) {
        s.dim[s.rank] = s.rank > 0 ? s.dim[s.rank - 1] : 1;
        s.dim[s.rank > 0 ? s.rank - 1 : 0] = 1;
        s.rank++;
    }
    return hth_grad_reshape(grad, dy, &s);
}

void hth_grad_matmul(hth_grad *grad, const hth_node *node)
{
    bool ta = hth_node_int(node, "transA", 0) != 0, tb = hth_node_int(node, "transB", 0) != 0;
    int a = node->inputs[0], b = node->inputs[1], v;
    int dy = matmul_dy(grad, node, a, b), am = as_matrix(grad, a, false),
        bm = as_matrix(grad, b, true);
    if (hth_grad_wants(grad, node, 0)) {
        v = ta ? product(grad, HTH_OP_MAT_MUL, bm, tb, dy, true)
               : product(grad, HTH_OP_MAT_MUL, dy, false, bm, !tb);
        v = hth_grad_sum_to(grad, v, hth_grad_shape(grad, am));
        hth_grad_give(grad, node, 0, hth_grad_reshape(grad, v, hth_grad_shape(grad, a)));
    }
    if (hth_grad_wants(grad, node, 1)) {
        bool one = hth_grad_shape(grad, bm)->rank == 2 && !ta &&
                   hth_grad_shape(grad, am)->rank == hth_grad_shape(grad, dy)->rank;
        hth_op op = one ? HTH_OP_GEMM : HTH_OP_MAT_MUL;
        v = tb ? product(grad, op, dy, true, am, ta) : product(grad, op, am, !ta, dy, false);
        v = hth_grad_sum_to(grad, v, hth_grad_shape(grad, bm));
        hth_grad_give(grad, node, 1, hth_grad_reshape(grad, v, hth_grad_shape(grad, b)));
    }
}

static int gemm(hth_grad *grad, const hth_node *node, int a, bool ta, int b, bool tb)
{
    hth_grad_begin(grad, HTH_OP_GEMM, (int[]){a, b}, 2, 1);
    hth_grad_float(grad, "alpha", hth_node_float(node, "alpha", 1));
    hth_grad_int(grad, "transA", ta);
    hth_grad_int(grad, "transB", tb);
    return hth_grad_end(grad);
}

void hth_grad_gemm(hth_grad *grad, const hth_node *node)
{
    bool ta = hth_node_int(node, "transA", 0) != 0, tb = hth_node_int(node, "transB", 0) != 0;
    int a = node->inputs[0], b = node->inputs[1], dy = hth_grad_out(grad, node, 0);
    float beta = hth_node_float(node, "beta", 1);
    if (hth_grad_wants(grad, node, 0)) {
        hth_grad_give(grad, node, 0,
                      ta ? gemm(grad, node, b, tb, dy, true) : gemm(grad, node, dy, false, b, !tb));
    }
    if (hth_grad_wants(grad, node, 1)) {
        hth_grad_give(grad, node, 1,
                      tb ? gemm(grad, node, dy, true, a, ta) : gemm(grad, node, a, !ta, dy, false));
    }
    if (hth_grad_wants(grad, node, 2)) {
        int v = hth_grad_sum_to(grad, dy, hth_grad_shape(grad, node->inputs[2]));
        v = beta == 1 ? v : hth_grad_2(grad, HTH_OP_MUL, v, hth_grad_scalar(grad, beta));
        hth_grad_give(grad, node, 2, v);
    }
}

// An equation "ab,bc->ac" in parts: terms[0 .. n - 1], and the result's.
typedef struct equation {
    char text[128], out[64];
    const char *term[8];
    int n;
} equation;

// The letters that an ellipsis stands for, the last ones of an alphabet of its own: as many as the
// operand has dimensions more than letters. They say nothing about which sizes are broadcast.
static const char ellipsis_letters[] = "STUVWXYZ";

// The result of an equation that does not say it: the ellipsis, then letters that occur once, in
// their order.
static void equation_result(const char *terms, const char *ellipsis, char *out)
{
    for (const char *p = ellipsis; *p != '\0'; p++) {
        *out++ = *p;
    }
    for (char l = 'A'; l <= 'z'; l++) {
        const char *at = strchr(ellipsis, l) != NULL ? NULL : strchr(terms, l);
        if (at != NULL && strchr(at + 1, l) == NULL) {
            *out++ = l;
        }
    }
    *out = '\0';
}

// Copies the equation without blanks, and with letters for ellipses, *ellipsis for the longest;
// false: too long, or these letters are taken.
static bool equation_letters(const hth_grad *grad, const hth_node *node, char *out, size_t room,
                             const char **ellipsis)
{
    const char *text = hth_node_str(node, "equation", "");
    int term = 0, longest = 0;
    bool behind = false; // the arrow
    size_t len = 0;
    for (const char *p = text; *p != '\0' && len + 12 < room; p++) {
        if (*p == '.') {
            const char *begin = p, *end = p + strspn(p, ". ");
            while (begin > text && strchr(",>", begin[-1]) == NULL) {
                begin--;
            }
            int letters = 0;
            for (const char *q = begin; *q != '\0' && strchr(",-", *q) == NULL; q++) {
                letters += *q != '.' && *q != ' ';
            }
            int rank = term < node->n_inputs ? hth_grad_shape(grad, node->inputs[term])->rank : 0;
            int more = behind ? longest : rank - letters;
            longest = more > longest ? more : longest;
            if (more < 0 || more > 8) {
                return false;
            }
            len += (size_t)snprintf(out + len, room - len, "%s", ellipsis_letters + 8 - more);
            p = end - 1;
        } else if (*p != ' ') {
            term += *p == ',';
            behind |= *p == '>';
            out[len++] = *p;
        }
    }
    out[len] = '\0';
    *ellipsis = ellipsis_letters + 8 - longest;
    return len + 12 < room &&
           (strchr(text, '.') == NULL || strpbrk(text, ellipsis_letters) == NULL);
}

// Whether each letter has one size: none is broadcast.
static bool equation_sizes(const hth_grad *grad, const hth_node *node, const equation *e)
{
    int64_t size[128] = {0};
    for (int k = 0; k < e->n; k++) {
        const hth_shape *s = hth_grad_shape(grad, node->inputs[k]);
        for (int i = 0; i < s->rank && e->term[k][i] != '\0'; i++) {
            int64_t *at = &size[e->term[k][i] & 127];
            if (*at != 0 && *at != s->dim[i]) {
                return false;
            }
            *at = s->dim[i];
        }
    }
    return true;
}

// Splits the equation; false if a term names a letter twice, or a size is broadcast.
static bool equation_read(const hth_grad *grad, const hth_node *node, equation *e)
{
    char *save = NULL, *arrow;
    const char *ellipsis;
    if (node->n_inputs > 8 || !equation_letters(grad, node, e->text, sizeof e->text, &ellipsis)) {
        return false;
    }
    arrow = strstr(e->text, "->");
    if (arrow != NULL) {
        *arrow = '\0';
        snprintf(e->out, sizeof e->out, "%s", arrow + 2);
    } else {
        equation_result(e->text, ellipsis, e->out);
    }
    e->n = 0;
    for (char *t = strtok_r(e->text, ",", &save); t != NULL && e->n < 8;
         t = strtok_r(NULL, ",", &save)) {
        e->term[e->n++] = t;
        for (const char *p = t; *p != '\0'; p++) {
            if (strchr(p + 1, *p) != NULL) {
                return false;
            }
        }
    }
    return e->n == node->n_inputs && equation_sizes(grad, node, e);
}

// The gradient of operand k: the result's gradient and the other operands give its letters; those
// that are nowhere else were summed, and are given by ones.
static void einsum_give(hth_grad *grad, const hth_node *node, const equation *e, int k)
{
    char text[256], lost[HTH_MAX_RANK + 1] = "";
    hth_shape ones = {0};
    int in[9] = {hth_grad_out(grad, node, 0)}, n_in = 1;
    size_t at = (size_t)snprintf(text, sizeof text, "%s", e->out);
    for (int i = 0; i < e->n; i++) {
        if (i != k) {
            in[n_in++] = node->inputs[i];
            at += (size_t)snprintf(text + at, sizeof text - at, ",%s", e->term[i]);
        }
    }
    for (const char *p = e->term[k]; *p != '\0'; p++) {
        if (strchr(text, *p) == NULL) {
            lost[ones.rank] = *p;
            ones.dim[ones.rank++] = hth_grad_shape(grad, node->inputs[k])->dim[p - e->term[k]];
        }
    }
    if (ones.rank > 0) {
        in[n_in++] = hth_grad_expand(grad, hth_grad_scalar(grad, 1), &ones);
        at += (size_t)snprintf(text + at, sizeof text - at, ",%s", lost);
    }
    snprintf(text + at, sizeof text - at, "->%s", e->term[k]);
    hth_grad_begin(grad, HTH_OP_EINSUM, in, n_in, 1);
    hth_grad_str(grad, "equation", text);
    hth_grad_give(grad, node, k, hth_grad_end(grad));
}

void hth_grad_einsum(hth_grad *grad, const hth_node *node)
{
    equation e;
    if (!equation_read(grad, node, &e)) {
        hth_grad_fail(grad, "an equation of this form has no gradient");
        return;
    }
    for (int k = 0; k < e.n; k++) {
        if (hth_grad_wants(grad, node, k)) {
            einsum_give(grad, node, &e, k);
        }
    }
}
