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

static hth_err device_no_room(const hth_bench_device *f)
{
    return hth_fail(HTH_ENOMEM, "not enough memory on %s to measure node '%s'",
                    f->host->device->props.name, f->host->node->name);
}

static void *device_take(const hth_bench_device *f, size_t bytes)
{
    return f->cache->take(f->cache->owner, bytes > 0 ? bytes : 1);
}

static void device_give(const hth_bench_device *f, void *p)
{
    if (p != NULL) {
        f->cache->give(f->cache->owner, p);
    }
}

// Where an operand of the host's block is on the device.
static void *device_of(const hth_bench_device *f, const void *host)
{
    return host == NULL ? NULL : f->operands + ((const char *)host - (char *)f->host->operands);
}

static hth_err device_make(hth_bench_device *f, hth_device *d)
{
    const hth_node *n = f->host->node;
    f->in = hth_calloc((size_t)n->n_inputs + 1, sizeof *f->in);
    f->packed = hth_calloc((size_t)n->n_inputs + 1, sizeof *f->packed);
    f->out = hth_calloc((size_t)n->n_outputs + 1, sizeof *f->out);
    if (f->in == NULL || f->packed == NULL || f->out == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to measure node '%s'", n->name);
    }
    f->operands = device_take(f, f->host->operand_bytes);
    HTH_TRY(f->operands == NULL ? device_no_room(f) : HTH_OK);
    HTH_TRY(hth_device_put(d, f->operands, f->host->operands, f->host->operand_bytes));
    for (int i = 0; i < n->n_outputs; i++) {
        f->out[i] = device_of(f, f->host->out[i]);
    }
    HTH_TRY(hth_stream_open(d, HTH_STREAM_COMPUTE, &f->stream));
    HTH_TRY(hth_event_open(d, &f->from));
    return hth_event_open(d, &f->to);
}

hth_err hth_bench_device_open(hth_device *d, const hth_graph *g, const hth_node *n,
                              const hth_timing_cache *cache, hth_bench_device **out)
{
    *out = NULL;
    if (cache == NULL || cache->take == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory of the device to measure node '%s' with", n->name);
    }
    hth_bench_device *f = hth_calloc(1, sizeof *f);
    if (f == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to measure node '%s'", n->name);
    }
    f->cache = cache;
    f->device = d;
    f->kept = d->kept;
    d->kept = NULL;
    hth_err err;
    HTH_GOTO(hth_bench_open(d, g, n, NULL, NULL, &f->host), fail);
    HTH_GOTO(device_make(f, d), fail);
    *out = f;
    return HTH_OK;
fail:
    hth_bench_device_close(f);
    return err;
}

void hth_bench_device_close(hth_bench_device *f)
{
    if (f == NULL) {
        return;
    }
    f->device->kept = f->kept;
    hth_stream_close(f->stream);
    hth_event_close(f->from);
    hth_event_close(f->to);
    device_give(f, f->operands);
    device_give(f, f->workspace);
    hth_free(f->in);
    hth_free(f->packed);
    hth_free(f->out);
    hth_bench_close(f->host);
    hth_free(f);
}

uint64_t hth_bench_device_bytes(const hth_bench_device *f)
{
    return hth_bench_bytes(f->host);
}

static hth_err device_workspace(hth_bench_device *f, size_t bytes)
{
    if (f->workspace == NULL || f->workspace_bytes < bytes) {
        device_give(f, f->workspace);
        f->workspace = device_take(f, bytes);
        f->workspace_bytes = f->workspace == NULL ? 0 : bytes;
    }
    return f->workspace == NULL ? device_no_room(f) : HTH_OK;
}

// The inputs as `k` wants them: its own forms of constants are copied, too.
static hth_err device_load(hth_bench_device *f, const hth_kernel *k)
{
    hth_err err = device_workspace(f, k->workspace_bytes);
    HTH_TRY(err == HTH_OK ? hth_bench_forms(f->host, k) : err);
    for (int i = 0; i < f->host->node->n_inputs; i++) {
        f->in[i] = device_of(f, f->host->in[i].placed);
    }
    for (int i = 0; i < k->n_packings && err == HTH_OK; i++) {
        const hth_packing *p = &k->packings[i];
        if (p->pack != NULL) {
            void *to = f->packed[p->input] = device_take(f, p->bytes);
            err = to == NULL
                      ? device_no_room(f)
                      : hth_device_put(f->host->device, to, f->host->args_in[p->input], p->bytes);
            f->in[p->input] = to;
        }
    }
    f->kernel = k;
    f->args = (hth_kernel_args){f->in, f->out, f->workspace};
    return err;
}

static void device_unload(hth_bench_device *f, const hth_kernel *k)
{
    for (int i = 0; i < k->n_packings; i++) {
        device_give(f, f->packed[k->packings[i].input]);
        f->packed[k->packings[i].input] = NULL;
    }
    hth_bench_unload(f->host, k);
}

static hth_err device_launched(void *arg)
{
    const hth_bench_device *f = arg;
    return f->kernel->run(f->kernel, &f->args);
}

// The time of one of `runs` successive runs; 0: the events tell none. Reading an event that
// is long after the device's last reference sets a new one, and two are only to be compared by the
// same: so the later is read once before.
static hth_err device_time(hth_bench_device *f, int runs, double *us)
{
    HTH_TRY(hth_stream_record(f->stream, f->from));
    for (int i = 0; i < runs; i++) {
        HTH_TRY(hth_stream_launch(f->stream, device_launched, f));
    }
    HTH_TRY(hth_stream_record(f->stream, f->to));
    HTH_TRY(hth_stream_sync(f->stream));
    (void)hth_event_time_ns(f->to);
    uint64_t from = hth_event_time_ns(f->from), to = hth_event_time_ns(f->to);
    *us = from > 0 && to > from ? (double)(to - from) / 1e3 / runs : 0;
    return HTH_OK;
}

static hth_err device_runs(hth_bench_device *f, hth_samples *s)
{
    double us;
    HTH_TRY(device_time(f, 1, &us)); // the warm-up says how many there may be
    int runs = us * DEVICE_RUNS > DEVICE_US ? 1 : DEVICE_RUNS;
    us = 0;
    for (int i = 0; i < DEVICE_TRIES && us <= 0; i++) {
        HTH_TRY(device_time(f, runs, &us));
    }
    if (us <= 0) {
        return hth_fail(HTH_EIO, "%s does not report times of node '%s'",
                        f->host->device->props.name, f->host->node->name);
    }
    hth_samples_add(s, us, true);
    return HTH_OK;
}

// Runs choice `c` of node n; *k is the kernel to close.
static hth_err device_prepare(hth_bench_device *f, const hth_node *n, const hth_choice *c,
                              hth_kernel **k)
{
    HTH_TRY(hth_kernel_prepare(f->host->device, f->host->graph, n, c->name, k));
    hth_err err = device_load(f, *k);
    if (err != HTH_OK) {
        device_unload(f, *k);
        hth_kernel_close(*k);
    }
    return err;
}

hth_err hth_bench_device_turn(hth_bench_device *f, hth_choice *c, hth_samples *s)
{
    hth_kernel *k;
    HTH_TRY(device_prepare(f, f->host->node, c, &k));
    (void)hth_bench_between(f->cache);
    hth_err err = device_runs(f, s);
    c->workspace_bytes = k->workspace_bytes;
    device_unload(f, k);
    hth_kernel_close(k);
    (void)hth_bench_between(f->cache);
    return err;
}

// The result, or of a large one its sampled points, to where it is compared.
static hth_err device_fetch(hth_bench_device *f)
{
    hth_bench *b = f->host;
    const hth_value *y = &b->graph->values[b->node->outputs[0]];
    size_t bytes;
    size_t element = hth_dtype_bytes(y->dtype);
    HTH_TRY(hth_tensor_bytes(y->dtype, &y->shape, y->layout, &bytes));
    if (bytes <= DEVICE_WHOLE) {
        return hth_device_get(b->device, b->out[0], f->out[0], bytes);
    }
    for (int i = 0; i < b->n_points; i++) {
        size_t at = hth_bench_point(b, i) * element;
        HTH_TRY(hth_device_get(b->device, (char *)b->out[0] + at, (char *)f->out[0] + at, element));
    }
    return HTH_OK;
}

// A choice that is fused with what follows may be none of the bare node: that is compared after a
// ReLU, and else not measured.
hth_err hth_bench_device_error(hth_bench_device *f, hth_choice *c)
{
    hth_kernel *k;
    double us;
    if (!hth_bench_has_error(f->host)) {
        return HTH_OK;
    }
    hth_node bare = hth_bench_bare(f->host);
    hth_err err = device_prepare(f, &bare, c, &k);
    bool fused = err == HTH_ENOTSUP && f->host->node->n_post > 0, relu = hth_bench_relu(f->host);
    if (fused && !relu) {
        return HTH_OK;
    }
    HTH_TRY(fused ? device_prepare(f, f->host->node, c, &k) : err);
    HTH_GOTO(hth_bench_samples(f->host, &bare), out);
    HTH_GOTO(device_time(f, 1, &us), out);
    HTH_GOTO(device_fetch(f), out);
    hth_bench_compare(f->host, fused, c);
out:
    device_unload(f, k);
    hth_kernel_close(k);
    (void)hth_bench_between(f->cache);
    return err;
}
