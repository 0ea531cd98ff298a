// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_work.h"

#include "base/clock.h"

#include <stddef.h>

#define WORK_LOOK 16            // looks at this clock between two at the real one
#define WORK_HOUR 3600000000000 // ns

// Picoseconds per unit on one core of the machine that docs/benchmarks.md names.
static const uint64_t work_rate[HTH_N_WORK_KINDS] = {
    [HTH_WORK_DECODE] = 240000, [HTH_WORK_NEEDS] = 700,   [HTH_WORK_RERUN] = 1000,
    [HTH_WORK_STAGE] = 15000,   [HTH_WORK_COPY] = 33000,  [HTH_WORK_FLIGHT] = 20000,
    [HTH_WORK_TIME] = 9000,     [HTH_WORK_NOTE] = 500,    [HTH_WORK_GAIN] = 1400,
    [HTH_WORK_MOVE] = 170000,   [HTH_WORK_BOUND] = 28000, [HTH_WORK_VISIT] = 6000,
    [HTH_WORK_SKYLINE] = 4000,  [HTH_WORK_LAY] = 1000000};

_Thread_local hth_plan_work hth_plan_work_here;

void hth_plan_gate_init(hth_plan_gate *gate)
{
    gate->shut = false;
    gate->openings = 0;
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->opened, NULL);
}

void hth_plan_gate_fini(hth_plan_gate *gate)
{
    pthread_cond_destroy(&gate->opened);
    pthread_mutex_destroy(&gate->lock);
}

void hth_plan_gate_shut(hth_plan_gate *gate)
{
    gate->shut = true;
}

void hth_plan_gate_open(hth_plan_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->shut = false;
    gate->openings++;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_wait(hth_plan_work *work)
{
    hth_plan_gate *gate = work->gate;
    uint64_t from_ns = hth_now_ns();
    pthread_mutex_lock(&gate->lock);
    unsigned before = gate->openings;
    while (gate->shut && gate->openings == before) {
        pthread_cond_wait(&gate->opened, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
    work->stop_ns += hth_now_ns() - from_ns;
}

static uint64_t work_ps(const hth_plan_work *work)
{
    uint64_t ps = work->round_ps;
    for (int i = 0; i < HTH_N_WORK_KINDS; i++) {
        ps += work->count[i] * work_rate[i];
    }
    return ps;
}

uint64_t hth_plan_work_now_ns(void)
{
    hth_plan_work *work = &hth_plan_work_here;
    if (work->gate != NULL && atomic_load_explicit(&work->gate->shut, memory_order_relaxed)) {
        gate_wait(work);
    }
    if (work->stop_ns > 0 && !work->stopped && ++work->looks % WORK_LOOK == 0) {
        work->stopped =
            hth_now_ns() >= work->stop_ns ||
            (work->cancel != NULL && atomic_load_explicit(work->cancel, memory_order_relaxed) != 0);
    }
    return work_ps(work) / 1000 + (work->stopped ? WORK_HOUR : 0);
}

void hth_plan_work_begin(double limit_ms, const atomic_int *cancel, hth_plan_gate *gate)
{
    double ms = HTH_WORK_BACKSTOP * limit_ms;
    ms = ms > HTH_WORK_BACKSTOP_MIN ? ms : HTH_WORK_BACKSTOP_MIN;
    hth_plan_work_here.round_ps += (1000 - work_ps(&hth_plan_work_here) % 1000) % 1000;
    hth_plan_work_here.stop_ns = hth_now_ns() + (uint64_t)(ms * 1e6);
    hth_plan_work_here.cancel = cancel;
    hth_plan_work_here.gate = gate;
    hth_plan_work_here.looks = 0;
    hth_plan_work_here.stopped = false;
}

bool hth_plan_work_end(void)
{
    bool stopped = hth_plan_work_here.stopped;
    hth_plan_work_here.stop_ns = 0;
    hth_plan_work_here.cancel = NULL;
    hth_plan_work_here.gate = NULL;
    hth_plan_work_here.stopped = false;
    return stopped;
}
