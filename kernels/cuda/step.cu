// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/step.cu - the optimizers' steps (graph/autodiff/train.h), four elements per thread
// in accesses of 16 bytes. Bytes moved: parameter and state twice, the gradient once, and the
// parameter in bf16 where products and convolutions read it so. A filter's copy has its channels
// last: neighbours of a thread are written `rows` apart, but a warp's elements are those of a few
// whole stretches of channels, which the second cache puts together.
//
// Formulas are kernels/cpu/train/train_step.c's, operation by operation, and nothing is contracted
// (mk/cuda.mk): a group's members, CPUs and GPUs, make the same update to the bit.
#include "graph/autodiff/train_hyper.h"
#include "kernels/cuda/params.h"

HTH_FN float step_scale(const hth_step_params *p)
{
    return p->hyper[HTH_HYPER_GRAD_SCALE] * (p->clip != NULL ? p->clip[0] : 1);
}

// A new parameter, and its copy.
HTH_FN void step_parameter(const hth_step_params *p, uint32_t i, uint32_t n, hth_f4 w)
{
    hth_set4(p->new_p, i, n, w, 0);
    if (p->copy != NULL && p->rows == 0) {
        hth_set4(p->copy, i, n, w, 1);
    }
    for (uint32_t k = 0; p->copy != NULL && p->rows > 0 && k < n; k++) {
        uint32_t line = (i + k) / p->cols, at = (i + k) % p->cols, row = line % p->rows;
        hth_set(p->copy, ((int64_t)(line / p->rows) * p->cols + at) * p->rows + row, w.v[k], 1);
    }
}

HTH_FN uint32_t step_count(const hth_step_params *p, uint32_t i)
{
    return p->n - i < 4 ? p->n - i : 4;
}

HTH_KERNEL(hth_sgd, hth_step_params, 1)
{
    float lr = p->hyper[HTH_HYPER_LR], beta = p->hyper[HTH_HYPER_BETA1];
    float decay = p->hyper[HTH_HYPER_DECAY], scale = step_scale(p);
    for (uint32_t i = hth_index(t) * 4; i < p->n; i += hth_total(t) * 4) {
        uint32_t n = step_count(p, i);
        hth_f4 w = hth_get4(p->p, i, n, 0), g = hth_get4(p->g, i, n, 0), m = g;
        if (p->m != NULL) {
            m = hth_get4(p->m, i, n, 0);
        }
        for (int k = 0; k < 4; k++) {
            float d = g.v[k] * scale + decay * w.v[k];
            if (p->m != NULL) {
                m.v[k] = beta * m.v[k] + d;
                d = p->flag ? d + beta * m.v[k] : m.v[k];
            }
            w.v[k] -= lr * d;
        }
        step_parameter(p, i, n, w);
        if (p->m != NULL && p->new_m != NULL) {
            hth_set4(p->new_m, i, n, m, 0);
        }
    }
}

HTH_KERNEL(hth_adam, hth_step_params, 1)
{
    float lr = p->hyper[HTH_HYPER_LR], beta1 = p->hyper[HTH_HYPER_BETA1];
    float beta2 = p->hyper[HTH_HYPER_BETA2], eps = p->hyper[HTH_HYPER_EPS];
    float decay = p->hyper[HTH_HYPER_DECAY], scale = step_scale(p);
    float rate = lr / p->hyper[HTH_HYPER_CORRECT1];
    float root = 1 / sqrtf(p->hyper[HTH_HYPER_CORRECT2]), keep = p->flag ? 1 - lr * decay : 1;
    for (uint32_t i = hth_index(t) * 4; i < p->n; i += hth_total(t) * 4) {
        uint32_t n = step_count(p, i);
        hth_f4 w = hth_get4(p->p, i, n, 0), g = hth_get4(p->g, i, n, 0);
        hth_f4 m = hth_get4(p->m, i, n, 0), v = hth_get4(p->v, i, n, 0);
        for (int k = 0; k < 4; k++) {
            float d = g.v[k] * scale + (p->flag ? 0 : decay * w.v[k]);
            m.v[k] = beta1 * m.v[k] + (1 - beta1) * d;
            v.v[k] = beta2 * v.v[k] + (1 - beta2) * d * d;
            w.v[k] = w.v[k] * keep - rate * m.v[k] / (sqrtf(v.v[k]) * root + eps);
        }
        step_parameter(p, i, n, w);
        hth_set4(p->new_m, i, n, m, 0);
        hth_set4(p->new_v, i, n, v, 0);
    }
}
