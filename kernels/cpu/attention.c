// SPDX-License-Identifier: Apache-2.0
// FusedAttention: for every head, K^T and V are packed into panels once; then blocks of rows of Q
// are multiplied, their scores, which stay in the cache, turned into weights, and multiplied by V
// straight into the output's strides. A block of scores is at most ATTENTION_SCORES floats (or one
// tile's rows), so long sequences need no online softmax: a row is complete when it is normalised.
// Threads take pairs (head, block of rows); each packs the heads it meets for itself.
#include "kernels/cpu/plain.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "graph/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"

#define ATTENTION_SCORES 65536
#define ATTENTION_ROWS   14 // at least: the most rows of a tile

typedef struct attention_kernel {
    hth_kernel base;
    hth_attention at;
    size_t rows, blocks; // of Q per block, and blocks per head
    size_t k_bytes, v_bytes, score_bytes, thread_bytes;
    int n_threads;
} attention_kernel;

typedef struct attention_job {
    const attention_kernel *k;
    const float *q, *key, *value, *mask;
    float *out;
    char *workspace;
} attention_job;

typedef struct attention_head {
    int64_t b0, b1;
    float *k, *v, *scores, *scratch;
} attention_head;

static int64_t attention_at(const hth_attention_view *view, const attention_head *head, int64_t row)
{
    return view->offset + head->b0 * view->stride[0] + head->b1 * view->stride[1] +
           row * view->stride[2];
}

static void attention_pack(const attention_job *job, const attention_head *head)
{
    const hth_attention *a = &job->k->at;
    size_t s = (size_t)a->s, d = (size_t)a->d, e = (size_t)a->e;
    hth_gemm_pack(job->key + attention_at(&a->k, head, 0), (size_t)a->k.stride[3],
                  (size_t)a->k.stride[2], d, s, 0, hth_gemm_panels(s), head->k);
    hth_gemm_pack(job->value + attention_at(&a->v, head, 0), (size_t)a->v.stride[2],
                  (size_t)a->v.stride[3], s, e, 0, hth_gemm_panels(e), head->v);
}

static void attention_block(const attention_job *job, const attention_head *head, size_t t0,
                            size_t t1)
{
    const hth_attention *a = &job->k->at;
    size_t s = (size_t)a->s;
    hth_gemm scores = {.m = t1 - t0,
                       .n = s,
                       .k = (size_t)a->d,
                       .a = job->q + attention_at(&a->q, head, (int64_t)t0),
                       .a_row = (size_t)a->q.stride[2],
                       .a_col = (size_t)a->q.stride[3],
                       .b = head->k,
                       .c = head->scores,
                       .c_row = s,
                       .alpha = a->scale};
    hth_gemm_block(&scores, 0, scores.m, 0, hth_gemm_panels(s), head->scratch);
    for (size_t t = t0; t < t1; t++) {
        float *row = head->scores + (t - t0) * s;
        if (job->mask != NULL) {
            hth_softmax_mask(row, job->mask + attention_at(&a->mask, head, (int64_t)t),
                             (size_t)a->mask.stride[3], s);
        }
        hth_softmax_row(row, row, s, 0); // a query that may see nothing gets nothing
    }
    hth_gemm sum = {.m = t1 - t0,
                    .n = (size_t)a->e,
                    .k = s,
                    .a = head->scores,
                    .a_row = s,
                    .a_col = 1,
                    .b = head->v,
                    .c = job->out + attention_at(&a->out, head, (int64_t)t0),
                    .c_row = (size_t)a->out.stride[2],
                    .alpha = 1};
    hth_gemm_block(&sum, 0, sum.m, 0, hth_gemm_panels(sum.n), head->scratch);
}

static void attention_share(void *arg, int i, int n)
{
    const attention_job *j = arg;
    const attention_kernel *k = j->k;
    const hth_attention *a = &k->at;
    char *ws = j->workspace + (size_t)i * k->thread_bytes;
    size_t at_v = k->k_bytes, at_scores = at_v + k->v_bytes,
           at_scratch = at_scores + k->score_bytes;
    attention_head h = {.k = hth_cpu_floats(ws, 0),
                        .v = hth_cpu_floats(ws, at_v),
                        .scores = hth_cpu_floats(ws, at_scores),
                        .scratch = hth_cpu_floats(ws, at_scratch)};
    size_t begin, end, packed = SIZE_MAX, t = (size_t)a->t;
    hth_team_range((size_t)(a->b0 * a->b1) * k->blocks, i, n, &begin, &end);
    for (size_t w = begin; w < end; w++) {
        size_t head = w / k->blocks, block = w % k->blocks;
        h.b0 = (int64_t)head / a->b1;
        h.b1 = (int64_t)head % a->b1;
        if (head != packed) {
            attention_pack(j, &h);
            packed = head;
        }
        attention_block(j, &h, t * block / k->blocks, t * (block + 1) / k->blocks);
    }
}

static hth_err attention_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const attention_kernel *k = (const attention_kernel *)base;
    attention_job j = {.k = k,
                       .q = args->in[0],
                       .key = args->in[1],
                       .value = args->in[2],
                       .mask = k->at.has_mask ? args->in[3] : NULL,
                       .out = args->out[0],
                       .workspace = args->workspace};
    hth_team_set(k->n_threads);
    hth_team_run(attention_share, &j);
    return HTH_OK;
}

static size_t attention_align(size_t bytes)
{
    return (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
}

// Rows per block: within ATTENTION_SCORES, and so that all threads have work.
static void attention_blocks(attention_kernel *kernel)
{
    const hth_attention *a = &kernel->at;
    size_t heads = (size_t)(a->b0 * a->b1), t = (size_t)a->t, threads = (size_t)kernel->n_threads;
    size_t most = ATTENTION_SCORES / (size_t)a->s;
    most = most < ATTENTION_ROWS ? ATTENTION_ROWS : most;
    kernel->blocks = (t + most - 1) / most;
    if (heads % threads != 0 && heads < 4 * threads && t >= threads * ATTENTION_ROWS) {
        kernel->blocks = (kernel->blocks + threads - 1) / threads * threads;
    }
    kernel->rows = (t + kernel->blocks - 1) / kernel->blocks;
    kernel->k_bytes = attention_align(hth_gemm_packed_bytes((size_t)a->d, (size_t)a->s));
    kernel->v_bytes = attention_align(hth_gemm_packed_bytes((size_t)a->s, (size_t)a->e));
    kernel->score_bytes = attention_align(kernel->rows * (size_t)a->s * sizeof(float));
    kernel->thread_bytes = kernel->k_bytes + kernel->v_bytes + kernel->score_bytes +
                           hth_gemm_scratch_bytes(kernel->rows);
    kernel->base.workspace_bytes = threads * kernel->thread_bytes;
}

static bool attention_takes(const hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < node->n_inputs; i++) {
        const hth_value *v = node->inputs[i] < 0 ? NULL : &graph->values[node->inputs[i]];
        if (v != NULL && (v->dtype != HTH_DT_F32 || v->layout != HTH_LAYOUT_PLAIN)) {
            return false;
        }
    }
    const hth_value *y = &graph->values[node->outputs[0]];
    return y->dtype == HTH_DT_F32 && y->layout == HTH_LAYOUT_PLAIN && node->n_post == 0;
}

hth_err cpu_attention_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const char *algorithm, hth_kernel **out)
{
    hth_attention a;
    HTH_TRY(hth_attention_get(graph, node, &a));
    bool empty = a.b0 * a.b1 * a.t * a.s * a.d * a.e == 0;
    if (algorithm != NULL || !attention_takes(graph, node) || empty || a.out.stride[3] != 1) {
        return hth_fail(HTH_ENOTSUP, "node '%s': layout, dtype or strides", node->name);
    }
    attention_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){.run = attention_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "attention",
                           .inplace_input = -1};
    k->at = a;
    k->n_threads = device->props.n_threads;
    attention_blocks(k);
    *out = &k->base;
    return HTH_OK;
}
