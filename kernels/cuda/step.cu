// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/step.cu - the optimizers' steps (graph/train.h), four elements per thread in accesses
// of 16 bytes. Bytes moved: parameter and state twice, the gradient once.
#include "graph/train_hyper.h"
#include "kernels/cuda/params.h"

HTH_FN float step_scale(const hth_step_params *p)
{
    return p->hyper[HTH_HYPER_GRAD_SCALE] * (p->clip != NULL ? p->clip[0] : 1);
}

HTH_FN hth_f4 step_load(const float *x, uint32_t i, uint32_t n)
{
    hth_f4 r = {{0, 0, 0, 0}};
    if (n == 4) {
        return *(const hth_f4 *)(const void *)(x + i);
    }
    for (uint32_t k = 0; k < n; k++) {
        r.v[k] = x[i + k];
    }
    return r;
}

HTH_FN void step_store(float *x, uint32_t i, uint32_t n, hth_f4 v)
{
    if (n == 4) {
        *(hth_f4 *)(void *)(x + i) = v;
        return;
    }
    for (uint32_t k = 0; k < n; k++) {
        x[i + k] = v.v[k];
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
        hth_f4 w = step_load(p->p, i, n), g = step_load(p->g, i, n), m = g;
        if (p->m != NULL) {
            m = step_load(p->m, i, n);
        }
        for (int k = 0; k < 4; k++) {
            float d = g.v[k] * scale + decay * w.v[k];
            if (p->m != NULL) {
                m.v[k] = beta * m.v[k] + d;
                d = p->flag ? d + beta * m.v[k] : m.v[k];
            }
            w.v[k] -= lr * d;
        }
        step_store(p->new_p, i, n, w);
        if (p->m != NULL && p->new_m != NULL) {
            step_store(p->new_m, i, n, m);
        }
    }
}

HTH_KERNEL(hth_adam, hth_step_params, 1)
{
    float lr = p->hyper[HTH_HYPER_LR], beta1 = p->hyper[HTH_HYPER_BETA1];
    float beta2 = p->hyper[HTH_HYPER_BETA2], eps = p->hyper[HTH_HYPER_EPS];
    float decay = p->hyper[HTH_HYPER_DECAY], scale = step_scale(p);
    float size = lr / p->hyper[HTH_HYPER_CORRECT1], correct2 = p->hyper[HTH_HYPER_CORRECT2];
    for (uint32_t i = hth_index(t) * 4; i < p->n; i += hth_total(t) * 4) {
        uint32_t n = step_count(p, i);
        hth_f4 w = step_load(p->p, i, n), g = step_load(p->g, i, n);
        hth_f4 m = step_load(p->m, i, n), v = step_load(p->v, i, n);
        for (int k = 0; k < 4; k++) {
            float d = g.v[k] * scale + (p->flag ? 0 : decay * w.v[k]);
            w.v[k] *= p->flag ? 1 - lr * decay : 1;
            m.v[k] = beta1 * m.v[k] + (1 - beta1) * d;
            v.v[k] = beta2 * v.v[k] + (1 - beta2) * d * d;
            w.v[k] -= size * m.v[k] / (sqrtf(v.v[k] / correct2) + eps);
        }
        step_store(p->new_p, i, n, w);
        step_store(p->new_m, i, n, m);
        step_store(p->new_v, i, n, v);
    }
}
