// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_step.c - what puts gradients back where values came from (Gather, Slice),
// and the optimizers' steps.
//
// The steps are torch.optim's formulas. Their outputs may share the buffers of their inputs:
// everything is read into scratch before anything is written.
#include "graph/autodiff/train.h"
#include "kernels/ref/ref_num.h"

#include <math.h>

static hth_err gather_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                hth_tensor *out)
{
    const hth_shape *s = &out[0].shape;
    int axis = ref_axis(hth_node_int(node, "axis", 0), s->rank);
    int64_t outer, along, inner, count = ref_count(&in[1]);
    double *dy, *dx;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    ref_around(s, axis, &outer, &along, &inner);
    HTH_TRY(ref_need_count(&in[0], outer * count * inner));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(REF_TAKE(mem, ref_count(&out[0]), &dx));
    for (int64_t k = 0; k < outer * count; k++) {
        int64_t at = ref_get_i64(in[1].dtype, in[1].data, k % count);
        if (!ref_index(&at, along)) {
            return ref_bad_index(at, along);
        }
        for (int64_t i = 0; i < inner; i++) {
            dx[(k / count * along + at) * inner + i] += dy[k * inner + i];
        }
    }
    ref_round(dx, &out[0]);
    return HTH_OK;
}

REF_KERNEL(ref_slice_grad)
{
    const hth_shape *s = &out[0].shape, *chunk = &in[0].shape;
    int64_t starts[HTH_MAX_RANK], steps[HTH_MAX_RANK], dst[HTH_MAX_RANK], src[HTH_MAX_RANK];
    int64_t first = 0;
    size_t bytes = hth_dtype_bytes(out[0].dtype);
    if (chunk->rank != s->rank || hth_node_ints(n, "starts", starts, HTH_MAX_RANK) != s->rank ||
        hth_node_ints(n, "steps", steps, HTH_MAX_RANK) != s->rank) {
        return hth_fail(HTH_EINVAL, "starts and steps do not fit the shape");
    }
    ref_steps(s, dst);
    ref_steps(chunk, src);
    for (int i = 0; i < s->rank; i++) {
        int64_t end = starts[i] + (chunk->dim[i] - 1) * steps[i];
        if (chunk->dim[i] > 0 && (starts[i] < 0 || starts[i] >= s->dim[i] || end < 0 ||
                                  end >= s->dim[i] || steps[i] == 0)) {
            return hth_fail(HTH_EINVAL, "dimension %d leaves the tensor", i);
        }
        first += starts[i] * dst[i];
        dst[i] *= steps[i];
    }
    memset(out[0].data, 0, (size_t)ref_count(&out[0]) * bytes);
    if (ref_count(&in[0]) > 0) {
        ref_copy(s->rank, chunk->dim, (char *)out[0].data + (size_t)first * bytes, dst, in[0].data,
                 src, bytes);
    }
    return HTH_OK;
}

static double hyper_at(const hth_tensor *hyper, hth_hyper i)
{
    return ref_f64_at(hyper, i);
}

static hth_err clip_scale_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                               hth_tensor *out)
{
    double sum = 0;
    double *g;
    for (int i = 1; i < node->n_inputs; i++) {
        HTH_TRY(ref_wide(mem, &in[i], &g));
        for (int64_t k = 0; k < ref_count(&in[i]); k++) {
            sum += g[k] * g[k];
        }
    }
    double norm = sqrt(sum) * hyper_at(&in[0], HTH_HYPER_GRAD_SCALE);
    double scale = fmin(1, hth_node_float(node, "max_norm", 1) / (norm + 1e-6));
    double given = hyper_at(&in[0], HTH_HYPER_CLIP);
    scale = given > 0 ? given : scale;
    ref_round(&scale, &out[0]);
    return HTH_OK;
}

typedef struct step {
    int64_t n;
    double *p, *g, *m, *v; // parameter, gradient (scaled), state
    double lr, beta1, beta2, eps, decay, correct1, correct2;
} step;

// Reads everything; the hyper vector is input h, `n_state` tensors of state start at input 2.
static hth_err step_open(ref_mem *mem, const hth_node *node, const hth_tensor *in, int h, step *s)
{
    const hth_tensor *hyper = &in[h], *clip = ref_in(node, in, h + 1);
    double **state[] = {&s->p, &s->g, &s->m, &s->v};
    *s = (step){.n = ref_count(&in[0]),
                .lr = hyper_at(hyper, HTH_HYPER_LR),
                .beta1 = hyper_at(hyper, HTH_HYPER_BETA1),
                .beta2 = hyper_at(hyper, HTH_HYPER_BETA2),
                .eps = hyper_at(hyper, HTH_HYPER_EPS),
                .decay = hyper_at(hyper, HTH_HYPER_DECAY),
                .correct1 = hyper_at(hyper, HTH_HYPER_CORRECT1),
                .correct2 = hyper_at(hyper, HTH_HYPER_CORRECT2)};
    HTH_TRY(ref_need_count(hyper, HTH_N_HYPER));
    for (int i = 0; i < h; i++) {
        if (node->inputs[i] >= 0) {
            HTH_TRY(ref_need_count(&in[i], s->n));
            HTH_TRY(ref_wide(mem, &in[i], state[i]));
        }
    }
    double scale = hyper_at(hyper, HTH_HYPER_GRAD_SCALE) * (clip ? ref_f64_at(clip, 0) : 1);
    for (int64_t i = 0; i < s->n; i++) {
        s->g[i] *= scale;
    }
    return HTH_OK;
}

// The new parameter, and its copy in bf16 (output `copy`), rounded from what the parameter holds.
static void step_parameter(const hth_node *node, const step *s, hth_tensor *out, int copy)
{
    ref_round(s->p, &out[0]);
    if (ref_out(node, out, copy) != NULL) {
        ref_convert(HTH_DT_BF16, out[copy].data, out[0].dtype, out[0].data, s->n);
    }
}

static hth_err sgd_step_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    bool nesterov = hth_node_int(node, "nesterov", 0) != 0;
    step s;
    HTH_TRY(step_open(mem, node, in, 3, &s));
    for (int64_t i = 0; i < s.n; i++) {
        double g = s.g[i] + s.decay * s.p[i];
        if (s.m != NULL) {
            s.m[i] = s.beta1 * s.m[i] + g;
            g = nesterov ? g + s.beta1 * s.m[i] : s.m[i];
        }
        s.p[i] -= s.lr * g;
    }
    step_parameter(node, &s, out, 2);
    if (s.m != NULL && ref_out(node, out, 1) != NULL) {
        ref_round(s.m, &out[1]);
    }
    return HTH_OK;
}

static hth_err adam_step_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                              hth_tensor *out)
{
    bool decoupled = hth_node_int(node, "decoupled", 0) != 0;
    step s;
    HTH_TRY(step_open(mem, node, in, 4, &s));
    for (int64_t i = 0; i < s.n; i++) {
        double g = s.g[i] + (decoupled ? 0 : s.decay * s.p[i]);
        s.p[i] *= decoupled ? 1 - s.lr * s.decay : 1;
        s.m[i] = s.beta1 * s.m[i] + (1 - s.beta1) * g;
        s.v[i] = s.beta2 * s.v[i] + (1 - s.beta2) * g * g;
        s.p[i] -= s.lr / s.correct1 * s.m[i] / (sqrt(s.v[i] / s.correct2) + s.eps);
    }
    step_parameter(node, &s, out, 3);
    ref_round(s.m, &out[1]);
    ref_round(s.v, &out[2]);
    return HTH_OK;
}

REF_OP(ref_gather_grad, gather_grad_body)
REF_OP(ref_clip_scale, clip_scale_body)
REF_OP(ref_sgd_step, sgd_step_body)
REF_OP(ref_adam_step, adam_step_body)
