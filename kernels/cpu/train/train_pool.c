// SPDX-License-Identifier: Apache-2.0
// Pools of a training step. MaxPoolTrain keeps one byte per window, the position of its first
// maximum, so that the backward pass needs neither input nor output. Gradients are gathered row by
// row of the image: a row is zeroed and collects, in the first-level cache, what all windows that
// touch it send; a ReluGrad after it is done there, too. Any layout: a position is a block of 16
// or 8 channels, or one plain element.
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/vector.h"
#include "kernels/ref/ref_window.h"

typedef struct pool_kernel {
    hth_kernel base;
    int n_threads, mask; // mask: input y of a ReluGrad after, -1: none
    float low, high;
    bool max;
    hth_rows big, small; // the image, and the tensor of one element per window
    ref_window w;
    float *share[3]; // averages: 1 / divisor of each output position along each dimension
} pool_kernel;

typedef struct pool_job {
    const pool_kernel *k;
    const float *x; // of the small tensor in a gradient
    const uint8_t *from;
    const float *y;
    float *out;
    uint8_t *index;
} pool_job;

// One window: the taps that lie inside, in row-major order.
HTH_INLINE void pool_max(const ref_window *window, const float *x, const int64_t *o, float *y,
                         uint8_t *index, size_t b)
{
    float best[16];
    int32_t at[16];
    for (size_t l = 0; l < b; l++) {
        best[l] = -INFINITY;
        at[l] = -1;
    }
    int32_t tap = 0;
    for (int64_t d = 0; d < window->k[0]; d++) {
        int64_t z = o[0] * window->stride[0] - window->pad[0] + d * window->dilation[0];
        for (int64_t h = 0; h < window->k[1]; h++) {
            int64_t r = o[1] * window->stride[1] - window->pad[1] + h * window->dilation[1];
            for (int64_t c = 0; c < window->k[2]; c++, tap++) {
                int64_t i = o[2] * window->stride[2] - window->pad[2] + c * window->dilation[2];
                if (z < 0 || z >= window->in[0] || r < 0 || r >= window->in[1] || i < 0 ||
                    i >= window->in[2]) {
                    continue;
                }
                const float *v = x + (size_t)((z * window->in[1] + r) * window->in[2] + i) * b;
                for (size_t l = 0; l < b; l++) { // greater, or the first, or the first NaN
                    int take =
                        (v[l] > best[l]) | (at[l] < 0) | ((v[l] != v[l]) & (best[l] == best[l]));
                    best[l] = take ? v[l] : best[l];
                    at[l] = take ? tap : at[l];
                }
            }
        }
    }
    for (size_t l = 0; l < b; l++) {
        y[l] = best[l];
        index[l] = (uint8_t)(at[l] < 0 ? 0 : at[l]);
    }
}

HTH_VECTOR(pool_plane, (const ref_window *w, const float *x, float *y, uint8_t *index, size_t b),
           (w, x, y, index, b))
{
    size_t p = 0;
    int64_t o[3];
    for (o[0] = 0; o[0] < w->out[0]; o[0]++) {
        for (o[1] = 0; o[1] < w->out[1]; o[1]++) {
            for (o[2] = 0; o[2] < w->out[2]; o[2]++, p += b) {
                if (b == 16) {
                    pool_max(w, x, o, y + p, index + p, 16);
                } else if (b == 8) {
                    pool_max(w, x, o, y + p, index + p, 8);
                } else {
                    pool_max(w, x, o, y + p, index + p, 1);
                }
            }
        }
    }
}

static void pool_forward(void *arg, int i, int n)
{
    const pool_job *j = arg;
    const pool_kernel *k = j->k;
    size_t begin, end, from = k->big.s * k->big.b, to = k->small.s * k->small.b;
    hth_team_range(k->big.n * k->big.blocks, i, n, &begin, &end);
    for (size_t p = begin; p < end; p++) {
        pool_plane(&k->w, j->x + p * from, j->out + p * to, j->index + p * to, k->big.b);
    }
}

// Adds what the windows of one row send through taps [tap, tap + k[2]) to one row of the image.
HTH_INLINE void pool_send_row(const ref_window *window, const float *dy, const uint8_t *index,
                              const float *share, float scale, int32_t tap, float *row, size_t b)
{
    for (int64_t o = 0; o < window->out[2]; o++, dy += b) {
        for (int64_t c = 0; c < window->k[2]; c++) {
            int64_t i = o * window->stride[2] - window->pad[2] + c * window->dilation[2];
            if (i < 0 || i >= window->in[2]) {
                continue;
            }
            float *to = row + (size_t)i * b;
            for (size_t l = 0; l < b && index == NULL; l++) {
                to[l] += dy[l] * (scale * share[o]);
            }
            for (size_t l = 0; l < b && index != NULL; l++) {
                to[l] += index[(size_t)o * b + l] == tap + (int32_t)c ? dy[l] : 0;
            }
        }
    }
}

HTH_INLINE void pool_mask(float *row, const float *y, size_t n, float low, float high)
{
    for (size_t i = 0; i < n && y != NULL; i++) {
        row[i] = y[i] > low && y[i] < high ? row[i] : 0;
    }
}

// Windows that touch position `at` of a dimension by tap `t`: the output position, -1: none.
HTH_INLINE int64_t pool_window(const ref_window *window, int d, int64_t at, int64_t t)
{
    int64_t from = at + window->pad[d] - t * window->dilation[d];
    return from >= 0 && from % window->stride[d] == 0 && from / window->stride[d] < window->out[d]
               ? from / window->stride[d]
               : -1;
}

HTH_INLINE void pool_gather_row(const pool_kernel *kernel, const float *dy, const uint8_t *index,
                                int64_t z, int64_t r, float *row, size_t b)
{
    const ref_window *w = &kernel->w;
    memset(row, 0, (size_t)w->in[2] * b * sizeof *row);
    for (int64_t d = 0; d < w->k[0]; d++) {
        int64_t od = pool_window(w, 0, z, d);
        for (int64_t h = 0; h < w->k[1] && od >= 0; h++) {
            int64_t oh = pool_window(w, 1, r, h);
            size_t at = (size_t)((od * w->out[1] + oh) * w->out[2]) * b;
            if (oh >= 0) {
                float share = index == NULL ? kernel->share[0][od] * kernel->share[1][oh] : 1;
                pool_send_row(w, dy + at, index == NULL ? NULL : index + at, kernel->share[2],
                              share, (int32_t)((d * w->k[1] + h) * w->k[2]), row, b);
            }
        }
    }
}

HTH_VECTOR(pool_gather,
           (const pool_kernel *k, const float *dy, const uint8_t *index, const float *y, float *dx),
           (k, dy, index, y, dx))
{
    size_t b = k->big.b, length = (size_t)k->w.in[2] * b, at = 0;
    for (int64_t z = 0; z < k->w.in[0]; z++) {
        for (int64_t r = 0; r < k->w.in[1]; r++, at += length) {
            if (b == 16) {
                pool_gather_row(k, dy, index, z, r, dx + at, 16);
            } else if (b == 8) {
                pool_gather_row(k, dy, index, z, r, dx + at, 8);
            } else {
                pool_gather_row(k, dy, index, z, r, dx + at, 1);
            }
            pool_mask(dx + at, y == NULL ? NULL : y + at, length, k->low, k->high);
        }
    }
}

static void pool_backward(void *arg, int i, int n)
{
    const pool_job *j = arg;
    const pool_kernel *k = j->k;
    size_t begin, end, from = k->small.s * k->small.b, to = k->big.s * k->big.b;
    hth_team_range(k->big.n * k->big.blocks, i, n, &begin, &end);
    for (size_t p = begin; p < end; p++) {
        const uint8_t *index = j->from == NULL ? NULL : j->from + p * from;
        const float *y = j->y == NULL ? NULL : j->y + p * to;
        pool_gather(k, j->x + p * from, index, y, j->out + p * to);
    }
}

static hth_err pool_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const pool_kernel *k = (const pool_kernel *)base;
    pool_job j = {
        .k = k, .x = args->in[0], .from = k->max ? args->in[1] : NULL, .out = args->out[0]};
    j.y = k->mask < 0 ? NULL : args->in[k->mask];
    hth_team_set(k->n_threads);
    hth_team_run(pool_backward, &j);
    return HTH_OK;
}

static hth_err pool_train_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const pool_kernel *k = (const pool_kernel *)base;
    pool_job j = {.k = k, .x = args->in[0], .out = args->out[0], .index = args->out[1]};
    hth_team_set(k->n_threads);
    hth_team_run(pool_forward, &j);
    return HTH_OK;
}

static void pool_close(hth_kernel *base)
{
    pool_kernel *k = (pool_kernel *)base;
    hth_free(k->share[0]);
    hth_free(k);
}

// 1 / the number of taps that count, along each dimension.
static hth_err pool_shares(pool_kernel *kernel, bool count_pads)
{
    const ref_window *w = &kernel->w;
    float *p = hth_alloc((size_t)(w->out[0] + w->out[1] + w->out[2]) * sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a pool");
    }
    for (int d = 0; d < 3; d++) {
        kernel->share[d] = p;
        for (int64_t o = 0; o < w->out[d]; o++) {
            int64_t count = 0;
            for (int64_t t = 0; t < w->k[d]; t++) {
                int64_t x = o * w->stride[d] - w->pad[d] + t * w->dilation[d];
                count += x < w->in[d] + (count_pads ? w->pad_end[d] : 0) && (count_pads || x >= 0);
            }
            *p++ = count > 0 ? 1.0F / (float)count : 0;
        }
    }
    return HTH_OK;
}

static hth_err pool_open(hth_device *device, const hth_graph *graph, const hth_node *node, int big,
                         int small, int index, pool_kernel *k)
{
    const hth_value *x = &graph->values[big], *y = &graph->values[small];
    int64_t kernel[6] = {0};
    int n_kernel = hth_node_ints(node, "kernel_shape", kernel, 6);
    bool indices = index < 0 || (graph->values[index].layout == y->layout &&
                                 graph->values[index].dtype == HTH_DT_U8);
    if (x->dtype != HTH_DT_F32 || x->layout != y->layout || !indices ||
        !hth_rows_of(&x->shape, x->layout, &k->big) ||
        !hth_rows_of(&y->shape, y->layout, &k->small) || n_kernel != x->shape.rank - 2 ||
        x->shape.rank < 3) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or rank", node->name);
    }
    HTH_TRY(ref_window_init(&k->w, node, &x->shape, &y->shape, kernel, n_kernel));
    if (k->big.n != k->small.n || k->big.c != k->small.c || (size_t)k->w.n_out != k->small.s) {
        return hth_fail(HTH_ENOTSUP, "node '%s': images differ", node->name);
    }
    k->n_threads = device->props.n_threads;
    k->mask = -1;
    k->base.close = pool_close;
    k->base.implementation = "rows";
    k->base.inplace_input = -1;
    return HTH_OK;
}

static hth_err pool_make(const pool_kernel *kernel, const hth_node *node, hth_kernel **out)
{
    pool_kernel *made = hth_memdup(kernel, sizeof *kernel);
    if (made == NULL) {
        hth_free(kernel->share[0]);
        return hth_no_memory("node '%s'", node->name);
    }
    *out = &made->base;
    return HTH_OK;
}

hth_err cpu_max_pool_train_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                                   const char *algorithm, hth_kernel **out)
{
    pool_kernel k = {.max = true};
    if (algorithm != NULL || node->n_post > 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': algorithm or post ops", node->name);
    }
    HTH_TRY(
        pool_open(device, graph, node, node->inputs[0], node->outputs[0], node->outputs[1], &k));
    k.base.run = pool_train_run;
    return pool_make(&k, node, out);
}

hth_err cpu_pool_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const char *algorithm, hth_kernel **out)
{
    pool_kernel k = {.max = node->op == HTH_OP_MAX_POOL_GRAD};
    if (algorithm != NULL || node->n_post > 1 ||
        (node->n_post == 1 && node->post[0].op != HTH_OP_RELU_GRAD)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': algorithm or post ops", node->name);
    }
    HTH_TRY(pool_open(device, graph, node, node->outputs[0], node->inputs[0],
                      k.max ? node->inputs[1] : -1, &k));
    k.base.run = pool_run;
    if (node->n_post == 1) {
        k.mask = node->post[0].input;
        k.low = node->post[0].alpha;
        k.high = node->post[0].beta;
        if (graph->values[node->inputs[k.mask]].layout != graph->values[node->outputs[0]].layout) {
            return hth_fail(HTH_ENOTSUP, "node '%s': the mask lies otherwise", node->name);
        }
    }
    if (!k.max) {
        HTH_TRY(pool_shares(&k, hth_node_int(node, "count_include_pad", 0) != 0));
    }
    return pool_make(&k, node, out);
}

bool cpu_pool_grad_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_post_op *post, int operand)
{
    return node->n_post == 0 && post->op == HTH_OP_RELU_GRAD && operand >= 0;
}
