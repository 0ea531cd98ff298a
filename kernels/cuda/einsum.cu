// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/einsum.cu - Einsum in the forms that are no product of two matrices (those become
// one before a device sees them): a loop over the results, in it one over what is summed.
// hth_einsum_thread gives a result to a thread, hth_einsum_block to a block where there are few.
// Bytes moved: the result, and the operands as often as their labels do not say where they are
// read.
#include "kernels/cuda/params.h"

// Product k of the sum of the result whose operands begin at base.
HTH_FN float einsum_product(const hth_einsum_params *p, const int64_t *base, uint32_t k)
{
    float v = 1;
    for (int o = 0; o < p->n_in; o++) {
        v *= p->in[o][base[o] + hth_offset(k, &p->inner, &p->inner_steps[o])];
    }
    return v;
}

HTH_FN void einsum_base(const hth_einsum_params *p, uint32_t i, int64_t *base)
{
    for (int o = 0; o < p->n_in; o++) {
        base[o] = hth_offset(i, &p->outer, &p->outer_steps[o]);
    }
}

HTH_KERNEL(hth_einsum_thread, hth_einsum_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t base[HTH_EINSUM_TERMS];
        float sum = 0;
        einsum_base(p, i, base);
        for (uint32_t k = 0; k < p->n_sum; k++) {
            sum += einsum_product(p, base, k);
        }
        p->out[i] = sum;
    }
}

HTH_KERNEL(hth_einsum_block, hth_einsum_params, 3)
{
    float *fold = shared + t->n_threads, sum = 0;
    if (phase == 0) {
        int64_t base[HTH_EINSUM_TERMS];
        einsum_base(p, t->block, base);
        for (uint32_t k = t->thread; k < p->n_sum; k += t->n_threads) {
            sum += einsum_product(p, base, k);
        }
        shared[t->thread] = sum;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2 && t->thread == 0) {
        p->out[t->block] = hth_fold_sum(fold);
    }
}
