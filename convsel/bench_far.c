// SPDX-License-Identifier: Apache-2.0
// Timing a node on a device whose memory the host does not see. Operands lie in memory of the
// cache's owner, one buffer each; a run is launched on a stream, and events around several runs
// give their time. Caches are as the runs leave them.
#include "convsel/bench.h"

#include "base/alloc.h"

#include <string.h>

#define FAR_RUNS 5

typedef struct far_bench {
    hth_device *device;
    const hth_timing_cache *cache;
    hth_kernel *kernel;
    int n_in, n_out;
    void **buffer; // inputs, outputs, workspace
    hth_stream *stream;
    hth_event *from, *to;
    hth_kernel_args args;
} far_bench;

static uint32_t far_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*seed >> 33);
}

// A constant's content; random numbers in [0.5, 1.5) of f32, which optimizers can divide by; zeros.
static hth_err far_fill(far_bench *b, const hth_value *v, void *to, size_t bytes, uint64_t seed)
{
    const void *data;
    if (v->constant != NULL) {
        HTH_TRY(hth_const_map(v->constant, &data));
        hth_err err = hth_device_put(b->device, to, data, bytes);
        hth_const_unmap(v->constant);
        return err;
    }
    if (v->dtype != HTH_DT_F32) {
        return hth_device_zero(b->device, to, bytes);
    }
    float *random = hth_alloc(bytes);
    if (random == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to measure a node");
    }
    for (size_t i = 0; i < bytes / sizeof *random; i++) {
        random[i] = 0.5F + (float)far_next(&seed) * 0x1p-31F;
    }
    hth_err err = hth_device_put(b->device, to, random, bytes);
    hth_free(random);
    return err;
}

static hth_err far_take(far_bench *b, int k, size_t bytes)
{
    b->buffer[k] = b->cache->take(b->cache->owner, bytes > 0 ? bytes : 1);
    return b->buffer[k] != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no room to measure a node");
}

static hth_err far_operands(far_bench *b, const hth_graph *g, const hth_node *n)
{
    for (int k = 0; k < b->n_in + b->n_out; k++) {
        int id = k < b->n_in ? n->inputs[k] : n->outputs[k - b->n_in];
        size_t bytes;
        if (id < 0) {
            continue;
        }
        const hth_value *v = &g->values[id];
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes));
        HTH_TRY(far_take(b, k, bytes));
        HTH_TRY(k < b->n_in ? far_fill(b, v, b->buffer[k], bytes, (uint64_t)k + 1) : HTH_OK);
    }
    return HTH_OK;
}

static hth_err far_launched(void *arg)
{
    const far_bench *b = arg;
    return b->kernel->run(b->kernel, &b->args);
}

static hth_err far_time(far_bench *b, double *us)
{
    HTH_TRY(hth_stream_launch(b->stream, far_launched, b)); // warm-up
    HTH_TRY(hth_stream_record(b->stream, b->from));
    for (int i = 0; i < FAR_RUNS; i++) {
        HTH_TRY(hth_stream_launch(b->stream, far_launched, b));
    }
    HTH_TRY(hth_stream_record(b->stream, b->to));
    HTH_TRY(hth_stream_sync(b->stream));
    uint64_t from = hth_event_time_ns(b->from), to = hth_event_time_ns(b->to);
    *us = to > from ? (double)(to - from) / 1e3 / FAR_RUNS : 0;
    return HTH_OK;
}

static hth_err far_open(far_bench *b, const hth_graph *g, const hth_node *n, const char *name)
{
    b->buffer = hth_calloc((size_t)(b->n_in + b->n_out) + 1, sizeof *b->buffer);
    if (b->buffer == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to measure a node");
    }
    HTH_TRY(hth_kernel_prepare(b->device, g, n, name, &b->kernel));
    HTH_TRY(far_operands(b, g, n));
    HTH_TRY(far_take(b, b->n_in + b->n_out, b->kernel->workspace_bytes));
    b->args = (hth_kernel_args){b->buffer, b->buffer + b->n_in, b->buffer[b->n_in + b->n_out]};
    HTH_TRY(hth_stream_open(b->device, HTH_STREAM_COMPUTE, &b->stream));
    HTH_TRY(hth_event_open(b->device, &b->from));
    return hth_event_open(b->device, &b->to);
}

hth_err hth_bench_far(hth_device *d, const hth_graph *g, const hth_node *n,
                      const hth_timing_cache *cache, hth_choice *c)
{
    far_bench b = {.device = d, .cache = cache, .n_in = n->n_inputs, .n_out = n->n_outputs};
    if (cache == NULL || cache->take == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory of the device to measure a node with");
    }
    hth_err err = far_open(&b, g, n, c->name);
    err = err == HTH_OK ? far_time(&b, &c->time_us) : err;
    if (err == HTH_OK) {
        c->workspace_bytes = b.kernel->workspace_bytes;
    }
    hth_stream_close(b.stream);
    hth_event_close(b.from);
    hth_event_close(b.to);
    for (int k = 0; b.buffer != NULL && k <= b.n_in + b.n_out; k++) {
        if (b.buffer[k] != NULL) {
            cache->give(cache->owner, b.buffer[k]);
        }
    }
    hth_free(b.buffer);
    hth_kernel_close(b.kernel);
    return err;
}
