// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static _Atomic(uint64_t (*)(void *ctx)) clock_fn;
static _Atomic(void *) clock_ctx; // stored before it, while nothing is injected
static _Atomic(void (*)(void *ctx, uint64_t ns)) sleep_fn;
static _Atomic(void *) sleep_ctx;

uint64_t hth_now_ns(void)
{
    uint64_t (*fn)(void *ctx) = atomic_load_explicit(&clock_fn, memory_order_acquire);
    if (fn != NULL) {
        return fn(atomic_load_explicit(&clock_ctx, memory_order_relaxed));
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void hth_clock_inject(uint64_t (*fn)(void *ctx), void *ctx)
{
    atomic_store(&clock_ctx, ctx);
    atomic_store(&clock_fn, fn);
}

void hth_sleep_until(uint64_t ns)
{
    void (*fn)(void *ctx, uint64_t ns) = atomic_load_explicit(&sleep_fn, memory_order_acquire);
    if (fn != NULL) {
        fn(atomic_load_explicit(&sleep_ctx, memory_order_relaxed), ns);
        return;
    }
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u),
                               .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

void hth_sleep_inject(void (*fn)(void *ctx, uint64_t ns), void *ctx)
{
    atomic_store(&sleep_ctx, ctx);
    atomic_store(&sleep_fn, fn);
}
