// SPDX-License-Identifier: Apache-2.0
// Measuring a node on a device whose memory the host does not see. The operands are made in the
// host's memory as for any other device (bench.c) and copied once, to one block of the device that
// lies as they do; all choices of the node share it. A run is launched on a stream, and the
// device's own events give the time of several: caches are as the runs leave them. For the error
// the sampled points of the result come back.
#include "convsel/bench_impl.h"

#include "base/alloc.h"

#define DEVICE_RUNS  5
#define DEVICE_TRIES 3                 // of a turn whose events tell no time
#define DEVICE_US    20000.0           // of a turn, about; longer runs are timed one by one
#define DEVICE_WHOLE ((size_t)4 << 20) // results up to here come back in one copy

struct hth_bench_device {
    hth_device *device;
    hth_bench *host; // contents, and what is compared
    const hth_timing_cache *cache;
    char *operands; // on the device, as host->operands lie
    void *workspace;
    size_t workspace_bytes;
    void **in, **out, **packed; // addresses on the device
    hth_stream *stream;
    hth_event *from, *to;
    const hth_device_kept *kept; // the device's: plans of choices that are only tried are not kept
    const hth_kernel *kernel;    // at work
    hth_kernel_args args;
};

static hth_err device_no_room(const hth_bench_device *device)
{
    return hth_fail(HTH_ENOMEM, "not enough memory on %s to measure node '%s'",
                    device->host->device->props.name, device->host->node->name);
}

static void *device_take(const hth_bench_device *device, size_t bytes)
{
    return device->cache->take(device->cache->owner, bytes > 0 ? bytes : 1);
}

static void device_give(const hth_bench_device *device, void *p)
{
    if (p != NULL) {
        device->cache->give(device->cache->owner, p);
    }
}

// Where an operand of the host's block is on the device.
static void *device_of(const hth_bench_device *device, const void *host)
{
    return host == NULL ? NULL
                        : device->operands + ((const char *)host - (char *)device->host->operands);
}

static hth_err device_make(hth_bench_device *device, hth_device *d)
{
    const hth_node *n = device->host->node;
    device->in = hth_calloc((size_t)n->n_inputs + 1, sizeof *device->in);
    device->packed = hth_calloc((size_t)n->n_inputs + 1, sizeof *device->packed);
    device->out = hth_calloc((size_t)n->n_outputs + 1, sizeof *device->out);
    if (device->in == NULL || device->packed == NULL || device->out == NULL) {
        return hth_no_memory("measuring node '%s'", n->name);
    }
    device->operands = device_take(device, device->host->operand_bytes);
    HTH_TRY(device->operands == NULL ? device_no_room(device) : HTH_OK);
    HTH_TRY(
        hth_device_put(d, device->operands, device->host->operands, device->host->operand_bytes));
    for (int i = 0; i < n->n_outputs; i++) {
        device->out[i] = device_of(device, device->host->out[i]);
    }
    HTH_TRY(hth_stream_open(d, HTH_STREAM_COMPUTE, &device->stream));
    HTH_TRY(hth_event_open(d, &device->from));
    return hth_event_open(d, &device->to);
}

hth_err hth_bench_device_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const hth_timing_cache *cache, hth_bench_device **out)
{
    *out = NULL;
    if (cache == NULL || cache->take == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory of the device to measure node '%s' with",
                        node->name);
    }
    hth_bench_device *f = hth_calloc(1, sizeof *f);
    if (f == NULL) {
        return hth_no_memory("measuring node '%s'", node->name);
    }
    f->cache = cache;
    f->device = device;
    f->kept = device->kept;
    device->kept = NULL;
    hth_err err;
    HTH_GOTO(hth_bench_open(device, graph, node, NULL, NULL, &f->host), fail);
    HTH_GOTO(device_make(f, device), fail);
    *out = f;
    return HTH_OK;
fail:
    hth_bench_device_close(f);
    return err;
}

void hth_bench_device_close(hth_bench_device *device)
{
    if (device == NULL) {
        return;
    }
    device->device->kept = device->kept;
    hth_stream_close(device->stream);
    hth_event_close(device->from);
    hth_event_close(device->to);
    device_give(device, device->operands);
    device_give(device, device->workspace);
    hth_free(device->in);
    hth_free(device->packed);
    hth_free(device->out);
    hth_bench_close(device->host);
    hth_free(device);
}

uint64_t hth_bench_device_bytes(const hth_bench_device *device)
{
    return hth_bench_bytes(device->host);
}

static hth_err device_workspace(hth_bench_device *device, size_t bytes)
{
    if (device->workspace == NULL || device->workspace_bytes < bytes) {
        device_give(device, device->workspace);
        device->workspace = device_take(device, bytes);
        device->workspace_bytes = device->workspace == NULL ? 0 : bytes;
    }
    return device->workspace == NULL ? device_no_room(device) : HTH_OK;
}

// The inputs as `kernel` wants them: its own forms of constants are copied, too.
static hth_err device_load(hth_bench_device *device, const hth_kernel *kernel)
{
    hth_err err = HTH_OK;
    HTH_TRY(device_workspace(device, kernel->workspace_bytes));
    HTH_TRY(hth_bench_forms(device->host, kernel));
    for (int i = 0; i < device->host->node->n_inputs; i++) {
        device->in[i] = device_of(device, device->host->in[i].placed);
    }
    for (int i = 0; i < kernel->n_packings && err == HTH_OK; i++) {
        const hth_packing *p = &kernel->packings[i];
        if (p->pack != NULL) {
            void *to = device->packed[p->input] = device_take(device, p->bytes);
            err = to == NULL ? device_no_room(device)
                             : hth_device_put(device->host->device, to,
                                              device->host->args_in[p->input], p->bytes);
            device->in[p->input] = to;
        }
    }
    device->kernel = kernel;
    device->args = (hth_kernel_args){device->in, device->out, device->workspace, NULL};
    return err;
}

static void device_unload(hth_bench_device *device, const hth_kernel *kernel)
{
    for (int i = 0; i < kernel->n_packings; i++) {
        device_give(device, device->packed[kernel->packings[i].input]);
        device->packed[kernel->packings[i].input] = NULL;
    }
    hth_bench_unload(device->host, kernel);
}

static hth_err device_launched(void *arg)
{
    const hth_bench_device *f = arg;
    return f->kernel->run(f->kernel, &f->args);
}

// The time of one of `runs` successive runs; 0: the events tell none. Reading an event that
// is long after the device's last reference sets a new one, and two are only to be compared by the
// same: so the later is read once before.
static hth_err device_time(hth_bench_device *device, int runs, double *us)
{
    HTH_TRY(hth_stream_record(device->stream, device->from));
    for (int i = 0; i < runs; i++) {
        HTH_TRY(hth_stream_launch(device->stream, device_launched, device));
    }
    HTH_TRY(hth_stream_record(device->stream, device->to));
    HTH_TRY(hth_stream_sync(device->stream));
    (void)hth_event_time_ns(device->to);
    uint64_t from = hth_event_time_ns(device->from), to = hth_event_time_ns(device->to);
    *us = from > 0 && to > from ? (double)(to - from) / 1e3 / runs : 0;
    return HTH_OK;
}

static hth_err device_runs(hth_bench_device *device, hth_samples *samples)
{
    double us;
    HTH_TRY(device_time(device, 1, &us)); // the warm-up says how many there may be
    int runs = us * DEVICE_RUNS > DEVICE_US ? 1 : DEVICE_RUNS;
    us = 0;
    for (int i = 0; i < DEVICE_TRIES && us <= 0; i++) {
        HTH_TRY(device_time(device, runs, &us));
    }
    if (us <= 0) {
        return hth_fail(HTH_EIO, "%s does not report times of node '%s'",
                        device->host->device->props.name, device->host->node->name);
    }
    hth_samples_add(samples, us, true);
    return HTH_OK;
}

// Runs choice `choice` of node; *k is the kernel to close.
static hth_err device_prepare(hth_bench_device *device, const hth_node *node,
                              const hth_choice *choice, hth_kernel **k)
{
    HTH_TRY(hth_kernel_prepare(device->host->device, device->host->graph, node, choice->name, k));
    hth_err err = device_load(device, *k);
    if (err != HTH_OK) {
        device_unload(device, *k);
        hth_kernel_close(*k);
    }
    return err;
}

hth_err hth_bench_device_turn(hth_bench_device *device, hth_choice *choice, hth_samples *samples)
{
    hth_kernel *k;
    HTH_TRY(device_prepare(device, device->host->node, choice, &k));
    (void)hth_bench_between(device->cache);
    hth_err err = device_runs(device, samples);
    choice->workspace_bytes = k->workspace_bytes;
    device_unload(device, k);
    hth_kernel_close(k);
    (void)hth_bench_between(device->cache);
    return err;
}

// The result, or of a large one its sampled points, to where it is compared.
static hth_err device_fetch(hth_bench_device *device)
{
    hth_bench *b = device->host;
    const hth_value *y = &b->graph->values[b->node->outputs[0]];
    size_t bytes;
    size_t element = hth_dtype_bytes(y->dtype);
    HTH_TRY(hth_tensor_bytes(y->dtype, &y->shape, y->layout, &bytes));
    if (bytes <= DEVICE_WHOLE) {
        return hth_device_get(b->device, b->out[0], device->out[0], bytes);
    }
    for (int i = 0; i < b->n_points; i++) {
        size_t at = hth_bench_point(b, i) * element;
        HTH_TRY(hth_device_get(b->device, (char *)b->out[0] + at, (char *)device->out[0] + at,
                               element));
    }
    return HTH_OK;
}

// A choice that is fused with what follows may be none of the bare node: that is compared after a
// ReLU, and else not measured.
hth_err hth_bench_device_error(hth_bench_device *device, hth_choice *choice)
{
    hth_kernel *k;
    double us;
    if (!hth_bench_has_error(device->host)) {
        return HTH_OK;
    }
    hth_node bare = hth_bench_bare(device->host);
    hth_err err = device_prepare(device, &bare, choice, &k);
    bool fused = err == HTH_ENOTSUP && device->host->node->n_post > 0,
         relu = hth_bench_relu(device->host);
    if (fused && !relu) {
        return HTH_OK;
    }
    HTH_TRY(fused ? device_prepare(device, device->host->node, choice, &k) : err);
    HTH_GOTO(hth_bench_samples(device->host, &bare), out);
    HTH_GOTO(device_time(device, 1, &us), out);
    HTH_GOTO(device_fetch(device), out);
    hth_bench_compare(device->host, fused, choice);
out:
    device_unload(device, k);
    hth_kernel_close(k);
    (void)hth_bench_between(device->cache);
    return err;
}
