// SPDX-License-Identifier: Apache-2.0
// A device that runs everything as late and as oddly as the rules allow. Launches, copies, records
// and waits are queued; a sync executes queued operations in a random legal order until its stream
// is empty: each stream in its own order, a wait only after the record that it names. Half of the
// syncs interleave streams evenly, the others let one stream run ahead of the rest as far as it
// can, which is what finds a missing event edge. Same seed and calls, same order.
//
// Invariant: a wait names a record issued before it, so some head of a queue can always run.
// Owner's thread only.
#include "device/fake/fake.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "device/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_TOTAL_BYTES ((uint64_t)1 << 40)
#define FAKE_POISON      0xCB

typedef enum fake_op_kind {
    FAKE_OP_LAUNCH,
    FAKE_OP_COPY,
    FAKE_OP_RECORD,
    FAKE_OP_WAIT
} fake_op_kind;

typedef struct fake_event {
    hth_event base;
    uint64_t issued, done, time_ns;
} fake_event;

typedef struct fake_op {
    fake_op_kind kind;
    hth_err (*fn)(void *arg);
    void *dst; // launch: arg
    const void *src;
    size_t bytes;
    fake_event *event;
    uint64_t target;
} fake_op;

typedef struct fake_stream {
    hth_stream base;
    struct fake_stream *next; // in the device's list
    int head, n_ops, cap_ops;
    fake_op *ops;
    hth_err err;
    char detail[256];
} fake_stream;

typedef struct fake_device {
    hth_device base;
    hth_fake_control control;
    uint64_t random;
    fake_stream *streams;
} fake_device;

static fake_device *fake_of(hth_device *device)
{
    return (fake_device *)device;
}

static uint64_t fake_random(fake_device *device, uint64_t below) // splitmix64
{
    uint64_t z = device->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % below;
}

// Counts a call down; true when it is the one that must fail.
static bool fake_faulty(unsigned *nth)
{
    return *nth > 0 && --*nth == 0;
}

static hth_err fake_reserve(hth_device *base, size_t bytes, void **out)
{
    fake_device *d = fake_of(base);
    if (fake_faulty(&d->control.fail_reserve) ||
        bytes > base->props.budget_bytes - d->control.reserved_bytes) {
        return hth_fail(HTH_ENODEVMEM, "device %s: %zu bytes are not free now", base->props.name,
                        bytes);
    }
    *out = hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
    if (*out == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a reservation of %zu bytes",
                        base->props.name, bytes);
    }
    memset(*out, FAKE_POISON, bytes);
    d->control.reserved_bytes += bytes;
    return HTH_OK;
}

static void fake_release(hth_device *base, void *p, size_t bytes)
{
    fake_of(base)->control.reserved_bytes -= bytes;
    memset(p, FAKE_POISON, bytes);
    hth_free(p);
}

// Execution.

static bool fake_runnable(const fake_stream *stream)
{
    if (stream->head == stream->n_ops) {
        return false;
    }
    const fake_op *op = &stream->ops[stream->head];
    return op->kind != FAKE_OP_WAIT || op->event->done >= op->target;
}

static hth_err fake_operate(fake_device *device, const fake_op *op)
{
    hth_fake_control *c = &device->control;
    if (op->kind == FAKE_OP_COPY) {
        c->now_ns += c->copy_ns + c->copy_ns_per_kib * (op->bytes >> 10);
        if (fake_faulty(&c->fail_copy_run)) {
            return hth_fail(HTH_EDEVLOST, "device %s: a copy failed, as injected",
                            device->base.props.name);
        }
        memcpy(op->dst, op->src, op->bytes);
        return HTH_OK;
    }
    c->now_ns += c->launch_ns;
    if (fake_faulty(&c->fail_launch_run)) {
        return hth_fail(HTH_EDEVLOST, "device %s: a launch failed, as injected",
                        device->base.props.name);
    }
    return op->fn(op->dst);
}

static void fake_step(fake_device *device, fake_stream *stream)
{
    fake_op op = stream->ops[stream->head++];
    if (stream->head == stream->n_ops) {
        stream->head = stream->n_ops = 0;
    }
    if (op.kind == FAKE_OP_RECORD) {
        op.event->done = op.target;
        op.event->time_ns = hth_now_ns();
    } else if (op.kind != FAKE_OP_WAIT && stream->err == HTH_OK) {
        stream->err = fake_operate(device, &op);
        if (stream->err != HTH_OK) {
            snprintf(stream->detail, sizeof stream->detail, "%s", hth_err_detail());
        }
    }
}

// Picks a stream whose head can run: a random one, or, when `ahead` names one that can, that one.
static fake_stream *fake_pick(fake_device *device, const fake_stream *ahead)
{
    fake_stream *chosen = NULL;
    uint64_t n = 0;
    for (fake_stream *s = device->streams; s != NULL; s = s->next) {
        if (!fake_runnable(s)) {
            continue;
        }
        if (s == ahead) {
            return s;
        }
        if (fake_random(device, ++n) == 0) {
            chosen = s;
        }
    }
    if (chosen == NULL) {
        abort(); // a wait for a record that was never issued: impossible by the invariant
    }
    return chosen;
}

// Executes until `stream` is empty (or, with an event, until the event has reached `target`).
static void fake_drain(fake_device *device, const fake_stream *stream, const fake_event *event,
                       uint64_t target)
{
    const fake_stream *ahead = NULL;
    for (fake_stream *x = device->streams; x != NULL; x = x->next) {
        if (fake_random(device, 4) == 0) {
            ahead = x;
        }
    }
    while (stream != NULL ? stream->head < stream->n_ops : event != NULL && event->done < target) {
        fake_step(device, fake_pick(device, ahead));
    }
}

// Streams and events.

static hth_err fake_submit(hth_stream *base, fake_op op)
{
    fake_stream *s = (fake_stream *)base;
    if (HTH_GROW(s->ops, s->n_ops, s->cap_ops) != 0) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for an operation",
                        base->device->props.name);
    }
    if (op.event != NULL) {
        op.target = op.kind == FAKE_OP_RECORD ? ++op.event->issued : op.event->issued;
    }
    s->ops[s->n_ops++] = op;
    return HTH_OK;
}

static hth_err fake_launch(hth_stream *stream, hth_err (*fn)(void *arg), void *arg)
{
    hth_fake_control *c = &fake_of(stream->device)->control;
    c->launches++;
    if (fake_faulty(&c->fail_launch)) {
        return hth_fail(HTH_EDEVLOST, "device %s: launch refused, as injected",
                        stream->device->props.name);
    }
    return fake_submit(stream, (fake_op){.kind = FAKE_OP_LAUNCH, .fn = fn, .dst = arg});
}

static hth_err fake_copy(hth_stream *stream, void *dst, const void *src, size_t bytes)
{
    hth_fake_control *c = &fake_of(stream->device)->control;
    c->copies++;
    if (fake_faulty(&c->fail_copy)) {
        return hth_fail(HTH_EDEVLOST, "device %s: copy refused, as injected",
                        stream->device->props.name);
    }
    return fake_submit(stream,
                       (fake_op){.kind = FAKE_OP_COPY, .dst = dst, .src = src, .bytes = bytes});
}

static hth_err fake_record(hth_stream *stream, hth_event *event)
{
    return fake_submit(stream, (fake_op){.kind = FAKE_OP_RECORD, .event = (fake_event *)event});
}

static hth_err fake_wait(hth_stream *stream, hth_event *event)
{
    return fake_submit(stream, (fake_op){.kind = FAKE_OP_WAIT, .event = (fake_event *)event});
}

static hth_err fake_sync(hth_stream *base)
{
    fake_stream *s = (fake_stream *)base;
    fake_drain(fake_of(base->device), s, NULL, 0);
    hth_err err = s->err;
    s->err = HTH_OK;
    return hth_err_restore(err, s->detail);
}

static hth_err fake_stream_open(hth_device *device, hth_stream_kind kind, hth_stream **out)
{
    fake_stream *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a stream", device->props.name);
    }
    s->base = (hth_stream){device, kind};
    s->next = fake_of(device)->streams;
    fake_of(device)->streams = s;
    *out = &s->base;
    return HTH_OK;
}

static void fake_stream_close(hth_stream *base)
{
    fake_stream *s = (fake_stream *)base, **link = &fake_of(base->device)->streams;
    (void)fake_sync(base);
    while (*link != s) {
        link = &(*link)->next;
    }
    *link = s->next;
    hth_free(s->ops);
    hth_free(s);
}

static hth_err fake_event_open(hth_device *device, hth_event **out)
{
    fake_event *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for an event", device->props.name);
    }
    e->base.device = device;
    *out = &e->base;
    return HTH_OK;
}

static void fake_event_close(hth_event *event)
{
    hth_free(event);
}

static hth_err fake_event_sync(hth_event *event)
{
    fake_drain(fake_of(event->device), NULL, (fake_event *)event, ((fake_event *)event)->issued);
    return HTH_OK;
}

static uint64_t fake_event_time_ns(hth_event *base)
{
    const fake_event *e = (fake_event *)base;
    return e->done == e->issued ? e->time_ns : 0;
}

static void fake_close(hth_device *device)
{
    hth_free(device);
}

static const hth_device_ops fake_ops = {
    .close = fake_close,
    .reserve = fake_reserve,
    .release = fake_release,
    .stream_open = fake_stream_open,
    .stream_close = fake_stream_close,
    .launch = fake_launch,
    .copy = fake_copy,
    .record = fake_record,
    .wait = fake_wait,
    .sync = fake_sync,
    .event_open = fake_event_open,
    .event_close = fake_event_close,
    .event_sync = fake_event_sync,
    .event_time_ns = fake_event_time_ns,
};

hth_fake_control *hth_fake_control_of(hth_device *device)
{
    return device->ops == &fake_ops ? &fake_of(device)->control : NULL;
}

uint64_t hth_fake_clock(void *ctx)
{
    return ((hth_fake_control *)ctx)->now_ns;
}

hth_err hth_fake_open(const hth_device_spec *spec, hth_device **out)
{
    uint64_t budget;
    HTH_TRY(hth_device_spec_budget(spec, FAKE_TOTAL_BYTES, "64MiB", &budget));
    fake_device *d = hth_calloc(1, sizeof *d);
    if (d == NULL) {
        return hth_fail(HTH_ENOMEM, "device fake:%d: no memory to open it", spec->index);
    }
    d->base.ops = &fake_ops;
    d->base.props = (hth_device_props){.total_bytes = FAKE_TOTAL_BYTES,
                                       .budget_bytes = budget,
                                       .n_threads = 1,
                                       .vector_bytes = 16,
                                       .host_visible = true};
    snprintf(d->base.props.name, sizeof d->base.props.name, "fake:%d", spec->index);
    snprintf(d->base.props.description, sizeof d->base.props.description,
             "deferred queues, seed %llu", (unsigned long long)spec->seed);
    snprintf(d->base.props.fingerprint, sizeof d->base.props.fingerprint, "fake");
    d->random = spec->seed;
    d->control =
        (hth_fake_control){.now_ns = 1, .launch_ns = 1000, .copy_ns = 1000, .copy_ns_per_kib = 100};
    *out = &d->base;
    return HTH_OK;
}
