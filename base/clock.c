// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static _Atomic(uint64_t (*)(void *ctx)) clock_fn;
static _Atomic(void *) clock_ctx; // stored before it, while nothing is injected

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
