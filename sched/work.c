// SPDX-License-Identifier: Apache-2.0
#include "sched/work.h"

#include "base/clock.h"

#include <assert.h>

// Models are planned and kernels are made on these stacks.
#define WORK_STACK ((size_t)2 << 20)

static hth_fiber *stack_take(hth_work_queue *queue)
{
    hth_fiber *f = NULL;
    for (int i = 0; i < HTH_WORK_STACKS && f == NULL; i++) {
        f = queue->spare[i];
        queue->spare[i] = NULL;
    }
    return f != NULL || hth_fiber_open(WORK_STACK, &f) == HTH_OK ? f : NULL;
}

static void stack_give(hth_work_queue *queue, hth_fiber *fiber)
{
    for (int i = 0; i < HTH_WORK_STACKS; i++) {
        if (queue->spare[i] == NULL) {
            queue->spare[i] = fiber;
            return;
        }
    }
    hth_fiber_close(fiber);
}

void hth_work_fini(hth_work_queue *queue)
{
    for (int i = 0; i < HTH_WORK_STACKS; i++) {
        hth_fiber_close(queue->spare[i]);
        queue->spare[i] = NULL;
    }
}

// work_slice ends the slice that work has now, and begins another; what it took.
static uint64_t work_slice(hth_work_queue *queue, hth_work *work, uint64_t now_ns, bool over)
{
    uint64_t took_ns = now_ns - work->from_ns;
    work->from_ns = now_ns;
    if (queue->slice != NULL) {
        queue->slice(queue->ctx, work, took_ns, now_ns, over);
    }
    hth_run_queue_ran(&queue->runs, &work->item, took_ns, now_ns);
    return took_ns;
}

bool hth_work_busy(const hth_work *work)
{
    return work->fiber != NULL;
}

bool hth_work_computes(const hth_work_queue *queue, const hth_work *work)
{
    return work->away && queue->other->busy(queue->other->ctx);
}

uint64_t hth_work_others_ns(const hth_work_queue *queue)
{
    if (queue == NULL) {
        return 0;
    }
    return queue->ran_ns - (queue->now != NULL ? queue->now->ran_ns : 0);
}

void hth_work_ran(hth_work_queue *queue, uint64_t took_ns)
{
    queue->slices++;
    queue->ran_ns += took_ns;
}

void hth_work_go(hth_work_queue *queue, hth_work *work)
{
    assert(queue->now == NULL && hth_work_busy(work) && queue->held == 0);
    uint64_t begun_ns = hth_now_ns();
    work->from_ns = begun_ns;
    queue->now = work;
    queue->slices++;
    bool more = hth_fiber_go(work->fiber);
    queue->now = NULL;
    if (!more) {
        assert(queue->held == 0);
        stack_give(queue, work->fiber);
        work->fiber = NULL;
        (void)work_slice(queue, work, hth_now_ns(), true);
    }
    work->ran_ns += work->from_ns - begun_ns;
    queue->ran_ns += work->from_ns - begun_ns;
}

void hth_work_begin(hth_work_queue *queue, hth_work *work, void (*fn)(void *arg), void *arg)
{
    assert(queue->now == NULL && !hth_work_busy(work));
    hth_fiber *f = stack_take(queue);
    if (f == NULL) {
        work->from_ns = hth_now_ns();
        fn(arg);
        hth_work_ran(queue, work_slice(queue, work, hth_now_ns(), true));
        return;
    }
    work->fiber = f;
    work->away = false;
    hth_fiber_begin(f, fn, arg);
    hth_work_go(queue, work);
}

bool hth_work_point(hth_work_queue *queue)
{
    if (queue == NULL) {
        return false;
    }
    if (queue->poll != NULL) {
        queue->poll(queue->ctx);
    }
    hth_work *w = queue->now;
    uint64_t now_ns = w != NULL && queue->held == 0 ? hth_now_ns() : 0;
    if (now_ns == 0 || now_ns - w->from_ns < w->least_ns) {
        return false;
    }
    (void)work_slice(queue, w, now_ns, false);
    if (w->item.rests == 0 && (queue->wanted == NULL || !queue->wanted(queue->ctx))) {
        return false;
    }
    uint64_t slices = queue->slices;
    hth_fiber_yield(w->fiber);
    return queue->slices - slices > 1; // one is its own
}

void hth_work_hold(hth_work_queue *queue)
{
    if (queue != NULL) {
        queue->held++;
    }
}

void hth_work_let(hth_work_queue *queue)
{
    if (queue != NULL) {
        assert(queue->held > 0);
        queue->held--;
    }
}

hth_err hth_work_elsewhere(hth_work_queue *queue, hth_err (*fn)(void *arg), void *arg)
{
    hth_work *w = queue != NULL && queue->other != NULL && queue->held == 0 ? queue->now : NULL;
    if (w == NULL || !queue->other->start(queue->other->ctx, fn, arg)) {
        return fn(arg);
    }
    uint64_t others_ns = hth_work_others_ns(queue);
    (void)work_slice(queue, w, hth_now_ns(), true);
    w->away = true;
    hth_fiber_yield(w->fiber);
    assert(!queue->other->busy(queue->other->ctx));
    w->away = false;
    w->ran_ns += hth_work_others_ns(queue) - others_ns; // they took nothing from it
    return queue->other->wait(queue->other->ctx);
}
