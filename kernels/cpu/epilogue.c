// SPDX-License-Identifier: Apache-2.0
// One loop per operator over a tile of rows; the usual width of a tile is a constant for the
// compiler. No state: any thread.
#include "kernels/cpu/epilogue.h"

#include "kernels/cpu/vector.h"

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
        const float *q = s->operand + (row + i) / s->div % s->mod * s->row + col * s->col;         \
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

HTH_INLINE void epi_step(const hth_epilogue_step *s, float *y, size_t ld, size_t row, size_t rows,
                         size_t col, size_t n)
{
    float alpha = s->alpha, beta = s->beta;
    switch (s->op) {
    case HTH_OP_ADD:
        EPI_WITH(x + alpha * o);
    case HTH_OP_MUL:
        EPI_WITH(x * o);
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
    default:
        break;
    }
}

HTH_VECTOR(epi_wide,
           (const hth_epilogue_step *s, float *y, size_t ld, size_t row, size_t rows, size_t col),
           (s, y, ld, row, rows, col))
{
    epi_step(s, y, ld, row, rows, col, 32);
}

HTH_VECTOR(epi_any,
           (const hth_epilogue_step *s, float *y, size_t ld, size_t row, size_t rows, size_t col,
            size_t n),
           (s, y, ld, row, rows, col, n))
{
    epi_step(s, y, ld, row, rows, col, n);
}

void hth_epilogue_apply(const hth_epilogue *e, float *y, size_t ld, size_t row, size_t rows,
                        size_t col, size_t n)
{
    for (int i = 0; i < e->n; i++) {
        if (n == 32) {
            epi_wide(&e->step[i], y, ld, row, rows, col);
        } else {
            epi_any(&e->step[i], y, ld, row, rows, col, n);
        }
    }
}

static bool epi_known(hth_op op, bool binary)
{
    switch (op) {
    case HTH_OP_ADD:
    case HTH_OP_MUL:
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
        return !binary;
    default:
        return false;
    }
}

// Leading dimensions of the operand must be ones, then the output's, then ones: row = i / div %
// mod.
bool hth_epilogue_operand(const hth_shape *s, const hth_shape *y, hth_epilogue_step *step)
{
    int lead = y->rank - s->rank, phase = 0;
    if (lead < 0 || y->rank < 1) {
        return false;
    }
    int64_t last = s->rank > 0 ? s->dim[s->rank - 1] : 1, n = y->dim[y->rank - 1];
    step->col = last == n && n != 1;
    step->row = (size_t)last;
    step->div = step->mod = 1;
    if (last != n && last != 1) {
        return false;
    }
    for (int i = 0; i < y->rank - 1; i++) {
        int64_t d = i < lead ? 1 : s->dim[i - lead];
        if (y->dim[i] == 1) {
            continue;
        }
        if (d != 1 && d != y->dim[i]) {
            return false;
        }
        phase = phase == 0 && d != 1 ? 1 : phase == 1 && d == 1 ? 2 : phase;
        if (phase == 2 && d != 1) {
            return false;
        }
        step->mod *= phase == 1 ? (size_t)d : 1;
        step->div *= phase == 2 ? (size_t)y->dim[i] : 1;
    }
    return true;
}

static bool epi_translate(const hth_graph *g, const hth_node *n, const hth_post_op *p, int operand,
                          hth_epilogue_step *step)
{
    *step = (hth_epilogue_step){.op = p->op, .alpha = p->alpha, .beta = p->beta, .input = p->input};
    if (operand < 0) {
        return epi_known(p->op, false);
    }
    const hth_value *v = &g->values[operand];
    return epi_known(p->op, true) && v->dtype == HTH_DT_F32 && v->layout == HTH_LAYOUT_PLAIN &&
           hth_epilogue_operand(&v->shape, &g->values[n->outputs[0]].shape, step);
}

hth_err hth_epilogue_of(const hth_graph *g, const hth_node *n, hth_epilogue *e)
{
    for (int i = 0; i < n->n_post; i++) {
        const hth_post_op *p = &n->post[i];
        if (!epi_translate(g, n, p, p->input < 0 ? -1 : n->inputs[p->input], &e->step[e->n++])) {
            return hth_fail(HTH_ENOTSUP, "post op %s of node '%s'", hth_op_name(p->op), n->name);
        }
    }
    return HTH_OK;
}

bool hth_epilogue_can(const hth_graph *g, const hth_node *n, const hth_post_op *p, int operand)
{
    hth_epilogue_step step;
    return n->n_post < HTH_MAX_POST_OPS && epi_translate(g, n, p, operand, &step);
}

void hth_epilogue_bind(hth_epilogue *e, void *const *in)
{
    for (int i = 0; i < e->n; i++) {
        if (e->step[i].input >= 0) {
            e->step[i].operand = in[e->step[i].input];
        }
    }
}
