// SPDX-License-Identifier: Apache-2.0
// Batch norm of a training step, its gradients, and the gradient of a bias: sums by channel. Of
// plain images a channel is a block's; of images with their channels last, rows are cut into
// ranges.
#include "kernels/cuda/seq.h"

#include <math.h>

#define CHANNEL_THREADS 256u
#define LAST_THREADS    1024u // per multiprocessor: that many are to have something to do
#define LAST_ROWS       16u   // of a range, at least

static hth_err channels_image(const hth_value *value, uint32_t *batch, uint32_t *channels,
                              uint32_t *size)
{
    if (value->shape.rank < 2) {
        return hth_fail(HTH_ENOTSUP, "no channels");
    }
    *batch = (uint32_t)value->shape.dim[0];
    *channels = (uint32_t)value->shape.dim[1];
    *size = *batch * *channels == 0 ? 0 : hth_cuda_count(value) / *batch / *channels;
    return HTH_OK;
}

static void channels_bind(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          size_t at, bool in, int index)
{
    if ((in ? hth_cuda_in(graph, node, index) : hth_cuda_out(graph, node, index)) != NULL) {
        hth_cuda_bind(seq, at, in ? HTH_CUDA_IN : HTH_CUDA_OUT, index, 0);
    }
}

void hth_cuda_last(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                   const hth_value *value, bool stats, hth_last_params *params,
                   hth_cuda_last_bind *bind)
{
    static const hth_cuda_kernel_id kernel[2][2] = {
        {HTH_CUDA_hth_last_sums, HTH_CUDA_hth_last_sums_join},
        {HTH_CUDA_hth_last_stats, HTH_CUDA_hth_last_stats_join}};
    params->channels = (uint32_t)value->shape.dim[1];
    params->rows = hth_cuda_count(value) / params->channels;
    uint32_t groups = (params->channels + 3) / 4, sms = (uint32_t)seq->d->base.props.n_threads;
    uint32_t parts = ((sms > 0 ? sms : 1) * LAST_THREADS + groups - 1) / groups;
    uint32_t most = (params->rows + LAST_ROWS - 1) / LAST_ROWS;
    params->parts = parts < most ? parts : most;
    size_t bytes = (size_t)params->parts * params->channels * sizeof(float);
    size_t part[2] = {hth_cuda_workspace(seq, bytes), hth_cuda_workspace(seq, bytes)};
    for (int join = 0; join < 2; join++) {
        uint64_t threads = join ? params->channels : (uint64_t)groups * params->parts;
        hth_cuda_launch_add(seq, kernel[stats][join], hth_cuda_blocks(seq, threads, false), 0, 0,
                            params, sizeof *params);
        for (int i = 0; i < 2; i++) {
            hth_cuda_bind(seq, offsetof(hth_last_params, part) + (size_t)i * sizeof params->part[0],
                          HTH_CUDA_WS, 0, part[i]);
        }
        bind(seq, graph, node);
    }
    seq->moved_bytes += 4 * bytes;
}

// An output, or where it is not wanted a place in the workspace.
static void channels_bind_kept(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                               size_t at, int index, size_t spare)
{
    bool wanted = hth_cuda_out(graph, node, index) != NULL;
    if (wanted) {
        hth_cuda_bind(seq, at, HTH_CUDA_OUT, index, 0);
    } else {
        hth_cuda_bind(seq, at, HTH_CUDA_WS, index, spare);
    }
}

static void stats_bind_at(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          size_t base)
{
    hth_cuda_bind(seq, base + offsetof(hth_channel_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, base + offsetof(hth_channel_params, running_mean), HTH_CUDA_IN, 3, 0);
    hth_cuda_bind(seq, base + offsetof(hth_channel_params, running_var), HTH_CUDA_IN, 4, 0);
    hth_cuda_bind(seq, base + offsetof(hth_channel_params, mean), HTH_CUDA_OUT, 1, 0);
    hth_cuda_bind(seq, base + offsetof(hth_channel_params, inv), HTH_CUDA_OUT, 2, 0);
    channels_bind(seq, graph, node, base + offsetof(hth_channel_params, new_mean), false, 3);
    channels_bind(seq, graph, node, base + offsetof(hth_channel_params, new_var), false, 4);
}

static void stats_bind_last(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node)
{
    stats_bind_at(seq, graph, node, offsetof(hth_last_params, stats));
}

// Statistics by channel, then a chain: (x - mean) * inv * scale + bias and the post ops.
hth_err hth_cuda_batch_norm_train(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                  const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    hth_channel_params p = {.eps = hth_node_float(node, "epsilon", 1e-5f),
                            .momentum = hth_node_float(node, "momentum", 0.9f),
                            .half = hth_cuda_half(x)};
    hth_cuda_chain c;
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    HTH_TRY(channels_image(x, &p.batch, &p.channels, &p.size));
    if (x->layout == HTH_LAYOUT_NHWC) {
        hth_last_params last = {.stats = p};
        hth_cuda_last(seq, graph, node, x, true, &last, stats_bind_last);
        seq->moved_bytes += hth_cuda_bytes(x);
    } else {
        hth_cuda_launch_add(seq, HTH_CUDA_hth_channel_stats, p.channels, CHANNEL_THREADS,
                            (CHANNEL_THREADS + 2 * HTH_FOLD) * sizeof(float), &p, sizeof p);
        stats_bind_at(seq, graph, node, 0);
        seq->moved_bytes += 2 * hth_cuda_bytes(x);
    }
    hth_shape channels = {.rank = x->shape.rank};
    for (int d = 0; d < x->shape.rank; d++) {
        channels.dim[d] = d == 1 ? x->shape.dim[1] : 1;
    }
    hth_cuda_chain_begin(&c, y);
    (void)hth_cuda_chain_value(&c, x, HTH_CUDA_IN, 0);
    int mean = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_OUT, 1, 0);
    int inv = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_OUT, 2, 0);
    int scale = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_IN, 1, 0);
    int bias = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_IN, 2, 0);
    hth_cuda_chain_step(&c, HTH_OP_SUB, mean, 0, 0);
    hth_cuda_chain_step(&c, HTH_OP_MUL, inv, 0, 0);
    hth_cuda_chain_step(&c, HTH_OP_MUL, scale, 0, 0);
    hth_cuda_chain_step(&c, HTH_OP_ADD, bias, 1, 0);
    hth_cuda_chain_posts(&c, graph, node);
    seq->posts_done = true;
    seq->base.inplace_input = x->dtype == y->dtype ? 0 : -1;
    return hth_cuda_chain_end(seq, &c, 0);
}

static void grad_bind_at(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         size_t base)
{
    static const size_t at[] = {
        offsetof(hth_channel_grad_params, dy),    offsetof(hth_channel_grad_params, x),
        offsetof(hth_channel_grad_params, scale), offsetof(hth_channel_grad_params, mean),
        offsetof(hth_channel_grad_params, inv),   offsetof(hth_channel_grad_params, bias)};
    for (int i = 0; i < 6; i++) {
        channels_bind(seq, graph, node, base + at[i], true, i);
    }
    // the first two places of the workspace are for sums that are no outputs
    size_t bytes = (size_t)hth_cuda_in(graph, node, 1)->shape.dim[1] * sizeof(float);
    size_t second = (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    channels_bind_kept(seq, graph, node, base + offsetof(hth_channel_grad_params, dscale), 1, 0);
    channels_bind_kept(seq, graph, node, base + offsetof(hth_channel_grad_params, dbias), 2,
                       second);
}

static void grad_bind_last(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node)
{
    grad_bind_at(seq, graph, node, offsetof(hth_last_params, grad));
}

hth_err hth_cuda_batch_norm_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                 const char *algorithm)
{
    const hth_value *dy = hth_cuda_in(graph, node, 0), *x = hth_cuda_in(graph, node, 1);
    const hth_value *dx = hth_cuda_out(graph, node, 0);
    hth_channel_grad_params p = {.low = hth_node_float(node, "low", 0),
                                 .high = hth_node_float(node, "high", INFINITY),
                                 .half_dy = hth_cuda_half(dy),
                                 .half_x = hth_cuda_half(x),
                                 .half_dx = hth_cuda_half(dx)};
    HTH_TRY(hth_cuda_need_float(graph, node, 2, 1));
    HTH_TRY(channels_image(x, &p.batch, &p.channels, &p.size));
    bool last = x->layout == HTH_LAYOUT_NHWC;
    if (dy->layout != x->layout || (dx != NULL && dx->layout != x->layout)) {
        return hth_fail(HTH_ENOTSUP, "input and gradients lie differently");
    }
    p.inner = last ? 1 : p.size;
    (void)hth_cuda_workspace(seq, p.channels * sizeof(float));
    (void)hth_cuda_workspace(seq, p.channels * sizeof(float));
    if (last) {
        hth_last_params all = {.grad = p};
        hth_cuda_last(seq, graph, node, x, false, &all, grad_bind_last);
    } else {
        hth_cuda_launch_add(seq, HTH_CUDA_hth_channel_grad, p.channels, CHANNEL_THREADS,
                            (2 * CHANNEL_THREADS + 2 * HTH_FOLD) * sizeof(float), &p, sizeof p);
        grad_bind_at(seq, graph, node, 0);
    }
    seq->moved_bytes += hth_cuda_bytes(dy) + hth_cuda_bytes(x);
    if (dx == NULL) {
        return HTH_OK;
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_channel_grad_apply,
                        hth_cuda_blocks(seq, hth_cuda_count(x), true), 0, 0, &p, sizeof p);
    grad_bind_at(seq, graph, node, 0);
    hth_cuda_bind(seq, offsetof(hth_channel_grad_params, dx), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(dy) + hth_cuda_bytes(x) + hth_cuda_bytes(dx);
    return HTH_OK;
}
