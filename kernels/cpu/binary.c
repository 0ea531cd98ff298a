// SPDX-License-Identifier: Apache-2.0
// Binary operators on blocked tensors. An operand is full, or one vector per channel block (biases,
// squeeze-and-excite), or one number per position, or one number; each is two strides, along the
// row and across the lanes, which the inner loop gets as constants for the cases that matter.
#include "kernels/cpu/blocked.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct binary_side {
    size_t n, block, s, lane; // distances in floats
} binary_side;

typedef struct binary_kernel {
    hth_kernel base;
    hth_packing packing[2];
    hth_shape packed[2]; // shapes of constants, with ones in front up to the output's rank
    hth_layout layout;
    hth_op op;
    int n_threads;
    hth_rows rows;
    binary_side side[2];
} binary_kernel;

typedef struct binary_job {
    const binary_kernel *k;
    const float *in[2];
    float *out;
} binary_job;

bool hth_rows_of(const hth_shape *shape, hth_layout layout, hth_rows *out)
{
    if (shape->rank < 2 || layout == HTH_LAYOUT_NHWC) {
        return false;
    }
    size_t b = (size_t)hth_layout_block(layout);
    *out = (hth_rows){
        .n = (size_t)shape->dim[0], .c = (size_t)shape->dim[1], .s = 1, .b = b == 0 ? 1 : b};
    for (int i = 2; i < shape->rank; i++) {
        out->s *= (size_t)shape->dim[i];
    }
    out->blocks = (out->c + out->b - 1) / out->b;
    return true;
}

void hth_rows_clear(const hth_rows *rows, size_t block, float *row)
{
    size_t lanes = rows->c - block * rows->b;
    if (lanes >= rows->b) {
        return;
    }
    for (size_t i = 0; i < rows->s; i++) {
        memset(row + i * rows->b + lanes, 0, (rows->b - lanes) * sizeof *row);
    }
}

#define BINARY_LOOP(EXPR)                                                                          \
    for (size_t i = 0; i < s; i++) {                                                               \
        for (size_t l = 0; l < B; l++) {                                                           \
            float x = p[i * ps + l * pl], y = q[i * qs + l * ql];                                  \
            out[i * B + l] = (EXPR);                                                               \
        }                                                                                          \
    }                                                                                              \
    break

static inline __attribute__((always_inline)) void binary_op(hth_op op, float *restrict out,
                                                            const float *p, size_t ps, size_t pl,
                                                            const float *q, size_t qs, size_t ql,
                                                            size_t s, size_t B)
{
    switch (op) {
    case HTH_OP_ADD:
        BINARY_LOOP(x + y);
    case HTH_OP_SUB:
        BINARY_LOOP(x - y);
    case HTH_OP_MUL:
        BINARY_LOOP(x * y);
    case HTH_OP_DIV:
        BINARY_LOOP(x / y);
    case HTH_OP_MIN:
        BINARY_LOOP(isnan(x) || x < y ? x : y);
    default:
        BINARY_LOOP(isnan(x) || x > y ? x : y);
    }
}

// One row; the four common patterns of strides are instances of their own.
static inline __attribute__((always_inline)) void
binary_row(const binary_kernel *kernel, float *out, const float *p, const float *q, size_t B)
{
    const binary_side *a = &kernel->side[0], *b = &kernel->side[1];
    size_t s = kernel->rows.s;
    if (a->s == B && a->lane == 1 && b->s == B && b->lane == 1) {
        binary_op(kernel->op, out, p, B, 1, q, B, 1, s, B);
    } else if (a->s == B && a->lane == 1 && b->s == 0 && b->lane == 1) {
        binary_op(kernel->op, out, p, B, 1, q, 0, 1, s, B);
    } else if (a->s == 0 && a->lane == 1 && b->s == B && b->lane == 1) {
        binary_op(kernel->op, out, p, 0, 1, q, B, 1, s, B);
    } else if (a->s == B && a->lane == 1 && b->s == 0 && b->lane == 0) {
        binary_op(kernel->op, out, p, B, 1, q, 0, 0, s, B);
    } else {
        binary_op(kernel->op, out, p, a->s, a->lane, q, b->s, b->lane, s, B);
    }
}

static void binary_part(void *arg, int i, int n)
{
    const binary_job *j = arg;
    const binary_kernel *k = j->k;
    const hth_rows *r = &k->rows;
    size_t begin, end;
    hth_team_range(r->n * r->blocks, i, n, &begin, &end);
    for (size_t row = begin; row < end; row++) {
        size_t in = row / r->blocks, block = row % r->blocks;
        const float *p = j->in[0] + in * k->side[0].n + block * k->side[0].block;
        const float *q = j->in[1] + in * k->side[1].n + block * k->side[1].block;
        float *out = j->out + row * r->s * r->b;
        if (r->b == 16) {
            binary_row(k, out, p, q, 16);
        } else {
            binary_row(k, out, p, q, 8);
        }
        hth_rows_clear(r, block, out);
    }
}

static hth_err binary_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const binary_kernel *k = (const binary_kernel *)base;
    binary_job j = {k, {args->in[0], args->in[1]}, args->out[0]};
    hth_team_set(k->n_threads);
    hth_team_run(binary_part, &j);
    return HTH_OK;
}

static hth_err binary_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                           void *dst)
{
    const binary_kernel *k = (const binary_kernel *)base;
    hth_team_set(k->n_threads);
    hth_cpu_relayout(sizeof(float), &k->packed[packing - base->packings], HTH_LAYOUT_PLAIN, plain,
                     k->layout, dst);
    return HTH_OK;
}

// The shape of an operand with ones in front.
static hth_shape binary_shape(const hth_shape *shape, int rank)
{
    hth_shape out = {.rank = rank};
    for (int i = 0; i < rank; i++) {
        int from = i - (rank - shape->rank);
        out.dim[i] = from < 0 ? 1 : shape->dim[from];
    }
    return out;
}

// The strides of an operand against an output of shape `shape` and layout `layout`; false for
// broadcasts of some spatial dimensions only. Constants with more than one channel count as
// blocked: they will be packed so.
static bool binary_side_of(const hth_value *value, const hth_shape *shape, hth_layout layout,
                           binary_side *out)
{
    if (value->shape.rank > shape->rank || value->dtype != HTH_DT_F32) {
        return false;
    }
    hth_shape s = binary_shape(&value->shape, shape->rank);
    size_t spatial = 1, b = (size_t)hth_layout_block(layout);
    bool full = true, one = true, channels = s.dim[1] == shape->dim[1];
    for (int i = 2; i < shape->rank; i++) {
        full = full && s.dim[i] == shape->dim[i];
        one = one && s.dim[i] == 1;
        spatial *= (size_t)s.dim[i];
    }
    bool blocked = value->constant != NULL || value->layout == layout;
    bool single = value->constant == NULL && hth_shape_elements(&s) == 1;
    if ((!full && !one) ||
        (!single && (!blocked || (value->constant == NULL && value->shape.rank != shape->rank)))) {
        return false;
    }
    size_t blocks = ((size_t)s.dim[1] + b - 1) / b;
    *out = (binary_side){.s = one ? 0 : b, .lane = channels};
    out->block = channels ? spatial * b : 0;
    out->n = s.dim[0] == 1 ? 0 : blocks * spatial * b;
    out->s = full && one ? b : out->s; // a row of one position
    return true;
}

static hth_err binary_pack_constant(binary_kernel *kernel, const hth_value *value, int input,
                                    int rank)
{
    hth_kernel *base = &kernel->base;
    hth_packing *p = &kernel->packing[base->n_packings];
    hth_shape *s = &kernel->packed[base->n_packings];
    *s = binary_shape(&value->shape, rank);
    *p = (hth_packing){.input = input, .pack = binary_pack};
    snprintf(p->form, sizeof p->form, "%s:rank=%d", hth_layout_name(kernel->layout), rank);
    base->n_packings++;
    return hth_tensor_bytes(HTH_DT_F32, s, kernel->layout, &p->bytes);
}

hth_err cpu_binary_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out)
{
    const hth_value *y = &graph->values[node->outputs[0]];
    hth_rows rows;
    if (node->n_inputs != 2 || node->n_post > 0 || algorithm != NULL || y->dtype != HTH_DT_F32 ||
        hth_layout_block(y->layout) == 0 || !hth_rows_of(&y->shape, y->layout, &rows)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not two operands to a blocked result", node->name);
    }
    binary_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){.run = binary_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "blocked",
                           .inplace_input = -1};
    k->base.packings = k->packing;
    k->op = node->op;
    k->n_threads = device->props.n_threads;
    k->rows = rows;
    k->layout = y->layout;
    hth_err err = HTH_OK;
    for (int i = 1; i >= 0 && err == HTH_OK; i--) {
        const hth_value *v = &graph->values[node->inputs[i]];
        if (!binary_side_of(v, &y->shape, y->layout, &k->side[i])) {
            err = hth_fail(HTH_ENOTSUP, "node '%s': broadcast of operand %d", node->name, i);
        } else if (v->constant != NULL) {
            err = binary_pack_constant(k, v, i, y->shape.rank);
        } else if (hth_shape_equal(&v->shape, &y->shape)) {
            k->base.inplace_input = i;
        }
    }
    if (err != HTH_OK) {
        hth_cpu_kernel_free(&k->base);
        return err;
    }
    *out = &k->base;
    return HTH_OK;
}

hth_layout cpu_binary_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                             bool *any)
{
    const hth_value *y = &graph->values[node->outputs[0]];
    hth_layout blocked;
    hth_cpu_block(device, &blocked);
    *any = y->dtype == HTH_DT_F32 && y->shape.rank >= 3 && y->shape.rank <= 5 &&
           node->n_inputs == 2 && node->n_post == 0;
    for (int i = 0; i < 2 && *any; i++) {
        hth_value v = graph->values[node->inputs[i]];
        binary_side side;
        v.layout = v.constant == NULL && v.shape.rank >= 3
                       ? blocked
                       : HTH_LAYOUT_PLAIN; // as the layout pass will do
        *any = binary_side_of(&v, &y->shape, blocked, &side);
    }
    return HTH_LAYOUT_PLAIN;
}
