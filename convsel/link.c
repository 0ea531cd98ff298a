// SPDX-License-Identifier: Apache-2.0
// Bandwidth is that of the middle one of a few large copies, between the device and such host
// memory as programs' slabs are (pinned on CUDA: what is pageable goes slower, through a ring);
// where the compute team makes them, from memory to memory after caches full of modified lines, as
// in a step. Latency is the mean of many small ones. Interference: the same convolutions run alone
// and alongside copies; what they lose, in the time that those copies take alone. A GPU's copy
// engines take nothing from its compute, so there it is 0 without a measurement; where copies take
// turns with compute (inline_copies), all of it. A link whose rates were set keeps them; copies
// through it show whether memory can.
#include "convsel/link.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compare.h"
#include "base/thread.h"
#include "convsel/in_step_times.h"
#include "kernels/kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_BYTES   ((size_t)16 << 20)
#define LINK_COPIES  9
#define LINK_SMALL   64 // copies of as many bytes
#define LINK_NS      40000000u
#define LINK_SHARE   0.4  // of the computation's time: what concurrent copies take alone
#define LINK_LOSSES  5    // measurements; their median counts
#define LINK_MAX     2.0  // more is something else on the machine
#define LINK_REPEATS 1.5  // times the fastest copy: the middle one, if nothing disturbs them
#define LINK_DELAY   0.05 // of the time: threads that wait longer for a processor have company
#define LINK_CHANNEL 64
#define LINK_SIZE    56
#define LINK_ISSUES  64    // copies; a quarter took less: disturbances only make them slower
#define LINK_IDLE_NS 50000 // between them: the copies' threads sleep then, as in most of a step
#define LINK_TEXT    128
#define LINK_ALONE   "link6"
#define LINK_IN_STEP "link-in-situ2"
#define LINK_SEEN    100 // steps that are counted
// Of a set link: how long a copy takes, and what of the rate copies have unless memory is slower.
#define LINK_SET_S     5e-3
#define LINK_SET_SHARE 0.9

typedef struct link_bench {
    hth_device *device;
    hth_stream *h2d, *d2h;
    hth_stream *within; // of a set link's device: copies by its team
    void *host, *far;
    volatile char *scratch; // as large as the caches; NULL: no memory for it, or no such caches
    size_t bytes, scratch_bytes;
    size_t part; // of `bytes`, one copy over the link
    hth_graph *graph;
    hth_kernel *kernel;
    void *in[2], *out[1], *workspace;
} link_bench;

static hth_err link_copy(link_bench *bench, bool up, size_t bytes, double *ns)
{
    hth_stream *s = up ? bench->h2d : bench->d2h;
    uint64_t start = hth_now_ns();
    HTH_TRY(up ? hth_stream_copy(s, bench->far, bench->host, bytes)
               : hth_stream_copy(s, bench->host, bench->far, bytes));
    HTH_TRY(hth_stream_sync(s));
    *ns = (double)(hth_now_ns() - start);
    return HTH_OK;
}

// Leaves the caches as a step does: full of what still has to be written back.
static void link_dirty(const link_bench *bench)
{
    for (size_t i = 0; bench->scratch != NULL && i < bench->scratch_bytes; i += HTH_DEVICE_ALIGN) {
        bench->scratch[i]++;
    }
}

// *disturbed: the copies do not repeat. Of a set link the fastest copy counts, for it alone shows
// what memory can: a slower one has waited for a processor.
static hth_err link_speeds(link_bench *bench, hth_link *out, bool *disturbed)
{
    double took[2][LINK_COPIES], ns;
    HTH_TRY(link_copy(bench, true, bench->part, &ns)); // touches the pages
    for (int i = 0; i < 2 * LINK_COPIES; i++) {
        link_dirty(bench);
        HTH_TRY(link_copy(bench, i % 2 == 0, bench->part, &took[i % 2][i / 2]));
    }
    double *speed[2] = {&out->h2d_bytes_per_s, &out->d2h_bytes_per_s};
    int which = bench->device->props.h2d_bytes_per_s > 0 ? 0 : LINK_COPIES / 2;
    for (int way = 0; way < 2; way++) {
        qsort(took[way], LINK_COPIES, sizeof(double), hth_compare_double);
        *speed[way] = (double)bench->part * 1e9 / fmax(1, took[way][which]);
        *disturbed = *disturbed || took[way][LINK_COPIES / 2] > LINK_REPEATS * took[way][0];
    }
    return HTH_OK;
}

static hth_err link_latency(link_bench *bench, hth_link *out)
{
    double sum = 0, ns;
    for (int i = 0; i < LINK_SMALL; i++) {
        HTH_TRY(link_copy(bench, true, LINK_SMALL, &ns));
        sum += ns;
    }
    out->latency_us = sum / LINK_SMALL / 1e3;
    return HTH_OK;
}

// What a set link's copies are predicted to take, and what other traffic has there.
static hth_err link_set(link_bench *bench, hth_link *out)
{
    const hth_device_props *props = &bench->device->props;
    const double set[2] = {props->h2d_bytes_per_s, props->d2h_bytes_per_s};
    double *speed[2] = {&out->h2d_bytes_per_s, &out->d2h_bytes_per_s};
    double took[LINK_COPIES];
    for (int way = 0; way < 2; way++) {
        *speed[way] = *speed[way] >= LINK_SET_SHARE * set[way] ? set[way] : *speed[way];
    }
    out->latency_us = props->link_latency_us;
    for (int i = -1; i < LINK_COPIES; i++) { // the first one touches the pages
        uint64_t start = hth_now_ns();
        HTH_TRY(hth_stream_copy(bench->within, bench->far, bench->host, bench->bytes));
        HTH_TRY(hth_stream_sync(bench->within));
        took[i < 0 ? 0 : i] = (double)(hth_now_ns() - start);
    }
    qsort(took, LINK_COPIES, sizeof *took, hth_compare_double);
    out->memory_bytes_per_s = (double)bench->bytes * 1e9 / fmax(1, took[LINK_COPIES / 2]);
    return HTH_OK;
}

static hth_err link_buffer(const hth_graph *graph, int v, void **out)
{
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &graph->values[v].shape, HTH_LAYOUT_PLAIN, &bytes));
    *out = hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
    if (*out == NULL) {
        return hth_no_memory("measuring the link");
    }
    memset(*out, 0, bytes);
    return HTH_OK;
}

// A convolution that uses all threads for about a millisecond.
static hth_err link_compute_open(link_bench *bench)
{
    const hth_shape x = {4, {2, LINK_CHANNEL, LINK_SIZE, LINK_SIZE}};
    const hth_shape w = {4, {LINK_CHANNEL, LINK_CHANNEL, 3, 3}};
    const int64_t pads[4] = {1, 1, 1, 1};
    int in[2], y, node;
    HTH_TRY(hth_graph_new(&bench->graph));
    HTH_TRY(hth_graph_add_value(bench->graph, "x", HTH_DT_F32, &x, &in[0]));
    HTH_TRY(hth_graph_add_value(bench->graph, "w", HTH_DT_F32, &w, &in[1]));
    HTH_TRY(hth_graph_add_value(bench->graph, "y", HTH_DT_F32, &x, &y));
    HTH_TRY(hth_graph_add_node(bench->graph, HTH_OP_CONV, "conv", in, 2, &y, 1, &node));
    HTH_TRY(hth_node_set_ints(&bench->graph->nodes[node], "pads", pads, 4));
    HTH_TRY(hth_kernel_prepare(bench->device, bench->graph, &bench->graph->nodes[node], NULL,
                               &bench->kernel));
    HTH_TRY(link_buffer(bench->graph, in[0], &bench->in[0]));
    HTH_TRY(link_buffer(bench->graph, in[1], &bench->in[1]));
    HTH_TRY(link_buffer(bench->graph, y, &bench->out[0]));
    bench->workspace = hth_alloc_aligned(bench->kernel->workspace_bytes + 1, HTH_DEVICE_ALIGN);
    return bench->workspace == NULL ? hth_no_memory("measuring the link") : HTH_OK;
}

static hth_err link_runs(link_bench *bench, int n, uint64_t *ns)
{
    const hth_kernel_args a = {bench->in, bench->out, bench->workspace, NULL};
    uint64_t start = hth_now_ns();
    for (int i = 0; i < n; i++) {
        HTH_TRY(bench->kernel->run(bench->kernel, &a));
    }
    *ns = hth_now_ns() - start;
    return HTH_OK;
}

// What the computation loses to copies that alone take `share` of its time. Their own threads slow
// down, too, so it may lose more than they take.
static hth_err link_loss(link_bench *bench, int runs, double share, const hth_link *link,
                         double *loss)
{
    uint64_t alone, together;
    HTH_TRY(link_runs(bench, runs, &alone));
    double one_ns = (double)bench->part * 1e9 / link->h2d_bytes_per_s;
    int copies = (int)((double)alone * share / one_ns) + 1;
    for (int i = 0; i < copies; i++) {
        HTH_TRY(hth_stream_copy(bench->h2d, bench->far, bench->host, bench->part));
    }
    HTH_TRY(link_runs(bench, runs, &together));
    *loss = ((double)together - (double)alone) / (copies * one_ns);
    return hth_stream_sync(bench->h2d);
}

static hth_err link_interference(link_bench *bench, hth_link *out)
{
    uint64_t one;
    double loss[LINK_LOSSES];
    HTH_TRY(link_compute_open(bench));
    HTH_TRY(link_runs(bench, 2, &one));
    HTH_TRY(link_runs(bench, 2, &one));
    int runs = one > 0 && one / 2 < LINK_NS ? (int)(LINK_NS / (one / 2 + 1)) + 1 : 1;
    for (int i = 0; i < LINK_LOSSES; i++) {
        HTH_TRY(link_loss(bench, runs, LINK_SHARE, out, &loss[i]));
    }
    qsort(loss, LINK_LOSSES, sizeof *loss, hth_compare_double);
    out->interference = fmax(0, fmin(loss[LINK_LOSSES / 2], LINK_MAX));
    return HTH_OK;
}

// What a copy costs the thread that computes: it issues the copy, and the two wait for each other.
// Where that thread makes the copies itself, their time says all; a GPU's queues do the waiting
// while its kernels run.
static hth_err link_issue(link_bench *bench, hth_link *out)
{
    double took[LINK_ISSUES];
    hth_event *ready = NULL, *done = NULL;
    hth_err err;
    HTH_GOTO(hth_event_open(bench->device, &ready), out);
    HTH_GOTO(hth_event_open(bench->device, &done), out);
    for (int i = 0; i < LINK_ISSUES; i++) {
        hth_stream *s = i % 2 == 0 ? bench->h2d : bench->d2h;
        uint64_t start = hth_now_ns();
        HTH_GOTO(hth_stream_record(bench->within, ready), out);
        HTH_GOTO(hth_stream_wait(s, ready), out);
        HTH_GOTO(i % 2 == 0 ? hth_stream_copy(s, bench->far, bench->host, LINK_SMALL)
                            : hth_stream_copy(s, bench->host, bench->far, LINK_SMALL),
                 out);
        HTH_GOTO(hth_stream_record(s, done), out);
        uint64_t issued = hth_now_ns();
        HTH_GOTO(hth_stream_sync(s), out);
        uint64_t late = hth_now_ns();
        HTH_GOTO(hth_stream_wait(bench->within, done), out);
        took[i] = (double)(issued - start + (hth_now_ns() - late)) / 1e3;
        hth_sleep_until(hth_now_ns() + LINK_IDLE_NS);
    }
    qsort(took, LINK_ISSUES, sizeof *took, hth_compare_double);
    out->copy_us = took[LINK_ISSUES / 4];
out:
    hth_event_close(done);
    hth_event_close(ready);
    return err;
}

static void link_close(link_bench *bench)
{
    hth_stream_close(bench->h2d);
    hth_stream_close(bench->d2h);
    hth_stream_close(bench->within);
    if (bench->far != NULL) {
        hth_device_release(bench->device, bench->far, bench->bytes);
    }
    hth_kernel_close(bench->kernel);
    hth_graph_free(bench->graph);
    hth_free(bench->in[0]);
    hth_free(bench->in[1]);
    hth_free(bench->out[0]);
    hth_free(bench->workspace);
    hth_device_release_host(bench->device, bench->host, bench->bytes);
    hth_free((void *)bench->scratch);
}

static size_t link_part(const hth_device *device, size_t bytes)
{
    double slow = fmin(device->props.h2d_bytes_per_s, device->props.d2h_bytes_per_s);
    bool all = !hth_device_paced(device) || slow * LINK_SET_S >= (double)bytes;
    return all ? bytes : (size_t)fmax(LINK_SMALL, slow * LINK_SET_S);
}

static hth_err link_run(hth_device *device, hth_link *out, bool *disturbed)
{
    uint64_t budget = device->props.budget_bytes, start_ns = hth_now_ns();
    uint64_t delay_ns = hth_thread_delay_ns();
    link_bench b = {.device = device, .bytes = budget < LINK_BYTES ? (size_t)budget : LINK_BYTES};
    hth_err err;
    *out = (hth_link){0};
    b.part = link_part(device, b.bytes);
    HTH_TRY(hth_device_reserve_host(device, b.bytes, &b.host));
    memset(b.host, 1, b.bytes);
    b.scratch_bytes = device->props.inline_copies ? (size_t)device->props.cache_bytes : 0;
    b.scratch = b.scratch_bytes > 0 ? hth_alloc_large(b.scratch_bytes) : NULL;
    if (b.scratch != NULL) {
        memset((void *)b.scratch, 0, b.scratch_bytes);
    }
    HTH_GOTO(hth_device_reserve(device, b.bytes, &b.far), out);
    bool turns = device->props.inline_copies;
    HTH_GOTO(hth_stream_open(device, turns ? HTH_STREAM_COMPUTE : HTH_STREAM_H2D, &b.h2d), out);
    HTH_GOTO(hth_stream_open(device, turns ? HTH_STREAM_COMPUTE : HTH_STREAM_D2H, &b.d2h), out);
    HTH_GOTO(hth_stream_open(device, HTH_STREAM_COMPUTE, &b.within), out);
    HTH_GOTO(link_speeds(&b, out, disturbed), out);
    HTH_GOTO(hth_device_paced(device) ? link_set(&b, out) : link_latency(&b, out), out);
    out->interference = turns;
    if (device->props.inline_compute && !turns) {
        HTH_GOTO(link_issue(&b, out), out);
        HTH_GOTO(link_interference(&b, out), out);
    }
out:
    delay_ns = hth_thread_delay_since(delay_ns);
    *disturbed = *disturbed || (double)delay_ns > LINK_DELAY * (double)(hth_now_ns() - start_ns);
    link_close(&b);
    return err;
}

static bool link_rate(double bytes_per_s, double least)
{
    return bytes_per_s >= least && bytes_per_s <= HTH_CONVSEL_MOST_BYTES;
}

static bool link_read(const char *text, hth_link *link)
{
    return sscanf(text, "%lf %lf %lf %lf %lf %lf", &link->h2d_bytes_per_s, &link->d2h_bytes_per_s,
                  &link->latency_us, &link->interference, &link->memory_bytes_per_s,
                  &link->copy_us) == 6 &&
           link_rate(link->h2d_bytes_per_s, 1) && link_rate(link->d2h_bytes_per_s, 1) &&
           link_rate(link->memory_bytes_per_s, 0) && link->latency_us >= 0 &&
           link->latency_us <= HTH_CONVSEL_MOST_US && link->interference >= 0 &&
           link->interference <= LINK_MAX && link->copy_us >= 0 &&
           link->copy_us <= HTH_CONVSEL_MOST_US;
}

static void link_write(const hth_link *link, char value[LINK_TEXT])
{
    snprintf(value, LINK_TEXT, "%.0f %.0f %.3f %.4f %.0f %.2f", link->h2d_bytes_per_s,
             link->d2h_bytes_per_s, link->latency_us, link->interference, link->memory_bytes_per_s,
             link->copy_us);
}

static void link_key(const hth_device *device, const char *what, char key[HTH_CONVSEL_KEY])
{
    const hth_device_props *props = &device->props;
    char set[64] = "";
    if (hth_device_paced(device)) {
        snprintf(set, sizeof set, "set %.0f %.0f ", props->h2d_bytes_per_s, props->d2h_bytes_per_s);
    }
    snprintf(key, HTH_CONVSEL_KEY, "%s %s%s%s", what, set, props->inline_copies ? "inline " : "",
             props->fingerprint);
}

// Speeds in steps, and on the word of how many.
typedef struct link_seen {
    double speed[2];
    int n[2];
} link_seen;

static bool link_was_seen(const link_seen *seen, int way)
{
    return seen->n[way] >= 0 && seen->n[way] <= LINK_SEEN &&
           link_rate(seen->speed[way], seen->n[way] > 0);
}

static void link_recall(hth_device *device, const hth_timing_cache *cache, link_seen *seen)
{
    char key[HTH_CONVSEL_KEY], value[128];
    link_key(device, LINK_IN_STEP, key);
    if (cache == NULL || cache->get(cache->ctx, key, value, sizeof value) != HTH_OK ||
        sscanf(value, "%lf %d %lf %d", &seen->speed[0], &seen->n[0], &seen->speed[1],
               &seen->n[1]) != 4 ||
        !link_was_seen(seen, 0) || !link_was_seen(seen, 1)) {
        *seen = (link_seen){.n = {0, 0}};
    }
}

static void link_take(const link_seen *seen, hth_link *out)
{
    out->h2d_bytes_per_s = seen->n[0] > 0 ? seen->speed[0] : out->h2d_bytes_per_s;
    out->d2h_bytes_per_s = seen->n[1] > 0 ? seen->speed[1] : out->d2h_bytes_per_s;
}

// What others' work disturbed is measured once more, at once: disturbances only ever make copies
// slower. Not later: what a plan is made from decides which algorithms, and so which bits, a job
// has that goes on after a restart.
static hth_err link_fresh(hth_device *device, hth_link *out)
{
    hth_link again;
    bool disturbed = false;
    HTH_TRY(link_run(device, out, &disturbed));
    if (disturbed) {
        HTH_TRY(link_run(device, &again, &disturbed));
        out->h2d_bytes_per_s = fmax(out->h2d_bytes_per_s, again.h2d_bytes_per_s);
        out->d2h_bytes_per_s = fmax(out->d2h_bytes_per_s, again.d2h_bytes_per_s);
        out->latency_us = fmin(out->latency_us, again.latency_us);
        out->interference = fmin(out->interference, again.interference);
        out->copy_us = fmin(out->copy_us, again.copy_us);
        out->memory_bytes_per_s = fmax(out->memory_bytes_per_s, again.memory_bytes_per_s);
    }
    return HTH_OK;
}

hth_err hth_link_keep(const hth_device *device, const hth_timing_cache *cache, const hth_link *link)
{
    char key[HTH_CONVSEL_KEY], value[LINK_TEXT];
    link_key(device, LINK_ALONE, key);
    link_write(link, value);
    return cache->put(cache->ctx, key, value);
}

hth_err hth_link_measure(hth_device *device, const hth_timing_cache *cache, hth_link *out)
{
    char key[HTH_CONVSEL_KEY], value[LINK_TEXT];
    link_seen seen;
    link_key(device, LINK_ALONE, key);
    if (cache == NULL || cache->get(cache->ctx, key, value, sizeof value) != HTH_OK ||
        !link_read(value, out)) {
        HTH_TRY(link_fresh(device, out));
        if (cache != NULL) {
            (void)hth_link_keep(device, cache, out); // a read-only store: measured again next time
        }
        link_write(out, value);
        (void)link_read(value, out); // as whoever comes next will know it
    }
    link_recall(device, cache, &seen);
    link_take(&seen, out);
    return HTH_OK;
}

hth_err hth_link_learn(hth_device *device, const hth_timing_cache *cache, double h2d_bytes_per_s,
                       double d2h_bytes_per_s, hth_link *link)
{
    char key[HTH_CONVSEL_KEY], value[128];
    link_seen s;
    const double now[2] = {h2d_bytes_per_s, d2h_bytes_per_s};
    const double before[2] = {link->h2d_bytes_per_s, link->d2h_bytes_per_s};
    if (hth_device_paced(device)) {
        return HTH_OK;
    }
    link_recall(device, cache, &s);
    for (int way = 0; way < 2; way++) {
        if (now[way] > 0 && before[way] > 0) { // seconds a byte
            s.speed[way] =
                round(1 / hth_in_step_times_blend(1 / before[way], s.n[way], 1 / now[way]));
            s.n[way] += s.n[way] < LINK_SEEN;
        }
    }
    link_take(&s, link);
    link_key(device, LINK_IN_STEP, key);
    snprintf(value, sizeof value, "%.0f %d %.0f %d", s.speed[0], s.n[0], s.speed[1], s.n[1]);
    return cache != NULL ? cache->put(cache->ctx, key, value) : HTH_OK;
}
