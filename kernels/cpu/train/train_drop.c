// SPDX-License-Identifier: Apache-2.0
// Dropout in training: element i of a plain tensor stays when its number of kernels/philox.h is at
// least the threshold, and is then scaled up. Sixteen blocks of four numbers are drawn side by
// side, each round a few vector instructions; the numbers are those of hth_dropout_words, whatever
// the instruction set, so a recomputed step and its gradient see the same mask.
#include "kernels/cpu/train/train.h"

#include "device/cpu/team.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"
#include "kernels/philox.h"

#define DRAWS 16 // blocks of four numbers at once

typedef struct drop_kernel {
    hth_kernel base;
    int n_threads;
    uint64_t salt, threshold;
    float scale;
    size_t n;
} drop_kernel;

typedef struct drop_job {
    const drop_kernel *k;
    const float *x;
    float *y;
    uint64_t step;
} drop_job;

// The numbers of blocks first .. first + DRAWS - 1: word[w][i] is number w of block first + i.
HTH_VECTOR(drop_draw, (uint64_t first, uint64_t step, uint64_t salt, uint32_t (*word)[DRAWS]),
           (first, step, salt, word))
{
    uint32_t key0 = (uint32_t)salt, key1 = (uint32_t)(salt >> 32);
    for (size_t i = 0; i < DRAWS; i++) {
        word[0][i] = (uint32_t)(first + i);
        word[1][i] = (uint32_t)((first + i) >> 32);
        word[2][i] = (uint32_t)step;
        word[3][i] = (uint32_t)(step >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < DRAWS; i++) {
            uint64_t p = UINT64_C(0xD2511F53) * word[0][i], q = UINT64_C(0xCD9E8D57) * word[2][i];
            word[0][i] = (uint32_t)(q >> 32) ^ word[1][i] ^ key0;
            word[2][i] = (uint32_t)(p >> 32) ^ word[3][i] ^ key1;
            word[1][i] = (uint32_t)q;
            word[3][i] = (uint32_t)p;
        }
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
}

static void drop_part(void *arg, int i, int n)
{
    const drop_job *j = arg;
    const drop_kernel *k = j->k;
    const size_t at_once = 4 * DRAWS;
    uint32_t word[4][DRAWS];
    size_t begin, end;
    hth_team_range((k->n + at_once - 1) / at_once, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        size_t first = u * at_once, left = k->n - first;
        drop_draw(u * DRAWS, j->step, k->salt, word);
        for (size_t e = 0; e < (left < at_once ? left : at_once); e++) {
            bool keep = word[e % 4][e / 4] >= k->threshold;
            j->y[first + e] = keep ? j->x[first + e] * k->scale : 0;
        }
    }
}

static hth_err drop_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const drop_kernel *k = (const drop_kernel *)base;
    drop_job j = {k, args->in[0], args->out[0], *(const uint64_t *)args->in[1]};
    hth_cpu_share(k->n_threads, k->n * 8, drop_part, &j);
    return HTH_OK;
}

hth_err cpu_dropout_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const char *algorithm, hth_kernel **out)
{
    float ratio = hth_node_float(node, "ratio", 0.5F);
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, 1)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or post ops", node->name);
    }
    drop_kernel k = {.n_threads = device->props.n_threads,
                     .salt = (uint64_t)hth_node_int(node, "salt", 0),
                     .threshold = hth_dropout_threshold(ratio),
                     .scale = ratio < 1 ? 1.0F / (1.0F - ratio) : 0,
                     .n = (size_t)hth_shape_elements(&graph->values[node->inputs[0]].shape)};
    k.base = (hth_kernel){.run = drop_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "philox",
                          .inplace_input = 0};
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
