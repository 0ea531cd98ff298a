// SPDX-License-Identifier: Apache-2.0
// One loop per operator over a tile of rows; the usual width of a tile is a constant for the
// compiler. No state: any thread.
#include "kernels/cpu/epilogue.h"

#include "kernels/cpu/vector.h"

#define EPI_ROWS 16

size_t hth_epilogue_offset(const hth_epilogue_step *step, size_t row)
{
    size_t at = 0;
    for (int d = step->rank - 1; d > 0; d--) {
        at += row % step->size[d] * step->step[d];
        row /= step->size[d];
    }
    return step->rank > 0 ? at + row * step->step[0] : at;
}

#define EPI_EACH(EXPR)                                                                             \
    for (size_t i = 0; i < rows; i++) {                                                            \
        float *restrict p = y + i * ld;                                                            \
        for (size_t j = 0; j < n; j++) {                                                           \
            float x = p[j];                                                                        \
            p[j] = (EXPR);                                                                         \
        }                                                                                          \
    }                                                                                              \
    break

#define EPI_WITH(EXPR)                                                                             \
    for (size_t i = 0; i < rows; i++) {                                                            \
        float *restrict p = y + i * ld;                                                            \
        const float *q = s->operand + from[i] + col * s->col;                                      \
        if (s->col == 1) {                                                                         \
            for (size_t j = 0; j < n; j++) {                                                       \
                float x = p[j], o = q[j];                                                          \
                p[j] = (EXPR);                                                                     \
            }                                                                                      \
        } else {                                                                                   \
            float o = q[0];                                                                        \
            for (size_t j = 0; j < n; j++) {                                                       \
                float x = p[j];                                                                    \
                p[j] = (EXPR);                                                                     \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    break

HTH_INLINE void epi_step(const hth_epilogue_step *s, float *y, size_t ld, const size_t *from,
                         size_t rows, size_t col, size_t n)
{
    float alpha = s->alpha, beta = s->beta;
    switch (s->op) {
    case HTH_OP_ADD:
        EPI_WITH(x + alpha * o);
    case HTH_OP_SUB:
        EPI_WITH(x - o);
    case HTH_OP_MUL:
        EPI_WITH(x * o);
    case HTH_OP_DIV:
        EPI_WITH(x / o);
    case HTH_OP_MIN: // NaN of either operand stays
        EPI_WITH(x < o || x != x ? x : o);
    case HTH_OP_MAX:
        EPI_WITH(x > o || x != x ? x : o);
    case HTH_OP_RELU:
        EPI_EACH(x < 0 ? 0 : x);
    case HTH_OP_LEAKY_RELU:
        EPI_EACH(x < 0 ? x * alpha : x);
    case HTH_OP_CLIP:
        EPI_EACH(hth_clampf(x, alpha, beta));
    case HTH_OP_SIGMOID:
        EPI_EACH(hth_sigmoidf(x));
    case HTH_OP_TANH:
        EPI_EACH(hth_tanhf(x));
    case HTH_OP_SWISH:
        EPI_EACH(x * hth_sigmoidf(alpha * x));
    case HTH_OP_HARD_SIGMOID:
        EPI_EACH(hth_clampf(alpha * x + beta, 0, 1));
    case HTH_OP_HARD_SWISH:
        EPI_EACH(x * hth_clampf(x * (1.0F / 6.0F) + 0.5F, 0, 1));
    case HTH_OP_ELU:
        EPI_EACH(x < 0 ? alpha * (hth_expf(x) - 1.0F) : x);
    case HTH_OP_GELU:
        if (alpha != 0) {
            EPI_EACH(hth_gelu_tanhf(x));
        }
        EPI_EACH(hth_geluf(x));
    case HTH_OP_EXP:
        EPI_EACH(hth_expf(x));
    case HTH_OP_ERF:
        EPI_EACH(hth_erff(x));
    case HTH_OP_SQRT:
        EPI_EACH(sqrtf(x));
    case HTH_OP_RECIPROCAL:
        EPI_EACH(1.0F / x);
    case HTH_OP_NEG:
        EPI_EACH(-x);
    case HTH_OP_ABS:
        EPI_EACH(fabsf(x));
    default:
        break;
    }
}

HTH_VECTOR(epi_wide,
           (const hth_epilogue_step *s, float *y, size_t ld, const size_t *from, size_t rows,
            size_t col),
           (s, y, ld, from, rows, col))
{
    epi_step(s, y, ld, from, rows, col, 32);
}

HTH_VECTOR(epi_any,
           (const hth_epilogue_step *s, float *y, size_t ld, const size_t *from, size_t rows,
            size_t col, size_t n),
           (s, y, ld, from, rows, col, n))
{
    epi_step(s, y, ld, from, rows, col, n);
}

static void epi_rows(const hth_epilogue_step *step, float *y, size_t ld, size_t row, size_t rows,
                     size_t col, size_t n)
{
    size_t from[EPI_ROWS];
    for (size_t i = 0; i < rows && step->input >= 0; i++) {
        from[i] = hth_epilogue_offset(step, row + i);
    }
    if (n == 32) {
        epi_wide(step, y, ld, from, rows, col);
    } else {
        epi_any(step, y, ld, from, rows, col, n);
    }
}

void hth_epilogue_apply(const hth_epilogue *epilogue, float *y, size_t ld, size_t row, size_t rows,
                        size_t col, size_t n)
{
    for (size_t i = 0; i < rows; i += EPI_ROWS) {
        size_t part = rows - i < EPI_ROWS ? rows - i : EPI_ROWS;
        for (int k = 0; k < epilogue->n; k++) {
            epi_rows(&epilogue->step[k], y + i * ld, ld, row + i, part, col, n);
        }
    }
}

bool hth_epilogue_known(hth_op op, bool binary)
{
    switch (op) {
    case HTH_OP_ADD:
    case HTH_OP_SUB:
    case HTH_OP_MUL:
    case HTH_OP_DIV:
    case HTH_OP_MIN:
    case HTH_OP_MAX:
        return binary;
    case HTH_OP_RELU:
    case HTH_OP_LEAKY_RELU:
    case HTH_OP_CLIP:
    case HTH_OP_SIGMOID:
    case HTH_OP_TANH:
    case HTH_OP_SWISH:
    case HTH_OP_HARD_SIGMOID:
    case HTH_OP_HARD_SWISH:
    case HTH_OP_ELU:
    case HTH_OP_GELU:
    case HTH_OP_EXP:
    case HTH_OP_ERF:
    case HTH_OP_SQRT:
    case HTH_OP_RECIPROCAL:
    case HTH_OP_NEG:
    case HTH_OP_ABS:
        return !binary;
    default:
        return false;
    }
}

// Dimensions that the operand runs through like the output's rows, or not at all, are joined.
bool hth_epilogue_operand(const hth_shape *s, const hth_shape *y, int keep, hth_epilogue_step *step)
{
    size_t size[HTH_MAX_RANK], at[HTH_MAX_RANK], stride = 1;
    int lead = y->rank - s->rank, n = 0;
    bool all = true, none = true;
    for (int d = y->rank - 1; d >= 0; d--) {
        int64_t from = d < lead ? 1 : s->dim[d - lead];
        size_t here = from == 1 ? 0 : stride;
        if (lead < 0 || (from != 1 && from != y->dim[d])) {
            return false;
        }
        stride *= (size_t)from;
        if (y->dim[d] == 1) {
            continue;
        }
        if (d >= y->rank - keep) {
            all = all && from != 1;
            none = none && from == 1;
        } else if (n > 0 && here == at[n - 1] * size[n - 1]) {
            size[n - 1] *= (size_t)y->dim[d];
        } else {
            size[n] = (size_t)y->dim[d];
            at[n++] = here;
        }
    }
    step->col = !none;
    step->rank = n;
    for (int i = 0; i < n; i++) {
        step->size[i] = size[n - 1 - i];
        step->step[i] = at[n - 1 - i];
    }
    return all || none;
}

static bool epi_translate(const hth_graph *graph, const hth_node *node, const hth_post_op *op,
                          int operand, hth_epilogue_step *step)
{
    *step =
        (hth_epilogue_step){.op = op->op, .alpha = op->alpha, .beta = op->beta, .input = op->input};
    if (operand < 0) {
        return hth_epilogue_known(op->op, false);
    }
    const hth_value *v = &graph->values[operand];
    return hth_epilogue_known(op->op, true) && v->dtype == HTH_DT_F32 &&
           v->layout == HTH_LAYOUT_PLAIN &&
           hth_epilogue_operand(&v->shape, &graph->values[node->outputs[0]].shape, 1, step);
}

hth_err hth_epilogue_of(const hth_graph *graph, const hth_node *node, hth_epilogue *epilogue)
{
    for (int i = 0; i < node->n_post; i++) {
        const hth_post_op *p = &node->post[i];
        if (!epi_translate(graph, node, p, p->input < 0 ? -1 : node->inputs[p->input],
                           &epilogue->step[epilogue->n++])) {
            return hth_fail(HTH_ENOTSUP, "post op %s of node '%s'", hth_op_name(p->op), node->name);
        }
    }
    return HTH_OK;
}

bool hth_epilogue_can(const hth_graph *graph, const hth_node *node, const hth_post_op *op,
                      int operand)
{
    hth_epilogue_step step;
    return node->n_post < HTH_MAX_POST_OPS && epi_translate(graph, node, op, operand, &step);
}

void hth_epilogue_bind(hth_epilogue *epilogue, void *const *in)
{
    for (int i = 0; i < epilogue->n; i++) {
        if (epilogue->step[i].input >= 0) {
            epilogue->step[i].operand = in[epilogue->step[i].input];
        }
    }
}
