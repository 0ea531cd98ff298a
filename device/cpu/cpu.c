// SPDX-License-Identifier: Apache-2.0
// The CPU as a device. What the compute stream gets, copies too, runs at once on the caller, the
// owner's thread, because the thread team belongs to it. Each copy direction is a *lane*: one
// thread, started with the direction's first stream, that takes operations from a ring in issue
// order. With a set link (link=..) its copies take the link's time (paced_copy.h).
//
// Invariants: an operation waits only for records issued before it, so the oldest unfinished
// operation of all lanes can always proceed: no deadlock, also when the owner blocks on a full
// ring. One lock guards lanes, streams and events; operations themselves run without it. An event
// counts records asked for (`issued`) and reached (`done`).
#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "device/cpu/copy.h"
#include "device/cpu/isa_claim.h"
#include "device/cpu/machine.h"
#include "device/cpu/onednn.h"
#include "device/cpu/paced_copy.h"
#include "device/cpu/team.h"
#include "device/rate.h"
#include "device/spec.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

// A virtual machine sees all of its host's cache, 480 MiB perhaps, of which it has what its
// neighbours leave. Measurements that fill the cache first would take that much memory and time.
#define CPU_SHARED_CACHE ((uint64_t)64 << 20)

#define CPU_HUGE_PAGE ((size_t)2 << 20)
#define CPU_RING      256u // operations in flight per direction; a plan's prefetches are fewer

typedef enum cpu_op_kind { CPU_OP_LAUNCH, CPU_OP_COPY, CPU_OP_RECORD, CPU_OP_WAIT } cpu_op_kind;

// What threads wait for. Waking costs the one that wakes 5 us and more, mostly the owner, who
// computes meanwhile: so it is done only where somebody waits.
typedef struct cpu_signal {
    pthread_cond_t changed;
    int waiting;
} cpu_signal;

typedef struct cpu_stream {
    hth_stream base;
    struct cpu_lane *lane; // NULL: inline
    unsigned pending;
    hth_err err; // first failure since the last sync
    char detail[256];
} cpu_stream;

typedef struct cpu_event {
    hth_event base;
    uint64_t issued, done, time_ns;
} cpu_event;

typedef struct cpu_op {
    cpu_op_kind kind;
    cpu_stream *stream;
    hth_err (*fn)(void *arg);
    void *dst; // launch: arg
    const void *src;
    size_t bytes;
    cpu_event *event;
    uint64_t target;    // record: the count reached; wait: the count awaited
    uint64_t issued_ns; // of a set link's
} cpu_op;

typedef struct cpu_lane {
    struct cpu_device *device;
    pthread_t thread;
    bool started, runs, stopping;
    unsigned head, tail; // operations taken, put
    cpu_op ring[CPU_RING];
    cpu_signal work;       // its own: an operation came, or what `awaited` waits for
    const cpu_op *awaited; // the record that it waits for; NULL: none
    hth_paced_link link;
    uint64_t waited_ns; // when what was waited for last was there
} cpu_lane;

typedef struct cpu_device {
    hth_device base;
    uint64_t reserved;
    pthread_mutex_t lock;
    cpu_signal reached; // an event
    cpu_signal moved;   // a lane, by one operation
    cpu_lane lane[2];   // HTH_STREAM_H2D, HTH_STREAM_D2H
} cpu_device;

static cpu_device *cpu_of(hth_device *device)
{
    return (cpu_device *)device;
}

// Reservations. Aligned to huge pages: weights and activations are walked in order, so page walks
// are pure loss.

static hth_err cpu_reserve(hth_device *base, size_t bytes, void **out)
{
    cpu_device *d = cpu_of(base);
    if (bytes > base->props.budget_bytes - d->reserved) {
        return hth_fail(HTH_ENODEVMEM, "device %s: %zu bytes requested, %llu of %llu are free",
                        base->props.name, bytes,
                        (unsigned long long)(base->props.budget_bytes - d->reserved),
                        (unsigned long long)base->props.budget_bytes);
    }
    size_t size = (bytes + CPU_HUGE_PAGE - 1) / CPU_HUGE_PAGE * CPU_HUGE_PAGE;
    char *p = mmap(NULL, size + CPU_HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        hth_fail_errno(errno, "device %s: cannot map %zu bytes", base->props.name, bytes);
        return HTH_ENODEVMEM;
    }
    size_t front = (CPU_HUGE_PAGE - (uintptr_t)p % CPU_HUGE_PAGE) % CPU_HUGE_PAGE;
    if (front > 0) {
        munmap(p, front);
    }
    munmap(p + front + size, CPU_HUGE_PAGE - front);
    madvise(p + front, size, MADV_HUGEPAGE); // advice: without it the pages are only smaller
    d->reserved += bytes;
    *out = p + front;
    return HTH_OK;
}

static void cpu_release(hth_device *base, void *p, size_t bytes)
{
    cpu_of(base)->reserved -= bytes;
    munmap(p, (bytes + CPU_HUGE_PAGE - 1) / CPU_HUGE_PAGE * CPU_HUGE_PAGE);
}

// Operations.

// Called with the lock, as what wakes it is.
static void cpu_await(cpu_device *device, cpu_signal *signal)
{
    signal->waiting++;
    pthread_cond_wait(&signal->changed, &device->lock);
    signal->waiting--;
}

static void cpu_wake(cpu_signal *signal)
{
    if (signal->waiting > 0) {
        pthread_cond_broadcast(&signal->changed);
    }
}

static void cpu_keep_error(cpu_stream *stream, hth_err err)
{
    stream->err = err;
    snprintf(stream->detail, sizeof stream->detail, "%s", hth_err_detail());
}

static void cpu_reach(cpu_device *device, cpu_event *event, uint64_t target)
{
    event->time_ns = hth_now_ns();
    event->done = target;
    cpu_wake(&device->reached);
    for (int i = 0; i < 2; i++) {
        const cpu_op *awaited = device->lane[i].awaited;
        if (awaited != NULL && awaited->event == event && awaited->target <= target) {
            cpu_wake(&device->lane[i].work);
        }
    }
}

static void cpu_move(cpu_lane *lane, const cpu_op *op)
{
    if (lane == NULL) {
        hth_team_copy(op->dst, op->src, op->bytes);
    } else if (lane->link.bytes_per_s > 0) {
        uint64_t ready_ns = lane->waited_ns > op->issued_ns ? lane->waited_ns : op->issued_ns;
        hth_paced_copy(&lane->link, ready_ns, op->dst, op->src, op->bytes);
    } else {
        memcpy(op->dst, op->src, op->bytes);
    }
}

static void cpu_await_record(cpu_device *device, const cpu_op *op)
{
    cpu_lane *l = op->stream->lane;
    if (l == NULL) {
        while (op->event->done < op->target) {
            cpu_await(device, &device->reached);
        }
        return;
    }
    l->awaited = op;
    while (op->event->done < op->target) {
        cpu_await(device, &l->work);
    }
    l->awaited = NULL;
    if (op->event->time_ns > l->waited_ns) {
        l->waited_ns = op->event->time_ns;
    }
}

// Called with the lock, which is given up while the operation runs.
static void cpu_execute(cpu_device *device, const cpu_op *op)
{
    cpu_stream *s = op->stream;
    if (op->kind == CPU_OP_RECORD) {
        cpu_reach(device, op->event, op->target);
    } else if (op->kind == CPU_OP_WAIT) {
        cpu_await_record(device, op);
    } else if (s->err == HTH_OK) {
        pthread_mutex_unlock(&device->lock);
        hth_err err = HTH_OK;
        if (op->kind == CPU_OP_COPY) {
            cpu_move(s->lane, op);
        } else {
            err = op->fn(op->dst);
        }
        pthread_mutex_lock(&device->lock);
        if (err != HTH_OK) {
            cpu_keep_error(s, err);
        }
    }
}

static void cpu_lane_main(void *arg)
{
    cpu_lane *l = arg;
    cpu_device *d = l->device;
    if (l->link.bytes_per_s > 0) {
        (void)prctl(PR_SET_TIMERSLACK, 1); // else sleeps last 50 us longer
    }
    pthread_mutex_lock(&d->lock);
    l->runs = true;
    cpu_wake(&d->moved);
    for (;;) {
        while (l->head == l->tail && !l->stopping) {
            cpu_await(d, &l->work);
        }
        if (l->head == l->tail) {
            break;
        }
        cpu_op op = l->ring[l->head % CPU_RING];
        cpu_execute(d, &op);
        l->head++;
        assert(op.stream->pending > 0);
        op.stream->pending--;
        cpu_wake(&d->moved);
    }
    pthread_mutex_unlock(&d->lock);
}

// Called with the lock.
static void cpu_issue(cpu_device *device, const cpu_op *op)
{
    cpu_lane *l = op->stream->lane;
    if (l == NULL) {
        cpu_execute(device, op);
        return;
    }
    while (l->tail - l->head == CPU_RING) {
        cpu_await(device, &device->moved);
    }
    l->ring[l->tail++ % CPU_RING] = *op;
    op->stream->pending++;
    if (l->awaited == NULL) {
        cpu_wake(&l->work);
    }
}

static hth_err cpu_submit(hth_stream *stream, cpu_op op)
{
    cpu_device *d = cpu_of(stream->device);
    cpu_event *e = op.event;
    op.stream = (cpu_stream *)stream;
    if (op.kind == CPU_OP_COPY && op.stream->lane != NULL) {
        op.issued_ns = hth_now_ns();
    }
    pthread_mutex_lock(&d->lock);
    if (e != NULL) {
        op.target = op.kind == CPU_OP_RECORD ? ++e->issued : e->issued;
    }
    cpu_issue(d, &op);
    pthread_mutex_unlock(&d->lock);
    return HTH_OK;
}

static hth_err cpu_launch(hth_stream *stream, hth_err (*fn)(void *arg), void *arg)
{
    return cpu_submit(stream, (cpu_op){.kind = CPU_OP_LAUNCH, .fn = fn, .dst = arg});
}

static hth_err cpu_copy(hth_stream *stream, void *dst, const void *src, size_t bytes)
{
    return cpu_submit(stream,
                      (cpu_op){.kind = CPU_OP_COPY, .dst = dst, .src = src, .bytes = bytes});
}

static hth_err cpu_record(hth_stream *stream, hth_event *event)
{
    return cpu_submit(stream, (cpu_op){.kind = CPU_OP_RECORD, .event = (cpu_event *)event});
}

static hth_err cpu_wait(hth_stream *stream, hth_event *event)
{
    return cpu_submit(stream, (cpu_op){.kind = CPU_OP_WAIT, .event = (cpu_event *)event});
}

static hth_err cpu_sync(hth_stream *base)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_device *d = cpu_of(base->device);
    pthread_mutex_lock(&d->lock);
    while (s->pending > 0) {
        cpu_await(d, &d->moved);
    }
    hth_err err = s->err;
    s->err = HTH_OK;
    pthread_mutex_unlock(&d->lock);
    return hth_err_restore(err, s->detail);
}

// Streams and events.

static hth_err cpu_lane_start(cpu_device *device, cpu_lane *lane)
{
    if (!lane->started) {
        const char *name = lane == &device->lane[0] ? "hth-h2d" : "hth-d2h";
        lane->device = device;
        HTH_TRY(hth_thread_start(name, cpu_lane_main, lane, &lane->thread));
        lane->started = true;
        pthread_mutex_lock(&device->lock);
        while (!lane->runs) { // until then it has memory of its start
            cpu_await(device, &device->moved);
        }
        pthread_mutex_unlock(&device->lock);
    }
    return HTH_OK;
}

static hth_err cpu_stream_open(hth_device *base, hth_stream_kind kind, hth_stream **out)
{
    cpu_device *d = cpu_of(base);
    cpu_lane *l = kind == HTH_STREAM_COMPUTE ? NULL : &d->lane[kind == HTH_STREAM_D2H];
    if (l != NULL) {
        HTH_TRY(cpu_lane_start(d, l));
    }
    cpu_stream *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a stream", base->props.name);
    }
    s->base = (hth_stream){base, kind};
    s->lane = l;
    *out = &s->base;
    return HTH_OK;
}

static void cpu_stream_close(hth_stream *stream)
{
    (void)cpu_sync(stream);
    hth_free(stream);
}

static hth_err cpu_event_open(hth_device *device, hth_event **out)
{
    cpu_event *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for an event", device->props.name);
    }
    e->base.device = device;
    *out = &e->base;
    return HTH_OK;
}

static void cpu_event_close(hth_event *event)
{
    hth_free(event);
}

static hth_err cpu_event_sync(hth_event *base)
{
    cpu_event *e = (cpu_event *)base;
    cpu_device *d = cpu_of(base->device);
    pthread_mutex_lock(&d->lock);
    uint64_t target = e->issued;
    while (e->done < target) {
        cpu_await(d, &d->reached);
    }
    pthread_mutex_unlock(&d->lock);
    return HTH_OK;
}

static uint64_t cpu_event_time_ns(hth_event *base)
{
    cpu_event *e = (cpu_event *)base;
    cpu_device *d = cpu_of(base->device);
    pthread_mutex_lock(&d->lock);
    uint64_t t = e->done == e->issued ? e->time_ns : 0;
    pthread_mutex_unlock(&d->lock);
    return t;
}

// Open, close.

static void cpu_close(hth_device *base)
{
    cpu_device *d = cpu_of(base);
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < 2; i++) {
        d->lane[i].stopping = true;
        cpu_wake(&d->lane[i].work);
    }
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < 2; i++) {
        if (d->lane[i].started) {
            hth_thread_join(d->lane[i].thread);
        }
        pthread_cond_destroy(&d->lane[i].work.changed);
    }
    pthread_cond_destroy(&d->reached.changed);
    pthread_cond_destroy(&d->moved.changed);
    pthread_mutex_destroy(&d->lock);
    hth_free(d);
    hth_isa_unclaim();
}

static const hth_device_ops cpu_ops = {
    .close = cpu_close,
    .reserve = cpu_reserve,
    .release = cpu_release,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .launch = cpu_launch,
    .copy = cpu_copy,
    .record = cpu_record,
    .wait = cpu_wait,
    .sync = cpu_sync,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_sync = cpu_event_sync,
    .event_time_ns = cpu_event_time_ns,
};

// Adds ", link 1.5 GB/s" to the description.
static void cpu_describe_link(hth_device_props *props)
{
    char up[16], down[16], *end = props->description + strlen(props->description);
    size_t cap = sizeof props->description - strlen(props->description);
    hth_rate_write(props->h2d_bytes_per_s, up, sizeof up);
    hth_rate_write(props->d2h_bytes_per_s, down, sizeof down);
    if (props->h2d_bytes_per_s > 0 && props->h2d_bytes_per_s == props->d2h_bytes_per_s) {
        snprintf(end, cap, ", link %s", up);
    } else if (props->h2d_bytes_per_s > 0) {
        snprintf(end, cap, ", link %s to it, %s back", up, down);
    }
}

static hth_err cpu_props(const hth_device_spec *spec, hth_device_props *props)
{
    char name[64], isa[16], onednn[16];
    const hth_onednn *o = hth_onednn_get();
    hth_machine_name(name, sizeof name);
    props->n_threads = spec->threads ? spec->threads : hth_machine_threads();
    props->core_cache_bytes = hth_machine_cache(2);
    uint64_t shared = hth_machine_cache(3);
    props->cache_bytes = shared < CPU_SHARED_CACHE ? shared : CPU_SHARED_CACHE;
    props->vector_bytes = hth_machine_isa(isa, sizeof isa);
    props->host_visible = true;
    props->inline_compute = true;
    props->h2d_bytes_per_s = spec->h2d_bytes_per_s;
    props->d2h_bytes_per_s = spec->d2h_bytes_per_s;
    props->link_latency_us = spec->h2d_bytes_per_s > 0 ? HTH_LINK_LATENCY_NS / 1e3 : 0;
    props->inline_copies = spec->h2d_bytes_per_s <= 0 && props->n_threads >= hth_machine_threads();
    if (o != NULL) {
        snprintf(onednn, sizeof onednn, "oneDNN %s", o->version);
    } else {
        snprintf(onednn, sizeof onednn, "no oneDNN");
    }
    snprintf(props->description, sizeof props->description, "%s, %s, %d thread%s, %s", name, isa,
             props->n_threads, props->n_threads == 1 ? "" : "s", onednn);
    cpu_describe_link(props);
    snprintf(props->fingerprint, sizeof props->fingerprint, "%s; %s; %d threads; %s", name, isa,
             props->n_threads, onednn);
    props->total_bytes = hth_machine_memory();
    return hth_device_spec_budget(spec, props->total_bytes, "60%", &props->budget_bytes);
}

static hth_err cpu_new(const hth_device_spec *spec, hth_device_props *props, cpu_device **out)
{
    HTH_TRY(cpu_props(spec, props));
    *out = hth_calloc(1, sizeof **out);
    return *out != NULL ? HTH_OK
                        : hth_fail(HTH_ENOMEM, "device %s: no memory to open it", props->name);
}

hth_err hth_cpu_open(const hth_device_spec *spec, hth_device **out)
{
    hth_device_props props = {0};
    cpu_device *d;
    snprintf(props.name, sizeof props.name, "cpu:%d", spec->index);
    HTH_TRY(hth_isa_claim(props.name, spec->isa));
    hth_err err = cpu_new(spec, &props, &d);
    if (err != HTH_OK) {
        hth_isa_unclaim();
        return err;
    }
    d->base.ops = &cpu_ops;
    d->base.props = props;
    d->lane[0].link.bytes_per_s = props.h2d_bytes_per_s;
    d->lane[1].link.bytes_per_s = props.d2h_bytes_per_s;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->reached.changed, NULL);
    pthread_cond_init(&d->moved.changed, NULL);
    for (int i = 0; i < 2; i++) {
        pthread_cond_init(&d->lane[i].work.changed, NULL);
    }
    hth_team_set(props.n_threads);
    *out = &d->base;
    return HTH_OK;
}
